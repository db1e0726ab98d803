/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/fds.h"
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>

size_t dlx_test_fds_count(void)
{
    size_t n = 0;
    DIR *dir = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n - 3; /* without ".", ".." and the folder itself */
}

int dlx_test_fds_dup(int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    ck_assert_int_ge(copy, 0);
    return copy;
}

void dlx_test_fds_pair(int ret[2])
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ret), 0);
}
