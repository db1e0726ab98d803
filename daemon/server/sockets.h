/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_SOCKETS_H
#define DLXD_SOCKETS_H

/* The sockets that the daemon listens on, and the connections that they accept. The main socket is
 * the first. */

#include "daemon/base/list.h"
#include "daemon/server/listener.h"

struct dlxd_broker;

struct dlxd_sockets {
    struct dlxd_broker *broker;
    struct dlxd_list list;
    int reserve_fd; /* closed to accept and refuse one connection when the process is out of fds */
    bool is_full;   /* the process is out of fds */
};

void dlxd_sockets_init(struct dlxd_sockets *sockets, struct dlxd_broker *broker);
/* Call it before the broker's watches are freed. */
void dlxd_sockets_deinit(struct dlxd_sockets *sockets);

/* Listens on one more socket, whose connections become clients. Takes its fds, also on failure.
 * Returns what dlxd_listener_init() returns; DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlxd_sockets_add(struct dlxd_sockets *sockets, const struct dlxd_listen *how);
/* The path of the main socket, which must exist. */
const char *dlxd_sockets_main_path(const struct dlxd_sockets *sockets);
/* Lets other users connect to each socket: as dlxd_listener_share(). */
int dlxd_sockets_share(const struct dlxd_sockets *sockets);
/* Hands over each socket: as dlxd_listener_hand_over(); DLX_E_SYSTEM if one was removed and could
 * not be made again. */
int dlxd_sockets_hand_over(const struct dlxd_sockets *sockets, struct dlxd_handover *handover);
/* Logs the paths of the sockets. */
void dlxd_sockets_log(const struct dlxd_sockets *sockets);

/*
 * A program that cleans /tmp may remove the file of a socket, its lock, or their folder. The daemon
 * then listens at the same path again. Until it has noticed, a program that finds no socket may
 * have started another daemon there. The two would not know each other's topics, so the former one
 * ends: its clients connect to the path again, as they do after any end of a daemon.
 */
enum dlxd_sockets_state {
    DLXD_SOCKETS_LISTENING,
    DLXD_SOCKETS_REMOVED, /* nobody can connect: no socket could be made again */
    DLXD_SOCKETS_TAKEN,   /* another daemon listens at the path of the main socket */
};
/* Is there a socket that the daemon made, and has to look after? */
bool dlxd_sockets_are_ours(const struct dlxd_sockets *sockets);
/* Were the files of all sockets removed? */
bool dlxd_sockets_are_lost(const struct dlxd_sockets *sockets);
/* Makes again what was removed, and logs that; logs an error once if that fails. */
enum dlxd_sockets_state dlxd_sockets_look(struct dlxd_sockets *sockets);

/* Opens the reserve fd again if there was no fd for it. */
void dlxd_sockets_restore_reserve(struct dlxd_sockets *sockets);
/* Is there a connection that has yet to be accepted? */
bool dlxd_sockets_somebody_waits(const struct dlxd_sockets *sockets);

#endif
