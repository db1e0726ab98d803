// SPDX-License-Identifier: Apache-2.0

//! iceoryx2 by its native API, behind the functions of ../peer.h, which say what each of them does.
//!
//! As in its own benchmark of publish-subscribe: ipc::Service, a slice of bytes that is loaned
//! without being initialised, a buffer of one with safe overflow, a receive in a loop. To sleep:
//! its event service with a wait set (--wait listener: a listener alone), as in its example of
//! event based communication. Where nothing may be lost there is no overflow, the publisher retries
//! until the sample is delivered, and the buffer has 256 places (--buffer N: it makes no
//! difference). Calls are in call.rs.

mod call;

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_void, CStr};
use core::ptr;

use call::Call;
use iceoryx2::config::Config;
use iceoryx2::port::backpressure_strategy::BackpressureStrategy;
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::port::update_connections::UpdateConnections;
use iceoryx2::prelude::*;
use iceoryx2::sample::Sample;
use iceoryx2::sample_mut::SampleMut;
use iceoryx2::service::port_factory::{event, publish_subscribe};
use iceoryx2::waitset::WaitSetGuard;

type S = ipc::Service;

#[repr(C)]
pub struct Setup {
    name: *const c_char,
    size: usize,
    out: i32,
    input: i32,
    is_blocking: bool,
    is_lossless: bool,
    is_call: bool,
}

extern "C" {
    fn bm_text(name: *const c_char, fallback: *const c_char) -> *const c_char;
}

enum Wait {
    Spin,
    Listener(Listener<S>),
    WaitSet(
        &'static WaitSet<S>,
        &'static Listener<S>,
        #[allow(dead_code)] WaitSetGuard<'static, 'static, S>,
    ),
}

struct Peer {
    size: usize,
    node: Node<S>,
    call: Option<Call>,
    out_service: Option<publish_subscribe::PortFactory<S, [u8], ()>>,
    publisher: Option<Publisher<S, [u8], ()>>,
    notifier: Option<Notifier<S>>,
    subscriber: Option<Subscriber<S, [u8], ()>>,
    wait: Wait,
    loaned: Option<SampleMut<S, [u8], ()>>,
    taken: Option<Sample<S, [u8], ()>>,
}

struct Holder(UnsafeCell<Option<Peer>>);
unsafe impl Sync for Holder {} // one thread uses it
static PEER: Holder = Holder(UnsafeCell::new(None));

#[allow(clippy::mut_from_ref)]
fn peer() -> &'static mut Peer {
    unsafe { (*PEER.0.get()).as_mut().unwrap_unchecked() }
}

fn text(value: *const c_char) -> &'static str {
    unsafe { CStr::from_ptr(value) }
        .to_str()
        .expect("text is UTF-8")
}

fn option(name: &CStr, fallback: &CStr) -> &'static str {
    text(unsafe { bm_text(name.as_ptr(), fallback.as_ptr()) })
}

fn samples(node: &Node<S>, s: &Setup, channel: i32) -> publish_subscribe::PortFactory<S, [u8], ()> {
    let name = format!("{}/{}", text(s.name), channel);
    node.service_builder(&name.as_str().try_into().expect("a name"))
        .publish_subscribe::<[u8]>()
        .max_publishers(1)
        .max_subscribers(1)
        .history_size(0)
        .subscriber_max_buffer_size(if s.is_lossless {
            option(c"buffer", c"256").parse().expect("a number")
        } else {
            1
        })
        .enable_safe_overflow(!s.is_lossless)
        .open_or_create()
        .expect("a publish-subscribe service")
}

fn events(node: &Node<S>, s: &Setup, channel: i32) -> event::PortFactory<S> {
    let name = format!("{}/{}", text(s.name), channel);
    node.service_builder(&name.as_str().try_into().expect("a name"))
        .event()
        .max_notifiers(1)
        .max_listeners(1)
        .open_or_create()
        .expect("an event service")
}

#[no_mangle]
pub extern "C" fn peer_prepare(_: &Setup) {
    set_log_level(LogLevel::Error);
}

#[no_mangle]
pub extern "C" fn peer_open_out(s: &Setup) {
    // Names and a folder of its own, so that bench/run finds what stays behind, and removes it.
    let mut config = Config::default();
    let prefix = format!("{}_", text(s.name));
    config.global.prefix = FileName::new(prefix.as_bytes()).expect("a prefix");
    config
        .global
        .set_root_path(&Path::new(option(c"folder", c"/tmp").as_bytes()).expect("a folder"));
    let node = NodeBuilder::new()
        .config(&config)
        .create::<S>()
        .expect("a node");
    let call = s.is_call.then(|| {
        assert!(!s.is_blocking, "calls are measured with --mode busy");
        Call::open(&node, text(s.name), s.size, s.input == 0)
    });
    let is_publisher = s.out >= 0 && !s.is_call;
    let out_service = is_publisher.then(|| samples(&node, s, s.out));
    let publisher = out_service.as_ref().map(|service| {
        service
            .publisher_builder()
            .initial_max_slice_len(s.size)
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .create()
            .expect("a publisher")
    });
    let notifier = (is_publisher && s.is_blocking).then(|| {
        events(&node, s, s.out)
            .notifier_builder()
            .create()
            .expect("a notifier")
    });
    let new = Peer {
        size: s.size,
        node,
        call,
        out_service,
        publisher,
        notifier,
        subscriber: None,
        wait: Wait::Spin,
        loaned: None,
        taken: None,
    };
    unsafe { *PEER.0.get() = Some(new) };
}

#[no_mangle]
pub extern "C" fn peer_open_in(s: &Setup) {
    let p = peer();
    if s.input < 0 || s.is_call {
        return;
    }
    p.subscriber = Some(
        samples(&p.node, s, s.input)
            .subscriber_builder()
            .create()
            .expect("a subscriber"),
    );
    if !s.is_blocking {
        return;
    }
    let listener = events(&p.node, s, s.input)
        .listener_builder()
        .create()
        .expect("a listener");
    if option(c"wait", c"waitset") == "listener" {
        p.wait = Wait::Listener(listener);
    } else {
        // They live as long as the process: the guard borrows both.
        let listener: &'static Listener<S> = Box::leak(Box::new(listener));
        let waitset: &'static WaitSet<S> = Box::leak(Box::new(
            WaitSetBuilder::new().create::<S>().expect("a wait set"),
        ));
        let guard = waitset
            .attach_notification(listener)
            .expect("an attachment");
        p.wait = Wait::WaitSet(waitset, listener, guard);
    }
}

#[no_mangle]
pub extern "C" fn peer_connected(_: &Setup) {
    let p = peer();
    if let Some(call) = &p.call {
        call.connected();
    }
    if let Some(service) = &p.out_service {
        while service.dynamic_config().number_of_subscribers() == 0 {
            std::thread::sleep(core::time::Duration::from_millis(1));
        }
    }
    if let Some(publisher) = &p.publisher {
        publisher.update_connections().expect("connections");
    }
}

#[no_mangle]
pub extern "C" fn peer_loan() -> *mut c_void {
    let p = peer();
    if let Some(call) = &mut p.call {
        return call.loan(p.size).cast();
    }
    let publisher = unsafe { p.publisher.as_ref().unwrap_unchecked() };
    let sample = publisher.loan_slice_uninit(p.size).expect("a loan");
    let mut sample = unsafe { sample.assume_init() };
    let place = sample.payload_mut().as_mut_ptr();
    p.loaned = Some(sample);
    place.cast()
}

#[no_mangle]
pub extern "C" fn peer_send() {
    let p = peer();
    if let Some(call) = &mut p.call {
        return call.send();
    }
    let sample = unsafe { p.loaned.take().unwrap_unchecked() };
    sample.send().expect("a send");
    if let Some(notifier) = &p.notifier {
        notifier.notify().expect("a notification");
    }
}

#[no_mangle]
pub extern "C" fn peer_receive() -> *const c_void {
    let p = peer();
    if let Some(call) = &mut p.call {
        return call.receive().cast();
    }
    let subscriber = unsafe { p.subscriber.as_ref().unwrap_unchecked() };
    loop {
        if let Some(sample) = subscriber.receive().expect("a receive") {
            let place = sample.payload().as_ptr();
            p.taken = Some(sample);
            return place.cast();
        }
        match &p.wait {
            Wait::Spin => (),
            Wait::Listener(listener) => {
                listener.blocking_wait(|_| ()).expect("a wait");
            }
            Wait::WaitSet(waitset, listener, _) => {
                waitset
                    .wait_and_process_once(|_| {
                        listener.try_wait(|_| ()).expect("an event");
                        CallbackProgression::Continue
                    })
                    .expect("a wait");
            }
        }
    }
}

#[no_mangle]
pub extern "C" fn peer_release() {
    let p = peer();
    if let Some(call) = &mut p.call {
        return call.release();
    }
    p.taken = None;
}

#[no_mangle]
pub extern "C" fn peer_close() {
    unsafe { ptr::drop_in_place(PEER.0.get()) };
    unsafe { ptr::write(PEER.0.get(), None) };
}

#[no_mangle]
pub extern "C" fn peer_version() -> *const c_char {
    concat!("iceoryx2 ", "0.10.0", "\0").as_ptr().cast()
}
