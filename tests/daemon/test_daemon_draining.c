/* SPDX-License-Identifier: Apache-2.0 */

/* Links that have ended and whose subscribers hold messages: who is charged for them, and until when. */

#include "common/error.h"
#include "common/memory.h"
#include "ring/layout.h"
#include "daemon/objects/draining.h"
#include "daemon/objects/link.h"
#include "daemon/objects/publisher.h"
#include "daemon/objects/subscription.h"
#include "tests/harness/broker.h"
#include "tests/harness/run.h"
#include <check.h>
#include <string.h>
#include <sys/socket.h>

#define BODY(name) DLX__WIRE__PACKET__BODY_##name

enum { MAX_HELD = 70, N = 40 };

static const struct dlxd_publisher_config publisher_config = {
    .history = 1, .depth = 16, .n_entries = 256};
static const struct dlxd_subscription_config subscription_config = {.max_held = MAX_HELD};

static struct {
    struct dlx_test_broker test;
    struct dlxd_client *writer, *reader;
    int control[2];
    struct dlxd_publisher *publisher;
    int link_sock; /* the publisher's end */
    struct dlx_packet rx;
    struct dlx_proto_arena unpacked;
    char why[DLX_ERROR_TEXT_SIZE];
} w;

/* A subscription with a link to the publisher. */
struct reading {
    struct dlxd_subscription *subscription;
    int fd;
    struct dlx_shm_link *page;
};

static void setup(uint32_t max_links)
{
    struct dlxd_publisher_fds fds;
    void *map;
    memset(&w, 0, sizeof w);
    dlx_test_broker_init(&w.test, UINT64_C(1) << 30);
    w.writer = dlx_test_broker_client(&w.test, max_links, &w.control[0]);
    w.reader = dlx_test_broker_client(&w.test, N, &w.control[1]);
    ck_assert_int_eq(dlxd_publisher_new(&w.publisher, w.writer, "t", &publisher_config, &fds), 0);
    uint64_t size = w.publisher->control->size;
    ck_assert_int_eq(dlx__region_populate(&dlx__memory_memfd, fds.control_fd, size, &map), 0);
    dlx__region_unmap(map, size);
    close(fds.membership_fd);
    w.link_sock = fds.link_sock;
    dlx_test_broker_ready(&w.test, w.publisher);
}

static void teardown(void)
{
    dlx_test_broker_deinit(&w.test);
    dlx__packet_deinit(&w.rx);
    close(w.control[0]);
    close(w.control[1]);
    close(w.link_sock);
}

static const Dlx__Wire__Packet *receive(int fd)
{
    const Dlx__Wire__Packet *packet;
    dlx__packet_deinit(&w.rx);
    ck_assert_int_eq(dlx__packet_recv_fds(fd, &w.rx), 0);
    ck_assert_int_eq(dlx__proto_unpack(&w.unpacked, w.rx.data, w.rx.size, &packet), 0);
    return packet;
}

static void say(int fd, Dlx__Wire__Packet__BodyCase body, void *message)
{
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    packet.body_case = body;
    packet.ok = message;
    ck_assert_int_eq(dlx__proto_send(fd, &packet, NULL, 0), 0);
    dlx_test_broker_run(&w.test);
}

static void read_link_socket(void)
{
    while (dlx__packet_recv_fds(w.link_sock, &w.rx) == 0)
        dlx__packet_deinit(&w.rx);
}

/* Returns 0, or the code of LinkFailed; its text is in w.why. */
static int join(struct reading *ret)
{
    Dlx__Wire__LinkReady ready = DLX__WIRE__LINK_READY__INIT;
    uint32_t n;
    void *map;
    ck_assert_int_eq(
        dlxd_subscription_new(&ret->subscription, w.reader, "t", &subscription_config, &ret->fd),
        0);
    ck_assert_int_eq(dlx_test_broker_offer_all(ret->subscription, &n), 0);
    ck_assert_uint_eq(n, 1);
    dlxd_broker_settle(&w.test.broker);
    const Dlx__Wire__Packet *packet = receive(ret->fd);
    if (packet->body_case == BODY(LINK_FAILED)) {
        (void)snprintf(w.why, sizeof w.why, "%s", packet->link_failed->text);
        int code = packet->link_failed->code;
        dlxd_subscription_free(ret->subscription);
        close(ret->fd);
        return code;
    }
    ck_assert_int_eq(packet->body_case, BODY(LINK_OFFER));
    ready.link = packet->link_offer->link;
    ck_assert_int_eq(dlx__region_populate(&dlx__memory_memfd, dlx__packet_steal_fd(&w.rx, 0),
                                          packet->link_offer->page_size, &map),
                     0);
    ret->page = map;
    say(ret->fd, BODY(LINK_READY), &ready);
    ck_assert_int_eq(receive(ret->fd)->body_case, BODY(LINK_OPEN));
    dlx__packet_deinit(&w.rx);
    read_link_socket();
    return 0;
}

static void hold(const struct reading *reading, uint64_t word)
{
    dlx_store64_sc(&reading->page->hold[MAX_HELD - 1], word);
}

/* Its subscription is closed; the memory stays mapped, as that of messages does. */
static void leave(struct reading *reading, bool says_so)
{
    if (says_so)
        dlx_store64_sc(&reading->page->cursor, DLX_SHM_CURSOR_CLOSED);
    dlxd_subscription_free(reading->subscription);
    close(reading->fd);
}

static void forget(const struct reading *reading)
{
    dlx__region_unmap(reading->page, dlx_shm_link_size(MAX_HELD));
}

static void join_and_hold(struct reading *ret)
{
    ck_assert_int_eq(join(ret), 0);
    hold(ret, 7);
    leave(ret, true);
}

static void look(void)
{
    w.writer->user->drains.look_ns = 0; /* the last one may have been just now */
    dlxd_drains_look_all(&w.test.broker);
}

/* So many links count, of which none is there. */
static void expect(size_t n)
{
    const struct dlxd_user *user = w.writer->user;
    ck_assert_uint_eq(w.publisher->n_links, 0);
    ck_assert_uint_eq(w.test.broker.registry.links.n, 0);
    ck_assert_uint_eq(w.writer->n_links, n);
    ck_assert_uint_eq(user->used[DLXD_LINKS], n);
    ck_assert_uint_eq(user->used[DLXD_BYTES],
                      w.publisher->control->size + n * dlx_shm_link_size(MAX_HELD));
    ck_assert_uint_eq(dlxd_drains_n_all(&w.test.broker), n);
}

START_TEST(who_holds_something_stays_charged_until_it_is_given_back)
{
    struct reading reading;
    setup(N);
    size_t n_fds = dlx_test_broker_n_fds(&w.test);
    join_and_hold(&reading);
    expect(1);
    ck_assert_uint_eq(w.reader->n_links, 1);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&w.test), n_fds + 1); /* its page */
    look();
    expect(1);
    hold(&reading, 0);
    look();
    expect(0);
    ck_assert_uint_eq(w.reader->n_links, 0);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&w.test), n_fds);
    forget(&reading);
    teardown();
}
END_TEST

START_TEST(who_holds_nothing_is_let_go_at_once)
{
    struct reading reading;
    setup(N);
    size_t n_fds = dlx_test_broker_n_fds(&w.test);
    ck_assert_int_eq(join(&reading), 0);
    leave(&reading, true);
    expect(0);
    ck_assert_uint_eq(w.reader->n_links, 0);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&w.test), n_fds);
    forget(&reading);
    teardown();
}
END_TEST

/* It could take what comes: its publisher keeps the page. */
START_TEST(who_does_not_say_that_it_has_closed_stays_charged)
{
    struct reading reading;
    setup(N);
    ck_assert_int_eq(join(&reading), 0);
    leave(&reading, false);
    look();
    expect(1);
    dlx_store64_sc(&reading.page->cursor, DLX_SHM_CURSOR_CLOSED);
    look();
    expect(0);
    forget(&reading);
    teardown();
}
END_TEST

/* Until a look is worth while again: one was just now. */
static void join_in_the_end(struct reading *ret)
{
    while (join(ret) == DLX_E_LIMIT)
        continue;
    leave(ret, true);
    forget(ret);
}

enum limit { READERS, WRITERS, USERS_LINKS, USERS_BYTES, N_LIMITS };

START_TEST(a_newcomer_that_meets_a_limit_is_told_of_them_or_takes_their_place)
{
    static const char *const whose[N_LIMITS] = {"subscriber test", "publisher test", "may have 5",
                                                "of shared memory"};
    struct reading held[5], next;
    setup(_i == WRITERS ? 5 : N);
    w.reader->max_links = _i == READERS ? 5 : N;
    uint64_t *max = w.test.broker.users.max;
    max[DLXD_LINKS] = _i == USERS_LINKS ? 5 : N;
    if (_i == USERS_BYTES)
        max[DLXD_BYTES] = w.publisher->control->size + 5 * dlx_shm_link_size(MAX_HELD);
    for (int i = 0; i < 5; i++)
        join_and_hold(&held[i]);
    ck_assert_int_eq(join(&next), DLX_E_LIMIT);
    ck_assert_msg(strstr(w.why, "5 closed subscriptions still hold messages") &&
                      strstr(w.why, whose[_i]),
                  "%s", w.why);
    expect(5);
    hold(&held[3], 0); /* and nobody tells */
    join_in_the_end(&next);
    expect(4);
    for (int i = 0; i < 5; i++) {
        hold(&held[i], 0);
        forget(&held[i]);
    }
    look();
    expect(0);
    teardown();
}
END_TEST

START_TEST(they_are_looked_at_when_they_have_doubled)
{
    struct reading held[9];
    setup(N);
    for (int i = 0; i < 8; i++) {
        join_and_hold(&held[i]);
        hold(&held[i], 0);
    }
    expect(8);
    join_and_hold(&held[8]);
    expect(1);
    for (int i = 0; i < 9; i++)
        forget(&held[i]);
    teardown();
}
END_TEST

START_TEST(a_process_that_disconnects_has_them_yet)
{
    struct reading held[2];
    setup(N);
    size_t n_fds = dlx_test_broker_n_fds(&w.test);
    join_and_hold(&held[0]);
    ck_assert_int_eq(join(&held[1]), 0); /* ends with the connection */
    hold(&held[1], 7);
    dlx_store64_sc(&held[1].page->cursor, DLX_SHM_CURSOR_CLOSED);
    dlxd_client_free(w.reader);
    close(held[1].fd);
    expect(2);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&w.test),
                      n_fds + 2 - 1); /* two pages and the pidfd; no socket */
    hold(&held[0], 0);
    look();
    expect(1);
    hold(&held[1], 0);
    look();
    expect(0);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&w.test), n_fds - 2); /* nor that */
    forget(&held[0]);
    forget(&held[1]);
    teardown();
}
END_TEST

START_TEST(the_end_of_their_publisher_ends_them_step_by_step)
{
    enum { MANY = 100, MOST = 16 };
    static struct reading held[MANY];
    setup(MANY);
    w.reader->max_links = MANY;
    size_t n_fds = dlx_test_broker_n_fds(&w.test);
    for (int i = 0; i < MANY; i++)
        join_and_hold(&held[i]);
    (void)dlxd_publisher_end(w.publisher);
    ck_assert_uint_eq(w.writer->n_links, 0); /* its process has nothing to do with them any more */
    for (size_t left = MANY; left > 0;) {
        size_t before = left;
        dlxd_work_run(&w.test.broker.users, 1);
        left = dlxd_drains_n_all(&w.test.broker);
        ck_assert_uint_le(before - left, MOST);
        ck_assert_uint_eq(w.writer->user->used[DLXD_LINKS], left);
    }
    ck_assert_uint_eq(w.reader->n_links, 0);
    ck_assert_uint_eq(w.writer->user->used[DLXD_BYTES], 0);
    ck_assert_uint_lt(dlx_test_broker_n_fds(&w.test), n_fds);
    for (int i = 0; i < MANY; i++)
        forget(&held[i]);
    teardown();
}
END_TEST

/* Before its task has come to them: the task goes with the last of them. */
START_TEST(a_look_may_end_those_whose_publisher_has_left)
{
    struct reading held[2];
    setup(N);
    join_and_hold(&held[0]);
    join_and_hold(&held[1]);
    (void)dlxd_publisher_end(w.publisher);
    look();
    ck_assert_uint_eq(dlxd_drains_n_all(&w.test.broker), 0);
    ck_assert(dlxd_list_empty(&w.writer->user->tasks));
    forget(&held[0]);
    forget(&held[1]);
    teardown();
}
END_TEST

/* Many are looked at in parts, since each takes 5 us of the loop's time: each has its turn. */
START_TEST(everybody_is_looked_at_in_turn)
{
    enum { MANY = 1200, AT_ONCE = 128, PARTS = (MANY + AT_ONCE - 1) / AT_ONCE };
    static struct reading held[MANY];
    setup(MANY);
    w.reader->max_links = MANY;
    for (int i = 0; i < MANY; i++)
        join_and_hold(&held[i]);
    expect(MANY);
    hold(&held[MANY / 2], 0);
    for (int i = 0; i < PARTS; i++)
        look();
    expect(MANY - 1);
    for (int i = 0; i < MANY; i++)
        hold(&held[i], 0);
    look();
    expect(MANY - 1 - AT_ONCE);
    for (int i = 1; i < PARTS; i++)
        look();
    expect(0);
    for (int i = 0; i < MANY; i++)
        forget(&held[i]);
    teardown();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("daemon_draining");
    TCase *tcase = tcase_create("draining");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, who_holds_something_stays_charged_until_it_is_given_back);
    tcase_add_test(tcase, who_holds_nothing_is_let_go_at_once);
    tcase_add_test(tcase, who_does_not_say_that_it_has_closed_stays_charged);
    tcase_add_loop_test(tcase, a_newcomer_that_meets_a_limit_is_told_of_them_or_takes_their_place,
                        0, N_LIMITS);
    tcase_add_test(tcase, they_are_looked_at_when_they_have_doubled);
    tcase_add_test(tcase, a_process_that_disconnects_has_them_yet);
    tcase_add_test(tcase, the_end_of_their_publisher_ends_them_step_by_step);
    tcase_add_test(tcase, a_look_may_end_those_whose_publisher_has_left);
    tcase_add_test(tcase, everybody_is_looked_at_in_turn);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
