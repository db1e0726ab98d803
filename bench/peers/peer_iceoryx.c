/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Eclipse iceoryx 2, its C binding; iox-roudi runs. As its own benchmark (iceperf) does for a round
 * trip: a history and a queue of one, a take in a loop; to sleep, a wait set that waits for data.
 * Where nothing may be lost the publisher waits for the consumer and the queue is the longest that
 * it has.
 */

#include "bench/measure.h"
#include "bench/peers/peer.h"

#include <iceoryx_binding_c/api.h>
#include <stdio.h>
#include <unistd.h>

static iox_pub_storage_t out_storage;
static iox_sub_storage_t in_storage;
static iox_ws_storage_t wait_set_storage;
static iox_pub_t out;
static iox_sub_t in;
static iox_ws_t wait_set;
static uint32_t size;
static void *loaned;
static const void *taken;

void peer_prepare(const struct peer_setup *s)
{
    size = (uint32_t)s->size;
}

void peer_open_out(const struct peer_setup *s)
{
    char name[64];

    (void)snprintf(name, sizeof name, "%s-%ld", s->name, (long)getpid());
    iox_set_loglevel(Iceoryx_LogLevel_Error);
    iox_runtime_init(name);
    if (s->out == PEER_NONE)
        return;
    iox_pub_options_t options;
    iox_pub_options_init(&options);
    options.historyCapacity = s->is_lossless ? 0 : 1;
    if (s->is_lossless)
        options.subscriberTooSlowPolicy = ConsumerTooSlowPolicy_WAIT_FOR_CONSUMER;
    out = iox_pub_init(&out_storage, "bench", s->name, s->out ? "pong" : "ping", &options);
}

void peer_open_in(const struct peer_setup *s)
{
    if (s->in == PEER_NONE)
        return;
    iox_sub_options_t options;
    iox_sub_options_init(&options);
    options.queueCapacity = s->is_lossless ? 256 : 1;
    options.historyRequest = s->is_lossless ? 0 : 1;
    if (s->is_lossless)
        options.queueFullPolicy = QueueFullPolicy_BLOCK_PRODUCER;
    in = iox_sub_init(&in_storage, "bench", s->name, s->in ? "pong" : "ping", &options);
    if (!s->is_blocking)
        return;
    wait_set = iox_ws_init(&wait_set_storage);
    if (iox_ws_attach_subscriber_state(wait_set, in, SubscriberState_HAS_DATA, 1, NULL) !=
        WaitSetResult_SUCCESS)
        bm_fail("cannot attach to the wait set");
}

void peer_connected(const struct peer_setup *s)
{
    uint64_t deadline_ns = bm_now_ns() + UINT64_C(10000000000);

    while (
        (s->in != PEER_NONE && iox_sub_get_subscription_state(in) != SubscribeState_SUBSCRIBED) ||
        (s->out != PEER_NONE && !iox_pub_has_subscribers(out))) {
        if (bm_now_ns() > deadline_ns)
            bm_fail("the other side is not there");
        usleep(1000);
    }
}

void *peer_loan(void)
{
    enum iox_AllocationResult r = iox_pub_loan_chunk(out, &loaned, size);

    if (r != AllocationResult_SUCCESS)
        bm_fail("iox_pub_loan_chunk of %u bytes: result %d", size, (int)r);
    return loaned;
}

void peer_send(void)
{
    iox_pub_publish_chunk(out, loaned);
}

const void *peer_receive(void)
{
    for (;;) {
        enum iox_ChunkReceiveResult r = iox_sub_take_chunk(in, &taken);
        if (r == ChunkReceiveResult_SUCCESS)
            return taken;
        if (r != ChunkReceiveResult_NO_CHUNK_AVAILABLE)
            bm_fail("iox_sub_take_chunk: result %d", (int)r);
        if (wait_set) {
            iox_notification_info_t info;
            uint64_t n_missed;
            (void)iox_ws_wait(wait_set, &info, 1, &n_missed);
        }
    }
}

void peer_release(void)
{
    iox_sub_release_chunk(in, taken);
}

void peer_close(void)
{
    if (wait_set)
        iox_ws_deinit(wait_set);
    if (in)
        iox_sub_deinit(in);
    if (out)
        iox_pub_deinit(out);
    iox_runtime_shutdown();
}

const char *peer_version(void)
{
    return "iceoryx 2.0.3";
}
