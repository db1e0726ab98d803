// SPDX-License-Identifier: Apache-2.0
//! Messages of several tensors, and metadata.

use dlx::{DType, ErrorKind, PublishOptions, Set};

use crate::daemon::{Daemon, PATIENCE};

#[test]
fn set_arrives_with_names_and_metadata() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();
    let mut image = publisher.alloc::<u8>(&[2, 2]).unwrap();
    image.copy_from_slice(&[1, 2, 3, 4]);
    let mut boxes = publisher.alloc::<f32>(&[1]).unwrap();
    boxes[0] = 0.5;
    let set = Set::new().tensor("image", image).tensor("boxes", boxes).meta(b"m\0eta");
    let report = publisher.publish_set(set).unwrap();
    assert_eq!((report.copied_bytes, report.n_subscribers), (0, 1));

    let message = subscription.take_timeout(PATIENCE).unwrap();
    assert_eq!((message.n_tensors(), message.meta()), (2, &b"m\0eta"[..]));
    assert_eq!(message.name(0).unwrap(), "image");
    assert_eq!(message.find("boxes").unwrap(), 1);
    assert_eq!(*message.slice::<u8>(0).unwrap(), [1, 2, 3, 4]);
    assert_eq!(*message.tensor::<f32>(1).unwrap(), [0.5]);
    assert_eq!(message.name(2), None);
    let error = message.find("masks").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("\"image\""), "{error}");
}

#[test]
fn message_without_names_or_metadata_has_none() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    client.publisher("t").unwrap().publish_slice(&[1_u8], &[]).unwrap();
    let message = subscription.take_timeout(PATIENCE).unwrap();
    assert_eq!((message.name(0).unwrap().as_ref(), message.meta()), ("", &[][..]));
}

#[test]
fn set_is_allocated_whole_or_not() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();
    let specs: [(DType, &[usize]); 3] =
        [(DType::of::<f32>(), &[2, 3]), (DType::of::<u8>(), &[]), ("int4".parse().unwrap(), &[3])];
    let mut loans = publisher.alloc_set(&specs).unwrap();
    assert_eq!(loans.iter().map(|loan| loan.len()).collect::<Vec<_>>(), [24, 1, 2]);
    loans.iter_mut().for_each(|loan| loan.fill(7));
    let set = loans.into_iter().fold(Set::new(), |set, loan| set.tensor("", loan));
    assert_eq!(publisher.publish_set(set).unwrap().copied_bytes, 0);
    let message = subscription.take_timeout(PATIENCE).unwrap();
    assert_eq!(message.layout(0).unwrap().dtype, DType::of::<f32>());
    assert_eq!(*message.bytes(2).unwrap(), [7, 7]);

    let error = publisher.alloc_set(&[specs[0], (specs[1].0, &[usize::MAX])]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
    assert_eq!(publisher.alloc_set(&[]).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn rejected_set_comes_back_whole() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let subscription = client.subscribe("t").unwrap();
    let publisher = client.publisher("t").unwrap();
    let twice = |name: &str| {
        let (a, b) = (publisher.alloc::<u8>(&[1]).unwrap(), publisher.alloc::<u8>(&[2]).unwrap());
        Set::new().tensor("a", a).tensor(name, b).meta([1])
    };
    for name in ["a", "a\0b"] {
        let rejected = publisher.publish_set(twice(name)).unwrap_err();
        assert_eq!(rejected.kind(), ErrorKind::Invalid);
        let shapes: Vec<_> =
            rejected.value.into_tensors().map(|(_, t)| t.layout().shape.to_vec()).collect();
        assert_eq!(shapes, [[1], [2]]);
    }
    assert_eq!(publisher.publish_set(Set::new()).unwrap_err().kind(), ErrorKind::Invalid);
    let rejected = publisher.publish_set(twice("b").meta(vec![0; 65537])).unwrap_err();
    publisher.publish_set(rejected.value.meta([])).unwrap();
    assert_eq!(subscription.take_timeout(PATIENCE).unwrap().n_tensors(), 2);
}

#[test]
fn strict_set_names_the_tensor_that_would_be_copied() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let publisher = client.publisher("t").unwrap();
    let other = client.publisher("u").unwrap();
    let set = Set::new().tensor("stranger", other.alloc::<u8>(&[8]).unwrap());
    let strict = PublishOptions { strict: true, ..Default::default() };
    let rejected = publisher.publish_set_with(set, &strict).unwrap_err();
    assert_eq!(rejected.kind(), ErrorKind::WouldCopy);
    assert!(rejected.to_string().contains("stranger"), "{rejected}");
}
