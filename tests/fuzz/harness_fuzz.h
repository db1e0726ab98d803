/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_FUZZ_H
#define DLX_TESTS_HARNESS_FUZZ_H

/*
 * The common part of the fuzz targets (tests/fuzz/fuzz_*.c): decisions read out of the input one at
 * a time, so that an input is a short program; packets of proto/dlx.proto made of such decisions;
 * and maps that are watched.
 *
 * A target is linked with libFuzzer (`make fuzz`) or with tests/fuzz/replay.c (`make check`), and
 * with --wrap=mmap,munmap.
 */

#include "common/proto.h"
#include "common/util.h"

/* Run by a target with each input: it may leave neither a map nor a descriptor. Below are the
 * functions by which libFuzzer and replay.c call it. */
struct dlx_fuzz;
void dlx_fuzz_one(struct dlx_fuzz *f);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Once, before the first input. A target need not have one. */
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* Not assert(): in all builds. */
#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x))                                                                                  \
            dlx_fuzz_fail(__FILE__, __LINE__, #x);                                                 \
    } while (0)
__attribute__((noreturn)) void dlx_fuzz_fail(const char *file, int line, const char *what);

/* ---- decisions ----------------------------------------------------------------------------- */

/* The input that is left. At its end every decision is 0. */
struct dlx_fuzz {
    const uint8_t *at;
    size_t left;
};

/* `n` bytes, at most 8, little-endian. */
static inline uint64_t dlx_fuzz_bytes(struct dlx_fuzz *f, size_t n)
{
    uint64_t value = 0;
    for (size_t i = 0; i < n && f->left > 0; i++, f->at++, f->left--)
        value |= (uint64_t)*f->at << (8 * i);
    return value;
}

/* 0 to n - 1; n is at most 256. */
static inline uint32_t dlx_fuzz_choose(struct dlx_fuzz *f, uint32_t n)
{
    return (uint32_t)(dlx_fuzz_bytes(f, 1) % n);
}

/* Small numbers in one byte, and those where arithmetic goes wrong, too. */
static inline uint64_t dlx_fuzz_number(struct dlx_fuzz *f)
{
    uint64_t tag = dlx_fuzz_bytes(f, 1);
    if (tag < 0x80)
        return tag;
    if (tag < 0xc0)
        return UINT64_C(1) << (tag - 0x80);
    if (tag < 0xfc)
        return UINT64_MAX >> (tag - 0xc0);
    if (tag < 0xff)
        return dlx_fuzz_bytes(f, (size_t)2 << (tag - 0xfc));
    return 0 - dlx_fuzz_bytes(f, 1);
}

/* A piece of the input itself, at most `max` bytes, preceded by its size. Two bytes are the
 * size. */
static inline size_t dlx_fuzz_piece(struct dlx_fuzz *f, size_t max, const uint8_t **ret)
{
    size_t size = dlx_fuzz_bytes(f, 2);
    size = DLX_MIN(size, DLX_MIN(max, f->left));
    *ret = f->at;
    f->at += size;
    f->left -= size;
    return size;
}

/* ---- clients -------------------------------------------------------------------------------- */

/* The generation of dlx__fork_init(). */
extern uint64_t dlx_fuzz_generation;
/* A client whose control socket is `take_sock`, -1: none, and which never connects by itself. */
struct dlx_client *dlx_fuzz_client(int take_sock);

/* ---- packets ------------------------------------------------------------------------------- */

/* Numbers that the other side gave, to be named in packets. The last ones are kept. */
struct dlx_fuzz_ids {
    uint64_t ids[16];
    uint32_t n;
};
void dlx_fuzz_ids_add(struct dlx_fuzz_ids *ids, uint64_t id);

/*
 * A packet with this body, canonically encoded, whose every field is a decision. Its 64-bit numbers
 * are mostly one of `ids`, and its texts topics, patterns and pieces of the input. Returns its
 * size; 0: there is no such body.
 */
size_t dlx_fuzz_packet(struct dlx_fuzz *f, Dlx__Wire__Packet__BodyCase body, uint32_t serial,
                       const struct dlx_fuzz_ids *ids, uint8_t ret[DLX_PACKET_SIZE_MAX]);

/* ---- maps ---------------------------------------------------------------------------------- */

/* Memory that ends where it ends: one byte beyond it is a fault. Zeroed. munmap() is its end,
 * too. */
void *dlx_fuzz_map(size_t size);
void dlx_fuzz_unmap(void *map, size_t size);
/* Maps of the code under test that are there: real ones and those above. A map that is not there,
 * or of another size, must not be unmapped. */
size_t dlx_fuzz_n_maps(void);

#endif
