/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_CLIENT_H
#define DLX_CLIENT_CLIENT_H

/*
 * The connection to the daemon. Publishers and subscriptions keep a reference. Calls are made one
 * at a time under `lock`, which no data path takes.
 */

#include "client/base/args.h"
#include "client/base/fork.h"
#include "client/base/lock.h"
#include "client/base/mapped.h"
#include "client/base/peer.h"
#include "common/error.h"
#include "common/util.h"
#include <dlx/dlx.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

struct dlx_call;   /* buffers of the calls: client/control/call.c */
struct dlx_memory; /* common/memory.h */

struct dlx_client {
    atomic_uint refs;
    atomic_bool is_released; /* by the caller */
    uint64_t generation;
    struct dlx_lock lock;   /* for sock, serial, call */
    int sock;               /* control socket; -1 once it is lost */
    _Atomic uint64_t epoch; /* counts connections: the daemon does not know objects of earlier
                               ones */
    uint64_t next_try_ns;   /* streams neither connect again nor ask for anything before that */
    uint64_t pause_ns;      /* the pause when the daemon last did not answer */
    char name[64];
    uint32_t serial;
    bool unanswered;        /* the last request was sent, and its result is not known */
    bool silent;            /* the daemon has sent nothing since a call timed out */
    atomic_bool is_patient; /* the thread with the lock waits for the proof of an arena */
    struct dlx_call *call;
    int64_t timeout_ns;
    int64_t wait_ns;              /* of dlx_connect(), for a daemon to come */
    int (*interrupt)(void *data); /* may a wait go on? NULL: it may */
    void *interrupt_data;
    void (*interrupt_free)(void *data); /* once connected */
    uint64_t id;
    uint32_t minor;                  /* version of the protocol on this connection */
    const struct dlx_memory *memory; /* backend, as the daemon said */
    struct dlx_peers peers;
    struct dlx_mapped *mapped;
    bool tells_former; /* the daemon knows the memory kept of earlier connections */
    int goodbye;       /* why a daemon last disconnected this client, except to stop; 0: none did */
    char goodbye_text[DLX_ERROR_TEXT_SIZE];
    char path[108];
    uint32_t path_kind;   /* enum dlx_daemon_place */
    char refused_by[512]; /* which daemons refused this client, and why; "": none */
};

static inline struct dlx_client *dlx__client_ref(struct dlx_client *c)
{
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}
/* Accepts NULL. */
dlx_for_gpu void dlx__client_unref(struct dlx_client *c);

#endif
