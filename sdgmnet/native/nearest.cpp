// Nearest neighbours from products of descriptors (docs: native/nearest.py).

#include <cmath>
#include <limits>

#include "vectors.h"

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace {

constexpr int AT_ONCE = LANES == 16 ? 4 : 2;  // rows that share a look at the columns: their bests fit the registers
constexpr int AT_ONCE_SCREENED = 32;          // rows whose bounds rule out columns for all of them: they fit the cache
constexpr long CHUNK = 4 * LANES;             // columns that share a look for what is doubtful among them

typedef float Floats __attribute__((vector_size(LANES * 4), may_alias, aligned(4)));  // at any address
typedef int Ints __attribute__((vector_size(LANES * 4), may_alias, aligned(4)));
typedef unsigned Words __attribute__((vector_size(LANES * 4)));
typedef unsigned short Shorts __attribute__((vector_size(LANES * 2), may_alias, aligned(2)));
typedef float Half __attribute__((vector_size(LANES * 2), may_alias, aligned(4)));
typedef double Doubles __attribute__((vector_size(LANES * 4)));

inline Floats &at(float *place) { return *reinterpret_cast<Floats *>(place); }
inline const Floats &at(const float *place) { return *reinterpret_cast<const Floats *>(place); }
inline Ints &at(int *place) { return *reinterpret_cast<Ints *>(place); }

// A block of products and the state it is offered to. Closeness of row i and column j is product - half_b[j] - half_a[i]: minus
// half the squared distance, where the halves are of squared lengths. Of equals, the lowest index wins.
struct Block {
    const float *products, *half_a, *half_b;  // (rows, columns), (rows,), (columns,)
    long columns;
    int first_row, first_column;  // indices of the block's first row and column
    float *best;
    int *best_at;
    float *second;
    int *second_at;
};

inline bool beats(float value, int at, float other, int other_at) {
    return other_at < 0 || value > other || (value == other && at < other_at);
}

inline void offer(const Block &block, long row, float value, int at) {
    if (at < 0) return;  // a lane that saw nothing
    if (beats(value, at, block.best[row], block.best_at[row])) {
        block.second[row] = block.best[row], block.second_at[row] = block.best_at[row];
        block.best[row] = value, block.best_at[row] = at;
    } else if (beats(value, at, block.second[row], block.second_at[row])) {
        block.second[row] = value, block.second_at[row] = at;
    }
}

template <int ROWS> void sweep(const Block &block, long start, float *column_best, int *column_at) {
    Floats best[ROWS], second[ROWS];
    Ints best_at[ROWS], second_at[ROWS], lanes;
    for (int lane = 0; lane < LANES; lane++) lanes[lane] = lane;
    for (int row = 0; row < ROWS; row++) {
        best[row] = second[row] = Floats{} - std::numeric_limits<float>::infinity();
        best_at[row] = second_at[row] = Ints{} - 1;
    }
    const float *products = block.products + start * block.columns;
    const int first_row = block.first_row + static_cast<int>(start);
    long column = 0;
    for (; column + LANES <= block.columns; column += LANES) {
        const Floats half = at(block.half_b + column);
        const Ints here = lanes + (block.first_column + static_cast<int>(column));
        Floats top = at(column_best + column);
        Ints top_at = at(column_at + column);
        for (int row = 0; row < ROWS; row++) {
            const Floats value = at(products + row * block.columns + column) - half - block.half_a[start + row];
            const auto leads = value > best[row], follows = value > second[row], tops = value > top;
            second_at[row] = leads ? best_at[row] : (follows ? here : second_at[row]);
            second[row] = leads ? best[row] : (follows ? value : second[row]);
            best_at[row] = leads ? here : best_at[row];
            best[row] = leads ? value : best[row];
            top_at = tops ? (Ints{} + (first_row + row)) : top_at;
            top = tops ? value : top;
        }
        at(column_best + column) = top;
        at(column_at + column) = top_at;
    }
    for (int row = 0; row < ROWS; row++) {
        for (int lane = 0; lane < LANES; lane++) {
            offer(block, start + row, best[row][lane], best_at[row][lane]);
            offer(block, start + row, second[row][lane], second_at[row][lane]);
        }
        for (long rest = column; rest < block.columns; rest++) {
            const float value = products[row * block.columns + rest] - block.half_b[rest] - block.half_a[start + row];
            offer(block, start + row, value, block.first_column + static_cast<int>(rest));
            if (value > column_best[rest]) column_best[rest] = value, column_at[rest] = first_row + row;
        }
    }
}

// Euclidean distance, in double. ROUNDED: each difference is rounded to single precision first.
template <bool ROUNDED> double distance(const float *a, const float *b, long width) {
    constexpr int STEP = LANES / 2;
    Doubles sums = {};
    long k = 0;
    for (; k + STEP <= width; k += STEP) {
        const Half first = *reinterpret_cast<const Half *>(a + k), second = *reinterpret_cast<const Half *>(b + k);
        Doubles difference;
        if constexpr (ROUNDED)
            difference = __builtin_convertvector(first - second, Doubles);
        else
            difference = __builtin_convertvector(first, Doubles) - __builtin_convertvector(second, Doubles);
        sums += difference * difference;
    }
    double sum = 0;
    for (int lane = 0; lane < STEP; lane++) sum += sums[lane];
    for (; k < width; k++) {
        const double difference = ROUNDED ? static_cast<double>(a[k] - b[k]) : static_cast<double>(a[k]) - b[k];
        sum += difference * difference;
    }
    return std::sqrt(sum);
}

// A bit for each lane that is set in the result of a comparison.
inline unsigned lanes_of(Ints flags) {
#if defined(__AVX512DQ__)
    return _mm512_movepi32_mask(reinterpret_cast<__m512i>(flags));
#elif defined(__AVX__)
    return static_cast<unsigned>(_mm256_movemask_ps(reinterpret_cast<__m256>(flags)));
#else
    unsigned found = 0;
    for (int lane = 0; lane < LANES; lane++) found |= (flags[lane] & 1u) << lane;
    return found;
#endif
}

// A block whose products are bfloat16, each wrong by at most slack * (half_a + half_b), and the rows they are products of.
struct Screen {
    const unsigned short *products;
    const float *a, *b;
    long width;
    float slack;
    // Of LANES columns: the product less half_b, with all that rounding may have added (sign 1) or taken from it (-1).
    Floats bound(const unsigned short *product, Floats half_b, float sign) const {
        const Words bits = __builtin_convertvector(*reinterpret_cast<const Shorts *>(product), Words) << 16;
        return reinterpret_cast<const Floats &>(bits) - half_b * (1 + sign * slack);
    }
};

// What the closeness of the second best of a row is at least, by the lower bounds of its block. Raises `floors` of the columns.
float raise_floors(const Block &block, const Screen &rough, long row, float *floors) {
    const unsigned short *products = rough.products + row * block.columns;
    const float own = block.half_a[row] * (1 + rough.slack);
    Floats best = Floats{} - std::numeric_limits<float>::infinity(), second = best;
    for (long column = 0; column + LANES <= block.columns; column += LANES) {
        const Floats least = rough.bound(products + column, at(block.half_b + column), 1) - own;
        Floats &floor = at(floors + column);
        floor = least > floor ? least : floor;
        const Floats lower = least < best ? least : best;
        second = lower > second ? lower : second;
        best = least > best ? least : best;
    }
    float first = block.best[row], next = block.second[row];  // the two largest of what is known and of all lanes
    for (int lane = 0; lane < LANES; lane++)
        for (const float value : {best[lane], second[lane]}) {
            next = std::max(next, std::min(first, value));
            first = std::max(first, value);
        }
    return next;
}

// As sweep, for one row: closeness is computed from the rows themselves where a product does not rule the column out. The second
// best of the row is at least `floor`, the best of each column at least its `floors`.
void screen(const Block &block, const Screen &rough, long row, float floor, const float *floors, float *column_best,
            int *column_at) {
    const unsigned short *products = rough.products + row * block.columns;
    const float own = block.half_a[row] * (1 - rough.slack);
    const auto settle = [&](long column) {
        const double apart = distance<false>(rough.a + row * rough.width, rough.b + column * rough.width, rough.width);
        const float value = static_cast<float>(-apart * apart / 2);
        offer(block, row, value, block.first_column + static_cast<int>(column));
        if (value > column_best[column])
            column_best[column] = value, column_at[column] = block.first_row + static_cast<int>(row);
    };
    long column = 0;
    for (; column + LANES <= block.columns; column += LANES) {
        const Floats most = rough.bound(products + column, at(block.half_b + column), -1) - own;
        for (unsigned left = lanes_of((most >= floor) | (most >= at(floors + column))); left; left &= left - 1)
            settle(column + __builtin_ctz(left));
    }
    for (; column < block.columns; column++) settle(column);
}

struct Problem {
    const float *products, *a, *b, *half_a, *half_b;  // (rows, columns), (rows, width), (columns, width), (rows,), (columns,)
    long columns, width;
    float slack;
};

// How many of the columns from `start` to `stop` are nearer to the row than `near`. A product decides where its rounding cannot
// matter; otherwise the distance itself is computed.
int closer(const Problem &p, long row, double near, long start, long stop) {
    const float *products = p.products + row * p.columns;
    const double own = p.half_a[row], threshold = near * near / 2 - own, doubt = 2 * p.slack * (own + near * near / 2);
    const float low = static_cast<float>(threshold - doubt), high = static_cast<float>(threshold + doubt);
    const auto is_closer = [&](long column) {
        const float value = p.half_b[column] - products[column], unsure = p.half_b[column] * p.slack;
        if (value + unsure < low) return true;
        if (value - unsure > high) return false;
        return distance<false>(p.a + row * p.width, p.b + column * p.width, p.width) < near;
    };
    int count = 0;
    Ints counts = {};
    long column = start;
    for (; column + CHUNK <= stop; column += CHUNK) {
        Ints nearer = {}, doubts = {};
        for (long k = column; k < column + CHUNK; k += LANES) {
            const Floats half = at(p.half_b + k), value = half - at(products + k), unsure = half * p.slack;
            const Ints below = value + unsure < low, above = value - unsure > high;
            nearer -= below;
            doubts |= ~(below | above);  // what is not a number is doubtful too
        }
        if (!lanes_of(doubts)) {
            counts += nearer;
            continue;
        }
        for (long k = column; k < column + CHUNK; k++) count += is_closer(k);
    }
    for (int lane = 0; lane < LANES; lane++) count += counts[lane];
    for (; column < stop; column++) count += is_closer(column);
    return count;
}

}  // namespace

extern "C" {

// The best and second best of every row and the best of every column, in one sweep. States start at minus infinity and -1, and go
// from block to block. Blocks come row by row, so a column's equals come in the order of their rows. Every thread has column
// states of its own, `apart` values from the next thread's.
void sdgmnet_nearest(const float *products, long rows, long columns, const float *half_a, const float *half_b, int first_row,
                     int first_column, float *best, int *best_at, float *second, int *second_at, float *column_best,
                     int *column_at, long apart, int threads) {
    const Block block{products, half_a, half_b, columns, first_row, first_column, best, best_at, second, second_at};
    in_threads(rows, threads, 1, [&](int thread, long row, long stop) {
        float *own_best = column_best + thread * apart;
        int *own_at = column_at + thread * apart;
        for (; row + AT_ONCE <= stop; row += AT_ONCE) sweep<AT_ONCE>(block, row, own_best, own_at);
        for (; row < stop; row++) sweep<1>(block, row, own_best, own_at);
    });
}

// The same from products in bfloat16, which only rule columns out; the rows a (rows, width) and b (columns, width) decide.
void sdgmnet_screen(const unsigned short *products, long rows, long columns, const float *half_a, const float *half_b,
                    int first_row, int first_column, float *best, int *best_at, float *second, int *second_at,
                    float *column_best, int *column_at, long apart, const float *a, const float *b, long width, float slack,
                    int threads) {
    const Block block{nullptr, half_a, half_b, columns, first_row, first_column, best, best_at, second, second_at};
    const Screen rough{products, a, b, width, slack};
    in_threads(rows, threads, 1, [&](int thread, long row, long stop) {
        float *own_best = column_best + thread * apart;
        int *own_at = column_at + thread * apart;
        std::vector<float> floors(own_best, own_best + columns);
        std::array<float, AT_ONCE_SCREENED> floor;
        for (long last = row; row < stop; row = last) {
            last = std::min(stop, row + AT_ONCE_SCREENED);
            for (long k = row; k < last; k++) floor[k - row] = raise_floors(block, rough, k, floors.data());
            for (long k = row; k < last; k++) screen(block, rough, k, floor[k - row], floors.data(), own_best, own_at);
        }
    });
}

// Distances of a[first[k]] and b[second[k]].
void sdgmnet_pair_distances(const float *a, const float *b, const long *first, const long *second, long count, long width,
                            int rounded, double *distances, int threads) {
    in_threads(count, threads, 1, [=](int, long start, long stop) {
        constexpr long AHEAD = 6, LINE = 16;  // rows lie anywhere in memory: ask for them early
        for (long k = start; k < stop; k++) {
            if (k + AHEAD < stop)
                for (long step = 0; step < width; step += LINE) {
                    __builtin_prefetch(a + first[k + AHEAD] * width + step);
                    __builtin_prefetch(b + second[k + AHEAD] * width + step);
                }
            const float *left = a + first[k] * width, *right = b + second[k] * width;
            distances[k] = rounded ? distance<true>(left, right, width) : distance<false>(left, right, width);
        }
    });
}

// Columns nearer to each row than each of its `near` (rows, nears), in parts of the columns that end at `ends`.
void sdgmnet_closer(const float *products, const float *a, const float *b, const float *half_a, const float *half_b, long rows,
                    long columns, long width, float slack, const double *near, long nears, const long *ends, long parts,
                    int *counts, int threads) {
    const Problem problem{products, a, b, half_a, half_b, columns, width, slack};
    in_threads(rows, threads, 1, [&](int, long first, long stop) {
        for (long k = first * nears; k < stop * nears; k++)
            for (long part = 0; part < parts; part++)
                counts[k * parts + part] = closer(problem, k / nears, near[k], part ? ends[part - 1] : 0, ends[part]);
    });
}
}
