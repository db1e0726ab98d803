/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/wire.h"
#include "common/bytes.h"
#include "common/error.h"
#include <string.h>

/* The offsets that keeper/wire.h draws. */
enum {
    AT_VERSION = 0,
    AT_KIND = 1,
    AT_ZERO16 = 2,
    AT_SERIAL = 4,
    AT_ORIGIN = 8,
    AT_ALLOCATION = 16,
    AT_USER = 24,
    AT_NUMBER = 32,
    AT_CODE = 40,
    AT_ZERO32 = 44,
};
_Static_assert(AT_ZERO32 + 4 == DLX_KEEPER_HEADER_SIZE, "layout");
_Static_assert(DLX_KEEPER_CLAIMS_MAX *DLX_KEEPER_CLAIM_SIZE <= DLX_KEEPER_BODY_MAX, "CLAIM fits");

enum field { SERIAL = 1, ORIGIN = 2, ALLOCATION = 4, USER = 8, NUMBER = 16, CODE = 32 };
enum body { NOTHING, TEXT, DEVICE, DESCRIPTION, CLAIMS };

struct kind {
    uint32_t fields;
    enum body body;
    size_t n_fds;
};

static const struct kind kinds[] = {
#define KIND(name, number, fields, body, n_fds) [number] = {fields, body, n_fds},
    DLX_KEEPER_KINDS(KIND)
#undef KIND
};

static int fail_field(const char *field)
{
    return dlx__fail(DLX_E_PROTOCOL, "a packet of the GPU keeper has a wrong %s", field);
}

static int check_body(enum body body, const uint8_t *data, size_t size)
{
    switch (body) {
    case NOTHING:
        return size == 0 ? 0 : fail_field("size");
    case TEXT:
        return size < DLX_ERROR_TEXT_SIZE && !memchr(data, '\0', size) ? 0 : fail_field("text");
    case DEVICE:
        return size == DLX_KEEPER_DEVICE_SIZE ? 0 : fail_field("device");
    case CLAIMS:
        if (size % DLX_KEEPER_CLAIM_SIZE != 0 ||
            size / DLX_KEEPER_CLAIM_SIZE > DLX_KEEPER_CLAIMS_MAX)
            return fail_field("number of origins");
        for (size_t at = 0; at < size; at += DLX_KEEPER_CLAIM_SIZE)
            if (dlx__get64(data + at) == 0)
                return fail_field("origin");
        return 0;
    default:
        return size > 0 ? 0 : fail_field("description");
    }
}

int dlx__keeper_decode(const struct dlx_packet *packet, struct dlx_keeper_packet *ret)
{
    const uint8_t *data = packet->data;
    if (packet->size < DLX_KEEPER_HEADER_SIZE)
        return fail_field("size");
    if (data[AT_VERSION] != DLX_KEEPER_VERSION)
        return dlx__fail(DLX_E_VERSION,
                         "a packet of the GPU keeper is of version %u, this program knows %u",
                         data[AT_VERSION], DLX_KEEPER_VERSION);
    if (data[AT_KIND] == 0 || data[AT_KIND] >= DLX_ARRAY_SIZE(kinds))
        return fail_field("kind");
    const struct kind *kind = &kinds[data[AT_KIND]];
    struct dlx_keeper_packet got = {
        .kind = data[AT_KIND],
        .serial = dlx__get32(data + AT_SERIAL),
        .origin = dlx__get64(data + AT_ORIGIN),
        .allocation = dlx__get64(data + AT_ALLOCATION),
        .user = dlx__get64(data + AT_USER),
        .number = dlx__get64(data + AT_NUMBER),
        .code = (int32_t)dlx__get32(data + AT_CODE),
        .body = data + DLX_KEEPER_HEADER_SIZE,
        .body_size = packet->size - DLX_KEEPER_HEADER_SIZE,
    };
    if (dlx__get16(data + AT_ZERO16) != 0 || dlx__get32(data + AT_ZERO32) != 0)
        return fail_field("reserved field");
    if (!(kind->fields & SERIAL) && got.serial != 0)
        return fail_field("serial");
    if ((kind->fields & ORIGIN) ? got.origin == 0 : got.origin != 0)
        return fail_field("origin");
    if ((kind->fields & ALLOCATION) ? got.allocation == 0 : got.allocation != 0)
        return fail_field("allocation");
    if (!(kind->fields & USER) && got.user != 0)
        return fail_field("user");
    if (!(kind->fields & NUMBER) && got.number != 0)
        return fail_field("number");
    if ((kind->fields & CODE) ? got.code >= 0 : got.code != 0)
        return fail_field("code");
    if (got.kind == DLX_KEEPER_PART ? packet->n_fds > kind->n_fds : packet->n_fds != kind->n_fds)
        return fail_field("number of file descriptors");
    int r = check_body(kind->body, got.body, got.body_size);
    if (r == 0)
        *ret = got;
    return r;
}

size_t dlx__keeper_n_claims(const struct dlx_keeper_packet *packet)
{
    return packet->body_size / DLX_KEEPER_CLAIM_SIZE;
}

void dlx__keeper_claim(const struct dlx_keeper_packet *packet, size_t i, uint64_t *ret_origin,
                       uint64_t *ret_user)
{
    const uint8_t *at = packet->body + i * DLX_KEEPER_CLAIM_SIZE;
    *ret_origin = dlx__get64(at);
    *ret_user = dlx__get64(at + 8);
}

void dlx__keeper_put_claim(uint8_t ret[DLX_KEEPER_CLAIM_SIZE], uint64_t origin, uint64_t user)
{
    dlx__put64(ret, origin);
    dlx__put64(ret + 8, user);
}

struct dlx_keeper_device dlx__keeper_device(const struct dlx_keeper_packet *packet)
{
    struct dlx_keeper_device device = {.type = (int32_t)dlx__get32(packet->body)};
    memcpy(device.uuid, packet->body + 4, sizeof device.uuid);
    return device;
}

void dlx__keeper_put_device(uint8_t ret[DLX_KEEPER_DEVICE_SIZE],
                            const struct dlx_keeper_device *device)
{
    dlx__put32(ret, (uint32_t)device->type);
    memcpy(ret + 4, device->uuid, sizeof device->uuid);
}

int dlx__keeper_send(int sock, const struct dlx_keeper_packet *packet, const int *fds, size_t n_fds)
{
    uint8_t data[DLX_PACKET_SIZE_MAX];
    if (packet->body_size > DLX_KEEPER_BODY_MAX)
        return fail_field("size");
    data[AT_VERSION] = DLX_KEEPER_VERSION;
    data[AT_KIND] = (uint8_t)packet->kind;
    dlx__put16(data + AT_ZERO16, 0);
    dlx__put32(data + AT_SERIAL, packet->serial);
    dlx__put64(data + AT_ORIGIN, packet->origin);
    dlx__put64(data + AT_ALLOCATION, packet->allocation);
    dlx__put64(data + AT_USER, packet->user);
    dlx__put64(data + AT_NUMBER, packet->number);
    dlx__put32(data + AT_CODE, (uint32_t)packet->code);
    dlx__put32(data + AT_ZERO32, 0);
    if (packet->body_size > 0)
        memcpy(data + DLX_KEEPER_HEADER_SIZE, packet->body, packet->body_size);
    return dlx__packet_send(sock, data, DLX_KEEPER_HEADER_SIZE + packet->body_size, fds, n_fds);
}

int dlx__keeper_refuse(int sock, uint32_t serial, int code, const char *text)
{
    size_t size = strnlen(text, DLX_ERROR_TEXT_SIZE - 1U);
    const struct dlx_keeper_packet packet = {
        .kind = DLX_KEEPER_REFUSAL,
        .serial = serial,
        .code = code < 0 ? code : DLX_E_PROTOCOL,
        .body = (const uint8_t *)text,
        .body_size = size,
    };
    return dlx__keeper_send(sock, &packet, NULL, 0);
}

int dlx__keeper_fail(const struct dlx_keeper_packet *packet)
{
    if (packet->body_size == 0)
        return dlx__fail(packet->code, "%s", dlx__error_text(packet->code));
    return dlx__fail(packet->code, "%.*s", (int)packet->body_size, (const char *)packet->body);
}
