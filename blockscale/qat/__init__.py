# SPDX-License-Identifier: BSD-3-Clause
"""Training with fake quantization: prepare a float model, train it, convert it."""

from blockscale.qat.constraints import ConstraintCosts as ConstraintCosts
from blockscale.qat.constraints import constraint_costs as constraint_costs
from blockscale.qat.conversion import convert as convert
from blockscale.qat.prepare import ledger as ledger
from blockscale.qat.prepare import prepare_qat as prepare_qat
from blockscale.qat.schedule import Schedule as Schedule
from blockscale.qat.schedule import freeze as freeze
from blockscale.qat.schedule import switch as switch
from blockscale.qat.schedule import synchronize as synchronize
