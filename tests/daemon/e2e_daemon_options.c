/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's command line and environment: what cannot be is refused with words and status 2, and
 * nothing is listened on. */

#include "tests/daemon/harness_served.h"
#include "tests/harness/fork.h"
#include "tests/harness/seccomp.h"
#include "tests/harness/upgrade.h"
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/un.h>

static struct dlx_test_daemon place;
static char log_text[4096];
/* Of the next one, if not 0. */
static rlim_t fd_limit;
static unsigned failing_call;
static bool is_journal; /* what reads its stderr */

/* Become the daemon of this build with these arguments, after the program's name. */
static void become_daemon(const char *const *args)
{
    const char *build = getenv("BUILD") ? getenv("BUILD") : "build", *argv[12] = {"dlpackd"};
    char program[512];
    (void)snprintf(program, sizeof program, "%s/dlpackd", build);
    for (size_t i = 0; args[i]; i++)
        argv[i + 1] = args[i];
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    execv(program, (char *const *)(uintptr_t)argv);
    _exit(127);
}

/* As the service manager does where stderr goes to the journal. */
static void name_journal(void)
{
    char name[64];
    struct stat st;
    if (fstat(STDERR_FILENO, &st) < 0)
        _exit(126);
    (void)snprintf(name, sizeof name, "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
    (void)setenv("JOURNAL_STREAM", name, 1);
}

struct start {
    const char *const *args;
    const char *env;
};

static void start(const void *userdata)
{
    const struct start *start = userdata;
    (void)setenv("DLX_SOCKET", place.path, 1);
    if (start->env)
        dlx_test_child_putenv(start->env);
    if (is_journal)
        name_journal();
    if (fd_limit > 0)
        (void)setrlimit(RLIMIT_NOFILE, &(struct rlimit){fd_limit, fd_limit});
    if (failing_call > 0 && !dlx_test_seccomp_fail(failing_call, ENOMEM))
        _exit(126);
    become_daemon(start->args);
}

/* Run it with these arguments, and with NAME=value of `env` if that is not NULL; returns the exit
 * status. */
static int run(const char *const *args, const char *env)
{
    return dlx_test_fork_said(start, &(struct start){args, env}, log_text, sizeof log_text);
}

static bool log_begins(const char *words)
{
    return strncmp(log_text, words, strlen(words)) == 0;
}

/* The daemon ends by itself, so all of its output is there. */
static const char *const briefly[] = {"--idle-exit", "0.01", NULL};

TEST(options_that_cannot_be_are_refused)
{
    static const struct {
        const char *args[3];
        const char *env;
        const char *words;
    } all[] = {
        {{"--ready-fd", ""}, NULL, "no open file descriptor"},
        {{"--ready-fd", "two"}, NULL, "no open file descriptor"},
        {{"--ready-fd", "2x"}, NULL, "no open file descriptor"},
        {{"--ready-fd", "-1"}, NULL, "no open file descriptor"},
        {{"--ready-fd", "99999999999"}, NULL, "no open file descriptor"},
        {{"--ready-fd", "77"}, NULL, "--ready-fd 77: no open file descriptor"},
        {{"--fd-store", ""}, NULL, "from 0 to 65536"},
        {{"--fd-store", "ten"}, NULL, "from 0 to 65536"},
        {{"--fd-store", "10x"}, NULL, "from 0 to 65536"},
        {{"--fd-store", "-1"}, NULL, "from 0 to 65536"},
        {{"--fd-store", "65537"}, NULL, "from 0 to 65536"},
        {{NULL}, "FDSTORE=many", "FDSTORE: 'many' is not a number"},
        {{"--idle-exit", ""}, NULL, "--idle-exit : must be more than 0"},
        {{"--idle-exit", "x"}, NULL, "--idle-exit x: must be more than 0"},
        {{"--idle-exit", "1s"}, NULL, "more than 0"},
        {{"--idle-exit", "0"}, NULL, "more than 0"},
        {{"--idle-exit", "-1"}, NULL, "more than 0"},
        {{"--idle-exit", "nan"}, NULL, "more than 0"},
        {{"--idle-exit", "inf"}, NULL, "more than 0"},
        {{"--idle-exit", "1e7"}, NULL, "at most 1000000"},
        {{"--memory", "disk"}, NULL, "'disk': memfd, posix"},
        {{NULL}, "DLX_MEMORY=disk", "'disk': memfd, posix"},
        {{"--memory-limit", "0"}, NULL, "--memory-limit: '0' is not an amount of memory"},
        {{"--memory-limit", "8XB"}, NULL, "'8XB' is not an amount of memory, like 8GiB"},
        {{"--memory-limit", "8GiBB"}, NULL, "like 8GiB"},
        {{"--memory-limit", "-1"}, NULL, "like 8GiB"},
        {{"--memory-limit", "101%"}, NULL, "or 70%"},
        {{"--memory-limit", "infinity"}, NULL, "like 8GiB"},
        {{"--memory-limit", "2000000TiB"}, NULL, "like 8GiB"},
        {{NULL}, "DLX_MEMORY_LIMIT=much", "DLX_MEMORY_LIMIT: 'much' is not an amount of memory"},
        {{"--allow-user", ""}, NULL, "there is no user"},
        {{"--allow-user", "no/such"}, NULL, "--allow-user no/such: there is no user 'no/such'"},
        {{"--allow-user", "-1"}, NULL, "there is no user"},
        {{"--allow-user", "7x"}, NULL, "there is no user"},
        {{"--allow-user", "4294967295"}, NULL, "there is no user"},
        {{"--allow-user", "65534"}, NULL, "has no rights"},
        {{"--no-such-option"}, NULL, "unrecognized option"},
        {{"argument"}, NULL, "Too many arguments"},
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++) {
        ck_assert_msg(run(all[i].args, all[i].env) == 2 && strstr(log_text, all[i].words),
                      "%s %s: %s", all[i].args[0], all[i].args[1], log_text);
        ck_assert_msg(!strstr(log_text, "(null)"), "%s", log_text);
        ck_assert_int_lt(access(place.path, F_OK), 0);
    }
}

/* The exit status of one who becomes this user, and says Hello through the socket: 0, or 1 if it is
 * refused, or 2 if it cannot connect. */
static int hello_as(uid_t uid, const char *path)
{
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
        dlx_test_become(&place, uid);
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (connect(fd, (const struct sockaddr *)&address, sizeof address) < 0)
            _exit(2);
        _exit(dlx_test_call(fd, HELLO(.major = DLX_PROTO_MAJOR))->body_case != BODY(HELLO_REPLY));
    }
    return dlx_test_fork_status(pid);
}

/* A daemon whose umask lets no other user in, with its socket in a folder that it makes, or (_i) in
 * one that keeps others out. */
LOOP_TEST(allowed_users_reach_the_socket_and_others_are_refused, 0, 2)
{
    char folder[300], socket_path[320];
    int ready[2], said[2];
    char byte;
    if (dlx_test_skips(geteuid() != 0, "needs root to become another user"))
        return;
    (void)snprintf(folder, sizeof folder, "%s/made", place.dir);
    (void)snprintf(socket_path, sizeof socket_path, "%s/s", folder);
    if (_i)
        ck_assert_int_eq(mkdir(folder, 0700), 0);
    ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(said, O_CLOEXEC), 0);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        (void)umask(077);
        (void)dup2(said[1], STDERR_FILENO);
        (void)dup2(ready[1], STDOUT_FILENO);
        become_daemon(DLX_TEST_WORDS("--socket", socket_path, "--allow-user", "64001",
                                     "--allow-user", "daemon", "--ready-fd", "1"));
    }
    close(ready[1]);
    close(said[1]);
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    ck_assert_int_eq(hello_as(64001, "made/s"), _i ? 2 : 0);
    ck_assert_int_eq(hello_as(1, "made/s"), _i ? 2 : 0); /* "daemon" */
    ck_assert_int_eq(hello_as(64002, "made/s"), _i ? 2 : 1);
    ck_assert_int_eq(kill(pid, SIGTERM), 0);
    dlx_test_fork_join(pid);
    ssize_t n = read(said[0], log_text, sizeof log_text - 1);
    log_text[DLX_MAX(n, 0)] = '\0';
    ck_assert_msg(!strstr(log_text, "other users cannot reach") == !_i, "%s", log_text);
    close(ready[0]);
    close(said[0]);
    ck_assert_int_eq(rmdir(folder), 0);
}

TEST(lines_for_the_journal_have_a_level)
{
    is_journal = true;
    ck_assert_int_eq(run(briefly, NULL), 0);
    ck_assert_msg(log_begins("<5>listening on "), "%s", log_text);
    ck_assert_int_eq(run(DLX_TEST_WORDS("--idle-exit", "0.01", "--foreground"), NULL), 0);
    ck_assert_msg(log_begins("dlpackd: listening on "), "%s", log_text);
    is_journal = false; /* there is none, or that of another one: stderr is ours */
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(run(briefly, i ? "JOURNAL_STREAM=1:2" : NULL), 0);
        ck_assert_msg(log_begins("dlpackd: listening on "), "%s", log_text);
    }
}

/* Then its stderr is /dev/null. */
TEST(a_line_says_that_it_is_ready)
{
    ck_assert_int_eq(
        run(DLX_TEST_WORDS("--socket", place.path, "--ready-fd", "2", "--idle-exit", "0.02"), NULL),
        0);
    ck_assert_str_eq(log_text, "READY=1\n");
}

TEST(a_configuration_is_checked_without_a_daemon)
{
    static const struct {
        const char *text, *words;
        int status;
    } all[] = {
        {"[daemon]\nfd-store = 4\n", "", 0},
        {"[daemon]\nfd-stor = 4\n", "dlpackd.conf:2: [daemon] has no 'fd-stor'", 1},
    };
    char path[300];
    (void)snprintf(path, sizeof path, "%s/dlpackd.conf", place.dir);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++) {
        dlx_test_upgrade_write(path, all[i].text);
        ck_assert_int_eq(run(DLX_TEST_WORDS("--check-config", path), NULL), all[i].status);
        contains(log_text, all[i].words);
        ck_assert_int_lt(access(place.path, F_OK), 0);
    }
    ck_assert_int_eq(run(DLX_TEST_WORDS("--config", path), NULL), 1);
    contains(log_text, all[1].words);
    ck_assert_int_lt(access(place.path, F_OK), 0);
    ck_assert_int_eq(unlink(path), 0);
}

/* An empty variable is as good as none. */
TEST(an_option_wins_over_its_variable)
{
    static const struct {
        const char *option, *value, *wrong, *empty;
    } all[] = {{"--memory", "memfd", "DLX_MEMORY=disk", "DLX_MEMORY="},
               {"--memory-limit", "1GiB", "DLX_MEMORY_LIMIT=much", "DLX_MEMORY_LIMIT="}};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++) {
        const char *const args[] = {"--idle-exit", "0.01", all[i].option, all[i].value, NULL};
        ck_assert_msg(run(args, all[i].wrong) == 0, "%s: %s", all[i].option, log_text);
        ck_assert_msg(run(briefly, all[i].empty) == 0, "%s: %s", all[i].empty, log_text);
    }
}

/* The daemon runs all the same; it only says that nothing will outlive it. */
TEST(a_store_without_a_service_manager_is_said)
{
    ck_assert_int_eq(
        run(DLX_TEST_WORDS("--idle-exit", "0.01", "--fd-store", "10"), "NOTIFY_SOCKET="), 0);
    contains(log_text, "retained messages end with this daemon: ");
    contains(log_text, "NOTIFY_SOCKET");
}

TEST(too_few_file_descriptors_are_said)
{
    size_t n_failed = 0;
    int status;
    if (dlx_test_skips(dlx_test_instrumented(), "sanitizers and valgrind need file descriptors"))
        return;
    for (fd_limit = 4; (status = run(briefly, NULL)) != 0; fd_limit++) {
        if (status == 127) /* too few for the dynamic linker, too */
            continue;
        ck_assert_msg(status == EXIT_FAILURE && log_begins("dlpackd: "), "%d, %d: %s",
                      (int)fd_limit, status, log_text);
        ck_assert_int_lt(access(place.path, F_OK), 0);
        n_failed++;
    }
    ck_assert_uint_gt(n_failed, 5);
    /* The daemon runs, and says how few there are. */
    char words[64];
    (void)snprintf(words, sizeof words, "at most %d file descriptors", (int)fd_limit);
    contains(log_text, words);
    fd_limit = 1024;
    ck_assert_int_eq(run(briefly, NULL), 0);
    ck_assert_msg(!strstr(log_text, "file descriptors"), "%s", log_text);
}

/* On its first pipes, and on what it registers in its first turn, libuv aborts. */
TEST(a_resource_that_libuv_cannot_get_is_named)
{
    static const unsigned calls[] = {SYS_pipe2, SYS_epoll_ctl, SYS_epoll_create1, SYS_eventfd2};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(calls); i++) {
        failing_call = calls[i];
        ck_assert_msg(run(briefly, NULL) == EXIT_FAILURE && log_begins("dlpackd: "), "call %u: %s",
                      failing_call, log_text);
#ifndef DLX_SANITIZE /* ThreadSanitizer's abort() changes errno */
        ck_assert_msg(strstr(log_text, "memory"), "call %u: %s", failing_call, log_text);
#endif
        ck_assert_int_lt(access(place.path, F_OK), 0);
    }
}

/* Where it points, and how it was opened. */
static void check_is_null(pid_t pid, int fd)
{
    char path[64], text[256];
    unsigned flags;
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
    ssize_t n = readlink(path, text, sizeof text - 1);
    ck_assert_msg(n > 0, "fd %d is closed", fd);
    text[n] = '\0';
    ck_assert_str_eq(text, "/dev/null");
    (void)snprintf(path, sizeof path, "/proc/%d/fdinfo/%d", (int)pid, fd);
    FILE *info = fopen(path, "re");
    ck_assert_ptr_nonnull(info);
    ck_assert_int_eq(fscanf(info, "pos: %*s flags: %o", &flags), 1);
    (void)fclose(info);
    ck_assert_uint_eq(flags & O_ACCMODE, fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/* Started with some of 0, 1 and 2 closed: no socket of its own gets such a number, and with it what
 * is printed. */
LOOP_TEST(closed_standard_descriptors_are_filled, 1, 8)
{
    int ready[2];
    char line[9] = "", number[16];
    if (dlx_test_skips(dlx_test_valgrind(), "what is closed is valgrind's own file there"))
        return;
    ck_assert_int_eq(pipe(ready), 0);
    (void)snprintf(number, sizeof number, "%d", ready[1]);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
            if (_i & 1 << fd)
                close(fd);
        become_daemon(DLX_TEST_WORDS("--foreground", "--socket", place.path, "--ready-fd", number));
    }
    close(ready[1]);
    ck_assert_int_eq(read(ready[0], line, sizeof line - 1), 8);
    ck_assert_str_eq(line, "READY=1\n");
    close(ready[0]);
    close(dlx_test_hello(&place, 1)); /* which it logs */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (_i & 1 << fd)
            check_is_null(pid, fd);
    ck_assert_int_eq(kill(pid, SIGTERM), 0);
    dlx_test_fork_join(pid);
}

int main(void)
{
    TCase *tcase = tcase_create("options");
    tcase_set_timeout(tcase, PATIENCE_S);
    dlx_test_dir_fixture(tcase, &place);
    return dlx_test_run_case(tcase);
}
