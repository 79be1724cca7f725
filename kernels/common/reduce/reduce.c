/* Reductions. GK_OP names the function (reduce/reduce_ops.h).
 *
 *   y[o] = end(merge over r of x[kx(o) + rx(r)])        and for some functions a second result z[o]; dot reduces the products x * x2
 *
 * The axes that stay ("kept") and the axes that go ("red") are merged lists of sizes with strides per operand, the innermost last.
 * reduce_rows: neighbouring threads read along the reduced axes; `lanes` of them share a row. reduce_columns: they lie side by side on the kept
 * axes. Rows longer than a block handles well are cut into `splits` runs of `chunk` items, whose states go to `part` and are combined in order by
 * reduce_combine. `count` is the number of elements that one result is made of.
 * Launch: blocks on axis 0 loop over the rows or tiles. Statistics in gk_f, sums of integers in gk_i64. Deterministic: the order of the
 * operations follows from the shape, the alignment and the number of blocks that fill the device. Reference: torch.<function>.
 */
/* Values that one call of gk_take takes at most, and 16-byte accesses in flight per thread: along a row, and down GK_W columns. */
#define GK_BATCH 8
#define GK_REDUCE_DEPTH 8
#define GK_DEPTH_COLS (GK_W >= 8 ? 4 : 8)
#include "common/prelude/strided.h"
#include "reduce_ops.h"

#if GK_CAT(GK_OP, _pair)
#define GK_LOAD(i, j) (gk_load(x, i) * gk_load(x2, j))
#else
#define GK_LOAD(i, j) gk_load(x, i)
#endif

GK_FN gk_vec gk_load_items(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* x2, gk_i64 i, gk_i64 j)
{
    gk_vec a = gk_loadv(x, i);
#if GK_CAT(GK_OP, _pair)
    gk_vec b = gk_loadv(x2, j);
    GK_UNROLL for (int k = 0; k < GK_W; k++) a.v[k] *= b.v[k];
#endif
    return a;
}

#define GK_ROW_CONTIGUOUS 1 /* rows without gaps, at any alignment: `phase` is the position of x within 16 bytes */
#define GK_ROW_WIDE 2       /* items are GK_W elements of the innermost reduced axis */

/* The items from..to of the row that starts at i (x) and j (x2), as seen by one lane. */
GK_FN gk_state gk_row(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* x2, gk_i64 i, gk_i64 j, gk_i64 from, gk_i64 to, int lane, int lanes, int mode,
                      int phase, gk_i64 n, int rank, const gk_dims* red, const gk_dims* rx, const gk_dims* rx2, gk_f p)
{
    gk_state s = gk_begin();
    if (mode == GK_ROW_CONTIGUOUS) {
        gk_i64 len = to - from, head = -(phase + i + from) & (GK_W - 1);
        if (len <= 0) return s;
        if (head > len) head = len;
        for (gk_i64 k = lane; k < head; k += lanes) {
            gk_f v[1];
            v[0] = GK_LOAD(i + from + k, j + from + k);
            gk_take(&s, v, 1, from + k, 1, p);
        }
        gk_i64 items = (len - head) / GK_W, base = from + head, k = lane;
        for (; k + (GK_REDUCE_DEPTH - 1) * lanes < items; k += GK_REDUCE_DEPTH * lanes) {
            gk_vec a[GK_REDUCE_DEPTH];
            GK_UNROLL for (int u = 0; u < GK_REDUCE_DEPTH; u++) {
                gk_i64 e = base + (k + u * lanes) * GK_W;
                a[u] = gk_load_items(x, x2, i + e, j + e);
            }
            GK_UNROLL for (int u = 0; u < GK_REDUCE_DEPTH; u++) gk_take(&s, a[u].v, GK_W, base + (k + u * lanes) * GK_W, 1, p);
        }
        for (; k < items; k += lanes) {
            gk_vec a = gk_load_items(x, x2, i + base + k * GK_W, j + base + k * GK_W);
            gk_take(&s, a.v, GK_W, base + k * GK_W, 1, p);
        }
        for (k = base + items * GK_W + lane; k < to; k += lanes) {
            gk_f v[1];
            v[0] = GK_LOAD(i + k, j + k);
            gk_take(&s, v, 1, k, 1, p);
        }
        return s;
    }
    for (gk_i64 k = from + lane; k < to; k += lanes) {
        gk_i64 a = i, b = j;
        GK_ND(k, n, rank, *red, { a += r * rx->v[d]; b += r * rx2->v[d]; });
        if (mode == GK_ROW_WIDE) {
            gk_vec v = gk_load_items(x, x2, a, b);
            gk_take(&s, v.v, GK_W, 0, 0, p);
        } else {
            gk_f v[1];
            v[0] = GK_LOAD(a, b);
            gk_take(&s, v, 1, k, 1, p);
        }
    }
    return s;
}

typedef struct {
    gk_dims kept, kx, kx2, ky, kz, red, rx, rx2;
    gk_i64 count;
    gk_f p, q;
    int phase, form, accumulate;
} gk_reduce_rows_args;

// Units: FLOATS64 x FLOAT_REDUCTIONS, INTS x INT_REDUCTIONS, U8 x MASK_REDUCTIONS
GK_KERNEL(reduce_rows)(GK_IN(gk_t, x), GK_IN(gk_t, x2), GK_OUT(gk_u8, y), GK_OUT(gk_u8, z), GK_OUT(gk_state, part), gk_i64 outputs, gk_i64 n,
                       gk_i64 chunk, int splits, int lanes, int mode, int kept_rank, int red_rank, GK_BY_VALUE(gk_reduce_rows_args, args))
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, x2); GK_BIND_OUT(gk_u8, y); GK_BIND_OUT(gk_u8, z); GK_BIND_OUT(gk_state, part);
    GK_LOCAL gk_state tmp[GK_BLOCK];
    int lane = gk_lid() & (lanes - 1), rows = GK_BLOCK / lanes;
    gk_i64 blocks = (outputs + rows - 1) / rows * splits;
    for (gk_i64 b = gk_bid(0); b < blocks; b += gk_nblocks(0)) {
        gk_i64 split = b % splits, o = b / splits * rows + gk_lid() / lanes;
        gk_i64 i = 0, j = 0, iy = 0, iz = 0, from = split * chunk, to = from + chunk < n ? from + chunk : n;
        if (o < outputs) GK_ND(o, outputs, kept_rank, args.kept,
            { i += r * args.kx.v[d]; j += r * args.kx2.v[d]; iy += r * args.ky.v[d]; iz += r * args.kz.v[d]; });
        else to = from;
        gk_state s = gk_row(x, x2, i, j, from, to, lane, lanes, mode, args.phase, n, red_rank, &args.red, &args.rx, &args.rx2, args.p);
        s = gk_gather_states(s, tmp, lanes);
        if (lane == 0 && o < outputs) {
            if (splits > 1) part[o * splits + split] = s;
            else gk_end(y, z, iy, iz, s, args.count, args.form, args.accumulate, args.p, args.q);
        }
    }
}

/* The rows from..to of w neighbouring columns (w is 1 or GK_W, a constant), every `step`-th from `first` on. */
GK_FN void gk_columns(gk_state* s, const int w, GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* x2, gk_i64 i, gk_i64 j, gk_i64 first, gk_i64 to,
                      int step, gk_i64 n, int rank, const gk_dims* red, const gk_dims* rx, const gk_dims* rx2, gk_f p)
{
    gk_i64 k = first;
    for (; k + (GK_DEPTH_COLS - 1) * step < to; k += GK_DEPTH_COLS * step) {
        gk_f v[GK_W][GK_DEPTH_COLS];
        GK_UNROLL for (int u = 0; u < GK_DEPTH_COLS; u++) {
            gk_i64 a = i, b = j;
            GK_ND(k + u * step, n, rank, *red, { a += r * rx->v[d]; b += r * rx2->v[d]; });
            if (w == 1) {
                v[0][u] = GK_LOAD(a, b);
            } else {
                gk_vec t = gk_load_items(x, x2, a, b);
                GK_UNROLL for (int c = 0; c < GK_W; c++) v[c][u] = t.v[c];
            }
        }
        GK_UNROLL for (int c = 0; c < w; c++) gk_take(&s[c], v[c], GK_DEPTH_COLS, k, step, p);
    }
    for (; k < to; k += step) {
        gk_i64 a = i, b = j;
        gk_vec t;
        GK_ND(k, n, rank, *red, { a += r * rx->v[d]; b += r * rx2->v[d]; });
        if (w == 1) t.v[0] = GK_LOAD(a, b);
        else t = gk_load_items(x, x2, a, b);
        GK_UNROLL for (int c = 0; c < w; c++) gk_take(&s[c], &t.v[c], 1, k, step, p);
    }
}

/* Combines the states of the block's threads that differ in lid / tx only; those with lid < tx get the result. */
GK_FN gk_state gk_gather_columns(gk_state s, GK_LOCAL_PTR gk_state* tmp, int tx)
{
    int t = gk_lid();
    if (tx == GK_BLOCK) return s;
    tmp[t] = s;
    GK_BARRIER();
    for (int m = GK_BLOCK / 2; m >= tx; m >>= 1) {
        if (t < m) tmp[t] = gk_reduce_merge(tmp[t], tmp[t + m]);
        GK_BARRIER();
    }
    s = tmp[t];
    GK_BARRIER();
    return s;
}

typedef struct {
    gk_dims kept, kx, kx2, ky, kz, red, rx, rx2;
    gk_i64 count, step_y, step_z;
    gk_f p, q;
    int form, accumulate;
} gk_reduce_columns_args;

/* `outputs` counts items: columns, or GK_W neighbouring ones if `wide` is set; a block takes tx items and GK_BLOCK / tx rows at a time. */
GK_KERNEL(reduce_columns)(GK_IN(gk_t, x), GK_IN(gk_t, x2), GK_OUT(gk_u8, y), GK_OUT(gk_u8, z), GK_OUT(gk_state, part), gk_i64 outputs, gk_i64 n,
                          gk_i64 chunk, int splits, int tx, int wide, int kept_rank, int red_rank, GK_BY_VALUE(gk_reduce_columns_args, args))
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, x2); GK_BIND_OUT(gk_u8, y); GK_BIND_OUT(gk_u8, z); GK_BIND_OUT(gk_state, part);
    GK_LOCAL gk_state tmp[GK_BLOCK];
    int tx_id = gk_lid() & (tx - 1), ty = gk_lid() / tx;
    gk_i64 blocks = (outputs + tx - 1) / tx * splits;
    for (gk_i64 b = gk_bid(0); b < blocks; b += gk_nblocks(0)) {
        gk_i64 tile = b / splits, split = b - tile * splits, o = tile * tx + tx_id;
        gk_i64 i = 0, j = 0, iy = 0, iz = 0, from = split * chunk, to = from + chunk < n ? from + chunk : n;
        gk_state s[GK_W];
        GK_UNROLL for (int c = 0; c < GK_W; c++) s[c] = gk_begin();
        if (o < outputs) {
            GK_ND(o, outputs, kept_rank, args.kept,
                { i += r * args.kx.v[d]; j += r * args.kx2.v[d]; iy += r * args.ky.v[d]; iz += r * args.kz.v[d]; });
            if (wide) gk_columns(s, GK_W, x, x2, i, j, from + ty, to, GK_BLOCK / tx, n, red_rank, &args.red, &args.rx, &args.rx2, args.p);
            else gk_columns(s, 1, x, x2, i, j, from + ty, to, GK_BLOCK / tx, n, red_rank, &args.red, &args.rx, &args.rx2, args.p);
        }
        GK_UNROLL for (int c = 0; c < GK_W; c++) {
            if (c > 0 && !wide) break;
            gk_state t = gk_gather_columns(s[c], tmp, tx);
            if (ty == 0 && o < outputs) {
                if (splits > 1) part[split * (wide ? outputs * GK_W : outputs) + (wide ? o * GK_W + c : o)] = t;
                else gk_end(y, z, iy + c * args.step_y, iz + c * args.step_z, t, args.count, args.form, args.accumulate, args.p, args.q);
            }
        }
    }
}

typedef struct {
    gk_dims kept, ky, kz;
    gk_i64 count, so, sk;
    gk_f p, q;
    int form, accumulate;
} gk_reduce_combine_args;

/* Results from the states of `splits` runs: that of run k of output o is part[o * so + k * sk]. The `lanes` threads of an output lie side by
 * side, or those of neighbouring outputs do where their states lie side by side (so is 1). */
GK_KERNEL(reduce_combine)(GK_IN(gk_state, part), GK_OUT(gk_u8, y), GK_OUT(gk_u8, z), gk_i64 outputs, int splits, int lanes, int kept_rank,
                          GK_BY_VALUE(gk_reduce_combine_args, args))
{
    GK_BIND_IN(gk_state, part); GK_BIND_OUT(gk_u8, y); GK_BIND_OUT(gk_u8, z);
    GK_LOCAL gk_state tmp[GK_BLOCK];
    int rows = GK_BLOCK / lanes, apart = args.so == 1 && args.sk != 1;
    int lane = apart ? gk_lid() / rows : gk_lid() & (lanes - 1);
    gk_i64 blocks = (outputs + rows - 1) / rows;
    for (gk_i64 b = gk_bid(0); b < blocks; b += gk_nblocks(0)) {
        gk_i64 o = b * rows + (apart ? gk_lid() & (rows - 1) : gk_lid() / lanes), iy = 0, iz = 0;
        gk_state s = gk_begin();
        if (o < outputs) {
            GK_ND(o, outputs, kept_rank, args.kept, { iy += r * args.ky.v[d]; iz += r * args.kz.v[d]; });
            for (int k = lane; k < splits; k += lanes) s = gk_reduce_merge(s, part[o * args.so + k * args.sk]);
        }
        if (apart) s = gk_gather_columns(s, tmp, rows);
        else s = gk_gather_states(s, tmp, lanes);
        if (lane == 0 && o < outputs) gk_end(y, z, iy, iz, s, args.count, args.form, args.accumulate, args.p, args.q);
    }
}
