// SPDX-License-Identifier: Apache-2.0
//! Streams of their own for flows, beside zenoh: pieces go from the memory of a message into a
//! socket, and from the socket into memory of the publisher at the other host.
//!
//! A bridge that can be reached has a *door*, an address where it listens. The bridge at the other
//! end of a flow gets an *invitation* over zenoh: where the door is, a *ticket* for this flow, and
//! the fingerprint of the door's certificate. So the rules of zenoh say who may open a stream.
//!
//! ```text
//!     hello:  "dlx-str1", ticket (16 bytes)          answer: 1
//!     frame:  size of the header u32, of the body u32, header (wire.rs), body
//! ```

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use ring::rand::SecureRandom;

use crate::config::Config;
use crate::tls::{Fingerprint, Keys};
use crate::wire::{ADDRESSES_MAX, HEADER_MAX};
use crate::{lock, say};

const HELLO: [u8; 8] = *b"dlx-str1";
const WELCOME: u8 = 1;
/// How long a connection may take, and after it both sides until they know each other.
const CONNECT: Duration = Duration::from_secs(1);
const MEET: Duration = Duration::from_secs(2);
/// How long an invited bridge is waited for: one of its addresses may answer, and be no bridge.
pub const INVITED: Duration = Duration::from_secs(5);
/// Most connections of which it is not known yet which flow they are for.
const MAX_STRANGERS: usize = 64;
/// Least bytes that one read asks for: small frames come several at a time.
const READ: usize = 16 << 10;
/// Bytes that are read behind a body of that size, and so copied twice: the header of the next
/// frame, and the head of its item.
const NEXT: usize = 256;
/// Most parts that are written with one call.
const MAX_PARTS: usize = 64;

pub type Ticket = [u8; 16];

/// Where a stream can be opened, and for which flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    pub addresses: Vec<SocketAddr>,
    pub ticket: Ticket,
    /// None: without TLS.
    pub certificate: Option<Fingerprint>,
}

/// How the importing side of a flow can get pieces, beside zenoh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    Zenoh,
    Door(Invitation),
    /// A stream is open.
    Stream,
}

// ---- streams --------------------------------------------------------------------------------

/// A socket whose calls wait until the stream is open, but not beyond a time.
struct Socket {
    tcp: TcpStream,
    until: Instant,
    is_open: AtomicBool,
}

impl Socket {
    fn tcp(&self) -> io::Result<&TcpStream> {
        if !self.is_open.load(Ordering::Relaxed) {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.tcp.set_read_timeout(Some(left))?;
            self.tcp.set_write_timeout(Some(left))?;
        }
        Ok(&self.tcp)
    }
}

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.tcp()?.read(buffer)
    }

    fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.tcp()?.read_vectored(parts)
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.tcp()?.write(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.tcp()?.write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A stream, encrypted or not, which its reader and its writer share. Once it is open, no call
/// waits.
#[derive(Clone)]
pub struct Stream {
    socket: Arc<Socket>,
    tls: Option<Arc<Mutex<rustls::Connection>>>,
}

impl Stream {
    fn new(tcp: TcpStream, tls: Option<rustls::Connection>) -> io::Result<Stream> {
        tcp.set_nodelay(true)?;
        let socket = Socket { tcp, until: Instant::now() + MEET, is_open: AtomicBool::new(false) };
        let tls = tls.map(|tls| Arc::new(Mutex::new(tls)));
        let stream = Stream { socket: Arc::new(socket), tls };
        if let Some(tls) = &stream.tls {
            let mut tls = lock(tls);
            while tls.is_handshaking() {
                tls.complete_io(&mut &*stream.socket)?;
            }
        }
        Ok(stream)
    }

    fn open(self) -> io::Result<Stream> {
        self.socket.tcp.set_nonblocking(true)?;
        self.socket.is_open.store(true, Ordering::Relaxed);
        Ok(self)
    }

    /// Writes what of these bytes can be written now, and what is left of earlier ones.
    fn write_parts(&mut self, parts: &VecDeque<Bytes>) -> io::Result<usize> {
        let Some(tls) = &self.tls else {
            if parts.is_empty() {
                return Ok(0);
            }
            let slices: Vec<_> =
                parts.iter().take(MAX_PARTS).map(|part| IoSlice::new(part)).collect();
            return (&*self.socket).write_vectored(&slices);
        };
        let mut tls = lock(tls);
        loop {
            while tls.wants_write() {
                tls.write_tls(&mut &*self.socket)?;
            }
            let n = parts.front().map_or(Ok(0), |part| tls.writer().write(part))?;
            if n > 0 || parts.is_empty() {
                return Ok(n);
            }
        }
    }

    /// Writes all; for the beginning.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut parts = VecDeque::from([Bytes::copy_from_slice(bytes)]);
        while !parts.is_empty() {
            let n = self.write_parts(&parts)?;
            advance(&mut parts, n);
        }
        self.write_parts(&parts).map(|_| ())
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return (&*self.socket).read(buffer) };
        let mut tls = lock(tls);
        loop {
            match tls.reader().read(buffer) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    tls.read_tls(&mut &*self.socket)?;
                    tls.process_new_packets().map_err(io::Error::other)?;
                }
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Err(e.kind().into()),
                read => return read,
            }
        }
    }

    /// An encrypted stream fills the first part alone.
    fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self.tls {
            None => (&*self.socket).read_vectored(parts),
            Some(_) => self.read(parts.first_mut().map_or(&mut [], |part| part)),
        }
    }
}

fn advance(parts: &mut VecDeque<Bytes>, mut n: usize) {
    while let Some(part) = parts.front_mut() {
        if n < part.len() {
            return part.advance(n);
        }
        n -= part.len();
        parts.pop_front();
    }
}

/// The writing end: frames with their bodies.
pub struct Outlet {
    stream: Stream,
    parts: VecDeque<Bytes>,
}

impl Outlet {
    pub fn new(stream: Stream) -> Outlet {
        Outlet { stream, parts: VecDeque::new() }
    }

    /// Adds a frame to what is to be written.
    pub fn push(&mut self, header: &[u8], body: Vec<Bytes>) {
        let size = body.iter().map(Bytes::len).sum::<usize>() as u32;
        let mut start = Vec::with_capacity(8 + header.len());
        start.extend((header.len() as u32).to_le_bytes());
        start.extend(size.to_le_bytes());
        start.extend(header);
        self.parts.push_back(start.into());
        self.parts.extend(body);
    }

    /// Writes what can be written now; returns whether that is all.
    pub fn flush(&mut self) -> io::Result<bool> {
        loop {
            match self.stream.write_parts(&self.parts) {
                Ok(_) if self.parts.is_empty() => return Ok(true),
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => advance(&mut self.parts, n),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == ErrorKind::Interrupted => (),
                Err(e) => return Err(e),
            }
        }
    }
}

impl AsFd for Outlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.socket.tcp.as_fd()
    }
}

/// The reading end. Reads headers, and bodies behind them: what is behind a body comes with the
/// same call.
pub struct Inlet {
    stream: Stream,
    buffer: Vec<u8>,
    /// What was read of `buffer` and not used.
    ahead: Range<usize>,
    /// The last call took all that there was: the next one would take nothing.
    is_empty: bool,
    /// The last body was large, and so may be the next one.
    is_large: bool,
    /// A frame has come.
    pub is_used: bool,
    /// How often the other side said that it has sent more, since a byte or a frame has come.
    pub unheard: u32,
}

impl Inlet {
    pub fn new(stream: Stream) -> Inlet {
        Inlet {
            stream,
            buffer: vec![0; READ],
            ahead: 0..0,
            is_empty: false,
            is_large: false,
            is_used: false,
            unheard: 0,
        }
    }

    /// The header of the next frame, and the size of its body, which is to be read next.
    pub fn header(&mut self) -> io::Result<(Vec<u8>, usize)> {
        loop {
            let ahead = &self.buffer[self.ahead.clone()];
            if let Some((sizes, rest)) = ahead.split_first_chunk::<8>() {
                let number =
                    |at| u32::from_le_bytes(sizes[at..at + 4].try_into().expect("4 bytes"));
                let (header, body) = (number(0) as usize, number(4) as usize);
                if header > HEADER_MAX {
                    let why = format!("a frame with a header of {header} bytes");
                    return Err(io::Error::new(ErrorKind::InvalidData, why));
                }
                if let Some(header) = rest.get(..header) {
                    let header = header.to_vec();
                    self.ahead.start += 8 + header.len();
                    self.is_large = body >= READ;
                    self.is_used = true;
                    self.unheard = 0;
                    return Ok((header, body));
                }
            }
            self.buffer.copy_within(self.ahead.clone(), 0);
            self.ahead = 0..self.ahead.len();
            self.receive(&mut [])?;
        }
    }

    /// Reads into a part of a body, and behind what was read ahead; returns how much of the body.
    fn receive(&mut self, body: &mut [u8]) -> io::Result<usize> {
        if std::mem::take(&mut self.is_empty) {
            return Err(ErrorKind::WouldBlock.into());
        }
        let (size, end) = (body.len(), self.ahead.end);
        let n_behind = match size {
            0 if self.is_large => NEXT,
            _ => READ.saturating_sub(size).max(NEXT),
        };
        let most = (end + n_behind).min(self.buffer.len());
        let behind = &mut self.buffer[end..most];
        let asked = size + behind.len();
        let n = if size == 0 {
            self.stream.read(behind)?
        } else {
            let parts = &mut [IoSliceMut::new(body), IoSliceMut::new(behind)];
            self.stream.read_vectored(parts)?
        };
        if n == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.unheard = 0;
        self.is_empty = n < asked && self.stream.tls.is_none();
        self.ahead.end += n.saturating_sub(size);
        Ok(n.min(size))
    }
}

impl Read for Inlet {
    fn read(&mut self, body: &mut [u8]) -> io::Result<usize> {
        if self.ahead.is_empty() {
            self.ahead = 0..0;
            return self.receive(body);
        }
        let n = body.len().min(self.ahead.len());
        body[..n].copy_from_slice(&self.buffer[self.ahead.start..][..n]);
        self.ahead.start += n;
        Ok(n)
    }
}

impl AsFd for Inlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.socket.tcp.as_fd()
    }
}

/// Opens the stream that an invitation is for, at the address that answers first. Waits, for at
/// most some seconds.
pub fn connect(invitation: &Invitation, keys: Option<&Keys>) -> Result<Stream, String> {
    let (send, connected) = mpsc::channel();
    let mut failures = Vec::new();
    for &address in &invitation.addresses {
        let send = send.clone();
        let thread = thread::Builder::new().name("connect".into()).spawn(move || {
            let _ = send.send((address, TcpStream::connect_timeout(&address, CONNECT)));
        });
        if let Err(e) = thread {
            failures.push(format!("{address}: no thread: {e}"));
        }
    }
    drop(send);
    for (address, tcp) in connected {
        match tcp.and_then(|tcp| knock(tcp, invitation, keys)) {
            Ok(stream) => return Ok(stream),
            Err(e) => failures.push(format!("{address}: {e}")),
        }
    }
    Err(failures.join("; "))
}

fn knock(tcp: TcpStream, invitation: &Invitation, keys: Option<&Keys>) -> io::Result<Stream> {
    let tls = match (invitation.certificate, keys) {
        (None, None) => None,
        (Some(certificate), Some(keys)) => Some(keys.client(certificate)?.into()),
        (None, Some(_)) => return Err(io::Error::other("it has no [tls], and this bridge has")),
        (Some(_), None) => return Err(io::Error::other("it has [tls], and this bridge has none")),
    };
    let mut stream = Stream::new(tcp, tls)?;
    stream.send(&[&HELLO[..], &invitation.ticket].concat())?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    if answer != [WELCOME] {
        return Err(io::Error::new(ErrorKind::InvalidData, "no bridge answers there"));
    }
    stream.open()
}

// ---- the door -------------------------------------------------------------------------------

type Welcome = Box<dyn Fn(Stream) + Send + Sync>;

/// Where this bridge can be reached.
pub struct Door {
    /// Where it listens.
    places: Vec<SocketAddr>,
    keys: Option<Arc<Keys>>,
    guests: Mutex<HashMap<Ticket, Arc<Welcome>>>,
    n_strangers: Mutex<usize>,
    /// There are less strangers.
    one_left: Condvar,
}

impl Door {
    /// None: the configuration has none, or it cannot be opened, which is said.
    pub fn open(config: &Config, keys: Option<Arc<Keys>>) -> Option<Arc<Door>> {
        let mut listeners = Vec::new();
        let mut places = Vec::new();
        for place in config.doors() {
            match listen(&place) {
                Ok((listener, at)) => {
                    listeners.push(listener);
                    places.push(at);
                }
                Err(e) => say(format_args!(
                    "{place}: {e}: others cannot open streams there, and all goes through zenoh, \
                     which is slower: set `direct`, to [] if that is wanted"
                )),
            }
        }
        if places.is_empty() {
            return None;
        }
        let door = Arc::new(Door {
            places,
            keys,
            guests: Mutex::default(),
            n_strangers: Mutex::default(),
            one_left: Condvar::new(),
        });
        for listener in listeners {
            let own = door.clone();
            let thread = thread::Builder::new().name("door".into());
            if let Err(e) = thread.spawn(move || own.serve(&listener)) {
                say(format_args!("no thread for streams: {e}: all goes through zenoh"));
                return None;
            }
        }
        Some(door)
    }

    /// The addresses at which others reach it now. Interfaces come and go.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let mut addresses = Vec::new();
        for at in &self.places {
            if at.ip().is_unspecified() {
                let own = own_addresses().unwrap_or_default().into_iter();
                let own = own.filter(|ip| at.is_ipv6() || ip.is_ipv4());
                addresses.extend(own.map(|ip| SocketAddr::new(ip, at.port())));
            } else {
                addresses.push(*at);
            }
        }
        addresses.truncate(ADDRESSES_MAX);
        addresses
    }

    /// Invites to a flow: `welcome` gets each stream that is opened for it, until the pass is
    /// dropped.
    pub fn invite(self: &Arc<Door>, welcome: Welcome) -> Pass {
        let mut ticket = Ticket::default();
        let random = ring::rand::SystemRandom::new();
        random.fill(&mut ticket).expect("the kernel has random numbers");
        lock(&self.guests).insert(ticket, Arc::new(welcome));
        Pass { door: self.clone(), ticket }
    }

    fn serve(self: Arc<Door>, listener: &TcpListener) {
        loop {
            let is_full = |n: &mut usize| *n >= MAX_STRANGERS;
            // Others wait in the queue of the kernel.
            drop(self.one_left.wait_while(lock(&self.n_strangers), is_full));
            let Ok((tcp, _)) = listener.accept() else {
                thread::sleep(CONNECT); // no descriptors, or no memory
                continue;
            };
            *lock(&self.n_strangers) += 1;
            let own = self.clone();
            let greeter = move || {
                // An error means that it was no bridge, or has gone: the other side reports it.
                let _ = own.greet(tcp);
                own.leave();
            };
            if thread::Builder::new().name("greet".into()).spawn(greeter).is_err() {
                self.leave();
            }
        }
    }

    fn leave(&self) {
        *lock(&self.n_strangers) -= 1;
        self.one_left.notify_all();
    }

    fn greet(&self, tcp: TcpStream) -> io::Result<()> {
        let tls = self.keys.as_ref().map(|keys| keys.server()).transpose()?;
        let mut stream = Stream::new(tcp, tls.map(Into::into))?;
        let (mut hello, mut ticket) = (HELLO, Ticket::default());
        stream.read_exact(&mut hello)?;
        stream.read_exact(&mut ticket)?;
        let guest = lock(&self.guests).get(&ticket).cloned();
        if let Some(welcome) = guest
            && hello == HELLO
        {
            stream.send(&[WELCOME])?;
            welcome(stream.open()?);
        }
        Ok(())
    }
}

/// The right to open the streams of one flow, as long as it is there.
pub struct Pass {
    door: Arc<Door>,
    ticket: Ticket,
}

impl Pass {
    /// None: the door has no address now.
    pub fn invitation(&self) -> Option<Invitation> {
        let addresses = self.door.addresses();
        let certificate = self.door.keys.as_ref().map(|keys| keys.fingerprint);
        let ticket = self.ticket;
        (!addresses.is_empty()).then_some(Invitation { addresses, ticket, certificate })
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        lock(&self.door.guests).remove(&self.ticket);
    }
}

fn listen(place: &str) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(place.to_socket_addrs()?.collect::<Vec<_>>().as_slice())?;
    let at = listener.local_addr()?;
    Ok((listener, at))
}

/// The addresses of this machine that others can reach.
fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `first` is valid for the call.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: a list that getifaddrs() made.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: its addresses are valid, or NULL.
        let Some(address) = (unsafe { entry.ifa_addr.as_ref() }) else { continue };
        let ip = match i32::from(address.sa_family) {
            libc::AF_INET => {
                // SAFETY: the family says how large it is.
                let address = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_in>() };
                IpAddr::V4(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)))
            }
            libc::AF_INET6 => {
                // SAFETY: the family says how large it is.
                let address = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_in6>() };
                IpAddr::V6(Ipv6Addr::from(address.sin6_addr.s6_addr))
            }
            _ => continue,
        };
        let is_local = match ip {
            IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
        };
        if !is_local && entry.ifa_flags & libc::IFF_UP as u32 != 0 {
            found.push(ip);
        }
    }
    // SAFETY: the list is not used any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a slow subscriber takes small messages, which were read ahead.
    #[test]
    fn a_frame_that_was_read_ahead_is_a_sign_of_life() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        let open = |tcp| Stream::new(tcp, None).unwrap().open().unwrap();
        let (mut outlet, mut inlet) = (Outlet::new(open(one)), Inlet::new(open(other)));
        (0..2).for_each(|i| outlet.push(&[i], Vec::new()));
        assert!(outlet.flush().unwrap());
        let mut next = || loop {
            match inlet.header() {
                Err(e) if e.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                header => break (header.unwrap().0, std::mem::replace(&mut inlet.unheard, 5)),
            }
        };
        assert_eq!(next(), (vec![0], 0));
        assert_eq!(next(), (vec![1], 0));
    }
}
