/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXK_TABLE_H
#define DLXK_TABLE_H

/* The router's holders, and the sources of events in its loop. */

#include "daemon/base/list.h"
#include "keeper/holder.h"
#include <sys/types.h>

enum dlxk_source_kind {
    DLXK_ON_LISTENER,
    DLXK_ON_DAEMON,
    DLXK_ON_HOLDER, /* it has sent something or closed its end */
    DLXK_ON_DEATHS, /* of holders */
    DLXK_ON_READER,
};

/* The source of an event of the router's epoll. */
struct dlxk_source {
    enum dlxk_source_kind kind;
    void *owner;
};

/* Closes a descriptor that may be watched. Removes it from the epoll first, because its file, and
 * so its events, may live on elsewhere. Ignores -1. Returns -1. */
int dlxk_unwatch(int borrow_epoll, int take_fd);

/*
 *   live --(killed)--> ending --(dead)--> freed
 *
 * A holder that is blocked by a descriptor may be ending for long. It counts until it is dead.
 */
struct dlxk_entry {
    struct dlxd_list node; /* in table->live or table->ending */
    uint64_t origin;
    uint64_t user;     /* dlx__keeper_user() */
    pid_t pid;         /* of a child that was not reaped */
    int control;       /* -1: ending */
    bool is_orphan;    /* its publisher has closed its end */
    bool is_wanted;    /* the connected daemon has this publisher */
    bool is_forgotten; /* a daemon had it and has sent FORGET */
    struct dlxk_source on_control;
};

struct dlxk_table {
    int epoll;
    int deaths; /* a signalfd */
    struct dlxk_source on_deaths;
    bool is_claimed; /* the connected daemon has sent CLAIMED */
    uint32_t n;      /* of both lists */
    uint32_t n_max;
    struct dlxd_list live;
    struct dlxd_list ending;
};

/* Blocks SIGCHLD. Returns 0, DLX_E_FD_LIMIT, DLX_E_SYSTEM. Deinitialize the table even if this
 * fails. */
int dlxk_table_init(struct dlxk_table *table, int borrow_epoll, uint32_t n_max);
/* Kills all holders without waiting for them. */
void dlxk_table_deinit(struct dlxk_table *table);

/* Returns a live holder or NULL. */
struct dlxk_entry *dlxk_table_find(const struct dlxk_table *table, uint64_t origin, uint64_t user);
/* Starts a holder for a publisher that has none. Takes the socket, also on failure. Returns 0,
 * DLX_E_LIMIT, DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlxk_table_start(struct dlxk_table *table, uint64_t origin, uint64_t user, int take_sock,
                     const struct dlxk_holder_options *options);
/* Kills a live holder. */
void dlxk_table_end(struct dlxk_table *table, struct dlxk_entry *entry);
/* Returns the next dead holder, to be freed; NULL: none. */
struct dlxk_entry *dlxk_table_next_dead(const struct dlxk_table *table);
void dlxk_table_free(struct dlxk_table *table, struct dlxk_entry *entry);

#endif
