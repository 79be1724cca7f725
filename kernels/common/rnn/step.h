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

/* What it makes: gates, output, states; and where that goes. */
typedef struct { gk_f z[4], out, h, c; } gk_lstm_out;
typedef struct { GK_GLOBAL gk_t *h_next, *c_next, *y, *gates, *h_last, *c_last; gk_i64 hidden, row_y; } gk_lstm_to;

/* u: the four products of the element with W_hh. */
GK_FN gk_lstm_out gk_lstm_make(gk_i64 e, const gk_f u[4], gk_lstm_in in, GK_GLOBAL const gk_t* h)
{
    gk_lstm_out o;
    o.out = GK_R(0.0);
    o.c = in.c;
    if (in.live) {
        GK_UNROLL for (int q = 0; q < 4; q++) o.z[q] = in.a[q] + u[q] + in.bias[q];
        o.h = gk_lstm(o.z, &o.c, GK_R(0.0), GK_R(0.0), GK_R(0.0));
        o.out = o.h;
    } else {
        GK_UNROLL for (int q = 0; q < 4; q++) o.z[q] = GK_R(0.0);
        o.h = gk_load(h, e);
    }
    return o;
}

GK_FN void gk_lstm_write(gk_i64 e, gk_i64 b, gk_i64 j, gk_lstm_out o, gk_lstm_to to)
{
    gk_store(to.h_next, e, o.h);
    gk_store(to.c_next, e, o.c);
    gk_store(to.y, b * to.row_y + j, o.out);
    if (to.gates) {
        GK_UNROLL for (int q = 0; q < 4; q++) gk_store(to.gates, (4 * b + q) * to.hidden + j, o.z[q]);
    }
    if (to.h_last) gk_store(to.h_last, e, o.h);
    if (to.c_last) gk_store(to.c_last, e, o.c);
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

typedef struct { gk_f r, z, m, w, out, h; } gk_gru_out;
typedef struct { GK_GLOBAL gk_t *h_next, *y, *save_r, *save_z, *save_n, *save_u, *h_last; gk_i64 row_y; } gk_gru_to;

/* u: the three products of the element; before: the last one is that of r h. */
GK_FN gk_gru_out gk_gru_make(const gk_f u[3], gk_gru_in in, int before)
{
    gk_gru_out o;
    o.r = GK_R(0.0); o.z = GK_R(0.0); o.m = GK_R(0.0); o.w = GK_R(0.0); o.out = GK_R(0.0); o.h = in.h;
    if (in.live) {
        o.r = gk_gate(in.a[0] + u[0] + in.bias[0]);
        o.z = gk_gate(in.a[1] + u[1] + in.bias[1]);
        o.w = u[2] + in.bias[2];
        o.m = gk_tanh(in.a[2] + (before ? o.w : o.r * o.w));
        o.h = (GK_R(1.0) - o.z) * o.m + o.z * o.h;
        o.out = o.h;
    }
    return o;
}

GK_FN void gk_gru_write(gk_i64 e, gk_i64 b, gk_i64 j, gk_gru_out o, gk_gru_to to)
{
    gk_store(to.h_next, e, o.h);
    gk_store(to.y, b * to.row_y + j, o.out);
    if (to.save_r) gk_store(to.save_r, e, o.r);
    if (to.save_z) gk_store(to.save_z, e, o.z);
    if (to.save_n) gk_store(to.save_n, e, o.m);
    if (to.save_u) gk_store(to.save_u, e, o.w);
    if (to.h_last) gk_store(to.h_last, e, o.h);
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

/* Gradients of the gates before their activation, of the cell state, and of the state where it was kept; and where they go. */
typedef struct { gk_f d[4], dc, dh; } gk_lstm_grads;
typedef struct { GK_GLOBAL gk_f *dh, *dc; GK_GLOBAL gk_t *dz, *dx; gk_i64 hidden, row_x; int keep; } gk_lstm_grads_to;

/* up, s: gradients of the states behind the step, without dy. */
GK_FN gk_lstm_grads gk_lstm_make_grads(gk_f up, gk_f s, gk_lstm_bwd_in in)
{
    gk_lstm_grads o;
    GK_UNROLL for (int q = 0; q < 4; q++) o.d[q] = GK_R(0.0);
    o.dc = s;
    o.dh = up;
    if (in.live) {
        o.dc = gk_lstm_grad(in.g, in.c, in.next, up + in.dy, s, GK_R(0.0), o.d);
        o.dh = GK_R(0.0);
    }
    return o;
}

GK_FN void gk_lstm_write_grads(gk_i64 e, gk_i64 b, gk_i64 j, gk_lstm_grads o, gk_lstm_grads_to to)
{
    to.dc[e] = o.dc;
    if (to.keep) to.dh[e] = o.dh;
    GK_UNROLL for (int q = 0; q < 4; q++) {
        gk_store(to.dz, (4 * b + q) * to.hidden + j, o.d[q]);
        if (to.dx) gk_store(to.dx, b * to.row_x + q * to.hidden + j, o.d[q]);
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

/* Gradients of the gates r, z, n, of the recurrent part of n, and the direct part of that of the state. */
typedef struct { gk_f d[4], dh; } gk_gru_grads;
/* before: that of r is left to others. */
typedef struct { GK_GLOBAL gk_f* dh; GK_GLOBAL gk_t *dz, *dx; gk_i64 hidden, row_x; int before; } gk_gru_grads_to;

GK_FN gk_gru_grads gk_gru_make_grads(gk_f up, gk_gru_bwd_in in)
{
    gk_gru_grads o;
    GK_UNROLL for (int q = 0; q < 4; q++) o.d[q] = GK_R(0.0);
    o.dh = up;
    if (in.live) o.dh = gk_gru_grad(in.r, in.z, in.m, in.un, in.h, up + in.dy, o.d);
    return o;
}

GK_FN void gk_gru_write_grads(gk_i64 e, gk_i64 b, gk_i64 j, gk_gru_grads o, gk_gru_grads_to to)
{
    to.dh[e] = o.dh;
    GK_UNROLL for (int q = 0; q < 3; q++) {
        if (q == 0 && to.before) continue;
        gk_store(to.dz, (3 * b + q) * to.hidden + j, q == 2 && !to.before ? o.d[3] : o.d[q]);
        if (to.dx) gk_store(to.dx, b * to.row_x + q * to.hidden + j, o.d[q]);
    }
}
