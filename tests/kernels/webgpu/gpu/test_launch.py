# SPDX-License-Identifier: BSD-3-Clause
"""Launches: grids, windows, sizes that are baked in or not."""

import time
from functools import lru_cache

import pytest
import torch
import wgpu

from blockscale.kernels.webgpu.gpu import launch as launching
from blockscale.kernels.webgpu.gpu.device import GpuError, gpu
from blockscale.kernels.webgpu.gpu.launch import Stopwatch, Window, grid, launch, pipeline_of
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate, download, upload, zeros
from blockscale.kernels.webgpu.gpu.shader import Shader

COPY = Shader("kernels/copies/words")
LIMITS = {"max-compute-workgroups-per-dimension": 65535}


@pytest.mark.parametrize("groups", [1, 65535, 65536, 131070, 131071, 10**8])
def test_a_grid_has_enough_groups_and_few_more(groups):
    x, y, z = grid(groups, LIMITS)
    assert z == 1
    assert max(x, y) <= 65535
    assert groups <= x * y < groups + y


@pytest.mark.parametrize("baked", [True, False, None])
@pytest.mark.parametrize("count", [4, 4096, 1 << 20])
def test_sizes_baked_or_not(baked, count):
    x = torch.arange(count, dtype=torch.int32)
    result = allocate(x.nbytes)
    groups = -(-count // 1024)
    launch(COPY, {"source": upload(x), "result": result}, {"count": count // 4}, groups, bake=baked)
    assert torch.equal(download(result, (count,), torch.int32), x)


def test_groups_beyond_one_dimension():
    """70,000 groups, each of which copies; the last one's words arrive."""
    count = 70_000 * 1024
    x = torch.arange(count, dtype=torch.int32)
    result = allocate(x.nbytes)
    if x.nbytes > gpu().binding_limit:
        pytest.skip("this adapter's kernels do not see as much at once")
    launch(COPY, {"source": upload(x), "result": result}, {"count": count // 4}, 70_000)
    assert torch.equal(download(result, (count,), torch.int32), x)


def test_a_window_is_what_the_kernel_sees():
    x = torch.arange(256, dtype=torch.int32)
    source, result = upload(x), upload(torch.zeros(256, dtype=torch.int32))
    windows = {"source": Window(source, 512, 256), "result": Window(result, 256, 256)}
    launch(COPY, windows, {"count": 16}, 1)
    found = download(result, (256,), torch.int32)
    assert torch.equal(found[64:128], x[128:192])
    assert not found[:64].any()
    assert not found[128:].any()


def test_no_groups_do_nothing():
    launch(COPY, {}, {"count": 0}, 0)


def test_more_than_a_kernel_can_see_is_refused():
    small = allocate(256)
    large = Window(small, 0, gpu().binding_limit + 256)
    with pytest.raises(GpuError, match=r"source has \d+ bytes, and kernels on .* see at most"):
        launch(COPY, {"source": large, "result": small}, {"count": 1}, 1)


def test_what_is_kept_of_changing_sizes_is_bounded(monkeypatch):
    """Each call bakes other sizes in: the first pipelines are gone, and what runs is right."""
    kept = lru_cache(4)(pipeline_of.__wrapped__)
    monkeypatch.setattr(launching, "pipeline_of", kept)
    made = []
    for count in (*range(4, 40, 4), 4):
        x = torch.arange(count, dtype=torch.int32)
        result = allocate(x.nbytes)
        launch(COPY, {"source": upload(x), "result": result}, {"count": count // 4}, 1, bake=True)
        made.append((result, x))
    assert kept.cache_info().currsize == 4
    assert kept.cache_info().misses == 10
    for result, x in made:
        assert torch.equal(download(result, tuple(x.shape), torch.int32), x)
    assert pipeline_of.cache_info().maxsize == launching.PIPELINES


EMPTY = "@compute @workgroup_size(1) fn main() {}"


def test_a_module_is_one_of_wgpus():
    module = launching.compiled(gpu().device, EMPTY)
    assert isinstance(module, wgpu.GPUShaderModule)


def test_errors_are_those_of_wgpu():
    with pytest.raises(wgpu.GPUError, match="let x"):
        launching.compiled(gpu().device, "fn main() { let x: u32 = 1.5; }")


def test_other_releases_make_modules_in_the_usual_way(monkeypatch):
    from wgpu.backends.wgpu_native import _api

    monkeypatch.delattr(_api, "to_c_string_view")
    made = []
    monkeypatch.setattr(
        type(gpu().device), "create_shader_module", lambda self, code: made.append(code)
    )
    launching.compiled(gpu().device, EMPTY)
    assert made == [EMPTY]


def test_indices_stay_checked(tmp_path, monkeypatch):
    """What lies beyond a buffer is not written: its neighbour in the pool keeps its words."""
    from blockscale.kernels.webgpu.gpu import shader

    (tmp_path / "beyond.wgsl").write_text(
        "@group(0) @binding(y) var<storage, read_write> y: array<u32>;\n"
        "@compute @workgroup_size(64) fn main(@builtin(local_invocation_index) i: u32) {\n"
        "    y[i + 16u * sizes.far] = 7u;\n}\n"
    )
    monkeypatch.setattr(shader, "_FOLDER", tmp_path)
    y, beside = upload(torch.zeros(64, dtype=torch.int32)), allocate(256)
    launch(Shader("beyond"), {"y": y}, {"far": 1}, 1, bake=False)
    found = download(y, (64,), torch.int32)
    assert (found[16:] == 7).all()
    assert beside.buffer is not y.buffer
    monkeypatch.undo()


WORDS = 1 << 20


def copy(source: Memory, result: Memory) -> None:
    launch(
        Shader("kernels/copies/words"),
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
