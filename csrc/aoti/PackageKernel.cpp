#include "PackageKernel.h"

#include <c10/util/Exception.h>

#include <cstring>
#include <limits>

#include "../core/Driver.h"

namespace torch_mtia {
namespace {

// As many as a kernel from Python can have: see packed_arguments.h.
constexpr uint32_t kMaxPackedArguments = 4096;

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
