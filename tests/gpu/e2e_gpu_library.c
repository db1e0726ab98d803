/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How libdlx.so loads libdlx-gpu.so.0: not before the first use of a GPU, the one beside it and of
 * the same build, or else not at all, and what a program can do then. This program has a static
 * libdlx, as all tests do. The processes of the tests load libdlx.so, too, and call it by pointers.
 */

#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU
#include "tests/harness/file.h"
#include "tests/harness/fork.h"
#include <dlfcn.h>
#include <dlx/gpu.h>

#define N     16
#define TOPIC "gpu/a"

/* ---- libdlx.so ------------------------------------------------------------------------------- */

#define FUNCTIONS(X)                                                                               \
    X(dlx_alloc)                                                                                   \
    X(dlx_errmsg)                                                                                  \
    X(dlx_client_unref)                                                                            \
    X(dlx_connect)                                                                                 \
    X(dlx_cuda_free)                                                                               \
    X(dlx_cuda_malloc)                                                                             \
    X(dlx_message_tensor_describe)                                                                 \
    X(dlx_message_status)                                                                          \
    X(dlx_message_tensor)                                                                          \
    X(dlx_message_unref)                                                                           \
    X(dlx_publish)                                                                                 \
    X(dlx_publish_set)                                                                             \
    X(dlx_publisher_get_stats)                                                                     \
    X(dlx_publisher_new)                                                                           \
    X(dlx_publisher_unref)                                                                         \
    X(dlx_subscribe)                                                                               \
    X(dlx_subscription_get_stats)                                                                  \
    X(dlx_subscription_next_event)                                                                 \
    X(dlx_subscription_unref)                                                                      \
    X(dlx_take)                                                                                    \
    X(dlx_tensor_status)                                                                           \
    X(dlx_tensor_used_on)

struct library {
#define MEMBER(f) __typeof__(f) *f;
    FUNCTIONS(MEMBER)
#undef MEMBER
};

static struct library lib;

/* The libraries of this build, and a folder of the test's own. */
static const char *built(const char *name)
{
    static char path[700];
    (void)snprintf(path, sizeof path, "%s/../../%s", dlx_test_gpu_folder(), name);
    return path;
}

static const char *own(const char *name)
{
    static char path[300];
    (void)snprintf(path, sizeof path, "%s/%s", dlx_test_stream_daemon.dir, name);
    return path;
}

static void link_to(const char *target, const char *name)
{
    ck_assert_msg(symlink(target, own(name)) == 0, "%s: %s", own(name), strerror(errno));
}

static struct library load(const char *path)
{
    struct library ret;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(handle != NULL, "%s", dlerror());
#define RESOLVE(f)                                                                                 \
    do {                                                                                           \
        void *p = dlsym(handle, #f);                                                               \
        ck_assert_msg(p != NULL, "%s", dlerror());                                                 \
        memcpy(&ret.f, &p, sizeof p);                                                              \
    } while (0);
    FUNCTIONS(RESOLVE)
#undef RESOLVE
    return ret;
}

/* A copy of libdlx.so.0 with nothing beside it. */
static void load_alone(void)
{
    link_to(built("libdlx.so.0"), "libdlx.so.0");
    lib = load(own("libdlx.so.0"));
}

static bool is_loaded(void)
{
    char line[1000];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof line, maps))
        found |= strstr(line, "libdlx-gpu.so") != NULL;
    (void)fclose(maps);
    return found;
}

#define lib_ok(call)                                                                               \
    do {                                                                                           \
        int r_ = (call);                                                                           \
        ck_assert_msg(r_ == 0, "%s: %d: %s", #call, r_, lib.dlx_errmsg());                         \
    } while (0)

#define lib_fails(call, code, word)                                                                \
    do {                                                                                           \
        ck_assert_int_eq(call, code);                                                              \
        contains(lib.dlx_errmsg(), word);                                                          \
    } while (0)

/* ---- its two ends ---------------------------------------------------------------------------- */

struct end {
    struct dlx_client *c;
    struct dlx_publisher *p;
    struct dlx_subscription *s;
};

static struct end connect_end(void)
{
    const struct dlx_connect_args args = {.size = sizeof args,
                                          .socket = dlx_test_stream_daemon.path};
    struct end x = {NULL, NULL, NULL};
    lib_ok(lib.dlx_connect(&args, &x.c));
    return x;
}

static struct end begin(void)
{
    struct end x = connect_end();
    lib_ok(lib.dlx_publisher_new(x.c, TOPIC, NULL, &x.p));
    lib_ok(lib.dlx_subscribe(x.c, TOPIC, NULL, &x.s));
    return x;
}

static void end(struct end *x)
{
    lib.dlx_subscription_unref(x->s);
    lib.dlx_publisher_unref(x->p);
    lib.dlx_client_unref(x->c);
}

static int alloc_on(struct end *x, DLDevice device, DLManagedTensorVersioned **ret)
{
    static const int64_t shape[] = {N};
    const struct dlx_tensor_spec spec = dlx_test_gpu_spec(shape, 1, device);
    return lib.dlx_alloc(x->p, &spec, ret);
}

static DLManagedTensorVersioned *alloc_on_cpu(struct end *x, uint32_t value)
{
    DLManagedTensorVersioned *t;
    lib_ok(alloc_on(x, (DLDevice){kDLCPU, 0}, &t));
    for (uint32_t *word = t->dl_tensor.data, i = 0; i < N; i++)
        word[i] = value;
    return t;
}

static struct dlx_message *take(struct end *x)
{
    struct dlx_message *m;
    lib_ok(lib.dlx_take(x->s, PATIENCE, &m));
    return m;
}

static void check_cpu_tensor(struct dlx_message *m, uint32_t i, uint32_t value)
{
    DLManagedTensorVersioned *t;
    lib_ok(lib.dlx_message_tensor(m, i, &t));
    ck_assert_uint_eq(((const uint32_t *)t->dl_tensor.data)[N - 1], value);
    lib_ok(lib.dlx_tensor_status(t));
    lib_fails(lib.dlx_tensor_used_on(t, NULL), DLX_E_DEVICE, "has no `pin`");
    t->deleter(t);
}

/* All that a program on the CPU does. */
static void use_cpu(struct end *x)
{
    DLManagedTensorVersioned *t = alloc_on_cpu(x, 7);
    const struct dlx_item items[] = {{.name = "a", .tensor = alloc_on_cpu(x, 8)},
                                     {.name = "b", .tensor = alloc_on_cpu(x, 9)}};
    struct dlx_publisher_stats sent = {.size = sizeof sent};
    struct dlx_subscription_stats got = {.size = sizeof got};
    struct dlx_event event = {.size = sizeof event};
    lib_ok(lib.dlx_publish(x->p, t, NULL, NULL));
    lib_ok(lib.dlx_publish_set(x->p, items, 2, NULL, NULL, NULL));
    for (uint32_t i = 0; i < 2; i++) {
        struct dlx_message *m = take(x);
        check_cpu_tensor(m, i, i == 0 ? 7 : 9);
        lib_ok(lib.dlx_message_status(m));
        lib.dlx_message_unref(m);
    }
    lib_ok(lib.dlx_publisher_get_stats(x->p, &sent));
    lib_ok(lib.dlx_subscription_get_stats(x->s, &got));
    ck_assert_uint_eq(sent.published, 2);
    ck_assert_uint_eq(got.taken, 2);
    while (lib.dlx_subscription_next_event(x->s, &event) == 0)
        ;
}

/* ---- when it is loaded ----------------------------------------------------------------------- */

static void use_cpu_and_end(int sock)
{
    (void)sock;
    lib = load(built("libdlx.so.0"));
    struct end x = begin();
    use_cpu(&x);
    end(&x);
    lib.dlx_cuda_free(NULL, 0, 0, NULL);
    ck_assert(!is_loaded());
}

GPU_TEST(a_program_that_uses_no_gpu_does_not_load_the_library, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(use_cpu_and_end);
    dlx_test_gpu_join(&peer);
}

static void alloc_on_gpu(struct end *x)
{
    DLManagedTensorVersioned *t;
    lib_ok(alloc_on(x, dlx_test_gpu_device(0), &t));
    t->deleter(t);
}

static void publish_on_gpu(struct end *x)
{
    lib_ok(lib.dlx_publish(x->p, dlx_test_gpu_tensor(0, 1, N, 7), NULL, NULL));
}

static void subscribe_pinned(struct end *x)
{
    const struct dlx_subscribe_args args = {.size = sizeof args, .pin = dlx_test_gpu_device(0)};
    struct dlx_subscription *s;
    lib_ok(lib.dlx_subscribe(x->c, TOPIC, &args, &s));
    lib.dlx_subscription_unref(s);
}

static void malloc_on_gpu(struct end *x)
{
    (void)x;
    void *memory = lib.dlx_cuda_malloc(1, 0, NULL);
    ck_assert_msg(memory != NULL, "%s", lib.dlx_errmsg());
    lib.dlx_cuda_free(memory, 1, 0, NULL);
}

static void (*const uses[])(struct end *x) = {alloc_on_gpu, publish_on_gpu, subscribe_pinned,
                                              malloc_on_gpu};

static void use_gpu(int sock)
{
    (void)sock;
    lib = load(built("libdlx.so.0"));
    (void)dlx_test_gpu_context(0);
    struct end x = begin();
    use_cpu(&x);
    ck_assert(!is_loaded());
    uses[dlx_test_gpu_variant](&x);
    ck_assert(is_loaded());
    end(&x);
}

GPU_LOOP_TEST(the_first_use_of_a_gpu_loads_the_library, 0, 4, 0)
{
    dlx_test_gpu_variant = _i;
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(use_gpu);
    dlx_test_gpu_join(&peer);
}

static void take_from_gpu(int sock)
{
    DLManagedTensorVersioned *t;
    dlx_test_gpu_await(sock);
    lib = load(built("libdlx.so.0"));
    (void)dlx_test_gpu_context(0);
    struct end x = connect_end();
    lib_ok(lib.dlx_subscribe(x.c, TOPIC, NULL, &x.s));
    ck_assert(!is_loaded());
    dlx_test_gpu_tell(sock);
    for (uint32_t value = 1; value <= 3; value++) { /* the first message begins what others have */
        struct dlx_message *m = take(&x);
        ck_assert(is_loaded());
        lib_ok(lib.dlx_message_tensor(m, 0, &t));
        lib_ok(lib.dlx_tensor_used_on(t, NULL));
        dlx_test_gpu_check(t, N, value);
        t->deleter(t);
        lib_ok(lib.dlx_message_status(m));
        lib.dlx_message_unref(m);
    }
    end(&x);
}

GPU_TEST(the_first_message_with_a_tensor_on_a_gpu_loads_the_library, 0)
{
    auto_gpu_end x = dlx_test_gpu_publish_to(take_from_gpu, NULL);
    for (uint32_t value = 1; value <= 3; value++)
        ok(dlx_publish(x.p, dlx_test_gpu_tensor(0, 1, N, value), NULL, NULL));
}

#define THREADS 8
static pthread_barrier_t barrier;

static void *malloc_at_once(void *unused)
{
    (void)unused;
    (void)pthread_barrier_wait(&barrier);
    malloc_on_gpu(NULL);
    return NULL;
}

static void load_by_threads(int sock)
{
    pthread_t threads[THREADS];
    (void)sock;
    lib = load(built("libdlx.so.0"));
    ck_assert_int_eq(pthread_barrier_init(&barrier, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++)
        threads[i] = dlx_test_stream_thread(malloc_at_once, NULL);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
}

GPU_TEST(threads_load_the_library_at_the_same_time, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(load_by_threads);
    dlx_test_gpu_join(&peer);
}

/* ---- when it cannot be ----------------------------------------------------------------------- */

/* Calls that need a GPU fail with these words, and everything else works. */
static void check_without(struct end *x, const char *words)
{
    const struct dlx_subscribe_args pinned = {.size = sizeof pinned, .pin = dlx_test_gpu_device(0)};
    DLManagedTensorVersioned *t = dlx_test_gpu_tensor(0, 1, N, 7);
    struct dlx_subscription *s;
    lib_fails(alloc_on(x, dlx_test_gpu_device(0), &t), DLX_E_DEVICE, words);
    lib_fails(lib.dlx_publish(x->p, t, NULL, NULL), DLX_E_DEVICE, words);
    contains(lib.dlx_errmsg(), "topic gpu/a: tensor 0: ");
    lib_fails(lib.dlx_publish(x->p, t, PUBLISH(.stage = true), NULL), DLX_E_DEVICE, words);
    lib_fails(lib.dlx_subscribe(x->c, TOPIC, &pinned, &s), DLX_E_DEVICE, words);
    ck_assert_ptr_null(lib.dlx_cuda_malloc(1, 0, NULL));
    contains(lib.dlx_errmsg(), words);
    t->deleter(t);
    use_cpu(x);
    ck_assert(!is_loaded());
}

static bool is_installed(void)
{
    void *found = dlopen("libdlx-gpu.so.0", RTLD_LAZY | RTLD_LOCAL);
    if (found)
        (void)dlclose(found);
    return dlx_test_skips(found != NULL, "a libdlx-gpu.so.0 is installed on this machine");
}

static void use_without(int sock)
{
    DLManagedTensorVersioned *t;
    (void)sock;
    load_alone();
    (void)dlx_test_gpu_context(0);
    struct end x = begin();
    lib_fails(alloc_on(&x, (DLDevice){kDLOpenCL, 0}, &t), DLX_E_DEVICE,
              "device type 4 is no GPU that can be shared");
    check_without(&x, "libdlx-gpu.so.0 is not installed, which GPUs need (Debian: libdlx0-gpu");
    link_to(built("libdlx-gpu.so.0"), "libdlx-gpu.so.0");
    alloc_on_gpu(&x); /* it was installed meanwhile */
    ck_assert(is_loaded());
    end(&x);
}

GPU_TEST(without_the_library_tensors_on_gpus_fail_in_words_and_others_work, 0)
{
    if (is_installed())
        return;
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(use_without);
    dlx_test_gpu_join(&peer);
}

static void take_without(int sock)
{
    static const char absent[] = "(pid %d), tensor 1: libdlx-gpu.so.0 is not installed";
    char words[100];
    DLManagedTensorVersioned *t, described;
    dlx_test_gpu_await(sock);
    load_alone();
    (void)dlx_test_gpu_context(0);
    struct end x = connect_end();
    lib_ok(lib.dlx_subscribe(x.c, TOPIC, NULL, &x.s));
    dlx_test_gpu_tell(sock);
    struct dlx_message *m = take(&x);
    (void)snprintf(words, sizeof words, absent, (int)getppid());
    check_cpu_tensor(m, 0, 8);
    lib_fails(lib.dlx_message_tensor(m, 1, &t), DLX_E_DEVICE, words);
    lib_fails(lib.dlx_message_tensor_describe(m, 1, &described), DLX_E_DEVICE, words);
    lib_ok(lib.dlx_message_tensor_describe(m, 0, &described));
    lib_ok(lib.dlx_message_status(m));
    link_to(built("libdlx-gpu.so.0"), "libdlx-gpu.so.0");
    lib_fails(lib.dlx_message_tensor(m, 1, &t), DLX_E_DEVICE,
              "libdlx-gpu could not be loaded when the message was taken: take another one");
    check_cpu_tensor(m, 0, 8);
    lib.dlx_message_unref(m);
    m = take(&x);
    lib_ok(lib.dlx_message_tensor(m, 1, &t));
    dlx_test_gpu_check(t, N, 9);
    t->deleter(t);
    lib.dlx_message_unref(m);
    end(&x);
}

GPU_TEST(without_the_library_a_message_has_its_tensors_on_the_cpu, 0)
{
    if (is_installed())
        return;
    auto_gpu_end x = dlx_test_gpu_publish_to(take_without, NULL);
    for (int i = 0; i < 2; i++) {
        static const int64_t shape[] = {N};
        const struct dlx_tensor_spec spec = dlx_test_gpu_spec(shape, 1, (DLDevice){kDLCPU, 0});
        struct dlx_item items[] = {{.name = "cpu"},
                                   {.name = "gpu", .tensor = dlx_test_gpu_tensor(0, 1, N, 9)}};
        ok(dlx_alloc(x.p, &spec, &items[0].tensor));
        for (uint32_t *word = items[0].tensor->dl_tensor.data, k = 0; k < N; k++)
            word[k] = 8;
        ok(dlx_publish_set(x.p, items, 2, NULL, NULL, NULL));
    }
}

/* 0: of another build; 1: no library; 2: another library. */
static const struct {
    const char *file; /* of the build; NULL: a text */
    const char *words;
} others[] = {
    {"tests/other_build/libdlx-gpu.so.0",
     "/libdlx-gpu.so.0 is of build 0.0.9 0123456789abcdef, and this libdlx of build "},
    {NULL, "libdlx-gpu.so.0, which GPUs need, cannot be loaded: "},
    {"tests/standin/libcuda.so.1", "/libdlx-gpu.so.0 is no library of libdlx: "},
};

static void use_with_other(int sock)
{
    (void)sock;
    load_alone();
    (void)dlx_test_gpu_context(0);
    struct end x = begin();
    if (others[dlx_test_gpu_variant].file)
        link_to(built(others[dlx_test_gpu_variant].file), "libdlx-gpu.so.0");
    else
        dlx_test_write_file(own("libdlx-gpu.so.0"), "nonsense");
    check_without(&x, others[dlx_test_gpu_variant].words);
    end(&x);
}

GPU_LOOP_TEST(a_library_of_another_build_is_refused, 0, 3, 0)
{
    dlx_test_gpu_variant = _i;
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(use_with_other);
    dlx_test_gpu_join(&peer);
}

/* The loader gives the library the libdlx.so.0 that came first, for any caller. */
static void load_twice(int sock)
{
    char command[1500];
    (void)sock;
    lib = load(built("libdlx.so.0"));
    (void)snprintf(command, sizeof command, "cp -L %s %s", built("libdlx.so.0"),
                   dlx_test_stream_daemon.dir);
    ck_assert_int_eq(system(command), 0);
    link_to(built("libdlx-gpu.so.0"), "libdlx-gpu.so.0");
    lib = load(own("libdlx.so.0"));
    ck_assert_ptr_null(lib.dlx_cuda_malloc(1, 0, NULL));
    contains(lib.dlx_errmsg(), "calls another libdlx of this process");
}

GPU_TEST(the_library_of_another_libdlx_in_the_process_is_refused, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(load_twice);
    dlx_test_gpu_join(&peer);
}

static void use_and_fork(int sock)
{
    (void)sock;
    lib = load(built("libdlx.so.0"));
    malloc_on_gpu(NULL);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        ck_assert_ptr_null(lib.dlx_cuda_malloc(1, 0, NULL));
        contains(lib.dlx_errmsg(), "a forked child cannot use the GPUs");
        _exit(0);
    }
    dlx_test_fork_join(pid);
}

GPU_TEST(a_forked_child_of_a_process_with_the_library_is_told_so, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(use_and_fork);
    dlx_test_gpu_join(&peer);
}

static void unlink_own(void)
{
    (void)unlink(own("libdlx.so.0"));
    (void)unlink(own("libdlx-gpu.so.0"));
}

static TCase *library_case(void)
{
    TCase *tc = dlx_test_gpu_stream_case("gpu_library");
    tcase_add_checked_fixture(tc, unlink_own, unlink_own);
    return tc;
}

#endif

GPU_MAIN(library_case())
