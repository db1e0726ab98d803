/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/actor/actor.h"
#include <inttypes.h>
#include <string.h>

#define STEP UINT64_C(0x9e3779b97f4a7c15)

void actor_fill(void *data, uint64_t size, uint64_t seed)
{
    uint64_t n = size / 8;
    uint64_t *words = data;
    for (uint64_t i = 0; i < n; i++)
        words[i] = seed + i * STEP;
    uint64_t last = seed + n * STEP;
    memcpy(words + n, &last, size % 8);
}

/* The offset of the first wrong byte; `size` if there is none. */
static uint64_t find_wrong(const void *data, uint64_t size, uint64_t seed)
{
    uint64_t n = size / 8, wrong = 0;
    const uint64_t *words = data;
    for (uint64_t i = 0; i < n; i++)
        wrong |= words[i] ^ (seed + i * STEP);
    uint64_t last = seed + n * STEP;
    if (wrong == 0 && memcmp(words + n, &last, size % 8) == 0)
        return size;
    for (uint64_t i = 0; i < n; i++)
        if (words[i] != seed + i * STEP)
            return i * 8;
    return n * 8;
}

static uint64_t tensor_bytes(const DLTensor *t)
{
    uint64_t size = (uint64_t)t->dtype.bits / 8 * t->dtype.lanes;
    for (int32_t i = 0; i < t->ndim; i++)
        size *= (uint64_t)t->shape[i];
    return size;
}

uint64_t actor_bytes(const struct dlx_message *m)
{
    uint64_t size = 0;
    for (uint32_t i = 0; i < dlx_message_n_tensors(m); i++)
        size += tensor_bytes(dlx_message_tensor_peek(m, i));
    return size;
}

static struct actor_header header_as(const struct dlx_message *m, uint64_t seq)
{
    struct actor_header h = {.magic = 0};
    const DLTensor *t = dlx_message_tensor_peek(m, 0);
    size_t meta_size;
    const void *meta = dlx_message_meta(m, &meta_size);
    if (meta_size == sizeof h)
        memcpy(&h, meta, sizeof h);
    else if (meta_size == 0 && tensor_bytes(t) == 0 && t->ndim == 3)
        h = (struct actor_header){.magic = ACTOR_MAGIC,
                                  .key = (uint64_t)t->shape[1],
                                  .seq = (uint64_t)t->shape[2],
                                  .n_tensors = 1};
    else if (meta_size == 0 && tensor_bytes(t) >= sizeof h)
        memcpy(&h, t->data, sizeof h);
    if (h.magic != ACTOR_MAGIC || h.seq != seq || h.n_tensors != dlx_message_n_tensors(m) ||
        h.n_bytes != actor_bytes(m))
        actor_fault("topic %s, message %" PRIu64 " of publisher %" PRIu64 " is not what was "
                    "published: magic %" PRIx64 ", key %" PRIu64 ", seq %" PRIu64 ", %" PRIu64
                    " tensors (%u there), %" PRIu64 " bytes (%" PRIu64 " there), %zu of metadata",
                    dlx_message_topic(m), seq, dlx_message_publisher(m), h.magic, h.key, h.seq,
                    h.n_tensors, dlx_message_n_tensors(m), h.n_bytes, actor_bytes(m), meta_size);
    return h;
}

struct actor_header actor_header_of(const struct dlx_message *m)
{
    return header_as(m, dlx_message_seq(m));
}

struct actor_header actor_check_as(const struct dlx_message *m, uint64_t seq, const char *when)
{
    struct actor_header h = header_as(m, seq);
    size_t meta_size;
    (void)dlx_message_meta(m, &meta_size);
    for (uint32_t i = 0; i < h.n_tensors; i++) {
        const DLTensor *t = dlx_message_tensor_peek(m, i);
        uint64_t size = tensor_bytes(t), skip = meta_size > 0 || size == 0 ? 0 : sizeof h;
        uint64_t at = find_wrong((const uint8_t *)t->data + skip, size - skip, h.seed[i]);
        if (at != size - skip)
            actor_fault("topic %s, key %" PRIu64 ", message %" PRIu64 ", tensor %u of %" PRIu64
                        " bytes: torn at byte %" PRIu64 " %s",
                        dlx_message_topic(m), h.key, h.seq, i, size, at + skip, when);
    }
    return h;
}

void actor_check(const struct dlx_message *m, const char *when)
{
    (void)actor_check_as(m, dlx_message_seq(m), when);
}
