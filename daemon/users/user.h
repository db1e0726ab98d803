/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_USER_H
#define DLXD_USER_H

/* What each user uses; a user is a uid on one listening socket. Every object that costs something
 * holds a charge on the user who pays for it, and the charge ends with the object. No I/O here. */

#include "daemon/users/drains.h"
#include "daemon/users/pace.h"
#include "daemon/users/principal.h"
#include "daemon/users/quota.h"
#include "daemon/users/work.h"
#include <sys/types.h>
#include "common/util.h"

/* A user may have this many times the descriptors that are left. So some are left for the next
 * user, however many users take their share, and a single user may have 31 of 32. */
#define DLXD_DESCRIPTORS_SHARE 31U
/* Likewise for the bytes that all users together may have: a single user may have two thirds of
 * them. */
#define DLXD_BYTES_SHARE 2U
/* Likewise for descriptors in flight. A client that reads needs a few for a moment. */
#define DLXD_IN_FLIGHT_SHARE 3U
/* Likewise for descriptors that the service manager stores: a user may have half of what others
 * leave. */
#define DLXD_STORE_SHARE 1U
/* A private daemon serves only its own user, which may have all of them. */
#define DLXD_SHARE_ALL UINT32_MAX

struct dlxd_users {
    struct dlxd_list users;
    struct dlxd_list working;                /* users with tasks, the next one first: work.h */
    uint64_t turn;                           /* of the loop: its number */
    uint64_t slice_end_ns;                   /* of the user that works: work.h */
    struct dlxd_list deferred_users;         /* users with tasks that wait for their pace */
    uint64_t max[DLXD_N_RESOURCES];          /* limits of the default class */
    const struct dlxd_quotas *borrow_quotas; /* other classes; NULL: none */
    uint64_t all_bytes;                      /* used by all users together */
    uint64_t all_bytes_max;
    uint64_t all_descriptors;               /* likewise */
    uint64_t all_descriptors_max;           /* see dlxd_users_set_descriptors() */
    uint64_t descriptors_of_administrators; /* of these, the last so many */
    uint64_t all_in_flight;                 /* likewise */
    uint64_t all_in_flight_max;             /* the kernel's limit for the daemon's user */
    uint64_t all_stored;                    /* likewise, in the service manager's store */
    uint64_t all_stored_max;
};

struct dlxd_user {
    struct dlxd_list node;
    struct dlxd_users *users;
    size_t n_refs;
    uid_t uid;
    char socket[DLXD_SOCKET_NAME_SIZE];
    const struct dlxd_quota *borrow_quota; /* its class; NULL: the default class */
    uint64_t used[DLXD_N_RESOURCES];
    uint32_t n_greeting;   /* clients that have not said Hello */
    bool is_own;           /* the daemon's own user: see DLXD_SHARE_ALL */
    bool is_administrator; /* may have the last descriptors */
    struct dlxd_pace pace;
    struct dlxd_list tasks;
    struct dlxd_list working;          /* in users->working */
    uint64_t turn;                     /* the last one in which it had a slice */
    struct dlxd_list deferred_tasks;   /* tasks that wait until the user may make another request */
    struct dlxd_list in_deferred;      /* in users->deferred_users */
    struct dlxd_list membership_pages; /* membership.h */
    struct dlxd_drains drains;         /* charged to this user */
    struct dlxd_task end_drains;       /* ends drains whose publishers have left */
    struct dlxd_list flights;          /* charged to this user: outbox.h */
    uint64_t next_look_ns;             /* when they may be checked again */
    /* What former daemons made for this user's clients, and is in no charge: objects/former.h. */
    uint64_t former_bytes;
    uint64_t former_bytes_told;    /* the sum of what they say, also of what others pay */
    struct dlxd_list former_pages; /* the least recently checked first */
    uint64_t former_look_ns;       /* when they may be checked again */
};

/* Holds a reference to the user. All zero: nothing is charged. */
struct dlxd_charge {
    struct dlxd_user *user;
    enum dlxd_resource resource;
    uint64_t amount;
    uint64_t n_descriptors;
};

/* Sets the defaults: half of `shared_bytes` for each user, three quarters for all, no limit of
 * descriptors. */
void dlxd_users_init(struct dlxd_users *users, uint64_t shared_bytes);
/* Sets other limits, and three quarters of `shared_bytes` for all. A user above a limit keeps what
 * it has and gets nothing new. The classes of the previous call are not used any more. */
void dlxd_users_set_quotas(struct dlxd_users *users, const struct dlxd_quotas *borrow_quotas,
                           uint64_t shared_bytes);
/*
 * Sets the limit of descriptors from that of the process. Each descriptor that the daemon holds for
 * a user is charged. Not charged are its own (sockets that it listens on, log, workers), those of
 * at most DLXD_REFUSED_MAX connections that it refuses, and those that a worker is about to close:
 * DLXD_DESCRIPTORS_OWN are left for all of these. The last DLXD_DESCRIPTORS_ADMINISTRATORS are left
 * for administrators, who can connect and remove things whatever other users have. Small limits
 * leave an eighth and a 32nd.
 */
#define DLXD_DESCRIPTORS_OWN            96U
#define DLXD_DESCRIPTORS_ADMINISTRATORS 32U
void dlxd_users_set_descriptors(struct dlxd_users *users, uint64_t process_max);
/* No user may be left. */
void dlxd_users_deinit(struct dlxd_users *users);

/* Returns a reference to the user who pays for this principal. Returns 0 or DLX_E_NO_MEMORY. */
int dlxd_users_get(struct dlxd_users *users, const struct dlxd_principal *principal,
                   struct dlxd_user **ret);
struct dlxd_user *dlxd_user_ref(struct dlxd_user *user);
/* Returns NULL; accepts NULL. */
struct dlxd_user *dlxd_user_unref(struct dlxd_user *user);

/* What all users keep of former daemons. */
uint64_t dlxd_users_former_bytes(const struct dlxd_users *users);

/* The limit of its class, or less if others have left less. DLXD_UNLIMITED: no limit. */
uint64_t dlxd_user_limit(const struct dlxd_user *user, enum dlxd_resource resource);

/* Counts a request of the user. */
void dlxd_user_count_request(struct dlxd_user *user, uint64_t now_ns);
/* When it may make the next request: `now_ns` if now. */
uint64_t dlxd_user_next_request_ns(const struct dlxd_user *user, uint64_t now_ns);

/* The amount in use, with what former daemons made; for requests, the number in the last second. */
uint64_t dlxd_user_used(const struct dlxd_user *user, enum dlxd_resource resource, uint64_t now_ns);
/* May it have so much more? Returns 0, or DLX_E_LIMIT naming the amount, the usage, the limit, and
 * its key in the configuration. */
int dlxd_user_check(const struct dlxd_user *user, enum dlxd_resource resource, uint64_t amount);
/* May a publisher of this user allocate so much, considering also what the user keeps of former
 * daemons? Nothing else considers that: a client that comes back needs a control block and links
 * before it can let go of the former ones. Nor do limits for all users together, since nothing
 * proves what a client says. Returns as dlxd_user_check(). */
int dlxd_user_check_former(const struct dlxd_user *user, uint64_t bytes);
/* Charges the amount if dlxd_user_check() allows it, and returns what that returns. */
int dlxd_charge_init(struct dlxd_charge *charge, struct dlxd_user *user,
                     enum dlxd_resource resource, uint64_t amount);
/* Charges, even beyond the limits, what exists already because a former daemon knew it. */
void dlxd_charge_restore(struct dlxd_charge *charge, struct dlxd_user *user,
                         enum dlxd_resource resource, uint64_t amount);
/* Changes the amount, even beyond the limits. The resource must cost no descriptor. */
void dlxd_charge_set(struct dlxd_charge *charge, uint64_t amount);
/* Makes another user pay, even beyond its limits: it gets nothing new until it has released
 * enough. */
void dlxd_charge_move(struct dlxd_charge *charge, struct dlxd_user *to);
/* Adds one descriptor, even beyond the limits: another charge that had it ends now. */
void dlxd_charge_add_descriptor(struct dlxd_charge *charge);
/* One of its descriptors is closed. */
void dlxd_charge_close_descriptor(struct dlxd_charge *charge);
/* All of its descriptors are closed; the rest stays. Does nothing if nothing is charged. */
void dlxd_charge_close_descriptors(struct dlxd_charge *charge);
/* Gives back what was charged, if anything. */
void dlxd_charge_deinit(struct dlxd_charge *charge);

#endif
