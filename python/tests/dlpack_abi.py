# SPDX-License-Identifier: Apache-2.0
"""DLPack as C has it, by ctypes: managed tensors, capsules, the exchange API of dlx. A capsule is
named by its address, id(capsule).
"""

import ctypes as C

import dlx

DELETER = C.CFUNCTYPE(None, C.c_void_p)
api = C.pythonapi
new_capsule = C.PYFUNCTYPE(C.py_object, C.c_void_p, C.c_char_p, C.c_void_p)(("PyCapsule_New", api))
is_valid = C.PYFUNCTYPE(C.c_int, C.c_void_p, C.c_char_p)(("PyCapsule_IsValid", api))
pointer_of = C.PYFUNCTYPE(C.c_void_p, C.c_void_p, C.c_char_p)(("PyCapsule_GetPointer", api))


class Tensor(C.Structure):
    _fields_ = [
        ("data", C.c_void_p),
        ("device", C.c_int32 * 2),
        ("ndim", C.c_int32),
        ("code", C.c_uint8),
        ("bits", C.c_uint8),
        ("lanes", C.c_uint16),
        ("shape", C.POINTER(C.c_int64)),
        ("strides", C.POINTER(C.c_int64)),
        ("byte_offset", C.c_uint64),
    ]


class Versioned(C.Structure):
    NEW, USED = b"dltensor_versioned", b"used_dltensor_versioned"
    _fields_ = [
        ("version", C.c_uint32 * 2),
        ("manager_ctx", C.c_void_p),
        ("deleter", DELETER),
        ("flags", C.c_uint64),
        ("t", Tensor),
    ]


class Legacy(C.Structure):
    NEW, USED = b"dltensor", b"used_dltensor"
    _fields_ = [("t", Tensor), ("manager_ctx", C.c_void_p), ("deleter", DELETER)]


VersionedPointer = C.POINTER(Versioned)


class Api(C.Structure):
    TO = C.PYFUNCTYPE(C.c_int, VersionedPointer, C.POINTER(C.py_object))
    FROM = C.PYFUNCTYPE(C.c_int, C.py_object, C.POINTER(VersionedPointer))
    LOOK = C.PYFUNCTYPE(C.c_int, C.py_object, C.POINTER(Tensor))
    SET_ERROR = C.CFUNCTYPE(None, C.c_void_p, C.c_char_p, C.c_char_p)
    ALLOC = C.CFUNCTYPE(
        C.c_int, C.POINTER(Tensor), C.POINTER(VersionedPointer), C.c_void_p, SET_ERROR
    )
    STREAM = C.CFUNCTYPE(C.c_int, C.c_int, C.c_int32, C.POINTER(C.c_void_p))
    NAME = b"dlpack_exchange_api"
    _fields_ = [
        ("version", C.c_uint32 * 2),
        ("prev", C.c_void_p),
        ("alloc", ALLOC),
        ("from_object", FROM),
        ("to_object", TO),
        ("look", LOOK),
        ("stream", STREAM),
    ]


exchange = Api.from_address(pointer_of(id(dlx.Tensor.__dlpack_c_exchange_api__), Api.NAME))


def exchange_api(from_object):
    """A capsule, and what it is of."""
    table = Api(version=(1, 3), from_object=from_object)
    return new_capsule(C.addressof(table), Api.NAME, None), table


def look(capsule):
    """The managed tensor of a capsule, which stays its owner."""
    assert is_valid(id(capsule), Versioned.NEW)
    return Versioned.from_address(pointer_of(id(capsule), Versioned.NEW))


def tensor_of(managed):
    """The dlx.Tensor that the exchange API makes of a managed tensor, a Versioned."""
    back = C.py_object()
    assert exchange.to_object(C.byref(managed), C.byref(back)) == 0
    ret = back.value
    api.Py_DecRef(back)  # ours, beside that of ctypes
    return ret
