/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_BYTES_H
#define DLX_COMMON_BYTES_H

/* Little-endian numbers in byte strings, at any alignment. */

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void dlx__put16(uint8_t *at, uint16_t v)
{
    v = htole16(v);
    memcpy(at, &v, sizeof v);
}

static inline void dlx__put32(uint8_t *at, uint32_t v)
{
    v = htole32(v);
    memcpy(at, &v, sizeof v);
}

static inline void dlx__put64(uint8_t *at, uint64_t v)
{
    v = htole64(v);
    memcpy(at, &v, sizeof v);
}

static inline uint16_t dlx__get16(const uint8_t *at)
{
    uint16_t v;
    memcpy(&v, at, sizeof v);
    return le16toh(v);
}

static inline uint32_t dlx__get32(const uint8_t *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return le32toh(v);
}

static inline uint64_t dlx__get64(const uint8_t *at)
{
    uint64_t v;
    memcpy(&v, at, sizeof v);
    return le64toh(v);
}

#endif
