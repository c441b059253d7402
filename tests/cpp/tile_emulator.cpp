// Stands in for the instructions of AMX that kernels use, on a processor that has none: it catches the signal for what
// the processor does not know. Anything else that it does not know ends the process by that signal, as it would anyway;
// so do tiles of another size than kernels configure, and instructions outside of a configuration.

#include <ucontext.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>

namespace {

constexpr int kRows = 16;
constexpr int kBytes = 64;  // of a row

using Tile = std::array<std::array<uint8_t, kBytes>, kRows>;

thread_local std::array<Tile, 8> tiles;
thread_local bool configured = false;
std::atomic<int64_t> executed{0};
struct sigaction before;

// Numbers of registers in instructions, as indices of the saved ones.
constexpr std::array kRegisters{REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

template <typename T>
T read(const uint8_t* address) {
  T value;
  std::memcpy(&value, address, sizeof(value));
  return value;
}

template <typename T>
T take(const uint8_t*& code) {
  const T value = read<T>(code);
  code += sizeof(value);
  return value;
}

float widened(const uint8_t* bf16) {
  const uint32_t bits = uint32_t{read<uint16_t>(bf16)} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

float product(const uint8_t* left, const uint8_t* right, float sum) {
  for (int i = 0; i < 4; i += 2) sum += widened(left + i) * widened(right + i);
  return sum;
}

int32_t product(const uint8_t* left, const uint8_t* right, int32_t sum) {
  for (int i = 0; i < 4; ++i) sum += static_cast<int8_t>(left[i]) * static_cast<int8_t>(right[i]);
  return sum;
}

template <typename Sum>
void multiply(Tile& target, const Tile& left, const Tile& right) {
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kBytes; column += 4) {
      auto sum = read<Sum>(&target[row][column]);
      for (int k = 0; k < kRows; ++k) sum = product(&left[row][4 * k], &right[k][column], sum);
      std::memcpy(&target[row][column], &sum, sizeof(sum));
    }
  }
}

bool configure(const uint8_t* memory) {
  std::array<uint8_t, 64> expected{};
  expected[0] = 1;
  for (int tile = 0; tile < 8; ++tile) {
    expected[16 + 2 * tile] = kBytes;
    expected[48 + tile] = kRows;
  }
  if (std::memcmp(memory, expected.data(), expected.size()) != 0) return false;
  tiles = {};
  configured = true;
  return true;
}

// Runs the instruction at `code`, and moves behind it.
bool run(const uint8_t*& code, const greg_t* registers) {
  if (code[0] != 0xC4 || (code[1] & 31) != 2 || (code[2] & 0x84) != 0) return false;  // VEX, map 2, W0, L0
  const int r = (code[1] & 0x80) != 0 ? 0 : 8;
  const int x = (code[1] & 0x40) != 0 ? 0 : 8;
  const int b = (code[1] & 0x20) != 0 ? 0 : 8;
  const int third = ~(code[2] >> 3) & 15;
  const int operation = code[3] << 4 | (code[2] & 3);
  const int mode = code[4] >> 6;
  const int reg = (code[4] >> 3 & 7) | r;
  int rm = (code[4] & 7) | b;
  code += 5;
  if (reg > 7 || third > 7 + 8 * (mode != 3)) return false;

  if (mode == 3) {
    if (operation == 0x490) {
      configured = false;
      return true;
    }
    if (!configured || rm > 7) return false;
    const bool different = reg != rm && reg != third && rm != third;
    switch (operation) {
      case 0x493:
        tiles[reg] = {};
        return true;
      case 0x5C2:
        if (different) multiply<float>(tiles[reg], tiles[rm], tiles[third]);
        return different;
      case 0x5E3:
        if (different) multiply<int32_t>(tiles[reg], tiles[rm], tiles[third]);
        return different;
      default:
        return false;
    }
  }

  uint64_t stride = 0;
  bool has_base = true;
  bool relative = false;
  if ((rm & 7) == 4) {
    const uint8_t sib = take<uint8_t>(code);
    const int index = (sib >> 3 & 7) | x;
    if (index != 4) stride = static_cast<uint64_t>(registers[kRegisters[index]]) << (sib >> 6);
    rm = (sib & 7) | b;
    has_base = mode != 0 || (sib & 7) != 5;
  } else if (mode == 0 && (rm & 7) == 5) {
    has_base = false;
    relative = true;
  }
  auto address = has_base ? static_cast<uint64_t>(registers[kRegisters[rm]]) : 0;
  if (mode == 1) address += static_cast<uint64_t>(int64_t{take<int8_t>(code)});
  if (mode == 2 || !has_base) address += static_cast<uint64_t>(int64_t{take<int32_t>(code)});
  if (relative) address += reinterpret_cast<uint64_t>(code);
  auto* memory = reinterpret_cast<uint8_t*>(address);

  if (operation == 0x490) return configure(memory);
  if (!configured) return false;
  if (operation != 0x4B3 && operation != 0x4B2) return false;
  for (auto& row : tiles[reg]) {
    if (operation == 0x4B3) {
      std::memcpy(row.data(), memory, kBytes);
    } else {
      std::memcpy(memory, row.data(), kBytes);
    }
    memory += stride;
  }
  return true;
}

void handle(int /*signal*/, siginfo_t* /*info*/, void* context) {
  auto* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  auto* code = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
  if (run(code, registers)) {
    ++executed;
    registers[REG_RIP] = static_cast<greg_t>(reinterpret_cast<uint64_t>(code));
  } else {
    std::signal(SIGILL, SIG_DFL);
  }
}

}  // namespace

extern "C" {

void tile_emulator_begin() {
  struct sigaction action{};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGILL, &action, &before);
}

void tile_emulator_end() {
  sigaction(SIGILL, &before, nullptr);
}

// How many instructions it has run.
int64_t tile_emulator_executed() {
  return executed;
}
}
