// SPDX-License-Identifier: Apache-2.0
//! One GPU of the stand-in for CUDA's driver (tests/gpu/standin), which programs find that begin
//! with it in their LD_LIBRARY_PATH: so a test with a GPU runs itself once more.

use std::ffi::{CStr, c_int, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, process};

use dlx::{DType, Device, ManagedTensor, Publisher};

/// True in the run with a GPU. Else such a run of this test was made, and it passed; or there is no
/// stand-in.
pub fn has_gpu(test: &str) -> bool {
    if env::var_os("STANDIN_MACHINE").is_some() {
        return true;
    }
    let build = PathBuf::from(env::var_os("DLX_BUILD").expect("DLX_BUILD: run make check-rust"));
    let folder = build.join("tests/standin");
    if !folder.join("libcuda.so.1").exists() {
        eprintln!("SKIP: {test}: the stand-in for CUDA's driver is not built (make standin)");
        return false;
    }
    let machine = env::temp_dir().join(format!("dlx-machine-{}-{test}", process::id()));
    fs::write(&machine, "").unwrap();
    let mut path = folder.into_os_string();
    path.push(":");
    path.push(env::var_os("LD_LIBRARY_PATH").unwrap_or_default());
    let run = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("STANDIN_MACHINE", &machine)
        .env("STANDIN_DEVICES", "1")
        .env("LD_LIBRARY_PATH", path)
        .output()
        .unwrap();
    fs::remove_file(machine).unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    let all = format!("{said}{}", String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && said.contains("1 passed"), "{test}, with a GPU: {all}");
    false
}

/// A row of the GPU that has these numbers.
pub fn on_gpu(publisher: &Publisher, numbers: &[u16]) -> ManagedTensor {
    type Retain = extern "C" fn(*mut *mut c_void, c_int) -> c_int;
    type SetCurrent = extern "C" fn(*mut c_void) -> c_int;
    type Copy = extern "C" fn(*mut c_void, *const c_void, usize) -> c_int;
    let gpu = Device { kind: 2, id: 0 };
    let tensor = publisher.alloc_managed(DType::of::<u16>(), &[numbers.len()], gpu).unwrap();
    // SAFETY: names that end with a zero, and a handle that is not NULL when it matters.
    let call = |name: &CStr| unsafe {
        let driver = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        let found = libc::dlsym(driver, name.as_ptr());
        assert!(!driver.is_null() && !found.is_null(), "{name:?}");
        found
    };
    // SAFETY: the functions have these types in the driver, and the tensor is as large as numbers.
    unsafe {
        let retain: Retain = std::mem::transmute(call(c"cuDevicePrimaryCtxRetain"));
        let set_current: SetCurrent = std::mem::transmute(call(c"cuCtxSetCurrent"));
        let copy: Copy = std::mem::transmute(call(c"cuMemcpyHtoD_v2"));
        let mut context = std::ptr::null_mut();
        assert_eq!(retain(&mut context, 0), 0);
        assert_eq!(set_current(context), 0);
        let to = (*tensor.as_raw()).dl_tensor.data;
        assert_eq!(copy(to, numbers.as_ptr().cast(), size_of_val(numbers)), 0);
        assert_eq!(set_current(std::ptr::null_mut()), 0);
    }
    tensor
}
