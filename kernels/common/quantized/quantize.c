/* Quantization to 8 and 4 bits with a scale for each group of neighbours, and back; codes.h has the codes.
 *
 *   scale = largest magnitude of a group / most (1 if that is 0),   q = the code nearest to x / scale, even at ties
 *
 * quantize_short and quantize_long hold groups in registers and read x once; quantize gets the largest magnitudes from a reduction. Reference:
 * torch.ao.quantization with symmetric observers.
 */
#include "codes.h"
#include "common/prelude/rows.h"

#define GK_QUANT_KEEP 4    /* runs of 8 elements of a long group that a thread holds */
#define GK_DEQUANT_AHEAD 4 /* items of a thread of dequantize whose reads are in flight at a time */

/* The bits of the 8-bit floating-point number nearest to r >= 0, even at ties, at most `most`; `mantissa` bits after the point, exponents offset by
 * `bias`. */
GK_FN gk_u32 gk_fp8_of(float r, int mantissa, int bias, gk_u32 most)
{
    int drop = 23 - mantissa;
    gk_u32 u = gk_as_u32(r), code;
    if (u >> 23 > (gk_u32)(127 - bias)) code = ((u + (1u << (drop - 1)) - 1u + (u >> drop & 1u)) >> drop) - ((gk_u32)(127 - bias) << mantissa);
    else code = (gk_u32)gk_rint(r * gk_as_f32((gk_u32)(127 + mantissa + bias - 1) << 23));
    return code < most ? code : most;
}

/* The integer nearest to r within +-most, 0 for NaN, in the lowest bits: a sum with 1.5 * 2^23 is rounded to one. */
GK_FN gk_u32 gk_nearest(gk_f r, gk_f most)
{
    gk_f c = r < most ? r : most;
    c = c > -most ? c : -most;
    return gk_as_u32((gk_isnan(r) ? GK_R(0.0) : c) + 12582912.0f);
}

/* The code nearest to r. */
GK_FN gk_u32 gk_code_of(int code, gk_f r)
{
    gk_u32 sign = r < GK_R(0.0) ? 0x80u : 0u;
    if (code == 0) return gk_nearest(r, GK_R(127.0)) & 0xffu;
    if (code == 1) return gk_nearest(r, GK_R(7.0)) + 8u & 15u;
    if (gk_isnan(r)) return 0x7fu;
    return sign | (code == 2 ? gk_fp8_of(gk_fabs(r), 3, 7, 0x7eu) : gk_fp8_of(gk_fabs(r), 2, 15, 0x7bu));
}

/* The scale of a group of this largest magnitude. */
GK_FN gk_f gk_quant_scale(gk_f largest, gk_f most)
{
    gk_f scale = largest / most;
    return scale == GK_R(0.0) ? GK_R(1.0) : scale;
}

/* v / scale, rounded as a quotient is: a product with the reciprocal, corrected by what it leaves, where nothing overflows on the way. */
GK_FN void gk_quotients(gk_f v[8], gk_f scale)
{
    if (scale > GK_R(1e-30) && scale < GK_R(1e30)) {
        gk_f inverse = GK_R(1.0) / scale;
        GK_UNROLL for (int u = 0; u < 8; u++) {
            gk_f q = v[u] * inverse;
            v[u] = gk_fma(gk_fma(-q, scale, v[u]), inverse, q);
        }
    } else {
        GK_UNROLL for (int u = 0; u < 8; u++) v[u] /= scale;
    }
}

/* Element `at` and the seven behind it, at an aligned address. */
GK_FN void gk_run8(GK_GLOBAL const gk_t* x, gk_i64 at, gk_f v[8])
{
    GK_UNROLL for (int u = 0; u < 8; u += GK_W) {
        gk_vec a = gk_loadv(x, at + u);
        GK_UNROLL for (int w = 0; w < GK_W; w++) v[u + w] = a.v[w];
    }
}

/* Stores the codes of run `at / 8`. */
GK_FN void gk_put_codes(GK_GLOBAL gk_u8* q, gk_i64 at, int code, gk_f v[8], gk_f scale)
{
    gk_u32 low = 0u, high = 0u;
    gk_quotients(v, scale);
    if (code == 1) {
        GK_UNROLL for (int u = 0; u < 8; u++) low |= gk_code_of(1, v[u]) << (4 * u);
        ((GK_GLOBAL gk_u32*)q)[at / 8] = low;
        return;
    }
    if (code == 0) {
        GK_UNROLL for (int u = 0; u < 4; u++) { low |= gk_code_of(0, v[u]) << (8 * u); high |= gk_code_of(0, v[u + 4]) << (8 * u); }
    } else {
        GK_UNROLL for (int u = 0; u < 4; u++) { low |= gk_code_of(code, v[u]) << (8 * u); high |= gk_code_of(code, v[u + 4]) << (8 * u); }
    }
    ((GK_GLOBAL gk_u64*)q)[at / 8] = (gk_u64)high << 32 | low;
}

/* Groups of `runs` runs of 8 elements, by `lanes` threads each; a thread holds `keep` runs. */
GK_FN void gk_quantize_held(GK_GLOBAL const gk_t* x, GK_GLOBAL gk_u8* q, GK_GLOBAL float* scale, GK_LOCAL_PTR gk_f* tmp, gk_i64 groups, int runs,
                            int lanes, int code, gk_f most, const int keep)
{
    int lane = gk_lid() & (lanes - 1);
    gk_i64 group = (gk_i64)gk_bid(0) * (GK_BLOCK / lanes) + gk_lid() / lanes, base = group * runs * 8;
    int end = group < groups ? runs : 0;
    gk_f v[GK_QUANT_KEEP][8];
    /* Magnitudes in the order of their bits: NaN is above infinity. */
    gk_u32 largest = 0u;
    GK_UNROLL for (int j = 0; j < keep; j++)
        if (lane + j * lanes < end) gk_run8(x, base + (lane + j * lanes) * 8, v[j]);
    GK_UNROLL for (int j = 0; j < keep; j++)
        if (lane + j * lanes < end) {
            GK_UNROLL for (int u = 0; u < 8; u++) {
                gk_u32 bits = gk_as_u32(v[j][u]) & 0x7fffffffu;
                largest = bits > largest ? bits : largest;
            }
        }
    gk_f s = gk_quant_scale(gk_group_max(gk_as_f32(largest), tmp, lanes), most);
    if (lane == 0 && group < groups) scale[group] = s;
    GK_UNROLL for (int j = 0; j < keep; j++)
        if (lane + j * lanes < end) gk_put_codes(q, base + (lane + j * lanes) * 8, code, v[j], s);
}

// Units: FLOATS
/* Groups of at most GK_BLOCK runs. x and q are aligned to 16 bytes. Launch: one block per GK_BLOCK / lanes groups. */
GK_KERNEL(quantize_short)(GK_IN(gk_t, x), GK_OUT(gk_u8, q), GK_OUT(float, scale), gk_i64 groups, int runs, int lanes, int code, gk_f most)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_u8, q); GK_BIND_OUT(float, scale);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_quantize_held(x, q, scale, tmp, groups, runs, lanes, code, most, 1);
}

/* Groups of at most GK_QUANT_KEEP * GK_BLOCK runs. */
GK_KERNEL(quantize_long)(GK_IN(gk_t, x), GK_OUT(gk_u8, q), GK_OUT(float, scale), gk_i64 groups, int runs, int lanes, int code, gk_f most)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_u8, q); GK_BIND_OUT(float, scale);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_quantize_held(x, q, scale, tmp, groups, runs, lanes, code, most, GK_QUANT_KEEP);
}

/* Groups of `size` elements whose largest magnitudes are known: `scales` of them. wide: groups are whole runs of 8 at aligned addresses. Launch:
 * grid-stride over runs. */
GK_KERNEL(quantize)(GK_IN(gk_t, x), GK_IN(gk_t, largest), GK_OUT(gk_u8, q), GK_OUT(float, scale), gk_i64 n, gk_i64 size, gk_i64 scales, int code,
                    gk_f most, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, largest); GK_BIND_OUT(gk_u8, q); GK_BIND_OUT(float, scale);
    for (gk_i64 i = gk_gid(); i < scales; i += gk_gsize()) scale[i] = (float)gk_quant_scale(gk_load(largest, i), most);
    for (gk_i64 i = gk_gid(); i < (n + 7) / 8; i += gk_gsize()) {
        gk_i64 at = 8 * i;
        if (wide) {
            gk_f v[8];
            gk_run8(x, at, v);
            gk_put_codes(q, at, code, v, gk_quant_scale(gk_load(largest, gk_quot(at, size)), most));
        } else {
            gk_u32 pair = 0u;
            for (int u = 0; u < 8 && at + u < n; u++) {
                gk_u32 b = gk_code_of(code, gk_load(x, at + u) / gk_quant_scale(gk_load(largest, gk_quot(at + u, size)), most));
                if (code != 1) q[at + u] = (gk_u8)b;
                else if (u & 1) q[(at + u) / 2] = (gk_u8)(pair | b << 4);
                pair = b;
            }
        }
    }
}

/* y = value of q * scale, n elements in groups of `size`. wide: groups are whole items of 16 bytes of y, all aligned. Launch: blocks loop over
 * GK_DEQUANT_AHEAD items, or elements, of each thread. */
GK_KERNEL(dequantize)(GK_IN(gk_u8, q), GK_IN(float, scale), GK_OUT(gk_t, y), gk_i64 n, gk_i64 size, int code, int wide)
{
    GK_BIND_IN(gk_u8, q); GK_BIND_IN(float, scale); GK_BIND_OUT(gk_t, y);
    gk_f zero = code == 1 ? GK_R(8.0) : GK_R(0.0);
    gk_i64 w = wide ? GK_W : 1, step = (gk_i64)gk_nblocks(0) * GK_BLOCK * GK_DEQUANT_AHEAD;
    for (gk_i64 first = (gk_i64)gk_bid(0) * GK_BLOCK * GK_DEQUANT_AHEAD + gk_lid(); first * w < n; first += step) {
        gk_u32 low[GK_DEQUANT_AHEAD], high[GK_DEQUANT_AHEAD];
        gk_f s[GK_DEQUANT_AHEAD];
        GK_UNROLL for (int u = 0; u < GK_DEQUANT_AHEAD; u++) {
            gk_i64 at = (first + u * GK_BLOCK) * w;
            low[u] = high[u] = 0u;
            if (at < n) {
                if (!wide) low[u] = code == 1 ? q[at / 2] >> (4 * (at & 1)) : q[at];
                else if (GK_W == 4 && code == 1) low[u] = ((GK_GLOBAL const gk_u16*)q)[at / 4];
                else low[u] = gk_low_codes(q, at, code);
                if (wide && GK_W == 8 && code != 1) high[u] = gk_high_codes(q, at);
                s[u] = scale[gk_quot(at, size)];
            }
        }
        GK_UNROLL for (int u = 0; u < GK_DEQUANT_AHEAD; u++) {
            gk_i64 at = (first + u * GK_BLOCK) * w;
            gk_f v[8];
            gk_vec o;
            if (at < n) {
                gk_values_of(code, low[u], high[u], v);
                GK_UNROLL for (int k = 0; k < GK_W; k++) o.v[k] = (v[k] - zero) * s[u];
                gk_put_item(y, at, o, wide);
            }
        }
    }
}
