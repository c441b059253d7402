#include "Communicator.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "../processor/assertion.h"

namespace torch_mtia::collectives {
namespace {

// Another rank has written the text: its end is not taken for granted.
template <size_t size>
std::string text_of(const char (&text)[size]) {
  return {text, strnlen(text, size)};
}

bool is_same_call(const Announcement& one, const Announcement& other) {
  return std::memcmp(&one.signature, &other.signature, sizeof(Signature)) == 0 &&
         one.reduction.type == other.reduction.type && one.reduction.operation == other.reduction.operation;
}

}  // namespace

void Announcement::set(const Call& call, const std::optional<Reduction>& reduction, std::span<const uint64_t> to,
                       std::span<const uint64_t> from) {
  signature = call.signature;
  is_reduction = reduction.has_value();
  this->reduction = reduction.value_or(Reduction{});
  std::copy(to.begin(), to.end(), bytes);
  std::copy(from.begin(), from.end(), bytes + to.size());
}

std::string call_of(const Announcement& announcement, int rank) {
  const Signature& signature = announcement.signature;
  std::ostringstream text;
  text << "; rank " << rank << ": " << text_of(signature.collective);
  if (announcement.is_reduction) text << " " << name_of(announcement.reduction.operation);
  if (signature.dtype[0] != 0) text << " of " << text_of(signature.dtype);
  if (signature.root >= 0) text << " with root " << signature.root;
  if (signature.number != 0) text << " (call " << signature.number << ")";
  return text.str();
}

void check_same_calls(std::span<const Announcement* const> announcements, std::span<const int> names) {
  for (const Announcement* each : announcements) {
    if (is_same_call(*each, *announcements[0])) continue;
    std::string text = "the ranks have called different collectives";
    for (size_t rank = 0; rank < names.size(); ++rank) text += call_of(*announcements[rank], names[rank]);
    throw MismatchError(text);
  }
}

uint64_t agree_on_sizes(std::span<const Announcement* const> announcements, std::span<const int> names) {
  const size_t size = announcements.size();
  uint64_t most = 0;
  for (size_t giver = 0; giver < size; ++giver) {
    for (size_t taker = 0; taker < size; ++taker) {
      const uint64_t given = announcements[giver]->bytes[taker];
      const uint64_t expected = announcements[taker]->bytes[size + giver];
      if (given != expected) {
        std::ostringstream text;
        text << "the ranks disagree on sizes: rank " << names[giver] << " gives " << given << " bytes to rank "
             << names[taker] << ", which expects " << expected;
        throw MismatchError(text.str());
      }
      if (giver != taker || size == 1) most = std::max(most, given);
    }
  }
  return most;
}

namespace {

// The two buffers of all ranks, in and out, stay in the processor's last cache.
constexpr size_t kBuffer = size_t{1} << 20;
constexpr size_t kAlignment = 64;
// Up to here each rank reads all of what the others give: one round, and more to add.
constexpr size_t kReducedByAll = size_t{1} << 16;

constexpr size_t round_up(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// What each of `num_ranks` has of a buffer.
size_t share_of_buffer(int num_ranks) {
  return kBuffer / num_ranks / kAlignment * kAlignment;
}

// A range of what is given in areas, one in each round.
struct Range {
  Range(size_t area, uint64_t round, size_t num_bytes)
      : first(std::min(area * round, num_bytes)), num_bytes(std::min(area, num_bytes - first)) {}
  size_t first;
  size_t num_bytes;
};

void copy_bytes(std::byte* to, const std::byte* from, size_t num_bytes) {
  if (to != from && num_bytes > 0) std::memmove(to, from, num_bytes);
}

std::vector<uint64_t> sizes_of(const auto& buffers) {
  std::vector<uint64_t> sizes;
  for (const auto& buffer : buffers) sizes.push_back(buffer.num_bytes);
  return sizes;
}

}  // namespace

size_t Communicator::announcement_bytes(int size) {
  return round_up(Announcement::num_bytes(size));
}

size_t Communicator::rounds_bytes(int size) {
  return sizeof(Control) + 2 * announcement_bytes(size) + 4 * kBuffer;
}

size_t Communicator::memory_size(int size) {
  return rounds_bytes(size) + Messages::memory_size(size);
}

Communicator::Communicator(std::shared_ptr<const Team> team)
    : Engine(team->index(), team->size()),
      team_(std::move(team)),
      messages_(team_, rounds_bytes(size())),
      factors_(size()) {}

Communicator::Control& Communicator::control(int rank) const {
  return *reinterpret_cast<Control*>(team_->memory(rank));
}

Announcement& Communicator::announced(int rank, uint64_t round) const {
  return *reinterpret_cast<Announcement*>(team_->memory(rank) + sizeof(Control) +
                                          (round % 2) * announcement_bytes(size()));
}

std::byte* Communicator::buffer(int rank, uint64_t round, Half half) const {
  const size_t index = 2 * (round % 2) + (half == Half::kOut ? 1 : 0);
  return team_->memory(rank) + sizeof(Control) + 2 * announcement_bytes(size()) + index * kBuffer;
}

template <typename Fill, typename Read>
void Communicator::run(const Plan& plan, const Fill& fill, const Read& read) {
  const std::lock_guard<std::mutex> lock(mutex_);
  team_->check();
  const Deadline deadline(plan.call.timeout);
  try {
    uint64_t num_rounds = 1;
    for (uint64_t i = 0; i < num_rounds; ++i) {
      ++round_;
      if (i == 0) announced(rank(), round_).set(plan.call, plan.reduction, plan.to, plan.from);
      fill(i);
      post_and_wait(deadline);
      if (i == 0) {
        num_rounds = agree(plan) + plan.num_further_rounds;
        for (int peer = 0; peer < size(); ++peer) factors_[peer] = announced(peer, round_).reduction.factor;
      }
      read(i);
    }
    MTIA_ASSERT(is_valid());
  } catch (const GroupError& error) {
    team_->give_up(error.what());
    throw;
  }
}

bool Communicator::is_valid() const {
  for (int peer = 0; peer < size(); ++peer) {
    const uint64_t ahead = control(peer).posted.load() - round_;
    if (ahead > (peer == rank() ? 0 : 1)) return false;
  }
  return true;
}

void Communicator::post_and_wait(const Deadline& deadline) {
  control(rank()).posted.store(round_);
  team_->notify_all();
  const auto is_here = [&](int peer) { return control(peer).posted.load() >= round_; };
  const auto all_are_here = [&] {
    for (int peer = 0; peer < size(); ++peer) {
      if (!is_here(peer)) return false;
    }
    return true;
  };
  const auto missing = [&] {
    std::vector<int> peers;
    for (int peer = 0; peer < size(); ++peer) {
      if (!is_here(peer)) peers.push_back(peer);
    }
    return peers;
  };
  team_->wait(all_are_here, missing, deadline);
}

std::string Communicator::awaited() {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock) return "";
  std::string text;
  // Between calls, a rank that is ahead has announced the call of that round, and waits there.
  for (int peer = 0; peer < size(); ++peer) {
    if (control(peer).posted.load() > round_) text += call_of(announced(peer, round_ + 1), team_->members()[peer]);
  }
  return text;
}

uint64_t Communicator::agree(const Plan& plan) const {
  std::vector<const Announcement*> announcements;
  for (int each = 0; each < size(); ++each) announcements.push_back(&announced(each, round_));
  if (!plan.call.may_differ) check_same_calls(announcements, team_->members());
  const uint64_t most = agree_on_sizes(announcements, team_->members());
  return std::max<uint64_t>(1, (most + plan.area - 1) / plan.area);
}

void Communicator::multicast(const Call& call, Input input, std::span<const uint64_t> to,
                             std::span<const Output> outputs) {
  const std::vector<uint64_t> from = sizes_of(outputs);
  size_t most = 0;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) most = std::max(most, to[peer]);
  }
  const auto fill = [&](uint64_t round) {
    const Range range(kBuffer, round, most);
    copy_bytes(buffer(rank(), round_), input.data + range.first, range.num_bytes);
  };
  const auto read = [&](uint64_t round) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      const Range range(kBuffer, round, outputs[peer].num_bytes);
      copy_bytes(outputs[peer].data + range.first, buffer(peer, round_), range.num_bytes);
    }
    if (round == 0) copy_bytes(outputs[rank()].data, input.data, outputs[rank()].num_bytes);
  };
  run({call, std::nullopt, to, from, kBuffer}, fill, read);
}

void Communicator::fill_areas(std::span<const Input> inputs, size_t area, uint64_t round) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Range range(area, round, inputs[peer].num_bytes);
    copy_bytes(buffer(rank(), round_) + peer * area, inputs[peer].data + range.first, range.num_bytes);
  }
}

void Communicator::exchange(const Call& call, std::span<const Input> inputs, std::span<const Output> outputs) {
  const std::vector<uint64_t> to = sizes_of(inputs), from = sizes_of(outputs);
  const size_t area = share_of_buffer(size());
  const auto fill = [&](uint64_t round) { fill_areas(inputs, area, round); };
  const auto read = [&](uint64_t round) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      const Range range(area, round, outputs[peer].num_bytes);
      copy_bytes(outputs[peer].data + range.first, buffer(peer, round_) + rank() * area, range.num_bytes);
    }
    if (round == 0) copy_bytes(outputs[rank()].data, inputs[rank()].data, outputs[rank()].num_bytes);
  };
  run({call, std::nullopt, to, from, area}, fill, read);
}

std::vector<Contribution> Communicator::contributions(const std::byte* own, uint64_t round, size_t offset) const {
  std::vector<Contribution> result;
  for (int peer = 0; peer < size(); ++peer) {
    result.push_back({peer == rank() ? own : buffer(peer, round) + offset, factors_[peer]});
  }
  return result;
}

void Communicator::reduce_scatter(const Call& call, const Reduction& reduction, std::span<const Input> inputs,
                                  std::byte* result) {
  check_defined(reduction.type, reduction.operation, reduction.factor);
  const std::vector<uint64_t> to = sizes_of(inputs), from(size(), inputs[rank()].num_bytes);
  const size_t area = share_of_buffer(size());
  const auto fill = [&](uint64_t round) { fill_areas(inputs, area, round); };
  const auto read = [&](uint64_t round) {
    const Range range(area, round, inputs[rank()].num_bytes);
    collectives::reduce(reduction.type, reduction.operation,
                        contributions(inputs[rank()].data + range.first, round_, rank() * area), result + range.first,
                        range.num_bytes / size_of(reduction.type));
  };
  run({call, reduction, to, from, area}, fill, read);
}

void Communicator::all_reduce(const Call& call, const Reduction& reduction, Input input, std::byte* result) {
  check_defined(reduction.type, reduction.operation, reduction.factor);
  const std::vector<uint64_t> sizes(size(), input.num_bytes);
  if (input.num_bytes <= kReducedByAll) {
    reduce_whole(call, reduction, input, result, sizes, sizes);
  } else {
    reduce_by_parts(call, reduction, input, result, sizes);
  }
}

void Communicator::reduce(const Call& call, const Reduction& reduction, Input input, std::byte* result) {
  check_defined(reduction.type, reduction.operation, reduction.factor);
  std::vector<uint64_t> to(size(), 0), from(size(), 0);
  to[call.signature.root] = input.num_bytes;
  if (rank() == call.signature.root) from.assign(size(), input.num_bytes);
  reduce_whole(call, reduction, input, result, to, from);
}

void Communicator::reduce_whole(const Call& call, const Reduction& reduction, Input input, std::byte* result,
                                std::span<const uint64_t> to, std::span<const uint64_t> from) {
  const auto fill = [&](uint64_t round) {
    const Range range(kBuffer, round, input.num_bytes);
    copy_bytes(buffer(rank(), round_), input.data + range.first, range.num_bytes);
  };
  const auto read = [&](uint64_t round) {
    const Range range(kBuffer, round, from[rank()]);
    collectives::reduce(reduction.type, reduction.operation, contributions(input.data + range.first, round_, 0),
                        result + range.first, range.num_bytes / size_of(reduction.type));
  };
  run({call, reduction, to, from, kBuffer}, fill, read);
}

// Each rank reduces a part of each chunk. In one round the ranks give the parts of a chunk to those who reduce them,
// and the results of the chunk before.
void Communicator::reduce_by_parts(const Call& call, const Reduction& reduction, Input input, std::byte* result,
                                   std::span<const uint64_t> sizes) {
  const size_t largest_chunk = share_of_buffer(size()) * size();
  const uint64_t num_chunks = (input.num_bytes + largest_chunk - 1) / largest_chunk;
  const size_t part = round_up((input.num_bytes + num_chunks * size() - 1) / (num_chunks * size()));
  const auto range_of = [&](uint64_t chunk, int owner) { return Range(part, chunk * size() + owner, input.num_bytes); };

  const auto reduce_own_part = [&](uint64_t chunk) {
    const Range range = range_of(chunk, rank());
    collectives::reduce(reduction.type, reduction.operation,
                        contributions(input.data + range.first, round_ - 1, rank() * part),
                        buffer(rank(), round_, Half::kOut), range.num_bytes / size_of(reduction.type));
  };
  const auto fill = [&](uint64_t round) {
    if (round > 0) reduce_own_part(round - 1);
    if (round == num_chunks) return;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      const Range range = range_of(round, peer);
      copy_bytes(buffer(rank(), round_) + peer * part, input.data + range.first, range.num_bytes);
    }
  };
  const auto read = [&](uint64_t round) {
    for (int peer = 0; peer < size() && round > 0; ++peer) {
      const Range range = range_of(round - 1, peer);
      copy_bytes(result + range.first, buffer(peer, round_, Half::kOut), range.num_bytes);
    }
  };
  run({call, reduction, sizes, sizes, part * size(), /*num_further_rounds=*/1}, fill, read);
}

void Communicator::barrier(const Call& call) {
  const std::vector<uint64_t> none(size(), 0);
  run({call, std::nullopt, none, none, kBuffer}, [](uint64_t) {}, [](uint64_t) {});
}

}  // namespace torch_mtia::collectives
