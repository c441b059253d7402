// What happens to the argument block of a work item, and to what the work throws.
#include <array>
#include <string>
#include <thread>

#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

// A callable that counts its objects and says where it ran.
struct Traced {
  struct Counts {
    int alive = 0;
    int moves = 0;
    int detaches = 0;
    int runs = 0;
    const void* ran_at = nullptr;
    std::thread::id ran_on;
  };

  explicit Traced(Counts& counts) : counts(&counts) { ++counts.alive; }
  Traced(Traced&& other) noexcept : counts(other.counts) {
    ++counts->alive;
    ++counts->moves;
  }
  ~Traced() { --counts->alive; }
  void detach() noexcept { ++counts->detaches; }
  void operator()(const mtia_work_context&) {
    ++counts->runs;
    counts->ran_at = this;
    counts->ran_on = std::this_thread::get_id();
  }

  Counts* counts;
};

TEST(inline_work_runs_on_the_launching_thread_in_its_own_block) {
  core::Stream& stream = new_stream();
  Traced::Counts counts;
  core::WorkBlock<Traced> block{Traced(counts), "traced"};
  stream.launch(core::make_work(kSmall, block));
  CHECK_EQ(counts.runs, 1);
  CHECK(counts.ran_at == &block.callable);
  CHECK(counts.ran_on == std::this_thread::get_id());
  CHECK_EQ(counts.moves, 0);
  CHECK_EQ(counts.detaches, 0);
}

TEST(queued_work_is_moved_out_of_the_launching_threads_block_and_destroyed) {
  core::Stream& stream = new_stream();
  Traced::Counts counts;
  {
    core::WorkBlock<Traced> block{Traced(counts), "traced"};
    stream.launch(core::make_work(kLarge, block));
    finish(stream);
    CHECK(counts.ran_at != &block.callable);
    CHECK_EQ(counts.alive, 1);  // the original
  }
  CHECK_EQ(counts.runs, 1);
  CHECK_EQ(counts.moves, 1);
  CHECK_EQ(counts.detaches, 1);
  CHECK_EQ(counts.alive, 0);
  CHECK(counts.ran_on != std::this_thread::get_id());
}

TEST(work_that_may_not_run_inline_never_does) {
  core::Stream& stream = new_stream();
  std::thread::id ran_on;
  stream.launch({.name = "free of cost", .flags = 0},
                [&](const mtia_work_context&) { ran_on = std::this_thread::get_id(); });
  finish(stream);
  CHECK(ran_on != std::thread::id());
  CHECK(ran_on != std::this_thread::get_id());
}

TEST(a_block_may_be_launched_again) {
  core::Stream& stream = new_stream();
  int runs = 0;
  auto count = [&runs](const mtia_work_context&) { ++runs; };
  core::WorkBlock<decltype(count)> block{count, "count"};
  for (int i = 0; i < 3; ++i) stream.launch(core::make_work(kSmall, block));
  for (int i = 0; i < 3; ++i) stream.launch(core::make_work(kLarge, block));
  finish(stream);
  CHECK_EQ(runs, 6);
}

template <size_t kSize>
struct Payload {
  alignas(16) std::array<unsigned char, kSize> bytes;
  bool* intact;
  void operator()(const mtia_work_context&) {
    *intact = reinterpret_cast<uintptr_t>(this) % 16 == 0;
    for (size_t i = 0; i < kSize; ++i) *intact = *intact && bytes[i] == static_cast<unsigned char>(i * 7);
  }
};

template <size_t kSize>
void check_payload() {
  core::Stream& stream = new_stream();
  bool intact = false;
  Payload<kSize> payload{.bytes = {}, .intact = &intact};
  for (size_t i = 0; i < kSize; ++i) payload.bytes[i] = static_cast<unsigned char>(i * 7);
  for (int repetition = 0; repetition < 3; ++repetition) {
    intact = false;
    stream.launch(kLarge, payload);
    finish(stream);
    CHECK(intact);
  }
}

TEST(blocks_of_any_size_arrive_whole_and_aligned) {
  check_payload<1>();
  check_payload<400>();
  check_payload<512>();
  check_payload<100'000>();
}

TEST(work_is_told_its_device_and_stream) {
  core::Stream& stream = new_stream(1);
  mtia_work_context seen{};
  for (const core::WorkInfo& info : {kSmall, kLarge}) {
    seen = {};
    stream.launch(info, [&](const mtia_work_context& context) { seen = context; });
    finish(stream);
    CHECK_EQ(seen.device, 1);
    CHECK_EQ(seen.num_threads, 1);
    CHECK(seen.stream_tag == &stream);
  }
}

TEST(an_exception_waits_for_the_next_synchronizing_call) {
  for (const core::WorkInfo& info : {kSmall, kLarge}) {
    core::Stream& stream = new_stream();
    stream.launch(info, [](const mtia_work_context&) { throw std::out_of_range("index 7"); });
    CHECK_EQ(CHECK_THROWS(std::out_of_range, finish(stream)), "index 7");
    finish(stream);  // reported once
    bool ran = false;
    stream.launch(info, [&](const mtia_work_context&) { ran = true; });
    finish(stream);
    CHECK(ran);
  }
}

TEST(the_first_exception_wins_and_carries_the_operators_name) {
  core::Stream& stream = new_stream();
  Gate gate;
  hold(stream, gate);
  stream.launch({.name = "first"}, [](const mtia_work_context&) { throw std::runtime_error("one"); });
  stream.launch({.name = "second"}, [](const mtia_work_context&) { throw std::runtime_error("two"); });
  gate.open();
  stream.wait_until_idle();
  const auto error = stream.take_error();
  CHECK(error.has_value());
  CHECK_EQ(std::string(error->operator_name), "first");
  CHECK_EQ(CHECK_THROWS(std::runtime_error, std::rethrow_exception(error->exception)), "one");
  CHECK(!stream.take_error());
}

// Work that reports a status without an exception: kernels, work of C programs.
mtia_status fails(void*, const mtia_work_context*) {
  return MTIA_ERROR_INVALID_VALUE;
}

TEST(the_driver_reports_a_failed_status_once_with_the_operators_name) {
  mtia_stream stream = nullptr;
  runtime::call(&mtia_runtime_api::stream_create, 0, 0, nullptr, &stream);
  mtia_work work{};
  work.struct_size = sizeof(work);
  work.run = &fails;
  work.name = "aten::broken";
  for (const uint32_t flags : {0U, MTIA_WORK_MAY_RUN_INLINE}) {
    work.flags = flags;
    for (const auto synchronize : {+[](mtia_stream s) { return api().stream_synchronize(s); },
                                   +[](mtia_stream) { return api().device_synchronize(0); }}) {
      CHECK_EQ(api().stream_launch(stream, &work), MTIA_SUCCESS);
      CHECK_EQ(synchronize(stream), MTIA_ERROR_LAUNCH_FAILED);
      CHECK_CONTAINS(api().last_error_message(), "aten::broken");
      CHECK_EQ(synchronize(stream), MTIA_SUCCESS);
    }
  }
}

TEST(a_malformed_work_item_is_refused) {
  mtia_work work{};
  work.run = &fails;
  CHECK_EQ(api().stream_launch(new_stream().handle(), &work), MTIA_ERROR_INVALID_VALUE);
  CHECK_CONTAINS(api().last_error_message(), "mtia_work has 0 bytes");
  work.struct_size = sizeof(work);
  CHECK_EQ(api().stream_launch(nullptr, &work), MTIA_ERROR_INVALID_VALUE);
  work.run = nullptr;
  CHECK_EQ(api().stream_launch(new_stream().handle(), &work), MTIA_ERROR_INVALID_VALUE);
  CHECK_CONTAINS(api().last_error_message(), "run");
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests_on_device(argc, argv);
}
