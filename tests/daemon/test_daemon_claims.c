/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon reads out of a claims page, beside a list of what became of each message: random
 * histories of a queue; and pages with garbage. */
#include "daemon/memory/claims.h"
#include "tests/harness/random.h"
#include "tests/harness/run.h"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { N = 32, MOST = 400, STEPS = 4000 };
enum fate { UNCLAIMED, CLAIMED, RETURNED, DONE, DEAD, LOST };

static struct {
    int fd;
    uint64_t seed;
    bool drops;
    uint64_t start, head, oldest;
    uint64_t next; /* the first message that nobody has looked at */
    enum fate fates[MOST + 1];
    uint64_t redelivered, n_dead, n_lost;
} q;

static uint32_t pick(uint32_t n)
{
    return (uint32_t)((dlx_test_random(&q.seed) >> 20) % n);
}

static void put(size_t at, uint64_t value)
{
    ck_assert_int_eq(pwrite(q.fd, &value, sizeof value, (off_t)at), sizeof value);
}

static void set_cell(uint64_t n, enum dlx_shm_cell_state state)
{
    put(offsetof(struct dlx_shm_claims, cells) + 8 * (n % N),
        dlx_shm_cell_pack((struct dlx_shm_cell){
            .state = state, .attempt = 1, .owner = 1 + (uint32_t)(n % 7), .lap = n / N + 1}));
}

static void settle(uint64_t n, enum fate fate)
{
    q.fates[n] = fate;
    set_cell(n, fate == CLAIMED    ? DLX_SHM_CELL_CLAIMED
                : fate == RETURNED ? DLX_SHM_CELL_RETURNED
                                   : DLX_SHM_CELL_DONE);
    q.n_dead += fate == DEAD;
    q.n_lost += fate == LOST;
    put(offsetof(struct dlx_shm_claims, dead), q.n_dead);
    put(offsetof(struct dlx_shm_claims, lost), q.n_lost);
}

static bool is_open(uint64_t n)
{
    return n >= q.start && (q.fates[n] == CLAIMED || q.fates[n] == RETURNED);
}

/* The cell of the message may have another one, which must be over. */
static bool has_cell(uint64_t n)
{
    return n <= N || !is_open(n - N);
}

static void publish(void)
{
    uint64_t first = q.start;
    while (first <= q.head && q.fates[first] >= DONE)
        first++;
    if (q.head == MOST || (!q.drops && q.head - first + 1 >= N))
        return;
    q.head++;
    q.fates[q.head] = UNCLAIMED;
    if (!q.drops)
        q.oldest = DLX_MAX(q.oldest, first);
    else if (q.head - q.oldest >= N / 2)
        q.oldest = q.head - pick(N / 2);
}

static void claim(void)
{
    if (q.next <= q.head && has_cell(q.next)) {
        settle(q.next, q.next < q.oldest ? LOST : CLAIMED);
        q.next++;
    }
}

/* Something happens to one that is open. */
static void go_on(void)
{
    static const enum fate of_claimed[] = {DONE, DONE, RETURNED};
    uint64_t n = q.head - DLX_MIN(q.head, pick(2 * N));
    if (!is_open(n))
        return;
    if (q.fates[n] == CLAIMED)
        settle(n, of_claimed[pick(3)]);
    else
        settle(n, n < q.oldest ? LOST : pick(8) ? CLAIMED : DEAD);
}

static struct dlxd_claims_report expected(void)
{
    struct dlxd_claims_report r = {.dead = q.n_dead, .redelivered = q.redelivered};
    for (uint64_t n = q.start; n <= q.head; n++) {
        bool waits = q.fates[n] == UNCLAIMED || q.fates[n] == RETURNED, is_there = n >= q.oldest;
        r.waiting += waits && is_there;
        r.lost += (waits && !is_there) || q.fates[n] == LOST;
        r.in_flight += q.fates[n] == CLAIMED;
        r.done += q.fates[n] == DONE;
        if (r.oldest == 0 && ((waits && is_there) || q.fates[n] == CLAIMED))
            r.oldest = n;
    }
    return r;
}

static void check(void)
{
    const struct dlxd_claims_terms terms = {.borrow_fd = q.fd, .n_entries = N};
    const struct dlxd_control_report control = {.head = q.head, .oldest = q.oldest};
    const struct dlxd_claims_report e = expected();
    struct dlxd_claims_report r;
    struct dlxd_claim claims[N];
    bool more;
    ck_assert(dlxd_claims_report(&terms, &control, &r));
    ck_assert_msg(r.waiting == e.waiting && r.in_flight == e.in_flight && r.done == e.done &&
                      r.dead == e.dead && r.lost == e.lost && r.oldest == e.oldest,
                  "%ju to %ju: %ju waiting, %ju in flight, %ju done, %ju dead, %ju lost, oldest "
                  "%ju; expected %ju, %ju, %ju, %ju, %ju, %ju",
                  (uintmax_t)q.start, (uintmax_t)q.head, (uintmax_t)r.waiting,
                  (uintmax_t)r.in_flight, (uintmax_t)r.done, (uintmax_t)r.dead, (uintmax_t)r.lost,
                  (uintmax_t)r.oldest, (uintmax_t)e.waiting, (uintmax_t)e.in_flight,
                  (uintmax_t)e.done, (uintmax_t)e.dead, (uintmax_t)e.lost, (uintmax_t)e.oldest);
    uint32_t n = dlxd_claims_list(&terms, 0, claims, N, &more);
    ck_assert_uint_eq(n, e.in_flight);
    ck_assert(!more);
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_int_eq(q.fates[claims[i].seq], CLAIMED);
        ck_assert_uint_eq(claims[i].owner, 1 + claims[i].seq % 7);
        ck_assert(i == 0 || claims[i].seq > claims[i - 1].seq);
    }
}

static void begin(uint64_t seed, uint64_t start)
{
    memset(&q, 0, sizeof q);
    q.seed = seed;
    q.drops = seed % 2;
    q.start = q.next = q.oldest = start;
    q.head = start - 1;
    q.fd = memfd_create("claims", MFD_CLOEXEC);
    ck_assert_int_ge(q.fd, 0);
    ck_assert_int_eq(ftruncate(q.fd, (off_t)dlx_shm_claims_size(N)), 0);
    put(offsetof(struct dlx_shm_claims, start), start);
}

/* Odd: the publisher drops messages. */
LOOP_TEST(each_message_counts_once, 0, 40)
{
    begin((uint64_t)_i + 2, 1 + (uint64_t)_i % (3 * N));
    for (int i = 0; i < STEPS; i++) {
        uint32_t what = pick(4);
        if (what == 0)
            publish();
        else if (what == 1)
            claim();
        else
            go_on();
        if (i % 8 == 0)
            check();
    }
    ck_assert_uint_gt(q.head - q.start, 2 * N); /* cells were used again */
    close(q.fd);
}

/* No number is believed. */
LOOP_TEST(garbage_ends, 0, 50)
{
    static const uint64_t numbers[] = {
        0, 1, N, UINT32_MAX, DLX_SHM_MOVED - 1, DLX_SHM_MOVED, UINT64_MAX - 1, UINT64_MAX};
    struct dlxd_claims_report r;
    struct dlxd_claim claims[3];
    uint64_t owners[(DLX_SHM_OWNERS_MAX + 64) / 64];
    bool more;
    begin((uint64_t)_i + 2, 1);
    for (size_t at = 0; at < dlx_shm_claims_size(N); at += 8)
        put(at, pick(3) ? dlx_test_random(&q.seed) : numbers[pick(DLX_ARRAY_SIZE(numbers))]);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(numbers); i++) {
        put(offsetof(struct dlx_shm_claims, start), numbers[pick(DLX_ARRAY_SIZE(numbers))]);
        const struct dlxd_claims_terms terms = {
            .borrow_fd = q.fd, .n_entries = N, .done_before = numbers[pick(3)]};
        const struct dlxd_control_report control = {
            .head = numbers[i], .oldest = numbers[pick(DLX_ARRAY_SIZE(numbers))]};
        ck_assert(dlxd_claims_report(&terms, &control, &r));
        ck_assert_uint_le(r.in_flight, N);
        ck_assert_uint_le(r.waiting, 2 * N);
        ck_assert_uint_le(dlxd_claims_list(&terms, numbers[i], claims, 3, &more), 3);
        memset(owners, 0, sizeof owners);
        ok(dlxd_claims_owners(&terms, owners));
    }
    close(q.fd);
}

TEST(a_page_that_is_too_short_has_no_claims)
{
    struct dlxd_claims_report r;
    uint64_t owners[1];
    begin(1, 1);
    ck_assert_int_eq(ftruncate(q.fd, 100), 0);
    const struct dlxd_claims_terms terms = {.borrow_fd = q.fd, .n_entries = N};
    const struct dlxd_control_report control = {.head = 5, .oldest = 1};
    ck_assert(!dlxd_claims_report(&terms, &control, &r));
    ck_assert_uint_eq(r.waiting, 0);
    ck_assert_int_eq(dlxd_claims_owners(&terms, owners), DLX_E_SYSTEM);
    close(q.fd);
}

int main(void)
{
    return dlx_test_run_case(tcase_create("claims"));
}
