// SPDX-License-Identifier: BSD-3-Clause
// Choices of which only speed depends, and for Python: what there is, what is set, and setting it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <map>
#include <stdexcept>
#include <string>

#include "tuning.h"

namespace nb = nanobind;

namespace blockscale {

int64_t choices[kChoices] = {
#define BLOCKSCALE_USUAL(name, usual, least, most) usual,
    BLOCKSCALE_EACH_CHOICE(BLOCKSCALE_USUAL)
#undef BLOCKSCALE_USUAL
};

namespace {

struct Bounds {
    const char* name;
    int64_t usual, least, most;
};

constexpr Bounds kBounds[kChoices] = {
#define BLOCKSCALE_BOUNDS(name, usual, least, most) {#name, usual, least, most},
    BLOCKSCALE_EACH_CHOICE(BLOCKSCALE_BOUNDS)
#undef BLOCKSCALE_BOUNDS
};

// {name: (without a measurement, least, most)}
nb::dict bounds() {
    nb::dict found;
    for (const Bounds& each : kBounds)
        found[each.name] = nb::make_tuple(each.usual, each.least, each.most);
    return found;
}

// {name: what is set}
nb::dict tuning() {
    nb::dict found;
    for (int i = 0; i < kChoices; ++i)
        found[kBounds[i].name] = chosen(Choice(i));
    return found;
}

int place_of(const std::string& name, int64_t value) {
    for (int i = 0; i < kChoices; ++i) {
        if (name != kBounds[i].name) continue;
        if (value >= kBounds[i].least && value <= kBounds[i].most) return i;
        throw std::invalid_argument("set_tuning: " + name + " is " + std::to_string(value) +
                                    ", not between " + std::to_string(kBounds[i].least) + " and " +
                                    std::to_string(kBounds[i].most));
    }
    throw std::invalid_argument("set_tuning: there is no choice '" + name + "'");
}

// Those that are named; all others as without a measurement. Nothing changes if one is refused.
void set_tuning(const std::map<std::string, int64_t>& given) {
    int64_t values[kChoices];
    for (int i = 0; i < kChoices; ++i) values[i] = kBounds[i].usual;
    for (const auto& [name, value] : given) values[place_of(name, value)] = value;
    for (int i = 0; i < kChoices; ++i) __atomic_store_n(&choices[i], values[i], __ATOMIC_RELAXED);
}

}  // namespace
}  // namespace blockscale

void bind_tuning(nb::module_& m) {
    m.def("tuning_bounds", &blockscale::bounds);
    m.def("tuning", &blockscale::tuning);
    m.def("set_tuning", &blockscale::set_tuning);
}
