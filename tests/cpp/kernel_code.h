// The kernels of test_kernel.cpp, in machine code for each kind of processor.
//
// x86-64: rdi packed arguments, rsi context, rdx first program, rcx last program, r8 scratch. aarch64: x0 to x4.
// Offsets in the context: 16 host_offset, 24 error_cell, 32 print, 40 print_sink, 48 live_ranges, 56 num_live_ranges,
// 64 rare_functions.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/mtia_runtime.h"

static_assert(offsetof(mtia_kernel_context, host_offset) == 16 && offsetof(mtia_kernel_context, error_cell) == 24 &&
              offsetof(mtia_kernel_context, print) == 32 && offsetof(mtia_kernel_context, print_sink) == 40 &&
              offsetof(mtia_kernel_context, live_ranges) == 48 && offsetof(mtia_kernel_context, rare_functions) == 64);

#if defined(__x86_64__)
#define KERNEL_SYNTAX ".intel_syntax noprefix\n"
#define HOST_SYNTAX ".att_syntax\n"
#else
#define KERNEL_SYNTAX
#define HOST_SYNTAX
#endif

// Defines the bytes `name` as assembled from the text.
#define KERNEL_CODE(name, text)                                                                          \
  asm(".pushsection .rodata\n.globl " #name "_begin, " #name "_end\n" KERNEL_SYNTAX ".balign 16\n" #name \
      "_begin:\n" text "\n" #name "_end:\n" HOST_SYNTAX ".popsection\n");                                \
  extern "C" const std::byte name##_begin[];                                                             \
  extern "C" const std::byte name##_end[];                                                               \
  static const std::span<const std::byte> name(name##_begin, name##_end);

#if defined(__x86_64__)

// out[program] = program + addend
KERNEL_CODE(store_code, R"(
  mov rax, [rdi]
  add rax, [rsi + 16]
  mov r9, [rdi + 8]
1:
  cmp rdx, rcx
  jge 2f
  lea r10, [r9 + rdx]
  mov [rax + 8*rdx], r10
  inc rdx
  jmp 1b
2:
  ret
)")

// Reports "boom" from program `which`.
KERNEL_CODE(fail_code, R"(
  mov r9, [rdi + 8]
  cmp r9, rdx
  jl 1f
  cmp r9, rcx
  jge 1f
  mov r10, [rsi + 24]
  xor eax, eax
  mov r11d, 1
  lock cmpxchg [r10], r11
  jnz 1f
  mov [r10 + 8], r9d
  mov dword ptr [r10 + 12], 0
  mov dword ptr [r10 + 16], 0
  mov dword ptr [r10 + 20], 7
  mov dword ptr [r10 + 24], 0x6d6f6f62
  mov byte ptr [r10 + 28], 0
1:
  ret
)")

// out[program] = scratch, after writing its first and last bytes; the addend is its size
KERNEL_CODE(scratch_code, R"(
  mov rax, [rdi]
  add rax, [rsi + 16]
  mov r9, [rdi + 8]
  mov byte ptr [r8], 1
  mov byte ptr [r8 + r9 - 1], 2
1:
  cmp rdx, rcx
  jge 2f
  mov [rax + 8*rdx], r8
  inc rdx
  jmp 1b
2:
  ret
)")

// out[0] = what a relocated word points to. The word is at 24, the number at 32.
KERNEL_CODE(relocated_code, R"(
  mov rax, [rdi]
  add rax, [rsi + 16]
  mov r10, [rip + 1f]
  mov r10, [r10]
  mov [rax], r10
  ret
  .balign 8
1:
  .quad 32
  .quad 4242
)")

// Prints the eight bytes of its second argument.
KERNEL_CODE(print_code, R"(
  sub rsp, 8
  lea r10, [rdi + 8]
  mov rax, [rsi + 32]
  mov rdi, [rsi + 40]
  mov rsi, r10
  mov edx, 8
  call rax
  add rsp, 8
  ret
)")

// out[i] = live_ranges[i].address for all of them
KERNEL_CODE(ranges_code, R"(
  mov rax, [rdi]
  add rax, [rsi + 16]
  mov r9, [rsi + 48]
  mov r10, [rsi + 56]
  xor edx, edx
1:
  cmp rdx, r10
  jge 2f
  mov r11, rdx
  add r11, r11
  mov r11, [r9 + 8*r11]
  mov [rax + 8*rdx], r11
  inc rdx
  jmp 1b
2:
  ret
)")

// out[0] = rare_functions[addend](1.0)
KERNEL_CODE(rare_code, R"(
  push rbx
  mov rbx, [rdi]
  add rbx, [rsi + 16]
  mov r9, [rdi + 8]
  mov rax, [rsi + 64]
  mov rax, [rax + 8*r9]
  mov r10, 0x3ff0000000000000
  movq xmm0, r10
  call rax
  movsd [rbx], xmm0
  pop rbx
  ret
)")

#else

KERNEL_CODE(store_code, R"(
  ldr x9, [x0]
  ldr x10, [x1, 16]
  add x9, x9, x10
  ldr x10, [x0, 8]
1:
  cmp x2, x3
  b.ge 2f
  add x11, x10, x2
  str x11, [x9, x2, lsl 3]
  add x2, x2, 1
  b 1b
2:
  ret
)")

KERNEL_CODE(fail_code, R"(
  ldr x9, [x0, 8]
  cmp x9, x2
  b.lt 1f
  cmp x9, x3
  b.ge 1f
  ldr x10, [x1, 24]
  mov w11, 1
2:
  ldaxr w12, [x10]
  cbnz w12, 1f
  stlxr w12, w11, [x10]
  cbnz w12, 2b
  stp w9, wzr, [x10, 8]
  mov w11, 7
  stp wzr, w11, [x10, 16]
  ldr w11, 3f
  str w11, [x10, 24]
  strb wzr, [x10, 28]
1:
  ret
3:
  .ascii "boom"
)")

KERNEL_CODE(scratch_code, R"(
  ldr x9, [x0]
  ldr x10, [x1, 16]
  add x9, x9, x10
  ldr x10, [x0, 8]
  add x10, x10, x4
  mov w11, 1
  strb w11, [x4]
  mov w11, 2
  strb w11, [x10, -1]
1:
  cmp x2, x3
  b.ge 2f
  str x4, [x9, x2, lsl 3]
  add x2, x2, 1
  b 1b
2:
  ret
)")

KERNEL_CODE(relocated_code, R"(
  ldr x9, [x0]
  ldr x10, [x1, 16]
  ldr x11, 1f
  ldr x11, [x11]
  str x11, [x9, x10]
  ret
  .balign 8
1:
  .quad 32
  .quad 4242
)")

KERNEL_CODE(print_code, R"(
  ldr x9, [x1, 32]
  ldr x10, [x1, 40]
  add x1, x0, 8
  mov x0, x10
  mov x2, 8
  br x9
)")

KERNEL_CODE(ranges_code, R"(
  ldr x9, [x0]
  ldr x10, [x1, 16]
  add x9, x9, x10
  ldr x10, [x1, 48]
  ldr x11, [x1, 56]
  mov x12, 0
1:
  cmp x12, x11
  b.ge 2f
  ldr x13, [x10], 16
  str x13, [x9, x12, lsl 3]
  add x12, x12, 1
  b 1b
2:
  ret
)")

KERNEL_CODE(rare_code, R"(
  stp x29, x30, [sp, -32]!
  str x19, [sp, 16]
  ldr x19, [x0]
  ldr x9, [x1, 16]
  add x19, x19, x9
  ldr x10, [x0, 8]
  ldr x9, [x1, 64]
  ldr x9, [x9, x10, lsl 3]
  fmov d0, 1.0
  blr x9
  str d0, [x19]
  ldr x19, [sp, 16]
  ldp x29, x30, [sp], 32
  ret
)")
#endif
