// SPDX-License-Identifier: Apache-2.0
//! Publishers.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::time::Duration;

use dlpackd_sys as sys;

use crate::client::Client;
use crate::dtype::{DType, Device, Element};
use crate::error::{Error, Rejected, Result, c_string, check};
use crate::event::{Event, next_event};
use crate::set::Set;
use crate::tensor::sealed::Managed;
use crate::tensor::{Loan, ManagedTensor, Outgoing, Tensor};
use crate::time::{to_ns, to_ns_or_default};

/// What a publisher does when a subscriber is too far behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// Drop the oldest message; with groups, block.
    #[default]
    Default,
    /// Wait for reliable subscribers, as long as [`PublishOptions::timeout`] says.
    Block,
    /// Drop the oldest message, and never wait.
    Drop,
    /// Never wait, and fail with [`ErrorKind::Full`](crate::ErrorKind::Full).
    Fail,
}

/// How long the daemon keeps retained messages after their publisher is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetainFor {
    /// Without a limit.
    #[default]
    Forever,
    /// So long.
    Time(Duration),
    /// Not at all: subscriptions get them only while the publisher is there.
    Latched,
}

/// What a publisher offers. 0 and None select the defaults of libdlx.
#[derive(Clone, Debug, Default)]
pub struct PublisherOptions {
    /// How many of the newest messages stay readable for subscriptions that ask for a history.
    pub history: u32,
    /// What to do when a subscriber is too far behind.
    pub on_full: OnFull,
    /// How many messages a subscriber may be behind.
    pub depth: u32,
    /// How many of the newest messages every later subscription gets, also when this publisher is
    /// gone.
    pub retain: u32,
    /// How long, when it is gone.
    pub retain_for: RetainFor,
    /// How many messages one subscriber may hold at once.
    pub max_held: u32,
    /// How many bytes, likewise.
    pub max_held_bytes: u64,
    /// How many subscribers must be attached when a message is published.
    pub min_subscribers: u32,
    /// Groups of workers for which messages are kept, also while there is no worker.
    pub groups: Vec<String>,
    /// How many bytes may wait for reliable subscribers and groups.
    pub max_queued_bytes: u64,
}

/// How to publish a message.
#[derive(Clone, Debug, Default)]
pub struct PublishOptions {
    /// Longest wait for reliable subscribers, and for `min_subscribers`; None: none.
    pub timeout: Option<Duration>,
    /// The time of publication, CLOCK_MONOTONIC; None: now.
    pub monotonic_ns: Option<u64>,
    /// Fail with [`ErrorKind::WouldCopy`](crate::ErrorKind::WouldCopy) instead of copying.
    pub strict: bool,
    /// Copy tensors on a GPU that cannot be passed on, instead of failing.
    pub stage: bool,
}

impl PublishOptions {
    pub(crate) fn to_c(&self, share: bool) -> sys::dlx_publish_args {
        sys::dlx_publish_args {
            size: size_of::<sys::dlx_publish_args>(),
            timeout_ns: to_ns_or_default(self.timeout),
            monotonic_ns: self.monotonic_ns.unwrap_or(0),
            strict: self.strict,
            share,
            stage: self.stage,
            ..Default::default()
        }
    }
}

/// What publishing did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Number of the message, 1 for the publisher's first.
    pub seq: u64,
    /// Bytes of payload that were copied into shared memory.
    pub copied_bytes: u64,
    /// Tensors that were copied.
    pub n_copied: u32,
    /// Subscriptions that the message was published to.
    pub n_subscribers: u32,
}

impl Report {
    pub(crate) fn from_c(c: &sys::dlx_publish_report) -> Report {
        Report {
            seq: c.seq,
            copied_bytes: c.copied_bytes,
            n_copied: c.n_copied,
            n_subscribers: c.n_subscribers,
        }
    }
}

pub(crate) fn report() -> sys::dlx_publish_report {
    sys::dlx_publish_report { size: size_of::<sys::dlx_publish_report>(), ..Default::default() }
}

/// Counters of a publisher, as in C.
pub type PublisherStats = sys::dlx_publisher_stats;

/// Borrows the shape.
#[inline]
fn spec_of(dtype: DType, shape: &[usize], device: Device) -> sys::dlx_tensor_spec {
    sys::dlx_tensor_spec {
        size: size_of::<sys::dlx_tensor_spec>(),
        dtype: dtype.to_c(),
        ndim: i32::try_from(shape.len()).unwrap_or(i32::MAX),
        // a size of 2^63 or more is negative there, and refused
        shape: shape.as_ptr().cast(),
        device: sys::DLDevice { device_type: device.kind, device_id: device.id },
    }
}

/// What libdlx allocates with: each kind of object has such a function.
#[inline]
pub(crate) fn alloc_tensor(
    dtype: DType,
    shape: &[usize],
    device: Device,
    alloc: impl FnOnce(
        &sys::dlx_tensor_spec,
        &mut *mut sys::DLManagedTensorVersioned,
    ) -> std::ffi::c_int,
) -> Result<ManagedTensor> {
    let mut tensor = ptr::null_mut();
    check(alloc(&spec_of(dtype, shape, device), &mut tensor))?;
    // SAFETY: a tensor of libdlx that belongs to the caller.
    Ok(unsafe { ManagedTensor::from_raw(tensor) })
}

/// A publisher of a topic. One thread at a time may use it, and it may move between threads.
#[derive(Debug)]
pub struct Publisher(NonNull<sys::dlx_publisher>);

// SAFETY: "One thread at a time may use a publisher" (dlx.h): it may be another one each time. So
// it is not Sync.
unsafe impl Send for Publisher {}

impl Publisher {
    pub(crate) fn new(
        client: &Client,
        topic: &str,
        options: &PublisherOptions,
    ) -> Result<Publisher> {
        let topic = c_string(topic)?;
        let groups =
            options.groups.iter().map(|group| c_string(group)).collect::<Result<Vec<_>>>()?;
        let groups: Vec<_> = groups.iter().map(|group| group.as_ptr()).collect();
        let args = sys::dlx_publisher_args {
            size: size_of::<sys::dlx_publisher_args>(),
            history: options.history,
            on_full: match options.on_full {
                OnFull::Default => sys::DLX_ON_FULL_DEFAULT,
                OnFull::Block => sys::DLX_ON_FULL_BLOCK,
                OnFull::Drop => sys::DLX_ON_FULL_DROP,
                OnFull::Fail => sys::DLX_ON_FULL_FAIL,
            },
            depth: options.depth,
            retain: options.retain,
            retain_for_ns: match options.retain_for {
                RetainFor::Forever => 0,
                RetainFor::Time(time) => to_ns_or_default(Some(time)),
                RetainFor::Latched => sys::DLX_RETAIN_LATCHED,
            },
            max_held: options.max_held,
            max_held_bytes: options.max_held_bytes,
            min_subscribers: options.min_subscribers,
            groups: if groups.is_empty() { ptr::null() } else { groups.as_ptr() },
            n_groups: groups.len() as u32,
            max_queued_bytes: options.max_queued_bytes,
        };
        let mut publisher = ptr::null_mut();
        // SAFETY: the arguments are valid for the call.
        check(unsafe {
            sys::dlx_publisher_new(client.as_raw(), topic.as_ptr(), &args, &mut publisher)
        })?;
        Ok(Publisher(NonNull::new(publisher).expect("a publisher")))
    }

    #[inline]
    pub(crate) fn as_raw(&self) -> *mut sys::dlx_publisher {
        self.0.as_ptr()
    }

    /// Allocates a row-major tensor in shared memory, so that publishing it copies nothing. The
    /// publisher need not live as long. An empty shape is that of a scalar.
    pub fn alloc<T: Element>(&self, shape: &[usize]) -> Result<Loan<T>> {
        Ok(Loan::allocated(self.alloc_managed(T::DTYPE, shape, Device::CPU)?, shape))
    }

    /// Allocates a tensor of any type, whose bytes the loan has.
    pub fn alloc_bytes(&self, dtype: DType, shape: &[usize]) -> Result<Loan<u8>> {
        Loan::of_bytes(self.alloc_managed(dtype, shape, Device::CPU)?)
    }

    /// Allocates a tensor of any type on any device: other code fills it.
    #[inline]
    pub fn alloc_managed(
        &self,
        dtype: DType,
        shape: &[usize],
        device: Device,
    ) -> Result<ManagedTensor> {
        alloc_tensor(dtype, shape, device, |spec, tensor| {
            // SAFETY: the arguments are valid for the call.
            unsafe { sys::dlx_alloc(self.as_raw(), spec, tensor) }
        })
    }

    /// Allocates tensors of any types, all or none, whose bytes the loans have. If memory has to be
    /// added, it is added for all of them at once.
    pub fn alloc_set(&self, specs: &[(DType, &[usize])]) -> Result<Vec<Loan<u8>>> {
        let specs: Vec<_> =
            specs.iter().map(|&(dtype, shape)| spec_of(dtype, shape, Device::CPU)).collect();
        let mut tensors = vec![ptr::null_mut(); specs.len()];
        let n = u32::try_from(specs.len()).unwrap_or(u32::MAX);
        // SAFETY: there are so many specs, and there is room for so many tensors.
        check(unsafe {
            sys::dlx_alloc_set(self.as_raw(), specs.as_ptr(), n, tensors.as_mut_ptr())
        })?;
        // SAFETY: tensors of libdlx that belong to the caller.
        let tensors = tensors.into_iter().map(|t| unsafe { ManagedTensor::from_raw(t) });
        tensors.collect::<Vec<_>>().into_iter().map(Loan::of_bytes).collect()
    }

    /// Publishes a tensor as one message. A loan of this publisher is passed on without a copy, any
    /// other tensor of the CPU is copied once. On failure the tensor comes back.
    ///
    /// This is the quickest way to publish. [`publish_with`](Publisher::publish_with) tells what it
    /// did.
    pub fn publish<T: Outgoing>(&self, tensor: T) -> Result<(), Rejected<T>> {
        // SAFETY: the tensor is the caller's, and forgotten once the library has it.
        let code = unsafe {
            let raw = tensor.managed().as_raw();
            sys::dlx_publish(self.as_raw(), raw, ptr::null(), ptr::null_mut())
        };
        settle(check(code), tensor)
    }

    /// Publishes a tensor with these options.
    pub fn publish_with<T: Outgoing>(
        &self,
        tensor: T,
        options: &PublishOptions,
    ) -> Result<Report, Rejected<T>> {
        settle(self.publish_raw(tensor.managed(), &options.to_c(false)), tensor)
    }

    /// Publishes tensors as one message each, in this order. It costs less than to publish each. On
    /// failure those come back that were not published. The report is that of the last message, but
    /// counts what was copied of all; the timeout is for all of them.
    pub fn publish_many<T: Outgoing>(
        &self,
        mut tensors: Vec<T>,
        options: &PublishOptions,
    ) -> Result<Report, Rejected<Vec<T>>> {
        let (args, mut report, mut n_published) = (options.to_c(false), report(), 0);
        let raw: Vec<_> = tensors.iter().map(|tensor| tensor.managed().as_raw()).collect();
        let n = u32::try_from(raw.len()).unwrap_or(u32::MAX);
        // SAFETY: there are so many tensors. They are the caller's, and those are forgotten that
        // the library has.
        let code = unsafe {
            sys::dlx_publish_n(self.as_raw(), raw.as_ptr(), n, &args, &mut report, &mut n_published)
        };
        let result = check(code);
        let rest = tensors.split_off(n_published as usize);
        tensors.into_iter().for_each(std::mem::forget);
        match result {
            Ok(()) => Ok(Report::from_c(&report)),
            Err(error) => Err(Rejected { error, value: rest }),
        }
    }

    /// Publishes a tensor that the caller keeps, and may publish again. One that was allocated by
    /// this publisher ([`Loan::freeze`]) is not copied; its memory is free when neither the caller
    /// nor a message needs it. libdlx marks the tensor read-only, so no other thread may look at it
    /// meanwhile: `&mut`.
    pub fn publish_shared<T>(
        &self,
        tensor: &mut Tensor<T>,
        options: &PublishOptions,
    ) -> Result<Report> {
        self.publish_raw(tensor.managed(), &options.to_c(true))
    }

    /// Copies elements into shared memory and publishes them.
    pub fn publish_slice<T: Element>(&self, elements: &[T], shape: &[usize]) -> Result<()> {
        let mut loan = self.alloc(shape)?;
        if loan.len() != elements.len() {
            return Err(Error::new(
                sys::DLX_E_SHAPE,
                format!(
                    "the shape {shape:?} is of {} elements, not of {}",
                    loan.len(),
                    elements.len()
                ),
            ));
        }
        loan.copy_from_slice(elements);
        Ok(self.publish(loan)?)
    }

    /// Publishes several tensors and metadata as one message: a subscriber gets all of it or
    /// nothing. On failure the set comes back.
    pub fn publish_set(&self, set: impl Into<Set>) -> Result<Report, Rejected<Set>> {
        self.publish_set_with(set, &PublishOptions::default())
    }

    /// Publishes a set with these options.
    pub fn publish_set_with(
        &self,
        set: impl Into<Set>,
        options: &PublishOptions,
    ) -> Result<Report, Rejected<Set>> {
        let (set, args, mut report) = (set.into(), options.to_c(false), report());
        let result = set.with_items(|items, n, meta| {
            // SAFETY: the arguments are valid for the call.
            check(unsafe {
                sys::dlx_publish_set(self.as_raw(), items, n, meta, &args, &mut report)
            })
        });
        match result {
            Ok(()) => {
                set.forget();
                Ok(Report::from_c(&report))
            }
            Err(error) => Err(Rejected { error, value: set }),
        }
    }

    fn publish_raw(&self, tensor: &ManagedTensor, args: &sys::dlx_publish_args) -> Result<Report> {
        let mut report = report();
        // SAFETY: the arguments are valid for the call. The callers keep the rule of ownership.
        check(unsafe { sys::dlx_publish(self.as_raw(), tensor.as_raw(), args, &mut report) })?;
        Ok(Report::from_c(&report))
    }

    /// Waits until so many subscribers are attached. It also reconnects to a restarted daemon: an
    /// idle publisher calls `wait(0, Duration::ZERO)` now and then.
    pub fn wait(&self, n_subscribers: u32, timeout: Duration) -> Result<()> {
        // SAFETY: this owns the publisher.
        check(unsafe { sys::dlx_publisher_wait(self.as_raw(), n_subscribers, to_ns(timeout)) })
    }

    /// Its id, as [`Message::publisher`](crate::Message::publisher) has it. It has another one once
    /// it has reconnected to a daemon: [`EventKind::Reconnected`](crate::EventKind) tells it.
    pub fn id(&self) -> u64 {
        // SAFETY: this owns the publisher.
        unsafe { sys::dlx_publisher_id(self.as_raw()) }
    }

    /// The next event, in the order in which the publisher noticed them; None: there is none.
    pub fn next_event(&self) -> Result<Option<Event>> {
        // SAFETY: the arguments are valid for the call.
        next_event(|event| unsafe { sys::dlx_publisher_next_event(self.as_raw(), event) })
    }

    /// The counters.
    pub fn stats(&self) -> Result<PublisherStats> {
        let mut stats = PublisherStats { size: size_of::<PublisherStats>(), ..Default::default() };
        // SAFETY: the arguments are valid for the call.
        check(unsafe { sys::dlx_publisher_get_stats(self.as_raw(), &mut stats) })?;
        Ok(stats)
    }

    /// A descriptor for poll(2) and the like: publish without a timeout until that fails with
    /// [`ErrorKind::Full`](crate::ErrorKind::Full) or
    /// [`ErrorKind::Timeout`](crate::ErrorKind::Timeout), then poll it for reading. It is for
    /// nothing else. To ask for it costs later calls something, so this is no `AsFd` of the
    /// publisher itself.
    pub fn poll_fd(&self) -> Result<BorrowedFd<'_>> {
        // SAFETY: this owns the publisher.
        borrow_fd(unsafe { sys::dlx_publisher_fd(self.as_raw()) })
    }
}

/// Forgets a tensor that the library has taken over, or gives it back.
fn settle<T: Outgoing, R>(result: Result<R>, tensor: T) -> Result<R, Rejected<T>> {
    match result {
        Ok(report) => {
            std::mem::forget(tensor);
            Ok(report)
        }
        Err(error) => Err(Rejected { error, value: tensor }),
    }
}

/// Lends a descriptor of an object of libdlx.
pub(crate) fn borrow_fd<'a>(fd: std::ffi::c_int) -> Result<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(Error::last(fd));
    }
    // SAFETY: it is open as long as its object, which the caller's signature borrows.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // SAFETY: this owns it.
        unsafe { sys::dlx_publisher_unref(self.as_raw()) };
    }
}
