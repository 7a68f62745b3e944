# SPDX-License-Identifier: BSD-3-Clause
"""The residual stream of a decoder: which weights write to it, and which read it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.calibration.batches import call

VALUES = ("v_proj", "value")
OUTPUTS = ("o_proj", "out_proj", "dense")
FUSED = ("qkv_proj", "c_attn", "query_key_value", "Wqkv", "qkv")  # give queries and keys, too


class UnrotatableError(ValueError):
    """Why a model's residual stream cannot be rotated."""


@dataclass(frozen=True)
class Norm:
    """A norm over the stream: x / size(x) * gain + bias, where gain is weight, or 1 + weight."""

    name: str
    adds_one: bool
    subtracts_mean: bool


@dataclass(frozen=True)
class Use:
    """One dimension of a parameter that the stream, or a head's values, goes through.

    parameter: its dotted name; dim: which dimension, counted from the end
    norm: whose gain is multiplied into it; None for what writes
    heads: 0 for the stream, or the elements of a head
    """

    parameter: str
    dim: int
    norm: Norm | None = None
    heads: int = 0


@dataclass
class ResidualStream:
    """How the stream goes through a model. size: its features; notes: {parameter: what to tell}."""

    size: int
    norms: list[Norm]
    uses: list[Use]
    head: str
    tied: bool
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def keeps_mean(self) -> bool:
        """Whether a rotation must leave the mean where it is: a norm subtracts it."""
        return any(norm.subtracts_mean for norm in self.norms)


@torch.no_grad()
def stream_of(model: nn.Module, batch: Any) -> ResidualStream:
    """The stream of a model with token embeddings and a head, seen while it runs on one batch.

    What reads the stream is what a norm's output is given to; what writes to it are embeddings and
    matrices of as many outputs as the stream has features. Raises UnrotatableError for anything
    that does not fit; the numerical check (`rotated`) has the last word.
    """
    table, head = (_embeddings(model, f"get_{which}_embeddings") for which in ("input", "output"))
    if not isinstance(table, nn.Embedding) or not isinstance(head, nn.Linear):
        raise UnrotatableError(
            "it has no token embedding and linear head that its get_input_embeddings and "
            "get_output_embeddings return"
        )
    size, names = table.embedding_dim, {module: name for name, module in model.named_modules()}
    norms = {
        module: result
        for module, name in names.items()
        if (result := _norm(module, name, size)) is not None
    }
    readers = _readers(model, batch, list(norms), head)
    for module, norm in norms.items():
        if module not in readers.values():
            raise UnrotatableError(
                f"the output of {norm.name!r} is read by more than linear layers"
            )
    uses = [
        use
        for module, name in names.items()
        if module not in norms
        for use in _uses(module, name, size, norms.get(readers.get(module)))
    ]
    stream = ResidualStream(
        size, list(norms.values()), uses, names[head], table.weight is head.weight
    )
    stream.uses += _values(names, stream)
    _check_shared(model, stream)
    return stream


def _check_shared(model: nn.Module, stream: ResidualStream) -> None:
    """Raise for a parameter of several modules, but for a head that shares the embedding's."""
    first: dict[Tensor, str] = {}
    for name in dict.fromkeys(use.parameter for use in stream.uses):
        other = first.setdefault(model.get_parameter(name), name)
        if name != other and not (stream.tied and name == f"{stream.head}.weight"):
            raise UnrotatableError(f"{other} and {name} are one parameter")


def _embeddings(model: nn.Module, method: str) -> Any:
    ask = getattr(model, method, None)
    try:
        return ask() if callable(ask) else None
    except NotImplementedError:
        return None


def _norm(module: nn.Module, name: str, size: int) -> Norm | None:
    """What kind of norm a module is, found by what it makes of random numbers; None for none."""
    own = dict(module.named_parameters(recurse=False))
    if "weight" not in own or not set(own) <= {"weight", "bias"} or any(module.children()):
        return None
    weight, bias = own["weight"].detach(), own.get("bias")
    if tuple(weight.shape) != (size,) or not weight.is_floating_point():
        return None
    generator = torch.Generator().manual_seed(0)
    x = 8 * torch.randn(4, size, generator=generator, dtype=torch.float64) + 8
    x = x.to(weight.device, weight.dtype)
    try:
        got = module(x).to(torch.float64)
    except (TypeError, ValueError, RuntimeError, AttributeError, LookupError):
        # what is called otherwise is no norm
        return None
    x, shift = x.to(torch.float64), 0 if bias is None else bias.detach().to(torch.float64)
    near, results = max(8 * torch.finfo(weight.dtype).eps, 1e-4), []
    for subtracts_mean in (False, True):
        central = x - x.mean(-1, keepdim=True) if subtracts_mean else x
        unit = central / central.square().mean(-1, keepdim=True).sqrt()
        for adds_one in (False, True):
            gain = weight.to(torch.float64) + adds_one
            expected = unit * gain + shift
            off = float((got - expected).abs().max() / (1 + expected.abs().max()))
            results.append((off, Norm(name, adds_one, subtracts_mean)))
    off, norm = min(results, key=lambda each: each[0])
    return norm if off <= near else None


def _readers(
    model: nn.Module, batch: Any, norms: list[nn.Module], head: nn.Module
) -> dict[nn.Module, nn.Module]:
    """{module with parameters of its own: the norm whose output it is given}, by a run."""
    readers: dict[nn.Module, nn.Module] = {}
    outputs: dict[int, tuple[nn.Module, Tensor]] = {}  # kept alive, so that places are not reused

    def ran(module: nn.Module, args: Any, kwargs: Any, y: Any) -> None:
        if module in norms:
            outputs[y.untyped_storage().data_ptr()] = (module, y)
            return
        for x in [*args, *kwargs.values()]:
            if isinstance(x, Tensor) and x.untyped_storage().data_ptr() in outputs:
                norm = outputs[x.untyped_storage().data_ptr()][0]
                if readers.setdefault(module, norm) is not norm:
                    raise UnrotatableError("one module reads the outputs of several norms")

    owning = [m for m in model.modules() if any(True for _ in m.parameters(recurse=False))]
    handles = [m.register_forward_hook(ran, with_kwargs=True) for m in owning]
    try:
        call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    if head not in readers:
        raise UnrotatableError("its head does not read the output of a norm")
    return readers


def _uses(  # noqa: C901 - a list of cases
    module: nn.Module, name: str, size: int, norm: Norm | None
) -> Iterator[Use]:
    """Where the stream goes through a module's own parameters. Raises for what is not known."""
    own = dict(module.named_parameters(recurse=False))
    uses: dict[str, Use] = {}
    transposed = type(module).__name__ == "Conv1D"  # transformers': its weight is [in, out]
    reads, writes = (-2, -1) if transposed else (-1, -2)

    def use(which: str, dim: int, through: Norm | None = None) -> None:
        uses[which] = Use(f"{name}.{which}", dim, through)

    if isinstance(module, nn.Embedding):
        if module.embedding_dim == size:
            use("weight", -1)
    elif {"gate_up_proj", "down_proj"} <= set(own) and norm is not None:  # a stack of experts
        use("gate_up_proj", -1, norm)
        use("down_proj", -2)
        if "down_proj_bias" in own:
            use("down_proj_bias", -1)
    elif "weight" in own and own["weight"].ndim == 2:
        shape = own["weight"].shape
        if norm is not None and shape[reads] == size:
            use("weight", reads, norm)
            uses |= {"bias": uses["weight"]} if "bias" in own else {}
        elif norm is None and shape[writes] == size:
            use("weight", writes)
            if "bias" in own:
                use("bias", -1)
    for which, parameter in own.items():
        if which not in uses and size in parameter.shape:
            raise UnrotatableError(
                f"it is not known how {name}.{which} reads or writes the residual stream"
            )
    yield from dict.fromkeys(uses.values())


def _values(names: dict[nn.Module, str], stream: ResidualStream) -> Iterator[Use]:
    """Values of each head, between the matrices that give and take them, where those are apart."""
    for module, name in names.items():
        children = dict(module.named_children())
        value = next((children[n] for n in VALUES if n in children), None)
        output = next((children[n] for n in OUTPUTS if n in children), None)
        fused = next((n for n in FUSED if n in children), None)
        size = getattr(module, "head_dim", None)
        if value is None and fused is not None:
            output = children.get("c_proj", output)
            if output is not None:
                stream.notes[f"{names[output]}.weight"] = (
                    f"the values of heads, which {name}.{fused} computes together with "
                    "queries and keys, are not rotated"
                )
        if not (isinstance(value, nn.Linear) and isinstance(output, nn.Linear)):
            continue
        if not isinstance(size, int) or value.out_features % size or output.in_features % size:
            stream.notes[f"{names[output]}.weight"] = "the values of heads are not rotated"
            continue
        yield Use(f"{names[value]}.weight", -2, None, size)
        if value.bias is not None:
            yield Use(f"{names[value]}.bias", -1, None, size)
        yield Use(f"{names[output]}.weight", -1, None, size)
