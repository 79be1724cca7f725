/* Elementwise kernels: unary, binary and ternary maps, their gradients, predicates and comparisons. GK_OP names the function.
 *
 *   y[i] = f(x[i])            dx[i] (+)= g(dy[i], x[i])
 * Flat kernels take tensors without gaps; _nd kernels take merged axes with one list of strides per operand, counted in items, where an item
 * is an element, or GK_W elements of the innermost axis when `wide` is set (an operand that repeats there is loaded once: its bit in
 * `wide` is clear).
 * Launch: grid-stride over items. Arithmetic in gk_f. Deterministic. Reference: torch.<function>.
 */
#include "unary_ops.h"
#include "activation_ops.h"
#include "binary_ops.h"
#include "ternary_ops.h"

#define GK_FWD GK_CAT(GK_OP, _fwd)
#define GK_BWD GK_CAT(GK_OP, _bwd)
#define GK_ARITY GK_CAT(GK_OP, _arity)
/* 16-byte accesses in flight per work-item before the first use. */
#define GK_DEPTH 4

/* Splits item number `item` of a shape into its coordinates, innermost first, and runs `step` for each axis `d` with coordinate `r`. */
#define GK_COORDS(type, item, rank, shape, step) \
    do { \
        type rest = (type)(item); \
        for (int d = (rank) - 1; d > 0; d--) { \
            type size = (type)(shape).v[d], q = rest / size, r = rest - q * size; \
            rest = q; \
            step \
        } \
        { const int d = 0; type r = rest; step } \
    } while (0)

/* 64-bit divisions are slow: use 32 bits where the count allows. */
#define GK_ND(item, n, rank, shape, step) \
    do { \
        if ((n) <= 0x7fffffffll) GK_COORDS(gk_u32, item, rank, shape, step); \
        else GK_COORDS(gk_u64, item, rank, shape, step); \
    } while (0)

GK_FN gk_vec gk_load_wide(GK_GLOBAL const gk_t* p, gk_i64 i, int wide)
{
    gk_vec r;
    if (wide) return gk_loadv(p, i);
    gk_f x = gk_load(p, i);
    GK_UNROLL for (int k = 0; k < GK_W; k++) r.v[k] = x;
    return r;
}

#if GK_ARITY == 1

GK_KERNEL(unary_flat)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, int wide, gk_f p, gk_f q, gk_f s)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    gk_i64 step = gk_gsize(), items = wide ? n / GK_W : 0, i = gk_gid();
    for (; i + (GK_DEPTH - 1) * step < items; i += GK_DEPTH * step) {
        gk_vec a[GK_DEPTH];
        GK_UNROLL for (int u = 0; u < GK_DEPTH; u++) a[u] = gk_loadv(x, (i + u * step) * GK_W);
        GK_UNROLL for (int u = 0; u < GK_DEPTH; u++) {
            GK_UNROLL for (int k = 0; k < GK_W; k++) a[u].v[k] = GK_FWD(a[u].v[k], p, q, s);
            gk_storev(y, (i + u * step) * GK_W, a[u]);
        }
    }
    for (; i < items; i += step) {
        gk_vec a = gk_loadv(x, i * GK_W);
        GK_UNROLL for (int k = 0; k < GK_W; k++) a.v[k] = GK_FWD(a.v[k], p, q, s);
        gk_storev(y, i * GK_W, a);
    }
    for (i = items * GK_W + gk_gid(); i < n; i += step) gk_store(y, i, GK_FWD(gk_load(x, i), p, q, s));
}

GK_KERNEL(unary_nd)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, int rank, gk_dims shape, gk_dims sx, gk_dims sy, gk_f p, gk_f q, gk_f s)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ix = 0, iy = 0;
        GK_ND(i, n, rank, shape, { ix += r * sx.v[d]; iy += r * sy.v[d]; });
        gk_store(y, iy, GK_FWD(gk_load(x, ix), p, q, s));
    }
}

/* y[i] = f(x[i]) != 0, as u8 */
GK_KERNEL(unary_mask)(GK_IN(gk_t, x), GK_OUT(gk_u8, y), gk_i64 n, int rank, gk_dims shape, gk_dims sx, gk_dims sy, gk_f p, gk_f q, gk_f s)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_u8, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ix = 0, iy = 0;
        GK_ND(i, n, rank, shape, { ix += r * sx.v[d]; iy += r * sy.v[d]; });
        y[iy] = GK_FWD(gk_load(x, ix), p, q, s) != 0;
    }
}

#if GK_IS_FLOAT
GK_KERNEL(unary_bwd_flat)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_OUT(gk_t, dx), gk_i64 n, int wide, int accumulate, gk_f p, gk_f q, gk_f s)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, dx);
    gk_i64 step = gk_gsize(), items = wide ? n / GK_W : 0, i = gk_gid();
    if (!accumulate) {
        for (; i + (GK_DEPTH / 2 - 1) * step < items; i += GK_DEPTH / 2 * step) {
            gk_vec a[GK_DEPTH / 2], g[GK_DEPTH / 2];
            GK_UNROLL for (int u = 0; u < GK_DEPTH / 2; u++) {
                g[u] = gk_loadv(dy, (i + u * step) * GK_W);
                a[u] = gk_loadv(x, (i + u * step) * GK_W);
            }
            GK_UNROLL for (int u = 0; u < GK_DEPTH / 2; u++) {
                GK_UNROLL for (int k = 0; k < GK_W; k++) a[u].v[k] = GK_BWD(g[u].v[k], a[u].v[k], p, q, s);
                gk_storev(dx, (i + u * step) * GK_W, a[u]);
            }
        }
    }
    for (; i < items; i += step) {
        gk_vec g = gk_loadv(dy, i * GK_W), a = gk_loadv(x, i * GK_W), o = a;
        if (accumulate) o = gk_loadv(dx, i * GK_W);
        GK_UNROLL for (int k = 0; k < GK_W; k++) {
            gk_f d = GK_BWD(g.v[k], a.v[k], p, q, s);
            o.v[k] = accumulate ? o.v[k] + d : d;
        }
        gk_storev(dx, i * GK_W, o);
    }
    for (i = items * GK_W + gk_gid(); i < n; i += step) {
        gk_f d = GK_BWD(gk_load(dy, i), gk_load(x, i), p, q, s);
        gk_store(dx, i, accumulate ? gk_load(dx, i) + d : d);
    }
}

GK_KERNEL(unary_bwd_nd)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_OUT(gk_t, dx), gk_i64 n, int rank, gk_dims shape, gk_dims sdy, gk_dims sx, gk_dims sdx,
                        int accumulate, gk_f p, gk_f q, gk_f s)
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

#elif GK_ARITY == 2

GK_KERNEL(binary_flat)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_t, y), gk_i64 n, int wide, gk_f p, gk_f q)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_t, y);
    gk_i64 step = gk_gsize(), items = wide ? n / GK_W : 0, i = gk_gid();
    for (; i + (GK_DEPTH / 2 - 1) * step < items; i += GK_DEPTH / 2 * step) {
        gk_vec u[GK_DEPTH / 2], v[GK_DEPTH / 2];
        GK_UNROLL for (int j = 0; j < GK_DEPTH / 2; j++) {
            u[j] = gk_loadv(a, (i + j * step) * GK_W);
            v[j] = gk_loadv(b, (i + j * step) * GK_W);
        }
        GK_UNROLL for (int j = 0; j < GK_DEPTH / 2; j++) {
            GK_UNROLL for (int k = 0; k < GK_W; k++) u[j].v[k] = GK_FWD(u[j].v[k], v[j].v[k], p, q);
            gk_storev(y, (i + j * step) * GK_W, u[j]);
        }
    }
    for (; i < items; i += step) {
        gk_vec u = gk_loadv(a, i * GK_W), v = gk_loadv(b, i * GK_W);
        GK_UNROLL for (int k = 0; k < GK_W; k++) u.v[k] = GK_FWD(u.v[k], v.v[k], p, q);
        gk_storev(y, i * GK_W, u);
    }
    for (i = items * GK_W + gk_gid(); i < n; i += step) gk_store(y, i, GK_FWD(gk_load(a, i), gk_load(b, i), p, q));
}

/* wide: 0, or 1 + 2 (a moves along the innermost axis) + 4 (b does) */
GK_KERNEL(binary_nd)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_t, y), gk_i64 n, int rank, gk_dims shape, gk_dims sa, gk_dims sb, gk_dims sy, int wide,
                     gk_f p, gk_f q)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ia = 0, ib = 0, iy = 0;
        GK_ND(i, n, rank, shape, { ia += r * sa.v[d]; ib += r * sb.v[d]; iy += r * sy.v[d]; });
        if (wide) {
            gk_vec u = gk_load_wide(a, ia, wide & 2), v = gk_load_wide(b, ib, wide & 4);
            GK_UNROLL for (int k = 0; k < GK_W; k++) u.v[k] = GK_FWD(u.v[k], v.v[k], p, q);
            gk_storev(y, iy, u);
        } else {
            gk_store(y, iy, GK_FWD(gk_load(a, ia), gk_load(b, ib), p, q));
        }
    }
}

/* y[i] = f(a[i], b[i]) != 0, as u8 */
GK_KERNEL(binary_mask)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_u8, y), gk_i64 n, int rank, gk_dims shape, gk_dims sa, gk_dims sb, gk_dims sy,
                       gk_f p, gk_f q)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_u8, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ia = 0, ib = 0, iy = 0;
        GK_ND(i, n, rank, shape, { ia += r * sa.v[d]; ib += r * sb.v[d]; iy += r * sy.v[d]; });
        y[iy] = GK_FWD(gk_load(a, ia), gk_load(b, ib), p, q) != 0;
    }
}

#if GK_IS_FLOAT
/* da (+)= the gradient with respect to the first operand, db likewise; either may be null. Both have the shape of dy: broadcast axes are
 * summed by a reduction afterwards. */
GK_KERNEL(binary_bwd_nd)(GK_IN(gk_t, dy), GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_t, da), GK_OUT(gk_t, db), gk_i64 n, int rank, gk_dims shape,
                         gk_dims sdy, gk_dims sa, gk_dims sb, gk_dims sda, gk_dims sdb, int wide, int acc_a, int acc_b, gk_f p, gk_f q)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_t, da); GK_BIND_OUT(gk_t, db);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ig = 0, ia = 0, ib = 0, ja = 0, jb = 0;
        GK_ND(i, n, rank, shape, { ig += r * sdy.v[d]; ia += r * sa.v[d]; ib += r * sb.v[d]; ja += r * sda.v[d]; jb += r * sdb.v[d]; });
        if (wide) {
            gk_vec g = gk_load_wide(dy, ig, wide & 8), u = gk_load_wide(a, ia, wide & 2), v = gk_load_wide(b, ib, wide & 4), oa, ob;
            if (da && acc_a) oa = gk_loadv(da, ja);
            if (db && acc_b) ob = gk_loadv(db, jb);
            GK_UNROLL for (int k = 0; k < GK_W; k++) {
                gk_f ga, gb;
                GK_BWD(g.v[k], u.v[k], v.v[k], p, q, &ga, &gb);
                oa.v[k] = acc_a ? oa.v[k] + ga : ga;
                ob.v[k] = acc_b ? ob.v[k] + gb : gb;
            }
            if (da) gk_storev(da, ja, oa);
            if (db) gk_storev(db, jb, ob);
        } else {
            gk_f ga, gb;
            GK_BWD(gk_load(dy, ig), gk_load(a, ia), gk_load(b, ib), p, q, &ga, &gb);
            if (da) gk_store(da, ja, acc_a ? gk_load(da, ja) + ga : ga);
            if (db) gk_store(db, jb, acc_b ? gk_load(db, jb) + gb : gb);
        }
    }
}
#endif

#else

GK_KERNEL(ternary_nd)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_t, c), GK_OUT(gk_t, y), gk_i64 n, int rank, gk_dims shape, gk_dims sa, gk_dims sb,
                      gk_dims sc, gk_dims sy, gk_f p)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(gk_t, c); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ia = 0, ib = 0, ic = 0, iy = 0;
        GK_ND(i, n, rank, shape, { ia += r * sa.v[d]; ib += r * sb.v[d]; ic += r * sc.v[d]; iy += r * sy.v[d]; });
        gk_store(y, iy, GK_FWD(gk_load(a, ia), gk_load(b, ib), gk_load(c, ic), p));
    }
}

/* Gradients at the shape of dy, each output contiguous there; any may be null. */
GK_KERNEL(ternary_bwd_nd)(GK_IN(gk_t, dy), GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_t, c), GK_OUT(gk_t, da), GK_OUT(gk_t, db), GK_OUT(gk_t, dc),
                          gk_i64 n, int rank, gk_dims shape, gk_dims sdy, gk_dims sa, gk_dims sb, gk_dims sc, gk_f p)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(gk_t, c);
    GK_BIND_OUT(gk_t, da); GK_BIND_OUT(gk_t, db); GK_BIND_OUT(gk_t, dc);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ig = 0, ia = 0, ib = 0, ic = 0;
        GK_ND(i, n, rank, shape, { ig += r * sdy.v[d]; ia += r * sa.v[d]; ib += r * sb.v[d]; ic += r * sc.v[d]; });
        gk_f ga, gb, gc;
        GK_BWD(gk_load(dy, ig), gk_load(a, ia), gk_load(b, ib), gk_load(c, ic), p, &ga, &gb, &gc);
        if (da) gk_store(da, i, ga);
        if (db) gk_store(db, i, gb);
        if (dc) gk_store(dc, i, gc);
    }
}

#endif
