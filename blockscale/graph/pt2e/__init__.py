# SPDX-License-Identifier: BSD-3-Clause
"""torchao's PT2E flow with recipes and formats of ours: `prepare_pt2e`, batches, `convert_pt2e`."""

from typing import Any

from blockscale.calibration.observers import Spec
from blockscale.core.recipe import Recipe


def pt2e_quantizer(recipe: Any, *, observer: Spec = "mse", qat: bool = False) -> Any:
    """A quantizer for torchao's `prepare_pt2e` and `convert_pt2e`, that gives what a Recipe says.

        prepared = prepare_pt2e(torch.export.export(model, example).module(), quantizer)
        prepared(batch)                      # each batch of data for static scales
        converted = convert_pt2e(prepared)   # nodes of blockscale's quantize and dequantize

    Every format, layer and rule means what it means in bs.calibrate, to the bit; batch norms after
    convolutions are folded first, by torchao. `bs.graph.fuse` takes the converted graph and folds
    the weights to codes, which torchao leaves in float. `quantizer.ledger` says, after
    `prepare_pt2e`, what becomes of every layer.

    recipe: as everywhere, see Recipe.read; observer: of static inputs and outputs
    qat: for `prepare_qat_pt2e`: fake quantizers, whose gradient is straight-through

    Raises ImportError without torchao (extra "test" of blockscale), ValueError for a recipe or an
    observer that there is not.
    """
    result = Recipe.read(recipe).refuse_profiles(
        "torchao's prepared graph holds float weights and cannot follow a profile: use a "
        "plain format, or bs.graph.prepare"
    )
    try:
        import torchao  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "pt2e_quantizer is for torchao's prepare_pt2e, and torchao is not installed: "
            "pip install torchao, or blockscale[test]"
        ) from error
    from blockscale.graph.pt2e.quantizer import RecipeQuantizer

    return RecipeQuantizer(result, observer, qat=qat)
