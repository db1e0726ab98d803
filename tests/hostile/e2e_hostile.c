/* SPDX-License-Identifier: Apache-2.0 */

/* A publisher that lies in what it publishes: the words of entries, records, arenas; or about who
 * it is. */

#include "client/control/call.h"
#include "common/memory.h"
#include "ring/entry.h"
#include "tests/hostile/harness_lies.h"
#include <string.h>

/* Publish a message of the liar whose words are `change`d before anybody sees it. */
static void publish_lie(struct dlx_publisher *p, void (*change)(uint64_t *words))
{
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    struct dlx_block *block = dlx_test_scene_begin_lie(p, words);
    change(words);
    dlx__writer_put(&p->core, words, 1, block);
    dlx__writer_announce(&p->core);
}

static void set_bits(uint64_t *word, uint32_t shift, uint32_t n, uint64_t value)
{
    uint64_t mask = ((UINT64_C(1) << n) - 1) << shift;
    *word = (*word & ~mask) | (value << shift & mask);
}

#define LIE(name, ...)                                                                             \
    static void name(uint64_t *words)                                                              \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }
LIE(kind_none, set_bits(&words[3], 48, 16, 0))
LIE(kind_next, set_bits(&words[3], 48, 16, 3))
LIE(kind_last, set_bits(&words[3], 48, 16, UINT16_MAX))
LIE(flags_row_major, set_bits(&words[3], 40, 8, DLX_SHM_RECORD_ROW_MAJOR))
LIE(flags_unknown, set_bits(&words[3], 40, 8, 0x80))
LIE(ndim_8, set_bits(&words[3], 32, 8, 8))
LIE(ndim_65, set_bits(&words[3], 32, 8, 65))
LIE(ndim_255, set_bits(&words[3], 32, 8, 255))
LIE(bits_none, set_bits(&words[2], 40, 8, 0))
LIE(lanes_none, set_bits(&words[2], 48, 16, 0))
LIE(lanes_many, set_bits(&words[2], 48, 16, UINT16_MAX))
LIE(shape_too_large, set_bits(&words[3], 0, 32, 1 << 30))
LIE(shape_overflows, set_bits(&words[3], 32, 8, 7); set_bits(&words[3], 0, 32, UINT32_MAX);
    words[4] = words[5] = words[6] = UINT64_MAX)
LIE(shape_wraps_to_0, set_bits(&words[3], 32, 8, 2); set_bits(&words[3], 0, 32, 1U << 31);
    words[4] = 1U << 31; set_bits(&words[2], 48, 16, 4))
LIE(offset_outside, words[1] = UINT64_C(1) << 40)
LIE(offset_wraps, words[1] = UINT64_MAX - 255)
LIE(offset_unaligned, words[1] += 8)
LIE(manifest_nowhere,
    dlx__entry_pack_manifest(words, 1, UINT64_C(1) << 50, sizeof(struct dlx_shm_manifest) + 64, 1))
LIE(manifest_wraps, dlx__entry_pack_manifest(words, 1, UINT64_MAX - 63, 128, 1))
LIE(manifest_unaligned, dlx__entry_pack_manifest(words, 1, 4, 128, 1))
LIE(manifest_of_payload, dlx__entry_pack_manifest(words, 1, 0, 256, 1))
LIE(manifest_of_nothing, dlx__entry_pack_manifest(words, 1, 0, 0, 1))
LIE(manifest_huge, dlx__entry_pack_manifest(words, 1, 0, UINT64_MAX, DLX_SHM_TENSORS_MAX))
LIE(manifest_of_2_46, dlx__entry_pack_manifest(words, 1, 0, DLX_SHM_ARENA_MAX, DLX_SHM_TENSORS_MAX))
LIE(no_tensors, dlx__entry_pack_manifest(words, 1, 0, 256, 0))
LIE(many_tensors, dlx__entry_pack_manifest(words, 1, 0, 256, DLX_SHM_TENSORS_MAX + 1))
LIE(most_tensors, dlx__entry_pack_manifest(words, 1, 0, 256, 1); words[5] = UINT64_MAX)
LIE(tensors_above_32_bits, dlx__entry_pack_manifest(words, 1, 0, 256, 1);
    words[5] = (UINT64_C(1) << 32) + 1)

static void (*const word_lies[])(uint64_t *words) = {
    kind_none,
    kind_next,
    kind_last,
    flags_row_major,
    flags_unknown,
    ndim_8,
    ndim_65,
    ndim_255,
    bits_none,
    lanes_none,
    lanes_many,
    shape_too_large,
    shape_overflows,
    shape_wraps_to_0,
    offset_outside,
    offset_wraps,
    offset_unaligned,
    manifest_nowhere,
    manifest_wraps,
    manifest_unaligned,
    manifest_huge,
    manifest_of_payload,
    manifest_of_nothing,
    manifest_of_2_46,
    no_tensors,
    many_tensors,
    most_tensors,
    tensors_above_32_bits,
};

LOOP_TEST(an_entry_that_cannot_be_ends_its_link_alone, 0, (int)DLX_ARRAY_SIZE(word_lies) * N_WAYS)
{
    struct dlx_test_scene x = dlx_test_scene_make_for((enum dlx_test_way)(_i % N_WAYS));
    int lie = _i / N_WAYS;
    ck_assert(!dlx_test_scene_honest_goes_on(&x));
    publish_lie(x.liar, word_lies[lie]);
    bool told = dlx_test_scene_honest_goes_on(&x);
    for (int i = 0; i < 3; i++)
        told |= dlx_test_scene_honest_goes_on(&x);
    ck_assert_msg(told, "lie %d was believed", lie);
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    ok(dlx_subscription_get_stats(x.s, &stats));
    ck_assert_uint_eq(stats.n_publishers, 1);
    ck_assert_uint_eq(stats.rejected, 1);
    ck_assert_uint_eq(stats.n_held, 0);
    dlx_test_scene_end(&x);
}

/* What is built again from the form of the message before is checked as well. */
LOOP_TEST(an_entry_that_cannot_be_is_seen_after_others_that_can, 0,
          (int)DLX_ARRAY_SIZE(word_lies) * N_WAYS)
{
    struct dlx_test_scene x = dlx_test_scene_make_for((enum dlx_test_way)(_i % N_WAYS));
    int lie = _i / N_WAYS;
    struct dlx_message *m = NULL;
    for (int i = 0; i < 3; i++) {
        uint64_t words[DLX_SHM_ENTRY_WORDS];
        struct dlx_block *block = dlx_test_scene_begin_lie(x.liar, words);
        dlx__writer_put(&x.liar->core, words, 1, block);
        dlx__writer_announce(&x.liar->core);
        ok(dlx_test_scene_take(&x, PATIENCE, &m));
        dlx_test_scene_touch(m);
    }
    publish_lie(x.liar, word_lies[lie]);
    bool told = false;
    for (int i = 0; i < 4; i++)
        told |= dlx_test_scene_honest_goes_on(&x);
    ck_assert_msg(told, "lie %d was believed", lie);
    ck_assert_uint_eq(x.s->stats.rejected, 1);
    dlx_test_scene_end(&x);
}

/* A batch that was taken whole, and of which only the last is a lie: the others are messages. */
LOOP_TEST(a_lie_at_the_end_of_a_batch_is_told_after_the_batch, 0, 2)
{
    struct dlx_test_scene x = dlx_test_scene_make_for(_i == 0 ? BATCHES : ONE);
    struct dlx_message *m = NULL;
    for (int i = 0; i < 3; i++)
        dlx_test_stream_publish(x.liar, 4, i);
    publish_lie(x.liar, kind_none);
    for (int i = 0; i < 3; i++) {
        ok(dlx_test_scene_take(&x, PATIENCE, &m));
        ck_assert_uint_eq(dlx_message_publisher(m), x.liar->id);
        dlx_test_stream_check(m, 4, i);
        dlx_message_unref(m);
    }
    fails(dlx_test_scene_take(&x, 0, &m), DLX_E_BAD_PEER, "unknown kind");
    ck_assert(!dlx_test_scene_honest_goes_on(&x));
    dlx_test_scene_end(&x);
}

/* ---- records in a manifest ------------------------------------------------------------------ */

/* The same message with a manifest, whose record is `change`d. */
static void publish_record_lie(struct dlx_publisher *p,
                               void (*change)(struct dlx_shm_record *record, int64_t *dims))
{
    uint64_t words[DLX_SHM_ENTRY_WORDS] = {0};
    struct dlx_block *block = dlx_test_scene_begin_lie(p, words), *manifest = NULL;
    const int64_t shape[2] = {16, 16}, strides[2] = {16, 1};
    struct dlx_manifest_item item = {.record = {.arena = dlx__block_arena_id(block),
                                                .dtype_code = kDLUInt,
                                                .dtype_bits = 8,
                                                .dtype_lanes = 1,
                                                .device_type = kDLCPU,
                                                .ndim = 2,
                                                .offset = block->offset,
                                                .size = 256},
                                     .shape = shape,
                                     .strides = strides};
    ck_assert_int_eq(dlx__publish_manifest(p, &item, 1, NULL, block, &manifest), 0);
    struct dlx_shm_manifest *header = dlx__block_data(manifest);
    change(&((struct dlx_shm_manifest_entry *)(header + 1))->record,
           (int64_t *)(void *)((uint8_t *)header + header->dims_offset));
    block->next = manifest;
    dlx__entry_pack_manifest(words, dlx__block_arena_id(manifest), manifest->offset,
                             manifest->payload_size, 1);
    dlx__writer_put(&p->core, words, 1, block);
    dlx__writer_announce(&p->core);
}

#define RECORD_LIE(name, ...)                                                                      \
    static void name(struct dlx_shm_record *record, int64_t *dims)                                 \
    {                                                                                              \
        (void)dims;                                                                                \
        (void)record;                                                                              \
        __VA_ARGS__;                                                                               \
    }
RECORD_LIE(record_flags, record->flags |= 0x80)
RECORD_LIE(record_device, record->device_type = kDLCUDA)
RECORD_LIE(record_offset_outside, record->offset = UINT64_C(1) << 40)
RECORD_LIE(record_offset_wraps, record->offset = UINT64_MAX - 255)
RECORD_LIE(record_ndim_many, record->ndim = 65)
RECORD_LIE(record_ndim_huge, record->ndim = UINT32_MAX)
RECORD_LIE(record_no_bits, record->dtype_bits = 0)
RECORD_LIE(record_no_lanes, record->dtype_lanes = 0)
RECORD_LIE(record_shape_negative, dims[0] = -16)
RECORD_LIE(record_shape_too_large, dims[0] = INT64_C(1) << 50)
RECORD_LIE(record_shape_overflows, dims[0] = dims[1] = INT64_MAX)
RECORD_LIE(record_size_too_small, record->size = 255)
RECORD_LIE(record_size_too_large, record->size = UINT64_MAX)
RECORD_LIE(record_strides_span, dims[2] = 1 << 20)
RECORD_LIE(record_strides_overflow, dims[2] = INT64_MAX)
RECORD_LIE(record_strides_negative, dims[2] = -16)

static void (*const record_lies[])(struct dlx_shm_record *record, int64_t *dims) = {
    record_flags,          record_device,          record_offset_outside,   record_offset_wraps,
    record_ndim_many,      record_ndim_huge,       record_no_bits,          record_no_lanes,
    record_shape_negative, record_shape_too_large, record_shape_overflows,  record_size_too_small,
    record_size_too_large, record_strides_span,    record_strides_overflow, record_strides_negative,
};

LOOP_TEST(a_record_that_cannot_be_ends_its_link_alone, 0, (int)DLX_ARRAY_SIZE(record_lies) * N_WAYS)
{
    struct dlx_test_scene x = dlx_test_scene_make_for((enum dlx_test_way)(_i % N_WAYS));
    int lie = _i / N_WAYS;
    bool told = false;
    ck_assert(!dlx_test_scene_honest_goes_on(&x));
    publish_record_lie(x.liar, record_lies[lie]);
    for (int i = 0; i < 4; i++)
        told |= dlx_test_scene_honest_goes_on(&x);
    ck_assert_msg(told, "lie %d was believed", lie);
    dlx_test_scene_end(&x);
}

/* ---- arenas --------------------------------------------------------------------------------- */

LIE(arena_77, set_bits(&words[2], 0, 32, 77))

LOOP_TEST(an_arena_that_nobody_announced_is_waited_for, 0, N_WAYS)
{
    struct dlx_test_scene x = dlx_test_scene_make_for((enum dlx_test_way)_i);
    struct dlx_message *m = NULL;
    dlx_test_stream_publish(x.liar, 4, 1);
    ok(dlx_test_scene_take(&x, SECOND, &m));
    dlx_message_unref(m);
    /* Message 2 lies in arena 77. It may be on its way for all that we know, so others go on. */
    publish_lie(x.liar, arena_77);
    for (int i = 0; i < 10; i++)
        ck_assert(!dlx_test_scene_honest_goes_on(&x));
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    ok(dlx_subscription_get_stats(x.s, &stats));
    ck_assert_uint_eq(stats.taken, 11); /* not that one */
    ck_assert_uint_eq(stats.n_held, 0);
    ck_assert_uint_eq(stats.lost, 0);
    x.liar = dlx_publisher_unref(x.liar); /* now nobody will bring it */
    bool told = false;
    for (time_t end = time(NULL) + PATIENCE_S;
         !told && time(NULL) < end;) /* the daemon tells after it has answered */
        told = dlx_test_scene_honest_goes_on(&x);
    ck_assert(told);
    ok(dlx_subscription_get_stats(x.s, &stats));
    ck_assert_uint_eq(stats.taken, 1 + (uint64_t)x.published);
    ck_assert_uint_eq(x.way == LATEST ? stats.skipped : stats.lost, 1);
    dlx_test_scene_end(&x);
}

/* An arena stays mapped as long as something that was taken before its drop is held: a later
 * message in it would lose its memory under its reader, at the next sweep. */
/* The arena that a message of this publisher lies in, as its entry says. */
static uint32_t arena_of(const struct dlx_publisher *p, uint64_t n)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    (void)dlx__writer_payload(&p->core, n, words);
    return dlx__entry_arena(words);
}

LOOP_TEST(a_dropped_arena_is_of_no_use_to_later_messages, 0, N_WAYS)
{
    struct dlx_test_scene x = dlx_test_scene_make_for((enum dlx_test_way)_i);
    struct dlx_message *old = NULL, *m = NULL;
    dlx_test_stream_publish(x.liar, 4, 1);
    ok(dlx_test_scene_take(&x, SECOND, &old));
    uint32_t first = arena_of(x.liar, 1);
    ck_assert_int_eq(dlx__call_arena_drop(x.c, x.liar->id, first), 0);
    dlx_test_wait_readable(x.s->sock);
    dlx__subscription_read_notifications(x.s);
    dlx_test_stream_publish(x.liar, 4, 2); /* there all the same */
    ck_assert_uint_eq(arena_of(x.liar, 2), first);
    fails(dlx_test_scene_take(&x, SECOND, &m), DLX_E_BAD_PEER, "dropped");
    dlx_test_stream_check(old, 4, 1);
    dlx_message_unref(old);
    ck_assert(!dlx_test_scene_honest_goes_on(&x));
    dlx_test_scene_end(&x);
}

/* ---- a publisher that says it is another ---------------------------------------------------- */

/* One that comes and goes: it takes a spare link. */
static void take_spare(struct dlx_client *c)
{
    const struct dlx_publisher_args args = {.size = sizeof args};
    struct dlx_publisher *p = NULL;
    ok(dlx_publisher_new(c, "test/a", &args, &p));
    dlx_publisher_unref(p);
}

enum {
    GOES_AT_ONCE, /* its link is open all the same: there was a spare one */
    STAYS,
    GOES_UNSEEN, /* all spare links were taken: the link to it is never open */
    N_LIARS
};

/* One that is there goes on as if nothing was said, and what the liar claims is lost of its own
 * stream alone: what its control block says to be gone, or everything when nobody saw that. */
LOOP_TEST(who_says_he_is_another_harms_nobody, 0, N_LIARS)
{
    const struct dlx_publisher_args args = {.size = sizeof args, .history = 1, .depth = 8};
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    struct dlx_new_publisher made;
    struct dlx_message *m = NULL;
    const uint64_t head = UINT64_C(1) << 40, origin = x.p->id;
    void *control = NULL;
    bool unanswered;
    dlx_test_stream_publish(x.p, 10, 1);
    dlx_test_stream_take(x.s, 1);
    for (int i = 0; _i == GOES_UNSEEN && i < 2; i++)
        take_spare(c);
    ok(dlx__call_publisher_new(c, "test/a", &args, DLX_SHM_ENTRIES_MIN, origin, 0, PATIENCE,
                               &made));
    ok(dlx__region_populate(made.memory, made.control_fd, made.control_size, &control));
    dlx_store64_sc(&((struct dlx_shm_control *)control)->head, head);
    dlx_store64_sc(&((struct dlx_shm_control *)control)->entries[1].gen, 1 | DLX_SHM_GONE);
    ok(dlx__call_publisher_ready(c, made.id, PATIENCE, &unanswered));
    if (_i != STAYS)
        ok(dlx__call_publisher_close(c, made.id));
    uint64_t until = dlx__deadline(PATIENCE);
    do { /* of the liar: that it is there, or how much is lost */
        ck_assert_uint_lt(dlx__now_ns(), until);
        dlx__subscription_read_notifications(x.s);
        ok(dlx_subscription_get_stats(x.s, &stats));
    } while (_i == GOES_UNSEEN ? stats.lost == 0 : x.s->n_open < 2);
    for (int64_t i = 2; i < 6; i++) {
        dlx_test_stream_publish(x.p, 10, i);
        dlx_test_stream_take(x.s, i);
    }
    if (_i == STAYS)
        ok(dlx__call_publisher_close(c, made.id));
    while (x.s->n_open > 1) { /* the liar's link ends first */
        ck_assert_uint_lt(dlx__now_ns(), until);
        int r = dlx_take(x.s, 0, &m);
        ck_assert(r == DLX_E_EMPTY || r == DLX_E_BAD_PEER);
    }
    /* If the other one comes again, it is not believed to be where the liar was. */
    ck_assert_uint_eq(dlx__resume_positions_find(&x.s->resume_positions, origin).seq, 0);
    dlx_publisher_unref(x.p);
    int r;
    do /* a control block without messages is all that the liar has */
        r = dlx_take(x.s, PATIENCE, &m);
    while (r == DLX_E_BAD_PEER);
    ck_assert_int_eq(r, DLX_E_PUBLISHER_GONE);
    ok(dlx_subscription_get_stats(x.s, &stats));
    ck_assert_uint_eq(stats.taken, 5);
    ck_assert_uint_eq(stats.lost, _i == GOES_UNSEEN ? head : 1);
    dlx_subscription_unref(x.s);
    dlx_client_unref(x.c);
    dlx_client_unref(c);
    dlx__region_unmap(control, made.control_size);
    dlx__close(made.membership_fd);
    dlx__close(made.link_sock);
}

int main(void)
{
    TCase *tcase = dlx_test_stream_case("hostile");
    tcase_set_timeout(tcase, 120);
    return dlx_test_run_case(tcase);
}
