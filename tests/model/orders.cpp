/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pairs of words that docs/SHM.md lists, under the C11 memory model: Relacy runs every interleaving, and every value
 * that the orders let a load see. Each mistake makes one order weaker than common/publish.c and common/take.c have it, and
 * then a bad outcome is found: the orders are what it takes. tests/model/run.sh runs both:
 *
 *     orders hold_retire | store_then_load | brief [MISTAKE]
 *
 * Relacy does not move a load before a load or a store before a load that comes first in the program, beyond what stale
 * values show; so a pass here says less than a failure.
 */
#include <relacy/relacy.hpp>
#include <cstdio>
#include <cstring>

static const rl::memory_order sc = rl::mo_seq_cst, acquire = rl::mo_acquire,
                              release = rl::mo_release, relaxed = rl::mo_relaxed;

/* The mistake that is made. */
static const char *mistake = "";
static bool is(const char *name)
{
    return strcmp(mistake, name) == 0;
}
static rl::memory_order order(const char *name, rl::memory_order right, rl::memory_order weaker)
{
    return is(name) ? weaker : right;
}

/* A taker holds message 1 and reads it; the publisher retires it and writes to its memory if nobody holds it. */
struct hold_retire : rl::test_suite<hold_retire, 2> {
    rl::atomic<int> hold, gen;
    rl::var<int> payload;
    void before()
    {
        hold($).store(0, relaxed);
        gen($).store(0, relaxed);
        payload($) = 0;
    }
    void thread(unsigned index)
    {
        if (index == 0) { /* take_next(), take_release() */
            hold($).store(1, order("HOLD_STORE", sc, release));
            if (gen($).load(order("GEN_LOAD", sc, acquire)) == 1)
                RL_ASSERT((int)payload($) == 1);
            hold($).store(0, order("HOLD_CLEAR", sc, relaxed));
        } else { /* commit(), retire(), holds_any() */
            payload($) = 1;
            gen($).store(1, order("GEN_COMMIT", release, relaxed));
            gen($).store(0, order("GEN_STORE", sc, release));
            if (hold($).load(order("HOLD_LOAD", sc, acquire)) == 0)
                payload($) = 2;
        }
    }
};

/* Who stores its word and then looks at the other's: head and ticket, head and joins, blocked and hold word (or cursor). */
struct store_then_load : rl::test_suite<store_then_load, 2> {
    rl::atomic<int> head, ticket;
    int rung, slept;
    void before()
    {
        head($).store(0, relaxed);
        ticket($).store(0, relaxed);
        rung = slept = 0;
    }
    void thread(unsigned index)
    {
        if (index == 0) { /* commit(), ring_sleepers(); or set_blocked(), reclaim() */
            head($).store(1, order("SLEEP_HEAD_STORE", sc, release));
            rung = ticket($).load(order("SLEEP_TICKET_LOAD", sc, acquire));
        } else { /* take_arm(); or take_release(), ring_if_blocked() */
            ticket($).store(1, order("SLEEP_TICKET_STORE", sc, release));
            slept = head($).load(order("SLEEP_HEAD_LOAD", sc, acquire)) == 0;
        }
    }
    void after() { RL_ASSERT(!slept || rung); }
};

/* A taker copies the brief of message 1 and vouches for it by head and word 0; the publisher publishes 2, retires 1 and
 * writes to its memory if nobody holds it. */
struct brief : rl::test_suite<brief, 2> {
    rl::atomic<int> head, word[2], hold;
    rl::var<int> payload;
    void before()
    {
        payload($) = 1;
        hold($).store(0, relaxed);
        word[0]($).store(1, relaxed);
        word[1]($).store(1, relaxed);
        head($).store(1, relaxed);
    }
    void thread(unsigned index)
    {
        if (index == 0) { /* store_brief(), commit(), reclaim() */
            word[0]($).store(2, order("BRIEF_WORD_STORE", release, relaxed));
            word[1]($).store(2, order("BRIEF_WORD_STORE", release, relaxed));
            head($).store(2, order("BRIEF_HEAD_STORE", sc, release));
            if (hold($).load(order("BRIEF_HOLD_LOAD", sc, acquire)) != 1)
                payload($) = 3;
        } else if (head($).load(acquire) == 1) { /* copy_brief(), brief_holds() */
            int zero = word[0]($).load(order("BRIEF_WORD_LOAD", acquire, relaxed)),
                one = word[1]($).load(order("BRIEF_WORD_LOAD", acquire, relaxed));
            hold($).store(1, order("BRIEF_HOLD_STORE", sc, release));
            if (zero == 1 &&
                (is("BRIEF_NO_HEAD") || head($).load(order("BRIEF_HEAD_LOAD", sc, acquire)) == 1) &&
                (is("BRIEF_NO_WORD") || word[0]($).load(acquire) == zero)) {
                RL_ASSERT(one == 1);
                RL_ASSERT((int)payload($) == 1);
            }
            hold($).store(0, sc);
        }
    }
};

int main(int argc, char **argv)
{
    rl::test_params params;
    std::ostringstream quiet;
    params.search_type = rl::sched_full;
    params.progress_stream = &quiet;
    bool ok = false;
    mistake = argc > 2 ? argv[2] : "";
    const char *which = argc > 1 ? argv[1] : "";
    if (strcmp(which, "hold_retire") == 0)
        ok = rl::simulate<hold_retire>(params);
    else if (strcmp(which, "store_then_load") == 0)
        ok = rl::simulate<store_then_load>(params);
    else if (strcmp(which, "brief") == 0)
        ok = rl::simulate<brief>(params);
    /* As spin says it, for run.sh. Relacy itself tells of an error, and may end by abort() after that. */
    if (ok)
        printf("%llu states, stored\nerrors: 0\n", (unsigned long long)params.stop_iteration);
    return !ok;
}
