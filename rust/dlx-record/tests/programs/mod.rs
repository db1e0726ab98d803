// SPDX-License-Identifier: Apache-2.0
//! Programs that tests start, and a folder for their files.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use std::{env, fs, process};

use crate::daemon::{Daemon, PATIENCE};

/// Looks until it is so.
pub fn until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "it did not become so in time");
        std::thread::yield_now();
    }
}

/// A folder that ends with its test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("dlx-record-{}-{number}", process::id()));
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// dlx-record or dlx-play; it ends with its value.
pub struct Program(Mutex<Child>);

pub fn record(daemon: &Daemon, args: &[&str], output: &Path) -> Program {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlx-record"));
    Program::start(command.args(args).arg(output), daemon)
}

/// With a file of at most so many bytes, as on a disk that is full then.
pub fn record_limited(daemon: &Daemon, args: &[&str], output: &Path, bytes: u64) -> Program {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlx-record"));
    command.args(args).arg(output);
    limit(&mut command, libc::RLIMIT_FSIZE, bytes);
    Program::start(&mut command, daemon)
}

fn limit(command: &mut Command, resource: libc::__rlimit_resource_t, n: u64) {
    let set = move || {
        let limit = libc::rlimit { rlim_cur: n, rlim_max: n };
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            assert_eq!(libc::setrlimit(resource, &limit), 0);
        }
        Ok(())
    };
    unsafe { command.pre_exec(set) };
}

pub fn play(daemon: &Daemon, input: &Path, args: &[&str]) -> Program {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlx-play"));
    Program::start(command.arg(input).args(args), daemon)
}

impl Program {
    /// Closes the reading end of its standard error.
    pub fn close_stderr(&self) {
        drop(self.0.lock().unwrap().stderr.take());
    }

    fn start(command: &mut Command, daemon: &Daemon) -> Program {
        command.arg("--socket").arg(daemon.socket());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Program(Mutex::new(command.spawn().unwrap()))
    }

    pub fn signal(&self, signal: i32) {
        let pid = self.0.lock().unwrap().id() as libc::pid_t;
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    pub fn has_ended(&self) -> bool {
        self.0.lock().unwrap().try_wait().unwrap().is_some()
    }

    /// Looks until it is so, and fails if the program ends before.
    pub fn while_running(&self, mut is_so: impl FnMut() -> bool) {
        until(|| {
            assert!(!self.has_ended(), "the program ended: {}", self.end().1);
            is_so()
        });
    }

    /// Its status, and what it said.
    pub fn end(&self) -> (ExitStatus, String) {
        let mut child = self.0.lock().unwrap();
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        if let Some(mut stderr) = child.stderr.take() {
            stderr.read_to_string(&mut said).unwrap();
        }
        (child.wait().unwrap(), said)
    }

    /// Waits for its end; it succeeds.
    pub fn wait(&self) -> String {
        let (status, said) = self.end();
        assert!(status.success(), "{status}: {said}");
        said
    }

    /// Reads what it says on the standard error up to these words.
    pub fn wait_for(&self, words: &str) -> String {
        let mut child = self.0.lock().unwrap();
        let (mut said, mut byte) = (Vec::new(), [0]);
        while !said.ends_with(words.as_bytes()) {
            let n = child.stderr.as_mut().unwrap().read(&mut byte).unwrap();
            assert_eq!(n, 1, "it ended: {}", String::from_utf8_lossy(&said));
            said.push(byte[0]);
        }
        String::from_utf8(said).unwrap()
    }

    /// Asks it to end once it is so.
    pub fn stop_when(&self, is_so: impl FnMut() -> bool) -> String {
        self.while_running(is_so);
        self.signal(libc::SIGINT);
        self.wait()
    }

    pub fn kill(&self) {
        let mut child = self.0.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}
