"""Models on several devices."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def check_devices(device_map: Any) -> None:
    """Raise ValueError for a device map that quantized layers cannot follow.

    A layer that waits on disk, or on the CPU beside an accelerator, is brought to its device by
    accelerate, parameter by parameter; codes are buffers below it and would stay behind. A map
    that is a word, such as "auto", is checked when it has become places.
    """
    if not isinstance(device_map, dict):
        return
    kinds = {_kind(each): name for name, each in device_map.items()}
    away = "disk" if "disk" in kinds else "cpu" if "cpu" in kinds and len(kinds) > 1 else None
    if away is not None:
        raise ValueError(
            f"device_map leaves {kinds[away] or 'the model'!r} on {away}, to be brought to its "
            f"device when it runs, which quantized layers cannot be: give the devices more memory "
            f"(max_memory), take a smaller format, or device_map='cpu'"
        )


def _kind(place: Any) -> str:
    """Of a place in a device map: a number is a device of the accelerator that there is."""
    if isinstance(place, int):
        return "accelerator"
    return "disk" if place == "disk" else torch.device(place).type


@contextmanager
def dispatched_again(model: Any) -> Iterator[None]:
    """Without accelerate's hooks on a model over several devices inside, and with them after.

    The hooks of a layer replace its forward, which a quantized layer in its place could not have.
    """
    places: Any = getattr(model, "hf_device_map", None) or {}
    if len(set(places.values())) < 2:
        yield
        return
    from accelerate import dispatch_model
    from accelerate.hooks import remove_hook_from_submodules

    remove_hook_from_submodules(model)
    yield
    skipped = getattr(model, "_skip_keys_device_placement", None)
    dispatch_model(model, device_map=places, skip_keys=skipped)
