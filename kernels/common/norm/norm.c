/* Normalisation, forward: y = act((x - mean) * rstd * (gamma + offset) + beta), rstd = 1/sqrt(var + eps), var divided by n (the biased one).
 *
 *   layer norm   statistics per row; gamma and beta per column (inner = 0)
 *   RMS norm     the same with mean = 0 (raw)
 *   group norm   a row is a group [cg, inner] of channels; gamma and beta per channel
 *   batch norm   statistics per channel over the rows (n, c) of [N, C, S]
 * With r: x + r takes the place of x and is written to s, where wanted (not `late`); or r is added before act (`late`).
 * _rows: a row per `lanes` threads, in registers as far as they reach, the rest read twice.  _partial, _combine, _apply: statistics of runs of rows,
 * combined, and the map.  _cols: moments of columns.  Moments are found in two passes over registers and combined after Chan et al.; never from
 * E[x^2]. Launch: blocks on axis 0 loop. Arithmetic in gk_f. Deterministic. Reference: F.layer_norm, F.rms_norm, F.group_norm, F.batch_norm.
 */
#include "norm.h"

#define GK_NORM_DEPTH 4                        /* 16-byte accesses in flight where a row is read in a loop */
#define GK_NORM_FLIGHT (GK_W >= 8 ? 4 : 1)     /* vectors per thread of _apply */

/* Operands of a row that stay the same along it. */
typedef struct {
    GK_GLOBAL const gk_t* x;
    GK_GLOBAL const gk_t* r;
    GK_GLOBAL const gk_t* gamma;
    GK_GLOBAL const gk_t* beta;
    GK_GLOBAL gk_t* y;
    GK_GLOBAL gk_t* s;
    gk_i64 start, first, inner;
    gk_f offset, p;
    int affine, act;
} gk_norm_row;

GK_FN gk_vec gk_row_take(const gk_norm_row* o, gk_i64 i, int wide)
{
    gk_vec v = gk_item(o->x, i, wide);
    if (o->r) {
        gk_vec b = gk_item(o->r, i, wide);
        GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] += b.v[k];
    }
    return v;
}
GK_FN void gk_row_give(const gk_norm_row* o, gk_i64 i, gk_vec v, gk_f mean, gk_f rstd, int wide)
{
    gk_i64 e = i - o->start;
    gk_vec g = gk_zeros(), b = gk_zeros();
    if (o->gamma) g = gk_affine(o->gamma, e, o->first, o->inner, wide, o->affine);
    if (o->beta) b = gk_affine(o->beta, e, o->first, o->inner, wide, o->affine);
    if (o->s) gk_put_item(o->s, i, v, wide);
    gk_put_item(o->y, i, gk_norm_out(v, mean, rstd, o->gamma != 0, g, o->offset, b, o->act, o->p), wide);
}

/* Moments of the items of a run from item `skip` on and of its ends. */
GK_FN void gk_run_moments(gk_moments* m, const gk_norm_row* o, gk_run run, gk_i64 skip, int lane, int lanes, int raw)
{
    gk_i64 i = skip + lane;
    for (; i + (GK_NORM_DEPTH - 1) * lanes < run.items; i += GK_NORM_DEPTH * lanes) {
        gk_vec a[GK_NORM_DEPTH];
        gk_f v[GK_NORM_DEPTH * GK_W];
        GK_UNROLL for (int u = 0; u < GK_NORM_DEPTH; u++) a[u] = gk_row_take(o, run.items_from + (i + u * lanes) * GK_W, 1);
        GK_UNROLL for (int u = 0; u < GK_NORM_DEPTH; u++)
            GK_UNROLL for (int k = 0; k < GK_W; k++) v[u * GK_W + k] = a[u].v[k];
        gk_moments_take(m, v, GK_NORM_DEPTH * GK_W, raw);
    }
    for (; i < run.items; i += lanes) {
        gk_vec a = gk_row_take(o, run.items_from + i * GK_W, 1);
        gk_moments_take(m, a.v, GK_W, raw);
    }
    for (i = run.from + lane; i < run.items_from; i += lanes) { gk_vec a = gk_row_take(o, i, 0); gk_moments_take(m, a.v, 1, raw); }
    for (i = run.tail_from + lane; i < run.to; i += lanes) { gk_vec a = gk_row_take(o, i, 0); gk_moments_take(m, a.v, 1, raw); }
}

typedef struct {
    gk_i64 groups, cg;
    gk_f eps, offset, p;
    int phase;
} gk_norm_rows_args;

/* Rows by groups of lanes; a thread holds `keep` 16-byte items of a row in registers, the rest is read twice. */
GK_FN void gk_norm_by_rows(gk_norm_row o, gk_i64 rows, gk_i64 cols, int lanes, int wide, int raw, const gk_norm_rows_args* args, GK_GLOBAL gk_f* mean,
                           GK_GLOBAL gk_f* rstd, GK_GLOBAL gk_f* var, GK_LOCAL_PTR gk_f* tmp, const int keep)
{
    int lane = gk_lid() & (lanes - 1);
    gk_i64 per = GK_BLOCK / lanes;
    o.offset = args->offset; o.p = args->p;
    for (gk_i64 b = (gk_i64)gk_bid(0) * per; b < rows; b += gk_nblocks(0) * per) {
        gk_i64 row = b + gk_lid() / lanes, end = row < rows ? (row + 1) * cols : row * cols;
        gk_run run = gk_run_of(row * cols, end, wide, args->phase);
        gk_moments m = gk_moments_none();
        gk_vec a[64 / GK_W];
        gk_f sum = GK_R(0.0), q = GK_R(0.0), scale;
        int kept = 0;
        o.start = row * cols;
        o.first = o.inner ? row % args->groups * args->cg : 0;
        GK_UNROLL for (int u = 0; u < keep; u++) {
            gk_i64 i = lane + u * lanes;
            if (i < run.items) {
                a[u] = gk_row_take(&o, run.items_from + i * GK_W, 1);
                kept = u + 1;
            } else {
                a[u] = gk_zeros();
            }
        }
        if (kept > 0) {
            if (!raw) {
                GK_UNROLL for (int u = 0; u < keep; u++)
                    GK_UNROLL for (int k = 0; k < GK_W; k++) sum += a[u].v[k];
                sum /= (gk_f)(kept * GK_W);
            }
            GK_UNROLL for (int u = 0; u < keep; u++)
                if (u < kept) {
                    GK_UNROLL for (int k = 0; k < GK_W; k++) q += (a[u].v[k] - sum) * (a[u].v[k] - sum);
                }
            m.n = (gk_f)(kept * GK_W); m.mean = sum; m.m2 = q;
        }
        gk_run_moments(&m, &o, run, (gk_i64)keep * lanes, lane, lanes, raw);
        m = gk_moments_group(m, (gk_f)cols, tmp, lanes, raw);
        scale = GK_R(1.0) / gk_sqrt(m.m2 / (gk_f)cols + args->eps);
        if (lane == 0 && row < rows) {
            if (mean) mean[row] = m.mean;
            if (rstd) rstd[row] = scale;
            if (var) var[row] = m.m2 / (gk_f)cols;
        }
        GK_UNROLL for (int u = 0; u < keep; u++)
            if (u < kept) gk_row_give(&o, run.items_from + (lane + (gk_i64)u * lanes) * GK_W, a[u], m.mean, scale, 1);
        for (gk_i64 i = (gk_i64)keep * lanes + lane; i < run.items; i += lanes)
            gk_row_give(&o, run.items_from + i * GK_W, gk_row_take(&o, run.items_from + i * GK_W, 1), m.mean, scale, 1);
        for (gk_i64 i = run.from + lane; i < run.items_from; i += lanes) gk_row_give(&o, i, gk_row_take(&o, i, 0), m.mean, scale, 0);
        for (gk_i64 i = run.tail_from + lane; i < run.to; i += lanes) gk_row_give(&o, i, gk_row_take(&o, i, 0), m.mean, scale, 0);
    }
}

#define GK_NORM_BIND() \
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, r); GK_BIND_IN(gk_t, gamma); GK_BIND_IN(gk_t, beta); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, s); \
    GK_BIND_OUT(gk_f, mean); GK_BIND_OUT(gk_f, rstd); GK_BIND_OUT(gk_f, var); \
    GK_LOCAL gk_f tmp[GK_BLOCK]; \
    gk_norm_row o; \
    o.x = x; o.r = r; o.gamma = gamma; o.beta = beta; o.y = y; o.s = s; \
    o.inner = inner; o.affine = affine; o.act = act

// Units: FLOATS64 x EPILOGUES
GK_KERNEL(norm_rows)(GK_IN(gk_t, x), GK_IN(gk_t, r), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_OUT(gk_t, y), GK_OUT(gk_t, s), GK_OUT(gk_f, mean),
                     GK_OUT(gk_f, rstd), GK_OUT(gk_f, var), gk_i64 rows, gk_i64 cols, gk_i64 inner, int lanes, int wide,
                     int affine, int raw, int act, GK_BY_VALUE(gk_norm_rows_args, args))
{
    GK_NORM_BIND();
    gk_norm_by_rows(o, rows, cols, lanes, wide, raw, &args, mean, rstd, var, tmp, 32 / GK_W);
}
GK_KERNEL(norm_rows_looped)(GK_IN(gk_t, x), GK_IN(gk_t, r), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_OUT(gk_t, y), GK_OUT(gk_t, s),
                            GK_OUT(gk_f, mean), GK_OUT(gk_f, rstd), GK_OUT(gk_f, var), gk_i64 rows, gk_i64 cols, gk_i64 inner, int lanes, int wide,
                            int affine, int raw, int act, GK_BY_VALUE(gk_norm_rows_args, args))
{
    GK_NORM_BIND();
    gk_norm_by_rows(o, rows, cols, lanes, wide, raw, &args, mean, rstd, var, tmp, 64 / GK_W);
}
#undef GK_NORM_BIND

/* part[2b], part[2b + 1] = mean and m2 of run b = row * splits + k: elements k * chunk and on. */
GK_KERNEL(norm_partial)(GK_IN(gk_t, x), GK_IN(gk_t, r), GK_OUT(gk_f, part), gk_i64 rows, gk_i64 cols, int splits, gk_i64 chunk, int lanes, int wide,
                     int phase, int raw)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, r); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int lane = gk_lid() & (lanes - 1);
    gk_i64 per = GK_BLOCK / lanes, runs = rows * splits;
    for (gk_i64 f = (gk_i64)gk_bid(0) * per; f < runs; f += gk_nblocks(0) * per) {
        gk_i64 b = f + gk_lid() / lanes;
        gk_run run = gk_run_of_block(b < runs ? b : 0, cols, splits, chunk, wide, phase);
        gk_norm_row o;
        gk_moments m = gk_moments_none();
        o.x = x; o.r = r;
        if (b < runs) gk_run_moments(&m, &o, run, 0, lane, lanes, raw);
        m = gk_moments_group(m, (gk_f)(run.to - run.from), tmp, lanes, raw);
        if (lane == 0 && b < runs) { part[2 * b] = m.mean; part[2 * b + 1] = m.m2; }
    }
}

/* part of column j of rows i * chunk and on of x [n, cols], at entry i * cols + j. Threads of a block lie over tx items side by side. */
GK_KERNEL(norm_columns)(GK_IN(gk_t, x), GK_OUT(gk_f, part), gk_i64 n, gk_i64 cols, gk_i64 chunk, int chunks, int tx, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int ty = gk_lid() / tx, step = GK_BLOCK / tx, w = wide ? GK_W : 1;
    gk_i64 items = cols / w, tiles = (items + tx - 1) / tx;
    for (gk_i64 b = gk_bid(0); b < tiles * chunks; b += gk_nblocks(0)) {
        gk_i64 item = b % tiles * tx + (gk_lid() & (tx - 1)), i = b / tiles, at = item * w, k = i * chunk + ty, end = i * chunk + chunk;
        gk_moments m[GK_W];
        gk_f count;
        if (end > n) end = n;
        count = (gk_f)(end - i * chunk);
        if (item >= items) end = 0;
        GK_UNROLL for (int c = 0; c < GK_W; c++) m[c] = gk_moments_none();
        for (; k + (GK_NORM_DEPTH - 1) * step < end; k += GK_NORM_DEPTH * step) {
            gk_vec a[GK_NORM_DEPTH];
            GK_UNROLL for (int u = 0; u < GK_NORM_DEPTH; u++) a[u] = gk_item(x, (k + u * step) * cols + at, wide);
            GK_UNROLL for (int c = 0; c < GK_W; c++) {
                gk_f v[GK_NORM_DEPTH];
                GK_UNROLL for (int u = 0; u < GK_NORM_DEPTH; u++) v[u] = a[u].v[c];
                if (c == 0 || wide) gk_moments_take(&m[c], v, GK_NORM_DEPTH, 0);
            }
        }
        for (; k < end; k += step) {
            gk_vec a = gk_item(x, k * cols + at, wide);
            GK_UNROLL for (int c = 0; c < GK_W; c++)
                if (c == 0 || wide) gk_moments_take(&m[c], &a.v[c], 1, 0);
        }
        GK_UNROLL for (int c = 0; c < GK_W; c++)
            if (c == 0 || wide) {
                gk_f mean = gk_across_sum(m[c].n * m[c].mean, tmp, tx) / count, d = m[c].mean - mean, m2;
                if (m[c].n == GK_R(0.0)) d = GK_R(0.0);
                m2 = gk_across_sum(m[c].m2 + m[c].n * d * d, tmp, tx);
                if (ty == 0 && item < items) { part[2 * (i * cols + at + c)] = mean; part[2 * (i * cols + at + c) + 1] = m2; }
            }
    }
}

/* Values that run k of row group i stands for: runs cut an axis of `total` elements into pieces of `chunk`, the axis of i (by_outer) or of k. */
GK_FN gk_f gk_run_count(gk_i64 i, gk_i64 k, gk_i64 chunk, gk_i64 total, int by_outer)
{
    gk_i64 left = total - (by_outer ? i : k) * chunk;
    return (gk_f)(left < chunk ? left : chunk);
}

/* Statistics of set j from the runs (i * sets + j) * inner + k, i < outer, k < inner, of `n` values in all, and the running ones. */
GK_KERNEL(norm_combine)(GK_IN(gk_f, part), GK_OUT(gk_f, mean), GK_OUT(gk_f, rstd), GK_OUT(gk_f, running_mean), GK_OUT(gk_f, running_var),
                        GK_IN(gk_i64, counter), gk_i64 outer, gk_i64 sets, gk_i64 inner, int tx, gk_i64 chunk, gk_i64 total, int by_outer, gk_f n,
                        int raw, gk_f eps, gk_f momentum)
{
    GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_f, mean); GK_BIND_OUT(gk_f, rstd); GK_BIND_OUT(gk_f, running_mean); GK_BIND_OUT(gk_f, running_var);
    GK_BIND_IN(gk_i64, counter);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int ty = gk_lid() / tx, step = GK_BLOCK / tx;
    for (gk_i64 b = gk_bid(0); b * tx < sets; b += gk_nblocks(0)) {
        gk_i64 j = b * tx + (gk_lid() & (tx - 1)), members = j < sets ? outer * inner : 0;
        gk_f sum = GK_R(0.0), m2 = GK_R(0.0), m;
        if (!raw)
            for (gk_i64 e = ty; e < members; e += step) {
                gk_i64 i = gk_quot(e, inner), k = e - i * inner;
                sum += gk_run_count(i, k, chunk, total, by_outer) * part[2 * ((i * sets + j) * inner + k)];
            }
        m = raw ? GK_R(0.0) : gk_across_sum(sum, tmp, tx) / n;
        for (gk_i64 e = ty; e < members; e += step) {
            gk_i64 i = gk_quot(e, inner), k = e - i * inner, at = 2 * ((i * sets + j) * inner + k);
            gk_f d = part[at] - m;
            m2 += part[at + 1] + gk_run_count(i, k, chunk, total, by_outer) * d * d;
        }
        m2 = gk_across_sum(m2, tmp, tx);
        if (ty == 0 && j < sets) {
            gk_f f = counter ? GK_R(1.0) / (gk_f)(counter[0] + 1) : momentum;
            if (mean) mean[j] = m;
            rstd[j] = GK_R(1.0) / gk_sqrt(m2 / n + eps);
            if (running_mean) {
                running_mean[j] = (GK_R(1.0) - f) * running_mean[j] + f * m;
                running_var[j] = (GK_R(1.0) - f) * running_var[j] + f * (m2 / (n - GK_R(1.0)));
            }
        }
    }
}

/* Running statistics from those of N instances of n values per channel: means over the instances. Thread per channel. */
GK_KERNEL(norm_running)(GK_IN(gk_f, mean), GK_IN(gk_f, var), GK_OUT(gk_f, running_mean), GK_OUT(gk_f, running_var), GK_IN(gk_i64, counter),
                        gk_i64 instances, gk_i64 channels, gk_f n, gk_f momentum)
{
    GK_BIND_IN(gk_f, mean); GK_BIND_IN(gk_f, var); GK_BIND_OUT(gk_f, running_mean); GK_BIND_OUT(gk_f, running_var); GK_BIND_IN(gk_i64, counter);
    gk_f f = counter ? GK_R(1.0) / (gk_f)(counter[0] + 1) : momentum, unbiased = n / (n - GK_R(1.0));
    for (gk_i64 c = gk_gid(); c < channels; c += gk_gsize()) {
        gk_f m = GK_R(0.0), v = GK_R(0.0);
        for (gk_i64 i = 0; i < instances; i++) { m += mean[i * channels + c]; v += var[i * channels + c]; }
        running_mean[c] = (GK_R(1.0) - f) * running_mean[c] + f * (m / (gk_f)instances);
        running_var[c] = (GK_R(1.0) - f) * running_var[c] + f * (unbiased * v / (gk_f)instances);
    }
}

/* mean and rstd of inference from running statistics. */
GK_KERNEL(norm_given)(GK_IN(gk_f, running_mean), GK_IN(gk_f, running_var), GK_OUT(gk_f, mean), GK_OUT(gk_f, rstd), gk_i64 n, gk_f eps)
{
    GK_BIND_IN(gk_f, running_mean); GK_BIND_IN(gk_f, running_var); GK_BIND_OUT(gk_f, mean); GK_BIND_OUT(gk_f, rstd);
    for (gk_i64 c = gk_gid(); c < n; c += gk_gsize()) {
        mean[c] = running_mean[c];
        rstd[c] = GK_R(1.0) / gk_sqrt(running_var[c] + eps);
    }
}

GK_KERNEL(norm_count)(GK_OUT(gk_i64, counter))
{
    GK_BIND_OUT(gk_i64, counter);
    if (gk_gid() == 0) counter[0] += 1;
}

/* The map alone, over rows of `cols`; statistics per row, or (by_channel) of channel row % groups. */
GK_KERNEL(norm_apply)(GK_IN(gk_t, x), GK_IN(gk_t, r), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_IN(gk_f, mean), GK_IN(gk_f, rstd), GK_OUT(gk_t, y),
                      GK_OUT(gk_t, s), gk_i64 n, gk_i64 cols, gk_i64 inner, gk_i64 groups, gk_i64 cg, int by_channel, int late, int wide, int affine,
                      gk_f offset, int act, gk_f p)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, r); GK_BIND_IN(gk_t, gamma); GK_BIND_IN(gk_t, beta); GK_BIND_IN(gk_f, mean); GK_BIND_IN(gk_f, rstd);
    GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, s);
    int w = wide ? GK_W : 1;
    gk_i64 items = n / w, step = (gk_i64)gk_nblocks(0) * GK_BLOCK * GK_NORM_FLIGHT;
    for (gk_i64 t = (gk_i64)gk_bid(0) * GK_BLOCK * GK_NORM_FLIGHT + gk_lid(); t < items; t += step) {
        gk_vec a[GK_NORM_FLIGHT], c[GK_NORM_FLIGHT];
        GK_UNROLL for (int u = 0; u < GK_NORM_FLIGHT; u++) {
            gk_i64 i = t + (gk_i64)u * GK_BLOCK;
            a[u] = gk_item_if(x, i * w, wide, i < items);
            c[u] = gk_item_if(r, i * w, wide, r && i < items);
        }
        GK_UNROLL for (int u = 0; u < GK_NORM_FLIGHT; u++) {
            gk_i64 i = (t + (gk_i64)u * GK_BLOCK) * w;
            if (i < n) {
                gk_i64 row = gk_quot(i, cols), e = i - row * cols, channel = row - gk_quot(row, groups) * groups, stat = by_channel ? channel : row;
                gk_i64 first = channel * cg;
                gk_f m = mean ? mean[stat] : GK_R(0.0), q = rstd[stat];
                gk_vec g = gk_zeros(), b = gk_zeros();
                if (gamma) g = gk_affine(gamma, e, first, inner, wide, affine);
                if (beta) b = gk_affine(beta, e, first, inner, wide, affine);
                if (r) {
                    GK_UNROLL for (int k = 0; k < GK_W; k++) {
                        if (late) b.v[k] += c[u].v[k];
                        else a[u].v[k] += c[u].v[k];
                    }
                }
                if (s) gk_put_item(s, i, a[u], wide);
                gk_put_item(y, i, gk_norm_out(a[u], m, q, gamma != 0, g, offset, b, act, p), wide);
            }
        }
    }
}
