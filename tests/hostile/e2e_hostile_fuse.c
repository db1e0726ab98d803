/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A FUSE file system whose server does not answer: a process that closes a descriptor of its files,
 * or touches their pages, waits. A peer sends such descriptors to the daemon, and stands still for
 * ever inside its own calls on sockets that it shares with others, none of which waits.
 */

#include "client/subscribe/subscription.h"
#include "tests/harness/fork.h"
#include "tests/harness/fuse.h"
#include "tests/hostile/harness_trap.h"

#define BODY(name) DLX__WIRE__PACKET__BODY_##name

static struct dlx_test_fuse fuse;

TEST(a_muted_fuse_file_traps_a_close)
{
    if (!dlx_test_fuse_start(&fuse))
        return;
    dlx_test_fuse_mute(&fuse);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        close(fuse.fd);
        _exit(0);
    }
    dlx_test_fuse_wait(&fuse.asked->flush);
    ck_assert_int_eq(waitpid(pid, NULL, WNOHANG), 0);
    dlx_test_fuse_end(&fuse);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}

static void send_file(enum dlx_test_trap_way way, bool is_refused)
{
    struct dlx_test_trap trap;
    if (!dlx_test_fuse_start(&fuse))
        return;
    bool sent = dlx_test_trap_send(&trap, way, fuse.fd);
    fuse.fd = dlx__close(fuse.fd);
    dlx_test_fuse_mute(&fuse);
    dlx_test_trap_resume(&trap);
    if (sent) /* it has let go of it, without asking */
        dlx_test_fuse_wait(&fuse.asked->release);
    dlx_test_trap_end(&trap, PATIENCE);
    ck_assert_int_eq(atomic_load(&fuse.asked->flush), 0);
    dlx_test_trap_skip(sent, is_refused);
    dlx_test_fuse_end(&fuse);
}

/* Not on a link socket: the daemon would have the file until a client reads it. */
LOOP_TEST(a_file_is_refused_by_the_kernel, 0, ON_A_LINK_SOCKET)
{
    send_file((enum dlx_test_trap_way)_i, true);
}

LOOP_TEST(a_file_does_not_hold_the_daemon_up_where_the_kernel_lets_it_pass, 0, ON_A_LINK_SOCKET)
{
    dlx_test_trap_on_an_older_kernel();
    send_file((enum dlx_test_trap_way)_i, false);
}

/* Shared with the one who will stand still. */
static struct {
    atomic_int ready, go;
} * stage;

static void *map_file(void)
{
    void *map = mmap(NULL, DLX_TEST_FUSE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fuse.fd, 0);
    if (map == MAP_FAILED)
        _exit(1);
    fuse.fd = dlx__close(fuse.fd); /* or its own end would wait for the file system */
    return map;
}

/* Everything that can be closed is: now the file system falls silent. */
static void wait_for_go(void)
{
    atomic_store(&stage->ready, 1);
    while (atomic_load(&stage->go) == 0)
        (void)poll(NULL, 0, 1);
}

static void sends_from_it(void)
{
    int fd = dlx_test_hello(&dlx_test_stream_daemon, 1);
    void *map = map_file();
    wait_for_go();
    (void)send(fd, map, 100, 0);
}

static void receives_into_it(void)
{
    Dlx__Wire__DaemonInfo info = DLX__WIRE__DAEMON_INFO__INIT;
    int fd = dlx_test_hello(&dlx_test_stream_daemon, 1);
    void *map = map_file();
    wait_for_go();
    for (uint32_t i = 1; i <= 8; i++)
        dlx_test_send(fd, BODY(DAEMON_INFO), &info, i);
    dlx_test_wait_readable(fd);
    (void)recv(fd, map, 1000, 0);
}

static struct dlx_subscriber_link *join(void)
{
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    dlx_message_unref(dlx_test_stream_next(s));
    return s->links[0];
}

/* A new ticket for each message. */
static void *ask_for_bells(void *userdata)
{
    struct dlx_subscriber_link *link = userdata;
    for (;;)
        (void)dlx__reader_arm(&link->core);
    return NULL;
}

static void hears_its_bell_there(void)
{
    pthread_t thread;
    struct dlx_subscriber_link *link = join();
    void *map = map_file();
    wait_for_go();
    if (pthread_create(&thread, NULL, ask_for_bells, link) != 0)
        return;
    dlx_test_wait_readable(link->bell);
    (void)recv(link->bell, map, 1, 0);
}

static void rings_from_there(void)
{
    struct dlx_subscriber_link *link = join();
    void *map = map_file();
    wait_for_go();
    (void)send(link->bell, map, 1, 0);
}

static void (*const stands_still[])(void) = {sends_from_it, receives_into_it, hears_its_bell_there,
                                             rings_from_there};

static void await_alone(struct dlx_client *c, struct dlx_publisher *p)
{
    struct dlx_daemon_info info = {.size = 0};
    uint64_t end = dlx__now_ns() + (uint64_t)PATIENCE;
    do {
        ck_assert_msg(dlx__now_ns() < end, "%u clients, %u links", info.n_clients, info.n_links);
        dlx_test_stream_publish(p, 10, 1); /* it lets links go that have ended */
        info = dlx_test_stream_daemon_info(c);
    } while (info.n_clients != 1 || info.n_links != 0);
}

LOOP_TEST(a_process_that_stands_still_in_a_call_holds_up_no_other, 0,
          (int)DLX_ARRAY_SIZE(stands_still))
{
    int64_t value = 1;
    if (!dlx_test_fuse_start(&fuse))
        return;
    stage = mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(stage, MAP_FAILED);
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", PUBLISHER(.history = 1));
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        stands_still[_i]();
        _exit(1); /* it did not stand still */
    }
    fuse.fd = dlx__close(fuse.fd);
    for (uint64_t end = dlx__now_ns() + (uint64_t)PATIENCE; atomic_load(&stage->ready) == 0;) {
        ck_assert_uint_lt(dlx__now_ns(), end);
        dlx_test_stream_publish(p, 10, value++);
    }
    dlx_test_fuse_mute(&fuse);
    atomic_store(&stage->go, 1);
    for (uint64_t end = dlx__now_ns() + (uint64_t)PATIENCE; atomic_load(&fuse.asked->read) == 0;) {
        ck_assert_uint_lt(dlx__now_ns(), end);
        ck_assert_int_eq(waitpid(pid, NULL, WNOHANG), 0);
        dlx_test_stream_publish(p, 10, value++);
    }
    /* The client stands still. More than a socket holds: bells, and answers that stay unread. */
    for (int i = 0; i < 5000; i++)
        dlx_test_stream_publish(p, 10, value++);
    dlx_test_trap_daemon_answers(PATIENCE, "beside it");
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    dlx_test_stream_publish(p, 10, value);
    dlx_test_stream_expect(s, 10, value);
    dlx_subscription_unref(s);
    /* Not even SIGKILL ends it before the file system does: a peer that cannot die. */
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    dlx_test_stream_publish(p, 10, value);
    dlx_test_trap_daemon_answers(PATIENCE, "beside it");
    ck_assert_int_eq(waitpid(pid, NULL, WNOHANG), 0);
    dlx_test_fuse_end(&fuse);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    await_alone(c, p);
    munmap(stage, sizeof *stage);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_stream_case("hostile_fuse"));
}
