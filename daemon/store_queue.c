/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store_queue.h"
#include "common/error.h"
#include "daemon/notify.h"
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>

#define NOTES_MAX 65536U
#define TEXT_SIZE 192

struct note {
    struct dlxd_list node;
    int fd;
    char text[TEXT_SIZE];
};

void dlxd_store_queue_init(struct dlxd_store_queue *queue)
{
    queue->n = 0;
    dlxd_list_init(&queue->notes);
}

static void note_free(struct dlxd_store_queue *queue, struct note *note)
{
    dlxd_list_remove(&note->node);
    queue->n--;
    dlx__close(note->fd);
    free(note);
}

void dlxd_store_queue_deinit(struct dlxd_store_queue *queue)
{
    dlx_for_each (it, &queue->notes)
        note_free(queue, dlxd_container_of(it, struct note, node));
}

int dlxd_store_queue_post(struct dlxd_store_queue *queue, int fd_borrow, const char *fmt, ...)
{
    va_list ap;
    if (queue->n >= NOTES_MAX)
        return dlx__fail(DLX_E_LIMIT, "the service manager has not read %u messages", queue->n);
    struct note *note = malloc(sizeof *note);
    if (!note)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a message to the service manager");
    note->fd = fd_borrow < 0 ? -1 : fcntl(fd_borrow, F_DUPFD_CLOEXEC, 0);
    if (fd_borrow >= 0 && note->fd < 0) {
        free(note);
        return dlx__fail_errno("descriptor for the service manager");
    }
    va_start(ap, fmt);
    (void)vsnprintf(note->text, sizeof note->text, fmt, ap);
    va_end(ap);
    dlxd_list_push_back(&queue->notes, &note->node);
    queue->n++;
    return 0;
}

int dlxd_store_queue_flush(struct dlxd_store_queue *queue)
{
    while (!dlxd_list_empty(&queue->notes)) {
        struct note *note = dlxd_container_of(queue->notes.next, struct note, node);
        int r = dlxd_notify(note->text, note->fd);
        if (r < 0)
            return r == DLX_E_FULL ? 0 : r;
        note_free(queue, note);
    }
    return 0;
}
