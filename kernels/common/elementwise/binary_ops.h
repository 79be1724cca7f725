/* Functions of two values. Names and edge cases are those of torch.<name>. */
#include "functions.h"
#include "common/prelude/special.h"
#include "common/activation/activation_ops.h"

GK_BINARY_FLAT(gk_op_eq, a == b)
GK_BINARY_FLAT(gk_op_ne, a != b)
GK_BINARY_FLAT(gk_op_lt, a < b)
GK_BINARY_FLAT(gk_op_le, a <= b)
GK_BINARY_FLAT(gk_op_gt, a > b)
GK_BINARY_FLAT(gk_op_ge, a >= b)

#if GK_IS_FLOAT

/* The quotient is that of the exact multiple a - fmod(a, b), so rounding cannot carry it over an integer. */
GK_FN gk_f gk_div_trunc(gk_f a, gk_f b)
{
    if (b == GK_R(0.0) || gk_isinf(a) || gk_isnan(a) || gk_isnan(b)) return a / b;
    return gk_rint((a - gk_fmod(a, b)) / b);
}
GK_FN gk_f gk_div_floor(gk_f a, gk_f b)
{
    gk_f r, quot;
    if (b == GK_R(0.0)) return a / b;
    r = gk_fmod(a, b);
    quot = gk_rint((a - r) / b);
    if (r != GK_R(0.0) && (b < GK_R(0.0)) != (r < GK_R(0.0))) quot -= GK_R(1.0);
    return quot;
}
GK_FN gk_f gk_remainder(gk_f a, gk_f b)
{
    gk_f r = gk_fmod(a, b);
    return r != GK_R(0.0) && (b < GK_R(0.0)) != (r < GK_R(0.0)) ? r + b : r;
}
/* Slope of x^b; the power's own convention makes b = 0 flat everywhere. */
GK_FN gk_f gk_pow_slope(gk_f a, gk_f b) { return b == GK_R(0.0) ? GK_R(0.0) : b * gk_pow(a, b - GK_R(1.0)); }
/* x / hypot(x, y)^2 without overflow; 0 at the origin */
GK_FN gk_f gk_over_square(gk_f x, gk_f y)
{
    gk_f h = gk_hypot(x, y);
    return h == GK_R(0.0) ? GK_R(0.0) : x / h / h;
}
GK_FN gk_f gk_over_hypot(gk_f x, gk_f y)
{
    gk_f h = gk_hypot(x, y);
    return h == GK_R(0.0) ? GK_R(0.0) : x / h;
}
GK_FN gk_f gk_logaddexp(gk_f a, gk_f b)
{
    if (a == b && gk_isinf(a)) return a;
    return gk_max(a, b) + gk_log1p(gk_exp(-gk_fabs(a - b)));
}
GK_FN gk_f gk_logaddexp2(gk_f a, gk_f b)
{
    if (a == b && gk_isinf(a)) return a;
    return gk_max(a, b) + gk_log1p(gk_exp2(-gk_fabs(a - b))) * GK_R(1.44269504088896341);
}
/* Share of a in the sum; equal infinities share alike. */
GK_FN gk_f gk_share(gk_f a, gk_f b) { return a == b ? GK_R(0.5) : gk_sigmoid(a - b); }

/* The neighbour of a towards b in the storage type. */
GK_FN gk_f gk_next(gk_f a, gk_f b)
{
#if GK_DTYPE == GK_F64
    gk_u64 u = gk_as_u64(a);
#elif GK_DTYPE == GK_F32
    gk_u32 u = gk_as_u32(a);
#else
    gk_t h = gk_encode(a);
    gk_u16 u = GK_HALF_BITS(h);
#endif
    if (gk_isnan(a) || gk_isnan(b)) return a + b;
    if (a == b) return b;
    if (a == GK_R(0.0)) {
        u = 1;
    } else if ((a < b) == (a > GK_R(0.0))) {
        u++;
    } else {
        u--;
    }
#if GK_DTYPE == GK_F64
    return a == 0.0 && b < 0.0 ? -gk_as_f64(u) : gk_as_f64(u);
#elif GK_DTYPE == GK_F32
    return a == 0.0f && b < 0.0f ? -gk_as_f32(u) : gk_as_f32(u);
#else
    return a == 0.0f && b < 0.0f ? -gk_decode(gk_half_from_bits(u)) : gk_decode(gk_half_from_bits(u));
#endif
}

/* p: alpha */
GK_BINARY(gk_op_add, a + p * b, dy, dy * p)
GK_BINARY(gk_op_sub, a - b, dy, -dy)
GK_BINARY(gk_op_mul, a * b, dy * b, dy * a)
GK_BINARY(gk_op_div, a / b, dy / b, -dy * ((a / b) / b))
GK_BINARY(gk_op_div_floor, gk_div_floor(a, b), GK_R(0.0), GK_R(0.0))
GK_BINARY(gk_op_div_trunc, gk_div_trunc(a, b), GK_R(0.0), GK_R(0.0))
GK_BINARY(gk_op_pow, gk_pow(a, b), b == GK_R(0.0) ? GK_R(0.0) : dy * gk_pow_slope(a, b),
          (a == GK_R(0.0) && b >= GK_R(0.0)) ? GK_R(0.0) : dy * (gk_pow(a, b) * gk_log(a)))
GK_BINARY(gk_op_maximum, gk_max(a, b), a < b ? GK_R(0.0) : (a == b ? GK_R(0.5) * dy : dy), a > b ? GK_R(0.0) : (a == b ? GK_R(0.5) * dy : dy))
GK_BINARY(gk_op_minimum, gk_min(a, b), a > b ? GK_R(0.0) : (a == b ? GK_R(0.5) * dy : dy), a < b ? GK_R(0.0) : (a == b ? GK_R(0.5) * dy : dy))
GK_BINARY(gk_op_fmax, (a >= b || gk_isnan(b)) ? a : b, a == b ? GK_R(0.5) * dy : ((a > b || gk_isnan(b)) ? dy : GK_R(0.0)),
          a == b ? GK_R(0.5) * dy : ((a > b || gk_isnan(b)) ? GK_R(0.0) : dy))
GK_BINARY(gk_op_fmin, (a <= b || gk_isnan(b)) ? a : b, a == b ? GK_R(0.5) * dy : ((a < b || gk_isnan(b)) ? dy : GK_R(0.0)),
          a == b ? GK_R(0.5) * dy : ((a < b || gk_isnan(b)) ? GK_R(0.0) : dy))
GK_BINARY(gk_op_remainder, gk_remainder(a, b), dy, -dy * gk_div_floor(a, b))
GK_BINARY(gk_op_fmod, gk_fmod(a, b), dy, -dy * gk_div_trunc(a, b))
/* a: ordinate, b: abscissa */
GK_BINARY(gk_op_atan2, gk_atan2(a, b), dy * gk_over_square(b, a), -dy * gk_over_square(a, b))
GK_BINARY(gk_op_hypot, gk_hypot(a, b), dy * gk_over_hypot(a, b), dy * gk_over_hypot(b, a))
GK_BINARY(gk_op_copysign, gk_copysign(a, b), a == GK_R(0.0) ? GK_R(0.0) : dy * (gk_copysign(a, b) == a ? GK_R(1.0) : GK_R(-1.0)), GK_R(0.0))
GK_BINARY(gk_op_logaddexp, gk_logaddexp(a, b), dy * gk_share(a, b), dy * gk_share(b, a))
GK_BINARY(gk_op_logaddexp2, gk_logaddexp2(a, b), dy * gk_share(a * GK_R(0.693147180559945309), b * GK_R(0.693147180559945309)),
          dy * gk_share(b * GK_R(0.693147180559945309), a * GK_R(0.693147180559945309)))
GK_BINARY(gk_op_xlogy, (a == GK_R(0.0) && !gk_isnan(b)) ? GK_R(0.0) : a * gk_log(b), (a == GK_R(0.0) && b <= GK_R(0.0)) ? GK_R(0.0) : dy * gk_log(b),
          dy * (a / b))
GK_BINARY(gk_op_xlog1py, (a == GK_R(0.0) && !gk_isnan(b)) ? GK_R(0.0) : a * gk_log1p(b),
          (a == GK_R(0.0) && b <= GK_R(-1.0)) ? GK_R(0.0) : dy * gk_log1p(b), dy * (a / (GK_R(1.0) + b)))
/* p: weight of b */
GK_BINARY(gk_op_lerp, p < GK_R(0.5) ? a + p * (b - a) : b - (b - a) * (GK_R(1.0) - p), dy * (GK_R(1.0) - p), dy * p)
/* p, q: factors */
GK_BINARY(gk_op_add_scaled, p * a + q * b, dy * p, dy * q)
GK_BINARY(gk_op_clamp_min, gk_max(a, b), a > b ? dy : GK_R(0.0), a < b ? dy : GK_R(0.0))
GK_BINARY(gk_op_clamp_max, gk_min(a, b), a < b ? dy : GK_R(0.0), a > b ? dy : GK_R(0.0))
GK_BINARY(gk_op_add_relu, gk_act_relu_fwd(a + b, p, q, q), gk_act_relu_bwd(dy, a + b, p, q, q), gk_act_relu_bwd(dy, a + b, p, q, q))
GK_BINARY(gk_op_add_sigmoid, gk_sigmoid(a + b), dy * (gk_sigmoid(a + b) * gk_sigmoid(-a - b)), dy * (gk_sigmoid(a + b) * gk_sigmoid(-a - b)))
GK_BINARY(gk_op_add_gelu, gk_gelu(a + b), dy * gk_gelu_slope(a + b), dy * gk_gelu_slope(a + b))
/* The derivative with respect to the exponent has no closed form; the host asks for that of b only. */
GK_BINARY(gk_op_zeta, gk_zeta(a, b), GK_NAN, -dy * a * gk_zeta(a + GK_R(1.0), b))
GK_BINARY_FLAT(gk_op_nextafter, gk_next(a, b))

#else

/* Integers wrap: their arithmetic is unsigned. Dividing by -1 must not trap on the smallest number. */
#define GK_WRAP(a, op, b) ((gk_f)((gk_uf)(a) op (gk_uf)(b)))
#define GK_BITS ((gk_f)(8 * sizeof(gk_t)))
#if GK_DTYPE == GK_I64
/* 64-bit divisions are slow: 32 bits where both numbers have no more. */
GK_FN gk_f gk_idiv(gk_f a, gk_f b)
{
    if (((a | b) >> 32) == 0) return (gk_f)((gk_u32)a / (gk_u32)b);
    return b == -1 ? GK_WRAP(0, -, a) : a / b;
}
GK_FN gk_f gk_imod(gk_f a, gk_f b) { return GK_WRAP(a, -, GK_WRAP(gk_idiv(a, b), *, b)); }
#else
GK_FN gk_f gk_idiv(gk_f a, gk_f b) { return b == -1 ? GK_WRAP(0, -, a) : a / b; }
GK_FN gk_f gk_imod(gk_f a, gk_f b) { return b == -1 ? 0 : a % b; }
#endif

/* p: alpha */
GK_BINARY_FLAT(gk_op_add, GK_WRAP(a, +, GK_WRAP(p, *, b)))
GK_BINARY_FLAT(gk_op_sub, GK_WRAP(a, -, b))
GK_BINARY_FLAT(gk_op_mul, GK_WRAP(a, *, b))
/* b is not 0 */
GK_BINARY_FLAT(gk_op_div_trunc, gk_idiv(a, b))
GK_BINARY_FLAT(gk_op_div_floor, gk_idiv(a, b) - (gk_imod(a, b) != 0 && (a < 0) != (b < 0)))
GK_BINARY_FLAT(gk_op_maximum, gk_max(a, b))
GK_BINARY_FLAT(gk_op_minimum, gk_min(a, b))
GK_BINARY_FLAT(gk_op_bitwise_and, a & b)
GK_BINARY_FLAT(gk_op_bitwise_or, a | b)
GK_BINARY_FLAT(gk_op_bitwise_xor, a ^ b)
/* A negative count is one beyond the width. */
GK_BINARY_FLAT(gk_op_shl, (b < 0 || b >= GK_BITS) ? 0 : GK_WRAP(a, <<, b))
GK_BINARY_FLAT(gk_op_shr, (b < 0 || b >= GK_BITS) ? (a < 0 ? -1 : 0) : a >> b)
GK_BINARY_FLAT(gk_op_logical_and, a != 0 && b != 0)
GK_BINARY_FLAT(gk_op_logical_or, a != 0 || b != 0)
GK_BINARY_FLAT(gk_op_logical_xor, (a != 0) != (b != 0))

#endif
