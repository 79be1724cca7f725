/* attention/decode.c on matrix cores, for f16 and bf16: 16 query heads that share a head of the cache are the rows of its products.
 *
 * A block has one token, one head of the cache, up to 16 of the query heads that share it, and one of `splits` runs of keys. A warp takes every eighth
 * run of 16 keys: scores are one product, weighted values another, whose operands threads read from the cache as they multiply them
 * (prelude/matrix_registers.h); nothing passes through local memory before the block combines what its warps have. GK_OP columns are there for the D of
 * a head, a multiple of 8. Weights are multiplied as sums of two numbers of 16 bits, so that results are as exact as those of attention/decode.c.
 * Deterministic: fixed trees. Empty where the dialect has no such products.
 */
#define gk_decode64 64
#define gk_decode128 128
#define GK_DECODE_EACH 8
#define GK_DECODE_ROWS 16
#define GK_DECODE_WARPS (GK_BLOCK / 32)
#include "common/prelude/matrix_registers.h"
#include "decode.h"

#ifdef GK_MM_REGISTERS
/* Rows of the combined result in local memory begin in other banks. */
#define GK_DECODE_PITCH (GK_OP + 4)

typedef struct {
    GK_GLOBAL const gk_t* q;
    GK_GLOBAL const gk_t* k;
    GK_GLOBAL const gk_t* v;
    GK_GLOBAL const int* table;
    GK_GLOBAL gk_t* o;
    GK_GLOBAL float* lse;
    GK_GLOBAL float* part;
    GK_GLOBAL int* err;
    float scale;
    int heads, splits, code;
} gk_decode_io;

/* A block's token, head of the cache, first query head, and run of keys [j0, j1). */
typedef struct { gk_token at; gk_i64 head, h0, s, j0, j1; } gk_decode_place;

/* Of a thread's two rows: the largest score so far in powers of 2, its share of the sum of the weights; and the weighted values. Tile 8 u + i has in its
 * column c the element 64 u + 8 c + i of a head. */
typedef struct { float m[2], l[2], o[GK_OP / 8][4]; } gk_decode_sums;

GK_FN gk_u32 gk_word(gk_raw16 q, const int i) { return i == 0 ? q.x : i == 1 ? q.y : i == 2 ? q.z : q.w; }

/* The thread's items of the rows of q: item s of a row has elements 32 s + 8 (lid % 4) .. of a head. */
GK_FN void gk_decode_queries(const gk_decode_io* io, const gk_dims* size, const gk_decode_place* p, gk_raw16 q[2][GK_OP / 32])
{
    gk_i64 d = size->v[4], per = size->v[1] / size->v[2];
    GK_UNROLL for (int r = 0; r < 2; r++) {
        int h = GK_FRAG_ROW(2 * r), there = h < io->heads && p->h0 + h < per;
        GK_UNROLL for (int s = 0; s < GK_OP / 32; s++) {
            int first = 32 * s + gk_lid() % 4 * 8;
            gk_i64 at = (p->at.row + (p->head * per + p->h0 + h) * p->at.step) * d;
            q[r][s] = gk_decode_fetch(io->q, there && first < d ? at : -1, first, (int)d, 1).q[0];
        }
    }
}

/* Where key j of the run begins, or -1. */
GK_FN gk_i64 gk_decode_key(const gk_decode_io* io, const gk_dims* size, const gk_decode_place* p, gk_i64 j)
{
    gk_i64 from = -1;
    if (j < p->j1) {
        from = gk_key_at(io->table, size, p->at.b, p->head, j);
        if (from < 0) gk_report(io->err, io->code);
    }
    return from;
}

/* Where the rows of k and v begin that a thread reads of the 16 keys from `base` on: of its column's keys of both tiles of scores, and of its four terms. */
typedef struct { gk_i64 k[2], v[4]; } gk_decode_rows;
GK_FN gk_decode_rows gk_decode_find(const gk_decode_io* io, const gk_dims* size, const gk_decode_place* p, gk_i64 base)
{
    gk_decode_rows r;
    GK_UNROLL for (int n = 0; n < 2; n++) r.k[n] = gk_decode_key(io, size, p, base + 8 * n + gk_lid() % 32 / 4);
    GK_UNROLL for (int n = 0; n < 4; n++) r.v[n] = gk_decode_key(io, size, p, base + n / 2 * 8 + gk_lid() % 4 * 2 + n % 2);
    return r;
}

/* Scores of the 16 keys from `base` on: c[n] has keys base + 8 n ... */
GK_FN void gk_decode_scores(const gk_decode_io* io, const gk_decode_place* p, gk_i64 base, const gk_raw16 q[2][GK_OP / 32],
                            const gk_raw16 k[2][GK_OP / 32], float c[2][4])
{
    GK_UNROLL for (int n = 0; n < 2; n++) {
        GK_UNROLL for (int e = 0; e < 4; e++) c[n][e] = 0.0f;
        GK_UNROLL for (int s = 0; s < GK_OP / 32; s++) {
            GK_UNROLL for (int u = 0; u < 4; u += 2) {
                gk_u32 a[4], b[2];
                a[0] = gk_word(q[0][s], u); a[1] = gk_word(q[1][s], u); a[2] = gk_word(q[0][s], u + 1); a[3] = gk_word(q[1][s], u + 1);
                b[0] = gk_word(k[n][s], u); b[1] = gk_word(k[n][s], u + 1);
                gk_mm_registers(c[n], a, b);
            }
        }
        GK_UNROLL for (int e = 0; e < 4; e++) {
            c[n][e] = base + 8 * n + GK_FRAG_COL(e) < p->j1 ? c[n][e] * io->scale : -GK_INF;
        }
    }
}

/* Makes weights of the scores, and turns what was summed to their maximum; a score of -inf has no weight. */
GK_FN void gk_decode_turn(gk_decode_sums* x, float c[2][4])
{
    GK_UNROLL for (int r = 0; r < 2; r++) {
        float m = x->m[r], base, old;
        GK_UNROLL for (int i = 0; i < 4; i++) m = gk_most(m, c[i / 2][2 * r + i % 2]);
        m = gk_quad_max(m, 0);
        base = m == -GK_INF ? 0.0f : m;
        old = gk_power(x->m[r] - base);
        x->m[r] = m;
        x->l[r] *= old;
        GK_UNROLL for (int n = 0; n < GK_OP / 8; n++) { x->o[n][2 * r] *= old; x->o[n][2 * r + 1] *= old; }
        GK_UNROLL for (int i = 0; i < 4; i++) {
            float w = gk_power(c[i / 2][2 * r + i % 2] - base);
            c[i / 2][2 * r + i % 2] = w;
            x->l[r] += w;
        }
    }
}

/* Adds the values of 16 keys, weighted. */
GK_FN void gk_decode_values(gk_decode_sums* x, const gk_raw16 v[4][GK_OP / 64], float c[2][4])
{
    gk_u32 large[4], small[4];
    gk_mm_sums_as_left(large, c);
    gk_mm_sums_as_left(small, c);
    GK_UNROLL for (int u = 0; u < GK_OP / 64; u++) {
        GK_UNROLL for (int i = 0; i < 8; i++) {
            gk_u32 b[2];
            GK_UNROLL for (int h = 0; h < 2; h++) {
                gk_u32 one = gk_word(v[2 * h][u], i / 2), two = gk_word(v[2 * h + 1][u], i / 2);
                b[h] = i % 2 ? one >> 16 | (two & 0xffff0000u) : (one & 0xffffu) | two << 16;
            }
            gk_mm_registers(x->o[8 * u + i], large, b);
            gk_mm_registers(x->o[8 * u + i], small, b);
        }
    }
}

/* All keys of the block. */
GK_FN void gk_decode_keys(const gk_decode_io* io, const gk_dims* size, const gk_decode_place* p, gk_decode_sums* x)
{
    gk_raw16 q[2][GK_OP / 32];
    int d = (int)size->v[4];
    gk_i64 base = p->j0 + gk_lid() / 32 * 16;
    gk_decode_rows next = gk_decode_find(io, size, p, base);
    gk_decode_queries(io, size, p, q);
    for (; base < p->j1; base += 16 * GK_DECODE_WARPS) {
        gk_raw16 k[2][GK_OP / 32], v[4][GK_OP / 64];
        gk_decode_rows rows = next;
        float c[2][4];
        GK_UNROLL for (int n = 0; n < 2; n++) {
            GK_UNROLL for (int s = 0; s < GK_OP / 32; s++) {
                int first = 32 * s + gk_lid() % 4 * 8;
                k[n][s] = gk_decode_fetch(io->k, first < d ? rows.k[n] : -1, first, d, 1).q[0];
            }
        }
        GK_UNROLL for (int n = 0; n < 4; n++) {
            GK_UNROLL for (int u = 0; u < GK_OP / 64; u++) {
                int first = 64 * u + gk_lid() % 32 / 4 * 8;
                v[n][u] = gk_decode_fetch(io->v, first < d ? rows.v[n] : -1, first, d, 1).q[0];
            }
        }
        next = gk_decode_find(io, size, p, base + 16 * GK_DECODE_WARPS);
        gk_decode_scores(io, p, base, q, k, c);
        gk_decode_turn(x, c);
        gk_decode_values(x, v, c);
    }
}

/* What the warps have together, to o and lse or to a part. */
GK_FN void gk_decode_store(const gk_decode_io* io, const gk_dims* size, const gk_decode_place* p, gk_decode_sums* x, GK_LOCAL_PTR float* most,
                           GK_LOCAL_PTR float* sums, GK_LOCAL_PTR float* result)
{
    int warp = gk_lid() / 32, d = (int)size->v[4];
    gk_i64 per = size->v[1] / size->v[2];
    GK_UNROLL for (int r = 0; r < 2; r++) {
        float l = gk_quad_sum(x->l[r], 0);
        if (gk_lid() % 4 == 0) {
            most[warp * GK_DECODE_ROWS + GK_FRAG_ROW(2 * r)] = x->m[r];
            sums[warp * GK_DECODE_ROWS + GK_FRAG_ROW(2 * r)] = l;
        }
    }
    GK_BARRIER();
    for (int w = 0; w < GK_DECODE_WARPS; w++) {
        GK_UNROLL for (int r = 0; r < 2; r++) {
            int row = GK_FRAG_ROW(2 * r);
            float m = most[row], f;
            for (int v = 1; v < GK_DECODE_WARPS; v++) m = gk_most(m, most[v * GK_DECODE_ROWS + row]);
            f = x->m[r] == m ? 1.0f : gk_power(x->m[r] - m);
            GK_UNROLL for (int n = 0; n < GK_OP / 4; n++) {
                /* Column GK_FRAG_COL(n % 2) of tile n / 2. */
                int at = row * GK_DECODE_PITCH + n / 16 * 64 + GK_FRAG_COL(n % 2) * 8 + n / 2 % 8;
                if (w == warp) result[at] = (w > 0 ? result[at] : 0.0f) + x->o[n / 2][2 * r + n % 2] * f;
            }
        }
        GK_BARRIER();
    }
    for (int i = gk_lid(); i < io->heads * d; i += GK_BLOCK) {
        int h = i / d, e = i - h * d;
        gk_i64 row = p->at.row + (p->head * per + p->h0 + h) * p->at.step, to = (row * io->splits + p->s) * (d + 2);
        float m = most[h], l = 0.0f, out = result[h * GK_DECODE_PITCH + e];
        for (int v = 1; v < GK_DECODE_WARPS; v++) m = gk_most(m, most[v * GK_DECODE_ROWS + h]);
        for (int v = 0; v < GK_DECODE_WARPS; v++) {
            float own = most[v * GK_DECODE_ROWS + h];
            l += sums[v * GK_DECODE_ROWS + h] * (own == m ? 1.0f : gk_power(own - m));
        }
        int there = p->h0 + h < per;
        if (there && io->part) {
            io->part[to + e] = out;
            if (e == 0) { io->part[to + d] = m; io->part[to + d + 1] = l; }
        } else if (there) {
            gk_store(io->o, row * d + e, l > 0.0f ? out / l : out);
            if (e == 0 && io->lse) io->lse[row] = m * GK_LN2 + gk_log(l);
        }
    }
}

// Units: HALVES x DECODE_WIDTHS
/* As decode. Launch: a block per token, cache head, 16 query heads (with `tiles` of them per cache head) and split. Rows begin at multiples of 16 bytes. */
GK_KERNEL(decode_matrix)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, v), GK_IN(int, table), GK_IN(int, lens), GK_IN(int, cu), GK_OUT(gk_t, o),
                         GK_OUT(gk_f, lse), GK_OUT(gk_f, part), GK_OUT(int, err), GK_DIMS(size), gk_i64 sequences, int heads, int tiles, int splits,
                         gk_f scale, int code)
{
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, v); GK_BIND_IN(int, table); GK_BIND_IN(int, lens); GK_BIND_IN(int, cu);
    GK_BIND_OUT(gk_t, o); GK_BIND_OUT(gk_f, lse); GK_BIND_OUT(gk_f, part); GK_BIND_OUT(int, err);
    GK_LOCAL float most[GK_DECODE_WARPS * GK_DECODE_ROWS];
    GK_LOCAL float sums[GK_DECODE_WARPS * GK_DECODE_ROWS];
    GK_LOCAL float result[GK_DECODE_ROWS * GK_DECODE_PITCH];
    gk_i64 block = gk_bid(0) / splits, rest = block / tiles, run;
    gk_decode_io io;
    gk_decode_place p;
    gk_decode_sums x;
    io.q = q; io.k = k; io.v = v; io.table = table; io.o = o; io.lse = lse; io.part = part; io.err = err; io.scale = scale * GK_LOG2E;
    io.heads = heads; io.splits = splits; io.code = code;
    p.at = gk_token_of(lens, cu, err, &size, sequences, rest / size.v[2], code);
    p.head = rest % size.v[2];
    p.h0 = block % tiles * heads;
    p.s = gk_bid(0) % splits;
    run = (p.at.keys + splits - 1) / splits;
    p.j0 = p.s * run;
    p.j1 = p.j0 + run < p.at.keys ? p.j0 + run : p.at.keys;
    GK_UNROLL for (int r = 0; r < 2; r++) { x.m[r] = -GK_INF; x.l[r] = 0.0f; }
    GK_UNROLL for (int n = 0; n < GK_OP / 2; n++) x.o[n / 4][n % 4] = 0.0f;
    gk_decode_keys(&io, &size, &p, &x);
    gk_decode_store(&io, &size, &p, &x, most, sums, result);
}
#endif
