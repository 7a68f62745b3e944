"""diffusers learns the method "blockscale", as transformers does (integrations.transformers).

It finds methods in two tables as well. Its config.json says `method`, too, so that a diffusers that
knows no blockscale refuses the directory.
"""

from typing import Any

from diffusers.quantizers import auto

from blockscale.integrations.config import METHOD, with_method
from blockscale.integrations.diffusers.config import BlockscaleConfig
from blockscale.integrations.diffusers.quantizer import BlockscaleQuantizer


def register() -> None:
    """Put the config and the quantizer into diffusers' tables; again, nothing happens."""
    if METHOD in auto.AUTO_QUANTIZER_MAPPING:
        return
    auto.AUTO_QUANTIZATION_CONFIG_MAPPING[METHOD] = BlockscaleConfig
    auto.AUTO_QUANTIZER_MAPPING[METHOD] = BlockscaleQuantizer
    _read_method(auto.DiffusersAutoQuantizer)


def _read_method(kind: Any) -> None:
    from_dict = kind.from_dict
    kind.from_dict = staticmethod(lambda config: from_dict(with_method(config)))
