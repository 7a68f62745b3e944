"""Devices that leave out sums are found, and it is said once."""

from collections.abc import Iterator

import pytest

from blockscale.kernels.webgpu.primitives import swift_sums


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    swift_sums.refusal.cache_clear()
    yield
    swift_sums.refusal.cache_clear()


def test_lavapipe_adds_what_it_is_told_to() -> None:
    assert swift_sums.refusal() is None


def test_without_sums_nothing_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swift_sums, "rounded", lambda x, fmt: x)
    with pytest.warns(UserWarning, match="leaves out sums .* round to int8, e4m3"):
        reason = swift_sums.refusal()
    assert reason is not None and swift_sums.refusal() == reason  # a second warning is an error
