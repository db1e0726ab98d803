// SPDX-License-Identifier: Apache-2.0
//! What is held stays valid, and what is dropped is released.

use dlx::SubscribeOptions;

use crate::daemon::{Daemon, PATIENCE};

#[test]
fn tensor_outlives_everything_that_it_came_by() {
    let mut daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();
    publisher.publish_slice(&[3_u16; 1000], &[1000]).unwrap();
    let message = subscription.take_timeout(PATIENCE).unwrap();
    let tensor = message.tensor::<u16>(0).unwrap();
    drop((message, subscription, publisher, client));
    daemon.kill();
    assert_eq!(*tensor, [3; 1000]);
    daemon.restart(); // drop() ends one that runs
}

#[test]
fn dropped_message_is_released_and_a_clone_holds_it() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let options = SubscribeOptions { max_held: 1, ..Default::default() };
    let subscription = client.subscribe_with("t", &options).unwrap();
    let publisher = client.publisher("t").unwrap();
    for i in 0_u8..3 {
        publisher.publish_slice(&[i], &[]).unwrap();
    }
    let first = subscription.take_timeout(PATIENCE).unwrap();
    let clone = first.clone();
    drop(first);
    let error = subscription.try_take().unwrap_err();
    assert_eq!(error.kind(), dlx::ErrorKind::TooManyHeld);
    assert_eq!(*clone.slice::<u8>(0).unwrap(), [0]);
    drop(clone);

    let second = subscription.try_take().unwrap().unwrap();
    let tensor = second.tensor::<u8>(0).unwrap();
    drop(second);
    assert!(subscription.try_take().is_err());
    assert_eq!(*tensor, [1]);
    drop(tensor);
    assert_eq!(*subscription.try_take().unwrap().unwrap().slice::<u8>(0).unwrap(), [2]);
}

#[test]
fn dropped_loan_is_free_again() {
    let daemon = Daemon::start();
    let publisher = daemon.connect().publisher("t").unwrap();
    for _ in 0..1000 {
        publisher.alloc::<u8>(&[1 << 20]).unwrap();
    }
    assert!(publisher.stats().unwrap().arena_bytes < 64 << 20);
}

#[test]
fn loan_outlives_its_publisher() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let publisher = client.publisher("t").unwrap();
    let mut loan = publisher.alloc::<u8>(&[100]).unwrap();
    drop((publisher, client));
    loan.fill(9);
    assert_eq!(*loan, [9; 100]);
}

#[test]
fn dlpack_passes_through_raw_pointers() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();
    publisher.publish_slice(&[1.5_f32, 2.5], &[2]).unwrap();
    let message = subscription.take_timeout(PATIENCE).unwrap();

    let raw = message.managed(0).unwrap().into_raw();
    let tensor = unsafe { dlx::ManagedTensor::from_raw(raw) };
    assert_eq!(tensor.layout().dtype, dlx::DType::of::<f32>());
    let report = publisher.publish_with(tensor, &Default::default()).unwrap();
    assert_eq!(report.copied_bytes, 8);
}

#[test]
fn strides_of_others_are_followed() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();
    let mut loan = publisher.alloc::<i32>(&[2, 3]).unwrap();
    loan.copy_from_slice(&[0, 1, 2, 3, 4, 5]);
    // as code in C does that transposes its tensor
    let tensor = dlx::ManagedTensor::from(loan);
    unsafe {
        let t = &mut (*tensor.as_raw()).dl_tensor;
        std::slice::from_raw_parts_mut(t.shape, 2).copy_from_slice(&[3, 2]);
        std::slice::from_raw_parts_mut(t.strides, 2).copy_from_slice(&[1, 3]);
    }
    publisher.publish(tensor).unwrap();

    let message = subscription.take_timeout(PATIENCE).unwrap();
    let error = message.tensor::<i32>(0).unwrap_err();
    assert!(error.to_string().contains("strides [1, 3]"), "{error}");
    let strided = message.strided::<i32>(0).unwrap();
    assert_eq!(strided.to_vec().unwrap(), [0, 3, 1, 4, 2, 5]);
    assert_eq!(
        (strided.get(&[2, 1]), strided.get(&[0, 2]), strided.get(&[0])),
        (Some(&5), None, None)
    );
    let bytes: Vec<u8> = [0, 3, 1, 4, 2, 5].iter().flat_map(|v: &i32| v.to_ne_bytes()).collect();
    assert_eq!(*message.packed(0).unwrap(), bytes);
}

#[test]
fn packed_bytes_are_lent_or_copied_row_by_row() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let (publisher, subscription) =
        (client.publisher("packed").unwrap(), client.subscribe("packed").unwrap());
    let mut loan = publisher.alloc::<u16>(&[2, 3, 4]).unwrap();
    loan.copy_from_slice(&Vec::from_iter(0..24));
    // every other row of each plane
    let tensor = dlx::ManagedTensor::from(loan);
    unsafe {
        let t = &mut (*tensor.as_raw()).dl_tensor;
        std::slice::from_raw_parts_mut(t.shape, 3).copy_from_slice(&[2, 2, 4]);
        std::slice::from_raw_parts_mut(t.strides, 3).copy_from_slice(&[12, 8, 1]);
    }
    publisher.publish(tensor).unwrap();
    publisher.publish_slice(&[7u16, 8], &[2]).unwrap();

    let message = subscription.take_timeout(PATIENCE).unwrap();
    let rows = [0..4, 8..12, 12..16, 20..24].into_iter().flatten();
    let bytes: Vec<u8> = rows.flat_map(|v: u16| v.to_ne_bytes()).collect();
    let packed = message.packed(0).unwrap();
    assert!(matches!(&packed, std::borrow::Cow::Owned(copy) if *copy == bytes), "{packed:?}");
    let message = subscription.take_timeout(PATIENCE).unwrap();
    assert!(matches!(message.packed(0).unwrap(), std::borrow::Cow::Borrowed(&[7, 0, 8, 0])));
    assert!(message.packed(1).unwrap_err().to_string().contains("none with index 1"));
}
