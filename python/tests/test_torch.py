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


def test_a_function_is_refused_by_the_tensors_that_it_writes_to(monkeypatch, send):
    """As PyTorch calls it; PyTorch need not be installed."""
    module = types.ModuleType("torch")
    module.from_dlpack = np.asarray
    monkeypatch.setitem(sys.modules, "torch", module)
    msg, own = send(VALUES), dlx.tensor(VALUES.copy())

    def call(name, *args, **kwargs):
        def func(*args, **kwargs):
            return name

        func.__name__ = name
        return dlx.Message.__torch_function__(func, (dlx.Message,), args, kwargs)

    for name, args, kwargs in (
        ("add_", (own, msg), {}),
        ("_foreach_add_", ([own], [msg]), {}),
        ("add", (msg, 1), {"out": own}),
        ("relu", (msg,), {"inplace": False}),
        ("__add__", (msg, 1), {}),
    ):
        assert call(name, *args, **kwargs) == name
    for name, args, kwargs in (
        ("add_", (msg, own), {}),
        ("_foreach_add_", ([own, msg], [own, own]), {}),
        ("add", (own, 1), {"out": msg}),
        ("aminmax", (own,), {"out": (own, msg)}),
        ("relu", (msg,), {"inplace": True}),
    ):
        with pytest.raises(ValueError, match="is read-only"):
            call(name, *args, **kwargs)


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


@pytest.fixture
def without_memory(torch):
    """Tensors of PyTorch that have no memory, and what is said about each."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, values):
            return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype)

        def __init__(self, values):
            self.values_kept = values

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            args = [x.values_kept if isinstance(x, Wrapper) else x for x in args]
            return func(*args, **(kwargs or {}))

    class Flattened(Wrapper):
        def __tensor_flatten__(self):
            return ["values_kept"], None

    with FakeTensorMode():
        fake = torch.ones(3)
        fake_on_meta = torch.ones(3, device="meta")
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)
    return [
        (fake, "a FakeTensor has a shape and no values: publish outside of FakeTensorMode"),
        (fake_on_meta, "a FakeTensor has a shape and no values"),
        (torch.ones(3, device="meta"), "the device meta has a shape and no values: .*to_empty"),
        (torch._efficientzerotensor(3), r"a ZeroTensor stands for zeros: publish x\.clone\(\)"),
        (Flattened(torch.ones(3)), r"made of other tensors: publish those \(x\.values_kept\)"),
        (Wrapper(torch.ones(3)), "its class keeps the values elsewhere"),
        (freed, "its storage was freed"),
    ]


def test_a_tensor_without_memory_is_refused_with_what_to_publish_instead(pair, without_memory):
    pub, _ = pair
    for x, words in without_memory:
        for use in (
            lambda: pub.publish(x),
            lambda: pub.publish({"a": np.ones(3), "x": x}),
            lambda: pub.publish_many([x]),
            lambda: dlx.tensor(x),
        ):
            with pytest.raises(BufferError, match=f"has no memory of its own: .*{words}"):
                use()


def test_tensors_within_a_transformed_function_are_refused(torch, pair):
    pub, _ = pair

    def publishes(x):
        for y in (x, x.detach()):
            with pytest.raises(BufferError, match=r"within torch\.func .*: publish what"):
                pub.publish(y)
        return x.sum()

    torch.vmap(publishes)(torch.ones(2, 3))
    torch.func.grad(publishes)(torch.ones(3))
    torch.func.functionalize(publishes)(torch.ones(3))


def test_advice_about_tensors_without_memory_works(torch, send):
    assert send(torch._efficientzerotensor(3).clone()).tolist() == [0, 0, 0]
    layer = torch.nn.Linear(2, 2, device="meta").to_empty(device="cpu")
    layer.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    assert send(layer.state_dict())["weight"].tolist() == [[1, 0], [0, 1]]
