// Invariants that check themselves, in the code that knows no PyTorch. They are on where MTIA_ASSERTIONS is defined: in
// the C++ tests, their sanitizer builds among them, and in a debug build. Elsewhere the condition is not evaluated.
#pragma once

#include <cstdio>
#include <cstdlib>

#ifdef MTIA_ASSERTIONS
#define MTIA_ASSERT(...)                                                                                \
  do {                                                                                                  \
    if (!(__VA_ARGS__)) [[unlikely]] {                                                                  \
      std::fprintf(stderr, "%s:%d: in %s: not true: %s\n", __FILE__, __LINE__, __func__, #__VA_ARGS__); \
      std::abort();                                                                                     \
    }                                                                                                   \
  } while (false)
#else
#define MTIA_ASSERT(...) static_cast<void>(sizeof(static_cast<bool>(__VA_ARGS__)))
#endif
