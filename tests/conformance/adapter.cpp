/* SPDX-License-Identifier: Apache-2.0 */

/* The adapter of C++: does what tests/conformance/driver says on stdin, with dlx/dlx.hpp.
 * README.md has the commands and the answers. */

#include <dlx/dlx.hpp>

#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <poll.h>
#include <signal.h>
#include <sstream>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <variant>

using text = std::string;
using words = std::vector<text>;
using duration = std::chrono::nanoseconds;

/* Nothing came in time. */
struct none {
};
/* The language cannot ask for that. */
struct refused {
    text why;
};

struct object {
    std::variant<std::monostate, dlx::client, dlx::publisher, dlx::subscription, dlx::observer,
                 dlx::caller, dlx::service, dlx::request, dlx::message, dlx::tensor>
        handle;
    text events;            /* of publishers, subscriptions and observers: all that came */
    std::uint64_t call = 0; /* of calls that were begun */
};

static std::map<text, object> objects;
static std::map<text, text> options;
static volatile sig_atomic_t has_signal; /* that came during the command */

template <class T> static T &get(const text &name)
{
    return std::get<T>(objects.at(name).handle);
}

template <class T> static void put(const text &name, T handle)
{
    objects.erase(name);
    objects[name].handle = std::move(handle);
}

static text option(const text &key, const text &otherwise = "")
{
    const auto i = options.find(key);
    return i == options.end() ? otherwise : i->second;
}

static std::uint32_t number(const text &key)
{
    return static_cast<std::uint32_t>(std::stoul(option(key, "0")));
}

static const char *text_or_null(const text &key)
{
    const auto i = options.find(key);
    return i == options.end() ? nullptr : i->second.c_str();
}

static duration time_of(const text &ms)
{
    return ms == "forever" ? dlx::forever : duration(std::chrono::milliseconds(std::stol(ms)));
}

/* ---- answers ------------------------------------------------------------------------------- */

static std::uint32_t crc_bytes(std::uint32_t crc, const unsigned char *data, std::size_t size)
{
    for (; size > 0; size--) {
        crc ^= *data++;
        for (int i = 0; i < 8; i++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320U : 0);
    }
    return crc;
}

static text hex(std::uint32_t crc)
{
    char digits[9];
    std::snprintf(digits, sizeof digits, "%08x", ~crc);
    return digits;
}

static text numbers(dlx::span<const std::int64_t> values)
{
    text ret;
    for (const std::int64_t n : values)
        ret += (ret.empty() ? "" : ",") + std::to_string(n);
    return ret.empty() ? "-" : ret;
}

static std::size_t n_bytes(dlx::tensor_view t)
{
    return (t.size() * t.dtype().bits * t.dtype().lanes + 7) / 8;
}

static unsigned char *data_of(dlx::tensor_view t)
{
    return static_cast<unsigned char *>(t.get()->data) + t.get()->byte_offset;
}

/* Over the elements from dimension `d` on, row-major. */
static std::uint32_t crc_elements(std::uint32_t crc, dlx::tensor_view t, std::size_t d,
                                  const unsigned char *at)
{
    const std::int64_t size = t.dtype().bits * t.dtype().lanes / 8;
    if (d == t.shape().size())
        return crc_bytes(crc, at, static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < t.shape()[d]; i++)
        crc = crc_elements(crc, t, d + 1, at + i * t.strides()[d] * size);
    return crc;
}

static text described(dlx::tensor_view t)
{
    char dtype[DLX_DTYPE_NAME_SIZE];
    dlx_dtype_name(t.dtype(), dtype);
    return text(dtype) + ":" + numbers(t.shape()) + ":" + numbers(t.strides()) + ":" +
           hex(t.is_row_major() ? crc_bytes(0xffffffff, data_of(t), n_bytes(t))
                                : crc_elements(0xffffffff, t, 0, data_of(t)));
}

static text looked_at(const dlx::tensor &t)
{
    return "ok " + described(t.view()) + " writable=" + (t.is_read_only() ? "0" : "1");
}

static text shown(dlx::span<const unsigned char> data)
{
    if (data.size() > 64)
        return std::to_string(data.size()) + ":" +
               hex(crc_bytes(0xffffffff, data.data(), data.size()));
    text ret;
    char digits[3];
    for (const unsigned char byte : data) {
        std::snprintf(digits, sizeof digits, "%02x", byte);
        ret += digits;
    }
    return ret.empty() ? "-" : ret;
}

static text described(const dlx::message &m)
{
    std::ostringstream ret;
    ret << "ok topic=" << m.topic() << " seq=" << m.seq() << " gap=" << m.gap()
        << " attempt=" << m.attempt() << " meta=" << shown(m.meta());
    for (std::uint32_t i = 0; i < m.n_tensors(); i++)
        ret << " " << (*m.name(i) ? m.name(i) : "-") << ":" << described(m.peek(i));
    return ret.str();
}

/* Keeps a message and describes it. */
static text took(const text &name, std::optional<dlx::message> m)
{
    if (!m)
        throw none();
    const text ret = described(*m);
    put(name, std::move(*m));
    return ret;
}

static text failed_call(int code, int worker_code, const text &why)
{
    return text("error ") + dlx_error_name(code) + " " + std::to_string(worker_code) + " " + why;
}

/* ---- what is sent -------------------------------------------------------------------------- */

static words split(const text &line, char at, std::size_t most = SIZE_MAX)
{
    words ret;
    std::size_t from = 0, to;
    while (ret.size() + 1 < most && (to = line.find(at, from)) != line.npos) {
        ret.push_back(line.substr(from, to - from));
        from = to + 1;
    }
    ret.push_back(line.substr(from));
    return ret;
}

static void fill(const dlx::tensor &t, unsigned seed)
{
    for (std::size_t i = 0; i < n_bytes(t.view()); i++)
        data_of(t.view())[i] = static_cast<unsigned char>(seed + i);
}

template <class A> static dlx::tensor make(A &owner, const text &of)
{
    const words parts = split(of, ':');
    DLDataType dtype;
    std::vector<std::int64_t> shape;
    if (const int r = dlx_dtype_parse(parts[0].c_str(), &dtype); r < 0)
        throw dlx::error(r);
    if (parts[1] != "-")
        for (const text &size : split(parts[1], ','))
            shape.push_back(std::stol(size));
    dlx::tensor t = owner.alloc(dtype, dlx::span<const std::int64_t>(shape));
    fill(t, static_cast<unsigned>(std::stoul(parts[2])));
    if (parts.size() > 3) { /* transposed */
        DLTensor &c = t.get()->dl_tensor;
        std::reverse(c.shape, c.shape + c.ndim);
        std::reverse(c.strides, c.strides + c.ndim);
    }
    return t;
}

/* The items of a command, its metadata, and how they are published. */
struct outgoing {
    std::vector<text> names;
    std::vector<dlx::tensor> made;
    std::vector<dlx::tensor *> tensors;
    std::vector<unsigned char> meta;
    dlx_publish_args args{};

    template <class A> outgoing(A &owner, const words &w, std::size_t first)
    {
        made.reserve(w.size());
        for (std::size_t i = first; i < w.size(); i++) {
            const std::size_t at = w[i].find_first_of(":@");
            const text name = w[i].substr(0, at), rest = w[i].substr(at + 1);
            names.push_back(name == "-" ? "" : name);
            if (w[i][at] == ':')
                made.push_back(make(owner, rest));
            tensors.push_back(w[i][at] == ':' ? &made.back() : &get<dlx::tensor>(rest));
            if (name.find('\0') != name.npos)
                throw refused{"the name of an item is a text of C"};
        }
        const text bytes = option("meta");
        if (const std::size_t colon = bytes.find(':'); colon != bytes.npos)
            for (unsigned long n = 0; n < std::stoul(bytes.substr(colon + 1)); n++)
                meta.push_back(static_cast<unsigned char>(std::stoul(bytes) + n));
        else
            for (std::size_t i = 0; i < bytes.size(); i += 2)
                meta.push_back(
                    static_cast<unsigned char>(std::stoul(bytes.substr(i, 2), nullptr, 16)));
        args.timeout_ns = time_of(option("timeout", "0")).count();
        args.strict = number("strict");
        args.share = number("share");
    }
    std::vector<dlx::item> items()
    {
        std::vector<dlx::item> ret;
        for (std::size_t i = 0; i < tensors.size(); i++)
            ret.emplace_back(names[i].empty() ? nullptr : names[i].c_str(), std::move(*tensors[i]));
        return ret;
    }
};

static text publish(const words &w)
{
    auto &p = get<dlx::publisher>(w[1]);
    outgoing out(p, w, 2);
    const bool plain = out.tensors.size() == 1 && out.names[0].empty() && out.meta.empty();
    const auto report = plain ? p.publish(std::move(*out.tensors[0]), out.args)
                              : p.publish_set(out.items(), out.meta, out.args);
    return "ok seq=" + std::to_string(report.seq) + " copied=" + std::to_string(report.n_copied) +
           " subscribers=" + std::to_string(report.n_subscribers);
}

/* With the arguments of a call. */
template <class F> static auto with_call(const words &w, F f)
{
    auto &k = get<dlx::caller>(w[2]);
    outgoing out(k, w, 3);
    const dlx_bytes meta{out.meta.data(), out.meta.size()};
    dlx_call_args args{};
    args.timeout_ns = out.args.timeout_ns;
    args.idempotent = number("idempotent");
    args.meta = out.meta.empty() ? nullptr : &meta;
    return f(k, out.items(), args);
}

/* ---- commands ------------------------------------------------------------------------------ */

static dlx::client connected()
{
    dlx_connect_args args{};
    args.socket = text_or_null("socket");
    args.name = text_or_null("name");
    args.timeout_ns = time_of(option("timeout", "0")).count();
    args.wait_ns = time_of(option("wait", "0")).count();
    args.autospawn = DLX_AUTOSPAWN_NEVER;
    if (number("interrupt"))
        args.interrupt = [](void *) -> int { return has_signal; };
    return dlx::client(args);
}

static dlx::publisher announced(const words &w)
{
    const text on_full = option("on_full"), retain_for = option("retain_for", "0");
    const words names = split(option("groups"), ',');
    std::vector<const char *> groups;
    for (const text &name : names)
        groups.push_back(name.c_str());
    dlx_publisher_args args{};
    args.history = number("history");
    args.on_full = on_full == "block"  ? DLX_ON_FULL_BLOCK
                   : on_full == "drop" ? DLX_ON_FULL_DROP
                                       : DLX_ON_FULL_DEFAULT;
    args.depth = number("depth");
    args.retain = number("retain");
    args.retain_for_ns = retain_for == "latched" ? DLX_RETAIN_LATCHED : time_of(retain_for).count();
    args.max_held = number("max_held");
    args.min_subscribers = number("require");
    args.groups = groups.data();
    args.n_groups = options.count("groups") ? static_cast<std::uint32_t>(groups.size()) : 0;
    return dlx::publisher(get<dlx::client>(w[2]), w[3], args);
}

static dlx::subscription subscribed(const words &w)
{
    dlx_subscribe_args args{};
    args.mode = number("latest") ? DLX_MODE_LATEST : DLX_MODE_ALL;
    args.history = option("history") == "none" ? DLX_HISTORY_NONE : number("history");
    args.reliable = number("reliable");
    args.accepts_unreliable = number("accepts_unreliable");
    args.max_held = number("max_held");
    args.n_publishers = option("publishers") == "any" ? DLX_PUBLISHERS_ANY : number("publishers");
    args.group = text_or_null("group");
    args.lease_ns = time_of(option("lease", "0")).count();
    args.max_attempts = number("max_attempts");
    args.dead_letters = text_or_null("dead_letters");
    return dlx::subscription(get<dlx::client>(w[2]), w[3], args);
}

static text wait_for(const words &w)
{
    auto *k = std::get_if<dlx::caller>(&objects.at(w[1]).handle);
    const auto n = static_cast<std::uint32_t>(std::stoul(w[2]));
    if (!(k ? k->wait(time_of(w[3])) : get<dlx::publisher>(w[1]).wait(n, time_of(w[3]))))
        throw none();
    return "ok";
}

static text take_many(const words &w)
{
    auto messages = get<dlx::subscription>(w[2]).take_n(
        static_cast<std::uint32_t>(std::stoul(w[3])), time_of(w[4]));
    text ret = "ok";
    if (messages.empty())
        throw none();
    for (std::size_t i = 0; i < messages.size(); i++) {
        ret += " " + std::to_string(messages[i].seq());
        put(w[1] + "." + std::to_string(i), std::move(messages[i]));
    }
    return ret;
}

/* Takes and releases until the last publisher has left. */
static text rest(const words &w)
{
    text ret = "ok";
    try {
        while (auto m = get<dlx::subscription>(w[1]).take())
            ret += " " + std::to_string(m->seq());
    } catch (const dlx::error &e) {
        if (e.code() != DLX_E_PUBLISHER_GONE)
            throw;
    }
    return ret;
}

static text open_tensor(const words &w)
{
    auto *r = std::get_if<dlx::request>(&objects.at(w[2]).handle);
    const dlx::message m = r ? r->message() : get<dlx::message>(w[2]).ref();
    const text name = w[3][0] == '@' ? w[3].substr(1) : "";
    const auto i = static_cast<std::uint32_t>(name.empty() ? std::stoul(w[3]) : 0);
    dlx::tensor t = w[0] == "private" ? name.empty() ? m.private_tensor(i) : m.private_tensor(name)
                    : name.empty() ? m.tensor(i)
                                      : m.tensor(name);
    const text ret = looked_at(t);
    put(w[1], std::move(t));
    return ret;
}

static text write_to(const words &w)
{
    const auto &t = get<dlx::tensor>(w[1]);
    if (t.is_read_only())
        (void)t.data<std::int32_t>(); /* throws */
    fill(t, static_cast<unsigned>(std::stoul(w[2])));
    return looked_at(t);
}

static text events(const words &w)
{
    static const char *const kinds[] = {"?",          "joined",     "left",        "lost",
                                        "unpinned",   "late",       "reconnected", "unseen",
                                        "cpu_waited", "dead_letter"};
    object &o = objects.at(w[1]);
    auto *p = std::get_if<dlx::publisher>(&o.handle);
    while (auto e = p ? p->next_event() : get<dlx::subscription>(w[1]).next_event())
        o.events += text(" ") + kinds[e->kind] + ":" + e->topic + ":" + std::to_string(e->pid);
    return "ok" + o.events;
}

static dlx::observer observed(const words &w)
{
    const text kinds = option("kinds");
    dlx_observer_args args{};
    args.kinds = kinds == "publishers"      ? DLX_OBSERVED_PUBLISHER
                 : kinds == "subscriptions" ? DLX_OBSERVED_SUBSCRIPTION
                                            : 0;
    return dlx::observer(get<dlx::client>(w[2]), w[3], args);
}

/* Of a message, or of an observed publisher. */
template <class Q> static text offered(const Q &q)
{
    const auto retain_for = q.retain_for_ns == 0 ? "forever"
                            : q.retain_for_ns == DLX_RETAIN_LATCHED
                                ? "latched"
                                : std::to_string(q.retain_for_ns / 1000000);
    return (q.on_full == DLX_ON_FULL_BLOCK ? "block:" : "drop:") + std::to_string(q.depth) + ":" +
           std::to_string(q.history) + ":" + std::to_string(q.retain) + ":" + retain_for;
}

static text qos(const words &w)
{
    const auto q = get<dlx::message>(w[1]).get_qos();
    return "ok " + offered(q) + ":" + std::to_string(q.reliable);
}

static text described(const dlx_observed &x)
{
    if (x.kind == DLX_OBSERVED_ALL)
        return "all";
    const bool is_publisher = x.kind == DLX_OBSERVED_PUBLISHER;
    text groups;
    for (std::uint32_t i = 0; i < x.n_groups; i++)
        groups += (groups.empty() ? "" : ",") + text(x.groups[i]);
    if (!is_publisher)
        groups = x.group;
    return text(is_publisher ? "publisher:" : "subscription:") + x.topic +
           (x.gone       ? ":gone:"
            : x.retained ? ":retained:"
                         : ":there:") +
           std::to_string(x.pid) + ":" + std::to_string(x.own) + ":" +
           (is_publisher
                ? offered(x)
                : (x.mode == DLX_MODE_LATEST ? "latest:" : "all:") + std::to_string(x.reliable) +
                      ":" + std::to_string(x.accepts_unreliable)) +
           ":" + (groups.empty() ? "-" : groups);
}

static text next(const words &w)
{
    auto x = get<dlx::observer>(w[1]).next(time_of(w[2]));
    if (!x)
        throw none();
    objects.at(w[1]).events += " " + described(*x);
    return "ok " + described(*x);
}

static text changes(const words &w)
{
    object &o = objects.at(w[1]);
    while (auto x = get<dlx::observer>(w[1]).next(duration(0)))
        o.events += " " + described(*x);
    return "ok" + o.events;
}

static text stats(const words &w)
{
    object &o = objects.at(w[1]);
    std::ostringstream ret;
    if (auto *p = std::get_if<dlx::publisher>(&o.handle)) {
        const auto s = p->get_stats();
        ret << "ok published=" << s.published << " bytes=" << s.published_bytes
            << " copied=" << s.copied << " refused=" << s.refused
            << " subscribers=" << s.n_subscribers;
    } else if (auto *k = std::get_if<dlx::caller>(&o.handle)) {
        const auto s = k->get_stats();
        ret << "ok calls=" << s.calls << " replies=" << s.replies << " failed=" << s.failed
            << " timed_out=" << s.timed_out << " cancelled=" << s.cancelled
            << " in_flight=" << s.n_in_flight;
    } else if (auto *v = std::get_if<dlx::service>(&o.handle)) {
        const auto s = v->get_stats();
        ret << "ok requests=" << s.requests << " replies=" << s.replies << " errors=" << s.errors
            << " held=" << s.n_held;
    } else {
        const auto s = get<dlx::subscription>(w[1]).get_stats();
        ret << "ok taken=" << s.taken << " bytes=" << s.taken_bytes << " skipped=" << s.skipped
            << " lost=" << s.lost << " held=" << s.n_held << " publishers=" << s.n_publishers
            << " daemon=" << s.has_daemon << " done=" << s.done << " redelivered=" << s.redelivered
            << " dead=" << s.dead;
    }
    return ret.str();
}

static text poll_of(const words &w)
{
    object &o = objects.at(w[1]);
    auto *p = std::get_if<dlx::publisher>(&o.handle);
    auto *k = std::get_if<dlx::caller>(&o.handle);
    auto *v = std::get_if<dlx::service>(&o.handle);
    auto *observer = std::get_if<dlx::observer>(&o.handle);
    pollfd fd{p          ? p->fd()
              : k        ? k->fd()
              : v        ? v->fd()
              : observer ? observer->fd()
                         : get<dlx::subscription>(w[1]).fd(),
              POLLIN, 0};
    return poll(&fd, 1, std::stoi(w[2])) == 1 ? "ok" : "none";
}

/* Lists have no wrapper: they are called by the C handle. */
static text list(const words &w)
{
    text ret = "ok";
    const char *topic = w.size() > 2 ? w[2].c_str() : nullptr;
    dlx_client *c = get<dlx::client>(w[1]).get();
    const auto publisher = [](const dlx_publisher_info *i, void *to) {
        *static_cast<text *>(to) += text(" ") + i->topic + ":" + i->client_name + ":" +
                                    std::to_string(i->published) + (i->retained ? ":1" : ":0");
        return 0;
    };
    const auto group = [](const dlx_group_info *i, void *to) {
        *static_cast<text *>(to) += text(" ") + i->topic + ":" + i->name + ":" +
                                    std::to_string(i->n_workers) + ":" +
                                    std::to_string(i->waiting) + ":" +
                                    std::to_string(i->in_flight) + ":" + std::to_string(i->done);
        return 0;
    };
    const int r = w[0] == "groups" ? dlx_list_groups(c, topic, group, &ret)
                                   : dlx_list_publishers(c, topic, publisher, &ret);
    if (r < 0)
        throw dlx::error(r);
    return ret;
}

static void check(int r)
{
    if (r < 0)
        throw dlx::error(r);
}

static text call(const words &w)
{
    try {
        return with_call(w, [&](dlx::caller &k, std::vector<dlx::item> items, dlx_call_args args) {
            return took(w[1], k.call(items, args));
        });
    } catch (const dlx::error &e) {
        const int code = e.code() == DLX_E_CALL_FAILED ? get<dlx::caller>(w[2]).worker_code() : 0;
        return failed_call(e.code(), code, e.what());
    }
}

static text result(const words &w)
{
    auto ended = get<dlx::caller>(w[1]).take(time_of(w[2]));
    if (!ended)
        throw none();
    for (auto &[name, o] : objects)
        if (o.call == ended->call) {
            const text of = name + " ";
            return of + (ended->reply ? took(text(name), std::move(ended->reply))
                                      : failed_call(ended->code, ended->worker_code, ended->text));
        }
    throw refused{"no call has this number"};
}

static text serve(const words &w)
{
    auto r = get<dlx::service>(w[2]).take(time_of(w[3]));
    if (!r)
        throw none();
    const text ret = described(r->message());
    put(w[1], std::move(*r));
    return ret;
}

static text reply(const words &w)
{
    auto &r = get<dlx::request>(w[1]);
    outgoing out(r, w, 2);
    const dlx_bytes meta{out.meta.data(), out.meta.size()};
    dlx_reply_args args{};
    args.meta = out.meta.empty() ? nullptr : &meta;
    r.reply(out.items(), args);
    return "ok";
}

template <class T> static T with_max(const words &w)
{
    if constexpr (std::is_same_v<T, dlx::caller>)
        return T(get<dlx::client>(w[2]), w[3],
                 {sizeof(dlx_caller_args), number("max_in_flight"), 0});
    else
        return T(get<dlx::client>(w[2]), w[3], {sizeof(dlx_service_args), number("max_held"), 0});
}

static void reset()
{
    for (auto i = objects.begin(); i != objects.end();) /* before their services */
        i = std::holds_alternative<dlx::request>(i->second.handle) ? objects.erase(i)
                                                                   : std::next(i);
    objects.clear();
}

/* Those that only do something. */
static const std::map<text, std::function<void(const words &)>> doing{
    {"supports", [](const words &) {}},
    {"connect", [](const words &w) { put(w[1], connected()); }},
    {"publisher", [](const words &w) { put(w[1], announced(w)); }},
    {"subscribe", [](const words &w) { put(w[1], subscribed(w)); }},
    {"observe", [](const words &w) { put(w[1], observed(w)); }},
    {"alloc", [](const words &w) { put(w[1], make(get<dlx::publisher>(w[2]), w[3])); }},
    {"done", [](const words &w) { get<dlx::message>(w[1]).done(); }},
    {"give_back", [](const words &w) { get<dlx::message>(w[1]).give_back(); }},
    {"renew", [](const words &w) { get<dlx::message>(w[1]).renew(); }},
    {"caller", [](const words &w) { put(w[1], with_max<dlx::caller>(w)); }},
    {"service", [](const words &w) { put(w[1], with_max<dlx::service>(w)); }},
    {"cancel",
     [](const words &w) {
         get<dlx::caller>(w[1]).cancel(objects.at(w[2]).call);
         objects.erase(w[2]);
     }},
    {"begin",
     [](const words &w) {
         const auto call = with_call(w, [](dlx::caller &k, std::vector<dlx::item> items,
                                           dlx_call_args args) { return k.begin(items, args); });
         put(w[1], std::monostate());
         objects[w[1]].call = call;
     }},
    {"reply_error",
     [](const words &w) { get<dlx::request>(w[1]).reply_error(std::stoi(w[2]), w[3]); }},
    {"drop_retained",
     [](const words &w) { check(dlx_drop_retained(get<dlx::client>(w[1]).get(), w[2].c_str())); }},
    {"drop_queue",
     [](const words &w) { check(dlx_drop_queue(get<dlx::client>(w[1]).get(), w[2].c_str())); }},
    {"drop", [](const words &w) { objects.erase(w[1]); }},
    {"reset", [](const words &) { reset(); }},
};

/* Those that answer more than "ok". */
static const std::map<text, std::function<text(const words &)>> telling{
    {"version", [](const words &) { return text("ok ") + dlx_version(); }},
    {"publish", publish},
    {"wait", wait_for},
    {"drain",
     [](const words &w) {
         return get<dlx::publisher>(w[1]).drain(time_of(w[2])) ? text("ok") : throw none();
     }},
    {"take",
     [](const words &w) { return took(w[1], get<dlx::subscription>(w[2]).take(time_of(w[3]))); }},
    {"get",
     [](const words &w) {
         return took(w[1], dlx::get(get<dlx::client>(w[2]), w[3], time_of(w[4])));
     }},
    {"take_many", take_many},
    {"rest", rest},
    {"tensor", open_tensor},
    {"private", open_tensor},
    {"look", [](const words &w) { return looked_at(get<dlx::tensor>(w[1])); }},
    {"write", write_to},
    {"events", events},
    {"next", next},
    {"changes", changes},
    {"qos", qos},
    {"stats", stats},
    {"poll", poll_of},
    {"publishers", list},
    {"groups", list},
    {"call", call},
    {"result", result},
    {"serve", serve},
    {"reply", reply},
    {"cancelled",
     [](const words &w) { return text(get<dlx::request>(w[1]).cancelled() ? "ok 1" : "ok 0"); }},
};

static text run(const text &line)
{
    words w;
    options.clear();
    for (text word : split(line, ' ', line.rfind("reply_error ", 0) == 0 ? 4 : SIZE_MAX)) {
        if (const std::size_t nul = word.find("\\0"); nul != word.npos)
            word.replace(nul, 2, 1, '\0');
        if (const std::size_t at = word.find('='); at != word.npos)
            options[word.substr(0, at)] = word.substr(at + 1);
        else
            w.push_back(word);
    }
    try {
        if (const auto i = telling.find(w[0]); i != telling.end())
            return i->second(w);
        const auto i = doing.find(w[0]);
        if (i == doing.end())
            return "unsupported " + w[0];
        i->second(w);
        return "ok";
    } catch (const dlx::error &e) {
        return text("error ") + e.name() + " " + e.what();
    } catch (const none &) {
        return "none";
    } catch (const refused &e) {
        return "refused " + e.why;
    }
}

static void say(const text &line)
{
    std::cout << line << std::endl;
}

int main()
{
    struct sigaction action {
    };
    action.sa_handler = [](int signal_number) { has_signal = signal_number; };
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, nullptr); /* waits of libdlx end then */
    for (text line; std::getline(std::cin, line);) {
        const words w = split(line, ' ', 2);
        has_signal = 0;
        if (w[0] == "fork") {
            const pid_t pid = fork();
            if (pid == 0) {
                say(run(w[1]));
                _exit(0);
            }
            waitpid(pid, nullptr, 0);
        } else if (w[0] == "thread") {
            std::thread([&] { say(run(w[1])); }).join();
        } else {
            say(run(line));
        }
    }
    reset();
    return 0;
}
