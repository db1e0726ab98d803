// SPDX-License-Identifier: Apache-2.0
//! What both programs share: how they stop, find the daemon, speak and end.

use std::fmt;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use dlx::{Client, ConnectOptions, FOREVER, Interrupt};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::{Failure, Result};

/// Readable once the program was asked to end.
#[derive(Debug)]
pub struct Stop {
    reader: UnixStream,
    is_asked: Arc<AtomicBool>,
}

impl Stop {
    /// From now on SIGINT and SIGTERM ask; a second SIGINT ends the program at once.
    pub fn on_signals() -> Result<Stop> {
        let fail = |error| Failure::of("signals", error);
        let (reader, writer) = UnixStream::pair().map_err(fail)?;
        let is_asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 130, is_asked.clone())
                .map_err(fail)?;
            signal_hook::flag::register(signal, is_asked.clone()).map_err(fail)?;
            let writer = writer.try_clone().map_err(fail)?;
            signal_hook::low_level::pipe::register(signal, writer).map_err(fail)?;
        }
        Ok(Stop { reader, is_asked })
    }

    /// Connects to the daemon; being asked ends the waits of this connection. The first of them
    /// may be for the daemon, and says so.
    pub fn connect(&self, daemon: &DaemonArgs, program: &'static str) -> Result<Client> {
        let is_silent = Arc::new(AtomicBool::new(daemon.wait_daemon.is_none()));
        let (said, is_asked, words) =
            (is_silent.clone(), self.is_asked.clone(), daemon.to_string());
        let ask = move || {
            if !said.swap(true, Relaxed) {
                say(format_args!("{program}: waiting for {words}\n"));
            }
            is_asked.load(Relaxed)
        };
        let options = ConnectOptions {
            socket: daemon.socket.clone(),
            name: Some(program.into()),
            autospawn: daemon.wait_daemon.is_none(),
            wait: daemon.wait_daemon.map(|limit| limit.unwrap_or(FOREVER)),
            interrupt: Some(Interrupt::new(ask)),
            ..Default::default()
        };
        let client = Client::connect_with(&options)?;
        is_silent.store(true, Relaxed);
        Ok(client)
    }
}

impl std::os::fd::AsFd for Stop {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// Which daemon, and whether to wait for it: options as dlxctl has them.
#[derive(clap::Args, Clone, Debug)]
pub struct DaemonArgs {
    /// Socket of the daemon
    #[arg(short, long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Wait until a daemon is up, at most for TIME; start none
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true,
        value_parser = dlx::parse_time)]
    wait_daemon: Option<Option<Duration>>,
}

impl fmt::Display for DaemonArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variable = std::env::var_os("DLX_SOCKET").map(PathBuf::from);
        f.write_str("dlpackd")?;
        if let Some(socket) = self.socket.as_ref().or(variable.as_ref()) {
            write!(f, " at {}", socket.display())?;
        }
        if let Some(Some(limit)) = self.wait_daemon {
            write!(f, ", at most {limit:?}")?;
        }
        Ok(())
    }
}

/// An amount of bytes for people.
pub fn amount(bytes: u64) -> String {
    let mut amount = bytes as f64;
    for unit in ["B", "kB", "MB", "GB", "TB"] {
        if amount < 999.5 || unit == "TB" {
            let digits = usize::from(unit != "B" && amount < 99.95);
            return format!("{amount:.digits$} {unit}");
        }
        amount /= 1000.0;
    }
    unreachable!("the last unit is for all")
}

/// Writes to the standard error. A closed one is no reason to end: a recording goes on.
pub fn say(words: fmt::Arguments<'_>) {
    let _ = io::stderr().write_fmt(words);
}

/// Writes a result to the standard output.
pub fn print(words: fmt::Arguments<'_>) -> Result<()> {
    let mut output = io::stdout();
    output
        .write_fmt(words)
        .and_then(|()| output.flush())
        .map_err(|error| Failure::of("standard output", error))
}

/// Ends a program: with 1 after a failure, which it says.
pub fn end(program: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(format_args!("{program}: {failure}\n"));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_three_digits() {
        for (bytes, words) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (99_949, "99.9 kB"),
            (99_960, "100 kB"),
            (999_499_999, "999 MB"),
            (12_345_678_901, "12.3 GB"),
            (u64::MAX, "18446744 TB"),
        ] {
            assert_eq!(amount(bytes), words);
        }
    }
}
