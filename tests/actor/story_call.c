/* SPDX-License-Identifier: Apache-2.0 */

/* Lives of callers and of servers (tests/soak): calls of all kinds, answers late and in any order.
 */

#include "tests/actor/actor.h"
#include <poll.h>
#include <stdio.h>

#define SIZE_MAX_BYTES (UINT64_C(1) << 18)
#define HELD_MAX       8U
#define LAST_NS        (2 * ACTOR_SECOND) /* calls without a limit are cancelled so late */

static void choose_service(struct actor_part *part, bool all)
{
    char *text = part->object->topic;
    if (all)
        (void)snprintf(text, sizeof part->object->topic, "svc/*");
    else
        (void)snprintf(text, sizeof part->object->topic, "svc/%u", (unsigned)actor_random(part, 3));
}

/* ---- callers --------------------------------------------------------------------------------- */

static void ask(struct actor_caller *k)
{
    struct actor_part *part = k->part;
    uint64_t size = actor_random_log(part, SIZE_MAX_BYTES);
    int64_t timeout_ns = (int64_t)(1 + actor_random_log(part, 4000)) * ACTOR_MS;
    bool idempotent = actor_once_in(part, 2);
    if (actor_once_in(part, 4))
        actor_call(k, size, timeout_ns, idempotent);
    else if (k->n_flights < k->max_in_flight)
        (void)actor_ask(k, size, actor_once_in(part, 8) ? 0 : timeout_ns, idempotent);
}

static void wait(struct actor_caller *k, int64_t timeout_ns, bool polls)
{
    if (polls && !actor_take_result(k, 0)) {
        struct pollfd p = {.fd = dlx_caller_fd(k->k), .events = POLLIN};
        (void)poll(&p, 1, (int)(timeout_ns / ACTOR_MS));
        while (actor_take_result(k, 0))
            ;
    } else {
        (void)actor_take_result(k, timeout_ns);
    }
}

/* Each call in flight has a result, or is cancelled. */
static void take_the_rest(struct actor_caller *k)
{
    for (uint64_t end = actor_now_ns() + LAST_NS; k->n_flights > 0 && actor_now_ns() < end;)
        (void)actor_take_result(k, 20 * ACTOR_MS);
    while (k->n_flights > 0)
        actor_cancel(k, k->n_flights - 1);
}

void actor_make_calls(struct actor_part *part)
{
    struct actor_caller k = {.part = part};
    bool polls = actor_once_in(part, 3);
    uint64_t pause_us = actor_once_in(part, 3) ? 0 : actor_random(part, 5000);
    choose_service(part, false);
    if (!actor_caller_begin(&k, 1 + (uint32_t)actor_random(part, ACTOR_FLIGHTS_MAX)))
        return;
    while (actor_goes_on(part) && k.has_room) {
        ask(&k);
        if (k.n_flights == k.max_in_flight || actor_once_in(part, 4))
            wait(&k, (int64_t)actor_random_log(part, 50) * ACTOR_MS, polls);
        if (k.n_flights > 0 && actor_once_in(part, 20))
            actor_cancel(&k, (uint32_t)actor_random(part, k.n_flights));
        if (pause_us > 0)
            actor_sleep_ns(actor_random(part, pause_us * 1000));
    }
    if (atomic_load(&actor.phase) != ACTOR_END && !actor_once_in(part, 3))
        take_the_rest(&k);
    actor_caller_end(&k);
}

/* ---- servers --------------------------------------------------------------------------------- */

struct held_request {
    struct dlx_request *request;
    uint64_t until_ns;
};

static void answer(struct actor_server *s, struct dlx_request *take_request)
{
    struct actor_part *part = s->part;
    uint64_t what = actor_random(part, 20);
    enum actor_answer how = what == 0 ? ACTOR_LET_GO : what == 1 ? ACTOR_ERROR : ACTOR_REPLY;
    actor_answer(s, take_request, how, actor_random_log(part, SIZE_MAX_BYTES));
}

/* Before its time, if `all`. */
static uint32_t answer_due(struct actor_server *s, struct held_request *held, uint32_t n, bool all)
{
    uint64_t now = actor_now_ns();
    for (uint32_t i = n; i-- > 0;) {
        if (!all && held[i].until_ns > now && !dlx_request_cancelled(held[i].request))
            continue;
        answer(s, held[i].request);
        held[i] = held[--n];
    }
    return n;
}

/* It serves until the callers of its process have ended, too. */
static bool serves_on(const struct actor_part *part)
{
    return actor_goes_on(part) || atomic_load(&actor.phase) == ACTOR_PUBLISHERS_END;
}

void actor_serve(struct actor_part *part)
{
    struct actor_server s = {.part = part};
    struct held_request held[HELD_MAX];
    uint32_t n = 0, max_held = 1 + (uint32_t)actor_random(part, HELD_MAX);
    bool is_slow = actor_once_in(part, 4);
    choose_service(part, actor_once_in(part, 3));
    if (!actor_server_begin(&s, max_held))
        return;
    while (serves_on(part) && s.has_room) {
        int64_t timeout_ns = (int64_t)actor_random_log(part, n > 0 ? 5 : 50) * ACTOR_MS;
        struct dlx_request *request = n < max_held ? actor_take_request(&s, timeout_ns) : NULL;
        if (request && actor_once_in(part, 2))
            answer(&s, request);
        else if (request)
            held[n++] = (struct held_request){
                request,
                actor_now_ns() + actor_random_log(part, is_slow ? 1500 : 60) * (uint64_t)ACTOR_MS};
        n = answer_due(&s, held, n, n == max_held);
    }
    (void)answer_due(&s, held, n, true);
    actor_server_end(&s);
}
