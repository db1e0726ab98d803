/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/reaper.h"
#include <uv.h>

#define SMALL (UINT64_C(4) << 20)

struct job {
    uv_work_t work;
    int fd;
};

static void run(uv_work_t *work)
{
    struct job *job = work->data;
    dlx__close(job->fd);
}

static void done(uv_work_t *work, int status)
{
    struct job *job = work->data;
    if (status < 0) /* cancelled: it did not run */
        dlx__close(job->fd);
    free(job);
}

int dlxd_reaper_close(struct uv_loop_s *loop, int fd, uint64_t size)
{
    struct job *job = fd >= 0 && loop && size > SMALL ? malloc(sizeof *job) : NULL;
    if (!job)
        return dlx__close(fd);
    job->work.data = job;
    job->fd = fd;
    if (uv_queue_work(loop, &job->work, run, done) < 0) {
        free(job);
        return dlx__close(fd);
    }
    return -1;
}
