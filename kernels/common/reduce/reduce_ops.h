/* Reductions as states: GK_OP names one of the functions below; its class says what a thread carries along.
 *
 *   gk_state              what is known of the elements seen so far
 *   gk_begin()            of none
 *   gk_take(s, v, n, ...)  takes in the n values v[0..n], n a constant power of two; at + k * step is the position of v[k]
 *   gk_reduce_merge(a, b)         of both sets
 *   gk_end(s, ...)        the results
 */

#define GK_CLASS_SUM 1      /* sum of a function of the elements, in two floats */
#define GK_CLASS_PROD 2     /* product */
#define GK_CLASS_EXTREME 3  /* largest or smallest of a function of the elements; NaN wins */
#define GK_CLASS_MOMENTS 4  /* count, mean and sum of squared deviations */
#define GK_CLASS_NORM2 5    /* sums of squares of large, common and small elements */
#define GK_CLASS_LSE 6      /* maximum and sum of exponentials relative to it */
#define GK_CLASS_ARG 7      /* extreme and its first position */
#define GK_CLASS_RANGE 8    /* smallest and largest */
#define GK_CLASS_TIES 9     /* extreme and how many elements equal it */
#define GK_CLASS_FACTORS 10 /* product of the elements that are not 0, and how many are */
#define GK_CLASS GK_CAT(GK_OP, _class)

#if GK_DTYPE == GK_I64
#define GK_LOWEST (-0x7fffffffffffffffll - 1)
#define GK_HIGHEST 0x7fffffffffffffffll
#elif !GK_IS_FLOAT
#define GK_LOWEST (-0x7fffffff - 1)
#define GK_HIGHEST 0x7fffffff
#else
#define GK_LOWEST (-GK_INF)
#define GK_HIGHEST GK_INF
#endif

#if GK_IS_FLOAT
#define GK_MAGNITUDE(x) gk_fabs(x)
#else
#define GK_MAGNITUDE(x) ((x) < 0 ? -(x) : (x))
#endif

/* ---- functions: what is summed or compared (map, of x and the parameter p), and what becomes of it (end, of the total s and the count n) --------
 * */

#define GK_SUM_OF(name, map, end) \
    GK_FN gk_f name##_map(gk_f x, gk_f p) { return map; } \
    GK_FN gk_f name##_end(gk_f s, gk_f n, gk_f p) { return end; }
#define gk_red_sum_class GK_CLASS_SUM
#define gk_red_mean_class GK_CLASS_SUM
#define gk_red_sumsq_class GK_CLASS_SUM
#define gk_red_norm0_class GK_CLASS_SUM
#define gk_red_norm1_class GK_CLASS_SUM
#define gk_red_normp_class GK_CLASS_SUM
#define gk_red_dot_class GK_CLASS_SUM
#define gk_red_dot_pair 1
GK_SUM_OF(gk_red_sum, x, s)
#if GK_IS_FLOAT
GK_SUM_OF(gk_red_mean, x, s / n)
GK_SUM_OF(gk_red_sumsq, x * x, s)
GK_SUM_OF(gk_red_norm0, x != GK_R(0.0) ? GK_R(1.0) : GK_R(0.0), s)
GK_SUM_OF(gk_red_norm1, gk_fabs(x), s)
GK_SUM_OF(gk_red_normp, gk_pow(gk_fabs(x), p), gk_pow(s, GK_R(1.0) / p))
GK_SUM_OF(gk_red_dot, x, s)
#endif

#define GK_EXTREME_OF(name, map, end) \
    GK_FN gk_f name##_map(gk_f x) { return map; } \
    GK_FN gk_f name##_end(gk_f s) { return end; }
#define gk_red_max_class GK_CLASS_EXTREME
#define gk_red_max_up 1
#define gk_red_min_class GK_CLASS_EXTREME
#define gk_red_min_up 0
#define gk_red_maxabs_class GK_CLASS_EXTREME
#define gk_red_maxabs_up 1
#define gk_red_minabs_class GK_CLASS_EXTREME
#define gk_red_minabs_up 0
#define gk_red_any_class GK_CLASS_EXTREME
#define gk_red_any_up 1
#define gk_red_all_class GK_CLASS_EXTREME
#define gk_red_all_up 0
GK_EXTREME_OF(gk_red_max, x, s)
GK_EXTREME_OF(gk_red_min, x, s)
GK_EXTREME_OF(gk_red_maxabs, GK_MAGNITUDE(x), s)
GK_EXTREME_OF(gk_red_minabs, GK_MAGNITUDE(x), s)
GK_EXTREME_OF(gk_red_any, x != 0, s > 0)
GK_EXTREME_OF(gk_red_all, x != 0, s != 0)

#define gk_red_max_ties_class GK_CLASS_TIES
#define gk_red_max_ties_up 1
#define gk_red_max_ties_map gk_red_max_map
#define gk_red_min_ties_class GK_CLASS_TIES
#define gk_red_min_ties_up 0
#define gk_red_min_ties_map gk_red_min_map
#define gk_red_maxabs_ties_class GK_CLASS_TIES
#define gk_red_maxabs_ties_up 1
#define gk_red_maxabs_ties_map gk_red_maxabs_map
#define gk_red_minabs_ties_class GK_CLASS_TIES
#define gk_red_minabs_ties_up 0
#define gk_red_minabs_ties_map gk_red_minabs_map

#define gk_red_argmax_class GK_CLASS_ARG
#define gk_red_argmax_up 1
#define gk_red_argmin_class GK_CLASS_ARG
#define gk_red_argmin_up 0

/* y and z of n elements with mean `mean` and variance `var`; q is added to the variance of log_var */
#define gk_red_var_class GK_CLASS_MOMENTS
#define gk_red_var_end(mean, var, q) (var)
#define gk_red_std_class GK_CLASS_MOMENTS
#define gk_red_std_end(mean, var, q) gk_sqrt(var)
#define gk_red_logvar_class GK_CLASS_MOMENTS
#define gk_red_logvar_end(mean, var, q) gk_log((var) + (q))
#define gk_red_meanvar_class GK_CLASS_MOMENTS
#define gk_red_meanvar_end(mean, var, q) (mean)

#define gk_red_prod_class GK_CLASS_PROD
#define gk_red_norm2_class GK_CLASS_NORM2
#define gk_red_lse_class GK_CLASS_LSE
#define gk_red_minmax_class GK_CLASS_RANGE
#define gk_red_factors_class GK_CLASS_FACTORS

#define GK_MAP GK_CAT(GK_OP, _map)
#define GK_END GK_CAT(GK_OP, _end)
#if GK_CLASS == GK_CLASS_EXTREME || GK_CLASS == GK_CLASS_TIES || GK_CLASS == GK_CLASS_ARG
#define GK_UP GK_CAT(GK_OP, _up)
#if GK_UP
#define gk_pick gk_max
#define gk_better(a, b) ((a) > (b))
#define GK_WORST GK_LOWEST
#else
#define gk_pick gk_min
#define gk_better(a, b) ((a) < (b))
#define GK_WORST GK_HIGHEST
#endif
#endif

/* v[0] = combine over v[0..n] as a tree */
#define GK_TREE(v, n, combine) \
    GK_UNROLL for (int w = (n) / 2; w > 0; w /= 2) \
        GK_UNROLL for (int k = 0; k < w; k++) (v)[k] = combine((v)[k], (v)[k + w])

/* ---- states ---------------------------------------------------------------------------------------------------------------- */

#if GK_CLASS == GK_CLASS_SUM && GK_IS_FLOAT

/* v[0] is the running sum, v[1] the sum of the rounding errors it made (Knuth's exact addition), so the error does not grow with the count. */
typedef struct { gk_f v[2]; } gk_state;
#define GK_REDUCE_FIELDS 2
GK_FN gk_state gk_begin(void) { gk_state s; s.v[0] = s.v[1] = GK_R(0.0); return s; }
GK_FN void gk_add_exact(gk_state* s, gk_f x)
{
    gk_f a = s->v[0], t = a + x, b = t - a;
    s->v[1] += (a - (t - b)) + (x - b);
    s->v[0] = t;
}
GK_FN void gk_take(gk_state* s, gk_f* v, int n, gk_i64 at, gk_i64 step, gk_f p)
{
    GK_UNROLL for (int k = 0; k < n; k++) v[k] = GK_MAP(v[k], p);
    GK_TREE(v, n, gk_add);
    gk_add_exact(s, v[0]);
}
GK_FN gk_state gk_reduce_merge(gk_state a, gk_state b)
{
    gk_add_exact(&a, b.v[0]);
    a.v[1] += b.v[1];
    return a;
}
/* The errors of a sum that met infinity are NaN and mean nothing. */
GK_FN gk_f gk_total(gk_state s) { gk_f t = s.v[0] + s.v[1]; return gk_isnan(t) ? s.v[0] : t; }

#elif GK_CLASS == GK_CLASS_SUM

typedef struct { gk_i64 v[1]; } gk_state;
GK_FN gk_state gk_begin(void) { gk_state s; s.v[0] = 0; return s; }
GK_FN void gk_take(gk_state* s, gk_f* v, int n, gk_i64 at, gk_i64 step, gk_f p)
{
    GK_UNROLL for (int k = 0; k < n; k++) s->v[0] += v[k];
}
GK_FN gk_state gk_reduce_merge(gk_state a, gk_state b) { a.v[0] += b.v[0]; return a; }

#elif GK_CLASS == GK_CLASS_PROD

typedef struct { gk_f v[1]; } gk_state;
#define GK_REDUCE_FIELDS 1
GK_FN gk_state gk_begin(void) { gk_state s; s.v[0] = GK_R(1.0); return s; }
GK_FN void gk_take(gk_state* s, gk_f* v, int n, gk_i64 at, gk_i64 step, gk_f p)
{
    GK_UNROLL for (int k = 0; k < n; k++) s->v[0] *= v[k];
}
GK_FN gk_state gk_reduce_merge(gk_state a, gk_state b) { a.v[0] *= b.v[0]; return a; }

#elif GK_CLASS == GK_CLASS_FACTORS

typedef struct { gk_f v[2]; } gk_state;
#define GK_REDUCE_FIELDS 2
GK_FN gk_state gk_begin(void) { gk_state s; s.v[0] = GK_R(1.0); s.v[1] = GK_R(0.0); return s; }
GK_FN void gk_take(gk_state* s, gk_f* v, int n, gk_i64 at, gk_i64 step, gk_f p)
{
    GK_UNROLL for (int k = 0; k < n; k++) {
        s->v[1] += v[k] == GK_R(0.0) ? GK_R(1.0) : GK_R(0.0);
        s->v[0] *= v[k] == GK_R(0.0) ? GK_R(1.0) : v[k];
    }
}
GK_FN gk_state gk_reduce_merge(gk_state a, gk_state b) { a.v[0] *= b.v[0]; a.v[1] += b.v[1]; return a; }

#elif GK_CLASS == GK_CLASS_EXTREME

typedef struct { gk_f v[1]; } gk_state;
#define GK_REDUCE_FIELDS 1
GK_FN gk_state gk_begin(void) { gk_state s; s.v[0] = GK_WORST; return s; }
GK_FN void gk_take(gk_state* s, gk_f* v, int n, gk_i64 at, gk_i64 step, gk_f p)
{
    GK_UNROLL for (int k = 0; k < n; k++) v[k] = GK_MAP(v[k]);
    GK_TREE(v, n, gk_pick);
    s->v[0] = gk_pick(s->v[0], v[0]);
}
GK_FN gk_state gk_reduce_merge(gk_state a, gk_state b) { a.v[0] = gk_pick(a.v[0], b.v[0]); return a; }

#elif GK_CLASS == GK_CLASS_RANGE

typedef struct { gk_f v[2]; } gk_state;
#define GK_REDUCE_FIELDS 2
GK_FN gk_state gk_begin(void) { gk_state s; s.v[0] = GK_HIGHEST; s.v[1] = GK_LOWEST; return s; }
GK_FN void gk_take(gk_state* s, gk_f* v, int n, gk_i64 at, gk_i64 step, gk_f p)
{
    GK_UNROLL for (int k = 0; k < n; k++) {
        s->v[0] = gk_min(s->v[0], v[k]);
        s->v[1] = gk_max(s->v[1], v[k]);
    }
}
GK_FN gk_state gk_reduce_merge(gk_state a, gk_state b) { a.v[0] = gk_min(a.v[0], b.v[0]); a.v[1] = gk_max(a.v[1], b.v[1]); return a; }

#elif GK_CLASS == GK_CLASS_TIES

/* A NaN equals nothing, so its count stays 0. */
typedef struct { gk_f v[2]; } gk_state;
#define GK_REDUCE_FIELDS 2
GK_FN gk_state gk_begin(void) { gk_state s; s.v[0] = GK_WORST; s.v[1] = 0; return s; }
GK_FN gk_state gk_reduce_merge(gk_state a, gk_state b)
{
    gk_f m = gk_pick(a.v[0], b.v[0]);
    a.v[1] = (a.v[0] == m ? a.v[1] : 0) + (b.v[0] == m ? b.v[1] : 0);
    a.v[0] = m;
    return a;
}
GK_FN void gk_take(gk_state* s, gk_f* v, int n, gk_i64 at, gk_i64 step, gk_f p)
{
    GK_UNROLL for (int k = 0; k < n; k++) {
        gk_state one;
        one.v[0] = GK_MAP(v[k]);
        one.v[1] = 1;
        *s = gk_reduce_merge(*s, one);
    }
}

#elif GK_CLASS == GK_CLASS_ARG

/* Position -1: nothing seen yet. */
typedef struct { gk_f v[1]; gk_i64 at; } gk_state;
#define GK_REDUCE_FIELDS 1
GK_FN gk_state gk_begin(void) { gk_state s; s.v[0] = GK_WORST; s.at = -1; return s; }
GK_FN gk_state gk_reduce_merge(gk_state a, gk_state b)
{
    if (a.at < 0) return b;
    if (b.at < 0) return a;
    int same = a.v[0] == b.v[0] || (gk_isnan(a.v[0]) && gk_isnan(b.v[0]));
    int first = same ? a.at < b.at : gk_isnan(a.v[0]) || (!gk_isnan(b.v[0]) && gk_better(a.v[0], b.v[0]));
    return first ? a : b;
}
/* A thread meets its positions in rising order. */
GK_FN void gk_take(gk_state* s, gk_f* v, int n, gk_i64 at, gk_i64 step, gk_f p)
{
    GK_UNROLL for (int k = 0; k < n; k++) {
        int take = s->at < 0 || (!gk_isnan(s->v[0]) && (gk_isnan(v[k]) || gk_better(v[k], s->v[0])));
        if (take) { s->v[0] = v[k]; s->at = at + k * step; }
    }
}

#elif GK_CLASS == GK_CLASS_MOMENTS

/* v = count, mean, sum of squared deviations, and what rounding took from the mean: where a slice spreads over a few roundings of its mean, the
 * deviations are found from both parts. Each batch of values is taken in two passes (mean, then deviations); batches are combined by the formula of
 * Chan, Golub and LeVeque (1979). */
typedef struct { gk_f v[4]; } gk_state;
#define GK_REDUCE_FIELDS 4
GK_FN gk_state gk_begin(void) { gk_state s; s.v[0] = s.v[1] = s.v[2] = s.v[3] = GK_R(0.0); return s; }
GK_FN gk_state gk_reduce_merge(gk_state a, gk_state b)
{
    if (b.v[0] == GK_R(0.0)) return a;
    if (a.v[0] == GK_R(0.0)) return b;
    gk_f n = a.v[0] + b.v[0], d = (b.v[1] - a.v[1]) + (b.v[3] - a.v[3]), w = b.v[0] / n;
    int far = !(gk_fabs(d) < GK_INF); /* an infinity, a NaN, or a distance beyond the range */
    gk_f step = a.v[3] + d * w, mean = far ? a.v[1] * (a.v[0] / n) + b.v[1] * w : a.v[1] + step;
    a.v[2] += b.v[2] + d * d * (a.v[0] * w);
    a.v[3] = far ? GK_R(0.0) : step - (mean - a.v[1]);
    a.v[1] = mean;
    a.v[0] = n;
    return a;
}
GK_FN void gk_take(gk_state* s, gk_f* v, int n, gk_i64 at, gk_i64 step, gk_f p)
{
    gk_f t[GK_BATCH];
    gk_state b;
    b.v[0] = (gk_f)n;
    GK_UNROLL for (int k = 0; k < n; k++) t[k] = v[k];
    GK_TREE(t, n, gk_add);
    b.v[1] = t[0] / (gk_f)n;
    GK_UNROLL for (int k = 0; k < n; k++) t[k] = v[k] - b.v[1];
    GK_TREE(t, n, gk_add);
    b.v[3] = gk_fabs(b.v[1]) < GK_INF ? t[0] / (gk_f)n : GK_R(0.0);
    GK_UNROLL for (int k = 0; k < n; k++) { gk_f e = v[k] - b.v[1] - b.v[3]; t[k] = e * e; }
    GK_TREE(t, n, gk_add);
    b.v[2] = t[0];
    *s = gk_reduce_merge(*s, b);
}

#elif GK_CLASS == GK_CLASS_NORM2

/* v = sums of squares of elements that would overflow, of common ones, and of ones that would underflow; the outer two scaled (Blue, 1978). */
typedef struct { gk_f v[3]; } gk_state;
#define GK_REDUCE_FIELDS 3
#if GK_DTYPE == GK_F64
#define GK_BIG gk_as_f64(0x5f30000000000000ul)        /* 2^500 */
#define GK_BIG_SCALE gk_as_f64(0x1a70000000000000ul)  /* 2^-600 */
#define GK_SMALL gk_as_f64(0x20b0000000000000ul)      /* 2^-500 */
#define GK_SMALL_SCALE gk_as_f64(0x6570000000000000ul) /* 2^600 */
#else
#define GK_BIG gk_as_f32(0x53800000u)         /* 2^40 */
#define GK_BIG_SCALE gk_as_f32(0x12800000u)   /* 2^-90 */
#define GK_SMALL gk_as_f32(0x20000000u)       /* 2^-63 */
#define GK_SMALL_SCALE gk_as_f32(0x6c800000u) /* 2^90 */
#endif
GK_FN gk_state gk_begin(void) { gk_state s; s.v[0] = s.v[1] = s.v[2] = GK_R(0.0); return s; }
GK_FN void gk_take(gk_state* s, gk_f* v, int n, gk_i64 at, gk_i64 step, gk_f p)
{
    GK_UNROLL for (int k = 0; k < n; k++) {
        gk_f m = gk_fabs(v[k]);
        int big = m > GK_BIG, small = m < GK_SMALL;
        if (big) { gk_f t = m * GK_BIG_SCALE; s->v[0] += t * t; }
        if (small) { gk_f t = m * GK_SMALL_SCALE; s->v[2] += t * t; }
        v[k] = big || small ? GK_R(0.0) : m * m;
    }
    GK_TREE(v, n, gk_add);
    s->v[1] += v[0];
}
GK_FN gk_state gk_reduce_merge(gk_state a, gk_state b)
{
    GK_UNROLL for (int k = 0; k < 3; k++) a.v[k] += b.v[k];
    return a;
}
GK_FN gk_f gk_norm(gk_state s)
{
    if (gk_isnan(s.v[1])) return s.v[1];
    if (s.v[0] > GK_R(0.0)) {
        gk_f t = gk_sqrt(s.v[1]) * GK_BIG_SCALE;
        return gk_sqrt(s.v[0] + t * t) / GK_BIG_SCALE;
    }
    if (s.v[1] > GK_R(0.0)) {
        gk_f t = gk_sqrt(s.v[2]) / GK_SMALL_SCALE;
        return gk_sqrt(s.v[1] + t * t);
    }
    return gk_sqrt(s.v[2]) / GK_SMALL_SCALE;
}

#elif GK_CLASS == GK_CLASS_LSE

/* v = maximum m and sum of exp(x - ref(m)); ref makes infinite maxima harmless. */
typedef struct { gk_f v[2]; } gk_state;
#define GK_REDUCE_FIELDS 2
GK_FN gk_f gk_ref(gk_f m) { return gk_isinf(m) ? GK_R(0.0) : m; }
/* s relative to m, as relative to the larger m2 */
GK_FN gk_f gk_rescale(gk_f s, gk_f m, gk_f m2)
{
    return m == m2 ? s : m == -GK_INF ? GK_R(0.0) : s * gk_exp(m - m2);
}
GK_FN gk_state gk_begin(void) { gk_state s; s.v[0] = -GK_INF; s.v[1] = GK_R(0.0); return s; }
GK_FN gk_state gk_reduce_merge(gk_state a, gk_state b)
{
    gk_f m = gk_max(a.v[0], b.v[0]);
    a.v[1] = gk_rescale(a.v[1], a.v[0], m) + gk_rescale(b.v[1], b.v[0], m);
    a.v[0] = m;
    return a;
}
GK_FN void gk_take(gk_state* s, gk_f* v, int n, gk_i64 at, gk_i64 step, gk_f p)
{
    gk_f t[GK_BATCH];
    gk_state b;
    GK_UNROLL for (int k = 0; k < n; k++) t[k] = v[k];
    GK_TREE(t, n, gk_max);
    b.v[0] = gk_max(s->v[0], t[0]);
    gk_f ref = gk_ref(b.v[0]);
    GK_UNROLL for (int k = 0; k < n; k++) v[k] = gk_exp(v[k] - ref);
    GK_TREE(v, n, gk_add);
    b.v[1] = gk_rescale(s->v[1], s->v[0], b.v[0]) + v[0];
    *s = b;
}

#endif

/* ---- results --------------------------------------------------------------------------------------------------------------- */

/* Stores a result as the storage type, or as the arithmetic type if `stat` is set. */
GK_FN void gk_put(GK_GLOBAL gk_u8* p, gk_i64 i, gk_f x, int stat, int accumulate)
{
    if (stat) {
        ((GK_GLOBAL gk_f*)p)[i] = x;
    } else {
        GK_GLOBAL gk_t* q = (GK_GLOBAL gk_t*)p;
        gk_store(q, i, accumulate ? gk_load(q, i) + x : x);
    }
}

/* y[iy] (and z[iz], unless null) of `count` elements. `form` is 1 for results in the arithmetic type, or for positions as i64; then the second
 * result of moments is a pair, the variance and what rounding took from the mean. */
GK_FN void gk_end(GK_GLOBAL gk_u8* y, GK_GLOBAL gk_u8* z, gk_i64 iy, gk_i64 iz, gk_state s, gk_i64 count, int form, int accumulate, gk_f p, gk_f q)
{
#if GK_CLASS == GK_CLASS_SUM && GK_IS_FLOAT
    gk_put(y, iy, GK_END(gk_total(s), (gk_f)count, p), form, accumulate);
#elif GK_CLASS == GK_CLASS_SUM
    ((GK_GLOBAL gk_i64*)y)[iy] = s.v[0];
#elif GK_CLASS == GK_CLASS_EXTREME
    gk_put(y, iy, GK_END(s.v[0]), form, 0);
#elif GK_CLASS == GK_CLASS_NORM2
    gk_put(y, iy, gk_norm(s), form, 0);
#elif GK_CLASS == GK_CLASS_LSE
    gk_put(y, iy, gk_log(s.v[1]) + gk_ref(s.v[0]), form, 0);
#elif GK_CLASS == GK_CLASS_MOMENTS
    gk_f free = (gk_f)count - p, var = free > GK_R(0.0) ? s.v[2] / free : GK_NAN;
    gk_f mean = count > 0 ? s.v[1] : GK_NAN;
    gk_put(y, iy, GK_END(mean, var, q), form, 0);
    if (z) gk_put(z, iz, var, form, 0);
    if (z && form) gk_put(z, iz + 1, s.v[3], form, 0);
#elif GK_CLASS == GK_CLASS_ARG
    gk_store_index(y, iy, form, s.at);
    if (z) gk_put(z, iz, s.v[0], 0, 0);
#else
    gk_put(y, iy, s.v[0], form, 0);
#if GK_CLASS != GK_CLASS_PROD
    if (z) gk_put(z, iz, s.v[1], form, 0);
#endif
#endif
}

/* ---- combining the states of threads ----------------------------------------------------------------------------------------- */

#if defined(gk_shuffle_xor) && GK_IS_FLOAT
GK_FN gk_state gk_exchange(gk_state s, int mask)
{
    GK_UNROLL for (int k = 0; k < GK_REDUCE_FIELDS; k++) s.v[k] = gk_shuffle_xor(s.v[k], mask);
#if GK_CLASS == GK_CLASS_ARG
    int hi = gk_shuffle_xor_i32((int)(s.at >> 32), mask), lo = gk_shuffle_xor_i32((int)s.at, mask);
    s.at = ((gk_i64)hi << 32) | (gk_u32)lo;
#endif
    return s;
}
#endif

/* Combines the states of runs of `lanes` threads (a power of two); the first of each run gets the result. All threads of the block call it;
 * the order depends on `lanes` alone. */
GK_FN gk_state gk_gather_states(gk_state s, GK_LOCAL_PTR gk_state* tmp, int lanes)
{
    int t = gk_lid();
#if defined(gk_shuffle_xor) && GK_IS_FLOAT
    for (int m = 1; m < lanes && m < GK_SHUFFLE_WIDTH; m <<= 1) s = gk_reduce_merge(s, gk_exchange(s, m));
    if (lanes > GK_SHUFFLE_WIDTH) {
        int per = lanes / GK_SHUFFLE_WIDTH;
        if (t % GK_SHUFFLE_WIDTH == 0) tmp[t / GK_SHUFFLE_WIDTH] = s;
        GK_BARRIER();
        if ((t & (lanes - 1)) == 0)
            for (int k = 1; k < per; k++) s = gk_reduce_merge(s, tmp[t / GK_SHUFFLE_WIDTH + k]);
        GK_BARRIER();
    }
#else
    if (lanes == 1) return s;
    tmp[t] = s;
    GK_BARRIER();
    for (int m = lanes / 2; m > 0; m >>= 1) {
        if ((t & (lanes - 1)) < m) tmp[t] = gk_reduce_merge(tmp[t], tmp[t + m]);
        GK_BARRIER();
    }
    s = tmp[t];
    GK_BARRIER();
#endif
    return s;
}
