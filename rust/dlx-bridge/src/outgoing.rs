// SPDX-License-Identifier: Apache-2.0
//! A message of the local daemon as an item of a flow: its head, and the memory of its tensors,
//! which is held and not copied.

use bytes::Bytes;
use dlx::{Layout, Message, Tensor};

use crate::clock::realtime_of;
use crate::config::{Config, Gpu};
use crate::flow::Position;
use crate::wire::{HEAD_MAX, Head, MessageHead, TensorHead};

/// The device type of DLPack that received tensors in memory of the CPU have; publishing copies
/// pinned memory (kDLCUDAHost, kDLROCMHost) into such.
const CPU: u32 = 1;

/// Likewise, those that libdlx copies from: kDLCUDA and kDLROCM.
const GPUS: [u32; 2] = [2, 10];

/// Is it on a GPU from which it is to be copied?
fn is_staged(layout: &Layout<'_>, gpu: Gpu) -> bool {
    gpu == Gpu::Stage && GPUS.contains(&layout.device.kind)
}

/// Can it be carried? A tensor with a stride of 0 may say that it is larger than any memory.
fn check(
    i: usize,
    name: &str,
    layout: &Layout<'_>,
    gpu: Gpu,
    max_message: u64,
) -> Result<(), String> {
    let kind = layout.device.kind;
    if kind != CPU && !is_staged(layout, gpu) {
        let device = match kind {
            2 => "kDLCUDA",
            10 => "kDLROCM",
            _ => "see dlpack.h",
        };
        return Err(format!(
            "tensor {i} {name:?} is on device {kind} of DLPack ({device}), and the bridge carries \
             tensors in memory of the CPU: publish a copy of it in such memory, or have the bridge \
             copy those on a GPU with gpu = \"stage\""
        ));
    }
    let is_copied = kind != CPU || !layout.is_row_major();
    if is_copied && layout.n_bytes() as u64 > max_message {
        return Err(format!(
            "tensor {i} {name:?} of shape {:?} and strides {:?} takes {} bytes without its strides \
             (limit {max_message}: see max_message)",
            layout.shape,
            layout.strides,
            layout.n_bytes()
        ));
    }
    Ok(())
}

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
    pub fn of_message(message: &Message, config: &Config) -> Result<Item, String> {
        let (mut tensors, mut payload) = (Vec::new(), Vec::new());
        for i in 0..message.n_tensors() {
            let name = message.name(i).unwrap_or_default().into_owned();
            let layout = message.layout(i).ok_or("a tensor is missing")?;
            check(i, &name, &layout, config.gpu, config.max_message)?;
            let why = |e: dlx::Error| format!("tensor {i} {name:?}: {e}");
            let bytes = if is_staged(&layout, config.gpu) {
                Bytes::from(message.copy_to_host(i).map_err(why)?)
            } else if layout.is_row_major() {
                Bytes::from_owner(Owner(message.bytes(i).map_err(|e| e.to_string())?))
            } else {
                Bytes::from(message.packed(i).map_err(why)?.into_owned())
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
            hops: vec![config.host.clone()],
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_that_cannot_be_carried_are_refused_by_name() {
        let refusal = |gpu, kind, shape, strides| {
            let device = dlx::Device { kind, id: 0 };
            let layout = Layout { dtype: "float32".parse().unwrap(), device, shape, strides };
            check(2, "depth", &layout, gpu, 1 << 30).map_or_else(|e| e, |()| String::new())
        };
        assert_eq!(refusal(Gpu::Refuse, 1, &[4, 5], &[1, 4]), "");
        for (kind, name) in [(2, "kDLCUDA"), (10, "kDLROCM")] {
            let said = refusal(Gpu::Refuse, kind, &[4, 5], &[]);
            let words = format!("tensor 2 \"depth\" is on device {kind} of DLPack ({name})");
            assert!(said.starts_with(&words) && said.contains("gpu = \"stage\""), "{said}");
            assert_eq!(refusal(Gpu::Stage, kind, &[4, 5], &[]), "");
            let said = refusal(Gpu::Stage, kind, &[1 << 40], &[]);
            assert!(said.contains("max_message"), "{said}");
        }
        assert!(refusal(Gpu::Stage, 3, &[4, 5], &[]).contains("is on device 3 of DLPack"));
        let said = refusal(Gpu::Refuse, 1, &[1 << 40], &[0]);
        assert!(said.starts_with("tensor 2 \"depth\" of shape [1099511627776]"), "{said}");
        assert!(said.contains("takes 4398046511104 bytes"), "{said}");
    }
}
