/* Windows of a map as columns, and back.
 *
 *   im2col: col[n, c, t, q] = x[n, c, q * stride - pad + t * dilation] or 0        col2im: x[n, c, i] = sum of the columns' elements that came from i
 *
 * img = {depth, height, width}, out = {depth, height, width of the windows}, win = {sizes, strides}, geo = {paddings, dilations}.
 * A thread has a run of outputs along W: GK_W of them with `wide` (rows of outputs are multiples of that, aligned), else one. magic: multipliers
 * that divide by the runs of outputs on the three axes, and by what is stated.
 * One writer per output; launch: grid-stride. Sums in gk_f in the order of the taps. Deterministic. Reference: F.unfold, F.fold.
 */
#include "common/prelude/window.h"

// Units: FLOATS64
/* Items: runs of the places q, once per channel and row of taps. magic 3 and 4 divide by the rows of taps and by their number along the height. */
GK_KERNEL(im2col)(GK_IN(gk_t, x), GK_OUT(gk_t, col), gk_i64 n, GK_DIMS(img), GK_DIMS(out), GK_DIMS(win), GK_DIMS(geo), GK_DIMS(magic), int wide,
                  int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, col);
    int id = (int)img.v[0], ih = (int)img.v[1], iw = (int)img.v[2], kh = (int)win.v[1], kw = (int)win.v[2], rows = (int)win.v[0] * kh;
    int run = wide ? GK_W : 1, step = (int)win.v[5];
    gk_i64 windows = out.v[0] * out.v[1] * out.v[2];
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_place q = gk_place_of(i, n, out.v[0], out.v[1], out.v[2] / run, magic.v[0], magic.v[1], magic.v[2]);
        gk_i64 nc = gk_over(q.plane, n, rows, magic.v[3]);
        int a = (int)(q.plane - nc * rows), ka = (int)gk_quotient((gk_u32)a, magic.v[4]);
        int d = q.d * (int)win.v[3] - (int)geo.v[0] + ka * (int)geo.v[3];
        int h = q.h * (int)win.v[4] - (int)geo.v[1] + (a - ka * kh) * (int)geo.v[4];
        int live = d >= 0 && d < id && h >= 0 && h < ih;
        GK_GLOBAL const gk_b* from = (GK_GLOBAL const gk_b*)x + (live ? ((nc * id + d) * ih + h) * iw : 0);
        gk_i64 to = q.plane * kw * windows + (q.d * out.v[1] + q.h) * out.v[2] + q.w * run;
        for (int c = 0; c < kw; c++) {
            int w = q.w * run * step - (int)geo.v[2] + c * (int)geo.v[5];
            gk_bits v;
            GK_UNROLL for (int k = 0; k < GK_W; k++) {
                v.v[k] = 0;
                if (k < run && live && w + k * step >= 0 && w + k * step < iw) v.v[k] = from[w + k * step];
            }
            if (wide) gk_putv(col, to + c * windows, v, accumulate);
            else gk_put(col, to + c * windows, v.v[0], accumulate);
        }
    }
}

/* Window whose tap t lies on place i of an axis; -1 for none. `by` divides by the axis' stride. */
GK_FN int gk_window(int i, int t, int stride, int pad, int dilation, int count, gk_i64 by)
{
    int q = i + pad - t * dilation, whole = (int)gk_quotient((gk_u32)(q < 0 ? 0 : q), by);
    return q < 0 || whole * stride != q || whole >= count ? -1 : whole;
}
#define GK_WINDOW(axis, i, t) \
    gk_window(i, t, (int)win.v[3 + axis], (int)geo.v[axis], (int)geo.v[3 + axis], (int)out.v[axis], magic.v[3 + axis])

/* Items: runs of x. magic 3 to 5 divide by the strides. */
GK_KERNEL(col2im)(GK_IN(gk_t, col), GK_OUT(gk_t, x), gk_i64 n, GK_DIMS(img), GK_DIMS(out), GK_DIMS(win), GK_DIMS(geo), GK_DIMS(magic), int wide,
                  int accumulate)
{
    GK_BIND_IN(gk_t, col); GK_BIND_OUT(gk_t, x);
    int kd = (int)win.v[0], kh = (int)win.v[1], kw = (int)win.v[2], run = wide ? GK_W : 1;
    gk_i64 taps = win.v[0] * kh * kw, windows = out.v[0] * out.v[1] * out.v[2];
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_place s = gk_place_of(i, n, img.v[0], img.v[1], img.v[2] / run, magic.v[0], magic.v[1], magic.v[2]);
        gk_vec sum;
        GK_UNROLL for (int k = 0; k < GK_W; k++) sum.v[k] = GK_R(0.0);
        for (int a = 0; a < kd; a++) {
            int d = GK_WINDOW(0, s.d, a);
            if (d < 0) continue;
            for (int b = 0; b < kh; b++) {
                int h = GK_WINDOW(1, s.h, b);
                if (h < 0) continue;
                GK_GLOBAL const gk_t* from = col + (s.plane * taps + (a * kh + b) * kw) * windows + (d * out.v[1] + h) * out.v[2];
                for (int c = 0; c < kw; c++) {
                    GK_UNROLL for (int k = 0; k < GK_W; k++) {
                        int w = k < run ? GK_WINDOW(2, s.w * run + k, c) : -1;
                        if (w >= 0) sum.v[k] += gk_load(from, c * windows + w);
                    }
                }
            }
        }
        if (wide) {
            if (accumulate) {
                gk_vec old = gk_loadv(x, i * GK_W);
                GK_UNROLL for (int k = 0; k < GK_W; k++) sum.v[k] += old.v[k];
            }
            gk_storev(x, i * GK_W, sum);
        } else {
            gk_store(x, i, accumulate ? gk_load(x, i) + sum.v[0] : sum.v[0]);
        }
    }
}
