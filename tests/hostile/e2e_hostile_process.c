/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A lying publisher's process against libdlx: whatever it writes into its pages and sockets, and
 * however fast, every call of the honest side ends in its time, names the liar if it must, and
 * other links go on. Each lie is tried on each way to take.
 */

#include "client/publish/publisher_link.h"
#include "client/subscribe/subscription.h"
#include "ring/entry.h"
#include "tests/hostile/harness_liar.h"
#include "tests/hostile/harness_lies.h"
#include "tests/harness/stream.h"

/* Makes the lie, tells, and never returns. */
typedef void lie_fn(struct dlx_publisher *p, int tell);

static void publish_or_drop(struct dlx_publisher *p, int64_t value)
{
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 4, value);
    if (dlx_publish(p, t, NULL, NULL) < 0)
        t->deleter(t);
}

/* Rings each subscriber that asked for it: a parked link's ring is not read before. */
static void wake_readers(struct dlx_publisher *p)
{
    dlx_fence();
    dlx__writer_ring_sleepers(&p->core);
}

static void head_runs(struct dlx_publisher *p, int tell)
{
    dlx_test_liar_say(tell);
    for (uint64_t head = p->core.head;;)
        dlx_store64_sc(&dlx_test_control_of(p)->head, ++head);
}

/* Every entry is retired before it can be taken, and the next one is there already. */
static void gens_run(struct dlx_publisher *p, int tell)
{
    uint64_t mask = p->core.block->mask;
    dlx_test_liar_say(tell);
    for (uint64_t n = p->core.head + 1;; n++) {
        dlx_store64_sc(dlx_test_gen_of(p, n), n);
        dlx_store64_sc(&dlx_test_control_of(p)->head, n);
        dlx_store64_sc(dlx_test_gen_of(p, n - mask / 2), (n - mask / 2) | DLX_SHM_GONE);
        dlx_store64_sc(&dlx_test_control_of(p)->oldest, n - 1);
    }
}

/* The next entry has its number, and has not. */
static void gen_flips(struct dlx_publisher *p, int tell)
{
    uint64_t n = p->core.head + 1;
    dlx_test_liar_say(tell);
    for (;;) {
        dlx_store64_sc(dlx_test_gen_of(p, n), n);
        dlx_store64_sc(dlx_test_gen_of(p, n), 0);
    }
}

static void gens_wrong(struct dlx_publisher *p, int tell)
{
    for (int64_t i = 0; i < 4; i++)
        publish_or_drop(p, i);
    for (uint32_t i = 0; i <= p->core.block->mask; i++)
        dlx_store64_sc(dlx_test_gen_of(p, i), dlx_test_liar_random());
    wake_readers(p);
    dlx_test_liar_rest(tell);
}

static void mark_then_go_on(struct dlx_publisher *p, int tell, uint64_t mark)
{
    uint64_t n = p->core.head + 1;
    dlx_store64_sc(dlx_test_gen_of(p, n), n | mark);
    dlx_test_liar_say(tell);
    for (int64_t i = 0;; i++)
        publish_or_drop(p, i);
}

static void closed_but_goes_on(struct dlx_publisher *p, int tell)
{
    mark_then_go_on(p, tell, DLX_SHM_END);
}

static void moved_but_goes_on(struct dlx_publisher *p, int tell)
{
    mark_then_go_on(p, tell, DLX_SHM_MOVED);
}

/* The newest message lies in an arena that was never announced, and others wait behind it. */
static void arena_unknown(struct dlx_publisher *p, int tell)
{
    const int64_t shape = 4;
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    struct dlx_block *block = NULL;
    ck_assert_int_eq(dlx__publisher_block(p, 32, &block), 0);
    ck_assert(dlx__entry_pack_tensor(words, 77, 0, (DLDataType){kDLInt, 64, 1}, false, 1, &shape));
    dlx__writer_put(&p->core, words, 1, block);
    dlx__writer_announce(&p->core);
    for (int i = 0; i < 3; i++)
        dlx_test_stream_publish(p, 4, i);
    dlx_test_liar_rest(tell);
}

static void blocked_always(struct dlx_publisher *p, int tell)
{
    dlx_test_liar_say(tell);
    for (int64_t i = 0;; i++) {
        publish_or_drop(p, i);
        dlx_store32_sc(&dlx_test_control_of(p)->blocked, UINT32_MAX);
    }
}

static void rings_always(struct dlx_publisher *p, int tell)
{
    const struct dlx_publisher_link *publisher_link =
        (const struct dlx_publisher_link *)(const void *)((const char *)p->core.links[0] -
                                                          offsetof(struct dlx_publisher_link,
                                                                   core));
    dlx_test_liar_storm(publisher_link->bell, tell);
}

/* More dimensions than fit in an entry: the message has a manifest, which changes while it is
 * read. */
static void manifest_flips(struct dlx_publisher *p, int tell)
{
    static const int64_t shape[9] = {1, 1, 1, 1, 1, 1, 2, 2, 2};
    struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLInt, 64, 1}, .ndim = 9, .shape = shape};
    dlx_test_liar_say(tell);
    for (;;) {
        DLManagedTensorVersioned *t = NULL;
        ok(dlx_alloc(p, &spec, &t));
        if (dlx_publish(p, t, NULL, NULL) < 0)
            t->deleter(t);
        for (uint32_t i = 0; i <= p->core.block->mask; i++) {
            const struct dlx_block *block = p->core.block->payloads[i];
            if (!block || !block->next)
                continue;
            uint64_t *words = dlx__block_data(block->next);
            for (int k = 0; k < 8; k++) {
                uint64_t r = dlx_test_liar_random();
                words[r % 24] = r & (1U << 20) ? r >> 24 : r >> 58;
            }
        }
    }
}

/* A manifest of so many tensors of one byte that claims to have `size` bytes, in which all have one
 * name, and one shape. */
static void publish_manifest(struct dlx_publisher *p, uint32_t n, uint32_t name_size, uint32_t ndim,
                             uint64_t size)
{
    uint64_t words[DLX_SHM_ENTRY_WORDS];
    struct dlx_block *block = NULL;
    ck_assert_int_eq(dlx__publisher_block(p, 1 << 20, &block), 0);
    struct dlx_shm_manifest *manifest = dlx__block_data(block);
    struct dlx_shm_manifest_entry *entries = (struct dlx_shm_manifest_entry *)(manifest + 1);
    *manifest = (struct dlx_shm_manifest){.n_tensors = n,
                                          .dims_offset = 4096,
                                          .dims_size = ndim * sizeof(int64_t),
                                          .names_offset = 8192,
                                          .names_size = name_size};
    for (uint32_t i = 0; i < ndim; i++)
        ((int64_t *)manifest)[512 + i] = 1;
    struct dlx_shm_record record = {.dtype_code = kDLInt,
                                    .dtype_bits = 8,
                                    .dtype_lanes = 1,
                                    .device_type = kDLCPU,
                                    .ndim = ndim,
                                    .flags = DLX_SHM_RECORD_ROW_MAJOR,
                                    .arena = dlx__block_arena_id(block),
                                    .offset = block->offset,
                                    .size = 1};
    for (uint32_t i = 0; i < n; i++)
        entries[i] = (struct dlx_shm_manifest_entry){.record = record, .name_size = name_size};
    dlx__entry_pack_manifest(words, dlx__block_arena_id(block), block->offset, size, n);
    dlx__writer_put(&p->core, words, 1, block);
    dlx__writer_announce(&p->core);
}

static void manifest_huge(struct dlx_publisher *p, int tell)
{
    publish_manifest(p, 1, 0, 0, 1 << 20);
    dlx_test_liar_rest(tell);
}

/* Each entry is inside the manifest, but together they need more than it has. */
static void names_shared(struct dlx_publisher *p, int tell)
{
    publish_manifest(p, 32, 1000, 0, 9192);
    dlx_test_liar_rest(tell);
}

static void dimensions_shared(struct dlx_publisher *p, int tell)
{
    publish_manifest(p, 32, 0, 64, 8192);
    dlx_test_liar_rest(tell);
}

/* Without a function: it stores its head, or what the next gen is, and rests. */
static const struct {
    const char *name;
    lie_fn *lie;
    bool told; /* ends in BAD_PEER, whatever the way to take */
    uint64_t head;
    uint64_t gen; /* above the next number */
} lies[] = {
    {"head far away", .head = UINT64_C(1) << 60},
    {"head at its last value", .head = UINT64_MAX},
    {"head going back", .head = 1},
    {"a gen far ahead", .gen = 4 * 256, .told = true},
    {"moved to nowhere", .gen = DLX_SHM_MOVED},
    {"head running away", .lie = head_runs},
    {"gens running away", .lie = gens_run},
    {"a gen that never settles", .lie = gen_flips},
    {"gens of nobody", .lie = gens_wrong},
    {"closed, but goes on", .lie = closed_but_goes_on},
    {"moved, but goes on", .lie = moved_but_goes_on},
    {"unknown arena", .lie = arena_unknown},
    {"always blocked", .lie = blocked_always},
    {"always ringing", .lie = rings_always},
    {"flipping manifest", .lie = manifest_flips},
    {"huge manifest", .lie = manifest_huge, .told = true},
    {"names shared", .lie = names_shared, .told = true},
    {"dimensions shared", .lie = dimensions_shared, .told = true},
};

static void lying_publisher(struct dlx_client *c, int tell, int arg)
{
    const char *topic = dlx_test_scene_liar_topic((enum dlx_test_way)(arg % N_ALL_WAYS));
    int lie = arg / N_ALL_WAYS;
    dlx_set_debug(false); /* it writes where that forbids it */
    struct dlx_publisher *p =
        dlx_test_stream_publisher(c, topic, PUBLISHER(.on_full = DLX_ON_FULL_BLOCK));
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    for (int64_t i = 0; i < 3; i++)
        ok(dlx_publish(p, dlx_test_stream_alloc(p, 4, i), PUBLISH(.timeout_ns = PATIENCE), NULL));
    dlx_test_liar_hear(tell);
    if (lies[lie].lie)
        lies[lie].lie(p, tell);
    uint64_t n = p->core.head + 1;
    if (lies[lie].gen > 0)
        dlx_store64_sc(dlx_test_gen_of(p, n), n + lies[lie].gen);
    else
        dlx_store64_sc(&dlx_test_control_of(p)->head, lies[lie].head);
    if (lies[lie].head == 1)
        dlx_store64_sc(&dlx_test_control_of(p)->oldest, 0);
    wake_readers(p);
    dlx_test_liar_rest(tell);
}

LOOP_TEST(a_publisher_that_lies_holds_nobody_up, 0, (int)DLX_ARRAY_SIZE(lies) * N_ALL_WAYS)
{
    int lie = _i / N_ALL_WAYS;
    auto_scene x = dlx_test_scene_begin((enum dlx_test_way)(_i % N_ALL_WAYS));
    struct dlx_message *m = NULL;
    struct dlx_test_liar liar = dlx_test_liar_spawn(lying_publisher, _i);
    x.pid = liar.pid;
    /* The messages that the liar published before it began to lie. */
    for (uint64_t seq = 0; seq < 3;) {
        int r = dlx_test_scene_take(&x, SECOND, &m);
        ck_assert_msg(r == 0, "%d %s", r, dlx_errmsg());
        seq = dlx_message_seq(m);
        dlx_test_scene_touch(m);
    }
    (void)dlx_test_scene_honest_goes_on(&x);
    dlx_test_liar_say(liar.sock);
    dlx_test_liar_hear(liar.sock); /* now it lies */
    (void)dlx_test_scene_honest_goes_on_for(&x, 5);
    /* Nothing of the honest one: a take ends in time, with or without something of the liar. */
    for (int i = 0; i < 5; i++) {
        int r = dlx_test_scene_take(&x, SECOND / 100, &m);
        if (r == 0)
            dlx_test_scene_touch(m);
        else
            ck_assert_msg(r == DLX_E_EMPTY || r == DLX_E_TIMEOUT || r == DLX_E_BAD_PEER,
                          "%s: %d %s", lies[lie].name, r, dlx_errmsg());
    }
    ck_assert_msg(x.told || !lies[lie].told, "\"%s\" was believed", lies[lie].name);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(x.s);
    if (x.way != BATCHES) /* there it is told by the call after the one that saw it */
        ck_assert_uint_eq(stats.rejected, x.told);
    dlx_test_liar_kill(&liar);
    /* The liar's messages are drained, or given up, and its link goes. */
    uint64_t start = dlx__now_ns();
    do {
        ck_assert(dlx_test_ends_in_time(start, 0));
        if (dlx_test_scene_take(&x, SECOND / 100, &m) == 0)
            dlx_test_scene_touch(m);
        ok(dlx_subscription_get_stats(x.s, &stats));
    } while (stats.n_publishers > 1 || x.first < x.n_batch);
    ck_assert_uint_le(stats.rejected, 1);
    ck_assert_uint_eq(stats.n_held, 0);
    (void)dlx_test_scene_honest_goes_on_for(&x, 10);
}

int main(void)
{
    TCase *tcase = dlx_test_stream_case("hostile_process");
    tcase_set_timeout(tcase, 12);
    return dlx_test_run_case(tcase);
}
