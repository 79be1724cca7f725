/* Activations. The gradient's x is the saved tensor: the forward's input, or its output where the comment says so.
 * Names and edge cases are those of torch.nn.functional.<name>. */
#include "common/elementwise/functions.h"
#if GK_IS_FLOAT && !defined(GK_ACTIVATION_OPS_H)
#define GK_ACTIVATION_OPS_H

/* 1 / (1 + e^-x) without overflow and without losing small results. */
GK_FN gk_f gk_sigmoid(gk_f x)
{
    gk_f e = gk_exp_t(-gk_fabs(x));
    return (x >= GK_R(0.0) ? GK_R(1.0) : e) * gk_recip(GK_R(1.0) + e);
}

/* x * g for a gate g in [0, 1] that has vanished before x could outweigh it: 0 instead of inf * 0. */
GK_FN gk_f gk_gated(gk_f x, gk_f g) { return g == GK_R(0.0) && !gk_isnan(x) ? GK_R(-0.0) : x * g; }

#if GK_DTYPE != GK_F64
/* log2 of Q(t) e^(t^2/2) for the upper tail Q(t) = erfc(t / sqrt 2) / 2 of the normal distribution, t >= 0: least-squares fits, weighted so that
 * max(t, 1) Q(t) comes out within 4e-8 (f32 storage; 3e-7 for 16-bit storage). The fit ends at t = 8 (6), where the tail is below 1e-9. */
GK_FN float gk_tail_log2(float t)
{
    float r;
#if GK_DTYPE == GK_F32
    t = t < 8.0f ? t : 8.0f;
    r = -1.1040511181405541e-8f;
    r = r * t + 4.063313009850678e-7f;
    r = r * t - 6.223849835555632e-6f;
    r = r * t + 4.9897114974140174e-5f;
    r = r * t - 1.933085287146582e-4f;
    r = r * t - 1.666471475032492e-4f;
    r = r * t + 7.134372151833484e-3f;
    r = r * t - 5.255703320739626e-2f;
    r = r * t + 2.621612513691204e-1f;
    r = r * t - 1.1511079815099041f;
    return r * t - 0.9999999375361336f;
#else
    t = t < 6.0f ? t : 6.0f;
    r = 3.136709873005623e-5f;
    r = r * t - 7.443571604790309e-4f;
    r = r * t + 7.969419006815304e-3f;
    r = r * t - 5.319949286855717e-2f;
    r = r * t + 2.6239433756596314e-1f;
    r = r * t - 1.1511384606225386f;
    return r * t - 0.9999993249245631f;
#endif
}
/* x Phi(x) = max(x, 0) - |x| Q(|x|), which loses nothing on either side. */
GK_FN float gk_gelu(float x)
{
    float a = gk_fabs(x), t = a < 16.0f ? a : 16.0f, r;
    r = t * gk_exp2_t(gk_tail_log2(t) - 0.72134752044448170f * t * t);
    return x < 0.0f ? -r : x - r;
}
GK_FN float gk_gelu_slope(float x)
{
    float a = gk_fabs(x), t = a < 16.0f ? a : 16.0f, e, r;
    e = gk_exp2_t(-0.72134752044448170f * t * t);
    r = e * gk_exp2_t(gk_tail_log2(t)) - t * e * 0.398942280401432678f;
    return x < 0.0f ? r : (gk_isnan(x) ? x : 1.0f - r);
}
#else
GK_FN double gk_gelu(double x) { return x < -50.0 ? -0.0 : 0.5 * x * gk_erfc(x * -0.707106781186547524); }
GK_FN double gk_gelu_slope(double x)
{
    if (gk_fabs(x) > 50.0) return x > 0.0 ? 1.0 : 0.0;
    return 0.5 * gk_erfc(x * -0.707106781186547524) + x * 0.398942280401432678 * gk_exp(-0.5 * x * x);
}
#endif

/* 0.5 (1 + tanh u) = sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
GK_FN gk_f gk_gelu_tanh_gate(gk_f x) { return gk_sigmoid(GK_R(1.59576912160573071) * x * (GK_R(1.0) + GK_R(0.044715) * x * x)); }
GK_FN gk_f gk_gelu_tanh_slope(gk_f x)
{
    gk_f g = gk_gelu_tanh_gate(x), h = g * gk_gelu_tanh_gate(-x);
    return h == GK_R(0.0) ? g : g + h * (x * (GK_R(1.59576912160573071) * (GK_R(1.0) + GK_R(0.134145) * x * x)));
}

#if GK_DTYPE != GK_F64
/* ln(1 + e) for e in [0, 1], within 2 ULP: e times a Chebyshev fit of ln(1 + e) / e of degree 9. */
GK_FN float gk_log1p_unit(float e)
{
    float r = -3.256378462538123e-3f;
    r = r * e + 1.9907161593437195e-2f;
    r = r * e - 5.7064201682806015e-2f;
    r = r * e + 1.0614264756441116e-1f;
    r = r * e - 1.5311862528324127e-1f;
    r = r * e + 1.9678117334842682e-1f;
    r = r * e - 2.4954558908939362e-1f;
    r = r * e + 3.3330005407333374e-1f;
    r = r * e - 4.999990463256836e-1f;
    return e + e * (e * r);
}
#else
#define gk_log1p_unit(e) gk_log1p(e)
#endif
GK_FN gk_f gk_softplus(gk_f x, gk_f beta, gk_f threshold)
{
    gk_f bx = beta * x;
    return bx > threshold ? x : ((bx > GK_R(0.0) ? bx : GK_R(0.0)) + gk_log1p_unit(gk_exp_t(-gk_fabs(bx)))) * gk_recip(beta);
}

/* tanh(softplus x) = n / (n + 2) with n = w (w + 2), w = e^x; 1 for x > 20 */
GK_FN gk_f gk_mish(gk_f x)
{
    gk_f w, n;
    if (x > GK_R(20.0)) return x;
    w = gk_exp_t(x);
    n = w * (w + GK_R(2.0));
    return gk_gated(x, n * gk_recip(n + GK_R(2.0)));
}
GK_FN gk_f gk_mish_slope(gk_f x)
{
    gk_f w, n, r;
    if (x > GK_R(20.0)) return GK_R(1.0);
    w = gk_exp_t(x);
    if (w == GK_R(0.0)) return GK_R(0.0);
    n = w * (w + GK_R(2.0));
    r = gk_recip(n + GK_R(2.0));
    return n * r + x * (w * gk_recip(w + GK_R(1.0))) * (GK_R(4.0) * (n + GK_R(1.0)) * r * r);
}

GK_FN gk_f gk_swish_slope(gk_f x, gk_f beta)
{
    gk_f z = beta * x, e = gk_exp_t(-gk_fabs(z)), r = gk_recip(GK_R(1.0) + e);
    gk_f g = (z >= GK_R(0.0) ? GK_R(1.0) : e) * r, h = e * r * r;
    return h == GK_R(0.0) ? g : g + h * z;
}

GK_UNARY(gk_act_identity, x, dy)
/* saved: input or output (both have the same sign) */
GK_UNARY(gk_act_relu, x <= GK_R(0.0) ? GK_R(0.0) : x, x <= GK_R(0.0) ? GK_R(0.0) : dy)
/* p: slope */
GK_UNARY(gk_act_leaky_relu, (x > GK_R(0.0) || gk_isnan(x)) ? x : p * x, x > GK_R(0.0) ? dy : p * dy)
/* saved: output */
GK_UNARY(gk_act_sigmoid, gk_sigmoid(x), dy * (x * (GK_R(1.0) - x)))
/* saved: output */
GK_UNARY(gk_act_tanh, gk_tanh(x), dy * ((GK_R(1.0) - x) * (GK_R(1.0) + x)))
GK_UNARY(gk_act_gelu, gk_gelu(x), dy * gk_gelu_slope(x))
GK_UNARY(gk_act_gelu_tanh, gk_gated(x, gk_gelu_tanh_gate(x)), dy * gk_gelu_tanh_slope(x))
/* p: beta */
GK_UNARY(gk_act_swish, gk_gated(x, gk_sigmoid(p * x)), dy * gk_swish_slope(x, p))
/* p: alpha */
GK_UNARY(gk_act_elu, x > GK_R(0.0) ? x : p * gk_expm1(x), x > GK_R(0.0) ? dy : dy * (p * gk_exp(x)))
/* p: alpha; saved: output */
GK_UNARY(gk_act_elu_y, x > GK_R(0.0) ? x : p * gk_expm1(x), x > GK_R(0.0) ? dy : dy * (x + p))
GK_UNARY(gk_act_mish, gk_mish(x), dy * gk_mish_slope(x))
/* p: beta, q: threshold */
GK_UNARY(gk_act_softplus, gk_softplus(x, p, q), p * x > q ? dy : dy * gk_sigmoid(p * x))
GK_UNARY(gk_act_hardswish, x <= GK_R(-3.0) ? GK_R(0.0) : (x >= GK_R(3.0) ? x : x * ((x + GK_R(3.0)) * GK_R(0.16666666666666667))),
         x <= GK_R(-3.0) ? GK_R(0.0) : (x < GK_R(3.0) ? dy * (x * GK_R(0.33333333333333333) + GK_R(0.5)) : (gk_isnan(x) ? x : dy)))
GK_UNARY(gk_act_selu, x > GK_R(0.0) ? GK_R(1.0507009873554805) * x : GK_R(1.7580993408473769) * gk_expm1(x),
         dy * (x > GK_R(0.0) ? GK_R(1.0507009873554805) : GK_R(1.7580993408473769) * gk_exp(x)))
GK_UNARY(gk_act_hardsigmoid, x <= GK_R(-3.0) ? GK_R(0.0) : (x >= GK_R(3.0) ? GK_R(1.0) : (x + GK_R(3.0)) * GK_R(0.16666666666666667)),
         (x > GK_R(-3.0) && x < GK_R(3.0)) ? dy * GK_R(0.16666666666666667) : GK_R(0.0))
/* p, q: bounds */
GK_UNARY(gk_act_hardtanh, gk_min(gk_max(x, p), q), (x > p && x < q) ? dy : GK_R(0.0))

#endif
