# SPDX-License-Identifier: BSD-3-Clause
"""Memory: bytes go there and come back, buffers are used again, too large ones are refused."""

import pytest
import torch

from blockscale.kernels.webgpu.gpu import memory
from blockscale.kernels.webgpu.gpu.device import GpuError, gpu
from blockscale.kernels.webgpu.gpu.memory import AXIS, allocate, download, texels, upload, zeros


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(5, 7),
        torch.randn(3, 4).to(torch.bfloat16),
        torch.arange(7, dtype=torch.uint8),  # ends within a word
        torch.arange(5, dtype=torch.int16),
        torch.tensor(3.5),
        torch.zeros(0, 4),
        torch.arange(6, dtype=torch.int64),
        torch.tensor([True, False, True]),
    ],
)
def test_a_round_trip(x):
    found = download(upload(x), tuple(x.shape), x.dtype)
    assert found.dtype == x.dtype
    assert torch.equal(found, x)


def test_strides_do_not_travel():
    x = torch.randn(4, 6)
    assert torch.equal(download(upload(x.t()), (6, 4), x.dtype), x.t())


def test_a_part_can_be_read():
    x = torch.arange(16, dtype=torch.int32)
    assert torch.equal(download(upload(x), (4,), torch.int32, start=32), x[8:12])


def test_zeros_are_zeros_in_used_memory():
    used = upload(torch.ones(64, dtype=torch.int32))
    buffer = used.buffer
    del used
    cleared = zeros(256)
    assert cleared.buffer is buffer  # it came from the pool
    assert not download(cleared, (64,), torch.int32).any()


def test_an_upload_into_used_memory_waits_for_what_reads_it():
    """Recorded work still reads the old bytes, though its buffer went back to the pool."""
    from tests.support.webgpu_device import copy

    x, y = torch.arange(64, dtype=torch.int32), torch.ones(64, dtype=torch.int32)
    result = allocate(256)
    source = upload(x)
    copy(source, result)
    del source
    other = upload(y)
    assert torch.equal(download(result, (64,), torch.int32), x)
    assert torch.equal(download(other, (64,), torch.int32), y)


def test_buffers_come_in_few_sizes():
    assert {memory._rounded(n) for n in range(257)} == {256}
    assert memory._rounded(257) == 512
    assert memory._rounded((1 << 16) + 1) == 2 << 16


def test_the_pool_keeps_few():
    held = [allocate(300) for _ in range(20)]
    del held
    assert len(memory._free[512]) <= 8
    memory.release()
    assert not memory._free


def test_too_large_a_buffer_is_refused():
    """Before anything is asked of the device, which stays usable."""
    limit = gpu().limits["max-buffer-size"]
    with pytest.raises(GpuError, match=f"at most {limit} bytes.*max-buffer-size"):
        allocate(limit + 1)
    x = torch.arange(4)
    assert torch.equal(download(upload(x), (4,), x.dtype), x)


@pytest.mark.parametrize(("bits", "nbytes"), [(8, 96), (16, 192), (32, 384)])
def test_bytes(bits: int, nbytes: int) -> None:
    made = texels((2, 3, 4), bits)
    assert made.nbytes == nbytes
    assert made.texture.format == f"rgba{bits}uint"
    assert made.texture.size == (2, 3, 4)


def test_the_error_names_device_and_limit() -> None:
    size = (1, gpu().limits[AXIS] + 1, 1)
    with pytest.raises(GpuError, match=AXIS) as error:
        texels(size, 8)
    assert gpu().name in str(error.value)
