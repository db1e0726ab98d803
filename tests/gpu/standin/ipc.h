/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_STANDIN_IPC_H
#define DLX_STANDIN_IPC_H

#include "tests/gpu/standin/machine.h"

/* The content of the 64 bytes of a handle, of memory or an event, or of a pool's pointer. */
struct share_name {
    uint64_t magic, id;
    int slot, zero; /* no padding: the bytes of handles are compared */
};

#define NAME_OF_MEMORY UINT64_C(0x637069646e617453)
#define NAME_OF_EVENT  UINT64_C(0x746e6576456e6174)
void share_name_write(uint64_t magic, uint64_t id, int slot, void *ret);
bool share_name_read(const void *bytes, uint64_t magic, int n_slots, struct share_name *ret);
/* Makes the range known to the machine, if it is not yet; writes its name. */
CUresult share_publish(struct range *range, uint64_t pool_id, void *ret);
/* Opens it in another process: counted until share_close(), which the end of its range calls. */
CUresult share_import(const void *bytes, uint64_t pool_id, struct share *ret,
                      struct share_name *ret_name);
void share_close(uint64_t id, int slot);

#endif
