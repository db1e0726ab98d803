/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/harness_gpu_kernel.h"
#include "tests/harness/daemon.h"

#if DLX_TEST_HAS_GPU
#include <sched.h>

/* PTX 7.0 and compute capability 7.0: every driver that libdlx uses compiles that. */
static const char ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    /* spin(at, ns): as long as the clock says, and never for more than 4 cycles a nanosecond */
    ".visible .entry spin(.param .u64 at_, .param .u64 ns_)\n{\n"
    " .reg .pred %q<4>;\n .reg .b32 %r<2>;\n .reg .b64 %d<12>;\n"
    " ld.param.u64 %d1, [at_];\n ld.param.u64 %d2, [ns_];\n cvta.to.global.u64 %d3, %d1;\n"
    " shl.b64 %d4, %d2, 2;\n add.u64 %d4, %d4, 1000000;\n"
    " mov.u64 %d5, %globaltimer;\n mov.u64 %d6, %clock64;\n mov.u32 %r1, 1;\n"
    " setp.ne.u64 %q1, %d1, 0;\n"
    "L:\n @%q1 st.volatile.global.u32 [%d3], %r1;\n add.u32 %r1, %r1, 1;\n"
    " mov.u64 %d7, %globaltimer;\n sub.u64 %d8, %d7, %d5;\n setp.ge.u64 %q2, %d8, %d2;\n"
    " @%q2 bra E;\n"
    " mov.u64 %d9, %clock64;\n sub.u64 %d10, %d9, %d6;\n setp.lt.u64 %q3, %d10, %d4;\n"
    " @%q3 bra L;\nE:\n ret;\n}\n"
    /* work(n, stamps): n steps that each wait for the one before, whatever the clock says */
    ".visible .entry work(.param .u64 n_, .param .u64 stamps_)\n{\n"
    " .reg .pred %q<3>;\n .reg .b32 %r<3>;\n .reg .b64 %d<6>;\n"
    " ld.param.u64 %d1, [n_];\n ld.param.u64 %d2, [stamps_];\n cvta.to.global.u64 %d3, %d2;\n"
    " mov.u32 %r1, %tid.x;\n setp.eq.u32 %q1, %r1, 0;\n"
    " mov.u64 %d4, %globaltimer;\n @%q1 red.global.min.u64 [%d3], %d4;\n"
    "L:\n setp.eq.u64 %q2, %d1, 0;\n @%q2 bra E;\n"
    " mad.lo.u32 %r1, %r1, 0x9E3779B1, 1;\n sub.u64 %d1, %d1, 1;\n bra L;\n"
    /* a value that the compiler cannot know, so that it keeps the steps */
    "E:\n setp.eq.u32 %q2, %r1, 0xDEADBEEF;\n @%q2 st.global.u64 [%d3+16], %d1;\n"
    " bar.sync 0;\n mov.u64 %d5, %globaltimer;\n @%q1 red.global.max.u64 [%d3+8], %d5;\n"
    " ret;\n}\n"
    /* store(at, n, seed): by all threads of the grid in turns */
    ".visible .entry store(.param .u64 at_, .param .u64 n_, .param .u32 seed_)\n{\n"
    " .reg .pred %q;\n .reg .b32 %r<8>;\n .reg .b64 %d<8>;\n"
    " ld.param.u64 %d1, [at_];\n ld.param.u64 %d2, [n_];\n ld.param.u32 %r1, [seed_];\n"
    " cvta.to.global.u64 %d1, %d1;\n"
    " mov.u32 %r2, %ctaid.x;\n mov.u32 %r3, %ntid.x;\n mov.u32 %r4, %tid.x;\n"
    " mov.u32 %r5, %nctaid.x;\n"
    " mul.wide.u32 %d3, %r2, %r3;\n cvt.u64.u32 %d4, %r4;\n add.u64 %d3, %d3, %d4;\n"
    " mul.wide.u32 %d5, %r5, %r3;\n"
    "L:\n setp.ge.u64 %q, %d3, %d2;\n @%q bra E;\n"
    " cvt.u32.u64 %r6, %d3;\n mul.lo.u32 %r7, %r6, 0x9E3779B1;\n xor.b32 %r7, %r7, %r1;\n"
    " shl.b64 %d6, %d3, 2;\n add.u64 %d7, %d1, %d6;\n st.global.u32 [%d7], %r7;\n"
    " add.u64 %d3, %d3, %d5;\n bra L;\nE:\n ret;\n}\n"
    /* compare(at, n, seed, result): the same, and counts the words that are others */
    ".visible .entry compare(.param .u64 at_, .param .u64 n_, .param .u32 seed_,\n"
    " .param .u64 result_)\n{\n"
    " .reg .pred %q<3>;\n .reg .b32 %r<9>;\n .reg .b64 %d<10>;\n"
    " ld.param.u64 %d1, [at_];\n ld.param.u64 %d2, [n_];\n ld.param.u32 %r1, [seed_];\n"
    " ld.param.u64 %d8, [result_];\n cvta.to.global.u64 %d1, %d1;\n"
    " cvta.to.global.u64 %d8, %d8;\n mov.u64 %d9, 1;\n"
    " mov.u32 %r2, %ctaid.x;\n mov.u32 %r3, %ntid.x;\n mov.u32 %r4, %tid.x;\n"
    " mov.u32 %r5, %nctaid.x;\n"
    " mul.wide.u32 %d3, %r2, %r3;\n cvt.u64.u32 %d4, %r4;\n add.u64 %d3, %d3, %d4;\n"
    " mul.wide.u32 %d5, %r5, %r3;\n"
    "L:\n setp.ge.u64 %q1, %d3, %d2;\n @%q1 bra E;\n"
    " cvt.u32.u64 %r6, %d3;\n mul.lo.u32 %r7, %r6, 0x9E3779B1;\n xor.b32 %r7, %r7, %r1;\n"
    " shl.b64 %d6, %d3, 2;\n add.u64 %d7, %d1, %d6;\n ld.volatile.global.u32 %r8, [%d7];\n"
    " setp.ne.u32 %q2, %r7, %r8;\n @%q2 red.global.add.u64 [%d8], %d9;\n"
    " add.u64 %d3, %d3, %d5;\n bra L;\nE:\n ret;\n}\n"
    /* look(at, n, columns, row stride, column stride, value, result): one thread */
    ".visible .entry look(.param .u64 at_, .param .u64 n_, .param .u64 columns_,\n"
    " .param .u64 row_, .param .u64 column_, .param .u32 value_, .param .u64 result_)\n{\n"
    " .reg .pred %q<3>;\n .reg .b32 %r<3>;\n .reg .b64 %d<16>;\n"
    " ld.param.u64 %d1, [at_];\n ld.param.u64 %d2, [n_];\n ld.param.u64 %d3, [columns_];\n"
    " ld.param.u64 %d4, [row_];\n ld.param.u64 %d5, [column_];\n ld.param.u32 %r1, [value_];\n"
    " ld.param.u64 %d6, [result_];\n cvta.to.global.u64 %d1, %d1;\n"
    " cvta.to.global.u64 %d6, %d6;\n mov.u64 %d7, 0;\n mov.u64 %d8, 0;\n"
    "L:\n setp.ge.u64 %q1, %d7, %d2;\n @%q1 bra E;\n"
    " div.u64 %d9, %d7, %d3;\n rem.u64 %d10, %d7, %d3;\n"
    " mul.lo.s64 %d11, %d9, %d4;\n mad.lo.s64 %d12, %d10, %d5, %d11;\n"
    " shl.b64 %d13, %d12, 2;\n add.u64 %d14, %d1, %d13;\n ld.volatile.global.u32 %r2, [%d14];\n"
    " setp.eq.u32 %q2, %r2, %r1;\n @%q2 add.u64 %d8, %d8, 1;\n"
    " add.u64 %d7, %d7, 1;\n bra L;\nE:\n st.global.u64 [%d6], %d8;\n ret;\n}\n";

static CUresult (*module_load)(CUmodule *, const void *);
static CUresult (*module_function)(CUfunction *, CUmodule, const char *);
static CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, CUstream, void **, void **);

/* Of the context that was used last. */
static struct {
    CUcontext context;
    CUfunction spin, work, store, compare, look;
} kernels;

static void resolve(const char *name, void *ret)
{
    void *p = dlx_test_gpu_symbol(name);
    memcpy(ret, &p, sizeof p);
}

bool dlx_test_gpu_has_ptx(void)
{
    resolve("cuModuleLoadData", &module_load);
    resolve("cuModuleGetFunction", &module_function);
    resolve("cuLaunchKernel", &launch);
    return module_load && module_function && launch;
}

void dlx_test_gpu_kernels_load(void)
{
    CUcontext context;
    CUmodule module;
    CU_OK(cu.cuCtxGetCurrent(&context));
    ck_assert_ptr_nonnull(context);
    if (context == kernels.context || !dlx_test_gpu_has_ptx())
        return;
    CU_OK(module_load(&module, ptx));
    CU_OK(module_function(&kernels.spin, module, "spin"));
    CU_OK(module_function(&kernels.work, module, "work"));
    CU_OK(module_function(&kernels.store, module, "store"));
    CU_OK(module_function(&kernels.compare, module, "compare"));
    CU_OK(module_function(&kernels.look, module, "look"));
    kernels.context = context;
}

struct task {
    CUdeviceptr at, result;
    uint64_t ns, n;
    uint32_t seed;
};

static void spin_on_standin(void *arg)
{
    struct task *task = arg;
    uint64_t end = dlx__now_ns() + task->ns;
    uint32_t *word = task->at ? standin.standin_store(task->at, sizeof *word) : NULL;
    for (uint32_t i = 1; dlx__now_ns() < end; i++) {
        if (word)
            __atomic_store_n(word, i, __ATOMIC_RELAXED);
        (void)sched_yield();
    }
    free(task);
}

static void work_on_standin(void *arg)
{
    struct task *task = arg;
    struct dlx_test_gpu_stamps *stamps = standin.standin_store(task->at, sizeof *stamps);
    uint64_t begin = dlx__now_ns();
    for (volatile uint64_t i = 0; i < task->n; i++)
        ;
    if (stamps) {
        stamps->begin_ns = DLX_MIN(stamps->begin_ns, begin);
        stamps->end_ns = DLX_MAX(stamps->end_ns, dlx__now_ns());
    }
    free(task);
}

static void store_on_standin(void *arg)
{
    struct task *task = arg;
    uint32_t *words = standin.standin_store(task->at, task->n * sizeof *words);
    for (uint64_t i = 0; words && i < task->n; i++)
        words[i] = dlx_test_gpu_pattern(i, task->seed);
    free(task);
}

static void compare_on_standin(void *arg)
{
    struct task *task = arg;
    uint64_t *result = standin.standin_store(task->result, sizeof *result);
    const uint32_t *words = standin.standin_load(task->at, task->n * sizeof *words);
    for (uint64_t i = 0; words && result && i < task->n; i++)
        *result += words[i] != dlx_test_gpu_pattern(i, task->seed);
    free(task);
}

static void enqueue(CUstream stream, standin_kernel *kernel, struct task task)
{
    struct task *copy = malloc(sizeof *copy);
    ck_assert_ptr_nonnull(copy);
    *copy = task;
    CU_OK(standin.standin_launch(stream, kernel, copy));
}

struct look {
    const struct dlx_test_gpu_view_of *view;
    uint64_t n_same;
    uint32_t value;
};

static void look_on_standin(void *arg)
{
    struct look *look = arg;
    const struct dlx_test_gpu_view_of *v = look->view;
    for (uint64_t i = 0; i < v->n; i++) {
        int64_t at = (int64_t)(i / v->columns) * v->row_stride +
                     (int64_t)(i % v->columns) * v->column_stride;
        const uint32_t *word =
            standin.standin_load(v->at + (uint64_t)at * sizeof *word, sizeof *word);
        look->n_same += word && *word == look->value;
    }
}

void dlx_test_gpu_spin(CUstream stream, CUdeviceptr at, uint64_t ns)
{
    ns *= dlx_test_instrumented() ? 4 : 1;
    void *args[] = {&at, &ns};
    dlx_test_gpu_kernels_load();
    if (dlx_test_gpu_has_ptx())
        CU_OK(launch(kernels.spin, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL));
    else
        enqueue(stream, spin_on_standin, (struct task){.at = at, .ns = ns});
}

void dlx_test_gpu_work(CUstream stream, uint32_t n_blocks, uint64_t n_steps, CUdeviceptr stamps)
{
    void *args[] = {&n_steps, &stamps};
    dlx_test_gpu_kernels_load();
    if (dlx_test_gpu_has_ptx())
        CU_OK(launch(kernels.work, n_blocks, 1, 1, DLX_TEST_GPU_WORK_THREADS, 1, 1, 0, stream, args,
                     NULL));
    else
        enqueue(stream, work_on_standin, (struct task){.at = stamps, .n = n_steps});
}

void dlx_test_gpu_store(CUstream stream, CUdeviceptr at, uint64_t n, uint32_t seed)
{
    void *args[] = {&at, &n, &seed};
    dlx_test_gpu_kernels_load();
    if (dlx_test_gpu_has_ptx())
        CU_OK(launch(kernels.store, 64, 1, 1, 256, 1, 1, 0, stream, args, NULL));
    else
        enqueue(stream, store_on_standin, (struct task){.at = at, .n = n, .seed = seed});
}

void dlx_test_gpu_compare(CUstream stream, CUdeviceptr at, uint64_t n, uint32_t seed,
                          CUdeviceptr result)
{
    void *args[] = {&at, &n, &seed, &result};
    dlx_test_gpu_kernels_load();
    if (dlx_test_gpu_has_ptx())
        CU_OK(launch(kernels.compare, 64, 1, 1, 256, 1, 1, 0, stream, args, NULL));
    else
        enqueue(stream, compare_on_standin,
                (struct task){.at = at, .result = result, .n = n, .seed = seed});
}

uint64_t dlx_test_gpu_look(const struct dlx_test_gpu_view_of *view, uint32_t value)
{
    struct dlx_test_gpu_view_of v = *view;
    struct look look = {.view = view, .value = value};
    CUdeviceptr result;
    dlx_test_gpu_kernels_load();
    if (!dlx_test_gpu_has_ptx()) {
        ck_assert_uint_le(v.n, DLX_TEST_GPU_LOOK_MAX);
        CU_OK(standin.standin_launch(NULL, look_on_standin, &look));
        CU_OK(cu.cuStreamSynchronize(NULL));
        return look.n_same;
    }
    void *args[] = {&v.at, &v.n, &v.columns, &v.row_stride, &v.column_stride, &value, &result};
    CU_OK(cu.cuMemAlloc(&result, sizeof look.n_same));
    CU_OK(launch(kernels.look, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL));
    CU_OK(cu.cuMemcpyDtoH(&look.n_same, result, sizeof look.n_same));
    CU_OK(cu.cuMemFree(result));
    return look.n_same;
}

#endif
