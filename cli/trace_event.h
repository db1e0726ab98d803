/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_TRACE_EVENT_H
#define CLI_TRACE_EVENT_H

/** What the BPF program (trace.bpf.c) and dlxctl share: entries of its maps, and events. */

#include <stdint.h>

#define TRACE_COMM_SIZE  16
#define TRACE_TOPIC_SIZE 256

/** Latencies are counted in slots, four to each power of two, up to 2^41 ns (37 minutes). */
#define TRACE_SLOTS 160

/** Entries of the maps. What finds no room is counted: enum trace_lack. */
#define TRACE_HOLDS_MAX      65536
#define TRACE_PUBLISHERS_MAX 8192
#define TRACE_BELLS_MAX      16384
#define TRACE_PROGRAMS_MAX   8192

/** A message that is held: taken while the trace runs, and not released. A program says what it
 *  likes of links, but not which process it is: none changes what was counted of another. */
struct trace_hold_key {
    uint64_t link;
    uint64_t n;
    uint32_t pid;
    uint32_t zero;
};

struct trace_hold {
    uint64_t publisher;
    uint64_t taken_ns;
    uint64_t bytes;
    uint32_t pid;
    uint32_t tid;
};

/** By the publisher's id. */
struct trace_publisher {
    uint64_t published;
    uint64_t published_bytes;
    uint64_t taken;
    uint64_t released; /**< of those taken while the trace runs */
    uint64_t transit_max_ns;
    uint64_t held_max_ns;
    uint64_t transit[TRACE_SLOTS]; /**< from the time of a message to a take */
    uint64_t held[TRACE_SLOTS];    /**< from a take to the release */
};

struct trace_bell_key {
    uint64_t link;
    uint32_t pid; /**< whose thread rang */
    uint32_t end; /**< TRACE_END_PUBLISHER, _SUBSCRIBER: which end of the link rang */
};

struct trace_bell {
    uint64_t n;
    uint64_t publisher;
    uint32_t peer; /**< pid of the other end, as the daemon says */
    uint32_t unused;
    char comm[TRACE_COMM_SIZE];
};

/** As DLX_PROBE_PUBLISHER and _SUBSCRIBER of common/probes.h. */
#define TRACE_END_PUBLISHER  1
#define TRACE_END_SUBSCRIBER 2

/** A program that dlxctl watches, or that has taken a message, by its pid. */
struct trace_program {
    int64_t n_held;
    uint64_t taken;
    char comm[TRACE_COMM_SIZE];
};

enum trace_kind {
    TRACE_PUBLISH = 1,
    TRACE_TAKE,
    TRACE_RELEASE,
    TRACE_BELL,
    TRACE_ATTACH, /**< a struct trace_attach */
    TRACE_EXIT,
    TRACE_EXEC,
};

struct trace_event {
    uint32_t kind;
    uint32_t pid;
    uint32_t tid;
    uint32_t end;      /**< of TRACE_BELL */
    uint64_t ns;       /**< CLOCK_MONOTONIC */
    uint64_t since_ns; /**< TRACE_TAKE: the time of the message; TRACE_RELEASE: when it was taken */
    uint64_t publisher;
    uint64_t link;
    uint64_t n;
    uint64_t bytes;
    uint32_t peer; /**< of TRACE_BELL */
    uint32_t unused;
    char comm[TRACE_COMM_SIZE];
};

struct trace_attach {
    struct trace_event head;
    char topic[TRACE_TOPIC_SIZE];
};

/** What found no room. */
enum trace_lack {
    TRACE_LACK_EVENTS,
    TRACE_LACK_HOLDS,
    TRACE_LACK_PUBLISHERS,
    TRACE_LACK_BELLS,
    TRACE_LACK_PROGRAMS,
    TRACE_N_LACKS,
};

#endif
