/* SPDX-License-Identifier: Apache-2.0 */

/* What errors say beside their codes: who, how much, and what to do. */

#include "tests/harness/stream.h"
#include <dlx/gpu.h>

static struct dlx_test_pair x;
static struct dlx_message *m;
static char words_kept[512]; /* of a failure, before other calls change them */

static void keep_words(void)
{
    (void)snprintf(words_kept, sizeof words_kept, "%s", dlx_client_errmsg(NULL));
}

static int subscribe_reliably(void)
{
    struct dlx_subscription *s;
    return dlx_subscribe(x.c, "test/a", SUBSCRIBE(.reliable = true), &s);
}

static int hold_too_many(void)
{
    struct dlx_message *held[17] = {NULL};
    int r = 0;
    for (int i = 0; i < 17 && r == 0; i++) {
        dlx_test_stream_publish(x.p, 1, i);
        r = dlx_take(x.s, PATIENCE, &held[i]);
    }
    dlx_test_stream_unref_messages(held, 17);
    return r;
}

/* Of a set with two names. */
static int find(const char *name)
{
    uint32_t i;
    if (!m) {
        const struct dlx_item items[] = {{"rgb", dlx_test_stream_alloc(x.p, 1, 1)},
                                         {"depth", dlx_test_stream_alloc(x.p, 1, 1)}};
        ok(dlx_publish_set(x.p, items, 2, NULL, NULL));
        ok(dlx_take(x.s, PATIENCE, &m));
    }
    return dlx_message_find(m, name, &i);
}

static int find_nothing(void)
{
    return find("detph");
}

static int find_in_one_without_a_name(void)
{
    dlx_test_stream_publish(x.p, 1, 1);
    ok(dlx_take(x.s, PATIENCE, &m));
    return find("depth");
}

static int publish_on(int32_t type)
{
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 1, 1);
    const DLDevice before = t->dl_tensor.device;
    t->dl_tensor.device = (DLDevice){(DLDeviceType)type, 1};
    int r = dlx_publish(x.p, t, NULL);
    t->dl_tensor.device = before;
    t->deleter(t);
    return r;
}

static int publish_on_metal(void)
{
    return publish_on(kDLMetal);
}

static int publish_on_what_is_unknown(void)
{
    return publish_on(77);
}

static int take_of_nobody(void)
{
    struct dlx_subscription *s = dlx_test_stream_subscribe(x.c, "test/nobody", NULL);
    int r = dlx_take(s, 1000000, &m);
    keep_words();
    dlx_subscription_unref(s);
    ck_assert_msg(strstr(words_kept, dlx_test_stream_daemon.path), "%s", words_kept);
    return r;
}

static int take_of_a_silent_one(void)
{
    int r = dlx_take(x.s, 1000000, &m);
    ck_assert_ptr_null(strstr(dlx_client_errmsg(NULL), "nobody"));
    return r;
}

static int get_of_nobody(void)
{
    int r = dlx_get(x.c, "test/nobody", 1000000, &m);
    keep_words();
    ck_assert_msg(strstr(words_kept, dlx_test_stream_daemon.path), "%s", words_kept);
    return r;
}

/* Told once as DLX_E_QOS, and then whenever nothing came in time. */
static int take_of_one_that_drops(void)
{
    auto_subscription *s =
        dlx_test_stream_subscribe(x.c, "test/drops", SUBSCRIBE(.reliable = true));
    auto_publisher *p = dlx_test_stream_publisher(x.c, "test/drops", NULL);
    fails(dlx_take(s, PATIENCE, &m), DLX_E_QOS, "drops its oldest messages");
    int r = dlx_take(s, 1000000, &m);
    keep_words();
    ck_assert_msg(strstr(words_kept, "drops its oldest messages"), "%s", words_kept);
    ck_assert_int_eq(dlx_take(s, 1000000, &m), r);
    ck_assert_str_eq(dlx_client_errmsg(NULL), words_kept);
    return r;
}

/* The refusal is no reason any more once another publisher was there. */
static int take_after_one_that_blocks(void)
{
    auto_subscription *s =
        dlx_test_stream_subscribe(x.c, "test/drops", SUBSCRIBE(.reliable = true));
    struct dlx_publisher *p = dlx_test_stream_publisher(x.c, "test/drops", NULL);
    fails(dlx_take(s, PATIENCE, &m), DLX_E_QOS, "drops its oldest messages");
    dlx_publisher_unref(p);
    ok(dlx_publisher_new(x.c, "test/drops", PUBLISHER(.on_full = DLX_ON_FULL_BLOCK), &p));
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    dlx_publisher_unref(p);
    fails(dlx_take(s, PATIENCE, &m), DLX_E_PUBLISHER_GONE, "the last publisher left");
    int r = dlx_take(s, 1000000, &m);
    keep_words();
    return r;
}

static int get_of_a_silent_one(void)
{
    int r = dlx_get(x.c, "test/a", 0, &m);
    ck_assert_ptr_null(strstr(dlx_client_errmsg(NULL), "nobody"));
    return r;
}

/* Nothing is published then. */
static int publish_with_a_report_without_its_size(void)
{
    struct dlx_publish_report report = {0};
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 1, 1);
    int r = dlx_publish(x.p, t, PUBLISH(.report = &report));
    keep_words();
    ck_assert_int_eq(dlx_take(x.s, 0, &m), DLX_E_EMPTY);
    t->deleter(t);
    return r;
}

static int publish_twice(void)
{
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 1, 1);
    ok(dlx_publish(x.p, t, NULL));
    return dlx_publish(x.p, t, NULL);
}

static const struct {
    int (*call)(void);
    int code;
    const char *words;
} rows[] = {
    {subscribe_reliably, DLX_E_QOS,
     "drops its oldest messages: make it a publisher that blocks (on_full), or subscribe without "
     "`reliable`"},
    {hold_too_many, DLX_E_TOO_MANY_HELD,
     "16 messages are held, the limit of this subscription (max_held): release some first, or "
     "subscribe with a larger max_held"},
    {find_nothing, DLX_E_NOT_FOUND, "has no tensor \"detph\": it has \"rgb\", \"depth\""},
    {find_in_one_without_a_name, DLX_E_NOT_FOUND,
     "has no tensor \"depth\": its 1 tensors have no names"},
    {publish_on_metal, DLX_E_DEVICE,
     "a tensor on Metal device 1 (device type 8) cannot be carried, only in memory of the CPU and "
     "of CUDA and ROCm: copy it to the CPU first"},
    {publish_on_what_is_unknown, DLX_E_DEVICE, "a tensor on device type 77 cannot be carried"},
    {take_of_nobody, DLX_E_TIMEOUT,
     "topic test/nobody: no message in time, since nobody publishes it at "},
    {take_of_a_silent_one, DLX_E_TIMEOUT, "topic test/a: no message in time"},
    {get_of_nobody, DLX_E_TIMEOUT,
     "topic test/nobody has no message, and none came: nobody publishes it at "},
    {take_of_one_that_drops, DLX_E_TIMEOUT,
     "topic test/drops: no message in time, since a publisher was refused: subscriber "},
    {take_after_one_that_blocks, DLX_E_TIMEOUT,
     "topic test/drops: no message in time, since nobody publishes it at "},
    {get_of_a_silent_one, DLX_E_EMPTY, "topic test/a has no message"},
    {publish_with_a_report_without_its_size, DLX_E_INVALID, "result struct of 0 bytes, at least "},
    {publish_twice, DLX_E_INVALID, "allocate another one, or publish with `share`"},
};

LOOP_TEST(an_error_says_what_to_do, 0, sizeof rows / sizeof rows[0])
{
    x = dlx_test_pair_make(NULL, NULL);
    m = NULL;
    words_kept[0] = '\0';
    ck_assert_int_eq(rows[_i].call(), rows[_i].code);
    if (!*words_kept)
        keep_words();
    ck_assert_msg(strstr(words_kept, rows[_i].words), "\"%s\" lacks \"%s\"", words_kept,
                  rows[_i].words);
    dlx_message_unref(m);
    dlx_test_pair_end(&x);
}

/* Names that do not fit are left out, and the words stay whole. */
TEST(many_names_are_cut)
{
    char names[50][24];
    struct dlx_item items[50];
    uint32_t found;
    x = dlx_test_pair_make(NULL, NULL);
    for (int i = 0; i < 50; i++) {
        (void)snprintf(names[i], sizeof names[i], "layer.%d.weight", i);
        items[i] = (struct dlx_item){names[i], dlx_test_stream_alloc(x.p, 1, 1)};
    }
    ok(dlx_publish_set(x.p, items, 50, NULL, NULL));
    ok(dlx_take(x.s, PATIENCE, &m));
    fails(dlx_message_find(m, "layer", &found), DLX_E_NOT_FOUND,
          "it has \"layer.0.weight\", \"layer.1.weight\", ");
    fails(dlx_message_find(m, "layer", &found), DLX_E_NOT_FOUND, "\" and others");
    dlx_message_unref(m);
    dlx_test_pair_end(&x);
}
