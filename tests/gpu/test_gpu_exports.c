/* SPDX-License-Identifier: Apache-2.0 */

/* When memory that a publisher shares goes back, for a kind of memory that no driver of this
 * machine has: an export of it does not keep it in use. No GPU is needed. */

#include "gpu/backend.h"
#include "gpu/exports.h"
#include "tests/harness/run.h"
#include <dlpack/dlpack.h>

static const struct dlx_gpu_ops ops;
static uint8_t memory[256];
static int n_closed, n_forgotten;

static int device_uuid(int32_t device, struct dlx_gpu_uuid *ret)
{
    *ret = (struct dlx_gpu_uuid){.bytes = {(uint8_t)device, 1}};
    return 0;
}

static void find(int32_t device, struct dlx_gpu_memory *ret)
{
    *ret = (struct dlx_gpu_memory){
        .ops = &ops, .device = device, .base = memory, .size = sizeof memory};
}

static int classify(int32_t device, const void *ptr, uint64_t size, struct dlx_gpu_memory *ret)
{
    (void)ptr, (void)size;
    find(device, ret);
    return 0;
}

static int export_it(const struct dlx_gpu_memory *of, struct dlx_gpu_handle *ret)
{
    (void)of, (void)ret;
    return 0;
}

static void close_it(struct dlx_gpu_memory *of)
{
    (void)of;
    n_closed++;
}

static void forget(struct dlx_gpu_memory *of)
{
    (void)of;
    n_forgotten++;
}

static const struct dlx_gpu_api api = {.name = "test",
                                       .device_type = kDLCUDA,
                                       .own_kind = DLX_GPU_CUDA_IPC,
                                       .uuid = device_uuid,
                                       .classify = classify};
static const struct dlx_gpu_ops ops = {.kind = DLX_GPU_CUDA_IPC,
                                       .device_type = kDLCUDA,
                                       .export = export_it,
                                       .close = close_it,
                                       .forget = forget};

int __wrap_dlx__gpu_api(int32_t device_type, const struct dlx_gpu_api **ret);
int __wrap_dlx__gpu_api(int32_t device_type, const struct dlx_gpu_api **ret)
{
    (void)device_type;
    *ret = &api;
    return 0;
}

static struct dlx_gpu_exports *exports;
static struct dlx_gpu_export *export;

static void setup(void)
{
    n_closed = n_forgotten = 0;
    ok(dlx__gpu_exports_new(&exports, (struct dlx_gpu_publisher){1, 1}));
}

static void teardown(void)
{
    dlx__gpu_exports_end(exports);
}

/* As the keeper made it. */
static uint64_t make_arena(void)
{
    struct dlx_gpu_handle handle = {.kind = DLX_GPU_CUDA_IPC, .size = sizeof memory};
    struct dlx_gpu_memory made;
    ok(dlx__gpu_exports_plan(exports, &export));
    uint64_t id = handle.id = dlx__gpu_export_handle(export)->id;
    find(0, &made);
    dlx__gpu_export_fill(export, &made, &handle);
    return id;
}

TEST(an_arena_goes_with_its_last_use)
{
    uint64_t id = 0;
    ck_assert_uint_eq(make_arena(), 1);
    (void)dlx__gpu_export_ref(export);
    dlx__gpu_export_unref(export);
    ck_assert_int_eq(n_closed, 0);
    dlx__gpu_export_unref(export);
    ck_assert_int_eq(n_closed, 1);
    ck_assert(dlx__gpu_exports_next_gone(exports, &id));
    ck_assert_uint_eq(id, 1);
    ck_assert(!dlx__gpu_exports_next_gone(exports, &id));
}

TEST(an_arena_that_is_gone_is_remembered_until_the_keeper_was_told)
{
    uint64_t id = 0, arena = make_arena();
    ck_assert_uint_eq(dlx__gpu_exports_kept(exports), 0);
    dlx__gpu_export_unref(export);
    ck_assert(dlx__gpu_exports_next_gone(exports, &id));
    ck_assert_uint_eq(dlx__gpu_exports_kept(exports), arena);
    ck_assert_uint_eq(dlx__gpu_exports_kept(exports), arena);
    dlx__gpu_exports_told(exports, arena);
    ck_assert_uint_eq(dlx__gpu_exports_kept(exports), 0);
}

/* The keeper may have made it, whatever failed afterwards. */
TEST(an_arena_that_was_planned_is_remembered_until_the_keeper_was_told)
{
    uint64_t id, offset;
    ok(dlx__gpu_exports_plan(exports, &export));
    uint64_t planned = dlx__gpu_export_handle(export)->id;
    ck_assert(!dlx__gpu_exports_next_gone(exports, &id));
    ck_assert_uint_eq(dlx__gpu_exports_kept(exports), planned);
    dlx__gpu_exports_told(exports, planned);
    ck_assert_uint_eq(dlx__gpu_exports_kept(exports), 0);
    ok(dlx__gpu_exports_share(exports, kDLCUDA, 0, memory, 8, &export, &offset));
    ck_assert_uint_gt(dlx__gpu_export_handle(export)->id, planned);
    dlx__gpu_export_unref(export);
}

static int count_looks(const struct dlx_gpu_handle *handle, void *userdata)
{
    ++*(int *)userdata;
    return (int)handle->id;
}

TEST(an_export_can_be_looked_at_while_it_is_there)
{
    int n = 0;
    uint64_t id = make_arena();
    ck_assert_int_eq(dlx__gpu_exports_look(exports, id, count_looks, &n), (int)id);
    fails(dlx__gpu_exports_look(exports, id + 1, count_looks, &n), DLX_E_NOT_FOUND, "any more");
    dlx__gpu_export_unref(export);
    ck_assert_int_eq(dlx__gpu_exports_look(exports, id, count_looks, &n), DLX_E_NOT_FOUND);
    ck_assert_int_eq(n, 1);
}

TEST(memory_of_others_is_known_until_its_publisher_ends)
{
    uint64_t id, offset;
    ok(dlx__gpu_exports_share(exports, kDLCUDA, 0, memory + 8, 8, &export, &offset));
    ck_assert_uint_eq(offset, 8);
    dlx__gpu_export_unref(export);
    ck_assert_int_eq(n_forgotten, 0);
    ck_assert(!dlx__gpu_exports_next_gone(exports, &id));
    dlx__gpu_exports_end(dlx_steal(exports));
    ck_assert_int_eq(n_forgotten, 1);
    ck_assert_int_eq(n_closed, 0);
}

TEST(memory_of_others_that_is_used_when_its_publisher_ends_goes_with_its_last_use)
{
    uint64_t offset;
    ok(dlx__gpu_exports_share(exports, kDLCUDA, 0, memory, 8, &export, &offset));
    dlx__gpu_exports_end(dlx_steal(exports));
    ck_assert_int_eq(n_forgotten, 0);
    dlx__gpu_export_unref(export);
    ck_assert_int_eq(n_forgotten, 1);
}

int main(void)
{
    TCase *tc = tcase_create("gpu_exports");
    tcase_add_checked_fixture(tc, setup, teardown);
    return dlx_test_run_case(tc);
}
