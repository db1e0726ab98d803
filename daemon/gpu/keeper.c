/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/gpu/keeper.h"
#include "common/error.h"
#include "daemon/base/log.h"
#include "daemon/base/watch.h"
#include "daemon/base/worker.h"
#include "daemon/gpu/start.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

/* The limit for a call, including the start of the keeper. */
#define CALL_NS UINT64_C(5000000000)
/* The pause after a failed start. */
#define PAUSE_NS UINT64_C(1000000000)
/* How many keepers may end during one call. */
#define TRIES_MAX 3U
#define SNDBUF    (32 * 1024)
/* With more origins that it has yet to forget, the keeper does not read. */
#define LEAVING_MAX 65536U

enum state { STATE_NONE, STATE_STARTING, STATE_CONNECTED, STATE_CLOSED };

/* The job that starts the keeper. It may outlive the connection. */
struct start_job {
    struct dlxd_gpu_keeper *keeper; /* NULL: closed */
    struct dlxd_gpu_start start;
};

struct dlxd_gpu_keeper {
    struct dlxd_watches *watches;
    struct dlxd_workers *workers;
    enum state state;
    char socket[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* "": no path for it */
    uint32_t n_sent_max; /* calls whose answer has a descriptor */
    uint32_t n_sent;
    int fd;
    struct dlxd_watch *watch;
    bool is_claimed; /* CLAIMED was sent */
    struct start_job *job;
    struct dlxd_gpu_origins origins;
    struct dlxd_list calls; /* in order */
    uint32_t serial;
    uint64_t next_start_ns;
    int fail_code; /* of the last start */
    char fail_text[DLX_ERROR_TEXT_SIZE];
};

/*
 *   WAITING --(there is room)--> SENT --(answered)--> (freed)
 *      ^                          |
 *      |                          +--(cancelled)--> ABANDONED
 *      +--(to free what was made)-----------------------+
 */
enum call_state { CALL_WAITING, CALL_SENT, CALL_ABANDONED };

struct dlxd_gpu_call {
    struct dlxd_list node;
    struct dlxd_gpu_keeper *keeper;
    enum call_state state;
    struct dlx_keeper_packet request;
    uint8_t device[DLX_KEEPER_DEVICE_SIZE]; /* body of ALLOCATE */
    int borrow_pidfd;                       /* of ALLOCATE, while WAITING */
    struct dlxd_charge charge;
    struct dlxd_charge bytes; /* that are being made */
    uint32_t n_tries;
    uint64_t deadline_ns;
    dlxd_gpu_call_fn *fn; /* NULL: no request waits for the call */
    void *owner;
};

static void keeper_go_on(struct dlxd_gpu_keeper *keeper);

/* ---- calls ----------------------------------------------------------------------------------- */

static void free_call(struct dlxd_gpu_call *call)
{
    call->keeper->n_sent -= call->state != CALL_WAITING;
    dlxd_list_remove(&call->node);
    dlxd_charge_deinit(&call->charge);
    dlxd_charge_deinit(&call->bytes);
    free(call);
}

/* The keeper is told what to free although no request waits for that any more. */
struct dlxd_gpu_call *dlxd_gpu_call_free(struct dlxd_gpu_call *call)
{
    bool is_sent = call && call->state == CALL_SENT;
    if (call && (call->request.kind == DLX_KEEPER_FREE ||
                 (is_sent && call->request.kind == DLX_KEEPER_ALLOCATE))) {
        call->state = is_sent ? CALL_ABANDONED : CALL_WAITING;
        call->fn = NULL;
        call->deadline_ns = UINT64_MAX;
    } else if (call) {
        free_call(call);
    }
    return NULL;
}

static void keeper_finish(struct dlxd_gpu_call *call, int code, const char *text,
                          const struct dlxd_gpu_answer *answer)
{
    dlxd_gpu_call_fn *fn = call->fn;
    void *owner = call->owner;
    free_call(call);
    if (fn)
        fn(owner, code, text, answer);
}

static void finish_late(struct dlxd_gpu_call *call)
{
    dlxd_gpu_call_fn *fn = call->fn;
    void *owner = call->owner;
    (void)dlxd_gpu_call_free(call);
    if (fn)
        fn(owner, DLX_E_TIMEOUT,
           "the GPU keeper did not answer within 5 s; where it has yet to open the GPU, another "
           "try may find it open",
           NULL);
}

/* A callback may begin another call, which goes to the end of the list. */
static void fail_all(struct dlxd_gpu_keeper *keeper, int code, const char *text)
{
    struct dlxd_list failed;
    dlxd_list_init(&failed);
    dlx_for_each (it, &keeper->calls) {
        dlxd_list_remove(it);
        dlxd_list_push_back(&failed, it);
    }
    while (!dlxd_list_empty(&failed))
        keeper_finish(dlxd_container_of(failed.next, struct dlxd_gpu_call, node), code, text, NULL);
}

/* ---- the connection -------------------------------------------------------------------------- */

static void disconnect(struct dlxd_gpu_keeper *keeper)
{
    keeper->watch = dlxd_watch_free(keeper->watch);
    keeper->fd = dlx__close(keeper->fd);
    keeper->is_claimed = false;
    dlxd_gpu_origins_reset(&keeper->origins);
    if (keeper->state == STATE_CONNECTED)
        keeper->state = STATE_NONE;
}

/* The keeper has ended or misbehaved: unanswered calls are for the next one. */
static void lose(struct dlxd_gpu_keeper *keeper, const char *why)
{
    dlxd_log(DLXD_LOG_NOTICE, "lost the GPU keeper at %s, and all that it had: %s", keeper->socket,
             why);
    disconnect(keeper);
    dlx_for_each (it, &keeper->calls) {
        struct dlxd_gpu_call *call = dlxd_container_of(it, struct dlxd_gpu_call, node);
        keeper->n_sent -= call->state != CALL_WAITING;
        bool is_wanted = call->state != CALL_ABANDONED && call->n_tries < TRIES_MAX;
        call->state = CALL_WAITING;
        if (!is_wanted)
            keeper_finish(call, DLX_E_DISCONNECTED, "the GPU keeper ended when it was asked", NULL);
    }
    keeper_go_on(keeper);
}

/* Returns false if there is no room or the keeper is lost. */
static bool send_packet(struct dlxd_gpu_keeper *keeper, const struct dlx_keeper_packet *packet,
                        const int *borrow_fd)
{
    int r = dlx__keeper_send(keeper->fd, packet, borrow_fd, borrow_fd ? 1 : 0);
    if (r == 0)
        return true;
    if (r != DLX_E_FULL && r != DLX_E_NO_MEMORY)
        (void)shutdown(keeper->fd, SHUT_RDWR); /* the watch reports it */
    return false;
}

static bool send_claims(struct dlxd_gpu_keeper *keeper)
{
    uint8_t body[DLX_KEEPER_CLAIMS_MAX * DLX_KEEPER_CLAIM_SIZE];
    struct dlxd_gpu_origin *batch[DLX_KEEPER_CLAIMS_MAX];
    struct dlxd_list *list = &keeper->origins.lists[DLXD_GPU_UNTOLD];
    while (!dlxd_list_empty(list)) {
        size_t n = 0;
        for (struct dlxd_list *it = list->next; it != list && n < DLX_KEEPER_CLAIMS_MAX;
             it = it->next) {
            batch[n] = dlxd_container_of(it, struct dlxd_gpu_origin, node);
            dlx__keeper_put_claim(body + n * DLX_KEEPER_CLAIM_SIZE, batch[n]->by_origin.id,
                                  batch[n]->user);
            n++;
        }
        const struct dlx_keeper_packet claim = {
            .kind = DLX_KEEPER_CLAIM, .body = body, .body_size = n * DLX_KEEPER_CLAIM_SIZE};
        if (!send_packet(keeper, &claim, NULL))
            return false;
        for (size_t i = 0; i < n; i++)
            dlxd_gpu_origins_told(&keeper->origins, batch[i]);
    }
    const struct dlx_keeper_packet claimed = {.kind = DLX_KEEPER_CLAIMED};
    if (!keeper->is_claimed)
        keeper->is_claimed = send_packet(keeper, &claimed, NULL);
    return keeper->is_claimed;
}

static bool send_forgets(struct dlxd_gpu_keeper *keeper)
{
    struct dlxd_gpu_origin *origin;
    while ((origin = dlxd_gpu_origins_first(&keeper->origins, DLXD_GPU_LEAVING))) {
        const struct dlx_keeper_packet forget = {
            .kind = DLX_KEEPER_FORGET, .origin = origin->by_origin.id, .user = origin->user};
        if (!send_packet(keeper, &forget, NULL))
            return false;
        dlxd_gpu_origins_told(&keeper->origins, origin);
    }
    return true;
}

/* Returns false if there is no room. */
static bool send_call(struct dlxd_gpu_call *call)
{
    struct dlxd_gpu_keeper *keeper = call->keeper;
    bool is_answered = call->request.kind != DLX_KEEPER_FREE;
    bool has_pidfd = call->request.kind == DLX_KEEPER_ALLOCATE;
    if (is_answered && keeper->n_sent >= keeper->n_sent_max)
        return false;
    if (!send_packet(keeper, &call->request, has_pidfd ? &call->borrow_pidfd : NULL))
        return false;
    if (!is_answered) {
        keeper_finish(call, 0, "", NULL);
        return true;
    }
    call->state = CALL_SENT;
    call->n_tries++;
    keeper->n_sent++;
    return true;
}

static struct dlxd_gpu_call *next_call(const struct dlxd_gpu_keeper *keeper)
{
    for (struct dlxd_list *it = keeper->calls.next; it != &keeper->calls; it = it->next) {
        struct dlxd_gpu_call *call = dlxd_container_of(it, struct dlxd_gpu_call, node);
        if (call->state == CALL_WAITING)
            return call;
    }
    return NULL;
}

static void keeper_flush(struct dlxd_gpu_keeper *keeper)
{
    struct dlxd_gpu_call *call;
    bool has_room = send_claims(keeper) && send_forgets(keeper);
    while (has_room && (call = next_call(keeper)))
        has_room = send_call(call);
    bool waits = !has_room && keeper->n_sent < keeper->n_sent_max;
    dlxd_watch_set(keeper->watch, DLXD_READABLE | (waits ? DLXD_WRITABLE : 0));
}

static struct dlxd_gpu_call *find_call(const struct dlxd_gpu_keeper *keeper, uint32_t serial)
{
    for (struct dlxd_list *it = keeper->calls.next; it != &keeper->calls; it = it->next) {
        struct dlxd_gpu_call *call = dlxd_container_of(it, struct dlxd_gpu_call, node);
        if (call->state != CALL_WAITING && call->request.serial == serial)
            return call;
    }
    return NULL;
}

/* The keeper made memory, and the publisher has given up. */
static void free_abandoned(struct dlxd_gpu_call *call)
{
    call->keeper->n_sent--;
    call->state = CALL_WAITING;
    call->request = (struct dlx_keeper_packet){.kind = DLX_KEEPER_FREE,
                                               .origin = call->request.origin,
                                               .allocation = call->request.allocation,
                                               .user = call->request.user};
    dlxd_charge_deinit(&call->bytes);
}

static void on_kept(struct dlxd_gpu_keeper *keeper, const struct dlx_keeper_packet *kept)
{
    struct dlxd_gpu_origin *origin =
        dlxd_gpu_origins_find(&keeper->origins, (struct dlxd_gpu_whose){kept->origin, kept->user});
    if (origin)
        dlxd_charge_set(&origin->bytes, kept->number);
}

static void on_answer(struct dlxd_gpu_keeper *keeper, const struct dlx_packet *packet,
                      const struct dlx_keeper_packet *said)
{
    struct dlxd_gpu_call *call = find_call(keeper, said->serial);
    if (!call)
        return;
    if (said->kind == DLX_KEEPER_REFUSAL) {
        char text[DLX_ERROR_TEXT_SIZE];
        int r = dlx__keeper_fail(said);
        (void)snprintf(text, sizeof text, "%s", dlx__error_message());
        keeper_finish(call, r, text, NULL);
    } else if (call->state == CALL_ABANDONED) {
        free_abandoned(call);
    } else if (packet->fds[0] < 0) {
        dlxd_gpu_call_fn *fn = call->fn;
        void *owner = call->owner;
        (void)dlxd_gpu_call_free(call);
        if ((call = find_call(keeper, said->serial)))
            free_abandoned(call);
        fn(owner, DLX_E_FD_LIMIT, "dlpackd has no file descriptor left for GPU memory", NULL);
    } else {
        const struct dlxd_gpu_answer answer = {said->body, said->body_size, said->number,
                                               packet->fds[0]};
        keeper_finish(call, 0, "", &answer);
    }
}

static void keeper_on_events(void *data, int events)
{
    static struct dlx_packet packet; /* only the loop's thread calls this */
    struct dlxd_gpu_keeper *keeper = data;
    struct dlx_keeper_packet said;
    (void)events;
    int r = dlx__packet_recv_fds(keeper->fd, &packet);
    if (r == DLX_E_FD_LIMIT) { /* the memory alone is not here */
        (void)dlx__packet_drop(keeper->fd);
        packet.n_fds = 1;
        packet.fds[0] = -1;
        r = 0;
    }
    bool is_here = r == 0;
    if (r == 0)
        r = dlx__keeper_decode(&packet, &said);
    if (r == 0 && said.kind == DLX_KEEPER_KEPT)
        on_kept(keeper, &said);
    else if (r == 0 && (said.kind == DLX_KEEPER_MEMORY || said.kind == DLX_KEEPER_REFUSAL))
        on_answer(keeper, &packet, &said);
    else if (r == 0)
        r = dlx__fail(DLX_E_PROTOCOL, "it says what only others say");
    if (is_here)
        dlx__packet_deinit(&packet);
    if (r < 0 && r != DLX_E_EMPTY)
        lose(keeper, r == DLX_E_DISCONNECTED ? "it has ended" : dlx__error_message());
    else if (keeper->state == STATE_CONNECTED)
        keeper_flush(keeper);
}

static int check_peer(int sock, const char *path)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return dlx__fail_errno("who listens on %s", path);
    if (peer.uid != geteuid() && peer.uid != 0)
        return dlx__fail(DLX_E_ACCESS, "%s is served by uid %u: it is no GPU keeper of dlpackd",
                         path, (unsigned)peer.uid);
    return 0;
}

/* Returns DLX_E_NO_DAEMON if nobody listens. */
static int try_to_connect(struct dlxd_gpu_keeper *keeper)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int size = SNDBUF;
    dlx_cleanup(dlx__closep) int fd =
        socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return dlx__fail_errno("socket to the GPU keeper");
    memcpy(address.sun_path, keeper->socket, sizeof address.sun_path);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) < 0) {
        int r = dlx__fail_errno("the GPU keeper at %s", keeper->socket);
        return errno == ENOENT || errno == ECONNREFUSED ? DLX_E_NO_DAEMON : r;
    }
    int r = check_peer(fd, keeper->socket);
    if (r == 0)
        r = dlxd_watch_new(&keeper->watch, keeper->watches, fd, DLXD_READABLE, keeper_on_events,
                           keeper);
    if (r < 0)
        return r;
    keeper->fd = dlx__steal_fd(&fd);
    keeper->state = STATE_CONNECTED;
    return 0;
}

/* ---- start ----------------------------------------------------------------------------------- */

static void fail_start(struct dlxd_gpu_keeper *keeper, int code, const char *text)
{
    keeper->state = STATE_NONE;
    keeper->next_start_ns = dlx__now_ns() + PAUSE_NS;
    keeper->fail_code = code;
    (void)snprintf(keeper->fail_text, sizeof keeper->fail_text, "%s", text);
    dlxd_log(DLXD_LOG_WARNING, "no GPU keeper: %s", keeper->fail_text);
    fail_all(keeper, code, keeper->fail_text);
}

/* Runs on a worker. */
static void run_start(void *data)
{
    struct start_job *job = data;
    dlxd_gpu_start_run(&job->start);
}

static void on_started(void *data)
{
    struct start_job *job = data;
    struct dlxd_gpu_keeper *keeper = job->keeper;
    if (keeper) {
        keeper->job = NULL;
        keeper->state = STATE_NONE;
        int r = job->start.code == 0 ? try_to_connect(keeper)
                                     : dlx__fail(job->start.code, "%s", job->start.text);
        if (r < 0)
            fail_start(keeper, r, dlx__error_message());
        else
            keeper_flush(keeper);
    }
    dlxd_gpu_start_deinit(&job->start);
    free(job);
}

static int keeper_start(struct dlxd_gpu_keeper *keeper)
{
    struct start_job *job = calloc(1, sizeof *job);
    if (!job)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for the start of the GPU keeper");
    job->keeper = keeper;
    int r = dlxd_gpu_start_init(&job->start, keeper->socket);
    if (r == 0)
        r = dlxd_workers_run(keeper->workers, NULL, run_start, on_started, job);
    if (r < 0) {
        dlxd_gpu_start_deinit(&job->start);
        free(job);
        return r;
    }
    keeper->job = job;
    keeper->state = STATE_STARTING;
    return 0;
}

/* There is no keeper, so it has nothing. */
static void finish_without(struct dlxd_gpu_keeper *keeper)
{
    struct dlxd_list calls;
    dlxd_list_init(&calls);
    dlx_for_each (it, &keeper->calls) {
        if (dlxd_container_of(it, struct dlxd_gpu_call, node)->request.kind == DLX_KEEPER_ALLOCATE)
            continue;
        dlxd_list_remove(it);
        dlxd_list_push_back(&calls, it);
    }
    while (!dlxd_list_empty(&calls)) {
        struct dlxd_gpu_call *call = dlxd_container_of(calls.next, struct dlxd_gpu_call, node);
        bool is_get = call->request.kind == DLX_KEEPER_GET;
        keeper_finish(call, is_get ? DLX_E_NOT_FOUND : 0, "there is no GPU keeper", NULL);
    }
}

/* A call waits for a keeper, or there is something to claim. An allocation starts one. */
static void keeper_go_on(struct dlxd_gpu_keeper *keeper)
{
    if (keeper->state == STATE_NONE && keeper->socket[0]) {
        int r = try_to_connect(keeper);
        if (r == DLX_E_NO_DAEMON) {
            finish_without(keeper);
            r = dlxd_list_empty(&keeper->calls) ? 0 : keeper_start(keeper);
        }
        if (r < 0)
            fail_start(keeper, r, dlx__error_message());
    }
    if (keeper->state == STATE_CONNECTED)
        keeper_flush(keeper);
}

/* ---- what publishers and readers want -------------------------------------------------------- */

static int keeper_check(const struct dlxd_gpu_keeper *keeper)
{
    if (!keeper || keeper->state == STATE_CLOSED || !keeper->socket[0])
        return dlx__fail(DLX_E_NO_DAEMON, "this dlpackd has no GPU keeper");
    if (keeper->state == STATE_NONE && dlx__now_ns() < keeper->next_start_ns)
        return dlx__fail(keeper->fail_code, "%s", keeper->fail_text);
    return 0;
}

static struct dlxd_gpu_call *new_call(struct dlxd_gpu_keeper *keeper, enum dlx_keeper_kind kind,
                                      struct dlxd_gpu_whose whose, uint64_t allocation,
                                      dlxd_gpu_call_fn *fn, void *owner)
{
    struct dlxd_gpu_call *call = calloc(1, sizeof *call);
    if (!call) {
        (void)dlx__fail(DLX_E_NO_MEMORY, "out of memory for a call to the GPU keeper");
        return NULL;
    }
    *call = (struct dlxd_gpu_call){.keeper = keeper,
                                   .request = {.kind = kind,
                                               .origin = whose.origin,
                                               .allocation = allocation,
                                               .user = whose.user},
                                   .borrow_pidfd = -1,
                                   .deadline_ns = dlx__now_ns() + CALL_NS,
                                   .fn = fn,
                                   .owner = owner};
    if (kind != DLX_KEEPER_FREE)
        call->request.serial = keeper->serial =
            keeper->serial == UINT32_MAX ? 1 : keeper->serial + 1;
    dlxd_list_init(&call->node);
    return call;
}

static void begin(struct dlxd_gpu_call **ret, struct dlxd_gpu_call *call)
{
    dlxd_list_push_back(&call->keeper->calls, &call->node);
    *ret = call; /* before the call may be over */
    keeper_go_on(call->keeper);
}

int dlxd_gpu_call_allocate(struct dlxd_gpu_call **ret, struct dlxd_gpu_keeper *keeper,
                           struct dlxd_user *user, struct dlxd_gpu_member *member,
                           const struct dlxd_gpu_request *request, dlxd_gpu_call_fn *fn,
                           void *owner)
{
    int r = keeper_check(keeper);
    if (r == 0)
        r = dlxd_gpu_origins_join(&keeper->origins, member, request->whose, user);
    if (r < 0)
        return r;
    struct dlxd_gpu_call *call =
        new_call(keeper, DLX_KEEPER_ALLOCATE, request->whose, request->allocation, fn, owner);
    if (!call)
        return DLX_E_NO_MEMORY;
    dlx__keeper_put_device(call->device, &request->device);
    call->request.number = request->size;
    call->request.body = call->device;
    call->request.body_size = sizeof call->device;
    call->borrow_pidfd = request->borrow_pidfd;
    r = dlxd_charge_init(&call->charge, user, DLXD_GPU_CALLS, 1);
    if (r == 0)
        r = dlxd_charge_init(&call->bytes, user, DLXD_GPU_BYTES, request->size);
    if (r < 0) {
        free_call(call);
        return r;
    }
    begin(ret, call);
    return 0;
}

int dlxd_gpu_call_get(struct dlxd_gpu_call **ret, struct dlxd_gpu_keeper *keeper,
                      struct dlxd_user *user, struct dlxd_gpu_whose whose, uint64_t allocation,
                      dlxd_gpu_call_fn *fn, void *owner)
{
    int r = keeper_check(keeper);
    if (r < 0) {
        fn(owner, DLX_E_NOT_FOUND, dlx__error_message(), NULL);
        return 0;
    }
    struct dlxd_gpu_call *call = new_call(keeper, DLX_KEEPER_GET, whose, allocation, fn, owner);
    if (!call)
        return DLX_E_NO_MEMORY;
    r = dlxd_charge_init(&call->charge, user, DLXD_GPU_CALLS, 1);
    if (r < 0) {
        free_call(call);
        return r;
    }
    begin(ret, call);
    return 0;
}

int dlxd_gpu_call_drop(struct dlxd_gpu_call **ret, struct dlxd_gpu_keeper *keeper,
                       struct dlxd_user *user, struct dlxd_gpu_whose whose, uint64_t allocation,
                       dlxd_gpu_call_fn *fn, void *owner)
{
    if (keeper_check(keeper) < 0) {
        dlx__error_clear();
        if (fn)
            fn(owner, 0, "", NULL);
        return 0;
    }
    struct dlxd_gpu_call *call = new_call(keeper, DLX_KEEPER_FREE, whose, allocation, fn, owner);
    if (!call)
        return DLX_E_NO_MEMORY;
    dlxd_charge_restore(&call->charge, user, DLXD_GPU_CALLS, 1);
    begin(ret, call);
    return 0;
}

void dlxd_gpu_keeper_join(struct dlxd_gpu_keeper *keeper, struct dlxd_gpu_member *member,
                          struct dlxd_gpu_whose whose, struct dlxd_user *payer)
{
    if (keeper && keeper->state != STATE_CLOSED)
        (void)dlxd_gpu_origins_join(&keeper->origins, member, whose, payer);
}

void dlxd_gpu_keeper_claim(struct dlxd_gpu_keeper *keeper)
{
    if (keeper && dlxd_gpu_origins_first(&keeper->origins, DLXD_GPU_UNTOLD))
        keeper_go_on(keeper);
}

void dlxd_gpu_keeper_leave(struct dlxd_gpu_keeper *keeper, struct dlxd_gpu_member *member)
{
    if (!keeper || !member->origin)
        return;
    dlxd_gpu_origins_leave(&keeper->origins, member);
    if (keeper->state == STATE_CONNECTED && keeper->origins.n_leaving > LEAVING_MAX)
        (void)shutdown(keeper->fd, SHUT_RDWR);
    else if (keeper->state == STATE_CONNECTED)
        keeper_flush(keeper);
}

struct dlxd_gpu_member *dlxd_gpu_keeper_find(const struct dlxd_gpu_keeper *keeper,
                                             struct dlxd_gpu_whose whose)
{
    const struct dlxd_gpu_origin *found =
        keeper ? dlxd_gpu_origins_find(&keeper->origins, whose) : NULL;
    if (!found || dlxd_list_empty(&found->publishers))
        return NULL;
    return dlxd_container_of(found->publishers.next, struct dlxd_gpu_member, node);
}

bool dlxd_gpu_keeper_is_starting(const struct dlxd_gpu_keeper *keeper)
{
    return keeper && keeper->state == STATE_STARTING;
}

/* ---- time and life --------------------------------------------------------------------------- */

/* Calls for which requests wait are in the order of their deadlines. */
static struct dlxd_gpu_call *first_awaited(const struct dlxd_gpu_keeper *keeper)
{
    for (struct dlxd_list *it = keeper->calls.next; it != &keeper->calls; it = it->next) {
        struct dlxd_gpu_call *call = dlxd_container_of(it, struct dlxd_gpu_call, node);
        if (call->fn)
            return call;
    }
    return NULL;
}

uint64_t dlxd_gpu_keeper_next_ns(const struct dlxd_gpu_keeper *keeper)
{
    const struct dlxd_gpu_call *call = keeper ? first_awaited(keeper) : NULL;
    return call ? call->deadline_ns : UINT64_MAX;
}

void dlxd_gpu_keeper_look(struct dlxd_gpu_keeper *keeper, uint64_t now_ns)
{
    while (dlxd_gpu_keeper_next_ns(keeper) <= now_ns)
        finish_late(first_awaited(keeper));
}

int dlxd_gpu_keeper_new(struct dlxd_gpu_keeper **ret, struct dlxd_watches *watches,
                        struct dlxd_workers *workers, const char *daemon_socket,
                        uint32_t n_in_flight)
{
    struct dlxd_gpu_keeper *keeper = calloc(1, sizeof *keeper);
    if (!keeper)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for the GPU keeper");
    keeper->watches = watches;
    keeper->workers = workers;
    keeper->n_sent_max = DLX_MAX(n_in_flight / 2, 1U);
    keeper->fd = -1;
    dlxd_list_init(&keeper->calls);
    dlxd_gpu_origins_init(&keeper->origins);
    int n = snprintf(keeper->socket, sizeof keeper->socket, "%s" DLX_KEEPER_SUFFIX, daemon_socket);
    if (n >= (int)sizeof keeper->socket) {
        keeper->socket[0] = '\0';
        dlxd_log(DLXD_LOG_WARNING,
                 "tensors on GPUs do not outlive their publishers: the path of the socket, and "
                 "%s after it, is longer than a socket may have",
                 DLX_KEEPER_SUFFIX);
    }
    *ret = keeper;
    return 0;
}

void dlxd_gpu_keeper_close(struct dlxd_gpu_keeper *keeper)
{
    if (!keeper || keeper->state == STATE_CLOSED)
        return;
    if (keeper->job)
        keeper->job->keeper = NULL;
    keeper->job = NULL;
    disconnect(keeper);
    keeper->state = STATE_CLOSED;
    fail_all(keeper, DLX_E_DISCONNECTED, "dlpackd is stopping");
}

struct dlxd_gpu_keeper *dlxd_gpu_keeper_free(struct dlxd_gpu_keeper *keeper)
{
    if (!keeper)
        return NULL;
    dlxd_gpu_keeper_close(keeper);
    dlxd_gpu_origins_deinit(&keeper->origins);
    free(keeper);
    return NULL;
}
