// SPDX-License-Identifier: Apache-2.0
//! What bridges say to each other, as bytes: little-endian, see docs/BRIDGE.md. Everything that is
//! parsed here comes from a peer that may lie.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use dlx::DType;

use crate::config::is_host;
use crate::direct::{Invitation, Reach, Ticket};
use crate::flow::{Generation, Piece, Position, Want};

/// Longest head of an item: names and shapes of 65,535 tensors of usual names fit.
pub const HEAD_MAX: usize = 16 << 20;
/// Longest header of a frame: a Want with all its positions, and an invitation.
pub const HEADER_MAX: usize = 8 << 10;
const TENSORS_MAX: usize = 65_535;
const META_MAX: usize = 65_536;
const NAME_MAX: usize = 1_023;
const NDIM_MAX: usize = 64;
const HOPS_MAX: usize = 16;
/// Most addresses of an invitation.
pub const ADDRESSES_MAX: usize = 8;

/// What is wrong with bytes of a peer.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed(pub String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

type Result<T> = std::result::Result<T, Malformed>;

fn malformed<T>(what: impl Into<String>) -> Result<T> {
    Err(Malformed(what.into()))
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8]> {
        if n > self.0.len() {
            return malformed(format!(
                "{what} ends beyond the {} bytes that are left",
                self.0.len()
            ));
        }
        let (taken, rest) = self.0.split_at(n);
        self.0 = rest;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        Ok(self.take(N, what)?.try_into().expect("so many were taken"))
    }

    fn u8(&mut self, what: &str) -> Result<u8> {
        Ok(self.number::<1>(what)?[0])
    }

    fn u16(&mut self, what: &str) -> Result<u16> {
        Ok(u16::from_le_bytes(self.number(what)?))
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.number(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.number(what)?))
    }

    fn text(&mut self, n: usize, what: &str) -> Result<String> {
        match std::str::from_utf8(self.take(n, what)?) {
            Ok(text) if !text.contains('\0') => Ok(text.to_string()),
            _ => malformed(format!("{what} is no text")),
        }
    }

    fn positions(&mut self) -> Result<Vec<Position>> {
        let n = self.u16("a list of positions")?;
        (0..n)
            .map(|_| {
                let publisher = self.u64("a position")?;
                Ok(Position { publisher, seq: self.u64("a position")? })
            })
            .collect()
    }

    fn invitation(&mut self) -> Result<Invitation> {
        let what = "an invitation";
        let ticket: Ticket = self.number(what)?;
        let certificate = match self.u8(what)? {
            0 => None,
            _ => Some(self.number(what)?),
        };
        let n = usize::from(self.u8(what)?);
        if n == 0 || n > ADDRESSES_MAX {
            return malformed(format!("{what} to {n} addresses (1 to {ADDRESSES_MAX})"));
        }
        let mut addresses = Vec::with_capacity(n);
        for _ in 0..n {
            let ip = match self.u8(what)? {
                4 => IpAddr::from(self.number::<4>(what)?),
                6 => IpAddr::from(self.number::<16>(what)?),
                family => return malformed(format!("an address of the unknown family {family}")),
            };
            addresses.push(SocketAddr::new(ip, self.u16(what)?));
        }
        Ok(Invitation { addresses, ticket, certificate })
    }
}

fn put_invitation(out: &mut Vec<u8>, invitation: &Invitation) {
    out.extend(invitation.ticket);
    out.push(invitation.certificate.is_some().into());
    out.extend(invitation.certificate.iter().flatten());
    out.push(invitation.addresses.len() as u8);
    for address in &invitation.addresses {
        match address.ip() {
            IpAddr::V4(ip) => {
                out.push(4);
                out.extend(ip.octets());
            }
            IpAddr::V6(ip) => {
                out.push(6);
                out.extend(ip.octets());
            }
        }
        out.extend(address.port().to_le_bytes());
    }
}

fn put_positions(out: &mut Vec<u8>, positions: &[Position]) {
    out.extend((positions.len() as u16).to_le_bytes());
    for at in positions {
        out.extend(at.publisher.to_le_bytes());
        out.extend(at.seq.to_le_bytes());
    }
}

// ---- frames ---------------------------------------------------------------------------------

/// What a frame says, beside its topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Want(Want, Reach),
    /// `head` bytes of the body are the head of the item, if it is the first piece; `size` is that
    /// of the item.
    Piece {
        generation: Generation,
        piece: Piece,
        head: u32,
        size: u64,
    },
    Probe {
        generation: Generation,
        next: Piece,
    },
    Reset(Generation),
    /// The exporting side has a door.
    Invite(Generation, Invitation),
}

const WANT: u8 = 1;
const PIECE: u8 = 2;
const PROBE: u8 = 3;
const RESET: u8 = 4;
const INVITE: u8 = 5;
const BEGIN: u8 = 1;
const CLOSE: u8 = 2;
const DOOR: u8 = 4;
const STREAM: u8 = 8;

impl Frame {
    /// Without the body.
    pub fn encode(&self, topic: &str) -> Vec<u8> {
        let (kind, generation) = match self {
            Frame::Want(want, _) => (WANT, want.generation),
            Frame::Piece { generation, .. } => (PIECE, *generation),
            Frame::Probe { generation, .. } => (PROBE, *generation),
            Frame::Reset(generation) => (RESET, *generation),
            Frame::Invite(generation, _) => (INVITE, *generation),
        };
        let mut out = Vec::with_capacity(64 + topic.len());
        out.extend([kind, topic.len() as u8]);
        out.extend(topic.as_bytes());
        out.extend(generation.instance.to_le_bytes());
        out.extend(generation.count.to_le_bytes());
        match self {
            Frame::Want(want, reach) => {
                let flag = |is_set, flag| if is_set { flag } else { 0 };
                out.push(
                    flag(want.begin, BEGIN)
                        | flag(want.close, CLOSE)
                        | flag(matches!(reach, Reach::Door(_)), DOOR)
                        | flag(*reach == Reach::Stream, STREAM),
                );
                out.extend(want.acked.to_le_bytes());
                out.extend(want.limit.to_le_bytes());
                put_positions(&mut out, &want.positions);
                if let Reach::Door(invitation) = reach {
                    put_invitation(&mut out, invitation);
                }
            }
            Frame::Piece { piece, head, size, .. } => {
                out.extend(piece.number.to_le_bytes());
                out.extend(piece.offset.to_le_bytes());
                out.extend(head.to_le_bytes());
                out.extend(size.to_le_bytes());
            }
            Frame::Probe { next, .. } => {
                out.extend(next.number.to_le_bytes());
                out.extend(next.offset.to_le_bytes());
            }
            Frame::Reset(_) => (),
            Frame::Invite(_, invitation) => put_invitation(&mut out, invitation),
        }
        out
    }

    /// Parses a frame of `total` bytes that begins with these: at least [`HEADER_MAX`] of them, or
    /// all. Returns the topic, and the size of the header, behind which the body is.
    pub fn parse(bytes: &[u8], total: usize) -> Result<(String, Frame, usize)> {
        let mut rest = Bytes(bytes);
        let kind = rest.u8("a frame")?;
        let n = rest.u8("a frame")?;
        let topic = rest.text(usize::from(n), "the topic of a frame")?;
        let instance = rest.u64("a generation")?;
        let generation = Generation { instance, count: rest.u64("a generation")? };
        let frame = match kind {
            WANT => {
                let flags = rest.u8("a want")?;
                let want = Want {
                    generation,
                    begin: flags & BEGIN != 0,
                    close: flags & CLOSE != 0,
                    acked: rest.u64("a want")?,
                    limit: rest.u64("a want")?,
                    positions: rest.positions()?,
                };
                let reach = match flags & (DOOR | STREAM) {
                    0 => Reach::Zenoh,
                    DOOR => Reach::Door(rest.invitation()?),
                    _ => Reach::Stream,
                };
                Frame::Want(want, reach)
            }
            PIECE => {
                let (number, offset) = (rest.u64("a piece")?, rest.u64("a piece")?);
                let (head, size) = (rest.u32("a piece")?, rest.u64("a piece")?);
                let len = (total - (bytes.len() - rest.0.len())) as u64;
                if size.checked_sub(offset).is_none_or(|left| len > left || len == 0) {
                    return malformed(format!(
                        "a piece of {len} bytes at {offset} lies outside of its item of {size}"
                    ));
                }
                if (offset == 0) != (head > 0)
                    || u64::from(head) > len
                    || head as usize > HEAD_MAX
                    || len > crate::flow::PIECE.max(u64::from(head))
                {
                    return malformed(format!(
                        "a piece of {len} bytes at {offset} has {head} bytes of a head"
                    ));
                }
                Frame::Piece { generation, piece: Piece { number, offset, len }, head, size }
            }
            PROBE => {
                let next =
                    Piece { number: rest.u64("a probe")?, offset: rest.u64("a probe")?, len: 0 };
                Frame::Probe { generation, next }
            }
            RESET => Frame::Reset(generation),
            INVITE => Frame::Invite(generation, rest.invitation()?),
            _ => return malformed(format!("a frame of the unknown kind {kind}")),
        };
        Ok((topic, frame, bytes.len() - rest.0.len()))
    }
}

// ---- heads of items -------------------------------------------------------------------------

/// A tensor of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorHead {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<usize>,
    /// Its bytes, row-major.
    pub size: u64,
}

/// A message without the content of its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageHead {
    pub source: Position,
    /// Messages of this publisher that were lost at its own machine, just before this one.
    pub gap: u64,
    /// When it was published: nanoseconds of CLOCK_REALTIME.
    pub realtime_ns: u64,
    /// The hosts that it has passed, the first one first.
    pub hops: Vec<String>,
    pub tensors: Vec<TensorHead>,
    pub meta: Vec<u8>,
}

/// What an item is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    Message(MessageHead),
    /// The exporting side has subscribed anew: what these publishers had published until then has
    /// come before this, or does not come.
    Base(Vec<Position>),
    /// The last publisher has left, and everything it published came before this.
    End,
}

const MESSAGE: u8 = 1;
const BASE: u8 = 2;
const END: u8 = 3;

/// Bytes of a row-major tensor, if they can be.
pub fn tensor_size(dtype: DType, shape: &[usize]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    let bits = u64::from(dtype.bits) * u64::from(dtype.lanes);
    let bits = shape.iter().try_fold(bits, |n, &size| n.checked_mul(size as u64))?;
    Some(bits.div_ceil(8))
}

impl Head {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Head::Message(head) => {
                out.push(MESSAGE);
                for n in [head.source.publisher, head.source.seq, head.gap, head.realtime_ns] {
                    out.extend(n.to_le_bytes());
                }
                out.push(head.hops.len() as u8);
                for hop in &head.hops {
                    out.push(hop.len() as u8);
                    out.extend(hop.as_bytes());
                }
                out.extend((head.tensors.len() as u16).to_le_bytes());
                out.extend((head.meta.len() as u32).to_le_bytes());
                for tensor in &head.tensors {
                    out.extend([tensor.dtype.code, tensor.dtype.bits]);
                    out.extend(tensor.dtype.lanes.to_le_bytes());
                    out.push(tensor.shape.len() as u8);
                    out.extend((tensor.name.len() as u16).to_le_bytes());
                    out.extend(tensor.name.as_bytes());
                    for &size in &tensor.shape {
                        out.extend((size as u64).to_le_bytes());
                    }
                }
                out.extend(&head.meta);
            }
            Head::Base(positions) => {
                out.push(BASE);
                put_positions(&mut out, positions);
            }
            Head::End => out.push(END),
        }
        out
    }

    /// Parses the head of an item with `payload` bytes behind it. Nothing is allocated before the
    /// bytes that it is for were seen, and no message is larger than `max_message` bytes.
    pub fn parse(bytes: &[u8], payload: u64, max_message: u64) -> Result<Head> {
        let mut rest = Bytes(bytes);
        let (head, expected) = match rest.u8("a head")? {
            MESSAGE => {
                let head = message_head(&mut rest, max_message)?;
                let size = head.tensors.iter().map(|tensor| tensor.size).sum();
                (Head::Message(head), size)
            }
            BASE => (Head::Base(rest.positions()?), 0),
            END => (Head::End, 0),
            kind => return malformed(format!("an item of the unknown kind {kind}")),
        };
        if !rest.0.is_empty() {
            return malformed(format!("a head with {} bytes behind its end", rest.0.len()));
        }
        if payload != expected {
            return malformed(format!(
                "an item has {payload} bytes of payload, and its tensors take {expected}"
            ));
        }
        Ok(head)
    }
}

fn message_head(rest: &mut Bytes<'_>, max_message: u64) -> Result<MessageHead> {
    let source = Position { publisher: rest.u64("a source")?, seq: rest.u64("a source")? };
    if source.seq == 0 {
        return malformed("a message with the number 0");
    }
    let (gap, realtime_ns) = (rest.u64("a gap")?, rest.u64("a time")?);
    let n_hops = usize::from(rest.u8("a list of hosts")?);
    if n_hops == 0 || n_hops > HOPS_MAX {
        return malformed(format!("a message of {n_hops} hosts (1 to {HOPS_MAX} are possible)"));
    }
    let mut hops = Vec::with_capacity(n_hops);
    for _ in 0..n_hops {
        let n = rest.u8("the name of a host")?;
        let host = rest.text(usize::from(n), "the name of a host")?;
        if !is_host(&host) {
            return malformed(format!("{host:?} is no name of a host"));
        }
        hops.push(host);
    }
    let n_tensors = usize::from(rest.u16("the number of tensors")?);
    let n_meta = rest.u32("the size of the metadata")? as usize;
    if n_tensors == 0 || n_tensors > TENSORS_MAX || n_meta > META_MAX {
        return malformed(format!(
            "a message of {n_tensors} tensors (1 to {TENSORS_MAX}) and {n_meta} bytes of metadata \
             (limit {META_MAX})"
        ));
    }
    let (mut tensors, mut total) = (Vec::new(), 0_u64);
    for i in 0..n_tensors {
        let (code, bits) = (rest.u8("a type")?, rest.u8("a type")?);
        let dtype = DType { code, bits, lanes: rest.u16("a type")? };
        let ndim = usize::from(rest.u8("a number of dimensions")?);
        let n_name = usize::from(rest.u16("a name")?);
        if bits == 0 || dtype.lanes == 0 || ndim > NDIM_MAX || n_name > NAME_MAX {
            return malformed(format!(
                "tensor {i} has {bits} bits, {} lanes, {ndim} dimensions (limit {NDIM_MAX}) and a \
                 name of {n_name} bytes (limit {NAME_MAX})",
                dtype.lanes
            ));
        }
        let name = rest.text(n_name, "the name of a tensor")?;
        let shape: Vec<usize> = (0..ndim)
            .map(|_| match usize::try_from(rest.u64("a shape")?) {
                Ok(size) if size <= isize::MAX as usize => Ok(size),
                _ => malformed(format!("tensor {i} has a size of 2^63 or more")),
            })
            .collect::<Result<_>>()?;
        let size = tensor_size(dtype, &shape).unwrap_or(u64::MAX);
        total = total.saturating_add(size);
        if total > max_message {
            return malformed(format!(
                "tensor {i} of shape {shape:?} makes the message {total} bytes large (limit \
                 {max_message}: see max_message)"
            ));
        }
        tensors.push(TensorHead { name, dtype, shape, size });
    }
    let meta = rest.take(n_meta, "the metadata")?.to_vec();
    Ok(MessageHead { source, gap, realtime_ns, hops, tensors, meta })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;

    fn head() -> MessageHead {
        let tensor = |name: &str, dtype: &str, shape: &[usize]| {
            let (dtype, shape) = (dtype.parse().unwrap(), shape.to_vec());
            let size = tensor_size(dtype, &shape).unwrap();
            TensorHead { name: name.into(), dtype, shape, size }
        };
        MessageHead {
            source: Position { publisher: 1 << 40, seq: 9 },
            gap: 2,
            realtime_ns: 1 << 60,
            hops: vec!["robot".into()],
            tensors: vec![
                tensor("image", "uint8", &[4, 5, 3]),
                tensor("", "float32", &[]),
                tensor("bits", "uint4", &[3]),
                tensor("none", "int64", &[0, 7]),
            ],
            meta: b"{}".to_vec(),
        }
    }

    fn payload(head: &MessageHead) -> u64 {
        head.tensors.iter().map(|tensor| tensor.size).sum()
    }

    fn frames() -> Vec<Frame> {
        let generation = Generation { instance: 3, count: 4 };
        let piece = Piece { number: 5, offset: 0, len: 9 };
        let want = Want {
            generation,
            begin: true,
            close: true,
            acked: 6,
            limit: 7,
            positions: vec![Position { publisher: 8, seq: 9 }; 256],
        };
        let addresses = ["192.0.2.1:7448".parse().unwrap(), "[2001:db8::1]:7448".parse().unwrap()];
        let plain = Invitation { addresses: addresses.into(), ticket: [1; 16], certificate: None };
        let most = Invitation {
            addresses: vec![addresses[1]; ADDRESSES_MAX],
            certificate: Some([2; 32]),
            ..plain
        };
        vec![
            Frame::Want(want.clone(), Reach::Zenoh),
            Frame::Want(want.clone(), Reach::Stream),
            Frame::Want(want, Reach::Door(most)),
            Frame::Invite(generation, plain),
            Frame::Piece { generation, piece, head: 8, size: 100 },
            Frame::Probe { generation, next: Piece { len: 0, offset: 3, ..piece } },
            Frame::Reset(generation),
        ]
    }

    #[test]
    fn frames_are_read_as_they_were_written() {
        for frame in frames() {
            let mut bytes = frame.encode("cam/front");
            let header = bytes.len();
            assert!(header <= HEADER_MAX);
            if matches!(frame, Frame::Piece { .. }) {
                bytes.extend([0; 9]);
            }
            let parsed = Frame::parse(&bytes, bytes.len()).unwrap();
            assert_eq!(parsed, ("cam/front".into(), frame, header));
        }
    }

    #[test]
    fn heads_are_read_as_they_were_written() {
        let message = head();
        let size = payload(&message);
        assert_eq!(size, 60 + 4 + 2);
        for (head, size) in [
            (Head::Message(message), size),
            (Head::Base(vec![Position { publisher: 1, seq: 2 }]), 0),
            (Head::End, 0),
        ] {
            let bytes = head.encode();
            assert_eq!(Head::parse(&bytes, size, 66), Ok(head.clone()));
            for n in 0..bytes.len() {
                assert!(Head::parse(&bytes[..n], size, 66).is_err(), "{n} bytes of {head:?}");
            }
            assert!(Head::parse(&bytes, size + 1, 1 << 30).is_err());
        }
    }

    /// What a head says that lies, and what the refusal says.
    #[test]
    fn lies_are_refused_by_name() {
        let lie = |change: fn(&mut MessageHead), words: &str| {
            let mut message = head();
            change(&mut message);
            let error = Head::parse(&Head::Message(message).encode(), 66, 1 << 20).unwrap_err();
            assert!(error.0.contains(words), "{error}");
        };
        lie(|m| m.tensors[0].shape = vec![usize::MAX, 2], "2^63");
        lie(|m| m.tensors[0].shape = vec![1 << 40, 1 << 40], "max_message");
        lie(|m| m.tensors[0].shape = vec![1 << 62, 2], "max_message");
        lie(|m| m.tensors[0].shape = vec![1 << 20, 2], "max_message");
        lie(|m| m.tensors[0].shape = vec![4, 5, 4], "its tensors take 86");
        lie(|m| m.tensors[0].shape = vec![1; 65], "65 dimensions");
        lie(|m| m.tensors[0].dtype.bits = 0, "0 bits");
        lie(|m| m.tensors[0].dtype.lanes = 0, "0 lanes");
        lie(|m| m.tensors[0].name = "x".repeat(1024), "1024 bytes");
        lie(|m| m.tensors[0].name = "a\0b".into(), "no text");
        lie(|m| m.tensors.clear(), "0 tensors");
        lie(|m| m.meta = vec![0; 65_537], "65537 bytes of metadata");
        lie(|m| m.hops.clear(), "0 hosts");
        lie(|m| m.hops = vec!["x".into(); 17], "17 hosts");
        lie(|m| m.hops = vec!["x".repeat(64)], "no name of a host");
        lie(|m| m.hops = vec!["\x1b[2J".into()], "no name of a host");
        lie(|m| m.source.seq = 0, "number 0");
    }

    #[test]
    fn pieces_that_lie_are_refused() {
        let generation = Generation::default();
        let parse = |offset, head, size, body: usize| {
            let piece = Piece { number: 0, offset, len: 0 };
            let mut bytes = Frame::Piece { generation, piece, head, size }.encode("a");
            bytes.resize(bytes.len() + body, 0);
            Frame::parse(&bytes[..bytes.len().min(HEADER_MAX)], bytes.len())
        };
        assert!(parse(0, 8, 100, 10).is_ok() && parse(10, 0, 100, 90).is_ok());
        for (offset, head, size, body) in [
            (0, 8, 9, 10),                  // beyond its item
            (u64::MAX, 0, 100, 10),         // far beyond
            (0, 0, 100, 10),                // an item without a head
            (10, 8, 100, 10),               // a head in the middle
            (0, 11, 100, 10),               // a head that is not all there
            (10, 0, 100, 0),                // nothing
            (1, 0, 1 << 40, (1 << 20) + 1), // too large
            (0, HEAD_MAX as u32 + 1, 1 << 40, HEAD_MAX + 1),
        ] {
            assert!(parse(offset, head, size, body).is_err(), "{offset} {head} {size} {body}");
        }
    }

    /// Any change of any bytes gives an error, or something within all limits.
    #[test]
    fn no_bytes_do_harm() {
        let mut dice = Dice(1);
        let heads = [Head::Message(head()).encode(), Head::Base(vec![]).encode()];
        let frames: Vec<_> = frames().iter().map(|frame| frame.encode("cam/front")).collect();
        let mut accepted = 0;
        for _ in 0..200_000 {
            let base = [&heads[..], &frames].concat();
            let mut bytes = base[dice.below(base.len() as u64) as usize].clone();
            for _ in 0..=dice.below(4) {
                let at = dice.below(bytes.len() as u64) as usize;
                match dice.below(4) {
                    0 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][dice.below(5) as usize],
                    1 => bytes[at] ^= 1 << dice.below(8),
                    2 => bytes.truncate(at.max(1)),
                    _ => bytes.insert(at, dice.below(256) as u8),
                }
            }
            if let Ok(Head::Message(message)) = Head::parse(&bytes, 66, 1 << 20) {
                accepted += 1;
                assert_eq!(payload(&message), 66);
                assert!(message.tensors.len() <= bytes.len() && message.source.seq > 0);
            }
            if let Ok((topic, frame, header)) = Frame::parse(&bytes, bytes.len()) {
                accepted += 1;
                assert!(topic.len() <= dlx::topic::SIZE_MAX && header <= bytes.len());
                if let Frame::Piece { piece, size, head, .. } = frame {
                    assert!(piece.offset + piece.len <= size && u64::from(head) <= piece.len);
                }
            }
        }
        assert!(accepted > 10_000, "only {accepted} were accepted, so the test tells little");
    }
}
