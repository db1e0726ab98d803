/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/spawn.h"
#include "client/start/socket_path.h"
#include "tests/harness/fds.h"
#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/un.h>

char dlx_test_spawn_dir[256];
char dlx_test_spawn_socket[300];
static size_t n_fds;

const char *dlx_test_spawn_program(const char *name)
{
    static char paths[2][512];
    static unsigned next;
    const char *build = getenv("BUILD");
    char *path = paths[next++ % 2];
    (void)snprintf(path, sizeof paths[0], "%s/%s", build ? build : "build", name);
    return path;
}

static void path_of(const char *name, char ret[400])
{
    (void)snprintf(ret, 400, "%s/%s", dlx_test_spawn_dir, name);
}

/* Without checks, after a failed test. */
static void clean(void)
{
    char path[600];
    DIR *dir = opendir(dlx_test_spawn_dir);
    if (!dir)
        return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        (void)snprintf(path, sizeof path, "%s/%s", dlx_test_spawn_dir, entry->d_name);
        (void)unlink(path);
    }
    closedir(dir);
    (void)rmdir(dlx_test_spawn_dir);
}

static void make_dir(void)
{
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(dlx_test_spawn_dir, sizeof dlx_test_spawn_dir, "%s/run-XXXXXX",
                   tmp ? tmp : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(dlx_test_spawn_dir));
    (void)snprintf(dlx_test_spawn_socket, sizeof dlx_test_spawn_socket, "%s/dlpackd.sock",
                   dlx_test_spawn_dir);
}

/* A daemon that answers at the machine's path would be found instead of the test's own. */
static void expect_no_other_daemon(void)
{
    struct dlx_socket_path_env env = dlx__socket_path_env();
    for (int place = DLX_SOCKET_PATH_SYSTEM; place < DLX_N_SOCKET_PATHS; place++) {
        struct sockaddr_un at = {.sun_family = AF_UNIX};
        char path[DLX_SOCKET_PATH_SIZE];
        if (!dlx__socket_path_of(&env, (enum dlx_socket_path)place, path))
            continue;
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        (void)snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
        ck_assert_msg(connect(fd, (const struct sockaddr *)&at, sizeof at) < 0,
                      "a dlpackd answers at %s: stop it, this test needs a machine without one",
                      path);
        close(fd);
    }
}

static void start(void)
{
    expect_no_other_daemon();
    ck_assert_int_eq(setenv("XDG_RUNTIME_DIR", dlx_test_spawn_dir, 1), 0);
    ck_assert_int_eq(setenv("DLX_DAEMON", dlx_test_spawn_program("dlpackd"), 1), 0);
    ck_assert_int_eq(setenv("DLX_IDLE_EXIT", "0.05", 1), 0);
    ck_assert_int_eq(unsetenv("DLX_AUTOSPAWN"), 0);
    ck_assert_int_eq(unsetenv("DLX_SOCKET"), 0);
    n_fds = dlx_test_fds_count();
}

static void stop(void)
{
    dlx_test_spawn_wait_empty();
    ck_assert_msg(waitpid(-1, NULL, __WALL | WNOHANG) == -1 && errno == ECHILD, "a child is left");
    ck_assert_uint_eq(dlx_test_fds_count(), n_fds);
}

TCase *dlx_test_spawn_case(const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 60);
    tcase_add_unchecked_fixture(tcase, make_dir, clean);
    tcase_add_checked_fixture(tcase, start, stop);
    return tcase;
}

static void hide_places(void)
{
    char real[4096];
    ck_assert_ptr_nonnull(realpath(dlx_test_spawn_program("dlpackd"), real));
    ck_assert_int_eq(unshare(CLONE_NEWNS), 0);
    int file = open(real, O_PATH | O_CLOEXEC);
    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL), 0);
    ck_assert_int_eq(mount("tmpfs", "/run", "tmpfs", 0, "mode=755"), 0);
    (void)snprintf(real, sizeof real, "/proc/self/fd/%d", file);
    int target = open(DLX_TEST_SPAWN_DAEMON, O_CREAT | O_WRONLY | O_CLOEXEC, 0700);
    ck_assert_int_ge(target, 0);
    close(target);
    ck_assert_int_eq(mount(real, DLX_TEST_SPAWN_DAEMON, "none", MS_BIND, NULL), 0);
    ck_assert_int_eq(mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777"), 0);
    setenv("DLX_DAEMON", DLX_TEST_SPAWN_DAEMON, 1);
    unsetenv("XDG_RUNTIME_DIR");
    close(file);
}

static bool may_unshare(void)
{
    int status = 1;
    pid_t pid = fork(); /* no test runs, so no assertion of Check may be made */
    if (pid == 0)
        _exit(unshare(CLONE_NEWNS) < 0);
    return waitpid(pid, &status, 0) == pid && status == 0;
}

TCase *dlx_test_spawn_hidden_case(const char *name)
{
    if (dlx_test_skips(geteuid() != 0, "needs root, for a /run and a /tmp of its own") ||
        dlx_test_skips(!may_unshare(), "no mount namespace here"))
        return NULL;
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 60);
    tcase_add_unchecked_fixture(tcase, make_dir, clean);
    tcase_add_checked_fixture(tcase, start, NULL);
    tcase_add_checked_fixture(tcase, hide_places, NULL);
    return tcase;
}

struct dlx_client *dlx_test_spawn_connect(void)
{
    struct dlx_connect_args args = {.size = sizeof args, .timeout_ns = 20 * SECOND};
    struct dlx_client *c = NULL;
    ok(dlx_connect(&args, &c));
    return c;
}

void dlx_test_spawn_fails(uint32_t autospawn, int64_t timeout_ns, int code, const char *word)
{
    struct dlx_connect_args args = {
        .size = sizeof args, .autospawn = autospawn, .timeout_ns = timeout_ns};
    struct dlx_client *c = NULL;
    fails(dlx_connect(&args, &c), code, word);
    ck_assert_ptr_null(c);
}

pid_t dlx_test_spawn_pid(struct dlx_client *c)
{
    struct dlx_daemon_info info = {.size = sizeof info};
    ok(dlx_client_get_daemon_info(c, &info));
    return (pid_t)info.pid;
}

static bool ends_within(pid_t pid, int ms)
{
    auto_fd fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0 && errno == ESRCH)
        return true;
    ck_assert_int_ge(fd, 0);
    return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, ms) == 1;
}

void dlx_test_spawn_stays(pid_t pid)
{
    ck_assert_msg(!ends_within(pid, 300), "process %d has ended", (int)pid);
}

void dlx_test_spawn_wait_end(pid_t pid)
{
    ck_assert_msg(ends_within(pid, PATIENCE_MS), "process %d does not end", (int)pid);
}

void dlx_test_spawn_wait_empty(void)
{
    char lock[400], text[32] = "";
    path_of("dlpackd.sock.lock", lock);
    int fd = open(lock, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && read(fd, text, sizeof text - 1) > 0)
        dlx_test_spawn_wait_end((pid_t)strtol(text, NULL, 10));
    dlx__close(fd);
    DIR *dir = opendir(dlx_test_spawn_dir);
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        ck_assert_msg(entry->d_name[0] == '.', "%s is left", entry->d_name);
    closedir(dir);
}

void dlx_test_spawn_script(const char *text)
{
    char path[400];
    path_of("script", path);
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fprintf(file, "%s%s\n", text[0] == '#' ? "" : "#!/bin/sh\n", text), 0);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(chmod(path, 0700), 0);
    ck_assert_int_eq(setenv("DLX_DAEMON", path, 1), 0);
    ck_assert_int_eq(setenv("DIR", dlx_test_spawn_dir, 1), 0);
    ck_assert_int_eq(setenv("REAL", dlx_test_spawn_program("dlpackd"), 1), 0);
}

void dlx_test_spawn_fifo(const char *name)
{
    char path[400];
    path_of(name, path);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
}

void dlx_test_spawn_say(const char *name)
{
    char path[400];
    path_of(name, path);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, "\n", 1), 1);
    close(fd);
}

void dlx_test_spawn_hear(const char *name)
{
    char path[400], byte;
    path_of(name, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(read(fd, &byte, 1), 1);
    close(fd);
}

void dlx_test_spawn_read(const char *name, char *ret, size_t size)
{
    char path[400];
    path_of(name, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ssize_t n = read(fd, ret, size - 1);
    ck_assert_int_ge(n, 0);
    ret[n] = '\0';
    close(fd);
}

void dlx_test_spawn_remove(const char *name)
{
    char path[400];
    path_of(name, path);
    ck_assert_int_eq(unlink(path), 0);
}
