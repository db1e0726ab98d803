/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_message_tensor_private(): what is written to is the caller's alone; what is not, is not
 * copied, and not used again. */

#include "tests/harness/fork.h"
#include "tests/harness/maps.h"
#include "tests/harness/seccomp.h"
#include "tests/harness/stream.h"
#include <inttypes.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#define LARGE     INT64_C(40000) /* elements, 320,000 bytes: a view */
#define SMALL     INT64_C(1000)  /* a copy */
#define COPIED(t) (((t)->flags & DLPACK_FLAG_BITMASK_IS_COPIED) != 0)

static int64_t *data(const DLManagedTensorVersioned *t)
{
    return t->dl_tensor.data;
}

/* Can this kernel do it? Then the library is to do it. Not before Linux 5.13, not under
 * valgrind. */
static bool kernel_has_views(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int fd = memfd_create("probe", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)page), 0);
    void *map = mmap(NULL, page, PROT_NONE, MAP_PRIVATE, fd, 0);
    close(fd);
    ck_assert_ptr_ne(map, MAP_FAILED);
    void *view = mremap(map, page, page, MREMAP_MAYMOVE | 4 /* MREMAP_DONTUNMAP */, NULL);
    munmap(map, page);
    if (view == MAP_FAILED)
        return false;
    munmap(view, page);
    return true;
}

/* Private to the caller, of what was published as `value` and up. */
static DLManagedTensorVersioned *private_of(struct dlx_message *m, uint32_t i, int64_t n,
                                            int64_t value)
{
    DLManagedTensorVersioned *t = NULL;
    ok(dlx_message_tensor_private(m, i, &t));
    ck_assert_uint_eq(t->flags & DLPACK_FLAG_BITMASK_READ_ONLY, 0);
    ck_assert_uint_eq(t->version.major, DLPACK_MAJOR_VERSION);
    ck_assert_int_eq(t->dl_tensor.ndim, 1);
    ck_assert_int_eq(t->dl_tensor.shape[0], n);
    ck_assert_int_eq(t->dl_tensor.strides[0], 1);
    ck_assert_uint_eq((uintptr_t)data(t) % DLX_ALIGNMENT, 0);
    int64_t k = 0;
    while (k < n && data(t)[k] == value + k)
        k++;
    ck_assert_int_eq(k, n);
    bool view = n * (int64_t)sizeof(int64_t) >= (INT64_C(256) << 10) && kernel_has_views();
    ck_assert_int_eq(COPIED(t), !view);
    return t;
}

static void fill(DLManagedTensorVersioned *t, int64_t value)
{
    for (int64_t i = 0; i < t->dl_tensor.shape[0]; i++)
        data(t)[i] = value;
}

/* Bytes of the mapping at `at` that are this process's own. */
static uint64_t own_bytes(const void *at)
{
    char line[512], text[40];
    uint64_t kib = UINT64_MAX;
    bool here = false;
    FILE *f = fopen("/proc/self/smaps", "re");
    ck_assert_ptr_nonnull(f);
    uintptr_t page = (uintptr_t)at & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
    (void)snprintf(text, sizeof text, "%" PRIxPTR "-", page);
    while (kib == UINT64_MAX && fgets(line, sizeof line, f)) {
        here |= strncmp(line, text, strlen(text)) == 0;
        if (here)
            (void)sscanf(line, "Anonymous: %" SCNu64, &kib);
    }
    (void)fclose(f);
    ck_assert_uint_ne(kib, UINT64_MAX);
    return kib * 1024;
}

TEST(a_write_to_a_private_tensor_is_seen_nowhere_else)
{
    static const int64_t sizes[] = {LARGE, SMALL};
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    auto_subscription *other = dlx_test_stream_subscribe(x.c, "test/a", NULL);
    for (int i = 0; i < 2; i++) {
        int64_t n = sizes[i];
        auto_tensor *published = dlx_test_stream_alloc(x.p, n, 5);
        ok(dlx_publish(x.p, published, PUBLISH(.share = true, .strict = true), NULL));
        auto_message *m = dlx_test_stream_next(x.s), *theirs = dlx_test_stream_next(other);
        auto_tensor *a = private_of(m, 0, n, 5), *b = private_of(m, 0, n, 5);
        fill(a, -1);
        data(b)[n - 1] = -2;
        dlx_test_stream_check(m, n, 5);
        dlx_test_stream_check(theirs, n, 5);
        ck_assert_int_eq(data(published)[0], 5);
        ck_assert_int_eq(data(published)[n - 1], 5 + n - 1);
        ck_assert_int_eq(data(a)[n - 1], -1);
        ck_assert_int_eq(data(b)[0], 5);
        auto_tensor *c = private_of(m, 0, n, 5);
        dlx_test_stream_end_tensor(&a);
        a = NULL;
        ck_assert_int_eq(data(b)[n - 1], -2);
    }
}

TEST(only_pages_that_are_written_to_are_copied)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    auto_message *m = dlx_test_pair_pass(&x, LARGE, 1);
    auto_tensor *t = private_of(m, 0, LARGE, 1);
    if (!COPIED(t)) {
        ck_assert_uint_eq(own_bytes(data(t)), 0);
        data(t)[LARGE / 2] = 0;
        ck_assert_uint_eq(own_bytes(data(t)), (uint64_t)sysconf(_SC_PAGESIZE));
    }
}

/* Tensors of a set lie one after the other, and begin and end anywhere in a page: a little less
 * than so many pages, from near the end of a page, are in one page more. */
TEST(tensors_of_a_set_are_apart)
{
    enum { N = 5, PAGES = 40960 };
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_tensor_spec specs[N];
    struct dlx_item items[N] = {{NULL, NULL}};
    DLManagedTensorVersioned *t[N];
    int64_t n[N];
    uint32_t n_within = 0;
    for (int64_t i = 0; i < N; i++) {
        n[i] = PAGES - 33 * i;
        specs[i] = (struct dlx_tensor_spec)INT64_SPEC(&n[i]);
    }
    ok(dlx_alloc_set(x.p, specs, N, t));
    for (int64_t i = 0; i < N; i++) {
        n_within += (uintptr_t)data(t[i]) % DLX_PAGE != 0;
        for (int64_t k = 0; k < n[i]; k++)
            data(t[i])[k] = 100 * i + k;
        items[i].tensor = t[i];
    }
    ck_assert_uint_gt(n_within, 0);
    ok(dlx_publish_set(x.p, items, N, NULL, NULL, NULL));
    struct dlx_message *m = dlx_test_stream_next(x.s);
    for (uint32_t i = 0; i < N; i++) {
        t[i] = private_of(m, i, n[i], 100 * i);
        fill(t[i], -1 - (int64_t)i);
    }
    for (uint32_t i = 0; i < N; i++) {
        ck_assert_int_eq(((int64_t *)dlx_message_tensor_peek(m, i)->data)[0], 100 * i);
        ck_assert_int_eq(data(t[i])[0], -1 - (int64_t)i);
        ck_assert_int_eq(data(t[i])[n[i] - 1], -1 - (int64_t)i);
    }
    dlx_message_unref(m);
    for (uint32_t i = 0; i < N; i++)
        t[i]->deleter(t[i]);
}

TEST(scalars_and_empty_tensors_are_copied)
{
    static const int64_t none[] = {3, 0};
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    for (int32_t ndim = 0; ndim <= 2; ndim += 2) {
        DLManagedTensorVersioned *t = NULL;
        ok(dlx_alloc(x.p, SPEC(.dtype = {kDLInt, 64, 1}, .ndim = ndim, .shape = none), &t));
        if (ndim == 0)
            *data(t) = 77;
        ok(dlx_publish(x.p, t, NULL, NULL));
        auto_message *m = dlx_test_stream_next(x.s);
        ok(dlx_message_tensor_private(m, 0, &t));
        ck_assert(COPIED(t));
        ck_assert_int_eq(t->dl_tensor.ndim, ndim);
        if (ndim == 0)
            ck_assert_int_eq((*data(t))++, 77);
        else
            ck_assert_int_eq(t->dl_tensor.shape[1], 0);
        t->deleter(t);
    }
}

/* Pages that were not written to are the publisher's: it must not use them while the view is
 * there. */
TEST(a_view_holds_its_message_and_a_copy_does_not)
{
    auto_pair x = dlx_test_pair_make(PUBLISHER(.depth = 2), SUBSCRIBE(.max_held = 1));
    struct dlx_message *m = dlx_test_pair_pass(&x, LARGE, 1);
    DLManagedTensorVersioned *t = private_of(m, 0, LARGE, 1);
    dlx_message_unref(m);
    if (!COPIED(t)) {
        data(t)[0] = -1;
        for (int64_t i = 0; i < 50; i++)
            dlx_test_stream_publish(x.p, LARGE, 1000 * i);
        fails(dlx_take(x.s, 0, &m), DLX_E_TOO_MANY_HELD, "1");
        ck_assert_int_eq(data(t)[0], -1);
        for (int64_t i = 1; i < LARGE; i += 100)
            ck_assert_int_eq(data(t)[i], 1 + i);
        t->deleter(t);
        dlx_message_unref(dlx_test_stream_next(x.s));
    } else {
        t->deleter(t);
    }
    dlx_test_stream_publish(x.p, SMALL, 7);
    m = dlx_test_stream_next(x.s);
    while (dlx_message_tensor_peek(m, 0)->shape[0] != SMALL) {
        dlx_message_unref(m);
        m = dlx_test_stream_next(x.s);
    }
    auto_tensor *copy = private_of(m, 0, SMALL, 7);
    dlx_message_unref(m);
    dlx_test_stream_publish(x.p, SMALL, 8);
    dlx_message_unref(dlx_test_stream_next(x.s));
}

TEST(a_private_tensor_outlives_everything_else)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_message *m = dlx_test_pair_pass(&x, LARGE, 1);
    DLManagedTensorVersioned *t = private_of(m, 0, LARGE, 1);
    dlx_message_unref(m);
    dlx_test_pair_end(&x);
    ck_assert_int_eq(data(t)[LARGE - 1], LARGE);
    fill(t, 3);
    ck_assert_int_eq(data(t)[0] + data(t)[LARGE - 1], 6);
    ck_assert_int_eq(pthread_join(dlx_test_stream_delete_elsewhere(t), NULL), 0);
}

struct viewer {
    struct dlx_message *m;
    atomic_bool stop;
    unsigned n;
};

static void *make_views(void *arg)
{
    struct viewer *v = arg;
    while (!atomic_load(&v->stop) || v->n == 0) {
        DLManagedTensorVersioned *t = NULL;
        if (dlx_message_tensor_private(v->m, 0, &t) < 0)
            return NULL;
        data(t)[LARGE - 1]--;
        bool good = data(t)[0] == 1 && data(t)[LARGE - 1] == LARGE - 1;
        t->deleter(t);
        if (!good)
            return NULL;
        v->n++;
    }
    return v;
}

TEST(another_thread_makes_views_while_arenas_come_and_go)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct viewer v = {.n = 0};
    void *good = NULL;
    auto_message *m = dlx_test_pair_pass(&x, LARGE, 1);
    v.m = m;
    pthread_t thread = dlx_test_stream_thread(make_views, &v);
    for (int64_t i = 1; i < 40; i++) {
        dlx_test_stream_publish(x.p, i % 8 * LARGE + 1, i);
        dlx_message_unref(dlx_test_stream_next(x.s));
    }
    atomic_store(&v.stop, true);
    ck_assert_int_eq(pthread_join(thread, &good), 0);
    ck_assert_ptr_eq(good, &v);
}

TEST(a_child_has_the_copy_and_not_the_view)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    dlx_test_stream_publish(x.p, LARGE, 1);
    dlx_test_stream_publish(x.p, SMALL, 1);
    auto_message *m = dlx_test_stream_next(x.s), *small = dlx_test_stream_next(x.s);
    auto_tensor *t = private_of(m, 0, LARGE, 1), *u = private_of(small, 0, SMALL, 1);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        DLManagedTensorVersioned *none = NULL;
        fails(dlx_message_tensor_private(m, 0, &none), DLX_E_FORKED, "fork");
        ck_assert_int_eq(dlx_test_faults(data(t)), !COPIED(t));
        ck_assert_int_eq(data(u)[SMALL - 1], SMALL);
        t->deleter(t);
        u->deleter(u);
        _exit(0);
    }
    dlx_test_fork_join(pid);
    ck_assert_int_eq(data(t)[LARGE - 1], LARGE);
    fill(t, 1);
}

static void make_private_without(unsigned call)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    auto_tensor *t = NULL;
    auto_message *m = dlx_test_pair_pass(&x, LARGE, 1);
    if (!dlx_test_seccomp_fail(call, EINVAL)) {
        puts("SKIP: no seccomp here");
        (void)fflush(stdout);
        return;
    }
    ok(dlx_message_tensor_private(m, 0, &t));
    ck_assert(COPIED(t) && data(t)[0] == 1 && data(t)[LARGE - 1] == LARGE);
    fill(t, 1);
}

/* An old kernel, a sandbox, no mappings left. */
LOOP_TEST(where_the_kernel_has_no_views_it_is_copied, 0, 2)
{
    static const unsigned calls[] = {__NR_mremap, __NR_mprotect};
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        make_private_without(calls[_i]);
        _exit(0);
    }
    dlx_test_fork_join(pid);
}

TEST(publishing_one_on_copies_it)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_publish_report report = {.size = sizeof report};
    struct dlx_message *m = dlx_test_pair_pass(&x, LARGE, 1);
    DLManagedTensorVersioned *t = private_of(m, 0, LARGE, 1);
    dlx_message_unref(m);
    for (int64_t i = 0; i < LARGE; i++)
        data(t)[i] = 9 + i;
    ok(dlx_publish(x.p, t, NULL, &report)); /* spends it */
    ck_assert_uint_eq(report.n_copied, 1);
    dlx_test_stream_expect(x.s, LARGE, 9);
}
