// SPDX-License-Identifier: Apache-2.0
//! The connection to the daemon.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::{self, NonNull};
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
}

impl Default for ConnectOptions {
    fn default() -> ConnectOptions {
        ConnectOptions { socket: None, name: None, timeout: None, autospawn: true, wait: None }
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
            ..Default::default()
        };
        let mut client = ptr::null_mut();
        // SAFETY: the arguments are valid for the call.
        check(unsafe { sys::dlx_connect(&args, &mut client) })?;
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
