// SPDX-License-Identifier: Apache-2.0
//! Counters of topics, and a page of them as Prometheus reads it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::bridge::MAX_FLOWS;
use crate::lock;

/// A number that threads count.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Which way a topic goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    Export,
    Import,
}

/// Counters of one topic from or to one host.
#[derive(Default)]
pub struct Counters {
    pub messages: Counter,
    pub bytes: Counter,
    pub missed: Counter,
    pub duplicates: Counter,
    pub refused: Counter,
    pub generations: Counter,
    pub credits: Counter,
    pub waiting: Counter,
    pub direct: Counter,
    pub age_ns: Counter,
}

/// Most series: more than there are flows at once, so that some are of flows that have ended.
const MAX_SERIES: usize = 2 * MAX_FLOWS;

/// All counters.
#[derive(Default)]
pub struct Metrics {
    flows: Mutex<BTreeMap<(Way, String, String), Arc<Counters>>>,
    /// Frames of other hosts that were refused.
    pub bad_frames: Counter,
}

type Column = (&'static str, &'static str, &'static str, fn(&Counters) -> f64);

/// Name, type, help and value.
const COLUMNS: [Column; 10] = [
    ("messages_total", "counter", "Messages sent, or published here.", |c| c.messages.get() as f64),
    ("bytes_total", "counter", "Their payload.", |c| c.bytes.get() as f64),
    (
        "missed_messages_total",
        "counter",
        "Messages that were published at the other host and never here.",
        |c| c.missed.get() as f64,
    ),
    ("duplicates_total", "counter", "Messages that came twice, and were passed on once.", |c| {
        c.duplicates.get() as f64
    }),
    (
        "refused_messages_total",
        "counter",
        "Messages that cannot be carried: on a GPU, or not accepted by the daemon here.",
        |c| c.refused.get() as f64,
    ),
    ("reconnects_total", "counter", "Flows begun again after a loss.", |c| {
        c.generations.get().saturating_sub(1) as f64
    }),
    ("credit_bytes", "gauge", "Bytes that may be sent now.", |c| c.credits.get() as f64),
    ("waiting", "gauge", "1: the topic waits for memory or for the daemon here.", |c| {
        c.waiting.get() as f64
    }),
    ("direct", "gauge", "1: messages go by a stream of their own; 0: through zenoh.", |c| {
        c.direct.get() as f64
    }),
    (
        "age_seconds",
        "gauge",
        "From publication at the other host to publication here, of the last message.",
        |c| c.age_ns.get() as f64 / 1e9,
    ),
];

impl Metrics {
    pub fn of(&self, way: Way, host: &str, topic: &str) -> Arc<Counters> {
        let key = (way, host.to_string(), topic.to_string());
        let mut flows = lock(&self.flows);
        if flows.len() >= MAX_SERIES && !flows.contains_key(&key) {
            flows.retain(|_, counters| Arc::strong_count(counters) > 1);
        }
        flows.entry(key).or_default().clone()
    }

    fn page(&self) -> String {
        let flows = lock(&self.flows);
        let mut page = String::new();
        for (name, kind, help, value) in COLUMNS {
            let _ = writeln!(page, "# HELP dlx_bridge_{name} {help}");
            let _ = writeln!(page, "# TYPE dlx_bridge_{name} {kind}");
            for ((way, host, topic), counters) in flows.iter() {
                let way = if *way == Way::Export { "export" } else { "import" };
                let value = value(counters);
                let _ = writeln!(
                    page,
                    "dlx_bridge_{name}{{way=\"{way}\",host=\"{host}\",topic=\"{topic}\"}} {value}"
                );
            }
        }
        page += "# HELP dlx_bridge_bad_frames_total Frames of other hosts that were refused.\n\
                 # TYPE dlx_bridge_bad_frames_total counter\n";
        let _ = writeln!(page, "dlx_bridge_bad_frames_total {}", self.bad_frames.get());
        page
    }
}

/// Serves the page, one request after the other.
pub fn serve(metrics: Arc<Metrics>, address: &str) -> std::io::Result<()> {
    let listener = TcpListener::bind(address)?;
    std::thread::Builder::new().name("metrics".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(&metrics, stream); // the client is gone, or too slow
        }
    })?;
    Ok(())
}

fn answer(metrics: &Metrics, mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    let mut first = String::new();
    let mut reader = BufReader::new(stream.try_clone()?).take(8 << 10);
    reader.read_line(&mut first)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let (status, page) = match first.split(' ').nth(1) {
        Some("/" | "/metrics") => ("200 OK", metrics.page()),
        _ => ("404 Not Found", "see /metrics\n".into()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{page}",
        page.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_flows_that_have_ended_make_room() {
        let metrics = Metrics::default();
        let lasting = metrics.of(Way::Import, "robot", "numbers");
        lasting.messages.add(7);
        for i in 0..MAX_SERIES {
            metrics.of(Way::Export, "evil", &format!("topic/{i}"));
        }
        assert!(lock(&metrics.flows).len() <= MAX_SERIES);
        assert_eq!(metrics.of(Way::Import, "robot", "numbers").messages.get(), 7);
    }
}
