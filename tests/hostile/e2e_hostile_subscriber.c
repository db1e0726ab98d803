/* SPDX-License-Identifier: Apache-2.0 */

/* A subscriber that lies in its link page: cursor, hold words, ticket. */

#include "tests/hostile/harness_liar.h"
#include "tests/hostile/harness_lies.h"

struct cast {
    struct dlx_client *c;
    struct dlx_publisher *p;
    struct dlx_subscription *honest, *liar;
    struct dlx_shm_link *page; /* of the liar */
    int64_t published, taken;
    struct dlx_message *held; /* an older one that the honest subscription holds, of this value */
    int64_t held_value;
};

static struct cast make_cast(void)
{
    struct cast x = {.c = dlx_test_stream_connect()};
    struct dlx_publisher_args pa = {
        .size = sizeof pa, .on_full = DLX_ON_FULL_BLOCK, .history = 2, .depth = 32};
    struct dlx_subscribe_args sa = {.size = sizeof sa, .reliable = true};
    ok(dlx_publisher_new(x.c, "test/a", &pa, &x.p));
    ok(dlx_subscribe(x.c, "test/a", &sa, &x.honest));
    ok(dlx_subscribe(x.c, "test/a", &sa, &x.liar));
    x.page = x.liar->links[0]->page;
    return x;
}

static void end_cast(struct cast *x)
{
    struct dlx_publisher_stats stats = {.size = sizeof stats};
    ok(dlx_publisher_get_stats(x->p, &stats));
    ck_assert_uint_le(stats.n_arenas, 4); /* what it pins is not more than it may hold */
    dlx_message_unref(x->held);
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
        if (x->held)
            dlx_test_stream_check(x->held, 4, x->held_value);
        if (x->taken % 40 != 1) {
            dlx_message_unref(m);
            continue;
        }
        dlx_message_unref(x->held);
        x->held = m;
        x->held_value = x->taken;
    }
}

TEST(a_cursor_that_lies_harms_only_itself)
{
    struct cast x = make_cast();
    static const uint64_t cursors[] = {UINT64_C(1) << 62, 0, 3, UINT64_MAX - 1, 1};
    for (int round = 0; round < 500; round++) {
        dlx_store64_sc(&x.page->cursor, cursors[round % 5]);
        int r = publish_once(&x);
        if (r < 0) { /* it may hold the publisher up, as any reliable subscriber: that is named */
            ck_assert_int_eq(r, DLX_E_TIMEOUT);
            dlx_test_liar_check_names(getpid());
        }
        take_all(&x);
    }
    ck_assert_int_gt(x.published, 60);
    end_cast(&x);
}

/* One that says that it has started, and has passed nothing: it is in the way as any other that
 * takes nothing. */
LOOP_TEST(one_that_starts_without_a_cursor_is_waited_for_and_named, 0, 2)
{
    struct cast x = make_cast();
    dlx_store64_sc(&x.page->cursor, 0);
    dlx_store32_sc(&x.page->started, _i == 0 ? 1 : UINT32_MAX);
    int r = 0;
    for (int round = 0; r == 0 && round < 100; round++) {
        r = publish_once(&x);
        take_all(&x);
    }
    ck_assert_int_eq(r, DLX_E_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(dlx_client_errmsg(NULL), "behind"));
    ck_assert_int_eq(x.published, 32);
    x.liar = dlx_subscription_unref(x.liar);
    for (int round = 0; round < 100; round++) {
        ok(publish_once(&x));
        take_all(&x);
    }
    end_cast(&x);
}

/* ---- lies that hold nobody up: its cursor says that it is not in the way --------------------- */

static void any_holds(struct cast *x, uint64_t round)
{
    for (uint32_t k = 0; k < 16; k++) {
        const uint64_t lies[] = {(uint64_t)x->published, (uint64_t)x->published - k, UINT64_MAX,
                                 round * 1000003};
        dlx_store64_sc(&x->page->hold[k], lies[(round / 16) % 4]);
    }
}

static void any_number_of_holds(struct cast *x, uint64_t round)
{
    static const uint64_t numbers[] = {0,         1, 15, 17, 4096, UINT32_MAX, UINT64_C(1) << 32,
                                       UINT64_MAX};
    dlx_store64_sc(&x->page->n_used, numbers[round % DLX_ARRAY_SIZE(numbers)]);
    dlx_store64_sc(&x->page->hold[round % 16], (uint64_t)x->published + round % 3 * 1000);
}

/* Each costs a byte: more than its socket has room for. */
static void any_ticket(struct cast *x, uint64_t round)
{
    dlx_store64_sc(dlx_shm_ticket(x->page, x->liar->links[0]->link_index), round * 7);
}

static void (*const lies[])(struct cast *x, uint64_t round) = {any_holds, any_number_of_holds,
                                                               any_ticket};

/* What it pins is no more than it may hold (end_cast), and holding starves no publisher. */
LOOP_TEST(holds_and_tickets_that_lie_harm_only_itself, 0, (int)DLX_ARRAY_SIZE(lies))
{
    struct cast x = make_cast();
    for (uint64_t round = 0; round < 3000; round++) {
        dlx_store64_sc(&x.page->cursor, UINT64_C(1) << 62);
        lies[_i](&x, round);
        ok(publish_once(&x));
        take_all(&x);
    }
    end_cast(&x);
}

TEST(a_link_page_that_changes_all_the_time_is_survived)
{
    for (int round = 0; round < 5; round++) {
        struct cast x = make_cast();
        pthread_t thread;
        struct dlx_test_scribbler scribbler = {
            .seed = (uint64_t)(round + 1), .words = (uint64_t *)&x.page->cursor, .n_words = 256};
        ck_assert_int_eq(pthread_create(&thread, NULL, dlx_test_scribble, &scribbler), 0);
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

int main(void)
{
    TCase *tcase = dlx_test_stream_case("hostile_subscriber");
    tcase_set_timeout(tcase, 120);
    return dlx_test_run_case(tcase);
}
