// SPDX-License-Identifier: Apache-2.0
//! The C API of libdlx, as bindgen reads it from the headers: functions, structs and constants have
//! their names and comments of C. The crate `dlpackd` is safe to use, and is what programs want.

#![allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(clippy::all, rustdoc::all)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
