// The kernels as a program, to be run under an emulator by aarch64.py: numbers on standard input, results on standard output.
//
//     aarch64 trunk NETWORK COUNT PACKED TRANSPOSED FEATURES   packed parameters, transposed weights, patches, upstream
//                                                              -> maps, gradients of the packed parameters
//     aarch64 nearest ROWS COLUMNS                             products, half_a, half_b -> best, second, best of columns
//     aarch64 distances ROWS WIDTH                             a, b -> distances of their rows

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#include "../../sdgmnet/native/vectors.h"

extern "C" {
int sdgmnet_lanes();
long sdgmnet_kept_floats(int network);
void sdgmnet_forward(int, const float *, const float *, long, float *, float *, int);
void sdgmnet_backward(int, const float *, const float *, const float *, long, const float *, const float *, float *, int);
void sdgmnet_nearest(const float *, long, long, const float *, const float *, int, int, float *, int *, float *, int *, float *,
                     int *, long, int);
void sdgmnet_pair_distances(const float *, const float *, const long *, const long *, long, long, int, double *, int);
}

static Buffer read_floats(long count) {
    Buffer floats(count);
    if (long(std::fread(floats.data(), sizeof(float), count, stdin)) != count) std::exit(3);
    return floats;
}

template <class Values> static void write(const Values &values) {
    std::fwrite(values.data(), sizeof(values[0]), values.size(), stdout);
}

static void trunk(int network, long count, long packed_size, long transposed_size, long features) {
    const Buffer packed = read_floats(packed_size), transposed = read_floats(transposed_size);
    const Buffer patches = read_floats(count * INPUTS), upstream = read_floats(count * features);
    Buffer maps(count * features), kept(count * sdgmnet_kept_floats(network)), gradients(packed_size);
    sdgmnet_forward(network, packed.data(), patches.data(), count, maps.data(), kept.data(), 1);
    sdgmnet_backward(network, packed.data(), transposed.data(), patches.data(), count, kept.data(), upstream.data(),
                     gradients.data(), 1);
    write(maps), write(gradients);
}

static void nearest(long rows, long columns) {
    const Buffer products = read_floats(rows * columns), half_a = read_floats(rows), half_b = read_floats(columns);
    const float worst = -std::numeric_limits<float>::infinity();
    std::vector<float> best(rows, worst), second(rows, worst), column(columns, worst);
    std::vector<int> best_at(rows, -1), second_at(rows, -1), column_at(columns, -1);
    sdgmnet_nearest(products.data(), rows, columns, half_a.data(), half_b.data(), 0, 0, best.data(), best_at.data(),
                    second.data(), second_at.data(), column.data(), column_at.data(), columns, 1);
    write(best_at), write(second_at), write(column_at);
}

static void distances(long rows, long width) {
    const Buffer a = read_floats(rows * width), b = read_floats(rows * width);
    std::vector<long> at(rows);
    for (long row = 0; row < rows; row++) at[row] = row;
    std::vector<double> found(rows);
    sdgmnet_pair_distances(a.data(), b.data(), at.data(), at.data(), rows, width, 0, found.data(), 2);
    write(found);
}

int main(int count, char **words) {
    const std::string what = count > 1 ? words[1] : "";
    const auto number = [words](int at) { return std::atol(words[at]); };
    if (sdgmnet_lanes() != 4) return 4;
    if (what == "trunk" && count == 7)
        trunk(int(number(2)), number(3), number(4), number(5), number(6));
    else if (what == "nearest" && count == 4)
        nearest(number(2), number(3));
    else if (what == "distances" && count == 4)
        distances(number(2), number(3));
    else
        return 2;
    return 0;
}
