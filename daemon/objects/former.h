/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_FORMER_H
#define DLXD_FORMER_H

/*
 * Memory that an earlier daemon made, or this one on an earlier connection, and that clients still
 * map. No book of this daemon has it until they say so: a client that comes back asks for a former
 * page and lists there what it maps (ring/layout.h). When it unmaps a region, it clears a word of
 * the page, on any thread and without a packet. The daemon looks at the pages now and then, as it
 * does at draining links, and a page ends with its last region or with its process.
 *
 *   FormerNew --> ASKED --FormerReady--> READY --(all words are 0, its process is dead, or another
 *                   |                            FormerReady of the same process)--> freed
 *                   +--(another FormerNew, or its connection ends)--> freed
 *
 * Several clients may list the same region, which is named by its publisher's id, the topic, and
 * its number. It counts once: one of those who list it pays, the publisher first, then the others
 * in their order. A region that this daemon has in its books, since it has restored the publisher,
 * does not count as long as the publisher is there.
 *
 * Nothing proves what a client says, so it has consequences for that client's user alone
 * (docs/decisions/0038).
 *
 *   dlxd_former ("publisher 7 of cam/front")
 *     |-- regions, each with its claims, the payer first
 *     +-- sources: the clients that list some of them
 */

#include "daemon/objects/objects.h"

/* A publisher with an earlier daemon, of whose memory something is left. */
struct dlxd_former {
    struct dlxd_idmap_node by_id;
    struct dlxd_idmap_node by_key;
    struct dlxd_list node; /* in registry->formers */
    struct dlxd_registry *registry;
    uint64_t publisher; /* id with its daemon */
    uint64_t gone;      /* its place among publishers that have gone: registry.h */
    struct dlxd_list regions;
    size_t n_regions;
    struct dlxd_idmap region_keys;
    struct dlxd_list sources; /* by id */
    uint64_t arena_bytes;     /* that count here: not what this daemon knows anyway */
    uint64_t other_bytes;     /* likewise, of control blocks and link pages */
    uint32_t n_arenas;        /* likewise */
    char topic[DLX_TOPIC_SIZE_MAX + 1];
};

/* What one client lists of one of them. */
struct dlxd_former_source {
    uint64_t id;                   /* stands for the id of a link */
    struct dlxd_list node;         /* in former->sources */
    struct dlxd_former *former;    /* NULL: nothing is left */
    struct dlxd_former_page *page; /* its client's */
    size_t n_claims;
    uint64_t bytes;
    bool is_publisher;
};

/* Makes a page for the client, which replaces one that is not ready. `ret_writer_fd` is the
 * caller's. Returns 0, DLX_E_LIMIT, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM. */
int dlxd_former_new(struct dlxd_client *client, uint32_t n_regions, uint32_t n_sources,
                    uint64_t *ret_size, int *ret_writer_fd);
/* The page has this. Returns 0; DLX_E_NOT_FOUND, DLX_E_PROTOCOL, DLX_E_LIMIT, DLX_E_NO_MEMORY:
 * then the page is gone. */
int dlxd_former_ready(struct dlxd_client *client, uint32_t n_regions, uint32_t n_sources);
/* The connection of the process has ended. */
void dlxd_former_disconnected(struct dlxd_holder *holder);

/* Looks what the user's processes have let go; a part of many pages, and rate-limited. */
void dlxd_former_look(struct dlxd_user *user);
void dlxd_former_look_all(struct dlxd_broker *broker);
/* An arena of the publisher was freed, or the publisher is about to be: it is in no map any more.
 * What clients keep of that counts here from now on. */
void dlxd_former_uncover(struct dlxd_broker *broker, const char *topic, uint64_t publisher);
/* The daemon ends: frees all pages. */
void dlxd_former_clear(struct dlxd_broker *broker);

/* Whose page it is. */
const struct dlxd_holder *dlxd_former_holder(const struct dlxd_former_page *page);
uid_t dlxd_former_uid(const struct dlxd_former_page *page);

#endif
