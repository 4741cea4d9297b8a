// Convolutions of 3x3 and stride 1 by Winograd's F(4x4, 3x3): 36 products for 16 outputs instead of 144.
//
// A tile of 6x6 inputs gives 4x4 outputs: out = At [(G filter Gt) * (Bt in B)] A, with a product for each of 36 places, summed over
// the input channels. So tiles and filters are moved into that form, each place is a matrix product of (tiles, inputs) and (inputs,
// outputs), and its result is moved back. The filter's gradient is Gt [(Bt in B) * (A upstream At)] G, summed over tiles. What
// stands left and right of the filters, G, is the caller's part (trunk.py). Matrices for the points 0, 1, -1, 2, -2 and infinity.

#pragma once

#include "vectors.h"

constexpr int TILE = 4, READ = 6, PLACES = READ * READ;
constexpr int BATCH = 24;  // tiles that go through together: their places stay near, and they are whole WIDEs of tiles

// Places of a batch: [place][tile][channels]. A little more than that apart, so that the places of a tile do not share a cache set.
static inline long apart(int channels) { return long(BATCH) * channels + 16; }

static inline void move_in(const Vector from[READ], Vector to[READ]) {  // Bt
    const Vector even = from[4] - 4 * from[2], odd = from[3] - 4 * from[1];
    const Vector near = from[4] - from[2], far = 2 * (from[3] - from[1]);
    to[0] = 4 * from[0] - 5 * from[2] + from[4];
    to[1] = even + odd, to[2] = even - odd;
    to[3] = near + far, to[4] = near - far;
    to[5] = 4 * from[1] - 5 * from[3] + from[5];
}

static inline void move_out(const Vector from[READ], Vector to[TILE]) {  // At
    const Vector even = from[1] + from[2], odd = from[1] - from[2], far = from[3] + from[4], wide = from[3] - from[4];
    to[0] = from[0] + even + far;
    to[1] = odd + 2 * wide;
    to[2] = even + 4 * far;
    to[3] = odd + 8 * wide + from[5];
}

static inline void move_upstream(const Vector from[TILE], Vector to[READ]) {  // A
    const Vector even = from[0] + from[2], odd = from[1] + from[3];
    const Vector far = from[0] + 4 * from[2], wide = 2 * from[1] + 8 * from[3];
    to[0] = from[0];
    to[1] = even + odd, to[2] = even - odd;
    to[3] = far + wide, to[4] = far - wide;
    to[5] = from[3];
}

// Where a tile lies: the number of its patch, its first row and column.
struct Place {
    int patch, row, column;
    Place(int tile, int side) {
        const int across = side / TILE, each = across * across;
        patch = tile / each, row = tile % each / across * TILE, column = tile % across * TILE;
    }
};

// Tiles of padded maps to their 36 places. `offset` is 0 where a tile is what a filter reads, 6x6 with the border, and MOVE is
// move_in; it is 1 where it is what a filter has written, 4x4, and MOVE is move_upstream.
template <int SIZE, void MOVE(const Vector *, Vector *)>
static void into_places(const float *maps, int channels, int side, int first, int tiles, int offset, float *places) {
    const int wide = side + 2;
    for (int tile = 0; tile < tiles; tile++) {
        const Place at(first + tile, side);
        for (int block = 0; block < channels / LANES; block++) {
            const float *source = maps + (long(at.patch) * channels / LANES + block) * wide * wide * LANES +
                                  ((at.row + offset) * wide + at.column + offset) * LANES;
            Vector moved[SIZE][READ];
            for (int column = 0; column < SIZE; column++) {
                Vector line[SIZE];
                for (int row = 0; row < SIZE; row++) line[row] = load(source + (row * wide + column) * LANES);
                MOVE(line, moved[column]);
            }
            float *target = places + long(tile) * channels + block * LANES;
            for (int row = 0; row < READ; row++) {
                Vector line[SIZE], made[READ];
                for (int column = 0; column < SIZE; column++) line[column] = moved[column][row];
                MOVE(line, made);
                for (int column = 0; column < READ; column++) store(target + (row * READ + column) * apart(channels), made[column]);
            }
        }
    }
}

// The 36 places of tiles to plain maps, plus a bias.
static void out_of_places(const float *places, int channels, int side, int first, int tiles, const float *bias, float *maps) {
    for (int tile = 0; tile < tiles; tile++) {
        const Place at(first + tile, side);
        for (int block = 0; block < channels / LANES; block++) {
            const float *source = places + long(tile) * channels + block * LANES;
            Vector moved[READ][TILE];
            for (int column = 0; column < READ; column++) {
                Vector line[READ];
                for (int row = 0; row < READ; row++) line[row] = load(source + (row * READ + column) * apart(channels));
                move_out(line, moved[column]);
            }
            float *target = maps + ((long(at.patch) * channels / LANES + block) * side * side + at.row * side + at.column) * LANES;
            const Vector start = bias ? load(bias + block * LANES) : Vector{};
            for (int row = 0; row < TILE; row++) {
                Vector line[READ], made[TILE];
                for (int column = 0; column < READ; column++) line[column] = moved[column][row];
                move_out(line, made);
                for (int column = 0; column < TILE; column++) store(target + (row * side + column) * LANES, made[column] + start);
            }
        }
    }
}

// One place of COUNT tiles: (COUNT, inputs) times (inputs, PAIR).
template <int COUNT>
static inline void multiply(const float *in, int inputs, const float *weights, float *out, int outputs) {
    Vector low[COUNT] = {}, high[COUNT] = {};
#pragma GCC unroll 2
    for (int input = 0; input < inputs; input++) {
        const Vector first = load(weights + input * PAIR), second = load(weights + input * PAIR + LANES);
#pragma GCC unroll 8
        for (int tile = 0; tile < COUNT; tile++) {
            const Vector value = all(in[tile * inputs + input]);
            low[tile] += first * value;
            high[tile] += second * value;
        }
    }
#pragma GCC unroll 8
    for (int tile = 0; tile < COUNT; tile++) {
        store(out + tile * outputs, low[tile]);
        store(out + tile * outputs + LANES, high[tile]);
    }
}

// One place of COUNT input channels: the sum over tiles of (COUNT inputs) times (PAIR outputs), on top of what is there.
template <int COUNT>
static inline void correlate(const float *in, int inputs, const float *upstream, int outputs, float *gradient, int tiles) {
    Vector low[COUNT], high[COUNT];
#pragma GCC unroll 8
    for (int input = 0; input < COUNT; input++) {
        low[input] = load(gradient + input * PAIR);
        high[input] = load(gradient + input * PAIR + LANES);
    }
#pragma GCC unroll 2
    for (int tile = 0; tile < tiles; tile++) {
        const Vector first = load(upstream + tile * outputs), second = load(upstream + tile * outputs + LANES);
#pragma GCC unroll 8
        for (int input = 0; input < COUNT; input++) {
            const Vector value = all(in[tile * inputs + input]);
            low[input] += first * value;
            high[input] += second * value;
        }
    }
#pragma GCC unroll 8
    for (int input = 0; input < COUNT; input++) {
        store(gradient + input * PAIR, low[input]);
        store(gradient + input * PAIR + LANES, high[input]);
    }
}

// Calls work<4>(start) and work<WIDE>(start) until `count`, a multiple of 4, is covered: as few fours as make the rest whole.
template <class Narrow, class Wide> static inline void in_pieces(int count, Narrow narrow, Wide wide) {
    int start = 0;
    for (; (count - start) % WIDE; start += 4) narrow(start);
    for (; start < count; start += WIDE) wide(start);
}

struct Scratch {
    Buffer in, out;
    explicit Scratch(int channels) : in(PLACES * apart(channels)), out(PLACES * apart(channels)) {}
};

// Padded maps of a group of patches in, plain maps out. weights [place][output pair][input][PAIR].
static void convolve_tiles(int channels, int side, const float *weights, const float *bias, const float *in, float *out,
                           int group, Scratch &scratch) {
    const int total = group * (side / TILE) * (side / TILE);
    for (int first = 0; first < total; first += BATCH) {
        const int tiles = std::min(BATCH, total - first);
        into_places<READ, move_in>(in, channels, side, first, tiles, 0, scratch.in.data());
        for (int place = 0; place < PLACES; place++)
            for (int pair = 0; pair < channels / PAIR; pair++) {
                const float *source = scratch.in.data() + place * apart(channels);
                const float *shared = weights + (long(place) * channels / PAIR + pair) * channels * PAIR;
                float *target = scratch.out.data() + place * apart(channels) + pair * PAIR;
                in_pieces(
                    tiles,
                    [&](int tile) { multiply<4>(source + tile * channels, channels, shared, target + tile * channels, channels); },
                    [&](int tile) { multiply<WIDE>(source + tile * channels, channels, shared, target + tile * channels, channels); });
            }
        out_of_places(scratch.out.data(), channels, side, first, tiles, bias, out);
    }
}

// Padded maps and padded upstream of a group of patches: gradient [place][output pair][input][PAIR] += their products.
static void correlate_tiles(int channels, int side, const float *in, const float *upstream, float *gradient, int group,
                            Scratch &scratch) {
    const int total = group * (side / TILE) * (side / TILE);
    for (int first = 0; first < total; first += BATCH) {
        const int tiles = std::min(BATCH, total - first);
        into_places<READ, move_in>(in, channels, side, first, tiles, 0, scratch.in.data());
        into_places<TILE, move_upstream>(upstream, channels, side, first, tiles, 1, scratch.out.data());
        for (int place = 0; place < PLACES; place++)
            for (int pair = 0; pair < channels / PAIR; pair++) {
                const float *source = scratch.in.data() + place * apart(channels);
                const float *above = scratch.out.data() + place * apart(channels) + pair * PAIR;
                float *target = gradient + (long(place) * channels / PAIR + pair) * channels * PAIR;
                in_pieces(
                    channels,
                    [&](int input) { correlate<4>(source + input, channels, above, channels, target + input * PAIR, tiles); },
                    [&](int input) { correlate<WIDE>(source + input, channels, above, channels, target + input * PAIR, tiles); });
            }
    }
}
