/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/subscription.h"
#include "common/error.h"
#include "common/packet.h"
#include "daemon/objects/link.h"
#include "daemon/objects/observer.h"
#include "daemon/objects/registry.h"
#include "daemon/base/log.h"
#include "daemon/users/outbox.h"
#include "daemon/base/watch.h"
#include "daemon/base/worker.h"
#include <inttypes.h>
#include <stdio.h>
#include <sys/socket.h>

/* ---- what dlpackd lacks -------------------------------------------------------------------- */

#define WAIT_NS     UINT64_C(20000000)
#define WAIT_MAX_NS UINT64_C(1000000000)

void dlxd_lack_begin(struct dlxd_subscription *subscription)
{
    struct dlxd_lack *lack = &subscription->broker->lack;
    uint64_t now = dlx__now_ns();
    bool is_first = subscription->lack_wait_ns == 0;
    (void)snprintf(lack->text, sizeof lack->text, "%s", dlx__error_message());
    if (now < subscription->lack_until_ns)
        return;
    subscription->lack_wait_ns =
        is_first ? WAIT_NS : DLX_MIN(2 * subscription->lack_wait_ns, WAIT_MAX_NS);
    subscription->lack_until_ns = now + subscription->lack_wait_ns;
    if (!is_first || lack->n_waiting++ > 0)
        return;
    lack->since_ns = now;
    dlxd_log(DLXD_LOG_WARNING,
             "subscription to %s of %s (pid %d), and perhaps others, wait for links, which dlpackd "
             "cannot make: %s; it tries again, at least every second",
             subscription->topic_name, subscription->client->name, (int)subscription->client->pid,
             lack->text);
}

void dlxd_lack_end(struct dlxd_subscription *subscription)
{
    struct dlxd_lack *lack = &subscription->broker->lack;
    if (subscription->lack_wait_ns == 0)
        return;
    subscription->lack_wait_ns = subscription->lack_until_ns = 0;
    if (--lack->n_waiting > 0)
        return;
    dlxd_log(DLXD_LOG_NOTICE,
             "no subscription waits any more for links that dlpackd could not make: %.1f s",
             (double)(dlx__now_ns() - lack->since_ns) / 1e9);
    lack->text[0] = '\0';
}

/* ---- subscriptions ------------------------------------------------------------------------- */

void dlxd_subscription_rewatch(struct dlxd_subscription *subscription)
{
    bool reads = subscription->input != DLXD_INPUT_PAUSED;
    if (!dlxd_subscription_is_doomed(subscription))
        dlxd_watch_set(subscription->watch,
                       (reads ? DLXD_READABLE : 0) |
                           (subscription->state == DLXD_SUBSCRIPTION_FULL ? DLXD_WRITABLE : 0));
}

static void subscription_start(struct dlxd_subscription *subscription)
{
    dlxd_task_start(&subscription->task, subscription->client->user);
}

static void subscription_on_events(void *data, int events)
{
    struct dlxd_subscription *subscription = data;
    if (dlxd_subscription_is_doomed(subscription))
        return;
    if ((events & DLXD_WRITABLE) && subscription->state == DLXD_SUBSCRIPTION_FULL)
        subscription->state = DLXD_SUBSCRIPTION_OPEN;
    if (events & DLXD_READABLE)
        subscription->input = dlxd_input_seen(subscription->input);
    dlxd_subscription_rewatch(subscription);
    subscription_start(subscription);
}

static void release(struct dlxd_subscription *subscription)
{
    dlxd_lack_end(subscription);
    dlxd_task_stop(&subscription->task);
    dlxd_list_remove(&subscription->stuck);
    dlxd_watch_free(subscription->watch);
    dlxd_charge_deinit(&subscription->object_charge);
    dlxd_charge_deinit(&subscription->pattern_charge);
    dlxd_outbox_close(subscription->sock, subscription->client->user);
    free(subscription);
}

int dlxd_subscription_new(struct dlxd_subscription **ret, struct dlxd_client *client,
                          const char *topic, const struct dlxd_subscription_config *config,
                          int *ret_fd)
{
    struct dlxd_registry *registry = &client->broker->registry;
    dlx_cleanup(dlx__closep) int theirs = -1;
    int pair[2];
    struct dlxd_subscription *subscription = calloc(1, sizeof *subscription);
    if (!subscription)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a subscription to %s", topic);
    subscription->broker = client->broker;
    subscription->client = client;
    subscription->config = *config;
    subscription->since = registry->last_announcement;
    dlxd_list_init(&subscription->links);
    dlxd_list_init(&subscription->pending);
    dlxd_list_init(&subscription->spares);
    dlxd_list_init(&subscription->stuck);
    dlxd_task_init(&subscription->task, client->broker->steps->subscription);
    (void)snprintf(subscription->topic_name, sizeof subscription->topic_name, "%s", topic);
    int r = dlxd_charge_init(&subscription->object_charge, client->user, DLXD_OBJECTS, 1);
    if (r == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        r = dlx__fail_errno("subscription socket");
    if (r == 0) {
        theirs = pair[1];
        dlx__packet_refuse_fds(pair[0]);
        subscription->sock = dlxd_outbox_new(client->broker->workers, pair[0]);
        if (!subscription->sock) {
            dlx__close(pair[0]);
            r = DLX_E_NO_MEMORY;
        }
    }
    if (r == 0) {
        r = dlxd_watch_new(&subscription->watch, client->broker->watches, pair[0], DLXD_READABLE,
                           subscription_on_events, subscription);
    }
    bool pattern = dlx__is_pattern(topic);
    if (r == 0)
        r = pattern
                ? dlxd_charge_init(&subscription->pattern_charge, client->user, DLXD_PATTERNS, 1)
                : dlxd_registry_get(registry, topic, &subscription->topic);
    if (r < 0) {
        release(subscription);
        return r;
    }
    dlxd_idmap_add(&registry->subscriptions, &subscription->by_id, ++registry->last_subscription);
    dlxd_list_push_back(pattern ? &registry->patterns : &subscription->topic->subscriptions,
                        &subscription->by_topic);
    dlxd_list_push_back(&client->subscriptions, &subscription->by_client);
    client->n_subscriptions++;
    *ret_fd = dlx__steal_fd(&theirs);
    *ret = subscription;
    return 0;
}

/* From now on, ending links schedule nothing here. */
static void begin_end(struct dlxd_subscription *subscription)
{
    dlxd_watch_set(subscription->watch, 0);
    dlxd_list_remove(&subscription->stuck);
    subscription->state = DLXD_SUBSCRIPTION_ENDING;
}

bool dlxd_subscription_end_some(struct dlxd_subscription *subscription)
{
    struct dlxd_registry *registry = &subscription->broker->registry;
    begin_end(subscription);
    while (!dlxd_list_empty(&subscription->links)) {
        dlxd_link_end(
            dlxd_container_of(subscription->links.next, struct dlxd_link, by_subscription));
        if (dlxd_slice_is_over(&subscription->broker->users))
            return false;
    }
    dlxd_list_remove(&subscription->by_client);
    subscription->client->n_subscriptions--;
    dlxd_list_remove(&subscription->by_topic);
    dlxd_registry_put(registry, subscription->topic);
    dlxd_idmap_remove(&registry->subscriptions, &subscription->by_id);
    registry->n_left++;
    dlxd_change_subscription(subscription);
    release(subscription);
    return true;
}

void dlxd_subscription_free(struct dlxd_subscription *subscription)
{
    while (subscription && !dlxd_subscription_end_some(subscription))
        ;
}

void dlxd_subscription_doom(struct dlxd_subscription *subscription)
{
    if (dlxd_subscription_is_doomed(subscription))
        return;
    begin_end(subscription);
    subscription_start(subscription);
}

struct dlxd_subscription *dlxd_subscription_find(struct dlxd_client *client, uint64_t id)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&client->broker->registry.subscriptions, id);
    if (node) {
        struct dlxd_subscription *s = dlxd_container_of(node, struct dlxd_subscription, by_id);
        if (s->client == client && !dlxd_subscription_is_doomed(s))
            return s;
    }
    (void)dlx__fail(DLX_E_NOT_FOUND, "%s (pid %d) has no subscription %" PRIu64, client->name,
                    (int)client->pid, id);
    return NULL;
}

uint32_t dlxd_subscription_credit(const struct dlxd_subscription *subscription)
{
    bool counts = subscription->config.reliable || dlxd_subscription_is_worker(subscription);
    uint32_t most = counts ? DLXD_CREDIT_RELIABLE : DLXD_CREDIT;
    /* More may be outstanding: see dlxd_link_step_needs_credit(). */
    return most - DLX_MIN(most, subscription->n_fds_sent - subscription->n_fds_acked);
}

int dlxd_subscription_ack(struct dlxd_subscription *subscription, uint32_t n)
{
    uint32_t outstanding = subscription->n_fds_sent - subscription->n_fds_acked;
    if (n - subscription->n_fds_acked > outstanding)
        return dlx__fail(DLX_E_PROTOCOL, "Ack of %u packets with fds, %u were sent", n,
                         subscription->n_fds_sent);
    subscription->n_fds_acked = n;
    (void)dlxd_outbox_look(subscription->sock);
    return 0;
}

void dlxd_subscription_open(struct dlxd_subscription *subscription)
{
    subscription->state = DLXD_SUBSCRIPTION_OPEN;
    dlxd_change_subscription(subscription);
    subscription_start(subscription);
}
