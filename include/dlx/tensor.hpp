/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TENSOR_HPP
#define DLX_TENSOR_HPP

/**
 * Tensors for C++17, and the exception that all of dlx/dlx.hpp throws. Part of dlx/dlx.hpp. A
 * dlx::tensor owns a tensor of DLPack 1, from libdlx or not. A dlx::tensor_view reads one, and
 * checks data type, device and strides before it gives typed access.
 */

#include <dlx/dlx.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace dlx
{

/** A failed call. code() is an enum dlx_error; what() says what failed, on which object, and
 *  why. */
class error : public std::runtime_error
{
  public:
    error(int code, const std::string &what) : std::runtime_error(what), code_(code) {}
    /** Describes the calling thread's last failure. */
    explicit error(int code) : error(code, words(code)) {}
    int code() const noexcept { return code_; }
    /** The name of the code: "TOPIC" for DLX_E_TOPIC. */
    const char *name() const noexcept { return dlx_error_name(code_); }

  private:
    static std::string words(int code)
    {
        const char *text = dlx_errmsg();
        return *text ? text : dlx_strerror(code);
    }
    int code_;
};

/** A view of values that another object owns. */
template <class T> class span
{
  public:
    constexpr span() noexcept = default;
    constexpr span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    /** Views anything that has data() and size(): std::vector, std::array, std::span. */
    template <class C, class = decltype(static_cast<T *>(std::declval<C &>().data()))>
    constexpr span(C &&of) noexcept : data_(of.data()), size_(of.size())
    {
    }
    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }
    constexpr T &operator[](std::size_t i) const noexcept { return data_[i]; }

  private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

namespace detail
{

struct release {
    void operator()(dlx_client *x) const noexcept { dlx_client_unref(x); }
    void operator()(dlx_publisher *x) const noexcept { dlx_publisher_unref(x); }
    void operator()(dlx_subscription *x) const noexcept { dlx_subscription_unref(x); }
    void operator()(dlx_message *x) const noexcept { dlx_message_unref(x); }
    void operator()(dlx_observer *x) const noexcept { dlx_observer_unref(x); }
    void operator()(dlx_caller *x) const noexcept { dlx_caller_unref(x); }
    void operator()(dlx_service *x) const noexcept { dlx_service_unref(x); }
    void operator()(dlx_request *x) const noexcept { dlx_request_unref(x); }
    void operator()(dlx_gpu_range *x) const noexcept { dlx_gpu_range_unref(x); }
    void operator()(DLManagedTensorVersioned *x) const noexcept
    {
        if (x->deleter)
            x->deleter(x);
    }
};

/* The base of all owners of a handle. */
template <class T> class handle
{
  public:
    T *get() const noexcept { return x_.get(); }
    explicit operator bool() const noexcept { return x_ != nullptr; }

  protected:
    handle() = default;
    explicit handle(T *x) noexcept : x_(x) {}
    std::unique_ptr<T, release> x_;
};

template <class T> constexpr DLDataType dtype()
{
    static_assert(std::is_integral_v<T> || std::is_same_v<T, float> || std::is_same_v<T, double>,
                  "no data type for T: specialise dlx::dtype_of<T>");
    const DLDataTypeCode code = std::is_same_v<T, bool>       ? kDLBool
                                : std::is_floating_point_v<T> ? kDLFloat
                                : std::is_signed_v<T>         ? kDLInt
                                                              : kDLUInt;
    return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(sizeof(T) * 8), 1};
}

/* A data type in numbers, as dlxctl writes one without a name: code:bits:lanes. */
inline std::string text(DLDataType d)
{
    return std::to_string(d.code) + ":" + std::to_string(d.bits) + ":" + std::to_string(d.lanes);
}

} // namespace detail

/** The data type of T. Specialise it for other types: `template <> inline constexpr DLDataType
 *  dlx::dtype_of<half>{kDLFloat, 16, 1};` */
template <class T> inline constexpr DLDataType dtype_of = detail::dtype<T>();

/** A view of a tensor that another object owns, valid as long as that object. */
class tensor_view
{
  public:
    explicit tensor_view(const DLTensor &t) noexcept : t_(&t) {}
    const DLTensor *get() const noexcept { return t_; }
    DLDataType dtype() const noexcept { return t_->dtype; }
    std::int32_t ndim() const noexcept { return t_->ndim; }
    /** Shape and strides in elements. Strides may be empty, which means row-major. */
    span<const std::int64_t> shape() const noexcept { return {t_->shape, n_dims()}; }
    span<const std::int64_t> strides() const noexcept
    {
        return {t_->strides, t_->strides ? n_dims() : 0};
    }
    /** Number of elements. */
    std::size_t size() const noexcept
    {
        std::size_t n = 1;
        for (std::int64_t x : shape())
            n *= static_cast<std::size_t>(x);
        return n;
    }
    bool is_row_major() const noexcept
    {
        std::int64_t step = 1;
        for (std::size_t i = n_dims(); t_->strides && i-- > 0; step *= t_->shape[i])
            if (t_->shape[i] != 1 && t_->strides[i] != step)
                return size() == 0;
        return true;
    }
    /** Points to the first element. Throws DLX_E_SHAPE if the elements are not of type T, and
     *  DLX_E_DEVICE if the CPU cannot read the memory. */
    template <class T> const T *data() const
    {
        constexpr DLDataType want = dtype_of<T>;
        const DLDataType have = t_->dtype;
        const DLDeviceType d = t_->device.device_type;
        if (have.code != want.code || have.bits != want.bits || have.lanes != want.lanes)
            throw error(DLX_E_SHAPE, "the tensor's data type is " + detail::text(have) + ", not " +
                                         detail::text(want));
        if (d != kDLCPU && d != kDLCUDAHost && d != kDLROCMHost && d != kDLCUDAManaged)
            throw error(DLX_E_DEVICE, "the host cannot read device type " + std::to_string(d));
        const void *p = static_cast<const unsigned char *>(t_->data) + t_->byte_offset;
        return static_cast<const T *>(p);
    }
    /** Views all elements of a row-major tensor. Throws as data(), and DLX_E_SHAPE for others. */
    template <class T> span<const T> values() const
    {
        if (!is_row_major())
            throw error(DLX_E_SHAPE, "the tensor is not row-major");
        return {data<T>(), size()};
    }

  private:
    std::size_t n_dims() const noexcept { return static_cast<std::size_t>(t_->ndim); }
    const DLTensor *t_;
};

/** Owns a DLManagedTensorVersioned, from libdlx or not, and calls its deleter once. */
class tensor : public detail::handle<DLManagedTensorVersioned>
{
  public:
    tensor() noexcept = default;
    explicit tensor(DLManagedTensorVersioned *t) noexcept : handle(t) {}
    /** Gives ownership to the caller. */
    DLManagedTensorVersioned *release() noexcept { return x_.release(); }
    tensor_view view() const noexcept { return tensor_view(x_->dl_tensor); }
    bool is_read_only() const noexcept { return x_->flags & DLPACK_FLAG_BITMASK_READ_ONLY; }
    /** Whether the tensor is a copy. Of private tensors, small ones are; others are views. */
    bool is_copied() const noexcept { return x_->flags & DLPACK_FLAG_BITMASK_IS_COPIED; }
    /** Declares that work on a stream uses the received tensor: dlx_tensor_used_on(). */
    void used_on(void *stream) const
    {
        const int r = dlx_tensor_used_on(x_.get(), stream);
        if (r < 0)
            throw error(r);
    }
    /** Tells whether a tensor of tensor_on() was ready when its stream continued: 0, 1 or an error
     *  code of dlx_tensor_status(). */
    int status() const noexcept { return dlx_tensor_status(x_.get()); }
    DLDataType dtype() const noexcept { return view().dtype(); }
    span<const std::int64_t> shape() const noexcept { return view().shape(); }
    std::size_t size() const noexcept { return view().size(); }
    /** Like tensor_view::data(). If T is not const, throws DLX_E_READ_ONLY for a read-only
     *  tensor. */
    template <class T> T *data() const
    {
        if (!std::is_const_v<T> && is_read_only())
            throw error(DLX_E_READ_ONLY, "the tensor is read-only: ask for const values");
        return const_cast<T *>(view().template data<std::remove_const_t<T>>());
    }
    template <class T> span<T> values() const
    {
        const auto all = view().template values<std::remove_const_t<T>>();
        return {data<T>(), all.size()};
    }
};

} // namespace dlx

#endif
