/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/readers.h"
#include "common/error.h"
#include "daemon/users/share.h"
#include "keeper/router.h"
#include <inttypes.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

/* A holder gives a reader up earlier than this. A holder that does not is blocked itself. */
#define STUCK_NS (DLXK_READER_NS + UINT64_C(1000000000))
#define LOOK_NS  UINT64_C(250000000)

void dlxk_readers_init(struct dlxk_readers *readers, int borrow_epoll)
{
    struct rlimit files = {.rlim_cur = 0};
    *readers = (struct dlxk_readers){.epoll = borrow_epoll};
    dlxd_list_init(&readers->waiting);
    dlxd_list_init(&readers->served);
    (void)getrlimit(RLIMIT_NOFILE, &files);
    dlxk_readers_allow(readers, (int64_t)DLX_MIN(files.rlim_cur, (rlim_t)INT32_MAX) / 4);
}

void dlxk_readers_allow(struct dlxk_readers *readers, int64_t n_fds)
{
    int64_t n = DLX_MIN(n_fds / DLXK_AHEAD, (int64_t)DLXK_READERS_MAX);
    readers->n_served_max = (uint32_t)DLX_MAX(n, (int64_t)DLXK_READERS_LEAST);
}

static bool is_waiting(const struct dlxk_reader *reader)
{
    return reader->deadline_ns == UINT64_MAX;
}

static void free_reader(struct dlxk_readers *readers, struct dlxk_reader *reader)
{
    readers->n--;
    readers->n_served -= !is_waiting(reader);
    dlxd_list_remove(&reader->node);
    reader->sock = dlxk_unwatch(readers->epoll, reader->sock);
    free(reader);
}

/* The reader gets nothing more, and sees the end after reading what is there. */
static void cut(struct dlxk_reader *reader)
{
    reader->holder = NULL;
    (void)shutdown(reader->sock, SHUT_RDWR);
}

static void refuse(int sock, int code)
{
    (void)dlx__keeper_send_code(sock, DLX_KEEPER_ANSWER, 0, code, dlx__error_message());
}

static bool is_shut(int sock)
{
    struct pollfd p = {.fd = sock, .events = 0};
    return poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR));
}

/* Is the socket closed at one end with nothing left to read? */
static bool readers_is_over(const struct dlxk_reader *reader)
{
    return is_shut(reader->sock) && dlx__keeper_unread(reader->sock) == 0;
}

static uint32_t readers_count(const struct dlxd_list *list, uint32_t uid)
{
    uint32_t n = 0;
    for (struct dlxd_list *it = list->next; it != list; it = it->next)
        n += dlxd_container_of(it, struct dlxk_reader, node)->uid == uid;
    return n;
}

/* Passes the reader to its holder. May free it. */
static void begin(struct dlxk_readers *readers, struct dlxk_reader *reader)
{
    const struct dlx_keeper_packet get = {
        .kind = DLX_KEEPER_GET,
        .origin = reader->holder->origin,
        .uid = (uint32_t)reader->holder->user,
        .socket = (uint32_t)(reader->holder->user >> 32),
        .allocation = reader->allocation,
        .reader = reader->uid,
    };
    if (dlx__keeper_send(reader->holder->control, &get, &reader->sock, 1) < 0) {
        refuse(reader->sock, dlx__fail(DLX_E_TIMEOUT,
                                       "the process that holds the GPU memory of publisher "
                                       "%" PRIu64 " does not answer",
                                       reader->holder->origin));
        cut(reader);
        free_reader(readers, reader);
        return;
    }
    dlxd_list_remove(&reader->node);
    dlxd_list_push_back(&readers->served, &reader->node);
    readers->n_served++;
    reader->deadline_ns = dlx__now_ns() + STUCK_NS;
}

/* Admits waiting readers in order, skipping those whose users have their share. */
static void admit(struct dlxk_readers *readers)
{
    dlx_for_each (it, &readers->waiting) {
        struct dlxk_reader *reader = dlxd_container_of(it, struct dlxk_reader, node);
        if (readers->n_served == readers->n_served_max)
            return;
        if (dlxd_share_is_fair(readers_count(&readers->served, reader->uid) + 1,
                               readers->n_served_max - readers->n_served - 1))
            begin(readers, reader);
    }
}

static int check_queue(const struct dlxk_readers *readers, uint32_t uid)
{
    uint32_t n = readers_count(&readers->waiting, uid) + readers_count(&readers->served, uid);
    if (readers->n < DLXK_WAITING_MAX &&
        dlxd_share_is_fair(n + 1, DLXK_WAITING_MAX - readers->n - 1))
        return 0;
    return dlx__fail(DLX_E_LIMIT,
                     "%u readers wait for the GPU keeper (limit %u), %u of them of uid %u: those "
                     "that were answered have to read, or to close",
                     readers->n, DLXK_WAITING_MAX, n, uid);
}

void dlxk_readers_add(struct dlxk_readers *readers, struct dlxk_entry *holder,
                      const struct dlx_keeper_packet *get, int take_sock)
{
    /* Edge-triggered: the kernel reports each time that something was received, and the end. */
    struct epoll_event event = {.events = EPOLLOUT | EPOLLET};
    dlx_cleanup(dlx__closep) int sock = take_sock;
    int r = check_queue(readers, get->reader);
    if (r == 0 && !holder)
        r = dlx__fail(DLX_E_NOT_FOUND,
                      "the GPU keeper has nothing of publisher %" PRIu64
                      ": it shares no memory that outlives it, or the process that held it ended",
                      get->origin);
    struct dlxk_reader *reader = r == 0 ? calloc(1, sizeof *reader) : NULL;
    if (!reader) {
        refuse(sock, r < 0 ? r : dlx__fail(DLX_E_NO_MEMORY, "the GPU keeper is out of memory"));
        return;
    }
    *reader = (struct dlxk_reader){.holder = holder,
                                   .uid = get->reader,
                                   .allocation = get->allocation,
                                   .sock = dlx__steal_fd(&sock),
                                   .deadline_ns = UINT64_MAX};
    reader->on_sock = (struct dlxk_source){DLXK_ON_READER, reader};
    event.data.ptr = &reader->on_sock;
    dlxd_list_push_back(&readers->waiting, &reader->node);
    readers->n++;
    (void)epoll_ctl(readers->epoll, EPOLL_CTL_ADD, reader->sock, &event);
    admit(readers);
}

void dlxk_readers_moved(struct dlxk_readers *readers, struct dlxk_reader *reader)
{
    if (!is_waiting(reader))
        reader->deadline_ns = dlx__now_ns() + STUCK_NS;
    if (!readers_is_over(reader))
        return;
    free_reader(readers, reader);
    admit(readers);
}

static void holder_ends(struct dlxk_readers *readers, struct dlxd_list *list,
                        const struct dlxk_entry *holder)
{
    dlx_for_each (it, list) {
        struct dlxk_reader *reader = dlxd_container_of(it, struct dlxk_reader, node);
        if (reader->holder != holder)
            continue;
        refuse(reader->sock,
               dlx__fail(DLX_E_NOT_FOUND,
                         "the process that held the GPU memory of publisher %" PRIu64 " ended",
                         holder->origin));
        cut(reader);
        if (is_waiting(reader)) /* others may have descriptors in flight */
            free_reader(readers, reader);
    }
}

void dlxk_readers_holder_ends(struct dlxk_readers *readers, const struct dlxk_entry *holder)
{
    holder_ends(readers, &readers->waiting, holder);
    holder_ends(readers, &readers->served, holder);
}

uint64_t dlxk_readers_next_ns(const struct dlxk_readers *readers, uint64_t now_ns)
{
    if (readers->n == 0)
        return UINT64_MAX;
    return DLX_MAX(readers->next_look_ns, now_ns);
}

static void readers_look(struct dlxk_readers *readers, struct dlxd_list *list, uint64_t now_ns)
{
    dlx_for_each (it, list) {
        struct dlxk_reader *reader = dlxd_container_of(it, struct dlxk_reader, node);
        if (readers_is_over(reader))
            free_reader(readers, reader);
        else if (now_ns >= reader->deadline_ns)
            cut(reader);
    }
}

void dlxk_readers_look(struct dlxk_readers *readers, uint64_t now_ns)
{
    if (readers->n == 0 || now_ns < readers->next_look_ns)
        return;
    readers_look(readers, &readers->served, now_ns);
    readers_look(readers, &readers->waiting, now_ns);
    admit(readers);
    readers->next_look_ns = now_ns + LOOK_NS;
}

void dlxk_readers_deinit(struct dlxk_readers *readers)
{
    dlx_for_each (it, &readers->served)
        free_reader(readers, dlxd_container_of(it, struct dlxk_reader, node));
    dlx_for_each (it, &readers->waiting)
        free_reader(readers, dlxd_container_of(it, struct dlxk_reader, node));
}
