// SPDX-License-Identifier: Apache-2.0
//! A daemon of the test's own.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{env, fs, process};

use dlx::{Client, ConnectOptions};

/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A program of the build under test.
pub fn program(name: &str) -> PathBuf {
    Path::new(&env::var_os("DLX_BUILD").expect("DLX_BUILD: run make check-rust")).join(name)
}

pub struct Daemon {
    folder: PathBuf,
    child: Child,
}

impl Daemon {
    pub fn start() -> Daemon {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("dlx-rust-{}-{number}", process::id()));
        fs::create_dir(&folder).unwrap();
        let child = Daemon::run(&folder);
        Daemon { folder, child }
    }

    fn run(folder: &Path) -> Child {
        let mut child = Command::new(program("dlpackd"))
            .arg("--socket")
            .arg(folder.join("socket"))
            .args(["--ready-fd=1", "--idle-exit=60"]) // it ends also if the test was killed
            .stdout(Stdio::piped())
            .stderr(fs::File::create(folder.join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let log = fs::read_to_string(folder.join("log")).unwrap();
        assert_eq!(ready, "READY=1\n", "{log}");
        child
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    pub fn connect(&self) -> Client {
        let options = ConnectOptions {
            socket: Some(self.socket()),
            name: Some("test".into()),
            ..Default::default()
        };
        Client::connect_with(&options).unwrap()
    }

    /// Kills it, and starts another one.
    pub fn restart(&mut self) {
        self.kill();
        self.child = Daemon::run(&self.folder);
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
