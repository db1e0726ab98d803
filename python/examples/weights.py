#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The weights of a model, published once, in memory once, used by as many processes as there are.

    weights.py publish         a model's state_dict as a retained set: it stays when this program has ended
    weights.py infer SEED      attach the newest set and compute with it
    weights.py demo            both, in three processes; their outputs are compared with the local ones

The weights are not copied by those who attach: the model's parameters are views of the shared memory. They are read-only, so
the model can infer and not train.
"""
import subprocess
import sys

import dlx
import torch

TOPIC = "weights/demo"


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 16)).eval()


def publish():
    with dlx.connect() as c, c.publisher(TOPIC, retain=1) as pub:
        report = pub.publish(model().state_dict(), meta={"step": 1000})
    print(f"published {report.copied_bytes} bytes")


def output(net, seed):
    x = torch.randn(4, 256, generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        return float(net(x).double().sum())


def attach():
    """The model with the newest weights."""
    with dlx.connect() as c:
        msg = c.get(TOPIC, timeout=10)
    with torch.device("meta"):  # no memory for weights of its own
        net = model()
    net.load_state_dict({name: torch.from_dlpack(t) for name, t in msg.items()}, assign=True)
    return net.eval()


def demo():
    run = [sys.executable, __file__]
    with dlx.connect() as c:
        subprocess.run([*run, "publish"], check=True)
        processes = [subprocess.Popen([*run, "infer", str(seed)], stdout=subprocess.PIPE, text=True) for seed in (1, 2)]
        for seed, process in enumerate(processes, 1):
            said = float(process.communicate(timeout=100)[0])
            local = output(model(), seed)
            print(f"process {seed}: {said:.9f}, here: {local:.9f}")
            if said != local:
                sys.exit("they differ")
        n_bytes = sum(t.numel() * t.element_size() for t in model().state_dict().values())
        (info,) = c.publishers(TOPIC)
        print(f"weights: {n_bytes} bytes, shared memory: {info['arena_bytes']}")
        c.drop(TOPIC)


if __name__ == "__main__":
    if sys.argv[1:] == ["publish"]:
        publish()
    elif sys.argv[1:2] == ["infer"] and len(sys.argv) == 3:
        print(repr(output(attach(), int(sys.argv[2]))))
    elif sys.argv[1:] == ["demo"]:
        demo()
    else:
        sys.exit(__doc__)
