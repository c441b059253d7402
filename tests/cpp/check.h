// The test harness: TEST registers, CHECK fails, RUN_TESTS is main. No framework to install.
//
// Every file here is one program, and one process is one driver: what needs another driver setting is another file.
// A program takes parts of test names as arguments and then runs only the tests that contain one of them.
#pragma once

#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace torch_mtia::test {

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test>* registered = std::make_unique<std::vector<Test>>().release();
  return *registered;
}

struct Registration {
  Registration(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

class CheckFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void fail_check(const char* file, int line, const std::string& what) {
  throw CheckFailed(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

template <typename A, typename B>
void check_equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream message;
  message << text << ": " << a << " is not " << b;
  fail_check(file, line, message.str());
}

inline int run_tests(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // what failed is known even if the rest hangs
  int failures = 0;
  int count = 0;
  for (const Test& test : tests()) {
    bool selected = argc == 1;
    for (int i = 1; i < argc; ++i) selected = selected || std::strstr(test.name, argv[i]) != nullptr;
    if (!selected) continue;
    ++count;
    try {
      test.body();
    } catch (const std::exception& error) {
      ++failures;
      std::printf("FAILED %s\n  %s\n", test.name, error.what());
    }
  }
  std::printf("%s: %d of %d passed\n", argv[0], count - failures, count);
  return failures == 0 ? 0 : 1;
}

}  // namespace torch_mtia::test

#define TEST(name)                                                                 \
  static void name();                                                              \
  static const ::torch_mtia::test::Registration registration_##name(#name, &name); \
  static void name()

#define CHECK(condition) \
  if (!(condition)) ::torch_mtia::test::fail_check(__FILE__, __LINE__, "not true: " #condition)
#define CHECK_EQ(a, b) ::torch_mtia::test::check_equal(a, b, #a, __FILE__, __LINE__)

// Evaluates to what the exception says.
#define CHECK_THROWS(exception, expression)                                                       \
  [&]() -> std::string {                                                                          \
    try {                                                                                         \
      expression;                                                                                 \
    } catch (const exception& error) {                                                            \
      return error.what();                                                                        \
    }                                                                                             \
    ::torch_mtia::test::fail_check(__FILE__, __LINE__, #expression " did not throw " #exception); \
  }()

#define CHECK_CONTAINS(text, part)                       \
  if (std::string(text).find(part) == std::string::npos) \
  ::torch_mtia::test::fail_check(__FILE__, __LINE__, "'" + std::string(text) + "' does not contain " #part)
