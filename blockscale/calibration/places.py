# SPDX-License-Identifier: BSD-3-Clause
"""What is chosen for layers as tensors and plain data: for files, and for other processes."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from blockscale.calibration.ranks import Ranks
from blockscale.calibration.session import Session
from blockscale.core.arithmetic.sums import digest
from blockscale.core.reference import QParams
from blockscale.core.untrusted import parse_json
from blockscale.layers import before
from blockscale.layers.plan import Plan
from blockscale.layers.store import QInput
from blockscale.ops.tensor import QTensor
from blockscale.parallel import messages

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
    result = share_messages(
        ranks, lambda: {name: message_of(codes) for name, codes in choose().items()}
    )
    return {plan.name: codes_of(result[plan.name], plan) for plan in plans}


def from_bytes(data: bytes, key: str, where: str | Path) -> tuple[dict[str, Tensor], Told]:
    """Tensors of the bytes of a safetensors file, and what JSON its metadata have under a key.

    where: for errors
    """
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


# What owners chose, sent to all processes: bytes stay on the device that a group sends from.


class Message(NamedTuple):
    """Plain data as JSON, and tensors by name."""

    about: str
    tensors: Mapping[str, Tensor]


def to_message(tensors: Mapping[str, Tensor], about: Told) -> Message:
    """Tensors and plain data as a message."""
    return Message(json.dumps(about), tensors)


def from_message(message: Message) -> tuple[Mapping[str, Tensor], Told]:
    """What `to_message` was given."""
    return message.tensors, parse_json(message.about, "a process's message", finite=False)


def message_of(codes: Chosen) -> Message:
    """Codes and notes as a message."""
    q, notes = codes
    return to_message(tensors_of(q), {"size": q.size, "notes": notes})


def codes_of(message: Message, plan: Plan) -> Chosen:
    """The codes of a layer, or of some of its rows, and notes."""
    tensors, about = from_message(message)
    parts = {name: tensor.to(plan.parameter.device) for name, tensor in tensors.items()}
    codes = parts.pop("codes")
    return QTensor(codes, QParams(**parts), plan.format, about["size"]), about["notes"]


class _Cover(NamedTuple):
    """A message without its tensors' bytes, and a digest of all of it."""

    about: str
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]]
    digest: str = ""

    def digest_with(self, bits: int) -> str:
        """What its digest is if its tensors' bytes have this one."""
        text = f"{self.about} {self.shapes} {bits}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(messages.aligned(*each) for each in self.shapes.values())

    def message(self, parcel: Tensor) -> Message:
        """The message whose tensors are in a parcel."""
        tensors = messages.unpacked(parcel, list(self.shapes.values()))
        return Message(self.about, dict(zip(self.shapes, tensors, strict=True)))


def share_messages(ranks: Ranks, own: Callable[[], Mapping[str, Message]]) -> dict[str, Message]:
    """{name: message} of all processes, in every process.

    Raises in every process what own() raises in one; RuntimeError, in every process, if one of them
    received something else than another sent.
    """
    parcels: list[Tensor] = []

    def covers() -> dict[str, _Cover]:
        mine = own()
        for message in mine.values():
            tensors = [each.to(ranks.device) for each in message.tensors.values()]
            parcels.append(messages.packed(tensors).to(ranks.device))
        pairs = zip(mine.items(), _digests_of(parcels), strict=True)
        return {name: _cover_of(message, bits) for (name, message), bits in pairs}

    result, odd = dict[str, Message](), list[tuple[str, int]]()
    for owner, there in enumerate(ranks.together(covers)):
        if not there:
            continue
        sizes = [cover.nbytes for cover in there.values()]
        data = torch.cat(parcels) if owner == ranks.rank else None
        parts = ranks.broadcast(data, sum(sizes), owner, torch.uint8).split(sizes)
        every = zip(there.items(), parts, _digests_of(parts), strict=True)
        for (name, cover), part, bits in every:
            result[name] = cover.message(part)
            if cover.digest_with(bits) != cover.digest:
                odd.append((name, owner))
    _compare(ranks, odd)
    return result


def _compare(ranks: Ranks, odd: Sequence[tuple[str, int]]) -> None:
    """Raise in every process if one received other messages than their owners sent: `odd`."""
    for rank, names in enumerate(ranks.together(lambda: odd)):
        for name, owner in names:
            raise RuntimeError(
                f"{name}: process {rank} received other bytes than process {owner} chose and sent "
                f"(this is process {ranks.rank}); the model is as it was before. Check the "
                "network and the memory of these hosts, and start again"
            )


def _cover_of(message: Message, bits: int) -> _Cover:
    """The cover of a message whose tensors' bytes have this digest."""
    shapes = {name: (tuple(x.shape), x.dtype) for name, x in message.tensors.items()}
    cover = _Cover(message.about, shapes)
    return cover._replace(digest=cover.digest_with(bits))


def _digests_of(parcels: Sequence[Tensor]) -> list[int]:
    """Of bytes, where they lie."""
    return torch.stack([digest(each) for each in parcels]).tolist() if parcels else []
