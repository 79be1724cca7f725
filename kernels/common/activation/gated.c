/* Gated units of Shazeer (2020): y = up * act(gate), and the parametric relu: y = x > 0 ? x : a_c x.
 * gate and up are rows of `cols` elements, `stride` apart (the halves of a tensor along an axis, or tensors of their own); act by its number in
 * activation/fused.h. The slope's gradient is a sum per channel in two stages: dx and the sums of runs in one pass, then activation_combine in order.
 * Launch: blocks on axis 0 loop. Arithmetic in gk_f. Deterministic. Reference: F.glu, F.prelu.
 */
#include "common/prelude/rows.h"
#include "fused.h"

#define GK_ACT_FLIGHT (GK_W >= 8 ? 2 : 1)

GK_FN void gk_gated_put(GK_GLOBAL gk_t* p, gk_i64 i, gk_vec v, int wide, int accumulate)
{
    if (accumulate) {
        gk_vec old = gk_item(p, i, wide);
        GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] += old.v[k];
    }
    gk_put_item(p, i, v, wide);
}
/* Where element i of rows of `cols` lies if they are `stride` apart. */
GK_FN gk_i64 gk_gated_at(gk_i64 i, gk_i64 cols, gk_i64 stride)
{
    gk_i64 row = gk_quot(i, cols);
    return row * stride + (i - row * cols);
}

GK_FN void gk_gated_items(GK_GLOBAL const gk_t* gate, GK_GLOBAL const gk_t* up, GK_GLOBAL gk_t* y, gk_i64 items, gk_i64 cols, gk_i64 stride, int act,
                          const int wide)
{
    const int w = wide ? GK_W : 1;
    gk_i64 step = (gk_i64)gk_nblocks(0) * GK_BLOCK * GK_ACT_FLIGHT;
    for (gk_i64 t = (gk_i64)gk_bid(0) * GK_BLOCK * GK_ACT_FLIGHT + gk_lid(); t < items; t += step) {
        gk_vec g[GK_ACT_FLIGHT], u[GK_ACT_FLIGHT];
        GK_UNROLL for (int j = 0; j < GK_ACT_FLIGHT; j++) {
            gk_i64 i = t + (gk_i64)j * GK_BLOCK, at = gk_gated_at(i * w, cols, stride);
            g[j] = gk_item_if(gate, at, wide, i < items);
            u[j] = gk_item_if(up, at, wide, i < items);
        }
        GK_UNROLL for (int j = 0; j < GK_ACT_FLIGHT; j++) {
            gk_i64 i = t + (gk_i64)j * GK_BLOCK;
            if (i >= items) break;
            g[j] = gk_fused_act(act, g[j], GK_R(1.0));
            GK_UNROLL for (int k = 0; k < GK_W; k++) g[j].v[k] *= u[j].v[k];
            gk_put_item(y, i * w, g[j], wide);
        }
    }
}

// Units: FLOATS64
GK_KERNEL(gated)(GK_IN(gk_t, gate), GK_IN(gk_t, up), GK_OUT(gk_t, y), gk_i64 n, gk_i64 cols, gk_i64 stride, int wide, int act)
{
    GK_BIND_IN(gk_t, gate); GK_BIND_IN(gk_t, up); GK_BIND_OUT(gk_t, y);
    if (wide) gk_gated_items(gate, up, y, n / GK_W, cols, stride, act, 1);
    else gk_gated_items(gate, up, y, n, cols, stride, act, 0);
}

GK_FN void gk_gated_bwd_items(GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_t* gate, GK_GLOBAL const gk_t* up, GK_GLOBAL gk_t* dgate,
                              GK_GLOBAL gk_t* dup, gk_i64 items, gk_i64 cols, gk_i64 stride, int act, int accumulate_gate, int accumulate_up,
                              const int wide)
{
    const int w = wide ? GK_W : 1;
    for (gk_i64 i = gk_gid(); i < items; i += gk_gsize()) {
        gk_i64 at = gk_gated_at(i * w, cols, stride);
        gk_vec d = gk_item(dy, i * w, wide), g = gk_item(gate, at, wide), u = gk_item(up, at, wide);
        GK_UNROLL for (int k = 0; k < GK_W; k++) u.v[k] *= d.v[k];
        gk_act_both r = gk_fused_act_both(act, u, g, GK_R(1.0));
        GK_UNROLL for (int k = 0; k < GK_W; k++) r.y.v[k] *= d.v[k];
        if (dgate) gk_gated_put(dgate, at, r.dv, wide, accumulate_gate);
        if (dup) gk_gated_put(dup, at, r.y, wide, accumulate_up);
    }
}

GK_KERNEL(gated_bwd)(GK_IN(gk_t, dy), GK_IN(gk_t, gate), GK_IN(gk_t, up), GK_OUT(gk_t, dgate), GK_OUT(gk_t, dup), gk_i64 n, gk_i64 cols,
                     gk_i64 stride, int wide, int act, int accumulate_gate, int accumulate_up)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, gate); GK_BIND_IN(gk_t, up); GK_BIND_OUT(gk_t, dgate); GK_BIND_OUT(gk_t, dup);
    if (wide) gk_gated_bwd_items(dy, gate, up, dgate, dup, n / GK_W, cols, stride, act, accumulate_gate, accumulate_up, 1);
    else gk_gated_bwd_items(dy, gate, up, dgate, dup, n, cols, stride, act, accumulate_gate, accumulate_up, 0);
}

/* Rows of `cols`; row r has slope r % slopes. */
GK_KERNEL(prelu)(GK_IN(gk_t, x), GK_IN(gk_t, a), GK_OUT(gk_t, y), gk_i64 n, gk_i64 cols, gk_i64 slopes, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, a); GK_BIND_OUT(gk_t, y);
    int w = wide ? GK_W : 1;
    for (gk_i64 i = gk_gid() * w; i < n; i += gk_gsize() * w) {
        gk_i64 row = gk_quot(i, cols);
        gk_vec v = gk_item(x, i, wide);
        gk_f s = gk_load(a, row - gk_quot(row, slopes) * slopes);
        GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] = v.v[k] > GK_R(0.0) ? v.v[k] : s * v.v[k];
        gk_put_item(y, i, v, wide);
    }
}

/* One item of the gradient; returns what adds to the slope's. */
GK_FN gk_vec gk_prelu_item(GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_t* x, GK_GLOBAL gk_t* dx, gk_i64 i, gk_vec s, int wide, int accumulate)
{
    gk_vec d = gk_item(dy, i, wide), v = gk_item(x, i, wide), t;
    GK_UNROLL for (int k = 0; k < GK_W; k++) {
        int on = v.v[k] > GK_R(0.0);
        t.v[k] = on ? GK_R(0.0) : d.v[k] * v.v[k];
        d.v[k] = on ? d.v[k] : s.v[k] * d.v[k];
    }
    if (dx) gk_gated_put(dx, i, d, wide, accumulate);
    return t;
}

/* dx, and part[b] = sum of run b = row * splits + k. */
GK_KERNEL(prelu_bwd_rows)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, a), GK_OUT(gk_t, dx), GK_OUT(gk_f, part), gk_i64 rows, gk_i64 cols,
                          gk_i64 slopes, int splits, gk_i64 chunk, int lanes, int wide, int phase, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, a); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int lane = gk_lid() & (lanes - 1);
    gk_i64 per = GK_BLOCK / lanes, runs = rows * splits;
    for (gk_i64 f = (gk_i64)gk_bid(0) * per; f < runs; f += gk_nblocks(0) * per) {
        gk_i64 b = f + gk_lid() / lanes, live = b < runs, row = live ? b / splits : 0;
        gk_run run = gk_run_of_block(live ? b : 0, cols, splits, chunk, wide, phase);
        gk_f sum = GK_R(0.0), slope = gk_load(a, row % slopes);
        gk_vec s;
        GK_UNROLL for (int k = 0; k < GK_W; k++) s.v[k] = slope;
        if (!live) { run.items = 0; run.items_from = run.from; run.tail_from = run.to; }
        for (gk_i64 i = lane; i < run.items; i += lanes) {
            gk_vec t = gk_prelu_item(dy, x, dx, run.items_from + i * GK_W, s, 1, accumulate);
            GK_UNROLL for (int k = 0; k < GK_W; k++) sum += t.v[k];
        }
        for (gk_i64 i = run.from + lane; i < run.items_from; i += lanes) sum += gk_prelu_item(dy, x, dx, i, s, 0, accumulate).v[0];
        for (gk_i64 i = run.tail_from + lane; i < run.to; i += lanes) sum += gk_prelu_item(dy, x, dx, i, s, 0, accumulate).v[0];
        sum = gk_group_sum(sum, tmp, lanes);
        if (part && lane == 0 && live) part[b] = sum;
    }
}

/* The same down the columns of rows i * chunk and on of [n, cols]; column j has slope j / inner. */
GK_KERNEL(prelu_bwd_columns)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, a), GK_OUT(gk_t, dx), GK_OUT(gk_f, part), gk_i64 n, gk_i64 cols,
                             gk_i64 inner, gk_i64 chunk, int chunks, int tx, int wide, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, a); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int ty = gk_lid() / tx, step = GK_BLOCK / tx, w = wide ? GK_W : 1;
    gk_i64 items = cols / w, tiles = (items + tx - 1) / tx;
    for (gk_i64 b = gk_bid(0); b < tiles * chunks; b += gk_nblocks(0)) {
        gk_i64 item = b % tiles * tx + (gk_lid() & (tx - 1)), i = b / tiles, at = item * w, end = i * chunk + chunk;
        gk_vec s, sum;
        if (end > n) end = n;
        if (item >= items) end = 0;
        GK_UNROLL for (int k = 0; k < GK_W; k++) {
            s.v[k] = sum.v[k] = GK_R(0.0);
            if (k < w && item < items) s.v[k] = gk_load(a, gk_quot(at + k, inner));
        }
        for (gk_i64 row = i * chunk + ty; row < end; row += step) {
            gk_vec t = gk_prelu_item(dy, x, dx, row * cols + at, s, wide, accumulate);
            GK_UNROLL for (int k = 0; k < GK_W; k++) sum.v[k] += t.v[k];
        }
        GK_UNROLL for (int k = 0; k < GK_W; k++)
            if (part && (k == 0 || wide)) {
                gk_f t = gk_across_sum(sum.v[k], tmp, tx);
                if (ty == 0 && item < items) part[i * cols + at + k] = t;
            }
    }
}

/* da[j] (+)= sum of part[(i * sets + j) * inner + k]: slopes of the parametric relu, biases of bias.c. */
GK_KERNEL(activation_combine)(GK_IN(gk_f, part), GK_OUT(gk_t, da), gk_i64 outer, gk_i64 sets, gk_i64 inner, int tx, int accumulate)
{
    GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, da);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int ty = gk_lid() / tx, step = GK_BLOCK / tx;
    for (gk_i64 b = gk_bid(0); b * tx < sets; b += gk_nblocks(0)) {
        gk_i64 j = b * tx + (gk_lid() & (tx - 1)), members = j < sets ? outer * inner : 0;
        gk_f s = GK_R(0.0);
        for (gk_i64 e = ty; e < members; e += step) {
            gk_i64 i = gk_quot(e, inner);
            s += part[(i * sets + j) * inner + (e - i * inner)];
        }
        s = gk_across_sum(s, tmp, tx);
        if (ty == 0 && j < sets) {
            if (accumulate) s += gk_load(da, j);
            gk_store(da, j, s);
        }
    }
}
