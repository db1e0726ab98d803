/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/keeper.h"
#include "tests/harness/daemon.h"
#include "tests/harness/fds.h"
#include "tests/harness/fork.h"
#include <dirent.h>
#include <sys/prctl.h>
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

/* ---- a holder -------------------------------------------------------------------------------- */

/* 0, or DLX_E_DISCONNECTED. */
static int receive(int sock, struct dlx_packet *packet, struct dlx_keeper_packet *ret)
{
    dlx_test_wait_readable(sock);
    int r = dlx__packet_recv_fds(sock, packet);
    if (r == DLX_E_DISCONNECTED)
        return r;
    ck_assert_msg(r == 0, "%s", dlx__error_message());
    ck_assert_msg(dlx__keeper_decode(packet, ret) == 0, "%s", dlx__error_message());
    return 0;
}

static int keep_words(const struct dlx_keeper_packet *packet, char ret_text[DLX_ERROR_TEXT_SIZE])
{
    (void)snprintf(ret_text, DLX_ERROR_TEXT_SIZE, "%.*s", (int)packet->body_size,
                   (const char *)packet->body);
    return packet->code;
}

int dlx_test_keeper_answer(int sock, enum dlx_keeper_kind kind, uint32_t serial,
                           char ret_text[DLX_ERROR_TEXT_SIZE])
{
    static struct dlx_packet packet;
    struct dlx_keeper_packet answer;
    int r = receive(sock, &packet, &answer);
    if (r < 0)
        return r;
    ck_assert_int_eq(answer.kind, kind);
    ck_assert_uint_eq(answer.serial, serial);
    return keep_words(&answer, ret_text);
}

static void send_all(int sock, const struct dlx_keeper_packet *packet, const int *fds, size_t n_fds)
{
    struct pollfd room = {.fd = sock, .events = POLLOUT};
    int r;
    while ((r = dlx__keeper_send(sock, packet, fds, n_fds)) == DLX_E_FULL)
        ck_assert_int_eq(poll(&room, 1, PATIENCE_MS), 1);
    ck_assert_msg(r == 0, "%s", dlx__error_message());
}

int dlx_test_keeper_put(int sock, uint32_t serial, const struct dlx_gpu_handle *handle,
                        char ret_text[DLX_ERROR_TEXT_SIZE])
{
    static uint8_t data[DLX_GPU_BYTES_MAX];
    int fds[DLX_PACKET_FDS_MAX];
    size_t n_fds;
    for (uint32_t first = 0; first < handle->n_chunks; first += (uint32_t)n_fds) {
        size_t size = dlx__gpu_handle_encode(handle, first, data, fds, &n_fds);
        const struct dlx_keeper_packet put = {
            .kind = DLX_KEEPER_PUT, .serial = serial, .body = data, .body_size = size};
        send_all(sock, &put, fds, n_fds);
    }
    return dlx_test_keeper_answer(sock, DLX_KEEPER_ANSWER, serial, ret_text);
}

void dlx_test_keeper_drop(int sock, uint64_t id)
{
    const struct dlx_keeper_packet drop = {.kind = DLX_KEEPER_DROP, .allocation = id};
    send_all(sock, &drop, NULL, 0);
}

int dlx_test_keeper_reply_socket(int *ret_theirs)
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    ck_assert_int_eq(shutdown(pair[1], SHUT_RD), 0);
    *ret_theirs = pair[1];
    return pair[0];
}

int dlx_test_keeper_receive(int sock, struct dlx_gpu_handle *ret,
                            char ret_text[DLX_ERROR_TEXT_SIZE])
{
    return dlx_test_keeper_receive_slowly(sock, 0, ret, ret_text);
}

int dlx_test_keeper_receive_slowly(int sock, int pause_ms, struct dlx_gpu_handle *ret,
                                   char ret_text[DLX_ERROR_TEXT_SIZE])
{
    static struct dlx_packet packet;
    struct dlx_keeper_packet part;
    int r;
    dlx__gpu_handle_deinit(ret);
    *ret_text = '\0';
    while ((void)poll(NULL, 0, pause_ms), (r = receive(sock, &packet, &part)) == 0) {
        if (part.kind == DLX_KEEPER_ANSWER) {
            r = keep_words(&part, ret_text);
            dlx__packet_deinit(&packet);
            break;
        }
        ck_assert_int_eq(part.kind, DLX_KEEPER_PART);
        ck_assert_uint_le(packet.n_fds, DLXK_AHEAD);
        ck_assert_msg(
            dlx__gpu_handle_decode(ret, part.body, part.body_size, packet.fds, packet.n_fds) == 0,
            "%s", dlx__error_message());
        dlx__packet_deinit(&packet);
    }
    if (r == DLX_E_DISCONNECTED && dlx__gpu_handle_is_complete(ret))
        return 0;
    dlx__gpu_handle_deinit(ret);
    return r;
}

/* ---- a router -------------------------------------------------------------------------------- */

void dlx_test_keeper_start(struct dlx_test_keeper *keeper,
                           const struct dlxk_router_options *options)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int n = snprintf(keeper->path, sizeof keeper->path, "%s/dlx-test-%d" DLX_KEEPER_SUFFIX,
                     getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (int)getpid());
    ck_assert_int_lt(n, (int)sizeof keeper->path);
    memcpy(address.sun_path, keeper->path, (size_t)n + 1);
    (void)unlink(keeper->path);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_ge(listener, 0);
    ck_assert_int_eq(bind(listener, (const struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(listener, 16), 0);
    keeper->daemon = -1;
    keeper->serial = 0;
    keeper->pid = dlx_test_fork();
    ck_assert_int_ge(keeper->pid, 0);
    if (keeper->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(dlxk_router_run(listener, options) < 0);
    }
    close(listener);
    dlx_test_keeper_connect(keeper);
}

void dlx_test_keeper_connect(struct dlx_test_keeper *keeper)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, keeper->path, strlen(keeper->path) + 1);
    keeper->daemon = dlx__close(keeper->daemon);
    keeper->daemon = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(keeper->daemon, 0);
    ck_assert_int_eq(connect(keeper->daemon, (const struct sockaddr *)&address, sizeof address), 0);
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

int dlx_test_keeper_own(struct dlx_test_keeper *keeper, uint64_t origin, uint64_t user,
                        int *ret_owner, char ret_text[DLX_ERROR_TEXT_SIZE])
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    const struct dlx_keeper_packet own = {.kind = DLX_KEEPER_OWN,
                                          .serial = ++keeper->serial,
                                          .origin = origin,
                                          .uid = (uint32_t)user,
                                          .socket = (uint32_t)(user >> 32)};
    send_all(keeper->daemon, &own, &pair[1], 1);
    close(pair[1]);
    int r = dlx_test_keeper_answer(keeper->daemon, DLX_KEEPER_OWNED, keeper->serial, ret_text);
    *ret_owner = r == 0 ? pair[0] : dlx__close(pair[0]);
    return r;
}

int dlx_test_keeper_ask(const struct dlx_test_keeper *keeper, uint64_t origin, uint64_t user,
                        uint32_t reader, uint64_t allocation)
{
    int theirs;
    int ours = dlx_test_keeper_reply_socket(&theirs);
    const struct dlx_keeper_packet get = {.kind = DLX_KEEPER_GET,
                                          .origin = origin,
                                          .uid = (uint32_t)user,
                                          .socket = (uint32_t)(user >> 32),
                                          .reader = reader,
                                          .allocation = allocation};
    send_all(keeper->daemon, &get, &theirs, 1);
    close(theirs);
    return ours;
}

void dlx_test_keeper_tell(const struct dlx_test_keeper *keeper, enum dlx_keeper_kind kind,
                          uint64_t origin, uint64_t user)
{
    const struct dlx_keeper_packet packet = {
        .kind = kind, .origin = origin, .uid = (uint32_t)user, .socket = (uint32_t)(user >> 32)};
    send_all(keeper->daemon, &packet, NULL, 0);
}

void dlx_test_keeper_claim(const struct dlx_test_keeper *keeper, uint64_t origin, uint64_t user,
                           int32_t n_fds)
{
    uint8_t body[DLX_KEEPER_CLAIM_SIZE];
    const struct dlx_keeper_packet claim = {
        .kind = DLX_KEEPER_CLAIM, .body = body, .body_size = sizeof body};
    const struct dlx_keeper_packet claimed = {.kind = DLX_KEEPER_CLAIMED, .code = n_fds};
    if (origin != 0) {
        dlx__keeper_put_claim(body, origin, user);
        send_all(keeper->daemon, &claim, NULL, 0);
    }
    send_all(keeper->daemon, &claimed, NULL, 0);
}

/* ---- processes ------------------------------------------------------------------------------- */

/* A child that runs. A child whose first thread has ended is a zombie while its other threads run,
 * and they have its files open: the thread sanitizer adds such a thread to each process. The state,
 * the parent and the number of threads are words 1, 2 and 18 after the name, which ends with the
 * last `)`. */
static bool is_child(const char *name, pid_t parent)
{
    char path[64], text[512] = "";
    (void)snprintf(path, sizeof path, "/proc/%.20s/stat", name);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    const char *end = strrchr(text, ')');
    char state;
    long its_parent, n_threads;
    return end &&
           sscanf(end + 1,
                  " %c %ld %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld", &state,
                  &its_parent, &n_threads) == 3 &&
           its_parent == (long)parent && (state != 'Z' || n_threads > 1);
}

size_t dlx_test_keeper_children(pid_t parent, pid_t *ret_pids, size_t n_most)
{
    size_t n = 0;
    DIR *dir = opendir("/proc");
    ck_assert_ptr_nonnull(dir);
    for (const struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || !is_child(entry->d_name, parent))
            continue;
        if (n < n_most)
            ret_pids[n] = (pid_t)strtol(entry->d_name, NULL, 10);
        n++;
    }
    closedir(dir);
    return n;
}

void dlx_test_keeper_wait_children(pid_t parent, size_t n)
{
    uint64_t deadline = dlx__deadline(PATIENCE);
    size_t there;
    while ((there = dlx_test_keeper_children(parent, NULL, 0)) != n) {
        ck_assert_msg(dlx__now_ns() < deadline, "%zu processes, not %zu", there, n);
        (void)poll(NULL, 0, 1);
    }
}

/* The keeper's holders, its children, have the same command line. */
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
    pid_t pids[64], found = 0;
    size_t n = 0;
    (void)snprintf(socket, sizeof socket, "%s" DLX_KEEPER_SUFFIX, daemon_path);
    DIR *dir = opendir("/proc");
    ck_assert_ptr_nonnull(dir);
    for (const struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && n < DLX_ARRAY_SIZE(pids) &&
            is_keeper(entry->d_name, socket))
            pids[n++] = (pid_t)strtol(entry->d_name, NULL, 10);
    closedir(dir);
    for (size_t i = 0; i < n; i++) {
        char name[24];
        bool is_holder = false;
        (void)snprintf(name, sizeof name, "%d", (int)pids[i]);
        for (size_t k = 0; k < n; k++)
            is_holder |= k != i && is_child(name, pids[k]);
        if (!is_holder)
            found = pids[i];
    }
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
