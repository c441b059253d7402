#include "Messages.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "../processor/assertion.h"

namespace torch_mtia::collectives {

struct Messages::Ring {
  static constexpr size_t kSize = size_t{1} << 18;

  alignas(64) std::atomic<uint64_t> num_written;
  alignas(64) std::atomic<uint64_t> num_read;
  alignas(64) std::byte data[kSize];

  // Both ranks write one of the counters, and each checks what the other has written.
  uint64_t num_ready() const {
    const uint64_t count = num_written.load() - num_read.load();
    if (count > kSize) throw GroupError("the counters of messages in the shared memory contradict each other");
    return count;
  }
  uint64_t num_free() const { return kSize - num_ready(); }

  // Of at most `num_bytes`, how many it has taken.
  uint64_t write(const std::byte* from, uint64_t num_bytes) {
    num_bytes = std::min(num_bytes, num_free());
    const uint64_t start = num_written.load() % kSize;
    const uint64_t before_end = std::min(num_bytes, kSize - start);
    if (num_bytes == 0) return 0;
    std::memcpy(data + start, from, before_end);
    std::memcpy(data, from + before_end, num_bytes - before_end);
    num_written.fetch_add(num_bytes);
    return num_bytes;
  }
  // Of at most `num_bytes`, how many there were.
  uint64_t read(std::byte* to, uint64_t num_bytes) {
    num_bytes = std::min(num_bytes, num_ready());
    const uint64_t start = num_read.load() % kSize;
    const uint64_t before_end = std::min(num_bytes, kSize - start);
    if (num_bytes == 0) return 0;
    std::memcpy(to, data + start, before_end);
    std::memcpy(to + before_end, data, num_bytes - before_end);
    num_read.fetch_add(num_bytes);
    return num_bytes;
  }
};

class Messages::OnItsWay final : public Message {
 public:
  OnItsWay(Messages& owner, Input input, Output output, int peer, int64_t tag)
      : input(input), output(output), peer(peer), tag(tag), owner_(owner) {}

  int wait(Timeout timeout) override { return owner_.wait(*this, timeout); }

  bool fits(int source, int64_t its_tag) const { return its_tag == tag && (peer == kAnyRank || peer == source); }

  const Input input;    // of a send
  const Output output;  // of a receive
  const int peer;
  const int64_t tag;

  // Guarded by the mutex of Messages:
  bool is_announced = false;
  uint64_t num_sent = 0;
  bool is_done = false;
  int source = kAnyRank;
  std::string error;

 private:
  Messages& owner_;
};

size_t Messages::memory_size(int size) {
  return size * sizeof(Ring);
}

Messages::Messages(std::shared_ptr<const Team> team, size_t offset)
    : team_(std::move(team)), offset_(offset), sends_(team_->size()), arrivals_(team_->size()) {}

Messages::Ring& Messages::ring(int from, int to) const {
  return reinterpret_cast<Ring*>(team_->memory(from) + offset_)[to];
}

std::shared_ptr<Message> Messages::send(Input input, int destination, int64_t tag) {
  if (destination == team_->index()) throw std::invalid_argument("a rank cannot send to itself");
  auto message = std::make_shared<OnItsWay>(*this, input, Output{}, destination, tag);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    team_->check();
    sends_[destination].push_back(message);
    advance();
    ++num_changes_;
  }
  team_->notify(team_->index());
  return message;
}

std::shared_ptr<Message> Messages::receive(Output output, int source, int64_t tag) {
  if (source == team_->index()) throw std::invalid_argument("a rank cannot receive from itself");
  auto message = std::make_shared<OnItsWay>(*this, Input{}, output, source, tag);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    team_->check();
    const auto found = std::find_if(unclaimed_.begin(), unclaimed_.end(),
                                    [&](const Unclaimed& each) { return message->fits(each.source, each.tag); });
    if (found != unclaimed_.end()) {
      deliver(*message, found->source, found->data);
      unclaimed_.erase(found);
    } else {
      receives_.push_back(message);
    }
    ++num_changes_;
  }
  team_->notify(team_->index());
  return message;
}

int Messages::wait(OnItsWay& message, Timeout timeout) {
  try {
    return wait_until_done(message, Deadline(timeout));
  } catch (const GroupError& error) {
    team_->give_up(error.what());
    const std::lock_guard<std::mutex> lock(mutex_);  // nobody moves to or from the caller's memory any more
    throw;
  }
}

int Messages::wait_until_done(OnItsWay& message, const Deadline& deadline) {
  while (true) {
    const uint64_t seen = state();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!message.is_done) {
        team_->check();
        advance();
      }
      if (message.is_done) {
        if (!message.error.empty()) throw MismatchError(message.error);
        return message.source;
      }
    }
    const auto has_changed = [&] { return state() != seen; };
    const auto missing = [&] { return message.peer == kAnyRank ? std::vector<int>{} : std::vector<int>{message.peer}; };
    team_->wait(has_changed, missing, deadline);
  }
}

uint64_t Messages::state() const {
  uint64_t sum = num_changes_.load();
  for (int peer = 0; peer < team_->size(); ++peer) {
    if (peer != team_->index()) {
      sum += ring(peer, team_->index()).num_written.load() + ring(team_->index(), peer).num_read.load();
    }
  }
  return sum;
}

void Messages::advance() {
  try {
    for (int peer = 0; peer < team_->size(); ++peer) {
      if (peer == team_->index()) continue;
      const bool has_sent = advance_sends(peer);
      if (advance_arrivals(peer) || has_sent) team_->notify(peer);
    }
  } catch (const GroupError& error) {
    team_->give_up(error.what());  // so nobody moves the messages that are left
    throw;
  }
  MTIA_ASSERT(is_valid());
}

bool Messages::is_valid() const {
  for (int peer = 0; peer < team_->size(); ++peer) {
    for (const auto& message : sends_[peer]) {
      const bool is_first = message == sends_[peer].front();
      if (message->is_done || message->num_sent > message->input.num_bytes) return false;
      if (!is_first && (message->is_announced || message->num_sent > 0)) return false;
    }
    if (!arrivals_[peer]) continue;
    const Arrival& arrival = *arrivals_[peer];
    if (arrival.num_read > arrival.frame.num_bytes) return false;
    if (arrival.message ? arrival.message->is_done : arrival.kept.size() < arrival.num_read) return false;
  }
  return std::ranges::none_of(receives_, [](const auto& message) { return message->is_done; });
}

bool Messages::advance_sends(int destination) {
  auto& queue = sends_[destination];
  Ring& to = ring(team_->index(), destination);
  bool has_moved = false;
  while (!queue.empty()) {
    OnItsWay& message = *queue.front();
    if (!message.is_announced) {
      const Frame frame{message.input.num_bytes, message.tag};
      if (to.num_free() < sizeof(frame)) break;
      to.write(reinterpret_cast<const std::byte*>(&frame), sizeof(frame));
      message.is_announced = has_moved = true;
    }
    const uint64_t count = to.write(message.input.data + message.num_sent, message.input.num_bytes - message.num_sent);
    message.num_sent += count;
    has_moved |= count > 0;
    if (message.num_sent < message.input.num_bytes) break;
    message.is_done = true;
    ++num_changes_;
    queue.pop_front();
  }
  return has_moved;
}

bool Messages::advance_arrivals(int source) {
  Ring& from = ring(source, team_->index());
  bool has_moved = false;
  while (arrivals_[source] || begin_arrival(source)) {
    Arrival& arrival = *arrivals_[source];
    uint64_t most = arrival.frame.num_bytes - arrival.num_read;
    if (!arrival.message) {
      // As much memory as has come, not as much as the sender has announced.
      most = std::min(most, from.num_ready());
      arrival.kept.resize(arrival.num_read + most);
    }
    std::byte* const target = arrival.message ? arrival.message->output.data : arrival.kept.data();
    const uint64_t count = from.read(target + arrival.num_read, most);
    arrival.num_read += count;
    has_moved = true;
    if (arrival.num_read < arrival.frame.num_bytes) break;
    end_arrival(source);
  }
  return has_moved;
}

// What nobody wants stays in the ring, where it keeps the sender from sending more; but not if somebody waits for
// another message of the same rank, which may come after it.
bool Messages::begin_arrival(int source) {
  Ring& from = ring(source, team_->index());
  Frame frame{};
  if (from.num_ready() < sizeof(frame)) return false;
  const bool is_wanted = std::any_of(receives_.begin(), receives_.end(), [&](const auto& message) {
    return message->peer == kAnyRank || message->peer == source;
  });
  if (!is_wanted) return false;
  from.read(reinterpret_cast<std::byte*>(&frame), sizeof(frame));
  Arrival arrival{frame, nullptr, {}};
  const auto found = std::find_if(receives_.begin(), receives_.end(),
                                  [&](const auto& message) { return message->fits(source, frame.tag); });
  if (found != receives_.end() && (*found)->output.num_bytes == frame.num_bytes) {
    arrival.message = *found;
    arrival.message->source = source;
    receives_.erase(found);
  }
  arrivals_[source] = std::move(arrival);
  return true;
}

void Messages::end_arrival(int source) {
  Arrival arrival = std::move(*arrivals_[source]);
  arrivals_[source].reset();
  ++num_changes_;
  team_->notify(team_->index());
  if (arrival.message) {
    arrival.message->is_done = true;
    return;
  }
  const auto found = std::find_if(receives_.begin(), receives_.end(),
                                  [&](const auto& message) { return message->fits(source, arrival.frame.tag); });
  if (found == receives_.end()) {
    unclaimed_.push_back({source, arrival.frame.tag, std::move(arrival.kept)});
    return;
  }
  deliver(**found, source, arrival.kept);
  receives_.erase(found);
}

void Messages::deliver(OnItsWay& message, int source, const std::vector<std::byte>& data) {
  message.source = source;
  message.is_done = true;
  if (data.size() == message.output.num_bytes) {
    if (!data.empty()) std::memcpy(message.output.data, data.data(), data.size());
    return;
  }
  message.error = "rank " + std::to_string(team_->members()[source]) + " has sent " + std::to_string(data.size()) +
                  " bytes, the receiver expects " + std::to_string(message.output.num_bytes);
}

}  // namespace torch_mtia::collectives
