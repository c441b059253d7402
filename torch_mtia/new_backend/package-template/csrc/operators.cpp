// Kernels of @NAME@'s own. Which operator each belongs to is in yaml/native_functions.yaml; the build generates the
// declarations and the registration from there.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch_mtia/device/Extension.h>

#include <cstring>

#include "registration.h"

// Images (..., C * f * f, H, W) become larger ones with fewer channels, (..., C, H * f, W * f). Arguments are checked
// at the call, the work runs in the stream.
at::Tensor pixel_shuffle(const at::Tensor& self, int64_t factor) {
  TORCH_CHECK(self.dim() >= 3 && factor > 0 && self.size(-3) % (factor * factor) == 0, "pixel_shuffle: ", self.sizes(),
              " cannot be shuffled by ", factor);
  const int64_t channels = self.size(-3) / (factor * factor), height = self.size(-2), width = self.size(-1);
  auto sizes = self.sizes().slice(0, self.dim() - 3).vec();
  sizes.insert(sizes.end(), {channels, height * factor, width * factor});
  const at::Tensor images = self.contiguous();
  at::Tensor result = at::empty(sizes, self.options());

  // Plain data only: a tensor must not be held by work.
  const auto* const from = static_cast<const char*>(torch_mtia::host_address(images.const_data_ptr()));
  auto* const to = static_cast<char*>(torch_mtia::host_address(result.mutable_data_ptr()));
  const size_t size = self.element_size();
  const int64_t rows = result.numel() == 0 ? 0 : result.numel() / (width * factor);

  torch_mtia::core::WorkInfo info{"aten::pixel_shuffle"};
  info.cost = static_cast<uint64_t>(result.numel());  // nanoseconds on one thread, roughly
  torch_mtia::launch(self.device(), info, [=] {
    at::parallel_for(0, rows, /*grain_size=*/1, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const int64_t channel = row / (height * factor), y = row % (height * factor);
        for (int64_t x = 0; x < width * factor; ++x) {
          const int64_t source = (channel * factor + y % factor) * factor + x % factor;  // a channel of `images`
          std::memcpy(to + size * (row * width * factor + x),
                      from + size * ((source * height + y / factor) * width + x / factor), size);
        }
      }
    });
  });
  return result;
}
