/* Deformable convolution: the gathers around its matrix products.
 *
 *   col[n, c, t, q] = mask[n, d, t, q] * sample(x[n, c], q * stride - pad + t * dilation + offset[n, d, t, :, q])        d: deformation group of c
 *
 * sample is bilinear, and 0 for neighbours outside. The convolution is w times col. Its backward has dcol = transpose(w) times dy in the arithmetic
 * type; doffset, dmask: sums over the group's channels of dcol times the derivative of the sample, the sample. dx: every tap has four neighbours;
 * these are sorted by destination (deform_keys and the engine's stable sort), and each element of x adds what its run of neighbours brings, in order.
 * geo = {stride, padding, dilation} of height then width; img = {height, width, channels, deformation groups}; out = {height, width, kernel height,
 * kernel width}. A thread has one displaced tap and all channels of its group, or one element of x. Launch: grid-stride. Sums in gk_f. Deterministic.
 * Reference: torchvision.ops.deform_conv2d; Dai et al. (2017), Zhu et al. (2019).
 */
#include "common/prelude/strided.h"

/* The neighbours of a displaced tap: places (-1 outside), weights, and derivatives of these along height and width. */
typedef struct { gk_i64 at[4]; gk_f w[4], dh[4], dw[4]; } gk_taps;

/* Tap number i of [images, deformation groups, taps, windows]. */
typedef struct { gk_i64 nd; int t, q; } gk_displaced;

GK_FN gk_displaced gk_displaced_at(gk_i64 i, gk_dims out)
{
    gk_displaced s;
    gk_i64 windows = out.v[0] * out.v[1], taps = out.v[2] * out.v[3], r = i / windows;
    s.q = (int)(i - r * windows);
    s.nd = r / taps;
    s.t = (int)(r - s.nd * taps);
    return s;
}

GK_FN gk_taps gk_neighbours(GK_GLOBAL const gk_t* offset, gk_displaced s, gk_dims geo, gk_dims img, gk_dims out)
{
    gk_taps r;
    int width = (int)out.v[1], kw = (int)out.v[3], oh = s.q / width, ow = s.q - oh * width, th = s.t / kw, tw = s.t - th * kw;
    gk_i64 at = (s.nd * out.v[2] * kw + s.t) * 2 * out.v[0] * width + s.q;
    gk_f y = (gk_f)(oh * (int)geo.v[0] - (int)geo.v[2] + th * (int)geo.v[4]) + gk_load(offset, at);
    gk_f x = (gk_f)(ow * (int)geo.v[1] - (int)geo.v[3] + tw * (int)geo.v[5]) + gk_load(offset, at + out.v[0] * width);
    /* False for NaN; beyond these bounds no neighbour is inside, and a conversion to an integer could overflow. */
    int near = y >= GK_R(-1.0) && x >= GK_R(-1.0) && y < (gk_f)img.v[0] && x < (gk_f)img.v[1], y0 = -1, x0 = -1;
    gk_f fy = GK_R(0.0), fx = GK_R(0.0);
    if (near) {
        y0 = (int)gk_floor(y); x0 = (int)gk_floor(x);
        fy = y - (gk_f)y0; fx = x - (gk_f)x0;
    }
    GK_UNROLL for (int u = 0; u < 4; u++) {
        int h = y0 + u / 2, w = x0 + u % 2;
        gk_f wy = u / 2 ? fy : GK_R(1.0) - fy, wx = u % 2 ? fx : GK_R(1.0) - fx;
        r.at[u] = near && h >= 0 && w >= 0 && h < img.v[0] && w < img.v[1] ? h * img.v[1] + w : -1;
        r.w[u] = wy * wx;
        r.dh[u] = u / 2 ? wx : -wx;
        r.dw[u] = u % 2 ? wy : -wy;
    }
    return r;
}

// Units: FLOATS64
GK_KERNEL(deform_columns)(GK_IN(gk_t, x), GK_IN(gk_t, offset), GK_IN(gk_t, mask), GK_OUT(gk_t, col), gk_i64 n, GK_DIMS(geo), GK_DIMS(img),
                          GK_DIMS(out))
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, offset); GK_BIND_IN(gk_t, mask); GK_BIND_OUT(gk_t, col);
    gk_i64 per = img.v[2] / img.v[3], plane = img.v[0] * img.v[1], windows = out.v[0] * out.v[1], taps = out.v[2] * out.v[3];
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_displaced s = gk_displaced_at(i, out);
        gk_taps k = gk_neighbours(offset, s, geo, img, out);
        gk_f factor = GK_R(1.0);
        if (mask) factor = gk_load(mask, i);
        for (gk_i64 c = s.nd * per; c < (s.nd + 1) * per; c++) {
            gk_f v = GK_R(0.0);
            GK_UNROLL for (int u = 0; u < 4; u++)
                if (k.at[u] >= 0) v += k.w[u] * gk_load(x, c * plane + k.at[u]);
            gk_store(col, (c * taps + s.t) * windows + s.q, factor * v);
        }
    }
}

/* doffset and dmask may be null. */
GK_KERNEL(deform_shifts)(GK_IN(gk_t, x), GK_IN(gk_t, offset), GK_IN(gk_t, mask), GK_IN(gk_f, dcol), GK_OUT(gk_t, doffset), GK_OUT(gk_t, dmask),
                         gk_i64 n, GK_DIMS(geo), GK_DIMS(img), GK_DIMS(out), int add_offset, int add_mask)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, offset); GK_BIND_IN(gk_t, mask); GK_BIND_IN(gk_f, dcol); GK_BIND_OUT(gk_t, doffset);
    GK_BIND_OUT(gk_t, dmask);
    gk_i64 per = img.v[2] / img.v[3], plane = img.v[0] * img.v[1], windows = out.v[0] * out.v[1], taps = out.v[2] * out.v[3];
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_displaced s = gk_displaced_at(i, out);
        gk_taps k = gk_neighbours(offset, s, geo, img, out);
        gk_f factor = GK_R(1.0), dm = GK_R(0.0), dh = GK_R(0.0), dw = GK_R(0.0);
        if (mask) factor = gk_load(mask, i);
        for (gk_i64 c = s.nd * per; c < (s.nd + 1) * per; c++) {
            gk_f d = dcol[(c * taps + s.t) * windows + s.q], v = GK_R(0.0), h = GK_R(0.0), w = GK_R(0.0);
            GK_UNROLL for (int u = 0; u < 4; u++)
                if (k.at[u] >= 0) {
                    gk_f e = gk_load(x, c * plane + k.at[u]);
                    v += k.w[u] * e; h += k.dh[u] * e; w += k.dw[u] * e;
                }
            dm += d * v; dh += d * h; dw += d * w;
        }
        if (doffset) {
            gk_i64 at = (s.nd * taps + s.t) * 2 * windows + s.q;
            dh *= factor; dw *= factor;
            gk_store(doffset, at, add_offset ? gk_load(doffset, at) + dh : dh);
            gk_store(doffset, at + windows, add_offset ? gk_load(doffset, at + windows) + dw : dw);
        }
        if (dmask) gk_store(dmask, i, add_mask ? gk_load(dmask, i) + dm : dm);
    }
}

/* keys[i, u] = (image and deformation group) * plane + place of neighbour u of tap i, `limit` for none; weight[i, u] with the mask's factor. */
GK_KERNEL(deform_keys)(GK_IN(gk_t, offset), GK_IN(gk_t, mask), GK_OUT(int, keys), GK_OUT(gk_f, weight), gk_i64 n, int limit, GK_DIMS(geo),
                       GK_DIMS(img), GK_DIMS(out))
{
    GK_BIND_IN(gk_t, offset); GK_BIND_IN(gk_t, mask); GK_BIND_OUT(int, keys); GK_BIND_OUT(gk_f, weight);
    gk_i64 plane = img.v[0] * img.v[1];
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_displaced s = gk_displaced_at(i, out);
        gk_taps k = gk_neighbours(offset, s, geo, img, out);
        gk_f factor = GK_R(1.0);
        if (mask) factor = gk_load(mask, i);
        GK_UNROLL for (int u = 0; u < 4; u++) {
            keys[i * 4 + u] = k.at[u] < 0 ? limit : (int)(s.nd * plane + k.at[u]);
            weight[i * 4 + u] = factor * k.w[u];
        }
    }
}

/* start[key] = number of sorted keys below `key`, for key = 0 ... limit. */
GK_KERNEL(deform_starts)(GK_IN(int, keys), GK_OUT(gk_i64, start), gk_i64 n, int limit)
{
    GK_BIND_IN(int, keys); GK_BIND_OUT(gk_i64, start);
    for (gk_i64 key = gk_gid(); key <= limit; key += gk_gsize()) {
        gk_i64 lo = 0, hi = n;
        while (lo < hi) {
            gk_i64 mid = (lo + hi) / 2;
            if (keys[mid] < key) lo = mid + 1;
            else hi = mid;
        }
        start[key] = lo;
    }
}

/* dx[n, c, i] (+)= sum over the run of (n, deformation group, i) of weight * dcol. `n` counts the elements of dx. */
GK_KERNEL(deform_input)(GK_IN(gk_i64, start), GK_IN(int, positions), GK_IN(gk_f, weight), GK_IN(gk_f, dcol), GK_OUT(gk_t, dx), gk_i64 n, GK_DIMS(img),
                        GK_DIMS(out), int accumulate)
{
    GK_BIND_IN(gk_i64, start); GK_BIND_IN(int, positions); GK_BIND_IN(gk_f, weight); GK_BIND_IN(gk_f, dcol); GK_BIND_OUT(gk_t, dx);
    gk_i64 per = img.v[2] / img.v[3], plane = img.v[0] * img.v[1], cells = out.v[0] * out.v[1] * out.v[2] * out.v[3];
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 c = i / plane, nd = c / per, key = nd * plane + (i - c * plane);
        gk_f sum = GK_R(0.0);
        for (gk_i64 e = start[key]; e < start[key + 1]; e++) {
            gk_u32 from = (gk_u32)positions[e];
            sum += weight[from] * dcol[c * cells + (from >> 2) - nd * cells];
        }
        gk_store(dx, i, accumulate ? gk_load(dx, i) + sum : sum);
    }
}
