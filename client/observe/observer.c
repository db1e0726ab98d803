/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Observers: dlx/observe.h.
 *
 * The daemon tells the state of objects, and the observer keeps what it was told, sorted by id, so
 * that it can say what is gone after all was told again. A packet is read when all that the last
 * one said was handed out.
 */

#include "client/base/misuse.h"
#include "client/control/call.h"
#include "client/control/connection.h"
#include "common/topic.h"
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

/* A publisher or subscription that was told. */
struct observed_object {
    struct dlx_observed info;
    uint64_t round;               /* in which it was told last */
    bool is_queued;               /* the caller has yet to be told */
    struct observed_object *next; /* in the queue */
    char *names;                  /* of info.groups, behind the pointers; NULL: none */
};

struct observed_objects {
    struct observed_object **items; /* by id */
    size_t n, n_max;
};

struct dlx_observer {
    uint64_t generation;
    struct dlx_turn turn;
    struct dlx_client *client;
    uint64_t epoch; /* the connection of `sock` */
    int sock;       /* -1: the daemon is lost */
    uint32_t kinds;
    char topic[DLX_TOPIC_MAX + 1];

    struct observed_objects publishers, subscriptions;
    uint64_t round;                       /* counts how often all is told */
    struct observed_object *first, *last; /* the queue */
    bool tells_all;                       /* DLX_OBSERVED_ALL comes after the queue */
    struct observed_object *told_gone;    /* freed by the next dlx_observer_next() */

    uint64_t next_try_ns; /* without a daemon */
    uint64_t pause_ns;
    int failure; /* why a daemon refused it: told once; 0: nothing to tell */
    char failure_text[DLX_ERROR_TEXT_SIZE];

    int epoll; /* of dlx_observer_fd(): the socket, or the timer; -1: not asked for */
    int timer; /* likewise */
    bool timer_is_set;
};

/* ---- what was told -------------------------------------------------------------------------- */

static struct observed_object *object_free(struct observed_object *object)
{
    if (object)
        free(object->names);
    free(object);
    return NULL;
}

/* The index of the first object whose id is not less. */
static size_t find_object(const struct observed_objects *objects, uint64_t id)
{
    size_t low = 0, high = objects->n;
    if (high > 0 && objects->items[high - 1]->info.id < id)
        return high;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (objects->items[middle]->info.id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int insert_object(struct observed_objects *objects, size_t at, uint64_t id,
                         struct observed_object **ret)
{
    if (objects->n == objects->n_max) {
        size_t n = objects->n_max ? 2 * objects->n_max : 16;
        struct observed_object **items = reallocarray(objects->items, n, sizeof(*items));
        if (!items)
            return dlx__fail(DLX_E_NO_MEMORY, "out of memory for %zu observed objects", n);
        objects->items = items;
        objects->n_max = n;
    }
    struct observed_object *object = calloc(1, sizeof *object);
    if (!object)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for an observed object");
    object->info.id = id;
    memmove(objects->items + at + 1, objects->items + at,
            (objects->n - at) * sizeof(*objects->items));
    objects->items[at] = object;
    objects->n++;
    *ret = object;
    return 0;
}

static void enqueue(struct dlx_observer *o, struct observed_object *object)
{
    if (object->is_queued)
        return;
    object->is_queued = true;
    object->next = NULL;
    if (o->last)
        o->last->next = object;
    else
        o->first = object;
    o->last = object;
}

static bool has_same_groups(const struct dlx_observed *a, const struct dlx_observed *b)
{
    bool same = a->n_groups == b->n_groups;
    for (uint32_t i = 0; same && i < a->n_groups; i++)
        same = strcmp(a->groups[i], b->groups[i]) == 0;
    return same;
}

static bool is_same_object(const struct dlx_observed *a, const struct dlx_observed *b)
{
    return a->kind == b->kind && a->own == b->own && a->pid == b->pid && a->uid == b->uid &&
           a->retained == b->retained && a->on_full == b->on_full && a->depth == b->depth &&
           a->history == b->history && a->retain == b->retain &&
           a->retain_for_ns == b->retain_for_ns && a->mode == b->mode &&
           a->reliable == b->reliable && a->accepts_unreliable == b->accepts_unreliable &&
           strcmp(a->topic, b->topic) == 0 && strcmp(a->client_name, b->client_name) == 0 &&
           strcmp(a->group, b->group) == 0 && has_same_groups(a, b);
}

/* Copies the names of groups, which lie in a packet, behind pointers to them. */
static int copy_groups(const struct dlx_observed *info, char **ret)
{
    uint32_t n = info->n_groups;
    size_t size = n * sizeof(char *);
    for (uint32_t i = 0; i < n; i++)
        size += strlen(info->groups[i]) + 1;
    char *names = n ? malloc(size) : NULL;
    if (n && !names)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for names of groups");
    const char **pointers = (void *)names;
    char *to = names ? names + n * sizeof(char *) : NULL;
    for (uint32_t i = 0; i < n; i++) {
        pointers[i] = to;
        to = stpcpy(to, info->groups[i]) + 1;
    }
    *ret = names;
    return 0;
}

static void remove_object(struct observed_objects *objects, size_t at)
{
    objects->n--;
    memmove(objects->items + at, objects->items + at + 1,
            (objects->n - at) * sizeof(*objects->items));
}

static void on_restarts(void *userdata)
{
    struct dlx_observer *o = userdata;
    o->round++;
}

static int on_object(void *userdata, const struct dlx_observed *info)
{
    struct dlx_observer *o = userdata;
    struct observed_objects *objects =
        info->kind == DLX_OBSERVED_PUBLISHER ? &o->publishers : &o->subscriptions;
    size_t at = find_object(objects, info->id);
    struct observed_object *object = at < objects->n ? objects->items[at] : NULL;
    bool is_known = object && object->info.id == info->id;
    if (info->gone && is_known) {
        remove_object(objects, at);
        object->info.gone = true;
        enqueue(o, object);
    }
    if (info->gone)
        return 0;
    if (is_known)
        object->round = o->round;
    if (is_known && is_same_object(&object->info, info))
        return 0;
    char *names = NULL;
    int r = copy_groups(info, &names);
    if (r == 0 && !is_known) {
        r = insert_object(objects, at, info->id, &object);
        if (r < 0)
            free(names);
    }
    if (r < 0)
        return r;
    free(object->names);
    object->names = names;
    object->info = *info;
    object->info.groups = (void *)names;
    object->round = o->round;
    enqueue(o, object);
    return 0;
}

/* What was not told again is gone. */
static void sweep(struct dlx_observer *o, struct observed_objects *objects)
{
    size_t n = 0;
    for (size_t i = 0; i < objects->n; i++) {
        struct observed_object *object = objects->items[i];
        if (object->round == o->round) {
            objects->items[n++] = object;
        } else {
            object->info.gone = true;
            enqueue(o, object);
        }
    }
    objects->n = n;
}

static void on_complete(void *userdata)
{
    struct dlx_observer *o = userdata;
    sweep(o, &o->publishers);
    sweep(o, &o->subscriptions);
    o->tells_all = true;
}

static const struct dlx_observed_fns observed_fns = {on_restarts, on_object, on_complete};

/* Hands out the next one. Returns 0; DLX_E_EMPTY. */
static int pop_observed(struct dlx_observer *o, struct dlx_observed *ret)
{
    struct observed_object *object = o->first;
    struct dlx_observed all = {.size = sizeof all, .kind = DLX_OBSERVED_ALL};
    if (!object && !o->tells_all)
        return DLX_E_EMPTY;
    int r = dlx__args_return(ret, sizeof all, object ? &object->info : &all, sizeof all);
    if (r < 0)
        return r;
    if (!object) {
        o->tells_all = false;
        return 0;
    }
    o->first = object->next;
    o->last = o->first ? o->last : NULL;
    object->is_queued = false;
    if (object->info.gone)
        o->told_gone = object;
    return 0;
}

/* ---- the daemon ----------------------------------------------------------------------------- */

static int epoll_add(const struct dlx_observer *o, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    if (o->epoll < 0 || epoll_ctl(o->epoll, EPOLL_CTL_ADD, fd, &event) == 0)
        return 0;
    return dlx__fail_errno("epoll_ctl");
}

/* Has `epoll` tell when dlx_observer_next() may try again; 0: not. */
static void set_timer(struct dlx_observer *o, uint64_t after_ns)
{
    const struct itimerspec at = {.it_value = {.tv_sec = (time_t)(after_ns / 1000000000),
                                               .tv_nsec = (long)(after_ns % 1000000000)}};
    if (o->timer < 0 || (after_ns == 0 && !o->timer_is_set))
        return;
    o->timer_is_set = after_ns > 0;
    (void)timerfd_settime(o->timer, 0, &at, NULL);
}

static void close_socket(struct dlx_observer *o)
{
    if (o->sock < 0)
        return;
    shutdown(o->sock, SHUT_RDWR); /* a forked child may have inherited it */
    if (o->epoll >= 0)
        (void)epoll_ctl(o->epoll, EPOLL_CTL_DEL, o->sock, NULL);
    o->sock = dlx__close(o->sock);
}

/* The daemon is lost, or the observer is to begin again. */
static void lose_socket(struct dlx_observer *o)
{
    close_socket(o);
    o->pause_ns = o->next_try_ns = 0;
    set_timer(o, 1);
}

static void try_later(struct dlx_observer *o, uint64_t pause_ns)
{
    o->pause_ns = pause_ns;
    o->next_try_ns = dlx__now_ns() + pause_ns;
    set_timer(o, pause_ns);
}

/* A daemon is there, and refuses it. */
static bool is_refusal(int code)
{
    return code == DLX_E_ACCESS || code == DLX_E_LIMIT || code == DLX_E_VERSION ||
           code == DLX_E_KICKED;
}

static int adopt_socket(struct dlx_observer *o, int take_sock)
{
    int r = epoll_add(o, take_sock);
    if (r < 0) {
        dlx__close(take_sock);
        return r;
    }
    o->sock = take_sock;
    o->pause_ns = 0;
    set_timer(o, 0);
    return 0;
}

static void observe_again(struct dlx_observer *o)
{
    struct dlx_client *c = o->client;
    int sock;
    if (dlx__now_ns() < o->next_try_ns)
        return;
    if (c->interrupt) /* it runs while this call waits for the daemon */
        dlx__turn_disown(&o->turn);
    int r = dlx__client_reconnect(c, o->epoch, DLX_HURRY_NOW_AND_THEN);
    /* The connection is there, and the daemon has ended this observer, since it has no memory. */
    bool was_ended = r == DLX_E_IN_USE;
    if (r == 0 || was_ended) {
        uint64_t epoch = atomic_load_explicit(&c->epoch, memory_order_acquire);
        r = dlx__call_observe(c, o->topic, o->kinds, DLX_RECONNECT_PATIENCE_NS, &sock);
        if (r == 0)
            r = adopt_socket(o, sock);
        if (r == 0)
            o->epoch = epoch;
    }
    if (is_refusal(r)) {
        o->failure = r;
        (void)snprintf(o->failure_text, sizeof o->failure_text, "%s", dlx__error_message());
    }
    if (r < 0)
        try_later(o, is_refusal(r) || was_ended ? DLX_LOOK_NS
                     : o->pause_ns == 0         ? DLX_RECONNECT_NS
                                                : DLX_MIN(2 * o->pause_ns, DLX_LOOK_NS));
    dlx__error_clear();
}

/* Reads a packet, if there is one. Returns 0; DLX_E_EMPTY; what is wrong with it. */
static int read_observed(struct dlx_observer *o)
{
    if (o->sock < 0)
        observe_again(o);
    if (o->failure < 0) {
        int r = dlx__fail(o->failure, "observer of %s: %s", o->topic, o->failure_text);
        o->failure = 0;
        return r;
    }
    if (o->sock < 0)
        return DLX_E_EMPTY;
    int r = dlx__observed_read(o->sock, &observed_fns, o);
    if (r == 0 || r == DLX_E_EMPTY)
        return r;
    lose_socket(o);
    return r == DLX_E_DISCONNECTED ? 0 : dlx__fail_prefix(r, "observer of %s", o->topic);
}

/* ---- calls ---------------------------------------------------------------------------------- */

static int observer_begin(struct dlx_observer *o, const char *what)
{
    dlx__error_clear();
    if (o && !dlx__forked(o->generation) && dlx__turn_begin(&o->turn))
        return 0;
    return dlx__turn_refuse(what, "observer", o ? &o->generation : NULL, o ? o->topic : NULL);
}

static int fail_unchanged(const struct dlx_observer *o, int64_t timeout_ns)
{
    return dlx__fail(DLX_E_TIMEOUT, "observer of %s: nothing has changed within %.3g s%s%s",
                     o->topic, (double)timeout_ns / 1e9,
                     o->sock < 0 ? ", and there is no dlpackd at " : "",
                     o->sock < 0 ? o->client->path : "");
}

/* Until there may be a packet, or it is time to try again. */
static int wait_for_change(struct dlx_observer *o, struct dlx_wait *wait)
{
    uint64_t now = dlx__now_ns(), until = dlx__wait_part(wait, o->client, now);
    struct pollfd pfd = {.fd = o->sock, .events = POLLIN};
    if (o->sock < 0)
        until = DLX_MIN(until, o->next_try_ns);
    int n = poll(&pfd, 1, dlx__deadline_ms(until, now));
    if (n < 0 && errno != EINTR)
        return dlx__fail_errno("poll");
    return dlx__wait_for_peers(wait, o->client, &o->turn, n < 0, o->topic, "a change");
}

static int observer_next(struct dlx_observer *o, int64_t timeout_ns, struct dlx_observed *ret)
{
    struct dlx_wait wait = dlx__wait_of(timeout_ns);
    for (;;) {
        int r = pop_observed(o, ret);
        if (r != DLX_E_EMPTY)
            return r;
        r = read_observed(o);
        if (r == 0)
            continue;
        if (r == DLX_E_EMPTY && o->sock >= 0) /* it told what was there when it was asked for */
            set_timer(o, 0);
        if (r != DLX_E_EMPTY)
            return r;
        if (timeout_ns == 0)
            return dlx__fail_text(DLX_E_EMPTY, "nothing has changed");
        if (dlx__now_ns() >= wait.deadline)
            return fail_unchanged(o, timeout_ns);
        r = wait_for_change(o, &wait);
        if (r < 0)
            return r;
    }
}

int dlx_observer_next(struct dlx_observer *o, int64_t timeout_ns, struct dlx_observed *ret)
{
    dlx__error_clear();
    if (!o || !ret)
        return DLX_NAME_NULL(0, "dlx_observer_next", {"observer", o}, {"ret", ret});
    int r = observer_begin(o, "dlx_observer_next");
    if (r < 0)
        return r;
    o->told_gone = object_free(o->told_gone);
    r = observer_next(o, timeout_ns, ret);
    dlx__turn_end(&o->turn);
    return r;
}

static int make_epoll(struct dlx_observer *o)
{
    dlx_cleanup(dlx__closep) int timer =
        timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    int r = timer < 0 ? dlx__fail_errno("timerfd_create") : 0;
    if (r == 0 && (o->epoll = epoll_create1(EPOLL_CLOEXEC)) < 0)
        r = dlx__fail_errno("epoll_create1");
    if (r == 0)
        r = epoll_add(o, timer);
    if (r == 0 && o->sock >= 0)
        r = epoll_add(o, o->sock);
    if (r < 0) {
        o->epoll = dlx__close(o->epoll);
        return r;
    }
    o->timer = dlx__steal_fd(&timer);
    if (o->first || o->tells_all || o->sock < 0)
        set_timer(o, 1);
    return 0;
}

int dlx_observer_fd(struct dlx_observer *o)
{
    int r = observer_begin(o, "dlx_observer_fd");
    if (r < 0)
        return r;
    r = o->epoll < 0 ? make_epoll(o) : 0;
    r = r < 0 ? r : o->epoll;
    dlx__turn_end(&o->turn);
    return r;
}

static void objects_deinit(struct observed_objects *objects)
{
    for (size_t i = 0; i < objects->n; i++)
        if (!objects->items[i]->is_queued)
            object_free(objects->items[i]);
    free(objects->items);
}

static void observer_free(struct dlx_observer *o)
{
    close_socket(o);
    dlx__close(o->epoll);
    dlx__close(o->timer);
    objects_deinit(&o->publishers);
    objects_deinit(&o->subscriptions);
    for (struct observed_object *object = o->first, *next; object; object = next) {
        next = object->next;
        object_free(object);
    }
    object_free(o->told_gone);
    dlx__client_unref(o->client);
    dlx__release_handle(o, &o->generation);
}

int dlx_observer_new(struct dlx_client *c, const char *topic, const struct dlx_observer_args *given,
                     struct dlx_observer **ret)
{
    struct dlx_observer_args args = {.size = sizeof args};
    dlx__error_clear();
    if (!c || !ret)
        return DLX_NAME_NULL(0, "dlx_observer_new", {"client", c}, {"ret", ret});
    int r = dlx__args_copy(&args, sizeof args, sizeof args, given);
    if (r == 0)
        r = dlx__pattern_check(topic);
    if (r == 0 && args.kinds > (DLX_OBSERVED_PUBLISHER | DLX_OBSERVED_SUBSCRIPTION))
        r = dlx__fail(DLX_E_INVALID, "observer of %s: kinds %u must be 0 to 3", topic, args.kinds);
    if (r == 0)
        r = dlx__client_ensure(c);
    if (r < 0)
        return r;
    struct dlx_observer *o = calloc(1, sizeof *o);
    if (!o)
        return dlx__fail(DLX_E_NO_MEMORY, "state of an observer");
    o->client = dlx__client_ref(c);
    o->generation = c->generation;
    o->sock = o->epoll = o->timer = -1;
    o->kinds =
        args.kinds ? args.kinds : (uint32_t)DLX_OBSERVED_PUBLISHER | DLX_OBSERVED_SUBSCRIPTION;
    memcpy(o->topic, topic, strlen(topic) + 1);
    o->epoch = atomic_load_explicit(&c->epoch, memory_order_acquire);
    r = dlx__call_observe(c, topic, o->kinds, c->timeout_ns, &o->sock);
    if (r < 0) {
        dlx__fail_prefix(r, "observer of %s", topic);
        observer_free(o);
        return r;
    }
    *ret = o;
    return 0;
}

struct dlx_observer *dlx_observer_unref(struct dlx_observer *o)
{
    if (o && dlx__forked(o->generation))
        dlx__check_released(o->generation, "dlx_observer_unref()");
    else if (o)
        observer_free(o);
    return NULL;
}
