/* Products of quantized operands: y [m, n] = A [m, k] B^T, B [n, k], both decoded while they are loaded; codes.h has the codes and forms.
 *
 * Sums in f32 in an order that depends on sizes alone (quant_int: in 32-bit integers, exact). Deterministic. Reference: decoding, then a matrix
 * product.
 */
#include "codes.h"

#define GK_QUANT_TILE 64
#define GK_QUANT_STEP 32
#define GK_QUANT_PITCH (GK_QUANT_TILE + 1)
#define GK_TAKE (GK_QUANT_STEP * GK_QUANT_TILE / GK_BLOCK)
#define GK_MOST_ROWS 8

/* One block per tile of 64 x 64, columns fastest. The tile's first row and column; the row and the place along k from which a thread loads; its first
 * row and column of 4 x 4 elements, 16 apart. */
typedef struct { gk_i64 m0, n0; int row, from, r, x; } gk_quant_place;

GK_FN gk_quant_place gk_quant_place_of(gk_i64 n)
{
    gk_quant_place p;
    gk_i64 across = (n + GK_QUANT_TILE - 1) / GK_QUANT_TILE;
    int t = gk_lid();
    p.m0 = gk_bid(0) / across * GK_QUANT_TILE;
    p.n0 = gk_bid(0) % across * GK_QUANT_TILE;
    p.row = t / (GK_QUANT_STEP / GK_TAKE);
    p.from = t % (GK_QUANT_STEP / GK_TAKE) * GK_TAKE;
    p.r = t / 16;
    p.x = t % 16;
    return p;
}

/* Adds the products of a step. */
#define GK_QUANT_MULTIPLY(name, type) \
    GK_FN void name(GK_LOCAL_PTR const type* ta, GK_LOCAL_PTR const type* tb, type acc[4][4], int r, int x) \
    { \
        GK_UNROLL for (int q = 0; q < GK_QUANT_STEP; q++) { \
            type u[4], v[4]; \
            GK_UNROLL for (int i = 0; i < 4; i++) { u[i] = ta[q * GK_QUANT_PITCH + r + 16 * i]; v[i] = tb[q * GK_QUANT_PITCH + x + 16 * i]; } \
            GK_UNROLL for (int i = 0; i < 4; i++) \
                GK_UNROLL for (int j = 0; j < 4; j++) acc[i][j] += u[i] * v[j]; \
        } \
    }
GK_QUANT_MULTIPLY(gk_quant_multiply, gk_f)

// Units: FLOATS
/* Launch: one block per tile of 64 x 64 elements. */
GK_KERNEL(quant_tile)(GK_IN(gk_u8, a), GK_IN(gk_u8, b), GK_IN(gk_u8, scale_a), GK_IN(gk_u8, scale_b), GK_IN(gk_u8, zero), GK_OUT(gk_t, y), gk_i64 m,
                      gk_i64 n, gk_i64 k, GK_DIMS(fa), GK_DIMS(fb))
{
    GK_BIND_IN(gk_u8, a); GK_BIND_IN(gk_u8, b); GK_BIND_IN(gk_u8, scale_a); GK_BIND_IN(gk_u8, scale_b); GK_BIND_IN(gk_u8, zero); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f ta[GK_QUANT_STEP * GK_QUANT_PITCH];
    GK_LOCAL gk_f tb[GK_QUANT_STEP * GK_QUANT_PITCH];
    gk_quant_place p = gk_quant_place_of(n);
    gk_f acc[4][4];
    GK_UNROLL for (int i = 0; i < 4; i++)
        GK_UNROLL for (int j = 0; j < 4; j++) acc[i][j] = GK_R(0.0);
    for (gk_i64 k0 = 0; k0 < k; k0 += GK_QUANT_STEP) {
        GK_UNROLL for (int q = 0; q < GK_TAKE; q++) {
            gk_i64 at = k0 + p.from + q;
            gk_f u = GK_R(0.0), v = GK_R(0.0);
            if (at < k && p.m0 + p.row < m) u = gk_element(a, scale_a, 0, fa, p.m0 + p.row, at);
            if (at < k && p.n0 + p.row < n) v = gk_element(b, scale_b, zero, fb, p.n0 + p.row, at);
            ta[(p.from + q) * GK_QUANT_PITCH + p.row] = u;
            tb[(p.from + q) * GK_QUANT_PITCH + p.row] = v;
        }
        GK_BARRIER();
        gk_quant_multiply(ta, tb, acc, p.r, p.x);
        GK_BARRIER();
    }
    GK_UNROLL for (int i = 0; i < 4; i++) {
        GK_UNROLL for (int j = 0; j < 4; j++) {
            gk_i64 mm = p.m0 + p.r + 16 * i, nn = p.n0 + p.x + 16 * j;
            if (mm < m && nn < n) gk_store(y, mm * n + nn, acc[i][j]);
        }
    }
}

#if GK_DTYPE == GK_F32
GK_QUANT_MULTIPLY(gk_quant_multiply_int, int)

// Units: F32
/* int8 times int8 in integers, then the scales of row and column. Launch: as quant_tile. */
GK_KERNEL(quant_int)(GK_IN(gk_u8, a), GK_IN(gk_u8, b), GK_IN(float, scale_a), GK_IN(float, scale_b), GK_OUT(float, y), gk_i64 m, gk_i64 n, gk_i64 k)
{
    GK_BIND_IN(gk_u8, a); GK_BIND_IN(gk_u8, b); GK_BIND_IN(float, scale_a); GK_BIND_IN(float, scale_b); GK_BIND_OUT(float, y);
    GK_LOCAL int ta[GK_QUANT_STEP * GK_QUANT_PITCH];
    GK_LOCAL int tb[GK_QUANT_STEP * GK_QUANT_PITCH];
    gk_quant_place p = gk_quant_place_of(n);
    int acc[4][4];
    GK_UNROLL for (int i = 0; i < 4; i++)
        GK_UNROLL for (int j = 0; j < 4; j++) acc[i][j] = 0;
    for (gk_i64 k0 = 0; k0 < k; k0 += GK_QUANT_STEP) {
        GK_UNROLL for (int q = 0; q < GK_TAKE; q++) {
            gk_i64 at = k0 + p.from + q;
            int u = 0, v = 0;
            if (at < k && p.m0 + p.row < m) u = (int)(a[(p.m0 + p.row) * k + at] ^ 0x80u) - 128;
            if (at < k && p.n0 + p.row < n) v = (int)(b[(p.n0 + p.row) * k + at] ^ 0x80u) - 128;
            ta[(p.from + q) * GK_QUANT_PITCH + p.row] = u;
            tb[(p.from + q) * GK_QUANT_PITCH + p.row] = v;
        }
        GK_BARRIER();
        gk_quant_multiply_int(ta, tb, acc, p.r, p.x);
        GK_BARRIER();
    }
    GK_UNROLL for (int i = 0; i < 4; i++) {
        GK_UNROLL for (int j = 0; j < 4; j++) {
            gk_i64 mm = p.m0 + p.r + 16 * i, nn = p.n0 + p.x + 16 * j;
            if (mm < m && nn < n) y[mm * n + nn] = scale_a[mm] * scale_b[nn] * (float)acc[i][j];
        }
    }
}
#endif

#define GK_QUANT_AHEAD 4 /* runs of 8 codes of a thread whose reads are in flight at a time */

/* acc[i] += the products of row i of x with runs w, 256 elements apart from `at` on. */
GK_FN void gk_add_rows(gk_f acc[GK_MOST_ROWS], GK_GLOBAL const gk_t* x, int m, gk_i64 k, gk_i64 at, gk_f w[GK_QUANT_AHEAD][8])
{
    GK_UNROLL for (int i = 0; i < GK_MOST_ROWS; i++)
        if (i < m) {
            gk_raw16 v[GK_QUANT_AHEAD][8 / GK_W];
            GK_UNROLL for (int u = 0; u < GK_QUANT_AHEAD; u++)
                GK_UNROLL for (int q = 0; q < 8 / GK_W; q++)
                    /* Runs beyond the end have weights of 0; any element takes the place of theirs. */
                    v[u][q] = gk_load16((GK_GLOBAL const void*)(x + i * k + (at + u * 256 < k ? at + u * 256 + q * GK_W : 0)));
            GK_UNROLL for (int u = 0; u < GK_QUANT_AHEAD; u++)
                GK_UNROLL for (int q = 0; q < 8 / GK_W; q++) {
                    gk_vec a = gk_decode16(v[u][q]);
                    GK_UNROLL for (int c = 0; c < GK_W; c++) acc[i] += at + u * 256 < k ? w[u][q * GK_W + c] * a.v[c] : GK_R(0.0);
                }
        }
}

/* Decoded runs of 8 weights of a row, 256 elements apart from `at` on; those beyond the end are 0. Groups of 1 << shift products share a scale, which
 * lies at `first` for the first of them. All reads are in flight before the first is used. */
GK_FN void gk_take_weights(gk_f w[GK_QUANT_AHEAD][8], GK_GLOBAL const gk_u8* codes, GK_GLOBAL const gk_u8* scale, GK_GLOBAL const gk_u8* zero,
                           gk_i64 at, gk_i64 end, int code, int type, gk_i64 first, int shift)
{
    gk_u32 low[GK_QUANT_AHEAD], high[GK_QUANT_AHEAD], s[GK_QUANT_AHEAD], z[GK_QUANT_AHEAD];
    GK_UNROLL for (int u = 0; u < GK_QUANT_AHEAD; u++) {
        gk_i64 i = at + u * 256, group = first + (i >> shift);
        low[u] = high[u] = s[u] = z[u] = 0u;
        if (i < end) {
            low[u] = gk_low_codes(codes, i, code);
            if (code != 1) high[u] = gk_high_codes(codes, i);
            s[u] = gk_scale_bits(scale, group, type);
            if (zero) z[u] = gk_scale_bits(zero, group, type);
        }
    }
    GK_UNROLL for (int u = 0; u < GK_QUANT_AHEAD; u++) {
        gk_f by = gk_scale_value(s[u], type), from = zero ? gk_scale_value(z[u], type) : code == 1 ? GK_R(8.0) : GK_R(0.0);
        gk_values_of(code, low[u], high[u], w[u]);
        GK_UNROLL for (int c = 0; c < 8; c++) w[u][c] = (w[u][c] - from) * by;
    }
}

// Units: FLOATS
/* Few rows of x: 32 threads read a row of B once for all of them. With shift >= 0 by runs of 8 products: rows of x and of B are whole runs at aligned
 * addresses, and 1 << shift products, or all of a row, share a scale. Launch: one block per 8 rows of B. */
GK_KERNEL(quant_rows)(GK_IN(gk_t, x), GK_IN(gk_u8, b), GK_IN(gk_u8, scale), GK_IN(gk_u8, zero), GK_OUT(gk_t, y), int m, gk_i64 n, gk_i64 k,
                      GK_DIMS(form), int shift)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_u8, b); GK_BIND_IN(gk_u8, scale); GK_BIND_IN(gk_u8, zero); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int lane = gk_lid() % 32;
    gk_i64 row = (gk_i64)gk_bid(0) * (GK_BLOCK / 32) + gk_lid() / 32, end = row < n ? k : 0;
    gk_f acc[GK_MOST_ROWS];
    GK_UNROLL for (int i = 0; i < GK_MOST_ROWS; i++) acc[i] = GK_R(0.0);
    if (shift >= 0) {
        gk_i64 first = gk_scale_of(form, row, 0);
        for (gk_i64 at = lane * 8; at < end; at += GK_QUANT_AHEAD * 256) {
            gk_f w[GK_QUANT_AHEAD][8];
            gk_take_weights(w, b + row * form.v[5], scale, zero, at, end, (int)form.v[0], (int)form.v[1], first, shift);
            gk_add_rows(acc, x, m, k, at, w);
        }
    } else {
        for (gk_i64 at = lane; at < end; at += 32) {
            gk_f w = gk_element(b, scale, zero, form, row, at);
            GK_UNROLL for (int i = 0; i < GK_MOST_ROWS; i++)
                if (i < m) acc[i] += w * gk_load(x, i * k + at);
        }
    }
    GK_UNROLL for (int i = 0; i < GK_MOST_ROWS; i++)
        if (i < m) {
            gk_f v = gk_group_sum(acc[i], tmp, 32);
            if (lane == 0 && row < n) gk_store(y, i * n + row, v);
        }
}
