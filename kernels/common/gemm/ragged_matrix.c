/* Products of groups of rows (ragged.c) and the gradient of their matrices (ragged_bwd.c) on matrix cores, for f16 and bf16.
 *
 *   gemm_ragged_matrix, _terms   Z[r] = alpha A[r] B[g] + bias[g],  Y[r] = act(Z[r])  for the rows r of group g; 0 for rows of no group
 *   gemm_ragged_bwd_matrix       D[g] = alpha P_g^T Q_g, or added to it
 *
 * A block has 128 rows and 128 columns of a result. Stages of 64 terms of both operands are copied to local memory while earlier ones are multiplied. Rows of
 * all operands begin at multiples of 16 bytes and have a multiple of 8 elements. Sums are float. Deterministic: one writer per output. */
#include "common/prelude/matrix.h"
#include "common/prelude/tile.h"
#include "groups.h"

/* Room for two blocks on an SM. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2

/* Rows and columns of a tile, terms of a stage, and chunks of one operand in a stage. */
#define GK_RAGGED_SIDE 128
#define GK_RAGGED_TERMS 64
#define GK_RAGGED_CHUNKS (GK_RAGGED_SIDE * GK_RAGGED_TERMS / GK_PER_CHUNK)
/* Stages in local memory. Where copies are not asynchronous, one ahead is enough. */
#ifdef GK_PTX
#define GK_RAGGED_STAGES 3
#define GK_RAGGED_WAIT() GK_COPY_WAIT(1)
#else
#define GK_RAGGED_STAGES 2
#define GK_RAGGED_WAIT() ((void)0)
#endif
#define GK_RAGGED_AT(n) (tiles + (n) % GK_RAGGED_STAGES * 2 * GK_RAGGED_CHUNKS)

/* ---- copies of operands ---------------------------------------------------------------------------------------------------------------------- */

/* A thread's part of the copies of an operand: of each stage four chunks, `pass` elements apart, of which `mask` names those that exist. A row of a tile
 * is a row or column of the result and has the stage's terms, or (by_terms) it is a term and has the tile's 128 columns. */
typedef struct {
    GK_GLOBAL const gk_t *p, *base;
    gk_i64 pass, stage;
    int row, chunk, at, mask;
} gk_ragged_copy;

/* Of an operand from its tile's first element on, with `step` elements from row to row; `have` rows or columns of the result exist. */
GK_FN gk_ragged_copy gk_ragged_copy_of(GK_GLOBAL const gk_t* p, gk_i64 step, gk_i64 have, const int by_terms)
{
    const int chunks = by_terms ? 16 : 8;
    gk_ragged_copy t;
    t.row = gk_lid() / chunks; t.chunk = gk_lid() % chunks;
    t.base = p; t.p = p + t.row * step + t.chunk * GK_PER_CHUNK;
    t.pass = step * (GK_BLOCK / chunks); t.stage = by_terms ? step * GK_RAGGED_TERMS : GK_RAGGED_TERMS;
    t.at = gk_chunk_at(t.row, t.chunk, by_terms ? GK_RAGGED_TERMS : GK_RAGGED_SIDE);
    t.mask = 0;
    GK_UNROLL for (int i = 0; i < 4; i++) t.mask |= ((by_terms ? t.chunk * GK_PER_CHUNK : t.row + i * (GK_BLOCK / chunks)) < have) << i;
    return t;
}

/* Queues the copies of the next stage, of which `terms` exist. */
GK_FN void gk_ragged_fetch(gk_ragged_copy* t, const int by_terms, gk_i64 terms, GK_LOCAL_PTR gk_raw16* tile)
{
    const int rows = GK_BLOCK / (by_terms ? 16 : 8);
    tile += t->at;
    GK_UNROLL for (int i = 0; i < 4; i++) {
        int exists = (t->mask >> i & 1) && (by_terms ? t->row + i * rows : t->chunk * GK_PER_CHUNK) < terms;
        gk_copy16(tile + i * rows * 8, exists ? t->p + i * t->pass : t->base, exists);
    }
    t->p += t->stage;
}

/* sums += left right over `terms` terms: tiles of the left operand by rows or (lt) terms, of the right one by columns or (rt) terms. */
GK_FN void gk_ragged_multiply(float (*sums)[4], gk_ragged_copy left, const int lt, gk_ragged_copy right, const int rt, gk_i64 terms,
                              GK_LOCAL_PTR gk_raw16* tiles)
{
    int stages = (int)((terms + GK_RAGGED_TERMS - 1) / GK_RAGGED_TERMS), w0 = gk_lid() / 32 * 16;
    gk_mm_clear(sums, GK_RAGGED_SIDE);
    for (int n = 1 - GK_RAGGED_STAGES; n < stages; n++) {
        int next = n + GK_RAGGED_STAGES - 1;
        if (n >= 0) {
            GK_RAGGED_WAIT();
            GK_BARRIER();
            gk_mm_tiles_by(sums, GK_RAGGED_SIDE, GK_RAGGED_AT(n), lt ? GK_RAGGED_TERMS : GK_RAGGED_SIDE, w0, lt, GK_RAGGED_TERMS,
                           GK_RAGGED_AT(n) + GK_RAGGED_CHUNKS, rt);
            /* The stage before is done; the next one takes its place while this one is multiplied. */
            GK_MM_WAIT(1);
            GK_BARRIER();
        }
        if (next < stages) {
            gk_i64 rest = terms - (gk_i64)next * GK_RAGGED_TERMS;
            gk_ragged_fetch(&left, lt, rest, GK_RAGGED_AT(next));
            gk_ragged_fetch(&right, rt, rest, GK_RAGGED_AT(next) + GK_RAGGED_CHUNKS);
        }
        GK_COPY_COMMIT();
    }
    GK_MM_WAIT(0);
    gk_mm_ready(sums, GK_RAGGED_SIDE);
}

/* ---- forward ----------------------------------------------------------------------------------------------------------------------------------- */

/* Rows of a tile, `first` and those behind it, and their group; -1 for none. */
typedef struct { gk_i64 first; int rows, group; } gk_ragged_rows;

/* Row tile number `wanted` of all groups. The first block reports wrong offsets. */
GK_FN gk_ragged_rows gk_ragged_rows_of(gk_i64 wanted, GK_GLOBAL const int* offsets, gk_i64 total, int groups, GK_GLOBAL int* err, int code)
{
    gk_ragged_rows r;
    gk_i64 begin = 0;
    r.first = 0; r.rows = 0; r.group = -1;
    for (int g = -1; g <= groups; g++) {
        gk_i64 end = g < groups ? offsets[g + 1] : total;
        if (end < begin || end > total) {
            if (gk_bid(0) == 0 && gk_lid() == 0) gk_report(err, code);
            end = end < begin ? begin : total;
        }
        gk_i64 tiles = (end - begin + GK_RAGGED_SIDE - 1) / GK_RAGGED_SIDE;
        if (wanted >= 0 && wanted < tiles) {
            r.first = begin + wanted * GK_RAGGED_SIDE;
            r.rows = end - r.first < GK_RAGGED_SIDE ? (int)(end - r.first) : GK_RAGGED_SIDE;
            r.group = g < groups ? g : -1;
        }
        wanted -= tiles;
        begin = end;
    }
    return r;
}

/* Operands, those that are not needed null, and the parameters `size` and `steps` of the kernels. */
typedef struct {
    GK_GLOBAL const gk_t *a, *b, *bias;
    GK_GLOBAL gk_t *y, *z;
    gk_dims size, steps;
    gk_f alpha, p;
    int act;
} gk_ragged;

/* Columns of sums that wait in local memory for the epilogue, and the distance of their rows. */
#define GK_RAGGED_SPILL 64
#define GK_RAGGED_PITCH 68

/* Four neighbours, at a multiple of 8 bytes. */
GK_FN void gk_ragged_put(GK_GLOBAL gk_t* p, gk_four x)
{
    gk_store2(p, 0, x.v[0], x.v[1]);
    gk_store2(p, 2, x.v[2], x.v[3]);
}

/* Z and Y from sums, by runs of four columns that lie in local memory meanwhile. */
GK_FN void gk_ragged_store(const gk_ragged* q, float (*sums)[4], gk_ragged_rows m, gk_i64 n0, GK_LOCAL_PTR float* spill)
{
    int w0 = gk_lid() / 32 * 16, none = m.group < 0;
    gk_i64 columns = q->size.v[1] - n0;
    GK_GLOBAL gk_t *y = q->y + m.first * q->steps.v[3] + n0, *z = q->z ? q->z + m.first * q->steps.v[4] + n0 : q->z;
    GK_GLOBAL const gk_t* bias = q->bias && !none ? q->bias + m.group * q->steps.v[5] + n0 : 0;
    GK_UNROLL for (int first = 0; first < GK_RAGGED_SIDE; first += GK_RAGGED_SPILL) {
        GK_BARRIER();
        GK_UNROLL for (int j = 0; j < GK_RAGGED_SPILL / 8; j++) {
            GK_UNROLL for (int e = 0; e < 4; e++)
                spill[(w0 + GK_FRAG_ROW(e)) * GK_RAGGED_PITCH + 8 * j + GK_FRAG_COL(e)] = sums[first / 8 + j][e];
        }
        GK_BARRIER();
        for (int i = 0; i < GK_RAGGED_SIDE * GK_RAGGED_SPILL / 4 / GK_BLOCK; i++) {
            int run = gk_lid() + i * GK_BLOCK, row = run / (GK_RAGGED_SPILL / 4), c = run % (GK_RAGGED_SPILL / 4) * 4;
            gk_four x;
            if (row >= m.rows || first + c >= columns) continue;
            GK_UNROLL for (int u = 0; u < 4; u++) x.v[u] = q->alpha * spill[row * GK_RAGGED_PITCH + c + u];
            if (bias) GK_UNROLL for (int u = 0; u < 4; u++) x.v[u] += gk_load(bias, first + c + u);
            if (z) gk_ragged_put(z + row * q->steps.v[4] + first + c, x);
            if (!none) x = gk_activate(q->act, x, q->p);
            gk_ragged_put(y + row * q->steps.v[3] + first + c, x);
        }
    }
}

GK_FN void gk_ragged_product(const gk_ragged* q, GK_GLOBAL const int* offsets, GK_GLOBAL int* err, const int by_terms, int code, GK_LOCAL_PTR gk_raw16* tiles)
{
    gk_i64 wide = (q->size.v[1] + GK_RAGGED_SIDE - 1) / GK_RAGGED_SIDE, n0 = gk_bid(0) % wide * GK_RAGGED_SIDE;
    gk_ragged_rows m = gk_ragged_rows_of(gk_bid(0) / wide, offsets, q->size.v[0], (int)q->size.v[3], err, code);
    GK_GLOBAL const gk_t* b = q->b + (m.group < 0 ? 0 : m.group) * q->steps.v[2] + n0 * (by_terms ? 1 : q->steps.v[1]);
    gk_ragged_copy left = gk_ragged_copy_of(q->a + m.first * q->steps.v[0], q->steps.v[0], m.rows, 0);
    gk_ragged_copy right = gk_ragged_copy_of(b, q->steps.v[1], q->size.v[1] - n0, by_terms);
    float sums[GK_RAGGED_SIDE / 8][4];
    gk_ragged_multiply(sums, left, 0, right, by_terms, m.group < 0 ? 0 : q->size.v[2], tiles);
    gk_ragged_store(q, sums, m, n0, (GK_LOCAL_PTR float*)tiles);
}

#define GK_RAGGED_BIND() \
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, 2 * GK_RAGGED_STAGES * GK_RAGGED_CHUNKS); \
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(int, offsets); GK_BIND_IN(gk_t, bias); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, z); \
    GK_BIND_OUT(int, err); \
    gk_ragged q; \
    q.a = a; q.b = b; q.bias = bias; q.y = y; q.z = z; q.size = size; q.steps = steps; q.alpha = alpha; q.act = act; q.p = p

/* B has the terms of a column side by side ([groups, N, K]); for gemm_ragged_matrix_terms the columns of a term ([groups, K, N]).
 * size = {rows, N, K, groups}, steps = {from row to row of A, of B, from group to group of B, from row to row of Y, of Z, from group to group of bias}. A wrong
 * offset is reported and taken as the nearest that is valid. The rows before the first and after the last group are groups without products.
 * Launch: axis 0 = tiles, columns fastest; as many row tiles as any partition into groups can need. */
// Units: HALVES
GK_KERNEL(gemm_ragged_matrix)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(int, offsets), GK_IN(gk_t, bias), GK_OUT(gk_t, y), GK_OUT(gk_t, z), GK_OUT(int, err),
                              GK_DIMS(size), GK_DIMS(steps), gk_f alpha, int act, gk_f p, int code)
{
    GK_RAGGED_BIND();
    gk_ragged_product(&q, offsets, err, 0, code, tiles);
}

GK_KERNEL(gemm_ragged_matrix_terms)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(int, offsets), GK_IN(gk_t, bias), GK_OUT(gk_t, y), GK_OUT(gk_t, z),
                                    GK_OUT(int, err), GK_DIMS(size), GK_DIMS(steps), gk_f alpha, int act, gk_f p, int code)
{
    GK_RAGGED_BIND();
    gk_ragged_product(&q, offsets, err, 1, code, tiles);
}

/* ---- gradient of the matrices ------------------------------------------------------------------------------------------------------------------ */

/* size = {rows, M, N, groups}, steps = {from row to row of P, of Q, of D, from group to group of D}.
 * Launch: axis 0 = tiles of D, columns fastest, then rows, groups. */
GK_KERNEL(gemm_ragged_bwd_matrix)(GK_IN(gk_t, p), GK_IN(gk_t, q), GK_IN(int, offsets), GK_OUT(gk_t, d), GK_OUT(int, err), GK_DIMS(size), GK_DIMS(steps),
                                  gk_f alpha, int accumulate, int code)
{
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, 2 * GK_RAGGED_STAGES * GK_RAGGED_CHUNKS);
    GK_BIND_IN(gk_t, p); GK_BIND_IN(gk_t, q); GK_BIND_IN(int, offsets); GK_BIND_OUT(gk_t, d); GK_BIND_OUT(int, err);
    gk_i64 down = (size.v[1] + GK_RAGGED_SIDE - 1) / GK_RAGGED_SIDE, across = (size.v[2] + GK_RAGGED_SIDE - 1) / GK_RAGGED_SIDE, at = gk_bid(0);
    gk_i64 m0 = at / across % down * GK_RAGGED_SIDE, n0 = at % across * GK_RAGGED_SIDE, group = at / across / down;
    gk_run rows = gk_rows_of_group(group, offsets, size.v[0], size.v[3], err, code);
    gk_ragged_copy left = gk_ragged_copy_of(p + rows.begin * steps.v[0] + m0, steps.v[0], size.v[1] - m0, 1);
    gk_ragged_copy right = gk_ragged_copy_of(q + rows.begin * steps.v[1] + n0, steps.v[1], size.v[2] - n0, 1);
    float sums[GK_RAGGED_SIDE / 8][4];
    gk_ragged_multiply(sums, left, 1, right, 1, rows.end - rows.begin, tiles);
    int width = size.v[2] - n0 < GK_RAGGED_SIDE ? (int)(size.v[2] - n0) : GK_RAGGED_SIDE;
    d += group * steps.v[3] + n0;
    GK_UNROLL for (int h = 0; h < 2; h++) {
        gk_i64 i = m0 + gk_lid() / 32 * 16 + GK_FRAG_ROW(2 * h);
        if (i < size.v[1]) gk_mm_store(d + i * steps.v[2], sums, GK_RAGGED_SIDE, h, width, (float)alpha, accumulate);
    }
}
