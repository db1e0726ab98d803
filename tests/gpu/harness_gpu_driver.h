/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_GPU_DRIVER_H
#define DLX_TESTS_HARNESS_GPU_DRIVER_H

/*
 * An interface over two drivers, so that a story does not know which one runs: the stand-in counts
 * what exists and can be told to fail; of NVIDIA's driver the same is observed where it can be
 * (free memory, descriptors, contexts), and what cannot be is named in a line `NOTE: not checked:
 * ...`.
 */

#include "tests/gpu/harness_gpu.h"

#if DLX_TEST_HAS_GPU

/* The needs of a story that not every driver, or machine, meets. */
enum dlx_test_gpu_need {
    DLX_TEST_GPU_FAILURES = 1,   /* calls of the driver that fail on demand */
    DLX_TEST_GPU_COUNTS = 2,     /* counts are what the story is about */
    DLX_TEST_GPU_CHOICE = 4,     /* a machine of its choice: UUIDs, attributes */
    DLX_TEST_GPU_TWO = 8,        /* two GPUs */
    DLX_TEST_GPU_ADDRESSES = 16, /* addresses that are freed are used again */
    /* What the HIP backend lacks. */
    DLX_TEST_GPU_EVENTS = 32,  /* streams that are busy are waited for by others than the caller */
    DLX_TEST_GPU_GATES = 64,   /* streams that wait for the CPU */
    DLX_TEST_GPU_POOLS = 128,  /* memory of a pool is shared */
    DLX_TEST_GPU_CHUNKS = 256, /* memory is shared that lies in several chunks */
    DLX_TEST_GPU_CONTEXTS = 512, /* contexts that come and go */
    DLX_TEST_GPU_FLAGS = 1024,   /* attributes of devices, kinds of handles, calls */
    DLX_TEST_GPU_FORKS = 2048,   /* a driver that knows that its process was forked */
    DLX_TEST_GPU_MALLOC = 4096,  /* dlx_cuda_malloc() */
};

/* TEST() and LOOP_TEST(), or a line `SKIP: name: reason` if a need is not met. */
#define GPU_TEST(name, needs) GPU_LOOP_TEST(name, 0, 1, needs)
#define GPU_LOOP_TEST(name, from, to, needs)                                                       \
    DLX_TEST_DEFINE(name, dlx_test_gpu_add(&name##_test, from, to, needs))
void dlx_test_gpu_add(const TTest *test, int from, int to, unsigned needs);

/* The stand-in, with its counters and controls; not if it was given as DLX_TEST_GPU_DRIVER. */
bool dlx_test_gpu_is_standin(void);
void dlx_test_gpu_unchecked(const char *what);
/* Seconds that a story may take: on another driver few enough that one which hangs leaves time for
 * the others. */
double dlx_test_gpu_timeout(double standin_s);

/* How often this process made a call of that name: 0 where calls are not counted. */
uint64_t dlx_test_gpu_calls(const char *name);
void dlx_test_gpu_check_calls(const char *name, uint64_t n);
/* Contexts are not counted with HIP, whose runtime keeps that of each device that was used. */
bool dlx_test_gpu_is_counted(enum standin_counter counter);
void dlx_test_gpu_check_count(enum standin_counter counter, uint64_t n);
/* This process has no context of the device, which may have another ordinal in the machine: the
 * stand-in knows that it never had one. */
void dlx_test_gpu_check_no_context(int device, int device_of_machine);

/*
 * Descriptors: those of GPU memory for the stand-in, else all that are open. Another driver opens
 * some of its own when it first needs them: up to DLX_TEST_GPU_FDS_SLACK more pass the check.
 */
#define DLX_TEST_GPU_FDS_SLACK ((size_t)4)
size_t dlx_test_gpu_n_fds(void);
void dlx_test_gpu_check_n_fds(size_t n);

/*
 * Free memory of the device of the current context; 0 without one. A driver keeps memory of its own
 * and gives a dead process's back later: the check waits, and on NVIDIA's driver passes over what
 * is less than DLX_TEST_GPU_SLACK.
 */
#define DLX_TEST_GPU_SLACK ((size_t)4 << 20)
size_t dlx_test_gpu_free_memory(void);
void dlx_test_gpu_check_free_memory(size_t before);

/* The current context fails from now on, as after a kernel that crashed. */
void dlx_test_gpu_lose_context(void);

#endif

#endif
