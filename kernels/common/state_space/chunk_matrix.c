/* Forward scans of states whose factors are per head, in chunks of 16 steps by products of matrices on matrix cores; state_space/state.h has the
 * steps. For step i of a chunk with the state S before it, P(i, j) = g[j + 1] ... g[i] and P(i) = g[0] ... g[i]:
 *
 *   delta rule         u[i] = b[i] (v[i] - P(i) S k[i] - sum over j < i of P(i, j) (k[i] . k[j]) u[j]), solved for all u of the chunk by the
 *                      inverse of a triangular matrix of 16 rows
 *   others             u[i] = v[i], times the step size
 *   y[i] = P(i) S q[i] + sum over j <= i of P(i, j) (q[i] . k[j]) u[j]
 *   the next state     P(15) S + sum over j of P(15, j) u[j] k[j]
 *
 * Factors are multiplied, never divided, so they may have any sign and size. A block has up to 64 rows and 64 columns of the state of one batch, head
 * and split. Its first four warps have 16 rows each, in registers, and go from chunk to chunk; meanwhile the others read the next four chunks, make
 * the matrices that do not depend on the state, and write results. Where numbers are not finite the steps of a chunk are taken one by one, so that
 * they reach what they reach in state_space/scan.c. Arithmetic in float; products in TF32 with both parts of numbers (prelude/matrix_tf32.h).
 * Deterministic. Empty where the dialect has no such products. References: Yang et al. (2024, 2025), Dao and Gu (2024).
 */
#include "state.h"
#include "common/prelude/matrix_tf32.h"

#if defined(GK_TF32_REGISTERS) && !defined(GK_MATRIX_LOCAL_KB)
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 1

#define GK_MC_STEPS 16
#define GK_MC_CHUNKS 4
#define GK_MC_SIDE 64
#define GK_MC_WARPS 4
/* Rows of tiles in local memory begin in other banks, those of matrices of 16 rows too. */
#define GK_MC_PITCH 68
#define GK_MC_NARROW 24
/* Parts of local memory for a chunk: tiles of k, q and v; matrices of the inputs and of the results; P(i), P(15, j), factors, what a step multiplies
 * its input by, and whether all is finite. */
#define GK_MC_TILE (GK_MC_STEPS * GK_MC_PITCH)
#define GK_MC_MATRIX (GK_MC_STEPS * GK_MC_NARROW)
#define GK_MC_VECTORS (5 * GK_MC_STEPS)
#define GK_MC_AHEAD (2 * GK_MC_TILE + 2 * GK_MC_MATRIX + GK_MC_VECTORS)
#define GK_MC_LOCAL (GK_MC_CHUNKS * (2 * GK_MC_AHEAD + 3 * GK_MC_TILE))
/* Items of 16 bytes of a row, and of the 16 rows of a chunk for each lane of a warp. */
#define GK_MC_ITEMS (GK_MC_SIDE / GK_W)
#define GK_MC_RUNS (GK_MC_STEPS * GK_MC_ITEMS / 32)
/* Small parts of operands: of what is read, and of what is computed on the left and on the right. */
#define GK_MC_READ (GK_DTYPE == GK_F32 ? 3 : 0)
#define GK_MC_LEFT (GK_MC_READ & 2 | 1)
#define GK_MC_BOTH 3

/* What a chunk has in local memory. */
typedef struct { GK_LOCAL_PTR gk_f *k, *q, *v, *input, *result, *before, *after, *factor, *strength, *finite; } gk_mc_local;

/* A block's batch, head, first row and how many there are, and its run of steps; where k and v of the run begin, how far steps are apart. */
typedef struct { gk_i64 b, h, row0, t0, t1, s, keys, key_step, values, value_step; int rows, width, wide; } gk_mc_place;

/* Four chunks on their way to local memory: what a lane of the warp of a chunk reads. */
typedef struct { gk_raw16 k[GK_MC_RUNS], q[GK_MC_RUNS], v[GK_MC_RUNS]; gk_f gate, second; } gk_mc_ahead;

GK_FN gk_mc_place gk_mc_place_of(const gk_dims* size, int wide)
{
    gk_mc_place p;
    gk_i64 block = gk_bid(0), tiles = (size->v[2] + GK_MC_SIDE - 1) / GK_MC_SIDE, left;
    p.s = block % size->v[5];
    block /= size->v[5];
    p.row0 = block % tiles * GK_MC_SIDE;
    block /= tiles;
    p.b = block / size->v[1];
    p.h = block % size->v[1];
    p.t0 = p.s * size->v[4];
    p.t1 = p.t0 + size->v[4] < size->v[0] ? p.t0 + size->v[4] : size->v[0];
    left = size->v[2] - p.row0;
    p.rows = left < GK_MC_SIDE ? (int)left : GK_MC_SIDE;
    p.width = (int)size->v[6];
    p.wide = wide;
    p.key_step = size->v[3] * size->v[6];
    p.keys = (p.b * size->v[0] + p.t0) * p.key_step + p.h / (size->v[1] / size->v[3]) * p.width;
    p.value_step = size->v[1] * size->v[2];
    p.values = (p.b * size->v[0] + p.t0) * p.value_step + p.h * size->v[2] + p.row0;
    return p;
}

/* Chunk `chunk` of the run. */
GK_FN gk_mc_local gk_mc_local_of(GK_LOCAL_PTR gk_f* pool, int chunk)
{
    gk_mc_local m;
    GK_LOCAL_PTR gk_f* ahead = pool + GK_MC_CHUNKS * 3 * GK_MC_TILE + chunk % (2 * GK_MC_CHUNKS) * GK_MC_AHEAD;
    m.v = pool + chunk % (3 * GK_MC_CHUNKS) * GK_MC_TILE;
    m.k = ahead; m.q = ahead + GK_MC_TILE; m.input = ahead + 2 * GK_MC_TILE; m.result = m.input + GK_MC_MATRIX;
    m.before = m.result + GK_MC_MATRIX; m.after = m.before + GK_MC_STEPS; m.factor = m.after + GK_MC_STEPS; m.strength = m.factor + GK_MC_STEPS;
    m.finite = m.strength + GK_MC_STEPS;
    return m;
}

/* Two and four neighbours of local memory. */
GK_FN void gk_mc_get2(GK_LOCAL_PTR const gk_f* from, gk_f* x, gk_f* y)
{
    gk_u64 w = *(GK_LOCAL_PTR const gk_u64*)from;
    *x = gk_as_f32((gk_u32)w); *y = gk_as_f32((gk_u32)(w >> 32));
}
GK_FN void gk_mc_get4(GK_LOCAL_PTR const gk_f* from, gk_f v[4])
{
    gk_raw16 w = *(GK_LOCAL_PTR const gk_raw16*)from;
    v[0] = gk_as_f32(w.x); v[1] = gk_as_f32(w.y); v[2] = gk_as_f32(w.z); v[3] = gk_as_f32(w.w);
}
GK_FN void gk_mc_clear(gk_f c[4]) { GK_UNROLL for (int e = 0; e < 4; e++) c[e] = GK_R(0.0); }

/* Lane's places: its rows of sums and columns of right operands, and its columns of sums. */
#define gk_mc_line() (gk_lid() % 32 / 4)
#define gk_mc_pair() (gk_lid() % 4 * 2)
/* Sum e of tile n of a state is in this column: a thread has eight neighbours of each half, and as a right operand four. */
#define gk_mc_column(n, e) ((n) / 4 * 32 + gk_lid() % 4 * 8 + (e) % 2 * 4 + (n) % 4)

/* ---- warps that read, write and make matrices ---- */

/* A lane's items of the 16 rows from x[at] on, of which `left` are there with `has` elements each. */
GK_FN void gk_mc_fetch_items(GK_GLOBAL const gk_t* x, gk_i64 at, gk_i64 step, int left, int has, int wide, gk_raw16 r[GK_MC_RUNS])
{
    int row = gk_lid() % 32 / GK_MC_ITEMS, n = gk_lid() % GK_MC_ITEMS * GK_W;
    GK_GLOBAL const gk_t* from = x + at + row * step + n;
    if (wide) {
        GK_UNROLL for (int i = 0; i < GK_MC_RUNS; i++) {
            r[i] = gk_make16(0u, 0u, 0u, 0u);
            if (row + 32 / GK_MC_ITEMS * i < left && n < has) r[i] = gk_load16((GK_GLOBAL const void*)(from + 32 / GK_MC_ITEMS * i * step));
        }
    } else {
        GK_UNROLL for (int i = 0; i < GK_MC_RUNS; i++) {
            gk_vec v;
            GK_UNROLL for (int u = 0; u < GK_W; u++) {
                v.v[u] = GK_R(0.0);
                if (row + 32 / GK_MC_ITEMS * i < left && n + u < has) v.v[u] = gk_load(from, 32 / GK_MC_ITEMS * i * step + u);
            }
            r[i] = gk_encode16(v);
        }
    }
}

GK_FN void gk_mc_fetch(const gk_state_in* in, const gk_dims* size, const gk_mc_place* p, int chunk, gk_mc_ahead* x)
{
    gk_i64 t = (gk_i64)chunk * GK_MC_STEPS;
    int lane = gk_lid() % 32, left = p->t1 - p->t0 - t < GK_MC_STEPS ? (int)(p->t1 - p->t0 - t) : GK_MC_STEPS;
    gk_mc_fetch_items(in->k, p->keys + t * p->key_step, p->key_step, left, p->width, p->wide & 1, x->k);
    gk_mc_fetch_items(in->q, p->keys + t * p->key_step, p->key_step, left, p->width, p->wide & 1, x->q);
    gk_mc_fetch_items(in->v, p->values + t * p->value_step, p->value_step, left, p->rows, p->wide & 2, x->v);
    x->gate = GK_OP == gk_rule_ssd ? GK_R(0.0) : GK_R(1.0);
    x->second = GK_R(0.0);
    if (lane < left) {
        gk_i64 at = (p->b * size->v[0] + p->t0 + t + lane) * size->v[1] + p->h;
        x->gate = gk_load(in->gate, at);
        if (GK_OP == gk_rule_delta) x->second = gk_load(in->second, at);
    }
}

/* Items as numbers; the sum of them all times 0: NaN where one is not finite. */
GK_FN gk_f gk_mc_lay_items(GK_LOCAL_PTR gk_f* to, const gk_raw16 x[GK_MC_RUNS])
{
    gk_f bad = GK_R(0.0);
    GK_UNROLL for (int i = 0; i < GK_MC_RUNS; i++) {
        int item = gk_lid() % 32 + 32 * i;
        GK_LOCAL_PTR gk_f* at = to + item / GK_MC_ITEMS * GK_MC_PITCH + item % GK_MC_ITEMS * GK_W;
        gk_vec v = gk_decode16(x[i]);
        GK_UNROLL for (int u = 0; u < GK_W; u += 4) {
            *(GK_LOCAL_PTR gk_raw16*)(at + u) = gk_make16(gk_as_u32(v.v[u]), gk_as_u32(v.v[u + 1]), gk_as_u32(v.v[u + 2]), gk_as_u32(v.v[u + 3]));
            GK_UNROLL for (int w = u; w < u + 4; w++) bad += v.v[w] * GK_R(0.0);
        }
    }
    return bad;
}

/* A chunk, and P(i, j) in m->result, a column for each lane; rate: of the head, times log2 e. Returns 0, or NaN where v or a product of factors is
 * not finite. */
GK_FN gk_f gk_mc_lay(const gk_mc_local* m, const gk_mc_ahead* x, gk_f rate)
{
    int lane = gk_lid() % 32 % GK_MC_STEPS, writes = gk_lid() % 32 < GK_MC_STEPS;
    gk_f before, after, factor = x->gate, strength = GK_R(1.0), bad;
    if (GK_OP == gk_rule_delta) strength = x->second;
    if (GK_OP == gk_rule_ssd) { strength = factor; factor = gk_exp2(factor * rate); }
    gk_mc_lay_items(m->k, x->k);
    gk_mc_lay_items(m->q, x->q);
    bad = gk_mc_lay_items(m->v, x->v);
    if (writes) { m->factor[lane] = factor; m->strength[lane] = strength; }
    GK_WARP_SYNC();
    after = GK_R(0.0);
    GK_UNROLL for (int s = 0; s < GK_MC_STEPS; s += 4) {
        gk_f f[4];
        gk_mc_get4(m->factor + s, f);
        GK_UNROLL for (int u = 0; u < 4; u++) {
            after = s + u == lane ? GK_R(1.0) : after * f[u];
            if (writes) m->result[(s + u) * GK_MC_NARROW + lane] = after;
        }
    }
    GK_WARP_SYNC();
    before = m->factor[0] * m->result[lane * GK_MC_NARROW];
    if (GK_OP == gk_rule_ssd) after *= strength;
    if (writes) { m->before[lane] = before; m->after[lane] = after; }
    return bad + (before + after + strength) * GK_R(0.0);
}

/* Products of the rows of k and q with those of k. */
GK_FN void gk_mc_squares(const gk_mc_local* m, gk_f kk[2][4], gk_f qk[2][4])
{
    gk_f rest[2][2][4];
    GK_LOCAL_PTR const gk_f* k = m->k + gk_mc_line() * GK_MC_PITCH + gk_lid() % 4 * 8;
    GK_LOCAL_PTR const gk_f* q = m->q + gk_mc_line() * GK_MC_PITCH + gk_lid() % 4 * 8;
    GK_UNROLL for (int n = 0; n < 2; n++) { gk_mc_clear(kk[n]); gk_mc_clear(qk[n]); gk_mc_clear(rest[0][n]); gk_mc_clear(rest[1][n]); }
    GK_UNROLL for (int h = 0; h < 2; h++) {
        gk_f x[2][8], z[2][8];
        GK_UNROLL for (int r = 0; r < 2; r++) {
            GK_UNROLL for (int u = 0; u < 8; u += 4) {
                gk_mc_get4(k + 8 * r * GK_MC_PITCH + 32 * h + u, x[r] + u);
                gk_mc_get4(q + 8 * r * GK_MC_PITCH + 32 * h + u, z[r] + u);
            }
        }
        GK_UNROLL for (int u = 0; u < 4; u++) {
            gk_f a[4], c[4];
            GK_UNROLL for (int i = 0; i < 4; i++) { a[i] = x[i % 2][u + i / 2 * 4]; c[i] = z[i % 2][u + i / 2 * 4]; }
            GK_UNROLL for (int n = 0; n < 2; n++) {
                if (GK_OP == gk_rule_delta) gk_tf32_mm(kk[n], rest[0][n], a, x[n][u], x[n][u + 4], GK_MC_READ);
                gk_tf32_mm(qk[n], rest[1][n], c, x[n][u], x[n][u + 4], GK_MC_READ);
            }
        }
    }
    GK_UNROLL for (int n = 0; n < 2; n++) {
        GK_UNROLL for (int e = 0; e < 4; e++) { kk[n][e] += rest[0][n][e]; qk[n][e] += rest[1][n][e]; }
    }
}

/* Replaces the strictly lower triangle L in m->input by (1 + L)^-1 diag(b), a column for each lane. Returns 0, or NaN where that is not finite. */
GK_FN gk_f gk_mc_solve(const gk_mc_local* m)
{
    int column = gk_lid() % 32 % GK_MC_STEPS;
    gk_f x[GK_MC_STEPS], b = m->strength[column], bad = GK_R(0.0);
    GK_UNROLL for (int i = 0; i < GK_MC_STEPS; i++) x[i] = i == column ? GK_R(1.0) : GK_R(0.0);
    GK_UNROLL for (int s = 0; s < GK_MC_STEPS; s += 4) {
        gk_f l[GK_MC_STEPS][4];
        GK_UNROLL for (int i = s + 1; i < GK_MC_STEPS; i++) gk_mc_get4(m->input + i * GK_MC_NARROW + s, l[i]);
        GK_UNROLL for (int u = 0; u < 4; u++) {
            GK_UNROLL for (int i = s + u + 1; i < GK_MC_STEPS; i++) x[i] -= l[i][u] * x[s + u];
        }
    }
    GK_WARP_SYNC();
    GK_UNROLL for (int i = 0; i < GK_MC_STEPS; i++) {
        x[i] *= b;
        bad += x[i] * GK_R(0.0);
        if (gk_lid() % 32 < GK_MC_STEPS) m->input[i * GK_MC_NARROW + column] = x[i];
    }
    return bad;
}

/* The matrices of a chunk that lies in local memory, P(i, j) in m->result. What is not finite in k or q makes products of rows that are not. */
GK_FN void gk_mc_matrices(const gk_mc_local* m, gk_f bad)
{
    gk_f kk[2][4], qk[2][4], d[2][4];
    int any;
    gk_mc_squares(m, kk, qk);
    GK_UNROLL for (int i = 0; i < 4; i++) {
        gk_mc_get2(m->result + (gk_mc_line() + i % 2 * 8) * GK_MC_NARROW + i / 2 * 8 + gk_mc_pair(), &d[i / 2][i % 2 * 2], &d[i / 2][i % 2 * 2 + 1]);
    }
    GK_WARP_SYNC();
    GK_UNROLL for (int n = 0; n < 2; n++) {
        GK_UNROLL for (int e = 0; e < 4; e++) {
            int i = gk_mc_line() + e / 2 * 8, j = 8 * n + gk_mc_pair() + e % 2;
            gk_f y = j <= i ? qk[n][e] * d[n][e] : GK_R(0.0), x = j < i ? m->strength[i] * kk[n][e] * d[n][e] : GK_R(0.0);
            if (GK_OP == gk_rule_ssd) y *= m->strength[j];
            bad += y * GK_R(0.0);
            m->result[i * GK_MC_NARROW + j] = y;
            if (GK_OP == gk_rule_delta) m->input[i * GK_MC_NARROW + j] = x;
        }
    }
    GK_WARP_SYNC();
    if (GK_OP == gk_rule_delta) bad += gk_mc_solve(m);
    any = gk_warp_any(bad != GK_R(0.0));
    if (gk_lid() % 32 == 0) *m->finite = any ? GK_R(0.0) : GK_R(1.0);
}

/* Writes the results of a chunk. */
GK_FN void gk_mc_write(GK_GLOBAL gk_t* y, const gk_mc_local* m, const gk_mc_place* p, int chunk)
{
    gk_i64 t = (gk_i64)chunk * GK_MC_STEPS, left = p->t1 - p->t0 - t;
    int row = gk_lid() % 32 / GK_MC_ITEMS, n = gk_lid() % GK_MC_ITEMS * GK_W, has = p->rows - n;
    gk_i64 at = p->values + (t + row) * p->value_step + n;
    GK_UNROLL for (int i = 0; i < GK_MC_RUNS; i++) {
        gk_vec v;
        GK_UNROLL for (int u = 0; u < GK_W; u += 4) gk_mc_get4(m->v + (row + 32 / GK_MC_ITEMS * i) * GK_MC_PITCH + n + u, v.v + u);
        if (row + 32 / GK_MC_ITEMS * i < left) {
            if (p->wide & 2) {
                if (has > 0) gk_storev(y, at, v);
            } else {
                GK_UNROLL for (int u = 0; u < GK_W; u++) {
                    if (u < has) gk_store(y, at + u, v.v[u]);
                }
            }
        }
        at += 32 / GK_MC_ITEMS * p->value_step;
    }
}

/* What the warps without states do: while chunks `first` ... are computed, those behind them are made, and the results of those before written. */
GK_FN void gk_mc_make(const gk_state_in* in, GK_GLOBAL gk_t* y, const gk_dims* size, const gk_mc_place* p, GK_LOCAL_PTR gk_f* pool, int chunks,
                      gk_f rate)
{
    gk_mc_ahead ahead;
    int first = -GK_MC_CHUNKS, next = gk_lid() / 32 - GK_MC_WARPS;
    gk_mc_fetch(in, size, p, next, &ahead);
    do {
        int last = next - 2 * GK_MC_CHUNKS;
        if (next < chunks) {
            gk_mc_local m = gk_mc_local_of(pool, next);
            gk_f bad = gk_mc_lay(&m, &ahead, rate);
            gk_mc_fetch(in, size, p, next + GK_MC_CHUNKS, &ahead);
            gk_mc_matrices(&m, bad);
        }
        if (last >= 0 && last < chunks) {
            gk_mc_local m = gk_mc_local_of(pool, last);
            gk_mc_write(y, &m, p, last);
        }
        GK_WARPS_MEET();
        first += GK_MC_CHUNKS;
        next += GK_MC_CHUNKS;
    } while (first - GK_MC_CHUNKS < chunks);
}

/* ---- warps that have the states ---- */

/* Products of the states s with the rows of k and q of a chunk, [16 rows, 16 steps]. */
GK_FN void gk_mc_states(const gk_mc_local* m, gk_f s[8][4], gk_f sk[2][4], gk_f sq[2][4])
{
    gk_f rest[2][2][4];
    GK_LOCAL_PTR const gk_f* k = m->k + gk_mc_line() * GK_MC_PITCH + gk_lid() % 4 * 8;
    GK_LOCAL_PTR const gk_f* q = m->q + gk_mc_line() * GK_MC_PITCH + gk_lid() % 4 * 8;
    GK_UNROLL for (int n = 0; n < 2; n++) { gk_mc_clear(sk[n]); gk_mc_clear(sq[n]); gk_mc_clear(rest[0][n]); gk_mc_clear(rest[1][n]); }
    GK_UNROLL for (int h = 0; h < 2; h++) {
        gk_f x[2][8], z[2][8];
        GK_UNROLL for (int n = 0; n < 2; n++) {
            GK_UNROLL for (int u = 0; u < 8; u += 4) {
                if (GK_OP == gk_rule_delta) gk_mc_get4(k + 8 * n * GK_MC_PITCH + 32 * h + u, x[n] + u);
                gk_mc_get4(q + 8 * n * GK_MC_PITCH + 32 * h + u, z[n] + u);
            }
        }
        GK_UNROLL for (int u = 0; u < 4; u++) {
            gk_f a[4];
            a[0] = s[4 * h + u][0]; a[1] = s[4 * h + u][2]; a[2] = s[4 * h + u][1]; a[3] = s[4 * h + u][3];
            GK_UNROLL for (int n = 0; n < 2; n++) {
                if (GK_OP == gk_rule_delta) gk_tf32_mm(sk[n], rest[0][n], a, x[n][u], x[n][u + 4], GK_MC_LEFT);
                gk_tf32_mm(sq[n], rest[1][n], a, z[n][u], z[n][u + 4], GK_MC_LEFT);
            }
        }
    }
    GK_UNROLL for (int n = 0; n < 2; n++) {
        GK_UNROLL for (int e = 0; e < 4; e++) { sk[n][e] += rest[0][n][e]; sq[n][e] += rest[1][n][e]; }
    }
}

/* y = u a^T for the lower triangle a of 16 rows; small as gk_tf32_mm has it. */
GK_FN void gk_mc_triangle(GK_LOCAL_PTR const gk_f* a, gk_f u[2][4], gk_f y[2][4], const int small)
{
    gk_f rest[2][4];
    GK_UNROLL for (int n = 0; n < 2; n++) {
        gk_mc_clear(y[n]);
        gk_mc_clear(rest[n]);
        GK_UNROLL for (int k = 0; k <= n; k++) {
            gk_f left[4], b0, b1;
            left[0] = u[k][0]; left[1] = u[k][2]; left[2] = u[k][1]; left[3] = u[k][3];
            gk_mc_get2(a + (8 * n + gk_mc_line()) * GK_MC_NARROW + 8 * k + gk_mc_pair(), &b0, &b1);
            gk_tf32_mm(y[n], rest[n], left, b0, b1, small);
        }
        GK_UNROLL for (int e = 0; e < 4; e++) y[n][e] += rest[n][e];
    }
}

/* s = P(15) s + sum over j of P(15, j) u[j] k[j]. */
GK_FN void gk_mc_advance(const gk_mc_local* m, gk_f s[8][4], gk_f u[2][4])
{
    gk_f total = m->before[GK_MC_STEPS - 1];
    GK_LOCAL_PTR const gk_f* k = m->k + gk_mc_pair() * GK_MC_PITCH + gk_mc_line() * 4;
    GK_UNROLL for (int j = 0; j < 2; j++) {
        gk_f x, y;
        gk_mc_get2(m->after + 8 * j + gk_mc_pair(), &x, &y);
        u[j][0] *= x; u[j][2] *= x; u[j][1] *= y; u[j][3] *= y;
    }
    GK_UNROLL for (int h = 0; h < 2; h++) {
        gk_f c[4][4];
        GK_UNROLL for (int n = 0; n < 4; n++) gk_mc_clear(c[n]);
        GK_UNROLL for (int j = 0; j < 2; j++) {
            gk_f left[4], x[4], y[4];
            left[0] = u[j][0]; left[1] = u[j][2]; left[2] = u[j][1]; left[3] = u[j][3];
            gk_mc_get4(k + 8 * j * GK_MC_PITCH + 32 * h, x);
            gk_mc_get4(k + (8 * j + 1) * GK_MC_PITCH + 32 * h, y);
            GK_UNROLL for (int n = 0; n < 4; n++) gk_tf32_mm(c[n], c[n], left, x[n], y[n], GK_MC_LEFT);
        }
        GK_UNROLL for (int n = 0; n < 4; n++) {
            GK_UNROLL for (int e = 0; e < 4; e++) s[4 * h + n][e] = total * s[4 * h + n][e] + c[n][e];
        }
    }
}

/* The sum of the products of a row of the states with a row of local memory, over the columns that there are. */
GK_FN void gk_mc_dot(GK_LOCAL_PTR const gk_f* x, gk_f s[8][4], int width, gk_f sum[2])
{
    sum[0] = GK_R(0.0); sum[1] = GK_R(0.0);
    GK_UNROLL for (int n = 0; n < 8; n++) {
        GK_UNROLL for (int e = 0; e < 4; e++) {
            if (gk_mc_column(n, e) < width) sum[e / 2] += s[n][e] * x[gk_mc_column(n, e)];
        }
    }
    GK_UNROLL for (int r = 0; r < 2; r++) {
        sum[r] += gk_shuffle_xor(sum[r], 1);
        sum[r] += gk_shuffle_xor(sum[r], 2);
    }
}

/* A chunk step by step. */
GK_FN void gk_mc_slow(const gk_mc_local* m, gk_f s[8][4], gk_f skip, int width)
{
    int row = gk_lid() / 32 * 16 + gk_mc_line();
    GK_ROLLED for (int c = 0; c < GK_MC_STEPS; c++) {
        GK_LOCAL_PTR gk_f* v = m->v + c * GK_MC_PITCH + row;
        gk_f g = m->factor[c], b = m->strength[c], u[2], y[2], in[2];
        in[0] = v[0]; in[1] = v[8];
        gk_mc_dot(m->k + c * GK_MC_PITCH, s, width, u);
        GK_UNROLL for (int r = 0; r < 2; r++) u[r] = GK_OP == gk_rule_delta ? b * (in[r] - g * u[r]) : GK_OP == gk_rule_ssd ? b * in[r] : in[r];
        GK_UNROLL for (int n = 0; n < 8; n++) {
            GK_UNROLL for (int e = 0; e < 4; e++) {
                if (gk_mc_column(n, e) < width) s[n][e] = g * s[n][e] + u[e / 2] * m->k[c * GK_MC_PITCH + gk_mc_column(n, e)];
            }
        }
        gk_mc_dot(m->q + c * GK_MC_PITCH, s, width, y);
        if (gk_lid() % 4 == 0) {
            v[0] = GK_OP == gk_rule_ssd ? y[0] + skip * in[0] : y[0];
            v[8] = GK_OP == gk_rule_ssd ? y[1] + skip * in[1] : y[1];
        }
    }
}

/* A chunk: its results take the place of v. */
GK_FN void gk_mc_chunk(const gk_mc_local* m, gk_f s[8][4], gk_f skip)
{
    gk_f sk[2][4], sq[2][4], v[2][4], u[2][4], y[2][4], before[2][2];
    GK_LOCAL_PTR gk_f* rows = m->v + gk_mc_pair() * GK_MC_PITCH + gk_lid() / 32 * 16 + gk_mc_line();
    gk_mc_states(m, s, sk, sq);
    GK_UNROLL for (int n = 0; n < 2; n++) {
        gk_mc_get2(m->before + 8 * n + gk_mc_pair(), &before[n][0], &before[n][1]);
        GK_UNROLL for (int e = 0; e < 4; e++) {
            v[n][e] = rows[(8 * n + e % 2) * GK_MC_PITCH + e / 2 * 8];
            u[n][e] = v[n][e];
            if (GK_OP == gk_rule_delta) sk[n][e] = v[n][e] - before[n][e % 2] * sk[n][e];
        }
    }
    if (GK_OP == gk_rule_delta) gk_mc_triangle(m->input, sk, u, GK_MC_BOTH);
    gk_mc_triangle(m->result, u, y, GK_OP == gk_rule_delta ? GK_MC_BOTH : GK_MC_READ | 2);
    GK_UNROLL for (int n = 0; n < 2; n++) {
        GK_UNROLL for (int e = 0; e < 4; e++) {
            gk_f out = before[n][e % 2] * sq[n][e] + y[n][e];
            if (GK_OP == gk_rule_ssd) out += skip * v[n][e];
            rows[(8 * n + e % 2) * GK_MC_PITCH + e / 2 * 8] = out;
        }
    }
    gk_mc_advance(m, s, u);
}

/* Reads or writes the states of a warp, [rows, width] from `at` on. */
GK_FN void gk_mc_get_states(GK_GLOBAL const gk_f* from, gk_i64 at, const gk_mc_place* p, gk_f s[8][4])
{
    GK_UNROLL for (int n = 0; n < 8; n++) {
        GK_UNROLL for (int e = 0; e < 4; e++) {
            int row = gk_lid() / 32 * 16 + gk_mc_line() + e / 2 * 8, column = gk_mc_column(n, e);
            s[n][e] = GK_R(0.0);
            if (from && row < p->rows && column < p->width) s[n][e] = from[at + (p->row0 + row) * p->width + column];
        }
    }
}
GK_FN void gk_mc_put_states(GK_GLOBAL gk_f* to, gk_i64 at, const gk_mc_place* p, gk_f s[8][4])
{
    GK_UNROLL for (int n = 0; n < 8; n++) {
        GK_UNROLL for (int e = 0; e < 4; e++) {
            int row = gk_lid() / 32 * 16 + gk_mc_line() + e / 2 * 8, column = gk_mc_column(n, e);
            if (row < p->rows && column < p->width) to[at + (p->row0 + row) * p->width + column] = s[n][e];
        }
    }
}

/* What the warps with states do. */
GK_FN void gk_mc_scan(const gk_mc_place* p, GK_LOCAL_PTR gk_f* pool, int chunks, gk_f s[8][4], gk_f skip)
{
    int first = -GK_MC_CHUNKS, end = gk_lid() / 32 * 16 < p->rows ? chunks : 0;
    do {
        if (first >= 0 && first < end) {
            /* Of a state that is not finite products would make more than steps do. */
            int slow;
            gk_f bad = GK_R(0.0);
            GK_UNROLL for (int i = 0; i < 32; i++) bad += s[i / 4][i % 4] * GK_R(0.0);
            slow = gk_warp_any(bad != GK_R(0.0));
            GK_ROLLED for (int c = first; c < first + GK_MC_CHUNKS && c < end; c++) {
                gk_mc_local m = gk_mc_local_of(pool, c);
                slow = slow || *m.finite == GK_R(0.0);
                if (slow) gk_mc_slow(&m, s, skip, p->width);
                else gk_mc_chunk(&m, s, skip);
            }
        }
        GK_WARPS_MEET();
        first += GK_MC_CHUNKS;
    } while (first - GK_MC_CHUNKS < chunks);
}

// Units: FLOATS x MATRIX_RULES
/* y and the last state, for states of at most 64 columns. part: as state_scan has it. wide: 1 = rows of k and q are whole items of 16 bytes, 2 =
 * those of v and y. Launch: one block per batch, head, tile of 64 rows and split, with GK_MC_LOCAL floats of local memory. */
GK_KERNEL(state_scan_matrix)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, v), GK_IN(gk_t, gate), GK_IN(gk_t, second), GK_IN(gk_t, skip),
                             GK_IN(gk_f, initial), GK_IN(gk_f, part), GK_OUT(gk_t, y), GK_OUT(gk_f, state), GK_DIMS(size), int wide)
{
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, v); GK_BIND_IN(gk_t, gate); GK_BIND_IN(gk_t, second); GK_BIND_IN(gk_t, skip);
    GK_BIND_IN(gk_f, initial); GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_f, state);
    GK_LOCAL_DYNAMIC(gk_f, pool, GK_MC_LOCAL);
    gk_mc_place p = gk_mc_place_of(&size, wide);
    gk_state_in in;
    int chunks = (int)((p.t1 - p.t0 + GK_MC_STEPS - 1) / GK_MC_STEPS);
    gk_i64 head = p.b * size.v[1] + p.h, each = size.v[2] * p.width;
    in.q = q; in.k = k; in.v = v; in.gate = gate; in.second = second; in.wide = wide; in.softplus = 0;
    if (gk_lid() / 32 >= GK_MC_WARPS) {
        gk_mc_make(&in, y, &size, &p, pool, chunks, GK_OP == gk_rule_ssd ? gk_load(second, p.h) * GK_STATE_LOG2E : GK_R(0.0));
    } else {
        gk_f s[8][4];
        gk_mc_get_states(part ? part : initial, part ? (head * size.v[5] + p.s) * 2 * each : head * each, &p, s);
        gk_mc_scan(&p, pool, chunks, s, GK_OP == gk_rule_ssd && skip ? gk_load(skip, p.h) : GK_R(0.0));
        if (state && p.t1 == size.v[0]) gk_mc_put_states(state, head * each, &p, s);
    }
}
#endif
