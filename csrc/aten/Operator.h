// An operator by name, with what its row in yaml/native_functions.yaml says of it for the mechanisms that operators
// share.
#pragma once

#include <algorithm>
#include <iterator>
#include <string_view>

#include "OperatorTraits.h"

namespace torch_mtia {

// `name` without an overload, as in aten::index.
constexpr OperatorTraits traits_of(std::string_view name) {
  const auto* row = std::lower_bound(std::begin(kOperatorRows), std::end(kOperatorRows), name,
                                     [](const OperatorRow& row, std::string_view name) { return row.name < name; });
  return row != std::end(kOperatorRows) && row->name == name ? row->traits : OperatorTraits();
}

// Made of a literal only: the compiler looks the traits up, and no call does.
struct Operator {
  consteval Operator(const char* literal) : name(literal), traits(traits_of(literal)) {}

  const char* name;
  OperatorTraits traits;
};

}  // namespace torch_mtia
