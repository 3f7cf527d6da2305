// Operators: tensors are made, viewed and copied here; the processor's kernels compute everything else.
//
// A kernel runs on tensors of the CPU that lie over the device's memory (`host`). If the stream can run it at once, it
// does so here. Else the meta kernel finds out the outputs' shapes, and the work is queued.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include <set>
#include <string>

#include "operators.h"

namespace testdev {
namespace {

using c10::IValue;
using Stack = torch::jit::Stack;

void check(c10::ScalarType dtype) {
  TORCH_CHECK_TYPE(
      !is_on(Switch::no_float64) || (dtype != at::kDouble && dtype != at::kComplexDouble),
      "Cannot convert a testdev Tensor to float64 dtype as this device does not support float64. Use float32 instead.");
}

bool is_ours(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kType; }

// What runs here is below everything that torch adds to operators.
struct Plain {
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard others{c10::autocast_dispatch_keyset |
                                                  c10::DispatchKeySet(c10::DispatchKey::Python)};
};

void compute(const c10::OperatorHandle& op, c10::DispatchKey kernels, Stack& stack) {
  const Plain plain;
  op.redispatchBoxed(c10::DispatchKeySet(kernels), &stack);
}

void put(const at::Tensor& goal, const at::Tensor& source) {
  const Plain plain;
  goal.copy_(source);
}

at::Tensor strided(at::IntArrayRef size, at::IntArrayRef stride, c10::ScalarType dtype, int device) {
  check(dtype);
  const c10::DeviceGuard guard(device_at(device));
  const size_t item = c10::elementSize(dtype);
  const size_t bytes = at::detail::computeStorageNbytes(size, stride, item);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, allocator()->allocate(bytes), allocator(), true);
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return made;
}

// Tensors of the CPU over the memory of ours; those that share a storage share one here too.
class Over {
 public:
  at::Tensor operator()(const at::Tensor& tensor) {
    if (!is_ours(tensor)) return tensor;
    TORCH_CHECK(tensor.layout() == at::kStrided, "testdev has dense tensors only, not ", tensor.layout());
    device_ = device_ < 0 ? tensor.device().index() : device_;
    TORCH_CHECK(device_ == tensor.device().index(),
                "Expected all tensors to be on the same device, but found at least two devices, testdev:", device_,
                " and ", tensor.device(), "!");
    at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
        storage_of(tensor), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    auto* impl = made.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
    impl->set_storage_offset(tensor.storage_offset());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    made._set_conj(tensor.is_conj());
    made._set_neg(tensor.is_neg());
    all.emplace_back(tensor, made);
    return made;
  }
  int device() const { return device_; }
  std::vector<std::pair<at::Tensor, at::Tensor>> all;  // ours, the CPU's

  // After a kernel: what it resized is resized, too.
  void settle() {
    for (auto& [ours, cpu] : all) {
      const auto* at = static_cast<const char*>(cpu.storage().data());
      if (at != nullptr && device_pointer(at) == nullptr) {  // it got other memory
        at::native::resize_(ours, cpu.sizes());
        ours.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides());
        current_stream(device_).run([goal = testdev::over(ours), source = cpu] { put(goal, source); });
      } else if (ours.sizes() != cpu.sizes() || ours.strides() != cpu.strides()) {
        ours.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides());
      }
    }
  }

 private:
  c10::Storage storage_of(const at::Tensor& tensor) {
    for (auto& [ours, cpu] : all) {
      if (ours.storage().is_alias_of(tensor.storage())) return cpu.storage();
    }
    const auto& theirs = tensor.storage();
    return c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), theirs.nbytes(),
        c10::DataPtr(host(theirs.data()), c10::Device(c10::DeviceType::CPU)), c10::GetCPUAllocator(), true);
  }
  int device_ = -1;
};

// Meta tensors in the place of ours.
class Shapes {
 public:
  at::Tensor operator()(const at::Tensor& tensor) {
    if (!tensor.defined() || (!is_ours(tensor) && tensor.dim() == 0)) return tensor;
    for (auto& [ours, meta] : all) {
      if (ours.is_same(tensor)) return meta;
    }
    at::Tensor made;
    for (auto& [ours, meta] : all) {
      if (ours.storage().is_alias_of(tensor.storage())) {
        made = at::detail::make_tensor<c10::TensorImpl>(
            c10::Storage(meta.storage()), c10::DispatchKeySet(c10::DispatchKey::Meta), tensor.dtype());
        break;
      }
    }
    if (!made.defined()) {
      auto storage = c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), tensor.storage().nbytes(),
          c10::DataPtr(nullptr, c10::Device(c10::DeviceType::Meta)), c10::GetAllocator(c10::DeviceType::Meta), true);
      made = at::detail::make_tensor<c10::TensorImpl>(
          std::move(storage), c10::DispatchKeySet(c10::DispatchKey::Meta), tensor.dtype());
    }
    made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
    made.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    all.emplace_back(tensor, made);
    return made;
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> all;  // ours, meta
};

// `value` with every tensor replaced.
template <class Replace>
IValue replaced(const IValue& value, Replace& replace) {
  if (value.isTensor()) return replace(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor& one : value.toTensorVector()) made.push_back(replace(one));
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (const std::optional<at::Tensor>& one : value.toOptionalTensorVector()) {
      made.push_back(one.has_value() ? std::optional<at::Tensor>(replace(*one)) : std::nullopt);
    }
    return made;
  }
  return value;
}

// How one call of an operator is carried out.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack)
      : op_(op), stack_(stack), schema_(op.schema()), count_(schema_.arguments().size()) {
    const auto given = torch::jit::last(*stack, count_);
    given_.assign(given.begin(), given.end());
    for (const IValue& one : given_) {
      if (one.isDevice() && one.toDevice().type() == kType) named_ = one.toDevice();
    }
    for (const IValue& one : given_) cpu_.push_back(replaced(one, over_));
    device_ = over_.device() >= 0 ? over_.device()
              : named_.has_value() && named_->has_index() ? named_->index()
                                                          : current_device();
    for (IValue& one : cpu_) {
      if (one.isDevice() && one.toDevice().type() == kType) one = c10::Device(c10::DeviceType::CPU);
    }
    const auto& tags = op.getTags();
    random_ = std::find(tags.begin(), tags.end(), at::Tag::nondeterministic_seeded) != tags.end();
  }

  void carry_out() {
    compare_dtypes_of_a_product();
    const c10::DeviceGuard guard(device_at(device_));
    Stream& stream = current_stream(device_);
    if (random_) {
      draw(stream);
    } else if (stream.begin()) {
      now(stream);
    } else if (!later(stream)) {
      wait_and_begin(stream);
      now(stream);
    }
  }

 private:
  // The processor's products compare dtypes where they compute, which is later here; an accelerator's when called.
  void compare_dtypes_of_a_product() const {
    static const std::set<std::string> products{"aten::mm", "aten::bmm", "aten::mv", "aten::dot"};
    if (products.count(schema_.name()) == 0) return;
    const auto one = given_[0].toTensor().scalar_type(), other = given_[1].toTensor().scalar_type();
    TORCH_CHECK(one == other, "expected both factors to have the same dtype, but got: ", one, " and ", other);
  }

  static void wait_and_begin(Stream& stream) {
    while (!stream.begin(true)) stream.synchronize();  // another thread may queue more
  }

  void now(Stream& stream) {  // the stream has begun
    Stack stack(cpu_.begin(), cpu_.end());
    try {
      compute(op_, c10::DispatchKey::CPU, stack);
    } catch (...) {
      stream.end();
      throw;
    }
    stream.end();
    over_.settle();
    give_back(stack);
  }

  // Random numbers are drawn when the operator is called, in the order of the calls.
  void draw(Stream& stream) {
    const bool fills = count_ > 0 && given_[0].isTensor() && tensors() == 1 && schema_.returns().size() == 1 &&
                       written(0) == &given_[0];
    if (fills) {  // nothing is read: the stream need not be waited for
      const at::Tensor goal = cpu_[0].toTensor();
      const at::Tensor drawn = at::empty_strided(goal.sizes(), goal.strides(), goal.options());
      Stack stack(cpu_.begin(), cpu_.end());
      stack[0] = drawn;
      with_our_generator(stack);
      stream.run([goal, drawn] { put(goal, drawn); });
      const IValue self = given_[0];
      torch::jit::drop(*stack_, count_);
      stack_->push_back(self);
      return;
    }
    wait_and_begin(stream);
    Stack stack(cpu_.begin(), cpu_.end());
    try {
      with_our_generator(stack);
    } catch (...) {
      stream.end();
      throw;
    }
    stream.end();
    over_.settle();
    give_back(stack);
  }

  size_t tensors() const {
    return std::count_if(given_.begin(), given_.end(), [](const IValue& one) {
      return (one.isTensor() && one.toTensor().defined()) || one.isTensorList() || one.isOptionalTensorList();
    });
  }

  void with_our_generator(Stack& stack) {
    for (size_t i = 0; i < count_; ++i) {
      if (schema_.arguments()[i].name() != "generator") continue;
      std::optional<at::Generator> given;
      if (stack[i].isGenerator()) given = stack[i].toGenerator();
      stack[i] = drawing(given, device_);
      return compute(op_, c10::DispatchKey::CPU, stack);
    }
    // the kernel uses the processor's default generator, which gets our state for the time
    at::Generator mine = drawing(std::nullopt, device_), theirs = at::detail::getDefaultCPUGenerator();
    const at::Tensor before = theirs.get_state();
    theirs.set_state(mine.get_state());
    try {
      compute(op_, c10::DispatchKey::CPU, stack);
    } catch (...) {
      theirs.set_state(before);
      throw;
    }
    mine.set_state(theirs.get_state());
    theirs.set_state(before);
  }

  // Queue the work; false if that is not possible, as for outputs whose shapes depend on values.
  bool later(Stream& stream) {
    for (const auto& one : schema_.returns()) {
      const auto& type = *one.type();
      if (!type.isSubtypeOf(*c10::TensorType::get()) && !type.isSubtypeOf(*c10::ListType::ofTensors())) return false;
    }
    Shapes shapes;
    Stack stack;
    for (const IValue& one : given_) {
      IValue meta = replaced(one, shapes);
      if (meta.isDevice()) meta = c10::Device(c10::DeviceType::Meta);
      stack.push_back(std::move(meta));
    }
    try {
      compute(op_, c10::DispatchKey::Meta, stack);
    } catch (const std::exception&) {
      return false;  // computing it here gives the result, or says what is wrong
    }
    keep_statistics_as_the_processor(stack);
    leave_out_what_is_not_asked_for(stack);
    for (auto& [ours, meta] : shapes.all) {  // `out=` of another shape
      if (is_ours(ours) && ours.sizes() != meta.sizes()) return false;
    }
    // where each tensor among the results goes: undefined if the kernel leaves it in the memory of an argument
    std::vector<std::vector<at::Tensor>> goals(stack.size());
    std::vector<IValue> outputs;
    for (size_t i = 0; i < stack.size(); ++i) {
      if (const IValue* same = written(i)) {
        outputs.push_back(*same);
        continue;
      }
      auto made = [&](const at::Tensor& meta) -> at::Tensor {
        goals[i].emplace_back();
        if (!meta.defined()) return meta;
        for (auto& [ours, known] : shapes.all) {
          if (is_ours(ours) && known.storage().is_alias_of(meta.storage())) return viewed(ours, meta);
        }
        at::Tensor fresh = strided(meta.sizes(), meta.strides(), meta.scalar_type(), device_);
        goals[i].back() = over(fresh);
        return fresh;
      };
      outputs.push_back(replaced(stack[i], made));
    }
    auto kept = [](const at::Tensor& one) -> at::Tensor {  // the caller may change a tensor of the processor
      if (!one.defined() || one.storage().data_ptr().get_context() == nullptr) return one;
      at::Tensor copy = one.clone();
      if (one.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
      return copy;
    };
    Stack arguments;
    for (const IValue& one : cpu_) arguments.push_back(replaced(one, kept));
    stream.submit([op = op_, arguments, goals]() mutable {
      compute(op, c10::DispatchKey::CPU, arguments);
      for (size_t i = 0; i < arguments.size(); ++i) {
        if (goals[i].empty()) continue;
        size_t next = 0;
        auto keep = [&](const at::Tensor& result) -> at::Tensor {
          const at::Tensor& goal = goals[i].at(next++);
          if (goal.defined()) put(goal, result);
          return result;
        };
        replaced(arguments[i], keep);
      }
    });
    torch::jit::drop(*stack_, count_);
    for (IValue& one : outputs) stack_->push_back(std::move(one));
    return true;
  }

  // The processor's normalisations of half-precision inputs keep means and deviations in the dtype of the parameters,
  // and read them so in the backward; the meta kernels say float32 always, or the input's always. And these keep as many
  // for a batch norm that evaluates as for one in training.
  void keep_statistics_as_the_processor(Stack& results) const {
    const std::string& name = schema_.name();
    if (name != "aten::native_layer_norm" && name != "aten::native_group_norm" && name != "aten::native_batch_norm") {
      return;
    }
    if (name == "aten::native_batch_norm" && !given_[5].toBool()) {  // nothing is kept when it evaluates
      for (size_t i = 1; i < results.size(); ++i) results[i] = results[i].toTensor().new_empty({0});
    }
    const auto input = given_[0].toTensor().scalar_type();
    if (!c10::isReducedFloatingType(input)) return;
    const bool mixed = std::any_of(given_.begin() + 1, given_.end(), [&](const IValue& one) {
      return one.isTensor() && one.toTensor().defined() && one.toTensor().scalar_type() != input;
    });
    for (size_t i = 1; i < results.size(); ++i) results[i] = results[i].toTensor().to(mixed ? at::kFloat : input);
  }

  // Backward kernels leave gradients undefined that `output_mask` does not ask for; some meta kernels make them.
  void leave_out_what_is_not_asked_for(Stack& results) const {
    if (schema_.arguments().back().name() != "output_mask") return;
    const auto asked = given_.back().toBoolList();
    for (size_t i = 0; i < results.size() && i < asked.size(); ++i) {
      if (!asked[i] && results[i].isTensor()) results[i] = at::Tensor();
    }
  }

  // The argument that return number `i` is, or null.
  const IValue* written(size_t i) const {
    const auto* alias = schema_.returns()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) return nullptr;
    for (size_t k = 0; k < count_; ++k) {
      const auto* own = schema_.arguments()[k].alias_info();
      if (own != nullptr && own->isWrite() && own->beforeSets() == alias->beforeSets()) return &given_[k];
    }
    return nullptr;
  }

  static at::Tensor viewed(const at::Tensor& ours, const at::Tensor& like) {
    at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(ours.storage()), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), like.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
    made.unsafeGetTensorImpl()->set_storage_offset(like.storage_offset());
    return made;
  }

  // The results of a kernel that has run.
  void give_back(Stack& results) {
    std::vector<IValue> outputs;
    for (size_t i = 0; i < results.size(); ++i) {
      if (const IValue* same = written(i)) {
        outputs.push_back(*same);
        continue;
      }
      auto made = [&](const at::Tensor& cpu) -> at::Tensor {
        if (!cpu.defined()) return cpu;
        for (auto& [ours, known] : over_.all) {
          if (known.storage().is_alias_of(cpu.storage())) return viewed(ours, cpu);
        }
        at::Tensor fresh = strided(cpu.sizes(), cpu.strides(), cpu.scalar_type(), device_);
        current_stream(device_).run([goal = over(fresh), cpu] { put(goal, cpu); });
        return fresh;
      };
      outputs.push_back(replaced(results[i], made));
    }
    torch::jit::drop(*stack_, count_);
    for (IValue& one : outputs) stack_->push_back(std::move(one));
  }

  c10::OperatorHandle op_;
  Stack* stack_;
  const c10::FunctionSchema& schema_;
  size_t count_;
  std::vector<IValue> given_, cpu_;
  Over over_;
  std::optional<c10::Device> named_;
  int device_ = 0;
  bool random_ = false;
};

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) { Call(op, stack).carry_out(); }

// Tensors.

int index_of(std::optional<c10::Device> device) {
  return device.has_value() && device->has_index() ? device->index() : current_device();
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(c10::layout_or_default(layout) == at::kStrided, "testdev has dense tensors only");
  TORCH_CHECK(!c10::pinned_memory_or_default(pin), "Only dense CPU tensors can be pinned");
  const auto chosen = format.value_or(at::MemoryFormat::Contiguous);
  at::Tensor made = strided(size, c10::contiguous_strides(size), c10::dtype_or_default(dtype), index_of(device));
  if (chosen != at::MemoryFormat::Contiguous && chosen != at::MemoryFormat::Preserve) {
    made.unsafeGetTensorImpl()->empty_tensor_restride(chosen);
  }
  return made;
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pin) {
  TORCH_CHECK(c10::layout_or_default(layout) == at::kStrided, "testdev has dense tensors only");
  TORCH_CHECK(!c10::pinned_memory_or_default(pin), "Only dense CPU tensors can be pinned");
  return strided(size, stride, c10::dtype_or_default(dtype), index_of(device));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  const int64_t bytes = static_cast<int64_t>(
      at::detail::computeStorageNbytesContiguous(size, self.dtype().itemsize(), self.storage_offset()));
  if (bytes > static_cast<int64_t>(self.storage().nbytes())) {
    at::native::resize_bytes_nocuda(self.storage(), bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format.has_value()) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return at::native::set_storage_cpu_(self, source.storage(), source.storage_offset(), source.sizes(),
                                      source.strides());
}

at::Tensor& set_whole(at::Tensor& self, at::Storage source) {
  const auto items = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return at::native::set_storage_cpu_(self, std::move(source), 0, {items}, {});
}

at::Scalar scalar(const at::Tensor& self) {
  Stream& stream = current_stream(self.device().index());
  stream.synchronize();
  return at::native::_local_scalar_dense_cpu(over(self));
}

void record_stream(at::Tensor& self, at::Stream stream) {
  used_on(self.storage().data_ptr().get_context(), own(stream));
}

// The processor's kernel draws with a generator that it takes from nowhere.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, at::kBool)};
  at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  mask.bernoulli_(1.0 - p);
  return {input.mul(mask).mul_(p == 1.0 ? 0.0 : 1.0 / (1.0 - p)), mask};
}

// Copies. What lies in pinned memory is read and written when the stream comes to it; other memory of the processor is
// read when the copy is issued, and written before it returns.
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  if (self.numel() == 0 && target.numel() == 0) return target;
  if (is_ours(self) && is_ours(target) && self.device() != target.device()) {
    Stream &from = current_stream(self.device().index()), &to = current_stream(target.device().index());
    from.after(to.mark());
    from.run([source = over(self), goal = over(target)] { put(goal, source); });
    to.after(from.mark());
    return target;
  }
  const int device = is_ours(self) ? self.device().index() : target.device().index();
  Stream& stream = current_stream(device);
  Over both;
  at::Tensor source = both(self), goal = both(target);
  const bool reads_later = non_blocking && !is_ours(self) && is_pinned(self.data_ptr());
  const bool writes_later = non_blocking && !is_ours(target) && is_pinned(target.data_ptr());
  if (stream.begin()) {
    try {
      put(goal, source);
    } catch (...) {
      stream.end();
      throw;
    }
    stream.end();
    return target;
  }
  if (!is_ours(self) && !reads_later) source = source.clone();
  stream.submit([source, goal] { put(goal, source); });
  if (!is_ours(target) && !writes_later) stream.synchronize();
  return target;
}

at::Tensor copy_and_resize(const at::Tensor& self, const at::Tensor& target) {
  target.resize_(self.sizes());
  return copy_from(self, target, false);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("_local_scalar_dense", &scalar);
  m.impl("record_stream", &record_stream);
  m.impl("native_dropout", &native_dropout);
  // torch composes these for a device that has no kernel, of statistics that the processor's backward does not read
  m.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("native_group_norm", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_and_resize);
}

}  // namespace

at::Tensor over(const at::Tensor& tensor) {
  Over made;
  return made(tensor);
}

}  // namespace testdev
