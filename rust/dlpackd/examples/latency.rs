// SPDX-License-Identifier: Apache-2.0
//! One-way latency, as bench/bench_latency.c measures it with `--mode busy`: half of a round trip
//! of 64 bytes in which each of two processes allocates, publishes, takes, makes a tensor, and
//! releases.
//!
//! usage: taskset -c 0 latency [ROUNDS]     the other process is on CPU 1

use std::env;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use dlx::{Client, Publisher, Result, Spin, SubscribeOptions, Subscription};

const WARM_UP: usize = 10_000;
const PATIENCE: Duration = Duration::from_secs(10);

struct Side {
    publisher: Publisher,
    subscription: Subscription,
}

impl Side {
    fn new(own: &str, other: &str) -> Result<Side> {
        let client = Client::connect()?;
        let options = SubscribeOptions { spin: Spin::Always, ..Default::default() };
        let publisher = client.publisher(own)?;
        let subscription = client.subscribe_with(other, &options)?;
        publisher.wait(1, PATIENCE)?;
        Ok(Side { publisher, subscription })
    }

    fn send(&self) -> Result<()> {
        let loan = self.publisher.alloc::<u8>(&[64])?;
        self.publisher.publish(loan)?;
        Ok(())
    }

    fn receive(&self) -> Result<()> {
        self.subscription.take()?.tensor::<u8>(0)?;
        Ok(())
    }
}

fn measure(n: usize, mut other: Child) -> Result<()> {
    let side = Side::new("latency/ping", "latency/pong")?;
    let mut stamps = Vec::with_capacity(n);
    for i in 0..WARM_UP + n {
        side.send()?;
        if i >= WARM_UP {
            stamps.push(Instant::now()); // while the answer is on its way
        }
        side.receive()?;
    }
    let mut ns: Vec<_> = stamps.windows(2).map(|s| (s[1] - s[0]).as_nanos() / 2).collect();
    ns.sort_unstable();
    println!("one way, 64 B, busy: p50 {} ns, p99 {} ns", ns[n / 2], ns[n / 100 * 99]);
    drop(side);
    other.wait().expect("the other process");
    Ok(())
}

fn answer(n: usize) -> Result<()> {
    let side = Side::new("latency/pong", "latency/ping")?;
    for _ in 0..WARM_UP + n {
        side.receive()?;
        side.send()?;
    }
    let _ = side.subscription.take_timeout(PATIENCE); // until the other side has gone
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = env::args().collect();
    let n = args.get(1).and_then(|n| n.parse().ok()).unwrap_or(200_000_usize).max(200);
    if args.get(2).is_some_and(|role| role == "answer") {
        return answer(n);
    }
    let other = Command::new("taskset")
        .args(["-c", "1", &args[0], &n.to_string(), "answer"])
        .spawn()
        .expect("taskset(1)");
    measure(n, other)
}
