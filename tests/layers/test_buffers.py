"""Buffers that keep their dtype and know in which format they are."""

import pytest

from tests.layers.models import (
    quantized,
)


@pytest.mark.parametrize(("one", "other"), [("mxint8", "mxfp8"), ("mxfp8", "mxfp8_e5m2")])
def test_a_state_of_another_format_is_refused(one: str, other: str) -> None:
    """Equal shapes, other meaning; also as the plain dict that safetensors, DCP and FSDP give."""
    model, state = quantized(other), quantized(one).state_dict()
    for found in (state, dict(state)):
        with pytest.raises((RuntimeError, ValueError), match=r"format|torch\.int8"):
            model.load_state_dict(found)
