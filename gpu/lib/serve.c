/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/lib/serve.h"
#include "common/packet.h"
#include "gpu/backend.h"
#include "gpu/lib/thread.h"
#include "gpu/lib/words.h"
#include "keeper/wire.h"
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* The descriptors that one reader has not received. */
#define PART_MAX 8U
/* How soon the thread looks again where no event tells that it may go on. */
#define LOOK_MS 10

struct publisher {
    struct publisher *next;
    const struct dlx_gpu_exports *exports;
    struct dlx_gpu_words *words; /* NULL: it has none */
    int sock;                    /* -1: its daemon is gone */
};

struct reader {
    struct reader *next;
    const struct dlx_gpu_exports *exports;
    uint64_t allocation;
    uint32_t first; /* the chunk that is sent next */
    int sock;
    uint64_t deadline;
};

/* One publisher begins or ends at a time. Taken before `lock`. */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
/* Guards all of `server`. The thread holds it, but while it sleeps. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The thread is there while there are publishers. It looks at all sockets after each event. */
static struct {
    pthread_t thread;
    int events; /* an epoll instance */
    int end;    /* an eventfd: the thread ends */
    bool is_ending;
    bool must_look; /* a packet may be there that could not be received now */
    struct publisher *publishers;
    struct reader *readers;
    uint32_t n_readers;
} server;

static int serve_watch(int fd, uint32_t events)
{
    struct epoll_event event = {.events = events | EPOLLET};
    return epoll_ctl(server.events, EPOLL_CTL_ADD, fd, &event) == 0
               ? 0
               : dlx__fail_errno("epoll_ctl, to serve GPU memory");
}

/* A forked child has a copy of it, so to close it would not end its events. Returns -1. */
static int serve_unwatch(int fd)
{
    if (fd >= 0)
        (void)epoll_ctl(server.events, EPOLL_CTL_DEL, fd, NULL);
    return dlx__close(fd);
}

/* ---- readers --------------------------------------------------------------------------------- */

static bool has_unread(int sock)
{
    int n = 0;
    return ioctl(sock, SIOCOUTQ, &n) == 0 && n >= (int)DLX_KEEPER_HEADER_SIZE;
}

/* Returns how many chunks are left. */
static int send_part(const struct dlx_gpu_handle *handle, void *userdata)
{
    struct reader *reader = userdata;
    uint8_t data[DLX_GPU_BYTES_MAX];
    int fds[DLX_PACKET_FDS_MAX];
    size_t n_fds;
    size_t size = dlx__gpu_handle_encode_part(handle, reader->first, PART_MAX, data, fds, &n_fds);
    const struct dlx_keeper_packet part = {
        .kind = DLX_KEEPER_PART, .body = data, .body_size = size};
    int r = dlx__keeper_send(reader->sock, &part, fds, n_fds);
    if (r < 0)
        return r;
    reader->first += (uint32_t)n_fds;
    return (int)(handle->n_chunks - reader->first);
}

/* Returns false when it has got all, or is given up. */
static bool serve_reader(struct reader *reader, uint64_t now, bool *ret_has_sent)
{
    int r = DLX_E_FULL;
    if (!has_unread(reader->sock))
        r = dlx__gpu_exports_look(reader->exports, reader->allocation, send_part, reader);
    if (r > 0) {
        reader->deadline = now + DLX_GPU_READER_NS;
        *ret_has_sent = true;
        return true;
    }
    if (r == DLX_E_FULL && now < reader->deadline)
        return true;
    if (r == DLX_E_FULL)
        r = dlx__fail(DLX_E_TIMEOUT,
                      "its publisher gave up to send it, since nothing was received for %.3g s",
                      (double)DLX_GPU_READER_NS / 1e9);
    if (r < 0 && r != DLX_E_DISCONNECTED)
        (void)dlx__keeper_refuse(reader->sock, 0, r, dlx__error_message());
    return false;
}

static void drop_reader(struct reader **at)
{
    struct reader *reader = *at;
    *at = reader->next;
    (void)serve_unwatch(reader->sock);
    free(reader);
    server.n_readers--;
}

static bool serve_readers(void)
{
    bool has_sent = false;
    uint64_t now = dlx__now_ns();
    for (struct reader **at = &server.readers; *at;) {
        if (serve_reader(*at, now, &has_sent))
            at = &(*at)->next;
        else
            drop_reader(at);
    }
    return has_sent;
}

static int add_reader(const struct publisher *publisher, uint64_t allocation, int sock)
{
    struct reader *reader = calloc(1, sizeof *reader);
    if (!reader)
        return dlx__fail(DLX_E_NO_MEMORY, "its publisher has no memory to serve a reader");
    int r = serve_watch(sock, EPOLLOUT);
    if (r < 0) {
        free(reader);
        return r;
    }
    *reader = (struct reader){.next = server.readers,
                              .exports = publisher->exports,
                              .allocation = allocation,
                              .sock = sock,
                              .deadline = dlx__now_ns() + DLX_GPU_READER_NS};
    server.readers = reader;
    server.n_readers++;
    return 0;
}

/* ---- publishers ------------------------------------------------------------------------------ */

static void accept_reader(const struct publisher *publisher, struct dlx_packet *packet)
{
    struct dlx_keeper_packet ask;
    if (dlx__keeper_decode(packet, &ask) < 0 || ask.kind != DLX_KEEPER_ASK)
        return; /* a reader hears that its socket was closed */
    int sock = dlx__steal_fd(&packet->fds[0]);
    if (ask.allocation == DLX_GPU_WORDS_ID && publisher->words) {
        dlx__gpu_words_ask(publisher->words, sock);
        return;
    }
    int r = add_reader(publisher, ask.allocation, sock);
    if (r < 0) {
        (void)dlx__keeper_refuse(sock, 0, r, dlx__error_message());
        dlx__close(sock);
    }
}

/* Returns true if it asked for something. */
static bool hear_publisher(struct publisher *publisher)
{
    struct dlx_packet packet;
    bool has_asked = false;
    while (publisher->sock >= 0) {
        if (server.n_readers == DLX_GPU_READERS_MAX) {
            server.must_look = true;
            break;
        }
        int r = dlx__packet_recv_fds(publisher->sock, &packet);
        if (r == DLX_E_EMPTY)
            break;
        if (r == DLX_E_FD_LIMIT) { /* until the program has closed some, or the reader is tired */
            server.must_look = true;
            break;
        }
        if (r < 0 && r != DLX_E_PROTOCOL) {
            publisher->sock = serve_unwatch(publisher->sock);
            break;
        }
        has_asked = true;
        if (r == 0)
            accept_reader(publisher, &packet);
        dlx__packet_deinit(&packet);
    }
    return has_asked;
}

static void *serve_main(void *arg)
{
    struct epoll_event unused[8];
    (void)pthread_mutex_lock(&lock);
    while (!server.is_ending) {
        bool goes_on = false;
        server.must_look = false;
        for (struct publisher *publisher = server.publishers; publisher;
             publisher = publisher->next)
            goes_on |= hear_publisher(publisher);
        goes_on |= serve_readers();
        int ms = goes_on ? 0 : server.n_readers > 0 || server.must_look ? LOOK_MS : -1;
        int events = server.events;
        (void)pthread_mutex_unlock(&lock);
        (void)epoll_wait(events, unused, (int)DLX_ARRAY_SIZE(unused), ms);
        (void)pthread_mutex_lock(&lock);
    }
    (void)pthread_mutex_unlock(&lock);
    return arg;
}

/* ---- its beginning and end ------------------------------------------------------------------- */

static int server_start(void)
{
    server.events = epoll_create1(EPOLL_CLOEXEC);
    if (server.events < 0)
        return dlx__fail_errno("epoll_create1, to serve GPU memory");
    server.end = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server.is_ending = false;
    int r = server.end < 0 ? dlx__fail_errno("eventfd, to serve GPU memory")
                           : serve_watch(server.end, EPOLLIN);
    if (r == 0 && !dlx__gpu_thread_start(&server.thread, serve_main, NULL))
        r = dlx__fail(DLX_E_LIMIT, "no thread can be started to serve GPU memory to others");
    if (r < 0) {
        dlx__close(server.end);
        dlx__close(server.events);
    }
    return r;
}

static void server_stop(void)
{
    const uint64_t one = 1;
    (void)pthread_mutex_lock(&lock);
    server.is_ending = true;
    (void)pthread_mutex_unlock(&lock);
    if (write(server.end, &one, sizeof one) == (ssize_t)sizeof one)
        (void)pthread_join(server.thread, NULL);
    dlx__close(server.end);
    dlx__close(server.events);
}

static struct publisher **find_publisher(const struct dlx_gpu_exports *exports)
{
    struct publisher **at = &server.publishers;
    while (*at && (*at)->exports != exports)
        at = &(*at)->next;
    return at;
}

/* Locked. */
static void end_publisher(struct publisher **at)
{
    struct publisher *publisher = *at;
    for (struct reader **reader = &server.readers; *reader;) {
        if ((*reader)->exports == publisher->exports)
            drop_reader(reader);
        else
            reader = &(*reader)->next;
    }
    *at = publisher->next;
    (void)serve_unwatch(publisher->sock);
    free(publisher);
}

void dlx__gpu_serve_end(const struct dlx_gpu_exports *exports)
{
    if (dlx__gpu_is_forked())
        return;
    (void)pthread_mutex_lock(&changing);
    (void)pthread_mutex_lock(&lock);
    struct publisher **at = find_publisher(exports);
    bool is_there = *at != NULL;
    if (is_there)
        end_publisher(at);
    bool is_last = is_there && !server.publishers;
    (void)pthread_mutex_unlock(&lock);
    if (is_last)
        server_stop();
    (void)pthread_mutex_unlock(&changing);
}

static int begin_publisher(const struct dlx_gpu_exports *exports)
{
    struct publisher *publisher = calloc(1, sizeof *publisher);
    if (!publisher)
        return dlx__fail(DLX_E_NO_MEMORY, "no memory to serve GPU memory to others");
    int r = server.publishers ? 0 : server_start();
    if (r < 0) {
        free(publisher);
        return r;
    }
    (void)pthread_mutex_lock(&lock);
    *publisher = (struct publisher){.next = server.publishers, .exports = exports, .sock = -1};
    server.publishers = publisher;
    (void)pthread_mutex_unlock(&lock);
    return 0;
}

static int hear_on(struct publisher *publisher, struct dlx_gpu_words *words, int *take_sock)
{
    publisher->words = words;
    publisher->sock = serve_unwatch(publisher->sock);
    int r = serve_watch(*take_sock, EPOLLIN);
    if (r == 0)
        publisher->sock = dlx__steal_fd(take_sock);
    return r;
}

int dlx__gpu_serve(const struct dlx_gpu_exports *exports, struct dlx_gpu_words *words,
                   int take_sock)
{
    dlx_cleanup(dlx__closep) int sock = take_sock;
    if (dlx__gpu_is_forked())
        return dlx__gpu_fail_forked();
    (void)pthread_mutex_lock(&changing);
    int r = *find_publisher(exports) ? 0 : begin_publisher(exports);
    if (r == 0) {
        (void)pthread_mutex_lock(&lock);
        r = hear_on(*find_publisher(exports), words, &sock);
        (void)pthread_mutex_unlock(&lock);
    }
    (void)pthread_mutex_unlock(&changing);
    return r;
}
