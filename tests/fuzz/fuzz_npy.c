/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer: .npy headers. An accepted header must keep its promises. */
#include "cli/dtype.h"
#include "cli/npy.h"
#include "tests/fuzz/harness_fuzz.h"
#include <stdlib.h>
#include <string.h>

/* Rearranging must stay inside what the header says; only for what is small enough to try. */
static void rearrange(const struct npy_header *h)
{
    if (h->data_size > 1 << 16 || h->ndim > 8)
        return;
    uint8_t *from = malloc(h->data_size + 1), *to = malloc(h->data_size + 1);
    REQUIRE(from && to);
    for (uint64_t i = 0; i < h->data_size; i++)
        from[i] = (uint8_t)i;
    npy_swap(from, h->data_size, h->swap_size);
    npy_transpose(h, from, to);
    free(from);
    free(to);
}

void dlx_fuzz_one(struct dlx_fuzz *f)
{
    const uint8_t *data = f->at;
    size_t size = f->left;
    struct npy_header h;
    struct npy_storage storage;
    struct cli_error e = {{0}};
    uint8_t out[NPY_WRITE_SIZE_MAX];
    size_t total = 0;

    if (npy_header_size(data, size, &total, &e) == 0)
        REQUIRE(total >= NPY_PREFIX_SIZE && total <= NPY_HEADER_SIZE_MAX);
    if (npy_header_parse(data, size, &h, &e) < 0) {
        REQUIRE(e.text[0]);
        return;
    }
    uint64_t n = 0;
    REQUIRE(h.ndim >= 0 && h.ndim <= NPY_NDIM_MAX && h.header_size <= size && h.item_size > 0);
    REQUIRE(shape_items(h.shape, h.ndim, &n) && n == h.n_items);
    REQUIRE(h.data_size <= INT64_MAX && h.data_size == h.n_items * h.item_size);
    REQUIRE(memchr(h.descr, 0, sizeof h.descr));
    rearrange(&h);

    /* written again it means the same */
    if (h.dtype.bits && npy_storage_choose(h.dtype, h.shape, h.ndim, &storage, &e) == 0) {
        struct npy_header again;
        size_t written = npy_header_write(&storage, out, sizeof out);
        REQUIRE(written > 0 && npy_header_parse(out, written, &again, &e) == 0);
        REQUIRE(again.ndim == h.ndim && again.data_size == h.data_size &&
                again.dtype.code == h.dtype.code && again.dtype.bits == h.dtype.bits);
    }
}
