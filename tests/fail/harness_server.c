/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fail/harness_server.h"
#include "common/memory.h"
#include "daemon/server/listener.h"
#include "daemon/server/server.h"
#include "tests/harness/stream.h"

static char path[128];
static struct dlxd_server *server;
static pthread_t thread;

static struct dlxd_manager_fds *manager_fds;

static void *run(void *fail)
{
    dlx_test_fail(fail);
    if (manager_fds) {
        (void)dlxd_server_keep(server, 100, manager_fds); /* without it, it only says so */
        dlxd_manager_fds_deinit(manager_fds);
    }
    dlxd_server_run(server);
    dlx_test_fail(NULL);
    return NULL;
}

void dlx_test_server_start(struct dlx_test_fail *fail, struct dlxd_manager_fds *take_fds)
{
    const char *name = getenv("DLX_MEMORY");
    manager_fds = take_fds;
    ck_assert_int_eq(dlxd_server_new(&server, &(struct dlxd_listen){.path = path, .take_fd = -1},
                                     dlx__memory_by_name(name ? name : "memfd")),
                     0);
    ck_assert_int_eq(pthread_create(&thread, NULL, run, fail), 0);
}

void dlx_test_server_stop(void)
{
    ck_assert_int_eq(kill(getpid(), SIGTERM), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    server = dlxd_server_free(server);
}

int dlx_test_server_connect(struct dlx_client **ret)
{
    const struct dlx_connect_args args = {
        .size = sizeof args, .socket = path, .timeout_ns = PATIENCE};
    return dlx_connect(&args, ret);
}

/* Libuv keeps a pipe for signals, from the first server on. */
static void start_and_stop(void)
{
    (void)snprintf(path, sizeof path, "%.100s/server", dlx_test_stream_daemon.dir);
    dlx_test_server_start(NULL, NULL);
    dlx_test_server_stop();
}

TCase *dlx_test_server_case(const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 5 * PATIENCE_S);
    dlx_test_dir_fixture(tcase, &dlx_test_stream_daemon);
    tcase_add_checked_fixture(tcase, start_and_stop, NULL);
    dlx_test_stream_add_daemon(tcase);
    return tcase;
}

/* ---- those who use it ------------------------------------------------------------------------ */

void dlx_test_cast_give_back(struct dlx_test_cast *x)
{
    for (size_t i = 0; i < DLX_TEST_CAST_TENSORS; i++) {
        if (x->t[i])
            x->t[i]->deleter(x->t[i]);
        x->t[i] = NULL;
    }
    if (x->legacy)
        x->legacy->deleter(x->legacy);
    x->legacy = NULL;
    x->m = dlx_message_unref(x->m);
    x->request = dlx_request_unref(x->request);
}

void dlx_test_cast_leave(struct dlx_test_cast *x)
{
    dlx_test_cast_give_back(x);
    dlx_caller_unref(x->caller);
    dlx_service_unref(x->service);
    dlx_subscription_unref(x->pattern);
    dlx_observer_unref(x->o);
    dlx_subscription_unref(x->s);
    dlx_publisher_unref(x->p);
    dlx_client_unref(x->c[0]);
    dlx_client_unref(x->c[1]);
}

struct dlx_tensor_spec dlx_test_cast_spec(int32_t ndim, const int64_t *shape)
{
    return (struct dlx_tensor_spec){.size = sizeof(struct dlx_tensor_spec),
                                    .dtype = {kDLInt, 64, 1},
                                    .ndim = ndim,
                                    .shape = shape};
}

int dlx_test_cast_publish(struct dlx_test_cast *x, int64_t n, int64_t value)
{
    const struct dlx_tensor_spec spec = dlx_test_cast_spec(1, &n);
    DLX_TEST_TRY(dlx_alloc(x->p, &spec, &x->t[0]));
    for (int64_t i = 0; i < n; i++)
        ((int64_t *)x->t[0]->dl_tensor.data)[i] = value + i;
    DLX_TEST_TRY(dlx_publish(x->p, x->t[0], NULL, NULL));
    x->t[0] = NULL;
    return 0;
}

void dlx_test_cast_check(struct dlx_test_cast *x, int64_t n, int64_t value)
{
    const DLTensor *t = dlx_message_tensor_peek(x->m, 0);
    const int64_t *data = t->data;
    dlx_test_fail_expect(t->shape[0] == n && data[0] == value && data[n - 1] == value + n - 1,
                         "the values of a message");
    x->m = dlx_message_unref(x->m);
}

/* ---- stories --------------------------------------------------------------------------------- */

static int play_and_leave(dlx_test_cast_play play, const struct dlx_test_fail *fail,
                          struct dlx_test_fail *own, uint64_t *ret_n_lost)
{
    struct dlx_test_cast x = {.fail = fail};
    *ret_n_lost = 0;
    dlx_test_fail(own);
    int r = dlx_test_fail_say(play(&x, ret_n_lost));
    dlx_test_cast_leave(&x);
    dlx_test_fail(NULL);
    return r;
}

static bool is_empty(struct dlx_client *c)
{
    (void)dlx_drop_retained(c, "calls/a");
    (void)dlx_drop_queue(c, "calls/q");
    (void)dlx_drop_queue(c, "calls/s");
    const struct dlx_daemon_info info = dlx_test_stream_daemon_info(c);
    return info.shared_bytes == 0 && info.n_publishers == 0 && info.n_clients == 1;
}

/* Soon nothing is left of any client. Messages of a client that may be alive stay until its death
 * is known: drop them. */
static void wait_until_empty(void)
{
    auto_client *c = NULL;
    ok(dlx_test_server_connect(&c));
    eventually(is_empty(c));
}

int dlx_test_server_tell(dlx_test_cast_play play, enum dlx_test_server_who who,
                         struct dlx_test_fail *fail)
{
    uint64_t n_lost, n_lost_later;
    dlx_test_server_start(who == DLX_TEST_DAEMON_FAILS ? fail : NULL, NULL);
    int r = play_and_leave(play, fail, who == DLX_TEST_LIBRARY_FAILS ? fail : NULL, &n_lost);
    const char *call = dlx_test_fail_stop(fail);
    /* A call that the daemon repeats, or makes at its next look, fails unnoticed. */
    if (who == DLX_TEST_DAEMON_FAILS && call && (fail->error == EINTR || strcmp(call, "poll") == 0))
        dlx_test_fail_expect(r == 0 && n_lost == 0, "that nobody notices");
    wait_until_empty();
    ok(play_and_leave(play, NULL, NULL, &n_lost_later));
    wait_until_empty();
    dlx_test_server_stop();
    return r;
}
