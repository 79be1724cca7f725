/* Special functions of the arithmetic type. f32 results are good to about 1e-6, f64 results to about 1e-14, relative, away from zeros of the
 * function. References: torch.special.<name>. */
#ifndef GK_SPECIAL_H
#define GK_SPECIAL_H
#if GK_IS_FLOAT

/* ---- inverse error function ------------------------------------------------------------------------------------------------
 * Single-precision approximation of M. Giles, "Approximating the erfinv function" (2010); f64 refines it with two steps of Halley's
 * method, on erfc where erf has lost the digits. */

GK_FN gk_f gk_erfinv(gk_f x)
{
    gk_f a = gk_fabs(x), w, y;
    if (!(a < GK_R(1.0))) return a == GK_R(1.0) ? x * GK_INF : GK_NAN;
    w = -gk_log((GK_R(1.0) - x) * (GK_R(1.0) + x));
    if (w < GK_R(5.0)) {
        w -= GK_R(2.5);
        y = GK_R(2.81022636e-8);
        y = y * w + GK_R(3.43273939e-7);
        y = y * w - GK_R(3.5233877e-6);
        y = y * w - GK_R(4.39150654e-6);
        y = y * w + GK_R(2.1858087e-4);
        y = y * w - GK_R(1.25372503e-3);
        y = y * w - GK_R(4.17768164e-3);
        y = y * w + GK_R(2.46640727e-1);
        y = y * w + GK_R(1.50140941);
    } else {
        w = gk_sqrt(w) - GK_R(3.0);
        y = GK_R(-2.00214257e-4);
        y = y * w + GK_R(1.00950558e-4);
        y = y * w + GK_R(1.34934322e-3);
        y = y * w - GK_R(3.67342844e-3);
        y = y * w + GK_R(5.73950773e-3);
        y = y * w - GK_R(7.6224613e-3);
        y = y * w + GK_R(9.43887047e-3);
        y = y * w + GK_R(1.00167406);
        y = y * w + GK_R(2.83297682);
    }
    y *= a;
#if GK_DTYPE == GK_F64
    for (int i = 0; i < 2; i++) {
        gk_f e = a < 0.5 ? gk_erf(y) - a : (1.0 - a) - gk_erfc(y);
        gk_f u = e * 0.88622692545275801 * gk_exp(y * y);
        y -= u / (1.0 + y * u);
    }
#endif
    return x < GK_R(0.0) ? -y : y;
}

/* ---- gamma family ------------------------------------------------------------------------------------------------------------ */

/* ln x - 1/2x - sum B_2k / (2k x^2k), after the recurrence has moved x above 10; reflection for negative x. */
GK_FN_CALL gk_f gk_digamma(gk_f x)
{
    gk_f r = GK_R(0.0), z;
    if (x == GK_R(0.0)) return gk_copysign(GK_INF, -x);
    if (x < GK_R(0.0)) {
        /* The nearest integer: beside a pole the difference keeps all digits. */
        gk_f whole = gk_rint(x);
        if (x == whole) return GK_NAN;
        r = GK_R(-3.14159265358979324) / gk_tan(GK_R(3.14159265358979324) * (x - whole));
        x = GK_R(1.0) - x;
    }
    for (; x < GK_R(10.0); x += GK_R(1.0)) r -= GK_R(1.0) / x;
    z = GK_R(1.0) / (x * x);
    z *= GK_R(0.0833333333333333333) - z * (GK_R(0.00833333333333333333) - z * (GK_R(0.00396825396825396825) - z * (GK_R(0.00416666666666666667)
         - z * (GK_R(0.00757575757575757576) - z * (GK_R(0.0210927960927960928) - z * GK_R(0.0833333333333333333))))));
    return r + (gk_log(x) - GK_R(0.5) / x - z);
}

/* (2k)! / B_2k */
GK_CONST gk_f gk_zeta_c[] = {
    GK_R(12.0), GK_R(-720.0), GK_R(30240.0), GK_R(-1209600.0), GK_R(47900160.0), GK_R(-1.8924375803183791606e9), GK_R(7.47242496e10),
    GK_R(-2.950130727918164224e12), GK_R(1.1646782814350067249e14), GK_R(-4.5979787224074726105e15), GK_R(1.8152105401943546773e17),
    GK_R(-7.1661652561756670113e18),
};

/* Hurwitz zeta: sum over k >= 0 of (q + k)^-s, the tail by Euler and Maclaurin. NaN for s < 1, and for negative q unless s is an integer. */
GK_FN_CALL gk_f gk_zeta(gk_f s, gk_f q)
{
    gk_f sum, b, w, a = q, factor = GK_R(1.0), k = GK_R(0.0);
#if GK_DTYPE == GK_F64
    const gk_f eps = 1.1e-16;
#else
    const gk_f eps = 6e-8f;
#endif
    if (s == GK_R(1.0)) return GK_INF;
    if (!(s > GK_R(1.0)) || gk_isnan(q)) return GK_NAN;
    if (q <= GK_R(0.0)) {
        if (q == gk_floor(q)) return GK_INF;
        if (s != gk_floor(s)) return GK_NAN;
    }
    if (gk_isinf(q)) return GK_R(0.0);
    b = gk_pow(q, -s);
    sum = b;
    /* The bound ends the recurrence from a very negative q, where neighbours are no longer representable. */
    for (int i = 0; (i < 9 || a <= GK_R(9.0)) && i < 65536; i++) {
        a += GK_R(1.0);
        b = gk_pow(a, -s);
        sum += b;
        if (gk_fabs(b) < eps * gk_fabs(sum)) return sum;
    }
    w = a;
    sum += b * w / (s - GK_R(1.0)) - GK_R(0.5) * b;
    for (int i = 0; i < 12; i++) {
        gk_f t;
        factor *= s + k;
        b /= w;
        t = factor * b / gk_zeta_c[i];
        sum += t;
        if (gk_fabs(t) < eps * gk_fabs(sum)) break;
        factor *= (s + k + GK_R(1.0));
        b /= w;
        k += GK_R(2.0);
    }
    return sum;
}

/* n-th derivative of digamma: (-1)^(n+1) n! zeta(n + 1, x). */
GK_FN_CALL gk_f gk_polygamma(gk_f n, gk_f x)
{
    gk_f f = GK_R(1.0);
    if (n == GK_R(0.0)) return gk_digamma(x);
    for (gk_f k = GK_R(2.0); k <= n && f < GK_INF; k += GK_R(1.0)) f *= k;
    if (gk_fmod(n, GK_R(2.0)) == GK_R(0.0)) f = -f;
    return f * gk_zeta(n + GK_R(1.0), x);
}

/* ---- modified Bessel functions ----------------------------------------------------------------------------------------------
 * Chebyshev series of e^-x I0(x) and e^-x I1(x) / x in x/4 - 1 for x <= 8, of e^-x sqrt(x) In(x) in 16/x - 1 above. */

/* Clenshaw's recurrence; the first coefficient counts half. */
#define GK_CHEBYSHEV(name) \
    GK_FN gk_f name(gk_f t) \
    { \
        gk_f b0 = GK_R(0.0), b1 = GK_R(0.0), b2 = GK_R(0.0); \
        for (int i = (int)(sizeof(name##_c) / sizeof(name##_c[0])) - 1; i >= 0; i--) { \
            b2 = b1; b1 = b0; \
            b0 = GK_R(2.0) * t * b1 - b2 + name##_c[i]; \
        } \
        return GK_R(0.5) * (b0 - b2); \
    }
GK_CONST gk_f gk_i0_near_c[] = {
    GK_R(0.676795274409476085), GK_R(-0.304682672343198399), GK_R(0.171620901522208775), GK_R(-0.0949010970480476444), GK_R(0.0493052842396707085),
    GK_R(-0.0237374148058994688), GK_R(0.0105464603945949983), GK_R(-0.00432430999505057594), GK_R(0.0016394756169413358),
    GK_R(-0.000576375574538582366), GK_R(0.000188502885095841656), GK_R(-0.000057541950100821037), GK_R(0.0000164484480707288971),
    GK_R(-4.41673835845875056e-6), GK_R(1.11738753912010372e-6), GK_R(-2.67079385394061173e-7), GK_R(6.04699502254191895e-8),
    GK_R(-1.30002500998624804e-8),
#if GK_DTYPE == GK_F64
    GK_R(2.65982372468238665e-9), GK_R(-5.18979560163526291e-10), GK_R(9.67580903537323691e-11), GK_R(-1.72682629144155571e-11),
    GK_R(2.95505266312963983e-12), GK_R(-4.85644678311192946e-13), GK_R(7.67618549860493562e-14), GK_R(-1.16853328779934517e-14),
    GK_R(1.71539128555513303e-15), GK_R(-2.43127984654795469e-16), GK_R(3.3307945188222381e-17), GK_R(-4.41534164647933938e-18),
#endif
};
GK_CHEBYSHEV(gk_i0_near)
GK_CONST gk_f gk_i0_far_c[] = {
    GK_R(0.804490411014108832), GK_R(0.00336911647825569409), GK_R(0.0000688975834691682398), GK_R(2.89137052083475648e-6),
    GK_R(2.04891858946906374e-7), GK_R(2.26666899049817806e-8), GK_R(3.39623202570838635e-9),
#if GK_DTYPE == GK_F64
    GK_R(4.94060238822496959e-10), GK_R(1.18891471078464383e-11), GK_R(-3.14991652796324136e-11), GK_R(-1.32158118404477131e-11),
    GK_R(-1.79417853150680612e-12), GK_R(7.18012445138366623e-13), GK_R(3.8527783827421427e-13), GK_R(1.54008621752140983e-14),
    GK_R(-4.15056934728722209e-14), GK_R(-9.55484669882830765e-15), GK_R(3.81168066935262242e-15), GK_R(1.77256013305652638e-15),
    GK_R(-3.42548561967721913e-16), GK_R(-2.82762398051658348e-16), GK_R(3.46122286769746109e-17), GK_R(4.46562142029676e-17),
    GK_R(-4.83050448594418207e-18), GK_R(-7.23318048787475395e-18),
#endif
};
GK_CHEBYSHEV(gk_i0_far)
GK_CONST gk_f gk_i1_near_c[] = {
    GK_R(0.252587186443633655), GK_R(-0.176416518357834055), GK_R(0.102643658689847095), GK_R(-0.0529459812080949914), GK_R(0.0247264490306265168),
    GK_R(-0.0105640848946261982), GK_R(0.00415642294431288816), GK_R(-0.00151357245063125315), GK_R(0.000512285956168575773),
    GK_R(-0.000161760815825896746), GK_R(0.0000478156510755005423), GK_R(-0.0000132731636560394358), GK_R(3.47025130813767848e-6),
    GK_R(-8.56872026469545474e-7), GK_R(2.00329475355213526e-7), GK_R(-4.44505912879632808e-8), GK_R(9.38153738649577178e-9),
#if GK_DTYPE == GK_F64
    GK_R(-1.88724975172282929e-9), GK_R(3.62559028155211704e-10), GK_R(-6.66348972350202774e-11), GK_R(1.17361862988909016e-11),
    GK_R(-1.98397439776494372e-12), GK_R(3.22379336594557471e-13), GK_R(-5.04218550472791169e-14), GK_R(7.60068429473540693e-15),
    GK_R(-1.10559694773538631e-15), GK_R(1.55363195773620047e-16), GK_R(-2.11142121435816608e-17), GK_R(2.77791411276104637e-18),
#endif
};
GK_CHEBYSHEV(gk_i1_near)
GK_CONST gk_f gk_i1_far_c[] = {
    GK_R(0.77857623501828012), GK_R(-0.00976109749136146841), GK_R(-0.000110588938762623716), GK_R(-3.88256480887769039e-6),
    GK_R(-2.51223623787020893e-7), GK_R(-2.63146884688951951e-8), GK_R(-3.83538038596423702e-9),
#if GK_DTYPE == GK_F64
    GK_R(-5.58974346219658381e-10), GK_R(-1.89749581235054123e-11), GK_R(3.25260358301548824e-11), GK_R(1.41258074366137813e-11),
    GK_R(2.03562854414708951e-12), GK_R(-7.19855177624590851e-13), GK_R(-4.08355111109219732e-13), GK_R(-2.10154184277266431e-14),
    GK_R(4.27244001671195135e-14), GK_R(1.04202769841288028e-14), GK_R(-3.8144030724370078e-15), GK_R(-1.88035477551078245e-15),
    GK_R(3.30820231092092828e-16), GK_R(2.96262899764595014e-16), GK_R(-3.20952592199342396e-17), GK_R(-4.65030536848935833e-17),
    GK_R(4.41434832307170795e-18), GK_R(7.51729631084210481e-18),
#endif
};
GK_CHEBYSHEV(gk_i1_far)

GK_FN_CALL gk_f gk_i0e(gk_f x)
{
    gk_f a = gk_fabs(x);
    return a <= GK_R(8.0) ? gk_i0_near(GK_R(0.25) * a - GK_R(1.0)) : gk_i0_far(GK_R(16.0) / a - GK_R(1.0)) / gk_sqrt(a);
}
GK_FN_CALL gk_f gk_i1e(gk_f x)
{
    gk_f a = gk_fabs(x);
    gk_f y = a <= GK_R(8.0) ? a * gk_i1_near(GK_R(0.25) * a - GK_R(1.0)) : gk_i1_far(GK_R(16.0) / a - GK_R(1.0)) / gk_sqrt(a);
    return x < GK_R(0.0) ? -y : y;
}
/* e^|x| in two halves: it overflows before the products do. */
GK_FN_CALL gk_f gk_i0(gk_f x)
{
    gk_f h = gk_exp(GK_R(0.5) * gk_fabs(x));
    return gk_isinf(x) ? GK_INF : h * gk_i0e(x) * h;
}
GK_FN_CALL gk_f gk_i1(gk_f x)
{
    gk_f h = gk_exp(GK_R(0.5) * gk_fabs(x));
    return gk_isinf(x) ? x : h * gk_i1e(x) * h;
}
/* Derivative of gk_i1, I0 - I1/x: with e^|x| outside, because both terms are infinite together and their difference is not NaN. */
GK_FN_CALL gk_f gk_i1_slope(gk_f x)
{
    gk_f h = gk_exp(GK_R(0.5) * gk_fabs(x));
    if (x == GK_R(0.0)) return GK_R(0.5);
    return gk_isinf(x) ? GK_INF : h * (gk_i0e(x) - gk_i1e(x) / x) * h;
}

GK_FN_CALL gk_f gk_sinc(gk_f x)
{
    gk_f z = GK_R(3.14159265358979324) * x;
    return z == GK_R(0.0) ? GK_R(1.0) : gk_sin(z) / z;
}
/* Derivative of gk_sinc, (cos(pi x) - sinc(x)) / x, by its series where the two terms cancel. */
GK_FN_CALL gk_f gk_sinc_slope(gk_f x)
{
    gk_f z = GK_R(3.14159265358979324) * x, q = z * z, s;
    if (gk_fabs(z) > GK_R(1.0)) return (gk_cos(z) - gk_sin(z) / z) / x;
    s = GK_R(1.0) / GK_R(172972800.0) - q * (GK_R(1.0) / GK_R(31135104000.0) - q / GK_R(7410154752000.0));
    s = GK_R(0.1) - q * (GK_R(1.0) / GK_R(280.0) - q * (GK_R(1.0) / GK_R(15120.0) - q * (GK_R(1.0) / GK_R(1330560.0) - q * s)));
    return GK_R(-1.04719755119659775) * z * (GK_R(1.0) - q * s);
}
#endif
#endif
