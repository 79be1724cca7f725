/* Sampling of images and volumes at positions. GK_OP: gk_sample_nearest, gk_sample_linear, gk_sample_cubic (images only).
 *
 *   y[s, c, o] = sum over the taps of grid[s, o] of weight * x[s, c, tap]
 * A grid value g of an axis of n cells is at c = g n/2 + (n-1)/2, with `align` at g (n-1)/2 + (n-1)/2. size: D, H, W (D = 1 for images, axes = 2);
 * the grid's last axis is x, y(, z). padding: 0 zeros, 1 border, 2 reflection. A position that is NaN gives NaN.
 * Launch: grid-stride over positions, unless stated. Arithmetic in gk_f. Deterministic: one writer per element. Reference: F.grid_sample.
 */
#include "common/prelude/window.h"

#define gk_sample_nearest_taps 1
#define gk_sample_linear_taps 2
#define gk_sample_cubic_taps 4
#define GK_SAMPLE_TAPS GK_CAT(GK_OP, _taps)
#if GK_SAMPLE_TAPS == 4
#define GK_DEEP 1
#else
#define GK_DEEP GK_SAMPLE_TAPS
#endif
#define GK_CELLS (GK_DEEP * GK_SAMPLE_TAPS * GK_SAMPLE_TAPS)

#define GK_ZEROS 0
#define GK_BORDER 1
#define GK_REFLECTION 2

/* Taps along an axis: cells (-1 for none), their weights, and the derivatives of the weights by the grid value. */
typedef struct { int cell[GK_SAMPLE_TAPS]; gk_f w[GK_SAMPLE_TAPS], dw[GK_SAMPLE_TAPS]; int bad; } gk_axis;

/* The position of an axis that c shows, and its derivative. */
typedef struct { gk_f c, slope; } gk_shown;

GK_FN gk_shown gk_pad(gk_f c, int n, int padding, int align)
{
    gk_shown r;
    gk_f top = (gk_f)(n - 1);
    r.c = c;
    r.slope = GK_R(1.0);
    if (padding == GK_REFLECTION) {
        gk_f low = align ? GK_R(0.0) : GK_R(-0.5), span = align ? top : (gk_f)n;
        if (span == GK_R(0.0)) {
            r.c = gk_isnan(c) ? c : GK_R(0.0);
            r.slope = GK_R(0.0);
        } else {
            gk_f t = gk_fabs(c - low), extra = gk_fmod(t, span), flips = gk_rint((t - extra) / span);
            int odd = flips - GK_R(2.0) * gk_floor(flips * GK_R(0.5)) != GK_R(0.0);
            r.slope = c < low ? GK_R(-1.0) : GK_R(1.0);
            if (odd) r.slope = -r.slope;
            r.c = (odd ? span - extra : extra) + low;
        }
    }
    if (padding != GK_ZEROS) {
        if (r.c <= GK_R(0.0)) {
            r.c = GK_R(0.0);
            r.slope = GK_R(0.0);
        } else if (r.c >= top) {
            r.c = top;
            r.slope = GK_R(0.0);
        }
    }
    return r;
}

#if GK_SAMPLE_TAPS == 4
/* Cubic convolution with a = -0.75 and its derivative. */
GK_FN gk_f gk_cubic(gk_f t)
{
    t = gk_fabs(t);
    if (t <= GK_R(1.0)) return (GK_R(1.25) * t - GK_R(2.25)) * t * t + GK_R(1.0);
    return ((GK_R(-0.75) * t + GK_R(3.75)) * t - GK_R(6.0)) * t + GK_R(3.0);
}
GK_FN gk_f gk_cubic_slope(gk_f t)
{
    gk_f a = gk_fabs(t), v = a <= GK_R(1.0) ? (GK_R(3.75) * a - GK_R(4.5)) * a : (GK_R(-2.25) * a + GK_R(7.5)) * a - GK_R(6.0);
    return t < GK_R(0.0) ? -v : v;
}
#endif

GK_FN gk_axis gk_taps_along(gk_f g, int n, int padding, int align)
{
    gk_axis r;
    gk_f scale = (gk_f)(align ? n - 1 : n) * GK_R(0.5), c = gk_fma(g, scale, (gk_f)(n - 1) * GK_R(0.5));
#if GK_SAMPLE_TAPS < 4
    /* Mirrors have no image of infinity. */
    r.bad = gk_isnan(c) || (padding == GK_REFLECTION && gk_isinf(c));
    gk_shown at = gk_pad(c, n, padding, align);
    c = at.c;
    scale = scale * at.slope;
    /* Beyond all cells nothing changes; integers must hold the position. */
    if (gk_isnan(c) || c < GK_R(-3.0)) c = GK_R(-3.0);
    if (c > (gk_f)n + GK_R(2.0)) c = (gk_f)n + GK_R(2.0);
#if GK_SAMPLE_TAPS == 1
    int cell = (int)gk_rint(c);
    r.cell[0] = cell >= 0 && cell < n ? cell : -1;
    r.w[0] = GK_R(1.0);
    r.dw[0] = GK_R(0.0);
#else
    gk_f base = gk_floor(c), t = c - base;
    int cell = (int)base;
    r.cell[0] = cell >= 0 && cell < n ? cell : -1;
    r.cell[1] = cell + 1 >= 0 && cell + 1 < n ? cell + 1 : -1;
    r.w[0] = GK_R(1.0) - t;
    r.w[1] = t;
    r.dw[0] = -scale;
    r.dw[1] = scale;
#endif
#else
    r.bad = gk_isnan(c);
    if (padding != GK_REFLECTION) {
        if (r.bad || c < GK_R(-3.0)) c = GK_R(-3.0);
        if (c > (gk_f)n + GK_R(2.0)) c = (gk_f)n + GK_R(2.0);
    } else if (r.bad || gk_isinf(c)) {
        r.bad = 1;
        c = GK_R(0.0);
    }
    gk_f base = gk_floor(c), t = c - base;
    GK_UNROLL for (int k = 0; k < 4; k++) {
        gk_f tap = gk_pad(base + (gk_f)(k - 1), n, padding, align).c;
        r.cell[k] = tap >= GK_R(0.0) && tap <= (gk_f)(n - 1) ? (int)tap : -1;
        r.w[k] = gk_cubic(t - (gk_f)(k - 1));
        r.dw[k] = gk_cubic_slope(t - (gk_f)(k - 1)) * scale;
    }
#endif
    return r;
}

/* The three axes of a position; the depth of an image is one cell. */
typedef struct { gk_axis x, y, z; int bad; } gk_position;

GK_FN gk_position gk_position_of(GK_GLOBAL const gk_t* grid, gk_i64 p, int axes, const gk_dims* size, int padding, int align)
{
    gk_position s;
    s.x = gk_taps_along(gk_load(grid, p * axes), (int)size->v[2], padding, align);
    s.y = gk_taps_along(gk_load(grid, p * axes + 1), (int)size->v[1], padding, align);
    if (axes == 3) {
        s.z = gk_taps_along(gk_load(grid, p * axes + 2), (int)size->v[0], padding, align);
    } else {
        GK_UNROLL for (int k = 0; k < GK_SAMPLE_TAPS; k++) {
            s.z.cell[k] = k == 0 ? 0 : -1;
            s.z.w[k] = k == 0 ? GK_R(1.0) : GK_R(0.0);
            s.z.dw[k] = GK_R(0.0);
        }
        s.z.bad = 0;
    }
    s.bad = s.x.bad || s.y.bad || s.z.bad;
    return s;
}

/* Place in a plane of the tap (a, b, c), -1 for one outside. */
GK_FN int gk_cell_of(const gk_position* s, int a, int b, int c, const gk_dims* size)
{
    if (s->z.cell[a] < 0 || s->y.cell[b] < 0 || s->x.cell[c] < 0) return -1;
    return (s->z.cell[a] * (int)size->v[1] + s->y.cell[b]) * (int)size->v[2] + s->x.cell[c];
}

/* Runs `step` for each tap number t of the position s at (a, b, c), whose place in a plane is `at`, -1 for none. */
#define GK_SAMPLE_EACH(step) \
    GK_UNROLL for (int a = 0; a < GK_DEEP; a++) { \
        GK_UNROLL for (int b = 0; b < GK_SAMPLE_TAPS; b++) { \
            GK_UNROLL for (int c = 0; c < GK_SAMPLE_TAPS; c++) { \
                int t = (a * GK_SAMPLE_TAPS + b) * GK_SAMPLE_TAPS + c; \
                int at = gk_cell_of(&s, a, b, c, &size); \
                step \
            } \
        } \
    }

/* Cells that are read before the first sum is made, of as many channels as that is for `taps` cells of a position. */
#define GK_SAMPLE_LOADS 16
#define GK_SAMPLE_AHEAD(taps) ((taps) < 4 ? 4 : GK_SAMPLE_LOADS / (taps))
/* The cells of a position in channels from `x` on, `cells` apart, as they lie in memory; 0 for places outside and from channel `have` on. */
typedef struct { gk_b v[GK_SAMPLE_LOADS]; } gk_sampled;
GK_FN gk_sampled gk_sample_read(GK_GLOBAL const gk_t* x, gk_i64 cells, const int* place, gk_i64 have, const int taps)
{
    gk_sampled r;
    GK_UNROLL for (int k = 0; k < GK_SAMPLE_AHEAD(taps); k++) {
        GK_GLOBAL const gk_b* from = (GK_GLOBAL const gk_b*)x + k * cells;
        GK_UNROLL for (int t = 0; t < taps; t++) {
            r.v[k * taps + t] = 0;
            if (k < have && place[t] >= 0) r.v[k * taps + t] = from[place[t]];
        }
    }
    return r;
}

/* The sums of `count` channels, which lie `cells` apart in x and `outputs` in y. taps: GK_CELLS, or fewer for images. */
GK_FN void gk_sample_put(GK_GLOBAL const gk_t* x, GK_GLOBAL gk_t* y, gk_i64 cells, gk_i64 outputs, gk_i64 count, const int* place, const gk_f* w, int bad,
                         const int taps)
{
    for (gk_i64 ch = 0; ch < count; ch += GK_SAMPLE_AHEAD(taps)) {
        gk_sampled r = gk_sample_read(x + ch * cells, cells, place, count - ch, taps);
        GK_UNROLL for (int k = 0; k < GK_SAMPLE_AHEAD(taps); k++) {
            gk_f sum = bad ? GK_NAN : GK_R(0.0);
            GK_UNROLL for (int t = 0; t < taps; t++) sum += w[t] * gk_value(r.v[k * taps + t]);
            if (ch + k < count) gk_store(y, (ch + k) * outputs, sum);
        }
    }
}
/* Cells of an image. */
#define GK_SAMPLE_FLAT (GK_SAMPLE_TAPS * GK_SAMPLE_TAPS)

// Units: FLOATS64 x SAMPLE_MODES
/* Items: positions of all samples, once per group of `channels` of the `all` channels. */
GK_KERNEL(grid_sample)(GK_IN(gk_t, x), GK_IN(gk_t, grid), GK_OUT(gk_t, y), gk_i64 n, gk_i64 samples, gk_i64 outputs, gk_i64 all, gk_i64 channels,
                       int axes, GK_DIMS(size), int padding, int align)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, grid); GK_BIND_OUT(gk_t, y);
    gk_i64 cells = size.v[0] * size.v[1] * size.v[2];
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 group = gk_divide(i, samples * outputs), p = i - group * (samples * outputs), sample = gk_divide(p, outputs), o = p - sample * outputs;
        gk_position s = gk_position_of(grid, p, axes, &size, padding, align);
        int place[GK_CELLS];
        gk_f w[GK_CELLS];
        GK_SAMPLE_EACH({ place[t] = at; w[t] = s.z.w[a] * s.y.w[b] * s.x.w[c]; })
        gk_i64 first = group * channels, count = first + channels < all ? channels : all - first, plane = sample * all + first;
        if (axes == 2) gk_sample_put(x + plane * cells, y + plane * outputs + o, cells, outputs, count, place, w, s.bad, GK_SAMPLE_FLAT);
        else gk_sample_put(x + plane * cells, y + plane * outputs + o, cells, outputs, count, place, w, s.bad, GK_CELLS);
    }
}

/* sum[t] += the sum over all channels of dy and the cell of tap t. */
GK_FN void gk_sample_add(gk_f* sum, GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_t* x, gk_i64 cells, gk_i64 outputs, gk_i64 count, const int* place,
                         const int taps)
{
    for (gk_i64 ch = 0; ch < count; ch += GK_SAMPLE_AHEAD(taps)) {
        gk_b g[4];
        gk_sampled r = gk_sample_read(x + ch * cells, cells, place, count - ch, taps);
        GK_UNROLL for (int k = 0; k < GK_SAMPLE_AHEAD(taps); k++) {
            g[k] = 0;
            if (ch + k < count) g[k] = ((GK_GLOBAL const gk_b*)dy)[(ch + k) * outputs];
        }
        GK_UNROLL for (int k = 0; k < GK_SAMPLE_AHEAD(taps); k++)
            GK_UNROLL for (int t = 0; t < taps; t++) sum[t] += gk_value(g[k]) * gk_value(r.v[k * taps + t]);
    }
}

/* dgrid[s, o] (+)= sum over channels and taps of dy * x * the derivative of the weight. Items: positions of all samples. */
GK_KERNEL(grid_sample_dgrid)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, grid), GK_OUT(gk_t, dgrid), gk_i64 n, gk_i64 outputs, gk_i64 all, int axes,
                             GK_DIMS(size), int padding, int align, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, grid); GK_BIND_OUT(gk_t, dgrid);
    gk_i64 cells = size.v[0] * size.v[1] * size.v[2];
    for (gk_i64 p = gk_gid(); p < n; p += gk_gsize()) {
        gk_i64 sample = gk_divide(p, outputs), o = p - sample * outputs;
        gk_f gx = GK_R(0.0), gy = GK_R(0.0), gz = GK_R(0.0);
#if GK_SAMPLE_TAPS > 1
        gk_position s = gk_position_of(grid, p, axes, &size, padding, align);
        int place[GK_CELLS];
        gk_f sum[GK_CELLS];
        GK_SAMPLE_EACH({ place[t] = at; sum[t] = GK_R(0.0); })
        GK_GLOBAL const gk_t* from = dy + sample * all * outputs + o;
        if (axes == 2) gk_sample_add(sum, from, x + sample * all * cells, cells, outputs, all, place, GK_SAMPLE_FLAT);
        else gk_sample_add(sum, from, x + sample * all * cells, cells, outputs, all, place, GK_CELLS);
        GK_SAMPLE_EACH({
            if (at >= 0) {
                gx += sum[t] * s.z.w[a] * s.y.w[b] * s.x.dw[c];
                gy += sum[t] * s.z.w[a] * s.y.dw[b] * s.x.w[c];
                gz += sum[t] * s.z.dw[a] * s.y.w[b] * s.x.w[c];
            }
        })
        if (s.bad) {
            gx = GK_NAN;
            gy = GK_NAN;
            gz = GK_NAN;
        }
#endif
        gk_store(dgrid, p * axes, accumulate ? gk_load(dgrid, p * axes) + gx : gx);
        gk_store(dgrid, p * axes + 1, accumulate ? gk_load(dgrid, p * axes + 1) + gy : gy);
        if (axes == 3) gk_store(dgrid, p * axes + 2, accumulate ? gk_load(dgrid, p * axes + 2) + gz : gz);
    }
}

/* The entries of dx: for tap t of position p the key of its cell among those of all samples (`none` for a tap outside) and its weight, at
 * p * per + t. per: GK_CELLS, for images GK_SAMPLE_TAPS * GK_SAMPLE_TAPS. Items: positions of all samples. Sorted keys go to sample_gather. */
GK_KERNEL(grid_sample_keys)(GK_IN(gk_t, grid), GK_OUT(int, keys), GK_OUT(gk_f, weights), gk_i64 n, gk_i64 outputs, int wide_keys, gk_i64 none,
                            int per, int axes, GK_DIMS(size), int padding, int align)
{
    GK_BIND_IN(gk_t, grid); GK_BIND_OUT(int, keys); GK_BIND_OUT(gk_f, weights);
    gk_i64 cells = size.v[0] * size.v[1] * size.v[2];
    for (gk_i64 p = gk_gid(); p < n; p += gk_gsize()) {
        gk_i64 sample = gk_divide(p, outputs);
        gk_position s = gk_position_of(grid, p, axes, &size, padding, align);
        GK_SAMPLE_EACH({
            if (t < per) {
                gk_store_index(keys, p * per + t, wide_keys, at < 0 || s.bad ? none : sample * cells + at);
                weights[p * per + t] = s.z.w[a] * s.y.w[b] * s.x.w[c];
            }
        })
    }
}
