/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What publishers and readers ask of the GPU keeper, with each of the daemon's calls of the C
 * library failing once: each request is answered once, nothing is left, and the next requests
 * succeed.
 */

#include "common/error.h"
#include "daemon/gpu/keeper.h"
#include "tests/harness/broker.h"
#include "tests/harness/daemon.h"
#include "tests/fail/harness_fail.h"
#include "tests/harness/fds.h"
#include "tests/harness/keeper.h"
#include "tests/harness/run.h"
#include <check.h>
#include <sched.h>
#include <string.h>

#define ORIGIN     77U
#define ALLOCATION 7U
#define A_WHILE    INT64_C(20000000000)

static struct dlx_test_broker test;
static struct dlx_test_keeper router;
static struct dlxd_user *user;
static char daemon_socket[108];

struct outcome {
    unsigned n; /* answers */
    int code;
    int sock;
};

static void on_answer(void *owner, int code, const char *text, int take_sock)
{
    struct outcome *outcome = owner;
    (void)text;
    outcome->n++;
    outcome->code = code;
    outcome->sock = take_sock;
}

/* What the server's loop does. No ck_ here: calls may fail. */
static bool wait_for(const struct outcome *outcome)
{
    uint64_t deadline = dlx__deadline(A_WHILE);
    while (outcome->n == 0 && dlx__now_ns() < deadline) {
        (void)uv_run(&test.loop, UV_RUN_NOWAIT);
        dlxd_broker_settle(&test.broker);
        dlxd_gpu_keeper_look(test.broker.gpu, dlx__now_ns());
        (void)sched_yield();
    }
    return outcome->n > 0;
}

/* Returns the answer's code; 1: there was none. The socket is `*ret_sock`, or is closed. */
static int own(struct dlxd_gpu_member *member, int *ret_sock)
{
    struct outcome outcome = {.sock = -1};
    struct dlxd_gpu_call *call = NULL;
    int r = dlxd_gpu_call_own(&call, test.broker.gpu, user, member, ORIGIN, user->uid, on_answer,
                              &outcome);
    if (r == 0)
        r = wait_for(&outcome) ? outcome.code : 1;
    *ret_sock = outcome.sock;
    return r;
}

static int get(int *ret_sock)
{
    struct outcome outcome = {.sock = -1};
    struct dlxd_gpu_call *call = NULL;
    int r = dlxd_gpu_call_get(&call, test.broker.gpu, user, ORIGIN, user->uid, ALLOCATION,
                              on_answer, &outcome);
    if (r == 0)
        r = wait_for(&outcome) ? outcome.code : 1;
    *ret_sock = outcome.sock;
    return r;
}

/* A connection that the keeper and the daemon make anew, a publisher and a reader. */
static int requests(void)
{
    struct dlxd_gpu_member member = {.origin = NULL};
    int owner = -1, reader = -1;
    int r = dlxd_gpu_keeper_new(&test.broker.gpu, test.broker.watches, test.broker.workers,
                                daemon_socket, 64);
    if (r < 0)
        return r;
    r = own(&member, &owner);
    if (r == 0)
        r = get(&reader);
    dlx__close(owner);
    dlx__close(reader);
    dlxd_gpu_keeper_leave(test.broker.gpu, &member);
    test.broker.gpu = dlxd_gpu_keeper_free(test.broker.gpu);
    return r;
}

static void set_up(void)
{
    const struct dlxd_principal who = {.uid = 1000};
    const struct dlxk_router_options options = {.grace_ns = UINT64_C(3600000000000)};
    dlx_test_keeper_start(&router, &options);
    size_t size = strlen(router.path) - strlen(DLX_KEEPER_SUFFIX);
    memcpy(daemon_socket, router.path, size);
    daemon_socket[size] = '\0';
    dlx_test_broker_init(&test, UINT64_C(1) << 30);
    ck_assert_int_eq(dlxd_users_get(&test.broker.users, &who, &user), 0);
}

static void tear_down(void)
{
    dlxd_user_unref(user);
    dlx_test_broker_deinit(&test);
    dlx_test_keeper_kill(&router);
}

TEST(a_request_of_which_a_call_fails_is_answered_once_and_leaves_nothing)
{
    struct dlx_test_fail fail = {.at = 0};
    size_t n_failed = 0;
    ck_assert_int_eq(requests(), 0);
    size_t n_fds = dlx_test_broker_n_fds(&test);
    while (dlx_test_fail_next(&fail)) {
        const char *call;
        dlx__error_clear();
        dlx_test_fail(&fail);
        int r = requests();
        dlx_test_fail(NULL);
        call = fail.call ? fail.call : "nothing";
        ck_assert_msg(r <= 0, "%s failed with %s: there was no answer", call, strerror(fail.error));
        ck_assert_msg(r != DLX_E_TIMEOUT, "%s failed with %s: the answer took 5 s", call,
                      strerror(fail.error));
        n_failed += r < 0;
        ck_assert_msg(dlx_test_broker_n_fds(&test) == n_fds,
                      "%s failed with %s: %zu files, not %zu", call, strerror(fail.error),
                      dlx_test_broker_n_fds(&test), n_fds);
        ck_assert_msg(requests() == 0, "after %s failed with %s: %s", call, strerror(fail.error),
                      dlx__error_message());
    }
    ck_assert_uint_gt(n_failed, 5);
}

int main(void)
{
    TCase *tcase = tcase_create("daemon_gpu_fails");
    tcase_set_timeout(tcase, 4 * PATIENCE_S);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    return dlx_test_run_case(tcase);
}
