/* Tiles of attention. A block works on 64 x 64 scores; thread (r, c) = (lid / 16, lid % 16) holds the 4 x 4 of them at rows 4r and columns 4c.
 *
 *   gk_dots    scores of 64 rows of one matrix with 64 rows of another: products along their rows
 *   gk_weigh   adds to the accumulators the rows of a matrix, weighted by a tile: 64 x GK_ATTN_WIDTH numbers, of which (r, c) holds rows 4r ... 4r +
 * 3 and
 *              columns 64g + 4c ... 64g + 4c + 3 (needs GK_ATTN_WIDTH, a multiple of 64)
 *   gk_scores  products become scores, by the rule of attention/rule.h
 *
 * Both products pass through `tile`, a GK_LOCAL array of GK_ATTN_TILE slots. Rows of operands have a step of 1 between neighbours; `wide` allows
 * loads of 16 bytes. What lies beyond the operands counts as 0.
 */

#include "rule.h"

/* One block at a time would leave an SM idle at every barrier. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2

typedef struct { gk_f v[4]; } gk_four;

/* Slots are 16 bytes, so that four numbers are moved at once. Numbers are addressed singly; runs of four begin at a multiple of four. */
#if GK_DTYPE == GK_F64
typedef double gk_slot;
#define GK_ATTN_SLOTS(n) (n)
#define gk_attn_slot_put(t, i, x) ((t)[i] = (x))
GK_FN void gk_slot_put4(GK_LOCAL_PTR gk_slot* t, int i, gk_f x, gk_f y, gk_f z, gk_f w) { t[i] = x; t[i + 1] = y; t[i + 2] = z; t[i + 3] = w; }
GK_FN gk_four gk_slot_get4(GK_LOCAL_PTR const gk_slot* t, int i)
{
    gk_four r;
    GK_UNROLL for (int u = 0; u < 4; u++) r.v[u] = t[i + u];
    return r;
}
#define GK_ATTN_DEPTH 16 /* products per step of gk_dots */
#else
typedef gk_raw16 gk_slot;
#define GK_ATTN_SLOTS(n) ((n) / 4)
#define gk_attn_slot_put(t, i, x) (((GK_LOCAL_PTR gk_u32*)(t))[i] = gk_as_u32(x))
GK_FN void gk_slot_put4(GK_LOCAL_PTR gk_slot* t, int i, gk_f x, gk_f y, gk_f z, gk_f w)
{
    t[i / 4] = gk_make16(gk_as_u32(x), gk_as_u32(y), gk_as_u32(z), gk_as_u32(w));
}
GK_FN gk_four gk_slot_get4(GK_LOCAL_PTR const gk_slot* t, int i)
{
    gk_raw16 q = t[i / 4];
    gk_four r;
    r.v[0] = gk_as_f32(q.x); r.v[1] = gk_as_f32(q.y); r.v[2] = gk_as_f32(q.z); r.v[3] = gk_as_f32(q.w);
    return r;
}
#define GK_ATTN_DEPTH 32
#endif
#define GK_ATTN_TILE GK_ATTN_SLOTS(128 * GK_ATTN_DEPTH)

/* GK_W numbers of a row from column `at`, 0 from column `end` on. */
GK_FN gk_vec gk_run(GK_GLOBAL const gk_t* p, int at, int end, int wide)
{
    gk_vec x;
    if (wide && at + GK_W <= end) return gk_loadv(p, at);
    GK_UNROLL for (int u = 0; u < GK_W; u++) {
        x.v[u] = GK_R(0.0);
        if (at + u < end) x.v[u] = gk_load(p, at + u);
    }
    return x;
}

/* Place of row 4g + u at depth d in a transposed tile: the groups of four rows are exchanged so that both the stores of a few rows along their
 * depth and the loads of a depth along its rows spread over all banks. */
#define GK_ATTN_GROUP(d, g) ((d) * 64 + (((g) ^ (((d) >> 2) & 7)) << 2))

/* Columns d0 ... of 64 rows, transposed. */
GK_FN void gk_bring(GK_GLOBAL const gk_t* p, gk_i64 step, int rows, int wide, int d0, int depth, GK_LOCAL_PTR gk_slot* tile)
{
    GK_UNROLL for (int i = 0; i < 64 * GK_ATTN_DEPTH / GK_W / GK_BLOCK; i++) {
        int n = gk_lid() + i * GK_BLOCK, r = n / (GK_ATTN_DEPTH / GK_W), d = n % (GK_ATTN_DEPTH / GK_W) * GK_W;
        gk_vec x = gk_run(p + r * step, d0 + d, r < rows ? depth : 0, wide);
        GK_UNROLL for (int u = 0; u < GK_W; u++) gk_attn_slot_put(tile, GK_ATTN_GROUP(d + u, r >> 2) + (r & 3), x.v[u]);
    }
}

/* s[i][j] = a[4r + i] . b[4c + j] over `depth` columns. */
GK_FN void gk_dots(GK_GLOBAL const gk_t* a, gk_i64 as, int arows, int awide, GK_GLOBAL const gk_t* b, gk_i64 bs, int brows, int bwide, int depth,
                   GK_LOCAL_PTR gk_slot* tile, gk_f s[4][4])
{
    GK_LOCAL_PTR gk_slot* other = tile + GK_ATTN_SLOTS(64 * GK_ATTN_DEPTH);
    int r = gk_lid() / 16, c = gk_lid() % 16;
    GK_UNROLL for (int i = 0; i < 4; i++)
        GK_UNROLL for (int j = 0; j < 4; j++) s[i][j] = GK_R(0.0);
    for (int d0 = 0; d0 < depth; d0 += GK_ATTN_DEPTH) {
        gk_bring(a, as, arows, awide, d0, depth, tile);
        gk_bring(b, bs, brows, bwide, d0, depth, other);
        GK_BARRIER();
        /* A few steps at a time: a longer run makes compilers load ahead until registers run out. */
        GK_ROLLED for (int e = 0; e < GK_ATTN_DEPTH; e += 8) {
            GK_UNROLL for (int u = 0; u < 8; u++) {
                int d = e + u;
                gk_four x = gk_slot_get4(tile, GK_ATTN_GROUP(d, r)), y = gk_slot_get4(other, GK_ATTN_GROUP(d, c));
                GK_UNROLL for (int i = 0; i < 4; i++)
                    GK_UNROLL for (int j = 0; j < 4; j++) s[i][j] += x.v[i] * y.v[j];
            }
        }
        GK_BARRIER();
    }
}

#ifdef GK_ATTN_WIDTH
#define GK_ATTN_GROUPS (GK_ATTN_WIDTH / 64)
/* Rows of the matrix per step, so that they and their weights fit. */
#define GK_ATTN_PART (GK_ATTN_DEPTH / GK_ATTN_GROUPS)

/* acc[i] += sum over n of w[4r + i][n] * m[n]: the first `rows` rows of m, of which `width` columns exist. */
GK_FN void gk_weigh(gk_f w[4][4], GK_GLOBAL const gk_t* m, gk_i64 step, int rows, int width, int wide, GK_LOCAL_PTR gk_slot* tile,
                    gk_f acc[4][4 * GK_ATTN_GROUPS])
{
    GK_LOCAL_PTR gk_slot* mat = tile + GK_ATTN_SLOTS(64 * GK_ATTN_PART);
    int r = gk_lid() / 16, c = gk_lid() % 16;
    for (int n0 = 0; n0 < 64 && n0 < rows; n0 += GK_ATTN_PART) {
        int at = 4 * c - n0;
        if (at >= 0 && at < GK_ATTN_PART) {
            GK_UNROLL for (int j = 0; j < 4; j++) gk_slot_put4(tile, GK_ATTN_GROUP(at + j, r), w[0][j], w[1][j], w[2][j], w[3][j]);
        }
        GK_UNROLL for (int i = 0; i < GK_ATTN_PART * GK_ATTN_WIDTH / GK_W / GK_BLOCK; i++) {
            int n = gk_lid() + i * GK_BLOCK, row = n / (GK_ATTN_WIDTH / GK_W), col = n % (GK_ATTN_WIDTH / GK_W) * GK_W;
            gk_vec x = gk_run(m + (n0 + row) * step, col, n0 + row < rows ? width : 0, wide);
#if GK_W >= 4
            GK_UNROLL for (int u = 0; u < GK_W; u += 4) gk_slot_put4(mat, row * GK_ATTN_WIDTH + col + u, x.v[u], x.v[u + 1], x.v[u + 2], x.v[u + 3]);
#else
            GK_UNROLL for (int u = 0; u < GK_W; u++) gk_attn_slot_put(mat, row * GK_ATTN_WIDTH + col + u, x.v[u]);
#endif
        }
        GK_BARRIER();
        GK_ROLLED for (int e = 0; e < GK_ATTN_PART; e += 8) {
            GK_UNROLL for (int u = 0; u < 8; u++) {
                gk_four x = gk_slot_get4(tile, GK_ATTN_GROUP(e + u, r));
                GK_UNROLL for (int g = 0; g < GK_ATTN_GROUPS; g++) {
                    gk_four y = gk_slot_get4(mat, (e + u) * GK_ATTN_WIDTH + g * 64 + 4 * c);
                    GK_UNROLL for (int i = 0; i < 4; i++)
                        GK_UNROLL for (int k = 0; k < 4; k++) acc[i][g * 4 + k] += x.v[i] * y.v[k];
                }
            }
        }
        GK_BARRIER();
    }
}

GK_FN void gk_clear(gk_f acc[4][4 * GK_ATTN_GROUPS])
{
    GK_UNROLL for (int i = 0; i < 4; i++)
        GK_UNROLL for (int u = 0; u < 4 * GK_ATTN_GROUPS; u++) acc[i][u] = GK_R(0.0);
}

/* Stores the accumulators times f into `rows` rows of `width` columns. */
GK_FN void gk_put(GK_GLOBAL gk_t* y, gk_i64 step, int rows, int width, gk_f f, int accumulate, gk_f acc[4][4 * GK_ATTN_GROUPS])
{
    int r = gk_lid() / 16, c = gk_lid() % 16;
    GK_UNROLL for (int i = 0; i < 4; i++) {
        GK_UNROLL for (int u = 0; u < 4 * GK_ATTN_GROUPS; u++) {
            int row = 4 * r + i, col = u / 4 * 64 + 4 * c + u % 4;
            if (row < rows && col < width) {
                gk_i64 at = row * step + col;
                gk_store(y, at, accumulate ? gk_load(y, at) + f * acc[i][u] : f * acc[i][u]);
            }
        }
    }
}
#endif

/* The thread's 16 numbers of a tile whose first query and key are i0 and j0: number 4u + v lies at row 4r + u, column 4c + v. Rows are queries, or
 * keys with `flip`. A set of them is 16 bits. */
#define GK_QUERY(i0, u, v) ((i0) + 4 * (flip ? gk_lid() % 16 : gk_lid() / 16) + (flip ? (v) : (u)))
#define GK_KEY(j0, u, v) ((j0) + 4 * (flip ? gk_lid() / 16 : gk_lid() % 16) + (flip ? (u) : (v)))
#define GK_HAS(bits, u, v) ((bits) >> (4 * (u) + (v)) & 1u)

/* Those that are visible. */
GK_FN gk_u32 gk_visible(const gk_rule* r, int i0, int j0, const int flip)
{
    gk_u32 bits = 0u;
    if (gk_sees_all(r, i0, 64, j0, 64)) return 0xffffu;
    GK_ROLLED for (int u = 0; u < 4; u++)
        GK_UNROLL for (int v = 0; v < 4; v++) bits |= (gk_u32)gk_sees(r, GK_QUERY(i0, u, v), GK_KEY(j0, u, v)) << (4 * u + v);
    return bits;
}

/* Those that dropout keeps. */
GK_FN gk_u32 gk_kept(const gk_rule* r, int i0, int j0, const int flip)
{
    gk_u32 bits = 0u;
    GK_ROLLED for (int n = 0; n < 16; n++) bits |= (gk_u32)gk_keeps(r, GK_QUERY(i0, n / 4, n % 4), GK_KEY(j0, n / 4, n % 4)) << n;
    return bits;
}

/* Products become scores, -inf where invisible; `slope` is their derivative by scale * product. Loops one after another, so that few values live at
 * a time. */
GK_FN void gk_scores(const gk_rule* r, int i0, int j0, const int flip, gk_f x[4][4], gk_f slope[4][4])
{
    gk_u32 seen = gk_visible(r, i0, j0, flip);
    GK_UNROLL for (int u = 0; u < 4; u++)
        GK_UNROLL for (int v = 0; v < 4; v++) { x[u][v] *= r->scale; slope[u][v] = GK_R(1.0); }
    if (r->cap > GK_R(0.0)) {
        GK_UNROLL for (int u = 0; u < 4; u++) {
            GK_UNROLL for (int v = 0; v < 4; v++) {
                gk_f t = gk_tanh(x[u][v] / r->cap);
                x[u][v] = r->cap * t;
                slope[u][v] = GK_R(1.0) - t * t;
            }
        }
    }
    if (r->bias) {
        GK_UNROLL for (int u = 0; u < 4; u++)
            GK_UNROLL for (int v = 0; v < 4; v++)
                if (GK_HAS(seen, u, v)) x[u][v] += gk_load(r->bias, GK_QUERY(i0, u, v) * r->bi + GK_KEY(j0, u, v) * r->bj);
    }
    GK_UNROLL for (int u = 0; u < 4; u++)
        GK_UNROLL for (int v = 0; v < 4; v++)
            if (!GK_HAS(seen, u, v)) x[u][v] = -GK_INF;
}
