/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/report.h"
#include "ring/layout.h"

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

void dlxd_report_control(int fd, struct dlxd_control_report *ret)
{
    struct dlx_shm_control control;
    *ret = (struct dlxd_control_report){.published = 0};
    if (!copy(fd, &control, sizeof control))
        return;
    ret->head = report_look(&control.head);
    ret->waits = dlx_load32_relaxed(&control.blocked) != 0;
    ret->heeds_locks = dlx_load32_relaxed(&control.heeds_locks) != 0;
    ret->published = report_look(&control.published);
    ret->published_bytes = report_look(&control.published_bytes);
    ret->refused = report_look(&control.refused);
}

uint64_t dlxd_report_behind(const struct dlxd_control_report *control, uint64_t passed)
{
    /* Message numbers are below DLX_SHM_MOVED. */
    uint64_t head = DLX_MIN(control->head, DLX_SHM_MOVED - 1);
    return head > passed ? head - passed : 0;
}

enum holds { HOLDS_NOTHING, HOLDS_SOMETHING, HOLDS_UNKNOWN };

static enum holds look_at_holds(int fd, uint32_t max_held)
{
    static uint64_t hold[DLX_SHM_HELD_MAX]; /* as in dlxd_report_link() */
    size_t size = max_held * sizeof *hold;
    if (pread(fd, hold, size, offsetof(struct dlx_shm_link, hold)) != (ssize_t)size)
        return HOLDS_UNKNOWN;
    for (uint32_t i = 0; i < max_held; i++)
        if (hold[i] != 0)
            return HOLDS_SOMETHING;
    return HOLDS_NOTHING;
}

bool dlxd_report_holds(int fd, uint32_t max_held)
{
    return look_at_holds(fd, max_held) == HOLDS_SOMETHING;
}

bool dlxd_report_has_left(int fd, uint32_t max_held)
{
    struct dlx_shm_link page;
    if (!copy(fd, &page, sizeof page) || report_look(&page.cursor) != DLX_SHM_CURSOR_CLOSED)
        return false;
    /* Read after the cursor: no hold is added any more. */
    return look_at_holds(fd, max_held) == HOLDS_NOTHING;
}

void dlxd_report_link(int fd, uint32_t max_held, struct dlxd_link_report *ret)
{
    /* Too large for the stack; only the loop's thread calls this. */
    static union {
        struct dlx_shm_link link;
        uint8_t bytes[sizeof(struct dlx_shm_link) + DLX_SHM_HELD_MAX * sizeof(uint64_t)];
    } page;
    *ret = (struct dlxd_link_report){.taken = 0};
    if (!copy(fd, &page, sizeof(struct dlx_shm_link) + max_held * sizeof(uint64_t)))
        return;
    ret->cursor = report_look(&page.link.cursor);
    ret->started = dlx_load32_relaxed(&page.link.started) != 0;
    ret->taken = report_look(&page.link.taken);
    ret->skipped = report_look(&page.link.skipped);
    ret->lost = report_look(&page.link.lost);
    for (uint32_t i = 0; i < max_held; i++)
        if (report_look(&page.link.hold[i]) != 0)
            ret->n_held++;
}
