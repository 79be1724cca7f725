/* Special functions of two tensors and their gradients: the regularized incomplete gamma functions. GK_OP names the function.
 *
 *   y[i] = f(a[i], b[i])            db[i] (+)= g_b(dy[i], a[i], b[i])
 * The kernels are those of binary.c without accesses of 16 bytes: the functions are hundreds of instructions long. All operands at the broadcast
 * shape. p, q, `wide` and `magic` are not used. Launch: grid-stride over elements. Arithmetic in gk_f. Deterministic. Reference:
 * torch.special.gammainc, torch.special.gammaincc.
 */
#include "functions.h"

/* ---- incomplete gamma functions ---------------------------------------------------------------------------------------------
 * With D = x^a e^-x / Gamma(a + 1): the lower one P = D (1 + x / (a + 1) + x^2 / ((a + 1) (a + 2)) + ..), the upper one Q = 1 - P = a D / (x + 1 - a
 * - (1 - a) / (x + 3 - a - ..)), Legendre's fraction; for large a and x near it Temme's uniform expansion (N. Temme, "The asymptotic expansion of the
 * incomplete gamma functions", 1979): with x = a (1 + m), s^2 / 2 = m - log(1 + m) and s of the sign of m,
 *   Q = erfc(s sqrt(a / 2)) / 2 + e^(-a s^2 / 2) / sqrt(2 pi a) (C_0(s) + C_1(s) / a + ..). */

/* Horner's rule. */
#define GK_POLYNOMIAL(name) \
    GK_FN gk_f name(gk_f t) \
    { \
        gk_f y = GK_R(0.0); \
        for (int i = (int)(sizeof(name##_c) / sizeof(name##_c[0])) - 1; i >= 0; i--) y = y * t + name##_c[i]; \
        return y; \
    }
GK_CONST gk_f gk_gamma_0_c[] = {
    GK_R(-0.333333333333333333), GK_R(0.0833333333333333333), GK_R(-0.0148148148148148148), GK_R(0.00115740740740740741), GK_R(0.0003527336860670194),
    GK_R(-0.000178755144032921811), GK_R(0.0000391926317852243778), GK_R(-2.18544851067999216e-6),
#if GK_DTYPE == GK_F64
    GK_R(-1.85406221071515996e-6), GK_R(8.29671134095308601e-7), GK_R(-1.76659527368260793e-7), GK_R(6.70785354340149858e-9),
    GK_R(1.0261809784240308e-8), GK_R(-4.38203601845335319e-9), GK_R(9.14769958223679023e-10), GK_R(-2.55141939949462498e-11),
    GK_R(-5.83077213255042507e-11),
#endif
};
GK_POLYNOMIAL(gk_gamma_0)
GK_CONST gk_f gk_gamma_1_c[] = {
    GK_R(-0.00185185185185185185), GK_R(-0.00347222222222222222), GK_R(0.0026455026455026455), GK_R(-0.000990226337448559671),
    GK_R(0.000205761316872427984), GK_R(-4.01877572016460905e-7),
#if GK_DTYPE == GK_F64
    GK_R(-0.0000180985503344899778), GK_R(7.64916091608111008e-6), GK_R(-1.6120900894563446e-6), GK_R(4.64712780280743434e-9),
    GK_R(1.37863344691572096e-7), GK_R(-5.75254560351770496e-8), GK_R(1.19516285997781473e-8), GK_R(-1.75432417197476476e-11),
    GK_R(-1.00915437106004126e-9),
#endif
};
GK_POLYNOMIAL(gk_gamma_1)
GK_CONST gk_f gk_gamma_2_c[] = {
    GK_R(0.0041335978835978836), GK_R(-0.00268132716049382716), GK_R(0.000771604938271604938), GK_R(2.00938786008230453e-6),
#if GK_DTYPE == GK_F64
    GK_R(-0.000107366532263651605), GK_R(0.0000529234488291201254), GK_R(-0.0000127606351886187277), GK_R(3.42357873409613807e-8),
    GK_R(1.37219573090629332e-6), GK_R(-6.29899213838005502e-7), GK_R(1.42806142060642418e-7), GK_R(-2.0477098421990866e-10),
    GK_R(-1.40925299108675211e-8),
#endif
};
GK_POLYNOMIAL(gk_gamma_2)
#if GK_DTYPE == GK_F64
GK_CONST gk_f gk_gamma_3_c[] = {
    GK_R(0.000649434156378600823), GK_R(0.000229472093621399177), GK_R(-0.000469189494395255712), GK_R(0.000267720632062838853),
    GK_R(-0.0000756180167188397641), GK_R(-2.39650511386729665e-7), GK_R(0.0000110826541153473024), GK_R(-5.67495282699159657e-6),
    GK_R(1.42309007324358839e-6), GK_R(-2.78610802915281422e-11), GK_R(-1.69584040919302773e-7),
};
GK_POLYNOMIAL(gk_gamma_3)
GK_CONST gk_f gk_gamma_4_c[] = {
    GK_R(-0.000861888290916711699), GK_R(0.000784039221720066627), GK_R(-0.00029907248030319018), GK_R(-1.46384525788434182e-6),
    GK_R(0.0000664149821546512219), GK_R(-0.0000396836504717943466), GK_R(0.0000113757269706784191), GK_R(2.5074972262375328e-10),
    GK_R(-1.6954149536558306e-6),
};
GK_POLYNOMIAL(gk_gamma_4)
GK_CONST gk_f gk_gamma_5_c[] = {
    GK_R(-0.00033679855336635815), GK_R(-0.0000697281375836585777), GK_R(0.000277275324495939208), GK_R(-0.000199325705161888477),
    GK_R(0.0000679778047793720784), GK_R(1.41906292064396701e-7), GK_R(-0.0000135940481897686933),
};
GK_POLYNOMIAL(gk_gamma_5)
GK_CONST gk_f gk_gamma_6_c[] = {
    GK_R(0.000531307936463992223), GK_R(-0.000592166437353693883), GK_R(0.000270878209671804483), GK_R(7.90235323266032787e-7),
    GK_R(-0.0000815396936756196875),
};
GK_POLYNOMIAL(gk_gamma_6)
#endif

/* Terms at most. */
#define GK_GAMMA_TERMS 1000
/* Below this no term counts. */
#define GK_GAMMA_EPS (GK_DTYPE == GK_F64 ? GK_R(1e-17) : GK_R(1e-8))

/* m - log(1 + m); between -0.3 and 0.3, where the two are nearly equal, by the series of 2 atanh(m / (2 + m)). */
GK_FN_CALL gk_f gk_log1p_gap(gk_f m)
{
    if (!(gk_fabs(m) < GK_R(0.3))) return m - gk_log1p(m);
    gk_f r = m / (GK_R(2.0) + m), q = r * r, sum = GK_R(0.0);
    for (int k = 23; k > 1; k -= 2) sum = sum * q + GK_R(2.0) / (gk_f)k;
    return r * (m - q * sum);
}

/* x^a e^-x / Gamma(a + 1) for numbers above 0: in two halves that do not overflow, or by Stirling's series about x = a. */
GK_FN_CALL gk_f gk_gamma_density(gk_f a, gk_f x)
{
    if (a < GK_R(20.0)) {
        gk_f h = gk_pow(x, GK_R(0.5) * a) * gk_exp(GK_R(-0.5) * x);
        return h * (h / GK_M(tgamma)(a + GK_R(1.0)));
    }
    gk_f r = GK_R(1.0) / a, q = r * r;
    gk_f stirling = r * (GK_R(1.0) / GK_R(12.0) - q * (GK_R(1.0) / GK_R(360.0) - q * (GK_R(1.0) / GK_R(1260.0) - q * (GK_R(1.0) / GK_R(1680.0) -
                         q / GK_R(1188.0)))));
    return gk_exp(-a * gk_log1p_gap((x - a) / a) - stirling) * GK_R(0.398942280401432678) / gk_sqrt(a);
}

/* P by its series. */
GK_FN_CALL gk_f gk_gamma_series(gk_f a, gk_f x)
{
    gk_f term = GK_R(1.0), sum = GK_R(1.0);
    for (int n = 1; n < GK_GAMMA_TERMS && term > GK_GAMMA_EPS * sum; n++) {
        term *= x / (a + (gk_f)n);
        sum += term;
    }
    return gk_gamma_density(a, x) * sum;
}

/* Q by its fraction, from the front (modified Lentz). */
GK_FN_CALL gk_f gk_gamma_fraction(gk_f a, gk_f x)
{
    gk_f b = x + GK_R(1.0) - a, c = GK_INF, d = GK_R(1.0) / b, h = d, step = GK_R(0.0);
    for (int n = 1; n < GK_GAMMA_TERMS && gk_fabs(step - GK_R(1.0)) > GK_GAMMA_EPS; n++) {
        gk_f top = (gk_f)n * (a - (gk_f)n);
        b += GK_R(2.0);
        d = GK_R(1.0) / (top * d + b);
        c = b + top / c;
        step = c * d;
        h *= step;
    }
    return a * gk_gamma_density(a, x) * h;
}

/* Q for small a and x, without the difference 1 - P: 1 - x^a / Gamma(a + 1) (1 + a (-x / (a + 1) + x^2 / (2 (a + 2)) - ..)). */
GK_FN_CALL gk_f gk_gamma_small(gk_f a, gk_f x)
{
    gk_f power = GK_R(1.0), sum = GK_R(0.0), term = GK_R(1.0), log_scale = a * gk_log(x) - gk_lgamma(a + GK_R(1.0));
    for (int n = 1; n < GK_GAMMA_TERMS && gk_fabs(term) > GK_GAMMA_EPS * gk_fabs(sum); n++) {
        power *= -x / (gk_f)n;
        term = power / (a + (gk_f)n);
        sum += term;
    }
    return -gk_expm1(log_scale) - gk_exp(log_scale) * a * sum;
}

/* P, or Q (`upper`), by Temme's expansion. */
GK_FN_CALL gk_f gk_gamma_uniform(gk_f a, gk_f m, int upper)
{
    gk_f half_square = gk_log1p_gap(m), s = gk_sqrt(GK_R(2.0) * half_square), r = GK_R(1.0) / a, sum;
    if (m < GK_R(0.0)) s = -s;
#if GK_DTYPE == GK_F64
    sum = gk_gamma_2(s) + r * (gk_gamma_3(s) + r * (gk_gamma_4(s) + r * (gk_gamma_5(s) + r * gk_gamma_6(s))));
#else
    sum = gk_gamma_2(s);
#endif
    sum = (gk_gamma_0(s) + r * (gk_gamma_1(s) + r * sum)) * gk_exp(-a * half_square) * GK_R(0.398942280401432678) * gk_sqrt(r);
    gk_f z = s * gk_sqrt(GK_R(0.5) * a);
    return upper ? GK_R(0.5) * gk_erfc(z) + sum : GK_R(0.5) * gk_erfc(-z) - sum;
}

/* Whether the series of P serves: always for P itself up to 1 and up to a, for Q where 1 - P does not cancel. */
GK_FN int gk_gamma_by_series(gk_f a, gk_f x, int upper)
{
    if (!upper) return !(x > GK_R(1.0) && x > a);
    if (x > GK_R(1.1)) return x < a;
    return x > GK_R(0.5) ? x * GK_R(1.1) < a : GK_R(-0.4) / gk_log(x) < a;
}

/* P(a, x), or Q (`upper`). */
GK_FN_CALL gk_f gk_incomplete_gamma(gk_f a, gk_f x, int upper)
{
    gk_f none = upper ? GK_R(1.0) : GK_R(0.0), all = GK_R(1.0) - none;
    if (!(a >= GK_R(0.0)) || !(x >= GK_R(0.0)) || (a == GK_R(0.0) && x == GK_R(0.0)) || (gk_isinf(a) && gk_isinf(x))) return GK_NAN;
    if (a == GK_R(0.0) || gk_isinf(x)) return all;
    if (x == GK_R(0.0) || gk_isinf(a)) return none;
    gk_f m = (x - a) / a;
    if (a > GK_R(200.0) && gk_fabs(m) < GK_R(0.3)) return gk_gamma_uniform(a, m, upper);
    if (gk_gamma_by_series(a, x, upper)) {
        gk_f p = gk_gamma_series(a, x);
        return upper ? GK_R(1.0) - p : p;
    }
    gk_f q = x > GK_R(1.1) ? gk_gamma_fraction(a, x) : gk_gamma_small(a, x);
    return upper ? q : GK_R(1.0) - q;
}

/* The derivative of P by x, x^(a - 1) e^-x / Gamma(a). */
GK_FN_CALL gk_f gk_incomplete_gamma_slope(gk_f a, gk_f x)
{
    if (!(a >= GK_R(0.0)) || !(x >= GK_R(0.0)) || (a == GK_R(0.0) && x == GK_R(0.0))) return GK_NAN;
    if (a == GK_R(0.0) || gk_isinf(x) || gk_isinf(a)) return GK_R(0.0);
    if (x == GK_R(0.0)) return a < GK_R(1.0) ? GK_INF : a == GK_R(1.0) ? GK_R(1.0) : GK_R(0.0);
    return a * (gk_gamma_density(a, x) / x);
}

/* The derivative by a has no closed form; the host asks for that of b only. */
GK_BINARY(gk_op_igamma, gk_incomplete_gamma(a, b, 0), GK_NAN, dy * gk_incomplete_gamma_slope(a, b))
GK_BINARY(gk_op_igammac, gk_incomplete_gamma(a, b, 1), GK_NAN, -dy * gk_incomplete_gamma_slope(a, b))

// Units: FLOATS64 x BINARY_SPECIAL
GK_KERNEL(binary_special_flat)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_t, y), gk_i64 n, int wide, gk_f p, gk_f q)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) gk_store(y, i, GK_FWD(gk_load(a, i), gk_load(b, i), p, q));
}

GK_KERNEL(binary_special_nd)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_t, y), gk_i64 n, int rank, GK_DIMS(shape), GK_DIMS(magic), GK_DIMS(sa),
                             GK_DIMS(sb), GK_DIMS(sy), int wide, gk_f p, gk_f q)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ia = 0, ib = 0, iy = 0;
        GK_ND(i, n, rank, shape, { ia += r * sa.v[d]; ib += r * sb.v[d]; iy += r * sy.v[d]; });
        gk_store(y, iy, GK_FWD(gk_load(a, ia), gk_load(b, ib), p, q));
    }
}

typedef struct {
    gk_dims shape, sdy, sa, sb, sda, sdb;
    gk_i64 n;
    gk_f p, q;
    int rank, wide, acc_a, acc_b;
} gk_binary_special_bwd_args;

/* Gradients at the shape of dy; da is null. */
GK_KERNEL(binary_special_bwd)(GK_IN(gk_t, dy), GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_t, da), GK_OUT(gk_t, db),
                              GK_BY_VALUE(gk_binary_special_bwd_args, args))
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_t, da); GK_BIND_OUT(gk_t, db);
    for (gk_i64 i = gk_gid(); i < args.n; i += gk_gsize()) {
        gk_i64 ig = 0, ia = 0, ib = 0, jb = 0;
        GK_ND(i, args.n, args.rank, args.shape,
            { ig += r * args.sdy.v[d]; ia += r * args.sa.v[d]; ib += r * args.sb.v[d]; jb += r * args.sdb.v[d]; });
        gk_f ga, gb;
        GK_BWD(gk_load(dy, ig), gk_load(a, ia), gk_load(b, ib), args.p, args.q, &ga, &gb);
        if (db) gk_store(db, jb, args.acc_b ? gk_load(db, jb) + gb : gb);
    }
}
