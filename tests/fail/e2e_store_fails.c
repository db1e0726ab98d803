/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Retained messages that outlive their daemon, with each call of the C library failing once: of the
 * daemon that gives them to the service manager, or of the one that takes them back. They are there
 * as they were, or not there; nobody waits for ever, and no descriptor is left.
 */

#include "common/memory.h"
#include "daemon/persist/manager_fds.h"
#include "daemon/server/listener.h"
#include "daemon/server/server.h"
#include "tests/fail/harness_fail.h"
#include "tests/harness/fds.h"
#include "tests/harness/manager.h"
#include "tests/harness/stream.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { N = 50, LAST = 7 };

static struct dlx_test_daemon place;
static struct dlx_test_manager manager;
static struct dlxd_server *server;
static struct dlxd_manager_fds manager_fds;
static pthread_t thread;

/* ---- daemons ------------------------------------------------------------------------------- */

static void *run_server(void *fail)
{
    dlx_test_fail(fail);
    (void)dlxd_server_keep(server, 100, &manager_fds);
    dlxd_manager_fds_deinit(&manager_fds);
    dlxd_server_run(server);
    dlx_test_fail(NULL);
    return NULL;
}

/* With what the manager keeps, once it has read what the last one said. */
static void start_server(struct dlx_test_fail *fail)
{
    const char *name = getenv("DLX_MEMORY");
    struct pollfd p = {.fd = manager.sock, .events = POLLIN};
    while (poll(&p, 1, 0) == 1)
        (void)poll(NULL, 0, 1);
    pthread_mutex_lock(&manager.lock);
    manager_fds = (struct dlxd_manager_fds){.fds = calloc(manager.n + 1, sizeof *manager_fds.fds)};
    ck_assert_ptr_nonnull(manager_fds.fds);
    for (size_t i = 0; i < manager.n; i++)
        manager_fds.fds[manager_fds.n++] =
            (struct dlxd_manager_fd){.fd = fcntl(manager.kept[i].fd, F_DUPFD_CLOEXEC, 0),
                                     .name = strdup(manager.kept[i].name)};
    pthread_mutex_unlock(&manager.lock);
    ck_assert_int_eq(dlxd_server_new(&server,
                                     &(struct dlxd_listen){.path = place.path, .take_fd = -1},
                                     dlx__memory_by_name(name ? name : "memfd")),
                     0);
    ck_assert_int_eq(pthread_create(&thread, NULL, run_server, fail), 0);
}

static void stop_server(void)
{
    ck_assert_int_eq(kill(getpid(), SIGTERM), 0); /* libuv hands it on */
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    server = dlxd_server_free(server);
}

/* ---- clients ------------------------------------------------------------------------------- */

static int connect_to(struct dlx_client **ret)
{
    struct dlx_connect_args args = {
        .size = sizeof args, .socket = place.path, .timeout_ns = PATIENCE};
    return dlx_connect(ret, &args);
}

/* As far as it goes, when the daemon has its difficulties. Returns whether all went well. */
static bool leave_messages(void)
{
    struct dlx_client *c = NULL;
    struct dlx_publisher *p = NULL;
    struct dlx_publisher_args args = {.size = sizeof args, .retain = 1};
    int64_t n = N;
    struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLInt, 64, 1}, .ndim = 1, .shape = &n};
    int r = connect_to(&c);
    if (r == 0)
        r = dlx_publisher_new(c, "store/a", &args, &p);
    for (int64_t value = 1; r == 0 && value <= LAST; value++) {
        DLManagedTensorVersioned *t = NULL;
        r = dlx_alloc(p, &spec, &t);
        for (int64_t i = 0; r == 0 && i < N; i++)
            ((int64_t *)t->dl_tensor.data)[i] = value + i;
        if (r == 0)
            r = dlx_publish(p, t, NULL);
        if (r < 0 && t)
            t->deleter(t);
    }
    ck_assert_msg(r == 0 || (r != DLX_E_TIMEOUT && *dlx_client_errmsg(NULL)), "%s: %s",
                  dlx_strerror(r), dlx_client_errmsg(NULL));
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    return r == 0;
}

/* The message, or none, or words. Returns whether it is there. */
static bool look(bool clumsy)
{
    struct dlx_client *c = NULL;
    struct dlx_message *m = NULL;
    int r = connect_to(&c);
    if (r == 0)
        r = dlx_get(c, "store/a", 0, &m);
    if (r == 0) {
        const int64_t *data = dlx_message_peek(m, 0)->data;
        ck_assert_int_le(data[0], LAST);
        ck_assert_int_eq(data[N - 1], data[0] + N - 1);
    }
    ck_assert_msg(r == 0 || r == DLX_E_EMPTY ||
                      (clumsy && r != DLX_E_TIMEOUT && *dlx_client_errmsg(NULL)),
                  "%s: %s", dlx_strerror(r), dlx_client_errmsg(NULL));
    dlx_message_unref(m);
    dlx_client_unref(c);
    return r == 0;
}

/* One life of messages: the daemons that they see, of which one fails. */
static void live(struct dlx_test_fail *fail, bool first_fails)
{
    dlx_test_manager_start(&manager, &place);
    setenv("NOTIFY_SOCKET", manager.path, 1);
    start_server(first_fails ? fail : NULL);
    bool left = leave_messages();
    stop_server();
    start_server(first_fails ? NULL : fail);
    bool there = look(!first_fails);
    stop_server();
    bool smooth = !fail || !fail->call;
    ck_assert_msg(there || !smooth, "they are not there, and no call failed");
    ck_assert(left || first_fails);
    start_server(NULL);
    bool still_there = look(false);
    stop_server();
    ck_assert_msg(still_there || !there || !smooth, "they were there, and are there no more");
    dlx_test_manager_stop(&manager);
}

static void live_with_each_failure(bool first_fails)
{
    struct dlx_test_fail fail = {.at = 0};
    live(NULL, first_fails);
    size_t n = dlx_test_fds_count(), n_points = 0;
    for (; dlx_test_fail_next(&fail); n_points++) {
        live(&fail, first_fails);
        ck_assert_msg(dlx_test_fds_count() == n,
                      "%s (call %zu) failed with %s: %zu descriptors, %zu before",
                      fail.call ? fail.call : "nothing", (size_t)fail.at, strerror(fail.error),
                      dlx_test_fds_count(), n);
    }
    ck_assert_uint_gt(n_points, 30);
}

TEST(a_call_of_the_daemon_that_gives_fails)
{
    live_with_each_failure(true);
}

TEST(a_call_of_the_daemon_that_takes_back_fails)
{
    live_with_each_failure(false);
}

int main(void)
{
    TCase *tcase = tcase_create("store");
    tcase_set_timeout(tcase, 5 * PATIENCE_S);
    dlx_test_dir_fixture(tcase, &place);
    return dlx_test_run_case(tcase);
}
