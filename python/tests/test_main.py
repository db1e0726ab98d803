# SPDX-License-Identifier: Apache-2.0
"""python -m dlx: the program dlxctl."""

import os
import shutil
import stat
import subprocess
import sys

import dlx

PACKAGE = os.path.dirname(dlx.__file__)


def run(*args, **env):
    return subprocess.run(
        [sys.executable, "-m", "dlx", *args],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
    )


def test_python_m_dlx_is_dlxctl_of_the_package(tmp_path):
    said = run("--version", PATH=str(tmp_path))
    assert (said.returncode, said.stdout, said.stderr) == (0, f"dlxctl {dlx.__version__}\n", "")


def test_python_m_dlx_uses_the_daemon_of_python_and_returns_the_status_of_dlxctl(c):
    with c.publisher("here"):
        said = run("ls", "--json")
        assert (
            said.returncode == 0
            and '"here"' in said.stdout
            and f'"pid": {os.getpid()}' in said.stdout
        ), said
    said = run("get", "gone")
    assert said.returncode == 1, said
    assert said.stderr.startswith("dlxctl get: topic gone has no message"), said


def test_a_package_without_it_looks_in_path_and_then_says_what_is_missing(tmp_path):
    shutil.copytree(
        PACKAGE, tmp_path / "site" / "dlx", ignore=shutil.ignore_patterns("dlxctl", "__pycache__")
    )
    folder = tmp_path / "bin"
    folder.mkdir()
    env = {"PYTHONPATH": str(tmp_path / "site"), "PATH": str(folder)}
    said = run("ls", **env)
    assert said.returncode == 1
    assert said.stderr == (
        f"dlx: no program dlxctl, neither in {tmp_path}/site/dlx nor in $PATH: "
        "install it (on Debian: the package dlxctl)\n"
    )
    program = folder / "dlxctl"
    program.write_text('#!/bin/sh\necho "given $*"\nexit 3\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    said = run("ls", "a b", **env)
    assert (said.returncode, said.stdout) == (3, "given ls a b\n"), said
