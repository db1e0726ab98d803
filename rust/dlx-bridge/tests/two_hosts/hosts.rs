// SPDX-License-Identifier: Apache-2.0
//! Two hosts on one machine: each has a daemon and a bridge, in a network namespace of its own if a
//! test asks for that.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use dlx::{Client, ConnectOptions};

/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A port that nobody listens on.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A folder that is removed with it.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("dlx-bridge-{}-{number}", process::id()));
        fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// A process that ends with it.
pub struct Process(pub Child);

impl Process {
    fn kill(&mut self) {
        let _ = self.0.kill(); // it may have ended
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A daemon and a bridge.
pub struct Host {
    pub name: String,
    folder: Folder,
    daemon: Option<Process>,
    bridge: Option<Process>,
    metrics: u16,
    namespace: Option<String>,
    options: Vec<String>,
    memory: &'static str,
}

impl Host {
    /// Starts a daemon.
    pub fn new(name: &str, namespace: Option<&str>) -> Host {
        let mut host = Host {
            name: name.into(),
            folder: Folder::new(),
            daemon: None,
            bridge: None,
            metrics: free_port(),
            namespace: namespace.map(String::from),
            options: Vec::new(),
            memory: "50%",
        };
        host.start_daemon();
        host
    }

    pub fn start_daemon(&mut self) {
        let build = env::var_os("DLX_BUILD").expect("DLX_BUILD: run make check-rust");
        let mut child = Command::new(Path::new(&build).join("dlpackd"))
            .arg("--socket")
            .arg(self.socket())
            .args(["--memory-limit", self.memory])
            .args(["--ready-fd=1", "--idle-exit=60"]) // it ends also if the test was killed
            .stdout(Stdio::piped())
            .stderr(self.log("daemon"))
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "READY=1\n", "{}", self.read("daemon"));
        self.daemon = Some(Process(child));
    }

    pub fn kill_daemon(&mut self) {
        self.daemon = None;
    }

    /// Restarts the daemon, with so much memory for each user.
    pub fn limit_memory(&mut self, memory: &'static str) {
        self.memory = memory;
        self.kill_daemon();
        self.start_daemon();
    }

    fn log(&self, name: &str) -> fs::File {
        let path = self.folder.0.join(name);
        fs::OpenOptions::new().create(true).append(true).open(path).unwrap()
    }

    /// What a process of the host has said.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.0.join(name)).unwrap_or_default()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    fn socket(&self) -> PathBuf {
        self.folder.0.join("socket")
    }

    pub fn connect(&self) -> Client {
        self.connect_as("test")
    }

    pub fn connect_as(&self, program: &str) -> Client {
        let options = ConnectOptions {
            socket: Some(self.socket()),
            name: Some(program.into()),
            ..Default::default()
        };
        Client::connect_with(&options).unwrap()
    }

    /// Starts the bridge with these options.
    pub fn start_bridge(&mut self, options: &[&str]) {
        self.options = options.iter().map(|&option| option.into()).collect();
        self.restart_bridge();
    }

    /// Replaces some of the options that the bridge is started with.
    pub fn replace_options(&mut self, old: &[&str], new: &[&str]) {
        self.options.retain(|option| !old.contains(&option.as_str()));
        self.options.extend(new.iter().map(|&option| option.to_string()));
    }

    pub fn restart_bridge(&mut self) {
        self.kill_bridge();
        let program = env!("CARGO_BIN_EXE_dlx-bridge");
        let mut command = match &self.namespace {
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name, program]);
                command
            }
            None => Command::new(program),
        };
        let child = command
            .arg("--socket")
            .arg(self.socket())
            .args(["--host", &self.name])
            .arg(format!("--metrics=127.0.0.1:{}", self.metrics))
            .args(&self.options)
            .stdout(self.log("bridge"))
            .stderr(self.log("bridge"))
            .spawn()
            .unwrap();
        self.bridge = Some(Process(child));
    }

    pub fn kill_bridge(&mut self) {
        self.bridge = None;
    }

    /// Sends the bridge a signal.
    pub fn signal_bridge(&self, signal: i32) {
        let pid = self.bridge.as_ref().unwrap().0.id();
        // SAFETY: a system call without pointers, to a child that was not waited for.
        assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
    }

    /// How many file descriptors the bridge has.
    pub fn n_fds(&self) -> usize {
        let pid = self.bridge.as_ref().unwrap().0.id();
        fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
    }

    /// Disconnects the bridge from its daemon, as an operator does.
    pub fn kick_bridge(&self) {
        let build = env::var_os("DLX_BUILD").expect("DLX_BUILD: run make check-rust");
        let pid = self.bridge.as_ref().unwrap().0.id().to_string();
        let mut command = Command::new(Path::new(&build).join("dlxctl"));
        let done = command.args(["kick", &pid, "--socket"]).arg(self.socket()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    /// Limits the file descriptors of the bridge.
    pub fn limit_fds(&self, n: u64) {
        let pid = self.bridge.as_ref().unwrap().0.id();
        let limit = libc::rlimit { rlim_cur: n, rlim_max: n };
        // SAFETY: the limit is valid for the call, which is for a child that was not waited for.
        let done =
            unsafe { libc::prlimit(pid as i32, libc::RLIMIT_NOFILE, &limit, std::ptr::null_mut()) };
        assert_eq!(done, 0);
    }

    /// A number of /proc/PID/status of the bridge.
    pub fn bridge_status(&self, name: &str, radix: u32) -> u64 {
        let pid = self.bridge.as_ref().unwrap().0.id();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let number = status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        u64::from_str_radix(number, radix).unwrap()
    }

    /// CPU seconds of the bridge.
    pub fn cpu(&self) -> f64 {
        let pid = self.bridge.as_ref().unwrap().0.id();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split(' ').collect();
        // SAFETY: a system call without pointers.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        let ticks = |i: usize| fields[i].parse::<f64>().unwrap();
        (ticks(12) + ticks(13)) / per_second
    }

    pub fn wait_bridge(&mut self) -> bool {
        self.bridge.take().unwrap().0.wait().unwrap().success()
    }

    /// All metrics; None: the bridge does not serve them now.
    pub fn metrics(&self) -> Option<HashMap<String, f64>> {
        let mut page = String::new();
        if let Some(name) = &self.namespace {
            let ask = format!(
                "exec 3<>/dev/tcp/127.0.0.1/{}; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3",
                self.metrics
            );
            let mut command = Command::new("ip");
            command.args(["netns", "exec", name, "bash", "-c", &ask]);
            page += &String::from_utf8(command.output().unwrap().stdout).unwrap();
        } else {
            let mut stream = TcpStream::connect(("127.0.0.1", self.metrics)).ok()?;
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
            stream.read_to_string(&mut page).ok()?;
        }
        let lines = page.lines().filter(|line| line.starts_with("dlx_bridge_"));
        Some(
            lines
                .map(|line| {
                    let (name, value) = line.rsplit_once(' ').unwrap();
                    (name.to_string(), value.parse().unwrap())
                })
                .collect(),
        )
    }

    /// How many frames of others it has refused.
    pub fn bad_frames(&self) -> u64 {
        let metrics = self.metrics().unwrap_or_default();
        metrics.get("dlx_bridge_bad_frames_total").copied().unwrap_or_default() as u64
    }

    /// A metric of a topic; 0: there is none yet.
    pub fn metric(&self, name: &str, way: &str, host: &str, topic: &str) -> u64 {
        let key = format!("dlx_bridge_{name}{{way=\"{way}\",host=\"{host}\",topic=\"{topic}\"}}");
        let metrics = self.metrics().unwrap_or_default();
        metrics.get(&key).copied().unwrap_or_default() as u64
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("---- {}: bridge\n{}", self.name, self.read("bridge"));
            eprintln!("---- {}: daemon\n{}", self.name, self.read("daemon"));
        }
    }
}

/// Two hosts whose bridges have these options beside their addresses.
pub fn pair(robot: &[&str], base: &[&str]) -> (Host, Host) {
    let address = format!("127.0.0.1:{}", free_port());
    let (mut one, mut two) = (Host::new("robot", None), Host::new("base", None));
    one.start_bridge(&[&[&*format!("--listen={address}")], robot].concat());
    two.start_bridge(&[&["--connect", &address], base].concat());
    (one, two)
}

/// A robot and a base as of robot_and_base() with something in between: `between` is told where the
/// robot listens, and returns what the base connects to.
pub fn robot_and_base_by(between: impl FnOnce(&str) -> String) -> (Host, Host) {
    let address = format!("127.0.0.1:{}", free_port());
    let (mut robot, mut base) = (Host::new("robot", None), Host::new("base", None));
    robot.start_bridge(&[&format!("--listen={address}"), "--direct=no"]);
    base.start_bridge(&["--connect", &between(&address)]);
    (robot, base)
}

/// A robot and a base that both connect to a router.
pub fn robot_and_base_behind(router: &str) -> (Host, Host) {
    let (mut robot, mut base) = (Host::new("robot", None), Host::new("base", None));
    for (host, way) in [(&mut robot, "export"), (&mut base, "import")] {
        let (file, zenoh) = (host.path("bridge.toml"), host.path("zenoh.json5"));
        fs::write(&zenoh, "{ mode: 'client', scouting: { multicast: { enabled: false } } }")
            .unwrap();
        let text = format!("zenoh = {zenoh:?}\n[[{way}]]\ntopics = '**'\n");
        fs::write(&file, text).unwrap();
        host.start_bridge(&["--connect", router, "--config", file.to_str().unwrap()]);
    }
    (robot, base)
}

/// A robot that exports everything, and a base that imports everything.
pub fn robot_and_base() -> (Host, Host) {
    pair(&[], &[])
}

/// Can there be two network namespaces? Says so if not.
pub fn can_be_apart() -> bool {
    // SAFETY: a system call without pointers.
    let is_root = unsafe { libc::geteuid() } == 0;
    let can = is_root
        && Command::new("unshare")
            .args(["-n", "ip", "link"])
            .output()
            .is_ok_and(|done| done.status.success());
    if !can {
        eprintln!("SKIP: two network namespaces need root, and ip of iproute2");
    }
    can
}

/// Two network namespaces with a link between them.
pub struct Link {
    names: [String; 2],
}

impl Link {
    fn new() -> Link {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let link = Link { names: ["a", "b"].map(|s| format!("dlx{}-{number}{s}", process::id())) };
        let [a, b] = [&link.names[0], &link.names[1]];
        ip(&format!("netns add {a}"));
        ip(&format!("netns add {b}"));
        ip(&format!("-n {a} link add veth0 type veth peer name veth0 netns {b}"));
        for (name, address) in [(a, Link::ROBOT), (b, Link::BASE)] {
            ip(&format!("-n {name} addr add {address}/24 dev veth0"));
            ip(&format!("-n {name} link set lo up"));
            ip(&format!("-n {name} link set veth0 up"));
        }
        link
    }

    const ROBOT: &str = "10.9.8.1";
    const BASE: &str = "10.9.8.2";

    pub fn set(&self, state: &str) {
        ip(&format!("-n {} link set veth0 {state}", self.names[0]));
    }

    /// "add" or "del": the address of the robot.
    pub fn address(&self, verb: &str) {
        ip(&format!("-n {} addr {verb} {}/24 dev veth0", self.names[0], Link::ROBOT));
    }

    /// Ends the connections of streams.
    pub fn kill_streams(&self) {
        ip(&format!("netns exec {} ss --kill state established sport = :7448", self.names[0]));
    }

    /// Nothing leaves the door of the robot any more.
    pub fn silence_streams(&self) {
        ip(&format!("-n {} rule add ipproto tcp sport 7448 blackhole", self.names[0]));
    }

    /// No more than this goes either way.
    pub fn limit_rate(&self, rate: &str) {
        for name in &self.names {
            let limit = format!("root tbf rate {rate} burst 16kb latency 50ms");
            ip(&format!("netns exec {name} tc qdisc add dev veth0 {limit}"));
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).output().expect("ip of iproute2");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "ip {arguments}: {said}: is this root?");
}

/// The same with a link between them that can be broken; the hosts are dropped before it.
pub fn robot_and_base_apart() -> (Host, Host, Link) {
    let link = Link::new();
    let mut robot = Host::new("robot", Some(&link.names[0]));
    let mut base = Host::new("base", Some(&link.names[1]));
    robot.start_bridge(&[&format!("--listen={}", Link::ROBOT)]);
    base.start_bridge(&["--connect", Link::ROBOT]);
    (robot, base, link)
}
