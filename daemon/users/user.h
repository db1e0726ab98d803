/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_USER_H
#define DLXD_USER_H

/*
 * What each user uses: a uid by the listening socket that it came in by. Every object that costs
 * something holds a charge on the user who pays for it; the charge goes with the object. No I/O
 * here.
 */

#include "daemon/users/drains.h"
#include "daemon/users/pace.h"
#include "daemon/users/principal.h"
#include "daemon/users/quota.h"
#include "daemon/users/work.h"
#include <sys/types.h>
#include "common/util.h"

/* A user may have so many times the descriptors that nobody has. So there are some left for the
 * next one, however many others take what they may; and one that is alone may have 31 of 32. */
#define DLXD_DESCRIPTORS_SHARE 31U
/* Likewise of the bytes that all users together may have: one that is alone may have two thirds
 * of them. */
#define DLXD_BYTES_SHARE 2U
/* Likewise of the descriptors that may be on their way. Who reads needs a few for a moment. */
#define DLXD_IN_FLIGHT_SHARE 3U
/* Likewise of the descriptors that the service manager keeps: a user may have half of what others
 * leave. */
#define DLXD_STORE_SHARE 1U
/* The daemon's own user is the only one that a private daemon serves: it may have all of those. */
#define DLXD_SHARE_ALL UINT32_MAX

struct dlxd_users {
    struct dlxd_list users;
    struct dlxd_list working;                /* those with tasks, the next one first: see work.h */
    struct dlxd_list pacing;                 /* those with tasks that wait for their pace */
    uint64_t max[DLXD_N_RESOURCES];          /* of one user of the default class */
    const struct dlxd_quotas *quotas_borrow; /* other classes; NULL: there are none */
    uint64_t all_bytes;                      /* of all users together */
    uint64_t all_bytes_max;
    uint64_t all_descriptors;     /* likewise */
    uint64_t all_descriptors_max; /* that the process may have */
    uint64_t all_in_flight;       /* likewise */
    uint64_t all_in_flight_max;   /* that the kernel lets the daemon's user have */
    uint64_t all_stored;          /* likewise, with the service manager */
    uint64_t all_stored_max;
};

struct dlxd_user {
    struct dlxd_list node;
    struct dlxd_users *users;
    size_t n_refs;
    uid_t uid;
    char socket[DLXD_SOCKET_NAME_SIZE];
    const struct dlxd_quota *quota_borrow; /* its class; NULL: the default one */
    uint64_t used[DLXD_N_RESOURCES];
    uint32_t n_greeting; /* clients that have not said Hello */
    bool is_own;         /* the daemon's own: see DLXD_SHARE_ALL */
    struct dlxd_pace pace;
    struct dlxd_list tasks;
    struct dlxd_list working;          /* in users->working */
    struct dlxd_list paced;            /* tasks that wait until it may make another request */
    struct dlxd_list pacing;           /* in users->pacing */
    struct dlxd_list membership_pages; /* see membership.h */
    struct dlxd_drains drains;         /* that it is charged for */
    struct dlxd_task end_drains;       /* ends those whose publishers have left */
    struct dlxd_list flights;          /* that it is charged for: see outbox.h */
    uint64_t next_look_ns;             /* at these */
};

/* Holds a reference on the user. All zero: nothing is charged. */
struct dlxd_charge {
    struct dlxd_user *user;
    enum dlxd_resource resource;
    uint64_t amount;
    uint64_t n_descriptors;
};

/* Defaults: half of `shared_bytes` a user, three quarters for all; any number of descriptors. */
void dlxd_users_init(struct dlxd_users *users, uint64_t shared_bytes);
/* Other limits, and three quarters of these bytes for all: whoever is above one keeps what it has, and gets nothing new. The classes of the call
 * before are not looked at any more. */
void dlxd_users_set_quotas(struct dlxd_users *users, const struct dlxd_quotas *quotas_borrow,
                           uint64_t shared_bytes);
/* No user is left. */
void dlxd_users_deinit(struct dlxd_users *users);

/* Who pays for what this one does, referenced. DLX_E_NO_MEMORY. */
int dlxd_users_get(struct dlxd_users *users, const struct dlxd_principal *principal,
                   struct dlxd_user **ret);
struct dlxd_user *dlxd_user_ref(struct dlxd_user *user);
/* Returns NULL; NULL is fine. */
struct dlxd_user *dlxd_user_unref(struct dlxd_user *user);

/* The limit of its class, or less: as much as it may have together now that others have what they
 * have. DLXD_UNLIMITED: there is none. */
uint64_t dlxd_user_limit(const struct dlxd_user *user, enum dlxd_resource resource);

/* It made a request. */
void dlxd_user_count_request(struct dlxd_user *user, uint64_t now_ns);
/* When it may make the next one: `now_ns` if that is now. */
uint64_t dlxd_user_next_request_ns(const struct dlxd_user *user, uint64_t now_ns);

/* What it uses; of requests, those of the last second. */
uint64_t dlxd_user_used(const struct dlxd_user *user, enum dlxd_resource resource, uint64_t now_ns);
/* May it have so much more? Returns 0, or DLX_E_LIMIT naming what is asked for, what is used, the
 * limit, and its key in the configuration. */
int dlxd_user_check(const struct dlxd_user *user, enum dlxd_resource resource, uint64_t amount);
/* Charges what that allows; returns the same. */
int dlxd_charge_init(struct dlxd_charge *charge, struct dlxd_user *user,
                     enum dlxd_resource resource, uint64_t amount);
/* The same for what is there already, since a former daemon knew it: even beyond the limits. */
void dlxd_charge_restore(struct dlxd_charge *charge, struct dlxd_user *user,
                         enum dlxd_resource resource, uint64_t amount);
/* So much is charged from now on, even beyond the limits, of something that costs no descriptor. */
void dlxd_charge_set(struct dlxd_charge *charge, uint64_t amount);
/* Another user pays from now on, even beyond its limits: it gets nothing new until it has let
 * go. */
void dlxd_charge_move(struct dlxd_charge *charge, struct dlxd_user *to);
/* It has one descriptor more, even beyond the limits: another charge that ends now had it. */
void dlxd_charge_add_descriptor(struct dlxd_charge *charge);
/* Its descriptors are closed; the rest stays. Harmless if nothing is charged. */
void dlxd_charge_close_descriptors(struct dlxd_charge *charge);
/* Gives back what was charged, if anything. */
void dlxd_charge_deinit(struct dlxd_charge *charge);

#endif
