/* HIP dialect: what the portable text calls GK_ and gk_, in HIP C++ for hiprtc. No vendor header is included.
 *
 * Line by line the CUDA dialect, except where the hardware differs: conversion of f16, vectors of 16 bytes, exchange between lanes. There,
 * __HIP_PLATFORM_NVIDIA__ (HIP on top of CUDA, compiled by NVRTC) takes CUDA's way. */
#define GK_HIP 1
typedef unsigned char gk_u8;
typedef unsigned short gk_u16;
typedef unsigned int gk_u32;
typedef long long gk_i64;
typedef unsigned long long gk_u64;

#define GK_KERNEL(name) extern "C" __global__ void __launch_bounds__(GK_BLOCK) name
#define GK_FN static __device__ __forceinline__
/* For long functions: called, not expanded at every use, so that units compile quickly. */
#define GK_FN_CALL static __device__ __attribute__((noinline))
#define GK_GLOBAL
#define GK_LOCAL __shared__
#define GK_LOCAL_PTR
#define GK_CONST static __device__ const
#define GK_IN(T, p) const T* __restrict__ p
#define GK_OUT(T, p) T* __restrict__ p
#define GK_BIND_IN(T, p)
#define GK_BIND_OUT(T, p)
#ifdef __HIP_PLATFORM_NVIDIA__
#define GK_BY_VALUE(T, name) const __grid_constant__ T name
#else
#define GK_BY_VALUE(T, name) const T name
#endif
#define GK_BARRIER() __syncthreads()
#define GK_UNROLL _Pragma("unroll")
#define GK_ROLLED _Pragma("unroll 1")

#define gk_lid() ((int)threadIdx.x)
#define gk_bid(d) ((d) == 0 ? (int)blockIdx.x : (d) == 1 ? (int)blockIdx.y : (int)blockIdx.z)
#define gk_nblocks(d) ((d) == 0 ? (int)gridDim.x : (d) == 1 ? (int)gridDim.y : (int)gridDim.z)

/* Names of C's math functions for float; the double ones have no suffix. */
#define GK_M32(name) name##f
#define GK_M64(name) name

GK_FN float gk_as_f32(gk_u32 x) { return __uint_as_float(x); }
GK_FN gk_u32 gk_as_u32(float x) { return __float_as_uint(x); }
GK_FN double gk_as_f64(gk_u64 x) { return __longlong_as_double((long long)x); }
GK_FN gk_u64 gk_as_u64(double x) { return (gk_u64)__double_as_longlong(x); }
#ifdef __HIP_PLATFORM_NVIDIA__
/* 1/x within 1 ULP, without the care that division takes of the extremes. */
#define GK_QUICK_RECIP 1
GK_FN float gk_quick_recip(float x)
{
    float r;
    asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
/* 2^x within 2 ULP, denormal results as 0. */
#define GK_QUICK_EXP2 1
GK_FN float gk_quick_exp2(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
#endif
GK_FN gk_u32 gk_mulhi(gk_u32 a, gk_u32 b) { return __umulhi(a, b); }

/* The collectives exchange within runs of 32 lanes only, so that warps of 32 and (as AMD's wavefronts may have) of 64 lanes add in one order. */
#define GK_SHUFFLE_WIDTH 32

#if defined(__HIP_PLATFORM_NVIDIA__) || defined(__CUDACC_RTC__)

typedef uint4 gk_raw16;
GK_FN gk_raw16 gk_make16(gk_u32 x, gk_u32 y, gk_u32 z, gk_u32 w) { return make_uint4(x, y, z, w); }

GK_FN float gk_f16_to_f32(gk_u16 h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
GK_FN gk_u16 gk_f32_to_f16(float f)
{
    gk_u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

GK_FN int gk_shuffle_xor_i32(int v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }

#else

/* The compiler's own vector: HIP's uint4 is a class, and its loads are not always one instruction. */
typedef gk_u32 gk_raw16 __attribute__((ext_vector_type(4)));
GK_FN gk_raw16 gk_make16(gk_u32 x, gk_u32 y, gk_u32 z, gk_u32 w)
{
    gk_raw16 r;
    r.x = x; r.y = y; r.z = z; r.w = w;
    return r;
}

GK_FN float gk_f16_to_f32(gk_u16 h) { return (float)__builtin_bit_cast(_Float16, h); }
GK_FN gk_u16 gk_f32_to_f16(float f) { return __builtin_bit_cast(gk_u16, (_Float16)f); }

/* Lane number times 4 is the address for ds_bpermute, which fetches a 32-bit word from another lane of the warp (wavefront). */
GK_FN int gk_shuffle_xor_i32(int v, int mask)
{
    int lane = (int)__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
    return __builtin_amdgcn_ds_bpermute((lane ^ mask) << 2, v);
}

#endif

/* Adds to a counter in local memory; any number of threads at once. */
GK_FN void gk_local_add(gk_u32* p, gk_u32 v) { atomicAdd(p, v); }

GK_FN gk_raw16 gk_load16(const void* p) { return *(const gk_raw16*)p; }
GK_FN void gk_store16(void* p, gk_raw16 v) { *(gk_raw16*)p = v; }

/* Exchange with the lane whose number differs in the bits of `mask` (below GK_SHUFFLE_WIDTH); both lanes must be active. Used by the
 * collectives only. */
GK_FN float gk_shuffle_xor_f32(float v, int mask) { return gk_as_f32((gk_u32)gk_shuffle_xor_i32((int)gk_as_u32(v), mask)); }
GK_FN double gk_shuffle_xor_f64(double v, int mask)
{
    gk_u64 u = gk_as_u64(v);
    gk_u64 low = (gk_u32)gk_shuffle_xor_i32((int)(gk_u32)u, mask), high = (gk_u32)gk_shuffle_xor_i32((int)(gk_u32)(u >> 32), mask);
    return gk_as_f64(high << 32 | low);
}
