// The table of one instruction set's linear layers.
#include "../../linear.h"

namespace blockscale::BLOCKSCALE_ISA {

bool pack_integers(const FloatWeight&, const IntegerWeight&, uint8_t*, float*, int32_t*, int);
void integers(const IntegerWeight&, const IntegerInput&, const Output&, int);
void floats(const FloatWeight&, const void*, Dtype, int64_t, const Output&, int);
int64_t few(const FloatWeight&, int);
bool few_rows(const FloatWeight&, const void*, Dtype, int64_t, const Output&, int);

const Linears& linears() {
    static const Linears table{pack_integers, integers, floats, few, few_rows};
    return table;
}

}  // namespace blockscale::BLOCKSCALE_ISA
