# SPDX-License-Identifier: BSD-3-Clause
"""A small model with each kind of layer, saved, damaged and compared bit by bit."""

import hashlib
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import blockscale as bs

IDS = torch.arange(15).reshape(3, 5)
RECIPE = bs.Recipe("mxfp4", "int8_token", rules={"head": {"weight": "nvfp4", "output": "int8"}})


class Net(nn.Module):
    """Each kind of layer; `out` may be tied to `table`; one buffer that is saved, one not."""

    def __init__(self, tied: bool = True):
        super().__init__()
        self.table, self.head = nn.Embedding(40, 64), nn.Linear(64, 64)
        self.norm, self.conv = nn.BatchNorm1d(5), nn.Conv1d(5, 5, 3, padding=1)
        self.out = nn.Linear(64, 40, bias=False)
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("shift", torch.tensor(0.5), persistent=False)
        if tied:
            self.out.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.conv(self.norm(self.head(self.table(ids) + self.shift))))


def quantized(recipe=RECIPE, **settings) -> nn.Module:
    torch.manual_seed(0)
    model = Net(settings.pop("tied", True)).eval()
    bs.quantize_(model, recipe, **settings)
    return model


def bits(model: nn.Module) -> dict:
    """Types, dtypes, shapes and bytes by name; equality that knows NaN, -0 and uint16."""
    found = {n: type(m) for n, m in model.named_modules(remove_duplicate=False)}
    for n, t in model.state_dict().items():
        data = None if t.is_meta else t.contiguous().reshape(-1).view(torch.uint8).tolist()
        found[n] = (t.dtype, tuple(t.shape), data)
    return found


GONE = object()


def refused(path, words: str = "", model: nn.Module | None = None) -> None:
    """FileError, with the file's name, and a model that is as it was."""
    model = model or Net()
    before, modules = bits(model), [id(m) for m in model.modules()]
    with pytest.raises(bs.FileError, match=words) as caught:
        bs.load(model, path)
    assert path.name.split(".")[0] in str(caught.value)
    assert bits(model) == before
    assert [id(m) for m in model.modules()] == modules


def rewrite(path, change, tensors=lambda tensors: None) -> None:
    """The file again with other metadata (what `change` makes of it, or returns) and tensors."""
    stored = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    old = metadata["blockscale"]
    data = json.loads(old)
    text = change(data)
    metadata["blockscale"] = json.dumps(data, sort_keys=True) if text is None else text
    for key, value in metadata.items():  # a digest of it is made again
        if value == hashlib.sha256(old.encode()).hexdigest():
            metadata[key] = hashlib.sha256(metadata["blockscale"].encode()).hexdigest()
    tensors(stored)
    save_file(stored, path, metadata)


def put(key: str, value, *place: str):
    """A change of the metadata: the entry at `place` becomes `value`, or goes away."""

    def change(data: dict) -> None:
        for step in place:
            data = data[step]
        data[key] = value
        if value is GONE:
            del data[key]

    return change
