# SPDX-License-Identifier: Apache-2.0
"""dlx.debug() beside other handlers of faults."""

import signal

import pytest

OTHER = """
import ctypes, resource, signal
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
libc = ctypes.CDLL(None)
libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)
def handle(number): say("theirs")
theirs = Handler(handle)
def set_theirs(): return libc.signal(signal.SIGSEGV, ctypes.cast(theirs, ctypes.c_void_p))
class Action(ctypes.Structure):
    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_ubyte * 128),
                ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p)]
def handler():
    now = Action()
    libc.sigaction(signal.SIGSEGV, None, ctypes.byref(now))
    return now.handler
"""


def test_debug_off_leaves_a_handler_that_came_later(peer):
    p = peer(
        OTHER
        + """
dlx.debug()
set_theirs()
dlx.debug(False)
signal.raise_signal(signal.SIGSEGV)
dlx.debug(); dlx.debug(False)  # it is below theirs, and is not installed a second time
signal.raise_signal(signal.SIGSEGV)
say(handler() == ctypes.cast(theirs, ctypes.c_void_p).value)
"""
    )
    assert [p.hear() for _ in range(3)] == ["theirs", "theirs", "True"]
    p.end()


def test_debug_comes_again_after_its_handler_was_removed(peer):
    p = peer(
        OTHER
        + """
dlx.debug()
libc.signal(signal.SIGSEGV, 0)
dlx.debug(False); say(handler())
dlx.debug(); say(handler() is not None)
dlx.debug(False); say(handler())
"""
    )
    assert [p.hear() for _ in range(3)] == ["None", "True", "None"]
    p.end()


@pytest.mark.parametrize("on", [True, False])
def test_below_another_handler_debug_speaks_only_while_it_is_on(peer, on):
    """A handler that calls the one before, as handlers of other libraries do."""
    p = peer(
        OTHER
        + f"""
Chain = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
old = Action()
def call_old(number, info, context):
    say("theirs")
    Chain(old.handler)(number, info, context)
chain = Chain(call_old)
dlx.debug()
SA_SIGINFO = 4
new = Action(handler=ctypes.cast(chain, ctypes.c_void_p).value, flags=SA_SIGINFO)
libc.sigaction(signal.SIGSEGV, ctypes.byref(new), ctypes.byref(old))
dlx.debug(False); dlx.debug(); dlx.debug({on})
pub, sub = c.publisher("a"), c.subscribe("a")
pub.publish(b"x")
m = sub.take()
view = (ctypes.c_char * 1).from_address(int(m[0].__array_interface__["data"][0]))
view[0] = b"y"
"""
    )
    assert p.hear() == "theirs"
    err = p.end(status=-signal.SIGSEGV)
    assert ("dlx: fault in a received tensor" in err) == on
    assert "Fatal Python error: Segmentation fault" in err


def test_debug_tells_a_forked_child_that_it_has_no_memory_of_its_parent(peer):
    """Whether the child reads or writes: the text is not about writing."""
    p = peer(
        """
        import os, resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        import numpy as np
        dlx.debug()
        c.publisher("w", retain=1).publish(np.arange(100000))
        a = np.asarray(c.get("w"))
        pid = os.fork()
        if pid == 0:
            os._exit(int(a[5]))
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    assert p.hear() == str(-signal.SIGSEGV)
    said = p.end()
    assert "memory of the parent process, which a forked child does not have: topic w" in said
    assert "call dlx.connect() in the child" in said and "read-only" not in said
