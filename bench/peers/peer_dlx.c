/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Ours. All arguments are the library's defaults but for spinning, and reliability where nothing may be lost.
 *
 *   --spin N    spin_ns of the subscription, instead of for ever (--mode busy) or never (--mode block)
 */

#include "bench/measure_dlx.h"
#include "bench/peers/peer.h"

#include <stdio.h>

static struct dlx_client *client;
static struct dlx_publisher *out;
static struct dlx_subscription *in;
static struct dlx_tensor_spec spec;
static int64_t shape[1];
static DLManagedTensorVersioned *loaned, *taken;

static const char *topic(const struct peer_setup *s, int32_t channel, char buffer[static 64])
{
    (void)snprintf(buffer, 64, "%s/%d", s->name, (int)channel);
    return buffer;
}

void peer_prepare(const struct peer_setup *s)
{
    spec = bm_bytes(shape, s->size);
}

void peer_open_out(const struct peer_setup *s)
{
    const struct dlx_publisher_args args = {
        .size = sizeof args,
        .on_full = s->is_lossless ? DLX_ON_FULL_BLOCK : 0,
    };
    char buffer[64];

    client = bm_connect();
    if (s->out != PEER_NONE)
        bm_check(dlx_publisher_new(client, topic(s, s->out, buffer), &args, &out), buffer);
}

void peer_open_in(const struct peer_setup *s)
{
    const struct dlx_subscribe_args args = {
        .size = sizeof args,
        .reliable = s->is_lossless,
        .spin_ns = bm_long("spin", s->is_blocking ? DLX_SPIN_NEVER : DLX_SPIN_ALWAYS),
    };
    char buffer[64];

    if (s->in != PEER_NONE)
        bm_check(dlx_subscribe(client, topic(s, s->in, buffer), &args, &in), buffer);
}

void peer_connected(const struct peer_setup *s)
{
    if (s->out != PEER_NONE)
        bm_check(dlx_publisher_wait(out, 1, INT64_C(10000000000)), "waiting for the other side");
}

void *peer_loan(void)
{
    bm_check(dlx_alloc(out, &spec, &loaned), "dlx_alloc");
    return loaned->dl_tensor.data;
}

void peer_send(void)
{
    static const struct dlx_publish_args args = {.size = sizeof args};
    int r;

    /* When the other side is behind, which only a publisher that blocks is told: try again. */
    do
        r = dlx_publish(out, loaned, &args);
    while (r == DLX_E_FULL);
    bm_check(r, "dlx_publish");
}

const void *peer_receive(void)
{
    struct dlx_message *m = bm_take(in);

    bm_check(dlx_message_tensor(m, 0, &taken), "dlx_message_tensor");
    dlx_message_unref(m);
    return taken->dl_tensor.data;
}

void peer_release(void)
{
    taken->deleter(taken);
}

void peer_close(void)
{
    dlx_subscription_unref(in);
    dlx_publisher_unref(out);
    dlx_client_unref(client);
}

const char *peer_version(void)
{
    return "dlx " DLX_VERSION_STRING;
}
