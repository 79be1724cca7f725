/* Gather, and scatter of sources of which the last of a destination stays. Operands are contiguous; along one axis they are viewed as [outer, R, inner]. Elements are moved as bits by units of
 * their size (see prelude/coordinates.h); an item is an element of the unit or, where `wide` is set, 16 bytes of the inner axis. An index outside its
 * range is reported in `err`, reads as 0 and is not written.
 *
 * Scatters are deterministic: the sources are first sorted by destination (sort/radix.c), so that those of one destination are neighbours in the
 * order of their positions; keys not below `limit` are dropped ones, and may lie anywhere. Their reductions are in scatter.c.
 * Launch: grid-stride over items unless stated.
 */
#include "common/prelude/coordinates.h"
#include "common/scan/scan.h"

#define GK_INDEX_DEPTH 4

/* Coordinates of an item of [outer, rows, columns]. */
typedef struct { gk_i64 outer, row, column; } gk_place;
GK_FN gk_place gk_place_of(gk_i64 item, gk_i64 n, gk_dims shape, gk_dims magic)
{
    gk_place p;
    gk_i64 q = gk_over(item, n, shape.v[2], magic.v[2]);
    p.outer = gk_over(q, n, shape.v[1], magic.v[1]);
    p.row = q - p.outer * shape.v[1];
    p.column = item - q * shape.v[2];
    return p;
}

// Units: ALL
/* y[o, i, c] (+)= x[o, index[i], c]; items of y, shape [outer, n, inner], inner and the strides in items. Reference: torch.index_select. */
GK_KERNEL(index_select)(GK_IN(gk_t, x), GK_IN(int, index), GK_OUT(gk_t, y), GK_OUT(int, err), gk_i64 items, int wide, int wide_index, gk_i64 size,
                        GK_DIMS(shape), GK_DIMS(magic), int accumulate, int code)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, index); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, err);
    gk_i64 step = gk_gsize(), inner = shape.v[2], scale = wide ? GK_W : 1;
    for (gk_i64 at = gk_gid(); at < items; at += GK_INDEX_DEPTH * step) {
        gk_i64 from[GK_INDEX_DEPTH];
        gk_raw16 q[GK_INDEX_DEPTH];
        gk_b b[GK_INDEX_DEPTH];
        GK_UNROLL for (int u = 0; u < GK_INDEX_DEPTH; u++) {
            from[u] = -1;
            if (at + u * step >= items) continue;
            gk_place p = gk_place_of(at + u * step, items, shape, magic);
            gk_i64 i = gk_index(index, p.row, wide_index);
            if (i >= 0 && i < size) from[u] = ((p.outer * size + i) * inner + p.column) * scale;
            else gk_report(err, code);
        }
        GK_UNROLL for (int u = 0; u < GK_INDEX_DEPTH; u++) {
            q[u] = gk_make16(0u, 0u, 0u, 0u);
            b[u] = 0;
            if (from[u] >= 0) {
                if (wide) q[u] = gk_load16((GK_GLOBAL const void*)(x + from[u]));
                else b[u] = ((GK_GLOBAL const gk_b*)x)[from[u]];
            }
        }
        GK_UNROLL for (int u = 0; u < GK_INDEX_DEPTH; u++) {
            if (at + u * step >= items) continue;
            if (wide) gk_putv(y, (at + u * step) * GK_W, gk_split(q[u]), accumulate);
            else gk_put(y, at + u * step, b[u], accumulate);
        }
    }
}

/* y[p] (+)= x[p with p[axis] replaced by index[p]] over the shape of the index; `sx` has x's strides, 0 at the axis, whose stride is `step`.
 * Reference: torch.gather. */
GK_KERNEL(gather_axis)(GK_IN(gk_t, x), GK_IN(int, index), GK_OUT(gk_t, y), GK_OUT(int, err), gk_i64 n, int wide_index, gk_i64 size, gk_i64 step,
                       int rank, GK_DIMS(shape), GK_DIMS(magic), GK_DIMS(sx), int accumulate, int code)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, index); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, err);
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_i64 i = gk_index(index, e, wide_index), at = 0;
        GK_AXES(e, n, rank, shape, magic, { at += r * sx.v[d]; });
        int bad = i < 0 || i >= size;
        if (bad) gk_report(err, code);
        gk_put(y, e, bad ? (gk_b)0 : ((GK_GLOBAL const gk_b*)x)[at + i * step], accumulate);
    }
}

/* y[o, index[i], c] = the pattern for all i; writers of one cell write the same. Items of [outer, n, inner]. Reference: x.index_fill. */
GK_KERNEL(index_fill)(GK_IN(int, index), GK_OUT(gk_t, y), GK_OUT(int, err), gk_i64 items, int wide, int wide_index, gk_i64 size, GK_DIMS(shape),
                      GK_DIMS(magic), gk_u32 lo, gk_u32 hi, int code)
{
    GK_BIND_IN(int, index); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, err);
    gk_raw16 q = gk_make16(lo, hi, lo, hi);
    gk_b one = gk_split(q).v[0];
    for (gk_i64 at = gk_gid(); at < items; at += gk_gsize()) {
        gk_place p = gk_place_of(at, items, shape, magic);
        gk_i64 i = gk_index(index, p.row, wide_index), to = (p.outer * size + i) * shape.v[2] + p.column;
        if (i < 0 || i >= size) gk_report(err, code);
        else if (wide) gk_store16((GK_GLOBAL void*)(y + to * GK_W), q);
        else gk_put(y, to, one, 0);
    }
}

/* y[o, key, c] = src[o, position, c] for the last source of each key. Items of [outer, n, inner], n sorted pairs, R = limit.
 * Reference: x.index_copy, x.scatter. */
GK_KERNEL(scatter_last)(GK_IN(int, keys), GK_IN(int, positions), GK_IN(gk_t, src), GK_OUT(gk_t, y), gk_i64 items, int wide, int wide_keys,
                        gk_i64 limit, GK_DIMS(shape), GK_DIMS(magic))
{
    GK_BIND_IN(int, keys); GK_BIND_IN(int, positions); GK_BIND_IN(gk_t, src); GK_BIND_OUT(gk_t, y);
    gk_i64 n = shape.v[1], inner = shape.v[2], step = gk_gsize() * GK_INDEX_DEPTH;
    /* A block's items are neighbours, whose sources may lie in one row. */
    for (gk_i64 at = (gk_i64)gk_bid(0) * (GK_BLOCK * GK_INDEX_DEPTH) + gk_lid(); at < items; at += step) {
        gk_i64 from[GK_INDEX_DEPTH], to[GK_INDEX_DEPTH];
        gk_raw16 q[GK_INDEX_DEPTH];
        gk_b b[GK_INDEX_DEPTH];
        GK_UNROLL for (int u = 0; u < GK_INDEX_DEPTH; u++) {
            to[u] = -1;
            from[u] = 0;
            if (at + u * GK_BLOCK >= items) continue;
            gk_place p = gk_place_of(at + u * GK_BLOCK, items, shape, magic);
            gk_i64 key = gk_index(keys, p.row, wide_keys), next = p.row + 1 < n ? gk_index(keys, p.row + 1, wide_keys) : -1;
            from[u] = (p.outer * n + (gk_i64)(gk_u32)positions[p.row]) * inner + p.column;
            if (key < limit && next != key) to[u] = (p.outer * limit + key) * inner + p.column;
        }
        GK_UNROLL for (int u = 0; u < GK_INDEX_DEPTH; u++) {
            q[u] = gk_make16(0u, 0u, 0u, 0u);
            b[u] = 0;
            if (to[u] >= 0) {
                if (wide) q[u] = gk_load16((GK_GLOBAL const void*)(src + from[u] * GK_W));
                else b[u] = ((GK_GLOBAL const gk_b*)src)[from[u]];
            }
        }
        GK_UNROLL for (int u = 0; u < GK_INDEX_DEPTH; u++) {
            if (to[u] < 0) continue;
            if (wide) gk_store16((GK_GLOBAL void*)(y + to[u] * GK_W), q[u]);
            else gk_put(y, to[u], b[u], 0);
        }
    }
}

/* dsrc[position] (+)= dy[key] for the last source of each key, 0 for the others. */
GK_KERNEL(scatter_last_bwd)(GK_IN(int, keys), GK_IN(int, positions), GK_IN(gk_t, dy), GK_OUT(gk_t, dsrc), gk_i64 n, int wide_keys, gk_i64 limit,
                            int accumulate)
{
    GK_BIND_IN(int, keys); GK_BIND_IN(int, positions); GK_BIND_IN(gk_t, dy); GK_BIND_OUT(gk_t, dsrc);
    for (gk_i64 j = gk_gid(); j < n; j += gk_gsize()) {
        gk_i64 key = gk_index(keys, j, wide_keys);
        int last = key < limit && (j + 1 == n || gk_index(keys, j + 1, wide_keys) != key);
        gk_put(dsrc, (gk_i64)(gk_u32)positions[j], last ? ((GK_GLOBAL const gk_b*)dy)[last ? key : 0] : (gk_b)0, accumulate);
    }
}

// Units: U8
/* mask[key] = 1 for every key below the limit. */
GK_KERNEL(mark_keys)(GK_IN(int, keys), GK_OUT(gk_u8, mask), gk_i64 n, int wide_keys, gk_i64 limit)
{
    GK_BIND_IN(int, keys); GK_BIND_OUT(gk_u8, mask);
    for (gk_i64 j = gk_gid(); j < n; j += gk_gsize()) {
        gk_i64 key = gk_index(keys, j, wide_keys);
        if (key < limit) mask[key] = 1;
    }
}

// Units: ALL
/* y[i] (+)= mask[i] ? 0 : x[i] */
GK_KERNEL(copy_unmarked)(GK_IN(gk_t, x), GK_IN(gk_u8, mask), GK_OUT(gk_t, y), gk_i64 n, int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_u8, mask); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) gk_put(y, i, mask[i] ? (gk_b)0 : ((GK_GLOBAL const gk_b*)x)[i], accumulate);
}

/* y[.., c] = ids[..] == c; an id outside [0, classes) gives a row of zeros. `wide`: y is 16-byte aligned, and a block takes GK_INDEX_DEPTH runs of
 * neighbouring items. An item may go on in the next row. Reference: F.one_hot. */
GK_KERNEL(one_hot)(GK_IN(int, ids), GK_OUT(gk_t, y), GK_OUT(int, err), gk_i64 n, int wide, int wide_index, gk_i64 classes, gk_i64 magic, int code)
{
    GK_BIND_IN(int, ids); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, err);
    gk_i64 items = wide ? n / GK_W : 0, first = (gk_i64)gk_bid(0) * (GK_BLOCK * GK_INDEX_DEPTH) + gk_lid();
    for (gk_i64 at = first; at < items; at += gk_gsize() * GK_INDEX_DEPTH) {
        GK_UNROLL for (int u = 0; u < GK_INDEX_DEPTH; u++) {
            gk_i64 i = (at + u * GK_BLOCK) * GK_W;
            if (at + u * GK_BLOCK >= items) break;
            gk_i64 row = gk_over(i, n, classes, magic), c = i - row * classes, id = gk_index(ids, row, wide_index);
            gk_vec v;
            GK_UNROLL for (int k = 0; k < GK_W; k++) {
                if (c == classes) {
                    c = 0;
                    id = gk_index(ids, ++row, wide_index);
                }
                if (c == 0 && (id < 0 || id >= classes)) gk_report(err, code);
                v.v[k] = (gk_f)(id == c++);
            }
            gk_storev(y, i, v);
        }
    }
    for (gk_i64 i = items * GK_W + gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 row = gk_over(i, n, classes, magic), c = i - row * classes, id = gk_index(ids, row, wide_index);
        if (c == 0 && (id < 0 || id >= classes)) gk_report(err, code);
        gk_store(y, i, (gk_f)(id == c));
    }
}

/* ---- selections in order ----------------------------------------------------------------------------------------------------- */

/* Consecutive elements per thread. */
#define GK_INDEX_RUN 4

#if GK_DTYPE == GK_U8
#define GK_TRUE(x, i) ((x)[i] != 0)
#else
#define GK_TRUE(x, i) (gk_load(x, i) != 0)
#endif

// Units: ALL
/* partial[g] = true elements (not 0) of x[g*chunk .. (g+1)*chunk). Launch: one block per chunk. */
GK_KERNEL(count_true)(GK_IN(gk_t, x), GK_OUT(gk_i64, partial), gk_i64 n, gk_i64 chunk)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_i64, partial);
    GK_LOCAL gk_i64 tmp[GK_BLOCK];
    gk_i64 first = gk_bid(0) * chunk, end = first + chunk < n ? first + chunk : n, sum = 0, total;
    for (gk_i64 i = first + gk_lid(); i < end; i += GK_BLOCK) sum += GK_TRUE(x, i);
    gk_scan64(sum, tmp, &total);
    if (gk_lid() == 0) partial[gk_bid(0)] = total;
}

#define GK_SELECT 0
#define GK_CONSUME 1
#define GK_SPREAD 2

/* With r(i) the number of true cells before i: y[r(i)] = x[i] for true i (select); y[i] = x[r(i)] for true i (consume); y[i] (+)= x[r(i)]
 * for true i, else 0 (spread). `room` is the size of the shorter side (y when selecting, else x): what does not fit is reported, reads as 0
 * and is not written. `count`, where given, receives the number of true cells. Launch: as count_true, after it.
 * Reference: torch.masked_select, x.masked_scatter. */
GK_KERNEL(masked_move)(GK_IN(gk_u8, mask), GK_IN(gk_i64, partial), GK_IN(gk_t, x), GK_OUT(gk_t, y), GK_OUT(gk_i64, count), GK_OUT(int, err), gk_i64 n,
                       gk_i64 chunk, gk_i64 room, int mode, int accumulate, int code)
{
    GK_BIND_IN(gk_u8, mask); GK_BIND_IN(gk_i64, partial); GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_i64, count);
    GK_BIND_OUT(int, err);
    GK_LOCAL gk_i64 tmp[GK_BLOCK];
    GK_LOCAL gk_u32 ranks[GK_BLOCK];
    GK_GLOBAL const gk_b* from = (GK_GLOBAL const gk_b*)x;
    gk_i64 first = gk_bid(0) * chunk, end = first + chunk < n ? first + chunk : n;
    gk_i64 before = gk_sum_before(partial, gk_bid(0), tmp);
    for (gk_i64 at = first; at < end; at += GK_BLOCK * GK_INDEX_RUN) {
        gk_i64 i = at + (gk_i64)gk_lid() * GK_INDEX_RUN;
        int on[GK_INDEX_RUN];
        gk_u32 mine = 0u, total;
        GK_UNROLL for (int k = 0; k < GK_INDEX_RUN; k++) {
            on[k] = i + k < end && mask[i + k] != 0;
            mine += (gk_u32)on[k];
        }
        gk_i64 rank = before + (gk_i64)(gk_block_scan(mine, ranks, &total) - mine);
        GK_UNROLL for (int k = 0; k < GK_INDEX_RUN; k++) {
            int fits = rank < room;
            if (on[k] && !fits) gk_report(err, code);
            if (mode == GK_SELECT) {
                if (on[k] && fits) gk_put(y, rank, from[i + k], 0);
            } else if (i + k < end && (on[k] || mode == GK_SPREAD)) {
                gk_put(y, i + k, on[k] && fits ? from[rank] : (gk_b)0, accumulate);
            }
            rank += on[k];
        }
        before += (gk_i64)total;
    }
    if (count && end == n && gk_lid() == 0) count[0] = before;
}

/* index[r] = the coordinates of the r-th element of x that is not 0; what does not fit in `room` rows is reported. Launch: as count_true,
 * after it. Reference: torch.nonzero. */
GK_KERNEL(nonzero)(GK_IN(gk_t, x), GK_IN(gk_i64, partial), GK_OUT(gk_i64, index), GK_OUT(gk_i64, count), GK_OUT(int, err), gk_i64 n, gk_i64 chunk,
                   gk_i64 room, int rank, GK_DIMS(shape), GK_DIMS(magic), int code)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_i64, partial); GK_BIND_OUT(gk_i64, index); GK_BIND_OUT(gk_i64, count); GK_BIND_OUT(int, err);
    GK_LOCAL gk_i64 tmp[GK_BLOCK];
    GK_LOCAL gk_u32 ranks[GK_BLOCK];
    gk_i64 first = gk_bid(0) * chunk, end = first + chunk < n ? first + chunk : n;
    gk_i64 before = gk_sum_before(partial, gk_bid(0), tmp);
    for (gk_i64 at = first; at < end; at += GK_BLOCK * GK_INDEX_RUN) {
        gk_i64 i = at + (gk_i64)gk_lid() * GK_INDEX_RUN;
        int on[GK_INDEX_RUN];
        gk_u32 mine = 0u, total;
        GK_UNROLL for (int k = 0; k < GK_INDEX_RUN; k++) {
            on[k] = i + k < end && GK_TRUE(x, i + k);
            mine += (gk_u32)on[k];
        }
        gk_i64 row = before + (gk_i64)(gk_block_scan(mine, ranks, &total) - mine);
        GK_UNROLL for (int k = 0; k < GK_INDEX_RUN; k++) {
            if (on[k] && row >= room) gk_report(err, code);
            if (on[k] && row < room && rank > 0) GK_AXES(i + k, n, rank, shape, magic, { index[row * rank + d] = r; });
            row += on[k];
        }
        before += (gk_i64)total;
    }
    if (end == n && gk_lid() == 0) count[0] = before;
}
