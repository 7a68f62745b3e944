// SPDX-License-Identifier: BSD-3-Clause
// The Python module blockscale.kernels.cpu._native: addresses and numbers in, nothing of torch's.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "build.h"
#include "isa.h"

namespace nb = nanobind;

void bind_format(nb::module_& m);
void bind_primitives(nb::module_& m);
void bind_linear(nb::module_& m);
void bind_fused(nb::module_& m);
void bind_integer(nb::module_& m);
void bind_records(nb::module_& m);
void bind_tuning(nb::module_& m);

namespace {

std::vector<std::string> names(bool only_present) {
    std::vector<std::string> found;
    for (const auto& each : blockscale::isas())
        if (each.present() || !only_present) found.push_back(each.name);
    return found;
}

// Why those that were compiled do not run here, by name.
nb::dict lacking() {
    nb::dict reasons;
    for (const auto& each : blockscale::isas())
        if (!each.present()) reasons[each.name.c_str()] = each.lacking;
    return reasons;
}

// How this library was built: `blockscale hardware` shows it.
nb::dict build() {
    nb::dict facts;
    facts["compiler"] = BLOCKSCALE_COMPILER;
    facts["flags"] = BLOCKSCALE_FLAGS;
    facts["sources"] = BLOCKSCALE_SOURCES;
#if defined(_OPENMP)
    facts["openmp"] = true;
#else
    facts["openmp"] = false;
#endif
    return facts;
}

}  // namespace

NB_MODULE(_native, m) {
    m.def("compiled_isas", [] { return names(false); });
    m.def("isas", [] { return names(true); });
    m.def("lacking", &lacking);
    m.def("isa", [] { return blockscale::isa().name; });
    m.def("select_isa", &blockscale::select_isa);
    m.def("build", &build);
    bind_format(m);
    bind_primitives(m);
    bind_linear(m);
    bind_fused(m);
    bind_integer(m);
    bind_records(m);
    bind_tuning(m);
}
