// VECTORIZED: of a function whose loops are compiled once for each level of the processor.
#pragma once

// The fastest version that the CPU can run is chosen when the library is loaded, which is before a sanitizer is ready.
// aarch64 has one level: its vectors of 128 bits belong to every processor.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define VECTORIZED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTORIZED
#endif
