/* Interpolation of planes with up to three spatial axes (missing axes come first and have size 1), affine grids, and the gradient of a sampled
 * input. size: input D, H, W and output D, H, W.
 *
 * Launch: grid-stride over the elements written, unless stated. Positions are quotients of integers, so that weights have one rounding;
 * arithmetic in gk_f. Deterministic: one writer per element, in a fixed order. Reference: F.interpolate, F.affine_grid, F.grid_sample.
 */
#include "common/prelude/window.h"

/* ---- nearest: output o of m shows cell floor((2o + half) n / 2m) of n --------------------------------------------------------------- */

/* `by` divides by 2m; `small`: 2nm is below 2^31. */
GK_FN int gk_nearest(int o, int n, int m, int half_cell, int small, gk_i64 by)
{
    if (small) return (int)gk_quotient((gk_u32)((2 * o + half_cell) * n), by);
    return (int)((2 * (gk_i64)o + half_cell) * n / (2 * (gk_i64)m));
}

/* The first output that shows cell i or a later one: ceil((2im - half n) / 2n); `by` divides by 2n. */
GK_FN int gk_first_view(int i, int n, int m, int half_cell, int small, gk_i64 by)
{
    gk_i64 t = 2 * (gk_i64)i * m - (half_cell ? n : 0);
    if (t <= 0) return 0;
    return small ? (int)gk_quotient((gk_u32)(t + 2 * n - 1), by) : (int)((t + 2 * (gk_i64)n - 1) / (2 * (gk_i64)n));
}

// Units: FLOATS64
/* y[o] = x[cell of o]. magic 3 to 5 divide by twice the output's sizes. Items: outputs, or runs of GK_W along W with `wide`. */
GK_KERNEL(nearest)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, GK_DIMS(size), GK_DIMS(magic), int half_cell, int small, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    int id = (int)size.v[0], ih = (int)size.v[1], iw = (int)size.v[2], od = (int)size.v[3], oh = (int)size.v[4], ow = (int)size.v[5];
    int run = wide ? GK_W : 1;
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_place q = gk_place_of(i, n, od, oh, ow / run, magic.v[0], magic.v[1], magic.v[2]);
        int d = gk_nearest(q.d, id, od, half_cell, small, magic.v[3]), h = gk_nearest(q.h, ih, oh, half_cell, small, magic.v[4]), w = q.w * run;
        GK_GLOBAL const gk_t* from = x + ((q.plane * id + d) * ih + h) * iw;
        if (wide) {
            gk_vec v;
            GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] = gk_load(from, gk_nearest(w + k, iw, ow, half_cell, small, magic.v[5]));
            gk_storev(y, i * GK_W, v);
        } else {
            y[i] = from[gk_nearest(w, iw, ow, half_cell, small, magic.v[5])];
        }
    }
}

/* dx[i] (+)= sum of dy over the outputs that show cell i. magic 3 to 5 divide by twice the input's sizes. */
GK_KERNEL(nearest_bwd)(GK_IN(gk_t, dy), GK_OUT(gk_t, dx), gk_i64 n, GK_DIMS(size), GK_DIMS(magic), int half_cell, int small, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_OUT(gk_t, dx);
    int id = (int)size.v[0], ih = (int)size.v[1], iw = (int)size.v[2], od = (int)size.v[3], oh = (int)size.v[4], ow = (int)size.v[5];
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_place q = gk_place_of(i, n, id, ih, iw, magic.v[0], magic.v[1], magic.v[2]);
        int d0 = gk_first_view(q.d, id, od, half_cell, small, magic.v[3]), d1 = gk_first_view(q.d + 1, id, od, half_cell, small, magic.v[3]);
        int h0 = gk_first_view(q.h, ih, oh, half_cell, small, magic.v[4]), h1 = gk_first_view(q.h + 1, ih, oh, half_cell, small, magic.v[4]);
        int w0 = gk_first_view(q.w, iw, ow, half_cell, small, magic.v[5]), w1 = gk_first_view(q.w + 1, iw, ow, half_cell, small, magic.v[5]);
        if (d1 > od) d1 = od;
        if (h1 > oh) h1 = oh;
        if (w1 > ow) w1 = ow;
        gk_f sum = GK_R(0.0);
        for (int d = d0; d < d1; d++) {
            GK_GLOBAL const gk_t* from = dy + ((q.plane * od + d) * oh + h0) * ow + w0;
            if (h1 - h0 <= 2 && w1 - w0 <= 2) {
                sum = gk_sum_patch(sum, from, h1 - h0, w1 - w0, ow, 2, 2);
            } else {
                for (int h = 0; h < h1 - h0; h++) {
                    for (int w = 0; w < w1 - w0; w += 4) sum = gk_sum_patch(sum, from + h * (gk_i64)ow + w, 1, w1 - w0 - w, 0, 1, 4);
                }
            }
        }
        gk_store(dx, i, accumulate ? gk_load(dx, i) + sum : sum);
    }
}

/* ---- nearest where W doubles and D and H double or stay (fd, fh): planes and D count as one axis of rows of planes ------------------------ */

/* y[o] = x[cell of o]. Items: GK_H cells of x along W; `runs` of them in a row of x, `rows` rows in a plane. by: multipliers that divide by both. */
GK_KERNEL(nearest_twice)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, int runs, int rows, GK_DIMS(by), int fd, int fh)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_u32 row = gk_quotient((gk_u32)i, by.v[0]), plane = gk_quotient(row, by.v[1]);
        gk_i64 w = (gk_i64)((gk_u32)i - row * (gk_u32)runs), h = (gk_i64)(row - plane * (gk_u32)rows);
        gk_half c = gk_load_half(x, i * GK_H);
        gk_vec v;
        GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] = c.v[k / 2];
        for (int a = 0; a < fd; a++) {
            for (int b = 0; b < fh; b++) gk_storev(y, ((((gk_i64)plane * fd + a) * rows + h) * fh + b) * runs * GK_W + w * GK_W, v);
        }
    }
}

/* dx[i] (+)= sum of dy over the outputs that show cell i. Items as nearest_twice. */
GK_KERNEL(nearest_twice_bwd)(GK_IN(gk_t, dy), GK_OUT(gk_t, dx), gk_i64 n, int runs, int rows, GK_DIMS(by), int fd, int fh, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_OUT(gk_t, dx);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_u32 row = gk_quotient((gk_u32)i, by.v[0]), plane = gk_quotient(row, by.v[1]);
        gk_i64 w = (gk_i64)((gk_u32)i - row * (gk_u32)runs), h = (gk_i64)(row - plane * (gk_u32)rows);
        gk_vec v[4];
        gk_half sum;
        /* Where an axis stays its copy is loaded again and not added. */
        GK_UNROLL for (int t = 0; t < 4; t++)
            v[t] = gk_loadv(dy, ((((gk_i64)plane * fd + (t / 2 < fd ? t / 2 : 0)) * rows + h) * fh + (t % 2 < fh ? t % 2
                : 0)) * runs * GK_W + w * GK_W);
        GK_UNROLL for (int k = 0; k < GK_H; k++) {
            gk_f s = GK_R(0.0);
            GK_UNROLL for (int t = 0; t < 4; t++) {
                if (t / 2 < fd && t % 2 < fh) s = s + v[t].v[2 * k] + v[t].v[2 * k + 1];
            }
            sum.v[k] = s;
        }
        if (accumulate) {
            gk_half old = gk_load_half(dx, i * GK_H);
            GK_UNROLL for (int k = 0; k < GK_H; k++) sum.v[k] += old.v[k];
        }
        gk_store_half(dx, i * GK_H, sum);
    }
}

/* ---- linear and cubic: tables of the weights along each axis ------------------------------------------------------------------------ */

/* The tables of the three axes: for each output of axis a the first cell and the one behind the last (bounds, from gk_bounds_at), and `taps`
 * weights (from gk_weights_at); for each cell the first output that reads it and the one behind the last (bounds, from gk_spans_at). */
#define gk_bounds_at(a) (2 * ((a) > 0 ? size.v[3] : 0) + 2 * ((a) > 1 ? size.v[4] : 0))
#define gk_weights_at(a) (((a) > 0 ? size.v[3] * taps.v[0] : 0) + ((a) > 1 ? size.v[4] * taps.v[1] : 0))
#define gk_spans_at(a) (2 * (size.v[3] + size.v[4] + size.v[5] + ((a) > 0 ? size.v[0] : 0) + ((a) > 1 ? size.v[1] : 0)))

/* Cubic convolution (Keys, 1981). */
GK_FN gk_f gk_cubic(gk_f t, gk_f a)
{
    t = gk_fabs(t);
    if (t <= GK_R(1.0)) return ((a + GK_R(2.0)) * t - (a + GK_R(3.0))) * t * t + GK_R(1.0);
    if (t < GK_R(2.0)) return ((a * t - GK_R(5.0) * a) * t + GK_R(8.0) * a) * t - GK_R(4.0) * a;
    return GK_R(0.0);
}

GK_FN gk_f gk_triangle(gk_f t)
{
    t = gk_fabs(t);
    return t < GK_R(1.0) ? GK_R(1.0) - t : GK_R(0.0);
}

/* Bounds and weights of all outputs of the three axes. Items: the outputs of one axis after the other. */
GK_KERNEL(resample_taps)(GK_OUT(int, bounds), GK_OUT(gk_f, weights), gk_i64 n, GK_DIMS(size), GK_DIMS(taps), int cubic, int align, int antialias)
{
    GK_BIND_OUT(int, bounds); GK_BIND_OUT(gk_f, weights);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        int axis = i < size.v[3] ? 0 : i < size.v[3] + size.v[4] ? 1 : 2;
        gk_i64 o = i, cells = size.v[0], m = size.v[3], k = taps.v[0];
        if (axis == 1) {
            o -= size.v[3];
            cells = size.v[1];
            m = size.v[4];
            k = taps.v[1];
        } else if (axis == 2) {
            o -= size.v[3] + size.v[4];
            cells = size.v[2];
            m = size.v[5];
            k = taps.v[2];
        }
        GK_GLOBAL int* bound = bounds + gk_bounds_at(axis) + o;
        GK_GLOBAL gk_f* w = weights + gk_weights_at(axis) + o * k;
        /* Cells per output are up / down. */
        gk_i64 up = cells, down = m, lo, hi;
        if (align) {
            up = m > 1 ? cells - 1 : 0;
            down = m > 1 ? m - 1 : 1;
        }
        if (antialias) {
            gk_i64 larger = up > down ? up : down, centre = (2 * o + 1) * up, reach = (cubic ? 4 : 2) * larger;
            lo = centre - reach + down;
            lo = lo > 0 ? lo / (2 * down) : 0;
            hi = (centre + reach + down) / (2 * down);
            if (hi > cells) hi = cells;
            if (lo >= hi) lo = hi - 1;
            if (hi > lo + k) hi = lo + k;
            gk_f total = GK_R(0.0);
            for (gk_i64 j = lo; j < hi; j++) {
                gk_f t = (gk_f)((2 * j + 1) * down - centre) / (gk_f)(2 * larger);
                gk_f v = cubic ? gk_cubic(t, GK_R(-0.5)) : gk_triangle(t);
                w[j - lo] = v;
                total += v;
            }
            for (gk_i64 j = 0; j < hi - lo; j++) w[j] = w[j] / total;
        } else {
            gk_i64 at = align ? o * up : (2 * o + 1) * cells - m, by = align ? down : 2 * m;
            if (cubic) {
                gk_i64 base = at >= 0 ? at / by : -((by - 1 - at) / by);
                gk_f t = (gk_f)(at - base * by) / (gk_f)by;
                lo = base - 1 < 0 ? 0 : base - 1;
                hi = base + 3 > cells ? cells : base + 3;
                if (lo >= cells) lo = cells - 1;
                if (hi <= lo) hi = lo + 1;
                for (gk_i64 j = 0; j < hi - lo; j++) w[j] = GK_R(0.0);
                for (int j = -1; j < 3; j++) {
                    gk_i64 cell = base + j < 0 ? 0 : base + j >= cells ? cells - 1 : base + j;
                    w[cell - lo] += gk_cubic(t - (gk_f)j, GK_R(-0.75));
                }
            } else {
                if (at < 0) at = 0;
                lo = at / by;
                if (lo >= cells) lo = cells - 1;
                hi = lo + 1 < cells ? lo + 2 : cells;
                gk_i64 rest = at - lo * by;
                w[0] = hi - lo == 1 ? GK_R(1.0) : (gk_f)(by - rest) / (gk_f)by;
                if (hi - lo == 2) w[1] = (gk_f)rest / (gk_f)by;
            }
        }
        bound[0] = (int)lo;
        bound[m] = (int)hi;
    }
}

/* Outputs that read each cell: neither end of an output's cells ever falls from one output to the next. Items: the cells of one axis after the
 * other. Launch: after resample_taps. */
GK_KERNEL(resample_spans)(GK_OUT(int, bounds), gk_i64 n, GK_DIMS(size))
{
    GK_BIND_OUT(int, bounds);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        int axis = i < size.v[0] ? 0 : i < size.v[0] + size.v[1] ? 1 : 2;
        gk_i64 cell = i, cells = size.v[0], m = size.v[3];
        if (axis == 1) {
            cell -= size.v[0];
            cells = size.v[1];
            m = size.v[4];
        } else if (axis == 2) {
            cell -= size.v[0] + size.v[1];
            cells = size.v[2];
            m = size.v[5];
        }
        GK_GLOBAL const int* first = bounds + gk_bounds_at(axis);
        GK_GLOBAL int* span = bounds + gk_spans_at(axis) + cell;
        gk_i64 lo = 0, hi = m;
        while (lo < hi) {
            gk_i64 mid = (lo + hi) / 2;
            if (first[m + mid] <= cell) lo = mid + 1;
            else hi = mid;
        }
        span[0] = (int)lo;
        hi = m;
        while (lo < hi) {
            gk_i64 mid = (lo + hi) / 2;
            if (first[mid] <= cell) lo = mid + 1;
            else hi = mid;
        }
        span[cells] = (int)lo;
    }
}

/* Planes that a thread brings along: they share weights, and their loads are in flight together. */
#define GK_PLANES 4

/* y[o] = sum of x over the cells of o, times their weights. Items: the outputs of a plane, once per group of up to GK_PLANES of the planes. */
GK_KERNEL(resample)(GK_IN(gk_t, x), GK_IN(int, bounds), GK_IN(gk_f, weights), GK_OUT(gk_t, y), gk_i64 n, gk_i64 planes, int group, GK_DIMS(size),
                    GK_DIMS(magic), GK_DIMS(taps))
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, bounds); GK_BIND_IN(gk_f, weights); GK_BIND_OUT(gk_t, y);
    int id = (int)size.v[0], ih = (int)size.v[1], iw = (int)size.v[2], od = (int)size.v[3], oh = (int)size.v[4], ow = (int)size.v[5];
    GK_GLOBAL const int* bh = bounds + gk_bounds_at(1);
    GK_GLOBAL const int* bw = bounds + gk_bounds_at(2);
    gk_i64 cells = (gk_i64)id * ih * iw, outputs = (gk_i64)od * oh * ow;
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_place q = gk_place_of(i, n, od, oh, ow, magic.v[0], magic.v[1], magic.v[2]);
        gk_i64 first = q.plane * group, o = i - q.plane * outputs;
        int d0 = bounds[q.d], d1 = bounds[od + q.d], h0 = bh[q.h], rows = bh[oh + q.h] - h0, w0 = bw[q.w], cols = bw[ow + q.w] - w0;
        int here = planes - first < group ? (int)(planes - first) : group;
        GK_GLOBAL const gk_f* wd = weights + q.d * taps.v[0];
        GK_GLOBAL const gk_f* wh = weights + gk_weights_at(1) + q.h * taps.v[1];
        GK_GLOBAL const gk_f* ww = weights + gk_weights_at(2) + q.w * taps.v[2];
        gk_f sum[GK_PLANES];
        GK_UNROLL for (int u = 0; u < GK_PLANES; u++) sum[u] = GK_R(0.0);
        for (int d = d0; d < d1; d++) {
            GK_GLOBAL const gk_t* from = x + first * cells + ((gk_i64)d * ih + h0) * iw + w0;
            gk_f k = wd[d - d0];
            if (rows <= 2 && cols <= 2) {
                gk_f v[4 * GK_PLANES], h[2], w[2];
                h[0] = wh[0];
                w[0] = ww[0];
                h[1] = GK_R(0.0);
                w[1] = GK_R(0.0);
                if (rows == 2) h[1] = wh[1];
                if (cols == 2) w[1] = ww[1];
                GK_UNROLL for (int u = 0; u < GK_PLANES; u++) {
                    GK_UNROLL for (int t = 0; t < 4; t++) {
                        v[4 * u + t] = GK_R(0.0);
                        if (u < here && t / 2 < rows && t % 2 < cols) v[4 * u + t] = gk_load(from, u * cells + t / 2 * iw + t % 2);
                    }
                }
                GK_UNROLL for (int u = 0; u < GK_PLANES; u++)
                    sum[u] += k * (h[0] * (w[0] * v[4 * u] + w[1] * v[4 * u + 1]) + h[1] * (w[0] * v[4 * u + 2] + w[1] * v[4 * u + 3]));
            } else {
                for (int h = 0; h < rows; h++) {
                    for (int w = 0; w < cols; w++) {
                        gk_f kw = k * wh[h] * ww[w];
                        GK_UNROLL for (int u = 0; u < GK_PLANES; u++) {
                            if (u < here) sum[u] += kw * gk_load(from, u * cells + (gk_i64)h * iw + w);
                        }
                    }
                }
            }
        }
        GK_UNROLL for (int u = 0; u < GK_PLANES; u++) {
            if (u < here) gk_store(y, (first + u) * outputs + o, sum[u]);
        }
    }
}

/* dx[i] (+)= sum of dy over the outputs that read cell i, times the cell's weight in them. Items: the cells of a plane, once per group. */
GK_KERNEL(resample_bwd)(GK_IN(gk_t, dy), GK_IN(int, bounds), GK_IN(gk_f, weights), GK_OUT(gk_t, dx), gk_i64 n, gk_i64 planes, int group,
                        GK_DIMS(size), GK_DIMS(magic), GK_DIMS(taps), int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(int, bounds); GK_BIND_IN(gk_f, weights); GK_BIND_OUT(gk_t, dx);
    int id = (int)size.v[0], ih = (int)size.v[1], iw = (int)size.v[2], od = (int)size.v[3], oh = (int)size.v[4], ow = (int)size.v[5];
    int kd = (int)taps.v[0], kh = (int)taps.v[1], kw = (int)taps.v[2];
    GK_GLOBAL const int* bh = bounds + gk_bounds_at(1);
    GK_GLOBAL const int* bw = bounds + gk_bounds_at(2);
    GK_GLOBAL const int* sd = bounds + gk_spans_at(0);
    GK_GLOBAL const int* sh = bounds + gk_spans_at(1);
    GK_GLOBAL const int* sw = bounds + gk_spans_at(2);
    GK_GLOBAL const gk_f* wh = weights + gk_weights_at(1);
    GK_GLOBAL const gk_f* ww = weights + gk_weights_at(2);
    gk_i64 cells = (gk_i64)id * ih * iw, outputs = (gk_i64)od * oh * ow;
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_place q = gk_place_of(i, n, id, ih, iw, magic.v[0], magic.v[1], magic.v[2]);
        gk_i64 first = q.plane * group, cell = i - q.plane * cells;
        int d1 = sd[id + q.d], h0 = sh[q.h], h1 = sh[ih + q.h], w0 = sw[q.w], w1 = sw[iw + q.w];
        int here = planes - first < group ? (int)(planes - first) : group;
        gk_f sum[GK_PLANES];
        GK_UNROLL for (int u = 0; u < GK_PLANES; u++) sum[u] = GK_R(0.0);
        for (int d = sd[q.d]; d < d1; d++) {
            gk_f a = weights[(gk_i64)d * kd + q.d - bounds[d]];
            for (int h = h0; h < h1; h++) {
                GK_GLOBAL const gk_t* from = dy + first * outputs + ((gk_i64)d * oh + h) * ow;
                gk_f b = a * wh[(gk_i64)h * kh + q.h - bh[h]];
                for (int w = w0; w < w1; w++) {
                    gk_f c = b * ww[(gk_i64)w * kw + q.w - bw[w]];
                    GK_UNROLL for (int u = 0; u < GK_PLANES; u++) {
                        if (u < here) sum[u] += c * gk_load(from, u * outputs + w);
                    }
                }
            }
        }
        GK_UNROLL for (int u = 0; u < GK_PLANES; u++) {
            gk_i64 to = (first + u) * cells + cell;
            if (u < here) gk_store(dx, to, accumulate ? gk_load(dx, to) + sum[u] : sum[u]);
        }
    }
}

/* ---- affine grids ------------------------------------------------------------------------------------------------------------------ */

/* Place i of n between -1 and 1. */
GK_FN gk_f gk_base(int i, int n, int align) { return n == 1 ? GK_R(0.0) : (gk_f)(2 * i - (n - 1)) / (gk_f)(align ? n - 1 : n); }

/* grid[p] = theta (x, y(, z), 1). size: D, H, W of the points. Items: points of all samples. */
GK_KERNEL(affine_grid)(GK_IN(gk_t, theta), GK_OUT(gk_t, grid), gk_i64 n, int axes, GK_DIMS(size), GK_DIMS(magic), int align)
{
    GK_BIND_IN(gk_t, theta); GK_BIND_OUT(gk_t, grid);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_place q = gk_place_of(i, n, size.v[0], size.v[1], size.v[2], magic.v[0], magic.v[1], magic.v[2]);
        gk_f x = gk_base(q.w, (int)size.v[2], align), y = gk_base(q.h, (int)size.v[1], align), z = gk_base(q.d, (int)size.v[0], align);
        for (int j = 0; j < axes; j++) {
            gk_i64 row = (q.plane * axes + j) * (axes + 1);
            gk_f v = gk_load(theta, row) * x + gk_load(theta, row + 1) * y;
            if (axes == 3) v += gk_load(theta, row + 2) * z;
            gk_store(grid, i * axes + j, v + gk_load(theta, row + axes));
        }
    }
}

/* part[sample][chunk][j][k] = sum of dgrid_j base_k over a chunk of the sample's `points`, 12 sums each. Launch: chunks x samples (looped). */
GK_KERNEL(affine_grid_sums)(GK_IN(gk_t, dgrid), GK_OUT(gk_f, part), gk_i64 samples, gk_i64 points, gk_i64 chunk, int axes, GK_DIMS(size),
                            GK_DIMS(magic), int align)
{
    GK_BIND_IN(gk_t, dgrid); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_i64 first = gk_bid(0) * chunk, end = first + chunk < points ? first + chunk : points;
    for (gk_i64 sample = gk_bid(1); sample < samples; sample += gk_nblocks(1)) {
        gk_f sum[12];
        GK_UNROLL for (int k = 0; k < 12; k++) sum[k] = GK_R(0.0);
        for (gk_i64 i = first + gk_lid(); i < end; i += GK_BLOCK) {
            gk_place q = gk_place_of(i, points, size.v[0], size.v[1], size.v[2], magic.v[0], magic.v[1], magic.v[2]);
            gk_f x = gk_base(q.w, (int)size.v[2], align), y = gk_base(q.h, (int)size.v[1], align), z = gk_base(q.d, (int)size.v[0], align);
            GK_UNROLL for (int j = 0; j < 3; j++) {
                if (j < axes) {
                    gk_f g = gk_load(dgrid, (sample * points + i) * axes + j);
                    sum[4 * j] += g * x;
                    sum[4 * j + 1] += g * y;
                    sum[4 * j + 2] += g * z;
                    sum[4 * j + 3] += g;
                }
            }
        }
        GK_UNROLL for (int k = 0; k < 12; k++) {
            gk_f s = gk_block_sum(sum[k], tmp);
            if (gk_lid() == 0) part[(sample * gk_nblocks(0) + gk_bid(0)) * 12 + k] = s;
        }
    }
}

/* dtheta (+)= the chunks' sums in order. Items: elements of dtheta. */
GK_KERNEL(affine_grid_combine)(GK_IN(gk_f, part), GK_OUT(gk_t, dtheta), gk_i64 n, int axes, int chunks, int accumulate)
{
    GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, dtheta);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 sample = gk_divide(i, axes * (axes + 1));
        int e = (int)(i - sample * (axes * (axes + 1))), j = e / (axes + 1), k = e - j * (axes + 1);
        /* The constant is the last of four sums. */
        int at = 4 * j + (k == axes ? 3 : k);
        gk_f sum = GK_R(0.0);
        for (int c = 0; c < chunks; c++) sum += part[(sample * chunks + c) * 12 + at];
        gk_store(dtheta, i, accumulate ? gk_load(dtheta, i) + sum : sum);
    }
}

/* ---- gradient of a sampled input --------------------------------------------------------------------------------------------------- */

/* dx[s, c, cell] (+)= sum of weight * dy over the entries with key s * cells + cell; entry e belongs to output e >> shift of all samples.
 * Keys are sorted; positions are the entries' numbers before. Items: cells of all samples, once per group of `channels` of the `all` channels. */
GK_KERNEL(sample_gather)(GK_IN(int, keys), GK_IN(int, positions), GK_IN(gk_f, weights), GK_IN(gk_t, dy), GK_OUT(gk_t, dx), gk_i64 n, gk_i64 entries,
                         int wide_keys, gk_i64 cells, gk_i64 samples, gk_i64 outputs, gk_i64 all, gk_i64 channels, int shift, int accumulate)
{
    GK_BIND_IN(int, keys); GK_BIND_IN(int, positions); GK_BIND_IN(gk_f, weights); GK_BIND_IN(gk_t, dy); GK_BIND_OUT(gk_t, dx);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 group = gk_divide(i, cells * samples), key = i - group * (cells * samples), sample = gk_divide(key, cells),
            cell = key - sample * cells;
        gk_i64 lo = 0, hi = entries;
        while (lo < hi) {
            gk_i64 mid = (lo + hi) / 2;
            if (gk_index(keys, mid, wide_keys) < key) lo = mid + 1;
            else hi = mid;
        }
        hi = lo;
        while (hi < entries && gk_index(keys, hi, wide_keys) == key) hi++;
        gk_i64 last = (group + 1) * channels < all ? (group + 1) * channels : all;
        for (gk_i64 c = group * channels; c < last; c++) {
            GK_GLOBAL const gk_t* from = dy + (sample * all + c - sample) * outputs;
            gk_f sum = GK_R(0.0);
            for (gk_i64 e = lo; e < hi; e++) {
                gk_u32 at = (gk_u32)positions[e];
                sum += weights[at] * gk_load(from, (gk_i64)(at >> shift));
            }
            gk_i64 to = (sample * all + c) * cells + cell;
            gk_store(dx, to, accumulate ? gk_load(dx, to) + sum : sum);
        }
    }
}
