// The trunk of an encoder (docs: sdgmnet/encoders/sdgmnet.py, fast.py), forwards and backwards, for a CPU's vector units.
//
// A group of patches goes through all layers, so that their maps stay in the second-level cache. Per-sample layers only: BatchNorm
// is the caller's.

#include <cmath>
#include <cstring>
#include <type_traits>

#include "layer.h"

// One layer's parameters (const float), or their gradients (float).
template <class Float> struct Parts {
    Float *weights, *bias, *gamma, *beta, *tau;
};
using Parameters = Parts<const float>;
using Gradients = Parts<float>;

// All parameters or gradients in a row: input gamma, beta, tau (LANES apart); then each layer's weights, bias, gamma, beta, tau.
template <class Float> struct Model {
    Parts<Float> input;
    std::vector<Parts<Float>> layer;
    long size;
    Model(const Network &network, Float *row) {
        Float *next = row;
        const auto take = [&next](long count) { return (next += count) - count; };
        input = {nullptr, nullptr, take(LANES), take(LANES), take(LANES)};
        for (const Layer &one : network)
            layer.push_back({take(one.weights()), take(one.outputs), take(one.outputs), take(one.outputs), take(one.outputs)});
        size = next - row;
    }
};

// Filter response normalisation and threshold: plain maps in, padded maps out. The inverse energies of the channels are computed
// into `inverse`, or read from it where it is const.
template <class Float>
static void normalise(const Layer &layer, const Parameters &with, const float *in, float *out, Float *inverse) {
    const int side = layer.side, wide = side + 2;
    for (int block = 0; block < layer.outputs / LANES; block++) {
        const float *source = in + block * side * side * LANES;
        if constexpr (!std::is_const_v<Float>) {
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
                           const float *upstream, float *out, const Gradients &gradient) {
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

// The first two layers have one input channel. `image` is padded, one float per pixel.
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

static void convolve_input(const Layer &layer, const float *image, const Parameters &with, float *out) {
    const int wide = PATCH + 2, side = layer.side, step = layer.step;
    for (int block = 0; block < layer.outputs / LANES; block++) {
        Vector weights[9];
        for (int tap = 0; tap < 9; tap++) weights[tap] = load(with.weights + tap * layer.outputs + block * LANES);
        const Vector bias = load(with.bias + block * LANES);
        for (int row = 0; row < side; row++)
            for (int column = 0; column < side; column++) {
                const float *source = image + row * step * wide + column * step;
                Vector sum = bias;
#pragma GCC unroll 9
                for (int tap = 0; tap < 9; tap++) sum += weights[tap] * all(source[tap / 3 * wide + tap % 3]);
                store(out + (block * side * side + row * side + column) * LANES, sum);
            }
    }
}

static void input_back(const Layer &layer, const float *patch, float inverse, const float *image, const float *upstream,
                       const Parameters &first, const Parameters &input, const Gradients &first_gradient,
                       const Gradients &input_gradient, Buffer &arrived) {
    const int wide = PATCH + 2, side = layer.side, step = layer.step, outputs = layer.outputs;
    arrived.assign(wide * wide * LANES, 0);  // a vector for each pixel of the padded image
    for (int block = 0; block < outputs / LANES; block++) {
        const float *above = upstream + long(block) * (side + 2) * (side + 2) * LANES;
        Vector sums[9] = {}, weights[9];
        for (int tap = 0; tap < 9; tap++) weights[tap] = load(first.weights + tap * outputs + block * LANES);
        for (int row = 0; row < side; row++)
            for (int column = 0; column < side; column++) {
                const Vector value = load(above + ((row + 1) * (side + 2) + column + 1) * LANES);
                const long corner = row * step * wide + column * step;
#pragma GCC unroll 9
                for (int tap = 0; tap < 9; tap++) {
                    const long place = corner + tap / 3 * wide + tap % 3;
                    sums[tap] += value * all(image[place]);
                    float *to = arrived.data() + place * LANES;
                    store(to, load(to) + value * weights[tap]);
                }
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
        const float came = total(load(arrived.data() + ((pixel / PATCH + 1) * wide + pixel % PATCH + 1) * LANES));
        const float passed = response > *input.tau ? came : (response == *input.tau ? came / 2 : 0);
        sum += passed, moment += passed * patch[pixel], blocked += came - passed;
    }
    *input_gradient.gamma += moment * inverse, *input_gradient.beta += sum, *input_gradient.tau += blocked;
}

static long kept_floats(const Network &network) {
    long sum = LANES;  // the input's inverse energy
    for (const Layer &layer : network) sum += layer.map() + layer.outputs;
    return sum;
}

static void reorder(const Layer &last, const float *blocked, float *plain) {  // the last maps, as torch has them
    const int area = last.side * last.side;
    for (int channel = 0; channel < last.outputs; channel++)
        for (int pixel = 0; pixel < area; pixel++)
            plain[channel * area + pixel] = blocked[(channel / LANES * area + pixel) * LANES + channel % LANES];
}

// Padded maps of a group of patches for each layer; their borders stay zero.
static std::vector<Buffer> padded_maps(const Network &network) {
    std::vector<Buffer> maps;
    for (const Layer &layer : network) maps.emplace_back(long(GROUP) * layer.padded());
    return maps;
}

// Floats of the largest plain map.
static long largest_map(const Network &network) {
    long most = 0;
    for (const Layer &layer : network) most = std::max<long>(most, layer.map());
    return most;
}

static void forward_some(const Network &network, const Model<const float> &model, const float *patches, float *maps, float *kept,
                         long start, long stop) {
    const long keeps = kept_floats(network);
    const Layer &last = network.back();
    Buffer plain(GROUP * largest_map(network)), image((PATCH + 2) * (PATCH + 2)), energies(last.outputs);
    Scratch scratch(last.outputs);
    std::vector<Buffer> padded = padded_maps(network);
    for (long first = start; first < stop; first += GROUP) {
        const int group = int(std::min<long>(GROUP, stop - first));
        long place = LANES;
        for (std::size_t one = 0; one < network.size(); one++) {
            const Layer &layer = network[one];
            if (one == 0)
                for (int patch = 0; patch < group; patch++) {
                    const float inverse = normalise_input(patches + (first + patch) * INPUTS, model.input, image.data());
                    if (kept) kept[(first + patch) * keeps] = inverse;
                    convolve_input(layer, image.data(), model.layer[0], plain.data() + patch * layer.map());
                }
            else
                convolve_layer(layer, model.layer[one].weights, model.layer[one].bias, padded[one - 1].data(), plain.data(), group,
                               scratch);
            for (int patch = 0; patch < group; patch++) {
                const float *made = plain.data() + long(patch) * layer.map();
                normalise(layer, model.layer[one], made, padded[one].data() + long(patch) * layer.padded(), energies.data());
                if (kept) {
                    float *to = kept + (first + patch) * keeps + place;
                    std::memcpy(to, made, sizeof(float) * layer.map());
                    std::memcpy(to + layer.map(), energies.data(), sizeof(float) * layer.outputs);
                }
            }
            place += layer.map() + layer.outputs;
        }
        for (int patch = 0; patch < group; patch++) {
            const float *from = padded.back().data() + long(patch) * last.padded();
            for (int block = 0; block < last.outputs / LANES; block++)  // without the border
                for (int row = 0; row < last.side; row++)
                    std::memcpy(plain.data() + (block * last.side + row) * last.side * LANES,
                                from + ((block * (last.side + 2) + row + 1) * (last.side + 2) + 1) * LANES,
                                sizeof(float) * last.side * LANES);
            reorder(last, plain.data(), maps + (first + patch) * last.map());
        }
    }
}

static void backward_some(const Network &network, const Model<const float> &model, const float *transposed, const float *patches,
                          const float *kept, const float *upstream, const Model<float> &gradient, long start, long stop) {
    const long keeps = kept_floats(network);
    const Layer &last = network.back();
    Buffer arrived(GROUP * largest_map(network)), image((PATCH + 2) * (PATCH + 2)), scattered;
    Scratch scratch(last.outputs);
    std::vector<Buffer> padded = padded_maps(network), inner = padded_maps(network);
    for (long first = start; first < stop; first += GROUP) {
        const int group = int(std::min<long>(GROUP, stop - first));
        const int area = last.side * last.side;
        for (int patch = 0; patch < group; patch++)
            for (int channel = 0; channel < last.outputs; channel++)
                for (int pixel = 0; pixel < area; pixel++)
                    arrived.data()[patch * last.map() + (channel / LANES * area + pixel) * LANES + channel % LANES] =
                        upstream[(first + patch) * last.map() + channel * area + pixel];
        long place = keeps;
        const float *back = transposed;
        for (int one = int(network.size()) - 1; one >= 0; one--) {
            const Layer &layer = network[one];
            place -= layer.map() + layer.outputs;
            for (int patch = 0; patch < group; patch++) {
                const float *made = kept + (first + patch) * keeps + place;
                normalise_back(layer, model.layer[one], made, made + layer.map(), arrived.data() + long(patch) * layer.map(),
                               inner[one].data() + long(patch) * layer.padded(), gradient.layer[one]);
            }
            if (one == 0) break;
            const Layer &below = network[one - 1];
            for (int patch = 0; patch < group; patch++) {
                const float *made = kept + (first + patch) * keeps + place - below.map() - below.outputs;
                normalise(below, model.layer[one - 1], made, padded[one - 1].data() + long(patch) * below.padded(),
                          made + below.map());
            }
            layer_back(layer, back, padded[one - 1].data(), inner[one].data(), arrived.data(), gradient.layer[one].weights, group,
                       scratch);
            back += layer.weights();
        }
        for (int patch = 0; patch < group; patch++) {
            const float *pixels = patches + (first + patch) * INPUTS;
            normalise_input(pixels, model.input, image.data());
            input_back(network[0], pixels, kept[(first + patch) * keeps], image.data(),
                       inner[0].data() + long(patch) * network[0].padded(), model.layer[0], model.input, gradient.layer[0],
                       gradient.input, scattered);
        }
    }
}

// One patch of 64 x 64 bytes -> 32 x 32 floats in [0, 1]: the filter [1, 3, 3, 1] both ways. At the borders, where one of its
// four pixels is outside, the other three are divided by 7 instead of 8.
static void halve_patch(const unsigned char *pixels, float *halved) {
    constexpr int SIDE = 64, HALF = SIDE / 2;
    const auto weights = [](int at) { return at == 0 || at + 1 == HALF ? 7.0f : 8.0f; };
    static const unsigned char outside[SIDE] = {};
    for (int row = 0; row < HALF; row++) {
        const unsigned char *middle = pixels + 2 * row * SIDE;
        const unsigned char *above = row ? middle - SIDE : outside;
        const unsigned char *below = row + 1 < HALF ? middle + 2 * SIDE : outside;
        int sums[SIDE + 2] = {};  // a zero at either end
        for (int column = 0; column < SIDE; column++)
            sums[column + 1] = above[column] + 3 * (middle[column] + middle[SIDE + column]) + below[column];
        for (int column = 0; column < HALF; column++) {
            const int *four = sums + 2 * column;
            halved[row * HALF + column] = float(four[0] + 3 * (four[1] + four[2]) + four[3]) /
                                          (255.0f * weights(row) * weights(column));
        }
    }
}

extern "C" {

// patches (count, 64, 64) -> (count, 32, 32) in [0, 1], as the trunk reads them.
void sdgmnet_halve(const unsigned char *patches, long count, float *halved, int threads) {
    in_threads(count, threads, 1, [=](int, long patch, long stop) {
        for (; patch < stop; patch++) halve_patch(patches + patch * 64 * 64, halved + patch * INPUTS);
    });
}

int sdgmnet_lanes() { return LANES; }

// Networks: 0 is the paper's, 1 the fast one.
long sdgmnet_kept_floats(int network) { return kept_floats(network ? fast : paper); }

// patches (count, 32, 32) -> the last maps (count, 128, 8, 8), fast (count, 128, 4, 4); kept (count, kept_floats) for the
// backward pass, or null.
void sdgmnet_forward(int network, const float *parameters, const float *patches, long count, float *maps, float *kept,
                     int threads) {
    const Network &layers = network ? fast : paper;
    const Model<const float> model(layers, parameters);
    in_threads(count, threads, GROUP,
               [&](int, long start, long stop) { forward_some(layers, model, patches, maps, kept, start, stop); });
}

// upstream, as the last maps -> gradients (threads, as parameters), each thread's sum over its own patches, started at zero by
// the caller. `transposed`: weights of the last layer to the second with the roles of input and output channels exchanged.
void sdgmnet_backward(int network, const float *parameters, const float *transposed, const float *patches, long count,
                      const float *kept, const float *upstream, float *gradients, int threads) {
    const Network &layers = network ? fast : paper;
    const Model<const float> model(layers, parameters);
    in_threads(count, threads, GROUP, [&](int one, long start, long stop) {
        const Model<float> gradient(layers, gradients + one * model.size);
        backward_some(layers, model, transposed, patches, kept, upstream, gradient, start, stop);
    });
}
}
