# SPDX-License-Identifier: BSD-3-Clause
"""One object with verbs for everything: thin calls to the rest, with numbers that are measured."""

from blockscale.selection.system.facade import PerformanceHints as PerformanceHints
from blockscale.selection.system.facade import QuantizationSystem as QuantizationSystem
from blockscale.selection.system.operations import BlockSize as BlockSize
from blockscale.selection.system.operations import MemoryUsage as MemoryUsage
from blockscale.selection.system.operations import OperationTime as OperationTime
from blockscale.selection.system.params import CalibrationStatistics as CalibrationStatistics
from blockscale.selection.system.params import QuantizationParams as QuantizationParams
from blockscale.selection.system.params import QuantizedMemoryLayout as QuantizedMemoryLayout
from blockscale.selection.system.workload import Measured as Measured
from blockscale.selection.system.workload import PerformanceRequirements as PerformanceRequirements
from blockscale.selection.system.workload import (
    QuantizationOperationType as QuantizationOperationType,
)
from blockscale.selection.system.workload import QuantizationWorkload as QuantizationWorkload
