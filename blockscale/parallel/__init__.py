# SPDX-License-Identifier: BSD-3-Clause
"""Quantized models over several processes: torch shards, launches and sends (docs/scale.md).

    bs.parallel.as_parameters_(model)            before FSDP2's fully_shard, so that it shards codes
    bs.parallel.shard_(model, mesh, plan)        tensor parallel: a part of each layer a process
    bs.parallel.style("colwise")                 the same for torch's parallelize_module
    bs.parallel.placements(format, shape, dim)   which parts of a tensor are cut with it
    bs.parallel.unit(format, shape, dim)         the multiples at which cuts go between blocks
    bs.parallel.all_gather(q)                    a QTensor of each process, in one message
    bs.parallel.hook("mxint8")                   gradients of DDP sent as codes, over slow links

torch's own engines do the rest: meshes, launching, gradients, checkpoints, offloading.
"""

from blockscale.core.cuts import placements as placements
from blockscale.core.cuts import unit as unit
from blockscale.parallel.codes import all_gather as all_gather
from blockscale.parallel.codes import hook as hook
from blockscale.parallel.frozen import as_parameters_ as as_parameters_
from blockscale.parallel.plan import shard_ as shard_
from blockscale.parallel.plan import style as style
