// Every device has a window that the processor cannot read, and a second one of the same size for kernels.
// Freed memory is kept by stream and size, and the same stream gets it again at once: work is in order there.
// A tensor that another stream still reads is overwritten, unless `used_on` was called, as on a GPU.
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <new>
#include <unordered_map>
#include <unordered_set>

#include "runtime.h"

namespace testdev {
namespace {

constexpr size_t kMemory = size_t{1} << 30;
constexpr size_t kSmallest = 256;
constexpr size_t kGuard = 4096;

struct Block {
  int device;
  int stream;
  size_t size;   // of the block
  size_t bytes;  // in use
  std::vector<Mark> users;
};

struct Memory {
  std::mutex mutex;
  char* window = nullptr;  // unreadable
  char* kernel = nullptr;  // readable
  std::vector<size_t> top, used, most;
  std::map<std::tuple<int, int, size_t>, std::vector<char*>> free;
  std::unordered_map<const void*, Block> blocks;
  std::vector<std::pair<char*, Block>> waiting;  // freed, and still in use on other streams
};

char* reserve(size_t bytes, int protection) {
  void* found = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) throw std::bad_alloc();
  madvise(found, bytes, MADV_DONTDUMP);
  return static_cast<char*>(found);
}

Memory& memory() {
  static auto* made = [] {
    auto* fresh = new Memory();
    const size_t all = kMemory * device_count();
    fresh->window = reserve(all, PROT_NONE);
    fresh->kernel = reserve(all, PROT_READ | PROT_WRITE);
    fresh->top.assign(device_count(), kGuard);
    fresh->used.assign(device_count(), 0);
    fresh->most.assign(device_count(), 0);
    return fresh;
  }();
  return *made;
}

size_t rounded(size_t bytes) {
  size_t size = kSmallest;
  while (size < bytes) size *= 2;
  return size;
}

void collect(Memory& all) {  // with the lock
  std::vector<std::pair<char*, Block>> still;
  for (auto& [pointer, block] : all.waiting) {
    bool reached = true;
    for (const Mark& mark : block.users) reached = reached && mark.reached();
    if (reached) {
      all.free[{block.device, block.stream, block.size}].push_back(pointer);
    } else {
      still.emplace_back(pointer, std::move(block));
    }
  }
  all.waiting.swap(still);
}

std::mutex pinned_mutex;
std::map<const char*, size_t>& pinned() {
  static auto* made = new std::map<const char*, size_t>();
  return *made;
}

}  // namespace

void* allocate(int device, size_t bytes) {
  initialize();
  if (bytes == 0) return nullptr;
  Stream& stream = current_stream(device);
  Memory& all = memory();
  char* pointer = nullptr;
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    if (!all.waiting.empty()) collect(all);
    const size_t size = rounded(bytes);
    auto& known = all.free[{device, stream.id, size}];
    if (!known.empty()) {
      pointer = known.back();
      known.pop_back();
    } else {
      if (all.top[device] + size > kMemory) throw std::bad_alloc();
      pointer = all.window + device * kMemory + all.top[device];
      all.top[device] += size;
    }
    all.blocks[pointer] = {device, stream.id, size, bytes, {}};
    all.used[device] += bytes;
    all.most[device] = std::max(all.most[device], all.used[device]);
  }
  // what used the memory before may still be queued on this stream
  char* at = host(pointer);
  stream.run([at, bytes] { std::memset(at, 0xFF, bytes); });
  return pointer;
}

void release(void* pointer) {
  if (pointer == nullptr) return;
  Memory& all = memory();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto found = all.blocks.find(pointer);
  if (found == all.blocks.end()) return;
  Block block = std::move(found->second);
  all.blocks.erase(found);
  all.used[block.device] -= block.bytes;
  if (block.users.empty()) {
    all.free[{block.device, block.stream, block.size}].push_back(static_cast<char*>(pointer));
  } else {
    all.waiting.emplace_back(static_cast<char*>(pointer), std::move(block));
  }
}

void used_on(void* pointer, Stream& stream) {
  if (pointer == nullptr) return;
  const Mark mark = stream.mark();
  Memory& all = memory();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto found = all.blocks.find(pointer);
  if (found == all.blocks.end() || found->second.stream == stream.id) return;
  found->second.users.push_back(mark);
}

char* host(const void* pointer) {
  if (pointer == nullptr) return nullptr;
  Memory& all = memory();
  return all.kernel + (static_cast<const char*>(pointer) - all.window);
}

void* device_pointer(const void* host) {
  Memory& all = memory();
  const auto* at = static_cast<const char*>(host);
  if (at < all.kernel || at >= all.kernel + kMemory * device_count()) return nullptr;
  return all.window + (at - all.kernel);
}

int device_of(const void* pointer) {
  Memory& all = memory();
  const auto* at = static_cast<const char*>(pointer);
  if (at < all.window || at >= all.window + kMemory * device_count()) return -1;
  return static_cast<int>((at - all.window) / kMemory);
}

size_t bytes_in_use(int device) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  return memory().used.at(device);
}

size_t most_bytes_in_use(int device) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  return memory().most.at(device);
}

void forget_most_bytes(int device) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  memory().most.at(device) = memory().used.at(device);
}

size_t memory_size() { return kMemory; }

void* allocate_pinned(size_t bytes) {
  void* found = nullptr;
  if (bytes == 0) return found;
  if (posix_memalign(&found, 64, bytes) != 0) throw std::bad_alloc();
  std::lock_guard<std::mutex> lock(pinned_mutex);
  pinned()[static_cast<char*>(found)] = bytes;
  return found;
}

void release_pinned(void* pointer) {
  if (pointer == nullptr) return;
  {
    std::lock_guard<std::mutex> lock(pinned_mutex);
    pinned().erase(static_cast<char*>(pointer));
  }
  std::free(pointer);
}

bool is_pinned(const void* pointer) {
  const auto* at = static_cast<const char*>(pointer);
  std::lock_guard<std::mutex> lock(pinned_mutex);
  auto next = pinned().upper_bound(at);
  if (next == pinned().begin()) return false;
  --next;
  return at < next->first + next->second;
}

}  // namespace testdev
