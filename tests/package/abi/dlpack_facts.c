/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints every fact of <dlpack/dlpack.h> that another binary can depend on, one a line. Compiled
 * once with our header and once with a real copy, as C and as C++;
 * tests/package/check_dlpack_abi.sh compares what they print.
 */
#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdio.h>

#ifdef __cplusplus
#define ALIGN(type) alignof(type)
#else
#define ALIGN(type) _Alignof(type)
#endif
#define STR_(x) #x
#define STR(x)  STR_(x)

#define SIZE(type) printf("type %s size %zu align %zu\n", #type, sizeof(type), (size_t)ALIGN(type))
#define FIELD(type, field)                                                                         \
    printf("field %s.%s offset %zu size %zu\n", #type, #field, offsetof(type, field),              \
           sizeof(((type *)0)->field))
#define ENUM(name) printf("enum %s %lld\n", #name, (long long)(name))
#define MACRO(name)                                                                                \
    printf("macro %s %llu size %zu\n", #name, (unsigned long long)(name), sizeof(name))
#define TEXT(name) printf("text %s '%s'\n", #name, STR(name))

/* The prototypes: functions with the argument types that the ABI has. Assigned to the pointers
 * below, where another type is an error of the compiler. */
static int allocate(DLTensor *prototype, DLManagedTensorVersioned **out, void *error_ctx,
                    void (*set_error)(void *error_ctx, const char *kind, const char *message))
{
    (void)prototype;
    (void)out;
    (void)error_ctx;
    (void)set_error;
    return 0;
}

static int managed_from_object(void *object, DLManagedTensorVersioned **out)
{
    (void)object;
    (void)out;
    return 0;
}

static int managed_to_object(DLManagedTensorVersioned *tensor, void **out)
{
    (void)tensor;
    (void)out;
    return 0;
}

static int tensor_from_object(void *object, DLTensor *out)
{
    (void)object;
    (void)out;
    return 0;
}

static int stream(DLDeviceType type, int32_t id, void **out)
{
    (void)type;
    (void)id;
    (void)out;
    return 0;
}

static void delete_legacy(struct DLManagedTensor *self)
{
    (void)self;
}

static void delete_versioned(struct DLManagedTensorVersioned *self)
{
    (void)self;
}

static void print_enums(void)
{
    ENUM(kDLCPU);
    ENUM(kDLCUDA);
    ENUM(kDLCUDAHost);
    ENUM(kDLOpenCL);
    ENUM(kDLVulkan);
    ENUM(kDLMetal);
    ENUM(kDLVPI);
    ENUM(kDLROCM);
    ENUM(kDLROCMHost);
    ENUM(kDLExtDev);
    ENUM(kDLCUDAManaged);
    ENUM(kDLOneAPI);
    ENUM(kDLWebGPU);
    ENUM(kDLHexagon);
    ENUM(kDLMAIA);
    ENUM(kDLTrn);
    ENUM(kDLInt);
    ENUM(kDLUInt);
    ENUM(kDLFloat);
    ENUM(kDLOpaqueHandle);
    ENUM(kDLBfloat);
    ENUM(kDLComplex);
    ENUM(kDLBool);
    ENUM(kDLFloat8_e3m4);
    ENUM(kDLFloat8_e4m3);
    ENUM(kDLFloat8_e4m3b11fnuz);
    ENUM(kDLFloat8_e4m3fn);
    ENUM(kDLFloat8_e4m3fnuz);
    ENUM(kDLFloat8_e5m2);
    ENUM(kDLFloat8_e5m2fnuz);
    ENUM(kDLFloat8_e8m0fnu);
    ENUM(kDLFloat6_e2m3fn);
    ENUM(kDLFloat6_e3m2fn);
    ENUM(kDLFloat4_e2m1fn);
}

static void print_macros(void)
{
    MACRO(DLPACK_MAJOR_VERSION);
    MACRO(DLPACK_MINOR_VERSION);
    MACRO(DLPACK_FLAG_BITMASK_READ_ONLY);
    MACRO(DLPACK_FLAG_BITMASK_IS_COPIED);
    MACRO(DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
    TEXT(DLPACK_EXTERN_C);
    TEXT(DLPACK_DLL);
#ifdef DLPACK_DLPACK_H_
    printf("guard DLPACK_DLPACK_H_\n");
#endif
}

static void print_structs(void)
{
    SIZE(DLPackVersion);
    FIELD(DLPackVersion, major);
    FIELD(DLPackVersion, minor);
    SIZE(DLDeviceType);
    SIZE(DLDataTypeCode);
    SIZE(DLDevice);
    FIELD(DLDevice, device_type);
    FIELD(DLDevice, device_id);
    SIZE(DLDataType);
    FIELD(DLDataType, code);
    FIELD(DLDataType, bits);
    FIELD(DLDataType, lanes);
    SIZE(DLTensor);
    FIELD(DLTensor, data);
    FIELD(DLTensor, device);
    FIELD(DLTensor, ndim);
    FIELD(DLTensor, dtype);
    FIELD(DLTensor, shape);
    FIELD(DLTensor, strides);
    FIELD(DLTensor, byte_offset);
    SIZE(DLManagedTensor);
    FIELD(DLManagedTensor, dl_tensor);
    FIELD(DLManagedTensor, manager_ctx);
    FIELD(DLManagedTensor, deleter);
    SIZE(DLManagedTensorVersioned);
    FIELD(DLManagedTensorVersioned, version);
    FIELD(DLManagedTensorVersioned, manager_ctx);
    FIELD(DLManagedTensorVersioned, deleter);
    FIELD(DLManagedTensorVersioned, flags);
    FIELD(DLManagedTensorVersioned, dl_tensor);
    SIZE(DLPackExchangeAPIHeader);
    FIELD(DLPackExchangeAPIHeader, version);
    FIELD(DLPackExchangeAPIHeader, prev_api);
    SIZE(DLPackExchangeAPI);
    FIELD(DLPackExchangeAPI, header);
    FIELD(DLPackExchangeAPI, managed_tensor_allocator);
    FIELD(DLPackExchangeAPI, managed_tensor_from_py_object_no_sync);
    FIELD(DLPackExchangeAPI, managed_tensor_to_py_object_no_sync);
    FIELD(DLPackExchangeAPI, dltensor_from_py_object_no_sync);
    FIELD(DLPackExchangeAPI, current_work_stream);
}

/* Signedness of each integer field: a value with all bits set stays negative, or does not. */
#define SIGN(type, field)                                                                          \
    do {                                                                                           \
        type x;                                                                                    \
        x.field = 0;                                                                               \
        x.field--;                                                                                 \
        printf("sign %s.%s %d\n", #type, #field, x.field < 1);                                     \
    } while (0)

static void print_signs(void)
{
    SIGN(DLPackVersion, major);
    SIGN(DLPackVersion, minor);
    SIGN(DLDevice, device_id);
    SIGN(DLDataType, code);
    SIGN(DLDataType, bits);
    SIGN(DLDataType, lanes);
    SIGN(DLTensor, ndim);
    SIGN(DLTensor, byte_offset);
    SIGN(DLManagedTensorVersioned, flags);
    int64_t extent = 0;
    DLTensor tensor;
    tensor.shape = &extent; /* another pointee type is an error here */
    tensor.strides = &extent;
    printf("pointee shape %zu strides %zu\n", sizeof(*tensor.shape), sizeof(*tensor.strides));
}

int main(void)
{
    DLPackExchangeAPI api;
    DLManagedTensor legacy;
    DLManagedTensorVersioned versioned;
    api.managed_tensor_allocator = allocate;
    api.managed_tensor_from_py_object_no_sync = managed_from_object;
    api.managed_tensor_to_py_object_no_sync = managed_to_object;
    api.dltensor_from_py_object_no_sync = tensor_from_object;
    api.current_work_stream = stream;
    legacy.deleter = delete_legacy;
    versioned.deleter = delete_versioned;

    DLPackManagedTensorAllocator f1 = api.managed_tensor_allocator;
    DLPackManagedTensorFromPyObjectNoSync f2 = api.managed_tensor_from_py_object_no_sync;
    DLPackManagedTensorToPyObjectNoSync f3 = api.managed_tensor_to_py_object_no_sync;
    DLPackDLTensorFromPyObjectNoSync f4 = api.dltensor_from_py_object_no_sync;
    DLPackCurrentWorkStream f5 = api.current_work_stream;
    printf("functions %d\n", f1 == allocate && f2 == managed_from_object &&
                                 f3 == managed_to_object && f4 == tensor_from_object &&
                                 f5 == stream && legacy.deleter == delete_legacy &&
                                 versioned.deleter == delete_versioned);
    print_enums();
    print_macros();
    print_structs();
    print_signs();
    return 0;
}
