# SPDX-License-Identifier: Apache-2.0
"""The lines in README.md do what they say."""

import os
import types

import numpy as np
from conftest import PATIENCE

README = os.path.join(os.path.dirname(__file__), "..", "..", "README.md")


def test_the_three_lines_of_the_readme(peer):
    with open(README, encoding="utf-8") as f:
        section = f.read().split("\n## In Python\n")[1].split("\n## ")[0]
    block = [line[4:] for line in section.split("\n") if line.startswith("    ") or not line]
    sends, takes = "\n".join(block).strip().split("\n\n")
    setup = "import numpy as np, types; torch = types.SimpleNamespace(from_dlpack=np.asarray)\n"
    p = peer(setup + "say('ready')\n" + takes + "\n    say(y.sum())\n")
    assert p.hear() == "ready"
    names = {"frame": np.ones((4, 5), np.uint8), "torch": types.SimpleNamespace()}
    exec(
        sends.replace(
            "pub.publish(frame)", f"pub.wait(1, {PATIENCE}); report = pub.publish(frame)"
        ),
        names,
    )
    assert names["report"].copied
    assert p.hear() == "20"
    names["pub"].close()
    p.end()
