/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/hostile/harness_liar.h"
#include "tests/harness/fork.h"
#include <sys/prctl.h>

void dlx_test_liar_say(int fd)
{
    ck_assert_int_eq(write(fd, "", 1), 1);
}

void dlx_test_liar_hear(int fd)
{
    char byte;
    ck_assert_int_eq(read(fd, &byte, 1), 1);
}

struct dlx_test_liar dlx_test_liar_spawn(void (*fn)(struct dlx_client *c, int tell, int arg),
                                         int arg)
{
    int fds[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    struct dlx_test_liar liar = {.pid = dlx_test_fork(), .sock = fds[0]};
    ck_assert_int_ge(liar.pid, 0);
    if (liar.pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        fn(dlx_test_stream_connect(), fds[1], arg);
        _exit(0);
    }
    close(fds[1]);
    return liar;
}

void dlx_test_liar_kill(struct dlx_test_liar *liar)
{
    int status = 0;
    ck_assert_int_eq(kill(liar->pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(liar->pid, &status, 0), liar->pid);
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the liar failed: %d",
                  status);
    close(liar->sock);
}

void dlx_test_liar_check_names(pid_t pid)
{
    char name[32];
    (void)snprintf(name, sizeof name, "pid %d", pid);
    ck_assert_msg(strstr(dlx_errmsg(), name) != NULL, "\"%s\" lacks \"%s\"", dlx_errmsg(), name);
}

uint64_t dlx_test_liar_random(void)
{
    static uint64_t seed = 88172645463325252U;
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

void dlx_test_liar_rest(int tell)
{
    dlx_test_liar_say(tell);
    for (;;)
        pause();
}

/* From several processes, in large pieces: there is always something to read. */
void dlx_test_liar_storm(int bell, int tell)
{
    static const char bytes[32768];
    for (int i = 0; i < 3; i++) {
        pid_t parent = getpid();
        if (dlx_test_fork() == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            while (getppid() == parent)
                (void)!send(bell, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
            _exit(0);
        }
    }
    dlx_test_liar_rest(tell);
}

bool dlx_test_ends_in_time(uint64_t start, int64_t timeout_ns)
{
    return dlx__now_ns() - start < (uint64_t)(timeout_ns + PATIENCE);
}
