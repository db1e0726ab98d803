# SPDX-License-Identifier: Apache-2.0
"""Programs ask workers for the brightest pixel of their frames, several questions at once. One
worker is killed in the middle, and its question goes to another one.

usage: ask.py [WORKERS]     ask.py worker
"""

import asyncio
import os
import signal
import subprocess
import sys

import dlx
import numpy as np

N_FRAMES, SHAPE = 200, (480, 640)


def worker():
    with dlx.connect(name="worker") as c:
        for request in c.serve("svc/brightest"):
            with request:  # an exception would be answered with its text
                frame = np.asarray(request)
                place = np.unravel_index(frame.argmax(), frame.shape)
                request.reply(np.array(place), meta={"pid": os.getpid()})


def spot(i):
    """Where the frame has its bright pixel."""
    return (7 * i) % SHAPE[0], (13 * i) % SHAPE[1]


async def ask(k, i):
    """Returns the process that answered."""
    frame = k.empty(SHAPE, "uint8")
    pixels = np.asarray(frame)
    pixels[:] = i % 200
    pixels[spot(i)] = 255
    del pixels
    # idempotent: another worker gets the question of one that died
    reply = await k.call_async(frame, timeout=60, idempotent=True, strict=True)
    assert tuple(reply.numpy()) == spot(i)
    return reply.meta["pid"]


async def main(n_workers):
    pids = set()
    with dlx.connect(name="asks") as c, c.caller("svc/brightest", max_in_flight=8) as k:
        workers = [subprocess.Popen([sys.executable, __file__, "worker"]) for _ in range(n_workers)]
        k.wait(60)
        for i in range(0, N_FRAMES, 8):
            if i == 96:
                workers[0].send_signal(signal.SIGKILL)
            pids.update(await asyncio.gather(*(ask(k, j) for j in range(i, i + 8))))
    for process in workers:
        process.terminate()
        process.wait()
    print(f"{N_FRAMES} answers of {len(pids)} workers, one of which was killed")


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        worker()
    else:
        asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
