# SPDX-License-Identifier: Apache-2.0
"""The import of the extension, when it fails and is tried again."""

import os
import subprocess
import sys

import dlx
import pytest
from conftest import PATIENCE

# The package without its __init__.py, which would load the extension itself. In each child one
# request for memory fails, and the extension is loaded again if that was too much for it.
CODE = """
import _imp, _testcapi, glob, os, sys, types
from importlib.util import module_from_spec, spec_from_file_location
package = types.ModuleType("dlx")
package.__path__ = [sys.argv[1]]
sys.modules["dlx"] = package
import dlx._errors
path = glob.glob(sys.argv[1] + "/_dlx*.so")[0]
def load(n):
    module = module_from_spec(spec_from_file_location("dlx._dlx", path))
    _testcapi.set_nomemory(n, n + 1)
    try:
        _imp.exec_dynamic(module)
    finally:
        _testcapi.remove_mem_hooks()
    return module.Tensor is not None
def fails(n):
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if load(n) else 2)
        except (MemoryError, SystemError):  # "failed without setting an exception": of CPython
            os._exit(1 if load(1 << 30) else 2)
        except BaseException as e:
            print(n, repr(e), flush=True)
            os._exit(2)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
seen = [fails(n) for n in range(0, 400, 3)]
print(seen.count(0), seen.count(1), len(seen))
"""


def test_an_import_may_follow_one_that_failed():
    pytest.importorskip("_testcapi")
    process = subprocess.run(
        [sys.executable, "-c", CODE, os.path.dirname(dlx.__file__)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert process.returncode == 0, process.stderr
    n_loaded, n_failed, n = map(int, process.stdout.split())
    assert n_loaded + n_failed == n and n_failed > n / 2
