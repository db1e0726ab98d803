/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_MANAGER_H
#define DLXD_MANAGER_H

/*
 * What the service manager is told (Type=notify and WatchdogSec= of systemd.service(5)): that the
 * daemon is ready, reloads or stops, that its loop goes round, and a line for `systemctl status`.
 * Where there is no manager nothing is sent, and where it does not watch no timer runs.
 */

#include <uv.h>

struct dlxd_broker;

struct dlxd_manager {
    uv_timer_t ping;
    const struct dlxd_broker *broker;
    uint64_t ping_ms;  /* 0: the manager does not watch */
    char refused[400]; /* why the configuration was refused; empty: it was not */
};

/* The timer is the loop's: close it before the loop. */
void dlxd_manager_init(struct dlxd_manager *manager, uv_loop_t *loop,
                       const struct dlxd_broker *broker_borrow);
/* The daemon listens. From now on the manager is told, in half of the time that it allows, that the
 * loop goes round. */
void dlxd_manager_tell_ready(struct dlxd_manager *manager);
/* SIGHUP has come. */
void dlxd_manager_tell_reloading(const struct dlxd_manager *manager);
/* `code` is negative if the new configuration was refused, which the thread's message tells. */
void dlxd_manager_tell_reloaded(struct dlxd_manager *manager, int code);
void dlxd_manager_tell_stopping(struct dlxd_manager *manager);

#endif
