/* Softmax and log-softmax along an axis of a contiguous tensor [outer, K, inner], forward and backward. GK_OP names the function.
 *
 *   softmax:     y = e^(x - m) / s             dx (+)= y * (dy - sum of dy * y)
 *   log-softmax: y = x - m - ln s              dx (+)= dy - e^y * sum of dy             m = max x, s = sum of e^(x - m) along the axis
 *
 * softmax/registers.c has rows (inner = 1) that threads hold in registers, softmax/rows.c rows of any length, softmax/columns.c inner > 1.
 * Arithmetic in gk_f. Deterministic. A slice of only -inf, or with +inf or NaN, is all NaN. Output and input may be one tensor.
 * Reference: torch.softmax, torch.log_softmax; Milakov and Gimelshein, 2018 (one-pass normaliser).
 */
#include "common/prelude/rows.h"
#define gk_softmax_log 0
#define gk_log_softmax_log 1
#if GK_CAT(GK_OP, _log)
#define GK_OUT_OF(x, m, r) ((x) - (m) - (r))
#define GK_SCALE_OF(s) gk_log(s)
#define GK_TERM(g, y) ((void)(y), (g))
#define GK_SOFTMAX_GRAD(g, y, t) ((g) - gk_exp_t(y) * (t))
#else
#define GK_OUT_OF(x, m, r) (gk_exp_t((x) - (m)) * (r))
#define GK_SCALE_OF(s) (GK_R(1.0) / (s))
#define GK_TERM(g, y) ((g) * (y))
#define GK_SOFTMAX_GRAD(g, y, t) ((y) * ((g) - (t)))
#endif

#define GK_SOFTMAX_DEPTH 4 /* 16-byte accesses in flight per thread */
#define GK_SOFTMAX_GROUP 32 /* threads that exchange without barriers on current GPUs */
#define GK_SOFTMAX_RUNS (2 * GK_BLOCK / GK_SOFTMAX_GROUP)

/* The larger number in one instruction. A NaN is not seen by the maximum, but by the sum of exponentials. */
#define gk_fmax(a, b) GK_M(fmax)(a, b)
/* Maximum and sum of exponentials relative to it. */
typedef struct { gk_f m, s; } gk_norm;
GK_FN gk_norm gk_norm_begin(void) { gk_norm n; n.m = -GK_INF; n.s = GK_R(0.0); return n; }
/* The sum relative to m instead of n.m <= m; beside -inf it is 0, or NaN where one was seen. */
GK_FN gk_f gk_norm_at(gk_norm n, gk_f m) { return n.m == m || n.m == -GK_INF ? n.s : n.s * gk_exp_t(n.m - m); }
/* Takes in n values, n a constant power of two; v is used up. */
GK_FN void gk_norm_take(gk_norm* a, gk_f* v, const int n)
{
    gk_f m = a->m;
    GK_UNROLL for (int k = 0; k < n; k++) m = gk_fmax(m, v[k]);
    gk_f from = m == -GK_INF ? GK_R(0.0) : m;
    GK_UNROLL for (int k = 0; k < n; k++) v[k] = gk_exp_t(v[k] - from);
    GK_UNROLL for (int w = n / 2; w > 0; w /= 2)
        GK_UNROLL for (int k = 0; k < w; k++) v[k] += v[k + w];
    a->s = v[0] + gk_norm_at(*a, m);
    a->m = m;
}
/* Combines the statistics of runs of `lanes` threads, at most GK_SOFTMAX_GROUP; result in all of them. */
GK_FN gk_norm gk_norm_combine_group(gk_norm a, GK_LOCAL_PTR gk_f* tmp, int lanes)
{
    gk_norm r;
    r.m = gk_group_max(a.m, tmp, lanes);
    r.s = gk_group_sum(gk_norm_at(a, r.m), tmp, lanes);
    return r;
}
/* Combines statistics that the threads of each group share already, over `lanes` threads; runs: GK_SOFTMAX_RUNS numbers. */
GK_FN gk_norm gk_norm_combine_groups(gk_norm a, GK_LOCAL_PTR gk_f* tmp, GK_LOCAL_PTR gk_f* runs, int lanes)
{
    int t = gk_lid(), g = t / GK_SOFTMAX_GROUP, per = lanes / GK_SOFTMAX_GROUP, from = g / per * per + (t & (per - 1));
    GK_BARRIER();
    if (t % GK_SOFTMAX_GROUP == 0) { runs[2 * g] = a.m; runs[2 * g + 1] = a.s; }
    GK_BARRIER();
    a.m = runs[2 * from];
    a.s = runs[2 * from + 1];
    return gk_norm_combine_group(a, tmp, per);
}
/* Combines the statistics of runs of `lanes` threads; result in all of them. */
GK_FN gk_norm gk_norm_combine_rows(gk_norm a, GK_LOCAL_PTR gk_f* tmp, GK_LOCAL_PTR gk_f* runs, int lanes)
{
    a = gk_norm_combine_group(a, tmp, lanes < GK_SOFTMAX_GROUP ? lanes : GK_SOFTMAX_GROUP);
    return lanes > GK_SOFTMAX_GROUP ? gk_norm_combine_groups(a, tmp, runs, lanes) : a;
}
/* What the outputs need besides m; NaN for a slice of only -inf or with +inf. */
GK_FN gk_f gk_norm_scale(gk_norm a) { return gk_isinf(a.m) ? GK_NAN : GK_SCALE_OF(a.s); }
