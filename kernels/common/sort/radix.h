/* Places of keys in the order of a digit, within a block: stable, so that of equal digits the key that comes first stays first. Runs of 32 threads have
 * consecutive keys, thread i of a run every 32nd of them; threads of a run with equal digits find each other by votes, runs by counters in local
 * memory. (Merrill and Garland, 2022: "Onesweep".)
 */
#include "common/prelude/vote.h"

#define GK_DIGIT_BITS 8
#define GK_DIGITS (1 << GK_DIGIT_BITS)
#define GK_DIGIT(k, shift) ((gk_u32)((k) >> (shift)) & (GK_DIGITS - 1))
/* Keys per thread and per block, and runs of threads. Many keys of one digit are written together, so that few blocks with many keys are faster than
 * many with few. */
#define GK_KEYS (GK_DTYPE == GK_I64 ? 12 : 24)
/* Keys per thread of a row that a block sorts alone: as many blocks as possible hide what each waits for. */
#define GK_ROW_KEYS (GK_DTYPE == GK_I64 ? 8 : 16)
#define GK_KEY_TILE (GK_KEYS * GK_BLOCK)
#define GK_RUNS (GK_BLOCK / 32)
/* Key k of this thread, which has `each`, in the order of the block's keys. */
#define GK_KEY_AT(k, each) (gk_lid() / 32 * 32 * (each) + (k) * 32 + gk_lid() % 32)
/* Loads on their way at a time. */
#define GK_AHEAD 8

/* Tile number gk_bid(0) of rows of `cols` keys: its row, its number in the row, and the keys it has, from `first` on. */
typedef struct { gk_i64 row, tile, first; int have; } gk_tile;

GK_FN gk_tile gk_tile_of(gk_i64 cols, gk_i64 tiles)
{
    gk_tile r;
    r.row = gk_bid(0) / tiles;
    r.tile = gk_bid(0) - r.row * tiles;
    gk_i64 left = cols - r.tile * GK_KEY_TILE;
    r.have = left < GK_KEY_TILE ? (int)left : GK_KEY_TILE;
    r.first = r.row * cols + r.tile * GK_KEY_TILE;
    return r;
}

/* Sum of the counts of this thread's digit in n tiles that follow each other. */
GK_FN gk_u32 gk_sum_tiles(GK_GLOBAL const int* counts, gk_i64 n)
{
    gk_u32 sum = 0u;
    for (gk_i64 i = 0; i < n; i += GK_AHEAD) {
        GK_UNROLL for (int k = 0; k < GK_AHEAD; k++) sum += i + k < n ? (gk_u32)counts[(i + k) * GK_DIGITS + gk_lid()] : 0u;
    }
    return sum;
}

/* Places of the block's keys, of which each thread has the first `each`, at most `most`, of `key`, in the order of their digits; as result that of the
 * first key of digit gk_lid(). For the whole block; `seen` has room for GK_RUNS * GK_DIGITS, tmp for GK_BLOCK; both are free again after a barrier. */
GK_FN gk_u32 gk_place_digits(gk_u32 place[GK_KEYS], const gk_b key[GK_KEYS], const int most, int each, int shift, GK_LOCAL_PTR gk_u32* seen,
                             GK_LOCAL_PTR gk_u32* tmp)
{
    int t = gk_lid();
    gk_u32 counts[GK_RUNS], below = (1u << (t & 31)) - 1u, sum = 0u, total;
    GK_LOCAL_PTR gk_u32* mine = seen + t / 32 * GK_DIGITS;
    GK_UNROLL for (int r = 0; r < GK_RUNS; r++) seen[r * GK_DIGITS + t] = 0u;
    GK_BARRIER();
    GK_UNROLL for (int k = 0; k < most; k++) {
        if (k < each) {
            gk_u32 digit = GK_DIGIT(key[k], shift), peers = gk_peers(digit, GK_DIGIT_BITS, tmp);
            gk_u32 before = (gk_u32)gk_popcount(peers & below), have = mine[digit];
            GK_RUN_BARRIER();
            if (before == 0u) mine[digit] = have + (gk_u32)gk_popcount(peers);
            GK_RUN_BARRIER();
            place[k] = have + before;
        }
    }
    GK_BARRIER();
    GK_UNROLL for (int r = 0; r < GK_RUNS; r++) {
        counts[r] = seen[r * GK_DIGITS + t];
        sum += counts[r];
    }
    gk_u32 start = gk_block_scan(sum, tmp, &total) - sum, at = start;
    GK_UNROLL for (int r = 0; r < GK_RUNS; r++) {
        seen[r * GK_DIGITS + t] = at;
        at += counts[r];
    }
    GK_BARRIER();
    GK_UNROLL for (int k = 0; k < most; k++)
        if (k < each) place[k] += mine[GK_DIGIT(key[k], shift)];
    return start;
}
