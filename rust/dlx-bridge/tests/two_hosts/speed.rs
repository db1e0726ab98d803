// SPDX-License-Identifier: Apache-2.0
//! How fast it is, beside a stream of TCP that is read in pieces of 1 MiB, with one buffer at each
//! side and with as many as there are messages under way: `make bench-bridge`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use dlx::{OnFull, PublishOptions, PublisherOptions};

use crate::hosts::{Host, PATIENCE, robot_and_base};
use crate::numbers::{publisher, subscriber};

const ROUNDS: usize = 5;
/// Bytes of a round.
const ROUND: usize = 1 << 30;
const PIECE: usize = 1 << 20;

/// CPU seconds of this process.
fn own_cpu() -> f64 {
    // SAFETY: plain data, and a valid pointer.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// What carries bytes: GB/s and CPU seconds per GB.
#[derive(Clone, Copy)]
struct Speed {
    rate: f64,
    cpu: f64,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn by_bridge(robot: &Host, base: &Host, size: usize) -> Speed {
    let topic = format!("size/{size}");
    let depth = depth(size) as u32;
    let options = PublisherOptions { on_full: OnFull::Block, depth, ..Default::default() };
    let out = robot.connect().publisher_with(&topic, &options).unwrap();
    let into = subscriber(&base.connect(), &format!("robot/{topic}"), true);
    // A subscription that makes no call is ready for two publishers, and more of the bridge may
    // come and go at the end of the round before.
    let until = Instant::now() + PATIENCE;
    while let Err(e) = out.wait(1, Duration::from_millis(100)) {
        assert!(Instant::now() < until, "{e}");
        assert!(into.try_take().unwrap().is_none());
    }
    let n = (ROUND / size).clamp(4, 20_000);
    let options = PublishOptions { timeout: Some(PATIENCE), ..Default::default() };
    let send = move |out: &dlx::Publisher, n: usize| {
        for _ in 0..n {
            out.publish_with(out.alloc::<u8>(&[size]).unwrap(), &options).unwrap();
        }
    };
    let take = |n: usize| (0..n).for_each(|_| drop(into.take_timeout(PATIENCE).unwrap()));
    thread::scope(|scope| {
        let sender = scope.spawn(move || {
            send(&out, 3); // memory is there
            send(&out, n);
            out
        });
        take(3);
        let cpu = || own_cpu() + robot.cpu() + base.cpu();
        let (start, before) = (Instant::now(), cpu());
        take(n);
        let (seconds, spent) = (start.elapsed().as_secs_f64(), cpu() - before);
        drop(sender.join().unwrap());
        let gb = (n * size) as f64 / 1e9;
        Speed { rate: gb / seconds, cpu: spent / gb }
    })
}

/// How many messages of a size are under way. Large ones may wait for the bridge, but not so many
/// that they fill the memory.
fn depth(size: usize) -> usize {
    (ROUND / size).clamp(2, 16)
}

/// Both sides use so many buffers in turn. One buffer stays in the caches of a CPU, and messages
/// of a publisher do not.
fn by_tcp(size: usize, n_buffers: usize) -> Speed {
    let (mut out, mut into) = stream();
    let n = (ROUND / size).clamp(4, 20_000);
    thread::scope(|scope| {
        scope.spawn(move || {
            let messages = vec![vec![1; size]; n_buffers];
            let in_turn = messages.iter().cycle().take(n + n_buffers);
            in_turn.for_each(|message| out.write_all(message).unwrap());
        });
        let mut buffers =
            vec![vec![1; if n_buffers == 1 { size.min(PIECE) } else { size }]; n_buffers];
        let mut next = 0;
        let mut take = |mut bytes: usize| {
            while bytes > 0 {
                for piece in buffers[next].chunks_mut(PIECE) {
                    into.read_exact(piece).unwrap();
                    bytes -= piece.len();
                }
                next = (next + 1) % n_buffers;
            }
        };
        take(n_buffers * size);
        let (start, before) = (Instant::now(), own_cpu());
        take(n * size);
        let (seconds, spent) = (start.elapsed().as_secs_f64(), own_cpu() - before);
        let gb = (n * size) as f64 / 1e9;
        Speed { rate: gb / seconds, cpu: spent / gb }
    })
}

fn stream() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    out.set_nodelay(true).unwrap();
    (out, listener.accept().unwrap().0)
}

fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

const PAUSE: Duration = Duration::from_millis(1);
const N_LATENCY: usize = 1000;

/// Median one way of 1 KiB in us.
fn latency_by_bridge(robot: &Host, base: &Host) -> f64 {
    let out = publisher(&robot.connect(), "latency", OnFull::Block);
    let into = subscriber(&base.connect(), "robot/latency", true);
    out.wait(1, PATIENCE).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..N_LATENCY {
                let mut loan = out.alloc::<u64>(&[128]).unwrap();
                loan[0] = now_ns();
                let options = PublishOptions { timeout: Some(PATIENCE), ..Default::default() };
                out.publish_with(loan, &options).unwrap();
                thread::sleep(PAUSE);
            }
            out
        });
        let times = (0..N_LATENCY).map(|_| {
            let message = into.take_timeout(PATIENCE).unwrap();
            (now_ns() - message.slice::<u64>(0).unwrap()[0]) as f64 / 1e3
        });
        median(times.collect())
    })
}

fn latency_by_tcp() -> f64 {
    let (mut out, mut into) = stream();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut message = [0; 1024];
            for _ in 0..N_LATENCY {
                message[..8].copy_from_slice(&now_ns().to_le_bytes());
                out.write_all(&message).unwrap();
                thread::sleep(PAUSE);
            }
        });
        let mut message = [0; 1024];
        let times = (0..N_LATENCY).map(|_| {
            into.read_exact(&mut message).unwrap();
            (now_ns() - u64::from_le_bytes(message[..8].try_into().unwrap())) as f64 / 1e3
        });
        median(times.collect())
    })
}

#[test]
#[ignore = "a measurement: make bench-bridge"]
fn speed_beside_tcp() {
    let (robot, base) = robot_and_base();
    println!(
        "{:>9} {:>13} {:>10} {:>6} {:>12} {:>6} {:>8}",
        "size", "bridge GB/s", "TCP GB/s", "ratio", "CPU s/GB", "ratio", "to rings"
    );
    // BRIDGE_SPEED has some of these sizes, in KiB.
    let chosen = std::env::var("BRIDGE_SPEED").unwrap_or_else(|_| "64 1024 65536 1048576".into());
    for size in chosen.split_whitespace().map(|kib| kib.parse::<usize>().unwrap() << 10) {
        let (mut bridge, mut tcp, mut rings) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            bridge.push(by_bridge(&robot, &base, size));
            tcp.push(by_tcp(size, 1));
            rings.push(by_tcp(size, depth(size)));
        }
        let of = |all: &[Speed], f: fn(&Speed) -> f64| median(all.iter().map(f).collect());
        let (b, t) = (of(&bridge, |s| s.rate), of(&tcp, |s| s.rate));
        let [bc, tc, rc] = [&bridge, &tcp, &rings].map(|all| of(all, |s| s.cpu));
        println!(
            "{:>5} KiB {b:>13.2} {t:>10.2} {:>6.2} {bc:>12.2} {:>6.2} {:>8.2}",
            size >> 10,
            b / t,
            bc / tc,
            bc / rc
        );
    }
    let (mut bridge, mut tcp) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bridge.push(latency_by_bridge(&robot, &base));
        tcp.push(latency_by_tcp());
    }
    let (b, t) = (median(bridge), median(tcp));
    println!("1 KiB one way, p50: bridge {b:.0} us, TCP {t:.0} us, ratio {:.1}", b / t);
}
