/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_publisher_next_event(), dlx_subscription_next_event(). */

#include "client/event.h"
#include "client/gpu_threads.h"
#include "client/publisher.h"
#include "client/reconnect.h"
#include "client/subscription.h"
#include <string.h>
#include <sys/eventfd.h>

struct dlx_event_node {
    struct dlx_event_node *next;
    enum dlx_event_kind kind;
    uint32_t pid;
    uint64_t link;
    uint64_t publisher;
    char reason[DLX_EVENT_REASON_SIZE];
    char topic[];
};

static void drop_first(struct dlx_events *events)
{
    struct dlx_event_node *node = events->first;
    events->first = node->next;
    events->n--;
    free(node);
}

void dlx__events_deinit(struct dlx_events *events)
{
    while (events->n > 0)
        drop_first(events);
}

void dlx__events_push(struct dlx_events *events, enum dlx_event_kind kind, uint64_t link,
                      uint64_t publisher, uint32_t pid, const char *topic, const char *reason)
{
    size_t size = strlen(topic) + 1;
    struct dlx_event_node *node = malloc(sizeof *node + size);
    if (!node || events->n == DLX_EVENTS_MAX)
        events->missed++;
    if (!node)
        return;
    if (events->n == DLX_EVENTS_MAX)
        drop_first(events);
    *node = (struct dlx_event_node){.kind = kind, .pid = pid, .link = link, .publisher = publisher};
    memcpy(node->topic, topic, size);
    memcpy(node->reason, reason, strlen(reason) + 1);
    if (events->n++ == 0)
        events->first = node;
    else
        events->last->next = node;
    events->last = node;
}

int dlx__events_pop(struct dlx_events *events, struct dlx_event *ret)
{
    if (events->n == 0)
        return dlx__fail_text(DLX_E_EMPTY, "no event is there");
    const struct dlx_event_node *node = events->first;
    struct dlx_event event = {.size = sizeof event,
                              .kind = node->kind,
                              .pid = node->pid,
                              .link = node->link,
                              .publisher = node->publisher,
                              .missed = events->missed};
    memcpy(event.topic, node->topic, strlen(node->topic) + 1);
    memcpy(event.reason, node->reason, sizeof event.reason);
    int r = dlx__args_return(ret, sizeof event, &event, sizeof event);
    if (r == 0) {
        drop_first(events);
        events->missed = 0;
    }
    return r;
}

int dlx_publisher_next_event(struct dlx_publisher *p, struct dlx_event *ret)
{
    int r = dlx__publisher_begin(ret ? p : NULL, "dlx_publisher_next_event");
    if (r < 0)
        return DLX_NAME_NULL(r, "dlx_publisher_next_event", {"ret", ret});
    dlx__publisher_look(p, dlx__now_ns());
    dlx__writer_read_membership(&p->core);
    r = dlx__events_pop(&p->events, ret);
    dlx__publisher_leave(p);
    return r;
}

/* Once for each link, after the event that it is there: more of them would push others out. */
void dlx__subscription_tell(struct dlx_subscription *s, struct dlx_subscriber_link *link)
{
    if (link->unpinned[0] == '\0' || link->told_unpinned || link->state != DLX_SUBSCRIBER_LINK_OPEN)
        return;
    link->told_unpinned = true;
    dlx__events_push(&s->events, DLX_EVENT_UNPINNED, link->id, link->publisher, link->pid,
                     link->topic, link->unpinned);
}

static void tell_late(struct dlx_subscription *s)
{
    struct dlx_gpu_late late;
    if (dlx__gpu_threads_tell_late(s->gpu_threads, &late))
        dlx__events_push(&s->events, DLX_EVENT_LATE, late.link, late.publisher, late.pid,
                         late.topic, dlx_strerror(late.code));
}

int dlx_subscription_next_event(struct dlx_subscription *s, struct dlx_event *ret)
{
    dlx__error_clear();
    if (!ret)
        return dlx__fail(DLX_E_INVALID, "dlx_subscription_next_event: ret is NULL");
    int r = dlx__subscription_begin(s, "dlx_subscription_next_event");
    if (r < 0)
        return r;
    tell_late(s);
    if (s->events.n == 0)
        dlx__subscription_read_notifications(s);
    /* Who polls is to take, as if the notifications were still there. */
    if (s->nudge >= 0 && dlx__subscription_has_unused_notifications(s))
        (void)eventfd_write(s->nudge, 1);
    r = dlx__events_pop(&s->events, ret);
    dlx__subscription_leave(s);
    return r;
}
