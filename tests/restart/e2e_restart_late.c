/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon ends, and the next one answers so late that the publisher does not wait for it. */

#include "client/publish/publisher_move.h"
#include "common/memory.h"
#include "tests/restart/harness_restart.h"
#include <inttypes.h>
#include <stdatomic.h>
#include <sys/un.h>

/* Stands between one client and the daemon, and can keep back the answer to a PublisherReady. */
struct proxy {
    int listener;
    int client;
    int daemon;
    atomic_bool keeps_back; /* the answer to the next PublisherReady */
    uint32_t serial;        /* of that */
    atomic_bool stop;
};

/* Returns -1 when it is not there. */
static int connect_to_daemon(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    memcpy(address.sun_path, dlx_test_stream_daemon.path, strlen(dlx_test_stream_daemon.path));
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) < 0)
        fd = dlx__close(fd);
    return fd;
}

static void hang_up(struct proxy *x)
{
    x->client = dlx__close(x->client);
    x->daemon = dlx__close(x->daemon);
}

/* Is this the answer that is kept back? */
static bool is_late(struct proxy *x, const struct dlx_packet *packet, bool is_reply)
{
    static struct dlx_proto_arena arena;
    const Dlx__Wire__Packet *body;
    if (dlx__proto_unpack(&arena, packet->data, packet->size, &body) < 0)
        return false;
    if (!is_reply && body->body_case == BODY(PUBLISHER_READY) &&
        atomic_exchange(&x->keeps_back, false))
        x->serial = body->serial;
    return is_reply && x->serial != 0 && body->serial == x->serial;
}

static void forward(struct proxy *x, int from, int to)
{
    static struct dlx_packet packet;
    int r = dlx__packet_recv_fds(from, &packet);
    if (r == 0 && !is_late(x, &packet, from == x->daemon))
        r = dlx__packet_send(to, packet.data, packet.size, packet.fds, packet.n_fds);
    dlx__packet_deinit(&packet);
    if (r < 0 && r != DLX_E_EMPTY)
        hang_up(x);
}

static void *run_proxy(void *userdata)
{
    struct proxy *x = userdata;
    while (!atomic_load(&x->stop)) {
        struct pollfd fds[] = {{.fd = x->client < 0 ? x->listener : -1, .events = POLLIN},
                               {.fd = x->client, .events = POLLIN},
                               {.fd = x->daemon, .events = POLLIN}};
        (void)poll(fds, 3, 10);
        if (fds[1].revents)
            forward(x, x->client, x->daemon);
        if (fds[2].revents && x->daemon >= 0)
            forward(x, x->daemon, x->client);
        if (fds[0].revents) {
            x->client = accept4(x->listener, NULL, NULL, SOCK_CLOEXEC);
            x->daemon = connect_to_daemon();
            if (x->daemon < 0)
                hang_up(x);
        }
    }
    hang_up(x);
    return NULL;
}

/* The subscription's one link that is no spare is open, and by the present daemon. */
static bool has_one_link(const struct dlx_subscription *s)
{
    for (uint32_t i = 0; i < s->n_links; i++)
        if (dlx__subscriber_link_is_foreign(s->links[i]))
            return false;
    return s->n_open == 1 && s->n_links == s->n_spares + 1;
}

/* Takes message 2, the last on the old link, and goes on to the new one. */
static void *follow(void *userdata)
{
    struct dlx_subscription *s = userdata;
    struct dlx_message *m = NULL;
    dlx_test_stream_take(s, 2);
    while (s->epoch == 0 || !has_one_link(s)) {
        ck_assert_int_eq(dlx_take(s, 0, &m), DLX_E_EMPTY);
        sched_yield();
    }
    return NULL;
}

/* Subscribers were told of the publisher, and some have left their old link, before it knows
 * that. */
TEST(an_announcement_whose_answer_is_late_counts)
{
    char path[300];
    struct proxy proxy = {.client = -1, .daemon = -1};
    (void)snprintf(path, sizeof path, "%s.late", dlx_test_stream_daemon.path);
    auto_fd listener = proxy.listener = dlx_test_listen(path, SOCK_SEQPACKET);
    pthread_t proxy_thread = dlx_test_stream_thread(run_proxy, &proxy);
    const struct dlx_connect_args args = {.size = sizeof args, .socket = path};
    struct dlx_client *c = NULL;
    ok(dlx_connect(&args, &c));
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", PUBLISHER_BLOCKING());
    auto_subscription *s = dlx_test_stream_new_subscription("test/a", SUBSCRIBE_RELIABLY);
    dlx_test_stream_publish(p, 10, 1);
    dlx_test_stream_take(s, 1);
    dlx_test_stream_restart();
    dlx_test_stream_publish(p, 10, 2);
    for (uint64_t until = dlx__deadline(PATIENCE); p->epoch == 0; dlx_test_before(until))
        dlx__publisher_check(p, dlx__now_ns(), DLX_HURRY_NOW_AND_THEN,
                             0); /* it announces itself, and leaves its block */
    dlx_test_stream_restart();
    atomic_store(&proxy.keeps_back, true);
    pthread_t thread = dlx_test_stream_thread(follow, s);
    DLManagedTensorVersioned *large =
        dlx_test_stream_alloc(p, 100000, 0); /* which needs the daemon */
    ck_assert(!atomic_load(&proxy.keeps_back));
    large->deleter(large);
    DLManagedTensorVersioned *third = dlx_test_stream_alloc(p, 10, 3);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    dlx_test_stream_publish_once_joined(p, third, s);
    dlx_test_stream_restart();
    dlx_test_stream_take(s, 3);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    atomic_store(&proxy.stop, true);
    ck_assert_int_eq(pthread_join(proxy_thread, NULL), 0);
    unlink(path);
}

/* Another object of the client has met the next daemon, which has another kind of memory, before it
 * is read. */
LOOP_TEST(an_offer_of_the_former_daemon_is_of_its_kind_of_memory, 0, 2)
{
    static const char *const kinds[] = {"DLX_MEMORY=posix", "DLX_MEMORY=memfd"};
    auto_message *m = NULL;
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_test_daemon_start(&dlx_test_stream_daemon, kinds[_i]);
    auto_client *c = dlx_test_stream_connect(), *c2 = dlx_test_stream_connect();
    auto_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    auto_publisher *p = dlx_test_stream_publisher(c, "test/b", NULL);
    auto_publisher *p2 = dlx_test_stream_publisher(c2, "test/a", NULL);
    auto_subscription *s2 = dlx_test_stream_subscribe(c2, "test/b", NULL);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 10, 1);
    dlx_test_wait_readable(s->sock);             /* the offer of p2 */
    dlx_test_wait_readable(p->daemon.link_sock); /* the link of s2 */
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_test_daemon_start(&dlx_test_stream_daemon, kinds[!_i]);
    (void)dlx_test_stream_list(c, NULL);
    ok(dlx_publish(p, t, NULL, NULL));
    dlx_test_stream_expect(s2, 10, 1);
    int r;
    uint64_t until = dlx__deadline(PATIENCE);
    do {
        dlx_test_before(until);
        dlx_test_stream_publish(p2, 10, 2);
        r = dlx_take(s, 0, &m);
    } while (r == DLX_E_EMPTY || r == DLX_E_DISCONNECTED /* said once */);
    ok(r);
    dlx_test_stream_check(m, 10, 2);
}

static void *let_it_go_on_later(void *userdata)
{
    (void)poll(NULL, 0, 400);
    return kill(*(const pid_t *)userdata, SIGCONT) == 0 ? NULL : userdata;
}

/* The daemon is there, and stands still for longer than a stream would wait: a call waits as long
 * as its caller allows. */
TEST(a_call_waits_for_a_new_daemon_that_is_slow)
{
    auto_client *c = dlx_test_stream_connect();
    void *fault = NULL;
    dlx_test_stream_restart();
    pid_t daemon = dlx_test_stream_daemon.pid;
    dlx_test_daemon_pause(&dlx_test_stream_daemon);
    pthread_t thread = dlx_test_stream_thread(let_it_go_on_later, &daemon);
    (void)dlx_test_stream_list(c, NULL);
    ck_assert_int_eq(pthread_join(thread, &fault), 0);
    ck_assert_ptr_null(fault);
}

enum { NEVER_ANSWERS, ONLY_GREETS, N_MUTES };

/* Listens where the daemon was, and counts those who wait for it. */
struct mute {
    int listener;
    int how;
    atomic_uint n_asked;
    atomic_bool stop;
};

static void greet(int fd, const Dlx__Wire__Packet *hello)
{
    dlx_test_send(fd,
                  DLX_TEST_BODY(HELLO_REPLY, hello_reply, .major = DLX_PROTO_MAJOR,
                                .minor = DLX_PROTO_MINOR, .memory = dlx__memory_memfd.tag,
                                .client = 1, .version = (char[]){"mute"}),
                  hello->serial);
}

/* Count what it waits for, and take no more than needed from it. Returns false when it has left. */
static bool hear(struct mute *x, int fd)
{
    static struct dlx_packet packet;
    static struct dlx_proto_arena arena;
    const Dlx__Wire__Packet *body;
    int r = dlx__packet_recv(fd, &packet);
    if (r == 0)
        r = dlx__proto_unpack(&arena, packet.data, packet.size, &body);
    if (r < 0)
        return r == DLX_E_EMPTY;
    if (body->body_case == BODY(HELLO) && x->how == ONLY_GREETS)
        greet(fd, body);
    else if (body->serial != 0)
        atomic_fetch_add(&x->n_asked, 1);
    return true;
}

static void *run_mute(void *userdata)
{
    struct mute *x = userdata;
    int client = -1;
    while (!atomic_load(&x->stop)) {
        struct pollfd fds[] = {{.fd = client < 0 ? x->listener : -1, .events = POLLIN},
                               {.fd = client, .events = POLLIN}};
        (void)poll(fds, 2, 10);
        if (fds[0].revents)
            client = accept4(x->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fds[1].revents && !hear(x, client))
            client = dlx__close(client);
    }
    dlx__close(client);
    return NULL;
}

/* So long each. The longest pause follows the fifth wait. */
#define MUTE_NS  SECOND
#define PAUSE_NS (SECOND * 8 / 5)

static void publish_one(struct dlx_test_pair *x)
{
    dlx_test_stream_publish(x->p, 10, 1);
}

static void look_for_one(struct dlx_test_pair *x)
{
    struct dlx_message *m = NULL;
    int r = dlx_take(x->s, 0, &m);
    ck_assert(r == DLX_E_EMPTY || r == DLX_E_DISCONNECTED || r == DLX_E_PUBLISHER_GONE);
}

/* Nearly all calls of a stream find that it is too early to ask a daemon that does not answer. */
LOOP_TEST(a_daemon_that_does_not_answer_is_asked_now_and_then, 0, 2 * N_MUTES)
{
    static void (*const calls[])(struct dlx_test_pair *) = {publish_one, look_for_one};
    struct mute mute = {.how = _i % N_MUTES};
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    uint64_t start, n_calls = 0, elapsed;
    publish_one(&x); /* memory is there */
    dlx_test_stream_take(x.s, 1);
    if (calls[_i / N_MUTES] == look_for_one)
        x.p = dlx_publisher_unref(x.p);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    unlink(dlx_test_stream_daemon.path);
    auto_fd listener = mute.listener = dlx_test_listen(dlx_test_stream_daemon.path, SOCK_SEQPACKET);
    pthread_t thread = dlx_test_stream_thread(run_mute, &mute);
    start = dlx__now_ns();
    do {
        calls[_i / N_MUTES](&x);
        n_calls++;
        elapsed = dlx__now_ns() - start;
    } while (elapsed < (uint64_t)MUTE_NS || atomic_load(&mute.n_asked) < 2);
    unsigned n = atomic_load(&mute.n_asked);
    ck_assert_msg(n <= 6 + elapsed / (uint64_t)PAUSE_NS, "asked %u times in %.3f s", n,
                  (double)elapsed / 1e9);
    ck_assert_msg(n_calls > 10 * (uint64_t)n, "%" PRIu64 " calls, %u of them waited", n_calls, n);
    atomic_store(&mute.stop, true);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    unlink(dlx_test_stream_daemon.path);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

struct holder {
    struct dlx_client *c;
    atomic_bool has_it, stop;
};

/* As a call does that waits for a daemon. */
static void *hold_lock(void *userdata)
{
    struct holder *h = userdata;
    (void)dlx__lock_until(&h->c->lock, UINT64_MAX);
    atomic_store(&h->has_it, true);
    while (!atomic_load(&h->stop))
        (void)poll(NULL, 0, 1);
    dlx__lock_release(&h->c->lock);
    return NULL;
}

TEST(a_stream_does_not_wait_for_a_thread_that_waits_for_the_daemon)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    struct holder holder = {.c = x.c};
    uint64_t start, n_calls = 0;
    for (int i = 0; i < 100; i++) /* more memory than it has by then is not needed */
        publish_one(&x);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    pthread_t thread = dlx_test_stream_thread(hold_lock, &holder);
    while (!atomic_load(&holder.has_it))
        sched_yield();
    for (start = dlx__now_ns(); dlx__now_ns() - start < (uint64_t)SECOND; n_calls++)
        publish_one(&x);
    atomic_store(&holder.stop, true);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_msg(n_calls > 500, "%" PRIu64 " messages in a second", n_calls); /* 50 that wait */
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

/* The caller would wait in any case: for a daemon that is there by now. */
TEST(a_call_that_needs_the_daemon_does_not_wait_until_a_pause_ends)
{
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    dlx_test_stream_restart();
    x.c->next_try_ns = UINT64_MAX;
    for (int i = 0; i < 1000; i++)
        dlx__publisher_check(x.p, dlx__now_ns(), DLX_HURRY_NOW_AND_THEN, 0);
    ck_assert_uint_eq(x.p->epoch, 0);
    ck_assert_uint_eq(atomic_load(&x.c->epoch), 0);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 10, 1);
    ck_assert_uint_eq(x.p->epoch, 1);
    ck_assert_uint_eq(x.c->next_try_ns, 0);
    t->deleter(t);
}
