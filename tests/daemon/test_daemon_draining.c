/* SPDX-License-Identifier: Apache-2.0 */

/* Links that have ended and whose subscribers hold messages: who is charged for them, and until
 * when. */

#include "ring/layout.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/drain.h"
#include "daemon/objects/pending_join.h"
#include "daemon/objects/publisher_state.h"
#include "daemon/users/outbox.h"
#include "daemon/users/principal.h"
#include "tests/daemon/harness_scene.h"

enum { MAX_HELD = 70, MAX_LINKS = 1200 };

/* A subscription with a link to the publisher. */
struct reading {
    struct dlxd_subscription *subscription;
    int fd;
    struct dlx_shm_link *page;
};

static struct dlxd_client *writer, *reader;
static struct dlxd_publisher *publisher;
static int link_sock; /* the publisher's end */
static char why[DLX_ERROR_TEXT_SIZE];
static struct reading held[MAX_LINKS]; /* those that hold something */

static void set_up(void)
{
    writer = dlx_scene_client(0, MAX_LINKS);
    writer->principal->minor = DLX_PROTO_MINOR;
    reader = dlx_scene_client(0, MAX_LINKS);
    publisher = dlx_scene_publisher_linked(writer, "t", &link_sock);
}

/* Returns 0, or the code of LinkFailed; its text is in `why`. */
static int join(struct reading *ret)
{
    ret->subscription =
        dlx_scene_subscription(reader, "t", SUBSCRIPTION_CONFIG(.max_held = MAX_HELD), &ret->fd);
    ck_assert_uint_eq(dlx_scene_subscribed(ret->subscription), 1);
    dlxd_broker_settle(&dlx_scene.broker);
    const Dlx__Wire__Packet *packet = dlx_scene_receive(ret->fd);
    ck_assert_ptr_nonnull(packet);
    if (packet->body_case == BODY(LINK_FAILED)) {
        (void)snprintf(why, sizeof why, "%s", packet->link_failed->text);
        int code = packet->link_failed->code;
        dlxd_subscription_free(ret->subscription);
        dlx_scene_close(ret->fd);
        return code;
    }
    ret->page = dlx_scene_accept(ret->fd, packet);
    dlx_test_broker_run(&dlx_scene);
    (void)dlx_scene_expect(ret->fd, BODY(LINK_OPEN));
    (void)dlx_scene_receive_all(link_sock);
    return 0;
}

static void hold(const struct reading *reading, uint64_t word)
{
    dlx_store64_sc(&reading->page->hold[MAX_HELD - 1], word);
}

static void say_closed(const struct reading *reading)
{
    dlx_store64_sc(&reading->page->cursor, DLX_SHM_CURSOR_CLOSED);
}

/* Its subscription is closed; the memory stays mapped, as that of messages does. */
static void leave(struct reading *reading)
{
    dlxd_subscription_free(reading->subscription);
    dlx_scene_close(reading->fd);
}

/* So many hold something, and close their subscriptions. */
static void join_and_hold(int n)
{
    for (int i = 0; i < n; i++) {
        ok(join(&held[i]));
        hold(&held[i], 7);
        say_closed(&held[i]);
        leave(&held[i]);
    }
}

static void give_back(int i)
{
    hold(&held[i], 0);
}

static void look(void)
{
    writer->user->drains.look_ns = 0; /* the last one may have been just now */
    dlxd_drains_look_all(&dlx_scene.broker);
}

/* So many links count, of which none is there. */
static void expect(size_t n)
{
    const struct dlxd_user *user = writer->user;
    ck_assert_uint_eq(publisher->n_links, 0);
    ck_assert_uint_eq(dlx_scene.broker.registry.links.n, 0);
    ck_assert_uint_eq(writer->n_links, n);
    ck_assert_uint_eq(user->used[DLXD_LINKS], n);
    ck_assert_uint_eq(user->used[DLXD_BYTES],
                      DLX_PAGE + publisher->control->size + n * dlx_shm_link_size(MAX_HELD));
    ck_assert_uint_eq(dlxd_drains_n_all(&dlx_scene.broker), n);
}

TEST(a_drain_that_holds_a_message_is_charged_until_it_is_given_back)
{
    size_t n_fds = dlx_test_broker_n_fds(&dlx_scene);
    join_and_hold(1);
    expect(1);
    ck_assert_uint_eq(reader->n_links, 1);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&dlx_scene), n_fds + 1); /* its page */
    look();
    expect(1);
    give_back(0);
    look();
    expect(0);
    ck_assert_uint_eq(reader->n_links, 0);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&dlx_scene), n_fds);
}

TEST(a_drain_that_holds_nothing_is_let_go_at_once)
{
    struct reading reading;
    size_t n_fds = dlx_test_broker_n_fds(&dlx_scene);
    ok(join(&reading));
    say_closed(&reading);
    leave(&reading);
    expect(0);
    ck_assert_uint_eq(reader->n_links, 0);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&dlx_scene), n_fds);
}

/* The subscriber could take later messages: its publisher keeps the page. */
TEST(a_drain_that_does_not_say_that_it_has_closed_stays_charged)
{
    struct reading reading;
    ok(join(&reading));
    leave(&reading);
    look();
    expect(1);
    say_closed(&reading);
    look();
    expect(0);
}

/* Until a look is worth while again: one was just now. */
static void join_in_the_end(struct reading *ret)
{
    while (join(ret) == DLX_E_LIMIT)
        continue;
    say_closed(ret);
    leave(ret);
}

enum limit { READERS, WRITERS, USERS_LINKS, USERS_BYTES, N_LIMITS };

LOOP_TEST(a_newcomer_that_meets_a_limit_is_told_of_them_or_takes_their_place, 0, N_LIMITS)
{
    static const char *const whose[N_LIMITS] = {"subscriber test", "publisher test", "may have 5",
                                                "of shared memory"};
    struct reading next;
    writer->max_links = _i == WRITERS ? 5 : MAX_LINKS;
    reader->max_links = _i == READERS ? 5 : MAX_LINKS;
    uint64_t *max = dlx_scene.broker.users.max;
    max[DLXD_LINKS] = _i == USERS_LINKS ? 5 : MAX_LINKS;
    if (_i == USERS_BYTES)
        max[DLXD_BYTES] = DLX_PAGE + publisher->control->size + 5 * dlx_shm_link_size(MAX_HELD);
    join_and_hold(5);
    ck_assert_int_eq(join(&next), DLX_E_LIMIT);
    ck_assert_msg(strstr(why, "5 closed subscriptions still hold messages") &&
                      strstr(why, whose[_i]),
                  "%s", why);
    expect(5);
    give_back(3); /* and no client tells */
    join_in_the_end(&next);
    expect(4);
    for (int i = 0; i < 5; i++)
        give_back(i);
    look();
    expect(0);
}

TEST(drains_are_looked_at_when_they_have_doubled)
{
    join_and_hold(8);
    for (int i = 0; i < 8; i++)
        give_back(i);
    expect(8);
    join_and_hold(1);
    expect(1);
}

TEST(a_process_that_disconnects_has_them_yet)
{
    size_t n_fds = dlx_test_broker_n_fds(&dlx_scene);
    join_and_hold(1);
    ok(join(&held[1])); /* ends with the connection */
    hold(&held[1], 7);
    say_closed(&held[1]);
    dlxd_client_free(reader);
    dlx_scene_close(held[1].fd);
    expect(2);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&dlx_scene),
                      n_fds + 2 - 1); /* two pages and the pidfd; no socket */
    uint64_t of_two = writer->user->used[DLXD_DESCRIPTORS];
    give_back(0);
    look();
    expect(1);
    uint64_t of_one = writer->user->used[DLXD_DESCRIPTORS];
    give_back(1);
    look();
    expect(0);
    /* The last one takes the charge of the pidfd along. */
    ck_assert_uint_eq(of_one - writer->user->used[DLXD_DESCRIPTORS], of_two - of_one + 1);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&dlx_scene), n_fds - 2); /* nor that */
}

TEST(the_end_of_their_publisher_ends_them_step_by_step)
{
    enum { MANY = 100, MOST = 1 };
    size_t n_fds = dlx_test_broker_n_fds(&dlx_scene);
    join_and_hold(MANY);
    for (int i = 0; i < MANY; i++)
        give_back(i);
    (void)dlxd_publisher_end(publisher);
    ck_assert_uint_eq(writer->n_links, 0); /* its process has nothing to do with them any more */
    for (size_t left = MANY; left > 0;) {
        size_t before = left;
        dlxd_work_run(&dlx_scene.broker.users, 1);
        left = dlxd_drains_n_all(&dlx_scene.broker);
        ck_assert_uint_le(before - left, MOST);
        ck_assert_uint_eq(writer->user->used[DLXD_LINKS], left);
    }
    ck_assert_uint_eq(reader->n_links, 0);
    ck_assert_uint_eq(writer->user->used[DLXD_BYTES], 0);
    ck_assert_uint_lt(dlx_test_broker_n_fds(&dlx_scene), n_fds);
}

/* The user goes with the last of them, and its task with the user. The slice is over by then. */
TEST(user_that_has_draining_links_alone_goes_with_the_last_one)
{
    join_and_hold(1);
    give_back(0);
    (void)dlxd_publisher_end(publisher);
    dlxd_client_free(reader);
    dlxd_client_free(writer);
    ck_assert_uint_eq(dlxd_drains_n_all(&dlx_scene.broker), 1);
    dlxd_work_run(&dlx_scene.broker.users, 1);
    ck_assert_uint_eq(dlxd_drains_n_all(&dlx_scene.broker), 0);
    ck_assert(dlxd_list_empty(&dlx_scene.broker.users.users));
}

/* Before its task has come to them: the task goes with the last of them. */
TEST(a_look_may_end_those_whose_publisher_has_left)
{
    join_and_hold(2);
    give_back(0);
    give_back(1);
    (void)dlxd_publisher_end(publisher);
    look();
    ck_assert_uint_eq(dlxd_drains_n_all(&dlx_scene.broker), 0);
    ck_assert(dlxd_list_empty(&writer->user->tasks));
}

static size_t n_gone(void)
{
    return dlx_scene.broker.registry.gone_publishers.n;
}

TEST(memory_held_of_a_publisher_that_has_gone_keeps_its_charges)
{
    const struct dlxd_user *user = writer->user;
    uint64_t control = publisher->control->size, page = dlx_shm_link_size(MAX_HELD);
    join_and_hold(3);
    give_back(1);
    (void)dlxd_publisher_end(publisher);
    dlxd_broker_settle(&dlx_scene.broker);
    ck_assert_uint_eq(dlxd_drains_n_all(&dlx_scene.broker), 2);
    ck_assert_uint_eq(n_gone(), 1);
    ck_assert_uint_eq(writer->n_links, reader == writer ? 2 : 0);
    ck_assert_uint_eq(reader->n_links, 2);
    ck_assert_uint_eq(user->used[DLXD_BYTES], control + 2 * page);
    give_back(0);
    look();
    ck_assert_uint_eq(n_gone(), 1);
    ck_assert_uint_eq(user->used[DLXD_BYTES], control + page);
    give_back(2);
    look();
    ck_assert_uint_eq(n_gone(), 0);
    ck_assert_uint_eq(reader->n_links, 0);
    ck_assert_uint_eq(user->used[DLXD_BYTES], 0);
    ck_assert_uint_eq(user->used[DLXD_LINKS], 0);
}

/* Its subscription is closed after that. */
TEST(a_link_that_ends_after_its_publisher_drains_if_it_holds_something)
{
    struct reading reading[2];
    ok(join(&reading[0]));
    ok(join(&reading[1]));
    hold(&reading[1], 7);
    (void)dlxd_publisher_end(publisher);
    dlx_test_broker_run(&dlx_scene);
    leave(&reading[0]); /* holds nothing, and has not said that it is closed */
    ck_assert_uint_eq(dlxd_drains_n_all(&dlx_scene.broker), 0);
    leave(&reading[1]);
    ck_assert_uint_eq(dlxd_drains_n_all(&dlx_scene.broker), 1);
    ck_assert_uint_eq(n_gone(), 1);
    ck_assert_uint_eq(reader->n_links, 1);
    hold(&reading[1], 0);
    look();
    ck_assert_uint_eq(n_gone(), 0);
    ck_assert_uint_eq(dlx_scene.broker.users.all_bytes, 0);
}

/* The number of links that are listed of the publisher. */
static size_t n_listed(void)
{
    Dlx__Wire__ListLinks *list = WIRE(list_links, .publisher = dlxd_publisher_id(publisher));
    return dlx_scene_call_gets(writer, list, BODY(LINK_LIST))->link_list->n_entries;
}

/* No scan has taken place since they gave it back. */
TEST(lists_have_only_those_that_hold_something)
{
    struct reading reading;
    join_and_hold(3);
    ok(join(&reading));
    leave(&reading); /* has not said that it is closed */
    expect(4);
    ck_assert_uint_eq(n_listed(), 3);
    give_back(0);
    give_back(2);
    ck_assert_uint_eq(n_listed(), 1);
    expect(4);
    (void)dlxd_publisher_end(publisher);
    ck_assert_uint_eq(n_listed(), 1);
}

/* A page checks a bounded number of links, and all are found. */
TEST(a_long_list_has_all_that_hold_something)
{
    enum { N = 300 };
    join_and_hold(N);
    for (int i = 0; i < N - 1; i++)
        give_back(i);
    const Dlx__Wire__LinkList *page;
    uint64_t after = 0;
    size_t n_held = 0;
    do {
        Dlx__Wire__ListLinks *list =
            WIRE(list_links, .publisher = dlxd_publisher_id(publisher), .after_link = after);
        page = dlx_scene_call_gets(writer, list, BODY(LINK_LIST))->link_list;
        for (size_t i = 0; i < page->n_entries; i++) {
            ck_assert_uint_gt(page->entries[i]->link, after);
            after = page->entries[i]->link;
            n_held += page->entries[i]->n_held;
        }
        ck_assert(!page->more || page->n_entries > 0);
    } while (page->more);
    ck_assert_uint_eq(n_held, 1);
}

/* A daemon that ends waits for no client. */
/* So a list can go on after the last link that it has told. */
TEST(drains_are_in_the_order_of_links_however_they_ended)
{
    enum { MANY = 40 };
    uint64_t last = 0, n = 0;
    for (int i = 0; i < MANY; i++) {
        ok(join(&held[i]));
        hold(&held[i], 7);
    }
    for (int i = 0; i < MANY; i++)
        leave(&held[i * 17 % MANY]); /* 17: each of them once */
    dlx_for_each (it, &publisher->drains.list) {
        uint64_t link = dlxd_drain_of_publisher(it)->link;
        ck_assert_uint_gt(link, last);
        ck_assert_ptr_eq(dlxd_drain_find(&dlx_scene.broker, link), dlxd_drain_of_publisher(it));
        last = link;
        n++;
    }
    ck_assert_uint_eq(n, MANY);
}

/* To read a page of 4,096 words takes as long as many small ones. */
TEST(a_list_of_wide_links_comes_in_short_pages)
{
    enum { MANY = 60, MOST = 8 };
    uint64_t last = 0;
    uint32_t n = 0;
    int fd;
    for (int i = 0; i < MANY; i++)
        (void)dlx_scene_subscribed(dlx_scene_subscription(
            reader, "t", SUBSCRIPTION_CONFIG(.max_held = DLX_SHM_HELD_MAX), &fd));
    for (bool more = true; more;) {
        const Dlx__Wire__LinkList *list =
            dlx_scene_call_gets(
                writer,
                WIRE(list_links, .publisher = dlxd_publisher_id(publisher), .after_link = last),
                BODY(LINK_LIST))
                ->link_list;
        ck_assert_uint_le(list->n_entries, MOST);
        ck_assert(list->n_entries > 0 || !list->more);
        for (size_t i = 0; i < list->n_entries; i++) {
            ck_assert_uint_gt(list->entries[i]->link, last);
            last = list->entries[i]->link;
            n++;
        }
        more = list->more;
    }
    ck_assert_uint_eq(n, MANY);
}

TEST(the_end_of_the_daemon_ends_what_drains)
{
    join_and_hold(2);
    (void)dlxd_publisher_end(publisher);
    dlxd_broker_settle(&dlx_scene.broker);
    ck_assert_uint_eq(n_gone(), 1);
    dlxd_drains_clear(&dlx_scene.broker);
    ck_assert_uint_eq(n_gone(), 0);
    ck_assert_uint_eq(reader->n_links, 0);
}

/* The daemon checks many in parts, since each takes 5 us of the loop's time: each has its turn. */
TEST(everybody_is_looked_at_in_turn)
{
    enum { MANY = MAX_LINKS, AT_ONCE = 128, PARTS = (MANY + AT_ONCE - 1) / AT_ONCE };
    join_and_hold(MANY);
    expect(MANY);
    give_back(MANY / 2);
    for (int i = 0; i < PARTS; i++)
        look();
    expect(MANY - 1);
    for (int i = 0; i < MANY; i++)
        give_back(i);
    look();
    expect(MANY - 1 - AT_ONCE);
    for (int i = 1; i < PARTS; i++)
        look();
    expect(0);
}

/* ---- cuts ---------------------------------------------------------------------------------- */

static uint64_t id_of(const struct reading *reading)
{
    return dlxd_link_id(dlx_scene_link(reading->subscription));
}

/* The next packet of the link socket says that this link was cut. */
static void expect_cut(uint64_t link, int code)
{
    const Dlx__Wire__LinkCut *cut = dlx_scene_expect(link_sock, BODY(LINK_CUT))->link_cut;
    ck_assert_uint_eq(cut->link, link);
    ck_assert_int_eq(cut->code, code);
}

static uint64_t n_left(void)
{
    struct dlx_shm_membership line;
    int fd;
    ok(dlxd_membership_dup_fd(&publisher->line, &fd));
    ck_assert_int_eq(pread(fd, &line, sizeof line, (off_t)(publisher->line.index * sizeof line)),
                     sizeof line);
    close(fd);
    return dlx_load64_relaxed(&line.leaves);
}

static void disconnect(int code)
{
    dlxd_client_disconnect(reader, code, "for this reason");
    dlxd_broker_settle(&dlx_scene.broker);
}

TEST(publishers_are_told_of_links_whose_subscribers_are_disconnected_for_a_reason)
{
    struct reading readings[2];
    ok(join(&readings[0]));
    ok(join(&readings[1]));
    uint64_t first = id_of(&readings[0]), second = id_of(&readings[1]), before = n_left();
    disconnect(DLX_E_ACCESS);
    ck_assert_uint_eq(n_left(), before + 2);
    expect_cut(first, DLX_E_ACCESS);
    expect_cut(second, DLX_E_ACCESS);
    ck_assert_ptr_null(dlx_scene_receive(link_sock));
    expect(2); /* what they hold, or will, stays charged */
}

LOOP_TEST(publishers_are_not_told_of_other_ends, 0, 6)
{
    static const int codes[] = {DLX_E_DISCONNECTED, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM};
    struct reading reading;
    ok(join(&reading));
    uint64_t before = n_left();
    if (_i == 0)
        say_closed(&reading); /* it has left by itself */
    if (_i == 1)
        writer->principal->minor = 7; /* its library does not know LinkCut */
    disconnect(_i < 2 ? DLX_E_ACCESS : codes[_i - 2]);
    ck_assert_ptr_null(dlx_scene_receive(link_sock));
    ck_assert_uint_eq(n_left(), before + 1);
}

/* Fill the publisher's socket with packets that it ignores. */
static void fill_link_sock(void)
{
    while (send(publisher->link_sock->fd, "x", 1, MSG_DONTWAIT) == 1)
        continue;
}

TEST(a_cut_waits_until_the_link_socket_has_room)
{
    struct reading reading;
    ok(join(&reading));
    uint64_t link = id_of(&reading), before = n_left();
    fill_link_sock();
    disconnect(DLX_E_PROTOCOL);
    ck_assert_uint_eq(n_left(), before); /* the publisher would find nothing */
    char byte;
    while (recv(link_sock, &byte, 1, MSG_DONTWAIT) == 1)
        continue;
    dlxd_pending_joins_retry(&dlx_scene.broker);
    ck_assert_uint_eq(n_left(), before + 1);
    expect_cut(link, DLX_E_PROTOCOL);
}

TEST(a_cut_that_waits_goes_with_its_subscriber_or_its_publisher)
{
    struct reading readings[2];
    for (int i = 0; i < 2; i++)
        ok(join(&readings[i]));
    uint64_t before = n_left();
    fill_link_sock();
    disconnect(DLX_E_ACCESS);
    say_closed(&readings[0]);
    look();
    ck_assert_uint_eq(n_left(), before + 1); /* the publisher looks, and sees CLOSED */
    expect(1);
    (void)dlxd_publisher_end(publisher);
    dlxd_broker_settle(&dlx_scene.broker);
    ck_assert_uint_eq(dlxd_drains_n_all(&dlx_scene.broker), 0);
}

int main(void)
{
    return dlx_test_run_case(dlx_scene_case("draining", set_up));
}
