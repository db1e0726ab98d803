// SPDX-License-Identifier: Apache-2.0
//! What dlx-record and dlx-play do, each test on a daemon of its own.

#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

#[allow(dead_code)]
#[path = "../../dlpackd/tests/with_daemon/daemon.rs"]
mod daemon;
#[path = "../../dlpackd/tests/with_daemon/gpu.rs"]
mod gpu;
mod programs;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use daemon::{Daemon, PATIENCE};
use dlx::{
    Client, DType, Element, OnFull, PublishOptions, Publisher, PublisherOptions, Set,
    SubscribeOptions,
};
use dlx_record::reader::{Recording, Summary};
use dlx_record::schema::{Kind, Message, Record, Tensor};
use gpu::{has_gpu, on_gpu};
use programs::{Folder, Program, play, record, until};
use prost::Message as _;

/// Of a file that may not have begun yet.
fn summary(path: &std::path::Path) -> Summary {
    Recording::open(path).map(|recording| recording.summary()).unwrap_or_default()
}

/// A publisher that loses nothing.
fn blocking(client: &Client, topic: &str) -> Publisher {
    let options = PublisherOptions { on_full: OnFull::Block, ..Default::default() };
    client.publisher_with(topic, &options).unwrap()
}

fn send<T: Element>(publisher: &Publisher, elements: &[T], shape: &[usize]) {
    let mut loan = publisher.alloc::<T>(shape).unwrap();
    loan.copy_from_slice(elements);
    let options = PublishOptions { timeout: Some(PATIENCE), ..Default::default() };
    publisher.publish_with(loan, &options).unwrap();
}

fn publish_one_of_each(client: &Client, recorder: &Program) -> u64 {
    let publishers = ["a/image", "a/set", "b", "c"].map(|topic| blocking(client, topic));
    for publisher in &publishers {
        recorder.while_running(|| publisher.wait(1, Duration::from_millis(100)).is_ok());
    }
    let [images, sets, types, slices] = &publishers;
    let pixels: Vec<u8> = (0..32 * 20 * 3).map(|i| i as u8).collect();
    send(images, &pixels, &[32, 20, 3]);
    let (mut x, mut y) = (sets.alloc::<f32>(&[2, 3]).unwrap(), sets.alloc::<i64>(&[]).unwrap());
    x.copy_from_slice(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    y.fill(-7);
    let set = Set::new().tensor("x", x).tensor("größe", y).meta(*b"\x00\xffmeta");
    sets.publish_set(set).unwrap();
    let dtypes = ["bfloat16", "bool", "int4", "float8_e4m3fn", "complex64", "uint8x3"];
    for dtype in dtypes {
        let dtype: DType = dtype.parse().unwrap();
        let mut loan = types.alloc_bytes(dtype, &[5, 1]).unwrap();
        loan.fill(1);
        types.publish(loan).unwrap();
    }
    send::<u16>(types, &[], &[3, 0]);
    // a view that is not row-major
    let tensor = dlx::ManagedTensor::from(slices.alloc::<i16>(&[2, 4]).unwrap());
    unsafe {
        let t = &mut (*tensor.as_raw()).dl_tensor;
        std::slice::from_raw_parts_mut(t.data.cast::<i16>(), 8)
            .copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7]);
        std::slice::from_raw_parts_mut(t.shape, 2).copy_from_slice(&[4, 2]);
        std::slice::from_raw_parts_mut(t.strides, 2).copy_from_slice(&[1, 4]);
    }
    slices.publish(tensor).unwrap();
    3 + dtypes.len() as u64 + 1
}

fn what_a_recording_has(path: &std::path::Path) -> Vec<(String, Vec<String>)> {
    let recording = Recording::open(path).unwrap();
    let entries = recording.entries().map(|entry| {
        let entry = entry.unwrap();
        let record = entry.record().unwrap();
        let mut words: Vec<String> = record
            .contents()
            .unwrap()
            .iter()
            .map(|c| format!("{} {} {:?} {:?}", c.name, c.dtype, c.shape, c.data))
            .collect();
        words.push(format!("{:?}", record.origin().unwrap().meta));
        (entry.channel.topic.clone(), words)
    });
    let mut all: Vec<_> = entries.collect();
    all.sort(); // topics come in any order
    all
}

#[test]
fn tensors_sets_names_and_metadata_come_back_as_they_were() {
    let (daemon, folder) = (Daemon::start(), Folder::new());
    let (first, second) = (folder.path("first.mcap"), folder.path("second.mcap"));
    let recorder = record(&daemon, &["a/*", "b", "c", "-r", "-o"], &first);
    let n = publish_one_of_each(&daemon.connect(), &recorder);
    let said = recorder.stop_when(|| summary(&first).topics.len() == 4);
    assert!(said.contains(&format!("{n} messages")), "{said}");

    for compression in ["lz4", "zstd"] {
        let n = n.to_string();
        let args = ["**", "-r", "-f", "-n", &n, "-c", compression, "-o"];
        let recorder = record(&daemon, &args, &second);
        let said = play(&daemon, &first, &["-r", "--wait=1", "--rate=inf"]).wait();
        assert!(said.contains(&format!("{n} messages")), "{said}");
        recorder.wait();
        assert_eq!(what_a_recording_has(&first), what_a_recording_has(&second));
        let bytes = fs::read(&second).unwrap();
        assert!(bytes.windows(compression.len()).any(|w| w == compression.as_bytes()));
    }
    let has = what_a_recording_has(&first);
    assert!(has.iter().any(|(topic, words)| topic == "c"
        && words[0] == " int16 [4, 2] [0, 0, 4, 0, 1, 0, 5, 0, 2, 0, 6, 0, 3, 0, 7, 0]"));
    let kinds: Vec<_> = summary(&first).topics.into_keys().collect();
    assert_eq!(kinds[0], ("a/image".into(), "foxglove.RawImage".into()));
    assert_eq!(kinds[1], ("a/set".into(), "dlx.Message".into()));
}

#[test]
fn recording_of_a_killed_recorder_lacks_at_most_the_last_second() {
    let (daemon, folder) = (Daemon::start(), Folder::new());
    let (client, path) = (daemon.connect(), folder.path("killed.mcap"));
    let publisher = blocking(&client, "t");
    let recorder = record(&daemon, &["t", "-r", "-o"], &path);
    recorder.while_running(|| publisher.wait(1, Duration::from_millis(100)).is_ok());
    for i in 0..100 {
        send(&publisher, &[i; 1000], &[1000]);
    }
    // Its chunk is completed by the time alone.
    until(|| summary(&path).topics.values().any(|topic| topic.messages == 100));
    send(&publisher, &[100], &[1]);
    recorder.kill();

    let topic = summary(&path).topics.into_values().next().unwrap();
    assert!((100..=101).contains(&topic.messages) && topic.missed == 0);
    assert!(summary(&path).ends_early.is_some());
    let said = play(&daemon, &path, &["--rate=inf"]).wait();
    assert!(said.contains(&format!("{} messages", topic.messages)), "{said}");
    assert!(said.contains("the end of"), "{said}");
}

#[test]
fn closed_standard_error_does_not_end_a_recording() {
    let (daemon, folder) = (Daemon::start(), Folder::new());
    let (client, path) = (daemon.connect(), folder.path("closed.mcap"));
    let publisher = blocking(&client, "t");
    let recorder = record(&daemon, &["drops", "t", "-r", "-n", "2", "-o"], &path);
    recorder.close_stderr();
    recorder.while_running(|| publisher.wait(1, Duration::from_millis(100)).is_ok());
    let _drops = client.publisher("drops").unwrap(); // the recorder says that it is not reliable
    for i in 0..2_u8 {
        send(&publisher, &[i], &[1]);
    }
    recorder.wait();
    assert_eq!(summary(&path).topics.into_values().next().unwrap().messages, 2);
}

#[test]
fn topic_that_two_arguments_match_is_recorded_once() {
    let (daemon, folder) = (Daemon::start(), Folder::new());
    let (client, path) = (daemon.connect(), folder.path("once.mcap"));
    let publishers = ["a/x", "a/y", "b/x"].map(|topic| blocking(&client, topic));
    let args = ["a/*", "*/x", "a/x", "a/*", "-r", "-n", "30", "-o"];
    let recorder = record(&daemon, &args, &path);
    for (publisher, n) in publishers.iter().zip([4, 2, 1]) {
        recorder.while_running(|| publisher.wait(n, Duration::from_millis(100)).is_ok());
    }
    for i in 0..10_u32 {
        publishers.iter().for_each(|publisher| send(publisher, &[i], &[1]));
    }
    assert!(recorder.wait().contains("30 messages, "));
    let topics = summary(&path).topics;
    assert!(topics.len() == 3 && topics.values().all(|t| t.messages == 10 && t.missed == 0));
}

/// A recording of 200 messages of `n` numbers.
fn sample(folder: &Folder, n: usize) -> Vec<u8> {
    let daemon = Daemon::start();
    let path = folder.path("sample.mcap");
    let publisher = blocking(&daemon.connect(), "t");
    let recorder = record(&daemon, &["t", "-r", "-n", "200", "-o"], &path);
    recorder.while_running(|| publisher.wait(1, Duration::from_millis(100)).is_ok());
    for i in 0..200_u32 {
        send(&publisher, &vec![i; n], &[n]);
    }
    recorder.wait();
    fs::read(path).unwrap()
}

#[test]
fn truncated_file_is_read_up_to_its_last_whole_chunk() {
    let folder = Folder::new();
    let (whole, path) = (sample(&folder, 25_000), folder.path("cut.mcap"));
    let mut before = 0;
    for i in 0..=100 {
        fs::write(&path, &whole[..whole.len() * i / 100]).unwrap();
        let Ok(recording) = Recording::open(&path) else {
            assert_eq!(i, 0);
            continue;
        };
        let summary = recording.summary();
        let n = summary.topics.values().map(|topic| topic.messages).sum();
        assert!(n >= before && summary.topics.values().all(|topic| topic.invalid == 0));
        assert_eq!(summary.ends_early.is_some(), i < 100, "{i} %");
        before = n;
    }
    assert_eq!(before, 200);
}

/// A recording of 20 messages of each schema, in several chunks. `lie` changes the records.
fn small_recording(compression: Option<mcap::Compression>, lie: impl Fn(&mut Tensor)) -> Vec<u8> {
    let mut file = std::io::Cursor::new(Vec::new());
    let options = mcap::WriteOptions::new().compression(compression).chunk_size(Some(400));
    let mut mcap = options.create(&mut file).unwrap();
    let schema = mcap.add_schema(Kind::Message.name(), "protobuf", b"schema").unwrap();
    let channel_id = mcap.add_channel(schema, "t", "protobuf", &Default::default()).unwrap();
    for i in 0..20_u8 {
        let mut tensor = Tensor {
            name: "x".into(),
            dtype: "uint8".into(),
            shape: vec![2, 4],
            strides: vec![1, 2],
            data: vec![i; 8].into(),
        };
        lie(&mut tensor);
        let message = Message { tensors: vec![tensor], ..Default::default() };
        let header = mcap::records::MessageHeader {
            channel_id,
            sequence: i.into(),
            log_time: i.into(),
            publish_time: i.into(),
        };
        mcap.write_to_known_channel(&header, &message.encode_to_vec()).unwrap();
    }
    mcap.finish().unwrap();
    drop(mcap);
    file.into_inner()
}

const COMPRESSIONS: [Option<mcap::Compression>; 3] =
    [None, Some(mcap::Compression::Lz4), Some(mcap::Compression::Zstd)];

#[test]
fn file_may_be_cut_at_any_byte() {
    let folder = Folder::new();
    let path = folder.path("cut.mcap");
    for compression in COMPRESSIONS {
        let whole = small_recording(compression, |_| ());
        fs::write(&path, &whole).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        let mut before = 20;
        for n in (0..=whole.len()).rev() {
            file.set_len(n as u64).unwrap();
            let Ok(recording) = Recording::open(&path) else {
                assert!(n < 8, "{n}");
                continue;
            };
            let summary = recording.summary();
            let n_messages = summary.topics.values().map(|topic| topic.messages).sum();
            assert!(n_messages <= before && summary.topics.values().all(|t| t.invalid == 0));
            assert_eq!(summary.ends_early.is_some(), n < whole.len(), "{n}");
            before = n_messages;
        }
        assert_eq!(before, 0);
    }
}

#[test]
fn file_whose_numbers_lie_takes_no_more_memory_and_is_said() {
    let folder = Folder::new();
    let path = folder.path("lies.mcap");
    for compression in COMPRESSIONS {
        let whole = small_recording(compression, |_| ());
        for at in (8..whole.len() - 8).step_by(11) {
            for lie in [u64::MAX, 1 << 40] {
                let mut bytes = whole.clone();
                bytes[at..at + 8].copy_from_slice(&lie.to_le_bytes());
                fs::write(&path, &bytes).unwrap();
                if let Ok(recording) = Recording::open(&path) {
                    recording.summary();
                }
            }
        }
    }
    type Lie = fn(&mut Tensor);
    let lies: [Lie; 8] = [
        |t| t.shape = vec![u64::MAX, u64::MAX],
        |t| t.shape = vec![u64::MAX / 8 + 2],
        |t| t.shape = vec![1 << 40],
        |t| t.shape = vec![1; 100_000],
        |t| t.dtype = "uint8x65535".into(),
        |t| t.dtype = "float65535".into(),
        |t| t.data = vec![0; 7].into(),
        |t| t.dtype = "".into(),
    ];
    for lie in lies {
        fs::write(&path, small_recording(None, lie)).unwrap();
        let summary = Recording::open(&path).unwrap().summary();
        assert_eq!(summary.topics.values().map(|topic| topic.invalid).sum::<u64>(), 20);
    }
}

#[test]
fn damaged_file_is_no_reason_to_crash() {
    let folder = Folder::new();
    let (whole, path) = (sample(&folder, 100), folder.path("damaged.mcap"));
    let mut random = 0x9e37_79b9_7f4a_7c15_u64; // xorshift
    let mut next = |n: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize % n
    };
    let (head, tail) = (4096, whole.len() - 4096);
    let mut n_damaged = 0;
    for i in 0..300 {
        let mut bytes = whole.clone();
        let at = match i % 3 {
            0 => 8 + next(head - 8),
            1 => tail + next(4096),
            _ => next(whole.len()),
        };
        bytes[at] ^= 1 << next(8);
        fs::write(&path, &bytes).unwrap();
        let Ok(recording) = Recording::open(&path) else { continue };
        let summary = recording.summary();
        n_damaged += u32::from(
            summary.ends_early.is_some() || summary.topics.values().any(|t| t.invalid > 0),
        );
    }
    assert!(n_damaged > 0); // what lies outside of chunks has no checksum
}

#[test]
fn recorder_that_stops_for_a_while_counts_what_it_missed() {
    let (daemon, folder) = (Daemon::start(), Folder::new());
    let (client, path) = (daemon.connect(), folder.path("missed.mcap"));
    let publisher = client.publisher("t").unwrap(); // drops
    let recorder = record(&daemon, &["t", "-n", "301", "-o"], &path);
    recorder.while_running(|| publisher.wait(1, Duration::from_millis(100)).is_ok());
    recorder.signal(libc::SIGSTOP);
    for i in 0..1000_u32 {
        send(&publisher, &[i], &[1]);
    }
    recorder.signal(libc::SIGCONT);
    let mut n = 1000;
    while !recorder.has_ended() {
        send(&publisher, &[n], &[1]);
        n += 1;
        std::thread::yield_now();
    }
    let said = recorder.wait();
    let topic = summary(&path).topics.into_values().next().unwrap();
    assert_eq!(topic.messages, 301);
    assert!(topic.missed > 0 && !said.contains(" 0 missed"), "{said}");
    let recording = Recording::open(&path).unwrap();
    let last = recording.entries().last().unwrap().unwrap().record().unwrap();
    assert_eq!(last.origin().unwrap().seq, topic.messages + topic.missed);
}

#[test]
fn disk_that_is_full_ends_a_recording_that_can_be_read() {
    let (daemon, folder) = (Daemon::start(), Folder::new());
    let (client, path) = (daemon.connect(), folder.path("full.mcap"));
    let publisher = client.publisher("t").unwrap();
    let recorder = programs::record_limited(&daemon, &["t", "-o"], &path, 20 << 20);
    recorder.while_running(|| publisher.wait(1, Duration::from_millis(100)).is_ok());
    while !recorder.has_ended() {
        let mut loan = publisher.alloc::<u8>(&[1 << 20]).unwrap();
        loan.fill(1);
        publisher.publish(loan).unwrap();
    }
    let (status, said) = recorder.end();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("full.mcap: File too large") && said.contains("can be read"), "{said}");
    let summary = summary(&path);
    assert!(summary.topics.values().next().unwrap().messages >= 8, "{summary:?}");
    assert!(summary.ends_early.is_some());
}

#[test]
fn replay_keeps_the_time_between_messages_and_chooses_topics() {
    let (daemon, folder) = (Daemon::start(), Folder::new());
    let (client, path) = (daemon.connect(), folder.path("time.mcap"));
    let publishers = ["x/a", "x/b", "y"].map(|topic| blocking(&client, topic));
    let recorder = record(&daemon, &["**", "-r", "-n", "9", "-o"], &path);
    for publisher in &publishers {
        recorder.while_running(|| publisher.wait(1, Duration::from_millis(100)).is_ok());
    }
    for i in 0..3_u64 {
        for publisher in &publishers {
            let options = PublishOptions {
                monotonic_ns: Some(1_000_000_000 + i * 40_000_000),
                ..Default::default()
            };
            let mut loan = publisher.alloc::<u64>(&[1]).unwrap();
            loan.fill(i);
            publisher.publish_with(loan, &options).unwrap();
        }
    }
    recorder.wait();
    drop(publishers);

    let options = SubscribeOptions { reliable: true, ..Default::default() };
    let subscription = client.subscribe_with("replay/**", &options).unwrap();
    let args =
        ["--topics", "x/a", "--topics", "*/b", "--prefix=replay/", "--rate=2", "-r", "--wait=1"];
    let player = play(&daemon, &path, &args);
    let mut times = Vec::new();
    for _ in 0..6 {
        let message = subscription.take_timeout(PATIENCE).unwrap();
        assert!(message.topic().starts_with("replay/x/"));
        times.push((message.slice::<u64>(0).unwrap()[0], message.monotonic_ns()));
    }
    let said = player.wait();
    let words: Vec<_> = said.split(' ').collect(); // "FILE: 6 messages, at most 0.1 ms late"
    assert_eq!(words[1..5], ["6", "messages,", "at", "most"], "{said}");
    let late_ms: f64 = words[5].parse().unwrap();
    let late = ((late_ms + 0.1) * 1e6) as u64; // the first one was not later, and none is early
    let first = times[0].1;
    for (i, time) in times {
        assert!(time - first + late >= i * 20_000_000, "{i} came too early: {said}");
    }
}

#[test]
fn replay_repeats_until_it_is_stopped() {
    let (daemon, folder) = (Daemon::start(), Folder::new());
    let path = folder.path("loop.mcap");
    let client = daemon.connect();
    {
        let publisher = blocking(&client, "t");
        let recorder = record(&daemon, &["t", "-r", "-n", "2", "-o"], &path);
        recorder.while_running(|| publisher.wait(1, Duration::from_millis(100)).is_ok());
        send(&publisher, &[1_u8], &[1]);
        send(&publisher, &[2_u8], &[1]);
        recorder.wait();
    }
    let options = SubscribeOptions { reliable: true, ..Default::default() };
    let subscription = client.subscribe_with("t", &options).unwrap();
    let player = play(&daemon, &path, &["--loop", "-r", "--wait=1"]);
    for i in 0..10 {
        let message = subscription.take_timeout(PATIENCE).unwrap();
        assert_eq!(message.slice::<u8>(0).unwrap(), [1 + i % 2]);
    }
    player.signal(libc::SIGINT); // also while it waits for the subscriber
    let (status, said) = player.end();
    assert!(status.success() && status.signal().is_none(), "{status} {said}");
}

#[test]
fn messages_of_other_programs_are_counted_and_lies_refused() {
    let (daemon, folder) = (Daemon::start(), Folder::new());
    let path = folder.path("foreign.mcap");
    let file = fs::File::create(&path).unwrap();
    let mut mcap = mcap::Writer::new(std::io::BufWriter::new(file)).unwrap();
    let foreign = mcap.add_schema("std_msgs/String", "ros1msg", b"string data").unwrap();
    let ours = mcap.add_schema(Kind::Message.name(), "protobuf", b"").unwrap();
    let record = |n_bytes| {
        let data = vec![0; n_bytes].into();
        let tensor = Tensor { dtype: "float32".into(), shape: vec![2], data, ..Default::default() };
        Message { tensors: vec![tensor], ..Default::default() }.encode_to_vec()
    };
    let messages = [
        (foreign, "/chatter", b"hello".to_vec()),
        (ours, "/good", record(8)),
        (ours, "/lie", record(7)),
        (ours, "/bad name", record(8)),
        (ours, "/none", Message::default().encode_to_vec()),
        (ours, "/garbage", vec![0xff; 9]),
    ];
    for (i, (schema, topic, data)) in messages.into_iter().enumerate() {
        let channel_id = mcap.add_channel(schema, topic, "protobuf", &Default::default()).unwrap();
        let header = mcap::records::MessageHeader {
            channel_id,
            sequence: i as u32,
            log_time: 1,
            publish_time: 1,
        };
        mcap.write_to_known_channel(&header, &data).unwrap();
    }
    mcap.finish().unwrap();
    let subscription = daemon.connect().subscribe("good").unwrap();
    let said = play(&daemon, &path, &[]).wait();
    assert!(said.contains("1 messages of schema \"std_msgs/String\" were not played"), "{said}");
    assert!(said.contains("4 messages were not played: /lie: a tensor of shape [2]"), "{said}");
    assert_eq!(subscription.take_timeout(PATIENCE).unwrap().slice::<f32>(0).unwrap().len(), 2);
    let recording = Recording::open(&path).unwrap();
    let n = recording.entries().filter(|e| e.as_ref().unwrap().kind().is_none()).count();
    assert_eq!(n, 1);
    assert!(matches!(Record::decode(Kind::Message, record(8).into()), Ok(Record::Message(_))));
}

#[test]
fn programs_wait_for_a_daemon_and_start_none() {
    let (mut daemon, folder) = (Daemon::start(), Folder::new());
    let path = folder.path("waited.mcap");
    daemon.kill();
    let program = record(&daemon, &["t", "--wait-daemon=1us", "-o"], &path);
    let (status, said) = program.end();
    assert!(!status.success() && said.contains("no dlpackd at"), "{said}");

    let recorder = record(&daemon, &["t", "-r", "-n", "1", "--wait-daemon", "-o"], &path);
    let socket = daemon.socket().display().to_string();
    let said = recorder.wait_for("\n");
    assert_eq!(said, format!("dlx-record: waiting for dlpackd at {socket}\n"));
    daemon.restart();
    let publisher = blocking(&daemon.connect(), "t");
    recorder.while_running(|| publisher.wait(1, Duration::from_millis(100)).is_ok());
    send(&publisher, &[1_u8], &[1]);
    assert!(!recorder.wait().contains("waiting"));
    drop(publisher);

    daemon.kill();
    let player = play(&daemon, &path, &["--wait-daemon=1h", "--wait=1"]);
    let said = player.wait_for("\n");
    assert_eq!(said, format!("dlx-play: waiting for dlpackd at {socket}, at most 3600s\n"));
    daemon.restart();
    let subscription = daemon.connect().subscribe("t").unwrap();
    assert_eq!(subscription.take_timeout(PATIENCE).unwrap().slice::<u8>(0).unwrap(), [1]);
    player.wait();
}

#[test]
fn wrong_arguments_are_refused_in_words() {
    let (daemon, folder) = (Daemon::start(), Folder::new());
    let path = folder.path("there.mcap");
    fs::write(&path, "text").unwrap();
    for (program, words) in [
        (record(&daemon, &["t", "-o"], &path), "exists: name another file, or say --force"),
        (record(&daemon, &["a b", "-o"], &folder.path("new")), "topic"),
        (record(&daemon, &["t", "--duration=-1", "-o"], &folder.path("new")), "not a time from"),
        (play(&daemon, &path, &[]), "there.mcap: no MCAP file"),
        (play(&daemon, &folder.path("absent"), &[]), "No such file"),
        (play(&daemon, &path, &["--rate=0"]), "a rate is above 0"),
    ] {
        let (status, said) = program.end();
        assert!(!status.success() && said.contains(words), "{words}: {said}");
    }
    assert!(!folder.path("new").exists());
}

#[test]
fn tensors_on_a_gpu_are_refused_or_copied() {
    if !has_gpu("tensors_on_a_gpu_are_refused_or_copied") {
        return;
    }
    let (daemon, folder) = (Daemon::start(), Folder::new());
    let (refused, copied) = (folder.path("refused.mcap"), folder.path("copied.mcap"));
    let refuses = record(&daemon, &["t", "-r", "-n", "1", "-o"], &refused);
    let copies = record(&daemon, &["t", "-r", "-n", "2", "--gpu=stage", "-o"], &copied);
    let publisher = blocking(&daemon.connect(), "t");
    copies.while_running(|| publisher.wait(2, Duration::from_millis(100)).is_ok());
    publisher.publish(on_gpu(&publisher, &[1, 2, 3])).unwrap();
    send::<u16>(&publisher, &[4], &[1]);

    let said = refuses.wait();
    assert!(said.contains("1 messages") && said.contains("1 refused"), "{said}");
    assert!(said.contains("(device type 2 of DLPack)") && said.contains("--gpu=stage"), "{said}");
    let said = copies.wait();
    assert!(said.contains("2 messages") && said.contains("0 refused"), "{said}");
    let words: Vec<_> =
        what_a_recording_has(&copied).into_iter().map(|(_, w)| w[0].clone()).collect();
    assert_eq!(words, [" uint16 [1] [4, 0]", " uint16 [3] [1, 0, 2, 0, 3, 0]"]);
}
