#include <torch/csrc/utils/pybind.h>

#include "device.h"

namespace testdev {
void bind_backend(pybind11::module_& m);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  namespace py = pybind11;
  using released = py::call_guard<py::gil_scoped_release>;
  testdev::register_hooks();
  m.def("device_count", &testdev::device_count);
  m.def("current_device", &testdev::current_device);
  m.def("set_device", &testdev::set_device);
  m.def("synchronize", &testdev::synchronize_device, released());
  m.def("stop", &testdev::stop, released());
  m.def("default_generator", &testdev::default_generator);
  m.def("is_initialized", &testdev::is_initialized);
  m.def("in_bad_fork", &testdev::in_bad_fork);
  m.def("initialize", &testdev::initialize);
  m.def("bytes_in_use", &testdev::bytes_in_use);
  m.def("most_bytes_in_use", &testdev::most_bytes_in_use);
  m.def("forget_most_bytes", &testdev::forget_most_bytes);
  m.def("memory_size", &testdev::memory_size);
  m.def("set_switch", &testdev::set_switch);
  m.def("switches", &testdev::all_switches);
  testdev::bind_backend(m);
}
