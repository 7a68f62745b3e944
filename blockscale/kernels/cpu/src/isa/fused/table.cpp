// SPDX-License-Identifier: BSD-3-Clause
// The table of one instruction set's fused ops.
#include "../../fused/fused.h"

namespace blockscale::BLOCKSCALE_ISA {

void fused_look_up(const void*, int, const uint8_t*, int64_t, void*, int);
void fused_look_up_wide(const void*, int, const uint16_t*, int64_t, void*, int);
void fused_norm(const Norm&, const Rows&, const Rows*, int64_t, int64_t, float*, const Result&, int);
void fused_binary(Binary, const Rows&, const Rows&, int64_t, int64_t, const Result&, int);
void fused_attention(const Attention&, const Result&, int);
void fused_cached_attention(const CachedAttention&, float*, int);

const FusedOps& fused_ops() {
    static const FusedOps table{fused_look_up, fused_look_up_wide, fused_norm, fused_binary,
                                fused_attention, fused_cached_attention};
    return table;
}

}  // namespace blockscale::BLOCKSCALE_ISA
