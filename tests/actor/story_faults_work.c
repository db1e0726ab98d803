/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The other story of tests/fail/faults. An asker publishes to a queue, faults/work, and makes calls
 * of a service, faults/svc; then it waits until all of it is done. Two helpers work for the queue
 * and serve, until their standard input ends and nothing is left. The books say which message was
 * done by whom, and how each call ended.
 */

#include "tests/actor/actor.h"
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#define N_ROUNDS 40
#define CALL_NS  (5 * ACTOR_SECOND)

#define WORK  "faults/work"
#define SVC   "faults/svc"
#define GROUP "a" /* as judged by work.py */

/* ---- the asker ------------------------------------------------------------------------------- */

static void give_work(struct actor_publisher *p, uint64_t i)
{
    struct actor_draft draft = actor_draft_begin(p, 0);
    draft.is_set = i % 9 == 4;
    while (!actor_draft_add(p, &draft, i == 20 ? 300000 : 8 * (i % 30), i % 7 == 3, NULL))
        ;
    (void)actor_publish(p, &draft, 10 * ACTOR_SECOND);
}

static void make_calls(struct actor_caller *k, uint64_t i)
{
    uint64_t size = i == 20 ? 100000 : 8 * (i % 25);
    if (i % 3 == 0)
        actor_call(k, size, CALL_NS, i % 2 == 0);
    else
        (void)actor_ask(k, size, CALL_NS, i % 2 == 0);
    if (i % 10 == 7 && k->n_flights > 0)
        actor_cancel(k, k->n_flights - 1);
    while (k->n_flights > 3)
        (void)actor_take_result(k, ACTOR_SECOND);
}

/* Until there is no work left, and no call in flight. */
static void wait_for_all(struct actor_publisher *p, struct actor_caller *k)
{
    uint64_t until = actor_now_ns() + ACTOR_STUCK_NS;
    int r;
    while (k->n_flights > 0)
        (void)actor_take_result(k, ACTOR_SECOND);
    while ((r = dlx_publisher_drain(p->p, ACTOR_SECOND / 5)) < 0) {
        if (actor_now_ns() > until)
            actor_fault("work is not done for %d s: %s", (int)(ACTOR_STUCK_NS / ACTOR_SECOND),
                        dlx_errmsg());
        if (r != DLX_E_TIMEOUT)
            actor_error(p->part->object, r, "dlx_publisher_drain");
    }
}

int actor_play_asker(void)
{
    static const char *const groups[] = {GROUP};
    const struct dlx_publisher_args args = {
        .size = sizeof args, .groups = groups, .n_groups = 1, .depth = 8};
    actor_faults_begin();
    struct dlx_client *c = actor_connect();
    struct actor_part part = actor_part_of(c, ACTOR_PUBLISHER, WORK);
    struct actor_part calls = actor_part_of(c, ACTOR_CALLER, SVC);
    struct actor_publisher p = {.part = &part};
    struct actor_caller k = {.part = &calls};
    part.object->flags = ACTOR_DECLARES;
    (void)actor_announce(&p, &args);
    (void)actor_caller_begin(&k, 6);
    (void)dlx_publisher_wait(p.p, 2, ACTOR_SECOND / 2); /* one of them may be stopped */
    actor_set_scene(ACTOR_STREAMING);
    for (uint64_t i = 1; i <= N_ROUNDS; i++) {
        give_work(&p, i);
        make_calls(&k, i);
    }
    actor_set_scene(ACTOR_WAITING);
    wait_for_all(&p, &k);
    actor_set_scene(ACTOR_FINISHED);
    actor_caller_end(&k);
    actor_withdraw(&p);
    dlx_client_unref(c);
    return actor_faults_end();
}

/* ---- its helpers ----------------------------------------------------------------------------- */

struct helper {
    struct actor_part work, svc;
    struct actor_subscriber in;
    struct actor_server server;
    struct dlx_message *held; /* is done when the next one comes */
    uint64_t since;           /* the last message, or request */
};

static void finish_held(struct helper *h)
{
    if (!h->held)
        return;
    (void)actor_note(h->held, 0, ACTOR_SAYS_DONE);
    int r = dlx_message_done(h->held);
    if (r < 0 && r != DLX_E_NOT_FOUND)
        actor_fault("dlx_message_done: %s", dlx_errmsg());
    (void)actor_note(h->held, 0, r == 0 ? ACTOR_DID : ACTOR_WAS_LATE);
    actor_check(h->held, "when it was done");
    h->held = dlx_message_unref(h->held);
}

/* As a subscriber that takes: a link that could not be made is told once. */
static void join(struct helper *h)
{
    static const struct dlx_subscribe_args args = {
        .size = sizeof args, .group = GROUP, .max_held = 2, .max_attempts = 60};
    (void)actor_join(&h->in, &args);
}

static uint32_t n_publishers(struct helper *h, uint32_t *ret_n_claimed)
{
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    if (dlx_subscription_get_stats(h->in.s, &stats) < 0)
        actor_fault("dlx_subscription_get_stats: %s", dlx_errmsg());
    *ret_n_claimed = stats.n_claimed;
    return stats.n_publishers;
}

static void on_error(struct helper *h, int code)
{
    uint32_t n_claimed;
    actor_error(h->work.object, code, "dlx_take");
    if (code == DLX_E_DISCONNECTED) /* it connects again by itself */
        return;
    finish_held(h);
    if (n_publishers(h, &n_claimed) > 0)
        return;
    actor_leave(&h->in);
    join(h);
}

/* Some messages are given back once. False: nothing came. */
static bool work_once(struct helper *h)
{
    struct dlx_message *m = NULL;
    int r = dlx_take(h->in.s, 0, &m);
    if (r < 0 && r != DLX_E_EMPTY && r != DLX_E_PUBLISHER_GONE && r != DLX_E_TOO_MANY_HELD)
        on_error(h, r);
    if (r == 0) {
        (void)actor_note(m, 0, ACTOR_TOOK);
        actor_check(m, "when a helper took it");
    }
    finish_held(h);
    if (r == 0 && dlx_message_seq(m) % 8 == 5 && dlx_message_attempt(m) == 1)
        dlx_message_unref(m);
    else
        h->held = m;
    return r == 0;
}

static bool serve_once(struct helper *h)
{
    struct dlx_request *request = actor_take_request(&h->server, 0);
    if (h->server.has_failed) {
        actor_server_end(&h->server);
        (void)actor_server_begin(&h->server, 2);
    }
    if (!request)
        return false;
    uint64_t seq = dlx_message_seq(dlx_request_message(request));
    actor_answer(&h->server, request,
                 seq % 7 == 6    ? ACTOR_ERROR
                 : seq % 11 == 9 ? ACTOR_LET_GO
                                 : ACTOR_REPLY,
                 8 * (seq % 20));
    return true;
}

static int fd_of(struct helper *h, int (*get)(struct helper *h), const char *what)
{
    int fd;
    while ((fd = get(h)) < 0)
        actor_error(h->work.object, fd, what);
    return fd;
}

static int work_fd(struct helper *h)
{
    return dlx_subscription_fd(h->in.s);
}

static int service_fd(struct helper *h)
{
    return dlx_service_fd(h->server.s);
}

/* True: the asker has ended, and has left nothing. */
static bool is_over(struct helper *h)
{
    uint32_t n_claimed;
    return actor_input_has_ended(0) && n_publishers(h, &n_claimed) == 0 && n_claimed == 0;
}

static void help(struct helper *h)
{
    h->since = actor_now_ns();
    for (;;) {
        struct pollfd fds[] = {{fd_of(h, work_fd, "dlx_subscription_fd"), POLLIN, 0},
                               {fd_of(h, service_fd, "dlx_service_fd"), POLLIN, 0},
                               {STDIN_FILENO, POLLIN, 0}};
        bool works = work_once(h), serves = serve_once(h);
        if (works || serves) {
            actor_set_scene(ACTOR_STREAMING);
            h->since = actor_now_ns();
            continue;
        }
        if (is_over(h))
            return;
        if (actor_now_ns() - h->since > 2 * ACTOR_STUCK_NS)
            actor_fault("nothing to do for %d s", (int)(2 * ACTOR_STUCK_NS / ACTOR_SECOND));
        (void)poll(fds, actor_input_has_ended(0) ? 2 : 3, 50);
    }
}

int actor_play_helper(void)
{
    struct helper h = {.held = NULL};
    actor_faults_begin();
    struct dlx_client *c = actor_connect();
    h.work = actor_part_of(c, ACTOR_WORKER, WORK);
    h.svc = actor_part_of(c, ACTOR_SERVER, SVC);
    h.in.part = &h.work;
    h.server.part = &h.svc;
    join(&h);
    (void)actor_server_begin(&h.server, 2);
    help(&h);
    actor_set_scene(ACTOR_FINISHED);
    finish_held(&h);
    actor_server_end(&h.server);
    actor_leave(&h.in);
    dlx_client_unref(c);
    return actor_faults_end();
}
