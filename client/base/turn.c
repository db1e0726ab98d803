/* SPDX-License-Identifier: Apache-2.0 */
#include "client/base/turn.h"
#include "client/base/fork.h"
#include <linux/membarrier.h>
#include <sys/syscall.h>

/* Calls in a row after which a thread gets the turn for its own. */
#define OWN_AFTER 64U
/* A thread that lost the turn so often does not own it again: membarrier() takes microseconds. */
#define LOST_MAX 4U

static bool membarrier(int command)
{
    return syscall(SYS_membarrier, command, 0, 0) == 0;
}

/* Fails where the kernel lacks membarrier(), or a sandbox forbids it. */
static bool can_take_away(void)
{
    return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
}

/* Afterwards the owner either sees that it owns nothing, or has stored `inside` where this thread
 * sees it. */
static void take_away(struct dlx_turn *turn)
{
    atomic_store_explicit(&turn->owner, NULL, memory_order_relaxed);
    (void)membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED); /* cannot fail: it was registered */
}

bool dlx__turn_begin_slowly(struct dlx_turn *turn)
{
    const void *self = dlx__turn_self();
    if (atomic_exchange_explicit(&turn->busy, 1, memory_order_acquire))
        return false;
    bool owned = atomic_load_explicit(&turn->owner, memory_order_relaxed) != NULL;
    if (owned)
        take_away(turn);
    if (atomic_load_explicit(&turn->inside, memory_order_acquire)) {
        atomic_store_explicit(&turn->busy, 0, memory_order_release);
        return false;
    }
    turn->is_foreign = true;
    turn->n_lost += owned;
    turn->n_same = turn->last == self ? turn->n_same + 1 : 0;
    turn->last = self;
    if (turn->n_same >= OWN_AFTER && turn->n_lost < LOST_MAX) {
        turn->n_same = 0;
        if (can_take_away())
            atomic_store_explicit(&turn->owner, self, memory_order_relaxed);
        else
            turn->n_lost = LOST_MAX;
    }
    return true;
}

int dlx__turn_refuse(const char *what, const char *kind, const uint64_t *generation,
                     const char *topic)
{
    if (!generation)
        return dlx__fail(DLX_E_INVALID, "%s: %s is NULL", what, kind);
    if (dlx__forked(*generation))
        return dlx__fail_forked(*generation);
    return dlx__fail(DLX_E_IN_USE,
                     "%s: the %s of topic %s is in use by another thread: make one for each "
                     "thread, or use a lock",
                     what, kind, topic);
}
