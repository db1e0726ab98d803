/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_KEEPER_WIRE_H
#define DLX_KEEPER_WIRE_H

/*
 * The packets between the GPU keeper, the daemon, publishers and readers (docs/GPU.md, "The
 * keeper"). All sockets are Unix SOCK_SEQPACKET; one packet is a header and a body:
 *
 *     0  u8  version (1)     8  u64 origin             24  u32 uid of the publisher
 *     1  u8  kind           16  u64 allocation         28  u32 uid of the reader
 *     2  u16 0, reserved                               32  i32 code, or a number
 *     4  u32 serial                                    36  u32 socket of the publisher
 *    40  body: a text, a part of a description (gpu/handle.h), or origins
 *
 * Fields that a kind does not have are 0. Numbers are little-endian. An origin is the id that a
 * publisher had with the first daemon it was announced to. A client claims its origin itself, so an
 * origin is meaningful only together with the user: the uid of the publisher and the number of the
 * daemon's socket on which it connected, 0 for the main socket.
 *
 *     daemon -> router                OWN, GET, FORGET, CLAIM, CLAIMED
 *     router -> daemon                OWNED, one for each OWN
 *     publisher -> holder             PUT, DROP
 *     holder -> publisher             ANSWER, one for each PUT
 *     holder or router -> reader      PART, or ANSWER with a code that is not 0; then the end
 *     router -> holder                GET
 *     holder -> router                OWNER_GONE
 *
 * No received packet is trusted: dlx__keeper_decode() checks it.
 */

#include "common/packet.h"

#define DLX_KEEPER_VERSION     1U
#define DLX_KEEPER_HEADER_SIZE 40U
#define DLX_KEEPER_BODY_MAX    (DLX_PACKET_SIZE_MAX - DLX_KEEPER_HEADER_SIZE)
/* One claim: u64 origin, u32 uid, u32 socket. */
#define DLX_KEEPER_CLAIM_SIZE 16U
#define DLX_KEEPER_CLAIMS_MAX 256U

/* The keeper's socket path is the daemon's followed by this. */
#define DLX_KEEPER_SUFFIX ".keeper"

/* X(name, number, fields, kind of the body, descriptors) */
#define DLX_KEEPER_KINDS(X)                                                                        \
    /* Start a holder for this publisher; it replaces an existing one. [the holder's end] */       \
    X(OWN, 1, SERIAL | ORIGIN | UID, NOTHING, 1)                                                   \
    /* Send this description to a reader. [the holder's end, which the reader cannot write to] */  \
    X(GET, 2, ORIGIN | ALLOCATION | UID | READER, NOTHING, 1)                                      \
    /* The daemon dropped it: its holder ends once the publisher has closed its end, too. */       \
    X(FORGET, 3, ORIGIN | UID, NOTHING, 0)                                                         \
    /* The daemon has these publishers. */                                                         \
    X(CLAIM, 4, 0, CLAIMS, 0)                                                                      \
    /* Ends the claims; the code is how many descriptors the keeper may have in flight. */         \
    X(CLAIMED, 5, CODE, NOTHING, 0)                                                                \
    /* The result of the OWN with this serial: code 0, or an error with its text. */               \
    X(OWNED, 6, SERIAL | CODE, TEXT, 0)                                                            \
    /* A part of a description, whose parts have the same serial. [its chunks] */                  \
    X(PUT, 7, SERIAL, DESCRIPTION, DLX_PACKET_FDS_MAX)                                             \
    X(DROP, 8, ALLOCATION, NOTHING, 0)                                                             \
    X(ANSWER, 9, SERIAL | CODE, TEXT, 0)                                                           \
    X(PART, 10, 0, DESCRIPTION, DLX_PACKET_FDS_MAX)                                                \
    X(OWNER_GONE, 11, 0, NOTHING, 0)

enum dlx_keeper_kind {
#define DLX_KEEPER_ENUM(name, number, fields, body, n_fds) DLX_KEEPER_##name = number,
    DLX_KEEPER_KINDS(DLX_KEEPER_ENUM)
#undef DLX_KEEPER_ENUM
};

struct dlx_keeper_packet {
    enum dlx_keeper_kind kind;
    uint32_t serial;
    uint64_t origin;
    uint64_t allocation;
    uint32_t uid;
    uint32_t socket;
    uint32_t reader;
    int32_t code;
    const uint8_t *body; /* in the decoded packet; a text is not terminated */
    size_t body_size;
};

/* Decodes and checks a received packet. Its descriptors stay in `packet`, as many as the kind may
 * have; dlx__gpu_handle_decode() checks those of a description. Returns 0; DLX_E_VERSION or
 * DLX_E_PROTOCOL naming the wrong field. */
int dlx__keeper_decode(const struct dlx_packet *packet, struct dlx_keeper_packet *ret);

/* The number of origins of a decoded CLAIM, and origin `i`. */
size_t dlx__keeper_n_claims(const struct dlx_keeper_packet *packet);
void dlx__keeper_claim(const struct dlx_keeper_packet *packet, size_t i, uint64_t *ret_origin,
                       uint64_t *ret_user);
void dlx__keeper_put_claim(uint8_t ret[DLX_KEEPER_CLAIM_SIZE], uint64_t origin, uint64_t user);

/* A user as one number: the uid in the lower half, the socket in the upper half. */
static inline uint64_t dlx__keeper_user(const struct dlx_keeper_packet *packet)
{
    return (uint64_t)packet->socket << 32 | packet->uid;
}

/* Sends without waiting, like dlx__packet_send(). */
int dlx__keeper_send(int borrow_sock, const struct dlx_keeper_packet *packet, const int *borrow_fds,
                     size_t n_fds);
/* Sends OWNED or ANSWER with a text. */
int dlx__keeper_send_code(int borrow_sock, enum dlx_keeper_kind kind, uint32_t serial, int code,
                          const char *text);
/* Sets the thread's error to the code and text of a received packet, and returns the code; 0 is
 * success. */
int dlx__keeper_fail(const struct dlx_keeper_packet *packet);

/* The bytes that were sent on this socket and not received yet; 0 if nobody can receive them any
 * more. */
size_t dlx__keeper_unread(int borrow_sock);

#endif
