// The processes of a group that are on one machine: the memory they share, and how they wait for each other.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "Engine.h"

namespace torch_mtia::collectives {

class FileDescriptor {
 public:
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  ~FileDescriptor();

  int number() const { return number_; }

 private:
  int number_;
};

// Memory of one process that others map. It has no name anywhere: it is gone with the last process that maps it,
// however that ends.
class SharedMemory {
 public:
  // Zeros. Nobody can change the file's size, so accesses to the mapping never fail. Raises std::system_error.
  static SharedMemory create(size_t size);
  // What another process has created: `descriptor` is its number there. Empty where this process may not, where that
  // process is of another machine or container and is not there, and for a file whose size can change.
  static SharedMemory open(pid_t process, int descriptor, size_t size);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  std::byte* data() const { return data_; }
  int descriptor() const { return file_.number(); }

 private:
  SharedMemory(FileDescriptor file, size_t size);

  FileDescriptor file_;
  std::byte* data_ = nullptr;
  size_t size_;
};

// Where the ranks of a group find each other. `get` waits until somebody has set the key.
struct Store {
  std::function<void(const std::string& key, const std::string& value)> set;
  std::function<std::string(const std::string& key)> get;
};

// Note [How ranks wait]
// Each rank has a futex in its memory. Who changes something that a peer may wait for notifies the peer, which costs a
// system call only if the peer sleeps: a rank says that it will before it looks for the last time, and who notifies it
// looks for that after the change. Before it sleeps, a rank spins for as long as a peer on another core takes to come;
// where ranks share cores nobody spins, because the peer needs the core.
class Team {
 public:
  // All ranks of a group call this. `memory_size` bytes of each rank's memory are for the caller, the same on all
  // ranks. Ranks whose `machine` differs are taken to be on different ones. Raises GroupError on all ranks if one of
  // them has another layout of the memory: another build of this library.
  Team(const Store& store, int rank, int size, size_t memory_size, const std::string& machine);

  // The ranks of the group that are on this rank's machine, ascending.
  const std::vector<int>& members() const { return members_; }
  // Of each rank of the group, the lowest rank that is on its machine: the same on all ranks.
  const std::vector<int>& machines() const { return machines_; }

  // Below, a member is its index in members(). This one's:
  int index() const { return index_; }
  int size() const { return static_cast<int>(members_.size()); }
  // Starts with zeros.
  std::byte* memory(int member) const;

  // Returns when ready() is true. missing() gives the members that are waited for. Raises GroupError if one of them is
  // dead or has given up, or at the deadline.
  template <typename Ready, typename Missing>
  void wait(const Ready& ready, const Missing& missing, const Deadline& deadline) const {
    for (int i = 0; i < num_spins_; ++i) {
      if (ready()) return;
      pause();
    }
    const Sleeper sleeper(control(index_));
    while (true) {
      const uint32_t num_seen = sleeper.num_seen();
      if (ready()) return;
      check();
      const std::vector<int> members = missing();
      // Who has come and is dead by now was in time.
      if (const std::string reason = why_lost(members, deadline); !reason.empty() && !ready()) throw GroupError(reason);
      sleeper.sleep(num_seen);
    }
  }

  // After a change that `member` may wait for: of an atomic, in the order that all agree on.
  void notify(int member) const;
  void notify_all() const;

  // Has all that wait for this member raise, now and later.
  void give_up(const std::string& reason) const noexcept;
  // Raises if this member has given up, and in a process that has been forked.
  void check() const;

 private:
  // What a rank's memory starts with.
  struct Control {
    uint64_t nonce;
    alignas(64) std::atomic<uint32_t> num_notifications;
    std::atomic<uint32_t> num_sleepers;
    alignas(64) std::atomic<uint32_t> has_given_up;
    char reason[512];
  };

  class Sleeper {
   public:
    explicit Sleeper(Control& control) : control_(control) { control_.num_sleepers.fetch_add(1); }
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;
    ~Sleeper() { control_.num_sleepers.fetch_sub(1); }
    uint32_t num_seen() const { return control_.num_notifications.load(); }
    // Until the member is notified, or for a while.
    void sleep(uint32_t num_seen) const;

   private:
    Control& control_;
  };

  static void pause();
  Control& control(int member) const { return *reinterpret_cast<Control*>(memories_[member].data()); }
  bool is_dead(int member) const;
  // Empty if all may still come.
  std::string why_lost(const std::vector<int>& missing, const Deadline& deadline) const;
  std::string reason_of(int member) const;
  std::string name_of(int member) const;

  const pid_t process_id_;
  int index_ = 0;
  int num_spins_ = 0;
  std::vector<int> machines_;
  // Of the members:
  std::vector<int> members_;
  std::vector<SharedMemory> memories_;
  std::vector<FileDescriptor> processes_;
};

}  // namespace torch_mtia::collectives
