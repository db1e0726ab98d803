/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A lying process against libdlx: whatever it writes into its pages and sockets, and however fast, every call
 * of the honest side ends in its time, names the liar if it must, and other links go on. Each lie is tried
 * on each way to take.
 */

#include "client/publish.h"
#include "client/subscription.h"
#include "tests/harness_fork.h"
#include "tests/harness_stream.h"
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* A call that was given less ends before this, on a busy machine and under a sanitizer. */
#define ENDS_IN_NS (PATIENCE)

/* ---- the liar's process -------------------------------------------------------------------- */

struct liar {
    pid_t pid;
    int sock; /* a byte each way, in turns */
};

static void say(int fd)
{
    ck_assert_int_eq(write(fd, "", 1), 1);
}

static void hear(int fd)
{
    char byte;
    ck_assert_int_eq(read(fd, &byte, 1), 1);
}

/* Fork; the child runs `fn`, which never returns. */
static struct liar spawn(void (*fn)(struct dlx_client *c, int tell, int arg), int arg)
{
    int fds[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    struct liar liar = {.pid = dlx_test_fork(), .sock = fds[0]};
    ck_assert_int_ge(liar.pid, 0);
    if (liar.pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        fn(dlx_test_stream_connect(), fds[1], arg);
        _exit(0);
    }
    close(fds[1]);
    return liar;
}

static void kill_liar(struct liar *liar)
{
    int status = 0;
    ck_assert_int_eq(kill(liar->pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(liar->pid, &status, 0), liar->pid);
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the liar failed: %d",
                  status);
    close(liar->sock);
}

/* The error's words name the liar, not us. */
static void check_names(const struct liar *liar)
{
    char pid[32];
    (void)snprintf(pid, sizeof pid, "pid %d", liar->pid);
    ck_assert_msg(strstr(dlx_client_errmsg(NULL), pid) != NULL, "\"%s\" lacks \"%s\"",
                  dlx_client_errmsg(NULL), pid);
}

static uint64_t next_random(void)
{
    static uint64_t seed = 88172645463325252U;
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* ---- lies of a publisher ------------------------------------------------------------------- */

/* Makes the lie, tells, and never returns. */
typedef void lie_fn(struct dlx_publisher *p, int tell);

static void rest(int tell)
{
    say(tell);
    for (;;)
        pause();
}

/* From several processes, in large pieces: there is always something to read. */
static void storm(int bell, int tell)
{
    static const char bytes[32768];
    for (int i = 0; i < 3; i++) {
        pid_t parent = getpid();
        if (dlx_test_fork() == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            while (getppid() == parent)
                (void)!send(bell, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
            _exit(0);
        }
    }
    rest(tell);
}

static void break_ring(struct dlx_publisher *p)
{
    for (uint32_t i = 0; i <= p->core.block->ring_mask; i++)
        dlx_store32_relaxed(&p->core.block->ring[i], UINT32_MAX - i);
    dlx_store64_relaxed(&p->control->brief[0], UINT64_MAX);
}

static void head_far(struct dlx_publisher *p, int tell)
{
    dlx_store64_sc(&p->control->head, UINT64_C(1) << 62);
    rest(tell);
}

static void head_last(struct dlx_publisher *p, int tell)
{
    dlx_store64_sc(&p->control->head, UINT64_MAX - 1);
    rest(tell);
}

static void head_back(struct dlx_publisher *p, int tell)
{
    dlx_store64_sc(&p->control->head, 1);
    rest(tell);
}

static void head_runs(struct dlx_publisher *p, int tell)
{
    break_ring(p);
    say(tell);
    for (uint64_t head = p->core.head;;)
        dlx_store64_sc(&p->control->head, ++head);
}

static void gens_wrong(struct dlx_publisher *p, int tell)
{
    for (int64_t i = 0; i < 4; i++)
        dlx_test_stream_publish(p, 4, i);
    for (uint32_t i = 0; i < p->core.n_slots; i++)
        dlx_store64_sc(&p->core.slots[i].gen, next_random());
    dlx_store64_sc(&p->control->brief[0], next_random());
    rest(tell);
}

static void state_unknown(struct dlx_publisher *p, int tell)
{
    dlx_store32_sc(&p->control->state, 77);
    rest(tell);
}

static void closed_but_goes_on(struct dlx_publisher *p, int tell)
{
    dlx_store32_sc(&p->control->state, DLX_SHM_STATE_CLOSED);
    say(tell);
    for (int64_t i = 0;; i++) {
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 4, i);
        if (dlx_publish(p, t, NULL) < 0)
            t->deleter(t);
    }
}

/* The newest message lies in an arena that nobody announced, and others wait behind it. */
static void arena_unknown(struct dlx_publisher *p, int tell)
{
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 4, 0);
    for (uint32_t i = 0; i < p->core.n_slots; i++)
        p->core.slots[i].record.arena = 77;
    uint32_t slot;
    ck_assert_int_eq(dlx__pub_slot(&p->core, &slot), 0);
    struct dlx_shm_slot *lie = &p->core.slots[slot];
    *lie = (struct dlx_shm_slot){.n_tensors = 1,
                                 .record = {.arena = 77,
                                            .dtype_code = kDLInt,
                                            .dtype_bits = 64,
                                            .dtype_lanes = 1,
                                            .device_type = kDLCPU,
                                            .ndim = 1,
                                            .flags = DLX_SHM_RECORD_ROW_MAJOR,
                                            .size = 32},
                                 .shape = {4}};
    (void)dlx__pub_commit(&p->core, slot, NULL);
    for (int i = 0; i < 3; i++) {
        if (i == 0)
            ok(dlx_publish(p, t, NULL));
        else
            dlx_test_stream_publish(p, 4, i);
    }
    rest(tell);
}

static void blocked_always(struct dlx_publisher *p, int tell)
{
    say(tell);
    for (int64_t i = 0;; i++) {
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 4, i);
        if (dlx_publish(p, t, NULL) < 0)
            t->deleter(t);
        dlx_store32_sc(&p->control->blocked, UINT32_MAX);
    }
}

static void rings_always(struct dlx_publisher *p, int tell)
{
    const struct dlx_outlet *outlet =
        (const struct dlx_outlet *)(const void *)((const char *)p->core.links[0] -
                                                  offsetof(struct dlx_outlet, core));
    storm(outlet->bell, tell);
}

/* More dimensions than fit in a slot: the message has a manifest, which changes while it is read. */
static void manifest_flips(struct dlx_publisher *p, int tell)
{
    static const int64_t shape[9] = {1, 1, 1, 1, 1, 1, 2, 2, 2};
    struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLInt, 64, 1}, .ndim = 9, .shape = shape};
    say(tell);
    for (;;) {
        DLManagedTensorVersioned *t = NULL;
        ok(dlx_alloc(p, &spec, &t));
        if (dlx_publish(p, t, NULL) < 0)
            t->deleter(t);
        for (uint32_t i = 0; i < p->core.n_slots; i++) {
            const struct dlx_block *block = p->core.block->payloads[i];
            if (!block || !block->next)
                continue;
            uint64_t *words = dlx__block_data(block->next);
            for (int k = 0; k < 8; k++) {
                uint64_t r = next_random();
                words[r % 24] = r & (1U << 20) ? r >> 24 : r >> 58;
            }
        }
    }
}

/* A manifest of so many tensors of one byte that claims to have `size` bytes, in which all have one name, and one shape. */
static void publish_manifest(struct dlx_publisher *p, uint32_t n, uint32_t name_size, uint32_t ndim,
                             uint64_t size)
{
    uint32_t slot;
    struct dlx_block *block;
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
    ck_assert_int_eq(dlx__pub_slot(&p->core, &slot), 0);
    dlx__publish_fill_manifest(&p->core.slots[slot], block, n, 0);
    p->core.slots[slot].manifest_size = size;
    (void)dlx__pub_commit(&p->core, slot, NULL);
}

static void manifest_huge(struct dlx_publisher *p, int tell)
{
    publish_manifest(p, 1, 0, 0, 1 << 20);
    rest(tell);
}

/* Each entry is inside the manifest, but together they need more than it has. */
static void names_shared(struct dlx_publisher *p, int tell)
{
    publish_manifest(p, 32, 1000, 0, 9192);
    rest(tell);
}

static void dimensions_shared(struct dlx_publisher *p, int tell)
{
    publish_manifest(p, 32, 0, 64, 8192);
    rest(tell);
}

static const struct {
    const char *name;
    lie_fn *lie;
    bool told; /* ends in BAD_PEER, whatever the way to take */
} lies[] = {
    {"head far away", head_far, false},
    {"head at its last value", head_last, false},
    {"head going back", head_back, true},
    {"head running away", head_runs, false},
    {"gens of nobody", gens_wrong, false},
    {"unknown state", state_unknown, false},
    {"closed, but goes on", closed_but_goes_on, false},
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
    struct dlx_publisher *p = NULL;
    dlx_set_debug(false); /* it writes where that forbids it */
    ok(dlx_publisher_new(c, "test/a", &pa, &p));
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    for (int64_t i = 0; i < 3; i++)
        ok(dlx_publish(p, dlx_test_stream_alloc(p, 4, i), &args));
    hear(tell);
    lies[arg].lie(p, tell);
}

/* ---- an honest subscriber ------------------------------------------------------------------ */

enum way { EVERY, RELIABLE, LATEST, SPINNING, POLLING, N_WAYS };

struct scene {
    struct dlx_client *c;
    struct dlx_publisher *honest;
    struct dlx_subscription *s;
    struct liar liar;
    enum way way;
    int64_t published; /* by the honest one */
    bool told;
};

static bool ends_in_time(uint64_t start, int64_t timeout_ns)
{
    return dlx__now_ns() - start < (uint64_t)(timeout_ns + ENDS_IN_NS);
}

/* Take, and see that it comes back. EMPTY and TIMEOUT are both EMPTY here. */
static int take_in_time(struct scene *x, int64_t timeout_ns, struct dlx_message **ret)
{
    uint64_t start = dlx__now_ns();
    int r = dlx_take(x->s, x->way == POLLING ? 0 : timeout_ns, ret);
    while (x->way == POLLING && r == DLX_E_EMPTY && dlx__now_ns() - start < (uint64_t)timeout_ns) {
        struct pollfd pfd = {.fd = dlx_subscription_fd(x->s), .events = POLLIN};
        ck_assert_int_ge(poll(&pfd, 1, (int)(timeout_ns / 1000000)), 0);
        r = dlx_take(x->s, 0, ret);
    }
    ck_assert_msg(ends_in_time(start, timeout_ns), "a take of %.3f s took %.3f s",
                  (double)timeout_ns / 1e9, (double)(dlx__now_ns() - start) / 1e9);
    if (r == DLX_E_BAD_PEER) {
        check_names(&x->liar);
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
        ck_assert_msg(ends_in_time(start, PATIENCE), "message %d did not come", (int)x->published);
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

START_TEST(a_publisher_that_lies_holds_nobody_up)
{
    int lie = _i / N_WAYS;
    struct scene x = make_scene((enum way)(_i % N_WAYS));
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    struct dlx_message *m = NULL;
    x.liar = spawn(lying_publisher, lie);
    /* What it published before it began to lie. */
    for (uint64_t seq = 0; seq < 3;) {
        int r = take_in_time(&x, SECOND, &m);
        ck_assert_msg(r == 0, "%d %s", r, dlx_client_errmsg(NULL));
        seq = dlx_message_seq(m);
        touch(m);
    }
    honest_goes_on(&x);
    say(x.liar.sock);
    hear(x.liar.sock); /* now it lies */
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
    ok(dlx_subscription_get_stats(x.s, &stats));
    ck_assert_uint_eq(stats.rejected, x.told);
    kill_liar(&x.liar);
    /* What it published is drained, or given up, and its link goes. */
    uint64_t start = dlx__now_ns();
    do {
        ck_assert(ends_in_time(start, 0));
        if (take_in_time(&x, SECOND / 100, &m) == 0)
            touch(m);
        ok(dlx_subscription_get_stats(x.s, &stats));
    } while (stats.n_publishers > 1);
    ck_assert_uint_le(stats.rejected, 1);
    ck_assert_uint_eq(stats.n_held, 0);
    for (int i = 0; i < 10; i++)
        honest_goes_on(&x);
    dlx_subscription_unref(x.s);
    dlx_publisher_unref(x.honest);
    dlx_client_unref(x.c);
}
END_TEST

/* ---- lies of a subscriber ------------------------------------------------------------------ */

static void sleeps(struct dlx_inlet *inlet, int tell)
{
    (void)inlet;
    rest(tell);
}

static void rings_publisher(struct dlx_inlet *inlet, int tell)
{
    storm(inlet->bell, tell);
}

static void holds_what_it_likes(struct dlx_inlet *inlet, int tell)
{
    say(tell);
    for (uint64_t i = 0;; i++)
        dlx_store64_sc(&inlet->page->hold[i % inlet->max_held], next_random() % 64);
}

static void raises_its_ticket(struct dlx_inlet *inlet, int tell)
{
    say(tell);
    for (;;)
        dlx_store64_sc(inlet->core.ticket, next_random());
}

/* Every value is a good one, and none is true. */
static void hangs_up_but_stays(struct dlx_inlet *inlet, int tell)
{
    shutdown(inlet->bell, SHUT_RDWR);
    rest(tell);
}

static const struct {
    const char *name;
    void (*lie)(struct dlx_inlet *inlet, int tell);
} sub_lies[] = {
    {"never takes", sleeps},
    {"always ringing", rings_publisher},
    {"changing holds", holds_what_it_likes},
    {"changing ticket", raises_its_ticket},
    {"hung up, but lives", hangs_up_but_stays},
};

static void lying_subscriber(struct dlx_client *c, int tell, int arg)
{
    struct dlx_subscribe_args sa = {.size = sizeof sa, .reliable = true};
    struct dlx_subscription *s = NULL;
    ok(dlx_subscribe(c, "test/a", &sa, &s));
    sub_lies[arg].lie(s->inlets[0], tell);
}

START_TEST(a_subscriber_that_lies_holds_a_publisher_no_longer_than_asked)
{
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_publisher_args pa = {
        .size = sizeof pa, .on_full = DLX_ON_FULL_BLOCK, .history = 2, .n_slots = 40};
    struct dlx_subscribe_args sa = {.size = sizeof sa, .reliable = true};
    struct dlx_publish_args args = {.size = sizeof args, .timeout_ns = SECOND / 20};
    struct dlx_publisher *p = NULL;
    struct dlx_subscription *s = NULL;
    struct dlx_message *m = NULL;
    int64_t published = 0, n_timeouts = 0;
    ok(dlx_publisher_new(c, "test/a", &pa, &p));
    ok(dlx_subscribe(c, "test/a", &sa, &s));
    struct liar liar = spawn(lying_subscriber, _i);
    hear(liar.sock);
    /* It passes nothing, so that after 40 messages it is in the way: that is its right for as long as we
     * wait, and no longer. */
    for (int round = 0; round < 60 && n_timeouts < 15; round++) {
        DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 4, published + 1);
        uint64_t start = dlx__now_ns();
        int r = dlx_publish(p, t, &args);
        ck_assert_msg(ends_in_time(start, args.timeout_ns), "%s: a publish of 0.05 s took %.3f s",
                      sub_lies[_i].name, (double)(dlx__now_ns() - start) / 1e9);
        if (r == 0) {
            published++;
            ok(dlx_take(s, PATIENCE, &m));
            dlx_test_stream_check(m, 4, published);
            ck_assert_uint_eq(dlx_message_gap(m), 0);
            dlx_message_unref(m);
            continue;
        }
        ck_assert_int_eq(r, DLX_E_TIMEOUT);
        check_names(&liar);
        n_timeouts++;
        t->deleter(t);
    }
    ck_assert_int_eq(n_timeouts, 15);
    uint64_t start = dlx__now_ns();
    fails(dlx_publisher_wait(p, 3, SECOND / 20), DLX_E_TIMEOUT, "2 of 3 subscribers");
    ck_assert(ends_in_time(start, SECOND / 20));
    kill_liar(&liar);
    for (int i = 0; i < 100; i++) {
        args.timeout_ns = PATIENCE;
        ok(dlx_publish(p, dlx_test_stream_alloc(p, 4, ++published), &args));
        ok(dlx_take(s, PATIENCE, &m));
        dlx_test_stream_check(m, 4, published);
        dlx_message_unref(m);
    }
    dlx_subscription_unref(s);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("hostile_process");
    TCase *tcase = dlx_test_stream_case("hostile_process");
    tcase_set_timeout(tcase, 12);
    tcase_add_loop_test(tcase, a_publisher_that_lies_holds_nobody_up, 0,
                        (int)DLX_ARRAY_SIZE(lies) * N_WAYS);
    tcase_add_loop_test(tcase, a_subscriber_that_lies_holds_a_publisher_no_longer_than_asked, 0,
                        (int)DLX_ARRAY_SIZE(sub_lies));
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
