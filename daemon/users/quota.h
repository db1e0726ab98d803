/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_QUOTA_H
#define DLXD_QUOTA_H

/*
 * How much a user may have: a class of limits, of those that came in by certain sockets, as the
 * administrator says (dlpackd.conf(5)), or the default one. user.h charges against them. No I/O
 * here.
 */

#include "common/amount.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dlxd_resource {
    DLXD_BYTES,          /* of shared memory */
    DLXD_RETAINED_BYTES, /* of these, what stays when the publisher has gone: retained.h */
    DLXD_STORE_ENTRIES,  /* descriptors that the service manager keeps: store_queue.h */
    DLXD_CONNECTIONS,
    DLXD_REQUESTS, /* on control sockets, in a second: what is above it waits, see pace.h */
    DLXD_OBJECTS,  /* publishers and subscriptions */
    DLXD_LINKS,
    DLXD_PATTERNS,  /* subscriptions to patterns: each is looked at for every new publisher */
    DLXD_WAITING,   /* links that wait for their publishers: see waiting.h */
    DLXD_FAILED,    /* links that failed, and whose subscribers have yet to be told */
    DLXD_GPU_CALLS, /* that wait for the GPU keeper: see daemon/gpu/keeper.h */
    DLXD_IN_FLIGHT, /* descriptors that were sent and not yet received: see outbox.h */
    /* Descriptors that the daemon holds for it: at most a share (share.h). No charge names
     * these: each of the others has some. */
    DLXD_DESCRIPTORS,
    DLXD_N_RESOURCES,
};

/* No limit but the shares of user.h. */
#define DLXD_UNLIMITED UINT64_MAX

/* The name of the class of whoever has no other one. */
#define DLXD_QUOTA_DEFAULT "default"

struct dlxd_quota {
    char *name;
    char *place;     /* where it was read: "FILE:LINE" */
    uint32_t is_set; /* bits of resources; the others are those of the default class */
    uint64_t max[DLXD_N_RESOURCES];
    char **sockets; /* names: who came in by these has this class */
    size_t n_sockets;
};

/* All zero: there are none. */
struct dlxd_quotas {
    struct dlxd_quota *items;
    size_t n;
};

/* Half of these bytes, and what else holds where nobody says anything. */
void dlxd_quota_defaults(uint64_t max[DLXD_N_RESOURCES], uint64_t memory_bytes);

/* An empty one, of which the strings are its own. NULL: out of memory. */
struct dlxd_quota *dlxd_quotas_add(struct dlxd_quotas *quotas, const char *name);
/* Returns 0, DLX_E_NO_MEMORY. */
int dlxd_quota_add_socket(struct dlxd_quota *quota, const char *socket);
/* NULL: there is none. */
struct dlxd_quota *dlxd_quotas_find(const struct dlxd_quotas *quotas, const char *name);
/* That of a socket; NULL: the default one. */
const struct dlxd_quota *dlxd_quotas_of_socket(const struct dlxd_quotas *quotas,
                                               const char *socket);
/* What was not set is as in the class "default", or as in `defaults`. */
void dlxd_quotas_complete(struct dlxd_quotas *quotas, const uint64_t defaults[DLXD_N_RESOURCES]);
void dlxd_quotas_deinit(struct dlxd_quotas *quotas);

/* The key of the configuration: "bytes", "connections". */
const char *dlxd_quota_key(enum dlxd_resource resource);
/* Is it an amount of memory? */
static inline bool dlxd_quota_is_memory(enum dlxd_resource resource)
{
    return resource == DLXD_BYTES || resource == DLXD_RETAINED_BYTES;
}
/* For errors: "2.0 GiB" of bytes, "17" of what is counted. Returns `text`. */
#define DLXD_AMOUNT_SIZE DLX_AMOUNT_SIZE
const char *dlxd_quota_amount(enum dlxd_resource resource, uint64_t amount,
                              char text[DLXD_AMOUNT_SIZE]);

#endif
