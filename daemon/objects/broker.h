/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_BROKER_H
#define DLXD_BROKER_H

/*
 * The state of the daemon without the listening sockets, which server.h has.
 *
 * All work is done by tasks (work.h). No handler frees a client or a subscription: its own task
 * does so, when no pointer to it is on the stack.
 */

#include "daemon/users/policy.h"
#include "daemon/objects/lack.h"
#include "daemon/objects/registry.h"
#include "daemon/users/user.h"

struct dlx_memory;
struct uv_loop_s;
struct dlxd_client;
struct dlxd_gpu_keeper;
struct dlxd_store_hooks;
struct dlxd_store;
struct dlxd_subscription;
struct dlxd_watches;
struct dlxd_workers;

/* The functions that read and handle packets: dispatch.h, which is in a higher layer than clients
 * and subscriptions. */
struct dlxd_readers {
    /* Runs one step of the client's task. Returns false if nothing is left to do. */
    bool (*client)(struct dlxd_client *client);
    /* Reads and handles a packet, if there is one. */
    void (*subscription)(struct dlxd_subscription *subscription);
};

struct dlxd_broker {
    struct dlxd_watches *watches;
    struct dlxd_workers *workers;
    struct dlxd_users users;
    struct dlxd_registry registry;
    struct dlxd_policy policy;
    const struct dlx_memory *memory;
    const struct dlxd_readers *readers;
    struct dlxd_store *store;                   /* NULL: nothing outlives the daemon */
    const struct dlxd_store_hooks *store_hooks; /* likewise */
    struct dlxd_gpu_keeper *gpu;                /* NULL: there is none */
    const char *socket_path;
    uint64_t start_ns;
    uint64_t last_client;     /* id of the newest client */
    uint64_t longest_turn_ns; /* the longest turn of the loop, in CPU time of its thread */
    bool stopping;            /* clients get no packet any more, except Disconnect */

    struct dlxd_list clients;  /* all clients */
    struct dlxd_list greeting; /* clients that have not said Hello, oldest first */
    size_t n_clients;          /* clients that have said Hello */
    size_t n_greeting;         /* admitted clients that have not said Hello */
    size_t n_refused;          /* clients that will get an error for their Hello */

    struct dlxd_list retained; /* publishers without a client: retained.h */
    struct dlxd_list expiring; /* likewise, by expires_ns */

    /* Regions that are not ready, the least recently checked first: reclaim.h. */
    struct dlxd_list reservations;
    struct dlxd_list stuck; /* subscriptions to be tried again later: delivery.c */
    struct dlxd_lack lack;
    struct dlxd_list slow; /* publishers to be tried again later: pending_join.h */
};

/* The quotas are parts of `ram_bytes`. Deinitialize the broker even if this fails. */
int dlxd_broker_init(struct dlxd_broker *broker, struct uv_loop_s *loop,
                     const struct dlx_memory *memory, const struct dlxd_readers *readers,
                     uint64_t ram_bytes);
/* All clients and the store must be gone; the loop must run once more. */
void dlxd_broker_deinit(struct dlxd_broker *broker);

/* Works until nothing is left to do. */
void dlxd_broker_settle(struct dlxd_broker *broker);
/* May the daemon end? True if it has no client and keeps nothing for later ones. */
bool dlxd_broker_is_idle(const struct dlxd_broker *broker);
/* Lets stuck subscriptions and slow publishers try again. */
void dlxd_broker_unstick(struct dlxd_broker *broker);

#endif
