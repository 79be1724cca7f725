/* Pooling of planes by windows of 3 x 3 or 5 x 5 cells (`side`) at every cell, padded so that planes keep their size: neighbours share cells,
 * and what is found along the rows of windows serves GK_STRIP rows of them.
 *
 * size: rows and row length, a multiple of GK_W; bases are aligned to 16 bytes. by: multipliers that divide by the items of a row and the strips of
 * a plane. Less than 2^31 items.
 * Launch: grid-stride over items: GK_W windows along W in GK_STRIP rows. Results as in pool/pool.c: windows meet cells row by row. Sums in gk_f.
 * Deterministic: one writer per cell.
 */
#include "common/prelude/window.h"

#if GK_W == 8
#define GK_STRIP 2
#else
#define GK_STRIP 4
#endif
/* Cells on either side of an item that windows of 5 x 5 reach. */
#define GK_POOL_REACH 2

/* Plane, and first row and column. */
typedef struct { gk_i64 plane; int h, w; } gk_spot;
/* The cells of a row that windows of an item reach. */
typedef struct { gk_f v[GK_W + 2 * GK_POOL_REACH]; } gk_line;

GK_FN gk_spot gk_spot_of(gk_i64 i, int rows, int width, const gk_dims* by)
{
    int runs = width / GK_W, strips = (rows + GK_STRIP - 1) / GK_STRIP;
    gk_u32 row = gk_quotient((gk_u32)i, by->v[0]), plane = gk_quotient(row, by->v[1]);
    gk_spot s;
    s.plane = (gk_i64)plane;
    s.h = (int)(row - plane * (gk_u32)strips) * GK_STRIP;
    s.w = (int)((gk_u32)i - row * (gk_u32)runs) * GK_W;
    return s;
}

/* Two cells from at, which is even. */
GK_FN void gk_two(GK_GLOBAL const gk_t* x, int at, gk_f v[2])
{
#if GK_H == 2
    gk_half q = gk_load_half(x, at);
    v[0] = q.v[0];
    v[1] = q.v[1];
#else
    v[0] = gk_load(x, at);
    v[1] = gk_load(x, at + 1);
#endif
}

/* Row h of a plane, `outside` where there is none. All loads are unconditional, so that they are in flight together. */
GK_FN gk_line gk_line_at(GK_GLOBAL const gk_t* x, int h, int w, int rows, int width, gk_f outside, const int side)
{
    int live = h >= 0 && h < rows, first = w == 0, last = w + GK_W >= width, at = (live ? h : 0) * width + w;
    gk_vec q = gk_loadv(x, at);
    gk_line r;
    gk_f before[2], behind[2];
    if (side == 5) {
        gk_two(x, first ? at : at - 2, before);
        gk_two(x, last ? at : at + GK_W, behind);
    } else {
        before[1] = gk_load(x, first ? at : at - 1);
        behind[0] = gk_load(x, last ? at : at + GK_W);
        before[0] = behind[1] = outside;
    }
    GK_UNROLL for (int k = 0; k < GK_W; k++) r.v[GK_POOL_REACH + k] = live ? q.v[k] : outside;
    GK_UNROLL for (int k = 0; k < 2; k++) {
        r.v[k] = live && !first ? before[k] : outside;
        r.v[GK_POOL_REACH + GK_W + k] = live && !last ? behind[k] : outside;
    }
    return r;
}

/* ---- maxima --------------------------------------------------------------------------------------------------------------------------- */

/* The largest value so far and its position. */
typedef struct { gk_f v[GK_W]; int at[GK_W]; } gk_best;

/* Those of a row of windows, of which `from` is the position of the item's first cell. */
GK_FN gk_best gk_row_maxima(const gk_line* l, int from, const int side)
{
    gk_best r;
    GK_UNROLL for (int o = 0; o < GK_W; o++) {
        r.v[o] = -GK_INF;
        r.at[o] = from;
        GK_UNROLL for (int b = 0; b < side; b++) {
            gk_f v = l->v[GK_POOL_REACH - side / 2 + o + b];
            if (v > r.v[o] || gk_isnan(v)) {
                r.v[o] = v;
                r.at[o] = from + o + b - side / 2;
            }
        }
    }
    return r;
}

/* GK_W indices at a place divisible by GK_W. */
GK_FN void gk_store_places(GK_GLOBAL int* p, gk_i64 i, const int v[GK_W])
{
#if GK_W == 2
    *(GK_GLOBAL gk_u64*)(p + i) = (gk_u64)(gk_u32)v[1] << 32 | (gk_u32)v[0];
#else
    GK_UNROLL for (int k = 0; k < GK_W; k += 4)
        gk_store16((GK_GLOBAL void*)(p + i + k), gk_make16((gk_u32)v[k], (gk_u32)v[k + 1], (gk_u32)v[k + 2], (gk_u32)v[k + 3]));
#endif
}

GK_FN void gk_slide_maxima(gk_spot s, GK_GLOBAL const gk_t* x, GK_GLOBAL gk_t* y, GK_GLOBAL int* index, int rows, int width, const int side)
{
    gk_best best[GK_STRIP];
    GK_UNROLL for (int r = 0; r < GK_STRIP; r++) {
        int h = s.h + r - side / 2;
        GK_UNROLL for (int o = 0; o < GK_W; o++) {
            int w = s.w + o - side / 2;
            best[r].v[o] = -GK_INF;
            best[r].at[o] = (h > 0 ? h : 0) * width + (w > 0 ? w : 0);
        }
    }
    GK_UNROLL for (int a = 0; a < GK_STRIP + side - 1; a++) {
        int h = s.h + a - side / 2;
        gk_line l = gk_line_at(x, h, s.w, rows, width, -GK_INF, side);
        gk_best top = gk_row_maxima(&l, h * width + s.w, side);
        GK_UNROLL for (int r = 0; r < GK_STRIP; r++) {
            if (a < r || a >= r + side) continue;
            GK_UNROLL for (int o = 0; o < GK_W; o++) {
                if (top.v[o] > best[r].v[o] || gk_isnan(top.v[o])) {
                    best[r].v[o] = top.v[o];
                    best[r].at[o] = top.at[o];
                }
            }
        }
    }
    GK_UNROLL for (int r = 0; r < GK_STRIP; r++) {
        gk_i64 to = (s.plane * rows + s.h + r) * width + s.w;
        gk_vec v;
        if (s.h + r >= rows) continue;
        GK_UNROLL for (int o = 0; o < GK_W; o++) v.v[o] = best[r].v[o];
        gk_storev(y, to, v);
        if (index) gk_store_places(index, to, best[r].at);
    }
}

// Units: FLOATS64
/* `index` may be null. */
GK_KERNEL(max_pool_slide)(GK_IN(gk_t, x), GK_OUT(gk_t, y), GK_OUT(int, index), gk_i64 n, GK_DIMS(size), GK_DIMS(by), int side)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, index);
    int rows = (int)size.v[0], width = (int)size.v[1];
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_spot s = gk_spot_of(i, rows, width, &by);
        GK_GLOBAL const gk_t* from = x + s.plane * rows * width;
        if (side == 3) gk_slide_maxima(s, from, y, index, rows, width, 3);
        else gk_slide_maxima(s, from, y, index, rows, width, 5);
    }
}

/* ---- averages ------------------------------------------------------------------------------------------------------------------------- */

/* Cells of the window at i of an axis of n that are inside. */
GK_FN int gk_inside(int i, int n, const int side)
{
    int first = i - side / 2, end = i + side / 2 + 1;
    return (end < n ? end : n) - (first > 0 ? first : 0);
}

GK_FN void gk_slide_averages(gk_spot s, GK_GLOBAL const gk_t* x, GK_GLOBAL gk_t* y, int rows, int width, gk_f divisor, const int side)
{
    gk_vec sum[GK_STRIP];
    GK_UNROLL for (int r = 0; r < GK_STRIP; r++) {
        GK_UNROLL for (int o = 0; o < GK_W; o++) sum[r].v[o] = GK_R(0.0);
    }
    GK_UNROLL for (int a = 0; a < GK_STRIP + side - 1; a++) {
        gk_line l = gk_line_at(x, s.h + a - side / 2, s.w, rows, width, GK_R(0.0), side);
        GK_UNROLL for (int o = 0; o < GK_W; o++) {
            gk_f row = GK_R(0.0);
            GK_UNROLL for (int b = 0; b < side; b++) row += l.v[GK_POOL_REACH - side / 2 + o + b];
            GK_UNROLL for (int r = 0; r < GK_STRIP; r++)
                if (a >= r && a < r + side) sum[r].v[o] += row;
        }
    }
    GK_UNROLL for (int r = 0; r < GK_STRIP; r++) {
        int h = s.h + r;
        if (h >= rows) continue;
        GK_UNROLL for (int o = 0; o < GK_W; o++) {
            gk_f by = divisor;
            if (by == GK_R(0.0)) by = (gk_f)(gk_inside(h, rows, side) * gk_inside(s.w + o, width, side));
            sum[r].v[o] = sum[r].v[o] / by;
        }
        gk_storev(y, (s.plane * rows + h) * width + s.w, sum[r]);
    }
}

/* `divisor` 0: the number of cells inside. */
GK_KERNEL(avg_pool_slide)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, GK_DIMS(size), GK_DIMS(by), int side, gk_f divisor)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    int rows = (int)size.v[0], width = (int)size.v[1];
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_spot s = gk_spot_of(i, rows, width, &by);
        GK_GLOBAL const gk_t* from = x + s.plane * rows * width;
        if (side == 3) gk_slide_averages(s, from, y, rows, width, divisor, 3);
        else gk_slide_averages(s, from, y, rows, width, divisor, 5);
    }
}
