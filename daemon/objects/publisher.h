/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_PUBLISHER_H
#define DLXD_PUBLISHER_H

/*
 * A publisher: its control block, membership line, arenas and links.
 *
 * When it closes or dies it is GONE: no newcomer finds it, but it is listed (ListPublishers.gone), and
 * stays until its last link has ended, since its subscribers drain what it published and may yet need its arenas. If it retains
 * messages it is RETAINED before that (daemon/objects/retained.h): it has no client any more,
 * but newcomers find it.
 */

#include "common/topic.h"
#include "daemon/gpu/origin.h"
#include "daemon/memory/arena.h"
#include "daemon/base/idmap.h"
#include "daemon/base/list.h"
#include "daemon/memory/membership.h"
#include "daemon/objects/offer.h"
#include "daemon/memory/proof.h"
#include "daemon/users/work.h"
#include "daemon/objects/waiting.h"
#include <sys/types.h>

#define DLXD_NAME_SIZE 64

struct dlxd_broker;
struct dlxd_client;
struct dlxd_link;
struct dlxd_outbox;
struct dlxd_topic;
struct dlxd_watch;

/*
 *   NEW --> OPEN --(its client ends)--> DYING --(its process is dead)--> RETAINED
 *             |                                                            ^
 *             +--(it is closed, or its process is dead already)------------+
 *
 *   (from the store) --> RETAINED, or HIDDEN or SHOWN --(its process is dead)--> RETAINED
 *
 * Any of them --> GONE, which is freed with its last link.
 */
enum dlxd_publisher_state {
    DLXD_PUBLISHER_NEW, /* its control block is not ready */
    DLXD_PUBLISHER_OPEN,
    DLXD_PUBLISHER_DYING,    /* its process may still write: links wait */
    DLXD_PUBLISHER_HIDDEN,   /* likewise; a former daemon knew it: nobody is told of it */
    DLXD_PUBLISHER_SHOWN,    /* likewise, but newcomers join it, whose locks it sees */
    DLXD_PUBLISHER_RETAINED, /* what it left is there, and nobody writes it */
    DLXD_PUBLISHER_GONE,
};

struct dlxd_publisher_config {
    uint32_t history;
    uint32_t depth;
    uint32_t n_entries;
    uint32_t on_full;        /* 0 drop oldest, 1 block */
    uint32_t retain;         /* messages; 0: none */
    bool latched;            /* not beyond its end */
    uint64_t retain_for_ns;  /* 0: for ever */
    uint64_t resumes;        /* its id with the first daemon that it was announced to, or 0 */
    uint64_t after_seq;      /* what it has published there */
    uint32_t max_held;       /* messages that one link may hold; 0: no bound */
    uint64_t max_held_bytes; /* likewise, of payload */
};

struct dlxd_publisher {
    struct dlxd_idmap_node by_id; /* GONE: among those */
    struct dlxd_list by_topic;    /* likewise */
    struct dlxd_list by_client;   /* once it has left: in one of the broker's lists */
    struct dlxd_list links;       /* in the order of their ids */
    struct dlxd_broker *broker;
    struct dlxd_client *client; /* NULL once it has left */
    struct dlxd_topic *topic;   /* NULL once GONE */
    enum dlxd_publisher_state state;
    struct dlxd_publisher_config config;
    pid_t pid;
    struct dlxd_principal *principal;
    struct dlxd_user *user; /* whose it is: its work is done in that one's time */
    char client_name[DLXD_NAME_SIZE];
    char topic_name[DLX_TOPIC_SIZE_MAX + 1];

    struct dlxd_outbox *link_sock; /* the daemon's end */
    struct dlxd_waiting waiting;
    struct dlxd_membership_line line;

    bool is_awaited;    /* its PublisherReady could not be answered with Ok yet */
    uint64_t announced; /* 0: nobody is told of it yet; else see registry.h */
    /* To subscriptions that do not join it while it is SHOWN. */
    uint64_t announced_late;
    struct dlxd_offering offering;
    struct dlxd_list *cursor; /* the next of its links to be told something, or the list */
    struct dlxd_task task;    /* tells them that it has gone, or has become RETAINED */
    bool telling;
    uint64_t gone_head; /* GONE: number of its newest message */
    uint64_t gone;      /* the how manieth to go; 0: it is not GONE */

    struct dlxd_arena *proving; /* the region whose proof its client waits for; or NULL */

    struct dlxd_arena *control;
    struct dlxd_arenas unready; /* by id */
    struct dlxd_arenas ready;   /* by ready_seq */
    struct dlxd_arenas dropped; /* by drop_seq: a link has yet to acknowledge it */
    uint32_t last_arena;
    uint64_t last_ready_seq;
    uint64_t last_drop_seq;

    size_t n_links;
    size_t n_undelivered; /* GONE: links that have not been told everything */
    uint64_t *index_bits; /* which link indices are taken */
    size_t n_index_words;

    /* DYING to RETAINED: see retained.h. */
    uint64_t expires_ns;
    struct dlxd_watch *death; /* DYING, HIDDEN, SHOWN: of this process */
    int dying_pidfd;

    /* What outlives the daemon: see store.h. */
    uint32_t ledger_index; /* 0: nothing */
    bool pidfd_kept;
    bool not_kept; /* there was no room for all of it */

    struct dlxd_gpu_member gpu; /* what the GPU keeper holds of it */

    struct dlxd_charge
        object_charge; /* GONE: this and those of its regions are on the first of its links */
};

/* Its client has gone, and the daemon keeps what it left. */
static inline bool dlxd_publisher_leaves(const struct dlxd_publisher *publisher)
{
    return publisher->state >= DLXD_PUBLISHER_DYING && publisher->state <= DLXD_PUBLISHER_RETAINED;
}

/* Nothing new will come by its links. */
static inline bool dlxd_publisher_has_ended(const struct dlxd_publisher *publisher)
{
    return publisher->state >= DLXD_PUBLISHER_DYING && publisher->state != DLXD_PUBLISHER_SHOWN;
}

/* What the publisher gets: fds that belong to whoever called. */
struct dlxd_publisher_fds {
    int control_fd; /* read-write */
    int membership_fd;
    int link_sock;
};

/*
 * A publisher of `client`, in its topic but not announced. Returns 0, DLX_E_LIMIT, DLX_E_NO_MEMORY,
 * DLX_E_FD_LIMIT, DLX_E_SYSTEM.
 */
int dlxd_publisher_new(struct dlxd_publisher **ret, struct dlxd_client *client, const char *topic,
                       const struct dlxd_publisher_config *config,
                       struct dlxd_publisher_fds *ret_fds);
/* A publisher that a former daemon knew: nothing here is taken. */
struct dlxd_publisher_former {
    uint64_t id;
    uid_t uid;
    const char *socket; /* the listening socket that it came in by */
    pid_t pid;
    const char *client_name;
    const char *topic;
    struct dlxd_publisher_config config;
};

/* A region of it. */
struct dlxd_publisher_region {
    uint32_t id; /* 0: the control block */
    uint64_t ready_seq;
    int fd;
    bool not_stored; /* the service manager does not keep it */
};

/*
 * Such a publisher is back, with its regions in the order of `ready_seq`, the
 * control block first: RETAINED, for dlxd_retained_restore(). It is charged even beyond its user's
 * limits. Takes their fds on success. Returns 0; DLX_E_PROTOCOL (they cannot be those of a
 * publisher), DLX_E_NO_MEMORY, DLX_E_SYSTEM.
 */
int dlxd_publisher_restore(struct dlxd_publisher **ret, struct dlxd_broker *broker,
                           const struct dlxd_publisher_former *former,
                           const struct dlxd_publisher_region *regions, size_t n_regions);

/* It closed: RETAINED if it leaves something: true. Else GONE, and freed with its last link. NULL is fine. */
bool dlxd_publisher_end(struct dlxd_publisher *publisher);
/* The same, and its process, which seems to be dead, may write until the pidfd says that it is. */
void dlxd_publisher_die(struct dlxd_publisher *publisher, int pidfd_borrow_fd);
/* GONE, and freed as soon as its last link has ended. */
void dlxd_publisher_vanish(struct dlxd_publisher *publisher);

/* The publisher of this client with this id, or NULL with DLX_E_NOT_FOUND's text set. */
struct dlxd_publisher *dlxd_publisher_find(struct dlxd_client *client, uint64_t id);

/* Begin to look whether its control block was made ready: `fn` is called with the publisher as the
 * owner. Returns 0; DLX_E_IN_USE (was ready), DLX_E_NO_MEMORY, DLX_E_SYSTEM: nothing has
 * changed. */
int dlxd_publisher_prove(struct dlxd_publisher *publisher, dlxd_proof_fn *fn);
/* The look has ended so. Returns 0; on failure, which is `code`, the publisher has ended. */
int dlxd_publisher_ready(struct dlxd_publisher *publisher, int code, const char *text, int take_fd);

/* A region for an arena; the publisher gets the read-write fd, which belongs to whoever called.
 * Returns 0, DLX_E_LIMIT, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM. */
int dlxd_publisher_arena_new(struct dlxd_publisher *publisher, uint64_t size,
                             struct dlxd_arena **ret, int *ret_writer_fd);
/* The same for an arena, which is then scheduled on every open link. Returns 0; DLX_E_NOT_FOUND,
 * DLX_E_NO_MEMORY, DLX_E_SYSTEM: nothing has changed. */
int dlxd_publisher_arena_prove(struct dlxd_publisher *publisher, uint32_t id, dlxd_proof_fn *fn);
/* Returns 0; DLX_E_NO_MEMORY (it is as it was); on failure of the proof, which is `code`, the arena
 * is gone. */
int dlxd_publisher_arena_ready(struct dlxd_publisher *publisher, int code, const char *text,
                               int take_fd);
/* Returns 0, DLX_E_NOT_FOUND, DLX_E_NO_MEMORY (nothing changed). */
int dlxd_publisher_arena_drop(struct dlxd_publisher *publisher, uint32_t id);

/* 0; or DLX_E_FULL, naming a subscription that was there first, and whose link it is to wait for. */
int dlxd_publisher_check_awaited(const struct dlxd_publisher *publisher);

/* Send what its links are to be told, as far as there is room and credit, from the first link on and in steps: for a reply that
 * must come after that. dlxd_publisher_deliver_step() returns whether there is more to do. */
void dlxd_publisher_deliver_begin(struct dlxd_publisher *publisher);
bool dlxd_publisher_deliver_step(struct dlxd_publisher *publisher);
/* A link leaves the list. */
void dlxd_publisher_link_leaves(struct dlxd_publisher *publisher, const struct dlxd_link *link);
/* It was HIDDEN or SHOWN: from now on it is announced to all, and offered by its own task. */
void dlxd_publisher_reveal(struct dlxd_publisher *publisher);
/* A step of its task. */
bool dlxd_publisher_step(struct dlxd_task *task);
/* Its links have something new to be told. */
void dlxd_publisher_tell_links(struct dlxd_publisher *publisher);

/* For links: an index that no other link of the publisher has. Returns 0, DLX_E_NO_MEMORY. */
int dlxd_publisher_index_get(struct dlxd_publisher *publisher, uint32_t *ret);
void dlxd_publisher_index_put(struct dlxd_publisher *publisher, uint32_t index);
/* One more link that knew a dropped arena has acknowledged the drop, or ends. */
void dlxd_publisher_drop_acknowledged(struct dlxd_link *link, struct dlxd_arena *arena);
/* A link of a publisher that is GONE has been told everything: the fds go when all have. */
void dlxd_publisher_delivered(struct dlxd_publisher *publisher);
/* A link has left the list: frees a publisher that is GONE with its last link. */
void dlxd_publisher_link_left(struct dlxd_publisher *publisher);

/* May a newcomer join it? Not while its client ends, or its process may still write what is retained. */
bool dlxd_publisher_is_settled(const struct dlxd_publisher *publisher);

static inline uint64_t dlxd_publisher_id(const struct dlxd_publisher *publisher)
{
    return publisher->by_id.id;
}

/* The one that is this member. */
static inline struct dlxd_publisher *dlxd_publisher_of_gpu(struct dlxd_gpu_member *member)
{
    return dlxd_container_of(member, struct dlxd_publisher, gpu);
}

/* Its id with the first daemon that it was announced to. */
static inline uint64_t dlxd_publisher_origin(const struct dlxd_publisher *publisher)
{
    return publisher->config.resumes ? publisher->config.resumes : dlxd_publisher_id(publisher);
}

#endif
