// The trunk of the encoder (docs: sdgmnet/encoders.py), forwards and backwards, for a CPU's vector units.
//
// A few patches at a time go through all layers, so that their maps stay in the second-level cache. Channels lie in blocks of LANES,
// one vector register: a map of C channels is [C / LANES][rows][columns][LANES]. A map that a 3x3 filter reads has a border of
// zeros around it. Per-sample layers only: what looks across the batch is done by the caller.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

// A kernel accumulates two vectors of output channels for DOWN x ACROSS pixels, or for BESIDE taps x SHARE input channels: as many
// as the registers hold beside what is multiplied, and enough to hide how long an addition takes.
#if defined(__AVX512F__)
constexpr int LANES = 16, DOWN = 1, ACROSS = 8, BESIDE = 1, SHARE = 8;  // 16 of 32 registers
#elif defined(__AVX__)
constexpr int LANES = 8, DOWN = 3, ACROSS = 2, BESIDE = 3, SHARE = 2;  // 12 of 16
#else
constexpr int LANES = 4, DOWN = 3, ACROSS = 2, BESIDE = 3, SHARE = 2;
#endif
constexpr int PAIR = 2 * LANES;  // output channels a kernel makes at once
constexpr int GROUP = 2;         // patches that share each block of weights while it is in the first-level cache
constexpr int PATCH = 32, INPUTS = PATCH * PATCH;

typedef float Vector __attribute__((vector_size(LANES * 4), may_alias));

struct Layer {
    int inputs, outputs, step, side;  // channels in and out, stride, rows of the output
    int map() const { return outputs * side * side; }
    int padded() const { return outputs * (side + 2) * (side + 2); }
    int weights() const { return inputs * outputs * 9; }
};
constexpr int LAYERS = 6;
const Layer layers[LAYERS] = {{1, 32, 1, 32},   {32, 32, 1, 32},  {32, 64, 2, 16},
                              {64, 64, 1, 16},  {64, 128, 2, 8},  {128, 128, 1, 8}};
constexpr int MAXIMUM_PADDED = 32 * 34 * 34, MAXIMUM_CHANNELS = 128;

// What the caller hands over for one layer, and what it gets back: the gradient has the same parts.
struct Parameters {
    float *weights, *bias, *gamma, *beta, *tau;
};

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
                if (layer.step == 1)
                    filter<1>(source, in_row, shared, taps, target, LANES, side * LANES, plane, side, side);
                else
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
    std::memset(out, 0, sizeof(float) * out_map * group);
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
                if (layer.step == 1)
                    filter_gradient<1>(source, wide * LANES, above, up_wide * LANES, up_block, target, side, side);
                else
                    filter_gradient<2>(source, wide * LANES, above, up_wide * LANES, up_block, target, side, side);
            }
        }
}

// Filter response normalisation and threshold: plain maps in, padded maps out; the inverse energies are left in `inverse`.
static void normalise(const Layer &layer, const Parameters &with, const float *in, float *out, float *inverse, bool known) {
    const int side = layer.side, wide = side + 2;
    for (int block = 0; block < layer.outputs / LANES; block++) {
        const float *source = in + block * side * side * LANES;
        if (!known) {
            Vector sums[4] = {};
            for (int pixel = 0; pixel < side * side; pixel += 4)
#pragma GCC unroll 4
                for (int one = 0; one < 4; one++) {
                    const Vector value = load(source + (pixel + one) * LANES);
                    sums[one] += value * value;
                }
            const Vector energy = (sums[0] + sums[1]) + (sums[2] + sums[3]);
            for (int lane = 0; lane < LANES; lane++)
                inverse[block * LANES + lane] = 1 / std::sqrt(energy[lane] / float(side * side) + 1e-6f);
        }
        const Vector scale = load(inverse + block * LANES) * load(with.gamma + block * LANES);
        const Vector beta = load(with.beta + block * LANES), tau = load(with.tau + block * LANES);
        float *target = out + long(block) * wide * wide * LANES;
        for (int row = 0; row < side; row++)
            for (int column = 0; column < side; column++) {
                const Vector value = load(source + (row * side + column) * LANES) * scale + beta;
                store(target + ((row + 1) * wide + column + 1) * LANES, larger(value, tau));
            }
    }
}

// Backwards through `normalise`: upstream (plain) and the maps it had read -> their gradient (padded).
static void normalise_back(const Layer &layer, const Parameters &with, const float *in, const float *inverse,
                           const float *upstream, float *out, const Parameters &gradient) {
    const int side = layer.side, wide = side + 2;
    for (int block = 0; block < layer.outputs / LANES; block++) {
        const float *source = in + block * side * side * LANES, *above = upstream + block * side * side * LANES;
        float *target = out + long(block) * wide * wide * LANES;
        const Vector energy = load(inverse + block * LANES), gamma = load(with.gamma + block * LANES);
        const Vector beta = load(with.beta + block * LANES), tau = load(with.tau + block * LANES), scale = energy * gamma;
        Vector sum = {}, moment = {}, blocked = {};
        for (int pixel = 0; pixel < side * side; pixel++) {
            const Vector value = load(source + pixel * LANES), arrived = load(above + pixel * LANES);
            const Vector response = value * scale + beta;
            // Where both are equal each takes half, as torch.maximum has it.
            const Vector passed = response > tau ? arrived : (response == tau ? arrived * 0.5f : all(0));
            sum += passed, moment += passed * value, blocked += arrived - passed;
            store(target + ((pixel / side + 1) * wide + pixel % side + 1) * LANES, passed);
        }
        const auto add = [block](float *to, Vector value) { store(to + block * LANES, load(to + block * LANES) + value); };
        add(gradient.gamma, moment * energy), add(gradient.beta, sum), add(gradient.tau, blocked);
        const Vector pull = scale * energy * energy * moment / float(side * side);
        Vector bias = {};
        for (int row = 0; row < side; row++)
            for (int column = 0; column < side; column++) {
                float *place = target + ((row + 1) * wide + column + 1) * LANES;
                const Vector value = load(place) * scale - load(source + (row * side + column) * LANES) * pull;
                store(place, value);
                bias += value;
            }
        add(gradient.bias, bias);
    }
}

// The first two layers have one input channel: written out. `image` is padded, one float a pixel.
static float normalise_input(const float *patch, const Parameters &with, float *image) {
    float energy = 0;
    for (int row = 0; row < PATCH; row++) {
        float sum = 0;
        for (int column = 0; column < PATCH; column++) sum += patch[row * PATCH + column] * patch[row * PATCH + column];
        energy += sum;
    }
    const float inverse = 1 / std::sqrt(energy / INPUTS + 1e-6f), scale = inverse * *with.gamma;
    for (int row = 0; row < PATCH; row++)
        for (int column = 0; column < PATCH; column++) {
            const float value = patch[row * PATCH + column] * scale + *with.beta;
            image[(row + 1) * (PATCH + 2) + column + 1] = *with.tau >= value || *with.tau != *with.tau ? *with.tau : value;
        }
    return inverse;
}

static void convolve_input(const float *image, const Parameters &with, float *out) {
    const int wide = PATCH + 2, blocks = layers[0].outputs / LANES;
    for (int block = 0; block < blocks; block++) {
        Vector weights[9];
        for (int tap = 0; tap < 9; tap++) weights[tap] = load(with.weights + tap * layers[0].outputs + block * LANES);
        const Vector bias = load(with.bias + block * LANES);
        for (int row = 0; row < PATCH; row++)
            for (int column = 0; column < PATCH; column++) {
                Vector sum = bias;
#pragma GCC unroll 9
                for (int tap = 0; tap < 9; tap++) sum += weights[tap] * all(image[(row + tap / 3) * wide + column + tap % 3]);
                store(out + (block * INPUTS + row * PATCH + column) * LANES, sum);
            }
    }
}

static void input_back(const float *patch, float inverse, const float *image, const float *upstream, const Parameters &first,
                       const Parameters &input, const Parameters &first_gradient, const Parameters &input_gradient) {
    const int wide = PATCH + 2, outputs = layers[0].outputs;
    float arrived[INPUTS];
    std::memset(arrived, 0, sizeof arrived);
    for (int block = 0; block < outputs / LANES; block++) {
        const float *above = upstream + long(block) * wide * wide * LANES;
        Vector sums[9] = {}, weights[9];
        for (int tap = 0; tap < 9; tap++) weights[tap] = load(first.weights + tap * outputs + block * LANES);
        for (int row = 0; row < PATCH; row++)
            for (int column = 0; column < PATCH; column++) {
                const Vector value = load(above + ((row + 1) * wide + column + 1) * LANES);
                Vector back = {};
#pragma GCC unroll 9
                for (int tap = 0; tap < 9; tap++) {
                    sums[tap] += value * all(image[(row + tap / 3) * wide + column + tap % 3]);
                    back += weights[tap] * load(above + ((row + 2 - tap / 3) * wide + column + 2 - tap % 3) * LANES);
                }
                arrived[row * PATCH + column] += total(back);
            }
        for (int tap = 0; tap < 9; tap++) {
            float *to = first_gradient.weights + tap * outputs + block * LANES;
            store(to, load(to) + sums[tap]);
        }
    }
    const float scale = inverse * *input.gamma;
    float sum = 0, moment = 0, blocked = 0;
    for (int pixel = 0; pixel < INPUTS; pixel++) {
        const float response = patch[pixel] * scale + *input.beta;
        const float passed = response > *input.tau ? arrived[pixel] : (response == *input.tau ? arrived[pixel] / 2 : 0);
        sum += passed, moment += passed * patch[pixel], blocked += arrived[pixel] - passed;
    }
    *input_gradient.gamma += moment * inverse, *input_gradient.beta += sum, *input_gradient.tau += blocked;
}

// Parameters in a row: input gamma, beta, tau (LANES apart); then each layer's weights, bias, gamma, beta, tau.
struct Model {
    Parameters input, layer[LAYERS];
    explicit Model(const float *row) {
        float *next = const_cast<float *>(row);
        const auto take = [&next](long count) { return (next += count) - count; };
        input = {nullptr, nullptr, take(LANES), take(LANES), take(LANES)};
        for (int one = 0; one < LAYERS; one++) {
            const long channels = layers[one].outputs;
            layer[one].weights = take(layers[one].weights());
            layer[one].bias = take(channels), layer[one].gamma = take(channels);
            layer[one].beta = take(channels), layer[one].tau = take(channels);
        }
        size = next - row;
    }
    long size;
};

static long kept_floats() {
    long sum = LANES;  // the input's inverse energy
    for (const Layer &layer : layers) sum += layer.map() + layer.outputs;
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

static void reorder(const float *blocked, float *plain) {  // the last maps, as torch has them
    const int area = layers[LAYERS - 1].side * layers[LAYERS - 1].side;
    for (int channel = 0; channel < layers[LAYERS - 1].outputs; channel++)
        for (int pixel = 0; pixel < area; pixel++)
            plain[channel * area + pixel] = blocked[(channel / LANES * area + pixel) * LANES + channel % LANES];
}

static void forward_some(const Model &model, const float *patches, float *maps, float *kept, long start, long stop) {
    const long keeps = kept_floats();
    Aligned<float> plain(GROUP * layers[0].map()), image((PATCH + 2) * (PATCH + 2)), energies(MAXIMUM_CHANNELS);
    Aligned<float> *padded[LAYERS];  // one for each layer: their borders stay zero
    for (int one = 0; one < LAYERS; one++) padded[one] = new Aligned<float>(long(GROUP) * layers[one].padded());
    for (long first = start; first < stop; first += GROUP) {
        const int group = int(std::min<long>(GROUP, stop - first));
        long place = LANES;
        for (int one = 0; one < LAYERS; one++) {
            const Layer &layer = layers[one];
            if (one == 0)
                for (int patch = 0; patch < group; patch++) {
                    const float inverse = normalise_input(patches + (first + patch) * INPUTS, model.input, image.data);
                    if (kept) kept[(first + patch) * keeps] = inverse;
                    convolve_input(image.data, model.layer[0], plain.data + patch * layer.map());
                }
            else
                convolve(layer, model.layer[one].weights, model.layer[one].bias, padded[one - 1]->data, plain.data, group);
            for (int patch = 0; patch < group; patch++) {
                const float *made = plain.data + long(patch) * layer.map();
                normalise(layer, model.layer[one], made, padded[one]->data + long(patch) * layer.padded(), energies.data, false);
                if (kept) {
                    float *to = kept + (first + patch) * keeps + place;
                    std::memcpy(to, made, sizeof(float) * layer.map());
                    std::memcpy(to + layer.map(), energies.data, sizeof(float) * layer.outputs);
                }
            }
            place += layer.map() + layer.outputs;
        }
        const Layer &last = layers[LAYERS - 1];
        for (int patch = 0; patch < group; patch++) {
            const float *from = padded[LAYERS - 1]->data + long(patch) * last.padded();
            for (int block = 0; block < last.outputs / LANES; block++)  // without the border
                for (int row = 0; row < last.side; row++)
                    std::memcpy(plain.data + (block * last.side + row) * last.side * LANES,
                                from + ((block * (last.side + 2) + row + 1) * (last.side + 2) + 1) * LANES,
                                sizeof(float) * last.side * LANES);
            reorder(plain.data, maps + (first + patch) * last.map());
        }
    }
    for (Aligned<float> *one : padded) delete one;
}

static void backward_some(const Model &model, const float *turned, const float *patches, const float *kept,
                          const float *upstream, const Model &gradient, long start, long stop) {
    const long keeps = kept_floats();
    Aligned<float> arrived(GROUP * layers[0].map()), image((PATCH + 2) * (PATCH + 2));
    Aligned<float> *padded[LAYERS], *inner[LAYERS];
    for (int one = 0; one < LAYERS; one++) {
        padded[one] = new Aligned<float>(long(GROUP) * layers[one].padded());
        inner[one] = new Aligned<float>(long(GROUP) * layers[one].padded());
    }
    for (long first = start; first < stop; first += GROUP) {
        const int group = int(std::min<long>(GROUP, stop - first));
        const Layer &last = layers[LAYERS - 1];
        const int area = last.side * last.side;
        for (int patch = 0; patch < group; patch++)
            for (int channel = 0; channel < last.outputs; channel++)
                for (int pixel = 0; pixel < area; pixel++)
                    arrived.data[patch * last.map() + (channel / LANES * area + pixel) * LANES + channel % LANES] =
                        upstream[(first + patch) * last.map() + channel * area + pixel];
        long place = keeps;
        const float *back = turned;
        for (int one = LAYERS - 1; one >= 0; one--) {
            const Layer &layer = layers[one];
            place -= layer.map() + layer.outputs;
            for (int patch = 0; patch < group; patch++) {
                const float *made = kept + (first + patch) * keeps + place;
                normalise_back(layer, model.layer[one], made, made + layer.map(), arrived.data + long(patch) * layer.map(),
                               inner[one]->data + long(patch) * layer.padded(), gradient.layer[one]);
            }
            if (one == 0) break;
            const Layer &below = layers[one - 1];
            for (int patch = 0; patch < group; patch++) {
                float *made = const_cast<float *>(kept) + (first + patch) * keeps + place - below.map() - below.outputs;
                normalise(below, model.layer[one - 1], made, padded[one - 1]->data + long(patch) * below.padded(),
                          made + below.map(), true);
            }
            convolve_gradient(layer, padded[one - 1]->data, inner[one]->data, gradient.layer[one].weights, group);
            convolve_back(layer, back, inner[one]->data, arrived.data, group);
            back += layer.weights();
        }
        for (int patch = 0; patch < group; patch++) {
            const float *pixels = patches + (first + patch) * INPUTS;
            normalise_input(pixels, model.input, image.data);
            input_back(pixels, kept[(first + patch) * keeps], image.data, inner[0]->data + long(patch) * layers[0].padded(),
                       model.layer[0], model.input, gradient.layer[0], gradient.input);
        }
    }
    for (int one = 0; one < LAYERS; one++) delete padded[one], delete inner[one];
}

extern "C" {

int sdgmnet_lanes() { return LANES; }

long sdgmnet_kept_floats() { return kept_floats(); }

// patches (count, 32, 32) -> maps (count, 128, 8, 8); kept (count, kept_floats) for the backward pass, or null.
void sdgmnet_forward(const float *parameters, const float *patches, long count, float *maps, float *kept, int threads) {
    const Model model(parameters);
    in_threads(count, threads, [&](int, long start, long stop) { forward_some(model, patches, maps, kept, start, stop); });
}

// upstream (count, 128, 8, 8) -> gradients (threads, as parameters), each thread's sum over its own patches, started at zero by
// the caller. `turned`: weights of the last layer to the second with the roles of input and output channels exchanged.
void sdgmnet_backward(const float *parameters, const float *turned, const float *patches, long count, const float *kept,
                      const float *upstream, float *gradients, int threads) {
    const Model model(parameters);
    in_threads(count, threads, [&](int one, long start, long stop) {
        backward_some(model, turned, patches, kept, upstream, Model(gradients + one * model.size), start, stop);
    });
}
}
