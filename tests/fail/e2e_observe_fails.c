/* SPDX-License-Identifier: Apache-2.0 */

/* A story of an observer, as those of e2e_fails: each call of the daemon, or of the library, fails
 * once. What is told after that is right, or an error is. */

#include "client/control/client.h"
#include "tests/fail/harness_fail.h"
#include "tests/fail/harness_server.h"
#include "tests/harness/stream.h"

/* Waits until the observer is told that the only object of this kind is there, or gone. An observer
 * that lost what was told is told all again. */
static int watch_for(struct dlx_test_cast *x, uint32_t kind, bool gone, uint32_t n_groups)
{
    struct dlx_observed seen = {.size = sizeof seen};
    do
        DLX_TEST_TRY(dlx_observer_next(x->o, PATIENCE, &seen));
    while (seen.kind != kind || seen.gone != gone);
    dlx_test_fail_expect(strcmp(seen.topic, "calls/a") == 0, "the topic that is observed");
    dlx_test_fail_expect(seen.n_groups == n_groups, "the groups of a publisher");
    dlx_test_fail_expect(n_groups == 0 || strcmp(seen.groups[1], "two") == 0, "names of groups");
    return 0;
}

static int observe_everything(struct dlx_test_cast *x, uint64_t *ret_n_lost)
{
    static const char *const groups[] = {"one", "two"};
    const struct dlx_publisher_args *pa =
        PUBLISHER(.groups = groups, .n_groups = 2, .retain_for_ns = DLX_RETAIN_LATCHED);
    DLX_TEST_TRY(dlx_test_server_connect(&x->c[0]));
    DLX_TEST_TRY(dlx_test_server_connect(&x->c[1]));
    DLX_TEST_TRY(dlx_observer_new(x->c[0], "calls/*", NULL, &x->o));
    int fd = dlx_observer_fd(x->o);
    DLX_TEST_TRY(fd);
    DLX_TEST_TRY(dlx_publisher_new(x->c[1], "calls/a", pa, &x->p));
    DLX_TEST_TRY(watch_for(x, DLX_OBSERVED_PUBLISHER, false, 2));
    DLX_TEST_TRY(dlx_subscribe(x->c[1], "calls/a", NULL, &x->s));
    DLX_TEST_TRY(watch_for(x, DLX_OBSERVED_SUBSCRIPTION, false, 0));
    x->s = dlx_subscription_unref(x->s);
    DLX_TEST_TRY(watch_for(x, DLX_OBSERVED_SUBSCRIPTION, true, 0));
    x->p = dlx_publisher_unref(x->p);
    DLX_TEST_TRY(watch_for(x, DLX_OBSERVED_PUBLISHER, true, 2));
    *ret_n_lost = atomic_load(&x->c[0]->epoch) + atomic_load(&x->c[1]->epoch);
    return 0;
}

static int tell_observers(int who, struct dlx_test_fail *fail)
{
    return dlx_test_server_tell(observe_everything, who, fail);
}

static const struct dlx_test_fail_story stories[] = {
    {"the daemon", tell_observers, DLX_TEST_DAEMON_FAILS, .n_calls = 100, .n_errors = 8},
    {"the library", tell_observers, DLX_TEST_LIBRARY_FAILS, .n_calls = 100, .n_errors = 8},
};

LOOP_TEST(each_call_of_an_observer_fails_once, 0, DLX_ARRAY_SIZE(stories))
{
    dlx_test_fail_each(&stories[_i]);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_server_case("observe_fails"));
}
