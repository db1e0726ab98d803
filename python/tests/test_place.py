# SPDX-License-Identifier: Apache-2.0
"""The daemon that is found where another one refuses this user: with a /run of the test's own,
which needs root.
"""

import os
import pathlib
import subprocess
import sys

import dlx
import pytest
from conftest import DAEMON, PATIENCE

OTHER_UID = 61234

# In a mount namespace: the runtime folder has a daemon that serves root only, /run/dlpackd one that
# serves everybody named.
STORY = f"""
import atexit, os, shutil, subprocess, warnings
import dlx
os.mkdir("/run/user", 0o755)
os.mkdir("/run/dlpackd", 0o755)

def start(socket, *options):
    ready, theirs = os.pipe()
    process = subprocess.Popen([{DAEMON!r}, "--socket", socket, "--ready-fd", str(theirs),
                                *options], pass_fds=[theirs])
    atexit.register(process.kill)  # also when something below fails
    os.close(theirs)
    while not (said := os.read(ready, 100)).endswith(b"READY=1\\n"):
        assert said
    os.close(ready)
    os.chmod(socket, 0o666)
    return process

user, system = "/run/user/dlpackd.sock", "/run/dlpackd/dlpackd.sock"
daemons = [start(user), start(system, "--allow-user", "{OTHER_UID}")]
os.environ["XDG_RUNTIME_DIR"] = "/run/user"
for name in "dlxctl", "libdlx.so.0":  # where the other user can execute them
    shutil.copy(os.environ["BUILD"] + "/" + name, "/run")
pid = os.fork()
if pid == 0:
    os.setuid({OTHER_UID})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        c = dlx.connect(autospawn=False)
    info = c.daemon()
    assert (info["socket"], info["place"]) == (system, "system"), info
    assert info["refused_by"].startswith(user + ": uid {OTHER_UID} may not"), info
    assert [w.category for w in said] == [RuntimeWarning], said
    assert str(said[0].message).endswith(info["refused_by"]), said
    warnings.simplefilter("error")
    try:
        dlx.connect(autospawn=False)
        raise AssertionError("the warning is no error")
    except RuntimeWarning:
        pass
    env = {{**os.environ, "LD_LIBRARY_PATH": "/run"}}
    lines = subprocess.run(["/run/dlxctl", "info"], env=env, stdout=subprocess.PIPE, text=True,
                           check=True).stdout.splitlines()
    assert lines[0] == "refused by     " + info["refused_by"], lines
    assert "found          in /run/dlpackd" in lines, lines
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
for process in daemons:
    process.terminate()
    process.wait()
raise SystemExit(status)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a /run of its own")
def test_a_daemon_that_refuses_is_passed_over_with_a_warning(monkeypatch):
    if subprocess.run(["unshare", "--mount", "true"]).returncode != 0:
        pytest.skip("no mount namespace here")
    for name in "DLX_SOCKET", "DLX_AUTOSPAWN":
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BUILD", str(pathlib.Path(dlx.__file__).parents[2]))
    begin = 'mount -t tmpfs -o mode=755 tmpfs /run && exec "$0" -c "$1"'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", begin]
    subprocess.run([*command, sys.executable, STORY], check=True, timeout=PATIENCE)
