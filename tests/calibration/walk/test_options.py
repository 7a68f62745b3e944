# SPDX-License-Identifier: BSD-3-Clause
"""How to walk."""

from blockscale.calibration.walk.options import Options
from blockscale.core.work.progress import Progress


def test_by_default_nothing_is_streamed_or_resumed() -> None:
    options = Options("layers", 1.0, Progress())
    assert (options.settler, options.finished) == (None, None)
