// SPDX-License-Identifier: Apache-2.0
//! The connection to the daemon.

use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use dlpackd_sys as sys;

use crate::error::{Error, Result, c_string, check};
use crate::message::Message;
use crate::publisher::{Publisher, PublisherOptions};
use crate::subscription::{SubscribeOptions, Subscription};
use crate::time::{to_ns, to_ns_or_default};

/// How to connect. [`Default`] is what most programs want.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The daemon's socket; None: `$DLX_SOCKET`, else the first daemon that serves this user.
    pub socket: Option<PathBuf>,
    /// Name of this program in `dlxctl ls`; None: the name of the process.
    pub name: Option<String>,
    /// Limit of each request to the daemon; None: 5 seconds.
    pub timeout: Option<Duration>,
    /// Start a private daemon if none answers and no socket is named (not with
    /// `$DLX_AUTOSPAWN=no`).
    pub autospawn: bool,
    /// How long to wait for a daemon that is not there yet; None: not at all.
    pub wait: Option<Duration>,
    /// Ends waits; None: signal handlers do.
    pub interrupt: Option<Interrupt>,
}

/// A function that calls ask while they wait: true ends the call with
/// [`ErrorKind::Interrupted`](crate::ErrorKind::Interrupted), and nothing is lost. It is asked
/// after 50 ms, then at least every 200 ms, and when a signal handler has run, in the thread that
/// waits; so several threads may ask at once. It may not use the client. A panic in it aborts.
#[derive(Clone)]
pub struct Interrupt(Arc<dyn Fn() -> bool + Send + Sync>);

impl Interrupt {
    /// An interrupt that asks this function.
    pub fn new(ask: impl Fn() -> bool + Send + Sync + 'static) -> Interrupt {
        Interrupt(Arc::new(ask))
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interrupt")
    }
}

/// # Safety
///
/// libdlx calls it with a boxed Interrupt that it has.
unsafe extern "C" fn ask(interrupt: *mut c_void) -> c_int {
    // SAFETY: several threads may share one.
    let interrupt = unsafe { &*interrupt.cast::<Interrupt>() };
    c_int::from((interrupt.0)())
}

/// # Safety
///
/// libdlx calls it with a boxed Interrupt that it had, once.
unsafe extern "C" fn free_interrupt(interrupt: *mut c_void) {
    // SAFETY: nobody has it any more.
    drop(unsafe { Box::from_raw(interrupt.cast::<Interrupt>()) });
}

impl Default for ConnectOptions {
    fn default() -> ConnectOptions {
        ConnectOptions {
            socket: None,
            name: None,
            timeout: None,
            autospawn: true,
            wait: None,
            interrupt: None,
        }
    }
}

/// A connection to the daemon. Any number of threads may use it at once. Publishers, subscriptions
/// and messages live on without it.
#[derive(Debug)]
pub struct Client(NonNull<sys::dlx_client>);

// SAFETY: "Any number of threads may use one client at once" (dlx.h).
unsafe impl Send for Client {}
// SAFETY: likewise.
unsafe impl Sync for Client {}

impl Client {
    /// Connects; starts a private daemon if none answers and no socket is named.
    pub fn connect() -> Result<Client> {
        Client::connect_with(&ConnectOptions::default())
    }

    /// Connects as these options say.
    pub fn connect_with(options: &ConnectOptions) -> Result<Client> {
        let socket = options
            .socket
            .as_ref()
            .map(|path| CString::new(path.as_os_str().as_bytes()))
            .transpose()
            .map_err(|_| {
                Error::new(sys::DLX_E_INVALID, "the path of the socket has a NUL character")
            })?;
        let name = options.name.as_deref().map(c_string).transpose()?;
        let interrupt = options.interrupt.clone().map(|i| Box::into_raw(Box::new(i)));
        let args = sys::dlx_connect_args {
            size: size_of::<sys::dlx_connect_args>(),
            socket: socket.as_ref().map_or(ptr::null(), |s| s.as_ptr()),
            name: name.as_ref().map_or(ptr::null(), |s| s.as_ptr()),
            timeout_ns: to_ns_or_default(options.timeout),
            autospawn: if options.autospawn {
                sys::DLX_AUTOSPAWN_DEFAULT
            } else {
                sys::DLX_AUTOSPAWN_NEVER
            },
            wait_ns: options.wait.map_or(0, to_ns),
            interrupt: interrupt.map(|_| ask as _),
            interrupt_free: interrupt.map(|_| free_interrupt as _),
            interrupt_data: interrupt.map_or(ptr::null_mut(), |i| i.cast()),
        };
        let mut client = ptr::null_mut();
        // SAFETY: the arguments are valid for the call.
        let result = check(unsafe { sys::dlx_connect(&args, &mut client) });
        if let (Err(_), Some(interrupt)) = (&result, interrupt) {
            // SAFETY: the library has it only if it connected.
            drop(unsafe { Box::from_raw(interrupt) });
        }
        result?;
        Ok(Client(NonNull::new(client).expect("a client")))
    }

    pub(crate) fn as_raw(&self) -> *mut sys::dlx_client {
        self.0.as_ptr()
    }

    /// Announces a publisher on a topic.
    pub fn publisher(&self, topic: &str) -> Result<Publisher> {
        self.publisher_with(topic, &PublisherOptions::default())
    }

    /// Announces a publisher with these options.
    pub fn publisher_with(&self, topic: &str, options: &PublisherOptions) -> Result<Publisher> {
        Publisher::new(self, topic, options)
    }

    /// Subscribes to a topic, or to all that match a pattern.
    pub fn subscribe(&self, topic: &str) -> Result<Subscription> {
        self.subscribe_with(topic, &SubscribeOptions::default())
    }

    /// Subscribes with these options.
    pub fn subscribe_with(&self, topic: &str, options: &SubscribeOptions) -> Result<Subscription> {
        Subscription::new(self, topic, options)
    }

    /// Gets the newest message of a topic, from its publishers or from what is retained; waits for
    /// the first if there is none.
    pub fn get(&self, topic: &str, timeout: Duration) -> Result<Message> {
        let topic = c_string(topic)?;
        let mut message = ptr::null_mut();
        // SAFETY: the arguments are valid for the call.
        check(unsafe {
            sys::dlx_get(self.as_raw(), topic.as_ptr(), to_ns(timeout), &mut message)
        })?;
        // SAFETY: a message of libdlx that belongs to the caller.
        Ok(unsafe { Message::from_raw(message) })
    }

    /// Drops what the daemon retains on a topic of publishers that are gone.
    pub fn drop_retained(&self, topic: &str) -> Result<()> {
        let topic = c_string(topic)?;
        // SAFETY: the arguments are valid for the call.
        check(unsafe { sys::dlx_drop_retained(self.as_raw(), topic.as_ptr()) })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: this owns it.
        unsafe { sys::dlx_client_unref(self.as_raw()) };
    }
}
