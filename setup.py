# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel: the Makefile makes the extension and the programs, and this puts them into it.

All libraries are linked statically, so that the wheel needs nothing but the C library, and no copy
on the system takes their place. Their licences are in python/licenses/, and go into the wheel.
"""

import glob
import os
import re
import shlex
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

ROOT = os.path.dirname(os.path.abspath(__file__))
BASE = os.path.join(ROOT, "build", "wheel")
FILES = ("_dlx.abi3.so", "dlpackd", "dlpackd-keeper", "dlxctl")

# What is linked: a header, the names that its archive may have, the variable of make that links it,
# and with what. python/licenses/LICENSE-NAME.txt is in the wheel. libzip is not linked: Debian has
# no archive of it. Neither is ncurses, which needs files of the machine.
LIBRARIES = {
    "libuv": ("uv.h", ("libuv_a.a", "libuv.a"), "UV_LIBS", ""),
    # Linked into all: with it go the libraries that were not yet parts of libc before glibc 2.34.
    "protobuf-c": ("protobuf-c/protobuf-c.h", ("libprotobuf-c.a",), "PBC_LIBS", "-ldl -lrt"),
    "inih": ("ini.h", ("libinih.a",), "INI_LIBS", ""),
    "jansson": ("jansson.h", ("libjansson.a",), "JSON_LIBS", ""),
    "xxhash": ("xxhash.h", (), None, ""),
}


def version():
    with open(os.path.join(ROOT, "Makefile"), encoding="utf-8") as f:
        return re.search(r"^VERSION := (\S+)$", f.read(), re.M)[1]


def asked(*command, text=""):
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def static_libraries():
    """Variables of make that link the archives; ends with an error if a header or an archive is
    missing."""
    compiler = shlex.split(os.environ.get("CC") or "gcc")
    missing, variables = [], []
    for name, (header, archives, variable, further) in LIBRARIES.items():
        if not os.path.exists(os.path.join(ROOT, "python", "licenses", f"LICENSE-{name}.txt")):
            sys.exit(
                f"dlpackd: no python/licenses/LICENSE-{name}.txt, but {name} goes into the wheel"
            )
        if asked(*compiler, "-E", "-x", "c", "-", text=f"#include <{header}>").returncode:
            missing.append(header)
        found = (
            x
            for x in archives
            if os.path.isabs(asked(*compiler, f"-print-file-name={x}").stdout.strip())
        )
        archive = next(found, None)
        if archive:
            variables.append(f"{variable}=-l:{archive} {further}".rstrip())
        elif archives:
            missing.append(" or ".join(archives))
    if missing:
        sys.exit(
            f"dlpackd: {', '.join(missing)} not found by {compiler[0]}: the wheel contains these "
            "libraries, "
            "so it needs their headers and static archives (on Debian: tools/setup.sh)"
        )
    return variables


def cuda_header():
    """A variable of make for the cuda.h that pyproject.toml asks for, unless the caller has
    another."""
    found = [
        x
        for path in sys.path
        for x in glob.glob(os.path.join(path, "nvidia", "*", "include", "cuda.h"))
    ]
    return (
        [f"CUDA_INCLUDE={os.path.dirname(found[0])}"]
        if found and "CUDA_INCLUDE" not in os.environ
        else []
    )


def make(folder, *args):
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    subprocess.run(
        [
            "make",
            f"-j{os.cpu_count()}",
            "-C",
            ROOT,
            f"BUILD_ROOT={folder}",
            "VARIANT=",
            "SAN=",
            "COV=",
            "NEEDED_PKGS=",
            *args,
        ],
        env=env,
        check=True,
    )


class Source(sdist):
    """With the code that protoc-c generates, so that who builds from it needs no protoc-c."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        made = os.path.join(BASE, "make")
        names = [f"proto/dlx.pb-c.{x}" for x in "ch"]
        make(made, *(os.path.join(made, x) for x in names))
        for name in names:
            shutil.copy(os.path.join(made, name), os.path.join(base_dir, name))


class Build(build_ext):
    """One extension, which the Makefile builds, and the programs that go beside it."""

    def get_outputs(self):
        folder = os.path.dirname(self.get_ext_fullpath("dlx._dlx"))
        return [os.path.join(folder, x) for x in FILES]

    def run(self):
        made = os.path.join(BASE, "make")
        make(
            made,
            "python",
            f"PYTHON={sys.executable}",
            "CFLAGS=-O2",
            "LDFLAGS=-Wl,-s",
            "PKG_CFLAGS=-DDLX_NO_ZIP -DDLX_NO_NCURSES -DDLX_NO_MICROHTTPD -DDLX_NO_PNG"
            " -DDLX_NO_CHAFA -DDLX_NO_BPF",
            "ZIP_LIBS=",
            "CURSES_LIBS=",
            "HTTP_LIBS=",
            "PNG_LIBS=",
            "CHAFA_LIBS=",
            "CHAFA_CPPFLAGS=",
            "BPF_LIBS=",
            *static_libraries(),
            *cuda_header(),
        )
        for target in self.get_outputs():
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy(os.path.join(made, "python", "dlx", os.path.basename(target)), target)


os.makedirs(BASE, exist_ok=True)
setup(
    version=version(),
    ext_modules=[Extension("dlx._dlx", sources=[], py_limited_api=True)],
    cmdclass={"build_ext": Build, "sdist": Source},
    options={
        "build": {"build_base": BASE},
        "egg_info": {"egg_base": BASE},
        "bdist_wheel": {"py_limited_api": "cp311"},
    },
)
