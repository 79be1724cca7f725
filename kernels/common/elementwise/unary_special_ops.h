/* Special functions of one value. Names and edge cases are those of torch.special.<name>; the tables are Chebyshev series that were fitted with 45
 * digits. */
#include "functions.h"
#include "common/prelude/special.h"

/* ---- error functions and the normal distribution ---------------------------------------------------------------------------- */

/* (1 + 2 x) e^(x^2) erfc(x) in (x - 3) / (x + 3) (M. Shepherd, J. Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x", 1981). */
GK_CONST gk_f gk_erfcx_series_c[] = {
    GK_R(2.35512514839312009), GK_R(0.00535390453961567677), GK_R(-0.0937755034228420905), GK_R(0.0543665255574432205), GK_R(-0.0189765967078452074),
    GK_R(0.00445342606146271157), GK_R(-0.000633553171055314694), GK_R(0.0000176617195231715919), GK_R(0.0000128415328640566707),
    GK_R(-2.00722856590599144e-6), GK_R(-1.80752279041483710e-7), GK_R(7.54982834382509283e-8),
#if GK_DTYPE == GK_F64
    GK_R(1.88566852383860279e-9), GK_R(-2.69951904979836400e-9), GK_R(-1.46007911993910494e-11), GK_R(1.03616074459694897e-10),
    GK_R(1.47571597662347301e-12), GK_R(-4.27734006439691082e-12), GK_R(-2.07922492859798998e-13), GK_R(1.81345020031769624e-13),
    GK_R(1.97342557454473883e-14), GK_R(-7.28794373759267316e-15), GK_R(-1.51698786902281157e-15), GK_R(2.35141122587814035e-16),
    GK_R(1.00061116918216676e-16),
#endif
};
GK_CHEBYSHEV(gk_erfcx_series)

GK_FN_CALL gk_f gk_erfcx(gk_f x)
{
    gk_f a = gk_fabs(x), y = gk_erfcx_series(GK_R(1.0) - GK_R(6.0) / (a + GK_R(3.0))) / (GK_R(1.0) + GK_R(2.0) * a);
    return x < GK_R(0.0) ? GK_R(2.0) * gk_exp(x * x) - y : y;
}

/* 2 x erfcx(x) - 2 / sqrt(pi); the asymptotic series where the two are nearly equal. */
GK_FN_CALL gk_f gk_erfcx_slope(gk_f x)
{
    if (!(x > GK_R(100.0))) return GK_R(2.0) * x * gk_erfcx(x) - GK_R(1.12837916709551257);
    gk_f z = GK_R(0.5) / x / x;
    return GK_R(-1.12837916709551257) * z * (GK_R(1.0) - GK_R(3.0) * z * (GK_R(1.0) - GK_R(5.0) * z));
}

GK_FN_CALL gk_f gk_log_ndtr(gk_f x)
{
    gk_f z = x * GK_R(0.707106781186547524);
    if (x < GK_R(-1.0)) return gk_log(GK_R(0.5) * gk_erfcx(-z)) - z * z;
    return gk_log1p(GK_R(-0.5) * gk_erfc(z));
}

GK_FN_CALL gk_f gk_log_ndtr_slope(gk_f x) { return GK_R(0.797884560802865356) / gk_erfcx(x * GK_R(-0.707106781186547524)); }

/* Quantiles: by the inverse of erf in the middle; in the tails Newton's method on log_ndtr, which is concave, from the left. */
GK_FN_CALL gk_f gk_ndtri(gk_f p)
{
    gk_f tail = p > GK_R(0.5) ? GK_R(1.0) - p : p, x;
    if (!(tail >= GK_R(0.0))) return GK_NAN;
    if (tail > GK_R(0.1)) {
        x = GK_R(-1.41421356237309505) * gk_erfinv(GK_R(1.0) - GK_R(2.0) * tail);
    } else {
        gk_f target = gk_log(tail);
        x = -gk_sqrt(GK_R(-2.0) * target);
        for (int i = 0; i < 6 && !gk_isinf(x); i++) x -= (gk_log_ndtr(x) - target) / gk_log_ndtr_slope(x);
    }
    return p > GK_R(0.5) ? -x : x;
}

/* ---- Bessel functions -------------------------------------------------------------------------------------------------------
 * Series in x^2 / 32 - 1 for x <= 8: of J0, J1 / x, Y0 - 2/pi ln(x) J0 and (Y1 - 2/pi (ln(x) J1 - 1/x)) / x. Above, with c = sqrt(2 / (pi x)) and
 * t = x - (2 n + 1) pi / 4, Jn = c (P cos t - Q sin t) and Yn = c (P sin t + Q cos t), and series of P and Q x / 8 in 128 / x^2 - 1. */

GK_CONST gk_f gk_j0_near_c[] = {
    GK_R(0.315455942949780239), GK_R(-0.00872344235285222129), GK_R(0.265178613203336810), GK_R(-0.370094993872649779), GK_R(0.158067102332097261),
    GK_R(-0.0348937694114088852), GK_R(0.00481918006946760450), GK_R(-0.000460626166206275048), GK_R(0.0000324603288210050808),
    GK_R(-1.76194690776215075e-6), GK_R(7.60816359241878187e-8), GK_R(-2.67925353055767290e-9),
#if GK_DTYPE == GK_F64
    GK_R(7.84869631447946442e-11), GK_R(-1.94383468673701657e-12), GK_R(4.12532059563437393e-14), GK_R(-7.58850812544754634e-16),
    GK_R(1.22185158739614110e-17),
#endif
};
GK_CHEBYSHEV(gk_j0_near)
GK_CONST gk_f gk_j1_near_c[] = {
    GK_R(0.162089692651316230), GK_R(-0.148975145067652109), GK_R(0.160999262357209703), GK_R(-0.0826804917668179066), GK_R(0.0222136396549660354),
    GK_R(-0.00364694060076927596), GK_R(0.000405033772835482183), GK_R(-0.0000325555486685725852), GK_R(1.98587740499151674e-6),
    GK_R(-9.52198475675043618e-8), GK_R(3.68713375909714824e-9),
#if GK_DTYPE == GK_F64
    GK_R(-1.17802662269588484e-10), GK_R(3.16015458034800332e-12), GK_R(-7.22175523965177343e-14), GK_R(1.42321440035139423e-15),
    GK_R(-2.44419729161904639e-17),
#endif
};
GK_CHEBYSHEV(gk_j1_near)
GK_CONST gk_f gk_y0_near_c[] = {
    GK_R(-0.0662922264065698833), GK_R(-0.274474305529745265), GK_R(0.179034314077182663), GK_R(0.261567346255046637), GK_R(-0.177302012781143582),
    GK_R(0.0471966895957633869), GK_R(-0.00728796247955207918), GK_R(0.000753113593257774228), GK_R(-0.0000563207914105698698),
    GK_R(3.20653253765480098e-6), GK_R(-1.44072332740186995e-7), GK_R(5.24879478733051612e-9),
#if GK_DTYPE == GK_F64
    GK_R(-1.58375525418120151e-10), GK_R(4.02633081830612075e-12), GK_R(-8.74734120331076955e-14), GK_R(1.64348987149194690e-15),
    GK_R(-2.69778811525668356e-17),
#endif
};
GK_CHEBYSHEV(gk_y0_near)
GK_CONST gk_f gk_y1_near_c[] = {
    GK_R(0.00507602647148356346), GK_R(-0.0160871730476687502), GK_R(-0.0959120453608307425), GK_R(0.0844519725965234584),
    GK_R(-0.0283281239445943656), GK_R(0.00528989754416711301), GK_R(-0.000641455145132635599), GK_R(0.0000550598287333874384),
    GK_R(-3.53808001868934990e-6), GK_R(1.77078045561544034e-7), GK_R(-7.11055004989927978e-9),
#if GK_DTYPE == GK_F64
    GK_R(2.34433790591151639e-10), GK_R(-6.46515184141159424e-12), GK_R(1.51429151205001995e-13), GK_R(-3.05118596944732527e-15),
    GK_R(5.34668038572867012e-17), GK_R(-8.22491137202158463e-19),
#endif
};
GK_CHEBYSHEV(gk_y1_near)
GK_CONST gk_f gk_j0_cosine_c[] = {
    GK_R(1.99892069869503733), GK_R(-0.000536522046813211742), GK_R(3.07518478751947462e-6), GK_R(-5.17059453760609770e-8),
#if GK_DTYPE == GK_F64
    GK_R(1.63064646351513831e-9), GK_R(-7.86409137723707000e-11), GK_R(5.16826238734919246e-12), GK_R(-4.30457886992539122e-13),
    GK_R(4.32659574315494056e-14), GK_R(-5.06903409593523608e-15), GK_R(6.74807221573387370e-16), GK_R(-1.00115137234677858e-16),
    GK_R(1.63059192337441847e-17),
#endif
};
GK_CHEBYSHEV(gk_j0_cosine)
GK_CONST gk_f gk_j0_sine_c[] = {
    GK_R(-0.0311117092106740182), GK_R(0.0000683851994261164960), GK_R(-7.41449841106064726e-7), GK_R(1.79724572479689918e-8),
    GK_R(-7.27191593686631998e-10),
#if GK_DTYPE == GK_F64
    GK_R(4.22012190466873844e-11), GK_R(-3.20674742099663474e-12), GK_R(3.00614512535170631e-13), GK_R(-3.33632818532242700e-14),
    GK_R(4.25522504024546112e-15), GK_R(-6.09993013164005001e-16), GK_R(9.66212897030325674e-17), GK_R(-1.66860652143781463e-17),
    GK_R(3.10824404867381443e-18), GK_R(-6.19111578735814493e-19),
#endif
};
GK_CHEBYSHEV(gk_j0_sine)
GK_CONST gk_f gk_j1_cosine_c[] = {
    GK_R(2.00180608172002740), GK_R(0.000898989833085940856), GK_R(-3.98728430048890852e-6), GK_R(6.17763396064429853e-8),
#if GK_DTYPE == GK_F64
    GK_R(-1.87189074910630661e-9), GK_R(8.81689865958233890e-11), GK_R(-5.70486364039564470e-12), GK_R(4.69919551523054238e-13),
    GK_R(-4.68422378399048922e-14), GK_R(5.45267489604471717e-15), GK_R(-7.22118084227401792e-16), GK_R(1.06676891143354125e-16),
    GK_R(-1.73123132161163350e-17),
#endif
};
GK_CHEBYSHEV(gk_j1_cosine)
GK_CONST gk_f gk_j1_sine_c[] = {
    GK_R(0.0935555741390706505), GK_R(-0.0000962772354915707932), GK_R(9.13861525795545412e-7), GK_R(-2.09597813840834225e-8),
    GK_R(8.22919332765055413e-10),
#if GK_DTYPE == GK_F64
    GK_R(-4.68636368817694523e-11), GK_R(3.51521879496860809e-12), GK_R(-3.26431567432789993e-13), GK_R(3.59677658291652919e-14),
    GK_R(-4.56125239507729719e-15), GK_R(6.50828295778338395e-16), GK_R(-1.02691475318232429e-16), GK_R(1.76763554877647916e-17),
    GK_R(-3.28345198729816146e-18),
#endif
};
GK_CHEBYSHEV(gk_j1_sine)

/* c (P u - Q v) for x > 8, u and v being cosine and sine of t (Jn), or sine and minus cosine (Yn); both come as sums of sin(x) and cos(x). */
GK_FN gk_f gk_bessel_far(gk_f x, gk_f u, gk_f v, const int order)
{
    gk_f z = GK_R(8.0) / x, t = GK_R(2.0) * z * z - GK_R(1.0);
    gk_f p = order ? gk_j1_cosine(t) : gk_j0_cosine(t), q = z * (order ? gk_j1_sine(t) : gk_j0_sine(t));
    /* sqrt(2 / pi / x) sqrt(1/2) */
    return gk_isinf(x) ? GK_R(0.0) : GK_R(0.564189583547756287) / gk_sqrt(x) * (p * u - q * v);
}
GK_FN_CALL gk_f gk_bessel_j0(gk_f x)
{
    gk_f a = gk_fabs(x), s = gk_sin(a), c = gk_cos(a);
    return a <= GK_R(8.0) ? gk_j0_near(a * a / GK_R(32.0) - GK_R(1.0)) : gk_bessel_far(a, c + s, s - c, 0);
}
GK_FN_CALL gk_f gk_bessel_j1(gk_f x)
{
    gk_f a = gk_fabs(x), s = gk_sin(a), c = gk_cos(a);
    gk_f y = a <= GK_R(8.0) ? a * gk_j1_near(a * a / GK_R(32.0) - GK_R(1.0)) : gk_bessel_far(a, s - c, -s - c, 1);
    return x < GK_R(0.0) ? -y : y;
}
GK_FN_CALL gk_f gk_bessel_y0(gk_f x)
{
    gk_f s = gk_sin(x), c = gk_cos(x);
    if (x < GK_R(0.0)) return GK_NAN;
    if (x > GK_R(8.0)) return gk_bessel_far(x, s - c, -s - c, 0);
    return GK_R(0.636619772367581343) * gk_log(x) * gk_bessel_j0(x) + gk_y0_near(x * x / GK_R(32.0) - GK_R(1.0));
}
GK_FN_CALL gk_f gk_bessel_y1(gk_f x)
{
    gk_f s = gk_sin(x), c = gk_cos(x);
    if (x < GK_R(0.0)) return GK_NAN;
    if (x > GK_R(8.0)) return gk_bessel_far(x, -s - c, c - s, 1);
    if (x == GK_R(0.0)) return -GK_INF;
    return GK_R(0.636619772367581343) * (gk_log(x) * gk_bessel_j1(x) - GK_R(1.0) / x) + x * gk_y1_near(x * x / GK_R(32.0) - GK_R(1.0));
}

/* Series of K0 + ln(x/2) I0 and x (K1 - ln(x/2) I1) in x^2 / 2 - 1 for x <= 2, of e^x sqrt(x) Kn in 4 / x - 1 above. */
GK_CONST gk_f gk_k0_near_c[] = {
    GK_R(-0.535327393233902769), GK_R(0.344289899924628487), GK_R(0.0359799365153615016), GK_R(0.00126461541144692592),
    GK_R(0.0000228621210311945179), GK_R(2.53479107902614946e-7), GK_R(1.90451637722020886e-9),
#if GK_DTYPE == GK_F64
    GK_R(1.03496952576336246e-11), GK_R(4.25981614279108258e-14), GK_R(1.37446543588075090e-16),
#endif
};
GK_CHEBYSHEV(gk_k0_near)
GK_CONST gk_f gk_k1_near_c[] = {
    GK_R(1.52530022733894777), GK_R(-0.353155960776544876), GK_R(-0.122611180822657148), GK_R(-0.00697572385963986435),
    GK_R(-0.000173028895751305206), GK_R(-2.43340614156596823e-6), GK_R(-2.21338763073472586e-8),
#if GK_DTYPE == GK_F64
    GK_R(-1.41148839263352776e-10), GK_R(-6.66690169419932901e-13), GK_R(-2.42744985051936593e-15),
#endif
};
GK_CHEBYSHEV(gk_k1_near)
GK_CONST gk_f gk_k0_far_c[] = {
    GK_R(2.44030308206595545), GK_R(-0.0314481013119645005), GK_R(0.00156988388573005337), GK_R(-0.000128495495816278026),
    GK_R(0.0000139498137188764994), GK_R(-1.83175552271911948e-6), GK_R(2.76681363944501508e-7), GK_R(-4.66048989768794767e-8),
    GK_R(8.57403401741422609e-9),
#if GK_DTYPE == GK_F64
    GK_R(-1.69753450938906152e-9), GK_R(3.57739728140032845e-10), GK_R(-7.95748924447739704e-11), GK_R(1.85594911495492655e-11),
    GK_R(-4.51459788337451918e-12), GK_R(1.14034058820734423e-12), GK_R(-2.98009692314817835e-13), GK_R(8.03289077506837437e-14),
    GK_R(-2.22751332674629636e-14), GK_R(6.34007647627664597e-15), GK_R(-1.84859337792090717e-15), GK_R(5.51205599940433336e-16),
    GK_R(-1.67823112575490064e-16), GK_R(5.21039177764355411e-17),
#endif
};
GK_CHEBYSHEV(gk_k0_far)
GK_CONST gk_f gk_k1_far_c[] = {
    GK_R(2.72062619048444267), GK_R(0.103923736576817238), GK_R(-0.00285781685962277939), GK_R(0.000195215518471351631),
    GK_R(-0.0000193619797416608296), GK_R(2.40648494783721712e-6), GK_R(-3.50196060308781254e-7), GK_R(5.74108412545004929e-8),
    GK_R(-1.03457624656780970e-8),
#if GK_DTYPE == GK_F64
    GK_R(2.01504975519703462e-9), GK_R(-4.19035475934192558e-10), GK_R(9.21831518760531413e-11), GK_R(-2.12996783842779102e-11),
    GK_R(5.13963967348234354e-12), GK_R(-1.28917396094982294e-12), GK_R(3.34841966605224312e-13), GK_R(-8.97670518201014607e-14),
    GK_R(2.47715442421959868e-14), GK_R(-7.01983708921476885e-15), GK_R(2.03870316623986088e-15), GK_R(-6.05704727064301782e-16),
    GK_R(1.83809357524304543e-16), GK_R(-5.68946284919364837e-17),
#endif
};
GK_CHEBYSHEV(gk_k1_far)

/* e^x K0(x), e^x K1(x) */
GK_FN_CALL gk_f gk_k0e(gk_f x)
{
    if (x < GK_R(0.0)) return GK_NAN;
    if (x == GK_R(0.0)) return GK_INF;
    if (x > GK_R(2.0)) return gk_k0_far(GK_R(4.0) / x - GK_R(1.0)) / gk_sqrt(x);
    return gk_exp(x) * (gk_k0_near(GK_R(0.5) * x * x - GK_R(1.0)) - gk_log(GK_R(0.5) * x) * gk_i0(x));
}
GK_FN_CALL gk_f gk_k1e(gk_f x)
{
    if (x < GK_R(0.0)) return GK_NAN;
    if (x == GK_R(0.0)) return GK_INF;
    if (x > GK_R(2.0)) return gk_k1_far(GK_R(4.0) / x - GK_R(1.0)) / gk_sqrt(x);
    return gk_exp(x) * (gk_k1_near(GK_R(0.5) * x * x - GK_R(1.0)) / x + gk_log(GK_R(0.5) * x) * gk_i1(x));
}

/* Slopes that are differences; their limits at 0. */
GK_FN gk_f gk_j1_slope(gk_f x) { return x == GK_R(0.0) ? GK_R(0.5) : gk_bessel_j0(x) - gk_bessel_j1(x) / x; }
GK_FN gk_f gk_y1_slope(gk_f x) { return x == GK_R(0.0) ? GK_INF : gk_bessel_y0(x) - gk_bessel_y1(x) / x; }
GK_FN gk_f gk_k1_slope(gk_f x) { return x == GK_R(0.0) ? -GK_INF : -gk_exp(-x) * (gk_k0e(x) + gk_k1e(x) / x); }
GK_FN gk_f gk_k0e_slope(gk_f x) { return x == GK_R(0.0) ? -GK_INF : gk_k0e(x) - gk_k1e(x); }
GK_FN gk_f gk_k1e_slope(gk_f x) { return x == GK_R(0.0) ? -GK_INF : gk_k1e(x) * (GK_R(1.0) - GK_R(1.0) / x) - gk_k0e(x); }

GK_UNARY(gk_op_erfcx, gk_erfcx(x), dy * gk_erfcx_slope(x))
GK_UNARY(gk_op_log_ndtr, gk_log_ndtr(x), dy * gk_log_ndtr_slope(x))
GK_UNARY(gk_op_ndtri, gk_ndtri(x), dy * (GK_R(2.50662827463100050) * gk_exp(GK_R(0.5) * gk_ndtri(x) * gk_ndtri(x))))
GK_UNARY(gk_op_bessel_j0, gk_bessel_j0(x), -dy * gk_bessel_j1(x))
GK_UNARY(gk_op_bessel_j1, gk_bessel_j1(x), dy * gk_j1_slope(x))
GK_UNARY(gk_op_bessel_y0, gk_bessel_y0(x), -dy * gk_bessel_y1(x))
GK_UNARY(gk_op_bessel_y1, gk_bessel_y1(x), dy * gk_y1_slope(x))
GK_UNARY(gk_op_k0, gk_exp(-x) * gk_k0e(x), -dy * (gk_exp(-x) * gk_k1e(x)))
GK_UNARY(gk_op_k1, gk_exp(-x) * gk_k1e(x), dy * gk_k1_slope(x))
GK_UNARY(gk_op_k0e, gk_k0e(x), dy * gk_k0e_slope(x))
GK_UNARY(gk_op_k1e, gk_k1e(x), dy * gk_k1e_slope(x))
