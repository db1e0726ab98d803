/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_CLIENT_H
#define DLXD_CLIENT_H

/*
 * A connection: who it is, its control socket with a bounded queue of replies, and what it owns. It
 * ends when its process dies (pidfd), when its socket hangs up, or when it is disconnected with a
 * reason.
 */

#include "daemon/objects/draining.h"
#include "daemon/base/list.h"
#include "daemon/objects/publisher.h"
#include "daemon/objects/request.h"
#include "daemon/users/user.h"

struct dlx_packet;
struct dlxd_barrier;
struct dlxd_broker;
struct dlxd_gpu_call;
struct dlxd_outbox;
struct dlxd_watch;
struct Dlx__Wire__Packet;

#define DLXD_TX_PACKETS_MAX 64U
#define DLXD_TX_BYTES_MAX   (256U * 1024U)
/* From the hang-up of a process's sockets to its death, at most. */
#define DLXD_DYING_NS UINT64_C(1000000000)
#define DLXD_HELLO_NS UINT64_C(2000000000)
/* Of one user: the one that has not said Hello for longest makes way for the next. */
#define DLXD_GREETING_MAX 256U
/* How many that are not allowed in are kept until their Hello, to answer it. */
#define DLXD_REFUSED_MAX 32U

/*
 *   GREETING --Hello--> OPEN ---> ENDING ---> (freed)
 *       |                            ^
 *       +----------------------------+
 *   REFUSED --Hello, Error-----------+
 */
enum dlxd_client_state {
    DLXD_CLIENT_NEW,      /* nobody knows it yet */
    DLXD_CLIENT_GREETING, /* it has yet to say Hello */
    DLXD_CLIENT_REFUSED,  /* likewise, and will get an error for it */
    DLXD_CLIENT_OPEN,
    DLXD_CLIENT_ENDING, /* nothing is read or sent; what it owns ends, part by part */
};

struct dlxd_client {
    struct dlxd_list node;     /* in broker->clients */
    struct dlxd_list greeting; /* in broker->greeting until Hello */
    enum dlxd_client_state state;
    struct dlxd_task task; /* reads and handles packets; ends what it owns */
    enum dlxd_input input;
    struct dlxd_broker *broker;
    uint64_t id;
    int fd;
    struct dlxd_outbox *outbox; /* of `fd` */
    struct dlxd_watch *watch;
    int pidfd; /* once there is a holder, that has it */
    struct dlxd_watch *pid_watch;

    pid_t pid;
    struct dlxd_principal *principal;
    struct dlxd_user *user;
    char name[DLXD_NAME_SIZE];
    bool dismissed;  /* ENDING: disconnected for a reason: it may be alive, and leaves nothing */
    int refuse_code; /* REFUSED: the answer to its Hello */
    char *refuse_text;
    uint64_t accepted_ns;
    bool is_to_review; /* the rules have changed */

    uint32_t max_links;         /* that its process can bear */
    size_t n_links;             /* as publisher and as subscriber, with those that drain */
    struct dlxd_list shares;    /* of its links: what the subscribers' users have */
    struct dlxd_drains drains;  /* of its publishers */
    struct dlxd_holder *holder; /* of its subscriptions */
    struct dlxd_list publishers;
    struct dlxd_list subscriptions;

    struct dlxd_request request;    /* being handled */
    struct dlxd_barrier *barrier;   /* not NULL: nothing is read before this answer (store.h) */
    bool awaits_proof;              /* likewise: of a region of its (proof.h) */
    struct dlxd_gpu_call *gpu_call; /* likewise: of the GPU keeper */
    struct dlxd_list tx;            /* packets that did not fit in the socket */
    size_t n_tx;
    size_t tx_size;

    struct dlxd_charge connection_charge;
};

/* 0, or DLX_E_KERNEL with the reason: can the death of a client be seen at all? */
int dlxd_client_supported(void);

/*
 * A client for a connection that the listening socket of this name accepted. Takes the fd, also on
 * failure, of which it is told. A client that may not come in is made as well, to answer its Hello
 * with the reason. Returns 0; DLX_E_DISCONNECTED (it is dead
 * already), DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM.
 */
int dlxd_client_new(struct dlxd_client **ret, struct dlxd_broker *broker, int take_fd,
                    const char *socket);
/* ENDING: end a part of what it owns. False: it owns nothing any more. */
bool dlxd_client_end_some(struct dlxd_client *client);
/* At once, with everything it owns. NULL is fine. */
void dlxd_client_free(struct dlxd_client *client);

/* It said Hello. */
void dlxd_client_greet(struct dlxd_client *client, const char *name, uint32_t max_links);
/* Has its process closed the control socket, or died? Looks at both, since the news may be still to come. */
bool dlxd_client_has_left(const struct dlxd_client *client);
static inline bool dlxd_client_is_doomed(const struct dlxd_client *client)
{
    return client->state == DLXD_CLIENT_ENDING;
}
/* The rules have changed: its task looks whether they still allow what it has (review.h). */
void dlxd_client_review(struct dlxd_client *client);
/* Its task ends it; nothing is sent. */
void dlxd_client_doom(struct dlxd_client *client);
/* Tell a connection why it is about to be closed, if that fits in its socket. */
void dlxd_client_goodbye(int borrow_fd, int code, const char *text);
/* The same as doom, with a Disconnect that tells why, if it fits in the socket. */
void dlxd_client_disconnect(struct dlxd_client *client, int code, const char *fmt, ...)
    dlx_printf(3, 4);
/* Disconnect one that may not use the daemon (refuse_code), without waiting for its Hello. */
void dlxd_client_refuse(struct dlxd_client *client);

/*
 * Send on the control socket, after what is queued already. Without fds it cannot fail: a client whose
 * queue is full is disconnected. With fds (they stay the caller's) nothing is queued; returns
 * DLX_E_LIMIT when they cannot be sent now.
 */
void dlxd_client_send(struct dlxd_client *client, const struct Dlx__Wire__Packet *packet);
int dlxd_client_send_fds(struct dlxd_client *client, const struct Dlx__Wire__Packet *packet,
                         const int *fds_borrow, size_t n_fds);
void dlxd_client_send_ok(struct dlxd_client *client, uint32_t serial);
void dlxd_client_send_error(struct dlxd_client *client, uint32_t serial, int code,
                            const char *text);
/* Is it not read from before an answer that it waits for? */
bool dlxd_client_is_paused(const struct dlxd_client *client);
/* `barrier`, `awaits_proof` or `input` has changed. */
void dlxd_client_rewatch(struct dlxd_client *client);

#endif
