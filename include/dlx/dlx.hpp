/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_DLX_HPP
#define DLX_DLX_HPP

/**
 * libdlx for C++17: handles that release themselves, exceptions, and checked access to typed
 * values. This header wraps dlx/dlx.h, whose documentation holds for every function of the same
 * name. It starts no thread, copies no payload by itself, and works without run-time type
 * information.
 *
 *     dlx::client c;                                  dlx::client c;
 *     dlx::publisher p(c, "cam/front");               dlx::subscription s(c, "cam/front");
 *     dlx::tensor t = p.alloc<float>({2, 3});         while (auto m = s.take(5s))
 *     fill(t.data<float>());                              use(m->values<float>(0));
 *     p.publish(std::move(t));
 *
 *   - Ownership: every class except the views owns one handle. It can be moved, not copied. A
 *     moved-from object may only be assigned to, destroyed and tested with operator bool. Handles
 *     may be destroyed in any order: messages and tensors outlive their subscription, publisher and
 *     client. get() lends the C handle, for functions that this header does not wrap.
 *   - Threads: as in dlx/dlx.h. Any number of threads may use a client, use a message and release a
 *     tensor at once; one at a time may use a publisher or a subscription.
 *   - Errors: a failed call throws dlx::error, with the code and the text of the library. It leaves
 *     its arguments as they were: a tensor that could not be published is still the caller's.
 */

#include <dlx/dlx.h>
#include <dlx/tensor.hpp>

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dlx
{

/** Waits without a limit, as every negative duration does. */
inline constexpr std::chrono::nanoseconds forever{DLX_FOREVER};

namespace detail
{

inline void check(int code)
{
    if (code < 0)
        throw error(code);
}

/* False if nothing came in time; throws after any other failure. */
inline bool there(int code)
{
    if (code != DLX_E_EMPTY && code != DLX_E_TIMEOUT)
        check(code);
    return code >= 0;
}

/* A name for C, which would end at a NUL byte inside it. */
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

struct cuda_free {
    void operator()(void *memory) const noexcept { dlx_cuda_free(memory, 0, 0, nullptr); }
};

template <class S> S args(S a)
{
    a.size = sizeof a;
    return a;
}

template <class H> std::optional<dlx_event> event(H *h, int (*next)(H *, dlx_event *))
{
    auto e = args(dlx_event{});
    return there(next(h, &e)) ? std::optional<dlx_event>(e) : std::nullopt;
}

/* The base of those that allocate tensors, by `Alloc`. */
template <class H, int (*Alloc)(H *, const dlx_tensor_spec *, DLManagedTensorVersioned **)>
class allocating : public handle<H>
{
  public:
    /** Allocates a tensor in shared memory or on a GPU, with undefined content, as
     *  dlx_alloc() does. */
    tensor alloc(DLDataType dtype, span<const std::int64_t> shape, DLDevice device = {kDLCPU, 0})
    {
        const auto ndim =
            shape.size() > INT32_MAX ? INT32_MAX : static_cast<std::int32_t>(shape.size());
        const dlx_tensor_spec spec{sizeof spec, dtype, ndim, shape.data(), device};
        DLManagedTensorVersioned *t = nullptr;
        check(Alloc(this->get(), &spec, &t));
        return tensor(t);
    }
    tensor alloc(DLDataType dtype, std::initializer_list<std::int64_t> shape,
                 DLDevice device = {kDLCPU, 0})
    {
        return alloc(dtype, span<const std::int64_t>(shape.begin(), shape.size()), device);
    }
    template <class T>
    tensor alloc(std::initializer_list<std::int64_t> shape, DLDevice device = {kDLCPU, 0})
    {
        return alloc(dtype_of<T>, shape, device);
    }

  protected:
    allocating() = default;
    explicit allocating(H *x) noexcept : handle<H>(x) {}
};

/* How many there are; too many are refused by libdlx. */
inline std::uint32_t count(std::size_t n)
{
    return n > UINT32_MAX ? UINT32_MAX : static_cast<std::uint32_t>(n);
}

/* The items of a set, for C. */
template <class I> std::vector<dlx_item> c_items(span<const I> items)
{
    std::vector<dlx_item> ret;
    for (const I &i : items)
        ret.push_back({i.name, i.value.get()});
    return ret;
}

} // namespace detail

/** A connection to the daemon. */
class client : public detail::handle<dlx_client>
{
  public:
    /** Connects. The constructors take the argument structs of dlx.h and set `size` themselves. */
    explicit client(dlx_connect_args args = {})
    {
        dlx_client *c = nullptr;
        args.size = sizeof args;
        detail::check(dlx_connect(&args, &c));
        x_.reset(c);
    }
};

/** GPU memory of cuda_malloc(). Its destructor frees it by dlx_cuda_free(). */
using cuda_memory = std::unique_ptr<void, detail::cuda_free>;

/** Allocates GPU memory for an allocator, by dlx_cuda_malloc(). Throws DLX_E_NO_MEMORY for every
 *  failure; what() has the reason. */
inline cuda_memory cuda_malloc(std::size_t size, int device, void *stream = nullptr)
{
    cuda_memory memory(dlx_cuda_malloc(size, device, stream));
    if (!memory)
        throw error(DLX_E_NO_MEMORY);
    return memory;
}

/** Closes GPU memory of other processes that no tensor of this one is in, by dlx_gpu_trim().
 *  Returns its bytes. */
inline std::uint64_t gpu_trim()
{
    std::uint64_t bytes = 0;
    detail::check(dlx_gpu_trim(&bytes));
    return bytes;
}

/** Addresses of GPUs in which one message after another is opened: dlx_gpu_range_new() and
 *  message::open_into(). */
class gpu_range : public detail::handle<dlx_gpu_range>
{
  public:
    gpu_range()
    {
        dlx_gpu_range *range = nullptr;
        detail::check(dlx_gpu_range_new(&range));
        x_.reset(range);
    }
};

/** A tensor of a set to be published, which empties it: `{"rgb", std::move(t)}`. */
struct item {
    item(const char *n, tensor &&t) noexcept : name(n), value(t) {}
    const char *name; /* nullptr: none */
    tensor &value;
};

/** A tensor of a set that the caller keeps: `{"rgb", t}`. */
struct shared_item {
    const char *name; /* nullptr: none */
    tensor &value;
};

/** A source of messages on a topic: dlx_publisher_new(). */
class publisher : public detail::allocating<dlx_publisher, dlx_alloc>
{
  public:
    publisher(const client &c, const std::string &topic, dlx_publisher_args args = {})
    {
        dlx_publisher *p = nullptr;
        args.size = sizeof args;
        detail::check(dlx_publisher_new(c.get(), detail::c_str(topic), &args, &p));
        x_.reset(p);
    }
    /** Publishes one tensor. On success `t` is empty afterwards, unless args.share is set. */
    dlx_publish_report publish(tensor &&t, dlx_publish_args args = {})
    {
        auto report = detail::args(dlx_publish_report{});
        args.size = sizeof args;
        detail::check(dlx_publish(get(), t.get(), &args, &report));
        if (!args.share)
            (void)t.release();
        return report;
    }
    /** Publishes one tensor that the caller keeps: dlx_publish() with `share`. If it could be
     *  published without a copy, it is read-only from then on. */
    dlx_publish_report share(tensor &t, dlx_publish_args args = {})
    {
        args.share = true;
        return publish(std::move(t), args); /* does not move it */
    }
    /** Publishes each tensor as a message of its own, in order: dlx_publish_n(). Tensors that were
     *  published are empty afterwards, unless args.share is set. If it throws, the first ones may
     *  have been published, and the others are still the caller's; `ret_n` receives how many, in
     *  any case. The report is that of the last message, but counts the copies of all. */
    dlx_publish_report publish_n(span<tensor> tensors, dlx_publish_args args = {},
                                 std::uint32_t *ret_n = nullptr)
    {
        std::vector<DLManagedTensorVersioned *> c_tensors;
        auto report = detail::args(dlx_publish_report{});
        std::uint32_t n = 0;
        args.size = sizeof args;
        if (ret_n)
            *ret_n = 0;
        if (tensors.size() > UINT32_MAX)
            throw error(DLX_E_INVALID, std::to_string(tensors.size()) + " messages at once");
        for (const tensor &t : tensors)
            c_tensors.push_back(t.get());
        const int r = dlx_publish_n(get(), c_tensors.data(), detail::count(c_tensors.size()), &args,
                                    &report, &n);
        for (std::uint32_t i = 0; i < n && !args.share; i++)
            (void)tensors[i].release();
        if (ret_n)
            *ret_n = n;
        detail::check(r);
        return report;
    }
    /** Publishes several tensors and metadata as one message, as in
     *  `p.publish_set({{"rgb", std::move(a)}, {"boxes", std::move(b)}})`. On success all of them
     *  are empty afterwards; on failure, and with args.share, none is. */
    dlx_publish_report publish_set(span<const item> items, span<const unsigned char> meta = {},
                                   dlx_publish_args args = {})
    {
        const dlx_publish_report report = put_set(items, meta, args);
        for (const item &i : items)
            if (!args.share)
                (void)i.value.release();
        return report;
    }
    dlx_publish_report publish_set(std::initializer_list<item> items,
                                   span<const unsigned char> meta = {}, dlx_publish_args args = {})
    {
        return publish_set(span<const item>(items.begin(), items.size()), meta, args);
    }
    /** Publishes several tensors that the caller keeps, as share() does: `p.share_set({{"rgb", a},
     *  {"again", a}})`. */
    dlx_publish_report share_set(span<const shared_item> items, span<const unsigned char> meta = {},
                                 dlx_publish_args args = {})
    {
        args.share = true;
        return put_set(items, meta, args);
    }
    dlx_publish_report share_set(std::initializer_list<shared_item> items,
                                 span<const unsigned char> meta = {}, dlx_publish_args args = {})
    {
        return share_set(span<const shared_item>(items.begin(), items.size()), meta, args);
    }
    /** Gets a descriptor for poll(2), which the publisher owns: dlx_publisher_fd(). */
    int fd() const
    {
        const int r = dlx_publisher_fd(get());
        detail::check(r);
        return r;
    }
    /** Waits until `n` subscribers are attached. False if they are not in time. */
    template <class R, class P> bool wait(std::uint32_t n, std::chrono::duration<R, P> timeout)
    {
        return detail::there(dlx_publisher_wait(get(), n, detail::nanoseconds(timeout)));
    }
    bool wait(std::uint32_t n) { return wait(n, forever); }
    /** Waits until its declared groups have done all that was published: dlx_publisher_drain().
     *  False if they have not in time. */
    template <class R, class P> bool drain(std::chrono::duration<R, P> timeout)
    {
        return detail::there(dlx_publisher_drain(get(), detail::nanoseconds(timeout)));
    }
    bool drain() { return drain(forever); }
    /** Gets the next event, if there is one: dlx_publisher_next_event(). */
    std::optional<dlx_event> next_event() { return detail::event(get(), dlx_publisher_next_event); }
    /** As dlx_publisher_id(). */
    std::uint64_t id() const { return dlx_publisher_id(get()); }
    dlx_publisher_stats get_stats() const
    {
        auto stats = detail::args(dlx_publisher_stats{});
        detail::check(dlx_publisher_get_stats(get(), &stats));
        return stats;
    }

  private:
    template <class I>
    dlx_publish_report put_set(span<const I> items, span<const unsigned char> meta,
                               dlx_publish_args args)
    {
        const std::vector<dlx_item> c_items = detail::c_items(items);
        const dlx_bytes bytes{meta.data(), meta.size()};
        auto report = detail::args(dlx_publish_report{});
        args.size = sizeof args;
        detail::check(dlx_publish_set(get(), c_items.data(), detail::count(c_items.size()),
                                      meta.empty() ? nullptr : &bytes, &args, &report));
        return report;
    }
};

/** A received message. It holds its memory until it and every tensor made from it is gone. */
class message : public detail::handle<dlx_message>
{
  public:
    explicit message(dlx_message *m) noexcept : handle(m) {}
    /** Makes another owner of the same message. */
    message ref() const noexcept { return message(dlx_message_ref(get())); }
    std::uint32_t n_tensors() const noexcept { return dlx_message_n_tensors(get()); }
    std::uint64_t seq() const noexcept { return dlx_message_seq(get()); }
    std::uint64_t gap() const noexcept { return dlx_message_gap(get()); }
    std::uint64_t monotonic_ns() const noexcept { return dlx_message_monotonic_ns(get()); }
    std::uint64_t publisher() const noexcept { return dlx_message_publisher(get()); }
    /** Says, as a worker of a group, that the message is done, gives it back, or begins its lease
     *  anew, by dlx_message_done() and so on. They throw DLX_E_NOT_FOUND if it is not this worker's
     *  any more. What is destroyed and was not done is given back. */
    void done() const { detail::check(dlx_message_done(get())); }
    void give_back() const { detail::check(dlx_message_give_back(get())); }
    void renew() const { detail::check(dlx_message_renew(get())); }
    /** Gets what its publisher offers: dlx_message_get_qos(). */
    dlx_message_qos get_qos() const
    {
        auto qos = detail::args(dlx_message_qos{});
        detail::check(dlx_message_get_qos(get(), &qos));
        return qos;
    }
    /** Which delivery this is, from 1; 0 if the subscription is in no group. */
    std::uint32_t attempt() const noexcept { return dlx_message_attempt(get()); }
    /** The results of topic(), name() and meta() are valid as long as the message. */
    const char *topic() const noexcept { return dlx_message_topic(get()); }
    const char *name(std::uint32_t i) const noexcept { return dlx_message_tensor_name(get(), i); }
    span<const unsigned char> meta() const noexcept
    {
        std::size_t size = 0;
        const void *data = dlx_message_meta(get(), &size);
        return {static_cast<const unsigned char *>(data), size};
    }
    /** Finds the index of the tensor with a name. Throws DLX_E_NOT_FOUND. */
    std::uint32_t find(const std::string &name) const
    {
        std::uint32_t i = 0;
        detail::check(dlx_message_tensor_find(get(), detail::c_str(name), &i));
        return i;
    }
    /** Lends a tensor, by index or by name, for as long as the message. Throws DLX_E_INVALID or
     *  DLX_E_NOT_FOUND. */
    tensor_view peek(std::uint32_t i) const
    {
        const DLTensor *t = dlx_message_tensor_peek(get(), i);
        if (!t)
            throw error(DLX_E_INVALID, "tensor " + std::to_string(i) + " of a message of " +
                                           std::to_string(n_tensors()));
        return tensor_view(*t);
    }
    tensor_view peek(const std::string &name) const { return peek(find(name)); }
    /** Makes a read-only tensor that may outlive the message: dlx_message_tensor(). */
    dlx::tensor tensor(std::uint32_t i) const
    {
        DLManagedTensorVersioned *t = nullptr;
        detail::check(dlx_message_tensor(get(), i, &t));
        return dlx::tensor(t);
    }
    dlx::tensor tensor(const std::string &name) const { return tensor(find(name)); }
    /** Opens the tensors on GPUs at the addresses of those of the former message in the range, by
     *  dlx_message_open_into(). Returns false if that message has not ended in time. */
    template <class R, class P>
    bool open_into(const gpu_range &range, std::chrono::duration<R, P> timeout) const
    {
        return detail::there(
            dlx_message_open_into(get(), range.get(), detail::nanoseconds(timeout)));
    }
    /** Makes a tensor for a stream, which waits until it is ready: dlx_message_tensor_on(). */
    dlx::tensor tensor_on(std::uint32_t i, void *stream) const
    {
        DLManagedTensorVersioned *t = nullptr;
        detail::check(dlx_message_tensor_on(get(), i, stream, &t));
        return dlx::tensor(t);
    }
    /** Tells the device of tensor `i` without waiting until it is ready, by
     *  dlx_message_tensor_describe(). */
    DLDevice device(std::uint32_t i) const
    {
        DLManagedTensorVersioned t{};
        detail::check(dlx_message_tensor_describe(get(), i, &t));
        return t.dl_tensor.device;
    }
    /** Tells whether the tensors were ready for the stream of tensor_on() that began to wait last:
     *  0, 1 or an error code of dlx_message_status(). */
    int status() const noexcept { return dlx_message_status(get()); }
    /** Copies the elements of tensor `i` to memory of the host: dlx_message_copy_to_host(). */
    void copy_to_host(std::uint32_t i, span<unsigned char> to) const
    {
        detail::check(dlx_message_copy_to_host(get(), i, to.data(), to.size()));
    }
    /** Makes a private, writable tensor: dlx_message_tensor_private(). */
    dlx::tensor private_tensor(std::uint32_t i) const
    {
        DLManagedTensorVersioned *t = nullptr;
        detail::check(dlx_message_tensor_private(get(), i, &t));
        return dlx::tensor(t);
    }
    dlx::tensor private_tensor(const std::string &name) const { return private_tensor(find(name)); }
    /** Shape and values of tensor `i`: see tensor_view. With a name: peek("rgb").values<T>(). */
    span<const std::int64_t> shape(std::uint32_t i) const { return peek(i).shape(); }
    template <class T> const T *data(std::uint32_t i) const { return peek(i).template data<T>(); }
    template <class T> span<const T> values(std::uint32_t i) const
    {
        return peek(i).template values<T>();
    }
};

/** A receiver of the messages of a topic or pattern: dlx_subscribe(). */
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
    /** Takes the next message; nothing if there is none in time. A timeout of 0 does not wait.
     *  Throws the other errors of dlx_take(), such as DLX_E_PUBLISHER_GONE when the last publisher
     *  has left and DLX_E_INTERRUPTED after a signal. */
    template <class R, class P> std::optional<message> take(std::chrono::duration<R, P> timeout)
    {
        dlx_message *m = nullptr;
        return detail::there(dlx_take(get(), detail::nanoseconds(timeout), &m))
                   ? std::optional<message>(m)
                   : std::nullopt;
    }
    std::optional<message> take() { return take(forever); }
    /** Takes up to `n` messages: waits for the first as take() does, and takes the others that are
     *  there without waiting. Empty if there is none in time. */
    template <class R, class P>
    std::vector<message> take_n(std::uint32_t n, std::chrono::duration<R, P> timeout)
    {
        constexpr std::uint32_t most_held = 4096; /* of any subscription */
        std::vector<dlx_message *> c_messages(std::min(n, most_held));
        std::vector<message> messages;
        std::uint32_t n_taken = 0;
        messages.reserve(c_messages.size()); /* before it takes: nothing throws after that */
        const int r = dlx_take_n(get(), static_cast<std::uint32_t>(c_messages.size()),
                                 detail::nanoseconds(timeout), c_messages.data(), &n_taken);
        if (detail::there(r))
            for (std::uint32_t i = 0; i < n_taken; i++)
                messages.emplace_back(c_messages[i]);
        return messages;
    }
    std::vector<message> take_n(std::uint32_t n) { return take_n(n, forever); }
    /** Gets a descriptor for poll(2), which the subscription owns: dlx_subscription_fd(). */
    int fd() const
    {
        const int r = dlx_subscription_fd(get());
        detail::check(r);
        return r;
    }
    /** Gets the next event, if there is one: dlx_subscription_next_event(). */
    std::optional<dlx_event> next_event()
    {
        return detail::event(get(), dlx_subscription_next_event);
    }
    dlx_subscription_stats get_stats() const
    {
        auto stats = detail::args(dlx_subscription_stats{});
        detail::check(dlx_subscription_get_stats(get(), &stats));
        return stats;
    }
};

/** Tells which publishers and subscriptions there are, and which come and go: dlx/observe.h. */
class observer : public detail::handle<dlx_observer>
{
  public:
    observer(const client &c, const std::string &topic, dlx_observer_args args = {})
    {
        dlx_observer *o = nullptr;
        args.size = sizeof args;
        detail::check(dlx_observer_new(c.get(), detail::c_str(topic), &args, &o));
        x_.reset(o);
    }
    /** Gets what is there, or has changed, next; nothing if nothing changes in time. A timeout of 0
     *  does not wait. `groups` is valid until the next call. */
    template <class R, class P>
    std::optional<dlx_observed> next(std::chrono::duration<R, P> timeout)
    {
        auto x = detail::args(dlx_observed{});
        return detail::there(dlx_observer_next(get(), detail::nanoseconds(timeout), &x))
                   ? std::optional<dlx_observed>(x)
                   : std::nullopt;
    }
    std::optional<dlx_observed> next() { return next(forever); }
    /** Gets a descriptor for poll(2), which the observer owns: dlx_observer_fd(). */
    int fd() const
    {
        const int r = dlx_observer_fd(get());
        detail::check(r);
        return r;
    }
};

/** Gets the newest message of a topic, also a retained one; nothing if there is none in time. */
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

#include <dlx/call.hpp>

#endif
