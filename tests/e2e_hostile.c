/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Peers that lie in the pages that they may write, against the real daemon and the real other side. The liar
 * is a publisher or subscription of this process, whose pages are written behind the library's back.
 */

#include "client/call.h"
#include "client/publisher.h"
#include "client/subscription.h"
#include "common/memory.h"
#include "tests/harness_random.h"
#include "tests/harness_stream.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- a publisher that lies ----------------------------------------------------------------- */

struct scene {
    struct dlx_client *c;
    struct dlx_publisher *honest, *liar;
    struct dlx_subscription *s;
    int64_t published; /* by the honest one */
};

static struct scene make_scene(void)
{
    struct scene x = {.c = dlx_test_stream_connect()};
    ok(dlx_publisher_new(x.c, "test/a", NULL, &x.honest));
    ok(dlx_publisher_new(x.c, "test/a", NULL, &x.liar));
    ok(dlx_subscribe(x.c, "test/a", NULL, &x.s));
    return x;
}

static void end_scene(struct scene *x)
{
    dlx_subscription_unref(x->s);
    dlx_publisher_unref(x->honest);
    dlx_publisher_unref(x->liar);
    dlx_client_unref(x->c);
}

/* Read all of it: it must be inside a mapping, whatever the liar said. */
static void touch(struct dlx_message *m)
{
    volatile uint8_t sum = 0;
    for (uint32_t i = 0; i < dlx_message_n_tensors(m); i++) {
        DLManagedTensorVersioned *t = NULL;
        ok(dlx_message_tensor(m, i, &t));
        uint64_t size = (uint64_t)(t->dl_tensor.dtype.bits * t->dl_tensor.dtype.lanes + 7) / 8;
        for (int32_t k = 0; k < t->dl_tensor.ndim; k++)
            size *= (uint64_t)t->dl_tensor.shape[k];
        if (size > 0)
            sum = (uint8_t)(sum + ((uint8_t *)t->dl_tensor.data)[0]);
        t->deleter(t);
    }
    dlx_message_unref(m);
}

/* What the honest publisher sends arrives, whole and next in order. Messages of the liar and one BAD_PEER may come
 * before. Returns whether that came. */
static bool honest_goes_on(struct scene *x)
{
    bool told = false;
    struct dlx_message *m = NULL;
    dlx_test_stream_publish(x->honest, 4, ++x->published);
    for (;;) {
        int r = dlx_take(x->s, PATIENCE, &m);
        if (r == DLX_E_BAD_PEER) {
            char pid[32];
            (void)snprintf(pid, sizeof pid, "pid %d", getpid());
            ck_assert_msg(strstr(dlx_client_errmsg(NULL), pid) != NULL, "\"%s\" lacks \"%s\"",
                          dlx_client_errmsg(NULL), pid);
            told = true;
            continue;
        }
        ok(r);
        if (dlx_message_publisher(m) == x->honest->id)
            break;
        touch(m);
    }
    dlx_test_stream_check(m, 4, x->published);
    dlx_message_unref(m);
    return told;
}

/* Publish a message of the liar whose slot is `change`d before anybody sees it. */
static void publish_lie(struct dlx_publisher *p, void (*change)(struct dlx_shm_slot *slot))
{
    uint32_t at;
    struct dlx_block *block;
    ck_assert_int_eq(dlx__publisher_block(p, 256, &block), 0);
    ck_assert_int_eq(dlx__pub_slot(&p->core, &at), 0);
    struct dlx_shm_slot *slot = &p->core.slots[at];
    slot->time_ns = 1;
    slot->n_tensors = 1;
    slot->flags = 0;
    slot->record = (struct dlx_shm_record){.arena = dlx__block_arena_id(block),
                                           .dtype_code = kDLUInt,
                                           .dtype_bits = 8,
                                           .dtype_lanes = 1,
                                           .device_type = kDLCPU,
                                           .ndim = 2,
                                           .flags = DLX_SHM_RECORD_ROW_MAJOR,
                                           .offset = block->offset,
                                           .size = 256};
    slot->shape[0] = 16;
    slot->shape[1] = 16;
    change(slot);
    (void)dlx__pub_commit(&p->core, at, block);
}

#define LIE(name, ...)                                                                             \
    static void name(struct dlx_shm_slot *slot)                                                    \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }
LIE(no_tensors, slot->n_tensors = 0)
LIE(many_tensors, slot->n_tensors = 65536)
LIE(two_tensors, slot->n_tensors = 2)
LIE(slot_flags, slot->flags = 0x80)
LIE(record_flags, slot->record.flags |= 0x80)
LIE(offset_outside, slot->record.offset = UINT64_C(1) << 40)
LIE(offset_wraps, slot->record.offset = UINT64_MAX - 255)
LIE(offset_unaligned, slot->record.offset += 8)
LIE(shape_too_large, slot->shape[0] = 1 << 30)
LIE(shape_overflows, slot->shape[0] = slot->shape[1] = UINT32_MAX)
LIE(shape_negative, slot->shape[0] = -16)
LIE(ndim_many, slot->record.ndim = 9)
LIE(ndim_huge, slot->record.ndim = UINT32_MAX)
LIE(no_bits, slot->record.dtype_bits = 0)
LIE(no_lanes, slot->record.dtype_lanes = 0)
LIE(size_too_small, slot->record.flags = 0; slot->strides[0] = 16; slot->strides[1] = 1;
    slot->record.size = 255)
LIE(strides_span, slot->record.flags = 0; slot->strides[0] = 1 << 20; slot->strides[1] = 1)
LIE(strides_overflow, slot->record.flags = 0; slot->strides[0] = INT64_MAX; slot->strides[1] = 1)
LIE(strides_negative, slot->record.flags = 0; slot->strides[0] = -16; slot->strides[1] = 1)
LIE(manifest_nowhere, slot->flags = DLX_SHM_SLOT_MANIFEST; slot->manifest_arena = 1;
    slot->manifest_offset = UINT64_C(1) << 50; slot->manifest_size = 4096)
LIE(manifest_wraps, slot->flags = DLX_SHM_SLOT_MANIFEST; slot->manifest_arena = 1;
    slot->manifest_offset = UINT64_MAX - 63; slot->manifest_size = 128)
LIE(manifest_of_payload, slot->flags = DLX_SHM_SLOT_MANIFEST; slot->manifest_arena = 1;
    slot->manifest_offset = 0; slot->manifest_size = 256)

static void (*const slot_lies[])(struct dlx_shm_slot *) = {
    no_tensors,     many_tensors,        two_tensors,      slot_flags,       record_flags,
    offset_outside, offset_wraps,        offset_unaligned, shape_too_large,  shape_overflows,
    shape_negative, ndim_many,           ndim_huge,        no_bits,          no_lanes,
    size_too_small, strides_span,        strides_overflow, strides_negative, manifest_nowhere,
    manifest_wraps, manifest_of_payload,
};

START_TEST(a_record_that_cannot_be_ends_its_link_alone)
{
    struct scene x = make_scene();
    ck_assert(!honest_goes_on(&x));
    publish_lie(x.liar, slot_lies[_i]);
    bool told = honest_goes_on(&x);
    for (int i = 0; i < 3; i++)
        told |= honest_goes_on(&x);
    ck_assert_msg(told, "lie %d was believed", _i);
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    ok(dlx_subscription_get_stats(x.s, &stats));
    ck_assert_uint_eq(stats.n_publishers, 1);
    ck_assert_uint_eq(stats.rejected, 1);
    ck_assert_uint_eq(stats.n_held, 0);
    end_scene(&x);
}
END_TEST

START_TEST(an_arena_that_nobody_announced_is_waited_for)
{
    struct scene x = make_scene();
    struct dlx_message *m = NULL;
    publish_lie(x.liar, slot_lies[0]);
    (void)honest_goes_on(&x);
    end_scene(&x);
    x = make_scene();
    dlx_test_stream_publish(x.liar, 4, 1);
    ok(dlx_take(x.s, SECOND, &m));
    dlx_message_unref(m);
    /* Message 2 lies in arena 77. It may be on its way for all that we know, so others go on. */
    dlx_test_stream_publish(x.liar, 4, 2);
    struct dlx_shm_control *control = x.liar->control;
    uint32_t slot = (uint32_t)dlx_load64_relaxed(&control->brief[0]);
    x.liar->core.slots[slot].record.arena = 77;
    dlx_store64_relaxed(&control->brief[3],
                        (dlx_load64_relaxed(&control->brief[3]) >> 32 << 32) | 77);
    for (int i = 0; i < 10; i++)
        ck_assert(!honest_goes_on(&x));
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    ok(dlx_subscription_get_stats(x.s, &stats));
    ck_assert_uint_eq(stats.taken, 11); /* not that one */
    ck_assert_uint_eq(stats.n_held, 0);
    ck_assert_uint_eq(stats.lost, 0);
    x.liar = dlx_publisher_unref(x.liar); /* now nobody will bring it */
    bool told = false;
    for (time_t end = time(NULL) + PATIENCE_S;
         !told && time(NULL) < end;) /* the daemon tells after it has answered */
        told = honest_goes_on(&x);
    ck_assert(told);
    ok(dlx_subscription_get_stats(x.s, &stats));
    ck_assert_uint_eq(stats.taken, 1 + (uint64_t)x.published);
    ck_assert_uint_eq(stats.lost, 1);
    end_scene(&x);
}
END_TEST

/* An arena stays mapped as long as something that was taken before its drop is held: a later message in it would
 * lose its memory under its reader, at the next sweep. */
START_TEST(a_dropped_arena_is_of_no_use_to_later_messages)
{
    struct scene x = make_scene();
    struct dlx_message *old = NULL, *m = NULL;
    dlx_test_stream_publish(x.liar, 4, 1);
    ok(dlx_take(x.s, SECOND, &old));
    uint32_t first = x.liar->core.slots[0].record.arena;
    ck_assert_int_eq(dlx__call_arena_drop(x.c, x.liar->id, first), 0);
    dlx_test_wait_readable(x.s->sock);
    dlx__subscription_read_news(x.s);
    dlx_test_stream_publish(x.liar, 4, 2); /* there all the same */
    ck_assert_uint_eq(x.liar->core.slots[1].record.arena, first);
    fails(dlx_take(x.s, SECOND, &m), DLX_E_BAD_PEER, "dropped");
    dlx_test_stream_check(old, 4, 1);
    dlx_message_unref(old);
    ck_assert(!honest_goes_on(&x));
    end_scene(&x);
}
END_TEST

static const uint64_t heads[] = {UINT64_C(1) << 63, UINT64_MAX, UINT64_MAX - 1, 0, 1, 5, 1000000};

START_TEST(a_head_that_jumps_harms_only_its_link)
{
    struct scene x = make_scene();
    struct dlx_message *m = NULL;
    for (int i = 0; i < 3; i++) {
        dlx_test_stream_publish(x.liar, 4, i);
        ok(dlx_take(x.s, SECOND, &m));
        dlx_message_unref(m);
    }
    dlx_store64_sc(&x.liar->control->head, heads[_i]);
    for (int i = 0; i < 5; i++)
        (void)honest_goes_on(&x);
    end_scene(&x);
}
END_TEST

START_TEST(ring_and_slots_that_point_nowhere_are_losses)
{
    struct scene x = make_scene();
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    for (int i = 0; i < 10; i++)
        dlx_test_stream_publish(x.liar, 4, i);
    for (uint32_t i = 0; i <= x.liar->core.block->ring_mask; i++)
        dlx_store32_relaxed(&x.liar->core.block->ring[i],
                            i % 2 ? UINT32_MAX : x.liar->core.n_slots);
    dlx_store64_relaxed(&x.liar->control->brief[0], UINT64_MAX);
    for (int i = 0; i < 12; i++)
        ck_assert(!honest_goes_on(&x));
    ok(dlx_subscription_get_stats(x.s, &stats));
    ck_assert_uint_eq(stats.lost, 10);
    ck_assert_uint_eq(stats.n_held, 0);
    end_scene(&x);
}
END_TEST

struct scribbler {
    atomic_bool stop;
    atomic_uint rounds;
    uint64_t seed;
    uint64_t *words;
    size_t n_words;
};

static void *scribble(void *userdata)
{
    struct scribbler *x = userdata;
    static const uint64_t values[] = {0, 1, 2, UINT32_MAX, UINT64_MAX, INT64_MAX, 1 << 20, 63};
    while (!atomic_load(&x->stop)) {
        uint64_t r = dlx_test_random(&x->seed) >> 8;
        uint64_t value = r & 64 ? values[r % DLX_ARRAY_SIZE(values)] : dlx_test_random(&x->seed);
        __atomic_store_n(&x->words[(r >> 8) % x->n_words], value, __ATOMIC_RELAXED);
        atomic_fetch_add(&x->rounds, 1);
    }
    return NULL;
}

START_TEST(a_control_block_that_changes_all_the_time_is_survived)
{
    for (int round = 0; round < 20; round++) {
        struct scene x = make_scene();
        pthread_t thread;
        struct scribbler scribbler = {.seed = (uint64_t)(round + 1),
                                      .words = (uint64_t *)x.liar->control,
                                      .n_words = dlx_shm_control_size(x.liar->core.n_slots) / 8};
        for (int i = 0; i < 10; i++)
            dlx_test_stream_publish(x.liar, 4, i);
        ck_assert_int_eq(pthread_create(&thread, NULL, scribble, &scribbler), 0);
        while (atomic_load(&scribbler.rounds) < 1000)
            ;
        for (int i = 0; i < 200; i++)
            (void)honest_goes_on(&x);
        atomic_store(&scribbler.stop, true);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        end_scene(&x);
    }
}
END_TEST

/* ---- a subscriber that lies ---------------------------------------------------------------- */

struct cast {
    struct dlx_client *c;
    struct dlx_publisher *p;
    struct dlx_subscription *honest, *liar;
    struct dlx_shm_link *page; /* of the liar */
    int64_t published, taken;
};

static struct cast make_cast(void)
{
    struct cast x = {.c = dlx_test_stream_connect()};
    struct dlx_publisher_args pa = {
        .size = sizeof pa, .on_full = DLX_ON_FULL_BLOCK, .history = 2, .n_slots = 64};
    struct dlx_subscribe_args sa = {.size = sizeof sa, .reliable = true};
    ok(dlx_publisher_new(x.c, "test/a", &pa, &x.p));
    ok(dlx_subscribe(x.c, "test/a", &sa, &x.honest));
    ok(dlx_subscribe(x.c, "test/a", &sa, &x.liar));
    x.page = x.liar->inlets[0]->page;
    return x;
}

static void end_cast(struct cast *x)
{
    dlx_subscription_unref(x->honest);
    dlx_subscription_unref(x->liar);
    dlx_publisher_unref(x->p);
    dlx_client_unref(x->c);
}

/* Publish, waiting shortly if that is what it takes. */
static int publish_once(struct cast *x)
{
    struct dlx_publish_args args = {.size = sizeof args, .timeout_ns = 2000000};
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x->p, 4, x->published + 1);
    int r = dlx_publish(x->p, t, &args);
    if (r == 0)
        x->published++;
    else
        t->deleter(t);
    return r;
}

/* The honest one gets every message that was published, in order. */
static void take_all(struct cast *x)
{
    struct dlx_message *m = NULL;
    while (x->taken < x->published) {
        ok(dlx_take(x->honest, PATIENCE, &m));
        dlx_test_stream_check(m, 4, ++x->taken);
        ck_assert_uint_eq(dlx_message_gap(m), 0);
        dlx_message_unref(m);
    }
}

START_TEST(a_cursor_that_lies_harms_only_itself)
{
    struct cast x = make_cast();
    static const uint64_t cursors[] = {UINT64_C(1) << 62, 0, 3, UINT64_MAX - 1, 1};
    for (int round = 0; round < 500; round++) {
        dlx_store64_sc(&x.page->cursor, cursors[round % 5]);
        int r = publish_once(&x);
        if (r < 0) { /* it may hold the publisher up, as any reliable subscriber: that is named */
            char pid[32];
            (void)snprintf(pid, sizeof pid, "pid %d", getpid());
            ck_assert_int_eq(r, DLX_E_TIMEOUT);
            ck_assert_ptr_nonnull(strstr(dlx_client_errmsg(NULL), pid));
        }
        take_all(&x);
    }
    ck_assert_int_gt(x.published, 60);
    end_cast(&x);
}
END_TEST

START_TEST(hold_words_that_lie_pin_no_more_than_their_number)
{
    struct cast x = make_cast();
    for (int round = 0; round < 2000; round++) {
        dlx_store64_sc(&x.page->cursor, UINT64_C(1) << 62); /* not in the way by that */
        for (uint32_t k = 0; k < 16; k++) {
            uint64_t lies[] = {(uint64_t)x.published, (uint64_t)x.published - k, UINT64_MAX,
                               (uint64_t)round * 1000003};
            dlx_store64_sc(&x.page->hold[k], lies[(round / 16) % 4]);
        }
        ok(publish_once(&x)); /* 64 slots: 16 holds and a history of 2 cannot starve it */
        take_all(&x);
    }
    end_cast(&x);
}
END_TEST

START_TEST(a_ticket_that_changes_all_the_time_costs_a_byte_each)
{
    struct cast x = make_cast();
    dlx_atomic_u64 *ticket = dlx_shm_ticket(x.page, x.liar->inlets[0]->link_index);
    for (uint64_t round = 0; round < 3000; round++) { /* more than its socket has room for */
        dlx_store64_sc(&x.page->cursor, UINT64_C(1) << 62);
        dlx_store64_sc(ticket, round * 7);
        ok(publish_once(&x));
        take_all(&x);
    }
    end_cast(&x);
}
END_TEST

START_TEST(a_link_page_that_changes_all_the_time_is_survived)
{
    for (int round = 0; round < 5; round++) {
        struct cast x = make_cast();
        pthread_t thread;
        struct scribbler scribbler = {
            .seed = (uint64_t)(round + 1), .words = (uint64_t *)&x.page->cursor, .n_words = 256};
        ck_assert_int_eq(pthread_create(&thread, NULL, scribble, &scribbler), 0);
        for (int i = 0; i < 1000; i++) {
            int r = publish_once(&x);
            ck_assert(r == 0 || r == DLX_E_TIMEOUT || r == DLX_E_FULL);
            take_all(&x);
        }
        atomic_store(&scribbler.stop, true);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        end_cast(&x);
    }
}
END_TEST

/* ---- a publisher that says it is another ---------------------------------------------------- */

/* One that is there goes on as if nothing was said; 0: the liar has left before the link to it was open, 1: it stays, and
 * what it never published is lost of its own stream. */
START_TEST(who_says_he_is_another_harms_nobody)
{
    const struct dlx_publisher_args args = {.size = sizeof args, .history = 1, .n_slots = 8};
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    struct dlx_new_publisher made;
    struct dlx_message *m = NULL;
    const uint64_t head = UINT64_C(1) << 40;
    void *control = NULL;
    bool unanswered;
    dlx_test_stream_publish(x.p, 10, 1);
    dlx_test_stream_take(x.s, 1);
    ok(dlx__call_publisher_new(c, "test/a", &args, x.p->id, 0, PATIENCE, &made));
    ok(dlx__region_populate(made.memory, made.control_fd, made.control_size, &control));
    dlx_store64_sc(&((struct dlx_shm_control *)control)->head, head);
    ok(dlx__call_publisher_ready(c, made.id, PATIENCE, &unanswered));
    if (_i == 0)
        ok(dlx__call_publisher_close(c, made.id));
    uint64_t until = dlx__deadline(PATIENCE);
    do {
        ck_assert_uint_lt(dlx__now_ns(), until);
        dlx__subscription_read_news(x.s);
    } while (_i == 1 && x.s->n_open < 2);
    for (int64_t i = 2; i < 6; i++) {
        dlx_test_stream_publish(x.p, 10, i);
        dlx_test_stream_take(x.s, i);
    }
    dlx_publisher_unref(x.p);
    if (_i == 1)
        ok(dlx__call_publisher_close(c, made.id));
    int r;
    do /* a control block without messages is all that the liar has */
        r = dlx_take(x.s, PATIENCE, &m);
    while (r == DLX_E_BAD_PEER);
    ck_assert_int_eq(r, DLX_E_PUBLISHER_GONE);
    ok(dlx_subscription_get_stats(x.s, &stats));
    ck_assert_uint_eq(stats.taken, 5);
    ck_assert_uint_eq(stats.lost, _i == 0 ? 0 : head);
    dlx_subscription_unref(x.s);
    dlx_client_unref(x.c);
    dlx_client_unref(c);
    dlx__region_unmap(control, made.control_size);
    dlx__close(made.membership_fd);
    dlx__close(made.link_sock);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("hostile");
    TCase *tcase = dlx_test_stream_case("hostile");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, a_record_that_cannot_be_ends_its_link_alone, 0,
                        (int)DLX_ARRAY_SIZE(slot_lies));
    tcase_add_test(tcase, an_arena_that_nobody_announced_is_waited_for);
    tcase_add_test(tcase, a_dropped_arena_is_of_no_use_to_later_messages);
    tcase_add_loop_test(tcase, a_head_that_jumps_harms_only_its_link, 0,
                        (int)DLX_ARRAY_SIZE(heads));
    tcase_add_test(tcase, ring_and_slots_that_point_nowhere_are_losses);
    tcase_add_test(tcase, a_control_block_that_changes_all_the_time_is_survived);
    tcase_add_test(tcase, a_cursor_that_lies_harms_only_itself);
    tcase_add_test(tcase, hold_words_that_lie_pin_no_more_than_their_number);
    tcase_add_test(tcase, a_ticket_that_changes_all_the_time_costs_a_byte_each);
    tcase_add_test(tcase, a_link_page_that_changes_all_the_time_is_survived);
    tcase_add_loop_test(tcase, who_says_he_is_another_harms_nobody, 0, 2);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
