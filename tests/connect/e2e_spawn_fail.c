/* SPDX-License-Identifier: Apache-2.0 */
/* A private daemon that cannot be started: the caller learns why, within its time, and nothing is
 * left. */

#include "tests/harness/fork.h"
#include "tests/harness/spawn.h"
#include <sys/mount.h>

#define OTHER_UID 61234 /* a uid without a user */

static char self[4096];

static void fails_with(int code, const char *word)
{
    dlx_test_spawn_fails(DLX_AUTOSPAWN_DEFAULT, 20 * SECOND, code, word);
}

TEST(no_program)
{
    setenv("DLX_DAEMON", "/nonexistent/dlpackd", 1);
    fails_with(DLX_E_NO_DAEMON, "DLX_DAEMON=/nonexistent/dlpackd");
    setenv("DLX_DAEMON", dlx_test_spawn_dir, 1);
    fails_with(DLX_E_NO_DAEMON, "is not a program");
    unsetenv("DLX_DAEMON");
    setenv("PATH", "/nonexistent:.::relative", 1);
    ck_assert_int_eq(chdir(dlx_test_spawn_program("")), 0); /* `.` is no place for a program */
    fails_with(DLX_E_NO_DAEMON, "or on PATH");
}

TEST(program_on_the_path)
{
    char path[600];
    unsetenv("DLX_DAEMON");
    (void)snprintf(path, sizeof path, "/nonexistent:%s", dlx_test_spawn_program(""));
    setenv("PATH", path, 1);
    dlx_client_unref(dlx_test_spawn_connect());
}

/* Output of another program is shown without escapes for a terminal, and only the end of many
 * lines. */
TEST(programs_that_are_no_daemon)
{
    static const struct {
        const char *script, *words;
    } rows[] = {
        {"#!/nonexistent/interpreter", "No such file"},
        {"#garbage", "Exec format error"},
        {"echo out of luck >&2; exit 3",
         "exited with status 3 before it was ready; it said: out of luck"},
        {"exit 0", "exited with status 0"},
        {"kill -KILL $$", "signal 9"},
        {"printf 'first\\nsec\\033ond\\n' >&2; exit 1", "it said: first; sec?ond"},
        {"i=0; while [ $i -lt 9000 ]; do echo line $i; i=$((i+1)); done >&2; exit 1",
         "; line 8998; line 8999"},
        {"exec $REAL --no-such-option \"$@\"", "no-such-option"},
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(rows); i++) {
        dlx_test_spawn_script(rows[i].script);
        fails_with(DLX_E_NO_DAEMON, rows[i].words);
        ck_assert_msg(i > 2 || strstr(dlx_errmsg(), getenv("DLX_DAEMON")), "%s: %s", rows[i].script,
                      dlx_errmsg());
    }
    dlx_test_spawn_remove("script");
}

/* The pid that the script wrote into its file `pid`; the script has ended. */
static pid_t pid_of_script(void)
{
    char pid[32];
    dlx_test_spawn_read("pid", pid, sizeof pid);
    dlx_test_spawn_remove("pid");
    dlx_test_spawn_remove("script");
    return atoi(pid);
}

/* A program that leaves a child running keeps the pipe open, but its end is noticed. */
TEST(program_that_ends_and_leaves_another)
{
    dlx_test_spawn_script("sleep 1000 & echo $! >$DIR/pid; exit 4");
    fails_with(DLX_E_NO_DAEMON, "status 4");
    pid_t pid = pid_of_script();
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    dlx_test_spawn_wait_end(pid);
}

/* Late is late, whatever it does; it is ended, with what it started. */
LOOP_TEST(program_that_hangs, 0, 4)
{
    static const char *const scripts[] = {
        "echo $$ >$DIR/pid; exec sleep 1000",
        "echo $$ >$DIR/pid; trap '' TERM INT HUP; sleep 1000 & wait",
        "echo $$ >$DIR/pid; exec 2>/dev/null; exec sleep 1000",
        "echo $$ >$DIR/pid; echo READY=11 >&2; echo XREADY=1 >&2; while :; do echo READY >&2; done",
    };
    uint64_t start = dlx__now_ns();
    dlx_test_spawn_script(scripts[_i]);
    dlx_test_spawn_fails(DLX_AUTOSPAWN_DEFAULT, SECOND / 2, DLX_E_TIMEOUT, "not ready in time");
    ck_assert_uint_ge(dlx__now_ns() - start, SECOND / 2);
    ck_assert_uint_lt(dlx__now_ns() - start, 10 * SECOND);
    dlx_test_spawn_wait_end(pid_of_script());
}

/* The program says that it is ready, and does not listen: the call ends all the same. */
TEST(program_that_lies)
{
    dlx_test_spawn_script("echo READY=1 >&2");
    dlx_test_spawn_fails(DLX_AUTOSPAWN_DEFAULT, 2 * SECOND, DLX_E_DISCONNECTED, "ended at once");
    dlx_test_spawn_remove("script");
}

TEST(a_daemon_says_what_it_does_not_know)
{
    setenv("DLX_IDLE_EXIT", "soon", 1);
    fails_with(DLX_E_NO_DAEMON, "--idle-exit soon");
}

/* At each number of descriptors that are left: it works, or says so; nothing is left open or
 * running. */
TEST(few_descriptors)
{
    struct rlimit limit, old;
    bool worked = false, failed = false;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(next);
    for (unsigned left = 0; left < 4; left++) {
        struct dlx_client *c = NULL;
        limit = old;
        limit.rlim_cur = (rlim_t)next + left;
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
        int r = dlx_connect(NULL, &c);
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
        ck_assert_msg(r == 0 || r == DLX_E_FD_LIMIT, "%d %s", r, dlx_errmsg());
        worked |= r == 0;
        failed |= r < 0;
        dlx_client_unref(c);
        dlx_test_spawn_wait_empty();
    }
    ck_assert(worked && failed);
}

/* The role of a copy of this program that has the set-user-ID bit. */
static int connect_and_tell(void)
{
    auto_client *c = NULL;
    int r = dlx_connect(NULL, &c);
    printf("%d %s\n", r, dlx_errmsg());
    return 0;
}

TEST(program_with_rights_of_its_file_starts_none)
{
    char path[4500], text[4096] = "";
    if (dlx_test_skips(dlx_test_instrumented(), "sanitizers do not run with rights of a file") ||
        dlx_test_skips(geteuid() != 0, "needs root, to make a set-user-ID program"))
        return;
    (void)snprintf(path, sizeof path, "cp %s %s/copy", self, dlx_test_spawn_dir);
    ck_assert_int_eq(system(path), 0); // NOLINT(bugprone-command-processor)
    (void)snprintf(path, sizeof path, "%s/copy", dlx_test_spawn_dir);
    ck_assert_int_eq(chown(path, OTHER_UID, OTHER_UID), 0);
    ck_assert_int_eq(chmod(path, 04755), 0);
    (void)snprintf(path, sizeof path, "%s/copy connect", dlx_test_spawn_dir);
    FILE *pipe = popen(path, "re"); // NOLINT(bugprone-command-processor)
    ck_assert_ptr_nonnull(pipe);
    ck_assert_uint_gt(fread(text, 1, sizeof text - 1, pipe), 0);
    ck_assert_int_eq(pclose(pipe), 0);
    ck_assert_int_eq(atoi(text), DLX_E_NO_DAEMON);
    contains(text, "has rights that its caller does not have");
    dlx_test_spawn_remove("copy");
}

CASE(hidden)
{
    return dlx_test_spawn_hidden_case("hidden");
}

TEST_OF(hidden, without_a_runtime_folder)
{
    const struct dlx_connect_args only = {.size = sizeof only, .autospawn = DLX_AUTOSPAWN_NEVER};
    struct stat st;
    struct dlx_client *c, *other = NULL;
    char folder[64], file[128];
    (void)snprintf(folder, sizeof folder, "/tmp/dlpackd-%u", (unsigned)geteuid());
    (void)snprintf(file, sizeof file, "%s/dlpackd.sock", folder);

    /* Another user made the folder before. */
    ck_assert_int_eq(symlink("/run", folder), 0);
    fails_with(DLX_E_ACCESS, folder);
    dlx_test_spawn_fails(DLX_AUTOSPAWN_NEVER, 0, DLX_E_NO_DAEMON, file);
    ck_assert_int_eq(unlink(folder), 0);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    ck_assert_int_eq(chown(folder, OTHER_UID, OTHER_UID), 0);
    fails_with(DLX_E_ACCESS, "belongs to uid 61234");
    ck_assert_int_eq(rmdir(folder), 0);

    /* The library makes a missing folder; later programs find it, also with a runtime folder. */
    mode_t mask = umask(0);
    c = dlx_test_spawn_connect();
    umask(mask);
    ck_assert_int_eq(lstat(folder, &st), 0);
    ck_assert_uint_eq(st.st_mode, S_IFDIR | 0700);
    struct dlx_daemon_info info = dlx_test_stream_daemon_info(c);
    ck_assert_str_eq(info.socket, file);
    ck_assert_int_eq(mkdir("/tmp/run", 0700), 0);
    setenv("XDG_RUNTIME_DIR", "/tmp/run", 1);
    ok(dlx_connect(&only, &other));
    ck_assert_int_eq(dlx_test_spawn_pid(other), (pid_t)info.pid);
    dlx_client_unref(other);
    dlx_client_unref(c);
    dlx_test_spawn_wait_end((pid_t)info.pid);

    /* A runtime folder that others can write to is not used. */
    ck_assert_int_eq(chmod("/tmp/run", 0777), 0);
    c = dlx_test_spawn_connect();
    info = dlx_test_stream_daemon_info(c);
    ck_assert_str_eq(info.socket, file);
    dlx_client_unref(c);
    dlx_test_spawn_wait_end((pid_t)info.pid);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "connect") == 0)
        return connect_and_tell();
    if (!realpath("/proc/self/exe", self))
        return 1;
    if (dlx_test_skips(dlx_test_valgrind(), "valgrind has no pidfds, and its own way with clone()"))
        return 77;
    return dlx_test_run_case(dlx_test_spawn_case("fail"));
}
