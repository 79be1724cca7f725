/* Sine and cosine of angles that are given as parts of a turn, whose quarters are split off exactly. */
#ifndef GK_TURN_H
#define GK_TURN_H

/* sin and cos of up to pi / 4: no quarters are left to split off. In f32 the polynomials of the Cephes library, within 1 ULP. */
#if GK_DTYPE == GK_F64
#define gk_sin_small(a) gk_sin(a)
#define gk_cos_small(a) gk_cos(a)
#else
GK_FN float gk_sin_small(float a)
{
    float z = a * a;
    return a + a * z * ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f);
}
GK_FN float gk_cos_small(float a)
{
    float z = a * a;
    return 1.0f - 0.5f * z + z * z * ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f);
}
#endif

typedef struct { gk_f sin, cos; } gk_sin_cos;
/* Of `quarter` quarters of a turn and the angle a, of up to pi / 4. Both come from the same two polynomials, and no branch divides the threads. */
GK_FN gk_sin_cos gk_sin_cos_of(int quarter, gk_f a)
{
    gk_f s = gk_sin_small(a), c = gk_cos_small(a);
    gk_sin_cos r;
    r.sin = (quarter & 1) ? c : s;
    r.cos = (quarter & 1) ? s : c;
    if (quarter & 2) r.sin = -r.sin;
    if ((quarter + 1) & 2) r.cos = -r.cos;
    return r;
}
#endif
