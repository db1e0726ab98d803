/* SPDX-License-Identifier: Apache-2.0 */

/* The debug mode: a write to a published message faults at once, and nothing else does. */

#include "tests/harness/fork.h"
#include "tests/harness/maps.h"
#include "tests/harness/stream.h"

#define PAGE ((size_t)sysconf(_SC_PAGESIZE))

static const struct dlx_publish_args strict = {.size = sizeof strict, .strict = true};
static const struct dlx_publish_args share = {.size = sizeof share, .share = true, .strict = true};

static bool is_protected(const DLManagedTensorVersioned *t)
{
    return dlx_test_faults(t->dl_tensor.data);
}

enum { AS_IT_IS, SET_ON, SET_OFF };

/* A process that writes to what it has published: its wait status. */
static int status_of_writer(const char *env, int set)
{
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        if (env)
            setenv("DLX_DEBUG", env, 1);
        else
            unsetenv("DLX_DEBUG");
        if (set != AS_IT_IS)
            dlx_set_debug(set == SET_ON);
        struct dlx_client *c = dlx_test_stream_connect();
        static struct dlx_publisher *p; /* not released: the process dies */
        p = dlx_test_stream_publisher(c, "test/a", NULL);
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, 1);
        volatile int64_t *data = t->dl_tensor.data;
        ok(dlx_publish(p, t, NULL, NULL));
        signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would exit */
        int64_t seen = data[9];   /* reading is no crime */
        data[9] = seen;
        _exit(seen == 10 ? 42 : 1);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return status;
}

TEST(a_publisher_that_writes_to_what_it_published_dies)
{
    static const struct {
        const char *env;
        int set;
        bool dies;
    } cases[] = {{NULL, AS_IT_IS, false}, {"0", AS_IT_IS, false},  {"", AS_IT_IS, false},
                 {"1", AS_IT_IS, true},   {"10", AS_IT_IS, false}, {NULL, SET_ON, true},
                 {"0", SET_ON, true},     {"1", SET_OFF, false}};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++) {
        int status = status_of_writer(cases[i].env, cases[i].set);
        ck_assert_msg(cases[i].dies ? WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV
                                    : WIFEXITED(status) && WEXITSTATUS(status) == 42,
                      "case %zu: %x", i, (unsigned)status);
    }
}

/* A publisher is in the mode or not for all of its life; the library reads the environment once. */
TEST(the_mode_is_that_of_when_the_publisher_was_made)
{
    static const bool on[] = {true, true, false, true};
    setenv("DLX_DEBUG", "1", 1);
    auto_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p[4];
    for (int i = 0; i < 4; i++) {
        if (i == 1)
            setenv("DLX_DEBUG", "0", 1);
        if (i >= 2)
            dlx_set_debug(on[i]);
        ok(dlx_publisher_new(c, "test/a", NULL, &p[i]));
    }
    for (int i = 0; i < 4; i++) {
        auto_tensor *t = dlx_test_stream_alloc(p[i], 10, 1);
        ok(dlx_publish(p[i], t, &share, NULL));
        ck_assert_int_eq(is_protected(t), on[i]);
    }
    dlx_test_stream_unref_publishers(p, 4);
}

TEST(small_neighbours_are_not_affected)
{
    dlx_set_debug(true);
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *t[20];
    for (int i = 0; i < 20; i++)
        t[i] = dlx_test_stream_alloc(x.p, 1, i);
    ck_assert_uint_le(dlx_test_stream_stats(x.p).n_arenas, 8); /* several share one */
    for (int i = 0; i < 20; i += 2)
        ok(dlx_publish(x.p, t[i], &share, NULL));
    for (int i = 0; i < 20; i++) {
        uint8_t *data = t[i]->dl_tensor.data;
        ck_assert_uint_eq((uintptr_t)data % PAGE, 0);
        ck_assert_int_eq(dlx_test_faults(data), i % 2 == 0);
        ck_assert_int_eq(dlx_test_faults(data + PAGE - 1), i % 2 == 0);
    }
    for (int i = 0; i < 20; i++) {
        if (i % 2 == 0)
            dlx_test_stream_expect(x.s, 1, i);
        t[i]->deleter(t[i]);
    }
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).unprotected, 0);
}

/* Each is filled, published and read, again and again from the same memory. */
TEST(memory_is_writable_when_it_is_used_again)
{
    dlx_set_debug(true);
    auto_pair x = dlx_test_pair_make(PUBLISHER(.history = 1), NULL);
    for (int64_t i = 0; i < 5000; i++) {
        int64_t n = i % 7 == 0 ? 1000 : 100;
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, n, i);
        if (i % 3 == 0) {
            ok(dlx_publish(x.p, t, &share, NULL));
            dlx_test_stream_expect(x.s, n, i);
            ck_assert(is_protected(t));
        }
        ok(dlx_publish(x.p, t, &strict, NULL));
        dlx_test_stream_expect(x.s, n, i);
    }
    ck_assert_uint_lt(dlx_test_stream_stats(x.p).arena_bytes, 4 << 20); /* of 20 MB that it took */
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).unprotected, 0);
}

TEST(a_shared_tensor_stays_protected_when_its_message_is_gone)
{
    dlx_set_debug(true);
    auto_pair x = dlx_test_pair_make(PUBLISHER(.depth = 2), NULL);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, 1), *again;
    const void *memory = t->dl_tensor.data;
    ck_assert(!is_protected(t));
    ok(dlx_publish(x.p, t, &share, NULL));
    dlx_test_stream_expect(x.s, 10, 1);
    for (int64_t i = 0; i < 50; i++) {
        dlx_test_stream_publish(x.p, 10, i);
        dlx_test_stream_expect(x.s, 10, i);
    }
    ck_assert(is_protected(t));
    t->deleter(t);
    bool seen = false;
    for (int64_t i = 0; i < 50; i++) {
        again = dlx_test_stream_alloc(x.p, 10, i); /* writes */
        seen |= again->dl_tensor.data == memory;
        ok(dlx_publish(x.p, again, NULL, NULL));
    }
    ck_assert(seen);
    /* A tensor may outlive the publisher. */
    again = dlx_test_stream_alloc(x.p, 10, 1);
    ok(dlx_publish(x.p, again, &share, NULL));
    x.p = dlx_publisher_unref(x.p);
    ck_assert(is_protected(again));
    again->deleter(again);
}

/* Every part of a message: its tensors, what was copied, and the manifest. No subscriber is here,
 * so what is mapped read-only is what was protected. */
TEST(all_of_a_message_is_protected)
{
    dlx_set_debug(true);
    auto_client *c = dlx_test_stream_connect();
    int64_t number = 5, shape[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    DLManagedTensorVersioned foreign = INT64_TENSOR(&number, shape), *t[3];
    struct dlx_tensor_spec specs[3] = {INT64_SPEC(shape), INT64_SPEC(shape), INT64_SPEC(shape)};
    specs[1].ndim = 9;
    specs[2].ndim = foreign.dl_tensor.ndim = 0;
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    struct dlx_item items[] = {{"a", NULL}, {"b", NULL}, {"c", NULL}, {"copied", &foreign}};
    uint64_t pages = 0;
    ck_assert_uint_eq(dlx_test_protected_bytes("dlx-arena"), 0);
    ok(dlx_publish(p, &foreign, NULL, NULL));
    ck_assert_uint_eq(dlx_test_protected_bytes("dlx-arena"), (pages += 1) * PAGE);
    foreign.dl_tensor.ndim = 9; /* with a manifest */
    ok(dlx_publish(p, &foreign, NULL, NULL));
    ck_assert_uint_eq(dlx_test_protected_bytes("dlx-arena"), (pages += 2) * PAGE);
    ok(dlx_alloc_set(p, specs, 3, t));
    ck_assert_uint_eq(dlx_test_stream_stats(p).n_arenas,
                      1); /* it has as many small blocks as without the debug mode */
    for (int i = 0; i < 3; i++)
        items[i].tensor = t[i];
    ok(dlx_publish_set(p, items, 4, NULL, NULL, NULL));
    ck_assert_uint_eq(dlx_test_protected_bytes("dlx-arena"), (pages += 5) * PAGE);
    ok(dlx_alloc_set(p, specs, 3, t));
    for (int i = 0; i < 3; i++)
        items[i].tensor = t[i];
    ok(dlx_publish_set(p, items, 3, NULL, &share, NULL));
    ck_assert_uint_eq(dlx_test_protected_bytes("dlx-arena"), (pages += 4) * PAGE);
    for (int i = 0; i < 3; i++)
        ck_assert(is_protected(t[i]));
    ck_assert(!dlx_test_faults(&number)); /* private memory is the caller's */
    for (int i = 0; i < 3; i++)
        t[i]->deleter(t[i]);
    ck_assert_uint_eq(dlx_test_stream_stats(p).unprotected, 0);
    dlx_publisher_unref(p);
    ck_assert_uint_eq(dlx_test_protected_bytes("dlx-arena"), 0);
}

/* The size in the ring entry is that of the manifest, not of its pages: or one that is as large as
 * can be would seem larger than that to a subscriber. */
TEST(the_largest_manifest_arrives)
{
    static char meta[DLX_META_MAX], name[DLX_NAME_MAX + 1];
    struct dlx_bytes bytes = {meta, sizeof meta};
    int64_t shape[64];
    DLManagedTensorVersioned *t;
    size_t size;
    dlx_set_debug(true);
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    memset(name, 'n', sizeof name - 1);
    for (int i = 0; i < 64; i++)
        shape[i] = i < 2 ? 16 : 1;
    ok(dlx_alloc(x.p, SPEC(.dtype = {kDLInt, 8, 1}, .ndim = 64, .shape = shape), &t));
    t->dl_tensor.strides[0] = 1; /* not row-major: strides are in it, too */
    t->dl_tensor.strides[1] = 16;
    memset(t->dl_tensor.data, 9, 256);
    struct dlx_item item = {name, t};
    ok(dlx_publish_set(x.p, &item, 1, &bytes, &strict, NULL));
    auto_message *m = dlx_test_stream_next(x.s);
    ck_assert_str_eq(dlx_message_tensor_name(m, 0), name);
    ck_assert_int_eq(dlx_message_tensor_peek(m, 0)->strides[1], 16);
    (void)dlx_message_meta(m, &size);
    ck_assert_uint_eq(size, sizeof meta);
}

TEST(a_message_that_cannot_be_protected_is_published_and_counted)
{
    if (!dlx_test_maps_can_exhaust()) {
        puts("SKIP: mappings cannot be used up here");
        return;
    }
    dlx_set_debug(true);
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *t[4];
    for (int i = 0; i < 4; i++) /* all of the first arena: it is mapped by the subscriber, too */
        t[i] = dlx_test_stream_alloc(x.p, 1, i);
    ok(dlx_publish(x.p, t[3], NULL, NULL));
    dlx_test_stream_expect(x.s, 1, 3);
    struct dlx_test_maps maps = dlx_test_maps_exhaust();
    int r = dlx_publish(x.p, t[1], &share, NULL);
    dlx_test_maps_give_back(&maps);
    ck_assert_int_eq(r, 0);
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).unprotected, 1);
    ck_assert(!is_protected(t[1]));
    dlx_test_stream_expect(x.s, 1, 1);
    ok(dlx_publish(x.p, t[1], &share, NULL)); /* tries again */
    ck_assert(is_protected(t[1]));
    ck_assert_uint_eq(dlx_test_stream_stats(x.p).unprotected, 1);
    dlx_test_stream_expect(x.s, 1, 1);
    for (int i = 0; i < 3; i++)
        t[i]->deleter(t[i]);
}
