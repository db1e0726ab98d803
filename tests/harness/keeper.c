/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/keeper.h"
#include "tests/harness/daemon.h"
#include "tests/harness/fds.h"
#include "tests/harness/fork.h"
#include "tests/harness/patience.h"
#include <dirent.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/un.h>

#define CHUNK_SIZE UINT64_C(4096)

/* ---- descriptions ---------------------------------------------------------------------------- */

void dlx_test_keeper_handle(struct dlx_gpu_handle *ret, uint64_t id, uint32_t n_chunks)
{
    int fd = memfd_create("dlx-test-gpu", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    *ret = (struct dlx_gpu_handle){0};
    ck_assert_int_eq(dlx__gpu_handle_reserve(ret, n_chunks), 0);
    ret->kind = DLX_GPU_CUDA_VMM;
    ret->id = id;
    ret->size = CHUNK_SIZE * n_chunks;
    ret->n_received = n_chunks;
    for (uint32_t i = 0; i < n_chunks; i++) {
        ret->chunks[i].size = CHUNK_SIZE;
        ret->chunks[i].fd = i == 0 ? fd : dlx_test_fds_dup(fd);
    }
}

static ino_t inode(int fd)
{
    struct stat st;
    ck_assert_int_eq(fstat(fd, &st), 0);
    return st.st_ino;
}

bool dlx_test_keeper_same(const struct dlx_gpu_handle *a, const struct dlx_gpu_handle *b)
{
    if (a->id != b->id || a->size != b->size || a->n_chunks != b->n_chunks || a->kind != b->kind)
        return false;
    for (uint32_t i = 0; i < a->n_chunks; i++)
        if (inode(a->chunks[i].fd) != inode(b->chunks[i].fd))
            return false;
    return true;
}

/* ---- the process ----------------------------------------------------------------------------- */

/* As in its unit: what a user may have in flight, for one, does not bound root. */
static void drop_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};
    ck_assert_int_eq(syscall(SYS_capset, &header, none), 0);
}

void dlx_test_keeper_start(struct dlx_test_keeper *keeper, const struct dlxk_options *options)
{
    int n = snprintf(keeper->path, sizeof keeper->path, "%s/dlx-test-%d" DLX_KEEPER_SUFFIX,
                     getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (int)getpid());
    ck_assert_int_lt(n, (int)sizeof keeper->path);
    (void)unlink(keeper->path);
    int listener = dlx_test_listen(keeper->path, SOCK_SEQPACKET | SOCK_NONBLOCK);
    keeper->daemon = -1;
    keeper->serial = 0;
    keeper->n_kept = 0;
    dlx_test_keeper_connect(keeper); /* before its grace begins */
    keeper->pid = dlx_test_fork();
    ck_assert_int_ge(keeper->pid, 0);
    if (keeper->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        drop_capabilities();
        close(keeper->daemon);
        _exit(dlxk_run(listener, options) < 0);
    }
    close(listener);
}

void dlx_test_keeper_connect(struct dlx_test_keeper *keeper)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, keeper->path, strlen(keeper->path) + 1);
    int former = keeper->daemon;
    keeper->daemon = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(keeper->daemon, 0);
    ck_assert_int_eq(connect(keeper->daemon, (const struct sockaddr *)&address, sizeof address), 0);
    dlx__close(former);
}

int dlx_test_keeper_wait(struct dlx_test_keeper *keeper)
{
    int status = 0;
    ck_assert_int_eq(waitpid(keeper->pid, &status, 0), keeper->pid);
    keeper->daemon = dlx__close(keeper->daemon);
    keeper->pid = 0;
    (void)unlink(keeper->path);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void dlx_test_keeper_kill(struct dlx_test_keeper *keeper)
{
    if (keeper->pid <= 0)
        return;
    ck_assert_int_eq(kill(keeper->pid, SIGKILL), 0);
    (void)dlx_test_keeper_wait(keeper);
}

struct dlx_test_keeper_process dlx_test_keeper_process(void)
{
    const struct dlx_test_child child = dlx_test_fork_child();
    struct dlx_test_keeper_process process = {.pid = child.pid};
    if (child.pid == 0) { /* without the daemon's connection, whose end the keeper is to see */
        unsigned ready = (unsigned)child.ready[1];
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)syscall(SYS_close_range, 3U, ready - 1, 0U);
        (void)syscall(SYS_close_range, ready + 1, ~0U, 0U);
        dlx_test_fork_ready(&child);
    }
    (void)dlx_test_fork_wait_ready(&child);
    process.fd = (int)syscall(SYS_pidfd_open, process.pid, 0U);
    ck_assert_int_ge(process.fd, 0);
    return process;
}

void dlx_test_keeper_process_end(struct dlx_test_keeper_process *process)
{
    dlx_test_fork_kill(process->pid);
    process->fd = dlx__close(process->fd);
}

/* ---- what is said ---------------------------------------------------------------------------- */

void dlx_test_keeper_send(const struct dlx_test_keeper *keeper,
                          const struct dlx_keeper_packet *packet, int fd)
{
    struct pollfd room = {.fd = keeper->daemon, .events = POLLOUT};
    int r;
    while ((r = dlx__keeper_send(keeper->daemon, packet, &fd, fd >= 0)) == DLX_E_FULL)
        ck_assert_int_eq(poll(&room, 1, PATIENCE_MS), 1);
    ck_assert_msg(r == 0, "%s", dlx__error_message());
}

static void keeper_receive(struct dlx_test_keeper *keeper, struct dlx_packet *packet,
                           struct dlx_keeper_packet *ret)
{
    dlx_test_wait_readable(keeper->daemon);
    ck_assert_msg(dlx__packet_recv_fds(keeper->daemon, packet) == 0, "%s", dlx__error_message());
    ck_assert_msg(dlx__keeper_decode(packet, ret) == 0, "%s", dlx__error_message());
    if (ret->kind != DLX_KEEPER_KEPT)
        return;
    keeper->kept = *ret;
    keeper->n_kept++;
}

int dlx_test_keeper_answer(struct dlx_test_keeper *keeper, uint32_t serial,
                           struct dlx_gpu_handle *ret)
{
    static struct dlx_packet packet;
    struct dlx_keeper_packet answer;
    dlx__gpu_handle_deinit(ret);
    do
        keeper_receive(keeper, &packet, &answer);
    while (answer.kind == DLX_KEEPER_KEPT);
    ck_assert_uint_eq(answer.serial, serial);
    keeper->number = answer.number;
    *keeper->text = '\0';
    if (answer.kind == DLX_KEEPER_REFUSAL) {
        (void)snprintf(keeper->text, sizeof keeper->text, "%.*s", (int)answer.body_size,
                       (const char *)answer.body);
        return answer.code;
    }
    ck_assert_int_eq(answer.kind, DLX_KEEPER_MEMORY);
    ck_assert_msg(
        dlx__gpu_handle_decode(ret, answer.body, answer.body_size, packet.fds, packet.n_fds) == 0,
        "%s", dlx__error_message());
    ck_assert(dlx__gpu_handle_is_complete(ret));
    dlx__packet_deinit(&packet);
    return 0;
}

int dlx_test_keeper_allocate(struct dlx_test_keeper *keeper, uint64_t origin, uint64_t user,
                             uint64_t allocation, uint64_t n_bytes, int pidfd,
                             struct dlx_gpu_handle *ret)
{
    uint8_t device[DLX_KEEPER_DEVICE_SIZE];
    dlx__keeper_put_device(device, &keeper->device);
    const struct dlx_keeper_packet allocate = {.kind = DLX_KEEPER_ALLOCATE,
                                               .serial = ++keeper->serial,
                                               .origin = origin,
                                               .user = user,
                                               .allocation = allocation,
                                               .number = n_bytes,
                                               .body = device,
                                               .body_size = sizeof device};
    dlx_test_keeper_send(keeper, &allocate, pidfd);
    return dlx_test_keeper_answer(keeper, keeper->serial, ret);
}

int dlx_test_keeper_get(struct dlx_test_keeper *keeper, uint64_t origin, uint64_t user,
                        uint64_t allocation, struct dlx_gpu_handle *ret)
{
    const struct dlx_keeper_packet get = {.kind = DLX_KEEPER_GET,
                                          .serial = ++keeper->serial,
                                          .origin = origin,
                                          .user = user,
                                          .allocation = allocation};
    dlx_test_keeper_send(keeper, &get, -1);
    return dlx_test_keeper_answer(keeper, keeper->serial, ret);
}

void dlx_test_keeper_is_kept(struct dlx_test_keeper *keeper, uint64_t origin, uint64_t user,
                             uint64_t n_bytes)
{
    static struct dlx_packet packet;
    struct dlx_keeper_packet kept;
    keeper_receive(keeper, &packet, &kept);
    ck_assert_int_eq(kept.kind, DLX_KEEPER_KEPT);
    ck_assert_uint_eq(kept.origin, origin);
    ck_assert_uint_eq(kept.user, user);
    ck_assert_uint_eq(kept.number, n_bytes);
}

void dlx_test_keeper_free(const struct dlx_test_keeper *keeper, uint64_t origin, uint64_t user,
                          uint64_t allocation)
{
    const struct dlx_keeper_packet gone = {.kind = allocation ? DLX_KEEPER_FREE : DLX_KEEPER_FORGET,
                                           .origin = origin,
                                           .user = user,
                                           .allocation = allocation};
    dlx_test_keeper_send(keeper, &gone, -1);
}

void dlx_test_keeper_claim(const struct dlx_test_keeper *keeper, uint64_t origin, uint64_t user)
{
    uint8_t body[DLX_KEEPER_CLAIM_SIZE];
    const struct dlx_keeper_packet claim = {
        .kind = DLX_KEEPER_CLAIM, .body = body, .body_size = sizeof body};
    const struct dlx_keeper_packet claimed = {.kind = DLX_KEEPER_CLAIMED};
    if (origin != 0) {
        dlx__keeper_put_claim(body, origin, user);
        dlx_test_keeper_send(keeper, &claim, -1);
    }
    dlx_test_keeper_send(keeper, &claimed, -1);
}

/* ---- the keeper of a daemon ------------------------------------------------------------------ */

static bool is_keeper(const char *name, const char *socket)
{
    char path[64], text[512] = "";
    (void)snprintf(path, sizeof path, "/proc/%.20s/cmdline", name);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    /* Under valgrind the program is not the first word. */
    bool is_ours = false;
    size_t last = 0;
    for (size_t i = 0; i < n; i += strlen(text + i) + 1) {
        const char *slash = strrchr(text + i, '/');
        is_ours |= strcmp(slash ? slash + 1 : text + i, "dlpackd-keeper") == 0;
        last = i;
    }
    return is_ours && strcmp(text + last, socket) == 0;
}

pid_t dlx_test_keeper_find(const char *daemon_path)
{
    char socket[300];
    pid_t found = 0;
    (void)snprintf(socket, sizeof socket, "%s" DLX_KEEPER_SUFFIX, daemon_path);
    DIR *dir = opendir("/proc");
    ck_assert_ptr_nonnull(dir);
    for (const struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && is_keeper(entry->d_name, socket))
            found = (pid_t)strtol(entry->d_name, NULL, 10);
    closedir(dir);
    return found;
}

void dlx_test_keeper_wait_gone(const char *daemon_path)
{
    uint64_t deadline = dlx__deadline(PATIENCE);
    pid_t pid;
    while ((pid = dlx_test_keeper_find(daemon_path)) != 0) {
        ck_assert_msg(dlx__now_ns() < deadline, "keeper %d is still there", (int)pid);
        (void)poll(NULL, 0, 1);
    }
}
