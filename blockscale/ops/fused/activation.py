"""What a product may end in. It computes in the result's dtype, as an op behind it does."""

from torch import Tensor

from blockscale.kernels.activations import ACTIVATIONS


def activated(x: Tensor, name: str) -> Tensor:
    """x [...] -> the same after the activation of this name.

    Raises ValueError for a name that there is not.
    """
    function = ACTIVATIONS.get(name)
    if function is None:
        known = ", ".join(repr(each) for each in ACTIVATIONS)
        raise ValueError(f"no activation {name!r}; there are {known}")
    return function(x)
