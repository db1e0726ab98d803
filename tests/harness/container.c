/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/container.h"
#include "tests/harness/fork.h"
#include <glob.h>
#include <grp.h>
#include <limits.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define NAMESPACES (CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUTS)
#define ROOT       "/tmp" /* a folder that is there: the new root is mounted on it */

/* In children, where ck_assert is of no use: the line goes to the test's output. */
#define must(x)                                                                                    \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            (void)fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #x, strerror(errno));     \
            _exit(99);                                                                             \
        }                                                                                          \
    } while (0)

/* fork() that also makes namespaces: the child is the first process in them. */
static pid_t clone_into(unsigned long namespaces)
{
    return (pid_t)syscall(SYS_clone, namespaces | SIGCHLD, 0L, 0L, 0L, 0L);
}

static void bind_fd(int fd, const char *target)
{
    char source[64];
    (void)snprintf(source, sizeof source, "/proc/self/fd/%d", fd);
    must(mount(source, target, NULL, MS_BIND, NULL) == 0);
    (void)close(fd);
}

/* `source` at the same place below the new root: a folder with all that is mounted in it, a file,
 * or a symbolic link, which is copied. A missing one is skipped. */
static void bind_same(const char *source, bool read_only)
{
    struct stat st;
    char target[PATH_MAX], link[PATH_MAX] = "";
    if (lstat(source, &st) != 0)
        return;
    (void)snprintf(target, sizeof target, ROOT "%s", source);
    if (S_ISLNK(st.st_mode)) {
        must(readlink(source, link, sizeof link - 1) > 0 && symlink(link, target) == 0);
        return;
    }
    if (S_ISDIR(st.st_mode))
        must(mkdir(target, 0755) == 0);
    else
        must(mknod(target, S_IFREG | 0644, 0) == 0);
    must(mount(source, target, NULL, MS_BIND | MS_REC, NULL) == 0);
    if (read_only)
        must(mount(NULL, target, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) == 0);
}

/* The files that runtimes give a container with GPUs. The driver loads more libraries when it first
 * needs them. */
static void bind_driver(void)
{
    static const char *const system[] = {"/usr",  "/lib", "/lib32", "/lib64", "/bin",
                                         "/sbin", "/etc", "/opt",   "/sys"};
    static const char *const files[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random",
                                        "/dev/urandom"};
    static const char *const devices[] = {"/dev/nvidia*", "/dev/dxg"};
    glob_t found = {.gl_pathc = 0};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(system); i++)
        bind_same(system[i], true);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(files); i++)
        bind_same(files[i], false);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(devices); i++)
        (void)glob(devices[i], i > 0 ? GLOB_APPEND : 0, NULL, &found);
    for (size_t i = 0; i < found.gl_pathc; i++)
        bind_same(found.gl_pathv[i], false);
    globfree(&found);
}

static void make_root(const struct dlx_test_daemon *daemon)
{
    const char *machine = getenv("STANDIN_MACHINE");
    int folder = open(daemon->dir, O_PATH | O_CLOEXEC);
    int file = machine ? open(machine, O_PATH | O_CLOEXEC) : -1;
    must(folder >= 0 && (!machine || file >= 0));
    must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    must(mount("dlx-root", ROOT, "tmpfs", 0, "mode=0755") == 0);
    must(mkdir(ROOT "/run", 0755) == 0 && mkdir(ROOT "/proc", 0755) == 0);
    must(mkdir(ROOT "/dev", 0755) == 0 && mkdir(ROOT "/dev/shm", 0755) == 0);
    if (getenv("DLX_TEST_GPU_DRIVER"))
        bind_driver();
    bind_fd(folder, ROOT "/run");
    must(mount(NULL, ROOT "/run", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) == 0);
    if (file >= 0) {
        int there = open(ROOT "/dev/gpu", O_CREAT | O_CLOEXEC, 0600);
        must(there >= 0 && close(there) == 0);
        bind_fd(file, ROOT "/dev/gpu");
        must(setenv("STANDIN_MACHINE", "/dev/gpu", 1) == 0);
    }
    must(mount("proc", ROOT "/proc", "proc", 0, NULL) == 0);
    must(mount("dlx-shm", ROOT "/dev/shm", "tmpfs", 0, "mode=1777") == 0);
    must(chdir(ROOT) == 0);
    must(syscall(SYS_pivot_root, ".", ".") == 0);
    must(umount2(".", MNT_DETACH) == 0 && chdir("/") == 0);
}

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));
    ck_assert_msg(n == (ssize_t)strlen(text), "%s: %s", path, strerror(errno));
    (void)close(fd);
}

/* By the parent, which has the right to. */
static void name_root(pid_t pid, uid_t uid)
{
    char path[64], map[64];
    (void)snprintf(map, sizeof map, "0 %u 1", (unsigned)uid);
    (void)snprintf(path, sizeof path, "/proc/%d/uid_map", (int)pid);
    write_file(path, map);
    (void)snprintf(path, sizeof path, "/proc/%d/gid_map", (int)pid);
    write_file(path, map);
}

static void become_root(void)
{
    must(setgroups(0, NULL) == 0 && setresgid(0, 0, 0) == 0 && setresuid(0, 0, 0) == 0);
    /* setresuid() has cleared both; a program executed there would be dumpable again. */
    must(prctl(PR_SET_DUMPABLE, 1) == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
}

bool dlx_test_container_may(void)
{
    pid_t pid = clone_into(NAMESPACES | CLONE_NEWUSER);
    if (pid == 0)
        _exit(0);
    if (pid < 0) {
        (void)printf("SKIP: namespaces cannot be made here (%s)\n", strerror(errno));
        return false;
    }
    must(waitpid(pid, NULL, 0) == pid);
    if (geteuid() == 0)
        return true;
    (void)puts("SKIP: needs root to give containers a root folder and users");
    return false;
}

/* The role is run by a child, which is pid 2. */
static void run_second(int sock, dlx_test_container_role *role)
{
    int status = 0;
    pid_t pid = fork();
    must(pid >= 0);
    if (pid == 0) {
        role(sock);
        exit(0);
    }
    must(waitpid(pid, &status, 0) == pid);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 98);
}

static struct dlx_test_container start(struct dlx_test_daemon *daemon, uid_t uid,
                                       dlx_test_container_role *role, bool is_second)
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    (void)fflush(NULL);
    pid_t pid = clone_into(NAMESPACES);
    ck_assert_msg(pid >= 0, "clone: %s", strerror(errno));
    if (pid == 0) {
        dlx_test_fork_silence();
        (void)close(pair[0]);
        make_root(daemon);
        must(unshare(CLONE_NEWUSER) == 0);
        dlx_test_container_say(pair[1], 0);
        (void)dlx_test_container_hear(pair[1]);
        become_root();
        (void)snprintf(daemon->path, sizeof daemon->path, "/run/s");
        if (is_second)
            run_second(pair[1], role);
        role(pair[1]);
        exit(0);
    }
    (void)close(pair[1]);
    (void)dlx_test_container_hear(pair[0]);
    name_root(pid, uid);
    dlx_test_container_say(pair[0], 0);
    return (struct dlx_test_container){pid, pair[0]};
}

struct dlx_test_container dlx_test_container_start(struct dlx_test_daemon *daemon, uid_t uid,
                                                   dlx_test_container_role *role)
{
    return start(daemon, uid, role, false);
}

struct dlx_test_container dlx_test_container_start_second(struct dlx_test_daemon *daemon, uid_t uid,
                                                          dlx_test_container_role *role)
{
    return start(daemon, uid, role, true);
}

static int wait_end(struct dlx_test_container *container)
{
    int status = -1;
    ck_assert_int_eq(waitpid(container->pid, &status, 0), container->pid);
    (void)close(container->sock);
    return status;
}

void dlx_test_container_join(struct dlx_test_container *container)
{
    int status = wait_end(container);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the container ended with %#x",
                  (unsigned)status);
}

void dlx_test_container_kill(struct dlx_test_container *container)
{
    ck_assert_int_eq(kill(container->pid, SIGKILL), 0);
    ck_assert(WIFSIGNALED(wait_end(container)));
}

void dlx_test_container_say(int sock, uint64_t word)
{
    ck_assert_int_eq(send(sock, &word, sizeof word, MSG_NOSIGNAL), sizeof word);
}

uint64_t dlx_test_container_hear(int sock)
{
    uint64_t word;
    struct pollfd p = {.fd = sock, .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, 2 * PATIENCE_MS), 1);
    ck_assert_msg(recv(sock, &word, sizeof word, 0) == sizeof word, "the other side has ended");
    return word;
}

/* Stands for the daemon outside: SIGTERM is passed on, and its exit status comes back. */
static void watch_over(pid_t pid, const sigset_t *signals)
{
    int status, signal;
    for (;;) {
        must(sigwait(signals, &signal) == 0);
        if (signal == SIGTERM)
            (void)kill(pid, SIGTERM);
        else if (waitpid(pid, &status, WNOHANG) == pid)
            _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 97);
    }
}

static void write_own(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    (void)close(fd);
}

void dlx_test_container_enter(void *userdata)
{
    sigset_t signals;
    (void)userdata;
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGCHLD);
    must(sigprocmask(SIG_BLOCK, &signals, NULL) == 0);
    pid_t pid = clone_into(NAMESPACES);
    must(pid >= 0);
    if (pid > 0)
        watch_over(pid, &signals);
    must(sigprocmask(SIG_UNBLOCK, &signals, NULL) == 0);
    must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    must(mount("proc", "/proc", "proc", 0, NULL) == 0);
    must(mount("dlx-shm", "/dev/shm", "tmpfs", 0, "mode=1777") == 0);
    must(unshare(CLONE_NEWUSER) == 0);
    write_own("/proc/self/setgroups", "deny");
    write_own("/proc/self/uid_map", "0 0 1");
    write_own("/proc/self/gid_map", "0 0 1");
    must(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
}

void dlx_test_container_kill_daemon(struct dlx_test_daemon *daemon)
{
    char path[64], text[32] = "";
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)daemon->pid,
                   (int)daemon->pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC), status;
    ck_assert_int_ge(fd, 0);
    ck_assert_int_gt(read(fd, text, sizeof text - 1), 0);
    (void)close(fd);
    ck_assert_int_eq(kill((pid_t)strtol(text, NULL, 10), SIGKILL), 0);
    ck_assert_int_eq(waitpid(daemon->pid, &status, 0), daemon->pid); /* which has waited for it */
    daemon->log_fd = dlx__close(daemon->log_fd);
    daemon->pid = -1;
}
