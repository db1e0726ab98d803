// SPDX-License-Identifier: Apache-2.0
//! Data types and devices of tensors.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::str::FromStr;

use dlpackd_sys as sys;

use crate::error::{Error, Result, c_string, check};

/// What an element of a tensor is: DLPack's code, bits and lanes. It is written and parsed by the
/// names that C, Python and dlxctl have for it.
///
/// ```
/// let dtype: dlx::DType = "bfloat16".parse()?;
/// assert_eq!(dtype.bits, 16);
/// assert_eq!(dlx::DType::of::<f32>().to_string(), "float32");
/// # Ok::<(), dlx::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DType {
    /// DLPack's code: 0 for signed integers, 1 for unsigned ones, 2 for floats, and so on.
    pub code: u8,
    /// Bits of one lane.
    pub bits: u8,
    /// Lanes; 1 for all but vectors.
    pub lanes: u16,
}

impl DType {
    /// The data type of a type of Rust.
    pub const fn of<T: Element>() -> DType {
        T::DTYPE
    }

    const fn new(code: sys::DLDataTypeCode, bits: usize) -> DType {
        DType { code: code as u8, bits: bits as u8, lanes: 1 }
    }

    pub(crate) const fn from_c(c: sys::DLDataType) -> DType {
        DType { code: c.code, bits: c.bits, lanes: c.lanes }
    }

    pub(crate) const fn to_c(self) -> sys::DLDataType {
        sys::DLDataType { code: self.code, bits: self.bits, lanes: self.lanes }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = [0 as c_char; sys::DLX_DTYPE_NAME_SIZE as usize];
        // SAFETY: `name` has the room that the function wants, and is terminated by it.
        let name = unsafe {
            sys::dlx_dtype_name(self.to_c(), name.as_mut_ptr());
            CStr::from_ptr(name.as_ptr())
        };
        f.write_str(&name.to_string_lossy())
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for DType {
    type Err = Error;

    fn from_str(name: &str) -> Result<DType> {
        let name = c_string(name)?;
        let mut dtype = sys::DLDataType::default();
        // SAFETY: both pointers are valid for the call.
        check(unsafe { sys::dlx_dtype_parse(name.as_ptr(), &mut dtype) })?;
        Ok(DType::from_c(dtype))
    }
}

/// A type of Rust that elements of tensors have.
///
/// # Safety
///
/// `DTYPE` has the size of the type, every pattern of bits is a value of it, its alignment is at
/// most 256, and values without interior mutability may be shared between threads. So `bool`, for
/// which only two patterns are values, is none; `half::f16` may be made one by a type around it.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// Its data type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($code:ident: $($type:ty)*;)*) => {
        $($(
            // SAFETY: a number, or two of them, of as many bits as the data type says.
            unsafe impl Element for $type {
                const DTYPE: DType = DType::new(sys::$code, 8 * size_of::<$type>());
            }
        )*)*
    };
}

elements! {
    kDLInt: i8 i16 i32 i64;
    kDLUInt: u8 u16 u32 u64;
    kDLFloat: f32 f64;
    kDLComplex: [f32; 2] [f64; 2];
}

/// Where the memory of a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// DLPack's number for the kind of device: 1 for the CPU, 2 for CUDA, 10 for ROCm.
    pub kind: u32,
    /// Which device of this kind, as this process counts them.
    pub id: i32,
}

impl Device {
    /// The CPU: shared memory.
    pub const CPU: Device = Device { kind: sys::kDLCPU, id: 0 };
}
