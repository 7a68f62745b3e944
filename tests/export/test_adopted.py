# SPDX-License-Identifier: BSD-3-Clause
"""Files of what torch.ao and torchao quantized: codes for weights, and the producer's values."""

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.graph.adoption.program import as_ours
from tests.export.to_onnx.running import session
from tests.support import adopt_producers as producers

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
X = producers.example()
FORMS = {
    "pt2e": lambda: producers.pt2e(producers.Small(), X),
    "pt2e program": lambda: producers.program(producers.pt2e(producers.Small(), X), X),
    "fx": lambda: producers.quantize_fx(producers.Small(), X),
    "fx program": lambda: producers.program(producers.quantize_fx(producers.Small(), X), X),
}


def expected(form: str, made: object) -> torch.Tensor:
    """What the producer's own graph gives."""
    graph = producers.program(made, X).module() if form == "fx" else made
    graph = graph.module() if isinstance(graph, torch.export.ExportedProgram) else graph
    with torch.no_grad():
        return graph(*X)


def weights(path) -> dict[str, str]:
    """{layer: dtype in the file} of what the audit calls quantized."""
    found = bs.export.audit(str(path))
    return {entry.name.partition(".")[0]: entry.reason for entry in found.quantized}


@pytest.mark.slow
@pytest.mark.some(6)  # pt2e, fx program
@pytest.mark.parametrize("form", FORMS)
def test_onnx(form, tmp_path):
    made = FORMS[form]()
    bs.export.onnx(made, tmp_path / "m.onnx", X)
    assert set(weights(tmp_path / "m.onnx")) == {"one", "two", "last"}
    run = session(str(tmp_path / "m.onnx"))
    y = run.run(None, {run.get_inputs()[0].name: X[0].numpy()})[0]
    np.testing.assert_allclose(y, expected(form, made).numpy(), rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_program(form, tmp_path):
    made = FORMS[form]()
    bs.export.program(made, tmp_path / "m.pt2", X)
    loaded = torch.export.load(tmp_path / "m.pt2")
    kinds = {name: t.dtype for name, t in loaded.state_dict.items() if t.ndim > 1 and len(t) > 1}
    codes = {dtype for name, dtype in kinds.items() if name.endswith("weight.codes")}
    assert codes == {torch.int8} and not any(name.endswith("weight") for name in kinds)
    with torch.no_grad():
        assert torch.equal(loaded.module()(*X), expected(form, made))


@pytest.mark.slow  # executorch's own lowering takes seconds
@pytest.mark.parametrize("form", ["pt2e", "fx program"])
def test_executorch(form, tmp_path):
    pytest.importorskip("executorch")
    made = FORMS[form]()
    bs.export.executorch(made, tmp_path / "m.pte", X)
    content = (tmp_path / "m.pte").read_bytes()
    program = producers.program(made, X) if form == "pt2e" else made
    last = next(t for n, t in as_ours(program).state_dict().items() if n == "last.weight.codes")
    assert last.numpy().tobytes() in content
    assert producers.Small().last.weight.detach().numpy().tobytes() not in content


@pytest.mark.parametrize("write", [bs.export.onnx, bs.export.program])
def test_what_was_exported_in_training_mode_is_refused(write, tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    program = torch.export.export(model.train(), (torch.randn(2, 4),))
    for made in (program, program.module()):
        with pytest.raises(ValueError, match=r"dropout of 1 .*training mode.*model.eval\(\)"):
            write(made, tmp_path / "m")
    assert not any(tmp_path.iterdir())


def test_a_graph_of_quantize_fx_needs_an_example(tmp_path):
    graph = producers.quantize_fx(producers.Small(), X)
    with pytest.raises(ValueError, match="quantize_fx needs an example"):
        bs.export.onnx(graph, tmp_path / "m.onnx")
    with pytest.raises(TypeError, match="a tuple of arguments as example, found a dict"):
        bs.export.onnx(graph, tmp_path / "m.onnx", {"x": X[0]})
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("kind", producers.MADE)
def test_powers_of_two_stay(kind, tmp_path):
    """The producer's values to the bit: in QuantizeLinear, and in integers alone."""
    graph = producers.MADE[kind](producers.exact(), X, power_of_2=True)
    program = producers.program(graph, X)
    with torch.no_grad():
        expected = program.module()(*X)
    bs.export.onnx(graph, tmp_path / "m.onnx", X)
    ops = [node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node]
    assert "QuantizeLinear" in ops and not [op for op in ops if op.startswith("quantize_")]
    run = session(str(tmp_path / "m.onnx"))
    y = run.run(None, {run.get_inputs()[0].name: X[0].numpy()})[0]
    np.testing.assert_array_equal(y, expected.numpy())
    lowered = bs.graph.lower(program, "integer")
    assert torch.equal(lowered(*X), expected)
    bs.export.c(program, tmp_path / "m.c")
    scales = [t for n, t in as_ours(program).state_dict().items() if n.endswith("scale")]
    assert scales and all(torch.equal(bs.round_to_power_of_2(t), t) for t in scales)
