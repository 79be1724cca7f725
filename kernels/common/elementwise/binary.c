/* Functions of two tensors and their gradients. GK_OP names the function (elementwise/binary_ops.h).
 *
 *   y[i] = f(a[i], b[i])            da[i] (+)= g_a(dy[i], a[i], b[i]), db[i] (+)= g_b(dy[i], a[i], b[i])
 * All operands at the broadcast shape. _flat: no gaps. Others: merged axes, one list of strides per operand, counted in items. An item is an
 * element, or GK_W elements of the innermost axis when `wide` is set; then bits 1, 2, 3 of `wide` say that a, b, dy move along that axis
 * (otherwise they repeat and are loaded once). Launch: grid-stride over items. Arithmetic in gk_f. Deterministic. Reference: torch.<function>.
 */
#include "common/prelude/coordinates.h"
#include "binary_ops.h"

/* Items that a thread of binary_nd takes. */
#define GK_ND_RUNS 2

// Units: FLOATS64 x BINARY, INTS x INT_BINARY
GK_KERNEL(binary_flat)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_t, y), gk_i64 n, int wide, gk_f p, gk_f q)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_t, y);
    gk_i64 step = gk_gsize(), items = wide ? n / GK_W : 0, i = gk_gid();
    for (; i + (GK_MAP_DEPTH / 2 - 1) * step < items; i += GK_MAP_DEPTH / 2 * step) {
        gk_vec u[GK_MAP_DEPTH / 2], v[GK_MAP_DEPTH / 2];
        GK_UNROLL for (int j = 0; j < GK_MAP_DEPTH / 2; j++) {
            u[j] = gk_loadv(a, (i + j * step) * GK_W);
            v[j] = gk_loadv(b, (i + j * step) * GK_W);
        }
        GK_UNROLL for (int j = 0; j < GK_MAP_DEPTH / 2; j++) {
            GK_UNROLL for (int k = 0; k < GK_W; k++) u[j].v[k] = GK_FWD(u[j].v[k], v[j].v[k], p, q);
            gk_storev(y, (i + j * step) * GK_W, u[j]);
        }
    }
    for (; i < items; i += step) {
        gk_vec u = gk_loadv(a, i * GK_W), v = gk_loadv(b, i * GK_W);
        GK_UNROLL for (int k = 0; k < GK_W; k++) u.v[k] = GK_FWD(u.v[k], v.v[k], p, q);
        gk_storev(y, i * GK_W, u);
    }
    for (i = items * GK_W + gk_gid(); i < n; i += step) gk_store(y, i, GK_FWD(gk_load(a, i), gk_load(b, i), p, q));
}

/* GK_W elements of each of GK_ND_RUNS items, or one element of each repeated. */
GK_FN void gk_load_runs(gk_vec* v, GK_GLOBAL const gk_t* p, const gk_i64* at, int wide)
{
    if (wide) {
        GK_UNROLL for (int u = 0; u < GK_ND_RUNS; u++) v[u] = gk_loadv(p, at[u]);
    } else {
        GK_UNROLL for (int u = 0; u < GK_ND_RUNS; u++) {
            gk_f x = gk_load(p, at[u]);
            GK_UNROLL for (int k = 0; k < GK_W; k++) v[u].v[k] = x;
        }
    }
}

GK_KERNEL(binary_nd)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_t, y), gk_i64 n, int rank, GK_DIMS(shape), GK_DIMS(magic), GK_DIMS(sa), GK_DIMS(sb),
                     GK_DIMS(sy), int wide, gk_f p, gk_f q)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_t, y);
    /* A block takes GK_ND_RUNS runs of neighbouring items, all loaded before the first is used; past the end it loads the last item again. */
    for (gk_i64 i = (gk_i64)gk_bid(0) * (GK_BLOCK * GK_ND_RUNS) + gk_lid(); i < n; i += gk_gsize() * GK_ND_RUNS) {
        gk_i64 ia[GK_ND_RUNS], ib[GK_ND_RUNS], iy[GK_ND_RUNS];
        GK_UNROLL for (int u = 0; u < GK_ND_RUNS; u++) {
            gk_i64 at = i + u * GK_BLOCK < n ? i + u * GK_BLOCK : n - 1;
            ia[u] = ib[u] = iy[u] = 0;
            GK_AXES(at, n, rank, shape, magic, { ia[u] += r * sa.v[d]; ib[u] += r * sb.v[d]; iy[u] += r * sy.v[d]; });
        }
        if (wide) {
            gk_vec v[GK_ND_RUNS], w[GK_ND_RUNS];
            gk_load_runs(v, a, ia, wide & 2);
            gk_load_runs(w, b, ib, wide & 4);
            GK_UNROLL for (int u = 0; u < GK_ND_RUNS; u++) {
                GK_UNROLL for (int k = 0; k < GK_W; k++) v[u].v[k] = GK_FWD(v[u].v[k], w[u].v[k], p, q);
                if (i + u * GK_BLOCK < n) gk_storev(y, iy[u], v[u]);
            }
        } else {
            gk_f v[GK_ND_RUNS], w[GK_ND_RUNS];
            GK_UNROLL for (int u = 0; u < GK_ND_RUNS; u++) { v[u] = gk_load(a, ia[u]); w[u] = gk_load(b, ib[u]); }
            GK_UNROLL for (int u = 0; u < GK_ND_RUNS; u++)
                if (i + u * GK_BLOCK < n) gk_store(y, iy[u], GK_FWD(v[u], w[u], p, q));
        }
    }
}

// Units: FLOATS64 x COMPARISONS, INTS x COMPARISONS
/* y[i] = f(a[i], b[i]) != 0, as u8. Strides count elements; wide: all tensors have no gaps and aligned bases. */
GK_KERNEL(binary_mask)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_u8, y), gk_i64 n, int wide, int rank, GK_DIMS(shape), GK_DIMS(sa), GK_DIMS(sb),
                       GK_DIMS(sy), gk_f p, gk_f q)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_u8, y);
    gk_i64 items = wide ? n / GK_W : 0;
    for (gk_i64 i = gk_gid(); i < items; i += gk_gsize()) {
        gk_vec u = gk_loadv(a, i * GK_W), v = gk_loadv(b, i * GK_W);
        GK_UNROLL for (int k = 0; k < GK_W; k++) u.v[k] = GK_FWD(u.v[k], v.v[k], p, q);
        gk_store_mask(y, i * GK_W, u);
    }
    for (gk_i64 i = items * GK_W + gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ia = 0, ib = 0, iy = 0;
        GK_ND(i, n, rank, shape, { ia += r * sa.v[d]; ib += r * sb.v[d]; iy += r * sy.v[d]; });
        y[iy] = GK_FWD(gk_load(a, ia), gk_load(b, ib), p, q) != 0;
    }
}

#if !GK_IS_FLOAT
// Units: INTS x INT_DIV
/* Integer division: 0 and a report where b is 0. Strides count elements; wide: all tensors have no gaps and aligned bases. */
GK_KERNEL(binary_int_div)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_t, y), gk_i64 n, int wide, int rank, GK_DIMS(shape), GK_DIMS(sa), GK_DIMS(sb),
                          GK_DIMS(sy), GK_OUT(int, err), int code)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, err);
    gk_i64 items = wide ? n / GK_W : 0;
    for (gk_i64 i = gk_gid(); i < items; i += gk_gsize()) {
        gk_vec u = gk_loadv(a, i * GK_W), v = gk_loadv(b, i * GK_W);
        int zero = 0;
        GK_UNROLL for (int k = 0; k < GK_W; k++) {
            if (v.v[k] == 0) zero = 1;
            u.v[k] = v.v[k] == 0 ? 0 : GK_FWD(u.v[k], v.v[k] == 0 ? 1 : v.v[k], 0, 0);
        }
        if (zero) gk_report(err, code);
        gk_storev(y, i * GK_W, u);
    }
    for (gk_i64 i = items * GK_W + gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ia = 0, ib = 0, iy = 0;
        GK_ND(i, n, rank, shape, { ia += r * sa.v[d]; ib += r * sb.v[d]; iy += r * sy.v[d]; });
        gk_f v = gk_load(b, ib);
        if (v == 0) gk_report(err, code);
        gk_store(y, iy, v == 0 ? 0 : GK_FWD(gk_load(a, ia), v, 0, 0));
    }
}
#endif

#if GK_IS_FLOAT
typedef struct {
    gk_dims shape, sdy, sa, sb, sda, sdb;
    gk_i64 n;
    gk_f p, q;
    int rank, wide, acc_a, acc_b;
} gk_binary_bwd_nd_args;

// Units: FLOATS64 x BINARY
/* Gradients at the shape of dy; either of da, db may be null. */
GK_KERNEL(binary_bwd_nd)(GK_IN(gk_t, dy), GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_t, da), GK_OUT(gk_t, db),
                         GK_BY_VALUE(gk_binary_bwd_nd_args, args))
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_t, da); GK_BIND_OUT(gk_t, db);
    for (gk_i64 i = gk_gid(); i < args.n; i += gk_gsize()) {
        gk_i64 ig = 0, ia = 0, ib = 0, ja = 0, jb = 0;
        GK_ND(i, args.n, args.rank, args.shape,
            { ig += r * args.sdy.v[d]; ia += r * args.sa.v[d]; ib += r * args.sb.v[d]; ja += r * args.sda.v[d]; jb += r * args.sdb.v[d]; });
        if (args.wide) {
            gk_vec g = gk_load_wide(dy, ig, args.wide & 8), u = gk_load_wide(a, ia, args.wide & 2), v = gk_load_wide(b, ib, args.wide & 4), oa = g,
                ob = g;
            if (da && args.acc_a) oa = gk_loadv(da, ja);
            if (db && args.acc_b) ob = gk_loadv(db, jb);
            GK_UNROLL for (int k = 0; k < GK_W; k++) {
                gk_f ga, gb;
                GK_BWD(g.v[k], u.v[k], v.v[k], args.p, args.q, &ga, &gb);
                oa.v[k] = args.acc_a ? oa.v[k] + ga : ga;
                ob.v[k] = args.acc_b ? ob.v[k] + gb : gb;
            }
            if (da) gk_storev(da, ja, oa);
            if (db) gk_storev(db, jb, ob);
        } else {
            gk_f ga, gb;
            GK_BWD(gk_load(dy, ig), gk_load(a, ia), gk_load(b, ib), args.p, args.q, &ga, &gb);
            if (da) gk_store(da, ja, args.acc_a ? gk_load(da, ja) + ga : ga);
            if (db) gk_store(db, jb, args.acc_b ? gk_load(db, jb) + gb : gb);
        }
    }
}

/* Gradients where one operand is a matrix x [rows, cols] and the other a row v [cols] that all rows share (row_first: v is the first operand).
 *   dx[r, c] (+)= g_x(dy[r, c], x[r, c], v[c]);   part[k, c] = sum over the rows of slice k of g_v(dy[r, c], x[r, c], v[c])
 * so that the product for v is never stored; binary_bwd_fold adds the slices. dx may be null.
 * Launch: blocks [stripes of columns, slices]. `lanes` (a power of two up to GK_BLOCK) threads lie along the columns, one element each or
 * GK_W when `wide` is set (16-byte aligned bases, cols divisible by GK_W), the others along the rows; slice k takes every nblocks(1)-th group
 * of rows. Sums in gk_f in a fixed order. */
GK_KERNEL(binary_bwd_rows)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, v), GK_OUT(gk_t, dx), GK_OUT(gk_f, part), gk_i64 rows, gk_i64 cols, int lanes,
                           int wide, int row_first, int accumulate, gk_f p, gk_f q)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, v); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK * GK_W];
    int lane = gk_lid() & (lanes - 1), group = gk_lid() / lanes, groups = GK_BLOCK / lanes, width = wide ? GK_W : 1;
    gk_i64 col = ((gk_i64)gk_bid(0) * lanes + lane) * width, step = (gk_i64)gk_nblocks(1) * groups, row = (gk_i64)gk_bid(1) * groups + group;
    gk_vec sum;
    GK_UNROLL for (int k = 0; k < GK_W; k++) sum.v[k] = GK_R(0.0);
    if (col < cols && wide) {
        gk_vec w = gk_loadv(v, col);
        for (; row < rows; row += 2 * step) {
            int two = row + step < rows;
            gk_i64 at[2];
            gk_vec g[2], u[2], o[2];
            at[0] = row * cols + col;
            at[1] = two ? at[0] + step * cols : at[0];
            GK_UNROLL for (int j = 0; j < 2; j++) {
                g[j] = gk_loadv(dy, at[j]);
                u[j] = gk_loadv(x, at[j]);
                o[j] = g[j];
                if (dx && accumulate) o[j] = gk_loadv(dx, at[j]);
            }
            GK_UNROLL for (int j = 0; j < 2; j++) {
                if (j == 0 || two) {
                    GK_UNROLL for (int k = 0; k < GK_W; k++) {
                        gk_f gx, gv;
                        if (row_first) GK_BWD(g[j].v[k], w.v[k], u[j].v[k], p, q, &gv, &gx);
                        else GK_BWD(g[j].v[k], u[j].v[k], w.v[k], p, q, &gx, &gv);
                        sum.v[k] += gv;
                        o[j].v[k] = accumulate ? o[j].v[k] + gx : gx;
                    }
                    if (dx) gk_storev(dx, at[j], o[j]);
                }
            }
        }
    } else if (col < cols) {
        gk_f w = gk_load(v, col);
        for (; row < rows; row += step) {
            gk_i64 at = row * cols + col;
            gk_f gx, gv, g = gk_load(dy, at), u = gk_load(x, at);
            if (row_first) GK_BWD(g, w, u, p, q, &gv, &gx);
            else GK_BWD(g, u, w, p, q, &gx, &gv);
            sum.v[0] += gv;
            if (dx) gk_store(dx, at, accumulate ? gk_load(dx, at) + gx : gx);
        }
    }
    GK_UNROLL for (int k = 0; k < GK_W; k++) tmp[gk_lid() * GK_W + k] = sum.v[k];
    GK_BARRIER();
    if (group == 0 && col < cols) {
        for (int j = 1; j < groups; j++) {
            GK_UNROLL for (int k = 0; k < GK_W; k++) sum.v[k] += tmp[(j * lanes + lane) * GK_W + k];
        }
        GK_UNROLL for (int k = 0; k < GK_W; k++) {
            if (k < width) part[gk_bid(1) * cols + col + k] = sum.v[k];
        }
    }
}

/* dv[c] (+)= sum over k of part[k, c]. Launch: blocks of 8 columns; 32 threads share a column. */
GK_KERNEL(binary_bwd_fold)(GK_IN(gk_f, part), GK_OUT(gk_t, dv), gk_i64 slices, gk_i64 cols, int accumulate)
{
    GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, dv);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_i64 col = (gk_i64)gk_bid(0) * 8 + gk_lid() % 8;
    gk_f sum = GK_R(0.0);
    if (col < cols) {
        for (gk_i64 k = gk_lid() / 8; k < slices; k += GK_BLOCK / 8) sum += part[k * cols + col];
    }
    tmp[gk_lid()] = sum;
    GK_BARRIER();
    if (gk_lid() < 8 && col < cols) {
        for (int k = 1; k < GK_BLOCK / 8; k++) sum += tmp[k * 8 + gk_lid()];
        gk_store(dv, col, accumulate ? gk_load(dv, col) + sum : sum);
    }
}
#endif
