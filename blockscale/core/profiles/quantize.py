"""Quantize as a producer does: plain PyTorch, the same bits on every device."""

from torch import Tensor

from blockscale.core import reference
from blockscale.core.format import Format
from blockscale.core.profiles import scales
from blockscale.core.profiles.codes import encode
from blockscale.core.profiles.knobs import Profile
from blockscale.core.reference import QParams


def quantize(x: Tensor, profile: Profile) -> tuple[Tensor, QParams, Format]:
    """x [...] -> codes [...], what stands beside them and the format that says what they mean.

    Raises TypeError for a dtype other than float32, bfloat16 and float16, ValueError for a block
    that does not fit x, or that the producer refuses.
    """
    reference.widen(x[:0] if x.ndim else x)
    fmt = profile.result(x.dtype)
    profile.check_blocks(x.shape)
    if profile.contract:
        qparams = reference.choose_qparams(x, fmt)
        return reference.quantize(x, qparams, fmt), qparams, fmt
    chosen = scales.choose(x, profile, fmt)
    return encode(x, chosen, profile, fmt), chosen.qparams, fmt
