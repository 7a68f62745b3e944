# SPDX-License-Identifier: BSD-3-Clause
"""Launch settings as they are on a GPU, though Triton's interpreter runs the kernels."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def settings_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tiles as small as they are there, so that tensors take several programs."""
    from blockscale.kernels.cuda.primitives import plan as plans
    from blockscale.kernels.cuda.primitives.plan import plan

    monkeypatch.setattr(plans, "interpreting", lambda: False)
    plan.cache_clear()
    yield
    plan.cache_clear()
