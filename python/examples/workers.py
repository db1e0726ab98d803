# SPDX-License-Identifier: Apache-2.0
"""Workers share the frames of a camera: each frame goes to one of them, which finds the brightest
pixel. One worker is killed in the middle, and its frame is done by another one.

usage: workers.py [WORKERS]     workers.py worker
"""

import os
import signal
import subprocess
import sys

import dlx
import numpy as np

N_FRAMES, SHAPE = 200, (480, 640)


def worker():
    with dlx.connect(name="worker") as c, c.publisher("found", groups=["main"]) as found:
        for task in c.subscribe("frames", group="workers"):
            with task:  # done at its end; an exception would give it back
                frame = np.asarray(task)
                y, x = np.unravel_index(frame.argmax(), frame.shape)
                meta = {"frame": task.meta["frame"], "pid": os.getpid()}
                found.publish(np.array([y, x]), meta=meta)


def spot(i):
    """Where the frame has its bright pixel."""
    return (7 * i) % SHAPE[0], (13 * i) % SHAPE[1]


def publish(pub, i):
    frame = pub.empty(SHAPE, "uint8")
    pixels = np.asarray(frame)
    pixels[:] = i % 200
    pixels[spot(i)] = 255
    del pixels
    pub.publish(frame, meta={"frame": i}, strict=True)  # waits while too many are not done


def main(n_workers):
    results = {}

    def note(answer):  # a worker that is killed before it says done leaves a second one
        with answer:
            results[answer.meta["frame"]] = (tuple(np.array(answer)), answer.meta["pid"])

    with (
        dlx.connect(name="camera") as c,
        c.publisher("frames", groups=["workers"]) as frames,
        c.subscribe("found", group="main", timeout=60) as found,
    ):
        workers = [subprocess.Popen([sys.executable, __file__, "worker"]) for _ in range(n_workers)]
        frames.wait(n_workers, timeout=60)  # so that all of them see its end
        for i in range(N_FRAMES):
            publish(frames, i)
            while answer := found.try_take():
                note(answer)
            if i == N_FRAMES // 2:
                workers[0].send_signal(signal.SIGKILL)
        while len(results) < N_FRAMES:
            note(found.take())
        frames.drain(timeout=60)
    for process in workers:
        process.wait()
    assert results.keys() == set(range(N_FRAMES))
    assert all(place == spot(i) for i, (place, _) in results.items())
    n = len({pid for _, pid in results.values()})
    print(f"{N_FRAMES} frames done by {n} workers, one of which was killed")


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        worker()
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
