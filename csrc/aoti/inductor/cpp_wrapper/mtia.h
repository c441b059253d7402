// What the code of cpp_wrapper includes: the counterpart of torch/csrc/inductor/cpp_wrapper/cuda.h.
#pragma once

#include <torch/csrc/inductor/cpp_wrapper/common.h>
#include <torch_mtia/aoti/wrapper.h>
