// SPDX-License-Identifier: BSD-3-Clause
// Formats for Python: Element and Spec are made of named fields, those of the dataclasses
// ElementNumbers and FormatNumbers, of which none may be missing, unknown or of another type.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "native_format.h"

namespace nb = nanobind;

namespace blockscale {
namespace {

template <class E>
using Names = std::vector<std::pair<const char*, E>>;

Names<Family> names(Family) {
    return {{"integer", Family::integer}, {"minifloat", Family::minifloat},
            {"binary", Family::binary}, {"codebook", Family::codebook}};
}

Names<Statistic> names(Statistic) {
    return {{"magnitude", Statistic::magnitude},
            {"high", Statistic::high},
            {"range", Statistic::range},
            {"mean", Statistic::mean},
            {"mean_above", Statistic::mean_above}};
}

Names<ScaleKind> names(ScaleKind) {
    return {{"fp32", ScaleKind::fp32}, {"fp16", ScaleKind::fp16}, {"bf16", ScaleKind::bf16},
            {"pow2", ScaleKind::pow2}, {"e8m0", ScaleKind::e8m0}, {"two_level", ScaleKind::two_level}};
}

Names<Rounding> names(Rounding) {
    return {{"nearest_even", Rounding::nearest_even}, {"nearest_away", Rounding::nearest_away},
            {"toward_zero", Rounding::toward_zero},   {"down", Rounding::down},
            {"up", Rounding::up},                     {"stochastic", Rounding::stochastic}};
}

Names<Stored> names(Stored) {
    return {{"", Stored::none}, {"fp32", Stored::fp32}, {"fp16", Stored::fp16}, {"bf16", Stored::bf16}};
}

// A Python value as the type of a field. Throws std::invalid_argument; `where` names the field.
template <class V>
void read(nb::handle value, const std::string& where, V& to) {
    if constexpr (std::is_enum_v<V>) {
        std::string name, all;
        bool text = nb::try_cast<std::string>(value, name);
        for (const auto& [known, meaning] : names(V{})) {
            if (text && name == known) {
                to = meaning;
                return;
            }
            all += (all.empty() ? "" : ", ") + std::string(known);
        }
        throw std::invalid_argument(where + ": no " + nb::repr(value).c_str() + "; there are " + all);
    } else if (!nb::try_cast<V>(value, to)) {
        throw std::invalid_argument(where + " cannot be " + nb::repr(value).c_str());
    }
}

// The scales' own element, of which the kernels want a Spec.
void read(nb::handle value, const std::string& where, std::shared_ptr<const Spec>& to) {
    if (value.is_none()) return;
    Spec inner{};  // to nearest even, without a zero point
    read(value, where, inner.element);
    to = std::make_shared<const Spec>(inner);
}

template <class T>
struct Field {
    const char* name;
    void (*set)(nb::handle value, const std::string& where, T& to);
};

template <auto MEMBER, class T>
void set(nb::handle value, const std::string& where, T& to) {
    read(value, where, to.*MEMBER);
}

constexpr Field<Element> kElement[] = {
    {"family", set<&Element::family>},
    {"bits", set<&Element::bits>},
    {"signed", set<&Element::is_signed>},
    {"low", set<&Element::low>},
    {"high", set<&Element::high>},
    {"smallest_normal", set<&Element::smallest_normal>},
    {"statistic", set<&Element::statistic>},
    {"mbits", set<&Element::mantissa_bits>},
    {"bias", set<&Element::bias>},
    {"max_code", set<&Element::max_code>},
    {"nan", set<&Element::nan_code>},
    {"infinity", set<&Element::infinity_code>},
    {"values", set<&Element::values>},
    {"order", set<&Element::order>},
    {"thresholds", set<&Element::thresholds>},
};

constexpr Field<Spec> kSpec[] = {
    {"element", set<&Spec::element>},
    {"statistic", set<&Spec::statistic>},
    {"scale", set<&Spec::scale>},
    {"nearest", set<&Spec::nearest>},
    {"threshold", set<&Spec::threshold>},
    {"emax", set<&Spec::emax>},
    {"levels", set<&Spec::levels>},
    {"fraction_bits", set<&Spec::fraction_bits>},
    {"full", set<&Spec::full>},
    {"asym", set<&Spec::asym>},
    {"recip", set<&Spec::recip>},
    {"poisons", set<&Spec::poisons>},
    {"rounding", set<&Spec::rounding>},
    {"inner", set<&Spec::inner>},
    {"outer_levels", set<&Spec::outer_levels>},
    {"zero", set<&Spec::zero>},
    {"offset", set<&Spec::offset>},
};

// All fields of a struct from keyword arguments.
template <class T, size_t N>
T filled(const char* type, const Field<T> (&fields)[N], const nb::kwargs& given) {
    T made{};
    size_t known = 0;
    for (const Field<T>& field : fields) {
        std::string where = std::string(type) + ": field '" + field.name + "'";
        if (!given.contains(field.name)) throw std::invalid_argument(where + " is missing");
        field.set(given[field.name], where, made);
        ++known;
    }
    if (known == given.size()) return made;
    for (auto [name, value] : given) {
        bool found = false;
        for (const Field<T>& field : fields) found |= nb::cast<std::string>(name) == field.name;
        if (!found)
            throw std::invalid_argument(std::string(type) + ": there is no field '" +
                                        nb::cast<std::string>(name) + "'");
    }
    return made;
}

}  // namespace
}  // namespace blockscale

void bind_format(nb::module_& m) {
    using namespace blockscale;
    nb::set_leak_warnings(false);  // formats are cached until the interpreter ends
    nb::class_<Element>(m, "Element").def("__init__", [](Element* self, const nb::kwargs& given) {
        Element made = filled("Element", kElement, given);
        if (made.family == Family::codebook)
            made.book = make_codebook(made.bits, made.values, made.order, made.thresholds);
        new (self) Element(std::move(made));
    });
    nb::class_<Spec>(m, "Spec").def("__init__", [](Spec* self, const nb::kwargs& given) {
        new (self) Spec(filled("Spec", kSpec, given));
    });
    nb::class_<NativeFormat>(m, "NativeFormat")
        .def(nb::init<const Spec&, std::vector<int64_t>, int64_t, std::shared_ptr<NativeFormat>>(),
             nb::arg("spec"), nb::arg("block"), nb::arg("rest"), nb::arg("inner").none());
}
