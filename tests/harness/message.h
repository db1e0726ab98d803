/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_MESSAGE_H
#define DLX_TESTS_HARNESS_MESSAGE_H

/* Messages of proto/dlx.proto, written where they are sent. */

#include "common/proto.h"
#include <stddef.h>
#include <stdint.h>

#define BODY(name) DLX__WIRE__PACKET__BODY_##name

/* A message that is a packet's body, by its name there: WIRE(arena_drop, .arena = 1). Fields that
 * are not named have their defaults. The message lives as long as its block. */
#define WIRE(name, ...)                                                                            \
    (&(__typeof__(*((Dlx__Wire__Packet *)NULL)->name)){                                            \
        .base = PROTOBUF_C_MESSAGE_INIT(&dlx__wire__##name##__descriptor), __VA_ARGS__})

/* A string of a message, which is only read. */
#define WIRE_TEXT(string) ((char *)(uintptr_t)(string))

/* The body of which this is the message. */
Dlx__Wire__Packet__BodyCase dlx_test_body_of(const void *message);

#endif
