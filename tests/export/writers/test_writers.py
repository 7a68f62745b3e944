# SPDX-License-Identifier: BSD-3-Clause
"""Writers are found by their files' names; each says what it holds."""

import pkgutil

import pytest

from blockscale.core.parse import parse
from blockscale.export import writers as package
from blockscale.export.writers import (
    PlannedTensor,
    float_layers,
    group_setting,
    writer_of,
    writers,
)


def test_every_writer() -> None:
    """These hold for whatever file is added to blockscale/export/writers/."""
    files = {module.name for module in pkgutil.iter_modules(package.__path__) if not module.ispkg}
    assert {name.replace("-", "_") for name in writers()} == files
    fmt = parse("int16:tensor:fp32")
    for name, writer in writers().items():
        assert writer.name == name
        reason = writer.holds(fmt, (64, 64))
        assert (reason is None) == (name == "blockscale"), (name, reason)
        for spelling in writer.forms(parse("uint4:group32:fp16:asym"), (64, 64)):
            assert str(parse(spelling)) == spelling


def test_no_such_writer() -> None:
    with pytest.raises(
        ValueError, match="cannot write checkpoints of kind 'exl2'; choose from awq,"
    ):
        writer_of("exl2")


def test_group_settings() -> None:
    def planned(*of: tuple[str, int]) -> list[PlannedTensor]:
        return [PlannedTensor("a", (8, n), parse(f"uint4:{block}:fp16:asym")) for block, n in of]

    assert group_setting(planned(("group32", 64), ("group32", 128))) == 32
    assert group_setting(planned(("channel0", 64), ("group128", 128))) == -1
    assert group_setting(planned(("group32", 64), ("group64", 64))) is None


def matrices(*names: str) -> list[PlannedTensor]:
    return [PlannedTensor(f"{name}.weight", (8, 64), None) for name in names]


@pytest.mark.parametrize(
    ("names", "config", "heads"),
    [
        (["embed"], {"tie_word_embeddings": True}, ["lm_head"]),
        (["embed"], {"architectures": ["LlamaForCausalLM"]}, ["lm_head"]),  # transformers' default
        (["embed"], {"text_config": {"tie_word_embeddings": True}}, ["lm_head"]),
        (["embed"], {"architectures": ["BertForMaskedLM"], "model_type": "bert"},
         ["cls.predictions.decoder"]),
        (["embed"], {"model_type": "whisper"}, ["proj_out"]),
        (["embed", "lm_head"], {"tie_word_embeddings": True}, []),  # it is stored
        (["embed", "language_model.lm_head"], {"tie_word_embeddings": True}, []),
        (["embed"], {"tie_word_embeddings": False}, []),
        (["embed"], {"text_config": {"tie_word_embeddings": False}}, []),
        (["embed"], {"architectures": ["BertModel"]}, []),  # it has none
    ],
)  # fmt: skip
def test_heads_that_are_not_stored(names: list, config: dict, heads: list) -> None:
    planned = matrices(*names)
    planned.append(PlannedTensor("norm.weight", (8,), None))
    planned.append(PlannedTensor("mlp.weight", (8, 64), parse("nf4:group64:fp32")))
    assert float_layers(planned, config) == [*names, *heads]
