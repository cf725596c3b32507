// CUDA's language on the processor, for the kernels of this folder: g++ compiles the same files as nvcc.
//
// Blocks run one after another, the threads of a block as fibers that change places at barriers and
// exchanges of a warp only. What a GPU leaves undefined ends the program here with a message: a thread
// that never comes to a barrier that the others wait at, or an exchange that not the whole warp takes
// part in. Shared memory is not a number at the start of each block. `order` turns the order of
// threads and blocks around: a kernel with a race, or without a barrier that it needs, gives other
// numbers then.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define EMULATE_UNCHECKED __attribute__((no_sanitize("address")))
#else
#define EMULATE_UNCHECKED
#endif

#if !defined(__x86_64__)
#error "change_stack is written for x86-64 alone"
#endif

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("kernel_shared")))
#define threadIdx (emulate::now->place)
#define blockIdx (emulate::block_place)
#define blockDim (emulate::block_size)
#define gridDim (emulate::grid_size)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct int2 { int x, y; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct double2 { double x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }
using std::isfinite;
using std::max;
using std::min;

// The bounds of all shared memory; the linker knows them.
extern "C" char __start_kernel_shared[], __stop_kernel_shared[];

// Goes on with another stack, and keeps what a call has to keep on this one. (The switch of the C library
// asks the kernel for the mask of signals each time, and takes ten times as long.)
extern "C" void change_stack(void **own, void *other);
asm(R"(
    .pushsection .text
    .weak change_stack
change_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .popsection
)");

namespace emulate {

constexpr unsigned WARP = 32;
constexpr size_t STACK = 1 << 16;

enum class State { Ready, AtBarrier, AtExchange, Done };

struct Fiber {
    // Where its stack ends while it waits.
    void *top = nullptr;
    std::unique_ptr<char[]> stack;
    dim3 place;
    unsigned number = 0;
    State state = State::Ready;
    // Of the two slots of an exchange: the next one is never written before all have read this one.
    unsigned parity = 0;
    void *shadow = nullptr;
};

enum class Order { Up, Down };

inline Order order = Order::Up;
// Barriers that are left out: to see that the checks miss them.
inline bool without_barriers = false;
inline dim3 block_place, block_size, grid_size;
inline Fiber *now = nullptr;
inline const std::function<void()> *body = nullptr;
inline void *scheduler = nullptr;
inline std::vector<Fiber> fibers;
inline std::vector<std::array<uint64_t, 2 * WARP>> slots;

[[noreturn]] inline void stop(const char *why) {
    std::fprintf(stderr, "emulated kernel: %s\n", why);
    std::abort();
}

// The address sanitizer has to know which stack is in use.
#if defined(__SANITIZE_ADDRESS__)
inline const void *scheduler_base = nullptr;
inline size_t scheduler_size = 0;
inline void *scheduler_shadow = nullptr;
inline void leave_for(const Fiber &fiber) {
    __sanitizer_start_switch_fiber(&scheduler_shadow, fiber.stack.get(), STACK);
}
inline void leave_for_scheduler(bool for_ever) {
    void **shadow = for_ever ? nullptr : &now->shadow;
    __sanitizer_start_switch_fiber(shadow, scheduler_base, scheduler_size);
}
inline void arrive_in_fiber() {
    __sanitizer_finish_switch_fiber(now->shadow, &scheduler_base, &scheduler_size);
}
inline void arrive_in_scheduler() {
    __sanitizer_finish_switch_fiber(scheduler_shadow, nullptr, nullptr);
}
#else
inline void leave_for(const Fiber &) {}
inline void leave_for_scheduler(bool) {}
inline void arrive_in_fiber() {}
inline void arrive_in_scheduler() {}
#endif

inline void wait(State state) {
    Fiber *own = now;
    own->state = state;
    leave_for_scheduler(false);
    change_stack(&own->top, scheduler);
    arrive_in_fiber();
}

inline void start_fiber() {
    arrive_in_fiber();
    (*body)();
    now->state = State::Done;
    leave_for_scheduler(true);
    change_stack(&now->top, scheduler);
}

inline void run(Fiber &fiber) {
    now = &fiber;
    leave_for(fiber);
    change_stack(&scheduler, fiber.top);
    arrive_in_scheduler();
}

// The index-th of `count` in the order that is set.
inline unsigned turned(unsigned index, unsigned count) {
    return order == Order::Up ? index : count - 1 - index;
}

// Runs the threads of a warp up to the barrier of the block, or to their end.
inline void run_warp(unsigned warp, unsigned threads) {
    unsigned first = warp * WARP, count = min(WARP, threads - first);
    for (;;) {
        unsigned waiting = 0;
        for (unsigned i = 0; i < count; i++) {
            Fiber &fiber = fibers[first + turned(i, count)];
            if (fiber.state == State::Ready) run(fiber);
            waiting += fiber.state == State::AtExchange;
        }
        if (waiting == 0) return;
        if (waiting != count) stop("an exchange without the whole warp");
        for (unsigned i = 0; i < count; i++) fibers[first + i].state = State::Ready;
    }
}

EMULATE_UNCHECKED inline void forget_shared_memory() {
    for (volatile char *at = __start_kernel_shared; at < __stop_kernel_shared; at++) *at = -1;
}

// A stack as `change_stack` leaves one, that returns into `start_fiber` as if that had been called.
inline void *fresh(char *stack) {
    uintptr_t end = (reinterpret_cast<uintptr_t>(stack) + STACK) & ~uintptr_t(15);
    void **top = reinterpret_cast<void **>(end) - 2;
    *top = reinterpret_cast<void *>(&start_fiber);
    for (int kept = 0; kept < 6; kept++) *--top = nullptr;
    return top;
}

inline void run_block() {
    unsigned threads = block_size.x * block_size.y * block_size.z;
    if (fibers.size() < threads) fibers.resize(threads);
    unsigned warps = (threads + WARP - 1) / WARP;
    slots.assign(warps, {});
    for (unsigned i = 0; i < threads; i++) {
        Fiber &fiber = fibers[i];
        if (!fiber.stack) fiber.stack = std::make_unique<char[]>(STACK);
        fiber.place = dim3(i % block_size.x, i / block_size.x % block_size.y,
                           i / block_size.x / block_size.y);
        fiber.number = i;
        fiber.state = State::Ready;
        fiber.parity = 0;
        fiber.shadow = nullptr;
        fiber.top = fresh(fiber.stack.get());
    }
    for (;;) {
        for (unsigned warp = 0; warp < warps; warp++) run_warp(turned(warp, warps), threads);
        unsigned waiting = 0;
        for (unsigned i = 0; i < threads; i++) waiting += fibers[i].state == State::AtBarrier;
        if (waiting == 0) return;
        if (waiting != threads) stop("a barrier without the whole block");
        for (unsigned i = 0; i < threads; i++) fibers[i].state = State::Ready;
    }
}

// kernel<<<grid, block>>>: `call` calls the kernel with its arguments.
inline void launch(dim3 grid, dim3 block, const std::function<void()> &call) {
    grid_size = grid;
    block_size = block;
    body = &call;
    unsigned blocks = grid.x * grid.y * grid.z;
    for (unsigned i = 0; i < blocks; i++) {
        unsigned at = turned(i, blocks);
        block_place = dim3(at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y);
        forget_shared_memory();
        run_block();
    }
}

// What `number` of the same warp gives; all take part.
template <typename T>
T exchange(T value, unsigned number) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    auto &own = slots[now->number / WARP];
    unsigned base = WARP * now->parity;
    now->parity ^= 1;
    std::memcpy(&own[base + now->number % WARP], &value, sizeof(T));
    wait(State::AtExchange);
    T found;
    std::memcpy(&found, &own[base + number], sizeof(T));
    return found;
}

}  // namespace emulate

inline void __syncthreads() {
    if (!emulate::without_barriers) emulate::wait(emulate::State::AtBarrier);
}

// What the thread `number` of a warp gives.
template <typename T>
T exchange_in_warp(unsigned mask, T value, unsigned number) {
    if (mask != 0xffffffffu) emulate::stop("an exchange of a part of a warp");
    return emulate::exchange(value, number);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int by) {
    unsigned own = emulate::now->number % emulate::WARP;
    return exchange_in_warp(mask, value, (own ^ unsigned(by)) % emulate::WARP);
}

// Among `width` neighbours, a power of two; a thread without such a neighbour gets its own value.
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, unsigned width) {
    unsigned own = emulate::now->number % emulate::WARP;
    return exchange_in_warp(mask, value, own % width >= by ? own - by : own);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, unsigned width) {
    unsigned own = emulate::now->number % emulate::WARP;
    return exchange_in_warp(mask, value, own % width + by < width ? own + by : own);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, unsigned from, unsigned width) {
    unsigned own = emulate::now->number % emulate::WARP;
    return exchange_in_warp(mask, value, own / width * width + from % width);
}
