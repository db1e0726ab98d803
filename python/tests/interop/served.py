# SPDX-License-Identifier: Apache-2.0
"""A dlpackd for one program, of exchange.py and of python/bench."""

import contextlib
import os
import subprocess
import sys
import tempfile

import dlx


@contextlib.contextmanager
def daemon(*options):
    """Runs dlpackd with these options, and gives the path of its socket."""
    program = os.path.join(os.path.dirname(dlx.__file__), "dlpackd")
    with tempfile.TemporaryDirectory(prefix="dlx-served.") as folder:
        path = os.path.join(folder, "s")
        ready, theirs = os.pipe()
        process = subprocess.Popen(
            [program, "--socket", path, "--ready-fd", str(theirs), *options],
            pass_fds=[theirs],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        try:
            if not os.read(ready, 8).startswith(b"READY=1"):
                sys.exit(f"{program} does not start")
            yield path
        finally:
            os.close(ready)
            process.terminate()
            process.wait()
