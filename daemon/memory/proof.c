/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/proof.h"
#include "common/error.h"
#include "common/memory.h"
#include "daemon/base/worker.h"
#include <stdio.h>

struct dlxd_proof {
    struct dlxd_workers *workers;
    const struct dlxd_user *whose; /* only compared: it may be gone */
    dlxd_proof_fn *fn;             /* NULL: abandoned */
    void *owner;

    /* Used by the worker until it is done: */
    const struct dlx_memory *memory;
    int fd;
    uint64_t size;
    int code;
    char text[DLX_ERROR_TEXT_SIZE];
};

static void run(void *data)
{
    struct dlxd_proof *proof = data;
    proof->code = dlx__region_prove(proof->memory, proof->fd, proof->size);
    if (proof->code < 0)
        (void)snprintf(proof->text, sizeof proof->text, "%s", dlx__error_message());
}

static void done(void *data)
{
    struct dlxd_proof *proof = data;
    if (proof->fn)
        proof->fn(proof->owner, proof->code, proof->text, proof->fd);
    else
        dlxd_workers_close(proof->workers, proof->whose, proof->fd);
    free(proof);
}

int dlxd_proof_begin(struct dlxd_proof **ret, struct dlxd_workers *workers,
                     const struct dlx_memory *memory, const struct dlxd_user *whose, int take_fd,
                     uint64_t size, dlxd_proof_fn *fn, void *owner)
{
    struct dlxd_proof *proof = calloc(1, sizeof *proof);
    if (!proof)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for the proof of a region");
    *proof = (struct dlxd_proof){.workers = workers,
                                 .whose = whose,
                                 .fn = fn,
                                 .owner = owner,
                                 .memory = memory,
                                 .fd = take_fd,
                                 .size = size};
    int r = dlxd_workers_run(workers, whose, run, done, proof);
    if (r < 0) {
        free(proof);
        return r;
    }
    *ret = proof;
    return 0;
}

struct dlxd_proof *dlxd_proof_abandon(struct dlxd_proof *proof)
{
    if (proof)
        proof->fn = NULL;
    return NULL;
}
