/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/hostile/harness_lies.h"
#include "ring/entry.h"
#include "tests/harness/random.h"
#include "tests/hostile/harness_liar.h"

static struct dlx_publisher *publisher_for(const struct dlx_test_scene *x, const char *topic)
{
    const bool blocks = x->way == RELIABLE || x->way >= N_WAYS;
    return dlx_test_stream_publisher(
        x->c, topic, PUBLISHER(.on_full = blocks ? DLX_ON_FULL_BLOCK : DLX_ON_FULL_DROP));
}

struct dlx_test_scene dlx_test_scene_begin(enum dlx_test_way way)
{
    struct dlx_test_scene x = {.way = way, .c = dlx_test_stream_connect(), .pid = getpid()};
    x.honest = publisher_for(&x, "test/a");
    x.s = dlx_test_stream_subscribe(
        x.c, way == LATEST ? "test/*" : "test/a",
        SUBSCRIBE(.mode = way == LATEST ? DLX_MODE_LATEST : DLX_MODE_ALL,
                  .reliable = way == RELIABLE, .spin_ns = way == SPINNING ? DLX_SPIN_ALWAYS : 0));
    if (way == POLLING)
        ck_assert_int_ge(dlx_subscription_fd(x.s), 0);
    return x;
}

const char *dlx_test_scene_liar_topic(enum dlx_test_way way)
{
    return way == LATEST ? "test/lies" : "test/a";
}

struct dlx_test_scene dlx_test_scene_make_for(enum dlx_test_way way)
{
    struct dlx_test_scene x = dlx_test_scene_begin(way);
    x.liar = publisher_for(&x, dlx_test_scene_liar_topic(way));
    return x;
}

void dlx_test_scene_end(struct dlx_test_scene *x)
{
    while (x->first < x->n_batch)
        dlx_message_unref(x->batch[x->first++]);
    dlx_subscription_unref(x->s);
    dlx_publisher_unref(x->honest);
    dlx_publisher_unref(x->liar);
    dlx_client_unref(x->c);
}

static int take_batch(struct dlx_test_scene *x, int64_t timeout_ns, struct dlx_message **ret)
{
    if (x->first == x->n_batch) {
        x->first = x->n_batch = 0;
        int r = dlx_take_n(x->s, DLX_ARRAY_SIZE(x->batch), timeout_ns, x->batch, &x->n_batch);
        if (r < 0)
            return r;
    }
    *ret = x->batch[x->first++];
    return 0;
}

static int poll_and_take(struct dlx_test_scene *x, int64_t timeout_ns, struct dlx_message **ret)
{
    uint64_t start = dlx__now_ns();
    int r = dlx_take(x->s, 0, ret);
    while (r == DLX_E_EMPTY && dlx__now_ns() - start < (uint64_t)timeout_ns) {
        struct pollfd pfd = {.fd = dlx_subscription_fd(x->s), .events = POLLIN};
        ck_assert_int_ge(poll(&pfd, 1, (int)(timeout_ns / 1000000)), 0);
        r = dlx_take(x->s, 0, ret);
    }
    return r;
}

int dlx_test_scene_take(struct dlx_test_scene *x, int64_t timeout_ns, struct dlx_message **ret)
{
    uint64_t start = dlx__now_ns();
    int r = x->way == BATCHES   ? take_batch(x, timeout_ns, ret)
            : x->way == POLLING ? poll_and_take(x, timeout_ns, ret)
                                : dlx_take(x->s, timeout_ns, ret);
    ck_assert_msg(dlx_test_ends_in_time(start, timeout_ns), "a take of %.3f s took %.3f s",
                  (double)timeout_ns / 1e9, (double)(dlx__now_ns() - start) / 1e9);
    if (r == DLX_E_BAD_PEER) {
        dlx_test_liar_check_names(x->pid);
        x->told = true;
    }
    return r;
}

void dlx_test_scene_touch(struct dlx_message *m)
{
    for (uint32_t i = 0; i < dlx_message_n_tensors(m); i++) {
        DLManagedTensorVersioned *managed = NULL;
        ok(dlx_message_tensor(m, i, &managed));
        const DLTensor *t = &managed->dl_tensor;
        volatile const uint8_t *data = t->data;
        int64_t last = 0;
        bool none = !data;
        for (int32_t k = 0; k < t->ndim; k++) {
            none |= t->shape[k] == 0;
            last += (t->shape[k] - 1) * t->strides[k];
        }
        if (!none) {
            (void)data[0];
            (void)data[last * t->dtype.bits * t->dtype.lanes / 8];
        }
        managed->deleter(managed);
    }
    dlx_message_unref(m);
}

bool dlx_test_scene_honest_goes_on(struct dlx_test_scene *x)
{
    struct dlx_message *m = NULL;
    uint64_t start = dlx__now_ns();
    bool told = false;
    ok(dlx_publish(x->honest, dlx_test_stream_alloc(x->honest, 4, ++x->published),
                   PUBLISH(.timeout_ns = PATIENCE), NULL));
    for (;;) {
        int r = dlx_test_scene_take(x, SECOND, &m);
        ck_assert_msg(dlx_test_ends_in_time(start, PATIENCE), "message %d did not come",
                      (int)x->published);
        told |= r == DLX_E_BAD_PEER;
        if (r == DLX_E_BAD_PEER || r == DLX_E_EMPTY || r == DLX_E_TIMEOUT)
            continue;
        ok(r);
        if (dlx_message_publisher(m) == x->honest->id)
            break;
        dlx_test_scene_touch(m);
    }
    dlx_test_stream_check(m, 4, x->published);
    ck_assert_uint_eq(dlx_message_gap(m), 0);
    dlx_message_unref(m);
    return told;
}

bool dlx_test_scene_honest_goes_on_for(struct dlx_test_scene *x, int n)
{
    bool told = false;
    for (int i = 0; i < n; i++)
        told |= dlx_test_scene_honest_goes_on(x);
    return told;
}

struct dlx_shm_control *dlx_test_control_of(struct dlx_publisher *p)
{
    return p->core.block->control;
}

dlx_atomic_u64 *dlx_test_gen_of(struct dlx_publisher *p, uint64_t n)
{
    return &dlx_test_control_of(p)->entries[n & p->core.block->mask].gen;
}

struct dlx_block *dlx_test_scene_begin_lie(struct dlx_publisher *p,
                                           uint64_t words[DLX_SHM_ENTRY_WORDS])
{
    const int64_t shape[2] = {16, 16};
    struct dlx_block *block = NULL;
    ck_assert_int_eq(dlx__publisher_block(p, 256, &block), 0);
    if (!dlx__writer_has_room(&p->core))
        ck_assert_int_eq(dlx__writer_make_room(&p->core), 0);
    words[0] = 0;
    ck_assert(dlx__entry_pack_tensor(words, dlx__block_arena_id(block), block->offset,
                                     (DLDataType){kDLUInt, 8, 1}, false, 2, shape));
    return block;
}

void *dlx_test_scribble(void *userdata)
{
    struct dlx_test_scribbler *x = userdata;
    static const uint64_t values[] = {0, 1, 2, UINT32_MAX, UINT64_MAX, INT64_MAX, 1 << 20, 63};
    while (!atomic_load(&x->stop)) {
        uint64_t r = dlx_test_random(&x->seed) >> 8;
        uint64_t value = r & 64 ? values[r % DLX_ARRAY_SIZE(values)] : dlx_test_random(&x->seed);
        __atomic_store_n(&x->words[(r >> 8) % x->n_words], value, __ATOMIC_RELAXED);
        atomic_fetch_add(&x->rounds, 1);
    }
    return NULL;
}

void dlx_test_scene_while(struct dlx_test_scene *x, void *(*thread)(void *),
                          struct dlx_test_scribbler *scribbler, int n)
{
    pthread_t id = dlx_test_stream_thread(thread, scribbler);
    while (atomic_load(&scribbler->rounds) < 1000)
        continue;
    (void)dlx_test_scene_honest_goes_on_for(x, n);
    atomic_store(&scribbler->stop, true);
    ck_assert_int_eq(pthread_join(id, NULL), 0);
}
