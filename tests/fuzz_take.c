/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: a subscriber of a hostile publisher. The input is a program that writes control blocks and arenas, honestly or any
 * word of them, announces and drops them, and takes and releases messages. Whatever was accepted lies in its arena and can be
 * read; hold words, counters and mappings are as they should be after every step.
 */
#include "client/fork.h"
#include "client/inlet.h"
#include "common/brief.h"
#include "common/error.h"
#include "common/manifest.h"
#include "tests/harness_fuzz.h"
#include <string.h>

#define BLOCKS_MAX 3U
#define ARENAS_MAX 4U
#define HELD_MAX   4U
#define ARENA_PAGE                                                                                 \
    1024U /* arenas are this large, or twice, ... : smaller than pages, so that more of them is hit */

__extension__ typedef unsigned __int128 wide;

/* What the publisher has: its own view of memory that it shares. */
struct publisher {
    struct {
        struct dlx_shm_control *control; /* NULL: not there, or the subscriber has unmapped it */
        uint32_t n_slots;
        uint32_t id;
        uint64_t head;
        uint32_t next_slot;
    } blocks[BLOCKS_MAX];
    uint32_t n_blocks;
    struct {
        uint8_t *map;
        uint64_t size;
        uint32_t id;
    } arenas[ARENAS_MAX];
    uint32_t n_arenas;
    uint64_t time_ns;
};

struct state {
    struct dlx_fuzz f;
    struct publisher p;
    struct dlx_inlet *inlet;
    struct dlx_message *messages[HELD_MAX];
    uint64_t start; /* where we began */
    uint64_t last_cursor;
    bool rejected;
};

static uint64_t generation;
static uint64_t sum;

static void touch(const volatile uint8_t *p)
{
    sum += *p;
}

/* ---- the subscriber -------------------------------------------------------------------------- */

/* Where does the map lie that was announced with this id? */
static bool is_in_arena(const struct state *s, const uint8_t *data, uint64_t size)
{
    for (uint32_t i = 0; i < s->inlet->n_arenas; i++) {
        const struct dlx_inlet_arena *arena = &s->inlet->arenas[i];
        if (data >= arena->map && data <= arena->map + arena->size &&
            size <= (uint64_t)(arena->map + arena->size - data))
            return true;
    }
    return false;
}

static void check_tensor(const struct state *s, const DLTensor *t, uint64_t flags)
{
    bool padded = flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
    wide bits = (wide)t->dtype.bits * t->dtype.lanes, last = 0;
    REQUIRE(flags & DLPACK_FLAG_BITMASK_READ_ONLY);
    REQUIRE(t->device.device_type == kDLCPU && t->device.device_id == 0 && t->byte_offset == 0);
    REQUIRE(t->ndim >= 0 && t->ndim <= (int32_t)DLX_SHM_NDIM_MAX && bits > 0);
    for (int32_t i = 0; i < t->ndim; i++)
        REQUIRE(t->shape[i] >= 0);
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0)
            return; /* no elements: nobody looks at its memory */
    for (int32_t i = 0; i < t->ndim; i++) {
        REQUIRE(t->strides[i] >= 0);
        last += (wide)(t->shape[i] - 1) * (wide)t->strides[i];
        REQUIRE(last <= INT64_MAX);
    }
    bits = padded ? (bits + 7) / 8 * 8 : bits;
    wide size = ((last + 1) * bits + 7) / 8;
    REQUIRE(size <= INT64_MAX && t->data && (uintptr_t)t->data % DLX_CACHELINE == 0);
    REQUIRE(is_in_arena(s, t->data, (uint64_t)size));
    touch(t->data);
    touch((const uint8_t *)t->data + (uint64_t)size - 1);
}

static void check_message(struct state *s, struct dlx_message *m)
{
    size_t meta_size = 0;
    uint32_t n = dlx_message_n_tensors(m), found;
    REQUIRE(n >= 1 && n <= DLX_SHM_TENSORS_MAX);
    REQUIRE(dlx_message_seq(m) != 0 && dlx_message_seq(m) == s->inlet->core.last);
    REQUIRE(dlx_message_gap(m) < dlx_message_seq(m));
    for (uint32_t i = 0; i < n; i++) {
        DLManagedTensorVersioned *t;
        const char *name = dlx_message_name(m, i);
        REQUIRE(dlx_message_tensor(m, i, &t) == 0);
        check_tensor(s, &t->dl_tensor, t->flags);
        REQUIRE(strlen(name) <= DLX_SHM_NAME_MAX);
        if (*name) {
            REQUIRE(dlx_message_find(m, name, &found) == 0 && found < n);
            REQUIRE(strcmp(dlx_message_name(m, found), name) == 0);
        }
        t->deleter(t);
    }
    const uint8_t *meta = dlx_message_meta(m, &meta_size);
    REQUIRE(meta_size <= DLX_SHM_META_MAX && !meta == !meta_size);
    if (meta_size > 0) {
        touch(meta);
        touch(meta + meta_size - 1);
    }
}

/* What must hold after every step. */
static void check(struct state *s)
{
    struct dlx_inlet *inlet = s->inlet;
    struct dlx_take *core = &inlet->core;
    uint32_t out = 0, held = 0;
    for (uint32_t i = 0; i < HELD_MAX; i++)
        out += s->messages[i] != NULL;
    for (uint32_t i = 0; i < inlet->max_held; i++)
        held += dlx_load64_relaxed(&inlet->page->hold[i]) != 0;
    REQUIRE(held == out + inlet->has_pending);
    for (uint32_t i = 0; i < HELD_MAX; i++) {
        bool found = false;
        for (uint32_t k = 0; s->messages[i] && k < inlet->max_held; k++)
            found |= dlx_load64_relaxed(&inlet->page->hold[k]) == dlx_message_seq(s->messages[i]);
        REQUIRE(found || !s->messages[i]);
    }
    REQUIRE(dlx_load64_relaxed(&inlet->page->cursor) == core->cursor);
    REQUIRE(core->cursor >= s->last_cursor);
    s->last_cursor = core->cursor;
    /* Nothing is lost silently; one that was rejected is told, and ends the link. */
    uint64_t counted = core->taken + core->skipped + core->lost;
    REQUIRE(counted == core->cursor - s->start ||
            (s->rejected && counted + 1 == core->cursor - s->start));
    for (uint32_t i = 0; i < inlet->n_blocks; i++)
        for (uint32_t k = 0; k < inlet->n_left; k++)
            REQUIRE(inlet->blocks[i].control != inlet->left[k].control);
}

static void take(struct state *s)
{
    struct dlx_message *m;
    uint32_t at = 0;
    while (at < HELD_MAX && s->messages[at])
        at++;
    int r = dlx__inlet_take(s->inlet, &m);
    if (r == 0) {
        REQUIRE(at < HELD_MAX && at < s->inlet->max_held);
        s->messages[at] = m;
        check_message(s, m);
        return;
    }
    REQUIRE(r == DLX_E_EMPTY || r == DLX_E_TOO_MANY_HELD || r == DLX_E_PUBLISHER_GONE ||
            r == DLX_E_NOT_FOUND || r == DLX_E_BAD_PEER);
    if (r == DLX_E_TOO_MANY_HELD)
        REQUIRE(at == s->inlet->max_held);
    if (r == DLX_E_BAD_PEER) {
        REQUIRE(*dlx__error_message());
        s->rejected = true; /* its subscription detaches it */
    }
}

/* Tensors outlive their message. */
static void release(struct state *s)
{
    uint32_t i = dlx_fuzz_choose(&s->f, HELD_MAX);
    DLManagedTensorVersioned *t;
    DLManagedTensor *legacy;
    struct dlx_message *m = s->messages[i];
    if (!m)
        return;
    s->messages[i] = NULL;
    uint32_t n = dlx_message_n_tensors(m);
    REQUIRE(dlx_message_tensor(m, n - 1, &t) == 0);
    REQUIRE(dlx_message_tensor_legacy(m, 0, true, &legacy) == 0);
    dlx_message_unref(m);
    legacy->deleter(legacy);
    check_tensor(s, &t->dl_tensor, t->flags);
    t->deleter(t);
}

/* ---- the publisher --------------------------------------------------------------------------- */

/* The subscriber unmaps what it does not need: then nobody writes it any more here. */
static bool is_mapped(const struct state *s, const void *map)
{
    const struct dlx_inlet *inlet = s->inlet;
    for (uint32_t i = 0; i < inlet->n_blocks; i++)
        if (inlet->blocks[i].control == map)
            return true;
    for (uint32_t i = 0; i < inlet->n_left; i++)
        if (inlet->left[i].control == map)
            return true;
    for (uint32_t i = 0; i < inlet->n_arenas; i++)
        if (inlet->arenas[i].map == map)
            return true;
    return false;
}

static void sweep(struct state *s)
{
    struct publisher *p = &s->p;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->n_blocks; i++)
        if (is_mapped(s, p->blocks[i].control))
            p->blocks[kept++] = p->blocks[i];
    p->n_blocks = kept;
    kept = 0;
    for (uint32_t i = 0; i < p->n_arenas; i++)
        if (is_mapped(s, p->arenas[i].map))
            p->arenas[kept++] = p->arenas[i];
    p->n_arenas = kept;
}

static void add_block(struct state *s, uint32_t n_slots, uint64_t base)
{
    struct dlx_inlet *inlet = s->inlet;
    struct publisher *p = &s->p;
    uint64_t size = dlx_shm_control_size(n_slots);
    if (p->n_blocks == BLOCKS_MAX || base >= DLX_SHM_MOVED ||
        (inlet->state == DLX_INLET_OPEN && base < inlet->blocks[0].base))
        return; /* dlx__inlet_block_add() refuses that */
    uint32_t at = inlet->n_blocks, id = p->n_blocks == 0 ? 0 : 100 + p->n_blocks;
    while (at > 0 && inlet->blocks[at - 1].base > base)
        at--;
    if (inlet->state == DLX_INLET_OPEN && at == 0)
        return;
    struct dlx_take_block *more =
        realloc(inlet->blocks, (inlet->n_blocks + 1) * sizeof *inlet->blocks);
    REQUIRE(more);
    inlet->blocks = more;
    struct dlx_shm_control *control = dlx_fuzz_map(size);
    memmove(&more[at + 1], &more[at], (inlet->n_blocks++ - at) * sizeof *more);
    more[at] = (struct dlx_take_block){
        .control = control, .base = base, .n_slots = n_slots, .id = id, .size = size};
    dlx_store64_relaxed(&control->head, base);
    p->blocks[p->n_blocks].control = control;
    p->blocks[p->n_blocks].n_slots = n_slots;
    p->blocks[p->n_blocks].id = id;
    p->blocks[p->n_blocks].next_slot = 0;
    p->blocks[p->n_blocks++].head = base;
}

static void add_arena(struct state *s, uint32_t id, uint64_t size)
{
    struct dlx_inlet *inlet = s->inlet;
    struct publisher *p = &s->p;
    uint32_t at = 0;
    while (at < inlet->n_arenas && inlet->arenas[at].id < id)
        at++;
    if (p->n_arenas == ARENAS_MAX || (at < inlet->n_arenas && inlet->arenas[at].id == id))
        return; /* announced twice: dlx__inlet_arena_add() refuses that */
    struct dlx_inlet_arena *more =
        realloc(inlet->arenas, (inlet->n_arenas + 1) * sizeof *inlet->arenas);
    REQUIRE(more);
    inlet->arenas = more;
    memmove(&more[at + 1], &more[at], (inlet->n_arenas++ - at) * sizeof *more);
    inlet->arenas_room = inlet->n_arenas;
    uint8_t *map = dlx_fuzz_map(size);
    more[at] = (struct dlx_inlet_arena){.id = id, .map = map, .size = size};
    p->arenas[p->n_arenas].map = map;
    p->arenas[p->n_arenas].size = size;
    p->arenas[p->n_arenas++].id = id;
}

/* A record of a tensor in an arena, as an honest publisher makes it, or nearly. */
static struct dlx_shm_record make_record(struct state *s, int64_t *shape, int64_t *strides,
                                         uint32_t ndim_max)
{
    static const uint8_t bits[] = {8, 32, 16, 64, 1, 4, 6, 128, 0, 255};
    struct dlx_fuzz *f = &s->f;
    struct dlx_shm_record r = {.dtype_code = kDLFloat, .dtype_lanes = 1, .device_type = kDLCPU};
    uint32_t how = dlx_fuzz_choose(f, 256), k = dlx_fuzz_choose(f, ARENAS_MAX);
    r.dtype_bits = bits[dlx_fuzz_choose(f, DLX_ARRAY_SIZE(bits))];
    r.ndim = dlx_fuzz_choose(f, ndim_max + 1);
    r.flags = how & 7;
    r.arena = k < s->p.n_arenas ? s->p.arenas[k].id : k + 1;
    uint64_t size = 1;
    for (uint32_t i = 0; i < r.ndim; i++) {
        shape[i] = (int64_t)dlx_fuzz_number(f);
        size *= (uint64_t)shape[i];
    }
    for (uint32_t i = 0; i < r.ndim && !(r.flags & DLX_SHM_RECORD_ROW_MAJOR); i++)
        strides[i] = (int64_t)dlx_fuzz_number(f);
    if (how & 8)
        r.dtype_lanes = (uint16_t)dlx_fuzz_number(f);
    if (how & 16)
        r.offset = dlx_fuzz_number(f) * DLX_SHM_ALIGN;
    r.size = how & 32 ? dlx_fuzz_number(f)
                      : (size * r.dtype_lanes * (r.dtype_bits ? r.dtype_bits : 1U) + 7) / 8;
    return r;
}

/* A manifest of a few tensors at the end of an arena, and where it is. */
static bool make_manifest(struct state *s, struct dlx_shm_slot *slot)
{
    static int64_t dims[4][2 * DLX_SHM_NDIM_MAX];
    struct dlx_fuzz *f = &s->f;
    struct dlx_manifest_item items[4];
    const uint8_t *name, *meta;
    if (s->p.n_arenas == 0)
        return false;
    uint32_t k = dlx_fuzz_choose(f, s->p.n_arenas), n = 1 + dlx_fuzz_choose(f, 4);
    for (uint32_t i = 0; i < n; i++) {
        int64_t *shape = dims[i], *strides = dims[i] + DLX_SHM_NDIM_MAX;
        items[i] = (struct dlx_manifest_item){.shape = shape, .strides = strides};
        items[i].record = make_record(s, shape, strides, i == 0 ? 16 : 3);
        items[i].name_size = (uint32_t)dlx_fuzz_piece(f, 40, &name);
        items[i].name = (const char *)name;
    }
    uint32_t meta_size = (uint32_t)dlx_fuzz_piece(f, 40, &meta);
    struct dlx_shm_manifest header;
    uint64_t size = dlx__manifest_lay_out(items, n, meta_size, &header);
    if (size > s->p.arenas[k].size)
        return false;
    slot->n_tensors = n;
    slot->flags = DLX_SHM_SLOT_MANIFEST;
    slot->manifest_arena = s->p.arenas[k].id;
    slot->manifest_offset = (s->p.arenas[k].size - size) / 8 * 8;
    slot->manifest_size = size;
    dlx__manifest_write(s->p.arenas[k].map + slot->manifest_offset, &header, items, meta);
    return true;
}

static void publish(struct state *s, bool with_manifest)
{
    struct publisher *p = &s->p;
    if (p->n_blocks == 0)
        return;
    uint32_t b = p->n_blocks - 1, index = p->blocks[b].next_slot;
    struct dlx_shm_control *control = p->blocks[b].control;
    struct dlx_shm_slot *slot = &dlx_shm_slots(control, p->blocks[b].n_slots)[index];
    slot->time_ns = ++p->time_ns;
    slot->n_tensors = 1;
    slot->flags = 0;
    if (!with_manifest || !make_manifest(s, slot))
        slot->record = make_record(s, slot->shape, slot->strides, DLX_SHM_NDIM_INLINE);
    uint64_t n = ++p->blocks[b].head;
    p->blocks[b].next_slot = (index + 1) % p->blocks[b].n_slots;
    dlx_store64_relaxed(&slot->gen, n);
    dlx_store32_relaxed(&dlx_shm_ring(control)[n & (dlx_shm_ring_size(p->blocks[b].n_slots) - 1)],
                        index);
    struct dlx_brief brief = dlx__brief_pack(slot, index, n);
    for (uint32_t i = 0; i < DLX_SHM_BRIEF_WORDS; i++)
        dlx_store64_relaxed(&control->brief[i], brief.words[i]);
    dlx_store64_relaxed(&control->head, n);
}

/* It goes on in another block. */
static void move(struct state *s)
{
    struct publisher *p = &s->p;
    if (p->n_blocks == 0)
        return;
    uint32_t b = p->n_blocks - 1;
    struct dlx_shm_control *old = p->blocks[b].control;
    uint64_t base = p->blocks[b].head, lie = dlx_fuzz_number(&s->f);
    add_block(s, 1 + dlx_fuzz_choose(&s->f, 8), lie < 0x40 ? base : base + lie - 0x60);
    dlx_store64_relaxed(&old->head, base | DLX_SHM_MOVED);
}

/* Any word of a control block. */
static void scribble_control(struct state *s)
{
    struct dlx_fuzz *f = &s->f;
    if (s->p.n_blocks == 0)
        return;
    uint32_t b = dlx_fuzz_choose(f, s->p.n_blocks), what = dlx_fuzz_choose(f, 4);
    uint64_t size = dlx_shm_control_size(s->p.blocks[b].n_slots), at = 0;
    uint32_t width = what == 3 ? 4 : 8;
    if (what == 1) /* head and brief */
        at = dlx_fuzz_choose(f, 8) * 8U;
    else if (what == 2) /* a slot */
        at = dlx_shm_slots_offset(s->p.blocks[b].n_slots) + dlx_fuzz_bytes(f, 2) * 8U;
    else
        at = dlx_fuzz_bytes(f, 2) * width;
    uint64_t value = dlx_fuzz_number(f);
    if (what == 1 && at == 0 && dlx_fuzz_choose(f, 2)) /* near what it was */
        value += s->p.blocks[b].head - 8;
    memcpy((uint8_t *)s->p.blocks[b].control + at % size, &value, width);
}

static void scribble_arena(struct state *s)
{
    struct dlx_fuzz *f = &s->f;
    if (s->p.n_arenas == 0)
        return;
    uint32_t k = dlx_fuzz_choose(f, s->p.n_arenas), width = 1U << dlx_fuzz_choose(f, 4);
    uint64_t back = dlx_fuzz_bytes(f, 2) * width % s->p.arenas[k].size;
    uint64_t value = dlx_fuzz_number(f);
    if (back + width <= s->p.arenas[k].size) /* manifests are at the end */
        memcpy(s->p.arenas[k].map + s->p.arenas[k].size - back - width, &value, width);
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void begin(struct state *s)
{
    struct dlx_fuzz *f = &s->f;
    uint32_t mode = dlx_fuzz_choose(f, 3), history = dlx_fuzz_choose(f, 8);
    struct dlx_inlet *inlet = calloc(1, sizeof *inlet);
    REQUIRE(inlet);
    s->inlet = inlet;
    atomic_init(&inlet->refs, DLX_INLET_ALIVE);
    inlet->generation = generation;
    inlet->bell = -1;
    inlet->max_held = 1 + dlx_fuzz_choose(f, HELD_MAX);
    inlet->link_index = dlx_fuzz_choose(f, 64);
    inlet->messages = calloc(inlet->max_held, sizeof(struct dlx_message *));
    inlet->page_size = sizeof(struct dlx_shm_link) + inlet->max_held * sizeof(uint64_t);
    inlet->page = dlx_fuzz_map(inlet->page_size); /* not a byte beyond its hold words */
    inlet->state = DLX_INLET_OPENING;
    add_block(s, 1 + dlx_fuzz_choose(f, 8), dlx_fuzz_number(f));
    if (inlet->n_blocks == 0)
        add_block(s, 4, 0);
    uint32_t more = dlx_fuzz_choose(f, 4);
    for (uint32_t i = 0; i < more; i++) {
        publish(s, false);
        if (dlx_fuzz_choose(f, 8) == 7)
            move(s);
        if (dlx_fuzz_choose(f, 8) == 7)
            scribble_control(s);
    }
    dlx__inlet_start(inlet, history, dlx_fuzz_choose(f, 2), mode == 1, mode == 2);
    s->start = s->last_cursor = inlet->core.cursor;
    sweep(s);
}

static void step(struct state *s)
{
    struct dlx_fuzz *f = &s->f;
    struct dlx_inlet *inlet = s->inlet;
    uint32_t what = dlx_fuzz_choose(f, 16), k;
    switch (what) {
    case 0:
    case 1:
        publish(s, what == 1);
        break;
    case 2:
    case 3:
    case 4:
        take(s);
        break;
    case 5:
        release(s);
        break;
    case 6:
    case 7:
        scribble_control(s);
        break;
    case 8:
    case 9:
        scribble_arena(s);
        break;
    case 10:
        k = dlx_fuzz_choose(f, 8);
        add_arena(s, k, ARENA_PAGE << dlx_fuzz_choose(f, 3));
        break;
    case 11:
        dlx__inlet_arena_dropped(inlet, dlx_fuzz_choose(f, 8));
        break;
    case 12:
        move(s);
        break;
    case 13:
        k = dlx_fuzz_choose(f, 8);
        dlx__inlet_block_dropped(inlet, k == 0 ? 0 : 100 + k);
        break;
    case 14:
        (void)dlx__take_arm(&inlet->core);
        (void)dlx__take_pending(&inlet->core);
        dlx__inlet_sweep_arenas(inlet);
        break;
    default:
        if (inlet->has_pending && dlx_fuzz_choose(f, 2))
            dlx__inlet_lose(inlet);
        else if (inlet->core.taken + inlet->core.lost + inlet->core.skipped == 0)
            (void)dlx__take_is_closed(&inlet->core);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct state s = {.f = {data, size}};
    REQUIRE(dlx__fork_init(&generation) == 0);
    size_t n_maps = dlx_fuzz_n_maps();
    begin(&s);
    while (s.f.left > 0 && !s.rejected) {
        step(&s);
        check(&s);
        sweep(&s);
    }
    dlx__inlet_close(s.inlet);
    REQUIRE(dlx_load64_relaxed(&s.inlet->page->cursor) == DLX_SHM_CURSOR_CLOSED);
    /* What is held outlives the link. */
    dlx__inlet_unref(s.inlet);
    for (uint32_t i = 0; i < HELD_MAX; i++)
        dlx_message_unref(s.messages[i]);
    REQUIRE(dlx_fuzz_n_maps() == n_maps);
    return 0;
}
