/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_MANAGER_H
#define DLXD_MANAGER_H

/* What the daemon tells the service manager (Type=notify and WatchdogSec= of systemd.service(5)):
 * that it is ready, reloads or stops, that its loop runs, and a line for `systemctl status`.
 * Without a manager nothing is sent, and without a watchdog no timer runs. */

#include <uv.h>

struct dlxd_broker;

struct dlxd_manager {
    uv_timer_t ping;
    const struct dlxd_broker *broker;
    uint64_t ping_ms;  /* 0: no watchdog */
    char refused[400]; /* why the configuration was refused; empty: it was not */
};

/* The timer belongs to the loop: close it before the loop. */
void dlxd_manager_init(struct dlxd_manager *manager, uv_loop_t *loop,
                       const struct dlxd_broker *borrow_broker);
/* The daemon listens. From now on, the manager is told that the loop runs, twice in each interval
 * that it allows. */
void dlxd_manager_tell_ready(struct dlxd_manager *manager);
/* SIGHUP was received. */
void dlxd_manager_tell_reloading(const struct dlxd_manager *manager);
/* `code` is negative if the new configuration was refused, with the reason in the thread's
 * message. */
void dlxd_manager_tell_reloaded(struct dlxd_manager *manager, int code);
void dlxd_manager_tell_stopping(struct dlxd_manager *manager);

#endif
