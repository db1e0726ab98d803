/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_STANDIN_VMM_H
#define DLX_STANDIN_VMM_H

#include "tests/gpu/standin/machine.h"

/* The content of the last page of a memfd: an importer believes nothing else. */
struct label {
    uint64_t magic;
    enum label_kind { LABEL_LEGACY = 1, LABEL_VMM, LABEL_POOL } kind;
    CUuuid uuid;
    uint64_t size; /* without this page */
    uint64_t pool_id;
    CUmemAllocationProp prop;
};

struct vmm_handle {
    LIST_ENTRY(vmm_handle) link;
    struct backing *backing;
    int refs;     /* cuMemCreate, cuMemImport..., cuMemRetainAllocationHandle */
    int mappings; /* of it; they keep the handle's object alive, too */
};

struct reservation {
    LIST_ENTRY(reservation) link;
    CUdeviceptr base;
    size_t size;
};

/* Refuses what is not memory of a device that is visible here, with the driver's error. */
CUresult label_read(int fd, enum label_kind kind, struct label *ret, int *ret_device);
/* New memory of that kind and size, of which so much counts against the device. */
CUresult backing_new(struct backing **ret, int device, const struct label *label, size_t charged);
/* Imported memory: the descriptor is duplicated. NULL: out of memory or descriptors. */
struct backing *backing_of_fd(int fd, int device, const struct label *label);
/* The common part of both calls that export: a descriptor, if the memory was made for that type. */
CUresult backing_export(const struct backing *backing, CUmemAllocationHandleType type,
                        unsigned long long flags, void *ret);

#endif
