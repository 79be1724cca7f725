/* What prelude/matrix.h takes from the HIP dialect: inline PTX on NVIDIA, MFMA on AMD's CDNA, WMMA on its RDNA from generation 3 on. */
#define GK_LOCAL_DYNAMIC(T, name, count) extern __shared__ __attribute__((aligned(1024))) T name[]
#if defined(__HIP_PLATFORM_NVIDIA__)
#if __CUDA_ARCH__ >= 800
/* Inline PTX for matrix cores: of sm_80, or of sm_90a. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define GK_PTX 90
#else
#define GK_PTX 80
#endif
GK_FN gk_u32 gk_local_address(const void* p) { return (gk_u32)__cvta_generic_to_shared(p); }
#endif
#elif (defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__)) && GK_IS_FLOAT && GK_DTYPE != GK_F64
#define GK_MFMA 1
#define GK_MATRIX_LOCAL_KB 64
typedef float gk_mfma_sums __attribute__((ext_vector_type(4)));
/* Two words as the four numbers that a lane gives an instruction. */
#define GK_MFMA_TERMS(T, x) __builtin_bit_cast(T, (gk_u64)(x)[1] << 32 | (x)[0])

#if GK_DTYPE == GK_F32
GK_FN gk_mfma_sums gk_mfma(const gk_u32 x[2], const gk_u32 y[2], gk_mfma_sums d)
{
    d = __builtin_amdgcn_mfma_f32_16x16x4f32(gk_as_f32(x[0]), gk_as_f32(y[0]), d, 0, 0, 0);
    return __builtin_amdgcn_mfma_f32_16x16x4f32(gk_as_f32(x[1]), gk_as_f32(y[1]), d, 0, 0, 0);
}
#elif GK_DTYPE == GK_F16 && defined(__gfx90a__)
/* By products of f32: those of f16 take denormal numbers for 0 there. */
GK_FN gk_mfma_sums gk_mfma(const gk_u32 x[2], const gk_u32 y[2], gk_mfma_sums d)
{
    GK_UNROLL for (int i = 0; i < 4; i++) {
        int at = i % 2 * 16;
        d = __builtin_amdgcn_mfma_f32_16x16x4f32(gk_f16_to_f32((gk_u16)(x[i / 2] >> at)), gk_f16_to_f32((gk_u16)(y[i / 2] >> at)), d, 0, 0, 0);
    }
    return d;
}
#elif GK_DTYPE == GK_F16
typedef _Float16 gk_mfma_f16 __attribute__((ext_vector_type(4)));
GK_FN gk_mfma_sums gk_mfma(const gk_u32 x[2], const gk_u32 y[2], gk_mfma_sums d)
{
    return __builtin_amdgcn_mfma_f32_16x16x16f16(GK_MFMA_TERMS(gk_mfma_f16, x), GK_MFMA_TERMS(gk_mfma_f16, y), d, 0, 0, 0);
}
#elif defined(__gfx908__)
typedef short gk_mfma_bf16 __attribute__((ext_vector_type(2)));
GK_FN gk_mfma_sums gk_mfma(const gk_u32 x[2], const gk_u32 y[2], gk_mfma_sums d)
{
    for (int i = 0; i < 2; i++)
        d = __builtin_amdgcn_mfma_f32_16x16x8bf16(__builtin_bit_cast(gk_mfma_bf16, x[i]), __builtin_bit_cast(gk_mfma_bf16, y[i]), d, 0, 0, 0);
    return d;
}
#else
typedef short gk_mfma_bf16 __attribute__((ext_vector_type(4)));
GK_FN gk_mfma_sums gk_mfma(const gk_u32 x[2], const gk_u32 y[2], gk_mfma_sums d)
{
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(GK_MFMA_TERMS(gk_mfma_bf16, x), GK_MFMA_TERMS(gk_mfma_bf16, y), d, 0, 0, 0);
}
#endif
#elif GK_DTYPE == GK_F16 || GK_DTYPE == GK_BF16
#if defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1103__) || defined(__gfx1150__) || defined(__gfx1151__)
#define GK_WMMA 11
#elif defined(__gfx1200__) || defined(__gfx1201__)
#define GK_WMMA 12
#endif
#ifdef GK_WMMA
#define GK_MATRIX_LOCAL_KB 64
/* Numbers that a lane gives an instruction: all terms of a row, or half of them. */
#define GK_WMMA_TERMS (GK_WMMA == 11 ? 16 : 8)
typedef float gk_wmma_sums __attribute__((ext_vector_type(8)));
typedef gk_u32 gk_wmma_words __attribute__((ext_vector_type(GK_WMMA_TERMS / 2)));
#if GK_DTYPE == GK_F16
typedef _Float16 gk_wmma_terms __attribute__((ext_vector_type(GK_WMMA_TERMS)));
#else
typedef short gk_wmma_terms __attribute__((ext_vector_type(GK_WMMA_TERMS)));
#endif
GK_FN gk_wmma_terms gk_wmma_terms_of(const gk_u32 x[GK_WMMA_TERMS / 2])
{
    gk_wmma_words words;
    GK_UNROLL for (int i = 0; i < GK_WMMA_TERMS / 2; i++) words[i] = x[i];
    return __builtin_bit_cast(gk_wmma_terms, words);
}
GK_FN gk_wmma_sums gk_wmma(const gk_u32 x[GK_WMMA_TERMS / 2], const gk_u32 y[GK_WMMA_TERMS / 2], gk_wmma_sums d)
{
    gk_wmma_terms a = gk_wmma_terms_of(x), b = gk_wmma_terms_of(y);
#if GK_DTYPE == GK_F16 && GK_WMMA == 11
    d = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, d);
#elif GK_DTYPE == GK_F16
    d = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, d);
#elif GK_WMMA == 11
    d = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, d);
#else
    d = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, d);
#endif
#ifdef __AMDGCN__
    /* Products stay where they are: the compiler moves them behind the copies of the next tile otherwise, and has no registers for all operands until then. */
    asm volatile("" : "+v"(d));
#endif
    return d;
}
/* Each lane of a row of 16 reads that of its number in the other row: the words name the 16 numbers. */
GK_FN gk_u32 gk_other_half(gk_u32 v) { return __builtin_amdgcn_permlanex16(v, v, 0x76543210u, 0xfedcba98u, false, false); }
#endif
#endif
