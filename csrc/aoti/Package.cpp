#include "Package.h"

#include <c10/util/Exception.h>
#include <torch/headeronly/version.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>

#include "../core/Driver.h"

namespace torch_mtia {
namespace {

constexpr std::string_view kImageSuffix = ".cubin";  // Inductor's, for every device

// Null where the library says nothing.
void check(const std::string& path, const char* what, const char* made_for, const std::string& here) {
  if (made_for == nullptr) made_for = "nothing that it names";
  TORCH_CHECK(made_for == here, "the package ", path, " was made for ", what, " ", made_for, ", and this is ", here,
              ": make it again here, with torch._inductor.aoti_compile_and_package");
}

mtia_kernel_image_header header_of(const std::string& name, std::string_view image) {
  mtia_kernel_image_header header{};
  TORCH_CHECK(image.size() >= sizeof(header), "the image of the kernel ", name, " is too short");
  std::memcpy(&header, image.data(), sizeof(header));
  TORCH_CHECK(header.magic == MTIA_KERNEL_IMAGE_MAGIC && header.version == MTIA_KERNEL_IMAGE_VERSION,
              "the image of the kernel ", name, " is damaged, or of another version");
  TORCH_CHECK(header.packed_arguments_size <= kMaxPackedArguments, "the kernel ", name, " has more than ",
              kMaxPackedArguments, " bytes of arguments");
  return header;
}

std::vector<mtia_kernel_argument> arguments_of(const std::string& name, std::string_view image) {
  const mtia_kernel_image_header header = header_of(name, image);
  TORCH_CHECK(header.header_size <= image.size() &&
                  header.num_arguments <= (image.size() - header.header_size) / sizeof(mtia_kernel_argument),
              "the image of the kernel ", name, " is cut off");
  std::vector<mtia_kernel_argument> arguments(header.num_arguments);
  std::memcpy(arguments.data(), image.data() + header.header_size, arguments.size() * sizeof(mtia_kernel_argument));
  for (const mtia_kernel_argument& argument : arguments) {
    TORCH_CHECK(argument.size <= 8 && uint64_t{argument.offset} + argument.size <= header.packed_arguments_size &&
                    (argument.kind != MTIA_ARGUMENT_POINTER || argument.size == sizeof(void*)),
                "the image of the kernel ", name, " is damaged");
  }
  return arguments;
}

int32_t grid_size(const MTIAKernel& kernel, uint32_t size) {
  TORCH_CHECK(size <= static_cast<uint32_t>(std::numeric_limits<int32_t>::max()), "the grid of the kernel ",
              kernel.name(), " is larger than 2**31 - 1");
  return static_cast<int32_t>(size);
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

PackageKernel::PackageKernel(const std::string& name, std::string_view image)
    : kernel_(current_device(), name, image),
      arguments_(arguments_of(name, image)),
      packed_size_(header_of(name, image).packed_arguments_size) {}

std::string_view PackageKernel::image_at(const void* address) {
  const auto* bytes = static_cast<const char*>(address);
  return {bytes, header_of("of this package", {bytes, sizeof(mtia_kernel_image_header)}).image_size};
}

void PackageKernel::launch(const MTIAStream& stream, const std::array<uint32_t, 3>& grid,
                           const void* const* arguments) const {
  alignas(16) std::array<std::byte, kMaxPackedArguments> packed;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const mtia_kernel_argument& argument = arguments_[i];
    std::byte* to = packed.data() + argument.offset;
    std::memcpy(to, arguments[i], argument.size);
    if (argument.kind != MTIA_ARGUMENT_POINTER) continue;
    const void* pointer = nullptr;
    std::memcpy(&pointer, to, sizeof(pointer));
    TORCH_CHECK(pointer == nullptr || core::device_of_address(pointer) == kernel_.device(), "the kernel ",
                kernel_.name(), " of this package runs on ", device_name(kernel_.device()), ", and its argument ", i,
                " does not lie there: give the model inputs on the device that it was compiled for");
  }
  kernel_.launch(stream, {grid_size(kernel_, grid[0]), grid_size(kernel_, grid[1]), grid_size(kernel_, grid[2])},
                 packed.data(), packed_size_);
}

}  // namespace torch_mtia
