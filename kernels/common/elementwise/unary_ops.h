/* Functions of one value. Names and edge cases are those of torch.<name>. */
#include "functions.h"
#include "common/prelude/special.h"

#if GK_IS_FLOAT

/* Exponents that have an exact shortcut take it. */
GK_FN gk_f gk_pow_scalar(gk_f x, gk_f c)
{
    if (c == GK_R(2.0)) return x * x;
    if (c == GK_R(1.0)) return x;
    if (c == GK_R(0.5)) return gk_sqrt(x);
    if (c == GK_R(3.0)) return x * x * x;
    if (c == GK_R(-1.0)) return GK_R(1.0) / x;
    return gk_pow(x, c);
}

GK_UNARY(gk_op_neg, -x, -dy)
GK_UNARY(gk_op_abs, gk_fabs(x), x > GK_R(0.0) ? dy : (x < GK_R(0.0) ? -dy : GK_R(0.0)))
GK_UNARY(gk_op_sign, x > GK_R(0.0) ? GK_R(1.0) : (x < GK_R(0.0) ? GK_R(-1.0) : GK_R(0.0)), GK_R(0.0))
GK_UNARY(gk_op_exp, gk_exp(x), dy * gk_exp(x))
GK_UNARY(gk_op_exp2, gk_exp2(x), dy * (gk_exp2(x) * GK_R(0.693147180559945309)))
GK_UNARY(gk_op_exp10, gk_exp10(x), dy * (gk_exp10(x) * GK_R(2.30258509299404568)))
GK_UNARY(gk_op_expm1, gk_expm1(x), dy * gk_exp(x))
GK_UNARY(gk_op_log1p, gk_log1p(x), dy / (GK_R(1.0) + x))
GK_UNARY(gk_op_log, gk_log(x), dy / x)
GK_UNARY(gk_op_log2, gk_log2(x), dy / (x * GK_R(0.693147180559945309)))
GK_UNARY(gk_op_log10, gk_log10(x), dy / (x * GK_R(2.30258509299404568)))
GK_UNARY(gk_op_sqrt, gk_sqrt(x), dy / (GK_R(2.0) * gk_sqrt(x)))
GK_UNARY(gk_op_rsqrt, GK_R(1.0) / gk_sqrt(x), GK_R(-0.5) * dy / (x * gk_sqrt(x)))
GK_UNARY(gk_op_cbrt, gk_cbrt(x), dy / (GK_R(3.0) * (gk_cbrt(x) * gk_cbrt(x))))
GK_UNARY(gk_op_square, x * x, dy * (GK_R(2.0) * x))
GK_UNARY(gk_op_reciprocal, GK_R(1.0) / x, -dy * ((GK_R(1.0) / x) * (GK_R(1.0) / x)))
GK_UNARY(gk_op_sin, gk_sin(x), dy * gk_cos(x))
GK_UNARY(gk_op_cos, gk_cos(x), -dy * gk_sin(x))
GK_UNARY(gk_op_tan, gk_tan(x), dy * (GK_R(1.0) + gk_tan(x) * gk_tan(x)))
GK_UNARY(gk_op_asin, gk_asin(x), dy / gk_sqrt((GK_R(1.0) - x) * (GK_R(1.0) + x)))
GK_UNARY(gk_op_acos, gk_acos(x), -dy / gk_sqrt((GK_R(1.0) - x) * (GK_R(1.0) + x)))
GK_UNARY(gk_op_atan, gk_atan(x), dy / (GK_R(1.0) + x * x))
GK_UNARY(gk_op_sinh, gk_sinh(x), dy * gk_cosh(x))
GK_UNARY(gk_op_cosh, gk_cosh(x), dy * gk_sinh(x))
GK_UNARY(gk_op_asinh, gk_asinh(x), dy / gk_hypot(x, GK_R(1.0)))
GK_UNARY(gk_op_acosh, gk_acosh(x), dy / (gk_sqrt(x - GK_R(1.0)) * gk_sqrt(x + GK_R(1.0))))
GK_UNARY(gk_op_atanh, gk_atanh(x), dy / ((GK_R(1.0) - x) * (GK_R(1.0) + x)))
GK_UNARY(gk_op_erf, gk_erf(x), dy * (GK_R(1.12837916709551257) * gk_exp(-x * x)))
GK_UNARY(gk_op_erfc, gk_erfc(x), -dy * (GK_R(1.12837916709551257) * gk_exp(-x * x)))
GK_UNARY(gk_op_erfinv, gk_erfinv(x), dy * (GK_R(0.886226925452758014) * gk_exp(gk_erfinv(x) * gk_erfinv(x))))
GK_UNARY(gk_op_floor, gk_floor(x), GK_R(0.0))
GK_UNARY(gk_op_ceil, gk_ceil(x), GK_R(0.0))
GK_UNARY(gk_op_trunc, gk_trunc(x), GK_R(0.0))
GK_UNARY(gk_op_frac, x - gk_trunc(x), dy)
/* p: 10^|decimals|; q: whether decimals < 0 */
GK_UNARY(gk_op_round, q != GK_R(0.0) ? gk_rint(x / p) * p : (p == GK_R(1.0) ? gk_rint(x) : gk_rint(x * p) / p), GK_R(0.0))
GK_UNARY(gk_op_lgamma, gk_lgamma(x), dy * gk_digamma(x))
GK_UNARY(gk_op_digamma, gk_digamma(x), dy * gk_polygamma(GK_R(1.0), x))
/* p: order */
GK_UNARY(gk_op_polygamma, gk_polygamma(p, x), dy * gk_polygamma(p + GK_R(1.0), x))
GK_UNARY(gk_op_i0, gk_i0(x), dy * gk_i1(x))
GK_UNARY(gk_op_i0e, gk_i0e(x), dy * (gk_i1e(x) - (x > GK_R(0.0) ? gk_i0e(x) : (x < GK_R(0.0) ? -gk_i0e(x) : GK_R(0.0)))))
GK_UNARY(gk_op_sinc, gk_sinc(x), dy * gk_sinc_slope(x))
GK_UNARY(gk_op_i1, gk_i1(x), dy * gk_i1_slope(x))
GK_UNARY(gk_op_i1e, gk_i1e(x), dy * (x == GK_R(0.0) ? GK_R(0.5) : gk_i0e(x) - gk_i1e(x) * ((x < GK_R(0.0) ? GK_R(-1.0) : GK_R(1.0)) + GK_R(1.0) / x)))
/* p: the scalar */
GK_UNARY(gk_op_scale, p * x, dy * p)
GK_UNARY(gk_op_add_scalar, x + p, dy)
GK_UNARY(gk_op_rsub_scalar, p - x, -dy)
GK_UNARY(gk_op_pow_scalar, gk_pow_scalar(x, p), p == GK_R(0.0) ? GK_R(0.0) : dy * (p * gk_pow_scalar(x, p - GK_R(1.0))))
/* p, q: bounds, infinite where absent; an infinity as a bound does not bind */
GK_UNARY(gk_op_clamp, gk_min(gk_max(x, p), q), ((x > p || p == -GK_INF) && (x < q || q == GK_INF) && !gk_isnan(x)) ? dy : GK_R(0.0))
/* p, q, s: replacements of NaN, +inf, -inf */
GK_UNARY(gk_op_nan_to_num, gk_isnan(x) ? p : (x == GK_INF ? q : (x == -GK_INF ? s : x)), (gk_isnan(x) || gk_isinf(x)) ? GK_R(0.0) : dy)

GK_UNARY_FLAT(gk_op_isnan, gk_isnan(x))
GK_UNARY_FLAT(gk_op_isinf, gk_isinf(x))
GK_UNARY_FLAT(gk_op_isfinite, !gk_isnan(x) && !gk_isinf(x))

#else

/* Integers wrap: their arithmetic is unsigned. */
GK_UNARY_FLAT(gk_op_neg, (gk_f)((gk_uf)0 - (gk_uf)x))
GK_UNARY_FLAT(gk_op_abs, x < 0 ? (gk_f)((gk_uf)0 - (gk_uf)x) : x)
GK_UNARY_FLAT(gk_op_sign, (x > 0) - (x < 0))
GK_UNARY_FLAT(gk_op_square, (gk_f)((gk_uf)x * (gk_uf)x))
GK_UNARY_FLAT(gk_op_bitwise_not, ~x)
GK_UNARY_FLAT(gk_op_logical_not, x == 0)

#endif
