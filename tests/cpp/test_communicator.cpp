// Collectives over shared memory.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <thread>

#include "check.h"
#include "child_process.h"
#include "ranks.h"

using namespace torch_mtia::collectives;
using namespace torch_mtia::collectives::test;
using namespace std::chrono_literals;

namespace {

#if defined(__aarch64__)
using Float16 = __fp16;
#else
using Float16 = _Float16;
#endif

// Both run in processes of their own; the first ends as it likes.
template <typename Other, typename Body>
bool child_succeeds_beside(Other other, Body body) {
  std::jthread beside([&] { torch_mtia::test::status_of_child(other); });
  return torch_mtia::test::child_succeeds(body);
}

template <typename T>
std::byte* bytes_of(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

// Small integers: no sum of them is rounded.
template <typename T>
std::vector<T> values_of(int rank, size_t count) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>((i * 7 + rank * 3) % 5 + 1);
  return values;
}

template <typename T>
T combined(Operation operation, T left, T right) {
  switch (operation) {
    case Operation::kProduct:
      return left * right;
    case Operation::kMin:
      return std::min(left, right);
    case Operation::kMax:
      return std::max(left, right);
    default:
      return left + right;
  }
}

template <typename T>
std::vector<T> expected(Operation operation, int size, size_t count) {
  std::vector<T> result = values_of<T>(0, count);
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<T> values = values_of<T>(rank, count);
    for (size_t i = 0; i < count; ++i) result[i] = combined(operation, result[i], values[i]);
  }
  return result;
}

// None, one, a few; about the size from which ranks reduce parts; more than a buffer.
constexpr size_t kCounts[] = {0, 1, 63, 16384, 16385, 16385 * 4, 1000003};
constexpr Signature kReduced{"all_reduce", "float32"};

Signature named(const char* collective, int root = -1) {
  Signature signature;
  std::strncpy(signature.collective, collective, sizeof(signature.collective) - 1);
  signature.root = root;
  return signature;
}

}  // namespace

TEST(all_reduce_combines_what_all_ranks_have) {
  for (const int size : {1, 2, 3, 4}) {
    in_threads(size, [&](Rank& rank) {
      for (const size_t count : kCounts) {
        for (const Operation operation : {Operation::kSum, Operation::kProduct, Operation::kMin, Operation::kMax}) {
          const std::vector<float> values = values_of<float>(rank.number(), count);
          std::vector<float> result(count);
          rank.communicator.all_reduce({kReduced, kTimeout}, {ElementType::kFloat32, operation}, input_of(values),
                                       bytes_of(result));
          CHECK(result == expected<float>(operation, size, count));
        }
        std::vector<int16_t> in_place = values_of<int16_t>(rank.number(), count);
        rank.communicator.all_reduce({kReduced, kTimeout}, {ElementType::kInt16, Operation::kSum}, input_of(in_place),
                                     bytes_of(in_place));
        CHECK(in_place == expected<int16_t>(Operation::kSum, size, count));
      }
    });
  }
}

TEST(reduce_writes_the_root_only) {
  in_threads(3, [](Rank& rank) {
    for (const size_t count : kCounts) {
      std::vector<int64_t> values = values_of<int64_t>(rank.number(), count);
      const std::vector<int64_t> before = values;
      rank.communicator.reduce({named("reduce", 1), kTimeout}, {ElementType::kInt64, Operation::kMax}, input_of(values),
                               bytes_of(values));
      CHECK(values == (rank.number() == 1 ? expected<int64_t>(Operation::kMax, 3, count) : before));
    }
  });
}

TEST(reduce_scatter_gives_each_rank_its_part) {
  in_threads(3, [](Rank& rank) {
    for (const size_t count : kCounts) {
      // Rank r's part has `count + r` elements.
      const std::vector<double> values = values_of<double>(rank.number(), 3 * count + 3);
      std::vector<Input> inputs;
      std::vector<size_t> starts;
      size_t start = 0;
      for (int peer = 0; peer < 3; ++peer) {
        inputs.push_back({reinterpret_cast<const std::byte*>(values.data() + start), (count + peer) * sizeof(double)});
        starts.push_back(start);
        start += count + peer;
      }
      std::vector<double> result(count + rank.number());
      rank.communicator.reduce_scatter({named("reduce_scatter"), kTimeout}, {ElementType::kFloat64, Operation::kSum},
                                       inputs, bytes_of(result));
      const std::vector<double> all = expected<double>(Operation::kSum, 3, 3 * count + 3);
      const auto first = all.begin() + static_cast<ptrdiff_t>(starts[rank.number()]);
      CHECK(std::equal(result.begin(), result.end(), first));
    }
  });
}

TEST(multicast_broadcasts_and_gathers) {
  in_threads(3, [](Rank& rank) {
    for (const size_t count : kCounts) {
      std::vector<int> values = values_of<int>(rank.number(), count);
      const uint64_t num_bytes = count * sizeof(int);
      std::vector<std::vector<int>> all(3, std::vector<int>(count));
      std::vector<Output> outputs;
      for (auto& each : all) outputs.push_back(output_of(each));
      rank.communicator.multicast({named("all_gather"), kTimeout}, input_of(values),
                                  std::vector<uint64_t>(3, num_bytes), outputs);
      for (int peer = 0; peer < 3; ++peer) CHECK(all[peer] == values_of<int>(peer, count));

      std::vector<uint64_t> to(3, 0);
      if (rank.number() == 2) to.assign(3, num_bytes);
      std::vector<Output> from_root(3);
      from_root[2] = output_of(values);
      rank.communicator.multicast({named("broadcast", 2), kTimeout}, input_of(values), to, from_root);
      CHECK(values == values_of<int>(2, count));
    }
  });
}

TEST(exchange_takes_any_sizes) {
  in_threads(3, [](Rank& rank) {
    const int me = rank.number();
    const auto count_of = [](int from, int to) { return size_t{100'000} * from + size_t{37} * to; };
    std::vector<std::vector<int>> given, taken;
    for (int peer = 0; peer < 3; ++peer) {
      given.push_back(values_of<int>(10 * me + peer, count_of(me, peer)));
      taken.emplace_back(count_of(peer, me));
    }
    std::vector<Input> inputs;
    std::vector<Output> outputs;
    for (const auto& each : given) inputs.push_back(input_of(each));
    for (auto& each : taken) outputs.push_back(output_of(each));
    rank.communicator.exchange({named("all_to_all"), kTimeout}, inputs, outputs);
    for (int peer = 0; peer < 3; ++peer) CHECK(taken[peer] == values_of<int>(10 * peer + me, count_of(peer, me)));
  });
}

TEST(calls_follow_each_other_without_mixing) {
  in_threads(4, [](Rank& rank) {
    for (int i = 0; i < 2000; ++i) {
      std::vector<int> value{i + rank.number()};
      rank.communicator.all_reduce({kReduced, kTimeout}, {ElementType::kInt32, Operation::kSum}, input_of(value),
                                   bytes_of(value));
      CHECK_EQ(value[0], 4 * i + 6);
      if (i % 100 == 0) rank.barrier(kTimeout);
    }
  });
}

TEST(short_floats_are_added_in_float_and_rounded_once) {
  in_threads(3, [](Rank& rank) {
    // In bfloat16, 256 + 1 is 256: rounded after each addition, the sum of 256, 1 and 1 were 256.
    const uint16_t values[] = {0x4380, 0x3f80, 0x3f80};
    std::vector<uint16_t> value(20000, values[rank.number()]);
    rank.communicator.all_reduce({kReduced, kTimeout}, {ElementType::kBFloat16, Operation::kSum}, input_of(value),
                                 bytes_of(value));
    CHECK(value == std::vector<uint16_t>(20000, 0x4381));  // 258
  });
}

TEST(every_float16_goes_through_float_and_back) {
  std::vector<uint16_t> all(65536), zeros(65536, 0x8000), sums(65536), averages(65536);
  std::iota(all.begin(), all.end(), 0);
  const Contribution with_zero[] = {{bytes_of(all)}, {bytes_of(zeros)}};
  reduce(ElementType::kFloat16, Operation::kSum, with_zero, bytes_of(sums), all.size());
  const Contribution halves[] = {{bytes_of(all), 0.5}, {bytes_of(zeros), 1}};
  reduce(ElementType::kFloat16, Operation::kSum, halves, bytes_of(averages), all.size());
  const auto same = [](uint16_t bits, Float16 value) {
    uint16_t expected_bits = 0;
    std::memcpy(&expected_bits, &value, sizeof(value));
    const bool both_nan = (bits & 0x7fff) > 0x7c00 && value != value;
    return bits == expected_bits || both_nan;
  };
  for (size_t i = 0; i < all.size(); ++i) {
    Float16 value{};
    std::memcpy(&value, &all[i], sizeof(value));
    CHECK(same(sums[i], value));
    CHECK(same(averages[i], static_cast<Float16>(static_cast<float>(value) * 0.5F)));
  }
}

TEST(floats_of_16_bits_are_widened_and_narrowed_exactly) {
  for (const ElementType type : {ElementType::kFloat16, ElementType::kBFloat16, ElementType::kInt16}) {
    std::vector<uint16_t> all(65536), back(65536);
    std::iota(all.begin(), all.end(), 0);
    std::vector<std::byte> wide(all.size() * size_of(widened(type)));
    widen(type, bytes_of(all), wide.data(), all.size());
    narrow(type, wide.data(), bytes_of(back), all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      const bool is_nan = type == ElementType::kFloat16 ? (i & 0x7fff) > 0x7c00 : (i & 0x7fff) > 0x7f80;
      CHECK(back[i] == all[i] || (type != ElementType::kInt16 && is_nan));
    }
  }
}

TEST(an_average_may_have_another_divisor) {
  std::vector<double> first{6}, second{18}, result(1);
  const Contribution both[] = {{bytes_of(first)}, {bytes_of(second)}};
  reduce(ElementType::kFloat64, Operation::kAverage, both, bytes_of(result), 1);
  CHECK_EQ(result[0], 12.0);
  reduce(ElementType::kFloat64, Operation::kAverage, both, bytes_of(result), 1, 3);
  CHECK_EQ(result[0], 8.0);
}

TEST(float16_is_rounded_as_the_compiler_rounds_it) {
  for (uint32_t i = 0; i < 1'000'000; ++i) {
    // Of all exponents of float16 and those around them, with all kinds of last bits.
    const uint32_t bits = ((100U + i % 48U) << 23) | ((i * 2654435761U) & 0x7fffffU) | ((i & 1U) << 31);
    const std::vector<float> value{std::bit_cast<float>(bits)};
    const std::vector<uint16_t> one{0x3c00}, zero{0x8000};
    std::vector<uint16_t> result(1);
    const Contribution product[] = {{reinterpret_cast<const std::byte*>(one.data()), value[0]},
                                    {reinterpret_cast<const std::byte*>(zero.data()), 1}};
    reduce(ElementType::kFloat16, Operation::kSum, product, bytes_of(result), 1);
    const auto rounded = static_cast<Float16>(value[0]);
    uint16_t rounded_bits = 0;
    std::memcpy(&rounded_bits, &rounded, sizeof(rounded));
    CHECK_EQ(result[0], rounded_bits);
  }
}

TEST(minimum_and_maximum_of_nan_are_nan) {
  in_threads(2, [](Rank& rank) {
    for (const Operation operation : {Operation::kMin, Operation::kMax}) {
      std::vector<float> value{rank.number() == 0 ? NAN : 1.0F, rank.number() == 1 ? NAN : 1.0F};
      rank.communicator.all_reduce({kReduced, kTimeout}, {ElementType::kFloat32, operation}, input_of(value),
                                   bytes_of(value));
      CHECK(std::isnan(value[0]) && std::isnan(value[1]));
    }
  });
}

TEST(each_rank_has_a_factor_of_its_own) {
  in_threads(2, [](Rank& rank) {
    for (const size_t count : {size_t{3}, size_t{100'000}}) {
      std::vector<float> values(count, 3);
      rank.communicator.all_reduce({kReduced, kTimeout}, {ElementType::kFloat32, Operation::kSum, rank.number() + 0.5},
                                   input_of(values), bytes_of(values));
      CHECK(values == std::vector<float>(count, 6));
    }
  });
}

TEST(what_is_not_defined_is_refused) {
  in_threads(1, [](Rank& rank) {
    std::vector<int> value{1};
    const auto call = [&](ElementType type, Operation operation) {
      rank.communicator.all_reduce({kReduced, kTimeout}, {type, operation}, input_of(value), bytes_of(value));
    };
    CHECK_CONTAINS(CHECK_THROWS(std::invalid_argument, call(ElementType::kInt32, Operation::kAverage)), "AVG");
    CHECK_CONTAINS(CHECK_THROWS(std::invalid_argument, call(ElementType::kFloat32, Operation::kXor)), "BXOR");
    CHECK_CONTAINS(CHECK_THROWS(std::invalid_argument, call(ElementType::kInt32, static_cast<Operation>(200))),
                   "expected an operation below 8, got 200");
  });
}

TEST(ranks_that_call_different_things_all_raise_and_go_on) {
  in_threads(3, [](Rank& rank) {
    std::vector<float> values(100'000, 1);
    const auto sum = [&](size_t count, ElementType type, Operation operation) {
      rank.communicator.all_reduce({kReduced, kTimeout}, {type, operation}, {bytes_of(values), count * sizeof(float)},
                                   bytes_of(values));
    };
    const bool is_odd = rank.number() == 1;
    CHECK_CONTAINS(CHECK_THROWS(MismatchError, sum(is_odd ? 10 : 100'000, ElementType::kFloat32, Operation::kSum)),
                   "gives 400000 bytes to rank 1, which expects 40");
    CHECK_CONTAINS(
        CHECK_THROWS(MismatchError, sum(10, ElementType::kFloat32, is_odd ? Operation::kMax : Operation::kSum)),
        "rank 1: all_reduce MAX of float32");
    CHECK_THROWS(MismatchError, sum(10, is_odd ? ElementType::kInt32 : ElementType::kFloat32, Operation::kSum));
    const auto something = [&] {
      if (is_odd) {
        rank.barrier(kTimeout);
      } else {
        sum(10, ElementType::kFloat32, Operation::kSum);
      }
    };
    CHECK_CONTAINS(CHECK_THROWS(MismatchError, something()), "rank 1: barrier");
    CHECK(values == std::vector<float>(100'000, 1));
    sum(values.size(), ElementType::kFloat32, Operation::kSum);
    CHECK(values == std::vector<float>(100'000, 3));
  });
}

TEST(a_call_that_one_rank_has_skipped_is_not_combined_with_its_next) {
  in_threads(2, [](Rank& rank) {
    std::vector<float> value{1};
    Signature signature = kReduced;
    signature.number = rank.number() == 0 ? 7 : 8;
    const auto call = [&] {
      rank.communicator.all_reduce({signature, kTimeout}, {ElementType::kFloat32, Operation::kSum}, input_of(value),
                                   bytes_of(value));
    };
    const std::string error = CHECK_THROWS(MismatchError, call());
    CHECK_CONTAINS(error, "rank 0: all_reduce SUM of float32 (call 7)");
    CHECK_CONTAINS(error, "rank 1: all_reduce SUM of float32 (call 8)");
  });
}

TEST(who_waits_for_a_rank_and_where_can_be_asked) {
  in_threads(2, [](Rank& rank) {
    std::vector<float> value{1};
    const auto sum = [&] {
      rank.communicator.all_reduce({kReduced, kTimeout}, {ElementType::kFloat32, Operation::kSum}, input_of(value),
                                   bytes_of(value));
    };
    for (int i = 1; i < 4; ++i) {
      if (rank.number() == 0) {
        std::string awaited;
        while ((awaited = rank.communicator.awaited()).empty()) std::this_thread::yield();
        CHECK(awaited == "; rank 1: all_reduce SUM of float32");
      }
      sum();
      CHECK(value[0] == static_cast<float>(1 << i));
      rank.barrier(kTimeout);
      if (rank.number() == 1) CHECK(rank.communicator.awaited().empty());
    }
  });
}

TEST(a_rank_that_does_not_come_is_named) {
  std::atomic<int> num_raised{0};
  in_threads(3, [&](Rank& rank) {
    if (rank.number() == 2) {
      while (num_raised < 2) std::this_thread::yield();
      rank.barrier(kTimeout);  // the others have been here
      CHECK_CONTAINS(CHECK_THROWS(GroupError, rank.barrier(kTimeout)), "has given up");
      return;
    }
    const std::string error = CHECK_THROWS(GroupError, rank.barrier(100ms));
    CHECK_CONTAINS(error, "rank 2");
    CHECK_CONTAINS(CHECK_THROWS(GroupError, rank.barrier(kTimeout)), "rank 2");
    ++num_raised;
  });
}

TEST(a_group_that_is_given_up_wakes_who_waits) {
  in_threads(2, [](Rank& rank) {
    if (rank.number() == 0) {
      std::vector<int> value(1);
      const auto message = rank.communicator.receive(output_of(value), 1, 0);
      std::jthread other([&] { rank.team->give_up("aborted"); });
      CHECK_CONTAINS(CHECK_THROWS(GroupError, message->wait(kTimeout)), "aborted");
    } else {
      CHECK_CONTAINS(CHECK_THROWS(GroupError, rank.barrier(kTimeout)), "rank 0 has given up: aborted");
    }
  });
}

TEST(a_process_that_dies_is_named_and_leaves_nothing) {
  const Folder folder;
  CHECK(child_succeeds_beside(
      [&] {
        Rank rank(folder.store(), 1, 2);
        std::vector<float> values(16 << 20, 1);
        for (int i = 0; i < 2; ++i) {
          rank.communicator.all_reduce({kReduced, kTimeout}, {ElementType::kFloat32, Operation::kSum}, input_of(values),
                                       bytes_of(values));
        }
        raise(SIGKILL);
      },
      [&] {
        Rank rank(folder.store(), 0, 2);
        std::vector<float> values(16 << 20, 1);
        const auto sum = [&] {
          rank.communicator.all_reduce({kReduced, kTimeout}, {ElementType::kFloat32, Operation::kSum}, input_of(values),
                                       bytes_of(values));
        };
        sum();
        sum();
        CHECK(values == std::vector<float>(16 << 20, 4));
        CHECK_CONTAINS(CHECK_THROWS(GroupError, sum()), "the process of rank 1 has ended");
      }));
}

TEST(timeouts_beyond_the_range_of_the_clock_never_expire) {
  for (const auto timeout : {std::chrono::milliseconds::max(), std::chrono::milliseconds(std::chrono::days(106'945))}) {
    CHECK(Deadline(timeout).time == std::chrono::steady_clock::time_point::max());
    in_threads(2, [&](Rank& rank) { rank.barrier(timeout); });
  }
  CHECK(Deadline(1ms).time < std::chrono::steady_clock::now() + 1h);
}

TEST(ranks_of_different_builds_all_say_so) {
  const Folder folder;
  std::vector<std::jthread> threads;
  std::vector<std::string> errors(3);
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      // Another size of the memory is another layout.
      errors[rank] = CHECK_THROWS(GroupError, Team(folder.store(), rank, 3, rank == 1 ? 128 : 64, ""));
    });
  }
  threads.clear();
  for (const std::string& error : errors) CHECK_CONTAINS(error, "runs another build of torch_mtia than rank");
  CHECK_CONTAINS(errors[2], "rank 1 runs another build of torch_mtia than rank 2");
}

TEST(nobody_changes_the_size_of_the_memory) {
  const SharedMemory memory = SharedMemory::create(1 << 16);
  CHECK(ftruncate(memory.descriptor(), 0) != 0);
  CHECK(ftruncate(memory.descriptor(), 1 << 20) != 0);
  CHECK(SharedMemory::open(getpid(), memory.descriptor(), 1 << 16).data() != nullptr);
  const FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC));
  CHECK(ftruncate(unsealed.number(), 1 << 16) == 0);
  CHECK(SharedMemory::open(getpid(), unsealed.number(), 1 << 16).data() == nullptr);
}

TEST(a_forked_process_cannot_use_the_group) {
  in_threads(1, [](Rank& rank) {
    CHECK(torch_mtia::test::child_succeeds(
        [&] { CHECK_CONTAINS(CHECK_THROWS(GroupError, rank.barrier(kTimeout)), "forked"); }));
  });
}

TEST(ranks_of_two_machines_agree_on_who_is_where) {
  const Folder folder;
  std::vector<std::jthread> threads;
  std::vector<std::vector<int>> machines(4), members(4);
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      const Team team(folder.store(), rank, 4, 64, rank % 2 == 0 ? "even" : "odd");
      machines[rank] = team.machines();
      members[rank] = team.members();
    });
  }
  threads.clear();
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(machines[rank] == (std::vector<int>{0, 1, 0, 1}));
    CHECK(members[rank] == (std::vector<int>{rank % 2, rank % 2 + 2}));
  }
}

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests(argc, argv);
}
