// The middle of L2Net (docs: sdgmnet/encoders/l2net.py), a layer at a time: BatchNorm looks across the batch after each convolution.
//
// A layer reads the plain maps of the one below as they were before BatchNorm. While a few patches of them are in the cache they
// are normalised, thresholded at zero, convolved, and their own moments taken; the caller puts the moments of all patches together.
// Backwards, what arrives at a layer is `gated`: the gradient with respect to its maps after BatchNorm, zero where ReLU was.

#include "layer.h"

// What BatchNorm does to one layer's maps, one number per channel: value * scale + shift.
struct Norm {
    const float *scale, *shift;
};

// Plain maps in, padded maps out: normalised, and 0 where that is below 0.
static void normalise(const Layer &layer, const Norm &norm, const float *in, float *out) {
    const int side = layer.side, wide = side + 2;
    for (int block = 0; block < layer.outputs / LANES; block++) {
        const Vector scale = load(norm.scale + block * LANES), shift = load(norm.shift + block * LANES);
        const float *source = in + block * side * side * LANES;
        float *target = out + long(block) * wide * wide * LANES;
        for (int row = 0; row < side; row++)
            for (int column = 0; column < side; column++) {
                const Vector value = load(source + (row * side + column) * LANES) * scale + shift;
                store(target + ((row + 1) * wide + column + 1) * LANES, larger(value, all(0)));
            }
    }
}

// Mean and sum of squared deviations of each channel of one patch.
static void moments(const Layer &layer, const float *in, float *means, float *squares) {
    const int area = layer.side * layer.side;
    for (int block = 0; block < layer.outputs / LANES; block++) {
        const float *source = in + block * area * LANES;
        Vector sums[4] = {}, deviations[4] = {};
        for (int pixel = 0; pixel < area; pixel += 4)
#pragma GCC unroll 4
            for (int one = 0; one < 4; one++) sums[one] += load(source + (pixel + one) * LANES);
        const Vector mean = ((sums[0] + sums[1]) + (sums[2] + sums[3])) / float(area);
        for (int pixel = 0; pixel < area; pixel += 4)
#pragma GCC unroll 4
            for (int one = 0; one < 4; one++) {
                const Vector deviation = load(source + (pixel + one) * LANES) - mean;
                deviations[one] += deviation * deviation;
            }
        store(means + block * LANES, mean);
        store(squares + block * LANES, (deviations[0] + deviations[1]) + (deviations[2] + deviations[3]));
    }
}

// The gradient with respect to the maps before BatchNorm, padded: scale * (gated - mean of it - normalised * mean of their product).
static void normalise_back(const Layer &layer, const Norm &norm, const float *mean, const float *product, const float *maps,
                           const float *gated, float *out) {
    const int side = layer.side, wide = side + 2;
    for (int block = 0; block < layer.outputs / LANES; block++) {
        const Vector scale = load(norm.scale + block * LANES), shift = load(norm.shift + block * LANES);
        const Vector less = load(mean + block * LANES), pull = load(product + block * LANES);
        const float *source = maps + block * side * side * LANES, *above = gated + block * side * side * LANES;
        float *target = out + long(block) * wide * wide * LANES;
        for (int row = 0; row < side; row++)
            for (int column = 0; column < side; column++) {
                const int pixel = (row * side + column) * LANES;
                const Vector value = load(source + pixel) * scale + shift;
                store(target + ((row + 1) * wide + column + 1) * LANES, scale * (load(above + pixel) - less - value * pull));
            }
    }
}

// What arrives at one patch's maps after ReLU, gated in place, with its sums: alone, and times the normalised maps.
static void gate(const Layer &layer, const Norm &norm, const float *maps, float *arrived, float *sums, float *products) {
    const int area = layer.side * layer.side;
    for (int block = 0; block < layer.outputs / LANES; block++) {
        const Vector scale = load(norm.scale + block * LANES), shift = load(norm.shift + block * LANES);
        const float *source = maps + block * area * LANES;
        float *target = arrived + block * area * LANES;
        Vector sum[2] = {}, product[2] = {};
        for (int pixel = 0; pixel < area; pixel += 2)
#pragma GCC unroll 2
            for (int one = 0; one < 2; one++) {
                const Vector value = load(source + (pixel + one) * LANES) * scale + shift;
                const Vector passed = value > 0 ? load(target + (pixel + one) * LANES) : all(0);
                store(target + (pixel + one) * LANES, passed);
                sum[one] += passed, product[one] += passed * value;
            }
        store(sums + block * LANES, sum[0] + sum[1]);
        store(products + block * LANES, product[0] + product[1]);
    }
}

extern "C" {

// Layer `one` of `paper`: plain maps (count, below) -> plain maps (count, own) before BatchNorm; with `means` and `squares`
// (count, outputs) also their moments, or null.
void sdgmnet_layer_forward(int one, const float *weights, const float *scale, const float *shift, const float *in, float *out,
                           float *means, float *squares, long count, int threads) {
    const Layer &layer = paper[one], &below = paper[one - 1];
    in_threads(count, threads, GROUP, [&](int, long start, long stop) {
        Buffer padded(long(GROUP) * below.padded()), bias(layer.outputs);
        Scratch scratch(layer.outputs);
        for (long first = start; first < stop; first += GROUP) {
            const int group = int(std::min<long>(GROUP, stop - first));
            for (int patch = 0; patch < group; patch++)
                normalise(below, {scale, shift}, in + (first + patch) * below.map(), padded.data() + long(patch) * below.padded());
            convolve_layer(layer, weights, bias.data(), padded.data(), out + first * layer.map(), group, scratch);
            for (long place = first; means && place < first + group; place++)
                moments(layer, out + place * layer.map(), means + place * layer.outputs, squares + place * layer.outputs);
        }
    });
}

// Backwards through layer `one` and through the ReLU below it. In: its maps, what arrived gated, and of the whole batch the means
// of that and of its product with the normalised maps; the maps below. Out: what arrives below, gated, with each patch's sums and
// products (count, channels below); gradients (threads, weights), started at zero by the caller. `transposed`: as in trunk.cpp.
void sdgmnet_layer_backward(int one, const float *transposed, const float *scale, const float *shift, const float *mean,
                            const float *product, const float *maps, const float *gated, const float *below_scale,
                            const float *below_shift, const float *below_maps, float *below_gated, float *sums,
                            float *products, float *gradients, long count, int threads) {
    const Layer &layer = paper[one], &below = paper[one - 1];
    in_threads(count, threads, GROUP, [&](int thread, long start, long stop) {
        Buffer upstream(long(GROUP) * layer.padded()), padded(long(GROUP) * below.padded());
        Scratch scratch(layer.outputs);
        float *gradient = gradients + long(thread) * layer.weights();
        for (long first = start; first < stop; first += GROUP) {
            const int group = int(std::min<long>(GROUP, stop - first));
            for (int patch = 0; patch < group; patch++) {
                const long place = first + patch;
                normalise_back(layer, {scale, shift}, mean, product, maps + place * layer.map(), gated + place * layer.map(),
                               upstream.data() + long(patch) * layer.padded());
                normalise(below, {below_scale, below_shift}, below_maps + place * below.map(),
                          padded.data() + long(patch) * below.padded());
            }
            layer_back(layer, transposed, padded.data(), upstream.data(), below_gated + first * below.map(), gradient, group, scratch);
            for (long place = first; place < first + group; place++)
                gate(below, {below_scale, below_shift}, below_maps + place * below.map(), below_gated + place * below.map(),
                     sums + place * below.outputs, products + place * below.outputs);
        }
    });
}
}
