/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/persist/store_queue.h"
#include "common/error.h"
#include "common/util.h"
#include "daemon/persist/notify.h"
#include "daemon/users/user.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* systemd 252 takes about 50 us for a message, and 1 us for each descriptor that it stores. */
#define SHARE_OF_MANAGER 5U
#define NOTE_NS          UINT64_C(50000)
#define NOTE_FD_NS       UINT64_C(1000)
/* 1 s of the manager's time: nearly a store of 1,000 descriptors at once. */
#define BURST_NS UINT64_C(5000000000)

#define NAME_MAX_SIZE 256 /* limit of systemd's names */

enum note_kind { NOTE_KEEP, NOTE_DROP, NOTE_BARRIER };

struct note {
    struct dlxd_list node;
    enum note_kind kind;
    int fd; /* -1: none */
    char name[];
};

struct user {
    struct dlxd_list node; /* in queue->users */
    struct dlxd_list turn; /* in queue->turns, or in no list */
    struct dlxd_list notes;
    struct dlxd_charge charge; /* for its part of queue->n_fds, and the fds of notes */
};

static void note_free(struct dlxd_store_queue *queue, struct user *user, struct note *note)
{
    dlxd_list_remove(&note->node);
    queue->n--;
    if (note->fd >= 0)
        dlxd_charge_close_descriptor(&user->charge);
    dlx__close(note->fd);
    free(note);
}

/* ---- users --------------------------------------------------------------------------------- */

static struct user *store_queue_find_user(const struct dlxd_store_queue *queue,
                                          const struct dlxd_user *whose)
{
    dlx_for_each (it, &queue->users) {
        struct user *user = dlxd_container_of(it, struct user, node);
        if (user->charge.user == whose)
            return user;
    }
    return NULL;
}

static struct user *get_user(struct dlxd_store_queue *queue, struct dlxd_user *whose)
{
    struct user *user = store_queue_find_user(queue, whose);
    if (user)
        return user;
    user = calloc(1, sizeof *user);
    if (!user) {
        (void)dlx__fail(DLX_E_NO_MEMORY, "out of memory for what the service manager keeps");
        return NULL;
    }
    dlxd_charge_restore(&user->charge, whose, DLXD_STORE_ENTRIES, 0);
    dlxd_list_init(&user->turn);
    dlxd_list_init(&user->notes);
    dlxd_list_push_back(&queue->users, &user->node);
    return user;
}

/* Frees the user's entry when nothing of it is left. */
static void put_user(struct user *user)
{
    if (user->charge.amount > 0 || !dlxd_list_empty(&user->notes))
        return;
    dlxd_charge_deinit(&user->charge);
    dlxd_list_remove(&user->turn);
    dlxd_list_remove(&user->node);
    free(user);
}

static void store_queue_count(struct dlxd_store_queue *queue, struct user *user, int32_t n)
{
    dlxd_charge_set(&user->charge, user->charge.amount + (uint64_t)(int64_t)n);
    queue->n_fds += (uint32_t)n;
}

/* ---- life ---------------------------------------------------------------------------------- */

void dlxd_store_queue_init(struct dlxd_store_queue *queue)
{
    *queue = (struct dlxd_store_queue){.n = 0};
    dlxd_list_init(&queue->users);
    dlxd_list_init(&queue->turns);
}

void dlxd_store_queue_deinit(struct dlxd_store_queue *queue)
{
    dlx_for_each (it, &queue->users) {
        struct user *user = dlxd_container_of(it, struct user, node);
        dlx_for_each (note, &user->notes)
            note_free(queue, user, dlxd_container_of(note, struct note, node));
        store_queue_count(queue, user, -(int32_t)user->charge.amount);
        put_user(user);
    }
}

int dlxd_store_queue_count(struct dlxd_store_queue *queue, struct dlxd_user *whose, int32_t n)
{
    struct user *user = get_user(queue, whose);
    if (!user)
        return DLX_E_NO_MEMORY;
    store_queue_count(queue, user, n);
    put_user(user);
    return 0;
}

/* ---- posting ------------------------------------------------------------------------------- */

static int post(struct dlxd_store_queue *queue, struct user *user, enum note_kind kind,
                int borrow_fd, const char *name)
{
    size_t size = strlen(name) + 1;
    struct note *note = malloc(sizeof *note + size);
    if (!note)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a message to the service manager");
    note->kind = kind;
    note->fd = borrow_fd < 0 ? -1 : fcntl(borrow_fd, F_DUPFD_CLOEXEC, 0);
    if (borrow_fd >= 0 && note->fd < 0) {
        free(note);
        return dlx__fail_errno("descriptor for the service manager");
    }
    if (note->fd >= 0)
        dlxd_charge_add_descriptor(&user->charge);
    memcpy(note->name, name, size);
    dlxd_list_push_back(&user->notes, &note->node);
    queue->n++;
    if (!dlxd_list_linked(&user->turn))
        dlxd_list_push_back(&queue->turns, &user->turn);
    return 0;
}

int dlxd_store_queue_keep(struct dlxd_store_queue *queue, struct dlxd_user *whose, int borrow_fd,
                          const char *name)
{
    struct user *user = get_user(queue, whose);
    if (!user)
        return DLX_E_NO_MEMORY;
    int r = post(queue, user, NOTE_KEEP, borrow_fd, name);
    if (r == 0)
        store_queue_count(queue, user, 1);
    put_user(user);
    return r;
}

/* Scans from the newest message: a client that floods the queue drops what it posted last. */
static struct note *find_unsent(const struct user *user, const char *name)
{
    for (struct dlxd_list *it = user->notes.prev; it != &user->notes; it = it->prev) {
        struct note *note = dlxd_container_of(it, struct note, node);
        if (note->kind == NOTE_KEEP && strcmp(note->name, name) == 0)
            return note;
    }
    return NULL;
}

int dlxd_store_queue_drop(struct dlxd_store_queue *queue, struct dlxd_user *whose, const char *name)
{
    struct user *user = get_user(queue, whose);
    if (!user)
        return DLX_E_NO_MEMORY;
    struct note *unsent = find_unsent(user, name);
    int r = 0;
    if (unsent) {
        note_free(queue, user, unsent);
        store_queue_count(queue, user, -1);
        if (dlxd_list_empty(&user->notes))
            dlxd_list_remove(&user->turn);
    } else {
        r = post(queue, user, NOTE_DROP, -1, name);
    }
    put_user(user);
    return r;
}

int dlxd_store_queue_barrier(struct dlxd_store_queue *queue, struct dlxd_user *whose, int borrow_fd)
{
    struct user *user = get_user(queue, whose);
    if (!user)
        return DLX_E_NO_MEMORY;
    int r = post(queue, user, NOTE_BARRIER, borrow_fd, "");
    put_user(user);
    return r;
}

bool dlxd_store_queue_is_unsent(const struct dlxd_store_queue *queue, const struct dlxd_user *whose,
                                const char *name)
{
    const struct user *user = store_queue_find_user(queue, whose);
    return user && find_unsent(user, name);
}

int dlxd_store_queue_each_drop(const struct dlxd_store_queue *queue,
                               int (*fn)(void *data, const char *name), void *data)
{
    int r = 0;
    dlx_for_each (it, &queue->users) {
        const struct user *user = dlxd_container_of(it, struct user, node);
        dlx_for_each (each, &user->notes) {
            const struct note *note = dlxd_container_of(each, struct note, node);
            if (r == 0 && note->kind == NOTE_DROP)
                r = fn(data, note->name);
        }
    }
    return r;
}

/* ---- sending ------------------------------------------------------------------------------- */

static int send_note(const struct note *note)
{
    static const char *const words[] = {
        [NOTE_KEEP] = "FDSTORE=1\nFDPOLL=0\nFDNAME=",
        [NOTE_DROP] = "FDSTOREREMOVE=1\nFDNAME=",
        [NOTE_BARRIER] = "BARRIER=1",
    };
    char text[64 + NAME_MAX_SIZE];
    (void)snprintf(text, sizeof text, "%s%s", words[note->kind], note->name);
    return dlxd_notify(text, note->fd);
}

static bool may_send(const struct dlxd_store_queue *queue, uint64_t now)
{
    return now == UINT64_MAX || queue->paid_until_ns <= now + BURST_NS;
}

static void pay(struct dlxd_store_queue *queue, uint64_t now)
{
    if (now != UINT64_MAX)
        queue->paid_until_ns = DLX_MAX(queue->paid_until_ns, now) +
                               SHARE_OF_MANAGER * (NOTE_NS + NOTE_FD_NS * queue->n_fds);
}

int dlxd_store_queue_flush(struct dlxd_store_queue *queue, uint64_t now)
{
    while (!dlxd_list_empty(&queue->turns) && may_send(queue, now)) {
        struct user *user = dlxd_container_of(queue->turns.next, struct user, turn);
        struct note *note = dlxd_container_of(user->notes.next, struct note, node);
        int r = send_note(note);
        if (r < 0)
            return r == DLX_E_FULL ? 0 : r;
        pay(queue, now);
        if (note->kind == NOTE_DROP)
            store_queue_count(queue, user, -1);
        note_free(queue, user, note);
        dlxd_list_remove(&user->turn);
        if (!dlxd_list_empty(&user->notes))
            dlxd_list_push_back(&queue->turns, &user->turn);
        put_user(user);
    }
    return 0;
}
