// One layer's convolution and its gradients, by tiles or by pixels as its stride asks.

#pragma once

#include "convolution.h"
#include "winograd.h"

// One layer's convolution of a group of patches: padded maps in, plain maps out.
static void convolve_layer(const Layer &layer, const float *weights, const float *bias, const float *in, float *out, int group,
                           Scratch &scratch) {
    if (layer.tiled())
        convolve_tiles(layer.inputs, layer.side, weights, bias, in, out, group, scratch);
    else
        convolve(layer, weights, bias, in, out, group);
}

// Its gradients: padded upstream and padded maps in; out, plain, that of the maps; added, that of the weights.
static void layer_back(const Layer &layer, const float *transposed, const float *in, const float *upstream, float *out,
                       float *gradient, int group, Scratch &scratch) {
    if (layer.tiled()) {
        correlate_tiles(layer.inputs, layer.side, in, upstream, gradient, group, scratch);
        convolve_tiles(layer.inputs, layer.side, transposed, nullptr, upstream, out, group, scratch);
    } else {
        convolve_gradient(layer, in, upstream, gradient, group);
        convolve_back(layer, transposed, upstream, out, group);
    }
}
