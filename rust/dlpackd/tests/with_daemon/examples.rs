// SPDX-License-Identifier: Apache-2.0
//! The examples, with programs in C and Python at the other end.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use dlx::Set;

use crate::daemon::{Daemon, PATIENCE, program};

const HELLO: &str = "[2, 3]: 0.0 0.5 1.0 1.5 2.0 2.5\n";

/// An example of this crate, which cargo has built beside the tests.
fn example(name: &str) -> Command {
    let deps = env::current_exe().unwrap();
    let target: PathBuf = deps.parent().unwrap().parent().unwrap().into();
    Command::new(target.join("examples").join(name))
}

/// Python, with the package of this build as `dlx` and a connection as `c`.
fn python(code: &str) -> Command {
    let mut command = Command::new(env::var_os("PYTHON").unwrap_or("python3".into()));
    command
        .arg("-c")
        .arg(format!("import dlx\nc = dlx.connect()\n{code}"))
        .env("PYTHONPATH", program("python"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// A program that runs; it ends with the test.
struct Running(Child);

impl Running {
    fn start(daemon: &Daemon, mut command: Command) -> Running {
        command.env("DLX_SOCKET", daemon.socket()).stdout(Stdio::piped());
        Running(command.spawn().unwrap())
    }

    /// What it says until it ends, which it does well.
    fn says(mut self) -> String {
        let said = std::io::read_to_string(self.0.stdout.take().unwrap()).unwrap();
        assert!(self.0.wait().unwrap().success());
        said
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn hello_goes_from_rust_to_c_and_back() {
    let daemon = Daemon::start();
    let c_program = |name| Command::new(program("examples").join(name));

    let subscriber = Running::start(&daemon, c_program("hello_subscribe"));
    Running::start(&daemon, example("hello_publish")).says();
    assert_eq!(subscriber.says(), "2 x 3: 0.0 0.5 1.0 1.5 2.0 2.5\n");

    let subscriber = Running::start(&daemon, example("hello_subscribe"));
    Running::start(&daemon, c_program("hello_publish")).says();
    assert_eq!(subscriber.says(), HELLO);
}

#[test]
fn hello_goes_from_rust_to_python_and_back() {
    let daemon = Daemon::start();
    let subscriber = Running::start(
        &daemon,
        python("m = c.subscribe('hello').take(60)\nprint(m.dtype, m.tolist())"),
    );
    Running::start(&daemon, example("hello_publish")).says();
    assert_eq!(subscriber.says(), "float32 [[0.0, 0.5, 1.0], [1.5, 2.0, 2.5]]\n");

    let subscriber = Running::start(&daemon, example("hello_subscribe"));
    let code = "p = c.publisher('hello')\np.wait(1, 60)\n\
                x = memoryview(bytearray(24)).cast('f')\n\
                for i in range(6): x[i] = i / 2\np.publish(x.cast('B').cast('f', [2, 3]))";
    Running::start(&daemon, python(code)).says();
    assert_eq!(subscriber.says(), HELLO);
}

#[test]
fn set_and_metadata_go_through_python() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let back = client.subscribe("back").unwrap();
    let publisher = client.publisher("there").unwrap();
    let through = Running::start(
        &daemon,
        python(
            "p = c.publisher('back')\nm = c.subscribe('there').take(60)\n\
             p.publish({'twice': memoryview(bytes(2 * x for x, in m['x'].tolist())), 'x': m['x']}, \
             meta={**m.meta, 'names': list(m.keys())})",
        ),
    );
    publisher.wait(1, PATIENCE).unwrap();
    let mut x = publisher.alloc::<i64>(&[3, 1]).unwrap();
    x.copy_from_slice(&[1, 2, 3]);
    publisher.publish_set(Set::new().tensor("x", x).meta(*br#"{"k":[1,null]}"#)).unwrap();

    let message = back.take_timeout(PATIENCE).unwrap();
    let find = |name| message.find(name).unwrap();
    assert_eq!(*message.slice::<u8>(find("twice")).unwrap(), [2, 4, 6]);
    assert_eq!(*message.slice::<i64>(find("x")).unwrap(), [1, 2, 3]);
    let meta = str::from_utf8(message.meta()).unwrap().replace(' ', "");
    assert_eq!(meta, r#"{"k":[1,null],"names":["x"]}"#);
    through.says();
}

#[test]
fn worker_answers_a_caller_in_python() {
    let daemon = Daemon::start();
    let worker = Running::start(&daemon, example("brightest"));
    let code = "x = bytearray(35)\nx[25] = 9\nk = c.caller('svc/brightest')\nk.wait(60)\n\
                reply = k.call(memoryview(x).cast('B', [5, 7]), timeout=60)\n\
                print(reply.tolist(), reply.meta)\n\
                try: k.call(memoryview(bytes(8)).cast('f'), timeout=60)\n\
                except dlx.CallError as e: print('float32' in str(e))";
    let said = Running::start(&daemon, python(code)).says();
    assert_eq!(said, format!("[3, 4] {{'pid': {}}}\nTrue\n", worker.0.id()));
}

#[test]
fn death_of_a_worker_in_python_ends_its_call() {
    let daemon = Daemon::start();
    let code = "r = next(iter(c.serve('svc')))\nprint('has it', flush=True)\nimport sys\n\
                sys.stdin.read()";
    let mut command = python(code);
    command.stdin(Stdio::piped());
    let mut worker = Running::start(&daemon, command);
    let caller = daemon.connect().caller("svc").unwrap();
    let question = caller.alloc::<u8>(&[]).unwrap();
    let call = caller.begin(question, &Default::default()).unwrap();
    let mut said = String::new();
    BufReader::new(worker.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "has it\n");
    worker.0.kill().unwrap();

    let result = caller.take_timeout(PATIENCE).unwrap();
    assert_eq!((result.call, result.worker_pid), (call, worker.0.id()));
    let failed = result.reply.unwrap_err();
    assert_eq!(failed.kind(), dlx::ErrorKind::WorkerGone);
    assert!(failed.to_string().contains(&worker.0.id().to_string()), "{failed}");
}
