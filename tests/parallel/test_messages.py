# SPDX-License-Identifier: BSD-3-Clause
"""Messages: several tensors as bytes, and tensors in the order of the processes."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from blockscale.parallel.messages import (
    ALIGNED,
    aligned,
    exchange,
    gather_messages,
    packed,
    unpacked,
    wire,
)


def test_tensors_are_packed_and_unpacked() -> None:
    given = [
        torch.arange(5, dtype=torch.uint8),
        torch.randn(3, 7).t(),
        torch.zeros(0, 4, dtype=torch.int64),
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.tensor([True, False]),
    ]
    like = [(tuple(each.shape), each.dtype) for each in given]
    message = packed(given)
    assert len(message) == sum(aligned(*each) for each in like) and len(message) % ALIGNED == 0
    found = unpacked(message, like)
    assert all(torch.equal(a, b) for a, b in zip(found, given, strict=True))
    assert all(each.storage_offset() == 0 for each in found)
    assert packed([]).numel() == 0


@pytest.mark.parametrize(
    ("backends", "device"),
    [("cuda:nccl", "cuda"), ("cpu:gloo,cuda:nccl", "cuda"), ("cpu:gloo,cuda:gloo", "cpu")],
)
def test_tensors_go_over_nccl_where_the_group_has_it(
    backends: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda group: backends)
    assert wire(None) == torch.device(device)


def test_one_process(tmp_path: Path) -> None:
    assert not dist.is_initialized()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/one", rank=0, world_size=1)
    try:
        x = torch.arange(3)
        assert wire() == torch.device("cpu")
        assert torch.equal(gather_messages(x)[0], x) and torch.equal(
            gather_messages(x, alike=True)[0], x
        )
        data = torch.arange(4, dtype=torch.uint8)
        assert torch.equal(exchange([data], [4], torch.device("cpu"))[0], data)
    finally:
        dist.destroy_process_group()
