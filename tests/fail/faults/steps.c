/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Every step of the protocol: a process is stopped after k steps of one phase of its life, for k =
 * FIRST, FIRST + STRIDE ...: machine instructions, or, compiled with DLX_SIM as the program
 * `words`, accesses to words that processes share; its peer goes on; then it is killed, or goes on
 * itself. Phase 0: it connects and joins; 1 to N_STORY: it publishes, or takes and releases, a
 * message, and in phase BATCH_AT several at once; the next one: it leaves. This process is the peer
 * and the tracer.
 *
 *     steps|words SOCKET publisher|subscriber kill|stop PHASE FIRST STRIDE COUNT
 *
 * Prints the number of points; ends at the first step that the phase does not have any more, or
 * after COUNT points. Exit status: 0; 1 something that may not be, with words; 77 ptrace is not
 * allowed.
 */

#include "common/atomic.h"
#include <dlx/dlx.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SECOND   INT64_C(1000000000)
#define N_STORY  9 /* phases with messages */
#define BATCH_AT 8
#define N_BATCH  3
#define N_MORE   30

/* Shared with the victim. */
static struct {
    _Atomic uint64_t ready;
    _Atomic uint64_t began, done; /* messages that the victim publishes, or takes */
    _Atomic uint64_t joined;
    _Atomic uint64_t finished; /* the phase is over */
    _Atomic uint64_t stop_at;  /* words: before this access of the phase, from 1 */
} * shared;

static const char *socket_path;
static struct dlx_publisher *own; /* of the peer */
static uint64_t published;
static uint64_t phase;
static uint64_t step; /* where the victim is */

_Noreturn static void wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void wrong(const char *fmt, ...)
{
    va_list ap;
    (void)fprintf(stderr, "phase %" PRIu64 ", step %" PRIu64 ": ", phase, step);
    va_start(ap, fmt);
    (void)vfprintf(stderr, fmt, ap);
    va_end(ap);
    (void)fprintf(stderr, " (%s)\n", dlx_errmsg());
    exit(1);
}

static void ok(int r, const char *what)
{
    if (r < 0)
        wrong("%s: %s", what, dlx_error_name(r));
}

static struct dlx_client *connect_as(const char *name)
{
    const struct dlx_connect_args args = {.size = sizeof args, .socket = socket_path, .name = name};
    struct dlx_client *c = NULL;
    int r;
    do /* step by step it may take longer than the daemon waits for its Hello */
        r = dlx_connect(&args, &c);
    while (r == DLX_E_DISCONNECTED);
    ok(r, "connect");
    return c;
}

/* ---- content --------------------------------------------------------------------------------- */

/* Small ones, one that needs an arena of its own, sets. */
static int64_t words_of(uint64_t i)
{
    return i % N_STORY == 4 ? 4000 : 6;
}

static uint32_t tensors_of(uint64_t i)
{
    return i % N_STORY == 6 ? 3 : 1;
}

/* Of large messages only some words are checked: each instruction here is a step there. */
static int64_t next_word(int64_t at)
{
    return at < 4 ? at + 1 : at + 1330;
}

static uint64_t word_of(uint64_t i, uint32_t k, int64_t at)
{
    return i * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)at * 31 + k;
}

/* Number of the last message of a phase. */
static uint64_t last_of(uint64_t i)
{
    return i < BATCH_AT ? i : i + N_BATCH - 1;
}

static DLManagedTensorVersioned *make(struct dlx_publisher *p, uint64_t i, uint32_t k)
{
    int64_t n = words_of(i);
    const struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLUInt, 64, 1}, .ndim = 1, .shape = &n};
    DLManagedTensorVersioned *t = NULL;
    ok(dlx_alloc(p, &spec, &t), "alloc");
    for (int64_t at = 0; at < n; at = next_word(at))
        ((uint64_t *)t->dl_tensor.data)[at] = word_of(i, k, at);
    return t;
}

/* Messages from number i on, of one tensor each. */
static void publish_batch(struct dlx_publisher *p, uint64_t i)
{
    const struct dlx_publish_args args = {.size = sizeof args, .timeout_ns = 10 * SECOND};
    DLManagedTensorVersioned *tensors[N_BATCH];
    uint32_t n = 0;
    for (uint32_t k = 0; k < N_BATCH; k++)
        tensors[k] = make(p, i + k, 0);
    ok(dlx_publish_n(p, tensors, N_BATCH, &args, NULL, &n), "publish_n");
}

static int publish(struct dlx_publisher *p, uint64_t i, int64_t timeout_ns)
{
    const struct dlx_publish_args args = {
        .size = sizeof args, .timeout_ns = timeout_ns, .share = i % N_STORY == 7};
    const char *const names[] = {"a", "b", "c"};
    struct dlx_item items[3];
    uint32_t n_items = tensors_of(i);
    int r = 0;
    for (uint32_t k = 0; k < n_items; k++)
        items[k] = (struct dlx_item){.name = names[k], .tensor = make(p, i, k)};
    r = n_items == 1 ? dlx_publish(p, items[0].tensor, &args, NULL)
                     : dlx_publish_set(p, items, n_items, NULL, &args, NULL);
    for (uint32_t k = 0; k < n_items && (r < 0 || args.share); k++)
        items[k].tensor->deleter(items[k].tensor);
    return r;
}

static void check(const struct dlx_message *m)
{
    uint64_t i = dlx_message_seq(m);
    if (dlx_message_n_tensors(m) != tensors_of(i))
        wrong("message %" PRIu64 " has %u tensors", i, dlx_message_n_tensors(m));
    for (uint32_t k = 0; k < tensors_of(i); k++) {
        const DLTensor *t = dlx_message_tensor_peek(m, k);
        if (t->shape[0] != words_of(i))
            wrong("message %" PRIu64 " has %" PRId64 " words", i, t->shape[0]);
        for (int64_t at = 0; at < t->shape[0]; at = next_word(at))
            if (((const uint64_t *)t->data)[at] != word_of(i, k, at))
                wrong("torn: message %" PRIu64 ", tensor %u, word %" PRId64, i, k, at);
    }
}

/* ---- the victims ----------------------------------------------------------------------------- */

#ifdef DLX_SIM
static uint64_t n_accesses; /* of the phase */
static bool counts;

void dlx_sim_step(const volatile void *word)
{
    (void)word;
    if (!counts || ++n_accesses != atomic_load(&shared->stop_at))
        return;
    counts = false;
    (void)raise(SIGSTOP);
}
#endif

static void begin(uint64_t i)
{
    if (i == phase + 1)
        atomic_store(&shared->finished, 1);
    if (i == phase) {
        atomic_store(&shared->ready, 1);
        (void)raise(SIGSTOP);
    }
#ifdef DLX_SIM
    if (i == phase + 1 && counts)
        (void)raise(SIGSTOP); /* it was not stopped before */
    counts = i == phase && atomic_load(&shared->stop_at) > 0;
#endif
}

static void publishing_victim(void)
{
    const struct dlx_publisher_args args = {
        .size = sizeof args, .history = 2, .depth = 16, .on_full = DLX_ON_FULL_BLOCK};
    struct dlx_publisher *p = NULL;
    begin(0);
    struct dlx_client *c = connect_as("victim");
    ok(dlx_publisher_new(c, "steps/victim", &args, &p), "publisher_new");
    ok(dlx_publisher_wait(p, 1, 10 * SECOND), "wait");
    atomic_store(&shared->joined, 1);
    for (uint64_t i = 1; i <= N_STORY; i++) {
        begin(i);
        atomic_store(&shared->began, last_of(i));
        if (i == BATCH_AT)
            publish_batch(p, i);
        else
            ok(publish(p, last_of(i), 10 * SECOND), "publish");
        atomic_store(&shared->done, last_of(i));
    }
    begin(N_STORY + 1);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    begin(N_STORY + 2);
}

static void subscribing_victim(void)
{
    const struct dlx_subscribe_args args = {
        .size = sizeof args, .reliable = true, .max_held = 8, .spin_ns = DLX_SPIN_NEVER};
    struct dlx_subscription *s = NULL;
    struct dlx_message *held[3] = {NULL, NULL, NULL}, *batch[N_BATCH];
    uint64_t last = 0;
    begin(0);
    struct dlx_client *c = connect_as("victim");
    ok(dlx_subscribe(c, "steps/peer", &args, &s), "subscribe");
    atomic_store(&shared->joined, 1);
    for (uint64_t i = 1; i <= N_STORY; i++) {
        begin(i);
        uint32_t n = 1;
        ok(i == BATCH_AT ? dlx_take_n(s, N_BATCH, 10 * SECOND, batch, &n)
                         : dlx_take(s, 10 * SECOND, batch),
           "take");
        for (uint32_t k = 0; k < n; k++) {
            uint64_t seq = dlx_message_seq(batch[k]);
            if (last > 0 && seq != last + 1)
                wrong("message %" PRIu64 " after %" PRIu64, seq, last);
            last = seq;
            check(batch[k]);
            if (k + 1 < n)
                dlx_message_unref(batch[k]);
        }
        if (held[i % 3])
            check(held[i % 3]);
        dlx_message_unref(held[i % 3]);
        held[i % 3] = batch[n - 1];
        atomic_store(&shared->done, i);
    }
    begin(N_STORY + 1);
    dlx_subscription_unref(s);
    for (int i = 0; i < 3; i++) {
        check(held[i]); /* stays valid */
        dlx_message_unref(held[i]);
    }
    dlx_client_unref(c);
    begin(N_STORY + 2);
}

static pid_t start_victim(void (*victim)(void))
{
    atomic_store(&shared->ready, 0);
    atomic_store(&shared->joined, 0);
    atomic_store(&shared->began, 0);
    atomic_store(&shared->done, 0);
    atomic_store(&shared->finished, 0);
    pid_t pid = fork();
    if (pid < 0)
        wrong("fork");
    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
            _exit(77);
        victim();
        _exit(0);
    }
    return pid;
}

/* Waits for the end of the process, or its next stop, while `pump` serves the peer. */
static int wait_for(pid_t pid, void (*pump)(void))
{
    int status;
    pid_t r;
    while ((r = waitpid(pid, &status, pump ? WNOHANG : 0)) == 0) {
        pump();
        (void)poll(NULL, 0, 0);
    }
    if (r != pid)
        wrong("waitpid");
    return status;
}

/* Runs one instruction, or all up to the access. Returns false when the phase is over. */
static bool resume(pid_t pid, void (*pump)(void))
{
#ifdef DLX_SIM
    const int request = PTRACE_CONT;
#else
    const int request = PTRACE_SINGLESTEP;
#endif
    if (ptrace(request, pid, NULL, NULL) < 0)
        wrong("ptrace");
    int status = wait_for(pid, phase == 0 ? pump : NULL); /* there it waits for the peer */
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != (request == PTRACE_CONT ? SIGSTOP : SIGTRAP))
        wrong("the victim ended or was stopped by itself: status %#x", (unsigned)status);
    return !atomic_load(&shared->finished);
}

/* Run it to the phase, then `steps` steps. Returns false when the phase has fewer. */
static bool run_to(pid_t pid, uint64_t steps, void (*pump)(void))
{
    int status = wait_for(pid, pump);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        exit(77);
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP || !atomic_load(&shared->ready))
        wrong("the victim did not come to its phase: status %#x", (unsigned)status);
    while (own && phase <= N_STORY && published < last_of(phase))
        pump(); /* the message that it is about to take: a step does not wait */
    atomic_store(&shared->stop_at, steps);
#ifdef DLX_SIM
    step = steps;
    return steps == 0 || resume(pid, pump);
#else
    for (step = 0; step < steps; step++)
        if (!resume(pid, pump))
            return false;
    return true;
#endif
}

/* ---- the peer of a publisher ----------------------------------------------------------------- */

static struct dlx_client *peer;
static struct dlx_subscription *survivor;
static uint64_t seen; /* newest message of the victim, or of the peer's own publisher */
static uint64_t n_gone;

static void take_all(void)
{
    struct dlx_message *m = NULL;
    int r;
    while ((r = dlx_take(survivor, 0, &m)) == 0) {
        if (dlx_message_seq(m) != seen + 1)
            wrong("the peer took message %" PRIu64 " after %" PRIu64, dlx_message_seq(m), seen);
        seen++;
        check(m);
        dlx_message_unref(m);
    }
    if (r == DLX_E_PUBLISHER_GONE)
        n_gone++;
    else if (r != DLX_E_EMPTY)
        wrong("take: %s", dlx_error_name(r));
}

static void end_victim(pid_t pid, bool kills, void (*pump)(void))
{
    if (kills) {
        (void)kill(pid, SIGKILL);
        int status = wait_for(pid, NULL);
        if (!WIFSIGNALED(status))
            wrong("the victim was not killed: %#x", (unsigned)status);
        return;
    }
    (void)ptrace(PTRACE_DETACH, pid, NULL, NULL);
    int status = wait_for(pid, pump);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        wrong("the victim ended with %#x", (unsigned)status);
}

static int64_t now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

static void await_nobody(const char *whom)
{
    struct dlx_subscription_stats stats = {.size = sizeof stats, .n_publishers = 1};
    struct dlx_daemon_info info = {.size = sizeof info};
    for (int64_t until = now() + 10 * SECOND; stats.n_publishers + info.n_publishers > 0;) {
        take_all();
        ok(dlx_subscription_get_stats(survivor, &stats), "get_stats");
        ok(dlx_client_get_daemon_info(peer, &info), "daemon_info");
        if (now() > until)
            wrong("the peer does not hear that %s is gone", whom);
    }
    take_all();
}

static bool publisher_point(uint64_t steps, bool kills)
{
    seen = n_gone = 0;
    pid_t pid = start_victim(publishing_victim);
    bool there = run_to(pid, steps, take_all);
    /* The publisher stands still: its published messages come without it, and no more. The daemon
     * may have yet to open the link. */
    uint64_t began = atomic_load(&shared->began), done = atomic_load(&shared->done);
    int64_t until = now() + SECOND;
    do
        take_all();
    while (seen < done && now() < until);
    if (seen < done || seen > began)
        wrong("the victim has published %" PRIu64 " of %" PRIu64 " messages, the peer saw %" PRIu64,
              done, began, seen);
    end_victim(pid, kills, take_all);
    await_nobody("the victim");
    for (until = now() + 5 * SECOND; !kills && seen < last_of(N_STORY) && now() < until;)
        take_all(); /* of a link that was not open when its publisher left */
    if (!kills && seen != last_of(N_STORY))
        wrong("the peer saw %" PRIu64 " of %" PRIu64 " messages", seen, last_of(N_STORY));
    if (seen < done || (kills && seen > began))
        wrong("of %" PRIu64 " to %" PRIu64 " messages the peer saw %" PRIu64, done, began, seen);
    return there;
}

/* ---- the peer of a subscriber ---------------------------------------------------------------- */

static void publish_next(int64_t timeout_ns)
{
    int r = publish(own, published + 1, timeout_ns);
    if (r == DLX_E_FULL && timeout_ns == 0)
        return;
    ok(r, "publish");
    published++;
    take_all();
}

/* For a victim that is there: as many as it needs. */
static void publish_if_needed(void)
{
    if (atomic_load(&shared->joined) && atomic_load(&shared->done) < N_STORY)
        publish_next(0);
    take_all();
}

static bool subscriber_point(uint64_t steps, bool kills)
{
    const struct dlx_publisher_args args = {
        .size = sizeof args, .history = 1, .depth = 12, .on_full = DLX_ON_FULL_BLOCK};
    struct dlx_publisher_stats stats = {.size = sizeof stats};
    seen = published = 0;
    ok(dlx_publisher_new(peer, "steps/peer", &args, &own), "publisher_new");
    /* The publisher has the link before the peer has opened it. */
    struct dlx_subscription_stats mine = {.size = sizeof mine};
    for (int64_t until = now() + 10 * SECOND; mine.n_publishers == 0 && now() < until;) {
        take_all();
        ok(dlx_subscription_get_stats(survivor, &mine), "get_stats");
    }
    pid_t pid = start_victim(subscribing_victim);
    bool there = run_to(pid, steps, publish_if_needed);
    /* The subscriber stands still, holding: its messages are not overwritten, and no other one
     * waits before it is `depth` behind. */
    for (int i = 0; i < N_MORE; i++)
        publish_next(0);
    end_victim(pid, kills, publish_if_needed);
    for (int i = 0; i < N_MORE; i++)
        publish_next(5 * SECOND);
    if (seen != published)
        wrong("the peer saw %" PRIu64 " of %" PRIu64 " messages", seen, published);
    for (int64_t until = now() + 10 * SECOND;;) {
        ok(dlx_publisher_get_stats(own, &stats), "get_stats");
        /* The publisher notices a subscriber that died holding when it needs the memory. */
        if (stats.n_subscribers == 1 || (kills && phase > N_STORY))
            break;
        if (now() > until)
            wrong("%u subscribers are left", stats.n_subscribers);
        publish_next(SECOND);
    }
    own = dlx_publisher_unref(own);
    await_nobody("its publisher");
    return there;
}

/* ---- all ------------------------------------------------------------------------------------- */

static void check_daemon(void)
{
    struct dlx_daemon_info info = {.size = sizeof info};
    for (int64_t until = now() + 10 * SECOND;;) {
        take_all(); /* it lets links go that have ended */
        ok(dlx_client_get_daemon_info(peer, &info), "daemon_info");
        if (info.n_clients == 1 && info.n_publishers == 0 && info.n_links == 0)
            return;
        if (now() > until)
            wrong("the daemon has %u clients, %u publishers, %u links", info.n_clients,
                  info.n_publishers, info.n_links);
    }
}

int main(int argc, char **argv)
{
    if (argc != 8)
        return 2;
    socket_path = argv[1];
    bool publishes = strcmp(argv[2], "publisher") == 0, kills = strcmp(argv[3], "kill") == 0;
    uint64_t first = strtoull(argv[5], NULL, 10), stride = strtoull(argv[6], NULL, 10);
    uint64_t count = strtoull(argv[7], NULL, 10), n = 0;
    const struct dlx_subscribe_args args = {.size = sizeof args, .reliable = true};
    phase = strtoull(argv[4], NULL, 10);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 2;
    peer = connect_as("peer");
    ok(dlx_subscribe(peer, "steps/*", &args, &survivor), "subscribe");
    bool there = true;
    uint64_t k = first;
    for (; n < count && there; k += stride) {
        there = publishes ? publisher_point(k, kills) : subscriber_point(k, kills);
        n += there;
        check_daemon();
    }
    printf("%" PRIu64 " points, %s\n", n, there ? "more to come" : "all");
    dlx_subscription_unref(survivor);
    dlx_client_unref(peer);
    return 0;
}
