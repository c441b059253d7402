// What most files of the extension module include, parsed once: setup.py precompiles this header and passes it to the
// compiler before each file. Files include what they use all the same.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>
