# SPDX-License-Identifier: Apache-2.0
"""The adapter of Python: does what tests/conformance/driver says on stdin, with the package dlx.
README.md has the commands and the answers."""

import asyncio
import gc
import json
import os
import select
import signal
import sys
import threading
import zlib

import dlx

objects = {}  # by the names that the driver gives
events = {}  # of publishers, subscriptions and observers: all that came
waiting = False  # is a command being done?
loop = asyncio.new_event_loop()


class Refused(Exception):
    """Python, or its means, cannot ask for that."""


class Unsupported(Exception):
    """The package has no such feature: README.md lists them."""


def on_signal(number, frame):
    """The driver signals until it has the answer: the first signal alone ends the command."""
    global waiting
    if waiting:
        waiting = False
        raise InterruptedError("a signal handler raised this")


def seconds(ms):
    return None if ms == "forever" else int(ms) / 1000


# -- answers --------------------------------------------------------------------------------------


def numbers(values):
    return ",".join(map(str, values)) or "-"


def shown(data):
    if len(data) > 64:
        return f"{len(data)}:{zlib.crc32(data):08x}"
    return data.hex() or "-"


def described(t):
    crc = zlib.crc32(t.tobytes())
    return f"{t.dtype}:{numbers(t.shape)}:{numbers(t.strides)}:{crc:08x}"


def looked_at(t):
    return f"ok {described(t)} writable={int(not t.readonly)}"


def took(name, m):
    """Keeps a message, or a request, and describes it."""
    objects[name] = m
    m = m.message if isinstance(m, dlx.Request) else m
    tensors = [f" {name or '-'}:{described(t)}" for name, t in zip(m.names, m.tensors, strict=True)]
    return (
        f"ok topic={m.topic} seq={m.seq} gap={m.gap} attempt={m.attempt} "
        f"meta={shown(m.meta_bytes)}{''.join(tensors)}"
    )


def offered(q):
    """Of a message, or of an observed publisher."""
    times = {None: "forever", "latched": "latched"}
    retain_for = times[q.retain_for] if q.retain_for in times else round(q.retain_for * 1000)
    return f"{q.on_full}:{q.depth}:{q.history}:{q.retain}:{retain_for}"


def changed(x):
    if x.kind == "all":
        return "all"
    state = "gone" if x.gone else "retained" if x.retained else "there"
    if x.kind == "publisher":
        details = f"{offered(x)}:{','.join(x.groups) or '-'}"
    else:
        mode = "latest" if x.latest else "all"
        details = f"{mode}:{int(x.reliable)}:{int(x.accepts_unreliable)}:{x.group or '-'}"
    return f"{x.kind}:{x.topic}:{state}:{x.pid}:{int(x.own)}:{details}"


# -- what is sent ---------------------------------------------------------------------------------


def pattern(seed, n):
    return bytes((seed + i) & 255 for i in range(min(n, 256))) * (n // 256 + 1)


def fill(t, seed):
    try:
        memoryview(t)
    except BufferError as e:
        raise Unsupported("types-without-buffer") from e
    if t.size == 0:
        return
    if t.dtype in ("complex64", "complex128"):  # that memoryview does not know
        data = memoryview(t.numpy().reshape(-1).view("uint8"))
    else:
        data = memoryview(t).cast("B")
    data[:] = pattern(seed, len(data))[: len(data)]


def make(owner, text):
    dtype, shape, seed, *transposed = text.split(":")
    shape = tuple(int(n) for n in shape.split(",")) if shape != "-" else ()
    t = owner.empty(shape, dtype)
    fill(t, int(seed))
    if transposed:
        raise Unsupported("strides")
    return t


def meta_of(text):
    if text is None:
        return None
    if ":" in text:
        seed, n = map(int, text.split(":"))
        return pattern(seed, n)[:n]
    data = bytes.fromhex(text)
    return json.loads(data) if data.startswith(b"{") else data


def items(owner, words):
    """Returns what publish() and call() take; the tensors of a failed call stay in `objects`."""
    named = []
    for word in words:
        at = min(i for i in (word.find(":"), word.find("@")) if i >= 0)
        rest = word[at + 1 :]
        named.append((word[:at], objects[rest] if word[at] == "@" else make(owner, rest)))
    names = [name for name, _ in named if name != "-"]
    if not names:
        return named[0][1] if len(named) == 1 else [t for _, t in named]
    if len(names) < len(named):
        raise Unsupported("names-of-some")
    if len(set(names)) < len(names):
        raise Refused(f"a dict has each key once: {names}")
    return dict(named)


def forget_published(words, options):
    if not options.get("share"):
        for word in words:
            objects.pop(word.partition("@")[2], None)


# -- commands -------------------------------------------------------------------------------------


class Commands:
    def version(self, o):
        return f"ok {dlx.__version__}"

    def supports(self, o, feature):
        if feature == "goes-on":
            raise Unsupported(feature)

    def connect(self, o, name):
        if "wait" in o:
            raise Unsupported("wait-for-daemon")
        timeout = seconds(o["timeout"]) if "timeout" in o else None
        objects[name] = dlx.connect(
            o.get("socket"), name=o.get("name"), timeout=timeout, autospawn=False
        )

    def publisher(self, o, name, c, topic):
        keys = "depth", "history", "retain", "max_held"
        arguments = {key: int(o[key]) for key in keys if key in o}
        if "retain_for" in o:
            latched = o["retain_for"] == "latched"
            arguments["retain_for"] = "latched" if latched else seconds(o["retain_for"])
        if "groups" in o:
            arguments["groups"] = o["groups"].split(",")
        objects[name] = objects[c].publisher(
            topic, on_full=o.get("on_full"), require=int(o.get("require", 0)), **arguments
        )

    def subscribe(self, o, name, c, topic):
        arguments = {key: o[key] for key in ("group", "dead_letters") if key in o}
        arguments.update({key: int(o[key]) for key in ("max_held", "max_attempts") if key in o})
        if "history" in o:
            arguments["history"] = None if o["history"] == "none" else int(o["history"])
        if "publishers" in o:
            any_number = o["publishers"] == "any"
            arguments.update({"stay": True} if any_number else {"publishers": int(o["publishers"])})
        if "lease" in o:
            arguments["lease"] = seconds(o["lease"])
        objects[name] = objects[c].subscribe(
            topic,
            latest="latest" in o,
            reliable="reliable" in o,
            accepts_unreliable="accepts_unreliable" in o,
            **arguments,
        )

    def alloc(self, o, name, p, text):
        objects[name] = make(objects[p], text)

    def publish(self, o, p, *words):
        report = objects[p].publish(
            items(objects[p], words),
            meta=meta_of(o.get("meta")),
            timeout=seconds(o.get("timeout", "0")),
            strict="strict" in o,
            share="share" in o,
        )
        forget_published(words, o)
        return f"ok seq={report.seq} copied={report.n_copied} subscribers={report.subscribers}"

    def wait(self, o, p, n, ms):
        if isinstance(objects[p], dlx.Caller):
            objects[p].wait(seconds(ms))
        else:
            objects[p].wait(int(n), seconds(ms))

    def drain(self, o, p, ms):
        objects[p].drain(seconds(ms))

    def take(self, o, name, s, ms):
        m = objects[s].try_take() if ms == "0" else objects[s].take(seconds(ms))
        return took(name, m) if m is not None else "none"

    def take_many(self, o, name, s, n, ms):
        messages = objects[s].take_many(int(n), seconds(ms))
        objects.update({f"{name}.{i}": m for i, m in enumerate(messages)})
        return "ok" + "".join(f" {m.seq}" for m in messages)

    def rest(self, o, s):
        return "ok" + "".join(f" {m.seq}" for m in objects[s])

    def get(self, o, name, c, topic, ms):
        return took(name, objects[c].get(topic, seconds(ms)))

    def tensor(self, o, name, m, which):
        m = objects[m]
        objects[name] = m[which[1:]] if which[0] == "@" else m.tensors[int(which)]
        return looked_at(objects[name])

    def private(self, o, name, m, which):
        objects[name] = objects[m].private(which[1:] if which[0] == "@" else int(which))
        return looked_at(objects[name])

    def look(self, o, t):
        return looked_at(objects[t])

    def write(self, o, t, seed):
        if objects[t].readonly:
            view = memoryview(objects[t])
            if not view.readonly:
                return "ok"
            view.release()
            objects[t][...] = 0  # raises ValueError
        fill(objects[t], int(seed))
        return looked_at(objects[t])

    def done(self, o, m):
        objects[m].done()

    def give_back(self, o, m):
        objects[m].give_back()

    def renew(self, o, m):
        objects[m].renew()

    def events(self, o, x):
        events[x] = events.get(x, []) + objects[x].events()
        return "ok" + "".join(f" {e.kind}:{e.topic}:{e.pid}" for e in events[x])

    def observe(self, o, name, c, topic):
        objects[name] = objects[c].observe(topic, kinds=o.get("kinds"))

    def next(self, o, x, ms):
        change = changed(objects[x].next(seconds(ms)))
        events.setdefault(x, []).append(change)
        return f"ok {change}"

    def changes(self, o, x):
        try:
            while True:
                self.next(o, x, "0")
        except dlx.Timeout:
            return " ".join(["ok", *events.get(x, [])])

    def qos(self, o, m):
        qos = objects[m].qos
        return f"ok {offered(qos)}:{int(qos.reliable)}"

    def stats(self, o, x):
        s = objects[x].stats()
        keys = {
            dlx.Publisher: "published bytes=published_bytes copied refused subscribers="
            "n_subscribers",
            dlx.Subscription: "taken bytes=taken_bytes skipped lost held=n_held publishers="
            "n_publishers daemon=has_daemon done redelivered dead",
            dlx.Caller: "calls replies failed timed_out cancelled in_flight=n_in_flight",
            dlx.Service: "requests replies errors held=n_held",
        }[type(objects[x])]
        pairs = [key.partition("=") for key in keys.split()]
        return "ok" + "".join(f" {name}={int(s[key or name])}" for name, _, key in pairs)

    def poll(self, o, x, ms):
        return "ok" if select.select([objects[x]], [], [], int(ms) / 1000)[0] else "none"

    def publishers(self, o, c, *topic):
        return "ok" + "".join(
            f" {p['topic']}:{p['client_name']}:{p['published']}:{int(p['retained'])}"
            for p in objects[c].publishers(*topic)
        )

    def groups(self, o, c, *topic):
        keys = "topic", "name", "n_workers", "waiting", "in_flight", "done"
        groups = objects[c].groups(*topic)
        return "ok" + "".join(" " + ":".join(str(g[key]) for key in keys) for g in groups)

    def drop_retained(self, o, c, topic):
        objects[c].drop_retained(topic)

    def drop_queue(self, o, c, topic):
        objects[c].drop_queue(topic)

    def caller(self, o, name, c, topic):
        n = int(o["max_in_flight"]) if "max_in_flight" in o else None
        objects[name] = objects[c].caller(topic, max_in_flight=n)

    def service(self, o, name, c, topic):
        n = int(o["max_held"]) if "max_held" in o else None
        objects[name] = objects[c].serve(topic, max_held=n)

    @staticmethod
    def _call(o):
        timeout = seconds(o["timeout"]) if "timeout" in o else None
        meta = meta_of(o.get("meta"))
        return {"timeout": timeout, "meta": meta, "idempotent": "idempotent" in o}

    def call(self, o, name, k, *words):
        try:
            return took(name, objects[k].call(items(objects[k], words), **self._call(o)))
        except dlx.Error as e:
            return failed_call(e)

    def begin(self, o, name, k, *words):
        """Of the calls that tasks make and await."""
        call = objects[k].call_async(items(objects[k], words), **self._call(o))
        task = objects[name] = loop.create_task(call)
        task.caller = k
        loop.run_until_complete(asyncio.sleep(0))
        if task.done() and task.exception():
            del objects[name]
            raise task.exception()

    def result(self, o, k, ms):
        tasks = {x: t for x, t in objects.items() if getattr(t, "caller", "") == k}
        if not tasks:
            return "none"
        wait = asyncio.wait(
            tasks.values(), timeout=seconds(ms), return_when=asyncio.FIRST_COMPLETED
        )
        done, _ = loop.run_until_complete(wait)
        for name, task in tasks.items():
            if task in done:
                del objects[name]
                e = task.exception()
                return f"{name} {failed_call(e) if e else took(name, task.result())}"
        return "none"

    def cancel(self, o, k, name):
        task = objects.pop(name)
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))

    def serve(self, o, name, v, ms):
        return took(name, objects[v].take(seconds(ms)))

    def reply(self, o, r, *words):
        objects[r].reply(items(objects[r], words), meta=meta_of(o.get("meta")))

    def reply_error(self, o, r, code, text):
        objects[r].error(text, int(code))

    def cancelled(self, o, r):
        return f"ok {int(objects[r].cancelled)}"

    def drop(self, o, name):
        x = objects.pop(name)
        events.pop(name, None)
        if hasattr(x, "close"):
            x.close()
        elif isinstance(x, dlx.Request):
            x.release()

    def reset(self, o):
        for name in list(objects):
            if isinstance(objects[name], asyncio.Task):
                self.cancel(o, None, name)
            elif not isinstance(objects[name], dlx.Service):
                self.drop(o, name)
        for name in list(objects):
            self.drop(o, name)
        loop.run_until_complete(asyncio.sleep(0))  # which closes what its tasks waited on
        gc.collect()  # tracebacks have cycles


# -- the program ----------------------------------------------------------------------------------


def failed_call(e):
    return f"error {e.name} {getattr(e, 'worker_code', 0)} {e}"


def answer(line):
    global waiting
    words = line.replace("\\0", "\0").split(" ", 3 if line.startswith("reply_error ") else -1)
    options = dict(w.split("=", 1) for w in words if "=" in w)
    words = [w for w in words if "=" not in w]
    command = getattr(Commands, words[0], None)
    if command is None:
        return f"unsupported {words[0]}"
    waiting = threading.current_thread() is threading.main_thread()
    try:
        return command(Commands(), options, *words[1:]) or "ok"
    except dlx.Timeout as e:
        waits = words[0] not in ("publish", "connect", "publisher", "subscribe")
        return f"none {e}" if waits else f"error {e.name} {e}"
    except dlx.Error as e:
        return f"error {e.name} {e}"
    except InterruptedError as e:
        return f"error INTERRUPTED 0 {e}"
    except Unsupported as e:
        return f"unsupported {e}"
    except (Refused, ValueError, TypeError, IndexError, OverflowError) as e:
        return f"refused {type(e).__name__}: {e}"
    finally:
        waiting = False


def say(text):
    print(text.replace("\n", " "), flush=True)


def main():
    signal.signal(signal.SIGUSR1, on_signal)
    for line in iter(sys.stdin.readline, ""):
        how, _, rest = line.rstrip("\n").partition(" ")
        if how == "fork":
            pid = os.fork()
            if pid == 0:
                say(answer(rest))
                os._exit(0)
            os.waitpid(pid, 0)
        elif how == "thread":
            thread = threading.Thread(target=lambda rest=rest: say(answer(rest)))
            thread.start()
            thread.join()
        else:
            say(answer(line.rstrip("\n")))
    Commands().reset({})


main()
