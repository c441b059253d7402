// Where in the program something is done, also in backward(), which runs on threads without Python code.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frames.h"

namespace torch_mtia {

// A line of Python code.
struct Line {
  std::string file;
  int line;
  std::string function;
};
using Lines = std::vector<Line>;  // innermost first

// A call of an operator that is made of others, one of which may put numbers in place of what the rest has made.
struct CompositeCall {
  CompositeCall(const std::string& of, const std::string& by, std::shared_ptr<CompositeCall> around)
      : name(of), replacer(by), outer(std::move(around)), has_replaced(by.empty()) {}

  const std::string& name;
  const std::string& replacer;  // empty: it always does
  const std::shared_ptr<CompositeCall> outer;
  std::atomic<bool> has_replaced;
};

struct Place {
  std::shared_ptr<torch::CapturedTraceback> here;
  std::shared_ptr<const CompositeCall> within;  // innermost; null: of none
  bool is_scaled = false;                       // in backward() of what GradScaler.scale() has returned
  // In backward(): the node of autograd, where the operator was called that made it, and where backward() was.
  std::string node;
  std::shared_ptr<torch::CapturedTraceback> forward;
  std::shared_ptr<const Lines> backward;

  // Of the calling thread.
  static std::shared_ptr<Place> current();
};

// The operators that CompositeCall is about, each with what replaces its numbers. Only the first call counts.
using Composites = std::unordered_map<std::string, std::string>;
void follow_composites(Composites composites);

// The backward() that the calling thread is in is one of scaled gradients.
void gradients_are_scaled();

// From now on remembers, or no more, where operators are called that autograd makes nodes of.
void follow_forward(bool on);

// Before the first site: with the GIL. Raises what Python does.
void know_modules();

// Where the calling thread allocates, as a number: the same for the same lines of the program within the same modules.
// The layers of a deep network are different sites, though they share their lines. 0: the thread has no Python code.
uint64_t site_of_caller();

}  // namespace torch_mtia
