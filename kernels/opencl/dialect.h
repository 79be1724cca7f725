/* OpenCL dialect: what the portable text calls GK_ and gk_, in OpenCL C 1.2. */
#define GK_OPENCL 1
typedef uchar gk_u8;
typedef ushort gk_u16;
typedef uint gk_u32;
typedef long gk_i64;
typedef ulong gk_u64;
typedef uint4 gk_raw16;
#if GK_DTYPE == GK_F64 || defined(GK_NEEDS_F64)
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#pragma OPENCL FP_CONTRACT ON

#define GK_KERNEL(name) __kernel __attribute__((reqd_work_group_size(GK_BLOCK, 1, 1))) void name
/* Always inlined: where all calls of a function pass the same local array, LLVM puts its address into the function, and PoCL, which gives every CPU
 * thread its own local arrays, only looks for them in kernels: its CPU threads would share that one. */
#define GK_FN static inline __attribute__((always_inline))
/* For long functions: called, not expanded at every use, so that units compile quickly. */
#define GK_FN_CALL static
#define GK_GLOBAL __global
#define GK_LOCAL __local
#define GK_LOCAL_PTR __local
#define GK_CONST __constant
/* A pointer parameter is an object and an offset in bytes, because sub-buffers need an alignment that views do not have. */
#define GK_IN(T, p) __global const gk_u8* restrict p##_base, long p##_offset
#define GK_OUT(T, p) __global gk_u8* restrict p##_base, long p##_offset
#define GK_BIND_IN(T, p) __global const T* p = p##_base ? (__global const T*)(p##_base + p##_offset) : 0
#define GK_BIND_OUT(T, p) __global T* p = p##_base ? (__global T*)(p##_base + p##_offset) : 0
#define GK_BY_VALUE(T, name) const T name
#define GK_BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define GK_UNROLL
#define GK_ROLLED

#define gk_lid() ((int)get_local_id(0))
#define gk_bid(d) ((int)get_group_id(d))
#define gk_nblocks(d) ((int)get_num_groups(d))

#define GK_M32(f) f
#define GK_M64(f) f

GK_FN float gk_as_f32(gk_u32 x) { return as_float(x); }
GK_FN gk_u32 gk_as_u32(float x) { return as_uint(x); }
#if GK_DTYPE == GK_F64 || defined(GK_NEEDS_F64)
GK_FN double gk_as_f64(gk_u64 x) { return as_double(x); }
GK_FN gk_u64 gk_as_u64(double x) { return as_ulong(x); }
#endif
GK_FN gk_u32 gk_mulhi(gk_u32 a, gk_u32 b) { return mul_hi(a, b); }

GK_FN float gk_f16_to_f32(gk_u16 h) { return vload_half(0, (__private const half*)&h); }
GK_FN gk_u16 gk_f32_to_f16(float f)
{
    gk_u16 h;
    vstore_half_rte(f, 0, (__private half*)&h);
    return h;
}

/* Adds to a counter in local memory; any number of threads at once. */
GK_FN void gk_local_add(__local gk_u32* p, gk_u32 v) { atomic_add((volatile __local gk_u32*)p, v); }

GK_FN gk_raw16 gk_load16(__global const void* p) { return *(__global const gk_raw16*)p; }
GK_FN void gk_store16(__global void* p, gk_raw16 v) { *(__global gk_raw16*)p = v; }
GK_FN gk_raw16 gk_make16(gk_u32 x, gk_u32 y, gk_u32 z, gk_u32 w) { return (uint4)(x, y, z, w); }
