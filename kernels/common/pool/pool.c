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
#include "common/prelude/window.h"

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

/* Cells that window o of axis a counts, for averages. */
#define GK_COUNTED(o, a, n, m) \
    gk_counted(gk_window(o, n, m, (int)win.v[a], (int)win.v[3 + a], (int)pad.v[a], 1, adaptive), o, n, (int)win.v[a], (int)win.v[3 + a], (int)pad.v[a], \
               include_pad)
#define GK_POOL_WINDOWS(q) \
    int id = (int)size.v[0], ih = (int)size.v[1], iw = (int)size.v[2]; \
    gk_win wd = gk_window(q.d, id, (int)size.v[3], (int)win.v[0], (int)win.v[3], (int)pad.v[0], (int)pad.v[3], adaptive); \
    gk_win wh = gk_window(q.h, ih, (int)size.v[4], (int)win.v[1], (int)win.v[4], (int)pad.v[1], (int)pad.v[4], adaptive); \
    gk_win ww = gk_window(q.w, iw, (int)size.v[5], (int)win.v[2], (int)win.v[5], (int)pad.v[2], (int)pad.v[5], adaptive)
/* Position in a plane of the first tap of a window's row. */
#define GK_POOL_ROW(a, b) (((gk_i64)(wd.first + (a) * wd.step) * ih + (wh.first + (b) * wh.step)) * iw + ww.first)
#define GK_OUTPUT(i) gk_place_of(i, n, size.v[3], size.v[4], size.v[5], magic.v[0], magic.v[1], magic.v[2])
#define GK_DIVISOR(q) \
    (divisor != GK_R(0.0) ? divisor \
                          : (gk_f)GK_COUNTED(q.d, 0, id, (int)size.v[3]) * (gk_f)GK_COUNTED(q.h, 1, ih, (int)size.v[4]) * \
                                (gk_f)GK_COUNTED(q.w, 2, iw, (int)size.v[5]))

/* The largest value so far and its position. */
typedef struct { gk_f v; gk_u32 at; } gk_best;

GK_FN gk_best gk_larger(gk_best best, gk_f v, gk_u32 at)
{
    if (v > best.v || gk_isnan(v)) {
        best.v = v;
        best.at = at;
    }
    return best;
}

// Units: FLOATS64
/* `index` may be null. */
GK_KERNEL(max_pool)(GK_IN(gk_t, x), GK_OUT(gk_t, y), GK_OUT(int, index), gk_i64 n, GK_DIMS(size), GK_DIMS(magic), GK_DIMS(win), GK_DIMS(pad),
                    int adaptive)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, index);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_place q = GK_OUTPUT(i);
        GK_POOL_WINDOWS(q);
        GK_GLOBAL const gk_t* from = x + q.plane * id * ih * iw;
        gk_best best;
        best.v = -GK_INF;
        best.at = wd.taps > 0 && wh.taps > 0 && ww.taps > 0 ? (gk_u32)GK_POOL_ROW(0, 0) : 0xffffffffu;
        for (int a = 0; a < wd.taps; a++) {
            for (int b = 0; b < wh.taps; b++) {
                gk_i64 at = GK_POOL_ROW(a, b);
                /* Several loads in flight. */
                for (int c = 0; c < ww.taps; c += 4) {
                    gk_f v[4];
                    GK_UNROLL for (int k = 0; k < 4; k++) {
                        v[k] = -GK_INF;
                        if (c + k < ww.taps) v[k] = gk_load(from, at + (gk_i64)(c + k) * ww.step);
                    }
                    GK_UNROLL for (int k = 0; k < 4; k++) best = gk_larger(best, v[k], (gk_u32)at + (gk_u32)((c + k) * ww.step));
                }
            }
        }
        gk_store(y, i, best.v);
        if (index) index[i] = (int)best.at;
    }
}

/* `divisor` 0: the number of cells that count. */
GK_KERNEL(avg_pool)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, GK_DIMS(size), GK_DIMS(magic), GK_DIMS(win), GK_DIMS(pad), int adaptive,
                    int include_pad, gk_f divisor)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_place q = GK_OUTPUT(i);
        GK_POOL_WINDOWS(q);
        GK_GLOBAL const gk_t* from = x + q.plane * id * ih * iw;
        gk_f sum = GK_R(0.0);
        for (int a = 0; a < wd.taps; a++) {
            for (int b = 0; b < wh.taps; b++) {
                for (int c = 0; c < ww.taps; c += 4) sum = gk_sum_patch(sum, from + GK_POOL_ROW(a, b) + c, 1, ww.taps - c, 0, 1, 4);
            }
        }
        gk_store(y, i, sum / GK_DIVISOR(q));
    }
}

/* ---- sliding windows of up to 2 x 2 or 3 x 3 taps next to each other, any number along D: read plane by plane in one piece ---------- */

/* The part of a window inside the input: its depths d0 .. d1 - 1, its first row and column and how many there are, and where it begins in the plane.
 * */
typedef struct { int d0, d1, h0, w0, rows, cols; gk_i64 at; } gk_patch;

GK_FN gk_patch gk_patch_of(gk_place q, const gk_dims* size, const gk_dims* win, const gk_dims* pad)
{
    gk_patch p;
    int id = (int)size->v[0], ih = (int)size->v[1], iw = (int)size->v[2];
    p.d0 = q.d * (int)win->v[3] - (int)pad->v[0]; p.h0 = q.h * (int)win->v[4] - (int)pad->v[1]; p.w0 = q.w * (int)win->v[5] - (int)pad->v[2];
    p.d1 = p.d0 + (int)win->v[0]; p.rows = p.h0 + (int)win->v[1]; p.cols = p.w0 + (int)win->v[2];
    if (p.d1 > id) p.d1 = id;
    if (p.rows > ih) p.rows = ih;
    if (p.cols > iw) p.cols = iw;
    if (p.d0 < 0) p.d0 = 0;
    if (p.h0 < 0) p.h0 = 0;
    if (p.w0 < 0) p.w0 = 0;
    p.rows -= p.h0;
    p.cols -= p.w0;
    p.at = ((q.plane * id + p.d0) * ih + p.h0) * iw + p.w0;
    return p;
}

/* A window that is cut shows its last row or column again, which changes no maximum and no position: so all loads are unconditional. */
GK_FN gk_best gk_max_patch(gk_best best, GK_GLOBAL const gk_t* x, gk_u32 at, int rows, int cols, int iw, const int side)
{
    gk_f v[9];
    GK_UNROLL for (int a = 0; a < side; a++) {
        GK_UNROLL for (int b = 0; b < side; b++) v[a * side + b] = gk_load(x, (a < rows ? a : rows - 1) * iw + (b < cols ? b : cols - 1));
    }
    GK_UNROLL for (int a = 0; a < side; a++) {
        GK_UNROLL for (int b = 0; b < side; b++)
            best = gk_larger(best, v[a * side + b], at + (gk_u32)((a < rows ? a : rows - 1) * iw + (b < cols ? b : cols - 1)));
    }
    return best;
}

/* max_pool with `side` 2 or 3. */
GK_KERNEL(max_pool_patch)(GK_IN(gk_t, x), GK_OUT(gk_t, y), GK_OUT(int, index), gk_i64 n, GK_DIMS(size), GK_DIMS(magic), GK_DIMS(win), GK_DIMS(pad),
                          int side)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, index);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_place q = GK_OUTPUT(i);
        gk_patch w = gk_patch_of(q, &size, &win, &pad);
        int ih = (int)size.v[1], iw = (int)size.v[2];
        GK_GLOBAL const gk_t* from = x + w.at;
        gk_best best;
        best.v = -GK_INF;
        best.at = (gk_u32)((w.d0 * ih + w.h0) * iw + w.w0);
        gk_u32 at = best.at;
        for (int d = w.d0; d < w.d1; d++) {
            if (side == 2) best = gk_max_patch(best, from, at, w.rows, w.cols, iw, 2);
            else best = gk_max_patch(best, from, at, w.rows, w.cols, iw, 3);
            from += (gk_i64)ih * iw;
            at += (gk_u32)(ih * iw);
        }
        gk_store(y, i, best.v);
        if (index) index[i] = (int)best.at;
    }
}

/* avg_pool with `side` 2 or 3 and a divisor. */
GK_KERNEL(avg_pool_patch)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, GK_DIMS(size), GK_DIMS(magic), GK_DIMS(win), GK_DIMS(pad), int side,
                          gk_f divisor)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_place q = GK_OUTPUT(i);
        gk_patch w = gk_patch_of(q, &size, &win, &pad);
        int ih = (int)size.v[1], iw = (int)size.v[2];
        GK_GLOBAL const gk_t* from = x + w.at;
        gk_f sum = GK_R(0.0);
        for (int d = w.d0; d < w.d1; d++) {
            if (side == 2) sum = gk_sum_patch(sum, from, w.rows, w.cols, iw, 2, 2);
            else sum = gk_sum_patch(sum, from, w.rows, w.cols, iw, 3, 3);
            from += (gk_i64)ih * iw;
        }
        gk_store(y, i, sum / divisor);
    }
}

/* ---- long windows -------------------------------------------------------------------------------------------------------------------- */

/* Loads of a thread in flight. */
#define GK_FLIGHT 8

/* max_pool for long windows: `lanes` threads (a power of two) per output go along its rows. Launch: blocks loop over GK_BLOCK / lanes
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
            GK_POOL_WINDOWS(q);
            GK_GLOBAL const gk_t* from = x + q.plane * id * ih * iw;
            if (wd.taps > 0 && wh.taps > 0 && ww.taps > 0) start = (gk_u32)GK_POOL_ROW(0, 0);
            for (int a = 0; a < wd.taps; a++) {
                for (int b = 0; b < wh.taps; b++) {
                    gk_i64 at = GK_POOL_ROW(a, b);
                    /* Several loads in flight. */
                    for (int c = lane; c < ww.taps; c += GK_FLIGHT * lanes) {
                        gk_f u[GK_FLIGHT];
                        GK_UNROLL for (int k = 0; k < GK_FLIGHT; k++) {
                            u[k] = -GK_INF;
                            if (c + k * lanes < ww.taps) u[k] = gk_load(from, at + (gk_i64)(c + k * lanes) * ww.step);
                        }
                        GK_UNROLL for (int k = 0; k < GK_FLIGHT; k++) best = gk_larger(best, u[k], (gk_u32)at + (gk_u32)((c + k * lanes) * ww.step));
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
GK_KERNEL(avg_pool_rows)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, GK_DIMS(size), GK_DIMS(magic), GK_DIMS(win), GK_DIMS(pad), int adaptive,
                         int include_pad, gk_f divisor, int lanes)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int t = gk_lid(), lane = t & (lanes - 1), per = GK_BLOCK / lanes;
    for (gk_i64 first = (gk_i64)gk_bid(0) * per; first < n; first += (gk_i64)gk_nblocks(0) * per) {
        gk_i64 i = first + t / lanes;
        gk_f sum = GK_R(0.0), by = GK_R(1.0);
        if (i < n) {
            gk_place q = GK_OUTPUT(i);
            GK_POOL_WINDOWS(q);
            GK_GLOBAL const gk_t* from = x + q.plane * id * ih * iw;
            for (int a = 0; a < wd.taps; a++) {
                for (int b = 0; b < wh.taps; b++) {
                    GK_GLOBAL const gk_t* line = from + GK_POOL_ROW(a, b);
                    for (int c = lane; c < ww.taps; c += GK_FLIGHT * lanes) {
                        gk_f u[GK_FLIGHT];
                        GK_UNROLL for (int k = 0; k < GK_FLIGHT; k++) {
                            u[k] = GK_R(0.0);
                            if (c + k * lanes < ww.taps) u[k] = gk_load(line, c + k * lanes);
                        }
                        GK_UNROLL for (int k = 0; k < GK_FLIGHT; k++) sum += u[k];
                    }
                }
            }
            by = GK_DIVISOR(q);
        }
        sum = gk_group_sum(sum, tmp, lanes);
        if (i < n && lane == 0) gk_store(y, i, sum / by);
    }
}

/* ---- gradients: a thread has a run of 1 or GK_W cells of a row; magic 3 to 5 divide by s --------------------------------------- */

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
            gk_f in_d = divisor != GK_R(0.0) ? divisor : (gk_f)GK_COUNTED(a, 0, id, od);
            for (int b = sh.lo; b < sh.hi; b++) {
                gk_f in_h = divisor != GK_R(0.0) ? divisor : in_d * (gk_f)GK_COUNTED(b, 1, ih, oh);
                gk_i64 line = ((q.plane * od + a) * oh + b) * ow;
                for (int c = sw.lo; c < sw.hi; c++) {
                    gk_f g = gk_load(dy, line + c), by = divisor != GK_R(0.0) ? divisor : in_h * (gk_f)GK_COUNTED(c, 2, iw, ow);
                    g = g / by;
                    /* The window's cells, counted from the run's first. */
                    int from = c * (int)win.v[5] - (int)pad.v[2], to = from + (int)win.v[2];
                    if (adaptive) {
                        from = gk_share(c, iw, ow);
                        to = gk_share_up(c + 1, iw, ow);
                    }
                    from -= w;
                    to -= w;
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
