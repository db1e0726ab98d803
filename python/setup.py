# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel: the Makefile of the project makes the extension, libdlx and dlpackd, and this puts them into it.

libuv, protobuf-c and inih are linked statically where their archives are there, so that the wheel needs nothing but the C library.
"""
import os
import re
import shlex
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
BASE = os.path.join(ROOT, "build", "wheel")
if not os.path.exists(os.path.join(ROOT, "client", "libdlx.map")):
    sys.exit("dlx: build it in a checkout of dlpackd (pip install ./python), whose Makefile makes libdlx and dlpackd")


def version():
    with open(os.path.join(ROOT, "Makefile"), encoding="utf-8") as f:
        return re.search(r"^VERSION := (\S+)$", f.read(), re.M)[1]


def static_libraries():
    """Variables of make that link the archives, if all of them are there."""
    compiler = shlex.split(os.environ.get("CC") or "gcc")

    def found(name):
        said = subprocess.run([*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False)
        return os.path.isabs(said.stdout.strip())

    uv = next((x for x in ("libuv_a.a", "libuv.a") if found(x)), None)
    if not uv or not found("libprotobuf-c.a") or not found("libinih.a"):
        return []
    return [f"UV_LIBS=-l:{uv} -ldl -lrt", "PBC_LIBS=-l:libprotobuf-c.a", "INI_LIBS=-l:libinih.a"]


class Build(build_ext):
    """One extension, which the Makefile builds, and the two files that go beside it."""

    def get_outputs(self):
        folder = os.path.dirname(self.get_ext_fullpath("dlx._dlx"))
        return [os.path.join(folder, x) for x in ("_dlx.abi3.so", "libdlx.so.0", "dlpackd", "dlpackd-keeper")]

    def run(self):
        made = os.path.join(BASE, "make")
        env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
        subprocess.run(["make", "-C", ROOT, "python", f"BUILD_ROOT={made}", f"PYTHON={sys.executable}", "SAN=", "COV=",
                        "CFLAGS=-O2", "LDFLAGS=-Wl,-s", *static_libraries()], env=env, check=True)
        for target in self.get_outputs():
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy(os.path.join(made, "python", "dlx", os.path.basename(target)), target)


os.makedirs(BASE, exist_ok=True)
setup(
    version=version(),
    ext_modules=[Extension("dlx._dlx", sources=[], py_limited_api=True)],
    cmdclass={"build_ext": Build},
    options={"build": {"build_base": BASE}, "egg_info": {"egg_base": BASE}, "bdist_wheel": {"py_limited_api": "cp311"}},
)
