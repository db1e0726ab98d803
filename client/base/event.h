/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_EVENT_H
#define DLX_CLIENT_EVENT_H

/* Peers that came and went, until the program asks: the last DLX_EVENTS_MAX events. */

#include "common/util.h"
#include <dlx/dlx.h>

#define DLX_EVENTS_MAX 64U

struct dlx_events {
    struct dlx_event_node *first;
    struct dlx_event_node *last;
    uint32_t n;
    uint64_t missed; /* since the last one that was handed out */
};

void dlx__events_deinit(struct dlx_events *events);

/* Keep an event. The oldest one is dropped when there are too many, this one when there is no
 * memory. `reason` has less than DLX_EVENT_REASON_SIZE bytes. */
void dlx__events_push(struct dlx_events *events, enum dlx_event_kind kind, uint64_t link,
                      uint64_t publisher, uint32_t pid, const char *topic, const char *reason);

/* Hand the oldest out. Returns 0; DLX_E_EMPTY, DLX_E_INVALID. */
int dlx__events_pop(struct dlx_events *events, struct dlx_event *ret);

#endif
