// The only file of comm/ that sees Python: addresses and counts come in, the GIL is released while a call
// waits.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "communicator.h"
#include "executor.h"
#include "reduce.h"

namespace py = pybind11;
using namespace pybind11::literals;
using namespace ddltrain;

namespace {

using Release = py::call_guard<py::gil_scoped_release>;
using Rows = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

MPI_Comm comm_at(uintptr_t address) { return *reinterpret_cast<MPI_Comm*>(address); }

void bind_words(py::module_& module) {
  py::register_exception<MpiError>(module, "MpiError", PyExc_RuntimeError);
  py::register_exception<WindowError>(module, "WindowError", module.attr("MpiError"));
  py::enum_<DType>(module, "DType")
      .value("float32", DType::float32)
      .value("float64", DType::float64)
      .value("int32", DType::int32)
      .value("int64", DType::int64)
      .value("float16", DType::float16)
      .value("bfloat16", DType::bfloat16);
  py::enum_<ReduceOp>(module, "ReduceOp")
      .value("sum", ReduceOp::sum)
      .value("avg", ReduceOp::avg)
      .value("min", ReduceOp::min)
      .value("max", ReduceOp::max);
  py::enum_<Wire>(module, "Wire")
      .value("same", Wire::same)
      .value("float16", Wire::float16)
      .value("bfloat16", Wire::bfloat16);
}

void bind_communicator(py::module_& module) {
  py::class_<Communicator>(module, "Communicator")
      .def(py::init([](uintptr_t comm_address, int64_t max_message_bytes) {
             return std::make_unique<Communicator>(comm_at(comm_address), max_message_bytes);
           }),
           "comm_address"_a, "max_message_bytes"_a, Release())
      .def_property_readonly("rank", &Communicator::rank)
      .def_property_readonly("world_size", &Communicator::world_size)
      .def(
          "allreduce",
          [](Communicator& self, uintptr_t address, int64_t count, DType dtype, ReduceOp op) {
            self.allreduce(pointer(address), count, dtype, op);
          },
          "address"_a, "count"_a, "dtype"_a, "op"_a, Release())
      .def(
          "broadcast",
          [](Communicator& self, uintptr_t address, int64_t bytes, int root) {
            self.broadcast(pointer(address), bytes, root);
          },
          "address"_a, "bytes"_a, "root"_a, Release())
      .def("barrier", &Communicator::barrier, Release());
}

void bind_executor(py::module_& module) {
  py::class_<Window, std::shared_ptr<Window>>(module, "Window", py::buffer_protocol())
      .def_buffer([](const Window& self) {
        return py::buffer_info(reinterpret_cast<uint8_t*>(self.own()),
                               static_cast<py::ssize_t>(self.bytes()));
      });
  py::class_<Executor>(module, "Executor")
      .def(py::init([](uintptr_t comm_address, int64_t max_message_bytes, double timeout_s, bool uses_windows,
                       int ranks_per_host) {
             return std::make_unique<Executor>(
                 comm_at(comm_address),
                 ExecutorOptions{max_message_bytes, timeout_s, uses_windows, ranks_per_host});
           }),
           "comm_address"_a, "max_message_bytes"_a, "timeout_s"_a, "uses_windows"_a, "ranks_per_host"_a,
           Release())
      .def_property_readonly("rank", &Executor::rank)
      .def_property_readonly("leaders", [](const Executor& self) { return self.host().leaders(); })
      .def_property_readonly("has_windows", [](const Executor& self) { return self.host().has_windows(); })
      .def_property_readonly("window_error", [](const Executor& self) { return self.host().window_error(); })
      .def_property_readonly("has_background", &Executor::has_background)
      .def_property_readonly("busy_s", &Executor::busy_s)
      .def("allocate", &Executor::allocate, "bytes"_a, Release())
      .def(
          "in_window",
          [](Executor& self, uintptr_t address, int64_t bytes) {
            return self.in_window(pointer(address), bytes);
          },
          "address"_a, "bytes"_a)
      .def(
          "load_plan",
          [](Executor& self, const Rows& rows, uint64_t key, int rows_ahead) {
            return self.load_plan({rows.data(), static_cast<size_t>(rows.size())}, key, rows_ahead);
          },
          "rows"_a, "key"_a, "rows_ahead"_a)
      .def(
          "submit",
          [](Executor& self, int64_t plan, uintptr_t address, int64_t count, DType dtype, ReduceOp op,
             Wire wire, uintptr_t residual, int priority, const std::string& name) {
            return self.submit(plan, pointer(address), count, dtype, op, wire,
                               static_cast<float*>(pointer(residual)), priority, name);
          },
          "plan"_a, "address"_a, "count"_a, "dtype"_a, "op"_a, "wire"_a, "residual"_a, "priority"_a, "name"_a,
          Release())
      .def(
          "run",
          [](Executor& self, int64_t plan, uintptr_t address, int64_t count, DType dtype, ReduceOp op,
             Wire wire, uintptr_t residual, const std::string& name) {
            self.run(plan, pointer(address), count, dtype, op, wire, static_cast<float*>(pointer(residual)),
                     name);
          },
          "plan"_a, "address"_a, "count"_a, "dtype"_a, "op"_a, "wire"_a, "residual"_a, "name"_a, Release())
      .def("wait", &Executor::wait, "number"_a, Release())
      .def("test", &Executor::test, "number"_a, Release())
      .def("waiting", &Executor::waiting, Release())
      .def("keep_spans", &Executor::keep_spans, "most"_a, Release())
      .def("take_spans",
           [](Executor& self) {
             py::list spans;
             for (const Span& span : self.take_spans())
               spans.append(py::make_tuple(span.name, span.start_ns, span.end_ns));
             return spans;
           })
      .def("abort", &Executor::abort, "reason"_a, Release());
}

}  // namespace

PYBIND11_MODULE(_engine, module) {
  bind_words(module);
  bind_communicator(module);
  bind_executor(module);
  module.def("mpi_library_version", &mpi_library_version);
}
