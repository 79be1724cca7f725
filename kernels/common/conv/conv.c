/* Convolution as a gathered matrix product ("implicit GEMM"), forward and adjoint.
 *
 *   y[n, g, m, q] = act(scale * sum over k of wt[g, k, m] * x[n, g, start(q) + plan[k]] + bias + residual[n, g, m, q])
 *
 * Forward: k counts input channels times taps, windows start at q * stride - pad, plan[k] is the tap's displacement. Adjoint (input gradient and
 * transposed convolution): k counts the output channels and the taps that reach a place; with a stride these differ between the stride^axes phases of
 * a place, q = phase + stride * q'. For each phase the taps t with phase + pad = t * dilation (mod stride) make a forward convolution of stride 1, so
 * that no product with a zero between strides is computed. The plan lists the phases' ranges of k first, then the entries of k, which are sorted by
 * phase; see conv/window_table.h.
 * conv_plan makes plan and weights (in the arithmetic type, rows padded with 0 to `mpad`); conv_tile* compute: one block per tile, all on grid axis
 * 0: row tiles fastest, then column tiles (columns are places of all images), groups, phases. conv_split adds the parts of k in order where k was
 * split. Sums in gk_f in the order of k. Deterministic. Reference: F.conv1d ... F.conv3d, F.conv_transpose1d ... 3d, torch.nn.grad.conv2d_input.
 */
#include "window_table.h"

/* Tiles fill the registers; one block is enough. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 1

/* Number of the taps before `t` of an axis in its phase, the phase's number of taps, and that of all lower phases. */
typedef struct { int phase, index, count, before; } gk_tap;

GK_FN int gk_phase_of(int t, int dilation, int pad, int stride)
{
    int r = (int)(((gk_i64)t * dilation - pad) % stride);
    return r < 0 ? r + stride : r;
}

GK_FN gk_tap gk_tap_of(int t, int taps, int dilation, int pad, int stride)
{
    gk_tap a;
    a.phase = 0; a.index = t; a.count = taps; a.before = 0;
    if (stride == 1) return a;
    a.phase = gk_phase_of(t, dilation, pad, stride);
    a.index = 0; a.count = 0;
    for (int u = 0; u < taps; u++) {
        int r = gk_phase_of(u, dilation, pad, stride);
        a.index += r == a.phase && u < t;
        a.count += r == a.phase;
        a.before += r < a.phase;
    }
    return a;
}

/* Taps of a phase of an axis, and of all lower phases. */
GK_FN gk_tap gk_taps_in(int phase, int taps, int dilation, int pad, int stride)
{
    gk_tap a;
    a.phase = phase; a.index = 0; a.count = 0; a.before = 0;
    for (int u = 0; u < taps; u++) {
        int r = gk_phase_of(u, dilation, pad, stride);
        a.count += r == phase;
        a.before += r < phase;
    }
    return a;
}

// Units: FLOATS64
/* plan and wt [groups, K, mpad] of w: forward [groups, m, r, taps], adjoint [groups, r, m, taps]; r channels are summed over. wt may be null.
 * win = {sizes, strides}, geo = {paddings, dilations}, img = {depth, height, width} of the map that is read.
 * Launch: grid-stride over max(phases, groups * r * taps * mpad). */
GK_KERNEL(conv_plan)(GK_IN(gk_t, w), GK_OUT(int, plan), GK_OUT(gk_f, wt), int back, int m, int mpad, int r, int groups, GK_DIMS(win), GK_DIMS(geo),
                     GK_DIMS(img))
{
    GK_BIND_IN(gk_t, w); GK_BIND_OUT(int, plan); GK_BIND_OUT(gk_f, wt);
    int kd = (int)win.v[0], kh = (int)win.v[1], kw = (int)win.v[2], taps = kd * kh * kw;
    int sd = back ? (int)win.v[3] : 1, sh = back ? (int)win.v[4] : 1, sw = back ? (int)win.v[5] : 1;
    int pd = (int)geo.v[0], ph = (int)geo.v[1], pw = (int)geo.v[2], dd = (int)geo.v[3], dh = (int)geo.v[4], dw = (int)geo.v[5];
    int phases = sd * sh * sw, items = groups * r * taps * mpad;
    gk_i64 plane = img.v[0] * img.v[1] * img.v[2];
    for (gk_i64 at = gk_gid(); at < (phases > items ? phases : items); at += gk_gsize()) {
        int i = (int)at;
        if (i < phases) {
            gk_tap a = gk_taps_in(i / sw / sh, kd, dd, pd, sd), b = gk_taps_in(i / sw % sh, kh, dh, ph, sh), c = gk_taps_in(i % sw, kw, dw, pw, sw);
            int first = (a.before * kh * kw + a.count * (b.before * kw + b.count * c.before)) * r;
            plan[i * 4] = first;
            plan[i * 4 + 1] = first + a.count * b.count * c.count * r;
            plan[i * 4 + 2] = 0;
            plan[i * 4 + 3] = 0;
        }
        if (i >= items) continue;
        int row = i % mpad, t = i / mpad % taps, ch = i / mpad / taps % r, g = i / mpad / taps / r;
        int td = t / kw / kh, th = t / kw % kh, tw = t % kw, k = ch * taps + t, od = td * dd, oh = th * dh, ow = tw * dw;
        if (back) {
            gk_tap a = gk_tap_of(td, kd, dd, pd, sd), b = gk_tap_of(th, kh, dh, ph, sh), c = gk_tap_of(tw, kw, dw, pw, sw);
            int count = a.count * b.count * c.count;
            k = (a.before * kh * kw + a.count * (b.before * kw + b.count * c.before)) * r + ch * count + (a.index * b.count + b.index) * c.count
                + c.index;
            od = (a.phase + pd - od) / sd;
            oh = (b.phase + ph - oh) / sh;
            ow = (c.phase + pw - ow) / sw;
        }
        if (row == 0 && g == 0) {
            GK_GLOBAL int* e = plan + (phases + (gk_i64)k) * 4;
            e[0] = (int)(ch * plane + (od * img.v[1] + oh) * img.v[2] + ow);
            e[1] = od; e[2] = oh; e[3] = ow;
        }
        if (wt) {
            gk_i64 from = back ? ((gk_i64)g * r + ch) * m + row : ((gk_i64)g * m + row) * r + ch;
            gk_f v = GK_R(0.0);
            if (row < m) v = gk_load(w, from * taps + t);
            wt[((gk_i64)g * r * taps + k) * mpad + row] = v;
        }
    }
}

/* ---- places and epilogue -------------------------------------------------------------------------------------------------------- */

/* The places of one phase: counts along the axes, and in all. */
typedef struct { int rd, rh, rw, d, h, w, plane, count; } gk_places;

GK_FN int gk_reach(int size, int first, int step) { return size > first ? (size - first + step - 1) / step : 0; }

/* out = {depth, height, width, rows, groups, images, parts of k, 16-byte stores}, phase = {strides, phases, K, mpad, row tiles, column tiles}. */
GK_FN gk_places gk_places_of(int at, gk_dims out, gk_dims phase)
{
    gk_places p;
    int sd = (int)phase.v[0], sh = (int)phase.v[1], sw = (int)phase.v[2];
    p.rd = at / sw / sh; p.rh = at / sw % sh; p.rw = at % sw;
    p.d = gk_reach((int)out.v[0], p.rd, sd); p.h = gk_reach((int)out.v[1], p.rh, sh); p.w = gk_reach((int)out.v[2], p.rw, sw);
    p.plane = p.d * p.h * p.w;
    p.count = p.plane * (int)out.v[5];
    return p;
}

/* Stores rows m and columns j ... j + 3 of a phase. */
GK_FN void gk_conv_finish(gk_four v, gk_places p, int g, int m, int j, gk_dims out, gk_dims phase, GK_GLOBAL const gk_t* scale,
                          GK_GLOBAL const gk_t* bias, GK_GLOBAL const gk_t* residual, GK_GLOBAL gk_t* y, GK_GLOBAL gk_t* z, int accumulate, int act,
                          gk_f q)
{
    gk_i64 at[4], ch = g * out.v[3] + m, size = out.v[0] * out.v[1] * out.v[2];
    int have = p.count - j < 4 ? p.count - j : 4, wide = (int)out.v[7];
    if (m >= out.v[3] || have <= 0) return;
    GK_UNROLL for (int u = 0; u < 4; u++) {
        if (u >= have) continue;
        if (wide && u > 0) {
            at[u] = at[0] + u;
            continue;
        }
        int n = (j + u) / p.plane, i = (j + u) - n * p.plane;
        gk_i64 place = i;
        if (phase.v[3] > 1) {
            int h = i / p.w, w = i - h * p.w, d = h / p.h;
            h -= d * p.h;
            place = ((d * phase.v[0] + p.rd) * out.v[1] + h * phase.v[1] + p.rh) * out.v[2] + w * phase.v[2] + p.rw;
        }
        at[u] = (n * out.v[4] * out.v[3] + ch) * size + place;
    }
    gk_conv_store(v, at, have, wide, ch, scale, bias, residual, y, z, accumulate, act, q);
}

/* The window of column j of a phase, of group g; one far outside for j beyond the phase. */
GK_FN gk_column gk_column_of(gk_places p, int j, int g, gk_dims img, gk_dims step)
{
    gk_column c = gk_column_at(img, step, 0, g, 0, 0, 0);
    c.w = -GK_FAR;
    if (j < p.count) {
        int n = j / p.plane, i = j - n * p.plane, h = i / p.w, w = i - h * p.w, d = h / p.h;
        c = gk_column_at(img, step, n, g, d, h - d * p.h, w);
    }
    return c;
}

/* Columns of the largest phase, the first. */
GK_FN gk_i64 gk_most(gk_dims out, gk_dims phase) { return gk_places_of(0, out, phase).count; }

GK_FN void gk_conv_part(gk_four v, gk_places p, GK_GLOBAL gk_f* part, int of, int m, int j, gk_dims out, gk_dims phase)
{
    gk_i64 at = (of * out.v[3] + m) * gk_most(out, phase) + j;
    if (m >= out.v[3]) return;
    GK_UNROLL for (int u = 0; u < 4; u++)
        if (j + u < p.count) part[at + u] = v.v[u];
}

/* ---- tiles ----------------------------------------------------------------------------------------------------------------- */

#if GK_DTYPE != GK_F64
#define GK_TILE(x) gk_128_##x
#define GK_TILE_BM 128
#define GK_TILE_BN 128
#define GK_TILE_BK 8
#define GK_TILE_TM 8
#define GK_TILE_TN 8
#include "tile.h"

#define GK_TILE(x) gk_64w_##x
#define GK_TILE_BM 64
#define GK_TILE_BN 256
#define GK_TILE_BK 8
#define GK_TILE_TM 8
#define GK_TILE_TN 8
#include "tile.h"

#define GK_TILE(x) gk_32_##x
#define GK_TILE_BM 32
#define GK_TILE_BN 256
#define GK_TILE_BK 8
#define GK_TILE_TM 4
#define GK_TILE_TN 8
#include "tile.h"

#define GK_TILE(x) gk_16_##x
#define GK_TILE_BM 16
#define GK_TILE_BN 256
#define GK_TILE_BK 8
#define GK_TILE_TM 4
#define GK_TILE_TN 4
#include "tile.h"
#endif

#define GK_TILE(x) gk_64_##x
#define GK_TILE_BM 64
#define GK_TILE_BN 64
#define GK_TILE_BK 16
#define GK_TILE_TM 4
#define GK_TILE_TN 4
#include "tile.h"

#if GK_DTYPE != GK_F64
// Units: FLOATS
GK_KERNEL(conv_tile128)(GK_IN(gk_t, x), GK_IN(gk_f, wt), GK_IN(int, plan), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual),
                        GK_OUT(gk_t, y), GK_OUT(gk_t, z), GK_OUT(gk_f, part), GK_DIMS(img), GK_DIMS(out), GK_DIMS(step), GK_DIMS(phase),
                        int accumulate, int act, gk_f q_act)
{
    GK_LOCAL gk_slot tile[GK_SLOTS(2 * (128 + 128) * 8)];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_f, wt); GK_BIND_IN(int, plan); GK_BIND_IN(gk_t, scale); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, residual);
    GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, z); GK_BIND_OUT(gk_f, part);
    gk_128_compute(x, wt, plan, scale, bias, residual, y, z, part, &img, &out, &step, &phase, accumulate, act, q_act, tile, 4);
}

GK_KERNEL(conv_tile64w)(GK_IN(gk_t, x), GK_IN(gk_f, wt), GK_IN(int, plan), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual),
                        GK_OUT(gk_t, y), GK_OUT(gk_t, z), GK_OUT(gk_f, part), GK_DIMS(img), GK_DIMS(out), GK_DIMS(step), GK_DIMS(phase),
                        int accumulate, int act, gk_f q_act)
{
    GK_LOCAL gk_slot tile[GK_SLOTS(2 * (64 + 256) * 8)];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_f, wt); GK_BIND_IN(int, plan); GK_BIND_IN(gk_t, scale); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, residual);
    GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, z); GK_BIND_OUT(gk_f, part);
    gk_64w_compute(x, wt, plan, scale, bias, residual, y, z, part, &img, &out, &step, &phase, accumulate, act, q_act, tile, 4);
}

GK_KERNEL(conv_tile32)(GK_IN(gk_t, x), GK_IN(gk_f, wt), GK_IN(int, plan), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual),
                       GK_OUT(gk_t, y), GK_OUT(gk_t, z), GK_OUT(gk_f, part), GK_DIMS(img), GK_DIMS(out), GK_DIMS(step), GK_DIMS(phase),
                       int accumulate, int act, gk_f q_act)
{
    GK_LOCAL gk_slot tile[GK_SLOTS(2 * (32 + 256) * 8)];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_f, wt); GK_BIND_IN(int, plan); GK_BIND_IN(gk_t, scale); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, residual);
    GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, z); GK_BIND_OUT(gk_f, part);
    gk_32_compute(x, wt, plan, scale, bias, residual, y, z, part, &img, &out, &step, &phase, accumulate, act, q_act, tile, 4);
}

GK_KERNEL(conv_tile16)(GK_IN(gk_t, x), GK_IN(gk_f, wt), GK_IN(int, plan), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual),
                       GK_OUT(gk_t, y), GK_OUT(gk_t, z), GK_OUT(gk_f, part), GK_DIMS(img), GK_DIMS(out), GK_DIMS(step), GK_DIMS(phase),
                       int accumulate, int act, gk_f q_act)
{
    GK_LOCAL gk_slot tile[GK_SLOTS(2 * (16 + 256) * 8)];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_f, wt); GK_BIND_IN(int, plan); GK_BIND_IN(gk_t, scale); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, residual);
    GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, z); GK_BIND_OUT(gk_f, part);
    gk_16_compute(x, wt, plan, scale, bias, residual, y, z, part, &img, &out, &step, &phase, accumulate, act, q_act, tile, 4);
}
#endif

// Units: FLOATS64
GK_KERNEL(conv_tile64)(GK_IN(gk_t, x), GK_IN(gk_f, wt), GK_IN(int, plan), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual),
                       GK_OUT(gk_t, y), GK_OUT(gk_t, z), GK_OUT(gk_f, part), GK_DIMS(img), GK_DIMS(out), GK_DIMS(step), GK_DIMS(phase),
                       int accumulate, int act, gk_f q_act)
{
    GK_LOCAL gk_slot tile[GK_SLOTS(2 * (64 + 64) * 16)];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_f, wt); GK_BIND_IN(int, plan); GK_BIND_IN(gk_t, scale); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, residual);
    GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, z); GK_BIND_OUT(gk_f, part);
    gk_64_compute(x, wt, plan, scale, bias, residual, y, z, part, &img, &out, &step, &phase, accumulate, act, q_act, tile, 4);
}

/* Adds `parts` partial results in order and applies the epilogue. Launch: grid-stride over runs of four columns of every phase, group and row. */
GK_KERNEL(conv_split)(GK_IN(gk_f, part), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual), GK_OUT(gk_t, y), GK_OUT(gk_t, z), GK_DIMS(out),
                      GK_DIMS(phase), int accumulate, int act, gk_f q_act)
{
    GK_BIND_IN(gk_f, part); GK_BIND_IN(gk_t, scale); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, residual); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, z);
    gk_i64 most = gk_most(out, phase), runs = (most + 3) / 4, rows = phase.v[3] * out.v[4] * out.v[3];
    for (gk_i64 i = gk_gid(); i < rows * runs; i += gk_gsize()) {
        gk_i64 r = i / runs, of = r / out.v[3];
        int j = (int)(i - r * runs) * 4, m = (int)(r - of * out.v[3]), ph = (int)(of / out.v[4]);
        gk_places p = gk_places_of(ph, out, phase);
        gk_four v = gk_run_zero();
        for (int s = 0; s < (int)out.v[6]; s++) {
            GK_UNROLL for (int u = 0; u < 4; u++)
                if (j + u < p.count) v.v[u] += part[(s * rows + r) * most + j + u];
        }
        gk_conv_finish(v, p, (int)(of - ph * out.v[4]), m, j, out, phase, scale, bias, residual, y, z, accumulate, act, q_act);
    }
}
