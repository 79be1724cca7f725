/* Movement and creation. Elements are moved as bits: integer units of 1, 2, 4 and 8 bytes serve all dtypes of that size; float units serve
 * the outputs that accumulate. Strides are in elements of the unit and may be negative or 0. An item is an element, or GK_W elements of the
 * innermost axis where `wide` is set (both sides then step by one there and everything is a multiple of 16 bytes).
 * Launch: grid-stride over items unless stated. Exact (accumulation in gk_f), deterministic.
 */
#include "coords.h"

/* Accesses in flight per work-item. */
#define GK_DEPTH 4

/* y[p] (+)= x[p] over any strides. Reference: x.contiguous(), x.permute(..).contiguous() where the innermost axis stays or is short. */
GK_KERNEL(copy_nd)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, int wide, int rank, gk_dims shape, gk_dims magic, gk_dims sx, gk_dims sy, int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    gk_i64 step = gk_gsize(), i = gk_gid();
    if (!accumulate) {
        for (; i + (GK_DEPTH - 1) * step < n; i += GK_DEPTH * step) {
            gk_i64 to[GK_DEPTH], from[GK_DEPTH];
            GK_UNROLL for (int u = 0; u < GK_DEPTH; u++) {
                gk_i64 ix = 0, iy = 0;
                GK_AXES(i + u * step, n, rank, shape, magic, { ix += r * sx.v[d]; iy += r * sy.v[d]; });
                from[u] = ix;
                to[u] = iy;
            }
            if (wide) {
                gk_raw16 q[GK_DEPTH];
                GK_UNROLL for (int u = 0; u < GK_DEPTH; u++) q[u] = gk_load16((GK_GLOBAL const void*)(x + from[u]));
                GK_UNROLL for (int u = 0; u < GK_DEPTH; u++) gk_store16((GK_GLOBAL void*)(y + to[u]), q[u]);
            } else {
                gk_t q[GK_DEPTH];
                GK_UNROLL for (int u = 0; u < GK_DEPTH; u++) q[u] = x[from[u]];
                GK_UNROLL for (int u = 0; u < GK_DEPTH; u++) y[to[u]] = q[u];
            }
        }
    }
    for (; i < n; i += step) {
        gk_i64 ix = 0, iy = 0;
        GK_AXES(i, n, rank, shape, magic, { ix += r * sx.v[d]; iy += r * sy.v[d]; });
        if (wide) gk_putv(y, iy, gk_split(gk_load16((GK_GLOBAL const void*)(x + ix))), accumulate);
        else gk_put(y, iy, ((GK_GLOBAL const gk_b*)x)[ix], accumulate);
    }
}

/* Side of a tile and elements per row of its local memory (a row more than the side, in words, so that columns hit different banks);
 * 16 KiB, with several 16-byte loads in flight per work-item. */
#if GK_W == 2
#define GK_TILE 32
#define GK_PITCH 33
#elif GK_W == 4
#define GK_TILE 64
#define GK_PITCH 65
#elif GK_W == 8
#define GK_TILE 64
#define GK_PITCH 66
#else
#define GK_TILE 128
#define GK_PITCH 132
#endif
#define GK_VECTORS (GK_TILE / GK_W)
#define GK_ROUNDS (GK_TILE * GK_VECTORS / GK_BLOCK)

/* The same where the axis a that is contiguous in y and the axis b that is contiguous in x differ: tiles of a and b go through local memory,
 * so that both sides are accessed along their rows. The other axes (shape, sx, sy; merged, without a and b) are batches. Bit 0 of `wide`:
 * rows of x are multiples of 16 bytes, bit 1: rows of y. Launch: blocks loop over tiles. Reference: x.t().contiguous(). */
GK_KERNEL(copy_tiles)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 tiles, gk_i64 na, gk_i64 nb, gk_i64 sxa, gk_i64 syb, int rank, gk_dims shape, gk_dims sx,
                      gk_dims sy, int wide, int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_b tile[GK_TILE * GK_PITCH];
    int t = gk_lid();
    gk_i64 ta = (na + GK_TILE - 1) / GK_TILE, tb = (nb + GK_TILE - 1) / GK_TILE;
    for (gk_i64 job = gk_bid(0); job < tiles; job += gk_nblocks(0)) {
        gk_i64 rest = job / tb, b0 = (job - rest * tb) * GK_TILE, q = rest / ta, a0 = (rest - q * ta) * GK_TILE;
        gk_i64 ix = a0 * sxa + b0, iy = b0 * syb + a0;
        for (int d = rank - 1; d >= 0; d--) {
            gk_i64 next = q / shape.v[d], r = q - next * shape.v[d];
            q = next;
            ix += r * sx.v[d];
            iy += r * sy.v[d];
        }
        int ra = (int)(na - a0 < GK_TILE ? na - a0 : GK_TILE), rb = (int)(nb - b0 < GK_TILE ? nb - b0 : GK_TILE);
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
                    GK_UNROLL for (int k = 0; k < GK_W; k++) tile[row * GK_PITCH + col + k] = v.v[k];
                }
            }
        } else {
            for (int e = t; e < GK_TILE * GK_TILE; e += GK_BLOCK) {
                int row = e / GK_TILE, col = e % GK_TILE;
                if (row < ra && col < rb) tile[row * GK_PITCH + col] = from[row * sxa + col];
            }
        }
        GK_BARRIER();
        if (wide & 2) {
            GK_UNROLL for (int u = 0; u < GK_ROUNDS; u++) {
                int row = (t + u * GK_BLOCK) / GK_VECTORS, col = (t + u * GK_BLOCK) % GK_VECTORS * GK_W;
                if (row < rb && col < ra) {
                    gk_bits v;
                    GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] = tile[(col + k) * GK_PITCH + row];
                    gk_putv(y, iy + row * syb + col, v, accumulate);
                }
            }
        } else {
            for (int e = t; e < GK_TILE * GK_TILE; e += GK_BLOCK) {
                int row = e / GK_TILE, col = e % GK_TILE;
                if (row < rb && col < ra) gk_put(y, iy + row * syb + col, tile[col * GK_PITCH + row], accumulate);
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
GK_KERNEL(fill_nd)(GK_OUT(gk_t, y), gk_i64 n, int wide, int rank, gk_dims shape, gk_dims magic, gk_dims sy, gk_u32 lo, gk_u32 hi)
{
    GK_BIND_OUT(gk_t, y);
    gk_raw16 q = gk_make16(lo, hi, lo, hi);
    gk_b one = gk_split(q).v[0];
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 iy = 0;
        GK_AXES(i, n, rank, shape, magic, { iy += r * sy.v[d]; });
        if (wide) gk_store16((GK_GLOBAL void*)(y + iy), q);
        else gk_put(y, iy, one, 0);
    }
}
