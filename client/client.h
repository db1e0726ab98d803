/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_CLIENT_H
#define DLX_CLIENT_CLIENT_H

/*
 * The connection to the daemon. Publishers and subscriptions keep a reference. Calls are made one at a
 * time under `lock`, which no data path takes.
 */

#include "client/fork.h"
#include "client/lock.h"
#include "client/peer.h"
#include "common/error.h"
#include "common/util.h"
#include <dlx/dlx.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

struct dlx_call;   /* buffers of the calls: client/call.c */
struct dlx_memory; /* common/memory.h */

struct dlx_client {
    atomic_uint refs;
    uint64_t generation;
    struct dlx_lock lock; /* for sock, serial, call */
    int sock;             /* control socket; -1 once it is lost */
    _Atomic uint64_t
        epoch; /* counts connections: what was made with an earlier one is not known to the daemon */
    uint64_t next_try_ns; /* streams neither connect again nor ask for anything before that */
    uint64_t pause_ns;    /* how long that was put off when the daemon last did not answer */
    char name[64];
    uint32_t serial;
    bool unanswered; /* the last request was sent, and what came of it is not known */
    bool silent;     /* the daemon has said nothing since somebody gave up waiting for it */
    struct dlx_call *call;
    int64_t timeout_ns;
    int64_t wait_ns;              /* of dlx_connect(), for a daemon that is not there */
    int (*interrupt)(void *data); /* may a wait go on? NULL: it may */
    void *interrupt_data;
    uint64_t id;
    uint32_t minor;                  /* version of the protocol on this connection */
    const struct dlx_memory *memory; /* backend, as the daemon said */
    struct dlx_peers peers;
    char path[108];
    uint32_t path_kind;    /* enum dlx_daemon_place */
    char passed_over[512]; /* which daemons refused us, and why; "": none */
};

/*
 * Which argument of a call is NULL: the first one is named, and DLX_E_INVALID returned; `code`, and the thread's message stays,
 * where none is.
 *
 *     DLX_NAME_NULL(0, "dlx_subscribe", {"client", c}, {"ret", ret})
 */
struct dlx_argument {
    const char *name;
    const void *value;
};
int dlx__name_null(int code, const char *call, const struct dlx_argument *arguments, size_t n);
#define DLX_NAME_NULL(code, call, ...)                                                             \
    dlx__name_null(code, call, (const struct dlx_argument[]){__VA_ARGS__},                         \
                   sizeof((const struct dlx_argument[]){__VA_ARGS__}) /                            \
                       sizeof(struct dlx_argument))

struct dlx_client *dlx__client_ref(struct dlx_client *c);

/* Copy an argument struct that a caller compiled with another version of the library. `args` may be NULL.
 * Returns 0 or DLX_E_INVALID: smaller than `min`, or bytes set that this library does not know. */
int dlx__args_convert(void *dst, size_t dst_size, size_t min, const void *args);
static inline int dlx__args_copy(void *dst, size_t dst_size, size_t min, const void *args)
{
    size_t size;
    if (dlx_likely(args != NULL)) {
        memcpy(&size, args, sizeof size);
        if (dlx_likely(size == dst_size)) { /* the same version */
            memcpy(dst, args, dst_size);
            return 0;
        }
    }
    return dlx__args_convert(dst, dst_size, min, args);
}

/* The same for a struct that is filled for the caller. */
/* Has this result struct at least `min` bytes? Returns 0, DLX_E_INVALID. */
int dlx__args_check_result(const void *result, size_t min);
int dlx__args_return(void *dst, size_t min, const void *src, size_t src_size);

#endif
