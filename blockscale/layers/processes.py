# SPDX-License-Identifier: BSD-3-Clause
"""Models that are not whole where they are to be quantized, and processes that must not disagree.

Quantizing looks at whole weights, and each process by itself. What is sharded, or moved to its
device by hooks, is refused; so are data of which each process sees a part, unless the caller says
what is right.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

from blockscale.core.untrusted import kind_of
from blockscale.layers.guards import Snapshot, check_model
from blockscale.layers.kinds import quantized_class

Group: TypeAlias = "Literal['same', 'local'] | dist.ProcessGroup | None"


def check_whole(model: nn.Module, called: str) -> None:
    """Raise TypeError for what is no model (guards.entry), and ValueError for one that is sharded,
    or whose layers run under accelerate's hooks.

    called: the function that it was given to, e.g. "bs.quantize_"
    """
    check_model(model, called)
    check_unsharded(model, called)
    hooked = [name for name, each in model.named_modules() if _is_dispatched(each)]
    if hooked:
        raise ValueError(
            f"{called}: accelerate moves {len(hooked)} of the model's layers to their device when "
            f"they run (dispatch_model, cpu_offload, disk_offload or a device_map), such as "
            f"{hooked[0]!r}: call accelerate.hooks.remove_hook_from_submodules(model) first and "
            f"dispatch the quantized model again, or let from_pretrained do all of it "
            f"(quantization_config=BlockscaleConfig(recipe), device_map=…)"
        )


def check_unsharded(model: nn.Module, called: str) -> None:
    """Raise ValueError for a model whose tensors are parts of others (DTensor: FSDP2, tensor
    parallel)."""
    named = [*model.named_parameters(), *model.named_buffers()]
    parts = [n for n, each in model.named_modules() if getattr(each, "part", "")]
    if parts:
        raise ValueError(
            f"{called}: each process has a part of {len(parts)} of the model's weights, such as "
            f"{parts[0]!r} (bs.parallel.shard_): call it before that, on the whole model"
        )
    sharded = [(name, tensor) for name, tensor in named if hasattr(tensor, "full_tensor")]
    if sharded:
        name, tensor = sharded[0]
        raise ValueError(
            f"{called}: {len(sharded)} of the model's {len(named)} tensors are shards, such "
            f"as {name!r} ({_placed(tensor)}): call it before fully_shard, parallelize_module "
            "or a tp_plan, or gather the state "
            "(torch.distributed.checkpoint.state_dict.get_model_state_dict with "
            "full_state_dict=True) into a model that is whole"
        )


def _placed(tensor: Any) -> str:
    """How a DTensor lies, in words."""
    places = getattr(tensor, "placements", ())
    return f"{kind_of(tensor)}: {', '.join(map(str, places))}"


def _is_dispatched(module: nn.Module) -> bool:
    """Whether it is a float layer that could be quantized, under a hook of accelerate's."""
    return "_hf_hook" in vars(module) and quantized_class(module) is not None


def check_group(group: Group, called: str, *, compared: bool = True) -> None:
    """Raise ValueError in a torch.distributed group of several processes, unless the caller has
    said what each of them sees; and for anything but "same", "local" and None.

    compared: whether there are codes at the end to compare for "same", as prepared graphs have none
    """
    if group not in ("same", "local", None) and not is_group(group):
        raise ValueError(
            f"{called}: group must be a process group, such as torch.distributed.group.WORLD "
            "(batch i is that of process i mod N, and all get one model), 'same' (every process "
            f"has the same batches), 'local' (each gets a model of its own) or None, got {group!r}"
        )
    if is_group(group) and not compared:
        raise ValueError(
            f"{called}: a prepared graph does not merge over a group what its processes see: "
            "calibrate and convert it in one process and share it with bs.export.program, or pass "
            "group='local'"
        )
    if group == "same" and not compared and processes() > 1:
        raise ValueError(
            f"{called}: a prepared graph has no codes yet to compare: calibrate and convert "
            "it in one process and share it with bs.export.program, or pass group='local'"
        )
    if group is None and processes() > 1:
        raise ValueError(
            f"{called} was called in a group of {processes()} processes: each would choose scales "
            f"and codes from the batches that it sees, and they would end with different models. "
            f"Say what is right here: group=torch.distributed.group.WORLD if batch i of all is "
            f"that of process i mod {processes()}, for one model made from all; group='same' if "
            f"every process has the same batches, which is compared at the end; or group='local' "
            f"if each is to have a model of its own"
        )


def is_group(group: object) -> bool:
    """Whether this is a process group of torch.distributed."""
    return dist.is_available() and isinstance(group, dist.ProcessGroup)


def launched() -> bool:
    """Whether torchrun, or what sets the same variables, started several of this process."""
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return all(name in os.environ for name in needed) and int(os.environ["WORLD_SIZE"]) > 1


def is_first() -> bool:
    """Whether this process is the one that writes and prints for all that torchrun started."""
    return not launched() or int(os.environ["RANK"]) == 0


def processes() -> int:
    """How many there are in torch's default group; 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@contextmanager
def agreeing(model: nn.Module, group: Group) -> Iterator[None]:
    """With "same" or a process group, compare what every process has made of the model inside.

    Raises RuntimeError, in every process, where it is not the same; the model is as before then.
    """
    members = group if is_group(group) else None
    if not (group == "same" and processes() > 1) and members is None:
        yield
        return
    before = Snapshot(model)
    yield
    results: list[Any] = [None] * dist.get_world_size(members)  # type: ignore[arg-type]
    dist.all_gather_object(results, _digests(model), members)
    odd = [i for i, each in enumerate(results) if each != results[0]]
    if odd:
        before.restore()
        first, other = results[0], results[odd[0]]
        names = [n for n in {**first, **other} if first.get(n) != other.get(n)]
        start = "group='same', but" if members is None else "they calibrated one model, but"
        raise RuntimeError(
            f"{start} processes 0 and {odd[0]} have made other codes or scales of "
            f"the model, such as {names[0]!r}; the model is as it was before (this is process "
            f"{dist.get_rank(members)}): do all have the "  # type: ignore[arg-type]
            "same weights, batches and seed? With group='local' each gets a model of its own"
        )


def _digests(model: nn.Module) -> dict[str, str]:
    """{name: digest} of all tensors in a model's state."""
    data = {}
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            one = hashlib.sha256(f"{value.dtype} {tuple(value.shape)} ".encode())
            one.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
            data[name] = one.hexdigest()
    return data
