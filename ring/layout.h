/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_RING_LAYOUT_H
#define DLX_RING_LAYOUT_H

/*
 * The layout of shared memory. docs/SHM.md explains it; here are the bytes.
 *
 * Rules
 *   - Every region has one writer, named below; the kernel enforces it (common/memory.h). A claims
 *     page has several, all of one user; nobody else maps it.
 *   - Words of different rates of change do not share a cache line.
 *   - A word that another process wrote is loaded once into private memory and checked there.
 *   - Sizes and counts come from the daemon's packets, never from a region.
 *   - Numbers are host-endian: both ends are on one machine. Layout version: DLX_PROTO_MAJOR.
 *
 * Control block          writer: publisher            readers: its subscribers, daemon
 *
 *        0  +--------------------------------------+
 *           | head, oldest                         |  each message
 *       64  | blocked, heeds_locks                 |  while the publisher waits; once
 *           | n_freed, freed [6]                   |  each time GPU memory is freed
 *      128  | counters                             |  each message; for reports
 *      192  +--------------------------------------+
 *           | entries [n_entries], 64 bytes each   |  n_entries: a power of 2
 *           +--------------------------------------+
 *           | carried [groups], at the end         |  once, after a move
 *           +--------------------------------------+  (a multiple of a page)
 *
 * Entry n % n_entries is the record of message n:
 *
 *     gen     n; n + GONE once the message is retired; n + END or n + MOVED if no message n
 *             will come. An entry is reused only once its message is GONE.
 *     word 0  monotonic_ns
 *          1  offset in the arena
 *          2  arena u32, dtype code u8, bits u8, lanes u16
 *          3  shape[0] u32, ndim u8, flags u8, kind u16
 *        4-6  shape[1..6] u32; of a manifest: its size, its number of tensors
 *
 * Link page              writer: subscriber           readers: publisher, daemon
 *
 *        0  +--------------------------------------+
 *           | wake-up lines: the ticket is at      |  32 lines, so that the tickets of many links,
 *           | (link_index % 32) * 64               |  all read on every publish, do not share a set
 *     2048  | cursor, started, counters            |  each message
 *     2112  | n_used, holds [max_held]             |  0: the hold is free
 *           +--------------------------------------+  (rounded up to a page)
 *
 * Claims page            writers: the workers of one group, of one user; reader: daemon, by read(2)
 *
 *        0  +--------------------------------------+
 *           | start, returned, counts              |
 *       64  +--------------------------------------+
 *           | cells [n_entries], 8 bytes each      |  message n has cell n % n_entries
 *           +--------------------------------------+  (rounded up to a page)
 *
 * Membership page        writer: daemon               readers: the publishers of one user
 *
 *           | joins, leaves, daemon_tid |  one cache line a publisher
 *
 * Arena                  writer: publisher            readers: its subscribers
 *
 *           | payloads of tensors and manifests, each at a multiple of 256 |
 *
 * Former page            writer: client               reader: daemon
 *
 *           | bytes [regions]     |  0: the client does not map the region any more
 *           | regions [regions]   |  what they are; these never change
 *           | sources [sources]   |  and whose: a publisher, or a link to one
 */

#include "common/atomic.h"
#include "common/util.h"

/* ---- limits -------------------------------------------------------------------------------- */

#define DLX_SHM_NDIM_ENTRY  7U  /* dimensions that an entry has room for */
#define DLX_SHM_NDIM_MAX    64U /* of any tensor */
#define DLX_SHM_ENTRY_WORDS 7U
#define DLX_SHM_ENTRIES_MIN 256U
#define DLX_SHM_ENTRIES_MAX 8192U
#define DLX_SHM_DEPTH_MAX   4096U
#define DLX_SHM_HISTORY_MAX 1024U
#define DLX_SHM_HELD_MAX    4096U
#define DLX_SHM_TENSORS_MAX 65535U /* of one message */
#define DLX_SHM_NAME_MAX    1023U  /* bytes of a tensor's name */
#define DLX_SHM_META_MAX    65536U /* bytes of user metadata */
#define DLX_SHM_ALIGN       256U   /* of payloads */
#define DLX_SHM_ARENA_MAX   (UINT64_C(1) << 46)
#define DLX_SHM_ARENAS_MAX  4096U /* of one publisher at a time */
#define DLX_SHM_FREED       6U    /* ids of GPU memory that a control block has room for */
/* Of one former page. The last region has all that does not fit. */
#define DLX_SHM_FORMER_REGIONS_MAX 4096U
#define DLX_SHM_FORMER_SOURCES_MAX 1024U
#define DLX_SHM_FORMER_TOPIC_SIZE  256U

/* ---- control block ------------------------------------------------------------------------- */

/* Marks in `gen`. Message numbers are below all of them. */
#define DLX_SHM_GONE (UINT64_C(1) << 63) /* message n was retired */
#define DLX_SHM_END  (UINT64_C(1) << 62) /* the publisher closed after message n - 1 */
/* the publisher moved to another daemon before message n */
#define DLX_SHM_MOVED         (UINT64_C(1) << 61)
#define DLX_SHM_NUMBER(gen)   ((gen) & (DLX_SHM_MOVED - 1))
#define DLX_SHM_IS_FINAL(gen) ((gen) & (DLX_SHM_END | DLX_SHM_MOVED))

struct dlx_shm_entry {
    _Alignas(64) dlx_atomic_u64 gen;
    dlx_atomic_u64 words[DLX_SHM_ENTRY_WORDS];
};

#define DLX_SHM_BLOCKED_ALWAYS 1U

#define DLX_SHM_WAITING (UINT64_C(1) << 63)

struct dlx_shm_control {
    /* The newest message; 0 if there is none. The writer stores it after `gen` of the entry, so it
     * may be one batch behind. Joining and lapped readers, mode LATEST and reports use it. */
    _Alignas(64) dlx_atomic_u64 head;
    /* the oldest message that is not GONE: where a lapped reader continues */
    dlx_atomic_u64 oldest;

    /* Not 0: the publisher waits for room, and a reader that makes room rings it, once for each
     * number: the publisher stores another one before it looks again. With DLX_SHM_BLOCKED_ALWAYS,
     * which stays after the publisher has moved to another control block, and which earlier
     * publishers store, a reader rings each time. The daemon reads it for reports. */
    _Alignas(64) dlx_atomic_u32 blocked;
    /* 1: once its daemon has ended, the publisher frees nothing while a lock is held on this file.
     * A later daemon may then show the control block to new subscribers through a locked descriptor
     * (common/memory.h). 0: the publisher does not support this. */
    dlx_atomic_u32 heeds_locks;
    /* How many allocations of GPU memory the publisher has freed, and the ids of the last ones: the
     * first one's is at 0, the seventh's, too. Subscribers that have them open close them. */
    dlx_atomic_u64 n_freed;
    dlx_atomic_u64 freed[DLX_SHM_FREED];

    /* For reports only. */
    _Alignas(64) dlx_atomic_u64 published;
    dlx_atomic_u64 published_bytes;
    dlx_atomic_u64 copied;
    dlx_atomic_u64 copied_bytes;
    dlx_atomic_u64 refused; /* messages for which there was no room: they have no number */
    /* The newest message that was copied from an earlier control block; 0: none was. Declared
     * groups find the rest of what they have to do there: dlx_shm_carried(). */
    dlx_atomic_u64 moved_at;
    /* For reports only: how long publishes have waited for room. While one waits, its bit
     * DLX_SHM_WAITING is set, and the rest is the time of its beginning less the time of earlier
     * waits: so one load tells the sum. dlx_shm_waited(). */
    dlx_atomic_u64 waited;
    dlx_atomic_u64 waits_since; /* when the last wait began, CLOCK_MONOTONIC */

    struct dlx_shm_entry entries[];
};

/* The kind of an entry: how to read its words. */
enum dlx_shm_kind {
    DLX_SHM_KIND_TENSOR = 1,   /* a row-major CPU tensor of up to 7 dimensions below 2^32 */
    DLX_SHM_KIND_MANIFEST = 2, /* anything else: struct dlx_shm_manifest at (arena, offset) */
    /* A manifest with tensors on GPUs. A reader without GPU support refuses the message. */
    DLX_SHM_KIND_MANIFEST_GPU = 3,
};

enum dlx_shm_record_flags {
    DLX_SHM_RECORD_ROW_MAJOR = 1U << 0, /* strides follow from the shape and are not written */
    DLX_SHM_RECORD_PADDED = 1U << 1,    /* IS_SUBBYTE_TYPE_PADDED */
};
#define DLX_SHM_RECORD_FLAGS_ALL 3U

/* Part of a manifest: the location and type of one tensor, without its dimensions. */
struct dlx_shm_record {
    uint32_t arena; /* 0: no shared memory (a tensor of size 0, or on a GPU) */
    uint8_t dtype_code;
    uint8_t dtype_bits;
    uint16_t dtype_lanes;
    int32_t device_type;
    int32_t device_id;
    uint32_t ndim;
    uint32_t flags;  /* enum dlx_shm_record_flags */
    uint64_t offset; /* of element 0, in bytes from the start of the arena or GPU allocation */
    uint64_t size;   /* bytes that the elements span from there */
};

/*
 * Manifest: describes a message with several tensors, names, metadata, strides, more than 7
 * dimensions, or a dimension of 2^32 or more.
 *
 *     header | entries [n_tensors] | dims: i64, shape then strides of each entry | names | metadata
 *            | struct dlx_shm_manifest_gpu | allocations, DLX_SHM_ALLOCATION_SIZE bytes each
 *
 * The second line exists if tensors are on GPUs. It describes each of their allocations once
 * (gpu/handle.h). All offsets are in bytes from the start of the manifest.
 */
struct dlx_shm_manifest {
    uint32_t n_tensors;
    uint32_t meta_size;
    uint64_t dims_offset; /* a multiple of 8 */
    uint64_t dims_size;
    uint64_t names_offset;
    uint64_t names_size;
    uint64_t meta_offset;
    uint64_t gpu_offset; /* a multiple of 8 */
    uint64_t gpu_size;   /* 0: no tensor is on a GPU */
};

#define DLX_SHM_ALLOCATION_SIZE 120U

struct dlx_shm_manifest_gpu {
    uint64_t publisher;   /* its number: struct dlx_gpu_publisher */
    dlx_atomic_u32 ready; /* enum dlx_gpu_ready; a reader may wait for it by futex(2) */
    uint32_t word;        /* what its publisher's stream writes: gpu/lib/words.h; 0: nothing */
};

struct dlx_shm_manifest_entry {
    struct dlx_shm_record record;
    uint32_t dims_first;  /* index into dims: ndim sizes, then ndim strides unless ROW_MAJOR */
    uint32_t name_offset; /* from names_offset */
    uint32_t name_size;
    uint32_t allocation; /* 1: the first; 0: none, as of every tensor that is not on a GPU */
    uint32_t reserved[2];
};

/* ---- link page ----------------------------------------------------------------------------- */

#define DLX_SHM_WAKEUP_LINES 32U

#define DLX_SHM_CURSOR_CLOSED UINT64_MAX /* the subscription left: it has passed everything */

struct dlx_shm_link {
    /* Wake-up lines: see dlx_shm_ticket(). The subscriber raises its ticket before it sleeps, and
     * the publisher rings once for each value. */
    _Alignas(64) uint8_t wakeup_lines[DLX_SHM_WAKEUP_LINES * DLX_CACHELINE];

    /* Every message up to here is passed: taken, skipped or lost. A message that is held has a
     * hold, which was stored before the cursor. 0 before the start. The daemon reads it for
     * reports. */
    _Alignas(64) dlx_atomic_u64 cursor;
    /* 1 once the first cursor is stored: the subscriber receives all later messages. */
    dlx_atomic_u32 started;
    /* For reports only. */
    dlx_atomic_u64 taken;
    dlx_atomic_u64 taken_bytes;
    dlx_atomic_u64 skipped;
    dlx_atomic_u64 lost;
    /* If above the cursor: reports use these two instead of the cursor and `lost` (in mode LATEST,
     * `skipped`). So they count each missed message once while a reader passes it, and count none
     * as gone while another link to the publisher has its turn (UINT64_MAX). */
    union {
        dlx_atomic_u64 passing;
        /* Of a worker of a group, for which there is no such report: all messages up to here are
         * done, by whomever. The publisher waits for the greatest of the group. */
        dlx_atomic_u64 done;
    };
    union {
        dlx_atomic_u64 missed;
        dlx_atomic_u64 left_at; /* of a worker that has closed: the newest message then */
    };

    /* How many holds were ever used: the first ones. */
    _Alignas(64) dlx_atomic_u64 n_used;
    /* Numbers of the messages that are held. */
    dlx_atomic_u64 hold[];
};

/* ---- claims page --------------------------------------------------------------------------- */

/*
 * Which worker of a group has which message of one publisher. All zero at first.
 *
 *     cell of message n                                  who                        by
 *
 *     an older number --- claim ------------> CLAIMED    a worker                   CAS
 *     CLAIMED ----------- done -------------> DONE       its owner                  CAS
 *     CLAIMED ----------- give back --------> RETURNED   its owner                  CAS
 *     CLAIMED ----------- owner dead, lease-> RETURNED   any worker                 CAS
 *     RETURNED ---------- claim ------------> CLAIMED    a worker; attempt + 1      CAS
 *     RETURNED ---------- too often --------> DONE       who would have claimed it  CAS
 *
 *     bits 63..62 state | 61..56 attempt | 55..52 renewals | 51..40 owner | 39..0 lap
 *
 * The lap is n / n_entries + 1. A cell never has the same value twice, so a compare-and-swap by a
 * worker that slept meanwhile fails.
 */
struct dlx_shm_claims {
    /* The first message of the group. 0: it is not known yet. */
    _Alignas(64) dlx_atomic_u64 start;
    dlx_atomic_u64 returned; /* how many messages were given back, by any worker */
    /* For reports only. */
    dlx_atomic_u64 redelivered; /* claims with an attempt above 1, but for dead letters */
    dlx_atomic_u64 dead;        /* messages that were given back too often */
    dlx_atomic_u64 lost;        /* messages that the publisher dropped before they were claimed */
    /* Messages up to here may have been done by an earlier group of the same name. */
    dlx_atomic_u64 doubtful;

    _Alignas(64) dlx_atomic_u64 cells[];
};

enum dlx_shm_cell_state {
    DLX_SHM_CELL_NEVER = 0, /* lap 0 */
    DLX_SHM_CELL_CLAIMED = 1,
    DLX_SHM_CELL_RETURNED = 2,
    DLX_SHM_CELL_DONE = 3,
};
#define DLX_SHM_OWNERS_MAX       4095U /* workers of one group, from 1 */
#define DLX_SHM_ATTEMPTS_MAX     60U   /* that a group may allow */
#define DLX_SHM_ATTEMPTS_DEFAULT 5U
#define DLX_SHM_GROUPS_MAX       16U /* that a publisher may declare */
#define DLX_SHM_GROUP_NAME_MAX   63U /* bytes */

struct dlx_shm_cell {
    enum dlx_shm_cell_state state;
    uint32_t attempt; /* 1..63 */
    uint32_t renewals;
    uint32_t owner;
    uint64_t lap; /* 0: the cell was never used */
};

static inline uint64_t dlx_shm_cell_pack(struct dlx_shm_cell c)
{
    return (uint64_t)c.state << 62 | (uint64_t)c.attempt << 56 | (uint64_t)c.renewals << 52 |
           (uint64_t)c.owner << 40 | c.lap;
}

static inline struct dlx_shm_cell dlx_shm_cell_unpack(uint64_t cell)
{
    return (struct dlx_shm_cell){.state = (enum dlx_shm_cell_state)(cell >> 62),
                                 .attempt = (uint32_t)(cell >> 56) & 63,
                                 .renewals = (uint32_t)(cell >> 52) & 15,
                                 .owner = (uint32_t)(cell >> 40) & DLX_SHM_OWNERS_MAX,
                                 .lap = cell & ((UINT64_C(1) << 40) - 1)};
}

/* ---- membership page ----------------------------------------------------------------------- */

/* The bits of `joins` that count. A line starts with other upper bits than it ever had before. */
#define DLX_SHM_JOINS_MASK UINT64_C(0xffffffff)

struct dlx_shm_membership {
    /* The number of links given to this publisher, whose LinkAdded packets are in the link socket
     * or will be. The daemon raises it before the subscriber hears of the link, and lowers it for a
     * link that has left without holds and will never be sent. */
    _Alignas(64) dlx_atomic_u64 joins;
    /* How many of the links that the publisher was sent have ended, by a close or a death. The
     * daemon may see that before the publisher can, which then looks again. */
    dlx_atomic_u64 leaves;
    /* The thread id of the daemon's loop while that runs and knows this publisher. The word is in
     * the thread's list of robust futexes (set_robust_list(2)), so the kernel clears the id when
     * the thread ends for whatever reason. 0: only the link socket can tell. */
    dlx_atomic_u32 daemon_tid;
};

/* ---- reports -------------------------------------------------------------------------------- */

struct dlx_shm_progress {
    uint64_t gone;   /* messages that the subscriber has not passed and can never get */
    uint64_t behind; /* messages that it can still get */
};

/* What the publisher has for a subscriber that has passed every message up to `passed`. `oldest`
 * and `head` are words of a control block. Whatever the arguments are, the sum of the two results
 * is below 2^61. */
static inline struct dlx_shm_progress dlx_shm_progress(uint64_t passed, uint64_t oldest,
                                                       uint64_t head)
{
    uint64_t newest = DLX_MIN(head, DLX_SHM_MOVED - 1);
    uint64_t retired = DLX_MIN(oldest - (oldest > 0), newest);
    uint64_t reached = DLX_MAX(passed, retired);
    uint64_t behind = newest > reached ? newest - reached : 0;
    return (struct dlx_shm_progress){.gone = reached - passed, .behind = behind};
}

/* Words of a link page that report what was missed, loaded in this order. A copy is of one moment
 * if the one before agrees in all but the cursor. The control block is loaded first and the holds
 * next: whatever the publisher had dropped by then, the subscriber has passed, holds, or cannot
 * get. */
struct dlx_shm_misses {
    uint64_t cursor, skipped, lost, passing, missed;
};

static inline bool dlx_shm_misses_agree(const struct dlx_shm_misses *a,
                                        const struct dlx_shm_misses *b)
{
    return a->skipped == b->skipped && a->lost == b->lost && a->passing == b->passing &&
           a->missed == b->missed;
}

/* `skipped` in mode LATEST, else `lost`: all that was missed up to dlx_shm_misses_counted(). */
static inline uint64_t dlx_shm_misses_n(const struct dlx_shm_misses *m, bool is_latest)
{
    return m->passing > m->cursor ? m->missed : is_latest ? m->skipped : m->lost;
}
static inline uint64_t dlx_shm_misses_counted(const struct dlx_shm_misses *m)
{
    return DLX_MAX(m->cursor, m->passing);
}

/* ---- former page --------------------------------------------------------------------------- */

/* A region that the client maps, and that was made for it on an earlier connection. */
struct dlx_shm_former_region {
    /* A number that names the region among those of its publisher: 0, the control block; the number
     * of an arena; the inode of a claims page, plus CLAIMS; the id of a link, of its page, plus
     * LINK; or, of what did not fit, the client's id plus REST. */
    uint64_t region;
    uint32_t source;
    uint32_t zero;
};
#define DLX_SHM_FORMER_CLAIMS (UINT64_C(1) << 61)
#define DLX_SHM_FORMER_LINK   (UINT64_C(1) << 62)
#define DLX_SHM_FORMER_REST   (UINT64_C(1) << 63)

static inline uint64_t dlx_shm_former_claims(uint64_t inode)
{
    return DLX_SHM_FORMER_CLAIMS | (inode & (DLX_SHM_FORMER_CLAIMS - 1));
}

struct dlx_shm_former_source {
    uint64_t publisher;    /* id with the daemon that made the regions */
    uint32_t is_publisher; /* 1: the client publishes, 0: it subscribes */
    uint32_t zero;
    char topic[DLX_SHM_FORMER_TOPIC_SIZE]; /* with a terminating 0 */
};

/* The sum that the word `waited` tells at this time, in nanoseconds. A peer wrote it. */
static inline uint64_t dlx_shm_waited(uint64_t waited, uint64_t now_ns)
{
    uint64_t since = waited & ~DLX_SHM_WAITING;
    if (!(waited & DLX_SHM_WAITING))
        return waited;
    return now_ns > since ? now_ns - since : 0;
}

/* ---- sizes and places ---------------------------------------------------------------------- */

/* The number of entries for a publisher that leaves `window` messages in the ring: twice as many,
 * to have room for batches and for END or MOVED. `window` is at most DLX_SHM_DEPTH_MAX. */
static inline uint32_t dlx_shm_n_entries(uint32_t window)
{
    uint32_t n = DLX_SHM_ENTRIES_MIN;
    while (n < 2 * window)
        n *= 2;
    return n;
}

static inline bool dlx_shm_n_entries_is_valid(uint32_t n)
{
    return n >= DLX_SHM_ENTRIES_MIN && n <= DLX_SHM_ENTRIES_MAX && (n & (n - 1)) == 0;
}

/* Bytes of a control block with `n_entries` entries, at most DLX_SHM_ENTRIES_MAX. */
static inline uint64_t dlx_shm_control_size(uint32_t n_entries)
{
    uint64_t size =
        sizeof(struct dlx_shm_control) + (uint64_t)n_entries * sizeof(struct dlx_shm_entry);
    return (size + DLX_PAGE - 1) & ~(uint64_t)(DLX_PAGE - 1);
}

/*
 * What a declared group, by its number, finds in a control block to which its publisher moved: the
 * first message that was not done before. 0: workers of the earlier control block may still do
 * some.
 */
static inline dlx_atomic_u64 *dlx_shm_carried(const struct dlx_shm_control *control,
                                              uint32_t n_entries, uint32_t group)
{
    return (dlx_atomic_u64 *)((uintptr_t)control + dlx_shm_control_size(n_entries)) - group;
}
#define DLX_SHM_UNTOUCHED (UINT64_C(1) << 63) /* and no worker had any of them */
_Static_assert(DLX_PAGE - sizeof(struct dlx_shm_control) >= DLX_SHM_GROUPS_MAX * sizeof(uint64_t),
               "the last page of a control block has room for the groups");

/* Bytes of a link page with `max_held` holds, at most DLX_SHM_HELD_MAX. */
static inline uint64_t dlx_shm_link_size(uint32_t max_held)
{
    uint64_t size = sizeof(struct dlx_shm_link) + (uint64_t)max_held * sizeof(uint64_t);
    return (size + DLX_PAGE - 1) & ~(uint64_t)(DLX_PAGE - 1);
}

/* Bytes of a claims page for a control block with `n_entries` entries. */
static inline uint64_t dlx_shm_claims_size(uint32_t n_entries)
{
    uint64_t size = sizeof(struct dlx_shm_claims) + (uint64_t)n_entries * sizeof(uint64_t);
    return (size + DLX_PAGE - 1) & ~(uint64_t)(DLX_PAGE - 1);
}

/* Places in a former page, and its size. The first `n_regions` words are `bytes`. */
static inline uint64_t dlx_shm_former_regions_at(uint32_t n_regions)
{
    return n_regions * (uint64_t)sizeof(dlx_atomic_u64);
}

static inline uint64_t dlx_shm_former_sources_at(uint32_t n_regions)
{
    return dlx_shm_former_regions_at(n_regions) +
           n_regions * (uint64_t)sizeof(struct dlx_shm_former_region);
}

static inline uint64_t dlx_shm_former_size(uint32_t n_regions, uint32_t n_sources)
{
    uint64_t size = dlx_shm_former_sources_at(n_regions) +
                    n_sources * (uint64_t)sizeof(struct dlx_shm_former_source);
    return (size + DLX_PAGE - 1) & ~(uint64_t)(DLX_PAGE - 1);
}

static inline dlx_atomic_u64 *dlx_shm_ticket(const struct dlx_shm_link *link, uint32_t link_index)
{
    return (dlx_atomic_u64 *)((uintptr_t)link->wakeup_lines +
                              (size_t)(link_index % DLX_SHM_WAKEUP_LINES) * DLX_CACHELINE);
}

#define DLX_SHM_MEMBERSHIP_LINES (DLX_PAGE / DLX_CACHELINE)

/* ---- the layout is an ABI between processes ------------------------------------------------ */

#define DLX_SHM_AT(type, field, at)                                                                \
    _Static_assert(offsetof(struct type, field) == (at), #type "." #field " moved")

_Static_assert(sizeof(dlx_atomic_u64) == 8 && sizeof(dlx_atomic_u32) == 4, "plain words");
DLX_SHM_AT(dlx_shm_control, head, 0);
DLX_SHM_AT(dlx_shm_control, oldest, 8);
DLX_SHM_AT(dlx_shm_control, blocked, 64);
DLX_SHM_AT(dlx_shm_control, heeds_locks, 68);
DLX_SHM_AT(dlx_shm_control, n_freed, 72);
DLX_SHM_AT(dlx_shm_control, freed, 80);
DLX_SHM_AT(dlx_shm_control, published, 128);
DLX_SHM_AT(dlx_shm_control, copied_bytes, 152);
DLX_SHM_AT(dlx_shm_control, refused, 160);
DLX_SHM_AT(dlx_shm_control, moved_at, 168);
DLX_SHM_AT(dlx_shm_control, waited, 176);
DLX_SHM_AT(dlx_shm_control, waits_since, 184);
DLX_SHM_AT(dlx_shm_control, entries, 192);
DLX_SHM_AT(dlx_shm_entry, words, 8);
_Static_assert(sizeof(struct dlx_shm_entry) == 64, "entry");
DLX_SHM_AT(dlx_shm_record, dtype_code, 4);
DLX_SHM_AT(dlx_shm_record, device_type, 8);
DLX_SHM_AT(dlx_shm_record, ndim, 16);
DLX_SHM_AT(dlx_shm_record, flags, 20);
DLX_SHM_AT(dlx_shm_record, offset, 24);
DLX_SHM_AT(dlx_shm_record, size, 32);
_Static_assert(sizeof(struct dlx_shm_record) == 40, "record");
DLX_SHM_AT(dlx_shm_manifest, dims_offset, 8);
DLX_SHM_AT(dlx_shm_manifest, names_offset, 24);
DLX_SHM_AT(dlx_shm_manifest, meta_offset, 40);
DLX_SHM_AT(dlx_shm_manifest, gpu_size, 56);
_Static_assert(sizeof(struct dlx_shm_manifest) == 64, "manifest header");
DLX_SHM_AT(dlx_shm_manifest_entry, dims_first, 40);
DLX_SHM_AT(dlx_shm_manifest_entry, name_offset, 44);
DLX_SHM_AT(dlx_shm_manifest_entry, name_size, 48);
DLX_SHM_AT(dlx_shm_manifest_entry, allocation, 52);
_Static_assert(sizeof(struct dlx_shm_manifest_entry) == 64, "manifest entry");
DLX_SHM_AT(dlx_shm_link, cursor, 2048);
DLX_SHM_AT(dlx_shm_link, started, 2056);
DLX_SHM_AT(dlx_shm_link, taken, 2064);
DLX_SHM_AT(dlx_shm_link, lost, 2088);
DLX_SHM_AT(dlx_shm_link, done, 2096);
DLX_SHM_AT(dlx_shm_link, missed, 2104);
DLX_SHM_AT(dlx_shm_link, n_used, 2112);
DLX_SHM_AT(dlx_shm_link, hold, 2120);
DLX_SHM_AT(dlx_shm_claims, returned, 8);
DLX_SHM_AT(dlx_shm_claims, lost, 32);
DLX_SHM_AT(dlx_shm_claims, doubtful, 40);
DLX_SHM_AT(dlx_shm_claims, cells, 64);
DLX_SHM_AT(dlx_shm_membership, leaves, 8);
DLX_SHM_AT(dlx_shm_membership, daemon_tid, 16);
_Static_assert(sizeof(struct dlx_shm_membership) == 64, "membership line");
_Static_assert(sizeof(struct dlx_shm_former_region) == 16, "former region");
DLX_SHM_AT(dlx_shm_former_source, topic, 16);
_Static_assert(sizeof(struct dlx_shm_former_source) == 272, "former source");

#endif
