"""What is decided of each layer before anything is changed."""

import pytest
from torch import nn

import blockscale as bs
from blockscale.layers.store import QWeight
from tests.layers.models import (
    quantized,
    small,
    unchanged,
)


def test_formats_that_are_not_applied_are_named() -> None:
    """A recipe for inputs alone does nothing so far: that must not look like success."""
    for recipe in (bs.Recipe(input="int8"), bs.Recipe(output="mxfp8")):
        with pytest.raises(bs.SkippedError):
            bs.quantize_(small(), recipe, strict=True)
        with pytest.warns(UserWarning, match="1: skipped"):
            bs.quantize_(small(), recipe)


def test_a_model_that_is_a_layer_or_quantized_already() -> None:
    for layer in (nn.Linear(4, 4), nn.Conv2d(4, 4, 1), quantized()[1]):
        with pytest.raises(ValueError, match="wrap it"):
            bs.quantize_(layer, "int8")
    model = quantized()
    before, again = unchanged(model), bs.quantize_(model, "mxfp4")
    assert unchanged(model) == before
    assert {again[n].reason for n in ("0", "1", "5", "8")} == {"already quantized"}
    stores = [m for m in model.modules() if isinstance(m, QWeight)]
    held = [*model.parameters(), *(t for store in stores for t in store.buffers())]
    assert again.bytes_after == again.bytes_before == sum(t.nbytes for t in held)
