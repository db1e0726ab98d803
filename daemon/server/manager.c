/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/manager.h"
#include "common/error.h"
#include "common/util.h"
#include "daemon/objects/objects.h"
#include "daemon/persist/notify.h"
#include <stdio.h>

/* The delay after which a manager with a full socket is told again. */
#define RETRY_MS 20U

static int manager_tell(const struct dlxd_manager *manager, const char *state)
{
    const struct dlxd_broker *broker = manager->broker;
    char text[1024];
    int n = snprintf(text, sizeof text, "%s\nSTATUS=Listening on %s", state, broker->socket_path);
    /* Without pings, the numbers would stay those of the start. */
    if (manager->ping_ms > 0)
        n += snprintf(text + n, sizeof text - (size_t)n,
                      ": %zu clients, %zu publishers, %zu subscriptions", broker->n_clients,
                      broker->registry.publishers.n, broker->registry.subscriptions.n);
    if (manager->refused[0])
        (void)snprintf(text + n, sizeof text - (size_t)n, "; the new configuration is wrong: %s",
                       manager->refused);
    return dlxd_notify(text, -1);
}

static void on_ping(uv_timer_t *timer)
{
    struct dlxd_manager *manager = timer->data;
    int r = manager_tell(manager, "WATCHDOG=1");
    uint64_t next_ms = r == DLX_E_FULL ? DLX_MIN(manager->ping_ms, RETRY_MS) : manager->ping_ms;
    (void)uv_timer_start(timer, on_ping, next_ms, 0);
}

void dlxd_manager_init(struct dlxd_manager *manager, uv_loop_t *loop,
                       const struct dlxd_broker *borrow_broker)
{
    uint64_t watchdog_us = dlxd_notify_watchdog_us();
    *manager = (struct dlxd_manager){.broker = borrow_broker};
    if (watchdog_us > 0)
        manager->ping_ms = DLX_MAX(watchdog_us / 2000, UINT64_C(1));
    (void)uv_timer_init(loop, &manager->ping);
    manager->ping.data = manager;
}

void dlxd_manager_tell_ready(struct dlxd_manager *manager)
{
    (void)manager_tell(manager, "READY=1");
    if (manager->ping_ms > 0)
        (void)uv_timer_start(&manager->ping, on_ping, manager->ping_ms, 0);
}

void dlxd_manager_tell_reloading(const struct dlxd_manager *manager)
{
    (void)manager_tell(manager, "RELOADING=1");
}

void dlxd_manager_tell_reloaded(struct dlxd_manager *manager, int code)
{
    manager->refused[0] = '\0';
    if (code < 0)
        (void)snprintf(manager->refused, sizeof manager->refused, "%s", dlx__error_message());
    (void)manager_tell(manager, "READY=1");
}

void dlxd_manager_tell_stopping(struct dlxd_manager *manager)
{
    (void)uv_timer_stop(&manager->ping);
    (void)dlxd_notify("STOPPING=1\nSTATUS=Stopping", -1);
}
