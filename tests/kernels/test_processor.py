# SPDX-License-Identifier: BSD-3-Clause
"""What the system's own files say of the processor."""

import pytest
import torch

from blockscale.kernels.processor import Cache, caches, family, instructions, tensor_formats


def test_instructions_of_linux(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nflags\t\t: fpu avx2 fma avx512f avx512_vnni amx_int8 sse\n\n")
    assert instructions(info) == ("avx2", "fma", "avx512f", "avx512_vnni", "amx_int8")
    info.write_text("processor\t: 0\nFeatures\t: fp asimd asimddp i8mm bf16\n")
    assert instructions(info) == ("neon", "dotprod", "i8mm", "bf16")


def test_instructions_where_there_is_no_such_file(tmp_path, monkeypatch):
    found = {"avx2": True, "fma3": True, "avx512_f": False, "l2_cache_size": 5}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    assert instructions(tmp_path / "none") == ("avx2", "fma")
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert instructions(tmp_path / "none") == ()


def test_caches(tmp_path):
    for index, (level, kind, size, shared) in enumerate(
        [
            ("1", "Data", "48K", "0"),
            ("3", "Unified", "32M", "0-7,16-23"),
            ("2", "Unified", "1024K", "0-1"),
        ]
    ):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        told = {"level": level, "type": kind, "size": size, "shared_cpu_list": shared}
        for name, text in (told | {"coherency_line_size": "64"}).items():
            (folder / name).write_text(f"{text}\n")
    assert caches(tmp_path) == (
        Cache(1, "Data", 48 << 10, 64, 1),
        Cache(2, "Unified", 1 << 20, 64, 2),
        Cache(3, "Unified", 32 << 20, 64, 16),
    )
    assert caches(tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("capability", "has", "lacks"),
    [((6, 0), (), "int8 dp4a"), ((7, 0), ("int8 dp4a", "fp16"), "int8"),
     ((8, 6), ("bf16", "tf32", "int8"), "fp8"), ((8, 9), ("fp8",), "fp6 and fp4 in blocks of e8m0"),
     ((10, 0), ("fp6 and fp4 in blocks of e8m0", "fp8"), "")],
)  # fmt: skip
def test_tensor_cores(capability, has, lacks):
    found = tensor_formats(*capability)
    assert set(has) <= set(found)
    assert lacks not in found


def test_the_family(tmp_path):
    def told(text):
        (tmp_path / "cpuinfo").write_text(text)
        return family(tmp_path / "cpuinfo")

    assert told("vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n") == "GenuineIntel 6"
    assert told("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n") == "0x41 0xd40"
    assert told("vendor_id : x\n") == family(tmp_path / "none") != ""
