// Messages between two processes that share memory, in the order in which they are sent. A receiver names a tag and a
// rank or any rank, and gets the first message that fits.
//
// Each rank has a ring for each other in its memory, where it writes what it sends and the other reads. Nobody works in
// the background: whoever waits for one message moves all that can be moved, so that two ranks which send to each other
// first both come to an end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "Engine.h"
#include "Team.h"

namespace torch_mtia::collectives {

class Messages {
 public:
  // Bytes of Team::memory().
  static size_t memory_size(int size);

  // Has the rooms from `offset` on.
  Messages(std::shared_ptr<const Team> team, size_t offset);

  // As Engine has them. Ranks are those of the team.
  std::shared_ptr<Message> send(Input input, int destination, int64_t tag);
  std::shared_ptr<Message> receive(Output output, int source, int64_t tag);

 private:
  struct Ring;
  class OnItsWay;
  struct Frame {
    uint64_t num_bytes;
    int64_t tag;
  };
  // What is being read from a rank.
  struct Arrival {
    Frame frame;
    std::shared_ptr<OnItsWay> message;  // or none
    std::vector<std::byte> kept;        // that nobody has asked for yet
    uint64_t num_read = 0;
  };
  struct Unclaimed {
    int source;
    int64_t tag;
    std::vector<std::byte> data;
  };

  Ring& ring(int from, int to) const;
  int wait(OnItsWay& message, Timeout timeout);
  int wait_until_done(OnItsWay& message, const Deadline& deadline);
  // Changes when a peer or another thread has done something.
  uint64_t state() const;
  void advance();
  bool advance_sends(int destination);
  bool advance_arrivals(int source);
  bool begin_arrival(int source);
  void end_arrival(int source);
  void deliver(OnItsWay& message, int source, const std::vector<std::byte>& data);
  // With the mutex: nothing is counted twice, and only the first message to a rank is on its way.
  bool is_valid() const;

  const std::shared_ptr<const Team> team_;
  const size_t offset_;
  std::atomic<uint64_t> num_changes_{0};                      // by this process
  std::mutex mutex_;                                          // guards what is below
  std::vector<std::deque<std::shared_ptr<OnItsWay>>> sends_;  // for each rank
  std::vector<std::optional<Arrival>> arrivals_;              // from each rank
  std::list<std::shared_ptr<OnItsWay>> receives_;
  std::list<Unclaimed> unclaimed_;
};

}  // namespace torch_mtia::collectives
