"""The device as it is, and as one that takes every liberty that devices take."""

import pytest


@pytest.fixture(params=["plain", "flushing"])
def hardware(request: pytest.FixtureRequest) -> str:
    """The part that computes with floats; "flushing" drops subnormals and divides badly."""
    return str(request.param)
