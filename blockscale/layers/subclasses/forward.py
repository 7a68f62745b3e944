# SPDX-License-Identifier: BSD-3-Clause
"""What a subclass of a float layer computes: the same as its parent, or something of its own."""

from torch import nn

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
PARENTS = (nn.Linear, nn.Embedding, nn.EmbeddingBag, *_CONVOLUTIONS, *_TRANSPOSED)

# Their forward is written in another way and means the same: (beginning of the module, class).
_SPELLED_OTHERWISE = (("transformers.models.falcon.", "FalconLinear"), ("timm.layers.", "Linear"))
_declared: set[type] = set()


def computes_as_parent(kind: type[nn.Module]) -> type[nn.Module]:
    """Say that a subclass of nn.Linear, nn.Embedding or a convolution computes what its parent
    does, though it has a forward of its own; usable as a decorator.

    Its input and output are quantized then as well, where a recipe says so, and its forward is
    never called. Raises ValueError for a class that is no such subclass.
    """
    parent = parent_of(kind)
    if parent is None or parent is kind:
        names = ", ".join(each.__name__ for each in PARENTS)
        raise ValueError(
            f"{kind.__name__} is not a subclass of a layer that can be quantized: {names}"
        )
    _declared.add(kind)
    return kind


def parent_of(kind: type) -> type[nn.Module] | None:
    """The layer of torch.nn that it is, or is a subclass of, among those that are replaced."""
    return next((each for each in kind.__mro__ if each in PARENTS), None)


def same_meaning(kind: type) -> bool:
    """Whether a class is known to compute what its parent does in other words."""
    known = any(
        kind.__name__ == name and kind.__module__.startswith(module)
        for module, name in _SPELLED_OTHERWISE
    )
    return known or kind in _declared


def has_own_forward(kind: type, parent: type[nn.Module]) -> bool:
    """Whether a subclass computes something else than its parent, as far as its code shows."""
    if same_meaning(kind):
        return False
    steps = ("forward", "_conv_forward", "_output_padding")
    return any(getattr(kind, step, None) is not getattr(parent, step, None) for step in steps)
