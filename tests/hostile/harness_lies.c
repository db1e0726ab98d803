/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/hostile/harness_lies.h"
#include "ring/entry.h"
#include "tests/harness/random.h"
#include <stdio.h>
#include <string.h>

struct dlx_test_scene dlx_test_scene_make_for(enum dlx_test_way way)
{
    struct dlx_test_scene x = {.way = way, .c = dlx_test_stream_connect()};
    const struct dlx_publisher_args pa = {
        .size = sizeof pa, .on_full = way == RELIABLE ? DLX_ON_FULL_BLOCK : DLX_ON_FULL_DROP};
    const struct dlx_subscribe_args sa = {.size = sizeof sa,
                                          .mode = way == LATEST ? DLX_MODE_LATEST : DLX_MODE_ALL,
                                          .reliable = way == RELIABLE};
    ok(dlx_publisher_new(x.c, "test/a", &pa, &x.honest));
    ok(dlx_publisher_new(x.c, "test/a", &pa, &x.liar));
    ok(dlx_subscribe(x.c, "test/a", &sa, &x.s));
    return x;
}

struct dlx_test_scene dlx_test_scene_make(void)
{
    return dlx_test_scene_make_for(ONE);
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

int dlx_test_scene_take(struct dlx_test_scene *x, int64_t timeout_ns, struct dlx_message **ret)
{
    if (x->way != BATCHES)
        return dlx_take(x->s, timeout_ns, ret);
    if (x->first == x->n_batch) {
        x->first = x->n_batch = 0;
        int r = dlx_take_n(x->s, timeout_ns, x->batch, DLX_ARRAY_SIZE(x->batch), &x->n_batch);
        if (r < 0)
            return r;
    }
    *ret = x->batch[x->first++];
    return 0;
}

void dlx_test_scene_touch(struct dlx_message *m)
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

bool dlx_test_scene_honest_goes_on(struct dlx_test_scene *x)
{
    bool told = false;
    struct dlx_message *m = NULL;
    dlx_test_stream_publish(x->honest, 4, ++x->published);
    for (;;) {
        int r = dlx_test_scene_take(x, PATIENCE, &m);
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
        dlx_test_scene_touch(m);
    }
    dlx_test_stream_check(m, 4, x->published);
    dlx_message_unref(m);
    return told;
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
