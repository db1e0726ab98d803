/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_PROTO_H
#define DLX_COMMON_PROTO_H

/*
 * Packets of proto/dlx.proto: packs and sends, receives and unpacks. Unpacking allocates from a
 * fixed arena. It refuses what a canonical encoder would not write (embedded NULs, non-minimal
 * encodings) and unknown fields, except in the Hello of a later version. The handlers check
 * values.
 */

#include "common/packet.h"
#include "proto/dlx.pb-c.h"

/* "Versions" in docs/PROTOCOL.md says what each of them means. */
#define DLX_PROTO_MAJOR 2U
#define DLX_PROTO_MINOR 10U

/* 16 KiB of canonical flat input unpack to less than this: 16 list entries and their strings. */
#define DLX_PROTO_ARENA_SIZE 65536U

struct dlx_proto_arena {
    size_t used;
    _Alignas(16) uint8_t data[DLX_PROTO_ARENA_SIZE];
};

/* Unpacks into `arena`, which is reset first: `ret` is valid until the next use of the arena.
 * Returns 0, or DLX_E_PROTOCOL with the reason. */
int dlx__proto_unpack(struct dlx_proto_arena *arena, const uint8_t *data, size_t size,
                      const Dlx__Wire__Packet **ret);

/* A packet with this body: DLX_PACKET(LINK_CLOSE, link_close, &body). Its serial is 0: there is no
 * answer. */
#define DLX_PACKET(CASE, member, body)                                                             \
    {                                                                                              \
        .base = PROTOBUF_C_MESSAGE_INIT(&dlx__wire__packet__descriptor),                           \
        .body_case = DLX__WIRE__PACKET__BODY_##CASE,                                               \
        {                                                                                          \
            .member = (body)                                                                       \
        }                                                                                          \
    }

/* Packs and sends. The caller keeps the fds. Returns 0; DLX_E_LIMIT (larger than a packet may be),
 * or what dlx__packet_send() returns. */
int dlx__proto_send(int borrow_sock, const Dlx__Wire__Packet *packet, const int *borrow_fds,
                    size_t n_fds);

/* The name of a body ("Subscribe") for messages; "nothing" for an empty packet. The string is
 * static. */
const char *dlx__proto_name(const Dlx__Wire__Packet *packet);

#endif
