/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_MEMBERSHIP_H
#define DLXD_MEMBERSHIP_H

/*
 * Membership pages: a cache line for each publisher, written by the daemon, read by the publishers
 * of one user. A user gets pages as needed; an empty page is given back.
 */

#include "daemon/user.h"

struct dlx_memory;
struct dlxd_membership_page;

/* All zero: no line. */
struct dlxd_membership_line {
    struct dlxd_membership_page *page;
    uint32_t index; /* in the page */
};

/* A line with both counts 0, vouched for until dlxd_membership_line_deinit(), which is called on the same thread, or until
 * that ends. Returns 0, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM. */
int dlxd_membership_line_init(struct dlxd_membership_line *line, struct dlxd_user *user,
                              const struct dlx_memory *memory);
void dlxd_membership_line_deinit(struct dlxd_membership_line *line);

/* A read-only fd of the page, for the publisher. */
int dlxd_membership_reopen(const struct dlxd_membership_line *line, int *ret_ro_fd);
uint64_t dlxd_membership_size(void);

/* A link was given to the publisher: its LinkAdded packet is in the link socket. No line is fine. */
void dlxd_membership_joined(const struct dlxd_membership_line *line);
/* A link ended. */
void dlxd_membership_left(const struct dlxd_membership_line *line);

/* Links ever given to it. */
uint64_t dlxd_membership_joins(const struct dlxd_membership_line *line);

/* Will the publisher see by this line that the daemon has ended? */
bool dlxd_membership_is_vouched(const struct dlxd_membership_line *line);
/* The daemon is about to take packets out of the lobby, or has done so. Nothing may be taken out if the publisher is picking
 * (report.h): to be asked after this. */
void dlxd_membership_set_clearing(const struct dlxd_membership_line *line, bool clearing);

#endif
