/* SPDX-License-Identifier: Apache-2.0 */

/*
 * ZeroMQ over ipc: PUSH and PULL, as in its own throughput test (local_thr), a pair of them each
 * way; for calls REQ and REP, as in its own latency test (local_lat). Messages are written where
 * they are sent from (zmq_msg_init_size), so that the library does not copy them once more.
 */

#include "bench/measure.h"
#include "bench/peers/peer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

static void *context, *out, *in;
static size_t size;
static int receive_flags;
static zmq_msg_t loaned, taken;

static const char *address(const struct peer_setup *s, int32_t channel, char buffer[static 128])
{
    (void)snprintf(buffer, 128, "ipc://%s/%s-%d", bm_text("folder", "/tmp"), s->name, (int)channel);
    return buffer;
}

static void check(int r, const char *what)
{
    if (r < 0)
        bm_fail("%s: %s", what, zmq_strerror(zmq_errno()));
}

/*
 * Its thread for input and output is a child of this one, which is pinned by now. With large
 * messages it is faster by half when it may run on both CPUs (1 MiB, blocking: 150 instead of 320
 * us), with small ones when it may not.
 */
static void let_thread_float(size_t message_size)
{
    int cpus[2];

    if (message_size < 65536 || sscanf(bm_text("cpus", ""), "%d,%d", &cpus[0], &cpus[1]) != 2)
        return;
    for (int i = 0; i < 2; i++)
        check(zmq_ctx_set(context, ZMQ_THREAD_AFFINITY_CPU_ADD, cpus[i]),
              "ZMQ_THREAD_AFFINITY_CPU_ADD");
}

void peer_prepare(const struct peer_setup *s)
{
    size = s->size;
    receive_flags = s->is_blocking ? 0 : ZMQ_DONTWAIT;
}

void peer_open_out(const struct peer_setup *s)
{
    char buffer[128];

    context = zmq_ctx_new();
    if (!context)
        bm_fail("zmq_ctx_new");
    let_thread_float(s->size);
    if (s->out == PEER_NONE)
        return;
    out = zmq_socket(context, !s->is_call ? ZMQ_PUSH : s->out == 0 ? ZMQ_REQ : ZMQ_REP);
    if (!out)
        bm_fail("zmq_socket");
    if (s->is_call)
        in = out;
    if (!s->is_call || s->out == 1)
        check(zmq_bind(out, address(s, s->out, buffer)), buffer);
}

void peer_open_in(const struct peer_setup *s)
{
    char buffer[128];

    if (s->in == PEER_NONE || (s->is_call && s->in == 0))
        return;
    if (!s->is_call)
        in = zmq_socket(context, ZMQ_PULL);
    if (!in)
        bm_fail("zmq_socket");
    check(zmq_connect(in, address(s, s->in, buffer)), buffer);
}

void peer_connected(const struct peer_setup *s)
{
    (void)s; /* a PUSH socket waits for the other side itself */
}

void *peer_loan(void)
{
    check(zmq_msg_init_size(&loaned, size), "zmq_msg_init_size");
    return zmq_msg_data(&loaned);
}

void peer_send(void)
{
    check(zmq_msg_send(&loaned, out, 0), "zmq_msg_send");
}

const void *peer_receive(void)
{
    int r;

    check(zmq_msg_init(&taken), "zmq_msg_init");
    do
        r = zmq_msg_recv(&taken, in, receive_flags);
    while (r < 0 && zmq_errno() == EAGAIN);
    check(r, "zmq_msg_recv");
    if ((size_t)r != size)
        bm_fail("a message of %d bytes instead of %zu", r, size);
    return zmq_msg_data(&taken);
}

void peer_release(void)
{
    check(zmq_msg_close(&taken), "zmq_msg_close");
}

void peer_close(void)
{
    if (in && in != out)
        check(zmq_close(in), "zmq_close");
    if (out)
        check(zmq_close(out), "zmq_close");
    check(zmq_ctx_term(context), "zmq_ctx_term");
}

const char *peer_version(void)
{
    static char version[32];
    int major, minor, patch;

    zmq_version(&major, &minor, &patch);
    (void)snprintf(version, sizeof version, "ZeroMQ %d.%d.%d", major, minor, patch);
    return version;
}
