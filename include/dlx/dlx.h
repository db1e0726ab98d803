/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_DLX_H
#define DLX_DLX_H

/**
 * libdlx: exchange DLPack tensors between processes without copying them.
 *
 *     publisher                                   subscriber
 *     dlx_connect(&c, NULL)                       dlx_connect(&c, NULL)
 *     dlx_publisher_new(c, "cam/front", NULL, &p) dlx_subscribe(c, "cam/front", NULL, &s)
 *     dlx_alloc(p, &spec, &t)                     dlx_take(s, timeout_ns, &m)
 *     ... fill t->dl_tensor.data ...              dlx_message_tensor(m, 0, &r)
 *     dlx_publish(p, t, NULL)                     ... use r, then r->deleter(r) ...
 *
 * Conventions
 *   - Functions return 0 (or DLX_OK) or a negative code of enum dlx_error. Outputs are written only
 *     on success. dlx_client_errmsg() tells the last failure of the calling thread in words.
 *   - `x_unref(NULL)` is allowed and every x_unref returns NULL.
 *   - Argument structs begin with `size_t size`: set it to sizeof(the struct) and zero the rest
 *     (`struct dlx_subscribe_args a = {.size = sizeof a}`); a zero field means its default. NULL
 *     means all defaults. Size smaller than the first version or with set bytes that this library
 *     does not know: DLX_E_INVALID.
 *   - Times are nanoseconds of CLOCK_MONOTONIC. A timeout_ns of 0 does not wait; DLX_FOREVER (any
 *     negative number) waits without a limit.
 *   - Tensors are DLPack 1.x (dlpack/dlpack.h): shapes and strides count elements, not bytes.
 *
 * Threads
 *   - A client may be used by any number of threads at once. One publisher, and one subscription,
 *     is used by one thread at a time: the caller serialises calls on it. A call that meets another
 *     thread's changes nothing and fails with DLX_E_IN_USE; unref is not checked. Different publishers
 *     and subscriptions are independent.
 *   - A message, and the deleter of a tensor, may be used and released on any thread, in any order,
 *     also after the publisher, subscription and client were unreffed: what is held stays valid.
 *
 * Fork
 *   - A child must not use its parent's handles: every call says DLX_E_FORKED, and releasing is a
 *     no-op. Memory of received and allocated tensors is not mapped in the child: touching it
 *     faults. Connect again in the child.
 *
 * The library starts no thread, installs no signal handler, never logs and never exits.
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
/** Alignment in bytes of everything that dlx_alloc() returns and every subscriber receives. */
#define DLX_ALIGNMENT 256
/** Wait without a limit. */
#define DLX_FOREVER INT64_C(-1)

struct dlx_client;
struct dlx_publisher;
struct dlx_subscription;
struct dlx_message;

/* ---- errors and versions ------------------------------------------------------------------- */

/** The text of a code, "unknown error" for one that is not known. Static, never NULL. */
DLX_API const char *dlx_strerror(int code);

/** The name of a code without its prefix ("TOPIC"), "UNKNOWN" for one that is not known. Static. */
DLX_API const char *dlx_error_name(int code);

/**
 * The last failure of a libdlx call made by the calling thread, in words: what failed, on which
 * topic or peer, and which limit. Empty when its last call did not fail. Valid until the thread's
 * next call. `c` may be NULL (for a dlx_connect() that failed).
 */
DLX_API const char *dlx_client_errmsg(const struct dlx_client *c);

/** The library's version, "0.1.0". Static. */
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
     *  that answers and serves this user: see dlx_client_passed_over(). */
    const char *socket;
    /** Name of this program for `dlxctl ls`, at most 63 bytes. NULL: the process's comm. */
    const char *name;
    /** Bound on this and every later call that asks the daemon something. 0: 5 seconds. */
    int64_t timeout_ns;
    /** enum dlx_autospawn. Only where neither `socket` nor $DLX_SOCKET names a daemon. */
    uint32_t autospawn;
    /** Called every 50 ms or more often, in its thread, by a call that waits for the daemon; NULL:
     *  never. A result other than 0 ends the wait with DLX_E_INTERRUPTED, which a signal alone does
     *  not. It may close handles that are not in use, but not the client; its own calls to the
     *  daemon fail with DLX_E_IN_USE. */
    int (*interrupt)(void *interrupt_data);
    void *interrupt_data;
    /**
     * How long dlx_connect() waits for a daemon that is not there yet: the socket is missing, or
     * nobody listens on it. 0: it does not wait. The daemon then has `timeout_ns` to answer.
     *
     * Where a private daemon can be started, dlx_connect() starts it at once and does not wait. So
     * this matters where a socket is named, with `autospawn` NEVER or DLX_AUTOSPAWN=no, and where
     * there is no program to start. A private daemon that fails to start is not started again.
     */
    int64_t wait_ns;
};

/**
 * Connect to the daemon. If no daemon is named and none answers, start a private one for this user:
 * $DLX_DAEMON, else `dlpackd` beside the library or in ../bin from there, else the one on PATH. It
 * listens in $XDG_RUNTIME_DIR if only this user can read and write there, else in /tmp/dlpackd-UID.
 * All who start one at the same time share it. It ends after 10 seconds ($DLX_IDLE_EXIT) with
 * nobody connected and nothing retained. It is a child of the caller only if that is a child
 * subreaper or process 1. Signals of the calling thread wait until it listens. A set-user-ID
 * program starts none; a service should not, since its daemon would end with it: set
 * DLX_AUTOSPAWN=no.
 *
 * While nobody listens on the socket in /run/dlpackd, the machine's daemon restarts: this waits for
 * it, and neither goes on to the next path nor starts a private one, which would know none of the
 * topics that others have.
 *
 * Returns 0; DLX_E_NO_DAEMON (nobody listens, or none could be started: the message names the path
 * or the program, its exit status and what it said, and with `wait_ns` how long this waited),
 * DLX_E_TIMEOUT (no answer, the machine's did not come back, or the one started was late and was
 * ended), DLX_E_ACCESS (not let in, and no private one could be started; or /tmp/dlpackd-UID is a
 * link, somebody else's, or not of mode 0700), DLX_E_VERSION, DLX_E_LIMIT, DLX_E_FD_LIMIT,
 * DLX_E_NO_MEMORY, DLX_E_DISCONNECTED, DLX_E_PROTOCOL, DLX_E_INVALID, DLX_E_SYSTEM.
 */
DLX_API int dlx_connect(struct dlx_client **ret, const struct dlx_connect_args *args);

/** Where the daemon of a connection was found. */
enum dlx_daemon_place {
    DLX_DAEMON_NAMED = 0,  /**< `socket` or $DLX_SOCKET named it */
    DLX_DAEMON_USER = 1,   /**< in $XDG_RUNTIME_DIR: this user's, or a private one */
    DLX_DAEMON_SYSTEM = 2, /**< in /run/dlpackd: the machine's */
    DLX_DAEMON_TMP = 3,    /**< in /tmp/dlpackd-UID: a private one */
};

/** Which daemon dlx_connect() chose. It stays the same for the life of the client. Any thread. */
DLX_API enum dlx_daemon_place dlx_client_place(const struct dlx_client *c);

/**
 * The daemons that dlx_connect() found and that refused this user, each with its path and its
 * words: whoever uses those does not see what this client publishes. "" where there were none, and
 * where a daemon was named. Valid as long as the client. Any thread.
 */
DLX_API const char *dlx_client_passed_over(const struct dlx_client *c);

/** Drop the handle. Publishers, subscriptions and messages made with it stay valid. */
DLX_API struct dlx_client *dlx_client_unref(struct dlx_client *c);

/* ---- publisher ----------------------------------------------------------------------------- */

enum dlx_on_full {
    DLX_ON_FULL_DROP = 0, /**< retire the oldest message beyond `history` */
    /** wait until reliable subscribers have taken it, as long as `timeout_ns` of dlx_publish_args
     *  says: 0, or without these, not at all, and dlx_publish() fails with DLX_E_FULL */
    DLX_ON_FULL_BLOCK = 1,
};

struct dlx_publisher_args {
    size_t size;
    /** Newest messages that stay readable for subscriptions that ask for a history, 1 to 1024. 0:
     *  the larger of 1 and `retain`. */
    uint32_t history;
    /** enum dlx_on_full. Only a BLOCK publisher serves reliable subscribers. */
    uint32_t on_full;
    /**
     * How far a subscriber may be behind, in messages of any size, 1 to 4096. 0: 16. A message that
     * is `depth` behind the newest is dropped; if a reliable subscriber has not passed it,
     * dlx_publish() waits.
     *
     * Depth costs memory only while somebody is behind: at most max(depth, history) + held + 1
     * payloads, in arenas that are larger than their payloads.
     */
    uint32_t depth;
    /**
     * Newest messages that later subscriptions get without asking for a history, and that the
     * daemon keeps for them and for dlx_get() when the publisher is gone, even if it was killed. At
     * most `history`. 0: none. They stay, charged to the user, until another publisher of the
     * topic, of the same user or of root, has published as many messages as it retains itself;
     * until dlx_retained_drop(); for `retain_for_ns`; or until the daemon ends.
     */
    uint32_t retain;
    /** How long they stay when the publisher is gone. 0 and DLX_FOREVER: without a limit.
     *  DLX_RETAIN_LATCHED: not at all; subscriptions get them only while the publisher is there. */
    int64_t retain_for_ns;
    /**
     * Messages that one subscriber may hold at once, 1 to 4096. 0: as many as it asks for, at most
     * 4096. A take beyond that fails with DLX_E_TOO_MANY_HELD.
     *
     * The subscriber's library enforces this and `max_held_bytes`. A link whose shared memory says
     * that it holds more was not written by that library: when memory is wanted, it is cut, and
     * counted as `cut` in struct dlx_publisher_stats.
     */
    uint32_t max_held;
    /** Bytes of payload that one subscriber may hold at once: while it holds so many or more, a
     *  take fails with DLX_E_TOO_MANY_HELD. So it pins less than this, and one message. 0: no bound
     *  but the user's quota. Costs time: such a subscriber takes messages one by one. */
    uint64_t max_held_bytes;
    /** Subscribers that must be attached when a message is published. If there are fewer,
     *  dlx_publish() waits for its timeout_ns, whatever `on_full` says, and then fails with
     *  DLX_E_TIMEOUT. 0: a message may reach nobody, which the report says (`n_subscribers`). */
    uint32_t min_subscribers;
};
#define DLX_RETAIN_LATCHED INT64_C(-2)

/**
 * Announce a publisher on `topic`. A topic name is 1 to 255 bytes: segments of [A-Za-z0-9_.-]
 * separated by '/', none of them empty, "." or "..".
 *
 * Several publishers may serve one topic; order holds per publisher.
 *
 * Returns 0; DLX_E_TOPIC, DLX_E_INVALID, DLX_E_ACCESS, DLX_E_LIMIT, DLX_E_NO_MEMORY (the control
 * block could not be allocated), DLX_E_DISCONNECTED, DLX_E_TIMEOUT, DLX_E_FD_LIMIT,
 * DLX_E_PROTOCOL, DLX_E_FORKED, DLX_E_SYSTEM.
 */
DLX_API int dlx_publisher_new(struct dlx_client *c, const char *topic,
                              const struct dlx_publisher_args *args, struct dlx_publisher **ret);

/**
 * Leave. Subscribers keep what they hold and drain what was published.
 *
 * Waits at most 2.5 s for the daemon's answer (skipped if the daemon ignored the previous call); up
 * to 200 ms for subscribers that have yet to reconnect to a restarted dlpackd, if it has published
 * since; and at most 2 s until the service manager has its retained messages, if dlpackd keeps them
 * there.
 *
 * Returns NULL.
 */
DLX_API struct dlx_publisher *dlx_publisher_unref(struct dlx_publisher *p);

struct dlx_tensor_spec {
    size_t size;
    DLDataType dtype;     /**< any code with bits > 0 and lanes > 0; unknown codes are carried */
    int32_t ndim;         /**< 0 (a scalar) to DLX_NDIM_MAX */
    const int64_t *shape; /**< ndim sizes >= 0, borrowed for the call; may be NULL for ndim 0 */
    DLDevice device;      /**< {0} or {kDLCPU, 0}: shared memory; else a GPU: <dlx/gpu.h> */
};

/**
 * Allocate a tensor that already lies in shared memory, so that publishing it copies nothing.
 *
 * The tensor is CPU, writable, row-major, aligned to DLX_ALIGNMENT, its content undefined. It
 * belongs to the caller until dlx_publish() succeeds on it or its deleter is called. The deleter
 * may run on any thread, also after the publisher was unreffed.
 *
 * Memory of messages that nobody needs is used again; if none fits, the daemon adds an arena.
 *
 * Returns 0; DLX_E_SHAPE (negative, too many dimensions, more than 2^63-1 bytes, zero bits or
 * lanes), DLX_E_NO_MEMORY (names the bytes and why), DLX_E_LIMIT (a quota, mappings),
 * DLX_E_DISCONNECTED or DLX_E_TIMEOUT (no daemon within the time of dlx_connect_args), DLX_E_ACCESS
 * (as of dlx_publish()), DLX_E_FORKED, DLX_E_INVALID.
 */
DLX_API int dlx_alloc(struct dlx_publisher *p, const struct dlx_tensor_spec *spec,
                      DLManagedTensorVersioned **ret);

/** What dlx_publish() did. */
struct dlx_publish_report {
    size_t size;
    uint64_t seq;           /**< number of the message, 1 for the publisher's first */
    uint64_t copied_bytes;  /**< payload bytes that were copied into shared memory */
    uint32_t n_copied;      /**< tensors that were copied */
    uint32_t n_subscribers; /**< subscriptions that the message was published to */
};

struct dlx_publish_args {
    size_t size;
    /** How long to wait for reliable subscribers (DLX_ON_FULL_BLOCK) and for `min_subscribers`. 0:
     *  do not wait. */
    int64_t timeout_ns;
    /** Publish time to stamp, CLOCK_MONOTONIC. 0: now. */
    uint64_t monotonic_ns;
    /** Fail with DLX_E_WOULD_COPY instead of copying. */
    bool strict;
    /** The caller keeps the tensor, and promises not to write to it any more: see dlx_publish(). */
    bool share;
    /** Filled on success when not NULL; its `size` must be set. */
    struct dlx_publish_report *report;
    void *stream; /**< that wrote the tensors, if they are on GPUs: <dlx/gpu.h> */
    bool
        stage; /**< Copy tensors on GPUs that cannot be passed on, instead of failing: <dlx/gpu.h> */
};

/**
 * Publish a tensor as one message.
 *
 * A tensor of dlx_alloc() of this publisher is passed on without a copy. Any other tensor on device
 * CPU, CUDAHost or ROCMHost is copied once, compacted to row-major, and the report says so. That
 * includes received tensors, whose memory belongs to their own publisher, even if that is this one.
 * One on a GPU is passed on without a copy, or refused: <dlx/gpu.h>.
 *
 * Ownership passes on success: the tensor is spent, and its deleter is called if it was copied. On
 * failure the caller still owns it and may publish it again. From the call on nobody may write to
 * memory that was passed: subscribers read it, and later messages reuse it. The library cannot see
 * what else in this process refers to that memory (a view, a NumPy array, another DLPack export):
 * the caller makes sure that it is not used any more, copies the tensor first, or publishes with
 * `share` and keeps it for reading. dlx_set_debug() finds writers.
 *
 * With `share` ownership never passes: the caller calls the deleter as if the tensor had not been
 * published. If it was not copied, it has DLPACK_FLAG_BITMASK_READ_ONLY from then on, and nobody
 * may write to its memory again, even after the message is gone. It may be published again without
 * a copy, also in sets, any number of times; the last time perhaps without `share`. Its memory
 * comes back when the deleter was called and no message needs it. A tensor that must be copied is
 * copied each time, which the report says and `strict` forbids; its memory stays the caller's to
 * write.
 *
 * No system call is made while no subscriber sleeps, no memory is needed and nobody joins. (One
 * call a second looks for a dlpackd that has ended, where the kernel has no robust futexes, and for
 * publishers beyond the 2,048th of a daemon.)
 *
 * Returns 0; DLX_E_FULL (of a BLOCK publisher: a reliable subscriber is `depth` behind, and
 * timeout_ns is 0: the message names who is in the way), DLX_E_TIMEOUT (likewise, after the wait;
 * or fewer than `min_subscribers`), DLX_E_INTERRUPTED (a signal handler ran while waiting),
 * DLX_E_SHAPE, DLX_E_DEVICE, DLX_E_VERSION (major version not 1), DLX_E_WOULD_COPY,
 * DLX_E_NO_MEMORY, DLX_E_LIMIT, DLX_E_DISCONNECTED, DLX_E_ACCESS (dlpackd has read its rules again,
 * and they do not let this program publish on the topic any more: each call fails, and the library
 * asks again once a second), DLX_E_INVALID (also: the tensor was published before), DLX_E_IN_USE
 * (another thread is in a call on this publisher), DLX_E_FORKED.
 */
DLX_API int dlx_publish(struct dlx_publisher *p, DLManagedTensorVersioned *tensor,
                        const struct dlx_publish_args *args);

/**
 * Publish `n` tensors as n messages, in this order, for less than n calls of dlx_publish(). The
 * time-out is for all of them together. The report is the last message's, with the copied bytes and
 * tensors of all.
 *
 * Returns 0 if all were published, else as dlx_publish() for the first that was not: that one and
 * those after it are still the caller's. `ret_n` (NULL is fine) says in any case how many were
 * published.
 */
DLX_API int dlx_publish_n(struct dlx_publisher *p, DLManagedTensorVersioned *const *tensors,
                          uint32_t n, const struct dlx_publish_args *args, uint32_t *ret_n);

/** As dlx_publish(), for the struct that DLPack used before version 1. Always copies. */
DLX_API int dlx_publish_legacy(struct dlx_publisher *p, DLManagedTensor *tensor,
                               const struct dlx_publish_args *args);

/**
 * Set the debug mode of publishers that this process makes from now on. Before the first call, it
 * is on if the environment has DLX_DEBUG=1 when the first publisher is made, unless the program
 * runs with more rights than its caller (AT_SECURE). Any thread, at any time.
 *
 * Such a publisher write-protects the memory of a message in its own process (in others it always
 * is) from dlx_publish() until the memory is used again, so that a write in between raises SIGSEGV.
 * The library prints nothing and installs no handler: a debugger names the line that wrote. Every
 * tensor has pages of its own, and a message costs two or more system calls, and mappings. A
 * message whose memory the kernel will not protect (vm.max_map_count) is published all the same,
 * and counted as `unprotected` in struct dlx_publisher_stats.
 */
DLX_API void dlx_set_debug(bool on);

/** Most tensors of one message. */
#define DLX_TENSORS_MAX 65535
/** Longest name of a tensor, and most metadata of a message, in bytes. */
#define DLX_NAME_MAX 1023
#define DLX_META_MAX 65536

/** A tensor of a set. */
struct dlx_item {
    /** At most DLX_NAME_MAX bytes, no two the same. NULL or "": none. Borrowed for the call. */
    const char *name;
    DLManagedTensorVersioned *tensor;
};

/** Bytes of the caller. */
struct dlx_bytes {
    const void *data;
    size_t size;
};

/**
 * Allocate `n` tensors (1 to DLX_TENSORS_MAX) as n calls of dlx_alloc() would, all or none, and in
 * one arena if one has to be added. `ret` has room for n pointers; after a failure each is as it
 * was, or NULL.
 * Returns as dlx_alloc(); the message names the tensor.
 */
DLX_API int dlx_alloc_set(struct dlx_publisher *p, const struct dlx_tensor_spec *specs, uint32_t n,
                          DLManagedTensorVersioned **ret);

/**
 * Publish `n_items` tensors (1 to DLX_TENSORS_MAX) and metadata (any bytes, at most DLX_META_MAX;
 * NULL: none) as one message: a subscriber gets all of it or nothing. Tensors are passed on or
 * copied as by dlx_publish(). Ownership passes on success, of all of them; on failure, and with
 * `share`, of none.
 *
 * Returns as dlx_publish(), whose codes name the tensor's index and name; and DLX_E_INVALID for no
 * items or too many, a name that is too long or there twice, a tensor that is there twice (with
 * `share` it may be), too much metadata.
 */
DLX_API int dlx_publish_set(struct dlx_publisher *p, const struct dlx_item *items, uint32_t n_items,
                            const struct dlx_bytes *meta, const struct dlx_publish_args *args);

/**
 * Wait until at least `n_subscribers` are attached. A subscription that was there before this
 * publisher is attached from the start. Also looks whether there is a new daemon. A publisher that
 * has nothing to publish need not look: newcomers get what it retains, but for reliable
 * subscriptions, which wait until it makes a call; dlx_publisher_wait(p, 0, 0) is the cheap one.
 * Returns 0; DLX_E_TIMEOUT (the message tells how many are), DLX_E_ACCESS (as of dlx_publish()),
 * DLX_E_INTERRUPTED (a signal handler ran while waiting), DLX_E_INVALID, DLX_E_NO_MEMORY,
 * DLX_E_FORKED, DLX_E_SYSTEM.
 */
DLX_API int dlx_publisher_wait(struct dlx_publisher *p, uint32_t n_subscribers, int64_t timeout_ns);

/**
 * A file descriptor for poll(2), epoll, libuv or asyncio, owned by the publisher: never read, write
 * or close it. From the first call of this function on, a dlx_publish(), dlx_publish_n(),
 * dlx_publish_set() or dlx_publisher_wait() that fails with DLX_E_FULL or DLX_E_TIMEOUT makes it
 * readable when the same call may succeed: so call with a time-out of 0 until it fails so, then
 * poll. It is readable at first, and may be readable for nothing. Such a failure costs some system
 * calls for each link.
 *
 * It also becomes readable when the daemon is lost. While there is none, room is told as before.
 * But subscribers come by the next daemon, which nothing announces: after a call that waits for
 * those, it becomes readable in between to look for that daemon, first after 20 ms, later once a
 * second.
 *
 * Returns the fd; DLX_E_INVALID, DLX_E_FORKED, DLX_E_IN_USE, DLX_E_FD_LIMIT, DLX_E_SYSTEM.
 */
DLX_API int dlx_publisher_fd(struct dlx_publisher *p);

/* ---- subscription -------------------------------------------------------------------------- */

enum dlx_mode {
    DLX_MODE_ALL = 0,    /**< every message in order, from now on */
    DLX_MODE_LATEST = 1, /**< only ever the newest; what it passes over counts as skipped */
};

struct dlx_subscribe_args {
    size_t size;
    uint32_t mode; /**< enum dlx_mode */
    /** Begin with up to this many messages that were published before, at most what the publisher
     *  keeps, but at least with what it retains. 0: from now on, and what is retained.
     *  DLX_HISTORY_NONE: from now on, whatever is retained. */
    uint32_t history;
    /** The publisher waits for this subscription instead of dropping. Needs a BLOCK publisher and
     *  DLX_MODE_ALL. */
    bool reliable;
    /** Messages held at once at most, 1 to 4096. 0: 16. */
    uint32_t max_held;
    /** Longest busy wait of dlx_take() before it sleeps, ns. 0: the default (20 us, adaptive: it
     *  shrinks while waits are longer than that). DLX_SPIN_NEVER, DLX_SPIN_ALWAYS. */
    int64_t spin_ns;
    /** A GPU, {kDLCUDA, 0} or {kDLROCM, 0}: the memory of each publisher on the CPU is pinned, so
     *  that this GPU copies from it by itself. Zeros: it is not. See docs/GPU.md, "Pinned memory":
     *  a copy that is queued reads the tensor later, so name its stream: dlx_tensor_used_on(). */
    DLDevice pin;
    /** When dlx_take() fails with DLX_E_PUBLISHER_GONE: when no publisher is attached, at least
     *  this many have left, and everything they published was taken. The count then begins again.
     *  0: each time that the last one has left. DLX_PUBLISHERS_ANY: never, so dlx_take() waits for
     *  the next publisher. A publisher that reconnects to a restarted dlpackd has not left. */
    uint32_t n_publishers;
};
#define DLX_PUBLISHERS_ANY UINT32_MAX
#define DLX_HISTORY_NONE   UINT32_MAX
#define DLX_SPIN_NEVER     INT64_C(-1)
#define DLX_SPIN_ALWAYS    INT64_C(-2)

/**
 * Subscribe to a topic; no publisher need exist yet. What publishers of the topic publish after
 * this returns reaches the subscription, or counts as lost. That includes publishers that come
 * later.
 *
 * `topic` may be a pattern, for all topics that match it, now and later: '*' stands for any
 * characters of its segment ("cam/front-*", "*"), a last segment of two stars for one segment or
 * more. dlx_message_topic() tells where a message is from.
 *
 * Returns 0; DLX_E_DEVICE (`pin` names a GPU that cannot be had; memory that cannot be pinned is no
 * error, but counted as `pin_failures`, and told as DLX_EVENT_UNPINNED), DLX_E_TOPIC,
 * DLX_E_INVALID, DLX_E_ACCESS, DLX_E_QOS (a reliable subscription, a publisher that drops: the
 * message names both), DLX_E_PUBLISHER_NOT_RESPONDING (a publisher makes no call, such as
 * dlx_publish(), and its queue of pending links is full), DLX_E_LIMIT, DLX_E_NO_MEMORY,
 * DLX_E_DISCONNECTED, DLX_E_TIMEOUT, DLX_E_FD_LIMIT, DLX_E_PROTOCOL, DLX_E_BAD_PEER, DLX_E_FORKED,
 * DLX_E_SYSTEM.
 */
DLX_API int dlx_subscribe(struct dlx_client *c, const char *topic,
                          const struct dlx_subscribe_args *args, struct dlx_subscription **ret);

/** Leave. Messages and tensors that are held stay valid. */
DLX_API struct dlx_subscription *dlx_subscription_unref(struct dlx_subscription *s);

/**
 * A file descriptor for poll(2), epoll, libuv or asyncio, owned by the subscription: never read,
 * write or close it. It is readable when dlx_take() or dlx_take_n() may have something; that is
 * guaranteed only after one of them returned DLX_E_EMPTY or DLX_E_TIMEOUT: so take until EMPTY,
 * then poll.
 *
 * From the first call of this function on, a take that returns DLX_E_EMPTY asks the publishers to
 * ring, which costs them a system call. The fd is readable at first.
 *
 * Returns the fd; DLX_E_INVALID, DLX_E_FORKED, DLX_E_IN_USE, DLX_E_FD_LIMIT, DLX_E_SYSTEM.
 */
DLX_API int dlx_subscription_fd(struct dlx_subscription *s);

/**
 * Take the next message.
 *
 * timeout_ns 0 does not wait. The message holds its memory until it and every tensor made from it
 * is released. At most `max_held` messages are held at once, of one publisher: its own max_held and
 * max_held_bytes may be lower.
 *
 * Returns 0; DLX_E_EMPTY (timeout_ns is 0), DLX_E_TIMEOUT, DLX_E_TOO_MANY_HELD (release some: the
 * message tells the limit, and whose it is), DLX_E_PUBLISHER_GONE (once, when the last publisher
 * left and everything it published was taken, see `n_publishers`; later calls wait for a new one),
 * DLX_E_BAD_PEER (the publisher wrote values that cannot be: its link is cut, others go on),
 * DLX_E_INTERRUPTED (a signal handler ran while waiting), DLX_E_NO_MEMORY, DLX_E_LIMIT,
 * DLX_E_FD_LIMIT, DLX_E_FORKED, DLX_E_SYSTEM, DLX_E_IN_USE (another thread is in a call on the
 * subscription), DLX_E_QOS, DLX_E_DISCONNECTED (once, when no publisher is left and the daemon is
 * gone; later calls wait for a new one).
 */
DLX_API int dlx_take(struct dlx_subscription *s, int64_t timeout_ns, struct dlx_message **ret);

/**
 * Take up to `n` messages into `ret`: waits for the first as dlx_take() does, and takes what else
 * is there without waiting, for less than n calls of dlx_take(). `ret_n` says how many came.
 *
 * Returns 0 if at least one came; DLX_E_INVALID (also: n is 0); else as dlx_take().
 */
DLX_API int dlx_take_n(struct dlx_subscription *s, int64_t timeout_ns, struct dlx_message **ret,
                       uint32_t n, uint32_t *ret_n);

/**
 * Get the newest message of a topic, of all its publishers and of what is retained; if there is
 * none, wait for the first. It stays valid until it is released, whatever becomes of its publisher.
 *
 * Returns 0; DLX_E_EMPTY (timeout_ns is 0 and there is none), DLX_E_TIMEOUT, and what
 * dlx_subscribe() and dlx_take() return.
 */
DLX_API int dlx_get(struct dlx_client *c, const char *topic, int64_t timeout_ns,
                    struct dlx_message **ret);

/**
 * Drop what publishers that have gone retain on a topic. Who holds a message of it keeps it.
 *
 * Returns 0; DLX_E_NOT_FOUND (nothing is retained; the message says if a publisher is still there),
 * DLX_E_ACCESS (it belongs to another user), DLX_E_TOPIC, and the errors of every call to the
 * daemon.
 */
DLX_API int dlx_retained_drop(struct dlx_client *c, const char *topic);

#ifdef __cplusplus
}
#endif

#include <dlx/dtype.h>
#include <dlx/event.h>
#include <dlx/gpu.h>
#include <dlx/info.h>
#include <dlx/message.h>
#include <dlx/stats.h>

#endif
