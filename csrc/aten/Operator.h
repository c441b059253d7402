// An operator by name, with what its row in yaml/native_functions.yaml says of it for the mechanisms that operators
// share, and with the dtypes that its CPU kernel is known to take.
#pragma once

#include <algorithm>
#include <iterator>
#include <string_view>

#include "OperatorDtypes.h"
#include "OperatorTraits.h"

namespace torch_mtia {

template <typename Row, size_t kRows>
constexpr const Row* find_row(const Row (&rows)[kRows], std::string_view name) {
  const auto* row = std::lower_bound(std::begin(rows), std::end(rows), name,
                                     [](const Row& row, std::string_view name) { return row.name < name; });
  return row != std::end(rows) && row->name == name ? row : nullptr;
}

// `name` without an overload, as in aten::index.
constexpr OperatorTraits traits_of(std::string_view name) {
  const auto* row = find_row(kOperatorRows, name);
  return row != nullptr ? row->traits : OperatorTraits();
}

// Made of literals only: the compiler looks its rows up, and no call does. `kernel` is the name of the CPU kernel in
// yaml/dtypes.yaml.
struct Operator {
  consteval Operator(const char* name) : Operator(name, name) {}
  consteval Operator(const char* name, const char* kernel) : name(name), kernel(kernel), traits(traits_of(name)) {
    if (const auto* row = find_row(kDtypeRows, kernel)) {
      known_dtypes = kDtypeSignatures + row->first;
      num_known_dtypes = row->count;
    }
  }

  // See Note [Dtypes]. The usual dtypes come first.
  bool takes(const DtypeSignature& dtypes) const {
    for (size_t i = 0; i < num_known_dtypes; ++i) {
      if (known_dtypes[i] == dtypes.code()) return true;
    }
    return false;
  }

  const char* name;
  const char* kernel;
  OperatorTraits traits;
  const uint64_t* known_dtypes = nullptr;
  size_t num_known_dtypes = 0;
};

}  // namespace torch_mtia
