/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A lying publisher's process against libdlx: whatever it writes into its pages and sockets, and
 * however fast, every call of the honest side ends in its time, names the liar if it must, and
 * other links go on. Each lie is tried on each way to take.
 */

#include "client/publish/publish.h"
#include "client/subscribe/subscription.h"
#include "ring/entry.h"
#include "tests/hostile/harness_liar.h"
#include "tests/harness/stream.h"
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

/* ---- lies of a publisher ------------------------------------------------------------------- */

/* Makes the lie, tells, and never returns. */
typedef void lie_fn(struct dlx_publisher *p, int tell);

static struct dlx_shm_control *control_of(struct dlx_publisher *p)
{
    return p->core.block->control;
}

static dlx_atomic_u64 *gen_of(struct dlx_publisher *p, uint64_t n)
{
    return &control_of(p)->entries[n & p->core.block->mask].gen;
}

static void publish_or_drop(struct dlx_publisher *p, int64_t value)
{
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 4, value);
    if (dlx_publish(p, t, NULL) < 0)
        t->deleter(t);
}

/* Who was asked to ring does: nobody looks at the ring of a parked link before. */
static void wake_readers(struct dlx_publisher *p)
{
    dlx_fence();
    dlx__writer_ring_sleepers(&p->core);
}

static void head_far(struct dlx_publisher *p, int tell)
{
    dlx_store64_sc(&control_of(p)->head, UINT64_C(1) << 60);
    wake_readers(p);
    dlx_test_liar_rest(tell);
}

static void head_last(struct dlx_publisher *p, int tell)
{
    dlx_store64_sc(&control_of(p)->head, UINT64_MAX);
    wake_readers(p);
    dlx_test_liar_rest(tell);
}

static void head_back(struct dlx_publisher *p, int tell)
{
    dlx_store64_sc(&control_of(p)->head, 1);
    dlx_store64_sc(&control_of(p)->oldest, 0);
    wake_readers(p);
    dlx_test_liar_rest(tell);
}

static void head_runs(struct dlx_publisher *p, int tell)
{
    dlx_test_liar_say(tell);
    for (uint64_t head = p->core.head;;)
        dlx_store64_sc(&control_of(p)->head, ++head);
}

/* Every entry is retired before it can be taken, and the next one is there already. */
static void gens_run(struct dlx_publisher *p, int tell)
{
    uint64_t mask = p->core.block->mask;
    dlx_test_liar_say(tell);
    for (uint64_t n = p->core.head + 1;; n++) {
        dlx_store64_sc(gen_of(p, n), n);
        dlx_store64_sc(&control_of(p)->head, n);
        dlx_store64_sc(gen_of(p, n - mask / 2), (n - mask / 2) | DLX_SHM_GONE);
        dlx_store64_sc(&control_of(p)->oldest, n - 1);
    }
}

/* The next entry has its number, and has not. */
static void gen_flips(struct dlx_publisher *p, int tell)
{
    uint64_t n = p->core.head + 1;
    dlx_test_liar_say(tell);
    for (;;) {
        dlx_store64_sc(gen_of(p, n), n);
        dlx_store64_sc(gen_of(p, n), 0);
    }
}

static void gens_wrong(struct dlx_publisher *p, int tell)
{
    for (int64_t i = 0; i < 4; i++)
        publish_or_drop(p, i);
    for (uint32_t i = 0; i <= p->core.block->mask; i++)
        dlx_store64_sc(gen_of(p, i), dlx_test_liar_random());
    wake_readers(p);
    dlx_test_liar_rest(tell);
}

static void gen_ahead(struct dlx_publisher *p, int tell)
{
    uint64_t n = p->core.head + 1;
    dlx_store64_sc(gen_of(p, n), n + 4 * (p->core.block->mask + 1));
    wake_readers(p);
    dlx_test_liar_rest(tell);
}

static void mark_then_go_on(struct dlx_publisher *p, int tell, uint64_t mark)
{
    uint64_t n = p->core.head + 1;
    dlx_store64_sc(gen_of(p, n), n | mark);
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

static void moved_to_nowhere(struct dlx_publisher *p, int tell)
{
    uint64_t n = p->core.head + 1;
    dlx_store64_sc(gen_of(p, n), n | DLX_SHM_MOVED);
    wake_readers(p);
    dlx_test_liar_rest(tell);
}

/* The newest message lies in an arena that nobody announced, and others wait behind it. */
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
        dlx_store32_sc(&control_of(p)->blocked, UINT32_MAX);
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
        if (dlx_publish(p, t, NULL) < 0)
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

static const struct {
    const char *name;
    lie_fn *lie;
    bool told; /* ends in BAD_PEER, whatever the way to take */
} lies[] = {
    {"head far away", head_far, false},
    {"head at its last value", head_last, false},
    {"head going back", head_back, false},
    {"head running away", head_runs, false},
    {"gens running away", gens_run, false},
    {"a gen that never settles", gen_flips, false},
    {"a gen far ahead", gen_ahead, true},
    {"gens of nobody", gens_wrong, false},
    {"closed, but goes on", closed_but_goes_on, false},
    {"moved, but goes on", moved_but_goes_on, false},
    {"moved to nowhere", moved_to_nowhere, false},
    {"unknown arena", arena_unknown, false},
    {"always blocked", blocked_always, false},
    {"always ringing", rings_always, false},
    {"flipping manifest", manifest_flips, false},
    {"huge manifest", manifest_huge, true},
    {"names shared", names_shared, true},
    {"dimensions shared", dimensions_shared, true},
};

static void lying_publisher(struct dlx_client *c, int tell, int arg)
{
    struct dlx_publisher_args pa = {.size = sizeof pa, .on_full = DLX_ON_FULL_BLOCK};
    struct dlx_publish_args args = {.size = sizeof args, .timeout_ns = PATIENCE};
    dlx_set_debug(false); /* it writes where that forbids it */
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", &pa);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    for (int64_t i = 0; i < 3; i++)
        ok(dlx_publish(p, dlx_test_stream_alloc(p, 4, i), &args));
    dlx_test_liar_hear(tell);
    lies[arg].lie(p, tell);
}

/* ---- an honest subscriber ------------------------------------------------------------------ */

enum way { EVERY, RELIABLE, LATEST, SPINNING, POLLING, BATCHES, N_WAYS };

struct scene {
    struct dlx_client *c;
    struct dlx_publisher *honest;
    struct dlx_subscription *s;
    struct dlx_test_liar liar;
    enum way way;
    int64_t published; /* by the honest one */
    bool told;
    struct dlx_message *batch[8];
    uint32_t first, n_batch; /* taken, and not looked at yet */
};

static int take(struct scene *x, int64_t timeout_ns, struct dlx_message **ret)
{
    if (x->way != BATCHES)
        return dlx_take(x->s, x->way == POLLING ? 0 : timeout_ns, ret);
    if (x->first == x->n_batch) {
        x->first = x->n_batch = 0;
        int r = dlx_take_n(x->s, timeout_ns, x->batch, DLX_ARRAY_SIZE(x->batch), &x->n_batch);
        if (r < 0)
            return r;
    }
    *ret = x->batch[x->first++];
    return 0;
}

/* Take, and see that it comes back. EMPTY and TIMEOUT are both EMPTY here. */
static int take_in_time(struct scene *x, int64_t timeout_ns, struct dlx_message **ret)
{
    uint64_t start = dlx__now_ns();
    int r = take(x, timeout_ns, ret);
    while (x->way == POLLING && r == DLX_E_EMPTY && dlx__now_ns() - start < (uint64_t)timeout_ns) {
        struct pollfd pfd = {.fd = dlx_subscription_fd(x->s), .events = POLLIN};
        ck_assert_int_ge(poll(&pfd, 1, (int)(timeout_ns / 1000000)), 0);
        r = dlx_take(x->s, 0, ret);
    }
    ck_assert_msg(dlx_test_ends_in_time(start, timeout_ns), "a take of %.3f s took %.3f s",
                  (double)timeout_ns / 1e9, (double)(dlx__now_ns() - start) / 1e9);
    if (r == DLX_E_BAD_PEER) {
        dlx_test_liar_check_names(&x->liar);
        x->told = true;
    }
    return r == DLX_E_TIMEOUT ? DLX_E_EMPTY : r;
}

/* Read the ends of it: they must be inside a mapping, whatever the liar said. */
static void touch(struct dlx_message *m)
{
    for (uint32_t i = 0; i < dlx_message_n_tensors(m); i++) {
        const DLTensor *t = dlx_message_peek(m, i);
        volatile const uint8_t *data = t->data;
        int64_t last = 0;
        bool none = false;
        for (int32_t k = 0; k < t->ndim; k++) {
            none |= t->shape[k] == 0;
            last += (t->shape[k] - 1) * t->strides[k];
        }
        if (!none && data) {
            (void)data[0];
            (void)data[last * t->dtype.bits * t->dtype.lanes / 8];
        }
    }
    dlx_message_unref(m);
}

/* What the honest publisher sends arrives, whole and next in order. */
static void honest_goes_on(struct scene *x)
{
    struct dlx_publish_args args = {.size = sizeof args, .timeout_ns = PATIENCE};
    struct dlx_message *m = NULL;
    uint64_t start = dlx__now_ns();
    ok(dlx_publish(x->honest, dlx_test_stream_alloc(x->honest, 4, ++x->published), &args));
    for (;;) {
        int r = take_in_time(x, SECOND, &m);
        ck_assert_msg(dlx_test_ends_in_time(start, PATIENCE), "message %d did not come",
                      (int)x->published);
        if (r == DLX_E_BAD_PEER || r == DLX_E_EMPTY)
            continue;
        ok(r);
        if (dlx_message_publisher(m) == x->honest->id)
            break;
        touch(m);
    }
    dlx_test_stream_check(m, 4, x->published);
    ck_assert_uint_eq(dlx_message_gap(m), 0);
    dlx_message_unref(m);
}

static struct scene make_scene(enum way way)
{
    struct scene x = {.c = dlx_test_stream_connect(), .way = way};
    struct dlx_publisher_args pa = {.size = sizeof pa, .on_full = DLX_ON_FULL_BLOCK};
    struct dlx_subscribe_args sa = {
        .size = sizeof sa,
        .reliable = way == RELIABLE,
        .mode = way == LATEST ? DLX_MODE_LATEST : DLX_MODE_ALL,
        .spin_ns = way == SPINNING ? DLX_SPIN_ALWAYS : 0,
    };
    ok(dlx_publisher_new(x.c, "test/a", &pa, &x.honest));
    ok(dlx_subscribe(x.c, "test/a", &sa, &x.s));
    if (way == POLLING)
        ck_assert_int_ge(dlx_subscription_fd(x.s), 0);
    return x;
}

LOOP_TEST(a_publisher_that_lies_holds_nobody_up, 0, (int)DLX_ARRAY_SIZE(lies) * N_WAYS)
{
    int lie = _i / N_WAYS;
    struct scene x = make_scene((enum way)(_i % N_WAYS));
    struct dlx_message *m = NULL;
    x.liar = dlx_test_liar_spawn(lying_publisher, lie);
    /* What it published before it began to lie. */
    for (uint64_t seq = 0; seq < 3;) {
        int r = take_in_time(&x, SECOND, &m);
        ck_assert_msg(r == 0, "%d %s", r, dlx_client_errmsg(NULL));
        seq = dlx_message_seq(m);
        touch(m);
    }
    honest_goes_on(&x);
    dlx_test_liar_say(x.liar.sock);
    dlx_test_liar_hear(x.liar.sock); /* now it lies */
    for (int i = 0; i < 5; i++)
        honest_goes_on(&x);
    /* Nothing of the honest one: a take ends in time, with or without something of the liar. */
    for (int i = 0; i < 5; i++) {
        int r = take_in_time(&x, SECOND / 100, &m);
        if (r == 0)
            touch(m);
        else
            ck_assert_msg(r == DLX_E_EMPTY || r == DLX_E_BAD_PEER, "%s: %d %s", lies[lie].name, r,
                          dlx_client_errmsg(NULL));
    }
    ck_assert_msg(x.told || !lies[lie].told, "\"%s\" was believed", lies[lie].name);
    struct dlx_subscription_stats stats = dlx_test_stream_subscription_stats(x.s);
    if (x.way != BATCHES) /* there it is told by the call after the one that saw it */
        ck_assert_uint_eq(stats.rejected, x.told);
    dlx_test_liar_kill(&x.liar);
    /* What it published is drained, or given up, and its link goes. */
    uint64_t start = dlx__now_ns();
    do {
        ck_assert(dlx_test_ends_in_time(start, 0));
        if (take_in_time(&x, SECOND / 100, &m) == 0)
            touch(m);
        ok(dlx_subscription_get_stats(x.s, &stats));
    } while (stats.n_publishers > 1 || x.first < x.n_batch);
    ck_assert_uint_le(stats.rejected, 1);
    ck_assert_uint_eq(stats.n_held, 0);
    for (int i = 0; i < 10; i++)
        honest_goes_on(&x);
    dlx_subscription_unref(x.s);
    dlx_publisher_unref(x.honest);
    dlx_client_unref(x.c);
}

int main(void)
{
    TCase *tcase = dlx_test_stream_case("hostile_process");
    tcase_set_timeout(tcase, 12);
    return dlx_test_run_case(tcase);
}
