/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_RING_GROUP_H
#define DLX_RING_GROUP_H

/*
 * The groups of a ring writer: how far they are, whom a message wakes, and what
 * they find in another control block.
 *
 *     OPEN --- the writer moves, and messages are not done ---> CLOSED
 *      ^                                                          |
 *      +---- no worker is left in the earlier control block, -----+
 *            those have done everything, or the writer ends
 *
 * While a declared group is CLOSED, its workers in the new control block do not take what was
 * carried: workers of the earlier one may. Another group ends there with its workers, and begins
 * anew.
 */

#include "ring/writer_state.h"

/* Called after dlx__writer_init(): groups 1 to n are there, also without workers. Returns 0 or
 * DLX_E_NO_MEMORY. */
int dlx__writer_declare(struct dlx_writer *w, uint32_t n);

/* All messages up to this one are done in the group, as its workers have told by now. */
uint64_t dlx__writer_group_passed(const struct dlx_writer *w, struct dlx_writer_group *group);
/* Rings one sleeping worker of each group for each message that was put since the last call; with
 * `all`, every one. */
void dlx__writer_ring_workers(struct dlx_writer *w, bool all);

/* Makes room for one more in a table of pointers. Returns the table; NULL: there is no memory, and
 * the thread's message says so. */
void *dlx__writer_grow(void *table, uint32_t n, uint32_t *room);

void dlx__writer_groups_deinit(struct dlx_writer *w);

/* The link joins the group of its number, which is made if this is its first worker. Returns 0;
 * DLX_E_NO_MEMORY. */
int dlx__writer_group_join(struct dlx_writer *w, struct dlx_writer_link *link);
/* The link is over, and holds nothing. A group that was not declared ends with its last one. */
void dlx__writer_group_leave(struct dlx_writer *w, struct dlx_writer_link *link);

/* Returns what all groups have done, and opens those that may be. */
uint64_t dlx__writer_look_at_groups(struct dlx_writer *w);

/* The writer has moved to its newest control block. */
void dlx__writer_groups_moved(struct dlx_writer *w);
/* Opens what was carried: to those groups for which it may be, or to all. */
void dlx__writer_open_carried(struct dlx_writer *w, bool all);

/* Rings everyone who sleeps. A fence came before. */
void dlx__writer_ring_all(struct dlx_writer *w);

#endif
