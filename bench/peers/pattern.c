/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Measures the peer that it is linked with, between two pinned processes. Each message carries its
 * number in all the words that are touched, and the other side adds them up and checks the sum.
 *
 *   --what latency    half of a round trip, each side loans, writes, sends, takes, reads and
 *                     releases
 *   --what call       a whole round trip: a call and its reply
 *   --what cold       as latency, a round trip at a time; before each both sides stream --stream
 *                     bytes through the cache, and the first waits --gap ns
 *   --what rate       messages a second from the first to the second, every one delivered
 *   --what tail       open loop at --hz: from the time at which a message should have been sent to
 *                     its arrival
 *   --mode busy | block    the receiver spins, or sleeps
 *   --asleep 1        latency: each answer waits until the other side sleeps: no figure, but
 *                     whether it does
 *   --size N          bytes of a message
 *   --touch N         bytes of it that are written and read; -1: all
 */

#include "bench/measure.h"
#include "bench/peers/peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct shared {
    struct bm_meeting meeting;
    _Alignas(128) _Atomic uint64_t n_ready; /* cold: rounds that the second process is ready for */
    _Alignas(128) _Atomic uint64_t end_ns;
    _Atomic uint64_t n_taken;
    _Atomic uint64_t n_sleeps; /* of the receiver, while measured */
};

static struct peer_setup setup;
static struct shared *shared;
static size_t n_words; /* touched in each message */

static void open_peer(int32_t out, int32_t in)
{
    setup.out = out;
    setup.in = in;
    peer_open_out(&setup);
    bm_meet(&shared->meeting);
    peer_open_in(&setup);
    bm_meet(&shared->meeting);
    peer_connected(&setup);
    bm_meet(&shared->meeting);
}

static void close_peer(void)
{
    bm_meet(&shared->meeting); /* both have all they wait for */
    peer_close();
}

static inline void put(uint64_t value)
{
    uint64_t *words = peer_loan();

    for (size_t i = 0; i < n_words; i++)
        words[i] = value;
    peer_send();
}

static inline void get(uint64_t value)
{
    const uint64_t *words = peer_receive();
    uint64_t sum = 0;

    for (size_t i = 0; i < n_words; i++)
        sum += words[i];
    peer_release();
    if (sum != value * n_words)
        bm_fail("message %llu did not arrive as it was sent", (unsigned long long)value);
}

/* Voluntary switches of this process, with those of threads that the peer has. */
static uint64_t sleeps(void)
{
    struct rusage usage;

    bm_check_errno(getrusage(RUSAGE_SELF, &usage), "getrusage");
    return (uint64_t)usage.ru_nvcsw;
}

static void print_head(const char *what)
{
    bm_json_begin();
    bm_json_text("what", what);
    bm_json_text("peer", peer_version());
    bm_json_number("size", (double)setup.size);
}

static void latency(const char *what, size_t n_warmup, size_t n)
{
    struct bm_series series;
    uint64_t n_sleeps = 0;

    pid_t pid = bm_fork();
    if (!pid) {
        bool is_asleep = bm_long("asleep", 0);
        bm_pin(1);
        open_peer(1, 0);
        for (uint64_t i = 1; i <= n_warmup + n; i++) {
            get(i);
            if (is_asleep)
                bm_await_sleep(getppid());
            put(i);
        }
        close_peer();
        exit(0); /* iceoryx takes its leave there */
    }
    bm_pin(0);
    open_peer(0, 1);
    bm_series_init(&series, n);
    for (uint64_t i = 1; i <= n_warmup + n; i++) {
        put(i);
        if (i > n_warmup) {
            bm_series_stamp(&series); /* while the answer is on its way */
        } else if (i == n_warmup) {
            n_sleeps = sleeps();
            bm_series_start(&series);
        }
        get(i);
    }
    struct bm_summary summary = bm_series_end(&series, setup.is_call ? 1 : 2);
    n_sleeps = sleeps() - n_sleeps;
    close_peer();
    bm_wait(pid);
    print_head(what);
    bm_json_summary(&summary);
    bm_json_number("sleeps_per_take", (double)n_sleeps / (double)(n + 1));
    bm_json_end();
}

/* Each line is read and written, so that it takes the place of others in every cache on its way. */
static void stream(volatile char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i += 64)
        bytes[i]++;
}

static void cold(size_t n_warmup, size_t n)
{
    size_t size = (size_t)bm_long("stream", 8 << 20);
    uint64_t gap_ns =
        (uint64_t)bm_long("gap", 1000); /* the other one waits for the message by then */
    char *bytes = malloc(size + 1);
    double *ns = calloc(n, sizeof *ns);

    if (!bytes || !ns)
        bm_fail("out of memory");
    memset(bytes, 1, size);
    pid_t pid = bm_fork();
    if (!pid) {
        bm_pin(1);
        open_peer(1, 0);
        for (uint64_t i = 1; i <= n_warmup + n; i++) {
            stream(bytes, size);
            atomic_store(&shared->n_ready, i);
            get(i);
            put(i);
        }
        close_peer();
        exit(0);
    }
    bm_pin(0);
    open_peer(0, 1);
    for (uint64_t i = 1; i <= n_warmup + n; i++) {
        stream(bytes, size);
        while (atomic_load(&shared->n_ready) != i)
            continue;
        for (uint64_t until = bm_now_ns() + gap_ns; bm_now_ns() < until;)
            continue;
        uint64_t start = bm_now_ns();
        put(i);
        get(i);
        if (i > n_warmup)
            ns[i - n_warmup - 1] = (double)(bm_now_ns() - start) / 2;
    }
    close_peer();
    bm_wait(pid);
    struct bm_summary summary = bm_summary_of(ns, n);
    print_head("cold");
    bm_json_summary(&summary);
    bm_json_end();
    free(bytes);
    free(ns);
}

static void rate(size_t n_warmup, size_t n)
{
    pid_t pid = bm_fork();
    if (!pid) {
        bm_pin(1);
        open_peer(PEER_NONE, 0);
        for (uint64_t i = 1; i <= n_warmup + n; i++)
            get(i);
        atomic_store(&shared->end_ns, bm_now_ns());
        atomic_store(&shared->n_taken, n_warmup + n);
        close_peer();
        exit(0);
    }
    bm_pin(0);
    open_peer(0, PEER_NONE);
    uint64_t start_ns = 0;
    for (uint64_t i = 1; i <= n_warmup + n; i++) {
        if (i == n_warmup + 1)
            start_ns = bm_now_ns();
        put(i);
    }
    close_peer();
    bm_wait(pid);
    double ns = (double)(atomic_load(&shared->end_ns) - start_ns);
    print_head("rate");
    bm_json_number("n", (double)(n_warmup + n));
    bm_json_number("delivered", (double)atomic_load(&shared->n_taken));
    bm_json_number("per_s", (double)n * 1e9 / ns);
    bm_json_number("gb_per_s", (double)(n * n_words * 8) / ns);
    bm_json_end();
}

static void tail(size_t n_warmup, size_t n)
{
    uint64_t period_ns = 1000000000u / (uint64_t)bm_long("hz", 10000);
    uint64_t *arrived = bm_shared((n_warmup + n) * sizeof *arrived);

    pid_t pid = bm_fork();
    if (!pid) {
        uint64_t n_sleeps = 0;
        bm_pin(1);
        open_peer(PEER_NONE, 0);
        for (uint64_t i = 0; i < n_warmup + n; i++) {
            if (i == n_warmup)
                n_sleeps = sleeps();
            get(i + 1);
            arrived[i] = bm_now_ns();
        }
        atomic_store(&shared->n_sleeps, sleeps() - n_sleeps);
        close_peer();
        exit(0);
    }
    bm_pin(0);
    open_peer(0, PEER_NONE);
    double *ns = calloc(n, sizeof *ns);
    if (!ns)
        bm_fail("out of memory");
    uint64_t start_ns = bm_now_ns() + period_ns;
    for (uint64_t i = 0; i < n_warmup + n; i++) {
        while (bm_now_ns() < start_ns + i * period_ns)
            continue;
        put(i + 1);
    }
    close_peer();
    bm_wait(pid);
    for (size_t i = 0; i < n; i++)
        ns[i] = (double)(arrived[n_warmup + i] - (start_ns + (n_warmup + i) * period_ns));
    struct bm_summary summary = bm_summary_of(ns, n);
    print_head("tail");
    bm_json_summary(&summary);
    bm_json_number("sleeps_per_take", (double)atomic_load(&shared->n_sleeps) / (double)n);
    bm_json_end();
    free(ns);
}

int main(int argc, char **argv)
{
    char name[64];

    bm_init(argc, argv);
    const char *what = bm_text("what", "latency");
    const char *mode = bm_text("mode", "busy");
    bool is_busy = !strcmp(mode, "busy");
    if (!is_busy && strcmp(mode, "block"))
        bm_fail("--mode takes busy or block");
    bool is_stream = !strcmp(what, "rate") || !strcmp(what, "tail");
    (void)snprintf(name, sizeof name, "bench-%ld", (long)getpid());
    setup = (struct peer_setup){
        .name = name,
        .size = (size_t)bm_long("size", 64),
        .out = PEER_NONE,
        .in = PEER_NONE,
        .is_blocking = !is_busy,
        .is_lossless = is_stream,
        .is_call = !strcmp(what, "call"),
    };
    long touch = bm_long("touch", 64);
    n_words = (touch < 0 || (size_t)touch > setup.size ? setup.size : (size_t)touch) / 8;
    if (!n_words)
        bm_fail("at least 8 bytes of a message are touched");
    size_t n = (size_t)bm_long("n", is_busy ? 100000 : 10000);
    size_t n_warmup = (size_t)bm_long("warmup", (long)(n / 20 + 10));
    shared = bm_shared(sizeof *shared);
    peer_prepare(&setup);
    if (!strcmp(what, "latency") || setup.is_call)
        latency(what, n_warmup, n);
    else if (!strcmp(what, "cold"))
        cold(n_warmup, n);
    else if (!strcmp(what, "rate"))
        rate(n_warmup, n);
    else if (!strcmp(what, "tail"))
        tail(n_warmup, n);
    else
        bm_fail("--what takes latency, call, cold, rate or tail");
    return 0;
}
