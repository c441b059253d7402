#include "Collective.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "../device/DeviceType.h"
#include "../device/HostView.h"
#include "../device/ScalarTypes.h"

namespace torch_mtia {
namespace {

using c10d::ReduceOp;
using collectives::ElementType;
using collectives::Input;
using collectives::Operation;
using collectives::Output;
using enum Step::Kind;

// Bool is a byte, and complex numbers are two real ones.
ElementType element_type(c10::ScalarType dtype) {
  constexpr std::pair<c10::ScalarType, ElementType> kTypes[] = {
      {c10::kDouble, ElementType::kFloat64}, {c10::kFloat, ElementType::kFloat32},
      {c10::kHalf, ElementType::kFloat16},   {c10::kBFloat16, ElementType::kBFloat16},
      {c10::kLong, ElementType::kInt64},     {c10::kInt, ElementType::kInt32},
      {c10::kShort, ElementType::kInt16},    {c10::kChar, ElementType::kInt8},
      {c10::kUInt64, ElementType::kUInt64},  {c10::kUInt32, ElementType::kUInt32},
      {c10::kUInt16, ElementType::kUInt16},  {c10::kByte, ElementType::kUInt8},
      {c10::kBool, ElementType::kUInt8},
  };
  for (const auto& [each, type] : kTypes) {
    if (each == c10::toRealValueType(dtype)) return type;
  }
  TORCH_CHECK_TYPE(false, "elements of ", dtype, " are not reduced");
}

// Of dtypes.
enum Kind : uint8_t { kInteger = 1, kReal = 2, kComplex = 4 };

Kind kind_of(c10::ScalarType dtype) {
  return c10::isComplexType(dtype) ? kComplex : c10::isIntegralType(dtype, /*includeBool=*/true) ? kInteger : kReal;
}

// In the order of ReduceOp.
constexpr struct {
  const char* name;
  Operation operation;
  Operation of_bools;
  int kinds;  // for which it is defined
} kOperations[] = {
    {"SUM", Operation::kSum, Operation::kOr, kInteger | kReal | kComplex},
    {"AVG", Operation::kAverage, Operation::kAverage, kReal | kComplex},
    {"PRODUCT", Operation::kProduct, Operation::kAnd, kInteger | kReal},
    {"MIN", Operation::kMin, Operation::kMin, kInteger | kReal},
    {"MAX", Operation::kMax, Operation::kMax, kInteger | kReal},
    {"BAND", Operation::kAnd, Operation::kAnd, kInteger},
    {"BOR", Operation::kOr, Operation::kOr, kInteger},
    {"BXOR", Operation::kXor, Operation::kXor, kInteger},
    {"PREMUL_SUM", Operation::kSum, Operation::kOr, kInteger | kReal | kComplex},
};

const c10d::PreMulSumSupplement& factors_of(const ReduceOp& operation) {
  const auto* supplement = dynamic_cast<const c10d::PreMulSumSupplement*>(operation.supplement_.get());
  TORCH_CHECK_VALUE(supplement != nullptr, "PREMUL_SUM needs a factor");
  return *supplement;
}

// A dtype that engines reduce.
c10::ScalarType wide_dtype(ReduceOp::RedOpType operation, c10::ScalarType dtype) {
  if (c10::isFloat8Type(dtype)) return c10::kFloat;
  return kind_of(dtype) == kInteger && operation == ReduceOp::PREMUL_SUM ? c10::kLong : dtype;
}

}  // namespace

CollectiveOperands::CollectiveOperands(const std::vector<Argument>& arguments) {
  if (!HostView::available()) return;  // the work has pinned memory instead
  for (const auto& [tensor, is_written, is_reduced] : arguments) {
    if (!is_ours(tensor.device()) || tensor.layout() != at::kStrided) continue;
    operands_.push_back({reinterpret_cast<uint64_t>(tensor.const_data_ptr()), static_cast<int64_t>(tensor.itemsize()),
                         tensor.sizes().vec(), tensor.strides().vec(), dtype_name(tensor.scalar_type()), is_written,
                         is_reduced});
  }
}

void CollectiveOperands::list(core::OperandSink& sink) const {
  for (const Each& each : operands_) {
    sink.add({each.address, static_cast<uint64_t>(each.element_size), each.sizes, each.strides, each.element_size,
              each.is_written, each.is_reduced ? core::OldBytes::kRead : core::OldBytes::kPassedThrough, each.dtype});
  }
}

at::Tensor HostTensors::of(const Argument& argument) {
  const at::Tensor& tensor = argument.tensor;
  const bool is_host = tensor.device().is_cpu();
  TORCH_CHECK(is_host || is_ours(tensor.device()), "expected a tensor of ", device_name(),
              " or of the CPU, got one of ", tensor.device());
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided, "collectives of ", device_name(),
                              " take dense tensors, got one with layout ", tensor.layout());
  TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(),
              "collectives take no tensor that is conjugated or negated lazily: "
              "call resolve_conj() or resolve_neg() first");
  const auto options = at::TensorOptions(tensor.scalar_type()).device(at::kCPU);
  if (is_host) {
    return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), [tensor](void*) {}, options);
  }
  if (HostView::available()) {
    void* const address = tensor.mutable_data_ptr();
    return at::from_blob(address == nullptr ? address : HostView::to_host(address), tensor.sizes(), tensor.strides(),
                         options);
  }
  const at::Tensor pinned = at::empty(tensor.sizes(), options.pinned_memory(true));
  staged_.push_back({argument, pinned});
  // Owns nothing: the thread of the driver that drops the work must not be the one that frees pinned memory.
  return at::from_blob(pinned.mutable_data_ptr(), pinned.sizes(), pinned.strides(), options);
}

void HostTensors::copy_in(const MTIAStream& stream) const {
  if (staged_.empty()) return;
  const auto* const device = c10::impl::getDeviceGuardImpl(stream.unwrap().device_type());
  TORCH_CHECK_NOT_IMPLEMENTED(!device->isStreamCapturing(stream.unwrap()),
                              "collectives are captured in graphs where the driver has a host view of its memory");
  const c10::StreamGuard guard(stream.unwrap());
  for (const auto& [argument, pinned] : staged_) pinned.copy_(argument.tensor, /*non_blocking=*/true);
}

void HostTensors::copy_out(const MTIAStream& stream) const {
  const c10::StreamGuard guard(stream.unwrap());
  for (const auto& [argument, pinned] : staged_) {
    const c10::DataPtr& memory = pinned.storage().data_ptr();
    at::getHostAllocator(argument.tensor.device().type())
        ->record_event(memory.get(), memory.get_context(), stream.unwrap());
    if (argument.is_written) argument.tensor.copy_(pinned, /*non_blocking=*/true);
  }
}

Dense::Dense(Tensors tensors, std::optional<c10::ScalarType> dtype, bool is_copy) : tensors_(std::move(tensors)) {
  for (const at::Tensor& tensor : tensors_) {
    const c10::ScalarType of_memory = dtype.value_or(tensor.scalar_type());
    const bool is_own = !is_copy && tensor.is_contiguous() && tensor.scalar_type() == of_memory;
    memory_.push_back(is_own ? tensor : at::empty(tensor.sizes(), tensor.options().dtype(of_memory)));
  }
}

void Dense::read() const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!memory_[i].is_same(tensors_[i])) memory_[i].copy_(tensors_[i]);
  }
}

void Dense::write() const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!memory_[i].is_same(tensors_[i])) tensors_[i].copy_(memory_[i]);
  }
}

std::vector<Output> Dense::parts(const Parts& parts) const {
  std::vector<Output> result;
  for (const at::Tensor& tensor : memory_) {
    result.push_back({static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
  }
  if (parts.empty()) return result;
  std::byte* start = result.at(0).data;
  result.clear();
  for (const int64_t count : parts) {
    result.push_back({start, static_cast<size_t>(count) * memory_[0].itemsize()});
    start += result.back().num_bytes;
  }
  return result;
}

Reduction::Reduction(const ReduceOp& operation, c10::ScalarType dtype, at::Tensor factor)
    : operation_(operation.op_),
      dtype_(dtype),
      wide_(wide_dtype(operation_, dtype)),
      factor_tensor_(std::move(factor)) {
  TORCH_CHECK_VALUE(operation_ < ReduceOp::UNUSED, "expected an operation of torch.distributed.ReduceOp");
  TORCH_CHECK_TYPE((kOperations[operation_].kinds & kind_of(dtype)) != 0, kOperations[operation_].name,
                   " is not defined for ", dtype, ": convert the tensor");
  element_type(wide_);  // raises for a dtype that is not reduced
  if (operation_ == ReduceOp::PREMUL_SUM) number_ = factors_of(operation).double_factor;
}

at::Tensor Reduction::factor_of(const ReduceOp& operation) {
  return operation.op_ == ReduceOp::PREMUL_SUM ? factors_of(operation).tensor_factor : at::Tensor();
}

double Reduction::factor() const {
  return factor_tensor_.defined() ? factor_tensor_.item<double>() : number_;
}

// Integers have more digits than the default dtype, in which a product with a floating-point factor would be.
void Reduction::read(const Dense& memory) const {
  memory.read();
  if (!multiplies()) return;
  const double number = factor();
  const bool is_integer = std::trunc(number) == number && std::abs(number) < 0x1p63;
  const at::Tensor multiplier =
      is_integer ? at::scalar_tensor(static_cast<int64_t>(number), at::kLong) : at::scalar_tensor(number, at::kDouble);
  for (const at::Tensor& tensor : memory.memory()) tensor.copy_(at::mul(tensor, multiplier));
}

collectives::Reduction Reduction::of_engine() const {
  const auto& info = kOperations[operation_];
  const bool has_factor = operation_ == ReduceOp::PREMUL_SUM && !multiplies();
  return {element_type(wide_), wide_ == c10::kBool ? info.of_bools : info.operation, has_factor ? factor() : 1};
}

c10::Device Collective::device() const {
  TORCH_CHECK_VALUE(!arguments.empty(), "a collective needs a tensor");
  const c10::Device first = arguments[0].tensor.device();
  for (const Argument& argument : arguments) {
    TORCH_CHECK_VALUE(argument.tensor.device() == first, "the tensors of a collective are on one device, got ", first,
                      " and ", argument.tensor.device());
  }
  return first;
}

Tensors Collective::used(const Tensors& tensors, bool is_written, bool is_reduced) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) {
    const Argument argument{tensor, is_written, is_reduced};
    arguments.insert(arguments.end() - num_factors_, argument);
    result.push_back(host.of(argument));
  }
  return result;
}

void Collective::check_root(int64_t root) const {
  TORCH_CHECK_VALUE(root >= 0 && root < size_, "expected a root below ", size_, ", got ", root);
}

void Collective::check_one_for_each(const Tensors& tensors) const {
  TORCH_CHECK_VALUE(static_cast<int>(tensors.size()) == size_, "expected a tensor for each of ", size_, " ranks, got ",
                    tensors.size());
}

void Collective::check_lists(const std::vector<Tensors>& lists, const Tensors& parts) const {
  TORCH_CHECK_VALUE(lists.size() == parts.size(), "expected a list for each of ", parts.size(), " tensors, got ",
                    lists.size());
  for (const Tensors& list : lists) check_one_for_each(list);
}

Parts Collective::equal_parts(const at::Tensor& whole, const at::Tensor& part) const {
  TORCH_CHECK_VALUE(whole.numel() == part.numel() * size_, "expected ", size_, " times the ", part.numel(),
                    " elements of one rank, got ", whole.numel());
  return Parts(size_, part.numel());
}

Parts Collective::rows(const at::Tensor& tensor, const std::vector<int64_t>& sizes) const {
  const int64_t num_rows = tensor.size(0), row = num_rows == 0 ? 0 : tensor.numel() / num_rows;
  if (sizes.empty()) {
    TORCH_CHECK_VALUE(num_rows % size_ == 0, "expected a first dimension that ", size_, " ranks divide, got ",
                      num_rows);
    return Parts(size_, num_rows / size_ * row);
  }
  TORCH_CHECK_VALUE(static_cast<int>(sizes.size()) == size_, "expected a size for each of ", size_, " ranks, got ",
                    sizes.size());
  TORCH_CHECK_VALUE(*std::min_element(sizes.begin(), sizes.end()) >= 0, "expected sizes of 0 or more, got ",
                    c10::IntArrayRef(sizes));
  const int64_t sum = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  TORCH_CHECK_VALUE(sum == num_rows, "expected sizes that add up to the first dimension, ", num_rows, ", got ", sum);
  Parts parts;
  for (const int64_t size : sizes) parts.push_back(size * row);
  return parts;
}

void Collective::set_operation(const ReduceOp& operation, const Tensors& tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), "a collective needs a tensor");
  at::Tensor factor = Reduction::factor_of(operation);
  if (factor.defined()) {
    const c10::Device device = tensors[0].device();
    TORCH_CHECK_VALUE(factor.numel() == 1, "the factor of PREMUL_SUM has one element, got ", factor.numel());
    TORCH_CHECK_VALUE(factor.device() == device, "expected the factor of PREMUL_SUM to be on ", device,
                      ", as the tensors are, got one on ", factor.device());
    factor = used({factor}, /*is_written=*/false, /*is_reduced=*/true)[0];
    num_factors_ = 1;
  }
  reduction_.emplace(operation, tensors[0].scalar_type(), factor);
}

void Collective::add(Step::Kind kind, const char* name, int64_t root, const Tensors& outputs, const Tensors& inputs,
                     Parts output_parts, Parts input_parts) {
  const bool reduces = kind <= kReduceScatter;
  const bool only_reads = kind == kBroadcast && root == rank_;
  const c10::ScalarType dtype =
      reduces ? reduction_->dtype() : (outputs.empty() ? inputs.at(0) : outputs[0]).scalar_type();
  for (const Tensors& tensors : {outputs, inputs}) {
    for (const at::Tensor& tensor : tensors) {
      TORCH_CHECK_TYPE(tensor.scalar_type() == dtype, "the tensors of a collective have one dtype, got ", dtype,
                       " and ", tensor.scalar_type());
    }
  }
  Step& step = steps.emplace_back();
  step.kind = kind;
  step.name = name;
  step.dtype = c10::toString(dtype);
  step.root = static_cast<int>(root);
  step.outputs = used(outputs, !only_reads, reduces && inputs.empty());
  step.inputs = used(inputs, /*is_written=*/false, reduces);
  step.output_parts = std::move(output_parts);
  step.input_parts = std::move(input_parts);
  results.insert(results.end(), outputs.begin(), outputs.end());
  if (reduces) step.reduction = reduction_;
}

void Collective::broadcast(const at::Tensor& tensor, int64_t root) {
  check_root(root);
  add(kBroadcast, "broadcast", root, {tensor});
}

void Collective::all_reduce(const at::Tensor& tensor) {
  add(kAllReduce, "all_reduce", -1, {tensor});
}

void Collective::reduce(const at::Tensor& tensor, int64_t root) {
  check_root(root);
  add(kReduce, "reduce", root, {tensor});
}

void Collective::reduce_scatter(const at::Tensor& output, const Tensors& inputs) {
  check_one_for_each(inputs);
  TORCH_CHECK_VALUE(inputs[rank_].numel() == output.numel(), "the part of rank ", rank_, " has ", inputs[rank_].numel(),
                    " elements, the output ", output.numel());
  add(kReduceScatter, "reduce_scatter", -1, {output}, inputs);
}

void Collective::reduce_scatter(const at::Tensor& output, const at::Tensor& input) {
  add(kReduceScatter, "reduce_scatter_tensor", -1, {output}, {input}, {}, equal_parts(input, output));
}

void Collective::all_gather(const char* name, const Tensors& outputs, const at::Tensor& input) {
  check_one_for_each(outputs);
  add(kGather, name, -1, outputs, {input});
}

void Collective::all_gather(const at::Tensor& output, const at::Tensor& input) {
  add(kGather, "all_gather_into_tensor", -1, {output}, {input}, equal_parts(output, input));
}

void Collective::gather(const std::vector<Tensors>& outputs, const Tensors& inputs, int64_t root) {
  check_root(root);
  if (root == rank_) check_lists(outputs, inputs);
  add(kGather, "gather", root, root == rank_ ? outputs.at(0) : Tensors{}, {inputs.at(0)});
}

void Collective::scatter(const Tensors& outputs, const std::vector<Tensors>& inputs, int64_t root) {
  check_root(root);
  if (root == rank_) check_lists(inputs, outputs);
  add(kExchange, "scatter", root, {outputs.at(0)}, root == rank_ ? inputs.at(0) : Tensors{});
}

void Collective::all_to_all(const Tensors& outputs, const Tensors& inputs) {
  check_one_for_each(outputs);
  check_one_for_each(inputs);
  add(kExchange, "all_to_all", -1, outputs, inputs);
}

void Collective::all_to_all(const at::Tensor& output, const std::vector<int64_t>& output_sizes, const at::Tensor& input,
                            const std::vector<int64_t>& input_sizes) {
  add(kExchange, "all_to_all_single", -1, {output}, {input}, rows(output, output_sizes), rows(input, input_sizes));
}

void Collective::barrier() {
  steps.emplace_back();
}

void Step::run(collectives::Engine& engine, uint64_t number, collectives::Timeout timeout) const {
  const int rank = engine.rank(), size = engine.size();
  const bool is_broadcast = kind == kBroadcast;
  const bool in_place = is_broadcast || kind == kAllReduce || kind == kReduce;
  const auto memory_of = [&](const Tensors& tensors) {
    return reduction ? reduction->memory_of(tensors) : Dense(tensors);
  };
  const Dense taken = memory_of(outputs), others = memory_of(inputs);
  const Dense& given = in_place ? taken : others;
  if (!is_broadcast || rank == root) reduction ? reduction->read(given) : given.read();

  collectives::Call call{{}, timeout};
  std::strncpy(call.signature.collective, name, sizeof(call.signature.collective) - 1);
  std::strncpy(call.signature.dtype, dtype, sizeof(call.signature.dtype) - 1);
  call.signature.root = root;
  call.signature.number = number;
  std::vector<Input> from;
  for (const Output& part : given.parts(input_parts)) from.push_back({part.data, part.num_bytes});
  std::vector<Output> to(size);
  const std::vector<Output> parts = taken.parts(output_parts);
  // A root that alone gives has the only output there.
  const bool has_one_giver = root >= 0 && (is_broadcast || kind == kExchange);
  std::copy(parts.begin(), parts.end(), to.begin() + (has_one_giver ? root : 0));
  std::vector<uint64_t> takers(size, 0);  // of the first input
  for (int peer = 0; peer < size && !from.empty(); ++peer) {
    const bool takes = is_broadcast ? rank == root : root < 0 || peer == root;
    if (takes) takers[peer] = from[0].num_bytes;
  }
  switch (kind) {
    case kAllReduce:
      engine.all_reduce(call, reduction->of_engine(), from[0], to[0].data);
      break;
    case kReduce:
      engine.reduce(call, reduction->of_engine(), from[0], to[0].data);
      break;
    case kReduceScatter:
      engine.reduce_scatter(call, reduction->of_engine(), from, to[0].data);
      break;
    case kBroadcast:
    case kGather:
      engine.multicast(call, from[0], takers, to);
      break;
    case kExchange:
      from.resize(size);
      engine.exchange(call, from, to);
      break;
    case kBarrier:
      engine.barrier(call);
  }
  const bool is_written = is_broadcast ? rank != root : kind != kReduce || rank == root;
  if (is_written) taken.write();
}

}  // namespace torch_mtia
