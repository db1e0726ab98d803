/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/fork.h"
#include "tests/harness/patience.h"
#include <dirent.h>
#include <sys/prctl.h>

/* tmpfile(): a file under /tmp without a name. */
static bool is_check_file(const char *fd)
{
    static const char end[] = " (deleted)";
    char link[64], target[256];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%s", fd);
    ssize_t n = readlink(link, target, sizeof target - 1);
    if (n < (ssize_t)sizeof end)
        return false;
    target[n] = '\0';
    return strncmp(target, "/tmp/", 5) == 0 && strcmp(target + n - (sizeof end - 1), end) == 0;
}

void dlx_test_fork_silence(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (!dir || null < 0)
        _exit(1);
    for (const struct dirent *entry; (entry = readdir(dir));)
        if (is_check_file(entry->d_name))
            (void)dup2(null, atoi(entry->d_name));
    closedir(dir);
    close(null);
}

pid_t dlx_test_fork(void)
{
    pid_t pid = fork();
    if (pid == 0)
        dlx_test_fork_silence();
    else
        ck_assert_int_ge(pid, 0);
    return pid;
}

struct dlx_test_child dlx_test_fork_child(void)
{
    struct dlx_test_child child;
    ck_assert_int_eq(pipe(child.ready), 0);
    child.pid = dlx_test_fork();
    return child;
}

_Noreturn void dlx_test_fork_ready(const struct dlx_test_child *child)
{
    if (write(child->ready[1], "", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

pid_t dlx_test_fork_wait_ready(const struct dlx_test_child *child)
{
    char byte;
    close(child->ready[1]);
    ck_assert_int_eq(read(child->ready[0], &byte, 1), 1);
    close(child->ready[0]);
    return child->pid;
}

static pid_t fork_any(pid_t unused)
{
    (void)unused;
    return dlx_test_fork();
}

struct dlx_test_part dlx_test_part_begin(void (*part)(int sock, const void *userdata),
                                         const void *userdata)
{
    return dlx_test_part_begin_as(0, fork_any, part, userdata);
}

struct dlx_test_part dlx_test_part_begin_as(pid_t number, pid_t (*forks)(pid_t number),
                                            void (*part)(int sock, const void *userdata),
                                            const void *userdata)
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    pid_t pid = forks(number);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pair[0]);
        part(pair[1], userdata);
        _exit(0);
    }
    close(pair[1]);
    return (struct dlx_test_part){pid, pair[0]};
}

void dlx_test_say(int sock)
{
    ck_assert_int_eq(send(sock, "", 1, MSG_NOSIGNAL), 1);
}

void dlx_test_hear(int sock)
{
    char byte;
    struct pollfd p = {.fd = sock, .events = POLLIN};
    ck_assert_msg(poll(&p, 1, PATIENCE_MS) == 1, "nothing is said");
    ck_assert_int_eq(recv(sock, &byte, 1, 0), 1);
}

void dlx_test_part_join(const struct dlx_test_part *part)
{
    dlx_test_fork_join(part->pid);
    close(part->sock);
}

void dlx_test_part_kill(const struct dlx_test_part *part)
{
    ck_assert_int_eq(kill(part->pid, SIGKILL), 0);
    ck_assert_int_eq(dlx_test_fork_status(part->pid), 256 + SIGKILL);
    close(part->sock);
}

int dlx_test_fork_status(pid_t pid)
{
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

int dlx_test_fork_said(void (*part)(const void *userdata), const void *userdata, char *said,
                       size_t size)
{
    int fds[2];
    size_t n = 0;
    ssize_t got;
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        (void)dup2(fds[1], STDERR_FILENO);
        part(userdata);
        _exit(0);
    }
    close(fds[1]);
    while (n < size - 1 && (got = read(fds[0], said + n, size - 1 - n)) > 0)
        n += (size_t)got;
    said[n] = '\0';
    close(fds[0]);
    return dlx_test_fork_status(pid);
}

struct dlx_test_peer dlx_test_fork_peer(void)
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    pid_t pid = dlx_test_fork();
    close(pair[pid != 0]);
    return (struct dlx_test_peer){.pid = pid, .sock = pair[pid == 0]};
}

void dlx_test_peer_say(const struct dlx_test_peer *peer)
{
    dlx_test_say(peer->sock);
}

void dlx_test_peer_hear(const struct dlx_test_peer *peer)
{
    dlx_test_hear(peer->sock);
}

struct dlx_test_peer dlx_test_peer_begin(void (*part)(struct dlx_test_peer *parent))
{
    struct dlx_test_peer peer = dlx_test_fork_peer();
    if (peer.pid == 0) {
        part(&peer);
        _exit(0);
    }
    dlx_test_peer_hear(&peer);
    return peer;
}

void dlx_test_peer_join(struct dlx_test_peer *peer)
{
    dlx_test_fork_join(peer->pid);
    close(peer->sock);
}

void dlx_test_peer_kill(struct dlx_test_peer *peer)
{
    dlx_test_fork_kill(peer->pid);
    close(peer->sock);
}

void dlx_test_fork_join(pid_t pid)
{
    int status = dlx_test_fork_status(pid);
    ck_assert_msg(status == 0, "the child's status is %d", status);
}

void dlx_test_fork_kill(pid_t pid)
{
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}
