/* Gradients of a layer Y = act(alpha X B + bias) with at most 16 inputs and 64 outputs, by one pass over its rows:
 *
 *   dZ = act'(saved) dY,   dX = alpha dZ B^T,   dB = alpha X^T dZ,   dbias[n] = sum over the rows of dZ[., n]
 *
 * X [rows, K], B [K, N], dY and saved [rows, N] in rows of whole items of 16 bytes; size = {rows, N, K, rows of a block}; steps = {row of dY, row of saved,
 * row and column of X, of dX, of B}. `saved` is null without an activation, `dx` and `part` where they are not wanted. gemm_narrow_bwd leaves sums of the
 * rows of each block in part [blocks, 17, 64], those for the bias last, which gemm_narrow_combine adds up. Sums in f32, in a fixed order. Deterministic.
 * Reference: the backward of F.linear.
 */
#include "common/activation/fused.h"
#include "common/prelude/rows.h"
#include "common/prelude/slot.h"

/* Rows in local memory at a time; the most inputs and outputs; from row to row of dZ there: threads that read neighbouring rows meet no bank twice. */
#define GK_NARROW_ROWS 64
#define GK_NARROW_IN 16
#define GK_NARROW_OUT 64
#define GK_NARROW_STEP (GK_NARROW_OUT + 4)
/* Threads that share a row, with four columns each, and rows that a block takes in at a time. */
#define GK_NARROW_LANES (GK_NARROW_OUT / 4)
#define GK_NARROW_EACH (GK_BLOCK / GK_NARROW_LANES)
/* Rows of a part: one for each input, and one for the bias. */
#define GK_NARROW_SUMS (GK_NARROW_IN + 1)

typedef struct {
    GK_GLOBAL const gk_t* dy;
    GK_GLOBAL const gk_t* saved;
    GK_GLOBAL const gk_t* x;
    GK_LOCAL_PTR gk_slot* dz;
    GK_LOCAL_PTR gk_slot* in;
    gk_dims size, steps;
    gk_f p;
    int act, from_y;
} gk_narrow;

/* Sums of a thread: of its four columns for each input, and for the bias. */
typedef struct { gk_four of[GK_NARROW_IN], bias; } gk_narrow_sums;

/* X of the rows `first` .. `end` into local memory, 0 behind its columns and rows. */
GK_FN void gk_narrow_load(const gk_narrow* q, gk_i64 first, gk_i64 end)
{
    int k = gk_lid() % GK_NARROW_IN, r = gk_lid() / GK_NARROW_IN;
    gk_f v[GK_NARROW_ROWS * GK_NARROW_IN / GK_BLOCK];
    GK_UNROLL for (int u = 0; u < GK_NARROW_ROWS * GK_NARROW_IN / GK_BLOCK; u++) {
        gk_i64 row = first + r + u * (GK_BLOCK / GK_NARROW_IN);
        v[u] = GK_R(0.0);
        if (row < end && k < q->size.v[2]) v[u] = gk_load(q->x, row * q->steps.v[2] + k * q->steps.v[3]);
    }
    GK_UNROLL for (int u = 0; u < GK_NARROW_ROWS * GK_NARROW_IN / GK_BLOCK; u++) gk_slot_put(q->in, u * GK_BLOCK + gk_lid(), v[u]);
}

/* dZ of the same rows: a thread has four columns of every GK_NARROW_EACH-th row. */
GK_FN void gk_narrow_derive(const gk_narrow* q, gk_i64 first, gk_i64 end, gk_vec dz[GK_NARROW_ROWS / GK_NARROW_EACH])
{
    int c = gk_lid() % GK_NARROW_LANES * 4, r = gk_lid() / GK_NARROW_LANES, on = c < q->size.v[1];
    gk_vec v[GK_NARROW_ROWS / GK_NARROW_EACH];
    GK_UNROLL for (int u = 0; u < GK_NARROW_ROWS / GK_NARROW_EACH; u++) {
        gk_i64 row = first + r + u * GK_NARROW_EACH;
        int there = on && row < end;
        dz[u] = gk_loadv_if(q->dy, row * q->steps.v[0] + c, there, GK_R(0.0));
        v[u] = gk_loadv_if(q->saved, row * q->steps.v[1] + c, q->act && there, GK_R(0.0));
    }
    GK_UNROLL for (int u = 0; u < GK_NARROW_ROWS / GK_NARROW_EACH; u++) {
        int there = on && first + r + u * GK_NARROW_EACH < end;
        if (q->act && there) dz[u] = gk_fused_act_bwd(q->act, dz[u], v[u], q->p, q->from_y);
        gk_slot_put4(q->dz, (r + u * GK_NARROW_EACH) * GK_NARROW_STEP + c, dz[u].v[0], dz[u].v[1], dz[u].v[2], dz[u].v[3]);
    }
}

/* Adds the products of the rows in local memory with their dZ; inputs by fours. */
GK_FN void gk_narrow_add(const gk_narrow* q, const gk_vec dz[GK_NARROW_ROWS / GK_NARROW_EACH], gk_narrow_sums* s, const int fours)
{
    GK_UNROLL for (int u = 0; u < GK_NARROW_ROWS / GK_NARROW_EACH; u++) {
        GK_LOCAL_PTR const gk_slot* row = q->in + GK_SLOTS(GK_NARROW_IN) * (gk_lid() / GK_NARROW_LANES + u * GK_NARROW_EACH);
        GK_UNROLL for (int i = 0; i < fours; i++) {
            gk_four x = gk_slot_get4(row, 4 * i);
            GK_UNROLL for (int k = 0; k < 4; k++)
                GK_UNROLL for (int c = 0; c < 4; c++) s->of[4 * i + k].v[c] += x.v[k] * dz[u].v[c];
        }
        GK_UNROLL for (int c = 0; c < 4; c++) s->bias.v[c] += dz[u].v[c];
    }
}

/* dX of the rows in local memory: a thread has four inputs of a row. b: B by columns there. */
GK_FN void gk_narrow_inputs(const gk_narrow* q, GK_LOCAL_PTR const gk_slot* b, GK_GLOBAL gk_t* dx, gk_i64 first, gk_i64 end, gk_f alpha, int accumulate)
{
    int k = gk_lid() % 4 * 4, r = gk_lid() / 4;
    GK_LOCAL_PTR const gk_slot* row = q->dz + GK_SLOTS(GK_NARROW_STEP) * r;
    gk_f s[4];
    if (first + r >= end || k >= q->size.v[2]) return;
    b += GK_SLOTS(4) * (gk_lid() % 4);
    GK_UNROLL for (int u = 0; u < 4; u++) s[u] = GK_R(0.0);
    GK_UNROLL for (int n = 0; n < GK_NARROW_OUT; n += 4) {
        gk_four z = gk_slot_get4(row, n);
        GK_UNROLL for (int i = 0; i < 4; i++) {
            gk_four w = gk_slot_get4(b, (n + i) * GK_NARROW_IN);
            GK_UNROLL for (int u = 0; u < 4; u++) s[u] += z.v[i] * w.v[u];
        }
    }
    GK_UNROLL for (int u = 0; u < 4; u++) {
        gk_i64 at = (first + r) * q->steps.v[4] + (k + u) * q->steps.v[5];
        if (k + u < q->size.v[2]) gk_store(dx, at, alpha * s[u] + (accumulate ? gk_load(dx, at) : GK_R(0.0)));
    }
}

/* Row i of a block's part: the sums of its threads' four numbers over the rows that they share. */
GK_FN void gk_narrow_put(GK_GLOBAL gk_f* part, int i, gk_four x, GK_LOCAL_PTR gk_slot* room)
{
    int c = gk_lid() % GK_NARROW_OUT;
    gk_slot_put4(room, gk_lid() * 4, x.v[0], x.v[1], x.v[2], x.v[3]);
    GK_BARRIER();
    if (gk_lid() < GK_NARROW_OUT) {
        gk_f s = GK_R(0.0);
        GK_UNROLL for (int r = 0; r < GK_NARROW_EACH; r++) s += gk_as_f32(((GK_LOCAL_PTR const gk_u32*)room)[r * GK_NARROW_OUT + c]);
        part[(gk_bid(0) * GK_NARROW_SUMS + i) * GK_NARROW_OUT + c] = s;
    }
    GK_BARRIER();
}

// Units: F32
/* Launch: one block per size.v[3] rows. */
GK_KERNEL(gemm_narrow_bwd)(GK_IN(gk_t, dy), GK_IN(gk_t, saved), GK_IN(gk_t, x), GK_IN(gk_t, b), GK_OUT(gk_t, dx), GK_OUT(gk_f, part), GK_DIMS(size),
                           GK_DIMS(steps), gk_f alpha, int act, gk_f p, int from_y, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, saved); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_slot tz[GK_SLOTS(GK_NARROW_ROWS * GK_NARROW_STEP)];
    GK_LOCAL gk_slot tx[GK_SLOTS(GK_NARROW_ROWS * GK_NARROW_IN)];
    GK_LOCAL gk_slot tb[GK_SLOTS(GK_NARROW_OUT * GK_NARROW_IN)];
    gk_i64 first = gk_bid(0) * size.v[3], end = first + size.v[3] < size.v[0] ? first + size.v[3] : size.v[0];
    int fours = (int)(size.v[2] + 3) / 4;
    gk_narrow q;
    gk_narrow_sums s;
    q.dy = dy; q.saved = saved; q.x = x; q.dz = tz; q.in = tx; q.size = size; q.steps = steps; q.p = p; q.act = act; q.from_y = from_y;
    for (int i = gk_lid(); i < GK_NARROW_OUT * GK_NARROW_IN; i += GK_BLOCK) {
        int k = i % GK_NARROW_IN, n = i / GK_NARROW_IN;
        gk_f v = GK_R(0.0);
        if (k < size.v[2] && n < size.v[1]) v = gk_load(b, k * steps.v[6] + n * steps.v[7]);
        gk_slot_put(tb, i, v);
    }
    GK_UNROLL for (int c = 0; c < 4; c++) {
        s.bias.v[c] = GK_R(0.0);
        GK_UNROLL for (int i = 0; i < GK_NARROW_IN; i++) s.of[i].v[c] = GK_R(0.0);
    }
    do {
        gk_vec dz[GK_NARROW_ROWS / GK_NARROW_EACH];
        gk_narrow_load(&q, first, end);
        gk_narrow_derive(&q, first, end, dz);
        GK_BARRIER();
        if (fours == 1) gk_narrow_add(&q, dz, &s, 1);
        else if (fours == 2) gk_narrow_add(&q, dz, &s, 2);
        else gk_narrow_add(&q, dz, &s, 4);
        if (dx) gk_narrow_inputs(&q, tb, dx, first, end, alpha, accumulate);
        first += GK_NARROW_ROWS;
        GK_BARRIER();
    } while (first < end);
    if (!part) return;
    GK_UNROLL for (int i = 0; i < GK_NARROW_IN; i++) gk_narrow_put(part, i, s.of[i], tz);
    gk_narrow_put(part, GK_NARROW_IN, s.bias, tz);
}

/* dB [K, N] and dbias [N] from the sums of `parts` blocks; either may be null. size = {N, K, row and column of dB, parts}; accumulate: bit 0 for dB, bit 1
 * for dbias. Launch: one block per row of a part. */
GK_KERNEL(gemm_narrow_combine)(GK_IN(gk_f, part), GK_OUT(gk_t, db), GK_OUT(gk_t, dbias), GK_DIMS(size), gk_f alpha, int accumulate)
{
    GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, db); GK_BIND_OUT(gk_t, dbias);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int n = gk_lid() % GK_NARROW_OUT, i = (int)gk_bid(0), last = i == GK_NARROW_IN;
    gk_f s = GK_R(0.0);
    for (gk_i64 b = gk_lid() / GK_NARROW_OUT; b < size.v[4]; b += GK_BLOCK / GK_NARROW_OUT) s += part[(b * GK_NARROW_SUMS + i) * GK_NARROW_OUT + n];
    tmp[gk_lid()] = s;
    GK_BARRIER();
    if (gk_lid() >= size.v[0] || gk_lid() >= GK_NARROW_OUT || (!last && i >= size.v[1])) return;
    GK_UNROLL for (int u = 1; u < GK_BLOCK / GK_NARROW_OUT; u++) s += tmp[gk_lid() + u * GK_NARROW_OUT];
    if (last) {
        if (dbias) gk_store(dbias, n, s + (accumulate & 2 ? gk_load(dbias, n) : GK_R(0.0)));
    } else if (db) {
        gk_i64 at = i * size.v[2] + n * size.v[3];
        gk_store(db, at, alpha * s + (accumulate & 1 ? gk_load(db, at) : GK_R(0.0)));
    }
}
