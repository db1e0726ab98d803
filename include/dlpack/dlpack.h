/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The DLPack 1.3 ABI: the structs by which array libraries of one process hand tensors to each other.
 *
 * Written for this project from the published facts of the ABI. It uses the include guard and the names
 * of dmlc/dlpack's own header on purpose: whichever copy of DLPack 1.x a program includes first is the
 * one it uses, and the two are the same to the compiler. tests/check_dlpack_abi.sh compares every size,
 * offset, enumerator and macro with a real copy.
 *
 * These structs are full of pointers and never leave the process. Between processes this project carries
 * the facts (shape, strides, type, device, flags) and builds a new struct on the other side.
 */
#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_

#ifdef __cplusplus
#define DLPACK_EXTERN_C extern "C"
#else
#define DLPACK_EXTERN_C
#endif

/* Another major number: another ABI, of which only `version`, `manager_ctx` and `deleter` may be touched.
 * Another minor number: new enumerators and flags, nothing moved. */
#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 3

#ifdef _WIN32
#ifdef DLPACK_EXPORTS
#define DLPACK_DLL __declspec(dllexport)
#else
#define DLPACK_DLL __declspec(dllimport)
#endif
#else
#define DLPACK_DLL
#endif

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the producer of a DLManagedTensorVersioned was built for. */
typedef struct {
    uint32_t major;
    uint32_t minor;
} DLPackVersion;

/* Where memory lives. C++ names the underlying type, so that a value unknown here is still a value;
 * in C the enumerators fit an int of 32 bits. Memory shared between processes is kDLCPU. */
#ifdef __cplusplus
typedef enum : int32_t {
#else
typedef enum {
#endif
    kDLCPU = 1,
    kDLCUDA = 2,
    kDLCUDAHost = 3, /* pinned for CUDA by the host */
    kDLOpenCL = 4,
    kDLVulkan = 7,
    kDLMetal = 8,
    kDLVPI = 9,
    kDLROCM = 10,
    kDLROCMHost = 11,    /* pinned for ROCm by the host */
    kDLExtDev = 12,      /* reserved for devices under test */
    kDLCUDAManaged = 13, /* CUDA unified memory */
    kDLOneAPI = 14,      /* SYCL unified shared memory; asking it for more needs the oneAPI runtime */
    kDLWebGPU = 15,
    kDLHexagon = 16,
    kDLMAIA = 17,
    kDLTrn = 18,
} DLDeviceType;

/* `device_id` counts devices of one type as this process sees them: another process may number the same
 * device differently. 0 where the type has no more than one. */
typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;

/* What one lane of an element is. Newer libraries emit codes that are not listed here before a version
 * says so; carry them on unchanged. */
typedef enum {
    kDLInt = 0U,
    kDLUInt = 1U,
    kDLFloat = 2U,        /* IEEE 754 */
    kDLOpaqueHandle = 3U, /* meaning agreed elsewhere */
    kDLBfloat = 4U,
    kDLComplex = 5U, /* real then imaginary part; `bits` is both together */
    kDLBool = 6U,    /* 8 bits */
    kDLFloat8_e3m4 = 7U,
    kDLFloat8_e4m3 = 8U,
    kDLFloat8_e4m3b11fnuz = 9U,
    kDLFloat8_e4m3fn = 10U,
    kDLFloat8_e4m3fnuz = 11U,
    kDLFloat8_e5m2 = 12U,
    kDLFloat8_e5m2fnuz = 13U,
    kDLFloat8_e8m0fnu = 14U,
    kDLFloat6_e2m3fn = 15U, /* packed, unless IS_SUBBYTE_TYPE_PADDED */
    kDLFloat6_e3m2fn = 16U,
    kDLFloat4_e2m1fn = 17U,
} DLDataTypeCode;

/* An element: `lanes` values of `bits` bits each, of the kind `code` (a DLDataTypeCode). float32 is
 * {kDLFloat, 32, 1}. Elements under a byte are packed, the first in the low bits:
 * n elements take (n * bits * lanes + 7) / 8 bytes. */
typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} DLDataType;

/* A view of memory that somebody else owns. */
typedef struct {
    /* Start of the allocation (may be an opaque handle on some devices); NULL when there are no elements.
     * The first element is at data + byte_offset. Aligned to 256 bytes by those who follow the
     * specification, which not all do. */
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape; /* ndim extents; may be NULL for ndim 0 */
    /* ndim steps, counted in elements and not in bytes. Since 1.2 NULL only for ndim 0; before, NULL
     * meant compact row-major, and importers still have to take that. */
    int64_t *strides;
    uint64_t byte_offset; /* several importers ignore it: exporters do well to leave 0 */
} DLTensor;

/* A tensor with its owner, as before DLPack 1.0: no version, no flags. */
typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx; /* the producer's */
    /* Called once, by whoever consumed the tensor, from any thread; frees the struct too. May be NULL. */
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

/* Flags of DLManagedTensorVersioned. */
#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)              /* the consumer must not write */
#define DLPACK_FLAG_BITMASK_IS_COPIED (1UL << 1UL)              /* the producer made a copy for this */
#define DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED (1UL << 2UL) /* one byte an element (since 1.1) */

/* A tensor with its owner. The first three members stay in place for every major version: a consumer that
 * finds another major version calls the deleter and reads nothing else. */
typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx; /* the producer's */
    /* Called once, by whoever consumed the tensor, from any thread; frees the struct too. May be NULL. */
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

/*
 * The exchange API of DLPack 1.3: a table of functions that a Python type offers, in a capsule named
 * "dlpack_exchange_api" under the attribute __dlpack_c_exchange_api__, so that extension modules exchange
 * tensors without running Python code. PyObject pointers are void pointers here. Each function returns
 * 0, or -1 with a Python exception set (the allocator reports through SetError and sets none). None of them
 * synchronises a stream: the caller asks for the producer's current stream and works on it.
 */

/* Allocates a tensor like `prototype` (shape, dtype and device are read). On failure calls
 * SetError(error_ctx, kind, message), kind being the name of an exception type. Needs no Python lock. */
typedef int (*DLPackManagedTensorAllocator)(DLTensor *prototype, DLManagedTensorVersioned **out,
                                            void *error_ctx,
                                            void (*SetError)(void *error_ctx, const char *kind,
                                                             const char *message));

/* Exports an object of the type; `*out` is the caller's and has to be deleted. */
typedef int (*DLPackManagedTensorFromPyObjectNoSync)(void *py_object,
                                                     DLManagedTensorVersioned **out);

/* Describes an object of the type without owning: `*out` is good for as long as the object is held and
 * not changed. */
typedef int (*DLPackDLTensorFromPyObjectNoSync)(void *py_object, DLTensor *out);

/* The stream on which the library works on that device now; NULL for the default one and on the CPU. */
typedef int (*DLPackCurrentWorkStream)(DLDeviceType device_type, int32_t device_id,
                                       void **out_current_stream);

/* Makes an object of the type; takes `tensor` over, on success. `*out_py_object` is a new reference. */
typedef int (*DLPackManagedTensorToPyObjectNoSync)(DLManagedTensorVersioned *tensor,
                                                   void **out_py_object);

/* The part of the table that stays the same for every version. A library that is built for a newer one may
 * offer its table for an older one in prev_api; NULL ends the chain. */
typedef struct DLPackExchangeAPIHeader {
    DLPackVersion version;
    struct DLPackExchangeAPIHeader *prev_api;
} DLPackExchangeAPIHeader;

/* The table; lives as long as the process. */
typedef struct DLPackExchangeAPI {
    DLPackExchangeAPIHeader header;
    DLPackManagedTensorAllocator managed_tensor_allocator;
    DLPackManagedTensorFromPyObjectNoSync managed_tensor_from_py_object_no_sync;
    DLPackManagedTensorToPyObjectNoSync managed_tensor_to_py_object_no_sync;
    DLPackDLTensorFromPyObjectNoSync dltensor_from_py_object_no_sync; /* may be NULL */
    DLPackCurrentWorkStream current_work_stream;
} DLPackExchangeAPI;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* DLPACK_DLPACK_H_ */
