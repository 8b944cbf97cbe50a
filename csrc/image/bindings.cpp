// The only file of image/ that sees Python: bytes, arrays and addresses come in, the GIL is released while a
// call works or waits.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "batch.h"
#include "isa.h"
#include "pack.h"
#include "sample.h"

namespace py = pybind11;
using namespace pybind11::literals;
using namespace ddltrain::image;

namespace {

using Release = py::call_guard<py::gil_scoped_release>;
using Numbers = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;
using Pixels = py::array_t<uint8_t, py::array::c_style>;

// The memory of bytes, an array and so on, held for as long as this lives.
class Bytes {
 public:
  explicit Bytes(const py::buffer& buffer) : info_(buffer.request()) {
    if (info_.itemsize != 1 || (info_.ndim == 1 && info_.size > 1 && info_.strides[0] != 1)) {
      throw std::invalid_argument("expected bytes without gaps");
    }
  }
  std::span<const uint8_t> span() const {
    return {static_cast<const uint8_t*>(info_.ptr), static_cast<size_t>(info_.size)};
  }

 private:
  py::buffer_info info_;
};

py::bytes to_bytes(const std::vector<uint8_t>& data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

template <typename Convert>
py::bytes converted(const py::buffer& data, Convert convert) {
  const Bytes bytes(data);
  std::vector<uint8_t> result;
  {
    const py::gil_scoped_release release;
    result = convert(bytes.span());
  }
  return to_bytes(result);
}

py::bytes pack_array(const Pixels& pixels) {
  if (pixels.ndim() != 2 && (pixels.ndim() != 3 || pixels.shape(2) != 3)) {
    throw std::invalid_argument("expected uint8 [height, width] or [height, width, 3]");
  }
  return to_bytes(pack_pixels({pixels.data(), static_cast<size_t>(pixels.size())},
                              static_cast<int>(pixels.shape(1)), static_cast<int>(pixels.shape(0)),
                              pixels.ndim() == 3 ? 3 : 1));
}

py::tuple describe(const py::buffer& record) {
  const Header header = read_header(Bytes(record).span());
  std::string sampling;
  for (int i = 0; i < header.num_planes; ++i) {
    const auto plane = static_cast<size_t>(i);
    sampling +=
        (i ? "," : "") + std::to_string(header.h_samp[plane]) + "x" + std::to_string(header.v_samp[plane]);
  }
  return py::make_tuple(header.kind == Kind::jpeg ? "jpeg" : "pixels", header.width, header.height,
                        header.num_planes, sampling);
}

Pixels decode_rgb(const py::buffer& record) {
  const Bytes bytes(record);
  const Header header = read_header(bytes.span());
  Pixels pixels({header.height, header.width, 3});
  uint8_t* const data = pixels.mutable_data();
  const py::gil_scoped_release release;
  Sampler().decode(bytes.span(), data);
  return pixels;
}

// For tests: the planes that a window takes, each with the place of its first sample.
py::list decode_planes(const py::buffer& record, int left, int top, int width, int height) {
  const Bytes bytes(record);
  WindowDecoder decoder;
  const Planes planes = decoder.decode(bytes.span(), {left, top, width, height});
  py::list result;
  for (int i = 0; i < planes.count; ++i) {
    const Plane& plane = planes.plane[i];
    Pixels samples({plane.height, plane.width});
    for (int y = 0; y < plane.height; ++y) {
      const uint8_t* const row = plane.pixels + y * plane.stride;
      std::copy(row, row + plane.width, samples.mutable_data(y, 0));
    }
    result.append(py::make_tuple(samples, plane.left, plane.top));
  }
  return result;
}

void bind_records(py::module_& module) {
  py::register_exception<CorruptRecord>(module, "CorruptRecord", PyExc_ValueError);
  py::register_exception<Unsupported>(module, "Unsupported", PyExc_ValueError);
  module.def("pack_jpeg", [](const py::buffer& data) { return converted(data, pack_jpeg); }, "data"_a);
  module.def("pack_pixels", pack_array, "pixels"_a);
  module.def("unpack", [](const py::buffer& record) { return converted(record, unpack); }, "record"_a);
  module.def("info", describe, "record"_a);
  module.def("decode_rgb", decode_rgb, "record"_a);
  module.def("decode_planes", decode_planes, "record"_a, "left"_a, "top"_a, "width"_a, "height"_a);
  py::enum_<Isa>(module, "Isa").value("portable", Isa::portable).value("avx2", Isa::avx2);
  module.def("isa", isa);
  module.def("set_isa", set_isa, "wanted"_a);
}

void bind_sampling(py::module_& module) {
  py::enum_<CropKind>(module, "CropKind")
      .value("random_resized", CropKind::random_resized)
      .value("pad", CropKind::pad)
      .value("center", CropKind::center);
  py::enum_<Precision>(module, "Precision").value("fast", Precision::fast).value("exact", Precision::exact);
  py::enum_<OutputType>(module, "OutputType")
      .value("uint8", OutputType::uint8)
      .value("float32", OutputType::float32)
      .value("bfloat16", OutputType::bfloat16);
  py::class_<Sampling>(module, "Sampling")
      .def(py::init([](CropKind kind, int size, int resize, std::array<double, 2> scale,
                       std::array<double, 2> ratio, int padding, bool flip, Precision precision,
                       OutputType type, bool channels_last, std::array<float, 3> offset,
                       std::array<float, 3> factor) {
             return Sampling{{kind, size, resize, scale, ratio, padding, flip},
                             precision,
                             {type, channels_last, size, offset, factor}};
           }),
           "kind"_a, "size"_a, "resize"_a, "scale"_a, "ratio"_a, "padding"_a, "flip"_a, "precision"_a,
           "type"_a, "channels_last"_a, "offset"_a, "factor"_a);
  py::class_<Crop>(module, "Crop")
      .def_readonly("left", &Crop::left)
      .def_readonly("top", &Crop::top)
      .def_readonly("right", &Crop::right)
      .def_readonly("bottom", &Crop::bottom)
      .def_readonly("shift_x", &Crop::shift_x)
      .def_readonly("shift_y", &Crop::shift_y)
      .def_readonly("flip", &Crop::flip);
  module.def(
      "draw_crop",
      [](const Sampling& sampling, int width, int height, uint32_t seed, uint32_t epoch, uint64_t record) {
        return draw_crop(sampling.crop, width, height, {seed, epoch, record});
      },
      "sampling"_a, "width"_a, "height"_a, "seed"_a, "epoch"_a, "record"_a);
}

std::vector<int64_t> to_vector(const Numbers& numbers) {
  return {numbers.data(), numbers.data() + numbers.size()};
}

void bind_batches(py::module_& module) {
  py::class_<Batch, std::shared_ptr<Batch>>(module, "Batch");
  py::class_<BatchDecoder>(module, "BatchDecoder")
      .def(py::init<int>(), "num_threads"_a)
      .def(
          "submit",
          [](BatchDecoder& self, uintptr_t block, int64_t block_bytes, const Numbers& starts,
             const Numbers& sizes, const Numbers& records, const Sampling& sampling, uint32_t seed,
             uint32_t epoch, uintptr_t images) {
            return self.submit({reinterpret_cast<const uint8_t*>(block), block_bytes, to_vector(starts),
                                to_vector(sizes), to_vector(records), sampling, seed, epoch,
                                reinterpret_cast<uint8_t*>(images)});
          },
          "block"_a, "block_bytes"_a, "starts"_a, "sizes"_a, "records"_a, "sampling"_a, "seed"_a, "epoch"_a,
          "images"_a)
      .def("is_done", &BatchDecoder::is_done, "batch"_a)
      .def(
          "wait",
          [](BatchDecoder& self, const Batch& batch) {
            BatchResult result;
            {
              const py::gil_scoped_release release;
              result = self.wait(batch);
            }
            return py::make_tuple(result.bad_place, result.reason);
          },
          "batch"_a)
      .def("close", &BatchDecoder::close, Release());
}

}  // namespace

PYBIND11_MODULE(_image, module) {
  bind_records(module);
  bind_sampling(module);
  bind_batches(module);
}
