/* Forward scans of state-space models and linear attention; state_space/state.h has the formulas, state_space/chunk.h how a block goes through the steps.
 *
 * A long sequence is cut into splits of steps where rows alone leave the device idle (not for the delta rule, whose steps are no diagonal factors):
 * state_partial gives each split's state from zero and the product of its factors (state_partial_back does so for gradients), state_carry makes of
 * them the state before each split, and state_scan runs each split from there. A thread keeps its columns of a row's state in registers. In local
 * memory lie, for each step of a chunk:
 *
 *   k, q       [span], zeros behind the last column; span = lanes * GK_CHUNK_COLUMNS
 *   g          [span], for gk_rule_gla_key alone
 *   rows       [groups] runs of four: step sizes (for gk_rule_selective) of the group's rows, then inputs
 *   heads      factor and strength of the rules that have them per head
 *
 * Steps behind the last one leave the states as they are. Sums in gk_f. Deterministic: one writer per output, sums over lanes in a fixed order.
 * References: Yang et al. (2024), Yang et al. (2025), Gu and Dao (2023), Dao and Gu (2024).
 */
#include "state.h"
/* Powers bound the selective rule: more threads hide more of their latency. Others read each column of k and q for two rows. */
#if GK_OP == gk_rule_selective
#define GK_CHUNK_ROWS 1
#else
#define GK_CHUNK_ROWS 2
#endif
/* The delta rule sums over the lanes of a row in every step: fewer of them. */
#if GK_OP == gk_rule_delta
#define GK_CHUNK_COLUMNS 8
#else
#define GK_CHUNK_COLUMNS 4
#endif
#include "chunk.h"
#include "product.h"

/* One block at a time would leave an SM idle at every barrier. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2

/* Steps that are computed side by side as far as they do not need each other; not where a step has barriers. */
#if GK_OP == gk_rule_delta
#define GK_SCAN_UNROLL 1
#else
#define GK_SCAN_UNROLL 2
#endif
/* Numbers in local memory: the most that k, q, g and rows of a chunk have together (with 128 columns for gk_rule_gla_key, with few of them for others). */
#define GK_SCAN_POOL (GK_CHUNK_STEPS * (GK_OP == gk_rule_gla_key ? 3 * 128 + 4 * 8 : 2 * 32 + 4 * 64))
/* Numbers for sums over lanes within a step. */
#if defined(gk_shuffle_xor) || GK_OP != gk_rule_delta
#define GK_SCAN_TMP 1
#else
#define GK_SCAN_TMP (GK_CHUNK_ROWS * GK_BLOCK)
#endif
/* Rules whose factors are per head, and those with a gate. */
#define GK_SCAN_HEADS (GK_OP != gk_rule_selective && GK_OP != gk_rule_gla_key)
#define GK_SCAN_GATED (GK_OP == gk_rule_selective)

typedef struct { GK_LOCAL_PTR gk_slot *columns, *rows, *sums; GK_LOCAL_PTR gk_f *heads, *tmp; } gk_scan_local;
typedef struct {
    GK_GLOBAL const gk_t* skip;
    GK_GLOBAL const gk_t* z;
    GK_GLOBAL gk_t* y;
} gk_scan_out;
/* A chunk in registers. */
typedef struct { gk_raw16 k, q, g, v, step, z; gk_f factor, strength; } gk_scan_ahead;
/* A thread's states, the products of their factors, their rates times log2 e. */
typedef struct {
    gk_f s[GK_CHUNK_ROWS][GK_CHUNK_COLUMNS], f[GK_CHUNK_ROWS][GK_CHUNK_COLUMNS], a[GK_CHUNK_ROWS][GK_CHUNK_COLUMNS];
} gk_scan_state;
/* Factor and strength of step lid of a chunk. */
GK_FN void gk_scan_fetch_heads(const gk_state_in* in, const gk_dims* size, const gk_chunk_place* p, gk_chunk c, const int mode, gk_scan_ahead* x)
{
    gk_i64 t = c.i + gk_lid();
    x->factor = GK_R(1.0); x->strength = GK_R(0.0);
    if (GK_SCAN_HEADS && gk_lid() < c.left) {
        gk_i64 at = (p->b * size->v[0] + (mode == gk_scan_part_back ? p->t1 - 1 - t : p->t0 + t)) * size->v[1] + p->h;
        x->factor = gk_load(in->gate, at);
        if (GK_OP == gk_rule_delta) x->strength = gk_load(in->second, at);
    }
}
GK_FN void gk_scan_fetch(const gk_state_in* in, const gk_scan_out* o, const gk_dims* size, const gk_chunk_place* p, gk_chunk c, const int mode,
                         gk_scan_ahead* x)
{
    if (mode != gk_scan_part_back) x->k = gk_chunk_fetch(in->k, p->columns, c.columns, c.left);
    if (mode != gk_scan_part) x->q = gk_chunk_fetch(in->q, p->columns, c.columns, c.left);
    if (GK_OP == gk_rule_gla_key) x->g = gk_chunk_fetch(in->gate, p->columns, c.columns, c.left);
    x->v = gk_chunk_fetch(in->v, p->inputs, c.rows, c.left);
    if (GK_OP == gk_rule_selective) x->step = gk_chunk_fetch(in->gate, p->inputs, c.rows, c.left);
    if (GK_SCAN_GATED && mode != gk_scan_part && o->z) x->z = gk_chunk_fetch(o->z, p->inputs, c.rows, c.left);
    gk_scan_fetch_heads(in, size, p, c, mode, x);
}

/* Step sizes and inputs of a chunk into local memory. */
GK_FN void gk_scan_lay_rows(const gk_scan_local* m, const gk_state_in* in, const gk_chunk_place* p, int left, const gk_scan_ahead* x, int gated,
                            const int mode)
{
    gk_vec v = gk_decode16(x->v), step = v, z = v;
    int first = p->inputs.c * p->groups + p->inputs.n / GK_CHUNK_ROWS;
    if (GK_OP == gk_rule_selective) step = gk_decode16(x->step);
    if (GK_SCAN_GATED && mode == gk_scan_part_back && gated) z = gk_decode16(x->z);
    if (p->inputs.c < p->chunk) {
        GK_UNROLL for (int g = 0; g < GK_CHUNK_RUN; g += GK_CHUNK_ROWS) {
            gk_f run[4];
            GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
                gk_f s = step.v[g + r], u = v.v[g + r];
                if (GK_OP == gk_rule_selective) {
                    s = p->inputs.c >= left ? GK_R(0.0) : in->softplus ? gk_state_softplus(s) : s;
                    if (mode != gk_scan_part_back) u *= s;
                }
                if (GK_SCAN_GATED && mode == gk_scan_part_back && gated) u *= z.v[g + r] * gk_sigmoid(z.v[g + r]);
                run[r] = s;
                run[2 + r] = u;
            }
            if (GK_CHUNK_ROWS == 1) { run[1] = GK_R(0.0); run[3] = GK_R(0.0); }
            gk_slot_put4(m->rows, (first + g / GK_CHUNK_ROWS) * 4, run[0], run[1], run[2], run[3]);
        }
    }
}

/* Lays a chunk down in local memory. rate: of the head, times log2 e, for gk_rule_ssd. */
GK_FN void gk_scan_lay(const gk_scan_local* m, const gk_state_in* in, const gk_chunk_place* p, int left, const gk_scan_ahead* x, gk_f rate, int gated,
                       const int mode)
{
    int columns = p->chunk * p->span;
    gk_chunk_lay(m->columns, p, left, mode == gk_scan_part_back ? x->q : x->k, GK_R(0.0));
    if (mode == gk_scan_results) gk_chunk_lay(m->columns + GK_SLOTS(columns), p, left, x->q, GK_R(0.0));
    if (GK_OP == gk_rule_gla_key) gk_chunk_lay(m->columns + GK_SLOTS(2 * columns), p, left, x->g, GK_R(1.0));
    gk_scan_lay_rows(m, in, p, left, x, gated, mode);
    if (GK_SCAN_HEADS && gk_lid() < p->chunk) {
        gk_f step = x->factor;
        if (GK_OP == gk_rule_ssd && in->softplus) step = gk_state_softplus(step);
        if (GK_OP == gk_rule_ssd && gk_lid() >= left) step = GK_R(0.0);
        m->heads[gk_lid()] = GK_OP == gk_rule_ssd ? gk_exp2(step * rate) : step;
        m->heads[GK_CHUNK_STEPS + gk_lid()] = GK_OP == gk_rule_ssd ? step : x->strength;
    }
}

/* Where the numbers of a step lie in local memory that a thread reads: the run of its rows, and its first columns of k, q and g. */
typedef struct { GK_LOCAL_PTR const gk_slot *rows, *k, *q, *g; } gk_scan_at;

GK_FN void gk_scan_columns(GK_LOCAL_PTR const gk_slot* from, gk_f v[GK_CHUNK_COLUMNS])
{
    GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j += 4) {
        gk_four x = gk_chunk_run(from, j / 4);
        GK_UNROLL for (int u = 0; u < 4; u++) v[j + u] = x.v[u];
    }
}

/* Step c of the states; y: the thread's shares of the results. */
GK_FN void gk_scan_step(const gk_scan_local* m, const gk_chunk_place* p, const gk_scan_at* at, int c, gk_scan_state* x, gk_f y[GK_CHUNK_ROWS],
                        const int mode)
{
    gk_four rows = gk_chunk_run(at->rows, 0);
    gk_f k[GK_CHUNK_COLUMNS], q[GK_CHUNK_COLUMNS], g[GK_CHUNK_COLUMNS], dot[GK_CHUNK_ROWS], factor = GK_R(0.0), strength = GK_R(0.0);
    if (GK_SCAN_HEADS) { factor = m->heads[c]; strength = m->heads[GK_CHUNK_STEPS + c]; }
    gk_scan_columns(at->k, k);
    if (mode == gk_scan_results) gk_scan_columns(at->q, q);
    if (GK_OP == gk_rule_gla_key) gk_scan_columns(at->g, g);
    if (GK_OP == gk_rule_delta) {
        GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) dot[r] = gk_chunk_dot(x->s[r], k, p->has);
        gk_chunk_sum_lanes(dot, m->tmp, p->lanes);
    }
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
        gk_f u = rows.v[2 + r];
        if (GK_OP == gk_rule_ssd && mode != gk_scan_part_back) u *= strength;
        if (GK_OP == gk_rule_delta) u = strength * (u - factor * dot[r]);
        GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) {
            gk_f e = GK_OP == gk_rule_selective ? gk_decay(rows.v[r] * x->a[r][j]) : GK_OP == gk_rule_gla_key ? g[j] : factor;
            if (mode == gk_scan_part_back) x->s[r][j] = e * (x->s[r][j] + u * k[j]);
            else x->s[r][j] = e * x->s[r][j] + u * k[j];
            if (mode != gk_scan_results) x->f[r][j] = gk_state_product(x->f[r][j], e);
        }
        y[r] = mode == gk_scan_results ? gk_chunk_dot(x->s[r], q, p->has) : GK_R(0.0);
    }
}

/* Adds the shares of a chunk's results up and writes them. */
GK_FN void gk_scan_write(const gk_scan_out* o, const gk_scan_local* m, const gk_chunk_place* p, gk_chunk c, const gk_scan_ahead* x)
{
    if (p->inputs.c < c.left) {
        gk_vec v = gk_decode16(x->v), z = v, y = v;
        if (GK_SCAN_GATED && o->z) z = gk_decode16(x->z);
        GK_UNROLL for (int u = 0; u < GK_CHUNK_RUN; u++) {
            gk_i64 row = p->row0 + p->inputs.n + u;
            int group = (p->inputs.n + u) / GK_CHUNK_ROWS, r = u % GK_CHUNK_ROWS;
            int from = (p->inputs.c * GK_CHUNK_ROWS + r) * (GK_CHUNK_SUMS / 4) + (gk_chunk_sum_at(group * p->lanes) >> 2);
            gk_f out = gk_chunk_sum4(m->sums, from);
            GK_ROLLED for (int l = 4; l < p->lanes; l += 4) out += gk_chunk_sum4(m->sums, from + (gk_chunk_sum_at(l) >> 2));
            if (o->skip && row < p->rows_all) out += gk_load(o->skip, GK_OP == gk_rule_selective ? row : p->h) * v.v[u];
            y.v[u] = GK_SCAN_GATED && o->z ? out * z.v[u] * gk_sigmoid(z.v[u]) : out;
        }
        gk_chunk_store(o->y, p->inputs, c.rows, c.left, y, 0);
    }
}

/* The steps of a chunk. */
GK_FN void gk_scan_steps(const gk_scan_local* m, const gk_chunk_place* p, gk_scan_state* x, const int mode)
{
    int columns = p->chunk * p->span, c = 0;
    GK_LOCAL_PTR gk_slot* sums = m->sums;
    gk_scan_at at;
    at.rows = m->rows + GK_SLOTS(4) * p->group;
    at.k = m->columns + GK_SLOTS(4) * (p->n >> 2);
    at.q = at.k + GK_SLOTS(4) * (columns >> 2);
    at.g = at.q + GK_SLOTS(4) * (columns >> 2);
    GK_ROLLED do {
        GK_UNROLL for (int u = 0; u < GK_SCAN_UNROLL; u++) {
            gk_f y[GK_CHUNK_ROWS];
            gk_scan_step(m, p, &at, c + u, x, y, mode);
            at.rows += GK_SLOTS(4) * p->groups;
            at.k += GK_SLOTS(4) * (p->span >> 2);
            at.q += GK_SLOTS(4) * (p->span >> 2);
            at.g += GK_SLOTS(4) * (p->span >> 2);
            if (mode == gk_scan_results) {
                GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
                    gk_slot_put(sums, (u * GK_CHUNK_ROWS + r) * GK_CHUNK_SUMS + gk_chunk_sum_at(gk_lid()), y[r]);
                }
            }
        }
        if (mode == gk_scan_results) sums += GK_SLOTS(GK_SCAN_UNROLL * GK_CHUNK_ROWS * GK_CHUNK_SUMS);
        c += GK_SCAN_UNROLL;
    } while (c < p->chunk);
}

/* All steps of a run. */
GK_FN void gk_scan_run(const gk_state_in* in, const gk_scan_out* o, gk_scan_local* m, const gk_dims* size, const gk_chunk_place* p, gk_scan_state* x,
                       const int mode)
{
    gk_scan_ahead ahead;
    gk_chunk at = gk_chunk_at(p, 0);
    gk_i64 steps = p->t1 - p->t0;
    gk_f rate = GK_R(0.0);
    m->rows = m->columns + GK_SLOTS((GK_OP == gk_rule_gla_key ? 3 : 2) * p->chunk * p->span);
    if (GK_OP == gk_rule_ssd) rate = gk_load(in->second, p->h) * GK_STATE_LOG2E;
    gk_scan_fetch(in, o, size, p, at, mode, &ahead);
    do {
        gk_scan_ahead now = ahead;
        gk_chunk next = gk_chunk_next(p, at);
        gk_scan_lay(m, in, p, at.left, &ahead, rate, o->z != 0, mode);
        GK_BARRIER();
        gk_scan_fetch(in, o, size, p, next, mode, &ahead);
        gk_scan_steps(m, p, x, mode);
        GK_BARRIER();
        if (mode == gk_scan_results) gk_scan_write(o, m, p, at, &now);
        at = next;
    } while (at.i < steps);
}

/* States of zeros, and the rates. */
GK_FN void gk_scan_begin(const gk_state_in* in, const gk_chunk_place* p, gk_scan_state* x)
{
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
        GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) { x->s[r][j] = GK_R(0.0); x->f[r][j] = GK_R(1.0); }
    }
    if (GK_OP == gk_rule_selective) gk_chunk_rates(in->second, p, x->a);
}

// Units: FLOATS64 x STATE_RULES
/* y and the last state. z: y is multiplied by silu(z). Launch: one block per batch, head, tile of rows and split. */
GK_KERNEL(state_scan)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, v), GK_IN(gk_t, gate), GK_IN(gk_t, second), GK_IN(gk_t, skip), GK_IN(gk_t, z),
                      GK_IN(gk_f, initial), GK_IN(gk_f, part), GK_OUT(gk_t, y), GK_OUT(gk_f, state), GK_DIMS(size), int lanes, int softplus, int wide)
{
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, v); GK_BIND_IN(gk_t, gate); GK_BIND_IN(gk_t, second); GK_BIND_IN(gk_t, skip);
    GK_BIND_IN(gk_t, z); GK_BIND_IN(gk_f, initial); GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_f, state);
    GK_LOCAL gk_slot pool[GK_SLOTS(GK_SCAN_POOL)];
    GK_LOCAL gk_slot sums[GK_SLOTS(GK_CHUNK_STEPS * GK_CHUNK_ROWS * GK_CHUNK_SUMS)];
    GK_LOCAL gk_f heads[2 * GK_CHUNK_STEPS];
    GK_LOCAL gk_f tmp[GK_SCAN_TMP];
    gk_chunk_place p = gk_chunk_place_of(&size, lanes, wide, gk_scan_results);
    gk_scan_local m;
    gk_state_in in;
    gk_scan_out o;
    gk_scan_state x;
    m.columns = pool; m.sums = sums; m.heads = heads; m.tmp = tmp;
    in.q = q; in.k = k; in.v = v; in.gate = gate; in.second = second; in.wide = wide; in.softplus = softplus;
    o.skip = skip; o.z = z; o.y = y;
    gk_scan_begin(&in, &p, &x);
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
        if (part) gk_chunk_get(part, gk_chunk_part(&size, &p, 0, r), &p, r, x.s[r]);
        else if (initial) gk_chunk_get(initial, gk_chunk_state(&size, &p, r), &p, r, x.s[r]);
    }
    gk_scan_run(&in, &o, &m, &size, &p, &x, gk_scan_results);
    if (state && p.t1 == size.v[0]) {
        GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) gk_chunk_put(state, gk_chunk_state(&size, &p, r), &p, r, x.s[r]);
    }
}

/* A run's state from zero and the product of its factors. */
GK_FN void gk_scan_part_of(const gk_state_in* in, const gk_scan_out* o, gk_scan_local* m, const gk_dims* size, int lanes, GK_GLOBAL gk_f* part,
                           const int mode)
{
    gk_chunk_place p = gk_chunk_place_of(size, lanes, in->wide, mode);
    gk_scan_state x;
    gk_scan_begin(in, &p, &x);
    gk_scan_run(in, o, m, size, &p, &x, mode);
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
        gk_chunk_put(part, gk_chunk_part(size, &p, 0, r), &p, r, x.s[r]);
        gk_chunk_put(part, gk_chunk_part(size, &p, 1, r), &p, r, x.f[r]);
    }
}

/* A split's state from zero and the product of its factors, [B, H, splits, 2, rows, width]. Launch: as state_scan. */
GK_KERNEL(state_partial)(GK_IN(gk_t, k), GK_IN(gk_t, v), GK_IN(gk_t, gate), GK_IN(gk_t, second), GK_OUT(gk_f, part), GK_DIMS(size), int lanes,
                         int softplus, int wide)
{
    GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, v); GK_BIND_IN(gk_t, gate); GK_BIND_IN(gk_t, second); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_slot pool[GK_SLOTS(GK_SCAN_POOL)];
    GK_LOCAL gk_f heads[2 * GK_CHUNK_STEPS];
    GK_LOCAL gk_f tmp[GK_SCAN_TMP];
    gk_scan_local m;
    gk_state_in in;
    gk_scan_out o;
    m.columns = pool; m.heads = heads; m.tmp = tmp;
    in.q = 0; in.k = k; in.v = v; in.gate = gate; in.second = second; in.wide = wide; in.softplus = softplus;
    o.skip = 0; o.z = 0; o.y = 0;
    gk_scan_part_of(&in, &o, &m, &size, lanes, part, gk_scan_part);
}

/* The same of gradients, from the last step to the first: what a split hands to the steps before it where nothing comes from later ones,
 * e = g (e + dy silu(z) q). q takes the place of k, and dy that of v. Launch: as state_scan. */
GK_KERNEL(state_partial_back)(GK_IN(gk_t, q), GK_IN(gk_t, dy), GK_IN(gk_t, z), GK_IN(gk_t, gate), GK_IN(gk_t, second), GK_OUT(gk_f, part),
                              GK_DIMS(size), int lanes, int softplus, int wide)
{
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, z); GK_BIND_IN(gk_t, gate); GK_BIND_IN(gk_t, second); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_slot pool[GK_SLOTS(GK_SCAN_POOL)];
    GK_LOCAL gk_f heads[2 * GK_CHUNK_STEPS];
    GK_LOCAL gk_f tmp[GK_SCAN_TMP];
    gk_scan_local m;
    gk_state_in in;
    gk_scan_out o;
    m.columns = pool; m.heads = heads; m.tmp = tmp;
    in.q = q; in.k = 0; in.v = dy; in.gate = gate; in.second = second; in.wide = wide; in.softplus = softplus;
    o.skip = 0; o.z = z; o.y = 0;
    gk_scan_part_of(&in, &o, &m, &size, lanes, part, gk_scan_part_back);
}
