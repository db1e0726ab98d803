/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_DLX_H
#define DLX_DLX_H

/**
 * libdlx: exchange DLPack tensors between processes without copying them.
 *
 *     publisher                                   subscriber
 *     dlx_connect(NULL, &c)                       dlx_connect(NULL, &c)
 *     dlx_publisher_new(c, "cam/front", NULL, &p) dlx_subscribe(c, "cam/front", NULL, &s)
 *     dlx_alloc(p, &spec, &t)                     dlx_take(s, timeout_ns, &m)
 *     ... fill t->dl_tensor.data ...              dlx_message_tensor(m, 0, &r)
 *     dlx_publish(p, t, NULL, NULL)               ... use r, then r->deleter(r) ...
 *
 * Conventions
 *   - A function returns 0 (DLX_OK) or a negative code of enum dlx_error. After a failure,
 *     dlx_errmsg() describes what failed, and which limit.
 *   - Parameters are in this order: the object, what is to be done, an argument struct or a time
 *     limit, and the results (`ret`), which are written only on success.
 *   - x_get_y() fills a struct, x_y() returns a value or makes an object. Calls that begin with
 *     dlx_message_tensor are about one tensor of a message.
 *   - x_unref(NULL) is allowed, and every x_unref returns NULL.
 *   - Argument and result structs begin with `size_t size`. Set it to sizeof(the struct) and zero
 *     the rest: `struct dlx_subscribe_args a = {.size = sizeof a}`. A zero field selects its
 *     default; a NULL pointer selects all defaults. A call fails with DLX_E_INVALID if `size` is
 *     too small, or if trailing bytes that this library does not know are set.
 *   - Times are nanoseconds of CLOCK_MONOTONIC. A timeout_ns of 0 does not wait. DLX_FOREVER, or
 *     any other negative number, waits without a limit.
 *   - Tensors are DLPack 1.x (dlpack/dlpack.h): shapes and strides count elements, not bytes.
 *
 * Threads
 *   - Any number of threads may use one client at once. One thread at a time may use a publisher or
 *     a subscription, and the caller sees to that. If another thread is in a call on the same
 *     object, a call fails with DLX_E_IN_USE and changes nothing; the unref calls do not check
 *     this. Different publishers and subscriptions are independent of each other.
 *   - A thread must not be cancelled in a call (pthread_cancel): the object, and what its client
 *     has locked, stays in use for ever. Disable that around calls (pthread_setcancelstate), and
 *     end waits by `interrupt` or a time limit.
 *   - Any thread may use and release a message or a tensor, in any order, also after the publisher,
 *     the subscription and the client were unreffed. What is held stays valid.
 *
 * Fork
 *   - A child must not use its parent's handles. Every call on them fails with DLX_E_FORKED, and
 *     releasing them does nothing. Received and allocated tensors are not mapped in the child, so
 *     touching one faults. Connect again in the child.
 *
 * The library starts no thread unless tensors are on GPUs (dlx/gpu.h). It installs no signal
 * handler, never logs and never exits.
 */

#include <dlpack/dlpack.h>
#ifndef DLPACK_MAJOR_VERSION
#error "dlpack/dlpack.h is older than DLPack 1.0: add the flags of pkg-config --cflags libdlx"
#endif
#include <dlx/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DLX_API __attribute__((visibility("default")))
#else
#define DLX_API
#endif

#define DLX_VERSION_MAJOR 0
#define DLX_VERSION_MINOR 1
#define DLX_VERSION_PATCH 0

/** Longest topic name in bytes, without the terminating NUL. */
#define DLX_TOPIC_MAX 255
/** Most dimensions of a tensor. */
#define DLX_NDIM_MAX 64
/** Alignment in bytes of every tensor that dlx_alloc() returns or a subscriber receives. */
#define DLX_ALIGNMENT 256
/** Waits without a limit. */
#define DLX_FOREVER INT64_C(-1)

struct dlx_client;
struct dlx_publisher;
struct dlx_subscription;
struct dlx_message;

/* ---- errors and versions ------------------------------------------------------------------- */

/** Returns the text of an error code; "unknown error" for an unknown code. Static, never NULL. */
DLX_API const char *dlx_strerror(int code);

/** Returns the name of an error code without its prefix: "TOPIC"; "UNKNOWN". Static. */
DLX_API const char *dlx_error_name(int code);

/**
 * Returns the calling thread's last failure in words: what failed, on which topic or peer, and
 * which limit it met. The text is empty if the thread's last call of libdlx succeeded, and valid
 * until its next one.
 */
DLX_API const char *dlx_errmsg(void);

/** Returns the version of the library, such as "0.1.0". Static. */
DLX_API const char *dlx_version(void);

/* ---- client -------------------------------------------------------------------------------- */

/** What dlx_connect() does when no daemon answers. */
enum dlx_autospawn {
    DLX_AUTOSPAWN_DEFAULT = 0, /**< start a private one, unless $DLX_AUTOSPAWN is no, off or 0 */
    DLX_AUTOSPAWN_NEVER = 1,   /**< fail with DLX_E_NO_DAEMON */
};

struct dlx_connect_args {
    size_t size;
    /** Path of the daemon's socket. NULL: $DLX_SOCKET; if that is not set, the first of
     *  $XDG_RUNTIME_DIR/dlpackd.sock, /run/dlpackd/dlpackd.sock and /tmp/dlpackd-UID/dlpackd.sock
     *  whose daemon answers and serves this user. See dlx_client_refused_by(). */
    const char *socket;
    /** Name of this program in `dlxctl ls`, at most 63 bytes. NULL: the process's comm. */
    const char *name;
    /** Limit of each request to the daemon, by this call and every later one. 0: 5 seconds. For
     *  a new arena it is longer, by 4 seconds a GiB. A publisher that needs memory makes such a
     *  request: while the daemon is stopped or hangs, the publisher stands still for that long.
     *  A publisher whose arenas suffice needs no daemon. */
    int64_t timeout_ns;
    /** enum dlx_autospawn. It has an effect only if neither `socket` nor $DLX_SOCKET is given. */
    uint32_t autospawn;
    /**
     * Called while a call of this client waits or allocates, in its thread: after 50 ms, then at
     * least every 200 ms, and when a signal handler has run in a wait. 0 goes on. Any other result
     * ends the call with DLX_E_INTERRUPTED, and nothing is lost: messages stay to be taken, tensors
     * still belong to the caller, a late answer is undone, and a daemon that was starting is ended.
     * A call that has completed nevertheless returns 0. NULL: requests to the daemon end by their
     * timeouts only, and other waits also if a signal handler runs during them.
     *
     * All waits for the daemon or another program call it, those of dlx_connect() included; waits
     * for a GPU do not. It may run in several threads at once, and once more after a result other
     * than 0, which it then repeats. It may block, use other clients and release handles that are
     * not in use, but not this client. A call on the publisher or subscription that waits fails
     * with DLX_E_IN_USE, and so does a request to the daemon while this thread waits for one.
     * Requests of other threads wait meanwhile.
     */
    int (*interrupt)(void *interrupt_data);
    void *interrupt_data; /**< passed to `interrupt` */
    /**
     * How long dlx_connect() waits for a daemon that is not there yet, because the socket is
     * missing or nobody listens on it. 0: it does not wait. Then it has `timeout_ns` to answer.
     *
     * dlx_connect() does not wait where it can start a private daemon: it starts one at once. A
     * private daemon that fails to start is not started again.
     */
    int64_t wait_ns;
    /** Called once with `interrupt_data`, if dlx_connect() succeeded, when `interrupt` can be
     *  called no more: the client and all publishers, subscriptions, callers and services made with
     *  it are released. It runs in the thread that releases the last of them. Not called in a
     *  forked child. NULL: none. */
    void (*interrupt_free)(void *interrupt_data);
};

/**
 * Connects to the daemon. If none answers, and neither `socket` nor $DLX_SOCKET is set, starts one.
 *
 * The program of a private daemon is $DLX_DAEMON; else `dlpackd` in the folder of the library or in
 * ../bin from there; else the one on PATH. It listens in $XDG_RUNTIME_DIR if only this user can
 * read and write there, else in /tmp/dlpackd-UID. Programs that start one concurrently share it. It
 * ends after 10 seconds ($DLX_IDLE_EXIT) in which nobody is connected and nothing is retained. It
 * is a child of the caller only if the caller is a child subreaper or process 1. Signals to the
 * calling thread are blocked until the daemon listens, or with `interrupt` until it was executed. A
 * set-user-ID program never starts a daemon. A service should set DLX_AUTOSPAWN=no: its daemon
 * would end with it.
 *
 * If the socket in /run/dlpackd exists but nobody listens on it, the machine's daemon is
 * restarting. Then this call waits for it. It neither goes on to the next path nor starts a private
 * daemon, which would not know the topics of the other programs.
 *
 * Returns 0, or:
 *
 *   DLX_E_NO_DAEMON     nobody listens, or none could be started: the text has the path or the
 *                       program, its exit status and output, and with `wait_ns` the time waited
 *   DLX_E_TIMEOUT       the daemon did not answer, the machine's daemon did not return, or the
 *                       daemon that was started was late and was ended
 *   DLX_E_ACCESS        the daemon refuses this user and no private one could be started; or
 *                       /tmp/dlpackd-UID is a link, belongs to somebody else, or is not of mode
 *                       0700
 *   DLX_E_INTERRUPTED   `interrupt` ended the wait
 *   DLX_E_VERSION       the daemon speaks another major version of the protocol
 *   DLX_E_KERNEL        the kernel is older than Linux 4.14
 *   DLX_E_LIMIT         the daemon has as many connections as it or this user may have
 *   DLX_E_FD_LIMIT      the process may open no more descriptors
 *   DLX_E_NO_MEMORY     the state of the connection could not be allocated
 *   DLX_E_DISCONNECTED  the daemon closed the connection
 *   DLX_E_PROTOCOL      the answer is no answer of dlpackd
 *   DLX_E_INVALID       an argument makes no sense; the text says which
 *   DLX_E_SYSTEM        a system call failed; the text says which
 */
DLX_API int dlx_connect(const struct dlx_connect_args *args, struct dlx_client **ret);

/** Where the daemon of a connection was found. */
enum dlx_daemon_place {
    DLX_DAEMON_NAMED = 0,  /**< at the path in `socket` or $DLX_SOCKET */
    DLX_DAEMON_USER = 1,   /**< in $XDG_RUNTIME_DIR: this user's daemon, or a private one */
    DLX_DAEMON_SYSTEM = 2, /**< in /run/dlpackd: the machine's daemon */
    DLX_DAEMON_TMP = 3,    /**< in /tmp/dlpackd-UID: a private daemon */
};

/** Returns which daemon dlx_connect() chose: the same for the life of the client. Any thread. */
DLX_API enum dlx_daemon_place dlx_client_daemon_place(const struct dlx_client *c);

/**
 * Returns the daemons that dlx_connect() found and that refused this user, each with its path and
 * its reason, as text. Their programs do not see what this client publishes. Empty if there were
 * none, or if a socket was given. Valid as long as the client. Any thread.
 */
DLX_API const char *dlx_client_refused_by(const struct dlx_client *c);

/** Releases the handle. Publishers, subscriptions and messages made with it stay valid. */
DLX_API struct dlx_client *dlx_client_unref(struct dlx_client *c);

/* ---- publisher ----------------------------------------------------------------------------- */

/** What a publisher does when a subscriber is too far behind. */
enum dlx_on_full {
    /** As DLX_ON_FULL_DROP; with `groups`, as DLX_ON_FULL_BLOCK, and a `timeout_ns` of 0 waits
     *  without a limit. */
    DLX_ON_FULL_DEFAULT = 0,
    /** Wait until reliable subscribers have taken it, and groups have done it, for at most
     *  `timeout_ns` of struct dlx_publish_args. If that is 0, as by default, dlx_publish() fails
     *  with DLX_E_FULL. */
    DLX_ON_FULL_BLOCK = 1,
    DLX_ON_FULL_DROP = 2, /**< drop the oldest message beyond `history`, and never wait */
    DLX_ON_FULL_FAIL = 3, /**< as DLX_ON_FULL_BLOCK, but never wait: DLX_E_FULL */
};

struct dlx_publisher_args {
    size_t size;
    /** How many of the newest messages stay readable for subscriptions that ask for a history, 1 to
     *  1024. 0: the larger of 1 and `retain`. Only those that are retained go along to the next
     *  daemon. */
    uint32_t history;
    /** enum dlx_on_full. Only a BLOCK publisher serves reliable subscribers. */
    uint32_t on_full;
    /**
     * How many messages a subscriber may be behind, 1 to 4096, whatever their size. 0: 16. A
     * message that is `depth` behind the newest is dropped. If a reliable subscriber has yet to
     * take or skip it, dlx_publish() waits instead.
     *
     * It costs memory only while one is behind: at most max(depth, history) + held + 1 payloads.
     */
    uint32_t depth;
    /**
     * How many of the newest messages every later subscription gets, without asking for a history.
     * The daemon keeps them for later subscriptions and for dlx_get() when the publisher is gone,
     * even if it was killed. At most `history`. 0: none.
     *
     * Kept messages are charged to the user. They stay until another publisher of the topic, of the
     * same user or of root, has published as many messages as it retains itself; until
     * dlx_drop_retained(); for `retain_for_ns`; or until the daemon ends.
     */
    uint32_t retain;
    /** How long the daemon keeps them after the publisher is gone, and what its `groups` have not
     *  done. 0 and DLX_FOREVER: without a limit. DLX_RETAIN_LATCHED: not at all, so subscriptions,
     *  and workers, get them only while it is there. */
    int64_t retain_for_ns;
    /**
     * How many messages one subscriber may hold at once, 1 to 4096. 0: as many as it asks for, at
     * most 4096. A take beyond that fails with DLX_E_TOO_MANY_HELD.
     *
     * The subscriber's library enforces this and `max_held_bytes`. A link that exceeds them
     * misbehaves: the publisher cuts it when it needs memory, and counts it as `cut` in its stats.
     */
    uint32_t max_held;
    /** How many bytes of payload one subscriber may hold at once. A take by a subscriber that holds
     *  as much fails with DLX_E_TOO_MANY_HELD; so it can exceed this by less than one message. 0:
     *  the user's quota. A bound costs time: messages are taken one by one. */
    uint64_t max_held_bytes;
    /** How many subscribers must be attached when a message is published. If fewer are,
     *  dlx_publish() waits for its timeout_ns, whatever `on_full` says, and then fails with
     *  DLX_E_TIMEOUT. 0: a message may reach nobody, as `n_subscribers` of its report then says. */
    uint32_t min_subscribers;
    /** Names of groups of workers for which messages are kept, also while there is no worker:
     *  <dlx/queue.h>. `n_groups` of them, at most 16; borrowed for the call. The default of `depth`
     *  is 64 then. */
    const char *const *groups;
    uint32_t n_groups;
    /** How many bytes of payload may wait for reliable subscribers and groups, beside `depth`. A
     *  publisher that blocks waits while as many do, so it can exceed this by less than one
     *  message. 0: no limit but the user's quota. */
    uint64_t max_queued_bytes;
};
#define DLX_RETAIN_LATCHED INT64_C(-2) /**< for `retain_for_ns` of struct dlx_publisher_args */

/**
 * Announces a publisher on `topic`. A topic may have several; each one's messages arrive in order.
 *
 * A topic name is 1 to 255 bytes: segments of [A-Za-z0-9_.-] separated by '/', none of them empty,
 * "." or "..".
 *
 * Returns 0; DLX_E_TOPIC, DLX_E_ACCESS, DLX_E_LIMIT, DLX_E_NO_MEMORY (the control block could not
 * be allocated), and the errors of every request to the daemon (dlx_list_publishers()).
 */
DLX_API int dlx_publisher_new(struct dlx_client *c, const char *topic,
                              const struct dlx_publisher_args *args, struct dlx_publisher **ret);

/**
 * Closes the publisher. Subscribers keep what they hold, and can still take what was published.
 *
 * It waits at most 2.5 s for the daemon, and not at all if that ignored the previous call; up to
 * 200 ms for subscribers that have yet to reconnect to a restarted dlpackd; and up to 2 s until the
 * service manager has its retained messages, if dlpackd hands them to it.
 *
 * Returns NULL.
 */
DLX_API struct dlx_publisher *dlx_publisher_unref(struct dlx_publisher *p);

/** Returns the id of the publisher, as dlx_message_publisher() and struct dlx_publisher_info have
 *  it. It has another one once it has reconnected to a daemon: DLX_EVENT_RECONNECTED tells it. */
DLX_API uint64_t dlx_publisher_id(const struct dlx_publisher *p);

/** The tensor that dlx_alloc() makes. */
struct dlx_tensor_spec {
    size_t size;
    DLDataType dtype;     /**< any code with bits > 0 and lanes > 0; unknown codes are carried */
    int32_t ndim;         /**< 0 (a scalar) to DLX_NDIM_MAX */
    const int64_t *shape; /**< ndim sizes >= 0, borrowed for the call; may be NULL for ndim 0 */
    DLDevice device;      /**< {0} or {kDLCPU, 0}: shared memory; else a GPU: <dlx/gpu.h> */
};

/**
 * Allocates a tensor in shared memory, so that publishing it copies nothing.
 *
 * The tensor is writable, row-major and aligned to DLX_ALIGNMENT. Its content is undefined. It
 * belongs to the caller until dlx_publish() succeeds on it, or until the caller calls its deleter,
 * on any thread, also after the publisher was unreffed.
 *
 * Memory that no message needs is reused. If none fits, this call populates a new arena.
 *
 * Returns 0, or:
 *
 *   DLX_E_SHAPE         a negative size, too many dimensions, more than 2^63-1 bytes, zero bits or
 *                       lanes
 *   DLX_E_NO_MEMORY     the text has the bytes and the reason
 *   DLX_E_LIMIT         a quota, or the number of mappings
 *   DLX_E_TIMEOUT       no daemon added an arena in the time of struct dlx_connect_args, or this
 *                       process was stopped twice while it populated one
 *   DLX_E_INTERRUPTED   `interrupt` of dlx_connect_args ended the wait for an arena
 *   DLX_E_DISCONNECTED  no daemon could be asked for an arena
 *   DLX_E_FD_LIMIT      the process may open no more descriptors, which an arena needs
 *   DLX_E_ACCESS        as of dlx_publish()
 *   DLX_E_INVALID       an argument is NULL, or its `size` is wrong
 *   DLX_E_IN_USE        another thread is in a call on this publisher
 *   DLX_E_FORKED        the publisher is the parent's
 *   DLX_E_PROTOCOL      the answer is no answer of dlpackd
 *   DLX_E_SYSTEM        a system call failed; the text says which
 */
DLX_API int dlx_alloc(struct dlx_publisher *p, const struct dlx_tensor_spec *spec,
                      DLManagedTensorVersioned **ret);

/** What dlx_publish() did. The caller sets `size`. */
struct dlx_publish_report {
    size_t size;
    uint64_t seq;           /**< number of the message, 1 for the publisher's first */
    uint64_t copied_bytes;  /**< bytes of payload that were copied into shared memory */
    uint32_t n_copied;      /**< tensors that were copied */
    uint32_t n_subscribers; /**< subscriptions that the message was published to */
    /** Of n_copied, those in memory of this publisher: views of tensors of dlx_alloc(), which would
     *  not have been copied themselves. */
    uint32_t n_copied_views;
};

struct dlx_publish_args {
    size_t size;
    /** Longest wait for reliable subscribers (DLX_ON_FULL_BLOCK) and for `min_subscribers`. */
    int64_t timeout_ns;
    /** The message's time of publication, CLOCK_MONOTONIC. 0: now. */
    uint64_t monotonic_ns;
    /** Fail with DLX_E_WOULD_COPY instead of copying. */
    bool strict;
    /** The caller keeps the tensor, which nobody may write to any more: see dlx_publish(). */
    bool share;
    void *stream; /**< GPUs: the stream that writes the tensors; <dlx/gpu.h> */
    bool stage;   /**< GPUs: copy tensors that cannot be passed on, instead of failing */
};

/**
 * Publishes a tensor as one message.
 *
 * A tensor of dlx_alloc() of this publisher is passed on without a copy. Any other tensor on device
 * CPU, CUDAHost or ROCMHost is copied once, in row-major order, and the report counts it. This
 * holds for received tensors, too: their memory belongs to the publisher that they came from, even
 * if that is this one. A tensor on a GPU is passed on without a copy or refused: <dlx/gpu.h>.
 *
 * On success the tensor belongs to the library, which calls its deleter if it was copied. On
 * failure it still belongs to the caller, who may publish it again. Nobody may write to memory that
 * was passed on: subscribers read it, and later messages reuse it. The caller ensures that nothing
 * in this process (a view, a NumPy array, another DLPack export) writes to it, or copies the tensor
 * first, or publishes it with `share`. dlx_set_debug() finds code that writes.
 *
 * `ret` receives the report on success; it may be NULL.
 *
 * With `share` the tensor stays the caller's, who calls its deleter as if it had not been
 * published. If it was not copied, it has DLPACK_FLAG_BITMASK_READ_ONLY from then on, and nobody
 * may write to it again, even when the message is gone. It may be published again without a copy,
 * also in sets, the last time with or without `share`. Its memory is free when its deleter was
 * called and no message needs it. A tensor that must be copied is copied each time, unless `strict`
 * forbids it; the caller may go on writing to its memory.
 *
 * The call makes no system call unless a subscriber sleeps or joins, or memory is needed (without
 * robust futexes, and beyond a daemon's 2,048th publisher, one a second looks for the daemon).
 *
 * Returns 0, or:
 *
 *   DLX_E_FULL          a BLOCK publisher with timeout_ns 0: a reliable subscriber is `depth`
 *                       behind, and the text names it; publish again later
 *   DLX_E_TIMEOUT       the same after the wait; or there are fewer than `min_subscribers`; or the
 *                       daemon added no arena in its time
 *   DLX_E_INTERRUPTED   `interrupt` of dlx_connect_args ended the wait; without one, a signal
 *                       handler ran during it
 *   DLX_E_WOULD_COPY    with `strict`: the text has the reason for the copy
 *   DLX_E_INVALID       an argument is NULL or makes no sense, or the tensor was published before
 *   DLX_E_SHAPE         the tensor's shape, strides or data type cannot be
 *   DLX_E_DEVICE        the tensor's device cannot be carried, or not without `stage`
 *   DLX_E_VERSION       the tensor's major version of DLPack is not 1
 *   DLX_E_NO_MEMORY     there is none for a copy or a manifest; the text has the bytes
 *   DLX_E_LIMIT         a quota, or the number of mappings, as of dlx_alloc()
 *   DLX_E_DISCONNECTED  no daemon could be asked for an arena, or for the subscribers
 *   DLX_E_FD_LIMIT      the process may open no more descriptors, which an arena needs
 *   DLX_E_ACCESS        dlpackd has reloaded its rules, and they no longer let this program publish
 *                       on the topic: each call fails, and the library asks again once a second
 *   DLX_E_KICKED        an operator has disconnected this program (dlx_kick()): each call fails
 *   DLX_E_IN_USE        another thread is in a call on this publisher
 *   DLX_E_FORKED        the publisher is the parent's
 *   DLX_E_PROTOCOL      the answer is no answer of dlpackd
 *   DLX_E_SYSTEM        a system call failed; the text says which
 */
DLX_API int dlx_publish(struct dlx_publisher *p, DLManagedTensorVersioned *tensor,
                        const struct dlx_publish_args *args, struct dlx_publish_report *ret);

/**
 * Publishes `n` tensors as n messages, in this order. It costs less than n calls of dlx_publish().
 * The timeout is for all of them together.
 *
 * `ret_n` receives the number of published messages; it may be NULL. The tensors after those still
 * belong to the caller. The report is that of the last message, but counts the copied bytes and
 * tensors of all. Both are written on failure, too: the report if a message was published.
 *
 * Returns 0 if all were published, else as dlx_publish() for the first that was not.
 */
DLX_API int dlx_publish_n(struct dlx_publisher *p, DLManagedTensorVersioned *const *tensors,
                          uint32_t n, const struct dlx_publish_args *args,
                          struct dlx_publish_report *ret, uint32_t *ret_n);

/** Publishes a tensor in the struct of DLPack before version 1, which is always copied. Returns as
 *  dlx_publish(). */
DLX_API int dlx_publish_legacy(struct dlx_publisher *p, DLManagedTensor *tensor,
                               const struct dlx_publish_args *args, struct dlx_publish_report *ret);

/**
 * Turns the debug mode on or off for the publishers that this process makes from now on. Until the
 * first call, DLX_DEBUG=1 in the environment turns it on, but not in a program with more rights
 * than its caller (AT_SECURE). Any thread.
 *
 * In debug mode, a publisher write-protects the memory of a message in its own process from
 * dlx_publish() until the memory is reused; in other processes it is always protected. A write
 * raises SIGSEGV, and a debugger shows the line that wrote. The library installs no handler. Each
 * message costs two or more system calls and mappings, and each tensor pages of its own. A message
 * that the kernel does not protect (vm.max_map_count) counts as `unprotected`.
 *
 * These mistakes abort the process, after a line on stderr that names them: a handle or message
 * that is used or released after its release, a deleter called twice or after dlx_publish(),
 * and a write beyond the end of a tensor of dlx_alloc(), which is found when that is published or
 * deleted. Such a write is found up to the end of the page in which the tensor ends, and at least
 * 64 bytes behind it; one further away changes other memory unnoticed, or raises SIGSEGV. Messages
 * are watched on links that are made in debug mode. The last 4096 released objects are known; what
 * was released earlier is freed, and its use is not found.
 */
DLX_API void dlx_set_debug(bool on);

/** Most tensors of one message. */
#define DLX_TENSORS_MAX 65535
/** Longest name of a tensor in bytes. */
#define DLX_NAME_MAX 1023
/** Most metadata of a message in bytes. */
#define DLX_META_MAX 65536

/** A tensor of a set. */
struct dlx_item {
    /** At most DLX_NAME_MAX bytes, unique in the set. NULL or "": none. Borrowed for the call. */
    const char *name;
    DLManagedTensorVersioned *tensor; /**< as for dlx_publish() */
};

/** Bytes of the caller. */
struct dlx_bytes {
    const void *data; /**< borrowed for the call */
    size_t size;      /**< in bytes */
};

/**
 * Allocates `n` tensors (1 to DLX_TENSORS_MAX), all or none, as n calls of dlx_alloc() would. If
 * memory has to be added, one arena takes all of them. `ret` has room for n pointers. On failure
 * each is as before or NULL.
 *
 * Returns as dlx_alloc(); the text names the tensor.
 */
DLX_API int dlx_alloc_set(struct dlx_publisher *p, const struct dlx_tensor_spec *specs, uint32_t n,
                          DLManagedTensorVersioned **ret);

/**
 * Publishes `n_items` tensors (1 to DLX_TENSORS_MAX) and metadata as one message: a subscriber gets
 * all of it or nothing. `meta` is any bytes, at most DLX_META_MAX; NULL: none. Each tensor is
 * passed on or copied as by dlx_publish(). On success all tensors belong to the library; on
 * failure, and with `share`, all belong to the caller.
 *
 * Returns as dlx_publish(), with the index and name of the tensor in the text; and DLX_E_INVALID
 * for no items or too many, a name that is too long or occurs twice, a tensor that occurs twice
 * without `share`, too much metadata.
 */
DLX_API int dlx_publish_set(struct dlx_publisher *p, const struct dlx_item *items, uint32_t n_items,
                            const struct dlx_bytes *meta, const struct dlx_publish_args *args,
                            struct dlx_publish_report *ret);

/**
 * Waits until at least `n_subscribers` are attached. A subscription that is older than the
 * publisher is attached from the start.
 *
 * Like dlx_publish(), dlx_publisher_get_stats() and dlx_publisher_next_event(), the call reconnects
 * to a restarted daemon. Nothing else does, and until then new subscriptions do not see the
 * publisher, unless the service manager keeps what it retains (dlpackd --fd-store). So an idle
 * publisher makes one of these calls now and then; dlx_publisher_wait(p, 0, 0) is cheap.
 *
 * Returns 0; DLX_E_TIMEOUT (the text has the number that is attached and, if the call waited, names
 * them and those that have subscribed and have to make a call first), DLX_E_ACCESS (as of
 * dlx_publish()), DLX_E_INTERRUPTED (`interrupt` of dlx_connect_args ended the wait; without one, a
 * signal handler ran during it), DLX_E_INVALID, DLX_E_NO_MEMORY, DLX_E_IN_USE, DLX_E_FORKED,
 * DLX_E_SYSTEM.
 */
DLX_API int dlx_publisher_wait(struct dlx_publisher *p, uint32_t n_subscribers, int64_t timeout_ns);

/**
 * Gets a file descriptor for poll(2), epoll, libuv or asyncio. Owned by the publisher: do not read,
 * write or close it.
 *
 * Publish with a timeout of 0 until the call fails with DLX_E_FULL or DLX_E_TIMEOUT, then poll. (A
 * publisher with groups says DLX_ON_FULL_FAIL for that.) The descriptor becomes readable when the
 * same call may succeed. This holds for dlx_publish(), dlx_publish_n(), dlx_publish_set(),
 * dlx_publisher_wait() and dlx_publisher_drain(), from the first call of this function on. It is
 * readable at first, and sometimes without a reason. A failure costs some system calls per link.
 *
 * It also becomes readable when the daemon is lost. Without a daemon it still reports room in the
 * ring. But no event announces a new daemon, which a call that waits for subscribers needs: for
 * that the descriptor becomes readable periodically, first after 20 ms, later once a second.
 *
 * Returns the fd; DLX_E_INVALID, DLX_E_FORKED, DLX_E_IN_USE, DLX_E_FD_LIMIT, DLX_E_SYSTEM.
 */
DLX_API int dlx_publisher_fd(struct dlx_publisher *p);

/* ---- subscription -------------------------------------------------------------------------- */

/** Which messages a subscription gets. */
enum dlx_mode {
    DLX_MODE_ALL = 0,    /**< every message in order, from now on */
    DLX_MODE_LATEST = 1, /**< only the newest; messages that it passes over count as skipped */
};

struct dlx_subscribe_args {
    size_t size;
    uint32_t mode; /**< enum dlx_mode */
    /** Begin with up to this many messages that were published before: at most the publisher's own
     *  `history`, at least those that it retains. 0: only those. DLX_HISTORY_NONE: none. */
    uint32_t history;
    /** The publisher waits for this subscription instead of dropping messages, while it is
     *  attached. This needs a BLOCK publisher (but see `accepts_unreliable`) and DLX_MODE_ALL. */
    bool reliable;
    /** How many messages may be held at once, 1 to 4096. 0: 16. */
    uint32_t max_held;
    /** Longest busy wait of dlx_take() before it sleeps, in ns. 0: 20 us, and less while waits are
     *  longer than that. DLX_SPIN_NEVER, DLX_SPIN_ALWAYS. */
    int64_t spin_ns;
    /** A GPU, {kDLCUDA, 0} or {kDLROCM, 0}, that copies from received tensors by itself: the CPU
     *  memory of each publisher is pinned for it. Zeros: none. A copy in a queue reads the tensor
     *  later, so name its stream, or DLX_STREAM_ALL, with dlx_tensor_used_on(). See docs/GPU.md,
     *  "Pinned memory". */
    DLDevice pin;
    /** When dlx_take() fails with DLX_E_PUBLISHER_GONE: when no publisher is attached, at least
     *  this many have left, and everything they published was taken. Then the count begins again.
     *  DLX_PUBLISHERS_ANY: never, so that dlx_take() waits for the next publisher. 0 is 1 for a
     *  topic, and DLX_PUBLISHERS_ANY for a pattern, because its topics come and go: there is a
     *  moment without one between two workers that begin one after the other. A publisher that
     *  reconnects to a restarted dlpackd has not left.
     *  Messages of up to so many publishers (4096; 0: 2, 8 with a pattern) that come and leave
     *  between two calls are kept; those of others are lost, see DLX_EVENT_UNSEEN. */
    uint32_t n_publishers;
    /** GPUs: how long a stream of dlx_message_tensor_on() waits until its publisher has written a
     *  tensor; then it continues without. 0: 5 seconds for a publisher of another user, who could
     *  stop the stream for ever; without a limit for one of this user, whose end is noticed. (A
     *  daemon of protocol 2.7 does not tell whose a publisher is: 5 seconds.) */
    int64_t stream_timeout_ns;
    /** A GPU, such as {kDLCUDA, 1}, whose kernels use received tensors: those that lie on another
     *  GPU of its kind are mapped for it, and say that they are on it, which takes peer access
     *  between the two. Zeros: a tensor is for the GPU that it lies on. */
    DLDevice device;
    /** GPUs: while a stream of dlx_message_tensor_on() waits, this program launches no CUDA kernel
     *  for the first time, as after a round in which it has used each. Then streams wait also where
     *  CUDA loads kernels with their first launch (CUDA_MODULE_LOADING is not EAGER), which may
     *  wait for the publisher, too. False: the CPU waits there, and `gpu_waits` counts it. */
    bool kernels_loaded;
    /** The name of a group, 1 to 63 bytes of [A-Za-z0-9_.-]: its subscriptions are workers that
     *  share the messages of each publisher (<dlx/queue.h>). `mode` is DLX_MODE_ALL then, `history`
     *  0, and `max_held` counts messages that are neither done nor given back, 1 by default. NULL:
     *  none. Borrowed for the call. */
    const char *group;
    /** A worker that has neither done nor renewed a message for so long loses it to another one.
     *  The same for all workers of the group. 0: a worker keeps it as long as its process lives. */
    int64_t lease_ns;
    /** A message that was delivered so often and not done becomes a dead letter, 1 to 60. The same
     *  for all workers of the group. 0: 5. */
    uint32_t max_attempts;
    /** Topic on which this worker publishes a copy of each dead letter that it finds. NULL: none.
     *  Borrowed for the call. */
    const char *dead_letters;
    /** With `reliable`: it is reliable where that is offered. Of publishers that drop, messages may
     *  be lost; dlx_message_get_qos() says of which. Without this such a publisher is refused with
     *  DLX_E_QOS. It needs a daemon of protocol 2.9. */
    bool accepts_unreliable;
};
#define DLX_PUBLISHERS_ANY UINT32_MAX  /**< for `n_publishers`: dlx_take() never ends */
#define DLX_HISTORY_NONE   UINT32_MAX  /**< for `history`: no earlier message, even if retained */
#define DLX_SPIN_NEVER     INT64_C(-1) /**< for `spin_ns`: sleep at once */
#define DLX_SPIN_ALWAYS    INT64_C(-2) /**< for `spin_ns`: never sleep */

/**
 * Subscribes to a topic. No publisher need exist yet. What is published after this call returns
 * reaches the subscription or counts as lost, also from publishers that come later.
 *
 * `topic` may be a pattern, for all topics that match it, now and later: '*' stands for any
 * characters within a segment ("cam/front-*", "*"), and "**" as the last segment for one or more
 * segments. dlx_message_topic() says which topic a message is from.
 *
 * Returns 0; DLX_E_DEVICE (`pin` or `device` names a GPU that this process cannot use; memory that
 * cannot be pinned is no error, but counts as `pin_failures` and gives DLX_EVENT_UNPINNED; without
 * peer access dlx_message_tensor() fails), DLX_E_TOPIC,
 * DLX_E_ACCESS, DLX_E_QOS (the subscription is reliable and a publisher drops: the text names
 * both), DLX_E_PUBLISHER_NOT_RESPONDING (a publisher makes no call, such as dlx_publish(), and its
 * queue of pending links is full), DLX_E_LIMIT, DLX_E_BAD_PEER (a publisher wrote invalid values),
 * and the errors of every request to the daemon (dlx_list_publishers()).
 */
DLX_API int dlx_subscribe(struct dlx_client *c, const char *topic,
                          const struct dlx_subscribe_args *args, struct dlx_subscription **ret);

/** Closes the subscription. Messages and tensors that are held stay valid. */
DLX_API struct dlx_subscription *dlx_subscription_unref(struct dlx_subscription *s);

/**
 * Gets a file descriptor for poll(2), epoll, libuv or asyncio. Owned by the subscription: do not
 * read, write or close it.
 *
 * Take until dlx_take() or dlx_take_n() returns DLX_E_EMPTY or DLX_E_TIMEOUT, then poll: only then
 * is it certain that the descriptor becomes readable when there may be a message. It is readable at
 * first. From the first call of this function on, a take that returns DLX_E_EMPTY asks the
 * publishers to ring the bell, which costs each a system call.
 *
 * Returns the fd; DLX_E_INVALID, DLX_E_FORKED, DLX_E_IN_USE, DLX_E_FD_LIMIT, DLX_E_SYSTEM.
 */
DLX_API int dlx_subscription_fd(struct dlx_subscription *s);

/**
 * Takes the next message. It holds its memory until it, and every tensor made from it, is released.
 *
 * A subscription holds at most `max_held` messages of one publisher at once; that publisher's own
 * max_held and max_held_bytes may allow less.
 *
 * DLX_FOREVER waits for ever if nobody publishes the topic, which may be misspelt. After a shorter
 * wait the text of DLX_E_TIMEOUT says "since nobody publishes it at" the socket of this daemon, and
 * `n_publishers` of dlx_subscription_get_stats() says so at any time.
 *
 * Returns 0, or:
 *
 *   DLX_E_EMPTY           there is no message, and timeout_ns is 0
 *   DLX_E_TIMEOUT         no message came in time
 *   DLX_E_TOO_MANY_HELD   release some: the text has the limit, and whose it is
 *   DLX_E_PUBLISHER_GONE  once, when the last publisher has left and everything it published was
 *                         taken, not of a pattern, see `n_publishers`; later calls wait for a new
 *                         publisher
 *   DLX_E_INTERRUPTED     `interrupt` of dlx_connect_args ended the wait; without one, a signal
 *                         handler ran during it
 *   DLX_E_BAD_PEER        a publisher wrote invalid values: its link is cut, other links continue
 *   DLX_E_QOS             once for each publisher that drops and joins a reliable subscription
 *   DLX_E_KICKED          an operator has disconnected this program (dlx_kick()), each time
 *   DLX_E_DISCONNECTED    once, when no publisher is left and the daemon is lost; later calls wait
 *                         for a new publisher
 *   DLX_E_NO_MEMORY       there is none for the message or a link
 *   DLX_E_LIMIT           the process may have no more mappings
 *   DLX_E_FD_LIMIT        the process may open no more descriptors, which a link needs
 *   DLX_E_INVALID         an argument is NULL
 *   DLX_E_IN_USE          another thread is in a call on this subscription
 *   DLX_E_FORKED          the subscription is the parent's
 *   DLX_E_SYSTEM          a system call failed; the text says which
 */
DLX_API int dlx_take(struct dlx_subscription *s, int64_t timeout_ns, struct dlx_message **ret);

/**
 * Takes up to `n` messages into `ret`: waits for the first as dlx_take() does, and takes the others
 * that are there without waiting. It costs less than n calls of dlx_take(). `ret_n` receives their
 * number.
 *
 * Returns 0 if there is at least one; DLX_E_INVALID (also: n is 0); else as dlx_take().
 */
DLX_API int dlx_take_n(struct dlx_subscription *s, uint32_t n, int64_t timeout_ns,
                       struct dlx_message **ret, uint32_t *ret_n);

/**
 * Gets the newest message of a topic, from its publishers or from what is retained. If there is
 * none, waits for the first. It stays valid until it is released.
 *
 * Returns 0; DLX_E_EMPTY (timeout_ns is 0 and there is none), DLX_E_TIMEOUT, and what
 * dlx_subscribe() and dlx_take() return.
 */
DLX_API int dlx_get(struct dlx_client *c, const char *topic, int64_t timeout_ns,
                    struct dlx_message **ret);

/**
 * Drops what the daemon retains on a topic of publishers that are gone. Held messages stay valid.
 *
 * Returns 0; DLX_E_NOT_FOUND (nothing is retained; the text says whether a publisher is still
 * there), DLX_E_ACCESS (it belongs to another user), DLX_E_TOPIC, and the errors of every request
 * to the daemon (dlx_list_publishers()).
 */
DLX_API int dlx_drop_retained(struct dlx_client *c, const char *topic);

#ifdef __cplusplus
}
#endif

#include <dlx/call.h>
#include <dlx/dtype.h>
#include <dlx/event.h>
#include <dlx/gpu.h>
#include <dlx/info.h>
#include <dlx/message.h>
#include <dlx/observe.h>
#include <dlx/queue.h>
#include <dlx/stats.h>

#endif
