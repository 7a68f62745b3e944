"""Quantize as a producer does: plain PyTorch, the same bits on every device."""

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.blocks import Blocks
from blockscale.core.format import Format
from blockscale.core.profiles import scales
from blockscale.core.profiles.codes import encode
from blockscale.core.profiles.knobs import Encoder, Profile
from blockscale.core.reference import QParams
from blockscale.core.scales.two_level import TwoLevel


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
    if profile.encoder is not None:
        return (*_encoded(x, profile.encoder, fmt), fmt)
    chosen = scales.choose(x, profile, fmt)
    return encode(x, chosen, profile, fmt), chosen.qparams, fmt


def _encoded(x: Tensor, encoder: Encoder, fmt: Format) -> tuple[Tensor, QParams]:
    """Codes and scales by an encoder, which sees finite numbers; what is not is the contract's."""
    wide = reference.widen(x)
    finite = wide.isfinite()
    if bool(finite.all()):
        return encoder(x, fmt)
    blocks = Blocks(wide, fmt.block)
    low, high = (fmt.block.expand(end, x.shape) for end in blocks.range(bare=True))
    known = torch.where(finite, wide, torch.where(wide > 0, high, low))
    codes, qparams = encoder(known.masked_fill(wide.isnan(), 0.0).to(x.dtype), fmt)
    if fmt.element.nan_code is not None:
        codes = torch.where(wide.isnan(), fmt.element.nan_code, codes).to(codes.dtype)
    if not fmt.scale.poisons:
        return codes, qparams
    nan = fmt.scale.inner.element.nan_code if isinstance(fmt.scale, TwoLevel) else 255
    stored = torch.where(blocks.poisoned(), nan or 0, qparams.scale)
    return codes, qparams._replace(scale=stored.to(qparams.scale.dtype))
