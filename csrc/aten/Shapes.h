// What operators return, for those that are not structured: a function for each row with `shape` in
// yaml/native_functions.yaml, here and in files of its family. It takes the operator's arguments without its outputs
// and gives one TensorShape for each output. Arguments that do not fit: where the CPU kernel makes its results, it
// answers with std::nullopt, and the kernel is asked, which raises or tells the shapes itself; where the kernel writes
// into outputs (KnownShapes), it raises. A row with `checks` names a function of all arguments, which raises.
//
// The build declares both from the rows, in ShapeFunctions.h.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include <array>
#include <concepts>
#include <optional>

namespace torch_mtia {

struct TensorShape {
  c10::DimVector sizes;
  at::TensorOptions options;
  std::optional<c10::DimVector> strides;  // none: those of the options' memory format
  bool casts = false;                     // the CPU kernel converts to the dtype of an `out` argument
  bool absent = false;                    // nobody asks for this output
};

template <size_t kOutputs>
using KnownShapes = std::array<TensorShape, kOutputs>;
using KnownShape = KnownShapes<1>;
using TwoKnownShapes = KnownShapes<2>;
using ThreeKnownShapes = KnownShapes<3>;

template <size_t kOutputs>
class Shapes {
 public:
  Shapes(KnownShapes<kOutputs> shapes) : shapes_(std::move(shapes)), known_(true) {}
  Shapes(std::nullopt_t /*none*/) : known_(false) {}
  template <std::same_as<TensorShape>... Each>
    requires(sizeof...(Each) == kOutputs)
  Shapes(Each... shapes) : shapes_{std::move(shapes)...}, known_(true) {}

  bool known() const { return known_; }
  TensorShape& operator[](size_t output) { return shapes_[output]; }
  const TensorShape& operator[](size_t output) const { return shapes_[output]; }
  // Empty if they are not known.
  at::ArrayRef<TensorShape> list() const { return at::ArrayRef<TensorShape>(shapes_.data(), known_ ? kOutputs : 0); }

 private:
  std::array<TensorShape, kOutputs> shapes_;
  bool known_;
};
using Shape = Shapes<1>;
using TwoShapes = Shapes<2>;
using ThreeShapes = Shapes<3>;
using FourShapes = Shapes<4>;

// With the options of `self`; contiguous, unless said otherwise.
TensorShape like(const at::Tensor& self);
TensorShape like(const at::Tensor& self, at::IntArrayRef sizes);
TensorShape like(const at::Tensor& self, at::IntArrayRef sizes, at::ScalarType dtype);
TensorShape like(const at::Tensor& self, at::IntArrayRef sizes, at::MemoryFormat format);
// What at::empty_like makes: with the strides of `self`, if they are dense.
TensorShape with_strides_of(const at::Tensor& self);
inline TensorShape absent() {
  return {.absent = true};
}
// Arguments as shape functions ask for them.
inline bool is_given(const std::optional<at::Tensor>& tensor) {
  return tensor && tensor->defined();
}
bool all_at_least(at::IntArrayRef values, int64_t least);
// Images with or without a batch dimension, of which only that one may be empty.
bool are_images(const at::Tensor& tensor, int64_t spatial_dims);

at::Tensor empty_of(const TensorShape& shape);
// Makes `out` fit. Raises for a wrong dtype.
void resize_to(const at::Tensor& out, const TensorShape& shape);

// Copies a result to where the caller wants it.
void write_result(const at::Tensor& result, at::Tensor& out);

}  // namespace torch_mtia
