/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_MANAGER_FDS_H
#define DLXD_MANAGER_FDS_H

/* The descriptors that this process starts with: listen fds and stored fds, which the service
 * manager passed (sd_listen_fds(3)), or those that the daemon handed over whose place this program
 * takes in the same process (handover.h). */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The suffix of the name of a socket's lock file that is handed over. No name of a socket contains
 * it. */
#define DLXD_HANDOVER_LOCK_SUFFIX ":lock"

/* What is known of a listening socket that the daemon bound itself. */
struct dlxd_listen_lock {
    uint64_t dev; /* of the socket's file */
    uint64_t ino;
    bool is_bound; /* the daemon made the file, and removes it at the end */
    bool made_folder;
};

struct dlxd_manager_fd {
    int fd;          /* close-on-exec; -1: a name that the service manager must forget */
    char *name;      /* from $LISTEN_FDNAMES, "unknown" without that; or from the handover */
    bool taken;      /* it has an owner */
    bool not_stored; /* handed over: the service manager does not keep it */
    struct dlxd_listen_lock lock; /* handed over, for a lock file */
};

struct dlxd_manager_fds {
    struct dlxd_manager_fd *fds;
    size_t n;
    bool is_handed_over; /* by the daemon whose place this program takes */
};

/* Call it once, before anything opens a descriptor. Removes the variables from the environment.
 * Returns 0, also if there are no descriptors; DLX_E_INVALID (the variables contradict each other;
 * the descriptors are closed), DLX_E_NO_MEMORY; or what dlxd_handover_take() returns. */
int dlxd_manager_fds_init(struct dlxd_manager_fds *manager_fds);
/*
 * Takes the socket of this name that the service manager made (ListenSequentialPacket= of
 * systemd.socket(5)); the caller owns it. Its name is that of FileDescriptorName= of its unit, or
 * otherwise that of the unit without the suffix ".socket". NULL: the only socket, whatever its
 * name. Returns 0, with -1 if there is none; DLX_E_INVALID naming the descriptors if there are
 * several, or one that cannot be listened on.
 */
int dlxd_manager_fds_take_listen_fd(struct dlxd_manager_fds *manager_fds, const char *name,
                                    int *ret_fd);
/* Was every listen fd of the service manager taken? Returns 0, or DLX_E_INVALID naming one that was
 * not. */
int dlxd_manager_fds_check_listen_fds(const struct dlxd_manager_fds *manager_fds);
/* The name of a socket that was handed over and not taken; NULL: there is none. */
const char *dlxd_manager_fds_dropped_listen_fd(const struct dlxd_manager_fds *manager_fds);
/* Takes the lock file of the socket of this name if it was handed over; the caller owns it.
 * Otherwise returns -1. */
int dlxd_manager_fds_take_lock(struct dlxd_manager_fds *manager_fds, const char *name,
                               struct dlxd_listen_lock *ret);
/* Closes the descriptors that were not taken. */
void dlxd_manager_fds_deinit(struct dlxd_manager_fds *manager_fds);

#endif
