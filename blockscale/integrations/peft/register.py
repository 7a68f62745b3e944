"""Make peft's LoRA know quantized layers."""

from peft import PEFT_TYPE_TO_TUNER_MAPPING, PeftType

from blockscale.integrations.peft.tuner import QuantizedLoraModel
from blockscale.integrations.peft.wrapping import adopt
from blockscale.layers.model.swap import PLACED


def register() -> None:
    """Let `get_peft_model`, `PeftModel.from_pretrained`, transformers' `add_adapter` and diffusers
    build LoRA on quantized layers. Harmless where it was done before."""
    PEFT_TYPE_TO_TUNER_MAPPING[PeftType.LORA] = QuantizedLoraModel
    if adopt not in PLACED:
        PLACED.append(adopt)
