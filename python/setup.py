# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel: the Makefile of the project makes the extension and dlpackd, and this puts them into it.

All libraries are linked statically, so that the wheel needs nothing but the C library, and no copy on
the system takes their place. Their licences are in licenses/, and go into the wheel.
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
    """Variables of make that link the archives; ends with an error if one is missing."""
    compiler = shlex.split(os.environ.get("CC") or "gcc")

    def found(*names):
        for name in names:
            said = subprocess.run([*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False)
            if os.path.isabs(said.stdout.strip()):
                return f"-l:{name}"
        missing.append(" or ".join(names))
        return ""

    missing = []
    uv, pbc, ini = found("libuv_a.a", "libuv.a"), found("libprotobuf-c.a"), found("libinih.a")
    if missing:
        sys.exit(f"dlx: {', '.join(missing)} not found by {compiler[0]}: the wheel contains these libraries, "
                 "so it needs their static archives (on Debian: tools/setup.sh)")
    return [f"UV_LIBS={uv} -ldl -lrt", f"PBC_LIBS={pbc}", f"INI_LIBS={ini}"]


class Build(build_ext):
    """One extension, which the Makefile builds, and the two programs that go beside it."""

    def get_outputs(self):
        folder = os.path.dirname(self.get_ext_fullpath("dlx._dlx"))
        return [os.path.join(folder, x) for x in ("_dlx.abi3.so", "dlpackd", "dlpackd-keeper")]

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
