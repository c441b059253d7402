// Attributes of functions and variables that differ between processors.
#pragma once

// INITIAL_EXEC: of a thread-local variable that every operator reads.
//
// Saves a call on x86-64, but takes of the room that all libraries of a process share, of 1.6 KB. On aarch64, whose
// descriptors come without most of that call, PyTorch's own libraries leave no room.
#if defined(__x86_64__)
#define INITIAL_EXEC [[gnu::tls_model("initial-exec")]]
#else
#define INITIAL_EXEC
#endif

// VECTORIZED: of a function whose loops are compiled once for each level of the processor.
//
// The fastest version that the CPU can run is chosen when the library is loaded, which is before a sanitizer is ready.
// aarch64 has one level: its vectors of 128 bits belong to every processor.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define VECTORIZED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTORIZED
#endif
