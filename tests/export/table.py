# SPDX-License-Identifier: BSD-3-Clause
"""What each named format becomes in each target: the table of docs/formats.md, each cell one run.

python -m tests.export.table        writes docs/exports.json; then `make docs`

Every file is read by its own runtime and compared with the model that was written: by
torch.export.load, onnxruntime, ExecuTorch, compressed-tensors. Missing targets are left out.
"""

import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cosine_similarity

import blockscale as bs
from blockscale.export.to_compressed_tensors.schemes import scheme
from blockscale.export.to_compressed_tensors.tensors import layer_tensors

TABLE = Path(__file__).parents[2] / "docs" / "exports.json"
X = torch.randn(4, 128, generator=torch.Generator().manual_seed(0))
PARTS = ("weight", "weight and input")


def row(name: str, part: str) -> dict[str, str]:
    """{target: what became of a linear layer in it}. Raises AssertionError where a file computes
    something else than the model."""
    recipe = bs.Recipe(name, name if part == PARTS[1] else None)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {target: _cell(CELLS[target], recipe, Path(folder)) for target in available()}


def available() -> list[str]:
    """The targets that can be written here."""
    there = {target.name for target in bs.export.targets() if target.unavailable is None}
    return [name for name in CELLS if name in there]


def _cell(run: Callable[..., str], recipe: bs.Recipe, folder: Path) -> str:
    try:
        return run(recipe, folder)
    except ValueError as error:
        return f"no: {_short(str(error))}"


def _short(text: str) -> str:
    """Why, in few words: what stands after the layer's name and the format's spelling."""
    lines = text.splitlines()
    line = lines[1].strip().partition(": ")[2] if len(lines) > 1 and ": " in lines[1] else lines[0]
    if "read the bits of floats" in text:
        return "inputs must be integers with float scales"
    if "unsigned integers of 16 bits" in text:
        return "no kernels for uint16"
    for spelled in (
        ": integers must have ",
        "unknown element of compressed-tensors; choose from",
        "scales of this element must be",
        "an ONNX file cannot quantize to ",
        "scales in ",
    ):
        line = line[line.index(spelled) :].removeprefix(": ") if spelled in line else line
    return line.partition(";")[0].strip()


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 32)).eval()


def _observer(recipe: bs.Recipe) -> str:
    assert recipe.weight is not None
    return "mean" if recipe.weight.element.name in ("binary", "ternary") else "min_max"


def _graph(recipe: bs.Recipe) -> tuple[Any, torch.Tensor]:
    prepared = bs.graph.prepare(
        torch.export.export(_model(), (X,)), recipe, observer=_observer(recipe)
    )
    bs.calibrate(prepared, [(X,)], progress=False)
    graph = bs.graph.convert(prepared)
    with torch.no_grad(), bs.use("reference"):
        return graph, graph(X)


def _audited(path: Path) -> str:
    """What computes with the weights, in the words of the audit."""
    found = bs.export.audit(path).quantized
    assert found, "nothing in the file is in codes"
    return "integers" if any("in integers" in entry.details for entry in found) else "decoded"


def _program(recipe: bs.Recipe, folder: Path) -> str:
    graph, expected = _graph(recipe)
    bs.export.program(graph, folder / "m.pt2")
    module = torch.export.load(folder / "m.pt2").module()
    with torch.no_grad(), bs.use("reference"):
        assert torch.equal(module(X), expected)
    return "equal"


def _onnx(recipe: bs.Recipe, folder: Path) -> str:
    import onnxruntime

    graph, expected = _graph(recipe)
    path = folder / "m.onnx"
    bs.export.onnx(graph, path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    [y] = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    assert cosine_similarity(torch.from_numpy(y), expected).min() > 0.999
    return _audited(path)


def _executorch(recipe: bs.Recipe, folder: Path) -> str:
    from executorch.runtime import Runtime

    graph, expected = _graph(recipe)
    path = folder / "m.pte"
    bs.export.executorch(graph, path)
    program = Runtime.get().load_program(path)
    y = program.load_method("forward").execute([X])[0]
    assert cosine_similarity(y, expected).min() > 0.999
    return _audited(path)


def _compressed_tensors(recipe: bs.Recipe, folder: Path) -> str:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    model = _model()
    bs.calibrate(model, [(X,)], recipe, _observer(recipe), progress=False)
    bs.export.compressed_tensors(model, folder / "out")
    layer: Any = model[0]
    given = layer.input
    found = scheme(layer.weight.format, given and given.format, bool(given and given.static))
    tensors, told = layer_tensors(layer, found)
    arguments = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**found.weights))
    reader = BaseCompressor.get_value_from_registry(found.layout)
    theirs = reader.decompress(tensors, arguments)["weight"]
    ours = layer.weight.dequantize().to(theirs.dtype)
    assert told or torch.equal(theirs, ours)
    torch.testing.assert_close(theirs, ours, rtol=2**-7, atol=0)
    return found.layout


CELLS: dict[str, Callable[..., str]] = {
    "program": _program,
    "onnx": _onnx,
    "executorch": _executorch,
    "compressed_tensors": _compressed_tensors,
}


def table() -> dict[str, dict[str, dict[str, str]]]:
    """{format: {"weight" or "weight and input": cells}} of the catalogue."""
    made = {}
    for name in bs.formats():
        made[name] = {part: row(name, part) for part in PARTS}
        print(name, made[name], flush=True)
    return made


if __name__ == "__main__":
    TABLE.write_text(json.dumps(table(), indent=1) + "\n")
