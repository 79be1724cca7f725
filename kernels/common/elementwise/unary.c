/* Functions of one tensor and their gradients. GK_OP names the function (elementwise/unary_ops.h, activation/activation_ops.h).
 *
 *   y[i] = f(x[i])            dx[i] (+)= g(dy[i], x[i]), x being the saved tensor
 * _flat kernels take tensors without gaps, 16 bytes at a time when `wide` is set (all bases are 16-byte aligned then); _nd kernels take merged
 * axes with strides. Launch: grid-stride over vectors or elements. Arithmetic in gk_f. Deterministic. Reference: torch.<function>,
 * torch.nn.functional.<function>.
 */
#include "common/prelude/strided.h"
#include "unary_ops.h"
#include "common/activation/activation_ops.h"

// Units: FLOATS64 x UNARY, FLOATS64 x ACTIVATIONS, INTS x INT_UNARY
GK_KERNEL(unary_flat)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, int wide, gk_f p, gk_f q, gk_f s)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    gk_i64 items = wide ? n / GK_W : 0;
    /* A block takes GK_MAP_RUNS runs of neighbouring vectors, all loaded before the first is used. */
    for (gk_i64 i = (gk_i64)gk_bid(0) * (GK_BLOCK * GK_MAP_RUNS) + gk_lid(); i < items; i += gk_gsize() * GK_MAP_RUNS) {
        gk_vec a[GK_MAP_RUNS];
        GK_UNROLL for (int u = 0; u < GK_MAP_RUNS; u++)
            a[u] = gk_loadv_if(x, (i + u * GK_BLOCK) * GK_W, i + u * GK_BLOCK < items, (gk_f)0);
        GK_UNROLL for (int u = 0; u < GK_MAP_RUNS; u++) {
            if (i + u * GK_BLOCK >= items) break;
            GK_UNROLL for (int k = 0; k < GK_W; k++) a[u].v[k] = GK_FWD(a[u].v[k], p, q, s);
            gk_storev(y, (i + u * GK_BLOCK) * GK_W, a[u]);
        }
    }
    for (gk_i64 i = items * GK_W + gk_gid(); i < n; i += gk_gsize()) gk_store(y, i, GK_FWD(gk_load(x, i), p, q, s));
}

GK_KERNEL(unary_nd)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, int rank, GK_DIMS(shape), GK_DIMS(sx), GK_DIMS(sy), gk_f p, gk_f q, gk_f s)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ix = 0, iy = 0;
        GK_ND(i, n, rank, shape, { ix += r * sx.v[d]; iy += r * sy.v[d]; });
        gk_store(y, iy, GK_FWD(gk_load(x, ix), p, q, s));
    }
}

// Units: FLOATS64 x PREDICATES
/* y[i] = f(x[i]) != 0, as u8. wide: both tensors have no gaps and aligned bases. */
GK_KERNEL(unary_mask)(GK_IN(gk_t, x), GK_OUT(gk_u8, y), gk_i64 n, int wide, int rank, GK_DIMS(shape), GK_DIMS(sx), GK_DIMS(sy), gk_f p, gk_f q,
                      gk_f s)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_u8, y);
    gk_i64 items = wide ? n / GK_W : 0;
    for (gk_i64 i = gk_gid(); i < items; i += gk_gsize()) {
        gk_vec a = gk_loadv(x, i * GK_W);
        GK_UNROLL for (int k = 0; k < GK_W; k++) a.v[k] = GK_FWD(a.v[k], p, q, s);
        gk_store_mask(y, i * GK_W, a);
    }
    for (gk_i64 i = items * GK_W + gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ix = 0, iy = 0;
        GK_ND(i, n, rank, shape, { ix += r * sx.v[d]; iy += r * sy.v[d]; });
        y[iy] = GK_FWD(gk_load(x, ix), p, q, s) != 0;
    }
}

#if GK_IS_FLOAT
// Units: FLOATS64 x UNARY, FLOATS64 x ACTIVATIONS
GK_KERNEL(unary_bwd_flat)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_OUT(gk_t, dx), gk_i64 n, int wide, int accumulate, gk_f p, gk_f q, gk_f s)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, dx);
    gk_i64 items = wide ? n / GK_W : 0;
    for (gk_i64 i = (gk_i64)gk_bid(0) * (GK_BLOCK * GK_BWD_RUNS) + gk_lid(); i < items; i += gk_gsize() * GK_BWD_RUNS) {
        gk_vec g[GK_BWD_RUNS], a[GK_BWD_RUNS];
        GK_UNROLL for (int u = 0; u < GK_BWD_RUNS; u++) {
            if (i + u * GK_BLOCK >= items) break;
            g[u] = gk_loadv(dy, (i + u * GK_BLOCK) * GK_W);
            a[u] = gk_loadv(x, (i + u * GK_BLOCK) * GK_W);
        }
        GK_UNROLL for (int u = 0; u < GK_BWD_RUNS; u++) {
            if (i + u * GK_BLOCK >= items) break;
            GK_UNROLL for (int k = 0; k < GK_W; k++) g[u].v[k] = GK_BWD(g[u].v[k], a[u].v[k], p, q, s);
            if (accumulate) {
                gk_vec o = gk_loadv(dx, (i + u * GK_BLOCK) * GK_W);
                GK_UNROLL for (int k = 0; k < GK_W; k++) g[u].v[k] += o.v[k];
            }
            gk_storev(dx, (i + u * GK_BLOCK) * GK_W, g[u]);
        }
    }
    for (gk_i64 i = items * GK_W + gk_gid(); i < n; i += gk_gsize()) {
        gk_f d = GK_BWD(gk_load(dy, i), gk_load(x, i), p, q, s);
        gk_store(dx, i, accumulate ? gk_load(dx, i) + d : d);
    }
}

GK_KERNEL(unary_bwd_nd)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_OUT(gk_t, dx), gk_i64 n, int rank, GK_DIMS(shape), GK_DIMS(sdy), GK_DIMS(sx),
                        GK_DIMS(sdx), int accumulate, gk_f p, gk_f q, gk_f s)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, dx);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ig = 0, ix = 0, io = 0;
        GK_ND(i, n, rank, shape, { ig += r * sdy.v[d]; ix += r * sx.v[d]; io += r * sdx.v[d]; });
        gk_f g = GK_BWD(gk_load(dy, ig), gk_load(x, ix), p, q, s);
        gk_store(dx, io, accumulate ? gk_load(dx, io) + g : g);
    }
}
#endif
