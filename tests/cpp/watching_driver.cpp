// The host driver, which checks what work items say that they touch: for tests/test_operands.py, which builds it.
//
// While an item runs, all of the device's memory that it does not list holds a pattern. So what it reads without saying
// so makes its results wrong, and what it writes shows in the pattern afterwards. MTIA_TEST_DRIVER names the driver to
// wrap; MTIA_TEST_FINDINGS the file to which each finding is appended once, as a line.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "runtime/mtia_runtime.h"

namespace {

constexpr unsigned char kPattern = 0x5B;  // large as a number of any type
constexpr uint64_t kBlock = 512;          // no two tensors share one

const mtia_runtime_api* wrapped = nullptr;
int64_t host_offset = 0;

std::mutex mutex;  // items run one at a time, as each changes memory of all others
std::map<mtia_device_ptr, uint64_t> segments;
std::set<std::string> findings;

// Of the item that runs on this thread: what items in it write.
thread_local std::vector<mtia_access>* written_inside = nullptr;

unsigned char* host(mtia_device_ptr address) {
  return reinterpret_cast<unsigned char*>(address + static_cast<uint64_t>(host_offset));
}

void find(const std::string& what) {
  if (!findings.insert(what).second) return;
  const int file = open(std::getenv("MTIA_TEST_FINDINGS"), O_WRONLY | O_APPEND | O_CREAT, 0644);
  const std::string line = what + '\n';
  if (write(file, line.data(), line.size()) < 0) std::abort();
  close(file);
}

std::vector<mtia_access> list(const mtia_work& work) {
  std::vector<mtia_access> list(work.accesses(work.args, nullptr, 0));
  work.accesses(work.args, list.data(), static_cast<uint32_t>(list.size()));
  return list;
}

enum class Use { kNothing, kReads, kWrites };

// Bytes of a segment with which an item may do the same.
struct Part {
  mtia_device_ptr begin;
  uint64_t size;
  Use use;
};

std::vector<Part> parts_of(mtia_device_ptr segment, uint64_t size, const std::vector<mtia_access>& accesses) {
  std::set<mtia_device_ptr> ends{segment, segment + size};
  for (const mtia_access& each : accesses) {
    for (const mtia_device_ptr end : {each.span.address, each.span.address + each.span.size}) {
      if (segment < end && end < segment + size) ends.insert(end);
    }
  }
  std::vector<Part> parts;
  for (auto begin = ends.begin(), end = std::next(begin); end != ends.end(); ++begin, ++end) {
    Use use = Use::kNothing;
    for (const auto& [span, writes] : accesses) {
      if (span.address <= *begin && *end <= span.address + span.size)
        use = std::max(use, writes ? Use::kWrites : Use::kReads);
    }
    parts.push_back({*begin, *end - *begin, use});
  }
  return parts;
}

bool is_pattern(const unsigned char* bytes, uint64_t size) {
  return size == 0 || (bytes[0] == kPattern && std::memcmp(bytes, bytes + 1, size - 1) == 0);
}

// Puts back what is of others. Of a fall back, changed blocks are memory that it has allocated: it reaches nothing but
// its arguments, all of which it lists.
void restore(const Part& part, const unsigned char* before, bool allocates, const std::string& name) {
  unsigned char* now = host(part.begin);
  if (!allocates) {
    if (!is_pattern(now, part.size)) find(name + " writes what it does not list");
    std::memcpy(now, before, part.size);
    return;
  }
  for (uint64_t at = 0; at < part.size;) {
    const uint64_t size = std::min(kBlock - (part.begin + at) % kBlock, part.size - at);
    if (is_pattern(now + at, size)) std::memcpy(now + at, before + at, size);
    at += size;
  }
}

mtia_status run_watched(const mtia_work& item, const mtia_work_context& context) {
  std::vector<mtia_access> accesses = list(item);
  if (written_inside != nullptr) {  // part of the one that runs already
    for (const mtia_access& each : accesses) {
      if (each.writes) written_inside->push_back(each);
    }
    return item.run(item.args, &context);
  }
  const std::lock_guard lock(mutex);
  std::map<mtia_device_ptr, std::vector<unsigned char>> before;
  for (const auto& [segment, size] : segments) {
    before[segment].assign(host(segment), host(segment) + size);
    for (const Part& part : parts_of(segment, size, accesses)) {
      if (part.use == Use::kNothing) std::memset(host(part.begin), kPattern, part.size);
    }
  }
  std::vector<mtia_access> inside;
  written_inside = &inside;
  const mtia_status status = item.run(item.args, &context);
  written_inside = nullptr;
  accesses.insert(accesses.end(), inside.begin(), inside.end());
  const std::string name = item.name != nullptr ? item.name : "work";
  const bool is_fall_back = (item.flags & MTIA_WORK_CAPTURABLE) == 0;
  for (const auto& [segment, bytes] : before) {
    for (const Part& part : parts_of(segment, bytes.size(), accesses)) {
      const unsigned char* was = bytes.data() + (part.begin - segment);
      if (part.use == Use::kNothing) restore(part, was, is_fall_back, name);
      if (part.use == Use::kReads && std::memcmp(host(part.begin), was, part.size) != 0)
        find(name + " writes what it lists as read");
    }
  }
  return status;
}

// Stands in for an item. A copy has the original's argument block right behind it.
class alignas(16) WatchedWork {
 public:
  explicit WatchedWork(const mtia_work& original) : original_(original) {}

  mtia_work work() {
    mtia_work work = original_;
    work.run = [](void* args, const mtia_work_context* context) {
      return run_watched(static_cast<WatchedWork*>(args)->original_, *context);
    };
    work.relocate = [](void* to, void* from) {
      auto* copy = ::new (to) WatchedWork(*static_cast<const WatchedWork*>(from));
      mtia_work& item = copy->original_;
      void* block = copy + 1;
      if (item.relocate != nullptr) {
        item.relocate(block, item.args);
      } else {
        std::memcpy(block, item.args, item.args_size);
      }
      item.args = block;
    };
    work.destroy = [](void* args) {
      const mtia_work& item = static_cast<WatchedWork*>(args)->original_;
      if (item.destroy != nullptr) item.destroy(item.args);
    };
    work.args = this;
    work.args_size = sizeof(WatchedWork) + original_.args_size;
    return work;
  }

 private:
  mtia_work original_;
};

mtia_status stream_launch(mtia_stream stream, const mtia_work* work) {
  if (work->accesses == nullptr) {
    find(std::string(work->name != nullptr ? work->name : "work") + " lists nothing");
    return wrapped->stream_launch(stream, work);
  }
  WatchedWork watched(*work);
  const mtia_work item = watched.work();
  return wrapped->stream_launch(stream, &item);
}

mtia_status memory_copy(mtia_stream stream, uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind) {
  if (written_inside != nullptr && kind != MTIA_COPY_DEVICE_TO_HOST) written_inside->push_back({{to, size}, 1});
  return wrapped->memory_copy(stream, to, from, size, kind);
}

mtia_status memory_fill(mtia_stream stream, mtia_device_ptr to, const void* pattern, uint32_t size, uint64_t count) {
  if (written_inside != nullptr) written_inside->push_back({{to, size * count}, 1});
  return wrapped->memory_fill(stream, to, pattern, size, count);
}

mtia_status memory_allocate(int32_t device, uint64_t size, mtia_device_ptr* address) {
  const std::lock_guard lock(mutex);
  const mtia_status status = wrapped->memory_allocate(device, size, address);
  if (status == MTIA_SUCCESS) {
    wrapped->memory_host_offset(&host_offset);
    segments[*address] = size;
  }
  return status;
}

mtia_status memory_free(int32_t device, mtia_device_ptr address) {
  const std::lock_guard lock(mutex);
  segments.erase(address);
  return wrapped->memory_free(device, address);
}

}  // namespace

__attribute__((visibility("default"))) const mtia_runtime_api* mtia_runtime_get_api(uint32_t abi_version) {
  static const mtia_runtime_api table = [abi_version] {
    void* library = dlopen(std::getenv("MTIA_TEST_DRIVER"), RTLD_NOW | RTLD_LOCAL);
    wrapped = reinterpret_cast<mtia_runtime_get_api_fn>(dlsym(library, "mtia_runtime_get_api"))(abi_version);
    mtia_runtime_api api = *wrapped;
    api.stream_launch = &stream_launch;
    api.memory_copy = &memory_copy;
    api.memory_fill = &memory_fill;
    api.memory_allocate = &memory_allocate;
    api.memory_free = &memory_free;
    return api;
  }();
  return &table;
}
