# SPDX-License-Identifier: BSD-3-Clause
"""vLLM serves our directories as they are: weights stay packed, and our ops multiply by them.

`pip install blockscale` beside vLLM is all: vLLM asks each of its processes' entry points of the
group `vllm.general_plugins` before it looks at a model (docs/serving.md). Nothing is imported here
until then, and nothing at all where there is no vLLM.
"""


def register() -> None:
    """Make "blockscale" one of vLLM's quantization methods; again, nothing happens."""
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

    if "blockscale" not in QUANTIZATION_METHODS:
        from blockscale.integrations.vllm.method import declare

        declare()
