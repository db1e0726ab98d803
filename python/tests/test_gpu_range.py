# SPDX-License-Identifier: Apache-2.0
"""dlx.GpuRange: versions of weights that are opened at the addresses of the one before, on the
stand-in driver, as in test_gpu.py."""

from test_gpu import alone, gpu_peer, machine, pytestmark, two  # noqa: F401

PUBLISH = """
import numpy as np
model = {"w": np.zeros((512, 512), "f4"), "a": np.zeros(64, "f4"), "b": np.zeros(64, "f4")}
def publish(version, like=model):
    d = pub.empty_like(like, device="cuda:0")
    for i, name in enumerate(model):
        fill(d[name], 10 * version + i)
    pub.publish({name: d[name] for name in model})
def values(message):
    taken = [Taken(t, stream=-1) for t in message.tensors]
    ret = [(one.t.data, read(one.t.data, 64)) for one in taken]
    for one in taken:
        one.close()
    return [at for at, _ in ret], [words[0] for _, words in ret]
"""


def test_each_version_is_opened_at_the_addresses_of_the_one_before(alone):
    alone(
        PUBLISH
        + """
place, addresses, msg = dlx.GpuRange(), None, None
for version in range(1, 6):
    publish(version)
    former, msg = msg, s.take()
    if former is not None:
        fails(dlx.Timeout, f"message {version - 1} of gpu is still in the range",
              lambda: msg.open_into(place, 0))
        former.release()
    assert msg.open_into(place) is None
    at, words = values(msg)
    addresses = addresses or at
    assert at == addresses and words == [10 * version + i for i in range(3)], (version, words)
assert msg["w"].device == "cuda:0"
fails(dlx.InvalidError, "was opened before", lambda: msg.open_into(place))
msg.release()
del place, former
"""
    )


def test_a_version_that_lies_elsewhere_is_refused(alone):
    alone(
        PUBLISH
        + """
place = dlx.GpuRange()
publish(1)
first = s.take()
first.open_into(place)
publish(2, dict(reversed(model.items())))
second = s.take()
e = fails(dlx.InvalidError, "tensor 0 (w) lies at offset 512 of allocation 1, and was at 0 of 1",
          lambda: second.open_into(place, timeout=None))
assert "one dlx_alloc_set()" in str(e) and e.name == "SHAPE", (str(e), e.name)
assert values(second)[1] == [20, 21, 22]  # where the driver maps it
pub.publish(Array(2, 8))
third = s.take()
fails(dlx.DeviceError, "is mapped where the driver chooses", lambda: third.open_into(place))
fails(TypeError, "takes a dlx.GpuRange, not 'cuda:0'", lambda: third.open_into("cuda:0"))
fails(ValueError, "seconds >= 0", lambda: third.open_into(place, -1))
fails(TypeError, "takes no arguments", lambda: dlx.GpuRange(64))
fails(TypeError, "not copied or pickled", lambda: pickle.dumps(place))
for message in (first, second, third):
    message.release()
fails(dlx.Closed, "released", lambda: third.open_into(place))
del place, message
"""
    )


def test_a_wait_for_the_former_version_goes_on_until_it_is_released(alone):
    alone(
        PUBLISH
        + """
import signal
place = dlx.GpuRange()
publish(1)
first = s.take()
first.open_into(place)
tensor = first["a"]
publish(2)
second = s.take()
class Alarm(Exception): pass
def alarm(*unused): raise Alarm("alarm")
signal.signal(signal.SIGALRM, alarm)
signal.setitimer(signal.ITIMER_REAL, 0.01)
fails(Alarm, "alarm", lambda: second.open_into(place, None))
opener = threading.Thread(target=second.open_into, args=(place, None))
opener.start()
assert opener.is_alive()
first.release()
del tensor
opener.join()
assert values(second)[1] == [20, 21, 22]
second.release()
del place
"""
    )
