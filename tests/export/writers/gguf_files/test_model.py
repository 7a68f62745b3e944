# SPDX-License-Identifier: BSD-3-Clause
"""Metadata of whole models: what most weights are, and what is said where names are kept."""

from blockscale.core.parse import parse
from blockscale.export.writers import PlannedTensor
from blockscale.export.writers.gguf_files.file import MetadataValue, encoded
from blockscale.export.writers.gguf_files.model import metadata_for
from tests.support.conversion_models import CONFIG


def planned(*formats: str) -> list[PlannedTensor]:
    return [
        PlannedTensor(f"blk.{i}.attn_q.weight", (8, 256), parse(f)) for i, f in enumerate(formats)
    ]


def test_the_type_of_most() -> None:
    tensors = planned("int8:group32:fp16:full", "int4:group32:fp16:full", "int4:group32:fp16:full")
    tensors.append(PlannedTensor("token_embd.weight", (32, 256), None))
    found, extra, notes = metadata_for(CONFIG, None, tensors)
    assert found["general.file_type"] == encoded(MetadataValue("u32", 2))  # mostly Q4_0
    assert found["general.quantization_version"] == encoded(MetadataValue("u32", 2))
    assert found["llama.block_count"] == encoded(MetadataValue("u32", 1))
    assert next(iter(found)) == "general.architecture" and not extra.tensors and not notes


def test_names_that_are_kept() -> None:
    found, _, notes = metadata_for({}, None, planned("int8:group32:fp16:full"))
    assert set(found) == {
        "general.architecture", "general.quantization_version", "general.file_type"
    }  # fmt: skip
    assert found["general.architecture"] == encoded(MetadataValue("text", "unknown"))
    assert "llama.cpp does not know" in notes[0]
