# SPDX-License-Identifier: Apache-2.0
"""Queue, Batches and publish_batches of dlx.contrib.torch."""

import contextlib
import gc
import multiprocessing
import os
import pickle
import queue
import signal
import threading

import dlx
import pytest
from conftest import PATIENCE, mapping, run_threads, until

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from dlx.contrib.torch import Batches, Published, Queue, publish_batches  # noqa: E402

LARGE = (512, 1024)  # of float32: a private tensor of this size is a view, smaller ones are copies


@pytest.fixture
def q(daemon):
    return Queue()


def same(a, b):
    if isinstance(a, torch.Tensor):
        assert type(a) is type(b) and a.dtype == b.dtype and a.requires_grad == b.requires_grad
        assert a.layout == b.layout and a.shape == b.shape and a.device == b.device
        assert a.device.type == "meta" or torch.equal(a.to_dense(), b.to_dense())
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert type(a) is type(b) and len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a == b and type(a) is type(b)
    return True


def run_processes(method, *works):
    """Runs functions with arguments, each in a process."""
    context = multiprocessing.get_context(method)
    processes = [context.Process(target=work, args=args) for work, *args in works]
    for process in processes:
        process.start()
    return processes


def end(processes, codes=0):
    for process in processes:
        process.join(PATIENCE)
        assert process.exitcode == codes, process
        process.close()


# -- Queue: items ----------------------------------------------------------------------------------

_BUFFER = torch.arange(1000.0)
ITEMS = {
    "no tensor": {"a": [1, 2.5, None, "x"], "b": (b"y", {3})},
    "tensor": torch.arange(6.0).view(2, 3),
    "large": torch.arange(float(LARGE[0] * LARGE[1])).view(LARGE),
    "types": [torch.ones(3, dtype=t) for t in (torch.uint8, torch.bool, torch.bfloat16)],
    "complex": torch.full((3,), 1j).conj(),
    "negative": torch.full((3,), 1j).conj().imag,
    "complex parameter": torch.nn.Parameter(torch.full((3,), 1j).conj()),
    "scalar": torch.tensor(7),
    "empty": (torch.empty(0), torch.empty((0, 3), dtype=torch.int64)),
    "part": torch.arange(1000.0)[100:200:3],
    "empty part before": (_BUFFER[:0], _BUFFER[500:], _BUFFER[1000:]),
    "empty part after": (_BUFFER[:500], _BUFFER[600:600], _BUFFER[1000:]),
    "transposed": torch.arange(6.0).view(2, 3).t(),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "integer parameter": torch.nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False),
    "leaf": torch.ones(2, requires_grad=True),
    "sparse": torch.eye(3).to_sparse(),
    "meta": torch.empty((2, 3), device="meta"),
}


@pytest.mark.parametrize("item", ITEMS)
def test_an_item_comes_back_as_it_was_put(q, item):
    q.put(ITEMS[item])
    assert same(q.get(timeout=PATIENCE), ITEMS[item])


def test_tensors_of_one_storage_have_one_storage_again(q):
    x = torch.arange(25.0).view(5, 5)
    q.put([x, x, x[2], x[:, 1], x.untyped_storage(), x.storage()])
    a, again, row, column, untyped, typed = q.get(timeout=PATIENCE)
    assert a is again and torch.equal(row, x[2]) and torch.equal(column, x[:, 1])
    a[2, 1] = 70
    assert row[1] == column[2] == typed[11] == 70
    assert untyped.data_ptr() == a.data_ptr() == typed.data_ptr() and x[2, 1] == 11


def published(c):
    (info,) = c.publishers("queue/*")
    return info


def test_only_the_used_part_of_a_storage_is_sent(q, c):
    x = torch.arange(1_000_000.0)
    for i in range(3):
        q.put(x[500_000 + i : 500_010 + i])
        assert torch.equal(q.get(timeout=PATIENCE), x[500_000 + i : 500_010 + i])
    assert published(c)["published_bytes"] < 10_000


def test_an_item_that_was_made_in_place_is_not_copied(q, c):
    for dtype in (torch.float32, torch.bfloat16):
        x = q.new_empty(LARGE, dtype).fill_(3)
        q.put({"x": x, "row": x[7]})
        item = q.get(timeout=PATIENCE)
        assert item["x"].dtype == dtype and (item["x"] == 3).all() and item["row"].shape == (1024,)
    assert published(c)["copied_bytes"] < 10_000 < published(c)["published_bytes"]
    assert q.new_empty((0, 3)).shape == (0, 3)


def test_memory_of_a_tensor_that_was_made_in_place_is_used_again(q, c):
    for i in range(50):
        q.put(q.new_empty(LARGE).fill_(i))
        assert (q.get(timeout=PATIENCE) == i).all()
        q.new_empty(LARGE)  # never put
    gc.collect()
    assert published(c)["arena_bytes"] < 10 * 4 * LARGE[0] * LARGE[1]


@pytest.mark.parametrize("shape", [(3,), LARGE])
def test_a_received_tensor_may_be_written_to(q, shape):
    x = torch.zeros(shape)
    q.put(x)
    q.put(x)
    first = q.get(timeout=PATIENCE).add_(1)
    assert (first == 1).all() and (q.get(timeout=PATIENCE) == 0).all() and (x == 0).all()


def test_without_private_a_received_tensor_is_the_shared_memory(daemon):
    q = Queue(private=False)
    q.put(q.new_empty(LARGE).fill_(2))
    x = q.get(timeout=PATIENCE)
    assert (x == 2).all()
    line = mapping(x.data_ptr())
    assert line.split()[1].startswith("r--s") and "memfd" in line, line


def test_put_refuses_items_that_cannot_be_passed(q):
    with pytest.raises(RuntimeError, match=r"requires_grad .*put t\.detach\(\)"):
        q.put(torch.ones(2, requires_grad=True) * 2)
    with pytest.raises(Exception, match="pickle"):
        q.put(lambda: None)
    assert q.empty()


def test_many_items_may_be_kept(q):
    x, kept = torch.ones(LARGE[1] * 70), []  # of more than 256 KiB
    for _ in range(100):
        q.put(x)
        kept.append(q.get(timeout=PATIENCE))
    assert all(torch.equal(each, x) for each in kept)


# -- Queue: its interface --------------------------------------------------------------------------


def test_an_empty_queue_raises_empty(q):
    for get in (q.get_nowait, lambda: q.get(timeout=0.01), lambda: q.get(False)):
        with pytest.raises(queue.Empty):
            get()


def test_a_full_queue_raises_full(daemon):
    q = Queue(2)
    assert q.empty() and not q.full()
    q.put(1)
    q.put_nowait(2)
    assert (q.qsize(), q.empty(), q.full()) == (2, False, True)
    for put in (q.put_nowait, lambda x: q.put(x, timeout=0.01), lambda x: q.put(x, False)):
        with pytest.raises(queue.Full):
            put(3)
    assert q.get(timeout=PATIENCE) == 1 and not q.full()
    q.put(3)
    assert [q.get(timeout=PATIENCE) for _ in range(2)] == [2, 3] and q.empty()


def test_put_waits_for_another_thread_that_is_in_it_while_there_is_room(daemon):
    def full():
        looked.set()
        return full_of_queue()

    q = Queue(2)
    full_of_queue, q.full = q.full, full
    lock = q._ends.put_lock
    for put in (q.put_nowait, lambda x: q.put(x, timeout=0.01)):
        looked, thread = threading.Event(), threading.Thread(target=put, args=(1,))
        with lock:  # as another thread in the middle of put()
            thread.start()
            until(lambda: looked.is_set() or not thread.is_alive(), "its look for room")
        thread.join(PATIENCE)
    assert q.qsize() == 2
    with lock, pytest.raises(queue.Full):
        q.put_nowait(3)


def test_a_closed_queue_neither_puts_nor_gets_and_what_was_put_stays(q):
    other = pickle.loads(pickle.dumps(q))
    other.put(torch.ones(3))
    other.close()
    other.close()
    other.join_thread()
    other.cancel_join_thread()
    for use in (lambda: other.put(1), other.get, other.qsize, lambda: other.new_empty(3)):
        with pytest.raises(ValueError, match=r"queue/\w+> is closed"):
            use()
    assert torch.equal(q.get(timeout=PATIENCE), torch.ones(3))


def test_threads_share_a_queue(q):
    got = []

    def get():
        while (item := q.get(timeout=PATIENCE)) is not None:
            got.append(int(item))

    def put(first):
        for i in range(first, first + 50):
            q.put(torch.tensor(i))

    run_threads([lambda: put(0), lambda: put(50)])
    for _ in range(2):
        q.put(None)
    run_threads([get, get])
    assert sorted(got) == list(range(100))


def put_numbers(q, first, n):
    for i in range(first, first + n):
        x = q.new_empty(1000, torch.int64) if i % 2 else torch.empty(1000, dtype=torch.int64)
        q.put({"x": x.fill_(i), "pid": os.getpid()})


def get_numbers(q, results):
    while (item := q.get(timeout=PATIENCE)) is not None:
        x = item["x"]
        assert (x == x[0]).all()
        results.put((os.getpid(), int(x[0]), item["pid"]))
    results.put(None)


@pytest.mark.parametrize("method, n", [("fork", 2), ("spawn", 1)])
def test_each_item_of_several_processes_goes_to_one_of_several(q, method, n):
    results = Queue()
    q.put({"x": torch.zeros(1000, dtype=torch.int64), "pid": os.getpid()})  # before the fork
    workers = run_processes(method, *[(get_numbers, q, results)] * n)
    producers = run_processes(method, *[(put_numbers, q, 1 + 100 * i, 100) for i in range(n)])
    end(producers)  # whose items stay
    for _ in workers:
        q.put(None)
    got, n_ended = [], 0
    while n_ended < len(workers):
        said = results.get(timeout=PATIENCE)
        n_ended += said is None
        got += [said] if said else []
    end(workers)
    assert sorted(number for _, number, _ in got) == list(range(1 + 100 * n))
    assert len({pid for _, _, pid in got}) == 1 + n


def put_and_die(q):
    put_numbers(q, 0, 5)
    os.kill(os.getpid(), signal.SIGKILL)


def get_and_die(q):
    q.get(timeout=PATIENCE)
    os.kill(os.getpid(), signal.SIGKILL)


def test_items_outlive_a_killed_producer_and_a_killed_consumer(q):
    end(run_processes("fork", (put_and_die, q)), -signal.SIGKILL)
    end(run_processes("fork", (get_and_die, q)), -signal.SIGKILL)  # has the first one
    assert [int(q.get(timeout=PATIENCE)["x"][0]) for _ in range(4)] == [1, 2, 3, 4]
    assert q.empty()


def test_items_go_with_the_queue(c):
    q = Queue()
    end(run_processes("fork", (put_numbers, q, 0, 5)))
    q.put(torch.ones(3))
    assert sorted(group["waiting"] for group in c.groups("queue/*")) == [1, 5]
    del q
    gc.collect()
    assert c.groups("queue/*") == [] and c.publishers("queue/*") == []


def test_a_message_of_another_program_is_passed_over(q, c):
    with c.publisher(q._settings.topic, groups=["get"]) as pub:
        pub.publish([bytes(16) + pickle.dumps([]) + pickle.dumps("forged")])
        q.put("real")
        with pytest.warns(RuntimeWarning, match="passed over a message of another program"):
            assert q.get(timeout=PATIENCE) == "real"


def test_an_item_that_cannot_be_opened_is_given_back(q, monkeypatch):
    def refuse(_):
        raise OSError("too many open files")

    q.put(torch.ones(3))
    with monkeypatch.context() as patched:
        patched.setattr(torch, "from_dlpack", refuse)
        with pytest.raises(OSError, match="too many open files"):
            q.get(timeout=PATIENCE)
    assert torch.equal(q.get(timeout=PATIENCE), torch.ones(3)) and q.empty()


class Lost:
    def __reduce__(self):
        return int, ("x",)  # which raises ValueError


def test_an_item_that_cannot_be_loaded_is_named(q):
    q.put(Lost())
    with pytest.raises(ValueError) as e:
        q.get(timeout=PATIENCE)
    assert e.value.__notes__ == [f"{q!r}: message 1 of {q._settings.topic} is lost by this"]


# -- Batches ---------------------------------------------------------------------------------------


def in_threads(*works):
    """Runs functions at once, and returns what they return."""
    results = [None] * len(works)

    def run(i, work):
        results[i] = work()

    run_threads([lambda i=i, work=work: run(i, work) for i, work in enumerate(works)])
    return results


def publish(batches, topic="batches/0", **arguments):
    return lambda: publish_batches(batches, topic, timeout=PATIENCE, **arguments)


def epochs(n=1, topic="batches/0", **arguments):
    ds = Batches(topic, timeout=PATIENCE, **arguments)
    # By itself, DataLoader makes lists of tuples.
    loader = torch.utils.data.DataLoader(ds, batch_size=None, collate_fn=lambda batch: batch)
    return lambda: [list(loader) for _ in range(n)]


TREES = [
    torch.arange(3.0),
    [torch.ones(2), {"a": (torch.zeros(1, dtype=torch.bfloat16), 3)}],
    (torch.ones(2), 7, "x"),
    {"image": torch.ones(LARGE), "label": 5, "meta": {"name": "a/b", "score": 0.5, "none": None}},
    {"no tensor": (1, 2, [])},
    {0: torch.ones(1), 1: {"deep": [torch.ones(1)]}},
    3.5,
]


@pytest.mark.parametrize("group", ["trainers", None])
def test_batches_come_back_as_they_were(daemon, group):
    done, (got,) = in_threads(publish(TREES, group=group), epochs(group=group))
    assert done == Published(len(TREES), []) and same(got, TREES)


def test_a_loader_of_pytorch_is_published(daemon):
    data = torch.utils.data.TensorDataset(torch.arange(12.0).view(6, 2), torch.arange(6))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    done, got = in_threads(publish(loader, epochs=2), epochs(2))
    assert done == Published(6, []) and same(got, [list(loader)] * 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batches_that_were_made_in_place_are_not_copied(c, dtype):
    def batches(empty):
        for i in range(20):
            x = empty(LARGE, dtype).fill_(i)
            yield {"x": x, "label": i, "row": [empty(3).fill_(i)]}
        (info,) = c.publishers("batches/0/0")
        copied.append(info["copied_bytes"])

    copied = []
    _, (got,) = in_threads(publish(batches, depth=30), epochs(private=False))
    assert copied == [0] and len(got) == 20
    for i, batch in enumerate(got):
        assert batch["x"].dtype == dtype and (batch["x"] == i).all() and batch["label"] == i
        assert torch.equal(batch["row"][0], torch.full((3,), float(i)))


def test_views_of_a_batch_that_was_made_in_place_come_back_as_they_were(daemon):
    def batches(empty):
        x = empty((2, 2), torch.float32).copy_(torch.arange(4.0).view(2, 2))
        z = empty(3, torch.complex64).fill_(1j)
        yield [x, x.t(), z, z.conj(), z.conj().imag]

    _, (got,) = in_threads(publish(batches), epochs())
    assert same(got, list(batches(lambda *about: torch.empty(about[0], dtype=about[1]))))


def test_a_batch_may_be_written_to(daemon):
    def train():
        for batch in Batches("batches/0", timeout=PATIENCE):
            assert (batch.add_(1) == 2).all()

    in_threads(publish([torch.ones(3), torch.ones(LARGE)]), train)


def numbers(first, n):
    return [torch.tensor([i]) for i in range(first, first + n)]


def flat(got):
    return sorted(int(batch) for batch in got)


def test_trainers_share_the_batches_of_all_loaders(daemon):
    *done, first, second = in_threads(
        *(publish(numbers(100 * i, 50), f"batches/{i}", epochs=3, trainers=2) for i in range(2)),
        *(epochs(3, "batches/*", loaders=2) for _ in range(2)),
    )
    assert done == [Published(150, [])] * 2
    for a, b in zip(first, second, strict=True):
        assert flat(a + b) == [*range(50), *range(100, 150)]


def test_without_a_group_each_trainer_gets_each_batch(daemon):
    every = {"group": None}
    *_, first, second = in_threads(
        *(publish(numbers(100 * i, 9), f"batches/{i}", trainers=2, **every) for i in range(2)),
        *(epochs(1, "batches/*", loaders=2, **every) for _ in range(2)),
    )
    assert flat(first[0]) == flat(second[0]) == [*range(9), *range(100, 109)]


def load(first, n, topic, dies, group="trainers"):
    def batches(empty):
        for i in range(first, first + n):
            yield empty(1, torch.int64).fill_(i)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)

    publish_batches(batches, topic, epochs=2, group=group, timeout=PATIENCE)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loaders_may_be_forked_or_spawned(daemon, method):
    loaders = run_processes(method, *[(load, 100 * i, 20, f"batches/{i}", False) for i in range(2)])
    for got in epochs(2, "batches/*", loaders=2)():
        assert flat(got) == [*range(20), *range(100, 120)]
    end(loaders)


@pytest.mark.parametrize("group", ["trainers", None])
def test_a_killed_loader_is_named(daemon, group):
    loader = multiprocessing.get_context("fork").Process(
        target=load, args=(0, 7, "batches/0", True, group)
    )
    ds = Batches("batches/0", group=group, timeout=PATIENCE)
    loader.start()
    got = []
    with pytest.raises(RuntimeError) as e:
        for batch in ds:
            got.append(batch)
    assert flat(got) == list(range(7))
    assert f"pid {loader.pid} died" in str(e.value) and "had 7 batches" in str(e.value)
    end([loader], -signal.SIGKILL)


@pytest.mark.parametrize("group", ["trainers", None])
def test_a_loader_that_fails_is_told_to_all_trainers(c, group):
    def batches():
        yield torch.ones(1)
        raise OSError("no such image")

    def load():
        with pytest.raises(OSError):
            publish_batches(batches(), "batches/0", trainers=2, group=group, timeout=PATIENCE)

    def train():
        words = f"epoch 0 of batches/0 is not complete: .* pid {os.getpid()} failed: OSError: no"
        with pytest.raises(RuntimeError, match=words):
            list(Batches("batches/0", group=group, timeout=PATIENCE))

    in_threads(load, train, train)
    # A trainer may look hours later, when it has done its batch.
    assert c.get("batches/0/0/failed").qos.retain_for >= 12 * 3600
    # The next run of the epoch does not hear of it.
    _, (got,) = in_threads(publish(numbers(0, 3), group=group), epochs(group=group))
    assert flat(got) == [0, 1, 2]


def test_a_loader_that_fails_is_told_while_another_goes_on(c):
    def batches():
        yield torch.ones(1)
        raise OSError("no such image")

    def load():
        with pytest.raises(OSError):
            publish_batches(batches(), "batches/0", timeout=PATIENCE)
        failed.set()

    def other():
        with c.publisher("batches/1/0", groups=["trainers"]) as pub:
            assert failed.wait(PATIENCE)
            while not told.is_set():
                with contextlib.suppress(dlx.Timeout):
                    pub.publish({"batch": torch.zeros(1)}, timeout=0.01)

    def train():
        try:
            with pytest.raises(RuntimeError, match="OSError: no such image"):
                for i, _ in enumerate(Batches("batches/*", loaders=2, timeout=PATIENCE)):
                    assert i < 10_000, "loader 0 failed, and the epoch goes on"
        finally:
            told.set()

    failed, told = threading.Event(), threading.Event()
    in_threads(load, other, train)


def test_a_loader_says_when_it_cannot_tell_trainers_that_it_failed(daemon, c):
    def batches():
        yield torch.ones(1)
        daemon.kill()
        daemon.wait()
        raise OSError("no such image")

    with c.subscribe("batches/0/0", group="trainers"), pytest.raises(OSError) as e:
        publish_batches(batches(), "batches/0", timeout=PATIENCE)
    assert "trainers take this epoch for complete" in e.value.__notes__[0]


def test_an_epoch_of_a_long_topic_ends(daemon):
    topic = "b" * 250  # there is no room for /0/failed
    _, (got,) = in_threads(publish(numbers(0, 3), topic), epochs(topic=topic))
    assert flat(got) == [0, 1, 2]


@pytest.mark.parametrize("group", ["trainers", None])
def test_a_loader_that_waits_in_vain_is_told_to_the_trainers_that_came(c, group):
    def load():
        with c.observe("batches/0/0", kinds="subscriptions") as observer:
            next(change for change in observer if change.kind == "subscription")
        with pytest.raises(dlx.Timeout):
            publish_batches([1], "batches/0", trainers=2, group=group, timeout=2)

    def train():
        words = f"epoch 0 of batches/0 is not complete: .* pid {os.getpid()} failed: Timeout: "
        with pytest.raises(RuntimeError, match=words):
            list(Batches("batches/0", group=group, timeout=PATIENCE))

    in_threads(load, train)


def train_and_die(topic):
    for _ in Batches(topic, timeout=PATIENCE):
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_batch_of_a_killed_trainer_goes_to_another_one(daemon):
    killed = run_processes("fork", (train_and_die, "batches/0"))
    pid = killed[0].pid

    def train():
        killed[0].join(PATIENCE)
        return epochs()()

    done, (got,) = in_threads(publish(numbers(0, 20), trainers=1), train)
    assert flat(got) == list(range(20)) and done == Published(20, [pid])
    end(killed, -signal.SIGKILL)


def test_trainers_may_be_slow_as_long_as_they_go_on(daemon):
    timeout, n = 2, 12

    def train():
        for batch in Batches("batches/0", timeout=PATIENCE):
            threading.Event().wait(1.5 * timeout / n)  # the work
            got.append(batch)

    got = []
    done, _ = in_threads(
        lambda: publish_batches(numbers(0, n), "batches/0", depth=n, timeout=timeout), train
    )
    assert done == Published(n, []) and len(got) == n


def test_a_trainer_that_stands_still_is_a_timeout(c):
    with c.subscribe("batches/0/0", group="trainers", timeout=PATIENCE, stay=True) as sub:

        def train():
            sub.take().done()
            return sub.take()  # and no more

        def load():
            with pytest.raises(dlx.Timeout, match="batches/0/0"):
                publish_batches(numbers(0, 3), "batches/0", timeout=2)

        in_threads(load, train)


def test_a_batch_that_was_not_finished_goes_to_another_trainer(daemon):
    def train():
        for _ in Batches("batches/0", timeout=PATIENCE):
            break
        return epochs()()

    _, (got,) = in_threads(publish(numbers(0, 5)), train)
    assert flat(got) == [0, 1, 2, 3, 4]


def test_a_trainer_that_begins_too_late_for_an_epoch_says_so(c):
    def batches():
        yield torch.ones(1)
        came.append(1)
        until(lambda: len(came) == 2, "the late trainer")
        yield torch.ones(1)

    def late():
        until(lambda: came, "the first batch")
        ds = Batches("batches/0", group=None, timeout=PATIENCE)
        until(lambda: c.publishers("batches/0/0"), "the loader")
        run = iter(ds)
        join = threading.Thread(target=lambda: (until(n_links, "its link"), came.append(2)))
        join.start()
        with pytest.raises(RuntimeError, match="before this trainer"):
            list(run)
        join.join()

    def n_links():
        links = c.links(c.publishers("batches/0/0")[0]["publisher"])
        return sum(not link["joining"] for link in links) == 2

    came = []
    in_threads(publish(batches(), group=None), epochs(group=None), late)


def test_batches_of_an_earlier_run_are_dropped(c):
    with c.publisher("batches/0/0", groups=["trainers"]) as pub:
        pub.publish({"batch": torch.zeros(1)})
    _, (got,) = in_threads(
        publish(numbers(5, 2)), lambda: (until(lambda: c.publishers(), "it"), epochs()())[1]
    )
    assert flat(got)[-2:] == [5, 6]


def test_wrong_arguments_are_refused(c):
    with pytest.raises(ValueError, match="give loaders=N"):
        Batches("batches/*")
    with c.publisher("batches/0/0"), pytest.raises(ValueError, match="a topic of its own"):
        publish_batches([], "batches/0")


def test_an_epoch_may_be_chosen(daemon):
    ds = Batches("batches/0", timeout=PATIENCE)
    ds.set_epoch(3)
    _, got = in_threads(publish(numbers(0, 3), first_epoch=3, epochs=2), lambda: [*ds, *ds])
    assert flat(got) == [0, 0, 1, 1, 2, 2] and ds.epoch == 5


def test_trainers_time_out(daemon):
    with pytest.raises(dlx.Timeout):
        list(Batches("batches/0", timeout=0.01))
    with pytest.raises(dlx.Timeout):
        publish_batches([1], "batches/0", timeout=0.01)
