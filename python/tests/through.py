# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: from_dlpack() of NumPy and tvm-ffi gets what another process sent back,
instead of its argument.

usage: DLX_SOCKET=... python -m pytest -p through --through-report FILE SUITE

The suite is another project's. A tensor goes to another process and comes back as a received one;
what publish() refuses is raised where the suite called from_dlpack(). The report tells how each
test ended, and how many tensors it sent.
"""

import json
import subprocess
import sys

import dlx
import pytest

TIMEOUT = 60.0
ECHO = f"""
import dlx
with dlx.connect() as c, c.subscribe("there") as sub, c.publisher("back") as pub:
    pub.wait(1, {TIMEOUT})
    print("ready", flush=True)
    for msg in sub:
        pub.publish(msg)
"""


class Through:
    def __init__(self, path):
        self.path, self.n_sent, self.tests = path, 0, {}
        self.connection = dlx.connect()
        self.back = self.connection.subscribe("back", timeout=TIMEOUT)
        self.there = self.connection.publisher("there", on_full="block", timeout=TIMEOUT)
        self.process = subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"ready\n"
        self.there.wait(1, TIMEOUT)

    def send(self, thing):
        self.there.publish(thing)
        self.n_sent += 1
        return self.back.take()[0]

    def replace(self, module, name="from_dlpack"):
        original = getattr(module, name)

        def replacement(thing, /, **kwargs):
            return original(self.send(thing), **kwargs)

        setattr(module, name, replacement)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item):
        before = self.n_sent
        yield
        self.tests[item.nodeid] = {"n_sent": self.n_sent - before}

    def pytest_runtest_logreport(self, report):
        row = self.tests.setdefault(report.nodeid, {"n_sent": 0})
        if report.outcome != "passed" or report.when == "call":
            row["outcome"] = report.outcome
            row["words"] = str(report.longrepr or "").strip().split("\n")[-1]

    def pytest_sessionfinish(self):
        self.there.close()  # the end of the other process's loop
        self.process.communicate(timeout=TIMEOUT)
        self.connection.close()
        with open(self.path, "w", encoding="utf-8") as f:
            json.dump(self.tests, f, indent=1)


def pytest_addoption(parser):
    parser.addoption("--through-report", help="write there how each test ended, as JSON")


def pytest_configure(config):
    through = Through(config.getoption("through_report"))
    config.pluginmanager.register(through)
    for name in ("numpy", "tvm_ffi"):
        try:
            through.replace(__import__(name))
        except ImportError:
            pass
