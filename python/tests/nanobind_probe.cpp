/* SPDX-License-Identifier: Apache-2.0 */

/* What a module that is compiled with nanobind takes and gives, for exchange.py: `make
 * check-interop` compiles it. */

#include <cstring>
#include <memory>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <vector>

namespace nb = nanobind;
using taken = nb::ndarray<nb::ro, nb::device::cpu>;

/* Holds what it took. */
struct array {
    taken x;
};

static void copy(const taken &x, const char *from, size_t axis, std::vector<char> &to)
{
    if (axis == x.ndim()) {
        to.insert(to.end(), from, from + x.itemsize());
        return;
    }
    for (size_t i = 0; i < x.shape(axis); i++)
        copy(x,
             from + static_cast<int64_t>(i) * x.stride(axis) * static_cast<int64_t>(x.itemsize()),
             axis + 1, to);
}

static nb::bytes raw(const array &a)
{
    if (a.x.dtype().bits % 8 != 0)
        throw nb::type_error("elements smaller than a byte");
    std::vector<char> to;
    copy(a.x, static_cast<const char *>(a.x.data()), 0, to);
    return nb::bytes(to.data(), to.size());
}

static nb::ndarray<nb::array_api> make(const nb::bytes &data, const std::vector<size_t> &shape,
                                       int code, int bits)
{
    auto *memory = new std::vector<char>(data.c_str(), data.c_str() + data.size());
    nb::capsule owner(memory, [](void *p) noexcept { delete static_cast<std::vector<char> *>(p); });
    const nb::dlpack::dtype dtype{static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
    return nb::ndarray<nb::array_api>(memory->data(), shape.size(), shape.data(), owner, nullptr,
                                      dtype);
}

NB_MODULE(dlx_nanobind_probe, m)
{
    nb::class_<array>(m, "Array").def("raw", &raw).def("address", [](const array &a) {
        return reinterpret_cast<uintptr_t>(a.x.data());
    });
    m.def("take", [](taken x) { return array{std::move(x)}; });
    m.def("make", [](const nb::bytes &data, const nb::tuple &shape, int code, int bits) {
        std::vector<size_t> sizes;
        for (nb::handle n : shape)
            sizes.push_back(nb::cast<size_t>(n));
        return make(data, sizes, code, bits);
    });
}
