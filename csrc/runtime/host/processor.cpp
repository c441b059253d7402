#include "processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstring>
#endif

#include "../mtia_runtime.h"

namespace torch_mtia::runtime::host {

#if defined(__x86_64__)

namespace {

// Linux gives a process the registers of AMX only on request.
bool request_amx() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace

uint64_t cpu_features() {
  static const uint64_t present = [] {
    __builtin_cpu_init();
    uint64_t bits = 0;
    const auto add = [&](uint64_t bit, bool is_present) { bits |= is_present ? bit : 0; };
    add(MTIA_CPU_AVX2_FMA, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    add(MTIA_CPU_AVX512_SKX, has_avx512());
    add(MTIA_CPU_AVX512_BF16, __builtin_cpu_supports("avx512bf16"));
    add(MTIA_CPU_AVX512_VNNI, __builtin_cpu_supports("avx512vnni"));
    add(MTIA_CPU_AVX512_FP16, __builtin_cpu_supports("avx512fp16"));
    add(MTIA_CPU_AMX_BF16, __builtin_cpu_supports("amx-bf16") && request_amx());
    add(MTIA_CPU_AMX_INT8, __builtin_cpu_supports("amx-int8") && request_amx());
    return bits;
  }();
  return present;
}

std::string processor_name() {
  std::array<unsigned, 12> words{};
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    unsigned* part = words.data() + leaf * 4;
    if (__get_cpuid(0x80000002U + leaf, part, part + 1, part + 2, part + 3) == 0) return "x86-64";
  }
  std::array<char, sizeof(words) + 1> text{};
  std::memcpy(text.data(), words.data(), sizeof(words));
  std::string name(text.data());
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  return name;
}

// The psABI's levels, and three above its highest. What the operating system does not save at a context switch does not
// count.
const char* architecture() {
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                  __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && has_avx512();
  const bool vnni = v4 && __builtin_cpu_supports("avx512vnni");
  const bool bf16 = vnni && __builtin_cpu_supports("avx512bf16") && !__builtin_cpu_supports("amx-bf16");
  constexpr uint64_t kTiles = MTIA_CPU_AMX_BF16 | MTIA_CPU_AMX_INT8;
  if (vnni && __builtin_cpu_supports("avx512bf16") && (cpu_features() & kTiles) == kTiles) return "x86-64-v4-amx";
  if (bf16) return "x86-64-v4-bf16";
  if (vnni) return "x86-64-v4-vnni";
  return v4 ? "x86-64-v4" : v3 ? "x86-64-v3" : "x86-64";
}

#elif defined(__aarch64__)

uint64_t cpu_features() {
  return MTIA_CPU_AARCH64;
}

// These processors have numbers, and no names.
std::string processor_name() {
  return "aarch64";
}

const char* architecture() {
  return "aarch64";
}

#endif

}  // namespace torch_mtia::runtime::host
