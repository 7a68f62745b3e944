# SPDX-License-Identifier: BSD-3-Clause
"""ExecuTorch: a file for phones and other devices, run by XNNPACK and portable kernels."""

import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.export.to_executorch.core_ops import LeftError, lowered
from blockscale.export.to_executorch.integers import product, products, to_integers
from blockscale.export.to_executorch.plain import write_out
from blockscale.export.to_onnx.decoder import Decoder, decoder_of, end_tokens
from blockscale.export.to_program import Example, program_of
from blockscale.files.whole import check_new, check_place, written_whole
from blockscale.graph.adoption.program import as_ours
from blockscale.graph.constants import get
from blockscale.graph.expand import expand
from blockscale.graph.nodes import dequantize_of, describe, quantize_of
from blockscale.graph.pickled import State
from blockscale.graph.program import import_graph


def executorch(  # noqa: PLR0913 - the first three are the call, the rest are options
    graph: nn.Module | ExportedProgram,
    path: str | Path,
    example: Example | None = None,
    *,
    dynamic_batch: bool = False,
    cache: int | None = None,
    tokens: int | None = None,
    overwrite: bool = False,
) -> None:
    """Write ExecuTorch's file (.pte) of a quantized model, a converted graph or a program.

    graph, example, dynamic_batch: as of bs.export.program; graphs are those of bs.graph.convert
    path: the file to write, usually .pte; overwrite: replace a file that is there
    cache: of a language model of transformers, which then needs no example: how many tokens' keys
        and values the program itself keeps between calls. A call takes `input_ids` [1, n] and their
        places `cache_position` [n], both int64, as ExecuTorch's runners pass them (docs/export.md)
    tokens: with a cache, the most of a call; by default 128, or all that the cache holds

    Linear layers and convolutions run in integers where XNNPACK can: int8 per channel weights with
    8-bit inputs and outputs whose scales are given, and linear layers with int8 per channel or int4
    weights and 8-bit inputs per token, whose scales XNNPACK chooses itself. All other weights stay
    packed in the file and are decoded when it runs, by torch's core ops. Inputs that run so are
    integers under float scales.

    Raises ValueError, before anything is written, for a fused or lowered graph, a format that
    cannot run, an example that does not fit, a model whose past is no keys and values, or if the
    place is a directory; FileExistsError if a file is there; ImportError without executorch. Warns
    of int4 scales that XNNPACK rounds.
    """
    path = check_place(path, "model.pte")
    check_new(path, overwrite)
    if reason := unavailable():
        raise ImportError(reason)
    _check_stage(graph)
    step = _cached_step(graph, example, cache, tokens)
    program = program_of(graph, example, dynamic_batch) if step is None else step.program()
    content = _content(program, {} if step is None else step.methods())
    with written_whole(path) as temporary:
        temporary.write_bytes(content)


def _content(program: ExportedProgram, methods: Mapping[str, Any]) -> bytes:
    """The file of a program and what `methods` give. Raises ValueError for what has no kernels."""
    source = as_ours(program)
    expand(source)
    _check_inputs(source)
    _check_weights(source)
    return _file_bytes(source, methods)


def _check_stage(graph: Any) -> None:
    """Raise ValueError for graphs whose quantize and dequantize nodes are gone."""
    facts = graph.meta.get("blockscale") if isinstance(graph, fx.GraphModule) else None
    stage = facts.stage if isinstance(facts, State) else ""
    nodes = getattr(getattr(graph, "graph", None), "nodes", ())
    fused = any(str(node.target).startswith("blockscale.fused_") for node in nodes)
    if fused or stage in ("fused", "lowered"):
        raise ValueError(
            f"a {stage or 'fused'} graph has no quantize and dequantize nodes any more: pass "
            "the result of bs.graph.convert, before bs.graph.fuse and bs.graph.lower"
        )


def _check_inputs(graph: fx.GraphModule) -> None:
    """Raise ValueError that names each format of inputs that takes bits of floats to compute."""
    examples: dict[str, str] = {}
    for node in graph.graph.nodes:
        result = quantize_of(node)
        if result is not None and not runs(result.by.format):
            examples.setdefault(str(result.by.format), describe(node))
    if examples:
        text = "".join(f"\n  {fmt}, for instance {where}" for fmt, where in examples.items())
        raise ValueError(
            "ExecuTorch has no kernels for these formats of inputs and outputs, which would "
            f"read the bits of floats:{text}\nUse integers with float scales for them "
            "(int8_token, uint8), or leave them in float; weights may have any format."
        )


def _check_weights(graph: fx.GraphModule) -> None:
    """Raise ValueError that names each format of weights whose dtype has no kernels."""
    for node in graph.graph.nodes:
        fmt = node.kwargs.get("fmt") or next((a for a in node.args if isinstance(a, str)), "")
        is_ours = str(node.target).startswith("blockscale.") and fmt
        if is_ours and parse(fmt).bits > 8 and not parse(fmt).element.signed:
            raise ValueError(
                f"{describe(node)}: ExecuTorch's kernels do not support unsigned integers of "
                f"16 bits, in which {fmt} is stored: use int16"
            )


def runs(fmt: Format) -> bool:
    """Whether values can be quantized to this format when the file runs."""
    floats = isinstance(fmt.scale, FloatScale) or (
        isinstance(fmt.scale, PowerOfTwo) and not fmt.scale.byte and fmt.block.static
    )
    return fmt.element.integer and floats and fmt.rounding != "stochastic"


def _file_bytes(source: fx.GraphModule, methods: Mapping[str, Any]) -> bytes:
    """The file's bytes, with XNNPACK's integers where it takes them, and what `methods` give."""
    graph = import_graph(source)
    rounded = _rounded(graph)
    if to_integers(graph):
        try:
            write_out(graph)
            content = lowered(graph, methods)
        except LeftError as error:
            warnings.warn(
                f"blockscale: {error}: everything is computed in float, from packed weights",
                stacklevel=4,
            )
        else:
            if rounded:
                warnings.warn(
                    f"blockscale: XNNPACK rounds the int4 scales of {rounded[0]}"
                    f"{f' and {len(rounded) - 1} more' * (len(rounded) > 1)} to bfloat16: formats "
                    f"with bf16 scales lose nothing",
                    stacklevel=4,
                )
            return content
    write_out(source)
    return lowered(source, methods)


def _rounded(graph: fx.GraphModule) -> list[str]:
    """The weights in groups of int4 whose scales are no bfloat16 numbers."""
    names = []
    for node in products(graph):
        result = product(node)
        source = None if result is None else dequantize_of(result.weight)
        if source is None:
            continue
        codes: Any = source.operand.codes
        scale = get(graph, source.operand.scale)  # type: ignore[arg-type]
        if scale.shape[-1] > 1 and not torch.equal(scale.float(), scale.bfloat16().float()):
            names.append(str(codes.target).removesuffix(".codes"))
    return names


def unavailable() -> str | None:
    """Why it cannot be written here: a missing package."""
    if find_spec("executorch") is None:
        return "executorch is not installed: pip install 'blockscale[executorch]'"
    return None


# A decoder whose keys and values are the program's own: buffers that each call writes into.

_TOKENS = 128  # of a call, where none are said
_EXAMPLE = 3  # tokens of the example: sizes 0 and 1 torch.export takes as constants


class CachedStep(nn.Module):
    """A call of a decoder as ExecuTorch's runners make it; keys and values are its buffers.

    decoder: the model and the shapes of its cache
    size, tokens: how many tokens the cache holds, and the most of a call

    The layers are those of transformers' StaticCache. Layers that see a window keep all tokens,
    too: the mask says what they see.
    """

    def __init__(self, decoder: Decoder, size: int, tokens: int):
        from transformers.cache_utils import Cache, StaticLayer

        super().__init__()
        self.model, self._size, self._tokens = decoder.model, size, tokens
        self._layers: list[Any] = [StaticLayer(size) for _ in decoder.shapes]
        self._cache = Cache(layers=self._layers)
        for i, (layer, shapes) in enumerate(zip(self._layers, decoder.shapes, strict=True)):
            states = [
                torch.zeros((1, heads, 0, features), dtype=self.model.dtype)
                for heads, features in shapes
            ]
            layer.lazy_initialization(*states)
            self.register_buffer(f"key_cache_{i}", layer.keys, persistent=False)
            self.register_buffer(f"value_cache_{i}", layer.values, persistent=False)

    def forward(self, input_ids: Tensor, cache_position: Tensor) -> Tensor:
        """input_ids [1, n] at the places cache_position [n], one after another -> logits
        [1, n, vocabulary]."""
        for i, layer in enumerate(self._layers):  # what torch.export put in their place
            layer.keys, layer.values = (getattr(self, f"{k}_cache_{i}") for k in ("key", "value"))
            layer.cumulative_length = cache_position[0].clone()  # the layer counts on in it
        result = self.model(
            input_ids=input_ids, position_ids=cache_position[None], past_key_values=self._cache,
            use_cache=True, return_dict=True,
        )  # fmt: skip
        logits: Tensor = result["logits"]
        return logits

    def program(self) -> ExportedProgram:
        """torch.export's program of a call, of any number of tokens up to the most."""
        count = min(_EXAMPLE, self._tokens)
        ids = torch.zeros((1, count), dtype=torch.int64)
        some = Dim("tokens", max=self._tokens) if self._tokens > 1 else None
        sizes = None if some is None else ({1: some}, {0: some})
        with torch.no_grad():
            example = (ids, torch.arange(count))
            return torch.export.export(self.eval(), example, dynamic_shapes=sizes)

    def methods(self) -> dict[str, Any]:
        """What a file says of itself by methods without arguments, under the names that
        ExecuTorch's runners read (extension/llm/runner/constants.h)."""
        config = self.model.config.get_text_config(decoder=True)
        ends = end_tokens(self.model)
        last = ends.get("eos_token_id")
        methods = {
            "get_max_seq_len": self._tokens, "get_max_context_len": self._size,
            "get_vocab_size": config.vocab_size, "use_kv_cache": True,
            "use_sdpa_with_kv_cache": False, "enable_dynamic_shape": self._tokens > 1,
            "get_bos_id": ends.get("bos_token_id"),
            "get_eos_ids": last if isinstance(last, list) or last is None else [last],
        }  # fmt: skip
        return {name: value for name, value in methods.items() if value is not None}


def _cached_step(
    model: Any, example: Example | None, cache: int | None, tokens: int | None
) -> CachedStep | None:
    """What is written of a model with its cache, if it is. Raises TypeError and ValueError for
    what has no cache of its own, or not of this size."""
    if cache is None:
        if tokens is not None:
            raise ValueError("tokens are those of a decoder's call: pass cache=, too")
        return None
    if example is not None:
        raise ValueError("a decoder with its cache has an example of its own: leave example out")
    most = min(_TOKENS, cache) if tokens is None else tokens
    if type(cache) is not int or type(most) is not int or not 1 <= most <= cache or cache < 2:
        raise ValueError(
            f"cache and tokens must be whole numbers, 2 or more tokens in the cache and 1 to that "
            f"many a call, got cache={cache!r}, tokens={tokens!r}"
        )
    decoder = decoder_of(model)
    _check_decoder(decoder, cache)
    return CachedStep(decoder, cache, most)


def _check_decoder(decoder: Decoder, cache: int) -> None:
    """Raise ValueError for a model that cannot be told where its tokens stand, or not so far."""
    model, name = decoder.model, type(decoder.model).__name__
    if not decoder.positions:
        raise ValueError(
            f"{name} takes no position_ids and counts tokens by a mask, which ExecuTorch's runners "
            f"do not pass: leave cache out"
        )
    longest = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if longest is not None and cache > longest:
        raise ValueError(
            f"cache={cache}: {name} has positions for {longest} tokens: pass at most that many"
        )
    if model.dtype != torch.float32:
        raise ValueError(
            f"{name} computes in {str(model.dtype).removeprefix('torch.')}, for which ExecuTorch's "
            f"kernels on CPUs are not made: call model.float() first; codes stay as they are"
        )
