// SPDX-License-Identifier: Apache-2.0
//! Publishing and taking.

use dlx::{
    ConnectOptions, DType, ErrorKind, History, OnFull, PublishOptions, PublisherOptions, Set,
    SubscribeOptions,
};

use crate::daemon::{Daemon, PATIENCE};
use crate::gpu::{has_gpu, on_gpu};

#[test]
fn loan_arrives_as_it_was_written() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();

    let mut loan = publisher.alloc::<f32>(&[2, 3]).unwrap();
    for (i, x) in loan.iter_mut().enumerate() {
        *x = i as f32 / 2.0;
    }
    let report = publisher.publish_with(loan, &Default::default()).unwrap();
    assert_eq!((report.seq, report.copied_bytes, report.n_subscribers), (1, 0, 1));

    let message = subscription.take_timeout(PATIENCE).unwrap();
    assert_eq!((message.topic().as_ref(), message.seq(), message.gap()), ("t", 1, 0));
    let tensor = message.tensor::<f32>(0).unwrap();
    assert_eq!(tensor.shape(), [2, 3]);
    assert!(format!("{tensor:?}").contains("dtype: float32"), "{tensor:?}");
    assert_eq!(*tensor, [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]);
    assert_eq!(message.slice::<f32>(0).unwrap(), &*tensor);
}

#[test]
fn scalars_and_empty_tensors_are_slices_too() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();
    publisher.publish_slice(&[7_i64], &[]).unwrap();
    publisher.publish_slice::<u16>(&[], &[3, 0, 2]).unwrap();

    let scalar = subscription.take_timeout(PATIENCE).unwrap().tensor::<i64>(0).unwrap();
    assert_eq!((scalar.shape(), &*scalar), (&[][..], &[7][..]));
    let empty = subscription.take_timeout(PATIENCE).unwrap().tensor::<u16>(0).unwrap();
    assert_eq!((empty.shape(), empty.len()), (&[3, 0, 2][..], 0));
}

#[test]
fn another_type_is_refused_in_words() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();
    publisher.publish_slice(&[1.0_f64], &[1]).unwrap();

    let message = subscription.take_timeout(PATIENCE).unwrap();
    for error in [message.tensor::<f32>(0).err(), message.slice::<f32>(0).err()] {
        let error = error.unwrap();
        assert_eq!(error.kind(), ErrorKind::Shape);
        assert_eq!(error.to_string(), "the tensor is of float64, not of float32");
    }
    assert_eq!(message.tensor::<f64>(1).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(message.slice::<f64>(usize::MAX).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(message.layout(1), None);
}

#[test]
fn bytes_are_those_of_any_type() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();
    let int4: DType = "int4".parse().unwrap();
    let mut loan = publisher.alloc_bytes(int4, &[3]).unwrap();
    loan.copy_from_slice(&[0x21, 0x03]);
    publisher.publish(loan).unwrap();

    let message = subscription.take_timeout(PATIENCE).unwrap();
    let layout = message.layout(0).unwrap();
    assert_eq!((layout.dtype.to_string(), layout.shape), ("int4".into(), &[3][..]));
    assert_eq!(*message.bytes(0).unwrap(), [0x21, 0x03]);
}

#[test]
fn rejected_tensor_comes_back_and_can_be_published_again() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let options = PublisherOptions { on_full: OnFull::Block, depth: 1, ..Default::default() };
    let publisher = client.publisher_with("t", &options).unwrap();
    let options = SubscribeOptions { reliable: true, ..Default::default() };
    let subscription = client.subscribe_with("t", &options).unwrap();
    publisher.wait(1, PATIENCE).unwrap();
    publisher.publish_slice(&[1_u8], &[1]).unwrap();

    let mut loan = publisher.alloc::<u8>(&[1]).unwrap();
    loan[0] = 2;
    let rejected = publisher.publish(loan).unwrap_err();
    assert_eq!(rejected.kind(), ErrorKind::Full);
    assert!(rejected.to_string().contains("t"), "{rejected}");
    assert_eq!(*subscription.take_timeout(PATIENCE).unwrap().slice::<u8>(0).unwrap(), [1]);
    publisher.publish(rejected.value).unwrap();
    assert_eq!(*subscription.take_timeout(PATIENCE).unwrap().slice::<u8>(0).unwrap(), [2]);
}

#[test]
fn received_tensor_is_copied_when_it_is_published() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();
    publisher.publish_slice(&[5_u32; 100], &[100]).unwrap();
    let message = subscription.take_timeout(PATIENCE).unwrap();

    let strict = PublishOptions { strict: true, ..Default::default() };
    let tensor = message.tensor::<u32>(0).unwrap();
    let rejected = publisher.publish_with(tensor, &strict).unwrap_err();
    assert_eq!(rejected.kind(), ErrorKind::WouldCopy);
    let report = publisher.publish_with(rejected.value, &Default::default()).unwrap();
    assert_eq!((report.copied_bytes, report.n_copied), (400, 1));
    assert_eq!(*subscription.take_timeout(PATIENCE).unwrap().slice::<u32>(0).unwrap(), [5; 100]);
}

#[test]
fn frozen_tensor_is_published_twice_without_a_copy() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();
    let mut loan = publisher.alloc::<u8>(&[4]).unwrap();
    loan.copy_from_slice(b"dlpk");
    let mut tensor = loan.freeze();
    for seq in 1..=2 {
        let report = publisher.publish_shared(&mut tensor, &PublishOptions::default()).unwrap();
        assert_eq!((report.seq, report.copied_bytes), (seq, 0));
    }
    let report = publisher.publish_with(tensor, &Default::default()).unwrap();
    assert_eq!(report.copied_bytes, 0);
    for _ in 0..3 {
        assert_eq!(subscription.take_timeout(PATIENCE).unwrap().slice::<u8>(0).unwrap(), b"dlpk");
    }
}

#[test]
fn private_tensor_is_written_without_anybody_seeing_it() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();
    for size in [16, 1 << 20] {
        publisher.publish_slice(&vec![1_u8; size], &[size]).unwrap();
        let message = subscription.take_timeout(PATIENCE).unwrap();
        let mut private = message.private::<u8>(0).unwrap();
        private[size - 1] = 2;
        assert_eq!(message.slice::<u8>(0).unwrap()[size - 1], 1);
        assert_eq!((private[0], private[size - 1]), (1, 2));
    }
}

#[test]
fn history_is_what_was_asked_for() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let options = PublisherOptions { history: 4, retain: 1, ..Default::default() };
    let publisher = client.publisher_with("t", &options).unwrap();
    for i in 0_u8..5 {
        publisher.publish_slice(&[i], &[]).unwrap();
    }
    for (history, first) in [(History::Retained, 4), (History::Newest(3), 2)] {
        let options = SubscribeOptions { history, ..Default::default() };
        let subscription = client.subscribe_with("t", &options).unwrap();
        // the publisher lets it in
        publisher.wait(1, PATIENCE).unwrap();
        assert_eq!(*subscription.take_timeout(PATIENCE).unwrap().slice::<u8>(0).unwrap(), [first]);
    }
    assert_eq!(*client.get("t", PATIENCE).unwrap().slice::<u8>(0).unwrap(), [4]);
}

#[test]
fn retained_message_outlives_its_publisher_until_it_is_dropped() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let options = PublisherOptions { retain: 1, ..Default::default() };
    let publisher = client.publisher_with("map", &options).unwrap();
    publisher.publish_slice(&[42_u8], &[]).unwrap();
    drop(publisher);

    assert_eq!(*client.get("map", PATIENCE).unwrap().slice::<u8>(0).unwrap(), [42]);
    client.drop_retained("map").unwrap();
    assert_eq!(client.drop_retained("map").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn errors_have_the_words_of_the_library() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let error = client.publisher("cam//front").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Topic);
    assert!(error.to_string().contains("cam//front"), "{error}");
    assert!(format!("{error:?}").starts_with("TOPIC: "), "{error:?}");
    assert_eq!(client.subscribe("a\0b").unwrap_err().kind(), ErrorKind::Invalid);

    let nowhere = ConnectOptions {
        socket: Some(daemon.socket().with_extension("not")),
        ..Default::default()
    };
    let error = dlx::Client::connect_with(&nowhere).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoDaemon);
    assert!(error.to_string().contains("socket.not"), "{error}");
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let daemon = Daemon::start();
    let publisher = daemon.connect().publisher("t").unwrap();
    assert_eq!(publisher.alloc::<f64>(&[1 << 40, 1 << 40, 0]).unwrap().len(), 0);
    for shape in [&[usize::MAX][..], &[1 << 40, 1 << 40], &[1; 65]] {
        assert_eq!(publisher.alloc::<f64>(shape).unwrap_err().kind(), ErrorKind::Shape);
    }
    let error = publisher.publish_slice(&[1_u8, 2], &[3]).unwrap_err();
    assert_eq!(error.to_string(), "the shape [3] is of 3 elements, not of 2");
}

#[test]
fn many_messages_are_published_and_the_rest_comes_back() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let options = PublisherOptions { on_full: OnFull::Block, depth: 4, ..Default::default() };
    let publisher = client.publisher_with("t", &options).unwrap();
    let reliable = SubscribeOptions { reliable: true, ..Default::default() };
    let subscription = client.subscribe_with("t", &reliable).unwrap();
    let loans = |n: u8| -> Vec<_> {
        let loan = |i| {
            let mut loan = publisher.alloc::<u8>(&[1]).unwrap();
            loan.fill(i);
            loan
        };
        (0..n).map(loan).collect()
    };
    let report = publisher.publish_many(loans(3), &PublishOptions::default()).unwrap();
    assert_eq!((report.seq, report.n_copied, report.n_subscribers), (3, 0, 1));
    let rejected = publisher.publish_many(loans(3), &PublishOptions::default()).unwrap_err();
    assert_eq!(rejected.kind(), ErrorKind::Full);
    assert_eq!(rejected.value.iter().map(|loan| loan[0]).collect::<Vec<_>>(), [1, 2]);
    let take = || subscription.take_timeout(PATIENCE).unwrap().slice::<u8>(0).unwrap()[0];
    assert_eq!([take(), take(), take(), take()], [0, 1, 2, 0]);
    publisher.publish_many(rejected.value, &PublishOptions::default()).unwrap();
    assert_eq!([take(), take()], [1, 2]);
}

#[test]
fn tensors_on_a_gpu_are_copied_to_the_host() {
    if !has_gpu("messages::tensors_on_a_gpu_are_copied_to_the_host") {
        return;
    }
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();
    let mut loan = publisher.alloc::<u8>(&[2]).unwrap();
    loan.copy_from_slice(&[7, 8]);
    let set = Set::new().tensor("gpu", on_gpu(&publisher, &[1, 2, 3])).tensor("cpu", loan);
    publisher.publish_set(set).unwrap();

    let message = subscription.take_timeout(PATIENCE).unwrap();
    assert_eq!(message.layout(0).unwrap().device.kind, 2);
    assert!(message.bytes(0).is_err());
    assert_eq!(message.copy_to_host(0).unwrap(), [1, 0, 2, 0, 3, 0]);
    assert_eq!(message.copy_to_host(1).unwrap(), [7, 8]);
    assert_eq!(message.copy_to_host(2).unwrap_err().kind(), ErrorKind::Invalid);
}
