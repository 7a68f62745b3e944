# SPDX-License-Identifier: BSD-3-Clause
"""The device as it is, and as one that takes every liberty that devices take."""

import pytest


@pytest.fixture(params=["plain", "flushing"])
def either(request: pytest.FixtureRequest) -> str:
    """The part that computes with floats; "flushing" drops subnormals and divides badly."""
    return str(request.param)


@pytest.fixture(params=[pytest.param("plain", marks=pytest.mark.slow), "flushing"])
def hardware(request: pytest.FixtureRequest) -> str:
    """The same; the fast tests of many formats take the harder of the two."""
    return str(request.param)
