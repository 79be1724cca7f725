/* What every kernel may use. Put after the dialect header; GK_DTYPE (GK_F32 ... GK_U8) and GK_BLOCK are defined by then.
 *
 *   gk_t    storage type of the unit's dtype          gk_f    type of its arithmetic (float; double for f64; the integer itself)
 *   gk_load(p, i), gk_store(p, i, v)                  one element, converted
 *   gk_vec, GK_W, gk_loadv, gk_storev                 16 bytes of elements at an index divisible by GK_W from a 16-byte aligned base
 *   gk_dims                                           eight gk_i64 by value
 *   gk_group_sum(v, tmp, lanes), _max, _min           over runs of `lanes` threads (a power of two up to GK_BLOCK), result in all of them
 *   gk_block_sum(v, tmp), _max, _min                  over the block; tmp is a GK_LOCAL array of GK_BLOCK gk_f
 *   gk_block_scan(v, tmp, total)                      inclusive sum of gk_u32 over the block; tmp is a GK_LOCAL array of GK_BLOCK gk_u32
 *   gk_gid(), gk_gsize()                              linear position in and size of the grid (axis 0), gk_i64
 *   gk_philox(counter, key)                           the generator of the random family
 */

/* Before a loop that must stay one: its body is long. */
#ifndef GK_ROLL
#define GK_ROLL
#endif

/* A device whose blocks cannot wait for each other has clusters of one. */
#ifndef GK_CLUSTER
#define GK_CLUSTER 1
#define GK_IN_CLUSTERS
#define GK_CLUSTER_ARRIVE() ((void)0)
#define GK_CLUSTER_WAIT() ((void)0)
#define GK_CLUSTER_BARRIER() GK_BARRIER()
#define gk_cluster_put(p, v, block) (*(p) = (v))
#endif

#define GK_CAT2(a, b) a##b
#define GK_CAT(a, b) GK_CAT2(a, b)

/* ---- storage and arithmetic types ------------------------------------------------------------------------------------------ */

#if GK_DTYPE == GK_F32
typedef float gk_t;
typedef float gk_f;
#define GK_W 4
#elif GK_DTYPE == GK_F16 || GK_DTYPE == GK_BF16
#ifdef GK_LINT
typedef struct { gk_u16 bits; } gk_t;
#else
typedef gk_u16 gk_t;
#endif
typedef float gk_f;
#define GK_W 8
#elif GK_DTYPE == GK_F64
typedef double gk_t;
typedef double gk_f;
#define GK_W 2
#elif GK_DTYPE == GK_I32
typedef int gk_t;
typedef int gk_f;
#define GK_W 4
#elif GK_DTYPE == GK_I64
typedef gk_i64 gk_t;
typedef gk_i64 gk_f;
#define GK_W 2
#else
typedef gk_u8 gk_t;
typedef int gk_f;
#define GK_W 16
#endif

#define GK_IS_FLOAT (GK_DTYPE <= GK_F64)

/* The unsigned type of an integer unit's arithmetic, whose overflow wraps. */
#if GK_DTYPE == GK_I64
typedef gk_u64 gk_uf;
#elif GK_DTYPE > GK_F64
typedef gk_u32 gk_uf;
#endif

/* A literal of the arithmetic type; float units must not contain doubles, which some devices lack. */
#if GK_DTYPE == GK_F64
#define GK_R(x) x
#else
#define GK_R(x) x##f
#endif

typedef struct { gk_i64 v[8]; } gk_dims;
#define GK_DIMS(name) GK_BY_VALUE(gk_dims, name)

GK_FN float gk_bf16_to_f32(gk_u16 h) { return gk_as_f32((gk_u32)h << 16); }
/* Rounded to nearest even. Which NaN comes of one does not matter. */
#ifdef GK_QUICK_BF16
GK_FN gk_u16 gk_f32_to_bf16(float f) { return (gk_u16)gk_quick_bf16x2(f, 0.0f); }
#else
GK_FN gk_u16 gk_f32_to_bf16(float f)
{
    gk_u32 u = gk_as_u32(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (gk_u16)((u >> 16) | 0x40u);
    return (gk_u16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
#endif

#ifdef GK_LINT
#define GK_HALF_BITS(x) ((x).bits)
GK_FN gk_t gk_half_from_bits(gk_u16 b) { gk_t h; *(gk_u16*)&h = b; return h; }
#else
#define GK_HALF_BITS(x) (x)
#define gk_half_from_bits(b) (b)
#endif

#if GK_DTYPE == GK_F16
GK_FN gk_f gk_decode(gk_t x) { return gk_f16_to_f32(GK_HALF_BITS(x)); }
GK_FN gk_t gk_encode(gk_f v) { return gk_half_from_bits(gk_f32_to_f16(v)); }
#elif GK_DTYPE == GK_BF16
GK_FN gk_f gk_decode(gk_t x) { return gk_bf16_to_f32(GK_HALF_BITS(x)); }
GK_FN gk_t gk_encode(gk_f v) { return gk_half_from_bits(gk_f32_to_bf16(v)); }
#else
GK_FN gk_f gk_decode(gk_t x) { return (gk_f)x; }
GK_FN gk_t gk_encode(gk_f v) { return (gk_t)v; }
#endif

#define gk_load(p, i) gk_decode((p)[i])
#define gk_store(p, i, v) ((p)[i] = gk_encode(v))

/* gk_b: unsigned integer of the storage's size; GK_W of them are 16 bytes. */
#if GK_DTYPE == GK_F32 || GK_DTYPE == GK_I32
typedef gk_u32 gk_b;
#elif GK_DTYPE == GK_F64 || GK_DTYPE == GK_I64
typedef gk_u64 gk_b;
#elif GK_DTYPE == GK_U8
typedef gk_u8 gk_b;
#else
typedef gk_u16 gk_b;
#endif
#if GK_IS_FLOAT
/* The value that bits store. */
GK_FN gk_f gk_value(gk_b b)
{
#if GK_DTYPE == GK_F32
    return gk_as_f32(b);
#elif GK_DTYPE == GK_F64
    return gk_as_f64(b);
#elif GK_DTYPE == GK_F16
    return gk_f16_to_f32(b);
#else
    return gk_bf16_to_f32(b);
#endif
}
#endif

/* ---- 16-byte access -------------------------------------------------------------------------------------------------------- */

typedef struct { gk_f v[GK_W]; } gk_vec;

/* The elements in 16 raw bytes: a 16-bit type takes half the registers raw. */
GK_FN gk_vec gk_decode16(gk_raw16 q)
{
    gk_vec r;
#if GK_DTYPE == GK_F32
    r.v[0] = gk_as_f32(q.x); r.v[1] = gk_as_f32(q.y); r.v[2] = gk_as_f32(q.z); r.v[3] = gk_as_f32(q.w);
#elif GK_DTYPE == GK_I32
    r.v[0] = (int)q.x; r.v[1] = (int)q.y; r.v[2] = (int)q.z; r.v[3] = (int)q.w;
#elif GK_DTYPE == GK_F64
    r.v[0] = gk_as_f64(((gk_u64)q.y << 32) | q.x); r.v[1] = gk_as_f64(((gk_u64)q.w << 32) | q.z);
#elif GK_DTYPE == GK_I64
    r.v[0] = (gk_i64)(((gk_u64)q.y << 32) | q.x); r.v[1] = (gk_i64)(((gk_u64)q.w << 32) | q.z);
#elif GK_DTYPE == GK_F16
    r.v[0] = gk_f16_to_f32((gk_u16)q.x); r.v[1] = gk_f16_to_f32((gk_u16)(q.x >> 16));
    r.v[2] = gk_f16_to_f32((gk_u16)q.y); r.v[3] = gk_f16_to_f32((gk_u16)(q.y >> 16));
    r.v[4] = gk_f16_to_f32((gk_u16)q.z); r.v[5] = gk_f16_to_f32((gk_u16)(q.z >> 16));
    r.v[6] = gk_f16_to_f32((gk_u16)q.w); r.v[7] = gk_f16_to_f32((gk_u16)(q.w >> 16));
#elif GK_DTYPE == GK_BF16
    r.v[0] = gk_as_f32(q.x << 16); r.v[1] = gk_as_f32(q.x & 0xffff0000u);
    r.v[2] = gk_as_f32(q.y << 16); r.v[3] = gk_as_f32(q.y & 0xffff0000u);
    r.v[4] = gk_as_f32(q.z << 16); r.v[5] = gk_as_f32(q.z & 0xffff0000u);
    r.v[6] = gk_as_f32(q.w << 16); r.v[7] = gk_as_f32(q.w & 0xffff0000u);
#else
    gk_u32 w[4];
    w[0] = q.x; w[1] = q.y; w[2] = q.z; w[3] = q.w;
    GK_UNROLL for (int k = 0; k < 16; k++) r.v[k] = (int)((w[k / 4] >> (8 * (k % 4))) & 0xffu);
#endif
    return r;
}
GK_FN gk_vec gk_loadv(GK_GLOBAL const gk_t* p, gk_i64 i) { return gk_decode16(gk_load16((GK_GLOBAL const void*)(p + i))); }
/* Two 16-bit values in a word. */
#if GK_DTYPE == GK_F16 && defined(GK_QUICK_F16)
#define GK_PACK2(a, b) gk_quick_f16x2(a, b)
#elif GK_DTYPE == GK_F16
#define GK_PACK2(a, b) ((gk_u32)gk_f32_to_f16(a) | (gk_u32)gk_f32_to_f16(b) << 16)
#elif defined(GK_QUICK_BF16)
#define GK_PACK2(a, b) gk_quick_bf16x2(a, b)
#else
#define GK_PACK2(a, b) ((gk_u32)gk_f32_to_bf16(a) | (gk_u32)gk_f32_to_bf16(b) << 16)
#endif

/* The 16 raw bytes of GK_W values. */
GK_FN gk_raw16 gk_encode16(gk_vec r)
{
    gk_raw16 q;
#if GK_DTYPE == GK_F32
    q = gk_make16(gk_as_u32(r.v[0]), gk_as_u32(r.v[1]), gk_as_u32(r.v[2]), gk_as_u32(r.v[3]));
#elif GK_DTYPE == GK_I32
    q = gk_make16((gk_u32)r.v[0], (gk_u32)r.v[1], (gk_u32)r.v[2], (gk_u32)r.v[3]);
#elif GK_DTYPE == GK_F64
    q = gk_make16((gk_u32)gk_as_u64(r.v[0]), (gk_u32)(gk_as_u64(r.v[0]) >> 32), (gk_u32)gk_as_u64(r.v[1]), (gk_u32)(gk_as_u64(r.v[1]) >> 32));
#elif GK_DTYPE == GK_I64
    q = gk_make16((gk_u32)r.v[0], (gk_u32)((gk_u64)r.v[0] >> 32), (gk_u32)r.v[1], (gk_u32)((gk_u64)r.v[1] >> 32));
#elif GK_DTYPE == GK_F16 || GK_DTYPE == GK_BF16
    q = gk_make16(GK_PACK2(r.v[0], r.v[1]), GK_PACK2(r.v[2], r.v[3]), GK_PACK2(r.v[4], r.v[5]), GK_PACK2(r.v[6], r.v[7]));
#else
    gk_u32 w[4];
    GK_UNROLL for (int k = 0; k < 4; k++)
        w[k] = ((gk_u32)r.v[4 * k] & 0xffu) | ((gk_u32)r.v[4 * k + 1] & 0xffu) << 8 | ((gk_u32)r.v[4 * k + 2] & 0xffu) << 16 | ((gk_u32)r.v[4 * k
            + 3] & 0xffu) << 24;
    q = gk_make16(w[0], w[1], w[2], w[3]);
#endif
    return q;
}
GK_FN void gk_storev(GK_GLOBAL gk_t* p, gk_i64 i, gk_vec r) { gk_store16((GK_GLOBAL void*)(p + i), gk_encode16(r)); }
/* gk_loadv where `live`, else `fill`. Only the load is in the branch: a conversion from 16 bits there would wait for it before the next load begins. */
GK_FN gk_vec gk_loadv_if(GK_GLOBAL const gk_t* p, gk_i64 i, int live, gk_f fill)
{
    gk_vec none;
    GK_UNROLL for (int k = 0; k < GK_W; k++) none.v[k] = fill;
    gk_raw16 q = gk_encode16(none);
    if (live) q = gk_load16((GK_GLOBAL const void*)(p + i));
    return gk_decode16(q);
}

/* gk_loadv and gk_storev of what is not read again soon: caches keep other lines, where the dialect can say so. */
#ifdef GK_STREAMS
GK_FN gk_vec gk_loadv_stream(GK_GLOBAL const gk_t* p, gk_i64 i) { return gk_decode16(gk_load_stream16((GK_GLOBAL const void*)(p + i))); }
GK_FN void gk_storev_stream(GK_GLOBAL gk_t* p, gk_i64 i, gk_vec r) { gk_stream16((GK_GLOBAL void*)(p + i), gk_encode16(r)); }
#else
#define gk_loadv_stream(p, i) gk_loadv(p, i)
#define gk_storev_stream(p, i, r) gk_storev(p, i, r)
#endif

/* ---- positions ------------------------------------------------------------------------------------------------------------- */

GK_FN gk_i64 gk_gid(void) { return (gk_i64)gk_bid(0) * GK_BLOCK + gk_lid(); }
GK_FN gk_i64 gk_gsize(void) { return (gk_i64)gk_nblocks(0) * GK_BLOCK; }

/* An index of a buffer that holds i32 or i64. */
#define gk_index(p, i, wide) ((wide) ? ((GK_GLOBAL const gk_i64*)(p))[i] : (gk_i64)((GK_GLOBAL const int*)(p))[i])
#define gk_store_index(p, i, wide, v) \
    do { if (wide) ((GK_GLOBAL gk_i64*)(p))[i] = (v); else ((GK_GLOBAL int*)(p))[i] = (int)(v); } while (0)

/* T lo = the last v of 0 .. n - 1 for which `holds`, an expression of v that is true up to there and false beyond; 0 if there is none. Looks at
 * GK_WAYS - 1 places at a time, since every look waits for memory. */
#define GK_WAYS 8
#define GK_SEEK(T, lo, n, holds) \
    T lo = 0; \
    for (T span_ = (n), step_, found_; span_ > 1; span_ = step_) { \
        step_ = (span_ + GK_WAYS - 1) / GK_WAYS; found_ = 0; \
        GK_UNROLL for (int k_ = 1; k_ < GK_WAYS; k_++) { \
            T v = lo + k_ * step_; \
            if (v < (n) && (holds)) found_ = k_; \
        } \
        lo += found_ * step_; \
    }

/* Reports an index out of range for the operation `code`; the first report stays. */
#define gk_report(err, code) do { if ((err)[0] == 0) (err)[0] = (code); } while (0)

/* ---- math of the arithmetic type ------------------------------------------------------------------------------------------- */

#if GK_DTYPE == GK_F64
#define GK_M(f) GK_M64(f)
#else
#define GK_M(f) GK_M32(f)
#endif
#define gk_exp(x) GK_M(exp)(x)
#define gk_exp2(x) GK_M(exp2)(x)
#define gk_exp10(x) GK_M(exp10)(x)
#define gk_expm1(x) GK_M(expm1)(x)
#define gk_log(x) GK_M(log)(x)
#define gk_log2(x) GK_M(log2)(x)
#define gk_log10(x) GK_M(log10)(x)
#define gk_log1p(x) GK_M(log1p)(x)
#define gk_sqrt(x) GK_M(sqrt)(x)
#define gk_cbrt(x) GK_M(cbrt)(x)
#define gk_sin(x) GK_M(sin)(x)
#define gk_cos(x) GK_M(cos)(x)
#define gk_tan(x) GK_M(tan)(x)
#define gk_asin(x) GK_M(asin)(x)
#define gk_acos(x) GK_M(acos)(x)
#define gk_atan(x) GK_M(atan)(x)
#define gk_atan2(y, x) GK_M(atan2)(y, x)
#define gk_sinh(x) GK_M(sinh)(x)
#define gk_cosh(x) GK_M(cosh)(x)
#define gk_tanh(x) GK_M(tanh)(x)
#define gk_asinh(x) GK_M(asinh)(x)
#define gk_acosh(x) GK_M(acosh)(x)
#define gk_atanh(x) GK_M(atanh)(x)
#define gk_erf(x) GK_M(erf)(x)
#define gk_erfc(x) GK_M(erfc)(x)
#define gk_floor(x) GK_M(floor)(x)
#define gk_ceil(x) GK_M(ceil)(x)
#define gk_trunc(x) GK_M(trunc)(x)
#define gk_rint(x) GK_M(rint)(x)
#define gk_fabs(x) GK_M(fabs)(x)
#define gk_pow(x, y) GK_M(pow)(x, y)
#define gk_fmod(x, y) GK_M(fmod)(x, y)
#define gk_hypot(x, y) GK_M(hypot)(x, y)
#define gk_copysign(x, y) GK_M(copysign)(x, y)
/* 1/x within 1 ULP for x of ordinary size (not for x beyond 2^126 or denormal), where the dialect has a quick one. */
#if GK_DTYPE != GK_F64 && defined(GK_QUICK_RECIP)
#define gk_recip(x) gk_quick_recip(x)
#else
#define gk_recip(x) (GK_R(1.0) / (x))
#endif
/* e^x and 2^x to within what gk_t resolves: of 16-bit results nobody sees an error of 1e-5. Denormal powers may come out as 0. */
#if defined(GK_QUICK_EXP2) && (GK_DTYPE == GK_F16 || GK_DTYPE == GK_BF16)
#define gk_exp2_t(x) gk_quick_exp2(x)
#define gk_exp_t(x) gk_quick_exp2((x) * 1.44269504f)
#else
#define gk_exp2_t(x) gk_exp2(x)
#define gk_exp_t(x) gk_exp(x)
#endif
#define gk_fma(a, b, c) GK_M(fma)(a, b, c)
#define gk_lgamma(x) GK_M(lgamma)(x)
#define gk_ldexp(x, e) GK_M(ldexp)(x, e)
#define gk_nextafter(x, y) GK_M(nextafter)(x, y)

#if GK_DTYPE == GK_F64
#define GK_INF gk_as_f64(0x7ff0000000000000ul)
#define GK_NAN gk_as_f64(0x7ff8000000000000ul)
#else
#define GK_INF gk_as_f32(0x7f800000u)
#define GK_NAN gk_as_f32(0x7fc00000u)
#endif
#if GK_IS_FLOAT
#define gk_isnan(x) ((x) != (x))
#define gk_isinf(x) (gk_fabs(x) == GK_INF)
/* Larger and smaller of two values; NaN wins, as in PyTorch. */
#if GK_DTYPE != GK_F64 && defined(GK_QUICK_MAX)
#define gk_max(a, b) gk_quick_max(a, b)
#define gk_min(a, b) gk_quick_min(a, b)
#else
GK_FN gk_f gk_max(gk_f a, gk_f b) { return (a > b || gk_isnan(a)) ? a : b; }
GK_FN gk_f gk_min(gk_f a, gk_f b) { return (a < b || gk_isnan(a)) ? a : b; }
#endif
#else
#define gk_isnan(x) 0
GK_FN gk_f gk_max(gk_f a, gk_f b) { return a > b ? a : b; }
GK_FN gk_f gk_min(gk_f a, gk_f b) { return a < b ? a : b; }
#endif
GK_FN gk_f gk_add(gk_f a, gk_f b) { return a + b; }

/* ---- collectives of a block ------------------------------------------------------------------------------------------------
 * All threads of the block take part; the call sites must be in uniform control flow. tmp may be reused right after a call.
 * The order of the additions depends on `lanes` alone, so results repeat bit by bit. */

#if defined(GK_SHUFFLE_WIDTH) && GK_DTYPE <= GK_BF16
#define gk_shuffle_xor gk_shuffle_xor_f32
#elif defined(GK_SHUFFLE_WIDTH) && GK_DTYPE == GK_F64
#define gk_shuffle_xor gk_shuffle_xor_f64
#elif defined(GK_SHUFFLE_WIDTH) && (GK_DTYPE == GK_I32 || GK_DTYPE == GK_U8)
#define gk_shuffle_xor gk_shuffle_xor_i32
#endif

#define GK_BY_SUM 0
#define GK_BY_MAX 1
#define GK_BY_MIN 2
GK_FN gk_f gk_fold_by(gk_f a, gk_f b, const int by) { return by == GK_BY_SUM ? a + b : by == GK_BY_MAX ? gk_max(a, b) : gk_min(a, b); }

/* Combines the values of runs of `lanes` threads. */
GK_FN gk_f gk_group_fold(gk_f v, GK_LOCAL_PTR gk_f* tmp, int lanes, const int by)
{
    int t = gk_lid();
#ifdef gk_shuffle_xor
    for (int m = 1; m < lanes && m < GK_SHUFFLE_WIDTH; m <<= 1) v = gk_fold_by(v, gk_shuffle_xor(v, m), by);
    if (lanes > GK_SHUFFLE_WIDTH) {
        int w = t / GK_SHUFFLE_WIDTH, per = lanes / GK_SHUFFLE_WIDTH, first = w / per * per;
        if (t % GK_SHUFFLE_WIDTH == 0) tmp[w] = v;
        GK_BARRIER();
        v = tmp[first];
        for (int k = 1; k < per; k++) v = gk_fold_by(v, tmp[first + k], by);
        GK_BARRIER();
    }
#else
    tmp[t] = v;
    GK_BARRIER();
    for (int m = lanes / 2; m > 0; m >>= 1) {
        if ((t & (lanes - 1)) < m) tmp[t] = gk_fold_by(tmp[t], tmp[t + m], by);
        GK_BARRIER();
    }
    v = tmp[t & ~(lanes - 1)];
    GK_BARRIER();
#endif
    return v;
}
#define gk_group_sum(v, tmp, lanes) gk_group_fold(v, tmp, lanes, GK_BY_SUM)
#define gk_group_max(v, tmp, lanes) gk_group_fold(v, tmp, lanes, GK_BY_MAX)
#define gk_group_min(v, tmp, lanes) gk_group_fold(v, tmp, lanes, GK_BY_MIN)
#define gk_block_sum(v, tmp) gk_group_sum(v, tmp, GK_BLOCK)
#define gk_block_max(v, tmp) gk_group_max(v, tmp, GK_BLOCK)
#define gk_block_min(v, tmp) gk_group_min(v, tmp, GK_BLOCK)

GK_FN gk_u32 gk_block_scan(gk_u32 v, GK_LOCAL_PTR gk_u32* tmp, gk_u32* total)
{
    int t = gk_lid();
    tmp[t] = v;
    GK_BARRIER();
    for (int m = 1; m < GK_BLOCK; m <<= 1) {
        gk_u32 add = t >= m ? tmp[t - m] : 0u;
        GK_BARRIER();
        tmp[t] += add;
        GK_BARRIER();
    }
    v = tmp[t];
    *total = tmp[GK_BLOCK - 1];
    GK_BARRIER();
    return v;
}

/* ---- Philox4x32-10 (Salmon et al., 2011) ----------------------------------------------------------------------------------- */

typedef struct { gk_u32 w[4]; } gk_words;

/* Block number `block` of sequence `stream` under `seed`. */
GK_FN gk_words gk_philox(gk_u64 block, gk_u64 stream, gk_u64 seed)
{
    gk_u32 c0 = (gk_u32)block, c1 = (gk_u32)(block >> 32), c2 = (gk_u32)stream, c3 = (gk_u32)(stream >> 32);
    gk_u32 k0 = (gk_u32)seed, k1 = (gk_u32)(seed >> 32);
    for (int r = 0; r < 10; r++) {
        gk_u32 h0 = gk_mulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        gk_u32 h1 = gk_mulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0; c1 = l1; c2 = h0 ^ c3 ^ k1; c3 = l0;
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    gk_words r;
    r.w[0] = c0; r.w[1] = c1; r.w[2] = c2; r.w[3] = c3;
    return r;
}

/* [0, 1) and (0, 1] from one word. */
GK_FN float gk_unit(gk_u32 w) { return (float)(w >> 8) * 5.9604644775390625e-8f; }
GK_FN float gk_unit_open(gk_u32 w) { return (float)((w >> 8) + 1u) * 5.9604644775390625e-8f; }
