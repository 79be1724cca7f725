/* The numbers that adaptive rules keep between steps: sums over all tensors (tables of optimizer/adaptive_rules.h), and what a step makes of them.
 *
 * adaptive_dot: one block per chunk, looping; partial[b] = sum over the chunks of block b. adaptive_memory: one block. Sums in gk_f over a fixed
 * tree. References stand in src/ops/optimizer/rules.rs.
 */
#include "adaptive_rules.h"

// Units: FLOATS64
/* kind 0: g * s0; 1: (g + decay * w)^2. */
GK_KERNEL(adaptive_dot)(GK_IN(gk_i64, table), int tensors, GK_IN(gk_t, w), GK_IN(gk_t, g), GK_IN(gk_f, s0), int master, GK_IN(float, inv_scale),
                      int maximize, int kind, gk_f decay, GK_OUT(gk_f, partial))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_i64, table); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, g); GK_BIND_IN(gk_f, s0); GK_BIND_IN(float, inv_scale);
    GK_BIND_OUT(gk_f, partial);
    GK_GLOBAL const gk_f* wm = (GK_GLOBAL const gk_f*)w;
    gk_f unscale = inv_scale ? (gk_f)inv_scale[0] : GK_R(1.0), sum = GK_R(0.0);
    if (maximize) unscale = -unscale;
    gk_i64 chunks = table[tensors * GK_OPTIM_ROW];
    for (gk_i64 c = gk_bid(0); c < chunks; c += gk_nblocks(0)) {
        GK_GLOBAL const gk_i64* row = table + gk_row_of(table, tensors, c) * GK_OPTIM_ROW;
        gk_i64 begin = (c - row[0]) * GK_CHUNK, end = begin + GK_CHUNK < row[1] ? begin + GK_CHUNK : row[1];
        gk_i64 ow = row[2], og = row[3], o0 = row[4], i = begin;
        if ((ow | og | o0) % GK_W == 0) {
            gk_i64 full = begin + (end - begin) / GK_W * GK_W;
            for (i = begin + gk_lid() * GK_W; i < full; i += GK_BLOCK * GK_W) {
                gk_vec b = gk_loadv(g, og + i), x = b;
                if (kind == 0) x = gk_loads(s0, o0 + i);
                else if (decay != GK_R(0.0)) x = master ? gk_loads(wm, ow + i) : gk_loadv(w, ow + i);
                GK_UNROLL for (int k = 0; k < GK_W; k++) {
                    gk_f v = b.v[k] * unscale;
                    if (kind == 1 && decay != GK_R(0.0)) v += decay * x.v[k];
                    sum += kind == 0 ? v * x.v[k] : v * v;
                }
            }
            i = full;
        }
        for (i += gk_lid(); i < end; i += GK_BLOCK) {
            gk_f v = gk_load(g, og + i) * unscale;
            if (kind == 1 && decay != GK_R(0.0)) v += decay * (master ? wm[ow + i] : gk_load(w, ow + i));
            sum += kind == 0 ? v * s0[o0 + i] : v * v;
        }
    }
    sum = gk_block_sum(sum, tmp);
    if (gk_lid() == 0) partial[gk_bid(0)] = sum;
}

/* What becomes of the memory; a = sum of partial[0..n], b = sum of partial[n..2n].
 *   kind 0  lr (lr of the step where it is the first) += p0 a
 *   kind 1  sum += lr^2
 *   kind 2  at the first step the norm is sqrt(a)
 *   kind 3  D-Adaptation of descent: e = lr d / norm, r += e a, d = max(d, min(2 r / sqrt(b), p1 d))
 *   kind 4  D-Adaptation of Adam: q = p2, r = q r + (1 - q) lr d a, d = max(d, min(r / ((1 - q) b), p1 d))
 *   kind 5  Prodigy: r = q r + (1 - q) lr d^2 a, d = max(d, min(p3 r / b, p1 d))
 * d starts at p0 in kinds 3 to 5; p4 = 1 - q. parts: how many lists the partial sums come from, each [2, its blocks]; their blocks stand in `blocks`.
 * */
GK_KERNEL(adaptive_memory)(GK_IN(gk_f, partial), GK_IN(gk_i64, blocks), int parts, int kind, GK_OUT(gk_f, memory), GK_IN(float, lr_dev),
                         GK_IN(gk_i64, step), GK_IN(float, found_inf), GK_IN(gk_f, numbers), gk_f lr, int first, gk_f p0, gk_f p1, gk_f p2, gk_f p3, gk_f p4)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_f, partial); GK_BIND_IN(gk_i64, blocks); GK_BIND_OUT(gk_f, memory); GK_BIND_IN(float, lr_dev); GK_BIND_IN(gk_i64, step);
    GK_BIND_IN(float, found_inf); GK_BIND_IN(gk_f, numbers);
    int skip = 0, start = first;
    if (found_inf) skip = found_inf[0] != 0.0f;
    if (numbers) start = numbers[1] == GK_R(1.0);
    if (step) start = step[0] == 1;
    gk_f rate = numbers ? numbers[0] : lr_dev ? (gk_f)lr_dev[0] : lr, a = GK_R(0.0), b = GK_R(0.0);
    gk_i64 at = 0;
    for (int k = 0; k < parts; k++) {
        gk_i64 n = blocks[k];
        for (gk_i64 i = gk_lid(); i < n; i += GK_BLOCK) {
            a += partial[at + i];
            if (kind > 2) b += partial[at + n + i];
        }
        at += kind > 2 ? 2 * n : n;
    }
    a = gk_block_sum(a, tmp);
    b = gk_block_sum(b, tmp);
    if (gk_lid() == 0 && gk_bid(0) == 0 && !skip) {
        if (kind == 0) memory[0] = start ? rate : memory[0] + p0 * a;
        if (kind == 1) memory[0] = (start ? GK_R(0.0) : memory[0]) + rate * rate;
        if (kind == 2 && start) memory[2] = gk_sqrt(a);
        if (kind > 2) {
            gk_f d = start ? p0 : memory[0], r = start ? GK_R(0.0) : memory[1], best;
            if (kind == 3) {
                if (memory[2] > GK_R(0.0)) r += rate * d / memory[2] * a;
                best = GK_R(2.0) * r / gk_sqrt(b);
            } else if (kind == 4) {
                r = p2 * r + p4 * rate * d * a;
                best = r / (p4 * b);
            } else {
                r = p2 * r + p4 * rate * d * d * a;
                best = p3 * r / b;
            }
            gk_f most = p1 * d;
            if (best > most) best = most;
            /* Without a sum there is nothing to learn from. */
            memory[0] = b > GK_R(0.0) && best > d ? best : d;
            memory[1] = r;
        }
    }
}
