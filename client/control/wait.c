/* SPDX-License-Identifier: Apache-2.0 */
#include "client/control/wait.h"

#define PART_FIRST_NS UINT64_C(50000000)
#define PART_MOST_NS  UINT64_C(200000000)

uint64_t dlx__wait_part(struct dlx_wait *wait, const struct dlx_client *c, uint64_t now)
{
    if (!c->interrupt)
        return wait->deadline;
    if (wait->ask_at == 0) {
        wait->part_ns = PART_FIRST_NS;
        wait->ask_at = now + wait->part_ns;
    }
    return DLX_MIN(wait->deadline, wait->ask_at);
}

int dlx__wait_ask(struct dlx_wait *wait, const struct dlx_client *c, struct dlx_turn *turn,
                  bool signalled)
{
    if (!c->interrupt || (!signalled && dlx__now_ns() < wait->ask_at))
        return 0;
    if (turn)
        dlx__turn_disown(turn);
    if (c->interrupt(c->interrupt_data) != 0)
        return DLX_E_INTERRUPTED;
    dlx__error_clear(); /* of its own calls */
    wait->part_ns = DLX_MIN(2 * wait->part_ns, PART_MOST_NS);
    wait->ask_at = dlx__now_ns() + wait->part_ns;
    return 0;
}

int dlx__wait_for_peers(struct dlx_wait *wait, const struct dlx_client *c, struct dlx_turn *turn,
                        bool signalled, const char *topic, const char *what)
{
    if (signalled && !c->interrupt)
        return dlx__fail(DLX_E_INTERRUPTED, "topic %s: interrupted by a signal", topic);
    int r = dlx__wait_ask(wait, c, turn, signalled);
    return r < 0 ? dlx__fail(r, "topic %s: interrupted while it waited for %s", topic, what) : 0;
}
