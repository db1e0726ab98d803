/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_LIST_H
#define DLXD_LIST_H

/* A circular doubly linked list whose nodes are members of the linked objects. A node that is in no
 * list points to itself, so removing it again is harmless. */

#include <stdbool.h>
#include <stddef.h>

struct dlxd_list {
    struct dlxd_list *prev;
    struct dlxd_list *next;
};

#define dlxd_container_of(node, type, member)                                                      \
    ((type *)(void *)((char *)(node)-offsetof(type, member)))

/* The loop body may remove the current node, but no other node. */
#define dlx_for_each(it, list)                                                                     \
    for (struct dlxd_list *it = (list)->next, *it##_next = it->next; it != (list);                 \
         it = it##_next, it##_next = it->next)

static inline void dlxd_list_init(struct dlxd_list *list)
{
    list->prev = list->next = list;
}

static inline bool dlxd_list_empty(const struct dlxd_list *list)
{
    return list->next == list;
}

/* Is this node in a list? */
static inline bool dlxd_list_linked(const struct dlxd_list *node)
{
    return node->next != node;
}

static inline void dlxd_list_remove(struct dlxd_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    dlxd_list_init(node);
}

static inline void dlxd_list_push_front(struct dlxd_list *list, struct dlxd_list *node)
{
    node->prev = list;
    node->next = list->next;
    list->next->prev = node;
    list->next = node;
}

static inline void dlxd_list_push_back(struct dlxd_list *list, struct dlxd_list *node)
{
    dlxd_list_push_front(list->prev, node);
}

#endif
