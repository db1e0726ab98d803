/* SPDX-License-Identifier: Apache-2.0 */

/* Calls that a caller must not make end the program in debug mode, with the reason on stderr. */

#include "tests/harness/fork.h"
#include "tests/harness/stream.h"
#include <signal.h>

enum { N = 1000 };

static struct dlx_test_pair x; /* not released: the process dies */

static DLManagedTensorVersioned *alloc(void)
{
    return dlx_test_stream_alloc(x.p, N, 0);
}

static DLManagedTensorVersioned *published(void)
{
    DLManagedTensorVersioned *t = alloc();
    ok(dlx_publish(x.p, t, NULL, NULL));
    return t;
}

static struct dlx_message *taken(void)
{
    published();
    return dlx_test_stream_next(x.s);
}

static DLManagedTensorVersioned *received(struct dlx_message *m, bool private)
{
    DLManagedTensorVersioned *t = NULL;
    ok(private ? dlx_message_tensor_private(m, 0, &t) : dlx_message_tensor(m, 0, &t));
    return t;
}

/* Other objects come and go, so that released memory could be in use again. */
static void pass_others(void)
{
    for (int i = 0; i < 50; i++)
        dlx_message_unref(taken());
}

static void delete_twice(bool late)
{
    DLManagedTensorVersioned *t = alloc();
    t->deleter(t);
    if (late)
        pass_others();
    t->deleter(t);
}

static void delete_published(bool late)
{
    DLManagedTensorVersioned *t = published();
    if (late)
        pass_others();
    t->deleter(t);
}

static void delete_after_the_publisher(bool late)
{
    DLManagedTensorVersioned *t = alloc();
    x.p = dlx_publisher_unref(x.p);
    t->deleter(t);
    (void)late;
    t->deleter(t);
}

static void unref_twice(bool late)
{
    struct dlx_message *m = taken();
    dlx_message_unref(m);
    if (late)
        pass_others();
    dlx_message_unref(m);
}

static void unref_a_set_twice(bool late)
{
    const struct dlx_item items[] = {{"a", alloc()}, {"b", alloc()}};
    ok(dlx_publish_set(x.p, items, 2, NULL, NULL, NULL));
    struct dlx_message *m = dlx_test_stream_next(x.s);
    dlx_message_unref(m);
    if (late)
        pass_others();
    dlx_message_unref(m);
}

static void unref_after_the_subscription(bool late)
{
    struct dlx_message *m = taken();
    dlx_message_unref(m);
    if (late)
        pass_others();
    x.s = dlx_subscription_unref(x.s);
    dlx_message_unref(m);
}

static void ask_a_released_message(bool late)
{
    struct dlx_message *m = taken();
    dlx_message_unref(m);
    if (late)
        pass_others();
    (void)dlx_message_seq(m);
}

static void peek_into_a_released_message(bool late)
{
    struct dlx_message *m = taken();
    dlx_message_unref(m);
    if (late)
        pass_others();
    (void)dlx_message_tensor_peek(m, 0);
}

static void get_a_tensor_of_a_released_message(bool late)
{
    struct dlx_message *m = taken();
    dlx_message_unref(m);
    if (late)
        pass_others();
    (void)received(m, false);
}

static void delete_a_received_tensor_twice(bool late)
{
    struct dlx_message *m = taken();
    DLManagedTensorVersioned *t = received(m, false);
    t->deleter(t);
    if (late)
        pass_others();
    t->deleter(t); /* the message is still held */
}

static void delete_a_tensor_of_a_released_message_twice(bool late)
{
    struct dlx_message *m = taken();
    DLManagedTensorVersioned *t = received(m, false);
    dlx_message_unref(m);
    t->deleter(t);
    if (late)
        pass_others();
    t->deleter(t);
}

static void delete_a_private_tensor_twice(bool late)
{
    struct dlx_message *m = taken();
    DLManagedTensorVersioned *t = received(m, true);
    t->deleter(t);
    if (late)
        pass_others();
    t->deleter(t);
}

static void use_a_released_publisher(bool late)
{
    struct dlx_publisher *p = x.p;
    DLManagedTensorVersioned *t = alloc();
    dlx_publisher_unref(p);
    if (late)
        (void)dlx_publish(p, t, NULL, NULL);
    else
        dlx_publisher_unref(p);
}

static void use_a_released_subscription(bool late)
{
    struct dlx_subscription *s = x.s;
    struct dlx_message *m;
    dlx_subscription_unref(s);
    if (late)
        (void)dlx_take(s, 0, &m);
    else
        dlx_subscription_unref(s);
}

static void use_a_released_client(bool late)
{
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p;
    dlx_client_unref(c);
    if (late)
        (void)dlx_publisher_new(c, "test/b", NULL, &p);
    else
        dlx_client_unref(c);
}

/* The publisher and the subscription have references to it. */
static void release_a_client_in_use_twice(bool late)
{
    dlx_client_unref(x.c);
    if (late)
        pass_others();
    dlx_client_unref(x.c);
}

static void write_beyond_the_end(bool late)
{
    DLManagedTensorVersioned *t = alloc();
    ((volatile int64_t *)t->dl_tensor.data)[N] = 7;
    if (late)
        t->deleter(t);
    else
        ok(dlx_publish(x.p, t, NULL, NULL));
}

/* Whole pages, behind which there is nothing to round. */
static void write_beyond_the_end_of_pages(bool late)
{
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 512, 0);
    const struct dlx_item item = {"t", t};
    ((volatile uint8_t *)t->dl_tensor.data)[4096 + 63] = 7;
    if (late)
        t->deleter(t);
    else
        ok(dlx_publish_set(x.p, &item, 1, NULL, NULL, NULL));
}

static const struct {
    void (*mistake)(bool late);
    const char *words;
} cases[] = {
    {delete_twice, "the deleter of a tensor of dlx_alloc()"},
    {delete_published, "the deleter of a tensor of dlx_alloc()"},
    {delete_after_the_publisher, "the deleter of a tensor of dlx_alloc()"},
    {unref_twice, "dlx_message_unref(): it was released before"},
    {unref_a_set_twice, "dlx_message_unref(): it was released before"},
    {unref_after_the_subscription, "dlx_message_unref(): it was released before"},
    {ask_a_released_message, "a message was used after dlx_message_unref()"},
    {peek_into_a_released_message, "a message was used after dlx_message_unref()"},
    {get_a_tensor_of_a_released_message, "a call on a handle or a message"},
    {delete_a_received_tensor_twice, "the deleter of a received tensor was called twice"},
    {delete_a_tensor_of_a_released_message_twice,
     "the deleter of a received tensor was called twice"},
    {delete_a_private_tensor_twice, "the deleter of a private tensor: it was released before"},
    {use_a_released_publisher, "released before"},
    {use_a_released_subscription, "released before"},
    {use_a_released_client, "released before"},
    {release_a_client_in_use_twice, "dlx_client_unref(): it was released before"},
    {write_beyond_the_end, "8000 bytes, from"},
    {write_beyond_the_end_of_pages, "at byte 4159"},
};

struct told {
    int which;
    bool late;
};

static void make_mistake(const void *userdata)
{
    const struct told *told = userdata;
    signal(SIGABRT, SIG_DFL); /* a sanitizer's handler would exit */
    dlx_set_debug(true);
    x = dlx_test_pair_make(NULL, NULL);
    cases[told->which].mistake(told->late);
    _exit(0);
}

LOOP_TEST(a_mistake_of_the_caller_ends_the_program_with_the_reason, 0,
          2 * (int)DLX_ARRAY_SIZE(cases))
{
    const struct told told = {_i / 2, _i % 2};
    char said[2048];
    int status = dlx_test_fork_said(make_mistake, &told, said, sizeof said);
    contains(said, cases[told.which].words);
    ck_assert_int_eq(status, 256 + SIGABRT);
}

/* All that a program may do, with what is in quarantine by then. */
TEST(a_program_without_mistakes_goes_on)
{
    dlx_set_debug(true);
    auto_pair y = dlx_test_pair_make(NULL, NULL);
    for (int i = 0; i < 5000; i++) {
        DLManagedTensorVersioned *t = NULL, *private = NULL;
        DLManagedTensorVersioned *unused = dlx_test_stream_alloc(y.p, N, i);
        unused->deleter(unused);
        struct dlx_message *m = dlx_test_pair_pass(&y, N, i);
        ok(dlx_message_tensor(m, 0, &t));
        ok(dlx_message_tensor_private(m, 0, &private));
        dlx_message_unref(dlx_message_ref(m));
        dlx_test_stream_check(m, N, i);
        dlx_message_unref(m);
        ck_assert_int_eq(((const int64_t *)t->dl_tensor.data)[N - 1], N - 1 + i);
        t->deleter(t);
        private->deleter(private);
    }
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(y.s).n_held, 0);
}
