/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/membership.h"
#include "common/error.h"
#include "common/memory.h"
#include "common/shm.h"
#include <assert.h>

_Static_assert(DLX_SHM_MEMBERSHIP_LINES == 64, "one bit a line");

struct dlxd_membership_page {
    struct dlxd_list node; /* in user->membership_pages */
    const struct dlx_memory *memory;
    int fd;
    struct dlx_shm_membership *lines;
    uint64_t used; /* a bit a line */
};

static struct dlxd_membership_page *page_free(struct dlxd_membership_page *page)
{
    if (page) {
        dlxd_list_remove(&page->node);
        dlx__region_unmap(page->lines, DLX_PAGE);
        dlx__close(page->fd);
        free(page);
    }
    return NULL;
}

static int page_new(struct dlxd_membership_page **ret, struct dlxd_user *user,
                    const struct dlx_memory *memory)
{
    void *map = NULL;
    int fd = -1;
    struct dlxd_membership_page *page = calloc(1, sizeof *page);
    if (!page)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a membership page");
    page->memory = memory;
    page->fd = -1;
    dlxd_list_init(&page->node);
    int r = dlx__region_new(memory, "dlx-membership", DLX_PAGE, &page->fd, &fd);
    dlx_cleanup(dlx__closep) int writer = fd;
    if (r == 0)
        r = dlx__membership_map(writer, DLX_PAGE, &map);
    if (r < 0) {
        page_free(page);
        return r;
    }
    page->lines = map;
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
    page->used |= UINT64_C(1) << line->index;
    /* Nobody reads it yet: its publisher hears of the line after this. */
    dlx_store64_sc(&page->lines[line->index].joins, 0);
    dlx_store64_sc(&page->lines[line->index].leaves, 0);
    return 0;
}

void dlxd_membership_line_deinit(struct dlxd_membership_line *line)
{
    if (!line->page)
        return;
    line->page->used &= ~(UINT64_C(1) << line->index);
    if (line->page->used == 0)
        page_free(line->page);
    line->page = NULL;
}

int dlxd_membership_reopen(const struct dlxd_membership_line *line, int *ret_ro_fd)
{
    return dlx__membership_share(line->page->memory, line->page->fd, ret_ro_fd);
}

uint64_t dlxd_membership_size(void)
{
    return DLX_PAGE;
}

/* The daemon is the only writer. Partner: the publisher loads the word (seq_cst) after it stored head
 * and again after it retired slots. */
static void raise_word(dlx_atomic_u64 *word)
{
    dlx_store64_sc(word, dlx_load64_relaxed(word) + 1);
}

void dlxd_membership_joined(const struct dlxd_membership_line *line)
{
    if (line->page)
        raise_word(&line->page->lines[line->index].joins);
}

void dlxd_membership_left(const struct dlxd_membership_line *line)
{
    if (line->page)
        raise_word(&line->page->lines[line->index].leaves);
}
