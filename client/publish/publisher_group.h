/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_PUBLISHER_GROUP_H
#define DLX_CLIENT_PUBLISHER_GROUP_H

/* Groups of workers, as their publisher sees them: how far each group is, and which one is late. */

#include "client/publish/publisher_link.h"

/* The group that is the furthest behind `to`, a message; NULL: each has done all up to it.
 * `declared`: among those that the publisher has declared. */
struct dlx_writer_group *dlx__publisher_late_group(struct dlx_publisher *p, uint64_t to,
                                                   bool declared);

/* What is the oldest message that the group has not done, how old is it, and which worker has it?
 * In words, for errors. */
#define DLX_LATE_GROUP_SIZE 300
void dlx__publisher_describe_late(struct dlx_publisher *p, struct dlx_writer_group *group,
                                  char ret[DLX_LATE_GROUP_SIZE]);

/* Workers of the group that receive what is published now. */
uint32_t dlx__publisher_n_workers(const struct dlx_writer_group *group);

/* The worker that holds message n; NULL: none. It may have done it, and kept its tensors. */
const struct dlx_publisher_link *dlx__publisher_holder(const struct dlx_writer_group *group,
                                                       uint64_t n);

/* The name and pid of the process of a link: "python3 (pid 5)", or "pid 5". */
#define DLX_WHO_SIZE 96
void dlx__publisher_name_link(const struct dlx_publisher *p, const struct dlx_publisher_link *link,
                              char ret[DLX_WHO_SIZE]);

/* Writes a byte of the metadata of message n, which the group has not done, so that nothing else
 * has its memory. Workers that take it from memory of a daemon that has ended do not see it. */
void dlx__publisher_mark(struct dlx_publisher *p, uint64_t n, uint32_t at, uint8_t value);

#endif
