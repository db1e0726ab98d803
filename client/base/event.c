/* SPDX-License-Identifier: Apache-2.0 */
#include "client/base/event.h"
#include "client/base/args.h"
#include <stdlib.h>
#include <string.h>

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
