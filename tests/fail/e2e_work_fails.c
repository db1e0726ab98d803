/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Stories of work queues, as those of e2e_fails.c: each time one call of the C library fails. What
 * fails is tried again; no message is lost, and nothing is left.
 */

#include "tests/fail/harness_retry.h"
#include "tests/harness/stream.h"

enum { N = 100 };

static int publish(struct dlx_test_cast *x, int64_t value)
{
    DLX_TEST_RETRY(dlx_test_cast_publish(x, N, value));
    return 0;
}

static int get(struct dlx_test_cast *x)
{
    DLX_TEST_RETRY(dlx_get(x->c[0], "calls/a", 0, &x->m));
    return 0;
}

#define WORKER(...)                                                                                \
    SUBSCRIBE(.group = "g", .max_held = 2, .max_attempts = 2, .dead_letters = "calls/a",           \
              __VA_ARGS__)

static int see_group(const struct dlx_group_info *info, void *userdata)
{
    *(struct dlx_group_info *)userdata = *info;
    return 0;
}

static int see_claim(const struct dlx_claim_info *info, void *userdata)
{
    *(uint64_t *)userdata = info->seq;
    return 0;
}

/* A message of a queue, in this delivery. */
static int take_work(struct dlx_test_cast *x, uint32_t attempt)
{
    DLX_TEST_RETRY(dlx_take(x->s, PATIENCE, &x->m));
    dlx_test_fail_expect(dlx_message_attempt(x->m) == attempt, "the attempt");
    return 0;
}

static int take_nothing(struct dlx_test_cast *x)
{
    int r = dlx_take(x->s, 0, &x->m);
    dlx_test_fail_expect(r < 0, "no message");
    return r == DLX_E_EMPTY ? 0 : r;
}

static int do_next(struct dlx_test_cast *x, int64_t value)
{
    DLX_TEST_TRY(take_work(x, 1));
    DLX_TEST_RETRY(dlx_message_done(x->m));
    dlx_test_cast_check(x, N, value);
    return 0;
}

static int list_work(struct dlx_test_cast *x)
{
    struct dlx_group_info group = {.n_workers = 0};
    uint64_t claimed = 0;
    DLX_TEST_RETRY(dlx_list_groups(x->c[1], "calls/*", see_group, &group));
    DLX_TEST_RETRY(dlx_list_claims(x->c[1], group.publisher, group.group, see_claim, &claimed));
    /* A page that the daemon could not read is told as empty. */
    dlx_test_fail_expect(claimed <= 2 && group.done <= 1 && group.n_workers == 1, "the group");
    return 0;
}

/* The second one of two attempts is the last. */
static int let_die(struct dlx_test_cast *x)
{
    struct dlx_event event = {.size = sizeof event};
    DLX_TEST_UNTROUBLED(publish(x, 2));
    DLX_TEST_TRY(take_work(x, 1));
    DLX_TEST_TRY(list_work(x));
    DLX_TEST_RETRY(dlx_message_give_back(x->m));
    dlx_test_cast_check(x, N, 2);
    DLX_TEST_TRY(take_work(x, 2));
    bool had_failed = dlx_test_retry_has_failed(x);
    dlx_test_cast_check(x, N, 2); /* which gives it back */
    DLX_TEST_RETRY(take_nothing(x));
    while (event.kind != DLX_EVENT_DEAD_LETTER)
        DLX_TEST_TRY(dlx_subscription_next_event(x->s, &event));
    if (!strstr(event.reason, "a copy was published")) {
        dlx_test_fail_expect(dlx_test_retry_has_failed(x) && !had_failed,
                             "a copy of the dead letter");
        return 0;
    }
    DLX_TEST_UNTROUBLED(get(x));
    dlx_test_cast_check(x, N, 2);
    return 0;
}

static int drain_in_vain(struct dlx_test_cast *x)
{
    int r = dlx_publisher_drain(x->p, 1000);
    dlx_test_fail_expect(r < 0, "that a message is not done");
    return r == DLX_E_TIMEOUT ? 0 : r;
}

static int drain(struct dlx_test_cast *x)
{
    DLX_TEST_UNTROUBLED(publish(x, 3));
    DLX_TEST_TRY(take_work(x, 1));
    DLX_TEST_RETRY(drain_in_vain(x));
    DLX_TEST_RETRY(dlx_message_done_at_release(x->m));
    dlx_test_cast_check(x, N, 3);
    DLX_TEST_RETRY(dlx_publisher_drain(x->p, PATIENCE));
    return 0;
}

/* A queue, whose publisher goes before all is done. */
static int play_work(struct dlx_test_cast *x, uint64_t *ret_n_lost)
{
    const struct dlx_publisher_args *pa =
        PUBLISHER(.groups = (const char *const[]){"g"}, .n_groups = 1);
    DLX_TEST_TRY(dlx_test_retry_connect(x));
    DLX_TEST_RETRY(dlx_publisher_new(x->c[0], "calls/q", pa, &x->p));
    DLX_TEST_RETRY(dlx_subscribe(x->c[1], "calls/q", WORKER(), &x->s));
    DLX_TEST_UNTROUBLED(publish(x, 1));
    DLX_TEST_TRY(do_next(x, 1));
    DLX_TEST_TRY(let_die(x));
    DLX_TEST_TRY(drain(x));
    DLX_TEST_RETRY(dlx_subscribe(x->c[0], "calls/*", WORKER(), &x->pattern));
    x->pattern = dlx_subscription_unref(x->pattern);
    DLX_TEST_UNTROUBLED(publish(x, 4));
    x->p = dlx_publisher_unref(x->p);
    DLX_TEST_TRY(do_next(x, 4));
    *ret_n_lost = dlx_test_retry_n_lost(x);
    return dlx_test_retry_first();
}

static int tell(int kind, struct dlx_test_fail *fail)
{
    return dlx_test_retry_tell(play_work, kind, fail);
}

static const struct dlx_test_fail_story stories[] = {
    {"work, and the daemon", tell, DLX_TEST_RETRY_DAEMON, .n_calls = 300, .n_errors = 10},
    {"work that goes on", tell, DLX_TEST_RETRY_LIBRARY, .n_calls = 300, .n_errors = 10},
};

LOOP_TEST(each_call_fails_once, 0, DLX_ARRAY_SIZE(stories))
{
    dlx_test_fail_each(&stories[_i]);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_server_case("work_fails"));
}
