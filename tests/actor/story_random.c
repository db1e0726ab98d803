/* SPDX-License-Identifier: Apache-2.0 */

/* Threads of publishers, subscriptions and getters, all chosen by a seed, that live for a while and
 * are followed by others (tests/soak). */

#include "tests/actor/actor.h"
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>

#define THREADS_MAX    6
#define N_KEPT         3
#define TAKEN_MAX      20
#define SIZE_MAX_BYTES (UINT64_C(16) << 20)
#define HELD_BYTES_MAX (UINT64_C(40) << 20)
#define BYTES_A_SECOND (UINT64_C(64) << 20)
#define DRAIN_NS       (60 * ACTOR_SECOND)

/* ---- a publisher's life ---------------------------------------------------------------------- */

/* How large its messages are, and how often they come. */
static const struct {
    uint64_t most;
    uint32_t history_max;
    uint32_t pause_us;
} classes[] = {
    {64, 256, 300},
    {4096, 64, 500},
    {1 << 18, 16, 3000},
    {2 << 20, 8, 20000},
    {SIZE_MAX_BYTES, 3, 60000},
};

struct author {
    struct actor_part *part;
    struct actor_publisher out;
    uint64_t size_max, pause_us;
    struct actor_draft kept; /* its tensors are shared with messages */
    uint64_t kept_uses;
};

static uint64_t a_size(struct author *a)
{
    return actor_once_in(a->part, 8) ? a->size_max : actor_random_log(a->part, a->size_max);
}

static int64_t a_timeout(struct author *a)
{
    return actor_once_in(a->part, 4) ? 0 : 50 * ACTOR_MS;
}

static bool add(struct author *a, struct actor_draft *draft, uint64_t size, const char *name)
{
    return actor_draft_add(&a->out, draft, size, actor_once_in(a->part, 3), name);
}

static void one_tensor(struct author *a)
{
    struct actor_draft draft = actor_draft_begin(&a->out, 0);
    if (add(a, &draft, a_size(a), NULL))
        (void)actor_publish(&a->out, &draft, a_timeout(a));
}

static void batch_of_messages(struct author *a)
{
    struct actor_draft drafts[ACTOR_BATCH_MAX];
    uint32_t n = 2 + (uint32_t)actor_random(a->part, ACTOR_BATCH_MAX - 1), made = 0;
    for (; made < n; made++) {
        drafts[made] = actor_draft_begin(&a->out, made);
        if (!add(a, &drafts[made], a_size(a) / n, NULL))
            break;
    }
    if (made > 0)
        actor_publish_batch(&a->out, drafts, made, a_timeout(a));
}

static void empty_tensor(struct author *a)
{
    struct actor_draft draft = actor_draft_begin(&a->out, 0);
    const int64_t shape[3] = {0, (int64_t)draft.header.key, (int64_t)draft.header.seq};
    draft.items[0].tensor = actor_alloc(&a->out, shape, 3);
    draft.header.n_tensors = 1;
    if (draft.items[0].tensor)
        (void)actor_publish(&a->out, &draft, a_timeout(a));
}

static void set_of_tensors(struct author *a)
{
    struct actor_draft draft = actor_draft_begin(&a->out, 0);
    char names[ACTOR_TENSORS][16];
    uint64_t n = 1 + actor_random(a->part, ACTOR_TENSORS);
    draft.is_set = true;
    for (uint64_t i = 0; i < n; i++) {
        (void)snprintf(names[i], sizeof names[i], "tensor %u", (unsigned)i);
        if (!add(a, &draft, a_size(a) / n, names[i])) {
            actor_draft_drop(&draft);
            return;
        }
    }
    (void)actor_publish(&a->out, &draft, a_timeout(a));
}

static void drop_kept(struct author *a)
{
    a->kept.share = false;
    actor_draft_drop(&a->kept);
    a->kept.header.n_tensors = 0;
}

/* The same tensors in message after message. */
static void shared_tensors(struct author *a)
{
    struct actor_draft next = actor_draft_begin(&a->out, 0);
    if (a->kept_uses == 0 || a->kept.header.n_tensors < N_KEPT) {
        drop_kept(a);
        a->kept = next;
        a->kept.is_set = true;
        a->kept_uses = 1 + actor_random(a->part, 10);
        while (a->kept.header.n_tensors < N_KEPT)
            if (!actor_draft_add(&a->out, &a->kept, a_size(a) / N_KEPT, false, NULL))
                return;
    }
    a->kept.header.seq = next.header.seq;
    a->kept.header.prev_ns = next.header.prev_ns;
    a->kept.share = true;
    a->kept_uses -= actor_publish(&a->out, &a->kept, a_timeout(a));
}

static void (*const ways[])(struct author *) = {
    empty_tensor, set_of_tensors, set_of_tensors, shared_tensors,    one_tensor,
    one_tensor,   one_tensor,     one_tensor,     batch_of_messages,
};

static bool announce(struct author *a)
{
    const uint64_t depth_max = 600; /* its ring has more than the fewest entries */
    struct actor_part *part = a->part;
    struct actor_object *o = part->object;
    size_t class = actor_random(part, sizeof classes / sizeof *classes);
    struct dlx_publisher_args args = {.size = sizeof args};
    bool blocks = actor_once_in(part, 2), works = actor_once_in(part, 3);
    a->size_max = classes[class].most;
    a->pause_us = actor_once_in(part, 4) ? 0 : actor_random(part, classes[class].pause_us * 2);
    (void)snprintf(o->topic, sizeof o->topic, "soak/%s/%u", blocks ? "block" : "drop",
                   (unsigned)actor_random(part, 5));
    args.on_full = blocks ? DLX_ON_FULL_BLOCK : DLX_ON_FULL_DROP;
    args.history = 1 + (uint32_t)actor_random(part, classes[class].history_max);
    if (actor_once_in(part, 2))
        args.depth = 1 + (uint32_t)actor_random_log(part, depth_max);
    if (actor_once_in(part, 3)) {
        args.retain = 1 + (uint32_t)actor_random(part, args.history);
        args.retain_for_ns = actor_once_in(part, 3) ? DLX_RETAIN_LATCHED
                             : actor_once_in(part, 2)
                                 ? (int64_t)actor_random(part, 4000) * ACTOR_MS + 1
                                 : 0;
    }
    if (works)
        actor_choose_groups(part, &args);
    return actor_announce(&a->out, &args);
}

static void publish(struct actor_part *part)
{
    struct author a = {.part = part, .out = {.part = part}};
    struct actor_object *o = part->object;
    if (!announce(&a))
        return;
    while (actor_goes_on(part)) {
        uint64_t before = o->bytes;
        ways[actor_random(part, sizeof ways / sizeof *ways)](&a);
        uint64_t ns = (o->bytes - before) * 1000000000 / BYTES_A_SECOND;
        ns += a.pause_us > 0 ? actor_random(part, a.pause_us * 1000) : 0;
        if (actor_once_in(part, 2000))
            ns += actor_random(part, 500) * (uint64_t)ACTOR_MS;
        if (ns > 50000)
            actor_sleep_ns(ns);
    }
    if (actor_once_in(part, 2)) /* tensors may go before or after their publisher */
        drop_kept(&a);
    actor_withdraw(&a.out);
    drop_kept(&a);
}

/* ---- a subscription's life ------------------------------------------------------------------- */

struct reader {
    struct actor_part *part;
    struct actor_subscriber in;
    struct dlx_subscribe_args args;
    bool polls;
    uint64_t pause_us;
    uint64_t keep_one_in; /* messages */
};

static void choose_topic(struct actor_part *part, bool blocks)
{
    const char *kind = blocks ? "block" : "drop";
    char *text = part->object->topic;
    const size_t size = sizeof part->object->topic;
    switch (actor_random(part, 6)) {
    case 0:
        (void)snprintf(text, size, "soak/%s/*", kind);
        break;
    case 1:
        (void)snprintf(text, size, blocks ? "soak/block/**" : "soak/**");
        break;
    default:
        (void)snprintf(text, size, "soak/%s/%u", kind, (unsigned)actor_random(part, 5));
    }
}

static void release_due(struct reader *r)
{
    uint64_t now = actor_now_ns();
    for (uint32_t i = r->in.n_held; i-- > 0;)
        if (r->in.held[i].until_ns <= now)
            actor_release(&r->in, i);
}

static void keep_or_drop(struct reader *r, struct dlx_message *m)
{
    uint32_t max = r->args.max_held;
    uint32_t most = max > 0 && max < ACTOR_HELD_MAX ? max : 16;
    if (r->in.n_held < most && r->in.held_bytes + actor_bytes(m) <= HELD_BYTES_MAX &&
        actor_once_in(r->part, r->keep_one_in))
        actor_hold(&r->in, m, actor_now_ns() + actor_random_log(r->part, 800) * (uint64_t)ACTOR_MS,
                   actor_once_in(r->part, 2));
    else
        dlx_message_unref(m);
}

/* Take one, or several; false: nothing came. */
static bool take(struct reader *r, int64_t timeout_ns)
{
    struct dlx_message *taken[TAKEN_MAX];
    uint32_t n = 1;
    int64_t at_once = r->polls ? 0 : timeout_ns;
    int code = actor_once_in(r->part, 4)
                   ? dlx_take_n(r->in.s, 1 + (uint32_t)actor_random(r->part, TAKEN_MAX), at_once,
                                taken, &n)
                   : dlx_take(r->in.s, at_once, &taken[0]);
    if (code == 0) {
        for (uint32_t i = 0; i < n; i++)
            actor_take_in(&r->in, taken[i]);
        for (uint32_t i = 0; i < n; i++)
            keep_or_drop(r, taken[i]);
        return true;
    }
    if (code == DLX_E_TOO_MANY_HELD) {
        if (r->in.n_held == 0)
            actor_fault("topic %s: nothing is held, but: %s", r->part->object->topic, dlx_errmsg());
        actor_release(&r->in, (uint32_t)actor_random(r->part, r->in.n_held));
        return true;
    }
    if (code == DLX_E_EMPTY && r->polls) {
        struct pollfd p = {.fd = dlx_subscription_fd(r->in.s), .events = POLLIN};
        (void)poll(&p, 1, (int)(timeout_ns / ACTOR_MS));
    } else {
        actor_error(r->part->object, code, "dlx_take");
    }
    return false;
}

static void choose(struct reader *r)
{
    struct actor_part *part = r->part;
    static const int64_t spins[] = {0, 0, 0, DLX_SPIN_NEVER, DLX_SPIN_NEVER, 100000};
    bool blocks = actor_once_in(part, 2);
    r->args = (struct dlx_subscribe_args){.size = sizeof r->args};
    r->args.reliable = blocks && !actor_once_in(part, 3);
    r->args.mode = !r->args.reliable && actor_once_in(part, 4) ? DLX_MODE_LATEST : DLX_MODE_ALL;
    r->args.history = actor_once_in(part, 2)   ? 0
                      : actor_once_in(part, 3) ? DLX_HISTORY_NONE
                                               : 1 + (uint32_t)actor_random(part, 20);
    r->args.max_held = actor_once_in(part, 2) ? 0 : 1 + (uint32_t)actor_random(part, 100);
    r->args.spin_ns = spins[actor_random(part, sizeof spins / sizeof *spins)];
    r->polls = actor_once_in(part, 3);
    r->keep_one_in = 1 + actor_random(part, 20);
    r->pause_us = actor_once_in(part, 4) ? actor_random(part, 20000) : 0;
    choose_topic(part, blocks);
}

/* All publishers close: until none is there any more, and everything was taken. */
static void drain(struct reader *r)
{
    const struct actor_object *o = r->part->object;
    uint64_t end = actor_now_ns() + DRAIN_NS;
    for (unsigned quiet = 0; quiet < 10 && atomic_load(&actor.phase) < ACTOR_END;) {
        actor_release_all(&r->in);
        bool came = take(r, 20 * ACTOR_MS);
        actor_read_events(&r->in);
        struct dlx_subscription_stats stats = actor_stats(&r->in);
        bool is_quiet =
            !came && stats.n_publishers == 0 && atomic_load(&actor.phase) >= ACTOR_DRAIN;
        quiet = is_quiet ? quiet + 1 : 0;
        if (quiet == 10)
            r->part->object->state = ACTOR_DRAINED;
        else if (actor_now_ns() > end)
            actor_fault("topic %s, flags %u: %u publishers are still there 60 s after all have "
                        "ended; taken %" PRIu64 ", lost %" PRIu64,
                        o->topic, o->flags, stats.n_publishers, stats.taken, stats.lost);
    }
}

static void subscribe(struct actor_part *part)
{
    struct reader r = {.part = part, .in = {.part = part}};
    choose(&r);
    if (!actor_join(&r.in, &r.args))
        return;
    while (actor_goes_on(part)) {
        (void)take(&r, (int64_t)actor_random_log(part, 50) * ACTOR_MS);
        actor_read_events(&r.in);
        release_due(&r);
        if (r.pause_us > 0)
            actor_sleep_ns(actor_random(part, r.pause_us * 1000));
    }
    if (atomic_load(&actor.phase) != ACTOR_RUN && atomic_load(&actor.phase) != ACTOR_END)
        drain(&r);
    if (actor_once_in(part, 2)) /* what is held may go before or after its subscription */
        actor_release_all(&r.in);
    actor_leave(&r.in);
    actor_release_all(&r.in);
}

static void get(struct actor_part *part)
{
    struct actor_object *o = part->object;
    o->state = ACTOR_ALIVE;
    while (actor_goes_on(part)) {
        struct dlx_message *m;
        choose_topic(part, actor_once_in(part, 2));
        int code = dlx_get(part->client, o->topic, (int64_t)actor_random(part, 50) * ACTOR_MS, &m);
        if (code == 0) {
            actor_check(m, "when it was got");
            actor_sleep_ns(actor_random(part, 30) * (uint64_t)ACTOR_MS);
            actor_check(m, "after it was got");
            o->bytes += actor_bytes(m);
            o->taken++;
            dlx_message_unref(m);
        } else {
            actor_error(o, code, "dlx_get");
        }
        actor_sleep_ns(actor_random(part, 200) * (uint64_t)ACTOR_MS);
    }
    o->state = ACTOR_CLOSED;
}

/* ---- all of it ------------------------------------------------------------------------------- */

struct thread {
    struct actor_part part;
    bool shares; /* the client, with the other threads */
    pthread_t id;
};

static void work(struct actor_part *part)
{
    actor_work(part, ACTOR_GROUPS);
}

/* False: it has done enough. */
static bool play_object(struct actor_part *part)
{
    static const struct {
        enum actor_kind kind;
        void (*live)(struct actor_part *part);
        uint64_t share;
    } lives[] = {{ACTOR_PUBLISHER, publish, 9},  {ACTOR_SUBSCRIPTION, subscribe, 9},
                 {ACTOR_WORKER, work, 5},        {ACTOR_CALLER, actor_make_calls, 5},
                 {ACTOR_SERVER, actor_serve, 4}, {ACTOR_GETTER, get, 1}};
    uint64_t what = actor_random(part, 33), i = 0;
    for (; what >= lives[i].share; i++)
        what -= lives[i].share;
    part->until_ns = actor_now_ns() + (200 + actor_random_log(part, 60000)) * (uint64_t)ACTOR_MS;
    part->object = actor_object_new(lives[i].kind);
    if (part->object)
        lives[i].live(part);
    return part->object != NULL;
}

static void *play(void *userdata)
{
    struct thread *t = userdata;
    while (atomic_load(&actor.phase) == ACTOR_RUN) {
        if (!t->part.client && !(t->part.client = actor_connect()))
            break;
        if (!play_object(&t->part))
            break;
        if (!t->shares && actor_once_in(&t->part, 3))
            t->part.client = dlx_client_unref(t->part.client);
    }
    if (!t->shares)
        dlx_client_unref(t->part.client);
    return NULL;
}

static void on_signal(int number)
{
    int phase = number == SIGUSR1   ? ACTOR_PUBLISHERS_END
                : number == SIGUSR2 ? ACTOR_DRAIN
                                    : ACTOR_END;
    if (phase > atomic_load(&actor.phase))
        atomic_store(&actor.phase, phase);
}

static void listen_to_signals(void)
{
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (size_t i = 0; i < 3; i++)
        (void)sigaction((const int[]){SIGUSR1, SIGUSR2, SIGTERM}[i], &action, NULL);
    (void)sigprocmask(SIG_SETMASK, &action.sa_mask, NULL); /* what came before waits until now */
}

int actor_play_random(uint64_t seed)
{
    struct thread threads[THREADS_MAX];
    struct actor_part chooser = {.random = seed};
    listen_to_signals();
    actor.ledger->head.seed = seed;
    uint64_t n = actor_once_in(&chooser, 3) ? 1 : 1 + actor_random(&chooser, THREADS_MAX);
    struct dlx_client *common = actor_once_in(&chooser, 2) ? actor_connect() : NULL;
    for (uint64_t i = 0; i < n; i++) {
        threads[i] = (struct thread){.part = {.random = seed + (i + 1) * 7919, .client = common},
                                     .shares = common != NULL};
        if (pthread_create(&threads[i].id, NULL, play, &threads[i]) != 0)
            actor_fault("pthread_create");
    }
    for (uint64_t i = 0; i < n; i++)
        (void)pthread_join(threads[i].id, NULL);
    dlx_client_unref(common);
    return 0;
}

static void *sweep(void *userdata)
{
    struct thread *t = userdata;
    t->part.object = actor_object_new(ACTOR_WORKER);
    actor_work(&t->part, (uint32_t)t->part.random);
    return NULL;
}

int actor_play_sweeper(void)
{
    struct thread threads[ACTOR_GROUPS];
    struct dlx_client *c = actor_connect();
    for (uint32_t i = 0; c && i < ACTOR_GROUPS; i++) {
        threads[i] = (struct thread){.part = {.random = i, .client = c, .until_ns = UINT64_MAX}};
        if (pthread_create(&threads[i].id, NULL, sweep, &threads[i]) != 0)
            actor_fault("pthread_create");
    }
    listen_to_signals();
    for (uint32_t i = 0; c && i < ACTOR_GROUPS; i++)
        (void)pthread_join(threads[i].id, NULL);
    dlx_client_unref(c);
    return 0;
}
