/* Functions of three tensors and their gradients. GK_OP names the function (elementwise/ternary_ops.h).
 *
 *   y[i] = f(a[i], b[i], c[i])            da[i] (+)= g_a(dy[i], a[i], b[i], c[i]), likewise db, dc
 * All operands at the broadcast shape: merged axes, one list of strides per operand, counted in items. An item is an element, or GK_W elements of
 * the innermost axis when `wide` is set; then bits 1, 2, 3 of `wide` say that a, b, c move along that axis (otherwise they repeat and are
 * loaded once). Launch: grid-stride over items. Arithmetic in gk_f. Deterministic. Reference: torch.<function>.
 */
#include "common/prelude/strided.h"
#include "ternary_ops.h"

// Units: FLOATS64 x TERNARY
GK_KERNEL(ternary_nd)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_t, c), GK_OUT(gk_t, y), gk_i64 n, int rank, GK_DIMS(shape), GK_DIMS(sa), GK_DIMS(sb),
                      GK_DIMS(sc), GK_DIMS(sy), int wide, gk_f p)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(gk_t, c); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ia = 0, ib = 0, ic = 0, iy = 0;
        GK_ND(i, n, rank, shape, { ia += r * sa.v[d]; ib += r * sb.v[d]; ic += r * sc.v[d]; iy += r * sy.v[d]; });
        if (wide) {
            gk_vec u = gk_load_wide(a, ia, wide & 2), v = gk_load_wide(b, ib, wide & 4), w = gk_load_wide(c, ic, wide & 8);
            GK_UNROLL for (int k = 0; k < GK_W; k++) u.v[k] = GK_FWD(u.v[k], v.v[k], w.v[k], p);
            gk_storev(y, iy, u);
        } else {
            gk_store(y, iy, GK_FWD(gk_load(a, ia), gk_load(b, ib), gk_load(c, ic), p));
        }
    }
}

/* Gradients at the shape of dy; any of da, db, dc may be null. Bits 0, 1, 2 of `accumulate` belong to da, db, dc. */
GK_KERNEL(ternary_bwd_nd)(GK_IN(gk_t, dy), GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_t, c), GK_OUT(gk_t, da), GK_OUT(gk_t, db), GK_OUT(gk_t, dc),
                          gk_i64 n, int rank, GK_DIMS(shape), GK_DIMS(sdy), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sda), GK_DIMS(sdb),
                          GK_DIMS(sdc), int accumulate, gk_f p)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(gk_t, c);
    GK_BIND_OUT(gk_t, da); GK_BIND_OUT(gk_t, db); GK_BIND_OUT(gk_t, dc);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ig = 0, ia = 0, ib = 0, ic = 0, ja = 0, jb = 0, jc = 0;
        GK_ND(i, n, rank, shape, {
            ig += r * sdy.v[d]; ia += r * sa.v[d]; ib += r * sb.v[d]; ic += r * sc.v[d];
            ja += r * sda.v[d]; jb += r * sdb.v[d]; jc += r * sdc.v[d];
        });
        gk_f ga, gb, gc;
        GK_BWD(gk_load(dy, ig), gk_load(a, ia), gk_load(b, ib), gk_load(c, ic), p, &ga, &gb, &gc);
        if (da) gk_store(da, ja, accumulate & 1 ? gk_load(da, ja) + ga : ga);
        if (db) gk_store(db, jb, accumulate & 2 ? gk_load(db, jb) + gb : gb);
        if (dc) gk_store(dc, jc, accumulate & 4 ? gk_load(dc, jc) + gc : gc);
    }
}
