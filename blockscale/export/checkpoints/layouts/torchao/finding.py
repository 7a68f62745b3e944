"""Which tensors of a file are torchao's: the file's metadata says it, tensor by tensor.

`tensor_names` lists names, and each has JSON with its class (`_type`), what the class knows
(`_data`) and the names of its tensors. Weight `a.weight` has `a._weight_qdata`, `a._weight_scale`.
"""

from collections.abc import Mapping
from typing import Any

from blockscale.core.untrusted.json_text import json_object, parse_json
from blockscale.core.untrusted.names import quoted
from blockscale.export.checkpoints.layout import Found, Kinds, Read, Weight
from blockscale.export.checkpoints.layouts.torchao.classes import CLASSES
from blockscale.files.metadata import FileError

PRODUCER = "torchao"
METHODS = ("torchao",)
_KEY = "tensor_names"
_MOST = 1_000_000  # characters of what is said of one tensor


def find(kinds: Kinds, config: Mapping[str, Any], read: Read) -> Found:
    """Weights whose class the metadata name. Raises FileError for metadata that are no JSON."""
    del read
    found, metadata = Found(), config.get("safetensors_metadata", {})
    if _KEY not in metadata:
        return found
    for name, text in sorted(metadata.items()):
        if not text.startswith('{"_type"') or "." not in name:
            continue
        told = json_object(parse_json(text, f"what is said of {quoted(name)}", most=_MOST), name)
        if told.get("_type") != "torch.Tensor":
            _add(found, name, told, kinds)
    if found.weights:
        found.evidence = f"its metadata have {_KEY} and the class of each"
    return found


def _add(found: Found, name: str, told: Mapping[str, Any], kinds: Kinds) -> None:
    owner, _, last = name.rpartition(".")
    roles = told.get("_tensor_data_names")
    data = told.get("_data")
    if not isinstance(roles, list) or not isinstance(data, dict):
        raise FileError(f"what is said of {quoted(name)} has no _data or _tensor_data_names")
    places = {str(role): f"{owner}._{last}_{role}" for role in roles}
    missing = [place for place in places.values() if place not in kinds]
    if missing:
        raise FileError(f"{missing[0]} is missing, though the metadata of {quoted(name)} name it")
    kind = str(told.get("_type"))
    take = CLASSES.get(kind)
    if take is None or "qdata" not in places or "scale" not in places:
        shape = kinds[places["qdata"]][1] if "qdata" in places else ()
        reason = f"{kind} holds codes rearranged for one kernel, or is a newer class: torchao "
        found.add(name, Weight(kind, shape, places, None, reason + "dequantizes it"))
    else:
        found.add(name, take(kind, data, places, kinds))
