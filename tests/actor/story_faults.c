/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The story of tests/fail/faults, in which one call fails, or one process is killed or stopped. A
 * call that fails is told and made again: one fault costs at most an error.
 *
 * On faults/main a publisher waits for two subscribers, and publishes LAST messages of many sizes,
 * sets and copies among them. In between it has a second publisher, on faults/side, with a small
 * depth, so that arenas without a use are dropped; its last messages stay with the daemon, are got
 * and dropped. It ends when its standard input does. The subscribers take until the last message of
 * faults/main; b, which is not reliable, leaves and comes back, and holds many.
 */

#include "tests/actor/actor.h"
#include <dirent.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Numbers of messages of faults/main. */
#define LAST_BIG  40  /* until here some are large and arenas are made; then comes faults/side */
#define LEAVE_AT  200 /* b leaves and comes back */
#define HOLD_FROM 220 /* b holds many: the publisher needs more memory */
#define HOLD_MANY 48
#define LAST      400
#define ENCORES   100 /* more last messages, for a subscriber without a daemon meanwhile */
#define LAST_SIDE 160 /* of faults/side */

#define MAIN "faults/main"
#define SIDE "faults/side"

static struct actor_head *head;

/* ---- what both do ---------------------------------------------------------------------------- */

/* Open files and mappings of shared memory of this process, without faults of its own. */
static void add_usage(int sign)
{
    uint64_t fail_count = head->fail_count;
    char line[512];
    head->fail_count = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        head->fds += sign;
    if (d)
        (void)closedir(d);
    FILE *f = fopen("/proc/self/maps", "re");
    while (f && fgets(line, sizeof line, f))
        head->maps += strstr(line, "/memfd:dlx") || strstr(line, "/dev/shm/") ? sign : 0;
    if (f)
        (void)fclose(f);
    head->fail_count = fail_count;
}

/* Between these two marks (a system call that no other code makes) the library is at work. */
void actor_faults_begin(void)
{
    head = &actor.ledger->head;
    actor.injected = true;
    add_usage(-1);
    (void)getppid();
}

int actor_faults_end(void)
{
    (void)getppid();
    add_usage(1);
    return 0;
}

void actor_set_scene(enum actor_scene scene)
{
    atomic_store(&head->scene, scene);
}

struct actor_part actor_part_of(struct dlx_client *c, enum actor_kind kind, const char *topic)
{
    struct actor_part part = {
        .client = c, .object = actor_object_new(kind), .until_ns = UINT64_MAX};
    if (!part.object)
        actor_fault("more than %d publishers and subscriptions", ACTOR_OBJECTS);
    part.random = part.object->key;
    (void)snprintf(part.object->topic, sizeof part.object->topic, "%s", topic);
    return part;
}

/* ---- the publisher --------------------------------------------------------------------------- */

static uint64_t size_of(uint64_t i, uint64_t k)
{
    if (i <= LAST_BIG && k == 0 && i % 10 == 4)
        return 1200000;
    if (i <= LAST_BIG && i % 5 == 2)
        return 72000;
    return 8 * ((i * 7 + k) % 40);
}

static void publish(struct actor_publisher *p, uint64_t i)
{
    static const char *const names[] = {"first", "second", "third"};
    struct actor_draft draft = actor_draft_begin(p, 0);
    draft.is_set = i % 11 == 5 || i >= LAST;
    draft.header.is_last = i >= LAST;
    for (uint64_t k = 0, n = draft.is_set ? 3 : 1; k < n; k++) {
        uint64_t size = size_of(i, k);
        while (!actor_draft_add(p, &draft, size, i % 7 == 3 && size < 1000, names[k]))
            ;
    }
    (void)actor_publish(p, &draft, 10 * ACTOR_SECOND);
}

bool actor_input_has_ended(int timeout_ms)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&in, 1, timeout_ms) == 1;
}

/* Returns false when no subscriber needs the message any more. */
static bool wait_for_subscribers(struct actor_publisher *p)
{
    int r;
    actor_set_scene(ACTOR_WAITING);
    while ((r = dlx_publisher_wait(p->p, (uint32_t)atomic_load(&head->wanted), ACTOR_SECOND / 20)) <
           0) {
        if (r != DLX_E_TIMEOUT)
            actor_error(p->part->object, r, "dlx_publisher_wait");
        if (actor_input_has_ended(0))
            return false;
    }
    actor_set_scene(ACTOR_STREAMING);
    return true;
}

/* B leaves and comes back about now: three have joined then. B may be unable to. */
static void wait_for_b(struct actor_publisher *p)
{
    struct dlx_event event = {.size = sizeof event};
    uint64_t until = actor_now_ns() + ACTOR_SECOND / 5;
    unsigned joined = 0;
    actor_set_scene(ACTOR_WAITING);
    while (joined < 3 && actor_now_ns() < until) {
        while (dlx_publisher_next_event(p->p, &event) == 0)
            joined += event.kind == DLX_EVENT_JOINED;
        if (joined < 3)
            (void)dlx_publisher_wait(p->p, UINT32_MAX, ACTOR_SECOND / 200);
    }
    actor_set_scene(ACTOR_STREAMING);
}

static uint32_t n_arenas(struct actor_publisher *p)
{
    struct dlx_publisher_stats stats = {.size = sizeof stats};
    if (dlx_publisher_get_stats(p->p, &stats) < 0)
        actor_fault("dlx_publisher_get_stats: %s", dlx_errmsg());
    return stats.n_arenas;
}

/* The daemon keeps the newest message. A daemon that has ended since has kept nothing. */
static void get_retained(struct actor_part *part)
{
    struct dlx_message *m = NULL;
    int r;
    for (uint64_t until = actor_now_ns() + ACTOR_STUCK_NS;;) {
        r = dlx_get(part->client, SIDE, ACTOR_SECOND, &m);
        if (r == 0 || r == DLX_E_TIMEOUT)
            break;
        if (actor_now_ns() > until)
            actor_fault("dlx_get() fails for ever");
        actor_error(part->object, r, "dlx_get");
        (void)actor_input_has_ended(20); /* the next daemon takes a while */
    }
    if (r < 0)
        return;
    actor_check(m, "when it was got");
    const struct actor_header h = actor_header_of(m);
    if (h.key != part->object->key || h.seq != LAST_SIDE)
        actor_fault("message %" PRIu64 " of %" PRIu64 " is retained", h.seq, h.key);
    dlx_message_unref(m);
}

static void play_side(struct dlx_client *c)
{
    const struct dlx_publisher_args args = {
        .size = sizeof args, .history = 2, .on_full = DLX_ON_FULL_BLOCK, .depth = 2, .retain = 2};
    struct actor_part part = actor_part_of(c, ACTOR_PUBLISHER, SIDE);
    struct actor_publisher p = {.part = &part};
    int r;
    (void)actor_announce(&p, &args);
    bool wanted = wait_for_subscribers(&p);
    for (uint64_t i = 1; wanted && i <= LAST_SIDE; i++) {
        publish(&p, i);
        if (i == LAST_BIG)
            part.object->n_arenas[0] = n_arenas(&p);
    }
    part.object->n_arenas[1] = n_arenas(&p);
    actor_withdraw(&p);
    if (wanted)
        get_retained(&part);
    while ((r = dlx_drop_retained(c, SIDE)) < 0 && r != DLX_E_NOT_FOUND)
        actor_error(part.object, r, "dlx_drop_retained");
}

struct listing {
    uint32_t n;     /* retained ones not */
    uint32_t depth; /* of this process's faults/main */
};

static int on_publisher(const struct dlx_publisher_info *info, void *userdata)
{
    struct listing *listing = userdata;
    listing->n += !info->retained;
    if (strcmp(info->topic, MAIN) == 0 && info->pid == (uint32_t)getpid())
        listing->depth = info->depth;
    return 0;
}

static struct listing list_publishers(struct actor_part *part)
{
    for (;;) {
        struct listing listing = {.n = 0};
        int r = dlx_list_publishers(part->client, "faults/*", on_publisher, &listing);
        if (r == 0)
            return listing;
        actor_error(part->object, r, "dlx_list_publishers");
    }
}

int actor_play_publisher(void)
{
    const struct dlx_publisher_args args = {
        .size = sizeof args, .history = 4, .on_full = DLX_ON_FULL_BLOCK};
    actor_faults_begin();
    struct actor_part part = actor_part_of(actor_connect(), ACTOR_PUBLISHER, MAIN);
    struct actor_publisher p = {.part = &part};
    (void)actor_announce(&p, &args);
    bool wanted = wait_for_subscribers(&p);
    for (uint64_t i = 1; wanted && i <= LAST; i++) {
        publish(&p, i);
        if (i == LAST_BIG)
            play_side(part.client);
        if (i == (LEAVE_AT + HOLD_FROM) / 2)
            wait_for_b(&p);
    }
    part.object->depth = list_publishers(&part).depth;
    actor_set_scene(ACTOR_FINISHED);
    /* The publisher calls the library: else a new daemon would not hear of it. Its messages from
     * before that daemon are not for newcomers, so it says the end again. */
    for (uint64_t i = LAST + 1; !actor_input_has_ended(0);) {
        int r = dlx_publisher_wait(p.p, UINT32_MAX, ACTOR_SECOND / 5);
        if (r != DLX_E_TIMEOUT)
            actor_error(part.object, r, "dlx_publisher_wait");
        else if (wanted && i <= LAST + ENCORES && !actor_input_has_ended(0))
            publish(&p, i++);
    }
    actor_withdraw(&p);
    dlx_client_unref(part.client);
    return actor_faults_end();
}

/* ---- the subscribers ------------------------------------------------------------------------- */

struct follower {
    struct actor_part part;
    struct actor_subscriber in;
    bool reliable;
    bool has_left; /* as it was to */
};

static void subscribe(struct follower *f)
{
    const struct dlx_subscribe_args args = {
        .size = sizeof args, .history = 4, .reliable = f->reliable, .max_held = ACTOR_HELD_MAX};
    f->part = actor_part_of(f->part.client, ACTOR_SUBSCRIPTION, "faults/*");
    (void)actor_join(&f->in, &args);
}

/* Held messages stay valid. */
static void subscribe_again(struct follower *f)
{
    actor_leave(&f->in);
    subscribe(f);
}

/* Returns true at the end. */
static bool on_message(struct follower *f, struct dlx_message *take_m)
{
    const uint64_t seq = dlx_message_seq(take_m);
    const bool is_main = strcmp(dlx_message_topic(take_m), MAIN) == 0;
    const struct actor_header h = actor_header_of(take_m);
    const uint32_t keep = !f->reliable && seq >= HOLD_FROM && seq < LAST - 20 ? HOLD_MANY : 3;
    if (h.is_last != (is_main && seq >= LAST))
        actor_fault("message %" PRIu64 " says%s that it is the last", seq, h.is_last ? "" : " not");
    actor_take_in(&f->in, take_m);
    actor_hold(&f->in, take_m, 0, false);
    while (f->in.n_held > keep)
        actor_release(&f->in, 0);
    if (!f->reliable && !f->has_left && seq >= LEAVE_AT) {
        f->has_left = true;
        subscribe_again(f);
    }
    return h.is_last;
}

/* Perhaps without one of the publishers: a failure has cut the link, or it was never made. */
static void on_error(struct follower *f, int code)
{
    actor_error(f->part.object, code, "dlx_take");
    if (code != DLX_E_DISCONNECTED && /* it connects again by itself */
        actor_stats(&f->in).n_publishers < list_publishers(&f->part).n)
        subscribe_again(f);
}

int actor_play_subscriber(bool reliable)
{
    struct follower f = {.reliable = reliable, .in = {.part = &f.part}};
    bool is_over = false;
    actor_faults_begin();
    f.part.client = actor_connect();
    subscribe(&f);
    for (uint64_t since = actor_now_ns(); !is_over;) {
        struct dlx_message *m = NULL;
        int r = dlx_take(f.in.s, ACTOR_SECOND / 5, &m);
        if (r == 0) {
            actor_set_scene(ACTOR_STREAMING);
            since = actor_now_ns();
            is_over = on_message(&f, m);
        } else if (r != DLX_E_TIMEOUT && r != DLX_E_PUBLISHER_GONE) {
            on_error(&f, r);
        }
        if (actor_now_ns() - since > ACTOR_STUCK_NS)
            actor_fault("no message for %d s", (int)(ACTOR_STUCK_NS / ACTOR_SECOND));
    }
    actor_set_scene(ACTOR_FINISHED);
    actor_release_all(&f.in);
    actor_leave(&f.in);
    dlx_client_unref(f.part.client);
    return actor_faults_end();
}
