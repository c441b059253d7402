// Where in the program something is done, also in backward(), which runs on threads without Python code.
#pragma once

#include <memory>
#include <string>
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

struct Place {
  std::shared_ptr<torch::CapturedTraceback> here;
  bool replaces_numbers = false;  // another number is put in the place of what is not finite
  // In backward(): the node of autograd, where the operator was called that made it, and where backward() was.
  std::string node;
  std::shared_ptr<torch::CapturedTraceback> forward;
  std::shared_ptr<const Lines> backward;

  // Of the calling thread.
  static std::shared_ptr<Place> current();
};

// From now on remembers, or no more, where operators are called that autograd makes nodes of.
void follow_forward(bool on);

}  // namespace torch_mtia
