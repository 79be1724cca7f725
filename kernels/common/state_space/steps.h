/* Steps of a state read from memory one by one; state_space/state.h has the rules.
 *
 * `lanes` threads side by side share a row, GK_STATE_KEEP columns each; a block has GK_BLOCK / lanes rows of one batch and head, and one of `splits` runs
 * of `split` steps.
 */
#define GK_STATE_KEEP 4
#include "common/activation/activation_ops.h"
#include "state.h"

/* A thread's place: batch, head, row, lane and first column; its run of steps; the block's tile of rows. */
typedef struct { gk_i64 b, h, row, tile, tiles, t0, t1, s; int lane, n, width, on; } gk_state_place;

GK_FN gk_state_place gk_state_at(const gk_dims* size, int lanes)
{
    gk_state_place p;
    int rows = GK_BLOCK / lanes;
    gk_i64 block = gk_bid(0), bh;
    p.tiles = (size->v[2] + rows - 1) / rows;
    p.s = block % size->v[5];
    block /= size->v[5];
    p.tile = block % p.tiles;
    bh = block / p.tiles;
    p.b = bh / size->v[1];
    p.h = bh % size->v[1];
    p.lane = gk_lid() % lanes;
    p.row = p.tile * rows + gk_lid() / lanes;
    p.n = p.lane * GK_STATE_KEEP;
    p.width = (int)size->v[6];
    p.on = p.row < size->v[2];
    p.t0 = p.s * size->v[4];
    p.t1 = p.t0 + size->v[4] < size->v[0] ? p.t0 + size->v[4] : size->v[0];
    return p;
}

/* Columns n .. n + GK_STATE_KEEP of a row of `width` that begins at `at`, 0 beyond it. wide: rows are whole items of 16 bytes. */
GK_FN void gk_state_load(GK_GLOBAL const gk_t* p, gk_i64 at, int n, int width, int wide, gk_f v[GK_STATE_KEEP])
{
#if GK_W <= GK_STATE_KEEP
    if (wide && n + GK_STATE_KEEP <= width) {
        GK_UNROLL for (int q = 0; q < GK_STATE_KEEP; q += GK_W) {
            gk_vec w = gk_loadv(p, at + n + q);
            GK_UNROLL for (int u = 0; u < GK_W; u++) v[q + u] = w.v[u];
        }
        return;
    }
#endif
    GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) {
        v[j] = GK_R(0.0);
        if (n + j < width) v[j] = gk_load(p, at + n + j);
    }
}

/* The same of a matrix of gk_f. */
GK_FN void gk_state_get(GK_GLOBAL const gk_f* p, gk_i64 at, const gk_state_place* w, gk_f v[GK_STATE_KEEP])
{
    GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) {
        v[j] = GK_R(0.0);
        if (w->on && w->n + j < w->width) v[j] = p[at + w->n + j];
    }
}
GK_FN void gk_state_put(GK_GLOBAL gk_f* p, gk_i64 at, const gk_state_place* w, const gk_f v[GK_STATE_KEEP])
{
    GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) {
        if (w->on && w->n + j < w->width) p[at + w->n + j] = v[j];
    }
}

/* Where the row of a thread begins in [batch, heads, rows, width], and in part `side` of a split's [2, rows, width]. */
GK_FN gk_i64 gk_state_row(const gk_dims* size, const gk_state_place* p)
{
    return ((p->b * size->v[1] + p->h) * size->v[2] + p->row) * p->width;
}
GK_FN gk_i64 gk_state_part(const gk_dims* size, const gk_state_place* p, int side)
{
    return ((((p->b * size->v[1] + p->h) * size->v[5] + p->s) * 2 + side) * size->v[2] + p->row) * p->width;
}

/* Rates of a thread's columns times log2 e, 0 where the rule has none. */
GK_FN void gk_state_rates(const gk_state_in* in, const gk_state_place* p, gk_f a[GK_STATE_KEEP])
{
    GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) a[j] = GK_R(0.0);
    if (GK_OP == gk_rule_selective && p->on) gk_state_load(in->second, p->row * p->width, p->n, p->width, in->wide, a);
    if (GK_OP == gk_rule_ssd) {
        GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) a[j] = gk_load(in->second, p->h);
    }
    GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) a[j] *= GK_STATE_LOG2E;
}

/* What a step reads: factors (for gk_rule_selective and gk_rule_ssd the step size alone), key, value, strength. */
typedef struct { gk_f g[GK_STATE_KEEP], k[GK_STATE_KEEP], v, dt, raw, beta; } gk_state_step;

GK_FN gk_state_step gk_state_read(const gk_state_in* in, const gk_dims* size, const gk_state_place* p, gk_i64 t)
{
    gk_state_step r;
    gk_i64 bt = p->b * size->v[0] + t, head = bt * size->v[1] + p->h;
    gk_i64 key = (bt * size->v[3] + p->h / (size->v[1] / size->v[3])) * p->width;
    gk_state_load(in->k, key, p->n, p->width, in->wide, r.k);
    r.v = GK_R(0.0); r.raw = GK_R(0.0); r.dt = GK_R(1.0); r.beta = GK_R(1.0);
    if (p->on) r.v = gk_load(in->v, head * size->v[2] + p->row);
    if (GK_OP == gk_rule_gla_key) {
        gk_state_load(in->gate, key, p->n, p->width, in->wide, r.g);
    } else if (GK_OP == gk_rule_selective) {
        if (p->on) r.raw = gk_load(in->gate, head * size->v[2] + p->row);
    } else {
        r.raw = gk_load(in->gate, head);
    }
    if (GK_OP == gk_rule_delta) r.beta = gk_load(in->second, head);
    return r;
}

/* Makes step sizes and factors of what was read. */
GK_FN void gk_state_factors(gk_state_step* r, const gk_f a[GK_STATE_KEEP], int softplus)
{
    if (GK_STATE_EXP) {
        r->dt = r->raw;
        if (softplus) r->dt = gk_softplus(r->raw, GK_R(1.0), GK_R(20.0));
        if (GK_OP == gk_rule_ssd) r->g[0] = gk_exp2(r->dt * a[0]);
        GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) r->g[j] = GK_OP == gk_rule_ssd ? r->g[0] : gk_exp2(r->dt * a[j]);
    } else if (GK_OP != gk_rule_gla_key) {
        GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) r->g[j] = r->raw;
    }
}

/* A sum over the lanes of a row, of the products of two runs of columns. Columns behind the last are left out: an infinite u makes NaN of them. */
GK_FN gk_f gk_state_dot(const gk_f a[GK_STATE_KEEP], const gk_f b[GK_STATE_KEEP], const gk_state_place* p, GK_LOCAL_PTR gk_f* tmp, int lanes)
{
    gk_f s = GK_R(0.0);
    if (p->n + GK_STATE_KEEP <= p->width) {
        GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) s += a[j] * b[j];
    } else {
        GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) {
            if (p->n + j < p->width) s += a[j] * b[j];
        }
    }
    if (GK_OP == gk_rule_delta) {
        /* One after the other between two barriers: every sweep of this rule needs the sum, and compilers for CPUs, which take loops apart at
         * barriers, need minutes for trees of barriers in so many of them. */
        int first = gk_lid() / lanes * lanes;
        tmp[gk_lid()] = s;
        GK_BARRIER();
        s = GK_R(0.0);
        for (int i = 0; i < lanes; i++) s += tmp[first + i];
        GK_BARRIER();
        return s;
    }
    /* In no branch on arguments: compilers would merge it with those before. */
    return gk_group_sum(s, tmp, lanes);
}

/* The input u of a step; `dot` = sum S k for the delta rule. */
GK_FN gk_f gk_state_input(const gk_state_step* r, gk_f dot)
{
    if (GK_OP == gk_rule_delta) return r->beta * (r->v - r->g[0] * dot);
    return GK_STATE_EXP ? r->dt * r->v : r->v;
}

/* One step of a state. */
GK_FN void gk_state_advance(gk_f s[GK_STATE_KEEP], const gk_state_step* r, const gk_state_place* p, GK_LOCAL_PTR gk_f* tmp, int lanes)
{
    gk_f dot = GK_R(0.0), u;
    if (GK_OP == gk_rule_delta) dot = gk_state_dot(s, r->k, p, tmp, lanes);
    u = gk_state_input(r, dot);
    GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) s[j] = r->g[j] * s[j] + u * r->k[j];
}
