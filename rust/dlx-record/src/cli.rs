// SPDX-License-Identifier: Apache-2.0
//! What both programs share: stopping by a signal, amounts, and how they end.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use dlx::{Client, ConnectOptions, Interrupt};
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

    /// Connects to the daemon; being asked ends the waits of this connection.
    pub fn connect(&self, socket: Option<PathBuf>, name: &str) -> Result<Client> {
        let is_asked = self.is_asked.clone();
        let options = ConnectOptions {
            socket,
            name: Some(name.into()),
            interrupt: Some(Interrupt::new(move || is_asked.load(Relaxed))),
            ..Default::default()
        };
        Ok(Client::connect_with(&options)?)
    }
}

impl std::os::fd::AsFd for Stop {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.reader.as_fd()
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

/// Ends a program: with 1 after a failure, which it says.
pub fn end(program: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{program}: {failure}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::amount;

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
