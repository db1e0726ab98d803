// SPDX-License-Identifier: Apache-2.0
//! Tensors: with their owners, as DLPack passes them on, and typed ones in memory of the CPU.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use dlpackd_sys as sys;

use crate::dtype::{DType, Device, Element};
use crate::error::{Error, Result};

// Sizes and strides of DLPack are `int64_t`; libdlx is for 64-bit Linux alone.
const _: () = assert!(size_of::<usize>() == size_of::<i64>());

/// The shape of a tensor of DLPack that libdlx made or checked: no size is negative.
///
/// # Safety
///
/// `tensor` is such a tensor, and lives as long as `'a`.
#[inline]
unsafe fn shape_of<'a>(tensor: &sys::DLTensor) -> &'a [usize] {
    if tensor.ndim <= 0 || tensor.shape.is_null() {
        return &[];
    }
    // SAFETY: `shape` has `ndim` sizes.
    unsafe { slice::from_raw_parts(tensor.shape.cast(), tensor.ndim as usize) }
}

/// Its strides, likewise; empty where there are none.
///
/// # Safety
///
/// As of shape_of().
#[inline]
unsafe fn strides_of<'a>(tensor: &sys::DLTensor) -> &'a [isize] {
    if tensor.ndim <= 0 || tensor.strides.is_null() {
        return &[];
    }
    // SAFETY: `strides` has `ndim` steps.
    unsafe { slice::from_raw_parts(tensor.strides.cast(), tensor.ndim as usize) }
}

#[inline]
fn is_row_major(shape: &[usize], strides: &[isize]) -> bool {
    if strides.is_empty() || shape.contains(&0) {
        return true;
    }
    let mut step = 1;
    for (&size, &stride) in shape.iter().zip(strides).rev() {
        if size != 1 && stride != step {
            return false;
        }
        step *= size as isize;
    }
    true
}

/// Elements of a shape that libdlx has accepted: without a size of 0 they are less than 2^63.
#[inline]
fn n_elements(shape: &[usize]) -> usize {
    if shape.contains(&0) { 0 } else { shape.iter().product() }
}

/// What a tensor is, without its content. It lives as long as what it was asked of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout<'a> {
    /// What its elements are.
    pub dtype: DType,
    /// Where its memory is.
    pub device: Device,
    /// Its sizes.
    pub shape: &'a [usize],
    /// Its steps, counted in elements; empty: row-major.
    pub strides: &'a [isize],
}

impl Layout<'_> {
    /// # Safety
    ///
    /// `tensor` was made or checked by libdlx, and lives as long as `'a`.
    #[inline]
    pub(crate) unsafe fn new<'a>(tensor: &sys::DLTensor) -> Layout<'a> {
        Layout {
            dtype: DType::from_c(tensor.dtype),
            device: Device { kind: tensor.device.device_type, id: tensor.device.device_id },
            // SAFETY: as this function's.
            shape: unsafe { shape_of(tensor) },
            // SAFETY: as this function's.
            strides: unsafe { strides_of(tensor) },
        }
    }

    /// Do its elements lie row after row, without gaps?
    #[inline]
    pub fn is_row_major(&self) -> bool {
        is_row_major(self.shape, self.strides)
    }

    /// How many elements it has.
    #[inline]
    pub fn n_elements(&self) -> usize {
        n_elements(self.shape)
    }

    /// Bytes of its elements, row-major: those of less than 8 bits are packed. `usize::MAX`: more
    /// than there can be, as with a stride of 0.
    pub fn n_bytes(&self) -> usize {
        let bits = u128::from(self.dtype.bits) * u128::from(self.dtype.lanes);
        let bytes = (self.n_elements() as u128 * bits).div_ceil(8);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// An empty vector with room for a row-major copy. A tensor with a stride of 0 may have more
    /// elements than there is memory.
    pub(crate) fn room_for_copy<T>(&self, n: usize) -> Result<Vec<T>> {
        let mut room = Vec::new();
        match room.try_reserve_exact(n) {
            Ok(()) => Ok(room),
            Err(_) => Err(Error::new(
                sys::DLX_E_NO_MEMORY,
                format!(
                    "no memory for a row-major copy of the tensor of shape {:?} and strides {:?}, \
                     which takes {} bytes",
                    self.shape,
                    self.strides,
                    self.n_bytes()
                ),
            )),
        }
    }

    /// Is it in memory of the CPU, and of this type?
    #[inline]
    pub(crate) fn check_type<T: Element>(&self) -> Result<()> {
        self.check_device()?;
        if self.dtype == T::DTYPE { Ok(()) } else { Err(self.another_type(T::DTYPE)) }
    }

    #[cold]
    fn another_type(&self, dtype: DType) -> Error {
        Error::new(sys::DLX_E_SHAPE, format!("the tensor is of {}, not of {dtype}", self.dtype))
    }

    #[inline]
    pub(crate) fn check_device(&self) -> Result<()> {
        if self.device.kind == sys::kDLCPU {
            return Ok(());
        }
        Err(self.elsewhere())
    }

    #[cold]
    fn elsewhere(&self) -> Error {
        Error::new(
            sys::DLX_E_DEVICE,
            format!(
                "the tensor is on device {}:{} of DLPack, not in memory of the CPU: pass it on as \
                 a ManagedTensor",
                self.device.kind, self.device.id
            ),
        )
    }

    #[inline]
    pub(crate) fn check_row_major(&self) -> Result<()> {
        if self.is_row_major() {
            return Ok(());
        }
        Err(self.not_a_slice())
    }

    #[cold]
    fn not_a_slice(&self) -> Error {
        Error::new(
            sys::DLX_E_SHAPE,
            format!(
                "the tensor of shape {:?} has strides {:?} and is no slice: use strided()",
                self.shape, self.strides
            ),
        )
    }
}

/// The elements of a row-major tensor of `T`; for one without elements, no memory is read.
///
/// # Safety
///
/// `tensor` was made or checked by libdlx, is in memory of the CPU, row-major, of elements of this
/// size, and lives as long as `'a`.
#[inline]
pub(crate) unsafe fn elements_of<'a, T>(tensor: &sys::DLTensor, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: there are so many elements.
    unsafe { slice::from_raw_parts(data_of(tensor), len) }
}

#[inline]
fn data_of<T>(tensor: &sys::DLTensor) -> *mut T {
    tensor.data.wrapping_byte_add(tensor.byte_offset as usize).cast()
}

/// The bytes of a tensor in memory of the CPU, row by row: lent if it is row-major, else copied.
///
/// # Safety
///
/// As of Layout::new(), and libdlx has checked that every element lies in the tensor's memory.
pub(crate) unsafe fn packed_of<'a>(tensor: &sys::DLTensor) -> Result<Cow<'a, [u8]>> {
    // SAFETY: as this function's.
    let layout: Layout<'a> = unsafe { Layout::new(tensor) };
    layout.check_device()?;
    if layout.is_row_major() {
        // SAFETY: it is such a tensor, of so many bytes.
        return Ok(Cow::Borrowed(unsafe { elements_of(tensor, layout.n_bytes()) }));
    }
    let bits = usize::from(layout.dtype.bits) * usize::from(layout.dtype.lanes);
    if bits % 8 != 0 {
        return Err(layout.not_a_slice());
    }
    let (shape, strides) = (layout.shape, layout.strides);
    // The last dimensions that lie row after row are copied at once.
    let (mut n_outer, mut run) = (shape.len(), 1);
    while n_outer > 0 && (shape[n_outer - 1] == 1 || strides[n_outer - 1] == run as isize) {
        n_outer -= 1;
        run *= shape[n_outer];
    }
    let mut index = vec![0; n_outer];
    let mut bytes = layout.room_for_copy(layout.n_bytes())?;
    loop {
        let offset: isize = index.iter().zip(strides).map(|(&i, s)| i as isize * s).sum();
        let first = data_of::<u8>(tensor).wrapping_offset(offset * (bits / 8) as isize);
        // SAFETY: the elements of this run lie in the tensor's memory.
        bytes.extend_from_slice(unsafe { slice::from_raw_parts(first, run * bits / 8) });
        // the next index: the last dimension counts first
        let Some(d) = (0..n_outer).rev().find(|&d| index[d] + 1 < shape[d]) else {
            return Ok(Cow::Owned(bytes));
        };
        index[d] += 1;
        index[d + 1..].fill(0);
    }
}

/// A tensor of DLPack 1 with its owner: of any type, on any device. This is what other crates take
/// and give; [`Tensor`] and [`Loan`] are one in memory of the CPU whose type is known.
pub struct ManagedTensor(NonNull<sys::DLManagedTensorVersioned>);

// SAFETY: any thread may use and release a tensor of libdlx; from_raw() asks that of others.
unsafe impl Send for ManagedTensor {}
// SAFETY: likewise, and nothing here writes by a shared reference.
unsafe impl Sync for ManagedTensor {}

impl ManagedTensor {
    /// Takes over a tensor of DLPack. To publish it copies it once.
    ///
    /// # Safety
    ///
    /// The pointer is valid, belongs to the caller, and describes memory as DLPack 1 says, with no
    /// negative size. Any thread may use it and call its deleter. Nobody writes to its memory as
    /// long as this lives, and its content is initialised.
    #[inline]
    pub unsafe fn from_raw(tensor: *mut sys::DLManagedTensorVersioned) -> ManagedTensor {
        ManagedTensor(NonNull::new(tensor).expect("a tensor of DLPack is no null pointer"))
    }

    /// Gives the tensor away: whoever gets it calls its deleter, once.
    pub fn into_raw(self) -> *mut sys::DLManagedTensorVersioned {
        let raw = self.as_raw();
        std::mem::forget(self);
        raw
    }

    /// Lends the tensor.
    #[inline]
    pub fn as_raw(&self) -> *mut sys::DLManagedTensorVersioned {
        self.0.as_ptr()
    }

    /// What it is.
    #[inline]
    pub fn layout(&self) -> Layout<'_> {
        // SAFETY: this owns it, and a tensor of DLPack does not change.
        unsafe { Layout::new(self.tensor()) }
    }

    #[inline]
    fn tensor(&self) -> &sys::DLTensor {
        // SAFETY: this owns it.
        unsafe { &self.0.as_ref().dl_tensor }
    }

    fn data<T>(&self) -> *mut T {
        data_of(self.tensor())
    }
}

impl Drop for ManagedTensor {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this owns it, and a deleter is called once.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter {
                deleter(self.as_raw());
            }
        }
    }
}

impl fmt::Debug for ManagedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.layout().fmt(f)
    }
}

/// A received tensor: a slice that nobody can write to by this crate. It holds the memory of its
/// message, which may be released before.
///
/// The elements are as its publisher wrote them. [The crate](crate#what-is-unsafe-and-why) has more
/// about publishers that write after they published.
pub struct Tensor<T> {
    managed: ManagedTensor,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Tensor<T> {
    pub(crate) fn new(managed: ManagedTensor) -> Result<Tensor<T>> {
        let layout = managed.layout();
        layout.check_type::<T>()?;
        layout.check_row_major()?;
        let len = layout.n_elements();
        Ok(Tensor::of_len(managed, len))
    }
}

impl Tensor<u8> {
    /// The bytes of a tensor of any type.
    pub(crate) fn of_bytes(managed: ManagedTensor) -> Result<Tensor<u8>> {
        let layout = managed.layout();
        layout.check_device()?;
        layout.check_row_major()?;
        let len = layout.n_bytes();
        Ok(Tensor::of_len(managed, len))
    }
}

impl<T> Tensor<T> {
    fn of_len(managed: ManagedTensor, len: usize) -> Tensor<T> {
        Tensor { managed, len, element: PhantomData }
    }
}

impl<T> Deref for Tensor<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: new() and of_bytes() have checked it, and a tensor does not change.
        unsafe { elements_of(self.managed.tensor(), self.len) }
    }
}

/// A received tensor with any strides, such as a transposed one.
pub struct Strided<T> {
    managed: ManagedTensor,
    element: PhantomData<T>,
}

impl<T: Element> Strided<T> {
    pub(crate) fn new(managed: ManagedTensor) -> Result<Strided<T>> {
        managed.layout().check_type::<T>()?;
        Ok(Strided { managed, element: PhantomData })
    }

    /// The element with this index; None where there is none.
    pub fn get(&self, index: &[usize]) -> Option<&T> {
        let Layout { shape, strides, .. } = self.managed.layout();
        if index.len() != shape.len() || index.iter().zip(shape).any(|(i, size)| i >= size) {
            return None;
        }
        let offset: isize = if strides.is_empty() {
            let flat = index.iter().zip(shape).fold(0, |at, (i, n)| at * n + i);
            flat as isize
        } else {
            index.iter().zip(strides).map(|(&i, s)| i as isize * s).sum()
        };
        // SAFETY: libdlx has checked that every element lies in the tensor's memory.
        Some(unsafe { &*self.managed.data::<T>().offset(offset) })
    }

    /// What lies from the first element to the last one, if no stride is negative.
    #[cfg(feature = "ndarray")]
    pub(crate) fn extent(&self) -> &[T] {
        let Layout { shape, strides, .. } = self.managed.layout();
        let len = if shape.contains(&0) {
            0
        } else if strides.is_empty() {
            n_elements(shape)
        } else {
            1 + shape.iter().zip(strides).map(|(&n, &s)| (n - 1) * s as usize).sum::<usize>()
        };
        // SAFETY: libdlx has checked that every element lies in the tensor's memory.
        unsafe { elements_of(self.managed.tensor(), len) }
    }

    /// Copies the elements, row by row; fails with
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory) if there are too many.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let shape = self.layout().shape;
        let mut index = vec![0; shape.len()];
        let mut elements = self.layout().room_for_copy(self.layout().n_elements())?;
        while let Some(&element) = self.get(&index) {
            elements.push(element);
            // the next index: the last dimension counts first
            let Some(d) = (0..shape.len()).rev().find(|&d| index[d] + 1 < shape[d]) else {
                break;
            };
            index[d] += 1;
            index[d + 1..].fill(0);
        }
        Ok(elements)
    }
}

/// A tensor that the caller may write to: of [`Publisher::alloc`](crate::Publisher::alloc), in
/// shared memory, so that publishing it copies nothing, or a private one of
/// [`Message::private`](crate::Message::private). Its content is what was in that memory
/// before.
pub struct Loan<T> {
    managed: ManagedTensor,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Loan<T> {
    /// `managed` is a tensor of libdlx that is the caller's alone and may be written to.
    pub(crate) fn new(managed: ManagedTensor) -> Result<Loan<T>> {
        let Tensor { managed, len, .. } = Tensor::<T>::new(managed)?;
        Ok(Loan { managed, len, element: PhantomData })
    }

    /// A tensor of this shape that libdlx has just allocated for elements of this type.
    #[inline]
    pub(crate) fn allocated(managed: ManagedTensor, shape: &[usize]) -> Loan<T> {
        Loan { managed, len: n_elements(shape), element: PhantomData }
    }

    /// Ends writing: what is left may be published several times, see
    /// [`Publisher::publish_shared`](crate::Publisher::publish_shared).
    pub fn freeze(self) -> Tensor<T> {
        Tensor::of_len(self.managed, self.len)
    }
}

impl Loan<u8> {
    /// The same for a tensor of any type.
    pub(crate) fn of_bytes(managed: ManagedTensor) -> Result<Loan<u8>> {
        let Tensor { managed, len, .. } = Tensor::of_bytes(managed)?;
        Ok(Loan { managed, len, element: PhantomData })
    }
}

impl<T> Deref for Loan<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: new() and of_bytes() have checked it, and a tensor does not change.
        unsafe { elements_of(self.managed.tensor(), self.len) }
    }
}

impl<T> DerefMut for Loan<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: likewise, and the memory is this loan's alone.
        unsafe { slice::from_raw_parts_mut(self.managed.data(), self.len) }
    }
}

/// What a publisher takes: every kind of tensor of this crate.
pub trait Outgoing: Into<ManagedTensor> + sealed::Managed {}

pub(crate) mod sealed {
    /// Nothing but the tensor is released with a value of the type, so it may be forgotten when the
    /// library has taken that over.
    pub trait Managed {
        fn managed(&self) -> &super::ManagedTensor;
    }
}

impl sealed::Managed for ManagedTensor {
    fn managed(&self) -> &ManagedTensor {
        self
    }
}
impl Outgoing for ManagedTensor {}

macro_rules! typed {
    ($($name:ident)*) => {
        $(
            impl<T> $name<T> {
                /// What it is.
                pub fn layout(&self) -> Layout<'_> {
                    self.managed.layout()
                }

                /// Its sizes.
                pub fn shape(&self) -> &[usize] {
                    self.managed.layout().shape
                }
            }

            impl<T> sealed::Managed for $name<T> {
                fn managed(&self) -> &ManagedTensor {
                    &self.managed
                }
            }
            impl<T> Outgoing for $name<T> {}

            impl<T> From<$name<T>> for ManagedTensor {
                fn from(typed: $name<T>) -> ManagedTensor {
                    typed.managed
                }
            }

            impl<T> fmt::Debug for $name<T> {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    write!(f, concat!(stringify!($name), "({:?})"), self.managed)
                }
            }
        )*
    };
}

typed! { Tensor Strided Loan }

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    /// A hostile publisher may say in shared memory that one element is repeated 2^50 times.
    #[test]
    fn copies_that_no_memory_can_hold_are_errors() {
        for n in [1 << 50, 1 << 62] {
            let (mut element, mut shape, mut strides) = (7_u16, [n], [0]);
            let dl_tensor = sys::DLTensor {
                data: (&raw mut element).cast(),
                device: sys::DLDevice { device_type: sys::kDLCPU, device_id: 0 },
                ndim: 1,
                dtype: u16::DTYPE.to_c(),
                shape: shape.as_mut_ptr(),
                strides: strides.as_mut_ptr(),
                byte_offset: 0,
            };
            let mut raw = sys::DLManagedTensorVersioned { dl_tensor, ..Default::default() };
            // SAFETY: every element lies in `element`, and there is no deleter.
            let tensor = unsafe { ManagedTensor::from_raw(&raw mut raw) };
            // SAFETY: likewise.
            let packed = unsafe { packed_of(tensor.tensor()) }.unwrap_err();
            let strided = Strided::<u16>::new(tensor).unwrap();
            assert_eq!(strided.get(&[n as usize - 1]), Some(&7));
            for error in [packed, strided.to_vec().unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::NoMemory);
                assert!(error.to_string().contains("strides [0]"), "{error}");
            }
        }
    }
}
