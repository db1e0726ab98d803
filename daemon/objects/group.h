/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_GROUP_H
#define DLXD_GROUP_H

/*
 * Groups of workers: the subscriptions of one user that share the messages of one publisher. What
 * each worker has is in a claims page (ring/layout.h), which the workers alone map. The daemon only
 * makes it, and the bell that wakes them up.
 *
 * A declared group is there with its publisher, has all its messages from the start, and stays
 * without workers. Another one is made with its first link and ends with its last.
 *
 * Whether a worker is alive, its lock of one byte of the claims page says, and nothing else does:
 * the kernel releases it with the worker's last mapping of the page, also while there is no daemon.
 * A worker that is stopped, or was disconnected and lives, keeps what it has.
 */

#include "daemon/objects/objects.h"

struct dlxd_claim;
struct dlxd_claims_report;

/* Declares config.n_groups groups of a NEW publisher. Returns 0; or DLX_E_NO_MEMORY, when some may
 * be declared. */
int dlxd_groups_declare(struct dlxd_publisher *publisher, char *const *names);
/* One that a former daemon knew, whose descriptors are taken. `take_bell_fd` may be -1. Charges it
 * even beyond the limits of its user. Returns 0; or, without a change, DLX_E_PROTOCOL (that is no
 * claims page of the publisher), DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
struct dlxd_group_former {
    uint32_t number;
    const char *name;
    int take_page_fd;
    int take_bell_fd;
};
int dlxd_group_restore(struct dlxd_publisher *publisher, const struct dlxd_group_former *former,
                       struct dlxd_group **ret);
/* Makes the claims page if there is none yet: it is to be kept, or handed over, even beyond the
 * limits of its user. Returns 0, DLX_E_LIMIT, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM. */
int dlxd_group_make_page(struct dlxd_group *group, bool beyond);
/* Has one of them something to do? */
bool dlxd_groups_are_undone(struct dlxd_publisher *publisher);
/* Has the declared group with this name something to do? */
bool dlxd_group_is_kept(struct dlxd_publisher *publisher, const char *name);
/* Of a publisher that has left: what they have not done is not kept any more. Workers that are
 * there go on with it. */
void dlxd_groups_forget(struct dlxd_publisher *publisher);
/* Frees those without links: the publisher is GONE, and no worker joins them any more. */
void dlxd_groups_publisher_gone(struct dlxd_publisher *publisher);
/* Frees all. No link may be left. */
void dlxd_groups_deinit(struct dlxd_publisher *publisher);

/* Returns NULL if there is none; numbers begin with 1. */
const struct dlxd_group *dlxd_group_numbered(struct dlxd_publisher *publisher, uint32_t number);
/* Messages that declared groups have yet to do, of the group that has the most; 0: none, or not
 * known. */
uint64_t dlxd_groups_n_undone(struct dlxd_publisher *publisher);
/* For lists: daemon/memory/claims.h. The publisher is not GONE. */
bool dlxd_group_report(const struct dlxd_group *group, struct dlxd_claims_report *ret);
uint32_t dlxd_group_list_claims(const struct dlxd_group *group, uint64_t after_seq,
                                struct dlxd_claim *ret, uint32_t n_max, bool *ret_more);

/* Groups that were not declared: of one publisher, and of one user of these. They are searched one
 * after the other. */
#define DLXD_GROUPS_MAX         1024U
#define DLXD_GROUPS_OF_USER_MAX 64U

/* May the subscription, which is in a group, have a link to the publisher? Returns 0; DLX_E_VERSION
 * (its library knows no groups), DLX_E_ACCESS (the group belongs to another user), DLX_E_QOS (its
 * workers have another lease or limit of attempts), DLX_E_LIMIT (there are too many groups). */
int dlxd_group_check(const struct dlxd_subscription *subscription,
                     const struct dlxd_publisher *publisher);
/* The link, which has a publisher and for which dlxd_group_check() returned 0, joins its group.
 * Does nothing if its subscription is in none. Returns 0, DLX_E_NO_MEMORY. */
int dlxd_group_join(struct dlxd_link *link);
/*
 * Gives the link, before its publisher is told of it, a number among the workers and a descriptor
 * of the claims page with the lock of that number. Makes the page for the first one. Does nothing
 * if the link has them. Returns 0; DLX_E_FULL (try again: others may have the numbers that were
 * tried), DLX_E_LIMIT, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM.
 */
int dlxd_group_admit(struct dlxd_link *link);
/* Bytes of the claims page of each group of the publisher. */
uint64_t dlxd_group_claims_size(const struct dlxd_publisher *publisher);
/* The link is OPEN. */
static inline void dlxd_group_opened(const struct dlxd_link *link)
{
    if (link->group)
        link->group->n_open++;
}
/* LinkOpen was sent, or the link ends: closes the daemon's copy of that descriptor. */
void dlxd_group_close_claims(struct dlxd_link *link);
/* The link has ended for its publisher, which was told so as far as it can be. Rings the other
 * workers; frees the group if nothing needs it. Does nothing if the link is in none. */
void dlxd_group_leave(struct dlxd_link *link);

/* Raises `leaves` of the publisher, and then wakes the workers of the group with this number, which
 * look for what the one that left had; 0: none. */
void dlxd_group_left(struct dlxd_publisher *publisher, uint32_t group);

#endif
