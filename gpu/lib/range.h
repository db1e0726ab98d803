/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_RANGE_H
#define DLX_GPU_RANGE_H

/*
 * Addresses of GPUs in which one message after another is mapped, each where the one before was
 * (dlx_message_open_into()). The first message decides what is reserved, and the layout: its
 * allocations lie side by side, each mapped whole, since drivers map nothing else. So a tensor
 * keeps its address if it has the same place in an allocation of the same size, which is checked
 * for all tensors before anything is mapped.
 *
 *     NEW --claim--> FIRST --mapped--> USED --leave, fail--> EMPTY --claim--> USED
 *      ^               |
 *      +-----fail------+
 *
 * FIRST, USED: one message is being mapped, is mapped, or is being unmapped, which the end of the
 * message does when no work uses it (dlx__gpu_import_unref()). The next one waits for that. What
 * could not be mapped leaves nothing: no part of it and, of the first, neither addresses nor a
 * layout.
 *
 * Any thread. In a forked child the calls do nothing but say so.
 */

#include <dlx/dlx.h>
#include <stdint.h>

/* Returns 0; DLX_E_NO_MEMORY. `generation`: of client/base/fork.h. */
int dlx__gpu_range_new(uint64_t generation, struct dlx_gpu_range **ret);
/* The caller's reference: the message in the range has one, too. */
void dlx__gpu_range_unref(struct dlx_gpu_range *range);

/*
 * Wait until the range has no message, and have it for this one, whose allocations were prepared
 * (dlx__gpu_import_prepare()). dlx__gpu_range_mapped() or dlx__gpu_range_fail() follows. Returns 0;
 * DLX_E_SHAPE: its layout is another one, and the text says which tensor lies elsewhere;
 * DLX_E_TIMEOUT: another message is in the range; DLX_E_NO_MEMORY, DLX_E_DEVICE, DLX_E_FORKED.
 */
int dlx__gpu_range_claim(struct dlx_gpu_range *range, const struct dlx_message *m,
                         uint64_t deadline);
/* Addresses for the message, unless there are. Returns 0, or what the driver says. */
int dlx__gpu_range_reserve(struct dlx_gpu_range *range);
/* Where allocation `i` of the message belongs. */
void *dlx__gpu_range_address(const struct dlx_gpu_range *range, uint32_t i);
/* All of the message is mapped, and it has a reference. */
void dlx__gpu_range_mapped(struct dlx_gpu_range *range);
/* It could not be, and nothing of it is. Returns the code, and its text says that. */
int dlx__gpu_range_fail(struct dlx_gpu_range *range, int code);
/* The message has ended, and nothing of it is mapped any more. */
void dlx__gpu_range_leave(struct dlx_gpu_range *range);

#endif
