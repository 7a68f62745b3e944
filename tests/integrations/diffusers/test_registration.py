"""diffusers' tables, once blockscale.integrations.diffusers is imported."""

import pytest

from tests.integrations.diffusers.models import DIFFUSERS

pytestmark = DIFFUSERS


def test_both_spellings_of_the_method() -> None:
    from diffusers.quantizers.auto import AUTO_QUANTIZER_MAPPING, DiffusersAutoQuantizer

    from blockscale.integrations.diffusers import BlockscaleConfig, BlockscaleQuantizer, register

    register()
    assert AUTO_QUANTIZER_MAPPING["blockscale"] is BlockscaleQuantizer
    told = BlockscaleConfig("mxfp4").to_dict()
    for config in (told, {"quant_method": "blockscale", "recipe": told["recipe"]}):
        found = DiffusersAutoQuantizer.from_config(config, pre_quantized=False)
        assert found.quantization_config == BlockscaleConfig("mxfp4")
    assert BlockscaleConfig("mxfp4").quant_method.value == "blockscale"
    with pytest.raises(ValueError, match="no `quant_method`"):
        DiffusersAutoQuantizer.from_dict({"recipe": "mxfp4"})
