"""Device maps that quantized layers can follow, and others."""

from typing import Any

import pytest

from blockscale.integrations.transformers.placement import check_devices


@pytest.mark.parametrize(
    "places", [None, "auto", {"": "cpu"}, {"": "meta"}, {"a": 0, "b": 1}, {"a": "cuda:0"}], ids=str
)
def test_places(places: Any) -> None:
    check_devices(places)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"a": 0, "model.layers.3": "disk"}, "'model.layers.3' on disk"),
        ({"a": 0, "lm_head": "cpu"}, "'lm_head' on cpu"),
        ({"": "disk"}, "'the model' on disk"),
    ],
)
def test_refused(places: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_devices(places)
