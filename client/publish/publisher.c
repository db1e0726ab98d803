/* SPDX-License-Identifier: Apache-2.0 */
#include "client/publish/publisher.h"
#include "client/control/call.h"
#include <fcntl.h>

uint32_t dlx__publisher_n_entries(const struct dlx_publisher_args *args)
{
    return dlx_shm_n_entries(DLX_MAX(args->depth, args->history));
}

int dlx__publisher_keep_control(const struct dlx_publisher_args *args, int borrow_fd)
{
    return args->retain > 0 ? fcntl(borrow_fd, F_DUPFD_CLOEXEC, 0) : -1;
}

int dlx__publisher_note(const struct dlx_publisher *p, uint64_t epoch,
                        const struct dlx_new_publisher *made, const void *control,
                        struct dlx_mapped_source **ret)
{
    struct dlx_mapped_region *region;
    int r = dlx__mapped_source_new(ret, p->client->mapped, epoch, made->id, p->topic, true);
    if (r == 0)
        r = dlx__mapped_add(*ret, 0, control, made->control_size, &region);
    return r;
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
