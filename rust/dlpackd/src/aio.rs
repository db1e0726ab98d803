// SPDX-License-Identifier: Apache-2.0
//! Publishers and subscriptions in tokio: feature `tokio`. Tasks wait for descriptors, without a
//! thread. The runtime needs its I/O driver (`enable_io`).

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use dlpackd_sys as sys;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::yield_now;

use crate::call::{CallError, CallOptions, CallResult, Caller, Request, Service};
use crate::error::{Error, ErrorKind, Rejected, Result};
use crate::message::Message;
use crate::publisher::Publisher;
use crate::set::Set;
use crate::subscription::Subscription;
use crate::tensor::Outgoing;

/// A descriptor of libdlx. It is released before its object is.
#[derive(Debug)]
struct Polled(RawFd);

impl AsRawFd for Polled {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

/// What a task waits for.
#[derive(Debug)]
pub(crate) struct Waiter(AsyncFd<Polled>);

impl Waiter {
    pub(crate) fn new(fd: BorrowedFd<'_>) -> Result<Waiter> {
        let fd = Polled(fd.as_raw_fd());
        // SAFETY: an object of libdlx has one descriptor, and is dropped after this is.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        fd.map(Waiter).map_err(|e| io_error(&e.into()))
    }

    /// Tries until there is a result; `attempt` never waits. When the task is cancelled, nothing is
    /// lost: a result is returned at once.
    pub(crate) async fn until<T>(
        &self,
        mut attempt: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        loop {
            if let Some(result) = attempt()? {
                return Ok(result);
            }
            // tokio hears only of changes: what has been readable since before is looked at here
            if self.is_readable() {
                yield_now().await;
                continue;
            }
            self.0.readable().await.map_err(|e| io_error(&e))?.clear_ready();
        }
    }

    fn is_readable(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, valid for the call, which does not wait.
        unsafe { libc::poll(&mut poll, 1, 0) > 0 }
    }
}

fn io_error(e: &std::io::Error) -> Error {
    Error::new(sys::DLX_E_SYSTEM, format!("tokio cannot wait for a descriptor of libdlx: {e}"))
}

/// A subscription whose messages are awaited.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> dlx::Result<()> {
/// let client = dlx::Client::connect()?;
/// let mut subscription = client.subscribe("lidar")?.into_async()?;
/// client.publisher("lidar")?.publish_slice(&[1.0_f32], &[1])?;
/// while let Some(message) = subscription.next().await {
///     println!("{:?}", message?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncSubscription {
    waiter: Waiter,
    subscription: Subscription,
}

impl Subscription {
    /// Lets tasks await its messages.
    pub fn into_async(self) -> Result<AsyncSubscription> {
        Ok(AsyncSubscription { waiter: Waiter::new(self.poll_fd()?)?, subscription: self })
    }
}

impl AsyncSubscription {
    /// Takes the next message. Nothing is lost if the task is cancelled.
    pub async fn take(&mut self) -> Result<Message> {
        let subscription = &mut self.subscription;
        self.waiter.until(move || subscription.try_take()).await
    }

    /// Does as [`take`](Self::take), and returns None when the publishers have left.
    pub async fn next(&mut self) -> Option<Result<Message>> {
        match self.take().await {
            Err(e) if e.kind() == ErrorKind::PublisherGone => None,
            result => Some(result),
        }
    }

    /// The subscription, for what is not awaited.
    pub fn get_ref(&self) -> &Subscription {
        &self.subscription
    }

    /// The subscription alone again.
    pub fn into_inner(self) -> Subscription {
        self.subscription
    }
}

/// A publisher that awaits room for reliable subscribers and groups.
#[derive(Debug)]
pub struct AsyncPublisher {
    waiter: Waiter,
    publisher: Publisher,
}

impl Publisher {
    /// Lets tasks await room. With groups, [`OnFull::Fail`](crate::OnFull::Fail) belongs to it: the
    /// default would wait without the task.
    pub fn into_async(self) -> Result<AsyncPublisher> {
        Ok(AsyncPublisher { waiter: Waiter::new(self.poll_fd()?)?, publisher: self })
    }
}

impl AsyncPublisher {
    /// Publishes a tensor when there is room. If the task is cancelled before, the tensor is
    /// released.
    pub async fn publish<T: Outgoing>(&mut self, tensor: T) -> Result<(), Rejected<T>> {
        let (publisher, mut left) = (&mut self.publisher, Some(tensor));
        let kept = &mut left;
        let result = self
            .waiter
            .until(move || {
                let Some(tensor) = kept.take() else { return Ok(None) };
                match publisher.publish(tensor) {
                    Ok(()) => Ok(Some(())),
                    Err(Rejected { error, value }) => {
                        *kept = Some(value);
                        let waits = matches!(error.kind(), ErrorKind::Full | ErrorKind::Timeout);
                        if waits { Ok(None) } else { Err(error) }
                    }
                }
            })
            .await;
        result.map_err(|error| Rejected { error, value: left.expect("what was not published") })
    }

    /// Waits until so many subscribers are attached.
    pub async fn wait(&mut self, n_subscribers: u32) -> Result<()> {
        let publisher = &mut self.publisher;
        self.waiter
            .until(move || match publisher.wait(n_subscribers, std::time::Duration::ZERO) {
                Ok(()) => Ok(Some(())),
                Err(e) if e.kind() == ErrorKind::Timeout => Ok(None),
                Err(e) => Err(e),
            })
            .await
    }

    /// Waits until every declared group has done all that was published before.
    pub async fn drain(&mut self) -> Result<()> {
        let publisher = &mut self.publisher;
        self.waiter
            .until(move || match publisher.drain(std::time::Duration::ZERO) {
                Ok(()) => Ok(Some(())),
                Err(e) if e.kind() == ErrorKind::Timeout => Ok(None),
                Err(e) => Err(e),
            })
            .await
    }

    /// The publisher, for what is not awaited.
    pub fn get_ref(&self) -> &Publisher {
        &self.publisher
    }

    /// The publisher alone again.
    pub fn into_inner(self) -> Publisher {
        self.publisher
    }
}

/// A caller whose results are awaited.
#[derive(Debug)]
pub struct AsyncCaller {
    waiter: Waiter,
    caller: Caller,
    others: VecDeque<CallResult>,
}

impl Caller {
    /// Lets tasks await replies.
    pub fn into_async(self) -> Result<AsyncCaller> {
        let waiter = Waiter::new(self.poll_fd()?)?;
        Ok(AsyncCaller { waiter, caller: self, others: VecDeque::new() })
    }
}

impl AsyncCaller {
    /// Sends a request and awaits its reply. If the task is cancelled, the call goes on, and
    /// [`take`](Self::take) tells its result.
    pub async fn call(
        &mut self,
        request: impl Into<Set>,
        options: &CallOptions,
    ) -> Result<Message, CallError> {
        let failed = |error| CallError { error, worker_code: 0, unsent: None };
        let call = self.caller.begin(request, options).map_err(|rejected| CallError {
            unsent: Some(rejected.value),
            ..failed(rejected.error)
        })?;
        loop {
            let result = self.next().await.map_err(failed)?;
            if result.call == call {
                return result.reply;
            }
            self.others.push_back(result);
        }
    }

    /// Takes the result of a call that has ended, of those that [`Caller::begin`] began. Fails with
    /// [`ErrorKind::NotFound`] if none is in flight. Nothing is lost if the task is cancelled.
    pub async fn take(&mut self) -> Result<CallResult> {
        match self.others.pop_front() {
            Some(result) => Ok(result),
            None => self.next().await,
        }
    }

    async fn next(&mut self) -> Result<CallResult> {
        let caller = &mut self.caller;
        self.waiter.until(move || caller.try_take()).await
    }

    /// The caller, for what is not awaited.
    pub fn get_ref(&self) -> &Caller {
        &self.caller
    }
}

/// A service whose requests are awaited. A request stays in its thread, so a task that has one
/// across an await is for `spawn_local` or `block_on`.
#[derive(Debug)]
pub struct AsyncService {
    waiter: Waiter,
    service: Service,
}

impl Service {
    /// Lets tasks await its requests.
    pub fn into_async(self) -> Result<AsyncService> {
        Ok(AsyncService { waiter: Waiter::new(self.poll_fd()?)?, service: self })
    }
}

impl AsyncService {
    /// Takes the next request. Nothing is lost if the task is cancelled.
    pub async fn take(&self) -> Result<Request<'_>> {
        self.waiter.until(|| self.service.try_take()).await
    }

    /// The service, for what is not awaited.
    pub fn get_ref(&self) -> &Service {
        &self.service
    }
}
