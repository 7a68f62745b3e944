# SPDX-License-Identifier: BSD-3-Clause
"""Graphs that are called without torch's dispatcher: the same results, and nothing goes unheard."""

import copy
import pickle
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import blockscale as bs

X = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """Two arguments, one by name, and a name that is no identifier."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x: Tensor, more: Tensor) -> dict[str, Tensor]:
        y = self.parts(x)
        return {"y": y, "sum": self.parts(x + more)}


@cache
def fused() -> Any:
    torch.manual_seed(0)
    program = torch.export.export(Net().eval(), (X,), {"more": X})
    recipe = bs.graph.integer_recipe(program)
    prepared = bs.graph.prepare(program, recipe)
    prepared(X, more=X)
    return bs.graph.fuse(bs.graph.convert(prepared))


def lowered(target: str) -> Any:
    """A graph of the test's own, but for the fused one, which no test changes."""
    return bs.graph.lower(fused(), target)


def ordinary(graph: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return graph.forward(*args, **kwargs)


def without_forward(graph: Any) -> Any:
    """The graph, whose ordinary way raises."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("called as torch calls it")

    type(graph).forward = refuse
    return graph


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.some(6)
@pytest.mark.parametrize("target", ["integer", "cpu", "reference"])
def test_a_call_goes_past_torchs_code_and_gives_the_same(target: str) -> None:
    graph = lowered(target)
    expected = ordinary(graph, X, more=X * 2)
    for each in (graph, copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        found = without_forward(each)
        with torch.no_grad():
            assert equal(found(X, more=X * 2), expected)
            assert equal(found(X, X * 2), expected)


def test_what_was_put_in_the_place_of_constants_is_read() -> None:
    graph, x = lowered("integer"), {"x": X, "more": X}
    with torch.no_grad():
        before = graph(**x)
        other = copy.deepcopy(graph)
        for name, buffer in other.named_buffers():
            if name.endswith("weight"):
                buffer.zero_()
        zeros = other(**x)
        assert not equal(zeros, before)
        graph.load_state_dict(other.state_dict(), assign=True)
        assert equal(graph(**x), zeros)
        assert equal(ordinary(graph, **x), zeros)


def test_a_changed_graph_is_called_as_it_is_compiled() -> None:
    graph = lowered("integer")
    with torch.no_grad():
        before = graph(X, X)
        node = next(n for n in graph.graph.nodes if "integer_dequantize" in str(n.target))
        node.args = (*node.args[:2], node.args[2] + 1)
        assert equal(graph(X, X), before)  # torch's way: nothing changes before recompile
        graph.recompile()
        after = without_forward(graph)(X, X)
    assert sum(torch.equal(after[key], 2 * before[key]) for key in before) == 1


class Seen(TorchDispatchMode):
    """The names of ops that came by."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
def test_who_listens_hears_every_op() -> None:
    graph = lowered("integer")
    expected = {str(n.target) for n in graph.graph.nodes if n.op == "call_function"}
    expected = {name for name in expected if name.startswith("blockscale")}
    with torch.no_grad():
        graph(X, X)
        with Seen() as seen:
            graph(X, X)
        with torch.profiler.profile() as profile:
            graph(X, X)
        traced = make_fx(graph)(X, X)
    assert expected <= seen.names
    assert expected <= {str(node.target) for node in traced.graph.nodes}
    assert {n.replace(".default", "").replace(".", "::") for n in expected} <= {
        each.key for each in profile.key_averages()
    }


def test_hooks_run() -> None:
    graph, called = lowered("integer"), []
    graph(X, X)
    handle = graph.register_forward_hook(lambda *_: called.append("own"))
    graph(X, X)
    handle.remove()
    every = nn.modules.module.register_module_forward_hook(lambda *_: called.append("every"))
    graph(X, X)
    every.remove()
    assert called[0] == "own" and "every" in called[1:]


def test_bs_use_is_asked_at_every_call() -> None:
    graph = lowered("integer")
    with torch.no_grad():
        expected = graph(X, X)
        with bs.use("reference"):
            assert equal(without_forward(graph)(X, X), expected)


def test_gradients_are_refused_as_ops_refuse_them() -> None:
    graph, x = lowered("cpu"), X.clone().requires_grad_()
    graph(X, X)
    with pytest.raises((RuntimeError, NotImplementedError)) as ordinary_error:
        graph.forward(x, X)["y"].sum().backward()
    with pytest.raises(type(ordinary_error.value)):
        graph(x, X)["y"].sum().backward()


def test_parameters_that_learn_are_seen() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(16))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    program = torch.export.export(Scaled(), (X,))
    graph: Any = bs.graph.convert(bs.graph.prepare(program, bs.Recipe("int8")))
    (scale,) = graph.parameters()
    assert not graph(X).requires_grad or scale.requires_grad
    scale.requires_grad_(True)
    assert graph(X).requires_grad
    with torch.no_grad():
        assert not graph(X).requires_grad


def test_constants_on_another_device_are_not_read() -> None:
    graph = lowered("integer")
    graph(X, X)
    graph.to("meta")
    with pytest.raises((RuntimeError, ValueError, NotImplementedError)):
        graph(X, X)


def test_constants_that_became_another_kind_of_tensor_hear_the_ops() -> None:
    heard: list[str] = []

    class Listening(Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            heard.append(str(func))
            return super().__torch_function__(func, types, args, kwargs or {})

    graph = lowered("integer")
    graph(X, X)
    name, weight = next(each for each in graph.named_buffers() if each[0].endswith("weight"))
    owner, _, last = name.rpartition(".")
    graph.get_submodule(owner)._buffers[last] = weight.as_subclass(Listening)
    graph(X, X)
    assert "blockscale.integer_linear.default" in heard


@pytest.mark.slow
def test_a_prepared_graph_calls_its_observers() -> None:
    program = torch.export.export(Net().eval(), (X,), {"more": X})
    prepared: Any = bs.graph.prepare(program, bs.graph.integer_recipe(program))
    with torch.no_grad():
        prepared(X, more=X)
        assert equal(prepared(X, more=X), ordinary(prepared, X, more=X))


@pytest.mark.parametrize("args", [(), (X,), (X, X, X)])
def test_other_numbers_of_arguments_are_refused_as_by_torch(args: tuple[Tensor, ...]) -> None:
    graph = lowered("integer")
    graph(X, X)
    with pytest.raises(TypeError, match="argument") as found:
        graph(*args)
    with pytest.raises(TypeError, match="argument") as expected:
        graph.forward(*args)
    assert str(expected.value).split("forward")[-1] == str(found.value).split("forward")[-1]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_each_graph_of_many_is_compiled_and_whole() -> None:
    """torch.compile has eight programs for a function, and then runs it as it is."""
    graph = lowered("reference")
    expected = ordinary(graph, X, more=X)
    programs = []

    def backend(program: Any, inputs: Any) -> Any:
        programs.append(program)
        return program.forward

    for _ in range(10):
        each = torch.compile(copy.deepcopy(graph), backend=backend, fullgraph=True)
        with torch.no_grad():
            assert equal(each(X, more=X), expected)
    assert len(programs) == 10
