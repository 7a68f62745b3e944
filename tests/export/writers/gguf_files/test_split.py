# SPDX-License-Identifier: BSD-3-Clause
"""Several GGUF files as one model: keys, sizes, and the gguf package's own reading of them."""

from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale.export.checkpoints.gguf.container import read_container
from blockscale.export.writers.gguf_files.head import Value, encoded
from blockscale.export.writers.gguf_files.split import SplitGGUF, parted
from blockscale.export.writers.writer import Planned

METADATA = {
    "general.architecture": encoded(Value("text", "llama")),
    "general.alignment": encoded(Value("u32", 64)),
}


def made(folder: Path, size: int) -> dict[str, bs.QTensor]:
    held = {
        f"t{i}": bs.quantize(torch.randn(2 + i, 64), "int8:group32:fp16:full") for i in range(5)
    }
    planned = [Planned(name, tuple(q.shape), q.format) for name, q in held.items()]
    output = SplitGGUF(folder, "m", planned, METADATA, 64, {}, size)
    for name, q in reversed(held.items()):
        output.write(name, q)
    output.close()
    assert output.first == min(folder.iterdir())
    return held


def test_where_it_is_split() -> None:
    """Rows of 64 in Q8_0 are 68 bytes; a tensor that is too large is alone."""
    fmt = bs.parse("int8:group32:fp16:full")
    planned = [Planned(str(n), (n, 64), fmt) for n in (1, 2, 9, 3, 2)]
    assert [[t.name for t in shard] for shard in parted(planned, {}, 5 * 68)] == [
        ["1", "2"], ["9"], ["3", "2"]
    ]  # fmt: skip
    assert len(parted(planned, {}, 5 * 68 - 1)) == 4
    assert len(parted(planned, {}, 1)) == 5 and len(parted(planned, {}, 10**6)) == 1


@pytest.mark.parametrize(("size", "count"), [(1, 5), (68 * 9, 3), (10**6, 1)])
def test_the_files_are_read_as_one(size: int, count: int, tmp_path: Path) -> None:
    held = made(tmp_path, size)
    names = [f"m-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]
    assert sorted(each.name for each in tmp_path.iterdir()) == names
    for i, name in enumerate(names):
        values = read_container(tmp_path / name).values
        assert values["split.no"] == i and values["split.count"] == count
        assert values["split.tensors.count"] == 5 and values["general.alignment"] == 64
        assert ("general.architecture" in values) == (i == 0)
        with bs.checkpoint(tmp_path / name) as found:  # each of them stands for all
            assert set(found) == set(held)
            for key, q in held.items():
                again = found[key]
                assert torch.equal(again.packed, q.packed) and torch.equal(again.scale, q.scale)


def test_more_files_than_there_can_be(tmp_path: Path) -> None:
    fmt = bs.parse("int8:group32:fp16:full")
    planned = [Planned(f"t{i}", (1, 32), fmt) for i in range(2**16)]
    with pytest.raises(ValueError, match="65536 files of 1 bytes are more than GGUF's 65535"):
        SplitGGUF(tmp_path, "m", planned, {}, 32, {}, 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_gguf_package_reads_each_file(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    held, seen = made(tmp_path, 68 * 9), set()
    for i, path in enumerate(sorted(tmp_path.iterdir())):
        reader = gguf.GGUFReader(path)
        fields = {key: reader.fields[f"split.{key}"] for key in ("no", "count", "tensors.count")}
        assert [field.contents() for field in fields.values()] == [i, 3, 5]
        kinds = [each.types[0] for each in fields.values()]
        types = gguf.GGUFValueType
        assert kinds == [types.UINT16, types.UINT16, types.INT32]
        for tensor in reader.tensors:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            assert torch.equal(torch.from_numpy(values), held[tensor.name].dequantize())
            seen.add(tensor.name)
    assert seen == set(held)
