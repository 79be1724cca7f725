/* The linear recurrence y[t] = a[t] y[t-1] + b[t] along the middle axis of [outer, steps, inner], and what the scans of matrix states share.
 *
 *   db[t] = dy[t] + a[t+1] db[t+1]     da[t] = db[t] y[t-1]
 *
 * A thread has a column, or one of its `splits` runs of `split` steps: recurrence_partial gives each run's result from zero and the product of its
 * factors, from which recurrence_scan finds what a run begins with. Positions are counted in the order of the scan; `reverse` mirrors addresses, and
 * `shift` takes the factor of the step before (the gradient's). Sums in gk_f. Deterministic: the order of additions depends on sizes alone.
 * Reference: Blelloch (1990).
 */
#include "product.h"

/* A thread's column and run of steps; on = 0 behind the last column. */
typedef struct { gk_i64 base, step, k0, k1, o, i; int s, on; } gk_run;

GK_FN gk_run gk_run_of(gk_i64 outer, gk_i64 steps, gk_i64 inner, gk_i64 split, int splits, int reverse)
{
    gk_run r;
    gk_i64 at = gk_gid(), c = at / inner;
    r.i = at % inner;
    r.s = (int)(c % splits);
    r.o = c / splits;
    r.on = r.o < outer;
    r.step = reverse ? -inner : inner;
    r.base = (r.o * steps + (reverse ? steps - 1 : 0)) * inner + r.i;
    r.k0 = r.s * split;
    r.k1 = r.k0 + split < steps ? r.k0 + split : steps;
    return r;
}

/* The factor of position k of the scan. */
GK_FN gk_f gk_run_factor(GK_GLOBAL const gk_t* a, gk_run r, gk_i64 k, int shift)
{
    if (shift && k == 0) return GK_R(0.0);
    return gk_load(a, r.base + (k - shift) * r.step);
}

/* Steps whose factors and summands are all on their way before the first is used; behind the run, those of its last step again. */
#define GK_AHEAD 8
#define GK_AHEAD_STEP(k, u) ((k) + (u) < r.k1 ? (k) + (u) : r.k1 - 1)
GK_FN void gk_run_ahead(gk_f g[GK_AHEAD], gk_f v[GK_AHEAD], GK_GLOBAL const gk_t* a, GK_GLOBAL const gk_t* b, gk_run r, gk_i64 k, int shift)
{
    GK_UNROLL for (int u = 0; u < GK_AHEAD; u++) {
        gk_i64 q = GK_AHEAD_STEP(k, u);
        g[u] = gk_run_factor(a, r, q, shift);
        v[u] = gk_load(b, r.base + q * r.step);
    }
}

// Units: FLOATS64
/* part [outer, splits, 2, inner]. Launch: a thread per column and run. */
GK_KERNEL(recurrence_partial)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_f, part), gk_i64 outer, gk_i64 steps, gk_i64 inner, gk_i64 split, int splits,
                              int reverse, int shift)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_f, part);
    gk_run r = gk_run_of(outer, steps, inner, split, splits, reverse);
    if (r.on) {
        gk_f h = GK_R(0.0), f = GK_R(1.0);
        gk_i64 at = (r.o * splits + r.s) * 2 * inner + r.i;
        for (gk_i64 k = r.k0; k < r.k1; k += GK_AHEAD) {
            gk_f g[GK_AHEAD], v[GK_AHEAD];
            gk_run_ahead(g, v, a, b, r, k, shift);
            GK_UNROLL for (int u = 0; u < GK_AHEAD; u++) {
                if (k + u >= r.k1) break;
                h = g[u] * h + v[u];
                f = gk_state_product(f, g[u]);
            }
        }
        part[at] = h;
        part[at + inner] = f;
    }
}

/* y, or with `before` (the forward's result) da = y times the element of `before` that precedes in the forward's order, here the next one; y and da
 * may be null. accumulate: 1 = y, 2 = da. Launch: a thread per column and run. */
GK_KERNEL(recurrence_scan)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_t, before), GK_IN(gk_f, part), GK_OUT(gk_t, y), GK_OUT(gk_t, da), gk_i64 outer,
                           gk_i64 steps, gk_i64 inner, gk_i64 split, int splits, int reverse, int shift, int accumulate)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(gk_t, before); GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, da);
    gk_run r = gk_run_of(outer, steps, inner, split, splits, reverse);
    if (r.on) {
        gk_f h = GK_R(0.0);
        for (int s = 0; s < r.s; s++) {
            gk_i64 at = (r.o * splits + s) * 2 * inner + r.i;
            h = gk_state_behind(h, part[at + inner], part[at]);
        }
        for (gk_i64 k = r.k0; k < r.k1; k += GK_AHEAD) {
            gk_f g[GK_AHEAD], v[GK_AHEAD], p[GK_AHEAD];
            gk_run_ahead(g, v, a, b, r, k, shift);
            GK_UNROLL for (int u = 0; u < GK_AHEAD; u++) {
                gk_i64 q = GK_AHEAD_STEP(k, u);
                p[u] = GK_R(0.0);
                if (da && q + 1 < steps) p[u] = gk_load(before, r.base + (q + 1) * r.step);
            }
            GK_UNROLL for (int u = 0; u < GK_AHEAD; u++) {
                gk_i64 at = r.base + (k + u) * r.step;
                if (k + u >= r.k1) break;
                h = g[u] * h + v[u];
                if (y) gk_store(y, at, (accumulate & 1) ? gk_load(y, at) + h : h);
                if (da) {
                    gk_f d = GK_R(0.0);
                    if (k + u + 1 < steps) d = h * p[u];
                    gk_store(da, at, (accumulate & 2) ? gk_load(da, at) + d : d);
                }
            }
        }
    }
}

/* In the first half of each split's [2, rows, width]: the state before the split (back: the gradient behind it) in place of its own.
 * `each` = rows * width, `n` = B * H * each. Launch: grid-stride. */
GK_KERNEL(state_carry)(GK_IN(gk_f, initial), GK_OUT(gk_f, part), gk_i64 n, gk_i64 each, int splits, int back)
{
    GK_BIND_IN(gk_f, initial); GK_BIND_OUT(gk_f, part);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 first = i / each * splits * 2 * each + i % each;
        gk_f carry = initial ? initial[i] : GK_R(0.0);
        for (int k = 0; k < splits; k++) {
            gk_i64 at = first + (gk_i64)(back ? splits - 1 - k : k) * 2 * each;
            gk_f own = part[at], f = part[at + each];
            part[at] = carry;
            carry = gk_state_behind(carry, f, own);
        }
    }
}

/* y[o, i] = sum over p of part[o, p, i]. Launch: grid-stride. */
GK_KERNEL(state_sum)(GK_IN(gk_f, part), GK_OUT(gk_t, y), gk_i64 outer, gk_i64 parts, gk_i64 inner, int accumulate)
{
    GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < outer * inner; i += gk_gsize()) {
        gk_i64 at = i / inner * parts * inner + i % inner;
        gk_f s = GK_R(0.0);
        for (gk_i64 k = 0; k < parts; k++) s += part[at + k * inner];
        if (accumulate) s += gk_load(y, i);
        gk_store(y, i, s);
    }
}
