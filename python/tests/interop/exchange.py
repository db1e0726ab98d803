# SPDX-License-Identifier: Apache-2.0
"""Every framework that is installed gives tensors to every other one, between processes, and the
values are compared.

usage: exchange.py [--only NAME,...] [--python NAME=PROGRAM] [--json FILE] [--markdown FILE]

Each framework has two processes, one that publishes and one that takes, on a daemon of their own.
Of each type and layout it is told whether it arrived with the right values, as a view of the same
memory or as a copy that the framework made, or what refused it, in which words. Exit status 1: a
value was wrong, a process crashed, or a framework refused a type that it has.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys

import dlx
import served
import tables
from frameworks import ALL, DTYPES, LAYOUTS, SHAPE

TIMEOUT = 60.0
TOPIC = "interop"
BYTES = {"bool": 1, "int4": 1, "complex64": 8, "complex128": 16}


# -- what is sent and expected ---------------------------------------------------------------------


def item_size(dtype):
    if dtype in BYTES:
        return BYTES[dtype]
    return 1 if dtype.startswith("float8") else int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8


def pattern(dtype):
    """Bytes of an array of SHAPE, all numbers finite."""
    n = SHAPE[0] * SHAPE[1] * SHAPE[2]
    if dtype in ("bool", "int4"):
        return bytes(i * i % (2 if dtype == "bool" else 7) for i in range(n))
    return bytes((i * 13 + i // 7) % 59 + 1 for i in range(n * item_size(dtype)))


def expected(dtype, layout):
    """The received data, row-major: bytes and shape."""
    raw, size = pattern(dtype), item_size(dtype)
    a, b, c = SHAPE
    ranges = {
        "plain": [range(a), range(b), range(c)],
        "empty": [range(a), range(0), range(c)],
        "sliced": [range(a), range(0, b, 2), range(1, 3)],
        "offset": [range(1, a), range(b), range(c)],
        "negative": [range(a)[::-1], range(b), range(c)[::-1]],
    }

    def item(i, j, k):
        at = ((i * b + j) * c + k) * size
        return raw[at : at + size]

    if layout == "0-d":
        return item(1, 2, 3), ()
    if layout == "broadcast":
        return b"".join(item(0, 0, k) for _ in range(3) for k in range(c)), (3, c)
    if layout == "transposed":
        return b"".join(item(i, j, k) for k in range(c) for j in range(b) for i in range(a)), (
            c,
            b,
            a,
        )
    x, y, z = ranges[layout]
    return b"".join(item(i, j, k) for i in x for j in y for k in z), (len(x), len(y), len(z))


def forms(raw, dtype):
    """All bytes that say the same: elements of four bits may be packed, low bits first, or have a
    byte each.
    """
    if dtype != "int4":
        return [raw]
    even = raw + bytes(len(raw) % 2)
    return [raw, bytes(even[i] | even[i + 1] << 4 for i in range(0, len(even), 2))]


CASES = [(x, "plain") for x in DTYPES] + [("float32", x) for x in LAYOUTS[1:]]


# -- inside a worker -------------------------------------------------------------------------------


def words(error):
    lines = str(error).strip().split("\n")
    text = lines[-1 if lines[0].startswith("Traceback") else 0]  # MXNet gives the lines of its C++
    text = "".join(x if x.isprintable() else f"\\x{ord(x):02x}" for x in text)
    return f"{type(error).__name__}: {text[:150]}"


def publish(framework, publisher, dtype, layout):
    try:
        thing = framework.make(pattern(dtype), dtype, layout)
    except Exception as e:
        return {"outcome": "unmade", "words": words(e)}
    try:
        publisher.publish(thing)
    except Exception as e:
        return {"outcome": "refused", "words": words(e)}
    return {"outcome": "sent"}


def take(framework, subscription, dtype, layout, renamed):
    """`renamed`: another type that may arrive instead."""
    raw, shape = expected(dtype, layout)
    tensor = subscription.take(timeout=TIMEOUT)[0]
    arrived = str(tensor.dtype)
    if (
        arrived not in (dtype, renamed)
        or tensor.shape != shape
        or tensor.tobytes() not in forms(raw, dtype)
    ):
        return {"outcome": "WRONG", "words": f"{tensor!r} instead of {dtype} {shape}"}
    said = {"arrived": arrived}
    try:
        thing = framework.take(tensor)
        if framework.raw(thing) not in forms(raw, dtype):
            return {"outcome": "WRONG", "words": f"values of {dtype}", **said}
        at = framework.address(thing) if raw else None
    except Exception as e:
        return {"outcome": "refused", "words": words(e), **said}
    if at is None:
        return {"outcome": "good", **said}
    bits = tensor if tensor.itemsize > 8 else tensor._as_bits()
    mine = bits.__array_interface__["data"][0]
    return {"outcome": "view" if at == mine else "copy", **said}


def sync(subscription):
    """Attach to publishers that came since, and let go of what those sent that crashed."""
    while True:
        try:
            subscription.take(timeout=0)
        except dlx.Timeout:
            return {"outcome": "synced"}


def worker(name, role):
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what frameworks print is not for us
    try:
        framework = ALL[name]()
        with dlx.connect() as c:
            handle = (
                c.publisher(TOPIC, history=8)
                if role == "publish"
                else c.subscribe(TOPIC, timeout=TIMEOUT, stay=True)
            )
            if role == "take":
                handle.fileno()  # from here on every take() looks for new publishers
    except Exception as e:
        print(json.dumps({"absent": words(e)}), file=out, flush=True)
        return
    print(json.dumps({"version": framework.version}), file=out, flush=True)
    for line in sys.stdin:
        dtype, layout, renamed = json.loads(line)
        if layout == "sync":
            answer = sync(handle)
        elif role == "publish":
            answer = publish(framework, handle, dtype, layout)
        else:
            answer = take(framework, handle, dtype, layout, renamed)
        print(json.dumps(answer), file=out, flush=True)


# -- around the workers ----------------------------------------------------------------------------


class Worker:
    def __init__(self, name, role, env, python=sys.executable):
        self.args = [python, os.path.abspath(__file__), "--worker", name, role]
        self.env, self.process = env, None
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            self.args,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.hello = None

    def hear(self):
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        status = self.process.wait()
        return {
            "outcome": "CRASH",
            "words": signal.Signals(-status).name if status < 0 else f"exit status {status}",
        }

    def greet(self):
        self.hello = self.hello or self.hear()
        return self.hello

    def ask(self, case):
        try:
            self.process.stdin.write(json.dumps(case) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def answer(self):
        said = self.hear()
        if said["outcome"] == "CRASH":
            self.end()
            self.start()
            self.greet()
        return said

    def end(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.wait()
        self.process.stdout.close()


def run(names, env, progress, pythons):
    """`pythons`: of the frameworks that another Python has."""

    def start(role):
        return {n: Worker(n, role, env, pythons.get(n, sys.executable)) for n in names}

    workers = {"publish": start("publish")}
    results = {"frameworks": {}, "cases": []}
    for each in workers["publish"].values():
        each.greet()
    # After them: a subscription is attached to all publishers that are there.
    workers["take"] = start("take")
    for n in names:
        said = [workers[role][n].greet() for role in workers]
        bad = next((x for x in said if "version" not in x), None)
        results["frameworks"][n] = (
            {"absent": bad.get("absent") or bad.get("words")} if bad else said[0]
        )
        if bad:
            for role in workers:
                workers[role].pop(n).end()
    for p, producer in workers["publish"].items():
        progress(p)
        for case in CASES:
            producer.ask([*case, case[0]])
            sent = producer.answer()
            if sent["outcome"] == "CRASH":
                for consumer in workers["take"].values():
                    consumer.ask(("", "sync", ""))
                    consumer.answer()
            row = {"producer": p, "dtype": case[0], "layout": case[1], "sent": sent, "taken": {}}
            if sent["outcome"] == "sent":
                for consumer in workers["take"].values():
                    consumer.ask([*case, ALL[p].renames.get(case[0], case[0])])
                row["taken"] = {c: consumer.answer() for c, consumer in workers["take"].items()}
            results["cases"].append(row)
    for each in (*workers["publish"].values(), *workers["take"].values()):
        each.end()
    return results


def failures(results):
    for row in results["cases"]:
        what = f"{row['dtype']}, {row['layout']}"
        sent = row["sent"]
        must = row["layout"] == "plain" and row["dtype"] in ALL[row["producer"]].must
        if sent["outcome"] in ("CRASH", "WRONG") or (must and sent["outcome"] != "sent"):
            yield f"{row['producer']} does not give {what}: {sent['outcome']}, {sent.get('words')}"
        for c, taken in row["taken"].items():
            must = row["layout"] == "plain" and row["dtype"] in ALL[c].must
            if taken["outcome"] in ("CRASH", "WRONG") or (must and taken["outcome"] == "refused"):
                yield (
                    f"{c} does not take {what} of {row['producer']}: {taken['outcome']}, "
                    f"{taken.get('words')}"
                )


def main():
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:4])
        return 0
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument(
        "--only", default="", help="names of frameworks, with commas between: " + ", ".join(ALL)
    )
    p.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PROGRAM",
        help="that has this framework, instead of the Python that runs; once for each",
    )
    p.add_argument("--json", help="write all results there")
    p.add_argument("--markdown", help="write the tables there")
    o = p.parse_args()
    names = [n for n in ALL if not o.only or n in o.only.split(",")]
    if not names:
        p.error(f"no framework of that name: {o.only}")
    pythons = dict(x.partition("=")[::2] for x in o.python)
    for name, program in pythons.items():
        if name not in ALL or not os.access(program, os.X_OK):
            p.error(f"--python {name}={program}: NAME is one of {', '.join(ALL)}, PROGRAM a Python")
    with served.daemon("--idle-exit", "60") as path:
        env = {
            **os.environ,
            "DLX_SOCKET": path,
            "CUDA_VISIBLE_DEVICES": "",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        results = run(
            names, env, lambda n: print(f"{n} gives", file=sys.stderr, flush=True), pythons
        )
    results["python"], results["dlx"] = platform.python_version(), dlx.dlpack_info()
    text = tables.tables(results)
    print(text)
    for path, content in ((o.json, json.dumps(results, indent=1)), (o.markdown, text)):
        if path:
            with open(path, "w", encoding="utf-8") as f:
                f.write(content)
    bad = list(failures(results))
    print("\n".join(bad))
    n = sum(len(row["taken"]) for row in results["cases"])
    print(
        f"{n} tensors taken between {len(tables.present(results))} frameworks, {len(bad)} failures"
    )
    return 1 if bad or not n else 0


if __name__ == "__main__":
    sys.exit(main())
