/* SPDX-License-Identifier: Apache-2.0 */

/* The header of NumPy's .npy format, as NumPy writes it. */

#include "cli/dtype.h"
#include "cli/npy.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* numpy.lib.format: room so that the first size of the shape can grow in place, and the alignment.
 */
enum { GROWTH_DIGITS = 21, ALIGNMENT = 64, PREFIX_SIZE = 10 };

static bool descr_of(DLDataType dtype, char descr[16], bool *ret_exact)
{
    unsigned size = dtype.bits / 8U;
    char kind = 0;
    switch (dtype.code) {
    case kDLBool:
        kind = 'b';
        break;
    case kDLInt:
        kind = 'i';
        break;
    case kDLUInt:
        kind = 'u';
        break;
    case kDLFloat:
        kind = 'f';
        break;
    case kDLComplex: /* NumPy has none of 32 bits */
        kind = dtype.bits > 32 ? 'c' : 0;
        break;
    default:
        break;
    }
    if (dtype.bits % 8 != 0)
        return false;
    *ret_exact = kind && dlx_dtype_name(dtype, NULL);
    if (!*ret_exact)
        kind = size == 1 || size == 2 || size == 4 || size == 8 ? 'u' : 'V';
    (void)snprintf(descr, 16, "%c%c%u", size == 1 || kind == 'V' ? '|' : '<', kind, size);
    return true;
}

int npy_storage_choose(DLDataType dtype, const int64_t *shape, int32_t ndim,
                       struct npy_storage *ret_storage, struct cli_error *e)
{
    struct npy_storage s = {.ndim = ndim};
    uint64_t n_items = 0, size = 0;
    if (ndim < 0 || ndim > NPY_NDIM_MAX)
        return cli_fail(e, DLX_E_SHAPE, "%d dimensions are over the limit of %d", ndim,
                        NPY_NDIM_MAX);
    if (dtype.bits == 0 || dtype.lanes == 0 || !shape_items(shape, ndim, &n_items) ||
        !dtype_bytes(dtype, n_items, &size))
        return cli_fail(e, DLX_E_SHAPE, "the tensor's size overflows");
    for (int32_t i = 0; i < ndim; i++)
        s.shape[i] = shape[i];
    if (!descr_of(dtype, s.descr, &s.exact)) { /* packed: its bytes, in a row */
        (void)snprintf(s.descr, sizeof s.descr, "|u1");
        s.ndim = 1;
        s.shape[0] = (int64_t)size;
    } else if (dtype.lanes > 1) {
        s.shape[s.ndim++] = dtype.lanes;
        s.exact = false;
    }
    *ret_storage = s;
    return 0;
}

size_t npy_header_write(const struct npy_storage *storage, uint8_t *buffer, size_t size)
{
    char shape[SHAPE_NAME_SIZE + 32], text[NPY_WRITE_SIZE_MAX];
    size_t at = 0;
    int grow = 0;

    /* shape_name() takes one dimension less than lanes can make of it */
    at = (size_t)snprintf(shape, sizeof shape, "(");
    for (int32_t i = 0; i < storage->ndim; i++)
        at += (size_t)snprintf(shape + at, sizeof shape - at, "%s%" PRId64, i ? ", " : "",
                               storage->shape[i]);
    (void)snprintf(shape + at, sizeof shape - at, storage->ndim == 1 ? ",)" : ")");
    if (storage->ndim > 0)
        grow = GROWTH_DIGITS - snprintf(NULL, 0, "%" PRId64, storage->shape[0]);

    size_t used = (size_t)snprintf(text, sizeof text,
                                   "{'descr': '%s', 'fortran_order': False, 'shape': %s, }%*s",
                                   storage->descr, shape, grow, "");
    /* NumPy pads by a whole 64 where nothing is needed */
    size_t padding = ALIGNMENT - (PREFIX_SIZE + used + 1) % ALIGNMENT;
    size_t total = PREFIX_SIZE + used + padding + 1;
    if (used >= sizeof text || total > size)
        return 0;
    memcpy(buffer, "\x93NUMPY\x01\x00", 8);
    buffer[8] = (uint8_t)((total - PREFIX_SIZE) & 0xff);
    buffer[9] = (uint8_t)((total - PREFIX_SIZE) >> 8);
    memcpy(buffer + PREFIX_SIZE, text, used);
    memset(buffer + PREFIX_SIZE + used, ' ', padding);
    buffer[total - 1] = '\n';
    return total;
}
