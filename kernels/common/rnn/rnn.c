/* Recurrent steps: what happens between the products. A state has [B, H] elements, one thread each; gates are blocks of H columns.
 *
 *   a       x W_ih^T + b_ih of this step, gk_f, rows `row_a` apart        u      h W_hh^T, gk_f, contiguous rows
 *   bias    b_hh or null                                                  h, c   states before the step
 *   y       output of this step, rows `row_y` apart
 *   lengths rows whose length is not above the time t keep their states; null: all rows are live
 *
 * The last step also writes h_last and c_last (else null). Arithmetic in gk_f, states are stored as gk_t. Deterministic: one writer per output.
 * Launch: grid-stride over the states' elements. Reference: torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN.
 */
#if GK_IS_FLOAT
#include "step.h"

// Units: FLOATS64
/* ---- sequences, forward ----------------------------------------------------------------------------------------------------- */

GK_KERNEL(lstm_step)(GK_IN(gk_f, u), GK_IN(gk_f, a), GK_IN(gk_t, bias), GK_IN(gk_t, h), GK_IN(gk_t, c), GK_IN(int, lengths), GK_OUT(gk_t, h_next),
                     GK_OUT(gk_t, c_next), GK_OUT(gk_t, y), GK_OUT(gk_t, gates), GK_OUT(gk_t, h_last), GK_OUT(gk_t, c_last), gk_i64 n, gk_i64 hidden,
                     gk_i64 row_a, gk_i64 row_y, int t)
{
    GK_BIND_IN(gk_f, u); GK_BIND_IN(gk_f, a); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, h); GK_BIND_IN(gk_t, c); GK_BIND_IN(int, lengths);
    GK_BIND_OUT(gk_t, h_next); GK_BIND_OUT(gk_t, c_next); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, gates); GK_BIND_OUT(gk_t, h_last);
    GK_BIND_OUT(gk_t, c_last);
    gk_lstm_to to = {h_next, c_next, y, gates, h_last, c_last, hidden, row_y};
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_i64 b = gk_row_of(e, hidden), j = e - b * hidden;
        gk_f v[4];
        GK_UNROLL for (int q = 0; q < 4; q++) v[q] = u[(4 * b + q) * hidden + j];
        gk_lstm_in in = gk_lstm_read(e, b, j, a, bias, c, lengths, hidden, row_a, t);
        gk_lstm_write(e, b, j, gk_lstm_make(e, v, in, h), to);
    }
}

/* rh = r h for the form of the GRU that applies the reset gate before the product. `u` has rows of 2 H: the parts of r and z. */
GK_KERNEL(gru_reset)(GK_IN(gk_f, u), GK_IN(gk_f, a), GK_IN(gk_t, bias), GK_IN(gk_t, h), GK_OUT(gk_t, rh), gk_i64 n, gk_i64 hidden, gk_i64 row_a)
{
    GK_BIND_IN(gk_f, u); GK_BIND_IN(gk_f, a); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, h); GK_BIND_OUT(gk_t, rh);
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_i64 b = gk_row_of(e, hidden), j = e - b * hidden;
        gk_store(rh, e, gk_gate(a[b * row_a + j] + u[2 * b * hidden + j] + gk_or_zero(bias, j)) * gk_load(h, e));
    }
}

/* `u`: rows of `row_u` elements with the parts of r and z; `un`: rows of `row_n` with that of n. before: un is the product with r h. */
GK_KERNEL(gru_step)(GK_IN(gk_f, u), GK_IN(gk_f, un), GK_IN(gk_f, a), GK_IN(gk_t, bias), GK_IN(gk_t, h), GK_IN(int, lengths), GK_OUT(gk_t, h_next),
                    GK_OUT(gk_t, y), GK_OUT(gk_t, save_r), GK_OUT(gk_t, save_z), GK_OUT(gk_t, save_n), GK_OUT(gk_t, save_u), GK_OUT(gk_t, h_last),
                    gk_i64 n, gk_i64 hidden, gk_i64 row_u, gk_i64 row_n, gk_i64 row_a, gk_i64 row_y, int t, int before)
{
    GK_BIND_IN(gk_f, u); GK_BIND_IN(gk_f, un); GK_BIND_IN(gk_f, a); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, h); GK_BIND_IN(int, lengths);
    GK_BIND_OUT(gk_t, h_next); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, save_r); GK_BIND_OUT(gk_t, save_z); GK_BIND_OUT(gk_t, save_n);
    GK_BIND_OUT(gk_t, save_u); GK_BIND_OUT(gk_t, h_last);
    gk_gru_to to = {h_next, y, save_r, save_z, save_n, save_u, h_last, row_y};
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_i64 b = gk_row_of(e, hidden), j = e - b * hidden;
        gk_f v[3];
        v[0] = u[b * row_u + j];
        v[1] = u[b * row_u + hidden + j];
        v[2] = un[b * row_n + j];
        gk_gru_in in = gk_gru_read(e, b, j, a, bias, h, lengths, hidden, row_a, t);
        gk_gru_write(e, b, j, gk_gru_make(v, in, before), to);
    }
}

/* h' = tanh(a + u), or the positive part. */
GK_KERNEL(plain_step)(GK_IN(gk_f, u), GK_IN(gk_f, a), GK_IN(gk_t, bias), GK_IN(gk_t, h), GK_IN(int, lengths), GK_OUT(gk_t, h_next), GK_OUT(gk_t, y),
                      GK_OUT(gk_t, h_last), gk_i64 n, gk_i64 hidden, gk_i64 row_a, gk_i64 row_y, int t, int relu)
{
    GK_BIND_IN(gk_f, u); GK_BIND_IN(gk_f, a); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, h); GK_BIND_IN(int, lengths);
    GK_BIND_OUT(gk_t, h_next); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, h_last);
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_i64 b = gk_row_of(e, hidden), j = e - b * hidden;
        gk_f out = GK_R(0.0), h_new;
        if (gk_is_live(lengths, b, t)) {
            out = a[b * row_a + j] + u[e] + gk_or_zero(bias, j);
            out = relu ? gk_max(out, GK_R(0.0)) : gk_tanh(out);
            h_new = out;
        } else {
            h_new = gk_load(h, e);
        }
        gk_store(h_next, e, h_new);
        gk_store(y, b * row_y + j, out);
        if (h_last) gk_store(h_last, e, h_new);
    }
}

/* ---- sequences, backward ----------------------------------------------------------------------------------------------------
 * `dh` (gk_f) arrives as the gradient of the state behind the step, without dy; in the `first` step processed that is dh_last, or 0 where it is
 * null. It leaves as the part that does not pass through the product with W_hh, which the host adds. Gradients of the gates go to `dz` in the
 * order of processing and, where it is not null, to `dx` with rows `row_x` apart in the order of x. */

/* keep: write dh; without lengths the product alone makes up the gradient of the state before. */
GK_KERNEL(lstm_step_bwd)(GK_IN(gk_t, gates), GK_IN(gk_t, c), GK_IN(gk_t, c_next), GK_IN(gk_t, dy), GK_IN(gk_t, dh_last), GK_IN(gk_t, dc_last),
                         GK_IN(int, lengths), GK_OUT(gk_f, dh), GK_OUT(gk_f, dc), GK_OUT(gk_t, dz), GK_OUT(gk_t, dx), gk_i64 n, gk_i64 hidden,
                         gk_i64 row_y, gk_i64 row_x, int t, int first, int keep)
{
    GK_BIND_IN(gk_t, gates); GK_BIND_IN(gk_t, c); GK_BIND_IN(gk_t, c_next); GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, dh_last);
    GK_BIND_IN(gk_t, dc_last);
    GK_BIND_IN(int, lengths); GK_BIND_OUT(gk_f, dh); GK_BIND_OUT(gk_f, dc); GK_BIND_OUT(gk_t, dz); GK_BIND_OUT(gk_t, dx);
    gk_lstm_grads_to to = {dh, dc, dz, dx, hidden, row_x, keep};
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_i64 b = gk_row_of(e, hidden), j = e - b * hidden;
        gk_f up = gk_arriving(dh, dh_last, e, first), s = gk_arriving(dc, dc_last, e, first);
        gk_lstm_bwd_in in = gk_lstm_bwd_read(e, b, j, gates, c, c_next, dy, lengths, hidden, row_y, t);
        gk_lstm_write_grads(e, b, j, gk_lstm_make_grads(up, s, in), to);
    }
}

/* before: the gradient of r is left to gru_reset_bwd. */
GK_KERNEL(gru_step_bwd)(GK_IN(gk_t, r), GK_IN(gk_t, z), GK_IN(gk_t, m), GK_IN(gk_t, un), GK_IN(gk_t, h), GK_IN(gk_t, dy), GK_IN(gk_t, dh_last),
                        GK_IN(int, lengths), GK_OUT(gk_f, dh), GK_OUT(gk_t, dz), GK_OUT(gk_t, dx), gk_i64 n, gk_i64 hidden, gk_i64 row_y,
                        gk_i64 row_x, int t, int first, int before)
{
    GK_BIND_IN(gk_t, r); GK_BIND_IN(gk_t, z); GK_BIND_IN(gk_t, m); GK_BIND_IN(gk_t, un); GK_BIND_IN(gk_t, h); GK_BIND_IN(gk_t, dy);
    GK_BIND_IN(gk_t, dh_last);
    GK_BIND_IN(int, lengths); GK_BIND_OUT(gk_f, dh); GK_BIND_OUT(gk_t, dz); GK_BIND_OUT(gk_t, dx);
    gk_gru_grads_to to = {dh, dz, dx, hidden, row_x, before};
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_i64 b = gk_row_of(e, hidden), j = e - b * hidden;
        gk_f up = gk_arriving(dh, dh_last, e, first);
        gk_gru_bwd_in in = gk_gru_bwd_read(e, b, j, r, z, m, un, h, dy, lengths, row_y, t);
        gk_gru_write_grads(e, b, j, gk_gru_make_grads(up, in), to);
    }
}

/* From drh, the gradient of r h (rows of H, gk_f): the gradient of r's gate, and dh += drh r. Also writes rh = r h for the weight gradient. */
GK_KERNEL(gru_reset_bwd)(GK_IN(gk_f, drh), GK_IN(gk_t, r), GK_IN(gk_t, h), GK_IN(int, lengths), GK_OUT(gk_f, dh), GK_OUT(gk_t, dz), GK_OUT(gk_t, dx),
                         GK_OUT(gk_t, rh), gk_i64 n, gk_i64 hidden, gk_i64 row_x, int t)
{
    GK_BIND_IN(gk_f, drh); GK_BIND_IN(gk_t, r); GK_BIND_IN(gk_t, h); GK_BIND_IN(int, lengths);
    GK_BIND_OUT(gk_f, dh); GK_BIND_OUT(gk_t, dz); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(gk_t, rh);
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_i64 b = gk_row_of(e, hidden), j = e - b * hidden;
        gk_f d = GK_R(0.0), product = GK_R(0.0);
        if (gk_is_live(lengths, b, t)) {
            gk_f gate = gk_load(r, e), state = gk_load(h, e);
            d = drh[e] * state * gate * (GK_R(1.0) - gate);
            product = gate * state;
            dh[e] += drh[e] * gate;
        }
        gk_store(dz, 3 * b * hidden + j, d);
        if (dx) gk_store(dx, b * row_x + j, d);
        gk_store(rh, e, product);
    }
}

GK_KERNEL(plain_step_bwd)(GK_IN(gk_t, h_next), GK_IN(gk_t, dy), GK_IN(gk_t, dh_last), GK_IN(int, lengths), GK_OUT(gk_f, dh), GK_OUT(gk_t, dz),
                          GK_OUT(gk_t, dx), gk_i64 n, gk_i64 hidden, gk_i64 row_y, gk_i64 row_x, int t, int first, int keep, int relu)
{
    GK_BIND_IN(gk_t, h_next); GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, dh_last); GK_BIND_IN(int, lengths);
    GK_BIND_OUT(gk_f, dh); GK_BIND_OUT(gk_t, dz); GK_BIND_OUT(gk_t, dx);
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_i64 b = gk_row_of(e, hidden), j = e - b * hidden;
        gk_f d = GK_R(0.0), direct = gk_arriving(dh, dh_last, e, first);
        if (gk_is_live(lengths, b, t)) {
            gk_f out = gk_load(h_next, e);
            d = direct + gk_or_zero(dy, b * row_y + j);
            if (relu) d = out > GK_R(0.0) ? d : GK_R(0.0);
            else d *= GK_R(1.0) - out * out;
            direct = GK_R(0.0);
        }
        if (keep) dh[e] = direct;
        gk_store(dz, e, d);
        if (dx) gk_store(dx, b * row_x + j, d);
    }
}

/* y (+)= x: a gradient that was kept in the arithmetic type. */
GK_KERNEL(rnn_store)(GK_IN(gk_f, x), GK_OUT(gk_t, y), gk_i64 n, int accumulate)
{
    GK_BIND_IN(gk_f, x); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) gk_add_to(y, i, x[i], accumulate);
}

/* ---- single steps ----------------------------------------------------------------------------------------------------------- */

GK_KERNEL(lstm_cell)(GK_IN(gk_t, z), GK_IN(gk_t, c), GK_OUT(gk_t, h_next), GK_OUT(gk_t, c_next), GK_OUT(gk_t, gates), gk_i64 n, gk_i64 hidden)
{
    GK_BIND_IN(gk_t, z); GK_BIND_IN(gk_t, c); GK_BIND_OUT(gk_t, h_next); GK_BIND_OUT(gk_t, c_next); GK_BIND_OUT(gk_t, gates);
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_i64 b = gk_row_of(e, hidden), j = e - b * hidden;
        gk_f v[4], c_new = gk_load(c, e);
        GK_UNROLL for (int q = 0; q < 4; q++) v[q] = gk_load(z, (4 * b + q) * hidden + j);
        gk_f h_new = gk_lstm(v, &c_new, GK_R(0.0), GK_R(0.0), GK_R(0.0));
        gk_store(h_next, e, h_new);
        gk_store(c_next, e, c_new);
        if (gates) {
            GK_UNROLL for (int q = 0; q < 4; q++) gk_store(gates, (4 * b + q) * hidden + j, v[q]);
        }
    }
}

/* flags: 1 adds to dz, 2 to dc. */
GK_KERNEL(lstm_cell_bwd)(GK_IN(gk_t, dh), GK_IN(gk_t, dc_next), GK_IN(gk_t, gates), GK_IN(gk_t, c), GK_IN(gk_t, c_next), GK_OUT(gk_t, dz),
                         GK_OUT(gk_t, dc), gk_i64 n, gk_i64 hidden, int flags)
{
    GK_BIND_IN(gk_t, dh); GK_BIND_IN(gk_t, dc_next); GK_BIND_IN(gk_t, gates); GK_BIND_IN(gk_t, c); GK_BIND_IN(gk_t, c_next);
    GK_BIND_OUT(gk_t, dz); GK_BIND_OUT(gk_t, dc);
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_i64 b = gk_row_of(e, hidden), j = e - b * hidden;
        gk_f g[4], d[4];
        GK_UNROLL for (int q = 0; q < 4; q++) g[q] = gk_load(gates, (4 * b + q) * hidden + j);
        gk_f s = gk_lstm_grad(g, gk_load(c, e), gk_load(c_next, e), gk_or_zero(dh, e), gk_or_zero(dc_next, e), GK_R(0.0), d);
        GK_UNROLL for (int q = 0; q < 4; q++) gk_add_to(dz, (4 * b + q) * hidden + j, d[q], flags & 1);
        if (dc) gk_add_to(dc, e, s, flags & 2);
    }
}

GK_KERNEL(gru_cell)(GK_IN(gk_t, a), GK_IN(gk_t, u), GK_IN(gk_t, h), GK_OUT(gk_t, h_next), GK_OUT(gk_t, save_r), GK_OUT(gk_t, save_z),
                    GK_OUT(gk_t, save_n), gk_i64 n, gk_i64 hidden)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, u); GK_BIND_IN(gk_t, h); GK_BIND_OUT(gk_t, h_next);
    GK_BIND_OUT(gk_t, save_r); GK_BIND_OUT(gk_t, save_z); GK_BIND_OUT(gk_t, save_n);
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_i64 b = gk_row_of(e, hidden), j = e - b * hidden, at = 3 * b * hidden + j;
        gk_f r = gk_gate(gk_load(a, at) + gk_load(u, at));
        gk_f z = gk_gate(gk_load(a, at + hidden) + gk_load(u, at + hidden));
        gk_f m = gk_tanh(gk_load(a, at + 2 * hidden) + r * gk_load(u, at + 2 * hidden));
        gk_store(h_next, e, (GK_R(1.0) - z) * m + z * gk_load(h, e));
        if (save_r) gk_store(save_r, e, r);
        if (save_z) gk_store(save_z, e, z);
        if (save_n) gk_store(save_n, e, m);
    }
}

/* Rows of `un` are `row_n` apart. flags: 1 adds to da, 2 to du, 4 to dh. */
GK_KERNEL(gru_cell_bwd)(GK_IN(gk_t, dh_next), GK_IN(gk_t, r), GK_IN(gk_t, z), GK_IN(gk_t, m), GK_IN(gk_t, un), GK_IN(gk_t, h), GK_OUT(gk_t, da),
                        GK_OUT(gk_t, du), GK_OUT(gk_t, dh), gk_i64 n, gk_i64 hidden, gk_i64 row_n, int flags)
{
    GK_BIND_IN(gk_t, dh_next); GK_BIND_IN(gk_t, r); GK_BIND_IN(gk_t, z); GK_BIND_IN(gk_t, m); GK_BIND_IN(gk_t, un); GK_BIND_IN(gk_t, h);
    GK_BIND_OUT(gk_t, da); GK_BIND_OUT(gk_t, du); GK_BIND_OUT(gk_t, dh);
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_i64 b = gk_row_of(e, hidden), j = e - b * hidden, at = 3 * b * hidden + j;
        gk_f d[4];
        gk_f s = gk_gru_grad(gk_load(r, e), gk_load(z, e), gk_load(m, e), gk_load(un, b * row_n + j), gk_load(h, e), gk_load(dh_next, e), d);
        GK_UNROLL for (int q = 0; q < 3; q++) {
            gk_add_to(da, at + q * hidden, d[q], flags & 1);
            gk_add_to(du, at + q * hidden, q == 2 ? d[3] : d[q], flags & 2);
        }
        if (dh) gk_add_to(dh, e, s, flags & 4);
    }
}
#endif
