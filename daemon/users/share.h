/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_SHARE_H
#define DLXD_SHARE_H

/*
 * How much of a resource of one user other users have: for example of the links that a process can
 * have, or of the pending joins of a publisher. The owner may have all of it. Another user may have
 * a multiple of what is left, so that something always remains for the next user, however many
 * users take their share. No I/O here.
 */

#include "daemon/base/list.h"
#include <stdint.h>

struct dlxd_user;

/* A single other user may have three quarters; a second one as large a part of the rest. */
#define DLXD_SHARE_OF_LEFT 3U

/* May a user take it who then has `n` if `left` then remain? */
static inline bool dlxd_share_is_fair(uint64_t n, uint64_t left)
{
    return n / DLXD_SHARE_OF_LEFT + (n % DLXD_SHARE_OF_LEFT != 0) <= left;
}

/* What one user has, in the list of the owner. */
struct dlxd_share {
    struct dlxd_list node;
    struct dlxd_user *user;
    uint32_t n;
};

/* Returns 0 if this user has nothing. */
uint32_t dlxd_share_of(const struct dlxd_list *shares, const struct dlxd_user *user);
/* Takes one more. Returns NULL if out of memory, with the thread's message set. */
struct dlxd_share *dlxd_share_take(struct dlxd_list *shares, struct dlxd_user *user);
/* Gives one back. Returns NULL; accepts NULL. */
struct dlxd_share *dlxd_share_put(struct dlxd_share *share);

#endif
