# SPDX-License-Identifier: BSD-3-Clause
"""MiniLM as a program: each step of the graph flow, with what it takes and what it leaves."""

import copy
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from blockscale.calibration.calibrate import calibrate
from blockscale.core.recipe import Recipe
from blockscale.graph.conversion import convert
from blockscale.graph.fusion import fuse
from blockscale.graph.lowering import lower
from blockscale.graph.lowering.lowering import targets
from blockscale.graph.preparation import Prepared, prepare
from blockscale.layers.apply import quantize_

RECIPES: dict[str, tuple[Recipe, Recipe]] = {  # name: of the graph, of the modules beside it
    "int8": (
        Recipe("int8_channel", "uint8:tensor:fp32:asym", skip=["pooler"]),
        Recipe("int8_channel", "int8_token", skip=["pooler"]),
    ),
    "mxfp8": (
        Recipe("mxfp8", "mxfp8", skip=["pooler"]),
        Recipe("mxfp8", "mxfp8", skip=["pooler"]),
    ),
}
ROWS, TOKENS = 16, 64
_RUNS = 3


@dataclass(frozen=True)
class FlowStep:
    """One line: a step's seconds, the bytes of the program's tensors after it, the smallest cosine
    of the sentence embeddings to float's, and its time over that of quantized modules; None where a
    step leaves no such thing, or as much as the one before (the bytes of what is fused)."""

    recipe: str
    name: str
    seconds: float
    program_bytes: int | None = None
    cosine: float | None = None
    to_modules: float | None = None


def steps(
    model: nn.Module,
    tokens: Mapping[str, Tensor],
    recipes: Iterable[str] = RECIPES,
    converted: dict[Recipe, fx.GraphModule] | None = None,
) -> Iterator[FlowStep]:
    """The flow on an encoder of transformers, step by step, for each recipe.

    tokens: input_ids and what goes with them, [sentences, length]; batch and length stay free
    recipes: names in RECIPES
    converted: is given each recipe's graph, for the files of export targets (`exports.files`)
    """
    program, seconds = _time(lambda: program_of(model, tokens))
    yield FlowStep("", "export", seconds)
    with torch.no_grad():
        expected = embedded(model(**tokens), tokens)
    for name in recipes:
        recipe, of_modules = RECIPES[name]
        flow = _Flow(name, tokens, expected)
        prepared, seconds = _time(lambda: calibrated(program, recipe, tokens))  # noqa: B023
        yield FlowStep(name, "prepare, calibrate", seconds)
        graph, seconds = _time(lambda: convert(prepared))  # noqa: B023
        if converted is not None:
            converted[recipe] = graph
        yield flow.measured("convert", seconds, graph, sized=True)
        yield from flow.lowered(graph, _modules(model, of_modules))


@dataclass(frozen=True)
class _Flow:
    """A recipe's steps after its graph is converted. expected: sentence embeddings of float."""

    name: str
    tokens: Mapping[str, Tensor]
    expected: Tensor

    def lowered(self, graph: fx.GraphModule, modules: nn.Module) -> Iterator[FlowStep]:
        """Fused, then lowered to kernels and timed beside modules."""
        fused, seconds = _time(lambda: fuse(graph))
        yield self.measured("fuse", seconds, fused)
        target = "cpu" if targets()["cpu"] is None else "reference"
        low, seconds = _time(lambda: lower(fused, target))
        step = self.measured(f"lower to {target}", seconds, low, sized=True)
        yield replace(step, to_modules=_ratio(low, modules))

    def measured(
        self, step: str, seconds: float, graph: fx.GraphModule, sized: bool = False
    ) -> FlowStep:
        """The line of a step: its result's embeddings, and its size where that is asked for."""
        tensors = {t.data_ptr(): t for t in graph.state_dict().values()}
        size = sum(t.nbytes for t in tensors.values()) if sized else None
        with torch.no_grad():
            vectors = embedded(graph(**self.tokens), self.tokens)
        cosine = float((vectors * self.expected).sum(-1).min())
        return FlowStep(self.name, step, seconds, size, cosine)


def calibrated(program: Any, recipe: Recipe, tokens: Mapping[str, Tensor]) -> Prepared:
    """A program, prepared with a recipe and calibrated with the tokens of one batch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the pattern of a dead layer
        prepared = prepare(program, recipe, observer="min_max")
    calibrate(prepared, [dict(tokens)], progress=False)
    return prepared


def program_of(
    model: nn.Module, tokens: Mapping[str, Tensor], rows: int | None = None, length: int = 512
) -> ExportedProgram:
    """torch.export's program of an encoder, for at most `rows` sentences of `length` tokens."""
    free = {0: Dim("rows", max=rows), 1: Dim("tokens", min=2, max=length)}
    sizes = dict.fromkeys(tokens, free)
    return torch.export.export(model, (), dict(tokens), dynamic_shapes=sizes)


def _modules(model: nn.Module, recipe: Recipe) -> nn.Module:
    quantized = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        quantize_(quantized, recipe)
    return quantized


def embedded(output: Any, tokens: Mapping[str, Tensor]) -> Tensor:
    """Sentence embeddings of length 1, by mean pooling of what an encoder gives first."""
    states = next(iter(output.values())) if isinstance(output, Mapping) else output[0]
    mask = tokens["attention_mask"][..., None].to(states.dtype)
    return F.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def _ratio(graph: fx.GraphModule, modules: nn.Module) -> float:
    """The graph's time over the modules', of 32 rows of 64 tokens, taking turns."""
    ids = torch.arange(ROWS * TOKENS).reshape(ROWS, TOKENS) % 20_000 + 1_000
    names = [node.name for node in graph.graph.find_nodes(op="placeholder")]
    batch = {
        name: ids if "ids" in name and "type" not in name else
        (torch.ones_like(ids) if "mask" in name else torch.zeros_like(ids))
        for name in names
    }  # fmt: skip
    times: dict[nn.Module, list[float]] = {graph: [], modules: []}
    with torch.no_grad():
        for _ in range(_RUNS):
            for each, seconds in times.items():
                seconds.append(_time(lambda each=each: each(**batch))[1])  # type: ignore[misc]
    return min(times[graph]) / min(times[modules])


def _time(run: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    return run(), time.perf_counter() - started
