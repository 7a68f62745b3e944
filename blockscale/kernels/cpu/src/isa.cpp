// SPDX-License-Identifier: BSD-3-Clause
#include "isa.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "build.h"
#include "processor.h"

namespace blockscale {

#define BLOCKSCALE_DECLARE(name)        \
    namespace name {                    \
    const Primitives& primitives();     \
    const Linears& linears();           \
    const FusedOps& fused_ops();        \
    const IntegerOps& integer_ops();    \
    const Records& records();           \
    }
BLOCKSCALE_EACH_ISA(BLOCKSCALE_DECLARE)

namespace {

std::vector<Isa> compiled() {
    std::vector<Isa> found;
#define BLOCKSCALE_ADD(name) \
    found.push_back({#name, lacking(#name), &name::primitives(), &name::linears(),  \
                     &name::fused_ops(), &name::integer_ops(), &name::records()});
    BLOCKSCALE_EACH_ISA(BLOCKSCALE_ADD)
    return found;
}

// `who` begins the error: it names what asked.
const Isa* find(const std::string& name, const std::string& who) {
    std::string usable, reason = "this library was not compiled for it";
    for (const Isa& each : isas()) {
        if (each.present() && each.name == name) return &each;
        if (each.present()) usable += (usable.empty() ? "" : ", ") + each.name;
        if (each.name == name) reason = each.lacking;
    }
    throw std::invalid_argument(who + ": no instruction set '" + name + "' here: " + reason +
                                "; there are " + usable);
}

const Isa* first_choice() {
    const char* wanted = std::getenv("BLOCKSCALE_CPU_ISA");
    if (wanted && *wanted) return find(wanted, "BLOCKSCALE_CPU_ISA");
    const Isa* last = nullptr;
    for (const Isa& each : isas())
        if (each.present()) last = &each;
    if (!last) throw std::invalid_argument("this processor runs nothing that the library was compiled for");
    return last;
}

std::atomic<const Isa*>& chosen() {
    static std::atomic<const Isa*> current{first_choice()};  // tried again if it threw
    return current;
}

}  // namespace

const std::vector<Isa>& isas() {
    static const std::vector<Isa> all = compiled();
    return all;
}

const Isa& isa() { return *chosen().load(std::memory_order_relaxed); }

void select_isa(const std::string& name) {
    chosen().store(find(name, "select_isa"), std::memory_order_relaxed);
}

}  // namespace blockscale
