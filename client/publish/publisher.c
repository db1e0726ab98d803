/* SPDX-License-Identifier: Apache-2.0 */
#include "client/publish/publisher.h"
#include "client/control/call.h"
#include "common/memory.h"
#include <fcntl.h>

uint32_t dlx__publisher_n_entries(const struct dlx_publisher_args *args)
{
    return dlx_shm_n_entries(DLX_MAX(args->depth, args->history));
}

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

void dlx__publisher_unmap_control(const struct dlx_publisher *p, struct dlx_shm_control *control)
{
    dlx__mapped_remove_control(p->client->mapped, control);
    dlx__region_unmap(control, dlx_shm_control_size(dlx__publisher_n_entries(&p->args)));
}

int dlx__publisher_fail_refused(const struct dlx_publisher *p)
{
    return dlx__fail(DLX_E_ACCESS, "topic %s: %s", p->topic, p->watch.refusal);
}

int dlx__publisher_refuse(const struct dlx_publisher *p, const char *what)
{
    if (!p)
        return dlx__fail(DLX_E_INVALID, "%s: publisher is NULL", what);
    if (dlx__forked(p->generation))
        return dlx__fail_forked(p->generation);
    return dlx__fail(
        DLX_E_IN_USE,
        "%s: the publisher on %s is in use by another thread: use one for each thread, or a lock",
        what, p->topic);
}

void dlx__publisher_succeed(struct dlx_publisher *p)
{
    int r = dlx__call_publisher_retains(p->client, p->id);
    p->daemon.has_succeeded =
        r != DLX_E_FULL; /* a daemon that is gone has nothing of predecessors */
}
