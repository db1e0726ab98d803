/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CALL_HPP
#define DLX_CALL_HPP

/**
 * Calls for C++17: ask a service, and get its answer. Included by dlx/dlx.hpp; dlx/call.h has the
 * rules.
 *
 *     dlx::caller k(c, "svc/detect");                 dlx::service s(c, "svc/detect");
 *     dlx::tensor t = k.alloc<float>({2, 3});         while (auto r = s.take(5s)) {
 *     fill(t.data<float>());                              dlx::tensor t = r->alloc<float>({2});
 *     dlx::message m = k.call(std::move(t));              work(r->message(), t.data<float>());
 *     use(m.values<float>(0));                            r->reply(std::move(t));
 *                                                     }
 */

#include <dlx/dlx.hpp>

namespace dlx
{

/** How a call of caller::begin() ended. */
struct call_result {
    std::uint64_t call;
    int code;        /* 0, or DLX_E_CALL_FAILED and so on */
    int worker_code; /* that the worker gave, if DLX_E_CALL_FAILED */
    std::uint32_t worker_pid;
    std::string text; /* why it failed */
    std::optional<message> reply;
};

/** Asks the workers of a service: dlx_caller_new(). */
class caller : public detail::allocating<dlx_caller, dlx_caller_alloc>
{
  public:
    caller(const client &c, const std::string &topic, dlx_caller_args args = {})
    {
        dlx_caller *k = nullptr;
        args.size = sizeof args;
        detail::check(dlx_caller_new(c.get(), detail::c_str(topic), &args, &k));
        x_.reset(k);
    }
    /** Sends a request and waits for its reply. Once it was sent, the tensors are empty, whatever
     *  becomes of the call, unless args.publish->share is set; if nothing was sent, they are still
     *  the caller's. Throws what dlx_call() returns, also DLX_E_TIMEOUT. */
    message call(span<const item> items, dlx_call_args args = {})
    {
        const std::vector<dlx_item> c_items = detail::c_items(items);
        dlx_message *m = nullptr;
        bool sent = false;
        args.size = sizeof args;
        const int r =
            dlx_call(get(), c_items.data(), detail::count(c_items.size()), &args, &m, &sent);
        if (sent)
            give_away(items, args);
        detail::check(r);
        return message(m);
    }
    message call(std::initializer_list<item> items, dlx_call_args args = {})
    {
        return call(span<const item>(items.begin(), items.size()), args);
    }
    message call(tensor &&t, dlx_call_args args = {})
    {
        return call({{nullptr, std::move(t)}}, args);
    }
    /** Sends a request, and returns the number of the call, whose result take() tells. */
    std::uint64_t begin(span<const item> items, dlx_call_args args = {})
    {
        const std::vector<dlx_item> c_items = detail::c_items(items);
        std::uint64_t number = 0;
        args.size = sizeof args;
        detail::check(
            dlx_call_begin(get(), c_items.data(), detail::count(c_items.size()), &args, &number));
        give_away(items, args);
        return number;
    }
    std::uint64_t begin(std::initializer_list<item> items, dlx_call_args args = {})
    {
        return begin(span<const item>(items.begin(), items.size()), args);
    }
    std::uint64_t begin(tensor &&t, dlx_call_args args = {})
    {
        return begin({{nullptr, std::move(t)}}, args);
    }
    /** Takes the result of a call that has ended; nothing if none has in time. Throws
     *  DLX_E_NOT_FOUND if none is in flight. */
    template <class R, class P> std::optional<call_result> take(std::chrono::duration<R, P> timeout)
    {
        auto result = detail::args(dlx_call_result{});
        if (!detail::there(dlx_call_take(get(), detail::nanoseconds(timeout), &result)))
            return std::nullopt;
        std::optional<message> reply;
        if (result.reply)
            reply.emplace(result.reply);
        return call_result{result.call,       result.code, result.worker_code,
                           result.worker_pid, result.text, std::move(reply)};
    }
    std::optional<call_result> take() { return take(forever); }
    /** Gives up a call: dlx_call_cancel(). */
    void cancel(std::uint64_t number) { detail::check(dlx_call_cancel(get(), number)); }
    /** The code that the worker gave to the last call that threw DLX_E_CALL_FAILED. */
    int worker_code() const noexcept { return dlx_caller_worker_code(get()); }
    /** Waits until a worker serves: dlx_caller_wait(). False if none does in time. */
    template <class R, class P> bool wait(std::chrono::duration<R, P> timeout)
    {
        return detail::there(dlx_caller_wait(get(), detail::nanoseconds(timeout)));
    }
    bool wait() { return wait(forever); }
    /** Gets a descriptor for poll(2), which the caller owns: dlx_caller_fd(). */
    int fd() const
    {
        const int r = dlx_caller_fd(get());
        detail::check(r);
        return r;
    }
    dlx_caller_stats get_stats() const
    {
        auto stats = detail::args(dlx_caller_stats{});
        detail::check(dlx_caller_get_stats(get(), &stats));
        return stats;
    }

  private:
    static void give_away(span<const item> items, const dlx_call_args &args)
    {
        for (const item &i : items)
            if (!args.publish || !args.publish->share)
                (void)i.value.release();
    }
};

/** A request of a caller. If it is destroyed without an answer, the call fails with
 *  DLX_E_CALL_FAILED. */
class request : public detail::allocating<dlx_request, dlx_request_alloc>
{
  public:
    explicit request(dlx_request *r) noexcept : allocating(r) {}
    /** Makes an owner of its message, which may outlive it. */
    dlx::message message() const noexcept
    {
        return dlx::message(dlx_message_ref(dlx_request_message(get())));
    }
    /** When its time is over, CLOCK_MONOTONIC; UINT64_MAX: never. */
    std::uint64_t deadline_ns() const noexcept { return dlx_request_deadline_ns(get()); }
    bool cancelled() const noexcept { return dlx_request_cancelled(get()); }
    /** Answers with tensors, which are empty afterwards unless args.publish->share is set. If it
     *  throws, they are still the caller's, and the request can still be answered. */
    void reply(span<const item> items, dlx_reply_args args = {})
    {
        const std::vector<dlx_item> c_items = detail::c_items(items);
        args.size = sizeof args;
        detail::check(dlx_reply(get(), c_items.data(), detail::count(c_items.size()), &args));
        for (const item &i : items)
            if (!args.publish || !args.publish->share)
                (void)i.value.release();
    }
    void reply(std::initializer_list<item> items, dlx_reply_args args = {})
    {
        reply(span<const item>(items.begin(), items.size()), args);
    }
    void reply(tensor &&t, dlx_reply_args args = {}) { reply({{nullptr, std::move(t)}}, args); }
    /** Answers with an error: the call fails with this text, and this code for worker_code(). */
    void reply_error(int code, const std::string &text)
    {
        detail::check(dlx_reply_error(get(), code, text.c_str()));
    }
};

/** One of the workers that answer requests: dlx_service_new(). */
class service : public detail::handle<dlx_service>
{
  public:
    service(const client &c, const std::string &topic, dlx_service_args args = {})
    {
        dlx_service *s = nullptr;
        args.size = sizeof args;
        detail::check(dlx_service_new(c.get(), detail::c_str(topic), &args, &s));
        x_.reset(s);
    }
    /** Takes the next request; nothing if there is none in time. */
    template <class R, class P> std::optional<request> take(std::chrono::duration<R, P> timeout)
    {
        dlx_request *r = nullptr;
        return detail::there(dlx_service_take(get(), detail::nanoseconds(timeout), &r))
                   ? std::optional<request>(r)
                   : std::nullopt;
    }
    std::optional<request> take() { return take(forever); }
    /** Gets a descriptor for poll(2), which the service owns: dlx_service_fd(). */
    int fd() const
    {
        const int r = dlx_service_fd(get());
        detail::check(r);
        return r;
    }
    dlx_service_stats get_stats() const
    {
        auto stats = detail::args(dlx_service_stats{});
        detail::check(dlx_service_get_stats(get(), &stats));
        return stats;
    }
};

} // namespace dlx

#endif
