/* Lattices of sequence losses: log-probabilities of positions, each step's from those of the step before.
 *
 * A block serves a sample. The values of two steps lie in local memory in turn, so that one barrier per step does, and a thread loads what its
 * positions need in the steps to come before it works on the steps that it has; more than GK_LOSS_HELD positions go through global memory.
 */
#ifndef GK_LATTICE_H
#define GK_LATTICE_H

/* Positions that local memory holds, and a thread. */
#define GK_LOSS_SLOTS 4
#define GK_LOSS_HELD (GK_LOSS_SLOTS * GK_BLOCK)
/* Values that a thread loads ahead: of so many steps for one position, of fewer for more. Even, so that a run of steps ends in the second half of
 * the local memory. */
#define GK_LOSS_AHEAD 8

/* The next of a run of steps: v, at most `most`, and 0 for all that is negative. */
GK_FN int gk_loss_left(gk_i64 v, const int most) { return v < 0 ? 0 : v < most ? (int)v : most; }

/* e^x for x <= 0 by a power of 2, which takes fewer instructions: its relative error grows with |x|, that of a sum beside 1 does not. */
GK_FN gk_f gk_loss_power(gk_f x) { return gk_exp2_t(x * GK_R(1.4426950408889634)); }

/* ln(e^a + e^b), ln(e^a + e^b + e^c): -inf where all are, NaN where one is. */
GK_FN gk_f gk_lse2(gk_f a, gk_f b)
{
    gk_f m = gk_max(a, b), from = m == -GK_INF ? GK_R(0.0) : m;
    return from + gk_log(gk_loss_power(a - from) + gk_loss_power(b - from));
}
GK_FN gk_f gk_lse3(gk_f a, gk_f b, gk_f c)
{
    gk_f m = gk_max(gk_max(a, b), c), from = m == -GK_INF ? GK_R(0.0) : m;
    return from + gk_log(gk_loss_power(a - from) + gk_loss_power(b - from) + gk_loss_power(c - from));
}

/* The factor of the gradient of sample b. */
GK_FN gk_f gk_loss_gy(GK_GLOBAL const gk_t* gy, gk_i64 b, gk_f factor, int each, int gy_f32)
{
    return factor * (each ? gk_load(gy, b) : gy_f32 ? (gk_f)((GK_GLOBAL const float*)gy)[0] : gk_load(gy, 0));
}

#endif
