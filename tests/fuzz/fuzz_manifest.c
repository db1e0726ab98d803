/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: manifests. The input is a manifest, or says how to make one and what to change in it.
 * An accepted manifest lies in its bytes, and written again it tells the same.
 */
#include "gpu/lib/receive.h"
#include "common/error.h"
#include "gpu/handle.h"
#include "ring/manifest.h"
#include "tests/fuzz/harness_fuzz.h"
#include <string.h>

#define ITEMS_MAX 6U

static uint64_t sum; /* so that what is read is read */

static void touch(const void *data, uint64_t size)
{
    const uint8_t *p = data;
    if (size > 0)
        sum += (uint64_t)p[0] + p[size - 1];
}

static bool is_inside(const void *p, uint64_t size, const uint8_t *data, uint64_t whole)
{
    uintptr_t at = (uintptr_t)p, first = (uintptr_t)data;
    return at >= first && at - first <= whole && size <= whole - (at - first);
}

static void require_same(const struct dlx_manifest_item *a, const struct dlx_manifest_item *b)
{
    size_t dims = a->record.ndim * sizeof *a->shape;
    REQUIRE(memcmp(&a->record, &b->record, sizeof a->record) == 0);
    REQUIRE(a->allocation == b->allocation);
    REQUIRE(a->name_size == b->name_size && !a->strides == !b->strides);
    REQUIRE(dims == 0 || memcmp(a->shape, b->shape, dims) == 0);
    REQUIRE(dims == 0 || !a->strides || memcmp(a->strides, b->strides, dims) == 0);
    REQUIRE(a->name_size == 0 || memcmp(a->name, b->name, a->name_size) == 0);
}

/* Reads the manifest's GPU part as a message does: no tensor lies outside its allocation. */
static void read_gpu(const struct dlx_manifest *manifest, const struct dlx_manifest_item *items)
{
    static struct dlx_client client = {.refs = 1};
    static struct dlx_gpu_receiver *receiver;
    static const struct dlx_subscribe_args asked = {.size = sizeof asked};
    static const struct dlx_subscription_view of = {&client, &asked, &receiver, NULL};
    static struct dlx_shm_control control;
    struct dlx_subscriber_link link = {
        .pid = 1, .bell = -1, .core = {.control = &control}, .of = &of};
    struct dlx_message_gpu *gpu = NULL;
    client.generation = dlx_fuzz_generation;
    if (dlx__gpu_receive_table.message_new(&link, manifest, &gpu) < 0) {
        REQUIRE(*dlx__error_message());
    } else {
        for (uint32_t i = 0; i < manifest->header.n_tensors; i++)
            (void)dlx__gpu_receive_table.place(gpu, i, &items[i], items[i].shape, items[i].strides);
        dlx__gpu_receive_table.message_free(gpu);
    }
    if (link.gpu) /* its publisher may not choose another number, and the next one does */
        dlx__gpu_receive_table.link_end(&link);
}

/* Returns whether it was accepted. */
static bool read_manifest(const uint8_t *data, uint64_t size, uint32_t n_tensors)
{
    struct dlx_manifest manifest, again;
    if (dlx__manifest_open(data, size, n_tensors, &manifest) < 0) {
        REQUIRE(*dlx__error_message());
        return false;
    }
    struct dlx_manifest_item *items = calloc(n_tensors, sizeof *items);
    REQUIRE(items && n_tensors > 0 && n_tensors <= DLX_SHM_TENSORS_MAX);
    for (uint32_t i = 0; i < n_tensors; i++) {
        if (dlx__manifest_item(&manifest, i, &items[i]) < 0) {
            REQUIRE(*dlx__error_message());
            free(items);
            return false;
        }
        uint64_t dims = items[i].record.ndim * sizeof(int64_t);
        REQUIRE(items[i].record.ndim <= DLX_SHM_NDIM_MAX && items[i].name_size <= DLX_SHM_NAME_MAX);
        REQUIRE(is_inside(items[i].shape, dims, data, size));
        REQUIRE(!items[i].strides || is_inside(items[i].strides, dims, data, size));
        REQUIRE(is_inside(items[i].name, items[i].name_size, data, size));
        touch(items[i].shape, dims);
        if (items[i].strides)
            touch(items[i].strides, dims);
        touch(items[i].name, items[i].name_size);
    }
    REQUIRE(is_inside(manifest.meta, manifest.header.meta_size, data, size));
    touch(manifest.meta, manifest.header.meta_size);
    REQUIRE(manifest.n_allocations <= n_tensors);
    if (manifest.n_allocations > 0) {
        uint64_t gpu_size = (uint64_t)manifest.n_allocations * DLX_SHM_ALLOCATION_SIZE;
        REQUIRE(is_inside(manifest.allocations, gpu_size, data, size));
        touch(manifest.allocations, gpu_size);
        read_gpu(&manifest, items);
    }

    struct dlx_shm_manifest header;
    uint64_t n = dlx__manifest_lay_out(items, n_tensors, manifest.header.meta_size, &header);
    REQUIRE(n <= dlx__manifest_size_max(n_tensors));
    void *copy = calloc(1, n);
    REQUIRE(copy);
    dlx__manifest_write(copy, &header, items, manifest.meta);
    REQUIRE(dlx__manifest_open(copy, n, n_tensors, &again) == 0);
    for (uint32_t i = 0; i < n_tensors; i++) {
        struct dlx_manifest_item item;
        REQUIRE(dlx__manifest_item(&again, i, &item) == 0);
        require_same(&items[i], &item);
    }
    REQUIRE(again.header.meta_size == manifest.header.meta_size);
    REQUIRE(memcmp(again.meta, manifest.meta, again.header.meta_size) == 0);
    free(copy);
    free(items);
    return true;
}

/* An honest one, then with a few numbers changed. */
static void make_manifest(struct dlx_fuzz *f)
{
    static const int64_t dims[2 * DLX_SHM_NDIM_MAX] = {1, 2, 3, 4};
    struct dlx_manifest_item items[ITEMS_MAX];
    const uint8_t *text, *meta;
    uint32_t n = 1 + dlx_fuzz_choose(f, ITEMS_MAX);
    for (uint32_t i = 0; i < n; i++) {
        items[i] = (struct dlx_manifest_item){
            .record = {.ndim = dlx_fuzz_choose(f, DLX_SHM_NDIM_MAX + 1),
                       .flags = dlx_fuzz_choose(f, 8)},
            .shape = dims,
            .strides = dims + 1,
        };
        items[i].name_size = (uint32_t)dlx_fuzz_piece(f, DLX_SHM_NAME_MAX, &text);
        items[i].name = (const char *)text;
        items[i].allocation = dlx_fuzz_choose(f, 4) == 0 ? 1 + dlx_fuzz_choose(f, n) : 0;
    }
    uint32_t meta_size = (uint32_t)dlx_fuzz_piece(f, DLX_SHM_META_MAX, &meta);
    struct dlx_shm_manifest header;
    uint64_t size = dlx__manifest_lay_out(items, n, meta_size, &header);
    uint8_t *data = calloc(1, size);
    REQUIRE(data);
    dlx__manifest_write(data, &header, items, meta);
    if (header.gpu_size > 0) {
        const uint8_t *piece;
        size_t piece_size = dlx_fuzz_piece(f, DLX_SHM_ALLOCATION_SIZE, &piece);
        uint8_t *first = dlx__manifest_allocation(data, 0);
        first[0] = 1; /* a version and a kind that are known */
        first[1] = DLX_GPU_CUDA_IPC;
        first[24] = first[32] = 1;
        if (piece_size > 0)
            memcpy(first, piece, piece_size);
    }
    REQUIRE(read_manifest(data, size, n));
    while (f->left > 0) {
        uint32_t width = 1U << dlx_fuzz_choose(f, 4);
        uint64_t at = dlx_fuzz_bytes(f, 2) % (size / width), value = dlx_fuzz_number(f);
        memcpy(data + at * width, &value, width);
        (void)read_manifest(data, size, n);
    }
    free(data);
}

void dlx_fuzz_one(struct dlx_fuzz *f)
{
    if (dlx_fuzz_choose(f, 2) == 0) {
        make_manifest(f);
        return;
    }
    uint32_t n_tensors = (uint32_t)dlx_fuzz_bytes(f, 2);
    uint8_t *copy = malloc(f->left + 1); /* aligned */
    REQUIRE(copy);
    memcpy(copy, f->at, f->left);
    copy = realloc(copy, f->left ? f->left : 1);
    (void)read_manifest(copy, f->left, n_tensors);
    free(copy);
}
