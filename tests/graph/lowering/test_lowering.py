# SPDX-License-Identifier: BSD-3-Clause
"""Lowering as a whole: errors, the ledger, what stays as it was."""

import pytest
import torch

import blockscale as bs
from blockscale.graph.lowering import lower, targets, ways
from blockscale.graph.lowering.target import cpu, cuda, inductor, reference, x86
from blockscale.graph.pickled import State, set_state, state
from blockscale.graph.program import exported
from tests.graph.lowering.programs import FORMATS, layers, network
from tests.support.lowering import learned

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch itself
# "integer" refuses what has no integer form: tests/graph/lowering/target/test_integer.py
HERE = [name for name, why in targets().items() if why is None and name != "integer"]


def test_targets_are_files():
    assert set(targets()) == {"cpu", "cuda", "inductor", "integer", "reference", "x86"}
    assert targets()["reference"] is None
    assert (targets()["cuda"] is None) == torch.cuda.is_available()


def test_unknown_target():
    with pytest.raises(ValueError, match=r"no target 'tpu'; those that can: .*reference"):
        lower(layers("int8 static")[0], "tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it runs")
def test_a_target_that_does_not_run_here():
    with pytest.raises(
        ValueError, match=r"'cuda' does not run here; those that can: .*\n.*no CUDA"
    ):
        lower(layers("int8 static")[0], "cuda")


def test_what_is_no_graph():
    with pytest.raises(TypeError, match="expected a program, found a Linear: export the model"):
        lower(torch.nn.Linear(2, 2), "reference")


def test_not_twice():
    lowered = lower(layers("int8 static")[0], "reference")
    with pytest.raises(ValueError, match="lowered to reference: lower the result"):
        lower(lowered, "inductor")


def test_not_prepared():
    program = torch.export.export(torch.nn.ReLU(), (torch.randn(2),))
    graph = program.module(check_guards=False)
    set_state(graph, State("prepared"))
    with pytest.raises(
        ValueError, match=r"a prepared graph cannot be lowered: call bs.graph.convert"
    ):
        lower(graph, "reference")


@pytest.mark.some(2)
@pytest.mark.parametrize("target", HERE)
def test_what_is_lowered_stays_as_it_was(target):
    graph, x = layers("uint8 asym static")
    before, code, y = graph.state_dict(), graph.code, graph(x)
    known = state(graph)
    ledger = [*known.ledger]
    lowered = lower(graph, target)
    assert lowered is not graph
    assert graph.code == code and torch.equal(graph(x), y)
    assert all(torch.equal(graph.state_dict()[name], before[name]) for name in before)
    assert (state(graph).stage, [*state(graph).ledger]) == ("fused", ledger)
    assert (state(lowered).stage, state(lowered).target) == ("lowered", target)


@pytest.mark.some(40)
@pytest.mark.parametrize("target", HERE)
@pytest.mark.parametrize("kind", FORMATS)
def test_each_node_has_its_way(kind, target):
    graph, _ = layers(kind)
    lowered = lower(graph, target)
    ours = [n.name for n in graph.graph.nodes if str(n.target).startswith("blockscale.")]
    assert [each.node for each in ways(lowered)] == ours
    assert all(each.way for each in ways(lowered))


@pytest.mark.slow
@pytest.mark.parametrize("target", HERE)
def test_the_ledger_has_each_layer(target):
    _, program, _ = network("int8 static")
    lowered = lower(bs.graph.fuse(program), target)
    entries = {entry.name: entry for entry in state(lowered).ledger}
    told = [each for each in ways(lowered) if each.scope in entries]
    assert {each.scope for each in told} == {"up", *(e.scope for e in told)}
    for each in told:
        details = entries[each.scope].details
        assert f"on {target}: " in details and each.text in details
        assert not entries[each.scope].notes


def test_the_ledger_of_a_program():
    """Layers that were quantized before have their entries, and how they run beside them."""
    _, program, _ = network("int8 static")
    ledger = state(lower(program, "reference")).ledger
    assert ledger["up"].weight == "int8:channel0:fp32"
    assert ledger["up"].details == "as in the program; on reference: linear: reference"
    assert not ledger["up"].notes


@pytest.mark.parametrize("target", [t for t in ("cpu", "x86", "inductor") if t in HERE])
def test_strict_names_what_stays_on_the_reference(target):
    program, x = learned(), torch.randn(3, 64)
    message = rf"strict: {target} cannot run everything .*\n  linear of 0 \(.*: .*\nUse formats"
    with pytest.raises(bs.SkippedError, match=message):
        lower(program, target, strict=True)
    with pytest.warns(UserWarning, match=rf"{target} cannot run these, .*\n  linear of 0"):
        lowered = lower(program, target)
    (way,) = ways(lowered)
    assert way.text in state(lowered).ledger["0"].notes[0]
    assert way.on_reference and way.way == "reference" and way.why
    with bs.use("reference"):
        assert torch.equal(lowered(x), program.module()(x))


@pytest.mark.some(2)
@pytest.mark.parametrize("target", HERE)
def test_strict_lets_pass_what_runs(target):
    assert not any(
        each.on_reference for each in ways(lower(layers("mxfp8")[0], target, strict=True))
    )


@pytest.mark.some(12)
@pytest.mark.parametrize("kind", FORMATS)
def test_supports_says_what_is_left(kind):
    graph, _ = layers(kind)
    for module in (reference, inductor, *([cpu, x86] if "x86" in HERE else [])):
        for node in graph.graph.nodes:
            assert module.supports(node) is None
    assert cuda.supports(next(iter(graph.graph.nodes))) is None


@pytest.mark.slow
@pytest.mark.some(12)
@pytest.mark.parametrize("target", HERE)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(k, marks=[pytest.mark.slow] * (k not in ("uint8 asym static", "mxfp8")))
        for k in FORMATS
    ],
)
def test_exported_again(kind, target):
    """The program of a lowered graph computes what the graph does, with other sizes too."""
    graph, _ = layers(kind)
    lowered = lower(graph, target)
    module = exported(lowered).module()
    for rows in (4, 2, 7):
        x = torch.randn(rows, 64)
        assert torch.equal(module(x), lowered(x))
