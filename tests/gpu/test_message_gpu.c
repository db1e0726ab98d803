/* SPDX-License-Identifier: Apache-2.0 */
/* A message's checks of the allocations that a peer describes. No GPU is needed. */
#include "gpu/lib/order.h"
#include "gpu/lib/receive.h"
#include "gpu/handle.h"
#include "tests/harness/run.h"

static uint8_t bytes[DLX_SHM_ALLOCATION_SIZE];
static struct dlx_shm_manifest_gpu gpu_part = {.publisher = 77, .ready = DLX_GPU_READY};
static struct dlx_shm_control control;
static struct dlx_client client = {.refs = 1};
static struct dlx_gpu_receiver *receiver;
static const struct dlx_subscribe_args asked = {.size = sizeof asked};
static const struct dlx_subscription_view link_of = {&client, &asked, &receiver, NULL};
static struct dlx_subscriber_link subscriber_link = {.topic = "cam/front",
                                                     .publisher = 7,
                                                     .pid = 42,
                                                     .bell = -1,
                                                     .core = {.control = &control},
                                                     .of = &link_of};

/* An honest one of 4096 bytes. */
static void setup(void)
{
    uint8_t room[DLX_GPU_BYTES_MAX];
    int fds[DLX_PACKET_FDS_MAX];
    size_t n_fds;
    const struct dlx_gpu_handle handle = {.kind = DLX_GPU_CUDA_IPC, .id = 1, .size = 4096};
    ck_assert_uint_eq(dlx__gpu_handle_encode(&handle, 0, room, fds, &n_fds), sizeof bytes);
    memcpy(bytes, room, sizeof bytes);
}

static int make(struct dlx_message_gpu **ret)
{
    const struct dlx_manifest manifest = {
        .header = {.n_tensors = 1}, .gpu = &gpu_part, .n_allocations = 1, .allocations = bytes};
    return dlx__gpu_receive_table.message_new(&subscriber_link, &manifest, ret);
}

static const int64_t shape[] = {256};

static int place(struct dlx_message_gpu *gpu, int32_t device_type, uint64_t offset)
{
    const struct dlx_manifest_item item = {.record = {.dtype_code = kDLFloat,
                                                      .dtype_bits = 32,
                                                      .dtype_lanes = 1,
                                                      .device_type = device_type,
                                                      .ndim = 1,
                                                      .flags = DLX_SHM_RECORD_ROW_MAJOR,
                                                      .offset = offset,
                                                      .size = 1024},
                                           .allocation = 1};
    return dlx__gpu_receive_table.place(gpu, 0, &item, shape, NULL);
}

TEST(a_tensor_lies_in_its_allocation)
{
    struct dlx_message_gpu *gpu;
    ck_assert_int_eq(make(&gpu), 0);
    ck_assert_int_eq(place(gpu, kDLCUDA, 3072), 0);
    ck_assert_int_eq(place(gpu, kDLCUDA, 3073), DLX_E_BAD_PEER);
    ck_assert_int_eq(place(gpu, kDLROCM, 0), DLX_E_BAD_PEER);
    dlx__gpu_receive_table.message_free(gpu);
}

TEST(a_description_that_cannot_be_is_the_peer_s_fault)
{
    struct dlx_message_gpu *gpu;
    memset(bytes + 24, 0, 8); /* its id */
    fails(make(&gpu), DLX_E_BAD_PEER, "allocation 1");
}

/* Imports are its number's, and closed when the link leaves. */
TEST(a_publisher_keeps_its_number)
{
    struct dlx_message_gpu *gpu, *none;
    ck_assert_int_eq(make(&gpu), 0);
    gpu_part.publisher = 78;
    fails(make(&none), DLX_E_BAD_PEER, "is 78, and was 77");
    gpu_part.publisher = 77;
    dlx__gpu_receive_table.message_free(gpu);
    ck_assert_int_eq(make(&gpu), 0);
    dlx__gpu_receive_table.message_free(gpu);
}

TEST(a_publisher_has_a_number)
{
    struct dlx_message_gpu *none;
    gpu_part.publisher = 0;
    fails(make(&none), DLX_E_BAD_PEER, "is 0");
}

/* Byte 0 is the version, byte 1 the kind. */
LOOP_TEST(a_kind_of_a_later_version_is_told_when_it_is_opened, 0, 2)
{
    struct dlx_message_gpu *gpu;
    DLTensor tensor = {.data = NULL};
    bytes[_i] = 99;
    ck_assert_int_eq(make(&gpu), 0);
    ck_assert_int_eq(place(gpu, kDLCUDA, 1 << 20), 0);
    struct dlx_message m = {.link = &subscriber_link, .n_tensors = 1, .gpu = gpu};
    ck_assert_int_eq(dlx__gpu_receive_table.open(&m, 0, &tensor), DLX_E_VERSION);
    ck_assert_ptr_null(tensor.data);
    contains(dlx__error_message(), "99");
    contains(dlx__error_message(), "cam/front, publisher 7 (pid 42)");
    dlx__gpu_receive_table.message_free(gpu);
}

int main(void)
{
    TCase *tc = tcase_create("message_gpu");
    tcase_add_checked_fixture(tc, setup, NULL);
    return dlx_test_run_case(tc);
}
