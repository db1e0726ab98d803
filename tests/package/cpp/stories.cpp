/* SPDX-License-Identifier: Apache-2.0 */

/* dlx/dlx.hpp against a daemon that ../check_cpp.sh starts; its socket is $DLX_SOCKET. */

#include <dlx/dlx.hpp>

#include <poll.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>

using namespace std::chrono_literals;

struct half {
    std::uint16_t bits;
};
template <> inline constexpr DLDataType dlx::dtype_of<half>{kDLFloat, 16, 1};

template <class T>
constexpr bool move_only =
    !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T> &&
    std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T>;
static_assert(move_only<dlx::client> && move_only<dlx::publisher> && move_only<dlx::subscription> &&
              move_only<dlx::message> && move_only<dlx::tensor> && move_only<dlx::observer>);
static_assert(sizeof(dlx::tensor) == sizeof(void *) && sizeof(dlx::message) == sizeof(void *));
static_assert(std::is_same_v<decltype(std::declval<dlx::message>().data<float>(0)), const float *>);

static int n_failures;

static void expect(bool ok, const char *what, int line)
{
    if (!ok) {
        std::printf("line %d: not so: %s\n", line, what);
        n_failures++;
    }
}
#define EXPECT(x) expect(x, #x, __LINE__)

/* `f` has to throw that code, in words that contain `text`. */
template <class F> static void fails(F f, int code, const char *text, int line)
{
    try {
        f();
        expect(false, "it throws", line);
    } catch (const dlx::error &e) {
        const bool good = e.code() == code && std::string(e.what()).find(text) != std::string::npos;
        if (!good)
            std::printf("line %d: %d %s: %s\n", line, e.code(), e.name(), e.what());
        expect(good, text, line);
    }
}
#define FAILS(x, code, text) fails([&] { (void)(x); }, code, text, __LINE__)

/* A tensor in private memory, which counts its deletions. */
struct own_memory {
    std::array<std::int32_t, 6> values{1, 2, 3, 4, 5, 6};
    std::array<std::int64_t, 2> shape{2, 3}, strides{1, 2};
    int n_deleted = 0;
    DLManagedTensorVersioned t{};

    explicit own_memory(bool column_major)
    {
        t.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
        t.manager_ctx = this;
        t.deleter = [](DLManagedTensorVersioned *x) {
            static_cast<own_memory *>(x->manager_ctx)->n_deleted++;
        };
        t.dl_tensor.data = values.data();
        t.dl_tensor.device = {kDLCPU, 0};
        t.dl_tensor.dtype = dlx::dtype_of<std::int32_t>;
        t.dl_tensor.ndim = 2;
        t.dl_tensor.shape = shape.data();
        t.dl_tensor.strides = column_major ? strides.data() : nullptr;
    }
};

struct stream {
    explicit stream(const std::string &topic, dlx_publisher_args args = {})
        : p(c, topic, args), s(c, topic)
    {
    }
    dlx::client c;
    dlx::publisher p;
    dlx::subscription s;
};

static void alloc_publish_take()
{
    stream x("cpp/one");
    EXPECT(x.p.wait(1, 10s));
    dlx::tensor t = x.p.alloc<float>({2, 3});
    EXPECT(t.size() == 6 && !t.is_read_only() && t.shape()[1] == 3);
    const auto values = t.values<float>();
    std::iota(values.begin(), values.end(), 0.5f);
    const dlx_publish_report report = x.p.publish(std::move(t));
    EXPECT(report.seq == 1 && report.copied_bytes == 0 && report.n_subscribers == 1 && !t);
    const std::optional<dlx::message> m = x.s.take(10s);
    EXPECT(m && m->seq() == 1 && m->gap() == 0 && m->n_tensors() == 1 && m->monotonic_ns() > 0);
    EXPECT(m->topic() == std::string("cpp/one") && m->publisher() == x.p.id() && m->meta().empty());
    EXPECT(m->shape(0).size() == 2 && m->shape(0)[0] == 2 && m->peek(0).strides()[0] == 3);
    EXPECT(m->data<float>(0)[5] == 5.5f);
    const auto all = m->values<float>(0);
    EXPECT(all.size() == 6 && std::accumulate(all.begin(), all.end(), 0.0f) == 18.0f);
    EXPECT(x.p.get_stats().published == 1 && x.s.get_stats().taken == 1);
}

static void shared_tensors_stay()
{
    stream x("cpp/share");
    dlx::tensor t = x.p.alloc<int>({3});
    t.data<int>()[2] = 7;
    EXPECT(x.p.share(t).copied_bytes == 0 && t && t.is_read_only());
    FAILS(t.data<int>(), DLX_E_READ_ONLY, "read-only");
    EXPECT(x.p.share_set({{"a", t}, {"again", t}}).seq == 2 && t);
    EXPECT(t.data<const int>()[2] == 7);
    own_memory own(false);
    dlx::tensor copied(&own.t);
    EXPECT(x.p.share(copied).n_copied == 1 && copied && own.n_deleted == 0);
    EXPECT(x.p.publish(std::move(t)).n_copied == 0 && !t);
    EXPECT(x.s.take(10s)->data<int>(0)[2] == 7);
    EXPECT(x.s.take(10s)->data<int>(1)[2] == 7);
    EXPECT(x.s.take(10s)->data<std::int32_t>(0)[5] == 6);
    EXPECT(x.s.take(10s)->data<int>(0)[2] == 7);
}

/* Tensors of one int each: first, first + 1, ... */
static std::vector<dlx::tensor> numbers(dlx::publisher &p, int first, int n)
{
    std::vector<dlx::tensor> tensors;
    for (int i = 0; i < n; i++) {
        tensors.push_back(p.alloc<int>({1}));
        tensors.back().data<int>()[0] = first + i;
    }
    return tensors;
}

static void several_at_once()
{
    stream x("cpp/batch");
    EXPECT(x.s.take_n(4, 0s).empty() && x.s.take_n(4, 1ms).empty());
    std::vector<dlx::tensor> tensors = numbers(x.p, 0, 5);
    std::uint32_t n = 99;
    dlx_publish_report report = x.p.publish_n(tensors, {}, &n);
    EXPECT(n == 5 && report.seq == 5 && report.n_copied == 0 && report.n_subscribers == 1);
    for (const dlx::tensor &t : tensors)
        EXPECT(!t);
    std::vector<dlx::message> messages = x.s.take_n(3, 10s);
    EXPECT(messages.size() == 3 && messages[2].seq() == 3 && messages[2].data<int>(0)[0] == 2);
    messages = x.s.take_n(UINT32_MAX);
    EXPECT(messages.size() == 2 && messages[1].data<int>(0)[0] == 4);
    messages.clear();
    EXPECT(x.s.get_stats().n_held == 0);
    FAILS(x.s.take_n(0, 0s), DLX_E_INVALID, "");
    /* A pointer and a count; tensors that are kept; one that is copied. */
    own_memory own(false);
    std::array<dlx::tensor, 2> two{x.p.alloc<int>({1}), dlx::tensor(&own.t)};
    dlx_publish_args args{};
    args.share = true;
    report = x.p.publish_n({two.data(), 2}, args);
    EXPECT(report.seq == 7 && report.n_copied == 1 && report.copied_bytes == 24);
    EXPECT(two[0] && two[0].is_read_only() && two[1] && own.n_deleted == 0);
    EXPECT(x.s.take_n(9, 10s).size() == 2);
}

static void a_batch_that_fails_keeps_what_was_not_published()
{
    stream x("cpp/part");
    own_memory own(false);
    std::vector<dlx::tensor> tensors = numbers(x.p, 0, 4);
    tensors[2] = dlx::tensor(&own.t);
    dlx_publish_args args{};
    args.strict = true;
    std::uint32_t n = 99;
    FAILS(x.p.publish_n(tensors, args, &n), DLX_E_WOULD_COPY, "");
    EXPECT(n == 2 && !tensors[0] && !tensors[1] && tensors[2] && tensors[3]);
    EXPECT(x.p.get_stats().published == 2 && x.s.take_n(9, 10s).size() == 2);
    const dlx::span<dlx::tensor> rest(tensors.data() + 2, 2);
    EXPECT(x.p.publish_n(rest).seq == 4 && own.n_deleted == 1 && !tensors[3]);
    const std::vector<dlx::message> messages = x.s.take_n(9, 10s);
    EXPECT(messages.size() == 2 && messages[1].data<int>(0)[0] == 3);
}

static void a_publisher_waits_for_who_is_behind()
{
    dlx_publisher_args args{};
    args.depth = 2;
    args.on_full = DLX_ON_FULL_BLOCK;
    stream x("cpp/depth", args);
    dlx_subscribe_args reliable{};
    reliable.reliable = true;
    x.s = dlx::subscription(x.c, "cpp/depth", reliable);
    EXPECT(x.p.wait(1, 10s));
    std::vector<dlx::tensor> tensors = numbers(x.p, 0, 4);
    std::uint32_t n = 99;
    FAILS(x.p.publish_n(tensors, {}, &n), DLX_E_FULL, "");
    EXPECT(n == 2 && !tensors[1] && tensors[2] && tensors[3]);
    EXPECT(x.s.take_n(9, 10s).size() == 2);
    EXPECT(x.p.publish_n({tensors.data() + n, 2}).seq == 4 && x.s.take_n(9, 10s).size() == 2);
}

static void work_is_done_by_one_of_a_group()
{
    const char *const groups[] = {"g"};
    dlx_publisher_args args{};
    args.groups = groups;
    args.n_groups = 1;
    stream x("cpp/work", args);
    dlx_subscribe_args worker{};
    worker.group = "g";
    x.s = dlx::subscription(x.c, "cpp/work", worker);
    dlx::subscription other(x.c, "cpp/work", worker), every(x.c, "cpp/work");
    for (dlx::tensor &t : numbers(x.p, 0, 2))
        (void)x.p.publish(std::move(t));
    auto first = x.s.take(10s);
    EXPECT(first && first->seq() == 1 && first->attempt() == 1 && !x.p.drain(1ms));
    FAILS(x.s.take(0s), DLX_E_TOO_MANY_HELD, "max_held");
    first->renew();
    first->give_back();
    FAILS(first->done(), DLX_E_NOT_FOUND, "given back");
    for (const std::uint64_t seq : {1U, 2U}) {
        const auto again = other.take(10s);
        EXPECT(again && again->seq() == seq && again->attempt() == (seq == 1 ? 2 : 1));
        again->done();
    }
    EXPECT(x.p.drain(10s) && x.p.drain());
    const auto m = every.take(10s);
    EXPECT(m && m->attempt() == 0);
    FAILS(m->done(), DLX_E_INVALID, "in no group");
}

static void a_service_answers()
{
    dlx::client c;
    dlx::caller k(c, "cpp/svc");
    EXPECT(!k.wait(1ms));
    dlx::service s(c, "cpp/svc");
    EXPECT(k.wait(10s) && k.fd() >= 0 && s.fd() >= 0 && !s.take(1ms));
    std::thread worker([&s] {
        auto r = s.take(10s);
        EXPECT(r && r->message().peek("x").data<int>()[1] == 7 && r->deadline_ns() == UINT64_MAX);
        dlx::tensor t = r->alloc<int>({1});
        t.data<int>()[0] = 8;
        r->reply({{"y", std::move(t)}});
        EXPECT(!t);
        FAILS(r->reply_error(1, "again"), DLX_E_NOT_FOUND, "answered before");
        s.take(10s)->reply_error(-5, "no such model");
        EXPECT(s.take(10s).has_value()); /* and let it go */
    });
    dlx::tensor t = k.alloc<int>({2});
    t.data<int>()[1] = 7;
    EXPECT(k.call({{"x", std::move(t)}}).peek("y").data<int>()[0] == 8 && !t);
    FAILS(k.call(k.alloc<int>({})), DLX_E_CALL_FAILED, "no such model");
    EXPECT(k.worker_code() == -5);
    FAILS(k.call(k.alloc<int>({})), DLX_E_CALL_FAILED, "without a reply");
    worker.join();
    EXPECT(s.get_stats().requests == 3 && k.get_stats().failed == 2);
}

static void calls_in_flight()
{
    dlx::client c;
    dlx_caller_args args{};
    args.max_in_flight = 2;
    dlx::caller k(c, "cpp/flight", args);
    dlx::service s(c, "cpp/flight");
    dlx_call_args soon{};
    soon.timeout_ns = 1;
    FAILS(k.take(10s), DLX_E_NOT_FOUND, "no call is in flight");
    const std::uint64_t over = k.begin(k.alloc<int>({}), soon);
    const auto late = k.take(10s);
    EXPECT(late && late->call == over && late->code == DLX_E_TIMEOUT && !late->reply &&
           late->text.find("no reply") != std::string::npos);
    EXPECT(!s.take(1ms)); /* it is not handed out */
    const std::uint64_t first = k.begin(k.alloc<int>({})), second = k.begin(k.alloc<int>({}));
    dlx::tensor mine = k.alloc<int>({});
    FAILS(k.call(std::move(mine)), DLX_E_FULL, "max_in_flight");
    FAILS(k.begin(std::move(mine)), DLX_E_FULL, "max_in_flight");
    EXPECT(mine && !k.take(0s));
    auto r = s.take(10s);
    EXPECT(r && !r->cancelled());
    k.cancel(first);
    FAILS(k.cancel(first), DLX_E_NOT_FOUND, "not in flight");
    EXPECT(r->cancelled());
    r->reply(r->alloc<int>({}));
    r = s.take(10s);
    r->reply(r->alloc<int>({1}));
    const auto done = k.take();
    EXPECT(done && done->call == second && done->code == 0 && done->reply->shape(0)[0] == 1 &&
           done->worker_pid > 0);
}

static void nothing_there()
{
    stream x("cpp/empty");
    EXPECT(!x.s.take(0s));
    EXPECT(!x.s.take(1ns) && !x.s.take(std::chrono::duration<double>(1e-12)));
    EXPECT(!x.p.wait(2, 1ms));
    EXPECT(x.p.fd() >= 0 && x.p.fd() != x.s.fd());
    pollfd fd = {x.s.fd(), POLLIN, 0};
    EXPECT(!x.s.take(0s));
    EXPECT(poll(&fd, 1, 0) == 0);
    (void)x.p.publish(x.p.alloc<int>({}));
    EXPECT(poll(&fd, 1, 10000) == 1);
    EXPECT(x.s.take(std::chrono::hours::max()).has_value());
    x.p = dlx::publisher(x.c, "cpp/other");
    FAILS(x.s.take(), DLX_E_PUBLISHER_GONE, "cpp/empty");
}

static void times_do_not_overflow()
{
    using dlx::detail::nanoseconds;
    EXPECT(nanoseconds(0s) == 0 && nanoseconds(3us) == 3000 && nanoseconds(1.5s) == 1500000000);
    EXPECT(nanoseconds(std::chrono::duration<double>(1e-12)) ==
           1); /* a time is not "do not wait" */
    EXPECT(nanoseconds(dlx::forever) == DLX_FOREVER && nanoseconds(-5h) == DLX_FOREVER);
    EXPECT(nanoseconds(std::chrono::hours::max()) == DLX_FOREVER);
    EXPECT(nanoseconds(std::chrono::duration<double>(1e300)) == DLX_FOREVER);
    EXPECT(nanoseconds(100000 * 24h) == std::int64_t{100000} * 24 * 3600 * 1000000000);
}

static void types_are_checked()
{
    stream x("cpp/types");
    const std::vector<std::int64_t> shape{0, 4};
    EXPECT(x.p.alloc(dlx::dtype_of<half>, shape).dtype().bits == 16);
    EXPECT(x.p.alloc(dlx::dtype_of<double>, {0, 3}).shape().size() == 2);
    EXPECT(x.p.alloc<bool>({1}).dtype().code == kDLBool);
    dlx::tensor t = x.p.alloc<std::uint16_t>({3});
    FAILS(t.data<std::int16_t>(), DLX_E_SHAPE, "1:16:1, not 0:16:1");
    FAILS(t.data<half>(), DLX_E_SHAPE, "not 2:16:1");
    FAILS(t.values<const float>(), DLX_E_SHAPE, "not 2:32:1");
    t.get()->dl_tensor.dtype.lanes = 2;
    FAILS(t.data<std::uint16_t>(), DLX_E_SHAPE, "1:16:2");
    t.get()->dl_tensor.dtype.lanes = 1;
    t.data<std::uint16_t>()[2] = 7;
    (void)x.p.publish(std::move(t));
    const dlx::message m = x.s.take(10s).value();
    FAILS(m.data<float>(0), DLX_E_SHAPE, "1:16:1");
    FAILS(m.data<std::uint16_t>(1), DLX_E_INVALID, "tensor 1 of a message of 1");
    const dlx::tensor received = m.tensor(0);
    EXPECT(received.is_read_only());
    FAILS(received.data<std::uint16_t>(), DLX_E_READ_ONLY, "read-only");
    FAILS(received.values<std::uint16_t>(), DLX_E_READ_ONLY, "read-only");
    FAILS(received.used_on(nullptr), DLX_E_DEVICE, "not on a GPU");
    EXPECT(m.device(0).device_type == kDLCPU && m.status() == 0);
    FAILS(m.device(1), DLX_E_INVALID, "tensor 1 of a message of 1");
    FAILS(x.p.alloc<float>({2}, {kDLCPU, 1}), DLX_E_DEVICE, "CPU device 1");
    FAILS(x.p.alloc<float>({2}, {kDLCUDA, 99}), DLX_E_DEVICE, "");
    EXPECT(received.values<const std::uint16_t>()[2] == 7);
}

/* The stand-in for a driver, if it was built, has memory for 8 of them at once. */
static void gpu_memory_is_freed_at_its_end()
{
    FAILS(dlx::cuda_malloc(0, 0), DLX_E_NO_MEMORY, "0 bytes");
    FAILS(dlx::cuda_malloc(4096, 99), DLX_E_NO_MEMORY, "");
    if (!std::getenv("STANDIN_MEMORY"))
        return;
    const dlx::cuda_memory kept = dlx::cuda_malloc(2 << 20, 0);
    dlx::cuda_memory last;
    for (int i = 0; i < 20; i++)
        last = dlx::cuda_malloc(2 << 20, 0);
    EXPECT(kept && last && kept != last);
    FAILS(dlx::cuda_malloc(14 << 20, 0), DLX_E_NO_MEMORY, "MEMORY");
    last.reset();
    EXPECT(dlx::cuda_malloc(14 << 20, 0) != nullptr);
    EXPECT(dlx::gpu_trim() == 0);
}

static void messages_are_opened_one_after_the_other_at_the_same_addresses()
{
    stream x("cpp/range");
    const dlx::gpu_range range;
    x.p.publish(x.p.alloc<float>({2}));
    const std::optional<dlx::message> on_cpu = x.s.take();
    FAILS(on_cpu->open_into(range, 0s), DLX_E_INVALID, "no tensor of the message is on a GPU");
    if (!std::getenv("STANDIN_MEMORY"))
        return;
    x.p.publish(x.p.alloc<float>({1 << 19}, {kDLCUDA, 0}));
    std::optional<dlx::message> former = x.s.take();
    EXPECT(former->open_into(range, 0s));
    std::optional<dlx::tensor> t = former->tensor(0);
    const void *at = t->get()->dl_tensor.data;
    x.p.publish(x.p.alloc<float>({1 << 19}, {kDLCUDA, 0}));
    const std::optional<dlx::message> next = x.s.take();
    EXPECT(!next->open_into(range, 0s));
    former.reset();
    t.reset();
    EXPECT(next->open_into(range, 0s));
    EXPECT(next->tensor(0).get()->dl_tensor.data == at);
}

static void foreign_tensors()
{
    stream x("cpp/foreign");
    own_memory memory(true), strict(false);
    dlx::tensor t(&memory.t);
    EXPECT(!t.view().is_row_major() && t.data<int>()[1] == 2);
    FAILS(t.values<int>(), DLX_E_SHAPE, "row-major");
    const dlx_publish_report report = x.p.publish(std::move(t));
    EXPECT(report.n_copied == 1 && report.copied_bytes == 24 && memory.n_deleted == 1);
    const dlx::tensor copy = x.s.take(10s)->tensor(0);
    EXPECT(!copy.is_copied() &&
           copy.values<const int>()[1] == 3); /* the report told the publisher */
    {
        dlx::tensor kept(&strict.t);
        dlx_publish_args args{};
        args.strict = true;
        FAILS(x.p.publish(std::move(kept), args), DLX_E_WOULD_COPY, "");
        EXPECT(kept && strict.n_deleted == 0);
        strict.t.dl_tensor.device.device_type = kDLCUDA;
        FAILS(kept.data<int>(), DLX_E_DEVICE, "device type 2");
    }
    EXPECT(strict.n_deleted == 1);
    strict.t.deleter = nullptr; /* allowed by DLPack */
    dlx::tensor nobody_cares(&strict.t);
    nobody_cares = dlx::tensor();
}

static void sets_by_name()
{
    stream x("cpp/set");
    dlx::tensor rgb = x.p.alloc<unsigned char>({4, 4, 3}), boxes = x.p.alloc<float>({1});
    own_memory memory(false);
    dlx::tensor own(&memory.t);
    boxes.data<float>()[0] = 0.25f;
    static_assert(!std::is_constructible_v<dlx::item, const char *, dlx::tensor &>,
                  "what the caller still names is not taken away unasked");
    FAILS(x.p.publish_set({{"rgb", std::move(rgb)}, {"rgb", std::move(boxes)}}), DLX_E_INVALID,
          "rgb");
    FAILS(x.p.publish_set({{"rgb", std::move(rgb)}, {"again", std::move(rgb)}}), DLX_E_INVALID,
          "again");
    FAILS(x.p.publish_set({}), DLX_E_INVALID, "");
    EXPECT(rgb && boxes);
    const std::array<unsigned char, 3> meta{1, 2, 3};
    const dlx_publish_report report = x.p.publish_set(
        {{"rgb", std::move(rgb)}, {"boxes", std::move(boxes)}, {nullptr, std::move(own)}}, meta);
    EXPECT(!rgb && !boxes && !own && report.n_copied == 1 && memory.n_deleted == 1);
    const dlx::message m = x.s.take(10s).value();
    EXPECT(m.n_tensors() == 3 && m.name(2) == std::string() && m.find("boxes") == 1);
    EXPECT(m.peek("boxes").values<float>()[0] == 0.25f && m.tensor("rgb").size() == 48);
    EXPECT(m.meta().size() == 3 && m.meta()[2] == 3);
    FAILS(m.peek("other"), DLX_E_NOT_FOUND, "other");
    dlx::tensor mine = m.private_tensor("boxes");
    mine.data<float>()[0] = 1;
    EXPECT(!mine.is_read_only() && mine.is_copied() &&
           m.private_tensor(1).values<float>()[0] == 0.25f);
    FAILS(m.find(std::string("boxes\0", 6)), DLX_E_INVALID, "NUL");
    /* As many as there are, made at run time. */
    std::vector<dlx::tensor> tensors;
    std::vector<dlx::item> items;
    for (int i = 0; i < 40; i++)
        tensors.push_back(x.p.alloc<int>({i}));
    for (dlx::tensor &t : tensors)
        items.emplace_back(nullptr, std::move(t));
    (void)x.p.publish_set(items);
    EXPECT(x.s.take(10s)->n_tensors() == 40);
}

static void errors_have_words()
{
    dlx::client c;
    FAILS(dlx::publisher(c, "not//good"), DLX_E_TOPIC, "not//good");
    FAILS(dlx::subscription(c, std::string("a\0b", 3)), DLX_E_INVALID, "NUL");
    dlx_connect_args args{};
    args.socket = "/nonexistent/dlx.sock";
    FAILS(dlx::client(args), DLX_E_NO_DAEMON, "/nonexistent/dlx.sock");
    dlx_publisher_args few{};
    few.history = 5000;
    FAILS(dlx::publisher(c, "cpp/few", few), DLX_E_INVALID, "5000");
    dlx::publisher p(c, "cpp/errors");
    FAILS(p.alloc<int>({-1}), DLX_E_SHAPE, "");
    FAILS(p.alloc<int>({INT64_MAX, INT64_MAX}), DLX_E_SHAPE, "");
    FAILS(p.alloc(dlx::dtype_of<int>, std::vector<std::int64_t>(65, 1)), DLX_E_SHAPE, "65");
    dlx::tensor spent = p.alloc<int>({1});
    (void)p.publish(std::move(spent));
    FAILS(p.publish(std::move(spent)), DLX_E_INVALID, "NULL");
    const dlx::error by_hand(DLX_E_FULL, "words");
    EXPECT(by_hand.name() == std::string("FULL") && by_hand.what() == std::string("words"));
    dlx_client_unref(nullptr);
    (void)dlx_version();
    dlx::client other; /* a success clears the words: then the code's own are used */
    EXPECT(dlx::error(DLX_E_FULL).what() == std::string(dlx_strerror(DLX_E_FULL)));
}

static void retained()
{
    dlx::client c;
    EXPECT(!dlx::get(c, "cpp/weights", 0s));
    {
        dlx_publisher_args args{};
        args.retain = 1;
        dlx::publisher p(c, "cpp/weights", args);
        for (int i = 0; i < 3; i++) {
            dlx::tensor t = p.alloc<int>({1});
            t.data<int>()[0] = i;
            (void)p.publish(std::move(t));
        }
    }
    const std::optional<dlx::message> m = dlx::get(c, "cpp/weights", 10s);
    EXPECT(m && m->seq() == 3 && m->data<int>(0)[0] == 2);
    FAILS(dlx::get(c, "not//good", 1s), DLX_E_TOPIC, "not//good");
    EXPECT(dlx_drop_retained(c.get(), "cpp/weights") == 0);
    EXPECT(!dlx::get(c, "cpp/weights", 1ms));
}

static void who_came_and_left()
{
    stream x("cpp/events");
    EXPECT(x.p.wait(1, 10s));
    const std::optional<dlx_event> joined = x.p.next_event();
    EXPECT(joined && joined->kind == DLX_EVENT_JOINED &&
           joined->topic == std::string("cpp/events"));
    EXPECT(!x.p.next_event());
    const std::optional<dlx_event> seen = x.s.next_event();
    EXPECT(seen && seen->kind == DLX_EVENT_JOINED && seen->link == joined->link);
    EXPECT(!x.s.next_event());
    dlx::subscription all(x.c, "cpp/ev*");
    (void)x.p.publish(x.p.alloc<int>({}));
    EXPECT(all.take(10s)->topic() == std::string("cpp/events"));
}

static void observers_are_told_what_comes_and_goes()
{
    dlx::client c;
    dlx_publisher_args blocking{};
    blocking.on_full = DLX_ON_FULL_BLOCK;
    blocking.depth = 7;
    dlx::publisher p(c, "observed/a", blocking);
    dlx::observer o(c, "observed/*");
    auto x = o.next(10s);
    EXPECT(x && x->kind == DLX_OBSERVED_PUBLISHER && x->own && x->depth == 7);
    EXPECT(x && std::string(x->topic) == "observed/a" && x->on_full == DLX_ON_FULL_BLOCK);
    x = o.next();
    EXPECT(x && x->kind == DLX_OBSERVED_ALL);
    EXPECT(!o.next(0s) && !o.next(1ms));
    EXPECT(o.fd() >= 0);
    {
        dlx_subscribe_args either{};
        either.reliable = either.accepts_unreliable = true;
        dlx::subscription s(c, "observed/*", either);
        x = o.next(10s);
        EXPECT(x && x->kind == DLX_OBSERVED_SUBSCRIPTION && x->accepts_unreliable);
        p.publish(p.alloc<float>({2}));
        const auto m = s.take(10s);
        EXPECT(m && m->get_qos().reliable && m->get_qos().depth == 7);
    }
    x = o.next(10s);
    EXPECT(x && x->gone);
    FAILS(dlx::observer(c, "a b"), DLX_E_TOPIC, "' '");
}

static void moves()
{
    dlx::client a, b(std::move(a));
    EXPECT(!a && b);
    a = std::move(b);
    dlx::publisher p(a, "cpp/move"), q(std::move(p));
    dlx::subscription s(a, "cpp/move"), r = std::move(s);
    EXPECT(!p && q && !s && r);
    dlx::tensor t = q.alloc<int>({1}), u = q.alloc<int>({1});
    const DLManagedTensorVersioned *raw = u.get();
    t = std::move(u); /* releases the first */
    EXPECT(t.get() == raw && !u);
    DLManagedTensorVersioned *mine = t.release();
    EXPECT(!t && mine == raw);
    (void)q.publish(dlx::tensor(mine));
    std::optional<dlx::message> m = r.take(10s);
    dlx::message again = m->ref();
    m.reset();
    EXPECT(again.seq() == 1 && r.get_stats().n_held == 1);
    dlx::message moved = std::move(again);
    moved = moved.ref();
    EXPECT(!again && r.get_stats().n_held == 1);
    {
        dlx::message last = std::move(moved);
    }
    EXPECT(r.get_stats().n_held == 0);
}

static void what_is_held_outlives_its_client()
{
    dlx::tensor received, allocated, spare;
    std::optional<dlx::message> m;
    {
        stream x("cpp/outlive");
        dlx::tensor t = x.p.alloc<int>({1000});
        t.data<int>()[999] = 42;
        (void)x.p.publish(std::move(t));
        m = x.s.take(10s);
        received = m->tensor(0);
        allocated = x.p.alloc<int>({10});
        spare = x.p.alloc<int>({10});
    }
    EXPECT(received.data<const int>()[999] == 42 && m->data<int>(0)[999] == 42);
    allocated.data<int>()[9] = 1;
    m.reset();
    std::thread([last = std::move(received)] {
        EXPECT(last.data<const int>()[999] == 42); /* and released there */
    }).join();
    std::thread([t = std::move(spare)] {}).join();
}

/* The start and end of the snippet in README.md, which ../check_cpp.sh puts into a file. */
#ifdef DLX_README
static void use(dlx::span<const std::uint8_t> pixels)
{
    EXPECT(pixels.size() == 1080 * 1920 * 3);
}
static void fill(std::uint8_t *pixels)
{
    pixels[0] = 1;
}

static void readme()
{
#include DLX_README
    EXPECT(m && m->data<std::uint8_t>(0)[0] == 1);
}
#endif

static const struct {
    const char *name;
    void (*run)();
} stories[] = {
    {"alloc_publish_take", alloc_publish_take},
    {"shared_tensors_stay", shared_tensors_stay},
    {"several_at_once", several_at_once},
    {"a_batch_that_fails_keeps_what_was_not_published",
     a_batch_that_fails_keeps_what_was_not_published},
    {"a_publisher_waits_for_who_is_behind", a_publisher_waits_for_who_is_behind},
    {"work_is_done_by_one_of_a_group", work_is_done_by_one_of_a_group},
    {"a_service_answers", a_service_answers},
    {"calls_in_flight", calls_in_flight},
    {"nothing_there", nothing_there},
    {"times_do_not_overflow", times_do_not_overflow},
    {"types_are_checked", types_are_checked},
    {"gpu_memory_is_freed_at_its_end", gpu_memory_is_freed_at_its_end},
    {"messages_are_opened_one_after_the_other_at_the_same_addresses",
     messages_are_opened_one_after_the_other_at_the_same_addresses},
    {"foreign_tensors", foreign_tensors},
    {"sets_by_name", sets_by_name},
    {"errors_have_words", errors_have_words},
    {"retained", retained},
    {"who_came_and_left", who_came_and_left},
    {"observers_are_told_what_comes_and_goes", observers_are_told_what_comes_and_goes},
    {"moves", moves},
    {"what_is_held_outlives_its_client", what_is_held_outlives_its_client},
#ifdef DLX_README
    {"readme", readme},
#endif
};

int main()
{
    int n = 0, n_failed = 0, n_errors = 0;
    for (const auto &story : stories) {
        const int before = n_failures;
        try {
            story.run();
            n_failed += n_failures != before;
        } catch (const std::exception &e) {
            std::printf("%s: %s\n", story.name, e.what());
            n_errors++;
        }
        if (n_failures != before)
            std::printf("in %s\n", story.name);
        n++;
    }
    const int n_bad = n_failed + n_errors;
    std::printf("%d%%: Checks: %d, Failures: %d, Errors: %d\n", (n - n_bad) * 100 / n, n, n_failed,
                n_errors);
    return n_bad != 0;
}
