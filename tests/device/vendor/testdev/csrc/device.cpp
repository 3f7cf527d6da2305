#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <memory>
#include <new>

namespace testdev {
namespace {

// Memory.

struct Memory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    const int device = current_device();
    try {
      void* pointer = testdev::allocate(device, bytes);
      return {pointer, pointer, &testdev::release, device_at(device)};
    } catch (const std::bad_alloc&) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "testdev:", device, " has no memory left for ", bytes, " bytes");
    }
  }
  c10::DeleterFnPtr raw_deleter() const override { return &testdev::release; }
  void copy_data(void* to, const void* from, size_t count) const override {
    char *target = host(to), *source = host(from);
    current_stream(device_of(to)).run([=] { std::memcpy(target, source, count); });
  }
  bool initialized() override { return is_initialized(); }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    used_on(pointer.get_context(), own(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats found;
    auto& all = found.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    all.current = static_cast<int64_t>(bytes_in_use(device));
    all.peak = static_cast<int64_t>(most_bytes_in_use(device));
    return found;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { forget_most_bytes(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return {memory_size() - bytes_in_use(device), memory_size()};
  }
};

struct Pinned final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* pointer = allocate_pinned(bytes);
    return {pointer, pointer, &release_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
};

// Random numbers: an engine of the processor, seeded so that it draws other numbers than the processor's own.

constexpr uint64_t kOther = 0x5DEECE66D;

struct Drawing final : c10::GeneratorImpl {
  explicit Drawing(int device, at::Generator from = at::detail::createCPUGenerator())
      : c10::GeneratorImpl(device_at(device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        cpu(std::move(from)) {
    set_current_seed(c10::default_rng_seed_val);
  }
  static uint64_t seed_of(uint64_t seed) { return is_on(Switch::own_numbers) ? seed ^ kOther : seed; }
  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed_of(seed)); }
  uint64_t current_seed() const override { return seed_of(cpu.current_seed()); }
  uint64_t seed() override {
    const uint64_t drawn = c10::detail::getNonDeterministicRandom();
    set_current_seed(drawn);
    return drawn;
  }
  void set_offset(uint64_t offset) override { cpu.set_offset(offset); }
  uint64_t get_offset() const override { return cpu.get_offset(); }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return cpu.unsafeGetGeneratorImpl()->get_state();
  }
  Drawing* clone_impl() const override {
    auto* made = new Drawing(device().index());
    made->cpu = cpu.clone();
    return made;
  }
  at::Generator cpu;
};

// Guard.

struct Event {
  Mark mark;
  std::shared_ptr<std::atomic<double>> time;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const int before = current_device();
    if (device.has_index() && device.index() != before) set_device(device.index());
    return device_at(before);
  }
  c10::Device getDevice() const override { return device_at(current_device()); }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) set_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index() && device.index() >= 0 && device.index() < device_count()) set_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count()); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability found;
    if (is_on(Switch::no_float64)) {
      found.capability_data.supported_scalar_types.has_Double = 0;
      found.capability_data.supported_scalar_types.has_ComplexDouble = 0;
    }
    return found;
  }

  c10::Stream getStream(c10::Device device) const override { return of_torch(current_stream(index(device))); }
  c10::Stream getDefaultStream(c10::Device device) const override { return of_torch(stream_of(index(device), 0)); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return of_torch(pool_stream(index(device)));
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return of_torch(new_stream(index(device))); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return of_torch(set_current_stream(own(stream)));
  }
  bool queryStream(const c10::Stream& stream) const override { return own(stream).mark().reached(); }
  void synchronizeStream(const c10::Stream& stream) const override { own(stream).synchronize(); }
  void synchronizeDevice(c10::DeviceIndex device) const override { synchronize_device(device); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag flag)
      const override {
    if (*event == nullptr) *event = new Event();
    auto* found = static_cast<Event*>(*event);
    if (flag == c10::EventFlag::BACKEND_DEFAULT) {
      auto time = std::make_shared<std::atomic<double>>(0.0);
      found->time = time;
      own(stream).run([time] { *time = seconds_now(); });
    }
    found->mark = own(stream).mark();
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) own(stream).after(static_cast<Event*>(event)->mark);
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<Event*>(event)->mark.reached();
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    const Mark mark = static_cast<Event*>(event)->mark;
    mark.require();
    mark.wait();
    if (mark.stream != nullptr) {
      if (auto raised = mark.stream->error()) std::rethrow_exception(raised);
    }
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    auto *one = static_cast<Event*>(first), *two = static_cast<Event*>(second);
    TORCH_CHECK(one != nullptr && two != nullptr && one->time && two->time, "both events must record times");
    return 1000.0 * (*two->time - *one->time);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    used_on(pointer.get_context(), own(stream));
  }

 private:
  static int index(c10::Device device) { return device.has_index() ? device.index() : current_device(); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// Hooks.

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return is_initialized(); }
  void init() const override { initialize(); }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count()); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const int before = current_device();
    set_device(device);
    return static_cast<c10::DeviceIndex>(before);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static Pinned pinned;
    return &pinned;
  }
  at::Device getDeviceFromPtr(void* data) const override {
    const int device = device_of(data);
    TORCH_CHECK(device >= 0, "this is no memory of testdev");
    return device_at(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device < 0 ? current_device() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Drawing>(device < 0 ? current_device() : device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DeviceGuard guard(storage.device());
    c10::DataPtr fresh = allocator()->allocate(bytes);
    const size_t kept = std::min(bytes, storage.nbytes());
    if (kept > 0) allocator()->copy_data(fresh.get(), storage.data(), kept);
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.set_nbytes(bytes);
  }
};

}  // namespace

c10::Allocator* allocator() {
  static auto* made = new Memory();
  return made;
}

at::Generator& default_generator(int device) {
  static auto* made = [] {
    auto* all = new std::vector<at::Generator>();
    for (int d = 0; d < device_count(); ++d) all->push_back(at::make_generator<Drawing>(d));
    return all;
  }();
  return made->at(device);
}

at::Generator drawing(const std::optional<at::Generator>& given, int device) {
  const at::Generator& chosen = given.has_value() && given->defined() ? *given : default_generator(device);
  TORCH_CHECK(chosen.device().type() == kType, "Expected a 'testdev' device type for generator but found '",
              chosen.device().type(), "'");
  return static_cast<Drawing*>(chosen.unsafeGetGeneratorImpl())->cpu;
}

void register_hooks() {
  c10::SetAllocator(kType, allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks());
}

}  // namespace testdev
