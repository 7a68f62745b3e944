# SPDX-License-Identifier: BSD-3-Clause
"""What no format can hold is told by its tensors' names and refused by its producer's."""

import pytest
import torch

import blockscale as bs
from tests.export.checkpoints.layouts.recorded import directory


@pytest.mark.parametrize(
    ("producer", "names", "why"),
    [
        ("EXL3", ("trellis", "suh", "svh"), "codes along a trellis"),
        (
            "EXL2",
            ("q_weight", "q_scale", "q_groups", "q_perm"),
            "rows with different numbers of bits",
        ),
        ("Marlin", ("B", "s"), "codes rearranged for one GPU kernel"),
        ("AQLM", ("codes", "codebooks", "scales"), "codes of vectors in a codebook"),
        ("QuIP#", ("Qidxs", "SU", "SV"), "codes of vectors in a codebook"),
        ("VPTQ", ("indices", "centroids"), "codes of vectors in a codebook"),
    ],
)
def test_by_name(producer, names, why, tmp_path):
    stored = {f"layers.0.a.{name}": torch.ones(4, 4) for name in names} | {"norm": torch.ones(2)}
    with bs.checkpoint(directory(tmp_path / "d", stored, {})) as found:
        assert set(found) == {"layers.0.a.weight", "norm"}
        assert found.stored["layers.0.a.weight"].unread.startswith(f"{producer} stores {why}")
        with pytest.raises(bs.FileError, match=f"layers.0.a.weight: {producer} stores {why}"):
            found["layers.0.a.weight"]


def test_by_the_configuration(tmp_path):
    path = directory(tmp_path / "d", {"a": torch.ones(2)}, {"quant_method": "higgs"})
    with bs.checkpoint(path) as found:
        assert found.warnings == ["its configuration names higgs, which is not supported"]


def test_names_that_only_look_like_it(tmp_path):
    stored = {"B": torch.ones(2), "s": torch.ones(2), "m.codes": torch.ones(2)}
    with bs.checkpoint(directory(tmp_path / "d", stored, {})) as found:
        assert set(found) == set(stored)
