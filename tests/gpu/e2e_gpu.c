/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors on GPUs between processes, over a real daemon. */
#include "client/publish/publisher.h"
#include "gpu/lib/share.h"
#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU
#include "tests/harness/cli.h"

#define N       16
#define WORK_NS UINT64_C(200000000) /* so long that what does not wait is seen */

static const uint32_t values[] = {0x11111111, 0x22222222, 0x33333333, 0x44444444, 0x55555555};

static void take_one(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe(sock, NULL);
    DLManagedTensorVersioned *t, *again;
    struct dlx_message *m = dlx_test_stream_next(x.s);
    const DLTensor *peeked = dlx_message_tensor_peek(m, 0);
    ck_assert_ptr_null(peeked->data);
    ck_assert_int_eq(peeked->device.device_type, (DLDeviceType)dlx_test_gpu_type());
    dlx_test_gpu_check_calls("cuIpcOpenMemHandle", 0);
    ok(dlx_message_tensor(m, 0, &t));
    ok(dlx_message_tensor(m, 0, &again));
    dlx_test_gpu_check_calls("cuIpcOpenMemHandle", 1);
    ck_assert_uint_eq(t->flags, DLPACK_FLAG_BITMASK_READ_ONLY);
    ck_assert_int_eq(t->dl_tensor.device.device_type, (DLDeviceType)dlx_test_gpu_type());
    ck_assert_int_eq(t->dl_tensor.device.device_id, 0);
    ck_assert_int_eq(t->dl_tensor.ndim, 2);
    ck_assert_int_eq(t->dl_tensor.shape[1], N);
    ck_assert_int_eq(t->dl_tensor.strides[0], N);
    dlx_test_gpu_check(t, 2 * N, values[0]);
    dlx_test_gpu_check(again, 2 * N, values[0]);
    fails(dlx_message_tensor_private(m, 0, &again), DLX_E_DEVICE,
          "only tensors on the CPU can be private");
    again->deleter(again);
    dlx_message_unref(m);
    t->deleter(t);
    dlx_test_gpu_check_count(STANDIN_IPC_MAPPINGS, 0);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(x.s);
    ck_assert_uint_eq(stats.gpu_waits, 2);
    ck_assert_uint_eq(stats.gpu_errors, 0);
    ck_assert_uint_eq(stats.n_held, 0);
}

GPU_TEST(a_tensor_is_taken_by_another_process_and_deleted_when_it_is_done, 0)
{
    struct dlx_test_gpu_end x = dlx_test_gpu_publish_to(take_one, NULL);
    ok(dlx_publish(x.p, dlx_test_gpu_tensor(4096, 2, N, values[0]), PUBLISH(.strict = true), NULL));
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 0);
    dlx_test_gpu_join(&x.peer);
    ok(dlx_publisher_wait(x.p, 0, 0));
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 0); /* the newest message stays */
    ok(dlx_publish(x.p, dlx_test_gpu_tensor(0, 1, N, values[1]), NULL, NULL));
    dlx_test_gpu_wait_written(x.p);
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 1);
    struct dlx_publisher_stats stats = dlx_test_stream_stats(x.p);
    ck_assert_uint_eq(stats.gpu_waits, 2 * dlx_test_gpu_stream_waits());
    ck_assert_uint_eq(stats.copied, 0);
    ck_assert_uint_eq(stats.published_bytes, 3 * N * sizeof(uint32_t));
    dlx_test_gpu_end(&x);
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 2);
}

static void take_set(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe(sock, NULL);
    struct dlx_message *m = dlx_test_stream_next(x.s);
    DLManagedTensorVersioned *t[5];
    size_t size;
    ck_assert_uint_eq(dlx_message_n_tensors(m), 5);
    for (uint32_t i = 0; i < 5; i++)
        ok(dlx_message_tensor(m, i, &t[i]));
    ck_assert_str_eq(dlx_message_tensor_name(m, 2), "b");
    ck_assert_str_eq(dlx_message_meta(m, &size), "hello");
    dlx_test_gpu_check(t[0], N, values[0]);
    ck_assert_int_eq(t[1]->dl_tensor.device.device_type, kDLCPU);
    ck_assert_int_eq(((int64_t *)t[1]->dl_tensor.data)[3], 10);
    dlx_test_gpu_check(t[2], N, values[1]);
    ck_assert_int_eq(t[0]->dl_tensor.strides[0], N);
    ck_assert_int_eq(t[2]->dl_tensor.strides[0], 1);
    ck_assert_int_eq(t[3]->dl_tensor.strides[0], 2 * N);
    ck_assert_int_eq(t[3]->dl_tensor.strides[1], 2);
    dlx_test_gpu_check(t[3], 2 * N, values[1]);
    ck_assert_ptr_null(t[4]->dl_tensor.data);
    ck_assert_int_eq(t[4]->dl_tensor.device.device_type, (DLDeviceType)dlx_test_gpu_type());
    dlx_test_gpu_check_calls("cuIpcOpenMemHandle", 2);
    dlx_message_unref(m);
    for (uint32_t i = 0; i < 5; i++)
        t[i]->deleter(t[i]);
}

/* Tensors on the CPU and on the GPU, two of which are in one allocation, one with gaps, one empty,
 * and one of one row, whose stride is kept although no element depends on it. */
GPU_TEST(a_set_mixes_tensors_on_the_cpu_and_on_a_gpu, 0)
{
    const struct dlx_bytes hello = {.data = "hello", .size = 6};
    struct dlx_test_gpu_end x = dlx_test_gpu_publish_to(take_set, NULL);
    auto_tensor *b = dlx_test_gpu_tensor(256, 4, N, values[1]);
    struct dlx_item items[] = {
        {"a", dlx_test_gpu_tensor(0, 1, N, values[0])}, {"cpu", dlx_test_stream_alloc(x.p, 4, 7)},
        {"b", dlx_test_gpu_view(b, 1, N, 1)},           {"gaps", dlx_test_gpu_view(b, 2, N, 2)},
        {"empty", dlx_test_gpu_view(b, 0, N, 1)},
    };
    items[2].tensor->dl_tensor.strides[0] = 1;
    ok(dlx_publish_set(x.p, items, 5, &hello, NULL, NULL));
    ck_assert_uint_eq(x.p->gpu->n_mortal, 1); /* a message, whatever the number of its tensors */
    dlx_test_gpu_end(&x);
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 4);
}

static void take_on_device_1(int sock)
{
    ck_assert_int_eq(setenv("CUDA_VISIBLE_DEVICES", "1,0", 1), 0);
    auto_gpu_end x = dlx_test_gpu_subscribe_on(sock, 1, NULL);
    struct dlx_message *m = dlx_test_stream_next(x.s);
    DLManagedTensorVersioned *t;
    ok(dlx_message_tensor(m, 0, &t));
    ck_assert_int_eq(t->dl_tensor.device.device_id, 1);
    dlx_test_gpu_check(t, N, values[2]);
    t->deleter(t);
    dlx_message_unref(m);
    dlx_test_gpu_check_no_context(0, 1);
}

GPU_TEST(a_device_has_the_number_that_its_own_process_gave_it, DLX_TEST_GPU_TWO)
{
    auto_gpu_end x = dlx_test_gpu_publish_to(take_on_device_1, NULL);
    ok(dlx_publish(x.p, dlx_test_gpu_tensor(64, 1, N, values[2]), NULL, NULL));
    dlx_test_gpu_join(&x.peer);
    dlx_test_gpu_check_no_context(1, 1);
}

static void see_no_gpu(int sock)
{
    ck_assert_int_eq(setenv("CUDA_VISIBLE_DEVICES", "1", 1), 0);
    auto_gpu_end x = dlx_test_gpu_subscribe(sock, NULL);
    auto_message *m = dlx_test_stream_next(x.s);
    auto_tensor *t = NULL;
    char id[32];
    (void)snprintf(id, sizeof id, "publisher %llu", (unsigned long long)dlx_message_publisher(m));
    fails(dlx_message_tensor(m, 0, &t), DLX_E_DEVICE, "GPU-");
    fails(dlx_message_tensor(m, 0, &t), DLX_E_DEVICE, id);
    ok(dlx_message_tensor(m, 1, &t));
    ck_assert_int_eq(((int64_t *)t->dl_tensor.data)[0], 5);
}

GPU_TEST(a_gpu_that_is_not_visible_leaves_the_other_tensors_usable, DLX_TEST_GPU_TWO)
{
    struct dlx_test_gpu_end x = dlx_test_gpu_publish_to(see_no_gpu, NULL);
    struct dlx_item items[] = {{"gpu", dlx_test_gpu_tensor(0, 1, N, values[0])},
                               {"cpu", dlx_test_stream_alloc(x.p, 4, 5)}};
    ok(dlx_publish_set(x.p, items, 2, NULL, NULL, NULL));
    dlx_test_gpu_end(&x);
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 1);
}

static void take_late(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe(sock, SUBSCRIBE(.history = 2));
    for (uint32_t i = 1; i <= 2; i++)
        dlx_test_gpu_expect(&x, 0, N, values[i]);
}

/* 0: it asks for the history; 1: the publisher retains. */
GPU_LOOP_TEST(a_late_subscriber_gets_what_was_kept, 0, 2, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(take_late);
    struct dlx_test_gpu_end x =
        dlx_test_gpu_publisher(PUBLISHER(.history = 2, .retain = _i == 1 ? 2 : 0));
    for (uint32_t i = 0; i < 3; i++)
        ok(dlx_publish(x.p, dlx_test_gpu_tensor(0, 1, N, values[i]), NULL, NULL));
    dlx_test_gpu_wait_written(x.p);
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 1);
    dlx_test_gpu_tell(peer.sock);
    dlx_test_gpu_join(&peer);
    dlx_test_gpu_end(&x);
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 3);
}

GPU_TEST(the_publisher_s_own_process_gets_the_original_memory, 0)
{
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    DLManagedTensorVersioned *t = dlx_test_gpu_tensor(512, 1, N, values[3]), *r;
    const void *data = (const uint8_t *)t->dl_tensor.data + t->dl_tensor.byte_offset;
    ok(dlx_publish(x.p, t, NULL, NULL));
    struct dlx_message *m = dlx_test_stream_next(x.s);
    ok(dlx_message_tensor(m, 0, &r));
    dlx_message_unref(m);
    ck_assert_ptr_eq(r->dl_tensor.data, data);
    dlx_test_gpu_check_calls("cuIpcOpenMemHandle", 0);
    ok(dlx_publish(x.p, dlx_test_stream_alloc(x.p, 4, 1), NULL, NULL));
    ok(dlx_publisher_wait(x.p, 0, 0));
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 0);
    fails(dlx_publish(x.p, r, NULL, NULL), DLX_E_DEVICE, "received");
    r->deleter(r);
    ok(dlx_publish(x.p, dlx_test_stream_alloc(x.p, 4, 1), NULL, NULL));
    dlx_message_unref(dlx_test_stream_next(x.s));
    dlx_message_unref(dlx_test_stream_next(x.s));
    dlx_test_gpu_wait_written(x.p);
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 1);
}

/* 0: the default stream; 1: one of its own. */
GPU_LOOP_TEST(a_message_is_shown_when_its_stream_has_written_it, 0, 2, 0)
{
    auto_gpu_end x = dlx_test_gpu_publish_to(dlx_test_gpu_expect_sevens, NULL);
    DLManagedTensorVersioned *t = dlx_test_gpu_tensor(0, 1, N, values[0]);
    CUstream stream = _i == 1 ? dlx_test_gpu_stream() : NULL;
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    CU_OK(cu.cuMemsetD32Async(dlx_test_gpu_address(t), 7, N, stream));
    ok(dlx_publish(x.p, t, PUBLISH(.stream = stream), NULL));
    dlx_test_gpu_join(&x.peer);
    if (stream)
        CU_OK(cu.cuStreamDestroy(stream));
}

static void take_and_use(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe(sock, NULL);
    CUdeviceptr copy;
    DLManagedTensorVersioned *t = dlx_test_gpu_take_tensor(&x);
    CU_OK(cu.cuMemAlloc(&copy, N * sizeof(uint32_t)));
    CUstream stream = dlx_test_gpu_stream();
    uint64_t n = dlx_test_gpu_calls("cuCtxSynchronize");
    dlx_test_gpu_spin(stream, 0, WORK_NS);
    CU_OK(cu.cuMemcpyDtoDAsync(copy, dlx_test_gpu_address(t), N * sizeof(uint32_t), stream));
    t->deleter(t);
    dlx_test_gpu_wait_held(x.s, 0);
    dlx_test_gpu_check_calls("cuCtxSynchronize", n + 1);
    CU_OK(cu.cuStreamQuery(stream));
    ck_assert_uint_eq(dlx_test_gpu_word(copy), values[1]);
    dlx_test_gpu_check_count(STANDIN_UNMAPPED_IN_USE, 0);
    CU_OK(cu.cuMemFree(copy));
}

GPU_TEST(memory_is_given_back_when_all_work_is_done_if_no_stream_was_named, 0)
{
    auto_gpu_end x = dlx_test_gpu_publish_to(take_and_use, NULL);
    ok(dlx_publish(x.p, dlx_test_gpu_tensor(0, 1, N, values[1]), NULL, NULL));
}

GPU_TEST(a_stream_that_is_captured_is_refused_untouched, 0)
{
    CUstream stream;
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(NULL);
    DLManagedTensorVersioned *t = dlx_test_gpu_tensor(0, 1, N, values[1]);
    CU_OK(cu.cuStreamCreate(&stream, 0));
    CU_OK(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    fails(dlx_publish(x.p, t, PUBLISH(.stream = stream), NULL), DLX_E_INVALID, "captured");
    dlx_test_gpu_end_capture(stream);
    ok(dlx_publish(x.p, t, PUBLISH(.stream = stream), NULL));
    CU_OK(cu.cuStreamDestroy(stream));
    dlx_test_gpu_end(&x);
    ck_assert_uint_eq(dlx_test_gpu_n_deleted(), 1);
}

GPU_TEST(impossible_tensors_are_refused, DLX_TEST_GPU_TWO)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    auto_tensor *t = dlx_test_gpu_tensor(0, 4, N, values[0]), *cpu = NULL;
    struct dlx_item twice[] = {{"a", t}, {"b", t}};
    fails(dlx_publish_set(x.p, twice, 2, NULL, NULL, NULL), DLX_E_INVALID, "twice");
    t->dl_tensor.shape[0] = 1 << 30;
    fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_DEVICE, "beyond");
    t->dl_tensor.shape[0] = -1;
    fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_SHAPE, "-1");
    t->dl_tensor.shape[0] = 4;
    t->dl_tensor.device.device_id = 1;
    fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_INVALID, "device");
    t->dl_tensor.device.device_id = 99;
    fails(dlx_publish(x.p, t, NULL, NULL), DLX_E_DEVICE, "99");
    t->dl_tensor.device = (DLDevice){kDLCPU, 0};
    cpu = dlx_test_stream_alloc(x.p, 4, 1);
    cpu->dl_tensor.device = (DLDevice){(DLDeviceType)dlx_test_gpu_type(), 0};
    fails(dlx_publish(x.p, cpu, NULL, NULL), DLX_E_DEVICE, "dlx_alloc");
    fails(dlx_tensor_used_on(cpu, NULL), DLX_E_INVALID, "dlx_message_tensor");
}

/* dlxctl says what it is, and refuses its values. */
GPU_TEST(dlxctl_describes_a_tensor_on_a_gpu_and_does_not_read_it, 0)
{
    struct dlx_test_cli cli;
    char file[300];
    const char *path = dlx_test_stream_daemon.path;
    auto_gpu_end x = dlx_test_gpu_publisher(PUBLISHER(.retain = 1));
    (void)snprintf(file, sizeof file, "%s/x.npy", dlx_test_stream_daemon.dir);
    ok(dlx_publish(x.p, dlx_test_gpu_tensor(0, 2, N, values[0]), NULL, NULL));
    dlx_test_cli_run(&cli, path, -1, 0, DLX_TEST_WORDS("echo", "--count=1", "gpu/a"));
    contains(cli.out, dlx_test_gpu_is_hip()
                          ? "uint32 (2, 16)  128 B  on rocm  (not readable here)"
                          : "uint32 (2, 16)  128 B  on cuda  (not readable here)");
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, path, -1, 0, DLX_TEST_WORDS("echo", "--json", "--count=1", "gpu/a"));
    contains(cli.out, dlx_test_gpu_is_hip() ? "\"device\":\"rocm\"" : "\"device\":\"cuda\"");
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, path, -1, 1, DLX_TEST_WORDS("get", "gpu/a", file));
    contains(cli.err, dlx_test_gpu_is_hip() ? "device type 10 cannot be read here"
                                            : "device type 2 cannot be read here");
    dlx_test_cli_deinit(&cli);
    ck_assert_int_ne(access(file, F_OK), 0);
}

#endif

GPU_MAIN(dlx_test_gpu_stream_case("gpu"))
