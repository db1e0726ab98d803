/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_PEER_H
#define DLX_CLIENT_PEER_H

/* Subscribers' processes as their publishers know them: one pidfd a process, shared by its
 * links. */

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct dlx_peer {
    struct dlx_peer *next;
    uint64_t client; /* the daemon's id of the process's connection */
    uint32_t pid;    /* for messages */
    uint32_t refs;
    int pidfd; /* readable once the process is dead */
    bool is_name_known;
    char name
        [16]; /* of its program, for messages; "": it cannot be seen. Set by dlx__peers_name() */
};

struct dlx_peers {
    pthread_mutex_t lock;
    struct dlx_peer *first;
};

void dlx__peers_init(struct dlx_peers *peers);
void dlx__peers_deinit(struct dlx_peers *peers);

/* The peer of this client id: a known one or a new one, with a pidfd of its own. Returns 0;
 * DLX_E_NO_MEMORY, DLX_E_FD_LIMIT. */
int dlx__peers_get(struct dlx_peers *peers, uint64_t client, uint32_t pid, int borrow_pidfd,
                   struct dlx_peer **ret);

/* The name of the peer's program, as ps(1) shows it; "" if this process cannot see that. The name
 * lives as long as the peer. */
const char *dlx__peers_name(struct dlx_peers *peers, struct dlx_peer *peer);

/* NULL is fine. */
void dlx__peers_put(struct dlx_peers *peers, struct dlx_peer *peer);

#endif
