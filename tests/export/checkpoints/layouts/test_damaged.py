# SPDX-License-Identifier: BSD-3-Clause
"""Parts that are missing, of other shapes or dtypes, or of any bytes: FileError or values."""

import random

import pytest
import torch

import blockscale as bs
from tests.export.checkpoints.layouts.recorded import cases, directory

DTYPES = (
    torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.uint32, torch.bool, torch.float8_e4m3fn,
)  # fmt: skip
SHAPES = ((), (0,), (1,), (3,), (0, 4), (1, 1), (5, 0), (16, 1), (2, 2, 2), (1, 128))
PRODUCERS = ("gptq", "awq", "bitsandbytes", "hqq", "quanto", "mlx")


def damaged(stored, chance):
    """One to three of the tensors gone, of another shape or dtype, or of any bytes."""
    stored = dict(stored)
    for _ in range(chance.randint(1, 3)):
        if not stored:
            break
        name = chance.choice(sorted(stored))
        how, tensor = chance.randrange(5), stored[name]
        if how == 0:
            del stored[name]
        elif how == 1:
            stored[name] = torch.ones(chance.choice(SHAPES)).to(tensor.dtype)
        elif how == 2:
            stored[name] = torch.ones(tensor.shape).to(chance.choice(DTYPES))
        elif how == 3 and tensor.ndim:
            stored[name] = tensor[: tensor.shape[0] // 2].clone()
        elif tensor.numel() and tensor.ndim:
            data = tensor.contiguous().clone().view(torch.uint8).flatten()
            for _ in range(4):
                data[chance.randrange(data.numel())] = chance.randrange(256)
            stored[name] = data.view(tensor.dtype).reshape(tensor.shape)
    return stored


def outcome(path, stored, config):
    """What is said of it; whatever is read has the shape that its head tells."""
    try:
        with bs.checkpoint(directory(path / "d", stored, config)) as found:
            for name in found:
                try:
                    q = found[name]
                    assert tuple(q.shape) == found.stored[name].shape
                    found.dequantize(name)
                except bs.FileError:
                    continue
    except bs.FileError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("count", [12, pytest.param(250, marks=pytest.mark.slow)])
@pytest.mark.parametrize("producer", PRODUCERS)
def test_nothing_but_file_errors(producer, count, tmp_path):
    chance = random.Random(f"{producer} {count}")
    for _ in range(count):
        stored, _, config = chance.choice(list(cases(producer).values()))
        outcome(tmp_path, damaged(stored, chance), config)


@pytest.mark.some(2)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_settings_of_other_types(producer, tmp_path):
    stored, _, config = next(iter(cases(producer).values()))
    strange = (None, -1, 0, 2**70, "4", 1.5, [4], {"bits": 4}, True)
    inside = config.get("mlx", config)
    for key in inside:
        if key in ("quant_method", "modules", "mlx"):
            continue
        for value in strange:
            changed = {"mlx": inside | {key: value}} if "mlx" in config else config | {key: value}
            outcome(tmp_path, stored, changed)
    if producer == "quanto":
        for value in strange:
            outcome(tmp_path, stored, config | {"modules": {"a": value}})
