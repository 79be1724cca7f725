/* Row losses, continued: segmentation, boxes, states, depth, densities, preferences. Conventions in loss/row_ops.h. */

/* ---- regions ------------------------------------------------------------------------------------------------------------------- */

/* p0 = smooth; flags: 1 = squared, 2 = logits. Milletari et al. (2016) */
#define gk_row_dice_first 0
#define gk_row_dice_sums 3
#define gk_row_dice_weight 0
GK_FN gk_f gk_dice_p(const gk_rowcx* r, gk_i64 e) { return r->flags & 2 ? gk_sigm(GK_X0(e)) : GK_X0(e); }
GK_LOSS_ADD(gk_row_dice)
{
    gk_f p = gk_dice_p(r, e), t = GK_X1(e);
    s[0] += p * t;
    s[1] += r->flags & 1 ? p * p : p;
    s[2] += r->flags & 1 ? t * t : t;
}
GK_ITEM(gk_row_dice)
{
    gk_f n = r->s[1] + r->s[2] + r->p0;
    return n == GK_R(0.0) ? n : GK_R(1.0) - (GK_R(2.0) * r->s[0] + r->p0) / n;
}
GK_LOSS_GRAD(gk_row_dice)
{
    gk_f p = gk_dice_p(r, e), n = r->s[1] + r->s[2] + r->p0;
    if (n == GK_R(0.0)) return;
    d[0] = -(GK_R(2.0) * GK_X1(e) - (GK_R(2.0) * r->s[0] + r->p0) / n * (r->flags & 1 ? GK_R(2.0) * p : GK_R(1.0))) / n;
    if (r->flags & 2) d[0] *= p * (GK_R(1.0) - p);
}

/* p0 = a, p1 = b, p2 = smooth, p3 = gamma. Salehi et al. (2017); a = b = 1: Jaccard */
#define gk_row_tversky_first 0
#define gk_row_tversky_sums 3
#define gk_row_tversky_weight 0
GK_LOSS_ADD(gk_row_tversky)
{
    gk_f p = GK_X0(e), t = GK_X1(e);
    s[0] += p * t;
    s[1] += p * (GK_R(1.0) - t);
    s[2] += (GK_R(1.0) - p) * t;
}
GK_FN gk_f gk_tversky_den(const gk_rowcx* r) { return r->s[0] + r->p0 * r->s[1] + r->p1 * r->s[2] + r->p2; }
/* 1 - index, without cancellation */
GK_FN gk_f gk_tversky_miss(const gk_rowcx* r)
{
    gk_f n = gk_tversky_den(r);
    return n == GK_R(0.0) ? n : (r->p0 * r->s[1] + r->p1 * r->s[2]) / n;
}
GK_ITEM(gk_row_tversky) { gk_f u = gk_tversky_miss(r); return r->p3 == GK_R(1.0) ? u : gk_pow(u, r->p3); }
GK_LOSS_GRAD(gk_row_tversky)
{
    gk_f n = gk_tversky_den(r), t = GK_X1(e), u = gk_tversky_miss(r);
    if (n == GK_R(0.0)) return;
    d[0] = -(t - (r->s[0] + r->p2) / n * (t + r->p0 * (GK_R(1.0) - t) - r->p1 * t)) / n;
    if (r->p3 != GK_R(1.0)) d[0] *= u > GK_R(0.0) ? r->p3 * gk_pow(u, r->p3 - GK_R(1.0)) : GK_R(0.0);
}

/* Boxes x1 y1 x2 y2; p0 = eps; flags: 0 IoU, 1 GIoU, 2 DIoU, 3 CIoU. The gradient comes from numbers that carry a derivative (by coordinate
 * e of p). torchvision.ops.generalized_box_iou_loss, distance_, complete_ */
#define gk_row_box_first 0
#define gk_row_box_sums 0
#define gk_row_box_weight 0
#define gk_row_box_four 1
typedef struct { gk_f v, d; } gk_dual;
GK_FN gk_dual gk_du(gk_f v, gk_f d) { gk_dual r; r.v = v; r.d = d; return r; }
GK_FN gk_dual gk_du_add(gk_dual a, gk_dual b) { return gk_du(a.v + b.v, a.d + b.d); }
GK_FN gk_dual gk_du_sub(gk_dual a, gk_dual b) { return gk_du(a.v - b.v, a.d - b.d); }
GK_FN gk_dual gk_du_mul(gk_dual a, gk_dual b) { return gk_du(a.v * b.v, a.v * b.d + a.d * b.v); }
/* The inverse is common to the derivatives by all coordinates. */
GK_FN gk_dual gk_du_div(gk_dual a, gk_dual b) { gk_f q = a.v / b.v, inverse = GK_R(1.0) / b.v; return gk_du(q, (a.d - q * b.d) * inverse); }
GK_FN gk_dual gk_du_max(gk_dual a, gk_dual b) { return a.v >= b.v || gk_isnan(a.v) ? a : b; }
GK_FN gk_dual gk_du_min(gk_dual a, gk_dual b) { return a.v <= b.v || gk_isnan(a.v) ? a : b; }
GK_FN gk_dual gk_du_pos(gk_dual a) { return a.v <= GK_R(0.0) ? gk_du(GK_R(0.0), GK_R(0.0)) : a; }
GK_FN gk_dual gk_du_atan(gk_dual a) { return gk_du(gk_atan(a.v), a.d / (GK_R(1.0) + a.v * a.v)); }
GK_FN gk_dual gk_box_loss(const gk_rowcx* r, int e)
{
    gk_dual p[4], t[4], eps = gk_du(r->p0, GK_R(0.0)), one = gk_du(GK_R(1.0), GK_R(0.0));
    for (int k = 0; k < 4; k++) {
        p[k] = gk_du(GK_X0(k), k == e ? GK_R(1.0) : GK_R(0.0));
        t[k] = gk_du(GK_X1(k), GK_R(0.0));
    }
    gk_dual w = gk_du_pos(gk_du_sub(p[2], p[0])), h = gk_du_pos(gk_du_sub(p[3], p[1]));
    gk_dual wt = gk_du_pos(gk_du_sub(t[2], t[0])), ht = gk_du_pos(gk_du_sub(t[3], t[1]));
    gk_dual iw = gk_du_pos(gk_du_sub(gk_du_min(p[2], t[2]), gk_du_max(p[0], t[0])));
    gk_dual ih = gk_du_pos(gk_du_sub(gk_du_min(p[3], t[3]), gk_du_max(p[1], t[1])));
    gk_dual inter = gk_du_mul(iw, ih), joint = gk_du_sub(gk_du_add(gk_du_mul(w, h), gk_du_mul(wt, ht)), inter);
    gk_dual iou = gk_du_div(inter, gk_du_add(joint, eps)), loss = gk_du_sub(one, iou);
    gk_dual cw = gk_du_sub(gk_du_max(p[2], t[2]), gk_du_min(p[0], t[0])), ch = gk_du_sub(gk_du_max(p[3], t[3]), gk_du_min(p[1], t[1]));
    if (r->flags == 1) {
        gk_dual hull = gk_du_mul(cw, ch);
        loss = gk_du_add(loss, gk_du_div(gk_du_sub(hull, joint), gk_du_add(hull, eps)));
    }
    if (r->flags >= 2) {
        gk_dual middle = gk_du(GK_R(0.5), GK_R(0.0));
        gk_dual dx = gk_du_mul(middle, gk_du_sub(gk_du_add(p[0], p[2]), gk_du_add(t[0], t[2])));
        gk_dual dy = gk_du_mul(middle, gk_du_sub(gk_du_add(p[1], p[3]), gk_du_add(t[1], t[3])));
        gk_dual diagonal = gk_du_add(gk_du_add(gk_du_mul(cw, cw), gk_du_mul(ch, ch)), eps);
        loss = gk_du_add(loss, gk_du_div(gk_du_add(gk_du_mul(dx, dx), gk_du_mul(dy, dy)), diagonal));
    }
    if (r->flags == 3) {
        gk_dual a = gk_du_sub(gk_du_atan(gk_du_div(wt, ht)), gk_du_atan(gk_du_div(w, h)));
        gk_dual v = gk_du_mul(gk_du(GK_R(0.4052847345693511), GK_R(0.0)), gk_du_mul(a, a));
        loss = gk_du_add(loss, gk_du_mul(gk_du(v.v / (GK_R(1.0) - iou.v + v.v + r->p0), GK_R(0.0)), v));
    }
    return loss;
}
GK_ITEM(gk_row_box) { return gk_box_loss(r, -1).v; }
/* What the four have in common is computed once. */
GK_FN void gk_row_box_grads(const gk_rowcx* r, gk_f* d) { GK_UNROLL for (int e = 0; e < 4; e++) d[e] = gk_box_loss(r, e).d; }
GK_LOSS_GRAD(gk_row_box) { d[0] = gk_box_loss(r, (int)e).d; }

/* ---- states, depth, patches, densities ----------------------------------------------------------------------------------------- */

/* 1 - |<phi, psi>|^2 / (|psi|^2 |phi|^2) of interleaved complex states */
#define gk_row_quantum_first 0
#define gk_row_quantum_sums 4
#define gk_row_quantum_weight 0
GK_LOSS_ADD(gk_row_quantum)
{
    if (e & 1) return;
    gk_f a = GK_X0(e), b = GK_X0(e + 1), c = GK_X1(e), q = GK_X1(e + 1);
    s[0] += c * a + q * b;
    s[1] += c * b - q * a;
    s[2] += a * a + b * b;
    s[3] += c * c + q * q;
}
GK_FN gk_f gk_fidelity(const gk_rowcx* r) { return (r->s[0] * r->s[0] + r->s[1] * r->s[1]) / (r->s[2] * r->s[3]); }
GK_ITEM(gk_row_quantum) { return r->s[2] == GK_R(0.0) ? GK_R(1.0) : GK_R(1.0) - gk_fidelity(r); }
GK_LOSS_GRAD(gk_row_quantum)
{
    if (r->s[2] == GK_R(0.0)) return;
    gk_i64 k = e & ~(gk_i64)1;
    gk_f c = GK_X1(k), q = GK_X1(k + 1), overlap = e & 1 ? r->s[0] * q + r->s[1] * c : r->s[0] * c - r->s[1] * q;
    d[0] = GK_R(-2.0) * (overlap / r->s[3] - gk_fidelity(r) * GK_X0(e)) / r->s[2];
}

/* p0 = lambda; flags: 1 = 10 * root; d = ln p - ln t where t > 0 and the mask allows. Eigen et al. (2014) */
#define gk_row_depth_first 0
#define gk_row_depth_sums 3
#define gk_row_depth_weight 0
GK_FN int gk_depth_valid(const gk_rowcx* r, gk_i64 e) { return GK_X1(e) > GK_R(0.0) && !(r->mask && !r->mask[e]); }
GK_LOSS_ADD(gk_row_depth)
{
    if (!gk_depth_valid(r, e)) return;
    gk_f x = gk_log(GK_X0(e)) - gk_log(GK_X1(e));
    s[0] += GK_R(1.0);
    s[1] += x;
    s[2] += x * x;
}
GK_FN gk_f gk_depth_plain(const gk_rowcx* r) { gk_f mean = r->s[1] / r->s[0]; return r->s[2] / r->s[0] - r->p0 * mean * mean; }
GK_ITEM(gk_row_depth) { return r->flags & 1 ? GK_R(10.0) * gk_sqrt(gk_depth_plain(r)) : gk_depth_plain(r); }
GK_LOSS_GRAD(gk_row_depth)
{
    if (!gk_depth_valid(r, e)) return;
    gk_f p = GK_X0(e);
    d[0] = GK_R(2.0) / r->s[0] * (gk_log(p) - gk_log(GK_X1(e)) - r->p0 * r->s[1] / r->s[0]) / p;
    if (r->flags & 1) { gk_f v = gk_depth_plain(r); d[0] *= v > GK_R(0.0) ? GK_R(5.0) / gk_sqrt(v) : GK_R(0.0); }
}

/* flags: 1 = standardised targets. He et al. (2022) */
#define gk_row_patch_first 2
#define gk_row_patch_sums 1
#define gk_row_patch_weight 1
GK_COLLECT(gk_row_patch) { gk_f u = GK_X1(e) - GK_N1; m[0] += u; m[1] += u * u; }
GK_FN gk_f gk_patch_diff(const gk_rowcx* r, gk_i64 e)
{
    gk_f t = GK_X1(e), n = (gk_f)r->len;
    if (r->flags & 1) {
        gk_f var = (r->m[1] - r->m[0] * r->m[0] / n) / (n - GK_R(1.0));
        t = (t - GK_N1 - r->m[0] / n) / gk_sqrt(var + GK_R(1e-6));
    }
    return GK_X0(e) - t;
}
GK_LOSS_ADD(gk_row_patch) { gk_f u = gk_patch_diff(r, e); s[0] += u * u; }
GK_FN gk_f gk_row_patch_weigh(const gk_rowcx* r) { return r->mask[0] ? GK_R(1.0) : GK_R(0.0); }
GK_ITEM(gk_row_patch) { return r->mask[0] ? r->s[0] / (gk_f)r->len : GK_R(0.0); }
GK_LOSS_GRAD(gk_row_patch) { if (r->mask[0]) d[0] = GK_R(2.0) * gk_patch_diff(r, e) / (gk_f)r->len; }

/* KL of a diagonal Gaussian (mean, log variance) from the standard one */
#define gk_row_gaussian_kl_first 0
#define gk_row_gaussian_kl_sums 1
#define gk_row_gaussian_kl_weight 0
GK_LOSS_ADD(gk_row_gaussian_kl) { gk_f mu = GK_X0(e), lv = GK_X1(e); s[0] += GK_R(0.5) * (mu * mu + gk_expm1(lv) - lv); }
GK_ITEM(gk_row_gaussian_kl) { return r->s[0]; }
GK_LOSS_GRAD(gk_row_gaussian_kl) { d[0] = GK_X0(e); d[1] = GK_R(0.5) * gk_expm1(GK_X1(e)); }

/* The whole tensor as one row: root of the mean square; p0 = alpha, p1 = L1 share: mean square and penalties of the prediction */
#define gk_row_rmse_first 0
#define gk_row_rmse_sums 1
#define gk_row_rmse_weight 0
GK_LOSS_ADD(gk_row_rmse) { gk_f x = GK_X0(e) - GK_X1(e); s[0] += x * x; }
GK_ITEM(gk_row_rmse) { return gk_sqrt(r->s[0] / (gk_f)r->len); }
GK_LOSS_GRAD(gk_row_rmse)
{
    gk_f l = gk_row_rmse_item(r);
    d[0] = l == GK_R(0.0) ? l : (GK_X0(e) - GK_X1(e)) / ((gk_f)r->len * l);
}
#define gk_row_elastic_first 0
#define gk_row_elastic_sums 3
#define gk_row_elastic_weight 0
GK_LOSS_ADD(gk_row_elastic)
{
    gk_f p = GK_X0(e), x = p - GK_X1(e);
    s[0] += x * x;
    s[1] += gk_fabs(p);
    s[2] += p * p;
}
GK_ITEM(gk_row_elastic) { return r->s[0] / (gk_f)r->len + r->p0 * (r->p1 * r->s[1] + (GK_R(1.0) - r->p1) * GK_R(0.5) * r->s[2]); }
GK_LOSS_GRAD(gk_row_elastic)
{
    gk_f p = GK_X0(e);
    d[0] = GK_R(2.0) * (p - GK_X1(e)) / (gk_f)r->len + r->p0 * (r->p1 * gk_sgn(p) + (GK_R(1.0) - r->p1) * p);
}

/* ---- one item per element: rows of length 1 ------------------------------------------------------------------------------------ */

/* p0 = eps; flags: 1 = with the constant. F.gaussian_nll_loss (the clamp of the variance passes its gradient through, as there) */
#define gk_row_gaussian_nll_first 0
#define gk_row_gaussian_nll_sums 0
#define gk_row_gaussian_nll_weight 0
GK_ITEM(gk_row_gaussian_nll)
{
    gk_f x = GK_N0 - GK_N1, v = gk_max(GK_N2, r->p0);
    return GK_R(0.5) * (gk_log(v) + x * x / v) + (r->flags & 1 ? GK_R(0.9189385332046727) : GK_R(0.0));
}
GK_LOSS_GRAD(gk_row_gaussian_nll)
{
    gk_f x = GK_N0 - GK_N1, v = gk_max(GK_N2, r->p0);
    d[0] = x / v;
    d[2] = GK_R(0.5) * (GK_R(1.0) - x * x / v) / v;
}

/* p0 = margin. F.margin_ranking_loss */
#define gk_row_ranking_first 0
#define gk_row_ranking_sums 0
#define gk_row_ranking_weight 0
GK_ITEM(gk_row_ranking) { return gk_max(r->p0 - GK_N2 * (GK_N0 - GK_N1), GK_R(0.0)); }
GK_LOSS_GRAD(gk_row_ranking)
{
    d[0] = gk_row_ranking_item(r) > GK_R(0.0) ? -GK_N2 : GK_R(0.0);
    d[1] = -d[0];
}

/* Preferences: z = p0 ((w - w_ref) - (l - l_ref)) - p1 (references may be absent), -ln sigmoid(z); flags: 1 = (z)^2 with p0 = 1, 2 = log odds.
 * Rafailov et al. (2023), Azar et al. (2024), Meng et al. (2024), Hong et al. (2024) */
#define gk_row_preference_first 0
#define gk_row_preference_sums 0
#define gk_row_preference_weight 0
GK_FN gk_f gk_log_odds(gk_f v) { return v - gk_log(-gk_expm1(v)); }
GK_FN gk_f gk_preference(const gk_rowcx* r)
{
    gk_f w = GK_N0, l = GK_N1;
    if (r->flags & 2) return gk_log_odds(w) - gk_log_odds(l);
    if (r->x2) { w -= GK_N2; l -= GK_N3; }
    return r->p0 * (w - l) - r->p1;
}
GK_ITEM(gk_row_preference) { gk_f z = gk_preference(r); return r->flags & 1 ? z * z : gk_softp(-z); }
GK_LOSS_GRAD(gk_row_preference)
{
    gk_f z = gk_preference(r), g = r->flags & 1 ? GK_R(2.0) * z : -gk_sigm(-z);
    d[0] = r->flags & 2 ? -g / gk_expm1(GK_N0) : r->p0 * g;
    d[1] = r->flags & 2 ? g / gk_expm1(GK_N1) : -r->p0 * g;
}

/* Logits with a weight of the positive class per column. F.binary_cross_entropy_with_logits */
#define gk_row_bce_pos_first 0
#define gk_row_bce_pos_sums 0
#define gk_row_bce_pos_weight 0
GK_ITEM(gk_row_bce_pos)
{
    gk_f x = GK_N0, t = GK_N1, l = (GK_R(1.0) - t) * x + (GK_R(1.0) + (GK_N3 - GK_R(1.0)) * t) * gk_softp(-x);
    return r->x2 ? GK_N2 * l : l;
}
GK_LOSS_GRAD(gk_row_bce_pos)
{
    gk_f t = GK_N1, q = GK_N3;
    d[0] = (GK_R(1.0) + (q - GK_R(1.0)) * t) * gk_sigm(GK_N0) - q * t;
    if (r->x2) d[0] *= GK_N2;
}

/* Quantile loss with a level per column */
#define gk_row_quantiles_first 0
#define gk_row_quantiles_sums 0
#define gk_row_quantiles_weight 0
GK_ITEM(gk_row_quantiles) { return gk_loss_quantile(GK_N0, GK_N1, gk_make_lp(GK_N2, GK_R(0.0), 0)); }
GK_LOSS_GRAD(gk_row_quantiles) { d[0] = gk_loss_quantile_grad(GK_N0, GK_N1, gk_make_lp(GK_N2, GK_R(0.0), 0)); }

/* Scores of generated (and, for the discriminator, real) samples; flags: 0 = vanilla, 1 = hinge, 2 = least squares. Goodfellow et al. (2014) */
#define gk_row_adversarial_first 0
#define gk_row_adversarial_sums 0
#define gk_row_adversarial_weight 0
/* Loss of scoring x as real; its mirror image scores it as generated. */
GK_FN gk_f gk_as_real(gk_f x, int mode) { return mode == 0 ? gk_softp(-x) : mode == 1 ? gk_max(GK_R(1.0) - x,
    GK_R(0.0)) : (x - GK_R(1.0)) * (x - GK_R(1.0)); }
GK_FN gk_f gk_as_real_grad(gk_f x, int mode)
{
    return mode == 0 ? -gk_sigm(-x) : mode == 1 ? (x < GK_R(1.0) ? GK_R(-1.0) : GK_R(0.0)) : GK_R(2.0) * (x - GK_R(1.0));
}
GK_ITEM(gk_row_adversarial)
{
    gk_f f = GK_N0;
    if (!r->x1) return r->flags == 1 ? -f : gk_as_real(f, r->flags);
    return gk_as_real(GK_N1, r->flags) + (r->flags == 2 ? f * f : gk_as_real(-f, r->flags));
}
GK_LOSS_GRAD(gk_row_adversarial)
{
    gk_f f = GK_N0;
    if (!r->x1) { d[0] = r->flags == 1 ? GK_R(-1.0) : gk_as_real_grad(f, r->flags); return; }
    d[0] = r->flags == 2 ? GK_R(2.0) * f : -gk_as_real_grad(-f, r->flags);
    d[1] = gk_as_real_grad(GK_N1, r->flags);
}
