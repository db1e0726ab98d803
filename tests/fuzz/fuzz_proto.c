/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: bytes as a packet. An accepted packet is in canonical encoding: packed again it has
 * the same size and means the same, and no text in it hides a NUL. Packets of the library's own
 * encoder are accepted.
 */
#include "common/error.h"
#include "tests/fuzz/harness_fuzz.h"
#include <string.h>

static struct dlx_proto_arena first, second;
static uint8_t once[DLX_PACKET_SIZE_MAX], twice[DLX_PACKET_SIZE_MAX];

static size_t pack(const Dlx__Wire__Packet *packet, uint8_t ret[DLX_PACKET_SIZE_MAX])
{
    REQUIRE(dlx__wire__packet__get_packed_size(packet) <= DLX_PACKET_SIZE_MAX);
    return dlx__wire__packet__pack(packet, ret);
}

static void check(const uint8_t *data, size_t size)
{
    const Dlx__Wire__Packet *packet, *again;
    dlx__error_clear();
    if (dlx__proto_unpack(&first, data, size, &packet) < 0) {
        REQUIRE(*dlx__error_message());
        return;
    }
    REQUIRE(first.used <= sizeof first.data && size <= DLX_PACKET_SIZE_MAX);
    REQUIRE(strcmp(dlx__proto_name(packet), "nothing") != 0);
    size_t n = pack(packet, once);
    REQUIRE(n == size);
    REQUIRE(dlx__proto_unpack(&second, once, n, &again) == 0);
    REQUIRE(again->serial == packet->serial && again->body_case == packet->body_case);
    REQUIRE(pack(again, twice) == n && memcmp(once, twice, n) == 0);
}

/* Lists may have more entries than there is room for; nothing else may. */
static void check_own(struct dlx_fuzz *f)
{
    static const struct dlx_fuzz_ids none = {.n = 0};
    static uint8_t made[DLX_PACKET_SIZE_MAX];
    const Dlx__Wire__Packet *packet;
    Dlx__Wire__Packet__BodyCase body = (Dlx__Wire__Packet__BodyCase)dlx_fuzz_bytes(f, 1);
    uint32_t serial = (uint32_t)dlx_fuzz_number(f);
    size_t size = dlx_fuzz_packet(f, body, serial, &none, made);
    if (size == 0)
        return;
    if (body != DLX__WIRE__PACKET__BODY_PUBLISHER_LIST && body != DLX__WIRE__PACKET__BODY_LINK_LIST)
        REQUIRE(dlx__proto_unpack(&first, made, size, &packet) == 0);
    check(made, size);
    /* and one bit of it changed */
    size_t bit = (size_t)dlx_fuzz_bytes(f, 2) % (size * 8);
    made[bit / 8] ^= (uint8_t)(1U << (bit % 8));
    check(made, size);
}

void dlx_fuzz_one(struct dlx_fuzz *f)
{
    if (dlx_fuzz_choose(f, 2) == 0)
        check(f->at, f->left);
    else
        check_own(f);
}
