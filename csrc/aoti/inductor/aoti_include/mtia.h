// What the code of packages includes: the counterpart of torch/csrc/inductor/aoti_include/cuda.h.
#pragma once

#include <torch/csrc/inductor/aoti_include/common.h>
#include <torch_mtia/aoti/wrapper.h>
