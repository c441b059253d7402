#include "Team.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <sstream>
#include <system_error>
#include <utility>

namespace torch_mtia::collectives {
namespace {

constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW;

bool has_fixed_size(int file) {
  const int seals = fcntl(file, F_GET_SEALS);
  return seals >= 0 && (seals & kFixedSize) == kFixedSize;
}

// Where a peer is late, its death is noticed after this time.
constexpr timespec kLook{0, 50'000'000};

uint64_t random_number() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device() | 1;  // never the zero of fresh memory
}

int num_processors() {
  cpu_set_t processors;
  return sched_getaffinity(0, sizeof(processors), &processors) == 0 ? CPU_COUNT(&processors) : 1;
}

// The number of the memory's layout and of what the ranks write there: to be raised whenever Team::Control,
// Communicator::Call, Messages::Ring or their use changes.
constexpr int kLayout = 2;

// What a rank tells the others of its memory.
struct Address {
  std::string layout;
  pid_t process;
  int descriptor;
  uint64_t nonce;
  std::string machine;

  std::string text() const {
    std::ostringstream stream;
    stream << layout << ' ' << process << ' ' << descriptor << ' ' << nonce << ' ' << machine;
    return stream.str();
  }
  static Address parse(const std::string& text) {
    std::istringstream stream(text);
    Address address{};
    stream >> address.layout >> address.process >> address.descriptor >> address.nonce;
    stream.get();
    std::getline(stream, address.machine);
    return address;
  }
};

// For each rank the lowest that is on its machine: ranks that reach each other, all of them.
std::vector<int> machines_of(const std::vector<std::string>& reached) {
  const int size = static_cast<int>(reached.size());
  std::vector<int> machines;
  for (int rank = 0; rank < size; ++rank) {
    int machine = 0;
    const auto is_apart = [&](int other) {
      return machines[other] == machine && !(reached[rank][other] == '1' && reached[other][rank] == '1');
    };
    const auto has_one_apart = [&] {
      for (int other = 0; other < rank; ++other) {
        if (is_apart(other)) return true;
      }
      return false;
    };
    while (machine < rank && (machines[machine] != machine || has_one_apart())) ++machine;
    machines.push_back(machine);
  }
  return machines;
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (number_ >= 0) close(number_);
}

SharedMemory::SharedMemory(FileDescriptor file, size_t size) : file_(std::move(file)), size_(size) {
  if (file_.number() < 0) return;
  void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_.number(), 0);
  if (data != MAP_FAILED) data_ = static_cast<std::byte*>(data);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : file_(std::move(other.file_)), data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, size_);
}

SharedMemory SharedMemory::create(size_t size) {
  FileDescriptor file(memfd_create("torch_mtia", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.number() < 0 || ftruncate(file.number(), static_cast<off_t>(size)) != 0 ||
      fcntl(file.number(), F_ADD_SEALS, kFixedSize) != 0) {
    throw std::system_error(errno, std::generic_category(), "shared memory for collectives");
  }
  SharedMemory memory(std::move(file), size);
  if (memory.data() == nullptr) {
    throw std::system_error(errno, std::generic_category(), "shared memory for collectives");
  }
  return memory;
}

SharedMemory SharedMemory::open(pid_t process, int descriptor, size_t size) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status{};
  // Anything may have this number in a process that is not the peer: only what has the size is mapped.
  const bool fits = file.number() >= 0 && fstat(file.number(), &status) == 0 && S_ISREG(status.st_mode) &&
                    status.st_size == static_cast<off_t>(size) && has_fixed_size(file.number());
  return SharedMemory(fits ? std::move(file) : FileDescriptor(-1), size);
}

Team::Team(const Store& store, int rank, int size, size_t memory_size, const std::string& machine)
    : process_id_(getpid()) {
  const size_t num_bytes = sizeof(Control) + memory_size;
  SharedMemory own = SharedMemory::create(num_bytes);
  const std::string layout = std::to_string(kLayout) + "." + std::to_string(num_bytes);
  const Address address{layout, process_id_, own.descriptor(), random_number(), machine};
  reinterpret_cast<Control*>(own.data())->nonce = address.nonce;
  store.set("memory/" + std::to_string(rank), address.text());

  std::vector<std::pair<SharedMemory, FileDescriptor>> peers;
  std::string reached;
  for (int peer = 0; peer < size; ++peer) {
    const Address theirs = Address::parse(store.get("memory/" + std::to_string(peer)));
    if (theirs.layout != layout) {
      throw GroupError("rank " + std::to_string(peer) + " runs another build of torch_mtia than rank " +
                       std::to_string(rank) + " (layouts of the shared memory: " + theirs.layout + " and " + layout +
                       "): install the same one for all ranks");
    }
    // Before the memory is looked at: with the right nonce in it, this is the process.
    FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, theirs.process, 0)));
    SharedMemory memory = SharedMemory::open(theirs.process, theirs.descriptor, num_bytes);
    const bool is_here = theirs.machine == machine && process.number() >= 0 && memory.data() != nullptr &&
                         reinterpret_cast<const Control*>(memory.data())->nonce == theirs.nonce;
    reached += is_here ? '1' : '0';
    peers.emplace_back(std::move(memory), std::move(process));
  }
  reached[rank] = '1';
  store.set("reached/" + std::to_string(rank), reached);
  std::vector<std::string> all_reached;
  for (int peer = 0; peer < size; ++peer) all_reached.push_back(store.get("reached/" + std::to_string(peer)));

  machines_ = machines_of(all_reached);
  for (int peer = 0; peer < size; ++peer) {
    if (machines_[peer] != machines_[rank]) continue;
    if (peer == rank) index_ = static_cast<int>(members_.size());
    members_.push_back(peer);
    memories_.push_back(peer == rank ? std::move(own) : std::move(peers[peer].first));
    processes_.push_back(std::move(peers[peer].second));
  }
  constexpr int kSpins = 2000;
  if (this->size() <= num_processors()) num_spins_ = kSpins;
}

std::byte* Team::memory(int member) const {
  return memories_[member].data() + sizeof(Control);
}

void Team::pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield");
#endif
}

void Team::Sleeper::sleep(uint32_t num_seen) const {
  syscall(SYS_futex, &control_.num_notifications, FUTEX_WAIT, num_seen, &kLook, nullptr, 0);
}

void Team::notify(int member) const {
  Control& peer = control(member);
  if (peer.num_sleepers.load() == 0) return;
  peer.num_notifications.fetch_add(1);
  syscall(SYS_futex, &peer.num_notifications, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void Team::notify_all() const {
  for (int member = 0; member < size(); ++member) {
    if (member != index_) notify(member);
  }
}

void Team::give_up(const std::string& reason) const noexcept {
  if (getpid() != process_id_) return;  // a forked child, whose parent goes on
  Control& own = control(index_);
  uint32_t expected = 0;
  if (!own.has_given_up.compare_exchange_strong(expected, 1)) return;
  std::strncpy(own.reason, reason.c_str(), sizeof(own.reason) - 1);
  own.has_given_up.store(2);
  notify_all();
  notify(index_);  // other threads of this rank
}

void Team::check() const {
  if (getpid() != process_id_) {
    throw GroupError("the group belongs to the process that was forked: start one of its own in this process");
  }
  if (control(index_).has_given_up.load() == 2) throw GroupError(reason_of(index_));
}

bool Team::is_dead(int member) const {
  if (member == index_) return false;
  pollfd process{processes_[member].number(), POLLIN, 0};
  return poll(&process, 1, 0) == 1;
}

// Others may write there: the end of the text is not taken for granted.
std::string Team::reason_of(int member) const {
  const Control& from = control(member);
  return {from.reason, strnlen(from.reason, sizeof(from.reason))};
}

std::string Team::name_of(int member) const {
  return "rank " + std::to_string(members_[member]);
}

std::string Team::why_lost(const std::vector<int>& missing, const Deadline& deadline) const {
  for (const int member : missing) {
    if (control(member).has_given_up.load() == 2) {
      return name_of(member) + " has given up: " + reason_of(member);
    }
    if (is_dead(member)) return "the process of " + name_of(member) + " has ended";
  }
  if (!deadline.is_over()) return "";
  std::string names;
  for (const int member : missing) names += (names.empty() ? "" : ", ") + name_of(member);
  return (names.empty() ? "no rank" : "not all ranks") + std::string(" came within the timeout of ") +
         std::to_string(deadline.timeout.count()) + " ms; missing: " + (names.empty() ? "any" : names);
}

}  // namespace torch_mtia::collectives
