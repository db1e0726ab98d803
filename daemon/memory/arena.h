/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_ARENA_H
#define DLXD_ARENA_H

/*
 * A publisher's arenas, and the order in which links are told of them. Its control block is a
 * region of the same kind, but in no list: links get it with LinkOpen.
 *
 * Nothing is queued for a link. Ready arenas are kept in the order in which they became ready, and
 * dropped arenas that a link has yet to acknowledge in the order of their drop; a link remembers
 * its position in both. So a subscriber that reads nothing costs a position and no queue, plus a
 * flight for each ArenaDropped in its socket. No I/O here.
 */

#include "daemon/base/list.h"
#include "daemon/users/user.h"

struct dlxd_link;
struct dlxd_proof;
struct dlxd_publisher;
struct dlxd_workers;

/* A region that is charged but not yet filled with pages and made ready. A writer that never does
 * so would block memory without using it, so the daemon takes back a region that lacks pages and
 * has got none for a while (broker.h). All zero: not reserved. */
struct dlxd_reservation {
    struct dlxd_list node; /* in broker->reservations: the least recently checked is first */
    struct dlxd_publisher *publisher; /* the owner */
    int64_t n_blocks;                 /* of memory, when it last grew */
    uint64_t grown_ns;                /* the time of that */
    uint64_t looked_ns;               /* when it was last checked; 0: never */
};

struct dlxd_arena {
    uint32_t id; /* 0: the control block */
    uint64_t size;
    uint64_t ready_seq;           /* 0: not ready yet, or the control block */
    uint64_t drop_seq;            /* 0: not dropped */
    size_t n_notify;              /* dropped: links that have yet to acknowledge it */
    struct dlxd_link *untold;     /* the first of these that was not told either; or NULL */
    struct dlxd_list told;        /* flights to the others, oldest first: outbox.h */
    bool kept;                    /* stored by the service manager: store.h */
    int fd;                       /* read-only; -1 once dropped, and while the proof has it */
    struct dlxd_proof *proof;     /* not NULL: a worker checks whether it is ready */
    struct dlxd_workers *workers; /* close the fd */
    struct dlxd_reservation reservation; /* until it is ready */
    struct dlxd_charge charge;
    /* Of an arena whose messages stay after its publisher has gone, until the arena is dropped. */
    struct dlxd_charge retained_charge;
};

/* Sorted by id (not ready yet), ready_seq (ready) or drop_seq (dropped): new ones always go to the
 * end. */
struct dlxd_arenas {
    struct dlxd_arena **items;
    size_t n;
    size_t n_max;
};

/* Makes an arena without an fd. Charges `size` bytes to the user; `is_retained`: also as bytes that
 * stay after the publisher has gone. Returns 0, DLX_E_NO_MEMORY, DLX_E_LIMIT. */
int dlxd_arena_new(struct dlxd_arena **ret, struct dlxd_workers *workers, struct dlxd_user *user,
                   uint32_t id, uint64_t size, bool is_retained);
/* The same for an arena that a former daemon knew, even beyond the user's limits. Returns 0,
 * DLX_E_NO_MEMORY. */
int dlxd_arena_restore(struct dlxd_arena **ret, struct dlxd_workers *workers,
                       struct dlxd_user *user, uint32_t id, uint64_t size, bool is_retained);
/* Its messages will not stay after the publisher has gone. */
void dlxd_arena_forget(struct dlxd_arena *arena);
void dlxd_arena_close(struct dlxd_arena *arena);
struct dlxd_arena *dlxd_arena_free(struct dlxd_arena *arena);

/* The arena has an fd and no pages. */
void dlxd_reservation_begin(struct dlxd_arena *arena, struct dlxd_publisher *publisher,
                            struct dlxd_list *all);
/* The arena is ready or gone. Does nothing if it is not reserved. */
void dlxd_reservation_end(struct dlxd_arena *arena);

/* Frees the arenas as well. */
void dlxd_arenas_deinit(struct dlxd_arenas *arenas);
/* Makes room for one more, so that the next push cannot fail. Returns 0, DLX_E_NO_MEMORY. */
int dlxd_arenas_reserve(struct dlxd_arenas *arenas);
void dlxd_arenas_push(struct dlxd_arenas *arenas, struct dlxd_arena *arena);
/* Removes and returns the arena with this id; NULL if it is not there. */
struct dlxd_arena *dlxd_arenas_take(struct dlxd_arenas *arenas, uint32_t id);
void dlxd_arenas_remove(struct dlxd_arenas *arenas, struct dlxd_arena *arena);
struct dlxd_arena *dlxd_arenas_find(const struct dlxd_arenas *arenas, uint32_t id);

/* The first that became ready, or was dropped, after `seq`; NULL if there is none. */
struct dlxd_arena *dlxd_arenas_ready_after(const struct dlxd_arenas *ready, uint64_t seq);
struct dlxd_arena *dlxd_arenas_dropped_after(const struct dlxd_arenas *dropped, uint64_t seq);

#endif
