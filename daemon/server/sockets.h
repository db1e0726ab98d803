/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_SOCKETS_H
#define DLXD_SOCKETS_H

/*
 * The sockets that the daemon listens on, and the connections that come in by them. The main one is
 * the first.
 */

#include "daemon/base/list.h"
#include "daemon/server/listener.h"

struct dlxd_broker;

struct dlxd_sockets {
    struct dlxd_broker *broker;
    struct dlxd_list list;
    int reserve_fd; /* given up to accept, and close, one when the process is out of fds */
    bool is_full;   /* it is out of them */
};

void dlxd_sockets_init(struct dlxd_sockets *sockets, struct dlxd_broker *broker);
/* Before the broker's watches are freed. */
void dlxd_sockets_deinit(struct dlxd_sockets *sockets);

/* Listen on one more, whose connections become clients. Takes its fds, also on failure. Returns what
 * dlxd_listener_init() does; DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlxd_sockets_add(struct dlxd_sockets *sockets, const struct dlxd_listen *how);
/* The path of the main one. There is one. */
const char *dlxd_sockets_main_path(const struct dlxd_sockets *sockets);
/* Other users are to connect to each: as dlxd_listener_share(). */
int dlxd_sockets_share(const struct dlxd_sockets *sockets);
/* Each, as dlxd_listener_hand_over(). */
int dlxd_sockets_hand_over(const struct dlxd_sockets *sockets, struct dlxd_handover *handover);
/* Tell the log where they are. */
void dlxd_sockets_log(const struct dlxd_sockets *sockets);

/* Open the reserve again, if there was no fd for it. */
void dlxd_sockets_restore_reserve(struct dlxd_sockets *sockets);
/* Is there a connection that has yet to be accepted? */
bool dlxd_sockets_somebody_waits(const struct dlxd_sockets *sockets);

#endif
