/* Pooling of planes with up to three spatial axes; missing axes come first and have size 1.
 *
 *   max_pool   y[o] = max of x over window o, index[o] = its position in the plane       avg_pool   y[o] = sum of x over window o / divisor
 * size: input D, H, W and output D, H, W. Window o of an axis has the taps o*s - p + j*d, j < k, of which those inside the input count;
 * adaptive windows over n cells with m outputs are [floor(o n / m), ceil((o + 1) n / m)).
 * win: k and s of the three axes; pad: p and d. magic: multipliers that divide by the sizes over which items run, and by s where stated.
 * Launch: grid-stride over outputs (forward) or over runs of cells (gradients), unless stated. Positions within a plane are 32-bit along an
 * axis, 64-bit in all. Sums in gk_f, row by row; deterministic: one writer per cell. Reference: F.max_pool3d, F.avg_pool3d,
 * F.adaptive_max_pool3d, F.adaptive_avg_pool3d.
 */
#include "window.h"

/* Taps of a window that lie inside the axis. */
typedef struct { int first, taps, step; } gk_win;
/* Windows [lo, hi) of an axis. */
typedef struct { int lo, hi; } gk_span;

GK_FN gk_win gk_window(int o, int n, int m, int k, int s, int p, int d, int adaptive)
{
    gk_win w;
    w.step = d;
    if (adaptive) {
        w.first = m == 1 ? 0 : gk_share(o, n, m);
        w.taps = (m == 1 ? n : gk_share_up(o + 1, n, m)) - w.first;
        return w;
    }
    w.first = o * s - p;
    w.taps = k;
    if (d == 1) {
        if (w.first < 0) {
            w.taps += w.first;
            w.first = 0;
        }
        if (w.taps > n - w.first) w.taps = n - w.first;
    } else {
        while (w.first < 0 && w.taps > 0) {
            w.first += d;
            w.taps--;
        }
        if (w.first >= n) w.taps = 0;
        else if (w.taps > 1 && w.first + (gk_i64)(w.taps - 1) * d >= n) w.taps = (n - 1 - w.first) / d + 1;
    }
    return w;
}

/* Cells that window o of an axis counts in its average. */
GK_FN int gk_counted(gk_win w, int o, int n, int k, int s, int p, int include_pad)
{
    if (!include_pad) return w.taps;
    int first = o * s - p, end = first + k < n + p ? first + k : n + p;
    return end - first;
}

/* Windows that may have a tap in cells [a, b]. */
GK_FN gk_span gk_covering(int a, int b, int n, int m, int k, int s, int p, int d, gk_i64 by_s, int adaptive)
{
    gk_span r;
    if (adaptive) {
        r.lo = m == 1 ? 0 : gk_share(a, m, n);
        r.hi = m == 1 ? 1 : gk_share_up(b + 1, m, n);
        return r;
    }
    int t = a + p - d * (k - 1);
    r.lo = t <= 0 ? 0 : (int)gk_quotient((gk_u32)(t + s - 1), by_s);
    r.hi = (int)gk_quotient((gk_u32)(b + p), by_s) + 1;
    if (r.hi > m) r.hi = m;
    return r;
}

#define GK_WINDOWS(q) \
    int id = (int)size.v[0], ih = (int)size.v[1], iw = (int)size.v[2]; \
    gk_win wd = gk_window(q.d, id, (int)size.v[3], (int)win.v[0], (int)win.v[3], (int)pad.v[0], (int)pad.v[3], adaptive); \
    gk_win wh = gk_window(q.h, ih, (int)size.v[4], (int)win.v[1], (int)win.v[4], (int)pad.v[1], (int)pad.v[4], adaptive); \
    gk_win ww = gk_window(q.w, iw, (int)size.v[5], (int)win.v[2], (int)win.v[5], (int)pad.v[2], (int)pad.v[5], adaptive)
/* Position in a plane of the first tap of a window's row. */
#define GK_ROW(a, b) (((gk_i64)(wd.first + (a) * wd.step) * ih + (wh.first + (b) * wh.step)) * iw + ww.first)
#define GK_OUTPUT(i) gk_place_of(i, n, size.v[3], size.v[4], size.v[5], magic.v[0], magic.v[1], magic.v[2])
#define GK_DIVISOR(q) \
    (divisor != GK_R(0.0) ? divisor \
                          : (gk_f)gk_counted(wd, q.d, id, (int)win.v[0], (int)win.v[3], (int)pad.v[0], include_pad) * \
                                (gk_f)gk_counted(wh, q.h, ih, (int)win.v[1], (int)win.v[4], (int)pad.v[1], include_pad) * \
                                (gk_f)gk_counted(ww, q.w, iw, (int)win.v[2], (int)win.v[5], (int)pad.v[2], include_pad))

/* The largest value so far and its position. */
typedef struct { gk_f v; gk_u32 at; } gk_best;

/* Up to th x tw taps of x at `at`, row by row: all loads first, so that they are in flight together. */
GK_FN gk_best gk_max_patch(gk_best best, GK_GLOBAL const gk_t* x, gk_u32 at, int rows, int cols, gk_i64 row, int col, const int th, const int tw)
{
    gk_f v[9];
    GK_UNROLL for (int a = 0; a < th; a++) {
        GK_UNROLL for (int b = 0; b < tw; b++) {
            v[a * tw + b] = GK_R(0.0);
            if (a < rows && b < cols) v[a * tw + b] = gk_load(x, a * row + b * col);
        }
    }
    GK_UNROLL for (int a = 0; a < th; a++) {
        GK_UNROLL for (int b = 0; b < tw; b++) {
            gk_f u = v[a * tw + b];
            if (a < rows && b < cols && (u > best.v || gk_isnan(u))) {
                best.v = u;
                best.at = at + (gk_u32)(a * (int)row + b * col);
            }
        }
    }
    return best;
}

/* `index` may be null. Windows of up to 3 x 3 are read in one piece, others in runs of a row. */
GK_KERNEL(max_pool)(GK_IN(gk_t, x), GK_OUT(gk_t, y), GK_OUT(int, index), gk_i64 n, GK_DIMS(size), GK_DIMS(magic), GK_DIMS(win), GK_DIMS(pad), int adaptive)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, index);
    int side = (int)(win.v[1] > win.v[2] ? win.v[1] : win.v[2]);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_place q = GK_OUTPUT(i);
        GK_WINDOWS(q);
        GK_GLOBAL const gk_t* from = x + q.plane * id * ih * iw;
        gk_i64 row = (gk_i64)wh.step * iw;
        gk_best best;
        best.v = -GK_INF;
        best.at = wd.taps > 0 && wh.taps > 0 && ww.taps > 0 ? (gk_u32)GK_ROW(0, 0) : 0xffffffffu;
        for (int a = 0; a < wd.taps; a++) {
            gk_i64 at = GK_ROW(a, 0);
            if (side == 2) {
                best = gk_max_patch(best, from + at, (gk_u32)at, wh.taps, ww.taps, row, ww.step, 2, 2);
            } else if (side == 3) {
                best = gk_max_patch(best, from + at, (gk_u32)at, wh.taps, ww.taps, row, ww.step, 3, 3);
            } else {
                for (int b = 0; b < wh.taps; b++) {
                    for (int c = 0; c < ww.taps; c += 4) {
                        gk_i64 to = at + b * row + (gk_i64)c * ww.step;
                        best = gk_max_patch(best, from + to, (gk_u32)to, 1, ww.taps - c, 0, ww.step, 1, 4);
                    }
                }
            }
        }
        gk_store(y, i, best.v);
        if (index) index[i] = (int)best.at;
    }
}

/* `divisor` 0: the number of cells that count. */
GK_KERNEL(avg_pool)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, GK_DIMS(size), GK_DIMS(magic), GK_DIMS(win), GK_DIMS(pad), int adaptive, int include_pad,
                    gk_f divisor)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    int side = (int)(win.v[1] > win.v[2] ? win.v[1] : win.v[2]);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_place q = GK_OUTPUT(i);
        GK_WINDOWS(q);
        GK_GLOBAL const gk_t* from = x + q.plane * id * ih * iw;
        gk_f sum = GK_R(0.0);
        for (int a = 0; a < wd.taps; a++) {
            gk_i64 at = GK_ROW(a, 0);
            if (side == 2) {
                sum = gk_sum_patch(sum, from + at, wh.taps, ww.taps, iw, 2, 2);
            } else if (side == 3) {
                sum = gk_sum_patch(sum, from + at, wh.taps, ww.taps, iw, 3, 3);
            } else {
                for (int b = 0; b < wh.taps; b++) {
                    for (int c = 0; c < ww.taps; c += 4) sum = gk_sum_patch(sum, from + at + b * (gk_i64)iw + c, 1, ww.taps - c, 0, 1, 4);
                }
            }
        }
        gk_store(y, i, sum / GK_DIVISOR(q));
    }
}

/* max_pool for long windows: `lanes` work-items (a power of two) per output go along its rows. Launch: blocks loop over GK_BLOCK / lanes
 * outputs. */
GK_KERNEL(max_pool_rows)(GK_IN(gk_t, x), GK_OUT(gk_t, y), GK_OUT(int, index), gk_i64 n, GK_DIMS(size), GK_DIMS(magic), GK_DIMS(win), GK_DIMS(pad),
                         int adaptive, int lanes)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, index);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_u32 rank[GK_BLOCK];
    int t = gk_lid(), lane = t & (lanes - 1), per = GK_BLOCK / lanes;
    for (gk_i64 first = (gk_i64)gk_bid(0) * per; first < n; first += (gk_i64)gk_nblocks(0) * per) {
        gk_i64 i = first + t / lanes;
        int live = i < n;
        gk_best best;
        gk_u32 start = 0xffffffffu;
        best.v = -GK_INF;
        best.at = 0xffffffffu;
        if (live) {
            gk_place q = GK_OUTPUT(i);
            GK_WINDOWS(q);
            GK_GLOBAL const gk_t* from = x + q.plane * id * ih * iw;
            if (wd.taps > 0 && wh.taps > 0 && ww.taps > 0) start = (gk_u32)GK_ROW(0, 0);
            for (int a = 0; a < wd.taps; a++) {
                for (int b = 0; b < wh.taps; b++) {
                    gk_i64 at = GK_ROW(a, b);
                    for (int c = lane; c < ww.taps; c += lanes) {
                        gk_i64 to = at + (gk_i64)c * ww.step;
                        gk_f u = gk_load(from, to);
                        if (u > best.v || gk_isnan(u)) {
                            best.v = u;
                            best.at = (gk_u32)to;
                        }
                    }
                }
            }
        }
        gk_f top = gk_group_max(best.v, tmp, lanes);
        /* The first position of the maximum; of NaNs the last one, by counting from the end. */
        int last = gk_isnan(top), mine = last ? gk_isnan(best.v) : best.v == top;
        rank[t] = mine ? (last ? 0x7fffffffu - best.at : best.at) : 0xffffffffu;
        GK_BARRIER();
        for (int m = lanes / 2; m > 0; m >>= 1) {
            if (lane < m && rank[t + m] < rank[t]) rank[t] = rank[t + m];
            GK_BARRIER();
        }
        if (live && lane == 0) {
            gk_u32 at = rank[t];
            if (at == 0xffffffffu) at = start;
            else if (last) at = 0x7fffffffu - at;
            gk_store(y, i, top);
            if (index) index[i] = (int)at;
        }
        GK_BARRIER();
    }
}

/* avg_pool for long windows; as max_pool_rows. */
GK_KERNEL(avg_pool_rows)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, GK_DIMS(size), GK_DIMS(magic), GK_DIMS(win), GK_DIMS(pad), int adaptive, int include_pad,
                         gk_f divisor, int lanes)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int t = gk_lid(), lane = t & (lanes - 1), per = GK_BLOCK / lanes;
    for (gk_i64 first = (gk_i64)gk_bid(0) * per; first < n; first += (gk_i64)gk_nblocks(0) * per) {
        gk_i64 i = first + t / lanes;
        gk_f sum = GK_R(0.0), by = GK_R(1.0);
        if (i < n) {
            gk_place q = GK_OUTPUT(i);
            GK_WINDOWS(q);
            GK_GLOBAL const gk_t* from = x + q.plane * id * ih * iw;
            for (int a = 0; a < wd.taps; a++) {
                for (int b = 0; b < wh.taps; b++) {
                    GK_GLOBAL const gk_t* line = from + GK_ROW(a, b);
                    for (int c = lane; c < ww.taps; c += lanes) sum += gk_load(line, c);
                }
            }
            by = GK_DIVISOR(q);
        }
        sum = gk_group_sum(sum, tmp, lanes);
        if (i < n && lane == 0) gk_store(y, i, sum / by);
    }
}

/* ---- gradients: a work-item has a run of 1 or GK_W cells of a row; magic 3 to 5 divide by s --------------------------------------- */

#define GK_SPANS(q, first, count) \
    int id = (int)size.v[0], ih = (int)size.v[1], iw = (int)size.v[2], od = (int)size.v[3], oh = (int)size.v[4], ow = (int)size.v[5]; \
    gk_span sd = gk_covering(q.d, q.d, id, od, (int)win.v[0], (int)win.v[3], (int)pad.v[0], (int)pad.v[3], magic.v[3], adaptive); \
    gk_span sh = gk_covering(q.h, q.h, ih, oh, (int)win.v[1], (int)win.v[4], (int)pad.v[1], (int)pad.v[4], magic.v[4], adaptive); \
    gk_span sw = gk_covering(first, first + count - 1, iw, ow, (int)win.v[2], (int)win.v[5], (int)pad.v[2], (int)pad.v[5], magic.v[5], adaptive)

GK_FN void gk_put_run(GK_GLOBAL gk_t* dx, gk_i64 at, gk_vec sum, int wide, int accumulate)
{
    if (wide) {
        if (accumulate) {
            gk_vec old = gk_loadv(dx, at);
            GK_UNROLL for (int k = 0; k < GK_W; k++) sum.v[k] += old.v[k];
        }
        gk_storev(dx, at, sum);
    } else {
        gk_store(dx, at, accumulate ? gk_load(dx, at) + sum.v[0] : sum.v[0]);
    }
}

/* dx[cell] (+)= sum of the dy whose index is the cell. Items: runs of GK_W cells with `wide` (W a multiple, dx aligned), else cells. */
GK_KERNEL(max_pool_bwd)(GK_IN(gk_t, dy), GK_IN(int, index), GK_OUT(gk_t, dx), GK_OUT(int, err), gk_i64 n, GK_DIMS(size), GK_DIMS(magic), GK_DIMS(win),
                        GK_DIMS(pad), int adaptive, int wide, int accumulate, int code)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(int, index); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(int, err);
    int run = wide ? GK_W : 1;
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_place q = gk_place_of(i, n, size.v[0], size.v[1], size.v[2] / run, magic.v[0], magic.v[1], magic.v[2]);
        int w = q.w * run;
        GK_SPANS(q, w, run);
        int cells = id * ih * iw, cell = (q.d * ih + q.h) * iw + w;
        gk_vec sum;
        GK_UNROLL for (int k = 0; k < GK_W; k++) sum.v[k] = GK_R(0.0);
        for (int a = sd.lo; a < sd.hi; a++) {
            for (int b = sh.lo; b < sh.hi; b++) {
                gk_i64 line = ((q.plane * od + a) * oh + b) * ow;
                for (int c = sw.lo; c < sw.hi; c++) {
                    int at = index[line + c];
                    gk_f g = gk_load(dy, line + c);
                    if (at < -1 || at >= cells) gk_report(err, code);
                    at -= cell;
                    if (wide) {
                        GK_UNROLL for (int k = 0; k < GK_W; k++) {
                            if (at == k) sum.v[k] += g;
                        }
                    } else if (at == 0) {
                        sum.v[0] += g;
                    }
                }
            }
        }
        gk_put_run(dx, q.plane * cells + cell, sum, wide, accumulate);
    }
}

/* dx[cell] (+)= sum of dy / divisor over the windows that contain the cell. Items as max_pool_bwd. */
GK_KERNEL(avg_pool_bwd)(GK_IN(gk_t, dy), GK_OUT(gk_t, dx), gk_i64 n, GK_DIMS(size), GK_DIMS(magic), GK_DIMS(win), GK_DIMS(pad), int adaptive,
                        int include_pad, gk_f divisor, int wide, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_OUT(gk_t, dx);
    int run = wide ? GK_W : 1;
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_place q = gk_place_of(i, n, size.v[0], size.v[1], size.v[2] / run, magic.v[0], magic.v[1], magic.v[2]);
        int w = q.w * run;
        GK_SPANS(q, w, run);
        gk_vec sum;
        GK_UNROLL for (int k = 0; k < GK_W; k++) sum.v[k] = GK_R(0.0);
        for (int a = sd.lo; a < sd.hi; a++) {
            gk_win wd = gk_window(a, id, od, (int)win.v[0], (int)win.v[3], (int)pad.v[0], 1, adaptive);
            gk_f in_d = (gk_f)gk_counted(wd, a, id, (int)win.v[0], (int)win.v[3], (int)pad.v[0], include_pad);
            for (int b = sh.lo; b < sh.hi; b++) {
                gk_win wh = gk_window(b, ih, oh, (int)win.v[1], (int)win.v[4], (int)pad.v[1], 1, adaptive);
                gk_f in_h = in_d * (gk_f)gk_counted(wh, b, ih, (int)win.v[1], (int)win.v[4], (int)pad.v[1], include_pad);
                gk_i64 line = ((q.plane * od + a) * oh + b) * ow;
                for (int c = sw.lo; c < sw.hi; c++) {
                    gk_win ww = gk_window(c, iw, ow, (int)win.v[2], (int)win.v[5], (int)pad.v[2], 1, adaptive);
                    gk_f by = in_h * (gk_f)gk_counted(ww, c, iw, (int)win.v[2], (int)win.v[5], (int)pad.v[2], include_pad);
                    gk_f g = gk_load(dy, line + c) / (divisor != GK_R(0.0) ? divisor : by);
                    int from = ww.first - w, to = from + ww.taps;
                    if (wide) {
                        GK_UNROLL for (int k = 0; k < GK_W; k++) {
                            if (k >= from && k < to) sum.v[k] += g;
                        }
                    } else {
                        sum.v[0] += g;
                    }
                }
            }
        }
        gk_put_run(dx, ((q.plane * id + q.d) * ih + q.h) * iw + w, sum, wide, accumulate);
    }
}
