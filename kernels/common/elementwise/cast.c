/* Conversion between storage types: y[i] = (T)x[i]. The unit's dtype is the source, GK_OP (gk_to_<dtype>) names the target.
 *
 * Floats round once to nearest even (to f16 beyond its range: infinity); float to integer truncates and saturates, NaN gives 0; integers wrap.
 * Merged axes with strides; 16 bytes at a time when `wide` is set (no gaps, aligned bases). Launch: grid-stride. Deterministic.
 * Reference: torch.Tensor.to.
 */
#include "common/prelude/strided.h"
#include "functions.h"

#define gk_to_f32_number GK_F32
#define gk_to_f16_number GK_F16
#define gk_to_bf16_number GK_BF16
#define gk_to_f64_number GK_F64
#define gk_to_i32_number GK_I32
#define gk_to_i64_number GK_I64
#define gk_to_u8_number GK_U8
#define GK_TO GK_CAT(GK_OP, _number)
#define GK_TO_HALF (GK_TO == GK_F16 || GK_TO == GK_BF16)

#if GK_TO == GK_F64 /* f64 */
typedef double gk_d;
#define GK_DW 2
#elif GK_TO == GK_F32
typedef float gk_d;
#define GK_DW 4
#elif GK_TO == GK_I32
typedef int gk_d;
#define GK_DW 4
#elif GK_TO == GK_I64
typedef gk_i64 gk_d;
#define GK_DW 2
#elif GK_TO == GK_U8
typedef gk_u8 gk_d;
#define GK_DW 16
#else
typedef gk_u16 gk_d;
#define GK_DW 8
#endif
/* Elements that one thread takes: whole vectors on both sides. */
#define GK_MAP_RUN (GK_W > GK_DW ? GK_W : GK_DW)

#if GK_TO_HALF
/* The value as f32, rounded to odd where it does not fit: then the second rounding, to 16 bits, gives what a single one would. */
GK_FN float gk_to_odd(gk_f x)
{
#if GK_DTYPE == GK_F64 /* f64 */
    float f = (float)x;
    double back = (double)f;
    gk_u32 u = gk_as_u32(f);
    if (gk_isnan(x) || back == x || (u & 1u)) return f;
    return gk_as_f32(gk_fabs(back) < gk_fabs(x) ? u + 1u : u - 1u);
#elif GK_IS_FLOAT
    return x;
#else
    gk_u64 u = x < 0 ? (gk_u64)0 - (gk_u64)(gk_i64)x : (gk_u64)x;
    gk_u32 e = 127u;
    float f;
    for (; u >> 24; e++) u = (u >> 1) | (u & 1u);
    f = (float)u * gk_as_f32(e << 23);
    return x < 0 ? -f : f;
#endif
}
#endif

GK_FN gk_d gk_convert(gk_f x)
{
#if GK_TO == GK_F16
    return gk_f32_to_f16(gk_to_odd(x));
#elif GK_TO == GK_BF16
    return gk_f32_to_bf16(gk_to_odd(x));
#elif GK_TO == GK_F32 || GK_TO == GK_F64 || !GK_IS_FLOAT
    return (gk_d)x;
#elif GK_TO == GK_I32
    if (!(x > GK_R(-2147483648.0))) return gk_isnan(x) ? 0 : (-2147483647 - 1);
    return x >= GK_R(2147483648.0) ? 0x7fffffff : (int)x;
#elif GK_TO == GK_I64
    if (!(x > GK_R(-9223372036854775808.0))) return gk_isnan(x) ? 0 : (gk_i64)0x8000000000000000ul;
    return x >= GK_R(9223372036854775808.0) ? (gk_i64)0x7ffffffffffffffful : (gk_i64)x;
#else
    if (!(x > GK_R(0.0))) return 0;
    return x >= GK_R(255.0) ? 255 : (gk_d)x;
#endif
}

/* GK_DW converted elements as 16 bytes. */
GK_FN gk_raw16 gk_pack(const gk_d* d)
{
    gk_u32 w[4];
    GK_UNROLL for (int k = 0; k < 4; k++) {
#if GK_TO == GK_F64 /* f64 */
        w[k] = (gk_u32)(gk_as_u64(d[k / 2]) >> (32 * (k & 1)));
#elif GK_TO == GK_F32
        w[k] = gk_as_u32(d[k]);
#elif GK_TO == GK_I32
        w[k] = (gk_u32)d[k];
#elif GK_TO == GK_I64
        w[k] = (gk_u32)((gk_u64)d[k / 2] >> (32 * (k & 1)));
#elif GK_TO == GK_U8
        w[k] = (gk_u32)d[4 * k] | (gk_u32)d[4 * k + 1] << 8 | (gk_u32)d[4 * k + 2] << 16 | (gk_u32)d[4 * k + 3] << 24;
#else
        w[k] = (gk_u32)d[2 * k] | (gk_u32)d[2 * k + 1] << 16;
#endif
    }
    return gk_make16(w[0], w[1], w[2], w[3]);
}

// Units: ALL x CASTS
GK_KERNEL(cast_nd)(GK_IN(gk_t, x), GK_OUT(gk_d, y), gk_i64 n, int wide, int rank, GK_DIMS(shape), GK_DIMS(sx), GK_DIMS(sy))
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_d, y);
    gk_i64 items = wide ? n / GK_MAP_RUN : 0;
    for (gk_i64 i = gk_gid(); i < items; i += gk_gsize()) {
        gk_d d[GK_MAP_RUN];
        GK_UNROLL for (int j = 0; j < GK_MAP_RUN / GK_W; j++) {
            gk_vec v = gk_loadv(x, i * GK_MAP_RUN + j * GK_W);
            GK_UNROLL for (int k = 0; k < GK_W; k++) d[j * GK_W + k] = gk_convert(v.v[k]);
        }
        GK_UNROLL for (int j = 0; j < GK_MAP_RUN / GK_DW; j++) gk_store16((GK_GLOBAL void*)(y + i * GK_MAP_RUN + j * GK_DW), gk_pack(d + j * GK_DW));
    }
    for (gk_i64 i = items * GK_MAP_RUN + gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ix = 0, iy = 0;
        GK_ND(i, n, rank, shape, { ix += r * sx.v[d]; iy += r * sy.v[d]; });
        y[iy] = gk_convert(gk_load(x, ix));
    }
}
