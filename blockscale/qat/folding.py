# SPDX-License-Identifier: BSD-3-Clause
"""Which batch norm follows which convolution, so that both are quantized as one."""

from collections import Counter
from collections.abc import Iterable, Iterator

from torch import fx, nn

from blockscale.layers.kinds import quantized_class
from blockscale.layers.store import QInput

NORMS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: nn.BatchNorm1d,
    nn.Conv2d: nn.BatchNorm2d,
    nn.Conv3d: nn.BatchNorm3d,
    nn.ConvTranspose1d: nn.BatchNorm1d,
    nn.ConvTranspose2d: nn.BatchNorm2d,
    nn.ConvTranspose3d: nn.BatchNorm3d,
}
Pairs = Iterable[tuple[str, str]]


def find_pairs(model: nn.Module, fuse: str | Pairs | None) -> tuple[dict[str, str], str]:
    """{convolution: the batch norm that follows it}, and a note for the ledger, perhaps empty.

    fuse: "auto": by tracing the model with torch.fx or, where that fails, by their places in
        nn.Sequential; the pairs by name; None for none.
    Raises ValueError for given pairs that cannot be folded.
    """
    if fuse is None:
        return {}, ""
    if not isinstance(fuse, str):
        return _given(model, list(fuse)), ""
    if fuse != "auto":
        raise ValueError(
            f"fuse must be 'auto', None or pairs (convolution, batch norm), got {fuse!r}"
        )
    if not any(type(module) in NORMS.values() for module in model.modules()):
        return {}, ""
    pairs, note = _traced(model)
    if pairs is None:
        pairs = dict(_in_sequence(model))
    modules = {name: model.get_submodule(name) for pair in pairs.items() for name in pair}
    times = Counter(id(modules[name]) for pair in pairs.items() for name in pair)
    return {
        conv: norm
        for conv, norm in pairs.items()
        if why_not(modules[conv], modules[norm]) is None
        and times[id(modules[conv])] == times[id(modules[norm])] == 1
    }, note


def why_not(conv: nn.Module, norm: nn.Module) -> str | None:
    """Why this batch norm cannot be folded into this convolution, or None."""
    if NORMS.get(type(conv)) is not type(norm):
        return f"{type(norm).__name__} after {type(conv).__name__} is no pair that can be folded"
    assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)
    if not norm.track_running_stats or norm.running_var is None:
        return "the batch norm keeps no running statistics"
    if norm.num_features != getattr(conv, "out_channels", None):
        return f"the batch norm has {norm.num_features} features, not the convolution's channels"
    if conv._forward_hooks or norm._forward_pre_hooks:
        return "a hook looks between the two"
    return None


def _given(model: nn.Module, pairs: list[tuple[str, str]]) -> dict[str, str]:
    modules = dict(model.named_modules(remove_duplicate=False))
    seen: set[int] = set()
    for pair in pairs:
        if len(pair) != 2 or any(name not in modules for name in pair):
            raise ValueError(f"fuse: expected names (convolution, batch norm), found {pair!r}")
        conv, norm = (modules[name] for name in pair)
        if reason := why_not(conv, norm):
            raise ValueError(f"fuse: {pair[0]!r} with {pair[1]!r}: {reason}")
        if id(conv) in seen or id(norm) in seen:
            raise ValueError(f"fuse: {pair!r} names a module that is also in another pair")
        seen |= {id(conv), id(norm)}
    return dict(pairs)


class _Tracer(fx.Tracer):
    """Looks into no layer that can be quantized."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        leaf = quantized_class(m) is not None or isinstance(m, QInput)  # edges of a prepared graph
        return leaf or super().is_leaf_module(m, module_qualified_name)


def _traced(model: nn.Module) -> tuple[dict[str, str] | None, str]:
    """Pairs of calls where the convolution's output goes to the batch norm and nowhere else."""
    try:
        graph = _Tracer().trace(model)
    except Exception as error:  # whatever the model's own forward raises when it meets a proxy
        first = f"{type(error).__name__}: {error}".partition(". ")[0]
        note = f"torch.fx cannot trace the model ({first})"
        return None, f"{note}: batch norms were looked for in nn.Sequential only"
    calls = [node for node in graph.nodes if node.op == "call_module"]
    times = Counter(id(model.get_submodule(str(node.target))) for node in calls)
    pairs = {}
    for node in calls:
        before = node.args[0] if len(node.args) == 1 and not node.kwargs else None
        if not isinstance(before, fx.Node) or before.op != "call_module":
            continue
        once = all(times[id(model.get_submodule(str(n.target)))] == 1 for n in (before, node))
        if once and len(before.users) == 1:
            pairs[str(before.target)] = str(node.target)
    return {c: n for c, n in pairs.items() if type(model.get_submodule(n)) in NORMS.values()}, ""


def _in_sequence(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Neighbours in an nn.Sequential."""
    for name, module in model.named_modules():
        if type(module) is nn.Sequential:
            names = [f"{name}.{child}".lstrip(".") for child in module._modules]
            kinds = [type(child) for child in module]
            for i in range(len(names) - 1):
                if NORMS.get(kinds[i]) is kinds[i + 1]:
                    yield names[i], names[i + 1]
