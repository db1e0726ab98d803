/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_NOTIFY_H
#define DLXD_NOTIFY_H

/* Datagrams to the service manager ($NOTIFY_SOCKET): sd_notify(3). */

#include <stdbool.h>
#include <stdint.h>

/* Is there a service manager that listens? */
bool dlxd_notify_is_possible(void);

/* Sends a state ("READY=1"), with a copy of a descriptor unless that is -1. Returns 0; DLX_E_FULL
 * (the manager has too much to read now); DLX_E_NOT_FOUND (no manager), DLX_E_SYSTEM. */
int dlxd_notify(const char *state, int borrow_fd);

/* The microseconds after which the manager takes this process for stuck, unless it gets
 * "WATCHDOG=1" (WatchdogSec= of systemd.service(5)); 0: it does not watch this process. */
uint64_t dlxd_notify_watchdog_us(void);

#endif
