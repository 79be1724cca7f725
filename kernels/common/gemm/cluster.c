/* Products in f32 of few tiles, by clusters of blocks that share the terms of a tile (split-k in one launch). Formula, parameters and epilogue: gemm.c;
 * size = {M, N, K, batches, items, terms of a block, 16-byte stores}. Bits 0 and 1 of `items`: A, B consist of rows, or columns, of whole items of 16 bytes
 * at multiples of 16 bytes, a part of k begins with an item.
 *
 * A block has a tile of 32 x 32 and a part of k, of which its two halves of 64 threads take every other item. The sums of all halves of the cluster are put
 * into the local memory of the block whose rows they are, which adds them in order and applies the epilogue. Deterministic.
 */
#undef GK_BLOCK
#define GK_BLOCK 128
#undef GK_CLUSTERING
#define GK_CLUSTERING GK_IN_CLUSTERS
#include "common/prelude/matrix.h"
#include "common/prelude/cluster.h"
#include "epilogue.h"

#define GK_SHARED_SIDE 32
#define GK_SHARED_TERMS 64
/* A stage of an operand: rows of terms with an item between them, so that reads of eight rows meet in no bank, or terms of 32 elements. */
#define GK_SHARED_PITCH (GK_SHARED_TERMS / 4 + 1)
#define GK_SHARED_ITEMS (GK_SHARED_SIDE * GK_SHARED_PITCH)
/* Elements of a tile that one block adds: whole rows. */
#define GK_SHARED_PART (GK_SHARED_SIDE * GK_SHARED_SIDE / GK_CLUSTER)
/* From row to row of a tile's sums. */
#define GK_SUMS_PITCH 40
#define GK_SUMS_ITEMS (GK_SHARED_SIDE * GK_SUMS_PITCH / 4)
/* Groups of 64 threads, each of which has results for the whole tile. */
#define GK_SHARED_GROUPS (GK_BLOCK / 64)

/* Item number i of a stage: its first row and term. by_terms: terms are neighbours in memory. */
GK_FN int gk_item_row(int i, const int by_terms) { return by_terms ? i / (GK_SHARED_TERMS / 4) : i % (GK_SHARED_SIDE / 4) * 4; }
GK_FN int gk_item_term(int i, const int by_terms) { return by_terms ? i % (GK_SHARED_TERMS / 4) * 4 : i / (GK_SHARED_SIDE / 4); }
#define GK_ITEM_PLACE(i, r, t, by_terms) ((by_terms) ? (r) * GK_SHARED_PITCH + (t) / 4 : (i))

/* Queues the copy of an operand's rows r0 .. r0 + 31 and terms k .. k + 63, by items or single numbers; zeros where there are none. */
GK_FN void gk_shared_load(GK_LOCAL_PTR gk_raw16* to, GK_GLOBAL const gk_t* p, gk_i64 step, const int by_terms, int items, int rows, int r0, int k, int k1)
{
    const int count = GK_SHARED_SIDE * GK_SHARED_TERMS / 4;
    GK_GLOBAL const gk_t* from = p + (by_terms ? r0 * step + k : k * step + r0);
    if (items) {
        GK_UNROLL for (int u = 0; u < count / GK_BLOCK; u++) {
            int i = gk_lid() + u * GK_BLOCK, r = gk_item_row(i, by_terms), t = gk_item_term(i, by_terms), exists = r0 + r < rows && k + t < k1;
            gk_copy16(to + GK_ITEM_PLACE(i, r, t, by_terms), exists ? from + (by_terms ? r * step + t : t * step + r) : p, exists);
        }
        return;
    }
    GK_ROLLED for (int i = gk_lid(); i < count; i += GK_BLOCK) {
        int r = gk_item_row(i, by_terms), t = gk_item_term(i, by_terms);
        GK_UNROLL for (int v = 0; v < 4; v++) {
            int row = by_terms ? r : r + v, term = by_terms ? t + v : t, exists = r0 + row < rows && k + term < k1;
            gk_copy4((GK_LOCAL_PTR float*)(to + GK_ITEM_PLACE(i, r, t, by_terms)) + v, exists ? from + (by_terms ? row * step + term : term * step + row) : p,
                exists);
        }
    }
}

/* Row number i of the four of group `of`. */
GK_FN int gk_shared_row(int of, int i, const int by_terms) { return by_terms ? of + 8 * i : 4 * of + i; }

/* The group's elements of terms 4 t .. 4 t + 3: x[i].v[j] is row i's of term j with by_terms, else row j's of term i. */
GK_FN void gk_shared_read(gk_four* x, GK_LOCAL_PTR const gk_raw16* from, int of, int t, const int by_terms)
{
    GK_UNROLL for (int i = 0; i < 4; i++)
        x[i] = gk_slot_get4(from, 4 * (by_terms ? (of + 8 * i) * GK_SHARED_PITCH + t : (4 * t + i) * 8 + of));
}

/* Sums of the thread's 4 x 4 results over every other item of the terms k0 .. k1 - 1. */
GK_FN void gk_shared_product(gk_f acc[4][4], GK_GLOBAL const gk_t* a, GK_GLOBAL const gk_t* b, gk_i64 a_step, gk_i64 b_step, const int at, const int bt,
                             int items, int m, int n, int m0, int n0, int k0, int k1, GK_LOCAL_PTR gk_raw16* local)
{
    int group = gk_lid() / 64, row = gk_lid() % 64 / 8, column = gk_lid() % 8, stage = 0;
    GK_UNROLL for (int i = 0; i < 4; i++) GK_UNROLL for (int j = 0; j < 4; j++) acc[i][j] = 0.0f;
    gk_shared_load(local, a, a_step, at, items & 1, m, m0, k0, k1);
    gk_shared_load(local + GK_SHARED_ITEMS, b, b_step, bt, items & 2, n, n0, k0, k1);
    GK_COPY_COMMIT();
    GK_ROLLED for (int k = k0; k < k1; k += GK_SHARED_TERMS) {
        GK_LOCAL_PTR gk_raw16 *now = local + stage * 2 * GK_SHARED_ITEMS, *next = local + (stage ^ 1) * 2 * GK_SHARED_ITEMS;
        if (k + GK_SHARED_TERMS < k1) {
            gk_shared_load(next, a, a_step, at, items & 1, m, m0, k + GK_SHARED_TERMS, k1);
            gk_shared_load(next + GK_SHARED_ITEMS, b, b_step, bt, items & 2, n, n0, k + GK_SHARED_TERMS, k1);
        }
        GK_COPY_COMMIT();
        GK_COPY_WAIT(1);
        GK_BARRIER();
        int count = k1 - k < GK_SHARED_TERMS ? (k1 - k + 3) / 4 : GK_SHARED_TERMS / 4;
        GK_ROLLED for (int t = group; t < count; t += GK_SHARED_GROUPS) {
            gk_four x[4], y[4];
            gk_shared_read(x, now, row, t, at);
            gk_shared_read(y, now + GK_SHARED_ITEMS, column, t, bt);
            GK_UNROLL for (int u = 0; u < 4; u++) GK_UNROLL for (int i = 0; i < 4; i++) GK_UNROLL for (int j = 0; j < 4; j++)
                acc[i][j] += (at ? x[i].v[u] : x[u].v[i]) * (bt ? y[j].v[u] : y[u].v[j]);
        }
        GK_BARRIER();
        stage ^= 1;
    }
}

/* Each group's results go to an array of its own in `sums`. */
GK_FN void gk_shared_keep(GK_LOCAL_PTR gk_raw16* sums, gk_f acc[4][4], const int at, const int bt)
{
    int row = gk_lid() % 64 / 8, column = gk_lid() % 8;
    sums += gk_lid() / 64 * GK_SUMS_ITEMS;
    GK_UNROLL for (int i = 0; i < 4; i++) {
        int e = gk_shared_row(row, i, at) * GK_SUMS_PITCH;
        if (bt) GK_UNROLL for (int j = 0; j < 4; j++) ((GK_LOCAL_PTR float*)sums)[e + column + 8 * j] = acc[i][j];
        else gk_slot_put4(sums, e + 4 * column, acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
    }
}

/* Gives every block of the cluster its rows of the sums over this block's groups. */
GK_FN void gk_shared_give(GK_LOCAL_PTR gk_raw16* given, GK_LOCAL_PTR const gk_raw16* sums, int block)
{
    GK_UNROLL for (int i = gk_lid(); i < GK_SHARED_SIDE * GK_SHARED_SIDE / 4; i += GK_BLOCK) {
        int from = i / 8 * GK_SUMS_PITCH + i % 8 * 4;
        gk_four x = gk_slot_get4(sums, from);
        GK_UNROLL for (int g = 1; g < GK_SHARED_GROUPS; g++) {
            gk_four more = gk_slot_get4(sums + g * GK_SUMS_ITEMS, from);
            GK_UNROLL for (int u = 0; u < 4; u++) x.v[u] += more.v[u];
        }
        gk_cluster_put16(given + block * (GK_SHARED_PART / 4) + i % (GK_SHARED_PART / 4),
            gk_make16(gk_as_u32(x.v[0]), gk_as_u32(x.v[1]), gk_as_u32(x.v[2]), gk_as_u32(x.v[3])), i / (GK_SHARED_PART / 4));
    }
}

/* Sums over the cluster of item number i of those that this block was given. */
GK_FN gk_four gk_shared_sum(GK_LOCAL_PTR const gk_raw16* given, int i)
{
    gk_four x = gk_slot_get4(given, 4 * i);
    GK_UNROLL for (int part = 1; part < GK_CLUSTER; part++) {
        gk_four more = gk_slot_get4(given, part * GK_SHARED_PART + 4 * i);
        GK_UNROLL for (int u = 0; u < 4; u++) x.v[u] += more.v[u];
    }
    return x;
}

/* at, bt: terms are neighbours in A, in B. */
#define GK_CLUSTER_PRODUCT(at, bt) \
    GK_LOCAL gk_raw16 local[4 * GK_SHARED_ITEMS]; \
    GK_LOCAL gk_raw16 given[GK_SHARED_SIDE * GK_SHARED_SIDE / 4]; \
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(gk_o, c); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_o, residual); GK_BIND_IN(gk_t, scale); \
    GK_BIND_OUT(gk_o, y); GK_BIND_OUT(gk_o, z); \
    gk_shared_tile(a, b, c, bias, residual, scale, y, z, size, sa, sb, sc, sr, sv, sy, sz, alpha, beta, act, p, at, bt, local, given)

GK_FN void gk_shared_tile(GK_GLOBAL const gk_t* a, GK_GLOBAL const gk_t* b, GK_GLOBAL const gk_o* c, GK_GLOBAL const gk_t* bias,
                          GK_GLOBAL const gk_o* residual, GK_GLOBAL const gk_t* scale, GK_GLOBAL gk_o* y, GK_GLOBAL gk_o* z, gk_dims size, gk_dims sa,
                          gk_dims sb, gk_dims sc, gk_dims sr, gk_dims sv, gk_dims sy, gk_dims sz, gk_f alpha, gk_f beta, int act, gk_f p, const int at,
                          const int bt, GK_LOCAL_PTR gk_raw16* local, GK_LOCAL_PTR gk_raw16* given)
{
    int m = (int)size.v[0], n = (int)size.v[1], k = (int)size.v[2], per = (int)size.v[5], block = gk_bid(0) % GK_CLUSTER, tile = gk_bid(0) / GK_CLUSTER;
    int across = (n + GK_SHARED_SIDE - 1) / GK_SHARED_SIDE, down = (m + GK_SHARED_SIDE - 1) / GK_SHARED_SIDE, batch = tile / across / down;
    int n0 = tile % across * GK_SHARED_SIDE, m0 = tile / across % down * GK_SHARED_SIDE, k0 = block * per, k1 = k0 + per < k ? k0 + per : k;
    gk_f acc[4][4];
    GK_CLUSTER_ARRIVE();
    gk_shared_product(acc, a + batch * sa.v[2], b + batch * sb.v[2], at ? sa.v[0] : sa.v[1], bt ? sb.v[0] : sb.v[1], at, bt, (int)size.v[4], m,
        n, m0, n0, k0, k1, local);
    gk_shared_keep(local, acc, at, bt);
    GK_BARRIER();
    GK_CLUSTER_WAIT(); /* all blocks have begun: their memory can be written */
    gk_shared_give(given, local, block);
    GK_CLUSTER_BARRIER();
    GK_ROLLED for (int i = gk_lid(); i < GK_SHARED_PART / 4; i += GK_BLOCK) {
        int e = block * GK_SHARED_PART + 4 * i;
        gk_epilogue(gk_shared_sum(given, i), batch, m0 + e / GK_SHARED_SIDE, n0 + e % GK_SHARED_SIDE, c, bias, residual, scale, y, z, size, sc, sr,
            sv, sy, sz, alpha, beta, act, p);
    }
}

/* Launch: axis 0 = blocks of a cluster fastest, then tiles by columns, rows, batches. As they lie in memory A is [M, K] for nn and nt, [K, M] for tn, B is
 * [K, N] for nn and tn, [N, K] for nt. */
// Units: F32 x OUTPUTS
GK_KERNEL(gemm_cluster_nn)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                           GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv),
                           GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_CLUSTER_PRODUCT(1, 0);
}

GK_KERNEL(gemm_cluster_nt)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                           GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv),
                           GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_CLUSTER_PRODUCT(1, 1);
}

GK_KERNEL(gemm_cluster_tn)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                           GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv),
                           GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_CLUSTER_PRODUCT(0, 0);
}
