// INITIAL_EXEC: of a thread-local variable that every operator reads.
#pragma once

// Saves a call on x86-64, but takes of the room that all libraries of a process share, of 1.6 KB. On aarch64, whose
// descriptors come without most of that call, PyTorch's own libraries leave no room.
#if defined(__x86_64__)
#define INITIAL_EXEC [[gnu::tls_model("initial-exec")]]
#else
#define INITIAL_EXEC
#endif
