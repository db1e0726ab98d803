/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_SOAK_PAYLOAD_H
#define DLX_SOAK_PAYLOAD_H

/*
 * What messages are made of. Every byte of a payload follows from a seed, so that whoever takes it
 * can tell whether it is whole. Who published it, and which message it is:
 *
 *   one tensor      a header at its beginning, the pattern behind it
 *   one, empty      the shape: 0, key, seq
 *   a set           a header in the metadata, the pattern in all tensors
 */

#include <dlx/dlx.h>

#define SOAK_TENSORS  8
#define SOAK_SIZE_MAX (UINT64_C(16) << 20)

struct soak_header {
    uint64_t magic;
    uint64_t key, seq;
    uint64_t prev_ns; /* when the message before it began to be published; 0: not known */
    uint64_t n_tensors;
    uint64_t seed[SOAK_TENSORS];
};

/* The bytes from the word of index `from` on, of this size. */
void soak_fill(void *data, uint64_t size, uint64_t seed);
/* The offset of the first wrong byte; `size` if there is none. */
uint64_t soak_check(const void *data, uint64_t size, uint64_t seed);

/* Who published it, and is all of it right? Faults if not. */
struct soak_header soak_message_header(const struct dlx_message *m);
void soak_message_check(const struct dlx_message *m, const char *when);
uint64_t soak_message_bytes(const struct dlx_message *m);

#endif
