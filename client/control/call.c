/* SPDX-License-Identifier: Apache-2.0 */
#include "client/control/call.h"
#include "client/base/limits.h"
#include "client/control/call_wire.h"
#include "common/memory.h"
#include "common/topic.h"
#include "ring/layout.h"
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

/* Links for publishers that come while the subscriber is not in the library. */
#define SPARES         2U
#define SPARES_PATTERN 8U
#define SPARES_MAX     4096U
#define SPARES_MAX_OLD 64U /* of a daemon from before this minor version */
#define SPARES_SINCE   8U
/* SubscriptionClose without an answer, since this minor version. */
#define SUBSCRIPTION_CLOSE_SINCE 9U
/* `accepts_unreliable` of Subscribe, since this minor version. */
#define QOS_SINCE 9U

#define HURRY_NS    DLX_CALL_HURRY_NS
#define CLOSE_TRIES 20 /* a millisecond each */
/* A close waits this long for its answer; the daemon completes it when it can. */
#define CLOSE_NS          INT64_C(2500000000)
#define PROOF_NS_PER_BYTE 4 /* 0.04 with a processor to itself */
/* How long streams ask nothing of a daemon that did not answer: twice as long each time. */
#define PAUSE_FIRST_NS UINT64_C(100000000)
#define PAUSE_MOST_NS  UINT64_C(1600000000)

struct dlx_call *dlx__call_free(struct dlx_call *call)
{
    if (call)
        dlx__packet_deinit(&call->packet);
    free(call);
    return NULL;
}

/* ---- waits ------------------------------------------------------------------------------- */

#define PART_FIRST_NS UINT64_C(50000000)
#define PART_MOST_NS  UINT64_C(200000000)

uint64_t dlx__wait_part(struct dlx_wait *wait, const struct dlx_client *c, uint64_t now)
{
    if (!c->interrupt)
        return wait->deadline;
    if (wait->ask_at == 0) {
        wait->part_ns = PART_FIRST_NS;
        wait->ask_at = now + wait->part_ns;
    }
    return DLX_MIN(wait->deadline, wait->ask_at);
}

int dlx__wait_ask(struct dlx_wait *wait, const struct dlx_client *c, struct dlx_turn *turn,
                  bool signalled)
{
    if (!c->interrupt || (!signalled && dlx__now_ns() < wait->ask_at))
        return 0;
    if (turn)
        dlx__turn_disown(turn);
    if (c->interrupt(c->interrupt_data) != 0)
        return DLX_E_INTERRUPTED;
    dlx__error_clear(); /* of its own calls */
    wait->part_ns = DLX_MIN(2 * wait->part_ns, PART_MOST_NS);
    wait->ask_at = dlx__now_ns() + wait->part_ns;
    return 0;
}

int dlx__wait_for_peers(struct dlx_wait *wait, const struct dlx_client *c, struct dlx_turn *turn,
                        bool signalled, const char *topic, const char *what)
{
    if (signalled && !c->interrupt)
        return dlx__fail(DLX_E_INTERRUPTED, "topic %s: interrupted by a signal", topic);
    int r = dlx__wait_ask(wait, c, turn, signalled);
    return r < 0 ? dlx__fail(r, "topic %s: interrupted while it waited for %s", topic, what) : 0;
}

int dlx__call_check_interrupt(const struct dlx_client *c)
{
    if (!c->interrupt || c->interrupt(c->interrupt_data) == 0)
        return 0;
    return dlx__call_interrupted(c);
}

int dlx__call_interrupted(const struct dlx_client *c)
{
    return dlx__fail(DLX_E_INTERRUPTED, "interrupted while dlpackd at %s did not answer", c->path);
}

/* ---- one round trip ------------------------------------------------------------------------ */

/* The connection is lost. */
static int lose(struct dlx_client *c, int code)
{
    c->sock = dlx__close(c->sock);
    return code;
}

/* A wait for the daemon has timed out. A call that does not wait (0) puts nothing off. */
static void back_off(struct dlx_client *c, uint64_t now, int64_t timeout_ns)
{
    if (timeout_ns == 0)
        return;
    c->pause_ns = c->pause_ns == 0 ? PAUSE_FIRST_NS : DLX_MIN(2 * c->pause_ns, PAUSE_MOST_NS);
    c->next_try_ns = now + c->pause_ns;
}

static int wait_for(struct dlx_client *c, short events, struct dlx_wait *wait, int64_t timeout_ns)
{
    struct pollfd pfd = {.fd = c->sock, .events = events};
    for (;;) {
        uint64_t now = dlx__now_ns();
        int n = poll(&pfd, 1, dlx__deadline_ms(dlx__wait_part(wait, c, now), now));
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return dlx__fail_errno("poll");
        now = dlx__now_ns();
        if (now >= wait->deadline) {
            back_off(c, now, timeout_ns);
            return dlx__fail(DLX_E_TIMEOUT, "dlpackd at %s did not answer within %.3g s", c->path,
                             (double)timeout_ns / 1e9);
        }
        if (dlx__wait_ask(wait, c, NULL, n < 0) < 0)
            return dlx__call_interrupted(c);
    }
}

/* The caller of this late reply is gone: drop the publisher or arena that the daemon made. A
 * subscription ends with its socket. */
static void give_back(struct dlx_client *c, const Dlx__Wire__Packet *reply)
{
    Dlx__Wire__Packet request = DLX__WIRE__PACKET__INIT; /* serial 0: no answer */
    Dlx__Wire__PublisherClose publisher = DLX__WIRE__PUBLISHER_CLOSE__INIT;
    Dlx__Wire__ArenaDrop arena = DLX__WIRE__ARENA_DROP__INIT;
    if (reply->body_case == DLX__WIRE__PACKET__BODY_PUBLISHER_NEW_REPLY) {
        publisher.publisher = reply->publisher_new_reply->publisher;
        request.body_case = DLX__WIRE__PACKET__BODY_PUBLISHER_CLOSE;
        request.publisher_close = &publisher;
    } else if (reply->body_case == DLX__WIRE__PACKET__BODY_ARENA_NEW_REPLY) {
        arena.publisher = reply->arena_new_reply->publisher;
        arena.arena = reply->arena_new_reply->arena;
        request.body_case = DLX__WIRE__PACKET__BODY_ARENA_DROP;
        request.arena_drop = &arena;
    } else {
        return;
    }
    (void)dlx__proto_send(c->sock, &request, NULL, 0); /* else the object ends with c->sock */
}

/* `ret_bare`: a reply without its descriptors, for which there was no room; the thread's message
 * says so. */
static int receive_reply(struct dlx_client *c, struct dlx_wait *wait, int64_t timeout_ns,
                         const Dlx__Wire__Packet **ret, bool *ret_bare)
{
    for (;;) {
        dlx__packet_deinit(&c->call->packet);
        int r = dlx__packet_recv_fds(c->sock, &c->call->packet);
        *ret_bare = r == DLX_E_FD_LIMIT;
        if (*ret_bare)
            (void)dlx__packet_drop(c->sock); /* else the reply comes again, too late */
        if (r == 0 || *ret_bare)
            r = dlx__proto_unpack(&c->call->arena, c->call->packet.data, c->call->packet.size, ret);
        if (r == 0) {
            c->silent = false;
            return 0;
        }
        if (r == DLX_E_DISCONNECTED)
            return lose(c, dlx__fail(r, "dlpackd at %s closed the connection", c->path));
        if (r != DLX_E_EMPTY)
            return lose(c, dlx__fail_prefix(r, "packet from dlpackd at %s", c->path));
        r = wait_for(c, POLLIN, wait, timeout_ns);
        if (r < 0) {
            c->silent = r == DLX_E_TIMEOUT || r == DLX_E_INTERRUPTED;
            return r;
        }
    }
}

static int send_request(struct dlx_client *c, const Dlx__Wire__Packet *request,
                        struct dlx_wait *wait, int64_t timeout_ns)
{
    for (;;) {
        int r = dlx__proto_send(c->sock, request, NULL, 0);
        if (r == DLX_E_DISCONNECTED)
            return 0; /* the daemon may have told why: receive_reply() looks */
        if (r != DLX_E_FULL)
            return r;
        r = wait_for(c, POLLOUT, wait, timeout_ns);
        if (r < 0)
            return r;
    }
}

int dlx__call_fail_kicked(const struct dlx_client *c)
{
    return dlx__fail(DLX_E_KICKED,
                     "dlpackd at %s has disconnected this program, %s" DLX_KICKED_REMEDY, c->path,
                     c->goodbye_text);
}

/* Each call looks for a daemon at the same place, and finds one that was started meanwhile. */
static int fail_lost(const struct dlx_client *c)
{
    if (dlx__call_was_kicked(c))
        return dlx__call_fail_kicked(c);
    bool is_named = c->path_kind == DLX_DAEMON_NAMED;
    const char *remedy = is_named                            ? "run dlpackd --socket="
                         : c->path_kind == DLX_DAEMON_SYSTEM ? "start the machine's again"
                                                             : "dlx_connect() may start one";
    return dlx__fail(DLX_E_DISCONNECTED,
                     "the connection to dlpackd at %s is lost, and no daemon took its place: %s%s",
                     c->path, remedy, is_named ? c->path : "");
}

/* Keeps the reason, except that the daemon stops, for dlx__client_goodbye(). */
static void note_goodbye(struct dlx_client *c, const Dlx__Wire__Packet *packet)
{
    if (packet->body_case != DLX__WIRE__PACKET__BODY_DISCONNECT ||
        packet->disconnect->code == DLX_E_DISCONNECTED) /* the daemon stops */
        return;
    c->goodbye = packet->disconnect->code < 0 ? packet->disconnect->code : DLX_E_PROTOCOL;
    (void)snprintf(c->goodbye_text, sizeof c->goodbye_text, "%s", packet->disconnect->text);
}

int dlx__call_round_trip_within(struct dlx_client *c, int64_t timeout_ns,
                                Dlx__Wire__Packet *request, Dlx__Wire__Packet__BodyCase expected,
                                size_t n_fds, const Dlx__Wire__Packet **ret)
{
    const Dlx__Wire__Packet *reply;
    struct dlx_wait wait = {.deadline = dlx__deadline(timeout_ns)};
    c->unanswered = false;
    if (c->sock < 0)
        return fail_lost(c);
    request->serial = c->serial = c->serial == UINT32_MAX ? 1 : c->serial + 1;
    int r = send_request(c, request, &wait, timeout_ns);
    if (r < 0)
        return r;
    c->unanswered = true;
    bool bare;
    for (;;) {
        r = receive_reply(c, &wait, timeout_ns, &reply, &bare);
        if (r < 0)
            return r;
        note_goodbye(c, reply);
        if (reply->body_case == DLX__WIRE__PACKET__BODY_DISCONNECT && dlx__call_was_kicked(c))
            return lose(c, dlx__call_fail_kicked(c));
        if (reply->body_case == DLX__WIRE__PACKET__BODY_DISCONNECT)
            return lose(c, dlx__fail(DLX_E_DISCONNECTED, "dlpackd at %s disconnects: %s", c->path,
                                     reply->disconnect->text));
        if (reply->serial == request->serial)
            break;
        give_back(c, reply); /* the request timed out */
    }
    c->unanswered = false;
    c->pause_ns = c->next_try_ns = 0;
    if (bare) {
        give_back(c, reply);
        return DLX_E_FD_LIMIT;
    }
    if (reply->body_case == DLX__WIRE__PACKET__BODY_ERROR) {
        int code = reply->error->code < 0 ? reply->error->code : DLX_E_PROTOCOL;
        return dlx__fail(code, "%s",
                         *reply->error->text ? reply->error->text : dlx__error_text(code));
    }
    if (reply->body_case != expected || c->call->packet.n_fds != n_fds)
        return lose(c, dlx__fail(DLX_E_PROTOCOL, "dlpackd at %s answered %s with %zu fds", c->path,
                                 dlx__proto_name(reply), c->call->packet.n_fds));
    *ret = reply;
    return 0;
}

int dlx__call_round_trip(struct dlx_client *c, Dlx__Wire__Packet *request,
                         Dlx__Wire__Packet__BodyCase expected, size_t n_fds,
                         const Dlx__Wire__Packet **ret)
{
    return dlx__call_round_trip_within(c, c->timeout_ns, request, expected, n_fds, ret);
}

int dlx__call_lock_within(struct dlx_client *c, int64_t timeout_ns)
{
    struct dlx_wait wait = {.deadline = dlx__deadline(timeout_ns)};
    for (;;) {
        int e = dlx__lock_until(&c->lock, dlx__wait_part(&wait, c, dlx__now_ns()));
        if (e == 0)
            return 0;
        if (e == EDEADLK)
            return dlx__fail(DLX_E_IN_USE, "this thread waits for dlpackd at %s already", c->path);
        bool is_over = dlx__now_ns() >= wait.deadline;
        if (is_over && timeout_ns == c->timeout_ns &&
            atomic_load_explicit(&c->is_patient, memory_order_relaxed))
            wait.deadline = dlx__deadline(timeout_ns);
        else if (is_over)
            return dlx__fail(DLX_E_TIMEOUT, "another thread waits for dlpackd at %s", c->path);
        if (dlx__wait_ask(&wait, c, NULL, false) < 0)
            return dlx__call_interrupted(c);
    }
}

int dlx__call_lock(struct dlx_client *c)
{
    return dlx__call_lock_within(c, c->timeout_ns);
}

int dlx__call_ask(struct dlx_client *c, int64_t timeout_ns, Dlx__Wire__Packet *request,
                  Dlx__Wire__Packet__BodyCase expected, size_t n_fds, const Dlx__Wire__Packet **ret)
{
    int r = dlx__call_lock_within(c, timeout_ns);
    if (r < 0)
        return r;
    r = dlx__call_round_trip_within(c, timeout_ns, request, expected, n_fds, ret);
    if (r < 0)
        dlx__lock_release(&c->lock);
    return r;
}

int dlx__call_check_minor(const struct dlx_client *c, uint32_t since, const char *what)
{
    if (c->minor >= since)
        return 0;
    return dlx__fail(DLX_E_VERSION,
                     "dlpackd at %s speaks protocol %u.%u; %s needs %u.%u: update dlpackd", c->path,
                     DLX_PROTO_MAJOR, c->minor, what, DLX_PROTO_MAJOR, since);
}

int dlx__call_ask_since(struct dlx_client *c, uint32_t since, const char *what,
                        Dlx__Wire__Packet *request, Dlx__Wire__Packet__BodyCase expected,
                        const Dlx__Wire__Packet **ret)
{
    int r = dlx__call_lock(c);
    if (r < 0)
        return r;
    r = dlx__call_check_minor(c, since, what);
    if (r == 0)
        r = dlx__call_round_trip(c, request, expected, 0, ret);
    if (r < 0)
        dlx__lock_release(&c->lock);
    return r;
}

/* ---- connect ------------------------------------------------------------------------------- */

/* connect() waits for a place in the listen queue, so long at most; 0: for ever. */
static int limit_connect(int fd, uint64_t ns)
{
    struct timeval limit = {.tv_sec = (time_t)(ns / 1000000000),
                            .tv_usec = (suseconds_t)(ns / 1000 % 1000000)};
    return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) < 0
               ? dlx__fail_errno("SO_SNDTIMEO")
               : 0;
}

/* connect() says ECONNREFUSED of a folder or a plain file, too. */
static int fail_connect(const char *path, int error)
{
    struct stat st;
    if (error == ECONNREFUSED && stat(path, &st) == 0 && !S_ISSOCK(st.st_mode))
        return dlx__fail(DLX_E_NO_DAEMON, "no dlpackd at %s: it is not a socket", path);
    errno = error;
    return dlx__fail_errno("no dlpackd at %s", path);
}

static int connect_for(struct dlx_client *c, int fd, const struct sockaddr_un *address,
                       int64_t timeout_ns)
{
    struct dlx_wait wait = {.deadline = dlx__deadline(timeout_ns)};
    for (;;) {
        uint64_t now = dlx__now_ns(), until = dlx__wait_part(&wait, c, now);
        uint64_t left = until > now ? until - now : 0;
        int r = limit_connect(fd, until == UINT64_MAX ? 0 : DLX_MAX(left, 1000U));
        if (r < 0)
            return r;
        if (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0)
            return 0;
        if (errno != EINTR && errno != EAGAIN) {
            r = fail_connect(c->path, errno);
            return r == DLX_E_ACCESS || r == DLX_E_FD_LIMIT ? r : DLX_E_NO_DAEMON;
        }
        bool signalled = errno == EINTR;
        now = dlx__now_ns();
        if (now >= wait.deadline) {
            back_off(c, now, timeout_ns);
            return dlx__fail(DLX_E_TIMEOUT, "dlpackd at %s accepted no connection within %.3g s",
                             c->path, (double)timeout_ns / 1e9);
        }
        if (dlx__wait_ask(&wait, c, NULL, signalled) < 0)
            return dlx__call_interrupted(c);
    }
}

int dlx__call_open_within(struct dlx_client *c, int64_t timeout_ns)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    dlx_cleanup(dlx__closep) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return dlx__fail_errno("socket");
    /* path has the size of sun_path and was checked to fit. */
    memcpy(address.sun_path, c->path, sizeof address.sun_path);
    int r = connect_for(c, fd, &address, timeout_ns);
    if (r < 0)
        return r;
    dlx__close(c->sock);
    c->sock = dlx__steal_fd(&fd);
    return 0;
}

int dlx__call_greet(struct dlx_client *c, const char *name)
{
    return dlx__call_greet_within(c, name, c->timeout_ns);
}

int dlx__call_greet_within(struct dlx_client *c, const char *name, int64_t timeout_ns)
{
    Dlx__Wire__Hello hello = DLX__WIRE__HELLO__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(HELLO, hello, &hello);
    const Dlx__Wire__Packet *reply;
    if (!c->call) {
        c->call = malloc(sizeof *c->call);
        if (!c->call)
            return dlx__fail(DLX_E_NO_MEMORY, "buffers of %zu bytes", sizeof *c->call);
        c->call->packet.n_fds = 0;
    }
    hello.major = DLX_PROTO_MAJOR;
    hello.minor = DLX_PROTO_MINOR;
    hello.name = (char *)(uintptr_t)name;
    hello.max_links = dlx__limits_max_links();
    int r = dlx__call_round_trip_within(c, timeout_ns, &request,
                                        DLX__WIRE__PACKET__BODY_HELLO_REPLY, 0, &reply);
    if (r < 0)
        return r;
    if (reply->hello_reply->major != DLX_PROTO_MAJOR)
        return dlx__fail(DLX_E_VERSION, "dlpackd %s at %s speaks protocol %u, this library %u",
                         reply->hello_reply->version, c->path, reply->hello_reply->major,
                         DLX_PROTO_MAJOR);
    if (reply->hello_reply->minor > DLX_PROTO_MINOR)
        return dlx__fail(DLX_E_PROTOCOL,
                         "dlpackd %s at %s answers a client of protocol %u.%u with %u.%u",
                         reply->hello_reply->version, c->path, DLX_PROTO_MAJOR, DLX_PROTO_MINOR,
                         reply->hello_reply->major, reply->hello_reply->minor);
    const struct dlx_memory *memory = dlx__memory_by_tag(reply->hello_reply->memory);
    if (!memory)
        return dlx__fail(
            DLX_E_VERSION,
            "dlpackd %s at %s has a kind of memory (%u) that this library does not know",
            reply->hello_reply->version, c->path, reply->hello_reply->memory);
    c->id = reply->hello_reply->client;
    c->minor = reply->hello_reply->minor;
    /* Each daemon may have another backend. Never NULL: links of the last daemon use it. */
    if (c->memory != memory)
        c->memory = memory;
    return 0;
}

/* ---- publisher ----------------------------------------------------------------------------- */

static int check_groups(const struct dlx_client *c)
{
    return dlx__call_check_minor(c, DLX_GROUPS_SINCE, "a work queue (`group`, `groups`)");
}

/* 0: drops; 1: blocks. */
static uint32_t wire_on_full(const struct dlx_publisher_args *args)
{
    if (args->on_full == DLX_ON_FULL_DEFAULT)
        return args->n_groups > 0;
    return args->on_full != DLX_ON_FULL_DROP;
}

int dlx__call_publisher_new(struct dlx_client *c, const char *topic,
                            const struct dlx_publisher_args *args, uint32_t n_entries,
                            uint64_t resumes, uint64_t after_seq, int64_t timeout_ns,
                            struct dlx_new_publisher *ret)
{
    Dlx__Wire__PublisherNew body = DLX__WIRE__PUBLISHER_NEW__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(PUBLISHER_NEW, publisher_new, &body);
    const Dlx__Wire__Packet *reply;
    body.topic = (char *)(uintptr_t)topic;
    body.history = args->history;
    body.depth = args->depth;
    body.n_entries = n_entries;
    body.on_full = wire_on_full(args);
    body.retain = args->retain;
    body.latched = args->retain_for_ns == DLX_RETAIN_LATCHED;
    body.retain_for_ns = args->retain_for_ns > 0 ? (uint64_t)args->retain_for_ns : 0;
    body.resumes = resumes;
    body.after_seq = after_seq;
    body.max_held = args->max_held;
    body.max_held_bytes = args->max_held_bytes;
    body.groups = (char **)(uintptr_t)args->groups;
    body.n_groups = args->n_groups;
    int r = dlx__call_lock_within(c, timeout_ns);
    if (r < 0)
        return r;
    if (args->n_groups > 0)
        r = check_groups(c);
    if (r == 0)
        r = dlx__call_round_trip_within(c, timeout_ns, &request,
                                        DLX__WIRE__PACKET__BODY_PUBLISHER_NEW_REPLY, 3, &reply);
    if (r < 0) {
        dlx__lock_release(&c->lock);
        return r;
    }
    const Dlx__Wire__PublisherNewReply *got = reply->publisher_new_reply;
    *ret = (struct dlx_new_publisher){
        .id = got->publisher,
        .memory = c->memory,
        .control_size = got->control_size,
        .membership_size = got->membership_size,
        .membership_line = got->membership_line,
        .control_fd = dlx__packet_steal_fd(&c->call->packet, 0),
        .membership_fd = dlx__packet_steal_fd(&c->call->packet, 1),
        .link_sock = dlx__packet_steal_fd(&c->call->packet, 2),
    };
    dlx__lock_release(&c->lock);
    return 0;
}

int dlx__call_publisher_ready(struct dlx_client *c, uint64_t publisher, int64_t timeout_ns,
                              bool *ret_unanswered)
{
    Dlx__Wire__PublisherReady body = DLX__WIRE__PUBLISHER_READY__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(PUBLISHER_READY, publisher_ready, &body);
    const Dlx__Wire__Packet *reply;
    body.publisher = publisher;
    *ret_unanswered = false;
    int r = dlx__call_lock_within(c, timeout_ns);
    if (r < 0)
        return r;
    r = dlx__call_round_trip_within(c, timeout_ns, &request, DLX__WIRE__PACKET__BODY_OK, 0, &reply);
    *ret_unanswered = r < 0 && c->unanswered;
    dlx__lock_release(&c->lock);
    return r;
}

/* Without an answer: DLX_E_FULL, DLX_E_DISCONNECTED. `insists`: waits for room in the socket as
 * long as a close waits for the daemon. */
static int tell(struct dlx_client *c, const Dlx__Wire__Packet *request, bool insists)
{
    if (dlx__call_lock_within(c, HURRY_NS) < 0)
        return DLX_E_FULL;
    uint64_t deadline = insists && !c->silent ? dlx__deadline(CLOSE_NS) : 0;
    struct pollfd room = {.fd = c->sock, .events = POLLOUT};
    int r;
    do
        r = c->sock < 0 ? DLX_E_DISCONNECTED : dlx__proto_send(c->sock, request, NULL, 0);
    while (r == DLX_E_FULL && deadline > 0 &&
           poll(&room, 1, dlx__deadline_ms(deadline, dlx__now_ns())) > 0);
    dlx__lock_release(&c->lock);
    return r;
}

int dlx__call_publisher_retains(struct dlx_client *c, uint64_t publisher)
{
    Dlx__Wire__PublisherRetains body = DLX__WIRE__PUBLISHER_RETAINS__INIT;
    Dlx__Wire__Packet request =
        DLX_PACKET(PUBLISHER_RETAINS, publisher_retains, &body); /* serial 0: no answer */
    body.publisher = publisher;
    return tell(c, &request, false);
}

int dlx__call_subscription_close(struct dlx_client *c, uint64_t subscription)
{
    if (c->minor < SUBSCRIPTION_CLOSE_SINCE)
        return 0; /* such a daemon disconnects those that ask without a serial */
    Dlx__Wire__SubscriptionClose body = DLX__WIRE__SUBSCRIPTION_CLOSE__INIT;
    Dlx__Wire__Packet request =
        DLX_PACKET(SUBSCRIPTION_CLOSE, subscription_close, &body); /* serial 0: no answer */
    body.subscription = subscription;
    return tell(c, &request, false);
}

int dlx__call_retained_drop(struct dlx_client *c, const char *topic)
{
    Dlx__Wire__RetainedDrop body = DLX__WIRE__RETAINED_DROP__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(RETAINED_DROP, retained_drop, &body);
    const Dlx__Wire__Packet *reply;
    body.topic = (char *)(uintptr_t)topic;
    int r = dlx__call_ask(c, c->timeout_ns, &request, DLX__WIRE__PACKET__BODY_RETAINED_DROP_REPLY,
                          0, &reply);
    if (r == 0)
        dlx__lock_release(&c->lock);
    return r;
}

/* A daemon that is not told would show the publisher until this process ends: so this call waits
 * for the lock without a limit. */
static int close_publisher(struct dlx_client *c, uint64_t publisher)
{
    Dlx__Wire__PublisherClose body = DLX__WIRE__PUBLISHER_CLOSE__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(PUBLISHER_CLOSE, publisher_close, &body);
    const Dlx__Wire__Packet *reply;
    body.publisher = publisher;
    int r = dlx__call_lock_within(c, DLX_FOREVER);
    /* Without the lock, and so without an answer. If the packet is not sent, the publisher ends
     * with the connection. */
    if (r == DLX_E_IN_USE)
        (void)dlx__proto_send(c->sock, &request, NULL, 0);
    if (r < 0)
        return r;
    int64_t patience = c->timeout_ns < 0 ? CLOSE_NS : DLX_MIN(c->timeout_ns, CLOSE_NS);
    r = dlx__call_round_trip_within(c, c->silent ? 0 : patience, &request,
                                    DLX__WIRE__PACKET__BODY_OK, 0, &reply);
    dlx__lock_release(&c->lock);
    return r;
}

int dlx__call_publisher_close(struct dlx_client *c, uint64_t publisher)
{
    int r = close_publisher(c, publisher);
    for (int i = 0; i < CLOSE_TRIES && r == DLX_E_NO_MEMORY; i++) { /* passes */
        (void)poll(NULL, 0, 1);
        r = close_publisher(c, publisher);
    }
    return r;
}

int dlx__call_arena_new(struct dlx_client *c, uint64_t publisher, uint64_t size,
                        uint32_t *ret_arena, int *ret_fd)
{
    Dlx__Wire__ArenaNew body = DLX__WIRE__ARENA_NEW__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(ARENA_NEW, arena_new, &body);
    const Dlx__Wire__Packet *reply;
    body.publisher = publisher;
    body.arena_size = size;
    int r = dlx__call_ask(c, c->timeout_ns, &request, DLX__WIRE__PACKET__BODY_ARENA_NEW_REPLY, 1,
                          &reply);
    if (r < 0)
        return r;
    if (reply->arena_new_reply->arena_size != size)
        r = dlx__fail(DLX_E_PROTOCOL, "arena of another size than asked for");
    else if (reply->arena_new_reply->arena == 0)
        r = dlx__fail(DLX_E_PROTOCOL, "arena with the number 0, which stands for no memory");
    if (r == 0) {
        *ret_arena = reply->arena_new_reply->arena;
        *ret_fd = dlx__packet_steal_fd(&c->call->packet, 0);
    }
    dlx__lock_release(&c->lock);
    return r;
}

/* The daemon proves every page before it answers, after those of the user's other regions. Threads
 * that wait for the lock meanwhile have as much patience. */
int dlx__call_arena_ready(struct dlx_client *c, uint64_t publisher, uint32_t arena, uint64_t size)
{
    Dlx__Wire__ArenaReady body = DLX__WIRE__ARENA_READY__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(ARENA_READY, arena_ready, &body);
    const Dlx__Wire__Packet *reply;
    int64_t timeout_ns = c->timeout_ns;
    body.publisher = publisher;
    body.arena = arena;
    if (timeout_ns >= 0)
        timeout_ns = DLX_MIN(timeout_ns, INT64_MAX / 2) + (int64_t)size * PROOF_NS_PER_BYTE;
    int r = dlx__call_lock(c);
    if (r == 0) {
        atomic_store_explicit(&c->is_patient, true, memory_order_relaxed);
        r = dlx__call_round_trip_within(c, timeout_ns, &request, DLX__WIRE__PACKET__BODY_OK, 0,
                                        &reply);
        atomic_store_explicit(&c->is_patient, false, memory_order_relaxed);
        dlx__lock_release(&c->lock);
    }
    return r;
}

int dlx__call_arena_drop(struct dlx_client *c, uint64_t publisher, uint32_t arena, bool insists)
{
    Dlx__Wire__ArenaDrop body = DLX__WIRE__ARENA_DROP__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(ARENA_DROP, arena_drop, &body); /* serial 0: no answer */
    body.publisher = publisher;
    body.arena = arena;
    return tell(c, &request, insists);
}

/* ---- subscription -------------------------------------------------------------------------- */

static uint32_t n_spares(const struct dlx_client *c, const char *topic,
                         const struct dlx_subscribe_args *args)
{
    uint32_t least = dlx__is_pattern(topic) ? SPARES_PATTERN : SPARES;
    uint32_t n = args->n_publishers == DLX_PUBLISHERS_ANY ? 0 : args->n_publishers;
    return DLX_MIN(DLX_MAX(n, least), c->minor < SPARES_SINCE ? SPARES_MAX_OLD : SPARES_MAX);
}

/* Whom a subscription waits for, although it subscribes to them. */
static void tell_away(const Dlx__Wire__SubscribeReply *reply, char ret[DLX_AWAY_SIZE])
{
    const char *name = reply->away_name;
    ret[0] = '\0';
    if (reply->n_away == 0)
        return;
    bool several = reply->n_away > 1;
    int n =
        snprintf(ret, DLX_AWAY_SIZE, "publisher%s %" PRIu64 " (%.40s%spid %u)", several ? "s" : "",
                 reply->away_publisher, name, *name ? ", " : "", reply->away_pid);
    if (several)
        n += snprintf(ret + n, DLX_AWAY_SIZE - (size_t)n, " and %u more", reply->n_away - 1);
    (void)snprintf(ret + n, DLX_AWAY_SIZE - (size_t)n,
                   " made no call since dlpackd was started again: the next one leads to %s",
                   several ? "them" : "it");
}

int dlx__call_subscribe(struct dlx_client *c, const char *topic,
                        const struct dlx_subscribe_args *args, int64_t timeout_ns,
                        struct dlx_new_subscription *ret)
{
    Dlx__Wire__Subscribe body = DLX__WIRE__SUBSCRIBE__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(SUBSCRIBE, subscribe, &body);
    const Dlx__Wire__Packet *reply;
    body.topic = (char *)(uintptr_t)topic;
    body.mode = args->mode;
    body.history = args->history == DLX_HISTORY_NONE ? 0 : args->history;
    body.reliable = args->reliable;
    body.max_held = args->max_held;
    int r = dlx__call_lock_within(c, timeout_ns);
    if (r < 0)
        return r;
    body.n_spares = n_spares(c, topic, args);
    body.accepts_unreliable = args->accepts_unreliable;
    if (args->accepts_unreliable)
        r = dlx__call_check_minor(c, QOS_SINCE, "`accepts_unreliable`");
    if (r == 0 && args->group) {
        body.group = (char *)(uintptr_t)args->group;
        body.lease_ns = (uint64_t)args->lease_ns;
        body.max_attempts = args->max_attempts;
        r = check_groups(c);
    }
    if (r == 0)
        r = dlx__call_round_trip_within(c, timeout_ns, &request,
                                        DLX__WIRE__PACKET__BODY_SUBSCRIBE_REPLY, 1, &reply);
    if (r == 0) {
        *ret = (struct dlx_new_subscription){.id = reply->subscribe_reply->subscription,
                                             .memory = c->memory,
                                             .n_offers = reply->subscribe_reply->n_offers,
                                             .sock = dlx__packet_steal_fd(&c->call->packet, 0)};
        tell_away(reply->subscribe_reply, ret->away);
    }
    dlx__lock_release(&c->lock);
    return r;
}

/* ---- the end of a connection ----------------------------------------------------------------- */

/* The daemon sends a Disconnect before it ends this client's objects and closes the connection.
 * Replies for which no call waits any more come before it. */
void dlx__call_hear_goodbye(struct dlx_client *c)
{
    const Dlx__Wire__Packet *packet;
    if (c->sock < 0)
        return; /* a client that never greeted has no buffers either */
    struct dlx_packet *into = &c->call->packet;
    bool is_over;
    ssize_t n;
    do {
        is_over = dlx__packet_hung_up(c->sock); /* else another call reads it */
        n = recv(c->sock, into->data, sizeof into->data, MSG_DONTWAIT | (is_over ? 0 : MSG_PEEK));
        if (n > 0 && dlx__proto_unpack(&c->call->arena, into->data, (size_t)n, &packet) == 0)
            note_goodbye(c, packet);
    } while (is_over && n > 0);
    dlx__error_clear();
}

/* ---- GPU memory ------------------------------------------------------------------------------ */

static int check_gpu(const struct dlx_client *c)
{
    return dlx__call_check_minor(c, DLX_GPU_SINCE, "GPU memory that others open by a descriptor");
}

/* The caller has the lock. */
static int take_gpu_memory(struct dlx_client *c, const Dlx__Wire__GpuMemory *memory,
                           struct dlx_new_gpu_memory *ret)
{
    if (memory->description.len > sizeof ret->description)
        return dlx__fail(DLX_E_PROTOCOL, "dlpackd describes GPU memory in %zu bytes",
                         memory->description.len);
    memcpy(ret->description, memory->description.data, memory->description.len);
    ret->size = memory->description.len;
    ret->keeper = memory->keeper;
    ret->fd = dlx__packet_steal_fd(&c->call->packet, 0);
    return 0;
}

int dlx__call_gpu_allocate(struct dlx_client *c, uint64_t publisher, uint64_t allocation,
                           uint64_t size, int32_t device_type, const uint8_t uuid[16],
                           struct dlx_new_gpu_memory *ret)
{
    Dlx__Wire__GpuAllocate body = DLX__WIRE__GPU_ALLOCATE__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(GPU_ALLOCATE, gpu_allocate, &body);
    const Dlx__Wire__Packet *reply;
    uint8_t device[16];
    memcpy(device, uuid, sizeof device);
    body.publisher = publisher;
    body.allocation = allocation;
    body.size = size;
    body.device_type = device_type;
    body.device = (ProtobufCBinaryData){sizeof device, device};
    int r = dlx__call_lock(c);
    if (r < 0)
        return r;
    r = check_gpu(c);
    if (r == 0)
        r = dlx__call_round_trip(c, &request, DLX__WIRE__PACKET__BODY_GPU_MEMORY, 1, &reply);
    if (r == 0)
        r = take_gpu_memory(c, reply->gpu_memory, ret);
    dlx__lock_release(&c->lock);
    return r;
}

int dlx__call_gpu_free(struct dlx_client *c, uint64_t publisher, uint64_t allocation)
{
    Dlx__Wire__GpuFree body = DLX__WIRE__GPU_FREE__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(GPU_FREE, gpu_free, &body); /* serial 0: no answer */
    body.publisher = publisher;
    body.allocation = allocation;
    /* The keeper of an older daemon has made nothing. */
    return c->minor >= DLX_GPU_SINCE ? tell(c, &request, false) : 0;
}

int dlx__call_gpu_serve(struct dlx_client *c, uint64_t publisher, int64_t timeout_ns, int *ret_sock)
{
    Dlx__Wire__GpuServe body = DLX__WIRE__GPU_SERVE__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(GPU_SERVE, gpu_serve, &body);
    const Dlx__Wire__Packet *reply;
    body.publisher = publisher;
    int r = dlx__call_lock_within(c, timeout_ns);
    if (r < 0)
        return r;
    r = check_gpu(c);
    if (r == 0)
        r = dlx__call_round_trip_within(c, timeout_ns, &request, DLX__WIRE__PACKET__BODY_GPU_SOCKET,
                                        1, &reply);
    if (r == 0)
        *ret_sock = dlx__packet_steal_fd(&c->call->packet, 0);
    dlx__lock_release(&c->lock);
    return r;
}

int dlx__call_gpu_get(struct dlx_client *c, uint64_t link, uint64_t origin, uint64_t allocation,
                      struct dlx_new_gpu_memory *ret, int *ret_sock)
{
    Dlx__Wire__GpuGet body = DLX__WIRE__GPU_GET__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(GPU_GET, gpu_get, &body);
    const Dlx__Wire__Packet *reply;
    body.link = link;
    body.origin = origin;
    body.allocation = allocation;
    int r = dlx__call_lock(c);
    if (r < 0)
        return r;
    r = check_gpu(c);
    if (r == 0)
        r = dlx__call_round_trip(c, &request, DLX__WIRE__PACKET__BODY_GPU_MEMORY, 1, &reply);
    if (r == 0 && reply->gpu_memory->description.len > 0) {
        r = take_gpu_memory(c, reply->gpu_memory, ret);
    } else if (r == 0) {
        *ret_sock = dlx__packet_steal_fd(&c->call->packet, 0);
        r = 1;
    }
    dlx__lock_release(&c->lock);
    return r;
}

/* ---- memory of former daemons --------------------------------------------------------------- */

int dlx__call_former_new(struct dlx_client *c, uint32_t n_regions, uint32_t n_sources,
                         uint64_t *ret_size, int *ret_fd)
{
    Dlx__Wire__FormerNew body = DLX__WIRE__FORMER_NEW__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(FORMER_NEW, former_new, &body);
    const Dlx__Wire__Packet *reply;
    body.n_regions = n_regions;
    body.n_sources = n_sources;
    int r = dlx__call_round_trip_within(c, DLX_RECONNECT_PATIENCE_NS, &request,
                                        DLX__WIRE__PACKET__BODY_FORMER_NEW_REPLY, 1, &reply);
    if (r < 0)
        return r;
    if (reply->former_new_reply->page_size != dlx_shm_former_size(n_regions, n_sources))
        return dlx__fail(DLX_E_PROTOCOL, "former page of another size than asked for");
    *ret_size = reply->former_new_reply->page_size;
    *ret_fd = dlx__packet_steal_fd(&c->call->packet, 0);
    return 0;
}

int dlx__call_former_ready(struct dlx_client *c, uint32_t n_regions, uint32_t n_sources)
{
    Dlx__Wire__FormerReady body = DLX__WIRE__FORMER_READY__INIT;
    Dlx__Wire__Packet request = DLX_PACKET(FORMER_READY, former_ready, &body);
    const Dlx__Wire__Packet *reply;
    body.n_regions = n_regions;
    body.n_sources = n_sources;
    return dlx__call_round_trip_within(c, DLX_RECONNECT_PATIENCE_NS, &request,
                                       DLX__WIRE__PACKET__BODY_OK, 0, &reply);
}
