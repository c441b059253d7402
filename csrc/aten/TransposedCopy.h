// Copies whose source lies along another dimension than their destination, as of x.t() or to channels last.
#pragma once

#include <ATen/TensorIterator.h>

namespace torch_mtia {

// Copies bits of operand 1 to operand 0, of one dtype, and returns true, if each has its neighbours along a dimension
// of its own. ATen's loop would go along one of the two and take a cache line for each element of the other.
bool copy_transposed(at::TensorIteratorBase& iter);

}  // namespace torch_mtia
