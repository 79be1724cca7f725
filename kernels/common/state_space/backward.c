/* Gradients of the scans of state_space/scan.c; state_space/state.h has the formulas of the steps.
 *
 *   up = dy silu(z)     dS += up q     dq = up S     dk = dS u     du = dS k     dg = dS S_before     dS_before = g dS
 *   dv = du (times dt, b); ddt = v du + sum A g dS S_before; dA = dt g dS S_before; dz = dy (S q + D v) silu'(z); dD = up v
 *   delta rule, p = S_before k: db = du (v - g p); dg += -b p du; dp = -g b du, dS_before += dp k, dk += dp S_before
 *
 * Nothing of the forward pass is saved. A block runs through its split of steps once and notes the state every GK_STATE_CHUNK steps; then, from the
 * last chunk to the first, it notes the state every GK_SEGMENT steps of a chunk, and computes the states of a segment before it goes back through it.
 * `marks` [blocks, split / GK_STATE_CHUNK + GK_STATE_CHUNK / GK_SEGMENT, GK_BLOCK * GK_STATE_KEEP] is the memory for that.
 * What belongs to several rows is summed over the rows of a block and written per tile of rows; state_sum adds the tiles up. Sums in gk_f.
 * Deterministic: fixed trees, one writer per output. References as in state_space/scan.c.
 */
#include "steps.h"

#define GK_SEGMENT 8
#define GK_STATE_CHUNK 64
#define GK_MARK (GK_BLOCK * GK_STATE_KEEP)
/* Threads over which a column's sums run in their first part. */
#define GK_HALF_ROWS (GK_BLOCK / GK_STATE_KEEP)

/* Notes and takes back the state of every thread of a block. */
GK_FN void gk_mark_put(GK_GLOBAL gk_f* marks, gk_i64 at, const gk_f s[GK_STATE_KEEP])
{
    GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) marks[at * GK_MARK + j * GK_BLOCK + gk_lid()] = s[j];
}
GK_FN void gk_mark_get(GK_GLOBAL const gk_f* marks, gk_i64 at, gk_f s[GK_STATE_KEEP])
{
    GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) s[j] = marks[at * GK_MARK + j * GK_BLOCK + gk_lid()];
}

/* Sums over the rows of a block, first part: columns to `tmp` [GK_STATE_KEEP, GK_BLOCK]. */
GK_FN void gk_rows_put(GK_LOCAL_PTR gk_f* tmp, const gk_f v[GK_STATE_KEEP])
{
    GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) tmp[j * GK_BLOCK + gk_lid()] = v[j];
}
/* Second part, behind a barrier: each thread adds GK_STATE_KEEP of them. */
GK_FN void gk_rows_fold(GK_LOCAL_PTR const gk_f* tmp, GK_LOCAL_PTR gk_f* folded)
{
    int j = gk_lid() / GK_HALF_ROWS, u = gk_lid() % GK_HALF_ROWS;
    gk_f s = GK_R(0.0);
    GK_UNROLL for (int i = 0; i < GK_STATE_KEEP; i++) s += tmp[j * GK_BLOCK + u + i * GK_HALF_ROWS];
    folded[gk_lid()] = s;
}
/* Third part, behind another: threads `first` .. write the columns. */
GK_FN void gk_rows_write(GK_LOCAL_PTR const gk_f* folded, GK_GLOBAL gk_f* to, gk_i64 at, int lanes, int width, int t)
{
    if (t >= 0 && t < width) {
        int lane = t / GK_STATE_KEEP, j = t % GK_STATE_KEEP;
        gk_f s = GK_R(0.0);
        for (int u = lane; u < GK_HALF_ROWS; u += lanes) s += folded[j * GK_HALF_ROWS + u];
        to[at + t] = s;
    }
}

typedef struct { GK_LOCAL_PTR gk_f *tmp, *sum_q, *sum_k, *sum_g, *half_q, *half_k, *half_g; } gk_back_local;

typedef struct {
    GK_GLOBAL const gk_t* z;
    GK_GLOBAL const gk_t* dy;
    GK_GLOBAL gk_t* dv;
    GK_GLOBAL gk_t* dz;
    GK_GLOBAL gk_t* dgate;
    GK_GLOBAL gk_f* pq;
    GK_GLOBAL gk_f* pk;
    GK_GLOBAL gk_f* pg;
    GK_GLOBAL gk_f* pb;
    int accumulate;
} gk_back_out;

/* What a thread carries from step to step: the gradient of its columns, those of its rates and of D, the rates and D themselves. */
typedef struct { gk_f ds[GK_STATE_KEEP], da[GK_STATE_KEEP], dd, a[GK_STATE_KEEP], d; int skip; } gk_back_state;

GK_FN void gk_back_add(GK_GLOBAL gk_t* p, gk_i64 at, gk_f v, int accumulate)
{
    gk_store(p, at, accumulate ? gk_load(p, at) + v : v);
}

/* The gradient of y before the gate z; writes dz. */
GK_FN gk_f gk_back_gate(const gk_back_out* o, const gk_back_state* b, const gk_state_place* p, gk_i64 at, const gk_f s[GK_STATE_KEEP],
                        const gk_f q[GK_STATE_KEEP], gk_f v, GK_LOCAL_PTR gk_f* tmp, int lanes)
{
    gk_f up = GK_R(0.0), zv = GK_R(0.0), out = GK_R(0.0), sg;
    if (GK_OP == gk_rule_selective) out = gk_state_dot(s, q, p, tmp, lanes);
    if (p->on) up = gk_load(o->dy, at);
    if (o->z) {
        if (p->on) zv = gk_load(o->z, at);
        sg = gk_sigmoid(zv);
        if (b->skip) out += b->d * v;
        out *= up * sg * (GK_R(1.0) + zv * (GK_R(1.0) - sg));
        if (o->dz && p->on && p->lane == 0) gk_back_add(o->dz, at, out, o->accumulate & 2);
        up *= zv * sg;
    }
    return up;
}

/* Gradients of the factor, or of the step size: `w` = dS S_before (times g where g is a power). */
GK_FN void gk_back_factor(const gk_back_out* o, gk_back_state* b, const gk_state_step* r, const gk_state_place* p, gk_i64 at, gk_i64 to,
                          const gk_f w[GK_STATE_KEEP], gk_f dot, gk_f du, int softplus, GK_LOCAL_PTR gk_f* tmp, int lanes)
{
    gk_f g = GK_R(0.0);
    GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) {
        if (p->n + j < p->width) {
            g += GK_STATE_EXP ? w[j] * b->a[j] : w[j];
            b->da[j] += w[j] * r->dt;
        }
    }
    if (GK_STATE_EXP) g /= GK_STATE_LOG2E;
    /* Sums over lanes and blocks stand in no branch on arguments, whether they are asked for or not. */
    if (GK_OP == gk_rule_selective) {
        g = gk_group_sum(g, tmp, lanes) + r->v * du;
        if (softplus) g *= gk_sigmoid(r->raw);
        if (o->dgate && p->on && p->lane == 0) gk_back_add(o->dgate, at, g, o->accumulate & 4);
    } else if (GK_OP != gk_rule_gla_key) {
        if (p->lane == 0 && GK_STATE_EXP) g += r->v * du;
        if (p->lane == 0 && GK_OP == gk_rule_delta) g -= r->beta * dot * du;
        g = gk_block_sum(g, tmp);
        if (o->pg && gk_lid() == 0) o->pg[to] = g;
    }
    if (GK_OP == gk_rule_delta) {
        g = gk_block_sum(p->lane == 0 ? du * (r->v - r->g[0] * dot) : GK_R(0.0), tmp);
        if (o->pb && gk_lid() == 0) o->pb[to] = g;
    }
}

/* One step back from the state `before` it. */
GK_FN void gk_back_step(const gk_state_in* in, const gk_back_out* o, const gk_back_local* m, gk_back_state* b, const gk_dims* size,
                        const gk_state_place* p, gk_i64 t, const gk_f before[GK_STATE_KEEP], int lanes)
{
    gk_i64 bt = p->b * size->v[0] + t, head = bt * size->v[1] + p->h, at = head * size->v[2] + p->row, to = head * p->tiles + p->tile;
    gk_state_step r = gk_state_read(in, size, p, t);
    gk_f s[GK_STATE_KEEP], q[GK_STATE_KEEP], w[GK_STATE_KEEP], up, dot = GK_R(0.0), dp = GK_R(0.0), u, du;
    int key_gate = GK_OP == gk_rule_gla_key && o->pg;
    gk_state_load(in->q, (bt * size->v[3] + p->h / (size->v[1] / size->v[3])) * p->width, p->n, p->width, in->wide, q);
    gk_state_factors(&r, b->a, in->softplus);
    if (GK_OP == gk_rule_delta) dot = gk_state_dot(before, r.k, p, m->tmp, lanes);
    u = gk_state_input(&r, dot);
    GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) s[j] = r.g[j] * before[j] + u * r.k[j];
    up = gk_back_gate(o, b, p, at, s, q, r.v, m->tmp, lanes);
    b->dd += up * r.v;
    GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) b->ds[j] += up * q[j];
    du = gk_state_dot(b->ds, r.k, p, m->tmp, lanes);
    if (GK_OP == gk_rule_delta) dp = -r.g[0] * r.beta * du;
    if (o->pq) {
        GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) w[j] = up * s[j];
        gk_rows_put(m->sum_q, w);
    }
    if (o->pk) {
        GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) {
            w[j] = u * b->ds[j];
            if (GK_OP == gk_rule_delta) w[j] += dp * before[j];
        }
        gk_rows_put(m->sum_k, w);
    }
    GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) {
        w[j] = b->ds[j] * before[j];
        if (GK_STATE_EXP) w[j] *= r.g[j];
        b->ds[j] *= r.g[j];
        if (GK_OP == gk_rule_delta) b->ds[j] += dp * r.k[j];
    }
    if (key_gate) gk_rows_put(m->sum_g, w);
    if (o->dv && p->on && p->lane == 0) {
        gk_f out = (GK_OP == gk_rule_delta ? r.beta : r.dt) * du;
        if (b->skip) out += b->d * up;
        gk_back_add(o->dv, at, out, o->accumulate & 1);
    }
    gk_back_factor(o, b, &r, p, at, to, w, dot, du, in->softplus, m->tmp, lanes);
    GK_BARRIER();
    if (o->pq) gk_rows_fold(m->sum_q, m->half_q);
    if (o->pk) gk_rows_fold(m->sum_k, m->half_k);
    if (key_gate) gk_rows_fold(m->sum_g, m->half_g);
    GK_BARRIER();
    if (o->pq) gk_rows_write(m->half_q, o->pq, to * p->width, lanes, p->width, gk_lid());
    if (o->pk) gk_rows_write(m->half_k, o->pk, to * p->width, lanes, p->width, GK_BLOCK - 1 - gk_lid());
    if (key_gate) gk_rows_write(m->half_g, o->pg, to * p->width, lanes, p->width, (gk_lid() + GK_BLOCK / 2) % GK_BLOCK);
}

// Units: FLOATS64 x STATE_RULES
/* Outputs that are null are not computed. dv, dz and, for gk_rule_selective, dgate have their final form (accumulate: 1, 2, 4); pq and pk are
 * [B, T, H, tiles, width], pg likewise or [B, T, H, tiles] and pb [B, T, H, tiles]; pa is [B, splits, rows, width] or [B, splits, tiles, H], pd
 * [B, splits, rows] or [B, splits, tiles, H]. part, back: from state_carry, null for one split. Launch: one block per batch, head, tile and split. */
GK_KERNEL(state_backward)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, v), GK_IN(gk_t, gate), GK_IN(gk_t, second), GK_IN(gk_t, skip), GK_IN(gk_t, z),
                          GK_IN(gk_t, dy), GK_IN(gk_f, initial), GK_IN(gk_f, part), GK_IN(gk_f, back), GK_OUT(gk_f, marks), GK_OUT(gk_t, dv),
                          GK_OUT(gk_t, dz), GK_OUT(gk_t, dgate), GK_OUT(gk_f, pq), GK_OUT(gk_f, pk), GK_OUT(gk_f, pg), GK_OUT(gk_f, pb),
                          GK_OUT(gk_f, pa), GK_OUT(gk_f, pd), GK_DIMS(size), int lanes, int softplus, int wide, int accumulate)
{
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, v); GK_BIND_IN(gk_t, gate); GK_BIND_IN(gk_t, second); GK_BIND_IN(gk_t, skip);
    GK_BIND_IN(gk_t, z); GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_f, initial); GK_BIND_IN(gk_f, part); GK_BIND_IN(gk_f, back);
    GK_BIND_OUT(gk_f, marks); GK_BIND_OUT(gk_t, dv); GK_BIND_OUT(gk_t, dz); GK_BIND_OUT(gk_t, dgate); GK_BIND_OUT(gk_f, pq); GK_BIND_OUT(gk_f, pk);
    GK_BIND_OUT(gk_f, pg); GK_BIND_OUT(gk_f, pb); GK_BIND_OUT(gk_f, pa); GK_BIND_OUT(gk_f, pd);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_f sum_q[GK_MARK];
    GK_LOCAL gk_f sum_k[GK_MARK];
    GK_LOCAL gk_f sum_g[GK_MARK];
    GK_LOCAL gk_f half_q[GK_BLOCK];
    GK_LOCAL gk_f half_k[GK_BLOCK];
    GK_LOCAL gk_f half_g[GK_BLOCK];
    gk_state_place p = gk_state_at(&size, lanes);
    gk_state_in in;
    gk_back_out o;
    gk_back_local m;
    gk_back_state b;
    gk_f s[GK_STATE_KEEP], hist[GK_SEGMENT][GK_STATE_KEEP];
    in.q = q; in.k = k; in.v = v; in.gate = gate; in.second = second; in.wide = wide; in.softplus = softplus;
    o.z = z; o.dy = dy; o.dv = dv; o.dz = dz; o.dgate = dgate; o.pq = pq; o.pk = pk; o.pg = pg; o.pb = pb; o.accumulate = accumulate;
    m.tmp = tmp; m.sum_q = sum_q; m.sum_k = sum_k; m.sum_g = sum_g; m.half_q = half_q; m.half_k = half_k; m.half_g = half_g;
    gk_state_rates(&in, &p, b.a);
    b.d = GK_R(0.0); b.dd = GK_R(0.0); b.skip = skip != 0;
    GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) { s[j] = GK_R(0.0); b.ds[j] = GK_R(0.0); b.da[j] = GK_R(0.0); }
    if (part) gk_state_get(part, gk_state_part(&size, &p, 0), &p, s);
    else if (initial) gk_state_get(initial, gk_state_row(&size, &p), &p, s);
    if (back) gk_state_get(back, gk_state_part(&size, &p, 0), &p, b.ds);
    if (skip && p.on) b.d = gk_load(skip, GK_OP == gk_rule_selective ? p.row : p.h);
    gk_i64 chunks = (p.t1 - p.t0 + GK_STATE_CHUNK - 1) / GK_STATE_CHUNK;
    gk_i64 most = (size.v[4] + GK_STATE_CHUNK - 1) / GK_STATE_CHUNK, mark = gk_bid(0) * (most + GK_STATE_CHUNK / GK_SEGMENT), inner = mark + most;
    /* Every loop with barriers runs at least once and says so: what may not run is a branch, and compilers for CPUs copy all that follows a branch
     * with a barrier. The last step of a sweep is for nothing. */
    gk_i64 c = 0, t = p.t0;
    do {
        gk_i64 end = t + GK_STATE_CHUNK < p.t1 ? t + GK_STATE_CHUNK : p.t1;
        gk_mark_put(marks, mark + c, s);
        do {
            gk_state_step r = gk_state_read(&in, &size, &p, t);
            gk_state_factors(&r, b.a, softplus);
            gk_state_advance(s, &r, &p, tmp, lanes);
        } while (++t < end);
    } while (++c < chunks);
    do {
        gk_i64 c0 = p.t0 + --c * GK_STATE_CHUNK, c1 = c0 + GK_STATE_CHUNK < p.t1 ? c0 + GK_STATE_CHUNK : p.t1;
        int segments = (int)((c1 - c0 + GK_SEGMENT - 1) / GK_SEGMENT), g = 0;
        gk_mark_get(marks, mark + c, s);
        t = c0;
        do {
            gk_i64 end = t + GK_SEGMENT < c1 ? t + GK_SEGMENT : c1;
            gk_mark_put(marks, inner + g, s);
            do {
                gk_state_step r = gk_state_read(&in, &size, &p, t);
                gk_state_factors(&r, b.a, softplus);
                gk_state_advance(s, &r, &p, tmp, lanes);
            } while (++t < end);
        } while (++g < segments);
        do {
            gk_i64 first = c0 + --g * GK_SEGMENT;
            int count = first + GK_SEGMENT < c1 ? GK_SEGMENT : (int)(c1 - first), i = 0;
            gk_mark_get(marks, inner + g, s);
            GK_ROLLED do {
                gk_state_step r = gk_state_read(&in, &size, &p, first + i);
                GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) hist[i][j] = s[j];
                gk_state_factors(&r, b.a, softplus);
                gk_state_advance(s, &r, &p, tmp, lanes);
            } while (++i < count);
            GK_ROLLED do {
                gk_f before[GK_STATE_KEEP];
                i--;
                GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) before[j] = hist[i][j];
                gk_back_step(&in, &o, &m, &b, &size, &p, first + i, before, lanes);
            } while (i > 0);
        } while (g > 0);
    } while (c > 0);
    gk_i64 run = p.b * size.v[5] + p.s, of_tile = (run * p.tiles + p.tile) * size.v[1] + p.h;
    if (GK_OP == gk_rule_selective) {
        if (pa) gk_state_put(pa, (run * size.v[2] + p.row) * p.width, &p, b.da);
        if (pd && p.on && p.lane == 0) pd[run * size.v[2] + p.row] = b.dd;
    } else if (GK_OP == gk_rule_ssd) {
        gk_f part_a = GK_R(0.0);
        GK_UNROLL for (int j = 0; j < GK_STATE_KEEP; j++) part_a += b.da[j];
        part_a = gk_block_sum(part_a, tmp);
        b.dd = gk_block_sum(p.lane == 0 ? b.dd : GK_R(0.0), tmp);
        if (gk_lid() == 0 && pa) pa[of_tile] = part_a;
        if (gk_lid() == 0 && pd) pd[of_tile] = b.dd;
    }
}
