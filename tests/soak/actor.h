/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_SOAK_ACTOR_H
#define DLX_SOAK_ACTOR_H

/* An actor: a process with publishers and subscriptions, each in a thread, that live for a while
 * and are followed by others, all chosen by a seed. */

#include "tests/soak/ledger.h"
#include <dlx/dlx.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#define SOAK_MS INT64_C(1000000)

/* How far the end has come; set by signals. */
enum soak_phase {
    SOAK_RUN,
    SOAK_PUBLISHERS_END, /* SIGUSR1: publishers close, and nothing new begins */
    SOAK_DRAIN,          /* SIGUSR2: subscriptions take until nobody is there any more */
    SOAK_END,            /* SIGTERM: everything closes as it is */
};
extern _Atomic int soak_phase;

struct soak_actor {
    uint64_t seed;
    struct soak_ledger *ledger;
    const char *socket;
};

/* What a thread plays with. */
struct soak_part {
    struct soak_actor *actor;
    struct dlx_client *client;
    bool shares; /* the client, with the other threads */
    struct soak_object *object;
    uint64_t random;
    uint64_t until_ns; /* its life */
};

/* The program's end: a fault was found. */
void soak_fault(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

uint64_t soak_now_ns(void);
void soak_sleep_ns(uint64_t ns);

/* 0 to n - 1; about as often each power of two up to `most`; true once in n. */
uint64_t soak_random(struct soak_part *part, uint64_t n);
uint64_t soak_random_log(struct soak_part *part, uint64_t most);
bool soak_once_in(struct soak_part *part, uint64_t n);

/* Count the error of a call; a fault if it is none that kills, restarts and full memory may
 * cause. */
void soak_error(struct soak_part *part, int code, const char *what);

void soak_publish(struct soak_part *part);
void soak_subscribe(struct soak_part *part);
void soak_get(struct soak_part *part);

#endif
