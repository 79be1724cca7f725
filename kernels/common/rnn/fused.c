/* A recurrent step in one kernel: the products with the recurrent weights, and what lies behind them. For small batches and states, where a step
 * takes no longer than a launch. Names, shapes and arithmetic are those of rnn/rnn.c.
 *
 * A block takes GK_UNITS columns of a state and GK_RNN_ROWS rows of the batch. A run of 32 threads makes the products of one column: each sums
 * every 32nd term, then the run adds up. Deterministic. Launch: axis 0 = columns / GK_UNITS, axis 1 = rows / GK_RNN_ROWS.
 */
#if GK_IS_FLOAT && GK_DTYPE != GK_F64
#include "step.h"

/* Weights stay in registers; one block is enough. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 1

#define GK_RNN_LANES 32
#define GK_UNITS (GK_BLOCK / GK_RNN_LANES)
#define GK_RNN_ROWS 8
/* Terms that are staged at a time, and per thread. */
#define GK_STAGE 256
#define GK_RNN_EACH (GK_STAGE / GK_RNN_LANES)

/* out[q] = sum over k of x[row, k] * w[q * step + k] for q < count, in the thread of the run whose number is the row's within the block; `rows`
 * rows of x are there, `live`: this run has weights. */
GK_FN void gk_products(GK_GLOBAL const gk_t* x, gk_i64 terms, int rows, GK_GLOBAL const gk_t* w, gk_i64 step, int count, int live,
                       GK_LOCAL_PTR gk_f* stage, GK_LOCAL_PTR gk_f* tmp, gk_f out[4])
{
    int t = gk_lid(), lane = t % GK_RNN_LANES;
    gk_f acc[4][GK_RNN_ROWS], v[4][GK_RNN_EACH];
    GK_UNROLL for (int q = 0; q < 4; q++)
        GK_UNROLL for (int r = 0; r < GK_RNN_ROWS; r++) acc[q][r] = GK_R(0.0);
    for (gk_i64 k0 = 0; k0 < terms; k0 += GK_STAGE) {
        int left = terms - k0 < GK_STAGE ? (int)(terms - k0) : GK_STAGE;
        /* The weights are on their way while the rows are staged. */
        GK_UNROLL for (int i = 0; i < GK_RNN_EACH; i++) {
            GK_UNROLL for (int q = 0; q < 4; q++) {
                v[q][i] = GK_R(0.0);
                if (q < count && live && i * GK_RNN_LANES + lane < left) v[q][i] = gk_load(w, q * step + k0 + i * GK_RNN_LANES + lane);
            }
        }
        GK_UNROLL for (int r = 0; r < GK_RNN_ROWS; r++) {
            gk_f s = GK_R(0.0);
            if (r < rows && t < left) s = gk_load(x, r * terms + k0 + t);
            stage[r * GK_STAGE + t] = s;
        }
        GK_BARRIER();
        GK_UNROLL for (int i = 0; i < GK_RNN_EACH; i++) {
            GK_UNROLL for (int r = 0; r < GK_RNN_ROWS; r++) {
                gk_f s = stage[r * GK_STAGE + i * GK_RNN_LANES + lane];
                GK_UNROLL for (int q = 0; q < 4; q++) {
                    if (q < count) acc[q][r] += v[q][i] * s;
                }
            }
        }
        GK_BARRIER();
    }
    GK_UNROLL for (int q = 0; q < 4; q++) {
        out[q] = GK_R(0.0);
        if (q < count) {
            GK_UNROLL for (int r = 0; r < GK_RNN_ROWS; r++) {
                gk_f s = gk_group_sum(acc[q][r], tmp, GK_RNN_LANES);
                if (lane == r) out[q] = s;
            }
        }
    }
}

/* Rows of the batch from b0 on, for a block of GK_RNN_ROWS. */
GK_FN int gk_rows_left(gk_i64 n, gk_i64 hidden, gk_i64 b0)
{
    gk_i64 left = n / hidden - b0;
    return left < GK_RNN_ROWS ? (int)left : GK_RNN_ROWS;
}

// Units: FLOATS
GK_KERNEL(lstm_fused)(GK_IN(gk_t, w), GK_IN(gk_f, a), GK_IN(gk_t, bias), GK_IN(gk_t, h), GK_IN(gk_t, c), GK_IN(int, lengths), GK_OUT(gk_t, h_next),
                      GK_OUT(gk_t, c_next), GK_OUT(gk_t, y), GK_OUT(gk_t, gates), GK_OUT(gk_t, h_last), GK_OUT(gk_t, c_last), gk_i64 n, gk_i64 hidden,
                      gk_i64 row_a, gk_i64 row_y, int t)
{
    GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_f, a); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, h); GK_BIND_IN(gk_t, c); GK_BIND_IN(int, lengths);
    GK_BIND_OUT(gk_t, h_next); GK_BIND_OUT(gk_t, c_next); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, gates); GK_BIND_OUT(gk_t, h_last);
    GK_BIND_OUT(gk_t, c_last);
    GK_LOCAL gk_f stage[GK_RNN_ROWS * GK_STAGE];
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_i64 j = (gk_i64)gk_bid(0) * GK_UNITS + gk_lid() / GK_RNN_LANES, b0 = (gk_i64)gk_bid(1) * GK_RNN_ROWS, b = b0 + gk_lid() % GK_RNN_LANES;
    int rows = gk_rows_left(n, hidden, b0);
    gk_f u[4];
    gk_products(h + b0 * hidden, hidden, rows, w + j * hidden, hidden * hidden, 4, j < hidden, stage, tmp, u);
    if (j < hidden && b < b0 + rows) {
        gk_i64 e = b * hidden + j;
        gk_lstm_in in = gk_lstm_read(e, b, j, a, bias, c, lengths, hidden, row_a, t);
        gk_lstm_to to = {h_next, c_next, y, gates, h_last, c_last, hidden, row_y};
        gk_lstm_write(e, b, j, gk_lstm_make(e, u, in, h), to);
    }
}

GK_KERNEL(gru_fused)(GK_IN(gk_t, w), GK_IN(gk_f, a), GK_IN(gk_t, bias), GK_IN(gk_t, h), GK_IN(int, lengths), GK_OUT(gk_t, h_next), GK_OUT(gk_t, y),
                     GK_OUT(gk_t, save_r), GK_OUT(gk_t, save_z), GK_OUT(gk_t, save_n), GK_OUT(gk_t, save_u), GK_OUT(gk_t, h_last), gk_i64 n,
                     gk_i64 hidden, gk_i64 row_a, gk_i64 row_y, int t)
{
    GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_f, a); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, h); GK_BIND_IN(int, lengths);
    GK_BIND_OUT(gk_t, h_next); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, save_r); GK_BIND_OUT(gk_t, save_z); GK_BIND_OUT(gk_t, save_n);
    GK_BIND_OUT(gk_t, save_u); GK_BIND_OUT(gk_t, h_last);
    GK_LOCAL gk_f stage[GK_RNN_ROWS * GK_STAGE];
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_i64 j = (gk_i64)gk_bid(0) * GK_UNITS + gk_lid() / GK_RNN_LANES, b0 = (gk_i64)gk_bid(1) * GK_RNN_ROWS, b = b0 + gk_lid() % GK_RNN_LANES;
    int rows = gk_rows_left(n, hidden, b0);
    gk_f u[4];
    gk_products(h + b0 * hidden, hidden, rows, w + j * hidden, hidden * hidden, 3, j < hidden, stage, tmp, u);
    if (j < hidden && b < b0 + rows) {
        gk_i64 e = b * hidden + j;
        gk_gru_in in = gk_gru_read(e, b, j, a, bias, h, lengths, hidden, row_a, t);
        gk_gru_to to = {h_next, y, save_r, save_z, save_n, save_u, h_last, row_y};
        gk_gru_write(e, b, j, gk_gru_make(u, in, 0), to);
    }
}

/* Backward of a step that is not the first one processed: `dz_next` are the gradients of the gates of the step behind, `w` the transposed weights
 * [hidden, 4 hidden]. */
GK_KERNEL(lstm_fused_bwd)(GK_IN(gk_t, w), GK_IN(gk_t, dz_next), GK_IN(gk_t, gates), GK_IN(gk_t, c), GK_IN(gk_t, c_next), GK_IN(gk_t, dy),
                          GK_IN(int, lengths), GK_OUT(gk_f, dh), GK_OUT(gk_f, dc), GK_OUT(gk_t, dz), GK_OUT(gk_t, dx), gk_i64 n, gk_i64 hidden,
                          gk_i64 row_y, gk_i64 row_x, int t, int keep)
{
    GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, dz_next); GK_BIND_IN(gk_t, gates); GK_BIND_IN(gk_t, c); GK_BIND_IN(gk_t, c_next); GK_BIND_IN(gk_t, dy);
    GK_BIND_IN(int, lengths); GK_BIND_OUT(gk_f, dh); GK_BIND_OUT(gk_f, dc); GK_BIND_OUT(gk_t, dz); GK_BIND_OUT(gk_t, dx);
    GK_LOCAL gk_f stage[GK_RNN_ROWS * GK_STAGE];
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_i64 j = (gk_i64)gk_bid(0) * GK_UNITS + gk_lid() / GK_RNN_LANES, b0 = (gk_i64)gk_bid(1) * GK_RNN_ROWS, b = b0 + gk_lid() % GK_RNN_LANES;
    int rows = gk_rows_left(n, hidden, b0);
    gk_f up[4];
    gk_products(dz_next + b0 * 4 * hidden, 4 * hidden, rows, w + j * 4 * hidden, 0, 1, j < hidden, stage, tmp, up);
    if (j < hidden && b < b0 + rows) {
        gk_i64 e = b * hidden + j;
        if (keep) up[0] += dh[e];
        gk_lstm_bwd_in in = gk_lstm_bwd_read(e, b, j, gates, c, c_next, dy, lengths, hidden, row_y, t);
        gk_lstm_grads_to to = {dh, dc, dz, dx, hidden, row_x, keep};
        gk_lstm_write_grads(e, b, j, gk_lstm_make_grads(up[0], dc[e], in), to);
    }
}

/* The same with `w` [hidden, 3 hidden]. */
GK_KERNEL(gru_fused_bwd)(GK_IN(gk_t, w), GK_IN(gk_t, dz_next), GK_IN(gk_t, r), GK_IN(gk_t, z), GK_IN(gk_t, m), GK_IN(gk_t, un), GK_IN(gk_t, h),
                         GK_IN(gk_t, dy), GK_IN(int, lengths), GK_OUT(gk_f, dh), GK_OUT(gk_t, dz), GK_OUT(gk_t, dx), gk_i64 n, gk_i64 hidden,
                         gk_i64 row_y, gk_i64 row_x, int t)
{
    GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, dz_next); GK_BIND_IN(gk_t, r); GK_BIND_IN(gk_t, z); GK_BIND_IN(gk_t, m); GK_BIND_IN(gk_t, un);
    GK_BIND_IN(gk_t, h);
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(int, lengths); GK_BIND_OUT(gk_f, dh); GK_BIND_OUT(gk_t, dz); GK_BIND_OUT(gk_t, dx);
    GK_LOCAL gk_f stage[GK_RNN_ROWS * GK_STAGE];
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_i64 j = (gk_i64)gk_bid(0) * GK_UNITS + gk_lid() / GK_RNN_LANES, b0 = (gk_i64)gk_bid(1) * GK_RNN_ROWS, b = b0 + gk_lid() % GK_RNN_LANES;
    int rows = gk_rows_left(n, hidden, b0);
    gk_f up[4];
    gk_products(dz_next + b0 * 3 * hidden, 3 * hidden, rows, w + j * 3 * hidden, 0, 1, j < hidden, stage, tmp, up);
    if (j < hidden && b < b0 + rows) {
        gk_i64 e = b * hidden + j;
        gk_gru_bwd_in in = gk_gru_bwd_read(e, b, j, r, z, m, un, h, dy, lengths, row_y, t);
        gk_gru_grads_to to = {dh, dz, dx, hidden, row_x, 0};
        gk_gru_write_grads(e, b, j, gk_gru_make_grads(up[0] + dh[e], in), to);
    }
}
#endif
