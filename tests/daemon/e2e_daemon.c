/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon as a program, its handshake, and clients that break the protocol. */
#include "daemon/objects/client.h"
#include "tests/daemon/harness_served.h"
#include "tests/harness/fork.h"
#include <sys/syscall.h>

TEST(second_daemon_on_a_socket_names_the_first)
{
    char pid[32];
    (void)snprintf(pid, sizeof pid, "(pid %d)", (int)dlx_served.pid);
    contains(dlx_test_daemon_refuses(dlx_served.path, 1, dlx_served.path), pid);
    close(dlx_test_hello(&dlx_served, 1)); /* the first goes on */
}

TEST(path_that_is_no_socket_is_left_alone)
{
    char path[300], lock[310], text[8] = "";
    (void)snprintf(path, sizeof path, "%s/file", dlx_served.dir);
    (void)snprintf(lock, sizeof lock, "%s.lock", path);
    auto_fd fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(write(fd, "mine", 4), 4);
    contains(dlx_test_daemon_refuses(path, 1, "not a socket"), path);
    ck_assert_int_eq(pread(fd, text, 4, 0), 4);
    ck_assert_str_eq(text, "mine");
    ck_assert_int_ne(access(lock, F_OK), 0);
    unlink(path);
}

TEST(socket_of_another_program_is_left_alone)
{
    char path[300];
    (void)snprintf(path, sizeof path, "%s/other", dlx_served.dir);
    auto_fd fd = dlx_test_listen(path, SOCK_STREAM);
    (void)dlx_test_daemon_refuses(path, 1, "another program");
    ck_assert_int_eq(access(path, F_OK), 0);
    unlink(path);
}

TEST(bad_socket_paths_are_errors)
{
    char path[201];
    memset(path, 'x', sizeof path - 1);
    path[0] = '/';
    path[200] = '\0';
    (void)dlx_test_daemon_refuses(path, 1, "at most 107");
    (void)dlx_test_daemon_refuses("/nonexistent/dir/sock", 1, "/nonexistent/dir");
    (void)dlx_test_daemon_refuses("", 1, "");
}

/* The path comes from the environment; a folder that is missing is made. */
TEST(default_path_and_readiness)
{
    struct dlx_test_daemon other = dlx_served;
    char env[300], state[64] = "", made[320], notify_path[108];
    (void)snprintf(other.path, sizeof other.path, "%s/new/s", dlx_served.dir);
    (void)snprintf(made, sizeof made, "made the folder %s/new for the socket\n", dlx_served.dir);
    (void)snprintf(env, sizeof env, "DLX_SOCKET=%s", other.path);
    (void)snprintf(notify_path, sizeof notify_path, "%.90s/notify", dlx_served.dir);
    auto_fd notify = dlx_test_listen(notify_path, SOCK_DGRAM);
    ck_assert_int_eq(setenv("NOTIFY_SOCKET", notify_path, 1), 0);
    dlx_test_daemon_start_default(&other, env);
    contains(other.said, made);
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
    unlink(notify_path);
}

TEST(shutdown_tells_the_clients)
{
    int fd = dlx_test_hello(&dlx_served, 1);
    auto_fd silent = dlx_test_connect(&dlx_served);
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_served), 0);
    (void)dlx_test_disconnected(fd, DLX_E_DISCONNECTED);
    (void)dlx_test_disconnected(dlx_served_client, DLX_E_DISCONNECTED);
    dlx_served_start(NULL);
}

TEST(long_name_is_refused_and_odd_names_are_cleaned)
{
    auto_test_publisher pub;
    char name[65] = "";
    memset(name, 'n', 64);
    auto_fd refused = dlx_test_connect(&dlx_served), fd = dlx_test_connect(&dlx_served);
    (void)dlx_test_call_error(refused, HELLO(.major = DLX_PROTO_MAJOR, .name = name),
                              DLX_E_INVALID);
    (void)snprintf(name, sizeof name, "a\n\x1b[31m\xff");
    const Dlx__Wire__Packet *reply =
        dlx_test_call(fd, HELLO(.major = DLX_PROTO_MAJOR, .name = name));
    ck_assert_int_eq(reply->body_case, BODY(HELLO_REPLY));
    dlx_test_publisher_new(&pub, fd, "t", 0);
    dlx_test_publisher_ready(&pub);
    reply = dlx_test_call(fd, LIST_PUBLISHERS());
    ck_assert_uint_eq(reply->publisher_list->n_entries, 1);
    ck_assert_str_eq(reply->publisher_list->entries[0]->client_name, "a??[31m?");
}

TEST(silent_client_is_disconnected_after_two_seconds)
{
    int fd = dlx_test_connect(&dlx_served);
    uint64_t before = dlx__now_ns();
    const char *text = dlx_test_disconnected(fd, DLX_E_TIMEOUT);
    contains(text, "Hello");
    ck_assert_uint_ge(dlx__now_ns() - before, UINT64_C(1900000000));
}

TEST(silent_crowd_does_not_keep_others_out)
{
    enum { N = 100 };
    int crowd[N];
    for (int i = 0; i < N; i++)
        crowd[i] = dlx_test_connect(&dlx_served);
    uint64_t before = dlx__now_ns();
    auto_fd fd = dlx_test_hello(&dlx_served, 1);
    ck_assert_uint_lt(dlx__now_ns() - before, UINT64_C(5000000000));
    for (int i = 0; i < N; i++)
        close(crowd[i]);
}

/* Another user, for whom the daemon is in the folder where he is. */
static struct dlx_test_daemon become(uid_t uid)
{
    struct dlx_test_daemon here = dlx_served;
    dlx_test_become(&dlx_served, uid);
    (void)snprintf(here.path, sizeof here.path, "s");
    return here;
}

TEST(other_users_are_refused_by_name)
{
    static const struct {
        uid_t uid;
        const char *words, *why;
    } all[] = {
        {65534, "uid 65534 may not use this daemon", "it stands for all users that have no number"},
        {1000, "uid 1000 may not use this daemon",
         "serves uid 0 and root: start it with --allow-user=1000"}};
    if (dlx_test_skips(geteuid() != 0, "needs root to become another user"))
        return;
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++) {
        pid_t pid = dlx_test_fork();
        if (pid == 0) {
            struct dlx_test_daemon here = become(all[i].uid);
            const char *text = dlx_test_call_error(dlx_test_connect(&here),
                                                   HELLO(.major = DLX_PROTO_MAJOR), DLX_E_ACCESS);
            _exit(strstr(text, all[i].words) && strstr(text, all[i].why) ? 0 : 11);
        }
        dlx_test_fork_join(pid);
    }
}

/* A crowd of clients that may not connect, and send nothing: beyond a number the first are told at
 * once, the others when their time is over; no other client notices. */
TEST(others_who_say_nothing_are_told_and_keep_nobody_out)
{
    enum { N = 2 * DLXD_REFUSED_MAX };
    int crowd[N], status;
    if (dlx_test_skips(geteuid() != 0, "needs root to become another user"))
        return;
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        struct dlx_test_daemon here = become(1000);
        for (int i = 0; i < N; i++)
            crowd[i] = dlx_test_connect(&here);
        for (int i = 0; i < N; i++)
            contains(dlx_test_disconnected(crowd[i], DLX_E_ACCESS),
                     "uid 1000 may not use this daemon");
        _exit(0);
    }
    do
        dlx_served_barrier();
    while (waitpid(pid, &status, WNOHANG) == 0);
    ck_assert_int_eq(status, 0);
}

static void send_raw(int fd, const void *data, size_t size)
{
    ck_assert_int_eq(send(fd, data, size, MSG_NOSIGNAL), (ssize_t)size);
}

TEST(packets_that_cannot_be_disconnect)
{
    static uint8_t zeros[65536];
    static const uint8_t noise[] = {0xff, 0xff, 0xff, 0xff, 0x0f, 0x80, 0x80, 0x80, 0x01};
    static const uint8_t truncated[] = {0x08, 0x01, 0x52, 0x10, 0x08, 0x01}; /* Hello cut short */
    static const uint8_t unknown_body[] = {0x08, 0x01, 0xfa, 0x07, 0x00};
    static const uint8_t unknown_field[] = {0x08, 0x01, 0xda, 0x01, 0x02, 0x28, 0x01};
    static const struct {
        const void *data;
        size_t size;
    } bad[] = {{zeros, 0},
               {zeros, 64},
               {zeros, DLX_PACKET_SIZE_MAX},
               {zeros, DLX_PACKET_SIZE_MAX + 1},
               {zeros, sizeof zeros},
               {noise, sizeof noise},
               {truncated, sizeof truncated},
               {unknown_body, sizeof unknown_body},
               {unknown_field, sizeof unknown_field},
               {"GET / HTTP/1.1\r\n\r\n", 18}};
    for (size_t i = 0; i < 2 * DLX_ARRAY_SIZE(bad); i++) { /* before Hello, and after it */
        int fd = i % 2 ? dlx_test_hello(&dlx_served, 1) : dlx_test_connect(&dlx_served);
        send_raw(fd, bad[i / 2].data, bad[i / 2].size);
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

TEST(requests_that_cannot_be_disconnect)
{
    Dlx__Wire__Error error = DLX__WIRE__ERROR__INIT;
    const struct {
        bool is_greeted;
        Dlx__Wire__Packet__BodyCase body;
        void *message;
        uint32_t serial;
    } bad[] = {{false, DAEMON_INFO(), 1}, /* nothing goes before Hello */
               {true, HELLO(.major = DLX_PROTO_MAJOR), 1},
               {true, OK(), 1},
               {true, BODY(ERROR), &error, 1},
               {true, ACK(), 0},
               {true, DAEMON_INFO(), 0}};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(bad); i++) {
        int fd = bad[i].is_greeted ? dlx_test_hello(&dlx_served, 1) : dlx_test_connect(&dlx_served);
        dlx_test_send(fd, bad[i].body, bad[i].message, bad[i].serial);
        (void)dlx_test_disconnected(fd, DLX_E_PROTOCOL);
    }
}

LOOP_TEST(violations_on_a_subscription_socket_disconnect, 0, 5)
{
    auto_test_subscription sub;
    const int stdin_fd = STDIN_FILENO;
    uint8_t one = 0;
    int fd = dlx_test_hello(&dlx_served, 1);
    dlx_test_subscribe(&sub, fd, "t", false);
    if (_i == 0)
        dlx_test_send(sub.fd, ACK(.n = 1), 0); /* of nothing */
    else if (_i == 1)
        dlx_test_send(sub.fd, OK(), 0);
    else if (_i == 2)
        dlx_test_send(sub.fd, ACK(.n = 1), 7);
    else if (_i == 3 && dlx__packet_send(sub.fd, &one, 1, &stdin_fd, 1) < 0)
        send_raw(sub.fd, &one, 1); /* Linux 6.16 refuses the fd, not the packet that cannot be */
    else if (_i > 3)
        send_raw(sub.fd, &one, 0);
    contains(dlx_test_disconnected(fd, DLX_E_PROTOCOL), "subscription to t");
}

TEST(client_that_floods_and_never_reads_is_disconnected)
{
    Dlx__Wire__DaemonInfo info = DLX__WIRE__DAEMON_INFO__INIT;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    auto_fd fd = dlx_test_hello(&dlx_served, 1);
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
}

TEST(thousand_connections_leak_nothing)
{
    for (int i = 0; i < 1000; i++)
        close(i % 2 ? dlx_test_connect(&dlx_served) : dlx_test_hello(&dlx_served, 1));
}

TEST(daemon_out_of_fds_goes_on)
{
    enum { N = 60 };
    auto_test_publisher pub;
    struct rlimit low = {.rlim_cur = 40, .rlim_max = 20000};
    Dlx__Wire__PublisherNew request = dlx_test_publisher_request("t");
    int fds[N];
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
    for (int i = 0; i < N; i++)
        fds[i] = dlx_test_connect(&dlx_served);
    for (int i = N - 20; i < N; i++)
        (void)dlx_test_disconnected(fds[i], DLX_E_FD_LIMIT);
    dlx_served_barrier();
    for (int i = 0; i < N - 20; i++)
        close(fds[i]);
    close(dlx_served_client);
    dlx_test_recv_done();
    low.rlim_cur = 20000;
    ck_assert_int_eq(prlimit(dlx_served.pid, RLIMIT_NOFILE, &low, NULL), 0);
    dlx_served_client = dlx_test_hello(&dlx_served, 10);
    dlx_test_publisher_new(&pub, dlx_served_client, "t", 0);
    close(dlx_served_client);
    dlx_served_client = dlx_test_hello(&dlx_served, 10);
}

TEST(pidfd_by_number_works_as_well)
{
    int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (dlx_test_skips(pidfd < 0, "no pidfd_open here (valgrind does not know it)"))
        return;
    close(pidfd);
    close(dlx_served_client);
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_served), 0);
    dlx_served_start("DLX_TEST_NO_PEERPIDFD=1");
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        (void)dlx_test_hello(&dlx_served, 1);
        _exit(0);
    }
    dlx_test_fork_join(pid);
}

int main(void)
{
    return dlx_test_run_case(dlx_served_case("daemon"));
}
