/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU
#include "client/publish/publisher.h"
#include "gpu/lib/share.h"
#include "tests/harness/keeper.h"
#include <dlpack/dlpack.h>
#include <sched.h>
#include <stdatomic.h>

#define TOPIC "gpu/a"

int dlx_test_gpu_variant;

static atomic_uint n_deleted;

static void start(void)
{
    atomic_store(&n_deleted, 0);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

/* The keeper ends, too: the next test has another machine. */
static void stop(void)
{
    pid_t keeper = dlx_test_keeper_find(dlx_test_stream_daemon.path);
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    if (keeper != 0)
        (void)kill(keeper, SIGKILL);
    dlx_test_keeper_wait_gone(dlx_test_stream_daemon.path);
}

TCase *dlx_test_gpu_stream_case(const char *name)
{
    TCase *tc = dlx_test_gpu_case(name);
    dlx_test_dir_fixture(tc, &dlx_test_stream_daemon);
    tcase_add_checked_fixture(tc, start, stop);
    tcase_set_timeout(tc, dlx_test_gpu_timeout(5 * PATIENCE_S));
    return tc;
}

struct dlx_test_gpu_end dlx_test_gpu_publisher(const struct dlx_publisher_args *args)
{
    struct dlx_test_gpu_end x = {.c = dlx_test_stream_connect()};
    (void)dlx_test_gpu_context(0);
    ok(dlx_publisher_new(x.c, TOPIC, args, &x.p));
    return x;
}

struct dlx_test_gpu_end dlx_test_gpu_both(const struct dlx_publisher_args *args)
{
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(args);
    ok(dlx_subscribe(x.c, TOPIC, NULL, &x.s));
    return x;
}

struct dlx_test_gpu_end dlx_test_gpu_publish_to(void (*role)(int sock),
                                                const struct dlx_publisher_args *args)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(role);
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(args);
    x.peer = peer;
    dlx_test_gpu_turn(peer.sock);
    ok(dlx_publisher_wait(x.p, 1, PATIENCE));
    return x;
}

struct dlx_test_gpu_end dlx_test_gpu_subscribe_on(int sock, int device,
                                                  const struct dlx_subscribe_args *args)
{
    dlx_test_gpu_await(sock);
    struct dlx_test_gpu_end x = {.c = dlx_test_stream_connect(), .device = device};
    (void)dlx_test_gpu_context(device);
    ok(dlx_subscribe(x.c, TOPIC, args, &x.s));
    dlx_test_gpu_tell(sock);
    return x;
}

struct dlx_test_gpu_end dlx_test_gpu_subscribe(int sock, const struct dlx_subscribe_args *args)
{
    return dlx_test_gpu_subscribe_on(sock, 0, args);
}

struct dlx_test_gpu_end dlx_test_gpu_subscriber(const struct dlx_subscribe_args *args)
{
    struct dlx_test_gpu_end x = {.c = dlx_test_stream_connect()};
    (void)dlx_test_gpu_context(0);
    x.s = dlx_test_stream_subscribe(x.c, TOPIC, args);
    return x;
}

struct dlx_test_gpu_end dlx_test_gpu_subscribe_to(void (*role)(int sock),
                                                  const struct dlx_subscribe_args *args)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(role);
    struct dlx_test_gpu_end x = dlx_test_gpu_subscriber(args);
    x.peer = peer;
    x.is_awaited = true;
    dlx_test_gpu_turn(peer.sock);
    return x;
}

static DLManagedTensorVersioned *take_tensor(struct dlx_test_gpu_end *end, uint32_t i)
{
    DLManagedTensorVersioned *t;
    auto_message *m = dlx_test_stream_next(end->s);
    ok(dlx_message_tensor(m, i, &t));
    return t;
}

DLManagedTensorVersioned *dlx_test_gpu_take_tensor(struct dlx_test_gpu_end *end)
{
    return take_tensor(end, 0);
}

void dlx_test_gpu_expect(struct dlx_test_gpu_end *end, uint32_t i, int64_t n, uint32_t value)
{
    auto_tensor *t = take_tensor(end, i);
    dlx_test_gpu_check(t, n, value);
}

void dlx_test_gpu_expect_sevens(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe(sock, NULL);
    dlx_test_gpu_expect(&x, 0, 16, 7);
}

void dlx_test_gpu_end(struct dlx_test_gpu_end *end)
{
    if (end->peer.pid > 0 && !end->is_awaited)
        dlx_test_gpu_join(&end->peer);
    dlx_subscription_unref(dlx_steal(end->s));
    dlx_publisher_unref(dlx_steal(end->p));
    dlx_client_unref(dlx_steal(end->c));
    dlx_test_gpu_check_count(STANDIN_IPC_MAPPINGS, 0);
    dlx_test_gpu_check_count(STANDIN_HANDLES, 0);
    if (end->peer.pid > 0) {
        dlx_test_gpu_tell(end->peer.sock);
        dlx_test_gpu_join(&end->peer);
    }
}

struct dlx_tensor_spec dlx_test_gpu_spec(const int64_t *shape, int32_t ndim, DLDevice device)
{
    return (struct dlx_tensor_spec){.size = sizeof(struct dlx_tensor_spec),
                                    .dtype = {kDLUInt, 32, 1},
                                    .ndim = ndim,
                                    .shape = shape,
                                    .device = device};
}

DLManagedTensorVersioned *dlx_test_gpu_alloc_empty(struct dlx_publisher *p, int64_t n)
{
    const struct dlx_tensor_spec spec = dlx_test_gpu_spec(&n, 1, dlx_test_gpu_device(0));
    DLManagedTensorVersioned *t;
    ok(dlx_alloc(p, &spec, &t));
    return t;
}

DLManagedTensorVersioned *dlx_test_gpu_alloc(struct dlx_publisher *p, int64_t n, uint32_t value)
{
    DLManagedTensorVersioned *t = dlx_test_gpu_alloc_empty(p, n);
    dlx_test_gpu_fill(dlx_test_gpu_address(t), (uint64_t)n * sizeof value, value);
    return t;
}

struct owner {
    DLManagedTensorVersioned tensor;
    int64_t dims[4];
    CUdeviceptr memory; /* 0: not its own */
};

static void delete_tensor(DLManagedTensorVersioned *tensor)
{
    struct owner *owner = tensor->manager_ctx;
    if (owner->memory)
        CU_OK(cu.cuMemFree(owner->memory));
    atomic_fetch_add(&n_deleted, 1);
    free(owner);
}

uint32_t dlx_test_gpu_n_deleted(void)
{
    return atomic_load(&n_deleted);
}

void dlx_test_gpu_wait_deleted(struct dlx_test_gpu_end *x, uint32_t n)
{
    eventually(dlx_test_gpu_n_deleted() >= n || dlx_publisher_wait(x->p, 0, 0) < 0);
    ck_assert_uint_ge(dlx_test_gpu_n_deleted(), n);
}

DLManagedTensorVersioned *dlx_test_gpu_tensor_at(CUdeviceptr at, int64_t rows, int64_t columns)
{
    struct owner *owner = calloc(1, sizeof *owner);
    ck_assert_ptr_nonnull(owner);
    owner->dims[0] = rows;
    owner->dims[1] = columns;
    owner->dims[2] = columns;
    owner->dims[3] = 1;
    owner->tensor = (DLManagedTensorVersioned){.version = {DLPACK_MAJOR_VERSION, 0},
                                               .manager_ctx = owner,
                                               .deleter = delete_tensor,
                                               .dl_tensor = {.data = (void *)(uintptr_t)at,
                                                             .device = dlx_test_gpu_device(0),
                                                             .ndim = 2,
                                                             .dtype = {kDLUInt, 32, 1},
                                                             .shape = owner->dims,
                                                             .strides = owner->dims + 2}};
    return &owner->tensor;
}

DLManagedTensorVersioned *dlx_test_gpu_tensor(uint64_t offset, int64_t rows, int64_t columns,
                                              uint32_t value)
{
    CUdeviceptr at;
    /* Smaller ones share a block, which is open where one of them is. */
    CU_OK(cu.cuMemAlloc(&at, DLX_TEST_GPU_CHUNK));
    dlx_test_gpu_fill(at, DLX_TEST_GPU_CHUNK, value);
    DLManagedTensorVersioned *tensor = dlx_test_gpu_tensor_at(at, rows, columns);
    ((struct owner *)tensor->manager_ctx)->memory = at;
    tensor->dl_tensor.byte_offset = offset;
    return tensor;
}

DLManagedTensorVersioned *dlx_test_gpu_view(const DLManagedTensorVersioned *of, int64_t rows,
                                            int64_t columns, int64_t step)
{
    DLManagedTensorVersioned *tensor = dlx_test_gpu_tensor_at(
        (CUdeviceptr)(uintptr_t)of->dl_tensor.data + of->dl_tensor.byte_offset, rows, columns);
    tensor->dl_tensor.strides[0] = step * columns;
    tensor->dl_tensor.strides[1] = step;
    return tensor;
}

static void CUDA_CB pass_gate(void *arg)
{
    struct dlx_test_gpu_gate *gate = arg;
    while (sem_wait(&gate->open) < 0)
        ;
}

void dlx_test_gpu_gate_shut(struct dlx_test_gpu_gate *gate, CUstream stream)
{
    dlx_test_gpu_kernels_load(); /* the driver loads nothing behind a gate */
    ck_assert_int_eq(sem_init(&gate->open, 0, 0), 0);
    CU_OK(cu.cuLaunchHostFunc(stream, pass_gate, gate));
}

void dlx_test_gpu_gate_open(struct dlx_test_gpu_gate *gate)
{
    ck_assert_int_eq(sem_post(&gate->open), 0);
}

CUstream dlx_test_gpu_stream(void)
{
    CUstream stream;
    CU_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

void dlx_test_gpu_sync(CUstream stream)
{
    CUresult result;
    uint64_t end = dlx__deadline(PATIENCE);
    while ((result = cu.cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY) {
        ck_assert_msg(dlx__now_ns() < end, "the stream has not done its work in %d s", PATIENCE_S);
        (void)sched_yield();
    }
    CU_OK(result);
}

struct dlx_subscription_stats dlx_test_gpu_stats(const struct dlx_test_gpu_end *end)
{
    return dlx_test_stream_subscription_stats(end->s);
}

void dlx_test_gpu_wait_held(struct dlx_subscription *s, uint32_t n)
{
    uint32_t n_held;
    uint64_t end = dlx__deadline(PATIENCE);
    while ((n_held = dlx_test_stream_subscription_stats(s).n_held) != n) {
        ck_assert_msg(dlx__now_ns() < end, "%u messages are held after %d s, not %u", n_held,
                      PATIENCE_S, n);
        (void)sched_yield();
    }
}

void dlx_test_gpu_check(const DLManagedTensorVersioned *tensor, int64_t n, uint32_t value)
{
    const DLTensor *t = &tensor->dl_tensor;
    bool has_rows = t->ndim == 2;
    struct dlx_test_gpu_view_of view = {
        .at = (CUdeviceptr)(uintptr_t)t->data,
        .n = (uint64_t)n,
        .columns = (uint64_t)(has_rows ? t->shape[1] : n),
        .row_stride = has_rows ? t->strides[0] : 0,
        .column_stride = has_rows ? t->strides[1] : 1,
    };
    ck_assert_uint_eq(dlx_test_gpu_look(&view, value), (uint64_t)n);
}

void dlx_test_gpu_wait_written(struct dlx_publisher *p)
{
    eventually(dlx_publisher_wait(p, 0, 0) < 0 || !p->gpu->unwritten);
}

void dlx_test_gpu_wait_ready(const struct dlx_test_gpu_end *x, int n)
{
    DLManagedTensorVersioned *t;
    auto_subscription *s = dlx_test_stream_subscribe(x->c, "gpu/a", NULL);
    for (int i = 0; i < n; i++) {
        auto_message *m = dlx_test_stream_next(s);
        ok(dlx_message_tensor(m, 0, &t));
        t->deleter(t);
    }
}

void dlx_test_gpu_publish_this(struct dlx_publisher *p, DLManagedTensorVersioned *t,
                               CUstream stream, struct dlx_test_gpu_gate *gate, uint64_t work_ns)
{
    if (gate)
        dlx_test_gpu_gate_shut(gate, stream);
    if (work_ns > 0)
        dlx_test_gpu_spin(stream, 0, work_ns);
    CU_OK(cu.cuMemsetD32Async(dlx_test_gpu_address(t), 7, DLX_TEST_GPU_PAIR_N, stream));
    ok(dlx_publish(p, t, PUBLISH(.stream = stream), NULL));
}

void dlx_test_gpu_publish_behind(struct dlx_publisher *p, CUstream stream,
                                 struct dlx_test_gpu_gate *gate, uint64_t work_ns)
{
    dlx_test_gpu_publish_this(p, dlx_test_gpu_alloc(p, DLX_TEST_GPU_PAIR_N, 0), stream, gate,
                              work_ns);
}

DLManagedTensorVersioned *dlx_test_gpu_take_on(struct dlx_test_gpu_end *x, CUstream stream)
{
    DLManagedTensorVersioned *t;
    auto_message *m = dlx_test_stream_next(x->s);
    ok(dlx_message_tensor_on(m, 0, stream, &t));
    return t;
}

struct dlx_test_gpu_pair dlx_test_gpu_pair_new(void)
{
    struct dlx_test_gpu_pair pair = {.x = dlx_test_gpu_both(NULL)};
    pair.from = dlx_test_gpu_stream();
    pair.to = dlx_test_gpu_stream();
    CU_OK(cu.cuMemAlloc(&pair.copy, DLX_TEST_GPU_PAIR_N * sizeof(uint32_t)));
    CU_OK(cu.cuMemsetD32(pair.copy, 0, DLX_TEST_GPU_PAIR_N));
    return pair;
}

void dlx_test_gpu_pair_end(struct dlx_test_gpu_pair *pair)
{
    CU_OK(cu.cuMemFree(pair->copy));
    dlx_test_gpu_end(&pair->x);
}

#endif
