/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/claims.h"
#include "common/error.h"
#include <string.h>

/* A private copy. Too large for the stack; only the loop's thread is here. */
static union {
    struct dlx_shm_claims claims;
    uint64_t words[sizeof(struct dlx_shm_claims) / sizeof(uint64_t) + DLX_SHM_ENTRIES_MAX];
} copied;

static uint64_t word_of(const dlx_atomic_u64 *word)
{
    return dlx_load64_relaxed((dlx_atomic_u64 *)(uintptr_t)word);
}

static bool read_page(const struct dlxd_claims_terms *terms)
{
    size_t size = sizeof copied.claims + terms->n_entries * sizeof(uint64_t);
    if (terms->borrow_fd >= 0 && pread(terms->borrow_fd, &copied, size, 0) == (ssize_t)size)
        return true;
    memset(&copied, 0, size);
    return false;
}

static struct dlx_shm_cell cell_at(uint64_t slot)
{
    return dlx_shm_cell_unpack(word_of(&copied.claims.cells[slot]));
}

/* The first message of the group; 0: it is not known yet. */
static uint64_t start_of(const struct dlxd_claims_terms *terms)
{
    uint64_t start = terms->borrow_fd < 0 ? terms->first : word_of(&copied.claims.start);
    return start == 0 ? 0 : DLX_MAX(start, terms->done_before);
}

/* The message that was claimed last with this cell. */
static uint64_t seq_of(struct dlx_shm_cell cell, uint64_t slot, uint32_t n_entries)
{
    return (cell.lap - 1) * n_entries + slot;
}

/* What is not done of the messages with the cell of `n`, which is the newest of them. */
static void add_cell(struct dlxd_claims_report *ret, const struct dlxd_claims_terms *terms,
                     const struct dlxd_control_report *control, uint64_t start, uint64_t n)
{
    uint64_t slot = n % terms->n_entries, lap = n / terms->n_entries + 1;
    uint64_t n_messages = (n - start) / terms->n_entries + 1, undone = 0;
    struct dlx_shm_cell cell = cell_at(slot);
    if (cell.lap < lap) { /* no worker has claimed the newest one */
        uint64_t n_unclaimed = DLX_MIN(lap - cell.lap, n_messages);
        bool is_there = n >= control->oldest;
        ret->waiting += is_there;
        ret->lost += n_unclaimed - is_there;
        undone = is_there ? n : 0;
    }
    uint64_t seq = seq_of(cell, slot, terms->n_entries);
    if (cell.lap > 0 && cell.state == DLX_SHM_CELL_CLAIMED) {
        ret->in_flight++;
        undone = seq;
    } else if (cell.lap > 0 && cell.state == DLX_SHM_CELL_RETURNED) {
        ret->waiting += seq >= control->oldest;
        ret->lost += seq < control->oldest;
        undone = seq >= control->oldest ? seq : undone;
    }
    if (undone > 0 && (ret->oldest == 0 || undone < ret->oldest))
        ret->oldest = undone;
}

bool dlxd_claims_report(const struct dlxd_claims_terms *terms,
                        const struct dlxd_control_report *control, struct dlxd_claims_report *ret)
{
    *ret = (struct dlxd_claims_report){.waiting = 0};
    bool is_read = read_page(terms) || terms->borrow_fd < 0;
    uint64_t start = start_of(terms), last = control->head;
    if (start == 0 || last < start || last >= DLX_SHM_MOVED)
        return is_read;
    uint64_t n_last = DLX_MIN(last - start + 1, (uint64_t)terms->n_entries);
    for (uint64_t n = last - n_last + 1; n <= last; n++)
        add_cell(ret, terms, control, start, n);
    ret->redelivered = word_of(&copied.claims.redelivered);
    ret->dead = word_of(&copied.claims.dead);
    ret->lost += word_of(&copied.claims.lost);
    uint64_t n_all = last - start + 1;
    uint64_t rest[] = {ret->waiting, ret->in_flight, ret->dead, ret->lost};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(rest); i++)
        n_all -= DLX_MIN(n_all, rest[i]);
    ret->done = n_all;
    return is_read;
}

/* Adds the claim in its place, and drops the last one if there are too many. */
static void insert(struct dlxd_claim *claims, uint32_t *n, uint32_t n_max, struct dlxd_claim claim,
                   bool *more)
{
    uint32_t at = *n;
    while (at > 0 && claims[at - 1].seq > claim.seq)
        at--;
    *more = *more || *n == n_max;
    if (at == n_max)
        return;
    uint32_t n_after = DLX_MIN(*n, n_max - 1) - at;
    memmove(claims + at + 1, claims + at, n_after * sizeof *claims);
    claims[at] = claim;
    *n = DLX_MIN(*n + 1, n_max);
}

uint32_t dlxd_claims_list(const struct dlxd_claims_terms *terms, uint64_t after_seq,
                          struct dlxd_claim *ret, uint32_t n_max, bool *ret_more)
{
    uint32_t n = 0;
    *ret_more = false;
    (void)read_page(terms);
    for (uint32_t slot = 0; slot < terms->n_entries; slot++) {
        struct dlx_shm_cell cell = cell_at(slot);
        uint64_t seq = seq_of(cell, slot, terms->n_entries);
        if (cell.state == DLX_SHM_CELL_CLAIMED && cell.lap > 0 && seq > after_seq)
            insert(ret, &n, n_max,
                   (struct dlxd_claim){.seq = seq, .owner = cell.owner, .attempt = cell.attempt},
                   ret_more);
    }
    return n;
}

int dlxd_claims_owners(const struct dlxd_claims_terms *terms, uint64_t *bits)
{
    if (!read_page(terms))
        return dlx__fail_errno("reading a claims page");
    for (uint32_t slot = 0; slot < terms->n_entries; slot++) {
        struct dlx_shm_cell cell = cell_at(slot);
        if (cell.state == DLX_SHM_CELL_CLAIMED)
            bits[cell.owner / 64] |= UINT64_C(1) << (cell.owner % 64);
    }
    return 0;
}

uint64_t dlxd_claims_published_ns(int fd, uint32_t n_entries, uint64_t seq)
{
    uint64_t words[2]; /* gen, and the time */
    off_t at = (off_t)(offsetof(struct dlx_shm_control, entries) +
                       seq % n_entries * sizeof(struct dlx_shm_entry));
    bool is_there = pread(fd, words, sizeof words, at) == (ssize_t)sizeof words &&
                    DLX_SHM_NUMBER(words[0]) == seq;
    return is_there ? words[1] : 0;
}
