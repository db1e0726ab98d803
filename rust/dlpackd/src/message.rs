// SPDX-License-Identifier: Apache-2.0
//! Received messages.

use std::borrow::Cow;
use std::ffi::{CStr, c_int};
use std::fmt;
use std::ptr::{self, NonNull};
use std::slice;

use dlpackd_sys as sys;
use sys::DLManagedTensorVersioned as ManagedC;

use crate::dtype::Element;
use crate::error::{Error, Result, c_string, check};
use crate::observer::Qos;
use crate::tensor::{Layout, Loan, ManagedTensor, Strided, Tensor, elements_of, packed_of};

/// A received message: one or more tensors, and metadata. It holds its memory until it and every
/// tensor made from it is released. Any thread may use and release it. A clone is another reference
/// to the same message.
pub struct Message(NonNull<sys::dlx_message>);

// SAFETY: "Any thread may use and release a message or a tensor, in any order" (dlx.h).
unsafe impl Send for Message {}
// SAFETY: likewise.
unsafe impl Sync for Message {}

impl Message {
    /// # Safety
    ///
    /// A message of libdlx that belongs to the caller.
    #[inline]
    pub(crate) unsafe fn from_raw(message: *mut sys::dlx_message) -> Message {
        Message(NonNull::new(message).expect("a message"))
    }

    #[inline]
    pub(crate) fn as_raw(&self) -> *mut sys::dlx_message {
        self.0.as_ptr()
    }

    /// How many tensors it has, at least 1.
    pub fn n_tensors(&self) -> usize {
        // SAFETY: this holds the message, here and below.
        unsafe { sys::dlx_message_n_tensors(self.as_raw()) as usize }
    }

    /// What tensor `i` is; None if there is no such tensor. One on a GPU has the device id 0 here.
    pub fn layout(&self, i: usize) -> Option<Layout<'_>> {
        // SAFETY: the tensor lives as long as the message.
        self.peek(i).map(|tensor| unsafe { Layout::new(tensor) })
    }

    #[inline]
    fn peek(&self, i: usize) -> Option<&sys::DLTensor> {
        // SAFETY: the tensor lives as long as the message.
        unsafe { sys::dlx_message_tensor_peek(self.as_raw(), index(i)).as_ref() }
    }

    /// Lends the elements of tensor `i` as long as the message. This is the cheapest way to them.
    #[inline]
    pub fn slice<T: Element>(&self, i: usize) -> Result<&[T]> {
        let Some(tensor) = self.peek(i) else {
            return Err(self.no_tensor(i));
        };
        // SAFETY: the tensor lives as long as the message.
        let layout = unsafe { Layout::new(tensor) };
        layout.check_type::<T>()?;
        layout.check_row_major()?;
        // SAFETY: likewise, and it is such a tensor.
        Ok(unsafe { elements_of(tensor, layout.n_elements()) })
    }

    #[cold]
    fn no_tensor(&self, i: usize) -> Error {
        let n = self.n_tensors();
        Error::new(
            sys::DLX_E_INVALID,
            format!("the message has {n} tensors, and none with index {i}"),
        )
    }

    /// Makes a tensor that holds the message by itself: row-major, of this type, in memory of the
    /// CPU.
    pub fn tensor<T: Element>(&self, i: usize) -> Result<Tensor<T>> {
        Tensor::new(self.managed(i)?)
    }

    /// The same for a tensor that may have strides.
    pub fn strided<T: Element>(&self, i: usize) -> Result<Strided<T>> {
        Strided::new(self.managed(i)?)
    }

    /// The bytes of tensor `i`, whatever its type.
    pub fn bytes(&self, i: usize) -> Result<Tensor<u8>> {
        Tensor::of_bytes(self.managed(i)?)
    }

    /// The bytes of tensor `i` row by row, whatever its type: lent as long as the message, or
    /// copied if it has strides. Elements of less than 8 bits can only be lent.
    pub fn packed(&self, i: usize) -> Result<Cow<'_, [u8]>> {
        let Some(tensor) = self.peek(i) else {
            return Err(self.no_tensor(i));
        };
        // SAFETY: libdlx made the tensor, which lives as long as the message.
        unsafe { packed_of(tensor) }
    }

    /// A copy of the bytes of tensor `i` row by row, of any type and wherever it is: also on a GPU.
    pub fn copy_to_host(&self, i: usize) -> Result<Vec<u8>> {
        let Some(layout) = self.layout(i) else {
            return Err(self.no_tensor(i));
        };
        let n = layout.n_bytes();
        let mut copy: Vec<u8> = layout.room_for_copy(n)?;
        // SAFETY: there is room for so many bytes, all of which the call writes.
        unsafe {
            let to = copy.as_mut_ptr().cast();
            check(sys::dlx_message_copy_to_host(self.as_raw(), index(i), to, n))?;
            copy.set_len(n);
        }
        Ok(copy)
    }

    /// Tensor `i`, whatever it is and wherever: for other crates that take DLPack.
    #[inline]
    pub fn managed(&self, i: usize) -> Result<ManagedTensor> {
        self.make(i, |message, i, ret| {
            // SAFETY: the arguments are valid for the call.
            unsafe { sys::dlx_message_tensor(message, i, ret) }
        })
    }

    /// Makes a private tensor of tensor `i`, which the caller may write to; nobody else sees that.
    /// A large one is copied page by page, when it is written to.
    pub fn private<T: Element>(&self, i: usize) -> Result<Loan<T>> {
        Loan::new(self.make(i, |message, i, ret| {
            // SAFETY: the arguments are valid for the call.
            unsafe { sys::dlx_message_tensor_private(message, i, ret) }
        })?)
    }

    #[inline]
    fn make(
        &self,
        i: usize,
        make: impl FnOnce(*mut sys::dlx_message, u32, &mut *mut ManagedC) -> c_int,
    ) -> Result<ManagedTensor> {
        let mut tensor = ptr::null_mut();
        check(make(self.as_raw(), index(i), &mut tensor))?;
        // SAFETY: a tensor of libdlx that belongs to the caller.
        Ok(unsafe { ManagedTensor::from_raw(tensor) })
    }

    /// The name of tensor `i`, "" if it has none; None if there is no such tensor.
    pub fn name(&self, i: usize) -> Option<Cow<'_, str>> {
        // SAFETY: the text lives as long as the message.
        unsafe {
            let name = sys::dlx_message_tensor_name(self.as_raw(), index(i));
            (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy())
        }
    }

    /// The index of the tensor with a name.
    pub fn find(&self, name: &str) -> Result<usize> {
        let (name, mut i) = (c_string(name)?, 0);
        // SAFETY: the arguments are valid for the call.
        check(unsafe { sys::dlx_message_tensor_find(self.as_raw(), name.as_ptr(), &mut i) })?;
        Ok(i as usize)
    }

    /// The metadata; empty if there is none.
    pub fn meta(&self) -> &[u8] {
        let mut size = 0;
        // SAFETY: the bytes live as long as the message.
        unsafe {
            let meta = sys::dlx_message_meta(self.as_raw(), &mut size);
            if meta.is_null() { &[] } else { slice::from_raw_parts(meta.cast(), size) }
        }
    }

    /// The topic that it was published on.
    pub fn topic(&self) -> Cow<'_, str> {
        // SAFETY: the text lives as long as the message.
        unsafe { CStr::from_ptr(sys::dlx_message_topic(self.as_raw())) }.to_string_lossy()
    }

    /// Its number, 1 for its publisher's first.
    pub fn seq(&self) -> u64 {
        // SAFETY: this holds the message.
        unsafe { sys::dlx_message_seq(self.as_raw()) }
    }

    /// How many messages of this publisher were lost or skipped just before it.
    pub fn gap(&self) -> u64 {
        // SAFETY: this holds the message.
        unsafe { sys::dlx_message_gap(self.as_raw()) }
    }

    /// When it was published: nanoseconds of CLOCK_MONOTONIC.
    pub fn monotonic_ns(&self) -> u64 {
        // SAFETY: this holds the message.
        unsafe { sys::dlx_message_monotonic_ns(self.as_raw()) }
    }

    /// The id of its publisher: a daemon never reuses one, and a newer publisher has a greater one.
    pub fn publisher(&self) -> u64 {
        // SAFETY: this holds the message.
        unsafe { sys::dlx_message_publisher(self.as_raw()) }
    }

    fn qos_of_link(&self) -> Result<sys::dlx_message_qos> {
        let mut qos =
            sys::dlx_message_qos { size: size_of::<sys::dlx_message_qos>(), ..Default::default() };
        // SAFETY: this holds the message, and the struct has its size.
        check(unsafe { sys::dlx_message_get_qos(self.as_raw(), &mut qos) })?;
        Ok(qos)
    }

    /// What its publisher offers: so a program can make a publisher that offers the same.
    pub fn qos(&self) -> Result<Qos> {
        let c = self.qos_of_link()?;
        Ok(Qos::new(c.on_full, c.depth, c.history, c.retain, c.retain_for_ns))
    }

    /// Does its publisher wait for the subscription, instead of dropping messages?
    pub fn is_reliable(&self) -> Result<bool> {
        self.qos_of_link().map(|qos| qos.reliable)
    }
}

/// An index of libdlx; one that does not fit is none of a message.
#[inline]
fn index(i: usize) -> u32 {
    u32::try_from(i).unwrap_or(u32::MAX)
}

impl Clone for Message {
    fn clone(&self) -> Message {
        // SAFETY: this holds the message, and the result is one more reference to it.
        unsafe { Message::from_raw(sys::dlx_message_ref(self.as_raw())) }
    }
}

impl Drop for Message {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this owns a reference.
        unsafe { sys::dlx_message_unref(self.as_raw()) };
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("topic", &self.topic())
            .field("seq", &self.seq())
            .field("n_tensors", &self.n_tensors())
            .finish()
    }
}
