/* Gradients of linear attention, of the gated delta rule and of state-space duality, in chunks of steps; state_space/state.h has the formulas,
 * backward.c those of the gradients, chunk.h how a block goes through the steps.
 *
 * Nothing of the forward pass is saved. A block goes through its run of steps once and notes the states before every GK_LINEAR_SPAN-th chunk. Then
 * it takes these spans from the last to the first: it goes through the span and notes the states before each of its chunks; then, chunk by chunk from
 * the last, it finds the states of all steps from the mark, keeps them in registers, and goes back through them. `marks` [blocks, spans +
 * GK_LINEAR_SPAN, GK_LINEAR_STATES, GK_BLOCK] is the memory for that. The delta rule leaves S_before k of each step in `dots` [B, T, H, rows] when it
 * first meets it.
 *
 * What is summed over threads (dq, dk and gradients of factors over rows, dv over columns) lies as one share per thread in local memory for
 * GK_LINEAR_PAIR steps and is then added up, so that a step has no sum over threads but the one that the delta rule itself has. Each tile of rows
 * leaves its own sums over rows, which state_sum adds up. Sums in gk_f. Deterministic: sums in a fixed order, one writer per output.
 * References: Yang et al. (2024), Yang et al. (2025), Dao and Gu (2024).
 */
#include "state.h"
#define GK_CHUNK_ROWS 4
#define GK_CHUNK_COLUMNS 4
#include "chunk.h"

/* Chunks of a span, numbers of a thread's states. */
#define GK_LINEAR_SPAN 8
#define GK_LINEAR_STATES (GK_CHUNK_ROWS * GK_CHUNK_COLUMNS)
/* Steps whose shares lie in local memory at a time. */
#define GK_LINEAR_PAIR (GK_CHUNK_STEPS / 4)
/* Gradients that are sums over rows for each column: of q, of k and, for gk_rule_gla_key, of g. Others have factors per head. */
#define GK_LINEAR_HEADS (GK_OP != gk_rule_gla_key)
#define GK_LINEAR_SUMS (GK_LINEAR_HEADS ? 2 : 3)
/* Shares of a step: [sums][groups, span] of columns, [GK_CHUNK_ROWS][threads] of rows (GK_LINEAR_ROW: those of a group's rows begin in other banks),
 * [threads] of the factor of a head. */
#define GK_LINEAR_COLS (GK_BLOCK * GK_CHUNK_COLUMNS)
#define GK_LINEAR_OF_ROWS (GK_LINEAR_SUMS * GK_LINEAR_COLS)
#define GK_LINEAR_ROW (GK_CHUNK_SUMS + 4)
#define GK_LINEAR_OF_HEAD (GK_LINEAR_OF_ROWS + GK_CHUNK_ROWS * GK_LINEAR_ROW)
#define GK_LINEAR_SHARES (GK_LINEAR_OF_HEAD + GK_LINEAR_HEADS * GK_CHUNK_SUMS)
/* Shares of a head's sums that are left of a step of a chunk, and how many threads' each is. */
#define GK_LINEAR_PARTS (GK_BLOCK / GK_CHUNK_STEPS)
#define GK_LINEAR_EACH (GK_BLOCK / GK_LINEAR_PARTS)
/* Numbers of k, q and g of a chunk with 128 columns, or fewer, and of its rows: inputs, and upstream gradients. */
#define GK_LINEAR_POOL (GK_CHUNK_STEPS * ((GK_LINEAR_HEADS ? 2 : 3) * 128 + 2 * 32))
#if defined(gk_shuffle_xor) || GK_OP != gk_rule_delta
#define GK_LINEAR_TMP 1
#else
#define GK_LINEAR_TMP (GK_CHUNK_ROWS * GK_BLOCK)
#endif

/* What a pass through steps is for: the marks of spans (the delta rule finds S_before k), those of chunks, the gradients. */
#define gk_linear_first 0
#define gk_linear_again 1
#define gk_linear_back 2

/* In local memory: k, q and g [chunk, span] each; inputs [chunk, rows], then upstream gradients, which those of inputs replace; shares; factor and
 * strength of each step; parts of a head's sums [3][chunk, GK_LINEAR_PARTS]. */
typedef struct { GK_LOCAL_PTR gk_slot *columns, *rows, *shares, *parts; GK_LOCAL_PTR gk_f *heads, *tmp; } gk_linear_local;

/* A thread's runs of a chunk in registers, with what belongs to the head in the runs' step. */
typedef struct { gk_raw16 k, q, g, v, dy; gk_f dot[GK_CHUNK_RUN], factor, strength; } gk_linear_ahead;

typedef struct {
    GK_GLOBAL const gk_t* skip;
    GK_GLOBAL const gk_t* dy;
    GK_GLOBAL gk_f* dots;
    GK_GLOBAL gk_t* dv;
    GK_GLOBAL gk_f* pq;
    GK_GLOBAL gk_f* pk;
    GK_GLOBAL gk_f* pg;
    GK_GLOBAL gk_f* pb;
    /* Where sums of the run's first step begin in [B, T, H, tiles], and how much further those of the next. */
    gk_i64 first, step;
    int accumulate, wide;
} gk_linear_out;

/* States of a thread, or their gradients. */
typedef struct { gk_f s[GK_CHUNK_ROWS][GK_CHUNK_COLUMNS]; } gk_linear_states;
/* What a thread carries: gradients of its states, shares of those of the rate and of D; the rate; how many of its rows are there. */
typedef struct { gk_linear_states ds; gk_f da, dd, rate; int live; } gk_linear_carry;
/* Which shares of a pair of steps a thread adds up: those of four columns of sum `sum` in step `of_columns`, those of a row in step `of_row`. */
typedef struct { int sum, of_columns, row, of_row; } gk_linear_task;

/* Four numbers of gk_f in memory. wide: at a multiple of four. */
GK_FN void gk_linear_put4(GK_GLOBAL gk_f* to, gk_i64 at, int has, int wide, gk_four x)
{
#if GK_DTYPE != GK_F64
    if (wide) {
        if (has > 0) gk_store16((GK_GLOBAL void*)(to + at), gk_make16(gk_as_u32(x.v[0]), gk_as_u32(x.v[1]), gk_as_u32(x.v[2]), gk_as_u32(x.v[3])));
        return;
    }
#endif
    GK_UNROLL for (int j = 0; j < 4; j++) {
        if (j < has) to[at + j] = x.v[j];
    }
}
GK_FN gk_four gk_linear_get4(GK_GLOBAL const gk_f* from, gk_i64 at)
{
    gk_four x;
#if GK_DTYPE != GK_F64
    gk_raw16 r = gk_load16((GK_GLOBAL const void*)(from + at));
    x.v[0] = gk_as_f32(r.x); x.v[1] = gk_as_f32(r.y); x.v[2] = gk_as_f32(r.z); x.v[3] = gk_as_f32(r.w);
#else
    GK_UNROLL for (int j = 0; j < 4; j++) x.v[j] = from[at + j];
#endif
    return x;
}

/* Notes a thread's states in a mark, and takes them from there. */
GK_FN void gk_linear_note(GK_GLOBAL gk_f* mark, const gk_linear_states* x)
{
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
        gk_four v;
        GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) v.v[j] = x->s[r][j];
        gk_linear_put4(mark, (r * GK_BLOCK + gk_lid()) * 4, 4, 1, v);
    }
}
GK_FN void gk_linear_recall(GK_GLOBAL const gk_f* mark, gk_linear_states* x)
{
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
        gk_four v = gk_linear_get4(mark, (r * GK_BLOCK + gk_lid()) * 4);
        GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) x->s[r][j] = v.v[j];
    }
}

/* Factor (a step size, for gk_rule_ssd) and strength of the step of a thread's run; those of a step behind the last change nothing. */
GK_FN void gk_linear_fetch_heads(const gk_state_in* in, const gk_dims* size, const gk_chunk_place* p, gk_chunk c, gk_linear_ahead* x)
{
    x->factor = GK_STATE_EXP ? GK_R(0.0) : GK_R(1.0);
    x->strength = GK_R(0.0);
    if (GK_LINEAR_HEADS && p->inputs.c < c.left) {
        gk_i64 at = (p->b * size->v[0] + p->t0 + c.i + p->inputs.c) * size->v[1] + p->h;
        x->factor = gk_load(in->gate, at);
        if (GK_OP == gk_rule_delta) x->strength = gk_load(in->second, at);
    }
}
GK_FN void gk_linear_fetch(const gk_state_in* in, const gk_linear_out* o, const gk_dims* size, const gk_chunk_place* p, gk_chunk c, const int mode,
                           gk_linear_ahead* x)
{
    x->k = gk_chunk_fetch(in->k, p->columns, c.columns, c.left);
    if (GK_OP == gk_rule_gla_key) x->g = gk_chunk_fetch(in->gate, p->columns, c.columns, c.left);
    x->v = gk_chunk_fetch(in->v, p->inputs, c.rows, c.left);
    if (mode == gk_linear_back) {
        x->q = gk_chunk_fetch(in->q, p->columns, c.columns, c.left);
        x->dy = gk_chunk_fetch(o->dy, p->inputs, c.rows, c.left);
    }
    GK_UNROLL for (int u = 0; u < GK_CHUNK_RUN; u++) {
        x->dot[u] = GK_R(0.0);
        if (GK_OP == gk_rule_delta && mode != gk_linear_first && p->inputs.c < c.left && u < p->inputs.has) x->dot[u] = o->dots[c.rows + u];
    }
    gk_linear_fetch_heads(in, size, p, c, x);
}

/* A run of what belongs to rows, in local memory. */
GK_FN void gk_linear_lay_run(GK_LOCAL_PTR gk_slot* to, const gk_chunk_place* p, const gk_f v[GK_CHUNK_RUN])
{
    int at = p->inputs.c * p->rows + p->inputs.n;
#if GK_CHUNK_RUN == 4
    gk_slot_put4(to, at, v[0], v[1], v[2], v[3]);
#else
    GK_UNROLL for (int u = 0; u < GK_CHUNK_RUN; u++) gk_slot_put(to, at + u, v[u]);
#endif
}

/* Lays a chunk of which `left` steps are there down in local memory. Inputs are u, but v where the delta rule has yet to find S_before k. */
GK_FN void gk_linear_lay(const gk_linear_local* m, const gk_chunk_place* p, int left, const gk_linear_ahead* x, gk_f rate, const int mode)
{
    int columns = GK_CHUNK_STEPS * p->span;
    gk_vec v = gk_decode16(x->v);
    gk_chunk_lay(m->columns, p, left, x->k, GK_R(0.0));
    if (mode == gk_linear_back) gk_chunk_lay(m->columns + GK_SLOTS(columns), p, left, x->q, GK_R(0.0));
    if (GK_OP == gk_rule_gla_key) gk_chunk_lay(m->columns + GK_SLOTS(2 * columns), p, left, x->g, GK_R(1.0));
    if (p->inputs.c < GK_CHUNK_STEPS) {
        gk_f run[GK_CHUNK_RUN];
        GK_UNROLL for (int u = 0; u < GK_CHUNK_RUN; u++) {
            run[u] = v.v[u];
            if (GK_OP == gk_rule_ssd) run[u] *= x->factor;
            if (GK_OP == gk_rule_delta && mode != gk_linear_first) run[u] = x->strength * (run[u] - x->factor * x->dot[u]);
        }
        gk_linear_lay_run(m->rows, p, run);
        if (mode == gk_linear_back) {
            v = gk_decode16(x->dy);
            GK_UNROLL for (int u = 0; u < GK_CHUNK_RUN; u++) run[u] = v.v[u];
            gk_linear_lay_run(m->rows + GK_SLOTS(GK_CHUNK_STEPS * p->rows), p, run);
        }
        if (GK_LINEAR_HEADS && p->inputs.n == 0) {
            m->heads[p->inputs.c] = GK_OP == gk_rule_ssd ? gk_exp2(x->factor * rate * GK_STATE_LOG2E) : x->factor;
            m->heads[GK_CHUNK_STEPS + p->inputs.c] = x->strength;
        }
    }
}

/* A thread's columns of k (0), q (1) or g (2) in step c of the chunk; its group's rows of inputs (0) or upstream gradients (1). */
GK_FN gk_four gk_linear_columns(const gk_linear_local* m, const gk_chunk_place* p, int c, const int which)
{
    return gk_chunk_run(m->columns, ((which * GK_CHUNK_STEPS + c) * p->span + p->n) >> 2);
}
GK_FN gk_four gk_linear_rows(const gk_linear_local* m, const gk_chunk_place* p, int c, const int which)
{
    return gk_chunk_run(m->rows, (which * GK_CHUNK_STEPS + c) * p->groups + p->group);
}

/* Factors of a thread's columns in step c. */
GK_FN gk_four gk_linear_factors(const gk_linear_local* m, const gk_chunk_place* p, int c)
{
    gk_four e;
    if (GK_OP == gk_rule_gla_key) return gk_linear_columns(m, p, c, 2);
    GK_UNROLL for (int j = 0; j < 4; j++) e.v[j] = m->heads[c];
    return e;
}

/* The sum of products over a thread's columns. Those behind the last are left out: an infinite gradient makes NaN of them. */
GK_FN gk_f gk_linear_dot(const gk_f a[GK_CHUNK_COLUMNS], const gk_f b[GK_CHUNK_COLUMNS], int has)
{
    gk_f s = GK_R(0.0);
    GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) {
        if (j < has) s += a[j] * b[j];
    }
    return s;
}

/* The states behind step c of the chunk. Where the delta rule has yet to find S_before k it leaves it in the place of upstream gradients. */
GK_FN void gk_linear_advance(const gk_linear_local* m, const gk_chunk_place* p, int c, gk_linear_states* x, const int mode)
{
    gk_four k = gk_linear_columns(m, p, c, 0), u = gk_linear_rows(m, p, c, 0), e = gk_linear_factors(m, p, c);
    if (GK_OP == gk_rule_delta && mode == gk_linear_first) {
        gk_f dot[GK_CHUNK_ROWS], strength = m->heads[GK_CHUNK_STEPS + c];
        GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) dot[r] = gk_linear_dot(x->s[r], k.v, p->has);
        gk_chunk_sum_lanes(dot, m->tmp, p->lanes);
        if (p->n == 0) gk_slot_put4(m->rows, (GK_CHUNK_STEPS + c) * p->rows + p->group * GK_CHUNK_ROWS, dot[0], dot[1], dot[2], dot[3]);
        GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) u.v[r] = strength * (u.v[r] - e.v[0] * dot[r]);
    }
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
        GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) x->s[r][j] = e.v[j] * x->s[r][j] + u.v[r] * k.v[j];
    }
}

/* The run of a thread in what is in the place of upstream gradients. */
GK_FN gk_four gk_linear_found(const gk_linear_local* m, const gk_chunk_place* p)
{
    gk_four r = gk_slot_get4(m->rows, (GK_CHUNK_STEPS + p->inputs.c) * p->rows + (p->inputs.n & ~3));
    GK_UNROLL for (int u = 0; u < GK_CHUNK_RUN; u++) r.v[u] = r.v[(p->inputs.n & (4 - GK_CHUNK_RUN)) + u];
    return r;
}

/* Takes the states through the chunks from step `from` to `to` and notes those before every `each`-th. Behind the last mark the delta rule alone goes
 * on, when it meets the steps first. */
GK_FN void gk_linear_sweep(const gk_state_in* in, const gk_linear_out* o, const gk_linear_local* m, const gk_dims* size, const gk_chunk_place* p,
                           gk_linear_states* x, const gk_linear_carry* g, gk_i64 from, gk_i64 to, GK_GLOBAL gk_f* marks, const int mode)
{
    gk_linear_ahead ahead;
    gk_chunk at = gk_chunk_at(p, from);
    const int each = mode == gk_linear_first ? GK_LINEAR_SPAN : 1;
    gk_i64 chunks = (to - from + GK_CHUNK_STEPS - 1) / GK_CHUNK_STEPS, number = 0;
    gk_i64 last = GK_OP == gk_rule_delta && mode == gk_linear_first ? chunks : (chunks - 1) / each * each;
    gk_linear_fetch(in, o, size, p, at, mode, &ahead);
    do {
        gk_chunk next = gk_chunk_next(p, at);
        gk_linear_lay(m, p, at.left, &ahead, g->rate, mode);
        GK_BARRIER();
        gk_linear_fetch(in, o, size, p, next, mode, &ahead);
        if (number % each == 0) gk_linear_note(marks + number / each * (GK_LINEAR_STATES * GK_BLOCK), x);
        GK_UNROLL for (int c = 0; c < GK_CHUNK_STEPS; c++) gk_linear_advance(m, p, c, x, mode);
        GK_BARRIER();
        if (GK_OP == gk_rule_delta && mode == gk_linear_first && p->inputs.c < at.left) {
            gk_four dot = gk_linear_found(m, p);
            GK_UNROLL for (int u = 0; u < GK_CHUNK_RUN; u++) {
                if (u < p->inputs.has) o->dots[at.rows + u] = dot.v[u];
            }
        }
        at = next;
    } while (++number < last);
    if (number == last && last < chunks) gk_linear_note(marks + number / each * (GK_LINEAR_STATES * GK_BLOCK), x);
}

/* One step back: step c of the chunk, number u of its pair, from the states before and behind it. Leaves the thread's shares of sums over threads.
 * Rows that are not there take no part: an infinite key makes NaN of them. */
GK_FN void gk_linear_step(const gk_linear_local* m, const gk_chunk_place* p, int c, const int u, const gk_linear_states* before,
                          const gk_linear_states* after, gk_linear_carry* g)
{
    gk_four k = gk_linear_columns(m, p, c, 0), q = gk_linear_columns(m, p, c, 1), in = gk_linear_rows(m, p, c, 0), up = gk_linear_rows(m, p, c, 1);
    gk_four e = gk_linear_factors(m, p, c), sums[3];
    GK_LOCAL_PTR gk_slot* to = m->shares + GK_SLOTS(u * GK_LINEAR_SHARES);
    gk_f du[GK_CHUNK_ROWS], dp[GK_CHUNK_ROWS], head = GK_R(0.0);
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
        GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) g->ds.s[r][j] += up.v[r] * q.v[j];
        du[r] = gk_linear_dot(g->ds.s[r], k.v, p->has);
        if (GK_OP != gk_rule_delta) gk_slot_put(to, GK_LINEAR_OF_ROWS + r * GK_LINEAR_ROW + gk_chunk_sum_at(gk_lid()), du[r]);
    }
    if (GK_OP == gk_rule_delta) {
        gk_f strength = m->heads[GK_CHUNK_STEPS + c];
        gk_chunk_sum_lanes(du, m->tmp, p->lanes);
        if (p->n == 0) gk_slot_put4(to, GK_LINEAR_OF_ROWS + p->group * 4, du[0], du[1], du[2], du[3]);
        GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) dp[r] = -e.v[0] * strength * du[r];
    }
    GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) {
        GK_UNROLL for (int i = 0; i < 3; i++) sums[i].v[j] = GK_R(0.0);
        GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
            if (r < g->live) {
                sums[0].v[j] += up.v[r] * after->s[r][j];
                sums[1].v[j] += in.v[r] * g->ds.s[r][j];
                if (GK_OP == gk_rule_delta) sums[1].v[j] += dp[r] * before->s[r][j];
                sums[2].v[j] += g->ds.s[r][j] * before->s[r][j];
            }
            g->ds.s[r][j] *= e.v[j];
            if (GK_OP == gk_rule_delta) g->ds.s[r][j] += dp[r] * k.v[j];
        }
        if (j < p->has) head += sums[2].v[j];
    }
    GK_UNROLL for (int i = 0; i < GK_LINEAR_SUMS; i++) {
        gk_slot_put4(to, i * GK_LINEAR_COLS + gk_lid() * 4, sums[i].v[0], sums[i].v[1], sums[i].v[2], sums[i].v[3]);
    }
    if (GK_LINEAR_HEADS) gk_slot_put(to, GK_LINEAR_OF_HEAD + gk_chunk_sum_at(gk_lid()), head);
}

/* Adds the shares of columns up and writes them. at: the pair's first step, of which `left` are there. Groups are a multiple of eight. */
GK_FN void gk_linear_add_columns(const gk_linear_local* m, const gk_linear_out* o, const gk_chunk_place* p, const gk_linear_task* t, gk_i64 at,
                                 int left)
{
    GK_GLOBAL gk_f* sum = t->sum == 0 ? o->pq : t->sum == 1 ? o->pk : o->pg;
    if (t->of_columns < GK_LINEAR_PAIR && t->of_columns < left && sum) {
        GK_LOCAL_PTR const gk_slot* from = m->shares + GK_SLOTS(t->of_columns * GK_LINEAR_SHARES + t->sum * GK_LINEAR_COLS + p->n);
        gk_four s;
        GK_UNROLL for (int j = 0; j < 4; j++) s.v[j] = GK_R(0.0);
        GK_ROLLED for (int n = 0; n < p->groups; n += 8) {
            GK_UNROLL for (int u = 0; u < 8; u++) {
                gk_four one = gk_chunk_run(from, u * p->lanes);
                GK_UNROLL for (int j = 0; j < 4; j++) s.v[j] += one.v[j];
            }
            from += GK_SLOTS(4) * 8 * p->lanes;
        }
        gk_linear_put4(sum, (o->first + (at + t->of_columns) * o->step) * p->width + p->n, p->has, o->wide, s);
    }
}

/* Adds the shares of rows up, in the place of the upstream gradients, and those of a head, in parts. c: the pair's first step in the chunk. The lanes
 * of a row are a multiple of eight, and at most 32, between which are no gaps. */
GK_FN void gk_linear_add_rows(const gk_linear_local* m, const gk_chunk_place* p, const gk_linear_task* t, int c)
{
    if (t->of_row < GK_LINEAR_PAIR) {
        GK_LOCAL_PTR const gk_slot* from = m->shares + GK_SLOTS(t->of_row * GK_LINEAR_SHARES + GK_LINEAR_OF_ROWS);
        gk_f s = GK_R(0.0);
        if (GK_OP == gk_rule_delta) {
            gk_four four = gk_chunk_run(from, t->row >> 2);
            s = (t->row & 2) ? (t->row & 1) ? four.v[3] : four.v[2] : (t->row & 1) ? four.v[1] : four.v[0];
        } else {
            from += GK_SLOTS(t->row % 4 * GK_LINEAR_ROW) + GK_SLOTS(4) * (gk_chunk_sum_at(t->row / 4 * p->lanes) >> 2);
            GK_ROLLED for (int l = 0; l < p->lanes; l += 8) {
                s += gk_chunk_sum4(from, 0) + gk_chunk_sum4(from, 1);
                from += GK_SLOTS(8);
            }
        }
        gk_slot_put(m->rows, (GK_CHUNK_STEPS + c + t->of_row) * p->rows + t->row, s);
    }
    if (GK_LINEAR_HEADS && gk_lid() < GK_LINEAR_PAIR * GK_LINEAR_PARTS) {
        int part = gk_lid() % GK_LINEAR_PARTS, from = gk_lid() / GK_LINEAR_PARTS * GK_LINEAR_SHARES + GK_LINEAR_OF_HEAD;
        gk_f s = GK_R(0.0);
        from += gk_chunk_sum_at(part * GK_LINEAR_EACH);
        GK_UNROLL for (int n = 0; n < GK_LINEAR_EACH; n += 4) s += gk_chunk_sum4(m->shares, (from + n) >> 2);
        gk_slot_put(m->parts, c * GK_LINEAR_PARTS + gk_lid(), s);
    }
}

/* Writes the gradients of a thread's run of v, and leaves its parts of a head's sums. */
GK_FN void gk_linear_write_rows(const gk_linear_local* m, const gk_state_in* in, const gk_linear_out* o, const gk_chunk_place* p, gk_chunk at,
                                const gk_linear_ahead* x, gk_linear_carry* g)
{
    if (p->inputs.c < at.left) {
        gk_vec v = gk_decode16(x->v), dy = gk_decode16(x->dy), dv = v;
        gk_four du = gk_linear_found(m, p);
        gk_f d = o->skip ? gk_load(o->skip, p->h) : GK_R(0.0), of_gate = GK_R(0.0), of_strength = GK_R(0.0);
        int part = p->inputs.c * GK_LINEAR_PARTS + p->inputs.n / GK_CHUNK_RUN;
        GK_UNROLL for (int u = 0; u < GK_CHUNK_RUN; u++) {
            gk_f one = du.v[u];
            dv.v[u] = one;
            if (GK_OP == gk_rule_ssd) dv.v[u] = x->factor * one + d * dy.v[u];
            if (GK_OP == gk_rule_delta) dv.v[u] = x->strength * one;
            if (u < p->inputs.has) {
                if (GK_OP == gk_rule_ssd) of_gate += v.v[u] * one;
                if (GK_OP == gk_rule_ssd) g->dd += v.v[u] * dy.v[u];
                if (GK_OP == gk_rule_delta) of_gate -= x->strength * x->dot[u] * one;
                if (GK_OP == gk_rule_delta) of_strength += one * (v.v[u] - x->factor * x->dot[u]);
            }
        }
        if (o->dv) gk_chunk_store(o->dv, p->inputs, at.rows, at.left, dv, o->accumulate);
        if (GK_LINEAR_HEADS) {
            gk_slot_put(m->parts, GK_BLOCK + part, of_gate);
            gk_slot_put(m->parts, 2 * GK_BLOCK + part, of_strength);
        }
    }
}

/* Adds the first `count` parts of a head's sum `which` in step c up. */
GK_FN gk_f gk_linear_head(const gk_linear_local* m, int c, int which, int count)
{
    gk_f s = GK_R(0.0);
    for (int n = 0; n < count; n += 4) s += gk_chunk_sum4(m->parts, (which * GK_BLOCK + c * GK_LINEAR_PARTS + n) >> 2);
    return s;
}
/* Writes what belongs to the head in the step of a thread's run: gradients of the factor or the step size, and of the strength. */
GK_FN void gk_linear_write_heads(const gk_linear_local* m, const gk_linear_out* o, const gk_chunk_place* p, gk_chunk at, const gk_linear_ahead* x,
                                 gk_linear_carry* g)
{
    if (GK_LINEAR_HEADS && p->inputs.n == 0 && p->inputs.c < at.left) {
        int runs = p->rows / GK_CHUNK_RUN;
        gk_i64 to = o->first + (at.i + p->inputs.c) * o->step;
        gk_f s = gk_linear_head(m, p->inputs.c, 0, GK_LINEAR_PARTS);
        if (GK_OP == gk_rule_ssd) {
            s *= m->heads[p->inputs.c];
            g->da += x->factor * s;
            s *= g->rate;
        }
        if (GK_OP != gk_rule_gla) s += gk_linear_head(m, p->inputs.c, 1, runs);
        if (o->pg) o->pg[to] = s;
        if (GK_OP == gk_rule_delta && o->pb) o->pb[to] = gk_linear_head(m, p->inputs.c, 2, runs);
    }
}

/* Goes back through a chunk; x: the states before it. */
GK_FN void gk_linear_through(const gk_linear_local* m, const gk_linear_out* o, const gk_chunk_place* p, const gk_linear_task* t, gk_chunk at,
                             const gk_linear_states* x, gk_linear_carry* g)
{
    gk_linear_states kept[GK_CHUNK_STEPS + 1];
    int pair = GK_CHUNK_STEPS / GK_LINEAR_PAIR - 1;
    kept[0] = *x;
    GK_UNROLL for (int c = 0; c < GK_CHUNK_STEPS; c++) {
        kept[c + 1] = kept[c];
        gk_linear_advance(m, p, c, &kept[c + 1], gk_linear_back);
    }
    GK_UNROLL do {
        GK_UNROLL for (int u = GK_LINEAR_PAIR - 1; u >= 0; u--) {
            int c = pair * GK_LINEAR_PAIR + u;
            gk_linear_step(m, p, c, u, &kept[c], &kept[c + 1], g);
        }
        GK_BARRIER();
        gk_linear_add_columns(m, o, p, t, at.i + pair * GK_LINEAR_PAIR, at.left - pair * GK_LINEAR_PAIR);
        gk_linear_add_rows(m, p, t, pair * GK_LINEAR_PAIR);
        GK_BARRIER();
    } while (pair-- > 0);
}

/* All spans of the run, from the last to the first. */
GK_FN void gk_linear_run(const gk_state_in* in, const gk_linear_out* o, const gk_linear_local* m, const gk_dims* size, const gk_chunk_place* p,
                         const gk_linear_task* t, gk_linear_carry* g, GK_GLOBAL gk_f* marks, GK_GLOBAL gk_f* inner)
{
    const gk_i64 steps = p->t1 - p->t0, each = GK_LINEAR_SPAN * GK_CHUNK_STEPS;
    gk_i64 span = (steps - 1) / each;
    do {
        gk_i64 from = span * each, to = from + each < steps ? from + each : steps;
        gk_linear_states x;
        gk_linear_ahead ahead;
        gk_linear_recall(marks + span * (GK_LINEAR_STATES * GK_BLOCK), &x);
        gk_linear_sweep(in, o, m, size, p, &x, g, from, to, inner, gk_linear_again);
        gk_chunk at = gk_chunk_at(p, from + (to - from - 1) / GK_CHUNK_STEPS * GK_CHUNK_STEPS);
        GK_GLOBAL const gk_f* mark = inner + (at.i - from) / GK_CHUNK_STEPS * (GK_LINEAR_STATES * GK_BLOCK);
        gk_linear_fetch(in, o, size, p, at, gk_linear_back, &ahead);
        gk_linear_recall(mark, &x);
        do {
            gk_linear_ahead now = ahead;
            gk_chunk next = gk_chunk_at(p, at.i - GK_CHUNK_STEPS);
            gk_linear_lay(m, p, at.left, &ahead, g->rate, gk_linear_back);
            GK_BARRIER();
            if (next.i >= from) gk_linear_fetch(in, o, size, p, next, gk_linear_back, &ahead);
            gk_linear_through(m, o, p, t, at, &x, g);
            mark -= GK_LINEAR_STATES * GK_BLOCK;
            if (next.i >= from) gk_linear_recall(mark, &x);
            gk_linear_write_rows(m, in, o, p, at, &now, g);
            GK_BARRIER();
            gk_linear_write_heads(m, o, p, at, &now, g);
            at = next;
        } while (at.i >= from);
    } while (span-- > 0);
}

/* The sum of a value over the block, to one number. */
GK_FN void gk_linear_total(GK_LOCAL_PTR gk_slot* shares, gk_f v, GK_GLOBAL gk_f* to, gk_i64 at)
{
    gk_slot_put(shares, gk_lid(), v);
    GK_BARRIER();
    if (gk_lid() == 0 && to) {
        gk_f s = GK_R(0.0);
        for (int n = 0; n < GK_BLOCK / 4; n++) s += gk_chunk_sum4(shares, n);
        to[at] = s;
    }
    GK_BARRIER();
}

// Units: FLOATS64 x LINEAR_RULES
/* As state_backward, for states of at most 128 columns and rules other than gk_rule_selective. Launch: one block per batch, head, tile of rows and
 * split. wide: 1, 2 as gk_chunk_place_of has them; 4 = rows of pq, pk and pg are whole items of 16 bytes. */
GK_KERNEL(state_backward_linear)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, v), GK_IN(gk_t, gate), GK_IN(gk_t, second), GK_IN(gk_t, skip),
                                 GK_IN(gk_t, dy), GK_IN(gk_f, initial), GK_IN(gk_f, part), GK_IN(gk_f, back), GK_OUT(gk_f, marks), GK_OUT(gk_f, dots),
                                 GK_OUT(gk_t, dv), GK_OUT(gk_f, pq), GK_OUT(gk_f, pk), GK_OUT(gk_f, pg), GK_OUT(gk_f, pb), GK_OUT(gk_f, pa),
                                 GK_OUT(gk_f, pd), GK_DIMS(size), int lanes, int wide, int accumulate)
{
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, v); GK_BIND_IN(gk_t, gate); GK_BIND_IN(gk_t, second); GK_BIND_IN(gk_t, skip);
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_f, initial); GK_BIND_IN(gk_f, part); GK_BIND_IN(gk_f, back); GK_BIND_OUT(gk_f, marks);
    GK_BIND_OUT(gk_f, dots); GK_BIND_OUT(gk_t, dv); GK_BIND_OUT(gk_f, pq); GK_BIND_OUT(gk_f, pk); GK_BIND_OUT(gk_f, pg); GK_BIND_OUT(gk_f, pb); GK_BIND_OUT(gk_f, pa);
    GK_BIND_OUT(gk_f, pd);
    GK_LOCAL gk_slot pool[GK_SLOTS(GK_LINEAR_POOL)];
    GK_LOCAL gk_slot shares[GK_SLOTS(GK_LINEAR_PAIR * GK_LINEAR_SHARES)];
    GK_LOCAL gk_slot parts[GK_SLOTS(GK_LINEAR_HEADS ? 3 * GK_BLOCK : 4)];
    GK_LOCAL gk_f heads[2 * GK_CHUNK_STEPS];
    GK_LOCAL gk_f tmp[GK_LINEAR_TMP];
    gk_chunk_place p = gk_chunk_place_of(&size, lanes, wide, gk_scan_results);
    gk_state_in in;
    gk_linear_out o;
    gk_linear_local m;
    gk_linear_carry g;
    gk_linear_states x;
    gk_linear_task t;
    gk_i64 tiles = (p.rows_all + p.rows - 1) / p.rows, tile = p.row0 / p.rows;
    in.q = q; in.k = k; in.v = v; in.gate = gate; in.second = second; in.wide = wide; in.softplus = 0;
    o.skip = skip; o.dy = dy; o.dots = dots; o.dv = dv; o.pq = pq; o.pk = pk; o.pg = pg; o.pb = pb; o.accumulate = accumulate; o.wide = wide & 4;
    m.columns = pool; m.rows = pool + GK_SLOTS((GK_LINEAR_HEADS ? 2 : 3) * GK_CHUNK_STEPS * p.span); m.shares = shares; m.parts = parts;
    m.heads = heads; m.tmp = tmp;
    /* No state has more than 128 columns. */
    p.chunk = GK_CHUNK_STEPS;
    o.first = ((p.b * size.v[0] + p.t0) * size.v[1] + p.h) * tiles + tile; o.step = size.v[1] * tiles;
    t.sum = p.group % GK_LINEAR_SUMS; t.of_columns = p.group / GK_LINEAR_SUMS;
    t.row = (GK_BLOCK - 1 - gk_lid()) % p.rows; t.of_row = (GK_BLOCK - 1 - gk_lid()) / p.rows;
    g.da = GK_R(0.0); g.dd = GK_R(0.0); g.rate = GK_OP == gk_rule_ssd ? gk_load(second, p.h) : GK_R(0.0);
    g.live = p.rows_all - gk_chunk_row(&p, 0) < GK_CHUNK_ROWS ? (int)(p.rows_all - gk_chunk_row(&p, 0)) : GK_CHUNK_ROWS;
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
        GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) { x.s[r][j] = GK_R(0.0); g.ds.s[r][j] = GK_R(0.0); }
        if (part) gk_chunk_get(part, gk_chunk_part(&size, &p, 0, r), &p, r, x.s[r]);
        else if (initial) gk_chunk_get(initial, gk_chunk_state(&size, &p, r), &p, r, x.s[r]);
        if (back) gk_chunk_get(back, gk_chunk_part(&size, &p, 0, r), &p, r, g.ds.s[r]);
    }
    gk_i64 spans = (size.v[4] + GK_LINEAR_SPAN * GK_CHUNK_STEPS - 1) / (GK_LINEAR_SPAN * GK_CHUNK_STEPS);
    GK_GLOBAL gk_f* own = marks + gk_bid(0) * (spans + GK_LINEAR_SPAN) * (GK_LINEAR_STATES * GK_BLOCK);
    gk_linear_sweep(&in, &o, &m, &size, &p, &x, &g, 0, p.t1 - p.t0, own, gk_linear_first);
    gk_linear_run(&in, &o, &m, &size, &p, &t, &g, own, own + spans * (GK_LINEAR_STATES * GK_BLOCK));
    if (GK_OP == gk_rule_ssd) {
        gk_i64 of_tile = ((p.b * size.v[5] + p.s) * tiles + tile) * size.v[1] + p.h;
        gk_linear_total(shares, g.da, pa, of_tile);
        gk_linear_total(shares, g.dd, pd, of_tile);
    }
}
