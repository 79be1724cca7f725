/* One element of a recurrent step, shared by rnn/rnn.c, where the products are ready, and rnn/fused.c, where they are made in the same kernel.
 * Element e = (b, j) of a state [B, H]; the names are those of rnn/rnn.c. */
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

/* u: the four products of the element with W_hh. */
GK_FN void gk_lstm_element(gk_i64 e, gk_i64 b, gk_i64 j, const gk_f u[4], GK_GLOBAL const gk_f* a, GK_GLOBAL const gk_t* bias,
                           GK_GLOBAL const gk_t* h, GK_GLOBAL const gk_t* c, GK_GLOBAL const int* lengths, GK_GLOBAL gk_t* h_next,
                           GK_GLOBAL gk_t* c_next, GK_GLOBAL gk_t* y, GK_GLOBAL gk_t* gates, GK_GLOBAL gk_t* h_last, GK_GLOBAL gk_t* c_last,
                           gk_i64 hidden, gk_i64 row_a, gk_i64 row_y, int t)
{
    gk_f z[4], out = GK_R(0.0), h_new, c_new = gk_load(c, e);
    if (gk_is_live(lengths, b, t)) {
        GK_UNROLL for (int q = 0; q < 4; q++) z[q] = a[b * row_a + q * hidden + j] + u[q] + gk_or_zero(bias, q * hidden + j);
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

/* u: the three products of the element; before: the last one is that of r h. */
GK_FN void gk_gru_element(gk_i64 e, gk_i64 b, gk_i64 j, const gk_f u[3], GK_GLOBAL const gk_f* a, GK_GLOBAL const gk_t* bias, GK_GLOBAL const gk_t* h,
                          GK_GLOBAL const int* lengths, GK_GLOBAL gk_t* h_next, GK_GLOBAL gk_t* y, GK_GLOBAL gk_t* save_r, GK_GLOBAL gk_t* save_z,
                          GK_GLOBAL gk_t* save_n, GK_GLOBAL gk_t* save_u, GK_GLOBAL gk_t* h_last, gk_i64 hidden, gk_i64 row_a, gk_i64 row_y, int t,
                          int before)
{
    gk_f r = GK_R(0.0), z = GK_R(0.0), m = GK_R(0.0), w = GK_R(0.0), out = GK_R(0.0), h_new = gk_load(h, e);
    if (gk_is_live(lengths, b, t)) {
        r = gk_gate(a[b * row_a + j] + u[0] + gk_or_zero(bias, j));
        z = gk_gate(a[b * row_a + hidden + j] + u[1] + gk_or_zero(bias, hidden + j));
        w = u[2] + gk_or_zero(bias, 2 * hidden + j);
        m = gk_tanh(a[b * row_a + 2 * hidden + j] + (before ? w : r * w));
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

/* up, s: gradients of the states behind the step, without dy. */
GK_FN void gk_lstm_element_bwd(gk_i64 e, gk_i64 b, gk_i64 j, gk_f up, gk_f s, GK_GLOBAL const gk_t* gates, GK_GLOBAL const gk_t* c,
                               GK_GLOBAL const gk_t* c_next, GK_GLOBAL const gk_t* dy, GK_GLOBAL const int* lengths, GK_GLOBAL gk_f* dh,
                               GK_GLOBAL gk_f* dc, GK_GLOBAL gk_t* dz, GK_GLOBAL gk_t* dx, gk_i64 hidden, gk_i64 row_y, gk_i64 row_x, int t, int keep)
{
    gk_f g[4], d[4];
    GK_UNROLL for (int q = 0; q < 4; q++) d[q] = GK_R(0.0);
    if (gk_is_live(lengths, b, t)) {
        GK_UNROLL for (int q = 0; q < 4; q++) g[q] = gk_load(gates, (4 * b + q) * hidden + j);
        s = gk_lstm_grad(g, gk_load(c, e), gk_load(c_next, e), up + gk_or_zero(dy, b * row_y + j), s, GK_R(0.0), d);
        up = GK_R(0.0);
    }
    dc[e] = s;
    if (keep) dh[e] = up;
    GK_UNROLL for (int q = 0; q < 4; q++) {
        gk_store(dz, (4 * b + q) * hidden + j, d[q]);
        if (dx) gk_store(dx, b * row_x + q * hidden + j, d[q]);
    }
}

GK_FN void gk_gru_element_bwd(gk_i64 e, gk_i64 b, gk_i64 j, gk_f up, GK_GLOBAL const gk_t* r, GK_GLOBAL const gk_t* z, GK_GLOBAL const gk_t* m,
                              GK_GLOBAL const gk_t* un, GK_GLOBAL const gk_t* h, GK_GLOBAL const gk_t* dy, GK_GLOBAL const int* lengths,
                              GK_GLOBAL gk_f* dh, GK_GLOBAL gk_t* dz, GK_GLOBAL gk_t* dx, gk_i64 hidden, gk_i64 row_y, gk_i64 row_x, int t,
                              int before)
{
    gk_f d[4];
    GK_UNROLL for (int q = 0; q < 4; q++) d[q] = GK_R(0.0);
    if (gk_is_live(lengths, b, t)) {
        up += gk_or_zero(dy, b * row_y + j);
        up = gk_gru_grad(gk_load(r, e), gk_load(z, e), gk_load(m, e), gk_load(un, e), gk_load(h, e), up, d);
    }
    dh[e] = up;
    GK_UNROLL for (int q = 0; q < 3; q++) {
        if (q == 0 && before) continue;
        gk_store(dz, (3 * b + q) * hidden + j, q == 2 && !before ? d[3] : d[q]);
        if (dx) gk_store(dx, b * row_x + q * hidden + j, d[q]);
    }
}
