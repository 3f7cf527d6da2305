// torch.autocast: what is computed in which precision, as for the CPU.
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "device.h"

namespace testdev {
namespace {

using Stack = torch::jit::Stack;

template <class Cast>
void with_cast(const c10::OperatorHandle& op, Stack* stack, Cast cast) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::AutocastPrivateUse1);
  const size_t count = op.schema().arguments().size();
  for (size_t n = stack->size() - count; n < stack->size(); ++n) {
    c10::IValue& one = (*stack)[n];
    if (one.isTensor() && one.toTensor().defined()) {
      one = cast(one.toTensor());
    } else if (one.isTensorList()) {
      c10::List<at::Tensor> made;
      for (const at::Tensor& part : one.toTensorVector()) made.push_back(cast(part));
      one = made;
    }
  }
  op.callBoxed(stack);
}

void lower(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const auto dtype = at::autocast::get_autocast_dtype(kType);
  with_cast(op, stack, [&](const at::Tensor& one) { return at::autocast::cached_cast(dtype, one, kType); });
}

void single(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  with_cast(op, stack, [](const at::Tensor& one) { return at::autocast::cached_cast(at::kFloat, one, kType); });
}

template <void (*kernel)(const c10::OperatorHandle&, c10::DispatchKeySet, Stack*)>
void all(torch::Library& m, std::initializer_list<const char*> names) {
  for (const char* name : names) m.impl(name, torch::CppFunction::makeFromBoxedFunction<kernel>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  all<&lower>(m, {"conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input",
                  "conv_transpose3d.input", "_convolution", "bmm", "mm", "baddbmm", "addmm", "addbmm", "linear", "matmul",
                  "linalg_vecdot", "prelu", "scaled_dot_product_attention"});
  all<&single>(m, {"mse_loss", "binary_cross_entropy", "kl_div", "prod", "prod.dim_int"});
}

}  // namespace
}  // namespace testdev
