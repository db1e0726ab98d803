/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_SHM_H
#define DLX_COMMON_SHM_H

/*
 * The layout of shared memory. docs/SHM.md explains it; here are the bytes.
 *
 * Rules
 *   - Every region has one writer, named below; the kernel enforces it (common/memory.h).
 *   - Words of different rates of change do not share a cache line.
 *   - A word that another process wrote is loaded once, into private memory, and checked there.
 *   - Sizes and counts come from the daemon's packets, never from a region.
 *   - Numbers are host-endian: both ends are on one machine. Layout version: DLX_PROTO_MAJOR.
 *
 * Control block          writer: publisher            readers: its subscribers, daemon
 *
 *        0  +--------------------------------------+
 *           | head, brief of the newest message    |  each message
 *       64  | state                                |  rarely
 *      128  | blocked                              |  when a publisher waits
 *      192  | counters                             |  each message; the daemon reads it on request
 *      256  +--------------------------------------+
 *           | ring: u32 slot index [ring_size]     |  ring_size: n_slots rounded up to a power of 2
 *           +--------------------------------------+  (a multiple of 256)
 *           | slots [n_slots], 256 bytes each      |
 *           |     0  gen, time, first record       |
 *           |    64  shape of the first record     |
 *           |   128  strides, if not row-major     |
 *           |   192  where the manifest is, if any |
 *           +--------------------------------------+
 *
 * Link page              writer: subscriber           readers: publisher, daemon
 *
 *        0  +--------------------------------------+
 *           | ticket lane: the ticket is at        |  32 lines, so that the tickets of many links,
 *           | (link_index % 32) * 64               |  all read on every publish, do not share a set
 *     2048  | cursor, started                      |
 *     2112  | counters                             |
 *     2176  | hold words [max_held], 0 is free     |
 *           +--------------------------------------+  (rounded up to a page)
 *
 * Membership page        writer: daemon               readers: the publishers of one user
 *
 *           | joins, leaves, vouched |  one cache line a publisher
 *
 * Arena                  writer: publisher            readers: its subscribers
 *
 *           | payload of tensors and manifests, each at a multiple of 256 |
 */

#include "common/atomic.h"
#include "common/util.h"

/* ---- limits -------------------------------------------------------------------------------- */

#define DLX_SHM_NDIM_INLINE 8U  /* dimensions that a slot has room for */
#define DLX_SHM_NDIM_MAX    64U /* of any tensor */
#define DLX_SHM_SLOTS_MAX   4096U
#define DLX_SHM_BRIEF_WORDS 7U
#define DLX_SHM_HISTORY_MAX 1024U
#define DLX_SHM_HELD_MAX    4096U
#define DLX_SHM_TENSORS_MAX 65535U /* of one message */
#define DLX_SHM_NAME_MAX    1023U  /* bytes of a tensor's name */
#define DLX_SHM_META_MAX    65536U /* bytes of user metadata */
#define DLX_SHM_ALIGN       256U   /* of payloads */
#define DLX_SHM_ARENA_MAX   (UINT64_C(1) << 46)
#define DLX_SHM_ARENAS_MAX  4096U /* of one publisher at a time */

/* ---- control block ------------------------------------------------------------------------- */

/* In `head`. Numbers of messages are below it. */
#define DLX_SHM_MOVED (UINT64_C(1) << 63)

enum dlx_shm_state {
    DLX_SHM_STATE_OPEN = 0,
    DLX_SHM_STATE_CLOSED = 1, /* the publisher left on purpose: nothing more will come */
};

struct dlx_shm_control {
    /* Number of the newest message; 0: none yet. Stored seq_cst after the slot and ring entry. With DLX_SHM_MOVED
     * the publisher has gone on to another block: this number is the last one here. */
    _Alignas(64) dlx_atomic_u64 head;
    /* The newest message in short: common/brief.h. The slot in it is a hint that saves a reader the
     * ring's cache line: it may be ahead of `head`; only a slot whose gen is n holds n. */
    dlx_atomic_u64 brief[DLX_SHM_BRIEF_WORDS];

    _Alignas(64) dlx_atomic_u32 state; /* enum dlx_shm_state */

    /* Not 0: the publisher waits for room, so whoever makes room rings it. Always once it has moved: see dlx__pub_move(). */
    _Alignas(64) dlx_atomic_u32 blocked;

    /* For reports only. */
    _Alignas(64) dlx_atomic_u64 published;
    dlx_atomic_u64 published_bytes;
    dlx_atomic_u64 copied;
    dlx_atomic_u64 copied_bytes;
};

enum dlx_shm_record_flags {
    DLX_SHM_RECORD_ROW_MAJOR = 1U << 0, /* strides follow from the shape and are not written */
    DLX_SHM_RECORD_COPIED = 1U << 1,    /* the library copied it in: IS_COPIED for the receiver */
    DLX_SHM_RECORD_PADDED = 1U << 2,    /* IS_SUBBYTE_TYPE_PADDED */
};
#define DLX_SHM_RECORD_FLAGS_ALL 7U

/* Where a tensor is and what it is, without its dimensions. */
struct dlx_shm_record {
    uint32_t arena; /* 0: no memory (a tensor of size 0) */
    uint8_t dtype_code;
    uint8_t dtype_bits;
    uint16_t dtype_lanes;
    int32_t device_type;
    int32_t device_id;
    uint32_t ndim;
    uint32_t flags;  /* enum dlx_shm_record_flags */
    uint64_t offset; /* of element 0, from the start of the arena, bytes */
    uint64_t size;   /* bytes that the elements span from there */
};

enum dlx_shm_slot_flags {
    DLX_SHM_SLOT_MANIFEST = 1U << 0, /* the records are in the manifest, none is inline */
};
#define DLX_SHM_SLOT_FLAGS_ALL 1U

struct dlx_shm_slot {
    /* 0: not readable; n: holds message n. */
    _Alignas(64) dlx_atomic_u64 gen;
    uint64_t time_ns;
    uint32_t n_tensors;
    uint32_t flags; /* enum dlx_shm_slot_flags */
    struct dlx_shm_record record;
    _Alignas(64) int64_t shape[DLX_SHM_NDIM_INLINE];
    _Alignas(64) int64_t strides[DLX_SHM_NDIM_INLINE];
    _Alignas(64) uint64_t manifest_offset;
    uint64_t manifest_size;
    uint32_t manifest_arena;
    uint32_t reserved[11];
};

/*
 * Manifest: messages with several tensors, names, metadata or more than 8 dimensions.
 *
 *     header | entries [n_tensors] | dims: i64, shape then strides of each entry | names | metadata
 *
 * All offsets count from the start of the manifest, in bytes.
 */
struct dlx_shm_manifest {
    uint32_t n_tensors;
    uint32_t meta_size;
    uint64_t dims_offset; /* a multiple of 8 */
    uint64_t dims_size;
    uint64_t names_offset;
    uint64_t names_size;
    uint64_t meta_offset;
    uint64_t reserved[2];
};

struct dlx_shm_manifest_entry {
    struct dlx_shm_record record;
    uint32_t dims_first;  /* index into dims: ndim sizes, then ndim strides unless ROW_MAJOR */
    uint32_t name_offset; /* from names_offset */
    uint32_t name_size;
    uint32_t reserved[3];
};

/* ---- link page ----------------------------------------------------------------------------- */

#define DLX_SHM_TICKET_LINES 32U

/* Every message up to here is passed: taken, skipped or lost. */
#define DLX_SHM_CURSOR_CLOSED UINT64_MAX /* the subscription left: it has passed everything */

struct dlx_shm_link {
    /* Ticket lane: see dlx_shm_ticket(). The ticket is raised when the subscriber goes to sleep: the
     * publisher rings once for each value. */
    _Alignas(64) uint8_t tickets[DLX_SHM_TICKET_LINES * DLX_CACHELINE];

    /* 0 before the first message is passed. Gates the publisher if the link is reliable. */
    _Alignas(64) dlx_atomic_u64 cursor;
    dlx_atomic_u32
        started; /* 1 once the first cursor is stored: what comes from now on is received */

    /* For reports only. */
    _Alignas(64) dlx_atomic_u64 taken;
    dlx_atomic_u64 taken_bytes;
    dlx_atomic_u64 skipped;
    dlx_atomic_u64 lost;

    /* Numbers of the messages that are held. */
    _Alignas(64) dlx_atomic_u64 hold[];
};

/* ---- membership page ----------------------------------------------------------------------- */

/* Of `joins`: whoever gets a line counts from the other bits, which were never there before. */
#define DLX_SHM_JOINS_MASK UINT64_C(0xffffffff)

struct dlx_shm_membership {
    /* Links given to this publisher, whose LinkAdded packets are in the link socket, or will be: raised before the subscriber
     * hears of it; lowered when one that has left, and holds nothing, will never be sent. */
    _Alignas(64) dlx_atomic_u64 joins;
    /* Links ever ended by a close or a death: a hint to look for the dead. */
    dlx_atomic_u64 leaves;
    /* The thread id of the daemon's loop, while that lives and knows this publisher: the word is in its list of robust futexes
     * (set_robust_list(2)), so the kernel clears the id when the thread ends, however it does. 0: ask the socket. */
    dlx_atomic_u32 vouched;
};

/* ---- sizes and places ---------------------------------------------------------------------- */

static inline uint32_t dlx_shm_ring_size(uint32_t n_slots)
{
    uint32_t size = 1;
    while (size < n_slots)
        size *= 2;
    return size;
}

static inline uint64_t dlx_shm_slots_offset(uint32_t n_slots)
{
    uint64_t ring = (uint64_t)dlx_shm_ring_size(n_slots) * sizeof(uint32_t);
    return sizeof(struct dlx_shm_control) + ((ring + 255) & ~UINT64_C(255));
}

/* Bytes of a control block with so many slots; n_slots is at most DLX_SHM_SLOTS_MAX. */
static inline uint64_t dlx_shm_control_size(uint32_t n_slots)
{
    uint64_t size = dlx_shm_slots_offset(n_slots) + (uint64_t)n_slots * sizeof(struct dlx_shm_slot);
    return (size + DLX_PAGE - 1) & ~(uint64_t)(DLX_PAGE - 1);
}

static inline dlx_atomic_u32 *dlx_shm_ring(const struct dlx_shm_control *control)
{
    return (dlx_atomic_u32 *)((uintptr_t)control + sizeof *control);
}

static inline struct dlx_shm_slot *dlx_shm_slots(const struct dlx_shm_control *control,
                                                 uint32_t n_slots)
{
    return (struct dlx_shm_slot *)((uintptr_t)control + dlx_shm_slots_offset(n_slots));
}

/* Bytes of a link page with so many hold words; max_held is at most DLX_SHM_HELD_MAX. */
static inline uint64_t dlx_shm_link_size(uint32_t max_held)
{
    uint64_t size = sizeof(struct dlx_shm_link) + (uint64_t)max_held * sizeof(uint64_t);
    return (size + DLX_PAGE - 1) & ~(uint64_t)(DLX_PAGE - 1);
}

static inline dlx_atomic_u64 *dlx_shm_ticket(const struct dlx_shm_link *link, uint32_t link_index)
{
    return (dlx_atomic_u64 *)((uintptr_t)link->tickets +
                              (size_t)(link_index % DLX_SHM_TICKET_LINES) * DLX_CACHELINE);
}

#define DLX_SHM_MEMBERSHIP_LINES (DLX_PAGE / DLX_CACHELINE)

/* ---- the layout is an ABI between processes ------------------------------------------------ */

#define DLX_SHM_AT(type, field, at)                                                                \
    _Static_assert(offsetof(struct type, field) == (at), #type "." #field " moved")

_Static_assert(sizeof(dlx_atomic_u64) == 8 && sizeof(dlx_atomic_u32) == 4, "plain words");
DLX_SHM_AT(dlx_shm_control, head, 0);
DLX_SHM_AT(dlx_shm_control, brief, 8);
DLX_SHM_AT(dlx_shm_control, state, 64);
DLX_SHM_AT(dlx_shm_control, blocked, 128);
DLX_SHM_AT(dlx_shm_control, published, 192);
DLX_SHM_AT(dlx_shm_control, copied_bytes, 216);
_Static_assert(sizeof(struct dlx_shm_control) == 256, "control header");
DLX_SHM_AT(dlx_shm_record, dtype_code, 4);
DLX_SHM_AT(dlx_shm_record, device_type, 8);
DLX_SHM_AT(dlx_shm_record, ndim, 16);
DLX_SHM_AT(dlx_shm_record, flags, 20);
DLX_SHM_AT(dlx_shm_record, offset, 24);
DLX_SHM_AT(dlx_shm_record, size, 32);
_Static_assert(sizeof(struct dlx_shm_record) == 40, "record");
DLX_SHM_AT(dlx_shm_slot, gen, 0);
DLX_SHM_AT(dlx_shm_slot, time_ns, 8);
DLX_SHM_AT(dlx_shm_slot, n_tensors, 16);
DLX_SHM_AT(dlx_shm_slot, flags, 20);
DLX_SHM_AT(dlx_shm_slot, record, 24);
DLX_SHM_AT(dlx_shm_slot, shape, 64);
DLX_SHM_AT(dlx_shm_slot, strides, 128);
DLX_SHM_AT(dlx_shm_slot, manifest_offset, 192);
DLX_SHM_AT(dlx_shm_slot, manifest_size, 200);
DLX_SHM_AT(dlx_shm_slot, manifest_arena, 208);
_Static_assert(sizeof(struct dlx_shm_slot) == 256, "slot");
DLX_SHM_AT(dlx_shm_manifest, dims_offset, 8);
DLX_SHM_AT(dlx_shm_manifest, names_offset, 24);
DLX_SHM_AT(dlx_shm_manifest, meta_offset, 40);
_Static_assert(sizeof(struct dlx_shm_manifest) == 64, "manifest header");
DLX_SHM_AT(dlx_shm_manifest_entry, dims_first, 40);
DLX_SHM_AT(dlx_shm_manifest_entry, name_offset, 44);
DLX_SHM_AT(dlx_shm_manifest_entry, name_size, 48);
_Static_assert(sizeof(struct dlx_shm_manifest_entry) == 64, "manifest entry");
DLX_SHM_AT(dlx_shm_link, cursor, 2048);
DLX_SHM_AT(dlx_shm_link, started, 2056);
DLX_SHM_AT(dlx_shm_link, taken, 2112);
DLX_SHM_AT(dlx_shm_link, lost, 2136);
DLX_SHM_AT(dlx_shm_link, hold, 2176);
DLX_SHM_AT(dlx_shm_membership, leaves, 8);
DLX_SHM_AT(dlx_shm_membership, vouched, 16);
_Static_assert(sizeof(struct dlx_shm_membership) == 64, "membership line");

#endif
