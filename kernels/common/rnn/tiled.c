/* A recurrent step in one kernel, for batches that fill tiles: the products with the recurrent weights, and what lies behind them. Names, shapes and
 * arithmetic are those of rnn/rnn.c; rows of states and weights are whole items of 16 bytes at multiples of 16 bytes.
 *
 * Both factors have the terms of a product side by side: x [rows, terms] and w [columns, terms]. A block makes a tile of 32 columns. Its threads are
 * groups, which share the terms of a stage; a thread multiplies 8 rows by 4 columns. Stages of x and w are copied to local memory while earlier ones
 * are multiplied. Then the sums of the groups are added in their order.
 *
 * Forward: 32 rows of the batch x 8 columns of a state with their gates; axis 0 = columns / 8, axis 1 = rows / 32.
 * Backward: 64 rows x 32 columns of the state's gradient, by a cluster whose blocks share the terms. Each adds up its sums for one part of the rows
 * after the other and puts them where that part is finished. Axis 0 = columns / 32 x GK_CLUSTER, axis 1 = rows / 64. Deterministic: one writer per
 * output, sums in an order that depends on sizes and the cluster alone.
 */
#if GK_IS_FLOAT && GK_DTYPE != GK_F64
#include "common/prelude/matrix.h"
#include "step.h"

/* Room for two blocks on an SM. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2

/* Threads that have rows of their own, forward and backward: thread `run` of them has the rows run, run + runs, ... */
#define GK_TILE_FWD_RUNS 4
#define GK_TILE_BWD_RUNS 8
/* Chunks of a row in a stage, two for each group of 8 runs threads, and of the rows of x and w together. */
#define GK_ROW_CHUNKS(runs) (2 * GK_BLOCK / 8 / (runs))
#define GK_STAGE_CHUNKS(runs) ((8 * (runs) + 32) * GK_ROW_CHUNKS(runs))

/* Stages in local memory. NVIDIA's OpenCL has 48 KiB of it; where copies are not asynchronous, one ahead is enough. */
#ifndef GK_PTX
#define GK_STAGES 2
#define GK_STAGE_WAIT() ((void)0)
#elif defined(GK_MATRIX_LOCAL_KB)
#define GK_STAGES 3
#define GK_STAGE_WAIT() GK_COPY_WAIT(1)
#else
#define GK_STAGES 4
#define GK_STAGE_WAIT() GK_COPY_WAIT(2)
#endif
/* Chunks of local memory: the stages, and in their place, later, the sums of all groups, 32 KiB; backward also those that the cluster exchanges. */
#define GK_SUM_CHUNKS 2048
#define GK_PUT_CHUNKS 512
#define GK_FWD_CHUNKS (GK_STAGES * GK_STAGE_CHUNKS(GK_TILE_FWD_RUNS))
#define GK_BWD_STAGES (GK_STAGES * GK_STAGE_CHUNKS(GK_TILE_BWD_RUNS))
#define GK_BWD_CHUNKS (GK_BWD_STAGES < GK_SUM_CHUNKS ? GK_SUM_CHUNKS : GK_BWD_STAGES)

/* The factors of a tile. Row n of w's part is row first + n % 8 + n / 8 * jump of w, for the rows of the first `gates` runs of 8. */
typedef struct {
    GK_GLOBAL const gk_t* x;
    GK_GLOBAL const gk_t* w;
    gk_i64 terms, begin, end; /* of a row, and the part of them that the block multiplies */
    gk_i64 first, jump;
    int rows, columns; /* that exist of the tile: rows of x, and w's of each run of 8, or of all of them where these follow each other */
} gk_tile;

/* What a thread copies: chunks of two rows of x, then of rows of w, from term k of the first stage on. A row that does not exist is null. */
typedef struct {
    GK_GLOBAL const gk_t* row[4];
    gk_i64 k;
} gk_tile_lane;

GK_FN gk_tile_lane gk_tile_begin(const gk_tile* s, const int runs, const int gates)
{
    const int chunks = GK_ROW_CHUNKS(runs);
    gk_tile_lane l;
    l.k = s->begin + gk_lid() % chunks * GK_W;
    GK_UNROLL for (int i = 0; i < 4; i++) {
        int r = gk_lid() / chunks + i * (GK_BLOCK / chunks), n = r - 8 * runs, column = runs == GK_TILE_BWD_RUNS ? n : n % 8;
        l.row[i] = 0;
        if (r < 8 * runs && r < s->rows) l.row[i] = s->x + r * s->terms;
        if (r >= 8 * runs && n / 8 < gates && column < s->columns) l.row[i] = s->w + (s->first + n % 8 + n / 8 * s->jump) * s->terms;
    }
    return l;
}

/* Queues the copies of a stage to its place in local memory: a tile of x's rows, then one of w's. */
GK_FN void gk_tile_fetch(const gk_tile* s, const gk_tile_lane* l, int stage, const int runs, GK_LOCAL_PTR gk_raw16* tiles)
{
    const int chunks = GK_ROW_CHUNKS(runs), rows = 8 * runs;
    gk_i64 k = l->k + (gk_i64)stage * chunks * GK_W;
    GK_LOCAL_PTR gk_raw16* to = tiles + stage % GK_STAGES * GK_STAGE_CHUNKS(runs);
    GK_UNROLL for (int i = 0; i < GK_STAGE_CHUNKS(runs) / GK_BLOCK; i++) {
        int r = gk_lid() / chunks + i * (GK_BLOCK / chunks), c = gk_lid() % chunks;
        int at = r < rows ? gk_chunk_at(r, c, rows) : rows * chunks + gk_chunk_at(r - rows, c, 32);
        int exists = l->row[i] && k < s->end;
        gk_copy16(to + at, exists ? l->row[i] + k : s->x, exists);
    }
}

/* The thread's column (0 ... 7) and run: neighbours differ in one or the other, so that pairs of lanes read the same chunk. */
GK_FN int gk_tile_column(void) { int l = gk_lid(); return (l & 1) | (l >> 1 & 2) | (l >> 2 & 4); }
GK_FN int gk_tile_run(const int runs) { int l = gk_lid(); return (l >> 1 & 1) | (l >> 2 & 2) | (l >> 3 & (runs - 4)); }

/* acc[i][j] += row run + i runs of x times row column + 8 j of w, over the group's chunks of a stage. */
GK_FN void gk_tile_multiply(GK_LOCAL_PTR const gk_raw16* tile, const int runs, const int gates, gk_f acc[8][4])
{
    const int rows = 8 * runs;
    int column = gk_tile_column(), run = gk_tile_run(runs), first = gk_lid() / (8 * runs) * 2;
    GK_UNROLL for (int c = 0; c < 2; c++) {
        gk_vec w[4];
        GK_UNROLL for (int j = 0; j < 4; j++)
            if (j < gates) w[j] = gk_decode16(tile[rows * GK_ROW_CHUNKS(runs) + gk_chunk_at(8 * j + column, first + c, 32)]);
        GK_UNROLL for (int i = 0; i < 8; i++) {
            gk_vec x = gk_decode16(tile[gk_chunk_at(run + i * runs, first + c, rows)]);
            GK_UNROLL for (int u = 0; u < GK_W; u++)
                GK_UNROLL for (int j = 0; j < 4; j++)
                    if (j < gates) acc[i][j] += x.v[u] * w[j].v[u];
        }
    }
}

/* The products of the tile, by groups: the sums of group g for gate j of the element of thread e lie at sums[(4 g + j) GK_BLOCK + e], forward;
 * backward those for part i of the rows at sums[(8 g + i) GK_BLOCK + gk_tile_place(e)]. */
GK_FN int gk_tile_place(int e) { return e ^ (e >> 2 & 24); }

GK_FN void gk_tile_product(const gk_tile* s, const int runs, const int gates, GK_LOCAL_PTR gk_raw16* tiles)
{
    const int step = GK_ROW_CHUNKS(runs) * GK_W;
    int stages = (int)((s->end - s->begin + step - 1) / step), group = gk_lid() / (8 * runs);
    gk_f acc[8][4];
    gk_tile_lane l = gk_tile_begin(s, runs, gates);
    GK_UNROLL for (int i = 0; i < 8; i++)
        GK_UNROLL for (int j = 0; j < 4; j++) acc[i][j] = GK_R(0.0);
    GK_UNROLL for (int k = 0; k < GK_STAGES - 1; k++) {
        if (k < stages) gk_tile_fetch(s, &l, k, runs, tiles);
        GK_COPY_COMMIT();
    }
    GK_ROLLED for (int k = 0; k < stages; k++) {
        GK_STAGE_WAIT();
        GK_BARRIER();
        if (k + GK_STAGES - 1 < stages) gk_tile_fetch(s, &l, k + GK_STAGES - 1, runs, tiles);
        GK_COPY_COMMIT();
        gk_tile_multiply(tiles + k % GK_STAGES * GK_STAGE_CHUNKS(runs), runs, gates, acc);
    }
    GK_BARRIER();
    GK_LOCAL_PTR gk_f* sums = (GK_LOCAL_PTR gk_f*)tiles;
    int column = gk_tile_column(), run = gk_tile_run(runs);
    GK_UNROLL for (int i = 0; i < 8; i++) {
        GK_UNROLL for (int j = 0; j < 4; j++) {
            int at = (4 * group + j) * GK_BLOCK + (i * runs + run) * 8 + column;
            if (runs == GK_TILE_BWD_RUNS) at = (8 * group + i) * GK_BLOCK + gk_tile_place(run * 32 + j * 8 + column);
            if (j < gates) sums[at] = acc[i][j];
        }
    }
    GK_BARRIER();
}

/* Rows that exist of `most` from b0 on. */
GK_FN int gk_tile_rows(gk_i64 n, gk_i64 hidden, gk_i64 b0, const int most)
{
    gk_i64 left = gk_row_of(n, hidden) - b0;
    return left < most ? (int)left : most;
}

/* Forward: u[j] = the product of the thread's element with gate j. */
GK_FN void gk_tile_forward(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* w, gk_i64 hidden, int rows, const int gates,
                           GK_LOCAL_PTR gk_raw16* tiles, gk_f u[4])
{
    gk_tile s;
    s.x = x; s.w = w; s.terms = hidden; s.begin = 0; s.end = hidden;
    s.first = (gk_i64)gk_bid(0) * 8; s.jump = hidden;
    s.rows = rows; s.columns = hidden - s.first < 8 ? (int)(hidden - s.first) : 8;
    gk_tile_product(&s, GK_TILE_FWD_RUNS, gates, tiles);
    GK_LOCAL_PTR const gk_f* sums = (GK_LOCAL_PTR const gk_f*)tiles;
    GK_UNROLL for (int j = 0; j < 4; j++) {
        u[j] = GK_R(0.0);
        GK_UNROLL for (int g = 0; g < 8; g++)
            if (j < gates) u[j] += sums[(4 * g + j) * GK_BLOCK + gk_lid()];
    }
}

// Units: FLOATS
GK_KERNEL(lstm_tiled)(GK_IN(gk_t, w), GK_IN(gk_f, a), GK_IN(gk_t, bias), GK_IN(gk_t, h), GK_IN(gk_t, c), GK_IN(int, lengths), GK_OUT(gk_t, h_next),
                      GK_OUT(gk_t, c_next), GK_OUT(gk_t, y), GK_OUT(gk_t, gates), GK_OUT(gk_t, h_last), GK_OUT(gk_t, c_last), gk_i64 n, gk_i64 hidden,
                      gk_i64 row_a, gk_i64 row_y, int t)
{
    GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_f, a); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, h); GK_BIND_IN(gk_t, c); GK_BIND_IN(int, lengths);
    GK_BIND_OUT(gk_t, h_next); GK_BIND_OUT(gk_t, c_next); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, gates); GK_BIND_OUT(gk_t, h_last);
    GK_BIND_OUT(gk_t, c_last);
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_FWD_CHUNKS);
    gk_i64 j = (gk_i64)gk_bid(0) * 8 + gk_lid() % 8, b0 = (gk_i64)gk_bid(1) * 32, b = b0 + gk_lid() / 8;
    int rows = gk_tile_rows(n, hidden, b0, 32), exists = j < hidden && b < b0 + rows;
    /* On its way while the block multiplies. */
    gk_i64 e = exists ? b * hidden + j : 0;
    gk_lstm_in in = gk_lstm_read(e, exists ? b : 0, exists ? j : 0, a, bias, c, lengths, hidden, row_a, t);
    gk_f u[4];
    gk_tile_forward(h + b0 * hidden, w, hidden, rows, 4, tiles, u);
    gk_lstm_to to = {h_next, c_next, y, gates, h_last, c_last, hidden, row_y};
    if (exists) gk_lstm_write(e, b, j, gk_lstm_make(e, u, in, h), to);
}

GK_KERNEL(gru_tiled)(GK_IN(gk_t, w), GK_IN(gk_f, a), GK_IN(gk_t, bias), GK_IN(gk_t, h), GK_IN(int, lengths), GK_OUT(gk_t, h_next), GK_OUT(gk_t, y),
                     GK_OUT(gk_t, save_r), GK_OUT(gk_t, save_z), GK_OUT(gk_t, save_n), GK_OUT(gk_t, save_u), GK_OUT(gk_t, h_last), gk_i64 n,
                     gk_i64 hidden, gk_i64 row_a, gk_i64 row_y, int t)
{
    GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_f, a); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, h); GK_BIND_IN(int, lengths);
    GK_BIND_OUT(gk_t, h_next); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, save_r); GK_BIND_OUT(gk_t, save_z); GK_BIND_OUT(gk_t, save_n);
    GK_BIND_OUT(gk_t, save_u); GK_BIND_OUT(gk_t, h_last);
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_FWD_CHUNKS);
    gk_i64 j = (gk_i64)gk_bid(0) * 8 + gk_lid() % 8, b0 = (gk_i64)gk_bid(1) * 32, b = b0 + gk_lid() / 8;
    int rows = gk_tile_rows(n, hidden, b0, 32), exists = j < hidden && b < b0 + rows;
    gk_i64 e = exists ? b * hidden + j : 0;
    gk_gru_in in = gk_gru_read(e, exists ? b : 0, exists ? j : 0, a, bias, h, lengths, hidden, row_a, t);
    gk_f u[4];
    gk_tile_forward(h + b0 * hidden, w, hidden, rows, 3, tiles, u);
    gk_gru_to to = {h_next, y, save_r, save_z, save_n, save_u, h_last, row_y};
    if (exists) gk_gru_write(e, b, j, gk_gru_make(u, in, 0), to);
}

/* ---- backward of a step that is not the first one processed ----------------------------------------------------------------
 * `dz_next` are the gradients of the gates of the step behind, `w` the transposed weights [hidden, terms]. */

/* Parts of 8 rows that a block finishes. */
#define GK_TILE_PARTS (8 / GK_CLUSTER)

/* The element of a thread in part number m of those of the block; a thread without one names the first element. */
typedef struct { gk_i64 b, j, e; int exists; } gk_tile_element;

GK_FN gk_tile_element gk_tile_at(int m, gk_i64 n, gk_i64 hidden)
{
    gk_tile_element r;
    int part = m * GK_CLUSTER + gk_bid(0) % GK_CLUSTER;
    r.b = (gk_i64)gk_bid(1) * 64 + part * 8 + gk_lid() / 32;
    r.j = (gk_i64)(gk_bid(0) / GK_CLUSTER) * 32 + gk_lid() % 32;
    r.exists = r.j < hidden && r.b < gk_row_of(n, hidden);
    if (!r.exists) r.b = r.j = 0;
    r.e = r.b * hidden + r.j;
    return r;
}

/* up[m] = the product of the thread's element of part m. The cluster has been arrived at. */
GK_FN void gk_tile_backward(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* w, gk_i64 n, gk_i64 hidden, gk_i64 terms,
                            GK_LOCAL_PTR gk_raw16* tiles, gk_f up[GK_TILE_PARTS])
{
    const int step = GK_ROW_CHUNKS(GK_TILE_BWD_RUNS) * GK_W;
    int block = gk_bid(0) % GK_CLUSTER, lid = gk_lid();
    gk_i64 b0 = (gk_i64)gk_bid(1) * 64, each = ((terms + step - 1) / step + GK_CLUSTER - 1) / GK_CLUSTER * step;
    gk_tile s;
    s.x = x + b0 * terms; s.w = w; s.terms = terms;
    s.begin = block * each < terms ? block * each : terms;
    s.end = s.begin + each < terms ? s.begin + each : terms;
    s.first = (gk_i64)(gk_bid(0) / GK_CLUSTER) * 32; s.jump = 8;
    s.rows = gk_tile_rows(n, hidden, b0, 64); s.columns = hidden - s.first < 32 ? (int)(hidden - s.first) : 32;
    gk_tile_product(&s, GK_TILE_BWD_RUNS, 4, tiles);
    GK_LOCAL_PTR const gk_f* sums = (GK_LOCAL_PTR const gk_f*)tiles;
    GK_LOCAL_PTR gk_f* put = (GK_LOCAL_PTR gk_f*)(tiles + GK_BWD_CHUNKS);
    GK_CLUSTER_WAIT();
    GK_UNROLL for (int i = 0; i < 8; i++) {
        gk_f v = GK_R(0.0);
        GK_UNROLL for (int g = 0; g < 4; g++) v += sums[(8 * g + i) * GK_BLOCK + gk_tile_place(lid)];
        gk_cluster_put(put + (i / GK_CLUSTER * GK_CLUSTER + block) * GK_BLOCK + lid, v, i % GK_CLUSTER);
    }
    GK_CLUSTER_BARRIER();
    GK_UNROLL for (int m = 0; m < GK_TILE_PARTS; m++) {
        up[m] = GK_R(0.0);
        GK_UNROLL for (int g = 0; g < GK_CLUSTER; g++) up[m] += put[(m * GK_CLUSTER + g) * GK_BLOCK + lid];
    }
}

#undef GK_CLUSTERING
#define GK_CLUSTERING GK_IN_CLUSTERS
GK_KERNEL(lstm_tiled_bwd)(GK_IN(gk_t, w), GK_IN(gk_t, dz_next), GK_IN(gk_t, gates), GK_IN(gk_t, c), GK_IN(gk_t, c_next), GK_IN(gk_t, dy),
                          GK_IN(int, lengths), GK_OUT(gk_f, dh), GK_OUT(gk_f, dc), GK_OUT(gk_t, dz), GK_OUT(gk_t, dx), gk_i64 n, gk_i64 hidden,
                          gk_i64 row_y, gk_i64 row_x, int t, int keep)
{
    GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, dz_next); GK_BIND_IN(gk_t, gates); GK_BIND_IN(gk_t, c); GK_BIND_IN(gk_t, c_next); GK_BIND_IN(gk_t, dy);
    GK_BIND_IN(int, lengths); GK_BIND_OUT(gk_f, dh); GK_BIND_OUT(gk_f, dc); GK_BIND_OUT(gk_t, dz); GK_BIND_OUT(gk_t, dx);
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_BWD_CHUNKS + GK_PUT_CHUNKS);
    gk_lstm_bwd_in in[GK_TILE_PARTS];
    gk_f up[GK_TILE_PARTS], more[GK_TILE_PARTS], s[GK_TILE_PARTS];
    GK_CLUSTER_ARRIVE();
    GK_UNROLL for (int m = 0; m < GK_TILE_PARTS; m++) {
        gk_tile_element p = gk_tile_at(m, n, hidden);
        in[m] = gk_lstm_bwd_read(p.e, p.b, p.j, gates, c, c_next, dy, lengths, hidden, row_y, t);
        more[m] = keep ? dh[p.e] : GK_R(0.0);
        s[m] = dc[p.e];
    }
    gk_tile_backward(dz_next, w, n, hidden, 4 * hidden, tiles, up);
    gk_lstm_grads_to to = {dh, dc, dz, dx, hidden, row_x, keep};
    GK_UNROLL for (int m = 0; m < GK_TILE_PARTS; m++) {
        gk_tile_element p = gk_tile_at(m, n, hidden);
        if (p.exists) gk_lstm_write_grads(p.e, p.b, p.j, gk_lstm_make_grads(up[m] + more[m], s[m], in[m]), to);
    }
}

GK_KERNEL(gru_tiled_bwd)(GK_IN(gk_t, w), GK_IN(gk_t, dz_next), GK_IN(gk_t, r), GK_IN(gk_t, z), GK_IN(gk_t, m), GK_IN(gk_t, un), GK_IN(gk_t, h),
                         GK_IN(gk_t, dy), GK_IN(int, lengths), GK_OUT(gk_f, dh), GK_OUT(gk_t, dz), GK_OUT(gk_t, dx), gk_i64 n, gk_i64 hidden,
                         gk_i64 row_y, gk_i64 row_x, int t)
{
    GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, dz_next); GK_BIND_IN(gk_t, r); GK_BIND_IN(gk_t, z); GK_BIND_IN(gk_t, m); GK_BIND_IN(gk_t, un);
    GK_BIND_IN(gk_t, h);
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(int, lengths); GK_BIND_OUT(gk_f, dh); GK_BIND_OUT(gk_t, dz); GK_BIND_OUT(gk_t, dx);
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_BWD_CHUNKS + GK_PUT_CHUNKS);
    gk_gru_bwd_in in[GK_TILE_PARTS];
    gk_f up[GK_TILE_PARTS], more[GK_TILE_PARTS];
    GK_CLUSTER_ARRIVE();
    GK_UNROLL for (int i = 0; i < GK_TILE_PARTS; i++) {
        gk_tile_element p = gk_tile_at(i, n, hidden);
        in[i] = gk_gru_bwd_read(p.e, p.b, p.j, r, z, m, un, h, dy, lengths, row_y, t);
        more[i] = dh[p.e];
    }
    gk_tile_backward(dz_next, w, n, hidden, 3 * hidden, tiles, up);
    gk_gru_grads_to to = {dh, dz, dx, hidden, row_x, 0};
    GK_UNROLL for (int i = 0; i < GK_TILE_PARTS; i++) {
        gk_tile_element p = gk_tile_at(i, n, hidden);
        if (p.exists) gk_gru_write_grads(p.e, p.b, p.j, gk_gru_make_grads(up[i] + more[i], in[i]), to);
    }
}
#undef GK_CLUSTERING
#define GK_CLUSTERING
#endif
