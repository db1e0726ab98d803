/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_QUEUE_H
#define DLX_QUEUE_H

/*
 * Work queues. Included by dlx/dlx.h.
 *
 * The subscriptions with one `group` (struct dlx_subscribe_args) are its workers. Each message of a
 * publisher goes to one of them; subscriptions without a group get every message, as always.
 *
 *     publisher                                   each worker
 *     .groups = (const char *[]){"gpu"}           .group = "gpu"
 *     dlx_publish(p, t, NULL, NULL)               dlx_take(s, DLX_FOREVER, &m)
 *     dlx_publisher_drain(p, DLX_FOREVER)         ... work ..., dlx_message_done(m), unref
 *
 * A worker takes the next message when it is free, also while the publisher computes or is gone.
 * Workers may come, go and die at any time. A message is delivered at least once: until a worker
 * says that it is done. What a worker releases without that is given back, and what a dead worker
 * had is taken by another one, with a higher attempt. So work that cannot be done twice checks
 * dlx_message_attempt(). Messages begin in the order of their publication, also those of several
 * publishers, as far as the worker has heard of them: it looks for new ones once a millisecond, and
 * finds eight at a time. What was given back comes again, after others perhaps. Workers finish
 * messages in any order.
 *
 * Groups that a publisher declares (`groups`) keep messages from the start, whether there is a
 * worker or not. Another group begins with what is published after its first worker has joined, and
 * ends with its last one. A group of a publisher that drops messages gets each at most once.
 *
 * When the daemon was started again, workers that are there go on. A worker that comes later waits
 * for the next call of the publisher, of which only its process can tell the daemon, or for its
 * end: the text of DLX_E_TIMEOUT, `away` of struct dlx_group_info and `dlxctl queue` name it. So a
 * publisher that publishes rarely calls dlx_publisher_wait(p, 0, 0) now and then.
 */

#include <dlx/dlx.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Says that the message is done: no worker gets it again. The message and its tensors stay valid
 * until they are released. Work of a GPU that was only queued is not done yet: see
 * dlx_message_done_at_release(). Any thread.
 *
 * Returns 0, also if it was said before; DLX_E_NOT_FOUND (it is not this worker's any more: it was
 * given back, or its lease ended; another worker may do it again), DLX_E_INVALID (the subscription
 * is in no group), DLX_E_FORKED.
 */
DLX_API int dlx_message_done(struct dlx_message *m);

/**
 * Has the release of the message and its tensors say that it is done, instead of giving it back. A
 * tensor that is used on streams (dlx_tensor_used_on()) is released when they got there: so work
 * may be queued, and the message is done when that is. A worker that dies before has not done it.
 * Any thread.
 *
 * Returns 0; DLX_E_NOT_FOUND (it was given back before), DLX_E_INVALID, DLX_E_FORKED.
 */
DLX_API int dlx_message_done_at_release(struct dlx_message *m);

/**
 * Gives the message back: another worker, or this one, takes it again. The message and its tensors
 * stay valid until they are released. The release of a message that is not done does the same. Any
 * thread.
 *
 * Returns 0; DLX_E_NOT_FOUND (it was done or given back, or its lease ended), DLX_E_INVALID,
 * DLX_E_FORKED.
 */
DLX_API int dlx_message_give_back(struct dlx_message *m);

/**
 * Begins the lease of the message anew. Any thread.
 *
 * Returns 0; DLX_E_NOT_FOUND (it was done or given back, or its lease ended), DLX_E_INVALID,
 * DLX_E_FORKED.
 */
DLX_API int dlx_message_renew(struct dlx_message *m);

/** Returns which delivery of the message this is, 1 for the first; 0 if the subscription is in no
 *  group. Any thread. */
DLX_API uint32_t dlx_message_attempt(const struct dlx_message *m);

/**
 * Waits until every declared group has done, or given up as dead letters, all that was published
 * before this call.
 *
 * Returns 0; DLX_E_TIMEOUT (the text has the oldest message that is not done, its age, and the
 * worker that has it), DLX_E_INTERRUPTED, DLX_E_INVALID (no group was declared), DLX_E_IN_USE,
 * DLX_E_FORKED, DLX_E_SYSTEM.
 */
DLX_API int dlx_publisher_drain(struct dlx_publisher *p, int64_t timeout_ns);

/** One group of a publisher, as the daemon knows it. */
struct dlx_group_info {
    size_t size;
    char topic[DLX_TOPIC_MAX + 1]; /**< of the publisher */
    char name[64];                 /**< of the group */
    uint64_t publisher;            /**< id of the publisher */
    uint32_t group;                /**< number of the group at this publisher */
    uint32_t uid;                  /**< whose processes may be its workers */
    uint32_t n_workers;            /**< subscriptions that are in the group now */
    uint32_t max_attempts;         /**< as in struct dlx_subscribe_args */
    int64_t lease_ns;              /**< likewise */
    bool declared;                 /**< by the publisher: messages are kept without workers, too */
    bool gone;            /**< the publisher is gone, and the daemon keeps what is not done */
    uint64_t waiting;     /**< messages that no worker has */
    uint64_t in_flight;   /**< messages that a worker has */
    uint64_t done;        /**< messages that are done */
    uint64_t redelivered; /**< deliveries of messages after the first one */
    uint64_t dead;        /**< dead letters */
    uint64_t lost;        /**< messages that the publisher dropped before a worker had them */
    uint64_t oldest;      /**< number of the oldest message that is not done; 0: there is none */
    uint64_t oldest_ns;   /**< when it was published, CLOCK_MONOTONIC; 0: it was dropped since */
    char client_name[64]; /**< of the publisher, as in struct dlx_publisher_info */
    uint32_t pid;         /**< likewise */
    /** An earlier daemon knew the publisher, and it has made no call since: no worker joins the
     *  group before it does. */
    bool away;
};

/** One message that a worker has. */
struct dlx_claim_info {
    size_t size;
    char client_name[64];  /**< of the worker */
    uint64_t seq;          /**< number of the message */
    uint64_t published_ns; /**< when it was published, as `oldest_ns` */
    uint64_t link;    /**< id of the worker's link; 0: it is gone, and another one will take it */
    uint32_t pid;     /**< of the worker, as in struct dlx_publisher_info */
    uint32_t uid;     /**< likewise */
    uint32_t attempt; /**< which delivery this is */
};

typedef int (*dlx_group_info_fn)(const struct dlx_group_info *info, void *userdata);
typedef int (*dlx_claim_info_fn)(const struct dlx_claim_info *info, void *userdata);

/** Lists groups, ordered by topic, publisher and number. `topic` may be a pattern. NULL: all
 *  topics. Returns as dlx_list_publishers(); DLX_E_VERSION (the daemon is too old). */
DLX_API int dlx_list_groups(struct dlx_client *c, const char *topic, dlx_group_info_fn fn,
                            void *userdata);

/** Lists what the workers of a group have, ordered by message. Returns as dlx_list_groups();
 *  DLX_E_NOT_FOUND (there is no such group). */
DLX_API int dlx_list_claims(struct dlx_client *c, uint64_t publisher, uint32_t group,
                            dlx_claim_info_fn fn, void *userdata);

/** Drops what declared groups of publishers that are gone have not done. What workers have stays
 *  valid. Returns as dlx_drop_retained(). */
DLX_API int dlx_drop_queue(struct dlx_client *c, const char *topic);

#ifdef __cplusplus
}
#endif

#endif
