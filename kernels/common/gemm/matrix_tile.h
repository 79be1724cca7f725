/* Tiles of products of f16 and bf16 on matrix cores: a block has 128 rows and 128 columns of a result (64 columns where local memory is short). Stages of 64
 * terms of both operands are copied to local memory while earlier ones are multiplied. Rows of operands begin at multiples of 16 bytes and have a multiple
 * of 8 elements. Sums are float, in the order of terms. */
#include "common/prelude/matrix.h"

/* Room for two blocks on an SM. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2

/* Rows and columns of a tile, terms of a stage, and stages in local memory; engine/ops/gemm/plan.rs knows them. Where copies are not asynchronous, one
 * stage ahead is enough. */
#define GK_TILE_ROWS 128
#define GK_TILE_TERMS 64
#if defined(GK_MATRIX_LOCAL_KB) && GK_MATRIX_LOCAL_KB < 64
#define GK_TILE_COLUMNS 64
#define GK_TILE_STAGES 2
#define GK_TILE_WAIT() GK_COPY_WAIT(0)
#elif defined(GK_PTX)
#define GK_TILE_COLUMNS 128
#define GK_TILE_STAGES 3
#define GK_TILE_WAIT() GK_COPY_WAIT(1)
#else
#define GK_TILE_COLUMNS 128
#define GK_TILE_STAGES 2
#define GK_TILE_WAIT() ((void)0)
#endif
/* Chunks of the left operand in a stage, of both, and of all stages. */
#define GK_TILE_LEFT (GK_TILE_ROWS * GK_TILE_TERMS / GK_PER_CHUNK)
#define GK_TILE_STAGE ((GK_TILE_ROWS + GK_TILE_COLUMNS) * GK_TILE_TERMS / GK_PER_CHUNK)
#define GK_GEMM_CHUNKS (GK_TILE_STAGES * GK_TILE_STAGE)
#define GK_TILE_AT(n) (tiles + (n) % GK_TILE_STAGES * GK_TILE_STAGE)

/* ---- copies of operands ---------------------------------------------------------------------------------------------------------------------- */

/* A thread's part of the copies of an operand with `side` rows or columns of the result: of each stage some chunks, `pass` elements apart, of which `mask`
 * names those that exist. A row of a tile is a row or column of the result and has the stage's terms, or (by_terms) it is a term and has `side` numbers. */
typedef struct {
    GK_GLOBAL const gk_t *p, *base;
    gk_i64 pass, stage;
    int row, chunk, at, mask;
} gk_tile_copy;

/* Chunks of an operand that a thread copies. */
#define GK_TILE_PASSES(side) ((side) * GK_TILE_TERMS / GK_PER_CHUNK / GK_BLOCK)

/* Of an operand from its tile's first element on, with `step` elements from row to row; `have` rows or columns of the result exist. */
GK_FN gk_tile_copy gk_tile_copy_of(GK_GLOBAL const gk_t* p, gk_i64 step, gk_i64 have, const int side, const int by_terms)
{
    const int chunks = (by_terms ? side : GK_TILE_TERMS) / GK_PER_CHUNK;
    gk_tile_copy t;
    t.row = gk_lid() / chunks; t.chunk = gk_lid() % chunks;
    t.base = p; t.p = p + t.row * step + t.chunk * GK_PER_CHUNK;
    t.pass = step * (GK_BLOCK / chunks); t.stage = by_terms ? step * GK_TILE_TERMS : GK_TILE_TERMS;
    t.at = gk_chunk_at(t.row, t.chunk, by_terms ? GK_TILE_TERMS : side);
    t.mask = 0;
    GK_UNROLL for (int i = 0; i < GK_TILE_PASSES(side); i++) t.mask |= ((by_terms ? t.chunk * GK_PER_CHUNK : t.row + i * (GK_BLOCK / chunks)) < have) << i;
    return t;
}

/* Queues the copies of the next stage, of which `terms` exist. */
GK_FN void gk_tile_fetch(gk_tile_copy* t, const int side, const int by_terms, gk_i64 terms, GK_LOCAL_PTR gk_raw16* tile)
{
    const int rows = GK_BLOCK / ((by_terms ? side : GK_TILE_TERMS) / GK_PER_CHUNK);
    tile += t->at;
    GK_UNROLL for (int i = 0; i < GK_TILE_PASSES(side); i++) {
        int exists = (t->mask >> i & 1) && (by_terms ? t->row + i * rows : t->chunk * GK_PER_CHUNK) < terms;
        gk_copy16(tile + i * rows * 8, exists ? t->p + i * t->pass : t->base, exists);
    }
    t->p += t->stage;
}

/* sums += left right over `terms` terms: tiles of the left operand by rows or (lt) terms, of the right one by columns or (rt) terms. */
GK_FN void gk_tile_multiply(float (*sums)[4], gk_tile_copy left, const int lt, gk_tile_copy right, const int rt, gk_i64 terms,
                            GK_LOCAL_PTR gk_raw16* tiles)
{
    int stages = (int)((terms + GK_TILE_TERMS - 1) / GK_TILE_TERMS), w0 = gk_lid() / 32 * 16;
    gk_mm_clear(sums, GK_TILE_COLUMNS);
    for (int n = 1 - GK_TILE_STAGES; n < stages; n++) {
        int next = n + GK_TILE_STAGES - 1;
        if (n >= 0) {
            GK_TILE_WAIT();
            GK_BARRIER();
            gk_mm_tiles_by(sums, GK_TILE_COLUMNS, GK_TILE_AT(n), lt ? GK_TILE_TERMS : GK_TILE_ROWS, w0, lt, GK_TILE_TERMS, GK_TILE_AT(n) + GK_TILE_LEFT, rt);
            /* The stage before is done; the next one takes its place while this one is multiplied. */
            GK_MM_WAIT(1);
            GK_BARRIER();
        }
        if (next < stages) {
            gk_i64 rest = terms - (gk_i64)next * GK_TILE_TERMS;
            gk_tile_fetch(&left, GK_TILE_ROWS, lt, rest, GK_TILE_AT(next));
            gk_tile_fetch(&right, GK_TILE_COLUMNS, rt, rest, GK_TILE_AT(next) + GK_TILE_LEFT);
        }
        GK_COPY_COMMIT();
    }
    GK_MM_WAIT(0);
    gk_mm_ready(sums, GK_TILE_COLUMNS);
}

/* ---- sums -------------------------------------------------------------------------------------------------------------------------------------- */

/* Columns of sums that wait in local memory for the epilogue, and the distance of their rows. */
#define GK_TILE_SPILL 64
#define GK_TILE_PITCH 68

/* Columns `first` ... of the tile's sums in rows of local memory, where all stages are done. */
GK_FN void gk_tile_spill(float (*sums)[4], const int first, GK_LOCAL_PTR float* spill)
{
    int w0 = gk_lid() / 32 * 16;
    GK_BARRIER();
    GK_UNROLL for (int j = 0; j < GK_TILE_SPILL / 8; j++) {
        GK_UNROLL for (int e = 0; e < 4; e++) spill[(w0 + GK_FRAG_ROW(e)) * GK_TILE_PITCH + 8 * j + GK_FRAG_COL(e)] = sums[first / 8 + j][e];
    }
    GK_BARRIER();
}
/* Of the runs of four columns that a thread finishes: the row and the first column of number i. */
#define GK_TILE_RUNS (GK_TILE_ROWS * GK_TILE_SPILL / 4 / GK_BLOCK)
#define GK_RUN_ROW(i) ((gk_lid() + (i) * GK_BLOCK) / (GK_TILE_SPILL / 4))
#define GK_RUN_COLUMN(i) ((gk_lid() + (i) * GK_BLOCK) % (GK_TILE_SPILL / 4) * 4)
