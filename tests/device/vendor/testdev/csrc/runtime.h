// What a vendor's driver and runtime library are: memory, streams, marks in streams. Knows nothing of torch.
//
// Memory exists twice in the address space: at the address that a program gets, where every access by the processor
// faults, and `host()` of it, which only kernels use. A stream runs work in the calling thread while it can, because
// that is fast, and in a thread of its own once something has to wait or is to run late.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace testdev {

// Properties that can be switched on by name, one by one; `switches.cpp` says what each means.
enum class Switch : int {
  late, no_float64, own_numbers, spins,
  device_only, coalesces, async_wait, ordered, rendezvous, flushes, lazy, late_arrival, futures, silent, unsized,
  count
};
bool is_on(Switch one);
void set_switch(const std::string& name, bool on);
std::vector<std::pair<std::string, bool>> all_switches();

// How much later than issued work runs on a stream that is late, unless something waits for it.
inline constexpr std::chrono::milliseconds kLateness{20};

class Stream;

// A place in a stream: all work that was submitted before it.
struct Mark {
  Stream* stream = nullptr;
  uint64_t number = 0;
  bool reached() const;
  void require() const;  // run late work up to here now
  void wait() const;     // block the calling thread; does not raise
};

class Stream {
 public:
  Stream(int device, int id, bool communicates) : device(device), id(id), communicates_(communicates) {}
  const int device;
  const int id;

  // Run `work` after all work before: here and now if possible, else later.
  void run(std::function<void()> work);
  // Begin work in the calling thread if nothing is before it; then `end` must follow. A late stream needs `now`.
  bool begin(bool now = false);
  void end();
  // Let later work wait until `mark` is reached.
  void after(Mark mark);
  Mark mark();
  // Run `work` later, in the stream's thread.
  void submit(std::function<void()> work);
  // Block until all work has run; raise what it raised.
  void synchronize();
  std::exception_ptr error();
  void forget_error();

 private:
  friend struct Mark;
  struct Task {
    std::function<void()> work;
    std::chrono::steady_clock::time_point due;
  };
  void loop();
  bool late() const;

  const bool communicates_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  uint64_t submitted_ = 0, done_ = 0, required_ = 0;
  bool has_thread_ = false;
  std::exception_ptr error_;
};

int device_count();
int current_device();
void set_device(int device);
Stream& current_stream(int device);
Stream& set_current_stream(Stream& stream);  // returns the one before
Stream& stream_of(int device, int id);
Stream& new_stream(int device);
Stream& communication_stream(int device);  // to be given back by `retire`
void retire(Stream& stream);
Stream& pool_stream(int device);
void synchronize_device(int device);
bool stop();  // drain what is queued before the process ends; whether that was possible

// Memory of the current stream of `device`; filled with bytes of ones. Raises std::bad_alloc.
void* allocate(int device, size_t bytes);
void release(void* pointer);
void used_on(void* pointer, Stream& stream);  // not to be reused before this stream's work of now has ended
char* host(const void* pointer);              // where a kernel finds it
void* device_pointer(const void* host);       // the other way; null if it is no memory of a device
int device_of(const void* pointer);           // -1 if it is none of ours
size_t bytes_in_use(int device);
size_t most_bytes_in_use(int device);
void forget_most_bytes(int device);
size_t memory_size();

void* allocate_pinned(size_t bytes);
void release_pinned(void* pointer);
bool is_pinned(const void* pointer);

bool is_initialized();
bool in_bad_fork();
void initialize();  // raises std::runtime_error in a fork of a process that had initialised

}  // namespace testdev
