/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_MEMBERSHIP_H
#define DLXD_MEMBERSHIP_H

/*
 * Membership pages: a cache line for each publisher, written by the daemon and read by the
 * publishers of one user. A user gets pages as needed; an empty page is freed.
 *
 * The pages are sealed regions, so the daemon's mapping is the only writable one. They end with the
 * daemon: the next daemon makes new ones for publishers that resume.
 */

#include "daemon/users/user.h"

struct dlx_memory;
struct dlxd_membership_page;

/* All zero: no line. */
struct dlxd_membership_line {
    struct dlxd_membership_page *page;
    uint32_t index; /* in the page */
};

/* Gets a line without joins. Its daemon_tid is set until dlxd_membership_line_deinit(), which the
 * same thread must call, or until the thread ends. Returns 0, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT,
 * DLX_E_SYSTEM. */
int dlxd_membership_line_init(struct dlxd_membership_line *line, struct dlxd_user *user,
                              const struct dlx_memory *memory);
void dlxd_membership_line_deinit(struct dlxd_membership_line *line);

/* Duplicates the read-only fd of the page for the publisher. */
int dlxd_membership_dup_fd(const struct dlxd_membership_line *line, int *ret_ro_fd);
uint64_t dlxd_membership_size(void);

/* A link was given to the publisher: its LinkAdded packet is in the link socket or will be. Accepts
 * no line. */
void dlxd_membership_joined(const struct dlxd_membership_line *line);
/* The packet will not be sent: the subscriber has left and holds nothing. */
void dlxd_membership_withdrawn(const struct dlxd_membership_line *line);
/* A link ended. */
void dlxd_membership_left(const struct dlxd_membership_line *line);

#endif
