/* SPDX-License-Identifier: Apache-2.0 */

/* When a subscription says that its publishers have left: n_publishers of struct dlx_subscribe_args. */

#include "tests/harness/stream.h"
#include <string.h>

static struct dlx_subscription *subscribe(struct dlx_client *c, uint32_t n_publishers)
{
    const struct dlx_subscribe_args args = {.size = sizeof args, .n_publishers = n_publishers};
    struct dlx_subscription *s = NULL;
    ok(dlx_subscribe(c, "b/*", &args, &s));
    return s;
}

/* A publisher that comes, publishes one message, and leaves. */
static void come_and_go(struct dlx_client *c, struct dlx_subscription *s, const char *topic)
{
    struct dlx_publisher *p = NULL;
    struct dlx_message *m = NULL;
    ok(dlx_publisher_new(c, topic, NULL, &p));
    dlx_test_stream_publish(p, 10, 1);
    dlx_publisher_unref(p);
    ok(dlx_take(s, PATIENCE, &m));
    ck_assert_str_eq(dlx_message_topic(m), topic);
    dlx_message_unref(m);
}

/* Until the subscription knows that nobody is attached. */
static void wait_until_alone(struct dlx_subscription *s)
{
    struct dlx_subscription_stats stats = {.size = sizeof stats, .n_publishers = 1};
    struct dlx_message *m = NULL;
    while (stats.n_publishers > 0) {
        fails(dlx_take(s, SECOND / 1000, &m), DLX_E_TIMEOUT, "no message in time");
        ok(dlx_subscription_get_stats(s, &stats));
    }
}

START_TEST(a_subscription_ends_when_so_many_publishers_have_left)
{
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_subscription *s = subscribe(c, 2);
    struct dlx_message *m = NULL;
    for (int round = 0; round < 2; round++) { /* the count begins again */
        come_and_go(c, s, "b/0");
        wait_until_alone(s);
        come_and_go(c, s, "b/1");
        fails(dlx_take(s, PATIENCE, &m), DLX_E_PUBLISHER_GONE, "b/*");
        fails(dlx_take(s, SECOND / 100, &m), DLX_E_TIMEOUT, "b/*");
    }
    dlx_subscription_unref(s);
    dlx_client_unref(c);
}
END_TEST

START_TEST(a_subscription_does_not_end_while_a_publisher_is_attached)
{
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_subscription *s = subscribe(c, 2);
    struct dlx_publisher *p = NULL;
    struct dlx_message *m = NULL;
    ok(dlx_publisher_new(c, "b/third", NULL, &p));
    for (int i = 0; i < 3; i++)
        come_and_go(c, s, "b/0");
    fails(dlx_take(s, SECOND / 100, &m), DLX_E_TIMEOUT, "b/*");
    dlx_publisher_unref(p);
    fails(dlx_take(s, PATIENCE, &m), DLX_E_PUBLISHER_GONE, "b/*");
    dlx_subscription_unref(s);
    dlx_client_unref(c);
}
END_TEST

START_TEST(a_subscription_to_any_publishers_never_ends)
{
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_subscription *s = subscribe(c, DLX_PUBLISHERS_ANY);
    for (int i = 0; i < 3; i++) {
        come_and_go(c, s, "b/0");
        wait_until_alone(s);
    }
    dlx_subscription_unref(s);
    dlx_client_unref(c);
}
END_TEST

/* A restart of the daemon: the first publisher is there all the time, whatever daemon it is attached by. */
START_TEST(a_publisher_that_reconnects_has_not_left)
{
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_subscription *s = subscribe(c, 2);
    struct dlx_publisher *p = NULL;
    struct dlx_message *m = NULL;
    ok(dlx_publisher_new(c, "b/0", NULL, &p));
    for (int64_t value = 1; value <= 4; value++) {
        dlx_test_stream_publish(p, 10, value);
        dlx_test_stream_take(s, value);
        dlx_test_stream_restart();
        ++value;
        dlx_test_stream_publish(p, value << 20, value); /* needs memory of the new daemon */
        ok(dlx_take(s, PATIENCE, &m));
        ck_assert_uint_eq(dlx_message_seq(m), (uint64_t)value);
        dlx_message_unref(m);
    }
    dlx_publisher_unref(p);
    wait_until_alone(s);
    come_and_go(c, s, "b/1");
    fails(dlx_take(s, PATIENCE, &m), DLX_E_PUBLISHER_GONE, "b/*");
    dlx_subscription_unref(s);
    dlx_client_unref(c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ends");
    TCase *tcase = dlx_test_stream_case("ends");
    tcase_add_test(tcase, a_subscription_ends_when_so_many_publishers_have_left);
    tcase_add_test(tcase, a_subscription_does_not_end_while_a_publisher_is_attached);
    tcase_add_test(tcase, a_subscription_to_any_publishers_never_ends);
    tcase_add_test(tcase, a_publisher_that_reconnects_has_not_left);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
