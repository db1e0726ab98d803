/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/lingering.h"
#include "common/error.h"
#include "daemon/objects/broker.h"
#include "daemon/objects/client.h"
#include "daemon/objects/link.h"
#include "daemon/objects/publisher.h"
#include "daemon/memory/report.h"
#include "daemon/users/share.h"
#include "daemon/objects/subscription.h"
#include <poll.h>

/* So many are looked at at once, for this part of the time. */
#define LOOK_MOST 128U
#define LOOK_PART 16U
/* So many are ended in one step. */
#define ENDS_AT_ONCE 16U

/* ---- lists --------------------------------------------------------------------------------- */

static void enlist(struct dlxd_lingering_node *node, struct dlxd_lingering *lingering,
                   struct dlxd_link *link)
{
    node->link = link;
    node->lingering = lingering;
    dlxd_list_push_back(&lingering->links, &node->node);
    lingering->n++;
}

static void delist(struct dlxd_lingering_node *node)
{
    dlxd_list_remove(&node->node);
    node->lingering->n--;
}

static struct dlxd_link *link_of(struct dlxd_list *node)
{
    return dlxd_container_of(node, struct dlxd_lingering_node, node)->link;
}

/* ---- processes ----------------------------------------------------------------------------- */

struct dlxd_holder *dlxd_holder_new(struct dlxd_client *client, int take_pidfd)
{
    struct dlxd_holder *holder = calloc(1, sizeof *holder);
    if (!holder) {
        (void)dlx__fail(DLX_E_NO_MEMORY, "out of memory for a client");
        return NULL;
    }
    holder->client = client;
    holder->pidfd = take_pidfd;
    dlxd_lingering_init(&holder->lingering);
    return holder;
}

static void free_if_over(struct dlxd_holder *holder)
{
    if (holder->client || holder->lingering.n > 0)
        return;
    dlx__close(holder->pidfd);
    free(holder);
}

void dlxd_holder_disconnected(struct dlxd_holder *holder)
{
    holder->client = NULL;
    free_if_over(holder);
}

/* ---- links --------------------------------------------------------------------------------- */

bool dlxd_lingering_has_left(int page_fd, uint32_t max_held, int pidfd)
{
    struct pollfd process = {.fd = pidfd, .events = POLLIN};
    return dlxd_report_has_left(page_fd, max_held) || poll(&process, 1, 0) == 1;
}

/* Of its publisher's process. */
static void leave_publisher(struct dlxd_link *link)
{
    delist(&link->of_publishers);
    link->publisher->client->n_links--;
    link->share = dlxd_share_put(link->share);
    link->publisher = NULL;
}

static void end(struct dlxd_link *link)
{
    struct dlxd_holder *holder = link->holder;
    struct dlxd_user *user = link->links_charge.user;
    if (link->publisher)
        leave_publisher(link);
    delist(&link->of_holder);
    delist(&link->of_user);
    if (user->lingering.n == 0) /* it may be all that the user has */
        dlxd_task_stop(&user->end_lingering);
    if (holder->client)
        holder->client->n_links--;
    free_if_over(holder);
    dlxd_link_free(link);
}

void dlxd_lingering_look(struct dlxd_lingering *lingering)
{
    uint64_t start = dlx__now_ns();
    if (lingering->n == 0 || start < lingering->look_ns)
        return;
    for (size_t i = DLX_MIN(lingering->n, LOOK_MOST); i > 0; i--) {
        struct dlxd_list *first = lingering->links.next;
        struct dlxd_link *link = link_of(first);
        if (!link->publisher ||
            dlxd_lingering_has_left(link->page_fd, link->max_held, link->holder->pidfd)) {
            end(link);
        } else {
            dlxd_list_remove(first);
            dlxd_list_push_back(&lingering->links, first);
        }
    }
    uint64_t now = dlx__now_ns();
    lingering->look_at = DLX_MAX(2 * lingering->n, DLXD_LINGERING_LOOK_LEAST);
    lingering->look_ns = now + LOOK_PART * (now - start);
}

bool dlxd_lingering_begin(struct dlxd_link *link)
{
    struct dlxd_holder *holder = link->subscription->client->holder;
    struct dlxd_lingering *of_user = &link->links_charge.user->lingering;
    link->max_held = link->subscription->config.max_held;
    if (dlxd_lingering_has_left(link->page_fd, link->max_held, holder->pidfd))
        return false;
    if (of_user->n >= of_user->look_at)
        dlxd_lingering_look(of_user);
    link->holder = holder;
    enlist(&link->of_holder, &holder->lingering, link);
    enlist(&link->of_publishers, &link->publisher->client->lingering, link);
    enlist(&link->of_user, of_user, link);
    return true;
}

/* Those whose publishers have left come first. */
static bool end_some(struct dlxd_task *task)
{
    struct dlxd_user *user = dlxd_container_of(task, struct dlxd_user, end_lingering);
    struct dlxd_list *links = &user->lingering.links;
    for (uint32_t n = ENDS_AT_ONCE; !dlxd_list_empty(links); n--) {
        struct dlxd_link *link = link_of(links->next);
        if (link->publisher)
            return false;
        if (n == 0)
            return true;
        end(link);
    }
    return false;
}

/* Their publisher keeps them no longer. Ending one takes some 14 us, so it is done in the time of
 * the user that is charged for it. */
void dlxd_lingering_publisher_left(struct dlxd_publisher *publisher)
{
    dlx_for_each (it, &publisher->client->lingering.links) {
        struct dlxd_link *link = link_of(it);
        struct dlxd_user *user = link->links_charge.user;
        if (link->publisher != publisher)
            continue;
        leave_publisher(link);
        dlxd_list_remove(&link->of_user.node);
        dlxd_list_push_front(&user->lingering.links, &link->of_user.node);
        if (!dlxd_list_linked(&user->end_lingering.node))
            dlxd_task_init(&user->end_lingering, end_some);
        dlxd_task_start(&user->end_lingering, user);
    }
}

/* ---- all ----------------------------------------------------------------------------------- */

static struct dlxd_user *user_of(struct dlxd_list *node)
{
    return dlxd_container_of(node, struct dlxd_user, node);
}

void dlxd_lingering_look_all(struct dlxd_broker *broker)
{
    dlx_for_each (it, &broker->users.users) {
        struct dlxd_user *user = dlxd_user_ref(user_of(it)); /* it may have nothing else */
        dlxd_lingering_look(&user->lingering);
        dlxd_user_unref(user);
    }
}

size_t dlxd_lingering_n_all(const struct dlxd_broker *broker)
{
    size_t n = 0;
    dlx_for_each (it, &broker->users.users)
        n += user_of(it)->lingering.n;
    return n;
}
