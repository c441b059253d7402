// An item that its launching thread waits for. No PyTorch.
//
// Note [Items that are waited for]
// Such an item may refer to the stack of the thread that waits for it, and gives its error to that thread. But the wait
// can end before the item does: the driver refuses to wait, because another thread has begun to capture the stream or
// the device is lost, or the item became a node of a graph that is launched much later. So the item holds a ticket
// instead of a pointer. When it runs, it asks with the ticket whether the thread still waits. A thread that leaves
// takes the ticket back, and first waits for an item that is running.
#pragma once

#include <cstdint>
#include <exception>

namespace torch_mtia::core {

class Stream;

// On the stack of the waiting thread.
class Awaited {
 public:
  Awaited();
  // Blocks while the item is running. An item that starts later finds no waiting thread.
  ~Awaited();
  Awaited(const Awaited&) = delete;
  Awaited& operator=(const Awaited&) = delete;

  // What the item holds; never 0.
  uint64_t ticket() const noexcept { return ticket_; }

  // Blocks until the item, which calls Run::finish and cannot be captured, is done, and raises what it threw. Throws
  // runtime::DriverError when the driver cannot wait: if the item has not run by then, it never will.
  void wait(Stream& stream);
  // Raises what the item has thrown so far.
  void raise_error();

  // For an item that does no more than to give an error: false if the thread has left.
  static bool give(uint64_t ticket, const std::exception_ptr& error) noexcept;

  // For the item: while one of these is not empty, the waiting thread stays.
  class Run {
   public:
    explicit Run(uint64_t ticket) noexcept;
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    explicit operator bool() const noexcept { return awaited_ != nullptr; }  // false: the thread has left
    void fail(std::exception_ptr error) noexcept;
    void finish() noexcept;

   private:
    Awaited* const awaited_;
  };

 private:
  bool is_done();
  bool leave();

  uint64_t ticket_ = 0;
  int users_ = 0;  // of class Run
  bool is_done_ = false;
  std::exception_ptr error_;
  Awaited* previous_ = nullptr;  // in the list of all
  Awaited* next_ = nullptr;
};

}  // namespace torch_mtia::core
