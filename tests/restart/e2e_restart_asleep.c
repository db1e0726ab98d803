/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons end while a reliable subscription to a pattern is asleep, so that they have not sent it
 * all that its publishers count on: links, and arenas. The subscription gets every message all the
 * same, once and in order. */

#include "tests/restart/harness_restart.h"
#include <inttypes.h>
#include <stdatomic.h>

#define N_PUBLISHERS 12
/* A pattern has so many spare links. */
#define N_SPARES 8
/* Each of these, one after the other, needs an arena of its own. */
static const int64_t sizes[] = {10, 3000, 9000, 30000, 70000, 150000};
#define N_SIZES ((uint64_t)DLX_ARRAY_SIZE(sizes))

struct stream {
    struct dlx_client *c;
    struct dlx_publisher *p;
    _Atomic uint64_t n; /* published */
    uint64_t taken;
};
static struct stream streams[N_PUBLISHERS];
static unsigned n_streams;
static struct dlx_client *client;
static struct dlx_subscription *s; /* to all of them */

static void begin(void)
{
    dlx_set_debug(false); /* arenas have other sizes in it */
    client = dlx_test_stream_connect();
    s = dlx_test_stream_subscribe(client, "test/*", SUBSCRIBE_RELIABLY);
}

static void end(void)
{
    for (unsigned i = 0; i < n_streams; i++) {
        dlx_publisher_unref(streams[i].p);
        dlx_client_unref(streams[i].c);
    }
    dlx_subscription_unref(s);
    dlx_client_unref(client);
}

static int64_t size_of(uint64_t seq)
{
    return sizes[(seq - 1) % N_SIZES];
}

static struct stream *add_stream(void)
{
    char topic[32];
    struct stream *stream = &streams[n_streams];
    (void)snprintf(topic, sizeof topic, "test/%u", n_streams++);
    stream->c = dlx_test_stream_connect();
    stream->p = dlx_test_stream_publisher(stream->c, topic, PUBLISHER_BLOCKING(.depth = 8));
    return stream;
}

/* One message more; within this time, or never. */
static int publish_within(struct stream *stream, int64_t timeout_ns)
{
    uint64_t seq = stream->n + 1;
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(stream->p, size_of(seq), (int64_t)seq);
    int r = dlx_publish(stream->p, t, PUBLISH(.timeout_ns = timeout_ns), NULL);
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
static int take_one(int64_t timeout_ns)
{
    auto_message *m = NULL;
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
    return 0;
}

static bool all_are_taken(void)
{
    for (unsigned i = 0; i < n_streams; i++)
        if (streams[i].taken < streams[i].n)
            return false;
    return true;
}

/* Publishers that never wait publish `more` each, and the subscription takes everything. */
static void finish(uint64_t more)
{
    uint64_t to[N_PUBLISHERS], until = dlx__deadline(PATIENCE);
    for (unsigned i = 0; i < n_streams; i++)
        to[i] = streams[i].n + more;
    for (bool published = false; !published || !all_are_taken();) {
        published = true;
        for (unsigned i = 0; i < n_streams; i++) {
            if (streams[i].n < to[i])
                (void)publish_within(&streams[i], 0);
            published &= streams[i].n >= to[i];
        }
        while (take_one(SECOND / 1000) == 0)
            ;
        dlx_test_before(until);
    }
    ck_assert_uint_eq(dlx_test_stream_subscription_stats(s).lost, 0);
}

static uint32_t n_sealed_spares(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_links; i++)
        n += s->links[i]->state == DLX_LINK_SEALED;
    return n;
}

/* The subscription looks, and takes nothing, until it has this many links and all its spare ones
 * again. */
static void await_spares(uint32_t n_links)
{
    for (uint64_t until = dlx__deadline(PATIENCE);
         n_sealed_spares() < N_SPARES || s->n_links - s->n_spares < n_links;
         dlx_test_before(until)) {
        dlx__subscription_read_notifications(s);
        sched_yield();
    }
}

/* Events before the subscription wakes up: the daemon is killed; another one is there; the
 * publishers went on with that one; that was killed, too, and a third one is there. */
enum wakes_up { WITHOUT_DAEMON, WITH_DAEMON, WITH_PUBLISHERS, WITH_THIRD_DAEMON };

LOOP_TEST(a_pattern_that_sleeps_through_the_end_of_daemons_gets_all, 0, 4)
{
    for (unsigned i = 0; i < N_PUBLISHERS; i++) {
        publish_all_sizes(add_stream());
        if (i == N_PUBLISHERS - N_SPARES - 1)
            await_spares(i + 1);
    }
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    if (_i == WITHOUT_DAEMON)
        while (take_one(SECOND / 10) == 0)
            ;
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    for (unsigned i = 0; i < N_PUBLISHERS && _i >= WITH_PUBLISHERS; i++)
        dlx_restart_announce(streams[i].p);
    if (_i == WITH_THIRD_DAEMON)
        dlx_test_stream_restart();
    finish(2 * N_SIZES);
}

static void *take_all(void *none)
{
    while (!all_are_taken() && take_one(SECOND / 100) != DLX_E_PUBLISHER_GONE)
        ;
    return none;
}

/* The publishers publish nothing more, so they have not met the next daemon when they close. */
TEST(publishers_that_close_show_the_next_daemon_what_was_not_sent)
{
    for (unsigned i = 0; i < N_SPARES; i++) {
        publish_all_sizes(add_stream());
    }
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    pthread_t thread = dlx_test_stream_thread(take_all, NULL);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    for (unsigned i = 0; i < N_SPARES; i++) {
        streams[i].p->watch.linger_ns = PATIENCE;
        streams[i].p = dlx_publisher_unref(streams[i].p);
    }
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert(all_are_taken());
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

static void *take_until_told(void *stop)
{
    while (!atomic_load((atomic_bool *)stop) && take_one(SECOND / 100) != DLX_E_PUBLISHER_GONE)
        ;
    return NULL;
}

TEST(a_pattern_loses_nothing_when_daemons_end_at_any_moment)
{
    enum { RESTARTS = 12 };
    struct writer writers[N_PUBLISHERS];
    pthread_t threads[N_PUBLISHERS];
    atomic_bool stop = false;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD); /* a daemon that ends is no signal for the threads that publish */
    ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
    for (unsigned i = 0; i < N_PUBLISHERS; i++) {
        writers[i] = (struct writer){add_stream(), &stop};
        await_spares(i + 1);
        threads[i] = dlx_test_stream_thread(publish_until_told, &writers[i]);
    }
    for (unsigned round = 0; round < RESTARTS; round++) {
        for (unsigned k = 0; k < round * 997 % 300; k++) /* some messages, never as many */
            (void)take_one(SECOND / 1000);
        dlx_test_stream_restart();
    }
    atomic_bool reader_stop = false;
    pthread_t thread = dlx_test_stream_thread(take_until_told, &reader_stop);
    atomic_store(&stop, true);
    for (unsigned i = 0; i < N_PUBLISHERS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    atomic_store(&reader_stop, true);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    /* A client that makes no call does not see that the daemon has ended. */
    finish(1);
}

int main(void)
{
    TCase *tcase = dlx_test_stream_case("restart_asleep");
    tcase_add_checked_fixture(tcase, begin, end);
    return dlx_test_run_case(tcase);
}
