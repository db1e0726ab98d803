/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_NOTIFY_H
#define DLXD_NOTIFY_H

/* Tell the service manager ("READY=1"), by a datagram to $NOTIFY_SOCKET. Without one, or when it
 * fails, nothing happens. */
void dlxd_notify(const char *state);

#endif
