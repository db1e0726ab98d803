/* SPDX-License-Identifier: Apache-2.0 */

/*
 * honest --socket PATH --uid N --pairs N: pairs of processes of one user that exchange messages,
 * and join and leave all the time, until the standard input ends. For each line there it prints
 * one line: how long messages and joins took since the line before, and how many processes have
 * failed.
 *
 * A publisher sends a message every 5 ms and is replaced by a new one after 200. A subscriber
 * connects, subscribes, takes 20 messages and leaves. A process fails when a call does, when a
 * message is missing, or when none comes for 10 s.
 */

#include <dlx/dlx.h>
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAIRS_MAX       64
#define SAMPLES_MAX     100000U
#define PERIOD_NS       5000000L
#define N_PUBLISHED     200U
#define N_TAKEN         20U
#define PATIENCE_NS     INT64_C(10000000000)
#define MESSAGE_SIZE    64
#define EXIT_STATUS_BAD 3

/* What a process measured, in memory that it shares with its parent. */
struct samples {
    _Atomic uint32_t n;
    uint32_t n_read; /* by the parent */
    uint64_t ns[SAMPLES_MAX];
};

struct pair {
    struct samples messages;
    struct samples joins; /* of the subscriber */
    struct samples announcements;
};

struct payload {
    uint64_t round; /* which of its publishers, from 1 */
    uint64_t number;
    uint64_t is_last;
    uint64_t sent_ns;
};

static const char *socket_path;

_Noreturn static void fail(unsigned who, const char *what)
{
    (void)fprintf(stderr, "honest: pair %u: %s: %s\n", who, what, dlx_client_errmsg(NULL));
    exit(EXIT_STATUS_BAD);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

static void record(struct samples *samples, uint64_t ns)
{
    uint32_t n = atomic_load(&samples->n);
    if (n == SAMPLES_MAX)
        return;
    samples->ns[n] = ns;
    atomic_store(&samples->n, n + 1);
}

static struct dlx_client *connect_one(unsigned who)
{
    struct dlx_client *client;
    const struct dlx_connect_args args = {
        .size = sizeof args, .socket = socket_path, .name = "honest"};
    if (dlx_connect(&client, &args) < 0)
        fail(who, "dlx_connect");
    return client;
}

/* ---- the publisher -------------------------------------------------------------------------- */

static void publish_one(unsigned who, struct dlx_publisher *publisher, struct payload payload)
{
    DLManagedTensorVersioned *tensor;
    const int64_t shape[] = {MESSAGE_SIZE};
    const struct dlx_tensor_spec spec = {.size = sizeof spec,
                                         .dtype = {.code = kDLUInt, .bits = 8, .lanes = 1},
                                         .ndim = 1,
                                         .shape = shape};
    if (dlx_alloc(publisher, &spec, &tensor) < 0)
        fail(who, "dlx_alloc");
    payload.sent_ns = now_ns();
    memcpy(tensor->dl_tensor.data, &payload, sizeof payload);
    if (dlx_publish(publisher, tensor, NULL) < 0)
        fail(who, "dlx_publish");
}

_Noreturn static void publish(unsigned who, const char *topic, struct pair *pair)
{
    const struct timespec period = {.tv_nsec = PERIOD_NS};
    const struct dlx_publisher_args args = {.size = sizeof args, .history = 1, .depth = 2048};
    struct dlx_client *client = connect_one(who);
    for (uint64_t round = 1;; round++) {
        struct dlx_publisher *publisher;
        uint64_t begin = now_ns();
        if (dlx_publisher_new(client, topic, &args, &publisher) < 0)
            fail(who, "dlx_publisher_new");
        record(&pair->announcements, now_ns() - begin);
        for (uint64_t i = 1; i <= N_PUBLISHED; i++) {
            publish_one(who, publisher, (struct payload){round, i, i == N_PUBLISHED, 0});
            (void)nanosleep(&period, NULL); /* lint-allow: sleep: its pace */
        }
        dlx_publisher_unref(publisher);
    }
}

/* ---- the subscriber ------------------------------------------------------------------------- */

/* The last messages of a publisher and of the one that replaced it: their messages may mix.
 * Round 0: there is none yet. */
struct progress {
    struct payload older;
    struct payload newer;
};

/* Is it the next one of its publisher? What the first one sent before may be missing. */
static bool advance(struct progress *progress, const struct payload *payload)
{
    struct payload *former = &progress->newer;
    if (progress->newer.round == 0 || payload->round == progress->newer.round + 1) {
        if (progress->newer.round != 0 && payload->number != 1)
            return false;
        if (progress->older.round != 0 && !progress->older.is_last)
            return false;
        progress->older = progress->newer;
        progress->newer = *payload;
        return true;
    }
    if (progress->older.round == 0 && payload->round + 1 == progress->newer.round) {
        progress->older = *payload;
        return true;
    }
    if (payload->round == progress->older.round)
        former = &progress->older;
    else if (payload->round != progress->newer.round)
        return false;
    if (payload->number != former->number + 1)
        return false;
    *former = *payload;
    return true;
}

static void take_one(unsigned who, struct dlx_subscription *subscription, struct pair *pair,
                     struct progress *progress)
{
    struct dlx_message *message;
    struct payload payload;
    int r;
    do /* the next publisher has yet to come, perhaps */
        r = dlx_take(subscription, PATIENCE_NS, &message);
    while (r == DLX_E_PUBLISHER_GONE);
    if (r < 0)
        fail(who, "dlx_take");
    uint64_t now = now_ns();
    memcpy(&payload, dlx_message_peek(message, 0)->data, sizeof payload);
    dlx_message_unref(message);
    record(&pair->messages, now - payload.sent_ns);
    if (advance(progress, &payload))
        return;
    (void)fprintf(stderr,
                  "honest: pair %u: message %" PRIu64 " of publisher %" PRIu64
                  " came after %" PRIu64 " of %" PRIu64 " and %" PRIu64 " of %" PRIu64 "\n",
                  who, payload.number, payload.round, progress->older.number, progress->older.round,
                  progress->newer.number, progress->newer.round);
    exit(EXIT_STATUS_BAD);
}

/* At least so many, and all of a publisher that was replaced meanwhile. */
static void take_some(unsigned who, struct dlx_subscription *subscription, struct pair *pair)
{
    struct progress progress = {.older = {.round = 0}};
    for (unsigned i = 0; i < N_TAKEN || (progress.older.round != 0 && !progress.older.is_last); i++)
        take_one(who, subscription, pair, &progress);
}

_Noreturn static void subscribe(unsigned who, const char *topic, struct pair *pair)
{
    for (;;) {
        struct dlx_subscription *subscription;
        uint64_t begin = now_ns();
        struct dlx_client *client = connect_one(who);
        if (dlx_subscribe(client, topic, NULL, &subscription) < 0)
            fail(who, "dlx_subscribe");
        record(&pair->joins, now_ns() - begin);
        take_some(who, subscription, pair);
        dlx_subscription_unref(subscription);
        dlx_client_unref(client);
    }
}

/* ---- the parent ----------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The samples of all pairs since the last time, `offset` bytes into each pair. */
static void print_samples(const char *name, struct pair *pairs, unsigned n_pairs, size_t offset)
{
    uint64_t *all = malloc(sizeof *all * SAMPLES_MAX * n_pairs);
    size_t n = 0;
    if (!all)
        exit(EXIT_STATUS_BAD);
    for (unsigned i = 0; i < n_pairs; i++) {
        struct samples *samples = (struct samples *)(void *)((char *)&pairs[i] + offset);
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
    print_samples("messages", pairs, n_pairs, offsetof(struct pair, messages));
    print_samples("joins", pairs, n_pairs, offsetof(struct pair, joins));
    print_samples("announcements", pairs, n_pairs, offsetof(struct pair, announcements));
    printf("\"n_failed\": %u}\n", n_failed);
    (void)fflush(stdout);
}

/* As most programs have: which tells how many links one can bear. */
static void limit_descriptors(void)
{
    const struct rlimit usual = {1024, 1024};
    if (setrlimit(RLIMIT_NOFILE, &usual) < 0)
        perror("honest: setrlimit");
}

/* A process that changed its user may not look at itself in /proc, unless it says so. */
static void become(uid_t uid)
{
    if (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0 ||
        prctl(PR_SET_DUMPABLE, 1) < 0) {
        perror("honest: setresuid");
        exit(EXIT_STATUS_BAD);
    }
}

static void start(unsigned who, struct pair *pair, bool publishes, pid_t parent)
{
    char topic[32];
    (void)snprintf(topic, sizeof topic, "honest/%u", who);
    pid_t pid = fork();
    if (pid < 0) {
        perror("honest: fork");
        exit(EXIT_STATUS_BAD);
    }
    if (pid > 0)
        return;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        exit(0);
    if (publishes)
        publish(who, topic, pair);
    subscribe(who, topic, pair);
}

int main(int argc, char **argv)
{
    unsigned n_pairs = 10;
    char line[16];
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--socket") == 0)
            socket_path = argv[i + 1];
        else if (strcmp(argv[i], "--uid") == 0)
            become((uid_t)strtoul(argv[i + 1], NULL, 10));
        else if (strcmp(argv[i], "--pairs") == 0)
            n_pairs = (unsigned)strtoul(argv[i + 1], NULL, 10);
    }
    struct pair *pairs = mmap(NULL, PAIRS_MAX * sizeof *pairs, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!socket_path || n_pairs == 0 || n_pairs > PAIRS_MAX || pairs == MAP_FAILED) {
        (void)fprintf(stderr, "honest --socket PATH [--uid N] [--pairs N]\n");
        return 2;
    }
    limit_descriptors();
    pid_t parent = getpid();
    for (unsigned i = 0; i < n_pairs; i++) {
        start(i, &pairs[i], true, parent);
        start(i, &pairs[i], false, parent);
    }
    while (fgets(line, sizeof line, stdin))
        report(pairs, n_pairs);
    return 0; /* the children end with it */
}
