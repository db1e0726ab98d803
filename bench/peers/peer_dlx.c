/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Ours. All arguments are the library's defaults but for spinning, and reliability where nothing
 * may be lost.
 *
 *   --spin N    spin_ns of the subscription, instead of for ever (--mode busy) or never (--mode
 *               block)
 *   --depth N   depth of the publishers
 *   --batch K   messages that dlx_publish_n() and dlx_take_n() pass at once: for --what rate, whose
 *               messages, those of the warm-up included, must be a multiple of it
 */

#include "bench/measure_dlx.h"
#include "bench/peers/peer.h"

#include <stdio.h>

enum { BATCH_MAX = 256 };

static struct dlx_client *client;
static struct dlx_publisher *out;
static struct dlx_subscription *in;
static struct dlx_tensor_spec spec;
static int64_t shape[1];
static DLManagedTensorVersioned *loaned[BATCH_MAX], *taken;
static struct dlx_message *received[BATCH_MAX];
static uint32_t batch, n_loaned, n_received, n_read; /* of a batch */
static struct dlx_caller *caller;                    /* of calls: this, or a service */
static struct dlx_service *service;
static struct dlx_request *request;

static int64_t spin_ns(const struct peer_setup *s)
{
    return bm_long("spin", s->is_blocking ? DLX_SPIN_NEVER : DLX_SPIN_ALWAYS);
}

static const char *topic(const struct peer_setup *s, int32_t channel, char buffer[static 64])
{
    (void)snprintf(buffer, 64, "%s/%d", s->name, (int)channel);
    return buffer;
}

void peer_prepare(const struct peer_setup *s)
{
    spec = bm_bytes(shape, s->size);
    batch = (uint32_t)bm_long("batch", 1);
    if (!batch || batch > BATCH_MAX)
        bm_fail("--batch takes 1 to %d", BATCH_MAX);
}

void peer_open_out(const struct peer_setup *s)
{
    const struct dlx_publisher_args args = {
        .size = sizeof args,
        .on_full = s->is_lossless ? DLX_ON_FULL_BLOCK : 0,
        .depth = (uint32_t)bm_long("depth", 0),
    };
    const struct dlx_caller_args caller_args = {.size = sizeof caller_args, .spin_ns = spin_ns(s)};
    char buffer[64];

    client = bm_connect();
    if (s->is_call && s->out == 0)
        bm_check(dlx_caller_new(client, s->name, &caller_args, &caller), "dlx_caller_new");
    else if (s->out != PEER_NONE && !s->is_call)
        bm_check(dlx_publisher_new(client, topic(s, s->out, buffer), &args, &out), buffer);
}

void peer_open_in(const struct peer_setup *s)
{
    const struct dlx_subscribe_args args = {
        .size = sizeof args,
        .reliable = s->is_lossless,
        .max_held = batch > 1 ? 2 * batch : 0,
        .spin_ns = spin_ns(s),
    };
    const struct dlx_service_args service_args = {.size = sizeof service_args,
                                                  .spin_ns = spin_ns(s)};
    char buffer[64];

    if (s->is_call && s->in == 0)
        bm_check(dlx_service_new(client, s->name, &service_args, &service), "dlx_service_new");
    else if (s->in != PEER_NONE && !s->is_call)
        bm_check(dlx_subscribe(client, topic(s, s->in, buffer), &args, &in), buffer);
}

void peer_connected(const struct peer_setup *s)
{
    (void)s;
    if (caller)
        bm_check(dlx_caller_wait(caller, INT64_C(10000000000)), "waiting for a worker");
    if (out)
        bm_check(dlx_publisher_wait(out, 1, INT64_C(10000000000)), "waiting for the other side");
}

void *peer_loan(void)
{
    if (caller)
        bm_check(dlx_caller_alloc(caller, &spec, &loaned[n_loaned]), "dlx_caller_alloc");
    else if (request)
        bm_check(dlx_request_alloc(request, &spec, &loaned[n_loaned]), "dlx_request_alloc");
    else
        bm_check(dlx_alloc(out, &spec, &loaned[n_loaned]), "dlx_alloc");
    return loaned[n_loaned++]->dl_tensor.data;
}

static const struct dlx_publish_args try_once = {.size = sizeof try_once};

/* When the other side is behind, which only a publisher that blocks is told: try again. */
static void send_batch(void)
{
    uint32_t n_sent;

    for (uint32_t i = 0; i < batch; i += n_sent) {
        int r = dlx_publish_n(out, loaned + i, batch - i, &try_once, NULL, &n_sent);
        if (r != DLX_E_FULL)
            bm_check(r, "dlx_publish_n");
    }
}

static void reply(void)
{
    const struct dlx_item item = {.tensor = loaned[0]};

    bm_check(dlx_reply(request, &item, 1, NULL), "dlx_reply");
    request = dlx_request_unref(request);
}

void peer_send(void)
{
    int r;

    if (n_loaned < batch)
        return;
    n_loaned = 0;
    if (caller)
        return; /* dlx_call() sends it, and waits */
    if (request) {
        reply();
        return;
    }
    if (batch > 1) {
        send_batch();
        return;
    }
    do
        r = dlx_publish(out, loaned[0], &try_once, NULL);
    while (r == DLX_E_FULL);
    bm_check(r, "dlx_publish");
}

static struct dlx_message *call(void)
{
    const struct dlx_item item = {.tensor = loaned[0]};
    struct dlx_message *m;

    bm_check(dlx_call(caller, &item, 1, NULL, &m, NULL), "dlx_call");
    return m;
}

static struct dlx_message *receive(void)
{
    if (caller)
        return call();
    if (service) {
        bm_check(dlx_service_take(service, INT64_C(30000000000), &request), "dlx_service_take");
        return dlx_message_ref(dlx_request_message(request));
    }
    if (batch == 1)
        return bm_take(in);
    if (n_read == n_received) {
        n_read = 0;
        bm_check(dlx_take_n(in, batch, INT64_C(30000000000), received, &n_received), "dlx_take_n");
    }
    return received[n_read++];
}

const void *peer_receive(void)
{
    struct dlx_message *m = receive();

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
    dlx_caller_unref(caller);
    dlx_service_unref(service);
    dlx_subscription_unref(in);
    dlx_publisher_unref(out);
    dlx_client_unref(client);
}

const char *peer_version(void)
{
    return "dlx " DLX_VERSION_STRING;
}
