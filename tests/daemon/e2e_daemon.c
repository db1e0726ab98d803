/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon as a program, its handshake, and clients that break the protocol. */
#include "daemon/objects/client.h"
#include "tests/daemon/harness_served.h"
#include "tests/harness/fork.h"
#include "tests/harness/run.h"
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/un.h>

/* ---- the program --------------------------------------------------------------------------- */

TEST(second_daemon_on_a_socket_names_the_first)
{
    char log[1024];
    char pid[32];
    (void)snprintf(pid, sizeof pid, "(pid %d)", (int)dlx_served.pid);
    ck_assert_int_eq(dlx_test_daemon_fail(dlx_served.path, log, sizeof log), 1);
    ck_assert_msg(strstr(log, dlx_served.path) && strstr(log, pid), "%s", log);
    close(dlx_test_hello(&dlx_served, 1)); /* the first goes on */
}

TEST(stale_socket_is_replaced)
{
    close(dlx_served_client);
    dlx_test_daemon_kill(&dlx_served);
    ck_assert_int_eq(access(dlx_served.path, F_OK), 0);
    dlx_served_start(NULL);
}

TEST(path_that_is_no_socket_is_left_alone)
{
    char path[300];
    char lock[310];
    char log[1024];
    char text[8] = "";
    (void)snprintf(path, sizeof path, "%s/file", dlx_served.dir);
    (void)snprintf(lock, sizeof lock, "%s.lock", path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(write(fd, "mine", 4), 4);
    ck_assert_int_eq(dlx_test_daemon_fail(path, log, sizeof log), 1);
    ck_assert_msg(strstr(log, path) && strstr(log, "not a socket"), "%s", log);
    ck_assert_int_eq(pread(fd, text, 4, 0), 4);
    ck_assert_str_eq(text, "mine");
    ck_assert_int_ne(access(lock, F_OK), 0);
    close(fd);
    unlink(path);
}

TEST(socket_of_another_program_is_left_alone)
{
    char path[300], log[1024];
    (void)snprintf(path, sizeof path, "%s/other", dlx_served.dir);
    int fd = dlx_test_listen(path, SOCK_STREAM);
    ck_assert_int_eq(dlx_test_daemon_fail(path, log, sizeof log), 1);
    ck_assert_msg(strstr(log, "another program"), "%s", log);
    ck_assert_int_eq(access(path, F_OK), 0);
    close(fd);
    unlink(path);
}

TEST(bad_socket_paths_are_errors)
{
    char log[1024];
    char path[512];
    memset(path, 'x', sizeof path);
    path[0] = '/';
    path[200] = '\0';
    ck_assert_int_eq(dlx_test_daemon_fail(path, log, sizeof log), 1);
    ck_assert_msg(strstr(log, "at most 107"), "%s", log);
    ck_assert_int_eq(dlx_test_daemon_fail("/nonexistent/dir/sock", log, sizeof log), 1);
    ck_assert_msg(strstr(log, "/nonexistent/dir"), "%s", log);
    ck_assert_int_eq(dlx_test_daemon_fail("", log, sizeof log), 1);
}

/* The path comes from the environment; a folder that is missing is made. */
TEST(default_path_and_readiness)
{
    struct dlx_test_daemon other = dlx_served;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char env[300];
    char state[64] = "", made[320];
    (void)snprintf(other.path, sizeof other.path, "%s/new/s", dlx_served.dir);
    (void)snprintf(made, sizeof made, "made the folder %s/new for the socket\n", dlx_served.dir);
    (void)snprintf(env, sizeof env, "DLX_SOCKET=%s", other.path);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%.90s/notify", dlx_served.dir);
    int notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(notify, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(setenv("NOTIFY_SOCKET", address.sun_path, 1), 0);
    dlx_test_daemon_start_default(&other, env);
    ck_assert_msg(strstr(other.said, made), "'%s' lacks '%s'", other.said, made);
    dlx_test_wait_readable(notify);
    ck_assert_int_gt(recv(notify, state, sizeof state - 1, 0), 0);
    ck_assert_msg(strncmp(state, "READY=1\n", 8) == 0, "%s", state);
    close(dlx_test_hello(&other, 1));
    ck_assert_int_eq(dlx_test_daemon_stop(&other), 0);
    (void)snprintf(other.path, sizeof other.path, "%s/new/dlpackd.sock", dlx_served.dir);
    (void)snprintf(env, sizeof env, "XDG_RUNTIME_DIR=%s/new", dlx_served.dir);
    unsetenv("NOTIFY_SOCKET");
    unsetenv("DLX_SOCKET");
    dlx_test_daemon_start_default(&other, env);
    ck_assert_ptr_null(strstr(other.said, "made the folder")); /* it was there */
    close(dlx_test_hello(&other, 1));
    ck_assert_int_eq(dlx_test_daemon_stop(&other), 0);
    (void)snprintf(env, sizeof env, "%s/new", dlx_served.dir);
    ck_assert_int_eq(rmdir(env), 0);
    unlink(address.sun_path);
    close(notify);
}

TEST(shutdown_tells_the_clients)
{
    int fd = dlx_test_hello(&dlx_served, 1);
    int silent = dlx_test_connect(&dlx_served);
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_served), 0);
    (void)dlx_test_disconnected(fd, DLX_E_DISCONNECTED);
    (void)dlx_test_disconnected(dlx_served_client, DLX_E_DISCONNECTED);
    close(silent);
    dlx_served_start(NULL);
}

/* ---- handshake ----------------------------------------------------------------------------- */

TEST(unknown_version_hears_which_are_known)
{
    Dlx__Wire__Hello hello = DLX__WIRE__HELLO__INIT;
    int fd = dlx_test_connect(&dlx_served);
    hello.major = 99;
    const char *text = dlx_test_call_error(fd, BODY(HELLO), &hello, DLX_E_VERSION);
    ck_assert_msg(strstr(text, "99.0") && strstr(text, "knows 2.0"), "%s", text);
    struct dlx_packet packet;
    dlx_test_wait_readable(fd);
    ck_assert_int_eq(dlx__packet_recv_fds(fd, &packet), DLX_E_DISCONNECTED);
    close(fd);
}

TEST(newer_minor_version_is_answered_with_ours)
{
    Dlx__Wire__Hello hello = DLX__WIRE__HELLO__INIT;
    int fd = dlx_test_connect(&dlx_served);
    hello.major = DLX_PROTO_MAJOR;
    hello.minor = 1000;
    const Dlx__Wire__Packet *reply = dlx_test_call(fd, BODY(HELLO), &hello);
    ck_assert_int_eq(reply->body_case, BODY(HELLO_REPLY));
    ck_assert_uint_eq(reply->hello_reply->minor, DLX_PROTO_MINOR);
    ck_assert_uint_gt(reply->hello_reply->client, 0);
    close(fd);
}

TEST(nothing_goes_before_hello_and_hello_once)
{
    Dlx__Wire__DaemonInfo info = DLX__WIRE__DAEMON_INFO__INIT;
    Dlx__Wire__Hello hello = DLX__WIRE__HELLO__INIT;
    int fd = dlx_test_connect(&dlx_served);
    dlx_test_send(fd, BODY(DAEMON_INFO), &info, 1);
    (void)dlx_test_disconnected(fd, DLX_E_PROTOCOL);
    hello.major = DLX_PROTO_MAJOR;
    fd = dlx_test_hello(&dlx_served, 1);
    dlx_test_send(fd, BODY(HELLO), &hello, 1);
    (void)dlx_test_disconnected(fd, DLX_E_PROTOCOL);
}

TEST(long_name_is_refused_and_odd_names_are_cleaned)
{
    Dlx__Wire__Hello hello = DLX__WIRE__HELLO__INIT;
    Dlx__Wire__ListPublishers list = DLX__WIRE__LIST_PUBLISHERS__INIT;
    struct dlx_test_publisher pub;
    char name[65];
    memset(name, 'n', 64);
    name[64] = '\0';
    hello.major = DLX_PROTO_MAJOR;
    hello.minor = DLX_PROTO_MINOR;
    hello.name = name;
    int fd = dlx_test_connect(&dlx_served);
    (void)dlx_test_call_error(fd, BODY(HELLO), &hello, DLX_E_INVALID);
    close(fd);
    fd = dlx_test_connect(&dlx_served);
    (void)snprintf(name, sizeof name, "a\n\x1b[31m\xff");
    ck_assert_int_eq(dlx_test_call(fd, BODY(HELLO), &hello)->body_case, BODY(HELLO_REPLY));
    dlx_test_publisher_new(&pub, fd, "t", 0);
    dlx_test_publisher_ready(&pub);
    const Dlx__Wire__Packet *reply = dlx_test_call(fd, BODY(LIST_PUBLISHERS), &list);
    ck_assert_uint_eq(reply->publisher_list->n_entries, 1);
    ck_assert_str_eq(reply->publisher_list->entries[0]->client_name, "a??[31m?");
    dlx_test_publisher_deinit(&pub);
    close(fd);
}

TEST(silent_client_is_disconnected_after_two_seconds)
{
    int fd = dlx_test_connect(&dlx_served);
    uint64_t before = dlx__now_ns();
    const char *text = dlx_test_disconnected(fd, DLX_E_TIMEOUT);
    ck_assert_msg(strstr(text, "Hello"), "%s", text);
    ck_assert_uint_ge(dlx__now_ns() - before, UINT64_C(1900000000));
}

TEST(silent_crowd_does_not_keep_others_out)
{
    enum { N = 100 };
    int crowd[N];
    for (int i = 0; i < N; i++)
        crowd[i] = dlx_test_connect(&dlx_served);
    uint64_t before = dlx__now_ns();
    int fd = dlx_test_hello(&dlx_served, 1);
    ck_assert_uint_lt(dlx__now_ns() - before, UINT64_C(5000000000));
    for (int i = 0; i < N; i++)
        close(crowd[i]);
    close(fd);
}

/* Become another user and connect: the exit status tells what came. */
static int connect_as(uid_t uid)
{
    Dlx__Wire__Hello hello = DLX__WIRE__HELLO__INIT;
    int status;
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        struct dlx_test_daemon here = dlx_served;
        (void)snprintf(here.path, sizeof here.path, "s");
        dlx_test_become(&dlx_served, uid);
        int fd = dlx_test_connect(&here);
        hello.major = DLX_PROTO_MAJOR;
        const char *text = dlx_test_call_error(fd, BODY(HELLO), &hello, DLX_E_ACCESS);
        char expected[64];
        (void)snprintf(expected, sizeof expected, "uid %u may not use this daemon", uid);
        const char *why = uid == 65534 ? "it stands for all users that have no number"
                                       : "serves uid 0 and root: start it with --allow-user=1000";
        _exit(strstr(text, expected) && strstr(text, why) ? 0 : 11);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256;
}

TEST(other_users_are_refused_by_name)
{
    if (geteuid() != 0) {
        puts("SKIP: needs root to become another user");
        return;
    }
    ck_assert_int_eq(connect_as(65534), 0);
    ck_assert_int_eq(connect_as(1000), 0);
}

/* A crowd of those who may not come in, and who say nothing: beyond a number the first are told at
 * once, the others when their time is over; nobody else notices. */
TEST(others_who_say_nothing_are_told_and_keep_nobody_out)
{
    enum { N = 2 * DLXD_REFUSED_MAX };
    int crowd[N], status;
    if (geteuid() != 0) {
        puts("SKIP: needs root to become another user");
        return;
    }
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        struct dlx_test_daemon here = dlx_served;
        (void)snprintf(here.path, sizeof here.path, "s");
        dlx_test_become(&dlx_served, 1000);
        for (int i = 0; i < N; i++)
            crowd[i] = dlx_test_connect(&here);
        for (int i = 0; i < N; i++)
            if (!strstr(dlx_test_disconnected(crowd[i], DLX_E_ACCESS),
                        "uid 1000 may not use this daemon"))
                _exit(11);
        _exit(0);
    }
    do
        dlx_served_barrier();
    while (waitpid(pid, &status, WNOHANG) == 0);
    ck_assert_int_eq(status, 0);
}

/* ---- violations ---------------------------------------------------------------------------- */

static void send_raw(int fd, const void *data, size_t size)
{
    ck_assert_int_eq(send(fd, data, size, MSG_NOSIGNAL), (ssize_t)size);
}

TEST(garbage_disconnects)
{
    static const uint8_t zeros[64];
    static const uint8_t noise[] = {0xff, 0xff, 0xff, 0xff, 0x0f, 0x80, 0x80, 0x80, 0x01};
    static const uint8_t truncated[] = {0x08, 0x01, 0x52, 0x10, 0x08, 0x01}; /* Hello cut short */
    static const uint8_t unknown_body[] = {0x08, 0x01, 0xfa, 0x07, 0x00};
    static const uint8_t unknown_field[] = {0x08, 0x01, 0xda, 0x01, 0x02, 0x28, 0x01};
    static const struct {
        const void *data;
        size_t size;
    } bad[] = {{zeros, sizeof zeros},
               {noise, sizeof noise},
               {truncated, sizeof truncated},
               {unknown_body, sizeof unknown_body},
               {unknown_field, sizeof unknown_field},
               {"GET / HTTP/1.1\r\n\r\n", 18}};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(bad); i++) {
        int fd = dlx_test_connect(&dlx_served);
        send_raw(fd, bad[i].data, bad[i].size);
        (void)dlx_test_disconnected(fd, DLX_E_PROTOCOL);
        fd = dlx_test_hello(&dlx_served, 1);
        send_raw(fd, bad[i].data, bad[i].size);
        (void)dlx_test_disconnected(fd, DLX_E_PROTOCOL);
    }
}

TEST(oversized_and_empty_packets_disconnect)
{
    static uint8_t big[65536];
    const size_t sizes[] = {DLX_PACKET_SIZE_MAX, DLX_PACKET_SIZE_MAX + 1, sizeof big, 0};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(sizes); i++) {
        int fd = dlx_test_hello(&dlx_served, 1);
        send_raw(fd, big, sizes[i]);
        (void)dlx_test_disconnected(fd, DLX_E_PROTOCOL);
    }
}

TEST(clients_that_send_fds_are_refused_or_disconnected)
{
    for (size_t n = 1; n <= 253; n += 84) {
        int fds[253];
        uint8_t data[] = {0x08, 0x01, 0xda, 0x01, 0x00}; /* DaemonInfo */
        int fd = dlx_test_hello(&dlx_served, 1);
        for (size_t i = 0; i < n; i++)
            fds[i] = STDIN_FILENO;
        if (dlx__packet_send(fd, data, sizeof data, fds, n) == 0) { /* before Linux 6.16 */
            (void)dlx_test_disconnected(fd, DLX_E_PROTOCOL);
        } else {
            ck_assert_int_eq(errno, EPERM);
            close(fd);
        }
    }
}

TEST(replies_and_serial_0_are_no_requests)
{
    Dlx__Wire__Ok ok = DLX__WIRE__OK__INIT;
    Dlx__Wire__Error error = DLX__WIRE__ERROR__INIT;
    Dlx__Wire__Ack ack = DLX__WIRE__ACK__INIT;
    Dlx__Wire__DaemonInfo info = DLX__WIRE__DAEMON_INFO__INIT;
    const struct {
        Dlx__Wire__Packet__BodyCase body;
        void *message;
        uint32_t serial;
    } bad[] = {{BODY(OK), &ok, 1},
               {BODY(ERROR), &error, 1},
               {BODY(ACK), &ack, 0},
               {BODY(DAEMON_INFO), &info, 0}};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(bad); i++) {
        int fd = dlx_test_hello(&dlx_served, 1);
        dlx_test_send(fd, bad[i].body, bad[i].message, bad[i].serial);
        (void)dlx_test_disconnected(fd, DLX_E_PROTOCOL);
    }
}

TEST(violations_on_a_subscription_socket_disconnect)
{
    for (int i = 0; i < 5; i++) {
        struct dlx_test_subscription sub;
        Dlx__Wire__Ack ack = DLX__WIRE__ACK__INIT;
        Dlx__Wire__Ok ok = DLX__WIRE__OK__INIT;
        const int stdin_fd = STDIN_FILENO;
        uint8_t one = 0;
        int fd = dlx_test_hello(&dlx_served, 1);
        dlx_test_subscribe(&sub, fd, "t", false);
        ack.n = 1;
        if (i == 0)
            dlx_test_send(sub.fd, BODY(ACK), &ack, 0); /* of nothing */
        else if (i == 1)
            dlx_test_send(sub.fd, BODY(OK), &ok, 0);
        else if (i == 2)
            dlx_test_send(sub.fd, BODY(ACK), &ack, 7);
        else if (i == 3 && dlx__packet_send(sub.fd, &one, 1, &stdin_fd, 1) < 0)
            send_raw(sub.fd, &one,
                     1); /* Linux 6.16 refuses the fd, not the packet that cannot be */
        else if (i > 3)
            send_raw(sub.fd, &one, 0);
        const char *text = dlx_test_disconnected(fd, DLX_E_PROTOCOL);
        ck_assert_msg(strstr(text, "subscription to t"), "%s", text);
        dlx_test_subscription_deinit(&sub);
    }
}

TEST(client_that_floods_and_never_reads_is_disconnected)
{
    Dlx__Wire__DaemonInfo info = DLX__WIRE__DAEMON_INFO__INIT;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    int fd = dlx_test_hello(&dlx_served, 1);
    int r;
    packet.serial = 1;
    packet.body_case = BODY(DAEMON_INFO);
    packet.daemon_info = &info;
    for (int i = 0; i < 1000000; i++) {
        r = dlx__proto_send(fd, &packet, NULL, 0);
        if (r == DLX_E_FULL) {
            struct pollfd p = {.fd = fd, .events = POLLOUT};
            (void)poll(&p, 1, 10000);
        } else if (r < 0) {
            break;
        }
        if (i % 1000 == 0)
            dlx_served_barrier();
    }
    ck_assert_int_eq(r, DLX_E_DISCONNECTED);
    close(fd);
}

TEST(thousand_connections_leak_nothing)
{
    for (int i = 0; i < 1000; i++) {
        int fd = i % 2 ? dlx_test_connect(&dlx_served) : dlx_test_hello(&dlx_served, 1);
        close(fd);
    }
}

TEST(daemon_out_of_fds_goes_on)
{
    enum { N = 60 };
    struct dlx_test_publisher pub;
    struct rlimit low = {.rlim_cur = 40, .rlim_max = 20000};
    Dlx__Wire__PublisherNew request = DLX__WIRE__PUBLISHER_NEW__INIT;
    char topic[] = "t";
    int fds[N];
    int n = 0;
    request.topic = topic;
    request.history = 1;
    request.depth = 16;
    request.n_entries = 256;
    ck_assert_int_eq(prlimit(dlx_served.pid, RLIMIT_NOFILE, &low, NULL), 0);
    /* A request that does not fit fails alone. */
    int code = 0;
    for (int i = 0; i < N && code == 0; i++) {
        const Dlx__Wire__Packet *reply =
            dlx_test_call(dlx_served_client, BODY(PUBLISHER_NEW), &request);
        if (reply->body_case == BODY(ERROR))
            code = reply->error->code;
    }
    ck_assert_int_eq(code, DLX_E_FD_LIMIT);
    dlx_served_barrier();
    /* Connections that do not fit are told and closed, and the loop does not spin on them. */
    for (n = 0; n < N; n++)
        fds[n] = dlx_test_connect(&dlx_served);
    for (int i = N - 20; i < N; i++) {
        (void)dlx_test_disconnected(fds[i], DLX_E_FD_LIMIT);
    }
    dlx_served_barrier();
    for (int i = 0; i < N - 20; i++)
        close(fds[i]);
    close(dlx_served_client);
    dlx_test_recv_done();
    low.rlim_cur = 20000;
    ck_assert_int_eq(prlimit(dlx_served.pid, RLIMIT_NOFILE, &low, NULL), 0);
    dlx_served_client = dlx_test_hello(&dlx_served, 10);
    dlx_test_publisher_new(&pub, dlx_served_client, "t", 0);
    dlx_test_publisher_deinit(&pub);
    close(dlx_served_client);
    dlx_served_client = dlx_test_hello(&dlx_served, 10);
}

TEST(pidfd_by_number_works_as_well)
{
    int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (pidfd < 0) {
        puts("SKIP: no pidfd_open here (valgrind does not know it)");
        return;
    }
    close(pidfd);
    close(dlx_served_client);
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_served), 0);
    dlx_served_start("DLX_TEST_NO_PEERPIDFD=1");
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        (void)dlx_test_hello(&dlx_served, 1);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}

int main(void)
{
    return dlx_test_run_case(dlx_served_case("daemon"));
}
