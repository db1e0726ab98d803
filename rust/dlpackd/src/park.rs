// SPDX-License-Identifier: Apache-2.0
//! Tensors of the crate dlpark, which passes them to candle, cudarc, image and others: feature
//! `dlpark`.

use dlpark::versioned::Dlpack;

use crate::tensor::ManagedTensor;

impl From<ManagedTensor> for Dlpack {
    fn from(tensor: ManagedTensor) -> Dlpack {
        // SAFETY: both are DLPack 1's struct, which does not change, and its deleter may be called
        // by any thread.
        unsafe { Dlpack::from_raw(tensor.into_raw().cast()) }.expect("a tensor of DLPack 1")
    }
}

impl ManagedTensor {
    /// Takes over a tensor of dlpark. To publish it copies it once.
    ///
    /// # Safety
    ///
    /// As of [`ManagedTensor::from_raw`].
    pub unsafe fn from_dlpark(tensor: Dlpack) -> ManagedTensor {
        // SAFETY: the caller's.
        unsafe { ManagedTensor::from_raw(tensor.into_raw().cast()) }
    }
}
