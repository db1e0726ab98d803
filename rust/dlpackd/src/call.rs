// SPDX-License-Identifier: Apache-2.0
//! Calls: tensors go to one of many workers, and its answer comes back.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::time::Duration;

use dlpackd_sys as sys;

use crate::client::Client;
use crate::dtype::{Device, Element};
use crate::error::{Error, ErrorKind, Rejected, Result, c_string, check};
use crate::message::Message;
use crate::publisher::{PublishOptions, alloc_tensor, borrow_fd};
use crate::set::Set;
use crate::subscription::Spin;
use crate::tensor::Loan;
use crate::time::{to_ns, to_ns_or_default};

/// What a caller may do. 0 selects the defaults of libdlx.
#[derive(Clone, Debug, Default)]
pub struct CallerOptions {
    /// How many calls may be in flight.
    pub max_in_flight: u32,
    /// How long a wait for a reply is busy.
    pub spin: Spin,
}

/// How to make a call.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    /// Time for the whole call, which travels with the request; None: without a limit.
    pub timeout: Option<Duration>,
    /// The request may be carried out more than once: if its worker dies, another one gets it.
    pub idempotent: bool,
    /// Fail with [`ErrorKind::WouldCopy`] instead of copying a tensor.
    pub strict: bool,
}

/// A failed call.
pub struct CallError {
    /// Why: [`ErrorKind::CallFailed`] has the words of the worker.
    pub error: Error,
    /// What the worker gave to [`Request::reply_error`]; 0: nothing.
    pub worker_code: i32,
    /// The request, if it was not sent.
    pub unsent: Option<Set>,
}

impl CallError {
    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }
}

impl From<CallError> for Error {
    fn from(failed: CallError) -> Error {
        failed.error
    }
}

impl fmt::Debug for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for CallError {}

/// A call that is in flight, or was. A caller gives a number to one call only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(u64);

/// How a call ended.
#[derive(Debug)]
pub struct CallResult {
    /// Which call.
    pub call: CallId,
    /// Process of its worker, as the daemon sees it; 0: unknown.
    pub worker_pid: u32,
    /// The reply, or why there is none.
    pub reply: Result<Message, CallError>,
}

/// Counters of a caller, as in C.
pub type CallerStats = sys::dlx_caller_stats;

/// Sends requests to a service. One thread at a time may use it, and it may move between threads.
///
/// ```
/// # fn main() -> dlx::Result<()> {
/// # let client = dlx::Client::connect()?;
/// let service = client.service("svc/double")?;
/// std::thread::spawn(move || -> dlx::Result<()> {
///     let request = service.take()?;
///     let given = request.message();
///     let given = given.slice::<f32>(0)?;
///     let mut answer = request.alloc::<f32>(&[given.len()])?;
///     answer.iter_mut().zip(given).for_each(|(a, g)| *a = 2.0 * g);
///     Ok(request.reply(answer)?)
/// });
///
/// let caller = client.caller("svc/double")?;
/// let mut question = caller.alloc::<f32>(&[2])?;
/// question.copy_from_slice(&[1.0, 1.5]);
/// let reply = caller.call(question)?;
/// assert_eq!(reply.slice::<f32>(0)?, [2.0, 3.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Caller(NonNull<sys::dlx_caller>);

// SAFETY: "One thread at a time may use a caller" (call.h): it may be another one each time. So it
// is not Sync.
unsafe impl Send for Caller {}

impl Client {
    /// Makes a caller of the service on a topic, which need not exist yet.
    pub fn caller(&self, topic: &str) -> Result<Caller> {
        self.caller_with(topic, &CallerOptions::default())
    }

    /// Makes a caller with these options.
    pub fn caller_with(&self, topic: &str, options: &CallerOptions) -> Result<Caller> {
        let topic = c_string(topic)?;
        let args = sys::dlx_caller_args {
            size: size_of::<sys::dlx_caller_args>(),
            max_in_flight: options.max_in_flight,
            spin_ns: options.spin.to_ns(),
        };
        let mut caller = ptr::null_mut();
        // SAFETY: the arguments are valid for the call.
        check(unsafe { sys::dlx_caller_new(self.as_raw(), topic.as_ptr(), &args, &mut caller) })?;
        Ok(Caller(NonNull::new(caller).expect("a caller")))
    }

    /// Begins to serve a topic, which may be a pattern, as one of its workers.
    pub fn service(&self, topic: &str) -> Result<Service> {
        self.service_with(topic, &ServiceOptions::default())
    }

    /// Begins to serve with these options.
    pub fn service_with(&self, topic: &str, options: &ServiceOptions) -> Result<Service> {
        let topic = c_string(topic)?;
        let args = sys::dlx_service_args {
            size: size_of::<sys::dlx_service_args>(),
            max_held: options.max_held,
            spin_ns: options.spin.to_ns(),
        };
        let mut service = ptr::null_mut();
        // SAFETY: the arguments are valid for the call.
        check(unsafe { sys::dlx_service_new(self.as_raw(), topic.as_ptr(), &args, &mut service) })?;
        Ok(Service(NonNull::new(service).expect("a service")))
    }
}

impl Caller {
    fn as_raw(&self) -> *mut sys::dlx_caller {
        self.0.as_ptr()
    }

    /// Waits until somebody serves.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        // SAFETY: this owns the caller, here and below.
        check(unsafe { sys::dlx_caller_wait(self.as_raw(), to_ns(timeout)) })
    }

    /// Allocates a tensor for a request, as [`Publisher::alloc`](crate::Publisher::alloc) does.
    pub fn alloc<T: Element>(&self, shape: &[usize]) -> Result<Loan<T>> {
        let tensor = alloc_tensor(T::DTYPE, shape, Device::CPU, |spec, tensor| {
            // SAFETY: the arguments are valid for the call.
            unsafe { sys::dlx_caller_alloc(self.as_raw(), spec, tensor) }
        })?;
        Ok(Loan::allocated(tensor, shape))
    }

    /// Sends a request, a tensor or a set, and waits for its reply.
    pub fn call(&self, request: impl Into<Set>) -> Result<Message, CallError> {
        self.call_with(request, &CallOptions::default())
    }

    /// Makes a call with these options.
    pub fn call_with(
        &self,
        request: impl Into<Set>,
        options: &CallOptions,
    ) -> Result<Message, CallError> {
        let (request, mut reply, mut sent) = (request.into(), ptr::null_mut(), false);
        let result = request.with_call(options, |items, n, args| {
            // SAFETY: the arguments are valid for the call.
            check(unsafe { sys::dlx_call(self.as_raw(), items, n, args, &mut reply, &mut sent) })
        });
        let unsent = if sent {
            request.forget();
            None
        } else {
            Some(request)
        };
        match result {
            // SAFETY: a message of libdlx that belongs to the caller.
            Ok(()) => Ok(unsafe { Message::from_raw(reply) }),
            Err(error) => Err(CallError { worker_code: self.worker_code(&error), error, unsent }),
        }
    }

    fn worker_code(&self, error: &Error) -> i32 {
        if error.kind() == ErrorKind::CallFailed {
            // SAFETY: this owns the caller.
            unsafe { sys::dlx_caller_worker_code(self.as_raw()) }
        } else {
            0
        }
    }

    /// Sends a request, and does not wait: [`take`](Caller::take) tells the result.
    pub fn begin(
        &self,
        request: impl Into<Set>,
        options: &CallOptions,
    ) -> Result<CallId, Rejected<Set>> {
        let (request, mut call) = (request.into(), 0);
        let result = request.with_call(options, |items, n, args| {
            // SAFETY: the arguments are valid for the call.
            check(unsafe { sys::dlx_call_begin(self.as_raw(), items, n, args, &mut call) })
        });
        match result {
            Ok(()) => {
                request.forget();
                Ok(CallId(call))
            }
            Err(error) => Err(Rejected { error, value: request }),
        }
    }

    fn take_ns(&self, timeout_ns: i64) -> std::result::Result<CallResult, c_int> {
        let mut result =
            sys::dlx_call_result { size: size_of::<sys::dlx_call_result>(), ..Default::default() };
        // SAFETY: the arguments are valid for the call.
        match unsafe { sys::dlx_call_take(self.as_raw(), timeout_ns, &mut result) } {
            sys::DLX_OK => {}
            code => return Err(code),
        }
        let reply = if result.code == sys::DLX_OK {
            // SAFETY: a message of libdlx that belongs to the caller.
            Ok(unsafe { Message::from_raw(result.reply) })
        } else {
            // SAFETY: of a failed call it is a text, valid until the next call on this caller.
            let text = unsafe { CStr::from_ptr(result.text) }.to_string_lossy();
            let error = Error::new(result.code, text);
            Err(CallError { error, worker_code: result.worker_code, unsent: None })
        };
        Ok(CallResult { call: CallId(result.call), worker_pid: result.worker_pid, reply })
    }

    /// Takes the result of a call that has ended, in the order in which they ended. Fails with
    /// [`ErrorKind::NotFound`] if none is in flight.
    pub fn take(&self) -> Result<CallResult> {
        self.take_ns(sys::DLX_FOREVER).map_err(Error::last)
    }

    /// The same; fails with [`ErrorKind::Timeout`] if none has ended in time.
    pub fn take_timeout(&self, timeout: Duration) -> Result<CallResult> {
        match self.take_ns(to_ns(timeout)) {
            Ok(result) => Ok(result),
            Err(code) => Err(Error::last(code)),
        }
    }

    /// Takes the result of a call if one has ended.
    pub fn try_take(&self) -> Result<Option<CallResult>> {
        match self.take_ns(0) {
            Ok(result) => Ok(Some(result)),
            Err(sys::DLX_E_EMPTY) => Ok(None),
            Err(code) => Err(Error::last(code)),
        }
    }

    /// Gives up a call: its result will not be told.
    pub fn cancel(&self, call: CallId) -> Result<()> {
        // SAFETY: this owns the caller.
        check(unsafe { sys::dlx_call_cancel(self.as_raw(), call.0) })
    }

    /// A descriptor for poll(2) and the like: take until there is no result, then poll it for
    /// reading. It is for nothing else.
    pub fn poll_fd(&self) -> Result<BorrowedFd<'_>> {
        // SAFETY: this owns the caller.
        borrow_fd(unsafe { sys::dlx_caller_fd(self.as_raw()) })
    }

    /// The counters.
    pub fn stats(&self) -> Result<CallerStats> {
        let mut stats = CallerStats { size: size_of::<CallerStats>(), ..Default::default() };
        // SAFETY: the arguments are valid for the call.
        check(unsafe { sys::dlx_caller_get_stats(self.as_raw(), &mut stats) })?;
        Ok(stats)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        // SAFETY: this owns it.
        unsafe { sys::dlx_caller_unref(self.as_raw()) };
    }
}

impl Set {
    fn with_call<R>(
        &self,
        options: &CallOptions,
        f: impl FnOnce(*const sys::dlx_item, u32, *const sys::dlx_call_args) -> Result<R>,
    ) -> Result<R> {
        let publish = PublishOptions { strict: options.strict, ..Default::default() }.to_c(false);
        self.with_items(|items, n, meta| {
            let args = sys::dlx_call_args {
                size: size_of::<sys::dlx_call_args>(),
                timeout_ns: to_ns_or_default(options.timeout),
                idempotent: options.idempotent,
                meta,
                publish: &publish,
            };
            f(items, n, &args)
        })
    }
}

/// How a worker serves. 0 selects the defaults of libdlx.
#[derive(Clone, Debug, Default)]
pub struct ServiceOptions {
    /// How many requests this worker may have at once.
    pub max_held: u32,
    /// How long a wait for a request is busy.
    pub spin: Spin,
}

/// Counters of a service, as in C.
pub type ServiceStats = sys::dlx_service_stats;

/// A worker of a service. One thread at a time may use it together with its requests: it may move
/// between threads while none of them is there, which borrow it.
///
/// ```compile_fail
/// fn is_sync<T: Sync>() {}
/// is_sync::<dlx::Service>();
/// ```
/// ```compile_fail
/// fn is_send<T: Send>() {}
/// is_send::<dlx::Request>();
/// ```
#[derive(Debug)]
pub struct Service(NonNull<sys::dlx_service>);

// SAFETY: "One thread at a time may use a caller. The same holds for a service together with its
// requests" (call.h): requests borrow the service and are not Send.
unsafe impl Send for Service {}

impl Service {
    fn as_raw(&self) -> *mut sys::dlx_service {
        self.0.as_ptr()
    }

    fn take_ns(&self, timeout_ns: i64) -> std::result::Result<Request<'_>, c_int> {
        let mut request = ptr::null_mut();
        // SAFETY: the arguments are valid for the call.
        match unsafe { sys::dlx_service_take(self.as_raw(), timeout_ns, &mut request) } {
            sys::DLX_OK => Ok(Request {
                request: NonNull::new(request).expect("a request"),
                service: PhantomData,
            }),
            code => Err(code),
        }
    }

    /// Takes the next request; waits for it without a limit.
    pub fn take(&self) -> Result<Request<'_>> {
        self.take_ns(sys::DLX_FOREVER).map_err(Error::last)
    }

    /// The same; fails with [`ErrorKind::Timeout`] if none comes in time.
    pub fn take_timeout(&self, timeout: Duration) -> Result<Request<'_>> {
        match self.take_ns(to_ns(timeout)) {
            Ok(request) => Ok(request),
            Err(code) => Err(Error::last(code)),
        }
    }

    /// Takes the next request if there is one.
    pub fn try_take(&self) -> Result<Option<Request<'_>>> {
        match self.take_ns(0) {
            Ok(request) => Ok(Some(request)),
            Err(sys::DLX_E_EMPTY) => Ok(None),
            Err(code) => Err(Error::last(code)),
        }
    }

    /// A descriptor for poll(2) and the like: take until there is no request, then poll it for
    /// reading. It is for nothing else.
    pub fn poll_fd(&self) -> Result<BorrowedFd<'_>> {
        // SAFETY: this owns the service.
        borrow_fd(unsafe { sys::dlx_service_fd(self.as_raw()) })
    }

    /// The counters.
    pub fn stats(&self) -> Result<ServiceStats> {
        let mut stats = ServiceStats { size: size_of::<ServiceStats>(), ..Default::default() };
        // SAFETY: the arguments are valid for the call.
        check(unsafe { sys::dlx_service_get_stats(self.as_raw(), &mut stats) })?;
        Ok(stats)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // SAFETY: this owns it.
        unsafe { sys::dlx_service_unref(self.as_raw()) };
    }
}

/// A request of a caller. One that is dropped without an answer fails there.
#[derive(Debug)]
pub struct Request<'a> {
    request: NonNull<sys::dlx_request>,
    service: PhantomData<&'a Service>,
}

impl Request<'_> {
    fn as_raw(&self) -> *mut sys::dlx_request {
        self.request.as_ptr()
    }

    /// The message with the tensors and metadata that the caller gave. It may outlive the request.
    pub fn message(&self) -> Message {
        // SAFETY: the request lends its message; the result is one more reference to it.
        unsafe { Message::from_raw(sys::dlx_message_ref(sys::dlx_request_message(self.as_raw()))) }
    }

    /// When its time is over: nanoseconds of CLOCK_MONOTONIC; None: never.
    pub fn deadline_ns(&self) -> Option<u64> {
        // SAFETY: this owns the request, here and below.
        let deadline = unsafe { sys::dlx_request_deadline_ns(self.as_raw()) };
        (deadline != u64::MAX).then_some(deadline)
    }

    /// Has the caller given up?
    pub fn is_cancelled(&self) -> bool {
        // SAFETY: this owns the request.
        unsafe { sys::dlx_request_cancelled(self.as_raw()) }
    }

    /// Allocates a tensor for the reply.
    pub fn alloc<T: Element>(&self, shape: &[usize]) -> Result<Loan<T>> {
        let tensor = alloc_tensor(T::DTYPE, shape, Device::CPU, |spec, tensor| {
            // SAFETY: the arguments are valid for the call.
            unsafe { sys::dlx_request_alloc(self.as_raw(), spec, tensor) }
        })?;
        Ok(Loan::allocated(tensor, shape))
    }

    /// Answers with a tensor or a set. It never waits. A request is answered once.
    pub fn reply(&self, reply: impl Into<Set>) -> Result<(), Rejected<Set>> {
        let reply = reply.into();
        let result = reply.with_items(|items, n, meta| {
            let args = sys::dlx_reply_args {
                size: size_of::<sys::dlx_reply_args>(),
                meta,
                publish: ptr::null(),
            };
            // SAFETY: the arguments are valid for the call.
            check(unsafe { sys::dlx_reply(self.as_raw(), items, n, &args) })
        });
        match result {
            Ok(()) => {
                reply.forget();
                Ok(())
            }
            Err(error) => Err(Rejected { error, value: reply }),
        }
    }

    /// Answers with an error: the call fails with [`ErrorKind::CallFailed`], this code and this
    /// text.
    pub fn reply_error(&self, code: i32, text: &str) -> Result<()> {
        let text = c_string(text)?;
        // SAFETY: the arguments are valid for the call.
        check(unsafe { sys::dlx_reply_error(self.as_raw(), code, text.as_ptr()) })
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        // SAFETY: this owns it.
        unsafe { sys::dlx_request_unref(self.as_raw()) };
    }
}
