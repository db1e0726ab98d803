/* SPDX-License-Identifier: Apache-2.0 */
#include "ring/group.h"
#include "common/error.h"
#include <stdlib.h>
#include <string.h>

/* ---- life ---------------------------------------------------------------------------------- */

void *dlx__writer_grow(void *table, uint32_t n, uint32_t *room)
{
    uint32_t more = *room ? *room * 2 : 4;
    if (n < *room)
        return table;
    void *grown = realloc(table, more * sizeof(void *));
    if (grown)
        *room = more;
    else
        dlx__fail(DLX_E_NO_MEMORY, "table of %u links", more);
    return grown;
}

static int group_new(struct dlx_writer *w, uint32_t number, uint64_t passed,
                     struct dlx_writer_group **ret)
{
    void *groups = dlx__writer_grow(w->groups, w->n_groups, &w->groups_room);
    if (!groups)
        return DLX_E_NO_MEMORY;
    w->groups = groups;
    struct dlx_writer_group *group = calloc(1, sizeof *group);
    if (!group)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a group");
    group->number = number;
    group->passed = passed;
    w->groups[w->n_groups++] = *ret = group;
    return 0;
}

static void group_free(struct dlx_writer_group *group)
{
    free(group->links);
    free(group);
}

void dlx__writer_groups_deinit(struct dlx_writer *w)
{
    for (uint32_t i = 0; i < w->n_groups; i++)
        group_free(w->groups[i]);
    free(w->groups);
}

int dlx__writer_declare(struct dlx_writer *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct dlx_writer_group *group = NULL;
        int r = group_new(w, i + 1, w->head, &group);
        if (r < 0)
            return r;
        group->is_declared = true;
    }
    return 0;
}

/* ---- how far a group is -------------------------------------------------------------------- */

/* A worker may claim to have done what was never put. What was put and not announced may be done,
 * and the link that says so may go. */
uint64_t dlx__writer_group_passed(const struct dlx_writer *w, struct dlx_writer_group *group)
{
    uint64_t passed = group->passed;
    for (uint32_t i = 0; i < group->n_links; i++)
        /* acquire: the worker that did the last message is done with its payload, or holds it */
        passed =
            DLX_MAX(passed, dlx_load64_acquire(dlx__writer_word(&group->links[i]->page->done)));
    return group->passed = DLX_MIN(passed, w->head);
}

/* Have all workers left a group that was not declared? Some may still hold messages. */
static bool is_deserted(const struct dlx_writer_group *group)
{
    uint32_t i = 0;
    while (i < group->n_links && dlx__writer_link_is_over(group->links[i]))
        i++;
    return i == group->n_links && !group->is_declared;
}

uint64_t dlx__writer_look_at_groups(struct dlx_writer *w)
{
    uint64_t done = UINT64_MAX;
    for (uint32_t i = 0; i < w->n_groups; i++)
        if (!is_deserted(w->groups[i]))
            done = DLX_MIN(done, dlx__writer_group_passed(w, w->groups[i]));
    dlx__writer_open_carried(w, false);
    return done;
}

/* ---- workers ------------------------------------------------------------------------------- */

int dlx__writer_group_join(struct dlx_writer *w, struct dlx_writer_link *link)
{
    struct dlx_writer_group *group = NULL;
    for (uint32_t i = 0; !group && i < w->n_groups; i++)
        if (w->groups[i]->number == link->group_number)
            group = w->groups[i];
    int r = group ? 0 : group_new(w, link->group_number, link->base, &group);
    if (r < 0)
        return r;
    void *links = dlx__writer_grow(group->links, group->n_links, &group->links_room);
    if (!links)
        return DLX_E_NO_MEMORY;
    group->links = links;
    link->group_ticket = link->ticket;
    link->ticket = &w->no_ticket;
    link->group = group;
    link->is_passed_over = true;
    group->was_touched = true;
    group->links[group->n_links++] = link;
    return 0;
}

void dlx__writer_group_leave(struct dlx_writer *w, struct dlx_writer_link *link)
{
    struct dlx_writer_group *group = link->group;
    uint64_t passed = dlx__writer_group_passed(w, group);
    uint32_t i = 0;
    while (group->links[i] != link)
        i++;
    /* In the order of links: the first ones are rung, and stay warm. */
    memmove(&group->links[i], &group->links[i + 1],
            (group->n_links - i - 1) * sizeof(struct dlx_writer_link *));
    bool closed = dlx__writer_link_is_closed(link);
    uint64_t left = closed ? dlx_load64_acquire(dlx__writer_word(&link->page->left_at)) : w->head;
    if (dlx__writer_link_is_started(link)) /* else it had nothing to do yet */
        group->left = DLX_MAX(group->left, DLX_MIN(left, w->head));
    if (--group->n_links > 0 || group->is_declared)
        return;
    w->env->undone(w->userdata, group->left - DLX_MIN(passed, group->left));
    for (i = 0; w->groups[i] != group; i++)
        ;
    memmove(&w->groups[i], &w->groups[i + 1],
            (w->n_groups - i - 1) * sizeof(struct dlx_writer_group *));
    w->n_groups--;
    group_free(group);
}

void dlx__writer_ring_workers(struct dlx_writer *w, bool all)
{
    for (uint32_t i = 0; i < w->n_groups; i++) {
        struct dlx_writer_group *group = w->groups[i];
        uint64_t n = all ? group->n_links : w->head - DLX_MIN(group->rung, w->head);
        group->rung = w->head;
        for (uint32_t k = 0; n > 0 && k < group->n_links; k++) {
            struct dlx_writer_link *link = group->links[k];
            /* Partner: dlx__claims_arm(). A fence came before. */
            uint64_t ticket = dlx_load64_relaxed(link->group_ticket);
            if (link->dead || link->left || ticket % 2 == 0 || ticket == link->group_rung)
                continue;
            link->group_rung = ticket;
            w->env->ring(w->userdata, link);
            n--;
        }
    }
}

void dlx__writer_ring_all(struct dlx_writer *w)
{
    dlx__writer_ring_sleepers(w);
    dlx__writer_ring_workers(w, true);
}

/* ---- another control block ------------------------------------------------------------------ */

/* Has it no worker that may still do what was carried? */
static bool may_open(const struct dlx_writer *w, const struct dlx_writer_group *group)
{
    bool may = true;
    for (uint32_t i = 0; may && i < group->n_links; i++)
        may = !group->links[i]->is_former || dlx__writer_link_is_over(group->links[i]);
    return may || group->passed >= w->block->moved_at;
}

void dlx__writer_open_carried(struct dlx_writer *w, bool all)
{
    bool any = false;
    for (uint32_t i = 0; i < w->n_groups; i++) {
        struct dlx_writer_group *group = w->groups[i];
        if (dlx_likely(!group->is_closed) || !(all || may_open(w, group)))
            continue;
        uint64_t first = dlx__writer_group_passed(w, group) + 1;
        dlx_store64_release(dlx_shm_carried(w->block->control, w->block->mask + 1, group->number),
                            first | (group->was_touched ? 0 : DLX_SHM_UNTOUCHED));
        group->is_closed = false;
        any = true;
    }
    if (any) {
        dlx_fence(); /* partner: dlx__claims_arm() */
        dlx__writer_ring_all(w);
    }
}

void dlx__writer_groups_moved(struct dlx_writer *w)
{
    for (uint32_t i = 0; i < w->n_groups; i++) {
        struct dlx_writer_group *group = w->groups[i];
        uint64_t passed = dlx__writer_group_passed(w, group);
        /* Also if all is done by now: only the publisher knows that. */
        group->is_closed = group->is_declared && w->block->moved_at > 0;
        if (group->is_declared && passed < w->block->base) /* there was no memory for all */
            w->env->undone(w->userdata, w->block->base - passed);
        if (!group->is_declared) /* the next daemon counts anew */
            group->number = 0;
        for (uint32_t k = 0; k < group->n_links; k++)
            group->links[k]->is_former = true;
    }
    dlx__writer_open_carried(w, false);
}
