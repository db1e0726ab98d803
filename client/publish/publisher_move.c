/* SPDX-License-Identifier: Apache-2.0 */
#include "client/publish/publisher_move.h"
#include "client/gpu/gpu.h"
#include "client/publish/publisher_link.h"
#include "client/publish/publisher_memory.h"
#include "common/probes.h"
#include <fcntl.h>
#include <stdio.h>

/* ---- what a daemon made --------------------------------------------------------------------- */

static int note(const struct dlx_publisher *p, uint64_t epoch, const struct dlx_new_publisher *made,
                const void *control, struct dlx_mapped_source **ret)
{
    struct dlx_mapped_region *region;
    int r = dlx__mapped_source_new(ret, p->client->mapped, epoch, made->id, p->topic, true);
    if (r == 0)
        r = dlx__mapped_add(*ret, 0, control, made->control_size, &region);
    return r;
}

int dlx__publisher_daemon_init(const struct dlx_publisher *p, uint64_t epoch,
                               const struct dlx_new_publisher *made,
                               struct dlx_publisher_daemon *ret,
                               struct dlx_shm_control **ret_control)
{
    dlx_cleanup(dlx__closep) int control_fd = made->control_fd;
    dlx_cleanup(dlx__closep) int membership_fd = made->membership_fd;
    void *control = NULL;
    const void *membership = NULL;
    *ret = (struct dlx_publisher_daemon){
        .memory = made->memory,
        .link_sock = made->link_sock,
        /* a daemon keeps what is retained beyond its own end */
        .control_fd = p->retain > 0 ? fcntl(control_fd, F_DUPFD_CLOEXEC, 0) : -1,
        .membership_size = made->membership_size,
        .origin = p->daemon.origin ? p->daemon.origin : made->id,
        .has_succeeded = p->retain == 0,
    };
    if (made->control_size != dlx_shm_control_size(dlx__publisher_n_entries(&p->args)) ||
        made->membership_line >= made->membership_size / DLX_CACHELINE)
        return dlx__fail(DLX_E_PROTOCOL, "control block or membership line out of range");
    int r = dlx__region_populate(made->memory, dlx__steal_fd(&control_fd), made->control_size,
                                 &control);
    if (r < 0)
        return r;
    r = note(p, epoch, made, control, &ret->source);
    if (r == 0)
        r = dlx__region_attach(made->memory, dlx__steal_fd(&membership_fd), made->membership_size,
                               &membership);
    ret->membership = membership;
    *ret_control = control;
    if (r < 0)
        dlx__publisher_unmap_control(p, control);
    return r;
}

void dlx__publisher_daemon_deinit(struct dlx_publisher_daemon *daemon)
{
    dlx__mapped_source_unref(daemon->source);
    dlx__region_unmap(daemon->membership, daemon->membership_size);
    dlx__close(daemon->link_sock);
    dlx__close(daemon->control_fd);
}

void dlx__publisher_succeed(struct dlx_publisher *p)
{
    int r = dlx__call_publisher_retains(p->client, p->id);
    /* A daemon that is gone has nothing of predecessors. */
    p->daemon.has_succeeded = r != DLX_E_FULL;
}

/* ---- another daemon ------------------------------------------------------------------------ */

/* Read the old daemon's last packets: links that must be waited for. The daemon may have ended
 * before it sent some. Their subscribers hold only memory that the publisher leaves and never
 * writes again. */
static bool read_last_notifications(struct dlx_publisher *p)
{
    dlx__writer_read_membership(&p->core);
    dlx__publisher_link_env.pick_up(p);
    return p->daemon.link_sock < 0 || !dlx__writer_misses_link(&p->core);
}

/* Write all counters into a control block that no subscriber sees yet. */
static void carry_counters(const struct dlx_publisher *p, struct dlx_shm_control *control)
{
    dlx_store64_relaxed(&control->published, dlx__writer_head(&p->core));
    dlx_store64_relaxed(&control->published_bytes, p->stats.published_bytes);
    dlx_store64_relaxed(&control->copied, p->stats.copied);
    dlx_store64_relaxed(&control->copied_bytes, p->stats.copied_bytes);
    dlx_store64_relaxed(&control->refused, p->stats.refused);
    dlx__publisher_tell_waited(p, control);
}

/* Everything that can fail, for a publisher that the new daemon does not show yet. `n` messages
 * are taken along. */
static int prepare(struct dlx_publisher *p, const struct dlx_new_publisher *made,
                   struct dlx_shm_control *control, uint32_t n, struct dlx_writer_block **ret)
{
    bool unanswered = false;
    *ret = NULL;
    /* before a subscription of this process can hear of the new id */
    int r = p->gpu ? dlx__gpu_publisher()->also(p, made->id) : 0;
    if (r == 0)
        r = dlx__writer_block_new(&p->core, control, dlx__publisher_n_entries(&p->args), n, ret);
    if (r == 0)
        r = dlx__copy_retained(p, made->memory, made->id, *ret);
    if (r == 0) {
        carry_counters(p, control);
        r = dlx__call_publisher_ready(p->client, made->id, DLX_RECONNECT_PATIENCE_NS, &unanswered);
        /* FULL: the publisher is announced, but a reliable subscriber has no link yet. That one
         * counts what it misses. */
        if (r == DLX_E_FULL)
            r = 0;
    }
    /* Without an answer, subscribers may have been told all the same, and left their old links
     * for the new ones. There is no way back: if they were not, the link socket hangs up, or
     * will (tests/model/restart.pml, GIVEUP). */
    if (r == 0 || unanswered)
        return 0;
    dlx__writer_block_free(&p->core, *ret);
    return r;
}

/* From here on nothing can fail. */
static void go_on(struct dlx_publisher *p, const struct dlx_new_publisher *made, uint32_t n,
                  const struct dlx_publisher_daemon *take_daemon, struct dlx_writer_block *block)
{
    dlx__publisher_link_set_foreign(p);
    dlx__writer_move(&p->core, block);
    dlx__writer_set_membership(&p->core, take_daemon->membership + made->membership_line);
    dlx__publisher_daemon_deinit(&p->daemon);
    p->daemon = *take_daemon;
    p->daemon.base = dlx__writer_head(&p->core) - n;
    p->id = made->id;
    DLX_PROBE_ATTACH(p->id, UINT64_C(0), p->topic, DLX_PROBE_PUBLISHER, 0U);
    if (p->daemon.control_fd >= 0)
        dlx__writer_heed_locks(&p->core);
    if (p->joins.state == DLX_PUBLISHER_JOINS_STARVED)
        p->joins.state = DLX_PUBLISHER_JOINS_PICKED_UP;
    dlx__heap_freeze(p->heap);
    p->memory.room_size = 0;
    if (p->retain > 0 && n > 0) { /* what the daemon may have kept is not needed */
        dlx__publisher_succeed(p);
        p->daemon.has_succeeded = p->daemon.has_succeeded && n >= p->retain;
    }
}

static int resume_with(struct dlx_publisher *p, uint64_t epoch, uint32_t n)
{
    struct dlx_new_publisher made;
    struct dlx_publisher_daemon daemon;
    struct dlx_shm_control *control;
    struct dlx_writer_block *block;
    int r = dlx__call_publisher_new(
        p->client, p->topic, &p->args, dlx__publisher_n_entries(&p->args), p->daemon.origin,
        dlx__writer_head(&p->core) - n, DLX_RECONNECT_PATIENCE_NS, &made);
    if (r < 0)
        return r;
    r = dlx__publisher_daemon_init(p, epoch, &made, &daemon, &control);
    if (r == 0) {
        dlx__heap_set_aside(p->heap, daemon.source);
        r = prepare(p, &made, control, n, &block);
        if (r < 0) {
            dlx__heap_bring_back(p->heap, p->daemon.source);
            dlx__publisher_unmap_control(p, control);
        }
    }
    if (r < 0) {
        dlx__publisher_daemon_deinit(&daemon);
        (void)dlx__call_publisher_close(p->client, made.id);
        return r;
    }
    go_on(p, &made, n, &daemon, block);
    return 0;
}

static int resume(struct dlx_publisher *p, uint32_t n_put)
{
    uint64_t epoch = atomic_load_explicit(&p->client->epoch, memory_order_acquire);
    if (!read_last_notifications(p))
        return DLX_E_NO_MEMORY; /* a link that is told of is to be waited for */
    uint32_t n = dlx__copy_retained_count(p, n_put);
    int r = resume_with(p, epoch, n);
    while (n > 0 && (r == DLX_E_NO_MEMORY || r == DLX_E_LIMIT))
        r = resume_with(p, epoch, n /= 2); /* the stream goes on, in any case with what will come */
    if (r < 0)
        return r;
    p->epoch = epoch;
    dlx__client_tell_former(p->client);
    dlx__copy_retained_grow(p);
    dlx__events_push(&p->events, DLX_EVENT_RECONNECTED, 0, p->id, 0, p->topic, "");
    return 0;
}

bool dlx__publisher_has_daemon(const struct dlx_publisher *p)
{
    return p->daemon.link_sock >= 0 &&
           (p->watch.had_daemon_tid || !dlx__socket_is_lost(p->daemon.link_sock));
}

/* What a daemon answered when it was asked to take the publisher. One that refused is asked
 * again once a second, since rules change rarely. One that has kicked the program is not asked. */
static void note_answer(struct dlx_publisher *p, uint64_t now, int code)
{
    if (code == 0)
        dlx__publisher_detour(p, DLX_DETOUR_REFUSED, false);
    if (code != DLX_E_ACCESS && code != DLX_E_KICKED)
        return;
    dlx__publisher_detour(p, DLX_DETOUR_REFUSED, true);
    p->watch.refusal_code = code;
    (void)snprintf(p->watch.refusal, sizeof p->watch.refusal, "%s", dlx__error_message());
    p->watch.next_look_ns = now + DLX_LOOK_NS;
}

void dlx__publisher_check(struct dlx_publisher *p, uint64_t now, enum dlx_hurry hurry,
                          uint32_t n_put)
{
    if ((p->detours & DLX_DETOUR_REFUSED) && now < p->watch.next_look_ns)
        return;
    p->watch.next_look_ns = now + DLX_LOOK_NS;
    /* Look for dead subscribers: the daemon may be stopped or gone, or may have told of a
     * process before it was dead. */
    dlx__writer_read_membership(&p->core);
    dlx__writer_look_for_dead(&p->core);
    p->watch.had_daemon_tid = dlx__writer_has_daemon(&p->core);
    if (dlx__publisher_has_daemon(p))
        return;
    p->watch.next_look_ns = now + DLX_RECONNECT_NS;
    if (p->client->interrupt) /* it runs while this call waits for the daemon */
        dlx__turn_disown(&p->turn);
    int r = dlx__client_reconnect(p->client, p->epoch, hurry);
    /* IN_USE: the connection is there, but the daemon refused the publisher earlier. Ask again. */
    if (r == 0 || r == DLX_E_IN_USE)
        r = resume(p, n_put);
    note_answer(p, now, r);
    dlx__error_clear(); /* it is no failure of the call that looked */
}
