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
 * The socket of this name, if the service manager made it (ListenSequentialPacket= of
 * systemd.socket(5)): taken, and the caller's. Its name is what FileDescriptorName= of its unit
 * says; without that systemd calls it as its unit, of which the suffix ".socket" is no part of the
 * name. NULL: whatever its name is, and the only one. Returns 0, with -1 where there is none;
 * DLX_E_INVALID naming the descriptors: there are several, or one that cannot be listened on.
 */
int dlxd_inherited_take_listener(struct dlxd_inherited *inherited, const char *name, int *ret_fd);
/* Was every socket taken? Returns 0; DLX_E_INVALID naming one that was not. */
int dlxd_inherited_check_listeners(const struct dlxd_inherited *inherited);
/* Closes what nobody took. */
void dlxd_inherited_deinit(struct dlxd_inherited *inherited);

#endif
