# SPDX-License-Identifier: BSD-3-Clause
"""bitsandbytes: its tables, its quant_state, and what is refused. Values: test_recorded.py."""

import json

import pytest
import torch

import blockscale as bs
from blockscale.core.elements.codebook import named_codebooks
from tests.export.checkpoints.layouts.recorded import cases, directory

STORED, VALUES, _ = cases("bitsandbytes")["nf4 normal"]
STATE = next(name for name in STORED if "quant_state" in name)
INT8, _, _ = cases("bitsandbytes")["int8 normal"]


def state(**others):
    told = json.loads(bytes(STORED[STATE].tolist()))
    told = {key: value for key, value in (told | others).items() if value is not None}
    return {STATE: torch.tensor(list(json.dumps(told).encode()), dtype=torch.uint8)}


def opened(path, stored):
    return bs.checkpoint(directory(path / "d", stored, {}))


@pytest.mark.parametrize(
    ("name", "case", "part"),
    [("nf4", "nf4", ""), ("fp4", "fp4", ""), ("dynamic8", "nf4", "nested_")],
)
def test_tables_are_those_of_its_files(name, case, part):
    table = cases("bitsandbytes")[f"{case} normal"][0][f"a.weight.{part}quant_map"]
    assert torch.equal(table, torch.tensor(named_codebooks()[name].table))


def test_formats(tmp_path):
    nested = "(dynamic8:flat256:fp32:offset(tensor:fp32))"
    with opened(tmp_path, STORED) as found:
        assert found.stored["a.weight"].format == f"nf4:group64:{nested}"
        assert found.stored["a.weight"].kind == "bitsandbytes nf4, double"
        assert 4.1 < found.stored["a.weight"].bits < 14  # with the tables, of so few weights
    with opened(tmp_path, cases("bitsandbytes")["nf4 odd"][0]) as found:
        assert found.stored["a.weight"].format == "nf4:flat64:fp32"
    with opened(tmp_path, INT8) as found:
        assert found.stored["a.weight"].format == "int8:channel0:fp32:full"


def test_a_table_of_its_own(tmp_path):
    table = torch.linspace(-1, 1, 16)
    with opened(tmp_path, STORED | {"a.weight.quant_map": table}) as found:
        assert found.stored["a.weight"].format.startswith("book(-1,-0.8666667,")
        ratio = found.dequantize("a.weight").flatten()[:64] / VALUES.flatten()[:64].abs().max()
    assert set(ratio.tolist()) <= {*(table / table.max()).tolist(), -0.0}


def test_int8_is_an_ulp_away_at_most(tmp_path):
    """Its product has three factors; ours has two, and is compared with it in test_recorded.py."""
    with opened(tmp_path, INT8) as found:
        ours, theirs = found["a.weight"].dequantize(), found.dequantize("a.weight")
    apart = (ours.view(torch.int32) - theirs.view(torch.int32)).abs()
    assert int(apart.max()) <= 1 and 0 < int(apart.sum()) < 0.4 * ours.numel()


NO_MAP = {name: t for name, t in STORED.items() if not name.endswith(".nested_quant_map")}
NO_MAXIMA = {n: t for n, t in STORED.items() if not n.endswith("weight.absmax")}


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        (STORED | state(shape=[8, 64]), "[512, 1], expected 512 for a weight [8, 64]"),
        (NO_MAXIMA, "its absmax or its quant_map is missing"),
        (NO_MAP, "its nested_quant_map or nested_offset is missing"),
        (STORED | state(nested_offset=None), "its nested_quant_map or nested_offset is missing"),
        (STORED | state(nested_blocksize="x"), "its nested_blocksize is 'x'"),
        (STORED | {"a.weight.quant_map": torch.ones(15)}, "a table has 15 numbers"),
        (STORED | {"a.weight.quant_map": torch.ones(16)}, "the codebook has 1 twice"),
        (STORED | {"a.weight.quant_map": torch.full((16,), torch.nan)}, "finite float32 numbers"),
        (INT8 | {"a.weight_format": torch.tensor(1, dtype=torch.uint8)}, "its weight_format is 1"),
        (INT8 | {"a.SCB": torch.ones(15)}, "and it has 16 rows"),
    ],
)
def test_what_is_refused(stored, told, tmp_path):
    with opened(tmp_path, stored) as found:
        assert told in found.stored["a.weight"].unread


@pytest.mark.parametrize(
    ("others", "told"),
    [
        (state(shape=None), "has no sizes"), (state(shape=[8, -128]), "has no sizes"),
        (state(shape=[True, 1024]), "has no sizes"), (state(blocksize=0), "has no sizes"),
        (state(blocksize=2**50), "has no sizes"),
        ({STATE: torch.tensor(list(b"{" * 200), dtype=torch.uint8)}, "is not JSON"),
        ({STATE: torch.tensor(list(b"[1]"), dtype=torch.uint8)}, "expected a JSON object"),
        ({STATE: torch.tensor(list(b"\xff\xfe"), dtype=torch.uint8)}, "is not JSON"),
    ],
)  # fmt: skip
def test_a_state_that_is_damaged(others, told, tmp_path):
    with pytest.raises(bs.FileError, match=told):
        opened(tmp_path, STORED | others)


def test_parts_of_other_sizes(tmp_path):
    short = {"a.weight.absmax": STORED["a.weight.absmax"][:-1]}
    with (
        opened(tmp_path, STORED | short) as found,
        pytest.raises(
            bs.FileError, match=r"a.weight: its scale has 15 numbers of uint8, expected 16 of uint8"
        ),
    ):
        found["a.weight"]
