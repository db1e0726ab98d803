/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_SUBSCRIPTION_H
#define DLXD_SUBSCRIPTION_H

/* A subscription: its socket, its links, and the credit for packets with fds. */

#include "common/topic.h"
#include "daemon/base/idmap.h"
#include "daemon/base/list.h"
#include "daemon/users/user.h"

/* The most packets with fds in flight on one subscription socket, not counting LinkOpen of former
 * spare links. */
#define DLXD_CREDIT 4U
/* Of a reliable one: its publishers copy the messages that it was not sent when the daemon ends. */
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
    uint32_t mode; /* 0: all, 1: latest */
    uint32_t history;
    uint32_t max_held;
    /* Links for publishers that come while the subscriber makes no call; offer.c adds to it. */
    uint32_t n_spares;
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
    DLXD_SUBSCRIPTION_ENDING, /* its links end step by step */
};

struct dlxd_subscription {
    struct dlxd_idmap_node by_id;
    struct dlxd_list by_topic; /* or in registry->patterns */
    struct dlxd_list by_client;
    struct dlxd_list links;   /* by id */
    uint32_t n_spares;        /* spare links */
    struct dlxd_list spares;  /* of them, those that a publisher can get: by_publisher */
    struct dlxd_list pending; /* links with a step to take: those that need no credit come first */
    struct dlxd_list stuck;
    uint64_t lack_wait_ns;  /* of this attempt; 0: nothing is lacking (lack.h) */
    uint64_t lack_until_ns; /* while it is stuck for that */
    struct dlxd_task task;  /* sends, reads, and ends links */
    struct dlxd_broker *broker;
    struct dlxd_client *client;
    struct dlxd_topic *topic; /* NULL: a pattern */
    struct dlxd_subscription_config config;
    char topic_name[DLX_TOPIC_SIZE_MAX + 1];

    struct dlxd_outbox *sock; /* the daemon's end */
    struct dlxd_watch *watch;
    enum dlxd_subscription_state state;
    enum dlxd_input input;
    struct dlxd_offers *offers; /* not NULL while its Subscribe is being answered */
    bool begun;                 /* something was sent: delivery.c */
    uint64_t last_offer;        /* the last link that the reply to its Subscribe counted */
    uint32_t n_failed;          /* failed links */
    struct dlxd_link *failed;   /* the failed link into which others are merged; NULL: none yet */
    uint64_t since;             /* announcements before it: registry.h */
    uint64_t waits;             /* the link tried first since the last change: delivery.c */
    uint32_t n_fds_sent;        /* packets with fds, modulo 2^32 */
    uint32_t n_fds_acked;       /* likewise */

    struct dlxd_charge object_charge;
    struct dlxd_charge pattern_charge;
};

/* Returns 0, DLX_E_LIMIT, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM. The caller owns `ret_fd`,
 * the subscriber's end. */
int dlxd_subscription_new(struct dlxd_subscription **ret, struct dlxd_client *client,
                          const char *topic, const struct dlxd_subscription_config *config,
                          int *ret_fd);
/* Ends all its links and frees it. Accepts NULL. */
void dlxd_subscription_free(struct dlxd_subscription *subscription);
/* Ends at most `*n` of its links and counts `*n` down. Frees it after its last link, which counts
 * as one more; returns true if so. */
bool dlxd_subscription_end_some(struct dlxd_subscription *subscription, uint32_t *n);
/* Its task ends it. */
void dlxd_subscription_doom(struct dlxd_subscription *subscription);

/* Returns the client's subscription with this id; or NULL, with the text of DLX_E_NOT_FOUND set. */
struct dlxd_subscription *dlxd_subscription_find(struct dlxd_client *client, uint64_t id);

/* How many packets with fds may be sent now. */
uint32_t dlxd_subscription_credit(const struct dlxd_subscription *subscription);
/* The subscriber has acknowledged `n` packets. Returns 0, or DLX_E_PROTOCOL if that is more than
 * were sent. */
int dlxd_subscription_ack(struct dlxd_subscription *subscription, uint32_t n);
/* Its Subscribe is answered. */
void dlxd_subscription_open(struct dlxd_subscription *subscription);
/* It may have something to send. */
void dlxd_subscription_mark(struct dlxd_subscription *subscription);

static inline bool dlxd_subscription_is_doomed(const struct dlxd_subscription *subscription)
{
    return subscription->state == DLXD_SUBSCRIPTION_ENDING;
}
/* Call it after a change of its state or `input`. */
void dlxd_subscription_rewatch(struct dlxd_subscription *subscription);

static inline uint64_t dlxd_subscription_id(const struct dlxd_subscription *subscription)
{
    return subscription->by_id.id;
}

#endif
