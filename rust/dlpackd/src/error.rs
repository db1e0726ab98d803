// SPDX-License-Identifier: Apache-2.0
//! Errors: a kind to decide by, and the words of libdlx for people.

use std::ffi::{CStr, CString, c_int};
use std::fmt;

use dlpackd_sys as sys;

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $code:ident,)*) => {
        /// What kind of failure an [`Error`] is: the codes of libdlx.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[$doc])* $kind,)*
            /// A code that this crate does not know: the library is newer.
            Other,
        }

        impl ErrorKind {
            fn from_code(code: c_int) -> ErrorKind {
                match code {
                    $(sys::$code => ErrorKind::$kind,)*
                    _ => ErrorKind::Other,
                }
            }
        }
    };
}

kinds! {
    /// An argument makes no sense.
    Invalid = DLX_E_INVALID,
    /// There is no memory.
    NoMemory = DLX_E_NO_MEMORY,
    /// It did not happen in time.
    Timeout = DLX_E_TIMEOUT,
    /// There is no message.
    Empty = DLX_E_EMPTY,
    /// Nobody listens, and no private daemon could be started.
    NoDaemon = DLX_E_NO_DAEMON,
    /// The daemon is lost.
    Disconnected = DLX_E_DISCONNECTED,
    /// The answer is no answer of dlpackd.
    Protocol = DLX_E_PROTOCOL,
    /// The other side is too old or too new.
    Version = DLX_E_VERSION,
    /// This user may not do that.
    Access = DLX_E_ACCESS,
    /// The name of the topic cannot be.
    Topic = DLX_E_TOPIC,
    /// A quota, or another limit.
    Limit = DLX_E_LIMIT,
    /// The device of the tensor cannot be carried or used.
    Device = DLX_E_DEVICE,
    /// The shape, strides or data type cannot be, or are others than asked for.
    Shape = DLX_E_SHAPE,
    /// The tensor is read-only.
    ReadOnly = DLX_E_READ_ONLY,
    /// A reliable subscriber is too far behind, or too many calls are in flight.
    Full = DLX_E_FULL,
    /// Messages must be released first.
    TooManyHeld = DLX_E_TOO_MANY_HELD,
    /// The last publisher has left, and everything it published was taken.
    PublisherGone = DLX_E_PUBLISHER_GONE,
    /// A publisher makes no call, so it learns of no new subscriber.
    PublisherNotResponding = DLX_E_PUBLISHER_NOT_RESPONDING,
    /// A peer wrote invalid values; its link is cut.
    BadPeer = DLX_E_BAD_PEER,
    /// The handle is the parent process's.
    Forked = DLX_E_FORKED,
    /// There is no such object.
    NotFound = DLX_E_NOT_FOUND,
    /// The object is in use.
    InUse = DLX_E_IN_USE,
    /// The kernel is too old.
    Kernel = DLX_E_KERNEL,
    /// The process may open no more descriptors.
    FdLimit = DLX_E_FD_LIMIT,
    /// A system call failed.
    System = DLX_E_SYSTEM,
    /// Publishing would have copied the tensor.
    WouldCopy = DLX_E_WOULD_COPY,
    /// A signal handler, or [`Interrupt`](crate::Interrupt), ended the wait.
    Interrupted = DLX_E_INTERRUPTED,
    /// A publisher does not offer what the subscription asks for.
    Qos = DLX_E_QOS,
    /// The worker that had the request died.
    WorkerGone = DLX_E_WORKER_GONE,
    /// The worker answered with an error.
    CallFailed = DLX_E_CALL_FAILED,
    /// An operator has disconnected this program, which does not connect again by itself.
    Kicked = DLX_E_KICKED,
}

/// A failure: its kind, and what libdlx says of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    code: c_int,
    text: Box<str>,
}

impl Error {
    /// The calling thread's last failure of libdlx, whose code this is.
    #[cold]
    pub(crate) fn last(code: c_int) -> Error {
        // SAFETY: the text is valid until this thread's next call, and is copied here.
        let text = unsafe { CStr::from_ptr(sys::dlx_errmsg()) }.to_string_lossy();
        Error::new(code, text)
    }

    #[cold]
    pub(crate) fn new(code: c_int, text: impl Into<String>) -> Error {
        Error { code, text: text.into().into() }
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::from_code(self.code)
    }

    /// The code, as in C.
    pub fn code(&self) -> i32 {
        self.code
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: a static text.
        let name = unsafe { CStr::from_ptr(sys::dlx_error_name(self.code)) };
        write!(f, "{}: {}", name.to_string_lossy(), self.text)
    }
}

impl std::error::Error for Error {}

/// A failure of a call that takes tensors over, with the tensors: they still belong to the caller,
/// who may try again. `?` makes an [`Error`] of it and releases them.
pub struct Rejected<T> {
    /// Why.
    pub error: Error,
    /// What was not published.
    pub value: T,
}

impl<T> Rejected<T> {
    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }
}

impl<T> From<Rejected<T>> for Error {
    fn from(rejected: Rejected<T>) -> Error {
        rejected.error
    }
}

impl<T> fmt::Debug for Rejected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> fmt::Display for Rejected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for Rejected<T> {}

/// Makes a result of a code of libdlx.
#[inline]
pub(crate) fn check(code: c_int) -> Result<()> {
    if code == sys::DLX_OK { Ok(()) } else { Err(Error::last(code)) }
}

pub(crate) fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| {
        Error::new(
            sys::DLX_E_INVALID,
            format!("{text:?} has a NUL character, which no name may have"),
        )
    })
}
