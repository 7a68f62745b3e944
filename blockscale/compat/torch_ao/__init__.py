# SPDX-License-Identifier: BSD-3-Clause
"""torch.ao's QConfig classes with power-of-two scales, and their translation to a Recipe.

The observers and fake quantizers are torch.ao's own with one option more, `power_of_2_scale`; see
docs/torch_ao.md. Not to be confused with blockscale.compat.torchao, which is about torchao.
"""

from typing import Any

import torch

try:
    import torch.ao.quantization
except ImportError as error:
    raise ImportError(
        f"blockscale.compat.torch_ao is about torch.ao, which torch {torch.__version__} does not "
        f"have ({error}): use bs.calibrate, bs.prepare_qat or bs.graph, which need none of it, or "
        f"install a torch that has it, such as 2.13"
    ) from error

from torch.ao.quantization import QConfigMapping as QConfigMapping
from torch.ao.quantization import disable_fake_quant as disable_fake_quant
from torch.ao.quantization import disable_observer as disable_observer
from torch.ao.quantization import enable_fake_quant as enable_fake_quant
from torch.ao.quantization import enable_observer as enable_observer

from blockscale.compat.torch_ao.calibration import convert as convert
from blockscale.compat.torch_ao.calibration import prepare as prepare
from blockscale.compat.torch_ao.calibration import prepare_qat as prepare_qat
from blockscale.compat.torch_ao.calibration import to_observer as to_observer
from blockscale.compat.torch_ao.fake_quantize import FakeQuantize as FakeQuantize
from blockscale.compat.torch_ao.fake_quantize import (
    FusedMovingAvgObsFakeQuantize as FusedMovingAvgObsFakeQuantize,
)
from blockscale.compat.torch_ao.observers import HistogramObserver as HistogramObserver
from blockscale.compat.torch_ao.observers import MinMaxObserver as MinMaxObserver
from blockscale.compat.torch_ao.observers import (
    MovingAverageMinMaxObserver as MovingAverageMinMaxObserver,
)
from blockscale.compat.torch_ao.observers import (
    MovingAveragePerChannelMinMaxObserver as MovingAveragePerChannelMinMaxObserver,
)
from blockscale.compat.torch_ao.observers import (
    PerChannelMinMaxObserver as PerChannelMinMaxObserver,
)
from blockscale.compat.torch_ao.observers import PlaceholderObserver as PlaceholderObserver
from blockscale.compat.torch_ao.qconfig import DEFAULTS, default
from blockscale.compat.torch_ao.qconfig import QConfig as QConfig
from blockscale.compat.torch_ao.qconfig import get_default_qat_qconfig as get_default_qat_qconfig
from blockscale.compat.torch_ao.qconfig import (
    get_default_qat_qconfig_mapping as get_default_qat_qconfig_mapping,
)
from blockscale.compat.torch_ao.qconfig import get_default_qconfig as get_default_qconfig
from blockscale.compat.torch_ao.qconfig import (
    get_default_qconfig_mapping as get_default_qconfig_mapping,
)
from blockscale.compat.torch_ao.qconfig import power_of_2 as power_of_2
from blockscale.compat.torch_ao.recipe import to_format as to_format
from blockscale.compat.torch_ao.recipe import to_recipe as to_recipe
from blockscale.core.integer_scales import round_to_power_of_2 as round_to_power_of_2


def __getattr__(name: str) -> Any:
    """`default_qconfig`, `default_weight_fake_quant` and torch.ao's other ready-made ones."""
    if name not in DEFAULTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return default(name)
