// Findings of the sanitizer that are repeated at the same lines of the program.
#pragma once

#include <vector>

#include "../sanitizer/Findings.h"

namespace torch_mtia {

// The first one of those at the same lines, with the number of all of them. Their contexts are Places.
std::vector<sanitizer::Finding> merge_findings(std::vector<sanitizer::Finding> findings);

}  // namespace torch_mtia
