/* Windows of a map as columns, and back.
 *
 *   im2col: col[n, c, t, q] = x[n, c, q * stride - pad + t * dilation] or 0        col2im: x[n, c, i] = sum of the columns' elements that came from i
 *
 * img = {depth, height, width}, out = {depth, height, width of the windows}, win = {sizes, strides}, geo = {paddings, dilations}.
 * One writer per output; launch: grid-stride over the outputs. Sums in gk_f in the order of the taps. Deterministic. Reference: F.unfold, F.fold.
 */
#include "common/prelude/strided.h"

/* Position number i of {outer, depth, height, width}. */
typedef struct { gk_i64 outer; int d, h, w; } gk_cell;
GK_FN gk_cell gk_cell_of(gk_i64 i, gk_i64 n, gk_dims size)
{
    gk_i64 c[4];
    gk_dims shape;
    gk_cell r;
    shape.v[0] = 1; shape.v[1] = size.v[0]; shape.v[2] = size.v[1]; shape.v[3] = size.v[2];
    GK_ND(i, n, 4, shape, { c[d] = (gk_i64)r; });
    r.outer = c[0]; r.d = (int)c[1]; r.h = (int)c[2]; r.w = (int)c[3];
    return r;
}

// Units: FLOATS64
GK_KERNEL(im2col)(GK_IN(gk_t, x), GK_OUT(gk_t, col), gk_i64 n, GK_DIMS(img), GK_DIMS(out), GK_DIMS(win), GK_DIMS(geo), int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, col);
    int kh = (int)win.v[1], kw = (int)win.v[2];
    gk_i64 taps = win.v[0] * kh * kw, plane = img.v[0] * img.v[1] * img.v[2];
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_cell q = gk_cell_of(i, n, out);
        gk_i64 nc = n <= 0x7fffffffll ? (gk_i64)((gk_u32)q.outer / (gk_u32)taps) : q.outer / taps;
        int t = (int)(q.outer - nc * taps), a = t / kw;
        int d = q.d * (int)win.v[3] - (int)geo.v[0] + a / kh * (int)geo.v[3];
        int h = q.h * (int)win.v[4] - (int)geo.v[1] + a % kh * (int)geo.v[4];
        int w = q.w * (int)win.v[5] - (int)geo.v[2] + (t - a * kw) * (int)geo.v[5];
        gk_f v = GK_R(0.0);
        if (d >= 0 && d < img.v[0] && h >= 0 && h < img.v[1] && w >= 0 && w < img.v[2]) v = gk_load(x,
            nc * plane + (d * img.v[1] + h) * img.v[2] + w);
        gk_store(col, i, accumulate ? gk_load(col, i) + v : v);
    }
}

/* Window whose tap t lies on place i of an axis; -1 for none. */
GK_FN int gk_window(int i, int t, gk_dims win, gk_dims geo, int axis, gk_i64 count)
{
    int stride = (int)win.v[3 + axis], q = i + (int)geo.v[axis] - t * (int)geo.v[3 + axis], whole = q / stride;
    return q < 0 || whole * stride != q || whole >= count ? -1 : whole;
}

GK_KERNEL(col2im)(GK_IN(gk_t, col), GK_OUT(gk_t, x), gk_i64 n, GK_DIMS(img), GK_DIMS(out), GK_DIMS(win), GK_DIMS(geo), int accumulate)
{
    GK_BIND_IN(gk_t, col); GK_BIND_OUT(gk_t, x);
    int kd = (int)win.v[0], kh = (int)win.v[1], kw = (int)win.v[2];
    gk_i64 taps = win.v[0] * kh * kw, windows = out.v[0] * out.v[1] * out.v[2];
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_cell s = gk_cell_of(i, n, img);
        gk_f sum = GK_R(0.0);
        for (int a = 0; a < kd; a++) {
            int d = gk_window(s.d, a, win, geo, 0, out.v[0]);
            if (d < 0) continue;
            for (int b = 0; b < kh; b++) {
                int h = gk_window(s.h, b, win, geo, 1, out.v[1]);
                if (h < 0) continue;
                for (int c = 0; c < kw; c++) {
                    int w = gk_window(s.w, c, win, geo, 2, out.v[2]);
                    if (w >= 0) sum += gk_load(col, (s.outer * taps + (a * kh + b) * kw + c) * windows + (d * out.v[1] + h) * out.v[2] + w);
                }
            }
        }
        gk_store(x, i, accumulate ? gk_load(x, i) + sum : sum);
    }
}
