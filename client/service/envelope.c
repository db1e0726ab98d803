/* SPDX-License-Identifier: Apache-2.0 */
#include "client/service/envelope.h"
#include "client/message/message.h"
#include "client/publish/make.h"
#include <assert.h>
#include <stdio.h>

static_assert(sizeof(struct dlx_envelope) == DLX_ENVELOPE_SIZE, "the layout is fixed");
static_assert(offsetof(struct dlx_envelope, cancelled) == 7, "the layout is fixed");
static_assert(offsetof(struct dlx_envelope, deadline_ns) == 24, "the layout is fixed");
static_assert(offsetof(struct dlx_envelope, token) == 40, "the layout is fixed");
static_assert(offsetof(struct dlx_envelope, n_unheard) == 56, "the layout is fixed");
static_assert(DLX_ENVELOPE_SIZE + DLX_CALL_META_MAX == DLX_META_MAX, "what is left to programs");

/* The metadata of most messages fits here. */
#define SMALL_META 192U

void dlx__inbox_name(const uint8_t token[static DLX_TOKEN_SIZE],
                     char ret[static DLX_INBOX_SIZE + 1])
{
    ret[0] = '@';
    for (size_t i = 0; i < DLX_TOKEN_SIZE; i++)
        (void)snprintf(ret + 1 + 2 * i, 3, "%02x", token[i]);
}

static int copy_publish_args(struct dlx_publish_args *ret, const struct dlx_publish_args *user_args)
{
    struct dlx_publish_args args = {0};
    int r = user_args ? dlx__publish_args(&args, user_args, NULL) : 0;
    *ret = (struct dlx_publish_args){.size = sizeof *ret,
                                     .strict = args.strict,
                                     .share = args.share,
                                     .stream = args.stream,
                                     .stage = args.stage};
    return r;
}

int dlx__envelope_publish(struct dlx_publisher *p, const struct dlx_envelope *envelope,
                          const struct dlx_item *items, uint32_t n_items,
                          const struct dlx_bytes *meta, const struct dlx_publish_args *user_args)
{
    uint8_t small[DLX_ENVELOPE_SIZE + SMALL_META];
    dlx_cleanup(dlx__freep) uint8_t *large = NULL;
    struct dlx_publish_args args;
    size_t size = meta ? meta->size : 0;
    if (size > DLX_CALL_META_MAX)
        return dlx__fail(DLX_E_INVALID,
                         "topic %s: %zu bytes of metadata (limit DLX_CALL_META_MAX, %u): send what "
                         "is large as a tensor",
                         p->topic, size, DLX_CALL_META_MAX);
    if (size > 0 && !meta->data)
        return dlx__fail(DLX_E_INVALID, "topic %s: meta->data is NULL", p->topic);
    int r = copy_publish_args(&args, user_args);
    if (r < 0)
        return r;
    if (size > SMALL_META && !(large = malloc(DLX_ENVELOPE_SIZE + size)))
        return dlx__fail(DLX_E_NO_MEMORY, "%zu bytes of metadata", size);
    uint8_t *whole = large ? large : small;
    memcpy(whole, envelope, DLX_ENVELOPE_SIZE);
    if (size > 0)
        memcpy(whole + DLX_ENVELOPE_SIZE, meta->data, size);
    const struct dlx_bytes all = {.data = whole, .size = DLX_ENVELOPE_SIZE + size};
    return dlx_publish_set(p, items, n_items, &all, &args, NULL);
}

const struct dlx_envelope *dlx__envelope_open(struct dlx_message *m, enum dlx_envelope_kind kind,
                                              dlx_atomic_flag **ret_cancelled)
{
    const void *in_place;
    const struct dlx_envelope *envelope = dlx__message_cut_meta(m, DLX_ENVELOPE_SIZE, &in_place);
    if (!envelope || envelope->magic != DLX_ENVELOPE_MAGIC || envelope->kind != kind)
        return NULL;
    *ret_cancelled =
        (dlx_atomic_flag *)((const uint8_t *)in_place + offsetof(struct dlx_envelope, cancelled));
    return envelope;
}
