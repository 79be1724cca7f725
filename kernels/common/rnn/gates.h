/* The algebra of one recurrent step, shared by rnn/rnn.c and rnn/conv.c. */

/* 1 / (1 + e^-x) without overflow and without losing small results. */
GK_FN gk_f gk_gate(gk_f x)
{
    gk_f e = gk_exp(-gk_fabs(x));
    return (x >= GK_R(0.0) ? GK_R(1.0) : e) * gk_recip(GK_R(1.0) + e);
}

GK_FN void gk_add_to(GK_GLOBAL gk_t* p, gk_i64 i, gk_f v, int accumulate)
{
    if (accumulate) v += gk_load(p, i);
    gk_store(p, i, v);
}

/* One LSTM step with the peepholes pi, pf and po: `z` becomes the gates i, f, g, o, `c` the next cell state; returns the next hidden state. */
GK_FN gk_f gk_lstm(gk_f z[4], gk_f* c, gk_f pi, gk_f pf, gk_f po)
{
    gk_f before = *c;
    z[0] = gk_gate(z[0] + (pi != GK_R(0.0) ? pi * before : GK_R(0.0)));
    z[1] = gk_gate(z[1] + (pf != GK_R(0.0) ? pf * before : GK_R(0.0)));
    z[2] = gk_tanh(z[2]);
    gk_f next = z[1] * before + z[0] * z[2];
    z[3] = gk_gate(z[3] + (po != GK_R(0.0) ? po * next : GK_R(0.0)));
    *c = next;
    return z[3] * gk_tanh(next);
}

/* From the gates g, both cell states and the gradients of the next states: d = gradients of the gates before their activation; returns dc f,
 * to which the peepholes of i and f add theirs. */
GK_FN gk_f gk_lstm_grad(const gk_f g[4], gk_f c, gk_f next, gk_f dh, gk_f dc, gk_f po, gk_f d[4])
{
    gk_f t = gk_tanh(next);
    d[3] = dh * t * g[3] * (GK_R(1.0) - g[3]);
    dc += dh * g[3] * (GK_R(1.0) - t * t);
    if (po != GK_R(0.0)) dc += d[3] * po;
    d[0] = dc * g[2] * g[0] * (GK_R(1.0) - g[0]);
    d[1] = dc * c * g[1] * (GK_R(1.0) - g[1]);
    d[2] = dc * g[0] * (GK_R(1.0) - g[2] * g[2]);
    return dc * g[1];
}

/* Gradients of one GRU step: d = {r, z, n before their activation, the recurrent part of n}; returns the direct part of the gradient of h. */
GK_FN gk_f gk_gru_grad(gk_f r, gk_f z, gk_f n, gk_f u, gk_f h, gk_f dh, gk_f d[4])
{
    d[2] = dh * (GK_R(1.0) - z) * (GK_R(1.0) - n * n);
    d[1] = dh * (h - n) * z * (GK_R(1.0) - z);
    d[0] = d[2] * u * r * (GK_R(1.0) - r);
    d[3] = d[2] * r;
    return dh * z;
}
