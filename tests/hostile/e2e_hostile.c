/* SPDX-License-Identifier: Apache-2.0 */

/* A publisher that lies in what it publishes: the words of entries, records, arenas; or about who
 * it is. */

#include "client/control/call.h"
#include "client/message/subscriber_link.h"
#include "common/memory.h"
#include "ring/entry.h"
#include "tests/hostile/harness_lies.h"

/* A field of a word of an entry, and what it is instead. */
struct field {
    uint8_t word, shift, bits;
    uint64_t value;
};

/* A manifest that the entry says it has. */
struct manifest {
    uint64_t offset, size, n_tensors;
};

struct lie {
    const char *name;
    struct field fields[5];
    struct manifest manifest; /* none: size and n_tensors are 0 */
};

/* clang-format off */
static const struct lie lies[] = {
    {"kind 0", .fields = {{3, 48, 16, 0}}},
    {"the next kind", .fields = {{3, 48, 16, 3}}},
    {"the last kind", .fields = {{3, 48, 16, UINT16_MAX}}},
    {"row-major flag", .fields = {{3, 40, 8, DLX_SHM_RECORD_ROW_MAJOR}}},
    {"unknown flag", .fields = {{3, 40, 8, 0x80}}},
    {"8 dimensions", .fields = {{3, 32, 8, 8}}},
    {"65 dimensions", .fields = {{3, 32, 8, 65}}},
    {"255 dimensions", .fields = {{3, 32, 8, 255}}},
    {"no bits", .fields = {{2, 40, 8, 0}}},
    {"no lanes", .fields = {{2, 48, 16, 0}}},
    {"many lanes", .fields = {{2, 48, 16, UINT16_MAX}}},
    {"shape too large", .fields = {{3, 0, 32, 1 << 30}}},
    {"shape overflows", .fields = {{3, 32, 8, 7}, {3, 0, 32, UINT32_MAX}, {4, 0, 64, UINT64_MAX},
                                   {5, 0, 64, UINT64_MAX}, {6, 0, 64, UINT64_MAX}}},
    {"shape wraps to 0", .fields = {{3, 32, 8, 2}, {3, 0, 32, 1U << 31}, {4, 0, 64, 1U << 31},
                                    {2, 48, 16, 4}}},
    {"offset outside", .fields = {{1, 0, 64, UINT64_C(1) << 40}}},
    {"offset wraps", .fields = {{1, 0, 64, UINT64_MAX - 255}}},
    {"offset not aligned", .fields = {{1, 0, 4, 8}}},
    {"manifest nowhere", .manifest = {UINT64_C(1) << 50, sizeof(struct dlx_shm_manifest) + 64, 1}},
    {"manifest wraps", .manifest = {UINT64_MAX - 63, 128, 1}},
    {"manifest not aligned", .manifest = {4, 128, 1}},
    {"manifest of a payload", .manifest = {0, 256, 1}},
    {"manifest of nothing", .manifest = {0, 0, 1}},
    {"huge manifest", .manifest = {0, UINT64_MAX, DLX_SHM_TENSORS_MAX}},
    {"manifest of 2^46", .manifest = {0, DLX_SHM_ARENA_MAX, DLX_SHM_TENSORS_MAX}},
    {"no tensors", .manifest = {0, 256, 0}},
    {"many tensors", .manifest = {0, 256, DLX_SHM_TENSORS_MAX + 1}},
    {"most tensors", .fields = {{5, 0, 64, UINT64_MAX}}, .manifest = {0, 256, 1}},
    {"2^32 + 1 tensors", .fields = {{5, 0, 64, (UINT64_C(1) << 32) + 1}}, .manifest = {0, 256, 1}},
};
static const struct lie unknown_kind = {"kind 0", .fields = {{3, 48, 16, 0}}};
static const struct lie arena_77 = {"arena 77", .fields = {{2, 0, 32, 77}}};
/* clang-format on */

/* Publish a message of the liar whose words are changed before anybody sees it. */
static void publish_lie(struct dlx_publisher *p, const struct lie *lie)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    struct dlx_block *block = dlx_test_scene_begin_lie(p, words);
    const struct manifest *m = &lie->manifest;
    if (m->size + m->n_tensors > 0)
        dlx__entry_pack_manifest(words, 1, m->offset, m->size, (uint32_t)m->n_tensors);
    for (const struct field *f = lie->fields; f < lie->fields + 5 && f->bits > 0; f++) {
        uint64_t mask = UINT64_MAX >> (64 - f->bits) << f->shift;
        words[f->word] = (words[f->word] & ~mask) | (f->value << f->shift & mask);
    }
    dlx__writer_put(&p->core, words, 1, block);
    dlx__writer_announce(&p->core);
}

/* As the first message, or after three that can be: what is built again from the form of the
 * message before is checked as well. */
LOOP_TEST(an_entry_that_cannot_be_ends_its_link_alone, 0, 2 * (int)DLX_ARRAY_SIZE(lies) * N_WAYS)
{
    auto_scene x = dlx_test_scene_make_for((enum dlx_test_way)(_i % N_WAYS));
    const struct lie *lie = &lies[_i / N_WAYS / 2];
    struct dlx_message *m = NULL;
    for (int i = 0; _i / N_WAYS % 2 == 1 && i < 3; i++) {
        publish_lie(x.liar, &(struct lie){.name = "none"});
        ok(dlx_test_scene_take(&x, PATIENCE, &m));
        dlx_test_scene_touch(m);
    }
    ck_assert(!dlx_test_scene_honest_goes_on(&x));
    publish_lie(x.liar, lie);
    ck_assert_msg(dlx_test_scene_honest_goes_on_for(&x, 4), "%s was believed", lie->name);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(x.s);
    ck_assert_uint_eq(stats.n_publishers, 1);
    ck_assert_uint_eq(stats.rejected, 1);
    ck_assert_uint_eq(stats.n_held, 0);
}

/* A batch that was taken whole, and of which only the last is a lie: the others are messages. */
LOOP_TEST(a_lie_at_the_end_of_a_batch_is_told_after_the_batch, 0, 2)
{
    auto_scene x = dlx_test_scene_make_for(_i == 0 ? BATCHES : ONE);
    struct dlx_message *m = NULL;
    for (int i = 0; i < 3; i++)
        dlx_test_stream_publish(x.liar, 4, i);
    publish_lie(x.liar, &unknown_kind);
    dlx_test_stream_publish_all(x.liar, 4, 4, 6);
    for (int i = 0; i < 3; i++) {
        ok(dlx_test_scene_take(&x, PATIENCE, &m));
        ck_assert_uint_eq(dlx_message_publisher(m), x.liar->id);
        dlx_test_stream_check(m, 4, i);
        dlx_message_unref(m);
    }
    fails(dlx_test_scene_take(&x, 0, &m), DLX_E_BAD_PEER, "unknown kind");
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(x.s);
    ck_assert_uint_eq(stats.rejected, 1);
    ck_assert_uint_eq(stats.lost, 3); /* what came after it */
    struct dlx_event e = {.size = sizeof e};
    do
        ok(dlx_subscription_next_event(x.s, &e));
    while (e.kind == DLX_EVENT_JOINED);
    ck_assert_uint_eq(e.kind, DLX_EVENT_LOST);
    ck_assert_uint_eq(e.publisher, x.liar->id);
    contains(e.reason, "unknown kind");
    ck_assert(!dlx_test_scene_honest_goes_on(&x));
}

/* A member of a record, or the first or third of its dimensions (16, 16, and their strides 16,
 * 1), and what it is instead. */
struct record_lie {
    const char *name;
    size_t at, size; /* of the member; 0: none */
    uint64_t value;
    int64_t shape, stride; /* 0: as it is */
};

#define MEMBER(m) offsetof(struct dlx_shm_record, m), sizeof(((struct dlx_shm_record *)0)->m)

/* clang-format off */
static const struct record_lie record_lies[] = {
    {"flags", MEMBER(flags), .value = 0x80},
    {"device", MEMBER(device_type), .value = kDLCUDA},
    {"offset outside", MEMBER(offset), .value = UINT64_C(1) << 40},
    {"offset wraps", MEMBER(offset), .value = UINT64_MAX - 255},
    {"65 dimensions", MEMBER(ndim), .value = 65},
    {"huge number of dimensions", MEMBER(ndim), .value = UINT32_MAX},
    {"no bits", MEMBER(dtype_bits), .value = 0},
    {"no lanes", MEMBER(dtype_lanes), .value = 0},
    {"size too small", MEMBER(size), .value = 255},
    {"size too large", MEMBER(size), .value = UINT64_MAX},
    {"negative shape", .shape = -16},
    {"shape too large", .shape = INT64_C(1) << 50},
    {"shape overflows", .shape = INT64_MAX},
    {"strides span too much", .stride = 1 << 20},
    {"strides overflow", .stride = INT64_MAX},
    {"negative strides", .stride = -16},
};
/* clang-format on */

/* The same message with a manifest, whose record is changed. */
static void publish_record_lie(struct dlx_publisher *p, const struct record_lie *lie)
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
    uint8_t *record = (uint8_t *)&((struct dlx_shm_manifest_entry *)(header + 1))->record;
    int64_t *dims = (int64_t *)(void *)((uint8_t *)header + header->dims_offset);
    memcpy(record + lie->at, &lie->value, lie->size);
    dims[0] = lie->shape ? lie->shape : dims[0];
    dims[1] = lie->shape == INT64_MAX ? INT64_MAX : dims[1];
    dims[2] = lie->stride ? lie->stride : dims[2];
    block->next = manifest;
    dlx__entry_pack_manifest(words, dlx__block_arena_id(manifest), manifest->offset,
                             manifest->payload_size, 1);
    dlx__writer_put(&p->core, words, 1, block);
    dlx__writer_announce(&p->core);
}

LOOP_TEST(a_record_that_cannot_be_ends_its_link_alone, 0, (int)DLX_ARRAY_SIZE(record_lies) * N_WAYS)
{
    auto_scene x = dlx_test_scene_make_for((enum dlx_test_way)(_i % N_WAYS));
    const struct record_lie *lie = &record_lies[_i / N_WAYS];
    ck_assert(!dlx_test_scene_honest_goes_on(&x));
    publish_record_lie(x.liar, lie);
    ck_assert_msg(dlx_test_scene_honest_goes_on_for(&x, 4), "%s was believed", lie->name);
}

LOOP_TEST(an_arena_that_nobody_announced_is_waited_for, 0, N_WAYS)
{
    auto_scene x = dlx_test_scene_make_for((enum dlx_test_way)_i);
    struct dlx_message *m = NULL;
    dlx_test_stream_publish(x.liar, 4, 1);
    ok(dlx_test_scene_take(&x, SECOND, &m));
    dlx_message_unref(m);
    /* Message 2 lies in arena 77. The arena may be on its way, for all that the subscriber knows,
     * so other streams go on. */
    publish_lie(x.liar, &arena_77);
    ck_assert(!dlx_test_scene_honest_goes_on_for(&x, 10));
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(x.s);
    ck_assert_uint_eq(stats.taken, 11); /* not that one */
    ck_assert_uint_eq(stats.n_held, 0);
    ck_assert_uint_eq(stats.lost, 0);
    x.liar = dlx_publisher_unref(x.liar); /* now no publisher will bring it */
    bool told = false;
    for (time_t end = time(NULL) + PATIENCE_S;
         !told && time(NULL) < end;) /* the daemon tells after it has answered */
        told = dlx_test_scene_honest_goes_on(&x);
    ck_assert(told);
    ok(dlx_subscription_get_stats(x.s, &stats));
    ck_assert_uint_eq(stats.taken, 1 + (uint64_t)x.published);
    ck_assert_uint_eq(x.way == LATEST ? stats.skipped : stats.lost, 1);
}

/* The arena that a message of this publisher lies in, as its entry says. */
static uint32_t arena_of(const struct dlx_publisher *p, uint64_t n)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    (void)dlx__writer_payload(&p->core, n, words);
    return dlx__entry_arena(words);
}

/* An arena stays mapped as long as something that was taken before its drop is held: a later
 * message in it would lose its memory under its reader, at the next sweep. */
LOOP_TEST(a_dropped_arena_is_of_no_use_to_later_messages, 0, N_WAYS)
{
    auto_scene x = dlx_test_scene_make_for((enum dlx_test_way)_i);
    struct dlx_message *old = NULL, *m = NULL;
    dlx_test_stream_publish(x.liar, 4, 1);
    ok(dlx_test_scene_take(&x, SECOND, &old));
    uint32_t first = arena_of(x.liar, 1);
    ck_assert_int_eq(dlx__call_arena_drop(x.c, x.liar->id, first, false), 0);
    struct dlx_subscriber_link *link = dlx__message_link(old);
    while (dlx__subscriber_link_arena(link, first)->until == UINT64_MAX) {
        dlx_test_wait_readable(x.s->sock); /* other notifications may come before */
        dlx__subscription_read_notifications(x.s);
    }
    dlx_test_stream_publish(x.liar, 4, 2); /* there all the same */
    ck_assert_uint_eq(arena_of(x.liar, 2), first);
    fails(dlx_test_scene_take(&x, SECOND, &m), DLX_E_BAD_PEER, "dropped");
    dlx_test_stream_check(old, 4, 1);
    dlx_message_unref(old);
    ck_assert(!dlx_test_scene_honest_goes_on(&x));
}

enum {
    GOES_AT_ONCE, /* its link is open all the same: there was a spare one */
    STAYS,
    GOES_UNSEEN, /* all spare links were taken: the link to it is never open */
    N_LIARS
};

/* A publisher that is there goes on as if nothing was said, and the liar's claims cost its own
 * stream alone: the messages that its control block says to be gone, or all when no subscriber saw
 * that. */
LOOP_TEST(a_liar_that_claims_to_be_another_publisher_harms_only_itself, 0, N_LIARS)
{
    const struct dlx_publisher_args *args = PUBLISHER(.history = 1, .depth = 8);
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    auto_client *c = dlx_test_stream_connect();
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    struct dlx_new_publisher made;
    struct dlx_message *m = NULL;
    const uint64_t head = UINT64_C(1) << 40, origin = x.p->id;
    void *control = NULL;
    bool unanswered;
    dlx_test_stream_publish(x.p, 10, 1);
    dlx_test_stream_take(x.s, 1);
    for (int i = 0; _i == GOES_UNSEEN && i < 2; i++)
        dlx_publisher_unref(dlx_test_stream_publisher(c, "test/a", NULL)); /* took a spare link */
    ok(dlx__call_publisher_new(c, "test/a", args, DLX_SHM_ENTRIES_MIN, origin, 0, PATIENCE, &made));
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
    ck_assert_ptr_null(dlx__resume_positions_find(&x.s->resume_positions, origin));
    x.p = dlx_publisher_unref(x.p);
    int r;
    do /* a control block without messages is all that the liar has */
        r = dlx_take(x.s, PATIENCE, &m);
    while (r == DLX_E_BAD_PEER);
    ck_assert_int_eq(r, DLX_E_PUBLISHER_GONE);
    ok(dlx_subscription_get_stats(x.s, &stats));
    ck_assert_uint_eq(stats.taken, 5);
    ck_assert_uint_eq(stats.lost, _i == GOES_UNSEEN ? head : 1);
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
