/* Runs of a linear recurrence that are computed apart: the product of a run's factors, and what a run makes of the state before it. */

/* The smallest number above 0 that no device takes for 0. */
#if GK_DTYPE == GK_F64
#define GK_STATE_LEAST gk_as_f64(0x0010000000000000ul)
#else
#define GK_STATE_LEAST gk_as_f32(0x00800000u)
#endif

/* A product of factors, which is 0 from the first one on that is 0, and only then: what comes before such a factor is forgotten even where an infinite
 * one follows, and an infinite state stays infinite however many small ones it meets. */
GK_FN gk_f gk_state_product(gk_f f, gk_f e)
{
    gk_f p = f * e;
    if (f == GK_R(0.0)) return f;
    if (e != GK_R(0.0) && gk_fabs(p) < GK_STATE_LEAST) return (f < GK_R(0.0)) == (e < GK_R(0.0)) ? GK_STATE_LEAST : -GK_STATE_LEAST;
    return p;
}

/* A run's own state begins with 0: behind such a state it is the whole, whatever its factors are. */
GK_FN gk_f gk_state_behind(gk_f before, gk_f factors, gk_f own) { return before == GK_R(0.0) ? own : factors * before + own; }
