/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_SUBSCRIPTION_H
#define DLXD_SUBSCRIPTION_H

/* A subscription: its socket, its links, and the credit for packets with fds. */

#include "common/topic.h"
#include "daemon/base/idmap.h"
#include "daemon/base/list.h"
#include "daemon/users/user.h"

/* Packets with fds that may be on their way on one subscription socket, beside LinkOpen of links
 * that were spares. */
#define DLXD_CREDIT 4U
/* Of a reliable one: its publishers copy what it was not sent when the daemon ends. */
#define DLXD_CREDIT_RELIABLE 16U

struct dlxd_broker;
struct dlxd_client;
struct dlxd_link;
struct dlxd_offers;
struct dlxd_outbox;
struct dlxd_publisher;
struct dlxd_topic;
struct dlxd_watch;

struct dlxd_subscription_config {
    uint32_t mode; /* 0 all, 1 latest */
    uint32_t history;
    uint32_t max_held;
    uint32_t n_spares; /* links for publishers that come while the subscriber makes no call */
    bool reliable;
};

/*
 *   OPENING --> OPEN <--> FULL        any of them --> ENDING --> (freed)
 *                 ^
 *                 +-----> STUCK
 */
enum dlxd_subscription_state {
    DLXD_SUBSCRIPTION_OPENING, /* its Subscribe is not answered yet: nothing is sent */
    DLXD_SUBSCRIPTION_OPEN,
    DLXD_SUBSCRIPTION_FULL,   /* nothing is sent until its socket is writable */
    DLXD_SUBSCRIPTION_STUCK,  /* nothing is sent for a while: in broker->stuck */
    DLXD_SUBSCRIPTION_ENDING, /* its links end, part by part */
};

struct dlxd_subscription {
    struct dlxd_idmap_node by_id;
    struct dlxd_list by_topic; /* or in registry->patterns */
    struct dlxd_list by_client;
    struct dlxd_list links;   /* in the order of their ids */
    uint32_t n_spares;        /* of them */
    struct dlxd_list pending; /* links with a step to take: what needs no credit comes first */
    struct dlxd_list stuck;
    struct dlxd_task task; /* sends, reads, and ends links */
    struct dlxd_broker *broker;
    struct dlxd_client *client;
    struct dlxd_topic *topic; /* NULL: a pattern */
    struct dlxd_subscription_config config;
    char topic_name[DLX_TOPIC_SIZE_MAX + 1];

    struct dlxd_outbox *sock; /* the daemon's end */
    struct dlxd_watch *watch;
    enum dlxd_subscription_state state;
    enum dlxd_input input;
    struct dlxd_offers *offers; /* its Subscribe is being answered; NULL: it was */
    bool begun;                 /* something was sent: see delivery.c */
    uint64_t last_offer;        /* link that was promised in the answer to its Subscribe */
    uint32_t n_failed;          /* links */
    struct dlxd_link *failed;   /* that others are merged into; NULL: none yet */
    uint64_t since;             /* announcements before it: see registry.h */
    uint64_t waits;       /* link that was tried first since something happened: see delivery.c */
    uint32_t n_fds_sent;  /* packets with fds, modulo 2^32 */
    uint32_t n_fds_acked; /* likewise */

    struct dlxd_charge object_charge;
    struct dlxd_charge pattern_charge;
};

/* Returns 0, DLX_E_LIMIT, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM. `ret_fd` is the subscriber's
 * end and the caller's. */
int dlxd_subscription_new(struct dlxd_subscription **ret, struct dlxd_client *client,
                          const char *topic, const struct dlxd_subscription_config *config,
                          int *ret_fd);
/* Ends all its links. NULL is fine. */
void dlxd_subscription_free(struct dlxd_subscription *subscription);
/* End at most `*n` of its links, and count them down; with the last of them it is freed, which counts as one more. Was it? */
bool dlxd_subscription_end_some(struct dlxd_subscription *subscription, uint32_t *n);
/* Its task ends it. */
void dlxd_subscription_doom(struct dlxd_subscription *subscription);

/* The subscription of this client with this id, or NULL with DLX_E_NOT_FOUND's text set. */
struct dlxd_subscription *dlxd_subscription_find(struct dlxd_client *client, uint64_t id);

/* Packets with fds that may be sent now. */
uint32_t dlxd_subscription_credit(const struct dlxd_subscription *subscription);
/* Its task, which has read it, goes on to send. Returns 0, or DLX_E_PROTOCOL when more is
 * acknowledged than was sent. */
int dlxd_subscription_ack(struct dlxd_subscription *subscription, uint32_t n);
/* Its Subscribe is answered. */
void dlxd_subscription_open(struct dlxd_subscription *subscription);
/* It may have something to send. */
void dlxd_subscription_mark(struct dlxd_subscription *subscription);

static inline bool dlxd_subscription_is_doomed(const struct dlxd_subscription *subscription)
{
    return subscription->state == DLXD_SUBSCRIPTION_ENDING;
}
/* Its state or `input` has changed. */
void dlxd_subscription_rewatch(struct dlxd_subscription *subscription);

static inline uint64_t dlxd_subscription_id(const struct dlxd_subscription *subscription)
{
    return subscription->by_id.id;
}

#endif
