/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_BROKER_H
#define DLXD_BROKER_H

/*
 * What the daemon knows, without the listening socket: server.h has that.
 *
 * No handler frees a client or a subscription: it puts it on a list of the doomed, and
 * dlxd_broker_settle() frees them after the handler, when no pointer to them is on the stack.
 */

#include "daemon/policy.h"
#include "daemon/registry.h"
#include "daemon/user.h"

struct dlx_memory;
struct uv_loop_s;
struct dlxd_reaper;
struct dlxd_store;
struct dlxd_watches;

struct dlxd_broker {
    struct dlxd_watches *watches;
    struct dlxd_reaper *reaper;
    struct dlxd_users users;
    struct dlxd_registry registry;
    struct dlxd_policy policy;
    const struct dlx_memory *memory;
    struct dlxd_store *store; /* NULL: nothing outlives the daemon */
    const char *socket_path;
    uint64_t start_ns;
    uint64_t last_client; /* id */
    bool stopping;        /* nobody is told anything any more, but Disconnect */

    struct dlxd_list clients;  /* all of them */
    struct dlxd_list greeting; /* those that have not said Hello, oldest first */
    size_t n_clients;          /* that have said Hello */
    size_t n_greeting;         /* allowed, but have not said Hello */
    size_t n_refused;          /* will get an error for their Hello */

    struct dlxd_list retained; /* publishers: see retained.h */
    struct dlxd_list expiring; /* likewise, by expires_ns */

    struct dlxd_list dirty; /* subscriptions that may have something to send */
    struct dlxd_list hasty; /* clients that are to be read from again in a while */
    struct dlxd_list stuck; /* subscriptions to be tried again in a while: see delivery.c */
    struct dlxd_list slow;  /* publishers, likewise: see waiting.h */
    struct dlxd_list doomed_subscriptions;
    struct dlxd_list doomed_clients;
};

/* `ram_bytes` is what the quotas are a part of. Deinit it also when this fails. */
int dlxd_broker_init(struct dlxd_broker *broker, struct uv_loop_s *loop,
                     const struct dlx_memory *memory, uint64_t ram_bytes);
/* All clients are gone; the loop must run once more. */
void dlxd_broker_deinit(struct dlxd_broker *broker);

/* Send what can be sent, free what is doomed, until nothing is left to do. */
void dlxd_broker_settle(struct dlxd_broker *broker);
/* Only the sending: a handler calls it when its reply must come after the news. Frees nothing. */
void dlxd_broker_deliver(struct dlxd_broker *broker);
/* Would nobody miss the daemon, if it ended now: no client is there, and nothing is kept for later ones? */
bool dlxd_broker_is_idle(const struct dlxd_broker *broker);
/* The stuck ones may try again. */
void dlxd_broker_unstick(struct dlxd_broker *broker);

#endif
