/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pairs of words that common/atomic.h lists, under the C11 memory model: Relacy runs every
 * interleaving, and every value that the orders let a load see. Each side stores its words,
 * executes one full fence, and loads the other side's words. Each MISTAKE makes one order weaker
 * than ring/ has it, leaves a fence out or moves it, or has a seq_cst access in its place; then
 * a bad outcome is found. tests/model/run.sh runs both:
 *
 *     orders hold_retire | reliable_take | passed | batch_sleep | take_blocked | release_blocked |
 * joiner | newest | report | report_hold | freed | done_hold | claim_hold | done_chain |
 * two_done | done_blocked | rung_once | disarm | given_back [MISTAKE]
 *
 * Relacy does not move a load before a load, or a store before a load that comes first in the
 * program, beyond what stale values show; so a pass here says less than a failure.
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
static void fence(const char *name = NULL)
{
    if (!name || !is(name))
        rl::atomic_thread_fence(sc, $);
}

/* An entry, the payload that it names, and the words of a link. */
struct ring_words {
    rl::atomic<int> gen, word[2], hold, cursor;
    rl::var<int> payload;
    void clear()
    {
        payload($) = 0;
        gen($).store(0, relaxed);
        word[0]($).store(0, relaxed);
        word[1]($).store(0, relaxed);
        hold($).store(0, relaxed);
        cursor($).store(0, relaxed);
    }
    /* dlx__writer_put() */
    void put(int n, rl::memory_order gen_order)
    {
        word[0]($).store(n, relaxed);
        word[1]($).store(n, relaxed);
        gen($).store(n, gen_order);
    }
};

/* A link that is not reliable takes message 1: it copies the words, holds it, and looks at gen
 * again. The publisher retires it, writes to its payload if nobody holds it, and writes its
 * entry again in any case. */
struct hold_retire : rl::test_suite<hold_retire, 2> {
    ring_words w;
    void before() { w.clear(); }
    void thread(unsigned index)
    {
        if (index == 0) { /* dlx__reader_take(), drop_gone(), dlx__reader_release() */
            if (w.gen($).load(order("GEN_LOAD", acquire, relaxed)) != 1)
                return;
            int zero = w.word[0]($).load(relaxed), one = w.word[1]($).load(relaxed);
            w.hold($).store(1, relaxed);
            fence("HOLD_FENCE");
            if (w.gen($).load(relaxed) == 1) {
                RL_ASSERT(zero == 1 && one == 1);
                RL_ASSERT((int)w.payload($) == 1);
            }
            w.hold($).store(0, order("HOLD_CLEAR", release, relaxed));
        } else { /* put, dlx__writer_retire_in(), free_unheld(), put */
            w.payload($) = 1;
            w.put(1, order("GEN_STORE", release, relaxed));
            w.gen($).store(-1, release);
            if (is("REWRITE_FIRST")) /* `reusable` is not honoured */
                w.put(2, release);
            fence("GONE_FENCE");
            if (w.hold($).load(order("HOLD_LOAD", acquire, relaxed)) != 1)
                w.payload($) = 2;
            if (!is("REWRITE_FIRST"))
                w.put(2, release);
        }
    }
};

/* A reliable link takes message 1: it holds it and has passed it, and does not look at gen
 * again. */
struct reliable_take : rl::test_suite<reliable_take, 2> {
    ring_words w;
    void before() { w.clear(); }
    void thread(unsigned index)
    {
        if (index == 0) {
            if (w.gen($).load(order("GEN_LOAD", acquire, relaxed)) != 1)
                return;
            int zero = w.word[0]($).load(relaxed), one = w.word[1]($).load(relaxed);
            if (is("CURSOR_FIRST"))
                w.cursor($).store(1, release);
            w.hold($).store(1, relaxed);
            if (!is("CURSOR_FIRST"))
                w.cursor($).store(1, order("CURSOR_STORE", release, relaxed));
            fence();
            RL_ASSERT(zero == 1 && one == 1);
            RL_ASSERT((int)w.payload($) == 1);
            w.hold($).store(0, order("HOLD_CLEAR", release, relaxed));
        } else { /* put, look_at_cursors(), dlx__writer_retire_in(), free_unheld(), put */
            w.payload($) = 1;
            w.put(1, order("GEN_STORE", release, relaxed));
            if (w.cursor($).load(acquire) != 1 && !is("NO_CURSOR"))
                return;
            w.gen($).store(-1, release);
            fence();
            if (w.hold($).load(order("HOLD_LOAD", acquire, relaxed)) != 1)
                w.payload($) = 2;
            w.put(2, release);
        }
    }
};

/* A link that is not reliable takes message 1, and the publisher retires it when the link has
 * passed it: its payload is pinned, and it is not lost to the link. */
struct passed : rl::test_suite<passed, 2> {
    ring_words w;
    void before()
    {
        w.clear();
        w.payload($) = 1;
        w.gen($).store(1, relaxed);
    }
    void thread(unsigned index)
    {
        if (index == 0) {
            if (is("PASS_FIRST"))
                w.cursor($).store(1, release);
            w.hold($).store(1, relaxed);
            fence();
            RL_ASSERT(w.gen($).load(relaxed) == 1);
            if (!is("PASS_FIRST"))
                w.cursor($).store(1, release);
            RL_ASSERT((int)w.payload($) == 1);
            w.hold($).store(0, order("HOLD_CLEAR", release, relaxed));
        } else if (w.cursor($).load(acquire) == 1) { /* dlx__writer_reclaim() */
            w.gen($).store(-1, release);
            fence();
            if (w.hold($).load(order("HOLD_LOAD", acquire, relaxed)) != 1)
                w.payload($) = 2;
        }
    }
};

/* Two messages, one fence: dlx__writer_announce(). The reader waits for the first of them:
 * dlx__reader_arm(). */
struct batch_sleep : rl::test_suite<batch_sleep, 2> {
    rl::atomic<int> gen[2], ticket;
    int rung, slept;
    void before()
    {
        gen[0]($).store(0, relaxed);
        gen[1]($).store(0, relaxed);
        ticket($).store(0, relaxed);
        rung = slept = 0;
    }
    void thread(unsigned index)
    {
        if (index == 0) {
            gen[0]($).store(1, release);
            gen[1]($).store(1, is("LAST_IS_SC") ? sc : release);
            if (!is("LAST_IS_SC"))
                fence("ANNOUNCE_FENCE");
            rung = ticket($).load(is("LAST_IS_SC") ? sc : relaxed);
        } else {
            ticket($).store(1, is("TICKET_IS_SC") ? sc : relaxed);
            if (!is("TICKET_IS_SC"))
                fence("ARM_FENCE");
            slept = gen[0]($).load(is("TICKET_IS_SC") ? sc : relaxed) == 0;
        }
    }
    void after() { RL_ASSERT(!slept || rung); }
};

/* A take holds and passes message 1; the publisher waits until it is passed:
 * dlx__writer_set_blocked(), dlx__writer_make_room(). */
struct take_blocked : rl::test_suite<take_blocked, 2> {
    rl::atomic<int> cursor, hold, blocked;
    int rings, room;
    void before()
    {
        cursor($).store(0, relaxed);
        hold($).store(0, relaxed);
        blocked($).store(0, relaxed);
        rings = room = 0;
    }
    void thread(unsigned index)
    {
        if (index == 0) {
            hold($).store(1, relaxed);
            if (!is("LATE_CURSOR"))
                cursor($).store(1, release);
            fence("TAKE_FENCE");
            if (is("LATE_CURSOR"))
                cursor($).store(1, release);
            rings = blocked($).load(relaxed);
        } else {
            blocked($).store(1, relaxed);
            fence("BLOCKED_FENCE");
            room = cursor($).load(acquire);
        }
    }
    void after() { RL_ASSERT(rings || room); }
};

/* A hold word is cleared, and the publisher waits for that: dlx__reader_release(),
 * dlx__writer_reclaim(). */
struct release_blocked : rl::test_suite<release_blocked, 2> {
    rl::atomic<int> hold, blocked;
    int rings, room;
    void before()
    {
        hold($).store(1, relaxed);
        blocked($).store(0, relaxed);
        rings = room = 0;
    }
    void thread(unsigned index)
    {
        if (index == 0) {
            hold($).store(0, release);
            fence("RELEASE_FENCE");
            rings = blocked($).load(relaxed);
        } else {
            blocked($).store(1, relaxed);
            fence("BLOCKED_FENCE");
            room = hold($).load(acquire) == 0;
        }
    }
    void after() { RL_ASSERT(rings || room); }
};

/* The daemon raises `joins`, then tells the joiner, who looks for the newest message:
 * dlx__reader_start(). The publisher puts message 1 and looks at `joins`, before it retires
 * anything for which message 1 makes room: dlx__writer_announce(), and dlx__writer_reclaim()
 * within a batch. */
struct joiner : rl::test_suite<joiner, 3> {
    rl::atomic<int> gen, joins, opened;
    int seen, found, asked;
    void before()
    {
        gen($).store(0, relaxed);
        joins($).store(0, relaxed);
        opened($).store(0, relaxed);
        seen = found = asked = 0;
    }
    void thread(unsigned index)
    {
        if (index == 0) {
            joins($).store(1, release);
            opened($).store(1, release); /* a packet */
        } else if (index == 1) {
            if (opened($).load(acquire)) {
                asked = 1;
                fence("JOIN_FENCE");
                found = gen($).load(acquire);
            }
        } else {
            gen($).store(1, release);
            fence("ANNOUNCE_FENCE");
            seen = joins($).load(acquire);
        }
    }
    void after() { RL_ASSERT(!asked || found || seen); }
};

/* A reader looks when message 1 was published, and holds nothing: dlx__reader_newest_ns(). The
 * publisher retires the message and writes its entry again. */
struct newest : rl::test_suite<newest, 2> {
    ring_words w;
    void before() { w.clear(); }
    void thread(unsigned index)
    {
        if (index == 0) {
            if (w.gen($).load(order("GEN_LOAD", acquire, relaxed)) != 1)
                return;
            int zero = w.word[0]($).load(relaxed);
            fence("LOOK_FENCE");
            int again = is("NO_SECOND_LOOK") ? 1 : w.gen($).load(acquire);
            RL_ASSERT(again != 1 || zero == 1);
        } else { /* put, dlx__writer_retire_in(), put */
            w.put(1, order("GEN_STORE", release, relaxed));
            w.gen($).store(-1, release);
            fence("GONE_FENCE");
            w.put(2, release);
        }
    }
};

/* A reader misses messages 1 and 2, one after the other, and the daemon reports meanwhile that it
 * has lost two, since both are GONE: no message counts twice, or not at all. count_missed() and
 * dlxd_report_link(). The daemon's copies are system calls, which keep their order. */
struct report : rl::test_suite<report, 2> {
    rl::atomic<int> cursor, lost, passing, missed;
    struct copy {
        int cursor, lost, passing, missed;
    };
    void before()
    {
        cursor($).store(0, relaxed);
        lost($).store(0, relaxed);
        passing($).store(0, relaxed);
        missed($).store(0, relaxed);
    }
    copy read()
    {
        copy c;
        c.cursor = cursor($).load(acquire);
        c.lost = lost($).load(acquire);
        c.passing = passing($).load(acquire);
        c.missed = missed($).load(acquire);
        return c;
    }
    void thread(unsigned index)
    {
        if (index == 0) {
            for (int n = 1; n <= 2; n++) {
                missed($).store(n, order("MISSED_STORE", release, relaxed));
                if (!is("NO_PASSING"))
                    passing($).store(n, order("PASSING_STORE", release, relaxed));
                lost($).store(n, order("LOST_STORE", release, relaxed));
                cursor($).store(n, order("CURSOR_STORE", release, relaxed));
            }
            return;
        }
        copy first = read(), c = is("ONE_COPY") ? first : read();
        if (first.lost != c.lost || first.passing != c.passing || first.missed != c.missed)
            return; /* it would read again */
        bool passes = c.passing > c.cursor;
        int counted = passes ? c.passing : c.cursor;
        RL_ASSERT((passes ? c.missed : c.lost) + 2 - counted == 2);
    }
};

/* A reader takes message 1, which the publisher retires meanwhile. The daemon reports it as lost
 * only if the reader will not have it. */
struct report_hold : rl::test_suite<report_hold, 3> {
    ring_words w;
    rl::atomic<int> oldest;
    bool is_taken, is_reported;
    void before()
    {
        w.clear();
        w.gen($).store(1, relaxed);
        oldest($).store(1, relaxed);
        is_taken = is_reported = false;
    }
    void thread(unsigned index)
    {
        if (index == 0) { /* dlx__reader_take(), drop_gone(), dlx__reader_release() */
            w.hold($).store(1, relaxed);
            fence("HOLD_FENCE");
            is_taken = w.gen($).load(relaxed) == 1;
            if (is_taken)
                w.cursor($).store(1, release);
            w.hold($).store(0, order("HOLD_CLEAR", release, relaxed));
        } else if (index == 1) { /* dlx__writer_retire_in_blocks() */
            w.gen($).store(-1, release);
            oldest($).store(2, order("OLDEST_STORE", release, relaxed));
        } else { /* dlxd_report_link() */
            int first = oldest($).load(acquire);
            fence("REPORT_FENCE"); /* pread(2) */
            bool is_held = !is("NO_HOLD") && w.hold($).load(acquire) == 1;
            is_reported = first == 2 && w.cursor($).load(acquire) == 0 && !is_held;
        }
    }
    void after() { RL_ASSERT(!is_taken || !is_reported); }
};

/* A publisher frees allocations 1, 2 and 3, and has room for two ids: the third takes the place of
 * the first. A subscriber that has seen fewer than two new ones has the right ids. */
struct freed : rl::test_suite<freed, 2> {
    rl::atomic<int> n, ids[2];
    void before()
    {
        n($).store(0, relaxed);
        ids[0]($).store(0, relaxed);
        ids[1]($).store(0, relaxed);
    }
    void thread(unsigned index)
    {
        if (index == 0) { /* dlx__writer_note_freed() */
            for (int id = 1; id <= 3; id++) {
                fence("FREED_FENCE");
                ids[(id - 1) % 2]($).store(id, relaxed);
                n($).store(id, order("FREED_STORE", release, relaxed));
            }
        } else { /* dlx__reader_freed() */
            int seen = n($).load(order("FREED_LOAD", acquire, relaxed));
            if (seen != 1)
                return; /* none, or too many */
            int id = ids[0]($).load(relaxed);
            fence("LOOK_FENCE");
            if (is("ONE_LOOK") || n($).load(relaxed) < 2)
                RL_ASSERT(id == 1);
        }
    }
};

/* ---- work queues: ring/claims.[ch] --------------------------------------------------------- */

enum { CLAIMED, RETURNED, DONE };

/* A claims page with the cells of two messages, and `done` of the only link that raises it. */
struct claim_words {
    rl::atomic<int> cell[2], done;
    void clear()
    {
        cell[0]($).store(CLAIMED, relaxed);
        cell[1]($).store(CLAIMED, relaxed);
        done($).store(0, relaxed);
    }
    bool swap(int i, int from, int to, rl::memory_order success)
    {
        return cell[i]($).compare_exchange_strong(from, to, success, relaxed);
    }
};

/* A worker does message 1, and holds it beyond that. Another one sees that it is done and raises
 * `done`, by which the publisher retires the message: the payload is pinned nevertheless. */
struct done_hold : rl::test_suite<done_hold, 3> {
    ring_words w;
    claim_words c;
    void before()
    {
        w.clear();
        c.clear();
        w.payload($) = 1;
        w.gen($).store(1, relaxed);
    }
    void thread(unsigned index)
    {
        if (index == 0) { /* dlx__claims_take(), dlx__claims_settle(), dlx__reader_release() */
            if (!is("HOLD_LATE"))
                w.hold($).store(1, relaxed);
            fence();
            c.swap(0, CLAIMED, DONE, sc);
            if (is("HOLD_LATE"))
                w.hold($).store(1, relaxed);
            RL_ASSERT((int)w.payload($) == 1);
            w.hold($).store(0, order("HOLD_CLEAR", release, relaxed));
        } else if (index == 1) { /* advance() */
            if (c.cell[0]($).load(order("CELL_LOAD", acquire, relaxed)) == DONE)
                c.done($).store(1, order("DONE_STORE", release, relaxed));
        } else if (c.done($).load(order("DONE_LOAD", acquire, relaxed)) == 1) {
            w.gen($).store(-1, release); /* dlx__writer_reclaim() */
            fence();
            if (w.hold($).load(order("HOLD_LOAD", acquire, relaxed)) != 1)
                w.payload($) = 2;
        }
    }
};

/* A worker claims message 1, and its lease ends before it holds it: another one does it, and the
 * publisher retires it. */
struct claim_hold : rl::test_suite<claim_hold, 3> {
    ring_words w;
    claim_words c;
    void before()
    {
        w.clear();
        c.clear();
        w.payload($) = 1;
        w.gen($).store(1, relaxed);
    }
    void thread(unsigned index)
    {
        if (index == 0) { /* claim() */
            w.hold($).store(1, relaxed);
            fence("HOLD_FENCE");
            if (is("NO_SECOND_LOOK") || w.gen($).load(relaxed) == 1)
                RL_ASSERT((int)w.payload($) == 1);
            w.hold($).store(0, release);
        } else if (index == 1) {
            if (c.swap(0, CLAIMED, DONE, sc))
                c.done($).store(1, release);
        } else if (c.done($).load(acquire) == 1) {
            w.gen($).store(-1, release);
            fence("GONE_FENCE");
            if (w.hold($).load(acquire) != 1)
                w.payload($) = 2;
        }
    }
};

/* What a worker wrote before it was done, say, a reply, is seen by the publisher that sees `done`
 * pass it, although another worker has raised that. */
struct done_chain : rl::test_suite<done_chain, 3> {
    claim_words c;
    rl::var<int> reply;
    void before()
    {
        c.clear();
        reply($) = 0;
    }
    void thread(unsigned index)
    {
        if (index == 0) {
            reply($) = 1;
            c.swap(0, CLAIMED, DONE, order("DONE_SWAP", rl::mo_acq_rel, relaxed));
        } else if (index == 1) {
            if (c.cell[0]($).load(order("CELL_LOAD", acquire, relaxed)) == DONE)
                c.done($).store(1, order("DONE_STORE", release, relaxed));
        } else if (c.done($).load(order("DONE_LOAD", acquire, relaxed)) == 1) {
            RL_ASSERT((int)reply($) == 1);
        }
    }
};

/* Two threads of a worker are done with messages 1 and 2: one of them sees both, and `done`, which
 * they share, does not fall. dlx__claims_settle(), advance(). */
struct two_done : rl::test_suite<two_done, 2> {
    claim_words c;
    void before() { c.clear(); }
    void thread(unsigned index)
    {
        c.swap((int)index, CLAIMED, DONE, sc);
        fence("DONE_FENCE");
        int to = 0, was = c.done($).load(relaxed);
        while (to < 2 && c.cell[to]($).load(acquire) == DONE)
            to++;
        if (is("PLAIN_RAISE")) {
            if (was < to)
                c.done($).store(to, release);
            return;
        }
        while (was < to && !c.done($).compare_exchange_strong(was, to, release, relaxed))
            ;
    }
    void after() { RL_ASSERT(c.done($).load(relaxed) == 2); }
};

/* A worker raises `done`, and the publisher waits for that: advance(),
 * dlx__writer_set_blocked(). */
struct done_blocked : rl::test_suite<done_blocked, 2> {
    rl::atomic<int> done, blocked;
    int rings, room;
    void before()
    {
        done($).store(0, relaxed);
        blocked($).store(0, relaxed);
        rings = room = 0;
    }
    void thread(unsigned index)
    {
        if (index == 0) {
            done($).store(1, release);
            fence("DONE_FENCE");
            rings = blocked($).load(relaxed);
        } else {
            blocked($).store(1, relaxed);
            fence("BLOCKED_FENCE");
            room = done($).load(acquire);
        }
    }
    void after() { RL_ASSERT(rings || room); }
};

/* A thread of a reader makes room while another one, which has made some, rings: a publisher that
 * forgets what was rung, stores another number and looks, sees the room of who does not ring.
 * dlx__reader_ring_if_blocked(), dlx__writer_set_blocked(). */
struct rung_once : rl::test_suite<rung_once, 3> {
    rl::atomic<int> room, blocked, rung, bell;
    int seen;
    void before()
    {
        room($).store(0, relaxed);
        blocked($).store(2, relaxed);
        rung($).store(0, relaxed);
        bell($).store(0, relaxed);
        seen = 0;
    }
    void ring(int number)
    {
        rung($).store(number, relaxed);
        bell($).store(1, sc);
    }
    void thread(unsigned index)
    {
        if (index == 0) {
            ring(2);
        } else if (index == 1) {
            room($).store(1, release);
            fence("ROOM_FENCE");
            int number = blocked($).load(relaxed);
            if (rung($).load(relaxed) != number)
                ring(number);
        } else {
            if (!is("DRAIN_LATE"))
                bell($).store(0, sc);
            blocked($).store(is("SAME_NUMBER") ? 2 : 3, relaxed);
            fence("BLOCKED_FENCE");
            seen = room($).load(acquire);
            if (is("DRAIN_LATE"))
                bell($).store(0, sc);
        }
    }
    void after() { RL_ASSERT(seen || bell($).load(relaxed)); }
};

/* A worker wakes up and has its ticket even, then looks for messages, before it works for long.
 * The publisher puts one, and rings another worker unless this ticket is odd: the worker sees the
 * message, or another one is rung. dlx__claims_disarm(), dlx__writer_ring_sleepers(). */
struct disarm : rl::test_suite<disarm, 2> {
    rl::atomic<int> gen, ticket;
    int seen, rung;
    void before()
    {
        gen($).store(0, relaxed);
        ticket($).store(1, relaxed);
        seen = rung = 0;
    }
    void thread(unsigned index)
    {
        if (index == 0) {
            ticket($).store(2, relaxed);
            fence("DISARM_FENCE");
            seen = gen($).load(acquire) == 1;
        } else {
            gen($).store(1, release);
            fence("ANNOUNCE_FENCE");
            rung = ticket($).load(relaxed) == 1;
        }
    }
    void after() { RL_ASSERT(seen || !rung); }
};

/* A worker writes something and gives its message back: the next one sees what it wrote. */
struct given_back : rl::test_suite<given_back, 2> {
    claim_words c;
    rl::var<int> progress;
    void before()
    {
        c.clear();
        progress($) = 0;
    }
    void thread(unsigned index)
    {
        if (index == 0) {
            progress($) = 1;
            c.swap(0, CLAIMED, RETURNED, order("RETURN_SWAP", rl::mo_acq_rel, rl::mo_acquire));
        } else if (c.swap(0, RETURNED, CLAIMED, order("CLAIM_SWAP", rl::mo_acq_rel, release))) {
            RL_ASSERT((int)progress($) == 1);
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
#define RUN(name)                                                                                  \
    if (strcmp(which, #name) == 0)                                                                 \
    ok = rl::simulate<name>(params)
    RUN(hold_retire);
    RUN(reliable_take);
    RUN(passed);
    RUN(batch_sleep);
    RUN(take_blocked);
    RUN(release_blocked);
    RUN(joiner);
    RUN(newest);
    RUN(report);
    RUN(report_hold);
    RUN(freed);
    RUN(done_hold);
    RUN(claim_hold);
    RUN(done_chain);
    RUN(two_done);
    RUN(done_blocked);
    RUN(rung_once);
    RUN(disarm);
    RUN(given_back);
    /* As spin says it, for run.sh. Relacy itself tells of an error, and may end by abort() after
     * that. */
    if (ok)
        printf("%llu states, stored\nerrors: 0\n", (unsigned long long)params.stop_iteration);
    return !ok;
}
