/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer: whole .safetensors files; tests/data/safetensors is a corpus. An accepted file must
 * keep its promises. */
#include "cli/dtype.h"
#include "cli/safetensors.h"
#include "tests/fuzz/harness_fuzz.h"
#include <dlx/dlx.h>
#include <stdlib.h>
#include <string.h>

static void check(const struct safetensors *s, uint64_t data_size)
{
    uint64_t at = 0, n = 0, bytes = 0;
    REQUIRE(s->n_tensors >= 1 && s->n_tensors <= DLX_TENSORS_MAX && s->meta_size <= DLX_META_MAX);
    REQUIRE(!s->meta == !s->meta_size);
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        const struct safetensors_tensor *t = &s->tensors[i];
        REQUIRE(strlen(t->name) <= DLX_NAME_MAX);
        REQUIRE(t->ndim >= 0 && t->ndim <= DLX_NDIM_MAX && dlx_dtype_name(t->dtype, NULL));
        REQUIRE(shape_items(t->shape, t->ndim, &n) && dtype_bytes(t->dtype, n, &bytes));
        REQUIRE(t->offset == at && t->size == bytes);
        at += bytes;
        REQUIRE(at <= INT64_MAX);
    }
    REQUIRE(at == s->data_size && (data_size == SAFETENSORS_SIZE_UNKNOWN || at == data_size));
}

/* Written again it means the same, and written once more it is the same. Names that are empty are
 * made up, which may clash. */
static void write_again(const struct safetensors *s)
{
    struct safetensors_header h, again;
    struct safetensors *read = NULL;
    struct cli_error e = {{0}};
    struct safetensors_tensor *tensors = calloc(s->n_tensors, sizeof *tensors);
    REQUIRE(tensors);
    memcpy(tensors, s->tensors, s->n_tensors * sizeof *tensors);
    if (safetensors_header_make(tensors, s->n_tensors, s->meta, s->meta_size, &h, &e) < 0) {
        REQUIRE(e.text[0]);
        free(tensors);
        return;
    }
    REQUIRE(h.size % 8 == 0 && h.has_meta == (s->meta != NULL));
    REQUIRE(safetensors_parse(&read, (const char *)h.data + SAFETENSORS_PREFIX_SIZE,
                              h.size - SAFETENSORS_PREFIX_SIZE, s->data_size, &e) == 0);
    check(read, s->data_size);
    REQUIRE(read->n_tensors == s->n_tensors && read->meta_size == s->meta_size);
    REQUIRE(!s->meta || strcmp(read->meta, s->meta) == 0);
    REQUIRE(safetensors_header_make(read->tensors, read->n_tensors, read->meta, read->meta_size,
                                    &again, &e) == 0);
    REQUIRE(again.size == h.size && memcmp(again.data, h.data, h.size) == 0);
    safetensors_header_free(&again);
    safetensors_header_free(&h);
    safetensors_free(read);
    free(tensors);
}

void dlx_fuzz_one(struct dlx_fuzz *f)
{
    const uint8_t *data = f->at;
    size_t size = f->left;
    struct safetensors *s = NULL;
    struct cli_error e = {{0}};
    size_t header_size = 0;

    (void)safetensors_is(data, size);
    if (safetensors_header_size(data, size, size, &header_size, &e) < 0) {
        REQUIRE(e.text[0]);
        return;
    }
    REQUIRE(header_size <= SAFETENSORS_HEADER_SIZE_MAX &&
            header_size + SAFETENSORS_PREFIX_SIZE <= size);
    const char *header = (const char *)data + SAFETENSORS_PREFIX_SIZE;
    uint64_t data_size = size - SAFETENSORS_PREFIX_SIZE - header_size;
    /* what is wrong with the size of the data alone should not hide the rest */
    if (safetensors_parse(&s, header, header_size, data_size, &e) < 0) {
        REQUIRE(e.text[0]);
        data_size = SAFETENSORS_SIZE_UNKNOWN;
        if (safetensors_parse(&s, header, header_size, data_size, &e) < 0)
            return;
    }
    check(s, data_size);
    write_again(s);
    safetensors_free(s);
}
