# SPDX-License-Identifier: BSD-3-Clause
"""A language model with its cache as inputs and outputs, for runtimes that generate with it.

Names and sizes are those of optimum's files and of onnxruntime-genai's: `past_key_values.0.key`
[batch_size, heads, past_sequence_length, features] goes in, `present.0.key` comes out, longer by
the tokens of this call. Of the first call the past has no tokens.
"""

import inspect
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.export import Dim, ExportedProgram

from blockscale.core.torch_private import size_error
from blockscale.core.untrusted import kind_of
from blockscale.export.to_onnx.write import rename_sizes
from blockscale.export.to_program import check_model, run_example
from blockscale.files.whole import written_whole

GENAI = "genai_config.json"

# By itself onnxruntime quantizes the inputs of products with integers to int8 (docs/export.md).
_EXACT = {"session.qdq_matmulnbits_accuracy_level": "0"}
_LENGTH = 2048  # of texts, where a model has no limit

_ROWS, _PAST, _TOKENS = 2, 4, 3  # of the example: sizes 0 and 1 torch.export takes as constants
_LAYERS = ("DynamicLayer", "DynamicSlidingWindowLayer")  # whose past is a key and a value a token
_GROWING = ("dynamic", "longrope")  # rotations that are others for longer texts
_PAIR = ("key", "value")
_MASK = "attention_mask"
_SIZES: Mapping[str, tuple[str, str]] = {
    "input_ids": ("batch_size", "sequence_length"),
    _MASK: ("batch_size", "total_sequence_length"),
    "position_ids": ("batch_size", "sequence_length"),
}


class Decoder(NamedTuple):
    """A model of transformers, and what its cache holds.

    shapes: of each layer's keys and values, (heads, features)
    positions: whether the positions of tokens are an input; else the model counts by the mask
    """

    model: Any
    shapes: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    positions: bool

    @property
    def inputs(self) -> list[str]:
        """The names of a file's inputs, in order."""
        own = [name for name in _SIZES if self.positions or name != "position_ids"]
        return [*own, *(f"past_key_values.{each}" for each in self._cached())]

    @property
    def outputs(self) -> list[str]:
        """The names of what it gives."""
        return ["logits", *(f"present.{each}" for each in self._cached())]

    def _cached(self) -> Iterator[str]:
        for layer in range(len(self.shapes)):
            yield from (f"{layer}.{each}" for each in _PAIR)


def decoder_of(model: Any) -> Decoder:
    """What a file of this model takes. Raises TypeError for what is no model of transformers, and
    ValueError for one whose past is no keys and values of each token."""
    if isinstance(model, fx.GraphModule | ExportedProgram) or not hasattr(model, "config"):
        raise TypeError(
            f"a cache is of a language model of transformers (AutoModelForCausalLM), float or "
            f"quantized by bs.quantize_ or bs.calibrate, found {kind_of(model)}"
        )
    check_model(model)
    name, parameters = type(model).__name__, inspect.signature(model.forward).parameters
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(
            f"{name} has an encoder, whose states are a second past: files with a cache hold "
            f"models that only decode"
        )
    if missing := [each for each in ("past_key_values", _MASK) if each not in parameters]:
        raise ValueError(f"{name} takes no {missing[0]}: leave cache out")
    _refuse_rotation(name, model.config.get_text_config(decoder=True))
    return Decoder(model, _shapes(name, model), "position_ids" in parameters)


def _refuse_rotation(name: str, config: Any) -> None:
    settings = (
        getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    )
    nested = [each for each in settings.values() if isinstance(each, Mapping)]
    kinds = {each.get("rope_type", each.get("type")) for each in (settings, *nested)}
    if growing := sorted(kinds & set(_GROWING)):
        raise ValueError(
            f"{name} rotates keys by rope_type {growing[0]!r}, which changes once a text is long, "
            f"so that cached keys no longer fit: set rope_type to 'default', 'linear', 'yarn' or "
            f"'llama3', or leave cache out"
        )


def _shapes(name: str, model: Any) -> tuple[Any, ...]:
    """(heads, features) of each layer's keys and values, as the model's own cache has them."""
    ids = torch.zeros((_ROWS, _TOKENS), dtype=torch.int64, device=model.device)
    outputs: Any = run_example(model, (), {"input_ids": ids, "use_cache": True})
    layers = getattr(getattr(outputs, "past_key_values", None), "layers", None)
    if layers is None or "logits" not in outputs:
        missing = "no logits" if layers is not None else "no cache of keys and values"
        raise ValueError(
            f"{name} gives {missing}: files with a cache hold models of AutoModelForCausalLM whose "
            f"past is keys and values"
        )
    shapes = []
    for i, layer in enumerate(layers):
        if type(layer).__name__ not in _LAYERS:
            raise ValueError(
                f"{name}: layer {i} has a cache of the class {type(layer).__name__}, which does "
                f"not keep a key and a value of each token: a file can hold {' and '.join(_LAYERS)}"
            )
        shapes.append(tuple((x.shape[1], x.shape[3]) for x in (layer.keys, layer.values)))
    return tuple(shapes)


def decoder_program(decoder: Decoder, fixed: tuple[int, int, int] | None = None) -> ExportedProgram:
    """torch.export's program of a model with its cache; rows, tokens and past of any number, or as
    many as `fixed` says.

    Raises ValueError where the model is another one for other sizes.
    """
    example, free = _example(decoder, decoder.model.device, fixed or (_ROWS, _TOKENS, _PAST))
    sizes = None if fixed else free
    with torch.no_grad(), _called_with_tensors(decoder):
        run_example(decoder.model, (), example)
        try:
            return torch.export.export(decoder.model, (), example, dynamic_shapes=sizes)
        except size_error() as error:
            name, lines = type(decoder.model).__name__, str(error).strip().splitlines()
            raise ValueError(
                f"{name} with a cache is not one program for all sizes, as a file has to be: "
                f"{' '.join(lines[:2])}"
            ) from error


def _example(
    decoder: Decoder, device: torch.device, counts: tuple[int, int, int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of a call of so many rows and tokens with so long a past, and their free sizes."""
    rows, past, tokens = Dim("batch_size"), Dim("past_sequence_length"), Dim("sequence_length")
    batch, new, before = counts
    ids = torch.zeros((batch, new), dtype=torch.int64, device=device)
    positions = torch.arange(before, before + new, device=device).repeat(batch, 1)
    dtype = decoder.model.dtype
    pairs = [
        tuple(torch.zeros((batch, heads, before, size), dtype=dtype, device=device)
              for heads, size in shapes)
        for shapes in decoder.shapes
    ]  # fmt: skip
    example: dict[str, Any] = {
        "input_ids": ids, _MASK: ids.new_ones((batch, before + new)),
        "position_ids": positions, "past_key_values": pairs,
    }  # fmt: skip
    sizes: dict[str, Any] = {
        "input_ids": {0: rows, 1: tokens}, _MASK: {0: rows, 1: Dim.DYNAMIC},
        "position_ids": {0: rows, 1: tokens},
        "past_key_values": [({0: rows, 2: past}, {0: rows, 2: past}) for _ in pairs],
    }  # fmt: skip
    if not decoder.positions:
        del example["position_ids"], sizes["position_ids"]
    return example, sizes


@contextmanager
def _called_with_tensors(decoder: Decoder) -> Iterator[None]:
    """The model takes and gives tensors in here, its names as they are: layers stay its own."""
    from transformers import DynamicCache

    model, forward = decoder.model, decoder.model.forward
    own = model.__dict__.get("forward")

    def call(past_key_values: Sequence[tuple[Tensor, Tensor]], **inputs: Tensor) -> Any:
        cache = DynamicCache()  # whole, where layers see a window: the mask says what they see
        for i, (keys, values) in enumerate(past_key_values):
            cache.update(keys, values, i)
        result = forward(**inputs, past_key_values=cache, use_cache=True, return_dict=True)
        pairs = [(layer.keys, layer.values) for layer in result["past_key_values"].layers]
        cached = (each for pair in pairs for each in pair)
        return dict(zip(decoder.outputs, (result["logits"], *cached), strict=True))

    def with_positions(
        input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor,
        past_key_values: Sequence[tuple[Tensor, Tensor]],
    ) -> Any:  # fmt: skip
        return call(
            past_key_values, input_ids=input_ids, attention_mask=attention_mask,
            position_ids=position_ids,
        )  # fmt: skip

    def without(
        input_ids: Tensor, attention_mask: Tensor,
        past_key_values: Sequence[tuple[Tensor, Tensor]],
    ) -> Any:  # fmt: skip
        return call(past_key_values, input_ids=input_ids, attention_mask=attention_mask)

    model.forward = with_positions if decoder.positions else without
    try:
        yield
    finally:
        if own is None:
            del model.forward
        else:
            model.forward = own


def name_inputs(graph: Any, decoder: Decoder, *, fixed: bool = False) -> None:
    """Inputs and sizes of a file's graph (GraphProto) under the names that programs look for.

    fixed: whether sizes are numbers; free ones that are not free are an error.
    """
    names = {each.name: new for each, new in zip(graph.input, decoder.inputs, strict=True)}
    symbols: dict[str, str] = {}
    for each in graph.input:
        each.name = names[each.name]
        size_names = _SIZES.get(each.name, ("batch_size", "", "past_sequence_length", ""))
        for dim, name in zip(each.type.tensor_type.shape.dim, size_names, strict=True):
            if name and not dim.dim_param and not fixed:
                raise ValueError(
                    f"{type(decoder.model).__name__} with a cache is a program for one {name} "
                    f"({dim.dim_value} in {each.name}): pass sizes= to write a file of fixed sizes"
                )
            symbols |= {dim.dim_param: name} if name and dim.dim_param not in symbols else {}
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = names.get(name, name)
    rename_sizes(graph, symbols)


def genai_config(decoder: Decoder, file: str) -> dict[str, Any]:
    """What onnxruntime-genai (0.18) reads beside a file: its names and sizes, and how to choose
    tokens. https://onnxruntime.ai/docs/genai/reference/config.html
    """
    config = decoder.model.config.get_text_config(decoder=True)
    (heads, size), _ = decoder.shapes[0]
    inputs = {name: name for name in decoder.inputs if name in _SIZES}
    inputs |= {f"past_{each}_names": f"past_key_values.%d.{each}" for each in _PAIR}
    outputs = {f"present_{each}_names": f"present.%d.{each}" for each in _PAIR}
    length = getattr(config, "max_position_embeddings", None) or _LENGTH
    section: dict[str, Any] = {
        "type": "decoder", "vocab_size": config.vocab_size,
        "context_length": length, **end_tokens(decoder.model),
    }  # fmt: skip
    section["decoder"] = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": [], **_EXACT},
        "filename": file, "hidden_size": config.hidden_size, "head_size": size,
        "num_attention_heads": config.num_attention_heads, "num_key_value_heads": heads,
        "num_hidden_layers": len(decoder.shapes), "inputs": inputs,
        "outputs": {"logits": "logits", **outputs},
    }  # fmt: skip
    search = {"do_sample": False, "max_length": length, "past_present_share_buffer": False}
    return {"model": section, "search": search}


def end_tokens(model: Any) -> dict[str, Any]:
    """The tokens that begin, end and fill a text; what fills it is masked, and any will do."""
    own, config = getattr(model, "generation_config", None), model.config
    tokens: dict[str, Any] = {}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(own, name, None)
        tokens[name] = getattr(config, name, None) if value is None else value
    ends = tokens["eos_token_id"]
    first = ends[0] if isinstance(ends, list) and ends else ends
    tokens["pad_token_id"] = first if tokens["pad_token_id"] is None else tokens["pad_token_id"]
    return {name: value for name, value in tokens.items() if value is not None}


def write_config(decoder: Decoder, path: Path) -> None:
    """Write onnxruntime-genai's config beside the file `path`, whole or not at all."""
    with written_whole(path.with_name(GENAI)) as temporary:
        temporary.write_text(json.dumps(genai_config(decoder, path.name), indent=2) + "\n")


def drop_config(path: Path) -> None:
    """Delete onnxruntime-genai's config beside the file `path` if it is of the file that was there
    before, which it describes and this one is not; says so. One of another file stays."""
    place = path.with_name(GENAI)
    try:
        of = json.loads(place.read_text())["model"]["decoder"]["filename"]
    except (OSError, ValueError, LookupError, TypeError):
        return
    if of == path.name:
        place.unlink()
        warnings.warn(
            f"blockscale: {GENAI} was of the file that {path.name} replaces, and is deleted: "
            "onnxruntime-genai does not run this one",
            stacklevel=3,
        )
