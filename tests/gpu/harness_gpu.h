/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_GPU_H
#define DLX_TESTS_HARNESS_GPU_H

/*
 * GPUs for tests: the stand-in driver of tests/gpu/standin, or the one that DLX_TEST_GPU_DRIVER
 * names ("libcuda.so.1": NVIDIA's; tools/check-gpu sets it), loaded in such a way that a later
 * dlopen("libcuda.so.1") of the code under test finds it. Without cuda.h there is neither, and only
 * DLX_TEST_HAS_GPU is defined, as 0.
 */

/* The Makefile defines it as 1 where it found cuda.h. */
#ifndef DLX_TEST_HAS_GPU
#define DLX_TEST_HAS_GPU 0
#endif

#include "tests/harness/run.h"

#if !DLX_TEST_HAS_GPU

#define DLX_TEST_GPU_SKIP_MAIN(why)                                                                \
    int main(void)                                                                                 \
    {                                                                                              \
        (void)printf("SKIP: no cuda.h: " why "\n");                                                \
        return 77;                                                                                 \
    }
/* Of a program whose tests are all of this case: after the last #endif, since it skips itself. */
#define GPU_MAIN(tcase) DLX_TEST_GPU_SKIP_MAIN("the stand-in for NVIDIA's driver was not built")

#else

#define GPU_MAIN(tcase)                                                                            \
    int main(void)                                                                                 \
    {                                                                                              \
        return dlx_test_run_case(tcase);                                                           \
    }

#include "tests/gpu/standin/calls.h"
#include "tests/gpu/standin/standin.h"
#include <dlpack/dlpack.h>

/* The driver's functions and the stand-in's, resolved by dlx_test_gpu_load(). Stories that run on
 * both drivers leave the latter to harness_gpu_driver.h. */
struct dlx_test_driver {
#define X(name, since, flags) __typeof__(name) *name;
    CALLS(X)
#undef X
};
struct dlx_test_standin {
#define X(type, name, parameters) type(*name) parameters;
    STANDIN_CONTROLS(X)
#undef X
};
extern struct dlx_test_driver cu;
extern struct dlx_test_standin standin;

/* Does this run ask for the HIP backend (DLX_TEST_GPU_BACKEND=hip), on the stand-in for its
 * runtime? Then what is published and received is of that type of device, and the test's own calls,
 * which stand for those of a framework, are of the same stand-in. */
bool dlx_test_gpu_is_hip(void);
int dlx_test_gpu_type(void); /* kDLCUDA, kDLROCM */
DLDevice dlx_test_gpu_device(int i);
/* What a call waits for a stream, and counts in gpu_waits: 1 in the HIP backend, which has no
 * events, else 0. */
uint64_t dlx_test_gpu_stream_waits(void);

/* Where the stand-in is; for processes that are executed, and find it by LD_LIBRARY_PATH. */
const char *dlx_test_gpu_folder(void);

/*
 * Makes a machine for this process and its children, in a file of TMPDIR, with so many devices.
 * Before dlx_test_gpu_load(), and before forking. Only one at a time.
 */
void dlx_test_gpu_machine(int n_devices);
/* Removes the file. */
void dlx_test_gpu_machine_end(void);

/*
 * Another process of the machine: forked before this one calls cuInit, ends with status 0 when its
 * role returns. The two talk over a socket, with messages that may carry a descriptor.
 */
struct dlx_test_gpu_peer {
    pid_t pid;
    int sock;
};
struct dlx_test_gpu_peer dlx_test_gpu_start(void (*role)(int sock));
/* Waits for its end, which has to be that of a role that passed. */
void dlx_test_gpu_join(struct dlx_test_gpu_peer *peer);
/* Ends it as a crash does. */
void dlx_test_gpu_kill(struct dlx_test_gpu_peer *peer);
/* fd -1: none */
void dlx_test_gpu_send(int sock, const void *bytes, size_t size, int borrow_fd);
/* Waits for a message of that size; returns its descriptor, or -1. */
int dlx_test_gpu_receive(int sock, void *ret, size_t size);

/* A word without a content, to the other one and from it. */
void dlx_test_gpu_tell(int sock);
void dlx_test_gpu_await(int sock);
/* Both: it is the other one's turn, until it says so. */
void dlx_test_gpu_turn(int sock);

/* Initialises the driver, and makes a context of the device current. */
CUcontext dlx_test_gpu_context(int device);
/* A context of the device that is not its primary one, as PyCUDA's; it is current. The caller
 * destroys it. */
CUcontext dlx_test_gpu_own_context(int device);
/* Calls of the driver that have to pass, or to fail with that code. */
#define CU_OK(call)          ck_assert_int_eq(call, CUDA_SUCCESS)
#define CU_FAILS(call, code) ck_assert_int_eq(call, code)

/* The smallest amount of VMM memory; such memory of a device, which can be exported. */
#define DLX_TEST_GPU_CHUNK   ((size_t)2 << 20)
CUmemAllocationProp dlx_test_gpu_prop(int device);
CUmemGenericAllocationHandle dlx_test_gpu_create(size_t size); /* of device 0 */
CUmemAccessDesc dlx_test_gpu_access(int device, CUmemAccess_flags flags);
/* Reserves addresses, and maps memory there for device 0. */
CUdeviceptr dlx_test_gpu_map(CUmemGenericAllocationHandle handle, size_t size,
                             CUmemAccess_flags flags);
void dlx_test_gpu_unmap(CUdeviceptr address, size_t size);

/* For tests of the stand-in itself: a test case whose tests have a machine with two devices each,
 * and the driver loaded. At its end, a test's context of device 0 is released, and nothing is left.
 * dlx_test_gpu_end_context() does that earlier, or in another process. */
TCase *dlx_test_gpu_standin_case(const char *name);
void dlx_test_gpu_end_context(int device);

/* Loads the driver and resolves its functions. Does not call cuInit: each process does that. */
void dlx_test_gpu_load(void);
/* A function that the stand-in may lack; NULL: the driver has none. */
void *dlx_test_gpu_symbol(const char *name);

#endif

#endif
