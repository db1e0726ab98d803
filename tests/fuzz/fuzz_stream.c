/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: what is published is what is taken. A publisher and a subscriber on one control block
 * and one arena, without a daemon. The input is a program that allocates, fills and reshapes
 * tensors, publishes them, tensors of its own with any strides, and sets with names and metadata,
 * one by one and in batches, takes and releases. Every message taken is compared with a copy that
 * was made bit by bit when it was published, and again when it is released; every byte of the arena
 * comes back.
 */
#include "client/control/call.h"
#include "client/message/subscriber_link.h"
#include "client/publish/publisher_link.h"
#include "client/control/connection.h"
#include "tests/fuzz/harness_fuzz.h"
#include <string.h>

#define ENTRIES    DLX_SHM_ENTRIES_MIN
#define DEPTH      6U
#define HISTORY    2U
#define HELD       3U
#define LOCALS     4U
#define ITEMS      5U
#define SENT_MAX   320U /* more than there are entries */
#define ARENA_SIZE 16384U
#define BYTES_MAX  256 /* of a tensor */

/* The state of a tensor when it was published. */
struct copy {
    char name[DLX_NAME_MAX + 1];
    DLDataType dtype;
    bool padded;
    int32_t ndim;
    int64_t shape[DLX_NDIM_MAX];
    uint8_t bytes[BYTES_MAX]; /* packed, row-major */
    uint64_t n_elements;
};

struct sent {
    uint32_t n;
    struct copy *items; /* [n] */
    size_t meta_size;
    uint8_t meta[64];
};

struct local {
    DLManagedTensorVersioned *t; /* NULL: none */
    DLTensor made;               /* as dlx_alloc() gave it */
    int64_t shape[DLX_NDIM_MAX], strides[DLX_NDIM_MAX];
    uint64_t size;
    bool shared; /* not to be written any more */
};

struct state {
    struct dlx_fuzz f;
    struct dlx_client *c;
    struct dlx_publisher p;
    struct dlx_shm_membership membership;
    struct dlx_publisher_link publisher_link;
    struct dlx_peer peer;
    struct dlx_subscriber_link *subscriber_link;
    struct local locals[LOCALS];
    struct sent sent[SENT_MAX]; /* by number */
    uint64_t n_sent;
    uint64_t n_taken; /* number of the last one */
    struct dlx_message *held[HELD];
    uint32_t tick;
};

/* A tensor that is not of dlx_alloc(): its memory and all that it needs. */
struct private
{
    DLManagedTensorVersioned t;
    int64_t shape[DLX_NDIM_MAX], strides[DLX_NDIM_MAX];
    uint8_t memory[4 * BYTES_MAX];
    bool deleted;
};

/* ---- the reference --------------------------------------------------------------------------- */

static uint64_t element_bits(DLDataType dtype, bool padded)
{
    uint64_t bits = (uint64_t)dtype.bits * dtype.lanes;
    return padded ? (bits + 7) / 8 * 8 : bits;
}

/* How far from element 0 the tensor reaches, in elements; false: its elements are too many or too
 * far. */
static bool reach(const DLTensor *t, int64_t *ret_low, int64_t *ret_high, uint64_t *ret_n)
{
    int64_t low = 0, high = 0;
    uint64_t n = 1;
    for (int32_t i = 0; i < t->ndim; i++) {
        int64_t stride = t->strides[i], span;
        if (t->shape[i] < 0 || t->shape[i] > BYTES_MAX || stride > BYTES_MAX ||
            stride < -BYTES_MAX || (n *= (uint64_t)t->shape[i]) > BYTES_MAX)
            return false;
        span = (t->shape[i] - 1) * stride;
        low += span < 0 ? span : 0;
        high += span > 0 ? span : 0;
    }
    *ret_low = low;
    *ret_high = high;
    *ret_n = n;
    return true;
}

static void make_copy(const DLTensor *t, bool padded, const char *name, uint64_t n,
                      struct copy *ret)
{
    uint64_t bits = element_bits(t->dtype, padded);
    const uint8_t *data = (const uint8_t *)((uintptr_t)t->data + t->byte_offset);
    memset(ret, 0, sizeof *ret);
    memcpy(ret->name, name, strlen(name) + 1);
    ret->dtype = t->dtype;
    ret->padded = padded;
    ret->ndim = t->ndim;
    ret->n_elements = n;
    if (t->ndim > 0)
        memcpy(ret->shape, t->shape, (size_t)t->ndim * sizeof *t->shape);
    for (uint64_t i = 0; i < n; i++) {
        int64_t at = 0;
        uint64_t rest = i;
        for (int32_t d = t->ndim; d-- > 0;) {
            at += (int64_t)(rest % (uint64_t)t->shape[d]) * t->strides[d];
            rest /= (uint64_t)t->shape[d];
        }
        for (uint64_t b = 0; b < bits; b++) {
            int64_t from = at * (int64_t)bits + (int64_t)b;
            uint64_t to = i * bits + b;
            unsigned bit = ((unsigned)data[from >> 3] >> (from & 7)) & 1U;
            ret->bytes[to / 8] |= (uint8_t)(bit << (to % 8));
        }
    }
}

static void check_message(const struct state *s, struct dlx_message *m)
{
    const struct sent *sent = &s->sent[dlx_message_seq(m) % SENT_MAX];
    size_t meta_size;
    const void *meta = dlx_message_meta(m, &meta_size);
    static struct copy copy;
    REQUIRE(dlx_message_n_tensors(m) == sent->n && meta_size == sent->meta_size);
    REQUIRE(meta_size == 0 || memcmp(meta, sent->meta, meta_size) == 0);
    for (uint32_t i = 0; i < sent->n; i++) {
        const struct copy *was = &sent->items[i];
        DLManagedTensorVersioned *t;
        uint32_t found;
        REQUIRE(dlx_message_tensor(m, i, &t) == 0 && t->dl_tensor.ndim == was->ndim);
        REQUIRE(!(t->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) == !was->padded);
        make_copy(&t->dl_tensor, was->padded, dlx_message_tensor_name(m, i), was->n_elements,
                  &copy);
        REQUIRE(strcmp(copy.name, was->name) == 0 && copy.dtype.code == was->dtype.code &&
                copy.dtype.bits == was->dtype.bits && copy.dtype.lanes == was->dtype.lanes);
        REQUIRE(memcmp(copy.shape, was->shape, sizeof copy.shape) == 0);
        REQUIRE(memcmp(copy.bytes, was->bytes, sizeof copy.bytes) == 0);
        REQUIRE(!was->name[0] ||
                (dlx_message_tensor_find(m, was->name, &found) == 0 && found == i));
        t->deleter(t);
    }
}

/* ---- tensors --------------------------------------------------------------------------------- */

static DLDataType make_dtype(struct dlx_fuzz *f)
{
    static const uint8_t bits[] = {8, 16, 32, 64, 4, 1, 2, 128, 6, 0};
    DLDataType dtype = {.code = kDLUInt, .bits = bits[dlx_fuzz_choose(f, DLX_ARRAY_SIZE(bits))]};
    dtype.lanes = dlx_fuzz_choose(f, 8) == 7 ? 3 : 1;
    return dtype;
}

static int32_t make_shape(struct dlx_fuzz *f, int64_t shape[DLX_NDIM_MAX])
{
    uint32_t ndim = dlx_fuzz_choose(f, 64);
    ndim = ndim < 60 ? ndim % 6 : ndim == 60 ? 12 : ndim == 61 ? 64 : 1;
    for (uint32_t i = 0; i < ndim; i++)
        shape[i] = ndim > 5 ? 1 : (int64_t)dlx_fuzz_number(f);
    return (int32_t)ndim;
}

static void fill(struct state *s, uint8_t *data, uint64_t size)
{
    s->tick += 7;
    for (uint64_t i = 0; i < size; i++)
        data[i] = (uint8_t)(s->tick + i * 31);
}

static void allocate(struct state *s)
{
    int64_t shape[DLX_NDIM_MAX];
    struct local *local = &s->locals[dlx_fuzz_choose(&s->f, LOCALS)];
    struct dlx_tensor_spec spec = {.size = sizeof spec, .shape = shape};
    spec.dtype = make_dtype(&s->f);
    spec.ndim = make_shape(&s->f, shape);
    if (local->t)
        return;
    int r = dlx_alloc(&s->p, &spec, &local->t);
    REQUIRE(r == 0 || r == DLX_E_SHAPE || r == DLX_E_DISCONNECTED || r == DLX_E_NO_MEMORY);
    if (r < 0) {
        REQUIRE(*dlx_errmsg() && !local->t);
        return;
    }
    local->made = local->t->dl_tensor;
    local->shared = false;
    REQUIRE(dlx__tensor_size(spec.dtype, false, spec.ndim, shape, &local->size) == 0);
    fill(s, local->made.data, local->size);
}

/* The caller uses less of it, or in another order. Only what stays inside it. */
static void reshape(struct state *s)
{
    struct dlx_fuzz *f = &s->f;
    struct local *local = &s->locals[dlx_fuzz_choose(f, LOCALS)];
    int64_t low, high;
    uint64_t n;
    DLTensor t = {.device = {kDLCPU, 0}, .shape = local->shape, .strides = local->strides};
    bool padded = dlx_fuzz_choose(f, 4) == 3;
    if (!local->t)
        return;
    local->t->dl_tensor = local->made; /* shape and strides are in use otherwise */
    t.dtype = make_dtype(f);
    t.ndim = make_shape(f, local->shape);
    for (int32_t i = 0; i < t.ndim; i++)
        local->strides[i] = (int64_t)dlx_fuzz_number(f);
    uint64_t offset = dlx_fuzz_number(f);
    t.data = local->made.data;
    t.byte_offset = offset & 1 ? offset / 2 * DLX_ALIGNMENT : offset / 2;
    uint64_t bits = element_bits(t.dtype, padded);
    if (bits == 0 || !reach(&t, &low, &high, &n) || t.byte_offset > local->size)
        return;
    int64_t first = low * (int64_t)bits + (int64_t)t.byte_offset * 8;
    if (n > 0 && (first < 0 || ((uint64_t)high + 1) * bits + t.byte_offset * 8 > local->size * 8))
        return;
    local->t->dl_tensor = t;
    local->t->flags = (local->t->flags & ~DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) |
                      (padded ? DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED : 0);
}

static void delete_private(DLManagedTensorVersioned *t)
{
    struct private *p = t->manager_ctx;
    REQUIRE(!p->deleted);
    p->deleted = true;
}

/* False: it would not be a tensor. */
static bool make_private(struct state *s, struct private *p)
{
    struct dlx_fuzz *f = &s->f;
    DLTensor *t = &p->t.dl_tensor;
    int64_t low, high;
    uint64_t n;
    uint32_t how = dlx_fuzz_choose(f, 16);
    memset(p, 0, sizeof *p);
    p->t.version.major = DLPACK_MAJOR_VERSION;
    p->t.deleter = delete_private;
    p->t.manager_ctx = p;
    p->t.flags = how & 1 ? DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED : 0;
    t->device = (DLDevice){kDLCPU, 0};
    t->dtype = make_dtype(f);
    t->ndim = make_shape(f, p->shape);
    t->shape = p->shape;
    t->strides = p->strides;
    for (int32_t i = 0; i < t->ndim; i++)
        p->strides[i] = (int64_t)dlx_fuzz_number(f);
    if (how & 2)
        dlx__tensor_row_major(t->ndim, t->shape, t->strides);
    uint64_t bits = element_bits(t->dtype, how & 1);
    if (bits == 0 || !reach(t, &low, &high, &n) || n * bits > BYTES_MAX * 8)
        return false;
    int64_t first = low * (int64_t)bits, last = (high + 1) * (int64_t)bits;
    if (first < -16 * BYTES_MAX || last > 16 * BYTES_MAX - 128)
        return false;
    fill(s, p->memory, sizeof p->memory);
    t->byte_offset = how >> 2;
    t->data = p->memory + 2 * (size_t)BYTES_MAX;
    return true;
}

/* ---- publish --------------------------------------------------------------------------------- */

/* Room for what the next message, or one behind it, is. */
static struct copy *remember(struct state *s, uint32_t behind, uint32_t n)
{
    struct sent *sent = &s->sent[(s->n_sent + 1 + behind) % SENT_MAX];
    free(sent->items);
    *sent = (struct sent){.n = n, .items = calloc(n, sizeof(struct copy))};
    REQUIRE(sent->items);
    return sent->items;
}

/* False: it has more than there is room for in a copy. */
static bool copy_tensor(const DLManagedTensorVersioned *t, const char *name, struct copy *ret)
{
    bool padded = t->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
    int64_t low, high;
    uint64_t n;
    if (!reach(&t->dl_tensor, &low, &high, &n) ||
        n * element_bits(t->dl_tensor.dtype, padded) > BYTES_MAX * 8)
        return false;
    make_copy(&t->dl_tensor, padded, name, n, ret);
    return true;
}

static void check_result(int r)
{
    REQUIRE(r == 0 || r == DLX_E_FULL || r == DLX_E_DISCONNECTED || r == DLX_E_WOULD_COPY ||
            r == DLX_E_INVALID || r == DLX_E_NO_MEMORY);
    REQUIRE(r == 0 || *dlx_errmsg());
}

/* The tensor was published: does the caller still own it? */
static void handed_over(struct local *local, bool share)
{
    if (share)
        local->shared = true;
    else
        local->t = NULL;
}

/* `items` are what the input chose; locals[i] is NULL for a private one. */
static void publish_items(struct state *s, struct dlx_item *items, struct local **locals,
                          struct private *privates, uint32_t n, uint32_t how)
{
    struct dlx_publish_report report = {.size = sizeof report};
    struct dlx_publish_args args = {.size = sizeof args};
    const uint8_t *meta_data = NULL;
    struct sent *sent = &s->sent[(s->n_sent + 1) % SENT_MAX];
    args.strict = (how & 12) == 12;
    args.share = how & 16;
    struct copy *copies = remember(s, 0, n);
    size_t meta_size = how & 32 ? dlx_fuzz_piece(&s->f, sizeof sent->meta, &meta_data) : 0;
    struct dlx_bytes meta = {meta_size ? meta_data : NULL, meta_size};
    bool one = n == 1 && how & 64;
    for (uint32_t i = 0; i < n; i++)
        if (!copy_tensor(items[i].tensor, one || !items[i].name ? "" : items[i].name, &copies[i]))
            return;
    if (!one && meta_size > 0)
        memcpy(sent->meta, meta_data, meta_size);
    sent->meta_size = one ? 0 : meta_size;
    int r = one ? dlx_publish(&s->p, items[0].tensor, &args, &report)
                : dlx_publish_set(&s->p, items, n, &meta, &args, &report);
    check_result(r);
    if (r < 0) {
        for (uint32_t i = 0; i < n; i++)
            REQUIRE(!privates[i].deleted);
        return;
    }
    REQUIRE(report.seq == ++s->n_sent && !(args.strict && report.n_copied > 0));
    for (uint32_t i = 0; i < n; i++) {
        if (locals[i])
            handed_over(locals[i], args.share);
        else
            REQUIRE(privates[i].deleted == !args.share);
    }
}

/* The same as so many messages. */
static void publish_batch(struct state *s, const struct dlx_item *items, struct local **locals,
                          struct private *privates, uint32_t n, uint32_t how)
{
    struct dlx_publish_report report = {.size = sizeof report};
    struct dlx_publish_args args = {.size = sizeof args};
    DLManagedTensorVersioned *tensors[ITEMS];
    uint32_t done = UINT32_MAX;
    args.strict = (how & 12) == 12;
    args.share = how & 16;
    for (uint32_t i = 0; i < n; i++) {
        tensors[i] = items[i].tensor;
        if (!copy_tensor(tensors[i], "", remember(s, i, 1)))
            return;
    }
    int r = dlx_publish_n(&s->p, tensors, n, &args, &report, &done);
    check_result(r);
    REQUIRE(r == 0 ? done == n : done < n);
    s->n_sent += done;
    REQUIRE(done == 0 || report.seq == s->n_sent);
    for (uint32_t i = 0; i < n; i++) {
        if (!locals[i])
            REQUIRE(privates[i].deleted == (i < done && !args.share));
        else if (i < done)
            handed_over(locals[i], args.share);
    }
}

static void publish(struct state *s)
{
    static struct private privates[ITEMS];
    static const char *const names[] = {"a", "b", "weight", "", "a"};
    struct dlx_fuzz *f = &s->f;
    struct dlx_item items[ITEMS];
    struct local *locals[ITEMS] = {NULL};
    uint32_t how = dlx_fuzz_choose(f, 128), n = 1 + (how & 3) * (how & 3) % 6, made = 0;
    if (s->n_sent + ITEMS >= SENT_MAX)
        return;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t which = dlx_fuzz_choose(f, 32);
        items[made].name = names[which / 8 + (i == 0)];
        struct local *local = which % 8 < LOCALS ? &s->locals[which % 8] : NULL;
        privates[made].deleted = false;
        if (local && local->t) {
            locals[made] = local;
            items[made++].tensor = local->t;
        } else if (make_private(s, &privates[made])) {
            items[made].tensor = &privates[made].t;
            made++;
        }
    }
    if (made > 1 && how & 64)
        publish_batch(s, items, locals, privates, made, how);
    else if (made > 0)
        publish_items(s, items, locals, privates, made, how);
}

/* ---- take ------------------------------------------------------------------------------------ */

static void take(struct state *s, uint32_t n)
{
    uint32_t at = 0;
    while (at < HELD && s->held[at])
        at++;
    struct dlx_message *m;
    int r = dlx__subscriber_link_take(s->subscriber_link, n, &m);
    REQUIRE(r == 0 || r == DLX_E_EMPTY || (r == DLX_E_TOO_MANY_HELD && at == HELD));
    if (r < 0) {
        REQUIRE(r != DLX_E_EMPTY || s->subscriber_link->core.cursor == s->n_sent);
        return;
    }
    REQUIRE(at < HELD && dlx_message_seq(m) == s->n_taken + dlx_message_gap(m) + 1);
    s->n_taken = dlx_message_seq(m);
    s->held[at] = m;
    check_message(s, m);
}

static void release(struct state *s, uint32_t at)
{
    if (!s->held[at])
        return;
    /* A held message was not overwritten. Its copy is there: no more than SENT_MAX messages are
     * published. */
    check_message(s, s->held[at]);
    s->held[at] = dlx_message_unref(s->held[at]);
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void ring_nobody(void *userdata)
{
    (void)userdata;
}

static const struct dlx_reader_env reader_env = {.ring = ring_nobody};

static void begin(struct state *s)
{
    struct dlx_client *c = s->c = dlx_fuzz_client(-1);
    char goodbye[DLX_ERROR_TEXT_SIZE];
    /* A publisher that waits for long asks this, too, but only in some runs. */
    REQUIRE(dlx__client_goodbye(c, goodbye) == 0);
    struct dlx_subscriber_link *subscriber_link = s->subscriber_link =
        calloc(1, sizeof *subscriber_link);
    struct dlx_publisher *p = &s->p;
    REQUIRE(subscriber_link);
    struct dlx_shm_control *control = dlx_fuzz_map(dlx_shm_control_size(ENTRIES));
    uint8_t *arena = dlx_fuzz_map(ARENA_SIZE);
    *p =
        (struct dlx_publisher){.client = c,
                               .generation = dlx_fuzz_generation,
                               .topic = "t",
                               .daemon = {.link_sock = -1, .has_succeeded = true},
                               /* The block as dlx_publisher_new() begins; the arena stays. */
                               .memory = {.next_block = p, .next_data = p, .next_trim = UINT64_MAX},
                               .watch = {.next_look_ns = UINT64_MAX},
                               .args = {.depth = DEPTH, .history = HISTORY}};
    p->stats.size = sizeof p->stats;
    REQUIRE(dlx__heap_new(&p->heap, dlx_fuzz_generation, false) == 0 &&
            dlx__heap_add(p->heap, 1, arena, ARENA_SIZE) == 0);
    REQUIRE(dlx__writer_init(&p->core, control, ENTRIES, DEPTH, HISTORY, false, &s->membership,
                             &dlx__publisher_link_env, p) == 0);

    atomic_init(&subscriber_link->refs, DLX_SUBSCRIBER_LINK_ALIVE);
    subscriber_link->generation = dlx_fuzz_generation;
    subscriber_link->bell = -1;
    subscriber_link->state = DLX_LINK_OPENING;
    subscriber_link->max_held = HELD;
    subscriber_link->messages = calloc(HELD, sizeof(struct dlx_message *));
    subscriber_link->page = dlx_fuzz_map(dlx_shm_link_size(HELD));
    subscriber_link->arenas = calloc(1, sizeof *subscriber_link->arenas);
    REQUIRE(subscriber_link->messages && subscriber_link->arenas);
    dlx__reader_init(&subscriber_link->core, control, ENTRIES, 0, subscriber_link->page, 0, HELD,
                     false, false, false, &reader_env, subscriber_link);
    subscriber_link->arenas[0] = (struct dlx_subscriber_link_arena){
        .id = 1, .fd = -1, .map = arena, .size = ARENA_SIZE, .until = UINT64_MAX};
    subscriber_link->n_arenas = 1;
    dlx__subscriber_link_start(subscriber_link, DLX_READER_ALL, false);
    s->publisher_link.bell = s->peer.pidfd = -1;
    s->publisher_link.peer = &s->peer;
    s->publisher_link.core =
        (struct dlx_writer_link){.page = subscriber_link->page,
                                 .ticket = dlx_shm_ticket(subscriber_link->page, 0),
                                 .max_held = HELD};
    REQUIRE(dlx__writer_link_add(&p->core, &s->publisher_link.core) == 0);
}

static void delete_local(struct local *local)
{
    if (!local->t)
        return;
    local->t->dl_tensor = local->made; /* of no matter to its deleter, but it is what is usual */
    local->t->deleter(local->t);
    local->t = NULL;
}

static void end(struct state *s)
{
    struct dlx_writer *writer = &s->p.core;
    for (uint32_t i = 0; i < HELD; i++)
        release(s, i);
    for (uint32_t i = 0; i < LOCALS; i++)
        delete_local(&s->locals[i]);
    /* All of it comes back. */
    dlx__subscriber_link_close(s->subscriber_link);
    writer->kept = 0;
    writer->n_links = 0; /* the link is ours */
    while (dlx__writer_reclaim(writer, false) > 0)
        ;
    dlx__heap_collect(s->p.heap);
    REQUIRE(writer->n_payloads == 0);
    struct dlx_block *whole;
    int r = dlx__heap_take(s->p.heap, ARENA_SIZE, &whole);
    REQUIRE(r == 0);
    dlx__heap_give(s->p.heap, whole);

    s->subscriber_link->n_arenas = 0; /* the publisher unmaps them */
    s->subscriber_link->core.control = NULL;
    dlx__subscriber_link_unref(s->subscriber_link);
    dlx__writer_deinit(writer);
    dlx__events_deinit(&s->p.events);
    dlx__heap_close(s->p.heap);
    dlx_client_unref(s->c);
    for (uint32_t i = 0; i < SENT_MAX; i++)
        free(s->sent[i].items);
}

static void take_one(struct state *s)
{
    take(s, 1);
}

static void take_more(struct state *s)
{
    take(s, HELD); /* what is pending then is held, too */
}

static void release_one(struct state *s)
{
    release(s, dlx_fuzz_choose(&s->f, HELD));
}

static void fill_or_delete(struct state *s)
{
    struct local *local = &s->locals[dlx_fuzz_choose(&s->f, LOCALS)];
    if (local->t && !local->shared && dlx_fuzz_choose(&s->f, 2))
        fill(s, local->made.data, local->size);
    else
        delete_local(local);
}

static void (*const steps[])(struct state *) = {
    allocate, reshape, publish, publish, take_one, take_more, release_one, fill_or_delete,
};

void dlx_fuzz_one(struct dlx_fuzz *f)
{
    static struct state s;
    memset(&s, 0, sizeof s);
    s.f = *f;
    begin(&s);
    while (s.f.left > 0)
        steps[dlx_fuzz_choose(&s.f, DLX_ARRAY_SIZE(steps))](&s);
    end(&s);
}
