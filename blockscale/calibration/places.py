# SPDX-License-Identifier: BSD-3-Clause
"""What is chosen for layers as tensors and plain data: for files, and for other processes."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from blockscale.calibration.ranks import Ranks
from blockscale.calibration.session import Session
from blockscale.core.reference import QParams
from blockscale.core.untrusted import parse_json
from blockscale.layers import before
from blockscale.layers.plan import Plan
from blockscale.layers.store import QInput
from blockscale.ops.tensor import QTensor

Told = dict[str, Any]
Chosen = tuple[QTensor, list[str]]  # codes, and notes


def packed(plan: Plan, session: Session) -> tuple[dict[str, Tensor], Told]:
    """All that was chosen for a layer: tensors by name, and what JSON holds."""
    place, tensors = session.places[plan.name], dict[str, Tensor]()
    about: Told = {
        "details": session.details[plan.name], "notes": session.notes[plan.name],
        "tokens": session.tokens.get(plan.name), "own": session.mixing.own.get(plan.name),
        "alike": session.alike.get(plan.name),
    }  # fmt: skip
    if place.weight is not None:
        about["size"] = place.weight.size
        tensors |= _with_prefix(f"{plan.name}.weight", tensors_of(place.weight))
    if place.before is not None:
        about |= {"before": place.before.fmt, "features": place.before.features}
        tensors |= _with_prefix(f"{plan.name}.before", dict(place.before.named_buffers()))
    for part in ("input", "output"):
        if (quantizer := getattr(place, part)) is not None:
            tensors |= _with_prefix(f"{plan.name}.{part}", dict(quantizer.named_buffers()))
    return tensors, about


def unpack(plan: Plan, session: Session, tensors: Mapping[str, Tensor], about: Told) -> None:
    """Put what `packed` gave for a layer in its places."""
    place, device = session.places[plan.name], plan.parameter.device
    if parts := _of(tensors, f"{plan.name}.weight", device):
        codes = parts.pop("codes")
        place.weight = QTensor(codes, QParams(**parts), plan.format, about["size"])
    if "before" in about:
        buffers = _of(tensors, f"{plan.name}.before", device)
        place.before = before.restore(about["before"], about["features"], buffers)
    for part in ("input", "output"):
        if parts := _of(tensors, f"{plan.name}.{part}", device):
            quantizer = QInput(getattr(plan.scheme, part))
            quantizer.restore(parts)
            setattr(place, part, quantizer)
    session.details[plan.name] = about["details"]
    session.notes[plan.name] = about["notes"]
    every = (session.tokens, "tokens"), (session.mixing.own, "own"), (session.alike, "alike")
    for counts, key in every:
        if about.get(key) is not None:
            counts[plan.name] = about[key]


def tensors_of(q: QTensor) -> dict[str, Tensor]:
    """The tensors of a weight: packed codes, and what its scales are stored as."""
    return {"codes": q.packed, **_parts(q.qparams)}


def share_codes(
    ranks: Ranks,
    plans: Sequence[Plan],
    choose: Callable[[], Mapping[str, Chosen]],
) -> dict[str, Chosen]:
    """choose() -> {plan.name: codes and notes} of the layers of each process; those of all.

    Raises in every process what choose() raises in one; RuntimeError, in every process, if one of
    them received something else than its owner chose.
    """
    if ranks.alone:
        return dict(choose())
    result = ranks.share_bytes(
        lambda: {name: codes_to_bytes(codes) for name, codes in choose().items()}
    )
    return {plan.name: codes_from_bytes(result[plan.name], plan) for plan in plans}


def codes_to_bytes(codes: Chosen) -> bytes:
    """Codes and notes as a message."""
    q, notes = codes
    return to_bytes(tensors_of(q), {"size": q.size, "notes": notes})


def codes_from_bytes(data: bytes, plan: Plan) -> Chosen:
    """The codes of a layer, or of some of its rows, and notes."""
    tensors, about = from_bytes(data)
    parts = {name: tensor.to(plan.parameter.device) for name, tensor in tensors.items()}
    codes = parts.pop("codes")
    return QTensor(codes, QParams(**parts), plan.format, about["size"]), about["notes"]


def to_bytes(tensors: Mapping[str, Tensor], about: Told) -> bytes:
    """Tensors and plain data as the bytes of a safetensors file."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return safetensors.torch.save(plain, {"about": json.dumps(about)})


def from_bytes(
    data: bytes, key: str = "about", where: str | Path = "a process's message"
) -> tuple[dict[str, Tensor], Told]:
    """What `to_bytes` was given; key: under which the metadata have the rest. where: for errors."""
    length = int.from_bytes(data[:8], "little")
    header = parse_json(data[8 : 8 + length].decode(), where, finite=False)
    settings = parse_json(header["__metadata__"][key], where, finite=False)
    return safetensors.torch.load(data), settings


def _parts(qparams: QParams | None) -> dict[str, Tensor]:
    return {} if qparams is None else {k: v for k, v in qparams._asdict().items() if v is not None}


def _with_prefix(name: str, parts: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{name}/{part}": tensor.contiguous().clone() for part, tensor in parts.items()}


def _of(tensors: Mapping[str, Tensor], name: str, device: Any) -> dict[str, Tensor]:
    data = {k.rpartition("/")[2]: v for k, v in tensors.items() if k.rpartition("/")[0] == name}
    return {
        part: tensor if device.type == "meta" else tensor.to(device)
        for part, tensor in data.items()
    }
