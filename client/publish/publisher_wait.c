/* SPDX-License-Identifier: Apache-2.0 */

/* Waits for subscribers, and whom such a wait has seen when its time is over. */

#include "client/control/call.h"
#include "client/control/connection.h"
#include "client/control/wait.h"
#include "client/gpu/gpu.h"
#include "client/publish/publisher.h"
#include "client/publish/publisher_reconnect.h"
#include <stdio.h>
#include <string.h>

/* Whose links the daemon has ended are over. */
static uint32_t count_subscribers(struct dlx_publisher *p)
{
    dlx__publisher_link_find_ends(p);
    return dlx__publisher_link_n_receiving(p);
}

/* ---- whom it has seen ------------------------------------------------------------------------ */

#define WHY_NOT_SIZE 200
/* The minor version since which daemons list links whose subscribers have yet to make a call. */
#define JOINING_SINCE 7U

/* Processes, of which the text names the first ones. */
#define NAMES_MOST 3U
struct names {
    uint32_t n;
    uint32_t pids[NAMES_MOST];
    char text[NAMES_MOST * 80];
};

static void add_name(struct names *names, const char *name, uint32_t pid)
{
    size_t used = strlen(names->text);
    for (uint32_t i = 0; i < DLX_MIN(names->n, NAMES_MOST); i++)
        if (names->pids[i] == pid) /* another subscription of it */
            return;
    if (names->n < NAMES_MOST) {
        names->pids[names->n] = pid;
        (void)snprintf(names->text + used, sizeof names->text - used, "%s%.40s%spid %u%s",
                       used ? ", " : "", name, *name ? " (" : "", pid, *name ? ")" : "");
    }
    names->n++;
}

static void end_names(struct names *names)
{
    size_t used = strlen(names->text);
    if (names->n > NAMES_MOST)
        (void)snprintf(names->text + used, sizeof names->text - used, " and %u more",
                       names->n - NAMES_MOST);
}

struct seen {
    struct dlx_publisher *publisher;
    struct names attached;
    struct names joining;
};

static const struct dlx_publisher_link *wait_find_link(const struct dlx_publisher *p, uint64_t id)
{
    for (uint32_t i = 0; i < dlx__writer_n_links(&p->core); i++) {
        const struct dlx_publisher_link *link =
            dlx__publisher_link_of(dlx__writer_link_at(&p->core, i));
        if (link->id == id && !link->foreign)
            return link;
    }
    return NULL;
}

/* A link that the daemon has. One that only drains is in the list, too: it does not join. */
static int see_link(const struct dlx_link_info *info, void *userdata)
{
    struct seen *seen = userdata;
    const struct dlx_publisher_link *link = wait_find_link(seen->publisher, info->link);
    if (link ? !dlx__publisher_link_receives(link) && !dlx__writer_link_is_over(&link->core)
             : info->joining)
        add_name(&seen->joining, info->client_name, info->pid);
    return 0;
}

/* Links that the publisher has. Those by a former daemon count once they have come to the next. */
static void see_own_links(struct seen *seen)
{
    struct dlx_publisher *p = seen->publisher;
    for (uint32_t i = 0; i < dlx__writer_n_links(&p->core); i++) {
        const struct dlx_publisher_link *link =
            dlx__publisher_link_of(dlx__writer_link_at(&p->core, i));
        const char *name = dlx__peers_name(&p->client->peers, link->peer);
        if (dlx__publisher_link_receives(link))
            add_name(&seen->attached, name, link->peer->pid);
        else if (link->foreign && !dlx__writer_link_is_over(&link->core))
            add_name(&seen->joining, name, link->peer->pid);
    }
}

/* Asks the daemon, which alone knows those that have subscribed and do not count yet. Returns 0;
 * DLX_E_INTERRUPTED. `ret_why_not`: why it is not known whether there are any; "": it is. */
static int see_joining(struct seen *seen, char ret_why_not[WHY_NOT_SIZE])
{
    struct dlx_publisher *p = seen->publisher;
    ret_why_not[0] = '\0';
    if (p->client->interrupt) /* it runs while this call waits for the daemon */
        dlx__turn_disown(&p->turn);
    int r = dlx__call_list_links(p->client, p->id, DLX_RECONNECT_PATIENCE_NS, see_link, seen);
    if (r == DLX_E_NOT_FOUND)
        (void)snprintf(ret_why_not, WHY_NOT_SIZE,
                       "dlpackd's rules let this program not observe it");
    else if (r < 0)
        (void)snprintf(ret_why_not, WHY_NOT_SIZE, "%s", dlx__error_message());
    else if (p->client->minor < JOINING_SINCE)
        (void)snprintf(ret_why_not, WHY_NOT_SIZE, "dlpackd is older than protocol 2.%u",
                       JOINING_SINCE);
    return r == DLX_E_INTERRUPTED ? r : 0;
}

static int wait_fail(struct dlx_publisher *p, uint32_t n, uint32_t n_wanted)
{
    struct seen seen = {.publisher = p};
    char rest[DLX_ERROR_TEXT_SIZE], why_not[WHY_NOT_SIZE];
    see_own_links(&seen);
    int r = see_joining(&seen, why_not);
    if (r < 0)
        return r;
    end_names(&seen.attached);
    end_names(&seen.joining);
    struct dlx_daemon_info info = {.size = sizeof info};
    bool lacks =
        seen.joining.n > 0 && dlx_client_get_daemon_info(p->client, &info) == 0 && *info.lack;
    if (lacks)
        (void)snprintf(rest, sizeof rest,
                       "%.200s subscribed, and dlpackd lacks what their links need: %.200s",
                       seen.joining.text, info.lack);
    else if (seen.joining.n > 0)
        (void)snprintf(rest, sizeof rest,
                       "%.200s subscribed, and must make a call first, or subscribe for more "
                       "publishers (n_publishers, publishers=)",
                       seen.joining.text);
    else if (*why_not)
        (void)snprintf(rest, sizeof rest, "who else has subscribed is not known: %s", why_not);
    else
        (void)snprintf(rest, sizeof rest, "nobody%s subscribes to it at %.200s",
                       n > 0 ? " else" : "", p->client->path);
    return dlx__fail(DLX_E_TIMEOUT, "topic %s has %u of %u subscribers%s%s; %s", p->topic, n,
                     n_wanted, seen.attached.n > 0 ? ": " : "", seen.attached.text, rest);
}

/* ---- waiting ------------------------------------------------------------------------------- */

int dlx__publisher_await(struct dlx_publisher *p, uint32_t n_subscribers, struct dlx_wait *wait)
{
    int r = 0;
    uint32_t n;
    if (count_subscribers(p) >= n_subscribers && !(p->detours & DLX_DETOUR_REFUSED))
        return 0;
    /* A subscription that stores its first cursor rings if a publisher waits. */
    for (;;) {
        dlx__writer_set_blocked(&p->core, true); /* again, as it may have moved */
        dlx__publisher_link_env.pick_up(p);
        n = count_subscribers(p);
        if (p->detours & DLX_DETOUR_REFUSED)
            r = dlx__publisher_fail_refused(p);
        if (r < 0 || n >= n_subscribers)
            break;
        r = dlx__publisher_link_wait(p, wait);
        if (r < 0)
            break;
    }
    dlx__publisher_link_unblock(p);
    if (r != DLX_E_TIMEOUT)
        return r;
    /* A caller that does not wait asks often, and the daemon is not asked each time. */
    if (wait->deadline != 0)
        return wait_fail(p, n, n_subscribers);
    return dlx__fail(r, "topic %s has %u of %u subscribers", p->topic, n, n_subscribers);
}

int dlx_publisher_wait(struct dlx_publisher *p, uint32_t n_subscribers, int64_t timeout_ns)
{
    int r = dlx__publisher_begin(p, "dlx_publisher_wait");
    if (r < 0)
        return r;
    dlx__publisher_look(p, dlx__now_ns()); /* with enough subscribers, no other look is needed */
    dlx__publisher_link_arm_begin(p);
    struct dlx_wait wait = {.deadline = dlx__deadline(timeout_ns)};
    r = dlx__publisher_await(p, n_subscribers, &wait);
    r = dlx__publisher_link_arm_end(p, r);
    if (p->gpu)
        dlx__gpu_publisher.collect(p);
    dlx__publisher_leave(p);
    return r;
}
