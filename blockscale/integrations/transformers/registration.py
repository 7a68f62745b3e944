"""transformers learns the method "blockscale".

transformers 5 finds methods in two tables, and nothing of a package that was not imported: there is
no entry point. So one line has to be run before `from_pretrained`:

    import blockscale.integrations.transformers

The tables are keyed by `quant_method`. The config.json that we write says `method` in its place
(docs/files.md): without that line transformers refuses the directory, where with a `quant_method`
that it does not know it would fill the model with random weights. Two functions of transformers
look that key up, and are told what `method` means.
"""

from typing import Any

from transformers.quantizers import auto

from blockscale.integrations.config import METHOD, with_method
from blockscale.integrations.transformers.config import BlockscaleConfig
from blockscale.integrations.transformers.quantizer import BlockscaleQuantizer


def register() -> None:
    """Put the config and the quantizer into transformers' tables; again, nothing happens."""
    if METHOD in auto.AUTO_QUANTIZER_MAPPING:
        return
    auto.register_quantization_config(METHOD)(BlockscaleConfig)
    auto.register_quantizer(METHOD)(BlockscaleQuantizer)
    _read_method(auto)


def _read_method(module: Any) -> None:
    from_dict = module.AutoQuantizationConfig.from_dict
    supports = module.AutoHfQuantizer.supports_quant_method
    module.AutoQuantizationConfig.from_dict = staticmethod(
        lambda config, *args, **kwargs: from_dict(with_method(config), *args, **kwargs)
    )
    module.AutoHfQuantizer.supports_quant_method = staticmethod(
        lambda config: supports(with_method(config))
    )
