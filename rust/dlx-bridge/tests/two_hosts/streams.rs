// SPDX-License-Identifier: Apache-2.0
//! Streams of their own, beside zenoh: who may open them, what they carry, and how they end.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use dlx::OnFull;

use crate::hostile::{TOPIC, beside_evil, head, piece};
use crate::hosts::{
    Host, PATIENCE, can_be_apart, free_port, pair, robot_and_base_apart, wait_until,
};
use crate::numbers::{publish, publisher, subscriber, take};
use crate::outages::carry_both;

const ALL: [&str; 4] = ["--export", "**", "--import", "**"];

/// Carries 100 numbers; returns whether both sides say that they went by a stream.
fn goes_by_a_stream(from: &Host, to: &Host, topic: &str) -> bool {
    let numbers = publisher(&from.connect(), topic, OnFull::Block);
    let subscription = subscriber(&to.connect(), &format!("{}/{topic}", from.name), true);
    numbers.wait(1, PATIENCE).unwrap();
    for number in 0..100 {
        publish(&numbers, number);
        assert_eq!(take(&subscription), number);
    }
    let direct = |host: &Host, way, other: &Host| host.metric("direct", way, &other.name, topic);
    assert_eq!(to.metric("missed_messages_total", "import", &from.name, topic), 0);
    wait_until("both sides say the same", || {
        direct(from, "export", to) == direct(to, "import", from)
    });
    direct(from, "export", to) == 1
}

/// Here one side alone has a door: the exporting one of the first topic, the importing one of the
/// second.
#[test]
fn either_side_may_listen() {
    let (robot, base) = pair(&ALL, &ALL);
    assert!(goes_by_a_stream(&robot, &base, "numbers"));
    assert!(goes_by_a_stream(&base, &robot, "numbers"));
}

#[test]
fn both_sides_may_listen() {
    let door = format!("--direct=127.0.0.1:{}", free_port());
    let (robot, base) = pair(&ALL, &[&ALL[..], &[&door]].concat());
    assert!(goes_by_a_stream(&robot, &base, "numbers"));
    assert!(goes_by_a_stream(&base, &robot, "numbers"));
}

#[test]
fn without_a_door_all_goes_through_zenoh() {
    let (robot, base) = pair(&[&ALL[..], &["--direct=no"]].concat(), &ALL);
    assert!(!goes_by_a_stream(&robot, &base, "numbers"));
    assert!(!goes_by_a_stream(&base, &robot, "numbers"));
    let why = "there is no stream to robot: neither host has an address for one now";
    assert!(base.read("bridge").contains(why), "{}", base.read("bridge"));
    assert!(!robot.read("bridge").contains("neither host"), "direct=no is what it was told");
}

/// As many as may stand there before it is known who they are.
#[test]
fn a_door_that_is_crowded_lets_a_bridge_in_later() {
    let door = free_port();
    let (robot, base) = pair(&[&format!("--direct=127.0.0.1:{door}")], &[]);
    wait_until("it listens", || robot.read("bridge").contains("takes streams at 127.0.0.1"));
    let strangers: Vec<_> =
        (0..64).map(|_| TcpStream::connect(("127.0.0.1", door)).unwrap()).collect();
    assert!(goes_by_a_stream(&robot, &base, "numbers"));
    drop(strangers);
}

/// Each side has an address that the other one cannot connect to.
#[test]
fn doors_that_cannot_be_reached_are_named() {
    if !can_be_apart() {
        return;
    }
    let (mut robot, base, link) = robot_and_base_apart();
    robot.replace_options(&[], &["--direct=127.0.0.1:9", "--export=**", "--import=**"]);
    robot.restart_bridge();
    assert!(!goes_by_a_stream(&robot, &base, "numbers"));
    let said = base.read("bridge");
    assert!(said.contains("there is no stream to robot: it cannot be reached at 127.0.0.1:9: "));
    let said = robot.read("bridge");
    assert!(
        said.contains("there is no stream to base: it did not come to the door of this host"),
        "{said}"
    );
    drop((robot, base, link));
}

/// The robot has no address yet when its bridge begins to listen on all.
#[test]
fn doors_are_found_at_addresses_that_come_later() {
    if !can_be_apart() {
        return;
    }
    let (mut robot, base, link) = robot_and_base_apart();
    link.address("del");
    robot.replace_options(&["--listen=10.9.8.1"], &["--listen=0.0.0.0"]);
    robot.restart_bridge();
    wait_until("it listens", || robot.read("bridge").contains("takes streams at nothing"));
    link.address("add");
    assert!(goes_by_a_stream(&robot, &base, "numbers"));
    drop((robot, base, link));
}

/// The kernel ends the connections of the door.
#[test]
#[ignore = "needs root: make check-bridge"]
fn streams_may_be_killed() {
    let (mut robot, mut base, link) = robot_and_base_apart();
    carry_both(&mut robot, &mut base, |robot, base| {
        for _ in 0..5 {
            link.kill_streams();
            let reconnects = |host: &Host| {
                ["reliable", "drops"]
                    .map(|topic| host.metric("reconnects_total", "import", "robot", topic))
            };
            let before = reconnects(base);
            link.kill_streams();
            wait_until("both begin again", || {
                reconnects(base).iter().zip(before).all(|(now, before)| *now > before)
            });
        }
        assert!(robot.read("bridge").contains("the stream to base broke"));
    });
    drop((robot, base, link));
}

/// The robot can send nothing by its streams, and all by zenoh.
#[test]
#[ignore = "needs root: make check-bridge"]
fn streams_may_fall_silent() {
    let (mut robot, mut base, link) = robot_and_base_apart();
    carry_both(&mut robot, &mut base, |_, base| {
        link.silence_streams();
        wait_until("they are given up, and zenoh carries", || {
            ["reliable", "drops"]
                .iter()
                .all(|topic| base.metric("direct", "import", "robot", topic) == 0)
        });
    });
    drop((robot, base, link));
}

/// The robot forgets a base that stood still, which is not told by the stream between them.
#[test]
#[ignore = "needs root: make check-bridge"]
fn idle_topics_outlive_a_stream_that_fell_silent() {
    let (mut robot, base, link) = robot_and_base_apart();
    let file = robot.path("bridge.toml");
    fs::write(&file, "hold = 2\n[[export]]\ntopics = '**'\n").unwrap();
    robot.replace_options(&[], &["--config", file.to_str().unwrap()]);
    robot.restart_bridge();
    let numbers = publisher(&robot.connect(), "numbers", OnFull::Block);
    let subscription = subscriber(&base.connect(), "robot/numbers", true);
    numbers.wait(1, PATIENCE).unwrap();
    publish(&numbers, 1);
    assert_eq!(take(&subscription), 1);
    wait_until("it goes by a stream", || base.metric("direct", "import", "robot", "numbers") == 1);
    link.silence_streams();
    base.signal_bridge(libc::SIGSTOP);
    wait_until("its flow ends", || {
        robot.read("bridge").contains("base was not heard of for 2 s (hold)")
    });
    base.signal_bridge(libc::SIGCONT);
    numbers.wait(1, PATIENCE).unwrap();
    publish(&numbers, 2);
    assert_eq!(take(&subscription), 2);
    drop((robot, base, link));
}

// ---- peers that lie -------------------------------------------------------------------------

/// The ticket of an invitation, and where its door is.
fn ticket(invitation: &[u8]) -> (Vec<u8>, u16) {
    assert_eq!(invitation[16..19], [0, 1, 4], "no certificate, and one address");
    let port = u16::from_le_bytes(invitation[23..25].try_into().unwrap());
    (invitation[..16].to_vec(), port)
}

/// The ticket and the port of a want.
fn invitation(want: &[u8]) -> Option<(Vec<u8>, u16)> {
    let body = &want[2 + TOPIC.len() + 16..];
    if body[0] & 4 == 0 {
        return None;
    }
    let n = u16::from_le_bytes(body[17..19].try_into().unwrap()) as usize;
    Some(ticket(&body[19 + 16 * n..]))
}

/// The want that begins a generation, at which a door listens here.
fn want(count: u64, door: Option<u16>) -> Vec<u8> {
    let mut frame = vec![1, TOPIC.len() as u8];
    frame.extend(TOPIC.as_bytes());
    frame.extend(1_u64.to_le_bytes());
    frame.extend(count.to_le_bytes());
    frame.push(1 | if door.is_some() { 4 } else { 0 });
    frame.extend(0_u64.to_le_bytes());
    frame.extend((1_u64 << 20).to_le_bytes());
    frame.extend(0_u16.to_le_bytes());
    if let Some(port) = door {
        frame.extend([7; 16]);
        frame.extend([0, 1, 4, 127, 0, 0, 1]);
        frame.extend(port.to_le_bytes());
    }
    frame
}

/// Knocks at a door; None: it stays shut.
pub fn knock(port: u16, hello: &[u8], ticket: &[u8]) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&[hello, ticket].concat()).unwrap();
    let mut answer = [0];
    match stream.read(&mut answer) {
        Ok(_) => (answer == [1]).then_some(stream), // and not an alert of TLS
        Err(e) if e.kind() == ErrorKind::ConnectionReset => None,
        Err(e) => panic!("{e}"),
    }
}

/// Does the other side end a stream? What comes until then are wants.
fn ends(stream: &mut TcpStream) -> bool {
    loop {
        match stream.read(&mut [0; 256]) {
            Ok(0) => return true,
            Ok(_) => (),
            Err(e) => return e.kind() == ErrorKind::ConnectionReset,
        }
    }
}

/// As bytes of a stream.
fn framed(frame: &[u8], header: usize) -> Vec<u8> {
    let size = |n: usize| (n as u32).to_le_bytes();
    [&size(header)[..], &size(frame.len() - header), frame].concat()
}

#[test]
fn streams_need_a_ticket_and_hold_what_they_promise() {
    let (base, evil) = beside_evil("base", &["--import", "**"]);
    let _token = evil.offer("evil", TOPIC);
    let trap = subscriber(&base.connect(), "evil/trap", false);
    let header = 2 + TOPIC.len() + 16 + 28;
    let first = head(&[4], "evil");
    let item = |generation: &[u8], number: u64, shape: u64, body: &[u8]| {
        let mut head = head(&[shape], "evil");
        head[9..17].copy_from_slice(&(number + 1).to_le_bytes()); // its seq
        let size = head.len() as u64 + shape;
        let mut frame = piece(generation, 0, &head, body, size);
        let at = 2 + TOPIC.len() + 16;
        frame[at..at + 8].copy_from_slice(&number.to_le_bytes());
        framed(&frame, header)
    };
    let next = || loop {
        let want = evil.frame();
        if let Some((ticket, port)) = invitation(&want) {
            break (want[2 + TOPIC.len()..][..16].to_vec(), ticket, port);
        }
    };
    let (generation, ticket, port) = next();
    assert!(knock(port, b"dlx-str1", &[7; 16]).is_none(), "a ticket that it made up");
    assert!(knock(port, b"GET / HT", &ticket).is_none(), "no hello");
    let mut stream = knock(port, b"dlx-str1", &ticket).unwrap();
    // Byte by byte, as a slow connection does.
    for byte in item(&generation, 0, 4, &[1, 2, 3, 4]) {
        stream.write_all(&[byte]).unwrap();
    }
    let message = trap.take_timeout(PATIENCE).unwrap();
    assert_eq!(message.slice::<u8>(0).unwrap(), [1, 2, 3, 4]);
    // A stream that ends in the middle of an item, and one that lies, end; the next one goes on.
    let lies = [
        framed(&piece(&generation, 0, &first, &[0; 2], first.len() as u64 + 4), header),
        framed(&piece(&generation, 0, &first, &[0; 9], first.len() as u64 + 4), header),
        framed(&[4, 4, b't', b'r', b'a', b'p', 0, 0, 0, 0, 0, 0, 0, 0], 14),
        vec![0xff; 64],
        framed(&[], 0),
    ];
    for (i, lie) in lies.iter().enumerate() {
        stream.write_all(lie).unwrap();
        if i == 0 {
            stream.shutdown(std::net::Shutdown::Both).unwrap();
        } else {
            assert!(ends(&mut stream), "lie {i} was taken");
        }
        let (generation, ticket, port) = next();
        stream = knock(port, b"dlx-str1", &ticket).unwrap();
        let number = i as u8 + 10;
        stream.write_all(&item(&generation, 0, 4, &[number; 4])).unwrap();
    }
    drop(evil);
}

/// A peer opens streams for a flow whose thread waits for a door that does not answer.
#[test]
fn a_flow_keeps_one_stream_whatever_a_peer_opens() {
    let (robot, evil) = beside_evil("robot", &["--export", "**"]);
    let numbers = publisher(&robot.connect(), TOPIC, OnFull::Block);
    wait_until("the topic is offered", || evil.n_offers("robot") == 1);
    evil.send_to("robot", &want(1, None));
    let (ticket, port) = loop {
        let frame = evil.frame();
        if frame[0] == 5 {
            break ticket(&frame[2 + TOPIC.len() + 16..]);
        }
    };
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = door.local_addr().unwrap().port();
    // Two seconds for each of these.
    (2..32).for_each(|count| evil.send_to("robot", &want(count, Some(silent))));
    let waits = door.accept().unwrap();
    let before = robot.n_fds();
    let streams: Vec<_> = (0..100).map(|_| knock(port, b"dlx-str1", &ticket).unwrap()).collect();
    let n = robot.n_fds() - before;
    assert!(n < 50, "{} streams that one flow does not use took {n} descriptors", streams.len());
    drop((waits, numbers));
}

/// A peer that has others connect to a door of its own, and closes it.
#[test]
fn what_a_broken_stream_swallowed_is_sent_again() {
    let (robot, evil) = beside_evil("robot", &["--direct=no", "--export", "**"]);
    let numbers = publisher(&robot.connect(), TOPIC, OnFull::Block);
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = door.local_addr().unwrap().port();
    let kind = |kind: u8| loop {
        let frame = evil.frame();
        if frame[0] == kind {
            break frame;
        }
    };
    wait_until("the topic is offered", || evil.n_offers("robot") == 1);
    evil.send_to("robot", &want(1, Some(port)));
    let (mut stream, _) = door.accept().unwrap();
    let mut hello = [0; 24];
    stream.read_exact(&mut hello).unwrap();
    assert_eq!(hello, *[&b"dlx-str1"[..], &[7; 16]].concat());
    stream.write_all(&[1]).unwrap();
    numbers.wait(1, PATIENCE).unwrap();
    publish(&numbers, 5);
    let mut start = [0; 8];
    stream.read_exact(&mut start).unwrap();
    drop(stream);
    // The end is noticed by what is sent behind it.
    let mut number = 6;
    let reset = loop {
        publish(&numbers, number);
        number += 1;
        if let Some(frame) = evil.frame_within(Duration::from_millis(100))
            && frame[0] == 4
        {
            break frame;
        }
        assert!(number < 38, "no reset came");
    };
    assert_eq!(reset[2 + TOPIC.len()..], [1_u64.to_le_bytes(), 1_u64.to_le_bytes()].concat());
    evil.send_to("robot", &want(2, None));
    let message = loop {
        let piece = kind(2);
        if piece[2 + TOPIC.len() + 16 + 28] == 1 {
            break piece; // and not what had been published before
        }
    };
    assert!(message.ends_with(&5_u64.to_le_bytes()), "the first number comes again: {message:?}");
    assert!(robot.read("bridge").contains("the stream to evil broke"), "{}", robot.read("bridge"));
}
