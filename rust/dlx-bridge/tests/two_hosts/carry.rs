// SPDX-License-Identifier: Apache-2.0
//! What is carried, and how.

use std::thread;
use std::time::Duration;

use dlx::{ErrorKind, OnFull, Publisher, PublisherOptions, Set, SubscribeOptions, Subscription};

use crate::gpu::{has_gpu, on_gpu};
use crate::hosts::{Host, PATIENCE, robot_and_base, wait_until};
use crate::numbers::{publish, publisher, subscriber, take};

#[test]
fn reliable_topics_lose_nothing_and_hold_their_publisher() {
    let (robot, base) = robot_and_base();
    let numbers = publisher(&robot.connect(), "numbers", OnFull::Block);
    let subscription = subscriber(&base.connect(), "robot/numbers", true);
    numbers.wait(1, PATIENCE).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || (0..2000).for_each(|number| publish(&numbers, number)));
        for number in 0..1000 {
            assert_eq!(take(&subscription), number);
        }
        // The subscriber stops: what is under way is bounded, and then the publisher waits.
        let client = robot.connect();
        let published = || client.publishers(Some("numbers")).unwrap()[0].published;
        let mut last = published();
        wait_until("the publisher waits", || {
            thread::sleep(Duration::from_millis(300)); // in which it would publish more
            std::mem::replace(&mut last, published()) == last
        });
        assert!(last < 1200, "{last} were published, and 1000 taken");
        for number in 1000..2000 {
            assert_eq!(take(&subscription), number);
        }
    });
    assert_eq!(base.metric("missed_messages_total", "import", "robot", "numbers"), 0);
    wait_until("the last message is counted", || {
        base.metric("messages_total", "import", "robot", "numbers") == 2000
    });
    assert_eq!(base.metric("bytes_total", "import", "robot", "numbers"), 16_000);
    assert_eq!(base.metric("reconnects_total", "import", "robot", "numbers"), 0);
}

#[test]
fn topics_that_drop_count_what_is_missed() {
    let (robot, base) = robot_and_base();
    let numbers = publisher(&robot.connect(), "numbers", OnFull::Drop);
    let subscription = subscriber(&base.connect(), "robot/numbers", false);
    numbers.wait(1, PATIENCE).unwrap();
    (0..200_000).for_each(|number| publish(&numbers, number));
    // Whatever was dropped on the way: what came, and what is counted, is all.
    let (mut last, mut taken, mut gaps) = (None, 0, 0);
    while last != Some(199_999) {
        let message = subscription.take_timeout(PATIENCE).unwrap();
        let number = message.slice::<u64>(0).unwrap()[0];
        assert!(last.is_none_or(|last| number > last));
        (last, taken, gaps) = (Some(number), taken + 1, gaps + message.gap());
    }
    let missed = base.metric("missed_messages_total", "import", "robot", "numbers");
    assert_eq!(taken + gaps + missed, 200_000, "{taken} taken, {gaps} in gaps, {missed} missed");
}

#[test]
fn nothing_is_sent_that_nobody_wants() {
    let (robot, base) = robot_and_base();
    let images = publisher(&robot.connect(), "images", OnFull::Block);
    let client = base.connect();
    wait_until("the topic is known", || !client.publishers(None).unwrap().is_empty());
    for _ in 0..100 {
        images.publish(images.alloc::<u8>(&[1 << 20]).unwrap()).unwrap();
    }
    let bytes = || base.metric("bytes_total", "import", "robot", "images");
    assert_eq!((bytes(), robot.metric("bytes_total", "export", "base", "images")), (0, 0));
    // Somebody subscribes, and leaves.
    let subscription = subscriber(&client, "robot/images", true);
    images.wait(1, PATIENCE).unwrap();
    images.publish(images.alloc::<u8>(&[1 << 20]).unwrap()).unwrap();
    subscription.take_timeout(PATIENCE).unwrap();
    wait_until("the message is counted", || bytes() == 1 << 20);
    drop(subscription);
    wait_until("the flow has ended", || {
        robot.connect().publishers(None).unwrap()[0].n_subscribers == 0
    });
    images.publish(images.alloc::<u8>(&[1 << 20]).unwrap()).unwrap();
    assert_eq!(robot.metric("bytes_total", "export", "base", "images"), 1 << 20);
}

#[test]
fn sets_come_as_they_were() {
    let (robot, base) = robot_and_base();
    let client = robot.connect();
    let sets = publisher(&client, "sets", OnFull::Block);
    let subscription = subscriber(&base.connect(), "robot/sets", true);
    sets.wait(1, PATIENCE).unwrap();
    let mut image = sets.alloc::<u8>(&[1500, 1001, 3]).unwrap(); // of several pieces
    image.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 251) as u8);
    let mut boxes = sets.alloc::<f64>(&[2, 2]).unwrap();
    boxes.copy_from_slice(&[1.5, -2.0, 3.0, f64::INFINITY]);
    let mut bits = sets.alloc_bytes("uint4".parse().unwrap(), &[3]).unwrap();
    bits.copy_from_slice(&[0x21, 0x03]);
    let mut scalar = sets.alloc::<i32>(&[]).unwrap();
    scalar[0] = -7;
    let set = Set::new()
        .tensor("image", image)
        .tensor("boxes", boxes)
        .tensor("bits", bits)
        .tensor("", scalar)
        .tensor("empty", sets.alloc::<f32>(&[0, 4]).unwrap())
        .meta(*br#"{"t": 1}"#);
    let before = std::time::Instant::now();
    sets.publish_set(set).unwrap();

    let message = subscription.take_timeout(PATIENCE).unwrap();
    assert_eq!((message.n_tensors(), message.meta()), (5, &br#"{"t": 1}"#[..]));
    let names: Vec<_> = (0..5).map(|i| message.name(i).unwrap()).collect();
    assert_eq!(names, ["image", "boxes", "bits", "", "empty"]);
    let image = message.slice::<u8>(0).unwrap();
    assert!(image.iter().enumerate().all(|(i, &byte)| byte == (i % 251) as u8));
    assert_eq!(message.layout(0).unwrap().shape, [1500, 1001, 3]);
    assert_eq!(message.slice::<f64>(1).unwrap(), [1.5, -2.0, 3.0, f64::INFINITY]);
    assert_eq!(message.layout(2).unwrap().dtype.to_string(), "uint4");
    assert_eq!(*message.bytes(2).unwrap(), [0x21, 0x03]);
    assert_eq!(message.slice::<i32>(3).unwrap(), [-7]);
    assert_eq!(message.layout(4).unwrap().shape, [0, 4]);
    // The time of publication comes along: it was before it came.
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    let now = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    let age = now - message.monotonic_ns();
    assert!(age <= before.elapsed().as_nanos() as u64 + 1_000_000, "{age} ns");
}

#[test]
fn tensors_with_strides_are_packed() {
    let (robot, base) = robot_and_base();
    let views = publisher(&robot.connect(), "views", OnFull::Block);
    let subscription = subscriber(&base.connect(), "robot/views", true);
    let local = subscriber(&robot.connect(), "views", true);
    views.wait(2, PATIENCE).unwrap();
    let mut loan = views.alloc::<u16>(&[2, 3]).unwrap();
    loan.copy_from_slice(&[1, 2, 3, 4, 5, 6]);
    let tensor: dlx::ManagedTensor = loan.into();
    // SAFETY: the tensor is this test's alone, and stays within its memory.
    unsafe {
        let tensor = &mut (*tensor.as_raw()).dl_tensor;
        tensor.shape.copy_from([3, 2].as_ptr(), 2);
        tensor.strides.copy_from([1, 3].as_ptr(), 2);
    }
    views.publish(tensor).unwrap();
    let message = local.take_timeout(PATIENCE).unwrap();
    assert!(!message.layout(0).unwrap().is_row_major(), "the test packs it itself");
    let message = subscription.take_timeout(PATIENCE).unwrap();
    assert_eq!(message.layout(0).unwrap().shape, [3, 2]);
    assert_eq!(message.slice::<u16>(0).unwrap(), [1, 4, 2, 5, 3, 6]);
}

/// Publishes a number again and again until it comes to the other host: a flow that is about to end
/// may have taken the first ones.
fn publish_until_taken(publisher: &Publisher, subscription: &Subscription, number: u64) {
    wait_until("a number comes", || {
        publish(publisher, number);
        let taken = subscription.try_take().unwrap();
        taken.is_some_and(|message| message.slice::<u64>(0).unwrap()[0] == number)
    });
}

/// A topic that changes from one that drops to one that blocks is carried as it is then.
#[test]
fn topics_may_change_how_they_are_published() {
    let (robot, base) = robot_and_base();
    let (here, there) = (robot.connect(), base.connect());
    let blocks = || there.publishers(None).unwrap().iter().map(|p| p.blocks).collect::<Vec<_>>();
    for (number, on_full) in [OnFull::Drop, OnFull::Block, OnFull::Drop].into_iter().enumerate() {
        let numbers = publisher(&here, "numbers", on_full);
        wait_until("it is known", || blocks() == [on_full == OnFull::Block]);
        let subscription = subscriber(&there, "robot/numbers", on_full == OnFull::Block);
        publish_until_taken(&numbers, &subscription, number as u64);
    }
}

#[test]
fn late_subscribers_get_what_is_retained() {
    let (robot, base) = robot_and_base();
    let options = PublisherOptions { on_full: OnFull::Block, retain: 2, ..Default::default() };
    let map = robot.connect().publisher_with("map", &options).unwrap();
    (0..5).for_each(|number| publish(&map, number));
    let client = base.connect();
    // The first one makes the flow, the second one comes to it.
    for _ in 0..2 {
        let subscription = subscriber(&client, "robot/map", true);
        assert_eq!((take(&subscription), take(&subscription)), (3, 4));
        let second = subscriber(&client, "robot/map", true);
        assert_eq!((take(&second), take(&second)), (3, 4));
        drop((subscription, second));
        wait_until("the flow has ended", || {
            robot.connect().publishers(None).unwrap()[0].n_subscribers == 0
        });
    }
    // Nothing old is left here when nobody listened.
    publish(&map, 5);
    let subscription = subscriber(&client, "robot/map", true);
    assert_eq!((take(&subscription), take(&subscription)), (4, 5));
    // Also of a publisher that is gone.
    drop(subscription);
    drop(map);
    wait_until("the publisher is gone", || robot.connect().publishers(None).unwrap()[0].retained);
    let subscription = subscriber(&client, "robot/map", false);
    assert_eq!((take(&subscription), take(&subscription)), (4, 5));
    assert_eq!(base.metric("missed_messages_total", "import", "robot", "map"), 0);
}

/// More messages may be retained than are under way at once.
#[test]
fn topics_that_retain_much_are_carried() {
    let (robot, mut base) = robot_and_base();
    let options = PublisherOptions { on_full: OnFull::Block, retain: 200, ..Default::default() };
    let map = robot.connect().publisher_with("map", &options).unwrap();
    let client = base.connect();
    let subscription = subscriber(&client, "robot/map", true);
    map.wait(1, PATIENCE).unwrap();
    for number in 0..1000 {
        publish(&map, number);
        assert_eq!(take(&subscription), number);
    }
    drop(subscription);
    base.restart_bridge();
    let subscription = subscriber(&client, "robot/map", true);
    let first = take(&subscription);
    assert!((800 - 32..=800).contains(&first), "{first}: more than what was not acknowledged");
    (first + 1..1000).for_each(|number| assert_eq!(take(&subscription), number));
}

/// What is retained gives way where a publisher lets its subscribers hold less.
#[test]
fn topics_that_let_hold_little_are_carried() {
    let (robot, base) = robot_and_base();
    let options =
        PublisherOptions { on_full: OnFull::Block, retain: 100, max_held: 8, ..Default::default() };
    let map = robot.connect().publisher_with("map", &options).unwrap();
    let subscription = subscriber(&base.connect(), "robot/map", true);
    map.wait(1, PATIENCE).unwrap();
    for number in 0..200 {
        publish(&map, number);
        assert_eq!(take(&subscription), number);
    }
    wait_until("it is said", || robot.read("bridge").contains("retained messages of 100"));
}

const IMAGE: usize = 32 << 20;

/// An image is under way, and the importing side has no memory for it until the last value is
/// dropped.
fn image_that_waits(
    robot: &Host,
    base: &mut Host,
) -> (Publisher, Subscription, impl Sized + use<>) {
    base.limit_memory("64MiB");
    let there = base.connect();
    let images = publisher(&robot.connect(), "images", OnFull::Block);
    let subscription = subscriber(&there, "robot/images", true);
    images.wait(1, PATIENCE).unwrap();
    let memory = there.publisher("filler").unwrap();
    let memory = (memory.alloc::<u8>(&[40 << 20]).unwrap(), memory);
    let mut loan = images.alloc::<u8>(&[IMAGE]).unwrap();
    loan.fill(1);
    images.publish(loan).unwrap();
    wait_until("it waits", || base.metric("waiting", "import", "robot", "images") == 1);
    (images, subscription, memory)
}

#[test]
fn reliable_topics_wait_for_memory() {
    let (robot, mut base) = robot_and_base();
    let (_images, subscription, memory) = image_that_waits(&robot, &mut base);
    assert_eq!(base.read("bridge").matches(" waits: ").count(), 1);
    drop(memory);
    let message = subscription.take_timeout(PATIENCE).unwrap();
    assert!(message.slice::<u8>(0).unwrap() == [1; IMAGE]);
    wait_until("it goes on", || base.metric("waiting", "import", "robot", "images") == 0);
    assert!(base.read("bridge").contains(" goes on after "));
}

/// Else two of them could wait for each other for ever.
#[test]
fn a_message_that_waits_for_memory_keeps_none() {
    let (robot, mut base) = robot_and_base();
    base.limit_memory("64MiB");
    let there = base.connect();
    let pairs = publisher(&robot.connect(), "pairs", OnFull::Block);
    let subscription = subscriber(&there, "robot/pairs", true);
    pairs.wait(1, PATIENCE).unwrap();
    // There is room for one tensor, and not for the second one.
    let filler = there.publisher("filler").unwrap();
    let memory = filler.alloc::<u8>(&[20 << 20]).unwrap();
    const SIZE: usize = 24 << 20;
    let mut set = Set::new();
    for name in ["left", "right"] {
        set = set.tensor(name, pairs.alloc::<u8>(&[SIZE]).unwrap());
    }
    pairs.publish_set(set).unwrap();
    wait_until("it waits", || base.metric("waiting", "import", "robot", "pairs") == 1);
    let other = there.publisher("other").unwrap();
    let others = other.alloc::<u8>(&[SIZE]).expect("another program has what is left");
    drop((memory, others));
    drop((filler, other));
    assert_eq!(subscription.take_timeout(PATIENCE).unwrap().n_tensors(), 2);
}

/// A topic that begins anew does not wait for what it was before.
#[test]
fn topics_that_wait_for_memory_may_begin_anew() {
    let (robot, mut base) = robot_and_base();
    let (images, subscription, _memory) = image_that_waits(&robot, &mut base);
    drop((images, subscription));
    let images = publisher(&robot.connect(), "images", OnFull::Drop);
    let there = base.connect();
    wait_until("it drops", || {
        let publishers = there.publishers(Some("robot/images")).unwrap();
        publishers.len() == 1 && !publishers[0].blocks
    });
    let subscription = subscriber(&there, "robot/images", false);
    publish_until_taken(&images, &subscription, 3);
    let missed = base.metric("refused_messages_total", "import", "robot", "images");
    assert_eq!(missed, 1, "the image is counted");
}

#[test]
fn topics_end_with_their_publisher() {
    let (robot, base) = robot_and_base();
    let numbers = publisher(&robot.connect(), "numbers", OnFull::Block);
    let client = base.connect();
    let options = SubscribeOptions { reliable: true, ..Default::default() };
    let subscription = client.subscribe_with("robot/numbers", &options).unwrap();
    numbers.wait(1, PATIENCE).unwrap();
    (0..10).for_each(|number| publish(&numbers, number));
    drop(numbers);
    for number in 0..10 {
        assert_eq!(take(&subscription), number);
    }
    let end = subscription.take_timeout(PATIENCE).unwrap_err();
    assert_eq!(end.kind(), ErrorKind::PublisherGone, "{end}");
    wait_until("the topic is gone", || client.publishers(None).unwrap().is_empty());
}

#[test]
#[ignore = "takes 2 GiB of memory: make check-bridge"]
fn a_message_of_1_gib_is_carried() {
    const N: usize = 1 << 27;
    let (robot, base) = robot_and_base();
    let clouds = publisher(&robot.connect(), "clouds", OnFull::Block);
    let subscription = subscriber(&base.connect(), "robot/clouds", true);
    clouds.wait(1, PATIENCE).unwrap();
    let mut loan = clouds.alloc::<u64>(&[N]).unwrap();
    loan.iter_mut().enumerate().for_each(|(i, number)| *number = i as u64);
    clouds.publish(loan).unwrap();
    let message = subscription.take_timeout(PATIENCE).unwrap();
    let numbers = message.slice::<u64>(0).unwrap();
    assert_eq!(numbers.len(), N);
    assert!(numbers.iter().enumerate().all(|(i, &number)| number == i as u64));
}

#[test]
fn tensors_on_a_gpu_are_refused_or_copied() {
    if !has_gpu("carry::tensors_on_a_gpu_are_refused_or_copied") {
        return;
    }
    let (mut robot, base) = robot_and_base();
    let there = subscriber(&base.connect(), "robot/images", true);
    let images = publisher(&robot.connect(), "images", OnFull::Block);
    images.wait(1, PATIENCE).unwrap();
    images.publish(on_gpu(&images, &[1, 2])).unwrap();
    wait_until("it is refused", || robot.read("bridge").contains("gpu = \"stage\""));

    let file = robot.path("bridge.toml");
    std::fs::write(&file, "gpu = 'stage'\n").unwrap();
    robot.replace_options(&[], &["--export=**", &format!("--config={}", file.display())]);
    robot.restart_bridge();
    wait_until("the bridge is there again", || {
        let _ = images.wait(1, PATIENCE);
        images.publish(on_gpu(&images, &[3, 4])).unwrap();
        there.try_take().unwrap().is_some_and(|message| {
            assert_eq!(message.layout(0).unwrap().device.kind, 1);
            assert_eq!(message.slice::<u16>(0).unwrap(), [3, 4]);
            true
        })
    });
}
