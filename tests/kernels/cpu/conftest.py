"""Without the library the tests of its kernels are left out; tests/kernels/test_build.py then fails."""

from collections.abc import Iterator

import pytest

from blockscale.kernels.cpu import load

native = load()
collect_ignore_glob = ["test_*.py"] if isinstance(native, str) else []
ISAS = [] if isinstance(native, str) else native.isas()


@pytest.fixture(scope="module", params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set of this processor in turn."""
    before = native.isa()
    native.select_isa(request.param)
    yield request.param
    native.select_isa(before)
