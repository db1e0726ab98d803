/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a subscriber is told of links and arenas, whatever the order of events: random histories of
 * publishers, arenas, drops, slow subscribers, acknowledgements and departures, against a model of
 * what the subscriber must know in the end.
 */
#include "common/error.h"
#include "ring/layout.h"
#include "daemon/objects/link.h"
#include "daemon/objects/publisher.h"
#include "daemon/objects/subscription.h"
#include "daemon/users/outbox.h"
#include "tests/daemon/harness_scene.h"
#include "tests/harness/random.h"
#include <check.h>
#include <string.h>
#include <sys/socket.h>

enum { N_PUBLISHERS = 3, N_SUBSCRIBERS = 3, N_LINKS = 64, N_ARENAS = 256, N_STEPS = 400 };

#ifdef DLX_SANITIZE
enum { N_SEEDS = 40 };
#else
enum { N_SEEDS = 200 };
#endif

static struct dlxd_client *client;
static uint64_t random_state;

static unsigned pick(unsigned n)
{
    return (unsigned)((dlx_test_random(&random_state) >> 20) % n);
}

/* ---- what a subscriber has heard of one link ----------------------------------------------- */

struct heard_link {
    uint64_t id;
    uint64_t publisher;
    int page_fd;
    bool open;
    bool gone;
    bool ended; /* failed, or closed by us */
    uint32_t n_announced;
    bool added[N_ARENAS];
    bool dropped[N_ARENAS];
};

struct subscriber {
    struct dlxd_subscription *subscription;
    int fd;
    uint32_t n_fds;   /* packets with fds received */
    uint32_t n_acked; /* and acknowledged */
    struct heard_link links[N_LINKS];
    size_t n_links;
};

static struct subscriber subscribers[N_SUBSCRIBERS];

struct publisher {
    struct dlxd_publisher *publisher; /* NULL: gone */
    int link_sock;                    /* its end */
    uint64_t id;
    bool live[N_ARENAS]; /* ready and not dropped */
};

static struct publisher publishers[16];
static size_t n_publishers;

static struct heard_link *find(struct subscriber *s, uint64_t id)
{
    for (size_t i = 0; i < s->n_links; i++)
        if (s->links[i].id == id)
            return &s->links[i];
    return NULL;
}

static void send_packet(struct subscriber *s, Dlx__Wire__Packet__BodyCase body, void *message)
{
    dlx_scene_send(s->fd, body, message, 0);
}

static void on_offer(struct subscriber *s, const Dlx__Wire__LinkOffer *offer)
{
    ck_assert_ptr_null(find(s, offer->link));
    ck_assert_uint_lt(s->n_links, N_LINKS);
    struct heard_link *link = &s->links[s->n_links++];
    *link = (struct heard_link){.id = offer->link, .publisher = offer->publisher};
    link->page_fd = dlx_scene_take_fd(0);
    ck_assert_int_ge(link->page_fd, 0);
}

static void on_failed(struct subscriber *s, const Dlx__Wire__LinkFailed *failed)
{
    struct heard_link *link = find(s, failed->link);
    ck_assert(!link || !link->open); /* one that was not offered yet may fail, too */
    if (link) {
        link->ended = true;
        link->page_fd = dlx__close(link->page_fd);
    }
}

/* News that crossed with our LinkClose is to be ignored. Every body here starts with the link's
 * id. */
static bool is_about_an_ended_link(struct subscriber *s, const Dlx__Wire__Packet *packet)
{
    const struct heard_link *link = find(s, packet->link_ready->link);
    return link && link->ended;
}

static void on_packet(struct subscriber *s, const Dlx__Wire__Packet *packet)
{
    struct heard_link *link;
    size_t n_fds = dlx_scene_n_fds();
    ck_assert_uint_eq(packet->serial, 0);
    if (n_fds > 0)
        s->n_fds++;
    ck_assert_uint_le(s->n_fds - s->n_acked, DLXD_CREDIT);
    if (is_about_an_ended_link(s, packet))
        return;
    switch (packet->body_case) {
    case BODY(LINK_OFFER):
        ck_assert_uint_eq(n_fds, 1);
        on_offer(s, packet->link_offer);
        break;
    case BODY(LINK_OPEN):
        ck_assert_uint_eq(n_fds, 2);
        link = find(s, packet->link_open->link);
        ck_assert(link && !link->open);
        link->open = true;
        link->n_announced = packet->link_open->n_arenas;
        break;
    case BODY(ARENA_ADDED):
        ck_assert_uint_eq(n_fds, 1);
        link = find(s, packet->arena_added->link);
        ck_assert(link && link->open && !link->gone);
        ck_assert(!link->added[packet->arena_added->arena]);
        ck_assert(!link->dropped[packet->arena_added->arena]);
        link->added[packet->arena_added->arena] = true;
        break;
    case BODY(ARENA_DROPPED):
        ck_assert_uint_eq(n_fds, 0);
        link = find(s, packet->arena_dropped->link);
        ck_assert(link && link->open && !link->gone);
        ck_assert(!link->dropped[packet->arena_dropped->arena]);
        link->dropped[packet->arena_dropped->arena] = true;
        break;
    case BODY(PUBLISHER_GONE):
        link = find(s, packet->publisher_gone->link);
        ck_assert(link && link->open && !link->gone);
        link->gone = true;
        break;
    case BODY(LINK_FAILED):
        on_failed(s, packet->link_failed);
        break;
    default:
        ck_abort_msg("got %s", dlx__proto_name(packet));
    }
}

/* Returns false when nothing was there. */
static bool receive(struct subscriber *s)
{
    const Dlx__Wire__Packet *packet = dlx_scene_receive(s->fd);
    if (packet)
        on_packet(s, packet);
    return packet != NULL;
}

static void acknowledge(struct subscriber *s)
{
    Dlx__Wire__Ack ack = DLX__WIRE__ACK__INIT;
    if (s->n_acked == s->n_fds)
        return;
    ack.n = s->n_acked = s->n_acked + 1 + pick(s->n_fds - s->n_acked);
    send_packet(s, BODY(ACK), &ack);
}

static void get_ready(struct subscriber *s, struct heard_link *link)
{
    Dlx__Wire__LinkReady ready = DLX__WIRE__LINK_READY__INIT;
    if (link->page_fd < 0)
        return;
    dlx_scene_allocate(dlx__steal_fd(&link->page_fd),
                       dlx_shm_link_size(s->subscription->config.max_held));
    ready.link = link->id;
    send_packet(s, BODY(LINK_READY), &ready);
}

static void close_link(struct subscriber *s, struct heard_link *link)
{
    Dlx__Wire__LinkClose leave = DLX__WIRE__LINK_CLOSE__INIT;
    leave.link = link->id;
    link->ended = true;
    link->page_fd = dlx__close(link->page_fd);
    send_packet(s, BODY(LINK_CLOSE), &leave);
}

/* ---- the publishers ------------------------------------------------------------------------ */

static void new_publisher(void)
{
    if (n_publishers == DLX_ARRAY_SIZE(publishers))
        return;
    struct publisher *p = &publishers[n_publishers++];
    p->publisher = dlx_scene_publisher_linked(client, "t", &p->link_sock);
    p->id = dlxd_publisher_id(p->publisher);
}

static void end_publisher(struct publisher *p)
{
    if (!p->publisher)
        return;
    dlxd_publisher_end(p->publisher);
    p->publisher = NULL;
    dlx_scene_close(p->link_sock);
}

static void new_arena(struct publisher *p)
{
    struct dlxd_arena *arena;
    int writer;
    if (!p->publisher || p->publisher->last_arena == N_ARENAS - 1)
        return;
    ck_assert_int_eq(dlxd_publisher_arena_new(p->publisher, DLX_PAGE, &arena, &writer), 0);
    if (pick(10) == 0) { /* never made ready */
        ck_assert_int_eq(dlxd_publisher_arena_drop(p->publisher, arena->id), 0);
        close(writer);
        return;
    }
    dlx_scene_allocate(writer, DLX_PAGE);
    p->live[arena->id] = true;
    dlx_test_broker_arena_ready(&dlx_scene, p->publisher, arena->id);
}

static void drop_arena(struct publisher *p)
{
    uint32_t id = pick(N_ARENAS);
    for (unsigned i = 0; i < N_ARENAS && !p->live[id]; i++)
        id = (id + 1) % N_ARENAS;
    if (!p->publisher || !p->live[id])
        return;
    p->live[id] = false;
    ck_assert_int_eq(dlxd_publisher_arena_drop(p->publisher, id), 0);
}

/* ---- the test ------------------------------------------------------------------------------ */

static void check_link(const struct heard_link *link)
{
    const struct publisher *p = NULL;
    for (size_t i = 0; i < n_publishers; i++)
        if (publishers[i].id == link->publisher)
            p = &publishers[i];
    ck_assert_ptr_nonnull(p);
    ck_assert_msg(link->open, "link %llu is not open", (unsigned long long)link->id);
    ck_assert_int_eq(link->gone, p->publisher == NULL);
    uint32_t n_told = 0;
    for (uint32_t i = 0; i < N_ARENAS; i++) {
        ck_assert_msg((link->added[i] && !link->dropped[i]) == p->live[i],
                      "link %llu, arena %u: added %d, dropped %d, live %d",
                      (unsigned long long)link->id, i, link->added[i], link->dropped[i],
                      p->live[i]);
        n_told += link->added[i] || link->dropped[i];
    }
    /* What LinkOpen announced was told, one way or the other. */
    ck_assert_uint_ge(n_told, link->n_announced);
}

static void step(void)
{
    struct subscriber *s = &subscribers[pick(N_SUBSCRIBERS)];
    struct publisher *p = n_publishers ? &publishers[pick((unsigned)n_publishers)] : NULL;
    struct heard_link *link = s->n_links ? &s->links[pick((unsigned)s->n_links)] : NULL;
    switch (pick(40)) {
    case 0:
        new_publisher();
        break;
    case 1:
        if (p && pick(4) == 0)
            end_publisher(p);
        break;
    case 2:
        if (link && !link->ended && pick(8) == 0)
            close_link(s, link);
        break;
    case 3 ... 8:
        if (p)
            new_arena(p);
        break;
    case 9 ... 12:
        if (p)
            drop_arena(p);
        break;
    case 13 ... 18:
        acknowledge(s);
        break;
    case 19 ... 24:
        if (link && !link->ended)
            get_ready(s, link);
        break;
    default:
        (void)receive(s);
        break;
    }
    dlxd_broker_settle(&dlx_scene.broker);
    if (pick(3) == 0)
        dlx_test_broker_run(&dlx_scene);
}

/* Nothing more happens, and everybody reads and acknowledges. */
static void quiesce(void)
{
    for (int idle = 0; idle < 3;) {
        idle++;
        for (size_t i = 0; i < n_publishers; i++)
            if (publishers[i].publisher)
                (void)dlx_scene_receive_all(publishers[i].link_sock);
        dlx_scene_look();
        dlxd_broker_unstick(&dlx_scene.broker);
        dlx_test_broker_run(&dlx_scene);
        for (size_t i = 0; i < N_SUBSCRIBERS; i++) {
            struct subscriber *s = &subscribers[i];
            while (receive(s))
                idle = 0;
            for (size_t k = 0; k < s->n_links; k++)
                if (!s->links[k].ended)
                    get_ready(s, &s->links[k]);
            acknowledge(s);
        }
    }
}

static void set_up(void)
{
    n_publishers = 0;
    memset(publishers, 0, sizeof publishers);
    memset(subscribers, 0, sizeof subscribers);
    client = dlx_scene_client(0, 1000);
}

static void subscribe(struct subscriber *s, struct dlxd_client *whose)
{
    static const struct dlxd_subscription_config config = {.max_held = 2};
    ck_assert_int_eq(dlxd_subscription_new(&s->subscription, whose, "t", &config, &s->fd), 0);
    dlx_scene_keep(s->fd);
}

/* There is a publisher; then the subscriber's LinkReady is on its way. */
static void begin_joining(struct subscriber *s, struct dlxd_client *whose)
{
    uint32_t n;
    subscribe(s, whose);
    ck_assert_int_eq(dlx_test_broker_offer_all(s->subscription, &n), 0);
    dlxd_broker_settle(&dlx_scene.broker);
    ck_assert(receive(s));
    get_ready(s, &s->links[0]);
    acknowledge(s);
}

LOOP_TEST(subscribers_are_told_everything_once_and_in_order, 0, N_SEEDS)
{
    random_state = (uint64_t)_i * UINT64_C(0x9e3779b97f4a7c15) + 1;
    if (pick(2)) /* a handful are on their way, and the next one waits */
        dlx_scene.broker.users.all_in_flight_max = 8 + pick(16);
    for (size_t i = 0; i < N_SUBSCRIBERS; i++) {
        struct subscriber *s = &subscribers[i];
        uint32_t n;
        int small = 1; /* a handful of packets: the socket is full every now and then */
        if (pick(2))
            new_publisher();
        subscribe(s, client);
        if (pick(2))
            ck_assert_int_eq(
                setsockopt(s->subscription->sock->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small),
                0);
        ck_assert_int_eq(dlx_test_broker_offer_all(s->subscription, &n), 0);
    }
    for (int i = 0; i < N_STEPS; i++)
        step();
    quiesce();
    for (size_t i = 0; i < N_SUBSCRIBERS; i++)
        for (size_t k = 0; k < subscribers[i].n_links; k++)
            if (!subscribers[i].links[k].ended)
                check_link(&subscribers[i].links[k]);
    for (size_t i = 0; i < n_publishers; i++) /* nobody is behind: no dropped arena is remembered */
        if (publishers[i].publisher)
            ck_assert_uint_eq(publishers[i].publisher->dropped.n, 0);
}

/* A subscriber that stands still is remembered by positions: what piles up is bounded by what it
 * was sent, not by what happens meanwhile. */
TEST(subscriber_that_stands_still_costs_nothing_more)
{
    struct subscriber *s = &subscribers[0];
    new_publisher();
    begin_joining(s, client);
    dlx_test_broker_run(&dlx_scene);
    ck_assert(receive(s));
    ck_assert(s->links[0].open);
    struct dlxd_publisher *p = publishers[0].publisher;
    for (int i = 0; i < 10000; i++) {
        const struct dlxd_arena *arena = dlx_scene_arena(p, DLX_PAGE);
        dlxd_broker_settle(&dlx_scene.broker);
        ck_assert_int_eq(dlxd_publisher_arena_drop(p, arena->id), 0);
        dlxd_broker_settle(&dlx_scene.broker);
        ck_assert_uint_le(p->dropped.n + p->ready.n, DLXD_CREDIT);
    }
}

TEST(a_link_waits_while_its_user_has_too_many_descriptors_in_flight)
{
    struct subscriber *s = &subscribers[0];
    new_publisher();
    begin_joining(s, client);
    dlx_scene.broker.users.all_in_flight_max =
        3; /* LinkAdded has three, and something must be left */
    dlx_test_broker_run(&dlx_scene);
    ck_assert_ptr_null(dlx_scene_receive(publishers[0].link_sock));
    ck_assert_int_eq(s->subscription->state, DLXD_SUBSCRIPTION_STUCK);
    dlx_scene.broker.users.all_in_flight_max = 8;
    dlxd_broker_unstick(&dlx_scene.broker);
    dlx_test_broker_run(&dlx_scene);
    ck_assert(receive(s));
    ck_assert(s->links[0].open);
}

/* Others would pay for what it does not read. */
TEST(nobody_joins_a_publisher_whose_user_has_too_many_descriptors_in_flight)
{
    struct subscriber *s = &subscribers[0];
    struct dlxd_charge unread = {.user = NULL};
    new_publisher();
    begin_joining(s, dlx_scene_client(1, 1000));
    dlx_scene.broker.users.all_in_flight_max = 20;
    ck_assert_int_eq(dlxd_charge_init(&unread, client->user, DLXD_IN_FLIGHT, 14), 0);
    dlx_test_broker_run(&dlx_scene);
    ck_assert_ptr_null(dlx_scene_receive(publishers[0].link_sock));
    dlxd_charge_deinit(&unread);
    dlxd_broker_unstick(&dlx_scene.broker);
    dlx_test_broker_run(&dlx_scene);
    ck_assert(receive(s));
    ck_assert(s->links[0].open);
}

/* The subscriber counts its offers from the first number that it hears. */
TEST(the_first_packet_is_about_the_first_offer)
{
    struct subscriber *s = &subscribers[0];
    uint32_t n_offers;
    struct dlxd_client *second = dlx_scene_client(0, 1);
    new_publisher();
    new_publisher();
    subscribe(s, second);
    ck_assert_int_eq(dlx_test_broker_offer_all(s->subscription, &n_offers), 0);
    ck_assert_uint_eq(n_offers, 2);
    dlxd_broker_settle(&dlx_scene.broker);
    uint64_t first = dlx_scene_expect(s->fd, BODY(LINK_OFFER))->link_offer->link;
    /* The second does not fit. */
    ck_assert_uint_eq(dlx_scene_expect(s->fd, BODY(LINK_FAILED))->link_failed->link, first + 1);
}

#ifndef DLX_SANITIZE /* their calloc() is not to be replaced */
static bool no_memory_for_links;
void *__libc_calloc(size_t n, size_t size);

void *calloc(size_t n, size_t size)
{
    return no_memory_for_links && n == 1 && size == sizeof(struct dlxd_link)
               ? NULL
               : __libc_calloc(n, size);
}

START_TEST(a_subscriber_hears_of_a_publisher_that_there_was_no_memory_for)
{
    struct subscriber *s = &subscribers[0];
    subscribe(s, client);
    dlxd_subscription_open(s->subscription);
    no_memory_for_links = true;
    new_publisher();
    no_memory_for_links = false;
    const Dlx__Wire__Packet *packet = dlx_scene_expect(s->fd, BODY(LINK_FAILED));
    ck_assert_int_eq(packet->link_failed->code, DLX_E_NO_MEMORY);
    ck_assert_uint_ne(packet->link_failed->link, 0);
    new_publisher(); /* the next one is offered */
    dlxd_broker_settle(&dlx_scene.broker);
    ck_assert(receive(s));
    ck_assert_uint_eq(s->n_links, 1);
    get_ready(s, &s->links[0]);
}
END_TEST
#endif

int main(void)
{
    TCase *tcase = dlx_scene_case("links", set_up);
#ifndef DLX_SANITIZE
    tcase_add_test(tcase, a_subscriber_hears_of_a_publisher_that_there_was_no_memory_for);
#endif
    return dlx_test_run_case(tcase);
}
