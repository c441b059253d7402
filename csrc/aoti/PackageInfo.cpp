#include "PackageInfo.h"

#include <c10/util/Exception.h>
#include <torch/headeronly/version.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string_view>

#include "../core/Driver.h"
#include "PackageKernel.h"

namespace torch_mtia {
namespace {

constexpr std::string_view kImageSuffix = ".cubin";  // Inductor's, for every device

// Null where the library says nothing.
void check(const std::string& path, const char* what, const char* made_for, const std::string& here) {
  if (made_for == nullptr) made_for = "nothing that it names";
  TORCH_CHECK(made_for == here, "the package ", path, " was made for ", what, " ", made_for, ", and this is ", here,
              ": make it again here, with torch._inductor.aoti_compile_and_package");
}

}  // namespace

void check_package(const std::string& path, const torch_mtia_package_info& info) {
  check(path, "torch_mtia's packages of version", std::to_string(info.version).c_str(),
        std::to_string(TORCH_MTIA_PACKAGE_VERSION));
  check(path, "torch_mtia", info.torch_mtia, TORCH_MTIA_VERSION);
  check(path, "PyTorch", info.torch, TORCH_VERSION);
  check(path, "the driver", info.driver, core::driver_info().name);
}

void check_kernel_images(const std::string& folder) {
  std::set<uint64_t> checked;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != kImageSuffix) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string image{std::istreambuf_iterator<char>(file), {}};
    const std::string name = entry.path().filename().string();
    mtia_kernel_image_header header{};
    TORCH_CHECK(image.size() >= sizeof(header), "the kernel ", name, " of the package in ", folder, " is cut off");
    std::memcpy(&header, image.data(), sizeof(header));
    if (checked.insert(header.cpu_features).second) PackageKernel(header.name, image);
  }
}

}  // namespace torch_mtia
