// SPDX-License-Identifier: Apache-2.0
//! How frames get to another host: a small trait, and zenoh behind it. One for RDMA can take its
//! place. What streams of their own carry (direct.rs) goes past it.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use zenoh::Wait;
use zenoh::bytes::ZBytes;
use zenoh::config::Config as ZenohConfig;
use zenoh::liveliness::LivelinessToken;
use zenoh::pubsub::Publisher;
use zenoh::qos::{CongestionControl, Priority};
use zenoh::sample::SampleKind;

use crate::config::Config;
use crate::wire::HEADER_MAX;
use crate::{lock, say};

/// Most publishers of zenoh that are kept: two for each host that was sent something.
const MAX_PUBLISHERS: usize = 1024;
/// Bytes of a batch of zenoh.
const BATCH: usize = 64 << 10;

/// Sends frames. A frame may be lost; those of one host that are not urgent stay in order.
pub trait DataPath: Send + Sync {
    /// Sends a frame, and may wait: not for callbacks. Parts of the body are held until they are
    /// sent.
    fn send(&self, host: &str, urgent: bool, header: Vec<u8>, body: Vec<Bytes>);

    /// Tells all hosts that a topic can be had here, until what is returned is dropped.
    fn offer(&self, offer: &str) -> Result<Box<dyn Send>, String>;
}

/// A frame that has come.
pub struct Received {
    /// Its first bytes: all, or at least HEADER_MAX.
    pub start: Vec<u8>,
    /// Its size.
    pub total: usize,
    bytes: ZBytes,
}

impl Received {
    pub fn new(bytes: ZBytes) -> Received {
        let total = bytes.len();
        let mut start = vec![0; total.min(HEADER_MAX)];
        bytes.reader().read_exact(&mut start).expect("there are so many");
        Received { start, total, bytes }
    }

    /// What is behind a header of so many bytes. A small one is copied, since it would keep all of
    /// the batch in which it came.
    pub fn into_body(self, header: usize) -> Body {
        let body = Body { bytes: self.bytes, at: header as u64 };
        if self.total - header >= BATCH / 2 {
            return body;
        }
        let mut copy = Vec::with_capacity(self.total - header);
        body.reader().read_to_end(&mut copy).expect("it is in memory");
        Body { bytes: copy.into(), at: 0 }
    }
}

/// Bytes `at..` of these.
pub struct Body {
    bytes: ZBytes,
    at: u64,
}

impl Body {
    pub fn reader(&self) -> impl Read {
        let mut bytes = self.bytes.reader();
        bytes.seek(SeekFrom::Start(self.at)).expect("the header was read");
        bytes
    }
}

/// What the path calls. No function may wait.
pub trait Listener: Send + Sync + 'static {
    fn on_frame(&self, host: &str, frame: Received);
    /// A host offers something, or does not any more, or cannot be reached.
    fn on_offer(&self, host: &str, offer: &str, is_there: bool);
}

/// zenoh. Its keys are
///
/// ```text
/// dlx/1/REALM/to/HOST/FROM           frames
/// dlx/1/REALM/offer/HOST/OFFER...    liveliness tokens
/// ```
pub struct Zenoh {
    session: zenoh::Session,
    base: String,
    host: String,
    publishers: Mutex<HashMap<(String, bool), Arc<Publisher<'static>>>>,
}

impl Zenoh {
    pub fn open(config: &Config) -> Result<Arc<Zenoh>, String> {
        let zenoh_config = zenoh_config(config).map_err(|e| e.to_string())?;
        let session = zenoh::open(zenoh_config).wait().map_err(|e| e.to_string())?;
        Ok(Arc::new(Zenoh {
            session,
            base: format!("dlx/1/{}", config.realm),
            host: config.host.clone(),
            publishers: Mutex::new(HashMap::new()),
        }))
    }

    /// From now on, `listener` is told.
    pub fn listen(&self, listener: Arc<dyn Listener>) -> Result<(), String> {
        let frames = listener.clone();
        self.session
            .declare_subscriber(format!("{}/to/{}/*", self.base, self.host))
            .callback(move |sample| {
                let host = sample.key_expr().as_str().rsplit('/').next().unwrap_or_default();
                frames.on_frame(host, Received::new(sample.payload().clone()));
            })
            .background()
            .wait()
            .map_err(|e| e.to_string())?;
        let prefix = format!("{}/offer/", self.base);
        self.session
            .liveliness()
            .declare_subscriber(format!("{prefix}**"))
            .history(true)
            .callback(move |sample| {
                let key = sample.key_expr().as_str();
                if let Some((host, offer)) =
                    key.strip_prefix(&prefix).and_then(|rest| rest.split_once('/'))
                {
                    listener.on_offer(host, offer, sample.kind() == SampleKind::Put);
                }
            })
            .background()
            .wait()
            .map_err(|e| e.to_string())
    }

    pub fn close(&self) {
        let _ = self.session.close().wait(); // the process ends
    }

    fn publisher(&self, host: &str, urgent: bool) -> Result<Arc<Publisher<'static>>, String> {
        if let Some(publisher) = lock(&self.publishers).get(&(host.to_string(), urgent)) {
            return Ok(publisher.clone());
        }
        let publisher = self
            .session
            .declare_publisher(format!("{}/to/{host}/{}", self.base, self.host))
            .congestion_control(CongestionControl::Block)
            .priority(if urgent { Priority::InteractiveHigh } else { Priority::Data })
            .express(urgent)
            .wait()
            .map_err(|e| e.to_string())?;
        let mut publishers = lock(&self.publishers);
        if publishers.len() >= MAX_PUBLISHERS {
            publishers.retain(|_, publisher| Arc::strong_count(publisher) > 1);
        }
        Ok(publishers
            .entry((host.to_string(), urgent))
            .or_insert_with(|| Arc::new(publisher))
            .clone())
    }
}

impl DataPath for Zenoh {
    fn send(&self, host: &str, urgent: bool, header: Vec<u8>, body: Vec<Bytes>) {
        let mut payload = ZBytes::writer();
        payload.append(header.into());
        for part in body {
            payload.append(part.into());
        }
        let sent = self.publisher(host, urgent).and_then(|publisher| {
            publisher.put(payload.finish()).wait().map_err(|e| e.to_string())
        });
        // What is lost on the way is sent again when the other side notices it.
        if let Err(e) = sent {
            say(format_args!("{host}: zenoh could not send a frame: {e}"));
        }
    }

    fn offer(&self, offer: &str) -> Result<Box<dyn Send>, String> {
        let key = format!("{}/offer/{}/{offer}", self.base, self.host);
        let token: LivelinessToken =
            self.session.liveliness().declare_token(key).wait().map_err(|e| e.to_string())?;
        Ok(Box::new(token))
    }
}

/// With a file of zenoh's own, that says how bridges find each other; without one, they connect to
/// those that the configuration names, and to nobody else.
fn zenoh_config(config: &Config) -> zenoh::Result<ZenohConfig> {
    let mut zenoh = match &config.zenoh {
        Some(path) => ZenohConfig::from_file(path)?,
        None => {
            let mut zenoh = ZenohConfig::default();
            zenoh.insert_json5("mode", "\"peer\"")?;
            zenoh.insert_json5("scouting/multicast/enabled", "false")?;
            zenoh.insert_json5("scouting/gossip/enabled", "false")?;
            zenoh.insert_json5("listen/endpoints", "[]")?;
            zenoh
        }
    };
    if !config.listen.is_empty() {
        zenoh.insert_json5("listen/endpoints", &format!("{:?}", config.listen))?;
    }
    if !config.connect.is_empty() {
        zenoh.insert_json5("connect/endpoints", &format!("{:?}", config.connect))?;
        // a host that is not there yet is waited for, while others are served
        zenoh.insert_json5("connect/timeout_ms", "-1")?;
        zenoh.insert_json5("connect/exit_on_failure", "false")?;
        zenoh.insert_json5(
            "connect/retry",
            "{period_init_ms: 250, period_max_ms: 1000, period_increase_factor: 2}",
        )?;
    }
    zenoh.insert_json5("transport/link/tx/queue/size/data", "16")?;
    zenoh.insert_json5("transport/link/rx/buffer_size", &(16 << 20).to_string())?;
    for kind in ["tcp", "tls"] {
        for buffer in ["so_sndbuf", "so_rcvbuf"] {
            let key = format!("transport/link/{kind}/{buffer}");
            zenoh.insert_json5(&key, &(4 << 20).to_string())?;
        }
    }
    if let Some(tls) = &config.tls {
        for (key, path) in [
            ("root_ca_certificate", &tls.ca),
            ("listen_certificate", &tls.certificate),
            ("listen_private_key", &tls.key),
            ("connect_certificate", &tls.certificate),
            ("connect_private_key", &tls.key),
        ] {
            zenoh.insert_json5(&format!("transport/link/tls/{key}"), &format!("{path:?}"))?;
        }
        zenoh.insert_json5("transport/link/tls/enable_mtls", "true")?;
    }
    Ok(zenoh)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_body_does_not_keep_its_batch() {
        for (size, is_copied) in [(0, true), (100, true), (BATCH / 2, false), (BATCH, false)] {
            let sent: Vec<u8> = (0..size + 20).map(|i| i as u8).collect();
            let bytes = ZBytes::from(sent.clone());
            let batch = bytes.slices().next().unwrap().as_ptr_range();
            let body = Received::new(bytes.clone()).into_body(20);
            let mut read = Vec::new();
            body.reader().read_to_end(&mut read).unwrap();
            assert_eq!(read, sent[20..]);
            let is_within = |slice: &[u8]| batch.contains(&slice.as_ptr());
            assert_eq!(!body.bytes.slices().any(is_within), is_copied, "{size} bytes");
        }
    }
}
