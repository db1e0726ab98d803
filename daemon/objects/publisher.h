/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_PUBLISHER_H
#define DLXD_PUBLISHER_H

/*
 * A publisher: its control block, membership line, arenas and links.
 *
 * When it closes or dies it becomes GONE: no new subscription finds it, but it is listed
 * (ListPublishers.gone) and exists until its last link has ended and no subscriber holds messages
 * of it, because its subscribers drain its messages and may still need its arenas. If it retains
 * messages, it is RETAINED before that: it has no client any more, but new subscriptions find it.
 * publisher_state.h has what happens to it.
 */

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
    uid_t workers_uid; /* if it declares groups: whose processes the workers are */
    const char *workers_socket;
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

/* Returns the client's publisher with this id; or NULL, with the text of DLX_E_NOT_FOUND set. */
struct dlxd_publisher *dlxd_publisher_find(struct dlxd_client *client, uint64_t id);

/* The place in the topic's list of publishers that follows the publisher with the id `after`, which
 * may have ended. The list is in the order of ids; 0: the first place. */
struct dlxd_list *dlxd_publisher_next_of(const struct dlxd_registry *registry,
                                         struct dlxd_topic *topic, uint64_t after);
/* About how many times as long its end takes as that of a publisher without arenas and links, which
 * takes 10 us. */
uint32_t dlxd_publisher_weight(const struct dlxd_publisher *publisher);

/* Makes a region for an arena. The publisher gets the read-write fd, which the caller owns. Returns
 * 0, DLX_E_LIMIT, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM. */
int dlxd_publisher_arena_new(struct dlxd_publisher *publisher, uint64_t size,
                             struct dlxd_arena **ret, int *ret_writer_fd);

/* Its process serves GPU memory from now on: the socket on which it is asked, which the caller
 * owns. It replaces an earlier one. Returns 0, DLX_E_LIMIT, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT,
 * DLX_E_SYSTEM. */
int dlxd_publisher_serve_gpu(struct dlxd_publisher *publisher, int *ret_theirs);
/* Whose GPU memory the keeper makes for it. */
struct dlxd_gpu_whose dlxd_publisher_gpu_whose(const struct dlxd_publisher *publisher);

/* A link is about to leave the list. */
void dlxd_publisher_link_leaves(struct dlxd_publisher *publisher, const struct dlxd_link *link);

/* Its client has left: frees what it does not need any more. */
void dlxd_publisher_leave_client(struct dlxd_publisher *publisher);
/* An arena that is ready is dropped. If links know it, it stays until they have acknowledged the
 * drop, and their users pay for it meanwhile. */
void dlxd_publisher_let_go_of(struct dlxd_publisher *publisher, struct dlxd_arena *arena);
/* This link was told, has acknowledged the drop, or ends; others have not acknowledged it. */
void dlxd_payer_may_change(struct dlxd_link *link, struct dlxd_arena *arena);

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
