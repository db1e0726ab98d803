/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_SHARE_H
#define DLXD_SHARE_H

/*
 * How much of something of one user the others have: of the links that a process can bear, of
 * the links that may wait for a publisher. Its owner may have all. Another user may have so many
 * times what nobody has, so that there is always some left for the next one, however many others
 * take what they may. No I/O here.
 */

#include "daemon/base/list.h"
#include <stdint.h>

struct dlxd_user;

/* One other user alone may have three quarters, a second one as much of what is left then. */
#define DLXD_SHARE_OF_LEFT 3U

/* May a user that then has `n` take it, if `left` remain for all? */
static inline bool dlxd_share_is_fair(uint64_t n, uint64_t left)
{
    return n / DLXD_SHARE_OF_LEFT + (n % DLXD_SHARE_OF_LEFT != 0) <= left;
}

/* What one user has, in the list of the one whose it is. */
struct dlxd_share {
    struct dlxd_list node;
    struct dlxd_user *user;
    uint32_t n;
};

/* Returns 0 if this user has nothing. */
uint32_t dlxd_share_of(const struct dlxd_list *shares, const struct dlxd_user *user);
/* One more. NULL: out of memory, and the thread's message says so. */
struct dlxd_share *dlxd_share_take(struct dlxd_list *shares, struct dlxd_user *user);
/* One less. Returns NULL; NULL is fine. */
struct dlxd_share *dlxd_share_put(struct dlxd_share *share);

#endif
