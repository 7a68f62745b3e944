"""Blocks of a convolution's input that would run along the image, where channels are meant."""

import re

from blockscale.core.layout import of_convolution
from blockscale.core.recipe import Scheme


def check_axes(name: str, scheme: Scheme, layout: str, rank: int) -> None:
    """Raise ValueError for an input or output whose blocks are rows or columns of an image.

    A convolution's input is quantized with its channels last (docs/design.md), so that `channel1`
    is not the channels of PyTorch's layout but the rows of each image. Nobody has asked for those.

    name, layout, rank: of the layer, and of its weight.
    """
    if not of_convolution(layout):
        return
    for part in ("input", "output"):
        fmt = getattr(scheme, part)
        named = fmt and re.fullmatch(r"(channel|group\d+@)(-?\d+)", fmt.block.name)
        if not named:
            continue
        dim = int(named[2]) if named[2].startswith("-") else int(named[2]) - rank
        if -rank < dim < -1:
            sizes = ("depth", "height", "width")[5 - rank :]
            instead = "channel-1" if named[1] == "channel" else named[1].removesuffix("@")
            raise ValueError(
                f"{name}: its {part} in {fmt} would have scales along the image's "
                f"{sizes[dim + len(sizes) + 1]}, as a convolution's {part} is quantized with its "
                f"channels last, [batch, {', '.join(sizes)}, channels]: for channels write "
                f"{instead}, or tensor for one scale, if need be in a rule for {name!r}"
            )
