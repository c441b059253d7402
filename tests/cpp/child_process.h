// Runs a part of a test in a forked child: what must crash, and what needs a process of its own.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "check.h"

namespace torch_mtia::test {

// The status that waitpid gives. In the child, an exception prints its message and makes the exit status 1.
template <typename Body>
int status_of_child(Body body) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    int status = 1;
    try {
      body();
      status = 0;
    } catch (const std::exception& error) {
      std::printf("  in a child process: %s\n", error.what());
    }
    std::fflush(stdout);
    _exit(status);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

template <typename Body>
bool child_succeeds(Body body) {
  const int status = status_of_child(body);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Whether the child dies of an access it must not make. A sanitizer's handler for that is not wanted here.
template <typename Body>
bool child_faults(Body body) {
  const int status = status_of_child([&] {
    signal(SIGSEGV, SIG_DFL);
    body();
  });
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

}  // namespace torch_mtia::test
