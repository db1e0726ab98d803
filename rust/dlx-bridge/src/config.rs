// SPDX-License-Identifier: Apache-2.0
//! What the bridge is told: bridge.toml, or options instead of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use dlx::topic::{is_name, is_pattern, matches};
use serde::Deserialize;

/// Where bridges listen.
const PORT: u16 = 7447;

/// bridge.toml.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Bridges of one realm see each other.
    pub realm: String,
    /// Name of this machine, once in a realm.
    pub host: String,
    /// Socket of the local daemon; none: as every client finds it.
    pub socket: Option<PathBuf>,
    /// Where to listen, and whom to connect to: `HOST`, `HOST:PORT` or an endpoint of zenoh.
    pub listen: Vec<String>,
    pub connect: Vec<String>,
    /// Where others can open streams: `HOST` or `HOST:PORT`. None: beside what `listen` has.
    pub direct: Option<Vec<String>>,
    /// What others may subscribe to.
    pub export: Vec<Export>,
    /// What local programs may subscribe to.
    pub import: Vec<Import>,
    /// Seconds for which a topic's flow waits for a host that is not heard of.
    pub hold: f64,
    /// Bytes of each topic that may be under way.
    pub window: u64,
    /// Largest message that is accepted from others, in bytes.
    pub max_message: u64,
    /// What becomes of tensors on a GPU that are to be exported.
    pub gpu: Gpu,
    /// How long to wait for the daemon in the beginning: an option alone.
    #[serde(skip)]
    pub wait_daemon: Duration,
    /// Address of the metrics.
    pub metrics: Option<String>,
    pub tls: Option<Tls>,
    /// A configuration file of zenoh, for what this one does not have.
    pub zenoh: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Gpu {
    Refuse,
    /// Tensors on a GPU are copied to memory of the host, and arrive there.
    Stage,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Export {
    pub topics: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Import {
    pub topics: String,
    /// From which hosts: a pattern.
    #[serde(default = "any")]
    pub from: String,
    /// What local names begin with; "{host}" stands for the other host, "{realm}" for the realm.
    #[serde(default = "host_prefix")]
    pub prefix: String,
}

fn any() -> String {
    "*".into()
}

fn host_prefix() -> String {
    "{host}/".into()
}

/// Certificates, for both directions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            realm: "dlx".into(),
            host: host_name(),
            socket: None,
            listen: Vec::new(),
            connect: Vec::new(),
            direct: None,
            export: Vec::new(),
            import: Vec::new(),
            hold: 60.0,
            window: 16 << 20,
            max_message: 4 << 30,
            gpu: Gpu::Refuse,
            wait_daemon: Duration::from_secs(30),
            metrics: None,
            tls: None,
            zenoh: None,
        }
    }
}

/// May a host, or a realm, be called so?
pub fn is_host(name: &str) -> bool {
    is_name(name) && !name.contains('/') && name.len() <= 63
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_string()
}

impl Config {
    pub fn read(path: &Path) -> Result<Config, String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        toml::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Checks it, and completes it.
    pub fn complete(mut self) -> Result<Config, String> {
        for (what, name) in [("host", &self.host), ("realm", &self.realm)] {
            if !is_host(name) {
                return Err(format!(
                    "{what} = {name:?}: a name of 1 to 63 bytes of [A-Za-z0-9_.-] is needed"
                ));
            }
        }
        if self.listen.is_empty() && self.connect.is_empty() && self.zenoh.is_none() {
            self.listen.push("127.0.0.1".into());
        }
        if self.export.is_empty() && self.import.is_empty() {
            return Err(
                "nothing is to be exported or imported: add [[export]] or [[import]] with \
                        topics = \"**\", or --export or --import"
                    .into(),
            );
        }
        for pattern in self.export.iter().map(|e| &e.topics) {
            check_pattern(pattern)?;
        }
        for import in &self.import {
            check_pattern(&import.topics)?;
            let local = import.local(&self.realm, "host", "topic");
            if !is_name(&local) {
                return Err(format!(
                    "prefix = {:?} makes {local:?} of \"topic\", which is no name of a topic",
                    import.prefix
                ));
            }
        }
        if !(self.hold > 0.0 && self.hold < 1e9) {
            return Err(format!("hold = {}: a number of seconds above 0 is needed", self.hold));
        }
        if !(64 << 10..=1 << 40).contains(&self.window) {
            return Err(format!("window = {}: 65536 to 2^40 are possible", self.window));
        }
        if self.max_message > 1 << 47 {
            return Err(format!("max_message = {}: at most 2^47 is possible", self.max_message));
        }
        let protocol = if self.tls.is_some() { "tls" } else { "tcp" };
        for endpoint in self.listen.iter_mut().chain(&mut self.connect) {
            *endpoint = complete_endpoint(endpoint, protocol);
        }
        Ok(self)
    }

    /// Where to listen for streams: as `direct` says, or at the next port of each endpoint of
    /// `listen` that is as safe as they are.
    pub fn doors(&self) -> Vec<String> {
        let protocol = if self.tls.is_some() { "tls/" } else { "tcp/" };
        let next = |endpoint: &String| {
            let (host, port) = endpoint.strip_prefix(protocol)?.rsplit_once(':')?;
            Some(format!("{host}:{}", port.parse::<u16>().ok()?.checked_add(1)?))
        };
        match &self.direct {
            Some(direct) => direct.iter().map(|place| with_port(place, PORT + 1)).collect(),
            None => self.listen.iter().filter_map(next).collect(),
        }
    }

    pub fn hold(&self) -> Duration {
        Duration::from_secs_f64(self.hold)
    }

    pub fn exports(&self, topic: &str) -> bool {
        self.export.iter().any(|export| matches(&export.topics, topic))
    }

    /// The local name of a topic of another host; None: it is not imported.
    pub fn import_as(&self, host: &str, topic: &str) -> Option<String> {
        self.import
            .iter()
            .find(|import| matches(&import.from, host) && matches(&import.topics, topic))
            .map(|import| import.local(&self.realm, host, topic))
    }
}

fn check_pattern(pattern: &str) -> Result<(), String> {
    if is_pattern(pattern) {
        return Ok(());
    }
    Err(format!("topics = {pattern:?}: a topic or a pattern such as \"cam/*\" or \"**\" is needed"))
}

/// "HOST" is short for "tcp/HOST:7447".
fn complete_endpoint(endpoint: &str, protocol: &str) -> String {
    if endpoint.contains('/') {
        return endpoint.to_string();
    }
    format!("{protocol}/{}", with_port(endpoint, PORT))
}

/// "HOST" is short for "HOST:PORT".
fn with_port(address: &str, port: u16) -> String {
    let has_port = match address.rfind(']') {
        Some(end) => address[end..].contains(':'),
        None => address.contains(':'),
    };
    if has_port { address.to_string() } else { format!("{address}:{port}") }
}

/// Does an endpoint end at this machine?
pub fn is_loopback(endpoint: &str) -> bool {
    let address = endpoint.split_once('/').map_or(endpoint, |(_, address)| address);
    ["127.", "localhost:", "[::1]"].iter().any(|start| address.starts_with(start))
}

impl Import {
    fn local(&self, realm: &str, host: &str, topic: &str) -> String {
        let prefix = self.prefix.replace("{host}", host).replace("{realm}", realm);
        format!("{prefix}{topic}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        toml::from_str::<Config>(text).map_err(|e| e.to_string())?.complete()
    }

    #[test]
    fn a_file_says_what_goes_where() {
        let config = parse(
            "host = 'base'\nconnect = ['robot1', '[::1]', 'r:1', 'tcp/x:2']\n\
             [[export]]\ntopics = 'cmd/*'\n\
             [[import]]\ntopics = 'cam/*'\nfrom = 'robot*'\n\
             [[import]]\ntopics = '**'\nprefix = 'all/{realm}/{host}/'\n",
        )
        .unwrap();
        assert_eq!(config.connect, ["tcp/robot1:7447", "tcp/[::1]:7447", "tcp/r:1", "tcp/x:2"]);
        assert!(config.listen.is_empty());
        assert!(config.exports("cmd/go") && !config.exports("cam/a"));
        assert_eq!(config.import_as("robot1", "cam/a").unwrap(), "robot1/cam/a");
        assert_eq!(config.import_as("arm", "cam/a").unwrap(), "all/dlx/arm/cam/a");
    }

    #[test]
    fn it_listens_on_loopback_by_default() {
        let config = parse("host = 'a'\n[[export]]\ntopics = '**'").unwrap();
        assert_eq!(config.listen, ["tcp/127.0.0.1:7447"]);
        assert!(is_loopback("tcp/127.0.0.1:7447") && is_loopback("tls/localhost:1"));
        assert!(is_loopback("tcp/[::1]:7447") && !is_loopback("tcp/0.0.0.0:7447"));
    }

    #[test]
    fn streams_are_taken_beside_what_it_listens_on() {
        let doors = |text| parse(&format!("host = 'a'\n{text}\n[[export]]\ntopics = '**'"));
        let doors = |text| doors(text).unwrap().doors();
        assert_eq!(doors(""), ["127.0.0.1:7448"]);
        assert_eq!(doors("listen = ['[::1]', 'tcp/a:9', 'tls/b:1']"), ["[::1]:7448", "a:10"]);
        assert_eq!(doors("listen = ['x']\ndirect = ['b', '[::1]:1']"), ["b:7448", "[::1]:1"]);
        assert!(doors("direct = []").is_empty() && doors("connect = ['x']").is_empty());
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("host = 'a'", "[[export]]"),
            ("host = 'a/b'\n[[export]]\ntopics = '**'", "host ="),
            ("host = 'a'\n[[export]]\ntopics = 'x**'", "pattern"),
            ("host = 'a'\n[[import]]\ntopics = '**'\nprefix = '/'", "prefix"),
            ("host = 'a'\nhold = 0\n[[export]]\ntopics = '**'", "hold"),
            (
                "host = 'a'\nmax_message = 9000000000000000000\n[[export]]\ntopics = '**'",
                "max_message",
            ),
            ("host = 'a'\nwindow = 1\n[[export]]\ntopics = '**'", "window"),
            ("host = 'a'\ngpu = 'copy'\n[[export]]\ntopics = '**'", "`refuse` or `stage`"),
            ("hosts = 'a'", "hosts"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
