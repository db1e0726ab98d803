/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_CALL_H
#define DLX_CLIENT_CALL_H

/*
 * How the library waits, and the control protocol as functions: one a request. Only files that
 * include call_wire.h see the wire's structs.
 *
 * Every request may return, beside what is written at it: DLX_E_DISCONNECTED, DLX_E_TIMEOUT,
 * DLX_E_INTERRUPTED, DLX_E_PROTOCOL, DLX_E_FD_LIMIT, DLX_E_SYSTEM, and whatever code the daemon
 * answered, with the daemon's words.
 */

#include "client/base/turn.h"
#include "client/control/client.h"
#include "common/packet.h"

/* For calls that a stream can do without: it does not wait for a daemon that hangs. */
#define DLX_CALL_HURRY_NS INT64_C(20000000)
/* To connect again and what follows, each. A new daemon has much to do. */
#define DLX_RECONNECT_PATIENCE_NS INT64_C(100000000)

struct dlx_call *dlx__call_free(struct dlx_call *call);

/* ---- waits ------------------------------------------------------------------------------- */

/*
 * Every wait of the library has parts. At the end of a part the library asks the program's
 * `interrupt` (struct dlx_connect_args) whether the wait may go on. The first part takes 50 ms,
 * each later one twice as long, up to 200 ms: a short wait never asks, and a long one costs five
 * wake-ups a second. A signal handler that ran in the waiting thread ends a part at once. Without
 * an `interrupt` a wait has one part.
 *
 *     struct dlx_wait wait = {.deadline = dlx__deadline(timeout_ns)};
 *     while (nothing is there) {
 *         now = dlx__now_ns();
 *         n = poll(fds, n_fds, dlx__deadline_ms(dlx__wait_part(&wait, c, now), now));
 *         if (dlx__wait_ask(&wait, c, NULL, n < 0) < 0)
 *             return DLX_E_INTERRUPTED;
 *     }
 */

struct dlx_wait {
    uint64_t deadline; /* UINT64_MAX: none */
    uint64_t ask_at;   /* when this part ends; 0: the wait has yet to sleep */
    uint64_t part_ns;
};

/* The wait of a call with this time limit; 0: the call neither waits nor reads the clock. */
static inline struct dlx_wait dlx__wait_of(int64_t timeout_ns)
{
    return (struct dlx_wait){.deadline = timeout_ns == 0 ? 0 : dlx__deadline(timeout_ns)};
}

/* The end of the part that begins or goes on at `now`: the deadline at the latest. */
dlx_for_gpu uint64_t dlx__wait_part(struct dlx_wait *wait, const struct dlx_client *c,
                                    uint64_t now);

/*
 * Ask, if the part is over or a signal ended it. `turn`: of the object whose call waits, so that
 * the program's own calls on that object are refused; NULL: there is none. Returns 0;
 * DLX_E_INTERRUPTED: the wait is over. The caller finds words for it.
 */
dlx_for_gpu int dlx__wait_ask(struct dlx_wait *wait, const struct dlx_client *c,
                              struct dlx_turn *turn, bool signalled);

/* The same for waits of publishers and subscriptions, which a signal alone ends where the program
 * gave no `interrupt`. The message names the topic, and what was waited for. */
int dlx__wait_for_peers(struct dlx_wait *wait, const struct dlx_client *c, struct dlx_turn *turn,
                        bool signalled, const char *topic, const char *what);

/* For waits of less than 50 ms that are made again and again: may the wait go on? Returns 0;
 * DLX_E_INTERRUPTED. */
int dlx__call_check_interrupt(const struct dlx_client *c);
/* The program's `interrupt` has ended a wait for the daemon: DLX_E_INTERRUPTED. */
dlx_for_gpu int dlx__call_interrupted(const struct dlx_client *c);

/* ---- requests ---------------------------------------------------------------------------- */

/* Connect to c->path. Sets c->sock. Returns 0; DLX_E_NO_DAEMON, DLX_E_ACCESS, DLX_E_TIMEOUT (a
 * daemon listens, but does not accept), DLX_E_INTERRUPTED, DLX_E_FD_LIMIT, DLX_E_SYSTEM. */
int dlx__call_open_within(struct dlx_client *c, int64_t timeout_ns);
/* Greet, within c->timeout_ns. Sets c->call and id. */
int dlx__call_greet(struct dlx_client *c, const char *name);
int dlx__call_greet_within(struct dlx_client *c, const char *name, int64_t timeout_ns);

struct dlx_new_publisher {
    uint64_t id;
    const struct dlx_memory *memory; /* of that daemon: the next one may have another kind */
    uint64_t control_size;
    uint64_t membership_size;
    uint32_t membership_line;
    int control_fd; /* the caller owns these */
    int membership_fd;
    int link_sock;
};
int dlx__call_publisher_new(struct dlx_client *c, const char *topic,
                            const struct dlx_publisher_args *args, uint32_t n_entries,
                            uint64_t resumes, uint64_t after_seq, int64_t timeout_ns,
                            struct dlx_new_publisher *ret);
/* `ret_unanswered`: the call failed, but the daemon may have carried it out. DLX_E_FULL: the
 * publisher is ready, but a reliable subscription that was there first has yet to attach; call
 * again. */
int dlx__call_publisher_ready(struct dlx_client *c, uint64_t publisher, int64_t timeout_ns,
                              bool *ret_unanswered);
/* The publisher has published what it retains. Tells, does not wait: DLX_E_FULL when the socket has
 * no room. */
int dlx__call_publisher_retains(struct dlx_client *c, uint64_t publisher);
int dlx__call_retained_drop(struct dlx_client *c, const char *topic);
int dlx__call_publisher_close(struct dlx_client *c, uint64_t publisher);

/* dlx_list_links(), within that time for each page. Does not connect. `ret_refusal`: why the last
 * worker that could not be linked was refused; "": none was. */
#define DLX_REFUSAL_SIZE 256
int dlx__call_list_links(struct dlx_client *c, uint64_t publisher, int64_t timeout_ns,
                         dlx_link_info_fn fn, void *userdata, char ret_refusal[DLX_REFUSAL_SIZE]);

/* On success the caller owns the fd. */
int dlx__call_arena_new(struct dlx_client *c, uint64_t publisher, uint64_t size,
                        uint32_t *ret_arena, int *ret_fd);
int dlx__call_arena_ready(struct dlx_client *c, uint64_t publisher, uint32_t arena, uint64_t size);
/* Tells: DLX_E_FULL when the socket has no room. `insists`: waits for room, as long as
 * dlx__call_publisher_close() waits for its answer. */
int dlx__call_arena_drop(struct dlx_client *c, uint64_t publisher, uint32_t arena, bool insists);

#define DLX_AWAY_SIZE 240
struct dlx_new_subscription {
    uint64_t id;
    const struct dlx_memory *memory; /* of that daemon */
    uint32_t n_offers;
    int sock;                 /* the caller owns the socket */
    char away[DLX_AWAY_SIZE]; /* whom it waits for, though they are there; "": nobody */
};
/* Groups, in both directions: since this minor version, or DLX_E_VERSION. */
#define DLX_GROUPS_SINCE 8U
/* `args` with a group have all of its values: the daemon knows no default. */
int dlx__call_subscribe(struct dlx_client *c, const char *topic,
                        const struct dlx_subscribe_args *args, int64_t timeout_ns,
                        struct dlx_new_subscription *ret);

/* Observers. The daemon has to speak this minor version, or it fails with DLX_E_VERSION. On success
 * the caller owns the socket. */
#define DLX_OBSERVERS_SINCE 9U
int dlx__call_observe(struct dlx_client *c, const char *topic, uint32_t kinds, int64_t timeout_ns,
                      int *ret_sock);
/* What a packet on the socket of an observer says, in this order. */
struct dlx_observed_fns {
    void (*restarts)(void *userdata); /* all is told again */
    /* The strings of `info` are valid during the call. A result other than 0 ends the reading. */
    int (*object)(void *userdata, const struct dlx_observed *info);
    void (*complete)(void *userdata); /* all was told */
};
#define DLX_OBSERVED_GROUPS_MAX 16U
/* Reads one packet, without waiting. Returns 0; DLX_E_EMPTY, DLX_E_DISCONNECTED, DLX_E_PROTOCOL,
 * DLX_E_NO_MEMORY, DLX_E_SYSTEM; or what `object` returned. */
int dlx__observed_read(int borrow_sock, const struct dlx_observed_fns *fns, void *userdata);

/* The subscription has ended, before what this connection asks next: its socket alone has no order
 * with that. Tells, does not wait: DLX_E_FULL when the socket has no room. */
int dlx__call_subscription_close(struct dlx_client *c, uint64_t subscription);

/* GPU memory. The daemon has to speak this minor version, or they fail with DLX_E_VERSION. */
#define DLX_GPU_SINCE 8U
/* Memory that the keeper makes: a part of a handle, which is all of it (gpu/handle.h), and its
 * descriptor, which the caller owns. */
#define DLX_CALL_DESCRIPTION_MAX 256U
struct dlx_new_gpu_memory {
    uint8_t description[DLX_CALL_DESCRIPTION_MAX];
    size_t size;
    uint64_t keeper; /* its number */
    int fd;
};
/* DLX_E_LIMIT, DLX_E_NO_MEMORY, DLX_E_DEVICE, DLX_E_NO_DAEMON (there is no keeper). */
dlx_for_gpu int dlx__call_gpu_allocate(struct dlx_client *c, uint64_t publisher,
                                       uint64_t allocation, uint64_t size, int32_t device_type,
                                       const uint8_t uuid[16], struct dlx_new_gpu_memory *ret);
/* Tells: DLX_E_FULL when the socket has no room, DLX_E_DISCONNECTED. */
dlx_for_gpu int dlx__call_gpu_free(struct dlx_client *c, uint64_t publisher, uint64_t allocation);
/* A socket on which ASK arrives (keeper/wire.h). The caller owns it. */
dlx_for_gpu int dlx__call_gpu_serve(struct dlx_client *c, uint64_t publisher, int64_t timeout_ns,
                                    int *ret_sock);
/* Returns 0: the keeper has it, and `ret` is filled. 1: the publisher sends it on `*ret_sock`,
 * which the caller owns. DLX_E_NOT_FOUND, DLX_E_ACCESS. */
dlx_for_gpu int dlx__call_gpu_get(struct dlx_client *c, uint64_t link, uint64_t origin,
                                  uint64_t allocation, struct dlx_new_gpu_memory *ret,
                                  int *ret_sock);

/* The former page: ring/layout.h. The caller has the lock, and owns the fd. Since this minor
 * version. */
#define DLX_FORMER_SINCE 8U
int dlx__call_former_new(struct dlx_client *c, uint32_t n_regions, uint32_t n_sources,
                         uint64_t *ret_size, int *ret_fd);
int dlx__call_former_ready(struct dlx_client *c, uint32_t n_regions, uint32_t n_sources);

/* Did an operator have the daemon disconnect this client (dlx_kick())? Then it never connects
 * again. The caller has the lock. */
static inline bool dlx__call_was_kicked(const struct dlx_client *c)
{
    return c->goodbye == DLX_E_KICKED;
}
/* What errors of kicked programs end with. */
#define DLX_KICKED_REMEDY ": it does not connect again by itself (dlx_connect() does)"
/* Returns DLX_E_KICKED, with who it was. Likewise. */
int dlx__call_fail_kicked(const struct dlx_client *c);

/* Reads why the daemon is about to close the connection, for dlx__client_goodbye(). The caller has
 * the lock. */
void dlx__call_hear_goodbye(struct dlx_client *c);

#endif
