# SPDX-License-Identifier: BSD-3-Clause
"""Models on several devices, on the CPU beside an accelerator, and on disk.

transformers loads what a device map leaves on disk as floats, which quantizing would turn around:
so such layers are loaded on the CPU, quantized, and then left to accelerate as the map says.
"""

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from blockscale.core.untrusted.names import shown

DISK = "disk"


def loading_places(device_map: dict[str, Any]) -> dict[str, Any]:
    """Where a model is loaded that is to be where the device map says."""
    return {name: "cpu" if place == DISK else place for name, place in device_map.items()}


def check_one_process(config: Any) -> None:
    """Raise ValueError for a model that transformers is to deal out to processes.

    config: the model's, in which `from_pretrained(distributed_config=…)` (and tp_plan, tp_size)
        have left how
    """
    asked = getattr(config, "distributed_config", None)
    sizes = {name: getattr(asked, name, None) or 1 for name in _SIZES}
    dealt = [f"{name}={size}" for name, size in sizes.items() if size > 1]
    if dealt:
        raise ValueError(
            f"distributed_config asks for {', '.join(dealt)}, and codes and scales cannot be "
            "split between processes yet: each process would hold wrong parts, or floats. "
            "Load the model without tp_plan and distributed_config, whole in each process; "
            "or shard the float model, without quantization_config"
        )


_SIZES = ("tp_size", "ep_size", "fsdp_size", "dp_replicate_size", "pp_size")


@contextmanager
def dispatched(model: Any, places: dict[str, Any] | None) -> Iterator[None]:
    """Without accelerate's hooks inside, and dispatched as `places` says after.

    The hooks of a layer replace its forward, which a quantized layer in its place could not have.
    What is left on disk is written to a directory of its own, which goes with the model.
    """
    places = places or getattr(model, "hf_device_map", None) or {}
    on_disk = [name or "the model" for name, place in places.items() if place == DISK]
    if len(set(places.values())) < 2 and not on_disk:
        yield
        return
    from accelerate import dispatch_model
    from accelerate.hooks import remove_hook_from_submodules
    from accelerate.utils.modeling import find_tied_parameters, retie_parameters

    ties = find_tied_parameters(model)
    remove_hook_from_submodules(model)
    retie_parameters(model, ties)  # a hook brings each name's tensor back by itself
    yield
    told: dict[str, Any] = {"skip_keys": getattr(model, "_skip_keys_device_placement", None)}
    if on_disk:
        told["offload_dir"] = _folder_of(model, on_disk)
    dispatch_model(model, device_map=_by_block(model, places), **told)


def _by_block(model: Any, places: dict[str, Any]) -> dict[str, Any]:
    """The same places; of a model that is on disk as a whole, those of its blocks, as accelerate
    looks for the tensors of a place by what stands before a dot."""
    if places.get("") != DISK:
        return places
    return {name: DISK for name, _ in model.named_children()}


def _folder_of(model: Any, on_disk: list[str]) -> str:
    """A new directory that is deleted with the model; a warning says where."""
    folder = tempfile.mkdtemp(prefix="blockscale-offload-")
    weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
    warnings.warn(
        f"blockscale: {shown(', '.join(on_disk), 400)}: kept on disk in {folder} while the "
        "model is in use, because transformers does not pass offload_folder to quantizers; "
        "set TMPDIR for another place",
        stacklevel=6,
    )
    return folder
