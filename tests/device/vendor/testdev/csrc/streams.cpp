#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <thread>

#include "runtime.h"

namespace testdev {
namespace {

constexpr int kPool = 4;
std::atomic<bool> initialized{false}, bad_fork{false};

struct Device {
  std::mutex mutex;
  std::deque<Stream> streams;  // never destroyed, never moved
  std::vector<Stream*> retired;
  int next_of_pool = 0;
};

std::vector<std::unique_ptr<Device>>& devices() {
  static auto* made = [] {
    auto* fresh = new std::vector<std::unique_ptr<Device>>();
    for (int d = 0; d < device_count(); ++d) {
      auto device = std::make_unique<Device>();
      for (int id = 0; id <= kPool; ++id) device->streams.emplace_back(d, id, false);
      fresh->push_back(std::move(device));
    }
    return fresh;
  }();
  return *made;
}

thread_local int device_now = 0;
thread_local std::vector<Stream*> streams_now;

std::vector<Stream*>& own_streams() {
  if (streams_now.empty()) {
    for (int d = 0; d < device_count(); ++d) streams_now.push_back(&devices()[d]->streams[0]);
  }
  return streams_now;
}

}  // namespace

int device_count() {
  static const int count = [] {
    const char* text = std::getenv("TESTDEV_COUNT");
    return text == nullptr ? 8 : std::atoi(text);
  }();
  return count;
}

bool is_initialized() { return initialized; }
bool in_bad_fork() { return bad_fork; }

void initialize() {
  if (initialized) return;
  if (bad_fork) {
    throw std::runtime_error("testdev was used before this process was forked, and cannot be used in the fork");
  }
  if (!initialized.exchange(true)) {
    pthread_atfork(nullptr, nullptr, [] {
      initialized = false;
      bad_fork = true;
    });
  }
}

int current_device() { return device_now; }

void set_device(int device) {
  if (device < 0 || device >= device_count()) {
    throw std::runtime_error("testdev has no device " + std::to_string(device));
  }
  device_now = device;
}

Stream& current_stream(int device) { return *own_streams().at(device); }

Stream& set_current_stream(Stream& stream) {
  Stream*& own = own_streams().at(stream.device);
  Stream& before = *own;
  own = &stream;
  return before;
}

Stream& stream_of(int device, int id) {
  Device& owner = *devices().at(device);
  std::lock_guard<std::mutex> lock(owner.mutex);
  return owner.streams.at(id);
}

Stream& new_stream(int device) {
  Device& owner = *devices().at(device);
  std::lock_guard<std::mutex> lock(owner.mutex);
  return owner.streams.emplace_back(device, static_cast<int>(owner.streams.size()), false);
}

Stream& communication_stream(int device) {
  Device& owner = *devices().at(device);
  std::lock_guard<std::mutex> lock(owner.mutex);
  if (owner.retired.empty()) {
    return owner.streams.emplace_back(device, static_cast<int>(owner.streams.size()), true);
  }
  Stream* found = owner.retired.back();
  owner.retired.pop_back();
  found->forget_error();
  return *found;
}

void retire(Stream& stream) {
  Device& owner = *devices().at(stream.device);
  std::lock_guard<std::mutex> lock(owner.mutex);
  owner.retired.push_back(&stream);
}

Stream& pool_stream(int device) {
  Device& owner = *devices().at(device);
  std::lock_guard<std::mutex> lock(owner.mutex);
  owner.next_of_pool = owner.next_of_pool % kPool + 1;
  return owner.streams[owner.next_of_pool];
}

void synchronize_device(int device) {
  Device& owner = *devices().at(device);
  std::vector<Stream*> all;
  {
    std::lock_guard<std::mutex> lock(owner.mutex);
    for (Stream& stream : owner.streams) all.push_back(&stream);
  }
  for (Stream* stream : all) stream->synchronize();
}

bool stop() {
  if (!initialized) return true;
  for (int d = 0; d < device_count(); ++d) {
    Device& owner = *devices().at(d);
    std::lock_guard<std::mutex> lock(owner.mutex);
    for (Stream& stream : owner.streams) {
      const Mark mark = stream.mark();
      mark.require();
      for (int i = 0; i < 200 && !mark.reached(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (!mark.reached()) return false;
    }
  }
  return true;
}

// A stream.

bool Stream::late() const { return is_on(communicates_ ? Switch::late_arrival : Switch::late); }

void Stream::run(std::function<void()> work) {
  if (!begin()) return submit(std::move(work));
  try {
    work();
  } catch (...) {
    end();
    throw;
  }
  end();
}

bool Stream::begin(bool now) {
  initialize();
  std::lock_guard<std::mutex> lock(mutex_);
  if (communicates_ || (late() && !now) || submitted_ != done_) return false;
  ++submitted_;
  return true;
}

void Stream::end() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++done_;
  changed_.notify_all();
}

void Stream::submit(std::function<void()> work) {
  initialize();
  std::lock_guard<std::mutex> lock(mutex_);
  ++submitted_;
  auto due = std::chrono::steady_clock::now();
  if (late()) due += kLateness;
  tasks_.push_back({std::move(work), due});
  if (!has_thread_) {
    has_thread_ = true;
    std::thread([this] { loop(); }).detach();
  }
  changed_.notify_all();
}

void Stream::loop() {
  pthread_setname_np(pthread_self(), communicates_ ? "testdev_comm" : "testdev_stream");
  device_now = device;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    // work in the threads of callers comes first, if it began before
    if (tasks_.empty() || submitted_ - tasks_.size() != done_) {
      changed_.wait(lock);
      continue;
    }
    Task& next = tasks_.front();
    if (required_ <= done_ && std::chrono::steady_clock::now() < next.due) {
      changed_.wait_until(lock, next.due);
      continue;
    }
    {
      Task task = std::move(next);
      lock.unlock();
      std::exception_ptr raised;
      try {
        task.work();
      } catch (...) {
        raised = std::current_exception();
      }
      task.work = nullptr;  // what it keeps alive goes before anybody sees that it is done
      lock.lock();
      tasks_.pop_front();
      if (raised && !error_) error_ = raised;
    }
    ++done_;
    changed_.notify_all();
  }
}

void Stream::after(Mark mark) {
  if (mark.stream == nullptr || mark.stream == this) return;
  if (mark.reached() && !mark.stream->error()) return;
  submit([mark] {
    mark.require();
    mark.wait();
    if (auto raised = mark.stream->error()) std::rethrow_exception(raised);
  });
}

Mark Stream::mark() {
  std::lock_guard<std::mutex> lock(mutex_);
  return {this, submitted_};
}

std::exception_ptr Stream::error() {
  std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

void Stream::forget_error() {
  std::lock_guard<std::mutex> lock(mutex_);
  error_ = nullptr;
}

void Stream::synchronize() {
  const Mark all = mark();
  all.require();
  all.wait();
  std::exception_ptr raised;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::swap(raised, error_);
  }
  if (raised) std::rethrow_exception(raised);
}

bool Mark::reached() const {
  if (stream == nullptr) return true;
  std::lock_guard<std::mutex> lock(stream->mutex_);
  return stream->done_ >= number;
}

void Mark::require() const {
  if (stream == nullptr) return;
  std::lock_guard<std::mutex> lock(stream->mutex_);
  if (number <= stream->required_) return;
  stream->required_ = number;
  stream->changed_.notify_all();
}

void Mark::wait() const {
  if (stream == nullptr) return;
  if (is_on(Switch::spins)) {
    while (!reached()) std::this_thread::yield();
    return;
  }
  std::unique_lock<std::mutex> lock(stream->mutex_);
  stream->changed_.wait(lock, [this] { return stream->done_ >= number; });
}

}  // namespace testdev
