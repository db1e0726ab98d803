/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CALL_H
#define DLX_CALL_H

/*
 * Calls: send tensors to one of many workers, and get its answer. Included by dlx/dlx.h.
 *
 *     caller                                      each worker
 *     dlx_caller_new(c, "svc/detect", NULL, &k)   dlx_service_new(c, "svc/detect", NULL, &s)
 *     dlx_caller_alloc(k, &spec, &t)              dlx_service_take(s, DLX_FOREVER, &request)
 *     dlx_call(k, &item, 1, NULL, &reply)         dlx_request_message(request), ... work ...
 *     dlx_message_tensor(reply, 0, &r)            dlx_request_alloc(request, &spec, &t)
 *     dlx_message_unref(reply)                    dlx_reply(request, &item, 1, NULL)
 *                                                 dlx_request_unref(request)
 *
 * A service is the group "service" of its topic (<dlx/queue.h>): each request goes to one worker,
 * which takes it when it is free, and requests wait while there is no worker. There is one reply to
 * a request. Requests and replies are messages: any tensors, sets and metadata, without a copy if
 * they were allocated here.
 *
 * The library matches replies to calls. A reply that comes when its call is over is dropped and
 * counted, never given to another call. Only the caller gets its replies.
 *
 * A call ends in one of these ways:
 *
 *     0                    there is a reply
 *     DLX_E_CALL_FAILED    the worker answered with an error, or let the request go
 *     DLX_E_WORKER_GONE    the worker died; the request may have been carried out in part. The
 *                          caller learns it at once. Not for `idempotent`, which another worker
 *                          gets
 *     DLX_E_TIMEOUT        its time is over; the text says whether no worker serves, none has taken
 *                          the request, or which one has it
 *
 * A worker of another user needs the same rights as any worker: publish for the caller, subscribe
 * and block for the worker. Replies need no rule.
 *
 * One thread at a time may use a caller. The same holds for a service together with its requests.
 */

#include <dlx/dlx.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dlx_caller;
struct dlx_service;
struct dlx_request;

/** The group whose workers answer calls. */
#define DLX_SERVICE_GROUP "service"
/** Most calls of one caller that may be in flight. */
#define DLX_IN_FLIGHT_MAX 1024
/** Most metadata of a request or a reply in bytes. */
#define DLX_CALL_META_MAX (DLX_META_MAX - 64)
/** Most bytes of the text of dlx_reply_error() that reach the caller, without the NUL. */
#define DLX_CALL_TEXT_MAX 1023

/* ---- callers ------------------------------------------------------------------------------- */

struct dlx_caller_args {
    size_t size;
    /**
     * How many calls may be in flight, 1 to DLX_IN_FLIGHT_MAX. 0: 16. A call is in flight until its
     * result was taken; one that timed out or was cancelled, until a worker has let go of it.
     */
    uint32_t max_in_flight;
    /** Longest busy wait for a reply, as in struct dlx_subscribe_args. */
    int64_t spin_ns;
};

/**
 * Makes a caller of the service on `topic`, which need not exist yet.
 *
 * Returns 0; DLX_E_INVALID, DLX_E_VERSION (the daemon knows no calls), and what dlx_publisher_new()
 * and dlx_subscribe() return.
 */
DLX_API int dlx_caller_new(struct dlx_client *c, const char *topic,
                           const struct dlx_caller_args *args, struct dlx_caller **ret);

/** Cancels what is in flight and closes the caller. Replies that are held stay valid. Returns NULL.
 */
DLX_API struct dlx_caller *dlx_caller_unref(struct dlx_caller *k);

/**
 * Waits until a worker of the service is attached, or will be in its next call: requests wait for
 * a worker whose process computes. Without the right to observe the topic, the caller does not hear
 * of a worker that is not attached.
 *
 * Returns as dlx_publisher_wait().
 */
DLX_API int dlx_caller_wait(struct dlx_caller *k, int64_t timeout_ns);

/** Allocates a tensor for a request, as dlx_alloc() does. */
DLX_API int dlx_caller_alloc(struct dlx_caller *k, const struct dlx_tensor_spec *spec,
                             DLManagedTensorVersioned **ret);

struct dlx_call_args {
    size_t size;
    /** Time for the whole call. It travels with the request: a worker does not start what is over.
     *  0 and DLX_FOREVER: without a limit. */
    int64_t timeout_ns;
    /** The request may be carried out more than once: if its worker dies, another one gets it. */
    bool idempotent;
    /** Metadata of the request, at most DLX_CALL_META_MAX bytes; NULL: none. Borrowed for the call.
     */
    const struct dlx_bytes *meta;
    /** How the tensors are published: `strict`, `share`, `stream` and `stage` count. NULL: without
     *  these. Borrowed for the call. */
    const struct dlx_publish_args *publish;
};

/**
 * Sends a request of `n_items` tensors (1 to DLX_TENSORS_MAX) and waits for its reply. Once the
 * request was sent, the tensors belong to the library, as after dlx_publish_set(), whatever becomes
 * of the call. When the call fails before that, they still belong to the caller of this function.
 * `ret_sent`, unless it is NULL, is set to whether the request was sent, also on failure.
 *
 * `ret` receives the reply, which dlx_message_unref() releases. dlx_message_meta() of it is what
 * the worker gave. Other calls in flight go on meanwhile; dlx_call_take() tells their results.
 *
 * Returns 0, or:
 *
 *   DLX_E_CALL_FAILED    the worker answered with an error: the text has its words and code, see
 *                        dlx_caller_worker_code(); or it let the request go without a reply
 *   DLX_E_WORKER_GONE    its worker died, the text has its name and pid; or workers died again and
 *                        again on an idempotent request
 *   DLX_E_TIMEOUT        no reply came in time
 *   DLX_E_FULL           nothing was sent: `max_in_flight` calls are in flight; or a request lies
 *                        so many requests back that no other may follow it (8 * max_in_flight, at
 *                        least 128 and at most 4096), and its worker is not done with it, or has
 *                        replied and has yet to say so: the text names that worker
 *   DLX_E_TOO_MANY_HELD  too many replies are held: release some. The call is lost
 *   DLX_E_INTERRUPTED    `interrupt` of dlx_connect_args ended the wait, or a signal handler did.
 *                        The call is cancelled
 *   and as dlx_publish_set(), when nothing was sent; as dlx_take(), if memory or descriptors for
 *   the reply are lacking: the call is cancelled, too
 */
DLX_API int dlx_call(struct dlx_caller *k, const struct dlx_item *items, uint32_t n_items,
                     const struct dlx_call_args *args, struct dlx_message **ret, bool *ret_sent);

/**
 * Sends a request, and does not wait. `ret` receives a number for the call, which this caller gives
 * to no other one.
 *
 * Returns 0, and then the tensors belong to the library, and dlx_call_take() tells the result; or
 * as dlx_call() when nothing was sent.
 */
DLX_API int dlx_call_begin(struct dlx_caller *k, const struct dlx_item *items, uint32_t n_items,
                           const struct dlx_call_args *args, uint64_t *ret);

/** How a call ended. The caller of dlx_call_take() sets `size`. */
struct dlx_call_result {
    size_t size;
    uint64_t call;             /**< as dlx_call_begin() returned it */
    int32_t code;              /**< 0, or a code of enum dlx_error: see the top of this file */
    int32_t worker_code;       /**< if DLX_E_CALL_FAILED: what the worker gave; 0: it gave none */
    uint32_t worker_pid;       /**< of the worker, as in struct dlx_link_info; 0: unknown */
    const char *text;          /**< if it failed: why. Valid until the next call on this caller */
    struct dlx_message *reply; /**< if `code` is 0: the reply, for dlx_message_unref(); else NULL */
};

/**
 * Takes the result of a call that has ended, in the order in which they ended. A call that was
 * cancelled has none.
 *
 * Returns 0 if a call has ended, even if that failed; DLX_E_EMPTY (none has ended, and timeout_ns
 * is 0), DLX_E_TIMEOUT (none has ended in time), DLX_E_NOT_FOUND (none is in flight),
 * DLX_E_TOO_MANY_HELD (release replies first), DLX_E_INTERRUPTED, DLX_E_INVALID, DLX_E_IN_USE,
 * DLX_E_FORKED, DLX_E_NO_MEMORY, DLX_E_FD_LIMIT, DLX_E_SYSTEM.
 */
DLX_API int dlx_call_take(struct dlx_caller *k, int64_t timeout_ns, struct dlx_call_result *ret);

/**
 * Gives up a call: dlx_call_take() will not tell its result. A worker that has not started does not
 * start; one that has can see it by dlx_request_cancelled().
 *
 * Returns 0; DLX_E_NOT_FOUND (it is not in flight), DLX_E_INVALID, DLX_E_IN_USE, DLX_E_FORKED.
 */
DLX_API int dlx_call_cancel(struct dlx_caller *k, uint64_t call);

/** Returns the code of dlx_reply_error() of the last call of this caller that ended with
 *  DLX_E_CALL_FAILED; 0 if its worker gave none. */
DLX_API int32_t dlx_caller_worker_code(const struct dlx_caller *k);

/**
 * Gets a file descriptor for poll(2), epoll, libuv or asyncio. Owned by the caller: do not read,
 * write or close it.
 *
 * Take until dlx_call_take() returns DLX_E_EMPTY or DLX_E_NOT_FOUND, then poll: the descriptor
 * becomes readable when there may be a result, also when the time of a call is over. It is readable
 * at first, and sometimes without a reason.
 *
 * Returns the fd; DLX_E_INVALID, DLX_E_FORKED, DLX_E_IN_USE, DLX_E_FD_LIMIT, DLX_E_SYSTEM.
 */
DLX_API int dlx_caller_fd(struct dlx_caller *k);

struct dlx_caller_stats {
    size_t size;
    uint64_t calls;        /**< requests that were sent */
    uint64_t replies;      /**< calls that got a reply */
    uint64_t failed;       /**< calls that ended with DLX_E_CALL_FAILED */
    uint64_t workers_gone; /**< calls that ended with DLX_E_WORKER_GONE */
    uint64_t timed_out;    /**< calls that ended with DLX_E_TIMEOUT */
    uint64_t cancelled;    /**< calls that were cancelled */
    uint64_t late;         /**< replies that were dropped: their calls were over */
    uint32_t n_in_flight;  /**< calls in flight, now */
    uint32_t n_workers;    /**< workers attached at the last call on this caller */
};

/** Gets the counters of a caller. Returns 0; DLX_E_INVALID, DLX_E_FORKED, DLX_E_IN_USE. */
DLX_API int dlx_caller_get_stats(struct dlx_caller *k, struct dlx_caller_stats *ret);

/* ---- services ------------------------------------------------------------------------------ */

struct dlx_service_args {
    size_t size;
    /** How many requests this worker may have at once, 1 to 4096. 0: 1. */
    uint32_t max_held;
    /** Longest busy wait for a request, as in struct dlx_subscribe_args. */
    int64_t spin_ns;
};

/**
 * Begins to serve `topic`, which may be a pattern, as one of its workers.
 *
 * Returns as dlx_subscribe() for a worker of a group.
 */
DLX_API int dlx_service_new(struct dlx_client *c, const char *topic,
                            const struct dlx_service_args *args, struct dlx_service **ret);

/** Ends the service. Requests that were not answered are answered as by dlx_request_unref(); they
 *  stay valid, and their messages too. Returns NULL. */
DLX_API struct dlx_service *dlx_service_unref(struct dlx_service *s);

/**
 * Takes the next request. What is not worth starting is not handed out: requests that were
 * cancelled, whose time is over, or whose caller is gone; and those that a worker had when it died,
 * unless they are idempotent.
 *
 * Returns 0, or as dlx_take(), but not DLX_E_PUBLISHER_GONE, DLX_E_DISCONNECTED or DLX_E_BAD_PEER:
 * it goes on. What dlx_publisher_new() returns says why there is no way to reply to a caller. The
 * next two takes try again; then others have their turn: another worker gets the request if it is
 * idempotent, and the call fails with DLX_E_WORKER_GONE otherwise.
 */
DLX_API int dlx_service_take(struct dlx_service *s, int64_t timeout_ns, struct dlx_request **ret);

/** Gets a file descriptor, as dlx_subscription_fd(): take until DLX_E_EMPTY, then poll. */
DLX_API int dlx_service_fd(struct dlx_service *s);

/**
 * Lends the message of the request, with the tensors and metadata that the caller gave. The message
 * lives as long as the request, or longer by dlx_message_ref(). dlx_message_done() and
 * dlx_message_give_back() are not for it.
 */
DLX_API struct dlx_message *dlx_request_message(struct dlx_request *request);

/** Returns when the time of the request is over, CLOCK_MONOTONIC; UINT64_MAX: never. */
DLX_API uint64_t dlx_request_deadline_ns(const struct dlx_request *request);

/** Has the caller given up? It cancelled the call, its time is over, or it is gone. */
DLX_API bool dlx_request_cancelled(const struct dlx_request *request);

/** Allocates a tensor for the reply, as dlx_alloc() does: a tensor that was allocated for another
 *  caller is copied. */
DLX_API int dlx_request_alloc(struct dlx_request *request, const struct dlx_tensor_spec *spec,
                              DLManagedTensorVersioned **ret);

struct dlx_reply_args {
    size_t size;
    /** Metadata of the reply, at most DLX_CALL_META_MAX bytes; NULL: none. Borrowed for the call.
     */
    const struct dlx_bytes *meta;
    /** As in struct dlx_call_args. */
    const struct dlx_publish_args *publish;
};

/**
 * Answers the request with `n_items` tensors (1 to DLX_TENSORS_MAX). It never waits for the caller.
 * If that has given up, the reply is dropped.
 *
 * Returns 0, and then the tensors belong to the library, and the request to the caller of this
 * function, who releases it; DLX_E_NOT_FOUND (it was answered before); else as dlx_publish_set().
 */
DLX_API int dlx_reply(struct dlx_request *request, const struct dlx_item *items, uint32_t n_items,
                      const struct dlx_reply_args *args);

/**
 * Answers the request with an error: its call fails with DLX_E_CALL_FAILED, this text and this
 * code, any number. NULL is an empty text; of a longer one, the first DLX_CALL_TEXT_MAX bytes
 * count.
 *
 * Returns as dlx_reply().
 */
DLX_API int dlx_reply_error(struct dlx_request *request, int32_t code, const char *text);

/** Releases the request. If it was not answered, its call fails with DLX_E_CALL_FAILED: "the worker
 *  let the request go without a reply". NULL is allowed. Returns NULL. */
DLX_API struct dlx_request *dlx_request_unref(struct dlx_request *request);

struct dlx_service_stats {
    size_t size;
    uint64_t requests;  /**< handed out */
    uint64_t replies;   /**< answers with tensors */
    uint64_t errors;    /**< answers with an error, also of requests that were let go */
    uint64_t expired;   /**< not handed out: cancelled, or their time was over */
    uint64_t gone;      /**< not handed out: an earlier worker died; answered so */
    uint64_t abandoned; /**< not handed out, or answered in vain: the caller was gone */
    /** Not handed out: messages that are no requests, or whose caller could not be answered. */
    uint64_t refused;
    uint32_t n_held;    /**< requests that are not answered, now */
    uint32_t n_callers; /**< callers that this worker has a way to answer to, now */
};

/** Gets the counters of a service. Returns 0; DLX_E_INVALID, DLX_E_FORKED, DLX_E_IN_USE. */
DLX_API int dlx_service_get_stats(struct dlx_service *s, struct dlx_service_stats *ret);

#ifdef __cplusplus
}
#endif

#endif
