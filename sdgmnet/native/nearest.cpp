// Nearest neighbours from a block of products, in one sweep: the best and the second best of every row, the best of every
// column. Closeness of row i and column j is product - half_b[j] - half_a[i]: half of minus the squared distance, where the
// halves are of squared lengths. Of equals, the lowest index wins.

#include <limits>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__AVX512F__)
constexpr int LANES = 16, AT_ONCE = 4;  // rows that share a look at the columns: what their bests take fits the registers
#elif defined(__AVX__)
constexpr int LANES = 8, AT_ONCE = 2;
#else
constexpr int LANES = 4, AT_ONCE = 2;
#endif

typedef float Vector __attribute__((vector_size(LANES * 4), may_alias, aligned(4)));
typedef int Whole __attribute__((vector_size(LANES * 4), may_alias, aligned(4)));

namespace {

// A block and the state it is offered to. Row states are of the block's rows, column states of its columns.
struct Block {
    const float *products, *half_a, *half_b;  // (rows, columns), (rows,), (columns,)
    long columns;
    int first_row, first_column;  // what index the block's first ones have
    float *best;
    int *best_at;
    float *second;
    int *second_at;
};

inline bool beats(float value, int at, float other, int other_at) {
    return value > other || (value == other && at < other_at);
}

inline void offer(const Block &block, long row, float value, int at) {
    if (at < 0) return;  // a lane that saw nothing
    if (block.best_at[row] < 0 || beats(value, at, block.best[row], block.best_at[row])) {
        block.second[row] = block.best[row], block.second_at[row] = block.best_at[row];
        block.best[row] = value, block.best_at[row] = at;
    } else if (block.second_at[row] < 0 || beats(value, at, block.second[row], block.second_at[row])) {
        block.second[row] = value, block.second_at[row] = at;
    }
}

template <int ROWS> void sweep(const Block &block, long start, float *column_best, int *column_at) {
    Vector best[ROWS], second[ROWS];
    Whole best_at[ROWS], second_at[ROWS], lanes;
    for (int lane = 0; lane < LANES; lane++) lanes[lane] = lane;
    for (int row = 0; row < ROWS; row++) {
        best[row] = second[row] = Vector{} - std::numeric_limits<float>::infinity();
        best_at[row] = second_at[row] = Whole{} - 1;
    }
    const float *products = block.products + start * block.columns;
    const int first_row = block.first_row + static_cast<int>(start);
    long column = 0;
    for (; column + LANES <= block.columns; column += LANES) {
        const Vector half = *reinterpret_cast<const Vector *>(block.half_b + column);
        const Whole here = lanes + (block.first_column + static_cast<int>(column));
        Vector top = *reinterpret_cast<Vector *>(column_best + column);
        Whole top_at = *reinterpret_cast<Whole *>(column_at + column);
        for (int row = 0; row < ROWS; row++) {
            const Vector product = *reinterpret_cast<const Vector *>(products + row * block.columns + column);
            const Vector value = product - half - block.half_a[start + row];
            const auto leads = value > best[row], follows = value > second[row], tops = value > top;
            second_at[row] = leads ? best_at[row] : (follows ? here : second_at[row]);
            second[row] = leads ? best[row] : (follows ? value : second[row]);
            best_at[row] = leads ? here : best_at[row];
            best[row] = leads ? value : best[row];
            top_at = tops ? (Whole{} + (first_row + row)) : top_at;
            top = tops ? value : top;
        }
        *reinterpret_cast<Vector *>(column_best + column) = top;
        *reinterpret_cast<Whole *>(column_at + column) = top_at;
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

void sweep_rows(const Block &block, long start, long stop, float *column_best, int *column_at) {
    for (; start + AT_ONCE <= stop; start += AT_ONCE) sweep<AT_ONCE>(block, start, column_best, column_at);
    for (; start < stop; start++) sweep<1>(block, start, column_best, column_at);
}

}  // namespace

extern "C" {

// States start at minus infinity and -1, and go from block to block. Blocks come row after row: then a column's equals come in
// the order of their rows. Every thread has column states of its own, `apart` values from the next thread's.
void sdgmnet_nearest(const float *products, long rows, long columns, const float *half_a, const float *half_b, int first_row,
                     int first_column, float *best, int *best_at, float *second, int *second_at, float *column_best,
                     int *column_at, long apart, int threads) {
    const Block block{products, half_a, half_b, columns, first_row, first_column, best, best_at, second, second_at};
    std::vector<std::thread> running;
    for (int one = 0; one < threads; one++) {
        const long start = rows * one / threads, stop = rows * (one + 1) / threads;
        const auto work = [=, &block] { sweep_rows(block, start, stop, column_best + one * apart, column_at + one * apart); };
        if (one + 1 == threads) {
            work();
            break;
        }
        try {
            running.emplace_back(work);
        } catch (const std::system_error &) {  // no more threads to be had: slower, the same bits
            work();
        }
    }
    for (std::thread &thread : running) thread.join();
}
}
