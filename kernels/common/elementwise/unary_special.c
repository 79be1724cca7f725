/* Special functions of one tensor and their gradients: scaled error functions, the normal distribution, Bessel functions of orders 0 and 1. GK_OP names
 * the function (elementwise/unary_special_ops.h).
 *
 *   y[i] = f(x[i])            dx[i] (+)= g(dy[i], x[i]), x being the saved tensor
 * The kernels are those of unary.c without accesses of 16 bytes: the functions are hundreds of instructions long. p, q, s and `wide` are not used.
 * Launch: grid-stride over elements. Arithmetic in gk_f. Deterministic. Reference: torch.special.<function>.
 */
#include "unary_special_ops.h"

// Units: FLOATS64 x SPECIAL
GK_KERNEL(special_flat)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, int wide, gk_f p, gk_f q, gk_f s)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) gk_store(y, i, GK_FWD(gk_load(x, i), p, q, s));
}

GK_KERNEL(special_nd)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, int rank, GK_DIMS(shape), GK_DIMS(sx), GK_DIMS(sy), gk_f p, gk_f q, gk_f s)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ix = 0, iy = 0;
        GK_ND(i, n, rank, shape, { ix += r * sx.v[d]; iy += r * sy.v[d]; });
        gk_store(y, iy, GK_FWD(gk_load(x, ix), p, q, s));
    }
}

GK_KERNEL(special_bwd_flat)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_OUT(gk_t, dx), gk_i64 n, int wide, int accumulate, gk_f p, gk_f q, gk_f s)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, dx);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_f d = GK_BWD(gk_load(dy, i), gk_load(x, i), p, q, s);
        gk_store(dx, i, accumulate ? gk_load(dx, i) + d : d);
    }
}

GK_KERNEL(special_bwd_nd)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_OUT(gk_t, dx), gk_i64 n, int rank, GK_DIMS(shape), GK_DIMS(sdy), GK_DIMS(sx),
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
