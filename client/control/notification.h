/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_NOTIFICATION_H
#define DLX_CLIENT_NOTIFICATION_H

/* Notifications: packets of the link socket and of the subscription socket. */

#include "common/error.h"
#include <dlx/dlx.h>
#include <stdbool.h>
#include <stdint.h>

enum dlx_notification_kind {
    DLX_NOTIFICATION_LINK_ADDED, /* [page, bell, pidfd] */
    DLX_NOTIFICATION_LINK_CUT,
    DLX_NOTIFICATION_LINK_OFFER, /* [page] */
    /* [control, bell]; of a worker of a group: [control, bell, claims page, the same page to ask
     * for locks, bell of the group] */
    DLX_NOTIFICATION_LINK_OPEN,
    DLX_NOTIFICATION_ARENA_ADDED, /* [arena] */
    DLX_NOTIFICATION_ARENA_DROPPED,
    DLX_NOTIFICATION_PUBLISHER_GONE,
    DLX_NOTIFICATION_LINK_FAILED,
    DLX_NOTIFICATION_SPARE_SEALED,
};

/* A packet, copied out of the wire's structs. Owns `fds`. */
struct dlx_notification {
    enum dlx_notification_kind kind;
    uint64_t link;
    uint64_t publisher; /* 0: the offer of a spare */
    uint64_t client;
    uint64_t size; /* of the page, control block or arena */
    uint32_t pid;
    uint32_t link_index;
    uint32_t max_held;       /* hold words; of LinkOpen: what the publisher allows, 0: no bound */
    uint64_t max_held_bytes; /* what the publisher allows; 0: no bound */
    uint32_t arena;
    uint32_t n_entries;
    uint32_t history;
    uint32_t retain;
    uint32_t depth;        /* 0: a daemon of 2.8 does not say so */
    int64_t retain_for_ns; /* as in struct dlx_publisher_args; likewise 0 */
    uint32_t n_arenas;
    /* The last message before the control block; of a failed link: the publisher's newest
     * message. */
    uint64_t base;
    uint64_t resumes; /* the id of the publisher with its first daemon, or 0 */
    /* Of a failed link: messages missed by a subscription that does not know the publisher. */
    uint64_t missed;
    uint64_t reader;  /* the same for all links of a subscription */
    uint32_t on_full; /* enum dlx_on_full: DLX_ON_FULL_BLOCK, DLX_ON_FULL_DROP */
    int32_t code;
    uint32_t group; /* of an added link: its group, or 0. `text` has the name of the group. */
    uint32_t owner; /* of an open link: number of the worker in its group, or 0 */
    uint32_t declared_group;
    uint64_t claims_size; /* likewise: of the claims page */
    bool reliable;
    bool latest;
    bool early;
    bool former; /* of an offer: its publisher may announce itself again */
    bool from_start;
    bool same_user;                 /* the publisher's and ours; a daemon of 2.7 does not say so */
    char text[DLX_ERROR_TEXT_SIZE]; /* topic of a publisher, name of a group, reason */
    char topic[DLX_TOPIC_MAX + 1];  /* of the publisher of a failed link; "": not told */
    size_t n_fds;
    int fds[5];
};

/* NULL is fine. */
void dlx__notification_deinit(struct dlx_notification *notification);

/*
 * Read one packet of a link or subscription socket, without waiting. Returns 0; DLX_E_EMPTY,
 * DLX_E_DISCONNECTED, DLX_E_PROTOCOL, DLX_E_FD_LIMIT, DLX_E_NO_MEMORY, DLX_E_SYSTEM.
 */
int dlx__notification_read(int borrow_sock, struct dlx_notification *ret);
/* The same, and the packet stays in the socket: dlx__notification_done() drops it. */
int dlx__notification_look(int borrow_sock, struct dlx_notification *ret);
/* Returns false if the packet is still there. */
bool dlx__notification_done(int borrow_sock);

/* Answers on the subscription socket, without waiting: 0, DLX_E_FULL, DLX_E_DISCONNECTED. */
int dlx__notification_link_ready(int borrow_sock, uint64_t link, uint64_t reader);
int dlx__notification_link_close(int borrow_sock, uint64_t link);
int dlx__notification_ack(int borrow_sock, uint32_t n);

#endif
