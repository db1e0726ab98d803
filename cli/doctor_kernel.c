/* SPDX-License-Identifier: Apache-2.0 */

/* What dlpackd and libdlx need of the kernel. Each feature is tried, since a sandbox may forbid
 * what the kernel has. */

#include "cli/doctor.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

/* What headers of glibc 2.28 lack, which wheels are built with. */
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Each try returns 0, or the errno of what failed. */

static int result_of(long r)
{
    return r < 0 ? errno : 0;
}

static int try_memfd(void)
{
    int fd = memfd_create("dlxctl-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int error = result_of(fd);
    if (error == 0)
        error = result_of(fcntl(fd, F_ADD_SEALS,
                                F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL));
    if (fd >= 0)
        (void)close(fd);
    return error;
}

static int try_noexec_seal(void)
{
    int fd = memfd_create("dlxctl-doctor", MFD_CLOEXEC | MFD_NOEXEC_SEAL);
    int error = result_of(fd);
    if (fd >= 0)
        (void)close(fd);
    return error;
}

static int try_pidfd(void)
{
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    int error = result_of(fd);
    if (fd >= 0)
        (void)close(fd);
    return error;
}

static int try_eventfd(void)
{
    int fd = eventfd(0, EFD_CLOEXEC);
    int error = result_of(fd);
    if (fd >= 0)
        (void)close(fd);
    return error;
}

static int try_peer_pidfd(void)
{
    int pair[2], fd = -1;
    socklen_t size = sizeof fd;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return errno;
    int error = result_of(getsockopt(pair[0], SOL_SOCKET, SO_PEERPIDFD, &fd, &size));
    if (fd >= 0)
        (void)close(fd);
    (void)close(pair[0]);
    (void)close(pair[1]);
    return error;
}

static int try_pass_rights(void)
{
    int no = 0, sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock < 0)
        return errno;
    int error = result_of(setsockopt(sock, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof no));
    (void)close(sock);
    return error;
}

/* A descriptor by a socket, which is how memory gets from process to process. */
static int try_descriptors(void)
{
    int pair[2], error = 0;
    char byte = 0;
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)),
                            .cmsg_level = SOL_SOCKET,
                            .cmsg_type = SCM_RIGHTS}};
    struct iovec part = {&byte, 1};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control.space};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return errno;
    memcpy(CMSG_DATA(&control.header), &pair[0], sizeof(int));
    error = result_of(sendmsg(pair[0], &m, MSG_NOSIGNAL));
    (void)close(pair[0]);
    (void)close(pair[1]);
    return error;
}

static int try_advice(int advice)
{
    const size_t size = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return errno;
    int error = result_of(madvise(page, size, advice));
    (void)munmap(page, size);
    return error;
}

static int try_wipe_on_fork(void)
{
    return try_advice(MADV_WIPEONFORK);
}

static int try_populate(void)
{
    return try_advice(MADV_POPULATE_WRITE);
}

/* The range has no descriptor. */
static int try_close_range(void)
{
    return result_of(syscall(SYS_close_range, 0x7ffffffeL, 0x7fffffffL, 0L));
}

static int try_membarrier(void)
{
    return result_of(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0));
}

#define NO_DAEMON "dlpackd does not start here, and none can be run in this container or sandbox"

static const struct feature {
    const char *check, *name;
    int (*try)(void);
    enum doctor_status status; /* without it; DOCTOR_OK: there is another way, as good or slower */
    struct doctor_advice advice;
} features[] = {
    {"kernel.memfd",
     "sealed memfds",
     try_memfd,
     DOCTOR_PROBLEM,
     {"dlpackd does not start with its usual memory, whose readers cannot write to it",
      "use Linux 5.1 or newer, let the sandbox (seccomp) allow memfd_create, or run `dlpackd "
      "--memory=posix`, which is not sealed"}},
    {"kernel.pidfd",
     "pidfds",
     try_pidfd,
     DOCTOR_PROBLEM,
     {NO_DAEMON ": the deaths of programs are seen by pidfds",
      "use Linux 5.3 or newer, or let the sandbox (seccomp) allow pidfd_open"}},
    {"kernel.descriptors",
     "descriptors by sockets",
     try_descriptors,
     DOCTOR_PROBLEM,
     {"no program here can give memory to another one",
      "with ETOOMANYREFS, raise `ulimit -n`: this user has too many descriptors in flight; else "
      "let the sandbox allow sendmsg with SCM_RIGHTS"}},
    {"kernel.eventfd",
     "eventfds",
     try_eventfd,
     DOCTOR_PROBLEM,
     {"subscriptions and publishers cannot be waited for", "let the sandbox allow eventfd2"}},
    {"kernel.wipe_on_fork",
     "memory that a fork wipes",
     try_wipe_on_fork,
     DOCTOR_PROBLEM,
     {"programs cannot connect (DLX_E_KERNEL)",
      "use Linux 4.14 or newer, or let the sandbox allow madvise"}},
    {"kernel.peer_pidfd",
     "pidfds of peers",
     try_peer_pidfd,
     DOCTOR_WARNING,
     {"a dlpackd in a container serves only programs that its pid namespace contains",
      "run dlpackd outside of containers, or use Linux 6.5 or newer"}},
    {"kernel.pass_rights", "sockets that refuse descriptors", try_pass_rights, DOCTOR_OK, {0}},
    {"kernel.noexec", "memfds that cannot be executed", try_noexec_seal, DOCTOR_OK, {0}},
    {"kernel.close_range", "close_range", try_close_range, DOCTOR_OK, {0}},
    {"kernel.populate", "MADV_POPULATE_WRITE", try_populate, DOCTOR_OK, {0}},
    {"kernel.membarrier", "membarrier", try_membarrier, DOCTOR_OK, {0}},
};

void doctor_kernel(struct doctor *d)
{
    struct utsname name = {0};
    char without[256] = "";
    unsigned n_tried = 0, n_there = 0;
    (void)uname(&name);
    for (size_t i = 0; i < sizeof features / sizeof features[0]; i++) {
        const struct feature *f = &features[i];
        int error = f->try();
        n_tried++;
        n_there += error == 0;
        if (error != 0 && f->status == DOCTOR_OK)
            (void)snprintf(without + strlen(without), sizeof without - strlen(without), "%s%s",
                           *without ? ", " : "", f->name);
        else if (error != 0)
            doctor_found(d, f->check, f->status, f->advice, "no %s: %s", f->name, strerror(error));
    }
    doctor_ok(d, "kernel.release", "%s %s: %u of %u features that dlpackd uses%s%s%s", name.sysname,
              name.release, n_there, n_tried, *without ? " (it does without " : "", without,
              *without ? ")" : "");
}
