/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_PUBLISHER_H
#define DLXD_PUBLISHER_H

/*
 * A publisher: its control block, membership line, arenas and links.
 *
 * When it closes or dies it becomes GONE: no new subscription finds it, but it is listed
 * (ListPublishers.gone) and exists until its last link has ended and no subscriber holds messages
 * of it, because its subscribers drain its messages and may still need its arenas. If it retains
 * messages, it is RETAINED before that (daemon/objects/retained.h): it has no client any more, but
 * new subscriptions find it.
 */

#include "daemon/memory/proof.h"
#include "daemon/objects/objects.h"

/* What the publisher gets; the caller owns the fds. */
struct dlxd_publisher_fds {
    int control_fd; /* read-write */
    int membership_fd;
    int link_sock;
};

/* Makes a publisher of `client` in its topic, not announced yet. Returns 0, DLX_E_LIMIT,
 * DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM. */
int dlxd_publisher_new(struct dlxd_publisher **ret, struct dlxd_client *client, const char *topic,
                       const struct dlxd_publisher_config *config,
                       struct dlxd_publisher_fds *ret_fds);
/* A publisher that a former daemon knew. Nothing here is taken. */
struct dlxd_publisher_former {
    uint64_t id;
    uid_t uid;
    const char *socket; /* the listening socket on which its client connected */
    pid_t pid;
    const char *client_name;
    const char *topic;
    struct dlxd_publisher_config config;
};

/* One of its regions. */
struct dlxd_publisher_region {
    uint32_t id; /* 0: the control block */
    uint64_t ready_seq;
    int fd;
    bool not_stored; /* not in the service manager's store */
};

/*
 * Restores such a publisher with its regions in the order of `ready_seq`, the control block first,
 * as RETAINED for dlxd_retained_restore(). Charges it even beyond the limits of its user. Takes the
 * fds on success. Returns 0; DLX_E_PROTOCOL (not the regions of a publisher), DLX_E_NO_MEMORY,
 * DLX_E_SYSTEM.
 */
int dlxd_publisher_restore(struct dlxd_publisher **ret, struct dlxd_broker *broker,
                           const struct dlxd_publisher_former *former,
                           const struct dlxd_publisher_region *regions, size_t n_regions);

/* The publisher closed. Returns true if it leaves messages and is RETAINED; otherwise it is GONE
 * and freed with its last link. Accepts NULL. */
bool dlxd_publisher_end(struct dlxd_publisher *publisher);
/* The same, but its process, which seems to be dead, may write until the pidfd reports its
 * death. */
void dlxd_publisher_die(struct dlxd_publisher *publisher, int borrow_pidfd);
/* Makes it GONE; it is freed with its last link. */
void dlxd_publisher_vanish(struct dlxd_publisher *publisher);

/* Returns the client's publisher with this id; or NULL, with the text of DLX_E_NOT_FOUND set. */
struct dlxd_publisher *dlxd_publisher_find(struct dlxd_client *client, uint64_t id);

/* The place in the topic's list of publishers that follows the publisher with the id `after`, which
 * may have ended. The list is in the order of ids; 0: the first place. */
struct dlxd_list *dlxd_publisher_next_of(const struct dlxd_registry *registry,
                                         struct dlxd_topic *topic, uint64_t after);
/* About how many times as long its end takes as that of a publisher without arenas and links, which
 * takes 10 us. */
uint32_t dlxd_publisher_weight(const struct dlxd_publisher *publisher);

/* Starts to check whether its control block is ready; `fn` is called with the publisher as the
 * owner. Returns 0; or, without a change, DLX_E_IN_USE (it was ready already), DLX_E_NO_MEMORY,
 * DLX_E_SYSTEM. */
int dlxd_publisher_prove(struct dlxd_publisher *publisher, dlxd_proof_fn *fn);
/* The result of the check. Returns 0; on failure returns `code`, and the publisher has ended. */
int dlxd_publisher_ready(struct dlxd_publisher *publisher, int code, const char *text, int take_fd);

/* Makes a region for an arena. The publisher gets the read-write fd, which the caller owns. Returns
 * 0, DLX_E_LIMIT, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM. */
int dlxd_publisher_arena_new(struct dlxd_publisher *publisher, uint64_t size,
                             struct dlxd_arena **ret, int *ret_writer_fd);
/* Likewise starts to check an arena. Returns 0; or, without a change, DLX_E_NOT_FOUND,
 * DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlxd_publisher_arena_prove(struct dlxd_publisher *publisher, uint32_t id, dlxd_proof_fn *fn);
/* The result; links are told by dlxd_publisher_deliver_step(), or dlxd_publisher_tell_links().
 * Returns 0; DLX_E_NO_MEMORY, without a
 * change; or, if the check failed, `code`, and the arena is freed. */
int dlxd_publisher_arena_ready(struct dlxd_publisher *publisher, int code, const char *text,
                               int take_fd);
/* Returns 0; or, without a change, DLX_E_NOT_FOUND or DLX_E_NO_MEMORY. */
int dlxd_publisher_arena_drop(struct dlxd_publisher *publisher, uint32_t id);

/* Returns 0; or DLX_E_FULL, naming an earlier subscription for whose link the publisher must
 * wait. */
int dlxd_publisher_check_awaited(const struct dlxd_publisher *publisher);

/* Schedules what open links are to be told, and sends it, as far as there is room and credit, from
 * the first link on in steps, for a reply that must follow these packets.
 * dlxd_publisher_deliver_step() returns true if there is more to do. */
void dlxd_publisher_deliver_begin(struct dlxd_publisher *publisher);
bool dlxd_publisher_deliver_step(struct dlxd_publisher *publisher);
/* A link is about to leave the list. */
void dlxd_publisher_link_leaves(struct dlxd_publisher *publisher, const struct dlxd_link *link);
/* It was HIDDEN or SHOWN: from now on it is announced to all and offered by its own task. */
void dlxd_publisher_reveal(struct dlxd_publisher *publisher);
/* A step of its task. */
bool dlxd_publisher_step(struct dlxd_task *task);
/* Its links have something new to be told. */
void dlxd_publisher_tell_links(struct dlxd_publisher *publisher);

/* Returns an index that no other link of the publisher has. Returns 0, DLX_E_NO_MEMORY. */
int dlxd_publisher_index_get(struct dlxd_publisher *publisher, uint32_t *ret);
void dlxd_publisher_index_put(struct dlxd_publisher *publisher, uint32_t index);
/* One more link that knew a dropped arena has acknowledged the drop or ends. */
void dlxd_publisher_drop_acknowledged(struct dlxd_link *link, struct dlxd_arena *arena);
/* A link of a GONE publisher has been told everything. After the last one, the fds are closed. */
void dlxd_publisher_delivered(struct dlxd_publisher *publisher);
/* A link has left the list, or a draining link has ended. Frees a GONE publisher with the last. */
void dlxd_publisher_link_left(struct dlxd_publisher *publisher);

/* May a new subscription join it? Not while its client ends, nor while its process may still write
 * retained messages. */
bool dlxd_publisher_is_settled(const struct dlxd_publisher *publisher);

#endif
