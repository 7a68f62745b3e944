// SPDX-License-Identifier: BSD-3-Clause
// Records for Python: a Record object made once per kind, then addresses.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>

#include "address.h"
#include "isa.h"

namespace nb = nanobind;

namespace blockscale {
namespace {

using PieceNumbers = std::tuple<int, int, int, int, int, int, bool>;
using PartNumbers = std::tuple<int, int, int, bool, std::vector<PieceNumbers>>;

constexpr int kMostEntries = 2048, kMostBytes = 64;  // of a part; of a dense piece

void check(bool right, const char* what) {
    if (!right) throw std::invalid_argument(what);
}

Piece piece(const PieceNumbers& numbers, int64_t size, int entries) {
    auto [from, count, right, width, left, target, dense] = numbers;
    check(from >= 0 && count > 0 && from + count <= size, "a piece lies outside of its record");
    int each = dense && width > 0 ? 8 / width : 1;
    check(target >= 0 && target + count * each <= entries, "a piece lies outside of its part");
    check(width >= 1 && width <= 8 && right >= 0 && right + width <= 8 && left >= 0 && left + width <= 8,
          "a piece has no such bits");
    check(!dense || ((width == 1 || width == 2 || width == 4) && count <= kMostBytes),
          "a dense piece has fields of 1, 2 or 4 bits in at most 64 bytes");
    return {from, count, right, width, left, target, dense};
}

Record record(int64_t size, const std::vector<PartNumbers>& parts) {
    Record made{size, {}};
    for (const auto& [entries, bits, add, packed, pieces] : parts) {
        check(entries > 0 && entries <= kMostEntries && bits >= 1 && bits <= 8, "no such part");
        check(add >= 0 && add < (1 << bits), "no such number to add");
        check(!packed || entries * bits % 8 == 0, "a packed part fills whole bytes");
        Part part{entries, bits, add, packed, {}};
        for (const PieceNumbers& each : pieces) part.pieces.push_back(piece(each, size, entries));
        made.parts.push_back(part);
    }
    return made;
}

std::vector<uint8_t*> places(const Record& record, const std::vector<Address>& parts) {
    check(parts.size() == record.parts.size(), "as many places as parts");
    std::vector<uint8_t*> found;
    for (Address each : parts) found.push_back(reinterpret_cast<uint8_t*>(each));
    return found;
}

}  // namespace
}  // namespace blockscale

void bind_records(nb::module_& m) {
    using namespace blockscale;
    nb::class_<Record>(m, "Record")
        .def("__init__", [](Record* self, int64_t size, const std::vector<PartNumbers>& parts) {
            new (self) Record(record(size, parts));
        })
        .def("apart", [](const Record& self, Address records, int64_t n,
                         const std::vector<Address>& parts, int threads) {
            isa().records->apart(self, reinterpret_cast<const uint8_t*>(records), n,
                                 places(self, parts).data(), threads);
        }, nb::call_guard<nb::gil_scoped_release>())
        .def("together", [](const Record& self, const std::vector<Address>& parts, int64_t n,
                            Address records, int threads) {
            isa().records->together(self, places(self, parts).data(), n,
                                    reinterpret_cast<uint8_t*>(records), threads);
        }, nb::call_guard<nb::gil_scoped_release>());
}
