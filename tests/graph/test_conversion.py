# SPDX-License-Identifier: BSD-3-Clause
"""A converted graph gives the bits of the module flow, and keeps nothing of a float weight."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.graph.program import exported
from tests.support import graph_models as models
from tests.support.graph_convert import converted
from tests.support.graph_models import run

CATALOG = sorted(bs.formats())


def by_modules(made, recipe, **options):
    model, _, batches = made
    model = copy.deepcopy(model)
    ledger = bs.calibrate(model, batches, recipe, progress=False, blocks=False, **options)
    return model, ledger


def folded(made):
    """The same with batch norms folded: as torch folds them but for the last bits, which are the
    program's, so that what follows can be compared to the bit."""
    model, program, batches = made
    model, ours = copy.deepcopy(model), bs.graph.prepare(program, "int8")
    for conv, norm in (("c1", "b1"), ("c2", "b2")):
        fused = nn.utils.fuse_conv_bn_eval(getattr(model, conv), getattr(model, norm))
        for name, parameter in fused.named_parameters():
            own = ours.get_parameter(f"{conv}.{name}")
            torch.testing.assert_close(own, parameter, rtol=1e-6, atol=1e-6)
            parameter.data = own.data
        setattr(model, conv, fused)
        setattr(model, norm, nn.Identity())
    return model, program, batches


def assert_equal(made, recipe, **options):
    graph = converted(made, recipe, **options)
    model, ledger = by_modules(made, recipe, **{"sequential": False, **options})
    with bs.use("reference"):
        assert torch.equal(run(graph, made[2][1]), run(model, made[2][1]))
    ours, theirs = (
        {e.name: (e.kind, e.status, e.weight, e.input, e.output, e.bias) for e in told
         if not e.kind.startswith("parameter")}
        for told in (bs.graph.ledger(graph), ledger)
    )  # fmt: skip
    assert ours == theirs
    return graph


@pytest.mark.slow
@pytest.mark.parametrize("name", CATALOG)
def test_every_named_format_of_weights(name):
    assert_equal(models.bert(), bs.Recipe(weight=name))


FEW = ("uint8:tensor:fp32:asym", "int8_token", "mxfp8")
INPUTS = (
    *FEW, "int8:tensor:fp32", "nvfp4", "bfp8", "int8:channel-1:fp32", "nf4:group16:fp32",
    "uint4:group16:fp16:asym", "uint4:group16:fp16:offset",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.some(40)
@pytest.mark.parametrize(
    ("made", "fmt"),
    [
        pytest.param(made, fmt, marks=[pytest.mark.slow] * (i != 2 and fmt not in FEW))
        for i, made in enumerate((models.bert, models.gpt2, lambda: folded(models.net())))
        for fmt in INPUTS
    ],
)
def test_inputs(made, fmt):
    assert_equal(made(), bs.Recipe(weight="int8_channel", input=fmt))


@pytest.mark.slow
def test_outputs_and_biases_and_skips():
    recipe = bs.Recipe(
        "int8_channel", "int8:tensor:fp32", "int8:tensor:fp32", bias="int32",
        skip=["encoder.layer.0.attention"], rules={"encoder.layer.0.output": "int4:channel0:fp32"},
    )  # fmt: skip
    assert_equal(models.bert(), recipe)
    assert_equal(folded(models.net()), bs.Recipe("int8_channel", "int8:tensor:fp32", "int8_token"))


@pytest.mark.slow
@pytest.mark.some(6)
@pytest.mark.parametrize("observer", ["min_max", "percentile:99.9", "entropy"])
def test_observers(observer):
    recipe = bs.Recipe("int8_channel", "uint8:tensor:fp32:asym")
    assert_equal(folded(models.net()), recipe, observer=observer)


@pytest.mark.slow
@pytest.mark.parametrize("weight", ["mse", "hqq", "gptq"])
def test_weight_algorithms_while_batches_run(weight):
    assert_equal(models.bert(), bs.Recipe("int4:group16:fp32", "int8_token"), weight=weight)


@pytest.mark.slow
@pytest.mark.some(6)
@pytest.mark.parametrize("options", [{"weight": "gptq"}, {"transform": "smoothquant"},
                                     {"transform": "hadamard", "weight": "mse"}])  # fmt: skip
@pytest.mark.parametrize("made", [models.bert, pytest.param(models.gpt2, marks=pytest.mark.slow)])
def test_calibrate_of_a_prepared_graph(made, options):
    recipe = bs.Recipe("int4:group16:fp32", "int8:tensor:fp32")
    _, program, batches = made()
    prepared = bs.graph.prepare(program, recipe, **options)
    bs.calibrate(prepared, batches, progress=False)
    model, _ = by_modules(made(), recipe, **options)
    with bs.use("reference"):
        assert torch.equal(run(bs.graph.convert(prepared), batches[1]), run(model, batches[1]))


@pytest.mark.slow
def test_no_float_copy_of_a_quantized_weight_is_left():
    graph = converted(models.bert(), "int8_channel")
    state = graph.state_dict()
    assert state["encoder.layer.0.output.dense.weight.codes"].dtype == torch.int8
    assert state["encoder.layer.0.output.dense.weight.scale"].shape == (32, 1)
    assert not [n for n, t in state.items() if t.is_floating_point() and t.numel() > 512]
    targets = {str(node.target) for node in graph.graph.nodes}
    assert not [t for t in targets if "dropout" in t or "assert" in t]
    model, _ = by_modules(models.bert(), "int8_channel")
    codes = {n for n in model.state_dict() if n.endswith((".codes", ".scale"))}
    assert codes <= set(state)


@pytest.mark.slow
def test_batch_norms_are_gone():
    graph = converted(models.net(), bs.Recipe("int8_channel", "int8:tensor:fp32"))
    assert not [n for n in graph.graph.nodes if "batch_norm" in str(n.target)]
    assert not [name for name in graph.state_dict() if name.startswith(("b1", "b2"))]


@pytest.mark.slow
@pytest.mark.some(6)
@pytest.mark.parametrize("made", [models.bert, models.gpt2, models.net])
def test_what_was_given_stays_as_it_was(made):
    _, program, batches = made()
    before = {n: t.clone() for n, t in program.state_dict.items()}
    nodes = str(program.graph)
    prepared = bs.graph.prepare(program, bs.Recipe("int8_channel", "int8:tensor:fp32"))
    first = run(prepared, batches[0])
    again = str(prepared.graph)
    graph = bs.graph.convert(prepared)
    assert torch.equal(run(prepared, batches[0]), first) and str(prepared.graph) == again
    told = str(graph.graph)
    bs.graph.fuse(graph)
    assert str(graph.graph) == told
    assert str(program.graph) == nodes
    assert all(torch.equal(before[n], t) for n, t in program.state_dict.items())


@pytest.mark.slow
def test_sizes_stay_free_and_a_reloaded_program_is_equal(tmp_path):
    _, _, batches = models.bert()
    graph = converted(models.bert(), bs.Recipe("int8_channel", "mxfp8"))
    program = exported(graph)
    sizes = {str(s) for n in program.graph.find_nodes(op="placeholder")
             for s in getattr(n.meta["val"], "shape", ()) if not isinstance(s, int)}  # fmt: skip
    assert len(sizes) == 2
    bs.export.program(graph, tmp_path / "model.pt2")
    read = torch.export.load(tmp_path / "model.pt2").module()
    assert torch.equal(run(read, batches[1]), run(graph, batches[1]))
    long = {name: tensor.repeat(3, 4) for name, tensor in batches[1].items()}
    assert torch.equal(run(read, long), run(graph, long))


def test_static_scales_without_data_are_one_error():
    prepared = bs.graph.prepare(
        models.net()[1],
        bs.Recipe("int8_channel", "int8:tensor:fp32",
                  rules={"op:softmax": {"input": "int8:tensor:fp32"}}),
    )  # fmt: skip
    with pytest.raises(ValueError, match="have seen no data") as caught:
        bs.graph.convert(prepared)
    text = str(caught.value)
    for name in ("c1", "c2", "up", "c3", "c4", "fc"):
        assert f"the input of {name} in int8:tensor:fp32 (" in text and "models.py:" in text
    assert "the input of softmax" in text and "bs.calibrate(prepared, batches)" in text


def test_a_transform_needs_calibrate():
    made = models.net()
    prepared = bs.graph.prepare(made[1], "int8_channel", transform="hadamard")
    run(prepared, made[2][0])
    with pytest.raises(ValueError, match=r"call bs.calibrate\(prepared, batches\)"):
        bs.graph.convert(prepared)


def test_only_prepared_graphs_are_converted():
    with pytest.raises(TypeError, match=r"expected the result of bs\.graph\.prepare, found a Net"):
        bs.graph.convert(models.net()[0])  # type: ignore[arg-type]


def test_ops_by_rules():
    rules: dict[str, Any] = {
        "op:softmax": {"input": "int8:tensor:fp32", "output": "uint8:tensor:fp32"},
        "op:add": {"input": "int8:tensor:fp32", "shared": True},
        "op:mean@nowhere": {"input": "int8_token"},
    }
    _, program, batches = models.net()
    with pytest.warns(
        UserWarning, match=r"pattern 'op:mean@nowhere' of the recipe matches nothing"
    ):
        prepared = bs.graph.prepare(
            program, bs.Recipe("int8_channel", rules=rules), observer="min_max"
        )
    seen: dict[str, list[torch.Tensor]] = {"add": [], "softmax": []}
    for batch in batches:
        run(_watching(program, seen), batch)
        run(prepared, batch)
    graph = bs.graph.convert(prepared)
    state = graph.state_dict()
    largest = max(float(t.abs().max()) for t in seen["add"])
    # seen in another run of the program: torch's sums are not the same to the bit everywhere
    assert state["add.inputs.scale"].item() == pytest.approx(largest / 127, rel=1e-6)
    nodes = {n.name: n for n in graph.graph.nodes if str(n.target) == "aten.add.Tensor"}
    sources = list(next(iter(nodes.values())).args)
    assert [str(s.target) for s in sources] == ["blockscale.dequantize.default"] * 2
    assert sources[0].args[1] is not None
    entries = {e.name: e for e in bs.graph.ledger(graph)}
    assert entries["softmax"].formats == "input int8, output uint8:tensor:fp32"
    assert entries["add"].details == "inputs share one scale"
    assert state["softmax.output.scale"].item() <= 1 / 255 * 1.0001
    assert not torch.equal(run(graph, batches[0]), run(models.net()[0], batches[0]))


def _watching(program, seen):
    """The program as a module that keeps what its adds were given."""

    class Watch(torch.fx.Interpreter):
        def call_function(self, target, args, kwargs):
            name = str(target).split(".")[1]
            if name in seen:
                seen[name] += [a.detach() for a in args if isinstance(a, torch.Tensor)]
            return super().call_function(target, args, kwargs)

    module = program.module(check_guards=False)
    return lambda *args: Watch(module).run(*args)
