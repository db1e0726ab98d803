/* SPDX-License-Identifier: Apache-2.0 */

/*
 * dlx_message_tensor_private(): a tensor that its owner may write to. A large one is a
 * copy-on-write view of the arena, which holds the message for as long as it is there: pages that
 * were not written to are the publisher's, who must not use them again. A small one is a copy,
 * which holds nothing.
 */

#include "client/message/subscriber_link.h"
#include "common/amount.h"
#include "client/base/device.h"
#include "client/base/misuse.h"
#include "common/memory.h"
#include <stdlib.h>
#include <string.h>

struct private
{
    DLManagedTensorVersioned tensor;
    DLManagedTensorVersioned *received; /* what it is a view of; NULL: a copy */
    uint64_t generation;
    uint64_t size;
    int64_t dims[]; /* shape, strides */
};

static void delete_private(DLManagedTensorVersioned *tensor)
{
    struct private *p = tensor->manager_ctx;
    bool is_forked = dlx__forked(p->generation);
    if (is_forked)
        dlx__check_released(p->generation, "the deleter of a private tensor");
    if (p->received) {
        if (is_forked)
            return; /* not mapped here, and the parent's to release */
        dlx__region_view_unmap(tensor->dl_tensor.data, p->size);
        p->received->deleter(p->received);
    } else {
        free(tensor->dl_tensor.data);
    }
    dlx__release_handle(p, &p->generation);
}

static int copy_tensor(struct private *p, const DLTensor *from)
{
    DLTensor *t = &p->tensor.dl_tensor;
    p->tensor.flags |= DLPACK_FLAG_BITMASK_IS_COPIED;
    t->data = NULL;
    if (p->size == 0)
        return 0;
    uint64_t room = (p->size + DLX_ALIGNMENT - 1) / DLX_ALIGNMENT * DLX_ALIGNMENT;
    t->data = aligned_alloc(DLX_ALIGNMENT, (size_t)room);
    if (!t->data)
        return dlx__fail(DLX_E_NO_MEMORY, "no memory for a private copy of %s",
                         DLX_AMOUNT(p->size));
    memcpy(t->data, from->data, (size_t)p->size);
    return 0;
}

/* Takes `received` over, on success. */
static int make_private(struct dlx_subscriber_link *link, DLManagedTensorVersioned *received,
                        struct private **ret)
{
    const DLTensor *t = &received->dl_tensor;
    uint64_t flags = received->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED, size = 0;
    size_t ndim = (size_t)t->ndim;
    int r = dlx__tensor_extent(t->dtype, flags != 0, t->ndim, t->shape, t->strides, &size);
    if (r < 0)
        return r;
    struct private *p = malloc(sizeof *p + 2 * ndim * sizeof p->dims[0]);
    if (!p)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a tensor");
    *p = (struct private){
        .tensor = {.version = received->version,
                   .manager_ctx = p,
                   .deleter = delete_private,
                   .flags = flags,
                   .dl_tensor = *t},
        .generation = link->generation,
        .size = size,
    };
    for (size_t i = 0; i < ndim; i++) {
        p->dims[i] = t->shape[i];
        p->dims[ndim + i] = t->strides[i];
    }
    p->tensor.dl_tensor.shape = p->dims;
    p->tensor.dl_tensor.strides = p->dims + ndim;
    void *view = dlx__subscriber_link_view(link, t->data, size);
    if (view) {
        p->tensor.dl_tensor.data = view;
        p->received = received;
    } else {
        r = copy_tensor(p, t);
        if (r == 0)
            received->deleter(received);
    }
    if (r == 0)
        *ret = p;
    else
        free(p);
    return r;
}

int dlx_message_tensor_private(struct dlx_message *m, uint32_t i, DLManagedTensorVersioned **ret)
{
    DLManagedTensorVersioned *received;
    struct private *p = NULL;
    const DLTensor *tensor = dlx_message_tensor_peek(m, i);
    if (tensor && dlx__tensor_is_on_gpu(tensor)) {
        dlx__error_clear();
        return dlx__fail(DLX_E_DEVICE,
                         "tensor %u is on %s: only tensors on the CPU can be private, copy others "
                         "on their device",
                         i, DLX_DEVICE(tensor->device));
    }
    int r = dlx_message_tensor(m, i, ret ? &received : NULL);
    if (r < 0)
        return r;
    r = make_private(dlx__message_link(m), received, &p);
    if (r < 0)
        received->deleter(received);
    else
        *ret = &p->tensor;
    return r;
}
