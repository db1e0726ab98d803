/* SPDX-License-Identifier: Apache-2.0 */
#include "client/base/peer.h"
#include "common/error.h"
#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

void dlx__peers_init(struct dlx_peers *peers)
{
    pthread_mutex_init(&peers->lock, NULL);
    peers->first = NULL;
}

void dlx__peers_deinit(struct dlx_peers *peers)
{
    assert(!peers->first); /* links hold the client */
    pthread_mutex_destroy(&peers->lock);
}

static int peer_new(struct dlx_peers *peers, uint64_t client, uint32_t pid, int borrow_pidfd,
                    struct dlx_peer **ret)
{
    struct dlx_peer *peer = malloc(sizeof *peer);
    if (!peer)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a peer process");
    int pidfd = fcntl(borrow_pidfd, F_DUPFD_CLOEXEC, 0);
    if (pidfd < 0) {
        int r = dlx__fail_errno("pidfd of a peer process");
        free(peer);
        return r;
    }
    *peer = (struct dlx_peer){.next = peers->first, .client = client, .pid = pid, .pidfd = pidfd};
    peers->first = peer;
    *ret = peer;
    return 0;
}

int dlx__peers_get(struct dlx_peers *peers, uint64_t client, uint32_t pid, int borrow_pidfd,
                   struct dlx_peer **ret)
{
    struct dlx_peer *peer;
    int r = 0;
    pthread_mutex_lock(&peers->lock);
    for (peer = peers->first; peer && peer->client != client; peer = peer->next)
        ;
    if (!peer)
        r = peer_new(peers, client, pid, borrow_pidfd, &peer);
    if (r == 0) {
        peer->refs++;
        *ret = peer;
    }
    pthread_mutex_unlock(&peers->lock);
    return r;
}

/* The pid in the namespace of this process, which is not always that of the daemon. 0: the process
 * cannot be seen. */
static long pid_of(int pidfd)
{
    char path[64], line[128];
    long pid = 0;
    (void)snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    while (pid == 0 && fgets(line, sizeof line, f))
        if (strncmp(line, "Pid:", 4) == 0)
            pid = strtol(line + 4, NULL, 10);
    (void)fclose(f);
    return DLX_MAX(pid, 0L);
}

static void read_name(struct dlx_peer *peer)
{
    char path[64];
    long pid = pid_of(peer->pidfd);
    (void)snprintf(path, sizeof path, "/proc/%ld/comm", pid);
    FILE *f = pid > 0 ? fopen(path, "re") : NULL;
    if (!f)
        return;
    if (fgets(peer->name, sizeof peer->name, f))
        peer->name[strcspn(peer->name, "\n")] = '\0';
    (void)fclose(f);
    for (char *c = peer->name; *c; c++) /* the program chose it, and errors are read on terminals */
        if (*c < ' ' || *c > '~')
            *c = '?';
}

const char *dlx__peers_name(struct dlx_peers *peers, struct dlx_peer *peer)
{
    pthread_mutex_lock(&peers->lock);
    if (!peer->is_name_known)
        read_name(peer);
    peer->is_name_known = true;
    pthread_mutex_unlock(&peers->lock);
    return peer->name;
}

void dlx__peers_put(struct dlx_peers *peers, struct dlx_peer *peer)
{
    if (!peer)
        return;
    pthread_mutex_lock(&peers->lock);
    if (--peer->refs == 0) {
        struct dlx_peer **at = &peers->first;
        while (*at != peer)
            at = &(*at)->next;
        *at = peer->next;
        dlx__close(peer->pidfd);
        free(peer);
    }
    pthread_mutex_unlock(&peers->lock);
}
