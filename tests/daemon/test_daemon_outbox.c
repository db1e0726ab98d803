/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors in flight are charged to the user that causes them, until they are received. A sender
 * that asks is told when a packet was received. */
#include "daemon/users/outbox.h"
#include "tests/daemon/harness_scene.h"
#include "tests/harness/fds.h"

enum { A, B, N_USERS };

static struct dlxd_client *clients[N_USERS];
static struct dlxd_outbox *outbox; /* on which A is sent things */
static int theirs;
static size_t n_fds;
static unsigned n_landed;

static struct dlxd_user *user(int i)
{
    return clients[i]->user;
}

static uint64_t in_flight(int i)
{
    return user(i)->used[DLXD_IN_FLIGHT];
}

static void make_outbox(void)
{
    int pair[2];
    dlx_test_fds_pair(pair);
    outbox = dlxd_outbox_new(dlx_scene.broker.workers, pair[0]);
    ck_assert_ptr_nonnull(outbox);
    theirs = dlx_scene_keep(pair[1]);
}

static void set_up(void)
{
    for (uint32_t i = 0; i < N_USERS; i++)
        clients[i] = dlx_scene_client(i, 100);
    n_fds = dlx_test_broker_n_fds(&dlx_scene);
    make_outbox();
    n_landed = 0;
}

static int send_tracked(int payer, size_t n, struct dlxd_flight **ret)
{
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    const int fds[] = {0, 1, 2};
    packet.body_case = BODY(OK);
    packet.ok = WIRE(ok);
    return dlxd_outbox_send(outbox, user(payer), &packet, fds, n, ret);
}

static int send_fds(int payer, size_t n)
{
    return send_tracked(payer, n, NULL);
}

static void must_send(int payer, size_t n)
{
    ok(send_fds(payer, n));
}

static void must_send_many(int n_packets, int payer, size_t n)
{
    for (int i = 0; i < n_packets; i++)
        must_send(payer, n);
}

static void receive(int n)
{
    for (int i = 0; i < n; i++)
        (void)dlx_scene_expect(theirs, BODY(OK));
    dlx_scene_close_received();
}

/* The daemon sees what was received. */
static void receive_and_look(int n)
{
    receive(n);
    dlx_scene_look();
}

static void close_outbox(void)
{
    outbox = dlxd_outbox_close(outbox, user(A));
}

TEST(descriptors_are_charged_until_the_whole_queue_is_read)
{
    must_send(A, 3);
    must_send(A, 2);
    ck_assert_uint_eq(in_flight(A), 5);
    ck_assert_uint_eq(dlx_scene.broker.users.all_in_flight, 5);
    receive_and_look(1);
    ck_assert_uint_eq(in_flight(A), 5);
    receive_and_look(1);
    ck_assert_uint_eq(in_flight(A), 0);
}

/* How many packets are unread is known but for a factor: none lands too early. */
TEST(of_many_packets_the_oldest_have_landed_when_few_are_unread)
{
    enum { N = 30 };
    must_send_many(N, A, 1);
    for (uint64_t n_left = N; n_left-- > 0;) {
        receive_and_look(1);
        ck_assert_uint_ge(in_flight(A), n_left);
        ck_assert_uint_le(in_flight(A), 6 * n_left);
    }
    ck_assert_uint_eq(in_flight(A), 0);
}

TEST(descriptors_that_were_read_have_landed_when_more_are_sent)
{
    must_send(A, 3);
    receive(1);
    must_send(A, 1);
    ck_assert_uint_eq(in_flight(A), 1);
}

TEST(a_packet_that_is_not_sent_is_not_charged)
{
    int small = 1;
    ck_assert_int_eq(setsockopt(outbox->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    uint64_t n = 0;
    while (send_fds(A, 1) == 0)
        n++;
    ck_assert_int_eq(send_fds(A, 1), DLX_E_FULL);
    ck_assert_uint_gt(n, 0);
    ck_assert_uint_eq(in_flight(A), n);
}

/* A user that does not read takes nothing from one that does. */
TEST(a_user_that_does_not_read_leaves_some_to_others)
{
    dlx_scene.broker.users.all_in_flight_max = 100;
    must_send_many(25, A, 3);
    ck_assert_int_eq(send_fds(A, 1), DLX_E_LIMIT);
    ck_assert_str_eq(
        dlx__error_message(),
        "uid 0 asks for 1 file descriptors on their way, uses 75 and may have at most "
        "3 times what is left: all users together use 75 and may have 100 "
        "(quota descriptors-in-flight); raise dlpackd's RLIMIT_NOFILE (LimitNOFILE= of "
        "its unit, ulimit -n)");
    must_send_many(6, B, 3);
    must_send(B, 1);
    ck_assert_int_eq(send_fds(B, 1), DLX_E_LIMIT);
    receive(32);
    user(A)->next_look_ns = 0;
    must_send(A, 3); /* it looks first */
    ck_assert_uint_eq(in_flight(A), 3);
    ck_assert_uint_eq(in_flight(B), 0);
}

TEST(a_closed_socket_is_kept_until_it_is_read)
{
    uint64_t held = user(A)->used[DLXD_DESCRIPTORS];
    char byte;
    must_send(A, 3);
    close_outbox();
    ck_assert_uint_eq(in_flight(A), 3);
    ck_assert_uint_eq(user(A)->used[DLXD_DESCRIPTORS], held + 1);
    dlx_scene_look();
    ck_assert_uint_eq(dlx_test_broker_n_fds(&dlx_scene), n_fds + 2); /* both ends */
    receive(1);
    ck_assert_int_eq(recv(theirs, &byte, 1, 0), 0); /* it has hung up */
    dlx_scene_look();
    ck_assert_uint_eq(in_flight(A), 0);
    ck_assert_uint_eq(user(A)->used[DLXD_DESCRIPTORS], held);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&dlx_scene), n_fds + 1);
}

TEST(a_closed_socket_goes_when_its_client_closes_it)
{
    must_send(A, 3);
    must_send(B, 1);
    close_outbox();
    dlx_scene_close(theirs);
    dlx_scene_look();
    ck_assert_uint_eq(dlx_scene.broker.users.all_in_flight, 0);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&dlx_scene), n_fds);
}

TEST(a_socket_that_was_read_is_closed_at_once)
{
    must_send(A, 3);
    receive(1);
    close_outbox();
    ck_assert_uint_eq(in_flight(A), 0);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&dlx_scene), n_fds + 1);
}

/* The owner of a socket that its client has not read pays for the packets when it is closed, not
 * their cause. */
TEST(descriptors_unread_when_a_socket_ends_are_on_its_owner)
{
    must_send(B, 3);
    must_send(B, 1);
    uint64_t held = user(B)->used[DLXD_DESCRIPTORS];
    close_outbox();
    ck_assert_uint_eq(in_flight(B), 0);
    ck_assert_uint_eq(in_flight(A), 4);
    ck_assert_uint_eq(user(B)->used[DLXD_DESCRIPTORS], held);
}

/* Then it would be open for as long as it is in our queue, and what was sent to it with it. */
TEST(a_client_that_sends_its_own_end_over_itself_keeps_nothing)
{
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    packet.body_case = BODY(OK);
    packet.ok = WIRE(ok);
    ok(dlx__proto_send(theirs, &packet, &theirs, 1));
    must_send(A, 3);
    close_outbox();
    dlx_scene_close(theirs);
    dlx_test_broker_run(&dlx_scene); /* a worker empties our queue */
    dlx_scene_look();
    ck_assert_uint_eq(in_flight(A), 0);
}

/* Charges that move to a user beyond its limit leave nothing to others, and not everything. */
TEST(beyond_the_limit_nothing_is_left)
{
    dlx_scene.broker.users.all_descriptors_max = dlx_scene.broker.users.all_descriptors;
    must_send(A, 1);
    close_outbox();
    ck_assert_uint_gt(dlx_scene.broker.users.all_descriptors,
                      dlx_scene.broker.users.all_descriptors_max);
    (void)dlx_users_refused(user(B), DLXD_OBJECTS, 1);
}

/* The daemon checks also a user of which only flights are left. */
TEST(a_user_that_has_left_goes_when_its_descriptors_have_landed)
{
    must_send(B, 1);
    must_send(A, 1);
    must_send(B, 1);
    dlxd_client_free(clients[B]);
    receive(3);
    user(A)->next_look_ns = 0; /* the user that has left has no other look */
    dlxd_flights_look_all(&dlx_scene.broker.users);
    ck_assert_uint_eq(dlx_scene.broker.users.all_in_flight, 0);
}

static unsigned landed[4]; /* by number, 1 and up: in this order */
static struct dlxd_flight *tracked[4];

static void on_landed(struct dlxd_flight *flight)
{
    unsigned number = 1;
    while (tracked[number] != flight)
        number++;
    landed[++n_landed] = number;
    tracked[number] = NULL;
}

static void must_track(unsigned number)
{
    ok(send_tracked(A, 0, &tracked[number]));
    tracked[number]->landed = on_landed;
}

TEST(a_packet_without_descriptors_lands_when_the_queue_is_read)
{
    must_track(1);
    must_track(2);
    ck_assert_uint_eq(in_flight(A), 0);
    ck_assert(dlxd_flights_are_left(&dlx_scene.broker.users));
    receive_and_look(1);
    ck_assert_uint_eq(n_landed, 0);
    receive_and_look(1);
    ck_assert_uint_eq(n_landed, 2);
    ck_assert(landed[1] == 1 && landed[2] == 2);
    ck_assert(!dlxd_flights_are_left(&dlx_scene.broker.users));
}

TEST(a_flight_that_is_given_up_does_not_land)
{
    must_track(1);
    must_track(2);
    must_track(3);
    tracked[1] = dlxd_flight_free(tracked[1]); /* the one that stood for all of them */
    tracked[2] = dlxd_flight_free(tracked[2]);
    receive_and_look(3);
    ck_assert_uint_eq(n_landed, 1);
    ck_assert_uint_eq(landed[1], 3);
}

TEST(a_packet_without_descriptors_keeps_no_closed_socket)
{
    must_send(A, 0);
    close_outbox();
    ck_assert_uint_eq(dlx_test_broker_n_fds(&dlx_scene), n_fds + 1);
    ck_assert(!dlxd_flights_are_left(&dlx_scene.broker.users));
}

/* A user with as much in flight as it may have still hears of drops. */
TEST(a_packet_without_descriptors_meets_no_limit)
{
    dlx_scene.broker.users.all_in_flight_max = 100;
    must_send_many(25, A, 3);
    must_send_many(8, B, 2);
    ck_assert_int_eq(send_fds(A, 1), DLX_E_LIMIT);
    must_send(A, 0);
    receive(34);
}

/* Of many packets on one socket one stands for all: the others hide no other socket. */
TEST(a_look_finds_a_socket_that_was_read_behind_many_packets)
{
    struct dlxd_outbox *full = outbox;
    must_send_many(200, A, 0);
    make_outbox();
    must_track(1);
    dlx_scene_close(theirs);
    dlx_scene_look();
    ck_assert_uint_eq(n_landed, 1);
    dlxd_outbox_close(outbox, user(A));
    outbox = full;
}

int main(void)
{
    TCase *tcase = dlx_scene_case("outbox", NULL);
    tcase_add_checked_fixture(tcase, set_up, close_outbox);
    return dlx_test_run_case(tcase);
}
