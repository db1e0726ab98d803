/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of tensors: what is written is read again, and whatever a peer writes stays inside. */
#include "ring/manifest.h"
#include "tests/harness/random.h"
#include "tests/harness/run.h"

static uint64_t seed = 1;

static const int64_t dims[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
static const char meta[] = "some metadata";

#define N_ITEMS 4

static void make_items(struct dlx_manifest_item *items)
{
    static const struct dlx_manifest_item samples[N_ITEMS] = {
        {.record = {.arena = 3,
                    .dtype_bits = 32,
                    .dtype_lanes = 1,
                    .ndim = 2,
                    .size = 99,
                    .flags = DLX_SHM_RECORD_ROW_MAJOR},
         .shape = dims,
         .name = "image",
         .name_size = 5},
        {.record = {.arena = 4, .dtype_bits = 8, .dtype_lanes = 1, .ndim = 11, .offset = 256},
         .shape = dims,
         .strides = dims + 1},
        {.record = {.dtype_bits = 4, .dtype_lanes = 2, .flags = DLX_SHM_RECORD_PADDED},
         .name = "nine",
         .name_size = 4},
        {.record = {.dtype_bits = 4,
                    .dtype_lanes = 2,
                    .ndim = 3,
                    .flags = DLX_SHM_RECORD_ROW_MAJOR | DLX_SHM_RECORD_PADDED},
         .shape = dims + 5,
         .name = "\0\xff",
         .name_size = 2},
    };
    memcpy(items, samples, sizeof samples);
}

/* A valid manifest in memory of exactly its size. */
static uint8_t *data;
static uint64_t size;

static void *make_room(uint64_t n)
{
    void *room = malloc(n + (n == 0));
    ck_assert_ptr_nonnull(room);
    return room;
}

static struct dlx_shm_manifest write_manifest(const struct dlx_manifest_item *items, uint32_t n,
                                              const void *metadata, uint32_t metadata_size)
{
    struct dlx_shm_manifest header;
    free(data);
    size = dlx__manifest_lay_out(items, n, metadata_size, &header);
    data = make_room(size);
    dlx__manifest_write(data, &header, items, metadata);
    return header;
}

static void setup(void)
{
    struct dlx_manifest_item items[N_ITEMS];
    make_items(items);
    (void)write_manifest(items, N_ITEMS, meta, sizeof meta);
    ck_assert_uint_lt(size, 4096);
}

static void teardown(void)
{
    free(data);
    data = NULL;
}

/* Checks that these bytes are in the manifest, and can be read. */
static void touch(const void *manifest, uint64_t manifest_size, const void *part, size_t part_size)
{
    static volatile uint8_t sink;
    const uint8_t *begin = manifest, *bytes = part;
    ck_assert(bytes >= begin && bytes + part_size <= begin + manifest_size);
    for (size_t i = 0; i < part_size; i++)
        sink = bytes[i];
    (void)sink;
}

/* Read it, and if it is believed then touch everything that it names. */
static int read_all(const void *from, uint64_t n_bytes, uint32_t n)
{
    struct dlx_manifest manifest;
    struct dlx_manifest_item item;
    int r = dlx__manifest_open(from, n_bytes, n, &manifest);
    for (uint32_t i = 0; r == 0 && i < n; i++) {
        r = dlx__manifest_item(&manifest, i, &item);
        if (r < 0)
            break;
        ck_assert_uint_le(item.record.ndim, DLX_SHM_NDIM_MAX);
        ck_assert_uint_le(item.name_size, DLX_SHM_NAME_MAX);
        ck_assert_uint_eq((uintptr_t)item.shape % sizeof *item.shape, 0);
        ck_assert_uint_eq((uintptr_t)item.strides % sizeof *item.strides, 0);
        touch(from, n_bytes, item.shape, item.record.ndim * sizeof *item.shape);
        if (item.strides)
            touch(from, n_bytes, item.strides, item.record.ndim * sizeof *item.strides);
        touch(from, n_bytes, item.name, item.name_size);
    }
    if (r == 0)
        touch(from, n_bytes, manifest.meta, manifest.header.meta_size);
    else
        ck_assert_int_eq(r, DLX_E_BAD_PEER);
    return r;
}

TEST(a_written_manifest_is_read)
{
    struct dlx_manifest_item items[N_ITEMS];
    struct dlx_manifest manifest;
    make_items(items);
    ck_assert_int_eq(read_all(data, size, N_ITEMS), 0);
    ck_assert_int_eq(dlx__manifest_open(data, size, N_ITEMS, &manifest), 0);
    ck_assert_uint_eq(manifest.header.n_tensors, N_ITEMS);
    ck_assert_uint_eq(manifest.header.meta_size, sizeof meta);
    ck_assert_mem_eq(manifest.meta, meta, sizeof meta);
    for (uint32_t i = 0; i < N_ITEMS; i++) {
        struct dlx_manifest_item item;
        ck_assert_int_eq(dlx__manifest_item(&manifest, i, &item), 0);
        uint32_t ndim = items[i].record.ndim;
        ck_assert_mem_eq(&item.record, &items[i].record, sizeof item.record);
        ck_assert_uint_eq(item.name_size, items[i].name_size);
        if (item.name_size > 0)
            ck_assert_mem_eq(item.name, items[i].name, item.name_size);
        if (ndim > 0)
            ck_assert_mem_eq(item.shape, items[i].shape, ndim * sizeof *dims);
        if (item.record.flags & DLX_SHM_RECORD_ROW_MAJOR)
            ck_assert_ptr_null(item.strides);
        else if (ndim > 0)
            ck_assert_mem_eq(item.strides, items[i].strides, ndim * sizeof *dims);
    }
}

TEST(largest_parts)
{
    enum { N = 2000 };
    static struct dlx_manifest_item items[N];
    static int64_t shape[DLX_SHM_NDIM_MAX];
    static char name[DLX_SHM_NAME_MAX], big[DLX_SHM_META_MAX];
    memset(name, 'n', sizeof name);
    memset(big, 'm', sizeof big);
    for (uint32_t i = 0; i < N; i++) {
        items[i] = (struct dlx_manifest_item){.record.ndim = DLX_SHM_NDIM_MAX,
                                              .shape = shape,
                                              .strides = shape,
                                              .name = name,
                                              .name_size = sizeof name};
    }
    (void)write_manifest(items, N, big, sizeof big);
    ck_assert_int_eq(read_all(data, size, N), 0);
}

TEST(too_much_has_no_size)
{
    struct dlx_shm_manifest header;
    struct dlx_manifest_item item = {.record.ndim = 1, .shape = dims, .strides = dims};
    ck_assert_uint_ne(dlx__manifest_lay_out(&item, 1, 0, &header), UINT64_MAX);
    ck_assert_uint_eq(dlx__manifest_lay_out(&item, 0, 0, &header), UINT64_MAX);
    ck_assert_uint_eq(dlx__manifest_lay_out(&item, DLX_SHM_TENSORS_MAX + 1, 0, &header),
                      UINT64_MAX);
    ck_assert_uint_eq(dlx__manifest_lay_out(&item, 1, DLX_SHM_META_MAX + 1, &header), UINT64_MAX);
    item.name_size = DLX_SHM_NAME_MAX + 1;
    ck_assert_uint_eq(dlx__manifest_lay_out(&item, 1, 0, &header), UINT64_MAX);
    item.name_size = 0;
    item.record.ndim = DLX_SHM_NDIM_MAX + 1;
    ck_assert_uint_eq(dlx__manifest_lay_out(&item, 1, 0, &header), UINT64_MAX);
}

TEST(every_truncation_is_refused)
{
    for (uint64_t cut = 0; cut < size; cut++) {
        void *copy = make_room(cut);
        memcpy(copy, data, cut);
        /* The metadata is last: without a byte of it, something is missing. */
        ck_assert_msg(read_all(copy, cut, N_ITEMS) == DLX_E_BAD_PEER, "%ju bytes", (uintmax_t)cut);
        free(copy);
    }
}

TEST(the_number_of_tensors_is_the_message_s)
{
    static const uint32_t wrong[] = {
        0, 1, N_ITEMS - 1, N_ITEMS + 1, DLX_SHM_TENSORS_MAX + 1, UINT32_MAX};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(wrong); i++)
        ck_assert_int_eq(read_all(data, size, wrong[i]), DLX_E_BAD_PEER);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(wrong); i++) { /* also when both say so */
        ((struct dlx_shm_manifest *)data)->n_tensors = wrong[i];
        if (wrong[i] == 0 || wrong[i] > N_ITEMS + 1)
            ck_assert_int_eq(read_all(data, size, wrong[i]), DLX_E_BAD_PEER);
        else
            (void)read_all(data, size, wrong[i]);
    }
}

TEST(changed_bytes_stay_inside)
{
    static const uint8_t values[] = {0, 1, 7, 0x7f, 0x80, 0xff};
    uint8_t *copy = make_room(size);
    unsigned believed = 0;
    for (uint64_t at = 0; at < size; at++) { /* each byte */
        for (size_t v = 0; v < DLX_ARRAY_SIZE(values); v++) {
            memcpy(copy, data, size);
            copy[at] = values[v];
            believed += read_all(copy, size, N_ITEMS) == 0;
        }
    }
    for (int round = 0; round < 100000; round++) { /* some bits */
        memcpy(copy, data, size);
        for (uint64_t n = dlx_test_random(&seed) >> 62; n < 4; n++) {
            uint64_t r = dlx_test_random(&seed) >> 20;
            copy[(r >> 3) % size] ^= (uint8_t)(1U << (r & 7));
        }
        believed += read_all(copy, size, N_ITEMS) == 0;
    }
    ck_assert_uint_gt(believed, 0);
    free(copy);
}

TEST(offsets_that_wrap_around_are_refused)
{
    struct dlx_shm_manifest *manifest = (void *)data, good = *manifest;
    struct dlx_shm_manifest_entry *entry = (struct dlx_shm_manifest_entry *)(manifest + 1);
    struct dlx_shm_manifest_entry good_entry = *entry;
#define REFUSED(...)                                                                               \
    do {                                                                                           \
        __VA_ARGS__;                                                                               \
        ck_assert_int_eq(read_all(manifest, size, N_ITEMS), DLX_E_BAD_PEER);                       \
        *manifest = good;                                                                          \
        *entry = good_entry;                                                                       \
        ck_assert_int_eq(read_all(manifest, size, N_ITEMS), 0);                                    \
    } while (0)
    REFUSED(manifest->dims_offset = UINT64_MAX - 7);
    REFUSED(manifest->dims_offset += 4);
    REFUSED(manifest->dims_size = UINT64_MAX - manifest->dims_offset + 1);
    REFUSED(manifest->names_offset = UINT64_MAX);
    REFUSED(manifest->names_size = UINT64_MAX);
    REFUSED(manifest->meta_offset = UINT64_MAX);
    REFUSED(manifest->meta_size = DLX_SHM_META_MAX + 1);
    REFUSED(manifest->meta_size++);
    REFUSED(entry->dims_first = UINT32_MAX);
    REFUSED(entry->record.ndim = UINT32_MAX);
    REFUSED(entry->record.ndim = UINT32_C(1) << 31);
    REFUSED(entry->name_offset = UINT32_MAX);
    REFUSED(entry->name_size = UINT32_MAX);
#undef REFUSED
}

/* Two tensors in allocation 2, one in allocation 1, one on the CPU. */
static struct dlx_shm_manifest make_gpu_manifest(void)
{
    struct dlx_manifest_item items[N_ITEMS];
    make_items(items);
    items[0].allocation = items[1].allocation = 2;
    items[3].allocation = 1;
    struct dlx_shm_manifest header = write_manifest(items, N_ITEMS, meta, sizeof meta);
    ck_assert_uint_eq(header.gpu_size, 16 + 2 * DLX_SHM_ALLOCATION_SIZE);
    ck_assert_uint_eq(header.gpu_offset + header.gpu_size, size);
    ck_assert_uint_eq(header.gpu_offset % 8, 0);
    *dlx__manifest_gpu(data) = (struct dlx_shm_manifest_gpu){.publisher = 77, .ready = 1};
    memset(dlx__manifest_allocation(data, 0), 'a', DLX_SHM_ALLOCATION_SIZE);
    memset(dlx__manifest_allocation(data, 1), 'b', DLX_SHM_ALLOCATION_SIZE);
    return header;
}

TEST(allocations_come_back)
{
    struct dlx_manifest manifest;
    struct dlx_manifest_item item;
    static const uint32_t expected[N_ITEMS] = {2, 2, 0, 1};
    (void)make_gpu_manifest();
    ck_assert_int_eq(dlx__manifest_open(data, size, N_ITEMS, &manifest), 0);
    ck_assert_uint_eq(manifest.gpu->publisher, 77);
    ck_assert_uint_eq(manifest.n_allocations, 2);
    ck_assert_int_eq(manifest.allocations[DLX_SHM_ALLOCATION_SIZE - 1], 'a');
    ck_assert_int_eq(manifest.allocations[2 * DLX_SHM_ALLOCATION_SIZE - 1], 'b');
    for (uint32_t i = 0; i < N_ITEMS; i++) {
        ck_assert_int_eq(dlx__manifest_item(&manifest, i, &item), 0);
        ck_assert_uint_eq(item.allocation, expected[i]);
    }
}

TEST(allocations_that_are_not_there_are_refused)
{
    struct dlx_shm_manifest good = make_gpu_manifest(), *header = (void *)data;
    struct dlx_manifest manifest;
    struct dlx_manifest_item item;
#define REFUSED(...)                                                                               \
    do {                                                                                           \
        *header = good;                                                                            \
        __VA_ARGS__;                                                                               \
        ck_assert_int_eq(dlx__manifest_open(data, size, N_ITEMS, &manifest), DLX_E_BAD_PEER);      \
    } while (0)
    REFUSED(header->gpu_offset++);
    REFUSED(header->gpu_offset -= 4);
    REFUSED(header->gpu_offset = UINT64_MAX);
    REFUSED(header->gpu_size = 16);
    REFUSED(header->gpu_size = 1);
    REFUSED(header->gpu_size -= 1);
    REFUSED(header->gpu_size = 16 + UINT64_C(5) * DLX_SHM_ALLOCATION_SIZE; header->gpu_offset = 0);
#undef REFUSED
    *header = good;
    header->gpu_size -= DLX_SHM_ALLOCATION_SIZE;
    ck_assert_int_eq(dlx__manifest_open(data, size, N_ITEMS, &manifest), 0);
    ck_assert_int_eq(dlx__manifest_item(&manifest, 0, &item), DLX_E_BAD_PEER);
    ck_assert_int_eq(dlx__manifest_item(&manifest, 3, &item), 0);
}

int main(void)
{
    TCase *tcase = tcase_create("manifest");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, teardown);
    return dlx_test_run_case(tcase);
}
