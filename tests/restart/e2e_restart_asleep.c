/* SPDX-License-Identifier: Apache-2.0 */

/* Daemons end while a reliable subscription to a pattern is asleep, so that they have not sent
 * it all that its publishers count on: links, and arenas. It gets every message all the same,
 * once and in order. */

#include "client/publish/publisher.h"
#include "client/subscribe/subscription.h"
#include "tests/harness/stream.h"
#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#define N_PUBLISHERS 12
/* A pattern has so many spare links. */
#define N_SPARES 8
/* Each of these, one after the other, needs an arena of its own. */
static const int64_t sizes[] = {10, 3000, 9000, 30000, 70000, 150000};
#define N_SIZES ((uint64_t)DLX_ARRAY_SIZE(sizes))

static const struct dlx_publisher_args block = {
    .size = sizeof block, .depth = 8, .on_full = DLX_ON_FULL_BLOCK};
static const struct dlx_subscribe_args reliable = {.size = sizeof reliable, .reliable = true};

struct stream {
    struct dlx_client *c;
    struct dlx_publisher *p;
    _Atomic uint64_t n; /* published */
    uint64_t taken;
};

static int64_t size_of(uint64_t seq)
{
    return sizes[(seq - 1) % N_SIZES];
}

static void stream_begin(struct stream *stream, unsigned i)
{
    char topic[32];
    (void)snprintf(topic, sizeof topic, "test/%u", i);
    memset(stream, 0, sizeof *stream);
    stream->c = dlx_test_stream_connect();
    ok(dlx_publisher_new(stream->c, topic, &block, &stream->p));
}

static void stream_end(struct stream *stream)
{
    dlx_publisher_unref(stream->p);
    dlx_client_unref(stream->c);
}

/* One message more; within this time, or never. */
static int publish_within(struct stream *stream, int64_t timeout_ns)
{
    uint64_t seq = stream->n + 1;
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(stream->p, size_of(seq), (int64_t)seq);
    int r = dlx_publish(stream->p, t, PUBLISH(.timeout_ns = timeout_ns));
    if (r < 0)
        t->deleter(t);
    else
        stream->n = seq;
    return r;
}

static void publish_all_sizes(struct stream *stream)
{
    for (uint64_t i = 0; i < N_SIZES; i++)
        ok(publish_within(stream, 0));
}

/* Returns as dlx_take(). */
static int take_one(struct dlx_subscription *s, struct stream *streams, int64_t timeout_ns)
{
    struct dlx_message *m = NULL;
    unsigned i = N_PUBLISHERS;
    int r = dlx_take(s, timeout_ns, &m);
    if (r < 0)
        return r;
    ck_assert_int_eq(sscanf(dlx_message_topic(m), "test/%u", &i), 1);
    ck_assert_uint_lt(i, N_PUBLISHERS);
    uint64_t seq = ++streams[i].taken;
    ck_assert_msg(dlx_message_seq(m) == seq && dlx_message_gap(m) == 0,
                  "test/%u: message %" PRIu64 " with a gap of %" PRIu64
                  " is taken as message %" PRIu64,
                  i, dlx_message_seq(m), dlx_message_gap(m), seq);
    dlx_test_stream_check(m, size_of(seq), (int64_t)seq);
    dlx_message_unref(m);
    return 0;
}

static bool all_are_taken(const struct stream *streams, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (streams[i].taken < streams[i].n)
            return false;
    return true;
}

/* Publishers that never wait publish `more` each, and the subscription takes everything. */
static void finish(struct dlx_subscription *s, struct stream *streams, unsigned n, uint64_t more)
{
    uint64_t to[N_PUBLISHERS];
    time_t end = time(NULL) + PATIENCE_S;
    for (unsigned i = 0; i < n; i++)
        to[i] = streams[i].n + more;
    for (bool published = false; !published || !all_are_taken(streams, n);) {
        published = true;
        for (unsigned i = 0; i < n; i++) {
            if (streams[i].n < to[i])
                (void)publish_within(&streams[i], 0);
            published &= streams[i].n >= to[i];
        }
        while (take_one(s, streams, SECOND / 1000) == 0)
            ;
        ck_assert_int_lt(time(NULL), end);
    }
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).lost, 0);
}

static void wait_until_announced(struct stream *stream, uint64_t epoch)
{
    for (time_t end = time(NULL) + PATIENCE_S; stream->p->epoch == epoch;) {
        (void)dlx_publisher_wait(stream->p, 1000, SECOND / 50);
        ck_assert_int_lt(time(NULL), end);
    }
}

static uint32_t n_sealed_spares(const struct dlx_subscription *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_links; i++)
        n += s->links[i]->publisher == 0 && s->links[i]->settled;
    return n;
}

/* It looks, and takes nothing, until it has so many links and all its spare ones again. */
static void await_spares(struct dlx_subscription *s, uint32_t n_links)
{
    time_t end = time(NULL) + PATIENCE_S;
    while (n_sealed_spares(s) < N_SPARES || s->n_links - s->n_spares < n_links) {
        dlx__subscription_read_notifications(s);
        ck_assert_int_lt(time(NULL), end);
        sched_yield();
    }
}

/* What happens before it wakes up: the daemon is killed; another one is there; the publishers
 * went on with that; that was killed, too, and a third one is there. */
enum wakes_up { WITHOUT_DAEMON, WITH_DAEMON, WITH_PUBLISHERS, WITH_THIRD_DAEMON };

LOOP_TEST(a_pattern_that_sleeps_through_the_end_of_daemons_gets_all, 0, 4)
{
    auto_client *c = dlx_test_stream_connect();
    static struct stream streams[N_PUBLISHERS];
    dlx_set_debug(false); /* arenas have other sizes in it */
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/*", &reliable);
    for (unsigned i = 0; i < N_PUBLISHERS; i++) {
        stream_begin(&streams[i], i);
        publish_all_sizes(&streams[i]);
        if (i == N_PUBLISHERS - N_SPARES - 1)
            await_spares(s, i + 1);
    }
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    if (_i == WITHOUT_DAEMON)
        while (take_one(s, streams, SECOND / 10) == 0)
            ;
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    for (unsigned i = 0; i < N_PUBLISHERS && _i >= WITH_PUBLISHERS; i++)
        wait_until_announced(&streams[i], 0);
    if (_i == WITH_THIRD_DAEMON)
        dlx_test_stream_restart();
    finish(s, streams, N_PUBLISHERS, 2 * N_SIZES);
    for (unsigned i = 0; i < N_PUBLISHERS; i++)
        stream_end(&streams[i]);
}

struct reader {
    struct dlx_subscription *s;
    struct stream *streams;
    unsigned n_streams;
    atomic_bool stop;
};

static void *take_all(void *userdata)
{
    struct reader *r = userdata;
    while (!atomic_load(&r->stop) || !all_are_taken(r->streams, r->n_streams)) {
        int code = take_one(r->s, r->streams, SECOND / 100);
        if (code == DLX_E_PUBLISHER_GONE)
            break;
    }
    return NULL;
}

/* They publish nothing more, so they have not met the next daemon when they close. */
TEST(publishers_that_close_show_the_next_daemon_what_was_not_sent)
{
    auto_client *c = dlx_test_stream_connect();
    static struct stream streams[N_SPARES];
    dlx_set_debug(false);
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/*", &reliable);
    for (unsigned i = 0; i < N_SPARES; i++) {
        stream_begin(&streams[i], i);
        publish_all_sizes(&streams[i]);
    }
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    struct reader reader = {.s = s, .streams = streams, .n_streams = N_SPARES, .stop = true};
    pthread_t thread = dlx_test_stream_thread(take_all, &reader);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    for (unsigned i = 0; i < N_SPARES; i++) {
        streams[i].p->watch.linger_ns = PATIENCE;
        stream_end(&streams[i]);
    }
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert(all_are_taken(streams, N_SPARES));
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).lost, 0);
}

/* Writers of all sizes until they are told to stop. */
struct writer {
    struct stream *stream;
    atomic_bool *stop;
};

static void *publish_until_told(void *userdata)
{
    struct writer *w = userdata;
    while (!atomic_load(w->stop))
        ok(publish_within(w->stream, PATIENCE));
    return NULL;
}

TEST(a_pattern_loses_nothing_when_daemons_end_at_any_moment)
{
    enum { RESTARTS = 12 };
    auto_client *c = dlx_test_stream_connect();
    static struct stream streams[N_PUBLISHERS];
    struct writer writers[N_PUBLISHERS];
    pthread_t threads[N_PUBLISHERS];
    atomic_bool stop = false;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD); /* a daemon that ends is no signal for the threads that publish */
    ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
    dlx_set_debug(false);
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/*", &reliable);
    for (unsigned i = 0; i < N_PUBLISHERS; i++) {
        stream_begin(&streams[i], i);
        await_spares(s, i + 1);
        writers[i] = (struct writer){&streams[i], &stop};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, publish_until_told, &writers[i]), 0);
    }
    for (unsigned round = 0; round < RESTARTS; round++) {
        for (unsigned k = 0; k < round * 997 % 300; k++) /* some messages, never as many */
            (void)take_one(s, streams, SECOND / 1000);
        dlx_test_stream_restart();
    }
    struct reader reader = {.s = s, .streams = streams}; /* waits for nothing in particular */
    pthread_t thread = dlx_test_stream_thread(take_all, &reader);
    atomic_store(&stop, true);
    for (unsigned i = 0; i < N_PUBLISHERS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    atomic_store(&reader.stop, true);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    finish(s, streams, N_PUBLISHERS,
           1); /* who makes no call does not see that the daemon has ended */
    for (unsigned i = 0; i < N_PUBLISHERS; i++)
        stream_end(&streams[i]);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_stream_case("restart_asleep"));
}
