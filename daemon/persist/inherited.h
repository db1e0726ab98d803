/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_INHERITED_H
#define DLXD_INHERITED_H

/*
 * Descriptors that this process began with: those that the service manager passed when it started
 * it, sd_listen_fds(3), or those that the daemon handed over whose place this program takes in the
 * same process (handover.h).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of the name of a socket's lock file that is handed over: no part of the name of a socket. */
#define DLXD_HANDOVER_LOCK_SUFFIX ":lock"

/* What is known of a listening socket beside its descriptor, where the daemon bound it itself. */
struct dlxd_inherited_lock {
    uint64_t dev; /* of the socket's file */
    uint64_t ino;
    bool is_bound; /* the file is ours, to be removed at the end */
    bool made_folder;
};

struct dlxd_inherited_fd {
    int fd;          /* close-on-exec; -1: the service manager keeps what nobody needs */
    char *name;      /* of $LISTEN_FDNAMES, "unknown" without that; or of the hand-over */
    bool taken;      /* it is somebody's */
    bool not_stored; /* handed over: the service manager does not keep it */
    struct dlxd_inherited_lock lock; /* likewise: if it is a lock file */
};

struct dlxd_inherited {
    struct dlxd_inherited_fd *fds;
    size_t n;
    bool is_handed_over; /* by the daemon whose place this one takes */
};

/* Call once, before anything opens a descriptor. The variables are removed from the environment. Returns 0, also when
 * there is none; DLX_E_INVALID (the variables contradict each other; the descriptors are closed), DLX_E_NO_MEMORY; what
 * dlxd_handover_take() returns. */
int dlxd_inherited_init(struct dlxd_inherited *inherited);
/*
 * The socket of this name, if the service manager made it (ListenSequentialPacket= of
 * systemd.socket(5)): taken, and the caller's. Its name is what FileDescriptorName= of its unit
 * says; without that systemd calls it as its unit, of which the suffix ".socket" is no part of the
 * name. NULL: whatever its name is, and the only one. Returns 0, with -1 where there is none;
 * DLX_E_INVALID naming the descriptors: there are several, or one that cannot be listened on.
 */
int dlxd_inherited_take_listener(struct dlxd_inherited *inherited, const char *name, int *ret_fd);
/* Was every socket taken that the service manager passed? Returns 0; DLX_E_INVALID naming one that
 * was not. */
int dlxd_inherited_check_listeners(const struct dlxd_inherited *inherited);
/* The name of a socket that was handed over and that nobody has taken; NULL: there is none. */
const char *dlxd_inherited_dropped_listener(const struct dlxd_inherited *inherited);
/* The lock file of the socket of this name, if it was handed over: taken, and the caller's. Else -1. */
int dlxd_inherited_take_lock(struct dlxd_inherited *inherited, const char *name,
                             struct dlxd_inherited_lock *ret);
/* Closes what nobody took. */
void dlxd_inherited_deinit(struct dlxd_inherited *inherited);

#endif
