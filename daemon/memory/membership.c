/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/membership.h"
#include "common/error.h"
#include "common/memory.h"
#include "daemon/users/outbox.h"
#include "ring/layout.h"
#include <assert.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>

_Static_assert(DLX_SHM_MEMBERSHIP_LINES == 64, "one bit a line");

struct dlxd_membership_page {
    struct dlxd_list node; /* in user->membership_pages */
    int fd;                /* read-only */
    struct dlxd_charge charge;
    struct entry *entries; /* [DLX_SHM_MEMBERSHIP_LINES]: a private page, directly before `lines` */
    struct dlx_shm_membership *lines; /* the shared page */
    uint64_t used;                    /* one bit for each line */
    uint64_t ever_used;               /* likewise, now or before */
};

/* ---- vouching ------------------------------------------------------------------------------ */

/* When a thread ends, the kernel walks its list of robust futexes and clears the thread's id in
 * each word. Every word has the same distance from its list entry, so the entries lie in the page
 * before the lines: publishers must not see our addresses. */
struct entry {
    _Alignas(DLX_CACHELINE) struct robust_list robust; /* `next` of the last entry is the head */
    struct entry *previous;                            /* NULL: the head */
};

_Static_assert(sizeof(struct entry) == sizeof(struct dlx_shm_membership), "an entry a line");

/* The kernel follows at most this many entries (ROBUST_LIST_LIMIT). A publisher without daemon_tid
 * asks its socket. */
#define DAEMON_TIDS_MAX 2048U

static _Thread_local struct {
    struct robust_list_head head;
    uint32_t n;
    uint32_t tid; /* 0: the kernel does not know the list */
} tid_list;

static void tid_list_begin(void)
{
    if (tid_list.head.list.next)
        return;
    tid_list.head.list.next = &tid_list.head.list;
    tid_list.head.futex_offset = (long)(DLX_PAGE + offsetof(struct dlx_shm_membership, daemon_tid));
    /* Replaces the list of libc, which has an entry for each robust mutex that the thread holds:
     * none. */
    if (syscall(SYS_set_robust_list, &tid_list.head, sizeof tid_list.head) == 0)
        tid_list.tid = (uint32_t)syscall(SYS_gettid);
}

static void set_daemon_tid(struct dlxd_membership_page *page, uint32_t index)
{
    struct entry *entry = &page->entries[index];
    tid_list_begin();
    if (tid_list.tid == 0 || tid_list.n == DAEMON_TIDS_MAX)
        return;
    tid_list.n++;
    entry->previous = NULL;
    entry->robust.next = tid_list.head.list.next;
    if (entry->robust.next != &tid_list.head.list)
        ((struct entry *)entry->robust.next)->previous = entry;
    /* The kernel may read the list after any of these stores. */
    atomic_signal_fence(memory_order_seq_cst);
    tid_list.head.list.next = &entry->robust;
    atomic_signal_fence(memory_order_seq_cst);
    dlx_store32_sc(&page->lines[index].daemon_tid, tid_list.tid);
}

static void clear_daemon_tid(struct dlxd_membership_page *page, uint32_t index)
{
    struct entry *entry = &page->entries[index];
    if (!entry->robust.next)
        return;
    dlx_store32_sc(&page->lines[index].daemon_tid, 0);
    if (entry->robust.next != &tid_list.head.list)
        ((struct entry *)entry->robust.next)->previous = entry->previous;
    if (entry->previous)
        entry->previous->robust.next = entry->robust.next;
    else
        tid_list.head.list.next = entry->robust.next;
    entry->robust.next = NULL;
    tid_list.n--;
}

/* ---- pages --------------------------------------------------------------------------------- */

static struct dlxd_membership_page *page_free(struct dlxd_membership_page *page)
{
    if (page) {
        dlxd_list_remove(&page->node);
        dlx__region_unmap(page->lines, DLX_PAGE);
        dlx__region_unmap(page->entries, DLX_PAGE);
        dlx__close(page->fd);
        dlxd_charge_deinit(&page->charge);
        free(page);
    }
    return NULL;
}

/* Makes a page for the entries and moves the lines directly behind it. */
static int place_entries(struct dlxd_membership_page *page)
{
    uint8_t *both = mmap(NULL, 2 * (size_t)DLX_PAGE, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (both == MAP_FAILED)
        return dlx__fail_errno("membership page");
    void *lines =
        mremap(page->lines, DLX_PAGE, DLX_PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, both + DLX_PAGE);
    if (lines == MAP_FAILED) {
        int r = dlx__fail_errno("membership page");
        dlx__region_unmap(both, 2 * (size_t)DLX_PAGE);
        return r;
    }
    page->entries = (struct entry *)(void *)both;
    page->lines = lines;
    return 0;
}

static int page_new(struct dlxd_membership_page **ret, struct dlxd_user *user,
                    const struct dlx_memory *memory)
{
    void *map = NULL;
    int fd = -1;
    struct dlxd_membership_page *page = calloc(1, sizeof *page);
    if (!page)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a membership page");
    page->fd = -1;
    dlxd_list_init(&page->node);
    int r = dlxd_flights_charge(&page->charge, user, DLXD_BYTES, DLX_PAGE);
    if (r == 0)
        r = dlx__region_new(memory, "dlx-membership", DLX_PAGE, &page->fd, &fd);
    if (r == 0) /* nobody else has the page yet, so nothing waits */
        r = dlx__region_populate(memory, fd, DLX_PAGE, &map);
    if (r < 0)
        (void)dlx__fail_prefix(r, "membership page");
    page->lines = map;
    if (r == 0)
        r = place_entries(page);
    if (r < 0) {
        page_free(page);
        return r;
    }
    dlxd_list_push_back(&user->membership_pages, &page->node);
    *ret = page;
    return 0;
}

int dlxd_membership_line_init(struct dlxd_membership_line *line, struct dlxd_user *user,
                              const struct dlx_memory *memory)
{
    struct dlxd_membership_page *page = NULL;
    dlx_for_each (it, &user->membership_pages) {
        struct dlxd_membership_page *p = dlxd_container_of(it, struct dlxd_membership_page, node);
        if (p->used != UINT64_MAX) {
            page = p;
            break;
        }
    }
    if (!page) {
        int r = page_new(&page, user, memory);
        if (r < 0)
            return r;
    }
    assert(page);
    line->page = page;
    line->index = (uint32_t)__builtin_ctzll(~page->used);
    uint64_t bit = UINT64_C(1) << line->index;
    page->used |= bit;
    /* A former publisher of this line that the daemon disconnected may not know that yet. It is
     * shown more joins than it will ever receive: so it frees nothing, and asks its link socket
     * why. The new publisher is told of the line later. */
    dlx_atomic_u64 *joins = &page->lines[line->index].joins;
    if (page->ever_used & bit)
        dlx_store64_sc(joins, (dlx_load64_relaxed(joins) | DLX_SHM_JOINS_MASK) + 1);
    page->ever_used |= bit;
    dlx_store64_sc(&page->lines[line->index].leaves, 0);
    set_daemon_tid(page, line->index);
    return 0;
}

void dlxd_membership_line_deinit(struct dlxd_membership_line *line)
{
    if (!line->page)
        return;
    clear_daemon_tid(line->page, line->index);
    line->page->used &= ~(UINT64_C(1) << line->index);
    if (line->page->used == 0)
        page_free(line->page);
    line->page = NULL;
}

int dlxd_membership_dup_fd(const struct dlxd_membership_line *line, int *ret_ro_fd)
{
    int ro = fcntl(line->page->fd, F_DUPFD_CLOEXEC, 0);
    if (ro < 0)
        return dlx__fail_errno("another descriptor of a membership page");
    *ret_ro_fd = ro;
    return 0;
}

uint64_t dlxd_membership_size(void)
{
    return DLX_PAGE;
}

/* The daemon is the only writer. Partner: the publisher stores gen, or retires messages, has a
 * fence, and loads the word. */
static void membership_add(dlx_atomic_u64 *word, uint64_t n)
{
    dlx_store64_sc(word, dlx_load64_relaxed(word) + n);
}

void dlxd_membership_joined(const struct dlxd_membership_line *line)
{
    if (line->page)
        membership_add(&line->page->lines[line->index].joins, 1);
}

void dlxd_membership_withdrawn(const struct dlxd_membership_line *line)
{
    if (line->page)
        membership_add(&line->page->lines[line->index].joins, UINT64_MAX);
}

void dlxd_membership_left(const struct dlxd_membership_line *line)
{
    if (line->page)
        membership_add(&line->page->lines[line->index].leaves, 1);
}
