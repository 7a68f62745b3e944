"""One object with verbs for everything: thin calls to the rest, with numbers that are measured."""

from blockscale.search.system.facade import PerformanceHints as PerformanceHints
from blockscale.search.system.operations import BlockSize as BlockSize
from blockscale.search.system.operations import MemoryUsage as MemoryUsage
from blockscale.search.system.operations import OperationTime as OperationTime
from blockscale.search.system.params import QuantizedMemoryLayout as QuantizedMemoryLayout
from blockscale.search.system.statistics import CalibrationStatistics as CalibrationStatistics
from blockscale.search.system.workload import Measured as Measured
from blockscale.search.system.workload import PerformanceRequirements as PerformanceRequirements
from blockscale.search.system.workload import QuantizationOperationType as QuantizationOperationType
from blockscale.search.system.workload import QuantizationWorkload as QuantizationWorkload
