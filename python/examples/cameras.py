#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An asyncio program that looks at all cameras at once: `async for` on a pattern, without a thread.

cameras.py [N]     N cameras in another process (3), 20 frames each; ends when they have left
"""

import asyncio
import subprocess
import sys

import dlx
import numpy as np

CAMERAS = """
import sys, dlx, numpy as np
n = int(sys.argv[1])
with dlx.connect() as c:
    pubs = [c.publisher(f"cam/{i}", on_full="block") for i in range(n)]
    for pub in pubs:
        pub.wait(1, timeout=60)
    for k in range(20):
        for i, pub in enumerate(pubs):
            x = pub.empty((480, 640, 3), "uint8")
            np.asarray(x)[:] = i * 20 + k
            pub.publish(x, timeout=60)
    for pub in pubs:
        pub.close()
"""


async def tick(ticks):
    """Stands for the program's other work."""
    while True:
        ticks.append(None)
        await asyncio.sleep(0.001)


async def main(n):
    ticks, frames = [], {}
    with dlx.connect() as c, c.subscribe("cam/*", reliable=True, timeout=60) as sub:
        process = subprocess.Popen([sys.executable, "-c", CAMERAS, str(n)])
        other = asyncio.create_task(tick(ticks))
        async for msg in sub:
            frame = np.asarray(msg)
            frames.setdefault(msg.topic, []).append(int(frame[0, 0, 0]))
            if sum(len(x) for x in frames.values()) == 20 * n:
                break
        other.cancel()
        process.wait()
    for i in range(n):
        assert frames[f"cam/{i}"] == [i * 20 + k for k in range(20)], frames
    print(
        f"{20 * n} frames of {n} cameras, in order; "
        f"{'the rest ran, too' if ticks else 'nothing else ran'}"
    )


if __name__ == "__main__":
    asyncio.run(main(int((sys.argv[1:] or ["3"])[0])))
