/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/client.h"
#include "common/error.h"
#include "common/proto.h"
#include "common/syscalls.h"
#include "daemon/gpu/keeper.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/former.h"
#include "daemon/objects/observer.h"
#include "daemon/objects/offer.h"
#include "daemon/objects/publisher.h"
#include "daemon/objects/publisher_state.h"
#include "daemon/objects/subscription.h"
#include "daemon/base/log.h"
#include "daemon/users/principal.h"
#include "daemon/users/outbox.h"
#include "daemon/users/policy.h"
#include "daemon/base/watch.h"
#include "daemon/base/worker.h"
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

static bool fallback_forced(void)
{
    const char *value = getenv("DLX_TEST_NO_PEERPIDFD");
    return value && strcmp(value, "1") == 0;
}

/* Opens a pidfd of the connected process. Before Linux 6.5, it opens the pid, which another process
 * may have by now. But the pid was right at the time of the connection, and while the connection
 * stands, the process or a descendant of it has its other end. */
static int open_pidfd(int sock, pid_t pid, int *ret)
{
    int pidfd = -1;
    socklen_t size = sizeof pidfd;
    if (!fallback_forced() && getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0) {
        *ret = pidfd;
        return 0;
    }
    if (!fallback_forced() && errno != ENOPROTOOPT) {
        if (errno == ESRCH || errno == EINVAL || errno == ENODATA)
            return DLX_E_DISCONNECTED; /* dead and reaped */
        return dlx__fail_errno("SO_PEERPIDFD");
    }
    if (pid == 0)
        return dlx__fail(DLX_E_KERNEL,
                         "the client is in a pid namespace that this daemon does not see: that "
                         "needs Linux 6.5 (SO_PEERPIDFD), or a daemon that is outside of its "
                         "container");
    pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0) {
        if (errno == ESRCH)
            return DLX_E_DISCONNECTED;
        return dlx__fail_errno("pidfd_open of %d", (int)pid);
    }
    if (dlx__packet_hung_up(sock)) {
        dlx__close(pidfd);
        return DLX_E_DISCONNECTED;
    }
    *ret = pidfd;
    return 0;
}

int dlxd_client_supported(void)
{
    int pair[2];
    int pidfd;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return dlx__fail_errno("socketpair");
    int r = open_pidfd(pair[0], getpid(), &pidfd);
    dlx__close(pair[0]);
    dlx__close(pair[1]);
    if (r < 0)
        return dlx__fail_prefix(DLX_E_KERNEL, "no pidfds (Linux 5.3 or newer is needed)");
    dlx__close(pidfd);
    return 0;
}

static void client_on_death(void *data, int events)
{
    struct dlxd_client *client = data;
    (void)events;
    dlxd_log_client(dlxd_principal_number(client->principal), DLXD_LOG_INFO, "%s (pid %d) has died",
                    client->name, (int)client->pid);
    dlxd_client_doom(client);
}

static void client_on_events(void *data, int events)
{
    struct dlxd_client *client = data;
    if (events & DLXD_WRITABLE)
        dlxd_client_flush(client);
    if (!(events & DLXD_READABLE) || dlxd_client_is_doomed(client))
        return;
    client->input = dlxd_input_seen(client->input);
    dlxd_client_rewatch(client);
    dlxd_task_start(&client->task, client->user);
}

/* The steps that can fail, before any other object knows the client. */
static int set_up(struct dlxd_client *client, const char *socket)
{
    struct dlxd_broker *broker = client->broker;
    int r = dlxd_principal_new(&client->principal, &client->pid, client->fd, socket);
    if (r == 0)
        r = open_pidfd(client->fd, client->pid, &client->pidfd);
    if (r < 0)
        return r;
    client->holder = dlxd_holder_new(client, client->pidfd);
    client->outbox = dlxd_outbox_new(broker->workers, client->fd);
    r = client->holder && client->outbox
            ? dlxd_users_get(&broker->users, client->principal, &client->user)
            : DLX_E_NO_MEMORY;
    if (r < 0)
        return r;
    client->user->is_administrator = dlxd_policy_is_superuser(&broker->policy, client->principal);
    client->refuse_code = dlxd_policy_admit(&broker->policy, client->principal);
    if (client->refuse_code == 0)
        client->refuse_code =
            dlxd_charge_init(&client->connection_charge, client->user, DLXD_CONNECTIONS, 1);
    if (client->refuse_code < 0)
        client->refuse_text = strdup(dlx__error_message());
    r = dlxd_watch_new(&client->watch, broker->watches, client->fd, DLXD_READABLE, client_on_events,
                       client);
    if (r == 0)
        r = dlxd_watch_new(&client->pid_watch, broker->watches, client->pidfd, DLXD_READABLE,
                           client_on_death, client);
    return r;
}

static void make_way(struct dlxd_broker *broker, const struct dlxd_user *user)
{
    if (user->n_greeting <= DLXD_GREETING_MAX)
        return;
    dlx_for_each (it, &broker->greeting) {
        struct dlxd_client *client = dlxd_container_of(it, struct dlxd_client, greeting);
        if (client->user == user && client->state == DLXD_CLIENT_GREETING) {
            dlxd_client_disconnect(client, DLX_E_TIMEOUT,
                                   "no Hello, and %u more connections of uid %u have said none",
                                   DLXD_GREETING_MAX, (unsigned)user->uid);
            return;
        }
    }
}

int dlxd_client_new(struct dlxd_client **ret, struct dlxd_broker *broker, int take_fd,
                    const char *socket)
{
    char why[DLX_ERROR_TEXT_SIZE];
    struct dlxd_client *client = calloc(1, sizeof *client);
    if (!client) {
        dlx__close(take_fd);
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a client");
    }
    client->broker = broker;
    client->fd = take_fd;
    client->pidfd = -1;
    client->accepted_ns = dlx__now_ns();
    dlxd_list_init(&client->node);
    dlxd_list_init(&client->greeting);
    dlxd_task_init(&client->task, broker->steps->client);
    dlxd_request_init(&client->request);
    dlxd_list_init(&client->shares);
    dlxd_drains_init(&client->drains);
    dlxd_list_init(&client->publishers);
    dlxd_list_init(&client->subscriptions);
    dlxd_list_init(&client->observers);
    dlxd_list_init(&client->tx);
    (void)snprintf(client->name, sizeof client->name, "client");
    int r = set_up(client, socket);
    if (r < 0) {
        (void)snprintf(why, sizeof why, "%s", dlx__error_message());
        if (r != DLX_E_DISCONNECTED)
            dlxd_client_goodbye(client->fd, r, why);
        dlxd_client_free(client);
        return dlx__fail(r, "%s", why);
    }
    dlxd_idmap_add(&broker->registry.clients, &client->by_id, ++broker->last_client);
    dlxd_list_push_back(&broker->clients, &client->node);
    dlxd_list_push_back(&broker->greeting, &client->greeting);
    dlxd_client_set_state(client,
                          client->refuse_code < 0 ? DLXD_CLIENT_REFUSED : DLXD_CLIENT_GREETING);
    make_way(broker, client->user);
    *ret = client;
    return 0;
}

static bool owns_something(const struct dlxd_client *client)
{
    return !dlxd_list_empty(&client->publishers) || !dlxd_list_empty(&client->subscriptions) ||
           !dlxd_list_empty(&client->observers);
}

static void end_publisher(const struct dlxd_client *client, struct dlxd_publisher *publisher)
{
    if (client->dismissed)
        dlxd_publisher_vanish(publisher);
    else
        dlxd_publisher_die(publisher, client->pidfd);
}

bool dlxd_client_end_some(struct dlxd_client *client)
{
    dlxd_request_end(client);
    client->gpu_call = dlxd_gpu_call_free(client->gpu_call);
    while (owns_something(client)) {
        if (!dlxd_list_empty(&client->publishers))
            end_publisher(client, dlxd_container_of(client->publishers.next, struct dlxd_publisher,
                                                    by_client));
        else if (!dlxd_list_empty(&client->subscriptions))
            (void)dlxd_subscription_end_some(
                dlxd_container_of(client->subscriptions.next, struct dlxd_subscription, by_client));
        else
            dlxd_observer_free(
                dlxd_container_of(client->observers.next, struct dlxd_observer, by_client));
        if (dlxd_slice_is_over(&client->broker->users))
            break;
    }
    return owns_something(client);
}

void dlxd_client_free(struct dlxd_client *client)
{
    if (!client)
        return;
    dlxd_client_doom(client);
    while (dlxd_client_end_some(client))
        ;
    dlxd_client_forget_replies(client);
    dlxd_task_stop(&client->task);
    dlxd_list_remove(&client->node);
    dlxd_idmap_remove(&client->broker->registry.clients, &client->by_id);
    dlxd_watch_free(client->watch);
    dlxd_watch_free(client->pid_watch);
    dlxd_charge_deinit(&client->connection_charge);
    if (client->outbox)
        dlxd_outbox_close(client->outbox, client->user);
    else
        dlxd_workers_close_socket(client->broker->workers, client->user, client->fd);
    if (client->holder) {
        dlxd_former_disconnected(client->holder);
        dlxd_holder_disconnected(client->holder);
    } else {
        dlx__close(client->pidfd);
    }
    dlxd_user_unref(client->user);
    dlxd_principal_unref(client->principal);
    free(client->refuse_text);
    free(client);
}

void dlxd_client_greet(struct dlxd_client *client, const char *name, uint32_t max_links)
{
    dlxd_list_remove(&client->greeting);
    dlxd_client_set_state(client, DLXD_CLIENT_OPEN);
    client->max_links = max_links;
    size_t n = 0;
    for (const unsigned char *c = (const unsigned char *)name; *c && n < sizeof client->name - 1;
         c++)
        client->name[n++] = (*c >= 0x20 && *c < 0x7f) ? (char)*c : '?';
    if (n > 0) {
        client->name[n] = '\0';
        (void)snprintf(client->principal->name, sizeof client->principal->name, "%s", client->name);
    }
    dlxd_log_client(dlxd_principal_number(client->principal), DLXD_LOG_INFO,
                    "%s (pid %d, uid %u) is here", client->name, (int)client->pid,
                    (unsigned)client->principal->uid);
}

void dlxd_client_review(struct dlxd_client *client)
{
    client->review = (struct dlxd_review){.state = DLXD_REVIEW_PUBLISHERS};
    client->request.offers.is_to_review = true;
    dlx_for_each (it, &client->observers)
        dlxd_observer_restart(dlxd_container_of(it, struct dlxd_observer, by_client));
    dlxd_task_start(&client->task, client->user);
}

/* ---- requests ------------------------------------------------------------------------------ */

void dlxd_request_init(struct dlxd_request *request)
{
    *request = (struct dlxd_request){.fd = -1};
}

int dlxd_request_begin(struct dlxd_client *client, uint32_t serial,
                       int (*step)(struct dlxd_client *client))
{
    client->request.step = step;
    client->request.serial = serial;
    return dlxd_request_continue(client);
}

int dlxd_request_continue(struct dlxd_client *client)
{
    int r = client->request.step(client);
    if (r != 1)
        dlxd_request_end(client);
    return r;
}

void dlxd_request_end(struct dlxd_client *client)
{
    dlxd_offers_deinit(&client->request.offers);
    dlx__close(client->request.fd);
    dlxd_request_init(&client->request);
}

void dlxd_request_fail(struct dlxd_client *client, uint32_t serial, int code)
{
    if (serial != 0)
        dlxd_client_send_error(client, serial, code,
                               *dlx__error_message() ? dlx__error_message()
                                                     : dlx__error_text(code));
}

void dlxd_request_resume(struct dlxd_client *client, uint32_t serial, int r)
{
    if (r < 0)
        dlxd_request_fail(client, serial, r);
    dlxd_client_rewatch(client);
    dlxd_task_start(&client->task, client->user);
}

/* ---- the review of what it has ------------------------------------------------------------- */

static int check(const struct dlxd_client *client, enum dlxd_verb verb, const char *topic)
{
    return dlxd_policy_check(&client->broker->policy, client->principal, verb, topic);
}

static struct dlxd_publisher *publisher_of(struct dlxd_list *by_client)
{
    return dlxd_container_of(by_client, struct dlxd_publisher, by_client);
}

struct dlxd_client *dlxd_client_next(struct dlxd_broker *broker, uint64_t last)
{
    struct dlxd_list *clients = &broker->clients, *it = clients->next;
    struct dlxd_idmap_node *node = dlxd_idmap_find(&broker->registry.clients, last);
    if (node)
        it = dlxd_container_of(node, struct dlxd_client, by_id)->node.next;
    while (it != clients && dlxd_client_id(dlxd_container_of(it, struct dlxd_client, node)) <= last)
        it = it->next;
    return it == clients ? NULL : dlxd_container_of(it, struct dlxd_client, node);
}

struct dlxd_list *dlxd_client_next_publisher(struct dlxd_client *client, uint64_t last)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&client->broker->registry.publishers, last);
    struct dlxd_publisher *publisher =
        node ? dlxd_container_of(node, struct dlxd_publisher, by_id) : NULL;
    if (publisher && publisher->client == client)
        return publisher->by_client.next;
    struct dlxd_list *it = client->publishers.next;
    while (it != &client->publishers && dlxd_publisher_id(publisher_of(it)) <= last)
        it = it->next;
    return it;
}

static int review_publisher(struct dlxd_client *client)
{
    struct dlxd_review *review = &client->review;
    struct dlxd_list *it = dlxd_client_next_publisher(client, review->object);
    if (it == &client->publishers) {
        *review = (struct dlxd_review){.state = DLXD_REVIEW_SUBSCRIPTIONS};
        return 0;
    }
    review->object = dlxd_publisher_id(publisher_of(it));
    return check(client, DLXD_MAY_PUBLISH, publisher_of(it)->topic_name);
}

static struct dlxd_subscription *subscription_of(struct dlxd_list *by_client)
{
    return dlxd_container_of(by_client, struct dlxd_subscription, by_client);
}

static struct dlxd_link *review_link_of(struct dlxd_list *by_subscription)
{
    return dlxd_container_of(by_subscription, struct dlxd_link, by_subscription);
}

/* The subscription that was checked last; NULL: it has ended, or there is none. */
static struct dlxd_subscription *find_subscription(const struct dlxd_client *client, uint64_t id)
{
    struct dlxd_idmap_node *node = dlxd_idmap_find(&client->broker->registry.subscriptions, id);
    struct dlxd_subscription *subscription =
        node ? dlxd_container_of(node, struct dlxd_subscription, by_id) : NULL;
    return subscription && subscription->client == client ? subscription : NULL;
}

/* Returns the first link after the one that was checked last; NULL: there is none. */
static const struct dlxd_link *review_next_link(struct dlxd_subscription *subscription,
                                                uint64_t last)
{
    struct dlxd_list *it = subscription->links.next;
    struct dlxd_idmap_node *node = dlxd_idmap_find(&subscription->broker->registry.links, last);
    struct dlxd_link *link = node ? dlxd_container_of(node, struct dlxd_link, by_id) : NULL;
    if (link && link->subscription == subscription)
        it = link->by_subscription.next;
    while (it != &subscription->links && dlxd_link_id(review_link_of(it)) <= last)
        it = it->next;
    return it == &subscription->links ? NULL : review_link_of(it);
}

static struct dlxd_list *next_subscription(struct dlxd_client *client,
                                           struct dlxd_subscription *last, uint64_t last_id)
{
    if (last)
        return last->by_client.next;
    struct dlxd_list *it = client->subscriptions.next;
    while (it != &client->subscriptions && dlxd_subscription_id(subscription_of(it)) <= last_id)
        it = it->next;
    return it;
}

static int review_link(const struct dlxd_client *client, const struct dlxd_link *link)
{
    if (!link->publisher)
        return 0;
    int r = check(client, DLXD_MAY_SUBSCRIBE, link->publisher->topic_name);
    return r < 0 ? r : dlxd_offer_fits(link->subscription, link->publisher);
}

/* The next link of the subscription, or else the next subscription. A pattern allows nothing by
 * itself. */
static int review_subscription(struct dlxd_client *client)
{
    struct dlxd_review *review = &client->review;
    struct dlxd_subscription *last = find_subscription(client, review->object);
    const struct dlxd_link *link = last ? review_next_link(last, review->link) : NULL;
    if (link) {
        review->link = dlxd_link_id(link);
        return review_link(client, link);
    }
    struct dlxd_list *it = next_subscription(client, last, review->object);
    if (it == &client->subscriptions) {
        review->state = DLXD_REVIEW_NONE;
        return 0;
    }
    const struct dlxd_subscription *subscription = subscription_of(it);
    review->object = dlxd_subscription_id(subscription);
    review->link = 0;
    return dlx__is_pattern(subscription->topic_name)
               ? 0
               : check(client, DLXD_MAY_SUBSCRIBE, subscription->topic_name);
}

void dlxd_review_step(struct dlxd_client *client)
{
    const struct dlxd_policy *policy = &client->broker->policy;
    struct dlxd_review *review = &client->review;
    bool begins = review->state == DLXD_REVIEW_PUBLISHERS && review->object == 0;
    int r = client->refuse_code == 0 && begins ? dlxd_policy_admit(policy, client->principal) : 0;
    if (client->refuse_code < 0)
        review->state = DLXD_REVIEW_NONE;
    while (r == 0 && review->state != DLXD_REVIEW_NONE) {
        r = review->state == DLXD_REVIEW_PUBLISHERS ? review_publisher(client)
                                                    : review_subscription(client);
        if (dlxd_slice_is_over(&client->broker->users))
            break;
    }
    if (r == 0)
        return;
    review->state = DLXD_REVIEW_NONE;
    dlxd_client_disconnect(client, r, "the rules have changed: %s", dlx__error_message());
}
