// SPDX-License-Identifier: BSD-3-Clause
// The table of one instruction set's linear layers.
#include "../../linear.h"

namespace blockscale::BLOCKSCALE_ISA {

bool pack_integers(const FloatWeight&, const IntegerWeight&, uint8_t*, float*, int32_t*, int);
void sum_blocks(const IntegerWeight&, int64_t, int32_t*, int);
void integers(const IntegerWeight&, const IntegerInput&, const IntegerSums&, const Output&, int);
void floats(const FloatWeight&, const void*, Dtype, int64_t, const Output&, int, bool);
int64_t few(const FloatWeight&, int);
bool few_rows(const FloatWeight&, const void*, Dtype, int64_t, const Output&, int);
void activate(Activation, float*, int64_t, int);
bool direct(const FloatWeight&, const PlaneWeight*, const Image&, const Output&, int);
bool planes(const FloatWeight&, const PlaneWeight*, const Image&, const Output&, int);
bool pack_planes(const FloatWeight&, const PlaneShape&, int8_t*, int32_t*, bool*);
void transpose(int, const void*, int64_t, int64_t, int64_t, void*, int);

const Linears& linears() {
    static const Linears table{pack_integers, sum_blocks, integers, floats,
                               few,           few_rows,   activate, direct,
                               planes,        pack_planes, transpose};
    return table;
}

}  // namespace blockscale::BLOCKSCALE_ISA
