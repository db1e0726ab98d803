/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/keeper.h"
#include "common/error.h"
#include "gpu/backend.h"
#include "gpu/gpu.h"
#include "keeper/memory.h"
#include "keeper/wire.h"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>

/* How late the keeper notices that its socket file was removed. */
#define LOOK_NS UINT64_C(500000000)
/* When a packet is sent again that did not fit for want of kernel memory or of descriptors in
 * flight: no event says when there is room. */
#define AGAIN_NS UINT64_C(20000000)

/*
 *     AWAITED --(grace)--> GONE
 *        ^  \               |
 *        |   (connection) (connection)
 *        |    v             v
 *        +--- CONNECTED <---+
 *        |    | (CLAIMED)
 *        |    v
 *        +--- CLAIMED
 */
enum daemon_state { AWAITED, GONE, CONNECTED, CLAIMED };

/* What the daemon waits for, until it was sent. */
struct answer {
    bool is_due;
    uint32_t serial;
    uint64_t origin;
    uint64_t user;
    uint64_t allocation;
    int code; /* 0: the allocation, if it is there */
    char text[DLX_ERROR_TEXT_SIZE];
};

struct keeper {
    int epoll;
    int listener;
    int daemon; /* -1: none */
    enum daemon_state state;
    uint64_t daemon_left_ns; /* AWAITED */
    uint64_t grace_ns;
    struct dlx_listen *place;
    uint64_t look_ns; /* when it looks for its files again */
    uint64_t number;  /* this keeper's */
    struct answer answer;
    uint32_t interest; /* in events of the daemon's socket: EPOLLIN, else something is due */
    uint64_t again_ns; /* when it is sent again; UINT64_MAX: when the socket has room */
    struct dlxk_memory memory;
    struct dlx_packet packet;
};

static bool watch(const struct keeper *k, int fd, uint32_t events, const void *source)
{
    struct epoll_event event = {.events = events, .data.ptr = (void *)(uintptr_t)source};
    return epoll_ctl(k->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* Removes it from the epoll first: its file, and so its events, may live on elsewhere, as a pidfd
 * does in the daemon. */
static int unwatch(const struct keeper *k, int take_fd)
{
    if (take_fd >= 0)
        (void)epoll_ctl(k->epoll, EPOLL_CTL_DEL, take_fd, NULL);
    return dlx__close(take_fd);
}

static void tidy(struct keeper *k, struct dlxk_publisher *publisher)
{
    if (dlxk_memory_is_needed(publisher))
        return;
    publisher->pidfd = unwatch(k, publisher->pidfd);
    dlxk_memory_remove(&k->memory, publisher);
}

/* ---- what is sent ---------------------------------------------------------------------------- */

static int send_kept(const struct keeper *k, const struct dlxk_publisher *publisher)
{
    const struct dlx_keeper_packet kept = {.kind = DLX_KEEPER_KEPT,
                                           .origin = publisher->origin,
                                           .user = publisher->user,
                                           .number = publisher->n_bytes};
    return dlx__keeper_send(k->daemon, &kept, NULL, 0);
}

static int send_memory(const struct keeper *k, const struct dlx_gpu_handle *handle)
{
    uint8_t data[DLX_GPU_BYTES_MAX];
    int fds[DLX_PACKET_FDS_MAX];
    size_t n_fds;
    size_t size = dlx__gpu_handle_encode(handle, 0, data, fds, &n_fds);
    const struct dlx_keeper_packet memory = {.kind = DLX_KEEPER_MEMORY,
                                             .serial = k->answer.serial,
                                             .number = k->number,
                                             .body = data,
                                             .body_size = size};
    return dlx__keeper_send(k->daemon, &memory, fds, n_fds);
}

static int send_answer(const struct keeper *k)
{
    const struct answer *answer = &k->answer;
    if (answer->code < 0)
        return dlx__keeper_refuse(k->daemon, answer->serial, answer->code, answer->text);
    const struct dlxk_publisher *publisher =
        dlxk_memory_find(&k->memory, answer->origin, answer->user);
    const struct dlx_gpu_handle *handle =
        publisher ? dlxk_memory_get(publisher, answer->allocation) : NULL;
    if (handle)
        return send_memory(k, handle);
    char text[DLX_ERROR_TEXT_SIZE];
    (void)snprintf(text, sizeof text,
                   "the GPU keeper does not have allocation %" PRIu64
                   " of this publisher: it was freed, or an earlier keeper had it, which has ended",
                   answer->allocation);
    return dlx__keeper_refuse(k->daemon, answer->serial, DLX_E_NOT_FOUND, text);
}

/* Sends what is due, first how much each publisher has. A daemon that has closed its end is told
 * nothing; what it sent before is still read. Returns 0 or DLX_E_FULL. */
static int send_due(struct keeper *k)
{
    dlx_for_each (it, &k->memory.publishers) {
        struct dlxk_publisher *publisher = dlxd_container_of(it, struct dlxk_publisher, node);
        if (publisher->told != publisher->n_bytes && send_kept(k, publisher) == DLX_E_FULL)
            return DLX_E_FULL;
        publisher->told = publisher->n_bytes;
        tidy(k, publisher);
    }
    if (k->answer.is_due && send_answer(k) == DLX_E_FULL)
        return DLX_E_FULL;
    k->answer.is_due = false;
    return 0;
}

/* Reads no more from the daemon while something is due. */
static void flush(struct keeper *k)
{
    uint32_t interest = EPOLLIN;
    k->again_ns = UINT64_MAX;
    if (send_due(k) == DLX_E_FULL) {
        interest = errno == EAGAIN ? EPOLLOUT : 0;
        if (interest == 0)
            k->again_ns = dlx__now_ns() + AGAIN_NS;
    }
    if (interest == k->interest)
        return;
    struct epoll_event event = {.events = interest, .data.ptr = &k->daemon};
    (void)epoll_ctl(k->epoll, EPOLL_CTL_MOD, k->daemon, &event);
    k->interest = interest;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Sets the answer to that packet. */
static void answer(struct keeper *k, const struct dlx_keeper_packet *packet, int code)
{
    k->answer = (struct answer){.is_due = true,
                                .serial = packet->serial,
                                .origin = packet->origin,
                                .user = packet->user,
                                .allocation = packet->allocation,
                                .code = code};
    if (code < 0)
        (void)snprintf(k->answer.text, sizeof k->answer.text, "%s", dlx__error_message());
}

/* The driver's words alone do not say which process is meant, and what that one needs. */
static int fail_make(int code, const struct dlx_gpu_uuid *uuid)
{
    char name[DLX_GPU_UUID_TEXT], why[DLX_ERROR_TEXT_SIZE];
    dlx__gpu_uuid_text(uuid, name);
    if (code != DLX_E_DEVICE)
        return dlx__fail_prefix(code, "the GPU keeper cannot make memory on %s", name);
    (void)snprintf(why, sizeof why, "%s", dlx__error_message());
    return dlx__fail(code,
                     "the GPU keeper (process %d, uid %u) cannot use %s: %.280s; give it the GPU's "
                     "device files, in its unit, too, and no environment that hides the GPU "
                     "(dlpackd-keeper(8)), and restart it",
                     (int)getpid(), geteuid(), name, why);
}

static int make(const struct dlx_keeper_packet *packet, struct dlx_gpu_handle *ret)
{
    const struct dlx_keeper_device device = dlx__keeper_device(packet);
    const struct dlx_gpu_api *api = NULL;
    const struct dlx_gpu_ops *ops = NULL;
    struct dlx_gpu_uuid uuid;
    int32_t ordinal = -1;
    memcpy(uuid.bytes, device.uuid, sizeof uuid.bytes);
    if (packet->number == 0)
        return dlx__fail(DLX_E_INVALID, "an allocation of no bytes");
    int r = dlx__gpu_api(device.type, &api);
    if (r == 0)
        r = dlx__gpu_ordinal(device.type, &uuid, &ordinal);
    if (r == 0)
        r = dlx__gpu_ops(api->own_kind, &ops);
    if (r == 0)
        r = ops->create(ordinal, packet->number, ret);
    if (r < 0)
        return fail_make(r, &uuid);
    ret->device = uuid;
    ret->id = packet->allocation;
    return 0;
}

/* The newest descriptor is of the process that has the publisher now. */
static int watch_process(const struct keeper *k, struct dlxk_publisher *publisher, int take_pidfd)
{
    if (!watch(k, take_pidfd, EPOLLIN, publisher)) {
        int r = dlx__fail_errno("the GPU keeper cannot watch the publisher's process");
        dlx__close(take_pidfd);
        return r;
    }
    unwatch(k, publisher->pidfd);
    publisher->pidfd = take_pidfd;
    return 0;
}

static int allocate(struct keeper *k, const struct dlx_keeper_packet *packet, int take_pidfd)
{
    dlx_cleanup(dlx__closep) int pidfd = take_pidfd;
    struct dlxk_publisher *publisher = NULL;
    struct dlx_gpu_handle handle = {.id = 0};
    int r = dlxk_memory_reserve(&k->memory, packet->origin, packet->user, packet->allocation,
                                &publisher);
    if (r < 0)
        return r;
    publisher->is_wanted = true;
    r = watch_process(k, publisher, dlx__steal_fd(&pidfd));
    if (r == 0)
        r = make(packet, &handle);
    if (r == 0)
        dlxk_memory_put(&k->memory, publisher, &handle);
    return r; /* a publisher without memory goes with the answer: send_due() */
}

/* Called for a publisher whose process has ended: does nobody need its memory any more? */
static bool is_over(const struct keeper *k, const struct dlxk_publisher *publisher)
{
    return !publisher->is_wanted && (k->state == CLAIMED || k->state == GONE);
}

static void free_all(struct keeper *k, struct dlxk_publisher *publisher)
{
    dlxk_memory_free_all(&k->memory, publisher);
    if (k->daemon < 0)
        publisher->told = 0;
    tidy(k, publisher);
}

static void free_orphans(struct keeper *k)
{
    dlx_for_each (it, &k->memory.publishers) {
        struct dlxk_publisher *publisher = dlxd_container_of(it, struct dlxk_publisher, node);
        if (publisher->pidfd < 0 && is_over(k, publisher))
            free_all(k, publisher);
    }
}

static void on_process(struct keeper *k, struct dlxk_publisher *publisher)
{
    publisher->pidfd = unwatch(k, publisher->pidfd);
    if (is_over(k, publisher))
        free_all(k, publisher);
}

/* ---- what the daemon says -------------------------------------------------------------------- */

static void claim(struct keeper *k, const struct dlx_keeper_packet *packet)
{
    for (size_t i = 0; i < dlx__keeper_n_claims(packet); i++) {
        uint64_t origin, user;
        dlx__keeper_claim(packet, i, &origin, &user);
        struct dlxk_publisher *publisher = dlxk_memory_find(&k->memory, origin, user);
        if (!publisher)
            continue;
        publisher->is_wanted = true;
        publisher->told = 0;
    }
}

static int handle_daemon(struct keeper *k, const struct dlx_keeper_packet *packet)
{
    struct dlxk_publisher *publisher = dlxk_memory_find(&k->memory, packet->origin, packet->user);
    switch (packet->kind) {
    case DLX_KEEPER_ALLOCATE:
        if (!dlx__packet_hung_up(k->daemon)) /* else nobody would learn of the memory */
            answer(k, packet, allocate(k, packet, dlx__packet_steal_fd(&k->packet, 0)));
        return 0;
    case DLX_KEEPER_GET:
        answer(k, packet, 0);
        return 0;
    case DLX_KEEPER_FREE:
        if (publisher)
            dlxk_memory_free(&k->memory, publisher, packet->allocation);
        return 0;
    case DLX_KEEPER_FORGET:
        if (publisher)
            free_all(k, publisher);
        return 0;
    case DLX_KEEPER_CLAIM:
        claim(k, packet);
        return 0;
    case DLX_KEEPER_CLAIMED:
        k->state = CLAIMED;
        free_orphans(k);
        return 0;
    default:
        return DLX_E_PROTOCOL;
    }
}

/* There is no room for the descriptor of this packet, which stays in the socket without it. */
static int refuse_packet(struct keeper *k)
{
    struct dlx_keeper_packet packet;
    char words[DLX_ERROR_TEXT_SIZE];
    (void)snprintf(words, sizeof words, "the GPU keeper: %s", dlx__error_message());
    k->packet.fds[0] = -1;
    k->packet.n_fds = 1;
    int r = dlx__keeper_decode(&k->packet, &packet);
    if (r == 0)
        answer(k, &packet, dlx__fail(DLX_E_FD_LIMIT, "%s", words));
    (void)dlx__packet_drop(k->daemon);
    return r;
}

static void lose_daemon(struct keeper *k)
{
    k->daemon = unwatch(k, k->daemon);
    k->daemon_left_ns = dlx__now_ns();
    k->state = AWAITED;
    k->answer.is_due = false;
    k->again_ns = UINT64_MAX;
    dlx_for_each (it, &k->memory.publishers) {
        struct dlxk_publisher *publisher = dlxd_container_of(it, struct dlxk_publisher, node);
        publisher->is_wanted = false;
        publisher->told = publisher->n_bytes;
        tidy(k, publisher);
    }
}

/* Returns false if there is nothing more to read now. */
static bool read_daemon(struct keeper *k)
{
    struct dlx_keeper_packet packet;
    if (k->daemon < 0 || k->interest != EPOLLIN)
        return false;
    int r = dlx__packet_recv_fds(k->daemon, &k->packet);
    if (r == DLX_E_EMPTY)
        return false;
    if (r == DLX_E_FD_LIMIT)
        r = refuse_packet(k);
    else if (r == 0 && (r = dlx__keeper_decode(&k->packet, &packet)) == 0)
        r = handle_daemon(k, &packet);
    dlx__packet_deinit(&k->packet);
    if (r < 0)
        lose_daemon(k);
    else
        flush(k);
    return r == 0;
}

static void on_daemon(struct keeper *k)
{
    if (k->interest == EPOLLIN)
        (void)read_daemon(k);
    else
        flush(k);
}

/* ---- who comes ------------------------------------------------------------------------------- */

static bool may_be_daemon(int sock)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

/* The newest connection is the daemon: its predecessor has ended or is about to. What that said
 * last counts; it says and hears no more. */
static void replace_daemon(struct keeper *k)
{
    if (k->daemon < 0)
        return;
    (void)shutdown(k->daemon, SHUT_RDWR);
    flush(k); /* what was due is not any more, so that the rest is read */
    while (read_daemon(k))
        ;
    if (k->daemon >= 0)
        lose_daemon(k);
}

static int accept_one(const struct keeper *k)
{
    return accept4(k->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

static void on_connection(struct keeper *k)
{
    dlx_cleanup(dlx__closep) int sock = accept_one(k);
    if (sock < 0 && errno == EMFILE) { /* the next daemon has the descriptor of the former one */
        replace_daemon(k);
        sock = accept_one(k);
    }
    if (sock < 0 || !may_be_daemon(sock))
        return;
    replace_daemon(k);
    if (!watch(k, sock, EPOLLIN, &k->daemon))
        return;
    k->interest = EPOLLIN;
    k->daemon = dlx__steal_fd(&sock);
    k->state = CONNECTED;
}

/* ---- files that were removed ----------------------------------------------------------------- */

/* As by a program that cleans /tmp: a daemon that starts later would not find the keeper, and what
 * it has. Without a daemon, a folder that was removed is left to the next one, which makes it. */
static void look_at_place(struct keeper *k, uint64_t now)
{
    bool is_taken;
    if (!k->place || now < k->look_ns)
        return;
    k->look_ns = now + LOOK_NS;
    if (dlx__listen_is_at_path(k->place)) {
        (void)dlx__listen_restore_lock(k->place);
        return;
    }
    if (k->daemon < 0 && access(k->place->folder, F_OK) < 0)
        return;
    int r = dlx__listen_restore(k->place, &is_taken); /* closes the socket, which ends its watch */
    k->listener = k->place->fd;
    if (r == 0)
        (void)watch(k, k->listener, EPOLLIN, &k->listener);
}

/* ---- life ------------------------------------------------------------------------------------ */

static bool is_idle(const struct keeper *k)
{
    struct pollfd queue = {.fd = k->listener, .events = POLLIN};
    return k->state == GONE && dlxd_list_empty(&k->memory.publishers) && poll(&queue, 1, 0) == 0;
}

static void on_time(struct keeper *k, uint64_t now)
{
    if (k->state == AWAITED && now - k->daemon_left_ns >= k->grace_ns) {
        k->state = GONE;
        free_orphans(k);
    }
    if (now >= k->again_ns)
        flush(k);
    look_at_place(k, now);
}

static int wait_ms(const struct keeper *k, uint64_t now)
{
    uint64_t until = k->again_ns;
    if (k->state == AWAITED)
        until = DLX_MIN(until, k->daemon_left_ns + k->grace_ns);
    if (k->place)
        until = DLX_MIN(until, k->look_ns);
    return dlx__deadline_ms(until, now);
}

/* Handles one event at a time, so that none refers to something that another one has freed. */
static void run(struct keeper *k)
{
    struct epoll_event event;
    while (!is_idle(k)) {
        int n = epoll_wait(k->epoll, &event, 1, wait_ms(k, dlx__now_ns()));
        if (n == 1 && event.data.ptr == &k->listener)
            on_connection(k);
        else if (n == 1 && event.data.ptr == &k->daemon)
            on_daemon(k);
        else if (n == 1)
            on_process(k, event.data.ptr);
        if (k->daemon >= 0 && k->interest == EPOLLIN)
            flush(k);
        on_time(k, dlx__now_ns());
    }
}

static uint32_t count_files(void)
{
    struct rlimit files = {.rlim_cur = 0};
    (void)getrlimit(RLIMIT_NOFILE, &files);
    uint32_t n = (uint32_t)DLX_MIN(files.rlim_cur, (rlim_t)DLXK_FILES_MAX);
    return n - DLX_MIN(n / 4, DLXK_FILES_SPARE);
}

int dlxk_run(int listener, const struct dlxk_options *options)
{
    struct keeper *k = calloc(1, sizeof *k);
    if (!k)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory");
    k->epoll = epoll_create1(EPOLL_CLOEXEC);
    k->listener = listener;
    k->daemon = -1;
    k->daemon_left_ns = dlx__now_ns();
    k->grace_ns = options->grace_ns ? options->grace_ns : DLXK_GRACE_NS;
    k->place = options->place;
    k->again_ns = UINT64_MAX;
    dlxk_memory_init(&k->memory, count_files());
    int r = 0;
    if (k->epoll < 0 || !watch(k, listener, EPOLLIN, &k->listener))
        r = dlx__fail_errno("epoll");
    else if (getrandom(&k->number, sizeof k->number, 0) != sizeof k->number)
        r = dlx__fail_errno("getrandom");
    else
        run(k);
    dlx__close(k->daemon);
    dlxk_memory_deinit(&k->memory);
    dlx__close(k->epoll);
    free(k);
    return r;
}
