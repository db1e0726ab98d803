/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXK_READERS_H
#define DLXK_READERS_H

/*
 * Readers, from GET until nothing is in flight to them. The router keeps each reader's socket
 * besides the holder that serves it, because what lies unread in it counts for the daemon's user
 * even after the holder has ended.
 *
 *   waiting --(its turn)--> served --(its socket is closed at one end)--> unread --> freed
 */

#include "daemon/base/list.h"
#include "keeper/table.h"
#include "keeper/wire.h"

struct dlxk_reader {
    struct dlxd_list node;     /* in readers->waiting or readers->served */
    struct dlxk_entry *holder; /* NULL: the holder has ended or has sent everything */
    uint32_t uid;
    uint64_t allocation;
    int sock;
    uint64_t deadline_ns; /* served: when the reader and its holder are given up */
    struct dlxk_source on_sock;
};

struct dlxk_readers {
    int epoll;
    struct dlxd_list waiting; /* in the order of their arrival */
    struct dlxd_list served;
    uint32_t n; /* of both lists */
    uint32_t n_served;
    uint32_t n_served_max;
    uint64_t next_look_ns;
};

void dlxk_readers_init(struct dlxk_readers *readers, int borrow_epoll);
void dlxk_readers_deinit(struct dlxk_readers *readers);
/* Sets how many descriptors may be in flight. */
void dlxk_readers_allow(struct dlxk_readers *readers, int64_t n_fds);

/* Answers this GET of the daemon by this holder (NULL: there is none). */
void dlxk_readers_add(struct dlxk_readers *readers, struct dlxk_entry *holder,
                      const struct dlx_keeper_packet *get, int take_sock);
/* Something happened to the reader's socket. May free it. */
void dlxk_readers_moved(struct dlxk_readers *readers, struct dlxk_reader *reader);
/* Does nothing if the holder has no reader. */
void dlxk_readers_holder_ends(struct dlxk_readers *readers, const struct dlxk_entry *holder);

/* When dlxk_readers_look() has something to do; UINT64_MAX: never. */
uint64_t dlxk_readers_next_ns(const struct dlxk_readers *readers, uint64_t now_ns);
void dlxk_readers_look(struct dlxk_readers *readers, uint64_t now_ns);

#endif
