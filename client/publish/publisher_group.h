/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_PUBLISHER_GROUP_H
#define DLX_CLIENT_PUBLISHER_GROUP_H

/* Subscribers, and groups of workers, as their publisher sees them: who is there, how far each
 * group is, and which one is late. In words, for errors. */

#include "client/control/call.h"
#include "client/publish/publisher_link.h"

/* The group that is the furthest behind `to`, a message; NULL: each has done all up to it.
 * `declared`: among those that the publisher has declared. */
struct dlx_writer_group *dlx__publisher_late_group(struct dlx_publisher *p, uint64_t to,
                                                   bool declared);

/* Workers of the group that receive what is published now. */
uint32_t dlx__publisher_n_workers(const struct dlx_writer_group *group);

/* The name and pid of the process of a link: "python3 (pid 5)", or "pid 5". */
#define DLX_WHO_SIZE 96
void dlx__publisher_name_link(const struct dlx_publisher *p, const struct dlx_publisher_link *link,
                              char ret[DLX_WHO_SIZE]);

/* ---- who is there -------------------------------------------------------------------------- */

/* Processes, of which the text names the first ones. */
#define DLX_NAMES_MOST   3U
#define DLX_WHY_NOT_SIZE 200
struct dlx_seen {
    uint32_t n;
    uint32_t pids[DLX_NAMES_MOST];
    char text[DLX_NAMES_MOST * 80];
    char why_not[DLX_WHY_NOT_SIZE]; /* why it is not known whether there are others; "": it is */
    char refusal[DLX_REFUSAL_SIZE]; /* why the last worker without a link has none; "": none */
};

/* `attached`: subscribers that receive what is published from now on. `joining`: those that have to
 * make a call first, of which the daemon knows. Returns 0; DLX_E_INTERRUPTED. */
int dlx__publisher_see(struct dlx_publisher *p, struct dlx_seen *attached,
                       struct dlx_seen *joining);

/* The workers of the group with this number. The daemon is asked, if `asks`, when none is attached:
 * it knows workers that have made no call since the publisher came. They get what a declared group
 * has not done. Returns 0; DLX_E_INTERRUPTED. */
int dlx__publisher_see_workers(struct dlx_publisher *p, uint32_t group, bool asks,
                               struct dlx_seen *ret);

/* Who has message n of the group (`what`: "it", "the request"), whose workers were seen, or why has
 * nobody? */
#define DLX_HOLDER_SIZE 320
void dlx__publisher_describe_holder(const struct dlx_publisher *p,
                                    const struct dlx_writer_group *group, uint64_t n,
                                    const char *what, const struct dlx_seen *workers,
                                    char ret[DLX_HOLDER_SIZE]);

/* What is the oldest message that the group has not done, how old is it, and which worker has it?
 * `asks` and result as of dlx__publisher_see_workers(). */
#define DLX_LATE_GROUP_SIZE (DLX_HOLDER_SIZE + 160)
int dlx__publisher_describe_late(struct dlx_publisher *p, struct dlx_writer_group *group, bool asks,
                                 char ret[DLX_LATE_GROUP_SIZE]);

/* ---- marks --------------------------------------------------------------------------------- */

/* Writes a byte of the metadata of message n, which the group has not done, so that nothing else
 * has its memory. Workers that take it from memory of a daemon that has ended do not see it. */
void dlx__publisher_mark(struct dlx_publisher *p, uint64_t n, uint32_t at, uint8_t value);

#endif
