// Exact comparisons of distances from products in single precision. A product decides where its rounding cannot matter; where it
// could, the distance itself is computed in double. So the outcome is that of double precision throughout.
//
// Half of the squared distance of a and b is half_a + half_b - a.b, the halves being of squared lengths. In single precision its
// error is at most slack * (half_a + half_b), whatever the order of the sums: see native/distances.py.

#include <cmath>
#if defined(__AVX__)
#include <immintrin.h>
#endif
#include <system_error>
#include <thread>
#include <vector>

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
constexpr long CHUNK = 4 * LANES;  // columns that share a look for what is doubtful among them

typedef float Vector __attribute__((vector_size(LANES * 4), may_alias, aligned(4)));
typedef int Whole __attribute__((vector_size(LANES * 4), may_alias, aligned(4)));
typedef float Half __attribute__((vector_size(LANES * 2), may_alias, aligned(4)));
typedef double Double __attribute__((vector_size(LANES * 4)));

namespace {

template <typename Work> void in_threads(long rows, int threads, const Work &work) {
    std::vector<std::thread> running;
    for (int one = 0; one < threads; one++) {
        const long start = rows * one / threads, stop = rows * (one + 1) / threads;
        if (one + 1 == threads) {
            work(start, stop);
            break;
        }
        try {
            running.emplace_back([=, &work] { work(start, stop); });
        } catch (const std::system_error &) {  // no more threads to be had: slower, the same bits
            work(start, stop);
        }
    }
    for (std::thread &thread : running) thread.join();
}

// SINGLE: each difference is rounded to single precision first.
template <bool SINGLE> double distance(const float *a, const float *b, long width) {
    constexpr int STEP = LANES / 2;
    Double sum = {};
    long k = 0;
    for (; k + STEP <= width; k += STEP) {
        const Half first = *reinterpret_cast<const Half *>(a + k), second = *reinterpret_cast<const Half *>(b + k);
        Double difference;
        if (SINGLE) {
            difference = __builtin_convertvector(first - second, Double);
        } else {
            difference = __builtin_convertvector(first, Double) - __builtin_convertvector(second, Double);
        }
        sum += difference * difference;
    }
    double whole = 0;
    for (int lane = 0; lane < STEP; lane++) whole += sum[lane];
    for (; k < width; k++) {
        const double difference = SINGLE ? static_cast<double>(a[k] - b[k]) : static_cast<double>(a[k]) - b[k];
        whole += difference * difference;
    }
    return std::sqrt(whole);
}

struct Problem {
    const float *products, *a, *b, *half_a, *half_b;  // (rows, columns), (rows, width), (columns, width), (rows,), (columns,)
    long columns, width;
    float slack;
};

// A bit for each lane that is not zero.
inline unsigned bits(Whole flags) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(flags), reinterpret_cast<__m512i>(flags));
#elif defined(__AVX__)
    return _mm256_movemask_ps(reinterpret_cast<__m256>(flags));
#else
    unsigned found = 0;
    for (int lane = 0; lane < LANES; lane++) found |= (flags[lane] != 0) << lane;
    return found;
#endif
}

inline const Vector &at(const float *place) { return *reinterpret_cast<const Vector *>(place); }

// Least upper bound of half the squared distances, less half_a, of a row.
float least_upper(const Problem &p, const float *products) {
    Vector least[4] = {Vector{} + INFINITY, Vector{} + INFINITY, Vector{} + INFINITY, Vector{} + INFINITY};
    long column = 0;
    for (; column + CHUNK <= p.columns; column += CHUNK)
        for (int k = 0; k < 4; k++) {
            const Vector half = at(p.half_b + column + k * LANES);
            const Vector upper = half - at(products + column + k * LANES) + half * p.slack;
            least[k] = upper < least[k] ? upper : least[k];
        }
    float lowest = INFINITY;
    for (const Vector &one : least)
        for (int lane = 0; lane < LANES; lane++) lowest = one[lane] < lowest ? one[lane] : lowest;
    for (; column < p.columns; column++) {
        const float upper = p.half_b[column] - products[column] + p.half_b[column] * p.slack;
        lowest = upper < lowest ? upper : lowest;
    }
    return lowest;
}

void nearest_of_row(const Problem &p, long row, int *nearest, double *apart) {
    const float *products = p.products + row * p.columns;
    const float limit = least_upper(p, products) + 2 * p.slack * p.half_a[row];
    int best_at = 0;
    double best = INFINITY;
    const auto offer = [&](long column) {
        const double found = distance<false>(p.a + row * p.width, p.b + column * p.width, p.width);
        if (found < best) best = found, best_at = static_cast<int>(column);
    };
    const auto possible = [&](long column) {  // what is not a number is possible too
        const Vector half = at(p.half_b + column);
        return ~(half - at(products + column) - half * p.slack > limit);
    };
    long column = 0;
    for (; column + CHUNK <= p.columns; column += CHUNK) {
        Whole some = {};
        for (long k = column; k < column + CHUNK; k += LANES) some |= possible(k);
        if (!bits(some)) continue;
        for (long k = column; k < column + CHUNK; k += LANES)
            for (unsigned left = bits(possible(k)); left; left &= left - 1) offer(k + __builtin_ctz(left));
    }
    for (; column < p.columns; column++)
        if (!(p.half_b[column] - products[column] - p.half_b[column] * p.slack > limit)) offer(column);
    *nearest = best_at, *apart = best;
}

// How many of the columns from `start` to `stop` are nearer to the row than `near`.
int closer(const Problem &p, long row, double near, long start, long stop) {
    const float *products = p.products + row * p.columns;
    const double own = p.half_a[row], threshold = near * near / 2 - own, doubt = 2 * p.slack * (own + near * near / 2);
    const float low = static_cast<float>(threshold - doubt), high = static_cast<float>(threshold + doubt);
    const auto is_closer = [&](long column) {
        return distance<false>(p.a + row * p.width, p.b + column * p.width, p.width) < near;
    };
    const auto below = [&](long column) {
        const Vector half = at(p.half_b + column);
        return half - at(products + column) + half * p.slack < low;
    };
    const auto doubtful = [&](long column, Whole nearer) {
        const Vector half = at(p.half_b + column);
        return ~(nearer | (half - at(products + column) - half * p.slack > high));
    };
    int count = 0;
    Whole counts = {};
    long column = start;
    for (; column + CHUNK <= stop; column += CHUNK) {
        Whole doubts = {};
        for (long k = column; k < column + CHUNK; k += LANES) {
            const Whole nearer = below(k);
            counts -= nearer;
            doubts |= doubtful(k, nearer);
        }
        if (!bits(doubts)) continue;
        for (long k = column; k < column + CHUNK; k += LANES)
            for (unsigned left = bits(doubtful(k, below(k))); left; left &= left - 1) count += is_closer(k + __builtin_ctz(left));
    }
    for (int lane = 0; lane < LANES; lane++) count += counts[lane];
    for (; column < stop; column++) {
        const float half = p.half_b[column], value = half - products[column], unsure = half * p.slack;
        if (value - unsure > high) continue;
        count += value + unsure < low ? 1 : is_closer(column);
    }
    return count;
}

}  // namespace

extern "C" {

// Distances of rows[first[k]] and rows[second[k]], each difference rounded to single precision first.
void sdgmnet_pair_distances(const float *rows, long width, const long *first, const long *second, long count, float *distances,
                            int threads) {
    in_threads(count, threads, [=](long start, long stop) {
        constexpr long AHEAD = 6, LINE = 16;  // rows lie anywhere in memory: ask for them early
        for (long k = start; k < stop; k++) {
            if (k + AHEAD < stop) {
                const float *a = rows + first[k + AHEAD] * width, *b = rows + second[k + AHEAD] * width;
                for (long step = 0; step < width; step += LINE) {
                    __builtin_prefetch(a + step);
                    __builtin_prefetch(b + step);
                }
            }
            distances[k] = static_cast<float>(distance<true>(rows + first[k] * width, rows + second[k] * width, width));
        }
    });
}

// Distances of a[k / each] and b[k].
void sdgmnet_distances(const float *a, const float *b, long count, long each, long width, double *distances) {
    for (long k = 0; k < count; k++) distances[k] = distance<false>(a + k / each * width, b + k * width, width);
}

// The nearest column of each row, the first of equals, and how far it is.
void sdgmnet_first_nearest(const float *products, const float *a, const float *b, const float *half_a, const float *half_b,
                           long rows, long columns, long width, float slack, int *at, double *apart, int threads) {
    const Problem problem{products, a, b, half_a, half_b, columns, width, slack};
    in_threads(rows, threads, [&](long start, long stop) {
        for (long row = start; row < stop; row++) nearest_of_row(problem, row, at + row, apart + row);
    });
}

// Columns nearer to each row than each of its `near` (rows, nears), by parts of the columns that end at `ends`.
void sdgmnet_closer(const float *products, const float *a, const float *b, const float *half_a, const float *half_b, long rows,
                    long columns, long width, float slack, const double *near, long nears, const long *ends, long parts,
                    int *counts, int threads) {
    const Problem problem{products, a, b, half_a, half_b, columns, width, slack};
    in_threads(rows, threads, [&](long first, long stop) {
        for (long k = first * nears; k < stop * nears; k++) {
            long start = 0;
            for (long part = 0; part < parts; part++) {
                counts[k * parts + part] = closer(problem, k / nears, near[k], start, ends[part]);
                start = ends[part];
            }
        }
    });
}
}
