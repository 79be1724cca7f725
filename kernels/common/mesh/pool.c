/* Pooling of the elements of a mesh by scores, beside the softmax and the choice of the largest that other kernels compute.
 *
 *   score[e] = x[e] . w * scale;   y[j] = share[kept[j]] x[kept[j]];   with dshare[e] = dy[j] . x[e] for e = kept[j], else 0, and the gradient ds of
 *   the scores, dx[e] = ds[e] w * scale + share[e] dy[j],   dw = sum over e of ds[e] x[e] * scale
 * x, dx [elements, width], w [width], y, dy [count, width], share, score, dshare, ds [elements] in gk_f. scale: 1 / temperature.
 * Arithmetic in gk_f. Deterministic: one writer per element, sums of fixed order. Reference: torch.topk, torch.softmax, indexing.
 */
#include "common/prelude/window.h"

/* x . y over `width` elements by `lanes` threads; all threads of the block take part. */
GK_FN gk_f gk_pool_dot(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* y, gk_i64 width, int lanes, GK_LOCAL_PTR gk_f* tmp)
{
    gk_f sum = GK_R(0.0);
    for (gk_i64 c = gk_lid() % lanes; c < width; c += lanes) sum += gk_load(x, c) * gk_load(y, c);
    return gk_group_sum(sum, tmp, lanes);
}

// Units: FLOATS64
/* Launch: blocks of GK_BLOCK / lanes elements. */
GK_KERNEL(mesh_pool_scores)(GK_IN(gk_t, x), GK_IN(gk_t, w), GK_OUT(gk_f, score), gk_i64 elements, gk_i64 width, int lanes, gk_f scale)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, w); GK_BIND_OUT(gk_f, score);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_i64 e = (gk_i64)gk_bid(0) * (GK_BLOCK / lanes) + gk_lid() / lanes;
    gk_f dot = gk_pool_dot(x + (e < elements ? e : 0) * width, w, width, lanes, tmp);
    if (e < elements && gk_lid() % lanes == 0) score[e] = dot * scale;
}

/* Launch: grid-stride over the elements of y. */
GK_KERNEL(mesh_pool_gather)(GK_IN(gk_t, x), GK_IN(gk_f, share), GK_IN(int, kept), GK_OUT(gk_t, y), gk_i64 n, gk_i64 width, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_f, share); GK_BIND_IN(int, kept); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 j = gk_divide(i, width), e = gk_index(kept, j, wide);
        gk_store(y, i, share[e] * gk_load(x, e * width + (i - j * width)));
    }
}

/* dshare of the kept elements, and place[e] = j; both were 0 and -1. Launch: blocks of GK_BLOCK / lanes kept elements. */
GK_KERNEL(mesh_pool_dshare)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(int, kept), GK_OUT(gk_f, dshare), GK_OUT(int, place), GK_OUT(int, err),
                            gk_i64 count, gk_i64 elements, gk_i64 width, int lanes, int wide, int code)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(int, kept); GK_BIND_OUT(gk_f, dshare); GK_BIND_OUT(int, place); GK_BIND_OUT(int, err);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_i64 j = (gk_i64)gk_bid(0) * (GK_BLOCK / lanes) + gk_lid() / lanes, e = -1;
    if (j < count) {
        e = gk_index(kept, j, wide);
        if (e < 0 || e >= elements) {
            gk_report(err, code);
            e = -1;
        }
    }
    gk_f dot = gk_pool_dot(dy + (j < count ? j : 0) * width, x + (e >= 0 ? e : 0) * width, width, lanes, tmp);
    if (e >= 0 && gk_lid() % lanes == 0) {
        dshare[e] = dot;
        place[e] = (int)j;
    }
}

/* Launch: grid-stride over the elements of dx. */
GK_KERNEL(mesh_pool_dx)(GK_IN(gk_t, dy), GK_IN(gk_t, w), GK_IN(gk_f, share), GK_IN(gk_f, ds), GK_IN(int, place), GK_OUT(gk_t, dx), gk_i64 n,
                        gk_i64 width, gk_f scale, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_f, share); GK_BIND_IN(gk_f, ds); GK_BIND_IN(int, place); GK_BIND_OUT(gk_t, dx);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 e = gk_divide(i, width), c = i - e * width;
        gk_f d = ds[e] * scale * gk_load(w, c);
        if (place[e] >= 0) d += share[e] * gk_load(dy, place[e] * width + c);
        gk_store(dx, i, accumulate ? gk_load(dx, i) + d : d);
    }
}

/* part[k, c] = the sum over the elements of chunk k of ds[e] x[e, c]. Launch: grid-stride over the elements of part. */
GK_KERNEL(mesh_pool_dw)(GK_IN(gk_t, x), GK_IN(gk_f, ds), GK_OUT(gk_f, part), gk_i64 n, gk_i64 elements, gk_i64 width, gk_i64 chunk)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_f, ds); GK_BIND_OUT(gk_f, part);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 k = gk_divide(i, width), c = i - k * width, end = (k + 1) * chunk < elements ? (k + 1) * chunk : elements;
        gk_f sum = GK_R(0.0);
        for (gk_i64 e = k * chunk; e < end; e++) sum += ds[e] * gk_load(x, e * width + c);
        part[i] = sum;
    }
}

/* dw[c] (+)= the sum over the chunks. Launch: grid-stride over the elements of dw. */
GK_KERNEL(mesh_pool_dw_combine)(GK_IN(gk_f, part), GK_OUT(gk_t, dw), gk_i64 width, gk_i64 chunks, gk_f scale, int accumulate)
{
    GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, dw);
    for (gk_i64 c = gk_gid(); c < width; c += gk_gsize()) {
        gk_f sum = GK_R(0.0);
        for (gk_i64 k = 0; k < chunks; k++) sum += part[k * width + c];
        gk_store(dw, c, accumulate ? gk_load(dw, c) + sum * scale : sum * scale);
    }
}
