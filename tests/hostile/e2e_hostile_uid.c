/* SPDX-License-Identifier: Apache-2.0 */

/*
 * No process writes what is not its own: regions of a real publisher and a real subscriber,
 * attacked with the descriptors that they were sent and by way of their processes, from a process
 * of the same user and from one of another. And no process gets rights by a connection that another
 * one made. Sealed memory: what POSIX shared memory promises less is in docs/SHM.md.
 */

#include "common/memory.h"
#include "tests/harness/fds.h"
#include "tests/harness/fork.h"
#include "tests/harness/stream.h"
#include "tests/harness/user.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define BODY(name) DLX__WIRE__PACKET__BODY_##name
#define NOBODY     65534

/* The result of an attack: 0, or the line of what was possible and should not be. In children,
 * where ck_assert is of no use. */
#define refused(x)                                                                                 \
    do {                                                                                           \
        if (x)                                                                                     \
            return __LINE__;                                                                       \
    } while (0)

/* Run it in a process of that user; what it did is its exit status, in 8 bits, and a line. */
static void attack_as(uid_t uid, int (*attack)(void *userdata), void *userdata)
{
    int line = 0, status, result[2];
    ck_assert_int_eq(pipe(result), 0);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        if (uid != geteuid() && (setgid(uid) < 0 || setuid(uid) < 0))
            line = -1;
        else
            line = attack(userdata);
        _exit(write(result[1], &line, sizeof line) == sizeof line ? 0 : 1);
    }
    close(result[1]);
    ck_assert_int_eq(read(result[0], &line, sizeof line), sizeof line);
    close(result[0]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(line == 0, "line %d was possible as uid %d", line, (int)uid);
    ck_assert_int_eq(status, 0);
}

/* A publisher's and a subscriber's memory, as it is when messages flow: all is announced and
 * sealed. */
struct scene {
    int control[2]; /* of the publisher, and of the subscriber */
    struct dlx_test_publisher publisher;
    struct dlx_test_subscription subscription;
    /* what a liar would have kept: read-write of the writers, read-only of the readers; by size */
    struct region {
        const char *name;
        int fd;
        uint64_t size;
        bool is_filled; /* with 'a', by us; else the daemon writes it */
    } regions[6];
    int n;
};

static void keep(struct scene *x, const char *name, int fd, uint64_t size, bool is_filled)
{
    x->regions[x->n++] = (struct region){name, fd, size, is_filled};
}

static int populate(int fd, uint64_t size)
{
    void *map;
    ck_assert_int_eq(dlx__region_populate(dlx_test_memory, dlx_test_fds_dup(fd), size, &map), 0);
    memset(map, 'a', size);
    dlx__region_unmap(map, size);
    return fd;
}

static struct scene make_scene(void)
{
    enum { ARENA_SIZE = 4 * DLX_PAGE };
    struct scene x = {.n = 0};
    Dlx__Wire__PublisherNew new = dlx_test_publisher_request("test/a");
    Dlx__Wire__LinkReady link_ready = DLX__WIRE__LINK_READY__INIT;
    for (int i = 0; i < 2; i++)
        x.control[i] = dlx_test_hello(&dlx_test_stream_daemon, 4);
    const Dlx__Wire__PublisherNewReply *made =
        dlx_test_call_for(x.control[0], BODY(PUBLISHER_NEW), &new, BODY(PUBLISHER_NEW_REPLY))
            ->publisher_new_reply;
    x.publisher = (struct dlx_test_publisher){.id = made->publisher, .control = x.control[0]};
    uint64_t size = made->control_size;
    keep(&x, "membership page, reader", dlx_test_take_fd(1), made->membership_size, false);
    x.publisher.link_sock = dlx_test_take_fd(2);
    keep(&x, "control block, writer", populate(dlx_test_take_fd(0), size), size, true);
    dlx_test_publisher_ready(&x.publisher);
    uint32_t arena = dlx_test_arena_new(&x.publisher, ARENA_SIZE);
    keep(&x, "arena, writer", populate(dlx_test_take_fd(0), ARENA_SIZE), ARENA_SIZE, true);
    dlx_test_arena_ready(&x.publisher, arena);

    dlx_test_subscribe(&x.subscription, x.control[1], "test/a", false);
    const Dlx__Wire__LinkOffer *offer =
        dlx_test_expect(x.subscription.fd, BODY(LINK_OFFER))->link_offer;
    uint64_t link_size = offer->page_size;
    link_ready.link = offer->link;
    keep(&x, "link page, writer", populate(dlx_test_take_fd(0), link_size), link_size, true);
    dlx_test_ack(&x.subscription);
    dlx_test_send(x.subscription.fd, BODY(LINK_READY), &link_ready, 0);
    (void)dlx_test_expect(x.subscription.fd, BODY(LINK_OPEN));
    keep(&x, "control block, reader", dlx_test_take_fd(0), size, true);
    dlx_test_ack(&x.subscription);
    (void)dlx_test_expect(x.subscription.fd, BODY(ARENA_ADDED));
    keep(&x, "arena, reader", dlx_test_take_fd(0), ARENA_SIZE, true);
    dlx_test_recv_done();
    return x;
}

static void end_scene(struct scene *x)
{
    for (int i = 0; i < x->n; i++)
        close(x->regions[i].fd);
    dlx_test_subscription_deinit(&x->subscription);
    close(x->publisher.link_sock);
    close(x->control[0]);
    close(x->control[1]);
}

/* Faults of this memory that the attacker would fill himself. */
static int try_userfaultfd(void *map, uint64_t size)
{
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api = {.api = UFFD_API};
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api) < 0)
        return 0; /* not allowed at all */
    struct uffdio_register reg = {.range = {(uintptr_t)map, size},
                                  .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(fd, UFFDIO_REGISTER, &reg) == 0) {
        static uint8_t page[DLX_PAGE];
        struct uffdio_copy copy = {.dst = (uintptr_t)map, .src = (uintptr_t)page, .len = DLX_PAGE};
        refused(ioctl(fd, UFFDIO_COPY, &copy) == 0);
    }
    close(fd);
    return 0;
}

static int write_by_proc_mem(void *map)
{
    int fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        refused(pwrite(fd, "x", 1, (off_t)(uintptr_t)map) > 0);
        close(fd);
    }
    char x[] = "x";
    struct iovec from = {x, 1}, to = {map, 1};
    refused(process_vm_writev(getpid(), &from, 1, &to, 1, 0) > 0);
    return 0;
}

static int attack_fd(int fd, uint64_t size)
{
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    refused(map != MAP_FAILED);
    refused(pwrite(fd, "x", 1, 0) > 0);
    refused(ftruncate(fd, 0) == 0);
    refused(ftruncate(fd, (off_t)size * 2) == 0);
    refused(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, DLX_PAGE) == 0);
    refused(fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 0, DLX_PAGE) == 0);
    refused(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, DLX_PAGE) == 0);
    refused(fallocate(fd, 0, (off_t)size, DLX_PAGE) == 0);
    refused(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
    map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return 0;
    refused(mprotect(map, size, PROT_READ | PROT_WRITE) == 0);
    refused(madvise(map, size, MADV_REMOVE) == 0);
    int line = write_by_proc_mem(map);
    if (line == 0)
        line = try_userfaultfd(map, size);
    munmap(map, size);
    return line;
}

static int attack_region(void *userdata)
{
    const struct region *region = userdata;
    char path[64];
    int line = attack_fd(region->fd, region->size);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", region->fd);
    static const int modes[] = {O_RDWR, O_RDONLY, O_WRONLY, O_RDWR | O_TRUNC};
    for (size_t i = 0; line == 0 && i < DLX_ARRAY_SIZE(modes); i++) {
        int again = open(path, modes[i] | O_CLOEXEC);
        if (again < 0)
            continue;
        line = attack_fd(again, region->size);
        close(again);
    }
    refused(truncate(path, 0) == 0);
    if (geteuid() != 0)
        refused(fchmod(region->fd, 0666) == 0 || fchown(region->fd, geteuid(), (gid_t)-1) == 0);
    return line;
}

/* The region is as it was: nothing of it has gone, and reading it does not fault. */
static void check_region(const struct region *region)
{
    struct stat st;
    const uint8_t *map = mmap(NULL, region->size, PROT_READ, MAP_SHARED, region->fd, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    ck_assert_int_eq(fstat(region->fd, &st), 0);
    ck_assert_uint_eq((uint64_t)st.st_size, region->size);
    ck_assert_uint_ge((uint64_t)st.st_blocks * 512, region->size);
    for (uint64_t i = 0; region->is_filled && i < region->size; i++)
        ck_assert_msg(map[i] == 'a', "%s: byte %lu", region->name, (unsigned long)i);
    munmap((void *)(uintptr_t)map, region->size);
}

LOOP_TEST(kept_descriptors_of_regions_write_nothing, 0, 2)
{
    if (_i == 1 && !dlx_test_user_may())
        return;
    struct scene x = make_scene();
    ck_assert_int_eq(x.n, 6);
    for (int i = 0; i < x.n; i++) {
        attack_as(_i == 1 ? NOBODY : geteuid(), attack_region, &x.regions[i]);
        check_region(&x.regions[i]);
    }
    end_scene(&x);
}

static int open_of(pid_t pid, const char *what, int flags)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, what);
    return open(path, flags | O_CLOEXEC);
}

/* By way of the daemon's process, or a client's. */
static int attack_process(void *userdata)
{
    pid_t pid = *(const pid_t *)userdata;
    char byte = 0, path[32];
    struct iovec local = {&byte, 1}, remote = {(void *)(uintptr_t)&attack_process, 1};
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    refused(open_of(pid, "mem", O_RDWR) >= 0);
    refused(open_of(pid, "mem", O_RDONLY) >= 0);
    refused(open_of(pid, "maps", O_RDONLY) >= 0);
    refused(open_of(pid, "fd", O_RDONLY | O_DIRECTORY) >= 0);
    refused(process_vm_readv(pid, &local, 1, &remote, 1, 0) > 0);
    refused(process_vm_writev(pid, &local, 1, &remote, 1, 0) > 0);
    refused(ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0);
    refused(kill(pid, 0) == 0);
    for (int fd = 0; fd < 64; fd++) {
        (void)snprintf(path, sizeof path, "fd/%d", fd);
        refused(open_of(pid, path, O_RDWR) >= 0);
        refused(pidfd >= 0 && syscall(SYS_pidfd_getfd, pidfd, fd, 0) >= 0);
    }
    return 0;
}

TEST(another_user_gets_nothing_out_of_the_processes)
{
    if (!dlx_test_user_may())
        return;
    struct scene x = make_scene();
    pid_t pids[] = {dlx_test_stream_daemon.pid, getpid()};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(pids); i++)
        attack_as(NOBODY, attack_process, &pids[i]);
    end_scene(&x);
}

static bool answers(int fd)
{
    Dlx__Wire__DaemonInfo info = DLX__WIRE__DAEMON_INFO__INIT;
    return dlx_test_call(fd, BODY(DAEMON_INFO), &info)->body_case == BODY(DAEMON_INFO_REPLY);
}

/* The rights of a connection are those of the process that made it, when it made it; and they end
 * with that process, not with the socket, which another one may have got. */
TEST(a_passed_connection_ends_with_who_made_it)
{
    int pair[2], go[2], connection;
    struct dlx_packet packet;
    uint8_t byte = 0;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    ck_assert_int_eq(pipe(go), 0);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        connection = dlx_test_hello(&dlx_test_stream_daemon, 1);
        if (dlx__packet_send(pair[1], &byte, 1, &connection, 1) == 0)
            (void)!read(go[0], &byte, 1);
        _exit(0);
    }
    dlx_test_wait_readable(pair[0]);
    ck_assert_int_eq(dlx__packet_recv_fds(pair[0], &packet), 0);
    ck_assert_uint_eq(packet.n_fds, 1);
    connection = packet.fds[0];
    ck_assert(answers(connection)); /* as the one that made it */
    ck_assert_int_eq(write(go[1], "", 1), 1);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    dlx_test_wait_readable(connection);
    ck_assert_int_eq(recv(connection, &byte, 1, 0), 0); /* we live, and have it still */
    for (int i = 0; i < 2; i++) {
        close(pair[i]);
        close(go[i]);
    }
    close(connection);
}

struct guess {
    int fd;
    uint64_t publisher, subscription, client;
};

/* The client keeps the rights of the user that it was when it connected; but not those of another
 * user's objects. */
static int use_after_setuid(void *userdata)
{
    struct guess *guess = userdata;
    Dlx__Wire__PublisherClose close_it = DLX__WIRE__PUBLISHER_CLOSE__INIT;
    Dlx__Wire__SubscriptionClose leave = DLX__WIRE__SUBSCRIPTION_CLOSE__INIT;
    Dlx__Wire__ArenaNew arena = DLX__WIRE__ARENA_NEW__INIT;
    arena.arena_size = DLX_PAGE;
    const struct {
        Dlx__Wire__Packet__BodyCase body;
        void *message;
    } requests[] = {{BODY(PUBLISHER_CLOSE), &close_it},
                    {BODY(ARENA_NEW), &arena},
                    {BODY(SUBSCRIPTION_CLOSE), &leave}};
    for (int64_t near = -2; near <= 2; near++) {
        close_it.publisher = arena.publisher = guess->publisher + (uint64_t)near;
        leave.subscription = guess->subscription + (uint64_t)near;
        for (size_t i = 0; i < DLX_ARRAY_SIZE(requests); i++)
            refused(dlx_test_call(guess->fd, requests[i].body, requests[i].message)->body_case !=
                    BODY(ERROR));
    }
    /* A new connection is one of the user that it is now. */
    struct dlx_client *c = NULL;
    struct dlx_connect_args args = {.size = sizeof args, .socket = dlx_test_stream_daemon.path};
    refused(geteuid() != 0 && dlx_connect(&args, &c) != DLX_E_ACCESS);
    return 0;
}

LOOP_TEST(guessed_handles_are_of_no_use_before_and_after_setuid, 0, 2)
{
    if (_i == 1 && !dlx_test_user_may())
        return;
    struct scene x = make_scene();
    struct guess guess = {.fd = dlx_test_hello(&dlx_test_stream_daemon, 4),
                          .publisher = x.publisher.id,
                          .subscription = x.subscription.id};
    attack_as(_i == 1 ? NOBODY : geteuid(), use_after_setuid, &guess);
    ck_assert(answers(x.control[0]));
    ck_assert(answers(x.control[1]));
    uint32_t arena = dlx_test_arena(&x.publisher, DLX_PAGE); /* it is there still */
    ck_assert_uint_ge(arena, 1);
    close(guess.fd);
    end_scene(&x);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_stream_case("hostile_uid"));
}
