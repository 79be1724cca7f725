/* The Airy function Ai of one tensor. No gradient.
 *
 *   y[i] = Ai(x[i])
 * Chebyshev series that were fitted with 45 digits: of Ai in (x + 3) / 5 for -8 < x < 2; above, with z = 2/3 x^(3/2), of e^z x^(1/4) Ai in
 * 2 z(2) / z - 1; below, with a = -x and t = 2/3 a^(3/2) - pi/4, Ai = (P cos t + Q sin t) / (sqrt(pi) a^(1/4)) and series of P and Q 2/3 a^(3/2) in
 * 2 (8 / a)^3 - 1. The kernels are those of unary.c without accesses of 16 bytes. p, q, s and `wide` are not used.
 * Launch: grid-stride over elements. Arithmetic in gk_f. Deterministic. Reference: torch.special.airy_ai.
 */
#include "functions.h"
#include "common/prelude/special.h"

GK_CONST gk_f gk_airy_near_c[] = {
    GK_R(0.207465229130057635), GK_R(0.0606447247461553503), GK_R(-0.000661791968020760827), GK_R(-0.154281301988516152),
    GK_R(-0.0851616817021911409), GK_R(0.0634699246984986422), GK_R(0.0727202826279306399), GK_R(0.0998785486844049048), GK_R(-0.201488173640685761),
    GK_R(0.0204739877475214087), GK_R(0.122043740359801443), GK_R(-0.0725566736309672901), GK_R(-0.0144336342989851372), GK_R(0.0306214358149213122),
    GK_R(-0.00867170754447942602), GK_R(-0.0042055964072399191), GK_R(0.00350170229405310561), GK_R(-0.000429646640119461341),
    GK_R(-0.000478214056703782298), GK_R(0.000229073343944491471), GK_R(-1.88553703470071299e-6), GK_R(-0.0000310359208394889112),
    GK_R(9.54987032486304672e-6), GK_R(9.20303031558348019e-7), GK_R(-1.32362652508814414e-6), GK_R(2.67589058962107769e-7),
    GK_R(5.84701813927220941e-8), GK_R(-4.00632684053823706e-8), GK_R(5.07354384347820121e-9), GK_R(2.0684679552018762e-9),
#if GK_DTYPE == GK_F64
    GK_R(-9.03677745478414468e-10), GK_R(5.9542053649168642e-11), GK_R(5.09041098608424974e-11), GK_R(-1.56998727433542775e-11),
    GK_R(1.80616391259816637e-13), GK_R(9.4561607481065456e-13), GK_R(-2.14799875147893418e-13), GK_R(-9.19121924307530746e-15),
    GK_R(1.38612217036087663e-14), GK_R(-2.34469070039500078e-15), GK_R(-2.4348644017154868e-16), GK_R(1.65011788239196572e-16),
    GK_R(-2.0471199040231087e-17), GK_R(-3.7396084204470669e-18),
#endif
};
GK_CHEBYSHEV(gk_airy_near)
GK_CONST gk_f gk_airy_far_c[] = {
    GK_R(0.555391219023411834), GK_R(-0.00417296756204592313), GK_R(0.00020669586013998012), GK_R(-0.0000172809978410682056),
    GK_R(1.92805216679715695e-6), GK_R(-2.60577439877626167e-7), GK_R(4.05151688351239498e-8), GK_R(-7.02224044098622293e-9),
#if GK_DTYPE == GK_F64
    GK_R(1.32860819977010283e-9), GK_R(-2.70355803712928881e-10), GK_R(5.85229778283899827e-11), GK_R(-1.33635844165197559e-11),
    GK_R(3.19785471492891547e-12), GK_R(-7.97681355955960247e-13), GK_R(2.06513475411096665e-13), GK_R(-5.52899978215977987e-14),
    GK_R(1.5261656190101811e-14), GK_R(-4.33197930495580526e-15), GK_R(1.26162393198987477e-15), GK_R(-3.76260703993575927e-16),
    GK_R(1.14716161562646174e-16), GK_R(-3.57014436510920835e-17), GK_R(1.13264622714002186e-17),
#endif
};
GK_CHEBYSHEV(gk_airy_far)
GK_CONST gk_f gk_airy_cosine_c[] = {
    GK_R(1.99983763583586156), GK_R(-0.0000810466092366941804), GK_R(1.34756659846890791e-7),
#if GK_DTYPE == GK_F64
    GK_R(-7.08558471431265882e-10), GK_R(7.48184186508309105e-12), GK_R(-1.29027743434079669e-13), GK_R(3.22504020974875888e-15),
    GK_R(-1.08091464757610378e-16),
#endif
};
GK_CHEBYSHEV(gk_airy_cosine)
GK_CONST gk_f gk_airy_sine_c[] = {
    GK_R(0.138723564538791203), GK_R(-0.0000823928622555822796), GK_R(2.67209195098656669e-7), GK_R(-2.0742368536819071e-9),
#if GK_DTYPE == GK_F64
    GK_R(2.87339259334291e-11), GK_R(-6.08735209188924493e-13), GK_R(1.79248912446380236e-14), GK_R(-6.87599901968405318e-16),
    GK_R(3.27980363650058797e-17),
#endif
};
GK_CHEBYSHEV(gk_airy_sine)

GK_FN_CALL gk_f gk_airy_ai(gk_f x)
{
    if (x < GK_R(-8.0)) {
        gk_f a = -x, z = GK_R(0.666666666666666667) * a * gk_sqrt(a), t = z - GK_R(0.785398163397448310), w = GK_R(8.0) / a;
        w = GK_R(2.0) * w * w * w - GK_R(1.0);
        gk_f wave = gk_airy_cosine(w) * gk_cos(t) + gk_airy_sine(w) / z * gk_sin(t);
        return gk_isinf(a) ? GK_R(0.0) : GK_R(0.564189583547756287) * wave / gk_sqrt(gk_sqrt(a));
    }
    if (!(x > GK_R(2.0))) return gk_airy_near((x + GK_R(3.0)) * GK_R(0.2));
    gk_f z = GK_R(0.666666666666666667) * x * gk_sqrt(x);
    return gk_exp(-z) * gk_airy_far(GK_R(3.77123616632825434) / z - GK_R(1.0)) / gk_sqrt(gk_sqrt(x));
}

GK_UNARY_FLAT(gk_op_airy_ai, gk_airy_ai(x))

// Units: FLOATS64 x AIRY
GK_KERNEL(airy_flat)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, int wide, gk_f p, gk_f q, gk_f s)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) gk_store(y, i, GK_FWD(gk_load(x, i), p, q, s));
}

GK_KERNEL(airy_nd)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, int rank, GK_DIMS(shape), GK_DIMS(sx), GK_DIMS(sy), gk_f p, gk_f q, gk_f s)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ix = 0, iy = 0;
        GK_ND(i, n, rank, shape, { ix += r * sx.v[d]; iy += r * sy.v[d]; });
        gk_store(y, iy, GK_FWD(gk_load(x, ix), p, q, s));
    }
}
