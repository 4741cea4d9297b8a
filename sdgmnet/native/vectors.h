// What the trunk's parts share: vectors, layers, work in threads, aligned memory.
//
// Channels lie in blocks of LANES, one vector register: a map of C channels is [C / LANES][rows][columns][LANES]. A map that a
// filter reads has a border of zeros around it: it is padded; any other is plain.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

// A kernel accumulates two vectors of output channels for WIDE tiles or DOWN x ACROSS pixels, or for WIDE or BESIDE taps x SHARE
// input channels: as many as the registers hold beside what is multiplied, and enough to hide how long an addition takes.
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
constexpr int LAYERS = 6;
const Layer layers[LAYERS] = {{1, 32, 1, 32},   {32, 32, 1, 32},  {32, 64, 2, 16},
                              {64, 64, 1, 16},  {64, 128, 2, 8},  {128, 128, 1, 8}};

static inline Vector load(const float *from) { return *reinterpret_cast<const Vector *>(from); }
static inline void store(float *to, Vector value) { *reinterpret_cast<Vector *>(to) = value; }
static inline Vector all(float value) { return value - Vector{}; }
// The larger of two, and a NaN where either is one, as torch.maximum has it.
static inline Vector larger(Vector one, Vector other) {
    return one > other ? one : (one != one ? one : other);
}
static inline float total(Vector values) {
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += values[lane];
    return sum;
}

template <class Work> static void in_threads(long count, int threads, Work work) {
    const long groups = (count + GROUP - 1) / GROUP;
    std::vector<std::thread> running;
    for (int one = 0; one < threads; one++) {
        const long start = std::min(count, groups * one / threads * GROUP);
        const long stop = std::min(count, groups * (one + 1) / threads * GROUP);
        if (one + 1 == threads) {
            work(one, start, stop);
            break;
        }
        try {
            running.emplace_back(work, one, start, stop);
        } catch (const std::system_error &) {  // no more threads to be had: slower, the same bits
            work(one, start, stop);
        }
    }
    for (std::thread &thread : running) thread.join();
}

template <class Type> struct Aligned {
    Type *data;
    explicit Aligned(long count) : data(static_cast<Type *>(std::aligned_alloc(64, (count * sizeof(Type) + 63) / 64 * 64))) {
        if (!data) std::abort();  // a few megabytes: nothing else would run either
        std::memset(data, 0, count * sizeof(Type));
    }
    ~Aligned() { std::free(data); }
    Aligned(const Aligned &) = delete;
};
