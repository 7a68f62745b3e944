// SPDX-License-Identifier: BSD-3-Clause
// The table of one instruction set's ops on integers.
#include "../../fused/integer.h"

namespace blockscale::BLOCKSCALE_ISA {

void integer_sum(const IntegerSum&, int64_t, const Ending&, int);
void integer_norm(const IntegerNorm&, int64_t, int64_t, const Ending&, int);
void integer_attention(const IntegerAttention&, const Ending&, int);

const IntegerOps& integer_ops() {
    static const IntegerOps table{integer_sum, integer_norm, integer_attention};
    return table;
}

}  // namespace blockscale::BLOCKSCALE_ISA
