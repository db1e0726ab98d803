// SPDX-License-Identifier: Apache-2.0
//! dlx-bridge carries topics of dlpackd between machines: docs/BRIDGE.md.

mod bridge;
mod clock;
mod config;
#[cfg(test)]
mod dice;
mod direct;
mod export;
mod flow;
mod import;
mod mailbox;
mod metrics;
mod offer;
mod outgoing;
mod path;
mod tls;
mod wire;

use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::bridge::{Bridge, Task, Ways};
use crate::config::{Config, Export, Import, is_loopback};
use crate::direct::Door;
use crate::mailbox::Mailbox;
use crate::metrics::Metrics;
use crate::path::Zenoh;
use crate::tls::Keys;

const USAGE: &str = "\
Usage: dlx-bridge --config FILE
       dlx-bridge [--listen[=ADDRESS]]... [--connect HOST]... [OPTION]...

Carries topics of dlpackd between machines: see dlx-bridge(1).

  --config FILE      read FILE; the options below add to it
  --listen[=ADDRESS] wait for other bridges; 127.0.0.1:7447 by default
  --connect HOST     connect to the bridge of HOST, at port 7447 or HOST:PORT
  --direct ADDRESS   let others open streams there, HOST or HOST:PORT; by default beside --listen
                     at the next port; no: nowhere
  --export PATTERN   offer these topics; without --config, --listen alone offers **
  --import PATTERN   import these topics, as HOST/TOPIC; --connect alone imports **
  --host NAME        name of this machine for other bridges; its host name by default
  --socket PATH      socket of the local daemon
  --metrics ADDRESS  serve metrics for Prometheus there, such as 127.0.0.1:9464
  --wait-daemon[=TIME]
                     wait for a daemon that is not up: without a limit, or for TIME, such as 2, 0.5
                     or 100ms; 30 s by default
  --json             report what goes wrong as lines of JSON
  --help, --version  print this text, or the version
";

/// --json: say() writes objects.
static SAYS_JSON: AtomicBool = AtomicBool::new(false);

/// Says something on stderr. It goes nowhere if that is closed.
pub fn say(what: fmt::Arguments<'_>) {
    use std::io::Write;
    let _ = if SAYS_JSON.load(Ordering::Relaxed) {
        writeln!(std::io::stderr(), "{{\"message\": {}}}", json_string(&what.to_string()))
    } else {
        writeln!(std::io::stderr(), "dlx-bridge: {what}")
    };
}

fn json_string(text: &str) -> String {
    let mut json = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            c if c < ' ' => json += &format!("\\u{:04x}", c as u32),
            c => json.push(c),
        }
    }
    json + "\""
}

/// A panic in another thread leaves what it locked as it is; all that is locked here is valid
/// between any two operations.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Once in 10 seconds.
#[derive(Default)]
pub struct Every(Option<Instant>);

impl Every {
    /// Is it time again?
    pub fn is_due(&mut self) -> bool {
        let due = self.0.is_none_or(|last| last.elapsed() >= Duration::from_secs(10));
        if due {
            self.0 = Some(Instant::now());
        }
        due
    }
}

/// Reads the arguments; None: there is nothing more to do.
fn arguments() -> Result<Option<Config>, String> {
    let mut config = Config::default();
    let mut has_file = false;
    let (mut export, mut import) = (Vec::new(), Vec::new());
    let mut arguments = std::env::args().skip(1);
    // --config comes first: options add to what it says
    let mut rest = Vec::new();
    while let Some(argument) = arguments.next() {
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name.to_string(), Some(value.to_string())),
            None => (argument, None),
        };
        let value = match name.as_str() {
            "--help" => {
                print!("{USAGE}");
                return Ok(None);
            }
            "--version" => {
                println!("dlx-bridge {}", env!("CARGO_PKG_VERSION"));
                return Ok(None);
            }
            "--json" => {
                SAYS_JSON.store(true, Ordering::Relaxed);
                continue;
            }
            "--listen" => value.unwrap_or_else(|| "127.0.0.1".into()),
            "--wait-daemon" => value.unwrap_or_default(),
            _ => value.or_else(|| arguments.next()).ok_or(format!("{name} needs a value"))?,
        };
        if name == "--config" {
            (config, has_file) = (Config::read(Path::new(&value))?, true);
        } else {
            rest.push((name, value));
        }
    }
    for (name, value) in rest {
        match name.as_str() {
            "--listen" => config.listen.push(value),
            "--connect" => config.connect.push(value),
            "--direct" if value == "no" => config.direct = Some(Vec::new()),
            "--direct" => config.direct.get_or_insert_default().push(value),
            "--export" => export.push(value),
            "--import" => import.push(value),
            "--host" => config.host = value,
            "--socket" => config.socket = Some(value.into()),
            "--metrics" => config.metrics = Some(value),
            "--wait-daemon" if value.is_empty() => config.wait_daemon = dlx::FOREVER,
            "--wait-daemon" => {
                config.wait_daemon = dlx::parse_time(&value).map_err(|e| format!("{name}: {e}"))?;
            }
            _ => return Err(format!("the option {name} is unknown: see dlx-bridge --help")),
        }
    }
    if !has_file && export.is_empty() && import.is_empty() {
        if config.connect.is_empty() || !config.listen.is_empty() {
            export.push("**".into());
        }
        if !config.connect.is_empty() {
            import.push("**".into());
        }
    }
    config.export.extend(export.into_iter().map(|topics| Export { topics }));
    config.import.extend(import.into_iter().map(|topics| Import {
        topics,
        from: "*".into(),
        prefix: "{host}/".into(),
    }));
    config.complete().map(Some)
}

fn main() -> ExitCode {
    match arguments().and_then(|config| config.map_or(Ok(()), run)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            say(format_args!("{e}"));
            ExitCode::FAILURE
        }
    }
}

/// Blocks the signals that end the process, for all threads that begin later.
fn block_signals() -> libc::sigset_t {
    // SAFETY: a set of signals is plain data, and the calls get valid pointers.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        libc::sigaddset(&mut signals, libc::SIGTERM);
        libc::sigaddset(&mut signals, libc::SIGINT);
        libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut());
        signals
    }
}

/// How long the bridge has to end when it is told to.
const ENDS: Duration = Duration::from_secs(3);

fn run(config: Config) -> Result<(), String> {
    let signals = block_signals();
    bridge::raise_fd_limit();
    let stopping = Arc::new(AtomicBool::new(false));
    let tasks = Mailbox::new().map_err(|e| e.to_string())?;
    let (told, bell) = (stopping.clone(), tasks.clone());
    std::thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: both are valid for the call.
        unsafe { libc::sigwait(&signals, &mut signal) };
        told.store(true, Ordering::Relaxed);
        bell.ring();
        std::thread::sleep(ENDS);
        // A frame that zenoh cannot send holds a thread for up to 5 s.
        say(format_args!("some threads have not ended within {ENDS:?}: the process ends now"));
        std::process::exit(0);
    });
    let (bridge, zenoh) = match begin(config, stopping.clone(), tasks) {
        Err(_) if stopping.load(Ordering::Relaxed) => return Ok(()), // it was told to end
        begun => begun?,
    };
    let result = bridge.run();
    zenoh.close();
    result
}

fn begin(
    config: Config,
    stopping: Arc<AtomicBool>,
    tasks: Arc<Mailbox<Task>>,
) -> Result<(Bridge, Arc<Zenoh>), String> {
    let asked = stopping.clone();
    let options = dlx::ConnectOptions {
        socket: config.socket.clone(),
        name: Some(format!("{}:{}", offer::BRIDGE, config.host).chars().take(63).collect()),
        autospawn: false,
        wait: Some(config.wait_daemon),
        interrupt: Some(dlx::Interrupt::new(move || asked.load(Ordering::Relaxed))),
        ..Default::default()
    };
    let client = dlx::Client::connect_with(&options).map_err(|e| e.to_string())?;
    if config.tls.is_none()
        && let Some(open) = config.listen.iter().find(|endpoint| !is_loopback(endpoint))
    {
        say(format_args!(
            "{open}: everybody who can reach it can subscribe and publish, since there is no [tls] \
             (docs/BRIDGE.md)"
        ));
    }
    let metrics = Arc::new(Metrics::default());
    if let Some(address) = &config.metrics {
        metrics::serve(metrics.clone(), address).map_err(|e| format!("metrics {address}: {e}"))?;
    }
    // what zenoh itself reports, such as certificates that it refuses
    zenoh::init_log_from_env_or("error,zenoh_link_tls=warn");
    let zenoh = Zenoh::open(&config)?;
    let keys = config.tls.as_ref().map(Keys::read).transpose()?.map(Arc::new);
    let door = Door::open(&config, keys.clone());
    let streams: Vec<_> =
        door.iter().flat_map(|door| door.addresses()).map(|at| at.to_string()).collect();
    say(format_args!(
        "host {} of realm {}: listens on {}, connects to {}, takes streams at {}",
        config.host,
        config.realm,
        list(&config.listen),
        list(&config.connect),
        list(&streams)
    ));
    let ways = Ways { path: zenoh.clone(), door, keys };
    let bridge = Bridge::new(config, client, ways, metrics, stopping, tasks);
    zenoh.listen(bridge.listener())?;
    Ok((bridge, zenoh))
}

fn list(endpoints: &[String]) -> String {
    if endpoints.is_empty() { "nothing".into() } else { endpoints.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_strings_of_json() {
        assert_eq!(json_string("a \"b\" \\ \n"), r#""a \"b\" \\ \u000a""#);
    }
}
