# SPDX-License-Identifier: BSD-3-Clause
"""Repeated calls on a GPU give the bits of those that Python decides. Needs CUDA:

`pytest -m gpu tests/gpu`. What is and what is not repeated: tests/kernels/cuda/test_replay.py.
"""

import threading

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.kernels import registry
from tests.support.same import same

pytestmark = pytest.mark.gpu

LAYERS = [
    ("int8_channel", None), ("mxfp4", None), ("int4", None), ("nvfp4", None), ("mxfp6", None),
    ("int8_channel", "int8_token"), ("fp8", "fp8"), ("mxint8", "mxint8"), ("int2", None),
    ("nvfp4", "nvfp4"), ("int8:tensor:fp32", "int8:tensor:fp32"),
]  # fmt: skip


@pytest.fixture
def decided():
    """A call's result as Python decides it; recordings are gone then."""
    assert registry.unavailable("cuda") is None
    from blockscale.kernels.cuda import replay

    def call(run, *arguments):
        replay.forget()
        result = run(*arguments)
        replay.forget()
        return result

    return call


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def layer(weight, x=None):
    model = nn.Sequential(nn.Linear(1024, 512, dtype=torch.bfloat16, device="cuda"))
    bs.quantize_(model, bs.Recipe(weight=weight, input=x) if x else bs.Recipe(weight=weight))
    return model


def numbers(rows):
    return torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize(("weight", "x"), LAYERS)
@pytest.mark.parametrize("rows", [1, 16, 128])
def test_layers(decided, weight, x, rows):
    f, a, b = layer(weight, x), numbers(rows), numbers(rows)
    expected = [decided(f, each) for each in (a, b)]
    for _ in range(2):
        f(a)
    assert all(same(f(each), y) for each, y in zip((a, b), expected, strict=True))
    known = registry.KERNELS["linear", "cuda"][-1].run.recordings.values()
    assert len(known) == 1
    assert not any(isinstance(each, str) for each in known)


@pytest.mark.parametrize("fmt", ["int8", "mxfp4", "nvfp4", "int8:token:fp32", "mxfp6"])
def test_primitives(decided, fmt):
    def run(x):
        q = bs.quantize(x, fmt)
        return [q.packed, q.dequantize(), bs.fake_quantize(x, fmt)]

    a, b = (torch.randn(16, 96, device="cuda") for _ in range(2))
    expected = decided(run, b)
    for _ in range(3):
        run(a)
    assert all(map(same, run(b), expected))


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("rows", [1, 64])
def test_graphs(decided, first, rows):
    """Captured from repeated calls, from the one that is recorded, and from the first."""
    model = nn.Sequential(layer("mxfp4"), nn.Linear(512, 1024, device="cuda").bfloat16())
    model.append(layer("int8_channel", "int8_token"))
    a, b = numbers(rows), numbers(rows)
    expected = decided(model, b)  # all is compiled then
    for _ in range(2 - first):
        model(a)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(a)
    a.copy_(b)
    for _ in range(2):
        graph.replay()
        assert same(y, expected)
        assert same(model(b), expected)
    model[0][0].weight.codes.copy_(model[0][0].weight.codes.flip(0))
    graph.replay()
    assert same(y, decided(model, b))


@pytest.mark.parametrize(("weight", "x"), LAYERS[:6])
def test_weights_that_change(decided, weight, x):
    """In place, by another state, by other tensors, on their way to the CPU and back."""
    model, other, a = layer(weight, x), layer(weight, x), numbers(4)

    def check():
        y = model(a)
        assert same(y, decided(model, a))
        for _ in range(3):
            model(a)

    check()
    model.load_state_dict(other.state_dict())
    assert same(model(a), other(a))
    check()
    model[0].weight.codes.copy_(model[0].weight.codes.flip(0))
    check()
    model[0].weight.codes = model[0].weight.codes.flip(0).contiguous()
    check()
    model.cpu().cuda()
    check()
    model.half()
    a = a.half()
    check()


def test_threads_with_streams_of_their_own(decided):
    model = nn.Sequential(*layer("mxfp4"), nn.Linear(512, 1024, device="cuda").bfloat16())
    model.extend(layer("mxint8", "mxint8"))
    inputs = [numbers(4 if i % 2 else 40) for i in range(6)]
    expected = [decided(model, x) for x in inputs]
    torch.cuda.synchronize()
    right = []

    def work(i):
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            found = [model(inputs[i]) for _ in range(100)]
            stream.synchronize()
            right.append(all(same(y, expected[i]) for y in found))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert right == [True] * 6


def test_hooks_see_every_launch():
    import triton

    f, a, seen = layer("mxfp4"), numbers(1), []
    for _ in range(3):
        f(a)

    def hook(metadata):
        seen.append(metadata.get()["name"])

    triton.knobs.runtime.launch_enter_hook.add(hook)
    try:
        f(a)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(hook)
    assert len(seen) >= 2
    count = len(seen)
    f(a)
    assert len(seen) == count


def test_what_cannot_be_reached_is_refused_each_time():
    f, a = layer("mxfp4"), numbers(2)
    for _ in range(3):
        f(a)
    for _ in range(3):
        with pytest.raises(ValueError, match="expected a tensor on a CUDA device"):
            registry.KERNELS["linear", "cuda"][-1].run(a.cpu(), f[0].weight.operand, f[0].bias)
