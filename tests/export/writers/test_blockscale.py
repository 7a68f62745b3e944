# SPDX-License-Identifier: BSD-3-Clause
"""Our own files hold every format."""

from pathlib import Path

import torch

import blockscale as bs
from blockscale.export.writers import writer_of
from tests.support.conversion_models import write


def test_every_kind_of_part(tmp_path: Path) -> None:
    spelled = (
        "nvfp4",
        "uint4:group32:fp16:asym",
        "uint4:group32:fp16:offset",
        "nf4:flat64:fp32",
    )
    held = {f"{i}.weight": bs.quantize(torch.randn(8, 64), fmt) for i, fmt in enumerate(spelled)}
    with bs.checkpoint(write(tmp_path / "m", held, config={})) as found:
        for name, q in held.items():
            assert found[name].format == q.format
            assert torch.equal(found[name].dequantize(), q.dequantize())
    assert not (tmp_path / "m" / "config.json").exists()
    assert list(writer_of("blockscale").forms(q.format, (8, 64))) == [str(q.format)]
