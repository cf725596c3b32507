// The driver of a GPU, cuBLAS and cuRAND as far as training calls them, on the processor: the programs of
// the feature `cuda` run without a GPU, on the kernels of this folder. What candle brings is written
// here again, one plain loop each. A kernel that is not known ends the program with its name.
//
// New memory is not a number, so that what is read before it is written shows.
#include "driver.h"

#include <cmath>
#include <mutex>

namespace {

using driver::kernels;

constexpr int SUCCESS = 0;
constexpr int NOT_FOUND = 500;
// Compute capability 9.0, and pools of memory.
constexpr int CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76, POOLS = 115;

int handle;

// Where a tensor's number stands, from its place in the order of the dimensions.
size_t place(size_t at, size_t dims, const size_t *sizes, const size_t *strides) {
    size_t found = 0;
    for (size_t d = dims; d-- > 0;) {
        found += at % sizes[d] * strides[d];
        at /= sizes[d];
    }
    return found;
}

// The arguments of a kernel, one after another.
struct Arguments {
    void **given;
    template <typename T>
    T next() {
        return *static_cast<T *>(*given++);
    }
};

// Sizes and strides of as many tensors; null for contiguous ones.
struct Layouts {
    size_t dims;
    const size_t *numbers;
    explicit Layouts(Arguments &from) : dims(from.next<size_t>()), numbers(from.next<const size_t *>()) {}
    size_t of(size_t tensor, size_t at) const {
        return numbers ? place(at, dims, numbers, numbers + (1 + tensor) * dims) : at;
    }
};

template <typename T, typename U>
void add(const std::string &name, U (*of)(T, T)) {
    kernels()[name] = [of](dim3, dim3, void **given) {
        Arguments from{given};
        size_t count = from.next<size_t>();
        Layouts layouts(from);
        auto *a = from.next<const T *>(), *b = from.next<const T *>();
        auto *out = from.next<U *>();
        for (size_t i = 0; i < count; i++) out[i] = of(a[layouts.of(0, i)], b[layouts.of(1, i)]);
    };
}

template <typename T, typename U>
void add(const std::string &name, U (*of)(T)) {
    kernels()[name] = [of](dim3, dim3, void **given) {
        Arguments from{given};
        size_t count = from.next<size_t>();
        Layouts layouts(from);
        auto *x = from.next<const T *>();
        auto *out = from.next<U *>();
        for (size_t i = 0; i < count; i++) out[i] = of(x ? x[layouts.of(0, i)] : T(out[i]));
    };
}

// Sums, or the largest numbers, of so many that stand behind one another.
template <typename T>
void add_fold(const std::string &name, bool small, T (*of)(T, T), T start) {
    kernels()[name] = [=](dim3 grid, dim3, void **given) {
        Arguments from{given};
        size_t all = from.next<size_t>(), each = from.next<size_t>();
        size_t results = small ? all : grid.x;
        Layouts layouts(from);
        auto *x = from.next<const T *>();
        auto *out = from.next<T *>();
        for (size_t at = 0; at < results; at++) {
            T found = start;
            for (size_t i = at * each; i < (at + 1) * each && (small || i < all); i++) {
                found = of(found, x[layouts.of(0, i)]);
            }
            out[at] = found;
        }
    };
}

template <typename T>
void add_rest(const std::string &type) {
    add_fold<T>("fast_sum_" + type, false, [](T a, T b) { return a + b; }, 0);
    add_fold<T>("fast_sum_small_" + type, true, [](T a, T b) { return a + b; }, 0);
    add_fold<T>("fast_max_" + type, false, [](T a, T b) { return std::max(a, b); }, -INFINITY);
    kernels()["affine_" + type] = [](dim3, dim3, void **given) {
        Arguments from{given};
        size_t count = from.next<size_t>();
        Layouts layouts(from);
        auto *x = from.next<const T *>();
        auto *out = from.next<T *>();
        T factor = from.next<T>(), level = from.next<T>();
        for (size_t i = 0; i < count; i++) out[i] = (x ? x[layouts.of(0, i)] : out[i]) * factor + level;
    };
    kernels()["const_set_" + type] = [](dim3, dim3, void **given) {
        Arguments from{given};
        size_t count = from.next<size_t>();
        Layouts layouts(from);
        T value = from.next<T>();
        auto *out = from.next<T *>();
        for (size_t i = 0; i < count; i++) out[layouts.of(0, i)] = value;
    };
    kernels()["where_u8_" + type] = [](dim3, dim3, void **given) {
        Arguments from{given};
        size_t count = from.next<size_t>();
        Layouts layouts(from);
        auto *which = from.next<const uint8_t *>();
        auto *a = from.next<const T *>(), *b = from.next<const T *>();
        auto *out = from.next<T *>();
        for (size_t i = 0; i < count; i++) {
            out[i] = which[layouts.of(0, i)] ? a[layouts.of(1, i)] : b[layouts.of(2, i)];
        }
    };
    kernels()["fill_" + type] = [](dim3, dim3, void **given) {
        Arguments from{given};
        auto *out = from.next<T *>();
        T value = from.next<T>();
        size_t count = from.next<size_t>();
        for (size_t i = 0; i < count; i++) out[i] = value;
    };
    kernels()["copy2d_" + type] = [](dim3, dim3, void **given) {
        Arguments from{given};
        auto *x = from.next<const T *>();
        auto *out = from.next<T *>();
        unsigned rows = from.next<unsigned>(), columns = from.next<unsigned>();
        unsigned stride = from.next<unsigned>(), to = from.next<unsigned>();
        for (size_t i = 0; i < rows; i++) {
            for (size_t j = 0; j < columns; j++) out[i * to + j] = x[i * stride + j];
        }
    };
}

// Sizes of a tensor around the dimension that an index goes over.
struct Around {
    size_t left, from, to, right;
    explicit Around(Arguments &given)
        : left(given.next<size_t>()), from(given.next<size_t>()), to(given.next<size_t>()),
          right(given.next<size_t>()) {}
};

// By indices of 32 bits.
template <typename T>
void add_indexed(const std::string &type) {
    kernels()["is_u32_" + type] = [](dim3, dim3, void **given) {
        Arguments from{given};
        size_t count = from.next<size_t>();
        Layouts layouts(from);
        auto *index = from.next<const uint32_t *>();
        auto *x = from.next<const T *>();
        auto *out = from.next<T *>();
        Around size(from);
        for (size_t i = 0; i < count; i++) {
            size_t row = i / size.right % size.to, first = i / (size.to * size.right);
            size_t at = (first * size.from + index[row]) * size.right + i % size.right;
            // The sizes given are those of the index.
            out[i] = x[at];
        }
    };
    kernels()["gather_u32_" + type] = [](dim3, dim3, void **given) {
        Arguments from{given};
        size_t count = from.next<size_t>();
        auto *index = from.next<const uint32_t *>();
        auto *x = from.next<const T *>();
        auto *out = from.next<T *>();
        Around size(from);
        for (size_t i = 0; i < count; i++) {
            size_t first = i / (size.right * size.to);
            out[i] = x[(first * size.from + index[i]) * size.right + i % size.right];
        }
    };
    kernels()["sa_u32_" + type] = [](dim3, dim3, void **given) {
        Arguments from{given};
        auto *index = from.next<const uint32_t *>();
        auto *x = from.next<const T *>();
        auto *out = from.next<T *>();
        Around size(from);
        for (size_t i = 0; i < size.left * size.from * size.right; i++) {
            size_t first = i / (size.right * size.from);
            out[(first * size.to + index[i]) * size.right + i % size.right] += x[i];
        }
    };
    kernels()["ia_u32_" + type] = [](dim3, dim3, void **given) {
        Arguments from{given};
        auto *index = from.next<const uint32_t *>();
        size_t rows = from.next<size_t>();
        auto *x = from.next<const T *>();
        auto *out = from.next<T *>();
        Around size(from);
        for (size_t i = 0; i < size.left * rows * size.right; i++) {
            size_t row = i / size.right % rows, first = i / (size.right * rows);
            out[(first * size.to + index[row]) * size.right + i % size.right] += x[i];
        }
    };
}

template <typename T>
void add_elementwise(const std::string &type) {
    add<T, T>("badd_" + type, [](T a, T b) { return a + b; });
    add<T, T>("bsub_" + type, [](T a, T b) { return a - b; });
    add<T, T>("bmul_" + type, [](T a, T b) { return a * b; });
    add<T, T>("bdiv_" + type, [](T a, T b) { return a / b; });
    add<T, T>("bmaximum_" + type, [](T a, T b) { return std::max(a, b); });
    add<T, T>("bminimum_" + type, [](T a, T b) { return std::min(a, b); });
    add<T, uint8_t>("eq_" + type, [](T a, T b) { return uint8_t(a == b); });
    add<T, uint8_t>("ne_" + type, [](T a, T b) { return uint8_t(a != b); });
    add<T, uint8_t>("lt_" + type, [](T a, T b) { return uint8_t(a < b); });
    add<T, uint8_t>("le_" + type, [](T a, T b) { return uint8_t(a <= b); });
    add<T, uint8_t>("gt_" + type, [](T a, T b) { return uint8_t(a > b); });
    add<T, uint8_t>("ge_" + type, [](T a, T b) { return uint8_t(a >= b); });
    add<T, T>("ucopy_" + type, [](T x) { return x; });
    add<T, T>("uneg_" + type, [](T x) { return -x; });
    add<T, T>("usqr_" + type, [](T x) { return x * x; });
    add<T, T>("usqrt_" + type, [](T x) { return std::sqrt(x); });
    add<T, T>("urecip_" + type, [](T x) { return T(1) / x; });
    add<T, T>("uexp_" + type, [](T x) { return std::exp(x); });
    add<T, T>("ulog_" + type, [](T x) { return std::log(x); });
    add<T, T>("usin_" + type, [](T x) { return std::sin(x); });
    add<T, T>("ucos_" + type, [](T x) { return std::cos(x); });
    add<T, T>("utanh_" + type, [](T x) { return std::tanh(x); });
    add<T, T>("uerf_" + type, [](T x) { return std::erf(x); });
    add<T, T>("uabs_" + type, [](T x) { return std::abs(x); });
    add<T, float>("cast_" + type + "_f32", [](T x) { return float(x); });
    add<T, double>("cast_" + type + "_f64", [](T x) { return double(x); });
    add_rest<T>(type);
    add_indexed<T>(type);
}

const bool CANDLE = [] {
    add_elementwise<float>("f32");
    add_elementwise<double>("f64");
    add<uint8_t, float>("cast_u8_f32", [](uint8_t x) { return float(x); });
    add<uint8_t, double>("cast_u8_f64", [](uint8_t x) { return double(x); });
    add<uint32_t, uint32_t>("ucopy_u32", [](uint32_t x) { return x; });
    return true;
}();

// C = alpha A B + beta C by columns, for each of a batch.
template <typename T>
struct Product {
    int m, n, k;
    struct Side {
        const T *numbers;
        int turned;
        long lead, stride;
        T at(int batch, int row, int column) const {
            long i = turned ? column : row, j = turned ? row : column;
            return numbers[batch * stride + j * lead + i];
        }
    } a, b;
    T alpha, beta;
    T *c;
    long lead, stride;
    int batch;

    void run() const {
        for (int index = 0; index < batch; index++) {
            for (int j = 0; j < n; j++) {
                for (int i = 0; i < m; i++) {
                    double sum = 0;
                    for (int l = 0; l < k; l++) sum += double(a.at(index, i, l)) * b.at(index, l, j);
                    T &own = c[index * stride + j * lead + i];
                    own = T(alpha * sum) + (beta == 0 ? T(0) : beta * own);
                }
            }
        }
    }
};

std::mutex one_at_a_time;

}  // namespace

extern "C" {

int cuInit(unsigned) { return SUCCESS; }
int cuDeviceGet(int *device, int at) {
    *device = at;
    return SUCCESS;
}
int cuDeviceGetAttribute(int *found, int attribute, int) {
    *found = attribute == CAPABILITY_MAJOR ? 9 : attribute == CAPABILITY_MINOR ? 0 : attribute == POOLS ? 1 : 1024;
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int) {
    *context = &handle;
    return SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
int cuCtxGetCurrent(void **context) {
    *context = &handle;
    return SUCCESS;
}
int cuCtxSetCurrent(void *) { return SUCCESS; }
int cuCtxDestroy_v2(void *) { return SUCCESS; }
int cuEventCreate(void **event, unsigned) {
    *event = &handle;
    return SUCCESS;
}
int cuEventDestroy_v2(void *) { return SUCCESS; }
int cuEventRecord(void *, void *) { return SUCCESS; }
int cuStreamWaitEvent(void *, void *, unsigned) { return SUCCESS; }
int cuStreamSynchronize(void *) { return SUCCESS; }
int cuStreamDestroy_v2(void *) { return SUCCESS; }
int cuStreamIsCapturing(void *, int *status) {
    *status = 0;
    return SUCCESS;
}
int cuGetErrorString(int, const char **text) {
    *text = "not in the driver on the processor";
    return SUCCESS;
}

int cuMemAlloc_v2(void **to, size_t bytes) {
    *to = std::malloc(bytes ? bytes : 1);
    std::memset(*to, 0xff, bytes);
    return SUCCESS;
}
int cuMemAllocAsync(void **to, size_t bytes, void *) { return cuMemAlloc_v2(to, bytes); }
// What is used behind its end is not a number.
int cuMemFree_v2(void *at) {
    std::free(at);
    return SUCCESS;
}
int cuMemFreeAsync(void *at, void *) { return cuMemFree_v2(at); }
int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t bytes, void *) {
    std::memmove(to, from, bytes);
    return SUCCESS;
}
int cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t bytes, void *) {
    std::memmove(to, from, bytes);
    return SUCCESS;
}
int cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t bytes, void *) {
    std::memmove(to, from, bytes);
    return SUCCESS;
}
int cuMemcpyPeerAsync(void *to, void *, const void *from, void *, size_t bytes, void *) {
    std::memmove(to, from, bytes);
    return SUCCESS;
}
int cuMemsetD8Async(void *to, unsigned char value, size_t bytes, void *) {
    std::memset(to, value, bytes);
    return SUCCESS;
}

int cuModuleLoad(void **module, const char *) {
    *module = &handle;
    return SUCCESS;
}
int cuModuleLoadData(void **module, const void *) {
    *module = &handle;
    return SUCCESS;
}
int cuModuleUnload(void *) { return SUCCESS; }
int cuModuleGetFunction(void **function, void *, const char *name) {
    auto found = kernels().find(name);
    if (found == kernels().end()) {
        std::fprintf(stderr, "the driver on the processor has no kernel %s\n", name);
        return NOT_FOUND;
    }
    *function = const_cast<void *>(static_cast<const void *>(&*found));
    return SUCCESS;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned, void *, void **arguments, void **) {
    std::lock_guard<std::mutex> alone(one_at_a_time);
    auto *kernel = static_cast<std::pair<const std::string, driver::Call> *>(function);
    kernel->second(dim3(gx, gy, gz), dim3(bx, by, bz), arguments);
    return SUCCESS;
}

int cublasCreate_v2(void **to) {
    *to = &handle;
    return SUCCESS;
}
int cublasDestroy_v2(void *) { return SUCCESS; }
int cublasSetStream_v2(void *, void *) { return SUCCESS; }
int cublasDgemmStridedBatched(void *, int ta, int tb, int m, int n, int k, const double *alpha,
                              const double *a, int lda, long long sa, const double *b, int ldb,
                              long long sb, const double *beta, double *c, int ldc, long long sc,
                              int batch) {
    Product<double>{m, n, k, {a, ta, lda, sa}, {b, tb, ldb, sb}, *alpha, *beta, c, ldc, sc, batch}.run();
    return SUCCESS;
}
int cublasGemmStridedBatchedEx(void *, int ta, int tb, int m, int n, int k, const void *alpha,
                               const void *a, int, int lda, long long sa, const void *b, int, int ldb,
                               long long sb, const void *beta, void *c, int type, int ldc, long long sc,
                               int batch, int, int) {
    if (type != 0) {
        std::fprintf(stderr, "products of single precision only\n");
        return NOT_FOUND;
    }
    auto number = [](const void *at) { return static_cast<const float *>(at); };
    Product<float>{m, n, k, {number(a), ta, lda, sa}, {number(b), tb, ldb, sb}, *number(alpha),
                   *number(beta), static_cast<float *>(c), ldc, sc, batch}
        .run();
    return SUCCESS;
}

int curandCreateGenerator(void **to, int) {
    *to = &handle;
    return SUCCESS;
}
int curandDestroyGenerator(void *) { return SUCCESS; }
int curandSetPseudoRandomGeneratorSeed(void *, unsigned long long) { return SUCCESS; }
int curandSetStream(void *, void *) { return SUCCESS; }
}
