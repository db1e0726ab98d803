# SPDX-License-Identifier: Apache-2.0
"""PyTorch takes a message, or a dlx.Tensor, where it takes a tensor of its own."""

import sys
import types

import dlx
import numpy as np
import pytest

VALUES = np.arange(6, dtype="f4").reshape(2, 3)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture(params=["message", "named", "tensor"])
def received(send, request):
    """A message, one with a name, or its tensor."""
    msg = send({"rgb": VALUES} if request.param == "named" else VALUES)
    return msg[0] if request.param == "tensor" else msg


def test_functions_of_torch_take_what_was_received(torch, received):
    own = torch.tensor(VALUES)
    assert torch.equal(torch.stack([received, own]), torch.stack([own, own]))
    assert torch.equal(torch.cat((received,)), own) and torch.equal(own + received, 2 * own)
    assert torch.equal(received, own) and torch.sum(received) == 15 and (own == received).all()
    assert torch.nn.Linear(3, 4)(received).shape == (2, 4)
    view = torch.transpose(received, 0, 1)  # as of torch.from_dlpack(): the same memory
    assert view.data_ptr() == torch.from_dlpack(received).data_ptr()


def test_functions_of_torch_that_would_write_to_read_only_memory_are_refused(torch, received):
    own = torch.tensor(VALUES)
    for write in (
        lambda: torch.relu_(received),
        lambda: torch.add(own, 1, out=received),
        lambda: torch.aminmax(own, out=(received, received)),
        lambda: torch.nn.functional.relu(received, inplace=True),
        lambda: torch._foreach_add_([received], 1),
    ):
        with pytest.raises(ValueError, match=r"is read-only: .* msg\.private\(key\)"):
            write()
    assert torch.equal(own.clone().copy_(received), own)  # writes to a tensor of PyTorch


def test_functions_of_torch_write_to_memory_of_a_publisher(torch, pair):
    pub, sub = pair
    x = pub.empty((2, 3), "float32")
    torch.add(torch.tensor(VALUES), 1, out=x)
    assert not pub.publish(x, strict=True).copied
    assert (sub.take().numpy() == VALUES + 1).all()


def test_a_message_of_several_tensors_is_no_tensor_for_torch(torch, send):
    for msg in (send([VALUES, VALUES]), send({"a": VALUES, "b": VALUES})):
        with pytest.raises(BufferError, match="2 tensors: name the one that is meant"):
            torch.stack([msg, msg])


def test_default_collate_makes_batches_of_messages(torch, send):
    from torch.utils.data import DataLoader, default_collate

    def same(batch, value):
        return type(batch) is torch.Tensor and (batch.numpy() == np.stack([value, value])).all()

    a, b = send(VALUES), send(VALUES)
    assert same(default_collate([a, b]), VALUES) and same(default_collate([a[0], b[0]]), VALUES)
    assert same(next(iter(DataLoader([a, b], batch_size=2))), VALUES)
    rgb, depth = default_collate([send([VALUES, VALUES[0]]), send([VALUES, VALUES[0]])])
    assert same(rgb, VALUES) and same(depth, VALUES[0])
    named = default_collate([send({"rgb": VALUES}), send({"rgb": VALUES})])
    assert list(named) == ["rgb"] and same(named["rgb"], VALUES)
    tree = default_collate([send({"x": {"y": VALUES}, "n": 2}), send({"x": {"y": VALUES}, "n": 3})])
    assert same(tree["x"]["y"], VALUES) and tree["n"].tolist() == [2, 3]
    with pytest.raises(RuntimeError, match="should be of equal size"):
        default_collate([send([VALUES, VALUES]), send([VALUES, VALUES, VALUES])])


def test_a_subscription_tells_the_torch_of_the_program_how_messages_are_collated(monkeypatch, pair):
    known = {}
    module = types.ModuleType("torch.utils.data._utils.collate")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with dlx.connect() as c:
        c.subscribe("cam/front").close()  # while that module is being imported
        module.default_collate_fn_map = known
        c.subscribe("cam/front").close()
    assert set(known) == {dlx.Message, dlx.Tensor}
