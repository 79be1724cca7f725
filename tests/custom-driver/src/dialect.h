/* Dialect of the host driver: the portable text as C++ for the system's compiler.
 *
 * The work-items of a block are contexts that take turns: one runs until it meets a barrier or ends. Blocks run one after the other, so that local
 * memory is static memory. GK_ENTRY is left to the driver, which finds the kernels by it. What is not the dialect's begins with host_. */
#define GK_HOST 1
typedef unsigned char gk_u8;
typedef unsigned short gk_u16;
typedef unsigned int gk_u32;
typedef long long gk_i64;
typedef unsigned long long gk_u64;
typedef struct { gk_u32 x, y, z, w; } gk_raw16;

#define GK_KERNEL(name) GK_ENTRY void name
#define GK_FN static inline
#define GK_FN_CALL static
#define GK_GLOBAL
#define GK_LOCAL static
#define GK_LOCAL_PTR
#define GK_CONST static const
#define GK_IN(T, p) const T* __restrict p
#define GK_OUT(T, p) T* __restrict p
#define GK_BIND_IN(T, p)
#define GK_BIND_OUT(T, p)
#define GK_BY_VALUE(T, name) const T name
#define GK_UNROLL
#define GK_ROLLED

/* Where the work-item is that runs now. */
static volatile int host_now_lid, host_now_bid[3], host_now_blocks[3];
#define gk_lid() ((int)host_now_lid)
#define gk_bid(d) ((int)host_now_bid[d])
#define gk_nblocks(d) ((int)host_now_blocks[d])
static void host_next_item(void);
#define GK_BARRIER() host_next_item()

/* Names of C's math functions for float; the double ones have no suffix. */
#define GK_M32(name) name##f
#define GK_M64(name) name

template <class To, class From> static inline To host_bits(From x)
{
    static_assert(sizeof(To) == sizeof(From), "types of one size");
    To y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
}
GK_FN float gk_as_f32(gk_u32 x) { return host_bits<float>(x); }
GK_FN gk_u32 gk_as_u32(float x) { return host_bits<gk_u32>(x); }
GK_FN double gk_as_f64(gk_u64 x) { return host_bits<double>(x); }
GK_FN gk_u64 gk_as_u64(double x) { return host_bits<gk_u64>(x); }
GK_FN gk_u32 gk_mulhi(gk_u32 a, gk_u32 b) { return (gk_u32)((gk_u64)a * b >> 32); }

GK_FN float gk_f16_to_f32(gk_u16 h)
{
    gk_u32 sign = (gk_u32)(h & 0x8000u) << 16, rest = h & 0x7fffu;
    /* Denormal numbers are multiples of 2^-24. */
    if (rest < 0x400u) return gk_as_f32(gk_as_u32((float)rest * 0x1p-24f) | sign);
    if (rest >= 0x7c00u) return gk_as_f32(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    return gk_as_f32(sign | ((rest << 13) + 0x38000000u));
}
/* To nearest, ties to even. */
GK_FN gk_u16 gk_f32_to_f16(float f)
{
    gk_u32 u = gk_as_u32(f), sign = u >> 16 & 0x8000u, rest = u & 0x7fffffffu;
    if (rest > 0x7f800000u) return (gk_u16)(sign | 0x7e00u | (rest >> 13 & 0x1ffu));
    if (rest >= 0x47800000u) return (gk_u16)(sign | 0x7c00u);
    /* Adding 0.5 leaves the multiples of 2^-24, rounded, in the last bits. */
    if (rest < 0x38800000u) return (gk_u16)(sign | (gk_as_u32(gk_as_f32(rest) + 0.5f) - 0x3f000000u));
    return (gk_u16)(sign | ((rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13));
}

GK_FN void gk_local_add(gk_u32* p, gk_u32 v) { *p += v; }
GK_FN gk_raw16 gk_load16(const void* p) { return *(const gk_raw16*)p; }
GK_FN void gk_store16(void* p, gk_raw16 v) { *(gk_raw16*)p = v; }
GK_FN gk_raw16 gk_make16(gk_u32 x, gk_u32 y, gk_u32 z, gk_u32 w) { return gk_raw16{x, y, z, w}; }
