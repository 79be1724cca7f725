/* Linear interpolation of images whose sides double, without aligned corners: along both axes y[2i] = x[i - 1] / 4 + 3 x[i] / 4 and
 * y[2i + 1] = 3 x[i] / 4 + x[i + 1] / 4. The first output shows the first cell, with weight 0 for the second; the last shows the last cell.
 *
 * size: height and width of x, at least 2, the width a multiple of GK_H; by: multipliers that divide by the items of a row and by those of a plane's
 * height. Bases are aligned to 16 bytes; less than 2^31 items.
 * Launch: grid-stride over items: GK_H cells of x along W in GK_PAIR rows. Arithmetic in gk_f. Deterministic: one writer per element. Reference:
 * F.interpolate.
 */
#include "common/prelude/window.h"

/* Rows of x that an item has. */
#define GK_PAIR 2

/* Plane, and first row and column of x. */
typedef struct { gk_i64 plane; int h, w; } gk_spot;

GK_FN gk_spot gk_spot_of(gk_i64 i, int height, int width, const gk_dims* by)
{
    int runs = width / GK_H, pairs = (height + GK_PAIR - 1) / GK_PAIR;
    gk_u32 row = gk_quotient((gk_u32)i, by->v[0]), plane = gk_quotient(row, by->v[1]);
    gk_spot s;
    s.plane = (gk_i64)plane;
    s.h = (int)(row - plane * (gk_u32)pairs) * GK_PAIR;
    s.w = (int)((gk_u32)i - row * (gk_u32)runs) * GK_H;
    return s;
}

/* The outputs of a row of x along W: from the item's cells and one on either side. */
GK_FN gk_vec gk_stretched(GK_GLOBAL const gk_t* x, int w, int width)
{
    gk_half q = gk_load_half(x, w);
    gk_f v[GK_H + 2];
    gk_vec r;
    v[0] = gk_load(x, w > 0 ? w - 1 : 1);
    v[GK_H + 1] = gk_load(x, w + GK_H < width ? w + GK_H : width - 1);
    GK_UNROLL for (int k = 0; k < GK_H; k++) v[k + 1] = q.v[k];
    GK_UNROLL for (int k = 0; k < GK_H; k++) {
        gk_f near = k == 0 && w == 0 ? GK_R(0.0) : GK_R(0.25);
        r.v[2 * k] = near * v[k] + (GK_R(1.0) - near) * v[k + 1];
        r.v[2 * k + 1] = GK_R(0.75) * v[k + 1] + GK_R(0.25) * v[k + 2];
    }
    return r;
}

// Units: FLOATS64
GK_KERNEL(linear_twice)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, GK_DIMS(size), GK_DIMS(by))
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    int height = (int)size.v[0], width = (int)size.v[1];
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_spot s = gk_spot_of(i, height, width, &by);
        GK_GLOBAL const gk_t* from = x + s.plane * height * width;
        gk_vec l[GK_PAIR + 2];
        GK_UNROLL for (int a = 0; a < GK_PAIR + 2; a++) {
            int h = s.h + a - 1;
            h = h < 0 ? 1 : h < height ? h : height - 1;
            l[a] = gk_stretched(from + (gk_i64)h * width, s.w, width);
        }
        GK_UNROLL for (int a = 0; a < GK_PAIR; a++) {
            gk_f near = a == 0 && s.h == 0 ? GK_R(0.0) : GK_R(0.25);
            gk_vec upper, lower;
            GK_UNROLL for (int k = 0; k < GK_W; k++) {
                upper.v[k] = near * l[a].v[k] + (GK_R(1.0) - near) * l[a + 1].v[k];
                lower.v[k] = GK_R(0.75) * l[a + 1].v[k] + GK_R(0.25) * l[a + 2].v[k];
            }
            gk_i64 to = (s.plane * height + s.h + a) * 4 * width + 2 * s.w;
            if (s.h + a < height) {
                gk_storev(y, to, upper);
                gk_storev(y, to + 2 * width, lower);
            }
        }
    }
}

/* What a row of dy gives to the item's cells: of outputs 2 w - 1 .. 2 w + 2 GK_H; `live`: the row exists. */
GK_FN gk_half gk_gathered(GK_GLOBAL const gk_t* dy, int w, int width, int live)
{
    gk_vec q = gk_loadv(dy, 2 * w);
    gk_f g[GK_W + 2];
    gk_half r;
    int last = w + GK_H >= width;
    g[0] = gk_load(dy, w > 0 ? 2 * w - 1 : 0);
    g[GK_W + 1] = gk_load(dy, last ? 2 * w : 2 * w + GK_W);
    if (w == 0) g[0] = GK_R(0.0);
    if (last) g[GK_W + 1] = GK_R(0.0);
    GK_UNROLL for (int k = 0; k < GK_W; k++) g[k + 1] = q.v[k];
    GK_UNROLL for (int k = 0; k < GK_H; k++) {
        gk_f first = k == 0 && w == 0 ? GK_R(1.0) : GK_R(0.75), end = k == GK_H - 1 && last ? GK_R(1.0) : GK_R(0.75);
        gk_f sum = GK_R(0.25) * g[2 * k] + first * g[2 * k + 1] + end * g[2 * k + 2] + GK_R(0.25) * g[2 * k + 3];
        r.v[k] = live ? sum : GK_R(0.0);
    }
    return r;
}

/* dx[i] (+)= the sum of dy over the outputs that show cell i, times its weight there. */
GK_KERNEL(linear_twice_bwd)(GK_IN(gk_t, dy), GK_OUT(gk_t, dx), gk_i64 n, GK_DIMS(size), GK_DIMS(by), int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_OUT(gk_t, dx);
    int height = (int)size.v[0], width = (int)size.v[1];
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_spot s = gk_spot_of(i, height, width, &by);
        GK_GLOBAL const gk_t* from = dy + s.plane * height * width * 4;
        gk_half l[2 * GK_PAIR + 2];
        GK_UNROLL for (int a = 0; a < 2 * GK_PAIR + 2; a++) {
            int h = 2 * s.h + a - 1, live = h >= 0 && h < 2 * height;
            l[a] = gk_gathered(from + (live ? h : 0) * 2 * (gk_i64)width, s.w, width, live);
        }
        GK_UNROLL for (int a = 0; a < GK_PAIR; a++) {
            int h = s.h + a;
            gk_f first = h == 0 ? GK_R(1.0) : GK_R(0.75), end = h == height - 1 ? GK_R(1.0) : GK_R(0.75);
            gk_i64 to = (s.plane * height + h) * width + s.w;
            gk_half sum;
            GK_UNROLL for (int k = 0; k < GK_H; k++)
                sum.v[k] = GK_R(0.25) * l[2 * a].v[k] + first * l[2 * a + 1].v[k] + end * l[2 * a + 2].v[k] + GK_R(0.25) * l[2 * a + 3].v[k];
            if (h >= height) continue;
            if (accumulate) {
                gk_half old = gk_load_half(dx, to);
                GK_UNROLL for (int k = 0; k < GK_H; k++) sum.v[k] += old.v[k];
            }
            gk_store_half(dx, to, sum);
        }
    }
}
