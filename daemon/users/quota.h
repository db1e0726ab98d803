/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_QUOTA_H
#define DLXD_QUOTA_H

/* How much a user may have: a class of limits for the users of certain sockets, set by the
 * administrator (dlpackd.conf(5)), or the default class. user.h charges against them. No I/O
 * here. */

#include "common/amount.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dlxd_resource {
    DLXD_BYTES,          /* shared memory */
    DLXD_RETAINED_BYTES, /* of these, what stays after the publisher has gone: publisher_state.h */
    DLXD_STORE_ENTRIES,  /* descriptors that the service manager stores: store_queue.h */
    DLXD_CONNECTIONS,
    DLXD_REQUESTS, /* per second on control sockets; requests above the limit wait: pace.h */
    DLXD_OBJECTS,  /* publishers and subscriptions */
    DLXD_LINKS,
    DLXD_PATTERNS,      /* subscriptions to patterns: each is checked for every new publisher */
    DLXD_PENDING_JOINS, /* links not yet delivered to their publishers: pending_join.h */
    DLXD_FAILED,        /* failed links whose subscribers have yet to be told */
    DLXD_GPU_BYTES,     /* GPU memory that the keeper made: daemon/gpu/origin.h */
    DLXD_GPU_CALLS,     /* calls that wait for the GPU keeper: daemon/gpu/keeper.h */
    DLXD_IN_FLIGHT,     /* descriptors that were sent and not yet received: outbox.h */
    /* Descriptors that the daemon holds for the user, limited to a share (user.h). Charges of other
     * resources include the descriptors of their objects. */
    DLXD_DESCRIPTORS,
    DLXD_N_RESOURCES,
};

/* No limit except the shares of user.h. */
#define DLXD_UNLIMITED UINT64_MAX

/* The name of the class of users without another class. */
#define DLXD_QUOTA_DEFAULT "default"

struct dlxd_quota {
    char *name;
    char *place;     /* where it was configured: "FILE:LINE" */
    uint32_t is_set; /* bits of resources; the others have the default class's limits */
    uint64_t max[DLXD_N_RESOURCES];
    char **sockets; /* names of the sockets whose users have this class */
    size_t n_sockets;
};

/* All zero: there are none. */
struct dlxd_quotas {
    struct dlxd_quota *items;
    size_t n;
    const char *borrow_file; /* the configuration, where classes can be set; NULL: none */
};

/* The built-in limits: half of `memory_bytes`, and constants. */
void dlxd_quota_defaults(uint64_t max[DLXD_N_RESOURCES], uint64_t memory_bytes);

/* Adds an empty class, which owns its strings. Returns NULL if out of memory. */
struct dlxd_quota *dlxd_quotas_add(struct dlxd_quotas *quotas, const char *name);
/* Returns 0 or DLX_E_NO_MEMORY. */
int dlxd_quota_add_socket(struct dlxd_quota *quota, const char *socket);
/* Returns NULL if there is none. */
struct dlxd_quota *dlxd_quotas_find(const struct dlxd_quotas *quotas, const char *name);
/* The class of a socket; NULL: the default class. */
const struct dlxd_quota *dlxd_quotas_of_socket(const struct dlxd_quotas *quotas,
                                               const char *socket);
/* Sets the limits that were not configured: those of the class "default", or of `defaults`. */
void dlxd_quotas_complete(struct dlxd_quotas *quotas, const uint64_t defaults[DLXD_N_RESOURCES]);
void dlxd_quotas_deinit(struct dlxd_quotas *quotas);

/* The key in the configuration: "bytes", "connections". */
const char *dlxd_quota_key(enum dlxd_resource resource);
/* Is it an amount of memory? */
static inline bool dlxd_quota_is_memory(enum dlxd_resource resource)
{
    return resource == DLXD_BYTES || resource == DLXD_RETAINED_BYTES || resource == DLXD_GPU_BYTES;
}
/* For errors: "2.0 GiB" for bytes, "17" for counts. Returns `text`. */
#define DLXD_AMOUNT_SIZE DLX_AMOUNT_SIZE
const char *dlxd_quota_amount(enum dlxd_resource resource, uint64_t amount,
                              char text[DLXD_AMOUNT_SIZE]);

#endif
