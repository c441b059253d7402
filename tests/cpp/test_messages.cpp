// Messages between the ranks of a group, over shared memory.
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"
#include "collectives/Messages.h"
#include "ranks.h"

using namespace torch_mtia::collectives;
using namespace torch_mtia::collectives::test;
using namespace std::chrono_literals;

TEST(counters_that_another_rank_has_damaged_raise) {
  in_threads(2, [](Rank& rank) {
    // Of the messages to the other rank: written, and read, each in a cache line of its own.
    const int other = 1 - rank.number();
    auto* const rings = rank.team->memory(rank.number()) + Communicator::memory_size(2) - Messages::memory_size(2);
    auto* const num_read =
        reinterpret_cast<std::atomic<uint64_t>*>(rings + other * (Messages::memory_size(2) / 2) + 64);
    std::vector<float> values(1000, 1);
    rank.barrier(kTimeout);
    if (rank.number() == 0) {
      num_read->store(5);  // more than was written
      CHECK_CONTAINS(CHECK_THROWS(GroupError, rank.communicator.send(input_of(values), other, 0)), "contradict");
      CHECK_CONTAINS(CHECK_THROWS(GroupError, rank.communicator.send(input_of(values), other, 0)), "contradict");
    } else {
      const auto receive = [&] { rank.communicator.receive(output_of(values), other, 0)->wait(kTimeout); };
      CHECK_CONTAINS(CHECK_THROWS(GroupError, receive()), "contradict");
    }
  });
}

TEST(a_message_takes_as_much_memory_as_has_come) {
  in_threads(2, [](Rank& rank) {
    std::vector<float> values(10, 2), others(1, 0);
    if (rank.number() == 0) {
      // A frame that announces more than any machine has, for a tag that nobody asks for.
      auto* const ring = rank.team->memory(0) + Communicator::memory_size(2) - Messages::memory_size(2) / 2;
      const struct {
        uint64_t num_bytes;
        int64_t tag;
      } frame{uint64_t{1} << 62, 9};
      std::memcpy(ring + 128, &frame, sizeof(frame));
      reinterpret_cast<std::atomic<uint64_t>*>(ring)->store(sizeof(frame));
      rank.barrier(kTimeout);
    } else {
      rank.barrier(kTimeout);
      const auto message = rank.communicator.receive(output_of(others), 0, 1);
      CHECK_CONTAINS(CHECK_THROWS(GroupError, message->wait(50ms)), "timeout");
    }
  });
}

TEST(messages_are_found_by_tag_and_rank) {
  in_threads(3, [](Rank& rank) {
    Engine& engine = rank.communicator;
    if (rank.number() != 0) {
      std::vector<int> first(200'000, rank.number()), second{10 * rank.number()};
      const auto long_one = engine.send(input_of(first), 0, 7);
      const auto short_one = engine.send(input_of(second), 0, 8);
      short_one->wait(kTimeout);
      long_one->wait(kTimeout);
      return;
    }
    std::vector<int> second(1), first(200'000), other_first(200'000), other_second(1);
    // The short message of rank 2 is behind a long one of another tag.
    CHECK_EQ(engine.receive(output_of(second), 2, 8)->wait(kTimeout), 2);
    CHECK_EQ(second[0], 20);
    const auto any = engine.receive(output_of(first), kAnyRank, 7);
    const auto any_other = engine.receive(output_of(other_first), kAnyRank, 7);
    const int source = any->wait(kTimeout);
    CHECK(first == std::vector<int>(200'000, source));
    CHECK_EQ(any_other->wait(kTimeout), 3 - source);
    CHECK(other_first == std::vector<int>(200'000, 3 - source));
    engine.receive(output_of(other_second), 1, 8)->wait(kTimeout);
    CHECK_EQ(other_second[0], 10);
  });
}

TEST(ranks_that_send_first_both_come_to_an_end) {
  in_threads(2, [](Rank& rank) {
    const int peer = 1 - rank.number();
    for (int i = 0; i < 20; ++i) {
      std::vector<int> mine(1'000'003, rank.number() + i), theirs(mine.size());
      const auto sent = rank.communicator.send(input_of(mine), peer, 0);
      const auto received = rank.communicator.receive(output_of(theirs), peer, 0);
      sent->wait(kTimeout);
      received->wait(kTimeout);
      CHECK(theirs == std::vector<int>(mine.size(), peer + i));
    }
  });
}

TEST(threads_of_a_rank_wait_for_messages_of_their_own) {
  in_threads(2, [](Rank& rank) {
    std::vector<std::jthread> threads;
    std::atomic<int> num_right{0};
    for (int tag = 0; tag < 4; ++tag) {
      threads.emplace_back([&, tag] {
        for (int i = 0; i < 50; ++i) {
          std::vector<int> mine(1000 * tag + 1, 100 * tag + i), theirs(mine.size());
          const auto sent = rank.communicator.send(input_of(mine), 1 - rank.number(), tag);
          const auto received = rank.communicator.receive(output_of(theirs), 1 - rank.number(), tag);
          received->wait(kTimeout);
          sent->wait(kTimeout);
          num_right += theirs == mine ? 1 : 0;
        }
      });
    }
    threads.clear();
    CHECK_EQ(num_right.load(), 200);
  });
}

TEST(a_message_of_another_size_raises_at_the_receiver) {
  in_threads(2, [](Rank& rank) {
    std::vector<int> values(rank.number() == 0 ? 3 : 5);
    if (rank.number() == 0) {
      rank.communicator.send(input_of(values), 1, 0)->wait(kTimeout);
    } else {
      const auto message = rank.communicator.receive(output_of(values), 0, 0);
      CHECK_CONTAINS(CHECK_THROWS(MismatchError, message->wait(kTimeout)),
                     "rank 0 has sent 12 bytes, the receiver expects 20");
    }
  });
}

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests(argc, argv);
}
