// Kernels by their names, for the driver on the processor.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "../emulate.h"

namespace driver {

using Call = std::function<void(dim3 grid, dim3 block, void **arguments)>;

inline std::map<std::string, Call> &kernels() {
    static std::map<std::string, Call> all;
    return all;
}

// Puts a kernel into the list; its arguments are those of its signature.
struct Bound {
    template <typename... Arguments>
    Bound(const char *name, void (*kernel)(Arguments...)) {
        kernels()[name] = [kernel](dim3 grid, dim3 block, void **given) {
            run(kernel, grid, block, given, std::index_sequence_for<Arguments...>());
        };
    }

    template <typename... Arguments, size_t... At>
    static void run(void (*kernel)(Arguments...), dim3 grid, dim3 block, void **given,
                    std::index_sequence<At...>) {
        emulate::launch(grid, block, [&] { kernel(*static_cast<Arguments *>(given[At])...); });
    }
};

}  // namespace driver

#define BIND(kernel) static driver::Bound bound_##kernel(#kernel, &kernel)
