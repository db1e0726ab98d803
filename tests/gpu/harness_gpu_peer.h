/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_GPU_PEER_H
#define DLX_TESTS_HARNESS_GPU_PEER_H

/*
 * Another process that shares GPU memory with the test, and serves its requests over a socket. The
 * process starts before the test uses a GPU.
 */

#include "gpu/handle.h"
#include "tests/gpu/harness_gpu.h"

#if DLX_TEST_HAS_GPU

enum dlx_test_gpu_op {
    DLX_TEST_GPU_ALLOCATE, /* a = bytes, b = kind: answers with a handle of it */
    DLX_TEST_GPU_OPEN,     /* a = device, b = access, with a handle: answers a = number of it */
    DLX_TEST_GPU_READ,     /* a = number, b = offset: answers a = the word there */
    DLX_TEST_GPU_WRITE,    /* a = number, b = offset, c = word */
    DLX_TEST_GPU_DROP,     /* a = number */
    DLX_TEST_GPU_FREED,    /* a = id of what the test publishes */
    DLX_TEST_GPU_LEAVE,    /* the test is not its publisher any more, which it was from the start */
    DLX_TEST_GPU_TRIM,     /* answers a = bytes */
    DLX_TEST_GPU_COUNT,    /* a = counter of the stand-in: answers a */
    DLX_TEST_GPU_FDS,      /* answers a = open descriptors of the process */
    DLX_TEST_GPU_END,
};

struct dlx_test_gpu_word {
    uint32_t op;
    int32_t result;
    uint64_t a, b, c;
    char text[256]; /* of an error */
};

/* The ids of a publisher of the test, and of one of a peer. */
#define DLX_TEST_GPU_OWN  ((struct dlx_gpu_publisher){1, 1})
#define DLX_TEST_GPU_PEER ((struct dlx_gpu_publisher){1, 2})

/* Kinds of memory of the backend: what libdlx allocates, and what cuMemAlloc is to it. */
enum dlx_gpu_kind dlx_test_gpu_vmm(void);
enum dlx_gpu_kind dlx_test_gpu_ipc(void);

/* NAME=VALUE for the peer alone, or NULL. */
void dlx_test_gpu_peer_start(struct dlx_test_gpu_peer *ret, const char *variable);
void dlx_test_gpu_peer_end(struct dlx_test_gpu_peer *peer);

/* A request and its answer. With a handle: all parts of it go along. */
struct dlx_test_gpu_word dlx_test_gpu_ask(struct dlx_test_gpu_peer *peer, enum dlx_test_gpu_op op,
                                          uint64_t a, uint64_t b, uint64_t c,
                                          const struct dlx_gpu_handle *handle);
/* So much of it exists in the peer, as far as the driver tells. */
void dlx_test_gpu_peer_check(struct dlx_test_gpu_peer *peer, enum standin_counter counter,
                             uint64_t n);
/* The same as dlx_test_gpu_ask(), for a handle of memory of that kind, in which each 4096th word is
 * its number, from 1 */
void dlx_test_gpu_ask_handle(struct dlx_test_gpu_peer *peer, enum dlx_gpu_kind kind, uint64_t size,
                             struct dlx_gpu_handle *ret);

#endif

#endif
