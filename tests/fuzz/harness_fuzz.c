/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/harness_fuzz.h"
#include "client/base/fork.h"
#include "client/control/client.h"
#include "client/control/connection.h"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void dlx_fuzz_fail(const char *file, int line, const char *what)
{
    (void)fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
    abort();
}

uint64_t dlx_fuzz_generation;

/* Low numbers are given first, so one that leaks shows here. */
static int lowest_free_fd(void)
{
    int fd = dup(STDERR_FILENO);
    close(fd);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dlx_fuzz f = {data, size};
    if (dlx_fuzz_generation == 0)
        REQUIRE(dlx__fork_init(&dlx_fuzz_generation) == 0);
    size_t n_maps = dlx_fuzz_n_maps();
    int fd = lowest_free_fd();
    dlx_fuzz_one(&f);
    REQUIRE(lowest_free_fd() == fd && dlx_fuzz_n_maps() == n_maps);
    return 0;
}

struct dlx_client *dlx_fuzz_client(int take_sock)
{
    struct dlx_client *c = calloc(1, sizeof *c);
    REQUIRE(c);
    c->mapped = dlx__mapped_new(dlx_fuzz_generation);
    REQUIRE(c->mapped);
    atomic_init(&c->refs, 1);
    c->generation = dlx_fuzz_generation;
    c->sock = take_sock;
    c->next_try_ns = UINT64_MAX;
    c->timeout_ns = 1;
    (void)dlx__lock_init(&c->lock);
    dlx__peers_init(&c->peers);
    return c;
}

void dlx_fuzz_ids_add(struct dlx_fuzz_ids *ids, uint64_t id)
{
    ids->ids[ids->n++ % DLX_ARRAY_SIZE(ids->ids)] = id;
}

/* The decisions, and the memory, of a message that is being made. */
struct maker {
    struct dlx_fuzz *f;
    const struct dlx_fuzz_ids *ids;
    size_t used;
    _Alignas(16) uint8_t memory[32768];
};

static void *take_memory(struct maker *m, size_t size)
{
    size_t rounded = (size + 15) / 16 * 16;
    if (rounded > sizeof m->memory - m->used)
        return NULL;
    void *p = m->memory + m->used;
    m->used += rounded;
    return memset(p, 0, size);
}

static uint64_t make_number(struct maker *m)
{
    uint32_t known = DLX_MIN(m->ids->n, (uint32_t)DLX_ARRAY_SIZE(m->ids->ids));
    uint64_t tag = dlx_fuzz_bytes(m->f, 1);
    if (known > 0 && tag < 0xe0) /* the newest first */
        return m->ids->ids[(m->ids->n - 1 - tag % known) % DLX_ARRAY_SIZE(m->ids->ids)];
    return dlx_fuzz_number(m->f);
}

static char *make_text(struct maker *m)
{
    static const char *const texts[] = {"t",    "u",  "a/b", "a/*", "**",   "a/**", "*",
                                        "*/b*", "..", "a/",  "x.y", "*a*b", "",     "fuzz"};
    const uint8_t *piece;
    uint32_t which = dlx_fuzz_choose(m->f, 32);
    if (which < DLX_ARRAY_SIZE(texts))
        return (char *)(uintptr_t)texts[which];
    size_t size = dlx_fuzz_piece(m->f, 600, &piece);
    char *text = take_memory(m, size + 1);
    if (!text)
        return (char *)(uintptr_t) "";
    memcpy(text, piece, size);
    return text;
}

static ProtobufCMessage *make_message(struct maker *m, const ProtobufCMessageDescriptor *type);

static void make_list(struct maker *m, const ProtobufCFieldDescriptor *field, uint8_t *base)
{
    bool is_text = field->type == PROTOBUF_C_TYPE_STRING;
    size_t n = dlx_fuzz_choose(m->f, is_text ? 4 : 64), made = 0;
    void **items = take_memory(m, n * sizeof *items);
    for (; items && made < n; made++) {
        items[made] = is_text ? (void *)make_text(m) : make_message(m, field->descriptor);
        if (!items[made])
            break;
    }
    memcpy(base + field->offset, &items, sizeof items);
    memcpy(base + field->quantifier_offset, &made, sizeof made);
}

static void make_field(struct maker *m, const ProtobufCFieldDescriptor *field, uint8_t *base)
{
    uint64_t u64;
    uint32_t u32;
    int32_t s32;
    protobuf_c_boolean yes;
    ProtobufCBinaryData bytes;
    const uint8_t *piece;
    char *text;
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        make_list(m, field, base);
        return;
    }
    switch (field->type) {
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        /* sizes and numbers of messages are no ids */
        u64 = strstr(field->name, "size") || strstr(field->name, "_ns") ||
                      strcmp(field->name, "after_seq") == 0
                  ? dlx_fuzz_number(m->f)
                  : make_number(m);
        memcpy(base + field->offset, &u64, sizeof u64);
        break;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_INT32:
        u32 = (uint32_t)dlx_fuzz_number(m->f);
        memcpy(base + field->offset, &u32, sizeof u32);
        break;
    case PROTOBUF_C_TYPE_SINT32:
        s32 = (int32_t)(0U - (uint32_t)dlx_fuzz_number(m->f)); /* error codes are negative */
        memcpy(base + field->offset, &s32, sizeof s32);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        yes = dlx_fuzz_choose(m->f, 2) != 0;
        memcpy(base + field->offset, &yes, sizeof yes);
        break;
    case PROTOBUF_C_TYPE_STRING:
        text = make_text(m);
        memcpy(base + field->offset, &text, sizeof text);
        break;
    case PROTOBUF_C_TYPE_BYTES:
        bytes.len = dlx_fuzz_piece(m->f, 600, &piece);
        bytes.data = take_memory(m, bytes.len);
        if (!bytes.data)
            bytes.len = 0;
        else
            memcpy(bytes.data, piece, bytes.len);
        memcpy(base + field->offset, &bytes, sizeof bytes);
        break;
    default:
        dlx_fuzz_fail(__FILE__, __LINE__, field->name); /* a type that the schema did not have */
    }
}

static ProtobufCMessage *make_message(struct maker *m, const ProtobufCMessageDescriptor *type)
{
    ProtobufCMessage *message = take_memory(m, type->sizeof_message);
    if (!message)
        return NULL;
    type->message_init(message);
    for (unsigned i = 0; i < type->n_fields; i++)
        make_field(m, &type->fields[i], (uint8_t *)message);
    return message;
}

size_t dlx_fuzz_packet(struct dlx_fuzz *f, Dlx__Wire__Packet__BodyCase body, uint32_t serial,
                       const struct dlx_fuzz_ids *ids, uint8_t ret[DLX_PACKET_SIZE_MAX])
{
    static struct maker m;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field(packet.base.descriptor, (unsigned)body);
    if (!field || field->type != PROTOBUF_C_TYPE_MESSAGE)
        return 0;
    m.f = f;
    m.ids = ids;
    m.used = 0;
    packet.serial = serial;
    packet.body_case = body;
    packet.ok = (Dlx__Wire__Ok *)make_message(&m, field->descriptor); /* any member will do */
    if (!packet.ok || dlx__wire__packet__get_packed_size(&packet) > DLX_PACKET_SIZE_MAX)
        return 0;
    return dlx__wire__packet__pack(&packet, ret);
}

#define MAPS_MAX 4096U

static struct {
    void *at;
    size_t size;
    bool is_heap;
} maps[MAPS_MAX];
static size_t n_maps;

void *__real_mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset);
int __real_munmap(void *at, size_t size);
void *__wrap_mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset);
int __wrap_munmap(void *at, size_t size);
void *__real_mremap(void *old, size_t old_size, size_t size, int flags, void *at);
void *__wrap_mremap(void *old, size_t old_size, size_t size, int flags, void *at);

static void remember(void *at, size_t size, bool is_heap)
{
    REQUIRE(n_maps < MAPS_MAX);
    maps[n_maps].at = at;
    maps[n_maps].size = size;
    maps[n_maps++].is_heap = is_heap;
}

void *dlx_fuzz_map(size_t size)
{
    void *at = NULL;
    REQUIRE(posix_memalign(&at, DLX_CACHELINE, size) == 0);
    memset(at, 0, size);
    remember(at, size, true);
    return at;
}

size_t dlx_fuzz_n_maps(void)
{
    return n_maps;
}

void *__wrap_mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset)
{
    void *map = __real_mmap(at, size, prot, flags, fd, offset);
    if (map != MAP_FAILED)
        remember(map, size, false);
    return map;
}

/* To an address that was given: into a map that was made for it, whose rest ends there. */
void *__wrap_mremap(void *old, size_t old_size, size_t size, int flags, void *at)
{
    void *map = __real_mremap(old, old_size, size, flags, at);
    for (size_t i = 0; map != MAP_FAILED && i < n_maps; i++) {
        size_t before = (size_t)((uintptr_t)map - (uintptr_t)maps[i].at);
        if (maps[i].at == old)
            maps[i].at = map;
        else if (map > maps[i].at && before < maps[i].size)
            maps[i].size = before;
    }
    return map;
}

int __wrap_munmap(void *at, size_t size)
{
    size_t i = 0;
    while (i < n_maps && maps[i].at != at)
        i++;
    REQUIRE(i < n_maps && maps[i].size == size);
    bool is_heap = maps[i].is_heap;
    maps[i] = maps[--n_maps];
    if (!is_heap)
        return __real_munmap(at, size);
    free(at);
    return 0;
}

void dlx_fuzz_unmap(void *map, size_t size)
{
    REQUIRE(__wrap_munmap(map, size) == 0);
}
