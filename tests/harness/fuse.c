/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/fuse.h"
#include "common/packet.h"
#include "tests/harness/daemon.h"
#include "tests/harness/fork.h"
#include <linux/fuse.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>

#define THE_FILE 2 /* its node */

static void reply(int dev, uint64_t unique, int error, const void *body, size_t size)
{
    uint8_t out[sizeof(struct fuse_out_header) + 256];
    const struct fuse_out_header header = {
        .len = (uint32_t)(sizeof header + size), .error = -error, .unique = unique};
    memcpy(out, &header, sizeof header);
    if (size > 0)
        memcpy(out + sizeof header, body, size);
    (void)!write(dev, out, header.len);
}

static struct fuse_attr attr_of(uint64_t node)
{
    bool file = node == THE_FILE;
    return (struct fuse_attr){.ino = node,
                              .size = file ? DLX_TEST_FUSE_SIZE : 0,
                              .mode = file ? S_IFREG | 0600 : S_IFDIR | 0700,
                              .nlink = 1,
                              .uid = geteuid(),
                              .gid = getegid(),
                              .blksize = 4096};
}

static void answer(int dev, const struct fuse_in_header *in)
{
    /* The kernel caches nothing: it asks for the size each time. */
    const struct fuse_init_out init = {
        .major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION, .max_write = 4096};
    const struct fuse_entry_out entry = {.nodeid = THE_FILE, .attr = attr_of(THE_FILE)};
    const struct fuse_attr_out attr = {.attr = attr_of(in->nodeid)};
    const struct fuse_open_out opened = {.fh = 1};
    switch (in->opcode) {
    case FUSE_INIT:
        reply(dev, in->unique, 0, &init, sizeof init);
        break;
    case FUSE_LOOKUP:
        reply(dev, in->unique, 0, &entry, sizeof entry);
        break;
    case FUSE_GETATTR:
        reply(dev, in->unique, 0, &attr, sizeof attr);
        break;
    case FUSE_OPEN:
        reply(dev, in->unique, 0, &opened, sizeof opened);
        break;
    case FUSE_FLUSH:
    case FUSE_RELEASE:
        reply(dev, in->unique, 0, NULL, 0);
        break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        break;
    default:
        reply(dev, in->unique, ENOSYS, NULL, 0);
        break;
    }
}

static void count(struct dlx_test_fuse_asked *asked, uint32_t opcode)
{
    switch (opcode) {
    case FUSE_FLUSH:
        atomic_fetch_add(&asked->flush, 1);
        break;
    case FUSE_OPEN:
        atomic_fetch_add(&asked->open, 1);
        break;
    case FUSE_GETATTR:
        atomic_fetch_add(&asked->getattr, 1);
        break;
    case FUSE_READ:
        atomic_fetch_add(&asked->read, 1);
        break;
    case FUSE_RELEASE:
        atomic_fetch_add(&asked->release, 1);
        break;
    default:
        break;
    }
}

/* Until the process that it serves has gone. */
static void serve(int dev, int watch, struct dlx_test_fuse_asked *asked)
{
    static union {
        struct fuse_in_header header;
        char bytes[65536];
    } in;
    struct pollfd p[] = {{.fd = watch, .events = POLLIN}, {.fd = dev, .events = POLLIN}};
    while (poll(p, 2, -1) > 0 && !p[0].revents) {
        if (read(dev, &in, sizeof in) < (ssize_t)sizeof in.header)
            continue;
        if (atomic_load(&asked->mute))
            count(asked, in.header.opcode);
        else
            answer(dev, &in.header);
    }
}

/* Only this process and its children see the mount, which ends with them. */
static int mount_it(const char *dir)
{
    char options[128];
    int dev = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (dev < 0)
        return -1;
    (void)snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%u,group_id=%u", dev,
                   (unsigned)geteuid(), (unsigned)getegid());
    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("dlx-test", dir, "fuse", MS_NOSUID | MS_NODEV, options) < 0)
        return -1;
    return dev;
}

/* Hands the file over, and tells that this process has it no more. */
static void open_it(const char *dir, int sock)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/file", dir);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || dlx__packet_send(sock, "f", 1, &fd, 1) < 0)
        _exit(1);
    close(fd);
    _exit(dlx__packet_send(sock, "c", 1, NULL, 0) < 0);
}

static void run_server(int sock, int watch, struct dlx_test_fuse_asked *asked)
{
    const char *dir = getenv("TMPDIR");
    dir = dir ? dir : "/tmp";
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    int dev = mount_it(dir);
    if (dev < 0) {
        char why[128];
        int n = snprintf(why, sizeof why, "e%s", strerror(errno));
        (void)dlx__packet_send(sock, why, (size_t)n, NULL, 0);
        _exit(1);
    }
    pid_t pid = fork();
    if (pid < 0)
        _exit(1);
    if (pid == 0) {
        close(dev);
        open_it(dir, sock);
    }
    close(sock);
    serve(dev, watch, asked);
    _exit(0);
}

static void receive(int sock, struct dlx_packet *packet)
{
    dlx_test_wait_readable(sock);
    ck_assert_int_eq(dlx__packet_recv_fds(sock, packet), 0);
}

bool dlx_test_fuse_start(struct dlx_test_fuse *fuse)
{
    static struct dlx_packet packet;
    int pair[2], watch[2];
    *fuse = (struct dlx_test_fuse){.fd = -1};
    fuse->asked =
        mmap(NULL, sizeof *fuse->asked, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(fuse->asked, MAP_FAILED);
    /* Before the file: a test that fails closes this first, by which its end does not wait for the
     * file. */
    ck_assert_int_eq(pipe2(watch, O_CLOEXEC), 0);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    fuse->server = dlx_test_fork();
    ck_assert_int_ge(fuse->server, 0);
    if (fuse->server == 0) {
        close(watch[1]);
        close(pair[0]);
        run_server(pair[1], watch[0], fuse->asked);
    }
    close(watch[0]);
    close(pair[1]);
    fuse->watch = watch[1];
    receive(pair[0], &packet);
    if (packet.data[0] == 'f') {
        fuse->fd = dlx__packet_steal_fd(&packet, 0);
        receive(pair[0], &packet);
    } else {
        printf("SKIP: no FUSE file system can be mounted here (%.*s)\n", (int)packet.size - 1,
               (const char *)packet.data + 1);
    }
    close(pair[0]);
    if (fuse->fd < 0)
        dlx_test_fuse_end(fuse);
    return fuse->fd >= 0;
}

void dlx_test_fuse_mute(struct dlx_test_fuse *fuse)
{
    atomic_store(&fuse->asked->mute, 1);
}

void dlx_test_fuse_wait(const atomic_int *asked)
{
    for (uint64_t end = dlx__now_ns() + (uint64_t)PATIENCE; atomic_load(asked) == 0;) {
        ck_assert_msg(dlx__now_ns() < end, "the file system was not asked");
        (void)poll(NULL, 0, 1);
    }
}

void dlx_test_fuse_end(struct dlx_test_fuse *fuse)
{
    close(fuse->watch);
    dlx_test_fork_kill(fuse->server);
    dlx__close(fuse->fd);
    munmap(fuse->asked, sizeof *fuse->asked);
}
