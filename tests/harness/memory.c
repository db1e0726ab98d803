/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/memory.h"
#include "common/packet.h"
#include "tests/harness/daemon.h"
#include "tests/harness/fork.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

void dlx_test_memory_fill(int fd, uint64_t size)
{
    static const uint8_t zeros[64 * DLX_PAGE];
    for (uint64_t at = 0, n; at < size; at += n) {
        n = DLX_MIN(size - at, sizeof zeros);
        ck_assert_int_eq(pwrite(fd, zeros, n, (off_t)at), (ssize_t)n);
    }
}

void dlx_test_memory_punch(int fd, uint64_t at, uint64_t size)
{
    const int how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    ck_assert_int_eq(fallocate(fd, how, (off_t)at, (off_t)size), 0);
}

void dlx_test_memory_seal(int fd)
{
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL), 0);
}

/* A page that is never provided; -1, with errno, where that is not allowed. */
static int make_absent_page(void **ret_page)
{
    struct uffdio_api api = {.api = UFFD_API};
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -1;
    void *page = mmap(NULL, DLX_PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = {.range = {.start = (uintptr_t)page, .len = DLX_PAGE},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (page == MAP_FAILED || ioctl(fd, UFFDIO_API, &api) < 0 ||
        ioctl(fd, UFFDIO_REGISTER, &range) < 0)
        return dlx__close(fd);
    *ret_page = page;
    return fd;
}

static void hold_it(int sock, int writer_fd)
{
    void *page = NULL;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    int faults = make_absent_page(&page);
    if (faults < 0) {
        (void)dlx__packet_send(sock, strerror(errno), strlen(strerror(errno)), NULL, 0);
        _exit(1);
    }
    if (dlx__packet_send(sock, "f", 1, &faults, 1) == 0)
        (void)!pwrite(writer_fd, page, 1, 0);
    _exit(1); /* write() did not wait */
}

bool dlx_test_memory_lock(struct dlx_test_lock *lock, int writer_fd)
{
    static struct dlx_packet packet;
    int pair[2];
    *lock = (struct dlx_test_lock){.faults = -1};
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    lock->pid = dlx_test_fork();
    ck_assert_int_ge(lock->pid, 0);
    if (lock->pid == 0)
        hold_it(pair[1], writer_fd);
    close(pair[1]);
    dlx_test_wait_readable(pair[0]);
    ck_assert_int_eq(dlx__packet_recv_fds(pair[0], &packet), 0);
    close(pair[0]);
    lock->faults = dlx__packet_steal_fd(&packet, 0);
    if (lock->faults < 0) {
        printf("SKIP: no userfaultfd here that tells of faults in the kernel (%.*s)\n",
               (int)packet.size, (const char *)packet.data);
        dlx_test_memory_unlock(lock);
        return false;
    }
    dlx_test_wait_readable(lock->faults); /* the child waits there */
    return true;
}

void dlx_test_memory_unlock(struct dlx_test_lock *lock)
{
    dlx_test_fork_kill(lock->pid);
    lock->faults = dlx__close(lock->faults);
}
