// Shared by all kernels: vectors, the table of layers, threads, aligned memory.
//
// Channels are stored in blocks of LANES, one vector register: a map of C channels is [C / LANES][rows][columns][LANES]. A padded
// map has a border of zeros for a filter to read; a plain map has none.

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

// A kernel accumulates two vectors of output channels for WIDE tiles or DOWN x ACROSS pixels, or for WIDE or BESIDE taps x SHARE
// input channels: as many as fit the registers, and enough to hide the latency of an addition.
#if defined(__AVX512F__)
constexpr int LANES = 16, WIDE = 8, DOWN = 1, ACROSS = 8, BESIDE = 1, SHARE = 8;  // 16 of 32 registers
#elif defined(__AVX__)
constexpr int LANES = 8, WIDE = 6, DOWN = 3, ACROSS = 2, BESIDE = 3, SHARE = 2;  // 12 of 16
#else
constexpr int LANES = 4, WIDE = 6, DOWN = 3, ACROSS = 2, BESIDE = 3, SHARE = 2;
#endif
constexpr int PAIR = 2 * LANES;  // output channels a kernel makes at once
constexpr int GROUP = 6;         // patches that go through the layers together and share each block of weights
constexpr int PATCH = 32, INPUTS = PATCH * PATCH;

typedef float Vector __attribute__((vector_size(LANES * 4), may_alias));

struct Layer {
    int inputs, outputs, step, side;  // channels in and out, stride, rows of the output
    int map() const { return outputs * side * side; }
    int padded() const { return outputs * (side + 2) * (side + 2); }
    bool tiled() const { return step == 1 && inputs > 1; }  // by winograd.h
    int weights() const { return inputs * outputs * (tiled() ? 36 : 9); }
};
using Network = std::vector<Layer>;
const Network paper = {{1, 32, 1, 32}, {32, 32, 1, 32}, {32, 64, 2, 16}, {64, 64, 1, 16}, {64, 128, 2, 8}, {128, 128, 1, 8}};
const Network fast = {{1, 32, 2, 16}, {32, 32, 1, 16}, {32, 64, 2, 8}, {64, 128, 2, 4}};

static inline Vector load(const float *from) { return *reinterpret_cast<const Vector *>(from); }
static inline void store(float *to, Vector value) { *reinterpret_cast<Vector *>(to) = value; }
static inline Vector all(float value) { return value - Vector{}; }
// The larger of two, and a NaN where either is one, as torch.maximum has it.
static inline Vector larger(Vector one, Vector other) {
    return one > other ? one : (one != one ? one : other);
}
[[maybe_unused]] static inline float total(Vector values) {
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += values[lane];
    return sum;
}

// Work runs on torch's OpenMP threads where its libgomp is loaded: its idle threads spin for milliseconds and would slow down
// threads of our own.
#if defined(__linux__)
extern "C" void GOMP_parallel(void (*function)(void *), void *data, unsigned threads, unsigned flags) __attribute__((weak));
#else
constexpr void (*GOMP_parallel)(void (*)(void *), void *, unsigned, unsigned) = nullptr;
#endif

// Calls work(thread, start, stop) for each thread's share of `count`, in whole groups. The shares depend on `threads` alone:
// where the system gives fewer, one does several, with the same bits.
template <class Work> static void in_threads(long count, int threads, int group, const Work &work) {
    const long groups = (count + group - 1) / group;
    std::atomic<int> next{0};
    auto take_shares = [&] {
        for (int one = next++; one < threads; one = next++)
            work(one, std::min(count, groups * one / threads * group), std::min(count, groups * (one + 1) / threads * group));
    };
    if (GOMP_parallel && threads > 1) {
        const auto call = [](void *data) { (*static_cast<decltype(take_shares) *>(data))(); };
        GOMP_parallel(call, &take_shares, static_cast<unsigned>(threads), 0);
        return;
    }
    std::vector<std::thread> running;
    try {
        for (int one = 1; one < threads; one++) running.emplace_back(take_shares);
    } catch (const std::system_error &) {  // the system has no more threads
    }
    take_shares();
    for (std::thread &thread : running) thread.join();
}

// Memory aligned to cache lines, as loads and stores of vectors need it.
template <class Type> struct AlignedAllocator {
    using value_type = Type;
    AlignedAllocator() = default;
    template <class Other> AlignedAllocator(const AlignedAllocator<Other> &) {}
    Type *allocate(std::size_t count) { return static_cast<Type *>(::operator new(count * sizeof(Type), ALIGNMENT)); }
    void deallocate(Type *memory, std::size_t) { ::operator delete(memory, ALIGNMENT); }
    bool operator==(const AlignedAllocator &) const { return true; }
    bool operator!=(const AlignedAllocator &) const { return false; }
    static constexpr std::align_val_t ALIGNMENT{64};
};
using Buffer = std::vector<float, AlignedAllocator<float>>;  // starts at zero
