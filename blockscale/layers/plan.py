"""What is to become of each layer and parameter of a model, decided before anything is changed."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from types import ModuleType

from torch import Tensor, nn

from blockscale import layers
from blockscale.core import reference
from blockscale.core.discover import import_all
from blockscale.core.layout import stored_shape
from blockscale.core.ledger import Entry, Status
from blockscale.core.recipe import Recipe, Scheme
from blockscale.layers.layer import QLayer

# Layers that hold weights but that nothing here replaces; subclasses of those it replaces, too.
_RELATIVES = (nn.Linear, nn.Embedding, nn.EmbeddingBag, nn.Bilinear, nn.RNNBase, nn.RNNCellBase)
_REPLACED = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d)

# Modules that read the weights of layers inside them without calling those layers.
_BYPASSES = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


@cache
def _kinds() -> list[ModuleType]:
    """The files of this folder that hold a kind of layer."""
    files = import_all(layers.__name__, layers.__path__)
    return [file for file in files if hasattr(file, "replacement")]


def quantized_class(module: nn.Module) -> type[QLayer] | None:
    """The quantized layer that replaces a float layer of exactly this class, or None."""
    for kind in _kinds():
        found: type[QLayer] | None = kind.replacement(type(module))
        if found is not None:
            return found
    return None


class Plan:
    """What is to happen to one layer, which the model may have under several names."""

    def __init__(self, names: list[str], module: nn.Module, scheme: Scheme):
        self.names, self.module, self.scheme = names, module, scheme
        self.kind = None if isinstance(module, QLayer) else quantized_class(module)
        self.parameter: Tensor | None = None
        if self.kind is not None:
            self.parameter = module._parameters.get("weight")
        self.entry = Entry(names[0], type(module).__name__, "quantized")
        self.owned: list[Tensor] = []  # parameters that no earlier entry counts
        self.tied = False  # whether another layer has the same weight

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]

    @property
    def bytes_beside(self) -> int:
        """Bytes of what it owns besides the weight."""
        return sum(p.nbytes for p in self.owned if p is not self.parameter)

    @property
    def owns_weight(self) -> bool:
        """False where an earlier entry counts the weight: it is tied."""
        return any(p is self.parameter for p in self.owned)

    def features(self, part: str) -> int:
        """The size of the dimension along which the layer's input or output is quantized."""
        assert self.kind is not None and self.parameter is not None
        if part == "input" or not self.kind.takes_input:  # a table gives rows of its weight
            return self.kind.features(self.module)
        return stored_shape(self.parameter.shape, self.kind.layout)[0]

    def stay(self, status: Status, reason: str) -> None:
        """Leave the layer in float, and say why."""
        self.entry = replace(self.entry, status=status, reason=reason)

    def entries(self) -> list[Entry]:
        """Its entry, and one for each further name."""
        same = f"the same layer as {self.name}"
        again = replace(
            self.entry, reason=same, notes=(), elements=0, bytes_before=0, bytes_after=0
        )
        return [self.entry, *(replace(again, name=name) for name in self.names[1:])]


def plan_layers(model: nn.Module, recipe: Recipe) -> list[Plan]:
    """One plan for each layer that could be quantized or that looks as if it could."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, QLayer) or quantized_class(module) or _looks_like_a_layer(module):
            names.setdefault(module, []).append(name)
    plans = [_plan(model, recipe, module, names[module]) for module in names]
    _settle_ties(model, plans)
    _count(plans)
    return plans


def _plan(model: nn.Module, recipe: Recipe, module: nn.Module, names: list[str]) -> Plan:
    decisions = [recipe.decide(name) for name in names]
    scheme, pattern = decisions[0]
    plan = Plan(names, module, scheme)
    if isinstance(module, QLayer):
        plan.stay("kept", "already quantized")
    elif any(other != scheme for other, _ in decisions):
        shared = ", ".join(names)
        plan.stay("skipped", f"{shared} are one layer, which the recipe treats in several ways")
    elif not scheme:
        plan.stay(
            "kept", f"pattern {pattern!r} of the recipe" if pattern else "the recipe is empty"
        )
    elif scheme.weight is None:
        plan.stay("skipped", "its input and output are quantized only along with its weight")
    elif reason := _why_not(model, plan):
        plan.stay("skipped", reason)
    return plan


def _looks_like_a_layer(module: nn.Module) -> bool:
    """Subclasses and relatives of the layers we replace: they must not be passed over silently."""
    return isinstance(module, (*_RELATIVES, nn.modules.conv._ConvNd))


def _why_not(model: nn.Module, plan: Plan) -> str | None:
    """Why this layer cannot be quantized, or None."""
    module = plan.module
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        return "it is lazy and its weight holds no data: run the model once first"
    if plan.kind is None:
        name = type(module).__name__
        if isinstance(module, _REPLACED):
            return f"{name} is a subclass: a quantized layer would replace what it adds"
        return f"there is no quantized {name}"
    for name in plan.names:
        parent = model.get_submodule(name.rpartition(".")[0])
        if isinstance(parent, _BYPASSES):
            return f"{type(parent).__name__} reads its weight without calling it"
    if "forward" in vars(module):
        return "its forward was replaced on the instance, which a quantized layer would undo"
    return plan.kind.refuses(module) or _why_not_weight(plan)


def _why_not_weight(plan: Plan) -> str | None:
    weight = plan.parameter
    if weight is None:
        return "its weight is computed (weight_norm, pruning, parametrization): remove that first"
    if weight.device.type == "meta":
        return "its weight holds no data (meta device): load the weights first"
    if weight.dtype not in reference.FLOATS:
        found = str(weight.dtype).removeprefix("torch.")
        return f"its weight is {found}; formats take float32, bfloat16, float16"
    try:
        assert plan.kind is not None and plan.scheme.weight is not None
        plan.scheme.weight.block.scale_shape(stored_shape(weight.shape, plan.kind.layout))
    except ValueError as error:
        return str(error)
    return None


def _settle_ties(model: nn.Module, plans: list[Plan]) -> None:
    """Layers that share a weight are quantized together, in one format, or not at all."""
    owners: dict[int, list[Plan]] = {}
    for plan in plans:
        if plan.parameter is not None:
            owners.setdefault(id(plan.parameter), []).append(plan)
    holders: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        holders.setdefault(id(parameter), []).append(name)
    for key, shared in owners.items():
        ours = {f"{name}.weight" for plan in shared for name in plan.names}
        others = [name for name in holders.get(key, ()) if name not in ours]
        wants = {(p.entry.status, str(p.scheme.weight), p.kind and p.kind.layout) for p in shared}
        for plan in shared:
            plan.tied = len(shared) > 1
        for plan in shared if others or len(wants) > 1 else ():
            if plan.entry.status == "quantized":
                ties = others + [p.name for p in shared if p is not plan]
                told = f"its weight is tied to {', '.join(ties)}, which cannot share its codes"
                plan.stay("skipped", told)


def _count(plans: list[Plan]) -> None:
    """Give every parameter to the first entry that holds it."""
    counted: set[int] = set()
    for plan in plans:
        for parameter in plan.module.parameters(recurse=False):
            if id(parameter) not in counted:
                counted.add(id(parameter))
                plan.owned.append(parameter)
        size, elements = sum(p.nbytes for p in plan.owned), sum(_numel(p) for p in plan.owned)
        if isinstance(plan.module, QLayer):
            codes = plan.module.weight
            if id(codes) not in counted:
                counted.add(id(codes))
                size, elements = size + codes.nbytes, elements + codes.shape.numel()
        plan.entry = replace(plan.entry, elements=elements, bytes_before=size, bytes_after=size)


def _numel(parameter: Tensor) -> int:
    return 0 if nn.parameter.is_lazy(parameter) else parameter.numel()


def plan_others(model: nn.Module, plans: list[Plan], recipe: Recipe) -> Iterator[Entry]:
    """The parameters that belong to no layer of a plan."""
    counted = {id(p) for plan in plans for p in plan.owned}
    for name, parameter in model.named_parameters():
        if id(parameter) in counted or nn.parameter.is_lazy(parameter):
            continue
        owner = type(model.get_submodule(name.rpartition(".")[0])).__name__
        size = parameter.nbytes
        entry = Entry(name, f"parameter of {owner}", "kept", elements=parameter.numel())
        entry = replace(entry, bytes_before=size, bytes_after=size)
        scheme, pattern = recipe.decide(name)
        if parameter.ndim < 2:
            yield replace(entry, reason="a vector, such as a norm's weight or a bias")
        elif not scheme.weight:
            why = f"pattern {pattern!r} of the recipe" if pattern else "no weight format"
            yield replace(entry, reason=why)
        else:
            reason = f"{owner} uses it directly, not through a layer that can hold codes"
            yield replace(entry, status="skipped", reason=reason)
