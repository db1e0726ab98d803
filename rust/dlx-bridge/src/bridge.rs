// SPDX-License-Identifier: Apache-2.0
//! The bridge: one thread that knows which topics there are, here and elsewhere, and one thread for
//! each flow.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dlx::{Change, Client, ErrorKind, Observe, Observer};

use crate::config::{Config, is_host};
use crate::direct::{self, Door, Invitation, Reach, Stream};
use crate::export::{self, Export};
use crate::flow::{Generation, Want};
use crate::import::{Import, Inbox};
use crate::mailbox::Mailbox;
use crate::metrics::Metrics;
use crate::offer::{Offer, is_bridge};
use crate::path::{DataPath, Listener, Received};
use crate::tls::Keys;
use crate::wire::Frame;
use crate::{Every, lock, say};

/// How soon after a change the daemon is asked which topics it has, so that many changes are one.
const SETTLE: Duration = Duration::from_millis(20);
/// How often it is asked while a topic may have ended, or if it tells no changes (it is older than
/// protocol 2.9).
const SCAN: Duration = Duration::from_millis(250);
/// A topic without a publisher has ended after so long: a program may have been restarted.
const GRACE: Duration = Duration::from_secs(1);
/// Most flows. A peer can ask for one for each topic, and, unless access rules forbid it, for each
/// name of a host that it makes up.
pub const MAX_FLOWS: usize = 32_768;
/// File descriptors of a flow, or a few more.
const FDS_OF_FLOW: u64 = 8;
/// Most things that the bridge's own thread may have to do: all topics may come at once.
const MAX_TASKS: usize = MAX_FLOWS;
/// Most remarks that are made once.
const MAX_SAID: usize = 1024;
/// Most publishers of which it is known whether they are bridges.
const MAX_PUBLISHERS: usize = 65_536;
/// Most wants that wait for the thread of a flow: the next one says the same and more.
const MAX_WANTS: usize = 64;

/// How other hosts are reached.
pub struct Ways {
    pub path: Arc<dyn DataPath>,
    /// Where other hosts can open streams.
    pub door: Option<Arc<Door>>,
    /// Of `[tls]`.
    pub keys: Option<Arc<Keys>>,
}

/// What all threads know.
pub struct Shared {
    pub config: Config,
    pub client: Client,
    pub ways: Ways,
    pub metrics: Arc<Metrics>,
    /// A random number of this process.
    pub instance: u64,
    n_imports: AtomicU64,
    stopping: Arc<AtomicBool>,
    complaints: Mutex<Every>,
    detours: Mutex<Every>,
    /// The newest publishers here, also those that have left: are they bridges?
    publishers: Mutex<BTreeMap<u64, bool>>,
}

impl Shared {
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// None: the observer was not told of such a publisher.
    pub fn is_of_bridge(&self, publisher: u64) -> Option<bool> {
        lock(&self.publishers).get(&publisher).copied()
    }

    fn note_publisher(&self, id: u64, is_bridge: bool) {
        let mut publishers = lock(&self.publishers);
        publishers.insert(id, is_bridge);
        if publishers.len() > MAX_PUBLISHERS {
            publishers.pop_first(); // ids count up
        }
    }

    /// The first generation of a flow, with room for as many as it will ever need: the next flow of
    /// the same topic begins beyond them.
    pub fn generation(&self) -> Generation {
        let count = (self.n_imports.fetch_add(1, Ordering::Relaxed) + 1) << 32;
        Generation { instance: self.instance, count }
    }

    /// Opens a stream of a flow's own; None: it cannot be, which is said.
    pub fn open_stream(&self, host: &str, topic: &str, invitation: &Invitation) -> Option<Stream> {
        direct::connect(invitation, self.ways.keys.as_deref())
            .inspect_err(|e| self.detour(host, topic, &format!("it cannot be reached at {e}")))
            .ok()
    }

    /// A flow goes through zenoh although one side has a door.
    pub fn detour(&self, host: &str, topic: &str, why: &str) {
        if !self.is_stopping() && lock(&self.detours).is_due() {
            say(format_args!(
                "{topic}: all goes through zenoh, which is slower, since there is no stream to \
                 {host}: {why} (see `direct`)"
            ));
        }
    }

    /// A peer sent what cannot be.
    pub fn complain(&self, host: &str, topic: &str, why: &str) {
        self.metrics.bad_frames.add(1);
        if lock(&self.complaints).is_due() {
            say(format_args!("{host} sent a bad frame of {topic:?}, which is dropped: {why}"));
        }
    }
}

fn printable(host: &str) -> String {
    host.escape_debug().take(80).collect()
}

const NO_HOST: &str = "a name of 1 to 63 bytes of [A-Za-z0-9_.-] is one of a host";

/// A host and a topic of it, or for it.
type Key = (String, String);

/// What the bridge's own thread has to do.
pub enum Task {
    /// A want that no flow is there for.
    Want(Key, Want, Reach),
    Offer {
        host: String,
        instance: u64,
        offer: Offer,
        is_there: bool,
    },
}

/// Finds the flow that a frame is for.
struct Switch {
    shared: Arc<Shared>,
    tasks: Arc<Mailbox<Task>>,
    n_tasks: AtomicUsize,
    exports: Mutex<HashMap<Key, Arc<Mailbox<export::Event>>>>,
    imports: Mutex<HashMap<Key, Arc<Inbox>>>,
}

impl Switch {
    fn add_task(&self, host: &str, topic: &str, task: Task) {
        if self.n_tasks.fetch_add(1, Ordering::Relaxed) >= MAX_TASKS {
            self.n_tasks.fetch_sub(1, Ordering::Relaxed);
            let why = format!("{MAX_TASKS} topics wait already (limit {MAX_TASKS})");
            return self.shared.complain(host, topic, &why);
        }
        self.tasks.push(task);
    }
}

impl Listener for Switch {
    fn on_frame(&self, host: &str, received: Received) {
        if !is_host(host) {
            return self.shared.complain(&printable(host), "?", NO_HOST);
        }
        let (topic, frame, header) = match Frame::parse(&received.start, received.total) {
            Ok(parsed) => parsed,
            Err(e) => return self.shared.complain(host, "?", &e.0),
        };
        let key = (host.to_string(), topic);
        if let Frame::Want(want, reach) = frame {
            match lock(&self.exports).get(&key) {
                Some(flow) if flow.len() < MAX_WANTS => {
                    flow.push(export::Event::Want(want, reach));
                }
                Some(_) => (), // the next one says the same and more
                None => self.add_task(host, &key.1.clone(), Task::Want(key, want, reach)),
            }
            return;
        }
        let inbox = lock(&self.imports).get(&key).cloned();
        if let Some(inbox) = inbox
            && !inbox.push(frame, received, header)
        {
            self.shared.complain(host, &key.1, "it has sent more than its credits allow");
        }
    }

    fn on_offer(&self, host: &str, offer: &str, is_there: bool) {
        if !is_host(host) {
            return self.shared.complain(&printable(host), offer, NO_HOST);
        }
        let Some((instance, offer)) = Offer::parse(offer) else {
            return self.shared.complain(host, offer, "it is no offer of a topic");
        };
        let topic = offer.topic.clone();
        let task = Task::Offer { host: host.into(), instance, offer, is_there };
        self.add_task(host, &topic, task);
    }
}

/// A topic that another host offers, or has offered.
struct Known {
    /// As what the thread publishes it.
    offer: Offer,
    /// By which instance, and as what, it is offered now: for another thread when this one has
    /// ended.
    now: Option<(u64, Offer)>,
    inbox: Arc<Inbox>,
    thread: JoinHandle<()>,
}

/// A topic that is offered to others.
struct Offered {
    offer: Offer,
    /// Offers it as long as it is there.
    _token: Box<dyn Send>,
    /// Since when it has no publisher.
    gone: Option<Instant>,
}

/// The bridge's own thread.
pub struct Bridge {
    shared: Arc<Shared>,
    switch: Arc<Switch>,
    offered: BTreeMap<String, Offered>,
    exports: Vec<(Key, JoinHandle<()>)>,
    known: HashMap<Key, Known>,
    /// What was said once.
    said: HashSet<String>,
    troubles: Every,
}

impl Bridge {
    pub fn new(
        config: Config,
        client: Client,
        ways: Ways,
        metrics: Arc<Metrics>,
        stopping: Arc<AtomicBool>,
        tasks: Arc<Mailbox<Task>>,
    ) -> Bridge {
        let shared = Arc::new(Shared {
            config,
            client,
            ways,
            metrics,
            instance: random(),
            n_imports: AtomicU64::new(0),
            stopping,
            complaints: Mutex::default(),
            detours: Mutex::default(),
            publishers: Mutex::default(),
        });
        let switch = Arc::new(Switch {
            shared: shared.clone(),
            tasks,
            n_tasks: Default::default(),
            exports: Mutex::default(),
            imports: Mutex::default(),
        });
        Bridge {
            shared,
            switch,
            offered: BTreeMap::new(),
            exports: Vec::new(),
            known: HashMap::new(),
            said: HashSet::new(),
            troubles: Every::default(),
        }
    }

    pub fn listener(&self) -> Arc<dyn Listener> {
        self.switch.clone()
    }

    /// Runs until the process is to end. Fails when an operator has cut the bridge off.
    pub fn run(mut self) -> Result<(), String> {
        let mut result = Ok(());
        let observer = match self.shared.client.observe("**", Observe::Publishers) {
            Ok(observer) => Some(observer),
            Err(e) => {
                say(format_args!("topics are looked up four times a second: {e}"));
                None
            }
        };
        let (mut scanned, mut has_changed) = (Instant::now(), true);
        while !self.shared.is_stopping() {
            while let Some(change) = observer.as_ref().map(Observer::try_next) {
                has_changed |= !matches!(change, Ok(None)); // an error may hide a change
                match change {
                    Err(e) if e.kind() == ErrorKind::Kicked => {
                        result = self.end(&e);
                        break;
                    }
                    Ok(Some(Change::Publisher { observed, .. })) => {
                        self.shared.note_publisher(observed.id, is_bridge(&observed.client_name));
                    }
                    Ok(Some(_)) => (),
                    Ok(None) | Err(_) => break,
                }
            }
            let looks = observer.is_none() || self.offered.values().any(|o| o.gone.is_some());
            has_changed |= looks;
            let pause = if looks { SCAN } else { SETTLE };
            if has_changed && scanned.elapsed() >= pause {
                (scanned, has_changed) = (Instant::now(), false);
                if let Err(e) = self.scan() {
                    has_changed = true;
                    if e.kind() == ErrorKind::Kicked {
                        result = self.end(&e);
                    } else if !self.shared.is_stopping() && self.troubles.is_due() {
                        say(format_args!("the topics of the daemon are not known: {e}"));
                    }
                }
            }
            let fd = observer.as_ref().and_then(|observer| observer.poll_fd().ok());
            self.switch.tasks.wait(fd, if has_changed { pause } else { SCAN });
            let over = self.known.iter().filter(|(_, known)| known.thread.is_finished());
            let over = over.map(|(key, _)| key.clone()).collect();
            while let Some(task) = self.switch.tasks.pop() {
                self.switch.n_tasks.fetch_sub(1, Ordering::Relaxed);
                match task {
                    Task::Want(key, want, reach) => self.on_want(key, want, reach),
                    Task::Offer { host, instance, offer, is_there } => {
                        self.on_offer(host, instance, offer, is_there);
                    }
                }
            }
            self.collect(over);
        }
        lock(&self.switch.exports).values().for_each(|flow| flow.ring());
        self.known.values().for_each(|known| known.inbox.ring());
        self.offered.clear();
        let flows = self.exports.into_iter().map(|(_, thread)| thread);
        for thread in flows.chain(self.known.into_values().map(|known| known.thread)) {
            let _ = thread.join(); // a panic was reported
        }
        result
    }

    /// What an operator has cut off does not come back by itself.
    fn end(&self, kick: &dlx::Error) -> Result<(), String> {
        self.shared.stopping.store(true, Ordering::Relaxed);
        Err(format!("the bridge ends: {kick}"))
    }

    // ---- what is here -----------------------------------------------------------------------

    fn scan(&mut self) -> dlx::Result<()> {
        if self.shared.config.export.is_empty() {
            return Ok(());
        }
        let publishers = self.shared.client.publishers(None)?;
        let services: HashSet<String> = self
            .shared
            .client
            .groups(None)?
            .into_iter()
            .filter(|group| group.name == "service" && group.declared)
            .map(|group| group.topic)
            .collect();
        let mut offers = BTreeMap::new();
        for publishers in publishers.chunk_by(|a, b| a.topic == b.topic) {
            let Some(offer) = Offer::of(publishers) else { continue };
            if !self.shared.config.exports(&offer.topic) {
                continue;
            }
            if services.contains(&offer.topic) {
                if self.is_new(&offer.topic) {
                    say(format_args!(
                        "{} is a service and is not exported: work queues and calls end at the \
                         machine",
                        offer.topic
                    ));
                }
                continue;
            }
            offers.insert(offer.topic.clone(), offer);
        }
        let topics: Vec<_> = self.offered.keys().cloned().collect();
        for topic in topics {
            let offered = self.offered.get_mut(&topic).expect("it is there");
            match offers.remove(&topic) {
                Some(offer) if offer == offered.offer => offered.gone = None,
                Some(offer) => self.offer(offer),
                None => {
                    if offered.gone.get_or_insert_with(Instant::now).elapsed() > GRACE {
                        self.offered.remove(&topic);
                        self.tell_flows(&topic, true);
                    }
                }
            }
        }
        for offer in offers.into_values() {
            self.offer(offer);
        }
        Ok(())
    }

    fn tell_flows(&self, topic: &str, gone: bool) {
        for (_, flow) in lock(&self.switch.exports).iter().filter(|(key, _)| key.1 == topic) {
            flow.push(export::Event::Gone(gone));
        }
    }

    /// Offers a topic, instead of what it was offered as before.
    fn offer(&mut self, offer: Offer) {
        match self.shared.ways.path.offer(&offer.encode(self.shared.instance)) {
            Ok(token) => {
                self.tell_flows(&offer.topic, false);
                let offered = Offered { offer: offer.clone(), _token: token, gone: None };
                self.offered.insert(offer.topic, offered);
            }
            Err(e) if self.troubles.is_due() => {
                say(format_args!("{} could not be offered: {e}", offer.topic));
            }
            Err(_) => (),
        }
    }

    fn on_want(&mut self, key: Key, want: Want, reach: Reach) {
        if let Some(flow) = lock(&self.switch.exports).get(&key) {
            if flow.len() < MAX_WANTS {
                flow.push(export::Event::Want(want, reach));
            }
            return;
        }
        if want.close {
            return;
        }
        let Some(offered) = self.offered.get(&key.1) else { return };
        if self.is_full(&key) {
            return;
        }
        let offer = offered.offer.clone();
        let (shared, host) = (self.shared.clone(), key.0.clone());
        let flow = match Mailbox::new() {
            Ok(flow) => flow,
            Err(e) => return say(format_args!("{}: no flow to {host}: {e}", key.1)),
        };
        flow.push(export::Event::Want(want, reach));
        let (switch, mailbox, own) = (self.switch.clone(), flow.clone(), key.clone());
        let thread = thread::Builder::new().name("export".into()).spawn(move || {
            Export::new(shared, &host, offer, mailbox).run();
            lock(&switch.exports).remove(&own);
        });
        match thread {
            Ok(thread) => {
                // The thread may have ended already; then collect() takes its entry away.
                lock(&self.switch.exports).insert(key.clone(), flow);
                self.exports.push((key, thread));
            }
            Err(e) => say(format_args!("{}: no thread for its flow to {}: {e}", key.1, key.0)),
        }
    }

    // ---- what is elsewhere ------------------------------------------------------------------

    fn on_offer(&mut self, host: String, instance: u64, offer: Offer, is_there: bool) {
        if host == self.shared.config.host {
            if instance != self.shared.instance && is_there && self.is_new(&host) {
                say(format_args!(
                    "another bridge of realm {} has the name {host}, too, which two cannot have: \
                     set host in one of them",
                    self.shared.config.realm
                ));
            }
            return;
        }
        let Some(local) = self.shared.config.import_as(&host, &offer.topic) else { return };
        let key = (host, offer.topic.clone());
        if !dlx::topic::is_name(&local) {
            if is_there && self.is_new(&local) {
                say(format_args!(
                    "{} of {} is not imported: {local:?} is no name of a topic, which has at most \
                     255 bytes",
                    key.1, key.0
                ));
            }
            return;
        }
        let Some(known) = self.known.get_mut(&key) else {
            if is_there {
                self.import(key, instance, offer, local);
            }
            return;
        };
        let told = Some((instance, offer));
        if is_there {
            if told.as_ref().is_some_and(|(_, offer)| *offer == known.offer) {
                known.inbox.offer();
            } else {
                known.inbox.replace();
            }
            known.now = told;
        } else if known.now == told {
            known.now = None;
            known.inbox.withdraw();
        }
    }

    fn import(&mut self, key: Key, instance: u64, offer: Offer, local: String) {
        if self.is_full(&key) {
            return;
        }
        let inbox = match Inbox::new(self.shared.config.window) {
            Ok(inbox) => inbox,
            Err(e) => return say(format_args!("{} of {}: no flow: {e}", key.1, key.0)),
        };
        let flow = Import::new(self.shared.clone(), &key.0, offer.clone(), local, inbox.clone());
        let tasks = self.switch.tasks.clone();
        let thread = thread::Builder::new().name("import".into()).spawn(move || {
            flow.run();
            tasks.ring();
        });
        match thread {
            Ok(thread) => {
                lock(&self.switch.imports).insert(key.clone(), inbox.clone());
                let now = Some((instance, offer.clone()));
                self.known.insert(key, Known { offer, now, inbox, thread });
            }
            Err(e) => say(format_args!("{} of {}: no thread: {e}", key.1, key.0)),
        }
    }

    /// Is there no room for another flow? Half of all are for one host.
    fn is_full(&self, new: &Key) -> bool {
        let (n, most) = (self.exports.len() + self.known.len(), most_flows());
        if n < most / 2 {
            return false;
        }
        let all = self.exports.iter().map(|(key, _)| key).chain(self.known.keys());
        let n_of_host = all.filter(|key| key.0 == new.0).count();
        let is_full = n >= most || n_of_host >= most / 2;
        if is_full {
            let why = format!(
                "there are {n} flows (limit {most}), {n_of_host} with this host (limit {}): more \
                 file descriptors (LimitNOFILE=) allow more",
                most / 2
            );
            self.shared.complain(&new.0, &new.1, &why);
        }
        is_full
    }

    /// Is this to be said? Not what was said before, and no endless number of things.
    fn is_new(&mut self, what: &str) -> bool {
        self.said.len() < MAX_SAID && self.said.insert(what.into())
    }

    /// Forgets flows that have ended. Those in `over` had ended before the tasks were looked at, so
    /// that a topic which came to its end is known to be withdrawn; another one begins anew.
    fn collect(&mut self, over: Vec<Key>) {
        self.exports.retain(|(_, thread)| !thread.is_finished());
        {
            let live: HashSet<_> = self.exports.iter().map(|(key, _)| key).collect();
            lock(&self.switch.exports).retain(|key, _| live.contains(key));
        }
        for key in over {
            lock(&self.switch.imports).remove(&key);
            let now = self.known.remove(&key).and_then(|known| known.now);
            if let Some((instance, offer)) = now
                && let Some(local) = self.shared.config.import_as(&key.0, &key.1)
            {
                self.import(key, instance, offer, local);
            }
        }
    }
}

/// As many flows as there are file descriptors for.
fn most_flows() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for the call, which cannot fail.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    MAX_FLOWS.min((limit.rlim_cur / FDS_OF_FLOW) as usize)
}

/// Allows as many file descriptors as the process may have: no call here is select(2).
pub fn raise_fd_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for the calls; where they fail, the limit stays as it is.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
}

/// Tells this process from an earlier one of the same host.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u64(crate::clock::realtime_ns());
    hasher.write_u32(std::process::id());
    hasher.finish()
}
