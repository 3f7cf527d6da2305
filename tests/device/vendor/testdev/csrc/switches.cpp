// The properties that a test can switch on alone, so that a failing property has a name; "nccl" is what a GPU has with
// NCCL, if its threads are made to sleep while they wait.
#include <array>
#include <atomic>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "runtime.h"

namespace testdev {
namespace {

constexpr int kCount = static_cast<int>(Switch::count);

const std::array<const char*, kCount> kNames = {
    // of the device
    "late",          // streams run work when something waits for it, or 20 ms after it was issued
    "no-float64",    // no tensor of a dtype of 64-bit floating-point numbers
    "own-numbers",   // the generator draws other numbers than the CPU's with the same seed
    "spins",         // a thread that waits for a stream uses the processor
    // of the backend
    "device-only",   // tensors of the CPU are refused
    "coalesces",     // supportsCoalescing; works of the operations inside are good for nothing
    "async-wait",    // wait() returns at once: it orders the stream, and blocks no thread
    "ordered",       // operations of a communicator, and of a pair of ranks, run one after the other as issued
    "rendezvous",    // a send ends when the receive has begun, not before
    "flushes",       // the end of a group waits for what is pending
    "lazy",          // communicators are made at the first call, by all of their ranks
    "late-arrival",  // the communicators' streams are late
    "futures",       // works have futures, which are complete at once and carry events
    "silent",        // a peer that died is not noticed
    "unsized",       // a receive of another size than the send is no error: both wait for ever
};

std::array<std::atomic<bool>, kCount>& values() {
  static auto* made = [] {
    auto* fresh = new std::array<std::atomic<bool>, kCount>{};
    const char* text = std::getenv("TESTDEV_SWITCHES");
    std::istringstream words(text == nullptr ? "" : text);
    for (std::string word; std::getline(words, word, ',');) {
      if (word.empty()) continue;
      const bool on = word[0] != '-';
      const std::string name = on ? word : word.substr(1);
      bool known = name == "nccl";
      for (int i = 0; i < kCount; ++i) {
        const auto one = static_cast<Switch>(i);
        const bool of_nccl = one != Switch::no_float64 && one != Switch::spins;
        if ((name == "nccl" && of_nccl) || name == kNames[i]) {
          (*fresh)[i] = on;
          known = true;
        }
      }
      if (!known) throw std::runtime_error("TESTDEV_SWITCHES: testdev has no property " + name);
    }
    return fresh;
  }();
  return *made;
}

}  // namespace

bool is_on(Switch one) { return values()[static_cast<int>(one)].load(std::memory_order_relaxed); }

void set_switch(const std::string& name, bool on) {
  for (int i = 0; i < kCount; ++i) {
    if (name == kNames[i]) {
      values()[i] = on;
      return;
    }
  }
  throw std::runtime_error("testdev has no property " + name);
}

std::vector<std::pair<std::string, bool>> all_switches() {
  std::vector<std::pair<std::string, bool>> found;
  for (int i = 0; i < kCount; ++i) found.emplace_back(kNames[i], values()[i].load());
  return found;
}

}  // namespace testdev
