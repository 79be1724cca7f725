/* Forward scans of state-space models and linear attention; state_space/state.h has the formulas.
 *
 * A long sequence is cut into splits of steps where rows alone leave the device idle (not for the delta rule, whose steps are no diagonal factors):
 * state_partial gives each split's state from zero and the product of its factors, state_carry makes of them the state before each split, and
 * state_scan runs each split from there. The thread that has columns of a state keeps them in registers; what the next step reads is on its way
 * while a step is computed. Sums in gk_f. Deterministic: one writer per output, sums over lanes in a fixed tree.
 * References: Yang et al. (2024), Yang et al. (2025), Gu and Dao (2023), Dao and Gu (2024).
 */
#define GK_STATE_KEEP 16
#include "state.h"

// Units: FLOATS64 x STATE_RULES
/* y and the last state. z: y is multiplied by silu(z). Launch: one block per batch, head, tile of rows and split. */
GK_KERNEL(state_scan)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, v), GK_IN(gk_t, gate), GK_IN(gk_t, second), GK_IN(gk_t, skip), GK_IN(gk_t, z),
                      GK_IN(gk_f, initial), GK_IN(gk_f, part), GK_OUT(gk_t, y), GK_OUT(gk_f, state), GK_DIMS(size), int lanes, int softplus, int wide)
{
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, v); GK_BIND_IN(gk_t, gate); GK_BIND_IN(gk_t, second); GK_BIND_IN(gk_t, skip);
    GK_BIND_IN(gk_t, z); GK_BIND_IN(gk_f, initial); GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_f, state);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_state_place p = gk_state_at(&size, lanes);
    gk_state_in in;
    gk_f s[GK_STATE_KEEP], a[GK_STATE_KEEP], q_next[GK_STATE_KEEP], d = GK_R(0.0);
    in.q = q; in.k = k; in.v = v; in.gate = gate; in.second = second; in.wide = wide; in.softplus = softplus;
    gk_state_rates(&in, &p, a);
    GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) s[j] = GK_R(0.0);
    if (part) gk_state_get(part, gk_state_part(&size, &p, 0), &p, s);
    else if (initial) gk_state_get(initial, gk_state_row(&size, &p), &p, s);
    if (skip && p.on) d = gk_load(skip, GK_OP == gk_rule_selective ? p.row : p.h);
    gk_i64 group = p.h / (size.v[1] / size.v[3]);
    gk_state_step next = gk_state_read(&in, &size, &p, p.t0);
    gk_state_load(q, ((p.b * size.v[0] + p.t0) * size.v[3] + group) * p.width, p.n, p.width, wide, q_next);
    for (gk_i64 t = p.t0; t < p.t1; t++) {
        gk_state_step r = next;
        gk_f out, q_now[GK_STATE_KEEP];
        gk_i64 bt = p.b * size.v[0] + t, at = (bt * size.v[1] + p.h) * size.v[2] + p.row;
        GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) q_now[j] = q_next[j];
        if (t + 1 < p.t1) {
            next = gk_state_read(&in, &size, &p, t + 1);
            gk_state_load(q, ((bt + 1) * size.v[3] + group) * p.width, p.n, p.width, wide, q_next);
        }
        gk_state_factors(&r, a, softplus);
        gk_state_advance(s, &r, &p, tmp, lanes);
        out = gk_state_dot(s, q_now, &p, tmp, lanes);
        if (skip) out += d * r.v;
        if (p.on && p.lane == 0) {
            if (z) {
                gk_f g = gk_load(z, at);
                out *= g / (GK_R(1.0) + gk_exp(-g));
            }
            gk_store(y, at, out);
        }
    }
    if (state && p.t1 == size.v[0]) gk_state_put(state, gk_state_row(&size, &p), &p, s);
}

/* A split's state from zero and the product of its factors, [B, H, splits, 2, rows, width]; back: the gradient that it hands to the steps before it,
 * where nothing comes from later ones: e = g (e + dy silu(z) q). Launch: as state_scan. */
GK_KERNEL(state_partial)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, v), GK_IN(gk_t, gate), GK_IN(gk_t, second), GK_IN(gk_t, z), GK_IN(gk_t, dy),
                         GK_OUT(gk_f, part), GK_DIMS(size), int lanes, int softplus, int wide, int back)
{
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, v); GK_BIND_IN(gk_t, gate); GK_BIND_IN(gk_t, second); GK_BIND_IN(gk_t, z);
    GK_BIND_IN(gk_t, dy); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_state_place p = gk_state_at(&size, lanes);
    gk_state_in in;
    gk_f s[GK_STATE_KEEP], f[GK_STATE_KEEP], a[GK_STATE_KEEP];
    /* Backwards q takes the place of k, and dy that of v. */
    in.q = q; in.k = back ? q : k; in.v = back ? dy : v; in.gate = gate; in.second = second; in.wide = wide; in.softplus = softplus;
    gk_state_rates(&in, &p, a);
    GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) { s[j] = GK_R(0.0); f[j] = GK_R(1.0); }
    for (gk_i64 i = p.t0; i < p.t1; i++) {
        gk_i64 t = back ? p.t1 - 1 - (i - p.t0) : i;
        gk_state_step r = gk_state_read(&in, &size, &p, t);
        gk_state_factors(&r, a, softplus);
        GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) f[j] *= r.g[j];
        if (back) {
            gk_f up = r.v;
            if (z && p.on) {
                gk_f g = gk_load(z, ((p.b * size.v[0] + t) * size.v[1] + p.h) * size.v[2] + p.row);
                up *= g / (GK_R(1.0) + gk_exp(-g));
            }
            GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) s[j] = r.g[j] * (s[j] + up * r.k[j]);
        } else {
            gk_state_advance(s, &r, &p, tmp, lanes);
        }
    }
    gk_state_put(part, gk_state_part(&size, &p, 0), &p, s);
    gk_state_put(part, gk_state_part(&size, &p, 1), &p, f);
}
