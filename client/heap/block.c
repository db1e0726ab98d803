/* SPDX-License-Identifier: Apache-2.0 */

/* The managed tensor in a block, as the caller of dlx_alloc() gets it. */

#include "client/heap/debug.h"
#include "common/error.h"
#include "ring/tensor.h"

void dlx__block_restore(struct dlx_block *block)
{
    memcpy(block->dims, block->dims + 2 * block->made.ndim,
           2 * (size_t)block->made.ndim * sizeof *block->dims);
    block->tensor = (DLManagedTensorVersioned){.version = {DLPACK_MAJOR_VERSION, 0},
                                               .manager_ctx = block,
                                               .deleter = dlx__block_delete,
                                               .dl_tensor = block->made};
    block->is_plain = block->has_words && !block->is_guarded;
    block->is_counted = false;
    block->is_dirty = false;
}

int dlx__block_export(struct dlx_block *block, DLDataType dtype, int32_t ndim, const int64_t *shape,
                      uint64_t payload_size)
{
    uint32_t n = (uint32_t)ndim;
    if (n > block->dims_room) {
        int64_t *dims = malloc(4 * (size_t)n * sizeof *dims);
        if (!dims)
            return dlx__fail(DLX_E_NO_MEMORY, "shape of %d dimensions", ndim);
        if (block->dims != block->inline_dims)
            free(block->dims);
        block->dims = dims;
        block->dims_room = (uint16_t)n;
    }
    for (uint32_t i = 0; i < n; i++)
        block->dims[2 * n + i] = shape[i];
    dlx__tensor_row_major(ndim, block->dims + 2 * n, block->dims + 3 * n);
    block->made = (DLTensor){.data = dlx__block_data(block),
                             .device = dlx__heap_kind(block->heap)->device,
                             .ndim = ndim,
                             .dtype = dtype,
                             .shape = block->dims,
                             .strides = block->dims + ndim};
    block->payload_size = payload_size;
    block->has_words = dlx__entry_pack_tensor(block->words, dlx__block_arena_id(block),
                                              block->offset, dtype, false, ndim, shape);
    block->is_dirty = true;
    if (block->is_guarded)
        dlx__debug_guard(block);
    dlx__block_hand_out(block);
    return 0;
}
