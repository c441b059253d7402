// What a package says that it was made with, and whether it can run here.
#pragma once

#include <string>

#include "shim.h"

namespace torch_mtia {

// Raises RuntimeError, naming the package, what it was made for, and what is here.
void check_package(const std::string& path, const torch_mtia_package_info& info);

// The same for the kernels in a folder: each kind of processor that they need is asked of the driver.
void check_kernel_images(const std::string& folder);

}  // namespace torch_mtia
