/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_GPU_FACTS_H
#define DLX_TESTS_GPU_FACTS_H

/*
 * Questions about the driver, E1 to E13, each answered in one line. docs/GPU.md refers to them.
 *
 * A question is a test of Check: a process of its own with a time limit, so that one which hangs or
 * crashes has no answer, and the others go on. The test asserts only what it needs to go on; its
 * findings are the answer. It forks its roles, which are exporters, importers and observers, before
 * it calls cuInit, and mostly leaves that to them.
 */

#include "tests/gpu/harness_gpu_machine.h"

#if DLX_TEST_HAS_GPU

/* Prints "E<n> ..." and, of the stand-in, that it is that one. Once a question. */
void facts_answer(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The driver's name for it, without CUDA_ERROR_. */
const char *facts_code(int64_t result);
static inline const char *facts_yes(bool is_so)
{
    return is_so ? "yes" : "NO";
}
double facts_ms(uint64_t from_ns, uint64_t to_ns);
/* Sorts. */
double facts_p50_us(uint64_t *ns, size_t n);

enum facts_op {
    FACTS_GO,   /* what the role makes of it */
    FACTS_FREE, /* answers a = bytes free */
    /* a = bytes: answers a = the time at which so much was free, or 0 after 5 s */
    FACTS_AWAIT_FREE,
    FACTS_WRONG, /* a = seed: answers a = number of words that differ from the pattern */
    /* answers when the first word has changed, or did not for long; and again: a = when it changed
     * last, b = number of changes seen */
    FACTS_WATCH,
    FACTS_HEALTH, /* answers result: of work in its context */
    FACTS_END,
};
struct facts_word {
    uint32_t op;
    int32_t result;
    uint64_t a, b, c, d;
};

void facts_say(int sock, struct facts_word word, int borrow_fd);
/* The descriptor of a word, or -1, goes to *ret_fd unless that is NULL. */
struct facts_word facts_hear(int sock, int *ret_fd);
struct facts_word facts_ask(struct dlx_test_gpu_peer *peer, enum facts_op op, uint64_t a);
void facts_end(struct dlx_test_gpu_peer *peer);
/* Serves the operations above, until FACTS_END, in every role that stays. `at` 0: the role has no
 * memory. */
void facts_serve(int sock, CUdeviceptr at, size_t size);

/* A role with a context, which serves and does nothing else: it sees how much memory is free. */
struct dlx_test_gpu_peer facts_observer(void);

#define FACTS_SIZE (64 * DLX_TEST_GPU_MIB)

/* Makes memory with the pattern of seed 1; a VMM exporter sends its descriptor, and serves. */
struct facts_memory {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    size_t size;
};
int facts_make(struct facts_memory *ret, size_t size);
void facts_exporter(int sock);
struct dlx_test_gpu_peer facts_start_exporter(int *ret_fd);
/* Imports and maps; the code of the first call that failed. */
CUresult facts_open(struct facts_memory *ret, int borrow_fd, size_t size, CUmemAccess_flags flags);
uint64_t facts_count_wrong(CUdeviceptr at, size_t size, uint32_t seed, CUresult *ret);
/* Allocates, writes, waits, frees. */
CUresult facts_health(void);

#endif

#endif
