/* Pooling of planes that halves their rows: sliding windows with stride 2 of 2 x 2 cells (`side` 2), or of 3 x 3 cells with a padding of 1
 * (`side` 3). Rows of x have twice the length of those of y and a multiple of GK_W cells; bases are aligned to 16 bytes. Less than 2^31 items.
 *
 * size: rows and row length of x, then of y. by: multipliers that divide by the items of a row (W / GK_W) and by the row pairs of a plane.
 * Launch: grid-stride over items: GK_W cells of x along W, and the GK_H windows that start there, in two rows (of y forward, of x backward).
 * Results, bit by bit, and sources as in pool/pool.c: windows and cells are met in the same order. Deterministic: one writer per cell.
 */
#include "common/prelude/window.h"

/* Rows of y that an item has in the forward. */
#define GK_POOL_ROWS 2
#define GK_LINES (2 * GK_POOL_ROWS + 1)

/* A row of x as the windows of an item see it: the cell before the item's, and those. */
typedef struct { gk_f v[GK_W + 1]; } gk_line;
/* Plane, pair of rows, and first cell along W. */
typedef struct { gk_i64 plane; int pair, w; } gk_spot;

GK_FN gk_spot gk_spot_of(gk_i64 i, int runs, int pairs, gk_i64 by_runs, gk_i64 by_pairs)
{
    gk_u32 row = gk_quotient((gk_u32)i, by_runs), plane = gk_quotient(row, by_pairs);
    gk_spot s;
    s.plane = (gk_i64)plane;
    s.pair = (int)(row - plane * (gk_u32)pairs);
    s.w = (int)((gk_u32)i - row * (gk_u32)runs) * GK_W;
    return s;
}

/* Row h of a plane of `rows` rows, as if the cells at its border went on outside. All loads are unconditional, so that they are in flight
 * together. */
GK_FN gk_line gk_line_at(GK_GLOBAL const gk_t* x, int h, int w, int rows, int width, const int side)
{
    int at = (h < 0 ? 0 : h < rows ? h : rows - 1) * width + w;
    gk_vec q = gk_loadv(x, at);
    gk_line r;
    r.v[0] = q.v[0];
    if (side == 3) r.v[0] = gk_load(x, w > 0 ? at - 1 : at);
    GK_UNROLL for (int k = 0; k < GK_W; k++) r.v[k + 1] = q.v[k];
    return r;
}

/* The same with 0 outside. */
GK_FN gk_line gk_inner_line_at(GK_GLOBAL const gk_t* x, int h, int w, int rows, int width, const int side)
{
    gk_line r = gk_line_at(x, h, w, rows, width, side);
    if (w == 0) r.v[0] = GK_R(0.0);
    if (h < 0 || h >= rows) {
        GK_UNROLL for (int k = 0; k <= GK_W; k++) r.v[k] = GK_R(0.0);
    }
    return r;
}

#define GK_SPOT(height, rows_each) \
    int xh = (int)size.v[0], xw = (int)size.v[1], yh = (int)size.v[2], yw = (int)size.v[3]; \
    int runs = xw / GK_W, pairs = ((height) + (rows_each) - 1) / (rows_each)

/* GK_H indices at a place divisible by GK_H. */
GK_FN void gk_store_places(GK_GLOBAL int* p, gk_i64 i, const int v[GK_H])
{
#if GK_H == 4
    gk_store16((GK_GLOBAL void*)(p + i), gk_make16((gk_u32)v[0], (gk_u32)v[1], (gk_u32)v[2], (gk_u32)v[3]));
#elif GK_H == 2
    *(GK_GLOBAL gk_u64*)(p + i) = (gk_u64)(gk_u32)v[1] << 32 | (gk_u32)v[0];
#else
    p[i] = v[0];
#endif
}

/* The maxima of GK_H windows whose rows are lines first .. first + side - 1, and their positions in the plane; the window starts at row h. A
 * copy of the border outside is met before or after the cell itself: it changes no maximum, and its position is moved to the border. */
GK_FN void gk_maxima(const gk_line l[GK_LINES], const int first, int h, int w, int rows, int width, gk_half* top, int at[GK_H], const int side)
{
    GK_UNROLL for (int o = 0; o < GK_H; o++) {
        gk_f best = -GK_INF;
        /* The tap of the maximum: row * 4 + column. */
        int tap = 0;
        GK_UNROLL for (int a = 0; a < side; a++) {
            GK_UNROLL for (int b = 0; b < side; b++) {
                gk_f v = l[first + a].v[3 - side + 2 * o + b];
                if (v > best || gk_isnan(v)) {
                    best = v;
                    tap = 4 * a + b;
                }
            }
        }
        int row = h + (tap >> 2), column = w + 2 * o + 2 - side + (tap & 3);
        if (side == 3 && row < 0) row = 0;
        if (row >= rows) row = rows - 1;
        if (side == 3 && o == 0 && column < 0) column = 0;
        top->v[o] = best;
        at[o] = row * width + column;
    }
}

GK_FN void gk_maxima_rows(gk_spot s, GK_GLOBAL const gk_t* from, GK_GLOBAL gk_t* y, GK_GLOBAL int* index, int xh, int xw, int yh, int yw,
                          const int side)
{
    int h = 2 * GK_POOL_ROWS * s.pair + 2 - side;
    gk_line l[GK_LINES];
    GK_UNROLL for (int a = 0; a < 2 * GK_POOL_ROWS + side - 2; a++) l[a] = gk_line_at(from, h + a, s.w, xh, xw, side);
    GK_UNROLL for (int k = 0; k < GK_POOL_ROWS; k++) {
        gk_half top;
        int at[GK_H], row = GK_POOL_ROWS * s.pair + k;
        gk_maxima(l, 2 * k, h + 2 * k, s.w, xh, xw, &top, at, side);
        if (row < yh) {
            gk_i64 to = (s.plane * yh + row) * yw + s.w / 2;
            gk_store_half(y, to, top);
            if (index) gk_store_places(index, to, at);
        }
    }
}

// Units: FLOATS64
/* `index` may be null. */
GK_KERNEL(max_pool_halve)(GK_IN(gk_t, x), GK_OUT(gk_t, y), GK_OUT(int, index), gk_i64 n, GK_DIMS(size), GK_DIMS(by), int side)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, index);
    GK_SPOT(yh, GK_POOL_ROWS);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_spot s = gk_spot_of(i, runs, pairs, by.v[0], by.v[1]);
        GK_GLOBAL const gk_t* from = x + s.plane * xh * xw;
        if (side == 2) gk_maxima_rows(s, from, y, index, xh, xw, yh, yw, 2);
        else gk_maxima_rows(s, from, y, index, xh, xw, yh, yw, 3);
    }
}

GK_FN void gk_average_rows(gk_spot s, GK_GLOBAL const gk_t* from, GK_GLOBAL gk_t* y, int xh, int xw, int yh, int yw, gk_f divisor, const int side)
{
    int h = 2 * GK_POOL_ROWS * s.pair + 2 - side;
    gk_line l[GK_LINES];
    GK_UNROLL for (int a = 0; a < 2 * GK_POOL_ROWS + side - 2; a++) l[a] = gk_inner_line_at(from, h + a, s.w, xh, xw, side);
    GK_UNROLL for (int k = 0; k < GK_POOL_ROWS; k++) {
        gk_half mean;
        int row = GK_POOL_ROWS * s.pair + k, top = h + 2 * k, rows = (top + side < xh ? top + side : xh) - (top > 0 ? top : 0);
        GK_UNROLL for (int o = 0; o < GK_H; o++) {
            gk_f sum = GK_R(0.0);
            GK_UNROLL for (int a = 0; a < side; a++) {
                GK_UNROLL for (int b = 0; b < side; b++) sum += l[2 * k + a].v[3 - side + 2 * o + b];
            }
            gk_f by = divisor;
            /* Rows of y have half as many cells: windows reach over the left border alone. */
            if (by == GK_R(0.0)) by = (gk_f)(rows * (side == 3 && o == 0 && s.w == 0 ? 2 : side));
            mean.v[o] = sum / by;
        }
        if (row < yh) gk_store_half(y, (s.plane * yh + row) * yw + s.w / 2, mean);
    }
}

/* `divisor` 0: the number of cells inside. */
GK_KERNEL(avg_pool_halve)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, GK_DIMS(size), GK_DIMS(by), int side, gk_f divisor)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    GK_SPOT(yh, GK_POOL_ROWS);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_spot s = gk_spot_of(i, runs, pairs, by.v[0], by.v[1]);
        GK_GLOBAL const gk_t* from = x + s.plane * xh * xw;
        if (side == 2) gk_average_rows(s, from, y, xh, xw, yh, yw, divisor, 2);
        else gk_average_rows(s, from, y, xh, xw, yh, yw, divisor, 3);
    }
}

/* ---- gradients: the windows with cells in rows 2j and 2j + 1 of x are those of row j of y and, of 3 x 3, those of row j + 1 ---------------- */

/* GK_H windows and the one behind them. */
typedef struct { gk_f g[GK_H + 1]; int at[GK_H + 1]; } gk_windows;

/* The windows of a row of y from column c; outside: no gradient. `index` may be null. */
GK_FN gk_windows gk_windows_at(GK_GLOBAL const gk_t* dy, GK_GLOBAL const int* index, gk_i64 plane, int row, int c, int yh, int yw, const int side)
{
    int live = row < yh, next = live && c + GK_H < yw;
    gk_i64 at = (plane * yh + (live ? row : 0)) * yw + c;
    gk_half g = gk_load_half(dy, at);
    gk_windows r;
    r.g[GK_H] = GK_R(0.0);
    r.at[GK_H] = -1;
    if (side == 3) {
        r.g[GK_H] = gk_load(dy, at + (next ? GK_H : 0));
        if (!next) r.g[GK_H] = GK_R(0.0);
    }
    GK_UNROLL for (int q = 0; q < GK_H; q++) r.g[q] = live ? g.v[q] : GK_R(0.0);
    if (index) {
#if GK_H == 4
        gk_raw16 e = gk_load16((GK_GLOBAL const void*)(index + at));
        r.at[0] = (int)e.x; r.at[1] = (int)e.y; r.at[2] = (int)e.z; r.at[3] = (int)e.w;
#elif GK_H == 2
        gk_u64 e = *(GK_GLOBAL const gk_u64*)(index + at);
        r.at[0] = (int)(gk_u32)e; r.at[1] = (int)(gk_u32)(e >> 32);
#else
        r.at[0] = index[at];
#endif
        if (side == 3) r.at[GK_H] = index[at + (next ? GK_H : 0)];
    }
    GK_UNROLL for (int q = 0; q < GK_H; q++) r.at[q] = live && index ? r.at[q] : -1;
    if (!next) r.at[GK_H] = -1;
    return r;
}

/* dx[at ..] (+)= sum */
GK_FN void gk_put_run(GK_GLOBAL gk_t* dx, gk_i64 at, gk_vec sum, int accumulate)
{
    if (accumulate) {
        gk_vec old = gk_loadv(dx, at);
        GK_UNROLL for (int k = 0; k < GK_W; k++) sum.v[k] += old.v[k];
    }
    gk_storev(dx, at, sum);
}

/* Adds those of a row of windows whose maximum is in cells of a run that starts at position `first`. */
GK_FN gk_vec gk_add_maxima(gk_vec sum, gk_windows w, int first, const int side)
{
    GK_UNROLL for (int q = 0; q < GK_H + side - 2; q++) {
        GK_UNROLL for (int b = 2 * q + 2 - side; b < 2 * q + 2; b++) {
            if (b >= 0 && b < GK_W && w.at[q] - first == b) sum.v[b] += w.g[q];
        }
    }
    return sum;
}

GK_FN int gk_strange(gk_windows w, int cells)
{
    int strange = 0;
    GK_UNROLL for (int q = 0; q <= GK_H; q++) strange |= w.at[q] < -1 || w.at[q] >= cells;
    return strange;
}

GK_FN gk_vec gk_zero_run(void)
{
    gk_vec r;
    GK_UNROLL for (int k = 0; k < GK_W; k++) r.v[k] = GK_R(0.0);
    return r;
}

/* More blocks at a time are worth more than registers here (measured). */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 6

/* Returns whether an index is out of range. */
GK_FN int gk_maxima_bwd(gk_spot s, GK_GLOBAL const gk_t* dy, GK_GLOBAL const int* index, GK_GLOBAL gk_t* dx, gk_i64 to, int first, int xh, int xw,
                        int yh, int yw, int accumulate, const int side)
{
    gk_windows w[2];
    GK_UNROLL for (int a = 0; a < side - 1; a++) w[a] = gk_windows_at(dy, index, s.plane, s.pair + a, s.w / 2, yh, yw, side);
    gk_vec upper = gk_add_maxima(gk_zero_run(), w[0], first, side), lower = gk_add_maxima(gk_zero_run(), w[0], first + xw, side);
    int strange = gk_strange(w[0], xh * xw);
    if (side == 3) {
        lower = gk_add_maxima(lower, w[side - 2], first + xw, side);
        strange |= gk_strange(w[side - 2], xh * xw);
    }
    gk_put_run(dx, to, upper, accumulate);
    if (2 * s.pair + 1 < xh) gk_put_run(dx, to + xw, lower, accumulate);
    return strange;
}

/* dx[cell] (+)= sum of the dy whose index is the cell. */
GK_KERNEL(max_pool_halve_bwd)(GK_IN(gk_t, dy), GK_IN(int, index), GK_OUT(gk_t, dx), GK_OUT(int, err), gk_i64 n, GK_DIMS(size), GK_DIMS(by), int side,
                              int accumulate, int code)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(int, index); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(int, err);
    GK_SPOT(xh, 2);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_spot s = gk_spot_of(i, runs, pairs, by.v[0], by.v[1]);
        int first = 2 * s.pair * xw + s.w, strange;
        gk_i64 to = s.plane * xh * xw + first;
        if (side == 2) strange = gk_maxima_bwd(s, dy, index, dx, to, first, xh, xw, yh, yw, accumulate, 2);
        else strange = gk_maxima_bwd(s, dy, index, dx, to, first, xh, xw, yh, yw, accumulate, 3);
        if (strange) gk_report(err, code);
    }
}

/* Adds a row of windows to the cells that they have along a row. */
GK_FN gk_vec gk_add_means(gk_vec sum, gk_windows w, gk_f divisor, const int side)
{
    GK_UNROLL for (int q = 0; q < GK_H + side - 2; q++) {
        gk_f g = w.g[q] / divisor;
        GK_UNROLL for (int b = 2 * q + 2 - side; b < 2 * q + 2; b++) {
            if (b >= 0 && b < GK_W) sum.v[b] += g;
        }
    }
    return sum;
}

GK_FN void gk_averages_bwd(gk_spot s, GK_GLOBAL const gk_t* dy, GK_GLOBAL gk_t* dx, gk_i64 to, int xh, int xw, int yh, int yw, gk_f divisor,
                           int accumulate, const int side)
{
    gk_windows w[2];
    GK_UNROLL for (int a = 0; a < side - 1; a++) w[a] = gk_windows_at(dy, 0, s.plane, s.pair + a, s.w / 2, yh, yw, side);
    gk_vec upper = gk_add_means(gk_zero_run(), w[0], divisor, side), lower = upper;
    if (side == 3) lower = gk_add_means(lower, w[side - 2], divisor, side);
    gk_put_run(dx, to, upper, accumulate);
    if (2 * s.pair + 1 < xh) gk_put_run(dx, to + xw, lower, accumulate);
}

/* dx[cell] (+)= sum of dy / divisor over the windows that contain the cell. */
GK_KERNEL(avg_pool_halve_bwd)(GK_IN(gk_t, dy), GK_OUT(gk_t, dx), gk_i64 n, GK_DIMS(size), GK_DIMS(by), int side, gk_f divisor, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_OUT(gk_t, dx);
    GK_SPOT(xh, 2);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_spot s = gk_spot_of(i, runs, pairs, by.v[0], by.v[1]);
        gk_i64 to = (s.plane * xh + 2 * s.pair) * xw + s.w;
        if (side == 2) gk_averages_bwd(s, dy, dx, to, xh, xw, yh, yw, divisor, accumulate, 2);
        else gk_averages_bwd(s, dy, dx, to, xh, xw, yh, yw, divisor, accumulate, 3);
    }
}
