/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/server.h"
#include "common/error.h"
#include "daemon/gpu/keeper.h"
#include "daemon/objects/broker.h"
#include "daemon/objects/client.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/drain.h"
#include "daemon/objects/former.h"
#include "daemon/objects/publisher_state.h"
#include "daemon/protocol/dispatch.h"
#include "daemon/server/memory_available.h"
#include "daemon/server/manager.h"
#include "daemon/server/sockets.h"
#include "daemon/server/upgrade.h"
#include "daemon/users/outbox.h"
#include "daemon/base/log.h"
#include "daemon/persist/manager_fds.h"
#include "daemon/persist/restore.h"
#include "daemon/persist/store.h"
#include "daemon/base/watch.h"
#include "daemon/base/worker.h"
#include <assert.h>
#include <malloc.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <uv.h>

#define RETRY_MS        20U
#define RECLAIM_MORE_MS 2    /* between the parts of many reservations that are returned */
#define LOOK_MS         250U /* between checks of what changes without a packet, if any */
#define PATHS_MS        500U /* between looks for the daemon's socket files */
#define TRIM_MS         200U
#define TRIM_LEAST      128U
#define TRIM_SOON_MS    5U
#define TRIM_MANY       1000U

struct dlxd_server {
    uv_loop_t loop;
    uv_signal_t term;
    uv_signal_t interrupt;
    uv_signal_t hangup;
    uv_signal_t replace;
    void (*on_hangup)(void *data);
    void *hangup_data;
    bool reloads; /* after SIGHUP began an upgrade: reload if the upgrade fails */
    struct dlxd_upgrade upgrade;
    uv_timer_t hello;
    uv_timer_t retry;
    uv_timer_t expiry; /* of retained publishers */
    uv_timer_t looks;
    uv_timer_t reservations;
    uv_timer_t paths;
    uv_timer_t idle;
    uv_timer_t trim;
    uv_timer_t gpu;
    uv_timer_t pace;
    size_t most_objects;    /* the most objects since memory was last trimmed */
    bool trims_soon;        /* after TRIM_SOON_MS */
    uint64_t idle_ms;       /* 0: never ends by itself */
    uint64_t idle_client;   /* the newest client when the idle time began */
    uv_prepare_t prepare;   /* arms the timers before each sleep */
    uv_check_t check;       /* runs tasks after each poll of the sockets */
    uv_idle_t busy;         /* active while work is left: the loop does not sleep */
    uint64_t turn_began_ns; /* in CPU time of the thread */
    struct dlxd_sockets sockets;
    bool stopping;
    int code; /* what dlxd_server_run() returns */
    struct dlxd_manager manager;
    bool is_successor; /* of a daemon in the same process */
    struct dlxd_broker broker;
};

/* ---- time ---------------------------------------------------------------------------------- */

static struct dlxd_client *oldest_greeting(struct dlxd_broker *broker)
{
    if (dlxd_list_empty(&broker->greeting))
        return NULL;
    return dlxd_container_of(broker->greeting.next, struct dlxd_client, greeting);
}

static void on_hello(uv_timer_t *timer)
{
    struct dlxd_server *server = timer->data;
    uint64_t now = dlx__now_ns();
    dlx_for_each (it, &server->broker.greeting) {
        struct dlxd_client *client = dlxd_container_of(it, struct dlxd_client, greeting);
        if (now - client->accepted_ns < DLXD_HELLO_NS)
            break;
        if (client->refuse_code < 0)
            dlxd_client_refuse(client);
        else
            dlxd_client_disconnect(client, DLX_E_TIMEOUT, "no Hello within %u ms",
                                   (unsigned)(DLXD_HELLO_NS / 1000000));
    }
}

static void on_retry(uv_timer_t *timer)
{
    struct dlxd_server *server = timer->data;
    dlxd_broker_unstick(&server->broker);
    dlxd_store_retry(&server->broker, dlx__now_ns());
}

static void on_gpu(uv_timer_t *timer)
{
    struct dlxd_server *server = timer->data;
    dlxd_gpu_keeper_look(server->broker.gpu, dlx__now_ns());
}

static void on_pace(uv_timer_t *timer)
{
    struct dlxd_server *server = timer->data;
    dlxd_work_wake(&server->broker.users, dlx__now_ns());
}

static void on_expiry(uv_timer_t *timer)
{
    struct dlxd_server *server = timer->data;
    dlxd_retained_expire(&server->broker, dlx__now_ns());
}

static size_t n_objects(const struct dlxd_broker *broker)
{
    const struct dlxd_registry *registry = &broker->registry;
    return registry->publishers.n + registry->subscriptions.n + registry->links.n +
           broker->n_clients;
}

static void on_trim(uv_timer_t *timer)
{
    struct dlxd_server *server = timer->data;
    size_t n = n_objects(&server->broker);
    (void)malloc_trim(0);
    /* Some of what they had is freed a moment later. */
    if (server->most_objects - n >= TRIM_MANY)
        (void)uv_timer_start(timer, on_trim, TRIM_MS, 0);
    server->trims_soon = false;
    server->most_objects = n;
}

/* The allocator keeps free pages between remaining objects until malloc_trim() returns them to the
 * system. That takes 0.1 to 0.4 ms for each MiB, so it is done once half of all objects are gone,
 * and sooner where many are, before more pages are free. */
static void arm_trim(struct dlxd_server *server)
{
    size_t n = n_objects(&server->broker);
    server->most_objects = DLX_MAX(server->most_objects, n);
    size_t n_gone = server->most_objects - n;
    if (n_gone >= TRIM_MANY && !server->trims_soon) {
        server->trims_soon = true;
        (void)uv_timer_start(&server->trim, on_trim, TRIM_SOON_MS, 0);
    } else if (n_gone >= TRIM_LEAST && n_gone >= n && !uv_is_active((uv_handle_t *)&server->trim)) {
        (void)uv_timer_start(&server->trim, on_trim, TRIM_MS, 0);
    }
}

static void on_look(uv_timer_t *timer)
{
    struct dlxd_server *server = timer->data;
    dlxd_drains_look_all(&server->broker);
    dlxd_former_look_all(&server->broker);
    dlxd_retained_look_all(&server->broker);
    dlxd_flights_look_all(&server->broker.users);
}

static void on_reservations(uv_timer_t *timer)
{
    struct dlxd_server *server = timer->data;
    if (dlxd_reclaim(&server->broker, dlx__now_ns())) /* the others have their turn before */
        (void)uv_timer_start(timer, on_reservations, RECLAIM_MORE_MS, 0);
}

/* Runs `fn` at `due_ns`, or at once if that has passed. */
static void start_at(struct dlxd_server *server, uv_timer_t *timer, uv_timer_cb fn, uint64_t due_ns)
{
    uint64_t now = dlx__now_ns();
    uv_update_time(&server->loop);
    (void)uv_timer_start(timer, fn, due_ns > now ? (due_ns - now) / 1000000 + 1 : 0, 0);
}

static void stop(struct dlxd_server *server, int code)
{
    server->stopping = true;
    server->code = code;
    uv_stop(&server->loop);
}

/*
 * A connection in a listen queue counts as a client. A client that connects between this check and
 * the close of the socket gets a hang-up before any reply; its library tries again and finds no
 * daemon. The socket is closed here because the loop polls its fds once more after uv_stop(), and
 * would accept a client only to lose it.
 */
static void on_idle(uv_timer_t *timer)
{
    struct dlxd_server *server = timer->data;
    /* Timers run before on_prepare(), so a client may have connected since it armed this one. */
    if (!dlxd_broker_is_idle(&server->broker) || dlxd_sockets_somebody_waits(&server->sockets))
        return; /* the idle time starts anew */
    dlxd_log(DLXD_LOG_NOTICE, "no client for %.3g s: stopping", (double)server->idle_ms / 1e3);
    server->broker.socket_path = "";
    dlxd_sockets_deinit(&server->sockets);
    stop(server, 0);
}

static void arm_idle(struct dlxd_server *server)
{
    struct dlxd_broker *broker = &server->broker;
    bool anew = broker->last_client != server->idle_client;
    if (server->idle_ms == 0 || !dlxd_broker_is_idle(broker)) {
        (void)uv_timer_stop(&server->idle);
    } else if (anew || !uv_is_active((uv_handle_t *)&server->idle)) {
        server->idle_client = broker->last_client;
        uv_update_time(&server->loop);
        (void)uv_timer_start(&server->idle, on_idle, server->idle_ms, 0);
    }
}

static void on_paths(uv_timer_t *timer)
{
    struct dlxd_server *server = timer->data;
    if (server->stopping)
        return;
    /* An unused daemon that would end soon does not bring back a folder that was removed. */
    bool goes = server->idle_ms > 0 && dlxd_broker_is_idle(&server->broker) &&
                dlxd_sockets_are_lost(&server->sockets);
    enum dlxd_sockets_state state =
        goes ? DLXD_SOCKETS_REMOVED : dlxd_sockets_look(&server->sockets);
    if (state == DLXD_SOCKETS_TAKEN) {
        dlxd_log(DLXD_LOG_ERROR, "another dlpackd listens on %s: stopping; clients connect there",
                 server->broker.socket_path);
        stop(server, DLX_E_IN_USE);
    } else if (state == DLXD_SOCKETS_REMOVED && dlxd_broker_is_idle(&server->broker)) {
        dlxd_log(DLXD_LOG_ERROR, "no client, and none can connect: stopping");
        stop(server, DLX_E_NO_DAEMON);
    }
}

static void on_busy(uv_idle_t *busy)
{
    (void)busy;
}

static uint64_t cpu_time_ns(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static void on_check(uv_check_t *check)
{
    struct dlxd_server *server = check->data;
    struct dlxd_broker *broker = &server->broker;
    dlxd_work_run_turn(&broker->users);
    uint64_t now = cpu_time_ns();
    broker->longest_turn_ns = DLX_MAX(broker->longest_turn_ns, now - server->turn_began_ns);
    server->turn_began_ns = now;
}

static void arm_at(struct dlxd_server *server, uv_timer_t *timer, uv_timer_cb fn, uint64_t due_ns)
{
    if (due_ns == UINT64_MAX)
        (void)uv_timer_stop(timer);
    else
        start_at(server, timer, fn, due_ns);
}

/* Arms the timers before the loop sleeps. */
static void on_prepare(uv_prepare_t *prepare)
{
    struct dlxd_server *server = prepare->data;
    struct dlxd_broker *broker = &server->broker;
    if (server->stopping)
        return;
    dlxd_sockets_restore_reserve(&server->sockets);
    const struct dlxd_client *oldest = oldest_greeting(broker);
    if (!oldest)
        (void)uv_timer_stop(&server->hello);
    else
        start_at(server, &server->hello, on_hello, oldest->accepted_ns + DLXD_HELLO_NS);
    arm_at(server, &server->expiry, on_expiry, dlxd_retained_next_ns(broker));
    arm_at(server, &server->gpu, on_gpu, dlxd_gpu_keeper_next_ns(broker->gpu));
    arm_at(server, &server->pace, on_pace, dlxd_work_next_ns(&broker->users, dlx__now_ns()));
    if (dlxd_list_empty(&broker->stuck) && dlxd_list_empty(&broker->slow) &&
        !dlxd_store_is_waiting(broker))
        (void)uv_timer_stop(&server->retry);
    else if (!uv_is_active((uv_handle_t *)&server->retry))
        (void)uv_timer_start(&server->retry, on_retry, RETRY_MS, 0);
    if (dlxd_drains_n_all(broker) == 0 && broker->registry.n_former_pages == 0 &&
        dlxd_list_empty(&broker->looked) && !dlxd_flights_are_left(&broker->users))
        (void)uv_timer_stop(&server->looks);
    else if (!uv_is_active((uv_handle_t *)&server->looks))
        (void)uv_timer_start(&server->looks, on_look, LOOK_MS, 0);
    if (dlxd_list_empty(&broker->reservations))
        (void)uv_timer_stop(&server->reservations);
    else if (!uv_is_active((uv_handle_t *)&server->reservations))
        (void)uv_timer_start(&server->reservations, on_reservations, DLXD_RECLAIM_MS, 0);
    arm_idle(server);
    if (dlxd_work_is_left(&broker->users))
        (void)uv_idle_start(&server->busy, on_busy);
    else
        (void)uv_idle_stop(&server->busy);
    arm_trim(server);
}

/* ---- life ---------------------------------------------------------------------------------- */

static void on_signal(uv_signal_t *handle, int signum)
{
    struct dlxd_server *server = handle->data;
    dlxd_log(DLXD_LOG_NOTICE, "%s: stopping", strsignal(signum));
    stop(server, 0);
}

void dlxd_server_reloaded(struct dlxd_server *server, int code)
{
    dlxd_manager_tell_reloaded(&server->manager, code);
}

static void begin_reload(struct dlxd_server *server)
{
    bool reads = server->reloads && server->on_hangup;
    server->reloads = false;
    if (reads)
        server->on_hangup(server->hangup_data);
    else
        dlxd_server_reloaded(server, 0);
}

/* The upgrade failed: the daemon continues, and reloads its configuration if that was requested. */
static void on_no_upgrade(void *data)
{
    begin_reload(data);
}

static void begin_upgrade(struct dlxd_server *server)
{
    if (dlxd_upgrade_begin(&server->upgrade) == 0)
        return;
    dlxd_log(DLXD_LOG_ERROR, "this daemon goes on: %s", dlx__error_message());
    begin_reload(server);
}

static void on_hangup(uv_signal_t *handle, int signum)
{
    struct dlxd_server *server = handle->data;
    (void)signum;
    dlxd_manager_tell_reloading(&server->manager);
    server->reloads = true;
    if (dlxd_upgrade_is_due(&server->upgrade))
        begin_upgrade(server);
    else if (server->upgrade.state == DLXD_UPGRADE_IDLE)
        begin_reload(server);
}

static void on_replace(uv_signal_t *handle, int signum)
{
    struct dlxd_server *server = handle->data;
    (void)signum;
    dlxd_manager_tell_reloading(&server->manager);
    begin_upgrade(server);
}

static void close_handle(uv_handle_t *handle, void *data)
{
    (void)data;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

struct dlxd_server *dlxd_server_free(struct dlxd_server *server)
{
    if (!server)
        return NULL;
    dlxd_upgrade_deinit(&server->upgrade);
    dlxd_sockets_deinit(&server->sockets);
    dlxd_store_deinit(&server->broker);
    dlxd_gpu_keeper_close(server->broker.gpu);
    dlxd_broker_deinit(&server->broker);
    /* Watches are closing already; the handles of this struct are left. */
    uv_walk(&server->loop, close_handle, NULL);
    (void)uv_run(&server->loop, UV_RUN_DEFAULT);
    int r = uv_loop_close(&server->loop);
    assert(r == 0);
    (void)r;
    free(server);
    return NULL;
}

/* libuv called abort(), and not from within a function of the C library. */
static void on_abort(int signum)
{
    (void)signum;
    /* NOLINTNEXTLINE(bugprone-signal-handler) */
    dlxd_log(DLXD_LOG_ERROR, "libuv cannot start: %s", strerror(errno));
    _exit(EXIT_FAILURE);
}

/* These steps cannot fail, or only if the machine is out of memory. */
static int init_handles(struct dlxd_server *server)
{
    int r = uv_signal_init(&server->loop, &server->term);
    if (r == 0)
        r = uv_signal_init(&server->loop, &server->interrupt);
    if (r == 0)
        r = uv_signal_init(&server->loop, &server->hangup);
    if (r == 0)
        r = uv_signal_init(&server->loop, &server->replace);
    if (r < 0)
        return dlx__fail(dlx__error_from_errno(-r), "signals: %s", uv_strerror(r));
    (void)uv_timer_init(&server->loop, &server->hello);
    (void)uv_timer_init(&server->loop, &server->retry);
    (void)uv_timer_init(&server->loop, &server->expiry);
    (void)uv_timer_init(&server->loop, &server->looks);
    (void)uv_timer_init(&server->loop, &server->reservations);
    (void)uv_timer_init(&server->loop, &server->paths);
    (void)uv_timer_init(&server->loop, &server->idle);
    (void)uv_timer_init(&server->loop, &server->trim);
    (void)uv_timer_init(&server->loop, &server->gpu);
    (void)uv_timer_init(&server->loop, &server->pace);
    (void)uv_prepare_init(&server->loop, &server->prepare);
    (void)uv_check_init(&server->loop, &server->check);
    (void)uv_idle_init(&server->loop, &server->busy);
    dlxd_manager_init(&server->manager, &server->loop, &server->broker);
    server->term.data = server->interrupt.data = server->hangup.data = server;
    server->replace.data = server;
    dlxd_upgrade_init(&server->upgrade, &server->loop, &server->broker);
    server->hello.data = server->retry.data = server->expiry.data = server->prepare.data = server;
    server->reservations.data = server->looks.data = server->idle.data = server->check.data =
        server;
    server->trim.data = server->gpu.data = server->pace.data = server->paths.data = server;
    (void)uv_signal_start(&server->term, on_signal, SIGTERM);
    (void)uv_signal_start(&server->interrupt, on_signal, SIGINT);
    return 0;
}

/* Descriptors in flight to and from the GPU keeper are no client's. */
static int start_gpu(struct dlxd_server *server)
{
    struct dlxd_broker *broker = &server->broker;
    uint64_t part = DLX_MIN(broker->users.all_in_flight_max / 4, DLXD_GPU_IN_FLIGHT_MAX);
    broker->users.all_in_flight_max -= part;
    return dlxd_gpu_keeper_new(&broker->gpu, broker->watches, broker->workers, broker->socket_path,
                               (uint32_t)part);
}

int dlxd_server_listen(struct dlxd_server *server, const struct dlxd_listen *how)
{
    return dlxd_sockets_add(&server->sockets, how);
}

int dlxd_server_new(struct dlxd_server **ret, const struct dlxd_listen *main_socket,
                    const struct dlx_memory *memory)
{
    dlx_cleanup(dlx__closep) int listen_fd = main_socket->take_fd;
    dlx_cleanup(dlx__closep) int lock_fd =
        main_socket->borrow_lock ? main_socket->take_lock_fd : -1;
    struct dlxd_listen how = *main_socket;
    struct dlxd_server *server = calloc(1, sizeof *server);
    if (!server)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory");
    /* libuv aborts if it cannot make or register a pipe, which it does in the first turn of the
     * loop. */
    void (*before)(int) = signal(SIGABRT, on_abort);
    int r = uv_loop_init(&server->loop);
    if (r < 0) {
        (void)signal(SIGABRT, before);
        free(server);
        return dlx__fail(dlx__error_from_errno(-r), "event loop: %s", uv_strerror(r));
    }
    dlxd_sockets_init(&server->sockets, &server->broker);
    r = dlxd_broker_init(&server->broker, &server->loop, memory, &dlxd_dispatch,
                         dlxd_memory_available(""));
    if (r == 0)
        r = init_handles(server);
    if (r == 0)
        (void)uv_run(&server->loop, UV_RUN_NOWAIT);
    (void)signal(SIGABRT, before);
    if (r == 0) {
        how.take_fd = dlx__steal_fd(&listen_fd);
        how.take_lock_fd = dlx__steal_fd(&lock_fd);
        r = dlxd_server_listen(server, &how);
    }
    if (r < 0) {
        dlxd_server_free(server);
        return r;
    }
    server->broker.socket_path = dlxd_sockets_main_path(&server->sockets);
    r = start_gpu(server);
    if (r < 0) {
        dlxd_server_free(server);
        return r;
    }
    (void)uv_prepare_start(&server->prepare, on_prepare);
    (void)uv_check_start(&server->check, on_check);
    *ret = server;
    return 0;
}

int dlxd_server_set_rules(struct dlxd_server *server, const struct dlxd_rules *borrow_rules)
{
    server->broker.policy.borrow_rules = borrow_rules;
    dlx_for_each (it, &server->broker.clients)
        dlxd_client_review(dlxd_container_of(it, struct dlxd_client, node));
    return borrow_rules->n > 0 ? dlxd_sockets_share(&server->sockets) : 0;
}

struct dlxd_workers *dlxd_server_workers(struct dlxd_server *server)
{
    return server->broker.workers;
}

void dlxd_server_set_quotas(struct dlxd_server *server, const struct dlxd_quotas *borrow_quotas,
                            uint64_t shared_bytes)
{
    dlxd_users_set_quotas(&server->broker.users, borrow_quotas, shared_bytes);
}

static int hand_over_sockets(void *data, struct dlxd_handover *handover)
{
    const struct dlxd_server *server = data;
    return dlxd_sockets_hand_over(&server->sockets, handover);
}

void dlxd_server_set_arguments(struct dlxd_server *server, char *const *argv)
{
    dlxd_upgrade_enable(&server->upgrade, argv, hand_over_sockets, on_no_upgrade, server);
    (void)uv_signal_start(&server->replace, on_replace, SIGUSR2);
}

void dlxd_server_on_hangup(struct dlxd_server *server, void (*fn)(void *data), void *data)
{
    server->on_hangup = fn;
    server->hangup_data = data;
    (void)uv_signal_start(&server->hangup, on_hangup, SIGHUP);
}

void dlxd_server_set_idle_exit(struct dlxd_server *server, uint64_t idle_ms)
{
    server->idle_ms = idle_ms;
}

int dlxd_server_keep(struct dlxd_server *server, uint32_t max_fds,
                     struct dlxd_manager_fds *manager_fds)
{
    server->is_successor = manager_fds->is_handed_over;
    int r = max_fds > 0 ? dlxd_store_init(&server->broker, max_fds, manager_fds) : 0;
    if (!server->broker.store && manager_fds->is_handed_over)
        dlxd_restore_handed_over(&server->broker, manager_fds);
    return r;
}

int dlxd_server_run(struct dlxd_server *server)
{
    dlxd_sockets_log(&server->sockets);
    dlxd_manager_tell_ready(&server->manager);
    server->turn_began_ns = cpu_time_ns();
    if (server->is_successor)
        dlxd_upgrade_block_signals(false);
    if (dlxd_sockets_are_ours(&server->sockets))
        (void)uv_timer_start(&server->paths, on_paths, PATHS_MS, PATHS_MS);
    (void)uv_run(&server->loop, UV_RUN_DEFAULT);
    (void)uv_timer_stop(&server->paths);
    dlxd_manager_tell_stopping(&server->manager);
    server->broker.stopping = true;
    /* The store goes first: publishers that end here must not end for the next daemon. */
    dlxd_store_deinit(&server->broker);
    dlxd_gpu_keeper_close(server->broker.gpu);
    dlx_for_each (it, &server->broker.clients)
        dlxd_client_disconnect(dlxd_container_of(it, struct dlxd_client, node), DLX_E_DISCONNECTED,
                               "dlpackd is stopping");
    dlxd_broker_settle(&server->broker);
    return server->code;
}
