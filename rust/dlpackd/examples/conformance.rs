// SPDX-License-Identifier: Apache-2.0
//! The adapter of Rust: does what tests/conformance/driver says on stdin, with this crate. The
//! README.md of that folder has the commands and the answers. It is no example to begin with.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::BufRead;
use std::os::fd::AsRawFd;
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlx::{
    CallError, CallId, CallOptions, Caller, CallerOptions, Change, Client, ConnectOptions, DType,
    Element, Ends, Error, ErrorKind, History, Interrupt, Layout, Loan, ManagedTensor, Message,
    Mode, Observe, Observed, Observer, OnFull, PublishOptions, Publisher, PublisherOptions, Qos,
    Rejected, Report, Request, RetainFor, Service, ServiceOptions, Set, Strided, SubscribeOptions,
    Subscription, Tensor,
};

/// A tensor of any type, with or without strides, that can be written to or not.
trait Held: Send {
    fn layout(&self) -> Layout<'_>;
    fn to_bytes(&self) -> Vec<u8>;
    /// Its bytes, if it can be written to.
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
    fn into_managed(self: Box<Self>) -> ManagedTensor;
    /// As one message; on failure it comes back.
    fn publish(self: Box<Self>, p: &Publisher, o: &PublishOptions) -> Published;
    /// It stays the caller's.
    fn share(self: Box<Self>, p: &Publisher, o: &PublishOptions)
    -> (Box<dyn Held>, Answer<Report>);
}
type Published = Result<Report, (Box<dyn Held>, Error)>;

fn settled<T: Held + 'static>(result: Result<Report, Rejected<T>>) -> Published {
    result.map_err(|r| (Box::new(r.value) as Box<dyn Held>, r.error))
}

fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: an element is a number, or two of them, without padding.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

macro_rules! held {
    ($type:ident, $self:ident, $bytes:expr, $share:expr $(, $extra:item)?) => {
        impl<T: Element> Held for $type<T> {
            fn layout(&self) -> Layout<'_> {
                self.layout()
            }
            fn to_bytes(&$self) -> Vec<u8> {
                $bytes
            }
            fn into_managed(self: Box<Self>) -> ManagedTensor {
                (*self).into()
            }
            fn publish(self: Box<Self>, p: &Publisher, o: &PublishOptions) -> Published {
                settled(p.publish_with(*self, o))
            }
            fn share(
                self: Box<Self>,
                p: &Publisher,
                o: &PublishOptions,
            ) -> (Box<dyn Held>, Answer<Report>) {
                $share(*self, p, o)
            }
            $($extra)?
        }
    };
}

fn share_tensor<T: Element>(
    mut tensor: Tensor<T>,
    p: &Publisher,
    o: &PublishOptions,
) -> (Box<dyn Held>, Answer<Report>) {
    let result = p.publish_shared(&mut tensor, o);
    (Box::new(tensor), result.map_err(Failed::from))
}

held!(Tensor, self, bytes_of(self).to_vec(), share_tensor);
held!(
    Strided,
    self,
    bytes_of(&self.to_vec().expect("memory")).to_vec(),
    |t, _: &Publisher, _: &PublishOptions| {
        (Box::new(t) as Box<dyn Held>, Err(Failed::unsupported("strides")))
    }
);
held!(
    Loan,
    self,
    bytes_of(self).to_vec(),
    |loan: Loan<T>, p: &Publisher, o: &PublishOptions| share_tensor(loan.freeze(), p, o),
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let elements: &mut [T] = self;
        let size = size_of_val(elements);
        // SAFETY: as bytes_of(); any bytes are a number.
        Some(unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size) })
    }
);

/// What a set gives back, when it was not published: a row-major one.
impl Held for ManagedTensor {
    fn layout(&self) -> Layout<'_> {
        self.layout()
    }
    fn to_bytes(&self) -> Vec<u8> {
        // SAFETY: libdlx made it.
        let (tensor, n) = (unsafe { &(*self.as_raw()).dl_tensor }, self.layout().n_bytes());
        // SAFETY: it has so many bytes.
        unsafe { std::slice::from_raw_parts(tensor.data.cast::<u8>(), n) }.to_vec()
    }
    fn into_managed(self: Box<Self>) -> ManagedTensor {
        *self
    }
    fn publish(self: Box<Self>, p: &Publisher, o: &PublishOptions) -> Published {
        settled(p.publish_with(*self, o))
    }
    fn share(
        self: Box<Self>,
        _: &Publisher,
        _: &PublishOptions,
    ) -> (Box<dyn Held>, Answer<Report>) {
        (self, Err(Failed::unsupported("share-any")))
    }
}

enum Object {
    Client(Client),
    Publisher(Publisher, String),
    Subscription(Subscription, String),
    Observer(Observer, String),
    Caller(Caller),
    Service(&'static Service), // of a Box, which release() drops
    Request(Request<'static>),
    Message(Message),
    Tensor(Box<dyn Held>),
    Call(CallId),
}

/// What is answered instead of "ok".
struct Failed(String);
type Answer<T = String> = Result<T, Failed>;

impl Failed {
    fn none() -> Failed {
        Failed("none".into())
    }
    fn unsupported(feature: &str) -> Failed {
        Failed(format!("unsupported {feature}"))
    }
    fn refused(why: impl std::fmt::Display) -> Failed {
        Failed(format!("refused {why}"))
    }
    /// A call also fails with the code of its worker.
    fn call(e: &CallError) -> String {
        format!("error {} {} {}", snake(e.kind()).to_uppercase(), e.worker_code, e.error)
    }
}

/// TooManyHeld -> too_many_held
fn snake(name: impl std::fmt::Debug) -> String {
    let mut ret = String::new();
    for c in format!("{name:?}").chars() {
        if c.is_uppercase() && !ret.is_empty() {
            ret.push('_');
        }
        ret.extend(c.to_lowercase());
    }
    ret
}

impl From<Error> for Failed {
    fn from(e: Error) -> Failed {
        Failed(format!("error {} {e}", snake(e.kind()).to_uppercase()))
    }
}

/// Nothing came in time.
fn timed<T>(result: Result<T, Error>) -> Answer<T> {
    result.map_err(|e| match e.kind() {
        ErrorKind::Timeout | ErrorKind::Empty => Failed::none(),
        _ => e.into(),
    })
}

fn time(ms: &str) -> Duration {
    ms.parse().map_or(dlx::FOREVER, Duration::from_millis)
}

// -- answers ---------------------------------------------------------------------------------

fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8)
            .fold(crc ^ u32::from(byte), |c, _| (c >> 1) ^ if c & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

fn numbers<T: ToString>(values: &[T]) -> String {
    let texts: Vec<_> = values.iter().map(ToString::to_string).collect();
    if texts.is_empty() { "-".into() } else { texts.join(",") }
}

fn described(layout: Layout<'_>, bytes: &[u8]) -> String {
    let (shape, strides) = (numbers(layout.shape), numbers(layout.strides));
    format!("{}:{shape}:{strides}:{:08x}", layout.dtype, crc(bytes))
}

fn looked_at(tensor: &mut Box<dyn Held>) -> String {
    let writable = tensor.bytes_mut().is_some();
    format!("ok {} writable={}", described(tensor.layout(), &tensor.to_bytes()), u8::from(writable))
}

fn shown(bytes: &[u8]) -> String {
    match bytes.len() {
        0 => "-".into(),
        1..=64 => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        n => format!("{n}:{:08x}", crc(bytes)),
    }
}

/// Tensor `i`, by the way that its type and strides allow.
fn open(m: &Message, i: usize) -> Answer<Box<dyn Held>> {
    let Some(layout) = m.layout(i) else {
        return Err(m.managed(i).unwrap_err().into());
    };
    Ok(match layout.dtype.to_string().as_str() {
        "float32" => Box::new(m.tensor::<f32>(i)?),
        "uint8" if !layout.is_row_major() => Box::new(m.strided::<u8>(i)?),
        _ => Box::new(m.bytes(i)?),
    })
}

fn open_private(m: &Message, i: usize) -> Answer<Box<dyn Held>> {
    let layout = m.layout(i);
    if layout.is_some_and(|layout| !layout.is_row_major()) {
        return Err(Failed::unsupported("private-strides"));
    }
    Ok(match layout.map(|layout| layout.dtype.to_string()).as_deref() {
        Some("uint16") => Box::new(m.private::<u16>(i)?),
        Some("int32") => Box::new(m.private::<i32>(i)?),
        _ => Box::new(m.private::<u8>(i)?),
    })
}

fn message(m: &Message) -> Answer {
    let mut ret = format!("ok topic={} seq={} gap={}", m.topic(), m.seq(), m.gap());
    let _ = write!(ret, " attempt={} meta={}", m.attempt(), shown(m.meta()));
    for i in 0..m.n_tensors() {
        let (name, tensor) = (m.name(i).expect("a name"), open(m, i)?);
        let name = if name.is_empty() { "-" } else { &name };
        let _ = write!(ret, " {name}:{}", described(tensor.layout(), &tensor.to_bytes()));
    }
    Ok(ret)
}

/// Of a message, or of an observed publisher.
fn offered(qos: &Qos) -> String {
    let retain_for = match qos.retain_for {
        RetainFor::Time(time) => time.as_millis().to_string(),
        other => snake(other),
    };
    let on_full = snake(qos.on_full);
    format!("{on_full}:{}:{}:{}:{retain_for}", qos.depth, qos.history, qos.retain)
}

fn changed(change: &Change) -> String {
    let state = |kind: &str, x: &Observed, retained: bool| {
        let state = if x.gone {
            "gone"
        } else if retained {
            "retained"
        } else {
            "there"
        };
        format!("{kind}:{}:{state}:{}:{}", x.topic, x.pid, u8::from(x.own))
    };
    match change {
        Change::Publisher { observed, retained, qos, groups } => {
            let (state, groups) = (state("publisher", observed, *retained), numbers(groups));
            format!("{state}:{}:{groups}", offered(qos))
        }
        Change::Subscription { observed, mode, reliable, accepts_unreliable, group } => {
            let state = state("subscription", observed, false);
            let (reliable, accepts) = (u8::from(*reliable), u8::from(*accepts_unreliable));
            let group = group.as_deref().unwrap_or("-");
            format!("{state}:{}:{reliable}:{accepts}:{group}", snake(mode))
        }
        _ => "all".into(),
    }
}

// -- commands --------------------------------------------------------------------------------

#[derive(Default)]
struct Adapter {
    objects: BTreeMap<String, Object>,
}

/// What is sent: its name, the tensor, and the name of its object if it is one.
type Item = (String, Box<dyn Held>, Option<String>);

/// The words of a command, and its options.
struct Command {
    words: Vec<String>,
    options: BTreeMap<String, String>,
}

impl Command {
    fn parse(line: &str) -> Command {
        let most = if line.starts_with("reply_error ") { 4 } else { usize::MAX };
        let words = line.splitn(most, ' ').map(|word| word.replace("\\0", "\0"));
        let (options, words): (Vec<_>, _) = words.partition(|word| word.contains('='));
        let option = |o: &String| o.split_once('=').map(|(k, v)| (k.to_string(), v.to_string()));
        Command { words, options: options.iter().filter_map(option).collect() }
    }
    fn get(&self, key: &str) -> Option<&str> {
        self.options.get(key).map(String::as_str)
    }
    fn number(&self, key: &str) -> u32 {
        self.get(key).map_or(0, |n| n.parse().expect("a number"))
    }
    fn time(&self, key: &str) -> Option<Duration> {
        self.get(key).map(time)
    }
    /// Hexadecimal digits, or SEED:SIZE.
    fn meta(&self) -> Option<Vec<u8>> {
        let text = self.get("meta")?;
        Some(match text.split_once(':') {
            Some((seed, n)) => pattern(seed, n.parse().expect("a size")),
            None => (0..text.len() / 2)
                .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("a byte"))
                .collect(),
        })
    }
}

fn pattern(seed: &str, n: usize) -> Vec<u8> {
    let seed: usize = seed.parse().expect("a seed");
    (0..n).map(|i| (seed + i) as u8).collect()
}

macro_rules! get {
    ($self:ident, $name:expr, $kind:ident) => {
        match $self.objects.get($name) {
            Some(Object::$kind(x, ..)) => x,
            _ => panic!("{} is no {}", $name, stringify!($kind)),
        }
    };
}

impl Adapter {
    fn put(&mut self, name: &str, object: Object) -> Answer {
        self.release(name);
        self.objects.insert(name.into(), object);
        Ok("ok".into())
    }

    fn release(&mut self, name: &str) {
        if let Some(Object::Service(service)) = self.objects.remove(name) {
            // SAFETY: of Box::leak(), and no request of it is left.
            drop(unsafe { Box::from_raw(std::ptr::from_ref(service).cast_mut()) });
        }
    }

    fn reset(&mut self) -> Answer {
        self.objects.retain(|_, object| !matches!(object, Object::Request(_)));
        for name in self.objects.keys().cloned().collect::<Vec<_>>() {
            self.release(&name);
        }
        Ok("ok".into())
    }

    fn took(&mut self, name: &str, m: Message) -> Answer {
        let ret = message(&m);
        self.put(name, Object::Message(m))?;
        ret
    }

    fn message(&self, name: &str) -> Message {
        match &self.objects[name] {
            Object::Request(request) => request.message(),
            _ => get!(self, name, Message).clone(),
        }
    }

    /// Allocates and fills DTYPE:SHAPE:SEED.
    fn make(&self, owner: &str, text: &str) -> Answer<Box<dyn Held>> {
        let parts: Vec<_> = text.split(':').collect();
        let dtype: DType = parts[0].parse()?;
        let shape: Result<Vec<usize>, _> = match parts[1] {
            "-" => Ok(vec![]),
            sizes => sizes.split(',').map(str::parse).collect(),
        };
        let shape = shape.map_err(Failed::refused)?;
        if parts.len() > 3 {
            return Err(Failed::unsupported("strides"));
        }
        let mut tensor: Box<dyn Held> = match (&self.objects[owner], parts[0]) {
            (Object::Publisher(p, _), "float64") => Box::new(p.alloc::<f64>(&shape)?),
            (Object::Publisher(p, _), _) => Box::new(p.alloc_bytes(dtype, &shape)?),
            (Object::Caller(k), "uint8") => Box::new(k.alloc::<u8>(&shape)?),
            (Object::Caller(k), "float32") => Box::new(k.alloc::<f32>(&shape)?),
            (Object::Request(r), "uint8") => Box::new(r.alloc::<u8>(&shape)?),
            (Object::Request(r), "float32") => Box::new(r.alloc::<f32>(&shape)?),
            _ => panic!("{owner} allocates no {text}"),
        };
        let bytes = tensor.bytes_mut().expect("a loan");
        bytes.copy_from_slice(&pattern(parts[2], bytes.len()));
        Ok(tensor)
    }

    /// The items from word `first` on.
    fn items(&mut self, c: &Command, owner: &str, first: usize) -> Answer<Vec<Item>> {
        let mut ret = vec![];
        for word in &c.words[first..] {
            let (name, rest) = word.split_at(word.find([':', '@']).expect("an item"));
            let name = if name == "-" { "" } else { name };
            let (tensor, from) = if let Some(from) = rest.strip_prefix('@') {
                let Some(Object::Tensor(tensor)) = self.objects.remove(from) else {
                    panic!("{from} is no tensor")
                };
                (tensor, Some(from.to_string()))
            } else {
                (self.make(owner, &rest[1..])?, None)
            };
            ret.push((name.to_string(), tensor, from));
        }
        Ok(ret)
    }

    fn set(c: &Command, items: Vec<Item>) -> Set {
        let mut set = Set::new();
        for (name, tensor, _) in items {
            set = set.tensor(name, tensor.into_managed());
        }
        match c.meta() {
            Some(meta) => set.meta(meta),
            None => set,
        }
    }

    fn publish(&mut self, c: &Command) -> Answer {
        let name = &c.words[1];
        let mut items = self.items(c, name, 2)?;
        let p = get!(self, name, Publisher);
        let options = PublishOptions {
            timeout: c.time("timeout"),
            strict: c.get("strict").is_some(),
            ..Default::default()
        };
        let mut back = vec![];
        let result = if items.len() == 1 && items[0].0.is_empty() && c.meta().is_none() {
            let (_, tensor, from) = items.remove(0);
            if c.get("share").is_some() {
                let (tensor, result) = tensor.share(p, &options);
                back.push((from, tensor));
                result
            } else {
                tensor.publish(p, &options).map_err(|(tensor, e)| {
                    back.push((from, tensor));
                    e.into()
                })
            }
        } else {
            let from: Vec<_> = items.iter().map(|(_, _, from)| from.clone()).collect();
            p.publish_set_with(Adapter::set(c, items), &options).map_err(|rejected| {
                for (from, (_, tensor)) in from.into_iter().zip(rejected.value.into_tensors()) {
                    back.push((from, Box::new(tensor) as Box<dyn Held>));
                }
                rejected.error.into()
            })
        };
        for (from, tensor) in back {
            if let Some(from) = from {
                self.put(&from, Object::Tensor(tensor))?;
            }
        }
        let r = result?;
        Ok(format!("ok seq={} copied={} subscribers={}", r.seq, r.n_copied, r.n_subscribers))
    }

    fn call_parts(&mut self, c: &Command) -> Answer<(Set, CallOptions)> {
        let options = CallOptions {
            timeout: c.time("timeout"),
            idempotent: c.get("idempotent").is_some(),
            ..Default::default()
        };
        let items = self.items(c, &c.words[2], 3)?;
        Ok((Adapter::set(c, items), options))
    }

    fn subscribe(&self, c: &Command) -> Answer<Object> {
        let options = SubscribeOptions {
            mode: if c.get("latest").is_some() { Mode::Latest } else { Mode::All },
            history: match c.get("history") {
                None => History::Retained,
                Some("none") => History::None,
                Some(n) => History::Newest(n.parse().expect("a number")),
            },
            reliable: c.get("reliable").is_some(),
            accepts_unreliable: c.get("accepts_unreliable").is_some(),
            max_held: c.number("max_held"),
            ends: match c.get("publishers") {
                None => Ends::Default,
                Some("any") => Ends::Never,
                Some(n) => Ends::After(n.parse().expect("a number")),
            },
            group: c.get("group").map(String::from),
            lease: c.time("lease"),
            max_attempts: c.number("max_attempts"),
            dead_letters: c.get("dead_letters").map(String::from),
            ..Default::default()
        };
        let client = get!(self, &c.words[2], Client);
        Ok(Object::Subscription(client.subscribe_with(&c.words[3], &options)?, String::new()))
    }

    fn publisher(&self, c: &Command) -> Answer<Object> {
        let options = PublisherOptions {
            history: c.number("history"),
            on_full: match c.get("on_full") {
                Some("block") => OnFull::Block,
                Some("drop") => OnFull::Drop,
                _ => OnFull::Default,
            },
            depth: c.number("depth"),
            retain: c.number("retain"),
            retain_for: match c.get("retain_for") {
                None => RetainFor::Forever,
                Some("latched") => RetainFor::Latched,
                Some(ms) => RetainFor::Time(time(ms)),
            },
            max_held: c.number("max_held"),
            min_subscribers: c.number("require"),
            groups: c.get("groups").map_or(vec![], |g| g.split(',').map(String::from).collect()),
            ..Default::default()
        };
        let client = get!(self, &c.words[2], Client);
        Ok(Object::Publisher(client.publisher_with(&c.words[3], &options)?, String::new()))
    }

    fn events(&mut self, name: &str) -> Answer {
        let (mut new, mut text) = (vec![], String::new());
        let next = || match &self.objects[name] {
            Object::Publisher(p, _) => p.next_event(),
            _ => get!(self, name, Subscription).next_event(),
        };
        while let Some(e) = next()? {
            new.push(format!(" {}:{}:{}", snake(e.kind), e.topic, e.pid));
        }
        if let Some(Object::Publisher(_, all) | Object::Subscription(_, all)) =
            self.objects.get_mut(name)
        {
            all.extend(new);
            text.clone_from(all);
        }
        Ok(format!("ok{text}"))
    }

    fn observe(&self, c: &Command) -> Answer<Object> {
        let what = match c.get("kinds") {
            Some("publishers") => Observe::Publishers,
            Some("subscriptions") => Observe::Subscriptions,
            _ => Observe::Both,
        };
        let client = get!(self, &c.words[2], Client);
        Ok(Object::Observer(client.observe(&c.words[3], what)?, String::new()))
    }

    /// Keeps a change, and describes it.
    fn keep(&mut self, name: &str, change: &Change) -> String {
        let text = changed(change);
        if let Some(Object::Observer(_, all)) = self.objects.get_mut(name) {
            let _ = write!(all, " {text}");
        }
        text
    }

    fn changes(&mut self, name: &str) -> Answer {
        while let Some(change) = get!(self, name, Observer).try_next()? {
            self.keep(name, &change);
        }
        match &self.objects[name] {
            Object::Observer(_, all) => Ok(format!("ok{all}")),
            _ => panic!("{name} is no Observer"),
        }
    }

    fn stats(&self, name: &str) -> Answer {
        Ok(match &self.objects[name] {
            Object::Publisher(p, _) => {
                let s = p.stats()?;
                format!(
                    "ok published={} bytes={} copied={} refused={} subscribers={}",
                    s.published, s.published_bytes, s.copied, s.refused, s.n_subscribers
                )
            }
            Object::Caller(k) => {
                let s = k.stats()?;
                format!(
                    "ok calls={} replies={} failed={} timed_out={} cancelled={} in_flight={}",
                    s.calls, s.replies, s.failed, s.timed_out, s.cancelled, s.n_in_flight
                )
            }
            Object::Service(v) => {
                let s = v.stats()?;
                let (requests, replies) = (s.requests, s.replies);
                format!(
                    "ok requests={requests} replies={replies} errors={} held={}",
                    s.errors, s.n_held
                )
            }
            _ => {
                let s = get!(self, name, Subscription).stats()?;
                format!(
                    "ok taken={} bytes={} skipped={} lost={} held={} publishers={} daemon={} \
                     done={} redelivered={} dead={}",
                    s.taken,
                    s.taken_bytes,
                    s.skipped,
                    s.lost,
                    s.n_held,
                    s.n_publishers,
                    u8::from(s.has_daemon),
                    s.done,
                    s.redelivered,
                    s.dead
                )
            }
        })
    }

    fn poll(&self, name: &str, ms: &str) -> Answer {
        let fd = match &self.objects[name] {
            Object::Publisher(p, _) => p.poll_fd(),
            Object::Observer(o, _) => o.poll_fd(),
            Object::Caller(k) => k.poll_fd(),
            Object::Service(v) => v.poll_fd(),
            _ => get!(self, name, Subscription).poll_fd(),
        }?;
        let mut fd = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor.
        let n = unsafe { libc::poll(&mut fd, 1, ms.parse().expect("a time")) };
        if n == 1 { Ok("ok".into()) } else { Err(Failed::none()) }
    }

    fn result(&mut self, k: &str, ms: &str) -> Answer {
        let result = match (get!(self, k, Caller), ms) {
            (k, "0") => k.try_take()?.ok_or_else(Failed::none)?,
            (k, ms) => timed(k.take_timeout(time(ms)))?,
        };
        let is_it = |o: &Object| matches!(o, Object::Call(call) if *call == result.call);
        let name = self.objects.iter().find(|(_, o)| is_it(o)).expect("its name").0.clone();
        let text = match result.reply {
            Ok(reply) => self.took(&name, reply)?,
            Err(e) => Failed::call(&e),
        };
        Ok(format!("{name} {text}"))
    }

    fn run(&mut self, c: &Command) -> Answer {
        let w: Vec<&str> = c.words.iter().map(String::as_str).collect();
        match *w {
            ["version"] => return Ok(format!("ok {}", dlx::version())),
            ["supports", _] => {}
            ["connect", name] => {
                let ask = || HAS_SIGNAL.load(Ordering::Relaxed);
                let options = ConnectOptions {
                    interrupt: c.get("interrupt").map(|_| Interrupt::new(ask)),
                    socket: c.get("socket").map(Into::into),
                    name: c.get("name").map(String::from),
                    timeout: c.time("timeout"),
                    wait: c.time("wait"),
                    autospawn: false,
                };
                return self.put(name, Object::Client(Client::connect_with(&options)?));
            }
            ["publisher", name, ..] => return self.put(name, self.publisher(c)?),
            ["subscribe", name, ..] => return self.put(name, self.subscribe(c)?),
            ["alloc", name, p, text] => return self.put(name, Object::Tensor(self.make(p, text)?)),
            ["publish", ..] => return self.publish(c),
            ["wait", x, n, ms] => match &self.objects[x] {
                Object::Caller(k) => timed(k.wait(time(ms)))?,
                _ => timed(get!(self, x, Publisher).wait(n.parse().expect("n"), time(ms)))?,
            },
            ["drain", p, ms] => timed(get!(self, p, Publisher).drain(time(ms)))?,
            ["take", name, s, ms] => {
                let m = match (get!(self, s, Subscription), ms) {
                    (s, "0") => s.try_take()?.ok_or_else(Failed::none)?,
                    (s, "forever") => s.take()?,
                    (s, ms) => timed(s.take_timeout(time(ms)))?,
                };
                return self.took(name, m);
            }
            ["get", name, client, topic, ms] => {
                let m = timed(get!(self, client, Client).get(topic, time(ms)))?;
                return self.took(name, m);
            }
            ["take_many", name, s, n, ms] => {
                let s = get!(self, s, Subscription);
                let messages = timed(s.take_many(n.parse().expect("n"), time(ms)))?;
                let text: String = messages.iter().map(|m| format!(" {}", m.seq())).collect();
                for (i, m) in messages.into_iter().enumerate() {
                    self.put(&format!("{name}.{i}"), Object::Message(m))?;
                }
                return Ok(format!("ok{text}"));
            }
            ["rest", s] => {
                let mut text = String::from("ok");
                for m in get!(self, s, Subscription) {
                    let _ = write!(text, " {}", m?.seq());
                }
                return Ok(text);
            }
            ["tensor" | "private", name, m, which] => {
                let m = self.message(m);
                let i = match which.strip_prefix('@') {
                    Some(name) => m.find(name)?,
                    None => which.parse().expect("an index"),
                };
                let open = if w[0] == "private" { open_private } else { open };
                let mut tensor = open(&m, i)?;
                let text = looked_at(&mut tensor);
                self.put(name, Object::Tensor(tensor))?;
                return Ok(text);
            }
            ["look" | "write", t, ..] => {
                let Some(Object::Tensor(tensor)) = self.objects.get_mut(t) else {
                    panic!("{t} is no tensor")
                };
                if let Some(seed) = w.get(2) {
                    let Some(bytes) = tensor.bytes_mut() else {
                        return Err(Failed::refused("a Tensor derefs to no mutable slice"));
                    };
                    bytes.copy_from_slice(&pattern(seed, bytes.len()));
                }
                return Ok(looked_at(tensor));
            }
            ["done", m] => self.message(m).done()?,
            ["give_back", m] => self.message(m).give_back()?,
            ["renew", m] => self.message(m).renew()?,
            ["events", x] => return self.events(x),
            ["observe", name, ..] => return self.put(name, self.observe(c)?),
            ["next", name, ms] => {
                let change = match (get!(self, name, Observer), ms) {
                    (o, "0") => o.try_next()?.ok_or_else(Failed::none)?,
                    (o, "forever") => o.next()?,
                    (o, ms) => timed(o.next_timeout(time(ms)))?,
                };
                return Ok(format!("ok {}", self.keep(name, &change)));
            }
            ["changes", name] => return self.changes(name),
            ["qos", name] => {
                let m = get!(self, name, Message);
                let qos = offered(&m.qos()?);
                return Ok(format!("ok {qos}:{}", u8::from(m.is_reliable()?)));
            }
            ["stats", x] => return self.stats(x),
            ["poll", x, ms] => return self.poll(x, ms),
            ["publishers", client, ..] => {
                let list = get!(self, client, Client).publishers(w.get(2).copied())?;
                let text = list.iter().map(|p| {
                    let retained = u8::from(p.retained);
                    format!(" {}:{}:{}:{retained}", p.topic, p.client_name, p.published)
                });
                return Ok(format!("ok{}", text.collect::<String>()));
            }
            ["groups", client, ..] => {
                let list = get!(self, client, Client).groups(w.get(2).copied())?;
                let text = list.iter().map(|g| {
                    let counts = numbers(&[g.waiting, g.in_flight, g.done]).replace(',', ":");
                    format!(" {}:{}:{}:{counts}", g.topic, g.name, g.n_workers)
                });
                return Ok(format!("ok{}", text.collect::<String>()));
            }
            ["drop_retained", client, topic] => get!(self, client, Client).drop_retained(topic)?,
            ["drop_queue", client, topic] => get!(self, client, Client).drop_queue(topic)?,
            ["caller", name, client, topic] => {
                let max_in_flight = c.number("max_in_flight");
                let options = CallerOptions { max_in_flight, ..Default::default() };
                let caller = get!(self, client, Client).caller_with(topic, &options)?;
                return self.put(name, Object::Caller(caller));
            }
            ["service", name, client, topic] => {
                let options =
                    ServiceOptions { max_held: c.number("max_held"), ..Default::default() };
                let service = get!(self, client, Client).service_with(topic, &options)?;
                return self.put(name, Object::Service(Box::leak(Box::new(service))));
            }
            ["call", name, k, ..] => {
                let (set, options) = self.call_parts(c)?;
                match get!(self, k, Caller).call_with(set, &options) {
                    Ok(reply) => return self.took(name, reply),
                    Err(e) => return Err(Failed(Failed::call(&e))),
                }
            }
            ["begin", name, k, ..] => {
                let (set, options) = self.call_parts(c)?;
                let call = get!(self, k, Caller).begin(set, &options).map_err(Error::from)?;
                return self.put(name, Object::Call(call));
            }
            ["result", k, ms] => return self.result(k, ms),
            ["cancel", k, name] => {
                get!(self, k, Caller).cancel(*get!(self, name, Call))?;
                self.release(name);
            }
            ["serve", name, v, ms] => {
                let service: &'static Service = get!(self, v, Service);
                let request = match ms {
                    "0" => service.try_take()?.ok_or_else(Failed::none)?,
                    "forever" => service.take()?,
                    ms => timed(service.take_timeout(time(ms)))?,
                };
                let text = message(&request.message());
                self.put(name, Object::Request(request))?;
                return text;
            }
            ["reply", r, ..] => {
                let items = self.items(c, r, 2)?;
                get!(self, r, Request).reply(Adapter::set(c, items)).map_err(Error::from)?;
            }
            ["reply_error", r, code, text] => {
                get!(self, r, Request).reply_error(code.parse().expect("a code"), text)?;
            }
            ["cancelled", r] => {
                return Ok(format!("ok {}", u8::from(get!(self, r, Request).is_cancelled())));
            }
            ["drop", name] => self.release(name),
            ["reset"] => return self.reset(),
            _ => return Err(Failed::unsupported(w[0])),
        }
        Ok("ok".into())
    }

    fn say(&mut self, line: &str) {
        let (Ok(text) | Err(Failed(text))) = self.run(&Command::parse(line));
        println!("{}", text.replace('\n', " "));
    }

    /// Messages and tensors may go to other threads, and come back.
    fn say_in_thread(&mut self, line: &str) {
        let name = line.split(' ').nth(1).expect("a name").to_string();
        let (message, tensor) = match self.objects.remove(&name) {
            Some(Object::Message(m)) => (Some(m), None),
            Some(Object::Tensor(t)) => (None, Some(t)),
            _ => panic!("{name} is no message and no tensor"),
        };
        let (line, moved) = (line.to_string(), name.clone());
        let thread = std::thread::spawn(move || {
            let mut adapter = Adapter::default();
            let object = message.map(Object::Message).or(tensor.map(Object::Tensor));
            adapter.objects.insert(moved.clone(), object.expect("an object"));
            adapter.say(&line);
            match adapter.objects.remove(&moved) {
                Some(Object::Tensor(tensor)) => Some(tensor),
                _ => None,
            }
        });
        if let Some(tensor) = thread.join().expect("no panic") {
            self.objects.insert(name, Object::Tensor(tensor));
        }
    }
}

/// A signal came during the command.
static HAS_SIGNAL: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: libc::c_int) {
    HAS_SIGNAL.store(true, Ordering::Relaxed);
}

fn main() {
    // SAFETY: the handler stores a number; waits of libdlx end when it has run.
    unsafe { libc::signal(libc::SIGUSR1, on_signal as *const () as libc::sighandler_t) };
    let mut adapter = Adapter::default();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        HAS_SIGNAL.store(false, Ordering::Relaxed);
        if let Some(line) = line.strip_prefix("fork ") {
            // SAFETY: this process has one thread; the child ends without running destructors.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                adapter.say(line);
                // SAFETY: likewise.
                unsafe { libc::_exit(0) };
            }
            // SAFETY: nobody asks for the status.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        } else if let Some(line) = line.strip_prefix("thread ") {
            adapter.say_in_thread(line);
        } else {
            adapter.say(&line);
        }
    }
    let _ = adapter.reset();
    exit(0);
}
