// The only file of comm/ that sees Python: addresses and counts come in, the GIL is released while a call
// waits.
#include <pybind11/pybind11.h>

#include "communicator.h"

namespace py = pybind11;
using ddltrain::Communicator;
using ddltrain::DType;

PYBIND11_MODULE(_engine, module) {
  py::register_exception<ddltrain::MpiError>(module, "MpiError", PyExc_RuntimeError);

  py::enum_<DType>(module, "DType")
      .value("float32", DType::float32)
      .value("float64", DType::float64)
      .value("int32", DType::int32)
      .value("int64", DType::int64);

  py::class_<Communicator>(module, "Communicator")
      .def(py::init([](uintptr_t comm_address, int64_t max_message_bytes) {
             py::gil_scoped_release release;
             return std::make_unique<Communicator>(*reinterpret_cast<MPI_Comm*>(comm_address),
                                                   max_message_bytes);
           }),
           py::arg("comm_address"), py::arg("max_message_bytes"))
      .def_property_readonly("rank", &Communicator::rank)
      .def_property_readonly("world_size", &Communicator::world_size)
      .def(
          "allreduce_sum",
          [](Communicator& self, uintptr_t address, int64_t count, DType dtype) {
            self.allreduce_sum(reinterpret_cast<void*>(address), count, dtype);
          },
          py::arg("address"), py::arg("count"), py::arg("dtype"), py::call_guard<py::gil_scoped_release>())
      .def(
          "broadcast",
          [](Communicator& self, uintptr_t address, int64_t bytes, int root) {
            self.broadcast(reinterpret_cast<void*>(address), bytes, root);
          },
          py::arg("address"), py::arg("bytes"), py::arg("root"), py::call_guard<py::gil_scoped_release>())
      .def("barrier", &Communicator::barrier, py::call_guard<py::gil_scoped_release>());

  module.def("mpi_library_version", &ddltrain::mpi_library_version);
}
