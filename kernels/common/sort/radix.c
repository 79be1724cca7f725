/* Prefix sums, a stable radix sort of (key, position) pairs and the keys of scatters. Keys are unsigned: 32 bits in the i32 unit, 64 in the
 * i64 unit. Integer arithmetic only; exact, deterministic.
 *
 * A pass of the sort orders by 8 bits. Rows of `cols` keys are sorted each for itself: they are cut into `tiles` tiles, one block each, and
 * counters lie by row, digit and tile, so that their exclusive sums are the places where each tile's keys of a digit go.
 */
#include "common/prelude/coordinates.h"
#include "common/scan/scan.h"

#define GK_RADIX 16
#define GK_DIGIT(k, shift) ((int)((k) >> (shift)) & (GK_RADIX - 1))
/* Keys per thread, consecutive ones, and per block. */
#define GK_KEYS 8
#define GK_KEY_TILE (GK_KEYS * GK_BLOCK)
#define GK_SMALL_KEYS 4

#if GK_DTYPE == GK_I64
// Units: I64
/* partial[g] = sum of x[g*chunk .. (g+1)*chunk), negative ones taken as 0. Launch: one block per chunk. */
GK_KERNEL(scan_sums)(GK_IN(int, x), GK_OUT(gk_i64, partial), gk_i64 n, gk_i64 chunk)
{
    GK_BIND_IN(int, x); GK_BIND_OUT(gk_i64, partial);
    GK_LOCAL gk_i64 tmp[GK_BLOCK];
    gk_i64 first = gk_bid(0) * chunk, end = first + chunk < n ? first + chunk : n, sum = 0, total;
    for (gk_i64 i = first + gk_lid(); i < end; i += GK_BLOCK) sum += x[i] > 0 ? x[i] : 0;
    gk_scan64(sum, tmp, &total);
    if (gk_lid() == 0) partial[gk_bid(0)] = total;
}

/* out[i] = sum of x[0 .. i), out[n] = sum of all; negative elements are taken as 0. Launch: as scan_sums, after it. */
GK_KERNEL(scan_apply)(GK_IN(int, x), GK_IN(gk_i64, partial), GK_OUT(gk_i64, out), gk_i64 n, gk_i64 chunk)
{
    GK_BIND_IN(int, x); GK_BIND_IN(gk_i64, partial); GK_BIND_OUT(gk_i64, out);
    GK_LOCAL gk_i64 tmp[GK_BLOCK];
    int t = gk_lid();
    gk_i64 first = gk_bid(0) * chunk, end = first + chunk < n ? first + chunk : n;
    gk_i64 before = gk_sum_before(partial, gk_bid(0), tmp);
    for (gk_i64 at = first; at < end; at += GK_KEY_TILE) {
        int v[GK_KEYS];
        gk_i64 i = at + (gk_i64)t * GK_KEYS, total, s = 0;
        GK_UNROLL for (int k = 0; k < GK_KEYS; k++) {
            v[k] = i + k < end && x[i + k] > 0 ? x[i + k] : 0;
            s += v[k];
        }
        gk_i64 to = before + gk_scan64(s, tmp, &total) - s;
        GK_UNROLL for (int k = 0; k < GK_KEYS; k++) {
            if (i + k < end) out[i + k] = to;
            to += v[k];
        }
        before += total;
    }
    if (t == 0 && end == n) out[n] = before;
}

/* table[j] = the i with offsets[i] <= j < offsets[i+1], -1 where there is none; reports counts below 0 and a sum other than `size`.
 * Launch: grid-stride over quarters of max(n, size): a thread takes four neighbouring places and searches only where its place is not near. */
GK_KERNEL(repeat_table)(GK_IN(int, counts), GK_IN(gk_i64, offsets), GK_OUT(gk_i64, table), GK_OUT(int, err), gk_i64 n, gk_i64 size, int code)
{
    GK_BIND_IN(int, counts); GK_BIND_IN(gk_i64, offsets); GK_BIND_OUT(gk_i64, table); GK_BIND_OUT(int, err);
    gk_i64 all = n > size ? n : size, have = offsets[n];
    if (gk_gid() == 0 && have != size) gk_report(err, code);
    for (gk_i64 at = gk_gid() * 4; at < all; at += gk_gsize() * 4) {
        gk_i64 lo = 0, next = 0;
        GK_UNROLL for (int k = 0; k < 4; k++) {
            gk_i64 j = at + k;
            if (j < n && counts[j] < 0) gk_report(err, code);
            if (j >= size) continue;
            if (j < have && next <= j) {
                /* The one behind, or the last that begins here or before. */
                gk_i64 hi = n;
                if (k > 0) lo++;
                if (k > 0 && offsets[lo + 1] > j) hi = lo + 1;
                while (hi - lo > 1) {
                    gk_i64 mid = lo + (hi - lo) / 2;
                    if (offsets[mid] <= j) lo = mid;
                    else hi = mid;
                }
                next = offsets[lo + 1];
            }
            table[j] = j < have ? lo : -1;
        }
    }
}
#endif

/* Where counter i of a block lies: GK_RADIX counters in a row are one thread's when they are summed, so that without gaps the threads would
 * meet in few banks of the local memory. */
#define GK_COUNTERS (GK_RADIX * GK_BLOCK + GK_BLOCK)
#define GK_COUNTER(i) ((i) + (i) / GK_RADIX)

/* Exclusive sums of GK_RADIX * GK_BLOCK counters in place, digit by digit and within a digit by thread. */
GK_FN void gk_scan_counts(GK_LOCAL_PTR gk_u32* counts, GK_LOCAL_PTR gk_u32* tmp)
{
    GK_LOCAL_PTR gk_u32* mine = counts + GK_COUNTER(gk_lid() * GK_RADIX);
    gk_u32 s = 0u, total;
    GK_BARRIER();
    for (int k = 0; k < GK_RADIX; k++) s += mine[k];
    gk_u32 at = gk_block_scan(s, tmp, &total) - s;
    for (int k = 0; k < GK_RADIX; k++) {
        gk_u32 c = mine[k];
        mine[k] = at;
        at += c;
    }
    GK_BARRIER();
}

/* Values of the digit of a pass, which a block takes in two halves. */
#define GK_DIGITS 256
#define GK_DIGIT8(k, shift) ((gk_u32)((k) >> (shift)) & (GK_DIGITS - 1))

// Units: INDICES
/* counts[(row * GK_DIGITS + digit) * tiles + tile] = keys of that digit in the tile. Launch: one block per tile of GK_KEY_TILE keys. */
GK_KERNEL(radix_count)(GK_IN(gk_t, keys), GK_OUT(int, counts), gk_i64 cols, gk_i64 tiles, int shift)
{
    GK_BIND_IN(gk_t, keys); GK_BIND_OUT(int, counts);
    GK_LOCAL gk_u32 bins[GK_DIGITS];
    int t = gk_lid();
    gk_i64 row = gk_bid(0) / tiles, tile = gk_bid(0) - row * tiles, first = tile * GK_KEY_TILE;
    int have = cols - first < GK_KEY_TILE ? (int)(cols - first) : GK_KEY_TILE;
    bins[t] = 0u;
    GK_BARRIER();
    GK_UNROLL for (int k = 0; k < GK_KEYS; k++) {
        int i = k * GK_BLOCK + t;
        if (i < have) gk_local_add(bins + GK_DIGIT8((gk_b)keys[row * cols + first + i], shift), 1u);
    }
    GK_BARRIER();
    counts[(row * GK_DIGITS + t) * tiles + tile] = (int)bins[t];
}

/* Moves the pairs of a tile to their places by one digit; `offsets` are the exclusive sums of radix_count's result `counts`, without which a
 * row's counters are summed here. Without `positions` a key's position is its index. The tile is ordered in local memory first, as (digit,
 * place in the tile), so that runs of a digit are written together. Launch: as radix_count. */
GK_KERNEL(radix_scatter)(GK_IN(gk_t, keys), GK_IN(int, positions), GK_IN(int, counts), GK_IN(gk_i64, offsets), GK_OUT(gk_t, keys_out),
                        GK_OUT(int, positions_out), gk_i64 cols, gk_i64 tiles, int shift)
{
    GK_BIND_IN(gk_t, keys); GK_BIND_IN(int, positions); GK_BIND_IN(int, counts); GK_BIND_IN(gk_i64, offsets); GK_BIND_OUT(gk_t, keys_out);
    GK_BIND_OUT(int, positions_out);
    GK_LOCAL gk_u32 bins[GK_COUNTERS];
    GK_LOCAL gk_u32 tmp[GK_BLOCK];
    GK_LOCAL gk_u32 words[GK_KEY_TILE];
    GK_LOCAL gk_i64 base[GK_DIGITS];
    int t = gk_lid(), mine = t * GK_KEYS;
    gk_i64 row = gk_bid(0) / tiles, tile = gk_bid(0) - row * tiles, first = tile * GK_KEY_TILE;
    int have = cols - first < GK_KEY_TILE ? (int)(cols - first) : GK_KEY_TILE;
    first += row * cols;
    GK_GLOBAL const int* at_digit = counts + (row * GK_DIGITS + t) * tiles;
    if (!offsets) {
        gk_u32 before = 0u, sum = 0u, total;
        for (int k = 0; k < (int)tiles; k++) {
            if (k == (int)tile) before = sum;
            sum += (gk_u32)at_digit[k];
        }
        base[t] = row * cols + (gk_block_scan(sum, tmp, &total) - sum + before);
    } else {
        base[t] = offsets[at_digit - counts + tile];
    }
    gk_u32 word[GK_KEYS];
    GK_UNROLL for (int k = 0; k < GK_KEYS; k++) {
        word[k] = 0u;
        if (mine + k < have) word[k] = GK_DIGIT8((gk_b)keys[first + mine + k], shift) << 16 | (gk_u32)(mine + k);
    }
    for (int at = 16; at < 24; at += 4) {
        for (int d = 0; d < GK_RADIX; d++) bins[GK_COUNTER(d * GK_BLOCK + t)] = 0u;
        GK_UNROLL for (int k = 0; k < GK_KEYS; k++) {
            if (mine + k < have) bins[GK_COUNTER(GK_DIGIT(word[k], at) * GK_BLOCK + t)]++;
        }
        gk_scan_counts(bins, tmp);
        GK_UNROLL for (int k = 0; k < GK_KEYS; k++) {
            if (mine + k < have) words[bins[GK_COUNTER(GK_DIGIT(word[k], at) * GK_BLOCK + t)]++] = word[k];
        }
        GK_BARRIER();
        GK_UNROLL for (int k = 0; k < GK_KEYS; k++) {
            if (mine + k < have) word[k] = words[mine + k];
        }
        GK_BARRIER();
    }
    for (int i = t; i < have; i += GK_BLOCK) {
        gk_u32 d = words[i] >> 16, before = GK_DIGITS;
        if (i > 0) before = words[i - 1] >> 16;
        if (d != before) base[d] -= i;
    }
    GK_BARRIER();
    for (int i = t; i < have; i += GK_BLOCK) {
        gk_i64 to = base[words[i] >> 16] + i, from = first + (words[i] & 0xffffu);
        int p = (int)from;
        if (positions) p = positions[from];
        keys_out[to] = keys[from];
        positions_out[to] = p;
    }
}

/* The whole sort of up to GK_SMALL_KEYS * GK_BLOCK keys in one block. Launch: one block. */
GK_KERNEL(radix_small)(GK_IN(gk_t, keys), GK_OUT(gk_t, keys_out), GK_OUT(int, positions_out), int n, int bits)
{
    GK_BIND_IN(gk_t, keys); GK_BIND_OUT(gk_t, keys_out); GK_BIND_OUT(int, positions_out);
    GK_LOCAL gk_u32 counts[GK_COUNTERS];
    GK_LOCAL gk_u32 tmp[GK_BLOCK];
    GK_LOCAL gk_b k_[GK_SMALL_KEYS * GK_BLOCK];
    GK_LOCAL int p_[GK_SMALL_KEYS * GK_BLOCK];
    int t = gk_lid(), first = t * GK_SMALL_KEYS;
    gk_b key[GK_SMALL_KEYS];
    int pos[GK_SMALL_KEYS];
    GK_UNROLL for (int k = 0; k < GK_SMALL_KEYS; k++) {
        key[k] = first + k < n ? (gk_b)keys[first + k] : 0;
        pos[k] = first + k;
    }
    for (int shift = 0; shift < bits; shift += 4) {
        for (int d = 0; d < GK_RADIX; d++) counts[GK_COUNTER(d * GK_BLOCK + t)] = 0u;
        GK_UNROLL for (int k = 0; k < GK_SMALL_KEYS; k++) {
            if (first + k < n) counts[GK_COUNTER(GK_DIGIT(key[k], shift) * GK_BLOCK + t)]++;
        }
        gk_scan_counts(counts, tmp);
        GK_UNROLL for (int k = 0; k < GK_SMALL_KEYS; k++) {
            if (first + k < n) {
                gk_u32 to = counts[GK_COUNTER(GK_DIGIT(key[k], shift) * GK_BLOCK + t)]++;
                k_[to] = key[k];
                p_[to] = pos[k];
            }
        }
        GK_BARRIER();
        GK_UNROLL for (int k = 0; k < GK_SMALL_KEYS; k++) {
            if (first + k < n) {
                key[k] = k_[first + k];
                pos[k] = p_[first + k];
            }
        }
        GK_BARRIER();
    }
    GK_UNROLL for (int k = 0; k < GK_SMALL_KEYS; k++) {
        if (first + k < n) {
            keys_out[first + k] = (gk_t)key[k];
            positions_out[first + k] = pos[k];
        }
    }
}

/* keys[e] = the cell of y that element e of a scatter addresses: its coordinates with the one at `axis` (0 in `sy`) replaced by the index,
 * which steps by `step`. An index outside [0, size) is reported and gives `none`, or with `mask` the first number from `none` on whose bits in the
 * mask are those behind the last cell of its row: no cell of the row has them. Launch: grid-stride over elements. */
GK_KERNEL(scatter_keys)(GK_IN(int, index), GK_OUT(gk_t, keys), GK_OUT(int, err), gk_i64 n, int wide, gk_i64 size, gk_i64 step, gk_i64 none,
                        gk_i64 mask, int rank, GK_DIMS(shape), GK_DIMS(magic), GK_DIMS(sy), int code)
{
    GK_BIND_IN(int, index); GK_BIND_OUT(gk_t, keys); GK_BIND_OUT(int, err);
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_i64 i = gk_index(index, e, wide), at = 0;
        GK_AXES(e, n, rank, shape, magic, { at += r * sy.v[d]; });
        int bad = i < 0 || i >= size;
        if (bad) gk_report(err, code);
        keys[e] = (gk_t)(bad ? none + ((at + size * step - none) & mask) : at + i * step);
    }
}

/* keys[e] = keys[e] * size + index[e] (`first`: index[e] alone), the index broadcast by its strides; -1 once any index was outside
 * [0, size), which is reported; the `last` step turns that into `none`. Launch: grid-stride over elements. */
GK_KERNEL(put_keys)(GK_IN(int, index), GK_OUT(gk_t, keys), GK_OUT(int, err), gk_i64 n, int wide, gk_i64 size, int first, int last, gk_i64 none,
                    int rank, GK_DIMS(shape), GK_DIMS(magic), GK_DIMS(si), int code)
{
    GK_BIND_IN(int, index); GK_BIND_OUT(gk_t, keys); GK_BIND_OUT(int, err);
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_i64 from = 0, key = first ? 0 : (gk_i64)keys[e];
        GK_AXES(e, n, rank, shape, magic, { from += r * si.v[d]; });
        gk_i64 i = gk_index(index, from, wide);
        int bad = i < 0 || i >= size;
        if (bad) gk_report(err, code);
        key = key < 0 || bad ? -1 : key * size + i;
        keys[e] = (gk_t)(last && key < 0 ? none : key);
    }
}
