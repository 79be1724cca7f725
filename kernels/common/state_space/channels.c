/* Forward selective scan with at most 16 states per channel: four threads share two channels, each with four states of either in registers.
 *
 * state_space/state.h has the formulas, state_space/chunk.h how a block goes through the steps. A chunk has eight steps, of which each thread reads
 * and finishes two, so that step sizes, gates and results are computed once. Step sizes and inputs lie in local memory beside k and q, in two places
 * that take turns: while a block computes the steps of one chunk it prepares the next and loads the one after that. The threads' shares of eight
 * results are exchanged so that each has the sums of its own two. Steps behind the last one leave the states as they are. Sums in gk_f.
 * Deterministic: one writer per output, sums in a fixed order. Reference: Gu and Dao (2023).
 */
#define GK_CHUNK_ROWS 2
#define GK_CHUNK_COLUMNS 4
#define GK_CHUNK_STEPS 8
#include "state.h"
#include "chunk.h"

#define GK_CHANNEL_LANES 4
/* Groups of threads; columns of k and of q. */
#define GK_CHANNEL_GROUPS (GK_BLOCK / GK_CHANNEL_LANES)
#define GK_CHANNEL_WIDTH (GK_CHANNEL_LANES * GK_CHUNK_COLUMNS)
/* A thread's own elements of a chunk: two steps of two channels. */
#define GK_CHANNEL_OWN 4
/* Runs of four numbers for two steps: step size and input of both for the first channel of each group, then for the second, then a gap so that the
 * threads of a group meet no bank twice. */
#define GK_CHANNEL_RUNS (2 * GK_CHANNEL_GROUPS + 2)
/* Numbers of a chunk in local memory: k, q, rows. */
#define GK_CHANNEL_COLUMNS (GK_CHUNK_STEPS * GK_CHANNEL_WIDTH)
#define GK_CHANNEL_POOL (2 * GK_CHANNEL_COLUMNS + GK_CHUNK_STEPS / 2 * GK_CHANNEL_RUNS * 4)

#if GK_DTYPE != GK_F64
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2
#endif

/* A thread's states, and their rates times log2 e. */
typedef struct { gk_f s[GK_CHUNK_ROWS][GK_CHUNK_COLUMNS], a[GK_CHUNK_ROWS][GK_CHUNK_COLUMNS]; } gk_channel_states;

/* A thread's own elements: where the first that is not yet read lies, and how far apart steps are. z may be null. */
typedef struct {
    GK_GLOBAL const gk_t* v;
    GK_GLOBAL const gk_t* step;
    GK_GLOBAL const gk_t* z;
    gk_i64 apart;
} gk_channel_rows;

/* Its place: its number in its group; how many of its channels are there; factors of the skip connection, if any. */
typedef struct { int lane, on, skips; gk_f skip[GK_CHUNK_ROWS]; } gk_channel_place;

/* A chunk in registers, as stored. */
typedef struct { gk_raw16 k, q; gk_t v[GK_CHANNEL_OWN], step[GK_CHANNEL_OWN], z[GK_CHANNEL_OWN]; } gk_channel_ahead;

/* What its own results are made of beside the sums: y = (sum + add) gate. */
typedef struct { gk_f add[GK_CHANNEL_OWN], gate[GK_CHANNEL_OWN]; } gk_channel_finish;

/* Own element number i of a chunk is of step i / 2 of the thread's two and of channel i % 2: how far behind the first it lies, and whether it is
 * there, as `left` steps are. */
GK_FN gk_i64 gk_channel_from(gk_i64 apart, int i) { return i / 2 * apart + i % 2; }
GK_FN int gk_channel_has(const gk_channel_place* at, int left, int i) { return 2 * at->lane + i / 2 < left && i % 2 < at->on; }

/* Own elements of a chunk of which `left` steps are there: those behind have no input and a step size of 0, as it comes out of softplus. */
GK_FN void gk_channel_fetch_rows(const gk_state_in* in, const gk_channel_rows* r, const gk_channel_place* at, int left, gk_channel_ahead* x)
{
    if (left == GK_CHUNK_STEPS && at->on == 2) {
        GK_UNROLL for (int i = 0; i < GK_CHANNEL_OWN; i++) {
            gk_i64 from = gk_channel_from(r->apart, i);
            x->v[i] = r->v[from];
            x->step[i] = r->step[from];
            if (r->z) x->z[i] = r->z[from];
        }
    } else {
        GK_UNROLL for (int i = 0; i < GK_CHANNEL_OWN; i++) {
            gk_i64 from = gk_channel_from(r->apart, i);
            x->v[i] = gk_encode(GK_R(0.0));
            x->step[i] = gk_encode(in->softplus ? -GK_INF : GK_R(0.0));
            if (gk_channel_has(at, left, i)) {
                x->v[i] = r->v[from];
                x->step[i] = r->step[from];
                if (r->z) x->z[i] = r->z[from];
            }
        }
    }
}

GK_FN void gk_channel_fetch(const gk_state_in* in, gk_channel_rows* r, const gk_chunk_place* p, const gk_channel_place* at, gk_chunk c,
                            gk_channel_ahead* x)
{
    gk_i64 hop = GK_CHUNK_STEPS * r->apart;
    if (c.left <= 0) return;
    if (gk_lid() < GK_CHANNEL_COLUMNS / GK_CHUNK_RUN) {
        x->k = gk_chunk_fetch(in->k, p->columns, c.columns, c.left);
        x->q = gk_chunk_fetch(in->q, p->columns, c.columns, c.left);
    }
    gk_channel_fetch_rows(in, r, at, c.left, x);
    r->v += hop;
    r->step += hop;
    if (r->z) r->z += hop;
}

/* k and q of a chunk into local memory. */
GK_FN void gk_channel_lay_columns(GK_LOCAL_PTR gk_slot* pool, const gk_chunk_place* p, int left, const gk_channel_ahead* x)
{
    gk_chunk_lay(pool, p, left, x->k, GK_R(0.0));
    gk_chunk_lay(pool + GK_SLOTS(GK_CHANNEL_COLUMNS), p, left, x->q, GK_R(0.0));
}

/* Its step sizes, and these times the inputs. Without branches, so that it runs beside the steps of another chunk. */
GK_FN void gk_channel_lay_rows(const gk_state_in* in, int gated, GK_LOCAL_PTR gk_slot* pool, const gk_chunk_place* p, const gk_channel_place* at,
                               const gk_channel_ahead* x, gk_channel_finish* f)
{
    GK_LOCAL_PTR gk_slot* rows = pool + GK_SLOTS(2 * GK_CHANNEL_COLUMNS);
    gk_f step[GK_CHANNEL_OWN], u[GK_CHANNEL_OWN];
    GK_UNROLL for (int i = 0; i < GK_CHANNEL_OWN; i++) {
        gk_f v = gk_decode(x->v[i]), raw = gk_decode(x->step[i]), soft = gk_state_softplus(raw), z = gk_decode(x->z[i]);
        gk_f gate = z * gk_recip(GK_R(1.0) + gk_decay(-z * GK_STATE_LOG2E));
        step[i] = in->softplus ? soft : raw;
        u[i] = step[i] * v;
        f->add[i] = at->skips ? at->skip[i % 2] * v : GK_R(0.0);
        f->gate[i] = gated ? gate : GK_R(1.0);
    }
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
        int run = at->lane * GK_CHANNEL_RUNS + r * GK_CHANNEL_GROUPS + p->group;
        gk_slot_put4(rows, run * 4, step[r], u[r], step[2 + r], u[2 + r]);
    }
}

/* One step of the states of channel r; what they add to the result. whole: all columns are there. */
GK_FN gk_f gk_channel_advance(gk_channel_states* x, const int r, const gk_four* k, const gk_four* q, int has, gk_f step, gk_f u, const int whole)
{
    GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) x->s[r][j] = gk_decay(step * x->a[r][j]) * x->s[r][j] + u * k->v[j];
    return gk_chunk_dot(x->s[r], q->v, whole ? GK_CHUNK_COLUMNS : has);
}

/* Of a thread's shares y of the results of a chunk, the sums over its group for its own two steps. */
GK_FN void gk_channel_sums(const gk_channel_place* at, const gk_f y[GK_CHUNK_STEPS], gk_f sum[2])
{
#ifdef gk_shuffle_xor
    gk_f half[4];
    int upper = at->lane & 2;
    GK_UNROLL for (int i = 0; i < 4; i++) half[i] = (upper ? y[i + 4] : y[i]) + gk_shuffle_xor(upper ? y[i] : y[i + 4], 2);
    upper = at->lane & 1;
    GK_UNROLL for (int i = 0; i < 2; i++) sum[i] = (upper ? half[i + 2] : half[i]) + gk_shuffle_xor(upper ? half[i] : half[i + 2], 1);
#else
    /* Not launched where threads cannot exchange values. */
    sum[0] = y[0];
    sum[1] = y[1];
#endif
}

/* The steps of a chunk: sums of the thread's own elements. */
GK_FN void gk_channel_steps(GK_LOCAL_PTR const gk_slot* pool, const gk_chunk_place* p, const gk_channel_place* at, gk_channel_states* x,
                            gk_f sum[GK_CHANNEL_OWN], const int whole)
{
    GK_LOCAL_PTR const gk_slot* columns = pool + GK_SLOTS(4) * (p->n / 4);
    GK_LOCAL_PTR const gk_slot* rows = pool + GK_SLOTS(2 * GK_CHANNEL_COLUMNS) + GK_SLOTS(4) * p->group;
    gk_f y[GK_CHUNK_ROWS][GK_CHUNK_STEPS];
    GK_UNROLL for (int t = 0; t < GK_CHUNK_STEPS; t++) {
        int first = t / 2 * GK_CHANNEL_RUNS, u = t % 2 * 2;
        gk_four k = gk_chunk_run(columns, t * GK_CHANNEL_LANES), q = gk_chunk_run(columns, t * GK_CHANNEL_LANES + GK_CHANNEL_COLUMNS / 4);
        GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
            gk_four row = gk_chunk_run(rows, first + r * GK_CHANNEL_GROUPS);
            y[r][t] = gk_channel_advance(x, r, &k, &q, p->has, row.v[u], row.v[u + 1], whole);
        }
    }
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
        gk_f own[2];
        gk_channel_sums(at, y[r], own);
        sum[r] = own[0];
        sum[2 + r] = own[1];
    }
}

/* All steps of a run. y: the thread's first result. whole: all its columns are there. */
GK_FN void gk_channel_run(const gk_state_in* in, gk_channel_rows* r, GK_GLOBAL gk_t* y, GK_LOCAL_PTR gk_slot* pool, const gk_chunk_place* p,
                          const gk_channel_place* at, gk_channel_states* x, const int whole)
{
    gk_channel_ahead ahead;
    gk_channel_finish finish;
    gk_chunk c = gk_chunk_at(p, 0), next = gk_chunk_next(p, c);
    int turn = 0;
    GK_UNROLL for (int i = 0; i < GK_CHANNEL_OWN; i++) ahead.z[i] = gk_encode(GK_R(0.0));
    ahead.k = ahead.q = gk_make16(0u, 0u, 0u, 0u);
    gk_channel_fetch(in, r, p, at, c, &ahead);
    gk_channel_lay_columns(pool, p, c.left, &ahead);
    gk_channel_lay_rows(in, r->z != 0, pool, p, at, &ahead, &finish);
    gk_channel_fetch(in, r, p, at, next, &ahead);
    GK_BARRIER();
    do {
        gk_channel_ahead now = ahead;
        gk_channel_finish later;
        gk_f sum[GK_CHANNEL_OWN];
        gk_chunk third = gk_chunk_next(p, next);
        GK_LOCAL_PTR gk_slot* other = pool + (turn ^ 1) * GK_SLOTS(GK_CHANNEL_POOL);
        gk_channel_lay_columns(other, p, next.left, &now);
        gk_channel_fetch(in, r, p, at, third, &ahead);
        gk_channel_steps(pool + turn * GK_SLOTS(GK_CHANNEL_POOL), p, at, x, sum, whole);
        gk_channel_lay_rows(in, r->z != 0, other, p, at, &now, &later);
        GK_UNROLL for (int i = 0; i < GK_CHANNEL_OWN; i++) {
            gk_f out = (sum[i] + finish.add[i]) * finish.gate[i];
            if (gk_channel_has(at, c.left, i)) y[gk_channel_from(r->apart, i)] = gk_encode(out);
        }
        y += GK_CHUNK_STEPS * r->apart;
        finish = later;
        c = next;
        next = third;
        turn ^= 1;
        GK_BARRIER();
    } while (c.left > 0);
}

// Units: FLOATS64 x SELECTIVE_RULE
/* As state_scan, for gk_rule_selective with at most 16 states per channel. Launch: one block per batch, tile of 128 channels and split. */
GK_KERNEL(state_scan_channels)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, v), GK_IN(gk_t, gate), GK_IN(gk_t, second), GK_IN(gk_t, skip),
                               GK_IN(gk_t, z), GK_IN(gk_f, initial), GK_IN(gk_f, part), GK_OUT(gk_t, y), GK_OUT(gk_f, state), GK_DIMS(size),
                               int softplus, int wide)
{
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, v); GK_BIND_IN(gk_t, gate); GK_BIND_IN(gk_t, second); GK_BIND_IN(gk_t, skip);
    GK_BIND_IN(gk_t, z); GK_BIND_IN(gk_f, initial); GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_f, state);
    GK_LOCAL gk_slot pool[GK_SLOTS(2 * GK_CHANNEL_POOL)];
    gk_chunk_place p = gk_chunk_place_of(&size, GK_CHANNEL_LANES, wide, gk_scan_results);
    gk_channel_place at;
    gk_channel_rows rows;
    gk_state_in in;
    gk_channel_states x;
    gk_i64 row = gk_chunk_row(&p, 0), first;
    in.q = q; in.k = k; in.v = v; in.gate = gate; in.second = second; in.wide = wide; in.softplus = softplus;
    at.lane = gk_lid() % GK_CHANNEL_LANES; at.skips = skip != 0;
    at.on = row + 1 < p.rows_all ? 2 : row < p.rows_all ? 1 : 0;
    first = (p.b * size.v[0] + p.t0 + 2 * at.lane) * p.rows_all + row;
    rows.v = v + first; rows.step = gate + first; rows.z = z ? z + first : z; rows.apart = p.rows_all;
    gk_chunk_rates(second, &p, x.a);
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
        at.skip[r] = skip && r < at.on ? gk_load(skip, row + r) : GK_R(0.0);
        GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) x.s[r][j] = GK_R(0.0);
        if (part) gk_chunk_get(part, gk_chunk_part(&size, &p, 0, r), &p, r, x.s[r]);
        else if (initial) gk_chunk_get(initial, gk_chunk_state(&size, &p, r), &p, r, x.s[r]);
    }
    if (p.width == GK_CHANNEL_WIDTH) gk_channel_run(&in, &rows, y + first, pool, &p, &at, &x, 1);
    else gk_channel_run(&in, &rows, y + first, pool, &p, &at, &x, 0);
    if (state && p.t1 == size.v[0]) {
        GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) gk_chunk_put(state, gk_chunk_state(&size, &p, r), &p, r, x.s[r]);
    }
}
