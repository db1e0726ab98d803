// SPDX-License-Identifier: Apache-2.0
//! Peers that lie, and peers that have no business here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use dlx::OnFull;
use zenoh::Wait;
use zenoh::liveliness::LivelinessToken;
use zenoh::qos::CongestionControl;

use crate::hosts::{Host, PATIENCE, free_port, pair, wait_until};
use crate::numbers::{publish, publisher, subscriber, take};
use crate::streams::knock;

/// A program that speaks zenoh and not the truth: it is called "evil".
pub struct Evil {
    session: zenoh::Session,
    frames: mpsc::Receiver<Vec<u8>>,
}

impl Evil {
    pub fn new(address: &str) -> Evil {
        Evil::with(&format!("tcp/{address}"), &[])
    }

    /// With more settings of zenoh.
    fn with(endpoint: &str, settings: &[(&str, String)]) -> Evil {
        let mut config = zenoh::Config::default();
        let own = [
            ("mode", "\"client\"".to_string()),
            ("scouting/multicast/enabled", "false".into()),
            ("connect/endpoints", format!("[\"{endpoint}\"]")),
            ("connect/timeout_ms", "10000".into()),
        ];
        for (key, value) in own.iter().chain(settings) {
            config.insert_json5(key, value).unwrap();
        }
        let session = zenoh::open(config).wait().unwrap();
        let (send, frames) = mpsc::channel();
        session
            .declare_subscriber("dlx/1/dlx/to/evil/*")
            .callback(move |sample| {
                let _ = send.send(sample.payload().to_bytes().into_owned()); // the test is over
            })
            .background()
            .wait()
            .unwrap();
        Evil { session, frames }
    }

    fn send(&self, frame: &[u8]) {
        self.send_as("evil", frame);
    }

    fn send_as(&self, host: &str, frame: &[u8]) {
        self.put("base", host, frame);
    }

    pub fn send_to(&self, host: &str, frame: &[u8]) {
        self.put(host, "evil", frame);
    }

    fn put(&self, to: &str, from: &str, frame: &[u8]) {
        let put = self.session.put(format!("dlx/1/dlx/to/{to}/{from}"), frame);
        put.congestion_control(CongestionControl::Block).wait().unwrap();
    }

    /// Offers a topic as long as it is there.
    pub fn offer(&self, host: &str, topic: &str) -> LivelinessToken {
        let offer = format!("dlx/1/dlx/offer/{host}/00000000000000ff/drops/16/0/{topic}");
        self.session.liveliness().declare_token(offer).wait().unwrap()
    }

    /// How many topics a host offers.
    pub fn n_offers(&self, host: &str) -> usize {
        let offers = self.session.liveliness().get(format!("dlx/1/dlx/offer/{host}/**"));
        offers.wait().unwrap().iter().count()
    }

    /// The next frame for it.
    pub fn frame(&self) -> Vec<u8> {
        self.frame_within(PATIENCE).unwrap()
    }

    pub fn frame_within(&self, time: Duration) -> Option<Vec<u8>> {
        self.frames.recv_timeout(time).ok()
    }

    /// The generation in the next want: 16 bytes after kind and topic.
    fn generation(&self) -> Vec<u8> {
        self.frame()[2 + TOPIC.len()..][..16].to_vec()
    }
}

pub const TOPIC: &str = "trap";

/// A host whose bridge has these options, and to which evil is connected.
pub fn beside_evil(name: &str, options: &[&str]) -> (Host, Evil) {
    let address = format!("127.0.0.1:{}", free_port());
    let mut host = Host::new(name, None);
    host.start_bridge(&[&[&*format!("--listen={address}")], options].concat());
    (host, Evil::new(&address))
}

/// The first piece of item 0, which says that it is of `size` bytes.
pub fn piece(generation: &[u8], offset: u64, head: &[u8], body: &[u8], size: u64) -> Vec<u8> {
    let mut frame = vec![2, TOPIC.len() as u8];
    frame.extend(TOPIC.as_bytes());
    frame.extend(generation);
    frame.extend(0_u64.to_le_bytes());
    frame.extend(offset.to_le_bytes());
    frame.extend((head.len() as u32).to_le_bytes());
    frame.extend(size.to_le_bytes());
    frame.extend(head);
    frame.extend(body);
    frame
}

/// A head of one tensor of bytes of this shape.
pub fn head(shape: &[u64], host: &str) -> Vec<u8> {
    let mut head = vec![1];
    for n in [1_u64, 1, 0, 0] {
        head.extend(n.to_le_bytes());
    }
    head.extend([1, host.len() as u8]);
    head.extend(host.as_bytes());
    head.extend(1_u16.to_le_bytes());
    head.extend(0_u32.to_le_bytes());
    head.extend([1, 8, 1, 0, shape.len() as u8, 0, 0]);
    for size in shape {
        head.extend(size.to_le_bytes());
    }
    head
}

#[test]
fn lies_of_a_peer_are_refused_and_change_nothing() {
    let address = format!("127.0.0.1:{}", free_port());
    let mut base = Host::new("base", None);
    base.start_bridge(&[&format!("--listen={address}"), "--export", "**", "--import", "**"]);
    let mut robot = Host::new("robot", None);
    robot.start_bridge(&["--connect", &address, "--export", "**", "--import", "**"]);
    let numbers = publisher(&robot.connect(), "numbers", OnFull::Block);
    let client = base.connect();
    let honest = subscriber(&client, "robot/numbers", true);
    numbers.wait(1, PATIENCE).unwrap();

    let evil = Evil::new(&address);
    let _token = evil.offer("evil", TOPIC);
    let trap = subscriber(&client, "evil/trap", false);
    let mut number = 0;
    let mut refused = 0;
    let mut assert_refused = |what: &str| {
        wait_until(what, || {
            let n = base.bad_frames();
            std::mem::replace(&mut refused, n) < n
        });
        publish(&numbers, number); // others go on
        assert_eq!(take(&honest), number);
        number += 1;
    };
    evil.send(b"");
    assert_refused("an empty frame");
    evil.send(&[9, 0]);
    assert_refused("an unknown kind");
    let generation = evil.generation();
    let whole = |head: &[u8], body: &[u8]| {
        piece(&generation, 0, head, body, (head.len() + body.len()) as u64)
    };
    let small = head(&[4], "evil");
    let size = small.len() as u64 + 4;
    evil.send(&piece(&generation, 0, &small, &[0; 5], size));
    assert_refused("more bytes than the item has");
    evil.send(&piece(&generation, u64::MAX, &[], &[0; 4], size));
    assert_refused("bytes far outside of the item");
    evil.send(&vec![2; 3 << 20]);
    assert_refused("noise");

    // Each of these begins a generation or skips an item: the next want says where it goes on.
    evil.send(&whole(&head(&[u64::MAX], "evil"), &[0; 4]));
    assert_refused("a negative size");
    let mut next = 1_u64;
    let mut item = |frame: Vec<u8>| {
        let mut frame = frame;
        let at = 2 + TOPIC.len() + 16;
        frame[at..at + 8].copy_from_slice(&next.to_le_bytes());
        next += 1;
        evil.send(&frame);
    };
    item(whole(&head(&[1 << 62, 8], "evil"), &[0; 4]));
    assert_refused("more bytes than there are");
    item(whole(&head(&[1 << 40], "evil"), &[0; 4]));
    assert_refused("a message beyond max_message");
    item(whole(&head(&[5], "evil"), &[0; 4]));
    assert_refused("a tensor that is larger than the item");
    item(whole(&head(&[4], "base"), &[0; 4]));
    assert_refused("a message that has been here before");
    item(whole(&[7; 40], &[]));
    assert_refused("an item of an unknown kind");
    // Then the truth.
    item(whole(&head(&[4], "evil"), &[1, 2, 3, 4]));
    let message = trap.take_timeout(PATIENCE).unwrap();
    assert_eq!(message.slice::<u8>(0).unwrap(), [1, 2, 3, 4]);
    // Pieces that differ in what they say of their item.
    let large = head(&[2 << 20], "evil");
    let n = large.len() as u64;
    item(piece(&generation, 0, &large, &[7; 100], n + (2 << 20)));
    let mut frame = piece(&generation, n + 100, &[], &[7; 100], n + 200);
    let at = 2 + TOPIC.len() + 16;
    frame[at..at + 8].copy_from_slice(&7_u64.to_le_bytes());
    evil.send(&frame);
    assert_refused("an item that shrinks");
    assert!(trap.try_take().unwrap().is_none());
    assert!(base.read("bridge").contains("evil sent a bad frame"), "{}", base.read("bridge"));
}

#[test]
fn credits_bound_what_a_peer_can_leave_here() {
    let (base, evil) = beside_evil("base", &["--import", "**"]);
    let offer = "dlx/1/dlx/offer/evil/00000000000000ff/reliable/1/0/trap";
    let _token = evil.session.liveliness().declare_token(offer).wait().unwrap();
    let _trap = subscriber(&base.connect(), "evil/trap", true);
    let generation = evil.generation();
    // The subscriber takes nothing, so the flow stands still after a few messages.
    for number in 0..100_u64 {
        let mut first = head(&[1 << 19], "evil");
        first[9..17].copy_from_slice(&(number + 1).to_le_bytes()); // its seq
        let size = first.len() as u64 + (1 << 19);
        let mut frame = piece(&generation, 0, &first, &vec![0; 1 << 19], size);
        let at = 2 + TOPIC.len() + 16;
        frame[at..at + 8].copy_from_slice(&number.to_le_bytes());
        evil.send(&frame);
    }
    wait_until("it is refused", || base.bad_frames() > 0);
    assert!(base.read("bridge").contains("it has sent more than its credits allow"));
}

/// A peer may call itself anything, unless access rules forbid it.
#[test]
fn names_that_no_host_can_have_are_refused() {
    let (base, evil) = beside_evil("base", &["--import", "**"]);
    let names = [&"x".repeat(64), "a b", "\u{1b}[2J", "host name", ".."];
    let _tokens = names.map(|name| evil.offer(name, TOPIC));
    wait_until("they are refused", || base.bad_frames() == names.len() as u64);
    names.iter().for_each(|name| evil.send_as(name, &piece(&[0; 16], 0, b"head", b"", 4)));
    wait_until("their frames are refused", || base.bad_frames() == 2 * names.len() as u64);
    let _token = evil.offer(&"x".repeat(63), TOPIC);
    let client = base.connect();
    wait_until("a host is known", || !client.publishers(None).unwrap().is_empty());
    assert_eq!(client.publishers(None).unwrap()[0].topic, format!("{}/trap", "x".repeat(63)));
    assert!(!base.read("bridge").contains('\u{1b}'));
}

/// A host cannot take all flows from the others, whatever it offers.
#[test]
fn flows_of_one_host_are_bounded() {
    let (base, evil) = beside_evil("base", &["--import", "**"]);
    base.limit_fds(400); // for 50 flows
    let _tokens: Vec<_> = (0..30).map(|i| evil.offer("evil", &format!("trap/{i}"))).collect();
    wait_until("the last ones are refused", || base.bad_frames() == 5);
    let client = base.connect();
    let _token = evil.offer("other", TOPIC);
    wait_until("those of another host are not", || {
        client.publishers(Some("other/trap")).unwrap().len() == 1
    });
    wait_until("all others are known", || client.publishers(None).unwrap().len() == 26);
    let said = base.read("bridge");
    assert!(said.contains("25 flows (limit 50), 25 with this host (limit 25)"), "{said}");
}

/// The end of a topic may cross the offer of its next publisher.
#[test]
fn topics_that_are_offered_when_they_end_begin_anew() {
    let (base, evil) = beside_evil("base", &["--import", "**"]);
    let _token = evil.offer("evil", TOPIC);
    let trap = subscriber(&base.connect(), "evil/trap", false);
    let first = evil.generation();
    evil.send(&piece(&first, 0, &[3], &[], 1));
    let second = loop {
        let generation = evil.generation();
        if generation != first {
            break generation;
        }
    };
    let head = head(&[4], "evil");
    evil.send(&piece(&second, 0, &head, &[1, 2, 3, 4], head.len() as u64 + 4));
    let message = trap.take_timeout(PATIENCE).unwrap();
    assert_eq!(message.slice::<u8>(0).unwrap(), [1, 2, 3, 4]);
}

#[test]
fn offers_that_always_change_take_one_thread() {
    let (base, evil) = beside_evil("base", &["--import", "**"]);
    let _first = evil.offer("evil", "first");
    let client = base.connect();
    wait_until("a topic is known", || !client.publishers(None).unwrap().is_empty());
    let before = base.bridge_status("Threads:", 10);
    let mut most = 0;
    for i in 0..2000 {
        let offer = format!("dlx/1/dlx/offer/evil/00000000000000ff/drops/{}/0/trap", 1 + i % 2);
        drop(evil.session.liveliness().declare_token(offer).wait().unwrap());
        if i % 10 == 0 {
            most = most.max(base.bridge_status("Threads:", 10));
        }
    }
    let _last = evil.offer("evil", "last");
    wait_until("the last one is known", || {
        most = most.max(base.bridge_status("Threads:", 10));
        client.publishers(Some("evil/last")).unwrap().len() == 1
    });
    assert!(most <= before + 8, "{most} threads, and {before} before");
}

/// Makes an authority of this name and certificates for these hosts, in the folder of a host.
fn make_authority(host: &Host, name: &str, hosts: [&str; 2]) {
    let openssl = |arguments: &str| {
        let mut command = Command::new("openssl");
        let done = command.args(arguments.split(' ')).current_dir(host.path("")).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    let new = "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(&format!("{new} -x509 -subj /CN={name} -keyout {name}.key -out {name}.pem"));
    fs::write(host.path("names"), "subjectAltName=IP:127.0.0.1").unwrap();
    for one in hosts {
        openssl(&format!("{new} -subj /CN={one} -keyout {name}-{one}.key -out {name}-{one}.csr"));
        openssl(&format!(
            "x509 -req -in {name}-{one}.csr -CA {name}.pem -CAkey {name}.key -CAcreateserial \
             -extfile names -out {name}-{one}.pem"
        ));
    }
}

/// A configuration with certificates of an authority in `folder`, after other lines.
fn write_config(host: &Host, lines: &str, folder: &Path, authority: &str) -> PathBuf {
    let (file, name, folder) = (host.path("tls.toml"), &host.name, folder.display());
    let text = format!(
        "{lines}\n[tls]\nca = '{folder}/{authority}.pem'\n\
         certificate = '{folder}/{authority}-{name}.pem'\n\
         key = '{folder}/{authority}-{name}.key'\n"
    );
    fs::write(&file, text).unwrap();
    file
}

/// The rules of docs/BRIDGE.md, with which robot1 can speak for no other machine.
#[test]
fn access_rules_bind_hosts_to_their_certificates() {
    let address = format!("127.0.0.1:{}", free_port());
    let (mut base, mut robot) = (Host::new("base", None), Host::new("robot1", None));
    make_authority(&base, "ours", ["robot1", "base"]);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/BRIDGE.md");
    let page = fs::read_to_string(page).unwrap();
    let rules = page.split("```json5\n").nth(1).unwrap().split("```").next().unwrap();
    fs::write(base.path("rules.json5"), rules).unwrap();
    let folder = base.path("");
    let lines = format!("zenoh = {:?}\nimport = [{{ topics = '**' }}]", base.path("rules.json5"));
    let file = write_config(&base, &lines, &folder, "ours");
    base.start_bridge(&[&format!("--listen={address}"), "--config", file.to_str().unwrap()]);
    let file = write_config(&robot, "export = [{ topics = '**' }]", &folder, "ours");
    robot.start_bridge(&["--connect", &address, "--config", file.to_str().unwrap()]);
    let numbers = publisher(&robot.connect(), "numbers", OnFull::Block);
    let client = base.connect();
    let honest = subscriber(&client, "robot1/numbers", true);
    numbers.wait(1, PATIENCE).unwrap();
    publish(&numbers, 1);
    assert_eq!(take(&honest), 1);

    // Another program with its certificate.
    let path = |name: &str| format!("{:?}", base.path(name));
    let evil = Evil::with(
        &format!("tls/{address}"),
        &[
            ("transport/link/tls/root_ca_certificate", path("ours.pem")),
            ("transport/link/tls/connect_certificate", path("ours-robot1.pem")),
            ("transport/link/tls/connect_private_key", path("ours-robot1.key")),
            ("transport/link/tls/enable_mtls", "true".into()),
        ],
    );
    let _false = evil.offer("robot2", TOPIC);
    evil.send_as("robot2", b"");
    // What it may do comes last, so the others would have come by then.
    let _true = evil.offer("robot1", TOPIC);
    evil.send_as("robot1", b"");
    wait_until("its own topic is known", || {
        client.publishers(Some("robot1/trap")).unwrap().len() == 1
    });
    wait_until("its own frame is refused", || base.bad_frames() == 1);
    assert!(base.read("bridge").contains("robot1 sent a bad frame"), "{}", base.read("bridge"));
    assert!(client.publishers(Some("robot2/trap")).unwrap().is_empty());
}

#[test]
fn certificates_decide_who_is_connected() {
    let (mut robot, mut base) = pair(&[], &[]);
    make_authority(&robot, "right", ["robot", "base"]);
    make_authority(&robot, "wrong", ["robot", "base"]);
    let folder = robot.path("");
    let numbers = publisher(&robot.connect(), "numbers", OnFull::Block);
    let client = base.connect();
    let subscription = subscriber(&client, "robot/numbers", true);
    wait_until("they are connected", || numbers.wait(1, Duration::ZERO).is_ok());
    let restart = |host: &mut Host, authority: &str| {
        let way = if host.name == "robot" { "export" } else { "import" };
        let lines = format!("{way} = [{{ topics = '**' }}]");
        let file = write_config(host, &lines, &folder, authority);
        let options = ["--config", file.to_str().unwrap()];
        host.replace_options(&options, &options);
        host.restart_bridge();
    };
    let topics = || client.publishers(None).unwrap().len();
    restart(&mut robot, "right");
    restart(&mut base, "wrong");
    wait_until("the topic is gone", || topics() == 0);
    // Both sides have tried more than once by then.
    wait_until("the certificate is refused", || {
        robot.read("bridge").matches("UnknownCA").count() >= 3
    });
    assert_eq!(topics(), 0);
    restart(&mut base, "right");
    numbers.wait(1, PATIENCE).unwrap();
    publish(&numbers, 3);
    assert_eq!(take(&subscription), 3);
    wait_until("it goes by an encrypted stream", || {
        robot.metric("direct", "export", "base", "numbers") == 1
            && base.metric("direct", "import", "robot", "numbers") == 1
    });
    let said = robot.read("bridge");
    let (_, door) = said.rsplit_once("takes streams at 127.0.0.1:").unwrap();
    let port = door.lines().next().unwrap().parse().unwrap();
    assert!(knock(port, b"dlx-str1", &[0; 16]).is_none(), "a guest without a certificate");
}
