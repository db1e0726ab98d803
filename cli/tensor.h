/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_TENSOR_H
#define CLI_TENSOR_H

/** Reading the content of received tensors, whatever their strides. */

#include <dlpack/dlpack.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Items and packed bytes. Returns false for a size that overflows. */
bool tensor_size(const DLTensor *t, uint64_t *ret_n_items, uint64_t *ret_size);

/** Whether the items lie one after the other in row-major order. */
bool tensor_is_compact(const DLTensor *t);

/** Whether this program can read it: host memory, and compact or of whole bytes an item. */
bool tensor_is_readable(const DLTensor *t);

/** Where the data of a readable tensor begin. */
const uint8_t *tensor_data(const DLTensor *t);

/** Row-major item `index` of a readable tensor that is not compact. */
const uint8_t *tensor_item(const DLTensor *t, uint64_t index);

#endif
