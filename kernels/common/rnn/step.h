/* One element of a recurrent step, shared by rnn/rnn.c, where the products are ready, and rnn/fused.c and rnn/tiled.c, where they are made in the
 * same kernel. Element e = (b, j) of a state [B, H]; the names are those of rnn/rnn.c. What a step reads besides its products is read by a function
 * of its own, so that a kernel may do so before it multiplies. */
#include "gates.h"

GK_FN gk_i64 gk_row_of(gk_i64 e, gk_i64 hidden)
{
    if (e <= 0x7fffffff && hidden <= 0x7fffffff) return (gk_i64)((gk_u32)e / (gk_u32)hidden);
    return e / hidden;
}

/* An element of row i of a vector that may be absent. */
GK_FN gk_f gk_or_zero(GK_GLOBAL const gk_t* p, gk_i64 i)
{
    gk_f v = GK_R(0.0);
    if (p) v = gk_load(p, i);
    return v;
}

GK_FN int gk_is_live(GK_GLOBAL const int* lengths, gk_i64 row, int t)
{
    int live = 1;
    if (lengths) live = t < lengths[row];
    return live;
}

/* What the step of an LSTM reads for an element besides its products. */
typedef struct { gk_f a[4], bias[4], c; int live; } gk_lstm_in;

GK_FN gk_lstm_in gk_lstm_read(gk_i64 e, gk_i64 b, gk_i64 j, GK_GLOBAL const gk_f* a, GK_GLOBAL const gk_t* bias, GK_GLOBAL const gk_t* c,
                              GK_GLOBAL const int* lengths, gk_i64 hidden, gk_i64 row_a, int t)
{
    gk_lstm_in in;
    GK_UNROLL for (int q = 0; q < 4; q++) {
        in.a[q] = a[b * row_a + q * hidden + j];
        in.bias[q] = gk_or_zero(bias, q * hidden + j);
    }
    in.c = gk_load(c, e);
    in.live = gk_is_live(lengths, b, t);
    return in;
}

/* u: the four products of the element with W_hh. */
GK_FN void gk_lstm_element(gk_i64 e, gk_i64 b, gk_i64 j, const gk_f u[4], gk_lstm_in in, GK_GLOBAL const gk_t* h, GK_GLOBAL gk_t* h_next,
                           GK_GLOBAL gk_t* c_next, GK_GLOBAL gk_t* y, GK_GLOBAL gk_t* gates, GK_GLOBAL gk_t* h_last, GK_GLOBAL gk_t* c_last,
                           gk_i64 hidden, gk_i64 row_y)
{
    gk_f z[4], out = GK_R(0.0), h_new, c_new = in.c;
    if (in.live) {
        GK_UNROLL for (int q = 0; q < 4; q++) z[q] = in.a[q] + u[q] + in.bias[q];
        h_new = gk_lstm(z, &c_new, GK_R(0.0), GK_R(0.0), GK_R(0.0));
        out = h_new;
    } else {
        GK_UNROLL for (int q = 0; q < 4; q++) z[q] = GK_R(0.0);
        h_new = gk_load(h, e);
    }
    gk_store(h_next, e, h_new);
    gk_store(c_next, e, c_new);
    gk_store(y, b * row_y + j, out);
    if (gates) {
        GK_UNROLL for (int q = 0; q < 4; q++) gk_store(gates, (4 * b + q) * hidden + j, z[q]);
    }
    if (h_last) gk_store(h_last, e, h_new);
    if (c_last) gk_store(c_last, e, c_new);
}

/* The same for a GRU. */
typedef struct { gk_f a[3], bias[3], h; int live; } gk_gru_in;

GK_FN gk_gru_in gk_gru_read(gk_i64 e, gk_i64 b, gk_i64 j, GK_GLOBAL const gk_f* a, GK_GLOBAL const gk_t* bias, GK_GLOBAL const gk_t* h,
                            GK_GLOBAL const int* lengths, gk_i64 hidden, gk_i64 row_a, int t)
{
    gk_gru_in in;
    GK_UNROLL for (int q = 0; q < 3; q++) {
        in.a[q] = a[b * row_a + q * hidden + j];
        in.bias[q] = gk_or_zero(bias, q * hidden + j);
    }
    in.h = gk_load(h, e);
    in.live = gk_is_live(lengths, b, t);
    return in;
}

/* u: the three products of the element; before: the last one is that of r h. */
GK_FN void gk_gru_element(gk_i64 e, gk_i64 b, gk_i64 j, const gk_f u[3], gk_gru_in in, GK_GLOBAL gk_t* h_next, GK_GLOBAL gk_t* y,
                          GK_GLOBAL gk_t* save_r, GK_GLOBAL gk_t* save_z, GK_GLOBAL gk_t* save_n, GK_GLOBAL gk_t* save_u, GK_GLOBAL gk_t* h_last,
                          gk_i64 row_y, int before)
{
    gk_f r = GK_R(0.0), z = GK_R(0.0), m = GK_R(0.0), w = GK_R(0.0), out = GK_R(0.0), h_new = in.h;
    if (in.live) {
        r = gk_gate(in.a[0] + u[0] + in.bias[0]);
        z = gk_gate(in.a[1] + u[1] + in.bias[1]);
        w = u[2] + in.bias[2];
        m = gk_tanh(in.a[2] + (before ? w : r * w));
        h_new = (GK_R(1.0) - z) * m + z * h_new;
        out = h_new;
    }
    gk_store(h_next, e, h_new);
    gk_store(y, b * row_y + j, out);
    if (save_r) gk_store(save_r, e, r);
    if (save_z) gk_store(save_z, e, z);
    if (save_n) gk_store(save_n, e, m);
    if (save_u) gk_store(save_u, e, w);
    if (h_last) gk_store(h_last, e, h_new);
}

GK_FN gk_f gk_arriving(GK_GLOBAL const gk_f* carried, GK_GLOBAL const gk_t* last, gk_i64 e, int first)
{
    gk_f v;
    if (first) v = gk_or_zero(last, e);
    else v = carried[e];
    return v;
}

/* What the gradient of an LSTM's step reads for an element besides the gradients of the states behind it: gates, both cell states and dy. */
typedef struct { gk_f g[4], c, next, dy; int live; } gk_lstm_bwd_in;

GK_FN gk_lstm_bwd_in gk_lstm_bwd_read(gk_i64 e, gk_i64 b, gk_i64 j, GK_GLOBAL const gk_t* gates, GK_GLOBAL const gk_t* c,
                                      GK_GLOBAL const gk_t* c_next, GK_GLOBAL const gk_t* dy, GK_GLOBAL const int* lengths, gk_i64 hidden,
                                      gk_i64 row_y, int t)
{
    gk_lstm_bwd_in in;
    GK_UNROLL for (int q = 0; q < 4; q++) in.g[q] = gk_load(gates, (4 * b + q) * hidden + j);
    in.c = gk_load(c, e);
    in.next = gk_load(c_next, e);
    in.dy = gk_or_zero(dy, b * row_y + j);
    in.live = gk_is_live(lengths, b, t);
    return in;
}

/* up, s: gradients of the states behind the step, without dy. */
GK_FN void gk_lstm_element_bwd(gk_i64 e, gk_i64 b, gk_i64 j, gk_f up, gk_f s, gk_lstm_bwd_in in, GK_GLOBAL gk_f* dh, GK_GLOBAL gk_f* dc,
                               GK_GLOBAL gk_t* dz, GK_GLOBAL gk_t* dx, gk_i64 hidden, gk_i64 row_x, int keep)
{
    gk_f d[4];
    GK_UNROLL for (int q = 0; q < 4; q++) d[q] = GK_R(0.0);
    if (in.live) {
        s = gk_lstm_grad(in.g, in.c, in.next, up + in.dy, s, GK_R(0.0), d);
        up = GK_R(0.0);
    }
    dc[e] = s;
    if (keep) dh[e] = up;
    GK_UNROLL for (int q = 0; q < 4; q++) {
        gk_store(dz, (4 * b + q) * hidden + j, d[q]);
        if (dx) gk_store(dx, b * row_x + q * hidden + j, d[q]);
    }
}

/* The same for a GRU: r, z, n, the recurrent part of n, the state before. */
typedef struct { gk_f r, z, m, un, h, dy; int live; } gk_gru_bwd_in;

GK_FN gk_gru_bwd_in gk_gru_bwd_read(gk_i64 e, gk_i64 b, gk_i64 j, GK_GLOBAL const gk_t* r, GK_GLOBAL const gk_t* z, GK_GLOBAL const gk_t* m,
                                    GK_GLOBAL const gk_t* un, GK_GLOBAL const gk_t* h, GK_GLOBAL const gk_t* dy, GK_GLOBAL const int* lengths,
                                    gk_i64 row_y, int t)
{
    gk_gru_bwd_in in;
    in.r = gk_load(r, e);
    in.z = gk_load(z, e);
    in.m = gk_load(m, e);
    in.un = gk_load(un, e);
    in.h = gk_load(h, e);
    in.dy = gk_or_zero(dy, b * row_y + j);
    in.live = gk_is_live(lengths, b, t);
    return in;
}

GK_FN void gk_gru_element_bwd(gk_i64 e, gk_i64 b, gk_i64 j, gk_f up, gk_gru_bwd_in in, GK_GLOBAL gk_f* dh, GK_GLOBAL gk_t* dz, GK_GLOBAL gk_t* dx,
                              gk_i64 hidden, gk_i64 row_x, int before)
{
    gk_f d[4];
    GK_UNROLL for (int q = 0; q < 4; q++) d[q] = GK_R(0.0);
    if (in.live) up = gk_gru_grad(in.r, in.z, in.m, in.un, in.h, up + in.dy, d);
    dh[e] = up;
    GK_UNROLL for (int q = 0; q < 3; q++) {
        if (q == 0 && before) continue;
        gk_store(dz, (3 * b + q) * hidden + j, q == 2 && !before ? d[3] : d[q]);
        if (dx) gk_store(dx, b * row_x + q * hidden + j, d[q]);
    }
}
