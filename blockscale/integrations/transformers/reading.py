# SPDX-License-Identifier: BSD-3-Clause
"""Read what a blockscale file holds through transformers' own loader.

The loader renames tensors, moves them to their devices and puts them into parameters. Codes and
scales are no parameters: they are collected here under the weight's name, for which the model gets
a stand-in. When everything is read and tied, quantized layers take the stand-ins' places, as in
`bs.load`.
"""

import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig
from transformers.core_model_loading import ConversionOps, WeightConverter, WeightTransform

from blockscale.core.pack import stored_shape
from blockscale.core.parse import parse
from blockscale.export.checkpoints.gguf import reading as gguf
from blockscale.export.checkpoints.loading import load
from blockscale.files.header import tensor_of
from blockscale.files.load import fill
from blockscale.files.match import match_quantized, shared_names
from blockscale.files.metadata import PARTS, QUANTIZERS, FileError, Metadata, TensorInfo
from blockscale.files.stored_model import read_headers
from blockscale.integrations.stand_in import TieMarks, stand_in, standing_in
from blockscale.integrations.transformers.gguf_config import config_of_gguf, refusing
from blockscale.integrations.transformers.placement import Fuse, only
from blockscale.integrations.transformers.saving import Arriving, Renames
from blockscale.layers.computed import folded, folded_for
from blockscale.parallel.plan import Stored

# Models of transformers from what other producers wrote, with the files' own codes.
#
# `from_pretrained` chooses a quantizer by the `quant_method` of config.json, so that what is not
# ours or float goes to its producer's package; and it dequantizes GGUF files. Here all of them keep
# their codes.

_QUANTIZATION = ("quantization_config", "quantization", "compression_config")
_GENERATION = "generation_config.json"


def from_checkpoint(
    path: str | Path,
    auto_class: Any = AutoModelForCausalLM,
    *,
    config: PreTrainedConfig | str | Path | None = None,
    dtype: torch.dtype | None = None,
) -> Any:
    """A model of transformers whose layers hold a checkpoint's codes, on the CPU, in eval mode.

    path: what `bs.load` takes: a directory or file of GPTQ, AWQ, bitsandbytes, compressed-tensors,
        MLX and others (docs/checkpoints.md), of ours or in float, or a GGUF file of one of the
        architectures that docs/checkpoints.md lists
    auto_class: what makes the model of its config: an Auto class, or a model's class
    config: the model's config or a directory that has it; None for the config.json beside the
        weights, and for what the metadata of a GGUF file say
    dtype: of floats that remain, and in which layers compute; None for the config's, else float32

    Parameters are on "meta" until they are read: no float copy of a quantized weight is made. What
    a config says of quantization is taken out, since the files say it. No code of a checkpoint is
    run, nothing is downloaded, and tokenizers are not read. `save_pretrained` writes a directory of
    ours.

    Raises FileError for a path that is missing, of no model that transformers has, damaged, or
    that holds what cannot be read or is no part of the model. A model is never half loaded.
    """
    path = Path(path)
    if not path.exists():
        raise FileError(
            f"{path} does not exist: for a name on the hub, download the files first "
            "(huggingface_hub.snapshot_download) and pass their directory"
        )
    model_config = _config(path, config)
    model = _build(path, model_config, auto_class, dtype)
    load(model, path)
    folder = path if path.is_dir() else path.parent
    if (folder / _GENERATION).is_file() and model.can_generate():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model.eval()


def _config(path: Path, config: PreTrainedConfig | str | Path | None) -> PreTrainedConfig:
    """The config of the model, without how its weights are quantized."""
    if isinstance(config, PreTrainedConfig):
        return _floats(type(config).from_dict(config.to_dict()))
    evidence = gguf.recognize(path)
    if config is None and evidence is not None:
        with gguf.GGUF(path, evidence) as checkpoint:
            return config_of_gguf(checkpoint)
    folder = Path(config) if config is not None else path if path.is_dir() else path.parent
    if not (folder / "config.json").is_file():
        raise FileError(
            f"{folder} has no config.json, which describes the model: pass the directory of "
            "the original model's config.json (config=); pass a GGUF file itself, not its "
            "directory"
        )
    with refusing(f"{folder}/config.json: transformers"):
        return _floats(
            AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        )


def _floats(config: PreTrainedConfig) -> PreTrainedConfig:
    for part in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        for name in _QUANTIZATION:
            if name in getattr(part, "__dict__", {}):
                delattr(part, name)
    return config


def _build(path: Path, config: PreTrainedConfig, auto_class: Any, dtype: torch.dtype | None) -> Any:
    """The float model, its parameters on "meta"; raises FileError where there is none."""
    own_dtype: Any = dtype or config.dtype or torch.float32
    auto = hasattr(auto_class, "from_config")
    options: Any = {"dtype": own_dtype} | ({"trust_remote_code": False} if auto else {})
    make = auto_class.from_config if auto else auto_class._from_config
    what = getattr(auto_class, "__name__", str(auto_class))
    with refusing(f"{path}: {what} cannot build a model from its config"), _parameters_on_meta():
        return make(config, **options)


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Parameters of modules that are made inside have no data. Buffers, such as frequencies of
    positions, which no file has, are computed."""
    ours = threading.get_ident()

    def on_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> Any:
        del module, name
        if threading.get_ident() != ours or param is None or param.device.type == "meta":
            return None  # it stays as it is
        return nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)

    hook = register_module_parameter_registration_hook(on_meta)
    try:
        yield
    finally:
        hook.remove()


class CheckpointReading:
    """A model that is being read from files of ours.

    Raises FileError, before anything is read, for files that are not whole or not of this model.
    """

    def __init__(self, model: nn.Module, files: Sequence[str] | None):
        paths = [Path(file) for file in files or ()]
        path = paths[0] if len(paths) == 1 else paths[0].parent if paths else Path()
        self._source = read_headers(path, paths)
        if not self._source.metadata.tensors:
            raise FileError(
                f"{path}: config.json says that it is quantized by blockscale, but its files hold "
                f"no quantized tensor: remove quantization_config, or copy the directory again"
            )
        self._model = model
        self._marks = TieMarks(getattr(model, "all_tied_weights_keys", None) or {})
        self._ours: dict[int, WeightTransform | None] = {}  # {id of ours: what it stands for}
        self._dequantized: list[str] = []

    def conversions(self, old: list[WeightTransform]) -> list[WeightTransform]:
        """transformers' ways to rename and fuse the checkpoint's tensors, with ours among them.

        Raises FileError where a quantized tensor does not fit the model.
        """
        model, source = self._model, self._source
        with folded(model, lambda _: True):
            first = Renames(model, old).metadata(source)[0]
        with folded_for(model, (*first.tensors, *first.aliases)):
            pass  # and they stay so
        renames = Renames(model, old)
        metadata, fused = renames.metadata(source)
        self._lost_layers = renames.lost_layers
        self._arriving = Arriving(
            path=source.path, files={}, kinds={}, metadata=metadata, source=source
        )
        for name, original in renames.names.items():
            self._arriving.add_parts(name, original)
        for name, original in renames.layers.items():
            self._arriving.add_layer(name, original)
        with standing_in(model):
            result = match_quantized(model, self._arriving, shared_names(model))
        self._dense = set(result.dense)
        new = [self._fused(each, fused.get(id(each), {})) for each in old]
        return new + [self._collects(attribute) for attribute in _attributes(metadata)]

    def _fused(
        self, old: WeightTransform, infos: dict[str, list[tuple[str, TensorInfo]]]
    ) -> WeightTransform:
        """A converter of the model's, whose sources may be quantized in these files."""
        if not infos or not isinstance(old, WeightConverter):
            return old
        by_pattern = {pattern: only(pattern, each) for pattern, each in infos.items()}
        sources = [
            source
            for pattern in old._original_source_patterns
            for source in (*(f"{pattern}.{part}" for part in PARTS), pattern)
        ]
        in_order = {
            each: by_pattern[each] for each in old._original_source_patterns if each in by_pattern
        }
        fuse = Fuse(self, in_order, old.operations)
        new = _copy(old, sources, [fuse])
        self._ours[id(new)] = old
        return new

    def take_fused(self, name: str, info: TensorInfo, parts: dict[str, Tensor]) -> Tensor:
        """The codes of a parameter that was fused; what the model holds for it meanwhile."""
        self._arriving.metadata.tensors[name] = info
        for part, tensor in parts.items():
            self._arriving.hold(f"{name}.{part}", tensor)
        old = self._model.get_parameter(name)
        return stand_in(info.shape, old.dtype, parts["codes"].device)

    def note_dequantized(self, name: str) -> None:
        """A parameter that was fused of floats, because its codes are not those of its parts."""
        self._dequantized.append(name)

    def _collects(self, attribute: str) -> WeightTransform:
        """Everything that is stored for a layer's `weight`, or another parameter, at once."""
        names = [f"{attribute}.{part}" for part in PARTS]
        names += [f"{attribute}.input.{part}" for part in PARTS]  # of a stack of experts
        if attribute == "weight":
            metadata = self._arriving.metadata
            layers = [f"{part}.{each}" for part in QUANTIZERS for each in PARTS]
            layers += ["before.factor", "before.signs", "before.order"]
            kinds = {part for formats in metadata.layers.values() for part in formats}
            names += [name for name in layers if name.partition(".")[0] in kinds]
        sources = [rf"{re.escape(name)}$" for name in names]
        new = WeightConverter(
            sources, attribute, [Collect(self, dict(zip(sources, names, strict=True)))]
        )
        self._ours[id(new)] = None
        return new

    def formats(self) -> dict[str, Stored]:
        """{parameter: (its format, its shape as stored)} of those that are stored quantized and are
        not fused of several while they are read."""
        tensors = self._arriving.metadata.tensors
        return {
            name: (parse(info.format), stored_shape(info.shape, info.layout))
            for name, info in tensors.items()
            if name not in self._dense and not name.endswith(".bias")
        }

    def element_size(self, name: str) -> float | None:
        """Bytes of an element of the parameter `name` as it is stored, None if it is in float."""
        info = self._arriving.metadata.tensors.get(name)
        if info is None or name in self._dense:
            return None
        return sum(tensor_of(*kind).nbytes for kind in info.parts().values()) / max(
            prod(info.shape), 1
        )

    def take(self, name: str, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        """What was read for a parameter -> {name: what the model holds for it meanwhile}."""
        owner, _, attribute = name.rpartition(".")
        for part, tensor in parts.items():
            self._arriving.in_memory[f"{owner}.{part}".lstrip(".")] = tensor
        prefix = f"{attribute}."
        own = {part.removeprefix(prefix): t for part, t in parts.items() if part.startswith(prefix)}
        if name not in self._arriving.metadata.tensors or "codes" not in own:
            return {}
        info = self._arriving.metadata.tensors[name]
        old: Tensor = getattr(self._model.get_submodule(owner), attribute)
        device = own["codes"].device
        values: Tensor
        if name in self._dense:  # `fill` writes the float values
            values = torch.empty(info.shape, dtype=old.dtype, device=device)
            values = nn.Parameter(values) if isinstance(old, nn.Parameter) else values
        else:
            values = stand_in(info.shape, old.dtype, device, self._marks.of(name, own))
        tied = [each for each, to in self._arriving.metadata.aliases.items() if to == name]
        return dict.fromkeys([name, *tied], values)

    def finish(self) -> None:
        """Put the quantized layers into the model, and transformers' conversions back."""
        model, metadata = self._model, self._arriving.metadata
        quantized = {*metadata.tensors, *metadata.aliases}
        for name, tensor in model.state_dict().items():
            if name not in quantized and isinstance(tensor, Tensor):
                self._arriving.hold(name, tensor)
        conversions: Any = getattr(model, "_weight_conversions", None) or []
        stand_for = [self._ours.get(id(each), each) for each in conversions]
        model._weight_conversions = [each for each in stand_for if each is not None]  # type: ignore[assignment]
        fill(model, self._arriving)
        layers = [
            *self._lost_layers,
            *(name for name in set(self._dequantized) if name in metadata.layers),
        ]
        if layers:
            warnings.warn(
                "blockscale: the formats of their input and output are not applied, as the model "
                f"has no place for them: {', '.join(sorted(layers))}",
                stacklevel=7,
            )
        if self._dequantized:
            names = ", ".join(sorted(set(self._dequantized)))
            warnings.warn(
                "blockscale: dequantized, because they are fused from parts with different "
                f"scales: {names}",
                stacklevel=7,
            )


def _attributes(metadata: Metadata) -> list[str]:
    """`weight`, and whatever else the parameters are called that are quantized."""
    return sorted({name.rpartition(".")[2] for name in metadata.tensors})


class Collect(ConversionOps):
    """The step that takes codes and scales where transformers reads floats.

    hf_quantizer: that it is not None makes `get_new_dtype` keep dtypes
    names: {source pattern: what it is, e.g. `weight.codes`}
    """

    def __init__(self, reading: CheckpointReading, names: dict[str, str]):
        self.hf_quantizer, self._names = reading, names

    def __deepcopy__(self, memo: dict[int, Any]) -> "Collect":
        return Collect(self.hf_quantizer, self._names)

    def convert(  # type: ignore[override]
        self, input_dict: dict[str, list[Tensor]], full_layer_name: str, **_: Any
    ) -> dict[str, Tensor]:
        """{pattern: [tensor]} of one parameter -> {name: its stand-in}."""
        parts = {self._names[pattern]: tensors[0] for pattern, tensors in input_dict.items()}
        return self.hf_quantizer.take(full_layer_name, parts)


def _copy(old: WeightConverter, sources: list[str], operations: list[Any]) -> WeightTransform:
    """A converter as this one, of other sources. transformers 5.17's cannot copy themselves."""
    if hasattr(old, "copy"):
        result: WeightTransform = old.copy(
            sources, old._original_target_patterns, operations=operations
        )
        return result
    new = WeightConverter(sources, old._original_target_patterns, operations)
    new.scope_prefix, new.base_model_prefix = old.scope_prefix, old.base_model_prefix
    return new
