// SPDX-License-Identifier: Apache-2.0
//! Views of tensors for the crate ndarray: feature `ndarray`.

use ndarray::{ArrayBase, ArrayViewD, ArrayViewMutD, Data, Dimension, IxDyn, ShapeBuilder};

use dlpackd_sys as sys;

use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::publisher::Publisher;
use crate::tensor::{Loan, Strided, Tensor};

const FITS: &str = "a row-major tensor has as many elements as its shape says";

impl<T> Tensor<T> {
    /// An array of this shape, which lends the elements.
    pub fn view(&self) -> ArrayViewD<'_, T> {
        ArrayViewD::from_shape(self.shape(), self).expect(FITS)
    }
}

impl<T> Loan<T> {
    /// An array of this shape, which lends the elements.
    pub fn view(&self) -> ArrayViewD<'_, T> {
        ArrayViewD::from_shape(self.shape(), self).expect(FITS)
    }

    /// The same, to write to.
    pub fn view_mut(&mut self) -> ArrayViewMutD<'_, T> {
        let shape = IxDyn(self.shape());
        ArrayViewMutD::from_shape(shape, self).expect(FITS)
    }
}

impl<T: Element> Strided<T> {
    /// An array of this shape and these strides, which lends the elements. ndarray has no view with
    /// negative strides.
    pub fn view(&self) -> Result<ArrayViewD<'_, T>> {
        let strides: Option<Vec<usize>> =
            self.layout().strides.iter().map(|&s| usize::try_from(s).ok()).collect();
        let shape = IxDyn(self.shape());
        match strides {
            Some(s) if s.is_empty() => ArrayViewD::from_shape(shape, self.extent()),
            Some(s) => ArrayViewD::from_shape(shape.strides(IxDyn(&s)), self.extent()),
            None => {
                let strides = self.layout().strides;
                let text = format!("ndarray cannot view strides {strides:?}: use to_vec()");
                return Err(Error::new(sys::DLX_E_SHAPE, text));
            }
        }
        .map_err(|e| Error::new(sys::DLX_E_SHAPE, format!("ndarray cannot view the tensor: {e}")))
    }
}

impl Publisher {
    /// Copies an array into shared memory and publishes it.
    pub fn publish_array<T, S, D>(&self, array: &ArrayBase<S, D>) -> Result<()>
    where
        T: Element,
        S: Data<Elem = T>,
        D: Dimension,
    {
        let mut loan = self.alloc(array.shape())?;
        loan.view_mut().assign(array);
        Ok(self.publish(loan)?)
    }
}
