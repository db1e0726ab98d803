/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/seccomp.h"
#include "common/util.h"
#include <sys/prctl.h>
#include <sys/socket.h>
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

bool dlx_test_seccomp_fail(unsigned nr, unsigned error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    return dlx_test_seccomp_install(filter, DLX_ARRAY_SIZE(filter));
}

bool dlx_test_seccomp_no_passrights(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SO_PASSRIGHTS, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    return dlx_test_seccomp_install(filter, DLX_ARRAY_SIZE(filter));
}

void dlx_test_seccomp_on_an_older_kernel(void *userdata)
{
    (void)userdata;
    if (!dlx_test_seccomp_no_passrights())
        (void)!write(STDERR_FILENO, "no seccomp here\n", 16);
}
