// SPDX-License-Identifier: Apache-2.0
//! Finds libdlx, and makes the bindings from its headers. `DLX_BUILD` names the build folder of a
//! source tree that contains this crate; without it, pkg-config finds an installed library.

use bindgen::callbacks::{IntKind, ParseCallbacks};
use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-env-changed=DLX_BUILD");
    let mut bindings = bindgen::builder()
        .header("libdlx.h")
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
        .parse_callbacks(Box::new(WideMacros))
        .allowlist_function("dlx_.*")
        .allowlist_type("dlx_.*|DL.*")
        .allowlist_var("DLX_.*|DLPACK_FLAG_.*")
        .prepend_enum_name(false)
        .derive_default(true)
        // DLX_FOREVER and others are macros of macros, which clang itself has to expand
        .clang_macro_fallback()
        .clang_macro_fallback_build_dir(env::var_os("OUT_DIR").unwrap());
    for folder in find() {
        bindings = bindings.clang_arg(format!("-I{}", folder.display()));
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap()).join("bindings.rs");
    bindings
        .generate()
        .expect("bindgen could not read dlx/dlx.h")
        .write_to_file(out)
        .expect("the bindings could not be written");
}

/// Gives values of 64 bits their types: bindgen sees numbers only.
#[derive(Debug)]
struct WideMacros;

impl ParseCallbacks for WideMacros {
    fn int_macro(&self, name: &str, _value: i64) -> Option<IntKind> {
        match name {
            "DLX_FOREVER" | "DLX_RETAIN_LATCHED" | "DLX_SPIN_NEVER" | "DLX_SPIN_ALWAYS" => {
                Some(IntKind::I64)
            }
            "DLX_REFUSED_UNKNOWN"
            | "DLX_FIGURE_UNKNOWN"
            | "DLX_BEHIND_UNKNOWN"
            | "DLX_QUOTA_UNLIMITED" => Some(IntKind::U64),
            _ => None,
        }
    }
}

/// Tells cargo how to link libdlx, and returns the folders of its headers.
fn find() -> Vec<PathBuf> {
    if let Some(build) = env::var_os("DLX_BUILD") {
        let build = PathBuf::from(build);
        let library = build.join("libdlx.so");
        assert!(library.exists(), "DLX_BUILD: there is no {}: run make", library.display());
        println!("cargo:rustc-link-search=native={}", build.display());
        println!("cargo:rustc-link-lib=dylib=dlx");
        return vec![
            PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../../include"),
        ];
    }
    match pkg_config::Config::new().atleast_version("0.1.0").probe("libdlx") {
        Ok(found) => found.include_paths,
        Err(e) => panic!(
            "libdlx was not found: install it, or set DLX_BUILD to the build folder of its source: \
             {e}"
        ),
    }
}
