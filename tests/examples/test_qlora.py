# SPDX-License-Identifier: BSD-3-Clause
"""The QLoRA example: adapters learn, codes stay, and the base is the base without them."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("peft")

pytestmark = [
    pytest.mark.filterwarnings("ignore:blockscale. merged adapters"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]


@pytest.fixture(scope="module")
def qlora() -> Any:
    path = Path(__file__).parents[2] / "examples" / "qlora.py"
    spec = importlib.util.spec_from_file_location("qlora", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_few_steps(qlora: Any) -> None:
    losses = qlora.run((20, 15))
    assert losses.source_after < losses.source_before - 0.02
    assert losses.disabled == losses.quantized  # bit for bit
    assert abs(losses.merged - losses.source_after) < 0.05


def test_the_texts_are_there(qlora: Any) -> None:
    prose, program = qlora.documentation(), qlora.source()
    assert len(prose) > 100_000 and len(program) > 20_000
    assert int(prose.max()) < 256 and program.dtype == torch.int64
    [first, second] = qlora.batches(program, 2)
    assert first.shape == (qlora.BATCH, qlora.LENGTH) and not torch.equal(first, second)


@pytest.mark.slow
def test_whole(qlora: Any) -> None:
    losses = qlora.run()
    assert losses.quantized - losses.documentation < 0.1
    assert losses.source_after < losses.source_before - 0.4
    assert losses.disabled == losses.quantized
    assert abs(losses.merged - losses.source_after) < 0.1


@pytest.mark.slow
def test_by_transformers_trainer(qlora: Any) -> None:
    pytest.importorskip("accelerate")
    losses = qlora.run((60, 60), trainer=True)
    assert losses.source_after < losses.source_before - 0.1
    assert losses.disabled == losses.quantized
