/* SPDX-License-Identifier: Apache-2.0 */
/* Processes without a GPU: what is missing is said, whatever of it is missing, and said again. This
 * program does not find the stand-in driver. */
#include "gpu/backend.h"
#include "gpu/exports.h"
#include "tests/harness/run.h"
#include <dlfcn.h>
#include <dlpack/dlpack.h>

/* Without a driver, without a device, or in a build without the backend. */
static void check_absent(int32_t device_type, const char *library, const char *words[3])
{
    struct dlx_gpu_uuid uuid;
    void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; i < 2; i++) {
        int r = dlx__gpu_uuid(device_type, 0, &uuid);
        const char *text = dlx__error_message();
        if (r == 0)
            return; /* this machine has such a GPU */
        ck_assert_msg(r == DLX_E_DEVICE, "%d: %s", r, text);
        ck_assert_msg(strstr(text, words[0]) || strstr(text, lib ? words[1] : words[2]), "%s",
                      text);
    }
    if (lib)
        dlclose(lib);
}

TEST(a_missing_cuda_driver_is_named)
{
    const char *words[] = {"built without cuda.h", "the CUDA driver does not start",
                           "the CUDA driver is not installed: libcuda.so.1"};
    check_absent(kDLCUDA, "libcuda.so.1", words);
}

TEST(a_missing_hip_runtime_is_named)
{
    const char *words[] = {"built without hip/hip_runtime_api.h", "the HIP runtime does not start",
                           "AMD's HIP runtime is not installed: libamdhip64.so"};
    check_absent(kDLROCM, "libamdhip64.so.5", words);
}

/* Every kind has a name, and either operations of its own or a reason why not. */
TEST(each_kind_is_in_the_table_or_refused_by_name)
{
    for (uint32_t kind = 1; kind < DLX_GPU_KINDS_END; kind++) {
        const struct dlx_gpu_ops *ops;
        const char *name = dlx__gpu_kind_text(kind);
        ck_assert_ptr_nonnull(name);
        if (dlx__gpu_ops((enum dlx_gpu_kind)kind, &ops) == 0) {
            ck_assert_uint_eq(ops->kind, kind);
            ck_assert(ops->export && ops->open && ops->close && ops->forget);
            const struct dlx_gpu_api *api = NULL;
            ok(dlx__gpu_api(ops->device_type, &api));
            ck_assert(!ops->create == (api->own_kind != ops->kind));
            ck_assert(!ops->clear == !ops->create);
        } else {
            contains(dlx__error_message(), name);
            contains(dlx__error_message(), "built without");
        }
    }
    ck_assert_ptr_null(dlx__gpu_kind_text(0));
    ck_assert_ptr_null(dlx__gpu_kind_text(DLX_GPU_KINDS_END));
}

int main(void)
{
    return dlx_test_run_case(tcase_create("absent"));
}
