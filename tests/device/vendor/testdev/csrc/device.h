// What torch needs to know about the device itself: guard, allocators, hooks and generators.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>

#include <optional>

#include "runtime.h"

namespace testdev {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

inline c10::Device device_at(int index) { return {kType, static_cast<c10::DeviceIndex>(index)}; }
inline Stream& own(const c10::Stream& stream) { return stream_of(stream.device_index(), stream.id()); }
inline c10::Stream of_torch(const Stream& stream) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(stream.device), static_cast<c10::StreamId>(stream.id));
}

c10::Allocator* allocator();
at::Generator& default_generator(int device);
// The processor's generator that holds the state of a generator of ours (default: the device's).
at::Generator drawing(const std::optional<at::Generator>& given, int device);
void register_hooks();

}  // namespace testdev
