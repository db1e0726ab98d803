/* SPDX-License-Identifier: Apache-2.0 */

/*
 * actor --socket PATH --ledger FILE --seed N: plays until SIGTERM, or, in steps, SIGUSR1, SIGUSR2
 * and the end of its subscriptions. Exit status: 0, or 3 when it found a fault, which it tells.
 */

#include "tests/soak/actor.h"
#include "tests/harness/random.h"
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX 6

_Atomic int soak_phase;

void soak_fault(const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)fprintf(stderr, "FAULT: pid %d: %s\n", getpid(), text);
    (void)fflush(stderr);
    _exit(3);
}

uint64_t soak_now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

void soak_sleep_ns(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000U), (long)(ns % 1000000000U)};
    (void)nanosleep(&t, NULL); /* lint-allow: sleep: an actor's pace is chosen by its seed */
}

uint64_t soak_random(struct soak_part *part, uint64_t n)
{
    return dlx_test_splitmix64(&part->random) % n;
}

uint64_t soak_random_log(struct soak_part *part, uint64_t most)
{
    unsigned bits = 64U - (unsigned)__builtin_clzll(most | 1);
    uint64_t x = dlx_test_splitmix64(&part->random) >> (63 - soak_random(part, bits));
    return x > most ? most : x;
}

bool soak_once_in(struct soak_part *part, uint64_t n)
{
    return soak_random(part, n) == 0;
}

void soak_error(struct soak_part *part, int code, const char *what)
{
    if (code > -SOAK_ERRORS && code < 0)
        part->object->errors[-code]++;
    switch (code) {
    case DLX_E_NO_DAEMON: /* it was killed */
    case DLX_E_DISCONNECTED:
    case DLX_E_NOT_FOUND:
    case DLX_E_TIMEOUT: /* somebody is stopped, or holds much */
    case DLX_E_FULL:
    case DLX_E_EMPTY:
    case DLX_E_TOO_MANY_HELD:
    case DLX_E_PUBLISHER_GONE:
    case DLX_E_PUBLISHER_NOT_RESPONDING:
    case DLX_E_NO_MEMORY:
    case DLX_E_LIMIT:
    case DLX_E_INTERRUPTED:
        return;
    default:
        soak_fault("%s, topic %s: %s: %s", what, part->object->topic, dlx_strerror(code),
                   dlx_client_errmsg(NULL));
    }
}

static void on_signal(int number)
{
    int phase = number == SIGUSR1 ? SOAK_PUBLISHERS_END : number == SIGUSR2 ? SOAK_DRAIN : SOAK_END;
    if (phase > atomic_load(&soak_phase))
        atomic_store(&soak_phase, phase);
}

/* Connect, for as long as it takes. */
static struct dlx_client *connect_patiently(const struct soak_actor *actor)
{
    struct dlx_connect_args args = {.size = sizeof args,
                                    .socket = actor->socket,
                                    .timeout_ns = 2000 * SOAK_MS,
                                    .autospawn = DLX_AUTOSPAWN_NEVER};
    while (atomic_load(&soak_phase) == SOAK_RUN) {
        struct dlx_client *c;
        int r = dlx_connect(&c, &args);
        if (r == 0)
            return c;
        if (r != DLX_E_NO_DAEMON && r != DLX_E_DISCONNECTED && r != DLX_E_TIMEOUT)
            soak_fault("dlx_connect: %s: %s", dlx_strerror(r), dlx_client_errmsg(NULL));
        soak_sleep_ns(20 * SOAK_MS);
    }
    return NULL;
}

static void play_object(struct soak_part *part)
{
    uint64_t what = soak_random(part, 20);
    part->until_ns = soak_now_ns() + (200 + soak_random_log(part, 60000)) * (uint64_t)SOAK_MS;
    if (what < 9)
        soak_publish(part);
    else if (what < 19)
        soak_subscribe(part);
    else
        soak_get(part);
}

static void *play(void *userdata)
{
    struct soak_part *part = userdata;
    struct soak_ledger *ledger = part->actor->ledger;
    while (atomic_load(&soak_phase) == SOAK_RUN) {
        if (!part->client && !(part->client = connect_patiently(part->actor)))
            break;
        uint32_t i = __atomic_fetch_add(&ledger->n_objects, 1, __ATOMIC_RELAXED);
        if (i >= SOAK_OBJECTS)
            break; /* it has done enough */
        part->object = &ledger->objects[i];
        part->object->key = (uint64_t)(uint32_t)getpid() * 1000 + i;
        play_object(part);
        if (!part->shares && soak_once_in(part, 3))
            part->client = dlx_client_unref(part->client);
    }
    if (!part->shares)
        dlx_client_unref(part->client);
    return NULL;
}

static struct soak_ledger *open_ledger(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct soak_ledger)) < 0)
        soak_fault("%s: %m", path);
    void *map = mmap(NULL, sizeof(struct soak_ledger), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        soak_fault("mmap %s: %m", path);
    close(fd);
    return map;
}

static const char *option(int argc, char **argv, const char *name)
{
    for (int i = 1; i + 1 < argc; i += 2)
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    soak_fault("usage: actor --socket PATH --ledger FILE --seed N (%s is missing)", name);
}

int main(int argc, char **argv)
{
    struct soak_part parts[THREADS_MAX];
    pthread_t threads[THREADS_MAX];
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct soak_actor actor = {.seed = strtoull(option(argc, argv, "--seed"), NULL, 10),
                               .socket = option(argc, argv, "--socket"),
                               .ledger = open_ledger(option(argc, argv, "--ledger"))};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (size_t i = 0; i < 3; i++)
        (void)sigaction((const int[]){SIGUSR1, SIGUSR2, SIGTERM}[i], &action, NULL);
    (void)sigprocmask(SIG_SETMASK, &action.sa_mask, NULL); /* what came before waits until now */
    actor.ledger->pid = (uint32_t)getpid();
    actor.ledger->seed = actor.seed;
    actor.ledger->magic = SOAK_MAGIC;
    struct soak_part chooser = {.random = actor.seed};
    uint64_t n = soak_once_in(&chooser, 3) ? 1 : 1 + soak_random(&chooser, THREADS_MAX);
    struct dlx_client *common = soak_once_in(&chooser, 2) ? connect_patiently(&actor) : NULL;
    for (uint64_t i = 0; i < n; i++) {
        parts[i] = (struct soak_part){.actor = &actor,
                                      .random = actor.seed + (i + 1) * 7919,
                                      .client = common,
                                      .shares = common != NULL};
        if (pthread_create(&threads[i], NULL, play, &parts[i]) != 0)
            soak_fault("pthread_create");
    }
    for (uint64_t i = 0; i < n; i++)
        (void)pthread_join(threads[i], NULL);
    dlx_client_unref(common);
    return 0;
}
