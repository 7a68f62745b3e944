# SPDX-License-Identifier: BSD-3-Clause
"""What vLLM asks for before it knows a model: our quantization method's name, and no more.

vLLM loads the entry points of `vllm.general_plugins` in every one of its processes, whatever model
it serves. So this is a package of its own, which imports blockscale once a model asks for it
(blockscale.integrations.vllm, docs/serving.md).
"""


def register() -> None:
    """Make "blockscale" one of vLLM's quantization methods; again, nothing happens."""
    from vllm.model_executor.layers import quantization
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

    if "blockscale" in quantization.QUANTIZATION_METHODS:
        return

    class Named(QuantizationConfig):  # type: ignore[misc] # vLLM has no types here
        """The method by name; `from_config` gives what does the work."""

        def get_name(self) -> str:
            return "blockscale"

        def get_supported_act_dtypes(self) -> list:
            raise NotImplementedError("from_config gives the method")

        @classmethod
        def get_min_capability(cls) -> int:
            return 0

        @staticmethod
        def get_config_filenames() -> list:
            return []

        @classmethod
        def from_config(cls, config: dict) -> QuantizationConfig:
            """The method itself (blockscale.integrations.vllm.method)."""
            from blockscale.integrations.vllm.method import BlockscaleMethod

            return BlockscaleMethod.from_config(config)

        @classmethod
        def override_quantization_method(cls, hf_quant_cfg, user_quant, hf_config=None):
            """Our config.json says `method`, which no other library takes for its own."""
            del hf_config
            ours = "blockscale" in (hf_quant_cfg.get("method"), user_quant)
            return "blockscale" if ours else None

        def get_quant_method(self, layer, prefix):
            raise NotImplementedError("from_config gives the method")

    quantization.register_quantization_config("blockscale")(Named)
