/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_STORE_QUEUE_H
#define DLXD_STORE_QUEUE_H

/* Messages for the service manager, in their order: it may have too much to read, and the daemon does not wait for it. */

#include "daemon/list.h"
#include "common/util.h"

struct dlxd_store_queue {
    struct dlxd_list notes;
    uint32_t n;
};

void dlxd_store_queue_init(struct dlxd_store_queue *queue);
void dlxd_store_queue_deinit(struct dlxd_store_queue *queue);

/* Send the text, with a copy of a descriptor unless that is -1, now or later. Returns 0; DLX_E_NO_MEMORY, DLX_E_FD_LIMIT,
 * DLX_E_LIMIT (too many wait). */
int dlxd_store_queue_post(struct dlxd_store_queue *queue, int fd_borrow, const char *fmt, ...)
    dlx_printf(3, 4);
/* Send what can be sent. Returns 0, also when the manager has too much to read; what dlxd_notify() returns: the rest stays. */
int dlxd_store_queue_flush(struct dlxd_store_queue *queue);

#endif
