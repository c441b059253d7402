// Runs a package that AOTInductor has made for mtia, in a program without Python.
//
//   run_package model.pt2 [rows]
//
// prints, for each row of the input, the class that the model gives it.
#include <ATen/ops/linspace.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch_mtia/device/Program.h>

#include <cstdlib>
#include <exception>
#include <iostream>

namespace {

void run(const char* path, int64_t rows) {
  torch_mtia::initialize_program();
  torch::inductor::AOTIModelPackageLoader model(path);
  const at::Tensor input = at::linspace(-1, 1, rows * 16).reshape({rows, 16}).to(at::Device("mtia"));
  const at::Tensor classes = model.run({input}).at(0).argmax(1).cpu();
  for (int64_t row = 0; row < rows; ++row) std::cout << classes[row].item<int64_t>() << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: run_package model.pt2 [rows]\n";
    return 2;
  }
  try {
    run(argv[1], argc > 2 ? std::atoll(argv[2]) : 4);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
