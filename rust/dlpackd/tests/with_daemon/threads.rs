// SPDX-License-Identifier: Apache-2.0
//! What may be used where.

use std::sync::mpsc;
use std::thread;

use dlx::{Client, Loan, ManagedTensor, Message, Publisher, Strided, Subscription, Tensor};

use crate::daemon::{Daemon, PATIENCE};

const fn is_send<T: Send>() {}
const fn is_sync<T: Sync>() {}

// The documentation of the crate has what is not Sync, and does not compile.
const _: () = {
    is_send::<Client>();
    is_sync::<Client>();
    is_send::<Publisher>();
    is_send::<Subscription>();
    is_send::<dlx::Caller>();
    is_send::<dlx::Service>();
    is_send::<Message>();
    is_sync::<Message>();
    is_send::<Tensor<f32>>();
    is_sync::<Tensor<f32>>();
    is_send::<Strided<f32>>();
    is_sync::<Strided<f32>>();
    is_send::<Loan<f32>>();
    is_sync::<Loan<f32>>();
    is_send::<ManagedTensor>();
    is_sync::<ManagedTensor>();
};

#[test]
fn messages_go_from_thread_to_thread() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    thread::scope(|scope| {
        let (send, receive) = mpsc::channel::<Message>();
        let subscription = client.subscribe("t").unwrap();
        let publisher = client.publisher("t").unwrap();
        scope.spawn(move || {
            for message in &subscription {
                send.send(message.unwrap()).unwrap();
            }
        });
        scope.spawn(move || {
            publisher.wait(1, PATIENCE).unwrap();
            for i in 0_u64..10 {
                publisher.publish_slice(&[i], &[]).unwrap();
            }
        });
        let sum: u64 = receive.iter().map(|m| m.slice::<u64>(0).unwrap()[0]).sum();
        assert_eq!(sum, 45);
    });
}
