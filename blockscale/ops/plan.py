"""What is to become of each layer and parameter of a model, decided before anything is changed."""

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

from torch import Tensor, nn

from blockscale.core import reference
from blockscale.core.discover import import_all
from blockscale.core.layout import stored_shape
from blockscale.core.ledger import Entry, Status
from blockscale.core.recipe import Recipe, Scheme
from blockscale.ops import modules
from blockscale.ops.modules.layer import QLayer

_KINDS: list[ModuleType] = [
    module
    for module in import_all(modules.__name__, modules.__path__)
    if hasattr(module, "replacement")
]

# Modules that read the weights of layers inside them without calling those layers.
_BYPASSES = {
    nn.MultiheadAttention: "nn.MultiheadAttention reads its weight directly",
    nn.TransformerEncoderLayer: "nn.TransformerEncoderLayer's fused path reads its weight directly",
}


def replacement(module: nn.Module) -> type[QLayer] | None:
    """The quantized layer that replaces a float layer of exactly this class, or None."""
    for kind in _KINDS:
        found: type[QLayer] | None = kind.replacement(type(module))
        if found is not None:
            return found
    return None


class Plan:
    """What is to happen to one layer."""

    def __init__(self, name: str, module: nn.Module, kind: type[QLayer] | None, scheme: Scheme):
        self.name, self.module, self.kind, self.scheme = name, module, kind, scheme
        self.parameter: Tensor | None = getattr(module, "weight", None) if kind else None
        bias = getattr(module, "bias", None)
        size = sum(p.nbytes for p in (self.parameter, bias) if p is not None) if kind else 0
        elements = self.parameter.numel() if self.parameter is not None else 0
        self.entry = Entry(
            name,
            type(module).__name__,
            "quantized",
            elements=elements,
            bytes_before=size,
            bytes_after=size,
        )

    def stay(self, status: Status, reason: str) -> None:
        """Leave the layer in float, and say why."""
        self.entry = replace(self.entry, status=status, reason=reason)


def plan_layers(model: nn.Module, recipe: Recipe) -> list[Plan]:
    """One plan for each layer that could be quantized or that looks as if it could."""
    plans = []
    for name, module in model.named_modules():
        if isinstance(module, QLayer):
            plan = Plan(name, module, None, Scheme())
            plan.entry = replace(
                plan.entry, bytes_before=module.weight.nbytes, bytes_after=module.weight.nbytes
            )
            plan.stay("kept", "already quantized")
            plans.append(plan)
            continue
        kind = replacement(module)
        if kind is None and not _looks_like_a_layer(module):
            continue
        scheme, pattern = recipe.decide(name)
        plan = Plan(name, module, kind, scheme)
        reason = None if kind is None else kind.refuses(module)
        if not scheme:
            plan.stay(
                "kept", f"pattern {pattern!r} of the recipe" if pattern else "the recipe is empty"
            )
        elif scheme.weight is None:
            plan.stay("kept", "the recipe gives its weight no format")
        elif reason := reason or _why_not(model, name, module, kind, scheme):
            plan.stay("skipped", reason)
        plans.append(plan)
    _settle_ties(plans)
    return plans


def _looks_like_a_layer(module: nn.Module) -> bool:
    """Subclasses and relatives of the layers we replace: they must not be passed over silently."""
    relatives = (
        nn.Linear,
        nn.Embedding,
        nn.EmbeddingBag,
        nn.Bilinear,
        nn.modules.conv._ConvNd,
        nn.RNNBase,
    )
    return isinstance(module, relatives)


def _why_not(
    model: nn.Module, name: str, module: nn.Module, kind: type[QLayer] | None, scheme: Scheme
) -> str | None:
    """Why this layer cannot be quantized, or None."""
    if kind is None:
        name_of = type(module).__name__
        if isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d | nn.Conv2d):
            return f"{name_of} is a subclass: a quantized layer would replace what it adds"
        return f"there is no quantized {name_of}"
    if "forward" in vars(module):
        return "its forward was replaced on the instance, which a quantized layer would undo"
    parent = model.get_submodule(name.rpartition(".")[0])
    if type(parent) in _BYPASSES:
        return _BYPASSES[type(parent)]
    weight = module.weight
    if getattr(module, "parametrizations", None) is not None:
        return "its weight is parametrized: remove the parametrization first"
    if not isinstance(weight, Tensor) or weight.device.type == "meta":
        return "its weight holds no data (meta device or lazy): load the weights first"
    if weight.dtype not in reference.FLOATS:
        found = str(weight.dtype).removeprefix("torch.")
        return f"its weight is {found}; formats take float32, bfloat16, float16"
    try:
        assert scheme.weight is not None
        scheme.weight.block.scale_shape(stored_shape(weight.shape, kind.layout))
    except ValueError as error:
        return str(error)
    return None


def _settle_ties(plans: list[Plan]) -> None:
    """Layers that share a weight are quantized together, in one format, or not at all."""
    owners: dict[int, list[Plan]] = {}
    for plan in plans:
        if plan.parameter is not None:
            owners.setdefault(id(plan.parameter), []).append(plan)
    for shared in owners.values():
        if len(shared) == 1:
            continue
        wants = {(p.entry.status, str(p.scheme.weight), p.kind and p.kind.layout) for p in shared}
        if len(wants) == 1:
            continue
        for plan in shared:
            if plan.entry.status == "quantized":
                others = ", ".join(p.name for p in shared if p is not plan)
                plan.stay(
                    "skipped", f"its weight is tied to {others}, which the recipe treats otherwise"
                )


def plan_others(model: nn.Module, plans: list[Plan], recipe: Recipe) -> Iterator[Entry]:
    """The parameters that belong to no layer of a plan."""
    ours = {id(p) for plan in plans for p in plan.module.parameters(recurse=False)}
    ours |= {id(p) for m in model.modules() if isinstance(m, QLayer) for p in m.parameters()}
    for name, parameter in model.named_parameters():
        if id(parameter) in ours:
            continue
        owner = type(model.get_submodule(name.rpartition(".")[0])).__name__
        entry = Entry(name, f"parameter of {owner}", "kept", elements=parameter.numel(),
                      bytes_before=parameter.nbytes, bytes_after=parameter.nbytes)  # fmt: skip
        scheme, pattern = recipe.decide(name)
        if parameter.ndim < 2:
            yield replace(entry, reason="a vector, such as a norm's weight or a bias")
        elif not scheme.weight:
            yield replace(
                entry,
                reason=f"pattern {pattern!r} of the recipe" if pattern else "no weight format",
            )
        else:
            reason = f"{owner} uses it directly, not through a layer that can hold codes"
            yield replace(entry, status="skipped", reason=reason)
