#pragma once

#include <ATen/core/Tensor.h>

#include "device.h"

namespace testdev {

// A tensor of the CPU over the memory of one of ours, for kernels only; it keeps nothing alive.
at::Tensor over(const at::Tensor& tensor);

}  // namespace testdev
