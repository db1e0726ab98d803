/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_WAIT_H
#define DLX_CLIENT_WAIT_H

/*
 * Every wait of the library has parts. At the end of a part the library asks the program's
 * `interrupt` (struct dlx_connect_args) whether the wait may go on. The first part takes 50 ms,
 * each later one twice as long, up to 200 ms: a wait that is short is never asked about, and one
 * that is long costs five wake-ups a second. A signal handler that ran in the waiting thread ends a
 * part at once. Without an `interrupt` a wait has one part.
 *
 *     struct dlx_wait wait = {.deadline = dlx__deadline(timeout_ns)};
 *     while (nothing is there) {
 *         now = dlx__now_ns();
 *         n = poll(fds, n_fds, dlx__deadline_ms(dlx__wait_part(&wait, c, now), now));
 *         if (dlx__wait_ask(&wait, c, NULL, n < 0) < 0)
 *             return DLX_E_INTERRUPTED;
 *     }
 */

#include "client/base/turn.h"
#include "client/control/client.h"

struct dlx_wait {
    uint64_t deadline; /* UINT64_MAX: none */
    uint64_t ask_at;   /* when this part ends; 0: the wait has yet to sleep */
    uint64_t part_ns;
};

/* A call whose caller gave it this time; 0: it does not wait, and does not read the clock. */
static inline struct dlx_wait dlx__wait_of(int64_t timeout_ns)
{
    return (struct dlx_wait){.deadline = timeout_ns == 0 ? 0 : dlx__deadline(timeout_ns)};
}

/* The end of the part that begins or goes on at `now`: the deadline at the latest. */
dlx_for_gpu uint64_t dlx__wait_part(struct dlx_wait *wait, const struct dlx_client *c,
                                    uint64_t now);

/*
 * Ask, if the part is over or a signal ended it. `turn`: of the object whose call waits, so that
 * the program's own calls on that object are refused; NULL: there is none. Returns 0;
 * DLX_E_INTERRUPTED: the wait is over. The caller finds words for it.
 */
dlx_for_gpu int dlx__wait_ask(struct dlx_wait *wait, const struct dlx_client *c,
                              struct dlx_turn *turn, bool signalled);

/* The same for waits of publishers and subscriptions, which a signal alone ends where the program
 * gave no `interrupt`. The message names the topic, and what was waited for. */
int dlx__wait_for_peers(struct dlx_wait *wait, const struct dlx_client *c, struct dlx_turn *turn,
                        bool signalled, const char *topic, const char *what);

#endif
