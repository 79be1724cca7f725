/* gemm_ragged (gemm/gemm.c) on matrix cores, for f16 and bf16: Y[r] = alpha A[r] B[g] for the rows r of group g, offsets[g] <= r < offsets[g + 1];
 * 0 for rows of no group.
 *
 * A block has 128 rows of a group and 128 columns. Stages of 64 terms of A and B are copied to local memory while earlier ones are multiplied. B has the
 * terms of a column side by side ([groups, N, K]), or with `by_terms` the columns of a term ([groups, K, N]). N and K are multiples of 8; rows of all
 * operands begin at multiples of 16 bytes. Sums are float.
 * size = {rows, N, K, groups}, steps = {from row to row of A, of B, from group to group of B, from row to row of Y}. An offset that is negative, beyond the
 * rows or below its predecessor is reported and taken as the nearest that is valid.
 * Launch: axis 0 = tiles, columns fastest; as many row tiles as any partition into groups can need. The rows before the first and after the last group
 * are groups without products. Deterministic: one writer per output. */
#include "common/prelude/matrix.h"

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

/* Queues the copy of a tile of `count` rows of `chunks` chunks: of the first `rows` rows, the first `width` numbers. */
GK_FN void gk_ragged_fetch(GK_GLOBAL const gk_t* p, gk_i64 step, const int count, const int chunks, gk_i64 rows, gk_i64 width,
                           GK_LOCAL_PTR gk_raw16* tile)
{
    GK_UNROLL for (int i = 0; i < GK_RAGGED_CHUNKS / GK_BLOCK; i++) {
        int n = gk_lid() + i * GK_BLOCK, r = n / chunks, c = n % chunks, exists = r < rows && c * GK_PER_CHUNK < width;
        gk_copy16(tile + gk_chunk_at(r, c, count), exists ? p + r * step + c * GK_PER_CHUNK : p, exists);
    }
}

// Units: HALVES
GK_KERNEL(gemm_ragged_matrix)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(int, offsets), GK_OUT(gk_t, y), GK_OUT(int, err), GK_DIMS(size), GK_DIMS(steps),
                              gk_f alpha, int by_terms, int code)
{
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, 2 * GK_RAGGED_STAGES * GK_RAGGED_CHUNKS);
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(int, offsets); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, err);
    gk_i64 wide = (size.v[1] + GK_RAGGED_SIDE - 1) / GK_RAGGED_SIDE, n0 = gk_bid(0) % wide * GK_RAGGED_SIDE, columns = size.v[1] - n0;
    gk_ragged_rows m = gk_ragged_rows_of(gk_bid(0) / wide, offsets, size.v[0], (int)size.v[3], err, code);
    gk_i64 terms = m.group < 0 ? 0 : size.v[2];
    int stages = (int)((terms + GK_RAGGED_TERMS - 1) / GK_RAGGED_TERMS), w0 = gk_lid() / 32 * 16;
    float sums[GK_RAGGED_SIDE / 8][4];
    gk_frag_a left[GK_RAGGED_TERMS / GK_FRAG_TERMS];
    gk_mm_clear(sums, GK_RAGGED_SIDE);
    a += m.first * steps.v[0];
    b += (m.group < 0 ? 0 : m.group) * steps.v[2] + n0 * (by_terms ? 1 : steps.v[1]);

    for (int n = 1 - GK_RAGGED_STAGES; n < stages; n++) {
        int next = n + GK_RAGGED_STAGES - 1;
        gk_i64 k = (gk_i64)next * GK_RAGGED_TERMS, rest = terms - k;
        GK_LOCAL_PTR gk_raw16* to = tiles + next % GK_RAGGED_STAGES * 2 * GK_RAGGED_CHUNKS;
        if (n >= 0) {
            GK_RAGGED_WAIT();
            GK_BARRIER();
        }
        if (next < stages) {
            gk_ragged_fetch(a + k, steps.v[0], GK_RAGGED_SIDE, 8, m.rows, rest, to);
            if (by_terms) gk_ragged_fetch(b + k * steps.v[1], steps.v[1], GK_RAGGED_TERMS, 16, rest, columns, to + GK_RAGGED_CHUNKS);
            else gk_ragged_fetch(b + k, steps.v[1], GK_RAGGED_SIDE, 8, columns, rest, to + GK_RAGGED_CHUNKS);
        }
        GK_COPY_COMMIT();
        if (n < 0) continue;
        GK_LOCAL_PTR gk_raw16 *x = tiles + n % GK_RAGGED_STAGES * 2 * GK_RAGGED_CHUNKS, *right = x + GK_RAGGED_CHUNKS;
        if (by_terms) {
            GK_UNROLL for (int d = 0; d < GK_RAGGED_TERMS / GK_FRAG_TERMS; d++) left[d] = gk_load_a(x, GK_RAGGED_SIDE, w0, d);
            gk_mm_terms_begin(sums, GK_RAGGED_SIDE, left, right, GK_RAGGED_TERMS);
        } else {
            gk_mm_tiles_add(sums, GK_RAGGED_SIDE, x, GK_RAGGED_SIDE, w0, GK_RAGGED_TERMS, right);
        }
        GK_MM_WAIT(0);
        gk_mm_ready(sums, GK_RAGGED_SIDE);
    }

    int width = columns < GK_RAGGED_SIDE ? (int)columns : GK_RAGGED_SIDE;
    GK_UNROLL for (int h = 0; h < 2; h++) {
        int i = w0 + GK_FRAG_ROW(2 * h);
        if (i < m.rows) gk_mm_store(y + (m.first + i) * steps.v[3] + n0, sums, GK_RAGGED_SIDE, h, width, (float)alpha, 0);
    }
}
