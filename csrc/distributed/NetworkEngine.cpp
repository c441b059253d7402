#include "NetworkEngine.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "../collectives/Communicator.h"

namespace torch_mtia {
namespace {

using collectives::ElementType;
using collectives::Operation;
using collectives::size_of;
using Bytes = std::unique_ptr<std::byte[]>;

// Up to here each machine reduces all of what the others have: one call of gloo instead of two.
constexpr size_t kReducedByAll = size_t{1} << 16;
constexpr size_t kAlignment = 16;  // of parts: a multiple of all elements' sizes

Bytes bytes(size_t size) {
  return std::make_unique_for_overwrite<std::byte[]>(size);
}

at::Tensor tensor_of(const std::byte* data, size_t num_bytes) {
  return at::from_blob(const_cast<std::byte*>(data), {static_cast<int64_t>(num_bytes)}, at::kByte);
}

template <typename Number = int64_t>
std::vector<Number> sizes_of(const auto& buffers) {
  std::vector<Number> sizes;
  for (const auto& buffer : buffers) sizes.push_back(static_cast<Number>(buffer.num_bytes));
  return sizes;
}

size_t sum_of(const std::vector<int64_t>& sizes) {
  return static_cast<size_t>(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
}

void copy_bytes(std::byte* to, const std::byte* from, size_t num_bytes) {
  if (num_bytes > 0 && to != from) std::memmove(to, from, num_bytes);
}

// The parts, one after the other, and back.
Bytes joined(std::span<const collectives::Input> parts) {
  Bytes whole = bytes(sum_of(sizes_of(parts)));
  std::byte* end = whole.get();
  for (const auto& [data, num_bytes] : parts) {
    copy_bytes(end, data, num_bytes);
    end += num_bytes;
  }
  return whole;
}

void split(const std::byte* whole, std::span<const collectives::Output> parts) {
  for (const auto& [data, num_bytes] : parts) {
    copy_bytes(data, whole, num_bytes);
    whole += num_bytes;
  }
}

// From each rank of gloo's group its `given`, which have one size, one after the other.
void gather_rows(c10d::Backend& gloo, const std::byte* given, size_t num_bytes, std::byte* rows,
                 collectives::Timeout timeout) {
  if (num_bytes == 0) return;
  at::Tensor input = tensor_of(given, num_bytes), output = tensor_of(rows, num_bytes * gloo.getSize());
  gloo._allgather_base(output, input, {.timeout = timeout})->wait();
}

// The sizes by value: gloo moves from them.
void exchange_parts(c10d::Backend& gloo, const std::byte* given, std::vector<int64_t> given_sizes, std::byte* taken,
                    std::vector<int64_t> taken_sizes, collectives::Timeout timeout) {
  at::Tensor input = tensor_of(given, sum_of(given_sizes)), output = tensor_of(taken, sum_of(taken_sizes));
  gloo.alltoall_base(output, input, taken_sizes, given_sizes, {.timeout = timeout})->wait();
}

collectives::Call rooted(collectives::Call call, int root) {
  call.signature.root = root;
  return call;
}

class NetworkMessage final : public collectives::Message {
 public:
  NetworkMessage(c10::intrusive_ptr<c10d::Work> work, int peer) : work_(std::move(work)), peer_(peer) {}
  int wait(collectives::Timeout timeout) override {
    work_->wait(timeout);
    return peer_ == collectives::kAnyRank ? work_->sourceRank() : peer_;
  }

 private:
  const c10::intrusive_ptr<c10d::Work> work_;
  const int peer_;
};

collectives::Store store_of(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto prefixed = c10::make_intrusive<c10d::PrefixStore>("engine", store);
  return {[prefixed](const std::string& key, const std::string& value) {
            prefixed->set(key, std::vector<uint8_t>(value.begin(), value.end()));
          },
          [prefixed](const std::string& key) {
            const std::vector<uint8_t> value = prefixed->get(key);
            return std::string(value.begin(), value.end());
          }};
}

class NetworkEngine final : public collectives::Engine {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using Call = collectives::Call;
  using Input = collectives::Input;
  using Output = collectives::Output;
  using Reduction = collectives::Reduction;

  // `machines` has for each rank the first one that is on its machine. `between` is gloo among those, in their order,
  // and is none on all other ranks; `all` is gloo among all ranks.
  NetworkEngine(int rank, const std::vector<int>& machines, std::shared_ptr<Engine> within, BackendPtr between,
                BackendPtr all)
      : Engine(rank, static_cast<int>(machines.size())),
        within_(std::move(within)),
        between_(std::move(between)),
        all_(std::move(all)) {
    std::map<int, int> numbers;  // of machines, by their first ranks
    for (const int first : machines) {
      const auto [number, is_new] = numbers.emplace(first, static_cast<int>(numbers.size()));
      if (is_new) members_of_.emplace_back();
      members_of_[number->second].push_back(static_cast<int>(machine_of_.size()));
      machine_of_.push_back(number->second);
    }
    machine_ = machine_of_[rank];
    index_ = within_->rank();
  }

  void all_reduce(const Call& call, const Reduction& reduction, Input input, std::byte* result) override {
    const std::vector<uint64_t> num_bytes(size(), input.num_bytes);
    agree(call, reduction, num_bytes, num_bytes);
    const size_t count = input.num_bytes / size_of(reduction.type);
    const Reduction between{collectives::widened(reduction.type), reduction.operation};
    const Bytes sum = sum_within(call, reduction, input);
    if (is_first()) {
      reduce_between(call, between, {sum.get(), count * size_of(between.type)});
      collectives::narrow(reduction.type, sum.get(), result, count);
    }
    broadcast_within(call, 0, {result, input.num_bytes});
  }

  void reduce(const Call& call, const Reduction& reduction, Input input, std::byte* result) override {
    const bool is_root = rank() == call.signature.root;
    const Bytes unused = bytes(is_root ? 0 : input.num_bytes);
    all_reduce(call, reduction, input, is_root ? result : unused.get());
  }

  // The first rank of a machine gets from each other one the parts of its machine's ranks, reduced there.
  void reduce_scatter(const Call& call, const Reduction& reduction, std::span<const Input> inputs,
                      std::byte* result) override {
    const std::vector<uint64_t> num_bytes(size(), inputs[rank()].num_bytes);
    agree(call, reduction, sizes_of<uint64_t>(inputs), num_bytes);
    const Reduction between{collectives::widened(reduction.type), reduction.operation};
    std::vector<Input> given;
    std::vector<int64_t> sizes;  // of the machines' parts, as they are reduced
    for (const auto& ranks : members_of_) {
      sizes.push_back(0);
      for (const int each : ranks) {
        given.push_back(inputs[each]);
        sizes.back() += static_cast<int64_t>(inputs[each].num_bytes / size_of(reduction.type) * size_of(between.type));
      }
    }
    const Bytes whole = joined(given);
    const Bytes sum = sum_within(call, reduction, {whole.get(), sum_of(sizes_of(given))});
    std::vector<Input> parts(members().size());
    std::vector<Output> outputs(members().size());
    outputs[0] = {result, inputs[rank()].num_bytes};
    if (is_first()) {
      const auto num_bytes = static_cast<size_t>(sizes[machine_]);
      const Bytes own = bytes(num_bytes);
      reduce_part_between(call, between, sum.get(), sizes, own.get());
      // To where the parts were given: the sums have taken them up.
      collectives::narrow(reduction.type, own.get(), whole.get(), num_bytes / size_of(between.type));
      for (size_t i = 0, start = 0; i < parts.size(); start += parts[i++].num_bytes) {
        parts[i] = {whole.get() + start, inputs[members()[i]].num_bytes};
      }
    }
    within_->exchange(rooted(call, 0), parts, outputs);
  }

  void multicast(const Call& call, Input input, std::span<const uint64_t> to,
                 std::span<const Output> outputs) override {
    agree(call, std::nullopt, to, sizes_of<uint64_t>(outputs));
    const int root = call.signature.root;
    if (root < 0) return gather_all(call, input, outputs);
    // From the root to all, or from all to the root. What another rank has to do with it says which.
    const bool is_broadcast = rank() == root ? to[root == 0 ? 1 : 0] > 0 : outputs[root].num_bytes > 0;
    if (is_broadcast) {
      if (rank() == root) copy_bytes(outputs[root].data, input.data, input.num_bytes);
      return broadcast(call, outputs[root]);
    }
    std::vector<Input> inputs;
    for (const uint64_t num_bytes : to) inputs.push_back({input.data, num_bytes});
    if (sum_of(sizes_of(inputs)) + sum_of(sizes_of(outputs)) > 0) exchange_all(call, inputs, outputs);
  }

  void exchange(const Call& call, std::span<const Input> inputs, std::span<const Output> outputs) override {
    agree(call, std::nullopt, sizes_of<uint64_t>(inputs), sizes_of<uint64_t>(outputs));
    exchange_all(call, inputs, outputs);
  }

  void barrier(const Call& call) override {
    const std::vector<uint64_t> none(size(), 0);
    agree(call, std::nullopt, none, none);
  }

  std::shared_ptr<collectives::Message> send(Input input, int destination, int64_t tag) override {
    std::vector<at::Tensor> list{tensor_of(input.data, input.num_bytes)};
    return std::make_shared<NetworkMessage>(all_->send(list, destination, static_cast<int>(tag)), destination);
  }

  std::shared_ptr<collectives::Message> receive(Output output, int source, int64_t tag) override {
    std::vector<at::Tensor> list{tensor_of(output.data, output.num_bytes)};
    const auto number = static_cast<int>(tag);
    auto work = source == collectives::kAnyRank ? all_->recvAnysource(list, number) : all_->recv(list, source, number);
    return std::make_shared<NetworkMessage>(std::move(work), source);
  }

  std::string awaited() override { return within_->awaited(); }

  void abort(const std::string& reason) noexcept override {
    within_->abort(reason);
    for (const BackendPtr& gloo : {between_, all_}) {
      try {
        if (gloo) gloo->abort();
      } catch (const std::exception&) {
        // Ranks of this machine see the abort in shared memory; the others notice that a connection is closed.
      }
    }
  }

 private:
  bool is_first() const { return between_ != nullptr; }
  const std::vector<int>& members() const { return members_of_[machine_]; }

  // Each rank has all announcements before data move: gloo ends a process that is sent more than it expects. Raises
  // MismatchError, on all ranks.
  void agree(const Call& call, const std::optional<Reduction>& reduction, std::span<const uint64_t> to,
             std::span<const uint64_t> from) {
    using collectives::Announcement;
    if (reduction) collectives::check_defined(reduction->type, reduction->operation, reduction->factor);
    const size_t num_bytes = Announcement::num_bytes(size());
    const Bytes own = std::make_unique<std::byte[]>(num_bytes), all = bytes(num_bytes * size());
    reinterpret_cast<Announcement*>(own.get())->set(call, reduction, to, from);
    std::vector<Output> outputs;
    std::vector<const Announcement*> announcements;
    std::vector<int> ranks;
    for (int each = 0; each < size(); ++each) {
      outputs.push_back({all.get() + each * num_bytes, num_bytes});
      announcements.push_back(reinterpret_cast<const Announcement*>(outputs.back().data));
      ranks.push_back(each);
    }
    gather_all({call.signature, call.timeout, /*may_differ=*/true}, {own.get(), num_bytes}, outputs);
    check_same_calls(announcements, ranks);
    agree_on_sizes(announcements, ranks);
  }

  // From the member with this index to all of the machine.
  void broadcast_within(const Call& call, int root, Output memory) {
    const std::vector<uint64_t> to(members().size(), index_ == root ? memory.num_bytes : 0);
    std::vector<Output> outputs(members().size());
    outputs[root] = memory;
    within_->multicast(rooted(call, root), {memory.data, memory.num_bytes}, to, outputs);
  }

  // The sum of the machine's ranks, for its first one, of elements that are not rounded yet.
  Bytes sum_within(const Call& call, Reduction reduction, Input input) {
    const ElementType type = std::exchange(reduction.type, collectives::widened(reduction.type));
    const size_t count = input.num_bytes / size_of(type), num_bytes = count * size_of(reduction.type);
    const Bytes wide = bytes(reduction.type == type ? 0 : num_bytes);
    if (reduction.type != type) {
      collectives::widen(type, input.data, wide.get(), count);
      input = {wide.get(), num_bytes};
    }
    // It is divided when all machines' are added.
    if (reduction.operation == Operation::kAverage) reduction.operation = Operation::kSum;
    Bytes sum = bytes(is_first() ? num_bytes : 0);
    within_->reduce(rooted(call, 0), reduction, input, sum.get());
    return sum;
  }

  // Of the machines' sums: all of it, and the part of this machine, of `sizes` in bytes.
  void reduce_between(const Call& call, const Reduction& reduction, Output sum) {
    const size_t num_machines = members_of_.size();
    if (sum.num_bytes <= kReducedByAll) {
      const Bytes rows = bytes(sum.num_bytes * num_machines);
      gather_rows(*between_, sum.data, sum.num_bytes, rows.get(), call.timeout);
      return reduce_rows(reduction, rows.get(), sum);
    }
    const size_t part = (sum.num_bytes / num_machines / kAlignment + 1) * kAlignment;
    std::vector<int64_t> sizes;
    for (size_t machine = 0; machine < num_machines; ++machine) {
      sizes.push_back(static_cast<int64_t>(std::min(part, sum.num_bytes - std::min(sum.num_bytes, machine * part))));
    }
    const Bytes own = bytes(part), all = bytes(part * num_machines);
    reduce_part_between(call, reduction, sum.data, sizes, own.get());
    gather_rows(*between_, own.get(), part, all.get(), call.timeout);
    copy_bytes(sum.data, all.get(), sum.num_bytes);
  }

  void reduce_part_between(const Call& call, const Reduction& reduction, const std::byte* sum,
                           const std::vector<int64_t>& sizes, std::byte* result) {
    if (sum_of(sizes) == 0) return;
    const auto own = static_cast<size_t>(sizes[machine_]);
    const Bytes rows = bytes(own * sizes.size());
    exchange_parts(*between_, sum, sizes, rows.get(), std::vector<int64_t>(sizes.size(), sizes[machine_]),
                   call.timeout);
    reduce_rows(reduction, rows.get(), {result, own});
  }

  // one of each machine
  void reduce_rows(const Reduction& reduction, const std::byte* rows, Output result) const {
    std::vector<collectives::Contribution> contributions;
    for (size_t machine = 0; machine < members_of_.size(); ++machine) {
      contributions.push_back({rows + machine * result.num_bytes});
    }
    collectives::reduce(reduction.type, reduction.operation, contributions, result.data,
                        result.num_bytes / size_of(reduction.type), size());
  }

  void exchange_all(const Call& call, std::span<const Input> inputs, std::span<const Output> outputs) {
    const std::vector<int64_t> taken_sizes = sizes_of(outputs);
    const Bytes given = joined(inputs), taken = bytes(sum_of(taken_sizes));
    exchange_parts(*all_, given.get(), sizes_of(inputs), taken.get(), taken_sizes, call.timeout);
    split(taken.get(), outputs);
  }

  void broadcast(const Call& call, Output memory) {
    const int root = call.signature.root, home = machine_of_[root];
    const std::vector<int>& at_home = members_of_[home];
    const auto root_index = static_cast<int>(std::find(at_home.begin(), at_home.end(), root) - at_home.begin());
    if (machine_ == home) broadcast_within(call, root_index, memory);
    if (is_first()) {
      std::vector<at::Tensor> list{tensor_of(memory.data, memory.num_bytes)};
      between_->broadcast(list, {.rootRank = home, .timeout = call.timeout})->wait();
    }
    if (machine_ != home) broadcast_within(call, 0, memory);
  }

  void gather_all(const Call& call, Input input, std::span<const Output> outputs) {
    // What a machine's ranks give is a row. Rows are as long as the longest.
    std::vector<std::vector<Output>> of_machines;
    size_t row = 0;
    for (const auto& ranks : members_of_) {
      auto& of_machine = of_machines.emplace_back();
      for (const int each : ranks) of_machine.push_back(outputs[each]);
      row = std::max(row, sum_of(sizes_of(of_machine)));
    }
    const Bytes own = bytes(is_first() ? row : 0), rows = bytes(row * of_machines.size());
    std::vector<uint64_t> to(members().size(), 0);
    to[0] = input.num_bytes;
    std::vector<Output> places(members().size());
    for (size_t i = 0, start = 0; is_first() && i < places.size(); start += places[i++].num_bytes) {
      places[i] = {own.get() + start, outputs[members()[i]].num_bytes};
    }
    within_->multicast(call, input, to, places);
    if (is_first()) gather_rows(*between_, own.get(), row, rows.get(), call.timeout);
    broadcast_within(call, 0, {rows.get(), row * of_machines.size()});
    for (size_t machine = 0; machine < of_machines.size(); ++machine) {
      split(rows.get() + machine * row, of_machines[machine]);
    }
  }

  std::vector<std::vector<int>> members_of_;  // the ranks of each machine, ascending
  std::vector<int> machine_of_;               // for each rank
  int machine_;
  int index_;  // among the members
  const std::shared_ptr<Engine> within_;
  const BackendPtr between_;
  const BackendPtr all_;
};

}  // namespace

EngineMaker engine_maker(GlooMaker make_gloo, const std::string& machine) {
  return [make_gloo = std::move(make_gloo), machine](
             const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
             std::chrono::milliseconds timeout) -> std::shared_ptr<collectives::Engine> {
    auto team = std::make_shared<collectives::Team>(store_of(store), rank, size,
                                                    collectives::Communicator::memory_size(size), machine);
    const std::vector<int> machines = team->machines();
    auto within = std::make_shared<collectives::Communicator>(std::move(team));
    if (within->size() == size) return within;
    std::vector<int> firsts;  // of the machines
    for (int each = 0; each < size; ++each) {
      if (machines[each] == each) firsts.push_back(each);
    }
    auto all = make_gloo(c10::make_intrusive<c10d::PrefixStore>("all", store), rank, size, timeout);
    c10::intrusive_ptr<c10d::Backend> between;
    if (static_cast<int>(firsts.size()) == size) {
      between = all;
    } else if (machines[rank] == rank) {
      const auto number = static_cast<int>(std::find(firsts.begin(), firsts.end(), rank) - firsts.begin());
      between = make_gloo(c10::make_intrusive<c10d::PrefixStore>("between", store), number,
                          static_cast<int>(firsts.size()), timeout);
    }
    return std::make_shared<NetworkEngine>(rank, machines, std::move(within), std::move(between), std::move(all));
  };
}

}  // namespace torch_mtia
