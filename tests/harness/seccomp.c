/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/seccomp.h"
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

bool dlx_test_seccomp_install(struct sock_filter *filter, size_t n)
{
    struct sock_fprog program = {.len = (unsigned short)n, .filter = filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static bool act_on(unsigned nr, unsigned action)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    return dlx_test_seccomp_install(filter, DLX_ARRAY_SIZE(filter));
}

bool dlx_test_seccomp_fail(unsigned nr, unsigned error)
{
    return act_on(nr, SECCOMP_RET_ERRNO | error);
}

bool dlx_test_seccomp_kill(unsigned nr)
{
    return act_on(nr, SECCOMP_RET_KILL_PROCESS);
}

bool dlx_test_seccomp_fail_with(unsigned nr, unsigned arg, unsigned value, unsigned error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)offsetof(struct seccomp_data, args) + 8 * arg),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    return dlx_test_seccomp_install(filter, DLX_ARRAY_SIZE(filter));
}

bool dlx_test_seccomp_no_passrights(void)
{
    return dlx_test_seccomp_fail_with(SYS_setsockopt, 2, SO_PASSRIGHTS, ENOPROTOOPT);
}

void dlx_test_seccomp_on_an_older_kernel(void *userdata)
{
    (void)userdata;
    if (!dlx_test_seccomp_no_passrights())
        (void)!write(STDERR_FILENO, "no seccomp here\n", 16);
}
