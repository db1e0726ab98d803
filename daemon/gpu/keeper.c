/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/gpu/keeper.h"
#include "common/error.h"
#include "daemon/base/log.h"
#include "daemon/base/watch.h"
#include "daemon/base/worker.h"
#include "daemon/gpu/start.h"
#include "keeper/wire.h"
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
/* Packets queued for the keeper take about 1.5 KiB each; their sockets count as the daemon's. */
#define SNDBUF (32 * 1024)
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
    uint32_t n_in_flight;
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

struct dlxd_gpu_call {
    struct dlxd_list node;
    struct dlxd_gpu_keeper *keeper;
    struct dlx_keeper_packet request;
    struct dlxd_charge charge;
    int ours;   /* the client's end */
    int theirs; /* the keeper's end */
    bool is_sent;
    uint32_t n_tries;
    uint64_t deadline_ns;
    dlxd_gpu_call_fn *fn;
    void *owner;
};

static void keeper_go_on(struct dlxd_gpu_keeper *keeper);

/* ---- calls ----------------------------------------------------------------------------------- */

static void keeper_finish(struct dlxd_gpu_call *call, int code, const char *text)
{
    dlxd_gpu_call_fn *fn = call->fn;
    void *owner = call->owner;
    int ours = code == 0 ? dlx__steal_fd(&call->ours) : -1;
    (void)dlxd_gpu_call_free(call);
    fn(owner, code, text, ours);
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
        keeper_finish(dlxd_container_of(failed.next, struct dlxd_gpu_call, node), code, text);
}

struct dlxd_gpu_call *dlxd_gpu_call_free(struct dlxd_gpu_call *call)
{
    if (!call)
        return NULL;
    dlxd_list_remove(&call->node);
    dlx__close(call->ours);
    dlx__close(call->theirs); /* nobody has had the other end */
    dlxd_charge_deinit(&call->charge);
    free(call);
    return NULL;
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
    dlxd_log(DLXD_LOG_NOTICE, "lost the GPU keeper at %s: %s", keeper->socket, why);
    disconnect(keeper);
    dlx_for_each (it, &keeper->calls) {
        struct dlxd_gpu_call *call = dlxd_container_of(it, struct dlxd_gpu_call, node);
        call->is_sent = false;
        if (call->n_tries >= TRIES_MAX)
            keeper_finish(call, DLX_E_DISCONNECTED, "the GPU keeper ended when it was asked");
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
    const struct dlx_keeper_packet claimed = {.kind = DLX_KEEPER_CLAIMED,
                                              .code = (int32_t)keeper->n_in_flight};
    if (!keeper->is_claimed)
        keeper->is_claimed = send_packet(keeper, &claimed, NULL);
    return keeper->is_claimed;
}

static bool send_forgets(struct dlxd_gpu_keeper *keeper)
{
    struct dlxd_gpu_origin *origin;
    while ((origin = dlxd_gpu_origins_first(&keeper->origins, DLXD_GPU_LEAVING))) {
        const struct dlx_keeper_packet forget = {.kind = DLX_KEEPER_FORGET,
                                                 .origin = origin->by_origin.id,
                                                 .uid = (uint32_t)origin->user,
                                                 .socket = (uint32_t)(origin->user >> 32)};
        if (!send_packet(keeper, &forget, NULL))
            return false;
        dlxd_gpu_origins_told(&keeper->origins, origin);
    }
    return true;
}

/* The reply to a GET goes to its reader alone. Returns false if there is no room. */
static bool send_call(struct dlxd_gpu_call *call)
{
    if (!send_packet(call->keeper, &call->request, &call->theirs))
        return false;
    call->is_sent = true;
    call->n_tries++;
    if (call->request.kind == DLX_KEEPER_GET)
        keeper_finish(call, 0, "");
    return true;
}

static struct dlxd_gpu_call *next_call(const struct dlxd_gpu_keeper *keeper)
{
    for (struct dlxd_list *it = keeper->calls.next; it != &keeper->calls; it = it->next) {
        struct dlxd_gpu_call *call = dlxd_container_of(it, struct dlxd_gpu_call, node);
        if (!call->is_sent)
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
    dlxd_watch_set(keeper->watch, DLXD_READABLE | (has_room ? 0 : DLXD_WRITABLE));
}

static struct dlxd_gpu_call *find_own(const struct dlxd_gpu_keeper *keeper, uint32_t serial)
{
    for (struct dlxd_list *it = keeper->calls.next; it != &keeper->calls; it = it->next) {
        struct dlxd_gpu_call *call = dlxd_container_of(it, struct dlxd_gpu_call, node);
        if (call->is_sent && call->request.serial == serial)
            return call;
    }
    return NULL;
}

static void keeper_on_events(void *data, int events)
{
    static struct dlx_packet packet; /* only the loop's thread calls this */
    struct dlxd_gpu_keeper *keeper = data;
    struct dlx_keeper_packet answer;
    (void)events;
    int r = dlx__packet_recv(keeper->fd, &packet);
    if (r == 0)
        r = dlx__keeper_decode(&packet, &answer);
    if (r == 0 && answer.kind != DLX_KEEPER_OWNED)
        r = dlx__fail(DLX_E_PROTOCOL, "it says what only others say");
    if (r < 0 && r != DLX_E_EMPTY) {
        lose(keeper, r == DLX_E_DISCONNECTED ? "it has ended" : dlx__error_message());
        return;
    }
    struct dlxd_gpu_call *call = r == 0 ? find_own(keeper, answer.serial) : NULL;
    if (call && (r = dlx__keeper_fail(&answer)) < 0) {
        char text[DLX_ERROR_TEXT_SIZE];
        (void)snprintf(text, sizeof text, "%s", dlx__error_message());
        keeper_finish(call, r, text);
    } else if (call) {
        keeper_finish(call, 0, "");
    }
    if (keeper->state == STATE_CONNECTED)
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
    dlx__packet_refuse_fds(fd);
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

/* A call waits for a keeper, or there is something to claim. */
static void keeper_go_on(struct dlxd_gpu_keeper *keeper)
{
    bool is_needed = !dlxd_list_empty(&keeper->calls);
    if (keeper->state == STATE_NONE && keeper->socket[0]) {
        int r = try_to_connect(keeper);
        if (r == DLX_E_NO_DAEMON && is_needed)
            r = keeper_start(keeper);
        if (r < 0 && is_needed)
            fail_start(keeper, r, dlx__error_message());
    }
    if (keeper->state == STATE_CONNECTED)
        keeper_flush(keeper);
}

/* ---- what publishers and readers want -------------------------------------------------------- */

static int new_sockets(struct dlxd_gpu_call *call)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return dlx__fail_errno("socket to the GPU keeper");
    call->ours = pair[0];
    call->theirs = pair[1];
    /* A reader sends nothing, so its socket is empty when the keeper closes it. */
    if (call->request.kind == DLX_KEEPER_GET && shutdown(call->theirs, SHUT_RD) < 0)
        return dlx__fail_errno("socket to the GPU keeper");
    return 0;
}

static int keeper_check(const struct dlxd_gpu_keeper *keeper)
{
    if (!keeper || keeper->state == STATE_CLOSED || !keeper->socket[0])
        return dlx__fail(DLX_E_NO_DAEMON, "this dlpackd has no GPU keeper");
    if (keeper->state == STATE_NONE && dlx__now_ns() < keeper->next_start_ns)
        return dlx__fail(keeper->fail_code, "%s", keeper->fail_text);
    return 0;
}

static int keeper_begin(struct dlxd_gpu_call **ret, struct dlxd_gpu_keeper *keeper,
                        struct dlxd_user *user, const struct dlx_keeper_packet *request,
                        dlxd_gpu_call_fn *fn, void *owner)
{
    struct dlxd_gpu_call *call = calloc(1, sizeof *call);
    if (!call)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a call to the GPU keeper");
    *call = (struct dlxd_gpu_call){.keeper = keeper,
                                   .request = *request,
                                   .ours = -1,
                                   .theirs = -1,
                                   .deadline_ns = dlx__now_ns() + CALL_NS,
                                   .fn = fn,
                                   .owner = owner};
    dlxd_list_init(&call->node);
    int r = dlxd_charge_init(&call->charge, user, DLXD_GPU_CALLS, 1);
    if (r == 0)
        r = new_sockets(call);
    if (r < 0) {
        (void)dlxd_gpu_call_free(call);
        return r;
    }
    dlxd_list_push_back(&keeper->calls, &call->node);
    *ret = call; /* before the call may be over */
    keeper_go_on(keeper);
    return 0;
}

int dlxd_gpu_call_own(struct dlxd_gpu_call **ret, struct dlxd_gpu_keeper *keeper,
                      struct dlxd_user *user, struct dlxd_gpu_member *member, uint64_t origin,
                      uint64_t whose, dlxd_gpu_call_fn *fn, void *owner)
{
    int r = keeper_check(keeper);
    if (r == 0)
        r = dlxd_gpu_origins_join(&keeper->origins, member, origin, whose);
    if (r < 0)
        return r;
    const struct dlx_keeper_packet own = {.kind = DLX_KEEPER_OWN,
                                          .serial = ++keeper->serial,
                                          .origin = origin,
                                          .uid = (uint32_t)whose,
                                          .socket = (uint32_t)(whose >> 32)};
    return keeper_begin(ret, keeper, user, &own, fn, owner);
}

int dlxd_gpu_call_get(struct dlxd_gpu_call **ret, struct dlxd_gpu_keeper *keeper,
                      struct dlxd_user *user, uint64_t origin, uint64_t whose, uint64_t allocation,
                      dlxd_gpu_call_fn *fn, void *owner)
{
    int r = keeper_check(keeper);
    const struct dlx_keeper_packet get = {.kind = DLX_KEEPER_GET,
                                          .origin = origin,
                                          .allocation = allocation,
                                          .uid = (uint32_t)whose,
                                          .socket = (uint32_t)(whose >> 32),
                                          .reader = user->uid};
    return r < 0 ? r : keeper_begin(ret, keeper, user, &get, fn, owner);
}

void dlxd_gpu_keeper_join(struct dlxd_gpu_keeper *keeper, struct dlxd_gpu_member *member,
                          uint64_t origin, uint64_t whose)
{
    if (keeper && keeper->state != STATE_CLOSED)
        (void)dlxd_gpu_origins_join(&keeper->origins, member, origin, whose);
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

struct dlxd_gpu_member *dlxd_gpu_keeper_find(const struct dlxd_gpu_keeper *keeper, uint64_t origin,
                                             uint64_t whose)
{
    const struct dlxd_gpu_origin *found =
        keeper ? dlxd_gpu_origins_find(&keeper->origins, origin, whose) : NULL;
    if (!found || dlxd_list_empty(&found->publishers))
        return NULL;
    return dlxd_container_of(found->publishers.next, struct dlxd_gpu_member, node);
}

bool dlxd_gpu_keeper_is_starting(const struct dlxd_gpu_keeper *keeper)
{
    return keeper && keeper->state == STATE_STARTING;
}

/* ---- time and life --------------------------------------------------------------------------- */

uint64_t dlxd_gpu_keeper_next_ns(const struct dlxd_gpu_keeper *keeper)
{
    if (!keeper || dlxd_list_empty(&keeper->calls))
        return UINT64_MAX;
    return dlxd_container_of(keeper->calls.next, struct dlxd_gpu_call, node)->deadline_ns;
}

void dlxd_gpu_keeper_look(struct dlxd_gpu_keeper *keeper, uint64_t now_ns)
{
    while (dlxd_gpu_keeper_next_ns(keeper) <= now_ns)
        keeper_finish(dlxd_container_of(keeper->calls.next, struct dlxd_gpu_call, node),
                      DLX_E_TIMEOUT, "the GPU keeper did not answer within 5 s");
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
    keeper->n_in_flight = n_in_flight;
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
