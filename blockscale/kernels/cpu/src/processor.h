// SPDX-License-Identifier: BSD-3-Clause
// What the processor that this runs on has. CMakeLists.txt runs it, too, to compile for that alone.
#pragma once

#include <string>
#include <string_view>

namespace blockscale {

// Why this processor or its system does not run what was compiled under that name; empty if they do.
std::string lacking(std::string_view name);

}  // namespace blockscale
