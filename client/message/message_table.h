/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_MESSAGE_TABLE_H
#define DLX_CLIENT_MESSAGE_TABLE_H

#include "client/base/nametable.h"
#include "client/message/message.h"

/* What a message with a manifest has beside its struct, in one piece of memory. */
struct dlx_message_table {
    _Atomic(struct dlx_nametable *) index; /* made by the first dlx_message_find() */
    uint32_t *names;                       /* [n_tensors]: offsets in `text` */
    char *text;                            /* names, each terminated */
    void *meta;
    uint32_t meta_size;
    atomic_bool *used;          /* [n_tensors]: is exports[i] handed out? */
    struct dlx_export *exports; /* [n_tensors]: saves an allocation for the first of each tensor */
};

#endif
