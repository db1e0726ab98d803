/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/fds.h"
#include <dirent.h>
#include <sys/un.h>

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

int dlx_test_fds_bind(const char *path, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t size = strlen(path);
    ck_assert_uint_lt(size, sizeof address.sun_path);
    memcpy(address.sun_path, path, size);
    if (*path == '@')
        address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size)),
                     0);
    return fd;
}

int dlx_test_listen(const char *path, int type)
{
    int fd = dlx_test_fds_bind(path, type);
    if (type != SOCK_DGRAM)
        ck_assert_int_eq(listen(fd, 64), 0);
    return fd;
}
