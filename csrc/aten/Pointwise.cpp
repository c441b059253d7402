#include "Pointwise.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/native/Copy.h>
#include <ATen/ops/from_blob.h>

#include <cmath>
#include <cstring>

#include "../device/MTIAHostAllocator.h"
#include "../device/ScalarTypes.h"
#include "HostAlias.h"

namespace torch_mtia {
namespace {

using MaybeOwnedTensor = c10::MaybeOwned<at::TensorBase>;

at::Tensor empty_on_host_like(const at::Tensor& tensor, at::ScalarType dtype) {
  if (tensor.is_non_overlapping_and_dense()) {
    return at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), dtype);
  }
  return at::detail::empty_cpu(tensor.sizes(), dtype);
}

void copy_on_host(const at::Tensor& to, const at::Tensor& from) {
  auto iter = at::TensorIteratorConfig()
                  .add_output(to)
                  .add_const_input(from)
                  .resize_outputs(false)
                  .check_all_same_dtype(false)
                  .set_check_mem_overlap(false)
                  .build();
  at::native::copy_stub(c10::kCPU, iter, /*non_blocking=*/false);
}

}  // namespace

std::unique_ptr<at::TensorIterator> own_iterator(const at::TensorIteratorBase& iter, CPUOperand host_operand,
                                                 bool reads_tensors) {
  auto own = std::make_unique<at::TensorIterator>(iter);
  const auto is_aliased = [&](int arg) { return on_device(iter, arg) || host_operand == CPUOperand::kBuffer; };
  // An earlier operand whose alias tells the same of itself; else `arg`.
  const auto find_alike = [&](int arg) {
    if (reads_tensors) return arg;
    const auto& tensor = iter.tensor_base(arg);
    for (int other = 0; other < arg; ++other) {
      const auto& candidate = iter.tensor_base(other);
      if (is_aliased(other) && candidate.sizes() == tensor.sizes() && candidate.dtype() == tensor.dtype()) return other;
    }
    return arg;
  };
  for (int arg = 0; arg < iter.ntensors(); ++arg) {
    auto& operand = own->operand(arg);
    if (is_aliased(arg)) {
      const int alike = find_alike(arg);
      at::TensorBase alias =
          alike != arg ? at::TensorBase(own->tensor_base(alike)) : host_alias(operand.tensor_base(), operand.is_output);
      operand.tensor(MaybeOwnedTensor::owned(std::move(alias)));
      continue;
    }
    at::Tensor value = clone_on_host(operand.tensor_base());
    operand.data = value.data_ptr();
    if (operand.original_tensor_base().defined()) {
      operand.tensor(MaybeOwnedTensor::owned(clone_on_host(operand.original_tensor_base())));
      operand.exchange_tensor(MaybeOwnedTensor::owned(std::move(value)));
    } else {
      operand.tensor(MaybeOwnedTensor::owned(std::move(value)));
    }
  }
  return own;
}

bool cast_scalars(at::TensorIteratorBase& iter, Casts casts) {
  bool needs_casts = false;
  for (int arg = 0; arg < iter.ntensors(); ++arg) {
    const auto dtype = loop_dtype(iter, arg, casts);
    if (C10_LIKELY(iter.dtype(arg) == dtype)) continue;
    if (on_device(iter, arg)) {
      needs_casts = true;
      continue;
    }
    auto& operand = iter.operand(arg);
    at::Tensor cast = at::detail::empty_cpu({}, dtype);
    copy_on_host(cast, operand.tensor());
    operand.data = cast.data_ptr();
    operand.exchange_tensor(MaybeOwnedTensor::owned(std::move(cast)));
    operand.current_dtype = dtype;
    operand.target_dtype = dtype;
  }
  return needs_casts;
}

CastingOperands take_casting_operands(const at::TensorIteratorBase& iter, Casts casts) {
  CastingOperands operands{{}, {}, {}, iter.noutputs()};
  operands.tensors.reserve(iter.ntensors());
  operands.dtypes.reserve(iter.ntensors());
  for (int arg = 0; arg < iter.ntensors(); ++arg) {
    operands.dtypes.push_back(loop_dtype(iter, arg, casts));
    operands.on_device.push_back(on_device(iter, arg));
    if (on_device(iter, arg)) {
      operands.tensors.push_back(host_alias(iter.tensor_base(arg), arg < iter.noutputs()));
    } else {
      const auto& original = iter.operand(arg).original_tensor_base();
      operands.tensors.push_back(clone_on_host(original.defined() ? original : iter.tensor_base(arg)));
    }
  }
  return operands;
}

void run_with_casts(const CastingOperands& operands, c10::function_ref<void(at::TensorIterator&)> loop) {
  const auto& tensors = operands.tensors;
  const auto num_outputs = static_cast<size_t>(operands.num_outputs);
  std::vector<at::Tensor> cast = tensors;
  for (size_t arg = 0; arg < cast.size(); ++arg) {
    if (tensors[arg].scalar_type() == operands.dtypes[arg]) continue;
    cast[arg] = empty_on_host_like(tensors[arg], operands.dtypes[arg]);
    // An output that is an input too (in place) was listed twice: its old value arrives through the input.
    if (arg >= num_outputs) copy_on_host(cast[arg], tensors[arg]);
  }
  at::TensorIteratorConfig config;
  config.resize_outputs(false).check_all_same_dtype(false).set_check_mem_overlap(false);
  for (size_t arg = 0; arg < cast.size(); ++arg) {
    if (arg < num_outputs) {
      config.add_output(cast[arg]);
    } else {
      config.add_const_input(cast[arg]);
    }
  }
  auto iter = config.build();
  // Loops over short dtypes look for the number that a scalar was before its cast.
  for (size_t arg = num_outputs; arg < cast.size(); ++arg) {
    if (cast[arg].is_same(tensors[arg])) continue;
    auto& operand = iter.operand(static_cast<int>(arg));
    operand.tensor(MaybeOwnedTensor::borrowed(tensors[arg]));
    operand.exchange_tensor(MaybeOwnedTensor::borrowed(cast[arg]));
  }
  loop(iter);
  for (size_t arg = 0; arg < num_outputs; ++arg) {
    if (!cast[arg].is_same(tensors[arg])) copy_on_host(tensors[arg], cast[arg]);
  }
}

namespace {

// An operand as a tensor of one dimension in the order of the iterator: itself, or a copy. One number has none.
at::Tensor flattened(const at::TensorIteratorBase& iter, int arg) {
  const auto size = static_cast<int64_t>(iter.element_size(arg));
  c10::DimVector sizes, strides;
  int64_t expected = size;
  bool is_contiguous = true;
  bool is_number = arg >= iter.noutputs();
  for (int dim = iter.ndim() - 1; dim >= 0; --dim) {
    sizes.push_back(iter.shape()[dim]);
    strides.push_back(iter.strides(arg)[dim] / size);
    is_number = is_number && strides.back() == 0;
  }
  for (int dim = 0; dim < iter.ndim(); ++dim) {
    is_contiguous = is_contiguous && iter.strides(arg)[dim] == expected;
    expected *= iter.shape()[dim];
  }
  void* const data = iter.operand(arg).data;
  const at::TensorOptions options(iter.dtype(arg));
  if (is_number) return at::from_blob(data, {}, options);
  if (is_contiguous) return at::from_blob(data, {iter.numel()}, options);
  return at::from_blob(data, sizes, strides, options);
}

void run_on(const at::TensorIteratorBase& given, at::TensorList tensors,
            c10::function_ref<void(at::TensorIterator&)> loop) {
  at::TensorIteratorConfig config;
  config.resize_outputs(false).check_all_same_dtype(false).set_check_mem_overlap(false);
  for (int arg = 0; arg < given.ntensors(); ++arg) {
    const at::Tensor& tensor = tensors[static_cast<size_t>(arg)];
    arg < given.noutputs() ? config.add_output(tensor) : config.add_const_input(tensor);
  }
  auto iter = config.build();
  for (int arg = given.noutputs(); arg < given.ntensors(); ++arg) {
    const auto& original = given.operand(arg).original_tensor_base();
    if (!original.defined() || on_device(given, arg)) continue;
    auto& operand = iter.operand(arg);  // the number that it was before its cast
    operand.tensor(MaybeOwnedTensor::borrowed(original));
    operand.exchange_tensor(MaybeOwnedTensor::borrowed(tensors[static_cast<size_t>(arg)]));
  }
  loop(iter);
}

}  // namespace

void run_in_vectors(const at::TensorIteratorBase& iter, c10::function_ref<void(at::TensorIterator&)> loop) {
  constexpr int64_t kBlock = 128;  // elements: two vectors of bytes, which is what ATen's loops take at a time
  constexpr int64_t kGrain = (int64_t{32} << 10) / kBlock;
  const int64_t whole = iter.numel() / kBlock * kBlock;
  const int64_t rest = iter.numel() - whole;
  std::vector<at::Tensor> given, flat;
  for (int arg = 0; arg < iter.ntensors(); ++arg) {
    given.push_back(flattened(iter, arg));
    const at::Tensor& tensor = given.back();
    if (tensor.dim() < 2 && (tensor.dim() == 0 || tensor.stride(0) == 1)) {
      flat.push_back(tensor);
    } else if (arg < iter.noutputs()) {
      flat.push_back(at::detail::empty_cpu({iter.numel()}, tensor.scalar_type()));
    } else {
      flat.push_back(tensor.contiguous().view(-1));
    }
  }
  at::parallel_for(0, whole / kBlock, kGrain, [&](int64_t begin, int64_t end) {
    const IntraOpThreads one(1);
    std::vector<at::Tensor> parts;
    for (const at::Tensor& tensor : flat) {
      parts.push_back(tensor.dim() == 0 ? tensor : tensor.narrow(0, begin * kBlock, (end - begin) * kBlock));
    }
    run_on(iter, parts, loop);
  });
  if (rest > 0) {
    const IntraOpThreads one(1);
    std::vector<at::Tensor> parts;
    for (int arg = 0; arg < iter.ntensors(); ++arg) {
      const at::Tensor& tensor = flat[static_cast<size_t>(arg)];
      if (tensor.dim() == 0) {
        parts.push_back(tensor);
        continue;
      }
      parts.push_back(at::detail::empty_cpu({kBlock}, tensor.scalar_type()));
      if (arg < iter.noutputs()) continue;
      parts.back().fill_(tensor[-1]);
      parts.back().narrow(0, 0, rest).copy_(tensor.narrow(0, whole, rest));
    }
    run_on(iter, parts, loop);
    for (size_t arg = 0; arg < static_cast<size_t>(iter.noutputs()); ++arg) {
      flat[arg].narrow(0, whole, rest).copy_(parts[arg].narrow(0, 0, rest));
    }
  }
  for (size_t arg = 0; arg < static_cast<size_t>(iter.noutputs()); ++arg) {
    if (!flat[arg].is_same(given[arg])) given[arg].copy_(flat[arg].view(given[arg].sizes()));
  }
}

at::TensorIterator empty_iterator(const at::TensorIteratorBase& iter, Casts casts) {
  at::TensorIteratorConfig config;
  config.resize_outputs(false).check_all_same_dtype(false).set_check_mem_overlap(false);
  for (int arg = 0; arg < iter.ntensors(); ++arg) {
    const auto dtype = loop_dtype(iter, arg, casts);
    if (arg < iter.noutputs()) {
      config.add_owned_output(at::detail::empty_cpu({0}, dtype));
    } else if (iter.is_scalar(arg)) {
      at::Tensor zero = at::detail::empty_cpu({}, dtype);
      std::memset(zero.mutable_data_ptr(), 0, zero.nbytes());
      config.add_owned_const_input(std::move(zero));
    } else {
      config.add_owned_const_input(at::detail::empty_cpu({0}, dtype));
    }
  }
  return config.build();
}

std::string words(const at::TensorIteratorBase& iter, Casts casts) {
  DtypeWords result;
  for (int arg = 0; arg < iter.ntensors(); ++arg) result.add(dtype_symbol(loop_dtype(iter, arg, casts)));
  return result.text();
}

bool converts(const c10::Scalar& value, at::ScalarType dtype) {
  constexpr double kLargestHalf = 65504;
  if (value.isBoolean()) return true;
  if (value.type() == at::kUInt64) return value.to<uint64_t>() <= 127;  // a larger one is no int64_t
  if (value.isIntegral(/*includeBool=*/false)) {
    const auto number = value.to<int64_t>();
    return -127 <= number && number <= 127;
  }
  if (!value.isFloatingPoint()) return false;
  const auto number = value.to<double>();
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
      return !std::isfinite(number) || std::abs(number) <= kLargestHalf;
    default:
      return 0 <= number && number <= 127;
  }
}

namespace {

void list_operand(const at::TensorIteratorBase& iter, int arg, CPUOperand host_operand, const InputBytes& inputs,
                  core::OperandSink& sink, at::IntArrayRef sizes, at::IntArrayRef strides) {
  void* const data = iter.operand(arg).data;
  const bool is_output = arg < iter.noutputs();
  const bool is_copy = host_operand == CPUOperand::kBuffer && on_device(iter, 0);
  const auto old_bytes =
      is_copy && !is_output ? core::OldBytes::kPassedThrough : old_bytes_of(arg, iter.noutputs(), inputs);
  core::Operand operand{reinterpret_cast<uint64_t>(data),
                        static_cast<uint64_t>(iter.element_size(arg)),
                        sizes,
                        strides,
                        /*stride_unit=*/1,
                        is_output,
                        old_bytes,
                        dtype_name(iter.dtype(arg))};
  if (iter.tensor_base(arg).defined()) operand.shape = iter.tensor_base(arg).sizes();  // the iterator's is coalesced
  if (on_device(iter, arg)) {
    operand.address = reinterpret_cast<uint64_t>(HostView::to_device(data));
    sink.add(operand);
  } else if (const auto& original = iter.operand(arg).original_tensor_base(); original.defined()) {
    list_host_operand(original, is_output, sink);  // as it was before its cast
  } else {
    // A copy of memory that is not pinned is waited for.
    operand.is_shared = host_operand == CPUOperand::kBuffer && is_pinned(data);
    sink.add_host(operand);
  }
}

}  // namespace

void list_operands(const at::TensorIteratorBase& iter, CPUOperand host_operand, const InputBytes& inputs,
                   core::OperandSink& sink) {
  for (int arg = 0; arg < iter.ntensors(); ++arg) {
    list_operand(iter, arg, host_operand, inputs, sink, iter.shape(), iter.strides(arg));
  }
}

void list_operands(const at::TensorIteratorBase& iter, CPUOperand host_operand, const InputBytes& inputs,
                   core::OperandSink& sink, at::IntArrayRef indexed_sizes, at::IntArrayRef indexed_strides) {
  for (int arg = 0; arg < iter.ntensors(); ++arg) {
    c10::DimVector sizes(iter.shape()), strides(iter.strides(arg));
    if (arg == iter.noutputs()) {
      sizes.append(indexed_sizes.begin(), indexed_sizes.end());
      strides.append(indexed_strides.begin(), indexed_strides.end());
    }
    list_operand(iter, arg, host_operand, inputs, sink, sizes, strides);
  }
}

}  // namespace torch_mtia
