// Ranks of a group that share memory: threads, which a sanitizer can watch, or processes, which can be killed.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collectives/Communicator.h"

namespace torch_mtia::collectives::test {

inline constexpr std::chrono::seconds kTimeout(20);

// A store of files.
class Folder {
 public:
  Folder() {
    char path[] = "/tmp/test_ranks_XXXXXX";
    path_ = mkdtemp(path);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }

  Store store() const {
    const auto file = [path = path_](std::string key) {
      std::replace(key.begin(), key.end(), '/', '_');
      return path / key;
    };
    return {[file](const std::string& key, const std::string& value) {
              const std::filesystem::path unfinished = file(key + "." + std::to_string(gettid()));
              std::ofstream(unfinished) << value;
              std::filesystem::rename(unfinished, file(key));
            },
            [file](const std::string& key) {
              while (!std::filesystem::exists(file(key))) std::this_thread::yield();
              std::ifstream stream(file(key));
              return std::string(std::istreambuf_iterator<char>(stream), {});
            }};
  }

 private:
  std::filesystem::path path_;
};

struct Rank {
  Rank(const Store& store, int rank, int size, const std::string& machine = "")
      : team(std::make_shared<Team>(store, rank, size, Communicator::memory_size(size), machine)), communicator(team) {}
  int number() const { return communicator.rank(); }
  void barrier(Timeout timeout) { communicator.barrier({{"barrier"}, timeout}); }

  std::shared_ptr<Team> team;
  Communicator communicator;
};

// Runs `body` for each rank in a thread. The first exception is raised again.
inline void in_threads(int size, const std::function<void(Rank&)>& body) {
  const Folder folder;
  std::vector<std::exception_ptr> errors(size);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          Rank self(folder.store(), rank, size);
          body(self);
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      });
    }
  }
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

template <typename T>
Input input_of(const std::vector<T>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)};
}

template <typename T>
Output output_of(std::vector<T>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace torch_mtia::collectives::test
