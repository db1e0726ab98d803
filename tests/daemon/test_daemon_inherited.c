/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of the service manager: each has its name; what is not told as it should be is told
 * in words, or is for others. */
#include "daemon/persist/manager_fds.h"
#include "tests/harness/fds.h"
#include "tests/harness/fork.h"
#include "tests/harness/run.h"

/* Listen fds have the numbers from 3 on, which are Check's here: so each case is a process of its
 * own. */
enum { FIRST = 3, N = 3 };

static void tell(const char *n, const char *pid, const char *names)
{
    char own[20];
    (void)snprintf(own, sizeof own, "%d", (int)getpid());
    (void)setenv("LISTEN_FDS", n, 1);
    (void)setenv("LISTEN_PID", pid ? pid : own, 1);
    (void)unsetenv("LISTEN_FDNAMES");
    if (names)
        (void)setenv("LISTEN_FDNAMES", names, 1);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(dup2(STDIN_FILENO, FIRST + i), FIRST + i);
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void run(void (*story)(void))
{
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        story();
        _exit(0);
    }
    dlx_test_fork_join(pid);
}

static void names_and_descriptors(void)
{
    struct dlxd_manager_fds manager_fds;
    tell("3", NULL, "one::a name");
    ok(dlxd_manager_fds_init(&manager_fds));
    ck_assert_uint_eq(manager_fds.n, 3);
    static const char *const names[N] = {"one", "", "a name"};
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(manager_fds.fds[i].fd, FIRST + i);
        ck_assert_str_eq(manager_fds.fds[i].name, names[i]);
        ck_assert_int_eq(fcntl(FIRST + i, F_GETFD), FD_CLOEXEC);
    }
    /* A child does not take them for its own. */
    ck_assert(!getenv("LISTEN_FDS") && !getenv("LISTEN_PID") && !getenv("LISTEN_FDNAMES"));
    manager_fds.fds[1].taken = true;
    dlxd_manager_fds_deinit(&manager_fds);
    ck_assert(!is_open(FIRST) && is_open(FIRST + 1) && !is_open(FIRST + 2));
    tell("2", NULL, NULL);
    ok(dlxd_manager_fds_init(&manager_fds));
    ck_assert_uint_eq(manager_fds.n, 2);
    ck_assert_str_eq(manager_fds.fds[1].name, "unknown");
    dlxd_manager_fds_deinit(&manager_fds);
}

TEST(each_descriptor_has_its_name)
{
    run(names_and_descriptors);
}

static void is_not_for_us(const char *n, const char *pid)
{
    struct dlxd_manager_fds manager_fds;
    tell(n, pid, "a:b:c");
    ok(dlxd_manager_fds_init(&manager_fds));
    ck_assert_uint_eq(manager_fds.n, 0);
}

static void not_for_us(void)
{
    static const char *const numbers[] = {"",   "0",  "-1", "+1",
                                          " 1", "1x", "x",  "99999999999999999999"};
    struct dlxd_manager_fds manager_fds;
    for (size_t i = 0; i < DLX_ARRAY_SIZE(numbers); i++) {
        is_not_for_us(numbers[i], NULL);
        is_not_for_us("3", numbers[i]);
    }
    is_not_for_us("3", "1");
    (void)unsetenv("LISTEN_PID");
    ok(dlxd_manager_fds_init(&manager_fds));
    ck_assert_uint_eq(manager_fds.n, 0);
    ck_assert(is_open(FIRST) && is_open(FIRST + N - 1));
}

TEST(descriptors_for_another_process_are_left_alone)
{
    run(not_for_us);
}

static void refused(const char *n, const char *names, int code, const char *words)
{
    struct dlxd_manager_fds manager_fds;
    tell(n, NULL, names);
    (void)close(FIRST + N - 1);
    fails(dlxd_manager_fds_init(&manager_fds), code, words);
    ck_assert_uint_eq(manager_fds.n, 0);
    ck_assert(!manager_fds.fds);
}

static void impossible(void)
{
    refused("2", "a", DLX_E_INVALID, "does not have 2 names");
    refused("2", "a:b:c", DLX_E_INVALID, "does not have 2 names");
    refused("3", "a:b:c", DLX_E_SYSTEM, "inherited descriptor 5");
    refused("2147483647", "a", DLX_E_INVALID, "LISTEN_FDS=2147483647");
    refused("99999999999", "a", DLX_E_INVALID, "LISTEN_FDS=99999999999");
}

TEST(impossible_descriptors_are_named)
{
    run(impossible);
}

enum kind { SEQPACKET, STREAM, DATAGRAM, CONNECTED, INET, FILE_ };

static void put(int fd, enum kind kind)
{
    static const int types[] = {SOCK_SEQPACKET, SOCK_STREAM, SOCK_DGRAM};
    int made[2] = {-1, -1};
    if (kind == CONNECTED)
        dlx_test_fds_pair(made);
    else if (kind == FILE_)
        made[0] = open("/dev/null", O_RDONLY);
    else if (kind == INET)
        made[0] = socket(AF_INET, SOCK_STREAM, 0);
    else
        made[0] = dlx_test_fds_bind("", types[kind]);
    if (kind == SEQPACKET || kind == STREAM || kind == INET)
        ck_assert_int_eq(listen(made[0], 1), 0);
    ck_assert_int_eq(dup2(made[0], fd), fd);
    dlx__close(made[0]);
    dlx__close(made[1]);
}

/* The first and the third of three descriptors, and the one that is taken: "a" is the name of one,
 * or of its unit; without a name the only socket is. */
static const struct row {
    enum kind first, third;
    const char *names, *name;
    int fd;
    int code;
    const char *words;
} rows[] = {
    {FILE_, FILE_, "a:b:c", NULL, -1, 0, ""},
    {FILE_, SEQPACKET, "a:b:c", NULL, FIRST + 2, 0, ""},
    {SEQPACKET, FILE_, "a:b:c", NULL, FIRST, 0, ""},
    {SEQPACKET, SEQPACKET, "a:b:c", NULL, -1, DLX_E_INVALID, "3 (a) and 5 (c)"},
    {SEQPACKET, STREAM, "a:b:c", NULL, -1, DLX_E_INVALID, "ListenSequentialPacket="},
    {SEQPACKET, DATAGRAM, "a:b:c", NULL, -1, DLX_E_INVALID, "ListenSequentialPacket="},
    {SEQPACKET, CONNECTED, "a:b:c", NULL, -1, DLX_E_INVALID, "ListenSequentialPacket="},
    {SEQPACKET, INET, "a:b:c", NULL, -1, DLX_E_INVALID, "ListenSequentialPacket="},
    {SEQPACKET, SEQPACKET, "a:b:c", "a", FIRST, 0, ""},
    {SEQPACKET, SEQPACKET, "a:b:c", "c", FIRST + 2, 0, ""},
    {SEQPACKET, SEQPACKET, "a:b:c.socket", "c", FIRST + 2, 0, ""},
    {SEQPACKET, SEQPACKET, "a:b:.socket", ".socket", FIRST + 2, 0, ""},
    {SEQPACKET, SEQPACKET, "a:b:c.socket", "c.socket", -1, 0, ""},
    {SEQPACKET, SEQPACKET, "a:b:cc", "c", -1, 0, ""},
    {SEQPACKET, SEQPACKET, "a:b:a.socket", "a", -1, DLX_E_INVALID, ""},
};
static const struct row *row;

/* Then the daemon tells unexpected descriptors, and closes everything else. */
static void take_socket(void)
{
    struct dlxd_manager_fds manager_fds;
    int taken = -1;
    tell("3", NULL, row->names);
    put(FIRST, row->first);
    put(FIRST + 1, FILE_);
    put(FIRST + 2, row->third);
    ok(dlxd_manager_fds_init(&manager_fds));
    ck_assert_int_eq(dlxd_manager_fds_take_listen_fd(&manager_fds, row->name, &taken), row->code);
    ck_assert_int_eq(taken, row->fd);
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), row->words));
    if (row->name) {
        fails(dlxd_manager_fds_check_listen_fds(&manager_fds), DLX_E_INVALID,
              "inherited descriptor ");
        ck_assert_ptr_nonnull(strstr(dlx__error_message(), "it has no [socket "));
    }
    dlxd_manager_fds_deinit(&manager_fds);
    for (int fd = FIRST; fd < FIRST + N; fd++)
        ck_assert_int_eq(is_open(fd), fd == taken);
}

LOOP_TEST(the_socket_among_them_is_found_by_kind_and_name, 0, DLX_ARRAY_SIZE(rows))
{
    row = &rows[_i];
    run(take_socket);
}

int main(void)
{
    return dlx_test_run_case(tcase_create("inherited"));
}
