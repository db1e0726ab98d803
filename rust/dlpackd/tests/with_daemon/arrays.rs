// SPDX-License-Identifier: Apache-2.0
//! Tensors of other crates: ndarray, and dlpark.

use dlx::{ManagedTensor, Message, Publisher};
use ndarray::{Array2, array, s};

use crate::daemon::{Daemon, PATIENCE};

fn through(daemon: &Daemon, publish: impl FnOnce(&Publisher)) -> Message {
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    publish(&client.publisher("t").unwrap());
    subscription.take_timeout(PATIENCE).unwrap()
}

#[test]
fn arrays_are_published_and_viewed() {
    let daemon = Daemon::start();
    let array = Array2::from_shape_fn((3, 4), |(i, j)| (10 * i + j) as f64);
    // a view that is not row-major
    let message = through(&daemon, |publisher| {
        publisher.publish_array(&array.slice(s![.., ..;2]).reversed_axes()).unwrap();
    });
    let tensor = message.tensor::<f64>(0).unwrap();
    assert_eq!(tensor.view(), array![[0.0, 10.0, 20.0], [2.0, 12.0, 22.0]].into_dyn());
    assert_eq!(message.strided::<f64>(0).unwrap().view().unwrap(), tensor.view());
}

#[test]
fn loan_is_filled_as_an_array() {
    let daemon = Daemon::start();
    let message = through(&daemon, |publisher| {
        let mut loan = publisher.alloc::<i16>(&[2, 2]).unwrap();
        loan.view_mut().assign(&array![[1, 2], [3, 4]]);
        assert_eq!(loan.view()[[1, 0]], 3);
        publisher.publish(loan).unwrap();
    });
    assert_eq!(*message.slice::<i16>(0).unwrap(), [1, 2, 3, 4]);
}

#[test]
fn dlpark_reads_a_tensor_and_gives_one() {
    let daemon = Daemon::start();
    let message = through(&daemon, |publisher| {
        publisher.publish_slice(&[1_i32, 2, 3, 4, 5, 6], &[2, 3]).unwrap();
    });
    let dlpack = dlpark::versioned::Dlpack::from(message.managed(0).unwrap());
    drop(message);
    let tensor = dlpack.validate().unwrap();
    assert_eq!(tensor.shape(), &[2, 3]);
    assert_eq!(unsafe { tensor.cpu_slice::<i32>() }.unwrap(), [1, 2, 3, 4, 5, 6]);

    let message = through(&daemon, |publisher| {
        let tensor = unsafe { ManagedTensor::from_dlpark(dlpack) };
        let report = publisher.publish_with(tensor, &Default::default()).unwrap();
        assert_eq!(report.copied_bytes, 24);
    });
    assert_eq!(*message.slice::<i32>(0).unwrap(), [1, 2, 3, 4, 5, 6]);
}
