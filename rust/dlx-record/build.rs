// SPDX-License-Identifier: Apache-2.0
//! Compiles the schemas of recordings with protoc, and keeps their descriptors.

use std::env;
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    prost_build::Config::new()
        .bytes(["."])
        .file_descriptor_set_path(out.join("schemas.bin"))
        .compile_protos(&["proto/foxglove_raw_image.proto"], &["proto"])
}
