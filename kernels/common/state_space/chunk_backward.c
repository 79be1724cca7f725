/* Gradients of the selective scan with up to 16 states per channel, from states in registers; state_space/state.h has the formulas, backward.c those of
 * the gradients, chunk.h how a block goes through the steps.
 *
 * Nothing of the forward pass is saved. A block goes through its run of steps once and notes the states before each chunk in `marks` [blocks, chunks,
 * GK_BACK_STATES, GK_BLOCK]. Then it takes the chunks from the last to the first, in halves: from the mark it finds the states of the half's steps and
 * keeps them, with their factors, in registers, and goes back through them. Four lanes share a channel, so that sums over channels run between the
 * eight groups of 32 threads and then over the block; each tile of channels leaves its own, which state_sum adds up. Sums in gk_f. Deterministic: fixed
 * trees, one writer per output. Reference: Gu and Dao (2023).
 */
#include "state.h"
#define GK_CHUNK_ROWS 2
#define GK_CHUNK_COLUMNS 4
#include "chunk.h"

#define GK_BACK_LANES 4
/* Steps of a half of a chunk. */
#define GK_BACK_STEPS (GK_CHUNK_STEPS / 2)
#define GK_BACK_LN2 GK_R(0.6931471805599453)
#define GK_BACK_STATES (GK_CHUNK_ROWS * GK_CHUNK_COLUMNS)
/* Sums over lanes: of results before the gate, gradients of the input, gradients of the step size. */
#define GK_BACK_SUMS 3
/* Columns of k and of q. */
#define GK_BACK_WIDTH (GK_BACK_LANES * GK_CHUNK_COLUMNS)
/* Runs of 32 threads. */
#define GK_BACK_WARPS (GK_BLOCK / 32)

/* In local memory: k and q [chunk, 16] each; step size, input and upstream gradient of a group's rows as two runs of four; sums over lanes and columns. */
typedef struct { GK_LOCAL_PTR gk_slot *columns, *rows, *sums; GK_LOCAL_PTR gk_f* cols; } gk_back_local;

/* A thread's runs of a chunk in registers. */
typedef struct { gk_raw16 k, q, v, step, z, dy; } gk_back_ahead;

typedef struct {
    GK_GLOBAL const gk_t* skip;
    GK_GLOBAL const gk_t* z;
    GK_GLOBAL const gk_t* dy;
    GK_GLOBAL gk_t* dv;
    GK_GLOBAL gk_t* dz;
    GK_GLOBAL gk_t* dgate;
    GK_GLOBAL gk_f* pq;
    GK_GLOBAL gk_f* pk;
    int accumulate;
} gk_back_out;

/* States of a thread, and their rates times log2 e. */
typedef struct { gk_f s[GK_CHUNK_ROWS][GK_CHUNK_COLUMNS], a[GK_CHUNK_ROWS][GK_CHUNK_COLUMNS]; } gk_back_states;
/* What a thread carries from step to step: gradients of its states, of their rates and of D. */
typedef struct { gk_f ds[GK_CHUNK_ROWS][GK_CHUNK_COLUMNS], da[GK_CHUNK_ROWS][GK_CHUNK_COLUMNS], dd[GK_CHUNK_ROWS]; } gk_back_state;

/* States before the steps of a half, and the steps' factors. */
typedef struct { gk_f s[GK_BACK_STEPS][GK_CHUNK_ROWS][GK_CHUNK_COLUMNS], e[GK_BACK_STEPS][GK_CHUNK_ROWS][GK_CHUNK_COLUMNS]; } gk_back_half;

/* back: with q, the gate and the upstream gradient. */
GK_FN void gk_back_fetch(const gk_state_in* in, const gk_back_out* o, const gk_chunk_place* p, gk_chunk c, const int back, gk_back_ahead* x)
{
    x->k = gk_chunk_fetch(in->k, p->columns, c.columns, c.left);
    x->v = gk_chunk_fetch(in->v, p->inputs, c.rows, c.left);
    x->step = gk_chunk_fetch(in->gate, p->inputs, c.rows, c.left);
    if (back) {
        x->q = gk_chunk_fetch(in->q, p->columns, c.columns, c.left);
        x->dy = gk_chunk_fetch(o->dy, p->inputs, c.rows, c.left);
        if (o->z) x->z = gk_chunk_fetch(o->z, p->inputs, c.rows, c.left);
    }
}

/* Lays a chunk of which `left` steps are there down in local memory. */
GK_FN void gk_back_lay(const gk_back_local* m, const gk_state_in* in, const gk_back_out* o, const gk_chunk_place* p, int left, const gk_back_ahead* x,
                       const int back)
{
    gk_vec v = gk_decode16(x->v), step = gk_decode16(x->step), dy = v, z = v;
    int first = 2 * p->inputs.c * p->groups + p->inputs.n / GK_CHUNK_ROWS;
    gk_chunk_lay(m->columns, p, left, x->k, GK_R(0.0));
    if (back) gk_chunk_lay(m->columns + GK_SLOTS(p->chunk * p->span), p, left, x->q, GK_R(0.0));
    if (back) dy = gk_decode16(x->dy);
    if (back && o->z) z = gk_decode16(x->z);
    if (p->inputs.c < p->chunk) {
        GK_UNROLL for (int g = 0; g < GK_CHUNK_RUN; g += GK_CHUNK_ROWS) {
            int run = first + g / GK_CHUNK_ROWS;
            gk_f s[2], up[2];
            GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
                s[r] = p->inputs.c >= left ? GK_R(0.0) : in->softplus ? gk_state_softplus(step.v[g + r]) : step.v[g + r];
                up[r] = o->z ? dy.v[g + r] * z.v[g + r] * gk_sigmoid(z.v[g + r]) : dy.v[g + r];
            }
            gk_slot_put4(m->rows, run * 4, s[0], s[1], v.v[g], v.v[g + 1]);
            if (back) gk_slot_put4(m->rows, (run + p->groups) * 4, up[0], up[1], GK_R(0.0), GK_R(0.0));
        }
    }
}

/* Factors of step c of the chunk and the states behind it. */
GK_FN void gk_back_advance(const gk_back_local* m, const gk_chunk_place* p, int c, const gk_back_states* a, gk_f s[GK_CHUNK_ROWS][GK_CHUNK_COLUMNS],
                           gk_f e[GK_CHUNK_ROWS][GK_CHUNK_COLUMNS])
{
    gk_four k = gk_chunk_run(m->columns, (c * p->span + p->n) >> 2), rows = gk_chunk_run(m->rows, 2 * c * p->groups + p->group);
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
        gk_f u = rows.v[r] * rows.v[2 + r];
        GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) {
            e[r][j] = gk_decay(rows.v[r] * a->a[r][j]);
            s[r][j] = e[r][j] * s[r][j] + u * k.v[j];
        }
    }
}

/* Sums over the rows of 32 threads, of a thread's columns of q and k: v[0] of each thread becomes the sum of another column, gk_back_column. */
GK_FN void gk_back_fold(gk_f v[2 * GK_CHUNK_COLUMNS])
{
#ifdef gk_shuffle_xor
    GK_UNROLL for (int keep = GK_CHUNK_COLUMNS, m = GK_BACK_LANES; keep > 0; keep /= 2, m *= 2) {
        int upper = gk_lid() & m;
        GK_UNROLL for (int i = 0; i < keep; i++) {
            gk_f give = upper ? v[i] : v[i + keep], own = upper ? v[i + keep] : v[i];
            v[i] = own + gk_shuffle_xor(give, m);
        }
    }
#endif
}
/* 0 .. 15: a column of q; 16 .. 31: of k. */
GK_FN int gk_back_column(void)
{
    int t = gk_lid();
    return (t / 4 & 1) * GK_BACK_WIDTH + t % 4 * GK_CHUNK_COLUMNS + (t / 8 & 1) * 2 + (t / 16 & 1);
}

/* One step back: step c of the chunk, number u of its half. */
GK_FN void gk_back_step(const gk_back_local* m, const gk_chunk_place* p, int c, const int u, const gk_back_states* a, const gk_back_half* x,
                        gk_back_state* g)
{
    gk_four k = gk_chunk_run(m->columns, (c * p->span + p->n) >> 2), q = gk_chunk_run(m->columns, ((p->chunk + c) * p->span + p->n) >> 2);
    gk_four rows = gk_chunk_run(m->rows, 2 * c * p->groups + p->group), ups = gk_chunk_run(m->rows, (2 * c + 1) * p->groups + p->group);
    gk_f v[2 * GK_CHUNK_COLUMNS];
    GK_UNROLL for (int j = 0; j < 2 * GK_CHUNK_COLUMNS; j++) v[j] = GK_R(0.0);
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
        gk_f step = rows.v[r], in = step * rows.v[2 + r], up = ups.v[r], s[GK_CHUNK_COLUMNS], ds[GK_CHUNK_COLUMNS], w[GK_CHUNK_COLUMNS];
        int to = (u * GK_CHUNK_ROWS + r) * GK_BACK_SUMS * GK_CHUNK_SUMS + gk_chunk_sum_at(gk_lid());
        g->dd[r] += up * rows.v[2 + r];
        GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) {
            gk_f left = x->e[u][r][j] * x->s[u][r][j];
            s[j] = left + in * k.v[j];
            ds[j] = g->ds[r][j] + up * q.v[j];
            w[j] = ds[j] * left;
            g->da[r][j] += w[j] * step;
            g->ds[r][j] = ds[j] * x->e[u][r][j];
            v[j] += up * s[j];
            v[GK_CHUNK_COLUMNS + j] += in * ds[j];
        }
        gk_slot_put(m->sums, to, gk_chunk_dot(s, q.v, p->has));
        gk_slot_put(m->sums, to + GK_CHUNK_SUMS, gk_chunk_dot(ds, k.v, p->has));
        gk_slot_put(m->sums, to + 2 * GK_CHUNK_SUMS, gk_chunk_dot(w, a->a[r], p->has));
    }
    gk_back_fold(v);
    m->cols[(u * GK_BACK_WARPS + gk_lid() / 32) * 32 + gk_back_column()] = v[0];
}

/* Gradients of a thread's run of inputs, gates and step sizes in step u of the half. */
GK_FN void gk_back_write_rows(const gk_back_out* o, const gk_state_in* in, const gk_back_local* m, const gk_chunk_place* p, gk_chunk at, int u,
                              const gk_back_ahead* x)
{
    gk_vec raw = gk_decode16(x->step), dy = gk_decode16(x->dy), z = dy, dv = dy, dz = dy, dg = dy;
    int first = 2 * p->inputs.c * p->groups + p->inputs.n / GK_CHUNK_ROWS;
    if (o->z) z = gk_decode16(x->z);
    GK_UNROLL for (int g = 0; g < GK_CHUNK_RUN; g += GK_CHUNK_ROWS) {
        int run = first + g / GK_CHUNK_ROWS;
        gk_four rows = gk_chunk_run(m->rows, run), ups = gk_chunk_run(m->rows, run + p->groups);
        GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
            int sums = (u * GK_CHUNK_ROWS + r) * GK_BACK_SUMS * (GK_CHUNK_SUMS / 4), e = g + r;
            gk_i64 row = p->row0 + p->inputs.n + e;
            gk_f y, du, d = o->skip && row < p->rows_all ? gk_load(o->skip, row) : GK_R(0.0), sg = gk_sigmoid(z.v[e]);
            sums += gk_chunk_sum_at((p->inputs.n + e) / GK_CHUNK_ROWS * GK_BACK_LANES) >> 2;
            y = gk_chunk_sum4(m->sums, sums) + d * rows.v[2 + r];
            du = gk_chunk_sum4(m->sums, sums + GK_CHUNK_SUMS / 4);
            dz.v[e] = dy.v[e] * sg * (GK_R(1.0) + z.v[e] * (GK_R(1.0) - sg)) * y;
            dv.v[e] = rows.v[r] * du + d * ups.v[r];
            dg.v[e] = gk_chunk_sum4(m->sums, sums + GK_CHUNK_SUMS / 2) * GK_BACK_LN2 + rows.v[2 + r] * du;
            if (in->softplus) dg.v[e] *= gk_sigmoid(raw.v[e]);
        }
    }
    if (o->dv) gk_chunk_store(o->dv, p->inputs, at.rows, at.left, dv, o->accumulate & 1);
    if (o->dz) gk_chunk_store(o->dz, p->inputs, at.rows, at.left, dz, o->accumulate & 2);
    if (o->dgate) gk_chunk_store(o->dgate, p->inputs, at.rows, at.left, dg, o->accumulate & 4);
}

/* Writes what the half of a chunk leaves whose first step is number c0. */
GK_FN void gk_back_write(const gk_back_out* o, const gk_state_in* in, const gk_back_local* m, const gk_dims* size, const gk_chunk_place* p, gk_chunk at,
                         int c0, const gk_back_ahead* x)
{
    int u = p->inputs.c - c0, t = gk_lid();
    gk_i64 tiles = (p->rows_all + p->rows - 1) / p->rows;
    if (u >= 0 && u < GK_BACK_STEPS && p->inputs.c < at.left) gk_back_write_rows(o, in, m, p, at, u, x);
    if (t < GK_BACK_STEPS * 32 && c0 + t / 32 < at.left && t % GK_BACK_WIDTH < p->width) {
        gk_i64 to = ((p->b * size->v[0] + p->t0 + at.i + c0 + t / 32) * tiles + p->row0 / p->rows) * p->width + t % GK_BACK_WIDTH;
        gk_f s = GK_R(0.0);
        GK_UNROLL for (int w = 0; w < GK_BACK_WARPS; w++) s += m->cols[(t / 32 * GK_BACK_WARPS + w) * 32 + t % 32];
        if (t % 32 < GK_BACK_WIDTH && o->pq) o->pq[to] = s;
        if (t % 32 >= GK_BACK_WIDTH && o->pk) o->pk[to] = s;
    }
}

/* Notes the states before each chunk of the run. */
GK_FN void gk_back_mark(const gk_state_in* in, const gk_back_out* o, const gk_back_local* m, const gk_chunk_place* p, gk_back_states* x,
                        GK_GLOBAL gk_f* marks)
{
    gk_back_ahead ahead;
    gk_i64 steps = p->t1 - p->t0;
    gk_chunk at = gk_chunk_at(p, 0);
    gk_back_fetch(in, o, p, at, 0, &ahead);
    do {
        gk_chunk next = gk_chunk_at(p, at.i + p->chunk);
        gk_back_lay(m, in, o, p, at.left, &ahead, 0);
        GK_BARRIER();
        gk_back_fetch(in, o, p, next, 0, &ahead);
        GK_UNROLL for (int n = 0; n < GK_BACK_STATES; n++) marks[n * GK_BLOCK + gk_lid()] = x->s[n / GK_CHUNK_COLUMNS][n % GK_CHUNK_COLUMNS];
        marks += GK_BACK_STATES * GK_BLOCK;
        GK_UNROLL for (int c = 0; c < GK_CHUNK_STEPS; c++) {
            gk_f e[GK_CHUNK_ROWS][GK_CHUNK_COLUMNS];
            gk_back_advance(m, p, c, x, x->s, e);
        }
        GK_BARRIER();
        at = next;
    } while (at.i < steps);
}

/* Goes back through the half of a chunk that begins with step c0. What lies behind the last step changes nothing. */
GK_FN void gk_back_through(const gk_back_local* m, const gk_chunk_place* p, int c0, gk_back_states* x, gk_back_state* g)
{
    gk_back_half kept;
    GK_ROLLED for (int c = 0; c < c0; c += GK_BACK_STEPS) {
        GK_UNROLL for (int u = 0; u < GK_BACK_STEPS; u++) gk_back_advance(m, p, c + u, x, x->s, kept.e[u]);
    }
    GK_UNROLL for (int u = 0; u < GK_BACK_STEPS; u++) {
        GK_UNROLL for (int n = 0; n < GK_BACK_STATES; n++) {
            kept.s[u][n / GK_CHUNK_COLUMNS][n % GK_CHUNK_COLUMNS] = x->s[n / GK_CHUNK_COLUMNS][n % GK_CHUNK_COLUMNS];
        }
        gk_back_advance(m, p, c0 + u, x, x->s, kept.e[u]);
    }
    GK_UNROLL for (int u = GK_BACK_STEPS - 1; u >= 0; u--) gk_back_step(m, p, c0 + u, u, x, &kept, g);
}

/* All chunks of the run, from the last to the first. */
GK_FN void gk_back_run(const gk_state_in* in, const gk_back_out* o, const gk_back_local* m, const gk_dims* size, const gk_chunk_place* p,
                       gk_back_states* x, gk_back_state* g, GK_GLOBAL const gk_f* marks)
{
    gk_back_ahead ahead;
    gk_chunk at = gk_chunk_at(p, (p->t1 - p->t0 - 1) / p->chunk * p->chunk);
    gk_back_fetch(in, o, p, at, 1, &ahead);
    do {
        gk_back_ahead now = ahead;
        gk_chunk next = gk_chunk_at(p, at.i - p->chunk);
        GK_GLOBAL const gk_f* mark = marks + at.i / p->chunk * (GK_BACK_STATES * GK_BLOCK) + gk_lid();
        int c0 = at.left > GK_BACK_STEPS ? GK_BACK_STEPS : 0;
        gk_back_lay(m, in, o, p, at.left, &ahead, 1);
        GK_BARRIER();
        if (next.i >= 0) gk_back_fetch(in, o, p, next, 1, &ahead);
        GK_ROLLED for (; c0 >= 0; c0 -= GK_BACK_STEPS) {
            GK_UNROLL for (int n = 0; n < GK_BACK_STATES; n++) x->s[n / GK_CHUNK_COLUMNS][n % GK_CHUNK_COLUMNS] = mark[n * GK_BLOCK];
            gk_back_through(m, p, c0, x, g);
            GK_BARRIER();
            gk_back_write(o, in, m, size, p, at, c0, &now);
            GK_BARRIER();
        }
        at = next;
    } while (at.i >= 0);
}

// Units: FLOATS64 x SELECTIVE_RULE
/* As state_backward, for gk_rule_selective with at most 16 states per channel. Launch: one block per batch, tile of 128 channels and split. */
GK_KERNEL(state_backward_chunks)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, v), GK_IN(gk_t, gate), GK_IN(gk_t, second), GK_IN(gk_t, skip),
                                 GK_IN(gk_t, z), GK_IN(gk_t, dy), GK_IN(gk_f, initial), GK_IN(gk_f, part), GK_IN(gk_f, back), GK_OUT(gk_f, marks),
                                 GK_OUT(gk_t, dv), GK_OUT(gk_t, dz), GK_OUT(gk_t, dgate), GK_OUT(gk_f, pq), GK_OUT(gk_f, pk), GK_OUT(gk_f, pa),
                                 GK_OUT(gk_f, pd), GK_DIMS(size), int softplus, int wide, int accumulate)
{
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, v); GK_BIND_IN(gk_t, gate); GK_BIND_IN(gk_t, second); GK_BIND_IN(gk_t, skip);
    GK_BIND_IN(gk_t, z); GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_f, initial); GK_BIND_IN(gk_f, part); GK_BIND_IN(gk_f, back);
    GK_BIND_OUT(gk_f, marks); GK_BIND_OUT(gk_t, dv); GK_BIND_OUT(gk_t, dz); GK_BIND_OUT(gk_t, dgate); GK_BIND_OUT(gk_f, pq); GK_BIND_OUT(gk_f, pk);
    GK_BIND_OUT(gk_f, pa); GK_BIND_OUT(gk_f, pd);
    GK_LOCAL gk_slot columns[GK_SLOTS(2 * GK_CHUNK_STEPS * GK_BACK_WIDTH)];
    GK_LOCAL gk_slot rows[GK_SLOTS(GK_CHUNK_STEPS * GK_BLOCK / GK_BACK_LANES * 8)];
    GK_LOCAL gk_slot sums[GK_SLOTS(GK_BACK_STEPS * GK_CHUNK_ROWS * GK_BACK_SUMS * GK_CHUNK_SUMS)];
    GK_LOCAL gk_f cols[GK_BACK_STEPS * GK_BACK_WARPS * 32];
    gk_chunk_place p = gk_chunk_place_of(&size, GK_BACK_LANES, wide, gk_scan_results);
    gk_state_in in;
    gk_back_out o;
    gk_back_local m;
    gk_back_states x;
    gk_back_state g;
    in.q = q; in.k = k; in.v = v; in.gate = gate; in.second = second; in.wide = wide; in.softplus = softplus;
    o.skip = skip; o.z = z; o.dy = dy; o.dv = dv; o.dz = dz; o.dgate = dgate; o.pq = pq; o.pk = pk; o.accumulate = accumulate;
    m.columns = columns; m.rows = rows; m.sums = sums; m.cols = cols;
    gk_chunk_rates(second, &p, x.a);
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
        g.dd[r] = GK_R(0.0);
        GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) { x.s[r][j] = GK_R(0.0); g.ds[r][j] = GK_R(0.0); g.da[r][j] = GK_R(0.0); }
        if (part) gk_chunk_get(part, gk_chunk_part(&size, &p, 0, r), &p, r, x.s[r]);
        else if (initial) gk_chunk_get(initial, gk_chunk_state(&size, &p, r), &p, r, x.s[r]);
        if (back) gk_chunk_get(back, gk_chunk_part(&size, &p, 0, r), &p, r, g.ds[r]);
    }
    gk_i64 own = (gk_i64)gk_bid(0) * ((size.v[4] + p.chunk - 1) / p.chunk) * (GK_BACK_STATES * GK_BLOCK);
    gk_back_mark(&in, &o, &m, &p, &x, marks + own);
    gk_back_run(&in, &o, &m, &size, &p, &x, &g, marks + own);
    gk_i64 run = p.b * size.v[5] + p.s;
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
        gk_i64 row = run * p.rows_all + gk_chunk_row(&p, r);
        if (pa) gk_chunk_put(pa, row * p.width, &p, r, g.da[r]);
        if (pd && p.n == 0 && gk_chunk_row(&p, r) < p.rows_all) pd[row] = g.dd[r];
    }
}
