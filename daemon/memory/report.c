/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/report.h"
#include <string.h>

/* Clients store whole, aligned words, and the kernel loads whole words, too. */
static bool copy(int fd, void *dst, size_t size)
{
    return pread(fd, dst, size, 0) == (ssize_t)size;
}

/* Reads a word of a private copy. */
static uint64_t report_look(const dlx_atomic_u64 *word)
{
    return dlx_load64_relaxed((dlx_atomic_u64 *)(uintptr_t)word);
}

/* How often words are read that a client writes all the time. */
#define TRIES_MAX 8

/* `first` are the words `waited` and `waits_since`. A wait that ended before the clock was read
 * would be told too long, and the sum would fall: both are read until no wait has. */
static void report_waits(int fd, const uint64_t first[2], struct dlxd_control_report *ret)
{
    uint64_t words[2] = {first[0], first[1]}, before, now;
    const off_t at = offsetof(struct dlx_shm_control, waited);
    int tries = TRIES_MAX;
    do {
        before = words[0];
        now = dlx__now_ns();
    } while (before & DLX_SHM_WAITING && pread(fd, words, sizeof words, at) == sizeof words &&
             words[0] != before && tries-- > 0);
    ret->waited_ns = dlx_shm_waited(words[0], now);
    ret->waited_before_ns = DLX_MIN(ret->waited_ns, dlx_shm_waited(words[0], words[1]));
    ret->waits_since = words[0] & DLX_SHM_WAITING ? words[1] : 0;
}

void dlxd_report_control(int fd, struct dlxd_control_report *ret)
{
    struct dlx_shm_control control;
    *ret = (struct dlxd_control_report){.published = 0};
    if (!copy(fd, &control, sizeof control))
        return;
    ret->head = report_look(&control.head);
    ret->oldest = report_look(&control.oldest);
    ret->waits = dlx_load32_relaxed(&control.blocked) != 0;
    ret->heeds_locks = dlx_load32_relaxed(&control.heeds_locks) != 0;
    ret->published = report_look(&control.published);
    ret->published_bytes = report_look(&control.published_bytes);
    ret->refused = report_look(&control.refused);
    ret->moved_at = report_look(&control.moved_at);
    ret->copied = report_look(&control.copied);
    ret->copied_bytes = report_look(&control.copied_bytes);
    const uint64_t waits[] = {report_look(&control.waited), report_look(&control.waits_since)};
    report_waits(fd, waits, ret);
}

uint64_t dlxd_report_published_ns(int fd, uint32_t n_entries, uint64_t n)
{
    struct dlx_shm_entry entry;
    off_t at = (off_t)(offsetof(struct dlx_shm_control, entries) + n % n_entries * sizeof entry);
    if (n == 0 || pread(fd, &entry, sizeof entry, at) != (ssize_t)sizeof entry)
        return 0;
    /* One that was retired, and that a subscriber may hold, is there until it is used again. */
    return (report_look(&entry.gen) & ~DLX_SHM_GONE) == n ? report_look(&entry.words[0]) : 0;
}

uint64_t dlxd_report_first_ns(int fd, uint32_t n_entries, uint64_t head)
{
    uint64_t first = head + 1 > n_entries ? head + 2 - n_entries : 1;
    return dlxd_report_published_ns(fd, n_entries, first);
}

bool dlxd_report_has_ended(int fd, uint32_t n_entries)
{
    struct dlxd_control_report control;
    uint64_t gen = 0;
    dlxd_report_control(fd, &control);
    uint64_t n = control.head + 1;
    off_t at = (off_t)(offsetof(struct dlx_shm_control, entries) +
                       n % n_entries * sizeof(struct dlx_shm_entry));
    return pread(fd, &gen, sizeof gen, at) == (ssize_t)sizeof gen && gen == (n | DLX_SHM_END);
}

uint64_t dlxd_report_carried(int fd, uint32_t n_entries, uint32_t group)
{
    uint64_t word = 0;
    off_t at = (off_t)(dlx_shm_control_size(n_entries) - group * sizeof word);
    bool is_there = group <= DLX_SHM_GROUPS_MAX && pread(fd, &word, sizeof word, at) == sizeof word;
    return is_there ? word & ~DLX_SHM_UNTOUCHED : 0;
}

/* How many messages the subscriber holds; -1: the page cannot be read. */
static int count_holds(int fd, uint32_t max_held)
{
    static uint64_t hold[DLX_SHM_HELD_MAX]; /* as in dlxd_report_link() */
    size_t size = max_held * sizeof *hold;
    int n = 0;
    if (pread(fd, hold, size, offsetof(struct dlx_shm_link, hold)) != (ssize_t)size)
        return -1;
    for (uint32_t i = 0; i < max_held; i++)
        n += hold[i] != 0;
    return n;
}

uint32_t dlxd_report_n_held(int fd, uint32_t max_held)
{
    int n = count_holds(fd, max_held);
    return n > 0 ? (uint32_t)n : 0;
}

bool dlxd_report_has_left(int fd, uint32_t max_held)
{
    struct dlx_shm_link page;
    if (!copy(fd, &page, sizeof page) || report_look(&page.cursor) != DLX_SHM_CURSOR_CLOSED)
        return false;
    /* Read after the cursor: no hold is added any more. */
    return count_holds(fd, max_held) == 0;
}

/* The words of a link page from `cursor` to `missed`. */
#define COUNTERS_AT   offsetof(struct dlx_shm_link, cursor)
#define COUNTERS_SIZE (offsetof(struct dlx_shm_link, n_used) - COUNTERS_AT)

struct counters {
    struct dlx_shm_misses misses;
    uint64_t taken;
};

static bool read_counters(int fd, struct counters *ret)
{
    struct dlx_shm_link page;
    if (pread(fd, (uint8_t *)&page + COUNTERS_AT, COUNTERS_SIZE, COUNTERS_AT) !=
        (ssize_t)COUNTERS_SIZE)
        return false;
    *ret = (struct counters){
        .misses = {.cursor = report_look(&page.cursor),
                   .skipped = report_look(&page.skipped),
                   .lost = report_look(&page.lost),
                   .passing = report_look(&page.passing),
                   .missed = report_look(&page.missed)},
        .taken = report_look(&page.taken),
    };
    return true;
}

/* Reads them until two copies agree. */
static bool read_counters_at_once(int fd, struct counters *ret)
{
    struct counters before;
    bool found = read_counters(fd, ret), agree = false;
    for (int i = 0; found && !agree && i < TRIES_MAX; i++) {
        before = *ret;
        found = read_counters(fd, ret);
        agree = dlx_shm_misses_agree(&before.misses, &ret->misses);
    }
    return found;
}

static uint64_t add(uint64_t a, uint64_t b)
{
    return b > UINT64_MAX - a ? UINT64_MAX : a + b;
}

void dlxd_report_link(int fd, const struct dlxd_link_terms *terms,
                      const struct dlxd_control_report *control, struct dlxd_link_report *ret)
{
    /* Too large for the stack; only the loop's thread calls this. */
    static union {
        struct dlx_shm_link link;
        uint8_t bytes[sizeof(struct dlx_shm_link) + DLX_SHM_HELD_MAX * sizeof(uint64_t)];
    } page;
    struct counters now;
    *ret = (struct dlxd_link_report){.taken = 0};
    /* In this order: struct dlx_shm_misses. */
    if (!copy(fd, &page, sizeof(struct dlx_shm_link) + terms->max_held * sizeof(uint64_t)) ||
        !read_counters_at_once(fd, &now)) {
        memset(&page, 0, sizeof page); /* there is none yet, or its owner has made it smaller */
        now = (struct counters){.taken = 0};
    }
    uint64_t done = 0;
    if (terms->is_worker) { /* the same word */
        done = now.misses.passing;
        now.misses.passing = 0;
    }
    uint64_t passed = DLX_MAX(DLX_MAX(now.misses.cursor, done), terms->after_seq), n_held_gone = 0;
    uint64_t counted = DLX_MAX(passed, dlx_shm_misses_counted(&now.misses));
    struct dlx_shm_progress all = dlx_shm_progress(passed, control->oldest, control->head);
    uint64_t gone = dlx_shm_progress(counted, control->oldest, control->head).gone;
    for (uint32_t i = 0; i < terms->max_held; i++) {
        uint64_t n = report_look(&page.link.hold[i]);
        ret->n_held += n != 0;
        if (n != 0 && (ret->oldest_held == 0 || n < ret->oldest_held))
            ret->oldest_held = n;
        n_held_gone += n > counted && n - counted <= gone;
    }
    ret->started = dlx_load32_relaxed(&page.link.started) != 0;
    bool misses = !terms->is_worker && (ret->started || terms->is_first);
    gone = misses ? gone - DLX_MIN(gone, n_held_gone) : 0;
    ret->behind = all.behind;
    ret->next = all.behind > 0 ? control->head - all.behind + 1 : 0;
    ret->undone = control->head - DLX_MIN(control->head, DLX_MAX(done, terms->after_seq));
    ret->taken = now.taken;
    ret->skipped = now.misses.skipped;
    ret->lost = now.misses.lost;
    uint64_t *missed = terms->is_latest ? &ret->skipped : &ret->lost;
    *missed = add(dlx_shm_misses_n(&now.misses, terms->is_latest), gone);
}

static bool read_part(int fd, void *dst, size_t size, uint64_t at)
{
    return pread(fd, dst, size, (off_t)at) == (ssize_t)size;
}

bool dlxd_report_former(int fd, uint32_t max_regions, uint32_t n_regions, uint32_t n_sources,
                        struct dlxd_former_report *ret)
{
    if (!read_part(fd, ret->bytes, n_regions * sizeof *ret->bytes, 0) ||
        !read_part(fd, ret->regions, n_regions * sizeof *ret->regions,
                   dlx_shm_former_regions_at(max_regions)) ||
        !read_part(fd, ret->sources, n_sources * sizeof *ret->sources,
                   dlx_shm_former_sources_at(max_regions)))
        return false;
    for (uint32_t i = 0; i < n_sources; i++)
        ret->sources[i].topic[DLX_SHM_FORMER_TOPIC_SIZE - 1] = '\0';
    return true;
}

const uint64_t *dlxd_report_former_bytes(int fd, uint32_t n_regions)
{
    static uint64_t bytes[DLX_SHM_FORMER_REGIONS_MAX]; /* as in dlxd_report_link() */
    return read_part(fd, bytes, n_regions * sizeof *bytes, 0) ? bytes : NULL;
}
