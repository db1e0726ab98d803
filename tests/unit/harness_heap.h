/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_HEAP_H
#define DLX_TESTS_HARNESS_HEAP_H

/* A publisher's payload memory without a publisher. */

#include "client/heap/heap.h"

#define dlx_test_u8 ((DLDataType){kDLUInt, 8, 1})

/* Not in the debug mode. */
struct dlx_heap *dlx_test_heap_make(void);
void dlx_test_heap_add_arena(struct dlx_heap *heap, uint32_t id, uint64_t size);
struct dlx_block *dlx_test_heap_take(struct dlx_heap *heap, uint64_t size);
/* As n bytes. */
DLManagedTensorVersioned *dlx_test_heap_export(struct dlx_block *block, int64_t n);

#endif
