/* Losses with one item per row. A loss NAME consists of
 *   NAME_first   what its first pass collects in m[0..2]: 0 nothing, 1 maxima, 2 sums (function NAME_collect)
 *   NAME_sums    how many sums its second pass collects in s (function NAME_add, from 1 on)
 *   NAME_item    the loss of the row from m and s
 *   NAME_grad    d[0..3] = derivatives of the item by element e of each input (of the row's one number where an input has one per row: it is
 *                taken from e = 0)
 *   NAME_weight  1 where rows have weights (function NAME_weigh)
 *   NAME_maxima  (where first is 1) how many maxima there are; NAME_rescale(d, s) makes sums relative to maxima that are d[k] larger
 *   NAME_four    1 (else not defined) where rows have four elements and NAME_grads takes all derivatives by those of the first input
 *   NAME_ready   1 (else not defined) where NAME_prepare puts what the derivatives of a row have in common into s
 *   NAME_sparse  1 (else not defined) where derivatives read the first input at the row's id alone
 *   NAME_ahead   1 (else not defined) where threads have the registers to read two vectors of f32 before they write the first gradient
 *   NAME_strided 1 (else not defined) where the elements of a row lie `width` apart: x [rows / width, len, width]
 * The inputs stand under the loss's variant of RowLoss in src/ops/loss_rows.rs, in order. GK_X0(e) ... GK_X3(e) read them,
 * GK_N0 ... GK_N3 the number of a row. Element `at` is in c already (all of them where `whole` is set: the row is one element).
 */
#include "loss_ops.h"

typedef struct {
    GK_GLOBAL const gk_t *x0, *x1, *x2, *x3;
    GK_GLOBAL const gk_u8* mask;
    GK_GLOBAL const int* ids;
    gk_i64 ids_at, len, width, id;
    int wide, flags;
    gk_f p0, p1, p2, p3;
    gk_f m[3], s[4], c[4];
    gk_i64 at;
    int whole;
} gk_rowcx;

#define GK_X0(e) ((e) == r->at ? r->c[0] : gk_load(r->x0, e))
#define GK_X1(e) ((e) == r->at ? r->c[1] : gk_load(r->x1, e))
#define GK_X2(e) ((e) == r->at ? r->c[2] : gk_load(r->x2, e))
#define GK_X3(e) ((e) == r->at ? r->c[3] : gk_load(r->x3, e))
#define GK_N0 (r->whole ? r->c[0] : gk_load(r->x0, 0))
#define GK_N1 (r->whole ? r->c[1] : gk_load(r->x1, 0))
#define GK_N2 (r->whole ? r->c[2] : gk_load(r->x2, 0))
#define GK_N3 (r->whole ? r->c[3] : gk_load(r->x3, 0))
#define GK_RESCALE(name) GK_FN void name##_rescale(const gk_rowcx* r, const gk_f* d, gk_f* s)
#define GK_COLLECT(name) GK_FN void name##_collect(const gk_rowcx* r, gk_i64 e, gk_f* m)
#define GK_LOSS_ADD(name) GK_FN void name##_add(const gk_rowcx* r, gk_i64 e, gk_f* s)
#define GK_ITEM(name) GK_FN gk_f name##_item(const gk_rowcx* r)
#define GK_LOSS_GRAD(name) GK_FN void name##_grad(const gk_rowcx* r, gk_i64 e, gk_f* d)
#define GK_DELTA(e) ((e) == r->id ? GK_R(1.0) : GK_R(0.0))

/* ---- embeddings ---------------------------------------------------------------------------------------------------------------- */

/* p0 = margin, p1 = degree, p2 = eps; flags: 1 = swap, 2 = squared. F.triplet_margin_loss; Schroff et al. (2015). gk_row_triplet is the loss of
 * degree 2: pow() would take most of the time. */
#define gk_row_triplet_first 0
#define gk_row_triplet_sums 3
#define gk_row_triplet_weight 0
#define gk_row_triplet_degree_first 0
#define gk_row_triplet_degree_sums 3
#define gk_row_triplet_degree_weight 0
GK_FN gk_f gk_degree(gk_f x, gk_f p) { return p == GK_R(2.0) ? x * x : p == GK_R(1.0) ? gk_fabs(x) : gk_pow(gk_fabs(x), p); }
GK_FN gk_f gk_degree_root(gk_f s, gk_f p) { return p == GK_R(2.0) ? gk_sqrt(s) : p == GK_R(1.0) ? s : gk_pow(s, GK_R(1.0) / p); }
/* Derivative of a norm by a component x; inverse: 1 / norm, 0 where the norm is 0. */
GK_FN gk_f gk_degree_grad(gk_f x, gk_f inverse, gk_f p)
{
    if (p == GK_R(2.0)) return x * inverse;
    if (inverse == GK_R(0.0)) return inverse;
    return gk_sgn(x) * (p == GK_R(1.0) ? GK_R(1.0) : gk_pow(gk_fabs(x) * inverse, p - GK_R(1.0)));
}
GK_FN void gk_triplet_add(const gk_rowcx* r, gk_f degree, gk_i64 e, gk_f* s)
{
    gk_f a = GK_X0(e), p = GK_X1(e), q = GK_X2(e);
    if (r->flags & 2) {
        /* (a - p)^2 - (a - q)^2 element by element: the difference of their sums would keep what rounding took from either. */
        s[0] += ((a - p) - (a - q)) * ((a - p) + (a - q));
        return;
    }
    s[0] += gk_degree(a - p + r->p2, degree);
    s[1] += gk_degree(a - q + r->p2, degree);
    if (r->flags & 1) s[2] += gk_degree(p - q + r->p2, degree);
}
GK_FN gk_f gk_triplet_item(const gk_rowcx* r, gk_f degree)
{
    if (r->flags & 2) return gk_max(r->s[0] + r->p0, GK_R(0.0));
    gk_f far = gk_degree_root(r->s[1], degree);
    if (r->flags & 1) far = gk_min(far, gk_degree_root(r->s[2], degree));
    return gk_max(gk_degree_root(r->s[0], degree) - far + r->p0, GK_R(0.0));
}
/* s[0], s[1]: inverses of the distances to the near one (from the anchor) and to the far one (0 where that is 0); s[2]: 1 where the latter is the
 * near one's (swap); s[3]: 1 where the loss is 0. */
GK_FN void gk_triplet_prepare(gk_rowcx* r, gk_f degree)
{
    gk_f flat = gk_triplet_item(r, degree) <= GK_R(0.0) ? GK_R(1.0) : GK_R(0.0), far = gk_degree_root(r->s[1], degree);
    gk_f near = gk_degree_root(r->s[0], degree), swapped = r->flags & 1 ? gk_degree_root(r->s[2], degree) : far;
    r->s[2] = swapped < far ? GK_R(1.0) : GK_R(0.0);
    if (swapped < far) far = swapped;
    r->s[0] = near == GK_R(0.0) ? near : GK_R(1.0) / near;
    r->s[1] = far == GK_R(0.0) ? far : GK_R(1.0) / far;
    r->s[3] = flat;
}
GK_FN void gk_triplet_grad(const gk_rowcx* r, gk_f degree, gk_i64 e, gk_f* d)
{
    gk_f a = GK_X0(e), p = GK_X1(e), q = GK_X2(e), near, far;
    if (r->s[3] != GK_R(0.0)) return;
    if (r->flags & 2) {
        d[0] = GK_R(2.0) * (q - p); d[1] = GK_R(-2.0) * (a - p); d[2] = GK_R(2.0) * (a - q);
        return;
    }
    near = gk_degree_grad(a - p + r->p2, r->s[0], degree);
    far = gk_degree_grad((r->s[2] != GK_R(0.0) ? p : a) - q + r->p2, r->s[1], degree);
    d[0] = r->s[2] != GK_R(0.0) ? near : near - far;
    d[1] = r->s[2] != GK_R(0.0) ? -near - far : -near;
    d[2] = far;
}
#define gk_row_triplet_ready 1
#define gk_row_triplet_degree_ready 1
GK_LOSS_ADD(gk_row_triplet) { gk_triplet_add(r, GK_R(2.0), e, s); }
GK_ITEM(gk_row_triplet) { return gk_triplet_item(r, GK_R(2.0)); }
GK_FN void gk_row_triplet_prepare(gk_rowcx* r) { gk_triplet_prepare(r, GK_R(2.0)); }
GK_LOSS_GRAD(gk_row_triplet) { gk_triplet_grad(r, GK_R(2.0), e, d); }
GK_LOSS_ADD(gk_row_triplet_degree) { gk_triplet_add(r, r->p1, e, s); }
GK_ITEM(gk_row_triplet_degree) { return gk_triplet_item(r, r->p1); }
GK_FN void gk_row_triplet_degree_prepare(gk_rowcx* r) { gk_triplet_prepare(r, r->p1); }
GK_LOSS_GRAD(gk_row_triplet_degree) { gk_triplet_grad(r, r->p1, e, d); }

/* p0 = margin, p1 = factor; y = 1 similar. Hadsell et al. (2006) */
#define gk_row_contrastive_first 0
#define gk_row_contrastive_sums 1
#define gk_row_contrastive_weight 0
GK_LOSS_ADD(gk_row_contrastive) { gk_f x = GK_X0(e) - GK_X1(e); s[0] += x * x; }
GK_ITEM(gk_row_contrastive)
{
    gk_f y = GK_N2, z = gk_max(r->p0 - gk_sqrt(r->s[0]), GK_R(0.0));
    return r->p1 * (y * r->s[0] + (GK_R(1.0) - y) * z * z);
}
GK_LOSS_GRAD(gk_row_contrastive)
{
    gk_f y = GK_N2, n = gk_sqrt(r->s[0]), c = y;
    if (n > GK_R(0.0)) c -= (GK_R(1.0) - y) * gk_max(r->p0 - n, GK_R(0.0)) / n;
    d[0] = r->p1 * GK_R(2.0) * (GK_X0(e) - GK_X1(e)) * c;
    d[1] = -d[0];
}

/* p0 = eps, p1 = factor of 1 - cos. F.cosine_similarity; Grill et al. (2020) */
#define gk_row_cosine_first 0
#define gk_row_cosine_sums 3
#define gk_row_cosine_weight 0
GK_LOSS_ADD(gk_row_cosine) { gk_f u = GK_X0(e), v = GK_X1(e); s[0] += u * v; s[1] += u * u; s[2] += v * v; }
GK_ITEM(gk_row_cosine)
{
    return r->p1 * (GK_R(1.0) - r->s[0] / (gk_max(gk_sqrt(r->s[1]), r->p0) * gk_max(gk_sqrt(r->s[2]), r->p0)));
}
GK_LOSS_GRAD(gk_row_cosine)
{
    gk_f u = GK_X0(e), v = GK_X1(e), a = gk_sqrt(r->s[1]), b = gk_sqrt(r->s[2]), na = gk_max(a, r->p0), nb = gk_max(b, r->p0),
        c = r->s[0] / (na * nb);
    d[0] = -r->p1 * (v / nb - (a > r->p0 ? c * u / na : GK_R(0.0))) / na;
    d[1] = -r->p1 * (u / na - (b > r->p0 ? c * v / nb : GK_R(0.0))) / nb;
}

/* p0 = margin, y = 1 or -1. F.cosine_embedding_loss */
#define gk_row_cosine_embedding_first 0
#define gk_row_cosine_embedding_sums 3
#define gk_row_cosine_embedding_weight 0
GK_LOSS_ADD(gk_row_cosine_embedding) { gk_row_cosine_add(r, e, s); }
GK_FN gk_f gk_embedding_cos(const gk_rowcx* r) { return r->s[0] / (gk_sqrt(r->s[1] + GK_R(1e-12)) * gk_sqrt(r->s[2] + GK_R(1e-12))); }
GK_ITEM(gk_row_cosine_embedding)
{
    gk_f c = gk_embedding_cos(r), y = GK_N2;
    return y == GK_R(1.0) ? GK_R(1.0) - c : y == GK_R(-1.0) ? gk_max(c - r->p0, GK_R(0.0)) : GK_R(0.0);
}
GK_LOSS_GRAD(gk_row_cosine_embedding)
{
    gk_f u = GK_X0(e), v = GK_X1(e), a = gk_sqrt(r->s[1] + GK_R(1e-12)), b = gk_sqrt(r->s[2] + GK_R(1e-12)), c = r->s[0] / (a * b), y = GK_N2;
    gk_f f = y == GK_R(1.0) ? GK_R(-1.0) : y == GK_R(-1.0) && c > r->p0 ? GK_R(1.0) : GK_R(0.0);
    d[0] = f * (v / b - c * u / a) / a;
    d[1] = f * (u / a - c * v / b) / b;
}

/* flags: 1 = scores are corrected by the log noise probabilities. Gutmann and Hyvarinen (2010) */
#define gk_row_nce_first 0
#define gk_row_nce_sums 1
#define gk_row_nce_weight 0
/* ln K + log noise probability */
GK_FN gk_f gk_nce_shift(const gk_rowcx* r, gk_f logq) { return gk_log((gk_f)r->len) + logq; }
GK_FN gk_f gk_nce_true(const gk_rowcx* r)
{
    gk_f s = GK_N0;
    if (r->flags & 1) s -= gk_nce_shift(r, GK_N2);
    return s;
}
GK_FN gk_f gk_nce_noise(const gk_rowcx* r, gk_i64 e)
{
    gk_f s = GK_X1(e);
    if (r->flags & 1) s -= gk_nce_shift(r, GK_X3(e));
    return s;
}
GK_LOSS_ADD(gk_row_nce) { s[0] += gk_softp(gk_nce_noise(r, e)); }
GK_ITEM(gk_row_nce) { return gk_softp(-gk_nce_true(r)) + r->s[0]; }
GK_LOSS_GRAD(gk_row_nce) { d[0] = -gk_sigm(-gk_nce_true(r)); d[1] = gk_sigm(gk_nce_noise(r, e)); }

/* ---- classes ------------------------------------------------------------------------------------------------------------------- */

/* p0 = m+, p1 = m-, p2 = lambda. Sabour et al. (2017) */
#define gk_row_capsule_first 0
#define gk_row_capsule_sums 1
#define gk_row_capsule_weight 0
GK_LOSS_ADD(gk_row_capsule)
{
    gk_f v = GK_X0(e), t = GK_X1(e), a = gk_max(r->p0 - v, GK_R(0.0)), b = gk_max(v - r->p1, GK_R(0.0));
    s[0] += t * a * a + r->p2 * (GK_R(1.0) - t) * b * b;
}
GK_ITEM(gk_row_capsule) { return r->s[0]; }
GK_LOSS_GRAD(gk_row_capsule)
{
    gk_f v = GK_X0(e), t = GK_X1(e);
    d[0] = GK_R(-2.0) * t * gk_max(r->p0 - v, GK_R(0.0)) + GK_R(2.0) * r->p2 * (GK_R(1.0) - t) * gk_max(v - r->p1, GK_R(0.0));
}

/* p0 = label smoothing, p1 = floor of the probability */
#define gk_row_categorical_first 0
#define gk_row_categorical_sums 1
#define gk_row_categorical_weight 0
GK_FN gk_f gk_smoothed(const gk_rowcx* r, gk_i64 e) { return (GK_R(1.0) - r->p0) * GK_X1(e) + r->p0 / (gk_f)r->len; }
GK_LOSS_ADD(gk_row_categorical) { s[0] -= gk_smoothed(r, e) * gk_log(gk_max(GK_X0(e), r->p1)); }
GK_ITEM(gk_row_categorical) { return r->s[0]; }
GK_LOSS_GRAD(gk_row_categorical) { gk_f p = GK_X0(e); d[0] = p < r->p1 ? GK_R(0.0) : -gk_smoothed(r, e) / p; }

/* flags as gk_loss_kl. F.kl_div(reduction = 'batchmean') */
#define gk_row_kl_ahead 1
#define gk_row_kl_first 0
#define gk_row_kl_sums 1
#define gk_row_kl_weight 0
GK_LOSS_ADD(gk_row_kl) { s[0] += gk_loss_kl(GK_X0(e), GK_X1(e), gk_make_lp(GK_R(0.0), GK_R(0.0), r->flags)); }
GK_ITEM(gk_row_kl) { return r->s[0]; }
GK_LOSS_GRAD(gk_row_kl) { d[0] = gk_loss_kl_grad(GK_X0(e), GK_X1(e), gk_make_lp(GK_R(0.0), GK_R(0.0), r->flags)); }

/* flags: 1 = probabilities with floor p0, else log-probabilities; class weights may be absent. Classes lie `width` apart. F.nll_loss */
#define gk_row_nll_first 0
#define gk_row_nll_sums 0
#define gk_row_nll_weight 1
#define gk_row_nll_strided 1
#define gk_row_nll_sparse 1
GK_FN gk_f gk_row_nll_weigh(const gk_rowcx* r) { return r->x1 ? GK_X1(r->id) : GK_R(1.0); }
GK_ITEM(gk_row_nll)
{
    gk_f v = GK_X0(r->id * r->width);
    if (r->flags & 1) v = gk_log(gk_max(v, r->p0));
    return -gk_row_nll_weigh(r) * v;
}
GK_LOSS_GRAD(gk_row_nll)
{
    if (e != r->id) return;
    gk_f w = gk_row_nll_weigh(r), v = GK_X0(e * r->width);
    d[0] = !(r->flags & 1) ? -w : v < r->p0 ? GK_R(0.0) : -w / v;
}

/* p0 = gamma; class weights may be absent. Lin et al. (2017) with a softmax */
#define gk_row_focal_ahead 1
#define gk_row_focal_first 1
#define gk_row_focal_maxima 1
#define gk_row_focal_sums 1
#define gk_row_focal_weight 0
GK_COLLECT(gk_row_focal) { m[0] = gk_max(m[0], GK_X0(e)); }
GK_LOSS_ADD(gk_row_focal) { s[0] += gk_exp(GK_X0(e) - r->m[0]); }
GK_FN gk_f gk_focal_logp(const gk_rowcx* r) { return GK_X0(r->id) - r->m[0] - gk_log(r->s[0]); }
GK_RESCALE(gk_row_focal) { s[0] *= gk_exp(d[0]); }
GK_ITEM(gk_row_focal)
{
    gk_f lp = gk_focal_logp(r);
    return -(r->x1 ? GK_X1(r->id) : GK_R(1.0)) * gk_focal_power(-gk_expm1(lp), r->p0) * lp;
}
/* s[1]: what the derivatives have in common, s[0]: the inverse of the sum. */
#define gk_row_focal_ready 1
GK_FN void gk_row_focal_prepare(gk_rowcx* r)
{
    gk_f lp = gk_focal_logp(r), u = -gk_expm1(lp), w = r->x1 ? GK_X1(r->id) : GK_R(1.0), c = GK_R(-1.0);
    if (r->p0 != GK_R(0.0) && u > GK_R(0.0)) c += r->p0 * gk_exp(lp) * lp / u;
    r->s[1] = w * gk_focal_power(u, r->p0) * c;
    r->s[0] = GK_R(1.0) / r->s[0];
}
GK_LOSS_GRAD(gk_row_focal) { d[0] = r->s[1] * (GK_DELTA(e) - gk_exp(GK_X0(e) - r->m[0]) * r->s[0]); }

/* Logits, or score - thresholds. Cao et al. (2020), CORAL */
#define gk_row_ordinal_first 0
#define gk_row_ordinal_sums 2
#define gk_row_ordinal_weight 0
GK_FN gk_f gk_ordinal_logit(const gk_rowcx* r, gk_i64 e) { return r->x0 ? GK_X0(e) : GK_N1 - GK_X2(e); }
GK_FN gk_f gk_ordinal_slope(const gk_rowcx* r, gk_i64 e) { return gk_sigm(gk_ordinal_logit(r, e)) - (r->id > e ? GK_R(1.0) : GK_R(0.0)); }
GK_LOSS_ADD(gk_row_ordinal)
{
    gk_f f = gk_ordinal_logit(r, e);
    s[0] += gk_softp(r->id > e ? -f : f);
    s[1] += gk_ordinal_slope(r, e);
}
GK_ITEM(gk_row_ordinal) { return r->s[0]; }
GK_LOSS_GRAD(gk_row_ordinal) { d[0] = gk_ordinal_slope(r, e); d[1] = r->s[1]; d[2] = -d[0]; }

/* p0 = T, p1 = alpha; flags: 1 = with labels. Hinton et al. (2015) */
#define gk_row_distillation_ahead 1
#define gk_row_distillation_first 1
#define gk_row_distillation_maxima 2
#define gk_row_distillation_sums 4
#define gk_row_distillation_weight 0
GK_COLLECT(gk_row_distillation) { m[0] = gk_max(m[0], GK_X0(e)); m[1] = gk_max(m[1], GK_X1(e)); }
GK_LOSS_ADD(gk_row_distillation)
{
    gk_f z = GK_X0(e) - r->m[0], y = GK_X1(e) - r->m[1], cool = GK_R(1.0) / r->p0, q = gk_exp(y * cool);
    if (r->flags & 1) s[0] += gk_exp(z);
    s[1] += gk_exp(z * cool);
    s[2] += q;
    s[3] += q * (y - z) * cool;
}
GK_RESCALE(gk_row_distillation)
{
    gk_f f = gk_exp(d[1] / r->p0);
    s[0] *= gk_exp(d[0]);
    s[1] *= gk_exp(d[0] / r->p0);
    s[3] = f * (s[3] + s[2] * (d[1] - d[0]) / r->p0);
    s[2] *= f;
}
GK_ITEM(gk_row_distillation)
{
    gk_f kl = r->p0 * r->p0 * (r->s[3] / r->s[2] - gk_log(r->s[2]) + gk_log(r->s[1]));
    if (!(r->flags & 1)) return kl;
    return r->p1 * (r->m[0] + gk_log(r->s[0]) - GK_X0(r->id)) + (GK_R(1.0) - r->p1) * kl;
}
GK_LOSS_GRAD(gk_row_distillation)
{
    gk_f z = GK_X0(e) - r->m[0], y = GK_X1(e) - r->m[1], cool = GK_R(1.0) / r->p0;
    gk_f soft = r->p0 * (gk_exp(z * cool) * (GK_R(1.0) / r->s[1]) - gk_exp(y * cool) * (GK_R(1.0) / r->s[2]));
    d[0] = r->flags & 1 ? r->p1 * (gk_exp(z) * (GK_R(1.0) / r->s[0]) - GK_DELTA(e)) + (GK_R(1.0) - r->p1) * soft : soft;
}

/* p0 = student's temperature, p1 = teacher's. Caron et al. (2021) */
#define gk_row_dino_first 1
#define gk_row_dino_maxima 2
#define gk_row_dino_sums 3
#define gk_row_dino_weight 0
GK_COLLECT(gk_row_dino) { m[0] = gk_max(m[0], GK_X0(e)); m[1] = gk_max(m[1], GK_X1(e) - GK_X2(e)); }
GK_LOSS_ADD(gk_row_dino)
{
    gk_f z = (GK_X0(e) - r->m[0]) / r->p0, q = gk_exp((GK_X1(e) - GK_X2(e) - r->m[1]) / r->p1);
    s[0] += gk_exp(z);
    s[1] += q;
    s[2] += q * z;
}
GK_RESCALE(gk_row_dino)
{
    gk_f f = gk_exp(d[1] / r->p1);
    s[0] *= gk_exp(d[0] / r->p0);
    s[2] = f * (s[2] + s[1] * (d[0] / r->p0));
    s[1] *= f;
}
GK_ITEM(gk_row_dino) { return gk_log(r->s[0]) - r->s[2] / r->s[1]; }
GK_LOSS_GRAD(gk_row_dino)
{
    d[0] = (gk_exp((GK_X0(e) - r->m[0]) / r->p0) / r->s[0] - gk_exp((GK_X1(e) - GK_X2(e) - r->m[1]) / r->p1) / r->s[1]) / r->p0;
}

/* p0 = scale, p1 = margin, with the easy-margin rule. Deng et al. (2019) */
#define gk_row_arcface_first 1
#define gk_row_arcface_maxima 1
#define gk_row_arcface_sums 1
#define gk_row_arcface_weight 0
GK_FN gk_f gk_arcface_logit(const gk_rowcx* r, gk_i64 e)
{
    gk_f c = GK_X0(e);
    return r->p0 * (e == r->id && c > GK_R(0.0) ? gk_cos(gk_acos(c) + r->p1) : c);
}
GK_COLLECT(gk_row_arcface) { m[0] = gk_max(m[0], gk_arcface_logit(r, e)); }
GK_LOSS_ADD(gk_row_arcface) { s[0] += gk_exp(gk_arcface_logit(r, e) - r->m[0]); }
GK_RESCALE(gk_row_arcface) { s[0] *= gk_exp(d[0]); }
GK_ITEM(gk_row_arcface) { return r->m[0] + gk_log(r->s[0]) - gk_arcface_logit(r, r->id); }
GK_LOSS_GRAD(gk_row_arcface)
{
    gk_f c = GK_X0(e), slope = r->p0;
    if (e == r->id && c > GK_R(0.0)) slope *= gk_sin(gk_acos(c) + r->p1) / gk_sqrt(GK_R(1.0) - c * c);
    d[0] = slope * (gk_exp(gk_arcface_logit(r, e) - r->m[0]) / r->s[0] - GK_DELTA(e));
}

/* p0 = coefficient: coef * logsumexp^2. Chowdhery et al. (2022) */
#define gk_row_z_first 1
#define gk_row_z_maxima 1
#define gk_row_z_sums 1
#define gk_row_z_weight 0
GK_COLLECT(gk_row_z) { m[0] = gk_max(m[0], GK_X0(e)); }
GK_LOSS_ADD(gk_row_z) { s[0] += gk_exp(GK_X0(e) - r->m[0]); }
GK_RESCALE(gk_row_z) { s[0] *= gk_exp(d[0]); }
GK_ITEM(gk_row_z) { gk_f l = r->m[0] + gk_log(r->s[0]); return r->p0 * l * l; }
GK_LOSS_GRAD(gk_row_z) { d[0] = GK_R(2.0) * r->p0 * (r->m[0] + gk_log(r->s[0])) * gk_exp(GK_X0(e) - r->m[0]) / r->s[0]; }

/* p0 = margin; flags: degree 1 or 2; class weights may be absent. F.multi_margin_loss */
#define gk_row_multi_margin_first 0
#define gk_row_multi_margin_sums 2
#define gk_row_multi_margin_weight 0
GK_FN gk_f gk_multi_margin_gap(const gk_rowcx* r, gk_i64 e) { return e == r->id ? GK_R(0.0) : gk_max(r->p0 - GK_X0(r->id) + GK_X0(e), GK_R(0.0)); }
GK_FN gk_f gk_multi_margin_slope(const gk_rowcx* r, gk_f z) { return z > GK_R(0.0) ? (r->flags == 2 ? GK_R(2.0) * z : GK_R(1.0)) : GK_R(0.0); }
GK_FN gk_f gk_multi_margin_factor(const gk_rowcx* r) { return (r->x1 ? GK_X1(r->id) : GK_R(1.0)) / (gk_f)r->len; }
GK_LOSS_ADD(gk_row_multi_margin)
{
    gk_f z = gk_multi_margin_gap(r, e);
    s[0] += r->flags == 2 ? z * z : z;
    s[1] += gk_multi_margin_slope(r, z);
}
GK_ITEM(gk_row_multi_margin) { return gk_multi_margin_factor(r) * r->s[0]; }
GK_LOSS_GRAD(gk_row_multi_margin) { d[0] = gk_multi_margin_factor(r) * (e == r->id ? -r->s[1] : gk_multi_margin_slope(r, gk_multi_margin_gap(r,
    e))); }

/* Labels of a row: class ids up to the first negative one. F.multilabel_margin_loss */
#define gk_row_multilabel_margin_first 0
#define gk_row_multilabel_margin_sums 1
#define gk_row_multilabel_margin_weight 0
GK_FN gk_i64 gk_label(const gk_rowcx* r, gk_i64 j)
{
    gk_i64 id = j < r->len ? gk_index(r->ids, r->ids_at + j, r->wide) : -1;
    return id < r->len ? id : -1;
}
/* How often class e stands among the labels: each mention counts. */
GK_FN gk_i64 gk_label_count(const gk_rowcx* r, gk_i64 e)
{
    gk_i64 n = 0;
    for (gk_i64 j = 0, id; (id = gk_label(r, j)) >= 0; j++) n += id == e;
    return n;
}
GK_LOSS_ADD(gk_row_multilabel_margin)
{
    if (gk_label_count(r, e)) return;
    for (gk_i64 j = 0, id; (id = gk_label(r, j)) >= 0; j++) s[0] += gk_max(GK_R(1.0) - GK_X0(id) + GK_X0(e), GK_R(0.0));
}
GK_ITEM(gk_row_multilabel_margin) { return r->s[0] / (gk_f)r->len; }
GK_LOSS_GRAD(gk_row_multilabel_margin)
{
    gk_i64 times = gk_label_count(r, e);
    gk_f x = GK_X0(e), n = GK_R(0.0);
    if (times) {
        for (gk_i64 i = 0; i < r->len; i++)
            if (GK_R(1.0) - x + GK_X0(i) > GK_R(0.0) && !gk_label_count(r, i)) n -= (gk_f)times;
    } else
        for (gk_i64 j = 0, id; (id = gk_label(r, j)) >= 0; j++)
            if (GK_R(1.0) - GK_X0(id) + x > GK_R(0.0)) n += GK_R(1.0);
    d[0] = n / (gk_f)r->len;
}

/* Class weights may be absent. F.multilabel_soft_margin_loss */
#define gk_row_multilabel_soft_first 0
#define gk_row_multilabel_soft_sums 1
#define gk_row_multilabel_soft_weight 0
GK_LOSS_ADD(gk_row_multilabel_soft)
{
    gk_f x = GK_X0(e);
    s[0] += (r->x2 ? GK_X2(e) : GK_R(1.0)) * (gk_softp(x) - GK_X1(e) * x);
}
GK_ITEM(gk_row_multilabel_soft) { return r->s[0] / (gk_f)r->len; }
GK_LOSS_GRAD(gk_row_multilabel_soft) { d[0] = (r->x2 ? GK_X2(e) : GK_R(1.0)) * (gk_sigm(GK_X0(e)) - GK_X1(e)) / (gk_f)r->len; }
