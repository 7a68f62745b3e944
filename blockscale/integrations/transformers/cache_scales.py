# SPDX-License-Identifier: BSD-3-Clause
"""Static scales of a cache's keys and values, as servers read them beside a checkpoint's weights.

A server keeps keys and values in e4m3 with one scale for a layer's keys and one for its values,
which calibration chose. compressed-tensors names them `<attention>.k_scale` and
`<attention>.v_scale` and says so in the config's `kv_cache_scheme`; ModelOpt writes
`<attention>.k_proj.k_scale` and `<attention>.v_proj.v_scale`, the scheme as well, and in
hf_quant_config.json "FP8" as `kv_cache_quant_algo`. vLLM takes both (docs.vllm.ai, "Quantized KV
Cache").
"""

import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from blockscale.calibration.batches import Batches, describe, inference
from blockscale.calibration.calibrate import compare_facts, model_facts
from blockscale.calibration.padding import MASK, Padding
from blockscale.calibration.ranks import Ranks
from blockscale.core.untrusted import kind_of
from blockscale.core.work import Progress
from blockscale.files.whole import written_whole
from blockscale.layers.guards import (
    Group,
    call,
    check_group,
    device_of,
    is_group,
    processes,
)

_FUNCTION = "CacheScales.calibrate"
_LARGEST = 448.0  # of e4m3
_PARTS = ("keys", "values")
_NAME = re.compile(r"(.*\blayers\.(\d+)\..*attn)(?:\.attn)?(?:\.[kv]_proj)?\.([kv])_scale")
_KEY = re.compile(r"(.*\blayers\.(\d+)\..*attn)\.(?:k_proj|qkv_proj)\.")
_FILE = "model-cache-scales.safetensors"
_SCHEME = {
    "num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False,
    "group_size": None, "actorder": None, "block_structure": None, "observer": "minmax",
    "observer_kwargs": {},
}  # fmt: skip


@dataclass(frozen=True)
class CacheScales:
    """What a code of each layer's keys and values is worth: value = e4m3 code * scale.

    keys, values: a positive number for each layer, first to last
    """

    keys: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        every = (*self.keys, *self.values)
        if len(self.keys) != len(self.values) or not self.keys:
            raise ValueError(
                f"expected a scale of keys and one of values for each layer, found "
                f"{len(self.keys)} and {len(self.values)}"
            )
        wrong = [each for each in every if not 0 < each < float("inf")]
        if wrong:
            raise ValueError(
                f"scales must be positive and finite, found {wrong[0]}: measure them with "
                "CacheScales.calibrate"
            )

    @classmethod
    def calibrate(
        cls, model: nn.Module, batches: Iterable[Mapping[str, Any]], *, group: Group = None
    ) -> "CacheScales":
        """The least scales that hold every key and value of these batches.

        model: a decoder of transformers, which runs in evaluation mode and without gradients
        batches: its arguments, such as input_ids [batch, tokens], by name; they are moved to its
            device. Tokens that an attention_mask [batch, tokens] of 0 and 1 calls padding do not
            count; a warning names masks, and layers, for which that could not be done.
        group: as in `bs.calibrate`, in a group of several processes: a process group, where batch i
            of all is that of process i mod N, and all get the scales of one process that has all
            batches, to the bit; "same": the same batches, and scales that are compared; "local":
            scales of its own. None is refused there.
        Raises TypeError for what is no iterable of batches, and ValueError where there are none,
        or keys or values of a layer are all 0 or not finite, or processes do not fit together;
        RuntimeError where they end with other scales under "same", or another one raised something.
        """
        check_group(group, _FUNCTION)
        ranks = Ranks(group if is_group(group) else None, device_of(model))
        with inference(model):
            if group == "same" and processes() > 1:
                largest, lines = _same(lambda: _ranges(model, batches, ranks))
            else:
                largest, lines = _ranges(model, batches, ranks)
        if lines:
            warnings.warn("\n  ".join(["blockscale:", *lines]), stacklevel=2)
        for i, each in enumerate(largest):
            if not 0 < each < float("inf"):
                raise ValueError(
                    f"layer {i // 2}: the largest of its {_PARTS[i % 2]} is {each}, expected a "
                    "positive number: no scale holds them"
                )
        steps = [each / _LARGEST for each in largest]
        return cls(tuple(steps[::2]), tuple(steps[1::2]))

    @classmethod
    def read(cls, directory: str | Path) -> "CacheScales":
        """Those in a checkpoint's safetensors files, by compressed-tensors' or ModelOpt's names.

        directory: where the files are
        Raises ValueError where there are none, or not two of each layer, each a single number.
        """
        scales: dict[tuple[int, str], float] = {}
        for path in sorted(Path(directory).glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118 - it is no mapping
                    match = _NAME.fullmatch(name)
                    if match is None:
                        continue
                    scale = file.get_tensor(name)
                    if scale.numel() != 1:
                        raise ValueError(
                            f"{path}: {name} has shape {tuple(scale.shape)}: this cache takes one "
                            "scale for a layer's keys and one for its values"
                        )
                    scales[int(match[2]), match[3]] = float(scale)
        layers = sorted({layer for layer, _ in scales})
        missing = [
            f"{kind}_scale of layer {layer}"
            for layer in range(len(layers) or 1) for kind in "kv" if (layer, kind) not in scales
        ]  # fmt: skip
        if missing:
            raise ValueError(
                f"{directory}: expected k_scale and v_scale of each layer, found no {missing[0]}: "
                "calibrate and write them (CacheScales.calibrate, .write)"
            )
        return cls(*(tuple(scales[i, kind] for i in layers) for kind in "kv"))

    def write(self, directory: str | Path, layout: str = "compressed-tensors") -> None:
        """Into a checkpoint's directory: a file of scales, its place in the index, and the config.

        directory: with config.json and safetensors files, whose names say what layers there are
        layout: "compressed-tensors", also beside weights in floats, or "modelopt": what config.json
            has as `quant_method`
        Raises ValueError for another layout, a checkpoint of another, or one whose layers are not
        as many; nothing is written then.
        """
        place = Path(directory)
        names = _attention_names(place)
        if sorted(names) != list(range(len(self.keys))):
            raise ValueError(
                f"{place}: scales are of {len(self.keys)} layers, and the checkpoint has "
                f"{len(names)} with keys of their own"
            )
        config = _config_of(json.loads((place / "config.json").read_text()), layout)
        between = ("", "") if layout == "compressed-tensors" else (".k_proj", ".v_proj")
        tensors = {}
        for i, name in names.items():
            tensors[f"{name}{between[0]}.k_scale"] = torch.tensor(self.keys[i])
            tensors[f"{name}{between[1]}.v_scale"] = torch.tensor(self.values[i])
        with written_whole(place / _FILE) as path:
            save_file(tensors, path, {"format": "pt"})
        listing = place / "model.safetensors.index.json"
        if listing.exists():
            index = json.loads(listing.read_text())
            index["weight_map"] |= dict.fromkeys(tensors, _FILE)
            _write(listing, index)
        _write(place / "config.json", config)
        own = place / "hf_quant_config.json"
        if layout == "modelopt" and own.exists():
            data = json.loads(own.read_text())
            data.setdefault("quantization", {})["kv_cache_quant_algo"] = "FP8"
            _write(own, data)


_Result = tuple[list[float], list[str]]


def _ranges(model: nn.Module, batches: Iterable[Any], ranks: Ranks) -> _Result:
    """The largest keys and values of each layer in the batches of all processes, and what is to be
    said of padding."""
    ranges = _Ranges(model)
    if ranks.alone:
        for number, batch in enumerate(Batches(batches, 1, "", Progress())):
            ranges.add(number, batch)
    else:
        own = _own_batches(ranks, model, batches)
        ranks.each(len(own), lambda b: ranges.add(ranks.number(b), own[b]))
        ranges.merge(ranks)
    return ranges.largest.tolist(), ranges.lines()


class _Ranges:
    """The largest magnitudes of keys and values, and for which of them padding was not left out.

    largest: float64 [2 * layers], keys and values of one layer after the other, NaN if one is
    """

    def __init__(self, model: nn.Module):
        self.largest = torch.zeros(0, dtype=torch.float64)
        self._model = model
        self._notes: dict[str, list[tuple[int, str]]] = {}  # of what, each: batch and words

    def add(self, number: int, batch: Any) -> None:
        """Run the model on the batch of this number."""
        if not isinstance(batch, Mapping):
            raise TypeError(
                "expected batches that are mappings, such as {'input_ids': tokens}, found "
                f"{kind_of(batch)}"
            )
        padding = Padding(MASK, self._model)
        mask = padding.mask_of(batch)
        self._note("", number, padding.notes())
        states = DynamicCache()
        try:
            call(self._model, {**batch, "past_key_values": states, "use_cache": True})
        except Exception as error:
            error.add_note(f"at batch {number}, {describe(batch)}")
            raise
        layers: list[Any] = list(states.layers)  # of several kinds, to transformers' types
        every = [x for layer in layers for x in (layer.keys, layer.values)]
        self._join(torch.stack([self._of(i, x, mask, number) for i, x in enumerate(every)]))

    def merge(self, ranks: Ranks) -> None:
        """Take account of the batches of all processes."""
        every = ranks.together(lambda: (self.largest, self._notes))
        self.largest, self._notes = torch.zeros(0, dtype=torch.float64), {}
        for largest, notes in every:
            self._join(largest)
            for what, some in notes.items():
                self._notes.setdefault(what, []).extend(some)

    def lines(self) -> list[str]:
        """What is to be said: where padding may count in the scales."""
        lines = []
        for what, some in self._notes.items():
            (number, words), more = min(some), len({number for number, _ in some}) - 1
            where = f"batch {number}" + (f" and {more} more" if more else "")
            lines.append(": ".join(filter(None, [what, f"{words} ({where})"])))
        return lines

    def _of(self, i: int, x: Tensor, mask: Tensor | None, number: int) -> Tensor:
        """The largest magnitude of states [batch, heads, tokens, features] -> float64 [], NaN if
        one is; mask: of the tokens that count, bool [batch, tokens]."""
        if mask is not None and x.ndim == 4 and (x.shape[0], x.shape[2]) == mask.shape:
            x = x.masked_fill(~mask.to(x.device)[:, None, :, None], 0)
        elif mask is not None:
            shape = f"{list(x.shape)} may not be [batch, heads, tokens, features]"
            words = f"padding was not left out: its {_PARTS[i % 2]} {shape}"
            self._note(f"layer {i // 2}", number, [words])
        return x.abs().amax().double().cpu()

    def _join(self, largest: Tensor) -> None:
        count = len(self.largest)
        self.largest = torch.maximum(self.largest, largest) if count else largest

    def _note(self, what: str, number: int, words: Iterable[str]) -> None:
        self._notes.setdefault(what, []).extend((number, each) for each in words)
        if not self._notes[what]:
            del self._notes[what]


def _own_batches(ranks: Ranks, model: nn.Module, batches: Iterable[Any]) -> list[Any]:
    """This process's batches. Raises ValueError, in every process, where models differ or the
    batches are not those that are its."""
    compare_facts(ranks, lambda: model_facts(model), _FUNCTION)
    own: list[Any] = []
    ranks.together(lambda: own.extend(Batches(batches, 1, "", Progress(), empty=True)))
    ranks.deal_batches(len(own))
    return own


def _same(find: Callable[[], _Result]) -> _Result:
    """What every process finds. Raises RuntimeError, in all, where one finds something else."""
    every = Ranks(dist.group.WORLD).together(find)
    odd = next((rank for rank, each in enumerate(every) if repr(each) != repr(every[0])), None)
    if odd is not None:
        raise RuntimeError(
            f"group='same', but processes 0 and {odd} have other keys or values (this is process "
            f"{dist.get_rank()}): do all have the same weights and batches? With group='local' "
            "each gets scales of its own"
        )
    return every[0]


def _attention_names(place: Path) -> dict[int, str]:
    """The attention of each layer, by the names of its weights."""
    names: dict[int, str] = {}
    for path in sorted(place.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            matches = [_KEY.match(name) for name in file.keys()]  # noqa: SIM118
            names |= {int(match[2]): match[1] for match in matches if match}
    return names


def _config_of(config: dict[str, Any], layout: str) -> dict[str, Any]:
    """A model's configuration that says how keys and values are kept."""
    if layout not in ("compressed-tensors", "modelopt"):
        raise ValueError(f"layout must be 'compressed-tensors' or 'modelopt', got {layout!r}")
    alone = {"quant_method": layout} if layout == "compressed-tensors" else {}
    quantization = dict(config.get("quantization_config") or alone)
    if quantization.get("quant_method") != layout:
        raise ValueError(
            f"the checkpoint's quant_method is {quantization.get('quant_method')!r}, whose readers "
            f"ignore scales of {layout}: pass the layout of its weights"
        )
    if layout == "modelopt":
        quantization["kv_cache_scheme"] = {"num_bits": 8, "type": "float", "dynamic": False}
    else:
        quantization.setdefault("config_groups", {})
        quantization.setdefault("ignore", [])
        quantization["kv_cache_scheme"] = _SCHEME
    return config | {"quantization_config": quantization}


def _write(path: Path, data: dict[str, Any]) -> None:
    with written_whole(path) as place:
        Path(place).write_text(json.dumps(data, indent=2, sort_keys=True) + "\n")
