/* Prefix sums, a stable radix sort of (key, position) pairs and the keys of scatters. Keys are unsigned: 32 bits in the i32 unit, 64 in the
 * i64 unit. Integer arithmetic only; exact, deterministic.
 *
 * A pass of the sort orders by 8 bits. Rows of `cols` keys are sorted each for itself: they are cut into `tiles` tiles, one block each. Counts of
 * keys lie by row, tile and digit; what a tile has to know is how many keys of its row come before those of each of its digits.
 */
#include "common/prelude/coordinates.h"
#include "common/scan/scan.h"
#include "radix.h"

/* Elements per thread of a prefix sum, and of the keys of a scatter. */
#define GK_SCANNED 8
#define GK_RADIX_DEPTH 4

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
    for (gk_i64 at = first; at < end; at += GK_SCANNED * GK_BLOCK) {
        int v[GK_SCANNED];
        gk_i64 i = at + (gk_i64)t * GK_SCANNED, total, s = 0;
        GK_UNROLL for (int k = 0; k < GK_SCANNED; k++) {
            v[k] = i + k < end && x[i + k] > 0 ? x[i + k] : 0;
            s += v[k];
        }
        gk_i64 to = before + gk_scan64(s, tmp, &total) - s;
        GK_UNROLL for (int k = 0; k < GK_SCANNED; k++) {
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

// Units: INDICES
/* counts[row, tile, digit] = keys of that digit in the tile. Launch: one block per tile of GK_KEY_TILE keys. */
GK_KERNEL(radix_count)(GK_IN(gk_t, keys), GK_OUT(int, counts), gk_i64 cols, gk_i64 tiles, int shift)
{
    GK_BIND_IN(gk_t, keys); GK_BIND_OUT(int, counts);
    GK_LOCAL gk_u32 bins[GK_DIGITS];
    int t = gk_lid();
    gk_tile at = gk_tile_of(cols, tiles);
    gk_b key[GK_KEYS];
    bins[t] = 0u;
    GK_UNROLL for (int k = 0; k < GK_KEYS; k++) key[k] = k * GK_BLOCK + t < at.have ? (gk_b)keys[at.first + k * GK_BLOCK + t] : 0;
    GK_BARRIER();
    GK_UNROLL for (int k = 0; k < GK_KEYS; k++) {
        if (k * GK_BLOCK + t < at.have) gk_local_add(bins + GK_DIGIT(key[k], shift), 1u);
    }
    GK_BARRIER();
    counts[(gk_i64)gk_bid(0) * GK_DIGITS + t] = (int)bins[t];
}

/* sums[row, part, digit] = keys of that digit in `per` tiles of a row. Launch: one block per part; a row has ceil(tiles / per). */
GK_KERNEL(radix_sums)(GK_IN(int, counts), GK_OUT(int, sums), gk_i64 tiles, gk_i64 per, gk_i64 parts)
{
    GK_BIND_IN(int, counts); GK_BIND_OUT(int, sums);
    gk_i64 row = gk_bid(0) / parts, first = (gk_bid(0) - row * parts) * per;
    gk_i64 n = tiles - first < per ? tiles - first : per;
    sums[(gk_i64)gk_bid(0) * GK_DIGITS + gk_lid()] = (int)gk_sum_tiles(counts + (row * tiles + first) * GK_DIGITS, n);
}

/* counts[row, tile, digit] = place in the sorted keys of the first of these, which were counts before. Launch: as radix_sums, after it. */
GK_KERNEL(radix_places)(GK_IN(int, sums), GK_OUT(int, counts), gk_i64 cols, gk_i64 tiles, gk_i64 per, gk_i64 parts)
{
    GK_BIND_IN(int, sums); GK_BIND_OUT(int, counts);
    GK_LOCAL gk_u32 tmp[GK_BLOCK];
    gk_i64 row = gk_bid(0) / parts, part = gk_bid(0) - row * parts, first = part * per;
    gk_i64 n = tiles - first < per ? tiles - first : per;
    GK_GLOBAL const int* of_row = sums + row * parts * GK_DIGITS;
    GK_GLOBAL int* count = counts + (row * tiles + first) * GK_DIGITS + gk_lid();
    gk_u32 before = gk_sum_tiles(of_row, part), sum = before + gk_sum_tiles(of_row + part * GK_DIGITS, parts - part), total;
    gk_u32 at = (gk_u32)(row * cols) + gk_block_scan(sum, tmp, &total) - sum + before;
    for (gk_i64 i = 0; i < n; i += GK_AHEAD) {
        gk_u32 c[GK_AHEAD];
        GK_UNROLL for (int k = 0; k < GK_AHEAD; k++) c[k] = i + k < n ? (gk_u32)count[(i + k) * GK_DIGITS] : 0u;
        GK_UNROLL for (int k = 0; k < GK_AHEAD; k++) {
            if (i + k < n) count[(i + k) * GK_DIGITS] = (int)at;
            at += c[k];
        }
    }
}

#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2
/* Moves the pairs of a tile to their places by one digit; `counts` as radix_places leaves them, or (`count`) as radix_count does, for a block to sum
 * those of its row. Without `positions` a key's position is its index. The tile is ordered in local memory first, so that keys of a digit are written
 * together. Launch: as radix_count. */
GK_KERNEL(radix_scatter)(GK_IN(gk_t, keys), GK_IN(int, positions), GK_IN(int, counts), GK_OUT(gk_t, keys_out), GK_OUT(int, positions_out),
                         gk_i64 cols, gk_i64 tiles, int shift, int count)
{
    GK_BIND_IN(gk_t, keys); GK_BIND_IN(int, positions); GK_BIND_IN(int, counts); GK_BIND_OUT(gk_t, keys_out); GK_BIND_OUT(int, positions_out);
    GK_LOCAL gk_u32 seen[GK_RUNS * GK_DIGITS];
    GK_LOCAL gk_u32 base[GK_DIGITS];
    GK_LOCAL gk_b moved[GK_KEY_TILE];
    int t = gk_lid();
    gk_tile at = gk_tile_of(cols, tiles);
    gk_b key[GK_KEYS];
    gk_u32 place[GK_KEYS], to[GK_KEYS], position[GK_KEYS];
    GK_UNROLL for (int k = 0; k < GK_KEYS; k++) {
        int i = GK_KEY_AT(k, GK_KEYS);
        key[k] = i < at.have ? (gk_b)keys[at.first + i] : ~(gk_b)0;
        position[k] = (gk_u32)at.first + (gk_u32)i;
    }
    if (positions) {
        GK_UNROLL for (int k = 0; k < GK_KEYS; k++)
            if (GK_KEY_AT(k, GK_KEYS) < at.have) position[k] = (gk_u32)positions[at.first + GK_KEY_AT(k, GK_KEYS)];
    }
    gk_u32 start = gk_place_digits(place, key, GK_KEYS, GK_KEYS, shift, seen, base), first;
    if (count) {
        GK_GLOBAL const int* of_row = counts + at.row * tiles * GK_DIGITS;
        gk_u32 before = gk_sum_tiles(of_row, at.tile), total;
        gk_u32 sum = before + gk_sum_tiles(of_row + at.tile * GK_DIGITS, tiles - at.tile);
        first = (gk_u32)(at.row * cols) + gk_block_scan(sum, base, &total) - sum + before;
    } else {
        first = (gk_u32)counts[(gk_i64)gk_bid(0) * GK_DIGITS + t];
    }
    base[t] = first - start;
    GK_UNROLL for (int k = 0; k < GK_KEYS; k++) moved[place[k]] = key[k];
    GK_BARRIER();
    GK_UNROLL for (int k = 0; k < GK_KEYS; k++) {
        int i = k * GK_BLOCK + t;
        gk_b next = moved[i];
        to[k] = base[GK_DIGIT(next, shift)] + (gk_u32)i;
        if (i < at.have) keys_out[to[k]] = (gk_t)next;
    }
    GK_BARRIER();
    GK_UNROLL for (int k = 0; k < GK_KEYS; k++) moved[place[k]] = position[k];
    GK_BARRIER();
    GK_UNROLL for (int k = 0; k < GK_KEYS; k++) {
        int i = k * GK_BLOCK + t;
        if (i < at.have) positions_out[to[k]] = (int)moved[i];
    }
}

#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 4
/* The whole sort of rows of n keys, up to GK_ROW_KEYS * GK_BLOCK, of which a thread takes `each`. Launch: one block per row. */
GK_KERNEL(radix_rows)(GK_IN(gk_t, keys), GK_OUT(gk_t, keys_out), GK_OUT(int, positions_out), int n, int each, int bits)
{
    GK_BIND_IN(gk_t, keys); GK_BIND_OUT(gk_t, keys_out); GK_BIND_OUT(int, positions_out);
    GK_LOCAL gk_u32 seen[GK_RUNS * GK_DIGITS];
    GK_LOCAL gk_u32 tmp[GK_BLOCK];
    GK_LOCAL gk_b moved[GK_ROW_KEYS * GK_BLOCK];
    gk_b key[GK_KEYS];
    gk_u32 place[GK_KEYS], position[GK_KEYS];
    gk_i64 first = (gk_i64)gk_bid(0) * n;
    GK_UNROLL for (int k = 0; k < GK_ROW_KEYS; k++) {
        int i = GK_KEY_AT(k, each);
        key[k] = k < each && i < n ? (gk_b)keys[first + i] : ~(gk_b)0;
        position[k] = (gk_u32)first + (gk_u32)i;
    }
    for (int shift = 0; shift < bits; shift += GK_DIGIT_BITS) {
        gk_place_digits(place, key, GK_ROW_KEYS, each, shift, seen, tmp);
        GK_UNROLL for (int k = 0; k < GK_ROW_KEYS; k++)
            if (k < each) moved[place[k]] = key[k];
        GK_BARRIER();
        GK_UNROLL for (int k = 0; k < GK_ROW_KEYS; k++)
            if (k < each) key[k] = moved[GK_KEY_AT(k, each)];
        GK_BARRIER();
        GK_UNROLL for (int k = 0; k < GK_ROW_KEYS; k++)
            if (k < each) moved[place[k]] = position[k];
        GK_BARRIER();
        GK_UNROLL for (int k = 0; k < GK_ROW_KEYS; k++)
            if (k < each) position[k] = (gk_u32)moved[GK_KEY_AT(k, each)];
        GK_BARRIER();
    }
    GK_UNROLL for (int k = 0; k < GK_ROW_KEYS; k++) {
        int i = GK_KEY_AT(k, each);
        if (k < each && i < n) {
            keys_out[first + i] = (gk_t)key[k];
            positions_out[first + i] = (int)position[k];
        }
    }
}

#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 0
/* keys[e] = the cell of y that element e of a scatter addresses: its coordinates with the one at `axis` (0 in `sy`) replaced by the index,
 * which steps by `step`. An index outside [0, size) is reported and gives `none`, or with `mask` the first number from `none` on whose bits in the
 * mask are those behind the last cell of its row: no cell of the row has them. Launch: grid-stride over GK_RADIX_DEPTH
 * elements each. */
GK_KERNEL(scatter_keys)(GK_IN(int, index), GK_OUT(gk_t, keys), GK_OUT(int, err), gk_i64 n, int wide, gk_i64 size, gk_i64 step, gk_i64 none,
                        gk_i64 mask, int rank, GK_DIMS(shape), GK_DIMS(magic), GK_DIMS(sy), int code)
{
    GK_BIND_IN(int, index); GK_BIND_OUT(gk_t, keys); GK_BIND_OUT(int, err);
    gk_i64 stride = gk_gsize();
    for (gk_i64 first = gk_gid(); first < n; first += GK_RADIX_DEPTH * stride) {
        gk_i64 at[GK_RADIX_DEPTH];
        GK_UNROLL for (int u = 0; u < GK_RADIX_DEPTH; u++) at[u] = first + u * stride < n ? gk_index(index, first + u * stride, wide) : 0;
        GK_UNROLL for (int u = 0; u < GK_RADIX_DEPTH; u++) {
            gk_i64 e = first + u * stride, i = at[u], row = 0;
            if (e >= n) continue;
            GK_AXES(e, n, rank, shape, magic, { row += r * sy.v[d]; });
            int bad = i < 0 || i >= size;
            if (bad) gk_report(err, code);
            keys[e] = (gk_t)(bad ? none + ((row + size * step - none) & mask) : row + i * step);
        }
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
