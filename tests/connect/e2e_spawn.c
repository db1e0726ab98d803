/* SPDX-License-Identifier: Apache-2.0 */
/* dlx_connect(NULL, &c) where nothing was set up: a private daemon, shared by all, that ends by
 * itself. */

#include "tests/harness/cli.h"
#include "tests/harness/fork.h"
#include "tests/harness/spawn.h"
#include <stdatomic.h>
#include <sys/file.h>

#define MANY         20
#define STRESS_TURNS 60

/* Of its folder in /proc: the text of a file, or where a link points. */
static const char *read_proc(pid_t pid, const char *name)
{
    static char text[32768];
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    ssize_t n = readlink(path, text, sizeof text - 1);
    if (n < 0) {
        auto_fd fd = open(path, O_RDONLY | O_CLOEXEC);
        n = read(fd, text, sizeof text - 1);
        for (ssize_t i = 0; i < n; i++)
            if (text[i] == '\0')
                text[i] = '\n';
    }
    ck_assert_int_ge(n, 0);
    text[n] = '\0';
    return text;
}

static uint64_t mask_of(const char *status, const char *name)
{
    contains(status, name);
    return strtoull(strstr(status, name) + strlen(name), NULL, 16);
}

TEST(a_daemon_starts_serves_and_ends)
{
    struct dlx_client *c = dlx_test_spawn_connect();
    ck_assert_str_eq(dlx_errmsg(), "");
    pid_t pid = dlx_test_spawn_pid(c);
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    dlx_test_stream_publish(p, 64, 7);
    dlx_test_stream_expect(s, 64, 7);
    dlx_subscription_unref(s);
    dlx_publisher_unref(p);

    /* The daemon stays while a client is connected, though it may end after a twentieth of a
     * second. */
    dlx_test_spawn_stays(pid);
    dlx_client_unref(c);
    dlx_test_spawn_wait_end(pid);
    ck_assert(access(dlx_test_spawn_socket, F_OK) < 0 && errno == ENOENT);
}

TEST(nothing_of_the_caller_reaches_the_daemon)
{
    static const char *const streams[] = {"fd/0", "fd/1", "fd/2"};
    sigset_t set;
    int fds[2];
    /* Not closed on exec, so that an ordinary fork(2) would hand it on. */
    ck_assert_int_eq(pipe(fds), 0);
    ck_assert_int_eq(dup2(fds[1], 90), 90);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGTERM);
    ck_assert_int_eq(sigprocmask(SIG_BLOCK, &set, NULL), 0);
    ck_assert(signal(SIGHUP, SIG_IGN) != SIG_ERR);
    ck_assert(signal(SIGINT, SIG_IGN) != SIG_ERR);
    setenv("NOTIFY_SOCKET", "/nonexistent/notify", 1);
    setenv("DLX_TEST_MARK", "kept", 1);
    auto_client *c = dlx_test_spawn_connect();
    pid_t pid = dlx_test_spawn_pid(c);

    close(fds[1]);
    close(90);
    struct pollfd p = {.fd = fds[0], .events = POLLIN};
    ck_assert_msg(poll(&p, 1, 0) == 1 && (p.revents & POLLHUP), "the daemon has the pipe");
    close(fds[0]);
    for (int i = 0; i < 3; i++)
        ck_assert_str_eq(read_proc(pid, streams[i]), "/dev/null");
    ck_assert_str_eq(read_proc(pid, "cwd"), "/");
    ck_assert_int_ne(getsid(pid), getsid(0));
    ck_assert_int_ne(getsid(pid), pid); /* it can never get a terminal */
    const char *text = read_proc(pid, "status");
    ck_assert_uint_eq(mask_of(text, "SigBlk:"), 0);
    ck_assert_uint_eq(mask_of(text, "SigIgn:"),
                      UINT64_C(1) << (SIGPIPE - 1) | UINT64_C(1) << (SIGXFSZ - 1));
    text = read_proc(pid, "environ");
    contains(text, "DLX_TEST_MARK=kept");
    ck_assert_ptr_null(strstr(text, "NOTIFY_SOCKET"));
}

/* Half of the memory otherwise; here less than one arena has. */
TEST(the_memory_limit_of_the_environment_is_the_daemons)
{
    DLManagedTensorVersioned *tensor = NULL;
    int64_t n = 3 << 17;
    struct dlx_tensor_spec spec = INT64_SPEC(&n);
    setenv("DLX_MEMORY_LIMIT", "8MiB", 1);
    auto_client *c = dlx_test_spawn_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    ok(dlx_alloc(p, &spec, &tensor));
    tensor->deleter(tensor);
    n = 64 << 17;
    fails(dlx_alloc(p, &spec, &tensor), DLX_E_LIMIT, "topic test/a: no memory for 64.0 MiB: ");
    contains(dlx_errmsg(), "; release some (see dlxctl holds), or end this dlpackd (pid ");
}

static atomic_int n_sigchld;

static void on_sigchld(int signum)
{
    (void)signum;
    atomic_fetch_add(&n_sigchld, 1);
}

static atomic_bool stop_waiting;
static atomic_int n_waits;

/* A program that waits for whatever child there is; it has one, which stays. */
static void *wait_for_any(void *data)
{
    int status;
    (void)data;
    while (!atomic_load(&stop_waiting)) {
        pid_t pid = waitpid(-1, &status, WNOHANG);
        ck_assert_msg(pid == 0, "waitpid(-1) returned %d", (int)pid);
        atomic_fetch_add(&n_waits, 1);
    }
    return NULL;
}

TEST(the_caller_sees_no_child)
{
    struct sigaction action = {.sa_handler = on_sigchld};
    int hold[2];
    char byte;
    ck_assert_int_eq(pipe2(hold, O_CLOEXEC), 0);
    pid_t child = dlx_test_fork();
    if (child == 0) {
        close(hold[1]);
        _exit(read(hold[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(hold[0]);
    ck_assert_int_eq(sigaction(SIGCHLD, &action, NULL), 0);
    pthread_t thread = dlx_test_stream_thread(wait_for_any, NULL);
    while (atomic_load(&n_waits) == 0)
        ;
    dlx_client_unref(dlx_test_spawn_connect());
    dlx_test_spawn_wait_empty();
    atomic_store(&stop_waiting, true);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(atomic_load(&n_sigchld), 0);
    close(hold[1]);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    ck_assert_int_eq(atomic_load(&n_sigchld), 1);
}

/* With SIGCHLD ignored the kernel reaps children itself: the start must not depend on it. */
TEST(a_caller_that_ignores_sigchld)
{
    ck_assert(signal(SIGCHLD, SIG_IGN) != SIG_ERR);
    auto_client *c = dlx_test_spawn_connect();
    ck_assert_int_gt(dlx_test_spawn_pid(c), 1);
}

/* A daemon's own caller often has none: the new descriptors are 0, 1, 2. */
TEST(a_caller_without_standard_streams)
{
    int saved[3];
    for (int i = 0; i < 3; i++) {
        saved[i] = fcntl(i, F_DUPFD_CLOEXEC, 100);
        ck_assert_int_ge(saved[i], 0);
        close(i);
    }
    struct dlx_client *c = NULL;
    int r = dlx_connect(NULL, &c);
    dlx_client_unref(c);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(dup2(saved[i], i), i);
        close(saved[i]);
    }
    ok(r);
}

static void *connect_thread(void *data)
{
    struct dlx_client *c = dlx_test_spawn_connect();
    *(pid_t *)data = dlx_test_spawn_pid(c);
    return c;
}

TEST(threads_share_one_daemon)
{
    pthread_t threads[8];
    void *clients[8];
    pid_t pids[8];
    for (int i = 0; i < 8; i++)
        threads[i] = dlx_test_stream_thread(connect_thread, &pids[i]);
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(pthread_join(threads[i], &clients[i]), 0);
        ck_assert_int_eq(pids[i], pids[0]);
    }
    for (int i = 0; i < 8; i++)
        dlx_client_unref(clients[i]);
}

/* Waits for the end of `go`, tells the daemon's pid, and waits until it may leave. */
static void connect_process(int sock, const void *go)
{
    char byte;
    close(((const int *)go)[1]);
    ck_assert_int_eq(read(((const int *)go)[0], &byte, 1), 0);
    struct dlx_client *c = dlx_test_spawn_connect();
    pid_t pid = dlx_test_spawn_pid(c);
    ck_assert_int_eq(send(sock, &pid, sizeof pid, MSG_NOSIGNAL), sizeof pid);
    dlx_test_hear(sock);
    dlx_client_unref(c);
    ck_assert(waitpid(-1, NULL, __WALL) == -1 && errno == ECHILD);
}

static const int crowds[] = {2, MANY};

LOOP_TEST(processes_share_one_daemon, 0, DLX_ARRAY_SIZE(crowds))
{
    const int n = crowds[_i];
    int go[2];
    struct dlx_test_part peers[MANY];
    pid_t daemon[MANY];
    ck_assert_int_eq(pipe2(go, O_CLOEXEC), 0);
    for (int i = 0; i < n; i++)
        peers[i] = dlx_test_part_begin(connect_process, go);
    close(go[0]);
    close(go[1]); /* all of them at once */
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(recv(peers[i].sock, &daemon[i], sizeof *daemon, 0), sizeof *daemon);
        ck_assert_int_eq(daemon[i], daemon[0]);
    }
    for (int i = 0; i < n; i++)
        dlx_test_say(peers[i].sock);
    for (int i = 0; i < n; i++)
        dlx_test_part_join(&peers[i]);
}

/* The daemon ends as soon as it is alone: clients keep coming while it does, until the test has
 * seen enough. */
static void come_and_go(int told, int enough)
{
    struct pollfd stop = {.fd = enough, .events = POLLIN};
    for (int i = 0; poll(&stop, 1, 0) == 0; i++) {
        struct dlx_client *c = dlx_test_spawn_connect();
        pid_t pid = dlx_test_spawn_pid(c);
        ck_assert_int_eq(write(told, &pid, sizeof pid), sizeof pid);
        dlx_client_unref(c);
        /* Around the moment when it goes: this is the load, nothing is waited for. */
        uint64_t until = dlx__now_ns() + (uint64_t)(i % 12) * 500000;
        while (dlx__now_ns() < until)
            ;
    }
    _exit(0);
}

TEST(clients_that_come_while_the_daemon_goes)
{
    enum { N = 3, N_DAEMONS = 4 };
    int told[2], enough[2];
    pid_t pids[N], pid, last = 0;
    unsigned n = 0, n_daemons = 0;
    setenv("DLX_IDLE_EXIT", "0.003", 1);
    ck_assert_int_eq(pipe2(told, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(enough, O_CLOEXEC), 0);
    for (int i = 0; i < N; i++) {
        pids[i] = dlx_test_fork();
        if (pids[i] == 0) {
            close(enough[1]);
            come_and_go(told[1], enough[0]);
        }
    }
    close(told[1]);
    close(enough[0]);
    /* How often the daemon is alone depends on the machine: the clients go on until it has gone a
     * few times. */
    while (read(told[0], &pid, sizeof pid) == sizeof pid) {
        n++;
        n_daemons += pid != last;
        last = pid;
        if (n >= N * STRESS_TURNS && n_daemons >= N_DAEMONS)
            enough[1] = dlx__close(enough[1]);
    }
    close(told[0]);
    for (int i = 0; i < N; i++)
        dlx_test_fork_join(pids[i]);
    ck_assert_uint_ge(n, N * STRESS_TURNS); /* no client was lost */
    ck_assert_uint_ge(n_daemons, N_DAEMONS);
}

/* The daemon's last client is in the listen queue, or has been accepted, and gets no answer. */
LOOP_TEST(a_hang_up_before_the_answer_is_no_failure, 0, 2)
{
    pid_t pid;
    void *c;
    int listener = dlx_test_listen(dlx_test_spawn_socket, SOCK_SEQPACKET);
    pthread_t thread = dlx_test_stream_thread(connect_thread, &pid);
    dlx_test_wait_readable(listener);
    int fd = _i == 0 ? -1 : accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_eq(unlink(dlx_test_spawn_socket), 0);
    close(listener);
    dlx__close(fd);
    ck_assert_int_eq(pthread_join(thread, &c), 0);
    ck_assert_int_ne(pid, getpid());
    dlx_client_unref(c);
}

/* A process that hangs up on each client is not asked for ever. */
static void *hang_up(void *data)
{
    int fd;
    atomic_int *n = data;
    int listener = atomic_load(n);
    atomic_store(n, 0);
    while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        close(fd);
        atomic_fetch_add(n, 1);
    }
    return NULL;
}

/* 0: found in the folder, 1: by its name. */
LOOP_TEST(a_listener_that_always_hangs_up, 0, 2)
{
    int listener = dlx_test_listen(dlx_test_spawn_socket, SOCK_SEQPACKET);
    atomic_int n = listener;
    pthread_t thread = dlx_test_stream_thread(hang_up, &n);
    if (_i == 1)
        ck_assert_int_eq(setenv("DLX_SOCKET", dlx_test_spawn_socket, 1), 0);
    dlx_test_spawn_fails(DLX_AUTOSPAWN_DEFAULT, 20 * SECOND, DLX_E_DISCONNECTED,
                         dlx_test_spawn_socket);
    ck_assert_int_eq(shutdown(listener, SHUT_RDWR), 0); /* accept() returns */
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_gt(atomic_load(&n), 1);
    ck_assert_int_le(atomic_load(&n), 20);
    close(listener);
    ck_assert_int_eq(unlink(dlx_test_spawn_socket), 0);
}

/* An ending daemon releases the lock after the socket: the next one waits for a moment. */
TEST(a_lock_that_is_held_a_moment_longer)
{
    char lock[400];
    pid_t pid;
    void *c;
    (void)snprintf(lock, sizeof lock, "%s.lock", dlx_test_spawn_socket);
    int fd = open(lock, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    pthread_t thread = dlx_test_stream_thread(connect_thread, &pid);
    (void)poll(NULL, 0, 200); /* the moment: too short, the test shows less */
    ck_assert_int_eq(unlink(lock), 0);
    close(fd);
    ck_assert_int_eq(pthread_join(thread, &c), 0);
    dlx_client_unref(c);
}

TEST(a_socket_and_a_lock_of_a_killed_daemon)
{
    auto_client *c = dlx_test_spawn_connect();
    pid_t pid = dlx_test_spawn_pid(c);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    dlx_test_spawn_wait_end(pid);
    c = dlx_client_unref(c);
    ck_assert_int_eq(access(dlx_test_spawn_socket, F_OK), 0);
    c = dlx_test_spawn_connect();
    ck_assert_int_ne(dlx_test_spawn_pid(c), pid);
}

TEST(a_starter_that_is_killed_blocks_nobody)
{
    dlx_test_spawn_script("echo >$DIR/started; read x <$DIR/go; exec $REAL \"$@\"");
    dlx_test_spawn_fifo("started");
    dlx_test_spawn_fifo("go");
    pid_t pid = dlx_test_fork();
    if (pid == 0)
        _exit(dlx_test_spawn_connect() != NULL);
    dlx_test_spawn_hear("started");
    dlx_test_fork_kill(pid);
    /* The daemon that the interrupted call started may still come. */
    setenv("DLX_DAEMON", dlx_test_spawn_program("dlpackd"), 1);
    auto_client *c = dlx_test_spawn_connect();
    dlx_test_spawn_say("go");
    ck_assert_int_gt(dlx_test_spawn_pid(c), 1);
    dlx_test_spawn_remove("script");
    dlx_test_spawn_remove("started");
    dlx_test_spawn_remove("go");
}

TEST(a_folder_that_is_locked_for_too_long)
{
    auto_fd fd = open(dlx_test_spawn_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    dlx_test_spawn_fails(DLX_AUTOSPAWN_DEFAULT, SECOND / 5, DLX_E_TIMEOUT, dlx_test_spawn_socket);
}

TEST(none_is_started_where_that_is_off)
{
    static const char *const off[] = {"no", "NO", "off", "0"};
    struct dlx_connect_args args = {.size = sizeof args, .autospawn = 2};
    auto_client *c = NULL;
    dlx_test_spawn_fails(DLX_AUTOSPAWN_NEVER, 0, DLX_E_NO_DAEMON, dlx_test_spawn_socket);
    fails(dlx_connect(&args, &c), DLX_E_INVALID, "autospawn");
    for (size_t i = 0; i < DLX_ARRAY_SIZE(off); i++) {
        setenv("DLX_AUTOSPAWN", off[i], 1);
        dlx_test_spawn_fails(DLX_AUTOSPAWN_DEFAULT, 0, DLX_E_NO_DAEMON, "DLX_AUTOSPAWN");
    }
    unsetenv("DLX_AUTOSPAWN");
    args.autospawn = DLX_AUTOSPAWN_DEFAULT;
    args.socket = dlx_test_spawn_socket; /* a socket that the caller named is never replaced */
    fails(dlx_connect(&args, &c), DLX_E_NO_DAEMON, dlx_test_spawn_socket);
    ck_assert_ptr_null(strstr(dlx_errmsg(), "DLX_SOCKET"));
    setenv("DLX_SOCKET", dlx_test_spawn_socket, 1);
    dlx_test_spawn_fails(DLX_AUTOSPAWN_DEFAULT, 0, DLX_E_NO_DAEMON,
                         "DLX_SOCKET is set, so none is started: run dlpackd --socket=");
    setenv("DLX_SOCKET", "/etc", 1);
    dlx_test_spawn_fails(DLX_AUTOSPAWN_DEFAULT, 0, DLX_E_NO_DAEMON, "set to it: name another");
    setenv("DLX_SOCKET", "", 1); /* as good as not set */
    c = dlx_test_spawn_connect();
}

static void run_cli(int status, const char *const *words)
{
    struct dlx_test_cli cli;
    dlx_test_cli_run(&cli, "", -1, status, words);
    dlx_test_cli_deinit(&cli);
}

/* dlxctl is linked to the shared library, which finds the daemon beside itself. */
TEST(dlxctl_starts_one_to_receive_but_not_to_look)
{
    struct dlx_test_cli cli;
    char real[4096];
    unsetenv("DLX_DAEMON");
    setenv("DLX_IDLE_EXIT", "5", 1);
    dlx_test_cli_run(&cli, "", -1, 1, DLX_TEST_WORDS("ls"));
    contains(cli.err, dlx_test_spawn_socket);
    dlx_test_cli_deinit(&cli);
    run_cli(1, DLX_TEST_WORDS("info"));
    ck_assert_uint_eq(dlx_test_files_count(dlx_test_spawn_dir), 0);
    run_cli(1, DLX_TEST_WORDS("echo", "t", "--timeout", "0.01"));
    run_cli(0, DLX_TEST_WORDS("ls"));
    auto_client *c = dlx_test_spawn_connect();
    pid_t pid = dlx_test_spawn_pid(c);
    ck_assert_ptr_nonnull(realpath(dlx_test_spawn_program("dlpackd"), real));
    ck_assert_str_eq(read_proc(pid, "exe"), real);
    ck_assert_int_eq(kill(pid, SIGTERM), 0);
    dlx_test_spawn_wait_end(pid);
}

int main(void)
{
    if (dlx_test_skips(dlx_test_valgrind(), "valgrind has no pidfds, and its own way with clone()"))
        return 77;
    return dlx_test_run_case(dlx_test_spawn_case("spawn"));
}
