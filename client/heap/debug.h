/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_DEBUG_H
#define DLX_CLIENT_DEBUG_H

/*
 * The debug mode: what was published is write-protected in the publisher's own mapping until its
 * memory comes back. A heap is in it or not for as long as it lives; in it, each block has whole
 * pages of its own, whose last bytes no tensor has. They are filled when a tensor is exported, and
 * have to be as they were when it is published or deleted.
 */

#include "client/base/misuse.h"
#include "client/heap/block.h"

/* At least so many bytes behind each tensor. */
#define DLX_DEBUG_GUARD 64U

/* What a block is aligned to then, and a multiple of: the pages of the kernel. */
uint64_t dlx__debug_align(void);

/* Fill the bytes behind an exported tensor. */
void dlx__debug_guard(struct dlx_block *block);

/* Abort if they were written to. */
void dlx__debug_check(const struct dlx_block *block);

/* Write-protect a list of blocks, by `next`, or what they refer to. False: the kernel has refused
 * some of it. */
bool dlx__debug_protect(struct dlx_block *blocks);

/* The same for one block that comes back. False: the kernel has refused, so it cannot be used. */
bool dlx__debug_unprotect(struct dlx_block *block);

#endif
