/* Regions of interest of images, brought to one size, and the gradient.
 *
 *   y[k, c, i, j] = mean over the samples of bin (i, j) of box k of x[images[k], c] at the sample, bilinear
 * A box x1 y1 x2 y2 times `scale` (aligned: minus 0.5; else at least one cell wide) is cut into rows x columns bins. A bin has `ratio` samples along
 * an axis, for 0 as many as it is cells long, rounded up: the step between samples is then no more than a cell. All bins of an axis have at most
 * GK_ROI_SAMPLES. A sample outside [-1, n] counts as 0; one beyond the outer cells' centres shows their value. A box that is not finite gives NaN.
 * Launch: grid-stride. Arithmetic in gk_f. Deterministic: one writer per element. Reference: torchvision.ops.roi_align.
 */
#include "common/prelude/window.h"

#define GK_ROI_SAMPLES (1 << 22)
/* Channels per thread. */
#define GK_ROI_CHANNELS 4

/* A box along an axis: sample s of all its bins is at start + (s + 0.5) * step; `per` samples a bin. */
typedef struct { gk_f start, step; int per, bad; } gk_span;

/* A box along its two axes, and what a sample counts. */
typedef struct { gk_span y, x; gk_f share; } gk_roi;

typedef struct { gk_f scale; int height, width, rows, columns, ratio, aligned; } gk_roi_args;

GK_FN gk_span gk_span_of(gk_f from, gk_f to, gk_f scale, int bins, int ratio, int aligned)
{
    gk_span r;
    gk_f offset = aligned ? GK_R(0.5) : GK_R(0.0), size = to * scale - from * scale;
    r.start = from * scale - offset;
    r.bad = gk_isnan(size) || gk_isinf(size) || gk_isinf(r.start);
    if (!aligned && size < GK_R(1.0)) size = GK_R(1.0);
    r.per = ratio;
    if (ratio <= 0) {
        gk_f cells = gk_ceil(size / (gk_f)bins), most = (gk_f)(GK_ROI_SAMPLES / bins);
        /* Division may round a whole number up. */
        if ((cells - GK_R(1.0)) * (gk_f)bins >= size) cells = cells - GK_R(1.0);
        r.per = r.bad || cells < GK_R(1.0) ? 0 : cells > most ? (int)most : (int)cells;
    }
    r.step = r.per > 0 ? size / (gk_f)(bins * r.per) : GK_R(0.0);
    return r;
}

GK_FN gk_roi gk_roi_of(GK_GLOBAL const gk_t* boxes, gk_i64 k, gk_f scale, int rows, int columns, int ratio, int aligned)
{
    gk_roi r;
    r.x = gk_span_of(gk_load(boxes, 4 * k), gk_load(boxes, 4 * k + 2), scale, columns, ratio, aligned);
    r.y = gk_span_of(gk_load(boxes, 4 * k + 1), gk_load(boxes, 4 * k + 3), scale, rows, ratio, aligned);
    gk_f count = (gk_f)r.y.per * (gk_f)r.x.per;
    r.share = count > GK_R(0.0) ? GK_R(1.0) / count : GK_R(1.0);
    return r;
}

/* Of the samples [first, end) a run that holds those between positions a and b. */
typedef struct { int first, end; } gk_run;

GK_FN gk_run gk_run_of(gk_f start, gk_f step, gk_f a, gk_f b, int first, int end)
{
    gk_run r;
    r.first = first;
    r.end = end;
    if (step != GK_R(0.0)) {
        gk_f p = (a - start) / step - GK_R(0.5), q = (b - start) / step - GK_R(0.5);
        if (p > q) {
            gk_f t = p;
            p = q;
            q = t;
        }
        /* Rounding moves the ends by less than a sample. */
        p = gk_floor(p) - GK_R(1.0);
        q = gk_ceil(q) + GK_R(2.0);
        if (p > (gk_f)first) r.first = p < (gk_f)end ? (int)p : end;
        if (q < (gk_f)end) r.end = q > (gk_f)first ? (int)q : first;
    }
    return r;
}

/* Whether a position is inside an axis of n cells, and the place between their centres that it shows. */
GK_FN int gk_inside(gk_f p, int n) { return p >= GK_R(-1.0) && p <= (gk_f)n; }
GK_FN gk_f gk_shown_at(gk_f p, int n)
{
    gk_f top = (gk_f)(n - 1);
    return p <= GK_R(0.0) ? GK_R(0.0) : p >= top ? top : p;
}
/* Whether a sample that lies t behind a cell reads it: those of the two cells around it, the second with weight 0 where it is on the first. */
GK_FN int gk_read(gk_f t) { return t < GK_R(1.0) && t >= GK_R(-1.0); }

// Units: FLOATS64
/* Items: bins of all boxes, once per group of GK_ROI_CHANNELS channels. */
GK_KERNEL(roi_align)(GK_IN(gk_t, x), GK_IN(gk_t, boxes), GK_IN(int, images), GK_OUT(gk_t, y), GK_OUT(int, err), gk_i64 n, gk_i64 samples,
                     gk_i64 channels, gk_i64 groups, int wide, int code, GK_BY_VALUE(gk_roi_args, args))
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, boxes); GK_BIND_IN(int, images); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, err);
    int rows = args.rows, columns = args.columns, height = args.height, width = args.width;
    gk_i64 bins = (gk_i64)rows * columns, cells = (gk_i64)height * width;
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 plane = gk_divide(i, bins), k = gk_divide(plane, groups), first = (plane - k * groups) * GK_ROI_CHANNELS;
        int bin = (int)(i - plane * bins), row = bin / columns, column = bin - row * columns;
        gk_i64 image = gk_index(images, k, wide);
        gk_f sum[GK_ROI_CHANNELS];
        GK_UNROLL for (int u = 0; u < GK_ROI_CHANNELS; u++) sum[u] = GK_R(0.0);
        if (image < 0 || image >= samples) {
            gk_report(err, code);
        } else {
            gk_roi r = gk_roi_of(boxes, k, args.scale, rows, columns, args.ratio, args.aligned);
            if (r.x.bad || r.y.bad) r.share = GK_NAN;
            gk_run ys = gk_run_of(r.y.start, r.y.step, GK_R(-1.0), (gk_f)height, row * r.y.per, (row + 1) * r.y.per);
            gk_run xs = gk_run_of(r.x.start, r.x.step, GK_R(-1.0), (gk_f)width, column * r.x.per, (column + 1) * r.x.per);
            GK_GLOBAL const gk_t* from = x + (image * channels + first) * cells;
            if (r.x.bad || r.y.bad) ys.end = ys.first;
            for (int sy = ys.first; sy < ys.end; sy++) {
                gk_f py = r.y.start + ((gk_f)sy + GK_R(0.5)) * r.y.step;
                if (!gk_inside(py, height)) continue;
                py = gk_shown_at(py, height);
                int top = (int)py, below = top + 1 < height ? top + 1 : top;
                gk_f fy = py - (gk_f)top;
                for (int sx = xs.first; sx < xs.end; sx++) {
                    gk_f px = r.x.start + ((gk_f)sx + GK_R(0.5)) * r.x.step;
                    if (!gk_inside(px, width)) continue;
                    px = gk_shown_at(px, width);
                    int left = (int)px, right = left + 1 < width ? left + 1 : left;
                    gk_f fx = px - (gk_f)left;
                    GK_UNROLL for (int u = 0; u < GK_ROI_CHANNELS; u++) {
                        if (first + u < channels) {
                            GK_GLOBAL const gk_t* a = from + u * cells + (gk_i64)top * width;
                            GK_GLOBAL const gk_t* b = from + u * cells + (gk_i64)below * width;
                            gk_f upper = (GK_R(1.0) - fx) * gk_load(a, left) + fx * gk_load(a, right);
                            gk_f lower = (GK_R(1.0) - fx) * gk_load(b, left) + fx * gk_load(b, right);
                            sum[u] += (GK_R(1.0) - fy) * upper + fy * lower;
                        }
                    }
                }
            }
            GK_UNROLL for (int u = 0; u < GK_ROI_CHANNELS; u++) sum[u] = sum[u] * r.share;
        }
        GK_UNROLL for (int u = 0; u < GK_ROI_CHANNELS; u++)
            if (first + u < channels) gk_store(y, (k * channels + first + u) * bins + bin, sum[u]);
    }
}

/* What the gradient needs of each box: `spans` start and step along y and along x, and a sample's share; `places` its image (-1 for none) and the
 * samples a bin along y and x. Items: boxes. */
GK_KERNEL(roi_align_spans)(GK_IN(gk_t, boxes), GK_IN(int, images), GK_OUT(gk_f, spans), GK_OUT(gk_i64, places), GK_OUT(int, err), gk_i64 n,
                           gk_i64 samples, int wide, int code, GK_BY_VALUE(gk_roi_args, args))
{
    GK_BIND_IN(gk_t, boxes); GK_BIND_IN(int, images); GK_BIND_OUT(gk_f, spans); GK_BIND_OUT(gk_i64, places); GK_BIND_OUT(int, err);
    for (gk_i64 k = gk_gid(); k < n; k += gk_gsize()) {
        gk_roi r = gk_roi_of(boxes, k, args.scale, args.rows, args.columns, args.ratio, args.aligned);
        gk_i64 image = gk_index(images, k, wide);
        int outside = image < 0 || image >= samples;
        if (outside) gk_report(err, code);
        spans[5 * k] = r.y.start;
        spans[5 * k + 1] = r.y.step;
        spans[5 * k + 2] = r.x.start;
        spans[5 * k + 3] = r.x.step;
        spans[5 * k + 4] = r.share;
        places[3 * k] = outside || r.x.bad || r.y.bad ? -1 : image;
        places[3 * k + 1] = r.y.per;
        places[3 * k + 2] = r.x.per;
    }
}

/* dx[s, c, h, w] (+)= sum over the boxes of image s, and of each over the samples next to the cell, of weight * dy. Items: cells of all images, once
 * per group of GK_ROI_CHANNELS channels. */
GK_KERNEL(roi_align_bwd)(GK_IN(gk_t, dy), GK_IN(gk_f, spans), GK_IN(gk_i64, places), GK_OUT(gk_t, dx), gk_i64 n, gk_i64 boxes, gk_i64 channels,
                         gk_i64 groups, int accumulate, GK_BY_VALUE(gk_roi_args, args))
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_f, spans); GK_BIND_IN(gk_i64, places); GK_BIND_OUT(gk_t, dx);
    int rows = args.rows, columns = args.columns, height = args.height, width = args.width;
    gk_i64 bins = (gk_i64)rows * columns, cells = (gk_i64)height * width;
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 plane = gk_divide(i, cells), image = gk_divide(plane, groups), first = (plane - image * groups) * GK_ROI_CHANNELS;
        int cell = (int)(i - plane * cells), h = cell / width, w = cell - h * width;
        gk_f sum[GK_ROI_CHANNELS];
        GK_UNROLL for (int u = 0; u < GK_ROI_CHANNELS; u++) sum[u] = GK_R(0.0);
        for (gk_i64 k = 0; k < boxes; k++) {
            if (places[3 * k] != image) continue;
            int per_y = (int)places[3 * k + 1], per_x = (int)places[3 * k + 2];
            gk_f y0 = spans[5 * k], dy0 = spans[5 * k + 1], x0 = spans[5 * k + 2], dx0 = spans[5 * k + 3];
            gk_run ys = gk_run_of(y0, dy0, (gk_f)(h - 1), (gk_f)(h + 1), 0, rows * per_y);
            gk_run xs = gk_run_of(x0, dx0, (gk_f)(w - 1), (gk_f)(w + 1), 0, columns * per_x);
            if (xs.first >= xs.end) continue;
            GK_GLOBAL const gk_t* from = dy + (k * channels + first) * bins;
            for (int sy = ys.first; sy < ys.end; sy++) {
                gk_f py = y0 + ((gk_f)sy + GK_R(0.5)) * dy0;
                gk_f ty = gk_shown_at(py, height) - (gk_f)h;
                if (!gk_inside(py, height) || !gk_read(ty)) continue;
                gk_f weight = (GK_R(1.0) - gk_fabs(ty)) * spans[5 * k + 4];
                int row = sy / per_y * columns;
                for (int sx = xs.first; sx < xs.end; sx++) {
                    gk_f px = x0 + ((gk_f)sx + GK_R(0.5)) * dx0;
                    gk_f tx = gk_shown_at(px, width) - (gk_f)w, wx = GK_R(1.0) - gk_fabs(tx);
                    if (!gk_inside(px, width) || !gk_read(tx)) continue;
                    int bin = row + sx / per_x;
                    GK_UNROLL for (int u = 0; u < GK_ROI_CHANNELS; u++)
                        if (first + u < channels) sum[u] += weight * wx * gk_load(from, u * bins + bin);
                }
            }
        }
        GK_UNROLL for (int u = 0; u < GK_ROI_CHANNELS; u++) {
            if (first + u < channels) {
                gk_i64 to = (image * channels + first + u) * cells + cell;
                gk_store(dx, to, accumulate ? gk_load(dx, to) + sum[u] : sum[u]);
            }
        }
    }
}
