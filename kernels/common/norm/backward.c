/* Normalisation, backward. With xh = (x - mean) * rstd, dz = dy * act'(xh * w + beta), w = gamma + offset, g = dz * w and means over the set of n
 * elements that shares statistics:
 *
 *   dx (+)= rstd * (g - mean(g) - xh * mean(g * xh)) + add      dgamma (+)= sum of dz * xh      dbeta (+)= sum of dz
 *
 * without mean(g) where the forward took no mean (raw), without both means where statistics were given (inference). A set of one element (alone),
 * whose xh is 0 whatever it holds, has dx = add: the difference would leave the rounding of g. act' is taken from y where that is given.
 * _part: sums along runs of rows, weighted by w per column (layer norm) or not (channels); _coef: the means per set; _apply: dx; _cols: sums down
 * columns; _params: parameter gradients from partial sums, in order.
 * Partial sums: dz * xh first, those of dz `second` entries behind.  Launch: blocks on axis 0 loop. Arithmetic in gk_f. Deterministic.
 * Reference: gradients of F.layer_norm, F.rms_norm, F.group_norm, F.batch_norm.
 */
#include "norm.h"

#define GK_NORM_FLIGHT (GK_W >= 8 ? 2 : 1) /* vectors per thread of _apply */
#define GK_NORM_SUMS 5                     /* partial sums per thread of _params on their way: half of those of two blocks per SM */

/* Where an element's statistics and parameters are: rows (n, channel) or rows of columns. */
typedef struct { gk_i64 row, channel, stat; } gk_place;
/* share > 0: so many rows share statistics; 0: those of the channel. inner > 0: a row is one channel, of `groups`. */
GK_FN gk_place gk_place_of(gk_i64 row, gk_i64 groups, gk_i64 share)
{
    gk_place p;
    p.row = row;
    p.channel = row - gk_quot(row, groups) * groups;
    p.stat = share ? gk_quot(row, share) : p.channel;
    return p;
}

/* xh and dz of the item at element i (position e of its row); a holds x, d holds dy. w is 1 without gamma. */
GK_FN void gk_norm_terms(gk_vec* a, gk_vec* d, gk_vec* w, GK_GLOBAL const gk_t* gamma, GK_GLOBAL const gk_t* beta, GK_GLOBAL const gk_t* y,
                         GK_GLOBAL const gk_t* r, gk_i64 i, gk_i64 e, gk_i64 first, gk_i64 inner, gk_f m, gk_f q, int wide, int affine, gk_f offset,
                         int act, gk_f p)
{
    if (gamma) *w = gk_affine(gamma, e, first, inner, wide, affine);
    GK_UNROLL for (int k = 0; k < GK_W; k++) {
        a->v[k] = (a->v[k] - m) * q;
        w->v[k] = gamma ? w->v[k] + offset : GK_R(1.0);
    }
#if GK_ACTS
    gk_vec v = gk_zeros();
    if (y) {
        v = gk_item(y, i, wide);
    } else {
        if (beta) v = gk_affine(beta, e, first, inner, wide, affine);
        if (r) {
            gk_vec b = gk_item(r, i, wide);
            GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] += b.v[k];
        }
        GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] += a->v[k] * w->v[k];
    }
    *d = gk_norm_dz(*d, v, act, p, y != 0);
#endif
}

typedef struct {
    gk_i64 chunk, second;
    gk_f offset, p;
    int phase;
} gk_norm_bwd_partial_args;

// Units: FLOATS64 x EPILOGUES
/* Sums along run b = row * splits + k of a row. */
GK_KERNEL(norm_bwd_partial)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_IN(gk_t, y), GK_IN(gk_t, r),
                            GK_IN(gk_f, mean), GK_IN(gk_f, rstd), GK_OUT(gk_f, part), gk_i64 rows, gk_i64 cols, gk_i64 inner, gk_i64 groups,
                            gk_i64 share, int splits, int lanes, int wide, int affine, int act, GK_BY_VALUE(gk_norm_bwd_partial_args, args))
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, gamma); GK_BIND_IN(gk_t, beta); GK_BIND_IN(gk_t, y); GK_BIND_IN(gk_t, r);
    GK_BIND_IN(gk_f, mean); GK_BIND_IN(gk_f, rstd); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int lane = gk_lid() & (lanes - 1), weighted = inner == 0;
    gk_i64 per = GK_BLOCK / lanes, runs = rows * splits;
    for (gk_i64 f = (gk_i64)gk_bid(0) * per; f < runs; f += gk_nblocks(0) * per) {
        gk_i64 b = f + gk_lid() / lanes, live = b < runs, row = live ? b / splits : 0, start = row * cols;
        gk_run run = gk_run_of_block(live ? b : 0, cols, splits, args.chunk, wide, args.phase);
        gk_place at = gk_place_of(row, groups, share);
        gk_f m = GK_R(0.0), q = rstd[at.stat], s1 = GK_R(0.0), s2 = GK_R(0.0);
        gk_i64 i = lane;
        if (mean) m = mean[at.stat];
        if (!live) { run.items = 0; run.items_from = run.from; run.tail_from = run.to; }
        for (; i + lanes < run.items; i += 2 * lanes) {
            gk_vec d[2], a[2], w;
            GK_UNROLL for (int u = 0; u < 2; u++) {
                d[u] = gk_loadv(dy, run.items_from + (i + u * lanes) * GK_W);
                a[u] = gk_loadv(x, run.items_from + (i + u * lanes) * GK_W);
            }
            GK_UNROLL for (int u = 0; u < 2; u++) {
                gk_i64 e = run.items_from + (i + u * lanes) * GK_W;
                gk_norm_terms(&a[u], &d[u], &w, gamma, beta, y, r, e, e - start, at.channel, inner, m, q, 1, affine, args.offset, act, args.p);
                gk_f t1 = GK_R(0.0), t2 = GK_R(0.0); /* of an item: the long sums are rounded once per item */
                GK_UNROLL for (int k = 0; k < GK_W; k++) {
                    gk_f g = weighted ? d[u].v[k] * w.v[k] : d[u].v[k];
                    t1 += g;
                    t2 += g * a[u].v[k];
                }
                s1 += t1;
                s2 += t2;
            }
        }
        for (; i < run.items; i += lanes) {
            gk_i64 e = run.items_from + i * GK_W;
            gk_vec d = gk_loadv(dy, e), a = gk_loadv(x, e), w;
            gk_norm_terms(&a, &d, &w, gamma, beta, y, r, e, e - start, at.channel, inner, m, q, 1, affine, args.offset, act, args.p);
            GK_UNROLL for (int k = 0; k < GK_W; k++) {
                gk_f g = weighted ? d.v[k] * w.v[k] : d.v[k];
                s1 += g;
                s2 += g * a.v[k];
            }
        }
        for (int part_of = 0; part_of < 2; part_of++) {
            gk_i64 to = part_of ? run.to : run.items_from;
            for (i = (part_of ? run.tail_from : run.from) + lane; i < to; i += lanes) {
                gk_vec d = gk_item(dy, i, 0), a = gk_item(x, i, 0), w;
                gk_norm_terms(&a, &d, &w, gamma, beta, y, r, i, i - start, at.channel, inner, m, q, 0, affine, args.offset, act, args.p);
                gk_f g = weighted ? d.v[0] * w.v[0] : d.v[0];
                s1 += g;
                s2 += g * a.v[0];
            }
        }
        s1 = gk_group_sum(s1, tmp, lanes);
        s2 = gk_group_sum(s2, tmp, lanes);
        if (lane == 0 && live) { part[b] = s2; part[args.second + b] = s1; }
    }
}

/* coef[2j], coef[2j + 1] = mean(g), mean(g * xh) of set j from the sums (i * sets + j) * inner + k; with gamma, those of k belong to channel
 * (j * cg + k / splits) % groups. */
GK_KERNEL(norm_bwd_coefficients)(GK_IN(gk_f, part), GK_IN(gk_t, gamma), GK_OUT(gk_f, coef), gk_i64 outer, gk_i64 sets, gk_i64 inner, gk_i64 second,
                                 int tx, gk_i64 cg, gk_i64 splits, gk_i64 groups, gk_f n, int raw, gk_f offset)
{
    GK_BIND_IN(gk_f, part); GK_BIND_IN(gk_t, gamma); GK_BIND_OUT(gk_f, coef);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int ty = gk_lid() / tx, step = GK_BLOCK / tx;
    for (gk_i64 b = gk_bid(0); b * tx < sets; b += gk_nblocks(0)) {
        gk_i64 j = b * tx + (gk_lid() & (tx - 1)), members = j < sets ? outer * inner : 0;
        gk_f s1 = GK_R(0.0), s2 = GK_R(0.0);
        for (gk_i64 e = ty; e < members; e += step) {
            gk_i64 i = gk_quot(e, inner), k = e - i * inner, at = (i * sets + j) * inner + k;
            gk_f w = GK_R(1.0);
            if (gamma) w = gk_load(gamma, (j * cg + gk_quot(k, splits)) % groups) + offset;
            s2 += w * part[at];
            s1 += w * part[second + at];
        }
        s1 = gk_across_sum(s1, tmp, tx) / n;
        s2 = gk_across_sum(s2, tmp, tx) / n;
        if (ty == 0 && j < sets) { coef[2 * j] = raw ? GK_R(0.0) : s1; coef[2 * j + 1] = s2; }
    }
}

/* dgamma[j], dbeta[j] (+)= sums of the partial sums (i * sets + j) * inner + k. */
GK_KERNEL(norm_bwd_params)(GK_IN(gk_f, part), GK_OUT(gk_t, dgamma), GK_OUT(gk_t, dbeta), gk_i64 outer, gk_i64 sets, gk_i64 inner, gk_i64 second,
                           int tx, int accumulate_gamma, int accumulate_beta)
{
    GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, dgamma); GK_BIND_OUT(gk_t, dbeta);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int ty = gk_lid() / tx, step = GK_BLOCK / tx;
    for (gk_i64 b = gk_bid(0); b * tx < sets; b += gk_nblocks(0)) {
        gk_i64 j = b * tx + (gk_lid() & (tx - 1)), members = j < sets ? outer * inner : 0;
        gk_f s1 = GK_R(0.0), s2 = GK_R(0.0);
        for (gk_i64 first = ty; first < members; first += GK_NORM_SUMS * step) {
            gk_f u1[GK_NORM_SUMS], u2[GK_NORM_SUMS];
            GK_UNROLL for (int u = 0; u < GK_NORM_SUMS; u++) {
                gk_i64 e = first + u * step;
                u1[u] = u2[u] = GK_R(0.0);
                if (e < members) {
                    gk_i64 i = inner > 1 ? gk_quot(e, inner) : e, at = (i * (sets - 1) + j) * inner + e;
                    u2[u] = part[at];
                    u1[u] = part[second + at];
                }
            }
            GK_UNROLL for (int u = 0; u < GK_NORM_SUMS; u++) { s1 += u1[u]; s2 += u2[u]; }
        }
        s1 = gk_across_sum(s1, tmp, tx);
        s2 = gk_across_sum(s2, tmp, tx);
        if (ty == 0 && j < sets) {
            if (dgamma) {
                if (accumulate_gamma) s2 += gk_load(dgamma, j);
                gk_store(dgamma, j, s2);
            }
            if (dbeta) {
                if (accumulate_beta) s1 += gk_load(dbeta, j);
                gk_store(dbeta, j, s1);
            }
        }
    }
}

typedef struct {
    gk_f offset, p;
} gk_norm_bwd_apply_args;

/* dx, and dr (+)= dz for a residual added before the activation. Without coef: statistics were given. */
GK_KERNEL(norm_bwd_apply)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_IN(gk_t, y), GK_IN(gk_t, r), GK_IN(gk_f, mean),
                          GK_IN(gk_f, rstd), GK_IN(gk_f, coef), GK_IN(gk_t, add), GK_OUT(gk_t, dx), GK_OUT(gk_t, dr), gk_i64 n, gk_i64 cols,
                          gk_i64 inner, gk_i64 groups, gk_i64 share, int wide, int affine, int alone, int act, int accumulate, int accumulate_r,
                          GK_BY_VALUE(gk_norm_bwd_apply_args, args))
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, gamma); GK_BIND_IN(gk_t, beta); GK_BIND_IN(gk_t, y); GK_BIND_IN(gk_t, r);
    GK_BIND_IN(gk_f, mean); GK_BIND_IN(gk_f, rstd); GK_BIND_IN(gk_f, coef); GK_BIND_IN(gk_t, add); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(gk_t, dr);
    int w = wide ? GK_W : 1;
    gk_i64 items = n / w, step = (gk_i64)gk_nblocks(0) * GK_BLOCK * GK_NORM_FLIGHT;
    for (gk_i64 t = (gk_i64)gk_bid(0) * GK_BLOCK * GK_NORM_FLIGHT + gk_lid(); t < items; t += step) {
        gk_vec d[GK_NORM_FLIGHT], a[GK_NORM_FLIGHT];
        GK_UNROLL for (int u = 0; u < GK_NORM_FLIGHT; u++) {
            gk_i64 i = t + (gk_i64)u * GK_BLOCK;
            d[u] = gk_item_if(dy, i * w, wide, i < items);
            a[u] = gk_item_if(x, i * w, wide, i < items);
        }
        GK_UNROLL for (int u = 0; u < GK_NORM_FLIGHT; u++) {
            gk_i64 i = (t + (gk_i64)u * GK_BLOCK) * w;
            if (i < n) {
                gk_i64 row = gk_quot(i, cols), e = i - row * cols;
                gk_place at = gk_place_of(row, groups, share);
                gk_f m = GK_R(0.0), q = rstd[at.stat], c1 = GK_R(0.0), c2 = GK_R(0.0);
                gk_vec v;
                if (mean) m = mean[at.stat];
                if (coef) { c1 = coef[2 * at.stat]; c2 = coef[2 * at.stat + 1]; }
                gk_norm_terms(&a[u], &d[u], &v, gamma, beta, y, r, i, e, at.channel, inner, m, q, wide, affine, args.offset, act, args.p);
                if (dr) {
                    gk_vec o = d[u];
                    if (accumulate_r) {
                        o = gk_item(dr, i, wide);
                        GK_UNROLL for (int k = 0; k < GK_W; k++) o.v[k] += d[u].v[k];
                    }
                    gk_put_item(dr, i, o, wide);
                }
                if (dx) {
                    if (alone) q = GK_R(0.0);
                    GK_UNROLL for (int k = 0; k < GK_W; k++) d[u].v[k] = q * (d[u].v[k] * v.v[k] - c1 - a[u].v[k] * c2);
                    if (add) {
                        gk_vec o = gk_item(add, i, wide);
                        GK_UNROLL for (int k = 0; k < GK_W; k++) d[u].v[k] += o.v[k];
                    }
                    if (accumulate) {
                        gk_vec o = gk_item(dx, i, wide);
                        GK_UNROLL for (int k = 0; k < GK_W; k++) d[u].v[k] += o.v[k];
                    }
                    gk_put_item(dx, i, d[u], wide);
                }
            }
        }
    }
}

/* Sums down the columns of rows i * chunk and on of [n, cols], at entry i * cols + j. inner = 0: statistics per row, parameters per column; inner >
 * 0: both of channel j / inner. */
GK_KERNEL(norm_bwd_columns)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_IN(gk_t, y), GK_IN(gk_t, r), GK_IN(gk_f, mean),
                         GK_IN(gk_f, rstd), GK_OUT(gk_f, part), gk_i64 n, gk_i64 cols, gk_i64 inner, gk_i64 chunk, int chunks, gk_i64 second, int tx,
                         int wide, int affine, gk_f offset, int act, gk_f p)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, gamma); GK_BIND_IN(gk_t, beta); GK_BIND_IN(gk_t, y); GK_BIND_IN(gk_t, r);
    GK_BIND_IN(gk_f, mean); GK_BIND_IN(gk_f, rstd); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int ty = gk_lid() / tx, step = GK_BLOCK / tx, w = wide ? GK_W : 1;
    gk_i64 items = cols / w, tiles = (items + tx - 1) / tx;
    for (gk_i64 b = gk_bid(0); b < tiles * chunks; b += gk_nblocks(0)) {
        gk_i64 item = b % tiles * tx + (gk_lid() & (tx - 1)), i = b / tiles, at = item * w, end = i * chunk + chunk;
        gk_vec s1 = gk_zeros(), s2 = gk_zeros(), m = gk_zeros(), q = gk_zeros();
        if (end > n) end = n;
        if (item >= items) end = 0;
        if (inner && item < items) {
            GK_UNROLL for (int k = 0; k < GK_W; k++)
                if (k < w) {
                    gk_i64 c = gk_quot(at + k, inner);
                    q.v[k] = rstd[c];
                    if (mean) m.v[k] = mean[c];
                }
        }
        for (gk_i64 row = i * chunk + ty; row < end; row += 2 * step) {
            gk_vec d[2], a[2], v;
            int rows = row + step < end ? 2 : 1;
            GK_UNROLL for (int u = 0; u < 2; u++) {
                d[u] = gk_item_if(dy, (row + u * step) * cols + at, wide, u < rows);
                a[u] = gk_item_if(x, (row + u * step) * cols + at, wide, u < rows);
            }
            GK_UNROLL for (int u = 0; u < 2; u++)
                if (u < rows) {
                    gk_i64 l = row + u * step;
                    gk_f rm = GK_R(0.0), rq = GK_R(1.0);
                    if (inner) {
                        GK_UNROLL for (int k = 0; k < GK_W; k++) a[u].v[k] = (a[u].v[k] - m.v[k]) * q.v[k];
                    } else {
                        rq = rstd[l];
                        if (mean) rm = mean[l];
                    }
                    gk_norm_terms(&a[u], &d[u], &v, gamma, beta, y, r, l * cols + at, at, 0, inner, rm, rq, wide, affine, offset, act, p);
                    GK_UNROLL for (int k = 0; k < GK_W; k++) { s1.v[k] += d[u].v[k]; s2.v[k] += d[u].v[k] * a[u].v[k]; }
                }
        }
        GK_UNROLL for (int k = 0; k < GK_W; k++)
            if (k == 0 || wide) {
                gk_f t1 = gk_across_sum(s1.v[k], tmp, tx), t2 = gk_across_sum(s2.v[k], tmp, tx);
                if (ty == 0 && item < items) { part[i * cols + at + k] = t2; part[second + i * cols + at + k] = t1; }
            }
    }
}
