// SPDX-License-Identifier: Apache-2.0
//! Calls.

use std::thread;
use std::time::Duration;

use dlx::{CallOptions, CallerOptions, Client, ErrorKind, Service, ServiceOptions, Set};

use crate::daemon::{Daemon, PATIENCE};

/// Answers so many requests: each number with its double, 0 with an error, 1 not at all.
fn serve(service: &Service, n: usize) {
    for _ in 0..n {
        let request = service.take_timeout(PATIENCE).unwrap();
        let x = request.message().slice::<i32>(0).unwrap()[0];
        match x {
            0 => request.reply_error(-7, "zero has no double here").unwrap(),
            1 => {}
            _ => {
                let mut answer = request.alloc::<i32>(&[]).unwrap();
                answer[0] = 2 * x;
                let meta = request.message().meta().to_vec();
                request.reply(Set::new().tensor("double", answer).meta(meta)).unwrap();
            }
        }
    }
}

fn with_service(client: &Client, n: usize, work: impl FnOnce()) {
    let service = client.service("svc").unwrap();
    thread::scope(|scope| {
        scope.spawn(move || serve(&service, n));
        work();
    });
}

#[test]
fn reply_comes_to_its_call() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    with_service(&client, 1, || {
        let caller = client.caller("svc").unwrap();
        caller.wait(PATIENCE).unwrap();
        let mut question = caller.alloc::<i32>(&[]).unwrap();
        question[0] = 21;
        let options = CallOptions { timeout: Some(PATIENCE), ..Default::default() };
        let request = Set::new().tensor("x", question).meta(*b"asked");
        let reply = caller.call_with(request, &options).unwrap();
        assert_eq!(*reply.slice::<i32>(reply.find("double").unwrap()).unwrap(), [42]);
        assert_eq!(reply.meta(), b"asked");
        assert_eq!(caller.stats().unwrap().replies, 1);
    });
}

#[test]
fn worker_answers_with_an_error_or_not_at_all() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    with_service(&client, 2, || {
        let caller = client.caller("svc").unwrap();
        for (x, code, words) in [(0, -7, "zero has no double here"), (1, 0, "without a reply")] {
            let mut question = caller.alloc::<i32>(&[]).unwrap();
            question[0] = x;
            let failed = caller.call(question).unwrap_err();
            assert_eq!((failed.kind(), failed.worker_code), (ErrorKind::CallFailed, code));
            assert!(failed.to_string().contains(words), "{failed}");
            assert!(failed.unsent.is_none());
        }
    });
}

#[test]
fn calls_are_in_flight_together_and_can_be_cancelled() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let caller = client.caller("svc").unwrap();
    let begin = |x| {
        let mut question = caller.alloc::<i32>(&[]).unwrap();
        question[0] = x;
        caller.begin(question, &CallOptions::default()).unwrap()
    };
    let calls = [begin(2), begin(3), begin(4)];
    caller.cancel(calls[1]).unwrap();
    assert_eq!(caller.cancel(calls[1]).unwrap_err().kind(), ErrorKind::NotFound);
    with_service(&client, 2, || {
        for (call, double) in [(calls[0], 4), (calls[2], 8)] {
            let result = caller.take_timeout(PATIENCE).unwrap();
            assert_eq!((result.call, result.worker_pid), (call, std::process::id()));
            assert_eq!(*result.reply.unwrap().slice::<i32>(0).unwrap(), [double]);
        }
        assert_eq!(caller.take().unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn request_that_was_not_sent_comes_back() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let options = CallerOptions { max_in_flight: 1, ..Default::default() };
    let caller = client.caller_with("svc", &options).unwrap();
    let question = || caller.alloc::<i32>(&[3]).unwrap();
    caller.begin(question(), &CallOptions::default()).unwrap();
    let failed = caller.call(question()).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Full);
    assert_eq!(failed.unsent.unwrap().into_tensors().count(), 1);
    let rejected = caller.begin(question(), &CallOptions::default()).unwrap_err();
    assert_eq!(rejected.kind(), ErrorKind::Full);
}

#[test]
fn call_without_a_worker_ends_in_time() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let caller = client.caller("svc").unwrap();
    let soon = Duration::from_millis(20);
    assert_eq!(caller.wait(soon).unwrap_err().kind(), ErrorKind::Timeout);
    let options = CallOptions { timeout: Some(soon), ..Default::default() };
    let failed = caller.call_with(caller.alloc::<u8>(&[]).unwrap(), &options).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Timeout);
    assert!(failed.to_string().contains("no worker"), "{failed}");
}

#[test]
fn worker_sees_the_deadline_and_that_the_caller_gave_up() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let caller = client.caller("svc").unwrap();
    let options = ServiceOptions { max_held: 2, ..Default::default() };
    let service = client.service_with("svc", &options).unwrap();
    let begin = |timeout| {
        let options = CallOptions { timeout, ..Default::default() };
        caller.begin(caller.alloc::<u8>(&[]).unwrap(), &options).unwrap()
    };
    let endless = begin(None);
    begin(Some(PATIENCE));
    let first = service.take_timeout(PATIENCE).unwrap();
    let second = service.take_timeout(PATIENCE).unwrap();
    assert_eq!(first.deadline_ns(), None);
    assert!(second.deadline_ns().unwrap() > second.message().monotonic_ns());
    assert!(!first.is_cancelled());
    caller.cancel(endless).unwrap();
    assert!(first.is_cancelled() && !second.is_cancelled());
    assert_eq!(service.stats().unwrap().n_held, 2);
    second.reply_error(0, "no").unwrap();
    assert_eq!(second.reply_error(0, "no").unwrap_err().kind(), ErrorKind::NotFound);
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn tasks_call_and_serve() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let service = client.service("svc").unwrap().into_async().unwrap();
    let mut caller = client.caller("svc").unwrap().into_async().unwrap();
    let serving = async {
        for _ in 0..20 {
            let request = service.take().await.unwrap();
            let x = request.message().slice::<u64>(0).unwrap()[0];
            let mut answer = request.alloc::<u64>(&[]).unwrap();
            answer[0] = x * x;
            request.reply(answer).unwrap();
        }
    };
    let calling = async {
        let earlier = caller.get_ref().alloc::<u64>(&[]).map(|mut q| {
            q[0] = 100;
            q
        });
        let options = CallOptions::default();
        let earlier = caller.get_ref().begin(earlier.unwrap(), &options).unwrap();
        for i in 0..19 {
            let mut question = caller.get_ref().alloc::<u64>(&[]).unwrap();
            question[0] = i;
            let reply = caller.call(question, &options).await.unwrap();
            assert_eq!(*reply.slice::<u64>(0).unwrap(), [i * i]);
        }
        let result = caller.take().await.unwrap();
        assert_eq!(result.call, earlier);
        assert_eq!(*result.reply.unwrap().slice::<u64>(0).unwrap(), [10_000]);
    };
    let both = async { tokio::join!(serving, calling) };
    tokio::time::timeout(PATIENCE, both).await.unwrap();
}
