/* Elementwise losses l(p, t) and their derivatives with respect to p. Formulas of torch.nn.functional where it has the loss. */

/* Numbers of a loss: a, b as each function says, flags a set of bits. */
typedef struct { gk_f a, b; int flags; } gk_lp;
GK_FN gk_lp gk_make_lp(gk_f a, gk_f b, int flags) { gk_lp h; h.a = a; h.b = b; h.flags = flags; return h; }

GK_FN gk_f gk_sgn(gk_f x) { return x > GK_R(0.0) ? GK_R(1.0) : x < GK_R(0.0) ? GK_R(-1.0) : x == x ? GK_R(0.0) : x; }
GK_FN gk_f gk_sigm(gk_f x)
{
    gk_f e = gk_exp(-gk_fabs(x));
    return (x < GK_R(0.0) ? e : GK_R(1.0)) * gk_recip(GK_R(1.0) + e);
}
/* ln(1 + e^x) */
GK_FN gk_f gk_softp(gk_f x) { return (x > GK_R(0.0) ? x : GK_R(0.0)) + gk_log1p(gk_exp(-gk_fabs(x))); }

#define GK_LOSS(name) GK_FN gk_f name(gk_f p, gk_f t, gk_lp h)

/* (p - t)^2 */
GK_LOSS(gk_loss_mse) { gk_f d = p - t; return d * d; }
GK_LOSS(gk_loss_mse_grad) { return GK_R(2.0) * (p - t); }

/* p^2 */
GK_LOSS(gk_loss_square) { return p * p; }
GK_LOSS(gk_loss_square_grad) { return GK_R(2.0) * p; }

/* |p - t| */
GK_LOSS(gk_loss_mae) { return gk_fabs(p - t); }
GK_LOSS(gk_loss_mae_grad) { return gk_sgn(p - t); }

/* a = beta: d^2 / (2 beta) below beta, else |d| - beta / 2 */
GK_LOSS(gk_loss_smooth_l1)
{
    gk_f d = gk_fabs(p - t);
    return d < h.a ? d * d * GK_R(0.5) / h.a : d - GK_R(0.5) * h.a;
}
GK_LOSS(gk_loss_smooth_l1_grad)
{
    gk_f d = p - t;
    return gk_fabs(d) < h.a ? d / h.a : gk_sgn(d);
}

/* a = delta: d^2 / 2 up to delta, else delta (|d| - delta / 2) */
GK_LOSS(gk_loss_huber)
{
    gk_f d = gk_fabs(p - t);
    return d <= h.a ? GK_R(0.5) * d * d : h.a * (d - GK_R(0.5) * h.a);
}
GK_LOSS(gk_loss_huber_grad) { return gk_min(gk_max(p - t, -h.a), h.a); }

/* ln cosh(p - t); for small d by its series, which does not cancel */
GK_LOSS(gk_loss_log_cosh)
{
    gk_f d = gk_fabs(p - t), q = d * d;
    if (d < GK_R(0.01)) return q * (GK_R(0.5) - q * (GK_R(1.0) / GK_R(12.0) - q / GK_R(45.0)));
    return d + gk_log1p(gk_exp(GK_R(-2.0) * d)) - GK_R(0.6931471805599453);
}
GK_LOSS(gk_loss_log_cosh_grad) { return gk_tanh(p - t); }

/* a = quantile: max(a d, (a - 1) d), d = t - p */
GK_LOSS(gk_loss_quantile) { gk_f d = t - p; return gk_max(h.a * d, (h.a - GK_R(1.0)) * d); }
GK_LOSS(gk_loss_quantile_grad) { gk_f d = t - p; return d > GK_R(0.0) ? -h.a : d < GK_R(0.0) ? GK_R(1.0) - h.a : gk_sgn(d); }

/* a = eps: sqrt((p - t)^2 + eps^2) */
GK_LOSS(gk_loss_charbonnier) { gk_f d = p - t; return gk_sqrt(d * d + h.a * h.a); }
GK_LOSS(gk_loss_charbonnier_grad) { gk_f l = gk_loss_charbonnier(p, t, h); return l > GK_R(0.0) ? (p - t) / l : l; }

/* t - p */
GK_LOSS(gk_loss_bias) { return t - p; }
GK_LOSS(gk_loss_bias_grad) { return GK_R(-1.0); }

/* Labels t of -1 and 1. */
GK_LOSS(gk_loss_hinge) { return gk_max(GK_R(1.0) - t * p, GK_R(0.0)); }
GK_LOSS(gk_loss_hinge_grad) { return t * p < GK_R(1.0) ? -t : GK_R(0.0); }
GK_LOSS(gk_loss_squared_hinge) { gk_f z = gk_loss_hinge(p, t, h); return z * z; }
GK_LOSS(gk_loss_squared_hinge_grad) { return GK_R(-2.0) * t * gk_loss_hinge(p, t, h); }
GK_LOSS(gk_loss_modified_huber) { gk_f z = t * p; return z < GK_R(-1.0) ? GK_R(-4.0) * z : gk_loss_squared_hinge(p, t, h); }
GK_LOSS(gk_loss_modified_huber_grad) { return t * p < GK_R(-1.0) ? GK_R(-4.0) * t : gk_loss_squared_hinge_grad(p, t, h); }
GK_LOSS(gk_loss_exponential) { return gk_exp(-t * p); }
GK_LOSS(gk_loss_exponential_grad) { return -t * gk_exp(-t * p); }
GK_LOSS(gk_loss_soft_margin) { return gk_softp(-t * p); }
GK_LOSS(gk_loss_soft_margin_grad) { return -t * gk_sigm(-t * p); }
/* a = margin: p where t = 1, max(0, margin - p) where t = -1; other labels add both, as in PyTorch */
GK_LOSS(gk_loss_hinge_embedding)
{
    return (t != GK_R(-1.0) ? p : GK_R(0.0)) + (t != GK_R(1.0) ? gk_max(h.a - p, GK_R(0.0)) : GK_R(0.0));
}
GK_LOSS(gk_loss_hinge_embedding_grad)
{
    return (t != GK_R(-1.0) ? GK_R(1.0) : GK_R(0.0)) - (t != GK_R(1.0) && p < h.a ? GK_R(1.0) : GK_R(0.0));
}
GK_LOSS(gk_loss_wasserstein) { return -p * t; }
GK_LOSS(gk_loss_wasserstein_grad) { return -t; }

/* a = eps; flags: 1 = p is the logarithm of the rate, 2 = with Stirling's term for t > 1 */
GK_LOSS(gk_loss_poisson)
{
    gk_f l = h.flags & 1 ? gk_exp(p) - t * p : p - t * gk_log(p + h.a);
    if (h.flags & 2 && t > GK_R(1.0)) l += t * gk_log(t) - t + GK_R(0.5) * gk_log(GK_R(6.283185307179586) * t);
    return l;
}
GK_LOSS(gk_loss_poisson_grad) { return h.flags & 1 ? gk_exp(p) - t : GK_R(1.0) - t / (p + h.a); }

/* t (ln t - ln p), 0 where t = 0; flags: 1 = p is a logarithm, 2 = t is a logarithm */
GK_LOSS(gk_loss_kl)
{
    gk_f q = h.flags & 1 ? p : gk_log(p);
    if (h.flags & 2) return gk_exp(t) * (t - q);
    return t == GK_R(0.0) ? GK_R(0.0) : t * (gk_log(t) - q);
}
GK_LOSS(gk_loss_kl_grad)
{
    gk_f v = h.flags & 2 ? gk_exp(t) : t;
    return v == GK_R(0.0) ? GK_R(0.0) : h.flags & 1 ? -v : -v / p;
}

/* (p^2 - t)^2 */
GK_LOSS(gk_loss_born) { gk_f d = p * p - t; return d * d; }
GK_LOSS(gk_loss_born_grad) { return GK_R(4.0) * p * (p * p - t); }

/* -(t max(ln p, -100) + (1 - t) max(ln(1 - p), -100)); NaN outside [0, 1] */
GK_LOSS(gk_loss_bce)
{
    return -(t * gk_max(gk_log(p), GK_R(-100.0)) + (GK_R(1.0) - t) * gk_max(gk_log1p(-p), GK_R(-100.0)));
}
GK_LOSS(gk_loss_bce_grad) { return (p - t) / gk_max(p * (GK_R(1.0) - p), GK_R(1e-12)); }

/* The same of logits. */
GK_LOSS(gk_loss_bce_logits) { return gk_softp(p) - p * t; }
GK_LOSS(gk_loss_bce_logits_grad) { return gk_sigm(p) - t; }

/* Focal loss; a = alpha (negative: none), b = gamma. u = 1 - pt, the probability of the wrong class. */
GK_FN gk_f gk_focal_weight(gk_f t, gk_lp h) { return h.a < GK_R(0.0) ? GK_R(1.0) : h.a * t + (GK_R(1.0) - h.a) * (GK_R(1.0) - t); }
GK_FN gk_f gk_focal_power(gk_f u, gk_f gamma) { return gamma == GK_R(2.0) ? u * u : gamma == GK_R(0.0) ? GK_R(1.0) : gk_pow(u, gamma); }
GK_LOSS(gk_loss_focal_logits)
{
    gk_f u = gk_sigm(p) * (GK_R(1.0) - t) + gk_sigm(-p) * t;
    return gk_focal_weight(t, h) * gk_focal_power(u, h.b) * gk_loss_bce_logits(p, t, h);
}
GK_LOSS(gk_loss_focal_logits_grad)
{
    gk_f y = gk_sigm(p), z = gk_sigm(-p), u = y * (GK_R(1.0) - t) + z * t, d = y - t;
    /* (ln u)' = -pt' / u */
    if (h.b != GK_R(0.0) && u > GK_R(0.0)) d -= h.b * y * z * (GK_R(2.0) * t - GK_R(1.0)) / u * gk_loss_bce_logits(p, t, h);
    return gk_focal_weight(t, h) * gk_focal_power(u, h.b) * d;
}
GK_LOSS(gk_loss_focal)
{
    gk_f u = p * (GK_R(1.0) - t) + (GK_R(1.0) - p) * t;
    return -gk_focal_weight(t, h) * gk_focal_power(u, h.b) * gk_log(GK_R(1.0) - u);
}
GK_LOSS(gk_loss_focal_grad)
{
    gk_f s = GK_R(2.0) * t - GK_R(1.0), u = p * (GK_R(1.0) - t) + (GK_R(1.0) - p) * t, d = GK_R(-1.0) / (GK_R(1.0) - u);
    if (h.b != GK_R(0.0) && u > GK_R(0.0)) d += h.b / u * gk_log(GK_R(1.0) - u);
    return gk_focal_weight(t, h) * gk_focal_power(u, h.b) * s * d;
}
