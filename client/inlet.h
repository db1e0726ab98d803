/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_INLET_H
#define DLX_CLIENT_INLET_H

/*
 * A link, from the subscriber's side: the core of common/take.h with its mappings. It lives as long as
 * its subscription or a message of it does.
 */

#include "client/client.h"
#include "common/bell.h"
#include "common/take.h"
#include "common/tensor.h"
#include <pthread.h>

struct dlx_message;

/* An arena of the publisher, mapped read-only. */
struct dlx_inlet_arena {
    uint32_t id;
    const uint8_t *map;
    const void *spare; /* of large ones, for copy-on-write views; NULL: none */
    uint64_t size;
    uint64_t dropped_after; /* 0: in use; else the cursor when the publisher dropped it, plus 1 */
};

/* A stream of large blocks goes round as many arenas as it has blocks, and their ids follow each other. */
#define DLX_INLET_HINTS 16U

#define DLX_INLET_ALIVE (UINT64_C(1) << 62)

enum dlx_inlet_state {
    DLX_INLET_OFFERED, /* its page is mapped; waiting for LinkOpen */
    DLX_INLET_OPENING, /* waiting for the arenas and control blocks that were there at the join */
    DLX_INLET_OPEN,
};

struct dlx_inlet {
    /* DLX_INLET_ALIVE less the messages released; once the subscription has left, the messages that
     * are still out. So taking a message costs no atomic operation. */
    _Atomic uint64_t refs;
    uint64_t n_given; /* messages handed out */
    uint64_t generation;
    const struct dlx_memory *memory;
    enum dlx_inlet_state state;
    struct dlx_take core;
    uint64_t id;
    uint64_t publisher;
    uint32_t pid; /* of the publisher, for messages */
    uint32_t link_index;
    uint32_t max_held;
    uint32_t history; /* what LinkOpen said of it */
    uint32_t retain;
    uint32_t on_full;        /* likewise */
    uint64_t origin;         /* the publisher's id with the first daemon that it was announced to */
    struct dlx_inlet *after; /* not NULL: it is not our turn before this one has ended */
    bool from_start;
    int bell;                    /* -1 before LinkOpen */
    enum dlx_bell_holder holder; /* of its other end */
    bool gone;                   /* nothing new will come: drain it, then detach */
    bool foreign;                /* made by a daemon that has ended */
    uint64_t ended_at; /* 0, or the last message of a publisher that no other link will come to */
    uint64_t end;      /* likewise, plus 1, as it said itself when it closed */
    bool told;         /* the daemon said so: no news will follow either */
    bool stuck;        /* waits for news: an arena for `pending`, or the next control block */
    bool has_pending;
    bool asked;               /* latest: news were read since the publisher moved */
    struct dlx_taken pending; /* held, if there is one */
    struct dlx_shm_link *page;
    uint64_t page_size;
    struct dlx_take_block *blocks; /* ascending base; the first is where we are */
    uint32_t n_blocks;
    struct dlx_take_block *left; /* those that we have left and that a release may still look at */
    uint32_t n_left;
    /* The subscription's thread alone changes the table, and locks it for that; others, who have messages, lock it to read. */
    pthread_mutex_t arenas_lock;
    struct dlx_inlet_arena *arenas; /* ascending id */
    uint32_t n_arenas;
    uint32_t arenas_room;
    uint32_t arena_at[DLX_INLET_HINTS]; /* by id: where one of that id was when it was asked for */
    uint32_t arenas_due;                /* of those that were there at the join, not here yet */
    bool settled;                       /* attached with all of them: counted by its subscription */
    uint64_t taken_bytes;
    struct dlx_message **messages; /* [max_held]: one for each hold word, made when first used */
    char topic[DLX_TOPIC_MAX + 1];
};

/* Make a link of an offer: populates and maps its page. Takes the fd, also on failure. */
int dlx__inlet_new(struct dlx_inlet **ret, const struct dlx_memory *memory, uint64_t generation,
                   uint64_t id, uint64_t publisher, const char *topic, int take_page_fd,
                   uint64_t page_size, uint32_t link_index, uint32_t max_held);

/* LinkOpen, with so many arenas and control blocks to follow: OPENING. Takes the bell, also on failure. */
int dlx__inlet_open(struct dlx_inlet *inlet, int take_bell, uint32_t n_arenas);

/* A control block, announced by LinkOpen or ArenaAdded; takes the fd, also on failure. */
int dlx__inlet_block_add(struct dlx_inlet *inlet, uint32_t id, int take_fd, uint64_t size,
                         uint32_t n_slots, uint64_t base);
/* One was dropped: nothing in it is there for us any more. */
void dlx__inlet_block_dropped(struct dlx_inlet *inlet, uint32_t id);

/* All of them are here: OPEN, beginning as dlx__take_choose() says. */
void dlx__inlet_start(struct dlx_inlet *inlet, uint32_t history, bool from_start, bool latest,
                      bool reliable);

/* The subscription lets go of it: it goes with its last message. NULL is fine. */
struct dlx_inlet *dlx__inlet_unref(struct dlx_inlet *inlet);

/* A message that was handed out has been released. Any thread. */
void dlx__inlet_released(struct dlx_inlet *inlet);

/* The subscription takes no more from it. */
void dlx__inlet_close(struct dlx_inlet *inlet);

/* ArenaAdded; takes the fd, also on failure. */
int dlx__inlet_arena_add(struct dlx_inlet *inlet, uint32_t id, int take_fd, uint64_t size);
/* ArenaDropped: unmapped once nothing that was taken before and may lie in it is held. */
void dlx__inlet_arena_dropped(struct dlx_inlet *inlet, uint32_t id);
void dlx__inlet_sweep_arenas(struct dlx_inlet *inlet);

const struct dlx_inlet_arena *dlx__inlet_arena_search(struct dlx_inlet *inlet, uint32_t id);
/* NULL if it is not here (yet). */
static inline const struct dlx_inlet_arena *dlx__inlet_arena(struct dlx_inlet *inlet, uint32_t id)
{
    uint32_t i = inlet->arena_at[id % DLX_INLET_HINTS];
    if (dlx_likely(i < inlet->n_arenas && inlet->arenas[i].id == id))
        return &inlet->arenas[i];
    return dlx__inlet_arena_search(inlet, id);
}

/*
 * A copy-on-write view (common/memory.h) of `size` bytes of an arena, for who holds a message that has them. Any thread. NULL where
 * there can be none: the arena or `size` is smaller than DLX_VIEW_MIN, or the system does not do it.
 */
void *dlx__inlet_view(struct dlx_inlet *inlet, const void *data, uint64_t size);
/* Less is copied in the time that a view takes to make and to write to. */
#define DLX_VIEW_MIN (UINT64_C(256) << 10)

/* The message that waits for its arena is lost. */
void dlx__inlet_lose(struct dlx_inlet *inlet);

/* client/message.c */

/*
 * Build the message of `taken`, whose hold word is set: checks every number. Returns 0; DLX_E_NOT_FOUND (an
 * arena is missing), DLX_E_BAD_PEER, DLX_E_NO_MEMORY. The hold word stays set on failure.
 */
int dlx__message_build(struct dlx_inlet *inlet, const struct dlx_taken *taken,
                       struct dlx_message **ret);
void dlx__message_free(struct dlx_message *m);

/*
 * May a tensor of the message that has this struct now, or had it last, lie in this arena, which was dropped? For whoever takes; others may
 * release it meanwhile.
 */
bool dlx__message_may_lie_in(const struct dlx_message *m, const struct dlx_inlet_arena *arena);

/* The message that a tensor is of; NULL if it was not made by dlx_message_tensor(), or _legacy(). */
const struct dlx_message *dlx__message_of(const DLManagedTensorVersioned *tensor);
const struct dlx_message *dlx__message_of_legacy(const DLManagedTensor *tensor);

/* Its link, for as long as the message or a tensor of it is held. */
struct dlx_inlet *dlx__message_inlet(const struct dlx_message *m);

/* The publisher has moved on: so do we. Returns 0; DLX_E_NOT_FOUND: the next block is not here yet; DLX_E_BAD_PEER. */
int dlx__inlet_go_on(struct dlx_inlet *inlet);

/*
 * Take the next message. Returns 0; DLX_E_EMPTY, DLX_E_TOO_MANY_HELD, DLX_E_PUBLISHER_GONE, DLX_E_BAD_PEER,
 * DLX_E_NO_MEMORY, and DLX_E_NOT_FOUND: an arena or a control block has not arrived; call again after
 * reading news.
 */
static inline int dlx__inlet_take(struct dlx_inlet *inlet, struct dlx_message **ret)
{
    while (dlx_likely(!inlet->has_pending)) {
        int r = dlx__take_next(&inlet->core, &inlet->pending);
        if (dlx_likely(r == 0))
            break;
        if (r == DLX_E_NOT_FOUND)
            r = dlx__inlet_go_on(inlet);
        inlet->stuck = r == DLX_E_NOT_FOUND;
        if (r < 0)
            return r;
    }
    int r = dlx__message_build(inlet, &inlet->pending, ret);
    inlet->stuck = r == DLX_E_NOT_FOUND;
    /* Without memory it is not lost: the next take tries again. */
    inlet->has_pending = inlet->stuck || r == DLX_E_NO_MEMORY;
    if (dlx_unlikely(r < 0 && !inlet->has_pending))
        dlx__take_release(&inlet->core, inlet->pending.hold);
    return r;
}

#endif
