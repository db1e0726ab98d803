// SPDX-License-Identifier: Apache-2.0
//! A message of the local daemon as an item of a flow: its head, and the memory of its tensors,
//! which is held and not copied.

use bytes::Bytes;
use dlx::{Message, Tensor};

use crate::clock::realtime_of;
use crate::flow::Position;
use crate::wire::{HEAD_MAX, Head, MessageHead, TensorHead};

/// Device types of DLPack whose memory is that of the CPU.
const CPU: [u32; 3] = [1, 3, 11];

/// What is sent: bytes, in parts. Parts hold the memory that they lie in.
pub struct Item {
    parts: Vec<Bytes>,
    pub head: u64,
    pub payload: u64,
}

/// A received tensor as an owner of bytes.
struct Owner(Tensor<u8>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Item {
    pub fn of_head(head: &Head) -> Item {
        Item::new(head, Vec::new())
    }

    fn new(head: &Head, payload: Vec<Bytes>) -> Item {
        let encoded = Bytes::from(head.encode());
        Item {
            head: encoded.len() as u64,
            payload: payload.iter().map(|part| part.len() as u64).sum(),
            parts: [encoded].into_iter().chain(payload).collect(),
        }
    }

    /// Fails with a reason if the message cannot be carried.
    pub fn of_message(message: &Message, host: &str) -> Result<Item, String> {
        let (mut tensors, mut payload) = (Vec::new(), Vec::new());
        for i in 0..message.n_tensors() {
            let name = message.name(i).unwrap_or_default().into_owned();
            let layout = message.layout(i).ok_or("a tensor is missing")?;
            if !CPU.contains(&layout.device.kind) {
                return Err(format!(
                    "tensor {i} {name:?} is on device {} of DLPack, and the bridge carries tensors \
                     in memory of the CPU: publish a copy of it in such memory",
                    layout.device.kind
                ));
            }
            let bytes = if layout.is_row_major() {
                Bytes::from_owner(Owner(message.bytes(i).map_err(|e| e.to_string())?))
            } else {
                let packed = message.packed(i).map_err(|e| format!("tensor {i} {name:?}: {e}"))?;
                Bytes::from(packed.into_owned())
            };
            tensors.push(TensorHead {
                name,
                dtype: layout.dtype,
                shape: layout.shape.to_vec(),
                size: bytes.len() as u64,
            });
            payload.push(bytes);
        }
        let head = Head::Message(MessageHead {
            source: Position { publisher: message.publisher(), seq: message.seq() },
            gap: message.gap(),
            realtime_ns: realtime_of(message.monotonic_ns()),
            hops: vec![host.to_string()],
            tensors,
            meta: message.meta().to_vec(),
        });
        let item = Item::new(&head, payload);
        if item.head as usize > HEAD_MAX {
            return Err(format!(
                "names, shapes and metadata take {} bytes (limit {HEAD_MAX}): publish fewer \
                 tensors in a message",
                item.head
            ));
        }
        Ok(item)
    }

    /// Bytes of head and payload together, without a copy.
    pub fn range(&self, mut offset: u64, mut len: u64) -> Vec<Bytes> {
        let mut parts = Vec::new();
        for part in &self.parts {
            let size = part.len() as u64;
            if offset >= size {
                offset -= size;
                continue;
            }
            let n = len.min(size - offset);
            if n > 0 {
                parts.push(part.slice(offset as usize..(offset + n) as usize));
            }
            (offset, len) = (0, len - n);
            if len == 0 {
                break;
            }
        }
        parts
    }
}
