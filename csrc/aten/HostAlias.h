// CPU tensors over the bytes of device tensors.
//
// Note [Host alias]
// A host alias is a CPU tensor whose storage points, without owning it, at the host view of a device tensor's bytes.
// ATen's CPU code runs on it as on any CPU tensor. It refers to no Python object and to no device tensor, so it may die
// on any thread. It is valid only for work that runs in stream order, or on a host that has synchronized.
#pragma once

#include <ATen/core/Tensor.h>

#include "../core/Operands.h"

namespace torch_mtia {

// Same sizes, strides, offset, dtype and conjugate and negative bits. Of a CPU tensor: an alias of its own bytes.
// `for_write` makes a lazily cloned storage its own first.
at::Tensor host_alias(const at::TensorBase& tensor, bool for_write);
// The same over `storage` in place of the view of the tensor's own.
at::Tensor host_alias(const at::TensorBase& tensor, c10::Storage storage);

// The memory of a host alias of a device tensor.
void list_operand(const at::Tensor& alias, bool writes, core::OldBytes old_bytes, core::OperandSink& sink);
// A tensor of the host's own.
void list_host_operand(const at::TensorBase& tensor, bool writes, core::OperandSink& sink);

// A CPU tensor with the same sizes, strides, dtype and, for a number that Python wrapped, the same standing in type
// promotion, and bytes of its own.
at::Tensor clone_on_host(const at::TensorBase& cpu_tensor);

// Zeros with the same sizes, strides, dtype and conjugate and negative bits. What is only read takes no memory.
at::Tensor zeros_on_host(const at::TensorBase& tensor);

}  // namespace torch_mtia
