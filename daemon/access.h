/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_ACCESS_H
#define DLXD_ACCESS_H

/* Who may use this daemon: the user it runs as, and root. */

#include <sys/types.h>

/* Returns 0, or DLX_E_ACCESS naming both. uid 65534, which stands for everybody the kernel cannot
 * name, has no rights. */
int dlxd_access_check(uid_t client_uid, uid_t daemon_uid);

#endif
