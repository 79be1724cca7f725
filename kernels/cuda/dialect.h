/* CUDA dialect: what the portable text calls GK_ and gk_, in CUDA C++ for NVRTC. No vendor header is included. */
#define GK_CUDA 1
typedef unsigned char gk_u8;
typedef unsigned short gk_u16;
typedef unsigned int gk_u32;
typedef long long gk_i64;
typedef unsigned long long gk_u64;
typedef uint4 gk_raw16;

/* Blocks that shall fit on an SM at a time: 0 leaves the registers to the compiler, while 1 would tell it that no more than one matters.
 * Files with kernels that want more or fewer define it anew. */
#define GK_MIN_BLOCKS 0
/* Blocks of a cluster: GK_CLUSTER neighbours that run at the same time, so that they may wait for each other. Files define GK_CLUSTERING as
 * GK_IN_CLUSTERS in front of kernels whose blocks do. */
#define GK_CLUSTERING
#if __CUDA_ARCH__ >= 900
#define GK_CLUSTER 8
#define GK_IN_CLUSTERS __cluster_dims__(GK_CLUSTER, 1, 1)
#define GK_CLUSTER_ARRIVE() asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory")
#define GK_CLUSTER_WAIT() asm volatile("barrier.cluster.wait.aligned;" ::: "memory")
#define GK_CLUSTER_BARRIER() asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory")
#endif
#define GK_KERNEL(name) extern "C" __global__ void GK_CLUSTERING __launch_bounds__(GK_BLOCK, GK_MIN_BLOCKS) name
#define GK_FN static __device__ __forceinline__
/* For long functions: called, not expanded at every use, so that units compile quickly. */
#define GK_FN_CALL static __device__ __noinline__
#define GK_GLOBAL
#define GK_LOCAL __shared__
#define GK_LOCAL_DYNAMIC(T, name, count) extern __shared__ __align__(1024) T name[]
#define GK_LOCAL_PTR
#define GK_CONST static __device__ const
#define GK_IN(T, p) const T* __restrict__ p
#define GK_OUT(T, p) T* __restrict__ p
#define GK_BIND_IN(T, p)
#if __CUDA_ARCH__ >= 900
/* Waits for the kernel before, since the device may begin this one while that one ends (programmatic dependent launch); from here on the next may begin. */
#define GK_BIND_OUT(T, p) asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory")
#else
#define GK_BIND_OUT(T, p)
#endif
/* Read in place: a parameter that is indexed by a variable would otherwise be copied to local memory by every thread. */
#define GK_BY_VALUE(T, name) const __grid_constant__ T name
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
#if __CUDA_ARCH__ >= 800
/* Inline PTX for matrix cores (prelude/matrix.h): of sm_80, or of sm_90a. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define GK_PTX 90
#else
#define GK_PTX 80
#endif
GK_FN gk_u32 gk_local_address(const void* p) { return (gk_u32)__cvta_generic_to_shared(p); }
/* Two floats as bf16 or f16, the first in the lower half, rounded to nearest even; a NaN keeps neither sign nor payload. */
#define GK_QUICK_BF16 1
GK_FN gk_u32 gk_quick_bf16x2(float a, float b)
{
    gk_u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
}
#define GK_QUICK_F16 1
GK_FN gk_u32 gk_quick_f16x2(float a, float b)
{
    gk_u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
}
/* Larger and smaller of two values; NaN wins. */
#define GK_QUICK_MAX 1
GK_FN float gk_quick_max(float a, float b)
{
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
GK_FN float gk_quick_min(float a, float b)
{
    float r;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
#endif
GK_FN gk_u32 gk_mulhi(gk_u32 a, gk_u32 b) { return __umulhi(a, b); }

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

/* Adds to a counter in local memory; any number of threads at once. */
GK_FN void gk_local_add(gk_u32* p, gk_u32 v) { atomicAdd(p, v); }

#ifdef GK_CLUSTER
/* Stores to the place that p is in the local memory of a block of the cluster. */
GK_FN void gk_cluster_put(float* p, float v, int block)
{
    gk_u32 at = (gk_u32)__cvta_generic_to_shared(p);
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;\n\tst.shared::cluster.f32 [%0], %2;" : "+r"(at) : "r"(block), "f"(v) : "memory");
}
GK_FN void gk_cluster_put(double* p, double v, int block)
{
    gk_u32 at = (gk_u32)__cvta_generic_to_shared(p);
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;\n\tst.shared::cluster.f64 [%0], %2;" : "+r"(at) : "r"(block), "d"(v) : "memory");
}
#endif

GK_FN gk_raw16 gk_load16(const void* p) { return *(const gk_raw16*)p; }
GK_FN void gk_store16(void* p, gk_raw16 v) { *(gk_raw16*)p = v; }
/* A load and a store after which the line is the first to leave the caches. */
#define GK_STREAMS 1
GK_FN gk_raw16 gk_load_stream16(const void* p) { return __ldcs((const gk_raw16*)p); }
GK_FN void gk_stream16(void* p, gk_raw16 v) { __stcs((gk_raw16*)p, v); }
GK_FN gk_raw16 gk_make16(gk_u32 x, gk_u32 y, gk_u32 z, gk_u32 w) { return make_uint4(x, y, z, w); }

/* Exchange with the lane whose number differs in the bits of `mask`; both lanes must be active. Used by the collectives only. */
#define GK_SHUFFLE_WIDTH 32
GK_FN float gk_shuffle_xor_f32(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
GK_FN double gk_shuffle_xor_f64(double v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
GK_FN int gk_shuffle_xor_i32(int v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
