/* Convolution without tiles: for depthwise ones, which are bound by memory, and for maps that the plans of conv/conv.c cannot describe.
 *
 * conv_direct: one output per thread. Forward: y[q] = sum over r, t of w * x[q * stride - pad + t * dilation]; adjoint: of w * x[(q + pad -
 * t * dilation) / stride] where that is whole. conv_rows: the same for strips of GK_CONV_STRIP outputs along height with stride and dilation 1 there,
 * whose windows share rows of x. Epilogue as in conv/conv.c. conv_direct_weight: sums of dy * x for one pair of channels and up to GK_CONV_TAPS taps
 * per block and run of places; to part [splits, pairs, taps], which conv_combine adds in order.
 * Launch: conv_direct, conv_rows grid-stride over outputs, strips; conv_direct_weight: one block per chunk of taps (fastest), pair and split.
 * Sums in gk_f. Deterministic. Reference: F.conv2d(groups=C), torch.nn.grad.
 */
#include "common/prelude/window.h"
#include "window_table.h"

#define GK_CONV_TAPS 9
#define GK_CONV_STRIP 4

/* Splits i into (image and channel, depth, height, width) of a map. */
typedef struct { gk_i64 nc; int d, h, w; } gk_spot;

GK_FN gk_spot gk_spot_of(gk_i64 i, gk_i64 total, gk_i64 depth, gk_i64 height, gk_i64 width)
{
    gk_spot s;
    if (total <= 0x7fffffffll) {
        gk_u32 a = (gk_u32)i, r = a / (gk_u32)width;
        s.w = (int)(a - r * (gk_u32)width);
        a = r / (gk_u32)height;
        s.h = (int)(r - a * (gk_u32)height);
        r = a / (gk_u32)depth;
        s.d = (int)(a - r * (gk_u32)depth);
        s.nc = r;
    } else {
        gk_i64 r = i / width;
        s.w = (int)(i - r * width);
        gk_i64 a = r / height;
        s.h = (int)(r - a * height);
        s.nc = a / depth;
        s.d = (int)(a - s.nc * depth);
    }
    return s;
}

/* Coordinate that tap t of an axis reads for output q; -1 for none. */
GK_FN int gk_source(int q, int t, int stride, int pad, int dilation, int size, int back)
{
    int i = back ? q + pad - t * dilation : q * stride - pad + t * dilation;
    if (back && stride > 1) {
        int whole = i / stride;
        if (i < 0 || whole * stride != i) return -1;
        i = whole;
    }
    return i < size ? i : -1;
}

// Units: FLOATS64
/* img = {depth, height, width} of the map that is read, out = {depth, height, width, rows, groups, images, channels summed over},
 * win = {sizes, strides}, geo = {paddings, dilations}. w as in conv_plan. */
GK_KERNEL(conv_direct)(GK_IN(gk_t, x), GK_IN(gk_t, w), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual), GK_OUT(gk_t, y), GK_OUT(gk_t, z),
                       GK_DIMS(img), GK_DIMS(out), GK_DIMS(win), GK_DIMS(geo), int back, int accumulate, int act, gk_f p)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, scale); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, residual);
    GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, z);
    int kd = (int)win.v[0], kh = (int)win.v[1], kw = (int)win.v[2];
    gk_i64 rows = out.v[3], channels = rows * out.v[4], sum = out.v[6], taps = (gk_i64)kd * kh * kw, plane = img.v[0] * img.v[1] * img.v[2];
    gk_i64 total = out.v[0] * out.v[1] * out.v[2] * channels * out.v[5];
    for (gk_i64 i = gk_gid(); i < total; i += gk_gsize()) {
        gk_spot s = gk_spot_of(i, total, out.v[0], out.v[1], out.v[2]);
        gk_i64 n = gk_divide(s.nc, channels), ch = s.nc - n * channels, g = gk_divide(ch, rows), m = ch - g * rows;
        GK_GLOBAL const gk_t* from = x + (n * out.v[4] + g) * sum * plane;
        gk_four v = gk_run_zero();
        for (gk_i64 r = 0; r < sum; r++) {
            GK_GLOBAL const gk_t* k = w + (back ? (g * sum + r) * rows + m : ch * sum + r) * taps;
            for (int a = 0; a < kd; a++) {
                int d = gk_source(s.d, a, (int)win.v[3], (int)geo.v[0], (int)geo.v[3], (int)img.v[0], back);
                if (d < 0) continue;
                for (int b = 0; b < kh; b++) {
                    int h = gk_source(s.h, b, (int)win.v[4], (int)geo.v[1], (int)geo.v[4], (int)img.v[1], back);
                    if (h < 0) continue;
                    for (int c = 0; c < kw; c++) {
                        int at = gk_source(s.w, c, (int)win.v[5], (int)geo.v[2], (int)geo.v[5], (int)img.v[2], back);
                        if (at >= 0) v.v[0] += gk_load(k, (a * kh + b) * kw + c) * gk_load(from, r * plane + (d * img.v[1] + h) * img.v[2] + at);
                    }
                }
            }
        }
        gk_i64 at[4];
        at[0] = at[1] = at[2] = at[3] = i;
        gk_conv_store(v, at, 1, 0, ch, scale, bias, residual, y, z, accumulate, act, p);
    }
}

/* One channel summed over, kernels of kh x kw, stride 1, dilation 1 along height. Parameters as for conv_direct. */
GK_KERNEL(conv_rows)(GK_IN(gk_t, x), GK_IN(gk_t, w), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual), GK_OUT(gk_t, y), GK_OUT(gk_t, z),
                     GK_DIMS(img), GK_DIMS(out), GK_DIMS(win), GK_DIMS(geo), int back, int accumulate, int act, gk_f p)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, scale); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, residual);
    GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, z);
    int kh = (int)win.v[1], kw = (int)win.v[2], height = (int)img.v[1], width = (int)img.v[2], oh = (int)out.v[1], ow = (int)out.v[2];
    gk_i64 rows = out.v[3], channels = rows * out.v[4], plane = img.v[1] * img.v[2], strips = (out.v[1] + GK_CONV_STRIP - 1) / GK_CONV_STRIP;
    gk_i64 total = strips * out.v[2] * channels * out.v[5];
    for (gk_i64 i = gk_gid(); i < total; i += gk_gsize()) {
        gk_spot s = gk_spot_of(i, total, 1, strips, out.v[2]);
        gk_i64 n = gk_divide(s.nc, channels), ch = s.nc - n * channels, g = gk_divide(ch, rows);
        GK_GLOBAL const gk_t* from = x + (n * out.v[4] + g) * plane;
        GK_GLOBAL const gk_t* k = w + ch * kh * kw;
        int h0 = s.h * GK_CONV_STRIP, first = back ? h0 + (int)geo.v[1] - (kh - 1) : h0 - (int)geo.v[1];
        gk_four v = gk_run_zero();
        for (int c = 0; c < kw; c++) {
            int at = gk_source(s.w, c, (int)win.v[5], (int)geo.v[2], (int)geo.v[5], width, back);
            gk_f t[GK_CONV_STRIP];
            /* Weights that row `r` of the window's rows meets in the outputs of the strip; they move down by one output per row. */
            GK_UNROLL for (int u = 0; u < GK_CONV_STRIP; u++) t[u] = GK_R(0.0);
            for (int r = 0; r < kh + GK_CONV_STRIP - 1; r++) {
                gk_f a = GK_R(0.0);
                GK_UNROLL for (int u = GK_CONV_STRIP - 1; u > 0; u--) t[u] = t[u - 1];
                t[0] = GK_R(0.0);
                if (r < kh) t[0] = gk_load(k, (back ? kh - 1 - r : r) * kw + c);
                if (at >= 0 && (gk_u32)(first + r) < (gk_u32)height) a = gk_load(from, (gk_i64)(first + r) * width + at);
                GK_UNROLL for (int u = 0; u < GK_CONV_STRIP; u++) v.v[u] += t[u] * a;
            }
        }
        gk_i64 at[4];
        GK_UNROLL for (int u = 0; u < 4; u++) at[u] = (s.nc * oh + h0 + u) * ow + s.w;
        gk_conv_store(v, at, oh - h0 < GK_CONV_STRIP ? oh - h0 : GK_CONV_STRIP, 0, ch, scale, bias, residual, y, z, accumulate, act, p);
    }
}

/* x [images, groups, cols, img], dy [images, groups, rows, out]; pairs are (group, row, col). out = {depth, height, width, rows, groups, images,
 * cols}. */
GK_KERNEL(conv_direct_weight)(GK_IN(gk_t, x), GK_IN(gk_t, dy), GK_OUT(gk_f, part), GK_DIMS(img), GK_DIMS(out), GK_DIMS(win), GK_DIMS(geo), int splits,
                              gk_i64 per)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, dy); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int kh = (int)win.v[1], kw = (int)win.v[2], taps = (int)win.v[0] * kh * kw, chunks = (taps + GK_CONV_TAPS - 1) / GK_CONV_TAPS;
    int t0 = gk_bid(0) % chunks * GK_CONV_TAPS, rest = gk_bid(0) / chunks, cols = (int)out.v[6], rows = (int)out.v[3];
    gk_i64 pairs = out.v[4] * rows * cols, pair = rest % (int)pairs, split = rest / (int)pairs;
    gk_i64 c = pair % cols, ch = pair / cols, g = ch / rows;
    gk_i64 plane = img.v[0] * img.v[1] * img.v[2], size = out.v[0] * out.v[1] * out.v[2], total = size * out.v[5];
    gk_i64 end = (split + 1) * per < total ? (split + 1) * per : total;
    int td[GK_CONV_TAPS], th[GK_CONV_TAPS], tw[GK_CONV_TAPS];
    gk_i64 off[GK_CONV_TAPS];
    gk_f acc[GK_CONV_TAPS];
    GK_UNROLL for (int u = 0; u < GK_CONV_TAPS; u++) {
        int t = t0 + u;
        td[u] = t / kw / kh * (int)geo.v[3]; th[u] = t / kw % kh * (int)geo.v[4]; tw[u] = t % kw * (int)geo.v[5];
        off[u] = (td[u] * img.v[1] + th[u]) * img.v[2] + tw[u];
        if (t >= taps) tw[u] = GK_FAR;
        acc[u] = GK_R(0.0);
    }
    for (gk_i64 i = split * per + gk_lid(); i < end; i += GK_BLOCK) {
        gk_spot s = gk_spot_of(i, total, out.v[0], out.v[1], out.v[2]);
        gk_f d = gk_load(dy, (s.nc * out.v[4] * rows + ch) * size + (s.d * out.v[1] + s.h) * out.v[2] + s.w);
        gk_column at;
        at.depth = (int)img.v[0]; at.height = (int)img.v[1]; at.width = (int)img.v[2];
        at.d = s.d * (int)win.v[3] - (int)geo.v[0];
        at.h = s.h * (int)win.v[4] - (int)geo.v[1];
        at.w = s.w * (int)win.v[5] - (int)geo.v[2];
        at.base = ((s.nc * out.v[4] + g) * cols + c) * plane + ((gk_i64)at.d * at.height + at.h) * at.width + at.w;
        GK_UNROLL for (int u = 0; u < GK_CONV_TAPS; u++)
            if (gk_inside(at, td[u], th[u], tw[u])) acc[u] += d * gk_load(x, at.base + off[u]);
    }
    GK_UNROLL for (int u = 0; u < GK_CONV_TAPS; u++) {
        gk_f sum = gk_block_sum(acc[u], tmp);
        if (gk_lid() == 0 && t0 + u < taps) part[(split * pairs + pair) * taps + t0 + u] = sum;
    }
}
