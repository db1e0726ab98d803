// SPDX-License-Identifier: Apache-2.0
//! What a host offers: a topic, and how it is published.

use dlx::PublisherInfo;
use dlx::topic::is_name;

/// Clients of a daemon with names that begin so are bridges.
pub const BRIDGE: &str = "dlx-bridge";

pub fn is_bridge(client_name: &str) -> bool {
    client_name.starts_with(BRIDGE)
}

/// A topic of a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offer {
    pub topic: String,
    /// Its publishers wait for reliable subscribers.
    pub reliable: bool,
    /// How many messages subscribers may be behind.
    pub depth: u32,
    /// How many messages late subscribers get.
    pub retain: u32,
}

impl Offer {
    /// What the publishers of one topic offer together; None: only bridges publish it.
    pub fn of(publishers: &[PublisherInfo]) -> Option<Offer> {
        let own = || publishers.iter().filter(|p| !is_bridge(&p.client_name));
        let live = || own().filter(|p| !p.retained);
        Some(Offer {
            topic: own().next()?.topic.clone(),
            reliable: live().next().is_some() && live().all(|p| p.blocks),
            depth: own().map(|p| p.depth).max()?.clamp(1, 4096),
            retain: own().map(|p| p.retain).max()?.min(1024),
        })
    }

    /// As a key of zenoh, after the name of the host.
    pub fn encode(&self, instance: u64) -> String {
        let kind = if self.reliable { "reliable" } else { "drops" };
        format!("{instance:016x}/{kind}/{}/{}/{}", self.depth, self.retain, self.topic)
    }

    /// Returns the instance, too. None: it is no offer.
    pub fn parse(key: &str) -> Option<(u64, Offer)> {
        let mut parts = key.splitn(5, '/');
        let instance = u64::from_str_radix(parts.next()?, 16).ok()?;
        let reliable = match parts.next()? {
            "reliable" => true,
            "drops" => false,
            _ => return None,
        };
        let depth = parts.next()?.parse().ok().filter(|n| (1..=4096).contains(n))?;
        let retain = parts.next()?.parse().ok().filter(|n| *n <= 1024)?;
        let topic = parts.next().filter(|topic| is_name(topic))?.to_string();
        Some((instance, Offer { topic, reliable, depth, retain }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_read_as_they_were_written() {
        let offer = Offer { topic: "cam/front".into(), reliable: true, depth: 16, retain: 2 };
        assert_eq!(Offer::parse(&offer.encode(77)), Some((77, offer)));
        for bad in ["", "1", "1/x/1/1/a", "1/drops/0/0/a", "1/drops/1/1025/a", "1/drops/1/0/a/*"] {
            assert_eq!(Offer::parse(bad), None, "{bad}");
        }
    }
}
