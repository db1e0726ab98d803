/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions of GPU memory: what is sent arrives, and nothing that a peer may send is trusted. */
#include "gpu/handle.h"
#include "tests/harness/fds.h"
#include "tests/harness/random.h"
#include "tests/harness/run.h"

static struct dlx_gpu_handle sent, got;
static uint8_t data[DLX_GPU_BYTES_MAX];
static int fds[DLX_PACKET_FDS_MAX]; /* as a packet brings them: ours until they are taken */
static size_t n_fds, n_fds_before;  /* of the packet; of this process */

static void setup(void)
{
    n_fds_before = dlx_test_fds_count();
    for (size_t i = 0; i < DLX_ARRAY_SIZE(fds); i++)
        fds[i] = -1;
}

static void teardown(void)
{
    dlx__gpu_handle_deinit(&sent);
    dlx__gpu_handle_deinit(&got);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(fds); i++)
        fds[i] = dlx__close(fds[i]);
    ck_assert_uint_eq(dlx_test_fds_count(), n_fds_before);
}

static void make(enum dlx_gpu_kind kind, uint32_t n_chunks)
{
    uint64_t size = n_chunks == 0 ? 4096 : 0;
    ck_assert_int_eq(dlx__gpu_handle_reserve(&sent, n_chunks), 0);
    for (uint32_t i = 0; i < n_chunks; i++) {
        sent.chunks[i].size = (uint64_t)(i + 1) << 21;
        sent.chunks[i].fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        ck_assert_int_ge(sent.chunks[i].fd, 0);
        size += sent.chunks[i].size;
    }
    sent.kind = kind;
    sent.id = 7;
    sent.size = size;
    for (uint8_t i = 0; i < 16; i++)
        sent.device.bytes[i] = (uint8_t)(0xf0 | i);
    for (uint8_t i = 0; i < 64; i++)
        sent.token[i] = (uint8_t)(i + 1);
}

/* Encodes a part, with descriptors as recvmsg() would have made them. Returns its size. */
static size_t encode(uint32_t first)
{
    int borrowed[DLX_PACKET_FDS_MAX];
    size_t size = dlx__gpu_handle_encode(&sent, first, data, borrowed, &n_fds);
    for (size_t i = 0; i < n_fds; i++) {
        dlx__close(fds[i]);
        fds[i] = dlx_test_fds_dup(borrowed[i]);
    }
    return size;
}

/* All parts of it. Returns how many there were. */
static uint32_t transfer(void)
{
    uint32_t n_parts = 0, first = 0;
    do {
        size_t size = encode(first);
        ck_assert(!dlx__gpu_handle_is_complete(&got));
        ck_assert_int_eq(dlx__gpu_handle_decode(&got, data, size, fds, n_fds), 0);
        for (size_t i = 0; i < n_fds; i++)
            ck_assert_int_eq(fds[i], -1);
        first += (uint32_t)n_fds;
        n_parts++;
    } while (first < sent.n_chunks);
    return n_parts;
}

static void check_same(void)
{
    ck_assert(dlx__gpu_handle_is_complete(&got));
    ck_assert_int_eq((int)got.kind, (int)sent.kind);
    ck_assert_uint_eq(got.id, sent.id);
    ck_assert_uint_eq(got.size, sent.size);
    ck_assert_mem_eq(got.device.bytes, sent.device.bytes, 16);
    ck_assert_mem_eq(got.token, sent.token, 64);
    ck_assert_uint_eq(got.n_chunks, sent.n_chunks);
    for (uint32_t i = 0; i < got.n_chunks; i++) {
        ck_assert_uint_eq(got.chunks[i].size, sent.chunks[i].size);
        ck_assert_int_ge(fcntl(got.chunks[i].fd, F_GETFD), 0);
    }
}

LOOP_TEST(each_kind_arrives_as_it_was_sent, 0, 6)
{
    static const struct {
        enum dlx_gpu_kind kind;
        uint32_t n_chunks;
    } cases[] = {{DLX_GPU_CUDA_VMM, 1}, {DLX_GPU_CUDA_VMM, 3}, {DLX_GPU_CUDA_POOL, 1},
                 {DLX_GPU_CUDA_IPC, 0}, {DLX_GPU_HIP_IPC, 0},  {DLX_GPU_HIP_VMM, 1}};
    make(cases[_i].kind, cases[_i].n_chunks);
    ck_assert_uint_eq(transfer(), 1);
    check_same();
}

LOOP_TEST(more_chunks_than_a_message_carries_come_in_parts, 0, 4)
{
    static const uint32_t n_chunks[] = {253, 254, 506, 600};
    static const uint32_t n_parts[] = {1, 2, 2, 3};
    make(DLX_GPU_CUDA_VMM, n_chunks[_i]);
    ck_assert_uint_eq(transfer(), n_parts[_i]);
    check_same();
}

LOOP_TEST(an_outline_is_whole_only_for_a_kind_without_descriptors, 0, 2)
{
    make(_i == 0 ? DLX_GPU_CUDA_IPC : DLX_GPU_CUDA_VMM, _i == 0 ? 0 : 300);
    dlx__gpu_handle_encode_outline(&sent, data);
    ck_assert_int_eq(dlx__gpu_handle_decode_outline(&got, data), 0);
    ck_assert(dlx__gpu_handle_is_same(&got, &sent));
    ck_assert_ptr_null(got.chunks);
    ck_assert(dlx__gpu_handle_is_complete(&got) == (_i == 0));
    dlx__gpu_handle_deinit(&got);
    data[8]++; /* the GPU */
    ck_assert_int_eq(dlx__gpu_handle_decode_outline(&got, data), 0);
    ck_assert(!dlx__gpu_handle_is_same(&got, &sent));
    data[48] = 1; /* it begins with chunk 0, of which it has none */
    dlx__gpu_handle_deinit(&got);
    ck_assert_int_eq(dlx__gpu_handle_decode_outline(&got, data), DLX_E_PROTOCOL);
}

/* The packet must be refused with this code and word, and no descriptor has changed hands. */
static void refused(size_t size, size_t n_fds_said, int code, const char *word)
{
    size_t before = dlx_test_fds_count();
    struct dlx_gpu_handle was = got;
    fails(dlx__gpu_handle_decode(&got, data, size, fds, n_fds_said), code, word);
    ck_assert_uint_eq(dlx_test_fds_count(), before);
    ck_assert_mem_eq(&got, &was, sizeof got);
}

TEST(parts_in_another_order_or_of_another_description_are_refused)
{
    make(DLX_GPU_CUDA_VMM, 300);
    size_t size = encode(253);
    refused(size, n_fds, DLX_E_PROTOCOL, "order");
    size = encode(0);
    ck_assert_int_eq(dlx__gpu_handle_decode(&got, data, size, fds, n_fds), 0);
    ck_assert(!dlx__gpu_handle_is_complete(&got));
    size = encode(0);
    refused(size, n_fds, DLX_E_PROTOCOL, "order");
    size = encode(253);
    data[24]++; /* the id */
    refused(size, n_fds, DLX_E_PROTOCOL, "another");
    data[24]--;
    ck_assert_int_eq(dlx__gpu_handle_decode(&got, data, size, fds, n_fds), 0);
    check_same();
    size = encode(253);
    refused(size, n_fds, DLX_E_PROTOCOL, "order");
}

TEST(a_wrong_field_is_refused_by_name)
{
    static const struct {
        size_t at;
        uint8_t value;
        int code;
        const char *word;
    } cases[] = {
        {0, 2, DLX_E_VERSION, "version 2"},
        {1, 0, DLX_E_VERSION, "kind 0"},
        {1, 9, DLX_E_VERSION, "kind 9, which this library does not know (it knows 1 to 5)"},
        {1, DLX_GPU_CUDA_IPC, DLX_E_PROTOCOL, "chunks for its kind"},
        {1, DLX_GPU_CUDA_POOL, DLX_E_PROTOCOL, "chunks for its kind"},
        {2, 1, DLX_E_PROTOCOL, "chunks for its size"},
        {3, 1, DLX_E_PROTOCOL, "chunks for its size"},
        {4, 1, DLX_E_PROTOCOL, "reserved"},
        {47, 1, DLX_E_PROTOCOL, "reserved"},
        {24, 0, DLX_E_PROTOCOL, "id"},
        {39, 0x80, DLX_E_PROTOCOL, "bytes"},
        {35, 0x01, DLX_E_PROTOCOL, "sum"},
        {34, 0x10, DLX_E_PROTOCOL, "size of a chunk"},
        {48, 1, DLX_E_PROTOCOL, "range"},
        {51, 0xff, DLX_E_PROTOCOL, "range"},
        {52, 1, DLX_E_PROTOCOL, "range"},
        {54, 0xff, DLX_E_PROTOCOL, "chunks for its kind"},
        {DLX_GPU_HEADER_SIZE + 2, 0, DLX_E_PROTOCOL, "size of a chunk"},
        {DLX_GPU_HEADER_SIZE + 7, 0xff, DLX_E_PROTOCOL, "size of a chunk"},
        {DLX_GPU_HEADER_SIZE + 0, 0xff, DLX_E_PROTOCOL, "size of a chunk"},
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++) {
        make(DLX_GPU_CUDA_VMM, 2);
        size_t size = encode(0);
        data[cases[i].at] = cases[i].value;
        refused(size, n_fds, cases[i].code, cases[i].word);
        dlx__gpu_handle_deinit(&sent);
    }
}

TEST(wrong_sizes_and_numbers_of_descriptors_are_refused)
{
    make(DLX_GPU_CUDA_VMM, 2);
    size_t size = encode(0);
    for (size_t cut = 0; cut < size; cut++)
        refused(cut, n_fds, DLX_E_PROTOCOL, "size");
    refused(size + 1, n_fds, DLX_E_PROTOCOL, "size");
    refused(sizeof data + 1, n_fds, DLX_E_PROTOCOL, "size");
    refused(size, n_fds - 1, DLX_E_PROTOCOL, "descriptors");
    refused(size, n_fds + 1, DLX_E_PROTOCOL, "descriptors");
    refused(size, 0, DLX_E_PROTOCOL, "descriptors");
}

/*
 * Descriptions with a few bytes changed at random: each is refused with its descriptors, or becomes
 * a handle that says, when it is encoded again, what came.
 */
TEST(an_accepted_handle_encodes_to_what_came)
{
    uint64_t seed = 0x9e3779b97f4a7c15;
    uint32_t n_taken = 0, n_refused = 0;
    for (uint32_t round = 0; round < 20000; round++) {
        make((enum dlx_gpu_kind)dlx_test_random_in(&seed, 1, 5),
             (uint32_t)dlx_test_random_in(&seed, 0, 3));
        size_t size = encode(0);
        for (int64_t n = dlx_test_random_in(&seed, 0, 3); n > 0; n--)
            data[dlx_test_random_in(&seed, 0, (int64_t)size - 1)] =
                (uint8_t)dlx_test_random_in(&seed, 0, 255);
        uint8_t came[DLX_GPU_BYTES_MAX];
        memcpy(came, data, size);
        size_t before = dlx_test_fds_count();
        int r = dlx__gpu_handle_decode(&got, data, size, fds, n_fds);
        ck_assert_uint_eq(dlx_test_fds_count(), before);
        if (r < 0) {
            n_refused++;
            ck_assert(r == DLX_E_PROTOCOL || r == DLX_E_VERSION);
            ck_assert_ptr_null(got.chunks);
        } else {
            int borrowed[DLX_PACKET_FDS_MAX];
            size_t n_again;
            n_taken++;
            ck_assert_uint_eq(got.n_received, n_fds);
            struct dlx_gpu_handle all = got;
            dlx__gpu_handle_deinit(&sent);
            all.n_chunks = got.n_received; /* as far as they have come */
            ck_assert_uint_eq(dlx__gpu_handle_encode(&all, 0, data, borrowed, &n_again), size);
            memcpy(data + 52, came + 52, 4);
            ck_assert_mem_eq(data, came, size);
        }
        dlx__gpu_handle_deinit(&got);
        dlx__gpu_handle_deinit(&sent);
    }
    ck_assert_uint_gt(n_taken, 1000);
    ck_assert_uint_gt(n_refused, 1000);
}

TEST(a_uuid_reads_as_nvidia_smi_writes_it)
{
    char text[DLX_GPU_UUID_TEXT];
    struct dlx_gpu_uuid uuid = {{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45,
                                 0x67, 0x89, 0xab, 0xcd, 0xef}};
    dlx__gpu_uuid_text(&uuid, text);
    ck_assert_str_eq(text, "GPU-01234567-89ab-cdef-0123-456789abcdef");
}

int main(void)
{
    TCase *tc = tcase_create("handle");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    return dlx_test_run_case(tc);
}
