/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/fds.h"
#include "tests/harness/patience.h"
#include <dirent.h>
#include <limits.h>
#include <netinet/in.h>
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

int dlx_test_fds_find(const char *text)
{
    char target[PATH_MAX];
    int found = -1;
    DIR *dir = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(dir);
    for (const struct dirent *entry; found < 0 && (entry = readdir(dir));) {
        ssize_t n = readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1);
        target[DLX_MAX(n, 0)] = '\0';
        if (strstr(target, text))
            found = atoi(entry->d_name);
    }
    closedir(dir);
    ck_assert_msg(found >= 0, "no descriptor of %s", text);
    return found;
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

/* A TCP socket that lingers: its peer reads none of what it has sent. */
int dlx_test_fds_slow_to_close(int *ret_other)
{
    static const uint8_t zeros[4096];
    const struct linger linger = {.l_onoff = 1, .l_linger = PATIENCE_S};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, size), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    ck_assert_int_eq(listen(listener, 1), 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, size), 0);
    *ret_other = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(*ret_other, 0);
    dlx__close(listener);
    while (send(fd, zeros, sizeof zeros, MSG_DONTWAIT) >= 0)
        ;
    ck_assert_int_eq(errno, EAGAIN);
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    return fd;
}
