# SPDX-License-Identifier: BSD-3-Clause
"""GGUF files a tensor at a time; frequencies of llama 3 as transformers computes them."""

import itertools
from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale.export.checkpoints.gguf.container import read_container
from blockscale.export.writers import PlannedTensor
from blockscale.export.writers.gguf_files.file import (
    GGUFFile,
    MetadataValue,
    SplitGGUF,
    TensorPlace,
    encoded,
    lay_out,
    rope_factors,
    split_shards,
)


def test_tensors_in_any_order(tmp_path: Path) -> None:
    q = bs.quantize(torch.randn(3, 64), "int8:group32:fp16:full")
    x, n = torch.randn(5).to(torch.bfloat16), torch.arange(7, dtype=torch.int8)
    planned = [
        PlannedTensor("q", (3, 64), q.format), PlannedTensor("x", (5,), None, torch.bfloat16),
        PlannedTensor("n", (7,), None, torch.int8),
    ]  # fmt: skip
    path = tmp_path / "m.gguf"
    made = GGUFFile(
        path, planned, {"general.architecture": encoded(MetadataValue("text", "a"))}, 32, {}
    )
    for name, value in (("n", n), ("q", q), ("x", x)):
        made.write(name, value)
    made.close()
    with bs.checkpoint(path) as found:
        assert {s.name: s.kind for s in found.stored.values()} == {
            "q": "Q8_0", "x": "BF16", "n": "I8"
        }  # fmt: skip
        assert torch.equal(found["q"].packed, q.packed) and torch.equal(found["x"], x)
        assert torch.equal(found["n"], n)


@pytest.mark.slow
def test_rope_factors() -> None:
    """transformers 5.23: its frequencies are the plain ones over these."""
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    settings = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "rope_theta": 5e5,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
    config = LlamaConfig(hidden_size=128, num_attention_heads=2, rope_parameters=settings,
                         max_position_embeddings=512)  # fmt: skip
    scaled, _ = rope.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1.0 / 5e5 ** (torch.arange(0, 64, 2).float() / 64)
    factors = rope_factors(settings, 64)
    assert factors[0] == 1 and factors[-1] == 8 and len(factors.unique()) > 2
    torch.testing.assert_close(plain / factors, scaled, rtol=1e-6, atol=0)


# Heads: what is written is read again, and is what gguf's own writer makes of it.

SMALL = Path(__file__).parents[3] / "recorded" / "small.gguf"
VALUES = {
    "general.architecture": MetadataValue("text", "llama"),
    "a.u": MetadataValue("u32", 7),
    "a.i": MetadataValue("i32", -7),
    "a.f": MetadataValue("f32", 0.5),
    "a.b": MetadataValue("bool", True),
    "a.q": MetadataValue("u64", 2**40),
    "a.texts": MetadataValue("text", ["<s>", "é", "\udcff"]),
    "a.numbers": MetadataValue("i32", [1, -2]),
    "a.none": MetadataValue("f32", []),
}


@pytest.mark.parametrize("step", [32, 64])
def test_there_and_back(step: int, tmp_path: Path) -> None:
    metadata = {key: encoded(value) for key, value in VALUES.items()}
    metadata["general.alignment"] = encoded(MetadataValue("u32", step))
    tensors = {"x": TensorPlace((3, 32), 8, 102), "y": TensorPlace((5,), 0, 20)}
    head, placed = lay_out(metadata, tensors, step)
    path = tmp_path / "m.gguf"
    path.write_bytes(head + bytes(2 * 128))
    found = read_container(path)
    assert {k: v for k, v in found.values.items() if k != "general.alignment"} == {
        key: value.value for key, value in VALUES.items()
    }
    assert found.raw == metadata
    for name, place in placed.items():
        entry = found.entries[name]
        assert (entry.shape, entry.kind, entry.start) == (place.shape, place.number, place.start)
        assert entry.start % step == 0


def test_as_gguf_writes_it() -> None:
    """The head of a file that gguf 0.19.0 wrote, from what was read of it."""
    found = read_container(SMALL)
    sizes = {e.start: n for n, e in found.entries.items()}
    ends = [*sorted(sizes), found.size]
    places = {
        sizes[start]: TensorPlace(found.entries[sizes[start]].shape,
                                  found.entries[sizes[start]].kind,
                            end - start)
        for start, end in itertools.pairwise(ends)
    }  # fmt: skip
    head, _ = lay_out(found.raw, places)
    assert head == SMALL.read_bytes()[: len(head)] and len(head) == ends[0]


# Several GGUF files as one model: keys, sizes, and the gguf package's own reading of them.

METADATA = {
    "general.architecture": encoded(MetadataValue("text", "llama")),
    "general.alignment": encoded(MetadataValue("u32", 64)),
}


def made(folder: Path, size: int) -> dict[str, bs.QTensor]:
    held = {
        f"t{i}": bs.quantize(torch.randn(2 + i, 64), "int8:group32:fp16:full") for i in range(5)
    }
    planned = [PlannedTensor(name, tuple(q.shape), q.format) for name, q in held.items()]
    output = SplitGGUF(folder, "m", planned, METADATA, 64, {}, size)
    for name, q in reversed(held.items()):
        output.write(name, q)
    output.close()
    assert output.first == min(folder.iterdir())
    return held


def test_where_it_is_split() -> None:
    """Rows of 64 in Q8_0 are 68 bytes; a tensor that is too large is alone."""
    fmt = bs.parse("int8:group32:fp16:full")
    planned = [PlannedTensor(str(n), (n, 64), fmt) for n in (1, 2, 9, 3, 2)]
    assert [[t.name for t in shard] for shard in split_shards(planned, {}, 5 * 68)] == [
        ["1", "2"], ["9"], ["3", "2"]
    ]  # fmt: skip
    assert len(split_shards(planned, {}, 5 * 68 - 1)) == 4
    assert len(split_shards(planned, {}, 1)) == 5 and len(split_shards(planned, {}, 10**6)) == 1


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


@pytest.mark.slow
def test_more_files_than_there_can_be(tmp_path: Path) -> None:
    fmt = bs.parse("int8:group32:fp16:full")
    planned = [PlannedTensor(f"t{i}", (1, 32), fmt) for i in range(2**16)]
    with pytest.raises(ValueError, match="65536 files of 1 bytes are more than the 65535"):
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
