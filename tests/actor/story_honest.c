/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Pairs of processes of one user that exchange messages, and join and leave all the time, until the
 * standard input ends (tests/hostile). For each line there one line is printed: how long messages
 * and joins took since the line before, and how many processes have failed.
 *
 * A publisher sends a message every 5 ms and is replaced by a new one after 200. A subscriber
 * connects, subscribes, takes 20 messages and leaves. A process fails when a call does, when a
 * message is missing, or when none comes for 10 s.
 */

#include "tests/actor/actor.h"
#include <grp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAIRS_MAX    64
#define SAMPLES_MAX  100000U
#define PERIOD_NS    (5 * ACTOR_MS)
#define N_PUBLISHED  200U
#define N_TAKEN      20U
#define PATIENCE_NS  (10 * ACTOR_SECOND)
#define MESSAGE_SIZE 64

/* The measurements of a process, in memory that it shares with its parent. */
struct samples {
    _Atomic uint32_t n;
    uint32_t n_read; /* by the parent */
    uint64_t ns[SAMPLES_MAX];
};

enum { MESSAGES, JOINS, ANNOUNCEMENTS, N_KINDS };
struct pair {
    struct samples samples[N_KINDS];
};

static void record(struct pair *pair, int kind, uint64_t ns)
{
    struct samples *samples = &pair->samples[kind];
    uint32_t n = atomic_load(&samples->n);
    if (n == SAMPLES_MAX)
        return;
    samples->ns[n] = ns;
    atomic_store(&samples->n, n + 1);
}

/* A new object in the place of the one before. */
static struct actor_part begin(struct dlx_client *c, enum actor_kind kind, unsigned who)
{
    struct actor_object *object = actor.ledger->objects;
    memset(object, 0, sizeof *object);
    atomic_store(&actor.ledger->head.n_objects, 0);
    struct actor_part part = {
        .client = c, .object = actor_object_new(kind), .until_ns = UINT64_MAX};
    (void)snprintf(object->topic, sizeof object->topic, "honest/%u", who);
    return part;
}

_Noreturn static void publish(unsigned who, struct pair *pair)
{
    const struct dlx_publisher_args args = {.size = sizeof args, .history = 1, .depth = 2048};
    struct dlx_client *c = actor_connect();
    for (uint64_t round = 1;; round++) {
        struct actor_part part = begin(c, ACTOR_PUBLISHER, who);
        struct actor_publisher p = {.part = &part};
        part.object->key = round;
        (void)actor_announce(&p, &args);
        record(pair, ANNOUNCEMENTS, part.object->ready_ns - part.object->begun_ns);
        for (uint64_t i = 1; i <= N_PUBLISHED; i++) {
            struct actor_draft draft = actor_draft_begin(&p, 0);
            (void)actor_draft_add(&p, &draft, MESSAGE_SIZE, false, NULL);
            (void)actor_publish(&p, &draft, 0);
            actor_sleep_ns(PERIOD_NS);
        }
        actor_withdraw(&p);
    }
}

static uint64_t newest_of(const struct actor_object *o)
{
    uint64_t newest = 0;
    for (uint32_t i = 0; i < o->n_keys; i++)
        newest = o->keys[i].key > newest ? o->keys[i].key : newest;
    return newest;
}

/* Messages of a publisher and of the one that replaced it may mix; those of the next one come when
 * the first one's have all come. Earlier messages of the first one may be missing. */
static void check_order(const struct actor_object *o)
{
    uint64_t newest = newest_of(o);
    for (const struct actor_key *k = o->keys; k < o->keys + o->n_keys; k++)
        if (k->gaps > k->first_gap || (k->key + 1 < newest && k->last != N_PUBLISHED) ||
            (k->key > o->keys[0].key && k->start + k->first_gap > 0))
            actor_fault("%s: message %" PRIu64 " of publisher %" PRIu64 " after gaps of %" PRIu64
                        " from %" PRIu64 " on, while publisher %" PRIu64 " sends",
                        o->topic, k->last, k->key, k->gaps, k->start, newest);
}

static uint64_t take_one(struct actor_subscriber *s)
{
    struct dlx_message *m = NULL;
    int r;
    do /* the next publisher has yet to come, perhaps */
        r = dlx_take(s->s, PATIENCE_NS, &m);
    while (r == DLX_E_PUBLISHER_GONE);
    if (r < 0)
        actor_error(s->part->object, r, "dlx_take");
    uint64_t ns = actor_now_ns() - actor_header_of(m).sent_ns;
    actor_take_in(s, m);
    check_order(s->part->object);
    dlx_message_unref(m);
    return ns;
}

/* At least so many, and all of a publisher that was replaced meanwhile. */
static bool is_done(const struct actor_object *o)
{
    uint64_t newest = newest_of(o);
    for (uint32_t i = 0; i < o->n_keys; i++)
        if (o->keys[i].key < newest && o->keys[i].last != N_PUBLISHED)
            return false;
    return o->done >= N_TAKEN;
}

_Noreturn static void subscribe(unsigned who, struct pair *pair)
{
    const struct dlx_subscribe_args args = {.size = sizeof args};
    for (;;) {
        uint64_t began_ns = actor_now_ns();
        struct actor_part part = begin(actor_connect(), ACTOR_SUBSCRIPTION, who);
        struct actor_subscriber s = {.part = &part};
        (void)actor_join(&s, &args);
        record(pair, JOINS, actor_now_ns() - began_ns);
        while (!is_done(part.object))
            record(pair, MESSAGES, take_one(&s));
        actor_leave(&s);
        dlx_client_unref(part.client);
    }
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The samples of all pairs since the last time. */
static void print_samples(const char *name, struct pair *pairs, unsigned n_pairs, int kind)
{
    uint64_t *all = malloc(sizeof *all * SAMPLES_MAX * n_pairs);
    size_t n = 0;
    if (!all)
        actor_fault("out of memory");
    for (unsigned i = 0; i < n_pairs; i++) {
        struct samples *samples = &pairs[i].samples[kind];
        uint32_t n_now = atomic_load(&samples->n);
        while (samples->n_read < n_now)
            all[n++] = samples->ns[samples->n_read++];
    }
    qsort(all, n, sizeof *all, compare);
    printf("\"%s\": {\"n\": %zu, \"p50_ns\": %" PRIu64 ", \"p99_ns\": %" PRIu64
           ", \"max_ns\": %" PRIu64 "}, ",
           name, n, n ? all[n / 2] : 0, n ? all[n * 99 / 100] : 0, n ? all[n - 1] : 0);
    free(all);
}

static void report(struct pair *pairs, unsigned n_pairs)
{
    static unsigned n_failed;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        n_failed++;
    printf("{");
    print_samples("messages", pairs, n_pairs, MESSAGES);
    print_samples("joins", pairs, n_pairs, JOINS);
    print_samples("announcements", pairs, n_pairs, ANNOUNCEMENTS);
    printf("\"n_failed\": %u}\n", n_failed);
    (void)fflush(stdout);
}

/* With as many descriptors as most programs have: that says how many links one can bear. A process
 * that changed its user may not look at itself in /proc, unless it says so. */
static void become(uid_t uid)
{
    const struct rlimit usual = {1024, 1024};
    if (setrlimit(RLIMIT_NOFILE, &usual) < 0 || setgroups(0, NULL) < 0 ||
        setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0 ||
        prctl(PR_SET_DUMPABLE, 1) < 0)
        actor_fault("cannot become user %u: %m", (unsigned)uid);
}

static void start(unsigned who, struct pair *pair, bool publishes)
{
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        actor_fault("fork: %m");
    if (pid > 0)
        return;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(0);
    actor.ledger = actor_ledger_new();
    if (publishes)
        publish(who, pair);
    subscribe(who, pair);
}

int actor_play_honest(unsigned n_pairs, uid_t uid)
{
    char line[16];
    struct pair *pairs = mmap(NULL, PAIRS_MAX * sizeof *pairs, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (n_pairs == 0 || n_pairs > PAIRS_MAX || pairs == MAP_FAILED)
        actor_fault("%u pairs; at most %d", n_pairs, PAIRS_MAX);
    become(uid);
    actor.strict = true;
    for (unsigned i = 0; i < n_pairs; i++) {
        start(i, &pairs[i], true);
        start(i, &pairs[i], false);
    }
    while (fgets(line, sizeof line, stdin))
        report(pairs, n_pairs);
    return 0; /* the children end with it */
}
