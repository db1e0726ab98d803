/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_BROKER_H
#define DLXD_BROKER_H

/*
 * What the daemon knows, without the listening socket: server.h has that.
 *
 * What there is to do are tasks (work.h). No handler frees a client or a subscription: its own task does, when no pointer
 * to it is on the stack.
 */

#include "daemon/users/policy.h"
#include "daemon/objects/registry.h"
#include "daemon/users/user.h"

struct dlx_memory;
struct uv_loop_s;
struct dlxd_client;
struct dlxd_gpu_keeper;
struct dlxd_keeper;
struct dlxd_store;
struct dlxd_subscription;
struct dlxd_watches;
struct dlxd_workers;

/* How packets are read and handled: dispatch.h, which is above clients and subscriptions. */
struct dlxd_readers {
    bool (*client)(
        struct dlxd_client *client); /* a step of its task; false: nothing is left to do */
    void (*subscription)(struct dlxd_subscription *subscription); /* a packet, if there is one */
};

struct dlxd_broker {
    struct dlxd_watches *watches;
    struct dlxd_workers *workers;
    struct dlxd_users users;
    struct dlxd_registry registry;
    struct dlxd_policy policy;
    const struct dlx_memory *memory;
    const struct dlxd_readers *readers;
    struct dlxd_store *store;         /* NULL: nothing outlives the daemon */
    const struct dlxd_keeper *keeper; /* likewise */
    struct dlxd_gpu_keeper *gpu;      /* NULL: there is none */
    const char *socket_path;
    uint64_t start_ns;
    uint64_t last_client;     /* id */
    uint64_t longest_turn_ns; /* of the loop, of the thread's CPU time */
    bool stopping;            /* nobody is told anything any more, but Disconnect */

    struct dlxd_list clients;  /* all of them */
    struct dlxd_list greeting; /* those that have not said Hello, oldest first */
    size_t n_clients;          /* that have said Hello */
    size_t n_greeting;         /* allowed, but have not said Hello */
    size_t n_refused;          /* will get an error for their Hello */

    struct dlxd_list retained; /* publishers: see retained.h */
    struct dlxd_list expiring; /* likewise, by expires_ns */

    /* Regions that are not ready, the one looked at the longest ago first: see reclaim.h. */
    struct dlxd_list reservations;
    struct dlxd_list stuck; /* subscriptions to be tried again in a while: see delivery.c */
    struct dlxd_list slow;  /* publishers, likewise: see waiting.h */
};

/* `ram_bytes` is what the quotas are a part of. Deinit it also when this fails. */
int dlxd_broker_init(struct dlxd_broker *broker, struct uv_loop_s *loop,
                     const struct dlx_memory *memory, const struct dlxd_readers *readers,
                     uint64_t ram_bytes);
/* All clients are gone, and the store; the loop must run once more. */
void dlxd_broker_deinit(struct dlxd_broker *broker);

/* Work until nothing is left to do. */
void dlxd_broker_settle(struct dlxd_broker *broker);
/* Would nobody miss the daemon, if it ended now: no client is there, and nothing is kept for later ones? */
bool dlxd_broker_is_idle(const struct dlxd_broker *broker);
/* The stuck ones may try again. */
void dlxd_broker_unstick(struct dlxd_broker *broker);

#endif
