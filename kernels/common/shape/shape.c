/* Movement and creation. Elements are moved as bits: integer units of 1, 2, 4 and 8 bytes serve all dtypes of that size; float units serve
 * the outputs that accumulate. Strides are in elements of the unit and may be negative or 0. An item is an element, or GK_W elements of the
 * innermost axis where `wide` is set (both sides then step by one there and everything is a multiple of 16 bytes).
 * Launch: grid-stride over items unless stated. Exact (accumulation in gk_f), deterministic.
 */
#include "common/prelude/coordinates.h"

/* Accesses in flight per thread. */
#define GK_SHAPE_DEPTH 4

// Units: ALL
/* y[p] (+)= x[p] over any strides. A block takes GK_SHAPE_DEPTH runs of neighbouring items, all loaded before the first is written; past the end it
 * loads the last item again. Reference: x.contiguous(), x.permute(..).contiguous() where the innermost axis stays or is short. */
GK_KERNEL(copy_nd)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, int wide, int rank, GK_DIMS(shape), GK_DIMS(magic), GK_DIMS(sx), GK_DIMS(sy),
                   int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = (gk_i64)gk_bid(0) * (GK_BLOCK * GK_SHAPE_DEPTH) + gk_lid(); i < n; i += gk_gsize() * GK_SHAPE_DEPTH) {
        gk_i64 to[GK_SHAPE_DEPTH], from[GK_SHAPE_DEPTH];
        GK_UNROLL for (int u = 0; u < GK_SHAPE_DEPTH; u++) {
            gk_i64 ix = 0, iy = 0, at = i + u * GK_BLOCK < n ? i + u * GK_BLOCK : n - 1;
            GK_AXES(at, n, rank, shape, magic, { ix += r * sx.v[d]; iy += r * sy.v[d]; });
            from[u] = ix;
            to[u] = iy;
        }
        if (wide) {
            gk_raw16 q[GK_SHAPE_DEPTH];
            GK_UNROLL for (int u = 0; u < GK_SHAPE_DEPTH; u++) q[u] = gk_load16((GK_GLOBAL const void*)(x + from[u]));
            GK_UNROLL for (int u = 0; u < GK_SHAPE_DEPTH; u++)
                if (i + u * GK_BLOCK < n) gk_putv(y, to[u], gk_split(q[u]), accumulate);
        } else {
            gk_b q[GK_SHAPE_DEPTH];
            GK_UNROLL for (int u = 0; u < GK_SHAPE_DEPTH; u++) q[u] = ((GK_GLOBAL const gk_b*)x)[from[u]];
            GK_UNROLL for (int u = 0; u < GK_SHAPE_DEPTH; u++)
                if (i + u * GK_BLOCK < n) gk_put(y, to[u], q[u], accumulate);
        }
    }
}

/* Side of a tile and elements per row of its local memory (a row more than the side, in words, so that columns hit different banks);
 * 16 KiB, with several 16-byte loads in flight per thread. */
#if GK_W == 2
#define GK_SHAPE_TILE 32
#define GK_SHAPE_PITCH 33
#elif GK_W == 4
#define GK_SHAPE_TILE 64
#define GK_SHAPE_PITCH 65
#elif GK_W == 8
#define GK_SHAPE_TILE 64
#define GK_SHAPE_PITCH 66
#else
#define GK_SHAPE_TILE 128
#define GK_SHAPE_PITCH 132
#endif
#define GK_VECTORS (GK_SHAPE_TILE / GK_W)
#define GK_ROUNDS (GK_SHAPE_TILE * GK_VECTORS / GK_BLOCK)

/* The same where the axis a that is contiguous in y and the axis b that is contiguous in x differ: tiles of a and b go through local memory,
 * so that both sides are accessed along their rows. The other axes (shape, sx, sy; merged, without a and b) are batches. Bit 0 of `wide`:
 * rows of x are multiples of 16 bytes, bit 1: rows of y. Launch: blocks loop over tiles. Reference: x.t().contiguous(). */
GK_KERNEL(copy_tiles)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 tiles, gk_i64 na, gk_i64 nb, gk_i64 sxa, gk_i64 syb, int rank, GK_DIMS(shape),
                      GK_DIMS(sx), GK_DIMS(sy), int wide, int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_b tile[GK_SHAPE_TILE * GK_SHAPE_PITCH];
    int t = gk_lid();
    gk_i64 ta = (na + GK_SHAPE_TILE - 1) / GK_SHAPE_TILE, tb = (nb + GK_SHAPE_TILE - 1) / GK_SHAPE_TILE;
    for (gk_i64 job = gk_bid(0); job < tiles; job += gk_nblocks(0)) {
        gk_i64 rest = job / tb, b0 = (job - rest * tb) * GK_SHAPE_TILE, q = rest / ta, a0 = (rest - q * ta) * GK_SHAPE_TILE;
        gk_i64 ix = a0 * sxa + b0, iy = b0 * syb + a0;
        GK_ROLLED for (int d = rank - 1; d >= 0; d--) {
            gk_i64 next = q / shape.v[d], r = q - next * shape.v[d];
            q = next;
            ix += r * sx.v[d];
            iy += r * sy.v[d];
        }
        int ra = (int)(na - a0 < GK_SHAPE_TILE ? na - a0 : GK_SHAPE_TILE), rb = (int)(nb - b0 < GK_SHAPE_TILE ? nb - b0 : GK_SHAPE_TILE);
        GK_GLOBAL const gk_b* from = (GK_GLOBAL const gk_b*)x + ix;
        if (wide & 1) {
            gk_raw16 in[GK_ROUNDS];
            GK_UNROLL for (int u = 0; u < GK_ROUNDS; u++) {
                int row = (t + u * GK_BLOCK) / GK_VECTORS, col = (t + u * GK_BLOCK) % GK_VECTORS * GK_W;
                if (row < ra && col < rb) in[u] = gk_load16((GK_GLOBAL const void*)(from + row * sxa + col));
            }
            GK_UNROLL for (int u = 0; u < GK_ROUNDS; u++) {
                int row = (t + u * GK_BLOCK) / GK_VECTORS, col = (t + u * GK_BLOCK) % GK_VECTORS * GK_W;
                if (row < ra && col < rb) {
                    gk_bits v = gk_split(in[u]);
                    GK_UNROLL for (int k = 0; k < GK_W; k++) tile[row * GK_SHAPE_PITCH + col + k] = v.v[k];
                }
            }
        } else {
            for (int e = t; e < GK_SHAPE_TILE * GK_SHAPE_TILE; e += GK_BLOCK) {
                int row = e / GK_SHAPE_TILE, col = e % GK_SHAPE_TILE;
                if (row < ra && col < rb) tile[row * GK_SHAPE_PITCH + col] = from[row * sxa + col];
            }
        }
        GK_BARRIER();
        if (wide & 2) {
            GK_UNROLL for (int u = 0; u < GK_ROUNDS; u++) {
                int row = (t + u * GK_BLOCK) / GK_VECTORS, col = (t + u * GK_BLOCK) % GK_VECTORS * GK_W;
                if (row < rb && col < ra) {
                    gk_bits v;
                    GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] = tile[(col + k) * GK_SHAPE_PITCH + row];
                    gk_putv(y, iy + row * syb + col, v, accumulate);
                }
            }
        } else {
            for (int e = t; e < GK_SHAPE_TILE * GK_SHAPE_TILE; e += GK_BLOCK) {
                int row = e / GK_SHAPE_TILE, col = e % GK_SHAPE_TILE;
                if (row < rb && col < ra) gk_put(y, iy + row * syb + col, tile[col * GK_SHAPE_PITCH + row], accumulate);
            }
        }
        GK_BARRIER();
    }
}

/* y[p] = one bit pattern; `lo` and `hi` are the pattern repeated to 8 bytes. `head` elements of a contiguous y lie before the first multiple
 * of 16 bytes. Reference: torch.full. */
GK_KERNEL(fill_flat)(GK_OUT(gk_t, y), gk_i64 n, gk_i64 head, gk_u32 lo, gk_u32 hi)
{
    GK_BIND_OUT(gk_t, y);
    gk_raw16 q = gk_make16(lo, hi, lo, hi);
    gk_b one = gk_split(q).v[0];
    gk_i64 items = (n - head) / GK_W, step = gk_gsize();
    for (gk_i64 i = gk_gid(); i < items; i += step) gk_store16((GK_GLOBAL void*)(y + head + i * GK_W), q);
    for (gk_i64 i = gk_gid(); i < n - items * GK_W; i += step) gk_put(y, i < head ? i : i + items * GK_W, one, 0);
}

/* The same over any strides. */
GK_KERNEL(fill_nd)(GK_OUT(gk_t, y), gk_i64 n, int wide, int rank, GK_DIMS(shape), GK_DIMS(magic), GK_DIMS(sy), gk_u32 lo, gk_u32 hi)
{
    GK_BIND_OUT(gk_t, y);
    gk_raw16 q = gk_make16(lo, hi, lo, hi);
    gk_b one = gk_split(q).v[0];
    /* A block takes GK_SHAPE_DEPTH runs of neighbouring items: blocks of one store each would begin and end faster than the device starts them. */
    for (gk_i64 i = (gk_i64)gk_bid(0) * (GK_BLOCK * GK_SHAPE_DEPTH) + gk_lid(); i < n; i += gk_gsize() * GK_SHAPE_DEPTH) {
        GK_UNROLL for (int u = 0; u < GK_SHAPE_DEPTH; u++) {
            gk_i64 iy = 0, at = i + u * GK_BLOCK;
            if (at >= n) break;
            GK_AXES(at, n, rank, shape, magic, { iy += r * sy.v[d]; });
            if (wide) gk_store16((GK_GLOBAL void*)(y + iy), q);
            else gk_put(y, iy, one, 0);
        }
    }
}

/* A position as a number; 32 bits are converted much faster than 64. */
GK_FN gk_f gk_number(gk_i64 i) { return i >> 31 == 0 ? (gk_f)(int)i : (gk_f)i; }
#define GK_RAMP(start, step, i) ((start) + gk_number(i) * (step))

/* y[i] = start + i*step; `wide`: y is contiguous and 16-byte aligned. Reference: torch.arange. */
GK_KERNEL(arange)(GK_OUT(gk_t, y), gk_i64 n, gk_i64 sy, int wide, gk_f start, gk_f step)
{
    GK_BIND_OUT(gk_t, y);
    gk_i64 items = wide ? n / GK_W : 0;
    for (gk_i64 i = gk_gid(); i < items; i += gk_gsize()) {
        gk_vec v;
        GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] = GK_RAMP(start, step, i * GK_W + k);
        gk_storev(y, i * GK_W, v);
    }
    for (gk_i64 i = items * GK_W + gk_gid(); i < n; i += gk_gsize()) gk_store(y, i * sy, GK_RAMP(start, step, i));
}

#if GK_IS_FLOAT
// Units: FLOATS64
#define GK_BETWEEN(i) ((i) == 0 || (i) < n / 2 ? GK_RAMP(start, step, i) : GK_RAMP(end, -step, n - 1 - (i)))

/* y[i] = start + i*step in the first half, end - (n-1-i)*step in the second; `wide` as in arange. Reference: torch.linspace. */
GK_KERNEL(linspace)(GK_OUT(gk_t, y), gk_i64 n, gk_i64 sy, int wide, gk_f start, gk_f end, gk_f step)
{
    GK_BIND_OUT(gk_t, y);
    gk_i64 items = wide ? n / GK_W : 0;
    for (gk_i64 i = gk_gid(); i < items; i += gk_gsize()) {
        gk_vec v;
        GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] = GK_BETWEEN(i * GK_W + k);
        gk_storev(y, i * GK_W, v);
    }
    for (gk_i64 i = items * GK_W + gk_gid(); i < n; i += gk_gsize()) gk_store(y, i * sy, GK_BETWEEN(i));
}
#endif

// Units: ALL
/* Up to eight contiguous inputs side by side: input k gives columns [ends[k-1], ends[k]) of the rows of y, from column `first` on. Items of
 * [rows, ends[7]]; `row` and all columns in items. Reference: torch.cat. */
GK_KERNEL(concat)(GK_IN(gk_t, x0), GK_IN(gk_t, x1), GK_IN(gk_t, x2), GK_IN(gk_t, x3), GK_IN(gk_t, x4), GK_IN(gk_t, x5), GK_IN(gk_t, x6),
                  GK_IN(gk_t, x7), GK_OUT(gk_t, y), gk_i64 n, int wide, GK_DIMS(shape), GK_DIMS(magic), GK_DIMS(ends), gk_i64 row, gk_i64 first)
{
    GK_BIND_IN(gk_t, x0); GK_BIND_IN(gk_t, x1); GK_BIND_IN(gk_t, x2); GK_BIND_IN(gk_t, x3);
    GK_BIND_IN(gk_t, x4); GK_BIND_IN(gk_t, x5); GK_BIND_IN(gk_t, x6); GK_BIND_IN(gk_t, x7); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 row_at = gk_over(i, n, shape.v[1], magic.v[1]), column = i - row_at * shape.v[1], start = 0, end = ends.v[0];
        GK_GLOBAL const gk_t* x = x0;
#define GK_SHAPE_PART(k, input) if (column >= ends.v[k - 1]) { x = input; start = ends.v[k - 1]; end = ends.v[k]; }
        GK_SHAPE_PART(1, x1) GK_SHAPE_PART(2, x2) GK_SHAPE_PART(3, x3) GK_SHAPE_PART(4, x4) GK_SHAPE_PART(5, x5) GK_SHAPE_PART(6,
            x6) GK_SHAPE_PART(7, x7)
        gk_i64 from = row_at * (end - start) + column - start, to = row_at * row + first + column;
        if (wide) gk_store16((GK_GLOBAL void*)(y + to * GK_W), gk_load16((GK_GLOBAL const void*)(x + from * GK_W)));
        else y[to] = x[from];
    }
}

#define GK_CONSTANT 0
#define GK_REFLECT 1
#define GK_REPLICATE 2
#define GK_CIRCULAR 3

/* The cell of an axis of size n that place q (counted from its first cell) shows; -1 for none. */
GK_FN gk_i64 gk_pad_source(gk_i64 q, gk_i64 n, int mode)
{
    if (q >= 0 && q < n) return q;
    if (mode == GK_REFLECT) return q < 0 ? -q : 2 * (n - 1) - q;
    if (mode == GK_REPLICATE) return q < 0 ? 0 : n - 1;
    if (mode == GK_CIRCULAR) return q < 0 ? q + n : q - n;
    return -1;
}

typedef struct {
    gk_dims shape, magic, sx, sy, size, before;
    gk_i64 n;
    gk_u32 lo, hi;
    int wide, rank, mode, accumulate;
} gk_pad_nd_args;

/* An item of y: its place on the innermost axis, and what the other axes add to positions in x and y; `in`: they lie inside x. */
typedef struct { gk_i64 ix, iy, inner; int in; } gk_pad_place;

GK_FN gk_pad_place gk_pad_place_of(gk_i64 i, const gk_pad_nd_args* args)
{
    gk_pad_place p;
    int last = args->rank - 1;
    p.ix = 0; p.iy = 0; p.inner = 0; p.in = 1;
    GK_AXES(i, args->n, args->rank, args->shape, args->magic, {
        if (d == last) {
            p.inner = r;
        } else {
            gk_i64 s = gk_pad_source(r - args->before.v[d], args->size.v[d], args->mode);
            if (s < 0) p.in = 0;
            p.ix += s * args->sx.v[d];
            p.iy += r * args->sy.v[d];
        }
    });
    return p;
}

/* y[p] (+)= x[p - before], what lies outside x by `mode` (a constant pattern, mirrored, border, wrapped around). `size`: x's shape. Items of
 * y; a wide innermost axis is not padded. A block takes GK_SHAPE_DEPTH runs of neighbouring items, all loaded before the first is written: a thread's
 * next item is GK_BLOCK further on the innermost axis, unless that ends before. Reference: F.pad; wrapped around also torch.roll. */
GK_KERNEL(pad_nd)(GK_IN(gk_t, x), GK_OUT(gk_t, y), GK_BY_VALUE(gk_pad_nd_args, args))
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    gk_raw16 outside = gk_make16(args.lo, args.hi, args.lo, args.hi);
    gk_b one = gk_split(outside).v[0];
    int last = args.rank - 1;
    gk_i64 end = args.shape.v[last], before = args.before.v[last], size = args.size.v[last], sx = args.sx.v[last], sy = args.sy.v[last];
    for (gk_i64 i = (gk_i64)gk_bid(0) * (GK_BLOCK * GK_SHAPE_DEPTH) + gk_lid(); i < args.n; i += gk_gsize() * GK_SHAPE_DEPTH) {
        gk_i64 to[GK_SHAPE_DEPTH], from[GK_SHAPE_DEPTH];
        gk_pad_place p = gk_pad_place_of(i, &args);
        int shown = 0;
        GK_UNROLL for (int u = 0; u < GK_SHAPE_DEPTH; u++) {
            if (u > 0) p.inner += GK_BLOCK;
            if (u > 0 && p.inner >= end && i + u * GK_BLOCK < args.n) p = gk_pad_place_of(i + u * GK_BLOCK, &args);
            gk_i64 s = gk_pad_source(p.inner - before, size, args.mode);
            if (p.in && s >= 0 && i + u * GK_BLOCK < args.n) shown |= 1 << u;
            from[u] = p.ix + s * sx;
            to[u] = p.iy + p.inner * sy;
        }
        if (args.wide) {
            gk_raw16 q[GK_SHAPE_DEPTH];
            GK_UNROLL for (int u = 0; u < GK_SHAPE_DEPTH; u++) {
                q[u] = outside;
                if (shown >> u & 1) q[u] = gk_load16((GK_GLOBAL const void*)(x + from[u]));
            }
            GK_UNROLL for (int u = 0; u < GK_SHAPE_DEPTH; u++)
                if (i + u * GK_BLOCK < args.n) gk_putv(y, to[u], gk_split(q[u]), args.accumulate);
        } else {
            gk_b q[GK_SHAPE_DEPTH];
            GK_UNROLL for (int u = 0; u < GK_SHAPE_DEPTH; u++) {
                q[u] = one;
                if (shown >> u & 1) q[u] = ((GK_GLOBAL const gk_b*)x)[from[u]];
            }
            GK_UNROLL for (int u = 0; u < GK_SHAPE_DEPTH; u++)
                if (i + u * GK_BLOCK < args.n) gk_put(y, to[u], q[u], args.accumulate);
        }
    }
}

#if GK_IS_FLOAT
/* Number of places of a padded axis of size m that may show cell r of an axis of size n. */
GK_FN gk_i64 gk_pad_readers(gk_i64 r, gk_i64 n, gk_i64 m, gk_i64 before, int mode)
{
    if (mode == GK_REPLICATE) {
        gk_i64 lo = r == 0 ? 0 : before + r, hi = r == n - 1 ? m : before + r + 1;
        lo = lo < 0 ? 0 : lo;
        hi = hi > m ? m : hi;
        return hi > lo ? hi - lo : 0;
    }
    if (mode == GK_REFLECT) return 1 + (r > 0 && before - r >= 0) + (r < n - 1 && before + 2 * (n - 1) - r < m);
    if (mode == GK_CIRCULAR) return 1 + (before + r - n >= 0) + (before + r + n < m);
    return 1;
}

/* The k-th of them; outside [0, m) for none. */
GK_FN gk_i64 gk_pad_reader(gk_i64 r, gk_i64 n, gk_i64 before, int mode, gk_i64 k)
{
    if (mode == GK_REPLICATE) {
        gk_i64 lo = r == 0 ? 0 : before + r;
        return (lo < 0 ? 0 : lo) + k;
    }
    if (k == 0) return before + r;
    if (mode == GK_REFLECT) return k == 1 && r > 0 && before - r >= 0 ? before - r : before + 2 * (n - 1) - r;
    return k == 1 && before + r - n >= 0 ? before + r - n : before + r + n;
}

// Units: FLOATS64
/* dx[q] (+)= the sum of dy over all places that show cell q. `shape`: x's, `padded`: y's. Sums in gk_f, in a fixed order. */
GK_KERNEL(pad_bwd_nd)(GK_IN(gk_t, dy), GK_OUT(gk_t, dx), gk_i64 n, int rank, GK_DIMS(shape), GK_DIMS(magic), GK_DIMS(sdy), GK_DIMS(sdx),
                      GK_DIMS(padded), GK_DIMS(before), int mode, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_OUT(gk_t, dx);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 at = 0, places = 1, first = 0, q[8];
        int inside = 1;
        GK_AXES(i, n, rank, shape, magic, {
            gk_i64 p = gk_pad_reader(r, shape.v[d], before.v[d], mode, 0);
            q[d] = r;
            at += r * sdx.v[d];
            first += p * sdy.v[d];
            if (p < 0 || p >= padded.v[d]) inside = 0;
            places *= gk_pad_readers(r, shape.v[d], padded.v[d], before.v[d], mode);
        });
        gk_f sum = 0;
        /* Most cells are shown once. */
        if (places == 1 && inside) {
            sum = gk_load(dy, first);
            places = 0;
        }
        for (gk_i64 place = 0; place < places; place++) {
            gk_i64 rest = place, from = 0;
            int in = 1;
            GK_ROLLED for (int d = rank - 1; d >= 0; d--) {
                gk_i64 c = gk_pad_readers(q[d], shape.v[d], padded.v[d], before.v[d], mode), k = c == 1 ? 0 : rest % c;
                rest = c == 1 ? rest : rest / c;
                gk_i64 p = gk_pad_reader(q[d], shape.v[d], before.v[d], mode, k);
                if (p < 0 || p >= padded.v[d]) in = 0;
                from += p * sdy.v[d];
            }
            if (in) sum += gk_load(dy, from);
        }
        gk_store(dx, at, accumulate ? gk_load(dx, at) + sum : sum);
    }
}

#define GK_REPEATS 0
#define GK_SHAPE_COUNTS 1
#define GK_SHAPE_WINDOWS 2

typedef struct {
    gk_dims shape, magic, sdy, sdx;
    gk_i64 n, len, step, by_step, places, stride;
    int rank, axis, mode, wide, accumulate;
} gk_run_sum_args;

/* dx[.., t, ..] (+)= sum over j of dy[.., t, j, ..] for the places j that show cell t of an axis: `len` copies of each cell, the copies
 * between two offsets, or the windows of `len` every `step` (`by_step` divides by it) that contain it. `sdy` steps to cell t, `stride` from one j
 * to the next. Items of dx.
 * Reference: gradients of torch.repeat_interleave and x.unfold. */
GK_KERNEL(run_sum)(GK_IN(gk_t, dy), GK_IN(gk_i64, offsets), GK_OUT(gk_t, dx), GK_BY_VALUE(gk_run_sum_args, args))
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_i64, offsets); GK_BIND_OUT(gk_t, dx);
    for (gk_i64 i = gk_gid(); i < args.n; i += gk_gsize()) {
        gk_i64 from = 0, at = 0, t = 0, lo, hi;
        GK_AXES(i, args.n, args.rank, args.shape, args.magic, {
            if (d == args.axis) t = r;
            from += r * args.sdy.v[d];
            at += r * args.sdx.v[d];
        });
        if (args.mode == GK_REPEATS) {
            lo = t * args.len;
            hi = lo + args.len;
        } else if (args.mode == GK_SHAPE_COUNTS) {
            lo = offsets[t];
            hi = offsets[t + 1];
        } else {
            lo = t < args.len ? 0 : gk_over(t - args.len, args.n, args.step, args.by_step) + 1;
            hi = gk_over(t, args.n, args.step, args.by_step) + 1;
        }
        if (hi > args.places) hi = args.places;
        if (args.wide) {
            gk_vec sums;
            GK_UNROLL for (int k = 0; k < GK_W; k++) sums.v[k] = 0;
            for (gk_i64 j = lo; j < hi; j++) {
                gk_vec v = gk_loadv(dy, from + j * args.stride);
                GK_UNROLL for (int k = 0; k < GK_W; k++) sums.v[k] += v.v[k];
            }
            if (args.accumulate) {
                gk_vec o = gk_loadv(dx, at);
                GK_UNROLL for (int k = 0; k < GK_W; k++) sums.v[k] = o.v[k] + sums.v[k];
            }
            gk_storev(dx, at, sums);
            continue;
        }
        gk_f sum = 0;
        for (gk_i64 j = lo; j < hi; j++) sum += gk_load(dy, from + j * args.stride);
        gk_store(dx, at, args.accumulate ? gk_load(dx, at) + sum : sum);
    }
}
#endif

// Units: ALL
/* y[.., i, j] (+)= x[.., i, j] where j - i <= k (lower) or >= k (upper), else 0. Reference: torch.tril, torch.triu. */
GK_KERNEL(triangle_nd)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, int wide, int rank, GK_DIMS(shape), GK_DIMS(magic), GK_DIMS(sx), GK_DIMS(sy),
                       int upper, gk_i64 k, int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ix = 0, iy = 0, row = 0, col = 0;
        GK_AXES(i, n, rank, shape, magic, {
            if (d == rank - 1) col = r;
            else if (d == rank - 2) row = r;
            ix += r * sx.v[d];
            iy += r * sy.v[d];
        });
        if (wide) {
            gk_bits b = gk_split(gk_load16((GK_GLOBAL const void*)(x + ix)));
            GK_UNROLL for (int e = 0; e < GK_W; e++) {
                gk_i64 off = col * GK_W + e - row;
                if (upper ? off < k : off > k) b.v[e] = 0;
            }
            gk_putv(y, iy, b, accumulate);
        } else {
            gk_i64 off = col - row;
            gk_put(y, iy, (upper ? off < k : off > k) ? (gk_b)0 : ((GK_GLOBAL const gk_b*)x)[ix], accumulate);
        }
    }
}
