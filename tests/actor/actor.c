/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The processes that tests/soak, tests/fail/faults and tests/hostile run:
 *
 *     actor random SOCKET SEED    publishers and subscriptions of random kinds, until SIGTERM or,
 *                                 in steps, SIGUSR1, SIGUSR2 and the end of its subscriptions
 *     actor sweeper SOCKET        a worker of each group, that does what the others have left
 *     actor honest SOCKET PAIRS UID
 *                                 pairs of processes of that user, until the standard input ends
 *     actor publisher SOCKET      the publisher of the faults' story
 *     actor a SOCKET              its reliable subscriber
 *     actor b SOCKET              its subscriber that leaves and comes back
 *     actor asker SOCKET          has work done, and makes calls: the other story of faults
 *     actor helper SOCKET         its worker, which serves, too
 *
 * Exit status: 0; 3 it found what may not be, and says so; 4 errors without end.
 */

#include "tests/actor/actor.h"
#include "tests/harness/random.h"
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ERRORS_MAX 200

struct actor actor;

/* Without stdio, which allocates. */
static void say(const char *what, const char *format, va_list args)
{
    char text[2048];
    int n = snprintf(text, sizeof text, "%s: pid %d: ", what, getpid());
    n += vsnprintf(text + n, sizeof text - (size_t)n - 1, format, args);
    size_t size = (size_t)n < sizeof text - 2 ? (size_t)n : sizeof text - 2;
    text[size++] = '\n';
    for (size_t done = 0; done < size;) {
        ssize_t r = write(STDERR_FILENO, text + done, size - done);
        if (r < 0 && errno != EINTR && errno != EAGAIN)
            return;
        done += r > 0 ? (size_t)r : 0;
    }
}

void actor_fault(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say("FAULT", format, args);
    va_end(args);
    _exit(3);
}

__attribute__((format(printf, 1, 2))) static void say_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say("error", format, args);
    va_end(args);
}

/* Kills, restarts and full memory cause these. */
static bool is_usual(int code)
{
    static const int usual[] = {
        DLX_E_NO_DAEMON, DLX_E_DISCONNECTED,  DLX_E_NOT_FOUND,
        DLX_E_TIMEOUT,   DLX_E_FULL,          DLX_E_EMPTY,
        DLX_E_LIMIT,     DLX_E_INTERRUPTED,   DLX_E_PUBLISHER_GONE,
        DLX_E_NO_MEMORY, DLX_E_TOO_MANY_HELD, DLX_E_PUBLISHER_NOT_RESPONDING};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (usual[i] == code)
            return true;
    return false;
}

void actor_error(struct actor_object *object, int code, const char *what)
{
    const char *words = dlx_errmsg(), *topic = object ? object->topic : "none";
    uint32_t n = atomic_fetch_add(&actor.ledger->head.n_errors, 1) + 1;
    if (object && code > -ACTOR_ERRORS && code < 0)
        object->errors[-code]++;
    if (actor.strict || (!actor.injected && !is_usual(code)))
        actor_fault("%s, topic %s: %s: %s", what, topic, dlx_error_name(code), words);
    if (!actor.injected)
        return;
    say_error("%s, topic %s: %s: %s", what, topic, dlx_error_name(code), words);
    if (words[0] == '\0')
        actor_fault("%s failed with %s and no words", what, dlx_error_name(code));
    if (n >= ERRORS_MAX)
        _exit(4);
    if (n > 3)
        actor_sleep_ns(10 * ACTOR_MS);
}

uint64_t actor_now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

void actor_sleep_ns(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000U), (long)(ns % 1000000000U)};
    (void)nanosleep(&t, NULL); /* lint-allow: sleep: an actor's pace is part of its story */
}

bool actor_goes_on(const struct actor_part *part)
{
    return atomic_load(&actor.phase) == ACTOR_RUN && actor_now_ns() < part->until_ns;
}

uint64_t actor_random(struct actor_part *part, uint64_t n)
{
    return dlx_test_splitmix64(&part->random) % n;
}

uint64_t actor_random_log(struct actor_part *part, uint64_t most)
{
    unsigned bits = 64U - (unsigned)__builtin_clzll(most | 1);
    uint64_t x = dlx_test_splitmix64(&part->random) >> (63 - actor_random(part, bits));
    return x > most ? most : x;
}

bool actor_once_in(struct actor_part *part, uint64_t n)
{
    return actor_random(part, n) == 0;
}

struct dlx_client *actor_connect(void)
{
    const struct dlx_connect_args args = {.size = sizeof args,
                                          .socket = actor.socket,
                                          .name = actor.name,
                                          .timeout_ns = actor.strict ? 0 : 3 * ACTOR_SECOND,
                                          .autospawn = DLX_AUTOSPAWN_NEVER};
    while (atomic_load(&actor.phase) == ACTOR_RUN) {
        struct dlx_client *c = NULL;
        int r = dlx_connect(&args, &c);
        if (r == 0)
            return c;
        actor_error(NULL, r, "dlx_connect");
        actor_sleep_ns(20 * ACTOR_MS);
    }
    return NULL;
}

struct actor_object *actor_object_new(enum actor_kind kind)
{
    uint32_t i = atomic_fetch_add(&actor.ledger->head.n_objects, 1);
    if (i >= ACTOR_OBJECTS)
        return NULL;
    struct actor_object *object = &actor.ledger->objects[i];
    object->key = (uint64_t)(uint32_t)getpid() * ACTOR_KEYS_OF_PROCESS + i;
    object->kind = kind;
    return object;
}

void actor_begins(struct actor_part *part)
{
    part->object->begun_ns = actor_now_ns();
    part->object->state = ACTOR_BEGUN;
}

bool actor_begins_again(struct actor_part *part, int code, const char *what)
{
    actor_error(part->object, code, what);
    if (actor_goes_on(part)) {
        actor_sleep_ns(20 * ACTOR_MS);
        return true;
    }
    part->object->state = ACTOR_UNUSED;
    return false;
}

void actor_has_begun(struct actor_part *part)
{
    part->object->ready_ns = actor_now_ns();
    part->object->state = ACTOR_ALIVE;
}

void actor_ends(struct actor_part *part)
{
    part->object->ended_ns = actor_now_ns();
    if (part->object->state != ACTOR_DRAINED)
        part->object->state = ACTOR_CLOSED;
}

struct actor_ledger *actor_ledger_new(void)
{
    void *map = mmap(NULL, sizeof(struct actor_ledger), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        actor_fault("mmap: %m");
    return map;
}

/* That of the driver, if there is one. */
static struct actor_ledger *open_ledger(void)
{
    const char *fd = getenv(ACTOR_LEDGER_ENV);
    if (!fd)
        return actor_ledger_new();
    void *map =
        mmap(NULL, sizeof(struct actor_ledger), PROT_READ | PROT_WRITE, MAP_SHARED, atoi(fd), 0);
    if (map == MAP_FAILED)
        actor_fault("mmap of $" ACTOR_LEDGER_ENV ": %m");
    return map;
}

/* By name. */
static const struct {
    const char *name;
    int argc;
} stories[] = {{"random", 4}, {"honest", 5},  {"publisher", 3}, {"a", 3},
               {"b", 3},      {"sweeper", 3}, {"asker", 3},     {"helper", 3}};
enum { RANDOM, HONEST, PUBLISHER, A, B, SWEEPER, ASKER, HELPER, N_STORIES };

int main(int argc, char **argv)
{
    int story = 0;
    while (story < N_STORIES &&
           (argc != stories[story].argc || strcmp(argv[1], stories[story].name) != 0))
        story++;
    if (story == N_STORIES) {
        (void)fprintf(stderr, "usage: actor random SOCKET SEED | actor honest SOCKET PAIRS UID | "
                              "actor publisher|a|b|sweeper|asker|helper SOCKET\n");
        return 2;
    }
    actor.name = argv[1];
    actor.socket = argv[2];
    actor.ledger = open_ledger();
    actor.ledger->head.pid = (uint32_t)getpid();
    actor.ledger->head.magic = ACTOR_MAGIC;
    switch (story) {
    case RANDOM:
        return actor_play_random(strtoull(argv[3], NULL, 10));
    case HONEST:
        return actor_play_honest((unsigned)strtoul(argv[3], NULL, 10),
                                 (uid_t)strtoul(argv[4], NULL, 10));
    case PUBLISHER:
        return actor_play_publisher();
    case SWEEPER:
        return actor_play_sweeper();
    case ASKER:
        return actor_play_asker();
    case HELPER:
        return actor_play_helper();
    default:
        return actor_play_subscriber(story == A);
    }
}
