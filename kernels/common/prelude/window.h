/* What kernels over planes with up to three spatial axes share. */
#include "coordinates.h"

/* Plane and coordinates of an item. */
typedef struct { gk_i64 plane; int d, h, w; } gk_place;

/* Item i of n over planes of d x h x w of them. */
GK_FN gk_place gk_place_of(gk_i64 i, gk_i64 n, gk_i64 sd, gk_i64 sh, gk_i64 sw, gk_i64 md, gk_i64 mh, gk_i64 mw)
{
    gk_place r;
    if (n <= 0x7fffffff) {
        gk_u32 a = (gk_u32)i, b = gk_quotient(a, mw), c = gk_quotient(b, mh), e = gk_quotient(c, md);
        r.w = (int)(a - b * (gk_u32)sw);
        r.h = (int)(b - c * (gk_u32)sh);
        r.d = (int)(c - e * (gk_u32)sd);
        r.plane = (gk_i64)e;
    } else {
        gk_i64 b = i / sw, c = b / sh, e = c / sd;
        r.w = (int)(i - b * sw);
        r.h = (int)(b - c * sh);
        r.d = (int)(c - e * sd);
        r.plane = e;
    }
    return r;
}

/* a / b; 64-bit numbers divide slowly. */
GK_FN gk_i64 gk_divide(gk_i64 a, gk_i64 b)
{
    return a <= 0x7fffffff && b <= 0x7fffffff ? (gk_i64)((gk_u32)a / (gk_u32)b) : a / b;
}

/* floor(i * n / m); the product may need 64 bits, which divide slowly. */
GK_FN int gk_share(int i, int n, int m)
{
    gk_u64 p = (gk_u64)i * (gk_u64)n;
    return p <= 0xffffffffu ? (int)((gk_u32)p / (gk_u32)m) : (int)(p / (gk_u64)m);
}

/* ceil(i * n / m) */
GK_FN int gk_share_up(int i, int n, int m)
{
    gk_u64 p = (gk_u64)i * (gk_u64)n + (gk_u64)(m - 1);
    return p <= 0xffffffffu ? (int)((gk_u32)p / (gk_u32)m) : (int)(p / (gk_u64)m);
}

/* sum + up to th x tw values of x, row by row: all loads first, so that they are in flight together. */
GK_FN gk_f gk_sum_patch(gk_f sum, GK_GLOBAL const gk_t* x, int rows, int cols, gk_i64 row, const int th, const int tw)
{
    gk_f v[9];
    GK_UNROLL for (int a = 0; a < th; a++) {
        GK_UNROLL for (int b = 0; b < tw; b++) {
            v[a * tw + b] = GK_R(0.0);
            if (a < rows && b < cols) v[a * tw + b] = gk_load(x, a * row + b);
        }
    }
    GK_UNROLL for (int a = 0; a < th; a++) {
        GK_UNROLL for (int b = 0; b < tw; b++) sum += v[a * tw + b];
    }
    return sum;
}

#if GK_IS_FLOAT
/* ---- half of 16 bytes of elements, one access: `i` divisible by GK_H, base aligned to 8 bytes ------------------------------------------ */

#define GK_H (GK_W / 2)
typedef struct { gk_f v[GK_H]; } gk_half;

GK_FN gk_half gk_load_half(GK_GLOBAL const gk_t* p, gk_i64 i)
{
    gk_u64 q = *(GK_GLOBAL const gk_u64*)(p + i);
    gk_half r;
    GK_UNROLL for (int k = 0; k < GK_H; k++) r.v[k] = gk_value((gk_b)(q >> (128 / GK_W * k)));
    return r;
}

GK_FN void gk_store_half(GK_GLOBAL gk_t* p, gk_i64 i, gk_half r)
{
#if GK_DTYPE == GK_F64
    p[i] = r.v[0];
#elif GK_DTYPE == GK_F32
    *(GK_GLOBAL gk_u64*)(p + i) = (gk_u64)gk_as_u32(r.v[1]) << 32 | gk_as_u32(r.v[0]);
#else
    *(GK_GLOBAL gk_u64*)(p + i) = (gk_u64)GK_PACK2(r.v[2], r.v[3]) << 32 | GK_PACK2(r.v[0], r.v[1]);
#endif
}
#endif
