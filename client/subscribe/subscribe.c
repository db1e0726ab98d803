/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_subscribe() and the end of a subscription. client/subscribe/subscription.c has its links. */

#include "client/base/misuse.h"
#include "client/control/call.h"
#include "client/control/connection.h"
#include "client/control/wait.h"
#include "client/gpu/gpu.h"
#include "client/subscribe/subscription.h"
#include "common/topic.h"
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#define DEFAULT_HELD 16U

/* Waits until the daemon has sent something. Returns 0, also if it has to look again;
 * DLX_E_TIMEOUT, DLX_E_INTERRUPTED, DLX_E_SYSTEM. */
static int wait_for_notifications(struct dlx_subscription *s, struct dlx_wait *wait)
{
    struct pollfd pfd = {.fd = s->sock, .events = POLLIN};
    uint64_t now = dlx__now_ns(), until = dlx__wait_part(wait, s->client, now);
    if (s->notifications.n_acked != s->notifications.n_with_fds) /* it is sent again */
        until = DLX_MIN(until, now + DLX_RECONNECT_NS);
    int n = poll(&pfd, 1, dlx__deadline_ms(until, now));
    if (n < 0 && errno != EINTR)
        return dlx__fail_errno("poll");
    if (n > 0)
        return 0;
    if (dlx__now_ns() >= wait->deadline)
        return DLX_E_TIMEOUT;
    return dlx__wait_ask(wait, s->client, NULL, n < 0) < 0 ? dlx__call_interrupted(s->client) : 0;
}

static int check_subscription(const char *topic, struct dlx_subscribe_args *args)
{
    int r = dlx__pattern_check(topic);
    if (r < 0)
        return r;
    if (args->max_held == 0)
        args->max_held = DEFAULT_HELD;
    if (args->max_held > DLX_SHM_HELD_MAX)
        return dlx__fail(DLX_E_INVALID, "subscription to %s: max_held %u must be at most %u", topic,
                         args->max_held, DLX_SHM_HELD_MAX);
    if (args->history > DLX_SHM_HISTORY_MAX && args->history != DLX_HISTORY_NONE)
        return dlx__fail(DLX_E_INVALID, "subscription to %s: history %u must be at most %u", topic,
                         args->history, DLX_SHM_HISTORY_MAX);
    if (args->mode > DLX_MODE_LATEST)
        return dlx__fail(DLX_E_INVALID, "subscription to %s: mode %u", topic, args->mode);
    if (args->mode == DLX_MODE_LATEST && args->reliable)
        return dlx__fail(DLX_E_INVALID,
                         "subscription to %s: mode LATEST passes messages over, so it cannot be "
                         "reliable",
                         topic);
    if (args->spin_ns < DLX_SPIN_ALWAYS)
        return dlx__fail(DLX_E_INVALID, "subscription to %s: spin_ns %" PRId64, topic,
                         args->spin_ns);
    return 0;
}

/* The daemon knows whether it could not make them. */
static int fail_attach_late(const struct dlx_subscription *s)
{
    struct dlx_daemon_info info = {.size = sizeof info};
    bool lacks = dlx_client_get_daemon_info(s->client, &info) == 0 && *info.lack;
    return dlx__fail(DLX_E_TIMEOUT, "%u of %u links were made in time%s%s",
                     s->notifications.n_settled, s->notifications.n_offers,
                     lacks ? ", and dlpackd lacks what the others need: " : "",
                     lacks ? info.lack : "");
}

/* Waits until every publisher that was there is attached and the next ones find spare links.
 * Returns 0, or why that cannot be. */
static int attach_all(struct dlx_subscription *s)
{
    struct dlx_wait wait = {.deadline = dlx__deadline(s->client->timeout_ns)};
    for (;;) {
        dlx__subscription_read_notifications(s);
        if (s->untold.failure < 0)
            return dlx__fail(s->untold.failure, "%s", s->untold.failure_text);
        if (s->notifications.n_settled >= s->notifications.n_offers)
            return 0;
        if (s->sock < 0)
            return dlx__fail(DLX_E_DISCONNECTED, "dlpackd closed the subscription");
        int r = wait_for_notifications(s, &wait);
        if (r == DLX_E_TIMEOUT)
            return fail_attach_late(s);
        if (r < 0)
            return r;
    }
}

static void subscription_free(struct dlx_subscription *s)
{
    if (s->gpu)
        dlx__gpu_receiver.stop(s->gpu); /* a closed link does not tell when a message is ready */
    while (s->n_links > 0)
        dlx__subscription_detach(s, s->links[s->n_links - 1]);
    free(s->links);
    free(s->active);
    dlx__resume_positions_deinit(&s->resume_positions);
    dlx__events_deinit(&s->events);
    if (s->sock >= 0)
        shutdown(s->sock, SHUT_RDWR); /* a forked child may have inherited it */
    dlx__subscription_epoll_close(s, s->sock);
    dlx__subscription_epoll_close(s, s->nudge);
    dlx__subscription_epoll_close(s, s->timer);
    dlx__close(s->epoll);
    if (s->gpu)
        dlx__gpu_receiver.end(s->gpu); /* releases messages of closed links */
    dlx__client_unref(s->client);
    dlx__release_handle(s, &s->generation);
}

int dlx__subscription_adopt(struct dlx_subscription *s, const struct dlx_new_subscription *made)
{
    int r = dlx__subscription_epoll_add(s, made->sock, EPOLLIN, NULL);
    if (r < 0) {
        dlx__close(made->sock);
        return r;
    }
    s->id = made->id;
    s->memory = made->memory;
    s->sock = made->sock;
    s->notifications.n_with_fds = s->notifications.n_acked = 0;
    s->made_again = true;
    for (uint32_t i = 0; i < s->n_links; i++)
        s->links[i]->foreign = true;
    s->timer = dlx__subscription_epoll_close(s, s->timer);
    dlx__events_push(&s->events, DLX_EVENT_RECONNECTED, 0, 0, 0, s->topic, "");
    return 0;
}

int dlx_subscribe(struct dlx_client *c, const char *topic,
                  const struct dlx_subscribe_args *user_args, struct dlx_subscription **ret)
{
    struct dlx_subscribe_args args;
    struct dlx_new_subscription made;
    dlx__error_clear();
    if (!c || !ret)
        return DLX_NAME_NULL(0, "dlx_subscribe", {"client", c}, {"ret", ret});
    if (dlx__forked(c->generation))
        return dlx__fail_forked(c->generation);
    int r = dlx__args_copy(&args, sizeof args, offsetof(struct dlx_subscribe_args, pin), user_args);
    if (r == 0)
        r = check_subscription(topic, &args);
    if (r < 0)
        return r;
    struct dlx_subscription *s = calloc(1, sizeof *s);
    if (!s)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a subscription");
    r = dlx__client_ensure(c);
    if (r < 0) {
        free(s);
        return r;
    }
    s->client = dlx__client_ref(c);
    s->generation = c->generation;
    s->args = args;
    if (args.n_publishers == 0 && dlx__is_pattern(topic))
        s->args.n_publishers = DLX_PUBLISHERS_ANY;
    s->looks.spin_ns = args.spin_ns == 0  ? DLX_SPIN_DEFAULT_NS
                       : args.spin_ns > 0 ? (uint64_t)args.spin_ns
                                          : 0;
    s->sock = s->nudge = s->timer = -1;
    s->looks.notification_step = 1;
    if (getrandom(&s->reader, sizeof s->reader, GRND_NONBLOCK) < 0) /* early after boot */
        s->reader = dlx__now_ns() ^ (uint64_t)(uintptr_t)s;
    s->epoch = atomic_load_explicit(&c->epoch, memory_order_acquire);
    memcpy(s->topic, topic, strlen(topic) + 1);
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    r = s->epoll < 0 ? dlx__fail_errno("epoll_create1") : 0;
    if (r == 0)
        r = dlx__gpu_receiver.begin(args.pin, &s->gpu);
    if (r == 0)
        r = dlx__call_subscribe(c, topic, &args, c->timeout_ns, &made);
    if (r == 0) {
        s->id = made.id;
        s->memory = made.memory;
        s->sock = made.sock;
        s->notifications.n_offers = made.n_offers;
        r = dlx__subscription_epoll_add(s, s->sock, EPOLLIN, NULL);
    }
    if (r == 0)
        r = attach_all(s);
    if (r < 0) {
        dlx__fail_prefix(r, "subscription to %s", topic);
        subscription_free(s);
        return r;
    }
    s->looks.is_owed = false; /* every publisher that was there is attached */
    *ret = s;
    return 0;
}

int dlx__subscription_refuse(const struct dlx_subscription *s, const char *what)
{
    if (!s)
        return dlx__fail(DLX_E_INVALID, "%s: subscription is NULL", what);
    if (dlx__forked(s->generation))
        return dlx__fail_forked(s->generation);
    return dlx__fail(
        DLX_E_IN_USE,
        "%s: the subscription to %s is in use by another thread: use one for each thread", what,
        s->topic);
}

struct dlx_subscription *dlx_subscription_unref(struct dlx_subscription *s)
{
    if (s && dlx__forked(s->generation))
        dlx__check_released(s->generation, "dlx_subscription_unref()");
    else if (s)
        subscription_free(s);
    return NULL;
}
