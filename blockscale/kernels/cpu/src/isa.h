// SPDX-License-Identifier: BSD-3-Clause
// Which instruction sets this library was compiled for, which the processor has, and which is used.
// Everything in isa/ is compiled once for each, in the namespace blockscale::<its name>; those that only
// add instructions for products have the primitives of another (LIKE_ in CMakeLists.txt).
#pragma once

#include <string>
#include <vector>

#include "fused/fused.h"
#include "fused/integer.h"
#include "linear.h"
#include "primitives.h"
#include "records.h"

namespace blockscale {

struct Isa {
    std::string name;     // baseline, avx2, avx512, avx512vnni, amx; neon, dotprod, i8mm
    std::string lacking;  // why it does not run here; empty if it does
    const Primitives* primitives;
    const Linears* linears;
    const FusedOps* fused;
    const IntegerOps* integers;
    const Records* records;

    bool present() const { return lacking.empty(); }
};

// What was compiled, slowest first.
const std::vector<Isa>& isas();

// The one in use: the last present one, or what BLOCKSCALE_CPU_ISA names (read when first asked).
const Isa& isa();

// Use another from now on. Throws std::invalid_argument if it is not compiled or not present.
void select_isa(const std::string& name);

}  // namespace blockscale
