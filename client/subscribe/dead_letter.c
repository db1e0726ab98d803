/* SPDX-License-Identifier: Apache-2.0 */
#include "client/subscribe/dead_letter.h"
#include "client/message/worker.h"
#include "common/error.h"
#include "common/util.h"
#include <stdlib.h>

/* So many dead letters wait for whoever looks at them later. */
#define DEAD_LETTERS_KEPT 16U

static int publish_copy(struct dlx_publisher *grave, struct dlx_message *m)
{
    const struct dlx_publish_args args = {.size = sizeof args, .stage = true};
    uint32_t n = dlx_message_n_tensors(m), n_made = 0;
    struct dlx_bytes meta;
    meta.data = dlx_message_meta(m, &meta.size);
    dlx_cleanup(dlx__freep) struct dlx_item *items = calloc(n, sizeof *items);
    int r = items ? 0 : dlx__fail(DLX_E_NO_MEMORY, "state of %u tensors", n);
    for (; r == 0 && n_made < n; n_made += r == 0) {
        items[n_made].name = dlx_message_tensor_name(m, n_made);
        r = dlx_message_tensor(m, n_made, &items[n_made].tensor);
    }
    if (r == 0)
        r = dlx_publish_set(grave, items, n, meta.data ? &meta : NULL, &args, NULL);
    for (uint32_t i = 0; r < 0 && i < n_made; i++)
        items[i].tensor->deleter(items[i].tensor);
    return r;
}

const char *dlx__dead_letter_copy(struct dlx_worker *worker, struct dlx_client *c,
                                  struct dlx_message *m)
{
    const struct dlx_publisher_args args = {.size = sizeof args, .retain = DEAD_LETTERS_KEPT};
    int r = worker->grave ? 0 : dlx_publisher_new(c, worker->dead_letters, &args, &worker->grave);
    if (r == 0)
        r = publish_copy(worker->grave, m);
    return r == 0 ? "a copy was published" : dlx__error_message();
}
