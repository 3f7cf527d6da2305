// Bytes between the ranks of one communicator, over TCP on the loopback interface.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace testdev {

// What one rank sends to or receives from another.
struct Piece {
  int peer;
  bool sends;
  char* data;
  size_t bytes;
};

// Where ranks find each other's addresses.
struct Meeting {
  std::function<void(const std::string&, const std::string&)> tell;
  std::function<std::string(const std::string&)> ask;  // blocks
};

class Transport {
 public:
  Transport(int rank, int size);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // Connect to all others; blocks until they do the same.
  void connect(const Meeting& meeting, std::chrono::milliseconds limit);
  // Exchange all pieces at once; those of one direction between two ranks keep their order.
  void exchange(const std::vector<Piece>& pieces, std::chrono::milliseconds limit);
  void abort();
  bool aborted() const { return aborted_; }

 private:
  struct Link;
  void wait_for(int fd, short events, std::chrono::steady_clock::time_point deadline);
  void read_from(Link& link);
  void write_to(Link& link);
  void announce(Link& link, uint32_t kind, uint64_t bytes);
  void begin_sends(Link& link);
  void deliver_early(Link& link);

  const int rank_;
  std::vector<std::unique_ptr<Link>> links_;
  int listener_ = -1;
  int wake_[2] = {-1, -1};
  std::atomic<bool> aborted_{false};
};

}  // namespace testdev
