/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_get(): one message, the newest, now or when it comes; and structs of callers that were
 * compiled with another version. */

#include "tests/harness/stream.h"

static int64_t get(struct dlx_client *c, const char *topic)
{
    auto_message *m = NULL;
    ok(dlx_get(c, topic, 0, &m));
    const int64_t *data = dlx_message_tensor_peek(m, 0)->data;
    return data[0];
}

TEST(the_newest_of_several_publishers_is_got)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p[3];
    for (int i = 0; i < 3; i++)
        p[i] = dlx_test_stream_publisher(c, i < 2 ? "test/a" : "test/b", NULL);
    for (int64_t value = 1; value <= 12; value++) { /* from either publisher */
        dlx_test_stream_publish(p[value % 5 % 3], 10, value);
        ck_assert_int_eq(get(c, "test/*"), value);
    }
    dlx_test_stream_publish(p[0], 10, 13);
    dlx_test_stream_publish(p[2], 10, 14);
    ck_assert_int_eq(get(c, "test/a"), 13);
    dlx_test_stream_unref_publishers(p, 3);
}

/* A publisher that leaves nothing, and then one that publishes, each when a subscriber is there. */
static void *come_and_go(void *userdata)
{
    struct dlx_client *c = userdata;
    for (int i = 0; i < 2; i++) {
        struct dlx_publisher *p = NULL;
        if (dlx_publisher_new(c, "test/a", NULL, &p) < 0 || dlx_publisher_wait(p, 1, PATIENCE) < 0)
            return "it did not come";
        if (i == 1)
            dlx_test_stream_publish(p, 10, 7);
        dlx_publisher_unref(p);
    }
    return NULL;
}

LOOP_TEST(get_waits_for_the_first_message_whoever_leaves_without_one, 0, 2)
{
    static const int64_t timeouts[] = {DLX_FOREVER, PATIENCE};
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_message *m = NULL;
    void *wrong;
    pthread_t thread = dlx_test_stream_thread(come_and_go, other);
    ok(dlx_get(c, "test/a", timeouts[_i], &m));
    dlx_test_stream_check(m, 10, 7);
    ck_assert_int_eq(pthread_join(thread, &wrong), 0);
    ck_assert_msg(!wrong, "%s", (const char *)wrong);
}

TEST(fields_that_are_not_known_must_be_zero)
{
    struct {
        struct dlx_connect_args args;
        uint64_t later;
    } newer = {.args = {.size = sizeof newer, .socket = dlx_test_stream_daemon.path}};
    struct dlx_client *c = NULL;
    ok(dlx_connect(&newer.args, &c));
    dlx_client_unref(c);
    newer.later = 1;
    fails(dlx_connect(&newer.args, &c), DLX_E_INVALID, "does not know");
    newer.later = 0;
    newer.args.size = 0; /* forgotten */
    fails(dlx_connect(&newer.args, &c), DLX_E_INVALID, "is `size` set?");
    newer.args.size = offsetof(struct dlx_connect_args, interrupt_free); /* of earlier programs */
    ok(dlx_connect(&newer.args, &c));
    dlx_client_unref(c);
    newer.args.size--;
    fails(dlx_connect(&newer.args, &c), DLX_E_INVALID, "are needed");
}

TEST(results_are_as_long_as_the_caller_knows_them)
{
    struct {
        struct dlx_publisher_stats stats;
        uint64_t later;
    } newer = {.stats = {.size = sizeof newer}, .later = 5};
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    dlx_test_stream_publish(x.p, 10, 1);
    ok(dlx_publisher_get_stats(x.p, &newer.stats));
    ck_assert_uint_eq(newer.stats.published, 1);
    ck_assert_uint_eq(newer.stats.size, sizeof newer);
    ck_assert_uint_eq(newer.later, 5);
    newer.stats.size = 0;
    fails(dlx_publisher_get_stats(x.p, &newer.stats), DLX_E_INVALID, "is `size` set?");
}

TEST(arguments_that_no_connection_can_have_are_named)
{
    char name[300];
    struct dlx_connect_args args = {
        .size = sizeof args, .socket = dlx_test_stream_daemon.path, .name = name};
    struct dlx_client *c = NULL;
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    fails(dlx_connect(&args, &c), DLX_E_INVALID, "client name of 299 bytes must have at most ");
    args.name = "x";
    args.autospawn = 99;
    fails(dlx_connect(&args, &c), DLX_E_INVALID, "autospawn is 99");
    fails(dlx_connect(&args, NULL), DLX_E_INVALID, "ret is NULL");
    ck_assert_ptr_null(c);
    fails(dlx_get(NULL, "test/a", 0, NULL), DLX_E_INVALID, "ret is NULL");
    fails(dlx_drop_retained(NULL, "test/a"), DLX_E_INVALID, "client is NULL");
}
