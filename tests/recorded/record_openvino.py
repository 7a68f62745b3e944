# SPDX-License-Identifier: BSD-3-Clause
"""Record OpenVINO models whose weights NNCF 3.4.0 compressed, and OpenVINO's own values of them.

    pip install --target /tmp/oracles --no-deps openvino==2026.4.1 openvino-telemetry nncf==3.4.0
    PYTHONPATH=/tmp/oracles:. python tests/recorded/record_openvino.py

Writes openvino/MODE.xml and .bin, and openvino/values.safetensors beside this file: what a model of
nothing but the weight's nodes computes. openvino/any.safetensors has the values of IRs of any bytes
that tests/support/openvino_ir.py writes.
"""

import pathlib
import tempfile
import warnings
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from tests.support.openvino_ir import every

HERE = pathlib.Path(__file__).parent / "openvino"
OUT, IN = 6, 128


def weight(mode: str) -> np.ndarray:
    generator = np.random.default_rng(len(mode))
    found = generator.standard_normal((OUT, IN)).astype(np.float32)
    found[0] = 0.0
    found[1] = np.abs(found[1])
    found[2] *= 2.0**-20
    return found


def values_of(ov: Any, path: pathlib.Path) -> torch.Tensor:
    """What an IR without inputs computes."""
    core = ov.Core()
    model = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return torch.from_numpy(model([])[0].copy())


def main() -> None:
    import nncf
    import openvino as ov
    from openvino import opset13 as ops

    warnings.filterwarnings("ignore")
    HERE.mkdir(exist_ok=True)
    modes = nncf.CompressWeightsMode
    values = {}
    for mode in modes:
        x = ops.parameter([2, IN], np.float32, name="x")
        w = ops.constant(weight(mode.name), name="w")
        y = ops.matmul(x, w, False, True, name="y")
        model = ov.Model([ops.result(y, name="r")], [x], "m")
        settings = {"ratio": 1.0, "group_size": 32, "all_layers": True}
        if mode.name.startswith("INT8"):
            settings = {}
        elif mode.name in ("MXFP4", "MXFP8_E4M3"):
            settings["group_size"] = 32
        elif mode.name == "NVFP4":
            settings["group_size"] = 16
        elif mode.name in ("CODEBOOK", "ADAPTIVE_CODEBOOK"):
            continue
        try:
            model = nncf.compress_weights(model, mode=mode, **settings)
        except Exception as error:  # a mode that this version does not write
            print(mode.name, type(error).__name__, str(error)[:100])
            continue
        ov.save_model(model, HERE / f"{mode.name}.xml", compress_to_fp16=False)
        product = next(op for op in model.get_ops() if op.get_type_name() == "MatMul")
        alone = ov.Model([ops.result(product.input(1).get_source_output())], [])
        run = ov.Core().compile_model(alone, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        values[mode.name] = torch.from_numpy(run([])[0].copy())
        print(mode.name, values[mode.name].shape)
    with tempfile.TemporaryDirectory() as folder:
        found = {name: values_of(ov, path) for name, path in every(pathlib.Path(folder))}
    save_file(found, HERE / "any.safetensors", {"openvino": ov.__version__})
    save_file(values, HERE / "values.safetensors", {"openvino": ov.__version__})


if __name__ == "__main__":
    main()
