# SPDX-License-Identifier: BSD-3-Clause
"""A directory gives the same bytes where a library has told threads to take subnormals for 0."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale.files.directory.quantize_directory import quantize_directory
from tests.support import fresh
from tests.support.file_models import contents, write_model

ROOT = Path(__file__).parents[3]
DRIVER = """
import sys, warnings
import torch
import blockscale as bs
from blockscale.files.directory.quantize_directory import quantize_directory
model, out, flush = sys.argv[1:]
warnings.simplefilter("ignore")
torch.set_num_threads(2)
if flush == "flush":
    torch.set_flush_denormal(True)
    torch.ones(1 << 17) + 1  # torch's other threads are started
with bs.use("reference"):
    quantize_directory(model, out, "int8:group32:fp32")
    quantize_directory(model, out + "-two", "nvfp4")
    quantize_directory(model, out + "-large", "e4m3:tensor:fp32")
assert (torch.ones(1) * 2.0**-140).any().item() == (flush != "flush")
"""


def run(model: Path, out: Path, flush: str) -> dict[str, bytes]:
    fresh.run(DRIVER, model, out, flush, cwd=ROOT, ready=fresh.WITH_OURS, check=True)
    names = (out, Path(f"{out}-two"), Path(f"{out}-large"))
    return {f"{i}/{n}": b for i, path in enumerate(names) for n, b in contents(path).items()}


@pytest.fixture
def flush() -> Iterator[None]:
    yield
    torch.set_flush_denormal(False)


@pytest.mark.filterwarnings("ignore")
def test_subnormal_weights(tmp_path: Path, flush: None) -> None:
    torch.manual_seed(0)
    tiny = torch.randn(8, 64) * 2.0**-128
    model = write_model(tmp_path / "model", {"a.weight": tiny, "b.weight": tiny * 2})
    for name in ("kept", "flushed"):
        torch.set_flush_denormal(name == "flushed")
        with bs.use("reference"):
            quantize_directory(model, tmp_path / name, "nvfp4")
    assert contents(tmp_path / "kept") == contents(tmp_path / "flushed")


@pytest.mark.slow
def test_with_threads_that_were_started_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tiny = torch.randn(40, 64) * 2.0**-128
    large = torch.randn(64, 4096) * 2.0**-128  # more than one of torch's threads would take
    model = write_model(tmp_path / "model", {"a.weight": tiny, "b.weight": large})
    assert run(model, tmp_path / "flushed", "flush") == run(model, tmp_path / "kept", "")
