/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_KEEPER_WIRE_H
#define DLX_KEEPER_WIRE_H

/*
 * The packets between the GPU keeper and the daemon, and between the daemon, publishers and readers
 * of memory that the keeper did not make (docs/GPU.md, "The keeper"). All sockets are Unix
 * SOCK_SEQPACKET; one packet is a header and a body:
 *
 *     0  u8  version (2)     8  u64 origin             32  u64 number
 *     1  u8  kind           16  u64 allocation         40  i32 code
 *     2  u16 0, reserved    24  u64 user               44  u32 0, reserved
 *     4  u32 serial         48  body: a text, a device, a description (gpu/handle.h), or origins
 *
 * Fields that a kind does not have are 0. Numbers are little-endian. An origin is the id that a
 * publisher had with the first daemon it was announced to. A client claims its origin itself, so an
 * origin is meaningful only together with the user: the uid of the publisher, and in the upper half
 * the number of the daemon's socket on which it connected, 0 for the main socket.
 *
 *     daemon -> keeper       ALLOCATE, GET, FREE, FORGET, CLAIM, CLAIMED
 *     keeper -> daemon       MEMORY or REFUSAL, one for each ALLOCATE and GET; KEPT
 *     daemon -> publisher    ASK
 *     publisher -> reader    PART, until all are there, or REFUSAL; then the end
 *
 * A keeper chooses a number at random when it starts. KEPT is sent whenever the memory of a
 * publisher has changed, before the answer to what changed it, and in answer to a CLAIM of a
 * publisher that has some.
 *
 * No received packet is trusted: dlx__keeper_decode() checks it.
 */

#include "common/packet.h"

#define DLX_KEEPER_VERSION     2U
#define DLX_KEEPER_HEADER_SIZE 48U
#define DLX_KEEPER_BODY_MAX    (DLX_PACKET_SIZE_MAX - DLX_KEEPER_HEADER_SIZE)
/* One claim: u64 origin, u64 user. */
#define DLX_KEEPER_CLAIM_SIZE 16U
#define DLX_KEEPER_CLAIMS_MAX 256U
/* A device: i32 type of DLPack, 16 bytes UUID. */
#define DLX_KEEPER_DEVICE_SIZE 20U

/* The keeper's socket path is the daemon's followed by this. */
#define DLX_KEEPER_SUFFIX ".keeper"

/* X(name, number, fields, kind of the body, descriptors) */
#define DLX_KEEPER_KINDS(X)                                                                        \
    /* Make memory of `number` bytes at least, not cleared. [pidfd of the publisher] */            \
    X(ALLOCATE, 1, SERIAL | ORIGIN | ALLOCATION | USER | NUMBER, DEVICE, 1)                        \
    X(GET, 2, SERIAL | ORIGIN | ALLOCATION | USER, NOTHING, 0)                                     \
    X(FREE, 3, ORIGIN | ALLOCATION | USER, NOTHING, 0)                                             \
    /* The daemon dropped the publisher: free all that was made for it. */                         \
    X(FORGET, 4, ORIGIN | USER, NOTHING, 0)                                                        \
    /* The daemon has these publishers. */                                                         \
    X(CLAIM, 5, 0, CLAIMS, 0)                                                                      \
    /* Ends the claims: what was made for others is freed with the end of their processes. */      \
    X(CLAIMED, 6, 0, NOTHING, 0)                                                                   \
    /* The answer to the ALLOCATE or GET with this serial; the keeper's number. [the memory] */    \
    X(MEMORY, 7, SERIAL | NUMBER, DESCRIPTION, 1)                                                  \
    X(REFUSAL, 8, SERIAL | CODE, TEXT, 0)                                                          \
    /* The publisher now has memory of `number` bytes. */                                          \
    X(KEPT, 9, ORIGIN | USER | NUMBER, NOTHING, 0)                                                 \
    /* Send the description to a reader. [a socket that the reader cannot write to] */             \
    X(ASK, 10, ALLOCATION, NOTHING, 1)                                                             \
    /* A part of a description. [its chunks] */                                                    \
    X(PART, 11, 0, DESCRIPTION, DLX_PACKET_FDS_MAX)

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
    uint64_t user;
    uint64_t number;
    int32_t code;
    const uint8_t *body; /* in the decoded packet; a text is not terminated */
    size_t body_size;
};

/* Decodes and checks a received packet. Its descriptors stay in `packet`, as many as the kind may
 * have; dlx__gpu_handle_decode() checks those of a PART. Returns 0; DLX_E_VERSION or
 * DLX_E_PROTOCOL naming the wrong field. */
int dlx__keeper_decode(const struct dlx_packet *packet, struct dlx_keeper_packet *ret);

/* The number of origins of a decoded CLAIM, and origin `i`. */
size_t dlx__keeper_n_claims(const struct dlx_keeper_packet *packet);
void dlx__keeper_claim(const struct dlx_keeper_packet *packet, size_t i, uint64_t *ret_origin,
                       uint64_t *ret_user);
void dlx__keeper_put_claim(uint8_t ret[DLX_KEEPER_CLAIM_SIZE], uint64_t origin, uint64_t user);

/* The device of a decoded ALLOCATE. */
struct dlx_keeper_device {
    int32_t type; /* of DLPack */
    uint8_t uuid[16];
};
struct dlx_keeper_device dlx__keeper_device(const struct dlx_keeper_packet *packet);
void dlx__keeper_put_device(uint8_t ret[DLX_KEEPER_DEVICE_SIZE],
                            const struct dlx_keeper_device *device);

/* Sends without waiting, like dlx__packet_send(). */
int dlx__keeper_send(int borrow_sock, const struct dlx_keeper_packet *packet, const int *borrow_fds,
                     size_t n_fds);
/* Sends REFUSAL with this text. */
int dlx__keeper_refuse(int borrow_sock, uint32_t serial, int code, const char *text);
/* Sets the thread's error to the code and text of a received REFUSAL, and returns the code, which
 * is negative. */
int dlx__keeper_fail(const struct dlx_keeper_packet *packet);

#endif
