# SPDX-License-Identifier: BSD-3-Clause
"""The device's clock: more work takes longer, and marks do not disturb what is recorded."""

import time

import torch

from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory, download, upload, zeros
from blockscale.kernels.webgpu.gpu.shader import Shader
from blockscale.kernels.webgpu.gpu.timestamps import Stopwatch

WORDS = 1 << 20


def copy(source: Memory, result: Memory) -> None:
    launch(
        Shader("kernels/copy"),
        {"source": source, "result": result},
        {"count": WORDS // 4},
        WORDS // 1024,
    )


def test_times_lie_within_those_of_the_host() -> None:
    watch = Stopwatch()
    x = torch.arange(WORDS, dtype=torch.int32)
    source, result = upload(x), zeros(x.nbytes)
    copy(source, result)  # compiles
    before = time.perf_counter()
    watch.start()
    for _ in range(3):
        copy(source, result)
    seconds = watch.stop()
    assert 0 < seconds < time.perf_counter() - before
    assert torch.equal(download(result, (WORDS,), torch.int32), x)


def test_what_is_recorded_after_a_copy_does_not_replace_it() -> None:
    x = torch.arange(WORDS, dtype=torch.int32)
    source, result = upload(x), upload(x + 1)
    cleared = zeros(x.nbytes)  # recorded, and not yet given to the device
    copy(source, result)
    assert torch.equal(download(cleared, (WORDS,), torch.int32), torch.zeros_like(x))
    assert torch.equal(download(result, (WORDS,), torch.int32), x)
