// SPDX-License-Identifier: Apache-2.0
//! What a message of dlpackd is in a file: a `foxglove.RawImage` if it is an image, else a
//! `dlx.Message`.

use std::borrow::Cow;

use bytes::Bytes;
use dlx::{DType, Device, Layout, sys};
use prost::Message as _;
use prost_types::{FileDescriptorSet, Timestamp};

use crate::{Failure, Result};

/// What prost makes of the schemas.
#[allow(missing_docs)]
mod generated {
    pub mod dlx {
        include!(concat!(env!("OUT_DIR"), "/dlx.rs"));
    }
    pub mod foxglove {
        include!(concat!(env!("OUT_DIR"), "/foxglove.rs"));
    }
}

pub use generated::dlx::{Image, Message, Origin, Tensor};
pub use generated::foxglove::RawImage;

/// The schemas with all that they import, as MCAP embeds them.
static SCHEMAS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/schemas.bin"));

/// Which schema a record has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `dlx.Message`.
    Message,
    /// `foxglove.RawImage`.
    Image,
}

impl Kind {
    /// The name of the schema.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Message => "dlx.Message",
            Kind::Image => "foxglove.RawImage",
        }
    }

    /// The kind of records of a schema, None of another one.
    pub fn of_schema(name: &str, encoding: &str) -> Option<Kind> {
        [Kind::Message, Kind::Image]
            .into_iter()
            .find(|kind| encoding == "protobuf" && kind.name() == name)
    }

    /// The `FileDescriptorSet` that a file has of it: its own file and those that this imports.
    pub(crate) fn descriptor(self) -> Vec<u8> {
        let mut set = FileDescriptorSet::decode(SCHEMAS).expect("the build made it");
        if self == Kind::Message {
            set.file.retain(|file| file.package() != "foxglove");
        }
        set.encode_to_vec()
    }
}

/// Pixels of an image each way: an array of bytes with another shape is hardly one.
const IMAGE_SIDE: std::ops::RangeInclusive<usize> = 16..=65_536;

/// The name that Foxglove has for images of this layout.
fn image_encoding(layout: &Layout<'_>) -> Option<&'static str> {
    let (height, width, channels) = match *layout.shape {
        [height, width] => (height, width, 1),
        [height, width, channels] => (height, width, channels),
        _ => return None,
    };
    if !IMAGE_SIDE.contains(&height) || !IMAGE_SIDE.contains(&width) {
        return None;
    }
    match (layout.dtype == DType::of::<u8>(), layout.dtype == DType::of::<u16>(), channels) {
        (true, _, 1) => Some("mono8"),
        (true, _, 3) => Some("rgb8"),
        (true, _, 4) => Some("rgba8"),
        (_, true, 1) => Some("mono16"),
        _ => None,
    }
}

/// The data type of an element of a pixel, and how many it has.
fn image_elements(encoding: &str) -> Option<(DType, usize)> {
    match encoding {
        "mono8" | "8UC1" => Some((DType::of::<u8>(), 1)),
        "rgb8" | "bgr8" | "8UC3" => Some((DType::of::<u8>(), 3)),
        "rgba8" | "bgra8" => Some((DType::of::<u8>(), 4)),
        "mono16" | "16UC1" => Some((DType::of::<u16>(), 1)),
        "32FC1" => Some((DType::of::<f32>(), 1)),
        _ => None,
    }
}

/// What becomes of tensors on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gpu {
    /// Messages with one are not recorded.
    #[default]
    Refuse,
    /// Tensors on a GPU are copied to memory of the host.
    Stage,
}

/// Lends the bytes of a message of libdlx to a record.
struct Held(dlx::Message, usize);

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        match self.0.packed(self.1) {
            Ok(Cow::Borrowed(bytes)) => bytes,
            _ => unreachable!("data_of() has lent them before"),
        }
    }
}

fn data_of(message: &dlx::Message, i: usize, layout: &Layout<'_>, gpu: Gpu) -> Result<Bytes> {
    if gpu == Gpu::Stage && [sys::kDLCUDA, sys::kDLROCM].contains(&layout.device.kind) {
        return Ok(message.copy_to_host(i)?.into());
    }
    if layout.device.kind != Device::CPU.kind {
        return Err(elsewhere(&message.name(i).unwrap_or_default(), layout.device));
    }
    Ok(match message.packed(i)? {
        Cow::Borrowed(_) => Bytes::from_owner(Held(message.clone(), i)),
        Cow::Owned(copy) => copy.into(),
    })
}

fn elsewhere(name: &str, device: Device) -> Failure {
    let place = match device.kind {
        sys::kDLCUDAHost | sys::kDLROCMHost => "in memory that is pinned for a GPU",
        _ => "not in memory of the CPU",
    };
    Failure::new(format!("tensor {name:?} is {place} (device type {} of DLPack)", device.kind))
}

/// A time of CLOCK_REALTIME in nanoseconds.
pub(crate) fn timestamp(ns: u64) -> Timestamp {
    let billion = 1_000_000_000;
    Timestamp { seconds: (ns / billion) as i64, nanos: (ns % billion) as i32 }
}

/// A time of CLOCK_REALTIME for people.
pub fn time_text(ns: u64) -> String {
    timestamp(ns).to_string()
}

/// The strides if they say something.
fn strides_of(layout: &Layout<'_>) -> Vec<i64> {
    if layout.is_row_major() {
        return Vec::new();
    }
    layout.strides.iter().map(|&stride| stride as i64).collect()
}

fn shape_of(layout: &Layout<'_>) -> Vec<u64> {
    layout.shape.iter().map(|&size| size as u64).collect()
}

/// A record, as it is encoded in a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// Of any tensors.
    Message(Message),
    /// Of one that is an image.
    Image(RawImage),
}

impl Record {
    /// Makes one of a message, whose memory it holds. `time_ns` is that of publication,
    /// CLOCK_REALTIME; before it, the file lacks `missed` messages of the same publisher. Fails if
    /// a tensor is not in memory of the CPU, or on a GPU and not to be staged.
    pub fn new(
        message: &dlx::Message,
        time_ns: u64,
        missed: u64,
        finds_images: bool,
        gpu: Gpu,
    ) -> Result<Record> {
        let meta = message.meta();
        let origin = Some(Origin {
            publisher: message.publisher(),
            seq: message.seq(),
            missed,
            monotonic_ns: message.monotonic_ns(),
            meta: (!meta.is_empty()).then(|| Bytes::copy_from_slice(meta)),
        });
        let timestamp = Some(timestamp(time_ns));
        let n = message.n_tensors();
        let layout = |i| message.layout(i).expect("a message has n_tensors()");
        let name = |i| message.name(i).unwrap_or_default().into_owned();
        if let (true, 1, Some(encoding)) = (finds_images, n, image_encoding(&layout(0))) {
            let layout = layout(0);
            let (height, width) = (layout.shape[0] as u32, layout.shape[1] as u32);
            return Ok(Record::Image(RawImage {
                timestamp,
                frame_id: message.topic().into_owned(),
                width,
                height,
                encoding: encoding.into(),
                step: (layout.n_bytes() / layout.shape[0]) as u32,
                data: data_of(message, 0, &layout, gpu)?,
                dlx: Some(Image {
                    origin,
                    name: name(0),
                    shape: shape_of(&layout),
                    strides: strides_of(&layout),
                }),
            }));
        }
        let tensors = (0..n)
            .map(|i| {
                let layout = layout(i);
                Ok(Tensor {
                    name: name(i),
                    dtype: layout.dtype.to_string(),
                    shape: shape_of(&layout),
                    strides: strides_of(&layout),
                    data: data_of(message, i, &layout, gpu)?,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Record::Message(Message { timestamp, tensors, origin }))
    }

    /// Its schema.
    pub fn kind(&self) -> Kind {
        match self {
            Record::Message(_) => Kind::Message,
            Record::Image(_) => Kind::Image,
        }
    }

    /// Appends it, encoded.
    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        fn append(message: &impl prost::Message, to: &mut Vec<u8>) {
            to.reserve_exact(message.encoded_len()); // a bound on bytes is one on memory
            message.encode_raw(to);
        }
        match self {
            Record::Message(message) => append(message, to),
            Record::Image(image) => append(image, to),
        }
    }

    /// Decodes what a file has.
    pub fn decode(kind: Kind, data: Bytes) -> Result<Record> {
        match kind {
            Kind::Message => Message::decode(data).map(Record::Message),
            Kind::Image => RawImage::decode(data).map(Record::Image),
        }
        .map_err(|error| Failure::of(format!("no {}", kind.name()), error))
    }

    /// Which message it was, if a program of ours recorded it.
    pub fn origin(&self) -> Option<&Origin> {
        match self {
            Record::Message(message) => message.origin.as_ref(),
            Record::Image(image) => image.dlx.as_ref().and_then(|image| image.origin.as_ref()),
        }
    }

    /// Its tensors. What a file says of them is checked: the data has as many bytes as the shape
    /// and the data type ask for.
    pub fn contents(&self) -> Result<Vec<Content<'_>>> {
        match self {
            Record::Message(message) => message.tensors.iter().map(Content::of_tensor).collect(),
            Record::Image(image) => Ok(vec![Content::of_image(image)?]),
        }
    }
}

/// A tensor of a record: row-major.
#[derive(Debug, PartialEq)]
pub struct Content<'a> {
    /// Its name, "" if it has none.
    pub name: &'a str,
    /// What its elements are.
    pub dtype: DType,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its bytes.
    pub data: Cow<'a, [u8]>,
}

impl<'a> Content<'a> {
    fn of_tensor(tensor: &'a Tensor) -> Result<Content<'a>> {
        let dtype = tensor.dtype.parse::<DType>()?;
        let shape = sizes(&tensor.shape)?;
        Content { name: &tensor.name, dtype, shape, data: Cow::Borrowed(&tensor.data) }.checked()
    }

    fn of_image(image: &'a RawImage) -> Result<Content<'a>> {
        let Some((dtype, channels)) = image_elements(&image.encoding) else {
            return Err(Failure::new(format!(
                "an image of encoding {:?}, which dlx-play does not know",
                image.encoding
            )));
        };
        let (height, width) = (image.height as usize, image.width as usize);
        let row = width * channels * usize::from(dtype.bits) / 8;
        let (name, shape) = match &image.dlx {
            Some(known) => (known.name.as_str(), sizes(&known.shape)?),
            None if channels == 1 => ("", vec![height, width]),
            None => ("", vec![height, width, channels]),
        };
        let step = image.step as usize;
        let data = if step == row {
            Cow::Borrowed(&image.data[..])
        } else if step > row && height.checked_mul(step) == Some(image.data.len()) {
            Cow::Owned(image.data.chunks(step).flat_map(|line| &line[..row]).copied().collect())
        } else {
            return Err(Failure::new(format!(
                "an image of {width} x {height} {} whose lines have {step} bytes, and its data {}",
                image.encoding,
                image.data.len()
            )));
        };
        Content { name, dtype, shape, data }.checked()
    }

    fn checked(self) -> Result<Content<'a>> {
        let bits = u64::from(self.dtype.bits) * u64::from(self.dtype.lanes);
        let wanted = self
            .shape
            .iter()
            .try_fold(bits, |bits, &size| bits.checked_mul(size as u64))
            .map(|bits| bits.div_ceil(8));
        if wanted == Some(self.data.len() as u64) {
            return Ok(self);
        }
        Err(Failure::new(format!(
            "a tensor of shape {:?} of {} that has {} bytes",
            self.shape,
            self.dtype,
            self.data.len()
        )))
    }
}

fn sizes(shape: &[u64]) -> Result<Vec<usize>> {
    shape
        .iter()
        .map(|&size| usize::try_from(size))
        .collect::<std::result::Result<_, _>>()
        .map_err(|_| Failure::new(format!("a tensor of shape {shape:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(dtype: &str, shape: &[u64], n_bytes: usize) -> Record {
        let tensor = Tensor {
            dtype: dtype.into(),
            shape: shape.into(),
            data: vec![0; n_bytes].into(),
            ..Default::default()
        };
        Record::Message(Message { tensors: vec![tensor], ..Default::default() })
    }

    #[test]
    fn data_that_does_not_fit_the_shape_is_refused() {
        assert!(tensor("float32", &[2, 3], 24).contents().is_ok());
        assert!(tensor("float32", &[], 4).contents().is_ok());
        assert!(tensor("float32", &[0, 9], 0).contents().is_ok());
        assert!(tensor("int4", &[3], 2).contents().is_ok());
        for (shape, n_bytes) in
            [(&[2, 3][..], 23), (&[2, 3], 25), (&[u64::MAX, u64::MAX], 8), (&[0, u64::MAX], 1)]
        {
            let error = tensor("float32", shape, n_bytes).contents().unwrap_err();
            assert!(error.to_string().contains(&format!("{n_bytes} bytes")), "{error}");
        }
        assert!(tensor("float33", &[2], 8).contents().is_err());
    }

    fn image(encoding: &str, step: u32, n_bytes: usize) -> Record {
        Record::Image(RawImage {
            width: 4,
            height: 2,
            encoding: encoding.into(),
            step,
            data: (0..n_bytes as u8).collect::<Vec<_>>().into(),
            ..Default::default()
        })
    }

    #[test]
    fn images_of_others_become_tensors_without_what_pads_their_lines() {
        let padded = image("mono8", 6, 12);
        let contents = padded.contents().unwrap();
        assert_eq!(contents[0].shape, [2, 4]);
        assert_eq!(*contents[0].data, [0, 1, 2, 3, 6, 7, 8, 9]);
        assert_eq!(image("bgr8", 12, 24).contents().unwrap()[0].shape, [2, 4, 3]);
        for (encoding, step, n_bytes) in
            [("jpeg", 4, 8), ("mono8", 3, 6), ("mono8", 6, 11), ("mono8", 4, 9)]
        {
            assert!(image(encoding, step, n_bytes).contents().is_err(), "{encoding} {step}");
        }
    }

    #[test]
    fn refusal_tells_pinned_memory_from_that_of_a_gpu() {
        for (kind, words) in [
            (sys::kDLCUDA, "is not in memory of the CPU (device type 2 of DLPack)"),
            (sys::kDLCUDAHost, "is in memory that is pinned for a GPU (device type 3 of DLPack)"),
        ] {
            let why = elsewhere("x", Device { kind, id: 0 }).to_string();
            assert_eq!(why, format!("tensor \"x\" {words}"));
        }
    }

    #[test]
    fn schemas_are_whole() {
        for kind in [Kind::Message, Kind::Image] {
            let set = FileDescriptorSet::decode(&kind.descriptor()[..]).unwrap();
            for file in &set.file {
                for import in &file.dependency {
                    assert!(set.file.iter().any(|other| other.name() == import), "{import}");
                }
            }
        }
    }
}
