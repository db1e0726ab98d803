/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that are opened one after the other at the same addresses: versions of a model's
 * weights, under graphs that were captured over the first one. */
#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU
#include "tests/harness/fork.h"
#include "tests/harness/keeper.h"
#include <dlx/gpu.h>
#include <stdatomic.h>

#define GPU ((DLDevice){(DLDeviceType)dlx_test_gpu_type(), 0})

/* A version is a set of these: together they are large enough for an arena of their own, and the
 * first two are of one size, so that one may take the place of the other. The last is on the
 * CPU. */
enum { A, B, C, STEP, N_TENSORS };
static const int64_t shapes[N_TENSORS][2] = {{32, 32}, {32, 32}, {512, 1024}, {1, 1}};
static const char *const names[N_TENSORS] = {"a", "b", "c", "step"};

/* What a version has that is not as in the one before. */
enum change {
    ORDER,  /* `a` and `b` are allocated in the other order */
    NAME,   /* `b` is called otherwise */
    SHAPE,  /* `c` is transposed */
    FEWER,  /* there is no `step` */
    ARENA,  /* the set has a further tensor, which is not published */
    APART,  /* each tensor is allocated by itself */
    ON_CPU, /* `b` is */
    MIXED,  /* `b` is of another set */
    N_CHANGES,
    NONE = N_CHANGES,
};

static uint32_t value_of(uint32_t version, uint32_t i)
{
    return version * 10 + i;
}

static void fill(DLManagedTensorVersioned *t, uint32_t value)
{
    const DLTensor *of = &t->dl_tensor;
    uint64_t n = (uint64_t)(of->shape[0] * of->shape[1]);
    if (of->device.device_type == kDLCPU)
        ((uint32_t *)of->data)[0] = value;
    else
        dlx_test_gpu_fill(dlx_test_gpu_address(t), n * sizeof value, value);
}

/* In the order in which they are allocated. */
static void allocate(struct dlx_publisher *p, enum change change, const uint32_t *order,
                     DLManagedTensorVersioned **ret)
{
    const int64_t transposed[] = {shapes[C][1], shapes[C][0]};
    struct dlx_tensor_spec specs[N_TENSORS + 1];
    DLManagedTensorVersioned *made[N_TENSORS + 1];
    uint32_t n = change == ARENA ? N_TENSORS + 1 : N_TENSORS;
    for (uint32_t k = 0; k < N_TENSORS; k++) {
        uint32_t i = order[k];
        bool on_cpu = i == STEP || (change == ON_CPU && i == B);
        specs[k] = dlx_test_gpu_spec(change == SHAPE && i == C ? transposed : shapes[i], 2,
                                     on_cpu ? (DLDevice){kDLCPU, 0} : GPU);
    }
    specs[N_TENSORS] = dlx_test_gpu_spec(shapes[C], 2, GPU);
    if (change != APART)
        ok(dlx_alloc_set(p, specs, n, made));
    for (uint32_t k = 0; k < n; k++) {
        if (change == APART)
            ok(dlx_alloc(p, &specs[k], &made[k]));
        if (k < N_TENSORS)
            ret[order[k]] = made[k];
        else
            made[k]->deleter(made[k]);
    }
}

static void take_from_another_set(struct dlx_publisher *p, const uint32_t *order,
                                  DLManagedTensorVersioned **t)
{
    DLManagedTensorVersioned *other[N_TENSORS];
    allocate(p, MIXED, order, other);
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        DLManagedTensorVersioned *unused = i == B ? t[i] : other[i];
        unused->deleter(unused);
    }
    t[B] = other[B];
}

static void publish_version(struct dlx_publisher *p, uint32_t version, enum change change)
{
    static const uint32_t orders[][N_TENSORS] = {{A, B, C, STEP}, {B, A, C, STEP}};
    DLManagedTensorVersioned *t[N_TENSORS];
    struct dlx_item items[N_TENSORS];
    uint32_t n = change == FEWER ? N_TENSORS - 1 : N_TENSORS;
    allocate(p, change, orders[change == ORDER], t);
    if (change == MIXED)
        take_from_another_set(p, orders[0], t);
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        fill(t[i], value_of(version, i));
        items[i] = (struct dlx_item){change == NAME && i == B ? "x" : names[i], t[i]};
    }
    CU_OK(cu.cuCtxSynchronize()); /* it is ready if this process is killed */
    if (n < N_TENSORS)
        t[n]->deleter(t[n]);
    ok(dlx_publish_set(p, items, n, NULL, NULL, NULL));
}

/* So many, of which the second, and maybe the others, have a change: one at first, and one with
 * each turn. */
static uint32_t n_versions;
static enum change second, others = NONE;

static void publish_versions(int sock)
{
    dlx_test_gpu_await(sock);
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    ok(dlx_publisher_wait(x.p, 1, PATIENCE));
    for (uint32_t version = 1; version <= n_versions; version++) {
        publish_version(x.p, version, version == 2 ? second : others);
        dlx_test_gpu_turn(sock);
    }
}

/* An engine: it has the addresses of the first version. */
struct engine {
    struct dlx_test_gpu_end x;
    struct dlx_gpu_range *range;
    struct dlx_message *m; /* in the range */
    DLManagedTensorVersioned *t[N_TENSORS];
    CUdeviceptr at[N_TENSORS];
};

static void get_tensors(struct engine *e)
{
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        ok(dlx_message_tensor(e->m, i, &e->t[i]));
        if (e->at[i] == 0)
            e->at[i] = dlx_test_gpu_address(e->t[i]);
    }
}

static void release(struct engine *e)
{
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        DLManagedTensorVersioned *t = dlx_steal(e->t[i]);
        if (t)
            t->deleter(t);
    }
    e->m = dlx_message_unref(e->m);
}

static struct engine engine_on(void (*role)(int sock), uint32_t n, enum change change,
                               const struct dlx_subscribe_args *args)
{
    n_versions = n;
    second = change;
    struct engine e = {.x = dlx_test_gpu_subscribe_to(role, args)};
    ok(dlx_gpu_range_new(&e.range));
    e.m = dlx_test_stream_next(e.x.s);
    ok(dlx_message_open_into(e.m, e.range, 0));
    return e;
}

static struct engine engine(uint32_t n, enum change change)
{
    struct engine e = engine_on(publish_versions, n, change, NULL);
    get_tensors(&e);
    return e;
}

static struct dlx_message *next_version(struct engine *e)
{
    dlx_test_gpu_turn(e->x.peer.sock);
    return dlx_test_stream_next(e->x.s);
}

static void engine_end(struct engine *e)
{
    release(e);
    e->range = dlx_gpu_range_unref(e->range);
    dlx_test_gpu_end(&e->x);
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 0);
    dlx_test_gpu_check_count(STANDIN_RESERVATIONS, 0);
    dlx_test_gpu_check_count(STANDIN_UNMAPPED_IN_USE, 0);
}
#define auto_engine DLX_TEST_AUTO(engine_end) struct engine

/* What was captured has addresses, and nothing else of the version that it was captured over. */
static void run_graph(const struct engine *e, uint32_t version)
{
    for (uint32_t i = 0; i < STEP; i++) {
        const struct dlx_test_gpu_view_of view = {
            .at = e->at[i], .n = DLX_TEST_GPU_LOOK_MAX, .columns = 1, .row_stride = 1};
        ck_assert_uint_eq(dlx_test_gpu_look(&view, value_of(version, i)), DLX_TEST_GPU_LOOK_MAX);
    }
}

static void check_version(const struct engine *e, uint32_t version)
{
    for (uint32_t i = 0; i < STEP; i++)
        ck_assert_uint_eq(dlx_test_gpu_address(e->t[i]), e->at[i]);
    ck_assert_uint_eq(((uint32_t *)e->t[STEP]->dl_tensor.data)[0], value_of(version, STEP));
    run_graph(e, version);
}

GPU_TEST(a_graph_that_was_captured_over_one_version_runs_over_the_next_ones, 0)
{
    enum { MANY = 6 };
    auto_engine e = engine(MANY, NONE);
    check_version(&e, 1);
    for (uint32_t version = 2; version <= MANY; version++) {
        struct dlx_message *next = next_version(&e);
        fails(dlx_message_open_into(next, e.range, 0), DLX_E_TIMEOUT, "is still in the range");
        contains(dlx_errmsg(), "gpu/a");
        run_graph(&e, version - 1);
        release(&e);
        ok(dlx_message_open_into(next, e.range, 0));
        e.m = next;
        get_tensors(&e);
        check_version(&e, version);
        dlx_test_gpu_check_count(STANDIN_MAPPINGS, 1);
        dlx_test_gpu_check_count(STANDIN_RESERVATIONS, 1);
    }
}

/* Opens the gate of a stream that still reads. */
static void *open_gate(void *gate)
{
    dlx_test_gpu_gate_open(gate);
    return NULL;
}

/* Of the first version, its message, a tensor or work on the stream of a tensor is left. */
GPU_LOOP_TEST(a_version_that_is_in_use_is_not_unmapped, 0, 3, 0)
{
    auto_engine e = engine(2, NONE);
    DLManagedTensorVersioned *left = dlx_steal(e.t[B]);
    struct dlx_message *first = dlx_message_ref(e.m), *next = next_version(&e);
    struct dlx_test_gpu_gate gate;
    CUstream stream = dlx_test_gpu_stream();
    bool is_on_stream = _i == 2 && !dlx_test_gpu_is_hip(); /* HIP's deleter waits itself */
    release(&e);
    if (_i > 0)
        first = dlx_message_unref(first);
    if (is_on_stream) {
        dlx_test_gpu_gate_shut(&gate, stream);
        ok(dlx_tensor_used_on(left, stream));
    }
    if (_i == 0 || is_on_stream) {
        left->deleter(left);
        left = NULL;
    }
    fails(dlx_message_open_into(next, e.range, 0), DLX_E_TIMEOUT, "message 1 of gpu/a is still");
    fails(dlx_message_open_into(next, e.range, 1000000), DLX_E_TIMEOUT, "released");
    pthread_t opener = is_on_stream ? dlx_test_stream_thread(open_gate, &gate) : 0;
    first = dlx_message_unref(first);
    if (left)
        left->deleter(left);
    ok(dlx_message_open_into(next, e.range, PATIENCE));
    if (is_on_stream)
        ck_assert_int_eq(pthread_join(opener, NULL), 0);
    e.m = next;
    get_tensors(&e);
    check_version(&e, 2);
}

GPU_LOOP_TEST(another_layout_is_refused_by_the_name_of_the_tensor, 0, N_CHANGES, 0)
{
    static const char *const words[N_CHANGES] = {
        [ORDER] = "tensor 0 (a) lies at offset 4096 of allocation 1, and was at 0 of 1",
        [NAME] = "tensor 1 is x, and was b",
        [SHAPE] = "tensor 2 (c) has another data type or shape",
        [FEWER] = "it has 3 tensors, and the version before 4",
        [ARENA] = "allocation 1 has 6291456 bytes of kind",
        [APART] = "tensor 2 (c) lies at offset 0 of allocation 2, and was at 8192 of 1",
        [ON_CPU] = "tensor 1 (b) is not on a GPU, and was:",
        [MIXED] = "tensor 1 (b) lies at offset 4096 of allocation 2, and was at 4096 of 1",
    };
    auto_engine e = engine(3, (enum change)_i);
    auto_message *next = next_version(&e);
    fails(dlx_message_open_into(next, e.range, 0), DLX_E_SHAPE, words[_i]);
    if (_i != SHAPE)
        contains(dlx_errmsg(), "one dlx_alloc_set() of the same tensors");
    check_version(&e, 1);
    release(&e);
    fails(dlx_message_open_into(next, e.range, PATIENCE), DLX_E_SHAPE, words[_i]);
    auto_tensor *elsewhere = NULL; /* it can be used, where the driver maps it */
    ok(dlx_message_tensor(next, A, &elsewhere));
    e.m = next_version(&e);
    ok(dlx_message_open_into(e.m, e.range, 0));
    get_tensors(&e);
    check_version(&e, 3);
    ck_assert_uint_ne(dlx_test_gpu_address(elsewhere), e.at[A]);
}

static struct engine *failing;
static uint32_t version_now;

/* Into the range, or into one that was never used. */
static int open_next(void)
{
    int r = dlx_message_open_into(failing->m, failing->range, 0);
    if (r < 0 && strstr(dlx__error_message(), "Mem")) /* a call that was to map it */
        contains(dlx__error_message(), "the range is empty");
    return r;
}

static void release_and_take_next(void)
{
    bool is_first = dlx_test_gpu_variant != 1;
    get_tensors(failing);
    check_version(failing, version_now++);
    release(failing);
    if (is_first) {
        failing->range = dlx_gpu_range_unref(failing->range);
        ok(dlx_gpu_range_new(&failing->range));
        memset(failing->at, 0, sizeof failing->at);
    }
    failing->m = next_version(failing);
}

/* Each call of the driver fails once, for a message in a new range (2: with two allocations), and
 * for the next one (1). */
GPU_LOOP_TEST(a_call_of_the_driver_that_fails_leaves_the_range_empty, 0, 3, DLX_TEST_GPU_FAILURES)
{
    const uint32_t n_find =
        dlx_test_gpu_is_hip() ? 4 : 6; /* of the GPU, before and after waiting */
    const uint32_t n_map = 3;
    dlx_test_gpu_variant = _i;
    others = _i == 2 ? APART : NONE;
    struct engine e = engine_on(publish_versions, 1000, others, NULL);
    failing = &e;
    version_now = 1;
    release_and_take_next();
    uint32_t n_failed = dlx_test_gpu_fail_each(open_next, release_and_take_next);
    ck_assert_uint_eq(n_failed, (_i == 2 ? 2 : 1) * (n_find + n_map) + (_i == 1 ? 0 : 1));
    dlx_test_gpu_kill(&e.x.peer);
    engine_end(&e);
}

static void publish_of_cuda(int sock)
{
    dlx_test_gpu_await(sock);
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    ok(dlx_publisher_wait(x.p, 1, PATIENCE));
    ok(dlx_publish(x.p, dlx_test_gpu_tensor(64, 1, 16, 7), NULL, NULL));
    dlx_test_stream_publish(x.p, 4, 2);
    dlx_test_gpu_turn(sock);
}

GPU_TEST(memory_that_cannot_be_placed_is_refused, 0)
{
    auto_gpu_end x = dlx_test_gpu_subscribe_to(publish_of_cuda, NULL);
    auto_message *on_gpu = dlx_test_stream_next(x.s), *on_cpu = dlx_test_stream_next(x.s);
    struct dlx_gpu_range *range;
    ok(dlx_gpu_range_new(&range));
    fails(dlx_message_open_into(on_gpu, range, 0), DLX_E_DEVICE, "_ipc is mapped where the driver");
    contains(dlx_errmsg(), "dlx_alloc_set()");
    fails(dlx_message_open_into(on_cpu, range, 0), DLX_E_INVALID, "no tensor of the message");
    fails(dlx_message_open_into(on_cpu, NULL, 0), DLX_E_INVALID, "range is NULL");
    fails(dlx_message_open_into(NULL, range, 0), DLX_E_INVALID, "message is NULL");
    fails(dlx_gpu_range_new(NULL), DLX_E_INVALID, "ret is NULL");
    auto_tensor *t = NULL;
    ok(dlx_message_tensor(on_gpu, 0, &t));
    dlx_test_gpu_check(t, 16, 7);
    ck_assert_ptr_null(dlx_gpu_range_unref(range));
    ck_assert_ptr_null(dlx_gpu_range_unref(NULL));
}

GPU_TEST(a_message_that_is_open_is_not_opened_again, 0)
{
    auto_engine e = engine(2, NONE);
    fails(dlx_message_open_into(e.m, e.range, 0), DLX_E_INVALID, "was opened before");
    auto_message *next = next_version(&e);
    auto_tensor *t = NULL;
    ok(dlx_message_tensor(next, C, &t));
    release(&e);
    fails(dlx_message_open_into(next, e.range, 0), DLX_E_INVALID, "in the range first");
}

/* The range lives as long as the message in it. */
GPU_TEST(a_range_that_is_released_stays_until_its_message_ends, 0)
{
    auto_engine e = engine(1, NONE);
    e.range = dlx_gpu_range_unref(e.range);
    dlx_test_gpu_check_count(STANDIN_RESERVATIONS, 1);
    check_version(&e, 1);
    release(&e);
    dlx_test_gpu_check_count(STANDIN_RESERVATIONS, 0);
}

GPU_TEST(a_version_whose_publisher_was_killed_takes_the_place_of_the_former_one, 0)
{
    struct engine e = engine(2, NONE);
    struct dlx_test_gpu_end other = {.s = dlx_test_stream_subscribe(e.x.c, "gpu/a", NULL)};
    struct dlx_message *next = next_version(&e);
    DLManagedTensorVersioned *ready = dlx_test_gpu_take_tensor(&other);
    ready->deleter(ready);
    dlx_subscription_unref(other.s);
    dlx_test_gpu_kill(&e.x.peer);
    take_fails(e.x.s, PATIENCE, DLX_E_PUBLISHER_GONE, "");
    fails(dlx_message_open_into(next, e.range, 0), DLX_E_TIMEOUT, "still in the range");
    release(&e);
    ok(dlx_message_open_into(next, e.range, 0));
    e.m = next;
    get_tensors(&e);
    check_version(&e, 2);
    engine_end(&e);
}

/* Nothing is asked of the caller before it is known that the next version can be had. */
GPU_TEST(a_version_that_cannot_be_had_leaves_the_former_one_where_it_is, 0)
{
    auto_engine e = engine(2, NONE);
    auto_message *next = next_version(&e);
    ck_assert_int_eq(kill(dlx_test_keeper_find(dlx_test_stream_daemon.path), SIGKILL), 0);
    dlx_test_keeper_wait_gone(dlx_test_stream_daemon.path);
    fails(dlx_message_open_into(next, e.range, PATIENCE), DLX_E_NOT_FOUND, "message 2");
    check_version(&e, 1);
}

GPU_TEST(a_forked_child_leaves_the_range_to_its_parent, 0)
{
    auto_engine e = engine(2, NONE);
    struct dlx_message *next = next_version(&e);
    release(&e);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        fails(dlx_message_open_into(next, e.range, 0), DLX_E_FORKED, "");
        dlx_message_unref(next);
        dlx_gpu_range_unref(e.range); /* the last reference, if it were this process's */
        ck_assert_str_eq(dlx_errmsg(), "");
        _exit(0);
    }
    dlx_test_fork_join(pid);
    if (dlx_test_gpu_is_standin())
        ck_assert_uint_eq(standin.standin_count_of(pid, STANDIN_CALLS_AFTER_FORK), 0);
    ok(dlx_message_open_into(next, e.range, 0));
    e.m = next;
    get_tensors(&e);
    check_version(&e, 2);
}

enum { N_THREADS = 4 };

struct turn {
    struct engine *e;
    struct dlx_message *m;
    CUdeviceptr at;
    bool was_alone;
};
static atomic_uint n_inside;

/* No assertion: it would be in a thread. */
static void *take_turn(void *userdata)
{
    struct turn *turn = userdata;
    DLManagedTensorVersioned *t;
    if (dlx_message_open_into(turn->m, turn->e->range, PATIENCE) < 0 ||
        dlx_message_tensor(turn->m, C, &t) < 0)
        return NULL;
    turn->was_alone = atomic_fetch_add(&n_inside, 1) == 0;
    turn->at = dlx_test_gpu_address(t);
    atomic_fetch_sub(&n_inside, 1);
    (void)dlx_tensor_used_on(t, DLX_STREAM_NONE);
    t->deleter(t);
    turn->m = dlx_message_unref(turn->m);
    return turn;
}

GPU_TEST(threads_have_a_range_one_after_the_other, 0)
{
    auto_engine e = engine(N_THREADS + 1, NONE);
    struct turn turns[N_THREADS];
    pthread_t threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++)
        turns[i] = (struct turn){.e = &e, .m = next_version(&e)};
    for (int i = 0; i < N_THREADS; i++)
        threads[i] = dlx_test_stream_thread(take_turn, &turns[i]);
    release(&e);
    for (int i = 0; i < N_THREADS; i++) {
        void *ret;
        ck_assert_int_eq(pthread_join(threads[i], &ret), 0);
        ck_assert_ptr_eq(ret, &turns[i]);
        ck_assert(turns[i].was_alone);
        ck_assert_uint_eq(turns[i].at, e.at[C]);
    }
}

struct
try {
    struct dlx_message *m;
    struct dlx_gpu_range *range;
    pthread_barrier_t *barrier;
    int result;
};

static void *try_to_open(void *userdata)
{
    struct try *try = userdata;
    (void)pthread_barrier_wait(try->barrier);
    try->result = dlx_message_open_into(try->m, try->range, PATIENCE);
    return NULL;
}

GPU_TEST(threads_open_one_message_in_one_range, 0)
{
    auto_engine e = engine(2, NONE);
    auto_message *m = next_version(&e);
    struct try tries[N_THREADS];
    pthread_t threads[N_THREADS];
    pthread_barrier_t barrier;
    int n_open = 0;
    ck_assert_int_eq(pthread_barrier_init(&barrier, NULL, N_THREADS), 0);
    for (int i = 0; i < N_THREADS; i++) {
        tries[i] = (struct try){.m = m, .barrier = &barrier};
        ok(dlx_gpu_range_new(&tries[i].range));
    }
    for (int i = 0; i < N_THREADS; i++)
        threads[i] = dlx_test_stream_thread(try_to_open, &tries[i]);
    for (int i = 0; i < N_THREADS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert(tries[i].result == 0 || tries[i].result == DLX_E_INVALID);
        n_open += tries[i].result == 0;
        dlx_gpu_range_unref(tries[i].range);
    }
    ck_assert_int_eq(n_open, 1);
    ck_assert_int_eq(pthread_barrier_destroy(&barrier), 0);
    auto_tensor *t = NULL;
    ok(dlx_message_tensor(m, A, &t));
    dlx_test_gpu_check(t, DLX_TEST_GPU_LOOK_MAX, value_of(2, A));
    dlx_test_gpu_check_count(STANDIN_RESERVATIONS, 2);
}

/* Two subscriptions have the same memory open: one in the range, one where the driver maps it. */
GPU_TEST(the_same_memory_is_open_in_a_range_and_elsewhere, 0)
{
    auto_engine e = engine(2, NONE);
    auto_subscription *other = dlx_test_stream_subscribe(e.x.c, "gpu/a", NULL);
    struct dlx_message *next = next_version(&e);
    DLManagedTensorVersioned *t;
    struct dlx_message *same = dlx_test_stream_next(other);
    release(&e);
    ok(dlx_message_open_into(next, e.range, 0));
    ok(dlx_message_tensor(same, A, &t));
    dlx_message_unref(same);
    e.m = next;
    get_tensors(&e);
    ck_assert_uint_ne(dlx_test_gpu_address(t), e.at[A]);
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 2);
    release(&e);
    dlx_test_gpu_check_count(STANDIN_MAPPINGS, 1);
    dlx_test_gpu_check(t, DLX_TEST_GPU_LOOK_MAX, value_of(2, A));
    t->deleter(t);
}

/* A publisher of the process itself: its memory is mapped a second time. */
GPU_TEST(versions_of_the_process_itself_are_swapped_likewise, 0)
{
    struct engine e = {.x = dlx_test_gpu_both(NULL)};
    ok(dlx_gpu_range_new(&e.range));
    for (uint32_t version = 1; version <= 6; version++) {
        publish_version(e.x.p, version, NONE);
        struct dlx_message *next = dlx_test_stream_next(e.x.s);
        release(&e);
        ok(dlx_message_open_into(next, e.range, 0));
        e.m = next;
        get_tensors(&e);
        check_version(&e, version);
    }
    /* Two arenas, since a version lies where the one before the last did, and six versions. */
    dlx_test_gpu_check_calls("cuMemImportFromShareableHandle", 2 + 6);
    engine_end(&e);
}

GPU_TEST(a_swap_does_not_disturb_a_stream_that_is_captured, 0)
{
    auto_engine e = engine(2, NONE);
    struct dlx_message *next = next_version(&e);
    CUstream stream = dlx_test_gpu_stream();
    for (uint32_t i = 0; i < STEP; i++)
        ok(dlx_tensor_used_on(e.t[i], DLX_STREAM_NONE));
    CU_OK(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    release(&e);
    ok(dlx_message_open_into(next, e.range, 0));
    dlx_test_gpu_end_capture(stream);
    e.m = next;
    get_tensors(&e);
    check_version(&e, 2);
}

static struct dlx_subscribe_args for_device_1 = {.size = sizeof for_device_1}; /* by setup() */

GPU_TEST(versions_for_another_gpu_are_swapped_for_that_one_alone, DLX_TEST_GPU_TWO)
{
    auto_engine e = engine_on(publish_versions, 2, NONE, &for_device_1);
    auto_subscription *other = dlx_test_stream_subscribe(e.x.c, "gpu/a", NULL);
    get_tensors(&e);
    ck_assert_int_eq(e.t[A]->dl_tensor.device.device_id, 1);
    struct dlx_message *next = next_version(&e);
    auto_message *for_device_0 = dlx_test_stream_next(other);
    fails(dlx_message_open_into(for_device_0, e.range, 0), DLX_E_SHAPE,
          "allocation 1 is for GPU 0, and was for GPU 1");
    release(&e);
    ok(dlx_message_open_into(next, e.range, 0));
    e.m = next;
    get_tensors(&e);
    ck_assert_int_eq(e.t[A]->dl_tensor.device.device_id, 1);
    check_version(&e, 2);
}

/* Memory of other allocators, in which a trainer has two buffers of its own. */
static void publish_two_buffers(struct dlx_publisher *p, void *ret[2])
{
    for (int i = 0; i < 2; i++) {
        ret[i] = dlx_cuda_malloc(DLX_TEST_GPU_CHUNK, 0, NULL);
        CUdeviceptr at = (CUdeviceptr)(uintptr_t)ret[i] + 4096;
        dlx_test_gpu_fill(at, 64, 7 + (uint32_t)i);
        ok(dlx_publish(p, dlx_test_gpu_tensor_at(at, 1, 16), NULL, NULL));
    }
}

static void end_two_buffers(struct dlx_test_gpu_end *x, void *const buffers[2])
{
    dlx_publisher_unref(dlx_steal(x->p));
    for (int i = 0; i < 2; i++)
        dlx_cuda_free(buffers[i], DLX_TEST_GPU_CHUNK, 0, NULL);
}

static void trainer(int sock)
{
    dlx_test_gpu_await(sock);
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    void *buffers[2];
    ok(dlx_publisher_wait(x.p, 1, PATIENCE));
    publish_two_buffers(x.p, buffers);
    dlx_test_gpu_turn(sock);
    end_two_buffers(&x, buffers);
}

static void swap_two_buffers(struct dlx_subscription *s)
{
    struct dlx_gpu_range *range;
    CUdeviceptr at = 0;
    ok(dlx_gpu_range_new(&range));
    for (uint32_t i = 0; i < 2; i++) {
        auto_message *m = dlx_test_stream_next(s);
        auto_tensor *t = NULL;
        ok(dlx_message_open_into(m, range, 0));
        ok(dlx_message_tensor(m, 0, &t));
        ck_assert(i == 0 || at == dlx_test_gpu_address(t));
        at = dlx_test_gpu_address(t);
        dlx_test_gpu_check(t, 16, 7 + i);
    }
    dlx_gpu_range_unref(range);
}

GPU_TEST(memory_of_other_allocators_is_swapped_if_it_lies_alike, DLX_TEST_GPU_MALLOC)
{
    auto_gpu_end x = dlx_test_gpu_subscribe_to(trainer, NULL);
    swap_two_buffers(x.s);
}

/* The descriptors come from a thread of the process that asks for them. */
GPU_TEST(memory_that_the_process_itself_serves_is_swapped_likewise, DLX_TEST_GPU_MALLOC)
{
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    void *buffers[2];
    publish_two_buffers(x.p, buffers);
    swap_two_buffers(x.s);
    end_two_buffers(&x, buffers);
}

static void setup(void)
{
    for_device_1.device = (DLDevice){(DLDeviceType)dlx_test_gpu_type(), 1};
}

static TCase *range_case(void)
{
    TCase *tc = dlx_test_gpu_stream_case("range");
    tcase_add_checked_fixture(tc, setup, NULL);
    return tc;
}

#endif

GPU_MAIN(range_case())
