// Makes kernel images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "runtime/mtia_runtime.h"

namespace torch_mtia::test {

// Of the machine that this is compiled for.
#if defined(__aarch64__)
inline constexpr uint64_t kKindOfProcessor = MTIA_CPU_AARCH64;
#else
inline constexpr uint64_t kKindOfProcessor = 0;
#endif

struct ImageOptions {
  std::string name = "kernel";
  std::vector<mtia_kernel_argument> arguments = {};
  std::vector<uint64_t> relocations = {};
  uint64_t cpu_features = kKindOfProcessor;
  uint32_t cost_per_program = 1;
  uint64_t scratch_size = 0;
};

// An image as its bytes, with its header in reach of tests that damage it.
struct KernelImage {
  std::vector<std::byte> bytes;

  mtia_kernel_image_header& header() { return *reinterpret_cast<mtia_kernel_image_header*>(bytes.data()); }
};

inline KernelImage make_image(std::span<const std::byte> code, const ImageOptions& options) {
  constexpr uint64_t kPage = 4096;
  mtia_kernel_image_header header{};
  header.magic = MTIA_KERNEL_IMAGE_MAGIC;
  header.version = 1;
  header.header_size = sizeof(header);
  header.num_arguments = static_cast<uint32_t>(options.arguments.size());
  header.num_relocations = static_cast<uint32_t>(options.relocations.size());
  header.relocations_offset = sizeof(header) + options.arguments.size() * sizeof(mtia_kernel_argument);
  const uint64_t end = header.relocations_offset + options.relocations.size() * sizeof(uint64_t);
  header.code_offset = (end + kPage - 1) / kPage * kPage;
  header.code_size = code.size();
  header.image_size = header.code_offset + header.code_size;
  header.cpu_features = options.cpu_features;
  header.cost_per_program = options.cost_per_program;
  header.scratch_size = options.scratch_size;
  for (const mtia_kernel_argument& argument : options.arguments) {
    header.packed_arguments_size = argument.offset + argument.size;
  }
  std::snprintf(header.name, sizeof(header.name), "%s", options.name.c_str());

  KernelImage image;
  image.bytes.resize(header.image_size);
  std::memcpy(image.bytes.data(), &header, sizeof(header));
  if (!options.arguments.empty()) {
    std::memcpy(&image.bytes[sizeof(header)], options.arguments.data(),
                options.arguments.size() * sizeof(mtia_kernel_argument));
  }
  if (!options.relocations.empty()) {
    std::memcpy(&image.bytes[header.relocations_offset], options.relocations.data(),
                options.relocations.size() * sizeof(uint64_t));
  }
  std::memcpy(&image.bytes[header.code_offset], code.data(), code.size());
  return image;
}

inline constexpr mtia_kernel_argument kPointerFirst{MTIA_ARGUMENT_POINTER, 8, 0, 0};
inline constexpr mtia_kernel_argument kInt64Second{MTIA_ARGUMENT_INTEGER, 8, 8, 0};

}  // namespace torch_mtia::test
