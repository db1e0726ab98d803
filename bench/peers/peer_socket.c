/* SPDX-License-Identifier: Apache-2.0 */

/* A Unix stream socket that carries the bytes: what people write themselves. Both sides know the
 * size. */

#include "bench/measure.h"
#include "bench/peers/peer.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static int fds[2][2]; /* of each channel: to write to, to read from */
static int out = -1, in = -1;
static size_t size;
static int receive_flags;
static char *loaned, *taken;

void peer_prepare(const struct peer_setup *s)
{
    size = s->size;
    receive_flags = s->is_blocking ? 0 : MSG_DONTWAIT;
    loaned = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    taken = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    if (!loaned || !taken)
        bm_fail("out of memory");
    for (int i = 0; i < 2; i++)
        bm_check_errno(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds[i]), "socketpair");
}

void peer_open_out(const struct peer_setup *s)
{
    if (s->out != PEER_NONE)
        out = fds[s->out][0];
}

void peer_open_in(const struct peer_setup *s)
{
    if (s->in != PEER_NONE)
        in = fds[s->in][1];
}

void peer_connected(const struct peer_setup *s)
{
    (void)s;
}

void *peer_loan(void)
{
    return loaned;
}

void peer_send(void)
{
    for (size_t n = 0; n < size;) {
        ssize_t r = send(out, loaned + n, size - n, MSG_NOSIGNAL);
        bm_check_errno(r, "send");
        n += (size_t)r;
    }
}

const void *peer_receive(void)
{
    for (size_t n = 0; n < size;) {
        ssize_t r = recv(in, taken + n, size - n, receive_flags);
        if (r < 0 && errno == EAGAIN)
            continue;
        bm_check_errno(r, "recv");
        if (!r)
            bm_fail("the other side has gone");
        n += (size_t)r;
    }
    return taken;
}

void peer_release(void) {}

void peer_close(void)
{
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++)
            (void)close(fds[i][k]);
    free(loaned);
    free(taken);
}

const char *peer_version(void)
{
    return "Unix socket";
}
