// Threads x streams x allocations x events x graphs x host functions against a model: what was last written to each
// block.
//
// Every block is filled with a number by work of its stream, and checked by later work, of this or, behind an event, of
// another stream. If the allocator gave memory out too early, if a stream ran out of order or if an event let go too
// early, a check finds another number (and ThreadSanitizer a data race).
//
// MTIA_STRESS_SEED is the first seed, which also decides about the settings of the process, and MTIA_STRESS_COUNT how
// many there are. Each is named before it runs: a process that ends or hangs has said in which.
#include <array>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/Graph.h"
#include "core/Waits.h"
#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

constexpr int kThreads = 3;
constexpr int kDevices = 2;
constexpr int kStreamsPerThread = 4;  // of two devices, in turn
constexpr int kSteps = 1000;
constexpr size_t kMaxLiveBlocks = 24;
constexpr size_t kMaxGraphs = 3;

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr) return otherwise;
  const std::string_view digits(text);
  std::from_chars(digits.data(), digits.data() + digits.size(), otherwise);
  return otherwise;
}

uint64_t first_seed() {
  return from_environment("MTIA_STRESS_SEED", 1);
}

core::AllocatorOptions options_of_seed;

using Allocators = std::array<core::BlockAllocator*, kDevices>;

core::BlockAllocator& allocator_of(const Allocators& allocators, const core::Stream& stream) {
  return *allocators[static_cast<size_t>(stream.device())];
}

core::BlockInfo allocate_from(core::BlockAllocator& allocator, size_t bytes, core::Stream* stream) {
  return *allocator.find(allocator.allocate(bytes, stream));
}

struct LiveBlock {
  core::BlockInfo block;
  uint32_t value;  // the model: what the last write left

  core::Stream& stream() const { return *block.stream; }
  uint32_t* words() const { return reinterpret_cast<uint32_t*>(host_view(block.address)); }
  // The first words and the last one are enough to see somebody else's number, also in a large block.
  static constexpr size_t kCheckedWords = 16;
  size_t last_word() const { return block.requested / sizeof(uint32_t) - 1; }
};

// What work does to a block: it has no access to what the allocator knows.
struct Contents {
  explicit Contents(const LiveBlock& of) : words(of.words()), last(of.last_word()) {}

  void fill(uint32_t value) const {
    for (size_t i = 0; i < LiveBlock::kCheckedWords && i < last; ++i) words[i] = value;
    words[last] = value;
  }
  void check(uint32_t value) const {
    for (size_t i = 0; i < LiveBlock::kCheckedWords && i < last; ++i) CHECK_EQ(words[i], value);
    CHECK_EQ(words[last], value);
  }

  uint32_t* words;
  size_t last;
};

// See Note [Memory of running work].
class Window {
 public:
  Window(core::BlockAllocator& allocator, core::Stream& stream)
      : allocator_(allocator), stream_(stream), id_(allocator.open_window(&stream)) {}
  ~Window() { allocator_.close_window(&stream_, id_); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

 private:
  core::BlockAllocator& allocator_;
  core::Stream& stream_;
  const core::WindowId id_;
};

// A chain of work that adds one to a number, each in a block of a pool. Launched in one stream only.
class ChainGraph : public core::Graph {
 public:
  ChainGraph(core::BlockAllocator& allocator, core::PoolId pool) : allocator_(allocator), pool_(pool) {
    allocator.use_pool(pool);
  }
  ~ChainGraph() override {
    destroy();
    if (output) allocator_.free(output->block.address);
    allocator_.release_pool(pool_);
  }

  std::optional<LiveBlock> input;   // of the default pool
  std::optional<LiveBlock> output;  // its number is how much is added

 protected:
  void stream_joined(core::Stream& stream) override { allocator_.direct_to_pool(&stream, pool_); }
  void stream_left(core::Stream& stream) noexcept override { allocator_.direct_to_default_pool(&stream); }

 private:
  core::BlockAllocator& allocator_;
  const core::PoolId pool_;
};

// What threads give each other.
struct Exchange {
  struct Passed {
    LiveBlock block;
    std::shared_ptr<const core::Event> written;
  };
  std::mutex mutex;
  std::vector<Passed> blocks;
};

class Worker {
 public:
  struct Streams {
    std::vector<core::Stream*> used;
    std::array<core::Stream*, 2> captured;  // of device 0; nothing but captures uses them
  };

  Worker(const Allocators& allocators, const Streams& streams, Exchange& exchange, uint64_t seed, uint32_t thread)
      : allocators_(allocators),
        streams_(streams.used),
        captured_(streams.captured),
        exchange_(exchange),
        pool_(1, thread),
        random_(static_cast<uint32_t>(seed * kThreads + thread)),
        next_value_((thread + 1) << 24) {}

  void run() {
    for (int step = 0; step < kSteps; ++step) {
      try {
        act(pick(100));
      } catch (const core::OutOfDeviceMemory&) {
        free_all();
      }
      CHECK(allocators_[static_cast<size_t>(step) % kDevices]->is_valid());
    }
    free_all();
    for (core::Stream* stream : streams_) finish(*stream);
  }

 private:
  void act(uint32_t choice) {
    if (live_.empty() || (choice < 30 && live_.size() < kMaxLiveBlocks)) {
      allocate();
    } else if (choice < 48) {
      free_one();
    } else if (choice < 60) {
      write(any());
    } else if (choice < 72) {
      read_on_another_stream(pick(live_.size()));
    } else if (choice < 77) {
      read(any());
    } else if (choice < 81) {
      pass_on(pick(live_.size()));
    } else if (choice < 85) {
      take_over();
    } else if (choice < 89) {
      call_host_function();
    } else if (choice < 91) {
      capture();
    } else if (choice < 96) {
      replay();
    } else if (choice < 98) {
      finish(any_stream());
    } else {
      look_around();
    }
  }

  uint32_t pick(size_t count) {
    return std::uniform_int_distribution<uint32_t>(0, static_cast<uint32_t>(count) - 1)(random_);
  }
  LiveBlock& any() { return live_[pick(live_.size())]; }
  core::Stream& any_stream() { return *streams_[pick(streams_.size())]; }
  const core::WorkInfo& any_size() { return pick(4) == 0 ? kLarge : kSmall; }
  size_t any_bytes() { return pick(8) == 0 ? 1'500'000 + 4 * pick(1'000'000) : 4 + 4 * pick(20'000); }
  core::BlockAllocator& allocator_of(const core::Stream& stream) { return test::allocator_of(allocators_, stream); }

  void allocate() { live_.push_back(new_block(any_stream())); }

  LiveBlock new_block(core::Stream& stream) {
    LiveBlock block{allocate_from(allocator_of(stream), any_bytes(), &stream), 0};
    write(block);
    return block;
  }

  LiveBlock taken(size_t i) {
    const LiveBlock block = live_[i];
    live_[i] = live_.back();
    live_.pop_back();
    return block;
  }

  void free_one() {
    const size_t i = pick(live_.size());
    read(live_[i]);
    free_block(taken(i));
  }

  void free_all() {
    while (!graphs_.empty()) drop_graph();
    while (!live_.empty()) free_one();
  }

  void free_block(const LiveBlock& block) { allocator_of(block.stream()).free(block.block.address); }

  void write(LiveBlock& target) {
    target.value = ++next_value_;
    target.stream().launch(any_size(),
                           [to = Contents(target), value = target.value](const mtia_work_context&) { to.fill(value); });
  }

  void launch_check(core::Stream& stream, const LiveBlock& target) {
    stream.launch(any_size(),
                  [from = Contents(target), value = target.value](const mtia_work_context&) { from.check(value); });
  }

  void read(const LiveBlock& target) { launch_check(target.stream(), target); }

  // `user` may use the block now, and until the work that it has when the block is freed is done.
  void share(const LiveBlock& block, core::Stream& user) {
    wait_for(user, block.stream());
    allocator_of(block.stream()).record_stream(block.block.address, &user);
  }

  static void wait_for(core::Stream& waiting, core::Stream& waited_for) {
    core::Event event(false);
    event.record(waited_for);
    waiting.wait(event);
  }

  void read_on_another_stream(size_t i) {
    core::Stream& reader = any_stream();
    share(live_[i], reader);
    launch_check(reader, live_[i]);
    if (pick(2) == 0) return free_block(taken(i));  // only the allocator knows that it is being read
    wait_for(live_[i].stream(), reader);            // so that a later write comes behind
  }

  void pass_on(size_t i) {
    auto written = std::make_shared<core::Event>(false);
    const LiveBlock block = taken(i);
    written->record(block.stream());
    const std::lock_guard lock(exchange_.mutex);
    exchange_.blocks.push_back({block, std::move(written)});
  }

  void take_over() {
    Exchange::Passed passed{};
    {
      const std::lock_guard lock(exchange_.mutex);
      if (exchange_.blocks.empty()) return;
      std::swap(exchange_.blocks[pick(exchange_.blocks.size())], exchange_.blocks.back());
      passed = std::move(exchange_.blocks.back());
      exchange_.blocks.pop_back();
    }
    core::Stream& reader = any_stream();
    if (pick(3) == 0) passed.written->synchronize();
    if (!passed.written->query()) reader.wait(*passed.written);
    launch_check(reader, passed.block);
    allocator_of(passed.block.stream()).record_stream(passed.block.block.address, &reader);
    if (pick(2) == 0) return free_block(passed.block);
    wait_for(passed.block.stream(), reader);
    live_.push_back(passed.block);
  }

  // It has memory of its own, and may be the last that has a block of another.
  void call_host_function() {
    core::Stream& stream = any_stream();
    core::BlockAllocator& own = allocator_of(stream);
    std::optional<LiveBlock> given;
    if (pick(2) == 0) {
      given = taken(pick(live_.size()));
      share(*given, stream);
    }
    const core::WorkInfo info{.name = "host function", .flags = MTIA_WORK_CAPTURABLE};
    core::BlockAllocator* const theirs = given ? &allocator_of(given->stream()) : nullptr;
    stream.launch(info, [window = std::make_shared<const Window>(own, stream), &own, &stream, given, theirs,
                         bytes = any_bytes(), value = ++next_value_](const mtia_work_context&) {
      const core::RunningWork running(stream);
      if (given) {
        Contents(*given).check(given->value);
        theirs->free(given->block.address);
      }
      try {
        const LiveBlock block{allocate_from(own, bytes, &stream), value};
        Contents(block).fill(value);
        Contents(block).check(value);
        own.free(block.block.address, /*in_own_window=*/true);
      } catch (const core::OutOfDeviceMemory&) {  // running work waits for nobody
      }
    });
  }

  // Graphs of one worker share a pool, because they are launched one behind the other.
  void capture() {
    if (graphs_.size() == kMaxGraphs) return drop_graph();
    auto graph = std::make_unique<ChainGraph>(*allocators_[0], pool_);
    LiveBlock input = new_block(*streams_[0]);
    graph->input = input;
    live_.push_back(input);  // while something may be thrown
    graph->begin_capture(*captured_[0]);
    try {
      chain(*graph);
    } catch (const core::OutOfDeviceMemory&) {
      graph->destroy();
      throw;
    }
    graph->end_capture();
    graph->instantiate();
    allocators_[0]->use_pool_in(pool_, streams_[0]);
    live_.pop_back();
    graphs_.push_back(std::move(graph));
  }

  void chain(ChainGraph& graph) {
    const LiveBlock* from = &*graph.input;
    std::optional<LiveBlock> before;
    core::Stream* stream = captured_[0];
    for (uint32_t number = 1 + pick(6); number > 0; --number) {
      core::Stream* const next = captured_[pick(captured_.size())];
      if (next != stream) wait_for(*next, *stream);
      stream = next;
      const LiveBlock to{allocate_from(*allocators_[0], any_bytes(), stream),
                         graph.output ? graph.output->value + 1 : 1};
      graph.output = to;
      stream->launch(any_size(), [from = Contents(*from), to = Contents(to)](const mtia_work_context&) {
        from.check(*from.words);
        to.fill(*from.words + 1);
      });
      if (before) {
        allocators_[0]->record_stream(before->block.address, stream);
        free_block(*before);
      }
      before = to;
      from = &*before;
    }
    if (stream != captured_[0]) wait_for(*captured_[0], *stream);
  }

  void replay() {
    if (graphs_.empty()) return;
    ChainGraph& graph = *graphs_[pick(graphs_.size())];
    write(*graph.input);
    graph.launch(*streams_[0], nullptr);
    launch_check(*streams_[0], {graph.output->block, graph.input->value + graph.output->value});
  }

  void drop_graph() {
    const size_t i = pick(graphs_.size());
    live_.push_back(*graphs_[i]->input);
    graphs_.erase(graphs_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void look_around() {
    core::BlockAllocator& allocator = allocator_of(any_stream());
    switch (pick(4)) {
      case 0:
        return allocator.empty_cache();
      case 1:
        CHECK(!allocator.snapshot().empty() || allocator.stats().segment[core::kAll].current == 0);
        return;
      case 2:
        CHECK(allocator.stats().reserved_bytes[core::kAll].peak >= 0);
        return;
      default:
        any_stream().query();
    }
  }

  const Allocators& allocators_;
  const std::vector<core::Stream*> streams_;
  const std::array<core::Stream*, 2> captured_;
  Exchange& exchange_;
  const core::PoolId pool_;
  std::mt19937 random_;
  uint32_t next_value_;
  std::vector<LiveBlock> live_;
  std::vector<std::unique_ptr<ChainGraph>> graphs_;
};

void run_seed(uint64_t seed, const std::vector<Worker::Streams>& streams) {
  options_of_seed = {};
  options_of_seed.expandable_segments = seed % 3 == 1;
  if (seed % 5 == 2) options_of_seed.garbage_collection_threshold = 0.3;
  if (seed % 7 == 3) options_of_seed.max_split_size = size_t{2} << 20;
  Allocators allocators{};
  for (int32_t device = 0; device < kDevices; ++device) {
    allocators[static_cast<size_t>(device)] = core::BlockAllocator::create(device, [] { return options_of_seed; });
  }
  Exchange exchange;
  std::vector<std::string> failures(kThreads);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, &failure = failures[t], t] {
      try {
        Worker(allocators, streams[t], exchange, seed, t).run();
      } catch (const std::exception& error) {
        failure = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) CHECK_EQ(failure, "");
  for (const Exchange::Passed& passed : exchange.blocks) {
    allocator_of(allocators, passed.block.stream()).free(passed.block.block.address);
  }

  for (int32_t device = 0; device < kDevices; ++device) {
    runtime::call(&mtia_runtime_api::device_synchronize, device);
    core::BlockAllocator& allocator = *allocators[static_cast<size_t>(device)];
    allocator.empty_cache();
    const core::AllocatorStats stats = allocator.stats();
    for (const core::StatArray& stat :
         {stats.allocation, stats.active, stats.segment, stats.allocated_bytes, stats.active_bytes,
          stats.reserved_bytes, stats.inactive_split_bytes, stats.requested_bytes}) {
      CHECK_EQ(stat[core::kAll].current, 0);
      CHECK_EQ(stat[core::kAll].allocated, stat[core::kAll].freed);
    }
  }
}

TEST(memory_events_graphs_and_order_agree_with_the_model) {
  std::vector<Worker::Streams> streams(kThreads);
  for (Worker::Streams& of_thread : streams) {
    for (int i = 0; i < kStreamsPerThread; ++i) of_thread.used.push_back(&new_stream(i % kDevices));
    of_thread.captured = {&new_stream(), &new_stream()};
  }
  const uint64_t count = from_environment("MTIA_STRESS_COUNT", 3);
  for (uint64_t seed = first_seed(); seed < first_seed() + count; ++seed) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    run_seed(seed, streams);
  }
}

// Blocks allocated by one thread and freed by others, on streams that all share.
TEST(threads_may_share_streams_and_free_each_others_blocks) {
  constexpr int kBlocks = 3000;
  core::BlockAllocator& allocator = new_allocator();
  core::Stream& shared = new_stream();
  std::mutex mutex;
  std::vector<mtia_device_ptr> passed_on;
  std::vector<std::thread> threads;
  std::atomic<int> items{0};
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < kBlocks; ++i) {
        mtia_device_ptr block = allocator.allocate(512 * (1 + random() % 2000), &shared);
        shared.launch(i % 8 == 0 ? kLarge : kSmall, [&items](const mtia_work_context&) { ++items; });
        {
          const std::lock_guard lock(mutex);
          passed_on.push_back(block);
          std::swap(passed_on.back(), passed_on[random() % passed_on.size()]);
          block = passed_on.back();
          if (passed_on.size() < 30) continue;
          passed_on.pop_back();
        }
        allocator.free(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (mtia_device_ptr block : passed_on) allocator.free(block);
  finish(shared);
  CHECK_EQ(items.load(), kThreads * kBlocks);
  CHECK_EQ(allocator.stats().active[core::kAll].current, 0);
  allocator.empty_cache();
  CHECK_EQ(allocator.stats().reserved_bytes[core::kAll].current, 0);
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  using namespace torch_mtia::test;
  const uint64_t kind = first_seed() / 100 % 4;  // every hundred seeds have settings of their own
  return run_tests_on_device(argc, argv,
                             {.num_devices = kDevices,
                              .memory_per_device = kind < 2 ? uint64_t{512} << 20 : uint64_t{64} << 20,
                              .delay_seed = kind % 2 == 0 ? 0 : first_seed()});
}
