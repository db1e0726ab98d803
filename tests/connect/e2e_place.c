/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which daemon is found where there are several, where one refuses, and where the machine's is
 * being restarted.
 */
#include "tests/harness/fork.h"
#include "tests/harness/spawn.h"

#define SYSTEM_SOCKET "/run/dlpackd/dlpackd.sock"
#define OTHER_UID     61234

static pid_t machine; /* its daemon */

static void start_machine_daemon(void)
{
    char said[512] = "";
    size_t n = 0;
    int fds[2];
    ck_assert(mkdir("/run/dlpackd", 0755) == 0 || errno == EEXIST);
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    machine = dlx_test_fork();
    if (machine == 0) {
        dup2(fds[1], STDERR_FILENO);
        execl(DLX_TEST_SPAWN_DAEMON, "dlpackd", "--socket", SYSTEM_SOCKET, "--ready-fd", "2",
              (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    while (!strstr(said, "READY=1\n")) { /* it may say before that it replaces a socket */
        ssize_t got = read(fds[0], said + n, sizeof said - 1 - n);
        ck_assert_msg(got > 0, "%s", said);
        n += (size_t)got;
    }
    close(fds[0]);
}

static void end_machine_daemon(int signal)
{
    ck_assert_int_eq(kill(machine, signal), 0);
    ck_assert_int_eq(waitpid(machine, NULL, 0), machine);
}

CASE(place)
{
    return dlx_test_spawn_hidden_case("place");
}

static void end_private_daemon(struct dlx_client *c)
{
    pid_t pid = dlx_test_spawn_pid(c);
    dlx_client_unref(c);
    dlx_test_spawn_wait_end(pid);
}

/* The daemon of root stays: its end is that of this process, which is not root any more. */
TEST_OF(place, a_program_that_the_machines_daemon_refuses_gets_a_private_one_and_is_told)
{
    struct dlx_message *m;
    start_machine_daemon();
    ck_assert_int_eq(chmod(SYSTEM_SOCKET, 0666), 0);
    ck_assert_int_eq(setuid(OTHER_UID), 0);

    dlx_test_spawn_fails(DLX_AUTOSPAWN_NEVER, 0, DLX_E_ACCESS, SYSTEM_SOCKET ": ");
    contains(dlx_errmsg(), "uid 61234");
    const char *refused = strstr(dlx_errmsg(), "; and no private one is started: ");
    ck_assert_ptr_nonnull(refused);
    ck_assert_ptr_null(strstr(refused, SYSTEM_SOCKET)); /* that daemon was named before */

    struct dlx_client *c = dlx_test_spawn_connect();
    ck_assert_int_eq(dlx_client_daemon_place(c), DLX_DAEMON_TMP);
    contains(dlx_client_refused_by(c), SYSTEM_SOCKET ": ");
    contains(dlx_client_refused_by(c), "uid 61234");
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "a", NULL);
    fails(dlx_take(s, 1, &m), DLX_E_TIMEOUT, "(refused by " SYSTEM_SOCKET);
    fails(dlx_get(c, "a", 0, &m), DLX_E_EMPTY, "(refused by " SYSTEM_SOCKET);
    dlx_subscription_unref(s);
    end_private_daemon(c);
}

static unsigned n_looks;

/* `interrupt` is called between two looks for the daemon. */
static int come_back(void *unused)
{
    (void)unused;
    if (n_looks++ == 0)
        start_machine_daemon();
    return 0;
}

static void waits_for_the_machine_so_long(int64_t timeout_ns, int64_t wait_ns)
{
    struct dlx_connect_args args = {
        .size = sizeof args, .timeout_ns = timeout_ns, .wait_ns = wait_ns, .interrupt = come_back};
    struct dlx_client *c = NULL;
    start_machine_daemon();
    end_machine_daemon(SIGKILL);

    ok(dlx_connect(&args, &c));
    ck_assert_int_eq(dlx_test_spawn_pid(c), machine);
    ck_assert_int_eq(dlx_client_daemon_place(c), DLX_DAEMON_SYSTEM);
    ck_assert_str_eq(dlx_client_refused_by(c), "");
    ck_assert_int_lt(access("/tmp/dlpackd-0", F_OK), 0);
    dlx_client_unref(c);
    end_machine_daemon(SIGTERM);
}

TEST_OF(place, while_the_machines_daemon_restarts_clients_wait_for_it)
{
    waits_for_the_machine_so_long(20 * SECOND, 0);
}

/* The daemon takes longer to come back than to answer. */
TEST_OF(place, a_connect_waits_as_long_for_the_machines_daemon_as_for_another)
{
    struct dlx_connect_args args = {
        .size = sizeof args, .timeout_ns = SECOND / 1000, .wait_ns = SECOND / 20};
    struct dlx_client *c = NULL;
    start_machine_daemon();
    end_machine_daemon(SIGKILL);
    uint64_t began = dlx__now_ns();
    fails(dlx_connect(&args, &c), DLX_E_TIMEOUT, "did not come back within 0.05 s");
    ck_assert_uint_ge(dlx__now_ns() - began, SECOND / 20);
    waits_for_the_machine_so_long(20 * SECOND, DLX_FOREVER);
}

TEST_OF(place, no_private_daemon_is_started_while_the_machines_socket_is_there)
{
    start_machine_daemon();
    end_machine_daemon(SIGKILL);
    dlx_test_spawn_fails(DLX_AUTOSPAWN_DEFAULT, SECOND / 20, DLX_E_TIMEOUT,
                         "does not listen on " SYSTEM_SOCKET);
    dlx_test_spawn_fails(DLX_AUTOSPAWN_NEVER, SECOND / 20, DLX_E_TIMEOUT, "remove the socket");
    ck_assert_int_lt(access("/tmp/dlpackd-0", F_OK), 0);

    ck_assert_int_eq(unlink(SYSTEM_SOCKET), 0);
    struct dlx_client *c = dlx_test_spawn_connect();
    ck_assert_int_eq(dlx_client_daemon_place(c), DLX_DAEMON_TMP);
    end_private_daemon(c);
}

TEST_OF(place, a_named_daemon_comes_before_the_users_and_that_before_the_machines)
{
    start_machine_daemon();
    struct dlx_client *c = dlx_test_spawn_connect();
    ck_assert_int_eq(dlx_client_daemon_place(c), DLX_DAEMON_SYSTEM);
    setenv("DLX_SOCKET", SYSTEM_SOCKET, 1);
    struct dlx_client *named = dlx_test_spawn_connect();
    ck_assert_int_eq(dlx_client_daemon_place(named), DLX_DAEMON_NAMED);
    ck_assert_int_eq(dlx_test_spawn_pid(named), machine);
    dlx_client_unref(named);
    dlx_client_unref(c);
    unsetenv("DLX_SOCKET");
    end_machine_daemon(SIGTERM);

    ck_assert_int_eq(mkdir("/tmp/run", 0700), 0);
    setenv("XDG_RUNTIME_DIR", "/tmp/run", 1);
    c = dlx_test_spawn_connect();
    ck_assert_int_eq(dlx_client_daemon_place(c), DLX_DAEMON_USER);
    start_machine_daemon();
    struct dlx_client *other = dlx_test_spawn_connect();
    ck_assert_int_eq(dlx_test_spawn_pid(other), dlx_test_spawn_pid(c));
    dlx_client_unref(other);
    end_private_daemon(c);
    end_machine_daemon(SIGTERM);
}

int main(void)
{
    return dlx_test_run_cases();
}
