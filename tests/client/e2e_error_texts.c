/* SPDX-License-Identifier: Apache-2.0 */

/* The texts of errors beside their codes: which peer, how much, and what to do. */

#include "tests/harness/stream.h"

TEST(a_reliable_subscribe_is_told_of_a_publisher_that_drops)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "cam/front", NULL);
    struct dlx_subscription *s;
    fails(dlx_subscribe(c, "cam/*", SUBSCRIBE_RELIABLY, &s), DLX_E_QOS,
          "drops its oldest messages: make it a publisher that blocks (on_full), or subscribe "
          "without `reliable`");
    ck_assert_ptr_nonnull(strstr(dlx_errmsg(), "link to cam/front"));
}

TEST(a_subscriber_that_holds_too_many_is_told_the_limit)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *held[16];
    for (int i = 0; i < 16; i++) {
        dlx_test_stream_publish(x.p, 1, i);
        held[i] = dlx_test_stream_next(x.s);
    }
    dlx_test_stream_publish(x.p, 1, 16);
    take_fails(
        x.s, PATIENCE, DLX_E_TOO_MANY_HELD,
        "16 messages are held, the limit of this subscription (max_held): release some first, or "
        "subscribe with a larger max_held");
    dlx_test_stream_unref_messages(held, 16);
}

/* Until a time-out; the words are kept from other calls. */
static const char *words_of_take(struct dlx_subscription *s)
{
    static char words[512];
    take_fails(s, 1000000, DLX_E_TIMEOUT, "");
    (void)snprintf(words, sizeof words, "%s", dlx_errmsg());
    return words;
}

static void has(const char *text, const char *words)
{
    ck_assert_msg(strstr(text, words), "\"%s\" lacks \"%s\"", text, words);
}

TEST(a_take_without_a_message_says_if_the_topic_has_a_publisher)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *m = NULL;
    auto_subscription *s = dlx_test_stream_subscribe(x.c, "test/nobody", NULL);
    has(words_of_take(s), "topic test/nobody: no message in time, since nobody publishes it at ");
    has(words_of_take(s), dlx_test_stream_daemon.path);
    fails(dlx_get(x.c, "test/nobody", 1000000, &m), DLX_E_TIMEOUT,
          "topic test/nobody has no message, and none came: nobody publishes it at ");
    has(dlx_errmsg(), dlx_test_stream_daemon.path);
    has(words_of_take(x.s), "topic test/a: no message in time");
    ck_assert_ptr_null(strstr(dlx_errmsg(), "nobody"));
    fails(dlx_get(x.c, "test/a", 0, &m), DLX_E_EMPTY, "topic test/a has no message");
    ck_assert_ptr_null(strstr(dlx_errmsg(), "nobody"));
}

/* Told once as DLX_E_QOS, and then whenever nothing came in time; it is no reason any more once
 * another publisher was there. */
TEST(a_publisher_that_was_refused_is_a_reason_until_another_one_comes)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/drops", SUBSCRIBE_RELIABLY);
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/drops", NULL);
    take_fails(s, PATIENCE, DLX_E_QOS, "drops its oldest messages");
    const char *words = words_of_take(s);
    has(words, "topic test/drops: no message in time, since a publisher was refused: subscriber ");
    has(words, "drops its oldest messages");
    take_fails(s, 1000000, DLX_E_TIMEOUT, "");
    ck_assert_str_eq(dlx_errmsg(), words);
    dlx_publisher_unref(p);
    p = dlx_test_stream_publisher(c, "test/drops", PUBLISHER_BLOCKING(.depth = 16));
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_publisher_unref(p);
    take_fails(s, PATIENCE, DLX_E_PUBLISHER_GONE, "the last publisher left");
    has(words_of_take(s), "topic test/drops: no message in time, since nobody publishes it at ");
}

TEST(a_device_that_cannot_be_carried_is_named)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    auto_tensor *t = dlx_test_stream_alloc(x.p, 1, 1);
    const DLDevice before = t->dl_tensor.device;
    t->dl_tensor.device = (DLDevice){kDLMetal, 1};
    fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_DEVICE,
          "a tensor on Metal device 1 (device type 8) cannot be carried, only in memory of the CPU "
          "and of CUDA and ROCm: copy it to the CPU first");
    t->dl_tensor.device.device_type = (DLDeviceType)77;
    fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_DEVICE,
          "a tensor on device type 77 cannot be carried");
    t->dl_tensor.device = before;
}

/* Nothing is published then. */
TEST(a_report_without_its_size_is_told)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_publish_report report = {0};
    auto_tensor *t = dlx_test_stream_alloc(x.p, 1, 1);
    fails(dlx_publish(x.p, t, NULL, &report), DLX_E_INVALID, "result struct of 0 bytes, at least ");
    take_fails(x.s, 0, DLX_E_EMPTY, "");
}

TEST(a_search_for_an_absent_name_is_told_the_present_ones)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    uint32_t i;
    const struct dlx_item items[] = {{"rgb", dlx_test_stream_alloc(x.p, 1, 1)},
                                     {"depth", dlx_test_stream_alloc(x.p, 1, 1)}};
    ok(dlx_publish_set(x.p, items, 2, NULL, NULL, NULL));
    dlx_test_stream_publish(x.p, 1, 1);
    auto_message *set = dlx_test_stream_next(x.s), *m = dlx_test_stream_next(x.s);
    fails(dlx_message_tensor_find(set, "detph", &i), DLX_E_NOT_FOUND,
          "has no tensor \"detph\": it has \"rgb\", \"depth\"");
    fails(dlx_message_tensor_find(m, "depth", &i), DLX_E_NOT_FOUND,
          "has no tensor \"depth\": its 1 tensors have no names");
}

/* Names that do not fit are left out, and the words stay whole. */
TEST(many_names_are_cut)
{
    char names[50][24];
    struct dlx_item items[50];
    uint32_t found;
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    for (int i = 0; i < 50; i++) {
        (void)snprintf(names[i], sizeof names[i], "layer.%d.weight", i);
        items[i] = (struct dlx_item){names[i], dlx_test_stream_alloc(x.p, 1, 1)};
    }
    ok(dlx_publish_set(x.p, items, 50, NULL, NULL, NULL));
    auto_message *m = dlx_test_stream_next(x.s);
    fails(dlx_message_tensor_find(m, "layer", &found), DLX_E_NOT_FOUND,
          "it has \"layer.0.weight\", \"layer.1.weight\", ");
    has(dlx_errmsg(), "\" and others");
}
