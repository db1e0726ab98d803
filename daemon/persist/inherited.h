/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_INHERITED_H
#define DLXD_INHERITED_H

/* Descriptors that the service manager passed when it started this process: sd_listen_fds(3). */

#include <stdbool.h>
#include <stddef.h>

struct dlxd_inherited_fd {
    int fd;     /* close-on-exec */
    char *name; /* of $LISTEN_FDNAMES; "unknown" without that */
    bool taken; /* it is somebody's */
};

struct dlxd_inherited {
    struct dlxd_inherited_fd *fds;
    size_t n;
};

/* Call once, before anything opens a descriptor. The variables are removed from the environment. Returns 0, also when
 * there is none; DLX_E_INVALID (the variables contradict each other; the descriptors are closed), DLX_E_NO_MEMORY. */
int dlxd_inherited_init(struct dlxd_inherited *inherited);
/*
 * The socket to listen on, if the service manager made it (ListenSequentialPacket= of
 * systemd.socket(5)): taken, and the caller's. Returns 0, with -1 where there is none;
 * DLX_E_INVALID: there are several, or one that cannot be listened on.
 */
int dlxd_inherited_take_listener(struct dlxd_inherited *inherited, int *ret_fd);
/* Closes what nobody took. */
void dlxd_inherited_deinit(struct dlxd_inherited *inherited);

#endif
