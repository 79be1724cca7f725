/* 8-bit and 4-bit codes of numbers, their scales, and where those lie.
 *
 *   value = (code - zero) * scale        code: 0 int8, 1 unsigned 4 bits (even k in the low half of a byte), 2 fp8 e4m3 (finite, NaN 7f and ff),
 *                                        3 fp8 e5m2, 4 not coded (gk_t)
 *
 * An operand's form = {code, type of the scales (0 f32, 1 f16, 2 bf16), rows per scale, products per scale, scales per row, bytes (code 4: elements)
 * per row}; with rows per scale 0 there is one scale for all, and none where the pointer is null. Zero points lie like the scales; 4-bit codes
 * without them are offset by 8. Reference: OCP 8-bit floating point specification.
 */
#ifndef GK_CODES_H
#define GK_CODES_H

/* A whole number below 2^23: behind the exponent of 2^23 it is the mantissa. */
GK_FN gk_f gk_whole(gk_u32 n) { return gk_as_f32(0x4b000000u | n) - 8388608.0f; }
GK_FN gk_f gk_signed8(gk_u32 b) { return gk_as_f32(0x4b000000u | (b ^ 0x80u)) - 8388736.0f; }

/* As a half the code has the same mantissa, one bit of exponent more, and an exponent that is smaller by 8. */
GK_FN gk_f gk_e4m3(gk_u32 b)
{
    gk_f v = gk_f16_to_f32((gk_u16)((b & 0x80u) << 8 | (b & 0x7fu) << 7)) * 256.0f;
    return (b & 0x7fu) == 0x7fu ? GK_NAN : v;
}

/* The code is the upper byte of a half. */
GK_FN gk_f gk_e5m2(gk_u32 b) { return gk_f16_to_f32((gk_u16)(b << 8)); }

/* The value of a byte's code, or of half a byte. */
GK_FN gk_f gk_value_of(int code, gk_u32 b)
{
    if (code == 0) return gk_signed8(b);
    if (code == 2) return gk_e4m3(b);
    if (code == 3) return gk_e5m2(b);
    return gk_whole(b);
}

/* The values of 8 codes: of the bytes of `low` and `high`, or of the half bytes of `low`. */
#define GK_EACH_BYTE(v, low, high, value) \
    GK_UNROLL for (int u = 0; u < 4; u++) { (v)[u] = value((low) >> (8 * u) & 0xffu); (v)[u + 4] = value((high) >> (8 * u) & 0xffu); }
GK_FN void gk_values_of(int code, gk_u32 low, gk_u32 high, gk_f v[8])
{
    if (code == 1) {
        GK_UNROLL for (int u = 0; u < 8; u++) v[u] = gk_whole(low >> (4 * u) & 15u);
    } else if (code == 0) {
        GK_EACH_BYTE(v, low, high, gk_signed8);
    } else if (code == 2) {
        GK_EACH_BYTE(v, low, high, gk_e4m3);
    } else {
        GK_EACH_BYTE(v, low, high, gk_e5m2);
    }
}
/* The first word of the codes of elements `at` to `at` + 7, and the second, where codes are bytes. */
#define gk_low_codes(q, at, code) ((GK_GLOBAL const gk_u32*)(q))[(code) == 1 ? (at) / 8 : (at) / 4]
#define gk_high_codes(q, at) ((GK_GLOBAL const gk_u32*)(q))[(at) / 4 + 1]

/* A scale or zero point as it is stored, and its value: apart, so that nothing waits for one while others are read. */
GK_FN gk_u32 gk_scale_bits(GK_GLOBAL const gk_u8* p, gk_i64 i, int type)
{
    return type == 0 ? ((GK_GLOBAL const gk_u32*)p)[i] : ((GK_GLOBAL const gk_u16*)p)[i];
}
GK_FN gk_f gk_scale_value(gk_u32 bits, int type)
{
    return type == 0 ? gk_as_f32(bits) : type == 1 ? gk_f16_to_f32((gk_u16)bits) : gk_bf16_to_f32((gk_u16)bits);
}

/* Place of the scale of element (row, k). */
GK_FN gk_i64 gk_scale_of(gk_dims form, gk_i64 row, gk_i64 k)
{
    if (form.v[2] == 0) return 0;
    return (gk_i64)((gk_u32)row / (gk_u32)form.v[2]) * form.v[4] + (gk_i64)((gk_u32)k / (gk_u32)form.v[3]);
}

/* Scale and zero point. */
typedef struct { gk_f scale, zero; } gk_affine;

GK_FN gk_affine gk_affine_of(GK_GLOBAL const gk_u8* scale, GK_GLOBAL const gk_u8* zero, gk_dims form, gk_i64 row, gk_i64 k)
{
    gk_affine r;
    gk_i64 at = gk_scale_of(form, row, k);
    r.scale = GK_R(1.0);
    r.zero = form.v[0] == 1 ? GK_R(8.0) : GK_R(0.0);
    if (scale) r.scale = gk_scale_value(gk_scale_bits(scale, at, (int)form.v[1]), (int)form.v[1]);
    if (zero) r.zero = gk_scale_value(gk_scale_bits(zero, at, (int)form.v[1]), (int)form.v[1]);
    return r;
}

GK_FN gk_f gk_element(GK_GLOBAL const gk_u8* q, GK_GLOBAL const gk_u8* scale, GK_GLOBAL const gk_u8* zero, gk_dims form, gk_i64 row, gk_i64 k)
{
    int code = (int)form.v[0];
    if (code == 4) return gk_load((GK_GLOBAL const gk_t*)q, row * form.v[5] + k);
    gk_affine f = gk_affine_of(scale, zero, form, row, k);
    gk_u32 b;
    if (code == 1) {
        b = q[row * form.v[5] + k / 2];
        b = k & 1 ? b >> 4 : b & 15u;
    } else {
        b = q[row * form.v[5] + k];
    }
    return (gk_value_of(code, b) - f.zero) * f.scale;
}

#endif
