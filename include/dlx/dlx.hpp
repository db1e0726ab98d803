/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_DLX_HPP
#define DLX_DLX_HPP

/**
 * libdlx for C++17: handles that release themselves, errors as exceptions, typed access that is
 * checked. Header only, over dlx/dlx.h, whose documentation holds for every function of the same
 * name. No thread, no hidden copy of a payload, no run-time type information needed.
 *
 *     dlx::client c;                                  dlx::client c;
 *     dlx::publisher p(c, "cam/front");               dlx::subscription s(c, "cam/front");
 *     dlx::tensor t = p.alloc<float>({2, 3});         while (auto m = s.take(5s))
 *     fill(t.data<float>());                              use(m->values<float>(0));
 *     p.publish(std::move(t));
 *
 * Ownership: every class but the views owns one handle; it can be moved, not copied. A moved-from
 *   object may be assigned to, destroyed and asked by operator bool, nothing else. Handles may be
 *   destroyed in any order: messages and tensors outlive subscription, publisher and client.
 *   get() lends the C handle, for what this header does not wrap.
 * Threads: as in dlx/dlx.h: any number at once on a client, a message and a tensor's release; one at
 *   a time on a publisher and on a subscription.
 * Errors: dlx::error, with the code and the library's words. Functions that throw leave their
 *   arguments as they were: a tensor that could not be published is still the caller's.
 */

#include <dlx/dlx.h>

#include <chrono>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace dlx
{

/** A failed call: code() is an enum dlx_error, what() says what failed, on whom, and the limit. */
class error : public std::runtime_error
{
  public:
    error(int code, const std::string &what) : std::runtime_error(what), code_(code) {}
    /** From the calling thread's last failure. */
    explicit error(int code) : error(code, words(code)) {}
    int code() const noexcept { return code_; }
    /** "TOPIC" for DLX_E_TOPIC. */
    const char *name() const noexcept { return dlx_error_name(code_); }

  private:
    static std::string words(int code)
    {
        const char *text = dlx_client_errmsg(nullptr);
        return *text ? text : dlx_strerror(code);
    }
    int code_;
};

/** Waits without a limit. Every negative duration does. */
inline constexpr std::chrono::nanoseconds forever{DLX_FOREVER};

/** A view of values that somebody else owns. */
template <class T> class span
{
  public:
    constexpr span() noexcept = default;
    constexpr span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    /** Of anything that has data() and size(): std::vector, std::array, std::span. */
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

inline void check(int code)
{
    if (code < 0)
        throw error(code);
}

/* Is something there in time? */
inline bool there(int code)
{
    if (code != DLX_E_EMPTY && code != DLX_E_TIMEOUT)
        check(code);
    return code >= 0;
}

/* A name for C, which would end it at a NUL byte inside. */
inline const char *c_str(const std::string &s)
{
    if (s.find('\0') != s.npos)
        throw error(DLX_E_INVALID, "a name with a NUL byte inside");
    return s.c_str();
}

/* Rounded up, so that a positive time never means "do not wait". */
template <class R, class P> std::int64_t nanoseconds(std::chrono::duration<R, P> d)
{
    const double seconds = std::chrono::duration<double>(d).count();
    if (!(seconds >= 0 && seconds < 9.2e9))
        return DLX_FOREVER;
    return std::int64_t{std::chrono::ceil<std::chrono::nanoseconds>(d).count()};
}

struct release {
    void operator()(dlx_client *x) const noexcept { dlx_client_unref(x); }
    void operator()(dlx_publisher *x) const noexcept { dlx_publisher_unref(x); }
    void operator()(dlx_subscription *x) const noexcept { dlx_subscription_unref(x); }
    void operator()(dlx_message *x) const noexcept { dlx_message_unref(x); }
    void operator()(DLManagedTensorVersioned *x) const noexcept
    {
        if (x->deleter)
            x->deleter(x);
    }
};

/* What all owners have in common. */
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

/* As dlxctl writes a type that it has no name for: code:bits:lanes. */
inline std::string text(DLDataType d)
{
    return std::to_string(d.code) + ":" + std::to_string(d.bits) + ":" + std::to_string(d.lanes);
}

template <class S> S args(S a)
{
    a.size = sizeof a;
    return a;
}

} // namespace detail

/** The data type of T. For other types specialise it:
 *  `template <> inline constexpr DLDataType dlx::dtype_of<half>{kDLFloat, 16, 1};` */
template <class T> inline constexpr DLDataType dtype_of = detail::dtype<T>();

/** A look at a tensor that somebody else owns: valid as long as that is. Costs nothing. */
class tensor_view
{
  public:
    explicit tensor_view(const DLTensor &t) noexcept : t_(&t) {}
    const DLTensor *get() const noexcept { return t_; }
    DLDataType dtype() const noexcept { return t_->dtype; }
    std::int32_t ndim() const noexcept { return t_->ndim; }
    /** Sizes and steps of the dimensions, in elements. Steps may be absent: row-major. */
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
    /** The first element. Throws DLX_E_SHAPE when the tensor is not of T, DLX_E_DEVICE when the host
     *  cannot read it. */
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
    /** All elements in row-major order. Throws as data(), and DLX_E_SHAPE for other strides. */
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

/** Owns a DLManagedTensorVersioned, from libdlx or anybody else: its deleter runs once, here. */
class tensor : public detail::handle<DLManagedTensorVersioned>
{
  public:
    tensor() noexcept = default;
    explicit tensor(DLManagedTensorVersioned *t) noexcept : handle(t) {}
    /** Gives ownership away. */
    DLManagedTensorVersioned *release() noexcept { return x_.release(); }
    tensor_view view() const noexcept { return tensor_view(x_->dl_tensor); }
    bool is_read_only() const noexcept { return x_->flags & DLPACK_FLAG_BITMASK_READ_ONLY; }
    bool is_copied() const noexcept { return x_->flags & DLPACK_FLAG_BITMASK_IS_COPIED; }
    DLDataType dtype() const noexcept { return view().dtype(); }
    span<const std::int64_t> shape() const noexcept { return view().shape(); }
    std::size_t size() const noexcept { return view().size(); }
    /** As tensor_view::data(). Without const in T also DLX_E_READ_ONLY for a received tensor. */
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

/** A connection to the daemon. */
class client : public detail::handle<dlx_client>
{
  public:
    /** The argument structs of dlx.h; `size` is set here. */
    explicit client(dlx_connect_args args = {})
    {
        dlx_client *c = nullptr;
        args.size = sizeof args;
        detail::check(dlx_connect(&c, &args));
        x_.reset(c);
    }
};

/** A tensor of a set to be published: published, it is taken out of `value`. */
struct item {
    const char *name; /* nullptr: none */
    tensor &value;
};

class publisher : public detail::handle<dlx_publisher>
{
  public:
    publisher(const client &c, const std::string &topic, dlx_publisher_args args = {})
    {
        dlx_publisher *p = nullptr;
        args.size = sizeof args;
        detail::check(dlx_publisher_new(c.get(), detail::c_str(topic), &args, &p));
        x_.reset(p);
    }
    /** A tensor in shared memory, its content undefined; publishing it copies nothing. */
    tensor alloc(DLDataType dtype, span<const std::int64_t> shape)
    {
        const auto ndim =
            shape.size() > INT32_MAX ? INT32_MAX : static_cast<std::int32_t>(shape.size());
        const dlx_tensor_spec spec{sizeof spec, dtype, ndim, shape.data()};
        DLManagedTensorVersioned *t = nullptr;
        detail::check(dlx_alloc(get(), &spec, &t));
        return tensor(t);
    }
    tensor alloc(DLDataType dtype, std::initializer_list<std::int64_t> shape)
    {
        return alloc(dtype, span<const std::int64_t>(shape.begin(), shape.size()));
    }
    template <class T> tensor alloc(std::initializer_list<std::int64_t> shape)
    {
        return alloc(dtype_of<T>, shape);
    }
    /** Publishes one tensor. It is spent on success, and only then: `t` is empty afterwards. The
     *  report is returned, not written to args.report. */
    dlx_publish_report publish(tensor &&t, dlx_publish_args args = {})
    {
        const dlx_publish_report report = report_of(
            args, [&](const dlx_publish_args &a) { return dlx_publish(get(), t.get(), &a); });
        (void)t.release();
        return report;
    }
    /** Publishes several tensors and metadata as one message: `p.publish_set({{"rgb", a}, {"boxes", b}})`.
     *  They are spent on success, all of them: a and b are empty then; on failure none is. */
    dlx_publish_report publish_set(span<const item> items, span<const unsigned char> meta = {},
                                   dlx_publish_args args = {})
    {
        std::vector<dlx_item> c_items;
        for (const item &i : items)
            c_items.push_back({i.name, i.value.get()});
        const dlx_bytes bytes{meta.data(), meta.size()};
        const dlx_publish_report report = report_of(args, [&](const dlx_publish_args &a) {
            return dlx_publish_set(get(), c_items.data(), count(c_items.size()),
                                   meta.empty() ? nullptr : &bytes, &a);
        });
        for (const item &i : items)
            (void)i.value.release();
        return report;
    }
    dlx_publish_report publish_set(std::initializer_list<item> items,
                                   span<const unsigned char> meta = {}, dlx_publish_args args = {})
    {
        return publish_set(span<const item>(items.begin(), items.size()), meta, args);
    }
    /** Waits until `n` subscribers are attached; false when they are not in time. */
    template <class R, class P> bool wait(std::uint32_t n, std::chrono::duration<R, P> timeout)
    {
        return detail::there(dlx_publisher_wait(get(), n, detail::nanoseconds(timeout)));
    }
    bool wait(std::uint32_t n) { return wait(n, forever); }
    dlx_publisher_stats get_stats() const
    {
        auto stats = detail::args(dlx_publisher_stats{});
        detail::check(dlx_publisher_get_stats(get(), &stats));
        return stats;
    }

  private:
    static std::uint32_t count(std::size_t n)
    {
        return n > UINT32_MAX ? UINT32_MAX : static_cast<std::uint32_t>(n); /* refused by libdlx */
    }
    template <class F> static dlx_publish_report report_of(dlx_publish_args args, F publish)
    {
        auto report = detail::args(dlx_publish_report{});
        args.size = sizeof args;
        args.report = &report;
        detail::check(publish(args));
        return report;
    }
};

/** A received message: holds its memory until it and every tensor made from it is gone. */
class message : public detail::handle<dlx_message>
{
  public:
    explicit message(dlx_message *m) noexcept : handle(m) {}
    /** Another owner of the same message. */
    message ref() const noexcept { return message(dlx_message_ref(get())); }
    std::uint32_t n_tensors() const noexcept { return dlx_message_n_tensors(get()); }
    std::uint64_t seq() const noexcept { return dlx_message_seq(get()); }
    std::uint64_t gap() const noexcept { return dlx_message_gap(get()); }
    std::uint64_t time_ns() const noexcept { return dlx_message_time_ns(get()); }
    std::uint64_t publisher() const noexcept { return dlx_message_publisher(get()); }
    /** Valid as long as the message; so are name() and meta(). */
    const char *topic() const noexcept { return dlx_message_topic(get()); }
    const char *name(std::uint32_t i) const noexcept { return dlx_message_name(get(), i); }
    span<const unsigned char> meta() const noexcept
    {
        std::size_t size = 0;
        const void *data = dlx_message_meta(get(), &size);
        return {static_cast<const unsigned char *>(data), size};
    }
    /** Index of the tensor of that name. Throws DLX_E_NOT_FOUND. */
    std::uint32_t find(const std::string &name) const
    {
        std::uint32_t i = 0;
        detail::check(dlx_message_find(get(), detail::c_str(name), &i));
        return i;
    }
    /** Borrows tensor `i`, by number or by name: valid as long as the message. Throws DLX_E_INVALID,
     *  DLX_E_NOT_FOUND. */
    tensor_view peek(std::uint32_t i) const
    {
        const DLTensor *t = dlx_message_peek(get(), i);
        if (!t)
            throw error(DLX_E_INVALID, "tensor " + std::to_string(i) + " of a message of " +
                                           std::to_string(n_tensors()));
        return tensor_view(*t);
    }
    tensor_view peek(const std::string &name) const { return peek(find(name)); }
    /** As peek(), owned: it outlives the message. Read-only. */
    dlx::tensor tensor(std::uint32_t i) const
    {
        DLManagedTensorVersioned *t = nullptr;
        detail::check(dlx_message_tensor(get(), i, &t));
        return dlx::tensor(t);
    }
    dlx::tensor tensor(const std::string &name) const { return tensor(find(name)); }
    /** Shape and typed values of tensor `i`: see tensor_view. For names: peek("rgb").values<T>(). */
    span<const std::int64_t> shape(std::uint32_t i) const { return peek(i).shape(); }
    template <class T> const T *data(std::uint32_t i) const { return peek(i).template data<T>(); }
    template <class T> span<const T> values(std::uint32_t i) const
    {
        return peek(i).template values<T>();
    }
};

class subscription : public detail::handle<dlx_subscription>
{
  public:
    subscription(const client &c, const std::string &topic, dlx_subscribe_args args = {})
    {
        dlx_subscription *s = nullptr;
        args.size = sizeof args;
        detail::check(dlx_subscribe(c.get(), detail::c_str(topic), &args, &s));
        x_.reset(s);
    }
    /** The next message; nothing when there is none in time. Zero does not wait. Throws
     *  DLX_E_PUBLISHER_GONE when the last publisher left, DLX_E_INTERRUPTED for a signal, and what
     *  else dlx_take() fails with. */
    template <class R, class P> std::optional<message> take(std::chrono::duration<R, P> timeout)
    {
        dlx_message *m = nullptr;
        return detail::there(dlx_take(get(), detail::nanoseconds(timeout), &m))
                   ? std::optional<message>(m)
                   : std::nullopt;
    }
    std::optional<message> take() { return take(forever); }
    /** For poll(2); owned by the subscription. See dlx_subscription_fd(). */
    int fd() const
    {
        const int r = dlx_subscription_fd(get());
        detail::check(r);
        return r;
    }
    dlx_subscription_stats get_stats() const
    {
        auto stats = detail::args(dlx_subscription_stats{});
        detail::check(dlx_subscription_get_stats(get(), &stats));
        return stats;
    }
};

/** The newest message of a topic, also one that is retained; nothing when there is none in time. */
template <class R, class P>
std::optional<message> get(const client &c, const std::string &topic,
                           std::chrono::duration<R, P> timeout)
{
    dlx_message *m = nullptr;
    return detail::there(dlx_get(c.get(), detail::c_str(topic), detail::nanoseconds(timeout), &m))
               ? std::optional<message>(m)
               : std::nullopt;
}

} // namespace dlx

#endif
