# SPDX-License-Identifier: BSD-3-Clause
"""Shaders without counters in their loops: the same results, the same errors."""

import pytest
import torch
import wgpu

from blockscale.kernels.webgpu.gpu import compiling
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import allocate, download, upload
from blockscale.kernels.webgpu.gpu.shader import Shader

EMPTY = "@compute @workgroup_size(1) fn main() {}"


def test_a_module_is_one_of_wgpus():
    module = compiling.compiled(gpu().device, EMPTY)
    assert isinstance(module, wgpu.GPUShaderModule)


def test_errors_are_those_of_wgpu():
    with pytest.raises(wgpu.GPUError, match="let x"):
        compiling.compiled(gpu().device, "fn main() { let x: u32 = 1.5; }")


def test_other_releases_make_modules_in_the_usual_way(monkeypatch):
    from wgpu.backends.wgpu_native import _api

    monkeypatch.delattr(_api, "to_c_string_view")
    made = []
    monkeypatch.setattr(
        type(gpu().device), "create_shader_module", lambda self, code: made.append(code)
    )
    compiling.compiled(gpu().device, EMPTY)
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
    launch(Shader("beyond"), {"y": y}, {"far": 1}, 1, baked=False)
    found = download(y, (64,), torch.int32)
    assert (found[16:] == 7).all()
    assert beside.buffer is not y.buffer
    monkeypatch.undo()
