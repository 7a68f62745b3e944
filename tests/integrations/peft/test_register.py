"""peft's own table of methods names ours for LoRA."""

import pytest

peft = pytest.importorskip("peft")

import blockscale.integrations.peft as ours  # noqa: E402 - needs peft
from blockscale.layers.model import swap  # noqa: E402


def test_registered_once() -> None:
    ours.register()
    ours.register()
    assert peft.PEFT_TYPE_TO_TUNER_MAPPING[peft.PeftType.LORA] is ours.QuantizedLoraModel
    assert issubclass(ours.QuantizedLoraModel, peft.LoraModel)
    assert len([each for each in swap.PLACED if each.__module__.startswith(ours.__name__)]) == 1
