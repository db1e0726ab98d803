/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/holder.h"
#include "common/error.h"
#include "common/syscalls.h"
#include "daemon/base/list.h"
#include "keeper/shelf.h"
#include "keeper/wire.h"
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

/* The interval of checks whether readers have received something, for kernels that do not report
 * it. */
#define LOOK_NS UINT64_C(20000000)
/* How many packets of the owner are read before a reader is answered: more than its socket
 * holds. */
#define DRAIN_MAX 1024

/* A reader that is being served. */
struct reader {
    struct dlxd_list node;
    int sock;
    uint64_t allocation;
    uint32_t next;        /* the next chunk */
    uint64_t deadline_ns; /* when it is given up */
};

struct holder {
    int epoll;
    int owner; /* -1: it has closed its end */
    int control;
    bool is_left; /* the router has closed its end */
    uint64_t reader_ns;
    struct dlxk_shelf shelf;
    struct dlxd_list readers;
    struct dlx_packet packet;
};

/* ---- the owner ------------------------------------------------------------------------------- */

/* An owner that does not read its answers does without them. */
static void answer(const struct holder *h, uint32_t serial, int code)
{
    (void)dlx__keeper_send_code(h->owner, DLX_KEEPER_ANSWER, serial, code,
                                code < 0 ? dlx__error_message() : "");
}

static void handle_owner(struct holder *h, const struct dlx_keeper_packet *packet)
{
    if (packet->kind == DLX_KEEPER_DROP) {
        dlxk_shelf_drop(&h->shelf, packet->allocation);
    } else if (packet->kind == DLX_KEEPER_PUT) {
        int r = dlxk_shelf_put(&h->shelf, packet->serial, packet->body, packet->body_size,
                               h->packet.fds, h->packet.n_fds);
        if (r <= 0)
            answer(h, packet->serial, r);
    }
}

/* There is no room for the descriptors of this packet. */
static void refuse_owner(struct holder *h)
{
    struct dlx_keeper_packet packet;
    char words[DLX_ERROR_TEXT_SIZE];
    (void)snprintf(words, sizeof words, "the GPU keeper: %s", dlx__error_message());
    if (dlx__keeper_decode(&h->packet, &packet) == 0 && packet.kind == DLX_KEEPER_PUT &&
        !(h->shelf.is_refused && h->shelf.serial == packet.serial)) {
        dlxk_shelf_refuse(&h->shelf, packet.serial);
        answer(h, packet.serial, dlx__fail(DLX_E_FD_LIMIT, "%s", words));
    }
    (void)dlx__packet_drop(h->owner);
}

/* The owner has closed its end or violated the protocol. */
static void lose_owner(struct holder *h)
{
    const struct dlx_keeper_packet gone = {.kind = DLX_KEEPER_OWNER_GONE};
    (void)dlx__keeper_send(h->control, &gone, NULL, 0);
    h->owner = dlx__close(h->owner);
}

/* Returns false if there is nothing more to read. */
static bool read_owner(struct holder *h)
{
    struct dlx_keeper_packet packet;
    if (h->owner < 0)
        return false;
    int r = dlx__packet_recv_fds(h->owner, &h->packet);
    if (r == DLX_E_EMPTY)
        return false;
    if (r == DLX_E_FD_LIMIT) {
        refuse_owner(h);
        return true;
    }
    if (r == 0)
        r = dlx__keeper_decode(&h->packet, &packet);
    if (r == 0)
        handle_owner(h, &packet);
    dlx__packet_deinit(&h->packet);
    if (r < 0)
        lose_owner(h);
    return r == 0;
}

/* ---- readers --------------------------------------------------------------------------------- */

static void end_reader(const struct holder *h, struct reader *reader)
{
    dlxd_list_remove(&reader->node);
    /* The router has the socket, too, so its events must be removed, and the shutdown ends it for
     * the reader. */
    (void)epoll_ctl(h->epoll, EPOLL_CTL_DEL, reader->sock, NULL);
    (void)shutdown(reader->sock, SHUT_RDWR);
    dlx__close(reader->sock);
    free(reader);
}

static void fail_reader(const struct holder *h, struct reader *reader, int code)
{
    (void)dlx__keeper_send_code(reader->sock, DLX_KEEPER_ANSWER, 0, code, dlx__error_message());
    end_reader(h, reader);
}

static int send_part(const struct reader *reader, const struct dlx_gpu_handle *handle,
                     uint32_t *ret_n)
{
    uint8_t data[DLX_GPU_BYTES_MAX];
    int fds[DLX_PACKET_FDS_MAX];
    size_t n_fds;
    size_t size = dlxk_shelf_part(handle, reader->next, DLXK_AHEAD, data, fds, &n_fds);
    const struct dlx_keeper_packet part = {
        .kind = DLX_KEEPER_PART, .body = data, .body_size = size};
    int r = dlx__keeper_send(reader->sock, &part, fds, n_fds);
    *ret_n = (uint32_t)n_fds;
    return r;
}

/* Sends the next part if the reader has received the previous ones. May free it. */
static void serve(struct holder *h, struct reader *reader)
{
    uint32_t n = 0;
    if (dlx__keeper_unread(reader->sock) > 0)
        return;
    const struct dlx_gpu_handle *handle = dlxk_shelf_find(&h->shelf, reader->allocation);
    if (!handle || reader->next >= handle->n_chunks) {
        fail_reader(h, reader,
                    dlx__fail(DLX_E_NOT_FOUND,
                              "the GPU keeper does not have allocation %" PRIu64
                              " of this publisher: it was dropped, or never put there",
                              reader->allocation));
        return;
    }
    int r = send_part(reader, handle, &n);
    if (r == DLX_E_FULL || r == DLX_E_NO_MEMORY)
        return; /* tried again later */
    reader->next += n;
    reader->deadline_ns = dlx__now_ns() + h->reader_ns;
    if (r < 0 || reader->next == handle->n_chunks)
        end_reader(h, reader);
}

static void new_reader(struct holder *h, uint64_t allocation, int take_sock)
{
    /* Edge-triggered: the kernel reports each time that something was received. */
    struct epoll_event event = {.events = EPOLLOUT | EPOLLET};
    struct reader *reader = calloc(1, sizeof *reader);
    if (!reader) {
        dlx__close(take_sock); /* the router ends it */
        return;
    }
    reader->sock = take_sock;
    reader->allocation = allocation;
    reader->deadline_ns = dlx__now_ns() + h->reader_ns;
    event.data.ptr = reader;
    dlxd_list_push_back(&h->readers, &reader->node);
    (void)epoll_ctl(h->epoll, EPOLL_CTL_ADD, take_sock, &event);
    /* What the owner put before the reader asked must be there. */
    for (int i = 0; i < DRAIN_MAX && read_owner(h); i++)
        ;
    serve(h, reader);
}

static void look_at_readers(struct holder *h)
{
    uint64_t now = dlx__now_ns();
    dlx_for_each (it, &h->readers) {
        struct reader *reader = dlxd_container_of(it, struct reader, node);
        if (now >= reader->deadline_ns)
            end_reader(h, reader);
        else
            serve(h, reader);
    }
}

/* ---- the router ------------------------------------------------------------------------------ */

static void read_control(struct holder *h)
{
    struct dlx_keeper_packet packet;
    int r = dlx__packet_recv_fds(h->control, &h->packet);
    if (r == DLX_E_EMPTY)
        return;
    if (r == DLX_E_FD_LIMIT) { /* the router ends that reader */
        (void)dlx__packet_drop(h->control);
        return;
    }
    if (r == 0)
        r = dlx__keeper_decode(&h->packet, &packet);
    if (r == 0 && packet.kind == DLX_KEEPER_GET) {
        int sock = dlx__packet_steal_fd(&h->packet, 0);
        new_reader(h, packet.allocation, sock);
    }
    dlx__packet_deinit(&h->packet);
    h->is_left = r < 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

static bool holder_watch(const struct holder *h, const int *fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = (void *)(uintptr_t)fd};
    return epoll_ctl(h->epoll, EPOLL_CTL_ADD, *fd, &event) == 0;
}

/* Handles one event at a time, so that none refers to something that another one has freed. */
static void turn(struct holder *h, uint64_t *next_look_ns)
{
    struct epoll_event event;
    uint64_t now = dlx__now_ns();
    uint64_t until = dlxd_list_empty(&h->readers) ? UINT64_MAX : *next_look_ns;
    int n = epoll_wait(h->epoll, &event, 1, dlx__deadline_ms(until, now));
    if (n == 1 && event.data.ptr == &h->owner)
        (void)read_owner(h);
    else if (n == 1 && event.data.ptr == &h->control)
        read_control(h);
    else if (n == 1)
        serve(h, event.data.ptr);
    if (dlx__now_ns() >= *next_look_ns) {
        look_at_readers(h);
        *next_look_ns = dlx__now_ns() + LOOK_NS;
    }
}

int dlxk_holder_run(int take_owner, int take_control, const struct dlxk_holder_options *options)
{
    struct holder *h = calloc(1, sizeof *h);
    struct rlimit files = {.rlim_cur = 0};
    uint64_t next_look_ns = 0;
    if (!h) {
        dlx__close(take_owner);
        dlx__close(take_control);
        return EXIT_FAILURE;
    }
    h->owner = take_owner;
    h->control = take_control;
    h->reader_ns = options->reader_ns ? options->reader_ns : DLXK_READER_NS;
    h->epoll = epoll_create1(EPOLL_CLOEXEC);
    dlxd_list_init(&h->readers);
    (void)getrlimit(RLIMIT_NOFILE, &files);
    h->shelf.n_fds_most = (uint32_t)DLX_MIN(files.rlim_cur, DLXK_FILES_MAX);
    h->shelf.n_fds_most -= DLX_MIN(h->shelf.n_fds_most, DLXK_FILES_SPARE);
    if (options->n_fds_most)
        h->shelf.n_fds_most = options->n_fds_most;
    h->is_left = h->epoll < 0 || !holder_watch(h, &h->owner) || !holder_watch(h, &h->control);
    int status = h->is_left ? EXIT_FAILURE : EXIT_SUCCESS;
    while (!h->is_left)
        turn(h, &next_look_ns);
    dlx_for_each (it, &h->readers)
        end_reader(h, dlxd_container_of(it, struct reader, node));
    dlx__close(h->control);
    dlx__close(h->owner);
    dlx__close(h->epoll);
    dlxk_shelf_deinit(&h->shelf);
    free(h);
    return status;
}

static void close_others(int owner, int control)
{
    /* Copies of what the router has; none of them is the last. */
    int low = DLX_MIN(owner, control), high = DLX_MAX(owner, control);
    if (low > 3)
        (void)syscall(SYS_close_range, 3U, (unsigned)low - 1, 0U);
    if (high > low + 1)
        (void)syscall(SYS_close_range, (unsigned)low + 1, (unsigned)high - 1, 0U);
    (void)syscall(SYS_close_range, (unsigned)high + 1, ~0U, 0U);
}

int dlxk_holder_main(int owner, int control, int parent_pid,
                     const struct dlxk_holder_options *options)
{
    struct rlimit files;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent_pid)
        return EXIT_FAILURE;
    close_others(owner, control);
    (void)signal(SIGTERM, SIG_DFL); /* the router's handler removes its socket */
    (void)signal(SIGINT, SIG_DFL);
    (void)prctl(PR_SET_NAME, "dlpackd-holder");
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = DLX_MIN(files.rlim_max, (rlim_t)DLXK_FILES_MAX);
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    return dlxk_holder_run(owner, control, options);
}
