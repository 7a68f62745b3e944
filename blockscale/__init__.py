# SPDX-License-Identifier: BSD-3-Clause
"""One quantization stack for PyTorch 2: every format one value, exact numerics, and files."""

from blockscale import compat as compat
from blockscale import export as export
from blockscale import graph as graph
from blockscale import integrations as integrations
from blockscale import moved as moved
from blockscale import parallel as parallel
from blockscale import qat as qat
from blockscale.calibration import observers as observers
from blockscale.calibration.calibrate import calibrate as calibrate
from blockscale.calibration.comparison import compare as compare
from blockscale.core.format import Format as Format
from blockscale.core.integer_scales import round_to_power_of_2 as round_to_power_of_2
from blockscale.core.ledger import Entry as Entry
from blockscale.core.ledger import Ledger as Ledger
from blockscale.core.ledger import SkippedError as SkippedError
from blockscale.core.parse import formats as formats
from blockscale.core.parse import parse as parse
from blockscale.core.presets import Preset as Preset
from blockscale.core.presets import presets as presets
from blockscale.core.profiles import Profile as Profile
from blockscale.core.profiles import profile as profile
from blockscale.core.recipe import Recipe as Recipe
from blockscale.core.recipe import preset as preset
from blockscale.evaluation.evaluate import evaluate as evaluate
from blockscale.export.checkpoints.loading import load as load
from blockscale.export.checkpoints.opening import checkpoint as checkpoint
from blockscale.files.directory.quantize_directory import quantize_directory as quantize_directory
from blockscale.files.metadata import FileError as FileError
from blockscale.files.save import save as save
from blockscale.kernels.hardware import hardware as hardware
from blockscale.kernels.registry import use as use
from blockscale.kernels.webgpu import webgpu as webgpu
from blockscale.layers.apply import quantize_ as quantize_
from blockscale.ops.quantize import choose_qparams as choose_qparams
from blockscale.ops.quantize import fake_quantize as fake_quantize
from blockscale.ops.quantize import quantize as quantize
from blockscale.ops.tensor import QTensor as QTensor
from blockscale.qat.conversion import convert as convert
from blockscale.qat.prepare import prepare_qat as prepare_qat
from blockscale.reporting.model import report as report
from blockscale.selection.recommend import recommend as recommend
from blockscale.selection.result import read_search as read_search
from blockscale.selection.search import search as search
from blockscale.selection.system.facade import QuantizationSystem as QuantizationSystem
from blockscale.selection.system.facade import (
    create_quantization_system as create_quantization_system,
)
from blockscale.selection.system.params import QuantizationParams as QuantizationParams
from blockscale.selection.system.params import create_optimal_params as create_optimal_params
from blockscale.selection.system.workload import auto_quantize_tensor as auto_quantize_tensor
from blockscale.selection.system.workload import (
    estimate_accuracy_impact as estimate_accuracy_impact,
)
from blockscale.selection.system.workload import estimate_memory_savings as estimate_memory_savings

__version__ = "0.1.0"

# The names of integer models before graph had a folder of its own. qat is left of graph, so it
# cannot import them itself.
for _name in ("IntegerModel", "NotIntegerError", "to_integer", "with_integer_bias"):
    setattr(qat, _name, getattr(graph, _name))

moved.install()  # modules under their names of 0.1
