/* SPDX-License-Identifier: Apache-2.0 */

/* What a worker says of a message: dlx/queue.h. */

#include "client/base/misuse.h"
#include "client/message/message.h"
#include "client/message/worker.h"
#include "common/error.h"
#include <inttypes.h>

static int fail_not_ours(const struct dlx_message *m, const char *why)
{
    return dlx__fail(DLX_E_NOT_FOUND,
                     "topic %s, group %s: message %" PRIu64 " is not this worker's any more: %s",
                     m->link->topic, m->link->claims->worker->group, m->seq, why);
}

/* For `call`: a message of a group, of this process. */
static int check_claimed(const struct dlx_message *m, const char *call)
{
    dlx__error_clear();
    if (!m)
        return dlx__fail(DLX_E_INVALID, "%s: message is NULL", call);
    if (dlx__forked(m->link->generation))
        return dlx__fail_forked(m->link->generation);
    if (!m->link->claims)
        return dlx__fail(DLX_E_INVALID, "%s: the subscription to %s is in no group", call,
                         m->link->topic);
    return 0;
}

int dlx_message_done(struct dlx_message *m)
{
    int r = check_claimed(m, "dlx_message_done");
    const char *why =
        r == 0 ? dlx__worker_claim_done(m->link->claims, &m->claim, DLX_CLAIM_DONE) : NULL;
    return why ? fail_not_ours(m, why) : r;
}

int dlx_message_done_at_release(struct dlx_message *m)
{
    int r = check_claimed(m, "dlx_message_done_at_release");
    if (r < 0)
        return r;
    enum dlx_shm_cell_state state =
        dlx__claims_state(&m->link->claims->core, m->claim.n, m->claim.cell);
    if (state != DLX_SHM_CELL_CLAIMED && state != DLX_SHM_CELL_DONE)
        return fail_not_ours(m, dlx__worker_claim_why(m->link->claims, &m->claim));
    atomic_store_explicit(&m->claim.done_at_release, true, memory_order_relaxed);
    return 0;
}

int dlx_message_give_back(struct dlx_message *m)
{
    int r = check_claimed(m, "dlx_message_give_back");
    const char *why = r == 0 ? dlx__worker_claim_return(m->link->claims, &m->claim) : NULL;
    return why ? fail_not_ours(m, why) : r;
}

int dlx_message_renew(struct dlx_message *m)
{
    int r = check_claimed(m, "dlx_message_renew");
    if (r < 0 ||
        dlx__claims_renew(&m->link->claims->core, m->claim.n, m->claim.cell, dlx__now_ns()))
        return r;
    return fail_not_ours(m, dlx__worker_claim_why(m->link->claims, &m->claim));
}

uint32_t dlx_message_attempt(const struct dlx_message *m)
{
    return m && m->link->claims ? dlx__claim_attempt(m->claim.cell) : 0;
}
