# SPDX-License-Identifier: BSD-3-Clause
"""Which way the matrices of a stacked parameter lie, and of how many matrices each is made.

A parameter [E, n, k] is a stack of E matrices with blocks along k, the sum. What else there is to
know of it, its shape does not tell: whether the model has [E, k, n] instead (gpt-oss, Llama 4), and
whether a file of the hub has each matrix in parts, the gate and the up projection of an expert,
which transformers joins when it loads them (Mixtral, Qwen, DeepSeek, OLMoE). The parts are
quantized each by itself, so that a model and its files get the same bits.
"""

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import nn

# Classes whose stacks are [E, k, n], beside those that say `is_transposed`
_TRANSPOSED = ("Llama4TextExperts",)
# Classes whose stacks are matrices [E * n, k], and the attribute that is E
_JOINED = {"DbrxExpertGLU": "moe_num_experts"}


class Stack(NamedTuple):
    """layout: of blockscale.core.pack; parts: as blockscale.core.joined_weights.of_stack.

    joined: whether servers compute the parts as one, as gate and up (core.joined_weights)
    """

    layout: str = "plain"
    parts: int = 1
    joined: bool = False

    @property
    def parts_that_share(self) -> int:
        """Of how many parts a matrix consists that share their outer scale."""
        return self.parts if self.joined else 1


PLAIN = Stack()


def stacks(model: nn.Module) -> dict[str, Stack]:
    """{parameter: what is known of it} of a model's stacks of matrices.

    These are its parameters of three dimensions, and of two where a matrix is a joined stack.
    """
    joined = joined_rows(model)
    found = {}
    for prefix, module in model.named_modules():
        for own, parameter in module._parameters.items():
            name = f"{prefix}.{own}" if prefix else own
            layout = "transposed" if _transposed(module) else "plain"
            if parameter is None:
                continue
            if parameter.ndim == 3:
                rows = 2 if layout == "transposed" else 1
                parts = next((n for end, dim, n in joined if _ends(name, end) and dim == rows), 1)
                found[name] = Stack(layout, parts, parts > 1)
            elif parameter.ndim == 2 and (experts := _JOINED.get(type(module).__name__)):
                found[name] = Stack("plain", int(getattr(module, experts)))
    return found


def _transposed(module: Any) -> bool:
    """Whether a module's stacks are [E, k, n]."""
    return type(module).__name__ in _TRANSPOSED or getattr(module, "is_transposed", False) is True


def _ends(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}")


def joined_rows(model: nn.Module) -> list[tuple[str, int, int]]:
    """What transformers joins when it loads a model: (end of the parameter's name, the dimension
    along which it concatenates, how many tensors of the file).

    Empty for models that are not of transformers, whose files have their parameters as they are.
    """
    found = []
    for each in _conversions(model):
        operations = getattr(each, "operations", ())
        targets, sources = each.target_patterns, each.source_patterns
        dims = [op.dim for op in operations if type(op).__name__ == "Concatenate"]
        if len(targets) == 1 and len(sources) > 1 and len(dims) == 1 and "\\" not in targets[0]:
            found.append((targets[0].lstrip("."), int(dims[0]), len(sources)))
    return found


def _conversions(model: nn.Module) -> Iterator[Any]:
    """What transformers does with the tensors of a file, of each of its models in this one."""
    modeling = sys.modules.get("transformers.modeling_utils")
    mapping = sys.modules.get("transformers.conversion_mapping")
    conversions = getattr(mapping, "get_model_conversion_mapping", None)  # of transformers 5
    if modeling is None or conversions is None:
        return
    of_transformers = modeling.PreTrainedModel
    inside: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, of_transformers) and not any(_within(name, n) for n in inside):
            inside.append(name)
            yield from conversions(module, add_legacy=False)


def _within(name: str, outer: str) -> bool:
    return not outer or name.startswith(f"{outer}.")
