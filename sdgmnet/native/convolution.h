// Convolutions of 3x3 and stride 2, forwards and backwards: a filter is slid over pixels.

#pragma once

#include "vectors.h"

struct Taps {
    int count;
    long place[9];  // where the filter's tap reads, in floats from the first one
    int weight[9];  // which of the nine weights it takes
};

// out += filter * in, for one block of LANES input channels and PAIR output channels, in ROWS rows by tiles of COLUMNS pixels.
template <int STEP, int ROWS, int COLUMNS>
static inline void filter_rows(const float *in, long in_row, const float *weights, const Taps &taps, float *out,
                               long out_pixel, long out_row, long out_block, int columns) {
    for (int column = 0; column < columns; column += COLUMNS) {
        float *target = out + column * out_pixel;
        const float *source = in + long(column) * STEP * LANES;
        Vector low[ROWS][COLUMNS], high[ROWS][COLUMNS];
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 8
            for (int pixel = 0; pixel < COLUMNS; pixel++) {
                low[row][pixel] = load(target + row * out_row + pixel * out_pixel);
                high[row][pixel] = load(target + row * out_row + pixel * out_pixel + out_block);
            }
        for (int tap = 0; tap < taps.count; tap++) {
            const float *pixels = source + taps.place[tap], *weight = weights + taps.weight[tap] * LANES * PAIR;
#pragma GCC unroll 2
            for (int channel = 0; channel < LANES; channel++) {
                const Vector first = load(weight + channel * PAIR), second = load(weight + channel * PAIR + LANES);
#pragma GCC unroll 8
                for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 8
                    for (int pixel = 0; pixel < COLUMNS; pixel++) {
                        const Vector value = all(pixels[row * STEP * in_row + pixel * STEP * LANES + channel]);
                        low[row][pixel] += first * value;
                        high[row][pixel] += second * value;
                    }
            }
        }
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 8
            for (int pixel = 0; pixel < COLUMNS; pixel++) {
                store(target + row * out_row + pixel * out_pixel, low[row][pixel]);
                store(target + row * out_row + pixel * out_pixel + out_block, high[row][pixel]);
            }
    }
}

// The same for all rows: sides are powers of two, and what DOWN leaves of them are one or two rows.
template <int STEP>
static void filter(const float *in, long in_row, const float *weights, const Taps &taps, float *out, long out_pixel,
                   long out_row, long out_block, int rows, int columns) {
    int row = 0;
    for (; columns < ACROSS && row < rows; row += 2)  // of four columns
        filter_rows<STEP, 2, 4>(in + row * STEP * in_row, in_row, weights, taps, out + row * out_row, out_pixel, out_row,
                                out_block, columns);
    for (; row + DOWN <= rows; row += DOWN)
        filter_rows<STEP, DOWN, ACROSS>(in + row * STEP * in_row, in_row, weights, taps, out + row * out_row, out_pixel,
                                        out_row, out_block, columns);
    if (rows - row == 2)
        filter_rows<STEP, 2, 2>(in + row * STEP * in_row, in_row, weights, taps, out + row * out_row, out_pixel, out_row,
                                out_block, columns);
    else if (rows - row == 1)
        filter_rows<STEP, 1, 4>(in + row * STEP * in_row, in_row, weights, taps, out + row * out_row, out_pixel, out_row,
                                out_block, columns);
}

// gradient[tap][channel][PAIR] += in * upstream, for one block of input channels and PAIR output channels.
template <int STEP>
static void filter_gradient(const float *in, long in_row, const float *upstream, long up_row, long up_block,
                            float *gradient, int rows, int columns) {
    const int band = std::max(1, 128 / columns);  // rows that stay in the first-level cache for all nine taps
    for (int top = 0; top < rows; top += band)
        for (int tap = 0; tap < 9; tap += BESIDE)
            for (int channel = 0; channel < LANES; channel += SHARE) {
                float *target = gradient + (tap * LANES + channel) * PAIR;
                Vector low[BESIDE][SHARE], high[BESIDE][SHARE];
#pragma GCC unroll 8
                for (int beside = 0; beside < BESIDE; beside++)
#pragma GCC unroll 8
                    for (int one = 0; one < SHARE; one++) {
                        low[beside][one] = load(target + (beside * LANES + one) * PAIR);
                        high[beside][one] = load(target + (beside * LANES + one) * PAIR + LANES);
                    }
                for (int row = top; row < std::min(rows, top + band); row++) {
                    const float *source = in + (row * STEP + tap / 3) * in_row + tap % 3 * LANES + channel;
                    const float *above = upstream + row * up_row;
                    for (int column = 0; column < columns; column++) {
                        const Vector first = load(above + column * LANES), second = load(above + column * LANES + up_block);
#pragma GCC unroll 8
                        for (int beside = 0; beside < BESIDE; beside++)
#pragma GCC unroll 8
                            for (int one = 0; one < SHARE; one++) {
                                const Vector value = all(source[(long(column) * STEP + beside) * LANES + one]);
                                low[beside][one] += first * value;
                                high[beside][one] += second * value;
                            }
                    }
                }
#pragma GCC unroll 8
                for (int beside = 0; beside < BESIDE; beside++)
#pragma GCC unroll 8
                    for (int one = 0; one < SHARE; one++) {
                        store(target + (beside * LANES + one) * PAIR, low[beside][one]);
                        store(target + (beside * LANES + one) * PAIR + LANES, high[beside][one]);
                    }
            }
}

static Taps taps_forward(long row) {
    Taps taps{9, {}, {}};
    for (int tap = 0; tap < 9; tap++) taps.place[tap] = (tap / 3) * row + (tap % 3) * LANES, taps.weight[tap] = tap;
    return taps;
}

// One convolution of a group of patches: padded maps in, plain maps out.
static void convolve(const Layer &layer, const float *weights, const float *bias, const float *in, float *out, int group) {
    const int side = layer.side, wide = side * layer.step + 2, plane = side * side * LANES;
    const long in_row = long(wide) * LANES, in_map = long(layer.inputs) * wide * wide;
    const Taps taps = taps_forward(in_row);
    for (int pair = 0; pair < layer.outputs / PAIR; pair++) {
        for (int patch = 0; patch < group; patch++)
            for (int half = 0; half < 2; half++) {
                float *target = out + long(patch) * layer.map() + (2 * pair + half) * plane;
                const Vector start = load(bias + (2 * pair + half) * LANES);
                for (int pixel = 0; pixel < side * side; pixel++) store(target + pixel * LANES, start);
            }
        for (int block = 0; block < layer.inputs / LANES; block++) {
            const float *shared = weights + (pair * (layer.inputs / LANES) + block) * 9L * LANES * PAIR;
            for (int patch = 0; patch < group; patch++) {
                const float *source = in + patch * in_map + block * long(wide) * wide * LANES;
                float *target = out + long(patch) * layer.map() + 2 * pair * plane;
                filter<2>(source, in_row, shared, taps, target, LANES, side * LANES, plane, side, side);
            }
        }
    }
}

// The gradient of a convolution with respect to its input: padded upstream in, plain maps out. `weights` has the roles of input
// and output channels exchanged. A stride of 2 is four interleaved convolutions, one for each parity of row and column.
static void convolve_back(const Layer &layer, const float *weights, const float *upstream, float *out, int group) {
    const int side = layer.side * layer.step, wide = layer.side + 2, plane = side * side * LANES, step = layer.step;
    const long up_row = long(wide) * LANES, up_map = layer.padded(), out_map = long(layer.inputs) * side * side;
    std::fill_n(out, out_map * group, 0.0f);
    for (int pair = 0; pair < layer.inputs / PAIR; pair++)
        for (int block = 0; block < layer.outputs / LANES; block++) {
            const float *shared = weights + (pair * (layer.outputs / LANES) + block) * 9L * LANES * PAIR;
            for (int phase = 0; phase < step * step; phase++) {
                const int odd_row = phase / step, odd_column = phase % step;
                Taps taps{0, {}, {}};
                for (int tap = 0; tap < 9; tap++) {
                    // The input at row r was read by the output at (r + 1 - tap row) / step, which has the border's 1 added.
                    const int row = odd_row + 1 - tap / 3, column = odd_column + 1 - tap % 3;
                    if (row % step || column % step) continue;
                    taps.place[taps.count] = (row / step + 1) * up_row + (column / step + 1) * LANES;
                    taps.weight[taps.count++] = tap;
                }
                for (int patch = 0; patch < group; patch++) {
                    float *target = out + patch * out_map + 2 * pair * plane + (odd_row * side + odd_column) * LANES;
                    filter<1>(upstream + patch * up_map + block * long(wide) * wide * LANES, up_row, shared, taps, target,
                              step * LANES, long(step) * side * LANES, plane, layer.side, layer.side);
                }
            }
        }
}

static void convolve_gradient(const Layer &layer, const float *in, const float *upstream, float *gradient, int group) {
    const int side = layer.side, wide = side * layer.step + 2, up_wide = side + 2;
    const long in_map = long(layer.inputs) * wide * wide, up_block = long(up_wide) * up_wide * LANES;
    for (int pair = 0; pair < layer.outputs / PAIR; pair++)
        for (int block = 0; block < layer.inputs / LANES; block++) {
            float *target = gradient + (pair * (layer.inputs / LANES) + block) * 9L * LANES * PAIR;
            for (int patch = 0; patch < group; patch++) {
                const float *source = in + patch * in_map + block * long(wide) * wide * LANES;
                const float *above = upstream + long(patch) * layer.padded() + 2 * pair * up_block + (up_wide + 1) * LANES;
                filter_gradient<2>(source, wide * LANES, above, up_wide * LANES, up_block, target, side, side);
            }
        }
}
