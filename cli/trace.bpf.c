/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * What runs in the kernel while `dlxctl trace` does: at the probes of libdlx (common/probes.h), and
 * when a process ends. It counts in maps, which dlxctl reads, and sends events where dlxctl is to
 * know at once. Only the licence "GPL" lets a BPF program read the clock and another program's
 * memory, hence the second licence of this file.
 */

#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <stdbool.h>
#include <stdint.h>
/* Places of probes in all files together. */
#define BPF_USDT_MAX_SPEC_CNT 4096
#include <bpf/bpf_core_read.h>
#include <bpf/usdt.bpf.h>
#include "cli/trace_event.h"

char LICENSE[] SEC("license") = "GPL";

/* Set before the program is loaded: each message is an event, for --chrome. */
const volatile bool wants_messages;

/* The fields of the kernel's structs that are read here. Their places come from the kernel's BTF
 * when the program is loaded. */
typedef struct {
    int counter;
} atomic_t;

struct signal_struct {
    atomic_t live; /* threads that have not exited */
} __attribute__((preserve_access_index));

struct task_struct {
    struct signal_struct *signal;
} __attribute__((preserve_access_index));

/* ---- maps ------------------------------------------------------------------------------------ */

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, TRACE_HOLDS_MAX);
    __type(key, struct trace_hold_key);
    __type(value, struct trace_hold);
} holds SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, TRACE_PUBLISHERS_MAX);
    __type(key, uint64_t);
    __type(value, struct trace_publisher);
} publishers SEC(".maps");

/* An empty entry of `publishers`, which is larger than the stack. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, uint32_t);
    __type(value, struct trace_publisher);
} no_publisher SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, TRACE_BELLS_MAX);
    __type(key, struct trace_bell_key);
    __type(value, struct trace_bell);
} bells SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, TRACE_PROGRAMS_MAX);
    __type(key, uint32_t);
    __type(value, struct trace_program);
} programs SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, TRACE_N_LACKS);
    __type(key, uint32_t);
    __type(value, uint64_t);
} lacks SEC(".maps");

/* dlxctl makes it larger for --chrome. */
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 256 * 1024);
} events SEC(".maps");

/* ---- what all of them do --------------------------------------------------------------------- */

static void count_up(uint64_t *count, uint64_t n)
{
    __sync_fetch_and_add(count, n);
}

static void note_lack(enum trace_lack lack)
{
    uint32_t key = lack;
    uint64_t *count = bpf_map_lookup_elem(&lacks, &key);
    if (count)
        count_up(count, 1);
}

static struct trace_publisher *publisher_of(uint64_t id)
{
    struct trace_publisher *found = bpf_map_lookup_elem(&publishers, &id);
    uint32_t zero = 0;
    if (found)
        return found;
    const struct trace_publisher *empty = bpf_map_lookup_elem(&no_publisher, &zero);
    if (empty)
        (void)bpf_map_update_elem(&publishers, &id, empty, BPF_NOEXIST);
    found = bpf_map_lookup_elem(&publishers, &id);
    if (!found)
        note_lack(TRACE_LACK_PUBLISHERS);
    return found;
}

static struct trace_program *program_of(uint32_t pid)
{
    struct trace_program *found = bpf_map_lookup_elem(&programs, &pid);
    if (found)
        return found;
    struct trace_program made = {0};
    (void)bpf_get_current_comm(made.comm, sizeof made.comm);
    (void)bpf_map_update_elem(&programs, &pid, &made, BPF_NOEXIST);
    found = bpf_map_lookup_elem(&programs, &pid);
    if (!found)
        note_lack(TRACE_LACK_PROGRAMS);
    return found;
}

/* clang 14 fails at __builtin_clzll(). */
static uint32_t log2_of(uint64_t n)
{
    uint32_t log2 = 0;
    for (uint32_t shift = 32; shift > 0; shift /= 2)
        if (n >> shift > 0) {
            n >>= shift;
            log2 += shift;
        }
    return log2;
}

static uint32_t slot_of(uint64_t ns)
{
    if (ns < 4)
        return (uint32_t)ns;
    uint32_t octave = log2_of(ns);
    uint32_t slot = octave * 4 - 4 + (uint32_t)((ns >> (octave - 2)) & 3);
    return slot < TRACE_SLOTS ? slot : TRACE_SLOTS - 1;
}

static void count_time(uint64_t slots[TRACE_SLOTS], uint64_t *max, uint64_t ns)
{
    uint32_t slot = slot_of(ns);
    if (slot < TRACE_SLOTS) /* for the verifier, which has not followed */
        count_up(&slots[slot], 1);
    if (ns > *max) /* a race loses the lesser of two that come together, or seldom the other */
        *max = ns;
}

static void begin_event(struct trace_event *event, enum trace_kind kind)
{
    uint64_t who = bpf_get_current_pid_tgid();
    event->kind = kind;
    event->pid = (uint32_t)(who >> 32);
    event->tid = (uint32_t)who;
    event->ns = bpf_ktime_get_ns();
    (void)bpf_get_current_comm(event->comm, sizeof event->comm);
}

/* Messages come by the thousand: dlxctl looks for them by itself. */
static void send(const struct trace_event *event, uint64_t flags)
{
    if (bpf_ringbuf_output(&events, (void *)event, sizeof *event, flags) < 0)
        note_lack(TRACE_LACK_EVENTS);
}

/* ---- the probes ------------------------------------------------------------------------------ */

SEC("usdt")
int BPF_USDT(on_publish, uint64_t publisher, uint64_t n, uint64_t bytes)
{
    struct trace_publisher *of = publisher_of(publisher);
    if (of) {
        count_up(&of->published, 1);
        count_up(&of->published_bytes, bytes);
    }
    if (wants_messages) {
        struct trace_event event = {.publisher = publisher, .n = n, .bytes = bytes};
        begin_event(&event, TRACE_PUBLISH);
        send(&event, BPF_RB_NO_WAKEUP);
    }
    return 0;
}

/* A file that is reached by two ways, as through the layers of two containers, may have its probes
 * twice: the entry of the hold tells whether this is the second time. */
SEC("usdt")
int BPF_USDT(on_take, uint64_t publisher, uint64_t n, uint64_t link, uint64_t bytes, uint64_t ns)
{
    uint64_t who = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();
    uint32_t pid = (uint32_t)(who >> 32);
    struct trace_hold_key key = {.link = link, .n = n, .pid = pid};
    struct trace_hold hold = {
        .publisher = publisher, .taken_ns = now, .bytes = bytes, .pid = pid, .tid = (uint32_t)who};
    struct trace_program *program = program_of(pid);
    struct trace_publisher *of = publisher_of(publisher);
    long r = bpf_map_update_elem(&holds, &key, &hold, BPF_NOEXIST);
    if (r == -EEXIST)
        return 0;
    if (r < 0)
        note_lack(TRACE_LACK_HOLDS);
    if (program) {
        count_up(&program->taken, 1);
        if (r == 0)
            __sync_fetch_and_add(&program->n_held, 1);
    }
    if (of) {
        count_up(&of->taken, 1);
        count_time(of->transit, &of->transit_max_ns, now > ns ? now - ns : 0);
    }
    if (wants_messages) {
        struct trace_event event = {
            .publisher = publisher, .link = link, .n = n, .bytes = bytes, .since_ns = ns};
        begin_event(&event, TRACE_TAKE);
        event.ns = now; /* the same as in `holds`, where a release finds it */
        send(&event, BPF_RB_NO_WAKEUP);
    }
    return 0;
}

SEC("usdt")
int BPF_USDT(on_release, uint64_t publisher, uint64_t n, uint64_t link)
{
    uint64_t now = bpf_ktime_get_ns();
    struct trace_hold_key key = {
        .link = link, .n = n, .pid = (uint32_t)(bpf_get_current_pid_tgid() >> 32)};
    const struct trace_hold *found = bpf_map_lookup_elem(&holds, &key);
    if (!found) /* taken before the trace began */
        return 0;
    struct trace_hold hold = *found;
    if (bpf_map_delete_elem(&holds, &key) < 0)
        return 0;
    struct trace_program *program = bpf_map_lookup_elem(&programs, &hold.pid);
    struct trace_publisher *of = publisher_of(publisher);
    if (program)
        __sync_fetch_and_add(&program->n_held, -1);
    if (of) {
        count_up(&of->released, 1);
        count_time(of->held, &of->held_max_ns, now > hold.taken_ns ? now - hold.taken_ns : 0);
    }
    if (wants_messages) {
        struct trace_event event = {.publisher = publisher,
                                    .link = link,
                                    .n = n,
                                    .bytes = hold.bytes,
                                    .since_ns = hold.taken_ns};
        begin_event(&event, TRACE_RELEASE);
        send(&event, BPF_RB_NO_WAKEUP);
    }
    return 0;
}

SEC("usdt")
int BPF_USDT(on_bell, uint64_t publisher, uint64_t link, uint32_t end, uint32_t peer)
{
    uint32_t pid = (uint32_t)(bpf_get_current_pid_tgid() >> 32);
    struct trace_bell_key key = {.link = link, .pid = pid, .end = end};
    struct trace_bell *bell = bpf_map_lookup_elem(&bells, &key);
    if (!bell) {
        struct trace_bell made = {.publisher = publisher, .peer = peer};
        (void)bpf_get_current_comm(made.comm, sizeof made.comm);
        (void)bpf_map_update_elem(&bells, &key, &made, BPF_NOEXIST);
        bell = bpf_map_lookup_elem(&bells, &key);
    }
    if (bell)
        count_up(&bell->n, 1);
    else
        note_lack(TRACE_LACK_BELLS);
    if (wants_messages) {
        struct trace_event event = {.publisher = publisher, .link = link, .end = end, .peer = peer};
        begin_event(&event, TRACE_BELL);
        send(&event, BPF_RB_NO_WAKEUP);
    }
    return 0;
}

/* Gives a name to programs that come and go between two looks at the daemon's lists. */
SEC("usdt")
int BPF_USDT(on_attach, uint64_t publisher, uint64_t link, const char *topic)
{
    struct trace_attach *attach = bpf_ringbuf_reserve(&events, sizeof *attach, 0);
    if (!attach) {
        note_lack(TRACE_LACK_EVENTS);
        return 0;
    }
    __builtin_memset(attach, 0, sizeof *attach);
    begin_event(&attach->head, TRACE_ATTACH);
    attach->head.publisher = publisher;
    attach->head.link = link;
    (void)bpf_probe_read_user_str(attach->topic, sizeof attach->topic, topic);
    bpf_ringbuf_submit(attach, BPF_RB_FORCE_WAKEUP);
    return 0;
}

/* ---- processes that end ---------------------------------------------------------------------- */

/* dlxctl knows what a program holds, and forgets it. */
static void tell_end(enum trace_kind kind)
{
    uint32_t pid = (uint32_t)(bpf_get_current_pid_tgid() >> 32);
    struct trace_event event = {0};
    if (!bpf_map_lookup_elem(&programs, &pid))
        return;
    begin_event(&event, kind);
    send(&event, BPF_RB_FORCE_WAKEUP);
}

SEC("raw_tp/sched_process_exit")
int on_exit(struct bpf_raw_tracepoint_args *ctx)
{
    struct task_struct *task = (void *)ctx->args[0];
    if (BPF_CORE_READ(task, signal, live.counter) == 0) /* its last thread */
        tell_end(TRACE_EXIT);
    return 0;
}

/* Its memory is gone, and what it held with it. */
SEC("raw_tp/sched_process_exec")
int on_exec(struct bpf_raw_tracepoint_args *ctx)
{
    (void)ctx;
    tell_end(TRACE_EXEC);
    return 0;
}
