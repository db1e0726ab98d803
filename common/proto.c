/* SPDX-License-Identifier: Apache-2.0 */
#include "common/proto.h"
#include "common/error.h"

static void *proto_arena_alloc(void *data, size_t size)
{
    struct dlx_proto_arena *arena = data;
    uint64_t rounded;
    if (!dlx__align_up(size, 16, &rounded) || rounded > sizeof arena->data - arena->used)
        return NULL;
    void *p = arena->data + arena->used;
    arena->used += (size_t)rounded;
    return p;
}

static void arena_free(void *data, void *pointer)
{
    (void)data;
    (void)pointer;
}

/* A client sends Hello before it knows our version, so a Hello of a later version may have fields
 * that we do not know. No other packet may: see "Versions" in docs/PROTOCOL.md. */
static bool may_say_more(const Dlx__Wire__Packet *packet)
{
    return packet->body_case == DLX__WIRE__PACKET__BODY_HELLO &&
           (packet->hello->major != DLX_PROTO_MAJOR || packet->hello->minor > DLX_PROTO_MINOR);
}

int dlx__proto_unpack(struct dlx_proto_arena *arena, const uint8_t *data, size_t size,
                      const Dlx__Wire__Packet **ret)
{
    ProtobufCAllocator allocator = {
        .alloc = proto_arena_alloc, .free = arena_free, .allocator_data = arena};
    if (size > DLX_PACKET_SIZE_MAX)
        return dlx__fail(DLX_E_PROTOCOL, "packet of %zu bytes, at most %u are allowed", size,
                         DLX_PACKET_SIZE_MAX);
    arena->used = 0;
    Dlx__Wire__Packet *packet = dlx__wire__packet__unpack(&allocator, size, data);
    if (!packet)
        return dlx__fail(DLX_E_PROTOCOL, "packet of %zu bytes does not decode", size);
    if (packet->body_case == DLX__WIRE__PACKET__BODY__NOT_SET)
        return dlx__fail(DLX_E_PROTOCOL, "packet with no known body");
    /* body is a union of pointers to messages, so any member gives the pointer. */
    if (packet->base.n_unknown_fields > 0 ||
        (((ProtobufCMessage *)packet->ok)->n_unknown_fields > 0 && !may_say_more(packet)))
        return dlx__fail(DLX_E_PROTOCOL, "%s with unknown fields", dlx__proto_name(packet));
    /* A string with an embedded NUL, or a number in more bytes than it needs, packs to another
     * size. */
    if (dlx__wire__packet__get_packed_size(packet) != size)
        return dlx__fail(DLX_E_PROTOCOL, "%s is not in canonical encoding",
                         dlx__proto_name(packet));
    *ret = packet;
    return 0;
}

int dlx__proto_send(int sock, const Dlx__Wire__Packet *packet, const int *fds, size_t n_fds)
{
    uint8_t data[DLX_PACKET_SIZE_MAX];
    size_t size = dlx__wire__packet__get_packed_size(packet);
    if (size > sizeof data)
        return dlx__fail(DLX_E_LIMIT, "%s of %zu bytes, a packet holds at most %zu",
                         dlx__proto_name(packet), size, sizeof data);
    dlx__wire__packet__pack(packet, data);
    return dlx__packet_send(sock, data, size, fds, n_fds);
}

const char *dlx__proto_name(const Dlx__Wire__Packet *packet)
{
    /* Every body is a pointer in one union, and every message starts with its descriptor. */
    const ProtobufCMessage *body = (const ProtobufCMessage *)packet->ok;
    if (packet->body_case == DLX__WIRE__PACKET__BODY__NOT_SET || !body)
        return "nothing";
    return body->descriptor->short_name;
}
