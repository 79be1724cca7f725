/* Gradients of reductions: dy is repeated along the reduced axes. GK_OP names the function.
 *
 *   dx[i] (+)= g(dy[o(i)], x[i], s[o(i)], t[o(i)])     s and t: statistics of the slice (the saved result y, or recomputed in gk_f)
 * Operands are strided over dx's shape with merged axes, the innermost last; strides count elements. With bit 0 of `wide` an item is GK_W elements
 * of the innermost axis, of which bit 1 (dy) and bit 2 (y) say that the operand does not repeat there.
 * Launch: grid-stride over items. Arithmetic in gk_f. Deterministic. Reference: autograd of torch.<function>.
 */
#include "common/prelude/strided.h"

/* Kinds of units: 0 = reductions, 1 = positions of extremes, 2 = dot. */
#define gk_redb_arg_kind 1
#define gk_redb_dot_kind 2
#define GK_KIND GK_CAT(GK_OP, _kind)

#define GK_BWD_OF(name, value) \
    GK_FN gk_f name(gk_f dy, gk_f x, gk_f s, gk_f t, gk_f l, gk_f p, gk_f q) { return value; }
#define GK_REDUCE_SIGN(x) ((x) > GK_R(0.0) ? GK_R(1.0) : (x) < GK_R(0.0) ? GK_R(-1.0) : (x))

#if GK_KIND == 0

GK_BWD_OF(gk_redb_sum, dy)
/* p = number of elements */
GK_BWD_OF(gk_redb_mean, dy / p)
GK_BWD_OF(gk_redb_sumsq, GK_R(2.0) * x * dy)
/* s = product of the elements that are not 0, t = number of zeros */
GK_BWD_OF(gk_redb_prod, t == GK_R(0.0) ? dy * (s / x) : t == GK_R(1.0) && x == GK_R(0.0) ? dy * s : GK_R(0.0))
/* s = extreme, t = number of elements equal to it: 0 if it is NaN, which makes the gradient NaN */
GK_BWD_OF(gk_redb_extreme, (x == s ? dy : GK_R(0.0)) / t)
GK_BWD_OF(gk_redb_magnitude, (gk_fabs(x) == s ? dy * GK_REDUCE_SIGN(x) : GK_R(0.0)) / t)
/* s + l = mean in two parts, t = variance (t and l side by side), p = count - correction (0 if not positive), q = eps */
#define gk_redb_var_pair 1
#define gk_redb_std_pair 1
#define gk_redb_logvar_pair 1
GK_BWD_OF(gk_redb_var, dy * GK_R(2.0) * (x - s - l) / p)
GK_BWD_OF(gk_redb_std, t == GK_R(0.0) ? GK_R(0.0) : dy * (x - s - l) / (p * gk_sqrt(t)))
GK_BWD_OF(gk_redb_logvar, dy * GK_R(2.0) * (x - s - l) / (p * (t + q)))
/* s = norm, p = degree */
GK_BWD_OF(gk_redb_norm0, GK_R(0.0))
GK_BWD_OF(gk_redb_norm1, GK_REDUCE_SIGN(x) * dy)
GK_BWD_OF(gk_redb_norm2, s == GK_R(0.0) ? GK_R(0.0) : x / s * dy)
GK_BWD_OF(gk_redb_normp, s == GK_R(0.0) || x == GK_R(0.0) ? GK_R(0.0) : GK_REDUCE_SIGN(x) * gk_pow(gk_fabs(x) / s, p - GK_R(1.0)) * dy)
/* s = log-sum-exp */
GK_BWD_OF(gk_redb_lse, s == -GK_INF ? GK_R(0.0) : gk_exp(x - s) * dy)

#if GK_CAT(GK_OP, _pair)
#define GK_SECOND(t, i) (t)[2 * (i)]
#define GK_THIRD(t, i) (t)[2 * (i) + 1]
#else
#define GK_SECOND(t, i) ((t) ? (t)[i] : GK_R(0.0))
#define GK_THIRD(t, i) GK_R(0.0)
#endif

typedef struct {
    gk_dims shape, sdx, sdy, sx, sy, ss;
    gk_i64 step_s;
    gk_f p, q;
} gk_reduce_bwd_args;

// Units: FLOATS64 x BACKWARD_FLOATS
GK_KERNEL(reduce_bwd)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, y), GK_IN(gk_f, s), GK_IN(gk_f, t), GK_OUT(gk_t, dx), gk_i64 n, int rank,
                      int wide, int accumulate, GK_BY_VALUE(gk_reduce_bwd_args, args))
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, y); GK_BIND_IN(gk_f, s); GK_BIND_IN(gk_f, t); GK_BIND_OUT(gk_t, dx);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 o = 0, ig = 0, ix = 0, iy = 0, is = 0;
        GK_ND(i, n, rank, args.shape,
            { o += r * args.sdx.v[d]; ig += r * args.sdy.v[d]; ix += r * args.sx.v[d]; iy += r * args.sy.v[d]; is += r * args.ss.v[d]; });
        if (wide) {
            gk_vec g = gk_loadv_if(dy, ig, wide & 2, GK_R(0.0)), a = gk_loadv_if(x, ix, x != 0, GK_R(0.0));
            gk_vec b = gk_loadv_if(y, iy, y && (wide & 4), GK_R(0.0)), out = gk_loadv_if(dx, o, accumulate, GK_R(0.0));
            gk_f g1 = wide & 2 ? GK_R(0.0) : gk_load(dy, ig), b1 = y && !(wide & 4) ? gk_load(y, iy) : GK_R(0.0);
            GK_UNROLL for (int k = 0; k < GK_W; k++) {
                gk_i64 at = is + k * args.step_s;
                gk_f u = y ? (wide & 4 ? b.v[k] : b1) : s ? s[at] : GK_R(0.0);
                gk_f e = GK_OP(wide & 2 ? g.v[k] : g1, x ? a.v[k] : GK_R(0.0), u, GK_SECOND(t, at), GK_THIRD(t, at), args.p, args.q);
                out.v[k] = accumulate ? out.v[k] + e : e;
            }
            gk_storev(dx, o, out);
        } else {
            gk_f u = y ? gk_load(y, iy) : s ? s[is] : GK_R(0.0);
            gk_f e = GK_OP(gk_load(dy, ig), x ? gk_load(x, ix) : GK_R(0.0), u, GK_SECOND(t, is), GK_THIRD(t, is), args.p, args.q);
            gk_store(dx, o, accumulate ? gk_load(dx, o) + e : e);
        }
    }
}

#elif GK_KIND == 1

// Units: FLOATS64 x BACKWARD_ARG
/* dx[i] (+)= dy where the coordinate of i on the axis is the saved position, else 0. `sc` has stride 1 on that axis and 0 elsewhere; `wide`: the
 * index is i64. With `items`, which does not add, an item is GK_W elements of the innermost axis, along which the operands step by `step` (dy,
 * index, coordinate), and a block takes GK_ARG_RUNS runs of them. */
#define GK_ARG_RUNS 4
typedef struct { gk_dims step; int items; } gk_arg_items;
GK_KERNEL(arg_reduce_bwd)(GK_IN(gk_t, dy), GK_IN(gk_u8, index), GK_OUT(gk_t, dx), GK_OUT(int, err), gk_i64 n, gk_i64 size, int rank, GK_DIMS(shape),
                          GK_DIMS(sdx), GK_DIMS(sdy), GK_DIMS(si), GK_DIMS(sc), int wide, int accumulate, int code, GK_BY_VALUE(gk_arg_items, args))
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_u8, index); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(int, err);
    if (args.items) {
        for (gk_i64 first = (gk_i64)gk_bid(0) * (GK_BLOCK * GK_ARG_RUNS) + gk_lid(); first < n; first += gk_gsize() * GK_ARG_RUNS) {
            GK_UNROLL for (int u = 0; u < GK_ARG_RUNS; u++) {
                gk_i64 i = first + u * GK_BLOCK, o = 0, ig = 0, ii = 0, c = 0, at = 0;
                if (i >= n) break;
                GK_ND(i, n, rank, shape, { o += r * sdx.v[d]; ig += r * sdy.v[d]; ii += r * si.v[d]; c += r * sc.v[d]; });
                gk_vec v;
                gk_f g = GK_R(0.0);
                GK_UNROLL for (int k = 0; k < GK_W; k++) {
                    if (k == 0 || args.step.v[1]) {
                        at = gk_index(index, ii + k * args.step.v[1], wide);
                        if (at < 0 || at >= size) gk_report(err, code);
                    }
                    if (k == 0 || args.step.v[0]) g = gk_load(dy, ig + k * args.step.v[0]);
                    v.v[k] = at == c + k * args.step.v[2] ? g : GK_R(0.0);
                }
                gk_storev(dx, o, v);
            }
        }
        return;
    }
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 o = 0, ig = 0, ii = 0, c = 0;
        GK_ND(i, n, rank, shape, { o += r * sdx.v[d]; ig += r * sdy.v[d]; ii += r * si.v[d]; c += r * sc.v[d]; });
        gk_i64 at = gk_index(index, ii, wide);
        if (at < 0 || at >= size) gk_report(err, code);
        gk_f e = at == c ? gk_load(dy, ig) : GK_R(0.0);
        if (!accumulate) gk_store(dx, o, e);
        else if (at == c) gk_store(dx, o, gk_load(dx, o) + e);
    }
}

#else

// Units: FLOATS64 x BACKWARD_DOT
/* da (+)= dy * b and db (+)= dy * a; either may be null. */
GK_KERNEL(dot_bwd)(GK_IN(gk_t, dy), GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_t, da), GK_OUT(gk_t, db), gk_i64 n, int rank, GK_DIMS(shape),
                   GK_DIMS(sdy), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sda), GK_DIMS(sdb), int wide, int acc_a, int acc_b)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_t, da); GK_BIND_OUT(gk_t, db);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ig = 0, ia = 0, ib = 0, oa = 0, ob = 0;
        GK_ND(i, n, rank, shape, { ig += r * sdy.v[d]; ia += r * sa.v[d]; ib += r * sb.v[d]; oa += r * sda.v[d]; ob += r * sdb.v[d]; });
        gk_f g = gk_load(dy, ig);
        if (wide) {
            if (da) {
                gk_vec v = gk_loadv(b, ib), o = gk_loadv_if(da, oa, acc_a, GK_R(0.0));
                GK_UNROLL for (int k = 0; k < GK_W; k++) o.v[k] = acc_a ? o.v[k] + g * v.v[k] : g * v.v[k];
                gk_storev(da, oa, o);
            }
            if (db) {
                gk_vec v = gk_loadv(a, ia), o = gk_loadv_if(db, ob, acc_b, GK_R(0.0));
                GK_UNROLL for (int k = 0; k < GK_W; k++) o.v[k] = acc_b ? o.v[k] + g * v.v[k] : g * v.v[k];
                gk_storev(db, ob, o);
            }
        } else {
            if (da) gk_store(da, oa, (acc_a ? gk_load(da, oa) : GK_R(0.0)) + g * gk_load(b, ib));
            if (db) gk_store(db, ob, (acc_b ? gk_load(db, ob) : GK_R(0.0)) + g * gk_load(a, ia));
        }
    }
}

#endif
