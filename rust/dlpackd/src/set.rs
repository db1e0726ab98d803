// SPDX-License-Identifier: Apache-2.0
//! Sets of tensors, with metadata.

use std::ffi::CString;
use std::ptr;

use dlpackd_sys as sys;

use crate::error::{Result, c_string};
use crate::tensor::{ManagedTensor, Outgoing};

/// Tensors, each with a name or without, and metadata: one message of several tensors, the request
/// of a call, or its reply.
///
/// ```
/// # fn main() -> dlx::Result<()> {
/// # let client = dlx::Client::connect()?;
/// # let subscription = client.subscribe("objects")?;
/// let publisher = client.publisher("objects")?;
/// let (image, boxes) = (publisher.alloc::<u8>(&[480, 640, 3])?, publisher.alloc::<f32>(&[9, 4])?);
/// let set = dlx::Set::new().tensor("image", image).tensor("boxes", boxes).meta(*br#"{"t":1}"#);
/// publisher.publish_set(set)?;
///
/// let message = subscription.take()?;
/// let boxes = message.tensor::<f32>(message.find("boxes")?)?;
/// assert_eq!((boxes.shape(), message.meta()), (&[9, 4][..], &br#"{"t":1}"#[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Set {
    names: Vec<String>,
    tensors: Vec<ManagedTensor>,
    meta: Option<Vec<u8>>,
}

impl Set {
    /// A set without tensors, which cannot be published yet.
    pub fn new() -> Set {
        Set::default()
    }

    /// Adds a tensor. Names are unique in a set; an empty one is none.
    pub fn tensor(mut self, name: impl Into<String>, tensor: impl Into<ManagedTensor>) -> Set {
        self.names.push(name.into());
        self.tensors.push(tensor.into());
        self
    }

    /// Sets the metadata: any bytes. Python writes and reads JSON there.
    pub fn meta(mut self, meta: impl Into<Vec<u8>>) -> Set {
        self.meta = Some(meta.into());
        self
    }

    /// The tensors with their names.
    pub fn into_tensors(self) -> impl Iterator<Item = (String, ManagedTensor)> {
        self.names.into_iter().zip(self.tensors)
    }

    /// Forgets the tensors, which the library has taken over.
    pub(crate) fn forget(self) {
        self.tensors.into_iter().for_each(std::mem::forget);
    }

    /// Calls a function of libdlx with the tensors and the metadata.
    pub(crate) fn with_items<R>(
        &self,
        f: impl FnOnce(*const sys::dlx_item, u32, *const sys::dlx_bytes) -> Result<R>,
    ) -> Result<R> {
        let names =
            self.names.iter().map(|name| c_string(name)).collect::<Result<Vec<CString>>>()?;
        let items: Vec<sys::dlx_item> = names
            .iter()
            .zip(&self.tensors)
            .map(|(name, tensor)| sys::dlx_item { name: name.as_ptr(), tensor: tensor.as_raw() })
            .collect();
        let meta = self
            .meta
            .as_ref()
            .map(|meta| sys::dlx_bytes { data: meta.as_ptr().cast(), size: meta.len() });
        let n = u32::try_from(items.len()).unwrap_or(u32::MAX);
        f(items.as_ptr(), n, meta.as_ref().map_or(ptr::null(), |meta| meta))
    }
}

/// One tensor without a name.
impl<T: Outgoing> From<T> for Set {
    fn from(tensor: T) -> Set {
        Set::new().tensor("", tensor)
    }
}
